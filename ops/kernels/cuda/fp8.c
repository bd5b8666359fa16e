/* ops/kernels/cuda/fp8.c: products with weights in FP8 on CUDA: rows are rounded into the workspace, then
 * cuBLASLt multiplies, or for few rows, under strict and of what it does not have, the kernel of fp8.cu.
 * Which of them follows from the shape alone.
 *
 * cuBLASLt may want whole sixteens of rows: the others go through the kernel.
 */
#include "ops/kernels/cuda/fp8.h"

#include "ops/kernels/cuda/context.h"
#include "ops/kernels/cuda/layer.h"
#include "ops/kernels/cuda/layout.h"
#include "ops/model/fp8.h"

#include <cuda_runtime_api.h>

enum { FEW = 16, WHOLE = 16 }; /* rows */

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

/* How many rows the library multiplies: all, those of whole sixteens, or none. */
static uint32_t rows_of_library(gr_queue *q, const gr_cu_fp8_product *p)
{
    gr_cu_context *x = gr_cu_context_of(q);
    gr_cu_gemm_call call = library_call(p);
    if (x->strict || p->t <= FEW || (p->bias && (p->add || p->scale != 1))) return 0;
    if (gr_cu_gemm_fits(x->gemm, &call)) return p->t;
    call.m = p->t / WHOLE * WHOLE;
    return call.m < p->t && gr_cu_gemm_fits(x->gemm, &call) ? call.m : 0;
}

/* Rows [first, first + n) of x, rounded into what p has room for, by the library or not. */
static void multiply(gr_queue *q, const gr_cu_fp8_product *p, const gr_bf16 *x, uint32_t first, uint32_t n,
                     bool library, void *ws)
{
    gr_cu_fp8_product part = *p;
    part.t = n;
    part.y += (uint64_t)first * p->out;
    if (p->add) part.add += (uint64_t)first * p->out;
    gr_cu_fp8_rows(q->stream, x + (uint64_t)first * p->in, (uint8_t *)(uintptr_t)p->x,
                   (float *)(uintptr_t)p->x_scales, n, p->in);
    if (!library) {
        gr_cu_fp8_few(q->stream, &part);
        return;
    }
    const gr_cu_gemm_call call = library_call(&part);
    gr_cu_product(q, &call, ws);
}

/* w: rounded rows and their scales have room; x is what is to be rounded. */
static void product(gr_queue *q, gr_cu_fp8_product *p, const gr_cu_fp8_ws *w, const gr_bf16 *x)
{
    p->x = w->values;
    p->x_scales = w->scales;
    const uint32_t n = rows_of_library(q, p);
    if (n) multiply(q, p, x, 0, n, true, w->gemm);
    if (n < p->t) multiply(q, p, x, n, p->t - n, false, w->gemm);
}

void gr_cuda_fp8_product(gr_queue *q, const gr_product *c, float scale, gr_bf16 *y, const gr_bf16 *add,
                         void *ws)
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
    product(q, &p, &w, c->x);
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
    product(q, &p, &w, dy);
}
