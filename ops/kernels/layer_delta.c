/* ops/kernels/layer_delta.c: the gated delta rule of a layer: one product in, the rule (ops/kernels/delta.h),
 * the product out. What a device keeps for the backward pass is the product's rows and the rule's output
 * before its norm.
 */
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

/* ---- buffers ---------------------------------------------------------------------------------------------
 */

static void acts(gr_workspace *c, const gr_layer_call *l, gr_layer_acts *acts_of)
{
    gr_delta_acts *a = &acts_of->delta;
    a->proj = gr_layer_rows(c, l, gr_delta_in(desc(l)));
    a->out = gr_layer_rows(c, l, gr_delta_out(desc(l)));
    if (l->use == GR_LAYER_KEEP || l->use == GR_LAYER_BACKWARD)
        a->mixed = gr_layer_rows(c, l, gr_delta_out(desc(l)));
}

static void kernel_ws(gr_workspace *c, const gr_layer_call *l, gr_layer_ws *w)
{
    const gr_layer_use use = l->use == GR_LAYER_BACKWARD ? l->use : GR_LAYER_FORWARD;
    w->delta.rule = gr_workspace_bytes(c, l->ops->delta->ws_bytes(desc(l), &l->bounds, use));
}

static void ws(gr_workspace *c, const gr_layer_call *l, gr_layer_ws *w)
{
    if (l->use != GR_LAYER_BACKWARD) return;
    w->delta.d_out = gr_layer_rows(c, l, gr_delta_out(desc(l)));
    w->delta.d_proj = gr_layer_rows(c, l, gr_delta_in(desc(l)));
}

static uint64_t product_ws(const gr_layer_call *l)
{
    const uint32_t h = l->s->hidden;
    return GR_MAX(gr_layer_product_ws(l, h, gr_delta_in(desc(l))),
                  gr_layer_product_ws(l, gr_delta_out(desc(l)), h));
}

/* ---- passes ----------------------------------------------------------------------------------------------
 */

static gr_delta_call call_of(const gr_layer_call *l, const gr_layer_acts *a, const gr_layer_ws *w)
{
    const gr_tokens *b = &l->b;
    return (gr_delta_call){.d = *desc(l),
                           .eps = l->d->norm_eps,
                           .conv = gr_layer_tensor(l, GR_T_DELTA_CONV),
                           .a_log = gr_layer_tensor(l, GR_T_DELTA_A_LOG),
                           .dt_bias = gr_layer_tensor(l, GR_T_DELTA_DT),
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
    const gr_product p = into(l, in), end = out(l, a->delta.out);
    const gr_delta_call c = call_of(l, a, w);
    l->ops->product(l->q, &p, a->delta.proj, w->product);
    l->ops->delta->forward(l->q, &c, a->delta.out, a->delta.mixed);
    gr_layer_close_product(l, &end, w, close);
}

static void backward(const gr_layer_call *l, const void *in, const gr_layer_acts *a, const gr_layer_ws *w,
                     const void *d_out, void *d_in)
{
    const gr_delta_ws *t = &w->delta;
    const gr_product p = into(l, in), end = out(l, a->delta.out);
    const gr_delta_call c = call_of(l, a, w);
    const gr_delta_grads grads = {l->grads, gr_layer_grad(l, GR_T_DELTA_CONV),
                                  gr_layer_grad(l, GR_T_DELTA_A_LOG), gr_layer_grad(l, GR_T_DELTA_DT),
                                  gr_layer_grad(l, GR_T_DELTA_NORM)};
    gr_layer_product_back(l, &end, GR_T_DELTA_OUT, GR_T_COUNT, d_out, t->d_out, w);
    l->ops->delta->backward(l->q, &c, a->delta.mixed, t->d_out, t->d_proj, &grads);
    gr_layer_product_back(l, &p, GR_T_DELTA_IN, GR_T_COUNT, t->d_proj, d_in, w);
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
