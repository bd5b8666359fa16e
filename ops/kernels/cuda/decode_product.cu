/* ops/kernels/cuda/decode_product.cu: y = x W^T of a decode step of few sequences: reading W is all there is.
 *
 * A warp streams 8 rows of W at a time through a queue of its own in shared memory, 12 KiB deep, which it
 * begins to fill before the kernel in front has ended (chained.cuh): while activations are still on their
 * way, the first 96 KiB of weights of each multiprocessor are, too, and where they are all there are, reading
 * is over when x arrives. No barrier stands in that stream: a lane reads what it copied itself.
 *
 * The warps of a CTA share its rows of W and divide k, 64 at a time in turn, so that together they read 1 KiB
 * of a row; their sums are added in order at the end of each group of rows. m16n8k16 multiplies 16 rows of x
 * by 8 of W. A lane takes the same 8 numbers that follow each other of both, so the k of a product are
 * permuted, alike on both sides, and loads need no shuffle.
 *
 * x may be normed on the way (each CTA finds the rows' root mean squares by itself), gate and up may be
 * closed by silu(gate) * up: a layer is one product a kernel. The order of sums follows from the shape alone.
 */
#include "ops/kernels/cuda/chained.cuh"
#include "ops/kernels/cuda/device.cuh"

#include <algorithm>

namespace
{

constexpr uint32_t WARPS = 8, THREADS = WARPS * GR_WARP, CHUNK = 64; /* k of a step of a warp */
constexpr uint32_t STRIDE = WARPS * CHUNK;                           /* k of a step of all */
constexpr uint32_t ROWS = 8;                                         /* of W in a tile */
constexpr uint32_t TILE_BYTES = ROWS * CHUNK * 2;

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

/* A warp's queue of tiles, T a step: those of a group of rows of W, chunk after chunk, then the next group's.
 */
template <int T, int N, bool PAIRS> struct queue {
    static constexpr uint32_t DEEP = N == 32 ? 10 : 12, STAGES = DEEP / T; /* tiles in it at most; steps */
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
            const size_t k = (size_t)chunk * STRIDE + warp * CHUNK + lane % 4 * 8;
#pragma unroll
            for (int j = 0; j < T; j++) {
                const uint32_t row = row_of(group, j) + lane / 4,
                               to = base + (stage * T + j) * TILE_BYTES + lane * 16;
                const bool there = row < a.p.out;
                const gr_bf16 *from = a.p.w + (there ? (size_t)row * a.p.in + k : 0);
                copy_once(to, from, there, policy);
                copy_once(to + TILE_BYTES / 2, from + (there ? CHUNK / 2 : 0), there, policy);
            }
            if (++chunk == chunks) chunk = 0, group++;
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    /* The oldest step is there. */
    __device__ __forceinline__ void wait() const
    {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
    }
};

/* x of one row and chunk, in the order of W's: numbers 8 q to 8 q + 7 of each half of the chunk. */
struct part {
    uint4 half[2];

    __device__ __forceinline__ void load(const args &a, uint32_t row, uint32_t k)
    {
        half[0] = half[1] = make_uint4(0, 0, 0, 0);
        if (row >= a.p.t) return;
        const gr_bf16 *x = a.p.x + (size_t)row * a.p.in + k;
        half[0] = *(const uint4 *)x;
        half[1] = *(const uint4 *)(x + CHUNK / 2);
    }

    /* Times the norm's factors; what is left of the norm, one number a row, the result is multiplied by.
     * Returns the sum of squares. */
    __device__ __forceinline__ float norm(const args &a, uint32_t k)
    {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float f[8], n[8];
            gr_unpack(half[i], f);
            gr_unpack(*(const uint4 *)(a.p.norm + k + i * (CHUNK / 2)), n);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                sum = fmaf(f[e], f[e], sum);
                f[e] *= a.p.one + n[e];
            }
            half[i] = gr_pack(f);
        }
        return sum;
    }
};

