/* ops/kernels/cuda/experts_gradient16.cu: gradients of experts' weights in bf16: grad_e [out, in] += dy^T x
 * over the rows of e, as ops/kernels/cuda/experts_gradient.cu has them in fp32.
 *
 * What a warpgroup does between two tiles keeps the tensor cores waiting, and takes as long as it has
 * instructions. So the tensor cores add the old gradients, too, as products of one step more:
 *
 *     sum = ... + 1 old        1: 64 x 64; old: the warpgroup's 64 rows of the tile
 *
 * where each old gradient is one exact product beside 63 zeros. (An infinite one makes its column of
 * 64 rows no numbers; a gradient with one is refused in any case.) What is left is to round sums and to put
 * them where the old ones lay, 32 bytes an instruction.
 *
 * A thread for each warpgroup brings the gradients of its part of a tile to shared memory while the tile is
 * multiplied, in boxes that have the form of an operand, and stores them while the next one is. Each gradient
 * is loaded, added to once and stored by the one CTA whose tile it is in.
 */
#include "ops/kernels/cuda/experts_tiles.cuh"

namespace
{

using namespace gr_groups;

enum {
    DEPTH = 32,
    STAGES = 6,
    BOX_BYTES = PART * PART * 2, /* 64 rows of 128 bytes, in the swizzle */
    BOXES = COLUMNS / PART,      /* of a warpgroup's part of a tile */
    HELD_BYTES = BOXES * BOX_BYTES,
};

typedef gr_pipe<COLUMNS / 2, STAGES, DEPTH> pipe;

/* Shared memory, behind the stages. */
enum {
    HELD = STAGES * pipe::STAGE_BYTES,
    ONE = HELD + GR_PIPE_CONSUMERS * HELD_BYTES, /* a box */
    BARRIERS = ONE + BOX_BYTES,
    START = BARRIERS + (2 * STAGES + 2 * GR_PIPE_CONSUMERS) * 8,
    BYTES = START + (GR_CU_EXPERTS_MAX + 1) * 4,
};
static_assert(BYTES <= 227 * 1024 && HELD % 1024 == 0, "what a CTA may have; the swizzle");

#if GR_HOPPER

/* The part of a warpgroup: addresses of its gradients, of the operand 1, and of barriers: gradients have
 * come; sums are made. */
struct part {
    uint32_t group, held, one, there, done;

    __device__ part(const unsigned char *memory, uint32_t group_) : group(group_)
    {
        const uint32_t first = gr_shared(memory);
        held = first + HELD + group * HELD_BYTES;
        one = first + ONE;
        there = first + BARRIERS + (2 * STAGES + 2 * group) * 8;
        done = there + 8;
    }
};

/* ---- the thread that keeps gradients ---- */

__device__ __forceinline__ void fetch(const CUtensorMap *d, const part &p, const tile &at, uint32_t i)
{
    gr_box_copy(p.held + i * BOX_BYTES, d, p.there, at.column + i * PART, at.row + p.group * PART, at.expert);
}

/* Of the next tile, where there is one, each box to its place as soon as that is free. */
template <int I>
__device__ __forceinline__ void refill(const CUtensorMap *d, const part &p, const tile &at, bool more)
{
    gr_stores_left<BOXES - 1 - I>();
    if (more) fetch(d, p, at, I);
    if constexpr (I + 1 < BOXES) refill<I + 1>(d, p, at, more);
}

/* What lies outside of the gradients is zeros, which count, and is not stored. */
__device__ __forceinline__ void keep(const args &a, const uint32_t *start, const CUtensorMap *d,
                                     const part &p)
{
    uint32_t parity = 0;
    tiles<GR_CU_EXPERTS_DW> all(a, start);
    tile at;
    bool more = all.next(at);
    if (!more) return;
    gr_barrier_expect(p.there, HELD_BYTES);
    for (uint32_t i = 0; i < BOXES; i++) fetch(d, p, at, i);
    for (; more; parity ^= 1) {
        gr_barrier_wait(p.done, parity);
        for (uint32_t i = 0; i < BOXES; i++) {
            gr_box_store(d, p.held + i * BOX_BYTES, at.column + i * PART, at.row + p.group * PART, at.expert);
            gr_stores_commit();
        }
        more = all.next(at);
        if (more) gr_barrier_expect(p.there, HELD_BYTES);
        refill<0>(d, p, at, more);
    }
    gr_stores_arrived();
}

/* ---- warpgroups ---- */

/* Behind the products of a tile, while they run. */
struct with_old {
    enum { GROUPS = 1 };
    const part &p;
    uint32_t parity;

