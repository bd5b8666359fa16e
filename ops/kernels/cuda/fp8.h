/* ops/kernels/cuda/fp8.h: products with weights in FP8 on CUDA: launchers of ops/kernels/cuda/fp8.cu, and of
 * norms, activations and decode attention that leave their results in FP8. What chooses among them and
 * cuBLASLt: ops/kernels/cuda/fp8.c.
 *
 * Values, scales and roundings are those of ops/model/fp8.h, to the bit; sums differ from the CPU device's as
 * those of tensor cores do: within a block of 128 terms they are the hardware's, between blocks fp32.
 * Matrices are dense and row-major; widths are multiples of 16. Launchers as in ops/kernels/cuda/launch.h.
 */
#ifndef GR_OPS_KERNELS_CUDA_FP8_H
#define GR_OPS_KERNELS_CUDA_FP8_H

#include "ops/kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Weights w [rows, cols]: values [rows, cols], scales [blocks(rows), gr_fp8_scale_ld(cols)]. */
void gr_cu_fp8_weights(cudaStream_t st, const gr_bf16 *w, uint8_t *values, float *scales, uint32_t rows,
                       uint32_t cols);
/* The same of W^T, [cols, rows] and its scales. */
void gr_cu_fp8_turn(cudaStream_t st, const uint8_t *values, const float *scales, uint8_t *to,
                    float *to_scales, uint32_t rows, uint32_t cols);
/* Rows x [t, cols] turned, in blocks along rows: values [cols, T], T = t rounded up to whole blocks; what is
 * behind row t is 0. A scale for each column's 128 rows, [T / 128, cols], or for 128 of them together,
 * [blocks(cols), gr_fp8_scale_ld(T)]. */
void gr_cu_fp8_columns(cudaStream_t st, const gr_bf16 *x, uint8_t *values, float *scales, uint32_t t,
                       uint32_t cols);
void gr_cu_fp8_columns_together(cudaStream_t st, const gr_bf16 *x, uint8_t *values, float *scales, uint32_t t,
                                uint32_t cols);
/* gr_cu_fp8_columns and, of the first n rows, gr_cu_fp8_rows (with t = n), of x that is read once. */
typedef struct gr_cu_fp8_ways {
    uint8_t *columns, *rows;
    float *column_scales, *row_scales;
} gr_cu_fp8_ways;
void gr_cu_fp8_both(cudaStream_t st, const gr_bf16 *x, const gr_cu_fp8_ways *to, uint32_t n, uint32_t t,
                    uint32_t cols);
/* Rows x [n, cols], n <= t: values [t, cols], scales [blocks(cols), t]; rows behind n are 0. */
void gr_cu_fp8_rows(cudaStream_t st, const gr_bf16 *x, uint8_t *values, float *scales, uint32_t n, uint32_t t,
                    uint32_t cols);

/* Where a kernel leaves its rows as gr_cu_fp8_rows leaves those that it made, the first n of them: values [n,
 * cols], scales [blocks(cols), n]. Rows behind them stay in bf16. */
typedef struct gr_cu_fp8_to {
    uint8_t *values;
    float *scales;
    uint32_t n;
} gr_cu_fp8_to;
struct gr_queue;
struct gr_product;
/* Whether a product takes x rounded (gr_product.rounded), and where in its workspace ws; this alone decides.
 * adds: what comes of it may be added to something (gr_layer_ops.product_add). */
bool gr_cuda_fp8_takes(struct gr_queue *q, const struct gr_product *p, bool adds, void *ws, gr_cu_fp8_to *to);

/* gr_cu_rmsnorm of dense rows; H a multiple of 16. y [c->n, H]: rows from to->n on are written. */
void gr_cu_fp8_rmsnorm(cudaStream_t st, const gr_cu_norm *c, const gr_cu_fp8_to *to, gr_bf16 *y);
/* gr_cu_swiglu; I a multiple of 16. h [T, I]: rows from to->n on are written. */
void gr_cu_fp8_swiglu(cudaStream_t st, const gr_bf16 *gate_up, bool gelu, const gr_cu_fp8_to *to, gr_bf16 *h,
                      uint32_t T, uint32_t I);

/* gr_cu_decode_attention of heads of a multiple of 128. out [d->n, heads D]: rows from to->n on are written.
 */
void gr_cu_fp8_decode_attention(cudaStream_t st, const gr_cu_paged *p, const gr_cu_decode *d,
                                const gr_bf16 *qkv, const gr_cu_fp8_to *to, gr_bf16 *out, const void *work,
                                void *ws);

/* Heads of D values each, `heads` of them behind each other in each of T rows ld apart: they become what a
 * pool in FP8 gives back of them (gr_cu_paged), in place. D a multiple of 16, up to 256. */
void gr_cu_fp8_heads(cudaStream_t st, gr_bf16 *x, uint32_t T, uint32_t ld, uint32_t heads, uint32_t D);

#define GR_CU_FP8_RAW 16

/* y [t, out] = scale (x W^T + bias) + add, rounded once. y == add is fine. */
typedef struct gr_cu_fp8_product {
    uint32_t t, in, out;
    const gr_bf16 *raw; /* x, to be rounded on the way: of GR_CU_FP8_RAW rows at most; NULL: x is rounded */
    const uint8_t *x, *w;
    const float *x_scales, *w_scales;
    const gr_bf16 *bias, *add; /* NULL: none */
    float scale;
    gr_bf16 *y;
    float *sum; /* NULL; or what scale (x W^T + bias) is added to in fp32, in the place of y and add */
} gr_cu_fp8_product;

/* For few rows: weights go through the tensor cores once for 64 rows of x, straight from memory. Every
 * element is one sum whose order follows from `in` alone: the bits of a row of y follow from that row of x.
 */
void gr_cu_fp8_few(cudaStream_t st, const gr_cu_fp8_product *p);

#ifdef __cplusplus
}
#endif

#endif
