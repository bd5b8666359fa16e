/* ops/kernels/cuda/delta_rows.cuh: which tokens of a call of the gated delta rule are a sequence's. Where a
 * slot has several rows (gr_cu_delta.each) it is a sequence, and each of its rows has an entry of slot and
 * cached: where the state behind that row is left.
 */
#ifndef GR_OPS_KERNELS_CUDA_DELTA_ROWS_CUH
#define GR_OPS_KERNELS_CUDA_DELTA_ROWS_CUH

#include "ops/kernels/cuda/delta.h"

#define GR_DELTA_ROWS static __device__ __forceinline__

/* Its first token, and the first behind it. */
GR_DELTA_ROWS uint32_t gr_delta_begin(const gr_cu_delta &a, uint32_t seq)
{
    return a.each > 1 ? seq * a.each : a.offset[seq];
}

GR_DELTA_ROWS uint32_t gr_delta_end(const gr_cu_delta &a, uint32_t seq)
{
    return a.each > 1 ? (seq + 1) * a.each : a.offset[seq + 1];
}

/* Where its state comes from; UINT32_MAX: it has none. */
GR_DELTA_ROWS uint32_t gr_delta_place(const gr_cu_delta &a, uint32_t seq)
{
    return a.slot[seq * a.each];
}

/* Whether that state is there, else it counts as zeros. */
GR_DELTA_ROWS bool gr_delta_goes_on(const gr_cu_delta &a, uint32_t seq)
{
    return a.cached[seq * a.each] != 0;
}

/* Where the state behind token t of a sequence is left. */
GR_DELTA_ROWS uint32_t gr_delta_place_behind(const gr_cu_delta &a, uint32_t seq, uint32_t t)
{
    return a.slot[a.each > 1 ? t : seq];
}

#endif
