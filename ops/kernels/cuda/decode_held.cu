/* ops/kernels/cuda/decode_held.cu: y = x W^T of a decode step of up to 8 rows, where each CTA's rows of W fit
 * into its shared memory, two CTAs a multiprocessor (longer products: decode_product.cu).
 *
 * What bounds such a product is not bytes but how long it takes from x to y. So all of W is on its way before
 * the kernel in front has ended (chained.cuh), brought by the bulk copy engine, a row a copy. Behind x stand
 * no more than one trip to the L2 cache, the products, and one barrier; and the program is short: five
 * kernels a layer, one after the other, have to stay in the multiprocessors' instruction caches.
 *
 * k is divided as decode_rows.cuh says. m16n8k16 multiplies two tiles of 8 rows of W by 8 rows of x. Rows of
 * x do not meet: each has the bits that it has alone.
 */
#include "ops/kernels/cuda/decode_held.h"

#include "ops/kernels/cuda/chained.cuh"
#include "ops/kernels/cuda/decode_rows.cuh"
#include "ops/kernels/cuda/hopper.cuh"

#include <algorithm>

namespace
{

using namespace gr_decode_rows;

constexpr uint32_t N = 8;     /* rows of x, at most */
constexpr uint32_t PAD = 64;  /* bytes between rows of W: two that follow each other share no bank */
constexpr uint32_t MOST = 12; /* tiles of 64 k of a warp: 96 KiB of weights a CTA */
/* Chunks of k whose x, and factors of the norm, a lane has in registers. */
constexpr uint32_t CHUNKS_MOST = 6, CHUNKS_NORMED = 4;
constexpr uint32_t TILES_MOST = 4, PAIRS_MOST = 3; /* of a CTA */

struct args {
    gr_cu_decode_product p;
    uint32_t tiles, chunks; /* of rows of W (gate's rows alone); of k */
    uint32_t row;           /* bytes from row to row in shared memory */
    uint32_t pad;           /* from sum to sum of two rows of W: odd */
    float share;            /* 1 / in */
};

#if GR_HOPPER

/* Bytes of a row of W to shared memory; they are read once. */
__device__ __forceinline__ void copy_row(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier,
                                         uint64_t policy)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], "
        "%2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
}

/* A CTA's T tiles; of PAIRS, one of gate and its one of up are neighbours. */
template <int T, bool PAIRS> struct tiles {
    static constexpr uint32_t EACH = PAIRS ? 2 : 1, RESULTS = T / EACH * ROWS; /* of a row of x */

    /* Its first row in W; p.out: there is none. */
    static __device__ __forceinline__ uint32_t row(const args &a, uint32_t j)
    {
        const uint32_t tile = blockIdx.x * (T / EACH) + j / EACH;
        return tile < a.tiles ? (tile + j % EACH * a.tiles) * ROWS : a.p.out;
    }

    /* All to shared memory, a warp one row of each. */
    static __device__ __forceinline__ void fetch(const args &a, uint32_t to, uint32_t barrier)
    {
        const uint32_t bytes = a.p.in * 2, warp = threadIdx.x / GR_WARP;
        if (threadIdx.x == 0) {
            const uint32_t n = min(T / EACH, a.tiles - blockIdx.x * (T / EACH)) * EACH;
            gr_barrier_init(barrier, 1);
            gr_barriers_made();
            gr_barrier_expect(barrier, n * ROWS * bytes);
        }
        __syncthreads();
        if (threadIdx.x % GR_WARP == 0) {
            uint64_t policy;
            asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#pragma unroll 1
            for (uint32_t j = 0; j < T && row(a, j) < a.p.out; j++)
                copy_row(to + (j * ROWS + warp) * a.row, a.p.w + (size_t)(row(a, j) + warp) * a.p.in, bytes,
                         barrier, policy);
        }
        __syncwarp();
    }
};

__device__ __forceinline__ void multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                         uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* A warp's sums of T tiles, a pair of tiles in one product; several of each, which are added at the end, so
 * that products wait less for each other. */
