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

namespace
{

constexpr uint32_t WARPS = 8, THREADS = WARPS * GR_WARP, CHUNK = 64; /* k of a step of a warp */
constexpr uint32_t STRIDE = WARPS * CHUNK;                           /* k of a step of all */
constexpr uint32_t ROWS = 8;                                         /* of W in a tile */
constexpr uint32_t TILE_BYTES = ROWS * CHUNK * 2, DEEP = 12;         /* tiles in a warp's queue */
constexpr uint32_t AT_ONCE = 4;                                      /* chunks of x in registers */

struct args {
    gr_cu_decode_product p;
    uint32_t tiles, per, groups; /* of rows of W (gate's rows alone): all, a CTA's, and groups of its */
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
template <int T, bool PAIRS> struct queue {
    static constexpr uint32_t STAGES = DEEP / T;
    const args &a;
    uint32_t base, chunks, warp, lane; /* chunks: of this warp, of a group */
    uint32_t group, chunk, stage;      /* of the next step to fetch */
    uint64_t policy;

    __device__ queue(const args &of, uint32_t shared)
        : a(of), chunks(of.p.in / STRIDE), warp(threadIdx.x / GR_WARP), lane(threadIdx.x % GR_WARP), group(0),
          chunk(0), stage(0)
    {
        base = shared + warp * DEEP * TILE_BYTES;
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

/* Of each row of x its 1 / root mean square; as many warps a row as there are for it. */
__device__ void find_norms(const args &a, float (*parts)[WARPS], float *inverse)
{
    const uint32_t warp = threadIdx.x / GR_WARP, lane = threadIdx.x % GR_WARP, vecs = a.p.in / 8;
    const uint32_t each = a.p.t <= 1 ? 8 : a.p.t <= 2 ? 4 : a.p.t <= 4 ? 2 : 1, which = warp % each;
    for (uint32_t row = warp / each; row < a.p.t; row += WARPS / each) {
        const uint4 *x = (const uint4 *)(a.p.x + (size_t)row * a.p.in);
        float sum = 0;
#pragma unroll 8
        for (uint32_t i = which * GR_WARP + lane; i < vecs; i += each * GR_WARP) {
            float f[8];
            gr_unpack(x[i], f);
#pragma unroll
            for (int e = 0; e < 8; e++) sum = fmaf(f[e], f[e], sum);
        }
        sum = gr_warp_sum(sum);
        if (lane == 0) parts[row][which] = sum;
    }
    __syncthreads();
    if (threadIdx.x < a.p.t) {
        float sum = 0;
        for (uint32_t i = 0; i < each; i++) sum += parts[threadIdx.x][i];
        inverse[threadIdx.x] = rsqrtf(sum / (float)a.p.in + a.p.eps);
    }
    __syncthreads();
}

/* x of one row and chunk, in the order of W's: numbers 8 q to 8 q + 7 of each half of the chunk. */
struct part {
    uint4 half[2];

    __device__ __forceinline__ void load(const args &a, uint32_t row, uint32_t k, const float *inverse)
    {
        half[0] = half[1] = make_uint4(0, 0, 0, 0);
        if (row >= a.p.t) return;
        const gr_bf16 *x = a.p.x + (size_t)row * a.p.in + k;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            half[i] = *(const uint4 *)(x + i * (CHUNK / 2));
            if (!a.p.norm) continue;
            float f[8], n[8];
            gr_unpack(half[i], f);
            gr_unpack(*(const uint4 *)(a.p.norm + k + i * (CHUNK / 2)), n);
#pragma unroll
            for (int e = 0; e < 8; e++) f[e] = f[e] * inverse[row] * (a.p.one + n[e]);
            half[i] = gr_pack(f);
        }
    }
};

/* One number of the result. */
template <bool PAIRS> __device__ void put(const args &a, uint32_t row, uint32_t column, float gate, float up)
{
    const gr_cu_decode_product &p = a.p;
    const size_t at = (size_t)row * p.ld + column;
    if (PAIRS) {
        p.y[at] = gr_round(gate * gr_sigmoid(gate) * up);
        return;
    }
    float v = gate * p.scale;
    if (p.bias) v += gr_float(p.bias[column]);
    if (p.add) v += gr_float(p.add[at]);
    if (p.logits)
        p.logits[at] = v;
    else
        p.y[at] = gr_round(v);
}

/* The warps' sums of a group, added in their order; sums [WARPS, T, ROWS, N]. */
template <int T, int N, bool PAIRS>
__device__ void close_group(const args &a, const queue<T, PAIRS> &q, uint32_t group, const float (&c)[T][4],
                            float *sums)
{
    const uint32_t lane = q.lane, column = lane % 4 * 2, row = lane / 4;
#pragma unroll
    for (int j = 0; j < T; j++) {
        float *to = sums + ((q.warp * T + j) * ROWS + column) * N + row;
        to[0] = c[j][0];
        to[N] = c[j][1];
        if (N == 16) to[8] = c[j][2];
        if (N == 16) to[N + 8] = c[j][3];
    }
    __syncthreads();
    constexpr uint32_t EACH = PAIRS ? 2 : 1, ALL = T / EACH * ROWS * N;
    for (uint32_t i = threadIdx.x; i < ALL; i += THREADS) {
        const uint32_t col = i % ROWS, j = i / ROWS % (T / EACH) * EACH, r = i / (ROWS * (T / EACH));
        const uint32_t w_row = q.row_of(group, j) + col;
        float v[EACH] = {};
#pragma unroll
        for (uint32_t w = 0; w < WARPS; w++)
#pragma unroll
            for (uint32_t e = 0; e < EACH; e++) v[e] += sums[((w * T + j + e) * ROWS + col) * N + r];
        if (r < a.p.t && w_row < a.p.out) put<PAIRS>(a, r, w_row, v[0], v[EACH - 1]);
    }
    __syncthreads();
}

/* N: rows of x, 8 or 16. PAIRS: a tile of gate and its tile of up are neighbours in a group. */
template <int T, int N, bool PAIRS> __global__ void __launch_bounds__(THREADS, 2) product_kernel(const args a)
{
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ float inverse[16], parts[16][WARPS];
    float *sums = (float *)(memory + WARPS * DEEP * TILE_BYTES);
    queue<T, PAIRS> q(a, (uint32_t)__cvta_generic_to_shared(memory));
    gr_chain_release();
    for (uint32_t i = 0; i < q.STAGES; i++) q.fetch();
    gr_chain_wait();
    if (a.p.norm) find_norms(a, parts, inverse);

    part x[AT_ONCE][N / 8];
    uint32_t stage = 0;
    for (uint32_t group = 0; group < a.groups; group++) {
        float c[T][4] = {};
        for (uint32_t first = 0; first < q.chunks; first += AT_ONCE) {
            if (group == 0 || q.chunks > AT_ONCE)
#pragma unroll
                for (uint32_t i = 0; i < AT_ONCE; i++)
#pragma unroll
                    for (int h = 0; h < N / 8; h++)
                        if (first + i < q.chunks)
                            x[i][h].load(a, q.lane / 4 + 8 * h,
                                         (first + i) * STRIDE + q.warp * CHUNK + q.lane % 4 * 8, inverse);
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++) {
                if (first + i >= q.chunks) break;
                q.wait();
#pragma unroll
                for (int j = 0; j < T; j++) {
                    const uint32_t at = q.base + (stage * T + j) * TILE_BYTES + q.lane * 16;
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const uint4 w = load_shared(at + half * (TILE_BYTES / 2)), low = x[i][0].half[half],
                                    high = N == 16 ? x[i][N / 8 - 1].half[half] : make_uint4(0, 0, 0, 0);
                        multiply(c[j], low.x, high.x, low.y, high.y, w.x, w.y);
                        multiply(c[j], low.z, high.z, low.w, high.w, w.z, w.w);
                    }
                }
                stage = stage + 1 == q.STAGES ? 0 : stage + 1;
                q.fetch();
            }
        }
        close_group<T, N, PAIRS>(a, q, group, c, sums);
    }
}

template <int T, int N, bool PAIRS> void launch(cudaStream_t st, const args &a, uint32_t grid)
{
    constexpr uint32_t shared = WARPS * (DEEP * TILE_BYTES + T * ROWS * N * sizeof(float));
    static_assert(DEEP % T == 0 && (!PAIRS || T % 2 == 0), "steps fill the queue, and pairs are whole");
    cudaFuncSetAttribute(product_kernel<T, N, PAIRS>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    gr_chain(st, product_kernel<T, N, PAIRS>, dim3(grid), dim3(THREADS), shared, a);
}

template <int T, bool PAIRS> void launch_rows(cudaStream_t st, args a, uint32_t grid)
{
    const uint32_t of_group = PAIRS ? T / 2 : T;
    a.groups = gr_ceil_div(a.per, of_group);
    if (a.p.t <= 8)
        launch<T, 8, PAIRS>(st, a, grid);
    else
        launch<T, 16, PAIRS>(st, a, grid);
}

uint32_t processors(void)
{
    int device = 0, n = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    return (uint32_t)n;
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
    a.p = *p;
    a.tiles = p->out / ROWS / (p->activate ? 2 : 1);
    a.per = gr_ceil_div(a.tiles, processors());
    const uint32_t grid = gr_ceil_div(a.tiles, a.per);
    if (p->activate) {
        if (a.per % 3 == 0 && p->t <= 8)
            launch_rows<6, true>(st, a, grid);
        else if (a.per % 2 == 0)
            launch_rows<4, true>(st, a, grid);
        else
            launch_rows<2, true>(st, a, grid);
    } else if (a.per % 4 == 0) {
        launch_rows<4, false>(st, a, grid);
    } else if (a.per % 3 == 0) {
        launch_rows<3, false>(st, a, grid);
    } else if (a.per % 2 == 0) {
        launch_rows<2, false>(st, a, grid);
    } else {
        launch_rows<1, false>(st, a, grid);
    }
}
