/* ops/kernels/cuda/rope.cu: q and k norm and rotary embedding (the halves form of transformers), their
 * gradients, and the write of keys and values into the paged pool.
 *
 * A group of 1, 2, 4 ... 32 lanes holds a head, as ops/kernels/cuda/parts.h says. It walks several heads of
 * one token, so that the cosines and sines of its elements are computed once and stay in registers. Bound by
 * memory.
 */
#include "ops/kernels/cuda/chained.cuh"
#include "ops/kernels/cuda/fp8.cuh"

enum { BLOCK = GR_ROPE_BLOCK, KV_BLOCK = 16 /* GR_KV_BLOCK of ops/kernels/kernels.h */ };

/* What goes into the pool. */
enum store { NONE, WIDE, EIGHT /* FP8 */ };

template <int N> struct pair { /* a lane's share of a head */
    float low[N], high[N];
};

/* Where the elements of a lane, of which `at` is the first of D / 2, and their partners lie in a head. Of
 * heads of which a part is rotated the rest is cut in half as well, so that every element has a place. */
struct places {
    uint32_t low, high;
};

GR_DEVICE places places_of(const gr_cu_heads &h, uint32_t at)
{
    const uint32_t D = h.head_dim, half = (h.rotated ? h.rotated : D) / 2, rest = D / 2 - half;
    if (at < half) return {at, at + half};
    return {half + at, half + at + rest};
}

/* Where a token's row of raw begins. */
GR_DEVICE size_t raw_row(const gr_cu_heads &h, uint32_t t)
{
    return (size_t)t * (h.raw_ld ? h.raw_ld : (h.heads + 2 * h.kv_heads) * h.head_dim);
}

template <int N>
GR_DEVICE void angles(const gr_cu_heads &h, uint32_t at, int32_t position, float (&cosine)[N],
                      float (&sine)[N])
{
    float f[N];
#pragma unroll
    for (int i = 0; i < N; i++) f[i] = h.frequency[at + i];
#pragma unroll
    for (int i = 0; i < N; i++) gr_sine_cosine((float)position * f[i], &sine[i], &cosine[i]);
    if (h.factor == 0) return;
#pragma unroll
    for (int i = 0; i < N; i++) {
        cosine[i] *= h.factor;
        sine[i] *= h.factor;
    }
}

template <int N> GR_DEVICE float squares(const pair<N> &x)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++) sum = fmaf(x.high[i], x.high[i], fmaf(x.low[i], x.low[i], sum));
    return sum;
}

/* Over the lanes of a group, a power of two of them. */
GR_DEVICE float group_sum(float x, uint32_t lanes)
{
    for (uint32_t o = lanes / 2; o; o /= 2) x += __shfl_xor_sync(GR_ALL, x, o);
    return x;
}

GR_DEVICE uint32_t group_max(uint32_t x, uint32_t lanes)
{
    for (uint32_t o = lanes / 2; o; o /= 2) x = max(x, __shfl_xor_sync(GR_ALL, x, o));
    return x;
}

template <int N>
GR_DEVICE void rotate(pair<N> &x, const float (&cosine)[N], const float (&sine)[N], float sign)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float a = x.low[i], b = x.high[i], s = sign * sine[i];
        x.low[i] = fmaf(a, cosine[i], -(b * s));
        x.high[i] = fmaf(b, cosine[i], a * s);
    }
}

/* Weights of the norm of this head; NULL where it has none. */
GR_DEVICE const gr_bf16 *norm_of(const gr_cu_heads &h, const gr_bf16 *q_norm, const gr_bf16 *k_norm,
                                 uint32_t head)
{
    return head < h.heads ? q_norm : head < h.heads + h.kv_heads ? k_norm : NULL;
}

/* ---- forward
 * ----------------------------------------------------------------------------------------------- */

enum { BATCH = 4 }; /* heads whose loads are in flight together, where a group walks several */

struct forward {
    gr_cu_heads h;
    const gr_bf16 *raw, *q_norm, *k_norm;
    const int32_t *position;
    const uint32_t *slot;
    gr_bf16 *out;
    char *kv;
    uint64_t kv_half, kv_block; /* bytes: of all keys of a block, and of a block */
    uint32_t T, lanes;
    uint32_t n_heads;         /* that are walked: all, or q and k where v stays in place */
    uint32_t each, per_token; /* heads a group walks, groups that share a token */
};

