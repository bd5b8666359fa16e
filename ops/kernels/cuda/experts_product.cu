/* ops/kernels/cuda/experts_product.cu: products of ragged groups of rows, each group by its expert's weights,
 * and the gradients of those weights, in one launch whatever the router chose.
 *
 * Tiles are of 128 rows by 256 columns a CTA, in the pipeline of pipeline.cuh: a producer thread keeps four
 * steps of 64 terms in shared memory, two warpgroups multiply them. A cluster of two CTAs takes a tile of one
 * of two shapes, so that a group is cut at multiples of 128 rows and both CTAs still share an operand:
 *
 *     tall  256 rows x 256 columns: each CTA has its own rows, and each fetches half of the columns for both
 *     wide  128 rows x 512 columns: each CTA has its own columns, and each fetches half of the rows for both
 *
 * Tall ones take the rows of a group two blocks at a time, a wide one what is left. Which tiles there are
 * follows from the groups' sizes, which lie on the device: every CTA counts them for itself.
 *
 * Operands lie in shared memory as six tiles of 64 rows by 64 columns (128 bytes): two of A, four of B. Where
 * what is multiplied over are an operand's rows in memory, the tensor cores read its tiles turned.
 */
#include "ops/kernels/cuda/experts.h"
#include "ops/kernels/cuda/pipeline.cuh"

