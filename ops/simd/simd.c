/* ops/simd/simd.c: which instruction set to use. */
#include "ops/simd/simd.h"

size_t gr_simd_all(const gr_simd *out[GR_SIMD_MAX])
{
    size_t n = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) out[n++] = &gr_simd_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) out[n++] = &gr_simd_avx2;
#endif
    out[n++] = &gr_simd_portable;
    return n;
}

const gr_simd *gr_simd_best(void)
{
    const gr_simd *all[GR_SIMD_MAX];
    gr_simd_all(all);
    return all[0];
}
