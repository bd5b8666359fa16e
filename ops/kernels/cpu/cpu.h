/* ops/kernels/cpu/cpu.h: what the files of the CPU kernels share, and the entries of its tables. */
#ifndef GR_OPS_KERNELS_CPU_CPU_H
#define GR_OPS_KERNELS_CPU_CPU_H

#include "ops/kernels/workspace.h"
#include "ops/kernels/cpu/gemm.h"
#include "ops/kernels/kernels.h"
#include "ops/kernels/layer_ops.h"
#include "ops/model/rope.h"

/* 1 / sqrt(mean of squares + eps) of a row. */
float gr_rms_inv(const gr_simd *v, const float *x, size_t n, float eps);
/* y = x inv w, or x inv (1 + w), or x inv where w is NULL; y == x is fine. */
void gr_rms_norm(const gr_simd *v, float *y, const float *x, const float *w, bool plus_one, float inv,
                 size_t n);
/* dx = (base, where not NULL) + what dy, of that y, gives to x; dx == dy is fine. Without w there is no base.
 */
void gr_rms_back(const gr_simd *v, float *dx, const float *base, const float *dy, const float *x,
                 const float *w, bool plus_one, float inv, size_t n);

/* ---- keys and values ----
 * A block holds GR_KV_BLOCK positions: [kv_head] [K: [Dp] [16 positions], V: [16 positions] [Dp]], Dp =
 * head_dim rounded up to 16. In FP8 (kv_fp8) those are E4M3, and behind them stand the fp32 scales of K [16
 * positions] and of V [16]: s and values as ops/model/fp8.h has them, of a position's head. Sequences without
 * a block table lie in blocks offset / 16 + sequence, then upwards. */
uint64_t gr_kv_block_bytes(const gr_attention_desc *s);
/* The keys and values in qkv [n, gr_qkv_width] go to their blocks, from b->state on. */
void gr_kv_write(gr_queue *q, const gr_attention_desc *s, const gr_tokens *b, const float *qkv);

/* ---- entries of gr_layer_ops ---- */

uint64_t gr_cpu_product_ws_bytes(uint32_t t, uint32_t in, uint32_t out, unsigned threads, bool backward);
void gr_cpu_product(gr_queue *q, const gr_product *p, void *y, void *ws);
uint64_t gr_cpu_fp8_ws_bytes(uint32_t t, uint32_t in, uint32_t out, unsigned threads, bool backward);
uint64_t gr_cpu_fp8_dw_ws_bytes(uint32_t t, uint32_t in, uint32_t out, unsigned threads);
void gr_cpu_quantize(gr_queue *q, const gr_quantize *c);
/* Those whose weights are in FP8; without a bias. */
void gr_cpu_fp8_product(gr_queue *q, const gr_product *p, void *y, void *ws);
void gr_cpu_fp8_product_dx(gr_queue *q, const gr_product *p, const void *dy, void *dx, void *ws);
void gr_cpu_fp8_product_dw(gr_queue *q, const gr_product *p, const void *dy, void *grad, void *ws);
void gr_cpu_product_add(gr_queue *q, const gr_product *p, const void *add, float scale, bool sliced, void *y,
                        void *temp, void *ws);
void gr_cpu_product_dx(gr_queue *q, const gr_product *p, const void *dy, void *dx, void *ws);
void gr_cpu_product_dw(gr_queue *q, const gr_product *p, const void *dy, void *grad, gr_dtype grads,
                       void *ws);
void gr_cpu_scale(gr_queue *q, const void *x, float scale, uint64_t n, void *y);
void gr_cpu_scale_by(gr_queue *q, void *x, const void *by, uint64_t n);
void gr_cpu_column_sums(gr_queue *q, const void *d, uint32_t t, uint32_t cols, void *grad, gr_dtype grads,
                        void *ws);
void gr_cpu_norm(gr_queue *q, const gr_norm *c, void *y);
void gr_cpu_norm_add(gr_queue *q, const gr_norm *c, const void *add, void *y);
void gr_cpu_norm_backward(gr_queue *q, const gr_norm *c, const void *dy, void *dx, bool add, void *grad,
                          gr_dtype grads, void *ws);
uint64_t gr_cpu_back_ws_bytes(const gr_layer_desc *d, uint32_t hidden, uint32_t tokens);
void gr_cpu_activate(gr_queue *q, const gr_dense_desc *d, uint32_t t, const void *gate_up, void *h);
void gr_cpu_activate_backward(gr_queue *q, const gr_dense_desc *d, uint32_t t, const void *gate_up,
                              const void *dh, void *d_gate_up, void *h);