/* Where head `head` (k or v) of a token goes in the pool. */
template <typename V> GR_DEVICE V *pool_at(const forward &p, uint32_t slot, uint32_t head)
{
    const uint32_t kv_heads = p.h.kv_heads, k = head - p.h.heads;
    const uint32_t within = k < kv_heads ? k : k - kv_heads;
    char *half = p.kv + slot / KV_BLOCK * p.kv_block + (k < kv_heads ? 0 : p.kv_half);
    return (V *)half + ((size_t)within * KV_BLOCK + slot % KV_BLOCK) * p.h.head_dim;
}

/* Its scale, where the pool is in FP8. */
GR_DEVICE float *scale_at(const forward &p, uint32_t slot, uint32_t head)
{
    const uint32_t kv_heads = p.h.kv_heads, k = head - p.h.heads;
    const uint32_t row = k < kv_heads ? 2 * k : 2 * (k - kv_heads) + 1; /* [kv_heads] [of K, of V] */
    float *scales = (float *)(p.kv + slot / KV_BLOCK * p.kv_block + 2 * p.kv_half);
    return scales + row * KV_BLOCK + slot % KV_BLOCK;
}

template <int N>
GR_DEVICE void finish_head(const forward &p, pair<N> &x, uint32_t head, places at, bool live,
                           const float (&cosine)[N], const float (&sine)[N])
{
    const gr_bf16 *w = norm_of(p.h, p.q_norm, p.k_norm, head);
    const bool is_v = head >= p.h.heads + p.h.kv_heads;
    const float sum = group_sum(squares(x), p.lanes), /* all lanes of the warp come here */
        inv = rsqrtf(sum / (float)p.h.head_dim + p.h.eps);
    if (is_v && p.h.value_norm) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            x.low[i] *= inv;
            x.high[i] *= inv;
        }
    } else if (w && live) {
        typedef typename gr_raw<N>::type raw;
        float low[N], high[N];
        gr_unpack(*(const raw *)(w + at.low), low);
        gr_unpack(*(const raw *)(w + at.high), high);
#pragma unroll
        for (int i = 0; i < N; i++) {
            x.low[i] = x.low[i] * inv * (p.h.one + low[i]);
            x.high[i] = x.high[i] * inv * (p.h.one + high[i]);
        }
    }
    if (!is_v) rotate(x, cosine, sine, 1);
}

/* Where a group is: its token, its lane's first element, its heads. */
struct group {
    uint32_t t, at, first, end;
    places in; /* a head */
    bool live; /* whether the lane has elements */
};

GR_DEVICE group group_of(const forward &p, uint32_t N)
{
    const uint32_t i = (blockIdx.x * BLOCK + threadIdx.x) / p.lanes;
    group g;
    g.t = i / p.per_token;
    g.at = threadIdx.x % p.lanes * N;
    g.first = i % p.per_token * p.each;
    g.end = g.first + p.each < p.n_heads ? g.first + p.each : p.n_heads;
    g.live = g.t < p.T && g.at < p.h.head_dim / 2;
    g.in = places_of(p.h, g.at);
    return g;
}

template <typename V, uint32_t B>
GR_DEVICE void load_heads(const gr_bf16 *raw, const group &g, uint32_t head, uint32_t D, V (&low)[B],
                          V (&high)[B])
{
#pragma unroll
    for (uint32_t j = 0; j < B; j++) {
        low[j] = high[j] = V{};
        if (!g.live || head + j >= g.end) continue;
        low[j] = *(const V *)(raw + (head + j) * D + g.in.low);
        high[j] = *(const V *)(raw + (head + j) * D + g.in.high);
    }
}

template <typename V>
GR_DEVICE void store_wide(const forward &p, uint32_t slot, uint32_t head, places at, const V (&y)[2])
{
    gr_bf16 *to = pool_at<gr_bf16>(p, slot, head);
    *(V *)(to + at.low) = y[0];
    *(V *)(to + at.high) = y[1];
}

/* most: of the head. first: the lane has its first element. */
template <typename V>
GR_DEVICE void store_eight(const forward &p, uint32_t slot, uint32_t head, places at, const V (&y)[2],
                           uint32_t most, bool first)
{
    typedef decltype(gr_fp8_rounded(V(), 0)) packed;
    const gr_block_scale s = gr_scale_of(most);
    uint8_t *to = pool_at<uint8_t>(p, slot, head);
    *(packed *)(to + at.low) = gr_fp8_rounded(y[0], s.inverse);
    *(packed *)(to + at.high) = gr_fp8_rounded(y[1], s.inverse);
    if (first) *scale_at(p, slot, head) = most < 0x7f800000u ? s.scale : NAN;
}

