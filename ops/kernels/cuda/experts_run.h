/* ops/kernels/cuda/experts_run.h: entries of gr_experts_cuda (ops/kernels/experts.h), for
 * ops/kernels/cuda/experts_table.c.
 */
#ifndef GR_OPS_KERNELS_CUDA_EXPERTS_RUN_H
#define GR_OPS_KERNELS_CUDA_EXPERTS_RUN_H

#include "ops/kernels/experts.h"

void gr_cuda_experts_logits(gr_queue *q, const gr_router_product *p, const void *bias, float *logits,
                            void *ws);
void gr_cuda_experts_logits_backward(gr_queue *q, const gr_router_product *p, const void *d_logits, bool add,
                                     void *dx, void *grad, void *grad_bias, gr_dtype grads, void *ws);
void gr_cuda_experts_route(gr_queue *q, const gr_experts_desc *e, const float *logits, const void *selection,
                           const uint16_t *given, uint32_t T, uint16_t *expert, float *weight);
void gr_cuda_experts_route_backward(gr_queue *q, const gr_experts_desc *e, const float *logits,
                                    const uint16_t *expert, const float *d_weight, uint32_t T,
                                    void *d_logits);
void gr_cuda_experts_scale_choices(gr_queue *q, uint32_t k, uint32_t T, const uint16_t *expert,
                                   const void *scale, const float *plain, float *weight);
void gr_cuda_experts_scale_choices_backward(gr_queue *q, uint32_t E, uint32_t k, uint32_t T,
                                            const uint16_t *expert, const void *scale, const float *plain,
                                            float *d_weight, void *grad, gr_dtype grads);
void gr_cuda_experts_compare(gr_queue *q, uint32_t k, uint32_t T, const uint16_t *expert,
                             const uint16_t *recorded, const gr_tally *t, uint32_t *differs);
void gr_cuda_experts_count(gr_queue *q, uint32_t E, uint32_t k, uint32_t T, const uint16_t *expert,
                           double *load);
void gr_cuda_experts_shares(gr_queue *q, uint32_t E, uint32_t T, const float *logits, double *share);
void gr_cuda_experts_pull(gr_queue *q, const gr_balance_loss *b, const double *load, float *pull);
void gr_cuda_experts_balance_backward(gr_queue *q, uint32_t E, uint32_t T, const float *logits,
                                      const float *pull, void *d_logits);
void gr_cuda_experts_dispatch(gr_queue *q, uint32_t E, uint32_t k, uint32_t T, const uint16_t *expert,
                              const gr_dispatch *to, void *ws);
void gr_cuda_experts_gather(gr_queue *q, const gr_dispatch *d, uint32_t k, uint32_t T, uint32_t H,
                            const void *x, void *rows);
void gr_cuda_experts_combine(gr_queue *q, const gr_dispatch *d, uint32_t k, uint32_t T, uint32_t H,
                             const void *rows, const float *weight, const void *base, float scale, void *y);
void gr_cuda_experts_choice_rows(gr_queue *q, const gr_dispatch *d, uint32_t R, uint32_t held,
                                 const uint16_t *expert, const float *weight, uint16_t *row_expert,
                                 float *row_weight);
void gr_cuda_experts_choice_back(gr_queue *q, const gr_dispatch *d, uint32_t R, const float *rows, float *to);
void gr_cuda_experts_product(gr_queue *q, const gr_expert_product *p, const void *x, const void *bias,
                             void *y, void *ws);
void gr_cuda_experts_product_dx(gr_queue *q, const gr_expert_product *p, const void *dy, void *dx, void *ws);
void gr_cuda_experts_product_dw(gr_queue *q, const gr_expert_product *p, const void *dy, const void *x,
                                void *grad, gr_dtype grads, void *ws);
void gr_cuda_experts_bias_backward(gr_queue *q, const gr_dispatch *d, uint32_t E, uint32_t cols,
                                   const void *dy, const float *weight, void *grad, gr_dtype grads);
void gr_cuda_experts_bias_dot(gr_queue *q, const gr_dispatch *d, uint32_t E, uint32_t R, uint32_t H,
                              const void *dy, const void *bias, float *dot);
void gr_cuda_experts_activate(gr_queue *q, const gr_expert_act *a, const void *gate_up, void *h);
void gr_cuda_experts_activate_backward(gr_queue *q, const gr_expert_act *a, const gr_dispatch *d,
                                       const float *weight, const float *base, const void *gate_up,
                                       const void *dh, void *d_gate_up, void *weighted, float *d_weight);

#endif
