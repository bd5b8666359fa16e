/* ops/kernels/layer.c: a layer of any kind on any device: norms, residuals, buffers and their order. What
 * stands between the norms is a part of its own (ops/kernels/layer_impl.h).
 */
#include "ops/kernels/layer_impl.h"

#include <assert.h>
#include <stdio.h>

#include "ops/model/fp8.h"
#include "runtime/comm/comm.h"

static const gr_layer_part *mixer_of(const gr_layer_desc *d)
{
    static const gr_layer_part *const parts[] = {[GR_MIXER_ATTENTION] = &gr_layer_attention,
                                                 [GR_MIXER_LATENT] = &gr_layer_latent,
                                                 [GR_MIXER_DELTA] = &gr_layer_delta};
    return parts[d->mixer];
}

static const gr_layer_part *mlp_of(const gr_layer_desc *d)
{
    static const gr_layer_part *const parts[] = {
        [GR_MLP_DENSE] = &gr_layer_dense, [GR_MLP_EXPERTS] = &gr_layer_experts};
    return gr_layer_is_beside(d) ? &gr_layer_beside : parts[d->mlp];
}

/* ---- tensors and products --------------------------------------------------------------------------------
 */

/* NULL, or where a projection's scales lie. */
static const void *fp8_tensor(const gr_layer_call *l, gr_tensor_slot slot, const float **scales)
{
    gr_fp8_tensor t;
    if (slot == GR_T_COUNT || !gr_fp8_tensor_at(l->s, l->bucket, slot, gr_dtype_size(l->k->dtype), &t))
        return NULL;
    if (scales) *scales = t.scales == UINT64_MAX ? NULL : (const void *)(l->w + t.scales);
    return l->w + t.at;
}

static bool is_sliced(const gr_layer_call *l)
{
    return l->s->parts > 1 && !l->whole;
}

/* A bias of what slices are summed to: the first of them adds it. */
static bool is_of_first(const gr_layer_call *l, gr_tensor_slot slot)
{
    const bool summed = slot == GR_T_O_BIAS || slot == GR_T_EXPERTS_DOWN_BIAS;
    return summed && is_sliced(l) && l->q->peers->comm->rank > 0;
}

const void *gr_layer_tensor(const gr_layer_call *l, gr_tensor_slot slot)
{
    if (is_of_first(l, slot)) return NULL;
    if (l->s->fp8) return fp8_tensor(l, slot, NULL);
    const uint64_t at = slot == GR_T_COUNT ? UINT64_MAX : gr_tensor_offset(l->s, l->bucket, slot);
    return at == UINT64_MAX ? NULL : l->w + at * gr_dtype_size(l->k->dtype);
}

void *gr_layer_grad(const gr_layer_call *l, gr_tensor_slot slot)
{
    const bool none = l->adapters || is_of_first(l, slot);
    const uint64_t at = none ? UINT64_MAX : gr_tensor_offset(l->s, l->bucket, slot);
    return at == UINT64_MAX ? NULL : l->grad + at * gr_dtype_size(l->grads);
}

gr_product gr_layer_product(const gr_layer_call *l, const void *x, uint32_t in, gr_tensor_slot slot,
                            gr_tensor_slot bias, uint32_t out)
{
    gr_product p = {.t = l->b.n,
                    .in = in,
                    .out = out,
                    .x = x,
                    .w = gr_layer_tensor(l, slot),
                    .bias = gr_layer_tensor(l, bias),
                    .step = l->b.decode != NULL,
                    .norm = l->norm.w && l->norm.x == x ? &l->norm : NULL,
                    .rounded = l->rounded && l->rounded == x};
    if (l->s->fp8) fp8_tensor(l, slot, &p.scales);
    p.dw_fp8 = l->s->fp8_gradients;
    return p;
}

uint64_t gr_layer_product_ws(const gr_layer_call *l, uint32_t in, uint32_t out)
{
    const bool back = l->use == GR_LAYER_BACKWARD;
    const uint64_t plain = l->ops->product_ws_bytes(l->bounds.tokens, in, out, l->bounds.threads, back);
    if (!l->s->fp8) return plain;
    const uint64_t fp8 = l->ops->fp8_ws_bytes(l->bounds.tokens, in, out, l->bounds.threads, back),
                   dw = back && l->s->fp8_gradients
                            ? l->ops->fp8_dw_ws_bytes(l->bounds.tokens, in, out, l->bounds.threads)
                            : 0;
    return GR_MAX(plain, GR_MAX(fp8, dw));
}

/* The call of the MLP's half, before gr_layer_half. */
static gr_layer_call mlp_call(const gr_layer_call *l)
{
    gr_layer_call own = *l;
    own.whole = l->d->mlp == GR_MLP_EXPERTS && l->d->experts.holders;
    return own;
}

