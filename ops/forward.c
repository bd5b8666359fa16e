/* ops/forward.c: the works of a forward pass that `logprob`, `value` and `score` share. */
#include "ops/forward.h"

#include "ops/kernels/carried.h"
#include "ops/kernels/layer.h"
#include "ops/parallel/merge.h"
#include "ops/parallel/quantize.h"
#include "ops/parallel/sharding.h"
#include "ops/parallel/stages.h"
#include "ops/tunables.h"
#include "runtime/io/progress.h"

#include <stdlib.h>

/* Ranks of a group have the same sequences: they have a slice of each layer, or a part of the tokens. */
static uint32_t groups_of(const gr_node *n)
{
    return gr_node_parts(n) / n->placement.parts;
}

static gr_balance_bounds balance_bounds(const gr_node *n)
{
    const gr_rows_bounds *b = &n->bounds;
    return gr_balance_bounds_of(n->placement.task.seqs, b->seqs, b->prompt_tokens + b->response_tokens,
                                groups_of(n));
}

gr_micro_bounds gr_forward_bounds(const gr_node *n, const gr_choices *how)
{
    gr_balance_bounds most = balance_bounds(n);
    gr_micro_bounds b = gr_micro_bounds_of(&n->bounds, &most, how->micro_tokens, gr_node_cut(n));
    b.routes = gr_tally_routes(n);
    gr_micro_set_shares(&b, gr_node_shares(n));
    gr_micro_set_parts(&b, n);
    return b;
}

/* ---- what may be chosen -------------------------------------------------------------------------------- */

static void set_micro(const gr_node *n, const gr_kernels *k, uint32_t level, gr_choices *c)
{
    gr_micro_set(n, k, level, (uint64_t)n->placement.task.seqs * gr_node_longest(n), c);
}

static void set_head(const gr_node *n, const gr_kernels *k, uint32_t level, gr_choices *c)
{
    gr_head_set(n, k, level, gr_forward_bounds(n, c).own_rows, c);
}

size_t gr_forward_tunables(const gr_graph *g, const gr_node *n, const gr_kernels *k, const gr_choices *c,
                           gr_tunable *out)
{
    const uint64_t all = (uint64_t)n->placement.task.seqs * gr_node_longest(n);
    size_t count = 0;
    (void)c;
    if (!((const gr_logprob_cfg *)n->cfg)->micro_tokens)
        out[count++] = gr_micro_tunable(g, n, k, all, set_micro);
    count += gr_experts_tunable(n, k, &out[count]);
    out[count++] = gr_head_tunable(n, k, set_head);
    return count;
}

void gr_forward_default_choice(const gr_node *n, const gr_kernels *k, gr_choices *c)
{
    c->micro_tokens = ((const gr_logprob_cfg *)n->cfg)->micro_tokens;
    if (!c->micro_tokens) set_micro(n, k, 0, c);
    gr_experts_set(n, k, 0, c);
    set_head(n, k, 0, c);
}

bool gr_forward_runs_with(const gr_node *n, const gr_choices *c)
{
    return c->micro_tokens >= gr_node_together(n) && c->head_rows && !c->experts_again;
}

/* ---- declaring ----------------------------------------------------------------------------------------- */

uint32_t gr_forward_weights(const gr_node *n, const gr_kernels *k, gr_tasks *p, uint32_t bucket)
{
    const gr_stages stages = gr_stages_of(n);
    if (stages.n > 1) return gr_piece_weights(p, k, n, &stages, bucket);
    if (gr_node_fp8(n)) return gr_quantize_object(p, k, n->model, gr_reads_rollout(n), bucket);
    return gr_reads_rollout(n) ? gr_sharding_rollout(p, k, n->model, bucket)
                               : gr_sharding_params(p, k, n->model, "", bucket);
}

uint32_t gr_forward_last(const gr_node *n, const gr_kernels *k, gr_tasks *p)
{
    const gr_stages stages = gr_stages_of(n);
    return gr_forward_weights(n, k, p, stages.n > 1 ? gr_stages_last(&stages) : 1 + n->model->shape.layers);
}

