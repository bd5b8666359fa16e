/* ops/train_declare.c: an update as the planner sees it: its works, what they use, what they cost. */
#include "ops/kernels/carried.h"
#include "ops/kernels/layer.h"
#include "ops/kernels/muon.h"
#include "ops/model/adapters.h"
#include "ops/parallel/merge.h"
#include "ops/parallel/quantize.h"
#include "ops/parallel/sharding.h"
#include "ops/train_impl.h"
#include "ops/tunables.h"

#include <stdio.h>
#include <stdlib.h>

/* Objects of an update, by name in the plan. */
typedef struct train_objects {
    uint32_t rows, mini, store;
    uint32_t loss_ws[GR_LOSS_VALUE + 1]; /* by stage; where losses are evaluated on the device, one */
    uint32_t current, entropy, d_current,
        d_entropy; /* fresh: logprob; of a value head, value, and no entropy */
    uint32_t divergence, d_divergence, taught, states; /* of a teacher; GR_NONE */
    /* where losses are evaluated on the device, else GR_NONE: what they read; on the host, what is written
     * for them and what they said */
    uint32_t data, data_host, values, back;
    uint32_t packed, staging, x, dx, norm;
    uint32_t carried, d_carried; /* what layers hand on beside x; GR_NONE */
    uint32_t x_comes, dx_comes;  /* of ranks in a ring; else GR_NONE */
    uint32_t packed_back;        /* of a pipeline: of the micro-batch that goes back; else GR_NONE */
    uint32_t routes;             /* what a rollout recorded, where passes ask for it */
    gr_tally_objects tally;
    uint32_t pull; /* of a balance loss; GR_NONE */
    uint32_t ws, embed_ws, embed_back_ws, head_ws;
} train_objects;

/* How names begin of a pass's works and of its gathers, and of the gathers of its backward pass. The last
 * micro-batch of whole gradients has works of its own, behind the loop of the others. */
typedef struct pass_names {
    const char *all, *back;
} pass_names;
static const pass_names current_pass = {"fresh_", NULL}, each_pass = {"", "back_"},
                        last_pass = {"last_", "last_back_"};

/* Of workspaces by their use, and of activations: bytes of a layer of each kind and of the largest. They are
 * asked for a layer after the other, and have few answers; 0: not worked out yet. */
typedef struct layer_sizes {
    uint64_t ws[GR_LAYER_EXTEND][GR_LAYER_KINDS_MAX], acts[GR_LAYER_KINDS_MAX];
    uint64_t most_ws[GR_LAYER_EXTEND], most_acts;
} layer_sizes;

typedef struct declaring {
    const gr_graph *g;
    const gr_node *n;
    const gr_choices *how;
    const gr_kernels *k;
    gr_tasks *p;
    const gr_model_shape *s;
    const gr_model_shape *layers; /* as a rank computes them: its slices */
    gr_stages stages;
    gr_train_kept kept;
    gr_train_shape shape;
    gr_pass_bounds bounds;
    train_objects o;
    gr_env_reads reads;
    gr_micro_cost cost;
    pass_names pass; /* the current one's */
    layer_sizes sizes;
} declaring;

gr_train_shape gr_train_shape_of(const gr_node *n, const gr_choices *how)
{
    const gr_update_cfg *c = n->cfg;
    const gr_rows_bounds *b = &n->rows->bounds;
    gr_train_shape t = {.mini_batches = c->mini_batches};
    t.groups = b->groups / t.mini_batches;
    t.seqs = (uint32_t)((uint64_t)b->seqs * t.groups / b->groups);
    t.loss = (gr_expr_bounds){t.groups, t.seqs, t.seqs * b->response_tokens};
    uint32_t parts =
        how->leaves ? GR_LEAVES : gr_node_parts(n); /* each mini-batch is dealt to these, or leaves */
    t.own_seqs = (uint32_t)((uint64_t)t.seqs * ((t.groups + parts - 1) / parts) / t.groups);
    t.most = gr_balance_bounds_of(t.own_seqs, t.seqs, b->prompt_tokens + b->response_tokens,
                                  how->leaves ? 1 : gr_node_parts(n));
    t.micro = gr_micro_bounds_of(b, &t.most, how->micro_tokens, gr_node_cut(n));
    t.micro.routes = gr_tally_routes(n);
    gr_micro_set_shares(&t.micro, gr_node_shares(n));
    gr_micro_set_parts(&t.micro, n);
    t.role = gr_loss_class_of(c->loss.loss);
    t.range = t.loss; /* of one adjoint call */
    if (t.role == GR_LOSS_TOKEN) t.range.tokens = how->head_rows;
    if (t.role == GR_LOSS_SEQ) {
        t.range.tokens = t.micro.rows;
        t.range.seqs = t.micro.seqs;
    }
    return t;
}

gr_train_kept gr_train_kept_of(const gr_node *n, const gr_choices *how, const gr_kernels *k)
{
    const gr_train_shape shape = gr_train_shape_of(n, how);
    const gr_pass_bounds b = gr_pass_bounds_of(&shape.micro, &n->rows->bounds, how);
    const uint64_t in = gr_hidden_bytes(k, &n->model->shape, b.tokens),
                   acts = gr_layers_acts_bytes(k, gr_node_shape(n), &b);
    const gr_stages stages = gr_stages_of(n);
    return (gr_train_kept){gr_stages_held(&stages, shape.micro.trips),
                           (in + GR_ALIGN - 1) / GR_ALIGN * GR_ALIGN,
                           (acts + GR_ALIGN - 1) / GR_ALIGN * GR_ALIGN};
}

uint32_t gr_train_first(const gr_model *m)
{
    uint32_t b = 0;
    while (!gr_bucket_is_trained(m, b)) b++;
    return b;
}

uint32_t gr_train_last(const gr_model *m)
{
    uint32_t b = gr_model_buckets(&m->shape) - 1;
    while (!gr_bucket_is_trained(m, b)) b--;
    return b;
}

/* ---- what may be chosen -------------------------------------------------------------------------------- */

enum { RECOMPUTE_PARTS = 16 };

uint64_t gr_train_open_tokens(const gr_node *n)
{
    const gr_update_cfg *c = n->cfg;
    if (c->micro_tokens) return 0;
    return (uint64_t)n->rows->bounds.seqs * gr_node_longest(n) / c->mini_batches / gr_node_parts(n);
}

/* That a rank is expected to have of a mini-batch. */
static uint32_t micro_batches(const gr_node *n, const gr_choices *how)
{
    const gr_train_shape shape = gr_train_shape_of(n, how);
    return gr_micro_cost_of(&shape.micro, &n->rows->bounds, shape.own_seqs).trips;
}

static void set_micro(const gr_node *n, const gr_kernels *k, uint32_t level, gr_choices *c)
{
    gr_micro_set(n, k, level, gr_train_open_tokens(n), c);
}

/* Response tokens of the largest micro-batch. */
static void set_head(const gr_node *n, const gr_kernels *k, uint32_t level, gr_choices *c)
{
    gr_head_set(n, k, level, gr_train_shape_of(n, c).micro.own_rows, c);
}

/* That a rank passes. */
static uint32_t own_layers(const gr_node *n)
{
    return gr_node_piped(n) ? gr_stages_of(n).slots : n->model->shape.layers;
}

static void set_recompute(const gr_node *n, const gr_kernels *k, uint32_t level, gr_choices *c)
{
    (void)k;
    const uint32_t layers = own_layers(n), parts = GR_MIN(layers, (uint32_t)RECOMPUTE_PARTS);
    c->recompute = (layers * level + parts - 1) / parts;
}

static void describe_recompute(const gr_node *n, uint32_t level, const gr_choices *c, gr_str *out)
{
    (void)level;
    gr_str_printf(out, "%u of %u layers", c->recompute, own_layers(n));
}

static void set_grads(const gr_node *n, const gr_kernels *k, uint32_t level, gr_choices *c)
{
    (void)n, (void)k;
    c->whole_grads = c->shards != 1 && !level;
}

static void describe_grads(const gr_node *n, uint32_t level, const gr_choices *c, gr_str *out)
{
    (void)n, (void)level, (void)c;
    gr_str_puts(out, "reduced in each micro-batch");
}

/* Gradients may be summed whole on each rank, and reduced beside the last of its micro-batches: else there is
 * a reduction of each bucket beside every one, which takes of their time. Canonical sums have an order of
 * their own. */
static bool may_be_whole(const gr_graph *g, const gr_node *n, const gr_choices *c)
{
    return g->ranks > 1 && !g->canonical && c->shards != 1 && !gr_node_piped(n) && micro_batches(n, c) > 1;
}

