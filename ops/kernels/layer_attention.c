/* ops/kernels/layer_attention.c: grouped-query attention of a layer: q, k and v in one product, their norms
 * and rotation, attention, an output gate, the product out.
 *
 * Where tokens are cut over ranks, products and the gate are of a rank's own tokens. What stands between,
 * norm, rotation and attention, is of all tokens and of its own heads (gr_layer_to_heads). */
#include "ops/kernels/carried.h"
#include "ops/kernels/layer_impl.h"

static const gr_attention_desc *desc(const gr_layer_call *l)
{
    return &l->d->attention;
}

static uint32_t wide(const gr_layer_call *l)
{
    return desc(l)->heads * desc(l)->head_dim;
}

static uint32_t keys_wide(const gr_layer_call *l)
{
    return desc(l)->kv_heads * desc(l)->head_dim;
}

static bool takes(const gr_layer_call *l)
{
    return desc(l)->keys == GR_KEYS_TAKEN;
}

static bool lends(const gr_layer_call *l)
{
    return desc(l)->keys == GR_KEYS_LENT;
}

/* A row of the first product's output, which has no room for keys that are another layer's. */
static uint32_t proj_rows(const gr_layer_call *l)
{
    return takes(l) ? gr_qkv_given(desc(l)) : gr_qkv_rows(&l->own);
}

static bool is_cut(const gr_layer_call *l)
{
    return gr_layer_cut(l) > 1;
}

/* Output of the heads that this rank attends with. */
static uint32_t own_wide(const gr_layer_call *l)
{
    return l->own.heads * l->own.head_dim;
}

static gr_product qkv(const gr_layer_call *l, const void *in)
{
    return gr_layer_product(l, in, l->s->hidden, GR_T_QKV, GR_T_QKV_BIAS, gr_qkv_given(desc(l)));
}

static gr_product out(const gr_layer_call *l, const void *x)
{
    return gr_layer_product(l, x, wide(l), GR_T_O, GR_T_O_BIAS, l->s->hidden);
}

/* Groups of columns that are cut by heads: of q, k and v, or of attention's output. */
static gr_layer_columns qkv_columns(const gr_layer_call *l)
{
    const gr_attention_desc *d = desc(l);
    const uint32_t copies = gr_cut_copies(l->own.kv_heads, gr_layer_cut(l), d->kv_heads);
    const struct gr_layer_group keys = {d->kv_heads * d->head_dim, d->kv_heads, copies};
    return (gr_layer_columns){3, {{wide(l), d->heads, 1}, keys, keys}};
}

static gr_layer_columns out_columns(const gr_layer_call *l)
{
    return (gr_layer_columns){1, {{wide(l), desc(l)->heads, 1}}};
}

/* ---- buffers ---------------------------------------------------------------------------------------------
 */

static bool lean(const gr_layer_call *l)
{
    return l->use == GR_LAYER_EXTEND && !l->ops->extends_packed;
}

/* Whether the product's output is kept apart from what is attended to: there is a gate in it, or a norm was
 * behind it whose input the device keeps whole, or which is of values, too; or keys are another layer's. */
static bool splits(const gr_layer_call *l)
{
    const bool norm = l->own.value_norm || (l->own.qk_norm && !l->ops->keeps_rotated);
    return l->own.gate || takes(l) || (norm && !lean(l));
}

/* Rotated q and k are the activations' on a device that keeps them, or where they are all there is. */
static bool keeps_qkv(const gr_layer_call *l)
{
    return l->ops->keeps_rotated || !splits(l);
}

static void acts(gr_workspace *c, const gr_layer_call *l, gr_layer_acts *acts_of)
{
    const gr_attention_desc *d = &l->own;
    gr_attention_acts *a = &acts_of->attention;
    if (splits(l)) a->proj = gr_layer_all_rows(c, l, proj_rows(l));
    if (keeps_qkv(l)) a->qkv = gr_layer_all_rows(c, l, gr_qkv_width(d));
    if (d->qk_norm && l->ops->keeps_rotated && !splits(l))
        a->raw = gr_layer_all_rows(c, l, (uint64_t)(d->heads + d->kv_heads) * d->head_dim);
    a->out = gr_layer_all_rows(c, l, own_wide(l));
    if (!lean(l)) a->stats = gr_workspace_floats(c, (uint64_t)l->bounds.tokens * gr_layer_cut(l) * d->heads);
    if (!is_cut(l)) return;
    if (desc(l)->gate) a->local = gr_layer_rows(c, l, gr_qkv_rows(desc(l)));
    a->merged = gr_layer_rows(c, l, wide(l));
}