void gr_forward_head_cost(gr_task *w, const gr_node *n)
{
    const gr_stages stages = gr_stages_of(n);
    if (stages.n > 1) gr_cost_times(w, gr_stages_head(&stages, n));
}

/* Layers that are kept in 4 bits are opened one by one, where the pass reads what is opened and nothing made
 * of it. */
static bool opens_layers(const gr_node *n)
{
    return gr_bucket_is_closed(n->model, 1) && !gr_node_piped(n) && !gr_reads_rollout(n) && !gr_node_fp8(n);
}

/* What generates is there already; stages are gathered once. */
static void gather(const gr_node *n, const gr_kernels *k, gr_tasks *p, uint32_t bucket)
{
    if (!gr_node_piped(n) && !gr_reads_rollout(n)) gr_sharding_gather(p, k, n->model, "", bucket);
}

/* Hidden states of a micro-batch that come around a ring, beside those that go. GR_NONE: there is no ring. */
static uint32_t coming(const gr_node *n, const gr_kernels *k, gr_tasks *p, const gr_micro_bounds *b)
{
    const uint64_t bytes = gr_hidden_bytes(k, &n->model->shape, gr_micro_own(b, b->tokens));
    return gr_node_interleaves(n) ? gr_tasks_temp(p, GR_CAT_ACTIVATIONS, bytes, "x_comes") : GR_NONE;
}

static void declare_embed(const gr_node *n, const gr_kernels *k, gr_tasks *p, const gr_micro_bounds *b,
                          const gr_forward *f)
{
    const uint64_t bytes = b->slices ? gr_embed_slices_ws_bytes(k, gr_node_shape(n), b->slices,
                                                                gr_micro_own(b, b->tokens), false)
                                     : 0;
    const uint32_t ws = bytes ? gr_tasks_temp(p, GR_CAT_WORKSPACE, bytes, "embed_ws") : GR_NONE;
    gr_task *task = gr_tasks_run(p, GR_FORWARD_EMBED, 0,
                                 (gr_use[]){[GR_FORWARD_WEIGHTS] = {gr_forward_weights(n, k, p, 0), GR_READ},
                                            [GR_FORWARD_PACKED] = {f->packed, GR_READ},
                                            [GR_FORWARD_X] = {f->x, gr_node_piped(n) ? GR_UPDATE : GR_WRITE},
                                            [GR_FORWARD_WS] = {ws, GR_WRITE},
                                            [GR_FORWARD_COME] = {coming(n, k, p, b), GR_READ}},
                                 GR_N_FORWARD_EMBED, "embed");
    gr_embed_exchange_cost(task, k, n, f->cost.tokens / gr_mesh_size(&n->placement.mesh, GR_AXIS_CONTEXT));
}

/* Embeddings of each layer, from what was embedded. */
static void declare_per_layer(const gr_node *n, const gr_choices *how, const gr_kernels *k, gr_tasks *p,
                              const gr_micro_bounds *b, const gr_forward *f)
{
    const gr_model_shape *s = gr_node_shape(n);
    const uint32_t tokens = gr_micro_own(b, b->tokens), bucket = gr_model_per_layer_bucket(s);
    if (!s->per_layer.vocab) return;
    const uint32_t ws = gr_tasks_temp(
        p, GR_CAT_WORKSPACE, gr_per_layer_ws_bytes(k, s, tokens, how->threads, false), "per_layer_ws");
    gather(n, k, p, bucket);
    gr_task *task =
        gr_tasks_run(p, GR_FORWARD_PER_LAYER, 0,
                     (gr_use[]){[GR_FORWARD_WEIGHTS] = {gr_forward_weights(n, k, p, bucket), GR_READ},
                                [GR_FORWARD_PACKED] = {f->packed, GR_READ},
                                [GR_FORWARD_X] = {f->x, GR_READ},
                                [GR_FORWARD_WS] = {ws, GR_WRITE},
                                [GR_FORWARD_CARRIED] = {f->carried, GR_WRITE}},
                     GR_N_FORWARD_PER_LAYER, "per_layer");
    gr_per_layer_cost(task, k, s, f->cost.tokens, 1);
}

