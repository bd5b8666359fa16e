/* graphs/graph/graph.c: values, nodes and models by their names. */
#include "graphs/graph/graph.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const gr_value *gr_value_get(const gr_value *map, const char *key)
{
    for (size_t i = 0; map && map->kind == GR_VALUE_MAP && i < map->n; i++)
        if (!strcmp(map->pairs[i].key, key)) return &map->pairs[i].value;
    return NULL;
}

const gr_node *gr_graph_node(const gr_graph *g, const char *name)
{
    uint32_t i = gr_index_find(&g->by_name, name, strlen(name));
    return i == UINT32_MAX ? NULL : g->nodes[i];
}

const gr_model *gr_graph_model(const gr_graph *g, const char *name)
{
    for (size_t i = 0; i < g->n_models; i++)
        if (!strcmp(g->models[i]->name, name)) return g->models[i];
    return NULL;
}

static json_t *json_of_scalar(const gr_value *v)
{
    bool plain = !v->quoted && !v->block;
    bool number = plain && *v->text && strspn(v->text, "0123456789+-.eE") == strlen(v->text) &&
                  strpbrk(v->text, "0123456789");
    char *end;
    if (plain && (!strcmp(v->text, "true") || !strcmp(v->text, "false")))
        return json_boolean(*v->text == 't');
    errno = 0;
    long long whole = strtoll(v->text, &end, 10);
    if (number && !*end && !errno) return json_integer(whole);
    double real = strtod(v->text, &end);
    return number && !*end ? json_real(real) : json_string(v->text);
}

json_t *gr_value_json(const gr_value *v)
{
    if (v->kind == GR_VALUE_NULL) return json_null();
    if (v->kind == GR_VALUE_SCALAR) return json_of_scalar(v);
    json_t *out = v->kind == GR_VALUE_MAP ? json_object() : json_array();
    for (size_t i = 0; i < v->n; i++) {
        if (v->kind == GR_VALUE_MAP)
            json_object_set_new(out, v->pairs[i].key, gr_value_json(&v->pairs[i].value));
        else
            json_array_append_new(out, gr_value_json(&v->items[i]));
    }
    return out;
}
