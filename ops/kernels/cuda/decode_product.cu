/* ops/kernels/cuda/decode_product.cu: y = x W^T of a decode step of few sequences: reading W is all there is.
 * Products whose weights the CTAs hold at once have a kernel of their own (decode_held.cu).
 *
 * A warp streams 8 rows of W at a time through a queue of its own in shared memory, 12 KiB deep, which it
 * begins to fill before the kernel in front has ended (chained.cuh): while activations are still on their
 * way, the first 96 KiB of weights of each CTA are, too. No barrier of the CTA stands in that stream. x is
 * two chunks ahead, in registers: longer programs (more chunks, unrolled first fetches) take longer, for the
 * kernels of a layer share the instruction caches.
 *
 * k is divided as decode_rows.cuh says, so that the warps together read 1 KiB of a row of W; their sums are
 * added at the end of each group of rows. m16n8k16 multiplies 16 rows of x by 8 of W.
 *
 * x may be normed on the way (each CTA finds the rows' root mean squares by itself), gate and up may be
 * closed by silu(gate) * up: a layer is one product a kernel. The order of sums follows from the shape and
 * the number of multiprocessors alone.
 */
#include "ops/kernels/cuda/chained.cuh"
#include "ops/kernels/cuda/decode_held.h"
#include "ops/kernels/cuda/decode_rows.cuh"

#include <algorithm>

