/* ops/kernels/cuda/fp8.c: products with weights in FP8 on CUDA: rows are rounded into the workspace and
 * multiplied by cuBLASLt; few rows, and products that it does not have, go through the kernel of fp8.cu.
 * Which of the two follows from the shape alone.
 *
 * cuBLASLt 13.0 has products of whole fours of rows on Hopper: the last rows go with rows of zeros. Of more
 * than 8 rows it is the faster of the two (tests/gpu/gpu_fp8 --bench on an H200): the four products of a
 * layer of 8B take 93 us of 8 rows by the kernel and 96 by the library, beside four launches that round; of
 * 16 rows 136 and 91. What makes the rows of one of its products alone may leave them rounded. Under strict
 * all rows go one way: the bits of a row do not depend on how many there are, be it by the kernel, whose
 * order follows from the width, or by the library's algorithm for strict (ops/kernels/cuda/gemm.h).
 */
#include "ops/kernels/cuda/fp8.h"

#include "ops/kernels/cuda/context.h"
#include "ops/kernels/cuda/layer.h"
#include "ops/kernels/cuda/layout.h"
#include "ops/kernels/cuda/model.h"
#include "ops/model/fp8.h"

#include <cuda_runtime_api.h>

enum { FEW = 8, FOUR = GR_CU_FP8_FOUR }; /* rows */

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

/* Under strict nothing is added by the product: see ops/kernels/cuda/gemm.h. */
static gr_cu_gemm_call library_call(gr_queue *q, const gr_cu_fp8_product *p)
{
    const bool strict = gr_cu_context_of(q)->strict;
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
                             .c = strict ? NULL : p->add,
                             .ldc = p->out,
                             .scale = p->scale,
                             .bias = p->bias,
                             .strict = strict};
}

static bool fits(gr_queue *q, const gr_cu_gemm_call *call)
{
    return gr_cu_gemm_fits(gr_cu_context_of(q)->gemm, call);
}

/* Whether the library multiplies. Under strict it follows from the weights' shape alone. */
static bool uses_library(gr_queue *q, const gr_cu_fp8_product *p)
{
    gr_cu_gemm_call call = library_call(q, p);
    if (!call.strict && p->t <= FEW) return false;
    if (p->bias && (p->add || p->scale != 1)) return false;
    call.m = FOUR;
    call.c = NULL;
    return fits(q, &call);
}

static gr_cu_fp8_product forward_product(const gr_product *c, const gr_cu_fp8_ws *w)
{
    return (gr_cu_fp8_product){.t = c->t,
                               .in = c->in,
                               .out = c->out,
                               .x = w->values,
                               .w = c->w,
                               .x_scales = w->scales,
                               .w_scales = c->scales,
                               .bias = c->bias,
                               .scale = 1};
}

/* A bias that goes with a sum is not the library's. */
bool gr_cuda_fp8_takes(gr_queue *q, const gr_product *c, bool adds, void *ws, gr_cu_fp8_to *to)
{
    gr_workspace at = {.base = ws};
    gr_cu_fp8_ws w;
    if (!c->scales || c->t < FOUR || (adds && c->bias)) return false;
    gr_cu_fp8_layout(&at, c->t, c->in, c->out, false, &w);
    const gr_cu_fp8_product p = forward_product(c, &w);
    *to = (gr_cu_fp8_to){w.values, w.scales, c->t / FOUR * FOUR};
    return uses_library(q, &p);
}

/* Rows of p are rounded, and are whole fours. */
static void by_library(gr_queue *q, const gr_cu_fp8_product *p, gr_bf16 *temp, void *ws)
{
    gr_cu_gemm_call call = library_call(q, p);
    const bool apart = p->add && (!call.c || !fits(q, &call));
    if (apart) call.c = NULL;
    if (apart && p->y == p->add) call.d = temp;
    gr_cu_product(q, &call, ws);
    if (apart)
        gr_cu_add(q->stream, p->y, p->y == p->add ? temp : p->add, GR_CU_BF16, (uint64_t)p->t * p->out);
}