static void kernel_ws(gr_workspace *c, const gr_layer_call *l, gr_layer_ws *w)
{
    gr_pass_bounds all = l->bounds;
    all.tokens *= gr_layer_cut(l);
    w->attention.attend_bytes = l->ops->attend_ws_bytes(&l->own, &all, l->use);
    w->attention.attend = gr_workspace_bytes(c, w->attention.attend_bytes);
}

static void ws(gr_workspace *c, const gr_layer_call *l, gr_layer_ws *ws_of)
{
    const gr_attention_desc *d = desc(l);
    gr_attention_ws *w = &ws_of->attention;
    const gr_layer_columns columns = qkv_columns(l);
    const bool back = l->use == GR_LAYER_BACKWARD;
    if (!keeps_qkv(l)) w->qkv = gr_layer_all_rows(c, l, gr_qkv_width(&l->own));
    if (d->keys_are_values) w->given = gr_layer_rows(c, l, gr_qkv_given(d));
    if (takes(l)) w->queries = gr_layer_rows(c, l, wide(l));
    if (d->gate) w->gated = gr_layer_rows(c, l, wide(l));
    if (is_cut(l)) w->parts = gr_layer_parts(c, l, &columns, back);
    if (is_cut(l) && !back && !d->gate) w->local = gr_layer_rows(c, l, gr_qkv_width(d));
    if (!back) return;
    if (d->keys_are_values) w->d_keys = gr_layer_rows(c, l, keys_wide(l));
    if (d->keys_are_values) w->d_values = gr_layer_rows(c, l, keys_wide(l));
    if (takes(l) || lends(l)) w->d_lent = gr_layer_rows(c, l, 2ull * keys_wide(l));
    w->d_out = gr_layer_all_rows(c, l, own_wide(l));
    w->d_qkv = gr_layer_all_rows(c, l, gr_qkv_width(&l->own));
    w->d_proj = takes(l)               ? gr_layer_rows(c, l, gr_qkv_given(d))
                : d->gate || is_cut(l) ? gr_layer_rows(c, l, gr_qkv_rows(d))
                                       : w->d_qkv;
    w->d_merged = is_cut(l) ? gr_layer_rows(c, l, wide(l)) : w->d_out;
    w->d_gated = d->gate ? gr_layer_rows(c, l, wide(l)) : w->d_merged;
}

static uint64_t product_ws(const gr_layer_call *l)
{
    const uint32_t h = l->s->hidden;
    return GR_MAX(gr_layer_product_ws(l, h, gr_qkv_given(desc(l))), gr_layer_product_ws(l, wide(l), h));
}

/* ---- passes ----------------------------------------------------------------------------------------------
 */

static gr_rotate rotation(const gr_layer_call *l)
{
    return (gr_rotate){.d = &l->own,
                       .b = &l->all,
                       .q_norm = gr_layer_tensor(l, GR_T_Q_NORM),
                       .k_norm = gr_layer_tensor(l, GR_T_K_NORM),
                       .eps = l->d->norm_eps,
                       .plus_one = l->d->norm_plus_one};
}

static gr_attend attention(const gr_layer_call *l, const gr_attention_acts *a, const gr_layer_ws *w)
{
    return (gr_attend){.d = &l->own,
                       .b = &l->all,
                       .qkv = a->qkv ? a->qkv : w->attention.qkv,
                       .sinks =
                           gr_layer_of_heads(l, gr_layer_tensor(l, GR_T_SINKS), l->own.heads, l->k->dtype),
                       .ws = w->attention.attend,
                       .ws_bytes = w->attention.attend_bytes};
}

/* The logits of the gate, in rows of the product's output. */
static char *gate_in(const gr_layer_call *l, void *proj)
{
    return (char *)proj + (uint64_t)gr_qkv_width(desc(l)) * gr_dtype_size(l->k->dtype);
}

