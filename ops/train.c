/* ops/train.c: an update as it runs: passes, losses, the gradient's norm, the optimizer, its metrics. */
#include "ops/kernels/carried.h"
#include "ops/kernels/experts.h"
#include "ops/kernels/layer.h"
#include "ops/kernels/layer_ops.h"
#include "ops/kernels/muon.h"
#include "ops/parallel/sharding.h"
#include "ops/train_impl.h"
#include "ops/zeros.h"

#include "runtime/io/progress.h"
#include "runtime/io/state.h"
#include "ops/base/rows.h"

#include <math.h>
#include <assert.h>
#include <stdlib.h>

/* What comes out of the passes of this update: log-prob, or value, entropy, and how far a teacher is. */
typedef struct current_values {
    uint32_t main_column, entropy_column, divergence_column; /* ids; GR_NONE: no expression reads it */
    int main, entropy, divergence; /* places among the loss's adjoints; -1: it has none by it */
} current_values;

/* A value a token each, or the loss's derivatives by them. */
typedef struct fresh {
    float *main, *entropy, *divergence; /* NULL: it is not there */
} fresh;

typedef struct metric_names {
    uint32_t loss, grad_norm, entropy, lr, skipped, skipped_in_a_row, gap, imbalance, imbalance_in_order;
    uint32_t *own; /* [of the node] */
} metric_names;

/* Places for what units of a ring leave for their way back, which each take one when they come and leave it
 * when they go: chunks come and go in other orders. */
typedef struct places {
    bool used;                        /* of the current loop: there is a way back */
    uint32_t unit[2 * GR_STAGES_MAX]; /* 1 + that of each place; 0: it is free */
    uint32_t forward, back;           /* of the current trip's units */
} places;

typedef struct train_state {
    gr_session *session;
    const gr_node *node;
    const gr_loss *loss;
    gr_env_reads reads;
    gr_env env; /* of the current mini-batch, while a work runs */
    current_values current;
    metric_names metrics;
    gr_loss_inputs inputs;  /* where the device evaluates losses: */
    gr_loss_device *device; /* from the first mini-batch on; else NULL */
    /* the current mini-batch */
    uint32_t trip;         /* mini-batches done in this iteration */
    uint32_t seq, seq_end; /* its sequences */
    uint32_t leaf;         /* canonical: the next one, of this rank's */
    uint32_t token;        /* its first response token */
    uint32_t tokens;
    uint32_t micro_batches; /* of whole gradients: this rank's */
    gr_pass pass;           /* over this rank's of them, or its current leaf's */
    /* of a pipeline: */
    gr_stages stages;
    uint32_t stage; /* this rank's */
    uint32_t taken; /* micro-batches that have come, of those on their way; empty ones behind the last too */
    gr_pass back;   /* over the same, for those that go back */
    places held;    /* of ranks in a ring */
    double *sums;   /* [buckets] squares of the gradient; canonical: of each eighth of a bucket */
    double norm;    /* of the gradient, before clipping */
    float scale;    /* of gradients: clipping; 0: the step is skipped */
    gr_zeros zeros;
    gr_tally_state *tally;
    /* kept for ever */
    uint64_t steps, skipped, skipped_in_a_row;
    /* sums over the iteration */
    uint32_t filled; /* mini-batches that had rows */
    double *values;  /* loss, then metrics; behind them those of one mini-batch */
    size_t n_values;
    double grad_norm, entropy, gap;
    double work, most, most_in_order; /* of its mini-batches, see gr_dealt */
    uint64_t entropy_tokens;
} train_state;

bool gr_train_current(const gr_graph *g, const gr_node *n, const char *field, size_t *place)
{
    size_t n_ids;
    const int *ids = gr_loss_current(((const gr_update_cfg *)n->cfg)->loss.loss, &n_ids);
    for (size_t i = 0; i < n_ids; i++) {
        if (strcmp(g->columns[ids[i]]->field, field)) continue;
        if (place) *place = i;
        return true;
    }
    return false;
}

static int place_of_adjoint(const gr_graph *g, const gr_node *n, const char *field)
{
    size_t place;
    return gr_train_current(g, n, field, &place) ? (int)place : -1;
}

static current_values current_of(const gr_graph *g, const gr_node *n)
{
    current_values f = {.main_column = GR_NONE,
                        .entropy_column = GR_NONE,
                        .divergence_column = GR_NONE,
                        .main = place_of_adjoint(g, n, gr_train_main(n)),
                        .entropy = place_of_adjoint(g, n, "entropy"),
                        .divergence = place_of_adjoint(g, n, "divergence")};
    for (uint32_t i = 0; i < g->n_columns; i++) {
        const gr_column *c = g->columns[i];
        if (!c->current || c->node != n) continue;
        *(!strcmp(c->field, "entropy")      ? &f.entropy_column
          : !strcmp(c->field, "divergence") ? &f.divergence_column
                                            : &f.main_column) = i;
    }
    return f;
}

static metric_names name_metrics(gr_session *s, const gr_node *n)
{
    const char *name = n->name;
    metric_names m = {.loss = gr_session_name(s, n, "%s.loss", name),
                      .grad_norm = gr_session_name(s, n, "%s.grad_norm", name),
                      .entropy = gr_session_name(s, n, "%s.entropy", name),
                      .lr = gr_session_name(s, n, "%s.lr", name),
                      .skipped = gr_session_name(s, n, "%s.skipped_steps", name),
                      .skipped_in_a_row = gr_session_name(s, n, "%s.skipped_in_a_row", name),
                      .gap = gr_session_name(s, n, "%s.logprob_gap_max", name),
                      .imbalance = gr_session_name(s, n, "%s.rank_imbalance", name),
                      .imbalance_in_order = gr_session_name(s, n, "%s.rank_imbalance_in_order", name),
                      .own = gr_calloc(n->results.n_metrics + 1, sizeof(*m.own))};
    for (size_t i = 0; i < n->results.n_metrics; i++)
        m.own[i] = gr_session_name(s, n, "%s.%s", name, n->results.metrics[i].name);
    return m;
}

static void open_stages(train_state *t)
{
    const gr_node *n = t->node;
    t->stages = gr_stages_of(n);
    if (!gr_node_piped(n)) return;
    gr_pass_open(&t->back, n->rows->bounds.seqs);
    t->back.longest_first = t->pass.longest_first;
    t->back.tally = t->pass.tally;
}

gr_status gr_train_open(gr_session *s, const gr_node *n, void **state, gr_diag *d)
{
    (void)d;
    train_state *t = gr_calloc(1, sizeof(*t));
    *t = (train_state){.session = s, .node = n, .loss = ((const gr_update_cfg *)n->cfg)->loss.loss};
    t->pass.longest_first = gr_rows_longest_first(s->graph, n->rows);
    t->n_values = 1 + n->results.n_metrics;
    t->values = gr_calloc(2 * t->n_values, sizeof(*t->values));
    t->sums = gr_calloc(GR_LEAVES * (size_t)gr_model_buckets(&n->model->shape), sizeof(*t->sums));
    gr_train_reads(&t->reads, s->graph, n);
    gr_env_open(&t->env, &t->reads, s, n);
    gr_zeros_init(&t->zeros, &t->reads, s, n);
    gr_pass_open(&t->pass, n->rows->bounds.seqs);
    t->current = current_of(s->graph, n);
    t->metrics = name_metrics(s, n);
    t->tally = t->pass.tally = gr_tally_open(s, n);
    open_stages(t);
    *state = t;
    return GR_OK;
}

void gr_train_close(void *state)
{
    train_state *t = state;
    if (!t) return;
    gr_loss_device_free(t->device);
    gr_train_inputs_release(&t->inputs);
    gr_zeros_release(&t->zeros);
    gr_tally_close(t->tally);
    gr_env_close(&t->env);
    free(t->metrics.own);
    gr_env_reads_release(&t->reads);
    gr_pass_release(&t->pass);
    gr_pass_release(&t->back);
    free(t->sums);
    free(t->values);
    free(t);
}

void gr_train_save(void *state, const char *prefix, gr_state_file *out)
{
    const train_state *t = state;
    gr_state_set_u64(out, prefix, "optimizer_steps", t->steps);
    gr_state_set_u64(out, prefix, "skipped_steps", t->skipped);
    gr_state_set_u64(out, prefix, "skipped_in_a_row", t->skipped_in_a_row);
}

gr_status gr_train_load(void *state, const char *prefix, const gr_state_file *in, gr_diag *d)
{
    train_state *t = state;
    gr_status st = gr_state_get_u64(in, prefix, "optimizer_steps", &t->steps, d);
    if (!st) st = gr_state_get_u64(in, prefix, "skipped_steps", &t->skipped, d);
    /* checkpoints of before it was counted have none */
    if (!st && gr_state_get_u64(in, prefix, "skipped_in_a_row", &t->skipped_in_a_row, NULL))
        t->skipped_in_a_row = 0;
    return st;
}

/* ---- the loss and its columns -----------------------------------------------------------------------------
 */

