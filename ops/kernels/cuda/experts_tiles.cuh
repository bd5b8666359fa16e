/* ops/kernels/cuda/experts_tiles.cuh: what products of ragged groups of rows and their gradients share: which
 * tiles there are, how operands come to shared memory, and their products.
 *
 * Tiles are of 128 rows by 256 columns a CTA, in the pipeline of pipeline.cuh: a producer thread keeps some
 * steps of DEPTH terms in shared memory, two warpgroups multiply them. A cluster of two CTAs takes a tile of
 * one of two shapes, so that a group is cut at multiples of 128 rows and both CTAs still share an operand:
 *
 *     tall  256 rows x 256 columns: each CTA has its own rows, and each fetches half of the columns for both
 *     wide  128 rows x 512 columns: each CTA has its own columns, and each fetches half of the rows for both
 *
 * Tall ones take the rows of a group two blocks at a time, a wide one what is left. Which tiles there are
 * follows from the groups' sizes, which lie on the device: every CTA counts them for itself.
 *
 * Operands lie in shared memory as six tiles of 64 rows or columns by DEPTH terms: two of A, four of B. Where
 * what is multiplied over are an operand's rows in memory, the tensor cores read its tiles turned.
 */
#ifndef GR_OPS_KERNELS_CUDA_EXPERTS_TILES_CUH
#define GR_OPS_KERNELS_CUDA_EXPERTS_TILES_CUH

#include "ops/kernels/cuda/experts.h"
#include "ops/kernels/cuda/pipeline.cuh"

namespace gr_groups
{

enum {
    COLUMNS = 256, /* of a CTA's tile */
    PART = 64,     /* rows or columns of a tile in shared memory */
    A_PARTS = GR_PIPE_ROWS / PART,
    B_PARTS = COLUMNS / PART,
    BAND = 8, /* pairs of blocks of rows whose tiles follow each other, so that both operands stay in the L2
                 cache */
    CONSUMERS = GR_PIPE_CONSUMERS * GR_WARPGROUP,
};

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
    uint32_t terms;
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
        at.terms = FORM == GR_CU_EXPERTS_DW ? at.rows : a.k;
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
    uint32_t part_bytes;
};

/* 64 rows of A's part of a tile: of _DW 64 columns of the matrix in memory. */
template <int FORM>
__device__ __forceinline__ void copy_a(const source &s, const tile &at, uint32_t part, uint32_t term,
                                       bool both)
{
    const uint32_t row = at.row + part * PART, to = s.to + part * s.part_bytes;
    const bool turned = FORM == GR_CU_EXPERTS_DW;
    const uint32_t x = turned ? row : term, y = at.first + (turned ? term : row);
    if (both)
        gr_tile_copy_to(3, to, s.a, s.barrier, x, y);
    else
        gr_tile_copy(to, s.a, s.barrier, x, y);
}

/* 64 columns of the tile: of _Y 64 rows of the weights. */
template <int FORM>
__device__ __forceinline__ void copy_b(const args &a, const source &s, const tile &at, uint32_t part,
                                       uint32_t term, bool both)
{
    const uint32_t column = at.column + part * PART;
    const uint32_t x = FORM == GR_CU_EXPERTS_Y ? term : column;
    const uint32_t y = FORM == GR_CU_EXPERTS_Y    ? at.expert * a.n + column
                       : FORM == GR_CU_EXPERTS_DX ? at.expert * a.k + term
                                                  : at.first + term;
    const uint32_t to = s.to + (A_PARTS + part) * s.part_bytes;
    if (both)
        gr_tile_copy_to(3, to, s.b, s.barrier, x, y);
    else
        gr_tile_copy(to, s.b, s.barrier, x, y);
}

template <int FORM>
__device__ __forceinline__ void copy_step(const args &a, const source &s, const tile &at, uint32_t term)
{
    const uint32_t rank = gr_cluster_rank();
    if (at.wide) {
        copy_a<FORM>(s, at, rank, term, true);
        for (uint32_t i = 0; i < B_PARTS; i++) copy_b<FORM>(a, s, at, i, term, false);
    } else {
        for (uint32_t i = 0; i < A_PARTS; i++) copy_a<FORM>(s, at, i, term, false);
        for (uint32_t i = 0; i < B_PARTS / 2; i++) copy_b<FORM>(a, s, at, rank * B_PARTS / 2 + i, term, true);
    }
}

template <int FORM, class Pipe>
__device__ __forceinline__ void produce(const args &a, Pipe &p, const uint32_t *start, const CUtensorMap *x,
                                        const CUtensorMap *w)
{
    tiles<FORM> all(a, start);
    for (tile at; all.next(at);)
        for (uint32_t term = 0; term < at.terms; term += Pipe::TERMS, p.next()) {
            const source s = {x, w, p.stages + p.stage * Pipe::STAGE_BYTES, p.full + 8 * p.stage,
                              PART * Pipe::ROW_BYTES};
            gr_barrier_wait(p.empty + 8 * p.stage, p.parity);
            gr_barrier_expect(s.barrier, Pipe::STAGE_BYTES);
            copy_step<FORM>(a, s, at, term);
        }
}

/* ---- consumers ---- */

/* Terms from `terms` on, up to a multiple of 16, of all tiles of a stage, which are turned, become zeros:
 * those behind a group's last belong to the next one. A thread has 16 bytes of a term in half of the tiles.
 */
