/* ops/kernels/cuda/attention_simple.cu: see attention_simple.h and, for the tiles, flash.cuh.
 *
 * Backward in three kernels, each of which owns what it writes, so that no sum has an order left to chance:
 * delta, the row sums of dO * O; dK and dV by key tiles; dQ by row tiles. The last two each compute the
 * scores again: 7 products of a tile where a backward with atomics has 5. Of heads wider than 128 each part
 * of the columns of dK and dV computes them: 9; of heads wider than 256 each half of those of dQ, too: 15.
 */
#include "ops/kernels/cuda/attention_simple.h"
#include "ops/kernels/cuda/flash.cuh"

using namespace gr_flash;

/* A warp for each token and head. Bound by memory. */
static __global__ void __launch_bounds__(256)
    sum_products(const uint16_t *out, const uint16_t *dout, uint32_t n, uint32_t d, float *delta)
{
    const uint32_t at = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (at >= n) return;
    const __nv_bfloat162 *a = reinterpret_cast<const __nv_bfloat162 *>(out + (size_t)at * d),
                         *b = reinterpret_cast<const __nv_bfloat162 *>(dout + (size_t)at * d);
    float sum = 0;
    for (uint32_t i = lane; i < d / 2; i += 32) {
        const float2 x = __bfloat1622float2(a[i]), y = __bfloat1622float2(b[i]);
        sum += x.x * y.x + x.y * y.y;
    }
#pragma unroll
    for (int i = 16; i; i /= 2) sum += __shfl_xor_sync(0xffffffff, sum, i);
    if (lane == 0) delta[at] = sum;
}

/* What both backward kernels read and write. */
struct gradients {
    const uint16_t *dout;
    const float *lse, *delta;
    uint16_t *dqkv;
};

template <int DP> struct kv_shape {
    static constexpr int KEYS = ROWS, /* of a block: 16 a warp */
        STEP = 32,                    /* rows at a time */
        COLS = DP > 128 ? 128 : DP,   /* of dK and dV that one block keeps: registers hold no more */
        PARTS = DP / COLS, SHARED = (2 * KEYS + 2 * STEP) * DP * 2;
};

/* The weight of a key in a row, from its score as the product left it; ds: d loss / d weight becomes that of
 * the score, but for the scale. */
template <bool MORE>
static __device__ __forceinline__ float weigh(const problem &p, float score, float lse2, float delta,
                                              bool seen, float &ds)
{
    if (!MORE || !p.softcap) {
        const float weight = seen ? exp2_of(fmaf(score, p.scale * LOG2E, -lse2)) : 0;
        ds = weight * (ds - delta);
        return weight;
    }
    const float cap = capped(score, p), weight = seen ? exp2_of(fmaf(cap, LOG2E, -lse2)) : 0;
    ds = weight * (ds - delta) * cap_slope(cap, p);
    return weight;
}

/* A block of threads: 64 keys of one kv head, against all rows that see them, keys and rows counted from the
 * sequence's own first token: those of sequences that go on from it see all of them. Scores are computed
 * turned, keys by rows, so that they are fragments A of dV += P^T dO and dK += dS^T Q as they come. */