/* Where in a work's pointers the columns of the loss begin. */
static size_t columns_at(const gr_call *c, const train_state *t)
{
    return c->n_ptr - gr_env_uses(&t->reads);
}

/* Groups of the current mini-batch. */
static void mini_groups(const train_state *t, uint32_t groups, uint32_t mini_batches, uint32_t *first,
                        uint32_t *end)
{
    *first = t->trip % mini_batches * groups;
    *end = *first + groups;
}

/* What of the current mini-batch is this rank's: canonical, its leaves', one after another. A select may have
 * left fewer groups than planned. */
static gr_dealt find_own(const gr_call *c, train_state *t, const gr_rows *rows, gr_balancer **by,
                         gr_seqs *own)
{
    gr_train_shape shape = gr_train_shape_of(c->node, c->how);
    uint32_t first, end, there = *rows->n_groups;
    mini_groups(t, shape.groups, shape.mini_batches, &first, &end);
    if (!c->how->leaves) {
        gr_seq_cost cost = gr_seq_cost_of(&c->node->model->shape, false);
        cost.whole = gr_node_shares(c->node) > 0;
        const uint32_t group = gr_mesh_place(&c->node->placement.mesh, t->session->rank, GR_AXIS_DATA);
        if (!*by) *by = gr_balancer_new(own->cap, gr_node_parts(c->node), &shape.most);
        return gr_balance_own(*by, own, group, rows, GR_MIN(first, there), GR_MIN(end, there), &cost);
    }
    gr_rows_part part = gr_rows_own(t->session, rows, GR_MIN(first, there), GR_MIN(end, there));
    gr_seqs_range(own, part.seq, part.seq_end);
    return (gr_dealt){0};
}

static void find_leaf(const gr_call *c, const train_state *t, const gr_rows *rows, uint32_t leaf,
                      gr_seqs *own)
{
    gr_train_shape shape = gr_train_shape_of(c->node, c->how);
    uint32_t first, end, there = *rows->n_groups;
    mini_groups(t, shape.groups, shape.mini_batches, &first, &end);
    gr_rows_part part = gr_rows_balance(rows, GR_MIN(first, there), GR_MIN(end, there),
                                        t->session->rank * c->how->leaves + leaf, GR_LEAVES);
    gr_seqs_range(own, part.seq, part.seq_end);
}

static void count_dealt(train_state *t, gr_dealt dealt)
{
    t->work += (double)dealt.all / gr_node_parts(t->node);
    t->most += (double)dealt.most;
    t->most_in_order += (double)dealt.most_before;
}

/* What expressions see of the current mini-batch. */
static const gr_env *begin_env(const gr_call *c, train_state *t, void *mini, const fresh *x)
{
    gr_env *e = &t->env;
    gr_train_shape shape = gr_train_shape_of(c->node, c->how);
    uint32_t first, end;
    mini_groups(t, shape.groups, shape.mini_batches, &first, &end);
    gr_env_begin(e, c->ptr + columns_at(c, t));
    uint32_t there =
        *e->blocks[c->node->rows->index].n_groups; /* a select may have left fewer than planned */
    gr_env_narrow(e, GR_MIN(first, there), GR_MIN(end, there), mini);
    e->env.epoch = t->trip / shape.mini_batches;
    const current_values *f = &t->current;
    if (f->main_column != GR_NONE) e->columns[f->main_column] = (gr_expr_column){x->main, GR_EXPR_F32};
    if (f->entropy_column != GR_NONE)
        e->columns[f->entropy_column] = (gr_expr_column){x->entropy, GR_EXPR_F32};
    if (f->divergence_column != GR_NONE)
        e->columns[f->divergence_column] = (gr_expr_column){x->divergence, GR_EXPR_F32};
    return e;
}

enum { ADJOINTS = 3 }; /* at most */

static void adjoints(const train_state *t, const fresh *d, float *out[ADJOINTS])
{
    if (t->current.main >= 0) out[t->current.main] = d->main;
    if (t->current.entropy >= 0) out[t->current.entropy] = d->entropy;
    if (t->current.divergence >= 0) out[t->current.divergence] = d->divergence;
}

/* Of the works prepare, adjoint and finish. */
static fresh fresh_of(const gr_call *c)
{
    return (fresh){c->ptr[LOSS_CURRENT], c->ptr[LOSS_ENTROPY], c->ptr[LOSS_DIVERGENCE]};
}

/* Of the works prepare, adjoint and finish. */
static gr_loss_memory memory_of(const gr_call *c)
{
    return (gr_loss_memory){.store = c->ptr[LOSS_STORE],
                            .work = c->ptr[LOSS_WS],
                            .data = c->ptr[LOSS_DATA],
                            .host = c->ptr[LOSS_DATA_HOST]};
}

static void open_device(const gr_call *c, train_state *t)
{
    if (t->device) return;
    gr_train_shape shape = gr_train_shape_of(c->node, c->how);
    t->inputs = gr_train_inputs(&t->reads, t->session->graph, &shape);
    t->device = gr_loss_device_new(c->session->kernels, t->loss, &t->inputs, shape.range);
}

/* On the device it is queued behind what makes its columns. The host memory that it copies from is free again
 * when the next mini-batch comes: the norm of this one's gradient has been read by then. */
static gr_status run_prepare(const gr_call *c, train_state *t, gr_diag *d)
{
    bool device = c->session->kernels->losses;
    gr_status st = device ? GR_OK : gr_queue_finish(c->queue, d); /* what reads and writes its columns */
    if (st) return st;
    gr_loss_memory m = memory_of(c);
    gr_train_shape shape = gr_train_shape_of(c->node, c->how);
    const fresh values = fresh_of(c);
    const gr_env *e = begin_env(c, t, c->ptr[LOSS_MINI], &values);
    const gr_expr_rows *rows = &e->rows[c->node->rows->index];
    const gr_rows *block = &e->blocks[c->node->rows->index];
    t->seq = rows->first_seq;
    t->seq_end = t->seq + rows->n_seqs;
    t->stage = gr_stage_of(c->node, t->session->rank);
    t->pass.place = t->back.place = t->session->rank % gr_node_cut(c->node);
    count_dealt(t, find_own(c, t, block, &t->pass.balancer, &t->pass.own));
    if (c->how->whole_grads) t->micro_batches = gr_pass_count(&t->pass, block, &shape.micro, &t->pass.own);
    t->leaf = 0;
    t->token = block->token_offset[t->seq];
    t->tokens = rows->offset[rows->n_seqs];
    /* of many ranks, what is shared is all of it */
    uint64_t zeros = (t->session->ranks > 1 ? shape.loss.tokens : t->tokens) * sizeof(float);
    for (int i = LOSS_CURRENT; i <= LOSS_D_DIVERGENCE; i++)
        if (c->ptr[i]) c->session->kernels->zero(c->queue, c->ptr[i], zeros);
    if (device) {
        open_device(c, t);
        gr_loss_device_prepare(t->device, c->queue, &e->env, &m);
    } else {
        gr_loss_prepare(t->loss, &e->env, m.store, m.work);
    }
    return GR_OK;
}

/* Of tokens [first, end) of the mini-batch. */
static gr_status adjoint(const gr_call *c, const train_state *t, const gr_loss_memory *m, uint32_t first,
                         uint32_t end, float *const *out, gr_diag *d)
{
    if (t->device) {
        gr_loss_device_adjoint(t->device, c->queue, m, first, end, out);
        return GR_OK;
    }
    gr_status st = gr_queue_finish(c->queue, d); /* the fresh values */
    if (!st) gr_loss_adjoint(t->loss, &t->env.env, m->store, first, end, out, m->work);
    return st;
}

static gr_status run_adjoint(const gr_call *c, train_state *t, gr_diag *d)
{
    float *out[ADJOINTS];
    gr_loss_memory m = memory_of(c);
    const fresh values = fresh_of(c),
                d_values = {c->ptr[LOSS_D_CURRENT], c->ptr[LOSS_D_ENTROPY], c->ptr[LOSS_D_DIVERGENCE]};
    if (!t->device) begin_env(c, t, c->ptr[LOSS_MINI], &values);
    adjoints(t, &d_values, out);
    return adjoint(c, t, &m, 0, t->tokens, out, d);
}

/* ---- the head ---------------------------------------------------------------------------------------------
 */

typedef struct head {
    const gr_call *c;
    train_state *t;
    gr_micro pack;
    gr_micro_bounds micro;
    const void *norm, *lm;
    void *grad_norm, *grad_lm;
    gr_value_head value; /* instead of norm and lm */
    gr_value_grads grad_value;
    fresh of, d;
    gr_head_teacher teacher; /* s NULL: there is none */
    gr_loss_memory memory;
} head;

