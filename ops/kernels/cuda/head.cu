/* ops/kernels/cuda/head.cu: statistics of rows of logits, and the logits' gradients in their place. One block
 * a row; bound by memory: 4 bytes a logit read, and 2 written by the gradient.
 */
#include "ops/kernels/cuda/softmax.cuh"

enum { BLOCK = 256, WARPS = BLOCK / GR_WARP };

struct outputs {
    float *logprob, *entropy, *sum_p2, *lse;
    float *part; /* [n, PART] in place of all others; NULL: not that */
};

enum { PART = 5 }; /* GR_HEAD_PART */

struct stats {
    const float *logits;
    const int32_t *target;
    float inv_temperature;
    uint32_t V, tiles;
    outputs out;
};

/* z: the target's logit. Entropy = log S - (sum of e (z - max)) / S: two terms of one sign, nothing cancels.
 */
GR_DEVICE void write_stats(const outputs &to, uint32_t row, const gr_row_sums &r, float z, float c)
{
    if (to.part) {
        float *p = to.part + (size_t)row * PART;
        p[0] = r.y_max, p[1] = r.sum, p[2] = r.first, p[3] = r.second, p[4] = z;
        return;
    }
    const float log2_sum = log2f(r.sum);
    to.lse[row] = GR_LN_2 * (r.y_max + log2_sum);
    if (to.logprob) to.logprob[row] = gr_row_logprob(r, z, c);
    if (to.entropy) to.entropy[row] = GR_LN_2 * (log2_sum - r.first / r.sum);
    if (to.sum_p2) to.sum_p2[row] = r.second / (r.sum * r.sum);
}

/* Of the block's row, where it is asked for and is there. */
GR_DEVICE float target_logit(const stats &p, const float *row)
{
    if (!p.out.logprob && !p.out.part) return 0;
    const int32_t target = p.target[blockIdx.x];
    return target < 0 ? 0 : row[target];
}

template <bool VECTOR> GR_KERNEL void __launch_bounds__(BLOCK) stats_kernel(const stats p)
{
    extern __shared__ gr_tile_sums tiles[]; /* [p.tiles] */
    const float c = __fmul_rn(p.inv_temperature, GR_LOG2_E);
    const float *row = p.logits + (size_t)blockIdx.x * p.V;
    for (uint32_t i = threadIdx.x / GR_WARP; i < p.tiles; i += WARPS) {
        float z[GR_TILE_EACH];
        gr_tile_load<VECTOR>(row, p.V, i, z);
        const gr_tile_sums s = gr_tile_sum<true>(z, c);
        if (threadIdx.x % GR_WARP == 0) tiles[i] = s;
    }
    __syncthreads();
    if (threadIdx.x >= GR_WARP) return;
    const gr_row_sums r = gr_tiles_merge<true>(tiles, p.tiles, c);
    if (!threadIdx.x) write_stats(p.out, blockIdx.x, r, target_logit(p, row), c);
}

static void row_stats(cudaStream_t st, const float *logits, const int32_t *target, float inv_temperature,
                      uint32_t n, uint32_t V, const outputs &out)
{
    if (!n) return;
    const stats p = {logits, target, inv_temperature, V, gr_ceil_div(V, GR_TILE), out};
    const size_t shared = p.tiles * sizeof(gr_tile_sums);
    assert(shared <= 48 * 1024); /* V up to 3 million */
    if (V % 4)
        stats_kernel<false><<<n, BLOCK, shared, st>>>(p);
    else
        stats_kernel<true><<<n, BLOCK, shared, st>>>(p);
}

extern "C" void gr_cu_head_stats(cudaStream_t st, const float *logits, const int32_t *target,
                                 float inv_temperature, uint32_t n, uint32_t V, float *logprob,
                                 float *entropy, float *sum_p2, float *lse)
{
    row_stats(st, logits, target, inv_temperature, n, V, {logprob, entropy, sum_p2, lse, nullptr});
}

extern "C" void gr_cu_head_part_stats(cudaStream_t st, const float *logits, const int32_t *target,
                                      float inv_temperature, uint32_t n, uint32_t V, float *part)
{
    row_stats(st, logits, target, inv_temperature, n, V, {nullptr, nullptr, nullptr, nullptr, part});
}

/* The sums that gr_cu_head_product leaves: one warp a row. */
GR_KERNEL void __launch_bounds__(BLOCK) merge_kernel(const gr_cu_head_rows p, const outputs to)
{
    const uint32_t row = blockIdx.x * WARPS + threadIdx.x / GR_WARP;
    const uint32_t tiles = (p.V + GR_CU_HEAD_IDS - 1) / GR_CU_HEAD_IDS;
    if (row >= p.n) return;
    const float c = __fmul_rn(p.inv_temperature, GR_LOG2_E);
    const gr_row_sums r = gr_tiles_merge<true>((const gr_tile_sums *)p.part + (size_t)row * tiles, tiles, c);
    if (threadIdx.x % GR_WARP == 0) write_stats(to, row, r, p.target[row] < 0 ? 0 : p.logit[row], c);
}

