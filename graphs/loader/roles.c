/* graphs/loader/roles.c: the graph as each of several roles sees it: a copy with the shares of its ranks. */
#include "graphs/loader/loader.h"

#include <string.h>

/* What a copy has of its own is what differs by role, models and nodes, and all that points to these. Values,
 * expressions, losses and names are the first graph's: expressions name columns and nodes by number. */
typedef struct copying {
    const gr_graph *from;
    gr_graph *to;
} copying;

static void *copy(const copying *c, const void *from, size_t bytes)
{
    void *to = gr_arena_alloc(c->to->arena, bytes);
    if (bytes) memcpy(to, from, bytes);
    return to;
}

static gr_model *own_model(const copying *c, const gr_model *m)
{
    return m ? c->to->models[m->index] : NULL;
}

/* A node that was left out is known to nobody who runs: it stays what it was. */
static const gr_node *own_node(const copying *c, const gr_node *n)
{
    const bool there = n && n->index < c->from->n_nodes && c->from->nodes[n->index] == n;
    return there ? c->to->nodes[n->index] : n;
}

static const gr_column *own_column(const copying *c, const gr_column *x)
{
    return x ? c->to->columns[x->id] : NULL;
}

static void *copy_config(const copying *c, const gr_node *n)
{
    char *cfg = copy(c, n->cfg, n->op->cfg_bytes);
    for (const gr_key *k = n->op->keys; k && k->name; k++) {
        void *at = cfg + k->offset;
        if (k->kind == GR_KEY_NODE) *(const gr_node **)at = own_node(c, *(const gr_node **)at);
        if (k->kind == GR_KEY_FIELD) ((gr_field_ref *)at)->node = own_node(c, ((gr_field_ref *)at)->node);
        if (k->kind == GR_KEY_MODEL || k->kind == GR_KEY_SECOND_MODEL)
            *(gr_model **)at = own_model(c, *(gr_model **)at);
    }
    return cfg;
}

static void point_node(const copying *c, gr_node *n)
{
    gr_node_results *r = &n->results;
    n->cfg = copy_config(c, n);
    n->model = own_model(c, n->model);
    n->second = own_model(c, n->second);
    n->of = own_node(c, n->of);
    n->rows = own_node(c, n->rows);
    n->groups = own_node(c, n->groups);
    n->stands_for = own_node(c, n->stands_for);
    n->timing.repeated_by = own_node(c, n->timing.repeated_by);
    n->inputs = copy(c, n->inputs, n->n_inputs * sizeof(*n->inputs));
    for (size_t i = 0; i < n->n_inputs; i++) n->inputs[i] = own_node(c, n->inputs[i]);
    r->columns = copy(c, r->columns, r->n_columns * sizeof(*r->columns));
    for (size_t i = 0; i < r->n_columns; i++) r->columns[i] = own_column(c, r->columns[i]);
}

static void point_column(const copying *c, gr_column *x)
{
    x->node = own_node(c, x->node);
    x->rows = own_node(c, x->rows);
    x->from = own_column(c, x->from);
}

static gr_graph *copy_graph(const gr_graph *from)
{
    gr_graph *to = gr_arena_alloc(from->arena, sizeof(*to));
    *to = *from;
    to->views = NULL;
    const copying c = {from, to};
    to->models = copy(&c, from->models, from->n_models * sizeof(gr_model *));
    to->nodes = copy(&c, from->nodes, from->n_nodes * sizeof(gr_node *));
    to->columns = copy(&c, from->columns, from->n_columns * sizeof(gr_column *));
    to->cap_columns = from->n_columns;
    for (size_t i = 0; i < to->n_models; i++) to->models[i] = copy(&c, from->models[i], sizeof(gr_model));
    for (size_t i = 0; i < to->n_nodes; i++) to->nodes[i] = copy(&c, from->nodes[i], sizeof(gr_node));
    for (size_t i = 0; i < to->n_columns; i++) to->columns[i] = copy(&c, from->columns[i], sizeof(gr_column));
    for (size_t i = 0; i < to->n_models; i++) to->models[i]->update = own_node(&c, from->models[i]->update);
    for (size_t i = 0; i < to->n_models; i++) to->models[i]->follows = own_node(&c, from->models[i]->follows);
    for (size_t i = 0; i < to->n_models; i++) {
        gr_lora *lora = &to->models[i]->lora;
        lora->base = own_model(&c, lora->base);
        lora->ends = own_model(&c, lora->ends);
    }
    for (size_t i = 0; i < to->n_nodes; i++) point_node(&c, to->nodes[i]);
    for (size_t i = 0; i < to->n_columns; i++) point_column(&c, to->columns[i]);
    return to;
}

void gr_copy_for_roles(gr_graph *g)
{
    if (g->n_roles < 2) return;
    g->views = gr_arena_alloc(g->arena, g->n_roles * sizeof(*g->views));
    for (uint32_t role = 0; role < g->n_roles; role++) {
        gr_graph *view = g->views[role] = copy_graph(g);
        view->ranks = g->roles[role].n;
        view->view = role;
        gr_set_shares(view, false);
    }
}