size_t gr_train_tunables(const gr_graph *g, const gr_node *n, const gr_kernels *k, const gr_choices *c,
                         gr_tunable *out)
{
    size_t count = 0;
    out[count++] = (gr_tunable){.name = "recomputation",
                                .n_levels = 1 + GR_MIN(own_layers(n), (uint32_t)RECOMPUTE_PARTS),
                                .set = set_recompute,
                                .describe = describe_recompute};
    if (may_be_whole(g, n, c))
        out[count++] = (gr_tunable){.name = "gradients",
                                    .n_levels = 2,
                                    .bits = GR_BITS_SPARE,
                                    .set = set_grads,
                                    .describe = describe_grads};
    if (gr_train_open_tokens(n)) out[count++] = gr_micro_tunable(g, n, k, gr_train_open_tokens(n), set_micro);
    count += gr_experts_tunable(n, k, &out[count]);
    count += gr_experts_kept_tunable(n, &out[count]);
    out[count++] = gr_head_tunable(n, k, set_head);
    return count;
}

void gr_train_default_choice(const gr_node *n, const gr_kernels *k, gr_choices *c)
{
    c->micro_tokens = ((const gr_update_cfg *)n->cfg)->micro_tokens;
    if (!c->micro_tokens) set_micro(n, k, 0, c);
    gr_experts_set(n, k, 0, c);
    set_head(n, k, 0, c);
}

bool gr_train_runs_with(const gr_node *n, const gr_choices *c)
{
    const bool reduces = n->placement.ranks > 1 && c->shards != 1 && !gr_node_piped(n);
    return c->micro_tokens >= gr_node_together(n) && c->head_rows && c->host_step <= 1 &&
           c->whole_grads <= (reduces && !c->leaves) &&
           c->experts_again <= (uint32_t)gr_experts_are_divided(n);
}

/* ---- what is read -------------------------------------------------------------------------------------- */

void gr_train_reads(gr_env_reads *r, const gr_graph *g, const gr_node *n)
{
    gr_env_reads_init(r);
    gr_env_reads_add_rows(r, n->rows);
    gr_env_reads_add_loss(r, g, ((const gr_update_cfg *)n->cfg)->loss.loss);
}

/* Bounds of a mini-batch over all row sets that the loss reads. */
static gr_expr_bounds input_bounds(const gr_env_reads *r, const gr_train_shape *shape)
{
    gr_expr_bounds most = shape->loss;
    for (size_t i = 0; i < r->n_rows; i++) {
        const gr_rows_bounds *b = &r->rows[i]->bounds;
        uint32_t seqs = (uint32_t)((uint64_t)b->seqs * shape->groups / GR_MAX(b->groups, 1u));
        most.seqs = GR_MAX(most.seqs, seqs);
        most.tokens = GR_MAX(most.tokens, seqs * b->response_tokens);
    }
    return most;
}

gr_loss_inputs gr_train_inputs(const gr_env_reads *r, const gr_graph *g, const gr_train_shape *shape)
{
    gr_loss_column *columns = gr_calloc(r->n + 1, sizeof(*columns));
    int *rows = gr_calloc(r->n_rows + 1, sizeof(*rows));
    bool masked = false;
    for (size_t i = 0; i < r->n; i++) {
        const gr_column *c = g->columns[r->columns[i]];
        columns[i] =
            (gr_loss_column){(int)r->columns[i], c->rows ? (int)c->rows->index : -1, c->level, c->dtype};
    }
    for (size_t i = 0; i < r->n_rows; i++) {
        rows[i] = (int)r->rows[i]->index;
        masked = masked || r->rows[i]->bounds.masked;
    }
    return (gr_loss_inputs){columns, rows, r->n, r->n_rows, input_bounds(r, shape), masked};
}

void gr_train_inputs_release(gr_loss_inputs *in)
{
    free((void *)in->columns);
    free((void *)in->rows);
}

/* A value a token of the mini-batch, where the loss is evaluated. */
static uint32_t fresh_column(declaring *w, bool there, const char *d, const char *name)
{
    const uint64_t bytes = (uint64_t)w->shape.loss.tokens * sizeof(float);
    if (!there) return GR_NONE;
    return w->k->losses ? gr_tasks_temp(w->p, GR_CAT_COLUMNS, bytes, "%s%s", d, name)
                        : gr_tasks_value(w->p, GR_CAT_COLUMNS, bytes, "%s%s", d, name);
}

static void add_fresh(declaring *w)
{
    train_objects *o = &w->o;
    const char *all = gr_train_main(w->n);
    const bool teacher = gr_node_teacher(w->n) != NULL;
    o->current = fresh_column(w, true, "", all);
    o->entropy = fresh_column(w, !gr_train_is_value(w->n), "", "entropy");
    o->d_current = fresh_column(w, true, "d_", all);
    o->d_entropy = fresh_column(w, gr_train_current(w->g, w->n, "entropy", NULL), "d_", "entropy");
    o->divergence = fresh_column(w, teacher, "", "divergence");
    o->d_divergence =
        fresh_column(w, teacher && gr_train_current(w->g, w->n, "divergence", NULL), "d_", "divergence");
}

/* Where the host evaluates the loss, with the values of the batch. */
static void add_host_loss(declaring *w, const gr_loss *l)
{
    const gr_train_shape *t = &w->shape;
    train_objects *o = &w->o;
    add_fresh(w);
    o->store = gr_tasks_value(w->p, GR_CAT_COLUMNS, gr_loss_store_bytes(l, t->loss), "loss_store");
    static const char *const ws[] = {"prepare_ws", "adjoint_ws", "value_ws"};
    for (gr_loss_stage stage = GR_LOSS_PREPARE; stage <= GR_LOSS_VALUE; stage++)
        o->loss_ws[stage] = gr_tasks_value(w->p, GR_CAT_WORKSPACE,
                                           gr_loss_work_bytes(l, stage, t->loss, t->range), "%s", ws[stage]);
    o->data = o->data_host = o->values = o->back = GR_NONE;
}

static void add_device_loss(declaring *w, const gr_loss *l)
{
    const gr_train_shape *t = &w->shape;
    uint64_t column = (uint64_t)t->loss.tokens * sizeof(float);
    train_objects *o = &w->o;
    gr_loss_inputs in = gr_train_inputs(&w->reads, w->g, t);
    add_fresh(w);
    o->store = gr_tasks_temp(w->p, GR_CAT_COLUMNS, gr_loss_store_bytes(l, in.bounds), "loss_store");
    const uint32_t ws =
        gr_tasks_temp(w->p, GR_CAT_WORKSPACE, gr_loss_frame_bytes(l, in.bounds, t->range), "loss_ws");
    for (gr_loss_stage stage = GR_LOSS_PREPARE; stage <= GR_LOSS_VALUE; stage++) o->loss_ws[stage] = ws;
    o->data = gr_tasks_temp(w->p, GR_CAT_COLUMNS, gr_loss_data_bytes(&in), "loss_columns");
    o->data_host = gr_tasks_host(w->p, GR_CAT_COLUMNS, gr_loss_host_bytes(&in), "loss_rows");
    o->values = gr_tasks_temp(w->p, GR_CAT_COLUMNS, gr_loss_results(l) * sizeof(double), "values");
    o->back = gr_tasks_host(w->p, GR_CAT_COLUMNS, 2 * column, "read_back");
    gr_train_inputs_release(&in);
}

static uint64_t ws_bytes(declaring *w, gr_layer_use use, uint32_t l)
{
    uint64_t *bytes = &w->sizes.ws[use][w->layers->kind_of[l]];
    if (!*bytes) *bytes = gr_layer_ws_bytes(w->k, w->layers, l, &w->bounds, use);
    return *bytes;
}

static uint64_t most_ws_bytes(declaring *w, gr_layer_use use)
{
    uint64_t *bytes = &w->sizes.most_ws[use];
    if (!*bytes) *bytes = gr_layers_ws_bytes(w->k, w->layers, &w->bounds, use);
    return *bytes;
}

static uint64_t acts_bytes(declaring *w, uint32_t l)
{
    uint64_t *bytes = &w->sizes.acts[w->layers->kind_of[l]];
    if (!*bytes) *bytes = gr_layer_acts_bytes(w->k, w->layers, l, &w->bounds);
    return *bytes;
}

static uint64_t most_acts_bytes(declaring *w)
{
    uint64_t *bytes = &w->sizes.most_acts;
    if (!*bytes) *bytes = gr_layers_acts_bytes(w->k, w->layers, &w->bounds);
    return *bytes;
}

static uint32_t layer_ws(declaring *w, gr_layer_use use, const char *what)
{
    return gr_tasks_temp(w->p, GR_CAT_WORKSPACE, most_ws_bytes(w, use), "%s%s", w->pass.all, what);
}

static uint64_t head_ws_bytes(const declaring *w, gr_head_use use)
{
    const uint32_t slices = w->shape.micro.slices, rows = w->how->head_rows, threads = w->how->threads;
    if (gr_train_is_value(w->n)) return w->k->value_ws_bytes(w->s, rows, threads);
    return slices ? gr_head_slices_ws_bytes(w->k, w->layers, slices, rows, use, threads)
                  : w->k->head_ws_bytes(w->s, rows, use, threads);
}

static uint32_t head_ws(declaring *w, gr_head_use use)
{
    return gr_tasks_temp(w->p, GR_CAT_WORKSPACE, head_ws_bytes(w, use), "%shead_ws", w->pass.all);
}