extern "C" void gr_cu_head_merge(cudaStream_t st, const gr_cu_head_rows *r, float *logprob, float *entropy,
                                 float *sum_p2, float *lse)
{
    const outputs to = {logprob, entropy, sum_p2, lse, nullptr};
    if (r->n) merge_kernel<<<gr_ceil_div(r->n, WARPS), BLOCK, 0, st>>>(*r, to);
}

extern "C" void gr_cu_head_part_merge(cudaStream_t st, const gr_cu_head_rows *r, float *part)
{
    const outputs to = {nullptr, nullptr, nullptr, nullptr, part};
    if (r->n) merge_kernel<<<gr_ceil_div(r->n, WARPS), BLOCK, 0, st>>>(*r, to);
}

/* The parts of a vocabulary in their order, one thread a row: every rank gets the same bits. */
GR_KERNEL void __launch_bounds__(BLOCK) join_kernel(const float *__restrict__ part, uint32_t slices,
                                                    uint32_t n, float inv_temperature, const outputs to)
{
    const uint32_t row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= n) return;
    gr_row_sums r = {-FLT_MAX, 0, 0, 0};
    float z = 0;
    for (uint32_t k = 0; k < slices; k++) r.y_max = fmaxf(r.y_max, part[((size_t)k * n + row) * PART]);
    for (uint32_t k = 0; k < slices; k++) {
        const float *p = part + ((size_t)k * n + row) * PART;
        const float d = __fadd_rn(p[0], -r.y_max), f = gr_exp2(d);
        r.sum = __fmaf_rn(p[1], f, r.sum);
        r.first = fmaf(f, fmaf(p[1], fmaxf(d, -1e4f), p[2]), r.first);
        r.second = fmaf(f * f, p[3], r.second);
        z += p[4];
    }
    write_stats(to, row, r, z, __fmul_rn(inv_temperature, GR_LOG2_E));
}

extern "C" void gr_cu_head_join(cudaStream_t st, const float *part, uint32_t slices, uint32_t n,
                                float inv_temperature, float *logprob, float *entropy, float *sum_p2,
                                float *lse)
{
    const outputs to = {logprob, entropy, sum_p2, lse, nullptr};
    if (n) join_kernel<<<gr_ceil_div(n, BLOCK), BLOCK, 0, st>>>(part, slices, n, inv_temperature, to);
}

/* ---- gradient
 * ------------------------------------------------------------------------------------------------ d loss / d
 * z_i = inv_t (d_logprob (1[i = target] - p_i) - d_entropy p_i (log p_i + entropy) + d_divergence slope_i),
 * the last where there is a teacher (TAUGHT).
 *
 * In place, and narrower: the bf16 of logit i goes to byte 2 i of the row, over the fp32 of logit i / 2. One
 * block walks a row upwards in tiles of B = STEP logits: all threads read tile k, meet at a barrier, write
 * tile k. That is safe:
 *  - what is written for tile k, bytes [2 k B, 2 (k + 1) B), held logits [k B / 2, (k + 1) B / 2). These
 * belong to tiles 0 .. k, since (k + 1) B / 2 <= (k + 1) B; and every thread has read tiles 0 .. k before the
 * barrier that precedes the write.
 *  - a thread that has run ahead reads tile k + 1 (or, asking early, k + 2) while others still write tile k:
 * logits from (k + 1) B on, and nothing from (k + 1) B / 2 on has been written by then. It cannot write tile
 * k + 1 before all have come to the next barrier, that is, have read tile k + 1. target, lse and the other
 * inputs lie elsewhere.
 */

enum { STEP_EACH = 16, STEP = BLOCK * STEP_EACH };

struct gradient {
    float *logits;
    gr_cu_head_adjoint a;
    float over_cap; /* 1 / the cap of logits, 0 where there is none */
};

struct row_gradient { /* of one row, base 2 */
    float c, lse, entropy, d_logprob, d_entropy, d_divergence, over_cap;
    uint32_t target;
    const float *slope;
};

template <bool TAUGHT> GR_DEVICE row_gradient row_of(const gradient &p)
{
    const uint32_t row = blockIdx.x;
    const gr_cu_head_adjoint &a = p.a;
    row_gradient r;
    r.c = __fmul_rn(a.inv_temperature, GR_LOG2_E);
    r.lse = a.lse[row] * GR_LOG2_E;
    r.d_logprob = a.d_logprob[row] * a.inv_temperature;
    r.d_entropy = a.d_entropy ? a.d_entropy[row] * a.inv_temperature : 0;
    r.entropy = a.d_entropy ? a.entropy[row] : 0;
    r.target = (uint32_t)a.target[row];
    r.over_cap = p.over_cap;
    r.slope = TAUGHT ? a.slope + (size_t)row * a.V : nullptr;
    r.d_divergence = TAUGHT ? a.d_divergence[row] * a.inv_temperature : 0;
    return r;
}