/* What the product out reads: attention's output, behind its gate where there is one. */
static void *gated(const gr_layer_call *l, const gr_attention_acts *a, const gr_layer_ws *w)
{
    void *out = is_cut(l) ? a->merged : a->out;
    if (!desc(l)->gate) return out;
    l->ops->gate(l->q, l->b.n, wide(l), out, gate_in(l, is_cut(l) ? a->local : a->proj), gr_qkv_rows(desc(l)),
                 w->attention.gated);
    return w->attention.gated;
}

/* Rows of q, k and v where the product gave q and k, and values are keys. */
static void repeat_keys(const gr_layer_call *l, const void *given, void *rows)
{
    const uint64_t q = wide(l), keys = keys_wide(l), ld = gr_qkv_rows(desc(l)), from = gr_qkv_given(desc(l));
    gr_layer_copy_columns(l, rows, given, &(gr_layer_copy){0, ld, 0, from, q + keys});
    gr_layer_copy_columns(l, rows, given, &(gr_layer_copy){q + keys, ld, q, from, keys});
}

/* And back: what keys and values give to the same projection is added up. */
static void join_values(const gr_layer_call *l, const gr_attention_ws *t)
{
    const uint64_t q = wide(l), keys = keys_wide(l), ld = gr_qkv_rows(desc(l)), to = gr_qkv_given(desc(l));
    gr_layer_copy_columns(l, t->d_keys, t->d_proj, &(gr_layer_copy){0, keys, q, ld, keys});
    gr_layer_copy_columns(l, t->d_values, t->d_proj, &(gr_layer_copy){0, keys, q + keys, ld, keys});
    l->k->add(l->q, t->d_keys, t->d_values, l->k->dtype, l->b.n * keys);
    gr_layer_copy_columns(l, t->given, t->d_proj, &(gr_layer_copy){0, to, 0, ld, q});
    gr_layer_copy_columns(l, t->given, t->d_keys, &(gr_layer_copy){q, to, 0, keys, keys});
}

/* q, k and v of the tokens and heads that this rank attends with, and the gate's logits of its tokens. */
static void project(const gr_layer_call *l, const void *in, const gr_attention_acts *a, const gr_layer_ws *w,
                    void *proj)
{
    const gr_product p = qkv(l, in);
    const gr_layer_columns columns = qkv_columns(l);
    void *local = a->local ? a->local : w->attention.local, *rows = is_cut(l) ? local : proj,
         *given = w->attention.given;
    l->ops->product(l->q, &p, given ? given : rows, w->product);
    if (given) repeat_keys(l, given, rows);
    if (is_cut(l)) gr_layer_to_heads(l, &columns, local, gr_qkv_rows(desc(l)), proj, w->attention.parts);
}

/* ---- keys and values that are lent and taken -------------------------------------------------------------
 */

/* Where they lie in what layers hand on, or d loss / d them. */
static void *lent(const gr_layer_call *l, void *carried)
{
    return gr_carried_keys(l->k, l->s, l->b.n, gr_model_keys_of(l->s, l->bucket - 1), carried);
}

/* Keys and values in rows of [W], and as they are lent. */
static gr_layer_copy lent_columns(const gr_layer_call *l)
{
    const uint64_t both = 2ull * keys_wide(l);
    return (gr_layer_copy){0, both, wide(l), gr_qkv_width(desc(l)), both};
}

static gr_layer_copy taken_columns(const gr_layer_call *l)
{
    const gr_layer_copy c = lent_columns(l);
    return (gr_layer_copy){c.from, c.from_ld, c.to, c.to_ld, c.n};
}

/* Attention with queries alone, for their norm and rotation. */
static gr_attention_desc queries_of(const gr_layer_call *l)
{
    gr_attention_desc d = *desc(l);
    d.kv_heads = 0;
    return d;
}

/* Rows that are attended to: q of this layer, beside keys and values of the one that lends them. In a rollout
 * these are in its blocks. */
static void take_keys(const gr_layer_call *l, const gr_layer_ws *w, const void *proj, void *qkv)
{
    const gr_attention_desc d = queries_of(l);
    const gr_layer_copy keys = taken_columns(l), q = {0, gr_qkv_width(desc(l)), 0, wide(l), wide(l)};
    gr_rotate r = rotation(l);
    r.d = &d;
    l->ops->rotate(l->q, &r, proj, w->attention.queries, NULL);
    gr_layer_copy_columns(l, qkv, w->attention.queries, &q);
    if (!l->b.state) gr_layer_copy_columns(l, qkv, lent(l, l->carried), &keys);
}

