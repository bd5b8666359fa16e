/* ops/kernels/cuda/model.h: entries of gr_kernels on CUDA (ops/kernels/kernels.h), for
 * ops/kernels/cuda/table.c. */
#ifndef GR_OPS_KERNELS_CUDA_MODEL_H
#define GR_OPS_KERNELS_CUDA_MODEL_H

#include "ops/kernels/head.h"
#include "runtime/device/device_cuda.h"

/* Sizes (ops/kernels/cuda/layout.c), also in a build without CUDA. */
uint64_t gr_cu_head_ws_bytes(const gr_model_shape *s, uint32_t chunk_rows, gr_head_use use, unsigned threads);
uint64_t gr_cu_teach_ws_bytes(const gr_model_shape *s, const gr_model_shape *teacher, uint32_t chunk_rows,
                              unsigned threads);
uint64_t gr_cu_value_ws_bytes(const gr_model_shape *s, uint32_t chunk_rows, unsigned threads);
uint64_t gr_cu_part_ws_bytes(const gr_model_shape *s, uint32_t n, uint32_t own, gr_head_use use,
                             unsigned threads);
const char *gr_cu_unfit(const gr_model_shape *s, char buf[GR_UNFIT_MAX]);

/* attach says which of the four tables of ops/kernels/cuda/table.c the queue is for. */
gr_status gr_cuda_attach(gr_queue *q, gr_diag *d);
gr_status gr_cuda_attach_strict(gr_queue *q, gr_diag *d);
gr_status gr_cuda_attach_nondeterministic(gr_queue *q, gr_diag *d);
gr_status gr_cuda_attach_strict_nondeterministic(gr_queue *q, gr_diag *d);
void gr_cuda_detach(gr_queue *q);
gr_status gr_cuda_check(gr_queue *q, gr_diag *d);
void gr_cuda_embed_forward(gr_queue *q, const gr_model_shape *s, const void *embed, const gr_packed *b,
                           void *x);
void gr_cuda_embed_backward(gr_queue *q, const gr_model_shape *s, const gr_packed *b, const void *dx,
                            void *grad_embed, gr_dtype grads, void *ws);
void gr_cuda_head_forward(gr_queue *q, const gr_model_shape *s, const void *norm_w, const void *lm,
                          const void *x, const gr_head_rows *rows, const gr_head_stats *out, void *ws);
void gr_cuda_head_backward(gr_queue *q, const gr_model_shape *s, const void *norm_w, const void *lm,
                           const void *x, const gr_head_rows *rows, const float *d_logprob,
                           const float *d_entropy, void *dx, void *grad_norm, void *grad_lm, gr_dtype grads,
                           void *ws);
void gr_cuda_teach(gr_queue *q, const gr_model_shape *s, const gr_head_rows *rows, const gr_head_teacher *t,
                   float *divergence, void *ws, void *taught);
void gr_cuda_head_hidden(gr_queue *q, const gr_model_shape *s, const void *norm, const void *x,
                         const uint32_t *row, uint32_t n, void *hidden);
void gr_cuda_head_part(gr_queue *q, const gr_model_shape *s, const void *lm, const void *hidden,
                       const gr_head_rows *rows, float *part, void *ws);
void gr_cuda_head_join(gr_queue *q, const float *part, uint32_t slices, uint32_t n, float inv_temperature,
                       const gr_head_stats *out, float *lse);
void gr_cuda_head_part_backward(gr_queue *q, const gr_model_shape *s, const void *lm, const void *hidden,
                                const gr_head_rows *rows, const float *lse, const float *entropy,
                                const float *d_logprob, const float *d_entropy, void *d_hidden, void *grad_lm,
                                gr_dtype grads, void *ws);
void gr_cuda_head_hidden_backward(gr_queue *q, const gr_model_shape *s, const void *norm, const void *x,
                                  const uint32_t *row, uint32_t n, void *d_hidden, void *dx, void *grad_norm,
                                  gr_dtype grads, void *ws);
void gr_cuda_value_forward(gr_queue *q, const gr_model_shape *s, const gr_value_head *head, const void *x,
                           const uint32_t *row, uint32_t n, float *value, void *ws);
void gr_cuda_value_backward(gr_queue *q, const gr_model_shape *s, const gr_value_head *head, const void *x,
                            const uint32_t *row, uint32_t n, const float *d_value, void *dx,
                            const gr_value_grads *grad, void *ws);
void gr_cuda_head_sample(gr_queue *q, const gr_model_shape *s, const void *norm_w, const void *lm,
                         const void *x, const uint32_t *row, uint32_t n, const gr_sampling *how,
                         const uint32_t (*draw)[2], int32_t *id, float *logprob, void *ws);
void gr_cuda_copy_blocks(gr_queue *q, void *blocks, uint64_t bytes, const uint32_t *src, const uint32_t *dst,
                         uint32_t n);
void gr_cuda_zero(gr_queue *q, void *p, uint64_t bytes);
void gr_cuda_copy_rows(gr_queue *q, void *to, uint64_t to_stride, const void *from, uint64_t from_stride,
                       uint64_t row_bytes, uint64_t n);
void gr_cuda_gather(gr_queue *q, const void *x, const uint32_t *row, uint32_t n, uint32_t width, void *y);
void gr_cuda_add(gr_queue *q, void *to, const void *from, gr_dtype type, uint64_t n);
void gr_cuda_blend(gr_queue *q, void *to, float *master, const void *from, float decay, float share,
                   uint64_t n);
void gr_cuda_checksum(gr_queue *q, const void *x, uint64_t bytes, uint64_t *parts);
void gr_cuda_sum_squares(gr_queue *q, const void *x, gr_dtype type, uint64_t n, double *out, void *ws);
void gr_cuda_optim_step(gr_queue *q, const gr_optim *how, bool decay, const gr_optim_range *r, uint64_t n);
void gr_cuda_to_unit(gr_queue *q, void *x, uint64_t n, const double *squares);
void gr_cuda_muon_mix(gr_queue *q, const gr_optim *how, const gr_optim_range *r, void *u, uint64_t n);
void gr_cuda_code_run(gr_queue *q, const struct gr_code_call *c);

#endif