/* B: heads at once; 1 where a group has one. */
template <int N, store STORE, uint32_t B>
GR_KERNEL void __launch_bounds__(BLOCK) forward_kernel(const forward p)
{
    typedef typename gr_raw<N>::type raw;
    gr_chain_release();
    gr_chain_wait();
    const group g = group_of(p, N);
    const uint32_t D = p.h.head_dim, n_qk = p.h.heads + p.h.kv_heads;
    const uint32_t n_made = n_qk + (p.h.value_norm ? p.h.kv_heads : 0); /* heads that are not as they came */
    const size_t at = (size_t)g.t * (n_qk + p.h.kv_heads) * D, from_at = raw_row(p.h, g.t); /* of head 0 */
    raw low[B], high[B];
    load_heads(p.raw + from_at, g, g.first, D, low, high);
    const uint32_t slot = STORE != NONE && g.live ? p.slot[g.t] : UINT32_MAX;
    float cosine[N], sine[N];
    angles(p.h, g.live ? g.at : 0, g.live ? p.position[g.t] : 0, cosine, sine);
    for (uint32_t from = 0; from < p.each; from += B) { /* as often for all groups: lanes exchange sums */
        const uint32_t first = g.first + from;
        if (from) load_heads(p.raw + from_at, g, first, D, low, high);
#pragma unroll
        for (uint32_t j = 0; j < B; j++) {
            const uint32_t head = first + j;
            const bool here = g.live && head < g.end;
            pair<N> x;
            gr_unpack(low[j], x.low);
            gr_unpack(high[j], x.high);
            finish_head(p, x, head, g.in, here, cosine, sine);
            const raw y[2] = {head < n_made ? gr_pack(x.low) : low[j],
                              head < n_made ? gr_pack(x.high) : high[j]};
            const uint32_t most =
                STORE == EIGHT ? group_max(max(gr_largest(y[0]), gr_largest(y[1])), p.lanes) : 0;
            if (!here) continue;
            if (head < n_made || p.out != p.raw) {
                *(raw *)(p.out + at + head * D + g.in.low) = y[0];
                *(raw *)(p.out + at + head * D + g.in.high) = y[1];
            }
            if (STORE == NONE || head < p.h.heads || slot == UINT32_MAX) continue;
            if (STORE == EIGHT)
                store_eight(p, slot, head, g.in, y, most, g.at == 0);
            else
                store_wide(p, slot, head, g.in, y);
        }
    }
}

/* Of a rollout behind a product or a norm, which are kernels; else on its own. */
template <store STORE>
static void launch(cudaStream_t st, void (*kernel)(forward), uint32_t grid, const forward &p)
{
    if (STORE != NONE)
        gr_chain(st, kernel, dim3(grid), dim3(BLOCK), 0, p);
    else
        kernel<<<grid, BLOCK, 0, st>>>(p);
}

template <store STORE> static void launch_forward(cudaStream_t st, forward p)
{
    if (!p.T) return;
    const uint32_t D = p.h.head_dim, N = gr_rope_width(D);
    p.n_heads = p.h.heads + p.h.kv_heads * (STORE != NONE || p.out != p.raw || p.h.value_norm ? 2 : 1);
    p.lanes = gr_rope_lanes(D);
    /* Few tokens: a head a group, for parallelism. Many: more heads, for fewer sines. A head's result is the
     * same. */
    const uint64_t lanes = (uint64_t)p.T * p.n_heads * p.lanes;
    p.each = lanes >= 8 * 132 * 2048 ? 8 : lanes >= 132 * 2048 ? 4 : 1;
    p.per_token = gr_ceil_div(p.n_heads, p.each);
    const uint32_t grid = gr_ceil_div((uint64_t)p.T * p.per_token * p.lanes, BLOCK);
    if (N == 8 && p.each == 1)
        launch<STORE>(st, forward_kernel<8, STORE, 1>, grid, p);
    else if (N == 8)
        launch<STORE>(st, forward_kernel<8, STORE, BATCH>, grid, p);
    else if (p.each == 1)
        launch<STORE>(st, forward_kernel<4, STORE, 1>, grid, p);
    else
        launch<STORE>(st, forward_kernel<4, STORE, BATCH>, grid, p);
}

extern "C" void gr_cu_qk_rope(cudaStream_t st, const gr_cu_heads *h, const gr_bf16 *raw,
                              const gr_bf16 *q_norm, const gr_bf16 *k_norm, const int32_t *position,
                              gr_bf16 *out, uint32_t T)
{
    forward p = {*h, raw, q_norm, k_norm, position, NULL, out, NULL, 0, 0, T, 0, 0, 0, 0};
    launch_forward<NONE>(st, p);
}

