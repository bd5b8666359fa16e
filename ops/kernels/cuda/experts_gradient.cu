/* ops/kernels/cuda/experts_gradient.cu: gradients of experts' weights in fp32, in one launch whatever the
 * router chose: grad_e [out, in] += dy^T x over the rows of e. An expert has few rows for as many gradients
 * as it has weights, so the gradients' way from memory and back takes as long as the products, and goes
 * beside them:
 *
 *     a warp for each warpgroup brings the gradients of its part of a tile to shared memory while the tile is
 *     multiplied; the warpgroup adds what it has; the warp stores them while the next tile is multiplied.
 *
 * Each gradient is loaded, added to once and stored by the one CTA whose tile it is in.
 */
#include "ops/kernels/cuda/experts_tiles.cuh"

namespace
{

using namespace gr_groups;

/* Gradients of a warpgroup's part of a tile in shared memory: rows in turn in so many planes, so that those
 * that a warp reaches at once, 8 bytes a lane, are in different banks. */
struct held {
    enum {
        APART = 8 * sizeof(float), /* what four lanes reach of a row */
        PLANES = 128 / APART,
        ROW_BYTES = COLUMNS * sizeof(float),
        PLANE_BYTES = PART / PLANES * ROW_BYTES + APART,
        BYTES = PLANES * PLANE_BYTES,
    };

    __device__ static uint32_t place(uint32_t row)
    {
        return row % PLANES * PLANE_BYTES + row / PLANES * ROW_BYTES;
    }
};

/* The part of a warpgroup. */
struct part {
    uint32_t group;
    unsigned char *held;
    uint32_t there, done; /* barriers: gradients have come; sums are made */
};

enum { DEPTH = 32, STAGES = 4 };
typedef gr_pipe<COLUMNS / 2, STAGES, DEPTH> pipe;

/* Shared memory. */
struct shared {
    enum {
        HELD = STAGES * pipe::STAGE_BYTES, /* behind stages */
        BARRIERS = HELD + GR_PIPE_CONSUMERS * held::BYTES,
        START = BARRIERS + (2 * STAGES + 2 * GR_PIPE_CONSUMERS) * 8,
        BYTES = START + (GR_CU_EXPERTS_MAX + 1) * 4,
    };

#if GR_HOPPER
    __device__ __forceinline__ static part part_of(unsigned char *memory, uint32_t group)
    {
        const uint32_t there = gr_shared(memory + BARRIERS) + (2 * STAGES + 2 * group) * 8;
        return {group, memory + HELD + group * held::BYTES, there, there + 8};
    }
#endif

    static_assert(BYTES <= 227 * 1024 && BARRIERS % 8 == 0, "what a CTA may have");
};

#if GR_HOPPER

/* A warpgroup's gradients of a tile in memory: so many rows, and bytes of each. */
struct area {
    float *first;
    uint32_t rows, bytes;

    __device__ area(const args &a, const tile &at, uint32_t group)
    {
        const uint32_t row = at.row + group * PART, left = row < a.m ? a.m - row : 0,
                       columns = at.column < a.n ? min(a.n - at.column, (uint32_t)COLUMNS) : 0;
        first = (float *)a.d + ((size_t)at.expert * a.m + row) * a.n + at.column;
        rows = columns ? min(left, (uint32_t)PART) : 0;
        bytes = columns * sizeof(float);
    }
};

__device__ __forceinline__ void keep(const args &a, const uint32_t *start, const part &p)
{
    const uint32_t lane = threadIdx.x % GR_WARP, to = gr_shared(p.held);
    uint32_t parity = 0;
    tiles<GR_CU_EXPERTS_DW> all(a, start);
    for (tile at; all.next(at); parity ^= 1) {
        const area own(a, at, p.group);
        if (lane == 0) gr_barrier_expect(p.there, own.rows * own.bytes);
        __syncwarp();
        for (uint32_t r = lane; r < own.rows; r += GR_WARP)
            gr_row_copy(to + held::place(r), own.first + (size_t)r * a.n, own.bytes, p.there);
        gr_barrier_wait(p.done, parity);
        for (uint32_t r = lane; r < own.rows; r += GR_WARP)
            gr_row_store(own.first + (size_t)r * a.n, to + held::place(r), own.bytes);
        gr_stores_commit();
        gr_stores_left<0>();
        __syncwarp();
    }
    gr_stores_arrived();
}

/* held: of the warpgroup's part. */
__device__ __forceinline__ void add(unsigned char *to, const float (&z)[COLUMNS / 2])
{
    constexpr int TOGETHER = 16;
    const uint32_t lane = threadIdx.x % GR_WARP, row = threadIdx.x % GR_WARPGROUP / GR_WARP * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float2 *at = (float2 *)(to + held::place(row + 8 * h)) + lane % 4;
#pragma unroll
        for (int j0 = 0; j0 < COLUMNS / 8; j0 += TOGETHER) {
            float2 old[TOGETHER];
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) old[j] = at[4 * (j0 + j)];
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) {
                const float *own = z + 4 * (j0 + j) + 2 * h;
                at[4 * (j0 + j)] = make_float2(old[j].x + own[0], old[j].y + own[1]);
            }
        }
    }
}

