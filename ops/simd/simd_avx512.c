/* ops/simd/simd_avx512.c: ops/simd/simd.h in AVX-512F. 24 of 32 registers hold a tile of 12 x 32. */
#include "ops/simd/simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx2,fma")
#endif

#define GR_VEC    512
#define SIMD      gr_simd_avx512
#define SIMD_NAME "avx512"
#define MR        12
#define NV        2
#define THIN_MR   8
#include "ops/simd/simd_body.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
