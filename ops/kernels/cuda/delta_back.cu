/* ops/kernels/cuda/delta_back.cu: gradients of the gated delta rule within a chunk, all chunks side by side
 * (see delta.cuh): the states before them, what their tokens write (U), the gradients of the states behind
 * them (D) and those of U are there already (gr_cu_delta_states, gr_cu_delta_states_backward).
 *
 * A block of 512 threads has a chunk and a value head: a warp 16 rows of a product and a quarter of its
 * columns. With e = 2^G, r = 2^(G_last - G), X = V - e K S:
 *
 *     dR = A^T dU,   dV = beta dR,   Y = -beta e dR
 *     dL = -dR U^T (below the diagonal),   dP = dO U^T (to it),   F = beta 2^(Gi - Gj) dL
 *     H = 2^(Gi - Gj) dP,   dQ = e dO S^T + H K,   dK = r U D^T + Y S^T + (F + F^T) K + H^T Q
 *     dbeta_i = dR_i . X_i + sum of dL_ij L_ij / beta_i
 *
 * and a rate's gradient is the sum, over it and later tokens, of what each factor 2^G gets. Every sum has one
 * order.
 */
#include "ops/kernels/cuda/delta.cuh"

using namespace gr_delta;

namespace
{

constexpr int N_THREADS = 512, WARPS = 16, PARTS = 4; /* of columns */

template <int DP> struct shape {
    static constexpr int TILE = CHUNK * DP * 2, SQUARE = CHUNK * CHUNK * 2;
    /* DR: dU until it is there; F: A until it is there */
    static constexpr int Q = 0, K = Q + TILE, DO = K + TILE, U = DO + TILE, DR = U + TILE, V = DR + TILE,
                         S = V + TILE, D = S + DP * DP * 2, F = D + DP * DP * 2, H = F + SQUARE,
                         SHARED = H + SQUARE;
    static constexpr int COLS = DP / PARTS; /* of a [64][DP] product that a warp has */
};

/* Sums that warps leave to each other. */
struct row_sums {
    float beta[PARTS][CHUNK], row[PARTS][CHUNK], q[PARTS][CHUNK], z[PARTS][CHUNK], u[PARTS][CHUNK],
        v[PARTS][CHUNK]; /* by parts of columns */
    float col[4][CHUNK]; /* by rows */

    __device__ static float all(const float (*x)[CHUNK], uint32_t i)
    {
        return x[0][i] + x[1][i] + x[2][i] + x[3][i];
    }
};

/* Row `half` of an accumulator of N columns from `col` on, times the same of a tile; summed over the row's
 * quad. */
template <int DP, int N>
__device__ inline float dot_rows(const float (*c)[4], int half, unsigned char *tile, int row, int col)
{
    float sum = 0;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        const uint32_t x = *pair_at<DP>(tile, row, col + n * 8 + threadIdx.x % 4 * 2);
        sum = fmaf(c[n][2 * half], low_of(x), sum);
        sum = fmaf(c[n][2 * half + 1], high_of(x), sum);
    }
    return quad_sum(sum);
}