__device__ __forceinline__ void consume(const args &a, pipe &in, const uint32_t *start, const part &p)
{
    uint32_t parity = 0;
    tiles<GR_CU_EXPERTS_DW> all(a, start);
    for (tile at; all.next(at); parity ^= 1) {
        float z[COLUMNS / 2];
        multiply<GR_CU_EXPERTS_DW>(in, p.group, at, z, alone());
        gr_barrier_wait(p.there, parity);
        add(p.held, z);
        gr_writes_shown();
        gr_barrier_arrive(p.done);
    }
}

#endif

__global__ void __launch_bounds__(GR_PIPE_THREADS, 1)
    gradient_kernel(const args a, const __grid_constant__ CUtensorMap dy,
                    const __grid_constant__ CUtensorMap x)
{
#if GR_HOPPER
    extern __shared__ __align__(1024) unsigned char memory[];
    uint64_t *barrier = (uint64_t *)(memory + shared::BARRIERS);
    uint32_t *start = (uint32_t *)(memory + shared::START);
    pipe p;
    if (threadIdx.x < GR_WARP) count_tiles<GR_CU_EXPERTS_DW>(a, start);
    if (threadIdx.x < GR_PIPE_CONSUMERS) {
        gr_barrier_init(gr_shared(barrier + 2 * STAGES + 2 * threadIdx.x), 1);
        gr_barrier_init(gr_shared(barrier + 2 * STAGES + 2 * threadIdx.x + 1), GR_WARPGROUP);
        gr_barriers_made();
    }
    __syncthreads();
    p.open(memory, barrier);
    if (threadIdx.x < GR_WARPGROUP) {
        gr_registers_fewer<56>();
        if (threadIdx.x == 0) produce<GR_CU_EXPERTS_DW>(a, p, start, &dy, &x);
        const uint32_t warp = threadIdx.x / GR_WARP;
        if (warp && warp <= GR_PIPE_CONSUMERS) keep(a, start, shared::part_of(memory, warp - 1));
    } else {
        gr_registers_more<224>();
        consume(a, p, start, shared::part_of(memory, threadIdx.x / GR_WARPGROUP - 1));
    }
    gr_cluster_meet(); /* the other CTA may still arrive at barriers of this one */
#else
    (void)a, (void)dy, (void)x;
#endif
}

} // namespace

bool gr_cu_experts_gradient_run(cudaStream_t st, const gr_cu_experts_product *p)
{
    const args a = {p->first, NULL, p->d, p->experts, p->out, p->in, 0};
    CUtensorMap dy, x;
    if (!take(p) || (uintptr_t)p->d % 16) return false;
    if (p->type == GR_CU_BF16) return gr_cu_experts_gradient16_run(st, p);
    return gr_tile_map(&dy, p->a, p->rows, p->out, DEPTH) && gr_tile_map(&x, p->b, p->rows, p->in, DEPTH) &&
           gr_pipe_launch(st, gradient_kernel, shared::BYTES, UINT32_MAX, a, dy, x);
}
