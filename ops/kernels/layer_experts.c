/* ops/kernels/layer_experts.c: experts as the MLP of a layer: what ops/kernels/experts.c does, with the
 * tensors and buffers of a layer. Tokens go in runs that keep the device busy, so that its memory does not
 * grow with a pass but by what is kept for the backward pass.
 *
 * An expert that every token goes through is a mixture of one: its weight is the softmax of one logit, which
 * is 1, or where it has a gate the sigmoid of it.
 */
#include "ops/kernels/layer_impl.h"

static gr_experts_desc shared_desc(const gr_experts_desc *e)
{
    return (gr_experts_desc){.count = 1,
                             .top_k = 1,
                             .inner = e->shared_inner,
                             .act = e->act,
                             .limit = e->limit,
                             .router = e->shared_gate ? GR_ROUTER_SIGMOID : GR_ROUTER_SOFTMAX,
                             .scale = 1};
}

/* Of the tokens that buffers are for, which a call has; w: NULL for sizes. */
static gr_experts_call call_of(const gr_layer_call *l, const gr_experts_desc *e, const void *in,
                               const gr_layer_ws *w)
{
    const uint32_t tokens = l->bounds.tokens;
    return (gr_experts_call){
        .ops = l->ops->experts,
        .k = l->k,
        .e = e,
        .type = l->k->dtype,
        .T = tokens,
        .H = l->s->hidden,
        .run = gr_experts_run(tokens, l->bounds.expert_run),
        .again = l->bounds.experts_again,
        .most = l->bounds.expert_run ? l->bounds.expert_run : GR_EXPERT_RUN,
        .scale = l->d->norm_after ? 1 : l->s->residual_scale,
        .x = in,
        .router_x = w && gr_layer_is_beside(l->d) && e == &l->d->experts ? w->beside.router : NULL,
        .d_router = w ? w->beside.d_router : NULL,
        .products = w ? w->product : NULL};
}

/* What is asked of the layer's choices; count: NULL, or filled where they are counted. */
static void ask(const gr_layer_call *l, gr_experts_call *c, gr_experts_count *count)
{
    const gr_routing *r = l->routing;
    if (!r) return;
    const gr_routers before = gr_model_routers(l->s, l->bucket - 1),
                     all = gr_model_routers(l->s, l->s->layers);
    const uint64_t at = (uint64_t)before.choices * l->b.n;
    c->given = r->recorded && r->follow ? r->recorded + at : NULL;
    c->record = r->record ? r->record + at : NULL;
    c->pull = r->pull;
    c->exchanges = r->exchanges;
    c->padding = r->padding;
    if (!count || !r->tally) return;
    *count = (gr_experts_count){.tally = gr_tally_at(r->tally, all, before),
                                .recorded = r->recorded ? r->recorded + at : NULL,
                                .differs = r->differs,
                                .shares = r->shares};
    c->count = count;
}

static gr_experts_weights chosen_weights(const gr_layer_call *l)
{
    return (gr_experts_weights){.router = gr_layer_tensor(l, GR_T_ROUTER),
                                .router_bias = gr_layer_tensor(l, GR_T_ROUTER_BIAS),
                                .selection = gr_layer_tensor(l, GR_T_SELECTION),
                                .gate_up = gr_layer_tensor(l, GR_T_EXPERTS_GATE_UP),
                                .gate_up_bias = gr_layer_tensor(l, GR_T_EXPERTS_GATE_UP_BIAS),
                                .down = gr_layer_tensor(l, GR_T_EXPERTS_DOWN),
                                .down_bias = gr_layer_tensor(l, GR_T_EXPERTS_DOWN_BIAS),
                                .expert_scale = gr_layer_tensor(l, GR_T_EXPERT_SCALE)};
}

static gr_experts_weights shared_weights(const gr_layer_call *l)
{
    return (gr_experts_weights){.router = gr_layer_tensor(l, GR_T_SHARED_ROUTER),
                                .gate_up = gr_layer_tensor(l, GR_T_SHARED_GATE_UP),
                                .down = gr_layer_tensor(l, GR_T_SHARED_DOWN)};
}

static gr_experts_grads chosen_grads(const gr_layer_call *l)
{
    return (gr_experts_grads){.type = l->grads,
                              .router = gr_layer_grad(l, GR_T_ROUTER),
                              .router_bias = gr_layer_grad(l, GR_T_ROUTER_BIAS),
                              .gate_up = gr_layer_grad(l, GR_T_EXPERTS_GATE_UP),
                              .gate_up_bias = gr_layer_grad(l, GR_T_EXPERTS_GATE_UP_BIAS),
                              .down = gr_layer_grad(l, GR_T_EXPERTS_DOWN),
                              .down_bias = gr_layer_grad(l, GR_T_EXPERTS_DOWN_BIAS),
                              .expert_scale = gr_layer_grad(l, GR_T_EXPERT_SCALE)};
}

static gr_experts_grads shared_grads(const gr_layer_call *l)
{
    return (gr_experts_grads){.type = l->grads,
                              .router = gr_layer_grad(l, GR_T_SHARED_ROUTER),
                              .gate_up = gr_layer_grad(l, GR_T_SHARED_GATE_UP),
                              .down = gr_layer_grad(l, GR_T_SHARED_DOWN)};
}

/* ---- buffers ---------------------------------------------------------------------------------------------
 */

static bool keeps(const gr_layer_call *l)
{
    return l->use == GR_LAYER_KEEP || l->use == GR_LAYER_BACKWARD;
}

/* Whether a sum can be added to the residual stream as it arises. */
static bool adds(const gr_layer_call *l)
{
    return !l->d->norm_after && (l->s->parts < 2 || l->whole);
}