namespace
{

enum {
    COLUMNS = 256, /* of a CTA's tile */
    STAGES = 4,
    PART = 64,               /* rows and columns of a tile in shared memory */
    PART_BYTES = PART * 128, /* of one */
    A_PARTS = GR_PIPE_ROWS / PART,
    B_PARTS = COLUMNS / PART,
    BAND = 8, /* pairs of blocks of rows whose tiles follow each other, so that both operands stay in the L2
                 cache */
    CONSUMERS = GR_PIPE_CONSUMERS * GR_WARPGROUP,
};

typedef gr_pipe<COLUMNS / 2, STAGES> pipe;
static_assert((int)pipe::STAGE_BYTES == (A_PARTS + B_PARTS) * PART_BYTES, "two tiles of A, four of B");

struct args {
    const uint32_t *first; /* [experts + 1] */
    const gr_bf16 *bias;
    void *d;
    uint32_t experts, m, n,
        k; /* of an expert's product; m of _Y and _DX, k of _DW: its rows, not given here */
};

#if GR_HOPPER

/* A cluster's tile, as one of its CTAs sees it. */
struct tile {
    uint32_t expert, first, rows; /* of the expert's group */
    uint32_t row, column;         /* of the expert's part of d: the CTA's own */
    uint32_t steps;
    bool wide;
};

template <int FORM> __device__ __forceinline__ uint32_t result_rows(const args &a, uint32_t rows)
{
    if (FORM == GR_CU_EXPERTS_DW) return rows ? a.m : 0;
    return rows;
}

__device__ __forceinline__ uint32_t tiles_of(const args &a, uint32_t rows)
{
    const uint32_t blocks = (rows + GR_PIPE_ROWS - 1) / GR_PIPE_ROWS;
    return blocks / 2 * ((a.n + COLUMNS - 1) / COLUMNS) +
           blocks % 2 * ((a.n + 2 * COLUMNS - 1) / (2 * COLUMNS));
}

/* start [experts + 1] in shared memory: the first tile of each expert. By one warp. */
template <int FORM> __device__ void count_tiles(const args &a, uint32_t *start)
{
    const uint32_t lane = threadIdx.x;
    uint32_t before = 0;
    for (uint32_t e0 = 0; e0 < a.experts; e0 += GR_WARP) {
        const uint32_t e = e0 + lane;
        const uint32_t own =
            e < a.experts ? tiles_of(a, result_rows<FORM>(a, a.first[e + 1] - a.first[e])) : 0;
        uint32_t sum = own;
#pragma unroll
        for (int o = 1; o < GR_WARP; o *= 2) {
            const uint32_t left = __shfl_up_sync(GR_ALL, sum, o);
            if (lane >= (uint32_t)o) sum += left;
        }
        if (e < a.experts) start[e + 1] = before + sum;
        before += __shfl_sync(GR_ALL, sum, GR_WARP - 1);
    }
    if (lane == 0) start[0] = 0;
}

/* Goes through a cluster's tiles in their order; expert is where the last one was. */
template <int FORM> struct tiles {
    const args &a;
    const uint32_t *start;
    uint32_t t, expert;

    __device__ tiles(const args &args_, const uint32_t *start_)
        : a(args_), start(start_), t(blockIdx.x / GR_PIPE_CLUSTER), expert(0)
    {
    }

    __device__ void place_tall(tile &at, uint32_t i, uint32_t pairs, uint32_t across) const
    {
        const uint32_t band = i / (BAND * across), rest = i % (BAND * across),
                       high = min((uint32_t)BAND, pairs - band * BAND);
        at.row = (band * BAND + rest % high) * GR_PIPE_PAIR + gr_cluster_rank() * GR_PIPE_ROWS;
        at.column = rest / high * COLUMNS;
        at.wide = false;
    }

    __device__ bool next(tile &at)
    {
        while (expert < a.experts && start[expert + 1] <= t) expert++;
        if (expert == a.experts) return false;
        at.expert = expert;
        at.first = a.first[expert];
        at.rows = a.first[expert + 1] - at.first;
        at.steps = ((FORM == GR_CU_EXPERTS_DW ? at.rows : a.k) + GR_TILE_DEPTH - 1) / GR_TILE_DEPTH;
        const uint32_t pairs = (result_rows<FORM>(a, at.rows) + GR_PIPE_ROWS - 1) / GR_PIPE_ROWS / 2,
                       across = (a.n + COLUMNS - 1) / COLUMNS, i = t - start[expert];
        if (i < pairs * across) {
            place_tall(at, i, pairs, across);
        } else {
            at.row = pairs * GR_PIPE_PAIR;
            at.column = (2 * (i - pairs * across) + gr_cluster_rank()) * COLUMNS;
            at.wide = true;
        }
        t += gridDim.x / GR_PIPE_CLUSTER;
        return true;
    }
};

/* ---- producer ---- */

struct source {
    const CUtensorMap *a, *b;
    uint32_t to, barrier; /* of the stage */
};

/* 64 rows of A's part of a tile: of _DW 64 columns of the matrix in memory. */
template <int FORM>
__device__ __forceinline__ void copy_a(const source &s, const tile &at, uint32_t part, uint32_t step,
                                       bool both)
{
    const uint32_t term = step * GR_TILE_DEPTH, row = at.row + part * PART;
    const bool turned = FORM == GR_CU_EXPERTS_DW;
    const uint32_t x = turned ? row : term, y = at.first + (turned ? term : row),
                   to = s.to + part * PART_BYTES;
    if (both)
        gr_tile_copy_to(3, to, s.a, s.barrier, x, y);
    else
        gr_tile_copy(to, s.a, s.barrier, x, y);
}

/* 64 columns of the tile: of _Y 64 rows of the weights. */
template <int FORM>
__device__ __forceinline__ void copy_b(const args &a, const source &s, const tile &at, uint32_t part,
                                       uint32_t step, bool both)
{
    const uint32_t term = step * GR_TILE_DEPTH, column = at.column + part * PART;
    const uint32_t x = FORM == GR_CU_EXPERTS_Y ? term : column;
    const uint32_t y = FORM == GR_CU_EXPERTS_Y    ? at.expert * a.n + column
                       : FORM == GR_CU_EXPERTS_DX ? at.expert * a.k + term
                                                  : at.first + term;
    const uint32_t to = s.to + (A_PARTS + part) * PART_BYTES;
    if (both)
        gr_tile_copy_to(3, to, s.b, s.barrier, x, y);
    else
        gr_tile_copy(to, s.b, s.barrier, x, y);
}

template <int FORM>
__device__ __forceinline__ void copy_step(const args &a, const source &s, const tile &at, uint32_t step)
{
    const uint32_t rank = gr_cluster_rank();
    if (at.wide) {
        copy_a<FORM>(s, at, rank, step, true);
        for (uint32_t i = 0; i < B_PARTS; i++) copy_b<FORM>(a, s, at, i, step, false);
    } else {
        for (uint32_t i = 0; i < A_PARTS; i++) copy_a<FORM>(s, at, i, step, false);
        for (uint32_t i = 0; i < B_PARTS / 2; i++) copy_b<FORM>(a, s, at, rank * B_PARTS / 2 + i, step, true);
    }
}

template <int FORM>
__device__ void produce(const args &a, pipe &p, const uint32_t *start, const CUtensorMap *x,
                        const CUtensorMap *w)
{
    tiles<FORM> all(a, start);
    for (tile at; all.next(at);)
        for (uint32_t step = 0; step < at.steps; step++, p.next()) {
            const source s = {x, w, p.stages + p.stage * pipe::STAGE_BYTES, p.full + 8 * p.stage};
            gr_barrier_wait(p.empty + 8 * p.stage, p.parity);
            gr_barrier_expect(s.barrier, pipe::STAGE_BYTES);
            copy_step<FORM>(a, s, at, step);
        }
}

/* ---- consumers ---- */

/* Rows from `rows` on of all tiles of a stage become zeros: those behind a group's last belong to the next
 * one. */
__device__ void clear_rows(uint32_t stage, uint32_t rows)
{
    const uint32_t thread = threadIdx.x - GR_WARPGROUP, vectors = (PART - rows) * (128 / 16);
    for (uint32_t i = thread; i < vectors * (A_PARTS + B_PARTS); i += CONSUMERS) {
        const uint32_t to = stage + i / vectors * PART_BYTES + rows * 128 + i % vectors * 16;
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
    }
    gr_writes_shown();
    asm volatile("bar.sync 1, %0;" ::"n"((int)CONSUMERS) : "memory");
}

/* z: the warpgroup's elements of a tile, 64 rows; as gr_pipe::multiply. */
template <int FORM>
__device__ __forceinline__ void multiply(pipe &in, uint32_t group, const tile &t, float (&z)[COLUMNS / 2])
{
    constexpr bool A_TURNED = FORM == GR_CU_EXPERTS_DW, B_TURNED = FORM != GR_CU_EXPERTS_Y;
    constexpr int A_NEXT = A_TURNED ? 128 : 2, B_NEXT = B_TURNED ? 128 : 2;
    uint32_t before = 0;
    for (uint32_t k = 0; k < t.steps; k++, in.next()) {
        const uint32_t at = in.stages + in.stage * pipe::STAGE_BYTES, x = at + group * PART_BYTES,
                       w = at + A_PARTS * PART_BYTES;
        gr_barrier_wait(in.full + 8 * in.stage, in.parity);
        if (A_TURNED && t.rows - k * GR_TILE_DEPTH < GR_TILE_DEPTH)
            clear_rows(at, t.rows - k * GR_TILE_DEPTH);
        const uint64_t a = A_TURNED ? gr_tile_turned(x) : gr_tile_operand(x),
                       b = B_TURNED ? gr_tile_turned(w) : gr_tile_operand(w);
        gr_products_begin();
#pragma unroll
        for (int i = 0; i < GR_TILE_DEPTH / 16; i++)
            gr_product<A_TURNED, B_TURNED>(z, a + A_NEXT * i, b + B_NEXT * i, k || i);
        gr_products_commit();
        gr_products_wait<1>();
        if (k) in.leave(before);
        before = in.stage;
    }
    gr_products_wait<0>();
    in.leave(before);
}

/* Lane i of each four had word i of four, 8 columns apart; then it has four words of one of them, side by
 * side. */
__device__ __forceinline__ void exchange(uint32_t (&word)[4], uint32_t lane)
{
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & bit) continue;
            const bool high = lane & bit;
            const uint32_t got = __shfl_xor_sync(GR_ALL, high ? word[i] : word[i | bit], bit);
            if (high)
                word[i] = got;
            else
                word[i | bit] = got;
        }
}

