/* ops/rollout_ahead.c: drafts of a layer that predicts a further token: what a plan has of it, and how it
 * runs where the device is fed step by step. Where the device keeps the state of steps, ops/rollout_steps.c
 * runs it.
 *
 * Behind each step of the model the layer reads the step's hidden states, each beside the token that stands
 * behind it: of the prompt's part that was read, and of the sampled tokens that count. What it keeps of these
 * lies in blocks of its own behind the model's, by the same tables, so that samples of a prompt share it. At
 * a sample's last token it predicts the one behind the token that was just sampled: the first that is
 * drafted. Further passes read that, beside what the layer gave, for the next one, of samples that are to
 * draft more; what they keep is overwritten by the next step.
 */
#include "ops/rollout_impl.h"

#include "ops/kernels/ahead.h"
#include "ops/model/ahead.h"
#include "ops/model/arch.h"
#include "ops/parallel/sharding.h"

/* ---- declaring -------------------------------------------------------------------------------------------
 */

enum { ENTER_EMBED, ENTER_WEIGHTS, ENTER_STEP, ENTER_HIDDEN, ENTER_X, ENTER_WS, N_ENTER };
enum { LAYER_WEIGHTS, LAYER_STEP, LAYER_X, LAYER_KV, LAYER_WS, N_LAYER };
enum {
    HEAD_NORM,
    HEAD_LAST, /* of these the one that has the output matrix */
    HEAD_EMBED,
    HEAD_STEP,
    HEAD_STAGING,
    HEAD_X,
    HEAD_HIDDEN,
    HEAD_WS,
    N_HEAD
};

/* The one layer alone needs room for; its state is paged. */
static gr_state_room room_of(const gr_node *n, const gr_choices *how, const gr_kernels *k)
{
    return (gr_state_room){.blocks = gr_rollout_room(n, how, k).blocks};
}

uint64_t gr_rollout_ahead_kv(const gr_node *n, const gr_choices *how, const gr_kernels *k)
{
    return gr_rollout_ahead(n, how) ? gr_layer_state_at(k, &n->second->shape, 1, room_of(n, how, k)) : 0;
}

uint32_t gr_rollout_ahead_hidden(gr_tasks *p, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                                 uint32_t tokens)
{
    if (!gr_rollout_ahead(n, how)) return GR_NONE;
    return gr_tasks_temp(p, GR_CAT_ACTIVATIONS, gr_hidden_bytes(k, &n->second->shape, tokens), "hidden");
}

uint32_t gr_rollout_ahead_weights(gr_tasks *p, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                                  uint32_t bucket)
{
    return gr_rollout_ahead(n, how) ? gr_sharding_rollout(p, k, n->second, bucket) : GR_NONE;
}

uint64_t gr_rollout_ahead_ws(const gr_node *n, const gr_choices *how, const gr_kernels *k,
                             const gr_pass_bounds *b)
{
    const gr_model_shape *s = &n->second->shape;
    return gr_rollout_ahead(n, how) ? GR_MAX(gr_ahead_ws_bytes(k, s, b->tokens, how->threads),
                                             gr_layers_ws_bytes(k, s, b, GR_LAYER_EXTEND))
                                    : 0;
}

/* Temporary objects of all passes. */
typedef struct temps {
    uint32_t enter, layer, head;
} temps;

static temps temps_of(const gr_node *n, const gr_choices *how, const gr_kernels *k, gr_tasks *p,
                      uint32_t tokens)
{
    const gr_model_shape *s = &n->second->shape;
    const gr_pass_bounds pass = {.tokens = tokens,
                                 .seqs = GR_MIN(how->concurrent, n->placement.task.seqs) + 1,
                                 .length = n->bounds.prompt_tokens + n->bounds.response_tokens,
                                 .threads = how->threads};
    return (temps){
        gr_tasks_temp(p, GR_CAT_WORKSPACE, gr_ahead_ws_bytes(k, s, tokens, how->threads), "ahead_enter_ws"),
        gr_tasks_temp(p, GR_CAT_WORKSPACE, gr_layers_ws_bytes(k, s, &pass, GR_LAYER_EXTEND), "ahead_ws"),
        gr_tasks_temp(p, GR_CAT_WORKSPACE, k->head_ws_bytes(s, how->head_rows, GR_HEAD_SAMPLE, how->threads),
                      "ahead_head_ws")};
}

