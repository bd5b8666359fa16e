/* ops/kernels/cuda/delta_prepare.cu: what of a chunk of the gated delta rule does not need the state before
 * it, for all chunks side by side (see delta.cuh): with A = (I + L)^-1
 *
 *     W = A (beta 2^G K),  U = A (beta V)        so that what the chunk's tokens write is U - W S
 *
 * A is inverted by blocks of 16: those of the diagonal in fp32, a column a lane; the others from them by
 * products of tf32, A_ij = -A_ii sum over j <= k < i of L_ik A_kj. A block of 128 threads has a chunk and a
 * value head. Bound by memory: K and V are read, W and U written, once.
 */
#include "ops/kernels/cuda/delta.cuh"

using namespace gr_delta;

namespace
{

constexpr int LW = CHUNK + PAD, B = 16;

template <int DP> struct shape {
    static constexpr int K = 0, A = K + CHUNK * DP * 2, L = A + CHUNK * LW * 4, SHARED = L + CHUNK * LW * 4;
    static_assert(CHUNK * DP * 2 <= CHUNK * LW * 4, "V takes the place of L");
};

/* Row r of the inverse of I + a block below its diagonal, of the lane's column. */
__device__ inline void invert_diagonal(const float *l, float *a)
{
    const int col = threadIdx.x % B;
    float y[B];
#pragma unroll
    for (int r = 0; r < B; r++) {
        y[r] = r == col ? 1 : 0;
#pragma unroll
        for (int s = 0; s < r; s++) y[r] = fmaf(-l[r * LW + s], y[s], y[r]);
    }
    if (threadIdx.x % 32 >= B) return;
#pragma unroll
    for (int r = 0; r < B; r++) a[r * LW + col] = y[r];
}

__device__ inline void mma_tf32(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline uint32_t tf32_of(float x)
{
    uint32_t y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

/* c [16, 16] += x y, blocks of 16 in shared memory. */
__device__ inline void multiply_blocks(float (*c)[4], const float *x, const float *y)
{
    const int row = threadIdx.x % 32 / 4, col = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < B; k += 8) {
        const uint32_t a[4] = {tf32_of(x[row * LW + k + col]), tf32_of(x[(row + 8) * LW + k + col]),
                               tf32_of(x[row * LW + k + col + 4]), tf32_of(x[(row + 8) * LW + k + col + 4])};
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const uint32_t b[2] = {tf32_of(y[(k + col) * LW + n * 8 + row]),
                                   tf32_of(y[(k + col + 4) * LW + n * 8 + row])};
            mma_tf32(c[n], a, b);
        }
    }
}

__device__ inline void put_block(float *to, const float (*c)[4], float sign)
{
    const int row = threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *reinterpret_cast<float2 *>(to + (row + 8 * h) * LW + n * 8 + col) =
                make_float2(sign * c[n][2 * h], sign * c[n][2 * h + 1]);
}

/* a [64, 64]: the inverse of I + l, at and below the diagonal of blocks. By all threads. */
__device__ inline void invert(const float *l, float *a)
{
    const int warp = threadIdx.x / 32;
    const auto at = [&](int i, int j) { return i * B * LW + j * B; };
    invert_diagonal(l + at(warp, warp), a + at(warp, warp));
#pragma unroll 1
    for (int apart = 1; apart < CHUNK / B; apart++) {
        const int i = warp + apart, j = warp;
        __syncthreads();
        if (i >= CHUNK / B) continue;
        float c[2][4];
        clear<2>(c);
        for (int k = j; k < i; k++) multiply_blocks(c, l + at(i, k), a + at(k, j));
        put_block(a + at(i, j), c, 1);
        __syncwarp();
        clear<2>(c);
        multiply_blocks(c, a + at(i, i), a + at(i, j));
        __syncwarp();
        put_block(a + at(i, j), c, -1);
    }
    __syncthreads();
}

/* Fragment A: rows [row, row + 16) of a, columns [16 k, 16 k + 16), each column times its factor. */
template <typename F>
__device__ inline void load_scaled(uint32_t f[4], const float *a, int row, int k, F factor)
{
    const int i = row + threadIdx.x % 32 / 4, j = k * 16 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int col = j + e / 2 * 8;
        const float2 x = *reinterpret_cast<const float2 *>(a + (i + e % 2 * 8) * LW + col);
        f[e] = pack(x.x * factor(col), x.y * factor(col + 1));
    }
}

