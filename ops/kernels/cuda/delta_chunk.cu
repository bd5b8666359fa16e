/* ops/kernels/cuda/delta_chunk.cu: the gated delta rule forward, by chunks (see delta.cuh).
 *
 * A block of 128 threads has 64 columns of one value head's state, in registers (fp32, and a copy in
 * bf16 in shared memory for products), and walks its sequence. Two blocks share a multiprocessor. Bound by
 * latency of one chunk after another; what is read and written is read and written once.
 */
#include "ops/kernels/cuda/delta.cuh"

using namespace gr_delta;

namespace
{

constexpr int COLS = 64; /* of a state, one block's */

template <int DP> struct shape {
    static constexpr int Q = 0, K = Q + CHUNK * DP * 2, V = K + CHUNK * DP * 2, W = V + CHUNK * COLS * 2,
                         S = W + CHUNK * COLS * 2, X = S + DP * COLS * 2, L = X + CHUNK * (COLS + PAD) * 4,
                         SHARED = L + CHUNK * (CHUNK + PAD) * 4, TILES = DP / 64; /* of 16 rows a warp */
};

/* The state's element e of fragment (m, n): its row and column. */
template <int DP> struct element {
    uint32_t row, col;
    __device__ element(int m, int n, int half)
        : row(threadIdx.x / 32 * (DP / 4) + m * 16 + threadIdx.x % 32 / 4 + 8 * half),
          col(n * 8 + threadIdx.x % 4 * 2)
    {
    }
};

template <int DP> __device__ void share_state(const float (*s)[COLS / 8][4], unsigned char *tile)
{
#pragma unroll
    for (int m = 0; m < DP / 64; m++)
#pragma unroll
        for (int n = 0; n < COLS / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const element<DP> e(m, n, half);
                *pair_at<COLS>(tile, e.row, e.col) = pack(s[m][n][2 * half], s[m][n][2 * half + 1]);
            }
}

template <int DP>
__device__ void open_state(float (*s)[COLS / 8][4], const float *from, uint32_t dk, uint32_t dv,
                           uint32_t col0)
{
#pragma unroll
    for (int m = 0; m < DP / 64; m++)
#pragma unroll
        for (int n = 0; n < COLS / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const element<DP> e(m, n, half);
                const bool in = from && e.row < dk && col0 + e.col < dv;
                const float2 x =
                    in ? *reinterpret_cast<const float2 *>(from + (size_t)e.row * dv + col0 + e.col)
                       : make_float2(0, 0);
                s[m][n][2 * half] = x.x;
                s[m][n][2 * half + 1] = x.y;
            }
}

template <int DP>
__device__ void close_state(const float (*s)[COLS / 8][4], float *to, uint32_t dk, uint32_t dv, uint32_t col0)
{
#pragma unroll
    for (int m = 0; m < DP / 64; m++)
#pragma unroll
        for (int n = 0; n < COLS / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const element<DP> e(m, n, half);
                if (e.row < dk && col0 + e.col < dv)
                    *reinterpret_cast<float2 *>(to + (size_t)e.row * dv + col0 + e.col) =
                        make_float2(s[m][n][2 * half], s[m][n][2 * half + 1]);
            }
}

/* Rows of a tile of COLS columns to rows of memory, `left` of them real. */
template <typename F> __device__ void store_tile(const unsigned char *tile, int rows, uint32_t left, F row_of)
{
    for (uint32_t i = threadIdx.x; i < (uint32_t)rows * COLS / 8; i += 128) {
        const uint32_t row = i / (COLS / 8), chunk = i % (COLS / 8);
        uint16_t *to = row_of(row);
        if (to && chunk * 8 < left)
            *reinterpret_cast<uint4 *>(to + chunk * 8) =
                *reinterpret_cast<const uint4 *>(tile + row * (COLS * 2) + ((chunk ^ (row & 7)) << 4));
    }
}

/* What the chunk's tokens write, as bf16: to v_tile, and times the decay up to the chunk's end to w_tile. */
__device__ void share_written(const float *x, const float *sums, unsigned char *v_tile, unsigned char *w_tile)
{
    for (uint32_t i = threadIdx.x; i < CHUNK * COLS / 2; i += 128) {
        const uint32_t row = i / (COLS / 2), col = i % (COLS / 2) * 2;
        const float low = x[row * (COLS + PAD) + col], high = x[row * (COLS + PAD) + col + 1];
        const float keep = exp2_of(sums[CHUNK - 1] - sums[row]);
        *pair_at<COLS>(v_tile, row, col) = pack(low, high);
        *pair_at<COLS>(w_tile, row, col) = pack(low * keep, high * keep);
    }
}

/* Grid: parts of 64 columns, value heads, sequences. KEEP: states and written go to memory, and no output. */
template <int DP, bool KEEP>
__global__ void __launch_bounds__(128, 2) chunk_kernel(gr_cu_delta a, gr_cu_delta_back b, uint32_t first_seq)
{
    using S = shape<DP>;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ float sums[CHUNK], beta[CHUNK];
    const uint32_t col0 = blockIdx.x * COLS, head = blockIdx.y, seq = first_seq + blockIdx.z;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (a.state && a.slot[seq] == NONE) return;
    const span at(a, seq, head);
    if (!at.n) return;
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(shared), q_tile = base + S::Q,
                   k_tile = base + S::K, v_tile = base + S::V, w_tile = base + S::W, s_tile = base + S::S,
                   left = a.dv - col0;
    float *x = reinterpret_cast<float *>(shared + S::X), *L = reinterpret_cast<float *>(shared + S::L);
    float *slot = a.state ? a.state + a.slot[seq] * a.slot_floats + a.tail_floats + (size_t)head * a.dk * a.dv
                          : nullptr;
    float s[S::TILES][COLS / 8][4];
    open_state<DP>(s, slot && a.cached[seq] ? slot : nullptr, a.dk, a.dv, col0);
    share_state<DP>(s, shared + S::S);

    for (uint32_t t0 = 0; t0 < at.n; t0 += CHUNK) {
        const auto in = [&](int r) { return t0 + r < at.n; };
        fill<DP, CHUNK>(k_tile, a.qkv, a.dk, [&](int r) { return in(r) ? at.k(a, t0 + r) : nullptr; });
        fill<COLS, CHUNK>(v_tile, a.qkv, left,
                          [&](int r) { return in(r) ? at.v(a, t0 + r, head) + col0 : nullptr; });
        if (!KEEP)
            fill<DP, CHUNK>(q_tile, a.qkv, a.dk, [&](int r) { return in(r) ? at.q(a, t0 + r) : nullptr; });
        load_gates(a, at, head, t0, sums, beta);
        copies_done();
        __syncthreads();
        sum_rates(sums);
        if (KEEP)
            store_tile(shared + S::S, DP, left, [&](uint32_t row) {
                const size_t chunk = first_chunk(at.first, seq) + t0 / CHUNK;
                return row < a.dk ? b.states + ((chunk * a.value_heads + head) * a.dk + row) * a.dv + col0
                                  : nullptr;
            });
        __syncthreads();

        float c[CHUNK / 8][4], o[COLS / 8][4]; /* K K^T, K S */
        clear<CHUNK / 8>(c);
        clear<COLS / 8>(o);
#pragma unroll
        for (int k = 0; k < DP / 16; k++) {
            uint32_t f[4];
            load_a<DP>(f, k_tile, warp * 16, k);
            mma_turned<DP, CHUNK>(c, f, k_tile, k);
            mma_plain<COLS, COLS>(o, f, s_tile, k * 16, 0);
        }
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t i = warp * 16 + lane / 4 + 8 * half, j = n * 8 + lane % 4 * 2;
                const uint32_t v = *pair_at<COLS>(shared + S::V, i, j);
                const float grown = exp2_of(sums[i]);
                *reinterpret_cast<float2 *>(L + i * (CHUNK + PAD) + j) = make_float2(
                    j < i ? beta[i] * c[n][2 * half] * exp2_of(sums[i] - sums[j]) : 0,
                    j + 1 < i ? beta[i] * c[n][2 * half + 1] * exp2_of(sums[i] - sums[j + 1]) : 0);
                *reinterpret_cast<float2 *>(x + i * (COLS + PAD) + j) =
                    make_float2(beta[i] * (low_of(v) - grown * o[n][2 * half]),
                                beta[i] * (high_of(v) - grown * o[n][2 * half + 1]));
            }
        __syncthreads();
        solve<COLS, 128 / COLS, false>(x, L);
        share_written(x, sums, shared + S::V, shared + S::W);
        __syncthreads();

        if (KEEP) {
            store_tile(shared + S::V, CHUNK, left, [&](uint32_t row) {
                return in(row) ? b.written + at.at(a, t0 + row, head, a.dv) + col0 : nullptr;
            });
        } else {
            clear<CHUNK / 8>(c);
            clear<COLS / 8>(o);
#pragma unroll
            for (int k = 0; k < DP / 16; k++) {
                uint32_t f[4];
                load_a<DP>(f, q_tile, warp * 16, k);
                mma_turned<DP, CHUNK>(c, f, k_tile, k);
                mma_plain<COLS, COLS>(o, f, s_tile, k * 16, 0);
            }
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const uint32_t i = warp * 16 + lane / 4 + 8 * (e / 2), j = n * 8 + lane % 4 * 2 + e % 2;
                    c[n][e] = j <= i ? c[n][e] * exp2_of(sums[i] - sums[j]) : 0;
                    o[n][e] *= exp2_of(sums[i]);
                }
#pragma unroll
            for (int k = 0; k < CHUNK / 16; k++) {
                uint32_t f[4];
                as_a(f, c, k);
                mma_plain<COLS, COLS>(o, f, v_tile, k * 16, 0);
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t i = warp * 16 + lane / 4 + 8 * half;
                if (in(i))
                    store_row<COLS / 8>(a.mixed + at.at(a, t0 + i, head, a.dv) + col0, o, half, 1, 0, left);
            }
        }

