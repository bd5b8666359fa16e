/* ops/kernels/layer_latent.c: latent attention of a layer (ops/kernels/latent.h): one product in, which gives
 * queries or their latent, that of keys and values, and the part of the key that is rotated; norms; a product
 * to queries; attention in one of its two forms; the product out.
 *
 * What is kept for the backward pass is the first product's rows, which are narrow, and attention's output.
 * Queries, keys and values are wide (of 671B parameters seven times the hidden state, together) and are
 * computed again from them: two products more, of a tenth of the backward pass's.
 *
 * Where tokens are cut over ranks, products, norms and rotations are of a rank's own tokens. Attention is of
 * all tokens and its own heads (gr_layer_to_heads): expanded, queries, keys and values go there; absorbed,
 * queries and the rows that all heads share.
 */
#include "ops/kernels/latent.h"
#include "ops/kernels/layer_impl.h"

static const gr_latent_desc *desc(const gr_layer_call *l)
{
    return &l->d->latent;
}

static uint32_t q_width(const gr_layer_call *l)
{
    return desc(l)->heads * gr_latent_head(desc(l));
}

static uint32_t kv_width(const gr_layer_call *l)
{
    return desc(l)->heads * gr_latent_kv(desc(l));
}

static uint32_t out_width(const gr_layer_call *l)
{
    return desc(l)->heads * desc(l)->v_dim;
}

static bool is_cut(const gr_layer_call *l)
{
    return gr_layer_cut(l) > 1;
}

/* Of the heads that this rank attends with. */
static gr_latent_desc own(const gr_layer_call *l)
{
    gr_latent_desc d = *desc(l);
    d.heads /= gr_layer_cut(l);
    return d;
}

/* Columns that are cut by heads: of queries, keys and values; of attention's output; and of queries beside a
 * row for all heads. */
static gr_layer_columns qkv_columns(const gr_layer_call *l)
{
    const struct gr_layer_group g = {q_width(l), desc(l)->heads, 1};
    return (gr_layer_columns){3, {g, g, g}};
}

static gr_layer_columns out_columns(const gr_layer_call *l)
{
    return (gr_layer_columns){1, {{out_width(l), desc(l)->heads, 1}}};
}

static gr_layer_columns row_columns(const gr_layer_call *l)
{
    return (gr_layer_columns){
        2, {{q_width(l), desc(l)->heads, 1}, {gr_latent_row(desc(l)), 1, gr_layer_cut(l)}}};
}

static bool pads(const gr_layer_call *l)
{
    return desc(l)->v_dim != gr_latent_head(desc(l));
}

/* Whether attention's output was computed in the absorbed form. */
static bool absorbs(const gr_layer_call *l)
{
    return l->k->invariant || l->use == GR_LAYER_EXTEND;
}

static uint64_t size_of(const gr_layer_call *l)
{
    return gr_dtype_size(l->k->dtype);
}

/* ---- products --------------------------------------------------------------------------------------------
 */

static gr_product into(const gr_layer_call *l, const void *in)
{
    return gr_layer_product(l, in, l->s->hidden, GR_T_LATENT_IN, GR_T_COUNT, gr_latent_in(desc(l)));
}

static gr_product to_q(const gr_layer_call *l, const void *low)
{
    return gr_layer_product(l, low, desc(l)->q_rank, GR_T_LATENT_Q, GR_T_COUNT, q_width(l));
}

static gr_product to_kv(const gr_layer_call *l, const void *latent)
{
    return gr_layer_product(l, latent, desc(l)->kv_rank, GR_T_LATENT_KV, GR_T_COUNT, kv_width(l));
}

static gr_product out(const gr_layer_call *l, const void *x)
{
    return gr_layer_product(l, x, out_width(l), GR_T_O, GR_T_COUNT, l->s->hidden);
}

