/* ops/kernels/layer_delta.c: the gated delta rule of a layer: one product in, the rule (ops/kernels/delta.h),
 * the product out. What a device keeps for the backward pass is the product's rows and the rule's output
 * before its norm.
 *
 * Where tokens are cut over ranks, products are of a rank's own tokens. The rule, with its convolution, gates
 * and norm, is of all tokens and of its own heads (gr_layer_to_heads): no state goes from rank to rank. */
#include "ops/kernels/delta.h"
#include "ops/kernels/layer_impl.h"

static const gr_delta_desc *desc(const gr_layer_call *l)
{
    return &l->d->delta;
}

static gr_product into(const gr_layer_call *l, const void *in)
{
    return gr_layer_product(l, in, l->s->hidden, GR_T_DELTA_IN, GR_T_COUNT, gr_delta_in(desc(l)));
}

static gr_product out(const gr_layer_call *l, const void *x)
{
    return gr_layer_product(l, x, gr_delta_out(desc(l)), GR_T_DELTA_OUT, GR_T_COUNT, l->s->hidden);
}

static bool is_cut(const gr_layer_call *l)
{
    return gr_layer_cut(l) > 1;
}

/* What this rank does of the rule. */
static gr_delta_desc own(const gr_layer_call *l)
{
    return gr_delta_cut(desc(l), gr_layer_cut(l));
}

static uint32_t copies(const gr_layer_call *l)
{
    return gr_cut_copies(own(l).key_heads, gr_layer_cut(l), desc(l)->key_heads);
}

/* Groups of columns that are cut by heads: q, k, v, z, b and a of what the rule is given, or its output. */
static gr_layer_columns in_columns(const gr_layer_call *l)
{
    const gr_delta_desc *d = desc(l);
    const struct gr_layer_group keys = {d->key_heads * d->key_dim, d->key_heads, copies(l)},
                                values = {gr_delta_out(d), d->value_heads, 1},
                                gates = {d->value_heads, d->value_heads, 1};
    return (gr_layer_columns){6, {keys, keys, values, values, gates, gates}};
}

static gr_layer_columns out_columns(const gr_layer_call *l)
{
    return (gr_layer_columns){1, {{gr_delta_out(desc(l)), desc(l)->value_heads, 1}}};
}

/* The convolution's weights, as of one row: q, k and v of each tap. */
static gr_layer_columns conv_columns(const gr_layer_call *l)
{
    gr_layer_columns c = in_columns(l);
    c.n = 3;
    for (uint32_t i = 0; i < c.n; i++) c.group[i].width *= desc(l)->conv;
    return c;
}

static uint64_t conv_elems(const gr_layer_call *l)
{
    const gr_delta_desc d = own(l);
    return (uint64_t)gr_delta_channels(&d) * d.conv;
}

/* ---- buffers ---------------------------------------------------------------------------------------------
 */

static void acts(gr_workspace *c, const gr_layer_call *l, gr_layer_acts *acts_of)
{
    const gr_delta_desc d = own(l);
    gr_delta_acts *a = &acts_of->delta;
    a->proj = gr_layer_all_rows(c, l, gr_delta_in(&d));
    a->out = gr_layer_all_rows(c, l, gr_delta_out(&d));
    if (l->use == GR_LAYER_KEEP || l->use == GR_LAYER_BACKWARD)
        a->mixed = gr_layer_all_rows(c, l, gr_delta_out(&d));
    a->merged = is_cut(l) ? gr_layer_rows(c, l, gr_delta_out(desc(l))) : a->out;
}

static void kernel_ws(gr_workspace *c, const gr_layer_call *l, gr_layer_ws *w)
{
    const gr_layer_use use = l->use == GR_LAYER_BACKWARD ? l->use : GR_LAYER_FORWARD;
    const gr_delta_desc d = own(l);
    gr_pass_bounds all = l->bounds;
    all.tokens *= gr_layer_cut(l);
    w->delta.rule = gr_workspace_bytes(c, l->ops->delta->ws_bytes(&d, &all, use));
}

static void cut_ws(gr_workspace *c, const gr_layer_call *l, gr_delta_ws *w)
{
    const gr_layer_columns columns = in_columns(l);
    w->parts = gr_layer_parts(c, l, &columns, l->use == GR_LAYER_BACKWARD);
    w->local = gr_layer_rows(c, l, gr_delta_in(desc(l)));
    w->conv = gr_workspace_bytes(c, conv_elems(l) * gr_dtype_size(l->k->dtype));
}

static void ws(gr_workspace *c, const gr_layer_call *l, gr_layer_ws *ws_of)
{
    const gr_delta_desc d = own(l);
    gr_delta_ws *w = &ws_of->delta;
    if (is_cut(l)) cut_ws(c, l, w);
    if (l->use != GR_LAYER_BACKWARD) return;
    w->d_out = gr_layer_all_rows(c, l, gr_delta_out(&d));
    w->d_proj = gr_layer_all_rows(c, l, gr_delta_in(&d));
    w->d_merged = is_cut(l) ? gr_layer_rows(c, l, gr_delta_out(desc(l))) : w->d_out;
    if (is_cut(l)) w->d_conv = gr_workspace_floats(c, conv_elems(l)); /* of the widest type */
}

static uint64_t product_ws(const gr_layer_call *l)
{
    const uint32_t h = l->s->hidden;
    return GR_MAX(gr_layer_product_ws(l, h, gr_delta_in(desc(l))),
                  gr_layer_product_ws(l, gr_delta_out(desc(l)), h));
}

/* ---- passes ----------------------------------------------------------------------------------------------
 */