/* Forward one that is whole takes none. */
static uint32_t embed_ws(declaring *w)
{
    const uint32_t slices = w->shape.micro.slices, tokens = w->bounds.tokens;
    return slices ? gr_tasks_temp(w->p, GR_CAT_WORKSPACE,
                                  gr_embed_slices_ws_bytes(w->k, w->layers, slices, tokens, false),
                                  "%sembed_forward_ws", w->pass.all)
                  : GR_NONE;
}

static uint64_t embed_back_ws_bytes(const declaring *w)
{
    const uint32_t slices = w->shape.micro.slices, tokens = w->bounds.tokens;
    return slices ? gr_embed_slices_ws_bytes(w->k, w->layers, slices, tokens, true)
                  : w->k->embed_ws_bytes(tokens);
}

/* Whether what is called a bucket here is a piece of a stage, and a layer the slot of one. */
static bool piped(const declaring *w)
{
    return w->stages.n > 1;
}

/* Whether its ranks are a ring besides. */
static bool interleaves(const declaring *w)
{
    return w->stages.chunks > 1;
}

static uint32_t last_bucket(const declaring *w)
{
    return piped(w) ? gr_stages_last(&w->stages) : 1 + w->s->layers;
}

/* A layer of the model that takes as long as this one, or as the slowest of this slot. */
static uint32_t like_layer(const declaring *w, uint32_t l)
{
    return piped(w) ? gr_stage_slowest(&w->stages, w->s, l) : l;
}

static bool is_trained(const declaring *w, uint32_t bucket)
{
    return gr_bucket_is_trained(w->n->model, bucket);
}

/* Beside the head's workspace: a teacher's logits, and the rows that they are made of. */
static void add_taught(declaring *w)
{
    const gr_node *teacher = gr_node_teacher(w->n);
    const uint32_t rows = w->how->head_rows;
    w->o.taught = gr_tasks_temp(w->p, GR_CAT_WORKSPACE,
                                w->k->teach_ws_bytes(w->s, &teacher->model->shape, rows, w->how->threads),
                                "%staught", w->pass.all);
    w->o.states = gr_tasks_temp(w->p, GR_CAT_WORKSPACE, rows * gr_states_row_bytes(w->k, teacher), "%sstates",
                                w->pass.all);
}

/* Those of a pass with a backward one. */
static void add_pass_objects(declaring *w, pass_names pass)
{
    gr_tasks *p = w->p;
    train_objects *o = &w->o;
    const uint64_t hidden = gr_hidden_bytes(w->k, w->s, w->bounds.tokens),
                   embed = is_trained(w, 0) ? embed_back_ws_bytes(w) : 0;
    w->pass = pass;
    if (piped(w))
        o->packed_back = gr_tasks_temp(p, GR_CAT_WORKSPACE, gr_micro_bytes(&w->shape.micro), "packed_back");
    o->x = gr_tasks_temp(p, GR_CAT_ACTIVATIONS, hidden, "%sx", pass.all);
    o->dx = gr_tasks_temp(p, GR_CAT_ACTIVATIONS, hidden, "%sdx", pass.all);
    o->carried = gr_carried_object(p, w->k, w->s, w->bounds.tokens, true, pass.all, "carried");
    o->d_carried = gr_carried_object(p, w->k, w->s, w->bounds.tokens, true, pass.all, "d_carried");
    o->x_comes = o->dx_comes = GR_NONE;
    if (interleaves(w)) o->x_comes = gr_tasks_temp(p, GR_CAT_ACTIVATIONS, hidden, "%sx_comes", pass.all);
    if (interleaves(w)) o->dx_comes = gr_tasks_temp(p, GR_CAT_ACTIVATIONS, hidden, "%sdx_comes", pass.all);
    const bool keeps = !w->how->recompute; /* else layers run without their activations, too */
    o->ws = layer_ws(w, keeps ? GR_LAYER_KEEP : GR_LAYER_FORWARD, "forward_ws");
    if (gr_node_teacher(w->n)) add_taught(w);
    o->embed_back_ws = embed ? gr_tasks_temp(p, GR_CAT_WORKSPACE, embed, "%sembed_ws", pass.all) : GR_NONE;
    o->head_ws = head_ws(w, GR_HEAD_GRADIENT);
}

/* Whether a balance loss needs the loads of the whole mini-batch before any gradient. */
static bool balances(const declaring *w)
{
    return gr_tally_balance(w->n).coefficient > 0;
}

static void add_objects(declaring *w)
{
    gr_tasks *p = w->p;
    const gr_train_shape *t = &w->shape;
    const gr_loss *l = ((const gr_update_cfg *)w->n->cfg)->loss.loss;
    train_objects *o = &w->o;
    o->rows = gr_rows_object(p, w->n->rows);
    o->mini = gr_tasks_host(p, GR_CAT_COLUMNS, gr_env_narrow_bytes(&w->reads), "mini_batch");
    if (w->k->losses)
        add_device_loss(w, l);
    else
        add_host_loss(w, l);
    o->packed = gr_tasks_temp(p, GR_CAT_WORKSPACE, gr_micro_bytes(&t->micro), "packed");
    o->staging = gr_tasks_host(p, GR_CAT_WORKSPACE, gr_micro_bytes(&t->micro), "staging");
    o->routes = t->micro.routes ? gr_routes_object(p, w->g, w->n->rows) : GR_NONE;
    o->tally = gr_tally_declare(p, w->n, &t->micro);
    o->pull =
        balances(w) ? gr_tasks_temp(p, GR_CAT_WORKSPACE, GR_EXPERTS_MAX * sizeof(float), "pull") : GR_NONE;
    o->norm = gr_tasks_temp(p, GR_CAT_WORKSPACE,
                            (w->p->leaves ? GR_LEAVES : 1) * gr_model_buckets(w->s) * sizeof(double) +
                                w->k->sum_squares_ws_bytes(),
                            "norm");
    add_pass_objects(w, each_pass);
}

static uint32_t params(declaring *w, uint32_t bucket)
{
    if (piped(w)) return gr_piece_weights(w->p, w->k, w->n, &w->stages, bucket);
    if (gr_node_fp8(w->n)) return gr_quantize_object(w->p, w->k, w->n->model, false, bucket);
    return gr_sharding_params(w->p, w->k, w->n->model, w->pass.all, bucket);
}

static uint32_t back_params(declaring *w, uint32_t bucket)
{
    if (piped(w)) return params(w, bucket);
    if (gr_node_fp8(w->n)) return params(w, bucket);
    return gr_sharding_params(w->p, w->k, w->n->model, w->pass.back, bucket);
}

static void gather(declaring *w, uint32_t bucket)
{
    if (piped(w)) return; /* once a mini-batch */
    gr_sharding_gather(w->p, w->k, w->n->model, w->pass.all, bucket);
}

static void back_gather(declaring *w, uint32_t bucket)
{
    if (piped(w)) return;
    gr_sharding_gather(w->p, w->k, w->n->model, w->pass.back, bucket);
}

/* Those of the mini-batch; and those a backward work adds to, the first of a micro-batch or not: of whole
 * gradients that live through all of them, none is. */
static uint32_t grad_sums(declaring *w, uint32_t bucket)
{
    return gr_model_object(w->p, w->k, w->n->model, GR_PART_GRADS, bucket);
}

static gr_use grads(declaring *w, uint32_t bucket, bool first)
{
    if (piped(w)) return (gr_use){gr_piece_grads(w->p, w->n, &w->stages, bucket), GR_UPDATE};
    if (!is_trained(w, bucket)) return (gr_use){GR_NONE, GR_UPDATE};
    return gr_sharding_grads(w->p, w->k, w->n->model, bucket, first && !w->how->whole_grads);
}

/* Whether gradients are reduced in each micro-batch: canonical, behind all leaves. */
static bool reduces_each(const declaring *w)
{
    return !w->p->leaves && !w->how->whole_grads && !piped(w);
}

/* The gradient of a bucket is complete: of this micro-batch, or of all. */
static void reduce(declaring *w, uint32_t bucket)
{
    const bool all = w->how->whole_grads && w->pass.all == last_pass.all;
    if (piped(w) || !is_trained(w, bucket)) return;
    if (all || reduces_each(w)) gr_sharding_reduce(w->p, w->k, w->n->model, bucket, all);
}

/* What a pass leaves for its backward one, which may be in the host pool meanwhile; not of a pipeline, whose
 * micro-batches are all in one object. */
static uint32_t kept_object(declaring *w, uint64_t bytes, const char *what, uint32_t l)
{
    return piped(w) ? gr_tasks_temp(w->p, GR_CAT_ACTIVATIONS, bytes, "%s%s.%u", w->pass.all, what, l)
                    : gr_tasks_spill(w->p, GR_CAT_ACTIVATIONS, w->n->model->name, bytes, "%s%s.%u",
                                     w->pass.all, what, l);
}

static uint32_t layer_in(declaring *w, uint32_t l)
{
    const uint64_t bytes = gr_hidden_bytes(w->k, w->s, w->bounds.tokens);
    return kept_object(w, piped(w) ? w->kept.places * w->kept.in : bytes, "in", l);
}

/* Of the layers that are recomputed, one's activations exist at a time. */
static bool recomputed(const declaring *w, uint32_t l)
{
    return l < w->how->recompute;
}