static void point_at_teacher(head *h)
{
    const gr_call *c = h->c;
    const gr_node *teacher = gr_node_teacher(c->node);
    const gr_update_cfg *cfg = c->node->cfg;
    if (!teacher) return;
    const gr_model_shape *s = &teacher->model->shape;
    const void *matrix =
        gr_head_matrix(c->session->kernels, s, s->tied ? c->ptr[HEAD_TEACHER] : NULL, c->ptr[HEAD_TEACHER]);
    h->teacher = (gr_head_teacher){.s = s,
                                   .lm = matrix,
                                   .hidden = c->ptr[HEAD_STATES_CHUNK],
                                   .kind = (gr_divergence)cfg->divergence,
                                   .beta = (float)cfg->beta};
}

static void point_at_matrix(head *h)
{
    const gr_call *c = h->c;
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = gr_node_shape(c->node);
    uint64_t norm = gr_tensor_offset(s, 1 + s->layers, GR_T_NORM), lm;
    uint64_t size = gr_dtype_size(c->node->model->train.grads);
    gr_model_head_bucket(s, &lm);
    h->norm = (const char *)c->ptr[HEAD_NORM] + norm * gr_dtype_size(k->dtype);
    h->lm = gr_head_matrix(k, s, c->ptr[HEAD_EMBED], c->ptr[HEAD_NORM]);
    if (!c->ptr[HEAD_GRAD_NORM]) return;
    h->grad_norm = (char *)c->ptr[HEAD_GRAD_NORM] + norm * size;
    h->grad_lm = (char *)(s->tied ? c->ptr[HEAD_GRAD_EMBED] : c->ptr[HEAD_GRAD_NORM]) + lm * size;
}

static void point_at_value(head *h)
{
    const gr_call *c = h->c;
    const gr_model *m = c->node->model;
    h->value = gr_value_head_at(c->session->kernels, &m->shape, c->ptr[HEAD_NORM]);
    if (c->ptr[HEAD_GRAD_NORM])
        h->grad_value = gr_value_grads_at(gr_model_trains(m), c->ptr[HEAD_GRAD_NORM], m->train.grads);
}

static head head_of(const gr_call *c, train_state *t)
{
    gr_train_shape shape = gr_train_shape_of(c->node, c->how);
    head h = {.c = c,
              .t = t,
              .pack = gr_micro_at(c->ptr[HEAD_PACKED], &shape.micro),
              .micro = shape.micro,
              .of = {c->ptr[HEAD_CURRENT], c->ptr[HEAD_ENTROPY], c->ptr[HEAD_DIVERGENCE]},
              .d = {c->ptr[HEAD_D_CURRENT], c->ptr[HEAD_D_ENTROPY], c->ptr[HEAD_D_DIVERGENCE]},
              .memory = {.store = c->ptr[HEAD_STORE],
                         .work = c->ptr[HEAD_LOSS_WS],
                         .data = c->ptr[HEAD_DATA],
                         .host = c->ptr[HEAD_DATA_HOST]}};
    if (gr_train_is_value(c->node))
        point_at_value(&h);
    else
        point_at_matrix(&h);
    point_at_teacher(&h);
    if (!t->device) begin_env(c, t, c->ptr[HEAD_MINI], &h.of);
    return h;
}

static gr_head_rows chunk_rows(const head *h, const gr_chunk *at, bool keep)
{
    return gr_pass_rows(&h->pack, at->row, at->n, gr_rows_inv_temperature(h->t->session, h->c->node->rows),
                        keep);
}

/* The chunk's first row in the mini-batch's columns. */
static uint32_t place_of(const head *h, const gr_chunk *at)
{
    return at->at - h->t->token;
}

/* Beside the logits that the head has just left. */
static void teach(const head *h, const gr_chunk *chunk, const gr_head_rows *rows)
{
    const gr_call *c = h->c;
    const gr_kernels *k = c->session->kernels;
    const uint64_t row = gr_states_row_bytes(k, gr_node_teacher(c->node));
    k->copy(c->queue, c->ptr[HEAD_STATES_CHUNK], (const char *)c->ptr[HEAD_STATES] + chunk->at * row,
            chunk->n * row);
    k->teach(c->queue, &c->node->model->shape, rows, &h->teacher, h->of.divergence + place_of(h, chunk),
             c->ptr[HEAD_WS], c->ptr[HEAD_TAUGHT]);
}

/* keep: chunk_backward follows. */
static void chunk_forward(const head *h, const gr_chunk *chunk, bool keep)
{
    uint32_t at = place_of(h, chunk);
    const gr_call *c = h->c;
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = &c->node->model->shape;
    gr_head_rows rows = chunk_rows(h, chunk, keep || h->teacher.s);
    gr_head_stats out = {.logprob = h->of.main + at, .entropy = h->of.entropy ? h->of.entropy + at : NULL};
    if (gr_train_is_value(c->node))
        k->value_forward(c->queue, s, &h->value, c->ptr[HEAD_X], rows.row, rows.n, h->of.main + at,
                         c->ptr[HEAD_WS]);
    else
        k->head_forward(c->queue, s, h->norm, h->lm, c->ptr[HEAD_X], &rows, &out, c->ptr[HEAD_WS]);
    if (h->teacher.s) teach(h, chunk, &rows);
}

static gr_status chunk_adjoint(const head *h, const gr_chunk *chunk, gr_diag *d)
{
    float *out[ADJOINTS];
    uint32_t at = place_of(h, chunk);
    adjoints(h->t, &h->d, out);
    return adjoint(h->c, h->t, &h->memory, at, at + chunk->n, out, d);
}

static void chunk_backward(const head *h, const gr_chunk *chunk)
{
    uint32_t at = place_of(h, chunk);
    const gr_call *c = h->c;
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = &c->node->model->shape;
    gr_head_rows rows = chunk_rows(h, chunk, true);
    const float *d_entropy = h->d.entropy ? h->d.entropy + at : NULL;
    if (h->d.divergence) {
        rows.slope = c->ptr[HEAD_TAUGHT];
        rows.d_divergence = h->d.divergence + at;
    }
    if (gr_train_is_value(c->node))
        k->value_backward(c->queue, s, &h->value, c->ptr[HEAD_X], rows.row, rows.n, h->d.main + at,
                          c->ptr[HEAD_DX], &h->grad_value, c->ptr[HEAD_WS]);
    else
        k->head_backward(c->queue, s, h->norm, h->lm, c->ptr[HEAD_X], &rows, h->d.main + at, d_entropy,
                         c->ptr[HEAD_DX], h->grad_norm, h->grad_lm, c->node->model->train.grads,
                         c->ptr[HEAD_WS]);
}

static bool in_parts(const head *h)
{
    return h->micro.slices && !gr_train_is_value(h->c->node);
}

static void forward_all(const head *h, bool keep)
{
    for (gr_chunk c = {0}; gr_pass_chunk(&h->t->pass, h->c->how->head_rows, &c);) chunk_forward(h, &c, keep);
}

/* Sequences whose tokens are cut over ranks: each has written what it has of the fresh values, and 0. */
static void share_current(const head *h)
{
    const gr_train_shape shape = gr_train_shape_of(h->c->node, h->c->how);
    const uint64_t bytes = shape.loss.tokens * sizeof(float);
    if (shape.micro.cut < 2) return;
    gr_tp_share(h->c->queue, h->of.main, bytes);
    if (h->of.entropy) gr_tp_share(h->c->queue, h->of.entropy, bytes);
    if (h->of.divergence) gr_tp_share(h->c->queue, h->of.divergence, bytes);
}

/* ---- the head of a part of the vocabulary ----------------------------------------------------------------
 */

static gr_head_call part_call(const head *h, bool keep)
{
    const gr_call *c = h->c;
    return (gr_head_call){.k = c->session->kernels,
                          .q = c->queue,
                          .s = gr_node_shape(c->node),
                          .slices = h->micro.slices,
                          .most = c->how->head_rows,
                          .threads = c->how->threads,
                          .use = keep ? GR_HEAD_GRADIENT : GR_HEAD_LOGPROB,
                          .norm = h->norm,
                          .lm = h->lm,
                          .x = c->ptr[HEAD_X],
                          .ws = c->ptr[HEAD_WS]};
}

static gr_head_window part_window(const head *h, const gr_window *w)
{
    return gr_pass_head(&h->micro, &h->pack, w, gr_rows_inv_temperature(h->t->session, h->c->node->rows));
}

/* Between a column and a window's rows. */
static void copy_run(const head *h, const gr_window *w, const gr_chunk *run, float *column, float *rows,
                     bool to_column)
{
    float *of = column + place_of(h, run), *at = rows + (run->row - w->first);
    h->c->session->kernels->copy(h->c->queue, to_column ? of : at, to_column ? at : of,
                                 run->n * sizeof(float));
}

static gr_head_own part_forward(const head *h, const gr_window *w, bool keep)
{
    const gr_head_call call = part_call(h, keep);
    const gr_head_window at = part_window(h, w);
    const gr_head_own own = gr_head_slices_forward(&call, &at);
    for (gr_chunk run = {.row = w->first}; gr_pass_run(&h->t->pass, w, &run);) {
        copy_run(h, w, &run, h->of.main, own.stats.logprob, true);
        if (h->of.entropy) copy_run(h, w, &run, h->of.entropy, own.stats.entropy, true);
    }
    return own;
}

