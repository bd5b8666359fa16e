/* ops/simd/simd_avx2.c: ops/simd/simd.h in AVX2 and FMA. 12 of 16 registers hold a tile of 6 x 16. */
#include "ops/simd/simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

#define GR_VEC    256
#define SIMD      gr_simd_avx2
#define SIMD_NAME "avx2"
#define MR        6
#define NV        1
#define THIN_MR   6
#include "ops/simd/simd_body.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