static void declare_layers(const gr_node *n, const gr_choices *how, const gr_kernels *k, gr_tasks *p,
                           const gr_micro_bounds *b, const gr_forward *f)
{
    const gr_model_shape *s = gr_node_shape(n);
    gr_pass_bounds bounds = gr_pass_bounds_of(b, &n->bounds, how);
    uint32_t ws =
        gr_tasks_temp(p, GR_CAT_WORKSPACE, gr_layers_ws_bytes(k, s, &bounds, GR_LAYER_FORWARD), "ws");
    const gr_stages stages = gr_stages_of(n);
    const uint32_t layers = stages.n > 1 ? stages.slots : s->layers;
    for (uint32_t l = 0; l < layers; l++) {
        const uint32_t like = stages.n > 1 ? gr_stage_slowest(&stages, s, l) : l;
        gather(n, k, p, 2 + l); /* beside this layer */
        if (opens_layers(n)) gr_merge_open(p, k, n->model, 1 + l);
        gr_task *task = gr_tasks_run(
            p, GR_FORWARD_LAYER, l,
            (gr_use[]){[GR_FORWARD_WEIGHTS] = {gr_forward_weights(n, k, p, 1 + l), GR_READ},
                       [GR_FORWARD_PACKED] = {f->packed, GR_READ},
                       [GR_FORWARD_X] = {f->x, GR_UPDATE},
                       [GR_FORWARD_WS] = {ws, GR_WRITE},
                       [GR_FORWARD_CARRIED] = {f->carried, gr_carried_begins(s, l) ? GR_WRITE : GR_UPDATE},
                       [GR_FORWARD_LAYER_TALLY] = {f->tally.tally, GR_UPDATE},
                       [GR_FORWARD_LAYER_DIFFERS] = {f->tally.differs, GR_UPDATE}},
            GR_N_FORWARD_LAYER, "layer.%u", l);
        gr_layer_mesh_cost(task, k, n, like, f->cost.tokens, f->cost.length, 1);
        gr_experts_price(task, k, s, like, gr_expert_tokens(n, f->cost.tokens), bounds.expert_run, 0);
        gr_cost_times(task, gr_stages_layers(&stages, n));
    }
}

/* Around a ring there is one, at the begin of a trip. */
static void exchange(const gr_node *n, const gr_kernels *k, gr_tasks *p, const gr_micro_bounds *b,
                     const gr_forward *f, bool next)
{
    const gr_stage_messages m = {.x = f->x,
                                 .dx = GR_NONE,
                                 .cut = f->packed,
                                 .back = GR_NONE,
                                 .bytes = gr_hidden_bytes(k, &n->model->shape, gr_micro_own(b, b->tokens))};
    const gr_ring_messages around = {m, coming(n, k, p, b), GR_NONE};
    if (!gr_node_interleaves(n) && gr_node_piped(n))
        gr_stage_exchange(p, n, next, &m, next ? "next" : "before");
    if (gr_node_interleaves(n) && !next) gr_stage_ring(p, n, &around, "around");
}

static void gather_stages(const gr_node *n, const gr_kernels *k, gr_tasks *p)
{
    const gr_stages stages = gr_stages_of(n);
    for (uint32_t i = 0; i < stages.pieces && stages.n > 1; i++) gr_piece_gather(p, k, n, &stages, i);
}