/* Rows of this warp, A times factors times a tile, to rows of memory. */
template <int DP, typename F, typename R>
__device__ inline void store_product(const float *a, uint32_t tile, uint32_t d, F factor, R row_of)
{
    const int warp = threadIdx.x / 32;
    float c[DP / 8][4];
    clear<DP / 8>(c);
#pragma unroll 1
    for (int k = 0; k <= warp; k++) { /* above the diagonal A is zero */
        uint32_t f[4];
        load_scaled(f, a, warp * 16, k, factor);
        mma_plain<DP, DP>(c, f, tile, k * 16, 0);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint16_t *to = row_of(warp * 16 + threadIdx.x % 32 / 4 + 8 * half);
        if (to) store_row<DP / 8>(to, c, half, 1, 0, d);
    }
}

/* Grid: value heads of chunks. */
template <int DP> __global__ void __launch_bounds__(128, 4) prepare_kernel(gr_cu_delta a, uint16_t *inverse)
{
    using S = shape<DP>;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ float sums[CHUNK], beta[CHUNK];
    const uint32_t head = blockIdx.x % a.value_heads, chunk = blockIdx.x / a.value_heads;
    const piece p(a, chunk);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (!p.n) return;
    const span at(a, p.seq, head);
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(shared), t0 = p.t0;
    const auto in = [&](int r) { return t0 + r < at.n; };
    float *A = reinterpret_cast<float *>(shared + S::A), *L = reinterpret_cast<float *>(shared + S::L);
    fill<DP, CHUNK>(base + S::K, a.qkv, a.dk, [&](int r) { return in(r) ? at.k(a, t0 + r) : nullptr; });
    load_gates(a, at, head, t0, sums, beta);
    copies_done();
    __syncthreads();
    sum_rates(sums);
    __syncthreads();

    float c[CHUNK / 8][4];
    clear<CHUNK / 8>(c);
#pragma unroll
    for (int k = 0; k < DP / 16; k++) {
        uint32_t f[4];
        load_a<DP>(f, base + S::K, warp * 16, k);
        mma_turned<DP, CHUNK>(c, f, base + S::K, k);
    }
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t i = warp * 16 + lane / 4 + 8 * half, j = n * 8 + lane % 4 * 2;
            *reinterpret_cast<float2 *>(L + i * LW + j) =
                make_float2(j < i ? beta[i] * c[n][2 * half] * exp2_of(sums[i] - sums[j]) : 0,
                            j + 1 < i ? beta[i] * c[n][2 * half + 1] * exp2_of(sums[i] - sums[j + 1]) : 0);
        }
    __syncthreads();
    invert(L, A);
    fill<DP, CHUNK>(base + S::L, a.qkv, a.dv, [&](int r) { return in(r) ? at.v(a, t0 + r, head) : nullptr; });
    const size_t kept = (size_t)chunk * a.value_heads + head;
    if (threadIdx.x < CHUNK) a.sums[kept * CHUNK + threadIdx.x] = sums[threadIdx.x];
    store_product<DP>(
        A, base + S::K, a.dk, [&](int j) { return beta[j] * exp2_of(sums[j]); },
        [&](int r) { return in(r) ? a.w + at.at(a, t0 + r, head, a.dk) : nullptr; });
    if (inverse)
        for (uint32_t i = threadIdx.x; i < CHUNK * CHUNK / 2; i += 128) {
            const uint32_t row = i / (CHUNK / 2), col = i % (CHUNK / 2) * 2;
            const bool below = col / B <= row / B;
            *reinterpret_cast<uint32_t *>(inverse + (kept * CHUNK + row) * CHUNK + col) =
                below ? pack(A[row * LW + col], A[row * LW + col + 1]) : 0;
        }
    copies_done();
    __syncthreads();
    store_product<DP>(
        A, base + S::L, a.dv, [&](int j) { return beta[j]; },
        [&](int r) { return in(r) ? a.u + at.at(a, t0 + r, head, a.dv) : nullptr; });
}

template <int DP> void launch(cudaStream_t st, const gr_cu_delta *a, uint16_t *inverse)
{
    constexpr int shared = shape<DP>::SHARED;
    cudaFuncSetAttribute(prepare_kernel<DP>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    const uint32_t chunks = gr_cu_delta_chunks(a->n_tokens, a->n_seqs);
    prepare_kernel<DP><<<chunks * a->value_heads, 128, shared, st>>>(*a, inverse);
}

} /* namespace */

void gr_cu_delta_prepare(cudaStream_t st, const gr_cu_delta *a, gr_bf16 *inverse)
{
    if (a->dk <= 64 && a->dv <= 64)
        launch<64>(st, a, inverse);
    else
        launch<128>(st, a, inverse);
}
