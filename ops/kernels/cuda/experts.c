/* ops/kernels/cuda/experts.c: mixtures of experts on CUDA (ops/kernels/experts.h): the router's product is
 * cuBLASLt's, or ops/kernels/cuda/experts_few.cu's where its rows are no vectors of 16 bytes, always of the
 * kind whose rows do not depend on their number, so that logits agree wherever what they are computed from
 * does; the experts' products are ops/kernels/cuda/experts_product.cu's.
 */
#include "ops/kernels/cuda/experts.h"

#include <cuda_runtime_api.h>

#include "ops/kernels/cuda/context.h"
#include "ops/kernels/cuda/experts_run.h"

static gr_cu_router router(const gr_experts_desc *e)
{
    const bool sigmoid = e->router == GR_ROUTER_SIGMOID;
    return (gr_cu_router){.count = e->count,
                          .top_k = e->top_k,
                          .groups = e->groups,
                          .top_groups = e->top_groups,
                          .sigmoid = sigmoid,
                          .over_chosen = e->normalize || (!sigmoid && e->softmax_after),
                          .scale = e->scale};
}

static gr_cu_dispatch places(const gr_dispatch *d)
{
    return (gr_cu_dispatch){d->first, d->row, d->choice};
}

/* ---- router ---- */

static gr_cu_few few_of(const gr_router_product *p)
{
    return (gr_cu_few){p->T, p->H, p->E, p->x, p->w};
}

static void logits_of(gr_queue *q, const gr_router_product *p, float *logits, void *ws)
{
    const gr_cu_few few = few_of(p);
    if (p->E % 8)
        gr_cu_few_logits(q->stream, &few, logits);
    else
        gr_cu_product(q,
                      &(gr_cu_gemm_call){.form = GR_CU_GEMM_NT,
                                         .m = p->T,
                                         .n = p->E,
                                         .k = p->H,
                                         .a = p->x,
                                         .b = p->w,
                                         .lda = p->H,
                                         .ldb = p->H,
                                         .ldd = p->E,
                                         .d = logits,
                                         .type = GR_CU_F32,
                                         .strict = true},
                      ws);
}

void gr_cuda_experts_logits(gr_queue *q, const gr_router_product *p, const void *bias, float *logits,
                            void *ws)
{
    if (!p->w) {
        cudaMemsetAsync(logits, 0, (uint64_t)p->T * p->E * sizeof(*logits), q->stream);
        return;
    }
    logits_of(q, p, logits, ws);
    if (bias) gr_cu_router_bias(q->stream, logits, bias, p->T, p->E);
}

static void few_backward(gr_queue *q, const gr_router_product *p, const void *d_logits, bool add, void *dx,
                         void *grad, void *grad_bias, gr_dtype grads, void *ws)
{
    const gr_cu_few few = few_of(p);
    gr_cu_few_dx(q->stream, &few, d_logits, add, dx);
    if (grad) gr_cu_few_dw(q->stream, &few, d_logits, grad, gr_cu_type(grads), ws);
    if (grad_bias) gr_cu_few_sums(q->stream, &few, d_logits, grad_bias, gr_cu_type(grads));
}

void gr_cuda_experts_logits_backward(gr_queue *q, const gr_router_product *p, const void *d_logits, bool add,
                                     void *dx, void *grad, void *grad_bias, gr_dtype grads, void *ws)
{
    gr_cu_gemm_call to_x = {.form = GR_CU_GEMM_NN,
                            .m = p->T,
                            .n = p->H,
                            .k = p->E,
                            .a = d_logits,
                            .b = p->w,
                            .lda = p->E,
                            .ldb = p->H,
                            .ldd = p->H,
                            .d = dx,
                            .c = add ? dx : NULL,
                            .ldc = p->H,
                            .type = GR_CU_BF16};
    gr_cu_gemm_call to_w = {.form = GR_CU_GEMM_TN,
                            .m = p->E,
                            .n = p->H,
                            .k = p->T,
                            .a = d_logits,
                            .b = p->x,
                            .lda = p->E,
                            .ldb = p->H,
                            .ldd = p->H,
                            .d = grad,
                            .type = gr_cu_type(grads),
                            .c = grad,
                            .ldc = p->H};
    if (p->E % 8) {
        few_backward(q, p, d_logits, add, dx, grad, grad_bias, grads, ws);
        return;
    }
    gr_cu_product(q, &to_x, ws);
    if (grad) gr_cu_product(q, &to_w, ws);
    if (grad_bias) gr_cu_column_sums(q->stream, d_logits, grad_bias, gr_cu_type(grads), p->T, p->E, ws);
}

