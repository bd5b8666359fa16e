/* ops/kernels/cuda/fp8.cuh: bf16 rounded to FP8 as ops/model/fp8.h says, left where products read it, and
 * read again. */
#ifndef GR_OPS_KERNELS_CUDA_FP8_CUH
#define GR_OPS_KERNELS_CUDA_FP8_CUH

#include "ops/kernels/cuda/device.cuh"
#include "ops/kernels/cuda/fp8.h"

#include <cuda_fp8.h>

/* As gr_fp8_scale_of: most is |.| of a block's largest value, as bits, so that NaN counts as the largest. */
struct gr_block_scale {
    float scale, inverse;
};

GR_DEVICE gr_block_scale gr_scale_of(uint32_t most)
{
    const float m = __uint_as_float(most), floor = 0x1p-100f, top = m < floor ? floor : m;
    return gr_block_scale{__fdiv_rn(top, 448.0f), __fdiv_rn(448.0f, top)};
}

/* Of two bf16. */
GR_DEVICE uint32_t gr_largest(uint32_t two)
{
    return max(two & 0x7fff0000u, two << 16 & 0x7fffffffu);
}

GR_DEVICE uint32_t gr_largest(uint2 v)
{
    return max(gr_largest(v.x), gr_largest(v.y));
}

GR_DEVICE uint32_t gr_largest(uint4 v)
{
    return max(gr_largest(make_uint2(v.x, v.y)), gr_largest(make_uint2(v.z, v.w)));
}

GR_DEVICE uint32_t gr_fp8_two(uint32_t two, float inverse)
{
    return __nv_cvt_float2_to_fp8x2(
        make_float2(__fmul_rn(gr_low(two), inverse), __fmul_rn(gr_high(two), inverse)), __NV_SATFINITE,
        __NV_E4M3);
}

GR_DEVICE uint32_t gr_fp8_rounded(uint2 v, float inverse)
{
    return gr_fp8_two(v.x, inverse) | gr_fp8_two(v.y, inverse) << 16;
}

GR_DEVICE uint2 gr_fp8_rounded(uint4 v, float inverse)
{
    return make_uint2(gr_fp8_rounded(make_uint2(v.x, v.y), inverse),
                      gr_fp8_rounded(make_uint2(v.z, v.w), inverse));
}

/* Of a block of a row's values those from col on, 8 in the hands of each of 16 lanes or 4 of 32; all lanes of
 * the warp meet here. What is beyond the row's end is 0, and rows from to.n on are not written. */
template <typename V>
GR_DEVICE void gr_fp8_put(const gr_cu_fp8_to &to, uint32_t row, uint32_t col, uint32_t cols, V v)
{
    enum { SIDE = 128 /* GR_FP8_BLOCK */, LANES = 2 * SIDE / sizeof(V) };
    uint32_t m = gr_largest(v);
#pragma unroll
    for (int i = LANES / 2; i; i /= 2) m = max(m, __shfl_xor_sync(GR_ALL, m, i));
    const gr_block_scale s = gr_scale_of(m);
    if (row >= to.n || col >= cols) return;
    *(decltype(gr_fp8_rounded(v, 0)) *)(to.values + (size_t)row * cols + col) = gr_fp8_rounded(v, s.inverse);
    if (col % SIDE == 0) to.scales[(size_t)(col / SIDE) * to.n + row] = s.scale;
}

/* Of four E4M3 those at bytes 0 and 2 (odd: 1 and 3), times 2^-120, as bf16, which has all of those values:
 * exponent and mantissa become the lowest bits of exponent and the highest of mantissa of a bf16, subnormal
 * ones too. A NaN reads as 480: what has one has a scale that is no number. */
template <bool odd> GR_DEVICE uint32_t gr_fp8_small(uint32_t four)
{
    uint32_t two; /* each with its sign before it, in all of a byte */
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(two) : "r"(four), "n"(odd ? 0xb391 : 0xa280));
    return two << 4 & 0x87f087f0u;
}

GR_DEVICE uint32_t gr_bf16_times(uint32_t two, uint16_t power)
{
    __nv_bfloat162 x;
    const __nv_bfloat16 up = __ushort_as_bfloat16(power);
    memcpy(&x, &two, sizeof(x));
    x = __hmul2(x, __nv_bfloat162(up, up));
    memcpy(&two, &x, sizeof(x));
    return two;
}

/* The same, themselves. */
template <bool odd> GR_DEVICE uint32_t gr_fp8_wide(uint32_t four)
{
    return gr_bf16_times(gr_fp8_small<odd>(four), 0x7b80); /* 2^120 */
}

/* Four E4M3 times f, in bf16. */
GR_DEVICE uint2 gr_fp8_scaled(uint32_t four, float f)
{
    const uint32_t even = gr_fp8_wide<false>(four), odd = gr_fp8_wide<true>(four);
    return make_uint2(gr_pair(__fmul_rn(gr_low(even), f), __fmul_rn(gr_low(odd), f)),
                      gr_pair(__fmul_rn(gr_high(even), f), __fmul_rn(gr_high(odd), f)));
}

#endif