/* Of a row that this rank does not have the loss says nothing. */
static void part_backward(const head *h, const gr_window *w, const gr_head_own *own)
{
    const gr_call *c = h->c;
    const gr_kernels *k = c->session->kernels;
    const gr_head_call call = part_call(h, true);
    const gr_head_window at = part_window(h, w);
    k->zero(c->queue, own->d_logprob, w->each * sizeof(float));
    if (h->d.entropy) k->zero(c->queue, own->d_entropy, w->each * sizeof(float));
    for (gr_chunk run = {.row = w->first}; gr_pass_run(&h->t->pass, w, &run);) {
        copy_run(h, w, &run, h->d.main, own->d_logprob, false);
        if (h->d.entropy) copy_run(h, w, &run, h->d.entropy, own->d_entropy, false);
    }
    gr_head_slices_backward(&call, &at, h->d.entropy != NULL, c->ptr[HEAD_DX], h->grad_norm, h->grad_lm,
                            c->node->model->train.grads);
}

static gr_head_own all_parts_forward(const head *h, bool keep)
{
    gr_head_own own = {0};
    for (gr_window w = {0}; gr_pass_window(&h->t->pass, h->c->how->head_rows, &w);)
        own = part_forward(h, &w, keep);
    return own;
}

static gr_status part_adjoint(const head *h, const gr_window *w, gr_diag *d)
{
    gr_status st = GR_OK;
    for (gr_chunk run = {.row = w->first}; !st && gr_pass_run(&h->t->pass, w, &run);)
        st = chunk_adjoint(h, &run, d);
    return st;
}

/* As run_head does of chunks; all neighbours have the same windows. */
static gr_status run_parts(const head *h, gr_loss_class role, gr_diag *d)
{
    const gr_pass *p = &h->t->pass;
    gr_status st = GR_OK;
    gr_head_own own = {0};
    if (role == GR_LOSS_SEQ) {
        own = all_parts_forward(h, true);
        share_current(h);
        for (gr_chunk whole = {0}; !st && gr_pass_whole(p, &whole);) st = chunk_adjoint(h, &whole, d);
    }
    for (gr_window w = {0}; !st && gr_pass_window(p, h->c->how->head_rows, &w);) {
        if (role != GR_LOSS_SEQ || w.each < p->most_rows) own = part_forward(h, &w, true);
        if (role == GR_LOSS_TOKEN) st = part_adjoint(h, &w, d);
        if (!st) part_backward(h, &w, &own);
    }
    return st;
}

/* Of all that a pass adds to of a bucket. */
static uint64_t grad_bytes(const gr_call *c, uint32_t bucket)
{
    const gr_model *m = c->node->model;
    const gr_model_shape *s = gr_model_has_lora(m) ? gr_model_trains(m) : gr_node_shape(c->node);
    return gr_bucket_elems(s, bucket) * gr_dtype_size(m->train.grads);
}

/* Of many shards that are reduced in each micro-batch, gradients are those of this one alone: the first work
 * that adds to them begins at zero. */
static void begin_grads(const gr_call *c, void *grads, uint32_t bucket)
{
    if (!grads || c->placed->shards < 2 || c->how->leaves || c->how->whole_grads) return;
    if (gr_node_piped(c->node)) return; /* they are those of all micro-batches */
    c->session->kernels->zero(c->queue, grads, grad_bytes(c, bucket));
}

/* Of the stages of a pipeline the last has it. */
static bool has_head(const train_state *t)
{
    return gr_stage_flow_last(&t->pass.flow, &t->stages, t->stage);
}

/* A chunk that is all of the micro-batch is still in the workspace and needs no second forward. */
static gr_status run_head(const gr_call *c, train_state *t, gr_diag *d)
{
    gr_status st = GR_OK;
    const gr_model_shape *s = &c->node->model->shape;
    if (!has_head(t)) return GR_OK;
    begin_grads(c, c->ptr[HEAD_GRAD_NORM], 1 + s->layers);
    begin_grads(c, c->ptr[HEAD_GRAD_EMBED], 0);
    if (!t->pass.n_tokens) return GR_OK; /* a trip that other ranks need */
    head h = head_of(c, t);
    gr_loss_class role = gr_loss_class_of(t->loss);
    c->session->kernels->zero(c->queue, c->ptr[HEAD_DX],
                              gr_hidden_bytes(c->session->kernels, s, t->pass.n_own));
    if (in_parts(&h)) return run_parts(&h, role, d);
    if (role == GR_LOSS_SEQ) {
        forward_all(&h, true);
        share_current(&h);
        for (gr_chunk whole = {0}; !st && gr_pass_whole(&t->pass, &whole);) st = chunk_adjoint(&h, &whole, d);
    }
    for (gr_chunk chunk = {0}; !st && gr_pass_chunk(&t->pass, c->how->head_rows, &chunk);) {
        if (role != GR_LOSS_SEQ || chunk.n < t->pass.n_rows) chunk_forward(&h, &chunk, true);
        if (role == GR_LOSS_TOKEN) st = chunk_adjoint(&h, &chunk, d);
        if (!st) chunk_backward(&h, &chunk);
    }
    return st;
}

static void run_head_forward(const gr_call *c, train_state *t)
{
    if (!t->pass.n_tokens || !has_head(t)) return;
    head h = head_of(c, t);
    if (in_parts(&h))
        all_parts_forward(&h, false);
    else
        forward_all(&h, false);
}

/* ---- optimizer --------------------------------------------------------------------------------------------
 */

/* Of the iteration that runs, for what the settings say. */
static double learning_rate(const gr_session *s, const gr_train *t, const gr_number *setting)
{
    const double lr = gr_session_number(s, setting);
    if (s->step <= t->warmup) return lr * s->step / t->warmup;
    double n = GR_MAX((double)s->steps - t->warmup - 1, 1.0),
           done = GR_MIN((s->step - t->warmup - 1) / n, 1.0);
    double share = 1;
    if (t->schedule == GR_LR_LINEAR) share = 1 - done;
    if (t->schedule == GR_LR_COSINE) share = 0.5 * (1 + cos(M_PI * done));
    return lr * (t->min_lr_ratio + (1 - t->min_lr_ratio) * share);
}

static void run_zero(const gr_call *c, const train_state *t)
{
    if (gr_node_piped(c->node)) {
        const uint64_t bytes = gr_piece_grads_apart(&t->stages, c->node, c->arg);
        c->session->kernels->zero(c->queue, c->ptr[ZERO_GRADS], gr_piece_chunks(&t->stages, c->arg) * bytes);
        return;
    }
    uint64_t shard = gr_shard_of(c, c->arg).n * gr_dtype_size(c->node->model->train.grads);
    c->session->kernels->zero(c->queue, c->ptr[ZERO_GRADS],
                              c->how->whole_grads ? grad_bytes(c, c->arg) : shard);
}

/* Canonical: a leaf's gradients begin at zero. */
static void run_leaf(const gr_call *c, train_state *t)
{
    gr_rows rows = gr_rows_at(c->ptr[LEAF_ROWS], &c->node->rows->bounds);
    if (c->arg == gr_train_first(c->node->model)) find_leaf(c, t, &rows, t->leaf++, &t->pass.own);
    c->session->kernels->zero(c->queue, c->ptr[LEAF_GRADS], grad_bytes(c, c->arg));
}

/* As a binary counter carries: the sum of leaves [i - 2^k + 1, i] meets that of the 2^k before it, while
 * there is one; what then still lacks its other half waits on its level. The last one is the sum of all. */
static void run_fold(const gr_call *c, const train_state *t)
{
    const gr_kernels *k = c->session->kernels;
    uint64_t bytes = grad_bytes(c, c->arg);
    char *waiting = c->ptr[FOLD_TREE];
    uint32_t done = t->leaf - 1;
    for (; done & 1; done >>= 1, waiting += bytes)
        k->add(c->queue, c->ptr[FOLD_GRADS], waiting, c->node->model->train.grads,
               gr_bucket_elems(gr_model_trains(c->node->model), c->arg));
    if (t->leaf < c->how->leaves) k->copy(c->queue, waiting, c->ptr[FOLD_GRADS], bytes);
}

/* Clip by the global norm as torch.nn.utils.clip_grad_norm_ does. */
static void finish_norm(const gr_call *c, train_state *t, const double *sums)
{
    const gr_train *train = &c->node->model->train;
    uint32_t n = gr_model_buckets(&c->node->model->shape) * (c->how->leaves ? GR_LEAVES : 1);
    gr_device_read(c->queue, t->sums, sums, n * sizeof(*sums));
    double squares = 0;
    for (uint32_t i = 0; i < n; i++) squares += t->sums[i];
    double norm = t->norm = sqrt(squares);
    t->scale = 0;
    if (t->seq == t->seq_end) return; /* an empty mini-batch is none */
    t->scale = 1;
    if (train->grad_clip > 0) t->scale = (float)GR_MIN(1.0, train->grad_clip / (norm + 1e-6));
    if (!isfinite(norm)) t->scale = 0;
    t->skipped += t->scale == 0;
    t->skipped_in_a_row = t->scale == 0 ? t->skipped_in_a_row + 1 : 0;
    t->steps += t->scale != 0;
    t->grad_norm += norm;
}