/* The rows that the pass reads: with other prompts, a copy that has these. */
static uint32_t declare_rows(const gr_node *n, gr_tasks *p)
{
    const gr_node *prompts = gr_node_other_prompts(n);
    const uint32_t rows = gr_rows_object(p, n->rows);
    if (!prompts) return rows;
    const uint32_t other = gr_tasks_host(p, GR_CAT_COLUMNS, gr_rows_bytes(&n->bounds), "rows");
    gr_tasks_run(p, GR_FORWARD_PUT, 0,
                 (gr_use[]){[GR_FORWARD_PUT_ROWS] = {rows, GR_READ | GR_BY_CODE},
                            [GR_FORWARD_PUT_PROMPTS] = {gr_rows_object(p, prompts), GR_READ | GR_BY_CODE},
                            [GR_FORWARD_PUT_OUT] = {other, GR_WRITE | GR_BY_CODE}},
                 GR_N_FORWARD_PUT, "prompts");
    return other;
}

gr_forward gr_forward_declare(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                              gr_tasks *p, const uint32_t *out, size_t n_out)
{
    gr_micro_bounds b = gr_forward_bounds(n, how);
    const uint32_t block = declare_rows(n, p), routes = b.routes ? gr_routes_object(p, g, n->rows) : GR_NONE;
    if (!opens_layers(n)) gr_merge_declare(p, k, n->model, how->threads);
    if (gr_reads_rollout(n)) gr_sharding_sync(p, k, n->model);
    if (gr_node_fp8(n)) gr_quantize_declare(p, k, n->model, gr_reads_rollout(n));
    gr_forward f = {.cost = gr_micro_cost_of(&b, &n->bounds, n->placement.task.seqs)};
    const bool piped = gr_node_piped(n),
               collectives = piped || gr_experts_are_divided(n) ||
                             (!gr_reads_rollout(n) && gr_sharding_gathers(p, n->model));
    f.packed = gr_tasks_temp(p, GR_CAT_WORKSPACE, gr_micro_bytes(&b), "packed");
    uint32_t staging = gr_tasks_host(p, GR_CAT_WORKSPACE, gr_micro_bytes(&b), "staging");
    f.x = gr_tasks_temp(p, GR_CAT_ACTIVATIONS,
                        gr_hidden_bytes(k, &n->model->shape, gr_micro_own(&b, b.tokens)), "x");
    f.carried = gr_carried_object(p, k, gr_node_shape(n), gr_micro_own(&b, b.tokens), true, "", "carried");
    f.tally = gr_tally_declare(p, n, &b);

    gr_use *begin = gr_arena_alloc(p->arena, (GR_N_FORWARD_BEGIN + n_out) * sizeof(*begin));
    begin[GR_FORWARD_BEGIN_ROWS] = (gr_use){block, GR_READ | GR_BY_CODE};
    begin[GR_FORWARD_BEGIN_TALLY] = (gr_use){f.tally.tally, GR_WRITE};
    begin[GR_FORWARD_BEGIN_X] = (gr_use){gr_node_interleaves(n) ? f.x : GR_NONE, GR_WRITE};
    for (size_t i = 0; i < n_out; i++)
        begin[GR_N_FORWARD_BEGIN + i] = (gr_use){out[i], GR_WRITE | GR_BY_QUEUE};
    gr_tasks_run(p, GR_FORWARD_BEGIN, 0, begin, GR_N_FORWARD_BEGIN + n_out, "begin");
    gather_stages(n, k, p);
    const gr_stages stages = gr_stages_of(n);
    gr_sharding_loop(p, GR_FORWARD_LOOP, gr_stages_trips(&stages, b.trips, false), collectives, block,
                     "micro_batches")
        ->loop.trips_expected = gr_stages_full_trips(&stages, f.cost.trips);
    gr_tasks_run(p, GR_FORWARD_PACK, 0,
                 (gr_use[]){[GR_FORWARD_PACK_ROWS] = {block, GR_READ},
                            [GR_FORWARD_PACK_PACKED] = {f.packed, GR_WRITE},
                            [GR_FORWARD_PACK_STAGING] = {staging, GR_WRITE},
                            [GR_FORWARD_PACK_ROUTES] = {routes, GR_READ},
                            [GR_FORWARD_PACK_DIFFERS] = {f.tally.differs, GR_WRITE}},
                 GR_N_FORWARD_PACK, "pack")
        ->uses.by_code = true;
    gather(n, k, p, 0);
    gather(n, k, p, 1);
    exchange(n, k, p, &b, &f, false);
    declare_embed(n, k, p, &b, &f);
    declare_per_layer(n, how, k, p, &b, &f);
    declare_layers(n, how, k, p, &b, &f);
    exchange(n, k, p, &b, &f, true);
    return f;
}