gr_norm gr_layer_norm(const gr_layer_call *l, const void *x, gr_tensor_slot slot)
{
    return (gr_norm){l->b.n, l->s->hidden, x, gr_layer_tensor(l, slot), l->d->norm_eps, l->d->norm_plus_one};
}

/* Of a slice each rank has a part of the sum. */
static void sum_peers(const gr_layer_call *l, void *out)
{
    if (is_sliced(l))
        gr_tp_sum(l->q, out, (uint64_t)l->b.n * l->s->hidden * gr_dtype_size(l->k->dtype),
                  l->k->dtype == GR_F32 ? GR_COMM_SUM_F32 : GR_COMM_SUM_BF16);
}

/* out [T, H] is there: of a rank's own tokens, or of all tokens a part of the sum. */
static void close_rows(const gr_layer_call *l, void *out, const gr_layer_close *c)
{
    const gr_norm after = gr_layer_norm(l, out, c->after);
    const uint64_t n = (uint64_t)l->b.n * l->s->hidden, size = gr_dtype_size(l->k->dtype);
    if (c->keep && c->keep != out) l->k->copy(l->q, c->keep, out, n * size);
    if (l->d->norm_after) {
        l->ops->norm_add(l->q, &after, c->add, c->y);
        return;
    }
    if (c->y != c->add) l->k->copy(l->q, c->y, c->add, n * size);
    l->k->add(l->q, c->y, out, l->k->dtype, n);
}

/* Its scale is the sum's, too. */
static void close_gathered(const gr_layer_call *l, const gr_product *p, const gr_layer_ws *w,
                           const gr_layer_close *c)
{
    const float scale = l->d->norm_after ? 1 : l->s->residual_scale;
    l->ops->product(l->q, p, c->all, w->product);
    if (scale != 1) l->ops->scale(l->q, c->all, scale, (uint64_t)l->b.n * l->s->hidden, c->all);
    gr_layer_close_rows(l, c->all, c);
}

void gr_layer_close_product(const gr_layer_call *l, const gr_product *p, const gr_layer_ws *w,
                            const gr_layer_close *c)
{
    if (l->outer) {
        close_gathered(l, p, w, c);
        return;
    }
    void *out = c->keep ? c->keep : c->temp;
    const gr_norm after = gr_layer_norm(l, out, c->after);
    if (!l->d->norm_after) {
        l->ops->product_add(l->q, p, c->add, l->s->residual_scale, is_sliced(l), c->y, c->temp, w->product);
        return;
    }
    l->ops->product(l->q, p, out, w->product);
    sum_peers(l, out);
    l->ops->norm_add(l->q, &after, c->add, c->y);
}

void gr_layer_close_rows(const gr_layer_call *l, void *out, const gr_layer_close *c)
{
    if (!l->outer) {
        sum_peers(l, out);
        close_rows(l, out, c);
        return;
    }
    gr_layer_scatter(l->outer, out, c->staging);
    close_rows(l->outer, gr_layer_own(l->outer, out), c);
}

/* Those of a slot, [n] of list. */
static size_t adapters_of_slot(const gr_layer_call *l, const gr_model_shape *adapters, gr_tensor_slot slot,
                               gr_adapter list[GR_N_TARGETS])
{
    const size_t n = gr_adapters_of(l->s, adapters, l->bucket, list);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (list[i].slot == slot) list[kept++] = list[i];
    return kept;
}

static void adapters_back(const gr_layer_call *l, const gr_product *p, gr_tensor_slot slot, const void *dy,
                          const gr_layer_ws *w)
{
    const gr_adapter_desc *d = &l->adapters->shape->adapter;
    gr_adapter list[GR_N_TARGETS];
    const gr_adapters_back c = {.t = p->t,
                                .rank = d->rank,
                                .count = (uint32_t)adapters_of_slot(l, l->adapters->shape, slot, list),
                                .scale = d->scale,
                                .list = list,
                                .x = p->x,
                                .dy = dy,
                                .bucket = l->adapters->bucket,
                                .grad = l->grad,
                                .grads = l->grads};
    if (c.count) l->ops->adapters_back(l->q, &c, w->adapters);
}