template <int DP> struct walk {
    using S = shape<DP>;
    const gr_cu_delta &a;
    const gr_cu_delta_back &b;
    unsigned char *shared;
    const float *sums, *beta;
    row_sums *part;
    uint32_t base, lane, warp, rows, cols; /* this warp's 16 rows, and which part of the columns */

    __device__ walk(const gr_cu_delta &a_, const gr_cu_delta_back &b_, unsigned char *s, const float *g,
                    const float *be, row_sums *p)
        : a(a_), b(b_), shared(s), sums(g), beta(be), part(p), base((uint32_t)__cvta_generic_to_shared(s)),
          lane(threadIdx.x % 32), warp(threadIdx.x / 32), rows(warp % 4 * 16), cols(warp / 4)
    {
    }
    __device__ uint32_t row(int h) const
    {
        return rows + lane / 4 + 8 * h;
    }
    __device__ float between(uint32_t i, uint32_t j) const
    {
        return exp2_of(sums[i] - sums[j]);
    }
    __device__ float left(uint32_t i) const
    {
        return exp2_of(sums[CHUNK - 1] - sums[i]);
    }
    /* dR: to its tile, dV to memory, and its products with V. By all threads. */
    __device__ void values(const span &at, uint32_t t0, uint32_t head) const
    {
        float c[S::COLS / 8][4];
        clear<S::COLS / 8>(c);
#pragma unroll 1
        for (int k = rows / 16; k < CHUNK / 16; k++) { /* above the diagonal A is zero */
            uint32_t f[4];
            load_a_turned<CHUNK>(f, base + S::F, k * 16, rows);
            mma_plain<DP, S::COLS>(c, f, base + S::DR, k * 16, cols * S::COLS / 8);
        }
        __syncthreads(); /* everyone has read dU */
        each_row([&](int h, uint32_t i) {
#pragma unroll
            for (int n = 0; n < S::COLS / 8; n++)
                *pair_at<DP>(shared + S::DR, i, cols * S::COLS + n * 8 + lane % 4 * 2) =
                    pack(c[n][2 * h], c[n][2 * h + 1]);
            const float dot = dot_rows<DP, S::COLS>(c, h, shared + S::V, i, cols * S::COLS);
            if (lane % 4 == 0) part->v[cols][i] = dot;
            if (t0 + i < at.n)
                store_row<S::COLS / 8>(b.dv + at.at(a, t0 + i, head, a.dv), c, h, beta[i], cols * S::COLS,
                                       a.dv);
        });
    }

    /* c += rows of one tile times those of another: 16 columns of [64][64]. */
    __device__ void square(float (*c)[4], uint32_t x, uint32_t y) const
    {
#pragma unroll
        for (int k = 0; k < DP / 16; k++) {
            uint32_t f[4];
            load_a<DP>(f, base + x, rows, k);
            mma_turned<DP, 16>(c, f, base + y + cols * 16 * DP * 2, k);
        }
    }

    /* L, P, dL and dP; of them F, H and the sums that beta and rates get. */
    __device__ void squares() const
    {
        float L[2][4], P[2][4], dL[2][4], dP[2][4], of_col[2][2] = {};
        clear<2>(L);
        clear<2>(P);
        clear<2>(dL);
        clear<2>(dP);
        square(P, S::Q, S::K);
        square(L, S::K, S::K);
        square(dL, S::DR, S::U);
        square(dP, S::DO, S::U);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t i = row(h);
            float of_beta = 0, of_rate = 0;
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const uint32_t j0 = cols * 16 + n * 8 + lane % 4 * 2;
                float f[2], d[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int at = 2 * h + e;
                    const uint32_t j = j0 + e;
                    const float grown = j <= i ? between(i, j) : 0, dl = j < i ? -dL[n][at] : 0,
                                dp = j <= i ? dP[n][at] : 0, by_L = dl * beta[i] * L[n][at] * grown,
                                both = fmaf(dp, P[n][at] * grown, by_L);
                    of_beta += by_L;
                    of_rate += both;
                    of_col[n][e] += both;
                    f[e] = beta[i] * grown * dl;
                    d[e] = grown * dp;
                }
                *pair_at<CHUNK>(shared + S::F, i, j0) = pack(f[0], f[1]);
                *pair_at<CHUNK>(shared + S::H, i, j0) = pack(d[0], d[1]);
            }
            of_beta = quad_sum(of_beta);
            of_rate = quad_sum(of_rate);
            if (lane % 4 == 0) {
                part->beta[cols][i] = of_beta;
                part->row[cols][i] = of_rate;
            }
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float sum = of_col[n][e];
#pragma unroll
                for (int o = 4; o < 32; o *= 2) sum += __shfl_xor_sync(0xffffffff, sum, o);
                if (lane < 4) part->col[warp % 4][cols * 16 + n * 8 + lane * 2 + e] = sum;
            }
    }

    template <typename F> __device__ void each_row(F use) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++) use(h, row(h));
    }

    __device__ void store(const float (*c)[4], uint16_t *to, const span &at, uint32_t t0, uint32_t head) const
    {
        each_row([&](int h, uint32_t i) {
            if (t0 + i < at.n)
                store_row<S::COLS / 8>(to + at.at(a, t0 + i, head, a.dk), c, h, 1, cols * S::COLS, a.dk);
        });
    }

    __device__ void queries(const span &at, uint32_t t0, uint32_t head) const
    {
        float c[S::COLS / 8][4];
        clear<S::COLS / 8>(c);
#pragma unroll
        for (int k = 0; k < DP / 16; k++) {
            uint32_t f[4];
            load_a<DP>(f, base + S::DO, rows, k);
            mma_turned<DP, S::COLS>(c, f, base + S::S + cols * S::COLS * DP * 2, k);
        }
        each_row([&](int h, uint32_t i) {
            const float grown = exp2_of(sums[i]);
#pragma unroll
            for (int n = 0; n < S::COLS / 8; n++) c[n][2 * h] *= grown, c[n][2 * h + 1] *= grown;
            const float dot = dot_rows<DP, S::COLS>(c, h, shared + S::Q, i, cols * S::COLS);
            if (lane % 4 == 0) part->q[cols][i] = dot;
        });
#pragma unroll
        for (int k = 0; k < CHUNK / 16; k++) {
            uint32_t f[4];
            load_a<CHUNK>(f, base + S::H, rows, k);
            mma_plain<DP, S::COLS>(c, f, base + S::K, k * 16, cols * S::COLS / 8);
        }
        store(c, b.dq, at, t0, head);
    }

    __device__ void keys(const span &at, uint32_t t0, uint32_t head) const
    {
        float c[S::COLS / 8][4], z[S::COLS / 8][4];
        clear<S::COLS / 8>(c);
        clear<S::COLS / 8>(z);
#pragma unroll
        for (int k = 0; k < DP / 16; k++) {
            uint32_t f[4];
            load_a<DP>(f, base + S::DR, rows, k);
            mma_turned<DP, S::COLS>(z, f, base + S::S + cols * S::COLS * DP * 2, k);
            load_a<DP>(f, base + S::U, rows, k);
            mma_turned<DP, S::COLS>(c, f, base + S::D + cols * S::COLS * DP * 2, k);
        }
        each_row([&](int h, uint32_t i) {
            const float keep = left(i), of_z = -beta[i] * exp2_of(sums[i]);
            const float zk = dot_rows<DP, S::COLS>(z, h, shared + S::K, i, cols * S::COLS);
            const float uk = dot_rows<DP, S::COLS>(c, h, shared + S::K, i, cols * S::COLS);
            if (lane % 4 == 0) {
                part->z[cols][i] = zk;
                part->u[cols][i] = uk * keep;
            }
#pragma unroll
            for (int n = 0; n < S::COLS / 8; n++)
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; e++) c[n][e] = fmaf(c[n][e], keep, z[n][e] * of_z);
        });