gr_pass *gr_forward_open(gr_session *s, const gr_node *n, bool last)
{
    gr_pass *pass = gr_calloc(1, sizeof(*pass));
    pass->last = last;
    pass->longest_first = gr_rows_longest_first(s->graph, n->rows);
    pass->tally = gr_tally_open(s, n);
    const gr_balance_bounds most = balance_bounds(n);
    const uint32_t seqs = n->bounds.seqs;
    gr_pass_open(pass, seqs);
    pass->balancer = gr_balancer_new(seqs, groups_of(n), &most);
    pass->asked_balancer = gr_balancer_new(seqs, groups_of(n), &most);
    return pass;
}

void gr_forward_close(void *state)
{
    gr_pass *pass = state;
    if (pass) {
        gr_tally_close(pass->tally);
        gr_pass_release(pass);
    }
    free(pass);
}

static void find_own(const gr_call *c, const gr_pass *pass, const gr_rows *rows, gr_balancer *by,
                     gr_seqs *own)
{
    gr_seq_cost cost = gr_seq_cost_of(&c->node->model->shape, pass->last);
    cost.whole = gr_node_shares(c->node) > 0;
    const gr_node_placement *at = &c->node->placement;
    const uint32_t group = gr_mesh_place(&at->mesh, c->session->rank, GR_AXIS_DATA) / at->parts;
    gr_balance_own(by, own, group, rows, 0, *rows->n_groups, &cost);
}

static void run_begin(const gr_call *c, gr_pass *pass, const gr_rows *rows)
{
    const gr_rows_bounds *b = &c->node->bounds;
    uint64_t n = pass->last ? b->seqs : (uint64_t)b->seqs * b->response_tokens;
    find_own(c, pass, rows, pass->balancer, &pass->own);
    pass->place = c->session->rank % gr_node_cut(c->node);
    gr_pass_begin(pass, &pass->own);
    gr_tally_clear(c, c->ptr[GR_FORWARD_BEGIN_TALLY]);
    for (uint32_t i = GR_N_FORWARD_BEGIN; i < c->n_ptr; i++)
        if (c->ptr[i]) c->session->kernels->zero(c->queue, c->ptr[i], n * sizeof(float));
}

/* The rows may be another model's, with more tokens than this one has. */
static gr_status check_ids(const gr_call *c, const gr_pass *pass, const gr_micro *staging, gr_diag *d)
{
    const gr_model *m = c->node->model;
    for (uint32_t i = 0; i < pass->n_own; i++)
        if ((uint32_t)staging->ids[i] >= m->shape.vocab)
            return gr_diag_error(d, c->node->at, GR_E_FAILED,
                                 "'%s': token %d of '%s' is not one of the %u of model '%s'", c->node->name,
                                 staging->ids[i], c->node->rows->name, m->shape.vocab, m->name);
    return GR_OK;
}

static gr_status run_pack(const gr_call *c, gr_pass *pass, gr_rows *rows, gr_diag *d)
{
    gr_micro_bounds b = gr_forward_bounds(c->node, c->how);
    gr_micro staging = gr_micro_at(c->ptr[GR_FORWARD_PACK_STAGING], &b);
    if (b.routes) rows->routes = gr_routes_at(c->ptr[GR_FORWARD_PACK_ROUTES], c->node->rows);
    if (!gr_pass_turn(pass, c->node, c->session->rank, false)) return GR_OK;
    gr_pass_next(pass, rows, &b, c->queue, c->ptr[GR_FORWARD_PACK_PACKED], c->ptr[GR_FORWARD_PACK_STAGING]);
    gr_tally_begin_pass(c, c->ptr[GR_FORWARD_PACK_DIFFERS], b.tokens);
    return check_ids(c, pass, &staging, d);
}