static void enter_cost(gr_task *w, const gr_kernels *k, const gr_model_shape *s, double tokens)
{
    const double h = s->hidden, size = (double)gr_dtype_size(k->dtype);
    w->cost.flops = 4 * tokens * h * h;
    w->cost.bytes = size * (2 * h * h + 8 * tokens * h);
    w->cost.rows = (uint32_t)GR_MAX(lround(tokens), 1);
    w->cost.width = s->hidden;
}

static void layer_cost(gr_task *w, const gr_kernels *k, const gr_model_shape *s, double tokens, double length)
{
    gr_layer_cost(w, k, s, 0, tokens, length, 1);
    gr_experts_price(w, k, s, 0, tokens, 0, 0);
}

void gr_rollout_ahead_cost(gr_task *w, const gr_node *n, const gr_kernels *k, double tokens, double length,
                           double times)
{
    gr_task enter = {0}, layer = {0};
    enter_cost(&enter, k, &n->second->shape, tokens);
    layer_cost(&layer, k, &n->second->shape, tokens, length);
    gr_cost_times(&enter, times);
    gr_cost_times(&layer, times);
    gr_cost_add(w, &enter);
    gr_cost_add(w, &layer);
}

static void declare_enter(const gr_node *n, const gr_choices *how, const gr_kernels *k, gr_tasks *p,
                          const gr_ahead_objects *o, const temps *t, uint32_t pass, double tokens)
{
    gr_task *w = gr_tasks_run(
        p, ROLLOUT_AHEAD_ENTER, pass,
        (gr_use[]){[ENTER_EMBED] = {gr_rollout_weights(p, n, k, 0), GR_READ},
                   [ENTER_WEIGHTS] = {gr_rollout_ahead_weights(p, n, how, k, GR_AHEAD_ENTER), GR_READ},
                   [ENTER_STEP] = {o->step, GR_READ},
                   [ENTER_HIDDEN] = {o->hidden, GR_READ},
                   [ENTER_X] = {o->x, GR_WRITE},
                   [ENTER_WS] = {t->enter, GR_WRITE}},
        N_ENTER, "ahead.%u.enter", pass);
    enter_cost(w, k, &n->second->shape, tokens);
}

static void declare_layer(const gr_node *n, const gr_choices *how, const gr_kernels *k, gr_tasks *p,
                          const gr_ahead_objects *o, const temps *t, uint32_t pass, double tokens)
{
    gr_task *w = gr_tasks_run(
        p, ROLLOUT_AHEAD_LAYER, pass,
        (gr_use[]){[LAYER_WEIGHTS] = {gr_rollout_ahead_weights(p, n, how, k, GR_AHEAD_LAYER), GR_READ},
                   [LAYER_STEP] = {o->step, GR_READ},
                   [LAYER_X] = {o->x, GR_UPDATE},
                   [LAYER_KV] = {o->kv, GR_UPDATE},
                   [LAYER_WS] = {t->layer, GR_WRITE}},
        N_LAYER, "ahead.%u.layer", pass);
    layer_cost(w, k, &n->second->shape, tokens, 2 * o->context);
    w->cost.paged = true;
}

static void declare_head(const gr_node *n, const gr_choices *how, const gr_kernels *k, gr_tasks *p,
                         const gr_ahead_objects *o, const temps *t, uint32_t pass)
{
    const gr_model_shape *s = gr_node_shape(n);
    const uint32_t last = s->tied ? GR_NONE : gr_rollout_weights(p, n, k, 1 + s->layers);
    gr_head_cost(
        gr_tasks_run(
            p, ROLLOUT_AHEAD_HEAD, pass,
            (gr_use[]){[HEAD_NORM] = {gr_rollout_ahead_weights(p, n, how, k, GR_AHEAD_NORM), GR_READ},
                       [HEAD_LAST] = {last, GR_READ},
                       [HEAD_EMBED] = {s->tied ? gr_rollout_weights(p, n, k, 0) : GR_NONE, GR_READ},
                       [HEAD_STEP] = {o->step, GR_UPDATE},
                       [HEAD_STAGING] = {o->staging, GR_UPDATE},
                       [HEAD_X] = {o->x, GR_READ},
                       [HEAD_HIDDEN] = {o->hidden, GR_UPDATE},
                       [HEAD_WS] = {t->head, GR_WRITE}},
            N_HEAD, "ahead.%u.head", pass),
        k, s, o->running, 1);
}

