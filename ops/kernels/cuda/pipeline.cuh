/* ops/kernels/cuda/pipeline.cuh: tiles of x W^T on Hopper: who brings operands to shared memory, who
 * multiplies them, and how the two wait for each other. What becomes of a tile is the kernel's.
 *
 * One CTA a multiprocessor, two to a cluster. A cluster computes tiles of 256 rows of x by 2 HALF rows of W,
 * a CTA 128 of the rows of x; of W's rows each CTA of the cluster fetches one half, for both. A producer
 * thread keeps STAGES steps of 64 columns in shared memory, ahead over the ends of tiles; two warpgroups of
 * 64 rows each multiply them, and deal with a tile while the producer fetches the next one.
 *
 * Every element is one chain of products over the columns in their order, whatever the size of x: the bits of
 * a row of the result follow from that row of x alone.
 */
#ifndef GR_OPS_KERNELS_CUDA_PIPELINE_CUH
#define GR_OPS_KERNELS_CUDA_PIPELINE_CUH

#include "ops/kernels/cuda/hopper.cuh"

enum {
    GR_PIPE_ROWS = 128, /* of x, of a CTA */
    GR_PIPE_CLUSTER = 2,
    GR_PIPE_CONSUMERS = 2, /* warpgroups */
    GR_PIPE_THREADS = (GR_PIPE_CONSUMERS + 1) * GR_WARPGROUP,
};

/* Rows of x of a cluster's tile. */
#define GR_PIPE_PAIR (GR_PIPE_CLUSTER * GR_PIPE_ROWS)

/* Boxes of `rows` rows by 64 columns of a row-major [all, columns]; columns a multiple of 8, p on 16 bytes.
 * false: the driver has no such maps. */
bool gr_tile_map(CUtensorMap *map, const gr_bf16 *p, uint64_t all, uint64_t columns, uint32_t rows);

/* Boxes of 64 rows by 64 columns of row-major matrices [rows, columns], `stack` of them behind each other;
 * columns a multiple of 8, p on 16 bytes. A box ends where its matrix does. */
bool gr_box_map(CUtensorMap *map, const gr_bf16 *p, uint64_t stack, uint64_t rows, uint64_t columns);

/* Whether this device has what they need, for these rows. */
bool gr_pipe_takes(const gr_bf16 *w, uint32_t columns);

/* Clusters that are there at once. */
uint32_t gr_pipe_clusters();

/* kernel(args, maps: of x, of W, ...) on at most so many clusters. false: not launched. */
template <class Args, class... Maps>
static inline bool gr_pipe_launch(cudaStream_t st, void (*kernel)(Args, Maps...), uint32_t shared,
                                  uint32_t tiles, const Args &a, const Maps &...maps)
{
    const uint32_t clusters = gr_pipe_clusters();
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = GR_PIPE_CLUSTER;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t how = {};
    how.gridDim = dim3(GR_PIPE_CLUSTER * (tiles < clusters ? tiles : clusters));
    how.blockDim = dim3(GR_PIPE_THREADS);
    how.dynamicSmemBytes = shared;
    how.stream = st;
    how.attrs = &cluster;
    how.numAttrs = 1;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared) ==
               cudaSuccess &&
           cudaLaunchKernelEx(&how, kernel, a, maps...) == cudaSuccess;
}

template <int HALF, int STAGES, int DEPTH = GR_TILE_DEPTH> struct gr_pipe {
    enum {
        TERMS = DEPTH,      /* of a step */
        COLUMNS = 2 * HALF, /* of a tile */
        ROW_BYTES = DEPTH * 2,
        X_BYTES = GR_PIPE_ROWS * ROW_BYTES,
        HALF_BYTES = HALF * ROW_BYTES,
        STAGE_BYTES = X_BYTES + 2 * HALF_BYTES,
        SHARED_BYTES = STAGES * STAGE_BYTES + 1024, /* what alignment may take */
    };
    static_assert(HALF_BYTES % 1024 == 0, "the swizzle");

    uint32_t stages, full, empty; /* addresses: of stages, and of barriers, 8 bytes a stage */
    uint32_t stage, parity;       /* whose turn it is, and the parity of its phase */

#if GR_HOPPER

    /* By all threads of the cluster. barrier [2 STAGES]. */
    __device__ void open(unsigned char *memory, uint64_t *barrier)
    {
        stages = (gr_shared(memory) + 1023) / 1024 * 1024;
        full = gr_shared(barrier);
        empty = gr_shared(barrier + STAGES);
        stage = 0;
        parity = threadIdx.x < GR_WARPGROUP; /* the producer finds stages empty */
        if (threadIdx.x == 0) {
            for (uint32_t i = 0; i < STAGES; i++) {
                gr_barrier_init(full + 8 * i, 1);
                gr_barrier_init(empty + 8 * i,
                                GR_PIPE_CLUSTER * GR_PIPE_CONSUMERS * (GR_WARPGROUP / GR_WARP));
            }
            gr_barriers_made();
        }
        gr_cluster_meet();
    }

    __device__ __forceinline__ void next()
    {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }

    /* One thread of each CTA: a tile's operands. x_row: the CTA's own; w_row: of the half that it fetches.
     * The empty barrier of a stage is arrived at by all consumers of the cluster, for a half goes to both
     * CTAs. */
    __device__ void fetch(const CUtensorMap *x, const CUtensorMap *w, uint32_t x_row, uint32_t w_row,
                          uint32_t steps)
    {
        const uint32_t half = X_BYTES + gr_cluster_rank() * HALF_BYTES;
        for (uint32_t k = 0; k < steps; k++, next()) {
            const uint32_t at = stages + stage * STAGE_BYTES, barrier = full + 8 * stage;
            gr_barrier_wait(empty + 8 * stage, parity);
            gr_barrier_expect(barrier, STAGE_BYTES);
            gr_tile_copy(at, x, barrier, k * GR_TILE_DEPTH, x_row);
            gr_tile_copy_to(3, at + half, w, barrier, k * GR_TILE_DEPTH, w_row);
        }
    }

    __device__ __forceinline__ void leave(uint32_t which)
    {
        const uint32_t lane = threadIdx.x % GR_WARP;
        if (lane < GR_PIPE_CLUSTER) gr_barrier_arrive_at(empty + 8 * which, lane);
        __syncwarp();
    }

    /* z: the warpgroup's elements of a tile, 64 rows. A stage is left when the products that read it are
     * through, one step later. */
    __device__ __forceinline__ void multiply(uint32_t group, uint32_t steps, float (&z)[HALF])
    {
        uint32_t before = 0;
        for (uint32_t k = 0; k < steps; k++, next()) {
            const uint32_t at = stages + stage * STAGE_BYTES;
            gr_barrier_wait(full + 8 * stage, parity);
            const uint64_t x = gr_tile_operand(at + group * (X_BYTES / GR_PIPE_CONSUMERS)),
                           w = gr_tile_operand(at + X_BYTES);
            gr_products_begin();
#pragma unroll
            for (int i = 0; i < GR_TILE_DEPTH / 16; i++) gr_product(z, x + 2 * i, w + 2 * i, k || i);
            gr_products_commit();
            gr_products_wait<1>();
            if (k) leave(before);
            before = stage;
        }
        gr_products_wait<0>();
        leave(before);
    }

#endif
};

#endif
