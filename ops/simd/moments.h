/* ops/simd/moments.h: moments of an optimizer in 8 bits an element, for the host and for device code.
 *
 * Blocks of 64 elements have a scale each, which is fp32: of first moments the largest |m|, of second ones
 * the largest sqrt(v). Tensors, and shards of buckets, begin at multiples of 64 elements, so that a block is
 * of one tensor and of one rank: codes do not depend on the number of ranks. (By blocks: Dettmers et al.,
 * arXiv:2110.02861.)
 *
 * A code is the upper bits of a float, 16 to an octave, so its error is at most a 32nd of the value:
 *   second moments are kept as their root, x = sqrt(v) / scale: 255 values from 2^-15.8 to 1, and 0, which
 * only 0 has: a v that became 0 beside an m that does not would make a step of any size (Li et al.,
 *     arXiv:2309.01507);
 *   first moments, x = |m| / scale, have a sign and 128 values of x (1 - b) + b from b = 2^-7.9 to 1: finer
 * than b they are evenly spaced.
 *
 * A step changes v by a thousandth, and a code by a 16th: to the nearest code it would never change. So a
 * step rounds up or down by chance, in proportion to the distance (Gupta et al., arXiv:1502.02551): what a
 * code stands for is right in the mean, and errors do not add up. Chance is a hash of run, bucket, step and
 * element, so a repetition has the same bits. What is restored from a file is rounded to the nearest, which
 * gives a code back to itself, and its scale.
 *
 * Every operation is rounded alike on the host and on devices, so codes of equal moments are equal. A block
 * with an element that is no number, or infinite, has such a scale.
 */
#ifndef GR_OPS_SIMD_MOMENTS_H
#define GR_OPS_SIMD_MOMENTS_H

#include "runtime/base/philox.h" /* GR_BOTH */

#include <math.h>
#include <string.h>

#define GR_MOMENT_BLOCK 64u

#define GR_MOMENT_M_BITS 20 /* of a float that a code leaves out */
#define GR_MOMENT_V_BITS 19
#define GR_MOMENT_M_BASE (0x3f800000u - (127u << GR_MOMENT_M_BITS)) /* bits of b */
#define GR_MOMENT_V_BASE (0x3f800000u - (255u << GR_MOMENT_V_BITS))
#define GR_MOMENT_B      (9.0f / (1 << 19)) /* 1 - b is a float, and times its rounded inverse it is 1 */
#define GR_MOMENT_A      (1 - GR_MOMENT_B)
/* No scale is less: then nothing that it stands for is less than a float can hold. Below eps by far. */
#define GR_MOMENT_M_LEAST 0x1p-100f
#define GR_MOMENT_V_LEAST 0x1p-47f

/* By what elements are rounded up or down: a key, and the number of the first one. */
typedef struct gr_chance {
    uint32_t key;
    uint64_t first;
} gr_chance;

GR_BOTH uint32_t gr_moment_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

GR_BOTH float gr_moment_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* A hash of 32 bits to as many: "lowbias32" of C. Wellons, nullprogram.com/blog/2018/07/31. */
GR_BOTH uint32_t gr_moment_mix(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

/* What elements whose numbers have the same upper half share, as those of a block. */
GR_BOTH uint32_t gr_moment_key(uint32_t key, uint64_t element)
{
    return gr_moment_mix(key ^ (uint32_t)(element >> 32) * 0x9e3779b9u);
}

/* The chance of an element of a bucket in a step: the upper half for m, the lower one for v. Half of what
 * there is rounds to the nearest. */
GR_BOTH uint32_t gr_moment_chance(uint32_t key, uint64_t element)
{
    return gr_moment_mix((uint32_t)element ^ gr_moment_key(key, element));
}

#define GR_MOMENT_NEAREST 0x80008000u

GR_BOTH uint32_t gr_moment_m_noise(uint32_t chance)
{
    return chance >> 16 << (GR_MOMENT_M_BITS - 16);
}

GR_BOTH uint32_t gr_moment_v_noise(uint32_t chance)
{
    return (chance & 0xffff) << (GR_MOMENT_V_BITS - 16);
}

/* x a + b, each rounded: not fused. */
GR_BOTH float gr_moment_apart(float x, float a, float b)
{
#ifdef __CUDACC__
    return __fadd_rn(__fmul_rn(x, a), b);
#else
    const float product = x * a; /* compiled without contraction */
    return product + b;
#endif
}

/* 1 over a scale, for what follows. */
GR_BOTH float gr_moment_inverse(float scale)
{
    return 1 / scale;
}

/* The bits of x / scale, at most 1; the largest of a block is 1, so that it keeps its value. Comparisons are
 * of bits, which have the order of what is not negative, and choices are masks: compilers make vectors of
 * them. */
GR_BOTH uint32_t gr_moment_ratio(float x, float scale, float inverse)
{
    const uint32_t one = 0x3f800000u, bits = gr_moment_bits(x * inverse),
                   most = 0u - (gr_moment_bits(x) >= gr_moment_bits(scale)),
                   ratio = (one & most) | (bits & ~most);
    return ratio > one ? one : ratio;
}

GR_BOTH int32_t gr_moment_m_code(float m, float scale, float inverse, uint32_t chance)
{
    const float x = gr_moment_float(gr_moment_ratio(fabsf(m), scale, inverse));
    const uint32_t bits =
        gr_moment_bits(gr_moment_apart(x, GR_MOMENT_A, GR_MOMENT_B)) + gr_moment_m_noise(chance);
    const int32_t code = (int32_t)((bits - GR_MOMENT_M_BASE) >> GR_MOMENT_M_BITS);
    return gr_moment_bits(m) >> 31 ? -code : code;
}

GR_BOTH float gr_moment_m(int32_t code, float scale)
{
    const uint32_t size = (uint32_t)(code < 0 ? -code : code);
    const float x = gr_moment_float(GR_MOMENT_M_BASE + (size << GR_MOMENT_M_BITS)) - GR_MOMENT_B;
    const float m = x * (1 / GR_MOMENT_A) * scale;
    return gr_moment_float(gr_moment_bits(m) | (code < 0 ? 0x80000000u : 0));
}

/* root: sqrt(v). */
GR_BOTH uint32_t gr_moment_v_code(float root, float scale, float inverse, uint32_t chance)
{
    const uint32_t x = gr_moment_ratio(root, scale, inverse), bits = x + gr_moment_v_noise(chance),
                   least = GR_MOMENT_V_BASE + (1u << GR_MOMENT_V_BITS); /* of code 1 */
    const uint32_t code = ((bits > least ? bits : least) - GR_MOMENT_V_BASE) >> GR_MOMENT_V_BITS;
    return x ? code : 0;
}

GR_BOTH float gr_moment_v(uint32_t code, float scale)
{
    const uint32_t bits = GR_MOMENT_V_BASE + (code << GR_MOMENT_V_BITS);
    const float root = gr_moment_float(code ? bits : 0) * scale;
    return root * root;
}

#endif