static uint64_t product_ws(const gr_layer_call *l)
{
    const gr_latent_desc *d = desc(l);
    const uint32_t h = l->s->hidden;
    const uint64_t ends = GR_MAX(gr_layer_product_ws(l, h, gr_latent_in(d)),
                                 gr_layer_product_ws(l, out_width(l), h)),
                   kv = absorbs(l) && l->use != GR_LAYER_BACKWARD
                            ? 0
                            : gr_layer_product_ws(l, d->kv_rank, kv_width(l)),
                   q = d->q_rank ? gr_layer_product_ws(l, d->q_rank, q_width(l)) : 0;
    return GR_MAX(ends, GR_MAX(kv, q));
}

/* ---- buffers ---------------------------------------------------------------------------------------------
 */

static void acts(gr_workspace *c, const gr_layer_call *l, gr_layer_acts *acts_of)
{
    gr_latent_acts *a = &acts_of->latent;
    a->in = gr_layer_rows(c, l, gr_latent_in(desc(l)));
    a->out = gr_layer_all_rows(c, l, out_width(l) / gr_layer_cut(l));
    a->merged = is_cut(l) ? gr_layer_rows(c, l, out_width(l)) : a->out;
    if (!absorbs(l)) a->stats = gr_workspace_floats(c, (uint64_t)l->bounds.tokens * desc(l)->heads);
}

/* A backward pass of the absorbed form attends expanded before it goes back. */
static void kernel_ws(gr_workspace *c, const gr_layer_call *l, gr_layer_ws *w)
{
    const gr_latent_desc d = own(l);
    const gr_attention_desc e = gr_latent_expanded(&d);
    const bool back = l->use == GR_LAYER_BACKWARD;
    gr_latent_ws *t = &w->latent;
    gr_pass_bounds all = l->bounds;
    all.tokens *= gr_layer_cut(l);
    if (absorbs(l) && !back) {
        t->latent = gr_workspace_bytes(c, l->ops->latent->ws_bytes(&d, &all, l->use));
        return;
    }
    t->attend_bytes = l->ops->attend_ws_bytes(&e, &all, l->use);
    if (back && absorbs(l))
        t->attend_bytes = GR_MAX(t->attend_bytes, l->ops->attend_ws_bytes(&e, &all, GR_LAYER_KEEP));
    t->attend = gr_workspace_bytes(c, t->attend_bytes);
}

static void back_buffers(gr_workspace *c, const gr_layer_call *l, gr_latent_ws *w)
{
    const gr_latent_desc *d = desc(l);
    const uint64_t own_q = q_width(l) / gr_layer_cut(l);
    if (absorbs(l)) w->stats = gr_workspace_floats(c, (uint64_t)l->bounds.tokens * d->heads);
    w->d_out = gr_layer_all_rows(c, l, out_width(l) / gr_layer_cut(l));
    w->d_merged = is_cut(l) ? gr_layer_rows(c, l, out_width(l)) : w->d_out;
    w->d_padded = pads(l) ? gr_layer_all_rows(c, l, own_q) : w->d_out;
    w->d_qkv = gr_layer_all_rows(c, l, 3 * own_q);
    w->d_in = gr_layer_rows(c, l, gr_latent_in(d));
    w->d_low = gr_layer_rows(c, l, GR_MAX(d->q_rank, d->kv_rank));
    w->raw = gr_layer_rows(c, l, GR_MAX(d->q_rank, d->kv_rank));
}

/* Forward and absorbed. */
static void absorbed_buffers(gr_workspace *c, const gr_layer_call *l, gr_latent_ws *w)
{
    const gr_latent_desc *d = desc(l);
    const gr_layer_columns columns = row_columns(l);
    const uint64_t heads = d->heads / gr_layer_cut(l), q = heads * gr_latent_head(d), row = gr_latent_row(d);
    w->rows = gr_layer_all_rows(c, l, row);
    w->wide = gr_layer_all_rows(c, l, heads * row);
    w->mixed = gr_layer_all_rows(c, l, heads * d->kv_rank);
    if (!is_cut(l)) return;
    w->local = gr_layer_rows(c, l, q_width(l) + row);
    w->heads = gr_layer_all_rows(c, l, q + row);
    w->own_q = gr_layer_all_rows(c, l, q);
    w->parts = gr_layer_parts(c, l, &columns, false);
}