/* What a kernel reads once at its end, from memory into the L2 cache. */
__device__ __forceinline__ void expect(const gr_bf16 *from, uint32_t n)
{
    for (uint32_t i = threadIdx.x * 64; from && i < n; i += THREADS * 64)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
}

/* One number of the result. */
template <bool PAIRS>
__device__ void put(const args &a, uint32_t row, uint32_t column, float gate, float up, float old)
{
    const gr_cu_decode_product &p = a.p;
    const size_t at = (size_t)row * p.ld + column;
    const float v = PAIRS ? gate * gr_sigmoid(gate) * up : gate * p.scale + old;
    if (!PAIRS && p.logits)
        p.logits[at] = v;
    else
        p.y[at] = gr_round(v);
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
                            const float (&c)[T][(N + 15) / 16][4], const Old &old, float *sums,
                            const float *squares)
{
    using at = places<T, N, PAIRS>;
    constexpr uint32_t PAD = at::PAD;
    const uint32_t lane = q.lane, column = lane % 4 * 2, row = lane / 4;
#pragma unroll
    for (int j = 0; j < T; j++)
#pragma unroll
        for (int h = 0; h < (N + 15) / 16; h++) {
            float *to = sums + ((q.warp * T + j) * ROWS + column) * PAD + row + 16 * h;
            to[0] = c[j][h][0];
            to[PAD] = c[j][h][1];
            if (N > 8) to[8] = c[j][h][2];
            if (N > 8) to[PAD + 8] = c[j][h][3];
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
        put<PAIRS>(a, r, w_row, v[0] * inverse, v[at::EACH - 1] * inverse, old[n]);
    }
    __syncthreads();
}

/* N: rows of x, 8, 16 or 32. PAIRS: a tile of gate and its tile of up are neighbours in a group. */
template <int T, int N, bool PAIRS>
__global__ void __maxnreg__(N == 8 ? 96 : 128) product_kernel(const args a)
{
    constexpr uint32_t AT_ONCE = N == 32 ? 2 : 4; /* chunks of x in registers */
    constexpr int HALVES = N / 8, SETS = (N + 15) / 16;
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ float squares[WARPS * N];
    float *sums = (float *)(memory + WARPS * a.deep * TILE_BYTES);
    queue<T, N, PAIRS> q(a, (uint32_t)__cvta_generic_to_shared(memory));
    gr_chain_release();
    for (uint32_t i = 0; i < q.STAGES; i++) q.fetch();
    expect(a.p.norm, a.p.in);
    expect(a.p.bias, a.p.out);
    gr_chain_wait();

    part x[AT_ONCE][HALVES];
    float square[HALVES] = {}, old[places<T, N, PAIRS>::MINE];
    uint32_t stage = 0;
    for (uint32_t group = 0; group < a.groups; group++) {
        float c[T][SETS][4] = {};
        for (uint32_t first = 0; first < q.chunks; first += AT_ONCE) {
            if (group == 0 || q.chunks > AT_ONCE) {
                const uint32_t k = first * STRIDE + q.warp * CHUNK + q.lane % 4 * 8;
#pragma unroll
                for (uint32_t i = 0; i < AT_ONCE; i++)
#pragma unroll
                    for (int h = 0; h < HALVES; h++)
                        if (first + i < q.chunks) x[i][h].load(a, q.lane / 4 + 8 * h, k + i * STRIDE);
                if (first == 0) read_added<T, N, PAIRS>(a, q, group, old);
                if (a.p.norm) {
#pragma unroll
                    for (uint32_t i = 0; i < AT_ONCE; i++)
#pragma unroll
                        for (int h = 0; h < HALVES; h++)
                            if (first + i < q.chunks) {
                                const float sum = x[i][h].norm(a, k + i * STRIDE);
                                square[h] += group == 0 ? sum : 0;
                            }
                }
            } else if (first == 0) {
                read_added<T, N, PAIRS>(a, q, group, old);
            }
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++) {
                if (first + i >= q.chunks) break;
                q.wait();
#pragma unroll
                for (int j = 0; j < T; j++) {
                    const uint32_t at = q.base + (stage * T + j) * TILE_BYTES + q.lane * 16;
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const uint4 w = load_shared(at + half * (TILE_BYTES / 2));
#pragma unroll
                        for (int s = 0; s < SETS; s++) {
                            const uint4 low = x[i][2 * s].half[half],
                                        high = N > 8 ? x[i][(2 * s + 1) % HALVES].half[half]
                                                     : make_uint4(0, 0, 0, 0);
                            multiply(c[j][s], low.x, high.x, low.y, high.y, w.x, w.y);
                            multiply(c[j][s], low.z, high.z, low.w, high.w, w.z, w.w);
                        }
                    }
                }
                stage = stage + 1 == q.STAGES ? 0 : stage + 1;
                q.fetch();
            }
        }
        if (a.p.norm && group == 0) {
#pragma unroll
            for (int h = 0; h < HALVES; h++) {
                float sum = square[h] + __shfl_xor_sync(GR_ALL, square[h], 1);
                sum += __shfl_xor_sync(GR_ALL, sum, 2);
                if (q.lane % 4 == 0) squares[q.warp * N + q.lane / 4 + 8 * h] = sum;
            }
        }
        close_group<T, N, PAIRS>(a, q, group, c, old, sums, squares);
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

