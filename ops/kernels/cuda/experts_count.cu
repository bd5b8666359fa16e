/* ops/kernels/cuda/experts_count.cu: what routers chose, counted, and the gradient of a balance loss. Counts
 * are whole numbers in doubles and are added up as integers: one block, or a thread an expert, so their order
 * is one. See ops/kernels/experts.h; shapes as there.
 */
#include "ops/kernels/cuda/device.cuh"
#include "ops/kernels/cuda/experts.h"

enum { WARPS = 32, BLOCK = WARPS * GR_WARP };

GR_DEVICE bool has_expert(const uint16_t *expert, uint32_t k, uint16_t which)
{
    bool there = false;
    for (uint32_t j = 0; j < k; j++) there = there || expert[j] == which;
    return there;
}

GR_KERNEL void __launch_bounds__(BLOCK, 1)
    compare_kernel(uint32_t k, uint32_t T, const uint16_t *__restrict__ expert,
                   const uint16_t *__restrict__ recorded, double *tokens, double *compared, double *differ,
                   uint32_t *differs)
{
    __shared__ uint32_t sum[3]; /* compared, those that differ, tokens that did not before */
    if (threadIdx.x < 3) sum[threadIdx.x] = 0;
    __syncthreads();
    for (uint32_t t = threadIdx.x; t < T; t += BLOCK) {
        const uint16_t *own = expert + (size_t)t * k, *other = recorded + (size_t)t * k;
        if (other[0] == UINT16_MAX) continue;
        bool same = true;
        for (uint32_t j = 0; j < k; j++) same = same && has_expert(own, k, other[j]);
        atomicAdd(&sum[0], 1);
        if (same) continue;
        atomicAdd(&sum[1], 1);
        if (!differs[t]) atomicAdd(&sum[2], 1);
        differs[t] = 1;
    }
    __syncthreads();
    if (threadIdx.x) return;
    *compared += sum[0];
    *differ += sum[1];
    *tokens += sum[2];
}

GR_KERNEL void __launch_bounds__(BLOCK, 1)
    count_kernel(uint32_t E, uint32_t choices, const uint16_t *__restrict__ expert, double *load)
{
    __shared__ uint32_t own[GR_CU_EXPERTS_MAX];
    for (uint32_t e = threadIdx.x; e < E; e += BLOCK) own[e] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < choices; i += BLOCK) atomicAdd(&own[expert[i]], 1);
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < E; e += BLOCK) load[e] += own[e];
}

/* softmax of a token's logits: those of experts lane + 32 i. */
template <int PARTS> GR_DEVICE void softmax(const float *logits, uint32_t E, float (&p)[PARTS])
{
    const uint32_t lane = threadIdx.x % GR_WARP;
    float most = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        p[i] = lane + GR_WARP * i < E ? logits[lane + GR_WARP * i] : -INFINITY;
        most = fmaxf(most, p[i]);
    }
    most = gr_warp_max(most);
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        p[i] = lane + GR_WARP * i < E ? expf(p[i] - most) : 0;
        sum += p[i];
    }
    sum = gr_warp_sum(sum);
#pragma unroll
    for (int i = 0; i < PARTS; i++) p[i] = __fdiv_rn(p[i], sum);
}

/* Each warp sums up every 32nd token; then the warps' sums are added in their order. */
template <int PARTS>
GR_KERNEL void __launch_bounds__(BLOCK, 1)
    shares_kernel(uint32_t E, uint32_t T, const float *__restrict__ logits, double *share)
{
    __shared__ double sum[WARPS][GR_WARP];
    const uint32_t warp = threadIdx.x / GR_WARP, lane = threadIdx.x % GR_WARP;
    double own[PARTS] = {};
    for (uint32_t t = warp; t < T; t += WARPS) {
        float p[PARTS];
        softmax<PARTS>(logits + (size_t)t * E, E, p);
#pragma unroll
        for (int i = 0; i < PARTS; i++) own[i] += p[i];
    }
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        sum[warp][lane] = own[i];
        __syncthreads();
        double all = 0;
        for (int w = 0; warp == 0 && w < WARPS; w++) all += sum[w][lane];
        if (warp == 0 && lane + GR_WARP * i < E) share[lane + GR_WARP * i] += all;
        __syncthreads();
    }
}