static void ws(gr_workspace *c, const gr_layer_call *l, gr_layer_ws *ws_of)
{
    const gr_latent_desc *d = desc(l);
    const bool back = l->use == GR_LAYER_BACKWARD;
    const gr_layer_columns columns = qkv_columns(l);
    const uint64_t own_q = q_width(l) / gr_layer_cut(l);
    gr_latent_ws *w = &ws_of->latent;
    if (d->q_rank) w->low = gr_layer_rows(c, l, d->q_rank);
    w->c = gr_layer_rows(c, l, d->kv_rank);
    w->q = gr_layer_rows(c, l, q_width(l));
    if (absorbs(l) && !back) {
        absorbed_buffers(c, l, w);
        return;
    }
    w->kv = gr_layer_rows(c, l, kv_width(l));
    w->qkv = gr_layer_all_rows(c, l, 3 * own_q);
    if (is_cut(l)) w->local = gr_layer_rows(c, l, 3 * (uint64_t)q_width(l));
    if (is_cut(l)) w->parts = gr_layer_parts(c, l, &columns, back);
    if (pads(l) || (back && absorbs(l))) w->padded = gr_layer_all_rows(c, l, own_q);
    if (back) back_buffers(c, l, w);
}

/* ---- rows and their parts --------------------------------------------------------------------------------
 */

/* Columns [from, from + n) of rows of ld values, to dense rows; and back. */
static void take(const gr_layer_call *l, void *to, const void *rows, uint32_t ld, uint32_t from, uint32_t n)
{
    const uint64_t s = size_of(l);
    l->k->copy_rows(l->q, to, n * s, (const char *)rows + from * s, ld * s, n * s, l->b.n);
}

static void put(const gr_layer_call *l, void *rows, uint32_t ld, uint32_t from, const void *dense, uint32_t n)
{
    const uint64_t s = size_of(l);
    l->k->copy_rows(l->q, (char *)rows + from * s, ld * s, dense, n * s, n * s, l->b.n);
}

/* The rotated part of the key in rows of the first product, or of their gradient. */
static gr_latent_part key_part(const gr_layer_call *l, void *in)
{
    const uint32_t ld = gr_latent_in(desc(l)), at = ld - desc(l)->rope_dim;
    return (gr_latent_part){(char *)in + at * size_of(l), ld, 1, 0};
}

static gr_latent_part query_part(const gr_layer_call *l, void *q)
{
    return (gr_latent_part){(char *)q + desc(l)->nope_dim * size_of(l), q_width(l), desc(l)->heads,
                            gr_latent_head(desc(l))};
}

/* Heads of V to heads of D, filled up with zeros: all heads of its tokens, or its heads of all tokens, which
 * are as many. */
static void pad(const gr_layer_call *l, void *to, const void *from)
{
    const uint64_t s = size_of(l), v = desc(l)->v_dim * s, d = gr_latent_head(desc(l)) * s,
                   n = (uint64_t)l->b.n * desc(l)->heads;
    l->k->zero(l->q, to, n * d);
    l->k->copy_rows(l->q, to, d, from, v, v, n);
}

static void unpad(const gr_layer_call *l, void *to, const void *from)
{
    const uint64_t s = size_of(l), v = desc(l)->v_dim * s, d = gr_latent_head(desc(l)) * s;
    l->k->copy_rows(l->q, to, v, from, d, v, (uint64_t)l->b.n * desc(l)->heads);
}

static gr_norm norm_of(const gr_layer_call *l, const void *x, gr_tensor_slot slot, uint32_t cols)
{
    return (gr_norm){l->b.n, cols, x, gr_layer_tensor(l, slot), desc(l)->norm_eps, l->d->norm_plus_one};
}