template <class Pipe> __device__ __forceinline__ void clear_terms(uint32_t stage, uint32_t terms)
{
    constexpr uint32_t PARTS = A_PARTS + B_PARTS, ACROSS = PART * 2 / 16, PART_BYTES = PART * Pipe::ROW_BYTES;
    static_assert(CONSUMERS == 2 * 16 * ACROSS && PARTS % 2 == 0, "a thread's part of them");
    const uint32_t thread = threadIdx.x - GR_WARPGROUP, term = terms + thread / ACROSS % 16,
                   first = thread / (16 * ACROSS) * (PARTS / 2),
                   to = stage + first * PART_BYTES + term * (PART * 2) + thread % ACROSS * 16;
#pragma unroll
    for (uint32_t i = 0; i < PARTS / 2; i++)
        if (term < (terms + 15) / 16 * 16)
            asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to + i * PART_BYTES), "r"(0)
                         : "memory");
    gr_writes_shown();
    asm volatile("bar.sync 1, %0;" ::"n"((int)CONSUMERS) : "memory");
}

/* N sixteens of a stage's terms into z. */
template <int FORM, int N, class Pipe>
__device__ __forceinline__ void multiply_step(const Pipe &in, uint32_t group, bool add,
                                              float (&z)[COLUMNS / 2])
{
    constexpr bool A_TURNED = FORM == GR_CU_EXPERTS_DW, B_TURNED = FORM != GR_CU_EXPERTS_Y;
    constexpr int A_NEXT = A_TURNED ? 128 : 2, B_NEXT = B_TURNED ? 128 : 2,
                  PART_BYTES = PART * Pipe::ROW_BYTES;
    static_assert((A_TURNED && B_TURNED) || (int)Pipe::TERMS == GR_TILE_DEPTH, "rows of 128 bytes");
    const uint32_t at = in.stages + in.stage * Pipe::STAGE_BYTES, x = at + group * PART_BYTES,
                   w = at + A_PARTS * PART_BYTES;
    const uint64_t a = A_TURNED ? gr_tile_turned(x, PART_BYTES) : gr_tile_operand(x),
                   b = B_TURNED ? gr_tile_turned(w, PART_BYTES) : gr_tile_operand(w);
    gr_products_begin();
#pragma unroll
    for (int i = 0; i < N; i++) gr_product<A_TURNED, B_TURNED>(z, a + A_NEXT * i, b + B_NEXT * i, add || i);
    gr_products_commit();
}

/* A last step of fewer terms, which are rows in memory: of its sixteens those that have any. */
template <class Pipe>
__device__ __forceinline__ void multiply_rest(const Pipe &in, uint32_t group, uint32_t left, bool add,
                                              float (&z)[COLUMNS / 2])
{
    gr_barrier_wait(in.full + 8 * in.stage, in.parity);
    clear_terms<Pipe>(in.stages + in.stage * Pipe::STAGE_BYTES, left);
    if (left <= 16)
        multiply_step<GR_CU_EXPERTS_DW, 1>(in, group, add, z);
    else if (Pipe::TERMS <= 32 || left <= 32)
        multiply_step<GR_CU_EXPERTS_DW, 2>(in, group, add, z);
    else if (left <= 48)
        multiply_step<GR_CU_EXPERTS_DW, 3>(in, group, add, z);
    else
        multiply_step<GR_CU_EXPERTS_DW, 4>(in, group, add, z);
}

/* What comes behind a tile's products: nothing. */
struct alone {
    enum { GROUPS = 0 }; /* that last commits */
    __device__ __forceinline__ void last(float (&)[COLUMNS / 2]) const
    {
    }
};

/* z: the warpgroup's elements of a tile, 64 rows; as gr_pipe::multiply. `after` goes into them, too. */
template <int FORM, class Pipe, class After>
__device__ __forceinline__ void multiply(Pipe &in, uint32_t group, const tile &t, float (&z)[COLUMNS / 2],
                                         const After &after)
{
    constexpr bool WHOLE = FORM != GR_CU_EXPERTS_DW; /* terms behind the last are zeros */
    const uint32_t end = WHOLE ? t.terms : t.terms / Pipe::TERMS * Pipe::TERMS;
    uint32_t before = 0;
    for (uint32_t k = 0; k < end; k += Pipe::TERMS, in.next()) {
        gr_barrier_wait(in.full + 8 * in.stage, in.parity);
        multiply_step<FORM, Pipe::TERMS / 16>(in, group, k, z);
        gr_products_wait<1>();
        if (k) in.leave(before);
        before = in.stage;
    }
    if (!WHOLE && end < t.terms) {
        multiply_rest(in, group, t.terms - end, end, z);
        gr_products_wait<1>();
        if (end) in.leave(before);
        before = in.stage;
        in.next();
    }
    after.last(z);
    gr_products_wait<After::GROUPS>();
    in.leave(before);
    gr_products_wait<0>();
}

#endif

static inline bool take(const gr_cu_experts_product *p)
{
    return p->experts <= GR_CU_EXPERTS_MAX && gr_pipe_takes(p->a, p->in) && gr_pipe_takes(p->b, p->out);
}

} // namespace gr_groups

/* GR_CU_EXPERTS_DW of gr_cu_experts_product_run; rows > 0. The second one: of gradients in bf16. */
bool gr_cu_experts_gradient_run(cudaStream_t st, const gr_cu_experts_product *p);
bool gr_cu_experts_gradient16_run(cudaStream_t st, const gr_cu_experts_product *p);

#endif