static uint32_t layer_acts(declaring *w, uint32_t l)
{
    uint64_t bytes = recomputed(w, l) ? most_acts_bytes(w)
                     : piped(w)       ? w->kept.places * w->kept.acts
                                      : acts_bytes(w, l);
    return recomputed(w, l) ? gr_tasks_temp(w->p, GR_CAT_ACTIVATIONS, bytes, "%sacts", w->pass.all)
                            : kept_object(w, bytes, "acts", l);
}

/* Where layers are recomputed, the workspaces of one take turns with those of the next: each lives for a
 * step.
 */
static uint32_t turn_ws(declaring *w, gr_layer_use use, const char *what, uint32_t l)
{
    const uint64_t bytes = piped(w) ? most_ws_bytes(w, use) : ws_bytes(w, use, l);
    return w->how->recompute ? gr_tasks_temp(w->p, GR_CAT_WORKSPACE, bytes, "%s%s.%u", w->pass.all, what, l)
                             : layer_ws(w, use, what);
}

/* Where the device evaluates losses, it copies columns itself; the host reads rows, and what is one number.
 */
static gr_use_mode reader_of(const declaring *w, size_t i)
{
    const gr_env_reads *r = &w->reads;
    const bool column = i >= r->n_rows && w->g->columns[r->columns[i - r->n_rows]]->level != GR_LEVEL_SCALAR;
    return column ? GR_BY_QUEUE : GR_BY_CODE;
}

/* A work whose uses are followed by the columns the loss reads. */
static gr_task *run_with_columns(declaring *w, uint32_t kernel, const gr_use *uses, size_t n,
                                 const char *what)
{
    gr_use *all = gr_arena_alloc(w->p->arena, (n + gr_env_uses(&w->reads)) * sizeof(*all));
    memcpy(all, uses, n * sizeof(*uses));
    gr_env_declare(&w->reads, w->g, w->p, all + n);
    for (size_t i = 0; i < gr_env_uses(&w->reads) && w->k->losses; i++) all[n + i].mode |= reader_of(w, i);
    n += gr_env_uses(&w->reads);
    return gr_tasks_run(w->p, kernel, 0, all, n, "%s", what);
}

static void declare_prepare(declaring *w)
{
    const train_objects *o = &w->o;
    run_with_columns(w, TRAIN_PREPARE,
                     (gr_use[]){[LOSS_MINI] = {o->mini, GR_WRITE | GR_BY_CODE},
                                [LOSS_STORE] = {o->store, GR_WRITE},
                                [LOSS_WS] = {o->loss_ws[GR_LOSS_PREPARE], GR_WRITE},
                                [LOSS_CURRENT] = {o->current, GR_WRITE},
                                [LOSS_ENTROPY] = {o->entropy, GR_WRITE},
                                [LOSS_DIVERGENCE] = {o->divergence, GR_WRITE},
                                [LOSS_D_CURRENT] = {o->d_current, GR_WRITE},
                                [LOSS_D_ENTROPY] = {o->d_entropy, GR_WRITE},
                                [LOSS_D_DIVERGENCE] = {o->d_divergence, GR_WRITE},
                                [LOSS_DATA] = {o->data, GR_WRITE},
                                [LOSS_DATA_HOST] = {o->data_host, GR_WRITE | GR_BY_TURNS}},
                     N_LOSS, "prepare");
}

/* With the next stage, or the one before; a pass that goes forward alone has no gradients. */
static void exchange(declaring *w, bool next)
{
    const train_objects *o = &w->o;
    const bool back = w->pass.back != NULL;
    char what[32];
    snprintf(what, sizeof(what), "%s%s", w->pass.all, next ? "next" : "before");
    const gr_stage_messages m = {.x = o->x,
                                 .dx = back ? o->dx : GR_NONE,
                                 .cut = o->packed,
                                 .back = back && next ? o->packed_back : GR_NONE,
                                 .bytes = gr_hidden_bytes(w->k, w->s, w->bounds.tokens)};
    gr_stage_exchange(w->p, w->n, next, &m, what);
}

/* Of ranks in a ring, at the begin of a trip. */
static void exchange_around(declaring *w)
{
    const train_objects *o = &w->o;
    const bool back = w->pass.back != NULL;
    const gr_ring_messages m = {{.x = o->x,
                                 .dx = back ? o->dx : GR_NONE,
                                 .cut = o->packed,
                                 .back = back ? o->packed_back : GR_NONE,
                                 .bytes = gr_hidden_bytes(w->k, w->s, w->bounds.tokens)},
                                o->x_comes,
                                back ? o->dx_comes : GR_NONE};
    char what[32];
    snprintf(what, sizeof(what), "%saround", w->pass.all);
    gr_stage_ring(w->p, w->n, &m, what);
}

/* Of neighbours that have slices. */
static double slice_tokens(const declaring *w)
{
    return w->cost.tokens / gr_mesh_size(&w->n->placement.mesh, GR_AXIS_CONTEXT);
}

/* Of a pipeline: the way back of an earlier micro-batch. */
static void declare_pack_back(declaring *w)
{
    const train_objects *o = &w->o;
    gr_tasks_run(w->p, TRAIN_PACK_BACK, 0,
                 (gr_use[]){[PACK_ROWS] = {o->rows, GR_READ},
                            [PACK_PACKED] = {o->packed_back, GR_WRITE},
                            [PACK_STAGING] = {gr_tasks_host(w->p, GR_CAT_WORKSPACE,
                                                            gr_micro_bytes(&w->shape.micro), "staging_back"),
                                              GR_WRITE},
                            [PACK_ROUTES] = {o->routes, GR_READ},
                            [PACK_DIFFERS] = {GR_NONE, GR_WRITE}},
                 N_PACK, "pack_back")
        ->uses.by_code = true;
}

static uint32_t per_layer_ws(declaring *w, bool backward)
{
    return gr_tasks_temp(w->p, GR_CAT_WORKSPACE,
                         gr_per_layer_ws_bytes(w->k, w->s, w->bounds.tokens, w->how->threads, backward),
                         "%sper_layer_%s", w->pass.all, backward ? "back_ws" : "ws");
}

/* Embeddings of each layer, from what was embedded. */
static void declare_per_layer(declaring *w)
{
    const train_objects *o = &w->o;
    const uint32_t bucket = gr_model_per_layer_bucket(w->s);
    if (!w->s->per_layer.vocab) return;
    gather(w, bucket);
    gr_task *task = gr_tasks_run(w->p, TRAIN_PER_LAYER, 0,
                                 (gr_use[]){[PER_LAYER_WEIGHTS] = {params(w, bucket), GR_READ},
                                            [PER_LAYER_PACKED] = {o->packed, GR_READ},
                                            [PER_LAYER_X] = {o->x, GR_READ},
                                            [PER_LAYER_WS] = {per_layer_ws(w, false), GR_WRITE},
                                            [PER_LAYER_CARRIED] = {o->carried, GR_WRITE}},
                                 N_PER_LAYER, "%sper_layer", w->pass.all);
    gr_per_layer_cost(task, w->k, w->s, w->cost.tokens, 1);
}

/* The first layer's input is what was embedded. */
static void declare_per_layer_back(declaring *w)
{
    const train_objects *o = &w->o;
    const uint32_t bucket = gr_model_per_layer_bucket(w->s);
    if (!w->s->per_layer.vocab || !is_trained(w, bucket)) return;
    gr_task *task = gr_tasks_run(w->p, TRAIN_PER_LAYER_BACKWARD, 0,
                                 (gr_use[]){[PER_LAYER_BACK_WEIGHTS] = {back_params(w, bucket), GR_READ},
                                            [PER_LAYER_BACK_PACKED] = {o->packed, GR_READ},
                                            [PER_LAYER_BACK_IN] = {layer_in(w, 0), GR_READ},
                                            [PER_LAYER_BACK_DX] = {o->dx, GR_UPDATE},
                                            [PER_LAYER_BACK_GRADS] = grads(w, bucket, true),
                                            [PER_LAYER_BACK_WS] = {per_layer_ws(w, true), GR_WRITE},
                                            [PER_LAYER_BACK_D_CARRIED] = {o->d_carried, GR_UPDATE}},
                                 N_PER_LAYER_BACK, "%sper_layer_backward", w->pass.all);
    gr_per_layer_cost(task, w->k, w->s, w->cost.tokens, 2);
    reduce(w, bucket);
}