template <int T> struct sums {
    static constexpr int DOUBLES = (T + 1) / 2, CHAINS = T <= 2 ? 4 : T <= 4 ? 2 : 1;
    float c[CHAINS][DOUBLES][4];

    /* To shared memory, [WARPS, T, ROWS, pad]. */
    __device__ __forceinline__ void leave(const args &a, float *to)
    {
        const uint32_t warp = threadIdx.x / GR_WARP, lane = threadIdx.x % GR_WARP;
#pragma unroll
        for (int d = 0; d < DOUBLES; d++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const uint32_t j = 2 * d + e / 2, row = lane % 4 * 2 + e % 2;
#pragma unroll
                for (int n = 1; n < CHAINS; n++) c[0][d][e] += c[n][d][e];
                if (j < T && row < a.p.t) to[((warp * T + j) * ROWS + lane / 4) * a.pad + row] = c[0][d][e];
            }
    }
};

/* A chunk of T tiles, a lane its 16 bytes of each half of its row. */
template <int T> struct weights {
    uint4 half[T][2];

    __device__ __forceinline__ void load(const unsigned char *at, uint32_t row)
    {
#pragma unroll
        for (int j = 0; j < T; j++) {
            half[j][0] = *(const uint4 *)(at + j * ROWS * row);
            half[j][1] = *(const uint4 *)(at + j * ROWS * row + CHUNK);
        }
    }

    __device__ __forceinline__ void multiply_by(const part &x, sums<T> &to) const
    {
        using of = sums<T>;
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int d = 0; d < of::DOUBLES; d++) {
                const uint4 low = half[2 * d][i], b = x.half[i],
                            high = 2 * d + 1 < T ? half[(2 * d + 1) % T][i] : make_uint4(0, 0, 0, 0);
                multiply(to.c[2 * i % of::CHAINS][d], low.x, high.x, low.y, high.y, b.x, b.y);
                multiply(to.c[(2 * i + 1) % of::CHAINS][d], low.z, high.z, low.w, high.w, b.z, b.w);
            }
    }
};

/* x, and the factors of its norm, of all chunks of a warp. */
template <int T, bool NORM> struct input {
    static constexpr int CHUNKS = std::min(MOST / T, NORM ? CHUNKS_NORMED : CHUNKS_MOST);
    static constexpr int AT_ONCE = T < 6 ? 6 / T : 1; /* chunks of W on their way to registers */
    part x[CHUNKS] = {}, factors[NORM ? CHUNKS : 1];

    __device__ __forceinline__ void load_factors(const args &a, uint32_t k)
    {
#pragma unroll
        for (int n = 0; NORM && n < CHUNKS; n++)
            if (n < a.chunks) factors[n].load(a.p.norm + k + n * STRIDE);
    }

    __device__ __forceinline__ void load(const args &a, uint32_t row, uint32_t k)
    {
#pragma unroll
        for (int n = 0; n < CHUNKS; n++)
            if (n < a.chunks && row < a.p.t) x[n].load(a.p.x + (size_t)row * a.p.in + k + n * STRIDE);
    }

    /* Times the weights of a lane's row, which begin at `from`. Returns the sum of its squares. */
    __device__ __forceinline__ float multiply_with(const args &a, const unsigned char *from, sums<T> &to)
    {
        weights<T> w[AT_ONCE];
        float square = 0;
#pragma unroll
        for (int n = 0; n < CHUNKS; n++) {
            if (n == a.chunks) break;
            if (n % AT_ONCE == 0) {
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++)
                    if (i == 0 || n + i < a.chunks) w[i].load(from + (n + i) * STRIDE * 2, a.row);
            }
            if (NORM) square += x[n].norm(factors[n % (NORM ? CHUNKS : 1)], a.p.one);
            w[n % AT_ONCE].multiply_by(x[n], to);
        }
        return square;
    }
};

/* The warps' sums, and their squares [WARPS, N], added in their order; a thread has one result. */
template <int T, bool PAIRS, bool NORM>
__device__ __forceinline__ void add_up(const args &a, uint32_t r, uint32_t column, float old,
                                       const float *left, const float *squares)
{
    using of = tiles<T, PAIRS>;
    const uint32_t i = threadIdx.x % of::RESULTS;
    const float *from = left + (i / ROWS * of::EACH * ROWS + i % ROWS) * a.pad + r;
    float v[2] = {}, square = 0;
#pragma unroll
    for (uint32_t w = 0; w < WARPS; w++) {
#pragma unroll
        for (uint32_t e = 0; e < of::EACH; e++) v[e] += from[(w * T + e) * ROWS * a.pad];
        if (NORM) square += squares[w * N + r];
    }
    const float inverse = NORM ? rsqrtf(fmaf(square, a.share, a.p.eps)) : 1;
    put<PAIRS>(a.p, (size_t)r * a.p.ld + column, v[0] * inverse, v[1] * inverse, old);
}

