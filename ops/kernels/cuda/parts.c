/* ops/kernels/cuda/parts.c: scratch that each device kernel needs, by its sizes. */
#include "ops/kernels/cuda/parts.h"

#include "ops/kernels/cuda/launch.h"

uint64_t gr_cu_rmsnorm_backward_ws(uint32_t n, uint32_t H)
{
    return (uint64_t)gr_norm_parts(n, H) * H * sizeof(float);
}

uint64_t gr_cu_qk_rope_backward_ws(const gr_cu_heads *h, uint32_t T)
{
    const uint32_t across = gr_rope_blocks(h->heads) + gr_rope_blocks(h->kv_heads);
    return (uint64_t)across * gr_rope_blocks_along(T, h->head_dim, across) * h->head_dim * sizeof(float);
}

uint64_t gr_cu_column_sums_ws(uint32_t T, uint32_t cols)
{
    return (uint64_t)gr_strips(T, cols) * cols * sizeof(float);
}

uint64_t gr_cu_value_ws(uint32_t n, uint32_t H)
{
    return 4 * gr_value_row_room(n) * sizeof(float) + gr_cu_column_sums_ws(n, H);
}

uint64_t gr_cu_embed_backward_ws(uint32_t T)
{
    return 4 * gr_sort_array_bytes(T) + gr_sort_own_bytes(T);
}

uint64_t gr_cu_sample_ws(uint32_t n, uint32_t V)
{
    return (uint64_t)n * gr_ceil_div(V, GR_TILE) * GR_TILE_BYTES;
}

uint64_t gr_cu_sum_squares_ws(void)
{
    return GR_SUM_BLOCKS * sizeof(double);
}
