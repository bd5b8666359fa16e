/* ops/simd/vec16.h: sixteen floats as one value, in the instructions of the including file.
 *
 * Sixteen on every machine, whatever its registers hold, so that sums kept in lanes have the same order, and
 * so the same bits, everywhere. The includer defines GR_VEC as 512 (AVX-512F), 256 (AVX2 and FMA) or 0
 * (plain C) and, for the first two, has turned the instructions on. Multiply-add is always fused.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>
#if GR_VEC
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline, unused))

/* Unrolled, checks of every lane or row are more code than the compiler takes in good time. */
#if !GR_VEC || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL
#elif defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#if GR_VEC == 512

typedef __m512 v16;

INLINE __mmask16 lanes_below(size_t n)
{
    return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1);
}

#define V16_OP2(name, op)         \
    INLINE v16 name(v16 a, v16 b) \
    {                             \
        return _mm512_##op(a, b); \
    }

INLINE v16 v_set(float x)
{
    return _mm512_set1_ps(x);
}

INLINE v16 v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

INLINE void v_store(float *p, v16 a)
{
    _mm512_storeu_ps(p, a);
}

INLINE v16 v_load_n(const float *p, size_t n) /* the first n lanes; the others are 0 and not read */
{
    return _mm512_maskz_loadu_ps(lanes_below(n), p);
}

INLINE void v_store_n(float *p, v16 a, size_t n)
{
    _mm512_mask_storeu_ps(p, lanes_below(n), a);
}

INLINE v16 v_first(v16 a, size_t n, float rest) /* a in lanes below n, rest in the others */
{
    return _mm512_mask_blend_ps(lanes_below(n), _mm512_set1_ps(rest), a);
}

INLINE v16 v_fma(v16 a, v16 b, v16 c) /* a b + c */
{
    return _mm512_fmadd_ps(a, b, c);
}

INLINE v16 v_sqrt(v16 a)
{
    return _mm512_sqrt_ps(a);
}

INLINE v16 v_round(v16 a) /* to the nearest integer, ties to even */
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

INLINE v16 v_pow2(v16 a) /* 2^a of integers in [-126, 127] */
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127)), 23));
}

INLINE v16 v_less(v16 a, v16 b, v16 then, v16 otherwise)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), otherwise, then);
}

V16_OP2(v_add, add_ps)
V16_OP2(v_sub, sub_ps)
V16_OP2(v_mul, mul_ps)
V16_OP2(v_div, div_ps)
V16_OP2(v_max, max_ps) /* a > b ? a : b, so b where one is not a number */
V16_OP2(v_min, min_ps)

#elif GR_VEC == 256

typedef struct v16 {
    __m256 a, b;
} v16;