static void lend_keys(const gr_layer_call *l, const void *qkv)
{
    const gr_layer_copy keys = lent_columns(l);
    if (!l->b.state) gr_layer_copy_columns(l, lent(l, l->carried), qkv, &keys);
}

/* What a layer that took them gives to their gradients, which are summed from the last layer down; and d loss
 * / d q to the product's. */
static void give_back(const gr_layer_call *l, const gr_layer_ws *w)
{
    const gr_attention_ws *t = &w->attention;
    const uint32_t layer = l->bucket - 1;
    const bool first = gr_model_last_taker(l->s, gr_model_keys_of(l->s, layer)) == layer;
    const gr_layer_copy keys = lent_columns(l), q = {0, wide(l), 0, gr_qkv_width(desc(l)), wide(l)};
    void *sum = lent(l, l->d_carried);
    gr_layer_copy_columns(l, t->d_proj, t->d_qkv, &q);
    gr_layer_copy_columns(l, first ? sum : t->d_lent, t->d_qkv, &keys);
    if (!first) l->k->add(l->q, sum, t->d_lent, l->k->dtype, (uint64_t)l->b.n * keys.n);
}

/* The layer's own part comes last. */
static void add_lent(const gr_layer_call *l, const gr_layer_ws *w)
{
    const gr_layer_copy from = lent_columns(l), to = taken_columns(l);
    void *sum = lent(l, l->d_carried);
    gr_layer_copy_columns(l, w->attention.d_lent, w->attention.d_qkv, &from);
    l->k->add(l->q, sum, w->attention.d_lent, l->k->dtype, (uint64_t)l->b.n * from.n);
    gr_layer_copy_columns(l, w->attention.d_qkv, sum, &to);
}

/* Of rotated rows, from what the product gave; not where the device attends to it in one go. */
static void rotate_rows(const gr_layer_call *l, const gr_layer_ws *w, const void *proj, void *qkv, void *raw)
{
    const gr_rotate r = rotation(l);
    if (takes(l))
        take_keys(l, w, proj, qkv);
    else
        l->ops->rotate(l->q, &r, proj, qkv, raw);
}

/* Whether attention leaves what the product out alone reads rounded for it. */
static bool attend_round(const gr_layer_call *l, const gr_attend *c, const gr_attention_acts *a,
                         const gr_layer_ws *w)
{
    const gr_product end = out(l, a->out);
    return l->ops->attend_round && !desc(l)->gate && !is_cut(l) &&
           l->ops->attend_round(l->q, c, &end, a->out, w->product);
}

static void forward(const gr_layer_call *l, const void *in, const gr_layer_acts *acts_of,
                    const gr_layer_ws *w, const gr_layer_close *close)
{
    const gr_attention_acts *a = &acts_of->attention;
    const gr_layer_ops *ops = l->ops;
    const gr_attend c = attention(l, a, w);
    const gr_rotate r = rotation(l);
    const gr_layer_columns columns = out_columns(l);
    void *proj = a->proj ? a->proj : a->qkv;
    bool rounded = false;
    project(l, in, a, w, proj);
    if (takes(l) || !ops->rotate_attend || !ops->rotate_attend(l->q, &r, &c, proj, a->out)) {
        rotate_rows(l, w, proj, (void *)(uintptr_t)c.qkv, a->raw);
        rounded = attend_round(l, &c, a, w);
        if (!rounded) ops->attend(l->q, &c, a->out, a->stats);
    }
    if (lends(l)) lend_keys(l, c.qkv);
    if (is_cut(l)) gr_layer_to_tokens(l, &columns, a->out, a->merged, wide(l), w->attention.parts);
    gr_product end = out(l, gated(l, a, w));
    end.rounded = rounded;
    gr_layer_close_product(l, &end, w, close);
}

