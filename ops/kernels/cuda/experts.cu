/* ops/kernels/cuda/experts.cu: routers of mixtures of experts, the sorting of choices, and what moves rows:
 * all bound by memory or by launches. Sums and comparisons have orders that sizes alone decide.
 */
#include "ops/kernels/cuda/device.cuh"
#include "ops/kernels/cuda/experts.h"

enum { BLOCK = 256, WARPS = BLOCK / GR_WARP };

/* ---- router: a warp a token, experts dealt to its lanes
 * ---------------------------------------------------- */

GR_KERNEL void __launch_bounds__(BLOCK)
    bias_kernel(float *logits, const gr_bf16 *bias, uint64_t n, uint32_t E)
{
    const uint64_t i = (uint64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) logits[i] += gr_float(bias[i % E]);
}

/* Floats in an order that all of them have; 0: not to be chosen. As order_of of
 * ops/kernels/cpu/experts_cpu.c. */
GR_DEVICE uint32_t order_of(float x)
{
    const uint32_t bits = __float_as_uint(x + 0.0f), up = bits >> 31 ? ~bits : bits | 1u << 31;
    return max(up, 1u);
}

/* A token's scores: expert lane + 32 i in part i. Sigmoids, or numerators of a softmax. */
template <int PARTS> struct scores {
    float z[PARTS], score[PARTS], sum;

    __device__ scores(const gr_cu_router &r, const float *logits)
    {
        const uint32_t lane = threadIdx.x % GR_WARP;
        float most = -INFINITY, own = 0;
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            z[i] = lane + GR_WARP * i < r.count ? logits[lane + GR_WARP * i] : -INFINITY;
            most = fmaxf(most, z[i]);
        }
        most = gr_warp_max(most);
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            const bool in = lane + GR_WARP * i < r.count;
            score[i] = !in ? 0 : r.sigmoid ? 1 / (1 + expf(-z[i])) : expf(z[i] - most);
            own += score[i];
        }
        sum = gr_warp_sum(own);
    }

    /* Of one expert, for every lane. */
    __device__ float of(uint32_t expert) const
    {
        float x = 0;
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            if (expert / GR_WARP == (uint32_t)i) x = score[i];
        return __shfl_sync(GR_ALL, x, expert % GR_WARP);
    }
};

/* The n best keys of a warp, lane + 32 i in part i, best first and equal ones by index; lane j ends with the
 * j-th. Their keys become 0. */
template <int PARTS> GR_DEVICE uint32_t take_best(uint32_t (&key)[PARTS], uint32_t n)
{
    const uint32_t lane = threadIdx.x % GR_WARP;
    uint32_t mine = 0;
    for (uint32_t j = 0; j < n; j++) {
        uint32_t best = 0, at = UINT32_MAX;
#pragma unroll
        for (int i = 0; i < PARTS; i++) best = max(best, key[i]);
        best = __reduce_max_sync(GR_ALL, best);
#pragma unroll
        for (int i = PARTS - 1; i >= 0; i--)
            if (key[i] == best) at = lane + GR_WARP * i;
        at = __reduce_min_sync(GR_ALL, at);
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            if (at == lane + GR_WARP * i) key[i] = 0;
        if (lane == j) mine = at;
    }
    return mine;
}

/* by [count] in shared memory, the warp's own: keys of experts outside the best groups become 0. A group is a
 * lane. */
template <int PARTS>
GR_DEVICE void keep_groups(const gr_cu_router &r, const float *by, uint32_t (&key)[PARTS])
{
    const uint32_t lane = threadIdx.x % GR_WARP, size = r.count / r.groups;
    float first = -INFINITY, second = -INFINITY;
    for (uint32_t i = lane * size; lane < r.groups && i < (lane + 1) * size; i++) {
        if (by[i] > first) {
            second = first;
            first = by[i];
        } else {
            second = fmaxf(second, by[i]);
        }
    }
    uint32_t group[1] = {lane < r.groups ? order_of(size > 1 ? first + second : first) : 0};
    take_best(group, r.top_groups);
    const uint32_t kept = __ballot_sync(GR_ALL, group[0] == 0 && lane < r.groups);
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        if (!(kept >> ((lane + GR_WARP * i) / size % GR_WARP) & 1)) key[i] = 0;
}

/* As gr_selection_sum of ops/model/model.h. */
GR_DEVICE float sum_of(uint2 parts)
{
    float x[4];
    gr_unpack(parts, x);
    return x[0] + x[1] + x[2] + x[3];
}

