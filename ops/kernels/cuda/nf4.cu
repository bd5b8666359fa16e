/* ops/kernels/cuda/nf4.cu: weights in NF4 (ops/model/nf4.h) opened into bf16. Blocks of 256 threads; a thread
 * has 8 weights, whose codes are 4 bytes, of one block of 64. Bound by writing: 2 bytes a weight, half a byte
 * read. Products and sums of fp32 are not fused, so weights are those of the CPU device, rounded.
 */
#include "ops/kernels/cuda/device.cuh"

enum { BLOCK = 256, EACH = 8, SCALED = 64, GROUP = 256 /* GR_NF4_BLOCK, GR_NF4_BLOCKS */ };

/* They travel with the launch. */
struct nf4_values {
    float weight[16], scale[256];
};

/* The largest weight of the block that element i belongs to, as it was kept. */
GR_DEVICE float block_scale(const gr_cu_nf4 &c, const nf4_values &values, uint64_t i)
{
    const uint64_t block = i / SCALED;
    return __fadd_rn(__fmul_rn(values.scale[c.small[block]], c.scales[block / GROUP]), *c.mean);
}

/* Two codes a byte, the first in its upper half; what is beyond n is 0. */
GR_DEVICE void open_eight(const gr_cu_nf4 &c, const nf4_values &values, const float *weight, uint64_t i,
                          float (&w)[EACH])
{
    const uint32_t codes = *(const uint32_t *)(c.codes + i / 2);
    const float most = block_scale(c, values, i);
#pragma unroll
    for (int k = 0; k < EACH; k++)
        w[k] = i + k < c.n ? __fmul_rn(weight[codes >> (k / 2 * 8 + (k % 2 ? 0 : 4)) & 15], most) : 0;
}

GR_KERNEL void __launch_bounds__(BLOCK)
    open_kernel(const __grid_constant__ gr_cu_nf4 c, const __grid_constant__ nf4_values values, uint64_t all,
                gr_bf16 *__restrict__ w)
{
    __shared__ float weight[16];
    const uint64_t i = ((uint64_t)blockIdx.x * BLOCK + threadIdx.x) * EACH;
    float eight[EACH] = {0};
    if (threadIdx.x < 16) weight[threadIdx.x] = values.weight[threadIdx.x];
    __syncthreads();
    if (i >= all) return;
    if (i < c.n) open_eight(c, values, weight, i, eight);
    if (i + EACH <= all)
        *(uint4 *)(w + i) = gr_pack(eight);
    else
#pragma unroll
        for (int k = 0; k < EACH; k++)
            if (i + k < all) w[i + k] = gr_round(eight[k]);
}

extern "C" void gr_cu_nf4_open(cudaStream_t st, const gr_cu_nf4 *c, uint64_t zeros, gr_bf16 *w)
{
    const uint64_t all = c->n + zeros;
    nf4_values values;
    assert((uintptr_t)w % 16 == 0 && (uintptr_t)c->codes % 4 == 0);
    memcpy(values.weight, c->weight_of, sizeof(values.weight));
    memcpy(values.scale, c->scale_of, sizeof(values.scale));
    if (all) open_kernel<<<gr_ceil_div(all, BLOCK * EACH), BLOCK, 0, st>>>(*c, values, all, w);
}

GR_KERNEL void __launch_bounds__(BLOCK)
    vector_kernel(const float *__restrict__ x, uint64_t n, uint64_t all, gr_bf16 *__restrict__ w)
{
    const uint64_t i = (uint64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < all) w[i] = gr_round(i < n ? x[i] : 0);
}

extern "C" void gr_cu_nf4_vector(cudaStream_t st, const float *x, uint64_t n, uint64_t zeros, gr_bf16 *w)
{
    const uint64_t all = n + zeros;
    if (all) vector_kernel<<<gr_ceil_div(all, BLOCK), BLOCK, 0, st>>>(x, n, all, w);
}