/* Of shards that replicas have, too, those of the first one count: all ranks hear the same sum. */
static bool counts_elsewhere(const gr_call *c)
{
    return c->placed->shards > 1 && c->session->rank >= c->placed->shards;
}

/* Eighth by eighth: those of other ranks are zero, until they are added, and those of replicas stay so. */
static void square_leaves(const gr_call *c, double *sums, uint32_t n)
{
    const gr_model *m = c->node->model;
    uint64_t elems = gr_bucket_elems(gr_model_trains(m), c->arg), part = gr_shard_elems(elems, GR_LEAVES);
    gr_shard own = gr_shard_of(c, c->arg);
    if (c->arg == gr_train_first(m)) c->session->kernels->zero(c->queue, sums, n * GR_LEAVES * sizeof(*sums));
    for (uint32_t i = 0; i < GR_LEAVES && !counts_elsewhere(c); i++) {
        uint64_t first = GR_MIN(i * part, elems), end = GR_MIN(first + part, elems);
        if (first < own.first || end > own.first + own.n || first == end) continue;
        c->session->kernels->sum_squares(c->queue, (const float *)c->ptr[NORM_GRADS] + (first - own.first),
                                         m->train.grads, end - first, sums + c->arg * GR_LEAVES + i,
                                         sums + n * GR_LEAVES);
    }
}

static void run_norm(const gr_call *c, train_state *t)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model *m = c->node->model;
    uint32_t n = gr_model_buckets(&m->shape);
    double *sums = c->ptr[NORM_SUMS];
    if (gr_model_has_lora(m) && c->arg == gr_train_first(m)) /* of other buckets there is nothing */
        k->zero(c->queue, sums, n * (c->how->leaves ? GR_LEAVES : 1) * sizeof(*sums));
    if (c->how->leaves)
        square_leaves(c, sums, n);
    else if (counts_elsewhere(c))
        k->zero(c->queue, sums + c->arg, sizeof(*sums));
    else
        k->sum_squares(c->queue, c->ptr[NORM_GRADS], c->node->model->train.grads, gr_shard_of(c, c->arg).n,
                       sums + c->arg, sums + n);
    if (c->arg == gr_train_last(m) && c->placed->shards < 2) finish_norm(c, t, sums);
}

/* Steps that the model's moments have seen: those of all updates of it. */
static uint64_t model_steps(const train_state *t)
{
    const gr_graph *g = t->session->graph;
    uint64_t steps = 0;
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i]->op == t->node->op && g->nodes[i]->model == t->node->model)
            steps += ((const train_state *)t->session->state[i])->steps;
    return steps;
}

/* The parts of a bucket from an element of this rank's shard on. Weights may be there as a whole. */
static gr_optim_range range_of(const gr_call *c, const gr_shard *own, uint64_t at)
{
    const gr_kernels *k = c->session->kernels;
    const gr_train *train = &c->node->model->train;
    gr_state_bytes state = gr_state_bytes_of(k, c->node->model, c->arg, c->placed->shards);
    char *w = c->ptr[STEP_WEIGHTS], *g = c->ptr[STEP_GRADS], *kept = c->ptr[STEP_STATE],
         *m = kept + state.master, *v = state.moments > 1 ? m + state.moment : NULL;
    const uint64_t first = c->placed->weights == GR_SPREAD_FLAT ? 0 : own->first,
                   n = gr_shard_elems(gr_bucket_elems(gr_model_trains(c->node->model), c->arg),
                                      c->placed->shards);
    return (gr_optim_range){.w = w + (first + at) * gr_dtype_size(k->dtype),
                            .g = g + at * gr_dtype_size(train->grads),
                            .master = state.form == GR_MASTER_F32 ? (float *)kept + at : NULL,
                            .low = state.form == GR_MASTER_SPLIT ? (uint16_t *)kept + at : NULL,
                            .m = gr_moment_at(m, train->moments, at),
                            .v = v ? gr_moment_at(v, train->moments, at) : NULL,
                            .m_scale = gr_moment_scale(m, train->moments, n, at),
                            .v_scale = v ? gr_moment_scale(v, train->moments, n, at) : NULL,
                            .grads = train->grads,
                            .moments = train->moments,
                            .chance = {.first = own->first + at}};
}

/* The bias that selects a layer's experts follows their load. */
static void rebalance(const gr_call *c, const gr_shard *own)
{
    const gr_model_shape *s = &c->node->model->shape;
    const gr_routers all = gr_model_routers(s, s->layers), before = gr_model_routers(s, c->arg - 1);
    const gr_experts_desc *e = &gr_layer(s, c->arg - 1)->experts;
    const double *load = gr_tally_at(c->ptr[STEP_TALLY], all, before).load;
    const uint64_t at = gr_tensor_offset(s, c->arg, GR_T_SELECTION), first = GR_MAX(at, own->first),
                   end = GR_MIN(at + (uint64_t)e->count * GR_SELECTION_PARTS, own->first + own->n);
    const float rate = (float)((const gr_update_cfg *)c->node->cfg)->router_bias_update_rate;
    if (first >= end) return;
    assert((first - at) % GR_SELECTION_PARTS == 0 && (end - first) % GR_SELECTION_PARTS == 0);
    const uint32_t expert = (uint32_t)((first - at) / GR_SELECTION_PARTS),
                   n = (uint32_t)((end - first) / GR_SELECTION_PARTS);
    c->session->kernels->layer->experts->rebalance(c->queue, e->count, load, expert, n, rate,
                                                   range_of(c, own, first - own->first).w);
}

/* Those of the group that tensor i of a bucket is in, where it is in one. */
static gr_optim settings_of(const gr_session *s, const gr_train *t, const gr_optim *all, uint32_t bucket,
                            size_t i, bool *decay)
{
    const uint32_t group = t->group_of ? t->group_of[bucket][i] : 0;
    gr_optim its = *all;
    if (!group) return its;
    const gr_train_group *g = &t->groups[group - 1];
    if (g->has_lr) its.lr = (float)learning_rate(s, t, &g->lr);
    if (g->has_decay) its.weight_decay = (float)g->weight_decay, *decay = true;
    return its;
}

/* Of all tensors but the matrices that muon steps. */
static gr_optim optim_of(const train_state *t, const gr_train *train)
{
    return (gr_optim){.kind = train->optimizer == GR_OPTIM_MUON ? GR_OPTIM_ADAMW : train->optimizer,
                      .lr = (float)learning_rate(t->session, train, &train->lr),
                      .beta1 = (float)train->beta1,
                      .beta2 = (float)train->beta2,
                      .eps = (float)train->eps,
                      .weight_decay = (float)train->weight_decay,
                      .step = (uint32_t)model_steps(t),
                      .grad_scale = t->scale};
}

/* A matrix whose direction is there: by so much of it that its elements move as adamw's do. It is plain
 * descent along it, and the second moment, which has no meaning here, lies in the place of what descent
 * keeps. */
static void set_muon(const gr_kernels *k, const gr_tensor *tensor, const void *direction, gr_optim *how,
                     gr_optim_range *r)
{
    how->kind = GR_OPTIM_SGD;
    how->beta1 = 0;
    how->grad_scale = 0.2f * sqrtf((float)GR_MAX(tensor->rows, tensor->cols));
    r->g = direction;
    r->grads = k->dtype;
    r->m = r->v;
    r->v = NULL;
}

/* This rank's part of a tensor of the call's bucket, from the shard's first element; false: it has none. */
static bool own_part(const gr_tensor *t, const gr_shard *own, uint64_t *at, uint64_t *n)
{
    const uint64_t elems = (uint64_t)t->rows * GR_MAX(t->cols, 1u), first = GR_MAX(t->offset, own->first),
                   end = GR_MIN(t->offset + elems, own->first + own->n);
    *at = first - own->first;
    *n = end - first;
    return first < end;
}

/* Element `at` of this rank's shard in an object that lies as whole weights do. */
static char *in_whole(const gr_call *c, void *whole, const gr_shard *own, uint64_t at)
{
    return (char *)whole + (own->first + at) * gr_dtype_size(c->session->kernels->dtype);
}

/* The momentum of this rank's shard, and its part of what is made orthogonal. */
static void run_mix(const gr_call *c, const train_state *t)
{
    const gr_model *m = c->node->model;
    gr_tensor tensors[GR_BUCKET_TENSORS_MAX];
    const gr_shard own = gr_shard_of(c, c->arg);
    const gr_optim how = {.beta1 = (float)m->train.momentum, .grad_scale = t->scale};
    if (t->scale == 0) return;
    for (size_t i = gr_bucket_ranges(&m->shape, c->arg, tensors); i-- > 0;) {
        uint64_t at, n;
        if (!gr_muon_steps(&m->shape, c->arg, &tensors[i]) || !own_part(&tensors[i], &own, &at, &n)) continue;
        const gr_optim_range r = range_of(c, &own, at);
        c->session->kernels->muon_mix(c->queue, &how, &r, in_whole(c, c->ptr[STEP_WEIGHTS], &own, at), n);
    }
}