extern "C" void gr_cu_qk_rope_store(cudaStream_t st, const gr_cu_heads *h, const gr_bf16 *raw,
                                    const gr_bf16 *q_norm, const gr_bf16 *k_norm, const int32_t *position,
                                    const uint32_t *slot, gr_bf16 *out, void *kv, uint32_t T)
{
    forward p = {
        *h, raw, q_norm, k_norm, position, slot, out, (char *)kv, gr_cu_kv_half_bytes(h), gr_cu_kv_block(h),
        T,  0,   0,      0,      0};
    if (h->kv_fp8)
        launch_forward<EIGHT>(st, p);
    else
        launch_forward<WIDE>(st, p);
}

/* ---- gradient
 * ---------------------------------------------------------------------------------------------- Rotated
 * back, d is the gradient of the norm's output; then as RMSNorm's (ops/kernels/cuda/norm.cu). A lane keeps
 * its columns of the weight's gradient in registers. Blocks and parts as ops/kernels/cuda/parts.h says: those
 * of q come first, then those of k; where values have a norm theirs follow, which leave no parts.
 */

enum { HEADS = GR_ROPE_HEADS, BACK_BATCH = 2, WARPS = BLOCK / GR_WARP, HEAD_MOST = 512 };

struct backward {
    gr_cu_heads h;
    const gr_bf16 *raw, *q_norm, *k_norm;
    const int32_t *position;
    gr_bf16 *d;
    float *parts;
    uint32_t T, lanes;
    uint32_t k_from, v_from; /* blockIdx.y from these on is of k, and of v */
};

/* Gradient through the norm of one head, in place; adds to the lane's columns of the weight's gradient. */
template <int N>
GR_DEVICE void norm_back(const backward &p, const pair<N> &x, pair<N> &d, const pair<N> &w, pair<N> &grad)
{
    float dot = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        dot = fmaf(x.low[i], d.low[i] * w.low[i], dot);
        dot = fmaf(x.high[i], d.high[i] * w.high[i], dot);
    }
    const float over = 1 / (float)p.h.head_dim, xx = group_sum(squares(x), p.lanes),
                xd = group_sum(dot, p.lanes);
    const float inv = rsqrtf(xx * over + p.h.eps), c = inv * xd * over;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float a = x.low[i] * inv, b = x.high[i] * inv;
        grad.low[i] = fmaf(d.low[i], a, grad.low[i]);
        grad.high[i] = fmaf(d.high[i], b, grad.high[i]);
        d.low[i] = inv * fmaf(-c, a, d.low[i] * w.low[i]);
        d.high[i] = inv * fmaf(-c, b, d.high[i] * w.high[i]);
    }
}

template <int N> GR_DEVICE void load_pair(const gr_bf16 *p, places at, bool live, pair<N> &x)
{
    typedef typename gr_raw<N>::type raw;
    raw low = {}, high = {};
    if (live) {
        low = *(const raw *)(p + at.low);
        high = *(const raw *)(p + at.high);
    }
    gr_unpack(low, x.low);
    gr_unpack(high, x.high);
}

/* Over the groups of the block, in order: first those of a warp by exchange, then the warps. */
template <int N> GR_DEVICE void leave_part(pair<N> &grad, const gr_cu_heads &h, uint32_t lanes, float *part)
{
    __shared__ float sums[WARPS][HEAD_MOST];
    const uint32_t lane = threadIdx.x % GR_WARP, warp = threadIdx.x / GR_WARP, at = lane * N, D = h.head_dim;
    const places in = places_of(h, at);
#pragma unroll
    for (int i = 0; i < N; i++)
        for (uint32_t o = lanes; o < GR_WARP; o *= 2) {
            grad.low[i] += __shfl_xor_sync(GR_ALL, grad.low[i], o);
            grad.high[i] += __shfl_xor_sync(GR_ALL, grad.high[i], o);
        }
    if (lane < lanes && at < D / 2) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            sums[warp][in.low + i] = grad.low[i];
            sums[warp][in.high + i] = grad.high[i];
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < D; i += BLOCK) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < WARPS; k++) sum += sums[k][i];
        part[i] = sum;
    }
}

/* The heads of a block: [first, end) of q, of k or of v. */
struct span {
    bool is_q, is_v;
    uint32_t first, end;
};

GR_DEVICE span span_of(const backward &p, uint32_t block)
{
    const uint32_t heads = p.h.heads, kv_heads = p.h.kv_heads;
    span s = {block < p.k_from, block >= p.v_from, 0, 0};
    const uint32_t before = s.is_q   ? 0
                            : s.is_v ? heads + kv_heads
                                     : heads,
                   from = s.is_q   ? 0
                          : s.is_v ? p.v_from
                                   : p.k_from;
    s.first = before + (block - from) * HEADS;
    s.end = min(s.first + HEADS, before + (s.is_q ? heads : kv_heads));
    return s;
}