template <int PARTS>
GR_DEVICE uint32_t choose(const gr_cu_router &r, const scores<PARTS> &s, const uint2 *selection, float *by)
{
    const uint32_t lane = threadIdx.x % GR_WARP;
    const bool plain = !r.sigmoid && !selection && r.groups < 2;
    uint32_t key[PARTS];
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        const uint32_t e = lane + GR_WARP * i;
        float x = plain ? s.z[i] : r.sigmoid ? s.score[i] : __fdiv_rn(s.score[i], s.sum);
        if (selection && e < r.count) x += sum_of(selection[e]);
        key[i] = e < r.count ? order_of(x) : 0;
        if (e < r.count) by[e] = x;
    }
    __syncwarp();
    if (r.groups > 1) keep_groups(r, by, key);
    return take_best(key, r.top_k);
}

/* What scores are divided by; lane j < k has the j-th chosen one. As divisor of
 * ops/kernels/cpu/experts_cpu.c. */
GR_DEVICE float divisor(const gr_cu_router &r, float sum, float chosen)
{
    if (!r.over_chosen) return r.sigmoid ? 1 : sum;
    return gr_warp_sum(threadIdx.x % GR_WARP < r.top_k ? chosen : 0) + 1e-20f;
}

/* The score of the expert that each lane j < k has. */
template <int PARTS> GR_DEVICE float chosen_of(const gr_cu_router &r, const scores<PARTS> &s, uint32_t expert)
{
    float own = 0;
    for (uint32_t j = 0; j < r.top_k; j++) {
        const float x = s.of(__shfl_sync(GR_ALL, expert, j));
        if (threadIdx.x % GR_WARP == j) own = x;
    }
    return own;
}

template <int PARTS>
GR_KERNEL void __launch_bounds__(BLOCK)
    route_kernel(const gr_cu_router r, const float *__restrict__ logits, const uint2 *__restrict__ selection,
                 const uint16_t *given, uint32_t T, uint16_t *expert, float *__restrict__ weight)
{
    __shared__ float by[WARPS][PARTS * GR_WARP];
    const uint32_t warp = threadIdx.x / GR_WARP, lane = threadIdx.x % GR_WARP, t = blockIdx.x * WARPS + warp;
    if (t >= T) return;
    const size_t at = (size_t)t * r.top_k + lane;
    const scores<PARTS> s(r, logits + (size_t)t * r.count);
    uint32_t e;
    if (given && given[(size_t)t * r.top_k] != UINT16_MAX)
        e = lane < r.top_k ? given[at] : 0;
    else
        e = choose(r, s, selection, by[warp]);
    const float chosen = chosen_of(r, s, e), below = divisor(r, s.sum, chosen);
    if (lane >= r.top_k) return;
    expert[at] = (uint16_t)e;
    weight[at] = r.scale * __fdiv_rn(chosen, below);
}

/* As token_backward of ops/kernels/cpu/experts_cpu.c. */
template <int PARTS>
GR_KERNEL void __launch_bounds__(BLOCK)
    route_back_kernel(const gr_cu_router r, const float *__restrict__ logits,
                      const uint16_t *__restrict__ expert, const float *__restrict__ d_weight, uint32_t T,
                      gr_bf16 *__restrict__ d_logits)
{
    const uint32_t lane = threadIdx.x % GR_WARP, t = blockIdx.x * WARPS + threadIdx.x / GR_WARP;
    if (t >= T) return;
    const size_t at = (size_t)t * r.top_k + lane;
    const scores<PARTS> s(r, logits + (size_t)t * r.count);
    const bool in = lane < r.top_k;
    const uint32_t e = in ? expert[at] : 0;
    const float chosen = chosen_of(r, s, e), below = divisor(r, s.sum, chosen),
                g = in ? r.scale * d_weight[at] : 0;
    const bool all = !r.sigmoid && !r.over_chosen; /* every score is in what they are divided by */
    float dot = gr_warp_sum(in ? __fdiv_rn(chosen, below) * g : 0);
    if (r.sigmoid && !r.over_chosen) dot = 0;
    const float slope = __fdiv_rn(chosen, below) * (r.sigmoid ? 1 - chosen : 1) * (g - dot);
    float d[PARTS];
#pragma unroll
    for (int i = 0; i < PARTS; i++) d[i] = all ? -__fdiv_rn(s.score[i], below) * dot : 0;
    for (uint32_t j = 0; j < r.top_k; j++) {
        const uint32_t to = __shfl_sync(GR_ALL, e, j);
        const float x = __shfl_sync(GR_ALL, slope, j);
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            if (to == lane + GR_WARP * i) d[i] = x;
    }
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        if (lane + GR_WARP * i < r.count) d_logits[(size_t)t * r.count + lane + GR_WARP * i] = gr_round(d[i]);
}