/* Gathers are declared one bucket ahead of the work that reads it: they run beside the work before. */
static void declare_pack(declaring *w)
{
    const train_objects *o = &w->o;
    gr_tasks_run(w->p, TRAIN_PACK, 0,
                 (gr_use[]){[PACK_ROWS] = {o->rows, GR_READ},
                            [PACK_PACKED] = {o->packed, GR_WRITE},
                            [PACK_STAGING] = {o->staging, GR_WRITE},
                            [PACK_ROUTES] = {o->routes, GR_READ},
                            [PACK_DIFFERS] = {o->tally.differs, GR_WRITE}},
                 N_PACK, "%spack", w->pass.all)
        ->uses.by_code = true;
    gather(w, 0);
    gather(w, 1);
    const bool back = interleaves(w) && w->pass.back;
    if (back) declare_pack_back(w);
    if (interleaves(w))
        exchange_around(w);
    else if (piped(w))
        exchange(w, false);
    const uint32_t ws = embed_ws(w);
    gr_task *task = gr_tasks_run(w->p, TRAIN_EMBED, 0,
                                 (gr_use[]){[EMBED_WEIGHTS] = {params(w, 0), GR_READ},
                                            [EMBED_PACKED] = {o->packed, GR_READ},
                                            [EMBED_X] = {o->x, piped(w) ? GR_UPDATE : GR_WRITE},
                                            [EMBED_WS] = {ws, GR_WRITE},
                                            [EMBED_X_COMES] = {o->x_comes, GR_READ},
                                            [EMBED_DX_COMES] = {back ? o->dx_comes : GR_NONE, GR_READ},
                                            [EMBED_DX] = {back ? o->dx : GR_NONE, GR_UPDATE}},
                                 N_EMBED, "%sembed", w->pass.all);
    gr_embed_exchange_cost(task, w->k, w->n, slice_tokens(w));
    declare_per_layer(w);
}

/* times: 1 forward, 2 backward. */
static void layer_cost(const declaring *w, gr_task *task, uint32_t l, double times)
{
    l = like_layer(w, l);
    gr_layer_mesh_cost(task, w->k, w->n, l, w->cost.tokens, w->cost.length, times);
    const double tokens = gr_expert_tokens(w->n, w->cost.tokens);
    gr_experts_price(task, w->k, w->layers, l, tokens, w->bounds.expert_run,
                     times > 1 ? gr_dtype_size(w->n->model->train.grads) : 0);
    if (times > 1 && w->bounds.experts_again && gr_layer(w->layers, l)->experts.holders)
        gr_experts_price_again(task, w->k, w->layers, l, tokens);
    gr_cost_times(task, gr_stages_layers(&w->stages, w->n));
}

static uint32_t n_layers(const declaring *w)
{
    return piped(w) ? w->stages.slots : w->s->layers;
}

static void declare_layer(declaring *w, uint32_t l, bool keep)
{
    const train_objects *o = &w->o;
    uint32_t in = keep ? layer_in(w, l) : GR_NONE,
             acts = keep && !recomputed(w, l) ? layer_acts(w, l) : GR_NONE;
    const uint32_t ws = keep ? o->ws : layer_ws(w, GR_LAYER_FORWARD, "ws");
    const bool counts = keep != balances(w); /* a mini-batch once */
    gather(w, 2 + l);
    layer_cost(w,
               gr_tasks_run(w->p, TRAIN_FORWARD, l,
                            (gr_use[]){[LAYER_WEIGHTS] = {params(w, 1 + l), GR_READ},
                                       [LAYER_PACKED] = {o->packed, GR_READ},
                                       [LAYER_X] = {o->x, GR_UPDATE},
                                       [LAYER_IN] = {in, piped(w) ? GR_UPDATE : GR_WRITE},
                                       [LAYER_ACTS] = {acts, piped(w) ? GR_UPDATE : GR_WRITE},
                                       [LAYER_WS] = {ws, GR_WRITE},
                                       [LAYER_CARRIED] = {o->carried,
                                                          gr_carried_begins(w->s, l) ? GR_WRITE : GR_UPDATE},
                                       [LAYER_TALLY] = {counts ? o->tally.tally : GR_NONE, GR_UPDATE},
                                       [LAYER_DIFFERS] = {counts ? o->tally.differs : GR_NONE, GR_UPDATE}},
                            N_LAYER, "%sforward.%u", w->pass.all, l),
               l, 1);
}

/* Of adapters' gradients: each product's x and dy are read twice, in place of the product that the gradient
 * of its weights takes; for each there are two products, and two of all that read the same x. */
static void adapters_cost(const declaring *w, gr_task *task, uint32_t l)
{
    const gr_model *m = w->n->model;
    const double tokens = w->cost.tokens / w->shape.micro.cut, rank = m->lora.shape.adapter.rank;
    gr_adapter a[GR_N_TARGETS];
    const size_t n = gr_model_has_lora(m) ? gr_adapters_of(w->s, &m->lora.shape, 1 + like_layer(w, l), a) : 0;
    if (!gr_model_has_lora(m)) return;
    task->cost.flops /= 2;
    for (size_t i = 0; i < n; i++) {
        const double values = a[i].rows + (a[i].index ? 0.0 : a[i].in);
        task->cost.flops += 4 * tokens * rank * (a[i].rows + (double)a[i].in);
        task->cost.moved += 2 * tokens * values * (double)gr_dtype_size(w->k->dtype);
        task->cost.launches += a[i].index ? 2 : 4;
    }
}

/* Sequence-coupled losses read the fresh values of whole sequences: where their tokens are cut over ranks,
 * these exchange them. */
static void head_group(const declaring *w, gr_task *task, bool backward)
{
    const uint32_t cut = w->shape.micro.cut;
    if (cut < 2 || !backward || w->shape.role != GR_LOSS_SEQ) return;
    task->comm.mesh = w->n->placement.mesh;
    task->comm.mesh.size[GR_AXIS_EXPERT] = task->comm.mesh.size[GR_AXIS_PIPELINE] = 1;
    task->comm.peers = cut;
    task->comm.sums = 1 + (w->o.entropy != GR_NONE) + (w->o.divergence != GR_NONE);
    task->comm.summed = task->comm.sums * w->shape.loss.tokens * sizeof(float) * 2 * (cut - 1) / cut;
}

/* The bucket with a teacher's output matrix. */
static uint32_t teacher_bucket(const gr_model *m)
{
    return m->shape.tied ? 0 : 1 + m->shape.layers;
}

/* What the head reads of a teacher, and the product that it costs: of every row once more. */
static void add_teacher(declaring *w, gr_use *uses, bool backward)
{
    const gr_node *teacher = gr_node_teacher(w->n);
    const train_objects *o = &w->o;
    if (!teacher) return;
    if (!backward) add_taught(w);
    /* Both models have a bucket of that number, perhaps, and the pass reads both: each has a buffer. */
    const char *pass = gr_arena_printf(w->p->arena, "%steacher_", w->pass.all);
    gr_sharding_gather(w->p, w->k, teacher->model, pass, teacher_bucket(teacher->model));
    const uint32_t matrix =
        gr_sharding_params(w->p, w->k, teacher->model, pass, teacher_bucket(teacher->model));
    uses[HEAD_TEACHER] = (gr_use){matrix, GR_READ};
    uses[HEAD_STATES] = (gr_use){gr_states_object(w->p, w->k, teacher), GR_READ | GR_BY_QUEUE};
    uses[HEAD_STATES_CHUNK] = (gr_use){o->states, GR_WRITE};
    uses[HEAD_TAUGHT] = (gr_use){o->taught, GR_WRITE};
}

static void add_teacher_cost(const declaring *w, gr_task *task, double rows)
{
    const gr_node *teacher = gr_node_teacher(w->n);
    if (!teacher) return;
    const gr_task own = *task;
    gr_task more = {.kind = own.kind};
    gr_model_shape s = teacher->model->shape;
    s.vocab = w->s->vocab;
    gr_head_cost(&more, w->k, &s, rows, 1);
    task->cost.head += more.cost.head;
    task->cost.logits += 2 * more.cost.logits; /* three walks over both, and a fourth over the slope */
    task->cost.bytes += 2 * more.cost.bytes;
}

