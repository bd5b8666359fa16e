/* ops/kernels/cuda/chained.cuh: kernels of a decode step that start before the one in front of them has ended
 * (programmatic dependent launch, CUDA programming guide, "Programmatic Dependent Launch and
 * Synchronization").
 *
 * A kernel launched by gr_chain begins while its predecessor runs. Until gr_chain_wait it may read what no
 * kernel of the step writes (weights), and write nothing; behind it everything before is there. Every thread
 * waits, so that the end of one kernel is the end of all before it. gr_chain_release lets the next one begin;
 * it takes what room there is beside this one. Behind a copy it waits for all of it. But on compute
 * capability 9.0 all of this is a plain launch.
 */
#ifndef GR_OPS_KERNELS_CUDA_CHAINED_CUH
#define GR_OPS_KERNELS_CUDA_CHAINED_CUH

#include <cuda_runtime.h>
#include <stddef.h>

static __device__ __forceinline__ void gr_chain_wait(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void gr_chain_release(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static inline bool gr_chain_there(void)
{
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    return major == 9;
}

/* kernel <<<grid, block, shared, st>>>(args...) in clusters of so many CTAs along x; an error is left for
 * cudaGetLastError. */
template <typename... Parameters, typename... Args>
static void gr_chain_clusters(cudaStream_t st, void (*kernel)(Parameters...), unsigned cluster, dim3 grid,
                              dim3 block, size_t shared, Args... args)
{
    cudaLaunchAttribute how[2] = {};
    cudaLaunchConfig_t c = {};
    how[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    how[0].val.programmaticStreamSerializationAllowed = 1;
    how[1].id = cudaLaunchAttributeClusterDimension;
    how[1].val.clusterDim.x = cluster;
    how[1].val.clusterDim.y = how[1].val.clusterDim.z = 1;
    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = shared;
    c.stream = st;
    c.attrs = how;
    c.numAttrs = !gr_chain_there() ? 0 : cluster > 1 ? 2 : 1;
    cudaLaunchKernelEx(&c, kernel, Parameters(args)...);
}

template <typename... Parameters, typename... Args>
static void gr_chain(cudaStream_t st, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
                     Args... args)
{
    gr_chain_clusters(st, kernel, 1, grid, block, shared, args...);
}

#endif