template <bool TAUGHT> GR_DEVICE float logit_gradient(const row_gradient &r, float z, uint32_t id)
{
    const float log2_p = fmaxf(fmaf(z, r.c, -r.lse), -1e4f), p = gr_exp2(log2_p);
    const float weight = fmaf(r.d_entropy, fmaf(GR_LN_2, log2_p, r.entropy), r.d_logprob);
    /* z = cap th: the slope of the cap is 1 - th^2. Without a cap z may be -inf, whose product is no number.
     */
    const float th = r.over_cap > 0 ? z * r.over_cap : 0;
    float d = fmaf(-p, weight, id == r.target ? r.d_logprob : 0);
    if (TAUGHT) d = fmaf(r.d_divergence, r.slope[id], d);
    return d * fmaf(-th, th, 1);
}

/* A thread's logits of a tile, in vectors that become one of bf16 each. V is a multiple of 4: rows begin on
 * 16 bytes. */
struct tile {
    float z[STEP_EACH / 8][8];
};

GR_DEVICE void load_tile(const float *row, uint32_t first, uint32_t V, tile &t)
{
#pragma unroll
    for (int j = 0; j < STEP_EACH / 8; j++)
#pragma unroll
        for (int h = 0; h < 8; h += 4) {
            const uint32_t id = first + 8 * (j * BLOCK + threadIdx.x) + h;
            const float4 v = id < V ? *(const float4 *)(row + id) : make_float4(0, 0, 0, 0);
            t.z[j][h] = v.x, t.z[j][h + 1] = v.y, t.z[j][h + 2] = v.z, t.z[j][h + 3] = v.w;
        }
}

template <bool TAUGHT>
GR_DEVICE void store_tile(const row_gradient &r, float *row, uint32_t first, uint32_t V, tile &t)
{
#pragma unroll
    for (int j = 0; j < STEP_EACH / 8; j++) {
        const uint32_t id = first + 8 * (j * BLOCK + threadIdx.x);
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (!TAUGHT || id + i < V) t.z[j][i] = logit_gradient<TAUGHT>(r, t.z[j][i], id + i);
        const uint4 v = gr_pack(t.z[j]);
        gr_bf16 *to = (gr_bf16 *)row + id;
        if (id + 8 <= V)
            *(uint4 *)to = v;
        else if (id < V)
            *(uint2 *)to = make_uint2(v.x, v.y);
    }
}

/* Tile k + 1 is asked for before tile k is written, so that loads are always in flight. */
template <bool TAUGHT> GR_KERNEL void __launch_bounds__(BLOCK) gradient_kernel(const gradient p)
{
    const uint32_t V = p.a.V;
    float *row = p.logits + (size_t)blockIdx.x * V;
    tile t, next;
    load_tile(row, 0, V, t);
    const row_gradient r = row_of<TAUGHT>(p);
    for (uint32_t first = 0; first < V; first += STEP) {
        load_tile(row, first + STEP, V, next);
        __syncthreads(); /* see above */
        store_tile<TAUGHT>(r, row, first, V, t);
        t = next;
    }
}

/* Any V. */
template <bool TAUGHT> GR_KERNEL void __launch_bounds__(BLOCK) gradient_any_kernel(const gradient p)
{
    const uint32_t V = p.a.V;
    const row_gradient r = row_of<TAUGHT>(p);
    float *from = p.logits + (size_t)blockIdx.x * V;
    gr_bf16 *to = (gr_bf16 *)from;
    for (uint32_t first = 0; first < V; first += STEP) {
        float z[STEP_EACH];
#pragma unroll
        for (int j = 0; j < STEP_EACH; j++) {
            const uint32_t id = first + j * BLOCK + threadIdx.x;
            z[j] = id < V ? from[id] : 0;
        }
        __syncthreads(); /* see above */
#pragma unroll
        for (int j = 0; j < STEP_EACH; j++) {
            const uint32_t id = first + j * BLOCK + threadIdx.x;
            if (id < V) to[id] = gr_round(logit_gradient<TAUGHT>(r, z[j], id));
        }
    }
}

template <bool TAUGHT> static void launch_gradient(cudaStream_t st, const gradient &p)
{
    if (p.a.V % 4)
        gradient_any_kernel<TAUGHT><<<p.a.n, BLOCK, 0, st>>>(p);
    else
        gradient_kernel<TAUGHT><<<p.a.n, BLOCK, 0, st>>>(p);
}

extern "C" void gr_cu_head_dlogits(cudaStream_t st, float *logits, const gr_cu_head_adjoint *a)
{
    if (!a->n) return;
    assert(!a->d_entropy || a->entropy);
    const gradient p = {logits, *a, a->cap > 0 ? 1 / a->cap : 0};
    if (a->slope)
        launch_gradient<true>(st, p);
    else
        launch_gradient<false>(st, p);
}

/* ---- caps ------------------------------------------------------------------------------------------------
 */

GR_KERNEL void __launch_bounds__(BLOCK) cap_kernel(float *logits, float cap, uint64_t n)
{
    const uint64_t i = (uint64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) logits[i] = cap * tanhf(logits[i] / cap);
}

extern "C" void gr_cu_head_cap(cudaStream_t st, float *logits, float cap, uint64_t n)
{
    if (n) cap_kernel<<<gr_ceil_div(n, BLOCK), BLOCK, 0, st>>>(logits, cap, n);
}