static void declare_head(declaring *w, bool backward)
{
    const train_objects *o = &w->o;
    const bool teacher = gr_node_teacher(w->n) != NULL;
    const uint32_t ws = backward ? o->head_ws : head_ws(w, teacher ? GR_HEAD_GRADIENT : GR_HEAD_LOGPROB);
    uint32_t last = last_bucket(w), tied = w->s->tied ? params(w, 0) : GR_NONE;
    const gr_use none = {GR_NONE, GR_UPDATE};
    if (backward) back_gather(w, w->s->layers);
    gr_use uses[] = {[HEAD_NORM] = {params(w, last), GR_READ},
                     [HEAD_EMBED] = {tied, GR_READ},
                     [HEAD_PACKED] = {o->packed, GR_READ},
                     [HEAD_X] = {o->x, GR_READ},
                     [HEAD_WS] = {ws, GR_WRITE},
                     [HEAD_CURRENT] = {o->current, GR_UPDATE},
                     [HEAD_ENTROPY] = {o->entropy, GR_UPDATE},
                     [HEAD_DX] = {backward ? o->dx : GR_NONE, interleaves(w) ? GR_UPDATE : GR_WRITE},
                     [HEAD_GRAD_NORM] = backward ? grads(w, last, true) : none,
                     [HEAD_GRAD_EMBED] = backward && w->s->tied ? grads(w, 0, true) : none,
                     [HEAD_D_CURRENT] = {o->d_current, GR_UPDATE},
                     [HEAD_D_ENTROPY] = {o->d_entropy, GR_UPDATE},
                     [HEAD_STORE] = {o->store, GR_READ},
                     [HEAD_MINI] = {o->mini, GR_UPDATE | GR_BY_CODE},
                     [HEAD_LOSS_WS] = {o->loss_ws[GR_LOSS_ADJOINT], GR_WRITE},
                     [HEAD_DATA] = {o->data, GR_READ},
                     [HEAD_DATA_HOST] = {o->data_host, GR_READ | GR_BY_TURNS},
                     [HEAD_TEACHER] = {GR_NONE, GR_READ},
                     [HEAD_STATES] = {GR_NONE, GR_READ},
                     [HEAD_STATES_CHUNK] = {GR_NONE, GR_WRITE},
                     [HEAD_TAUGHT] = {GR_NONE, GR_WRITE},
                     [HEAD_DIVERGENCE] = {o->divergence, GR_UPDATE},
                     [HEAD_D_DIVERGENCE] = {o->d_divergence, GR_UPDATE}};
    add_teacher(w, uses, backward);
    char what[32];
    snprintf(what, sizeof(what), "%shead", w->pass.all);
    gr_task *task = run_with_columns(w, backward ? TRAIN_HEAD : TRAIN_HEAD_FORWARD, uses, N_HEAD, what);
    const double rows = w->cost.rows * GR_MAX(w->shape.micro.slices, 1u) / w->shape.micro.cut;
    gr_head_cost(task, w->k, w->layers, rows, backward ? gr_model_has_lora(w->n->model) ? 2 : 3 : 1);
    add_teacher_cost(w, task, rows);
    head_group(w, task, backward);
    if (!gr_train_is_value(w->n)) gr_head_exchange_cost(task, w->k, w->n, rows, w->how->head_rows, backward);
    if (piped(w)) gr_cost_times(task, gr_stages_head(&w->stages, w->n));
    if (backward) reduce(w, last);
}

static uint32_t packed_back(const declaring *w)
{
    return piped(w) ? w->o.packed_back : w->o.packed;
}

/* Of a layer's weights; GR_NONE: it is trained itself. */
static uint32_t adapters(declaring *w, uint32_t bucket)
{
    if (!gr_model_has_lora(w->n->model)) return GR_NONE;
    return piped(w) ? gr_piece_adapters(w->p, w->k, w->n, &w->stages, bucket)
                    : gr_model_object(w->p, w->k, w->n->model, GR_PART_ADAPTERS, bucket);
}

static void declare_backward(declaring *w, uint32_t l)
{
    const train_objects *o = &w->o;
    uint32_t in = layer_in(w, l), acts = layer_acts(w, l);
    uint32_t back_ws = turn_ws(w, GR_LAYER_BACKWARD, "backward_ws", l);
    const bool last = l + 1 == n_layers(w);
    if (l) back_gather(w, l); /* of the layer below */
    if (!l && w->s->per_layer.vocab && is_trained(w, gr_model_per_layer_bucket(w->s)))
        back_gather(w, gr_model_per_layer_bucket(w->s));
    if (recomputed(w, l))
        layer_cost(
            w,
            gr_tasks_run(w->p, TRAIN_RECOMPUTE, l,
                         (gr_use[]){[LAYER_WEIGHTS] = {back_params(w, 1 + l), GR_READ},
                                    [LAYER_PACKED] = {packed_back(w), GR_READ},
                                    [LAYER_X] = {o->x, GR_WRITE},
                                    [LAYER_IN] = {in, GR_READ},
                                    [LAYER_ACTS] = {acts, GR_WRITE},
                                    [LAYER_WS] = {turn_ws(w, GR_LAYER_KEEP, "recompute_ws", l), GR_WRITE},
                                    [LAYER_CARRIED] = {o->carried, GR_UPDATE}},
                         N_RECOMPUTE, "%srecompute.%u", w->pass.all, l),
            l, 1);
    const uint32_t its_adapters = adapters(w, 1 + l);
    gr_task *task = gr_tasks_run(w->p, TRAIN_BACKWARD, l,
                                 (gr_use[]){[BACK_WEIGHTS] = {back_params(w, 1 + l), GR_READ},
                                            [BACK_PACKED] = {packed_back(w), GR_READ},
                                            [BACK_IN] = {in, GR_READ},
                                            [BACK_ACTS] = {acts, GR_READ},
                                            [BACK_DX] = {o->dx, GR_UPDATE},
                                            [BACK_GRADS] = grads(w, 1 + l, true),
                                            [BACK_WS] = {back_ws, GR_WRITE},
                                            [BACK_PULL] = {o->pull, GR_READ},
                                            [BACK_ADAPTERS] = {its_adapters, GR_READ},
                                            [BACK_CARRIED] = {o->carried, GR_READ},
                                            [BACK_D_CARRIED] = {o->d_carried, last ? GR_WRITE : GR_UPDATE}},
                                 N_BACK, "%sbackward.%u", w->pass.all, l);
    layer_cost(w, task, l, 2);
    adapters_cost(w, task, l);
    reduce(w, 1 + l);
}

/* What the loss and the metrics read of all tokens of a mini-batch. */
static void share_current(declaring *w)
{
    gr_sharding_share(w->p, w->o.current);
    gr_sharding_share(w->p, w->o.entropy);
    gr_sharding_share(w->p, w->o.divergence);
}

/* Whether its passes gather weights, its own or a teacher's. */
static bool gathers(const declaring *w)
{
    const gr_node *teacher = gr_node_teacher(w->n);
    return gr_sharding_gathers(w->p, w->n->model) || (teacher && gr_sharding_gathers(w->p, teacher->model));
}

/* A pass over the whole mini-batch before those with gradients; head: for its values, too. */
static void declare_pass_before(declaring *w, bool head)
{
    const train_objects *o = &w->o;
    uint32_t trips =
        w->shape.micro.trips * GR_MAX(w->p->leaves, 1u); /* leaves one after another need no fewer */
    if (interleaves(w))
        gr_tasks_run(w->p, TRAIN_STAGES_BEGIN, 0, (gr_use[]){{o->x, GR_WRITE}}, 1, "begin_fresh");
    gr_sharding_loop(w->p, TRAIN_LOOP_MICRO, gr_stages_trips(&w->stages, trips, false),
                     piped(w) || gathers(w), o->rows, "fresh_micro_batches")
        ->loop.trips_expected = gr_stages_full_trips(&w->stages, w->cost.trips);
    w->pass = current_pass;
    declare_pack(w);
    for (uint32_t l = 0; l < n_layers(w); l++) declare_layer(w, l, false);
    if (piped(w) && !interleaves(w)) exchange(w, true);
    if (head) declare_head(w, false);
    w->pass = each_pass;
    gr_tasks_end(w->p);
    if (!balances(w)) return;
    gr_tally_declare_take(w->p, w->n, &o->tally, TRAIN_TALLY);
    gr_tasks_run(w->p, TRAIN_PULL, 0,
                 (gr_use[]){[PULL_TALLY] = {o->tally.tally, GR_READ}, [PULL_OUT] = {o->pull, GR_WRITE}},
                 N_PULL, "pull");
}

/* Mini-batch-coupled losses: every fresh value first, then the adjoint of every token. */
static void declare_forward_pass(declaring *w)
{
    const train_objects *o = &w->o;
    declare_pass_before(w, true);
    share_current(w);
    run_with_columns(w, TRAIN_ADJOINT,
                     (gr_use[]){[LOSS_MINI] = {o->mini, GR_UPDATE | GR_BY_CODE},
                                [LOSS_STORE] = {o->store, GR_READ},
                                [LOSS_WS] = {o->loss_ws[GR_LOSS_ADJOINT], GR_WRITE},
                                [LOSS_CURRENT] = {o->current, GR_READ},
                                [LOSS_ENTROPY] = {o->entropy, GR_READ},
                                [LOSS_DIVERGENCE] = {o->divergence, GR_READ},
                                [LOSS_D_CURRENT] = {o->d_current, GR_UPDATE},
                                [LOSS_D_ENTROPY] = {o->d_entropy, GR_UPDATE},
                                [LOSS_D_DIVERGENCE] = {o->d_divergence, GR_UPDATE},
                                [LOSS_DATA] = {o->data, GR_READ},
                                [LOSS_DATA_HOST] = {o->data_host, GR_READ | GR_BY_TURNS}},
                     N_LOSS, "adjoint");
}

static void declare_micro_batch(declaring *w)
{
    const train_objects *o = &w->o;
    declare_pack(w);
    for (uint32_t l = 0; l < n_layers(w); l++) declare_layer(w, l, true);
    declare_head(w, true);
    if (piped(w) && !interleaves(w)) {
        declare_pack_back(w);
        exchange(w, true);
    }
    for (uint32_t l = n_layers(w); l-- > 0;) declare_backward(w, l);
    declare_per_layer_back(w);
    if (!is_trained(w, 0)) return;
    gr_tasks_run(w->p, TRAIN_EMBED_BACKWARD, 0,
                 (gr_use[]){[EMBED_BACK_PACKED] = {packed_back(w), GR_READ},
                            [EMBED_BACK_DX] = {o->dx, GR_READ},
                            [EMBED_BACK_GRADS] = grads(w, 0, !w->s->tied),
                            [EMBED_BACK_WS] = {o->embed_back_ws, GR_WRITE}},
                 N_EMBED_BACK, "%sembed_backward", w->pass.all);
    gr_embed_exchange_cost(&w->p->task[w->p->n_tasks - 1], w->k, w->n, slice_tokens(w));
    reduce(w, 0);
}

