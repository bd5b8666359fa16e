/* ops/kernels/cuda/strict.h: attention of one new token a slot with the bits of prefill and of packed passes.
 *
 * Under `strict: true` a token's attention has one order of sums wherever it is computed:
 * gr_cu_simple_forward (ops/kernels/cuda/attention_simple.h) for packed sequences, gr_cu_extend_attention for
 * prefill, and this for decoding. The order is that of ops/kernels/cuda/flash.cuh: pieces of
 * GR_CU_STRICT_PIECE keys, by position, merged in order. Here each piece has a warp of its own, so that few
 * slots with many keys keep the device busy too. Heads wider than GR_CU_DECODE_HEAD decode this way without
 * `strict`, too.
 *
 * The rest of what strict needs: products whose rows do not depend on their number (gemm.h), which leave
 * residuals to gr_cu_add. Norms, RoPE, SwiGLU, the head's statistics and sampling compute each row by itself.
 *
 * C and CUDA C++ both read it; sizes need no CUDA.
 */
#ifndef GR_OPS_KERNELS_CUDA_STRICT_H
#define GR_OPS_KERNELS_CUDA_STRICT_H

#include "ops/kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GR_CU_STRICT_PIECE 256 /* keys */
#define GR_CU_DECODE_HEAD  256 /* the widest of gr_cu_decode_attention */

static inline uint32_t gr_cu_strict_pieces(uint32_t max_length)
{
    return (max_length + GR_CU_STRICT_PIECE - 1) / GR_CU_STRICT_PIECE;
}

/* Of partial outputs: [n, heads, pieces, D] and, behind them, a maximum and a sum each; fp32. */
static inline uint64_t gr_cu_strict_ws(const gr_cu_heads *h, uint32_t n, uint32_t max_length)
{
    return UINT64_C(4) * n * h->heads * gr_cu_strict_pieces(max_length) * (h->head_dim + 2);
}

/* As gr_cu_decode_attention, of whose call only length, n and max_length are read: keys that slots share are
 * read for each of them, from the L2 cache where it holds them. */
void gr_cu_strict_attention(cudaStream_t st, const gr_cu_paged *p, const gr_cu_decode *d, const gr_bf16 *qkv,
                            gr_bf16 *out, void *ws);

#ifdef __cplusplus
}
#endif

#endif