/* Columns from `from` on of the first product's rows, normed. */
static void norm_low(const gr_layer_call *l, const gr_latent_acts *a, gr_tensor_slot slot, uint32_t from,
                     uint32_t cols, void *y)
{
    const gr_norm norm = norm_of(l, y, slot, cols);
    take(l, y, a->in, gr_latent_in(desc(l)), from, cols);
    l->ops->norm(l->q, &norm, y);
}

/* ---- forward ---------------------------------------------------------------------------------------------
 */

/* Of its tokens and all heads. */
static gr_latent_call call_of(const gr_layer_call *l, const gr_latent_ws *t)
{
    return (gr_latent_call){desc(l), &l->b, gr_layer_tensor(l, GR_T_LATENT_KV), t->latent,
                            gr_layer_place(l) * l->b.n};
}

/* Of all tokens and its heads, d. */
static gr_latent_call heads_call(const gr_layer_call *l, const gr_latent_desc *d, const gr_latent_ws *t)
{
    const void *kv = gr_layer_tensor(l, GR_T_LATENT_KV);
    return (gr_latent_call){d, &l->all,
                            gr_layer_of_heads(l, kv, d->heads * gr_latent_kv(d) * d->kv_rank, l->k->dtype),
                            t->latent, 0};
}

/* From the first product's rows: the latent, and queries with their parts rotated. */
static void queries(const gr_layer_call *l, const gr_latent_acts *a, const gr_layer_ws *w)
{
    const gr_latent_desc *d = desc(l);
    const gr_latent_ws *t = &w->latent;
    const gr_latent_call c = call_of(l, t);
    const gr_latent_part part = query_part(l, t->q);
    norm_low(l, a, GR_T_LATENT_KV_NORM, gr_latent_queries(d), d->kv_rank, t->c);
    if (d->q_rank) {
        const gr_product p = to_q(l, t->low);
        norm_low(l, a, GR_T_LATENT_Q_NORM, 0, d->q_rank, t->low);
        l->ops->product(l->q, &p, t->q, w->product);
    } else {
        take(l, t->q, a->in, gr_latent_in(d), 0, q_width(l));
    }
    l->ops->latent->rotate(l->q, &c, &part, false);
}

static gr_attend attention(const gr_layer_call *l, const gr_attention_desc *e, const gr_latent_ws *t)
{
    return (gr_attend){.d = e, .b = &l->all, .qkv = t->qkv, .ws = t->attend, .ws_bytes = t->attend_bytes};
}

/* Queries, keys and values of every head. */
static void expand(const gr_layer_call *l, const gr_latent_acts *a, const gr_layer_ws *w)
{
    const gr_latent_ws *t = &w->latent;
    const gr_latent_call c = call_of(l, t);
    const gr_latent_part key = key_part(l, a->in);
    const gr_product p = to_kv(l, t->c);
    const gr_layer_columns columns = qkv_columns(l);
    l->ops->product(l->q, &p, t->kv, w->product);
    l->ops->latent->expand(l->q, &c, t->q, t->kv, &key, is_cut(l) ? t->local : t->qkv);
    if (is_cut(l)) gr_layer_to_heads(l, &columns, t->local, 3ull * q_width(l), t->qkv, t->parts);
}

static void attend_expanded(const gr_layer_call *l, const gr_latent_acts *a, const gr_layer_ws *w)
{
    const gr_latent_ws *t = &w->latent;
    const gr_latent_desc d = own(l);
    const gr_attention_desc e = gr_latent_expanded(&d);
    const gr_attend c = attention(l, &e, t);
    expand(l, a, w);
    l->ops->attend(l->q, &c, pads(l) ? t->padded : a->out, a->stats);
    if (pads(l)) unpad(l, a->out, t->padded);
}