static void run_orthogonalize(const gr_call *c, const train_state *t)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = &c->node->model->shape;
    const uint64_t size = gr_dtype_size(k->dtype);
    gr_tensor tensors[GR_BUCKET_TENSORS_MAX];
    if (t->scale == 0) return;
    for (size_t i = gr_bucket_ranges(s, c->arg, tensors); i-- > 0;)
        if (gr_muon_steps(s, c->arg, &tensors[i]))
            gr_muon_orthogonalize(k, c->queue, (char *)c->ptr[ORTHOGONALIZE_X] + tensors[i].offset * size,
                                  tensors[i].rows, tensors[i].cols, c->ptr[ORTHOGONALIZE_WS]);
}

static void run_step(const gr_call *c, train_state *t)
{
    if (t->scale == 0) return;
    const gr_model *m = c->node->model;
    const gr_kernels *k = c->session->kernels;
    const gr_train *train = &m->train;
    const gr_optim how = optim_of(t, train);
    gr_tensor tensors[GR_BUCKET_TENSORS_MAX];
    gr_shard own = gr_shard_of(c, c->arg);
    const uint32_t seed = (uint32_t)(t->session->graph->run.seed ^ gr_stream(m->name));
    size_t n = gr_bucket_ranges(gr_model_trains(m), c->arg, tensors);
    for (size_t i = 0; i < n; i++) {
        uint64_t at, count;
        if (!own_part(&tensors[i], &own, &at, &count)) continue;
        gr_optim_range r = range_of(c, &own, at);
        r.chance.key = gr_moment_mix(c->arg ^ gr_moment_mix(how.step ^ seed));
        bool decay = tensors[i].decay;
        gr_optim its = settings_of(t->session, train, &how, c->arg, i, &decay);
        if (c->ptr[STEP_MUON] && gr_muon_steps(&m->shape, c->arg, &tensors[i]))
            set_muon(k, &tensors[i], in_whole(c, c->ptr[STEP_MUON], &own, at), &its, &r);
        if (c->lane == GR_LANE_HOST)
            gr_host_optim_step(c->queue, k->dtype, &its, decay, &r, count);
        else
            k->optim_step(c->queue, &its, decay, &r, count);
    }
    if (c->ptr[STEP_TALLY]) rebalance(c, &own);
}

/* ---- the end of a mini-batch and of the iteration
 * ---------------------------------------------------------- */

/* Whether its first mini-batch has the weights that the rows were sampled with. */
static bool has_gap(const gr_node *n)
{
    const gr_node *maker = gr_rows_maker(n->rows);
    return maker->op->generates && !gr_rows_joined(n->rows) && maker->model == n->model &&
           n->timing.new_version == maker->timing.new_version;
}

static bool gap_counts(const gr_node *n, const train_state *t)
{
    return has_gap(n) && !t->trip;
}

static void count_tokens(const gr_call *c, train_state *t, const gr_env *e, const float *logprob,
                         const float *entropy)
{
    const gr_rows *rows = &e->blocks[c->node->rows->index];
    bool gaps = gap_counts(c->node, t);
    for (uint32_t seq = t->seq; seq < t->seq_end; seq++)
        for (uint32_t j = 0; j < rows->response_len[seq]; j++) {
            uint32_t at = rows->token_offset[seq] - t->token + j;
            const bool counts = gr_rows_counts(rows, rows->token_offset[seq] + j);
            if (entropy && counts) {
                t->entropy += entropy[at];
                t->entropy_tokens++;
            }
            if (!gaps || (rows->turns && !counts)) continue; /* what an environment said was not sampled */
            double gap =
                fabs(logprob[at] - rows->logprob[(size_t)seq * c->node->rows->bounds.response_tokens + j]);
            t->gap = gap > t->gap || isnan(gap) ? gap : t->gap;
        }
}

/* Means over the mini-batches that had rows. */
static void report(train_state *t, uint32_t trips)
{
    gr_session *s = t->session;
    const gr_node *n = t->node;
    const metric_names *m = &t->metrics;
    gr_session_metric(s, m->loss, t->values[0] / trips);
    gr_session_metric(s, m->grad_norm, t->grad_norm / trips);
    if (!gr_train_is_value(n))
        gr_session_metric(s, m->entropy, t->entropy / (double)GR_MAX(t->entropy_tokens, (uint64_t)1));
    gr_session_metric(s, m->lr, learning_rate(s, &n->model->train, &n->model->train.lr));
    gr_session_metric(s, m->skipped, (double)t->skipped);
    gr_session_metric(s, m->skipped_in_a_row, (double)t->skipped_in_a_row);
    for (size_t i = 0; i < n->results.n_metrics; i++)
        gr_session_metric(s, m->own[i], t->values[1 + i] / trips);
    if (has_gap(n)) gr_session_metric(s, m->gap, t->gap);
    if (t->work > 0) {
        gr_session_metric(s, m->imbalance, t->most / t->work - 1);
        gr_session_metric(s, m->imbalance_in_order, t->most_in_order / t->work - 1);
    }
    gr_zeros_end(&t->zeros, s, n, t->filled);
    gr_tally_report(t->tally);
    t->trip = t->filled = 0;
    t->work = t->most = t->most_in_order = 0;
    t->grad_norm = t->entropy = t->gap = 0;
    t->entropy_tokens = 0;
    memset(t->values, 0, t->n_values * sizeof(*t->values));
}

/* The loss and the metrics, and fresh values that the host can read: of a device, what is asked for. */
typedef struct read_back {
    const float *current, *entropy;
} read_back;

static read_back read_device(const gr_call *c, train_state *t, double *values)
{
    gr_loss_memory m = memory_of(c);
    float *current = c->ptr[LOSS_BACK], *entropy = current + t->tokens;
    uint64_t bytes = t->tokens * sizeof(float);
    gr_loss_device_value(t->device, c->queue, &m, c->ptr[LOSS_VALUES]);
    gr_device_read(c->queue, values, c->ptr[LOSS_VALUES], t->n_values * sizeof(*values));
    if (gap_counts(c->node, t)) gr_device_read(c->queue, current, c->ptr[LOSS_CURRENT], bytes);
    if (c->ptr[LOSS_ENTROPY]) gr_device_read(c->queue, entropy, c->ptr[LOSS_ENTROPY], bytes);
    return (read_back){current, c->ptr[LOSS_ENTROPY] ? entropy : NULL};
}

static gr_status run_finish(const gr_call *c, train_state *t, gr_diag *d)
{
    double *values = t->values + t->n_values;
    const gr_update_cfg *cfg = c->node->cfg;
    gr_train_shape shape = gr_train_shape_of(c->node, c->how);
    read_back back = {c->ptr[LOSS_CURRENT], c->ptr[LOSS_ENTROPY]};
    if (t->device) back = read_device(c, t, values);
    gr_status st = gr_queue_finish(c->queue, d); /* the fresh values */
    if (st) return st;
    const fresh values_of = fresh_of(c);
    const gr_env *e = begin_env(c, t, c->ptr[LOSS_MINI], &values_of);
    if (!t->device) gr_loss_value(t->loss, &e->env, values, c->ptr[LOSS_WS]);
    t->filled += t->seq != t->seq_end;
    for (size_t i = 0; i < t->n_values && t->seq != t->seq_end; i++) t->values[i] += values[i];
    count_tokens(c, t, e, back.current, back.entropy);
    if (t->norm == 0 && t->seq != t->seq_end)
        st = gr_zeros_look(&t->zeros, e, c->node, c->session->graph, t->device ? c->queue : NULL,
                           c->ptr[LOSS_BACK], d);
    if (++t->trip == cfg->epochs * shape.mini_batches) report(t, GR_MAX(t->filled, 1u));
    return st;
}

/* ---- running ----------------------------------------------------------------------------------------------
 */

/* The operand that is the micro-batch's packed arrays, of a work of a pass. */
static uint32_t packed_at(uint32_t kernel)
{
    _Static_assert((int)EMBED_PACKED == (int)LAYER_PACKED && (int)BACK_PACKED == (int)LAYER_PACKED, "alike");
    _Static_assert((int)PER_LAYER_PACKED == (int)LAYER_PACKED &&
                       (int)PER_LAYER_BACK_PACKED == (int)LAYER_PACKED,
                   "alike");
    return kernel == TRAIN_EMBED_BACKWARD ? EMBED_BACK_PACKED : LAYER_PACKED;
}

/* Whether a work of a pipeline is of the micro-batch that goes back, not of the one that came last. */
static bool goes_back(const gr_call *c)
{
    const uint32_t kernel = c->kernel;
    return gr_node_piped(c->node) &&
           (kernel == TRAIN_RECOMPUTE || kernel == TRAIN_BACKWARD || kernel == TRAIN_EMBED_BACKWARD);
}