#define V16_OP2(name, op)                                           \
    INLINE v16 name(v16 x, v16 y)                                   \
    {                                                               \
        return (v16){_mm256_##op(x.a, y.a), _mm256_##op(x.b, y.b)}; \
    }

INLINE v16 v_set(float x)
{
    return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

INLINE v16 v_load(const float *p)
{
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

INLINE void v_store(float *p, v16 x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}

INLINE v16 v_load_n(const float *p, size_t n)
{
    if (n >= 16) return v_load(p);
    float t[16] = {0};
    memcpy(t, p, n * sizeof(*t));
    return v_load(t);
}

INLINE void v_store_n(float *p, v16 x, size_t n)
{
    if (n >= 16) {
        v_store(p, x);
        return;
    }
    float t[16];
    v_store(t, x);
    memcpy(p, t, n * sizeof(*t));
}

INLINE v16 v_first(v16 x, size_t n, float rest)
{
    __m256 count = _mm256_set1_ps((float)(n > 16 ? 16 : n)), r = _mm256_set1_ps(rest);
    __m256 lane = _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
    __m256 high = _mm256_add_ps(lane, _mm256_set1_ps(8));
    return (v16){_mm256_blendv_ps(r, x.a, _mm256_cmp_ps(lane, count, _CMP_LT_OQ)),
                 _mm256_blendv_ps(r, x.b, _mm256_cmp_ps(high, count, _CMP_LT_OQ))};
}

INLINE v16 v_fma(v16 x, v16 y, v16 z)
{
    return (v16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}

INLINE v16 v_sqrt(v16 x)
{
    return (v16){_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)};
}

INLINE v16 v_round(v16 x)
{
    return (v16){_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                 _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

INLINE __m256 pow2_half(__m256 x)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(127)), 23));
}

INLINE v16 v_pow2(v16 x)
{
    return (v16){pow2_half(x.a), pow2_half(x.b)};
}

INLINE v16 v_less(v16 x, v16 y, v16 then, v16 otherwise)
{
    return (v16){_mm256_blendv_ps(otherwise.a, then.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
                 _mm256_blendv_ps(otherwise.b, then.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}

V16_OP2(v_add, add_ps)
V16_OP2(v_sub, sub_ps)
V16_OP2(v_mul, mul_ps)
V16_OP2(v_div, div_ps)
V16_OP2(v_max, max_ps)
V16_OP2(v_min, min_ps)

#else

typedef float v16 __attribute__((vector_size(64)));

#define V16_EACH(result, expr)                      \
    do {                                            \
        for (int i = 0; i < 16; i++) result = expr; \
    } while (0)

#define V16_OP2(name, expr)       \
    INLINE v16 name(v16 x, v16 y) \
    {                             \
        return expr;              \
    }

INLINE v16 v_set(float x)
{
    return (v16){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

INLINE v16 v_load(const float *p)
{
    v16 r;
    memcpy(&r, p, sizeof(r));
    return r;
}

INLINE void v_store(float *p, v16 x)
{
    memcpy(p, &x, sizeof(x));
}

INLINE v16 v_load_n(const float *p, size_t n)
{
    v16 r = {0};
    memcpy(&r, p, (n < 16 ? n : 16) * sizeof(float));
    return r;
}

INLINE void v_store_n(float *p, v16 x, size_t n)
{
    memcpy(p, &x, (n < 16 ? n : 16) * sizeof(float));
}

INLINE v16 v_first(v16 x, size_t n, float rest)
{
    for (size_t i = n; i < 16; i++) x[i] = rest;
    return x;
}

INLINE v16 v_fma(v16 x, v16 y, v16 z)
{
    V16_EACH(z[i], __builtin_fmaf(x[i], y[i], z[i]));
    return z;
}

INLINE v16 v_sqrt(v16 x)
{
    V16_EACH(x[i], sqrtf(x[i]));
    return x;
}

INLINE v16 v_round(v16 x)
{
    V16_EACH(x[i], rintf(x[i]));
    return x;
}

INLINE float pow2_one(float x)
{
    uint32_t bits = x >= -126 && x <= 127 ? (uint32_t)((int32_t)x + 127) << 23 : 0;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

INLINE v16 v_pow2(v16 x)
{
    V16_EACH(x[i], pow2_one(x[i]));
    return x;
}

INLINE v16 v_less(v16 x, v16 y, v16 then, v16 otherwise)
{
    V16_EACH(then[i], x[i] < y[i] ? then[i] : otherwise[i]);
    return then;
}

INLINE v16 v_max(v16 x, v16 y)
{
    return v_less(y, x, x, y);
}

INLINE v16 v_min(v16 x, v16 y)
{
    return v_less(x, y, x, y);
}

V16_OP2(v_add, x + y)
V16_OP2(v_sub, x - y)
V16_OP2(v_mul, x *y)
V16_OP2(v_div, x / y)

#endif

/* Sum of the lanes, neighbours at distance 8 first, then 4, 2, 1. */
INLINE float v_sum(v16 a)
{
    float t[16];
    v_store(t, a);
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++) t[i] += t[i + h];
    return t[0];
}

INLINE float v_max_lane(v16 a)
{
    float t[16];
    v_store(t, a);
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++) t[i] = t[i] > t[i + h] ? t[i] : t[i + h];
    return t[0];
}

/* e^x within 1.5 ulp: 0 below -87.3, e^88 above 88. x = n ln 2 + r, |r| <= ln 2 / 2; ln 2 in two parts
 * (Cody and Waite), e^r by its Taylor polynomial of degree 7. */
INLINE v16 v_exp(v16 x)
{
    const v16 low = v_set(-87.3f);
    v16 c = v_max(low, v_min(v_set(88.0f), x)); /* in this order what is not a number stays so */
    v16 n = v_round(v_mul(c, v_set(0x1.715476p+0f)));
    v16 r = v_fma(n, v_set(-0x1.62e4p-1f), c);
    r = v_fma(n, v_set(-0x1.7f7d1cp-20f), r);
    v16 p = v_set(1.0f / 5040);
    p = v_fma(p, r, v_set(1.0f / 720));
    p = v_fma(p, r, v_set(1.0f / 120));
    p = v_fma(p, r, v_set(1.0f / 24));
    p = v_fma(p, r, v_set(1.0f / 6));
    p = v_fma(p, r, v_set(0.5f));
    p = v_fma(p, r, v_set(1.0f));
    p = v_fma(p, r, v_set(1.0f));
    return v_less(x, low, v_set(0), v_mul(p, v_pow2(n)));
}
