/* ops/kernels/layer_dense.c: a dense MLP of a layer: gate and up in one product, an activation, down. The
 * activation is computed again in the backward pass. */
#include "ops/kernels/layer_impl.h"

static const gr_dense_desc *desc(const gr_layer_call *l)
{
    return &l->d->dense;
}

static gr_product gate_up(const gr_layer_call *l, const void *in)
{
    return gr_layer_product(l, in, l->s->hidden, GR_T_GATE_UP, GR_T_COUNT, 2 * desc(l)->inner);
}

static gr_product down(const gr_layer_call *l, const void *h)
{
    return gr_layer_product(l, h, desc(l)->inner, GR_T_DOWN, GR_T_COUNT, l->s->hidden);
}

static void acts(gr_workspace *c, const gr_layer_call *l, gr_layer_acts *a)
{
    a->dense.gate_up = gr_layer_rows(c, l, 2 * (uint64_t)desc(l)->inner);
}

static void ws(gr_workspace *c, const gr_layer_call *l, gr_layer_ws *w)
{
    const uint64_t inner = desc(l)->inner;
    w->dense.h = gr_layer_rows(c, l, inner);
    if (l->use != GR_LAYER_BACKWARD) return;
    w->dense.d_h = gr_layer_rows(c, l, inner);
    w->dense.d_gate_up = gr_layer_rows(c, l, 2 * inner);
}

static uint64_t product_ws(const gr_layer_call *l)
{
    const uint32_t h = l->s->hidden, inner = desc(l)->inner;
    return GR_MAX(gr_layer_product_ws(l, h, 2 * inner), gr_layer_product_ws(l, inner, h));
}

/* Whether the activation leaves what `end` reads rounded for it. */
static bool activate_round(const gr_layer_call *l, const gr_product *end, const gr_layer_acts *a,
                           const gr_layer_ws *w)
{
    return l->ops->activate_round &&
           l->ops->activate_round(l->q, desc(l), a->dense.gate_up, end, w->dense.h, w->product);
}

static void forward(const gr_layer_call *l, const void *in, const gr_layer_acts *a, const gr_layer_ws *w,
                    const gr_layer_close *close)
{
    const gr_layer_ops *ops = l->ops;
    const gr_product p = gate_up(l, in);
    gr_product end = down(l, w->dense.h);
    if (!ops->product_activate || !ops->product_activate(l->q, desc(l), &l->b, &p, w->dense.h)) {
        ops->product(l->q, &p, a->dense.gate_up, w->product);
        end.rounded = activate_round(l, &end, a, w);
        if (!end.rounded) ops->activate(l->q, desc(l), l->b.n, a->dense.gate_up, w->dense.h);
    }
    gr_layer_close_product(l, &end, w, close);
}

static void backward(const gr_layer_call *l, const void *in, const gr_layer_acts *a, const gr_layer_ws *w,
                     const void *d_out, void *d_in)
{
    const gr_dense_ws *m = &w->dense;
    const gr_product p = gate_up(l, in), end = down(l, m->h);
    l->ops->product_dx(l->q, &end, d_out, m->d_h, w->product);
    l->ops->activate_backward(l->q, desc(l), l->b.n, a->dense.gate_up, m->d_h, m->d_gate_up, m->h);
    gr_layer_product_back(l, &end, GR_T_DOWN, GR_T_COUNT, d_out, NULL, w);
    gr_layer_product_back(l, &p, GR_T_GATE_UP, GR_T_COUNT, m->d_gate_up, d_in, w);
}

static const char *unfit(const gr_layer_ops *ops, const gr_layer_desc *d)
{
    return ops->acts >> d->dense.act & 1 ? NULL : "the activation of its MLP";
}

const gr_layer_part gr_layer_dense = {.acts = acts,
                                      .ws = ws,
                                      .product_ws = product_ws,
                                      .first = gate_up,
                                      .forward = forward,
                                      .backward = backward,
                                      .unfit = unfit};