/* The latent and the key's part of its tokens, at column `at` of rows of ld values. */
static void put_row(const gr_layer_call *l, const gr_latent_acts *a, const gr_latent_ws *t, void *rows,
                    uint32_t ld, uint32_t at)
{
    const gr_latent_desc *d = desc(l);
    const gr_latent_part key = key_part(l, a->in);
    const uint64_t s = size_of(l);
    put(l, rows, ld, at, t->c, d->kv_rank);
    l->k->copy_rows(l->q, (char *)rows + (at + d->kv_rank) * s, ld * s, key.x, key.ld * s, d->rope_dim * s,
                    l->b.n);
}

/* Of all tokens the rows, and the queries of this rank's heads. */
static void exchange_rows(const gr_layer_call *l, const gr_latent_acts *a, const gr_latent_ws *t)
{
    const gr_layer_columns columns = row_columns(l);
    const uint32_t q = q_width(l), row = gr_latent_row(desc(l));
    const uint64_t s = size_of(l), own_q = q / gr_layer_cut(l), ld = own_q + row;
    put(l, t->local, q + row, 0, t->q, q);
    put_row(l, a, t, t->local, q + row, q);
    gr_layer_to_heads(l, &columns, t->local, q + row, t->heads, t->parts);
    l->k->copy_rows(l->q, t->own_q, own_q * s, t->heads, ld * s, own_q * s, l->all.n);
    l->k->copy_rows(l->q, t->rows, row * s, (char *)t->heads + own_q * s, ld * s, row * s, l->all.n);
}

static void attend_absorbed(const gr_layer_call *l, const gr_latent_acts *a, const gr_layer_ws *w)
{
    const gr_latent_desc d = own(l);
    const gr_latent_ops *ops = l->ops->latent;
    const gr_latent_ws *t = &w->latent;
    const gr_latent_call c = heads_call(l, &d, t);
    if (is_cut(l))
        exchange_rows(l, a, t);
    else
        put_row(l, a, t, t->rows, gr_latent_row(&d), 0);
    if (l->b.state) ops->store(l->q, &c, t->rows);
    ops->absorb(l->q, &c, is_cut(l) ? t->own_q : t->q, t->wide);
    ops->attend(l->q, &c, t->wide, t->rows, t->mixed);
    ops->emit(l->q, &c, t->mixed, a->out);
}

static void forward(const gr_layer_call *l, const void *in, const gr_layer_acts *acts_of,
                    const gr_layer_ws *w, const gr_layer_close *close)
{
    const gr_latent_acts *a = &acts_of->latent;
    const gr_latent_call c = call_of(l, &w->latent);
    const gr_latent_part key = key_part(l, a->in);
    const gr_product p = into(l, in), end = out(l, a->merged);
    const gr_layer_columns columns = out_columns(l);
    l->ops->product(l->q, &p, a->in, w->product);
    l->ops->latent->rotate(l->q, &c, &key, false); /* in place: what is kept is rotated */
    queries(l, a, w);
    if (absorbs(l))
        attend_absorbed(l, a, w);
    else
        attend_expanded(l, a, w);
    if (is_cut(l)) gr_layer_to_tokens(l, &columns, a->out, a->merged, out_width(l), w->latent.parts);
    gr_layer_close_product(l, &end, w, close);
}

/* ---- backward --------------------------------------------------------------------------------------------
 */

/* Columns from `from` on of d_in: from d_low, d loss / d the norm's output. */
static void low_back(const gr_layer_call *l, const gr_latent_acts *a, const gr_layer_ws *w,
                     gr_tensor_slot slot, uint32_t from, uint32_t cols)
{
    const gr_latent_ws *t = &w->latent;
    const uint32_t ld = gr_latent_in(desc(l));
    const gr_norm norm = norm_of(l, t->raw, slot, cols);
    take(l, t->raw, a->in, ld, from, cols);
    l->ops->norm_backward(l->q, &norm, t->d_low, t->d_low, false, gr_layer_grad(l, slot), l->grads,
                          w->scratch);
    put(l, t->d_in, ld, from, t->d_low, cols);
}

