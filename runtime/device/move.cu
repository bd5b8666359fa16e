/* runtime/device/move.cu: few bytes between the host's page-locked memory and the device, by a kernel that
 * reads one and writes the other: half a megabyte of it in flight, to cover the link's latency.
 */
#include "runtime/device/move.h"

#include <assert.h>
#include <cuda_runtime.h>

enum { BLOCK = 256, BLOCKS_MAX = 128 };

template <typename T>
static __global__ void __launch_bounds__(BLOCK) move_kernel(T *to, const T *from, uint32_t n)
{
    for (uint32_t i = blockIdx.x * BLOCK + threadIdx.x; i < n; i += gridDim.x * BLOCK) to[i] = from[i];
}

template <typename T> static void move(cudaStream_t st, void *to, const void *from, uint64_t bytes)
{
    const uint32_t n = (uint32_t)(bytes / sizeof(T)), blocks = (n + BLOCK - 1) / BLOCK;
    const uint32_t grid = blocks < BLOCKS_MAX ? blocks : (uint32_t)BLOCKS_MAX;
    if (n) move_kernel<<<grid, BLOCK, 0, st>>>((T *)to, (const T *)from, n);
}

extern "C" void gr_cu_move(cudaStream_t st, void *to, const void *from, uint64_t bytes)
{
    const uintptr_t odd = (uintptr_t)to | (uintptr_t)from;
    assert(bytes <= GR_CU_MOVE_MAX);
    if (odd % sizeof(uint32_t)) {
        move<uint8_t>(st, to, from, bytes);
        return;
    }
    const uint64_t whole = odd % sizeof(uint4) ? bytes / sizeof(uint32_t) * sizeof(uint32_t)
                                               : bytes / sizeof(uint4) * sizeof(uint4);
    if (odd % sizeof(uint4))
        move<uint32_t>(st, to, from, whole);
    else
        move<uint4>(st, to, from, whole);
    move<uint8_t>(st, (char *)to + whole, (const char *)from + whole, bytes - whole);
}