_Static_assert((int)GR_FORWARD_BEGIN_ROWS == (int)GR_FORWARD_PACK_ROWS, "both read the rows");

static gr_status run_tally(const gr_call *c, gr_pass *pass, gr_diag *d)
{
    const gr_status st = gr_tally_take(c, pass->tally, d);
    if (!st) gr_tally_report(pass->tally);
    return st;
}

/* Sequence for sequence: its response behind the prompt that was made of it. */
static void run_put(const gr_call *c)
{
    const gr_rows rows = gr_rows_at(c->ptr[GR_FORWARD_PUT_ROWS], &c->node->rows->bounds),
                  prompts =
                      gr_rows_at(c->ptr[GR_FORWARD_PUT_PROMPTS], &gr_node_other_prompts(c->node)->bounds);
    gr_rows out = gr_rows_at(c->ptr[GR_FORWARD_PUT_OUT], &c->node->bounds);
    *out.n_groups = *out.n_seqs = out.token_offset[0] = 0;
    for (uint32_t g = 0; g < *rows.n_groups; g++) gr_rows_add_group(&out, rows.record[g]);
    for (uint32_t i = 0; i < *rows.n_seqs; i++)
        gr_rows_add_seq(&out, rows.group[i],
                        &(gr_seq_ids){.prompt = gr_rows_ids(&prompts, i),
                                      .response = gr_rows_ids(&rows, i) + rows.prompt_len[i],
                                      .n_prompt = prompts.prompt_len[i],
                                      .n_response = rows.response_len[i]});
}

/* In the place of embeddings, of a stage behind the first. */
static void run_come(const gr_call *c, const gr_pass *pass)
{
    const gr_kernels *k = c->session->kernels;
    const uint64_t bytes = gr_hidden_bytes(k, &c->node->model->shape, pass->n_own);
    if (c->ptr[GR_FORWARD_COME] && bytes)
        k->copy(c->queue, c->ptr[GR_FORWARD_X], c->ptr[GR_FORWARD_COME], bytes);
}

static void run_embed(const gr_call *c, const gr_pass *pass, const gr_micro_bounds *b, const gr_micro *pack,
                      const gr_packed *packed)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = gr_node_shape(c->node);
    if (b->slices) {
        gr_embed_call e = gr_pass_embed(pass, b, pack);
        e.k = k, e.q = c->queue, e.s = s, e.ws = c->ptr[GR_FORWARD_WS];
        gr_embed_slices_forward(&e, c->ptr[GR_FORWARD_WEIGHTS], c->ptr[GR_FORWARD_X]);
    } else {
        k->embed_forward(c->queue, s, c->ptr[GR_FORWARD_WEIGHTS], packed, c->ptr[GR_FORWARD_X]);
    }
}