static void gather_stages(declaring *w)
{
    for (uint32_t i = 0; i < w->stages.pieces && piped(w); i++) {
        gr_piece_gather(w->p, w->k, w->n, &w->stages, i);
        gr_piece_take_adapters(w->p, w->k, w->n, &w->stages, i);
    }
}

/* What lives through all micro-batches: gradients, and what those on their way leave on a rank. */
static void begin_stages(declaring *w)
{
    const uint32_t layers = n_layers(w), pieces = w->stages.pieces;
    gr_use *kept = gr_arena_alloc(w->p->arena, (2 * layers + 2) * sizeof(*kept));
    uint32_t n = 0;
    for (uint32_t i = 0; i < pieces; i++) {
        const uint32_t sums = grads(w, i, true).object;
        if (sums != GR_NONE)
            gr_tasks_run(w->p, TRAIN_ZERO, i, (gr_use[]){[ZERO_GRADS] = {sums, GR_WRITE}}, N_ZERO,
                         "zero_stage.%u", i);
    }
    kept[n++] = (gr_use){w->o.dx, GR_WRITE};
    if (interleaves(w)) kept[n++] = (gr_use){w->o.x, GR_WRITE};
    for (uint32_t l = 0; l < layers; l++) {
        kept[n++] = (gr_use){layer_in(w, l), GR_WRITE};
        if (!recomputed(w, l)) kept[n++] = (gr_use){layer_acts(w, l), GR_WRITE};
    }
    gr_tasks_run(w->p, TRAIN_STAGES_BEGIN, 0, kept, n, "begin_stages");
}

/* There are more trips than micro-batches: while the first come to the last stage, and the last go back. */
static void declare_stages(declaring *w)
{
    const uint32_t trips = gr_stages_trips(&w->stages, w->shape.micro.trips, true);
    begin_stages(w);
    gr_sharding_loop(w->p, TRAIN_LOOP_STAGES, trips, true, w->o.rows, "micro_batches")->loop.trips_expected =
        gr_stages_full_trips(&w->stages, w->cost.trips);
    declare_micro_batch(w);
    gr_tasks_end(w->p);
    for (uint32_t i = w->stages.pieces; i-- > 0;) gr_piece_reduce(w->p, w->k, w->n, &w->stages, i);
}

/* Of whole gradients the last one stands behind the loop of the others: they are reduced beside its backward
 * pass, each bucket's as they are complete. */
static void declare_micro_batches(declaring *w)
{
    const uint32_t behind = w->how->whole_grads, most = w->shape.micro.trips;
    bool collectives = reduces_each(w) || gathers(w);
    gr_sharding_loop(w->p, behind ? TRAIN_LOOP_BUT_LAST : TRAIN_LOOP_MICRO, GR_MAX(most - behind, 1u),
                     collectives, w->o.rows, "micro_batches")
        ->loop.trips_expected = w->cost.trips - behind;
    declare_micro_batch(w);
    gr_tasks_end(w->p);
    if (!behind) return;
    add_pass_objects(w, last_pass);
    declare_micro_batch(w);
}

/* Leaf after leaf, each with its micro-batches, onto the tree of those before; then the sum of all. */
static void declare_leaves(declaring *w)
{
    const gr_model *m = w->n->model;
    uint32_t n = gr_train_last(m) + 1;
    for (uint32_t b = gr_train_first(m); b < n && w->p->leaves > 1; b++)
        gr_tasks_run(w->p, TRAIN_CLEAR, b,
                     (gr_use[]){[CLEAR_TREE] = {gr_sharding_tree(w->p, w->k, m, b), GR_WRITE}}, N_CLEAR,
                     "clear.%u", b);
    gr_tasks_loop(w->p, TRAIN_LOOP_MINI, w->p->leaves, false, "leaves");
    for (uint32_t b = gr_train_first(m); b < n; b++)
        gr_tasks_run(w->p, TRAIN_LEAF, b,
                     (gr_use[]){[LEAF_GRADS] = {gr_sharding_whole(w->p, w->k, m, b), GR_WRITE},
                                [LEAF_ROWS] = {w->o.rows, GR_READ}},
                     N_LEAF, "leaf.%u", b);
    declare_micro_batches(w);
    for (uint32_t b = gr_train_first(m); b < n; b++)
        gr_tasks_run(w->p, TRAIN_FOLD, b,
                     (gr_use[]){[FOLD_GRADS] = {gr_sharding_whole(w->p, w->k, m, b), GR_UPDATE},
                                [FOLD_TREE] = {gr_sharding_tree(w->p, w->k, m, b), GR_UPDATE}},
                     N_FOLD, "fold.%u", b);
    gr_tasks_end(w->p);
    for (uint32_t b = gr_train_first(m); b < n; b++) {
        gr_sharding_reduce(w->p, w->k, m, b, false);
        if (gr_placed(w->p, m)->shards < 2)
            gr_tasks_run(w->p, TRAIN_SUM, b,
                         (gr_use[]){[SUM_LEAVES] = {gr_sharding_whole(w->p, w->k, m, b), GR_READ},
                                    [SUM_GRADS] = {grad_sums(w, b), GR_UPDATE}},
                         N_SUM, "sum.%u", b);
    }
}

/* How many sums of squares a bucket has. */
static uint32_t norm_parts(const declaring *w)
{
    return w->p->leaves ? GR_LEAVES : 1;
}

static double grad_bytes(const declaring *w, uint32_t bucket)
{
    const gr_model *m = w->n->model;
    return (double)(gr_bucket_elems(gr_model_trains(m), bucket) * gr_dtype_size(m->train.grads));
}

/* What a mini-batch begins to add up: the rank's shard, or all. */
static void declare_zero(declaring *w)
{
    const gr_model *m = w->n->model;
    const bool whole = w->how->whole_grads;
    const uint32_t parts = whole ? 1 : gr_placed(w->p, m)->shards;
    for (uint32_t b = gr_train_first(m); b <= gr_train_last(m); b++) {
        uint32_t sums = whole ? gr_sharding_whole(w->p, w->k, m, b) : grad_sums(w, b);
        gr_tasks_run(w->p, TRAIN_ZERO, b, (gr_use[]){[ZERO_GRADS] = {sums, GR_WRITE}}, N_ZERO, "zero.%u", b)
            ->cost.bytes = grad_bytes(w, b) / parts;
    }
}

/* State is read and written; weights are written, and read where they are their own master or a half of it.
 */
static double step_bytes(const declaring *w, uint32_t bucket)
{
    gr_state_bytes state = gr_state_bytes_of(w->k, w->n->model, bucket, 1);
    double weights = (double)gr_part_bytes(w->k, w->n->model, gr_part_stepped(w->n->model), bucket);
    return grad_bytes(w, bucket) + 2.0 * (double)(state.master + state.moments * state.moment) +
           (state.form == GR_MASTER_F32 ? 1 : 2) * weights;
}

/* Moments of 8 bits are arithmetic to a host, not memory: on one thread a step with them takes 2.5 times one
 * with fp32 moments and master, of 28 bytes (docs/PERFORMANCE.md). */
static double coding_bytes(const declaring *w, uint32_t bucket)
{
    return 2.5 * 28 * (double)gr_bucket_elems(gr_model_trains(w->n->model), bucket);
}

/* And to a GPU as much arithmetic as memory: with them an element takes as long as 30 bytes of a copy, of
 * which it reads and writes 14 to 22 (docs/PERFORMANCE.md, an H200). */
static double device_bytes(const declaring *w, uint32_t bucket)
{
    const double bytes = step_bytes(w, bucket),
                 coded = 30 * (double)gr_bucket_elems(gr_model_trains(w->n->model), bucket);
    return w->k->queued && w->n->model->train.moments == GR_I8 ? GR_MAX(bytes, coded) : bytes;
}

/* What is summed over nodes is declared one bucket ahead of the norm that reads it: the sum of the next one
 * runs beside it. */
static void declare_norms(declaring *w)
{
    const gr_model *m = w->n->model;
    const uint32_t first = gr_train_first(m), n = gr_train_last(m) + 1, shards = gr_placed(w->p, m)->shards;
    for (uint32_t b = first; b <= n; b++) {
        if (b < n) gr_sharding_replicas(w->p, w->k, m, b);
        if (b == first) continue;
        gr_tasks_run(w->p, TRAIN_NORM, b - 1,
                     (gr_use[]){[NORM_GRADS] = {grad_sums(w, b - 1), GR_READ},
                                [NORM_SUMS] = {w->o.norm, b > first + 1 ? GR_UPDATE : GR_WRITE}},
                     N_NORM, "norm.%u", b - 1)
            ->cost.bytes = grad_bytes(w, b - 1) / shards;
    }
}

