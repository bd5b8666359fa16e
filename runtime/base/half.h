/* runtime/base/half.h: 16-bit and 8-bit floats to and from fp32, bit by bit; and whether fp32 is finite. */
#ifndef GR_RUNTIME_BASE_HALF_H
#define GR_RUNTIME_BASE_HALF_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline float gr_f32_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static inline uint32_t gr_bits_of_f32(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

/* Whether no element is NaN or infinite, whose exponents are all ones: adding one to it reaches the sign. The
 * inner count is fixed, so that compilers make vectors of it. */
static inline bool gr_f32_all_finite(const float *x, uint64_t n)
{
    enum { AT_ONCE = 64 };
    const uint32_t magnitude = 0x7fffffff, one = 0x00800000;
    uint32_t seen = 0;
    for (; n >= AT_ONCE; n -= AT_ONCE, x += AT_ONCE)
        for (int i = 0; i < AT_ONCE; i++) seen |= (gr_bits_of_f32(x[i]) & magnitude) + one;
    for (uint64_t i = 0; i < n; i++) seen |= (gr_bits_of_f32(x[i]) & magnitude) + one;
    return !(seen >> 31);
}

static inline float gr_bf16_to_f32(uint16_t h)
{
    return gr_f32_of_bits((uint32_t)h << 16);
}

/* Round to nearest, ties to even; NaN stays NaN. */
static inline uint16_t gr_f32_to_bf16(float f)
{
    uint32_t bits = gr_bits_of_f32(f);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* fp32 in two halves that hold it exactly: the nearest bf16, ties away from zero, and the low 16 bits, which
 * read as a signed number are what is missing, in units of the last bit. Ties to even would need one bit
 * more: the values half a unit below and above an even bf16 would have the same halves. NaN becomes the quiet
 * one, so that the upper half is NaN, too. */
static inline uint32_t gr_f32_split(float f)
{
    const uint32_t bits = gr_bits_of_f32(f);
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc00000 : bits;
}

static inline uint16_t gr_f32_high(float f)
{
    return (uint16_t)((gr_f32_split(f) + 0x8000) >> 16);
}

static inline uint16_t gr_f32_low(float f)
{
    return (uint16_t)gr_f32_split(f);
}

static inline float gr_f32_join(uint16_t high, uint16_t low)
{
    return gr_f32_of_bits(((uint32_t)high << 16) + low - (low & 0x8000u) * 2);
}

static inline float gr_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    if (exponent == 31) return gr_f32_of_bits(sign | 0x7f800000 | mantissa << 13);
    if (exponent) return gr_f32_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    float small = (float)mantissa * 0x1p-24f; /* zero and subnormals */
    return sign ? -small : small;
}

#define GR_E4M3_MAX 448.0f

/* E4M3 as Micikevicius et al. have it (FP8 formats for deep learning, arXiv:2209.05433): 3 bits of mantissa,
 * exponents from -6, subnormals, no infinity. To nearest, ties to even; what is larger than the largest
 * becomes that; NaN stays NaN. */
static inline uint8_t gr_f32_to_e4m3(float f)
{
    const uint32_t bits = gr_bits_of_f32(f), size = bits & 0x7fffffff;
    const uint8_t sign = (uint8_t)(bits >> 24 & 0x80);
    if (size > 0x7f800000) return (uint8_t)(sign | 0x7f);
    const float x = gr_f32_of_bits(size);
    if (x >= GR_E4M3_MAX) return (uint8_t)(sign | 0x7e);
    if (x < 0x1p-6f) /* subnormal: the sum rounds to a multiple of 2^-9 */
        return (uint8_t)(sign | (gr_bits_of_f32(x + 0x1p14f) & 0xf));
    const uint32_t rounded = size + 0x7ffff + (size >> 20 & 1);
    return (uint8_t)(sign | ((rounded >> 20) - (120 << 3)));
}

static inline float gr_e4m3_to_f32(uint8_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x80) << 24, exponent = h >> 3 & 15, mantissa = h & 7;
    if ((h & 0x7f) == 0x7f) return gr_f32_of_bits(sign | 0x7fc00000);
    if (exponent) return gr_f32_of_bits(sign | (exponent + 120) << 23 | mantissa << 20);
    const float small = (float)mantissa * 0x1p-9f;
    return sign ? -small : small;
}

#endif
