/* ops/kernels/cuda/experts_few.cu: products of routers whose number of experts is no multiple of 8: rows of
 * so few values are no vectors of 16 bytes, which the tensor cores' products are made of. The gate of a
 * shared expert, one logit a token, is such a router. Bound by reading x.
 */
#include "ops/kernels/cuda/device.cuh"
#include "ops/kernels/cuda/experts.h"

enum { BLOCK = 256, WARPS = BLOCK / GR_WARP, EACH = GR_FEW_EXPERTS, TOKENS = 4 };

/* ---- logits: a warp a token and some experts
 * ---------------------------------------------------------------- */

template <int N>
GR_KERNEL void __launch_bounds__(BLOCK)
    logits_kernel(const uint4 *__restrict__ x, const uint4 *__restrict__ w, float *__restrict__ logits,
                  uint32_t T, uint32_t width, uint32_t E)
{
    const uint32_t t = blockIdx.x * WARPS + threadIdx.x / GR_WARP, lane = threadIdx.x % GR_WARP,
                   first = blockIdx.y * N;
    if (t >= T) return; /* whole warps */
    float sum[N] = {};
#pragma unroll 2
    for (uint32_t v = lane; v < width; v += GR_WARP) {
        float a[8], b[8];
        gr_unpack(x[(size_t)t * width + v], a);
#pragma unroll
        for (int e = 0; e < N; e++) {
            gr_unpack(w[(size_t)min(first + e, E - 1) * width + v], b);
#pragma unroll
            for (int i = 0; i < 8; i++) sum[e] = fmaf(a[i], b[i], sum[e]);
        }
    }
#pragma unroll
    for (int e = 0; e < N; e++) {
        sum[e] = gr_warp_sum(sum[e]);
        if (lane == 0 && first + e < E) logits[(size_t)t * E + first + e] = sum[e];
    }
}

extern "C" void gr_cu_few_logits(cudaStream_t st, const gr_cu_few *p, float *logits)
{
    const uint32_t rows = gr_ceil_div(p->T, WARPS), width = p->H / 8;
    const uint4 *x = (const uint4 *)p->x, *w = (const uint4 *)p->w;
    assert(p->H % 8 == 0);
    if (!p->T) return;
    if (p->E == 1)
        logits_kernel<1><<<rows, BLOCK, 0, st>>>(x, w, logits, p->T, width, 1);
    else
        logits_kernel<EACH>
            <<<dim3(rows, gr_ceil_div(p->E, EACH)), BLOCK, 0, st>>>(x, w, logits, p->T, width, p->E);
}

/* ---- back to x: a thread eight columns of some tokens
 * ------------------------------------------------------- */

GR_KERNEL void __launch_bounds__(BLOCK) dx_kernel(const gr_bf16 *__restrict__ d, const uint4 *__restrict__ w,
                                                  uint4 *dx, uint32_t T, uint32_t width, uint32_t E, bool add)
{
    const uint32_t v = blockIdx.x * BLOCK + threadIdx.x, first = blockIdx.y * TOKENS;
    if (v >= width) return;
    float sum[TOKENS][8] = {}, b[8];
    for (uint32_t e = 0; e < E; e++) {
        gr_unpack(w[(size_t)e * width + v], b);
#pragma unroll
        for (int j = 0; j < TOKENS; j++) {
            const float g = gr_float(d[(size_t)min(first + j, T - 1) * E + e]);
#pragma unroll
            for (int i = 0; i < 8; i++) sum[j][i] = fmaf(g, b[i], sum[j][i]);
        }
    }
#pragma unroll
    for (int j = 0; j < TOKENS; j++) {
        if (first + j >= T) break;
        uint4 *to = dx + (size_t)(first + j) * width + v;
        if (add) {
            gr_unpack(*to, b);
#pragma unroll
            for (int i = 0; i < 8; i++) sum[j][i] += b[i];
        }
        *to = gr_pack(sum[j]);
    }
}

extern "C" void gr_cu_few_dx(cudaStream_t st, const gr_cu_few *p, const gr_bf16 *d_logits, bool add,
                             gr_bf16 *dx)
{
    const uint32_t width = p->H / 8;
    if (!p->T) return;
    dx_kernel<<<dim3(gr_ceil_div(width, BLOCK), gr_ceil_div(p->T, TOKENS)), BLOCK, 0, st>>>(
        d_logits, (const uint4 *)p->w, (uint4 *)dx, p->T, width, p->E, add);
}