/* The most that one slot's take. */
static uint64_t adapters_ws(const gr_layer_call *l)
{
    static const gr_tensor_slot slots[] = {GR_T_QKV, GR_T_O, GR_T_GATE_UP, GR_T_DOWN};
    const gr_model_shape *adapters = l->bounds.adapters;
    gr_adapter list[GR_N_TARGETS];
    uint64_t most = 0;
    for (size_t i = 0; i < GR_LEN(slots); i++) {
        const gr_adapters_back c = {.t = l->bounds.tokens,
                                    .rank = adapters->adapter.rank,
                                    .count = (uint32_t)adapters_of_slot(l, adapters, slots[i], list),
                                    .list = list};
        if (c.count) most = GR_MAX(most, l->ops->adapters_back_ws_bytes(&c, l->bounds.threads));
    }
    return most;
}

void gr_layer_product_back(const gr_layer_call *l, const gr_product *p, gr_tensor_slot slot,
                           gr_tensor_slot bias, const void *dy, void *dx, const gr_layer_ws *w)
{
    void *grad = gr_layer_grad(l, slot);
    const bool both = dx && !l->adapters && l->ops->product_back &&
                      l->ops->product_back(l->q, p, dy, dx, grad, l->grads, w->product);
    if (dx && !both) l->ops->product_dx(l->q, p, dy, dx, w->product);
    if (l->adapters) {
        adapters_back(l, p, slot, dy, w);
        return;
    }
    if (!both) l->ops->product_dw(l->q, p, dy, grad, l->grads, w->product);
    if (p->bias) l->ops->column_sums(l->q, dy, p->t, p->out, gr_layer_grad(l, bias), l->grads, w->scratch);
}

/* ---- buffers ---------------------------------------------------------------------------------------------
 */

void *gr_layer_rows(gr_workspace *c, const gr_layer_call *l, uint64_t values)
{
    return gr_workspace_bytes(c, l->bounds.tokens * values * gr_dtype_size(l->k->dtype));
}

void gr_layer_copy_columns(const gr_layer_call *l, void *to, const void *from, const gr_layer_copy *c)
{
    const uint64_t size = gr_dtype_size(l->k->dtype);
    (l->ops->copy_rows ? l->ops->copy_rows : l->k->copy_rows)(
        l->q, (char *)to + c->to * size, c->to_ld * size, (const char *)from + c->from * size,
        c->from_ld * size, c->n * size, l->b.n);
}

/* In a rollout some devices keep nothing and update x in place. */
static bool in_place(const gr_layer_call *l)
{
    return l->use == GR_LAYER_EXTEND && !l->ops->extends_packed;
}

static void acts_layout(gr_workspace *c, const gr_layer_call *l, gr_layer_acts *a)
{
    const bool keeps = l->d->norm_after && l->use != GR_LAYER_FORWARD && l->use != GR_LAYER_EXTEND;
    const gr_layer_call half = gr_layer_half(l), own = mlp_call(l), fed = gr_layer_half(&own);
    *a = (gr_layer_acts){0};
    mixer_of(l->d)->acts(c, &half, a);
    mlp_of(l->d)->acts(c, &fed, a);
    if (!in_place(l)) a->mid = gr_layer_rows(c, l, l->s->hidden);
    if (keeps) a->mixed = gr_layer_rows(c, l, l->s->hidden);
    if (keeps) a->fed = gr_layer_rows(c, l, l->s->hidden);
    if (!l->d->per_layer) return;
    gr_layer_per_layer.acts(c, l, a);
    if (keeps) a->shown = gr_layer_rows(c, l, l->s->hidden);
}

/* What products and other kernels ask for themselves. */
static void kernels_layout(gr_workspace *c, const gr_layer_call *l, gr_layer_ws *w)
{
    const gr_layer_part *mixer = mixer_of(l->d), *mlp = mlp_of(l->d);
    const gr_layer_call half = gr_layer_half(l), own = mlp_call(l), fed = gr_layer_half(&own);
    const uint64_t third = l->d->per_layer ? gr_layer_per_layer.product_ws(l) : 0,
                   products = GR_MAX(third, GR_MAX(mixer->product_ws(&half), mlp->product_ws(&fed)));
    *w = (gr_layer_ws){.product = gr_workspace_bytes(c, products)};
    if (l->bounds.adapters) w->adapters = gr_workspace_bytes(c, adapters_ws(l));
    if (mixer->kernel_ws) mixer->kernel_ws(c, &half, w);
    if (mlp->kernel_ws) mlp->kernel_ws(c, &fed, w);
}

/* Of slices whose tokens are cut. */
static void all_layout(gr_workspace *c, const gr_layer_call *l, gr_layer_ws *w)
{
    const gr_layer_call half = gr_layer_half(l);
    const uint64_t values = l->s->hidden;
    if (!gr_layer_gathers(l)) return;
    w->all_in = gr_layer_rows(c, &half, values);
    w->all_out = gr_layer_rows(c, &half, values);
    if (l->use == GR_LAYER_BACKWARD) w->all_d = gr_layer_rows(c, &half, values);
    if (l->k->chained) w->staging = gr_layer_rows(c, &half, values);
}