extern "C" void gr_cu_router_bias(cudaStream_t st, float *logits, const gr_bf16 *bias, uint32_t T, uint32_t E)
{
    const uint64_t n = (uint64_t)T * E;
    if (n) bias_kernel<<<gr_ceil_div(n, BLOCK), BLOCK, 0, st>>>(logits, bias, n, E);
}

extern "C" void gr_cu_route(cudaStream_t st, const gr_cu_router *r, const float *logits,
                            const gr_bf16 *selection, const uint16_t *given, uint32_t T, uint16_t *expert,
                            float *weight)
{
    const uint32_t grid = gr_ceil_div(T, WARPS);
    assert(r->count <= GR_CU_EXPERTS_MAX && r->top_k <= GR_CU_CHOICES_MAX);
    if (!T) return;
    if (r->count <= 128)
        route_kernel<4>
            <<<grid, BLOCK, 0, st>>>(*r, logits, (const uint2 *)selection, given, T, expert, weight);
    else
        route_kernel<16>
            <<<grid, BLOCK, 0, st>>>(*r, logits, (const uint2 *)selection, given, T, expert, weight);
}

extern "C" void gr_cu_route_backward(cudaStream_t st, const gr_cu_router *r, const float *logits,
                                     const uint16_t *expert, const float *d_weight, uint32_t T,
                                     gr_bf16 *d_logits)
{
    const uint32_t grid = gr_ceil_div(T, WARPS);
    assert(r->count <= GR_CU_EXPERTS_MAX && r->top_k <= GR_CU_CHOICES_MAX);
    if (!T) return;
    if (r->count <= 128)
        route_back_kernel<4><<<grid, BLOCK, 0, st>>>(*r, logits, expert, d_weight, T, d_logits);
    else
        route_back_kernel<16><<<grid, BLOCK, 0, st>>>(*r, logits, expert, d_weight, T, d_logits);
}

/* ---- numbers of experts
 * ----------------------------------------------------------------------------------- */

GR_KERNEL void __launch_bounds__(BLOCK)
    scale_choices_kernel(const uint16_t *__restrict__ expert, const gr_bf16 *__restrict__ scale, uint32_t n,
                         const float *plain, float *weight)
{
    const uint32_t i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) weight[i] = plain[i] * gr_float(scale[expert[i]]);
}

/* A block an expert; its threads take choices in turns, and their sums are added in order. */
template <typename G>
GR_KERNEL void __launch_bounds__(BLOCK)
    scale_sums_kernel(const uint16_t *__restrict__ expert, uint32_t n, const float *__restrict__ plain,
                      const float *__restrict__ d_weight, G *grad)
{
    __shared__ float part[GR_WARP];
    float own = 0;
    for (uint32_t i = threadIdx.x; i < n; i += BLOCK)
        if (expert[i] == blockIdx.x) own = fmaf(d_weight[i], plain[i], own);
    const float sum = gr_block_sum(own, part);
    if (threadIdx.x == 0) gr_put(grad + blockIdx.x, gr_get(grad + blockIdx.x) + sum);
}

extern "C" void gr_cu_scale_choices(cudaStream_t st, uint32_t k, uint32_t T, const uint16_t *expert,
                                    const gr_bf16 *scale, const float *plain, float *weight)
{
    const uint32_t n = T * k;
    if (n) scale_choices_kernel<<<gr_ceil_div(n, BLOCK), BLOCK, 0, st>>>(expert, scale, n, plain, weight);
}

extern "C" void gr_cu_scale_choices_sums(cudaStream_t st, uint32_t E, uint32_t k, uint32_t T,
                                         const uint16_t *expert, const float *plain, const float *d_weight,
                                         void *grad, gr_cu_dtype type)
{
    const uint32_t n = T * k;
    if (!n) return;
    if (type == GR_CU_F32)
        scale_sums_kernel<<<E, BLOCK, 0, st>>>(expert, n, plain, d_weight, (float *)grad);
    else
        scale_sums_kernel<<<E, BLOCK, 0, st>>>(expert, n, plain, d_weight, (gr_bf16 *)grad);
}