/* A thread's two rows of 64 times two columns, 16 bytes an access. to: of the expert's group, column 0 of the
 * tile. */
__device__ __forceinline__ void store_rows(const args &a, const tile &at, uint32_t row,
                                           const float (&z)[COLUMNS / 2])
{
    const uint32_t lane = threadIdx.x % 4;
    gr_bf16 *to = (gr_bf16 *)a.d + ((size_t)at.first + row) * a.n;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int m = 0; m < COLUMNS / 32; m++) {
            uint32_t word[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                word[i] = gr_pair(z[4 * (4 * m + i) + 2 * h], z[4 * (4 * m + i) + 2 * h + 1]);
            exchange(word, lane);
            const uint32_t column = at.column + 8 * (4 * m + lane);
            if (row + 8 * h < at.rows && column < a.n)
                *(uint4 *)(to + (size_t)(8 * h) * a.n + column) =
                    make_uint4(word[0], word[1], word[2], word[3]);
        }
}

__device__ __forceinline__ void add_bias(const args &a, const tile &at, float (&z)[COLUMNS / 2])
{
    const gr_bf16 *bias = a.bias + (size_t)at.expert * a.n;
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++) {
        const uint32_t column = at.column + 8 * j + 2 * (threadIdx.x % 4);
        if (column >= a.n) continue;
        const uint32_t two = *(const uint32_t *)(bias + column);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            z[4 * j + 2 * h] += gr_low(two);
            z[4 * j + 2 * h + 1] += gr_high(two);
        }
    }
}

__device__ __forceinline__ float2 two_at(const float *p)
{
    return *(const float2 *)p;
}

__device__ __forceinline__ float2 two_at(const gr_bf16 *p)
{
    const uint32_t two = *(const uint32_t *)p;
    return make_float2(gr_low(two), gr_high(two));
}

__device__ __forceinline__ void put_two(float *p, float x, float y)
{
    *(float2 *)p = make_float2(x, y);
}

