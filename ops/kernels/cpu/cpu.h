/* ops/kernels/cpu/cpu.h: what the files of the CPU kernels share: carving of workspaces, small products,
 * RoPE, attention.
 */
#ifndef GR_OPS_KERNELS_CPU_CPU_H
#define GR_OPS_KERNELS_CPU_CPU_H

#include "ops/kernels/workspace.h"
#include "ops/kernels/cpu/gemm.h"
#include "ops/kernels/kernels.h"
#include "ops/model/rope.h"

/* y [t, out] = x [t, in] W^T, W [out, in]. */
void gr_linear(gr_queue *q, const float *x, size_t t, size_t in, const float *w, size_t out, float *y,
               void *ws);
/* dx [t, in] = dy [t, out] W, and grad [out, in] += dy^T x. */
void gr_linear_back(gr_queue *q, const float *dy, const float *x, size_t t, size_t in, const float *w,
                    size_t out, float *dx, float *grad, void *ws);

/* Their workspaces, for t tokens or fewer. */
uint64_t gr_linear_ws_bytes(size_t t, size_t in, size_t out, unsigned threads);
uint64_t gr_linear_back_ws_bytes(size_t t, size_t in, size_t out, unsigned threads);

/* 1 / sqrt(mean of squares + eps) of a row. */
float gr_rms_inv(const gr_simd *v, const float *x, size_t n, float eps);
/* dx = (base, where not NULL) + what dy, of y = x inv w, gives to x. */
void gr_rms_back(const gr_simd *v, float *dx, const float *base, const float *dy, const float *x,
                 const float *w, float inv, size_t n);

/* ---- attention ---- */

/* Query tokens of several sequences and where their keys and values lie. A block holds GR_KV_BLOCK positions:
 * [kv_head] [K: [Dp] [16 positions], V: [16 positions] [Dp]], Dp = head_dim rounded up to 16. */
typedef struct gr_batch {
    uint32_t n_tokens, n_seqs;
    const uint32_t *offset;      /* [n_seqs + 1] into the tokens */
    const uint32_t *cached;      /* [n_seqs] positions before them; NULL: 0 */
    const uint32_t *block_table; /* [n_seqs, table_stride]; NULL: offset / 16 + sequence, then upwards */
    uint32_t table_stride;
    float *kv;
} gr_batch;

uint64_t gr_kv_block_floats(const gr_model_shape *s);
uint32_t gr_batch_length(const gr_batch *b); /* most keys of a sequence */

static inline uint32_t gr_qkv_width(const gr_model_shape *s)
{
    return (s->heads + 2 * s->kv_heads) * s->head_dim;
}

/* The keys and values in qkv [n_tokens, gr_qkv_width] go to their blocks. */
void gr_kv_write(gr_queue *q, const gr_model_shape *s, const gr_batch *b, const float *qkv);
/* out [n_tokens, heads D]; lse [n_tokens, heads] (log of the softmax's denominator) or NULL. */
void gr_attend(gr_queue *q, const gr_model_shape *s, const gr_batch *b, const float *qkv, float *out,
               float *lse, float *ws);
uint64_t gr_attend_floats(uint32_t length, unsigned threads);
/* dqkv [n_tokens, gr_qkv_width] from dout; sequences without cached positions. */
void gr_attend_back(gr_queue *q, const gr_model_shape *s, const gr_batch *b, const float *qkv,
                    const float *out, const float *lse, const float *dout, float *dqkv, float *ws);
uint64_t gr_attend_back_floats(const gr_model_shape *s, uint32_t length, unsigned threads);

/* ---- one layer ---- */

typedef struct gr_acts { /* what backward needs; T rows each */
    float *qkv;          /* [gr_qkv_width]: q and k after norm and RoPE */
    float *qk_raw;       /* [(heads + kv_heads) D] before them, where qk_norm */
    float *att, *lse;    /* [heads D], [heads] */
    float *mid;          /* [H]: after attention's residual */
    float *gate_up;      /* [2 I] */
} gr_acts;
void gr_acts_layout(gr_workspace *c, const gr_model_shape *s, uint32_t tokens, gr_acts *a);

/* A tensor of a layer's bucket; NULL where the model does not have it. */
static inline const float *gr_tensor_at(const gr_model_shape *s, const float *layer, gr_tensor_slot slot)
{
    const uint64_t offset = gr_tensor_offset(s, 1, slot);
    return offset == UINT64_MAX ? NULL : layer + offset;
}

/* ---- entries of gr_kernels ---- */

uint64_t gr_cpu_acts_bytes(const gr_model_shape *s, const gr_pass_bounds *b);
uint64_t gr_cpu_layer_ws_bytes(const gr_model_shape *s, const gr_pass_bounds *b, gr_layer_use use);
uint64_t gr_cpu_layer_back_ws_bytes(const gr_model_shape *s, const gr_pass_bounds *b);
uint64_t gr_cpu_extend_ws_bytes(const gr_model_shape *s, const gr_pass_bounds *b);
uint64_t gr_cpu_head_ws_bytes(const gr_model_shape *s, uint32_t chunk_rows, gr_head_use use,
                              unsigned threads);
uint64_t gr_cpu_kv_block_bytes(const gr_model_shape *s);
void gr_cpu_embed_forward(gr_queue *q, const gr_model_shape *s, const void *embed, const gr_packed *b,
                          void *x);
void gr_cpu_embed_backward(gr_queue *q, const gr_model_shape *s, const gr_packed *b, const void *dx,
                           void *grad_embed, gr_dtype grads, void *ws);
uint64_t gr_cpu_embed_ws_bytes(uint32_t tokens);
void gr_cpu_layer_forward(gr_queue *q, const gr_model_shape *s, const void *w, const gr_packed *b, void *x,
                          void *keep_in, void *acts, void *ws);
void gr_cpu_layer_backward(gr_queue *q, const gr_model_shape *s, const void *w, const gr_packed *b,
                           const void *in, const void *acts, void *dx, void *grad, gr_dtype grads, void *ws);
void gr_cpu_layer_extend(gr_queue *q, const gr_model_shape *s, const void *w, const gr_extend *e, void *x,
                         void *kv, void *ws);
void gr_cpu_kv_copy(gr_queue *q, const gr_model_shape *s, void *kv, const uint32_t *src, const uint32_t *dst,
                    uint32_t n);
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
uint64_t gr_cpu_sum_squares_ws_bytes(void);
void gr_cpu_sum_squares(gr_queue *q, const void *x, gr_dtype type, uint64_t n, double *out, void *ws);
void gr_cpu_adamw(gr_queue *q, const gr_adamw *how, bool decay, const gr_adamw_range *r, uint64_t n);

#endif