static const gr_pass *pass_of(const gr_call *c, const train_state *t)
{
    return goes_back(c) ? &t->back : &t->pass;
}

static gr_routing routing_of(const gr_call *c, const train_state *t, const gr_micro *pack)
{
    const bool counts = c->kernel == TRAIN_FORWARD;
    gr_routing r = gr_tally_routing(c->node, pass_of(c, t), pack, counts ? c->ptr[LAYER_TALLY] : NULL,
                                    counts ? c->ptr[LAYER_DIFFERS] : NULL);
    r.pull = c->kernel == TRAIN_BACKWARD ? c->ptr[BACK_PULL] : NULL;
    return r;
}

static void run_pull(const gr_call *c)
{
    const gr_model_shape *s = &c->node->model->shape;
    const gr_tally at = gr_tally_at(c->ptr[PULL_TALLY], gr_model_routers(s, s->layers), (gr_routers){0});
    const gr_balance_loss b = gr_tally_balance(c->node);
    c->session->kernels->layer->experts->pull(c->queue, &b, at.load, c->ptr[PULL_OUT]);
}

/* Which of the model's stages a work of a pass is of. */
static uint32_t own_stage(const gr_call *c, const train_state *t)
{
    return pass_of(c, t)->flow.chunk * t->stages.ranks + t->stage;
}

/* Works that this rank's stage of a pipeline has nothing of. */
static bool is_elsewhere(const gr_call *c, const train_state *t)
{
    if (!gr_node_piped(c->node)) return false;
    if (c->kernel == TRAIN_EMBED || c->kernel == TRAIN_EMBED_BACKWARD) return own_stage(c, t) != 0;
    return gr_stage_layer(&t->stages, own_stage(c, t), c->arg) == GR_NONE;
}

/* A layer, and what is kept of it of the current micro-batch; of a pipeline there are places for all that are
 * on their way. */
typedef struct own_layer {
    uint32_t layer;
    void *in, *acts;
} own_layer;

static own_layer layer_of(const gr_call *c, const train_state *t)
{
    _Static_assert((int)LAYER_ACTS == (int)LAYER_IN + 1 && (int)BACK_ACTS == (int)BACK_IN + 1,
                   "in, then acts");
    const uint32_t at = c->kernel == TRAIN_BACKWARD ? BACK_IN : LAYER_IN, n = t->stages.n;
    uint32_t place = (t->taken + (goes_back(c) ? t->stage : n - 1)) % n;
    own_layer l = {c->arg, c->ptr[at], c->ptr[at + 1]};
    if (!gr_node_piped(c->node)) return l;
    if (t->stages.chunks > 1) place = goes_back(c) ? t->held.back : t->held.forward;
    const gr_train_kept kept = gr_train_kept_of(c->node, c->how, c->session->kernels);
    l.layer = gr_stage_layer(&t->stages, own_stage(c, t), c->arg);
    if (l.in) l.in = (char *)l.in + place * kept.in;
    if (l.acts && c->arg >= c->how->recompute) l.acts = (char *)l.acts + place * kept.acts;
    return l;
}

static gr_embed_call embed_call(const gr_call *c, const train_state *t, const gr_micro_bounds *b,
                                const gr_micro *pack, void *ws)
{
    gr_embed_call e = gr_pass_embed(pass_of(c, t), b, pack);
    e.k = c->session->kernels, e.q = c->queue, e.s = gr_node_shape(c->node), e.ws = ws;
    return e;
}

static void run_embed(const gr_call *c, const train_state *t, const gr_micro_bounds *bounds,
                      const gr_micro *pack, const gr_packed *b)
{
    const gr_kernels *k = c->session->kernels;
    if (bounds->slices) {
        const gr_embed_call e = embed_call(c, t, bounds, pack, c->ptr[EMBED_WS]);
        gr_embed_slices_forward(&e, c->ptr[EMBED_WEIGHTS], c->ptr[EMBED_X]);
    } else {
        k->embed_forward(c->queue, gr_node_shape(c->node), c->ptr[EMBED_WEIGHTS], b, c->ptr[EMBED_X]);
    }
}

/* Of a ring: what has come is in the place of embeddings, and of what the head would say. */
static void run_come(const gr_call *c, const train_state *t)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = gr_node_shape(c->node);
    const uint32_t rank = t->session->rank;
    const uint64_t x = gr_hidden_bytes(k, s, gr_pass_comes(&t->pass, c->node, rank, false)),
                   dx = gr_hidden_bytes(k, s, gr_pass_comes(&t->back, c->node, rank, true));
    if (x) k->copy(c->queue, c->ptr[EMBED_X], c->ptr[EMBED_X_COMES], x);
    if (dx && c->ptr[EMBED_DX]) k->copy(c->queue, c->ptr[EMBED_DX], c->ptr[EMBED_DX_COMES], dx);
}

static void run_embed_backward(const gr_call *c, const train_state *t, const gr_micro_bounds *bounds,
                               const gr_micro *pack, const gr_packed *b)
{
    const gr_kernels *k = c->session->kernels;
    const gr_dtype grads = c->node->model->train.grads;
    if (bounds->slices) {
        const gr_embed_call e = embed_call(c, t, bounds, pack, c->ptr[EMBED_BACK_WS]);
        gr_embed_slices_backward(&e, c->ptr[EMBED_BACK_DX], c->ptr[EMBED_BACK_GRADS], grads);
    } else {
        k->embed_backward(c->queue, gr_node_shape(c->node), b, c->ptr[EMBED_BACK_DX],
                          c->ptr[EMBED_BACK_GRADS], grads, c->ptr[EMBED_BACK_WS]);
    }
}

static void run_per_layer(const gr_call *c, gr_packed *b)
{
    const gr_kernels *k = c->session->kernels;
    b->carried = c->ptr[PER_LAYER_CARRIED];
    if (b->n_tokens)
        gr_per_layer_forward(k, c->queue, gr_node_shape(c->node), c->ptr[PER_LAYER_WEIGHTS], b,
                             c->ptr[PER_LAYER_X], c->ptr[PER_LAYER_WS]);
}

static void run_per_layer_back(const gr_call *c, gr_packed *b)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = gr_node_shape(c->node);
    b->d_carried = c->ptr[PER_LAYER_BACK_D_CARRIED];
    begin_grads(c, c->ptr[PER_LAYER_BACK_GRADS], gr_model_per_layer_bucket(s));
    if (b->n_tokens)
        gr_per_layer_backward(k, c->queue, s, c->ptr[PER_LAYER_BACK_WEIGHTS], b, c->ptr[PER_LAYER_BACK_IN],
                              c->ptr[PER_LAYER_BACK_DX], c->ptr[PER_LAYER_BACK_GRADS],
                              c->node->model->train.grads, c->ptr[PER_LAYER_BACK_WS]);
}

/* What a work of a layer reads and adds to of its chunk. */
typedef struct own_piece {
    const void *weights, *adapters;
    void *grads;
} own_piece;

static own_piece piece_of(const gr_call *c, const train_state *t)
{
    _Static_assert((int)BACK_WEIGHTS == (int)LAYER_WEIGHTS, "alike");
    const bool back = c->kernel == TRAIN_BACKWARD;
    const uint32_t chunk = pass_of(c, t)->flow.chunk, piece = 1 + c->arg;
    const gr_kernels *k = c->session->kernels;
    char *weights = c->ptr[LAYER_WEIGHTS], *grads = back ? c->ptr[BACK_GRADS] : NULL,
         *adapters = back ? c->ptr[BACK_ADAPTERS] : NULL;
    if (!chunk) return (own_piece){weights, adapters, grads};
    weights += chunk * gr_piece_weights_apart(&t->stages, k, c->node, piece);
    if (grads) grads += chunk * gr_piece_grads_apart(&t->stages, c->node, piece);
    if (adapters) adapters += chunk * gr_piece_adapters_apart(&t->stages, k, c->node, piece);
    return (own_piece){weights, adapters, grads};
}

static void run_layer(const gr_call *c, const train_state *t, gr_packed *b)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = gr_node_shape(c->node);
    const own_layer l = layer_of(c, t);
    const own_piece own = piece_of(c, t);
    const bool back = c->kernel == TRAIN_BACKWARD, again = c->kernel == TRAIN_RECOMPUTE;
    const uint64_t hidden = gr_hidden_bytes(k, s, b->n_tokens); /* none in a trip that other ranks need */
    b->carried = c->ptr[back ? BACK_CARRIED : LAYER_CARRIED];
    if (back) {
        b->d_carried = c->ptr[BACK_D_CARRIED];
        const gr_layer_adapters adapters = {&c->node->model->lora.shape, own.adapters};
        begin_grads(c, own.grads, 1 + c->arg);
        gr_layer_backward(k, c->queue, s, l.layer, own.weights, adapters.bucket ? &adapters : NULL, b, l.in,
                          l.acts, c->ptr[BACK_DX], own.grads, c->node->model->train.grads, c->ptr[BACK_WS]);
        return;
    }
    if (again && hidden) k->copy(c->queue, c->ptr[LAYER_X], l.in, hidden);
    gr_layer_forward(k, c->queue, s, l.layer, own.weights, b, c->ptr[LAYER_X], again ? NULL : l.in, l.acts,
                     c->ptr[LAYER_WS]);
}