void gr_cpu_rotate(gr_queue *q, const gr_rotate *c, const void *from, void *to, void *raw);
void gr_cpu_rotate_backward(gr_queue *q, const gr_rotate *c, const void *raw, uint32_t raw_ld, void *d,
                            void *grad_q_norm, void *grad_k_norm, gr_dtype grads, void *ws);
void gr_cpu_gate(gr_queue *q, uint32_t t, uint32_t n, const void *x, const void *g, uint32_t ld, void *y);
void gr_cpu_gate_backward(gr_queue *q, uint32_t t, uint32_t n, const void *x, const void *g, uint32_t ld,
                          const void *dy, void *dx, void *dg);
uint64_t gr_cpu_attend_ws_bytes(const gr_attention_desc *d, const gr_pass_bounds *b, gr_layer_use use);
void gr_cpu_attend(gr_queue *q, const gr_attend *c, void *out, float *stats);
void gr_cpu_attend_backward(gr_queue *q, const gr_attend *c, const void *out, const float *stats,
                            const void *dout, void *dqkv, void *grad_sinks, gr_dtype grads);

/* ---- entries of gr_kernels ---- */

uint64_t gr_cpu_head_ws_bytes(const gr_model_shape *s, uint32_t chunk_rows, gr_head_use use,
                              unsigned threads);
void gr_cpu_embed_forward(gr_queue *q, const gr_model_shape *s, const void *embed, const gr_packed *b,
                          void *x);
void gr_cpu_embed_backward(gr_queue *q, const gr_model_shape *s, const gr_packed *b, const void *dx,
                           void *grad_embed, gr_dtype grads, void *ws);
uint64_t gr_cpu_embed_ws_bytes(uint32_t tokens);
uint64_t gr_cpu_teach_ws_bytes(const gr_model_shape *s, const gr_model_shape *teacher, uint32_t chunk_rows,
                               unsigned threads);
void gr_cpu_teach(gr_queue *q, const gr_model_shape *s, const gr_head_rows *rows, const gr_head_teacher *t,
                  float *divergence, void *ws, void *taught);
void gr_cpu_head_forward(gr_queue *q, const gr_model_shape *s, const void *norm, const void *lm,
                         const void *x, const gr_head_rows *rows, const gr_head_stats *out, void *ws);
void gr_cpu_head_backward(gr_queue *q, const gr_model_shape *s, const void *norm, const void *lm,
                          const void *x, const gr_head_rows *rows, const float *d_logprob,
                          const float *d_entropy, void *dx, void *grad_norm, void *grad_lm, gr_dtype grads,
                          void *ws);
void gr_cpu_head_sample(gr_queue *q, const gr_model_shape *s, const void *norm, const void *lm, const void *x,
                        const uint32_t *row, uint32_t n, const gr_sampling *how, const uint32_t (*draw)[2],
                        int32_t *id, float *logprob, void *ws);
uint64_t gr_cpu_value_ws_bytes(const gr_model_shape *s, uint32_t chunk_rows, unsigned threads);
void gr_cpu_value_forward(gr_queue *q, const gr_model_shape *s, const gr_value_head *head, const void *x,
                          const uint32_t *row, uint32_t n, float *value, void *ws);
void gr_cpu_value_backward(gr_queue *q, const gr_model_shape *s, const gr_value_head *head, const void *x,
                           const uint32_t *row, uint32_t n, const float *d_value, void *dx,
                           const gr_value_grads *grad, void *ws);
void gr_cpu_zero(gr_queue *q, void *p, uint64_t bytes);
void gr_cpu_add(gr_queue *q, void *to, const void *from, gr_dtype type, uint64_t n);
void gr_cpu_blend(gr_queue *q, void *to, float *master, const void *from, float decay, float share,
                  uint64_t n);
uint64_t gr_cpu_sum_squares_ws_bytes(void);
void gr_cpu_sum_squares(gr_queue *q, const void *x, gr_dtype type, uint64_t n, double *out, void *ws);
void gr_cpu_to_unit(gr_queue *q, void *x, uint64_t n, const double *squares);
void gr_cpu_muon_mix(gr_queue *q, const gr_optim *how, const gr_optim_range *r, void *u, uint64_t n);
void gr_cpu_optim_step(gr_queue *q, const gr_optim *how, bool decay, const gr_optim_range *r, uint64_t n);

#endif
