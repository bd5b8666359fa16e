/* ops/kernels/cuda/layer.h: entries of gr_layer_ops on CUDA (ops/kernels/layer_ops.h), for
 * ops/kernels/cuda/table.c, and products that heads take, too. */
#ifndef GR_OPS_KERNELS_CUDA_LAYER_H
#define GR_OPS_KERNELS_CUDA_LAYER_H

#include "ops/kernels/cuda/launch.h"
#include "ops/kernels/layer_ops.h"

/* Sizes (ops/kernels/cuda/layout.c), also in a build without CUDA. */
uint64_t gr_cu_product_ws_bytes(uint32_t t, uint32_t in, uint32_t out, unsigned threads, bool backward);
uint64_t gr_cu_fp8_ws_bytes(uint32_t t, uint32_t in, uint32_t out, unsigned threads, bool backward);
uint64_t gr_cu_back_ws_bytes(const gr_layer_desc *d, uint32_t hidden, uint32_t tokens);
uint64_t gr_cu_attend_ws_bytes(const gr_attention_desc *d, const gr_pass_bounds *b, gr_layer_use use);
uint64_t gr_cu_attend_ws_bytes_loose(const gr_attention_desc *d, const gr_pass_bounds *b, gr_layer_use use);
uint64_t gr_cu_kv_block_bytes(const gr_attention_desc *d);
const char *gr_cu_attend_unfit(const gr_attention_desc *d);

/* dx [t, in] = dy [t, out] W, of rows of ld values. */
void gr_cu_linear_dx(gr_queue *q, const gr_bf16 *dy, uint64_t ld, uint32_t t, uint32_t in, const gr_bf16 *w,
                     uint32_t out, gr_bf16 *dx, void *ws);
/* grad [out, in] += dy [t, out]^T x [t, in]. */
void gr_cu_linear_dw(gr_queue *q, const gr_bf16 *dy, uint64_t ld, const gr_bf16 *x, uint32_t t, uint32_t in,
                     uint32_t out, void *grad, gr_dtype grads, void *ws);

/* With weights in FP8: y = scale (x w^T + bias) + add, where not NULL; y == add is fine, and then temp
 * [t, out] may be written. And back. */
void gr_cuda_fp8_product(gr_queue *q, const gr_product *p, float scale, gr_bf16 *y, const gr_bf16 *add,
                         gr_bf16 *temp, void *ws);
void gr_cuda_fp8_product_dx(gr_queue *q, const gr_product *p, const gr_bf16 *dy, gr_bf16 *dx, void *ws);
void gr_cuda_fp8_product_dw(gr_queue *q, const gr_product *p, const gr_bf16 *dy, void *grad, gr_dtype grads,
                            void *ws);
bool gr_cuda_product_back(gr_queue *q, const gr_product *p, const void *dy, void *dx, void *grad,
                          gr_dtype grads, void *ws);
void gr_cuda_quantize(gr_queue *q, const gr_quantize *c);

void gr_cuda_norm(gr_queue *q, const gr_norm *c, void *y);
void gr_cuda_norm_add(gr_queue *q, const gr_norm *c, const void *add, void *y);
bool gr_cuda_norm_round(gr_queue *q, const gr_norm *c, const gr_product *p, void *y, void *ws);
void gr_cuda_norm_backward(gr_queue *q, const gr_norm *c, const void *dy, void *dx, bool add, void *grad,
                           gr_dtype grads, void *ws);
bool gr_cuda_product_norms(gr_queue *q, const gr_product *p);
void gr_cuda_product(gr_queue *q, const gr_product *p, void *y, void *ws);
void gr_cuda_product_add(gr_queue *q, const gr_product *p, const void *add, float scale, bool sliced, void *y,
                         void *temp, void *ws);
bool gr_cuda_product_activate(gr_queue *q, const gr_dense_desc *d, const gr_tokens *b, const gr_product *p,
                              void *h);
void gr_cuda_product_dx(gr_queue *q, const gr_product *p, const void *dy, void *dx, void *ws);
void gr_cuda_product_dw(gr_queue *q, const gr_product *p, const void *dy, void *grad, gr_dtype grads,
                        void *ws);
void gr_cuda_scale(gr_queue *q, const void *x, float scale, uint64_t n, void *y);
void gr_cuda_scale_by(gr_queue *q, void *x, const void *by, uint64_t n);
void gr_cuda_column_sums(gr_queue *q, const void *d, uint32_t t, uint32_t cols, void *grad, gr_dtype grads,
                         void *ws);
void gr_cuda_rotate(gr_queue *q, const gr_rotate *c, const void *from, void *to, void *raw);
bool gr_cuda_rotate_attend(gr_queue *q, const gr_rotate *r, const gr_attend *c, const void *from, void *out);
void gr_cuda_rotate_backward(gr_queue *q, const gr_rotate *c, const void *raw, uint32_t raw_ld, void *d,
                             void *grad_q_norm, void *grad_k_norm, gr_dtype grads, void *ws);
void gr_cuda_copy_activations(gr_queue *q, void *to, uint64_t to_stride, const void *from,
                              uint64_t from_stride, uint64_t row_bytes, uint64_t n);
void gr_cuda_gate(gr_queue *q, uint32_t t, uint32_t n, const void *x, const void *g, uint32_t ld, void *y);
void gr_cuda_gate_backward(gr_queue *q, uint32_t t, uint32_t n, const void *x, const void *g, uint32_t ld,
                           const void *dy, void *dx, void *dg);
void gr_cuda_attend(gr_queue *q, const gr_attend *c, void *out, float *stats);
bool gr_cuda_attend_round(gr_queue *q, const gr_attend *c, const gr_product *p, void *out, void *ws);
void gr_cuda_attend_backward(gr_queue *q, const gr_attend *c, const void *out, const float *stats,
                             const void *dout, void *dqkv, void *grad_sinks, gr_dtype grads);
void gr_cuda_activate(gr_queue *q, const gr_dense_desc *d, uint32_t t, const void *gate_up, void *h);
bool gr_cuda_activate_round(gr_queue *q, const gr_dense_desc *d, const void *gate_up, const gr_product *p,
                            void *h, void *ws);
void gr_cuda_activate_backward(gr_queue *q, const gr_dense_desc *d, uint32_t t, const void *gate_up,
                               const void *dh, void *d_gate_up, void *h);

#endif