static void round_rows(gr_queue *q, const gr_cu_fp8_product *p, const gr_bf16 *x, uint32_t rows)
{
    gr_cu_fp8_rows(q->stream, x, (uint8_t *)(uintptr_t)p->x, (float *)(uintptr_t)p->x_scales, rows, p->t,
                   p->in);
}

/* The last rows, fewer than four: with rows of zeros they are four. */
static void last_rows(gr_queue *q, const gr_cu_fp8_product *p, const gr_bf16 *x, const gr_cu_fp8_ws *w)
{
    const uint64_t n = (uint64_t)p->t * p->out;
    gr_cu_fp8_product four = *p;
    four.t = FOUR;
    four.y = w->last;
    four.add = NULL;
    round_rows(q, &four, x, p->t);
    by_library(q, &four, NULL, w->gemm);
    if (p->y != p->add) gr_cuda_copy(q, p->y, w->last, n * sizeof(gr_bf16));
    if (p->add) gr_cu_add(q->stream, p->y, p->y == p->add ? w->last : p->add, GR_CU_BF16, n);
}

/* rounded: whole fours of x's rows are already. */
static void all_by_library(gr_queue *q, const gr_cu_fp8_product *p, const gr_cu_fp8_ws *w, const gr_bf16 *x,
                           gr_bf16 *temp, bool rounded)
{
    const uint32_t whole = p->t / FOUR * FOUR;
    gr_cu_fp8_product part = *p;
    part.t = whole;
    if (whole) {
        if (!rounded) round_rows(q, &part, x, whole);
        by_library(q, &part, temp, w->gemm);
    }
    part.t = p->t - whole;
    part.y += (uint64_t)whole * p->out;
    if (p->add) part.add += (uint64_t)whole * p->out;
    if (part.t) last_rows(q, &part, x + (uint64_t)whole * p->in, w);
}

/* Where x [t, in] is to be rounded w has room; rounded: whole fours of its rows are. */
static void product(gr_queue *q, gr_cu_fp8_product *p, const gr_cu_fp8_ws *w, const gr_bf16 *x, gr_bf16 *temp,
                    bool rounded)
{
    if (!p->t) return;
    if (rounded || uses_library(q, p)) {
        all_by_library(q, p, w, x, temp, rounded);
        return;
    }
    if (p->t <= GR_CU_FP8_RAW)
        p->raw = x;
    else
        round_rows(q, p, x, p->t);
    gr_cu_fp8_few(q->stream, p);
}

void gr_cuda_fp8_product(gr_queue *q, const gr_product *c, float scale, gr_bf16 *y, const gr_bf16 *add,
                         gr_bf16 *temp, void *ws)
{
    gr_workspace at = {.base = ws};
    gr_cu_fp8_ws w;
    gr_cu_fp8_layout(&at, c->t, c->in, c->out, false, &w);
    gr_cu_fp8_product p = forward_product(c, &w);
    p.add = add;
    p.scale = scale;
    p.y = y;
    product(q, &p, &w, c->x, temp, c->rounded);
}

/* The product with W^T, for which tensor cores want it turned: they take FP8 along terms alone. */
static gr_cu_fp8_product product_dx(const gr_product *c, gr_bf16 *dx, const gr_cu_fp8_ws *w)
{
    return (gr_cu_fp8_product){.t = c->t,
                               .in = c->out,
                               .out = c->in,
                               .x = w->values,
                               .w = w->turned,
                               .x_scales = w->scales,
                               .w_scales = w->turned_scales,
                               .scale = 1,
                               .y = dx};
}

static void turn(gr_queue *q, const gr_product *c, const gr_cu_fp8_ws *w)
{
    gr_cu_fp8_turn(q->stream, c->w, c->scales, w->turned, w->turned_scales, c->out, c->in);
}

