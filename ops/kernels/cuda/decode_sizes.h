/* ops/kernels/cuda/decode_sizes.h: memory of the decode attention (ops/kernels/cuda/decode.cu): for its
 * launchers, and for the planner where CUDA is not built. C and CUDA C++ both read it. */
#ifndef GR_OPS_KERNELS_CUDA_DECODE_SIZES_H
#define GR_OPS_KERNELS_CUDA_DECODE_SIZES_H

#include "ops/kernels/cuda/launch.h"

#define GR_CU_DECODE_PIECE 256 /* keys of a piece */
#define GR_CU_DECODE_ITEM  24  /* words of an item of the list of pieces */

/* Query rows that read a piece together, at most. */
static inline uint32_t gr_cu_decode_rows(const gr_cu_heads *h)
{
    return h->kv_fp8 ? 8 : 16;
}

static inline uint64_t gr_cu_decode_align(uint64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Pieces of one slot at most: one more than its length says, as the last of the shared keys and the last of
 * its own need not be full. */
static inline uint32_t gr_cu_decode_pieces(uint32_t max_length)
{
    return (max_length + GR_CU_DECODE_PIECE - 1) / GR_CU_DECODE_PIECE + 1;
}

/* Of gr_cu_decode_plan's list: how many items, pieces of each slot, the items. */
static inline uint64_t gr_cu_decode_work_bytes(const gr_cu_heads *h, uint32_t n, uint32_t max_length)
{
    const uint32_t rows = gr_cu_decode_rows(h), chunks = (h->heads / h->kv_heads + rows - 1) / rows;
    const uint64_t items = (uint64_t)n * gr_cu_decode_pieces(max_length) * chunks;
    return 256 + gr_cu_decode_align(UINT64_C(4) * n) + gr_cu_decode_align(items * GR_CU_DECODE_ITEM * 4);
}

/* Of partial outputs: [n, heads, pieces, D] and, behind them, a maximum and a sum each; fp32. */
static inline uint64_t gr_cu_decode_acc_bytes(const gr_cu_heads *h, uint32_t n, uint32_t max_length)
{
    return gr_cu_decode_align(UINT64_C(4) * n * h->heads * gr_cu_decode_pieces(max_length) * h->head_dim);
}

static inline uint64_t gr_cu_decode_attention_ws(const gr_cu_heads *h, uint32_t n, uint32_t max_length)
{
    return gr_cu_decode_acc_bytes(h, n, max_length) +
           gr_cu_decode_align(UINT64_C(8) * n * h->heads * gr_cu_decode_pieces(max_length));
}

#endif