/* Whether a bucket has a bias that follows its experts' load. */
static bool rebalances(const declaring *w, uint32_t bucket)
{
    return ((const gr_update_cfg *)w->n->cfg)->router_bias_update_rate > 0 &&
           gr_tensor_offset(w->s, bucket, GR_T_SELECTION) != UINT64_MAX;
}

/* ---- muon ---- */

/* What its matrices take to be made orthogonal, one after another: the largest workspace; operations of all.
 */
static uint64_t muon_room(const declaring *w, uint32_t bucket, double *flops)
{
    gr_tensor t[GR_BUCKET_TENSORS_MAX];
    uint64_t most = 0;
    *flops = 0;
    for (size_t i = gr_bucket_samples(w->s, bucket, t); i-- > 0;) {
        if (!gr_muon_steps(w->s, bucket, &t[i])) continue;
        most = GR_MAX(most, gr_muon_ws_bytes(w->k, t[i].rows, t[i].cols, w->how->threads));
        *flops += gr_sample_stands(w->s, bucket, &t[i]) * gr_muon_flops(t[i].rows, t[i].cols);
    }
    return most;
}

/* The direction of a bucket's matrices, whole on each rank: momentum's shards, gathered, then made
 * orthogonal. GR_NONE where it has none. */
static uint32_t declare_muon(declaring *w, uint32_t b)
{
    const gr_model *m = w->n->model;
    double flops;
    const uint64_t room = m->train.optimizer == GR_OPTIM_MUON ? muon_room(w, b, &flops) : 0;
    if (!room) return GR_NONE;
    const uint64_t bytes = gr_part_bytes(w->k, m, gr_part_stepped(m), b);
    const uint32_t x = gr_tasks_temp(w->p, GR_CAT_WORKSPACE, bytes, "muon.%u", b),
                   ws = gr_tasks_temp(w->p, GR_CAT_WORKSPACE, room, "muon_ws.%u", b);
    gr_task *t =
        gr_tasks_run(w->p, TRAIN_MIX, b,
                     (gr_use[]){[STEP_WEIGHTS] = {x, GR_WRITE},
                                [STEP_GRADS] = {grad_sums(w, b), GR_READ},
                                [STEP_STATE] = {gr_model_object(w->p, w->k, m, GR_PART_STATE, b), GR_UPDATE},
                                [STEP_NORM] = {w->o.norm, GR_READ}},
                     STEP_NORM + 1, "mix.%u", b);
    t->cost.bytes = (grad_bytes(w, b) + 3.0 * (double)bytes) / gr_placed(w->p, m)->shards;
    gr_sharding_unite(w->p, w->k, m, x, b);
    t = gr_tasks_run(w->p, TRAIN_ORTHOGONALIZE, b,
                     (gr_use[]){[ORTHOGONALIZE_X] = {x, GR_UPDATE}, [ORTHOGONALIZE_WS] = {ws, GR_WRITE}},
                     N_ORTHOGONALIZE, "orthogonalize.%u", b);
    t->cost.flops = flops;
    t->cost.bytes = 30.0 * (double)bytes;
    return x;
}

/* An optimizer step has a launch for each. */
static double count_ranges(const gr_model_shape *s, uint32_t bucket)
{
    gr_tensor t[GR_BUCKET_TENSORS_MAX];
    double sum = 0;
    for (size_t i = gr_bucket_samples(s, bucket, t); i-- > 0;) sum += gr_sample_stands(s, bucket, &t[i]);
    return sum;
}

static void declare_step(declaring *w)
{
    const train_objects *o = &w->o;
    const gr_model *m = w->n->model;
    uint32_t n = gr_model_buckets(w->s), shards = gr_placed(w->p, m)->shards;
    declare_norms(w);
    if (shards > 1) gr_sharding_total(w->p, o->norm, n * norm_parts(w), "reduce_norm");
    if (shards > 1)
        gr_tasks_run(w->p, TRAIN_CLIP, 0, (gr_use[]){[CLIP_SUMS] = {o->norm, GR_UPDATE}}, N_CLIP, "clip");
    for (uint32_t b = gr_train_first(m); b <= gr_train_last(m); b++) {
        uint32_t state = gr_model_object(w->p, w->k, m, GR_PART_STATE, b);
        const uint32_t muon = declare_muon(w, b);
        gr_task *step = gr_tasks_run(
            w->p, TRAIN_STEP, b,
            (gr_use[]){[STEP_WEIGHTS] = {gr_model_object(w->p, w->k, m, gr_part_stepped(m), b), GR_UPDATE},
                       [STEP_GRADS] = {grad_sums(w, b), GR_READ},
                       [STEP_STATE] = {state, GR_UPDATE},
                       [STEP_NORM] = {o->norm, GR_READ}, /* whose last work says how gradients are clipped */
                       [STEP_TALLY] = {rebalances(w, b) ? o->tally.tally : GR_NONE, GR_READ},
                       [STEP_MUON] = {muon, GR_READ}},
            N_STEP, "step.%u", b);
        step->cost.bytes = device_bytes(w, b) / shards;
        step->cost.launches = count_ranges(gr_model_trains(m), b);
        if (m->train.moments == GR_I8) step->cost.host_bytes = coding_bytes(w, b) / shards;
        if (w->how->host_step) step->uses.host_with = state;
        gr_sharding_stepped(w->p, w->k, m, b);
    }
    gr_tasks_waits(run_with_columns(w, TRAIN_FINISH,
                                    (gr_use[]){[LOSS_MINI] = {o->mini, GR_UPDATE},
                                               [LOSS_STORE] = {o->store, GR_READ},
                                               [LOSS_WS] = {o->loss_ws[GR_LOSS_VALUE], GR_WRITE},
                                               [LOSS_CURRENT] = {o->current, GR_READ},
                                               [LOSS_ENTROPY] = {o->entropy, GR_READ},
                                               [LOSS_DIVERGENCE] = {o->divergence, GR_READ},
                                               [LOSS_D_CURRENT] = {o->d_current, GR_READ},
                                               [LOSS_D_ENTROPY] = {o->d_entropy, GR_READ},
                                               [LOSS_D_DIVERGENCE] = {o->d_divergence, GR_READ},
                                               [LOSS_DATA] = {o->data, GR_READ},
                                               [LOSS_DATA_HOST] = {o->data_host, GR_READ},
                                               [LOSS_VALUES] = {o->values, GR_WRITE},
                                               [LOSS_BACK] = {o->back, GR_WRITE}},
                                    N_FINISH, "finish"));
}

/* What passes compute with, where it is made of the weights. */
static void declare_weights(declaring *w)
{
    gr_merge_declare(w->p, w->k, w->n->model, w->how->threads);
    if (gr_node_fp8(w->n)) gr_quantize_declare(w->p, w->k, w->n->model, false);
}

void gr_train_declare(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                      gr_tasks *p)
{
    declaring w = {
        .g = g, .n = n, .how = how, .k = k, .p = p, .s = &n->model->shape, .layers = gr_node_shape(n)};
    w.shape = gr_train_shape_of(n, how);
    w.bounds = gr_pass_bounds_of(&w.shape.micro, &n->rows->bounds, how);
    if (gr_model_has_lora(n->model)) w.bounds.adapters = &n->model->lora.shape;
    w.cost = gr_micro_cost_of(&w.shape.micro, &n->rows->bounds, w.shape.own_seqs);
    w.stages = gr_stages_of(n);
    w.kept = gr_train_kept_of(n, how, k);
    gr_train_reads(&w.reads, g, n);
    add_objects(&w);
    const gr_update_cfg *c = n->cfg;
    const uint32_t steps = c->epochs * w.shape.mini_batches;
    gr_placement *const at = gr_placed(p, n->model);
    declare_weights(&w);
    const unsigned made = at->made & (GR_MADE_MERGED | (gr_node_fp8(n) ? GR_MADE_FP8 : 0));
    gr_tasks_loop(p, TRAIN_LOOP_MINI, steps, false, "mini_batches");
    if (!how->whole_grads && !piped(&w)) declare_zero(&w);
    if (w.o.tally.tally != GR_NONE)
        gr_tasks_run(p, TRAIN_TALLY_CLEAR, 0, (gr_use[]){[CLEAR_TALLY] = {w.o.tally.tally, GR_WRITE}},
                     N_CLEAR_TALLY, "clear_tally");
    declare_prepare(&w);
    gather_stages(&w);
    if (w.shape.role == GR_LOSS_BATCH)
        declare_forward_pass(&w);
    else if (balances(&w))
        declare_pass_before(&w, false);
    if (how->whole_grads) declare_zero(&w); /* they are large: not sooner than needed */
    if (p->leaves)
        declare_leaves(&w);
    else if (piped(&w))
        declare_stages(&w);
    else
        declare_micro_batches(&w);
    if (w.shape.role != GR_LOSS_BATCH) share_current(&w);
    if (!balances(&w)) gr_tally_declare_take(p, n, &w.o.tally, TRAIN_TALLY);
    declare_step(&w);
    if (steps > 1) declare_weights(&w); /* of the next one, or behind the last */
    gr_tasks_end(p);
    if (steps > 1) at->made |= made;
    gr_env_reads_release(&w.reads);
}