/* d loss / d attention's output, from that of the half's; and the gate's logits' in d_proj. */
static void out_back(const gr_layer_call *l, const gr_attention_acts *a, const gr_layer_ws *w,
                     const void *d_out)
{
    const gr_attention_ws *t = &w->attention;
    const uint32_t ld = gr_qkv_rows(desc(l));
    const gr_product end = out(l, gated(l, a, w));
    const gr_layer_columns columns = out_columns(l);
    gr_layer_product_back(l, &end, GR_T_O, GR_T_O_BIAS, d_out, t->d_gated, w);
    if (desc(l)->gate)
        l->ops->gate_backward(l->q, l->b.n, wide(l), is_cut(l) ? a->merged : a->out,
                              gate_in(l, is_cut(l) ? a->local : a->proj), ld, t->d_gated, t->d_merged,
                              gate_in(l, t->d_proj));
    if (is_cut(l)) gr_layer_to_heads(l, &columns, t->d_merged, wide(l), t->d_out, t->parts);
}

/* d loss / d the product's output, beside the gate's. */
static void copy_to_proj(const gr_layer_call *l, const gr_attention_ws *t)
{
    const gr_layer_columns columns = qkv_columns(l);
    if (is_cut(l)) {
        gr_layer_to_tokens(l, &columns, t->d_qkv, t->d_proj, gr_qkv_rows(desc(l)), t->parts);
        return;
    }
    const uint64_t size = gr_dtype_size(l->k->dtype), row = gr_qkv_width(desc(l)) * size;
    if (t->d_proj != t->d_qkv && !takes(l))
        l->k->copy_rows(l->q, t->d_proj, gr_qkv_rows(desc(l)) * size, t->d_qkv, row, row, l->b.n);
}

/* d loss / d the product's output, from that of what was attended to. */
static void rotate_back(const gr_layer_call *l, const gr_attention_acts *a, const gr_layer_ws *w)
{
    const gr_attention_desc *d = &l->own, queries = queries_of(l);
    const void *raw = a->raw ? a->raw : a->proj;
    const uint32_t raw_ld = a->raw ? (d->heads + d->kv_heads) * d->head_dim : proj_rows(l);
    gr_rotate r = rotation(l);
    if (takes(l)) r.d = &queries;
    l->ops->rotate_backward(l->q, &r, raw, raw_ld, takes(l) ? w->attention.d_proj : w->attention.d_qkv,
                            gr_layer_grad(l, GR_T_Q_NORM), gr_layer_grad(l, GR_T_K_NORM), l->grads,
                            w->scratch);
    copy_to_proj(l, &w->attention);
}

static void backward(const gr_layer_call *l, const void *in, const gr_layer_acts *acts_of,
                     const gr_layer_ws *w, const void *d_out, void *d_in)
{
    const gr_attention_acts *a = &acts_of->attention;
    const gr_attention_ws *t = &w->attention;
    const gr_attention_desc *d = &l->own;
    const gr_layer_ops *ops = l->ops;
    const gr_attend c = attention(l, a, w);
    const gr_product p = qkv(l, in);
    out_back(l, a, w, d_out);
    if (!a->qkv) rotate_rows(l, w, a->proj, t->qkv, NULL);
    ops->attend_backward(
        l->q, &c, a->out, a->stats, t->d_out, t->d_qkv,
        d->sinks ? gr_layer_of_heads(l, gr_layer_grad(l, GR_T_SINKS), d->heads, l->grads) : NULL, l->grads);
    if (takes(l)) give_back(l, w);
    if (lends(l)) add_lent(l, w);
    rotate_back(l, a, w);
    if (t->given) join_values(l, t);
    gr_layer_product_back(l, &p, GR_T_QKV, GR_T_QKV_BIAS, t->given ? t->given : t->d_proj, d_in, w);
}

/* ---- what a device has -----------------------------------------------------------------------------------
 */

static const char *unfit(const gr_layer_ops *ops, const gr_layer_desc *d)
{
    return ops->attend_unfit ? ops->attend_unfit(&d->attention) : NULL;
}

/* Keys of another layer are in its state. */
static uint64_t state_bytes(const gr_layer_ops *ops, const gr_layer_desc *d)
{
    return d->attention.keys == GR_KEYS_TAKEN ? 0 : ops->kv_block_bytes(&d->attention);
}

const gr_layer_part gr_layer_attention = {.acts = acts,
                                          .ws = ws,
                                          .kernel_ws = kernel_ws,
                                          .product_ws = product_ws,
                                          .first = qkv,
                                          .forward = forward,
                                          .backward = backward,
                                          .unfit = unfit,
                                          .state_bytes = state_bytes};