static void acts(gr_workspace *c, const gr_layer_call *l, gr_layer_acts *a)
{
    const gr_experts_desc *e = &l->d->experts, alone = shared_desc(e);
    const gr_experts_call chosen = call_of(l, e, NULL, NULL), shared = call_of(l, &alone, NULL, NULL);
    if (!keeps(l)) return;
    gr_experts_acts_layout(c, &chosen, l->bounds.tokens, &a->experts);
    if (e->shared_inner) gr_experts_acts_layout(c, &shared, l->bounds.tokens, &a->shared);
}

static void ws(gr_workspace *c, const gr_layer_call *l, gr_layer_ws *w)
{
    const gr_experts_desc *e = &l->d->experts, alone = shared_desc(e);
    const gr_experts_call chosen = call_of(l, e, NULL, NULL), shared = call_of(l, &alone, NULL, NULL);
    uint64_t bytes = gr_experts_ws_bytes(&chosen, l->use);
    if (e->shared_inner) bytes = GR_MAX(bytes, gr_experts_ws_bytes(&shared, l->use));
    w->experts = gr_workspace_bytes(c, bytes);
    if (!adds(l) && l->use != GR_LAYER_BACKWARD) w->experts_sum = gr_layer_rows(c, l, l->s->hidden);
}

static uint64_t product_ws(const gr_layer_call *l)
{
    const bool backward = l->use == GR_LAYER_BACKWARD;
    const gr_experts_desc *e = &l->d->experts, alone = shared_desc(e);
    const gr_experts_call chosen = call_of(l, e, NULL, NULL), shared = call_of(l, &alone, NULL, NULL);
    const uint64_t bytes = gr_experts_products_bytes(&chosen, l->bounds.threads, backward);
    if (!e->shared_inner) return bytes;
    return GR_MAX(bytes, gr_experts_products_bytes(&shared, l->bounds.threads, backward));
}

/* ---- passes ----------------------------------------------------------------------------------------------
 */

/* y = base (NULL: 0) + all experts. */
static void sum_up(const gr_layer_call *l, const void *in, const gr_layer_acts *a, const gr_layer_ws *w,
                   const void *base, void *y)
{
    const gr_experts_desc *e = &l->d->experts, alone = shared_desc(e);
    gr_experts_call call = call_of(l, e, in, w), shared = call;
    gr_experts_count count;
    call.w = chosen_weights(l);
    ask(l, &call, &count);
    gr_experts_forward(l->q, &call, base, y, keeps(l) ? &a->experts : NULL, w->experts);
    if (!e->shared_inner) return;
    shared.e = &alone;
    shared.w = shared_weights(l);
    gr_experts_forward(l->q, &shared, y, y, keeps(l) ? &a->shared : NULL, w->experts);
}

static void forward(const gr_layer_call *l, const void *in, const gr_layer_acts *a, const gr_layer_ws *w,
                    const gr_layer_close *close)
{
    void *out = close->keep && !l->outer ? close->keep : w->experts_sum;
    if (adds(l)) {
        sum_up(l, in, a, w, close->add, close->y);
        return;
    }
    sum_up(l, in, a, w, NULL, out);
    gr_layer_close_rows(l, out, close);
}

static void backward(const gr_layer_call *l, const void *in, const gr_layer_acts *a, const gr_layer_ws *w,
                     const void *d_out, void *d_in)
{
    const gr_experts_desc *e = &l->d->experts, alone = shared_desc(e);
    const gr_experts_grads chosen = chosen_grads(l), shared = shared_grads(l);
    gr_experts_call call = call_of(l, e, in, w), every = call;
    call.w = chosen_weights(l);
    ask(l, &call, NULL);
    gr_experts_backward(l->q, &call, &a->experts, d_out, false, d_in, &chosen, w->experts);
    if (!e->shared_inner) return;
    every.e = &alone;
    every.w = shared_weights(l);
    gr_experts_backward(l->q, &every, &a->shared, d_out, true, d_in, &shared, w->experts);
}

/* Others' tokens may be of this rank's experts: those that all tokens go through are on every rank. */
static void idle(const gr_layer_call *l, const gr_layer_acts *a, const gr_layer_ws *w)
{
    gr_experts_call call = call_of(l, &l->d->experts, w->row, w);
    const gr_experts_grads chosen = l->use == GR_LAYER_BACKWARD ? chosen_grads(l) : (gr_experts_grads){0};
    call.T = call.run = 0;
    if (l->routing) call.exchanges = l->routing->exchanges;
    call.w = chosen_weights(l);
    if (l->use == GR_LAYER_BACKWARD)
        gr_experts_backward(l->q, &call, &a->experts, w->row, false, w->d_row, &chosen, w->experts);
    else
        gr_experts_forward(l->q, &call, NULL, w->row, keeps(l) ? &a->experts : NULL, w->experts);
}

static const char *unfit(const gr_layer_ops *ops, const gr_layer_desc *d)
{
    const gr_experts_desc *e = &d->experts;
    if (!ops->experts) return "mixtures of experts";
    if (e->count > GR_EXPERTS_MAX || e->top_k > GR_CHOICES_MAX || e->groups > GR_GROUPS_MAX)
        return "so many experts";
    return ops->experts->unfit ? ops->experts->unfit(e) : NULL;
}

const gr_layer_part gr_layer_experts = {.acts = acts,
                                        .ws = ws,
                                        .product_ws = product_ws,
                                        .forward = forward,
                                        .backward = backward,
                                        .idle = idle,
                                        .unfit = unfit};