    __device__ __forceinline__ void last(float (&z)[COLUMNS / 2]) const
    {
        const uint64_t one = gr_tile_operand(p.one), old = gr_tile_turned(p.held, BOX_BYTES);
        gr_barrier_wait(p.there, parity);
        gr_products_begin();
#pragma unroll
        for (int i = 0; i < PART / 16; i++) gr_product<false, true>(z, one + 2 * i, old + 128 * i, true);
        gr_products_commit();
    }
};

/* Sums to where the old gradients lay: four blocks of 8 x 8 an instruction, two of each 8 columns. */
__device__ __forceinline__ void put(const part &p, const float (&z)[COLUMNS / 2])
{
    const uint32_t lane = threadIdx.x % GR_WARP, warp = threadIdx.x % GR_WARPGROUP / GR_WARP,
                   row = warp * 16 + lane % 16, column = lane / 16, /* of the blocks that it points to */
        to = p.held + row * 128 + (column ^ row % 8) * 16;
#pragma unroll
    for (int i = 0; i < BOXES; i++)
#pragma unroll
        for (int j = 0; j < PART / 8; j += 2) {
            const float *own = z + 4 * (i * PART / 8 + j);
            gr_blocks_store((to ^ j * 16) + i * BOX_BYTES, gr_pair(own[0], own[1]), gr_pair(own[2], own[3]),
                            gr_pair(own[4], own[5]), gr_pair(own[6], own[7]));
        }
}

__device__ __forceinline__ void consume(const args &a, pipe &in, const uint32_t *start, const part &p)
{
    uint32_t parity = 0;
    tiles<GR_CU_EXPERTS_DW> all(a, start);
    for (tile at; all.next(at); parity ^= 1) {
        float z[COLUMNS / 2];
        multiply<GR_CU_EXPERTS_DW>(in, p.group, at, z, with_old{p, parity});
        put(p, z);
        gr_writes_shown();
        __syncwarp();
        if (threadIdx.x % GR_WARP == 0) gr_barrier_arrive(p.done);
    }
}

/* By all threads: the unit matrix, as an operand. */
__device__ __forceinline__ void make_one(unsigned char *box)
{
    for (uint32_t i = threadIdx.x; i < PART * PART; i += GR_PIPE_THREADS) {
        const uint32_t row = i / PART, column = i % PART;
        gr_bf16 *at = (gr_bf16 *)(box + row * 128 + (column / 8 ^ row % 8) * 16);
        at[column % 8] = row == column ? 0x3f80 : 0;
    }
    gr_writes_shown();
}

#endif

__global__ void __launch_bounds__(GR_PIPE_THREADS, 1)
    gradient16_kernel(const args a, const __grid_constant__ CUtensorMap dy,
                      const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap d)
{
#if GR_HOPPER
    extern __shared__ __align__(1024) unsigned char memory[];
    uint32_t *start = (uint32_t *)(memory + START);
    const uint32_t warp = threadIdx.x / GR_WARP;
    pipe in;
    if (warp == 0) count_tiles<GR_CU_EXPERTS_DW>(a, start);
    make_one(memory + ONE);
    if (threadIdx.x < GR_PIPE_CONSUMERS) {
        const part p(memory, threadIdx.x);
        gr_barrier_init(p.there, 1);
        gr_barrier_init(p.done, GR_WARPGROUP / GR_WARP);
        gr_barriers_made();
    }
    __syncthreads();
    in.open(memory, (uint64_t *)(memory + BARRIERS));
    if (threadIdx.x < GR_WARPGROUP) {
        gr_registers_fewer<40>();
        if (threadIdx.x == 0) produce<GR_CU_EXPERTS_DW>(a, in, start, &dy, &x);
        if (warp && warp <= GR_PIPE_CONSUMERS && threadIdx.x % GR_WARP == 0)
            keep(a, start, &d, part(memory, warp - 1));
    } else {
        gr_registers_more<232>();
        consume(a, in, start, part(memory, threadIdx.x / GR_WARPGROUP - 1));
    }
    gr_cluster_meet(); /* the other CTA may still arrive at barriers of this one */
#else
    (void)a, (void)dy, (void)x, (void)d;
#endif
}

} // namespace

bool gr_cu_experts_gradient16_run(cudaStream_t st, const gr_cu_experts_product *p)
{
    const args a = {p->first, NULL, p->d, p->experts, p->out, p->in, 0};
    CUtensorMap dy, x, d;
    return gr_tile_map(&dy, p->a, p->rows, p->out, DEPTH) && gr_tile_map(&x, p->b, p->rows, p->in, DEPTH) &&
           gr_box_map(&d, (const gr_bf16 *)p->d, p->experts, p->out, p->in) &&
           gr_pipe_launch(st, gradient16_kernel, BYTES, UINT32_MAX, a, dy, x, d);
}