/* acts: room for them, too. */
static void ws_layout(gr_workspace *c, const gr_layer_call *l, bool acts, gr_layer_ws *w)
{
    const gr_layer_part *mixer = mixer_of(l->d), *mlp = mlp_of(l->d);
    const gr_layer_call half = gr_layer_half(l), own = mlp_call(l), fed = gr_layer_half(&own);
    kernels_layout(c, l, w);
    all_layout(c, l, w);
    w->row = gr_layer_rows(c, l, l->s->hidden);
    mixer->ws(c, &half, w);
    mlp->ws(c, &fed, w);
    if (l->d->per_layer) gr_layer_per_layer.ws(c, l, w);
    if (acts) acts_layout(c, l, &w->acts);
}

/* Of norms and sums of columns, over a rank's tokens; and of rotations, where they are cut over all of them.
 */
static uint64_t scratch_bytes(const gr_layer_call *l)
{
    const gr_layer_call half = gr_layer_half(l);
    const uint64_t bytes = l->ops->back_ws_bytes(l->d, l->s->hidden, half.bounds.tokens);
    gr_layer_desc own = *l->d;
    own.attention = l->own;
    return gr_layer_cut(l) < 2
               ? bytes
               : GR_MAX(bytes, l->ops->back_ws_bytes(&own, l->s->hidden, l->bounds.tokens * gr_layer_cut(l)));
}

/* Where tokens are cut over ranks, on every device: what exchanges around attention need has room where the
 * MLP's was, so that a rank needs no more for a token of its own than one that has all. */
static bool takes_turns(const gr_layer_call *l)
{
    const gr_layer_call half = gr_layer_half(l);
    return l->ops->turns || gr_layer_cut(&half) > 1;
}

static void back_layout(gr_workspace *c, const gr_layer_call *l, gr_layer_ws *w)
{
    const gr_layer_part *mixer = mixer_of(l->d), *mlp = mlp_of(l->d);
    kernels_layout(c, l, w);
    w->scratch = gr_workspace_bytes(c, scratch_bytes(l));
    w->row = gr_layer_rows(c, l, l->s->hidden);
    w->d_row = gr_layer_rows(c, l, l->s->hidden);
    if (l->d->norm_after || l->s->residual_scale != 1) w->d_block = gr_layer_rows(c, l, l->s->hidden);
    all_layout(c, l, w);
    const gr_layer_call half = gr_layer_half(l), own = mlp_call(l), fed = gr_layer_half(&own);
    const bool turns = takes_turns(l);
    gr_workspace turn = *c, third = *c;
    mixer->ws(c, &half, w);
    mlp->ws(turns ? &turn : c, &fed, w);
    if (l->d->per_layer) gr_layer_per_layer.ws(turns ? &third : c, l, w);
    c->used = GR_MAX(c->used, GR_MAX(turn.used, third.used));
}

/* ---- sizes -----------------------------------------------------------------------------------------------
 */

static gr_layer_call sizes_of(const gr_kernels *k, const gr_model_shape *s, uint32_t layer,
                              const gr_pass_bounds *b, gr_layer_use use)
{
    const gr_layer_desc *d = gr_layer(s, layer);
    return (gr_layer_call){.k = k,
                           .ops = k->layer,
                           .s = s,
                           .d = d,
                           .bucket = 1 + layer,
                           .use = use,
                           .bounds = *b,
                           /* of a slice it is what is left of them */
                           .own = gr_attention_cut(&d->attention, GR_MAX(b->cut / GR_MAX(s->parts, 1u), 1u))};
}

uint64_t gr_layer_acts_bytes(const gr_kernels *k, const gr_model_shape *s, uint32_t layer,
                             const gr_pass_bounds *b)
{
    const gr_layer_call l = sizes_of(k, s, layer, b, GR_LAYER_KEEP);
    gr_layer_acts a;
    gr_workspace c = {0};
    acts_layout(&c, &l, &a);
    return c.used;
}

uint64_t gr_layer_ws_bytes(const gr_kernels *k, const gr_model_shape *s, uint32_t layer,
                           const gr_pass_bounds *b, gr_layer_use use)
{
    const gr_layer_call l = sizes_of(k, s, layer, b, use);
    gr_layer_ws w;
    gr_workspace c = {0};
    if (use == GR_LAYER_BACKWARD)
        back_layout(&c, &l, &w);
    else
        ws_layout(&c, &l, use != GR_LAYER_KEEP || !takes_turns(&l), &w);
    return c.used;
}