static void run_pass(const gr_call *c, train_state *t)
{
    const gr_train_shape shape = gr_train_shape_of(c->node, c->how);
    const gr_micro pack = gr_micro_at(c->ptr[packed_at(c->kernel)], &shape.micro);
    gr_packed b = gr_pass_packed(pass_of(c, t), &shape.micro, &pack);
    const gr_routing routing = routing_of(c, t, &pack);
    b.routing = &routing;
    b.expert_run = c->how->expert_run;
    b.experts_again = c->how->experts_again;
    if (c->kernel == TRAIN_EMBED && gr_node_interleaves(c->node)) run_come(c, t);
    if (is_elsewhere(c, t)) return;
    if (c->kernel == TRAIN_PER_LAYER) {
        run_per_layer(c, &b);
        return;
    }
    if (c->kernel == TRAIN_PER_LAYER_BACKWARD) {
        run_per_layer_back(c, &b);
        return;
    }
    const bool embeds = c->kernel == TRAIN_EMBED, back = c->kernel == TRAIN_EMBED_BACKWARD;
    if (back && !c->node->model->shape.tied) begin_grads(c, c->ptr[EMBED_BACK_GRADS], 0);
    if (embeds && b.n_tokens) run_embed(c, t, &shape.micro, &pack, &b);
    if (back && b.n_tokens) run_embed_backward(c, t, &shape.micro, &pack, &b);
    if (!embeds && !back) run_layer(c, t, &b);
}

static uint32_t place_with(const places *p, uint32_t unit)
{
    uint32_t at = 0;
    while (at < GR_LEN(p->unit) && p->unit[at] != unit) at++;
    assert(at < GR_LEN(p->unit));
    return at;
}

/* Where no rank can have such a micro-batch, nothing is left. */
static void take_place(places *p, const gr_stage_flow *f, uint32_t micro_batches, bool back)
{
    if (!p->used || !f->works || f->micro >= micro_batches) return;
    if (back) {
        p->back = place_with(p, 1 + f->unit);
        p->unit[p->back] = 0;
    } else {
        p->forward = place_with(p, 0);
        p->unit[p->forward] = 1 + f->unit;
    }
}

/* Of a ring: whether there is a unit of the way in this trip. */
static bool take_turn(const gr_call *c, train_state *t, bool back, uint32_t micro_batches)
{
    gr_pass *p = back ? &t->back : &t->pass;
    if (!gr_node_interleaves(c->node)) return !back || t->taken + t->stage >= t->stages.n;
    const bool works = gr_pass_turn(p, c->node, t->session->rank, back);
    take_place(&t->held, &p->flow, micro_batches, back);
    return works;
}

/* The next micro-batch; back: of those that go back through a pipeline, which the first one does when it has
 * come through all stages behind this one. */
static void take_next(const gr_call *c, train_state *t, bool back)
{
    const gr_train_shape shape = gr_train_shape_of(c->node, c->how);
    gr_rows rows = gr_rows_at(c->ptr[PACK_ROWS], &c->node->rows->bounds);
    if (shape.micro.routes) rows.routes = gr_routes_at(c->ptr[PACK_ROUTES], c->node->rows);
    if (!take_turn(c, t, back, shape.micro.trips)) return;
    gr_pass_next(back ? &t->back : &t->pass, &rows, &shape.micro, c->queue, c->ptr[PACK_PACKED],
                 c->ptr[PACK_STAGING]);
    if (back) return;
    t->taken++;
    gr_tally_begin_pass(c, c->ptr[PACK_DIFFERS], shape.micro.tokens);
}

/* Gradients of what came before, and what went forward. */
void gr_train_sends(const gr_call *c, bool next, uint64_t *goes, uint64_t *comes)
{
    const train_state *t = c->state;
    const gr_node *n = c->node;
    const uint32_t rank = t->session->rank, out = gr_pass_goes(next ? &t->pass : &t->back, n),
                   in = next ? gr_pass_comes(&t->back, n, rank, true)
                             : gr_pass_comes(&t->pass, n, rank, false);
    *goes = gr_hidden_bytes(c->session->kernels, &n->model->shape, out);
    *comes = gr_hidden_bytes(c->session->kernels, &n->model->shape, in);
}

gr_status gr_train_run(const gr_call *c, gr_diag *d)
{
    train_state *t = c->state;
    switch (c->kernel) {
    case TRAIN_ZERO:
        run_zero(c, t);
        break;
    case TRAIN_PREPARE:
        return run_prepare(c, t, d);
    case TRAIN_PACK:
    case TRAIN_PACK_BACK:
        take_next(c, t, c->kernel == TRAIN_PACK_BACK);
        break;
    case TRAIN_STAGES_BEGIN: /* what it has declared is written as micro-batches come */
        break;
    case TRAIN_HEAD_FORWARD:
        run_head_forward(c, t);
        break;
    case TRAIN_ADJOINT:
        return run_adjoint(c, t, d);
    case TRAIN_HEAD:
        return run_head(c, t, d);
    case TRAIN_CLEAR:
        c->session->kernels->zero(c->queue, c->ptr[CLEAR_TREE],
                                  grad_bytes(c, c->arg) * (uint64_t)__builtin_ctz(c->how->leaves));
        break;
    case TRAIN_LEAF:
        run_leaf(c, t);
        break;
    case TRAIN_FOLD:
        run_fold(c, t);
        break;
    case TRAIN_SUM:
        c->session->kernels->add(c->queue, c->ptr[SUM_GRADS], c->ptr[SUM_LEAVES], c->node->model->train.grads,
                                 gr_bucket_elems(gr_model_trains(c->node->model), c->arg));
        break;
    case TRAIN_NORM:
        run_norm(c, t);
        break;
    case TRAIN_CLIP:
        finish_norm(c, t, c->ptr[CLIP_SUMS]);
        break;
    case TRAIN_MIX:
        run_mix(c, t);
        break;
    case TRAIN_ORTHOGONALIZE:
        run_orthogonalize(c, t);
        break;
    case TRAIN_STEP:
        run_step(c, t);
        break;
    case TRAIN_FINISH:
        return run_finish(c, t, d);
    case TRAIN_TALLY_CLEAR:
        gr_tally_clear(c, c->ptr[CLEAR_TALLY]);
        break;
    case TRAIN_TALLY:
        return gr_tally_take(c, t->tally, d);
    case TRAIN_PULL:
        run_pull(c);
        break;
    default:
        run_pass(c, t);
    }
    return GR_OK;
}

/* In sequences of whole mini-batches, whatever of them is this rank's. */
static void tell_progress(const gr_call *c, const train_state *t)
{
    const gr_update_cfg *cfg = c->node->cfg;
    const gr_train_shape shape = gr_train_shape_of(c->node, c->how);
    const double pass = (double)t->pass.next / GR_MAX(t->pass.seqs.n, 1u); /* of the mini-batch, or a leaf */
    const double mini = c->how->leaves ? (t->leaf - 1 + pass) / c->how->leaves : pass;
    gr_progress_at(t->session->progress, c->node->name, (uint64_t)((t->trip + mini) * shape.seqs),
                   (uint64_t)cfg->epochs * shape.mini_batches * shape.seqs, "sequences");
}

bool gr_train_more(const gr_call *c, uint32_t trip)
{
    train_state *t = c->state;
    if (trip == 0) gr_pass_begin(&t->pass, &t->pass.own);
    if (trip == 0 && gr_node_piped(c->node)) {
        gr_pass_begin(&t->back, &t->pass.own);
        t->taken = 0;
        t->held = (places){.used = c->kernel == TRAIN_LOOP_STAGES};
    }
    tell_progress(c, t);
    return c->kernel == TRAIN_LOOP_BUT_LAST ? trip + 1 < t->micro_batches : gr_pass_more(&t->pass);
}

uint32_t gr_train_trips(const gr_call *c)
{
    train_state *t = c->state;
    gr_train_shape shape = gr_train_shape_of(c->node, c->how);
    gr_rows rows = gr_rows_at(c->ptr[GR_AGREE_ROWS], &c->node->rows->bounds);
    find_own(c, t, &rows, &t->pass.asked_balancer, &t->pass.asked);
    uint32_t most = gr_pass_count(&t->pass, &rows, &shape.micro, &t->pass.asked);
    for (uint32_t i = 0; i < c->how->leaves; i++) { /* all leaves make as many trips as the longest needs */
        find_leaf(c, t, &rows, i, &t->pass.asked);
        most = GR_MAX(most, gr_pass_count(&t->pass, &rows, &shape.micro, &t->pass.asked));
    }
    if (gr_node_piped(c->node)) most = gr_stages_trips(&t->stages, most, c->kernel == TRAIN_LOOP_STAGES);
    return c->kernel == TRAIN_LOOP_BUT_LAST && most ? most - 1 : most;
}