void gr_rollout_declare_ahead(const gr_node *n, const gr_choices *how, const gr_kernels *k, gr_tasks *p,
                              const gr_ahead_objects *o)
{
    const temps t = temps_of(n, how, k, p, o->tokens);
    for (uint32_t pass = 0; pass < how->draft; pass++) {
        const double tokens = pass ? o->running : o->fed;
        declare_enter(n, how, k, p, o, &t, pass, tokens);
        declare_layer(n, how, k, p, o, &t, pass, tokens);
        declare_head(n, how, k, p, o, &t, pass);
    }
}

/* ---- running ---------------------------------------------------------------------------------------------
 */

void *gr_rollout_ahead_state(const gr_call *c, void *kv)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = gr_node_shape(c->node);
    return (char *)kv + gr_layer_state_at(k, s, s->layers, gr_rollout_room(c->node, c->how, k));
}

void gr_rollout_ahead_copy(const gr_call *c, const gr_rollout *r, void *kv)
{
    if (gr_rollout_ahead(c->node, c->how) && r->n_copies)
        gr_layer_copy_blocks(c->session->kernels, c->queue, &c->node->second->shape, 0,
                             gr_rollout_ahead_state(c, kv), r->copy[0].from, r->copy[0].to, r->n_copies);
}

const void *gr_rollout_ahead_norm(const gr_call *c, const void *bucket)
{
    return (const char *)bucket + gr_tensor_offset(&c->node->second->shape, GR_AHEAD_NORM, GR_T_NORM) *
                                      gr_dtype_size(c->session->kernels->dtype);
}

/* n tokens of a sequence of whose `cached` are in the pool; columns: of the table. */
static void add_tokens(gr_rollout *r, gr_step_arrays *a, const int32_t *ids, uint32_t n, uint32_t cached,
                       const uint32_t *table)
{
    const uint32_t seq = r->ahead.n_seqs++, stride = r->bounds.stride;
    memcpy(a->ids + r->ahead.n_tokens, ids, n * sizeof(*ids));
    memcpy(a->table + (size_t)seq * stride, table, gr_blocks_of(cached + n) * sizeof(*table));
    a->offset[seq] = r->ahead.n_tokens;
    a->cached[seq] = cached;
    a->offset[seq + 1] = r->ahead.n_tokens += n;
}

static void write_pass(const gr_call *c, const gr_rollout *r, void *step, const gr_step_arrays *from)
{
    const gr_step_arrays to = gr_rollout_arrays_at(step, &r->bounds);
    gr_rollout_write_arrays(r, c->queue, &to, from,
                            (gr_step_size){r->ahead.n_tokens, r->ahead.n_seqs, r->ahead.n_rows});
}

/* Rows of hidden states, the place of the next one. */
static void *row_at(const gr_call *c, const void *rows, uint32_t i)
{
    return (char *)rows +
           (uint64_t)i * c->node->second->shape.hidden * gr_dtype_size(c->session->kernels->dtype);
}

/* n of the model's rows from `row` on, behind its last norm, become the next hidden states. */
static void add_hidden(const gr_call *c, const gr_rollout *r, const gr_ahead_begin *b, uint32_t row,
                       uint32_t n)
{
    gr_ahead_norm(c->session->kernels, c->queue, &c->node->second->shape, b->norm, row_at(c, b->x, row), n,
                  row_at(c, b->hidden, r->ahead.n_tokens));
}

void gr_rollout_begin_ahead(const gr_call *c, gr_rollout *r, const gr_rows *rows, const gr_ahead_begin *b)
{
    gr_step_arrays a = gr_rollout_arrays_at(b->staging, &r->bounds);
    memset(&r->ahead, 0, sizeof(r->ahead));
    for (uint32_t i = 0; i < r->n_slots; i++) {
        gr_rollout_slot *s = &r->slots[i];
        s->n_ahead = s->wants_ahead = 0;
        if (!s->fed) continue;
        const uint32_t room = i < r->n_running ? gr_rollout_draft_room(r, s, rows) : 0;
        if (room && gr_draft_now(&s->drafts)) s->wants_ahead = GR_MIN(room, c->how->draft);
        add_hidden(c, r, b, s->row, s->fed);
        add_tokens(r, &a, gr_rows_ids(rows, s->seq) + s->fed_at + 1, s->fed, s->fed_at, s->table);
        if (s->wants_ahead) a.row[r->ahead.n_rows++] = r->ahead.n_tokens - 1;
    }
    if (r->n_prefill) {
        add_hidden(c, r, b, r->n_rows, r->n_prefill);
        add_tokens(r, &a, gr_rows_ids(rows, r->prefill_seq) + r->prefill_at + 1, r->n_prefill, r->prefill_at,
                   r->prefill_table);
    }
    write_pass(c, r, b->step, &a);
}

