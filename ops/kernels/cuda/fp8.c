/* ops/kernels/cuda/fp8.c: products with weights in FP8 on CUDA: rows are rounded into the workspace, or of
 * few rows on the way; cuBLASLt multiplies, or for few rows, under strict and of what it does not have, the
 * kernel of fp8.cu. Which of them follows from the shape alone.
 *
 * cuBLASLt may want whole sixteens of rows: the others go through the kernel.
 */
#include "ops/kernels/cuda/fp8.h"

#include "ops/kernels/cuda/context.h"
#include "ops/kernels/cuda/layer.h"
#include "ops/kernels/cuda/layout.h"
#include "ops/model/fp8.h"

#include <cuda_runtime_api.h>

enum { FEW = GR_CU_FP8_RAW, WHOLE = 16 }; /* rows */

/* Its tensor cores have FP8. */
static bool is_able(void)
{
    int device = 0, major = 0, minor = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
           10 * major + minor >= 89;
}

/* Products follow, of what this has made. */
void gr_cuda_quantize(gr_queue *q, const gr_quantize *c)
{
    if (!is_able())
        gr_cu_note(q, gr_diag_error(&gr_cu_context_of(q)->d, (gr_loc){0}, GR_E_FAILED,
                                    "products in FP8 need a GPU of compute capability 8.9 or later"));
    gr_cu_fp8_weights(q->stream, c->w, c->values, c->scales, c->rows, c->cols);
}

static gr_cu_gemm_call library_call(const gr_cu_fp8_product *p)
{
    return (gr_cu_gemm_call){.form = GR_CU_GEMM_NT,
                             .m = p->t,
                             .n = p->out,
                             .k = p->in,
                             .a = p->x,
                             .b = p->w,
                             .a_scales = p->x_scales,
                             .b_scales = p->w_scales,
                             .lda = p->in,
                             .ldb = p->in,
                             .ldd = p->out,
                             .d = p->y,
                             .type = GR_CU_BF16,
                             .c = p->add,
                             .ldc = p->out,
                             .scale = p->scale,
                             .bias = p->bias};
}

/* Whether it has so many rows of a product, be it that what is added is added behind. */
static bool has(gr_cu_gemm *g, const gr_cu_fp8_product *p, uint32_t rows)
{
    gr_cu_gemm_call call = library_call(p);
    call.m = rows;
    if (!rows || gr_cu_gemm_fits(g, &call)) return rows > 0;
    call.c = NULL;
    return p->add && gr_cu_gemm_fits(g, &call);
}

/* How many rows the library multiplies: all, those of whole sixteens, or none. */
static uint32_t rows_of_library(gr_queue *q, const gr_cu_fp8_product *p)
{
    const gr_cu_context *x = gr_cu_context_of(q);
    const uint32_t whole = p->t / WHOLE * WHOLE;
    if (x->strict || p->t <= FEW || (p->bias && (p->add || p->scale != 1))) return 0;
    return has(x->gemm, p, p->t) ? p->t : whole < p->t && has(x->gemm, p, whole) ? whole : 0;
}

static void by_library(gr_queue *q, const gr_cu_fp8_product *p, gr_bf16 *temp, void *ws)
{
    gr_cu_gemm_call call = library_call(p);
    const bool apart = p->add && !gr_cu_gemm_fits(gr_cu_context_of(q)->gemm, &call);
    if (apart) call.c = NULL;
    if (apart && p->y == p->add) call.d = temp;
    gr_cu_product(q, &call, ws);
    if (apart)
        gr_cu_add(q->stream, p->y, p->y == p->add ? temp : p->add, GR_CU_BF16, (uint64_t)p->t * p->out);
}

/* Rows [first, first + n) of x, rounded into what p has room for, or on the way, by the library or not. */
static void multiply(gr_queue *q, const gr_cu_fp8_product *p, const gr_bf16 *x, uint32_t first, uint32_t n,
                     bool library, gr_bf16 *temp, void *ws)
{
    const uint64_t at = (uint64_t)first * p->out;
    gr_cu_fp8_product part = *p;
    part.t = n;
    part.y += at;
    if (p->add) part.add += at;
    if (n <= FEW && !library) part.raw = x + (uint64_t)first * p->in;
    if (!part.raw)
        gr_cu_fp8_rows(q->stream, x + (uint64_t)first * p->in, (uint8_t *)(uintptr_t)p->x,
                       (float *)(uintptr_t)p->x_scales, n, p->in);
    if (library)
        by_library(q, &part, temp ? temp + at : NULL, ws);
    else
        gr_cu_fp8_few(q->stream, &part);
}

/* w: rounded rows and their scales have room; x is what is to be rounded. */
static void product(gr_queue *q, gr_cu_fp8_product *p, const gr_cu_fp8_ws *w, const gr_bf16 *x, gr_bf16 *temp)
{
    p->x = w->values;
    p->x_scales = w->scales;
    const uint32_t n = rows_of_library(q, p);
    if (n) multiply(q, p, x, 0, n, true, temp, w->gemm);
    if (n < p->t) multiply(q, p, x, n, p->t - n, false, temp, w->gemm);
}

void gr_cuda_fp8_product(gr_queue *q, const gr_product *c, float scale, gr_bf16 *y, const gr_bf16 *add,
                         gr_bf16 *temp, void *ws)
{
    gr_workspace at = {.base = ws};
    gr_cu_fp8_ws w;
    gr_cu_fp8_product p = {.t = c->t,
                           .in = c->in,
                           .out = c->out,
                           .w = c->w,
                           .w_scales = c->scales,
                           .bias = c->bias,
                           .add = add,
                           .scale = scale,
                           .y = y};
    gr_cu_fp8_layout(&at, c->t, c->in, c->out, false, &w);
    product(q, &p, &w, c->x, temp);
}

/* The product with W^T, which is turned into the workspace: tensor cores take FP8 along terms alone. */
void gr_cuda_fp8_product_dx(gr_queue *q, const gr_product *c, const gr_bf16 *dy, gr_bf16 *dx, void *ws)
{
    gr_workspace at = {.base = ws};
    gr_cu_fp8_ws w;
    gr_cu_fp8_layout(&at, c->t, c->in, c->out, true, &w);
    gr_cu_fp8_turn(q->stream, c->w, c->scales, w.turned, w.turned_scales, c->out, c->in);
    gr_cu_fp8_product p = {.t = c->t,
                           .in = c->out,
                           .out = c->in,
                           .w = w.turned,
                           .w_scales = w.turned_scales,
                           .scale = 1,
                           .y = dx};
    product(q, &p, &w, dy, NULL);
}