/* One block; sums of counts, which are exact. */
GR_KERNEL void __launch_bounds__(BLOCK, 1)
    pull_kernel(uint32_t routers, uint32_t E, uint32_t k, double coefficient, const double *__restrict__ load,
                float *pull)
{
    __shared__ double all[GR_CU_EXPERTS_MAX];
    double own = 0, n = 0;
    for (uint32_t r = 0; threadIdx.x < E && r < routers; r++) own += load[(size_t)r * E + threadIdx.x];
    if (threadIdx.x < E) all[threadIdx.x] = own;
    __syncthreads();
    for (uint32_t e = 0; e < E; e++) n += all[e];
    n /= k;
    if (threadIdx.x < E) pull[threadIdx.x] = n > 0 ? (float)(coefficient * E * own / (n * n)) : 0;
}

/* A warp a token. */
template <int PARTS>
GR_KERNEL void __launch_bounds__(256)
    balance_kernel(uint32_t E, uint32_t T, const float *__restrict__ logits, const float *__restrict__ pull,
                   gr_bf16 *__restrict__ d_logits)
{
    const uint32_t lane = threadIdx.x % GR_WARP, t = (blockIdx.x * 256 + threadIdx.x) / GR_WARP;
    if (t >= T) return;
    float p[PARTS], mean = 0;
    softmax<PARTS>(logits + (size_t)t * E, E, p);
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        if (lane + GR_WARP * i < E) mean += p[i] * pull[lane + GR_WARP * i];
    mean = gr_warp_sum(mean);
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        const uint32_t e = lane + GR_WARP * i;
        if (e >= E) continue;
        gr_bf16 *d = d_logits + (size_t)t * E + e;
        *d = gr_round(gr_float(*d) + p[i] * (pull[e] - mean));
    }
}

extern "C" void gr_cu_experts_compare(cudaStream_t st, uint32_t k, uint32_t T, const uint16_t *expert,
                                      const uint16_t *recorded, double *tokens, double *compared,
                                      double *differ, uint32_t *differs)
{
    if (T) compare_kernel<<<1, BLOCK, 0, st>>>(k, T, expert, recorded, tokens, compared, differ, differs);
}

extern "C" void gr_cu_experts_count(cudaStream_t st, uint32_t E, uint32_t k, uint32_t T,
                                    const uint16_t *expert, double *load)
{
    assert(E <= GR_CU_EXPERTS_MAX);
    if (T) count_kernel<<<1, BLOCK, 0, st>>>(E, T * k, expert, load);
}

extern "C" void gr_cu_experts_shares(cudaStream_t st, uint32_t E, uint32_t T, const float *logits,
                                     double *share)
{
    assert(E <= GR_CU_EXPERTS_MAX);
    if (!T) return;
    if (E <= 128)
        shares_kernel<4><<<1, BLOCK, 0, st>>>(E, T, logits, share);
    else
        shares_kernel<16><<<1, BLOCK, 0, st>>>(E, T, logits, share);
}

extern "C" void gr_cu_experts_pull(cudaStream_t st, uint32_t routers, uint32_t E, uint32_t k,
                                   double coefficient, const double *load, float *pull)
{
    assert(E <= GR_CU_EXPERTS_MAX);
    pull_kernel<<<1, BLOCK, 0, st>>>(routers, E, k, coefficient, load, pull);
}

extern "C" void gr_cu_experts_balance_backward(cudaStream_t st, uint32_t E, uint32_t T, const float *logits,
                                               const float *pull, gr_bf16 *d_logits)
{
    const uint32_t grid = gr_ceil_div((uint64_t)T * GR_WARP, 256);
    assert(E <= GR_CU_EXPERTS_MAX);
    if (!T) return;
    if (E <= 128)
        balance_kernel<4><<<grid, 256, 0, st>>>(E, T, logits, pull, d_logits);
    else
        balance_kernel<16><<<grid, 256, 0, st>>>(E, T, logits, pull, d_logits);
}
