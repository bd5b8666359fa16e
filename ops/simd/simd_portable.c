/* ops/simd/simd_portable.c: ops/simd/simd.h in plain C, for machines of which we know nothing. Where the
 * compiler's target has a fused multiply-add it uses it; elsewhere fmaf is a slow but exact call. */
#include "ops/simd/simd.h"

#define GR_VEC    0
#define SIMD      gr_simd_portable
#define SIMD_NAME "portable"
#define MR        3
#define NV        1
#define THIN_MR   4
#include "ops/simd/simd_body.h"