uint64_t gr_layers_acts_bytes(const gr_kernels *k, const gr_model_shape *s, const gr_pass_bounds *b)
{
    uint64_t most = 0;
    for (uint32_t kind = 0, l = 0; kind < s->n_kinds; kind++)
        if (gr_model_layers_of(s, kind, &l)) most = GR_MAX(most, gr_layer_acts_bytes(k, s, l, b));
    return most;
}

uint64_t gr_layers_ws_bytes(const gr_kernels *k, const gr_model_shape *s, const gr_pass_bounds *b,
                            gr_layer_use use)
{
    uint64_t most = 0;
    for (uint32_t kind = 0, l = 0; kind < s->n_kinds; kind++)
        if (gr_model_layers_of(s, kind, &l)) most = GR_MAX(most, gr_layer_ws_bytes(k, s, l, b, use));
    return most;
}

/* ---- state of a rollout ----------------------------------------------------------------------------------
 */

static uint64_t state_bytes(const gr_kernels *k, const gr_model_shape *s, uint32_t layer, gr_state_kind kind)
{
    const gr_layer_desc *d = gr_layer(s, layer);
    return gr_layer_state(d) == kind ? mixer_of(d)->state_bytes(k->layer, d) : 0;
}

uint64_t gr_layer_block_bytes(const gr_kernels *k, const gr_model_shape *s, uint32_t layer)
{
    return state_bytes(k, s, layer, GR_STATE_PAGED);
}

uint64_t gr_layer_slot_bytes(const gr_kernels *k, const gr_model_shape *s, uint32_t layer)
{
    return state_bytes(k, s, layer, GR_STATE_FIXED);
}

bool gr_layer_has_window(const gr_model_shape *s, uint32_t layer)
{
    const gr_layer_desc *d = gr_layer(s, layer);
    return d->mixer == GR_MIXER_ATTENTION && d->attention.window;
}

static uint64_t blocks_of(const gr_model_shape *s, uint32_t layer, gr_state_room room)
{
    return room.window_blocks && gr_layer_has_window(s, layer) ? room.window_blocks : room.blocks;
}

uint64_t gr_layer_state_at(const gr_kernels *k, const gr_model_shape *s, uint32_t layer, gr_state_room room)
{
    uint64_t at = 0;
    for (uint32_t l = 0; l < layer; l++)
        at += blocks_of(s, l, room) * gr_layer_block_bytes(k, s, l) +
              gr_align(room.slots * gr_layer_slot_bytes(k, s, l), 256);
    return at;
}

bool gr_layers_have_slots(const gr_kernels *k, const gr_model_shape *s)
{
    for (uint32_t l = 0; l < s->layers; l++)
        if (gr_layer_slot_bytes(k, s, l)) return true;
    return false;
}

void gr_layer_copy_slots(const gr_kernels *k, gr_queue *q, const gr_model_shape *s, uint32_t layer,
                         void *state, const uint32_t *src, const uint32_t *dst, uint32_t n)
{
    const uint64_t bytes = gr_layer_slot_bytes(k, s, layer);
    if (bytes) k->copy_blocks(q, state, bytes, src, dst, n);
}

void gr_layer_copy_blocks(const gr_kernels *k, gr_queue *q, const gr_model_shape *s, uint32_t layer,
                          void *state, const uint32_t *src, const uint32_t *dst, uint32_t n)
{
    const uint64_t bytes = gr_layer_block_bytes(k, s, layer);
    if (bytes) k->copy_blocks(q, state, bytes, src, dst, n);
}

/* ---- forward ---------------------------------------------------------------------------------------------
 */

/* Whether a half reads x behind a norm before it (GR_T_COUNT: none): one with several norms has them itself.
 */
static bool has_norm(const gr_layer_call *l, gr_tensor_slot slot)
{
    return l->d->norm_before && slot != GR_T_COUNT && !(slot == GR_T_MLP_NORM && gr_layer_is_beside(l->d));
}

/* What a half reads: x behind the norm before it, or x itself. */
static const void *before(const gr_layer_call *l, const void *x, gr_tensor_slot slot, void *row)
{
    const gr_norm c = gr_layer_norm(l, x, slot);
    if (!has_norm(l, slot)) return x;
    l->ops->norm(l->q, &c, row);
    return row;
}

/* The same of all tokens, where ranks that have the others have the other slices. */
static const void *before_all(const gr_layer_call *l, const void *x, gr_tensor_slot slot,
                              const gr_layer_ws *w)
{
    if (!gr_layer_gathers(l)) return before(l, x, slot, w->row);
    void *own = gr_layer_own(l, w->all_in);
    if (before(l, x, slot, own) == x)
        l->k->copy(l->q, own, x, (uint64_t)l->b.n * l->s->hidden * gr_dtype_size(l->k->dtype));
    gr_layer_gather(l, w->all_in);
    return w->all_in;
}