/* What was drafted in this pass, and the next one: of samples that want more. */
static void take_drafts(const gr_call *c, gr_rollout *r)
{
    const gr_model_shape *s = &c->node->second->shape;
    const gr_kernels *k = c->session->kernels;
    const void *norm = gr_rollout_ahead_norm(c, c->ptr[HEAD_NORM]);
    gr_step_arrays a = gr_rollout_arrays_at(c->ptr[HEAD_STAGING], &r->bounds);
    uint32_t row = 0;
    memset(&r->ahead, 0, sizeof(r->ahead));
    for (uint32_t i = 0; i < r->n_running; i++) {
        gr_rollout_slot *slot = &r->slots[i];
        if (slot->wants_ahead <= c->arg) continue;
        slot->ahead[slot->n_ahead++] = r->out_id[row++];
        if (slot->wants_ahead == slot->n_ahead) continue;
        gr_ahead_again(k, c->queue, s, norm, c->ptr[HEAD_X], &a.row[row - 1], 1,
                       row_at(c, c->ptr[HEAD_HIDDEN], r->ahead.n_tokens));
        add_tokens(r, &a, &slot->ahead[c->arg], 1, slot->cached + c->arg, slot->table);
        a.row[r->ahead.n_rows++] = r->ahead.n_tokens - 1;
    }
    write_pass(c, r, c->ptr[HEAD_STEP], &a);
}

/* The most probable token of each row. */
static void run_head(const gr_call *c, gr_rollout *r)
{
    const gr_model_shape *s = gr_node_shape(c->node);
    const gr_kernels *k = c->session->kernels;
    const gr_step_arrays a = gr_rollout_arrays_at(c->ptr[HEAD_STEP], &r->bounds);
    const void *norm = gr_rollout_ahead_norm(c, c->ptr[HEAD_NORM]);
    const gr_sampling best = {.top_p = 1};
    const uint32_t n = r->ahead.n_rows;
    for (uint32_t at = 0, some; at < n; at += some) {
        some = GR_MIN(n - at, c->how->head_rows);
        k->head_sample(c->queue, s, norm, gr_head_matrix(k, s, c->ptr[HEAD_EMBED], c->ptr[HEAD_LAST]),
                       c->ptr[HEAD_X], a.row + at, some, &best, (const uint32_t(*)[2])(a.draw + at),
                       a.out_id + at, a.out_logprob + at, c->ptr[HEAD_WS]);
    }
    gr_device_read(c->queue, r->out_id, a.out_id, n * sizeof(*r->out_id));
    take_drafts(c, r);
}

void gr_rollout_run_ahead(const gr_call *c, gr_rollout *r)
{
    const gr_kernels *k = c->session->kernels;
    const gr_model_shape *s = &c->node->second->shape;
    if (!r->ahead.n_tokens) return;
    if (c->kernel == ROLLOUT_AHEAD_HEAD) {
        run_head(c, r);
        return;
    }
    const gr_step_arrays a =
        gr_rollout_arrays_at(c->ptr[c->kernel == ROLLOUT_AHEAD_ENTER ? ENTER_STEP : LAYER_STEP], &r->bounds);
    const gr_packed b = {
        .n_tokens = r->ahead.n_tokens, .n_seqs = r->ahead.n_seqs, .ids = a.ids, .offset = a.offset};
    const gr_extend e = {.n_tokens = b.n_tokens,
                         .n_seqs = b.n_seqs,
                         .ids = a.ids,
                         .offset = a.offset,
                         .cached = a.cached,
                         .block_table = a.table,
                         .table_stride = r->bounds.stride};
    if (c->kernel == ROLLOUT_AHEAD_ENTER)
        gr_ahead_enter(&(gr_ahead_call){k, c->queue, s, c->ptr[ENTER_EMBED], c->ptr[ENTER_WEIGHTS], &b,
                                        c->ptr[ENTER_HIDDEN], c->ptr[ENTER_WS]},
                       c->ptr[ENTER_X]);
    else
        gr_layer_extend(k, c->queue, s, 0, c->ptr[LAYER_WEIGHTS], &e, c->ptr[LAYER_X],
                        gr_rollout_ahead_state(c, c->ptr[LAYER_KV]), c->ptr[LAYER_WS]);
}