/* ---- sorting: a block a run of tokens, a thread an expert
 * -------------------------------------------------- */

enum { SORT_PAIRS = GR_CU_SORT_TOKENS * GR_CU_CHOICES_MAX };

/* A block's choices in shared memory; returns how many. What follows them up to a multiple of 8 is no expert.
 */
GR_DEVICE uint32_t load_choices(const uint16_t *expert, uint32_t k, uint32_t T, uint16_t *to)
{
    const uint32_t first = blockIdx.x * GR_CU_SORT_TOKENS,
                   n = min(T - first, (uint32_t)GR_CU_SORT_TOKENS) * k;
    for (uint32_t i = threadIdx.x; i < (n + 7) / 8 * 8; i += blockDim.x)
        to[i] = i < n ? expert[(size_t)first * k + i] : UINT16_MAX;
    __syncthreads();
    return n;
}

/* each(i) for the choices of the thread's expert, in order. */
template <class F> GR_DEVICE void each_choice(const uint16_t *choice, uint32_t n, F each)
{
    for (uint32_t i = 0; i < n; i += 8) {
        const uint4 u = *(const uint4 *)(choice + i); /* for all threads the same */
        const uint32_t two[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
        for (int j = 0; j < 8; j++)
            if ((two[j / 2] >> 16 * (j % 2) & 0xffff) == threadIdx.x) each(i + j);
    }
}

/* count [blocks, E]. A thread an expert. */
GR_KERNEL void count_kernel(const uint16_t *__restrict__ expert, uint32_t k, uint32_t T, uint32_t E,
                            uint32_t *count)
{
    __shared__ __align__(16) uint16_t choice[SORT_PAIRS];
    const uint32_t n = load_choices(expert, k, T, choice);
    uint32_t own = 0;
    if (threadIdx.x >= E) return;
    each_choice(choice, n, [&](uint32_t) { own++; });
    count[(size_t)blockIdx.x * E + threadIdx.x] = own;
}

/* The choices of an expert in the blocks before this one. */
GR_DEVICE uint32_t counted(const uint32_t *__restrict__ count, uint32_t blocks, uint32_t E, uint32_t e)
{
    uint32_t sum = 0;
#pragma unroll 16
    for (uint32_t b = 0; b < blocks; b++) sum += count[(size_t)b * E + e];
    return sum;
}

/* One block, a thread an expert. */
GR_KERNEL void first_kernel(const uint32_t *__restrict__ count, uint32_t blocks, uint32_t E, uint32_t *first)
{
    __shared__ uint32_t sum[GR_CU_EXPERTS_MAX];
    const uint32_t e = threadIdx.x, own = e < E ? counted(count, blocks, E, e) : 0;
    uint32_t before = 0;
    sum[e] = own;
    __syncthreads();
    for (uint32_t i = 0; i < e; i++) before += sum[i];
    if (e < E) first[e] = before;
    if (e + 1 == E) first[E] = before + own;
}

GR_KERNEL void place_kernel(const uint16_t *__restrict__ expert, uint32_t k, uint32_t T, uint32_t E,
                            const uint32_t *__restrict__ count, const uint32_t *__restrict__ first_of,
                            uint32_t *__restrict__ row, uint32_t *__restrict__ choice_of)
{
    __shared__ __align__(16) uint16_t choice[SORT_PAIRS];
    const uint32_t n = load_choices(expert, k, T, choice), first = blockIdx.x * GR_CU_SORT_TOKENS * k;
    if (threadIdx.x >= E) return;
    uint32_t next = first_of[threadIdx.x] + counted(count, blockIdx.x, E, threadIdx.x);
    each_choice(choice, n, [&](uint32_t i) {
        row[first + i] = next;
        choice_of[next++] = first + i;
    });
}

extern "C" void gr_cu_dispatch_rows(cudaStream_t st, uint32_t E, uint32_t k, uint32_t T,
                                    const uint16_t *expert, const gr_cu_dispatch *to, void *ws)
{
    const uint32_t blocks = gr_ceil_div(T, GR_CU_SORT_TOKENS), threads = gr_ceil_div(E, GR_WARP) * GR_WARP;
    uint32_t *count = (uint32_t *)ws;
    assert(E <= GR_CU_EXPERTS_MAX && k <= GR_CU_CHOICES_MAX);
    if (blocks) count_kernel<<<blocks, threads, 0, st>>>(expert, k, T, E, count);
    first_kernel<<<1, threads, 0, st>>>(count, blocks, E, to->first);
    if (blocks)
        place_kernel<<<blocks, threads, 0, st>>>(expert, k, T, E, count, to->first, to->row, to->choice);
}

/* ---- rows: 16 bytes a thread
 * ------------------------------------------------------------------------------- */

GR_KERNEL void __launch_bounds__(BLOCK)
    gather_kernel(const uint32_t *__restrict__ choice, uint32_t k, uint64_t n, uint32_t width,
                  const uint4 *__restrict__ x, uint4 *__restrict__ rows)
{
    const uint64_t i = (uint64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= n) return;
    rows[i] = x[(size_t)(choice[i / width] / k) * width + i % width];
}

GR_KERNEL void __launch_bounds__(BLOCK)
    combine_kernel(const uint32_t *__restrict__ row, uint32_t k, uint64_t n, uint32_t width,
                   const uint4 *__restrict__ rows, const float *__restrict__ weight, const uint4 *base,
                   float scale, uint4 *y)
{
    const uint64_t i = (uint64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= n) return;
    const uint32_t t = (uint32_t)(i / width), column = (uint32_t)(i % width);
    float sum[8] = {}, f[8];
    if (base) gr_unpack(base[i], sum);
#pragma unroll 4
    for (uint32_t j = 0; j < k; j++) {
        const uint64_t c = (uint64_t)t * k + j;
        const float w = weight ? scale * weight[c] : scale;
        gr_unpack(rows[(size_t)row[c] * width + column], f);
#pragma unroll
        for (int m = 0; m < 8; m++) sum[m] = __fmaf_rn(w, f[m], sum[m]);
    }
    y[i] = gr_pack(sum);
}

GR_KERNEL void __launch_bounds__(BLOCK)
    choice_rows_kernel(const uint32_t *__restrict__ choice, uint32_t R, uint32_t held,
                       const uint16_t *__restrict__ expert, const float *__restrict__ weight,
                       uint16_t *__restrict__ row_expert, float *__restrict__ row_weight)
{
    const uint32_t r = blockIdx.x * BLOCK + threadIdx.x;
    if (r >= R) return;
    row_expert[r] = (uint16_t)(expert[choice[r]] % held);
    if (weight) row_weight[r] = weight[choice[r]];
}

GR_KERNEL void __launch_bounds__(BLOCK)
    choice_back_kernel(const uint32_t *__restrict__ choice, uint32_t R, const float *__restrict__ rows,
                       float *__restrict__ to)
{
    const uint32_t r = blockIdx.x * BLOCK + threadIdx.x;
    if (r < R) to[choice[r]] = rows[r];
}

extern "C" void gr_cu_choice_rows(cudaStream_t st, const uint32_t *choice, uint32_t R, uint32_t held,
                                  const uint16_t *expert, const float *weight, uint16_t *row_expert,
                                  float *row_weight)
{
    if (R)
        choice_rows_kernel<<<gr_ceil_div(R, BLOCK), BLOCK, 0, st>>>(choice, R, held, expert, weight,
                                                                    row_expert, row_weight);
}

extern "C" void gr_cu_choice_back(cudaStream_t st, const uint32_t *choice, uint32_t R, const float *rows,
                                  float *to)
{
    if (R) choice_back_kernel<<<gr_ceil_div(R, BLOCK), BLOCK, 0, st>>>(choice, R, rows, to);
}

extern "C" void gr_cu_gather_rows(cudaStream_t st, const uint32_t *choice, uint32_t k, uint32_t R, uint32_t H,
                                  const gr_bf16 *x, gr_bf16 *rows)
{
    const uint64_t n = (uint64_t)R * (H / 8);
    assert(H % 8 == 0);
    if (n)
        gather_kernel<<<gr_ceil_div(n, BLOCK), BLOCK, 0, st>>>(choice, k, n, H / 8, (const uint4 *)x,
                                                               (uint4 *)rows);
}

extern "C" void gr_cu_combine_rows(cudaStream_t st, const uint32_t *row, uint32_t k, uint32_t T, uint32_t H,
                                   const gr_bf16 *rows, const float *weight, const gr_bf16 *base, float scale,
                                   gr_bf16 *y)
{
    const uint64_t n = (uint64_t)T * (H / 8);
    assert(H % 8 == 0);
    if (n)
        combine_kernel<<<gr_ceil_div(n, BLOCK), BLOCK, 0, st>>>(row, k, n, H / 8, (const uint4 *)rows, weight,
                                                                (const uint4 *)base, scale, (uint4 *)y);
}
