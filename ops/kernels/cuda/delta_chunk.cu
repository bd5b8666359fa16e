/* ops/kernels/cuda/delta_chunk.cu: the gated delta rule from chunk to chunk (see delta.cuh): states and
 * outputs forward, gradients of states backward.
 *
 * A block of 128 threads has 64 columns of one value head's state, in registers (fp32, and a copy in bf16 in
 * shared memory for products), and walks its sequence. Two blocks share a multiprocessor. Bound by latency of
 * one chunk after another: what a chunk needs first is fetched while the one before still runs. What is read
 * and written is read and written once.
 */
#include "ops/kernels/cuda/delta.cuh"

using namespace gr_delta;

namespace
{

constexpr int COLS = 64; /* of a state, one block's */

/* Tiles. Forward: Q, K, W and U' of a chunk; what its tokens write, the same times the decay up to its end;
 * the state. Backward: dO in the place of U', then 2^G dO and -dU, and the state's gradient. */
template <int DP> struct shape {
    static constexpr int ROWS = CHUNK * DP * 2, PART = CHUNK * COLS * 2;
    static constexpr int Q = 0, K = Q + ROWS, W = K + ROWS, U = W + ROWS, V = U + PART, R = V + PART,
                         S = R + PART, SHARED = S + DP * COLS * 2, TILES = DP / 64; /* of 16 rows a warp */
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

/* Two neighbouring values of a state in a slot. */
__device__ inline float2 two_of(const float *from, size_t at)
{
    return *reinterpret_cast<const float2 *>(from + at);
}
__device__ inline float2 two_of(const uint16_t *from, size_t at)
{
    const uint32_t x = *reinterpret_cast<const uint32_t *>(from + at);
    return make_float2(low_of(x), high_of(x));
}
__device__ inline void set_two(float *to, size_t at, float low, float high)
{
    *reinterpret_cast<float2 *>(to + at) = make_float2(low, high);
}
__device__ inline void set_two(uint16_t *to, size_t at, float low, float high)
{
    *reinterpret_cast<uint32_t *>(to + at) = pack(low, high);
}

/* from: NULL: zeros. */
template <int DP, typename T>
__device__ void open_state(float (*s)[COLS / 8][4], const T *from, uint32_t dk, uint32_t dv, uint32_t col0)
{
#pragma unroll
    for (int m = 0; m < DP / 64; m++)
#pragma unroll
        for (int n = 0; n < COLS / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const element<DP> e(m, n, half);
                const bool in = from && e.row < dk && col0 + e.col < dv;
                const float2 x = in ? two_of(from, (size_t)e.row * dv + col0 + e.col) : make_float2(0, 0);
                s[m][n][2 * half] = x.x;
                s[m][n][2 * half + 1] = x.y;
            }
}

template <int DP, typename T>
__device__ void close_state(const float (*s)[COLS / 8][4], T *to, uint32_t dk, uint32_t dv, uint32_t col0)
{
#pragma unroll
    for (int m = 0; m < DP / 64; m++)
#pragma unroll
        for (int n = 0; n < COLS / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const element<DP> e(m, n, half);
                if (e.row < dk && col0 + e.col < dv)
                    set_two(to, (size_t)e.row * dv + col0 + e.col, s[m][n][2 * half], s[m][n][2 * half + 1]);
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

/* Where a block works. */
struct place {
    uint32_t col0, head, seq, left;
    span at;

    __device__ place(const gr_cu_delta &a, uint32_t first_seq)
        : col0(blockIdx.x * COLS), head(blockIdx.y), seq(first_seq + blockIdx.z), left(a.dv - col0),
          at(a, seq, head)
    {
    }
    /* Of a chunk, and this head: its number among all. */
    __device__ size_t kept(const gr_cu_delta &a, uint32_t t0) const
    {
        return (size_t)(first_chunk(at.first, seq) + t0 / CHUNK) * a.value_heads + head;
    }
    __device__ bool in(uint32_t t) const
    {
        return t < at.n;
    }
    /* Rows of [T, value_heads, dk], and this block's columns of rows of [T, value_heads, dv]. */
    template <int DP>
    __device__ void fill_keys(uint32_t tile, const gr_cu_delta &a, const uint16_t *from, uint32_t t0) const
    {
        fill<DP, CHUNK>(tile, from, a.dk,
                        [&](int r) { return in(t0 + r) ? from + at.at(a, t0 + r, head, a.dk) : nullptr; });
    }
    __device__ void fill_values(uint32_t tile, const gr_cu_delta &a, const uint16_t *from, uint32_t t0) const
    {
        fill<COLS, CHUNK>(tile, from, left, [&](int r) {
            return in(t0 + r) ? from + at.at(a, t0 + r, head, a.dv) + col0 : nullptr;
        });
    }
    __device__ void fill_sums(float *to, const gr_cu_delta &a, uint32_t t0) const
    {
        if (threadIdx.x < CHUNK / 4)
            copy16((uint32_t)__cvta_generic_to_shared(to + threadIdx.x * 4),
                   a.sums + kept(a, t0) * CHUNK + threadIdx.x * 4, true);
    }
    __device__ uint16_t *state_row(const gr_cu_delta &a, uint16_t *states, uint32_t t0, uint32_t row) const
    {
        return row < a.dk ? states + (kept(a, t0) * a.dk + row) * a.dv + col0 : nullptr;
    }
};

/* c [16 rows of this warp, 64] += a tile of DP columns times a state. */
template <int DP> __device__ inline void times_state(float (*c)[4], uint32_t tile, uint32_t state)
{
#pragma unroll
    for (int k = 0; k < DP / 16; k++) {
        uint32_t f[4];
        load_a<DP>(f, tile, threadIdx.x / 32 * 16, k);
        mma_plain<COLS, COLS>(c, f, state, k * 16, 0);
    }
}

/* This warp's rows of a state += a tile's transpose times another tile. */
template <int DP> __device__ inline void add_turned(float (*s)[COLS / 8][4], uint32_t tile, uint32_t by)
{
#pragma unroll
    for (int m = 0; m < DP / 64; m++)
#pragma unroll
        for (int k = 0; k < CHUNK / 16; k++) {
            uint32_t f[4];
            load_a_turned<DP>(f, tile, k * 16, threadIdx.x / 32 * (DP / 4) + m * 16);
            mma_plain<COLS, COLS>(s[m], f, by, k * 16, 0);
        }
}

template <int DP> __device__ inline void decay_state(float (*s)[COLS / 8][4], float decay)
{
#pragma unroll
    for (int m = 0; m < DP / 64; m++)
#pragma unroll
        for (int n = 0; n < COLS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[m][n][e] *= decay;
}

/* Grid: parts of 64 columns, value heads, sequences. KEEP: states go to memory, and what tokens write, in
 * place of u, and no output. */
template <int DP, bool KEEP>
__global__ void __launch_bounds__(128, 2) chunk_kernel(gr_cu_delta a, gr_cu_delta_back b, uint32_t first_seq)
{
    using S = shape<DP>;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ __align__(16) float all_sums[2][CHUNK];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const place p(a, first_seq);
    if (!p.at.n || (a.state && a.slot[p.seq] == NONE)) return;
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(shared), q_tile = base + S::Q,
                   k_tile = base + S::K, s_tile = base + S::S;
    const auto fetch_first = [&](uint32_t t0) {
        if (p.in(t0)) {
            p.fill_keys<DP>(base + S::W, a, a.w, t0);
            p.fill_values(base + S::U, a, a.u, t0);
            p.fill_sums(all_sums[t0 / CHUNK % 2], a, t0);
        }
        copies_commit();
    };
    const auto fetch_rest = [&](uint32_t t0) {
        if (p.in(t0)) {
            fill<DP, CHUNK>(k_tile, a.qkv, a.dk,
                            [&](int r) { return p.in(t0 + r) ? p.at.k(a, t0 + r) : nullptr; });
            if (!KEEP)
                fill<DP, CHUNK>(q_tile, a.qkv, a.dk,
                                [&](int r) { return p.in(t0 + r) ? p.at.q(a, t0 + r) : nullptr; });
        }
        copies_commit();
    };
    float s[S::TILES][COLS / 8][4];
    fetch_first(0);
    fetch_rest(0);
    const bool goes_on = a.state && a.cached[p.seq];
    if (a.bf16)
        open_state<DP>(s, goes_on ? state_of<uint16_t>(a, p.seq, p.head) : nullptr, a.dk, a.dv, p.col0);
    else
        open_state<DP>(s, goes_on ? state_of<float>(a, p.seq, p.head) : nullptr, a.dk, a.dv, p.col0);
    share_state<DP>(s, shared + S::S);

    for (uint32_t t0 = 0; t0 < p.at.n; t0 += CHUNK) {
        const float *sums = all_sums[t0 / CHUNK % 2];
        float o[COLS / 8][4];
        copies_left<1>();
        __syncthreads();
        if (KEEP)
            store_tile(shared + S::S, DP, p.left,
                       [&](uint32_t row) { return p.state_row(a, b.states, t0, row); });
        clear<COLS / 8>(o);
        times_state<DP>(o, base + S::W, s_tile);
#pragma unroll
        for (int n = 0; n < COLS / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t i = warp * 16 + lane / 4 + 8 * half, j = n * 8 + lane % 4 * 2;
                const uint32_t u = *pair_at<COLS>(shared + S::U, i, j);
                const float low = low_of(u) - o[n][2 * half], high = high_of(u) - o[n][2 * half + 1],
                            keep = exp2_of(sums[CHUNK - 1] - sums[i]);
                *pair_at<COLS>(shared + S::V, i, j) = pack(low, high);
                *pair_at<COLS>(shared + S::R, i, j) = pack(low * keep, high * keep);
            }
        copies_left<0>();
        __syncthreads();
        fetch_first(t0 + CHUNK);

        if (KEEP) {
            store_tile(shared + S::V, CHUNK, p.left, [&](uint32_t row) {
                return p.in(t0 + row) ? a.u + p.at.at(a, t0 + row, p.head, a.dv) + p.col0 : nullptr;
            });
        } else {
            float c[CHUNK / 8][4];
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
                mma_plain<COLS, COLS>(o, f, base + S::V, k * 16, 0);
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t i = warp * 16 + lane / 4 + 8 * half;
                if (p.in(t0 + i))
                    store_row<COLS / 8>(a.mixed + p.at.at(a, t0 + i, p.head, a.dv) + p.col0, o, half, 1, 0,
                                        p.left);
            }
        }

        decay_state<DP>(s, exp2_of(sums[CHUNK - 1]));
        add_turned<DP>(s, k_tile, base + S::R);
        __syncthreads(); /* everyone is through with the state before, and with the tiles */
        fetch_rest(t0 + CHUNK);
        share_state<DP>(s, shared + S::S);
    }
    if (!a.state) return;
    if (a.bf16)
        close_state<DP>(s, state_of<uint16_t>(a, p.seq, p.head), a.dk, a.dv, p.col0);
    else
        close_state<DP>(s, state_of<float>(a, p.seq, p.head), a.dk, a.dv, p.col0);
}

/* The same grid, from the last chunk to the first: with D the gradient of the state behind a chunk and r =
 * 2^(G_last - G),
 *
 *     dU = P^T dO + r K D,   D before = 2^(G_last) D + Q^T (2^G dO) - W^T dU
 */
template <int DP>
__global__ void __launch_bounds__(128, 2)
    chunk_back_kernel(gr_cu_delta a, gr_cu_delta_back b, uint32_t first_seq)
{
    using S = shape<DP>;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ __align__(16) float all_sums[2][CHUNK];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const place p(a, first_seq);
    if (!p.at.n) return;
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(shared), q_tile = base + S::Q,
                   k_tile = base + S::K, do_tile = base + S::U, d_tile = base + S::S;
    const auto fetch_first = [&](uint32_t t0) {
        fill<DP, CHUNK>(k_tile, a.qkv, a.dk,
                        [&](int r) { return p.in(t0 + r) ? p.at.k(a, t0 + r) : nullptr; });
        p.fill_values(do_tile, a, b.d_mixed, t0);
        p.fill_sums(all_sums[t0 / CHUNK % 2], a, t0);
        copies_commit();
    };
    const auto fetch_rest = [&](uint32_t t0) {
        fill<DP, CHUNK>(q_tile, a.qkv, a.dk,
                        [&](int r) { return p.in(t0 + r) ? p.at.q(a, t0 + r) : nullptr; });
        p.fill_keys<DP>(base + S::W, a, a.w, t0);
        copies_commit();
    };
    float d[S::TILES][COLS / 8][4];
    const uint32_t last = (p.at.n - 1) / CHUNK * CHUNK;
    fetch_first(last);
    fetch_rest(last);
    open_state<DP>(d, (const float *)nullptr, a.dk, a.dv, p.col0);
    share_state<DP>(d, shared + S::S);

    for (uint32_t t0 = last;; t0 -= CHUNK) {
        const float *sums = all_sums[t0 / CHUNK % 2];
        float c[CHUNK / 8][4], o[COLS / 8][4];
        copies_left<1>();
        __syncthreads();
        store_tile(shared + S::S, DP, p.left,
                   [&](uint32_t row) { return p.state_row(a, b.d_states, t0, row); });
        clear<COLS / 8>(o);
        times_state<DP>(o, k_tile, d_tile);
        for (uint32_t i = threadIdx.x; i < CHUNK * COLS / 2; i += 128) {
            const uint32_t row = i / (COLS / 2), col = i % (COLS / 2) * 2,
                           x = *pair_at<COLS>(shared + S::U, row, col);
            const float grown = exp2_of(sums[row]);
            *pair_at<COLS>(shared + S::V, row, col) = pack(low_of(x) * grown, high_of(x) * grown);
        }
        copies_left<0>();
        __syncthreads();
        clear<CHUNK / 8>(c);
#pragma unroll
        for (int k = 0; k < DP / 16; k++) {
            uint32_t f[4];
            load_a<DP>(f, k_tile, warp * 16, k);
            mma_turned<DP, CHUNK>(c, f, q_tile, k);
        }
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const uint32_t j = warp * 16 + lane / 4 + 8 * (e / 2), i = n * 8 + lane % 4 * 2 + e % 2;
                c[n][e] = j <= i ? c[n][e] * exp2_of(sums[i] - sums[j]) : 0;
                o[n][e] *= exp2_of(sums[CHUNK - 1] - sums[j]);
            }
#pragma unroll
        for (int k = 0; k < CHUNK / 16; k++) {
            uint32_t f[4];
            as_a(f, c, k);
            mma_plain<COLS, COLS>(o, f, do_tile, k * 16, 0);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t j = warp * 16 + lane / 4 + 8 * half;
#pragma unroll
            for (int n = 0; n < COLS / 8; n++)
                *pair_at<COLS>(shared + S::R, j, n * 8 + lane % 4 * 2) =
                    pack(-o[n][2 * half], -o[n][2 * half + 1]);
            if (p.in(t0 + j))
                store_row<COLS / 8>(b.dv + p.at.at(a, t0 + j, p.head, a.dv) + p.col0, o, half, 1, 0, p.left);
        }
        __syncthreads();
        if (t0 == 0) return;
        fetch_first(t0 - CHUNK);
        decay_state<DP>(d, exp2_of(sums[CHUNK - 1]));
        add_turned<DP>(d, q_tile, base + S::V);
        add_turned<DP>(d, base + S::W, base + S::R);
        __syncthreads();
        fetch_rest(t0 - CHUNK);
        share_state<DP>(d, shared + S::S);
    }
}

/* Shared memory for a kernel, and where it runs. */
template <typename K>
void launch(cudaStream_t st, K kernel, int shared, const gr_cu_delta *a, const gr_cu_delta_back &b)
{
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    for (uint32_t seq = 0; seq < a->n_seqs; seq += 65535) {
        const dim3 grid((a->dv + COLS - 1) / COLS, a->value_heads, min(a->n_seqs - seq, 65535u));
        kernel<<<grid, 128, shared, st>>>(*a, b, seq);
    }
}

} /* namespace */

void gr_cu_delta_chunked(cudaStream_t st, const gr_cu_delta *a)
{
    const gr_cu_delta_back none = {};
    if (a->dk <= 64)
        launch(st, chunk_kernel<64, false>, shape<64>::SHARED, a, none);
    else
        launch(st, chunk_kernel<128, false>, shape<128>::SHARED, a, none);
}

void gr_cu_delta_states(cudaStream_t st, const gr_cu_delta *a, const gr_cu_delta_back *b)
{
    if (a->dk <= 64)
        launch(st, chunk_kernel<64, true>, shape<64>::SHARED, a, *b);
    else
        launch(st, chunk_kernel<128, true>, shape<128>::SHARED, a, *b);
}

void gr_cu_delta_states_backward(cudaStream_t st, const gr_cu_delta *a, const gr_cu_delta_back *b)
{
    if (a->dk <= 64)
        launch(st, chunk_back_kernel<64>, shape<64>::SHARED, a, *b);
    else
        launch(st, chunk_back_kernel<128>, shape<128>::SHARED, a, *b);
}
