/* ops/base/routes.c: the record of a rollout's experts: its layout, what is written to it and read. */
#include "ops/base/routes.h"

#include "ops/base/configs.h"

#include <stdio.h>
#include <string.h>

const char *const gr_replay_names[] = {
    [GR_REPLAY_NONE] = "none", [GR_REPLAY_COMPARE] = "compare", [GR_REPLAY_ROLLOUT] = "rollout", NULL};

gr_replay gr_node_replay(const gr_node *n)
{
    if (n->op->trains) return (gr_replay)((const gr_update_cfg *)n->cfg)->replay;
    return n->op->logprob && n->op->passes ? (gr_replay)((const gr_logprob_cfg *)n->cfg)->replay
                                           : GR_REPLAY_NONE;
}

/* ---- checks ---------------------------------------------------------------------------------------------
 */

static bool same_routers(const gr_model_shape *a, const gr_model_shape *b)
{
    bool same = a->layers == b->layers;
    for (uint32_t l = 0; same && l < a->layers; l++) {
        const gr_layer_desc *x = gr_layer(a, l), *y = gr_layer(b, l);
        same =
            x->mlp == y->mlp && x->experts.count == y->experts.count && x->experts.top_k == y->experts.top_k;
    }
    return same;
}

void gr_check_replay(const gr_node *n, gr_diag *d)
{
    const gr_replay replay = gr_node_replay(n);
    const gr_node *maker = gr_rows_maker(n->rows);
    if (replay == GR_REPLAY_NONE) return;
    const gr_loc at = gr_value_get(n->value, "replay")->at;
    if (gr_rows_joined(n->rows))
        gr_diag_error(
            d, at, GR_E_INVALID,
            "'replay': some rows of '%s' were not sampled in this iteration, so no experts were recorded",
            n->rows->name);
    else if (!maker->op->generates)
        gr_diag_error(d, at, GR_E_INVALID,
                      "'replay': the rows of '%s' were not sampled, so no experts were recorded",
                      maker->name);
    else if (!gr_model_routers(&n->model->shape, n->model->shape.layers).n)
        gr_diag_error(d, at, GR_E_INVALID, "'replay': model '%s' has no layers of experts", n->model->name);
    else if (gr_mesh_size(&n->model->sharding.mesh, GR_AXIS_TENSOR) > 1)
        gr_diag_error(
            d, at, GR_E_INVALID,
            "'replay' does not go with slices of layers in training, 'parallel: {tensor: %u}' of model '%s'",
            gr_mesh_size(&n->model->sharding.mesh, GR_AXIS_TENSOR), n->model->name);
    else if (!same_routers(&n->model->shape, &maker->model->shape))
        gr_diag_error(d, at, GR_E_INVALID,
                      "'replay': '%s' sampled with model '%s', whose routers are not those of model '%s'",
                      maker->name, maker->model->name, n->model->name);
}

static bool comes_from(const gr_node *rows, const gr_node *from)
{
    while (rows != from && rows->op->narrows) rows = rows->of->rows;
    return rows == from;
}

bool gr_rows_routed(const gr_graph *g, const gr_node *rows)
{
    for (size_t i = 0; i < g->n_nodes; i++)
        if (gr_node_replay(g->nodes[i]) != GR_REPLAY_NONE && comes_from(g->nodes[i]->rows, rows)) return true;
    return false;
}

/* ---- layout ---------------------------------------------------------------------------------------------
 */

static uint32_t most_experts(const gr_model_shape *s)
{
    uint32_t most = 0;
    for (uint32_t kind = 0; kind < s->n_kinds; kind++) most = GR_MAX(most, s->kinds[kind].experts.count);
    return most;
}

gr_routes gr_routes_at(void *block, const gr_node *rows)
{
    const gr_model_shape *s = &gr_rows_maker(rows)->model->shape;
    const gr_rows_bounds *b = &rows->bounds;
    return (gr_routes){.shape = s,
                       .data = block,
                       .choices = gr_model_routers(s, s->layers).choices,
                       .stride = b->prompt_tokens + b->response_tokens,
                       .size = most_experts(s) > 256 ? 2 : 1};
}

uint64_t gr_routes_bytes(const gr_node *rows)
{
    const gr_routes r = gr_routes_at(NULL, rows);
    return (uint64_t)rows->bounds.seqs * r.stride * r.choices * r.size;
}

uint32_t gr_routes_object(gr_tasks *p, const gr_graph *g, const gr_node *rows)
{
    char name[128];
    if (!gr_rows_routed(g, rows)) return GR_NONE;
    snprintf(name, sizeof(name), "%s.routes", rows->name);
    const gr_object o = {.name = name,
                         .category = GR_CAT_COLUMNS,
                         .span = GR_SPAN_TEMP,
                         .place = GR_HOST,
                         .bytes = gr_routes_bytes(rows),
                         .bucket = GR_NONE};
    return gr_tasks_object(p, &o);
}

/* ---- reading and writing --------------------------------------------------------------------------------
 */

/* The choices that the routers before have, of a sequence's first token. */
static uint8_t *begin_of(const gr_routes *r, uint32_t seq, uint32_t choices)
{
    return r->data + ((uint64_t)seq * r->choices + choices) * r->stride * r->size;
}

/* Those of one router: where they are recorded, where in a pass, and how many. */
typedef struct part {
    uint8_t *recorded;
    uint64_t at, n;
} part;

/* The next router's, from layer *l on; false: there is none. */
static bool next_part(const gr_routes *r, const gr_routed_pass *p, uint32_t *l, part *out)
{
    while (*l < r->shape->layers && gr_layer(r->shape, *l)->mlp != GR_MLP_EXPERTS) ++*l;
    if (*l == r->shape->layers) return false;
    const uint32_t k = gr_layer(r->shape, *l)->experts.top_k, before = gr_model_routers(r->shape, *l).choices;
    out->recorded = begin_of(r, p->seq, before) + (uint64_t)p->first * k * r->size;
    out->at = (uint64_t)before * p->n + (uint64_t)p->at * k;
    out->n = (uint64_t)p->count * k;
    ++*l;
    return true;
}

void gr_routes_record(const gr_routes *r, const gr_routed_pass *p, const uint16_t *choices)
{
    part x;
    for (uint32_t l = 0; next_part(r, p, &l, &x);)
        if (r->size == 2)
            memcpy(x.recorded, choices + x.at, x.n * 2);
        else
            for (uint64_t i = 0; i < x.n; i++) x.recorded[i] = (uint8_t)choices[x.at + i];
}

void gr_routes_read(const gr_routes *r, const gr_routed_pass *p, uint16_t *choices)
{
    part x;
    for (uint32_t l = 0; next_part(r, p, &l, &x);)
        if (r->size == 2)
            memcpy(choices + x.at, x.recorded, x.n * 2);
        else
            for (uint64_t i = 0; i < x.n; i++) choices[x.at + i] = x.recorded[i];
}

void gr_routes_copy(const gr_routes *from, uint32_t seq, const gr_routes *to, uint32_t at, uint32_t tokens)
{
    const gr_routed_pass read = {.n = from->stride, .seq = seq, .count = tokens},
                         written = {.n = to->stride, .seq = at, .count = tokens};
    part x, y;
    for (uint32_t l = 0, m = 0; next_part(from, &read, &l, &x) && next_part(to, &written, &m, &y);)
        memcpy(y.recorded, x.recorded, x.n * from->size);
}