/* Whether the first product of a half norms what it reads. */
static bool norms_itself(const gr_layer_call *l, const gr_layer_part *part, const void *x)
{
    if (!part->first || !l->ops->product_norms || !l->d->norm_before || l->outer) return false;
    const gr_product p = part->first(l, x);
    return p.step && l->ops->product_norms(l->q, &p);
}

/* Whether the norm in front of a half leaves what its first product alone reads, w->row, rounded for it. */
static bool rounds_norm(const gr_layer_call *own, const gr_layer_call *half, const gr_layer_part *part,
                        gr_tensor_slot norm, const void *x, const gr_layer_ws *w)
{
    if (!part->first || !own->ops->norm_round || !has_norm(own, norm) || half->outer) return false;
    const gr_product p = part->first(half, w->row);
    const gr_norm c = gr_layer_norm(own, x, norm);
    return own->ops->norm_round(own->q, &c, &p, w->row, w->product);
}

/* One half; own: the call before gr_layer_half. */
static void run_half(const gr_layer_call *own, const gr_layer_part *part, gr_tensor_slot norm, const void *x,
                     const gr_layer_acts *a, const gr_layer_ws *w, const gr_layer_close *close)
{
    gr_layer_call half = gr_layer_half(own);
    const void *in = x;
    if (norms_itself(&half, part, x))
        half.norm = gr_layer_norm(own, x, norm);
    else if (rounds_norm(own, &half, part, norm, x, w))
        in = half.rounded = w->row;
    else
        in = before_all(own, x, norm, w);
    part->forward(&half, in, a, w, close);
}

/* The layer's output, or d loss / d it. */
static void scale_layer(const gr_layer_call *l, void *x)
{
    if (l->d->scaled)
        l->ops->scale_by(l->q, x, gr_layer_tensor(l, GR_T_LAYER_SCALE), (uint64_t)l->b.n * l->s->hidden);
}

static void run(const gr_layer_call *l, void *x, const gr_layer_acts *a, const gr_layer_ws *w)
{
    void *mid = a->mid ? a->mid : x;
    const gr_layer_call own = mlp_call(l);
    const gr_layer_close mixed = {x, mid, w->row, a->mixed, w->all_out, w->staging, GR_T_MIXER_AFTER},
                         fed = {mid, x, w->row, a->fed, w->all_out, w->staging, GR_T_MLP_AFTER},
                         shown = {x, x, w->row, a->shown, NULL, NULL, GR_T_PER_LAYER_AFTER};
    run_half(l, mixer_of(l->d), GR_T_MIXER_NORM, x, a, w, &mixed);
    run_half(&own, mlp_of(l->d), GR_T_MLP_NORM, mid, a, w, &fed);
    if (l->d->per_layer) gr_layer_per_layer.forward(l, x, a, w, &shown);
    scale_layer(l, x);
}

/* Keys of the longest sequence of a pass. */
static uint32_t most_keys(const gr_packed *b)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < b->n_seqs; i++)
        most = GR_MAX(most, gr_seq_keys(b->host_offset, b->host_prefix, i));
    return most;
}

static uint32_t longest_of(const uint32_t *offset, const uint32_t *cached, uint32_t n_seqs)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n_seqs; i++)
        most = GR_MAX(most, offset[i + 1] - offset[i] + (cached ? cached[i] : 0));
    return most;
}

/* A call over packed sequences; its bounds are what it has. */
static gr_layer_call packed_call(const gr_kernels *k, gr_queue *q, const gr_model_shape *s, uint32_t layer,
                                 const void *w, const gr_packed *b, gr_layer_use use)
{
    const gr_pass_bounds bounds = {.tokens = GR_MAX(b->n_tokens, 1u),
                                   .seqs = b->n_seqs,
                                   .length = most_keys(b),
                                   .threads = gr_team_size(q->team),
                                   .cut = b->cut,
                                   .shared = b->host_prefix != NULL,
                                   .experts_again = b->experts_again,
                                   .expert_run = b->expert_run};
    gr_layer_call l = sizes_of(k, s, layer, &bounds, use);
    l.q = q;
    l.w = w;
    l.routing = b->routing;
    l.carried = b->carried;
    l.d_carried = b->d_carried;
    l.b = l.all = (gr_tokens){.n = b->n_tokens,
                              .n_seqs = b->n_seqs,
                              .offset = b->offset,
                              .host_offset = b->host_offset,
                              .prefix = b->prefix,
                              .host_prefix = b->host_prefix,
                              .position = b->position};
    l.all.n *= gr_layer_cut(&l);
    return l;
}

