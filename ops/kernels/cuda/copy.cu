/* ops/kernels/cuda/copy.cu: see copy.h. A thread a unit; bound by its launch. */
#include "ops/kernels/cuda/chained.cuh"
#include "ops/kernels/cuda/copy.h"
#include "ops/kernels/cuda/device.cuh"

enum { BLOCK = 256 };

GR_KERNEL void __launch_bounds__(BLOCK)
    copy_kernel(uint4 *to, uint64_t to_ld, const uint4 *from, uint64_t from_ld, uint32_t units, uint32_t all)
{
    gr_chain_release();
    gr_chain_wait();
    const uint32_t i = blockIdx.x * BLOCK + threadIdx.x, row = i / units, at = i % units;
    if (i < all) to[row * to_ld + at] = from[row * from_ld + at];
}

void gr_cu_copy_rows(cudaStream_t st, void *to, uint64_t to_ld, const void *from, uint64_t from_ld,
                     uint32_t units, uint32_t n)
{
    const uint32_t all = units * n;
    if (all)
        gr_chain(st, copy_kernel, dim3((all + BLOCK - 1) / BLOCK), dim3(BLOCK), 0, (uint4 *)to, to_ld,
                 (const uint4 *)from, from_ld, units, all);
}