void gr_cuda_fp8_product_dx(gr_queue *q, const gr_product *c, const gr_bf16 *dy, gr_bf16 *dx, void *ws)
{
    gr_workspace at = {.base = ws};
    gr_cu_fp8_ws w;
    gr_cu_fp8_layout(&at, c->t, c->in, c->out, true, &w);
    gr_cu_fp8_product p = product_dx(c, dx, &w);
    turn(q, c, &w);
    product(q, &p, &w, dy, NULL, false);
}

/* ---- gradients of weights -------------------------------------------------------------------------------
 */

/* dy^T, which is in w, in the place of rows and x^T in that of weights: the same product, added to what is
 * there. Shapes that the library does not have go through the kernel. */
static void multiply_dw(gr_queue *q, const gr_product *c, void *grad, gr_dtype grads,
                        const gr_cu_fp8_dw_ws *w)
{
    const uint32_t tokens = gr_cu_fp8_tokens(c->t);
    const bool wide = grads == GR_F32;
    gr_cu_fp8_columns_together(q->stream, c->x, w->x, w->x_scales, c->t, c->in);
    const gr_cu_gemm_call call = {.form = GR_CU_GEMM_NT,
                                  .m = c->out,
                                  .n = c->in,
                                  .k = tokens,
                                  .a = w->dy,
                                  .b = w->x,
                                  .a_scales = w->dy_scales,
                                  .b_scales = w->x_scales,
                                  .lda = tokens,
                                  .ldb = tokens,
                                  .ldd = c->in,
                                  .d = grad,
                                  .type = gr_cu_type(grads),
                                  .c = grad,
                                  .ldc = c->in};
    if (fits(q, &call)) {
        gr_cu_product(q, &call, w->gemm);
        return;
    }
    const gr_cu_fp8_product p = {.t = c->out,
                                 .in = tokens,
                                 .out = c->in,
                                 .x = w->dy,
                                 .w = w->x,
                                 .x_scales = w->dy_scales,
                                 .w_scales = w->x_scales,
                                 .add = wide ? NULL : grad,
                                 .scale = 1,
                                 .y = wide ? NULL : grad,
                                 .sum = wide ? grad : NULL};
    gr_cu_fp8_few(q->stream, &p);
}

void gr_cuda_fp8_product_dw(gr_queue *q, const gr_product *c, const gr_bf16 *dy, void *grad, gr_dtype grads,
                            void *ws)
{
    gr_workspace at = {.base = ws};
    gr_cu_fp8_dw_ws w;
    if (!c->t) return;
    gr_cu_fp8_dw_layout(&at, c->t, c->in, c->out, &w);
    gr_cu_fp8_columns(q->stream, dy, w.dy, w.dy_scales, c->t, c->out);
    multiply_dw(q, c, grad, grads, &w);
}

/* Where both are in FP8 and the library has the first. */
bool gr_cuda_product_back(gr_queue *q, const gr_product *c, const void *dy, void *dx, void *grad,
                          gr_dtype grads, void *ws)
{
    gr_workspace at = {.base = ws};
    gr_cu_fp8_dw_ws w;
    gr_cu_fp8_ws first;
    if (!c->dw_fp8 || !c->scales || c->t < FOUR) return false;
    gr_cu_fp8_dw_layout(&at, c->t, c->in, c->out, &w);
    at = (gr_workspace){.base = (char *)w.x};
    gr_cu_fp8_layout(&at, c->t, c->in, c->out, true, &first);
    const gr_cu_fp8_product p = product_dx(c, dx, &first);
    if (!uses_library(q, &p)) return false;
    turn(q, c, &first);
    const gr_cu_fp8_ways ways = {w.dy, first.values, w.dy_scales, first.scales};
    gr_cu_fp8_both(q->stream, dy, &ways, c->t / FOUR * FOUR, c->t, c->out);
    all_by_library(q, &p, &first, dy, NULL, true);
    multiply_dw(q, c, grad, grads, &w);
    return true;
}