/* d loss / d qkv, in d_qkv, from d loss / d attention's output. */
static void attention_back(const gr_layer_call *l, const gr_latent_acts *a, const gr_layer_ws *w)
{
    const gr_latent_ws *t = &w->latent;
    const gr_latent_desc d = own(l);
    const gr_attention_desc e = gr_latent_expanded(&d);
    const gr_attend c = attention(l, &e, t);
    const bool again = absorbs(l);
    if (pads(l)) pad(l, t->d_padded, t->d_out);
    if (again)
        l->ops->attend(l->q, &c, t->padded, t->stats);
    else if (pads(l))
        pad(l, t->padded, a->out);
    l->ops->attend_backward(l->q, &c, t->padded ? t->padded : a->out, again ? t->stats : a->stats,
                            t->d_padded, t->d_qkv, NULL, l->grads);
}

/* From d_qkv to d_in; q and kv take their own gradients. */
static void rows_back(const gr_layer_call *l, const gr_latent_acts *a, const gr_layer_ws *w)
{
    const gr_latent_desc *d = desc(l);
    const gr_latent_ws *t = &w->latent;
    const gr_latent_call c = call_of(l, t);
    const gr_latent_part key = key_part(l, t->d_in), query = query_part(l, t->q);
    const gr_product kv = to_kv(l, t->c);
    const gr_layer_columns columns = qkv_columns(l);
    if (is_cut(l)) gr_layer_to_tokens(l, &columns, t->d_qkv, t->local, 3ull * q_width(l), t->parts);
    l->ops->latent->expand_backward(l->q, &c, is_cut(l) ? t->local : t->d_qkv, t->q, t->kv, &key);
    l->ops->latent->rotate(l->q, &c, &key, true);
    l->ops->latent->rotate(l->q, &c, &query, true);
    gr_layer_product_back(l, &kv, GR_T_LATENT_KV, GR_T_COUNT, t->kv, t->d_low, w);
    low_back(l, a, w, GR_T_LATENT_KV_NORM, gr_latent_queries(d), d->kv_rank);
    if (!d->q_rank) {
        put(l, t->d_in, gr_latent_in(d), 0, t->q, q_width(l));
        return;
    }
    const gr_product q = to_q(l, t->low);
    gr_layer_product_back(l, &q, GR_T_LATENT_Q, GR_T_COUNT, t->q, t->d_low, w);
    low_back(l, a, w, GR_T_LATENT_Q_NORM, 0, d->q_rank);
}

static void backward(const gr_layer_call *l, const void *in, const gr_layer_acts *acts_of,
                     const gr_layer_ws *w, const void *d_out, void *d_in)
{
    const gr_latent_acts *a = &acts_of->latent;
    const gr_latent_ws *t = &w->latent;
    const gr_product p = into(l, in), end = out(l, a->merged);
    const gr_layer_columns columns = out_columns(l);
    gr_layer_product_back(l, &end, GR_T_O, GR_T_COUNT, d_out, t->d_merged, w);
    if (is_cut(l)) gr_layer_to_heads(l, &columns, t->d_merged, out_width(l), t->d_out, t->parts);
    queries(l, a, w);
    expand(l, a, w);
    attention_back(l, a, w);
    rows_back(l, a, w);
    gr_layer_product_back(l, &p, GR_T_LATENT_IN, GR_T_COUNT, t->d_in, d_in, w);
}

/* ---- what a device has -----------------------------------------------------------------------------------
 */

static const char *unfit(const gr_layer_ops *ops, const gr_layer_desc *d)
{
    return ops->latent ? ops->latent->unfit(&d->latent) : "latent attention";
}

static uint64_t state_bytes(const gr_layer_ops *ops, const gr_layer_desc *d)
{
    return ops->latent ? ops->latent->block_bytes(&d->latent) : 0;
}

const gr_layer_part gr_layer_latent = {.acts = acts,
                                       .ws = ws,
                                       .kernel_ws = kernel_ws,
                                       .product_ws = product_ws,
                                       .forward = forward,
                                       .backward = backward,
                                       .unfit = unfit,
                                       .state_bytes = state_bytes};
