/* ops/kernels/cuda/device.cuh: what the kernels share: bf16 in vectors of 16 bytes, sums over warps and
 * blocks in a fixed order, and the second stage of sums that go into gradients of weights.
 */
#ifndef GR_OPS_KERNELS_CUDA_DEVICE_CUH
#define GR_OPS_KERNELS_CUDA_DEVICE_CUH

#include <cuda_runtime.h>

#include "ops/kernels/cuda/launch.h"
#include "ops/kernels/cuda/parts.h"

#include <assert.h>
#include <cuda_bf16.h>
#include <float.h>
#include <math.h>

#define GR_DEVICE static __device__ __forceinline__
#define GR_KERNEL static __global__

#define GR_WARP 32
#define GR_ALL  0xffffffffu /* lanes of a full warp */

/* ---- bf16 ---------------------------------------------------------------------------------------------- */

GR_DEVICE float gr_low(uint32_t two)
{
    return __uint_as_float(two << 16);
}

GR_DEVICE float gr_high(uint32_t two)
{
    return __uint_as_float(two & 0xffff0000u);
}

/* Round to nearest even; `low` goes to the lower address. */
GR_DEVICE uint32_t gr_pair(float low, float high)
{
    const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &two, sizeof(bits));
    return bits;
}

GR_DEVICE float gr_float(gr_bf16 x)
{
    return __uint_as_float((uint32_t)x << 16);
}

GR_DEVICE gr_bf16 gr_round(float x)
{
    return (gr_bf16)gr_pair(x, 0);
}

/* N bf16 that travel as one access: 8 in 16 bytes, 4 in 8. */
template <int N> struct gr_raw {
};
template <> struct gr_raw<8> {
    typedef uint4 type;
};
template <> struct gr_raw<4> {
    typedef uint2 type;
};

GR_DEVICE void gr_unpack(uint2 u, float (&f)[4])
{
    f[0] = gr_low(u.x), f[1] = gr_high(u.x), f[2] = gr_low(u.y), f[3] = gr_high(u.y);
}

GR_DEVICE void gr_unpack(uint4 u, float (&f)[8])
{
    f[0] = gr_low(u.x), f[1] = gr_high(u.x), f[2] = gr_low(u.y), f[3] = gr_high(u.y);
    f[4] = gr_low(u.z), f[5] = gr_high(u.z), f[6] = gr_low(u.w), f[7] = gr_high(u.w);
}

GR_DEVICE uint2 gr_pack(const float (&f)[4])
{
    return make_uint2(gr_pair(f[0], f[1]), gr_pair(f[2], f[3]));
}

GR_DEVICE uint4 gr_pack(const float (&f)[8])
{
    return make_uint4(gr_pair(f[0], f[1]), gr_pair(f[2], f[3]), gr_pair(f[4], f[5]), gr_pair(f[6], f[7]));
}

/* Four values of either type at p[i .. i + 3], i a multiple of 4. */
GR_DEVICE void gr_load4(const float *p, uint64_t i, float (&f)[4])
{
    const float4 v = *(const float4 *)(p + i);
    f[0] = v.x, f[1] = v.y, f[2] = v.z, f[3] = v.w;
}

GR_DEVICE void gr_load4(const gr_bf16 *p, uint64_t i, float (&f)[4])
{
    gr_unpack(*(const uint2 *)(p + i), f);
}

GR_DEVICE void gr_store4(float *p, uint64_t i, const float (&f)[4])
{
    *(float4 *)(p + i) = make_float4(f[0], f[1], f[2], f[3]);
}

GR_DEVICE void gr_store4(gr_bf16 *p, uint64_t i, const float (&f)[4])
{
    *(uint2 *)(p + i) = gr_pack(f);
}

GR_DEVICE float gr_get(const float *p)
{
    return *p;
}

GR_DEVICE float gr_get(const gr_bf16 *p)
{
    return gr_float(*p);
}

GR_DEVICE void gr_put(float *p, float x)
{
    *p = x;
}

GR_DEVICE void gr_put(gr_bf16 *p, float x)
{
    *p = gr_round(x);
}

/* exp and division approximate to 2 ulp of fp32, far below the rounding to bf16; exp(-x) beyond the range of
 * fp32 gives 0, the limit. */
GR_DEVICE float gr_sigmoid(float x)
{
    return __fdividef(1, 1 + __expf(-x));
}

GR_DEVICE float gr_silu(float x)
{
    return x * gr_sigmoid(x);
}

/* log(1 + exp(x)) */
GR_DEVICE float gr_softplus(float x)
{
    return x > 20 ? x : log1pf(__expf(x));
}

/* Sine and cosine of any angle a position can have, without branches, so that those of a lane's elements
 * overlap: the angle is reduced to [-pi/4, pi/4] in double (sincosf would branch to a slow path from 105615
 * on), where the minimax polynomials of Cephes' sinf and cosf (Moshier) hold to 1 ulp or 2. */
GR_DEVICE void gr_sine_cosine(float x, float *sine, float *cosine)
{
    const double quarters = rint((double)x * 0.63661977236758134); /* 2 / pi */
    const float r =
        (float)fma(quarters, -6.123233995736766e-17, fma(quarters, -1.5707963267948966, (double)x));
    const int quarter = (int)(long long)quarters & 3;
    const float q = r * r;
    const float s = fmaf(r * q, fmaf(q, fmaf(q, -1.9515295891e-4f, 8.3321608736e-3f), -1.6666654611e-1f), r);
    const float c =
        fmaf(q * q, fmaf(q, fmaf(q, 2.443315711809948e-5f, -1.388731625493765e-3f), 4.166664568298827e-2f),
             fmaf(q, -0.5f, 1));
    const float a = quarter & 1 ? c : s, b = quarter & 1 ? s : c;
    *sine = quarter & 2 ? -a : a;
    *cosine = (quarter + 1) & 2 ? -b : b;
}

/* ---- over a warp or a block ------------------------------------------------------------------------------
 * By exchange: every lane ends with the same bits, whatever the other warps do. */

GR_DEVICE float gr_warp_sum(float x)
{
#pragma unroll
    for (int o = GR_WARP / 2; o; o /= 2) x += __shfl_xor_sync(GR_ALL, x, o);
    return x;
}

GR_DEVICE float gr_warp_max(float x)
{
#pragma unroll
    for (int o = GR_WARP / 2; o; o /= 2) x = fmaxf(x, __shfl_xor_sync(GR_ALL, x, o));
    return x;
}

/* Sum over the block, for every thread; blockDim.x is a multiple of 32. part [blockDim.x / 32] in shared
 * memory is free again only after the block's next barrier: callers in a loop alternate between two. */
GR_DEVICE float gr_block_sum(float x, float *part)
{
    x = gr_warp_sum(x);
    if (threadIdx.x % GR_WARP == 0) part[threadIdx.x / GR_WARP] = x;
    __syncthreads();
    float sum = 0;
    for (uint32_t i = 0; i < blockDim.x / GR_WARP; i++) sum += part[i];
    return sum;
}

/* ---- sums into gradients ---------------------------------------------------------------------------------
 */

/* grad [cols] += the sum over p of parts [n_parts, cols], in an order that n_parts alone decides. */
extern "C" void gr_cu_parts_add(cudaStream_t st, const float *parts, uint32_t n_parts, uint32_t cols,
                                void *grad, gr_cu_dtype grad_type);

#endif
