/* ops/kernels/cuda/attention_prefix.h: what stands around cuDNN where sequences share their beginning
 * (ops/kernels/cuda/attention.h): attention of some rows over keys of two kinds is put together from both.
 *
 * With outputs o and log-sum-exps l of the two parts, the whole has
 *
 *     l' = log(exp(l1) + exp(l2)),   o' = exp(l1 - l') o1 + exp(l2 - l') o2,
 *
 * and its gradients are sums of those of the parts, if both are given o' and l'.
 *
 * Only enqueues; safe under capture; a failed launch shows in cudaGetLastError. Source of the sums: Liu et
 * al., Ring Attention, arXiv:2310.01889; the parts are those of cascade inference (Ye et al., FlashInfer,
 * arXiv:2501.01005).
 */
#ifndef GR_OPS_KERNELS_CUDA_ATTENTION_PREFIX_H
#define GR_OPS_KERNELS_CUDA_ATTENTION_PREFIX_H

#include "ops/kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What cuDNN wants to know of one batch of n_q queries and n_k keys, int32 on the device: lengths [1], and
 * [2] places of their first elements and of the end, in rows of these widths. */
typedef struct gr_cu_piece_index {
    int32_t *length, *rows, *o_rows, *stats_rows, *kv_length, *kv_rows;
} gr_cu_piece_index;
void gr_cu_attention_piece(cudaStream_t st, uint32_t n_q, uint32_t n_k, uint32_t width, uint32_t o_width,
                           uint32_t stats_width, const gr_cu_piece_index *out);

/* o [n, d], lse [n]: become those of both parts. d even. */
void gr_cu_attention_merge(cudaStream_t st, uint32_t n, uint32_t d, gr_bf16 *o, float *lse,
                           const gr_bf16 *o_part, const float *lse_part);

/* to += from: n rows of `cols` values at multiples of ld. cols and ld multiples of 8. */
void gr_cu_attention_add(cudaStream_t st, uint32_t n, uint32_t cols, uint32_t ld, gr_bf16 *to,
                         const gr_bf16 *from);

#ifdef __cplusplus
}
#endif

#endif