/* Factors of a lane's columns: of v, 1. */
template <int N>
GR_DEVICE void load_factors(const backward &p, const span &s, places in, bool live, pair<N> &w)
{
#pragma unroll
    for (int i = 0; i < N; i++) w.low[i] = w.high[i] = 1;
    if (s.is_v) return;
    load_pair(s.is_q ? p.q_norm : p.k_norm, in, live, w);
#pragma unroll
    for (int i = 0; i < N; i++) {
        w.low[i] += p.h.one;
        w.high[i] += p.h.one;
    }
}

template <int N, bool NORM> GR_KERNEL void __launch_bounds__(BLOCK) backward_kernel(const backward p)
{
    typedef typename gr_raw<N>::type raw;
    const uint32_t D = p.h.head_dim, half = D / 2, at = threadIdx.x % p.lanes * N, groups = BLOCK / p.lanes;
    const span own = span_of(p, blockIdx.y);
    pair<N> w, grad = {};
    const places in = places_of(p.h, at);
    if (NORM) load_factors(p, own, in, at < half, w);
    for (uint32_t from = blockIdx.x * groups; from < p.T; from += gridDim.x * groups) {
        const uint32_t t = from + threadIdx.x / p.lanes;
        const bool live = t < p.T && at < half;
        const size_t row = (size_t)t * (p.h.heads + 2 * p.h.kv_heads) * D, from_row = raw_row(p.h, t);
        float cosine[N], sine[N];
        angles(p.h, live ? at : 0, live ? p.position[t] : 0, cosine, sine);
        for (uint32_t head = own.first; head < own.end; head += BACK_BATCH) {
            pair<N> x[BACK_BATCH], d[BACK_BATCH];
#pragma unroll
            for (uint32_t j = 0; j < BACK_BATCH; j++) {
                const bool here = live && head + j < own.end;
                load_pair(p.d + row + (head + j) * D, in, here, d[j]);
                if (NORM) load_pair(p.raw + from_row + (head + j) * D, in, here, x[j]);
            }
#pragma unroll
            for (uint32_t j = 0; j < BACK_BATCH; j++) {
                if (!own.is_v) rotate(d[j], cosine, sine, -1);
                if (NORM)
                    norm_back(p, x[j], d[j], w, grad); /* all lanes of the warp come here; dead ones add 0 */
                if (!live || head + j >= own.end) continue;
                *(raw *)(p.d + row + (head + j) * D + in.low) = gr_pack(d[j].low);
                *(raw *)(p.d + row + (head + j) * D + in.high) = gr_pack(d[j].high);
            }
        }
    }
    if (NORM && !own.is_v)
        leave_part(grad, p.h, p.lanes, p.parts + (size_t)(blockIdx.y * gridDim.x + blockIdx.x) * D);
}

template <int N> static void launch_backward(cudaStream_t st, const backward &p, dim3 grid)
{
    if (p.q_norm)
        backward_kernel<N, true><<<grid, BLOCK, 0, st>>>(p);
    else
        backward_kernel<N, false><<<grid, BLOCK, 0, st>>>(p);
}

extern "C" void gr_cu_qk_rope_backward(cudaStream_t st, const gr_cu_heads *h, const gr_bf16 *raw,
                                       const gr_bf16 *q_norm, const gr_bf16 *k_norm, const int32_t *position,
                                       gr_bf16 *d, void *grad_q_norm, void *grad_k_norm,
                                       gr_cu_dtype grad_type, uint32_t T, void *ws)
{
    if (!T) return;
    assert((!h->kv_heads || !q_norm == !k_norm) && (q_norm || !h->value_norm));
    const uint32_t D = h->head_dim, q = gr_rope_blocks(h->heads), k = gr_rope_blocks(h->kv_heads);
    const dim3 grid(gr_rope_blocks_along(T, D, q + k), q + k + (h->value_norm ? k : 0));
    const backward p = {*h, raw, q_norm, k_norm, position, d, (float *)ws, T, gr_rope_lanes(D), q, q + k};
    if (gr_rope_width(D) == 8)
        launch_backward<8>(st, p, grid);
    else
        launch_backward<4>(st, p, grid);
    if (!q_norm) return;
    if (grad_q_norm) gr_cu_parts_add(st, p.parts, q * grid.x, D, grad_q_norm, grad_type);
    if (grad_k_norm)
        gr_cu_parts_add(st, p.parts + (size_t)q * grid.x * D, k * grid.x, D, grad_k_norm, grad_type);
}