/* Tiles a step: as many as leave no group of a CTA's incomplete, of few numbers of rows more of them. */
template <int N, bool PAIRS> void launch_tiles(cudaStream_t st, const args &a, uint32_t grid)
{
    constexpr int EACH = PAIRS ? 2 : 1, WIDE = N == 32 ? 2 : 4, ODD = N == 32 ? 1 : N == 8 || !PAIRS ? 3 : 1;
    const uint32_t wide = WIDE / EACH;
    const bool odd = a.per % wide && a.per % ODD == 0;
    if (odd)
        launch<ODD * EACH, N, PAIRS>(st, a, grid);
    else if (a.per % wide == 0)
        launch<WIDE, N, PAIRS>(st, a, grid);
    else
        launch<EACH, N, PAIRS>(st, a, grid);
}

template <bool PAIRS> void launch_rows(cudaStream_t st, const args &a, uint32_t grid)
{
    if (a.p.t <= 8)
        launch_tiles<8, PAIRS>(st, a, grid);
    else if (a.p.t <= 16)
        launch_tiles<16, PAIRS>(st, a, grid);
    else
        launch_tiles<32, PAIRS>(st, a, grid);
}

uint32_t processors(void)
{
    int device = 0, n = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    return (uint32_t)n;
}

} // namespace

/* Each CTA reads all of x from the L2 cache: more of it than this takes longer than what is gained. What is
 * gained is the beginning, which is little of a matrix of more elements than this. Both measured:
 * docs/PERFORMANCE.md, "Few sequences". */
constexpr uint32_t X_MOST = 16384, W_MOST = 1u << 27;

extern "C" bool gr_cu_decode_product_takes(const gr_bf16 *w, uint32_t t, uint32_t in, uint32_t out)
{
    return t && t <= 8 && (uint64_t)t * in <= X_MOST && (uint64_t)in * out <= W_MOST && in &&
           in % STRIDE == 0 && out % 16 == 0 && (uintptr_t)w % 16 == 0 && gr_chain_there();
}

extern "C" void gr_cu_decode_product_run(cudaStream_t st, const gr_cu_decode_product *p)
{
    args a = {};
    a.p = *p;
    a.tiles = p->out / ROWS / (p->activate ? 2 : 1);
    a.per = gr_ceil_div(a.tiles, processors());
    const uint32_t grid = gr_ceil_div(a.tiles, a.per);
    if (p->activate)
        launch_rows<true>(st, a, grid);
    else
        launch_rows<false>(st, a, grid);
}