/* ---- gradients: parts of strips of tokens, which gr_cu_parts_add adds up
 * ------------------------------------ */

/* A block has 256 columns, eight a lane, of some experts and a strip; its warps take tokens in turn. */
GR_KERNEL void __launch_bounds__(BLOCK)
    dw_kernel(const gr_bf16 *__restrict__ d, const uint4 *__restrict__ x, float *__restrict__ parts,
              uint32_t T, uint32_t width, uint32_t E, uint32_t rows)
{
    __shared__ float sums[WARPS][8 * GR_WARP];
    const uint32_t warp = threadIdx.x / GR_WARP, lane = threadIdx.x % GR_WARP,
                   v = blockIdx.x * GR_WARP + lane, first = blockIdx.z * EACH,
                   end = min((blockIdx.y + 1) * rows, T);
    float sum[EACH][8] = {};
#pragma unroll 2
    for (uint32_t t = blockIdx.y * rows + warp; t < end; t += WARPS) {
        float a[8] = {};
        if (v < width) gr_unpack(x[(size_t)t * width + v], a);
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const float g = gr_float(d[(size_t)t * E + min(first + e, E - 1)]);
#pragma unroll
            for (int i = 0; i < 8; i++) sum[e][i] = fmaf(g, a[i], sum[e][i]);
        }
    }
#pragma unroll
    for (int e = 0; e < EACH; e++) {
#pragma unroll
        for (int i = 0; i < 8; i++) sums[warp][8 * lane + i] = sum[e][i];
        __syncthreads();
        const uint32_t column = blockIdx.x * BLOCK + threadIdx.x;
        float total = 0;
        for (int i = 0; i < WARPS; i++) total += sums[i][threadIdx.x];
        if (first + e < E && column < 8 * width)
            parts[((size_t)blockIdx.y * E + first + e) * 8 * width + column] = total;
        __syncthreads();
    }
}

static_assert((int)BLOCK == 8 * GR_WARP, "a thread sums up a column");

/* A block an expert. */
template <class G>
GR_KERNEL void __launch_bounds__(BLOCK)
    sums_kernel(const gr_bf16 *__restrict__ d, uint32_t T, uint32_t E, G *__restrict__ grad)
{
    __shared__ float part[WARPS];
    float sum = 0;
#pragma unroll 4
    for (uint32_t t = threadIdx.x; t < T; t += BLOCK) sum += gr_float(d[(size_t)t * E + blockIdx.x]);
    sum = gr_block_sum(sum, part);
    if (threadIdx.x == 0) gr_put(grad + blockIdx.x, gr_get(grad + blockIdx.x) + sum);
}

extern "C" void gr_cu_few_dw(cudaStream_t st, const gr_cu_few *p, const gr_bf16 *d_logits, void *grad,
                             gr_cu_dtype type, void *ws)
{
    const uint32_t width = p->H / 8;
    if (!p->T) return;
    const uint32_t rows = gr_ceil_div(p->T, gr_few_strips(p->T, p->H, p->E)),
                   strips = gr_ceil_div(p->T, rows);
    const dim3 grid(gr_ceil_div(width, GR_WARP), strips, gr_ceil_div(p->E, EACH));
    dw_kernel<<<grid, BLOCK, 0, st>>>(d_logits, (const uint4 *)p->x, (float *)ws, p->T, width, p->E, rows);
    gr_cu_parts_add(st, (const float *)ws, strips, p->E * p->H, grad, type);
}

extern "C" void gr_cu_few_sums(cudaStream_t st, const gr_cu_few *p, const gr_bf16 *d_logits, void *grad,
                               gr_cu_dtype type)
{
    if (!p->T) return;
    if (type == GR_CU_F32)
        sums_kernel<<<p->E, BLOCK, 0, st>>>(d_logits, p->T, p->E, (float *)grad);
    else
        sums_kernel<<<p->E, BLOCK, 0, st>>>(d_logits, p->T, p->E, (gr_bf16 *)grad);
}