void gr_cuda_experts_route(gr_queue *q, const gr_experts_desc *e, const float *logits, const void *selection,
                           const uint16_t *given, uint32_t T, uint16_t *expert, float *weight)
{
    const gr_cu_router r = router(e);
    gr_cu_route(q->stream, &r, logits, selection, given, T, expert, weight);
}

void gr_cuda_experts_route_backward(gr_queue *q, const gr_experts_desc *e, const float *logits,
                                    const uint16_t *expert, const float *d_weight, uint32_t T, void *d_logits)
{
    const gr_cu_router r = router(e);
    gr_cu_route_backward(q->stream, &r, logits, expert, d_weight, T, d_logits);
}

void gr_cuda_experts_scale_choices(gr_queue *q, uint32_t k, uint32_t T, const uint16_t *expert,
                                   const void *scale, const float *plain, float *weight)
{
    gr_cu_scale_choices(q->stream, k, T, expert, scale, plain, weight);
}

void gr_cuda_experts_scale_choices_backward(gr_queue *q, uint32_t E, uint32_t k, uint32_t T,
                                            const uint16_t *expert, const void *scale, const float *plain,
                                            float *d_weight, void *grad, gr_dtype grads)
{
    if (grad) gr_cu_scale_choices_sums(q->stream, E, k, T, expert, plain, d_weight, grad, gr_cu_type(grads));
    gr_cu_scale_choices(q->stream, k, T, expert, scale, d_weight, d_weight);
}

/* ---- counting ---- */

void gr_cuda_experts_compare(gr_queue *q, uint32_t k, uint32_t T, const uint16_t *expert,
                             const uint16_t *recorded, const gr_tally *t, uint32_t *differs)
{
    gr_cu_experts_compare(q->stream, k, T, expert, recorded, t->tokens, t->compared, t->differ, differs);
}

void gr_cuda_experts_count(gr_queue *q, uint32_t E, uint32_t k, uint32_t T, const uint16_t *expert,
                           double *load)
{
    gr_cu_experts_count(q->stream, E, k, T, expert, load);
}

void gr_cuda_experts_shares(gr_queue *q, uint32_t E, uint32_t T, const float *logits, double *share)
{
    gr_cu_experts_shares(q->stream, E, T, logits, share);
}

void gr_cuda_experts_pull(gr_queue *q, const gr_balance_loss *b, const double *load, float *pull)
{
    gr_cu_experts_pull(q->stream, b->routers, b->experts, b->top_k, b->coefficient, load, pull);
}

void gr_cuda_experts_balance_backward(gr_queue *q, uint32_t E, uint32_t T, const float *logits,
                                      const float *pull, void *d_logits)
{
    gr_cu_experts_balance_backward(q->stream, E, T, logits, pull, d_logits);
}

/* ---- rows ---- */

void gr_cuda_experts_dispatch(gr_queue *q, uint32_t E, uint32_t k, uint32_t T, const uint16_t *expert,
                              const gr_dispatch *to, void *ws)
{
    const gr_cu_dispatch d = places(to);
    gr_cu_dispatch_rows(q->stream, E, k, T, expert, &d, ws);
}

void gr_cuda_experts_gather(gr_queue *q, const gr_dispatch *d, uint32_t k, uint32_t T, uint32_t H,
                            const void *x, void *rows)
{
    gr_cu_gather_rows(q->stream, d->choice, k, T * k, H, x, rows);
}

void gr_cuda_experts_combine(gr_queue *q, const gr_dispatch *d, uint32_t k, uint32_t T, uint32_t H,
                             const void *rows, const float *weight, const void *base, float scale, void *y)
{
    gr_cu_combine_rows(q->stream, d->row, k, T, H, rows, weight, base, scale, y);
}