gr_status gr_forward_run(const gr_call *c, gr_diag *d)
{
    gr_pass *pass = c->state;
    if (c->kernel == GR_FORWARD_PUT) {
        run_put(c);
        return GR_OK;
    }
    if (c->kernel == GR_FORWARD_TALLY) return run_tally(c, pass, d);
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = gr_node_shape(c->node);
    if (c->kernel == GR_FORWARD_BEGIN || c->kernel == GR_FORWARD_PACK) {
        gr_rows rows = gr_rows_at(c->ptr[GR_FORWARD_PACK_ROWS], &c->node->bounds);
        if (c->kernel == GR_FORWARD_PACK) return run_pack(c, pass, &rows, d);
        run_begin(c, pass, &rows);
        return GR_OK;
    }
    gr_micro_bounds b = gr_forward_bounds(c->node, c->how);
    gr_micro pack = gr_micro_at(c->ptr[GR_FORWARD_PACKED], &b);
    gr_packed packed = gr_pass_packed(pass, &b, &pack);
    const gr_stages stages = gr_stages_of(c->node);
    const uint32_t stage = pass->flow.chunk * stages.ranks + gr_stage_of(c->node, c->session->rank),
                   layer = stages.n > 1 ? gr_stage_layer(&stages, stage, c->arg) : c->arg;
    if (c->kernel == GR_FORWARD_EMBED && stage) run_come(c, pass);
    /* in a trip that other ranks need there may be no tokens */
    if (c->kernel == GR_FORWARD_EMBED && packed.n_tokens && !stage) run_embed(c, pass, &b, &pack, &packed);
    if (c->kernel != GR_FORWARD_EMBED) packed.carried = c->ptr[GR_FORWARD_CARRIED];
    if (c->kernel == GR_FORWARD_PER_LAYER && packed.n_tokens)
        gr_per_layer_forward(k, c->queue, s, c->ptr[GR_FORWARD_WEIGHTS], &packed, c->ptr[GR_FORWARD_X],
                             c->ptr[GR_FORWARD_WS]);
    if (c->kernel == GR_FORWARD_LAYER && layer != GR_NONE) {
        const gr_routing routing = gr_tally_routing(c->node, pass, &pack, c->ptr[GR_FORWARD_LAYER_TALLY],
                                                    c->ptr[GR_FORWARD_LAYER_DIFFERS]);
        packed.routing = &routing;
        packed.expert_run = c->how->expert_run;
        const char *weights = c->ptr[GR_FORWARD_WEIGHTS];
        if (pass->flow.chunk)
            weights += pass->flow.chunk * gr_piece_weights_apart(&stages, k, c->node, 1 + c->arg);
        gr_layer_forward(k, c->queue, s, layer, weights, &packed, c->ptr[GR_FORWARD_X], NULL, NULL,
                         c->ptr[GR_FORWARD_WS]);
    }
    return GR_OK;
}

void gr_forward_sends(const gr_call *c, bool next, uint64_t *goes, uint64_t *comes)
{
    const gr_pass *pass = c->state;
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = &c->node->model->shape;
    *goes = next ? gr_hidden_bytes(k, s, gr_pass_goes(pass, c->node)) : 0;
    *comes = next ? 0 : gr_hidden_bytes(k, s, gr_pass_comes(pass, c->node, c->session->rank, false));
}

bool gr_forward_has_head(const gr_call *c)
{
    const gr_node *n = c->node;
    const gr_stages stages = gr_stages_of(n);
    const gr_pass *pass = c->state;
    return gr_stage_flow_last(&pass->flow, &stages, gr_stage_of(n, c->session->rank));
}

void gr_forward_end(const gr_node *n, gr_tasks *p, const gr_forward *f, const uint32_t *out, size_t n_out)
{
    gr_tasks_end(p);
    for (size_t i = 0; i < n_out; i++) gr_sharding_share(p, out[i]);
    gr_tally_declare_take(p, n, &f->tally, GR_FORWARD_TALLY);
}

uint32_t gr_forward_trips(const gr_call *c)
{
    gr_rows rows = gr_rows_at(c->ptr[GR_AGREE_ROWS], &c->node->bounds);
    gr_pass *pass = c->state;
    gr_micro_bounds b = gr_forward_bounds(c->node, c->how);
    find_own(c, pass, &rows, pass->asked_balancer, &pass->asked);
    const gr_stages stages = gr_stages_of(c->node);
    return gr_stages_trips(&stages, gr_pass_count(pass, &rows, &b, &pass->asked), false);
}

bool gr_forward_more(const gr_call *c, uint32_t trip)
{
    const gr_pass *p = c->state;
    (void)trip;
    gr_progress_at(c->session->progress, c->node->name, p->next, p->seqs.n, "sequences");
    return gr_pass_more(p);
}