__device__ __forceinline__ void put_two(gr_bf16 *p, float x, float y)
{
    *(uint32_t *)p = gr_pair(x, y);
}

/* grad += z; loads of eight places go before their stores. */
template <class G>
__device__ __forceinline__ void add_rows(const args &a, const tile &at, uint32_t row,
                                         const float (&z)[COLUMNS / 2])
{
    constexpr int TOGETHER = 8;
    const uint32_t first = at.column + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (row + 8 * h >= a.m) continue;
        G *to = (G *)a.d + ((size_t)at.expert * a.m + row + 8 * h) * a.n;
#pragma unroll
        for (int j0 = 0; j0 < COLUMNS / 8; j0 += TOGETHER) {
            float2 old[TOGETHER];
#pragma unroll
            for (int j = 0; j < TOGETHER; j++)
                if (first + 8 * (j0 + j) < a.n) old[j] = two_at(to + first + 8 * (j0 + j));
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) {
                const float *own = z + 4 * (j0 + j) + 2 * h;
                if (first + 8 * (j0 + j) < a.n)
                    put_two(to + first + 8 * (j0 + j), old[j].x + own[0], old[j].y + own[1]);
            }
        }
    }
}

template <int FORM, class G> __device__ void consume(const args &a, pipe &in, const uint32_t *start)
{
    const uint32_t group = threadIdx.x / GR_WARPGROUP - 1, warp = threadIdx.x % GR_WARPGROUP / GR_WARP;
    const uint32_t mine = group * PART + 16 * warp + threadIdx.x % GR_WARP / 4;
    tiles<FORM> all(a, start);
    for (tile at; all.next(at);) {
        float z[COLUMNS / 2];
        multiply<FORM>(in, group, at, z);
        if (FORM == GR_CU_EXPERTS_Y && a.bias) add_bias(a, at, z);
        if (FORM == GR_CU_EXPERTS_DW)
            add_rows<G>(a, at, at.row + mine, z);
        else
            store_rows(a, at, at.row + mine, z);
    }
}

#endif

template <int FORM, class G>
__global__ void __launch_bounds__(GR_PIPE_THREADS, 1)
    product_kernel(const args a, const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w)
{
#if GR_HOPPER
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ __align__(8) uint64_t barrier[2 * STAGES];
    __shared__ uint32_t start[GR_CU_EXPERTS_MAX + 1];
    pipe p;
    if (threadIdx.x < GR_WARP) count_tiles<FORM>(a, start);
    __syncthreads();
    p.open(memory, barrier);
    if (threadIdx.x < GR_WARPGROUP) {
        gr_registers_fewer<40>();
        if (threadIdx.x == 0) produce<FORM>(a, p, start, &x, &w);
    } else {
        gr_registers_more<232>();
        consume<FORM, G>(a, p, start);
    }
    gr_cluster_meet(); /* the other CTA may still arrive at barriers of this one */
#else
    (void)a, (void)x, (void)w;
#endif
}

typedef void (*kernel)(args, CUtensorMap, CUtensorMap);

kernel kernel_of(const gr_cu_experts_product *p)
{
    if (p->form == GR_CU_EXPERTS_Y) return product_kernel<GR_CU_EXPERTS_Y, gr_bf16>;
    if (p->form == GR_CU_EXPERTS_DX) return product_kernel<GR_CU_EXPERTS_DX, gr_bf16>;
    return p->type == GR_CU_F32 ? product_kernel<GR_CU_EXPERTS_DW, float>
                                : product_kernel<GR_CU_EXPERTS_DW, gr_bf16>;
}

} // namespace

extern "C" bool gr_cu_experts_product_run(cudaStream_t st, const gr_cu_experts_product *p)
{
    const bool dw = p->form == GR_CU_EXPERTS_DW, y = p->form == GR_CU_EXPERTS_Y;
    const uint32_t a_columns = y ? p->in : p->out;
    const uint64_t b_rows = dw ? p->rows : (uint64_t)p->experts * p->out;
    const args a = {p->first, p->bias, p->d, p->experts, dw ? p->out : 0, y ? p->out : p->in, a_columns};
    CUtensorMap x, w;
    if (!p->rows) return true;
    if (p->experts > GR_CU_EXPERTS_MAX || !gr_pipe_takes(p->a, p->in) || !gr_pipe_takes(p->b, p->out))
        return false;
    return gr_tile_map(&x, p->a, p->rows, a_columns, PART) && gr_tile_map(&w, p->b, b_rows, p->in, PART) &&
           gr_pipe_launch(st, kernel_of(p), pipe::SHARED_BYTES, UINT32_MAX, a, x, w);
}