/* Without tokens there is work where others' may come to this rank's experts. */
static bool has_work(const gr_model_shape *s, uint32_t layer, uint32_t tokens)
{
    return tokens || gr_layer(s, layer)->experts.holders;
}

void gr_layer_forward(const gr_kernels *k, gr_queue *q, const gr_model_shape *s, uint32_t layer,
                      const void *w, const gr_packed *b, void *x, void *keep_in, void *acts, void *ws)
{
    if (!has_work(s, layer, b->n_tokens)) return;
    const gr_layer_call l = packed_call(k, q, s, layer, w, b, acts ? GR_LAYER_KEEP : GR_LAYER_FORWARD);
    gr_workspace c = {.base = ws}, kept = {.base = acts};
    gr_layer_ws at;
    ws_layout(&c, &l, !acts, &at);
    if (acts) acts_layout(&kept, &l, &at.acts);
    if (!b->n_tokens) {
        mlp_of(l.d)->idle(&l, &at.acts, &at);
        return;
    }
    if (keep_in) k->copy(q, keep_in, x, (uint64_t)b->n_tokens * s->hidden * gr_dtype_size(k->dtype));
    run(&l, x, &at.acts, &at);
}

void gr_layer_extend(const gr_kernels *k, gr_queue *q, const gr_model_shape *s, uint32_t layer, const void *w,
                     const gr_extend *e, void *x, void *state, void *ws)
{
    if (!has_work(s, layer, e->n_tokens)) return;
    /* a queued device's arrays are not the host's to read, and its workspace does not follow from lengths */
    const uint32_t longest = k->queued ? 0 : longest_of(e->offset, e->cached, e->n_seqs);
    const gr_pass_bounds bounds = {.tokens = GR_MAX(e->n_tokens, 1u),
                                   .seqs = e->n_seqs,
                                   .length = longest,
                                   .threads = gr_team_size(q->team),
                                   .cut = 1,
                                   .expert_run = e->expert_run};
    gr_layer_call l = sizes_of(k, s, layer, &bounds, GR_LAYER_EXTEND);
    const bool window = e->window_at && gr_layer_has_window(s, layer);
    l.q = q;
    l.w = w;
    l.routing = e->routing;
    l.carried = e->carried;
    l.b = l.all = (gr_tokens){.n = e->n_tokens,
                              .n_seqs = e->n_seqs,
                              .offset = e->offset,
                              .position = e->position,
                              .state = state,
                              .cached = e->cached,
                              .block_table = e->block_table + (window ? e->window_at : 0),
                              .table_stride = e->table_stride,
                              .slot = window ? e->window_slot : e->slot,
                              .held = e->held,
                              .held_after = e->held_after,
                              .longest = e->longest,
                              .decode = e->decode};
    gr_workspace c = {.base = ws};
    gr_layer_ws at;
    ws_layout(&c, &l, true, &at);
    if (e->n_tokens)
        run(&l, x, &at.acts, &at);
    else
        mlp_of(l.d)->idle(&l, &at.acts, &at);
}

/* ---- backward --------------------------------------------------------------------------------------------
 */

/* One half of a layer, whose input was x. */
typedef struct half {
    const gr_layer_part *part;
    const void *x, *kept; /* kept: what stands before the norm behind */
    gr_tensor_slot norm, after;
} half;

/* From d_out, d loss / d what the mixer or MLP gave, to d loss / d what it read. */
static const void *part_back(const gr_layer_call *l, const half *h, const gr_layer_acts *a,
                             const gr_layer_ws *w, const void *d_out)
{
    const gr_layer_call call = gr_layer_half(l);
    const void *in = before_all(l, h->x, h->norm, w);
    if (!call.outer) {
        h->part->backward(l, in, a, w, d_out, w->d_row);
        return w->d_row;
    }
    l->k->copy(l->q, gr_layer_own(l, w->all_d), d_out,
               (uint64_t)l->b.n * l->s->hidden * gr_dtype_size(l->k->dtype));
    gr_layer_gather(l, w->all_d);
    h->part->backward(&call, in, a, w, w->all_d, w->all_out);
    gr_layer_scatter(l, w->all_out, w->staging);
    return gr_layer_own(l, w->all_out);
}

