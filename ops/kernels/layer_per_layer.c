/* ops/kernels/layer_per_layer.c: the third part of a layer that has embeddings of its own: a gate of the
 * hidden state, an activation, the product with the token's embedding for this layer, a projection. A gate
 * beside an embedding is to the device a gate beside an up projection. */
#include "ops/kernels/carried.h"
#include "ops/kernels/layer_impl.h"

static uint32_t width(const gr_layer_call *l)
{
    return l->d->per_layer;
}

/* Its activation: the MLP's, of this width. */
static gr_dense_desc activation(const gr_layer_call *l)
{
    gr_dense_desc d = l->d->dense;
    d.inner = width(l);
    return d;
}

static gr_product gate(const gr_layer_call *l, const void *in)
{
    return gr_layer_product(l, in, l->s->hidden, GR_T_PER_LAYER_GATE, GR_T_COUNT, width(l));
}

static gr_product out(const gr_layer_call *l, const void *h)
{
    return gr_layer_product(l, h, width(l), GR_T_PER_LAYER_OUT, GR_T_COUNT, l->s->hidden);
}

static void acts(gr_workspace *c, const gr_layer_call *l, gr_layer_acts *a)
{
    a->per_layer.gate_embed = gr_layer_rows(c, l, 2 * (uint64_t)width(l));
}

static void ws(gr_workspace *c, const gr_layer_call *l, gr_layer_ws *w)
{
    w->per_layer.gate = gr_layer_rows(c, l, width(l));
    w->per_layer.h = gr_layer_rows(c, l, width(l));
    if (l->use != GR_LAYER_BACKWARD) return;
    w->per_layer.d_h = gr_layer_rows(c, l, width(l));
    w->per_layer.d_gate_embed = gr_layer_rows(c, l, 2 * (uint64_t)width(l));
}

static uint64_t product_ws(const gr_layer_call *l)
{
    const uint32_t h = l->s->hidden;
    return GR_MAX(gr_layer_product_ws(l, h, width(l)), gr_layer_product_ws(l, width(l), h));
}

/* This layer's columns of [T, L P], and the second half of [T, 2 P]. */
static gr_layer_copy to_half(const gr_layer_call *l)
{
    const uint64_t p = width(l);
    return (gr_layer_copy){p, 2 * p, (l->bucket - 1) * p, gr_model_per_layer(l->s), p};
}

static gr_layer_copy from_half(const gr_layer_call *l)
{
    const gr_layer_copy c = to_half(l);
    return (gr_layer_copy){c.from, c.from_ld, c.to, c.to_ld, c.n};
}

static void forward(const gr_layer_call *l, const void *in, const gr_layer_acts *a, const gr_layer_ws *w,
                    const gr_layer_close *close)
{
    const gr_per_layer_ws *t = &w->per_layer;
    const uint64_t p = width(l);
    const gr_dense_desc act = activation(l);
    const gr_layer_copy embeds = to_half(l);
    const gr_product first = gate(l, in), end = out(l, t->h);
    l->ops->product(l->q, &first, t->gate, w->product);
    gr_layer_copy_columns(l, a->per_layer.gate_embed, t->gate, &(gr_layer_copy){0, 2 * p, 0, p, p});
    gr_layer_copy_columns(l, a->per_layer.gate_embed, gr_carried_per_layer(l->carried), &embeds);
    l->ops->activate(l->q, &act, l->b.n, a->per_layer.gate_embed, t->h);
    gr_layer_close_product(l, &end, w, close);
}

static void backward(const gr_layer_call *l, const void *in, const gr_layer_acts *a, const gr_layer_ws *w,
                     const void *d_out, void *d_in)
{
    const gr_per_layer_ws *t = &w->per_layer;
    const uint64_t p = width(l);
    const gr_dense_desc act = activation(l);
    const gr_layer_copy embeds = from_half(l);
    const gr_product first = gate(l, in), end = out(l, t->h);
    l->ops->product_dx(l->q, &end, d_out, t->d_h, w->product);
    l->ops->activate_backward(l->q, &act, l->b.n, a->per_layer.gate_embed, t->d_h, t->d_gate_embed, t->h);
    gr_layer_product_back(l, &end, GR_T_PER_LAYER_OUT, GR_T_COUNT, d_out, NULL, w);
    gr_layer_copy_columns(l, t->gate, t->d_gate_embed, &(gr_layer_copy){0, p, 0, 2 * p, p});
    gr_layer_copy_columns(l, gr_carried_per_layer(l->d_carried), t->d_gate_embed, &embeds);
    gr_layer_product_back(l, &first, GR_T_PER_LAYER_GATE, GR_T_COUNT, t->gate, d_in, w);
}

const gr_layer_part gr_layer_per_layer = {
    .acts = acts, .ws = ws, .product_ws = product_ws, .forward = forward, .backward = backward};