template <int DP, bool MORE>
static __global__ void __launch_bounds__(THREADS) key_gradients(problem p, gradients g)
{
    using S = kv_shape<DP>;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ float lse2[S::STEP], delta[S::STEP];
    __shared__ uint32_t token[S::STEP];
    const place w(p);
    const uint32_t part = blockIdx.x % S::PARTS, key0 = blockIdx.x / S::PARTS * S::KEYS;
    if (key0 >= w.n) return;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = p.group();
    const uint32_t k_tile = (uint32_t)__cvta_generic_to_shared(shared), v_tile = k_tile + S::KEYS * DP * 2,
                   q_tile = v_tile + S::KEYS * DP * 2, do_tile = q_tile + S::STEP * DP * 2;
    fill<DP, S::KEYS>(k_tile, p.qkv, p.d,
                      [&](int r) { return key0 + r < w.n ? w.packed_k(p, w.first + key0 + r) : nullptr; });
    fill<DP, S::KEYS>(v_tile, p.qkv, p.d, [&](int r) {
        return key0 + r < w.n ? w.packed_k(p, w.first + key0 + r) + place::v_after(p) : nullptr;
    });
    float dk[S::COLS / 8][4], dv[S::COLS / 8][4];
    clear<S::COLS / 8>(dk);
    clear<S::COLS / 8>(dv);
    const uint32_t key[2] = {key0 + warp * 16 + lane / 4, key0 + warp * 16 + lane / 4 + 8};

    const uint32_t last = key0 + S::KEYS - 1; /* rows that see none of the keys are left out */
    const uint32_t rows = w.seen_by(p),
                   end = MORE && p.reach < w.n ? min((last + p.reach) * group, rows) : rows;

    for (uint32_t row0 = key0 * group / S::STEP * S::STEP; row0 < end; row0 += S::STEP) {
        __syncthreads(); /* everyone is through with the rows before */
        fill<DP, S::STEP>(q_tile, p.qkv, p.d,
                          [&](int r) { return row0 + r < rows ? p.qkv + w.q_at(p, row0 + r) : nullptr; });
        fill<DP, S::STEP>(do_tile, p.qkv, p.d,
                          [&](int r) { return row0 + r < rows ? g.dout + w.o_at(p, row0 + r) : nullptr; });
        if (threadIdx.x < S::STEP) {
            const uint32_t row = row0 + threadIdx.x;
            const bool in = row < rows;
            lse2[threadIdx.x] =
                in ? g.lse[w.stat_at(p, row)] * LOG2E : CUDART_INF_F; /* a row beyond has no weight */
            delta[threadIdx.x] = in ? g.delta[w.stat_at(p, row)] : 0;
            token[threadIdx.x] = row / group;
        }
        copies_done();
        __syncthreads();

        float s[S::STEP / 8][4], ds[S::STEP / 8][4];
        clear<S::STEP / 8>(s);
        clear<S::STEP / 8>(ds);
#pragma unroll
        for (int k = 0; k < DP / 16; k++) {
            uint32_t a[4];
            load_a<DP>(a, k_tile, warp * 16, k);
            mma_turned<DP, S::STEP>(s, a, q_tile, k);
            load_a<DP>(a, v_tile, warp * 16, k);
            mma_turned<DP, S::STEP>(ds, a, do_tile, k);
        }
#pragma unroll
        for (int n = 0; n < S::STEP / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int r = n * 8 + lane % 4 * 2 + i % 2;
                const bool seen = MORE ? p.sees(token[r], key[i / 2]) : key[i / 2] <= token[r];
                s[n][i] = weigh<MORE>(p, s[n][i], lse2[r], delta[r], seen, ds[n][i]);
            }
#pragma unroll
        for (int k = 0; k < S::STEP / 16; k++) {
            uint32_t a[4];
            as_a(a, s, k);
            mma_plain<DP, S::COLS>(dv, a, do_tile, k * 16, part * S::COLS / 8);
            as_a(a, ds, k);
            mma_plain<DP, S::COLS>(dk, a, q_tile, k * 16, part * S::COLS / 8);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (key[half] >= w.n) continue;
        uint16_t *to = g.dqkv + (w.packed_k(p, w.first + key[half]) - p.qkv);
        store_row<S::COLS / 8>(to, dk, half, p.scale, part * S::COLS, p.d);
        store_row<S::COLS / 8>(to + place::v_after(p), dv, half, 1, part * S::COLS, p.d);
    }
}

template <int DP> struct q_shape {
    static constexpr int KEYS = DP > 128 ? 32 : 64, SHARED = 2 * (ROWS + KEYS) * DP * 2,
                         COLS = DP > 256 ? 256 : DP, /* of dQ that one block keeps */
        PARTS = DP / COLS;
};

/* A block of threads: 64 rows of one kv head, or a part of their columns, against all keys that they see. */
template <int DP, bool MORE>
static __global__ void __launch_bounds__(THREADS) query_gradients(problem p, gradients g)
{
    using S = q_shape<DP>;
    constexpr int KEYS = S::KEYS;
    extern __shared__ __align__(128) unsigned char shared[];
    const place w(p);
    const uint32_t from_end = gridDim.x - 1 - blockIdx.x;
    const uint32_t row0 = from_end / S::PARTS * ROWS, part = from_end % S::PARTS;
    if (row0 >= w.rows) return;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = p.group();
    const uint32_t n_keys = w.before + min((row0 + ROWS - 1) / group, w.n - 1) + 1;
    const uint32_t q_tile = (uint32_t)__cvta_generic_to_shared(shared), do_tile = q_tile + ROWS * DP * 2,
                   k_tile = do_tile + ROWS * DP * 2, v_tile = k_tile + KEYS * DP * 2;
    fill<DP, ROWS>(q_tile, p.qkv, p.d,
                   [&](int r) { return row0 + r < w.rows ? p.qkv + w.q_at(p, row0 + r) : nullptr; });
    fill<DP, ROWS>(do_tile, p.qkv, p.d,
                   [&](int r) { return row0 + r < w.rows ? g.dout + w.o_at(p, row0 + r) : nullptr; });
    const uint32_t row[2] = {row0 + warp * 16 + lane / 4, row0 + warp * 16 + lane / 4 + 8};
    float lse2[2], delta[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const bool in = row[half] < w.rows;
        lse2[half] = in ? g.lse[w.stat_at(p, row[half])] * LOG2E : CUDART_INF_F;
        delta[half] = in ? g.delta[w.stat_at(p, row[half])] : 0;
    }
    float dq[S::COLS / 8][4];
    clear<S::COLS / 8>(dq);

    for (uint32_t key0 = MORE ? p.first_key(w.before + row0 / group) / KEYS * KEYS : 0; key0 < n_keys;
         key0 += KEYS) {
        __syncthreads(); /* everyone is through with the keys before */
        fill<DP, KEYS>(k_tile, p.qkv, p.d,
                       [&](int r) { return key0 + r < n_keys ? w.k_at(p, key0 + r) : nullptr; });
        fill<DP, KEYS>(v_tile, p.qkv, p.d, [&](int r) {
            return key0 + r < n_keys ? w.k_at(p, key0 + r) + place::v_after(p) : nullptr;
        });
        copies_done();
        __syncthreads();
        float s[KEYS / 8][4], ds[KEYS / 8][4];
        clear<KEYS / 8>(s);
        clear<KEYS / 8>(ds);
#pragma unroll
        for (int k = 0; k < DP / 16; k++) {
            uint32_t a[4];
            load_a<DP>(a, q_tile, warp * 16, k);
            mma_turned<DP, KEYS>(s, a, k_tile, k);
            load_a<DP>(a, do_tile, warp * 16, k);
            mma_turned<DP, KEYS>(ds, a, v_tile, k);
        }
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t key = key0 + n * 8 + lane % 4 * 2 + i % 2,
                               token = w.before + row[i / 2] / group;
                const bool seen = MORE ? p.sees(token, key) : key <= token;
                weigh<MORE>(p, s[n][i], lse2[i / 2], delta[i / 2], seen, ds[n][i]);
            }
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            uint32_t a[4];
            as_a(a, ds, k);
            mma_plain<DP, S::COLS>(dq, a, k_tile, k * 16, part * S::COLS / 8);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (row[half] < w.rows)
            store_row<S::COLS / 8>(g.dqkv + w.q_at(p, row[half]), dq, half, p.scale, part * S::COLS, p.d);
}

template <int DP, bool MORE>
static void run_backward_as(cudaStream_t st, const problem &p, const gradients &g, uint32_t n_seqs,
                            uint32_t longest)
{
    using K = kv_shape<DP>;
    using Q = q_shape<DP>;
    const uint32_t key_tiles = (longest + K::KEYS - 1) / K::KEYS * K::PARTS;
    const uint32_t row_tiles = (longest * (p.heads / p.kv_heads) + ROWS - 1) / ROWS * Q::PARTS;
    cudaFuncSetAttribute(key_gradients<DP, MORE>, cudaFuncAttributeMaxDynamicSharedMemorySize, K::SHARED);
    cudaFuncSetAttribute(query_gradients<DP, MORE>, cudaFuncAttributeMaxDynamicSharedMemorySize, Q::SHARED);
    by_seqs(p, n_seqs, [&](const problem &part, uint32_t n) {
        key_gradients<DP, MORE><<<dim3(key_tiles, p.kv_heads, n), THREADS, K::SHARED, st>>>(part, g);
        query_gradients<DP, MORE><<<dim3(row_tiles, p.kv_heads, n), THREADS, Q::SHARED, st>>>(part, g);
    });
}

template <int DP>
static void run_backward(cudaStream_t st, const problem &p, const gradients &g, uint32_t n_seqs,
                         uint32_t longest)
{
    if (p.more())
        run_backward_as<DP, true>(st, p, g, n_seqs, longest);
    else
        run_backward_as<DP, false>(st, p, g, n_seqs, longest);
}

static problem problem_of(const gr_cu_simple *s, const gr_bf16 *qkv)
{
    problem p = {};
    p.qkv = qkv;
    p.offset = s->offset;
    p.prefix = s->prefix;
    p.n_seqs = s->n_seqs;
    p.heads = s->heads;
    p.kv_heads = s->kv_heads;
    p.d = s->head_dim;
    p.set(&s->scores);
    return p;
}

void gr_cu_simple_forward(cudaStream_t st, const gr_cu_simple *s, const gr_bf16 *qkv, gr_bf16 *out,
                          float *stats)
{
    run_forward<PACKED>(st, problem_of(s, qkv), s->n_seqs, s->longest, out, stats);
}

void gr_cu_simple_backward(cudaStream_t st, const gr_cu_simple *s, const gr_bf16 *qkv, const gr_bf16 *out,
                           const float *stats, const gr_bf16 *dout, gr_bf16 *dqkv, float *delta)
{
    const problem p = problem_of(s, qkv);
    const gradients g = {dout, stats, delta, dqkv};
    if (!s->n_seqs || !s->n_tokens) return;
    gr_cu_attention_delta(st, s, out, dout, delta);
    if (p.d <= 64)
        run_backward<64>(st, p, g, s->n_seqs, s->longest);
    else if (p.d <= 128)
        run_backward<128>(st, p, g, s->n_seqs, s->longest);
    else if (p.d <= 256)
        run_backward<256>(st, p, g, s->n_seqs, s->longest);
    else
        run_backward<512>(st, p, g, s->n_seqs, s->longest);
}

void gr_cu_attention_delta(cudaStream_t st, const gr_cu_simple *s, const gr_bf16 *out, const gr_bf16 *dout,
                           float *delta)
{
    const uint32_t n = s->n_tokens * s->heads;
    if (n) sum_products<<<(n + 7) / 8, 256, 0, st>>>(out, dout, n, s->head_dim, delta);
}

/* ---- sinks ----------------------------------------------------------------------------------------------
 */

/* A warp for each token and head. Bound by memory. */
static __global__ void __launch_bounds__(256) add_sinks(problem p, uint32_t n, uint16_t *out, float *lse)
{
    const uint32_t at = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (at >= n) return;
    const float before = lse[at];
    p.scale = 1;
    p.softcap = 0;
    const row_end e = end_row(p, at % p.heads, before, 1);
    uint32_t *row = reinterpret_cast<uint32_t *>(out + (size_t)at * p.d);
    for (uint32_t i = lane; i < p.d / 2; i += 32) {
        const uint32_t x = row[i];
        row[i] = pack(__uint_as_float(x << 16) * e.share, __uint_as_float(x & 0xffff0000u) * e.share);
    }
    __syncwarp(); /* all have read what lane 0 overwrites */
    if (lane == 0) lse[at] = e.lse;
}

void gr_cu_sinks_forward(cudaStream_t st, const gr_cu_simple *s, gr_bf16 *out, float *stats)
{
    const uint32_t n = s->n_tokens * s->heads;
    if (n) add_sinks<<<(n + 7) / 8, 256, 0, st>>>(problem_of(s, NULL), n, out, stats);
}

/* A block for each head; its threads take tokens in turns, and their sums are added in order. */
static __global__ void __launch_bounds__(256)
    sink_gradients(problem p, uint32_t n_tokens, const float *lse, const float *delta, void *grad, bool wide)
{
    __shared__ float part[256];
    const uint32_t head = blockIdx.x;
    const float sink2 = __uint_as_float((uint32_t)p.sinks[head] << 16) * LOG2E;
    float sum = 0;
    for (uint32_t t = threadIdx.x; t < n_tokens; t += 256) {
        const size_t at = (size_t)t * p.heads + head;
        sum -= exp2_of(sink2 - lse[at] * LOG2E) * delta[at];
    }
    part[threadIdx.x] = sum;
    for (uint32_t step = 128; step; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
    }
    if (threadIdx.x) return;
    if (wide) {
        static_cast<float *>(grad)[head] += part[0];
    } else {
        __nv_bfloat16 *g = static_cast<__nv_bfloat16 *>(grad) + head;
        *g = __float2bfloat16_rn(__bfloat162float(*g) + part[0]);
    }
}

void gr_cu_sinks_backward(cudaStream_t st, const gr_cu_simple *s, const float *stats, const float *delta,
                          void *grad, gr_cu_dtype grad_type)
{
    if (s->n_tokens)
        sink_gradients<<<s->heads, 256, 0, st>>>(problem_of(s, NULL), s->n_tokens, stats, delta, grad,
                                                 grad_type == GR_CU_F32);
}

/* ---- what cuDNN is told of sequences --------------------------------------------------------------------
 */

static __global__ void index_sequences(const uint32_t *offset, uint32_t first, uint32_t n, uint32_t B,
                                       uint32_t width, uint32_t o_width, uint32_t stats_width,
                                       int32_t *length, int32_t *rows, int32_t *o_rows, int32_t *stats_rows)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i > B) return;
    const uint32_t at = offset[first + min(i, n)] - offset[first];
    if (i < B) length[i] = i < n ? offset[first + i + 1] - offset[first + i] : 0;
    rows[i] = at * width;
    o_rows[i] = at * o_width;
    stats_rows[i] = at * stats_width;
}

void gr_cu_attention_index(cudaStream_t st, const uint32_t *offset, uint32_t first, uint32_t n, uint32_t B,
                           uint32_t width, uint32_t o_width, uint32_t stats_width, int32_t *length,
                           int32_t *rows, int32_t *o_rows, int32_t *stats_rows)
{
    index_sequences<<<B / 256 + 1, 256, 0, st>>>(offset, first, n, B, width, o_width, stats_width, length,
                                                 rows, o_rows, stats_rows);
}