#endif

template <int T, bool PAIRS, bool NORM>
__global__ void __launch_bounds__(THREADS, 2) held_kernel(const args a)
{
#if GR_HOPPER
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ float squares[WARPS * N];
    __shared__ uint64_t barrier;
    using of = tiles<T, PAIRS>;
    gr_chain_release();
    of::fetch(a, gr_shared(memory), gr_shared(&barrier));
    const uint32_t warp = threadIdx.x / GR_WARP, lane = threadIdx.x % GR_WARP, q = lane % 4;
    const uint32_t k = warp * CHUNK + q * 8, r = threadIdx.x / of::RESULTS, i = threadIdx.x % of::RESULTS;
    const uint32_t column = of::row(a, i / ROWS * of::EACH) + i % ROWS;
    const bool mine = r < a.p.t && column < a.p.out;
    float *left = (float *)(memory + T * ROWS * a.row),
          old = mine && a.p.bias ? gr_float(a.p.bias[column]) : 0;
    input<T, NORM> in;
    sums<T> c = {};
    in.load_factors(a, k);
    gr_chain_wait();
    in.load(a, lane / 4, k);
    if (mine && a.p.add) old += gr_float(a.p.add[(size_t)r * a.p.ld + column]);
    gr_barrier_wait(gr_shared(&barrier), 0);
    __syncwarp();
    float square = in.multiply_with(a, memory + lane / 4 * a.row + k * 2, c);
    if (NORM) {
        square += __shfl_xor_sync(GR_ALL, square, 1);
        square += __shfl_xor_sync(GR_ALL, square, 2);
        if (q == 0) squares[warp * N + lane / 4] = square;
    }
    c.leave(a, left);
    __syncthreads();
    if (mine) add_up<T, PAIRS, NORM>(a, r, column, old, left, squares);
#else
    (void)a;
#endif
}

template <int T, bool PAIRS, bool NORM> void launch(cudaStream_t st, const args &a)
{
    const auto kernel = held_kernel<T, PAIRS, NORM>;
    const uint32_t shared = T * ROWS * (a.row + WARPS * a.pad * sizeof(float));
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    gr_chain(st, kernel, dim3(gr_ceil_div(a.tiles, T / (PAIRS ? 2 : 1))), dim3(THREADS), shared, a);
}

template <int T, bool PAIRS> void launch_normed(cudaStream_t st, const args &a)
{
    if (a.p.norm)
        launch<T, PAIRS, true>(st, a);
    else
        launch<T, PAIRS, false>(st, a);
}

void launch_tiles(cudaStream_t st, const args &a, uint32_t n)
{
    switch (n) {
    case 1:
        return launch_normed<1, false>(st, a);
    case 2:
        return launch_normed<2, false>(st, a);
    case 3:
        return launch_normed<3, false>(st, a);
    default:
        return launch_normed<4, false>(st, a);
    }
}

void launch_pairs(cudaStream_t st, const args &a, uint32_t n)
{
    switch (n) {
    case 1:
        return launch_normed<2, true>(st, a);
    case 2:
        return launch_normed<4, true>(st, a);
    default:
        return launch_normed<6, true>(st, a);
    }
}

/* The rule of what is held. Tiles a CTA (pairs, where gate and up are closed): as few as one CTA a
 * multiprocessor leaves it. 0: more than it holds. */
uint32_t tiles_each(const gr_cu_decode_product *p)
{
    const uint32_t each = p->activate ? 2 : 1, chunks = p->in / STRIDE,
                   n = gr_ceil_div(p->out / ROWS / each, processors());
    const bool fits = p->t <= N && n * each * chunks <= MOST &&
                      n <= (p->activate ? PAIRS_MOST : TILES_MOST) &&
                      chunks <= (p->norm ? CHUNKS_NORMED : CHUNKS_MOST);
    return fits ? n : 0;
}

} // namespace

extern "C" bool gr_cu_decode_held_run(cudaStream_t st, const gr_cu_decode_product *p)
{
    const uint32_t n = tiles_each(p);
    args a = {};
    if (!n) return false;
    a.p = *p;
    a.tiles = p->out / ROWS / (p->activate ? 2 : 1);
    a.chunks = p->in / STRIDE;
    a.row = p->in * 2 + PAD;
    a.pad = p->t | 1;
    a.share = 1 / (float)p->in;
    if (p->activate)
        launch_pairs(st, a, n);
    else
        launch_tiles(st, a, n);
    return true;
}
