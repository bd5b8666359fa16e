/* ops/kernels/cuda/attention_simple.h: packed causal attention by own kernels: any head_dim that is a
 * multiple of 8 up to 512, sm_80 and up (beyond 256: 192 KiB of shared memory, as sm_90 has), no workspace
 * that grows with the square of a length, deterministic.
 *
 * For devices and shapes that cuDNN does not take, and as what cuDNN is compared with. A row's bits do not
 * depend on the batch, and are those of gr_cu_extend_attention. Layouts: see attention.h. Only enqueues; safe
 * under capture; a failed launch shows in cudaGetLastError.
 */
#ifndef GR_OPS_KERNELS_CUDA_ATTENTION_SIMPLE_H
#define GR_OPS_KERNELS_CUDA_ATTENTION_SIMPLE_H

#include "ops/kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gr_cu_simple {
    uint32_t heads, kv_heads, head_dim;
    gr_scores scores;       /* sinks: device */
    const uint32_t *offset; /* [n_seqs + 1], device */
    uint32_t n_seqs, n_tokens, longest;
    const uint32_t *prefix; /* [n_seqs], device; NULL: see gr_cu_sequences */
} gr_cu_simple;

/* out [T, heads D]; stats [T, heads]: log of the softmax's denominator, or NULL. */
void gr_cu_simple_forward(cudaStream_t st, const gr_cu_simple *s, const gr_bf16 *qkv, gr_bf16 *out,
                          float *stats);
/* dqkv [T, W] is written; delta: workspace of n_tokens * heads floats. */
void gr_cu_simple_backward(cudaStream_t st, const gr_cu_simple *s, const gr_bf16 *qkv, const gr_bf16 *out,
                           const float *stats, const gr_bf16 *dout, gr_bf16 *dqkv, float *delta);

/* delta [T, heads]: sums of out * dout over D. */
void gr_cu_attention_delta(cudaStream_t st, const gr_cu_simple *s, const gr_bf16 *out, const gr_bf16 *dout,
                           float *delta);

/* From out and stats of attention without sinks to those with s->scores.sinks, in place. */
void gr_cu_sinks_forward(cudaStream_t st, const gr_cu_simple *s, gr_bf16 *out, float *stats);
/* grad [heads] += the gradient of the sinks, from stats and delta of attention with them. */
void gr_cu_sinks_backward(cudaStream_t st, const gr_cu_simple *s, const float *stats, const float *delta,
                          void *grad, gr_cu_dtype grad_type);

/* What cuDNN wants to know of sequences [first, first + n) as B of them (those beyond n are empty), each
 * array int32: length [B], and [B + 1] places of their first elements in qkv rows of width, o rows of
 * o_width, and statistics of stats_width, all counted from the first of these sequences. */
void gr_cu_attention_index(cudaStream_t st, const uint32_t *offset, uint32_t first, uint32_t n, uint32_t B,
                           uint32_t width, uint32_t o_width, uint32_t stats_width, int32_t *length,
                           int32_t *rows, int32_t *o_rows, int32_t *stats_rows);

#ifdef __cplusplus
}
#endif

#endif
