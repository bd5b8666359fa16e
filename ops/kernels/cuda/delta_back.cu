/* ops/kernels/cuda/delta_back.cu: the gated delta rule backward, by chunks from the last to the first (see
 * delta.cuh).
 *
 * A block of 256 threads has one value head of one sequence: the gradient D of its state in registers (fp32,
 * a copy in bf16 in shared memory), the states before each chunk and what tokens wrote from
 * gr_cu_delta_states. With e = 2^G, r = 2^(G_last - G), X = V - e K S:
 *
 *     dU = P^T dO + r K D,   dR = (I + L^T)^-1 dU,   dV = beta dR,   Y = -beta e dR
 *     dL = -dR U^T (below the diagonal),   dP = dO U^T (to it),   F = beta 2^(Gi - Gj) dL,   H = 2^(Gi - Gj)
 * dP dQ = e dO S^T + H K dK = r U D^T + Y S^T + (F + F^T) K + H^T Q dbeta_i = dR_i . X_i + sum of dL_ij L_ij
 * / beta_i D before = 2^(G_last) D + Q^T (e dO) + K^T Y
 *
 * and a rate's gradient is the sum, over it and later tokens, of what each factor 2^G gets. Every sum has one
 * order.
 */
#include "ops/kernels/cuda/delta.cuh"

using namespace gr_delta;

namespace
{

constexpr int N_THREADS = 256, WARPS = 8;

template <int DP> struct shape {
    static constexpr int TILE = CHUNK * DP * 2, SQUARE = CHUNK * CHUNK * 2;
    static constexpr int Q = 0, K = Q + TILE, DO = K + TILE, U = DO + TILE, DR = U + TILE, S = DR + TILE,
                         D = S + DP * DP * 2, P = D + DP * DP * 2, F = P + SQUARE, H = F + SQUARE,
                         X = H + SQUARE, L = X + CHUNK * (DP + PAD) * 4,
                         SHARED = L + CHUNK * (CHUNK + PAD) * 4;
    static constexpr int COLS = DP / 2; /* of a [64][DP] product that a warp has */
};

/* Sums that warps leave to each other. */
struct row_sums {
    float beta[2][CHUNK], row[2][CHUNK], col[4][CHUNK], q[2][CHUNK], z[2][CHUNK], u[2][CHUNK], rv[CHUNK];
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

/* Rows of a tile, each times its factor, in place. */
template <int DP, typename F> __device__ inline void scale_rows(unsigned char *tile, F factor)
{
    for (uint32_t i = threadIdx.x; i < CHUNK * DP / 2; i += N_THREADS) {
        const int row = i / (DP / 2), col = i % (DP / 2) * 2;
        uint32_t *at = pair_at<DP>(tile, row, col);
        *at = pack(low_of(*at) * factor(row), high_of(*at) * factor(row));
    }
}

template <int DP> struct walk {
    using S = shape<DP>;
    const gr_cu_delta &a;
    const gr_cu_delta_back &b;
    unsigned char *shared;
    const float *sums, *beta;
    row_sums *part;
    uint32_t base, lane, warp, rows, half; /* this warp's 16 rows, and which half of the columns */

    __device__ walk(const gr_cu_delta &a_, const gr_cu_delta_back &b_, unsigned char *s, const float *g,
                    const float *be, row_sums *p)
        : a(a_), b(b_), shared(s), sums(g), beta(be), part(p), base((uint32_t)__cvta_generic_to_shared(s)),
          lane(threadIdx.x % 32), warp(threadIdx.x / 32), rows(warp % 4 * 16), half(warp / 4)
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
    __device__ float *L() const
    {
        return reinterpret_cast<float *>(shared + S::L);
    }
    __device__ float *x() const
    {
        return reinterpret_cast<float *>(shared + S::X);
    }

    /* P, and K K^T times decays in L: 32 columns a warp. */
    __device__ void products() const
    {
        float p[4][4], l[4][4];
        clear<4>(p);
        clear<4>(l);
#pragma unroll
        for (int k = 0; k < DP / 16; k++) {
            uint32_t q[4], f[4];
            load_a<DP>(q, base + S::Q, rows, k);
            load_a<DP>(f, base + S::K, rows, k);
            mma_turned<DP, 32>(p, q, base + S::K + half * 32 * DP * 2, k);
            mma_turned<DP, 32>(l, f, base + S::K + half * 32 * DP * 2, k);
        }
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t i = row(h), j = half * 32 + n * 8 + lane % 4 * 2;
                *pair_at<CHUNK>(shared + S::P, i, j) =
                    pack(j <= i ? p[n][2 * h] * between(i, j) : 0,
                         j + 1 <= i ? p[n][2 * h + 1] * between(i, j + 1) : 0);
                *reinterpret_cast<float2 *>(L() + i * (CHUNK + PAD) + j) =
                    make_float2(j < i ? beta[i] * l[n][2 * h] * between(i, j) : 0,
                                j + 1 < i ? beta[i] * l[n][2 * h + 1] * between(i, j + 1) : 0);
            }
    }