/* The convolution's weights of this rank's channels. */
static const void *conv_of(const gr_layer_call *l, const gr_layer_ws *w)
{
    const gr_layer_columns columns = conv_columns(l);
    const void *all = gr_layer_tensor(l, GR_T_DELTA_CONV);
    if (!is_cut(l)) return all;
    gr_layer_take_own(l, &columns, l->k->dtype, all, w->delta.conv);
    return w->delta.conv;
}

static gr_delta_call call_of(const gr_layer_call *l, const gr_layer_acts *a, const gr_layer_ws *w)
{
    const gr_tokens *b = &l->all;
    const gr_delta_desc d = own(l);
    const gr_dtype type = l->k->dtype;
    return (gr_delta_call){
        .d = d,
        .eps = l->d->norm_eps,
        .conv = conv_of(l, w),
        .a_log = gr_layer_of_heads(l, gr_layer_tensor(l, GR_T_DELTA_A_LOG), d.value_heads, type),
        .dt_bias = gr_layer_of_heads(l, gr_layer_tensor(l, GR_T_DELTA_DT), d.value_heads, type),
        .norm = gr_layer_tensor(l, GR_T_DELTA_NORM),
        .in = a->delta.proj,
        .n_tokens = b->n,
        .n_seqs = b->n_seqs,
        .longest = b->state ? b->longest : l->bounds.length,
        .offset = b->offset,
        .state = b->state,
        .slot = b->held,
        .cached = b->cached,
        .after = b->held_after,
        .each = b->decode ? b->decode->each : 0,
        .ws = w->delta.rule};
}

static void forward(const gr_layer_call *l, const void *in, const gr_layer_acts *a, const gr_layer_ws *w,
                    const gr_layer_close *close)
{
    const gr_delta_ws *t = &w->delta;
    const gr_product p = into(l, in), end = out(l, a->delta.merged);
    const gr_delta_call c = call_of(l, a, w);
    const gr_layer_columns given = in_columns(l), gives = out_columns(l);
    l->ops->product(l->q, &p, is_cut(l) ? t->local : a->delta.proj, w->product);
    if (is_cut(l)) gr_layer_to_heads(l, &given, t->local, gr_delta_in(desc(l)), a->delta.proj, t->parts);
    l->ops->delta->forward(l->q, &c, a->delta.out, a->delta.mixed);
    if (is_cut(l))
        gr_layer_to_tokens(l, &gives, a->delta.out, a->delta.merged, gr_delta_out(desc(l)), t->parts);
    gr_layer_close_product(l, &end, w, close);
}

/* The rule adds to the gradients of this rank's heads: those of the convolution it is given on their own, as
 * far as they have come. */
static void rule_back(const gr_layer_call *l, const gr_layer_acts *a, const gr_layer_ws *w)
{
    const gr_delta_ws *t = &w->delta;
    const gr_delta_call c = call_of(l, a, w);
    const gr_layer_columns columns = conv_columns(l);
    void *conv = gr_layer_grad(l, GR_T_DELTA_CONV);
    const bool apart = is_cut(l) && conv;
    const gr_delta_grads grads = {
        l->grads, apart ? t->d_conv : conv,
        gr_layer_of_heads(l, gr_layer_grad(l, GR_T_DELTA_A_LOG), c.d.value_heads, l->grads),
        gr_layer_of_heads(l, gr_layer_grad(l, GR_T_DELTA_DT), c.d.value_heads, l->grads),
        gr_layer_grad(l, GR_T_DELTA_NORM)};
    if (apart) gr_layer_take_own(l, &columns, l->grads, conv, t->d_conv);
    l->ops->delta->backward(l->q, &c, a->delta.mixed, t->d_out, t->d_proj, &grads);
    if (apart) gr_layer_put_own(l, &columns, l->grads, t->d_conv, conv);
}

static void backward(const gr_layer_call *l, const void *in, const gr_layer_acts *a, const gr_layer_ws *w,
                     const void *d_out, void *d_in)
{
    const gr_delta_ws *t = &w->delta;
    const gr_product p = into(l, in), end = out(l, a->delta.merged);
    const gr_layer_columns given = in_columns(l), gives = out_columns(l);
    gr_layer_product_back(l, &end, GR_T_DELTA_OUT, GR_T_COUNT, d_out, t->d_merged, w);
    if (is_cut(l)) gr_layer_to_heads(l, &gives, t->d_merged, gr_delta_out(desc(l)), t->d_out, t->parts);
    rule_back(l, a, w);
    if (is_cut(l)) gr_layer_to_tokens(l, &given, t->d_proj, t->local, gr_delta_in(desc(l)), t->parts);
    gr_layer_product_back(l, &p, GR_T_DELTA_IN, GR_T_COUNT, is_cut(l) ? t->local : t->d_proj, d_in, w);
}

/* ---- what a device has -----------------------------------------------------------------------------------
 */

static const char *unfit(const gr_layer_ops *ops, const gr_layer_desc *d)
{
    return ops->delta ? ops->delta->unfit(&d->delta) : "the gated delta rule";
}

static uint64_t state_bytes(const gr_layer_ops *ops, const gr_layer_desc *d)
{
    (void)ops;
    return gr_delta_state_bytes(&d->delta);
}

const gr_layer_part gr_layer_delta = {.acts = acts,
                                      .ws = ws,
                                      .kernel_ws = kernel_ws,
                                      .product_ws = product_ws,
                                      .forward = forward,
                                      .backward = backward,
                                      .unfit = unfit,
                                      .state_bytes = state_bytes};
