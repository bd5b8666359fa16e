/* ops/kernels/cuda/gemm.h: matrix products on the device, by cuBLASLt.
 *
 * Matrices are row-major with a leading dimension in elements. Inputs are bf16, sums fp32, the result bf16 or
 * fp32. The algorithm of a shape is what cuBLASLt's heuristics rank first among those whose result does not
 * depend on timing (of few rows, for one kind of shape, a later one: gemm.c): the same shape gets the same
 * algorithm in every process on the same type of GPU and version of the library, and no product is ever
 * measured. It is looked up once a shape, then kept.
 *
 * Threads: a gr_cu_gemm belongs to one thread and one stream order at a time (its workspace is the caller's).
 * Products are safe under stream capture.
 */
#ifndef GR_OPS_KERNELS_CUDA_GEMM_H
#define GR_OPS_KERNELS_CUDA_GEMM_H

#include "ops/kernels/cuda/launch.h"
#include "runtime/base/base.h"

/* What every call may use of its workspace, aligned to 256. cuBLASLt wants 32 MiB on Hopper; more brings
 * nothing. */
#define GR_CU_GEMM_WS_BYTES (UINT64_C(32) << 20)

typedef struct gr_cu_gemm gr_cu_gemm;

typedef enum gr_cu_gemm_form {
    GR_CU_GEMM_NT, /* D[M, N] = A[M, K] B[N, K]^T: y = x W^T */
    GR_CU_GEMM_NN, /* D[M, N] = A[M, K] B[K, N]:   dx = dy W */
    GR_CU_GEMM_TN, /* D[M, N] = A[K, M]^T B[K, N]: dW = dy^T x */
} gr_cu_gemm_form;

typedef struct gr_cu_gemm_call {
    gr_cu_gemm_form form;
    uint32_t m, n, k;
    const void *a, *b;                /* bf16 */
    const float *a_scales, *b_scales; /* not NULL: a and b are E4M3, form NT; see below */
    uint64_t lda, ldb, ldd;
    void *d;
    gr_cu_dtype type;    /* of d and c */
    const void *c;       /* NULL, or [M, N] added to the product; d itself is fine */
    uint64_t ldc;        /* unused where c is NULL */
    float scale;         /* of the product; 0: 1 */
    const gr_bf16 *bias; /* NULL, or [N] added to every row; only where type is bf16 and c is NULL */
    bool strict; /* rows of d do not depend on m: see below. Of NT and NN, whose m counts rows of a batch, and
                    without c; refused with TN, where m is a dimension of the weights */
} gr_cu_gemm_call;

/* strict takes only algorithms of one kind for all m and without split-K: each element is
 * then one chain of the same instructions over k, and tiles, which may differ with m, only say who computes
 * it. That this holds of a version of the library is tested, not promised: tests/gpu/gpu_strict.c compares
 * the bits of rows for many m. It does not hold of results that are added to c: their epilogues differ with
 * m. */

/* In FP8 a has a scale for each row's 128 terms, a_scales [blocks(k), m], and b one for each 128 x 128,
 * b_scales [blocks(n), gr_fp8_scale_ld(k)] (ops/model/fp8.h): Hopper and cuBLASLt 12.9 or later have such
 * products. Whether they have those of a shape is asked of the library, once a shape (gr_cu_gemm_fits). */

/* For the current device. */
GR_NODISCARD gr_status gr_cu_gemm_open(gr_cu_gemm **out, gr_diag *d);
void gr_cu_gemm_close(gr_cu_gemm *g); /* NULL is fine */

/* Enqueue one product; ws [GR_CU_GEMM_WS_BYTES]. m, n or k may be 0: then d is left as it is (m, n) or, for
 * k, refused. GR_E_FAILED with the shape and cuBLAS's status. */
GR_NODISCARD gr_status gr_cu_gemm_run(gr_cu_gemm *g, cudaStream_t st, const gr_cu_gemm_call *call, void *ws,
                                      gr_diag *d);

/* Whether there is an algorithm for a call; what there is none for gr_cu_gemm_run refuses. */
bool gr_cu_gemm_fits(gr_cu_gemm *g, const gr_cu_gemm_call *call);

/* For benchmarks: from now on products of this shape take the algorithm of this rank among those that
 * cuBLASLt's heuristics give and that may be taken. false: there are not so many. */
bool gr_cu_gemm_take(gr_cu_gemm *g, const gr_cu_gemm_call *call, uint32_t rank, gr_diag *d);

/* The algorithm of a call, for benchmarks: "id 66 tile 20 stages 36 split 1 scheme 0 swizzle 1, ws 0". buf of
 * 128. */
GR_NODISCARD gr_status gr_cu_gemm_describe(gr_cu_gemm *g, const gr_cu_gemm_call *call, char *buf, gr_diag *d);

#endif