namespace
{

using namespace gr_decode_rows;

constexpr uint32_t TILE_BYTES = ROWS * CHUNK * 2;
constexpr uint32_t QUEUE = 12; /* tiles of a warp's, at most */

struct args {
    gr_cu_decode_product p;
    uint32_t tiles, per, groups; /* of rows of W (gate's rows alone): all, a CTA's, and groups of its */
    uint32_t deep;               /* tiles in a warp's queue: no more than it has */
};

__device__ __forceinline__ void copy_once(uint32_t to, const void *from, bool there, uint64_t policy)
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ uint4 load_shared(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

__device__ __forceinline__ void multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                         uint32_t b0, uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Of a tile in shared memory, 8 rows of 128 bytes: its 16 bytes at `chunk` of a row. Odd rows have their
 * halves exchanged, so that eight lanes that read half of two rows meet no bank twice. */
__device__ __forceinline__ uint32_t place(uint32_t row, uint32_t chunk)
{
    return row * CHUNK * 2 + ((chunk ^ (row & 1) << 2) << 4);
}

/* A warp's queue of tiles, T a step: those of a group of rows of W, chunk after chunk, then the next group's.
 */
template <int T, int N, bool PAIRS> struct queue {
    static constexpr uint32_t DEEP = QUEUE, STAGES = DEEP / T; /* tiles in it at most; steps */
    const args &a;
    uint32_t base, chunks, warp, lane; /* chunks: of this warp, of a group */
    uint32_t group, chunk, stage;      /* of the next step to fetch */
    uint64_t policy;

    __device__ queue(const args &of, uint32_t shared)
        : a(of), chunks(of.p.in / STRIDE), warp(threadIdx.x / GR_WARP), lane(threadIdx.x % GR_WARP), group(0),
          chunk(0), stage(0)
    {
        base = shared + warp * a.deep * TILE_BYTES;
        asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    }

    /* The first row of W of tile j of a group; a.p.out: there is none. */
    __device__ __forceinline__ uint32_t row_of(uint32_t g, uint32_t j) const
    {
        const uint32_t within = g * (PAIRS ? T / 2 : T) + (PAIRS ? j / 2 : j),
                       tile = blockIdx.x * a.per + within;
        if (within >= a.per || tile >= a.tiles) return a.p.out;
        return tile * ROWS + (PAIRS && j % 2 ? a.tiles * ROWS : 0);
    }

    __device__ __forceinline__ void fetch()
    {
        if (group < a.groups) {
            const size_t k = (size_t)chunk * STRIDE + warp * CHUNK + lane % 8 * 8;
#pragma unroll
            for (int j = 0; j < T; j++) {
                const uint32_t row = row_of(group, j),
                               to = base + (stage * T + j) * TILE_BYTES + place(lane / 8, lane % 8);
                const bool there = row < a.p.out;
                const gr_bf16 *from = a.p.w + (there ? (size_t)(row + lane / 8) * a.p.in + k : 0);
                copy_once(to, from, there, policy);
                copy_once(to + TILE_BYTES / 2, from + (there ? (size_t)(ROWS / 2) * a.p.in : 0), there,
                          policy);
            }
            if (++chunk == chunks) chunk = 0, group++;
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    /* The oldest step is there, for all lanes. */
    __device__ __forceinline__ void wait() const
    {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
        __syncwarp();
    }
};

/* What a lane multiplies W with in a chunk: of N rows of x, and the norm's factors. */
template <int N> struct chunk_of_x {
    part row[N / 8], factors;

    __device__ __forceinline__ void load(const args &a, uint32_t chunk)
    {
        const uint32_t warp = threadIdx.x / GR_WARP, lane = threadIdx.x % GR_WARP;
        const uint32_t k = chunk * STRIDE + warp * CHUNK + lane % 4 * 8;
#pragma unroll
        for (int h = 0; h < N / 8; h++) {
            const uint32_t r = lane / 4 + 8 * h;
            row[h] = part{};
            if (r < a.p.t) row[h].load(a.p.x + (size_t)r * a.p.in + k);
        }
        if (a.p.norm) factors.load(a.p.norm + k);
    }
};

/* What a kernel reads once at its end, from memory into the L2 cache. */
__device__ __forceinline__ void expect(const gr_bf16 *from, uint32_t n)
{
    for (uint32_t i = threadIdx.x * 64; from && i < n; i += THREADS * 64)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
}

/* Which numbers of a group's results a thread adds up: T tiles (of PAIRS: half as many pairs) by N rows of x.
 */
template <int T, int N, bool PAIRS> struct places {
    static constexpr uint32_t EACH = PAIRS ? 2 : 1, ALL = T / EACH * ROWS * N,
                              MINE = (ALL + THREADS - 1) / THREADS,
                              PAD = N + 1; /* between the sums of two columns: no bank is met twice */

    static __device__ __forceinline__ uint32_t tile(uint32_t i)
    {
        return i / ROWS % (T / EACH) * EACH;
    }

    static __device__ __forceinline__ uint32_t row(uint32_t i)
    {
        return i / (ROWS * (T / EACH));
    }
};

/* What is added to a group's results: on its way while the product is found. */
template <int T, int N, bool PAIRS, typename Old>
__device__ __forceinline__ void read_added(const args &a, const queue<T, N, PAIRS> &q, uint32_t group,
                                           Old &old)
{
    using at = places<T, N, PAIRS>;
#pragma unroll
    for (uint32_t n = 0; n < at::MINE; n++) {
        const uint32_t i = n * THREADS + threadIdx.x, r = at::row(i),
                       column = q.row_of(group, at::tile(i)) + i % ROWS;
        old[n] = 0;
        if (PAIRS || i >= at::ALL || r >= a.p.t || column >= a.p.out) continue;
        if (a.p.bias) old[n] = gr_float(a.p.bias[column]);
        if (a.p.add) old[n] += gr_float(a.p.add[(size_t)r * a.p.ld + column]);
    }
}

/* The warps' sums of a group, added in their order; sums [WARPS, T, ROWS, N and one of padding], squares
 * [WARPS, N]. */
template <int T, int N, bool PAIRS, typename Old>
__device__ void close_group(const args &a, const queue<T, N, PAIRS> &q, uint32_t group,
                            const float (&c)[T][4], const Old &old, float *sums, const float *squares)
{
    using at = places<T, N, PAIRS>;
    constexpr uint32_t PAD = at::PAD;
    const uint32_t lane = q.lane, column = lane % 4 * 2, row = lane / 4;
#pragma unroll
    for (int j = 0; j < T; j++) {
        float *to = sums + ((q.warp * T + j) * ROWS + column) * PAD + row;
        to[0] = c[j][0];
        to[PAD] = c[j][1];
        if (N > 8) to[8] = c[j][2];
        if (N > 8) to[PAD + 8] = c[j][3];
    }
    __syncthreads();
#pragma unroll
    for (uint32_t n = 0; n < at::MINE; n++) {
        const uint32_t i = n * THREADS + threadIdx.x, j = at::tile(i), r = at::row(i), col = i % ROWS;
        const uint32_t w_row = q.row_of(group, j) + col;
        float v[at::EACH] = {}, square = 0;
        if (i >= at::ALL || r >= a.p.t || w_row >= a.p.out) continue;
#pragma unroll
        for (uint32_t w = 0; w < WARPS; w++) {
#pragma unroll
            for (uint32_t e = 0; e < at::EACH; e++) v[e] += sums[((w * T + j + e) * ROWS + col) * PAD + r];
            if (a.p.norm) square += squares[w * N + r];
        }
        const float inverse = a.p.norm ? rsqrtf(square / (float)a.p.in + a.p.eps) : 1;
        put<PAIRS>(a.p, (size_t)r * a.p.ld + w_row, v[0] * inverse, v[at::EACH - 1] * inverse, old[n]);
    }
    __syncthreads();
}

/* Sums that a warp has of a tile: few tiles have two, so that products wait less for each other. */
template <int T> constexpr int CHAINS = T <= 2 ? 2 : 1;

/* x of a chunk by the oldest step's tiles. */
template <int T, int N, bool PAIRS>
__device__ __forceinline__ void multiply_step(const queue<T, N, PAIRS> &q, uint32_t stage,
                                              const part (&x)[N / 8], float (&c)[CHAINS<T>][T][4])
{
#pragma unroll
    for (int j = 0; j < T; j++) {
        const uint32_t at = q.base + (stage * T + j) * TILE_BYTES + place(q.lane / 4, q.lane % 4);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint4 w = load_shared(at ^ half * CHUNK), low = x[0].half[half],
                        high = N > 8 ? x[N / 8 - 1].half[half] : make_uint4(0, 0, 0, 0);
            multiply(c[half % CHAINS<T>][j], low.x, high.x, low.y, high.y, w.x, w.y);
            multiply(c[half % CHAINS<T>][j], low.z, high.z, low.w, high.w, w.z, w.w);
        }
    }
}

/* N: rows of x, 8 or 16. PAIRS: a tile of gate and its tile of up are neighbours in a group. */
template <int T, int N, bool PAIRS> __global__ void __launch_bounds__(THREADS, 2) product_kernel(const args a)
{
    constexpr uint32_t AHEAD = 2; /* chunks of x in registers */
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ float squares[WARPS * N];
    float *sums = (float *)(memory + WARPS * a.deep * TILE_BYTES);
    queue<T, N, PAIRS> q(a, (uint32_t)__cvta_generic_to_shared(memory));
    gr_chain_release();
#pragma unroll 1
    for (uint32_t i = 0; i < q.STAGES; i++) q.fetch();
    expect(a.p.norm, a.p.in);
    expect(a.p.bias, a.p.out);
    gr_chain_wait();

    chunk_of_x<N> x[AHEAD];
    float square[N / 8] = {}, old[places<T, N, PAIRS>::MINE];
    uint32_t stage = 0;
#pragma unroll
    for (uint32_t i = 0; i < AHEAD; i++)
        if (i < q.chunks) x[i].load(a, i);
    for (uint32_t group = 0; group < a.groups; group++) {
        float c[CHAINS<T>][T][4] = {};
        read_added<T, N, PAIRS>(a, q, group, old);
        for (uint32_t first = 0; first < q.chunks; first += AHEAD)
#pragma unroll
            for (uint32_t i = 0; i < AHEAD; i++) {
                const uint32_t next = first + i + AHEAD;
                if (first + i >= q.chunks) break;
                part now[N / 8];
#pragma unroll
                for (int h = 0; h < N / 8; h++) {
                    now[h] = x[i].row[h];
                    if (!a.p.norm) continue;
                    const float sum = now[h].norm(x[i].factors, a.p.one);
                    square[h] += group == 0 ? sum : 0;
                }
                if (q.chunks > AHEAD && (next < q.chunks || group + 1 < a.groups))
                    x[i].load(a, next < q.chunks ? next : i);
                q.wait();
                multiply_step<T, N, PAIRS>(q, stage, now, c);
                stage = stage + 1 == q.STAGES ? 0 : stage + 1;
                __syncwarp(); /* all have left what is filled now */
                q.fetch();
            }
        if (a.p.norm && group == 0) {
#pragma unroll
            for (int h = 0; h < N / 8; h++) {
                float sum = square[h] + __shfl_xor_sync(GR_ALL, square[h], 1);
                sum += __shfl_xor_sync(GR_ALL, sum, 2);
                if (q.lane % 4 == 0) squares[q.warp * N + q.lane / 4 + 8 * h] = sum;
            }
        }
#pragma unroll
        for (int j = 0; j < T && CHAINS<T> == 2; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) c[0][j][e] += c[CHAINS<T> - 1][j][e];
        close_group<T, N, PAIRS>(a, q, group, c[0], old, sums, squares);
    }
}

template <int T, int N, bool PAIRS> void launch(cudaStream_t st, args a, uint32_t grid)
{
    constexpr uint32_t deep = queue<T, N, PAIRS>::DEEP,
                       sums = T * ROWS * places<T, N, PAIRS>::PAD * sizeof(float);
    static_assert(deep % T == 0 && (!PAIRS || T % 2 == 0), "steps fill the queue, and pairs are whole");
    cudaFuncSetAttribute(product_kernel<T, N, PAIRS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         WARPS * (deep * TILE_BYTES + sums));
    a.groups = gr_ceil_div(a.per, PAIRS ? T / 2 : T);
    a.deep = std::min(deep, a.groups * (a.p.in / STRIDE) * T);
    gr_chain(st, product_kernel<T, N, PAIRS>, dim3(grid), dim3(THREADS), WARPS * (a.deep * TILE_BYTES + sums),
             a);
}

/* Tiles a step: as many as leave no group of a CTA's incomplete. */
template <int N, bool PAIRS> void launch_tiles(cudaStream_t st, const args &a, uint32_t grid)
{
    constexpr int EACH = PAIRS ? 2 : 1, ODD = N == 8 || !PAIRS ? 3 : 1;
    const uint32_t wide = 4 / EACH;
    const bool odd = a.per % wide && a.per % ODD == 0;
    if (odd)
        launch<ODD * EACH, N, PAIRS>(st, a, grid);
    else if (a.per % wide == 0)
        launch<4, N, PAIRS>(st, a, grid);
    else if (a.per % (2 / EACH) == 0)
        launch<2, N, PAIRS>(st, a, grid);
    else
        launch<EACH, N, PAIRS>(st, a, grid);
}

template <bool PAIRS> void launch_rows(cudaStream_t st, const args &a, uint32_t grid)
{
    if (a.p.t <= 8)
        launch_tiles<8, PAIRS>(st, a, grid);
    else
        launch_tiles<16, PAIRS>(st, a, grid);
}

} // namespace

extern "C" bool gr_cu_decode_product_takes(const gr_bf16 *w, uint32_t t, uint32_t in, uint32_t out)
{
    return t && t <= 16 && in && in % STRIDE == 0 && out % 16 == 0 && (uintptr_t)w % 16 == 0 &&
           gr_chain_there();
}

extern "C" void gr_cu_decode_product_run(cudaStream_t st, const gr_cu_decode_product *p)
{
    args a = {};
    if (gr_cu_decode_held_run(st, p)) return;
    a.p = *p;
    a.tiles = p->out / ROWS / (p->activate ? 2 : 1);
    a.per = gr_ceil_div(a.tiles, processors());
    /* More than a queue holds: two CTAs on each multiprocessor, of which one reads while the other adds up.
     */
    if (a.per > 1 && a.per * (p->activate ? 2 : 1) * (p->in / STRIDE) > QUEUE)
        a.per = gr_ceil_div(a.tiles, 2 * processors());
    const uint32_t grid = gr_ceil_div(a.tiles, a.per);
    if (p->activate)
        launch_rows<true>(st, a, grid);
    else
        launch_rows<false>(st, a, grid);
}