#pragma unroll
        for (int k = 0; k < CHUNK / 16; k++) {
            uint32_t f[4];
            load_a<CHUNK>(f, base + S::F, rows, k);
            mma_plain<DP, S::COLS>(c, f, base + S::K, k * 16, cols * S::COLS / 8);
            load_a_turned<CHUNK>(f, base + S::F, k * 16, rows);
            mma_plain<DP, S::COLS>(c, f, base + S::K, k * 16, cols * S::COLS / 8);
            load_a_turned<CHUNK>(f, base + S::H, k * 16, rows);
            mma_plain<DP, S::COLS>(c, f, base + S::Q, k * 16, cols * S::COLS / 8);
        }
        store(c, b.dk, at, t0, head);
    }
};

/* This thread's part of the sum of D * S. */
template <int DP> __device__ inline float dot_states(unsigned char *shared)
{
    using S = shape<DP>;
    float sum = 0;
    for (uint32_t i = threadIdx.x; i < DP * DP / 8; i += N_THREADS) {
        const uint4 x = *reinterpret_cast<const uint4 *>(shared + S::S + i * 16),
                    y = *reinterpret_cast<const uint4 *>(shared + S::D + i * 16);
        sum = fmaf(low_of(x.x), low_of(y.x), fmaf(high_of(x.x), high_of(y.x), sum));
        sum = fmaf(low_of(x.y), low_of(y.y), fmaf(high_of(x.y), high_of(y.y), sum));
        sum = fmaf(low_of(x.z), low_of(y.z), fmaf(high_of(x.z), high_of(y.z), sum));
        sum = fmaf(low_of(x.w), low_of(y.w), fmaf(high_of(x.w), high_of(y.w), sum));
    }
    return sum;
}