static void half_back(const gr_layer_call *l, const half *h, const gr_layer_acts *a, const gr_layer_ws *w,
                      void *dx)
{
    const gr_layer_ops *ops = l->ops;
    const gr_norm after = gr_layer_norm(l, h->kept, h->after), norm = gr_layer_norm(l, h->x, h->norm);
    const uint64_t n = (uint64_t)l->b.n * l->s->hidden;
    if (l->d->norm_after)
        ops->norm_backward(l->q, &after, dx, w->d_block, false, gr_layer_grad(l, h->after), l->grads,
                           w->scratch);
    else if (w->d_block)
        ops->scale(l->q, dx, l->s->residual_scale, n, w->d_block);
    const void *d_row = part_back(l, h, a, w, w->d_block ? w->d_block : dx);
    if (has_norm(l, h->norm))
        ops->norm_backward(l->q, &norm, d_row, dx, true, gr_layer_grad(l, h->norm), l->grads, w->scratch);
    else
        l->k->add(l->q, dx, d_row, l->k->dtype, n);
}

/* What stands behind the MLP, whose output is its input: made again of what is kept. */
static void shown_back(const gr_layer_call *l, const gr_layer_acts *a, const gr_layer_ws *w, void *dx)
{
    const gr_norm after = gr_layer_norm(l, a->fed, GR_T_MLP_AFTER);
    if (!l->d->per_layer) return;
    l->ops->norm_add(l->q, &after, a->mid, w->row);
    half_back(l, &(half){&gr_layer_per_layer, w->row, a->shown, GR_T_COUNT, GR_T_PER_LAYER_AFTER}, a, w, dx);
}

void gr_layer_backward(const gr_kernels *k, gr_queue *q, const gr_model_shape *s, uint32_t layer,
                       const void *w, const gr_layer_adapters *adapters, const gr_packed *b, const void *in,
                       const void *acts, void *dx, void *grad, gr_dtype grads, void *ws)
{
    if (!has_work(s, layer, b->n_tokens)) return;
    assert(!gr_layer(s, layer)->norm_after || s->residual_scale == 1);
    assert(!gr_layer(s, layer)->per_layer || gr_layer(s, layer)->norm_after);
    gr_layer_call l = packed_call(k, q, s, layer, w, b, GR_LAYER_BACKWARD);
    l.adapters = adapters;
    l.bounds.adapters = adapters ? adapters->shape : NULL;
    l.grad = grad;
    l.grads = grads;
    gr_workspace c = {.base = ws}, kept = {.base = (char *)(uintptr_t)acts};
    gr_layer_ws at;
    gr_layer_acts a;
    back_layout(&c, &l, &at);
    acts_layout(&kept, &l, &a);
    if (!b->n_tokens) {
        mlp_of(l.d)->idle(&l, &a, &at);
        return;
    }
    const gr_layer_call own = mlp_call(&l);
    scale_layer(&l, dx);
    shown_back(&l, &a, &at, dx);
    half_back(&own, &(half){mlp_of(l.d), a.mid, a.fed, GR_T_MLP_NORM, GR_T_MLP_AFTER}, &a, &at, dx);
    half_back(&l, &(half){mixer_of(l.d), in, a.mixed, GR_T_MIXER_NORM, GR_T_MIXER_AFTER}, &a, &at, dx);
}

/* ---- what a device is not made for ------------------------------------------------------------------------
 */

static const char *part_unfit(const gr_layer_ops *ops, const gr_layer_part *part, const gr_layer_desc *d,
                              const char *name)
{
    if (!part) return name;
    return part->unfit ? part->unfit(ops, d) : NULL;
}

static const char *layer_unfit(const gr_layer_ops *ops, const gr_layer_desc *d)
{
    static const char *const mixers[] = {[GR_MIXER_ATTENTION] = "attention",
                                         [GR_MIXER_LATENT] = "latent attention",
                                         [GR_MIXER_DELTA] = "a gated delta rule"};
    static const char *const mlps[] = {
        [GR_MLP_DENSE] = "a dense MLP", [GR_MLP_EXPERTS] = "mixtures of experts"};
    const char *why = part_unfit(ops, mixer_of(d), d, mixers[d->mixer]);
    if (!why) why = part_unfit(ops, mlp_of(d), d, mlps[d->mlp]);
    return why;
}

const char *gr_layers_unfit(const gr_kernels *k, const gr_model_shape *s, char buf[GR_UNFIT_MAX])
{
    for (uint32_t kind = 0; kind < s->n_kinds; kind++) {
        const char *why = layer_unfit(k->layer, &s->kinds[kind]);
        if (!why) continue;
        snprintf(buf, GR_UNFIT_MAX, "%s", why);
        return buf;
    }
    if (s->fp8 && !k->layer->has_fp8) return "'precision: fp8'";
    if (s->nf4 && !k->layer->has_nf4) return "frozen weights in NF4, 'lora: {base: nf4}'";
    return k->unfit ? k->unfit(s, buf) : NULL;
}
