/* ops/kernels/layer_beside.c: experts beside a dense MLP: both read the hidden states, each behind a norm of
 * its own, and what they give is added up behind norms of their own. The router reads them behind a third
 * one, over sqrt(H). So this part norms what it reads itself:
 *
 *     y = after_dense(mlp(norm(x))) + after_experts(experts(norm_experts(x), router(r))),
 *     r = norm_router(x) / sqrt(H)
 *
 * Source: models/gemma4 of Hugging Face transformers 5.
 */
#include "ops/kernels/layer_impl.h"

#include <math.h>

static bool keeps(const gr_layer_call *l)
{
    return l->use == GR_LAYER_KEEP || l->use == GR_LAYER_BACKWARD;
}

static void acts(gr_workspace *c, const gr_layer_call *l, gr_layer_acts *a)
{
    gr_layer_dense.acts(c, l, a);
    gr_layer_experts.acts(c, l, a);
    if (!keeps(l)) return;
    a->beside.dense = gr_layer_rows(c, l, l->s->hidden);
    a->beside.experts = gr_layer_rows(c, l, l->s->hidden);
}

static void ws(gr_workspace *c, const gr_layer_call *l, gr_layer_ws *w)
{
    gr_beside_ws *b = &w->beside;
    gr_layer_dense.ws(c, l, w);
    gr_layer_experts.ws(c, l, w);
    b->in = gr_layer_rows(c, l, l->s->hidden);
    b->router = gr_layer_rows(c, l, l->s->hidden);
    if (l->use != GR_LAYER_BACKWARD) {
        b->sum = gr_layer_rows(c, l, l->s->hidden);
        return;
    }
    b->d_out = gr_layer_rows(c, l, l->s->hidden);
    b->d_in = gr_layer_rows(c, l, l->s->hidden);
    b->d_router = gr_layer_rows(c, l, l->s->hidden);
}

static uint64_t product_ws(const gr_layer_call *l)
{
    return GR_MAX(gr_layer_dense.product_ws(l), gr_layer_experts.product_ws(l));
}

static uint64_t values(const gr_layer_call *l)
{
    return (uint64_t)l->b.n * l->s->hidden;
}

static float router_scale(const gr_layer_call *l)
{
    return 1 / sqrtf((float)l->s->hidden);
}

/* What the dense MLP or the experts read. */
static const void *normed(const gr_layer_call *l, const void *x, gr_tensor_slot slot, const gr_layer_ws *w)
{
    const gr_norm c = gr_layer_norm(l, x, slot);
    l->ops->norm(l->q, &c, w->beside.in);
    return w->beside.in;
}

static void router_in(const gr_layer_call *l, const void *x, const gr_layer_ws *w)
{
    const gr_norm c = gr_layer_norm(l, x, GR_T_ROUTER_NORM);
    l->ops->norm(l->q, &c, w->beside.router);
    l->ops->scale(l->q, w->beside.router, router_scale(l), values(l), w->beside.router);
}

static void forward(const gr_layer_call *l, const void *x, const gr_layer_acts *a, const gr_layer_ws *w,
                    const gr_layer_close *close)
{
    void *sum = close->keep ? close->keep : w->beside.sum;
    const gr_layer_close
        dense = {.add = sum, .y = sum, .temp = w->row, .keep = a->beside.dense, .after = GR_T_DENSE_AFTER},
        experts = {
            .add = sum, .y = sum, .temp = w->row, .keep = a->beside.experts, .after = GR_T_EXPERTS_AFTER};
    l->k->zero(l->q, sum, values(l) * gr_dtype_size(l->k->dtype));
    gr_layer_dense.forward(l, normed(l, x, GR_T_MLP_NORM, w), a, w, &dense);
    router_in(l, x, w);
    gr_layer_experts.forward(l, normed(l, x, GR_T_EXPERTS_NORM, w), a, w, &experts);
    gr_layer_close_rows(l, sum, close);
}

/* dx = or += (add) what d gives to x through one of its norms. */
static void norm_back(const gr_layer_call *l, const void *x, gr_tensor_slot slot, const void *d, bool add,
                      void *dx, const gr_layer_ws *w)
{
    const gr_norm c = gr_layer_norm(l, x, slot);
    l->ops->norm_backward(l->q, &c, d, dx, add, gr_layer_grad(l, slot), l->grads, w->scratch);
}

static void backward(const gr_layer_call *l, const void *x, const gr_layer_acts *a, const gr_layer_ws *w,
                     const void *d_out, void *d_in)
{
    const gr_beside_ws *b = &w->beside;
    norm_back(l, a->beside.dense, GR_T_DENSE_AFTER, d_out, false, b->d_out, w);
    gr_layer_dense.backward(l, normed(l, x, GR_T_MLP_NORM, w), a, w, b->d_out, b->d_in);
    norm_back(l, x, GR_T_MLP_NORM, b->d_in, false, d_in, w);
    norm_back(l, a->beside.experts, GR_T_EXPERTS_AFTER, d_out, false, b->d_out, w);
    router_in(l, x, w);
    gr_layer_experts.backward(l, normed(l, x, GR_T_EXPERTS_NORM, w), a, w, b->d_out, b->d_in);
    norm_back(l, x, GR_T_EXPERTS_NORM, b->d_in, true, d_in, w);
    l->ops->scale(l->q, b->d_router, router_scale(l), values(l), b->d_router);
    norm_back(l, x, GR_T_ROUTER_NORM, b->d_router, true, d_in, w);
}

static const char *unfit(const gr_layer_ops *ops, const gr_layer_desc *d)
{
    const char *why = gr_layer_dense.unfit(ops, d);
    return why ? why : gr_layer_experts.unfit(ops, d);
}

const gr_layer_part gr_layer_beside = {.acts = acts,
                                       .ws = ws,
                                       .product_ws = product_ws,
                                       .forward = forward,
                                       .backward = backward,
                                       .unfit = unfit};
