/* scheduler/report/draw_html.c: a plan as a page. */
#include "scheduler/report/draw.h"

#include "ops/base/op.h"
#include "scheduler/report/facts.h"
#include "scheduler/report/picture.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

extern const char gr_plan_page[]; /* scheduler/report/plan.html */

static json_t *numbers(const uint64_t *values, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++) json_array_append_new(list, json_integer((json_int_t)values[i]));
    return list;
}

static json_t *series_of(const gr_view *v)
{
    json_t *list = json_array();
    for (uint32_t k = 0; k < v->n_series; k++) {
        const gr_series *s = &v->series[k];
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s, s:o}", "name", s->name, "category",
                                              gr_category_str(s->category), "place", gr_place_str(s->place),
                                              "colour", s->colour, "bytes", numbers(s->bytes, v->n)));
    }
    return list;
}

static json_t *inputs_of(const gr_view *v, const gr_node *n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n->n_inputs; i++) {
        gr_str columns = {0};
        const uint64_t bytes = gr_view_columns(v, n->inputs[i]->name, n->name, &columns);
        json_array_append_new(list, json_pack("{s:s, s:s, s:I}", "node", n->inputs[i]->name, "columns",
                                              columns.len ? columns.text : "", "bytes", (json_int_t)bytes));
        gr_str_release(&columns);
    }
    return list;
}

/* [series, bytes] of what is on the device for it. */
static json_t *holds_of(const gr_view *v, const gr_node *n)
{
    uint64_t *bytes = gr_calloc(v->n_series + 1, sizeof(*bytes));
    json_t *list = json_array();
    gr_view_node_holds(v, n->name, bytes);
    for (uint32_t k = 0; k < v->n_series; k++)
        if (bytes[k] && v->series[k].place == GR_DEVICE)
            json_array_append_new(list, json_pack("[i, I]", (int)k, (json_int_t)bytes[k]));
    free(bytes);
    return list;
}

static json_t *nodes_of(const gr_view *v, const gr_graph *g)
{
    json_t *list = json_array();
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_node *n = g->nodes[i];
        json_t *node = json_pack(
            "{s:s, s:b, s:s, s:s?, s:b, s:I, s:o, s:o}", "name", n->name, "here",
            !v->all->n_more || n->placement.role == v->role, "op", n->op->name, "model",
            n->model ? n->model->name : NULL, "trains", n->model && n->model->update == n, "ns",
            (json_int_t)gr_view_node_ns(v, n->name), "inputs", inputs_of(v, n), "holds", holds_of(v, n));
        json_array_append_new(list, node);
    }
    return list;
}

/* As the table counts them. */
static json_t *transitions_of(const gr_view *v)
{
    uint64_t bytes;
    uint32_t n = gr_transitions(&v->plan->paths[GR_PATH_STEADY], &bytes);
    return json_pack("{s:I, s:I}", "steps", (json_int_t)n, "bytes", (json_int_t)bytes);
}

static json_t *view_of(const gr_view *v, const gr_graph *g)
{
    json_t *depth = json_array(), *colours = json_object();
    for (uint32_t i = 0; i < v->n; i++) {
        const char *node = v->steps[i].node;
        json_array_append_new(depth, json_integer(v->depth[i]));
        if (node && !json_object_get(colours, node))
            json_object_set_new(colours, node, json_string(gr_node_colour(v, node)));
    }
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "series", series_of(v), "begin",
                     numbers(v->begin, v->n), "end", numbers(v->end, v->n), "depth", depth, "colours",
                     colours, "nodes", nodes_of(v, g), "transitions", transitions_of(v));
}

/* [name, value, note] of what is known. */
static json_t *facts_of(const gr_plan *p, const gr_graph *g)
{
    gr_fact facts[GR_N_FACTS];
    json_t *list = json_array();
    gr_facts(p, g, facts);
    for (int i = 0; i < GR_N_FACTS; i++)
        if (*facts[i].value)
            json_array_append_new(list, json_pack("[s, s, s]", facts[i].name, facts[i].value, facts[i].note));
    gr_facts_release(facts);
    return list;
}

/* JSON inside a script element: no text in it may look like the element's end. */
static void put_json(gr_str *out, const char *text)
{
    for (; *text; text++)
        if (*text == '<')
            gr_str_puts(out, "\\u003c");
        else
            gr_str_putc(out, *text);
}

/* The page up to a mark; returns what follows it. */
static const char *put_until(gr_str *out, const char *page, const char *mark)
{
    const char *at = strstr(page, mark);
    gr_str_add(out, page, (size_t)(at - page));
    return at + strlen(mark);
}

void gr_draw_html(const gr_plan *p, const gr_graph *g, gr_str *out)
{
    gr_str plan = {0};
    json_t *views = json_array();
    for (uint32_t c = 0; c <= p->n_more; c++) {
        gr_view *v = gr_view_of_role(p, c);
        json_array_append_new(views, view_of(v, g));
        gr_view_free(v);
    }
    json_t *view = json_pack("{s:o, s:o}", "facts", facts_of(p, g), "roles", views);
    char *text = json_dumps(view, JSON_COMPACT);
    gr_plan_write_json(p, &plan);
    const char *rest = put_until(out, gr_plan_page, "@PLAN@");
    put_json(out, plan.text);
    rest = put_until(out, rest, "@VIEW@");
    put_json(out, text);
    gr_str_puts(out, rest);
    free(text);
    json_decref(view);
    gr_str_release(&plan);
}