/* Grid: value heads of chunks. */
template <int DP>
__global__ void __launch_bounds__(N_THREADS, 1) back_kernel(gr_cu_delta a, gr_cu_delta_back b)
{
    using S = shape<DP>;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ float sums[CHUNK], beta[CHUNK], of_sums[CHUNK], of_ends[CHUNK], of_state[WARPS];
    __shared__ row_sums part;
    const uint32_t head = blockIdx.x % a.value_heads, chunk = blockIdx.x / a.value_heads, tid = threadIdx.x;
    const piece p(a, chunk);
    if (!p.n) return;
    const uint32_t t0 = p.t0;
    const size_t kept = (size_t)chunk * a.value_heads + head;
    const span at(a, p.seq, head);
    const walk<DP> w(a, b, shared, sums, beta, &part);
    const uint16_t *state = b.states + kept * a.dk * a.dv, *d_state = b.d_states + kept * a.dk * a.dv;
    const auto in = [&](int r) { return t0 + r < at.n; };
    const auto fill_values = [&](uint32_t tile, const uint16_t *from) {
        fill<DP, CHUNK, N_THREADS>(w.base + tile, from, a.dv, [&](int r) {
            return in(r) ? from + at.at(a, t0 + r, head, a.dv) : nullptr;
        });
    };
    const auto fill_state = [&](uint32_t tile, const uint16_t *from) {
        fill<DP, DP, N_THREADS>(w.base + tile, from, a.dv,
                                [&](int r) { return r < (int)a.dk ? from + (size_t)r * a.dv : nullptr; });
    };
    fill<DP, CHUNK, N_THREADS>(w.base + S::Q, a.qkv, a.dk,
                               [&](int r) { return in(r) ? at.q(a, t0 + r) : nullptr; });
    fill<DP, CHUNK, N_THREADS>(w.base + S::K, a.qkv, a.dk,
                               [&](int r) { return in(r) ? at.k(a, t0 + r) : nullptr; });
    fill<CHUNK, CHUNK, N_THREADS>(w.base + S::F, b.inverse, CHUNK,
                                  [&](int r) { return b.inverse + (kept * CHUNK + r) * CHUNK; });
    fill_values(S::DR, b.dv);
    copies_commit();
    fill<DP, CHUNK, N_THREADS>(w.base + S::V, a.qkv, a.dv,
                               [&](int r) { return in(r) ? at.v(a, t0 + r, head) : nullptr; });
    fill_values(S::U, a.u);
    fill_values(S::DO, b.d_mixed);
    copies_commit();
    fill_state(S::S, state);
    fill_state(S::D, d_state);
    copies_commit();
    load_gates(a, at, head, t0, sums, beta);
    copies_left<2>();
    __syncthreads();
    sum_rates(sums);
    __syncthreads();
    copies_left<1>();
    __syncthreads();
    w.values(at, t0, head);
    __syncthreads();
    w.squares();
    copies_left<0>();
    __syncthreads();
    w.queries(at, t0, head);
    w.keys(at, t0, head);
    float of_decay = dot_states<DP>(shared) * exp2_of(sums[CHUNK - 1]);
    for (int o = 16; o; o /= 2) of_decay += __shfl_xor_sync(0xffffffff, of_decay, o);
    if (tid % 32 == 0) of_state[tid / 32] = of_decay;
    __syncthreads();
    if (tid < CHUNK) {
        const float z = row_sums::all(part.z, tid), u = row_sums::all(part.u, tid);
        const float grown = exp2_of(sums[tid]), of_L = row_sums::all(part.beta, tid);
        of_ends[tid] = u;
        of_sums[tid] = row_sums::all(part.row, tid) - row_sums::all(part.col, tid) +
                       row_sums::all(part.q, tid) - beta[tid] * grown * z - u;
        if (in(tid))
            b.d_beta[at.at(a, t0 + tid, head, 1)] =
                row_sums::all(part.v, tid) - grown * z + (beta[tid] > 0 ? __fdividef(of_L, beta[tid]) : 0);
    }
    __syncthreads();
    if (tid >= CHUNK || !in(tid)) return;
    float sum = 0; /* later tokens' sums hold this rate; the state's, all of the chunk's */
    for (uint32_t i = CHUNK; i-- > tid;) sum += of_sums[i];
    for (int i = 0; i < WARPS; i++) sum += of_state[i];
    for (uint32_t i = 0; i < CHUNK; i++) sum += of_ends[i];
    b.d_rate[at.at(a, t0 + tid, head, 1)] = sum;
}

template <int DP> void launch(cudaStream_t st, const gr_cu_delta *a, const gr_cu_delta_back *b)
{
    constexpr int shared = shape<DP>::SHARED;
    cudaFuncSetAttribute(back_kernel<DP>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    back_kernel<DP>
        <<<gr_cu_delta_chunks(a->n_tokens, a->n_seqs) * a->value_heads, N_THREADS, shared, st>>>(*a, *b);
}

} /* namespace */

void gr_cu_delta_chunked_backward(cudaStream_t st, const gr_cu_delta *a, const gr_cu_delta_back *b)
{
    if (a->dk <= 64 && a->dv <= 64)
        launch<64>(st, a, b);
    else
        launch<128>(st, a, b);
}