    /* dU to x. */
    __device__ void written() const
    {
        float c[S::COLS / 8][4];
        clear<S::COLS / 8>(c);
#pragma unroll
        for (int k = 0; k < DP / 16; k++) {
            uint32_t f[4];
            load_a<DP>(f, base + S::K, rows, k);
            mma_plain<DP, S::COLS>(c, f, base + S::D, k * 16, half * S::COLS / 8);
        }
#pragma unroll
        for (int n = 0; n < S::COLS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) c[n][e] *= left(row(e / 2));
#pragma unroll
        for (int k = 0; k < CHUNK / 16; k++) {
            uint32_t f[4];
            load_a_turned<CHUNK>(f, base + S::P, k * 16, rows);
            mma_plain<DP, S::COLS>(c, f, base + S::DO, k * 16, half * S::COLS / 8);
        }
#pragma unroll
        for (int n = 0; n < S::COLS / 8; n++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *reinterpret_cast<float2 *>(x() + row(h) * (DP + PAD) + half * S::COLS + n * 8 +
                                            lane % 4 * 2) = make_float2(c[n][2 * h], c[n][2 * h + 1]);
    }

    /* dR of x: to its tile, dV to memory, and its products with V. A warp has eight rows. */
    __device__ void values(const span &at, uint32_t t0, uint32_t head) const
    {
        for (uint32_t i = warp * 8; i < warp * 8 + 8; i++) {
            const bool in = t0 + i < at.n;
            float sum = 0;
            for (uint32_t col = lane * 2; col < DP; col += 64) {
                const float low = x()[i * (DP + PAD) + col], high = x()[i * (DP + PAD) + col + 1];
                *pair_at<DP>(shared + S::DR, i, col) = pack(low, high);
                if (!in || col >= a.dv) continue;
                const uint32_t v = *reinterpret_cast<const uint32_t *>(at.v(a, t0 + i, head) + col);
                sum = fmaf(low, low_of(v), fmaf(high, high_of(v), sum));
                *reinterpret_cast<uint32_t *>(b.dv + at.at(a, t0 + i, head, a.dv) + col) =
                    pack(beta[i] * low, beta[i] * high);
            }
            for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(0xffffffff, sum, o);
            if (lane == 0) part->rv[i] = sum;
        }
    }

    /* dL and dP, and of them F, H and the sums that beta and rates get. */
    __device__ void squares() const
    {
        float l[4][4], p[4][4], col[4][2] = {};
        clear<4>(l);
        clear<4>(p);
#pragma unroll
        for (int k = 0; k < DP / 16; k++) {
            uint32_t f[4];
            load_a<DP>(f, base + S::DR, rows, k);
            mma_turned<DP, 32>(l, f, base + S::U + half * 32 * DP * 2, k);
            load_a<DP>(f, base + S::DO, rows, k);
            mma_turned<DP, 32>(p, f, base + S::U + half * 32 * DP * 2, k);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t i = row(h);
            float of_beta = 0, of_rate = 0;
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const uint32_t j = half * 32 + n * 8 + lane % 4 * 2,
                               pair = *pair_at<CHUNK>(shared + S::P, i, j);
                float f[2], d[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float L_ij = L()[i * (CHUNK + PAD) + j + e], dl = j + e < i ? -l[n][2 * h + e] : 0,
                                dp = j + e <= i ? p[n][2 * h + e] : 0,
                                grown = j + e <= i ? between(i, j + e) : 0;
                    const float both = fmaf(dl, L_ij, dp * (e ? high_of(pair) : low_of(pair)));
                    of_beta = fmaf(dl, L_ij, of_beta);
                    of_rate += both;
                    col[n][e] += both;
                    f[e] = beta[i] * grown * dl;
                    d[e] = grown * dp;
                }
                *pair_at<CHUNK>(shared + S::F, i, j) = pack(f[0], f[1]);
                *pair_at<CHUNK>(shared + S::H, i, j) = pack(d[0], d[1]);
            }
            of_beta = quad_sum(of_beta);
            of_rate = quad_sum(of_rate);
            if (lane % 4 == 0) {
                part->beta[half][i] = of_beta;
                part->row[half][i] = of_rate;
            }
        }
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float sum = col[n][e];
#pragma unroll
                for (int o = 4; o < 32; o *= 2) sum += __shfl_xor_sync(0xffffffff, sum, o);
                if (lane < 4) part->col[warp % 4][half * 32 + n * 8 + lane * 2 + e] = sum;
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
                store_row<S::COLS / 8>(to + at.at(a, t0 + i, head, a.dk), c, h, 1, half * S::COLS, a.dk);
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
            mma_turned<DP, S::COLS>(c, f, base + S::S + half * S::COLS * DP * 2, k);
        }
        each_row([&](int h, uint32_t i) {
            const float grown = exp2_of(sums[i]);
#pragma unroll
            for (int n = 0; n < S::COLS / 8; n++) c[n][2 * h] *= grown, c[n][2 * h + 1] *= grown;
            const float dot = dot_rows<DP, S::COLS>(c, h, shared + S::Q, i, half * S::COLS);
            if (lane % 4 == 0) part->q[half][i] = dot;
        });
#pragma unroll
        for (int k = 0; k < CHUNK / 16; k++) {
            uint32_t f[4];
            load_a<CHUNK>(f, base + S::H, rows, k);
            mma_plain<DP, S::COLS>(c, f, base + S::K, k * 16, half * S::COLS / 8);
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
            mma_turned<DP, S::COLS>(z, f, base + S::S + half * S::COLS * DP * 2, k);
            load_a<DP>(f, base + S::U, rows, k);
            mma_turned<DP, S::COLS>(c, f, base + S::D + half * S::COLS * DP * 2, k);
        }
        each_row([&](int h, uint32_t i) {
            const float keep = left(i), of_z = -beta[i] * exp2_of(sums[i]);
            const float zk = dot_rows<DP, S::COLS>(z, h, shared + S::K, i, half * S::COLS);
            const float uk = dot_rows<DP, S::COLS>(c, h, shared + S::K, i, half * S::COLS);
            if (lane % 4 == 0) {
                part->z[half][i] = zk;
                part->u[half][i] = uk * keep;
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
            mma_plain<DP, S::COLS>(c, f, base + S::K, k * 16, half * S::COLS / 8);
            load_a_turned<CHUNK>(f, base + S::F, k * 16, rows);
            mma_plain<DP, S::COLS>(c, f, base + S::K, k * 16, half * S::COLS / 8);
            load_a_turned<CHUNK>(f, base + S::H, k * 16, rows);
            mma_plain<DP, S::COLS>(c, f, base + S::Q, k * 16, half * S::COLS / 8);
        }
        store(c, b.dk, at, t0, head);
    }
};

/* D's fragments: 16 rows a warp (DP 128) or, of 64, four of the warps have two column halves. */
template <int DP> struct gradient {
    static constexpr int N = DP == 128 ? 16 : 4; /* tiles of 8 columns */
    float d[N][4];
    uint32_t row0, col0;

    __device__ gradient()
    {
        const uint32_t warp = threadIdx.x / 32;
        row0 = (DP == 128 ? warp : warp % 4) * 16;
        col0 = DP == 128 ? 0 : warp / 4 * 32;
        clear<N>(d);
    }
    /* D times decay plus products of tiles; returns this thread's part of the sum of D * S, as D was. */
    __device__ float pass(unsigned char *shared, uint32_t base, float decay)
    {
        using S = shape<DP>;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t s = *pair_at<DP>(shared + S::S, row0 + threadIdx.x % 32 / 4 + 8 * h,
                                                col0 + n * 8 + threadIdx.x % 4 * 2);
                sum = fmaf(d[n][2 * h], low_of(s), fmaf(d[n][2 * h + 1], high_of(s), sum));
                d[n][2 * h] *= decay;
                d[n][2 * h + 1] *= decay;
            }
#pragma unroll
        for (int k = 0; k < CHUNK / 16; k++) {
            uint32_t f[4];
            load_a_turned<DP>(f, base + S::Q, k * 16, row0);
            mma_plain<DP, N * 8>(d, f, base + S::DO, k * 16, col0 / 8);
            load_a_turned<DP>(f, base + S::K, k * 16, row0);
            mma_plain<DP, N * 8>(d, f, base + S::DR, k * 16, col0 / 8);
        }
        return sum;
    }
    __device__ void share(unsigned char *tile) const
    {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *pair_at<DP>(tile, row0 + threadIdx.x % 32 / 4 + 8 * h, col0 + n * 8 + threadIdx.x % 4 * 2) =
                    pack(d[n][2 * h], d[n][2 * h + 1]);
    }
};

/* Grid: value heads, sequences. */
template <int DP>
__global__ void __launch_bounds__(N_THREADS, 1)
    back_kernel(gr_cu_delta a, gr_cu_delta_back b, uint32_t first_seq)
{
    using S = shape<DP>;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ float sums[CHUNK], beta[CHUNK], of_sums[CHUNK], of_state[WARPS];
    __shared__ row_sums part;
    const uint32_t head = blockIdx.x, seq = first_seq + blockIdx.y, tid = threadIdx.x;
    const span at(a, seq, head);
    const walk<DP> w(a, b, shared, sums, beta, &part);
    gradient<DP> g;
    g.share(shared + S::D);

    for (uint32_t chunk = (at.n + CHUNK - 1) / CHUNK; chunk-- > 0;) {
        const uint32_t t0 = chunk * CHUNK;
        const uint16_t *state =
            b.states + ((size_t)(first_chunk(at.first, seq) + chunk) * a.value_heads + head) * a.dk * a.dv;
        const auto in = [&](int r) { return t0 + r < at.n; };
        fill<DP, CHUNK, N_THREADS>(w.base + S::Q, a.qkv, a.dk,
                                   [&](int r) { return in(r) ? at.q(a, t0 + r) : nullptr; });
        fill<DP, CHUNK, N_THREADS>(w.base + S::K, a.qkv, a.dk,
                                   [&](int r) { return in(r) ? at.k(a, t0 + r) : nullptr; });
        fill<DP, CHUNK, N_THREADS>(w.base + S::DO, a.qkv, a.dv, [&](int r) {
            return in(r) ? b.d_mixed + at.at(a, t0 + r, head, a.dv) : nullptr;
        });
        fill<DP, CHUNK, N_THREADS>(w.base + S::U, a.qkv, a.dv, [&](int r) {
            return in(r) ? b.written + at.at(a, t0 + r, head, a.dv) : nullptr;
        });
        fill<DP, DP, N_THREADS>(w.base + S::S, a.qkv, a.dv,
                                [&](int r) { return r < (int)a.dk ? state + (size_t)r * a.dv : nullptr; });
        load_gates(a, at, head, t0, sums, beta);
        copies_done();
        __syncthreads();
        sum_rates(sums);
        __syncthreads();
        w.products();
        __syncthreads();
        w.written();
        __syncthreads();
        solve<DP, N_THREADS / DP, true>(w.x(), w.L());
        w.values(at, t0, head);
        __syncthreads();
        w.squares();
        __syncthreads();
        w.queries(at, t0, head);
        w.keys(at, t0, head);
        __syncthreads();
        const float decay = exp2_of(sums[CHUNK - 1]);
        scale_rows<DP>(shared + S::DO, [&](int r) { return exp2_of(sums[r]); });
        scale_rows<DP>(shared + S::DR, [&](int r) { return -beta[r] * exp2_of(sums[r]); });
        __syncthreads();
        float of_decay = g.pass(shared, w.base, decay) * decay;
        for (int o = 16; o; o /= 2) of_decay += __shfl_xor_sync(0xffffffff, of_decay, o);
        if (tid % 32 == 0) of_state[tid / 32] = of_decay;
        if (tid < CHUNK) {
            const float z = part.z[0][tid] + part.z[1][tid], u = part.u[0][tid] + part.u[1][tid];
            const float grown = exp2_of(sums[tid]);
            const float cols = part.col[0][tid] + part.col[1][tid] + part.col[2][tid] + part.col[3][tid];
            of_sums[tid] = part.row[0][tid] + part.row[1][tid] - cols + part.q[0][tid] + part.q[1][tid] -
                           beta[tid] * grown * z - u;
            if (in(tid)) {
                const float of_L = part.beta[0][tid] + part.beta[1][tid];
                b.d_beta[at.at(a, t0 + tid, head, 1)] =
                    part.rv[tid] - grown * z + (beta[tid] > 0 ? __fdividef(of_L, beta[tid]) : 0);
            }
        }
        __syncthreads(); /* everyone is through with D's tile, too */
        g.share(shared + S::D);
        if (tid < CHUNK && in(tid)) { /* later tokens' sums hold this rate; the state's, all of the chunk's */
            float sum = 0;
            for (uint32_t i = CHUNK; i-- > tid;) sum += of_sums[i];
            for (int i = 0; i < WARPS; i++) sum += of_state[i];
            for (uint32_t i = 0; i < CHUNK; i++) sum += part.u[0][i] + part.u[1][i];
            b.d_rate[at.at(a, t0 + tid, head, 1)] = sum;
        }
        __syncthreads();
    }
}

template <int DP> void launch(cudaStream_t st, const gr_cu_delta *a, const gr_cu_delta_back *b)
{
    constexpr int shared = shape<DP>::SHARED;
    cudaFuncSetAttribute(back_kernel<DP>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    for (uint32_t seq = 0; seq < a->n_seqs; seq += 65535)
        back_kernel<DP>
            <<<dim3(a->value_heads, min(a->n_seqs - seq, 65535u)), N_THREADS, shared, st>>>(*a, *b, seq);
}

} /* namespace */

void gr_cu_delta_chunked_backward(cudaStream_t st, const gr_cu_delta *a, const gr_cu_delta_back *b)
{
    if (a->dk <= 64 && a->dv <= 64)
        launch<64>(st, a, b);
    else
        launch<128>(st, a, b);
}
