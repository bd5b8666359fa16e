/* ops/kernels/cpu/gemm.h: fp32 matrix product on a team of threads, with the same bits for an element
 * whatever surrounds it: each is one chain of fused multiply-adds in increasing k, from 0 or from what C
 * holds.
 *
 * Method: Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (ACM TOMS 34, 2008):
 * blocks of both operands are packed so that one stays in the first-level cache and one in the second. C is
 * stored and loaded again between blocks of k, which does not break the chain. Few rows against a matrix
 * that is stored transposed (decoding) read that matrix in place.
 *
 * Threads: split over rows and columns of C.
 */
#ifndef GR_OPS_KERNELS_CPU_GEMM_H
#define GR_OPS_KERNELS_CPU_GEMM_H

#include "ops/simd/simd.h"
#include "runtime/device/device.h"

/* A matrix [rows, cols]: element (i, j) is p[i ld + j], or p[j ld + i] where it is stored transposed. */
typedef struct gr_mat {
    const float *p;
    size_t ld;
    bool transposed;
} gr_mat;

typedef struct gr_gemm_job {
    size_t m, n, k;
    gr_mat a, b; /* [m, k], [k, n] */
    float *c;    /* [m, n] */
    size_t ldc;
    bool add;            /* C += A B instead of C = A B */
    const gr_simd *simd; /* NULL: gr_simd_best() */
} gr_gemm_job;

/* What gr_gemm works in: for a job of this m, n, k and these forms, and for any of a smaller m or k (pointers
 * are not read). */
uint64_t gr_gemm_ws_bytes(const gr_gemm_job *job, unsigned threads);
void gr_gemm(gr_queue *q, const gr_gemm_job *job, void *ws);

#endif
