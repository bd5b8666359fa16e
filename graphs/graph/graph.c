/* graphs/graph/graph.c: values, nodes and models by their names. */
#include "graphs/graph/graph.h"

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