void gr_cuda_experts_choice_rows(gr_queue *q, const gr_dispatch *d, uint32_t R, uint32_t held,
                                 const uint16_t *expert, const float *weight, uint16_t *row_expert,
                                 float *row_weight)
{
    gr_cu_choice_rows(q->stream, d->choice, R, held, expert, weight, row_expert, row_weight);
}

void gr_cuda_experts_choice_back(gr_queue *q, const gr_dispatch *d, uint32_t R, const float *rows, float *to)
{
    gr_cu_choice_back(q->stream, d->choice, R, rows, to);
}

/* ---- products ---- */

static void run_product(gr_queue *q, const gr_cu_experts_product *p)
{
    if (!gr_cu_experts_product_run(q->stream, p))
        gr_cu_note(
            q, gr_diag_error(
                   &gr_cu_context_of(q)->d, (gr_loc){0}, GR_E_FAILED,
                   "products of experts cannot be launched: they are for GPUs of compute capability 9.0"));
}

static gr_cu_experts_product product_of(const gr_expert_product *p, gr_cu_experts_form form, const void *a,
                                        const void *b, void *d)
{
    return (gr_cu_experts_product){.form = form,
                                   .experts = p->experts,
                                   .rows = p->rows,
                                   .in = p->in,
                                   .out = p->out,
                                   .first = p->first,
                                   .a = a,
                                   .b = b,
                                   .d = d,
                                   .type = GR_CU_BF16};
}

void gr_cuda_experts_product(gr_queue *q, const gr_expert_product *p, const void *x, const void *bias,
                             void *y, void *ws)
{
    gr_cu_experts_product c = product_of(p, GR_CU_EXPERTS_Y, x, p->w, y);
    (void)ws;
    c.bias = bias;
    run_product(q, &c);
}

void gr_cuda_experts_product_dx(gr_queue *q, const gr_expert_product *p, const void *dy, void *dx, void *ws)
{
    const gr_cu_experts_product c = product_of(p, GR_CU_EXPERTS_DX, dy, p->w, dx);
    (void)ws;
    run_product(q, &c);
}

void gr_cuda_experts_product_dw(gr_queue *q, const gr_expert_product *p, const void *dy, const void *x,
                                void *grad, gr_dtype grads, void *ws)
{
    gr_cu_experts_product c = product_of(p, GR_CU_EXPERTS_DW, dy, x, grad);
    (void)ws;
    c.type = gr_cu_type(grads);
    run_product(q, &c);
}

void gr_cuda_experts_bias_backward(gr_queue *q, const gr_dispatch *d, uint32_t E, uint32_t cols,
                                   const void *dy, const float *weight, void *grad, gr_dtype grads)
{
    const gr_cu_dispatch to = places(d);
    gr_cu_experts_bias_backward(q->stream, &to, E, cols, dy, weight, grad, gr_cu_type(grads));
}

void gr_cuda_experts_bias_dot(gr_queue *q, const gr_dispatch *d, uint32_t E, uint32_t R, uint32_t H,
                              const void *dy, const void *bias, float *dot)
{
    gr_cu_experts_bias_dot(q->stream, d->first, E, R, H, dy, bias, dot);
}

/* ---- activation ---- */

static gr_cu_expert_act act_of(const gr_expert_act *a)
{
    static const gr_cu_activation acts[] = {[GR_ACT_SILU] = GR_CU_SILU,
                                            [GR_ACT_GELU_TANH] = GR_CU_GELU_TANH,
                                            [GR_ACT_SWIGLU_OAI] = GR_CU_SWIGLU_OAI};
    return (gr_cu_expert_act){acts[a->act], a->limit, a->rows, a->inner};
}

void gr_cuda_experts_activate(gr_queue *q, const gr_expert_act *a, const void *gate_up, void *h)
{
    const gr_cu_expert_act c = act_of(a);
    gr_cu_experts_act(q->stream, &c, gate_up, h);
}

void gr_cuda_experts_activate_backward(gr_queue *q, const gr_expert_act *a, const gr_dispatch *d,
                                       const float *weight, const float *base, const void *gate_up,
                                       const void *dh, void *d_gate_up, void *weighted, float *d_weight)
{
    const gr_cu_expert_act c = act_of(a);
    gr_cu_experts_act_backward(q->stream, &c, d->choice, weight, base, gate_up, dh, d_gate_up, weighted,
                               d_weight);
}