        const float decay = exp2_of(sums[CHUNK - 1]);
#pragma unroll
        for (int m = 0; m < S::TILES; m++) {
#pragma unroll
            for (int n = 0; n < COLS / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[m][n][e] *= decay;
#pragma unroll
            for (int k = 0; k < CHUNK / 16; k++) {
                uint32_t f[4];
                load_a_turned<DP>(f, k_tile, k * 16, warp * (DP / 4) + m * 16);
                mma_plain<COLS, COLS>(s[m], f, w_tile, k * 16, 0);
            }
        }
        __syncthreads(); /* everyone is through with the state before, and with the tiles */
        share_state<DP>(s, shared + S::S);
    }
    if (slot) close_state<DP>(s, slot, a.dk, a.dv, col0);
}

template <int DP, bool KEEP> void launch(cudaStream_t st, const gr_cu_delta *a, const gr_cu_delta_back &b)
{
    constexpr int shared = shape<DP>::SHARED;
    cudaFuncSetAttribute(chunk_kernel<DP, KEEP>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    for (uint32_t seq = 0; seq < a->n_seqs; seq += 65535) {
        const dim3 grid((a->dv + COLS - 1) / COLS, a->value_heads, min(a->n_seqs - seq, 65535u));
        chunk_kernel<DP, KEEP><<<grid, 128, shared, st>>>(*a, b, seq);
    }
}

} /* namespace */

void gr_cu_delta_chunked(cudaStream_t st, const gr_cu_delta *a)
{
    const gr_cu_delta_back none = {};
    if (a->dk <= 64)
        launch<64, false>(st, a, none);
    else
        launch<128, false>(st, a, none);
}

void gr_cu_delta_states(cudaStream_t st, const gr_cu_delta *a, const gr_cu_delta_back *b)
{
    if (a->dk <= 64)
        launch<64, true>(st, a, *b);
    else
        launch<128, true>(st, a, *b);
}
