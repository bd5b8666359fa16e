/* tests/gpu/gpu_fp8.c: FP8 on CUDA against the CPU device, which defines it: values and scales of weights, of
 * rows and of columns to the bit, also where a norm or an activation makes them, products and gradients
 * against sums in double of the same values; odd shapes, blocks of zeros, large and small values and what is
 * no number; the same bits again; under strict the same bits of a row in any batch.
 *
 *     gpu_fp8           compare; a line a case
 *     gpu_fp8 --small   without the large ones
 *     gpu_fp8 --bench   times beside those of bf16
 *     gpu_fp8 --bench gradients   the same of gradients of weights alone
 *     gpu_fp8 --bench ranks       each of cuBLASLt's algorithms
 *     gpu_fp8 --invariance   whether the bits of cuBLASLt's rows depend on how many there are
 */
#include "ops/kernels/cuda/fp8.h"
#include "ops/kernels/cuda/context.h"
#include "ops/kernels/cuda/layer.h"
#include "ops/kernels/cuda/layout.h"
#include "ops/kernels/layer_ops.h"
#include "ops/model/fp8.h"
#include "runtime/base/half.h"
#include "runtime/base/threads.h"
#include "tests/gpu/attach.h"
#include "tests/gpu/device.h"

static gr_team *team;

/* ---- roundings ------------------------------------------------------------------------------------------
 */

typedef enum content { USUAL, RANGES, ZEROS, WRONG, N_CONTENTS } content;
static const char *const content_name[] = {"", ", ranges", ", zeros", ", no numbers"};

/* Values of a matrix [rows, cols]. */
static gr_bf16 *values_of(uint32_t rows, uint32_t cols, content what, uint64_t seed)
{
    const size_t n = (size_t)rows * cols;
    gr_bf16 *x = random_bf16(n, 1, seed);
    for (size_t i = 0; i < n; i++) {
        const size_t block = i / cols / 128 * 131 + i % cols / 128;
        if (what == RANGES) x[i] = bf16_of(ldexpf(of_bf16(x[i]), (int)(block * 37 % 200) - 120));
        if (what == ZEROS && block % 2 == 0) x[i] = i % 3 ? 0 : 0x8000;
    }
    if (what != WRONG) return x;
    x[0] = 0x7fc0, x[n / 2] = 0x7f80, x[n - 1] = 0xff80;
    return x;
}

static float *widened(const gr_bf16 *x, size_t n)
{
    float *wide = gr_malloc(n * sizeof(*wide) + 1);
    for (size_t i = 0; i < n; i++) wide[i] = of_bf16(x[i]);
    return wide;
}

typedef struct rounded {
    uint8_t *values;
    float *scales;
    size_t n, n_scales;
} rounded;

static rounded by_cpu(const gr_bf16 *x, uint32_t rows, uint32_t cols)
{
    rounded r = {.n = (size_t)rows * cols, .n_scales = (size_t)gr_fp8_blocks(rows) * gr_fp8_scale_ld(cols)};
    gr_queue q = {.team = team};
    float *wide = widened(x, r.n);
    r.values = gr_malloc(r.n + 1);
    r.scales = gr_malloc(r.n_scales * sizeof(float) + 1);
    gr_kernels_cpu.layer->quantize(&q, &(gr_quantize){rows, cols, wide, r.values, r.scales});
    free(wide);
    return r;
}

/* Scales as a row of blocks has them on the device: [blocks, rows]. */
static rounded rows_by_cpu(const gr_bf16 *x, uint32_t rows, uint32_t cols)
{
    const uint32_t blocks = gr_fp8_blocks(cols);
    rounded r = {.n = (size_t)rows * cols, .n_scales = (size_t)blocks * rows};
    r.values = gr_malloc(r.n + 1);
    r.scales = gr_malloc(r.n_scales * sizeof(float) + 1);
    for (uint32_t row = 0; row < rows; row++) {
        rounded one = by_cpu(x + (size_t)row * cols, 1, cols);
        memcpy(r.values + (size_t)row * cols, one.values, cols);
        for (uint32_t b = 0; b < blocks; b++) r.scales[(size_t)b * rows + row] = one.scales[b];
        free(one.values), free(one.scales);
    }
    return r;
}

static void rounded_free(rounded *r)
{
    free(r->values);
    free(r->scales);
}

/* Of NaN the bits may differ. */
static void same_nan(rounded *r)
{
    for (size_t i = 0; i < r->n; i++)
        if ((r->values[i] & 0x7f) == 0x7f) r->values[i] = 0x7f;
    for (size_t i = 0; i < r->n_scales; i++)
        if (isnan(r->scales[i])) r->scales[i] = NAN;
}

static void check_rounding(uint32_t rows, uint32_t cols, content what, bool by_rows)
{
    char name[96];
    gr_bf16 *x = values_of(rows, cols, what, rows * 7 + cols),
            *x_dev = device_copy(x, (size_t)rows * cols * 2);
    rounded want = by_rows ? rows_by_cpu(x, rows, cols) : by_cpu(x, rows, cols), got = want;
    uint8_t *values = device_poisoned(want.n);
    float *scales = device_poisoned(want.n_scales * sizeof(float));
    snprintf(name, sizeof(name), "%s %u x %u%s", by_rows ? "rows" : "weights", rows, cols,
             content_name[what]);
    if (by_rows)
        gr_cu_fp8_rows(NULL, x_dev, values, scales, rows, rows, cols);
    else
        gr_cu_fp8_weights(NULL, x_dev, values, scales, rows, cols);
    got.values = take(name, values, want.n);
    got.scales = take(name, scales, want.n_scales * sizeof(float));
    same_nan(&want), same_nan(&got);
    report_equal(name, "values", got.values, want.values, want.n);
    report_equal(name, "scales", got.scales, want.scales, want.n_scales * sizeof(float));
    rounded_free(&want), rounded_free(&got);
    free(x);
    CUDA(cudaFree(x_dev));
}

/* [cols, T] of x [t, cols]: T whole blocks, what is behind t is 0. */
static gr_bf16 *turned(const gr_bf16 *x, uint32_t t, uint32_t cols)
{
    const uint32_t T = gr_cu_fp8_tokens(t);
    gr_bf16 *to = gr_calloc((size_t)cols * T + 1, sizeof(*to));
    for (size_t row = 0; row < t; row++)
        for (size_t c = 0; c < cols; c++) to[c * T + row] = x[row * cols + c];
    return to;
}

/* Both of gr_cu_fp8_columns and, together, gr_cu_fp8_columns_together. */
static rounded columns_by_cpu(const gr_bf16 *x, uint32_t t, uint32_t cols, bool together)
{
    const uint32_t T = gr_cu_fp8_tokens(t);
    gr_bf16 *to = turned(x, t, cols);
    const rounded r = together ? by_cpu(to, cols, T) : rows_by_cpu(to, cols, T);
    free(to);
    return r;
}

static void check_columns(uint32_t t, uint32_t cols, content what, bool together)
{
    char name[96];
    gr_bf16 *x = values_of(t, cols, what, t * 11 + cols), *x_dev = device_copy(x, (size_t)t * cols * 2);
    rounded want = columns_by_cpu(x, t, cols, together), got = want;
    uint8_t *values = device_poisoned(want.n);
    float *scales = device_poisoned(want.n_scales * sizeof(float));
    snprintf(name, sizeof(name), "columns%s %u x %u%s", together ? " together" : "", t, cols,
             content_name[what]);
    if (together)
        gr_cu_fp8_columns_together(NULL, x_dev, values, scales, t, cols);
    else
        gr_cu_fp8_columns(NULL, x_dev, values, scales, t, cols);
    got.values = take(name, values, want.n);
    got.scales = take(name, scales, want.n_scales * sizeof(float));
    same_nan(&want), same_nan(&got);
    report_equal(name, "values", got.values, want.values, want.n);
    report_equal(name, "scales", got.scales, want.scales, want.n_scales * sizeof(float));
    rounded_free(&want), rounded_free(&got);
    free(x);
    CUDA(cudaFree(x_dev));
}

/* Columns and rows by one kernel, and by two. Of rows whole fours alone. */
static void check_both(uint32_t t, uint32_t cols, content what)
{
    char name[96];
    const uint32_t n = t / 4 * 4;
    gr_bf16 *x = values_of(t, cols, what, t * 13 + cols), *x_dev = device_copy(x, (size_t)t * cols * 2);
    const size_t bytes[] = {(size_t)cols * gr_cu_fp8_tokens(t), (size_t)gr_fp8_blocks(t) * cols * 4,
                            (size_t)n * cols, (size_t)gr_fp8_blocks(cols) * n * 4};
    static const char *const part[] = {"columns", "scales", "rows", "scales"};
    void *both[4], *each[4];
    for (int i = 0; i < 4; i++) both[i] = device_poisoned(bytes[i]), each[i] = device_poisoned(bytes[i]);
    snprintf(name, sizeof(name), "both ways %u x %u%s", t, cols, content_name[what]);
    gr_cu_fp8_both(NULL, x_dev, &(gr_cu_fp8_ways){both[0], both[2], both[1], both[3]}, n, t, cols);
    gr_cu_fp8_columns(NULL, x_dev, each[0], each[1], t, cols);
    gr_cu_fp8_rows(NULL, x_dev, each[2], each[3], n, n, cols);
    for (int i = 0; i < 4; i++) {
        void *got = take(name, both[i], bytes[i]), *want = take(name, each[i], bytes[i]);
        report_equal(name, part[i], got, want, bytes[i]);
        free(got), free(want);
    }
    free(x);
    CUDA(cudaFree(x_dev));
}

/* ---- rows that are rounded as they are made --------------------------------------------------------------
 */

/* What a kernel left of rows whose bf16 is `plain` (malloc'd, taken over): the first n of them rounded, the
 * others as they are, and no others. */
typedef struct made {
    uint32_t rows, cols, n;
    uint8_t *values;
    float *scales;
    gr_bf16 *rest, *plain;
} made;

static made made_of(uint32_t rows, uint32_t cols)
{
    const uint32_t n = rows / 4 * 4;
    return (made){.rows = rows,
                  .cols = cols,
                  .n = n,
                  .values = device_poisoned((size_t)n * cols),
                  .scales = device_poisoned((size_t)n * gr_fp8_blocks(cols) * sizeof(float)),
                  .rest = device_poisoned((size_t)rows * cols * 2),
                  .plain = device_poisoned((size_t)rows * cols * 2)};
}

static void check_made(const char *name, made *m)
{
    const size_t bytes = (size_t)m->rows * m->cols * 2;
    gr_bf16 *plain = take(name, m->plain, bytes), *rest = take(name, m->rest, bytes);
    rounded want = rows_by_cpu(plain, m->n, m->cols), got = want;
    got.values = take(name, m->values, want.n);
    got.scales = take(name, m->scales, want.n_scales * sizeof(float));
    memset(plain, 0xff, (size_t)m->n * m->cols * 2);
    report_equal(name, "rest", rest, plain, bytes);
    same_nan(&want), same_nan(&got);
    report_equal(name, "values", got.values, want.values, want.n);
    report_equal(name, "scales", got.scales, want.scales, want.n_scales * sizeof(float));
    rounded_free(&want), rounded_free(&got);
    free(plain), free(rest);
}

static void check_norm(uint32_t rows, uint32_t cols, content what)
{
    char name[96];
    gr_bf16 *x = values_of(rows, cols, what, rows * 17 + cols), *w = random_bf16(cols, 1, 11),
            *x_dev = device_copy(x, (size_t)rows * cols * 2), *w_dev = device_copy(w, cols * 2);
    const gr_cu_norm c = {
        .x = x_dev, .ld = cols, .w = w_dev, .one = rows % 2, .n = rows, .H = cols, .eps = 1e-6f};
    made m = made_of(rows, cols);
    snprintf(name, sizeof(name), "norm %u x %u%s", rows, cols, content_name[what]);
    gr_cu_fp8_rmsnorm(NULL, &c, &(gr_cu_fp8_to){m.values, m.scales, m.n}, m.rest);
    gr_cu_rmsnorm(NULL, &c, m.plain);
    check_made(name, &m);
    free(x), free(w);
    CUDA(cudaFree(x_dev));
    CUDA(cudaFree(w_dev));
}

static void check_activation(uint32_t rows, uint32_t cols, content what, bool gelu)
{
    char name[96];
    gr_bf16 *x = values_of(rows, 2 * cols, what, rows * 19 + cols),
            *x_dev = device_copy(x, (size_t)rows * cols * 4);
    made m = made_of(rows, cols);
    snprintf(name, sizeof(name), "%s %u x %u%s", gelu ? "GELU" : "SwiGLU", rows, cols, content_name[what]);
    gr_cu_fp8_swiglu(NULL, x_dev, gelu, &(gr_cu_fp8_to){m.values, m.scales, m.n}, m.rest, rows, cols);
    gr_cu_swiglu(NULL, x_dev, gelu, m.plain, rows, cols);
    check_made(name, &m);
    free(x);
    CUDA(cudaFree(x_dev));
}

static void check_all_made(void)
{
    static const uint32_t shapes[][2] = {{4, 16},    {5, 144},  {131, 208},  {7, 1024},
                                         {33, 1040}, {6, 2560}, {257, 4096}, {14, 12288}};
    for (size_t i = 0; i < GR_LEN(shapes); i++)
        for (int what = 0; what < N_CONTENTS; what++) {
            check_norm(shapes[i][0], shapes[i][1], (content)what);
            for (int gelu = 0; gelu < 2; gelu++)
                check_activation(shapes[i][0], shapes[i][1], (content)what, gelu);
        }
}

/* ---- products -------------------------------------------------------------------------------------------
 */

typedef struct product_case {
    uint32_t t, in, out;
    bool bias, add, back;
    content what;
} product_case;

/* A product's operands on both sides. */
typedef struct operands {
    product_case c;
    gr_bf16 *x, *add, *bias; /* x: [t, in], or back [t, out] */
    gr_bf16 *x_dev, *add_dev, *bias_dev, *y_dev, *temp_dev;
    rounded w, rows;
    uint8_t *w_dev;
    float *w_scales_dev;
    void *ws;
    uint32_t inner, cols; /* of the sums, and of y */
} operands;

static operands operands_of(const product_case *c)
{
    operands o = {.c = *c, .inner = c->back ? c->out : c->in, .cols = c->back ? c->in : c->out};
    gr_bf16 *w = values_of(c->out, c->in, c->what == WRONG ? USUAL : c->what, 1);
    o.x = values_of(c->t, o.inner, USUAL, 2);
    o.add = random_bf16((size_t)c->t * o.cols, 1, 3);
    o.bias = random_bf16(o.cols, 1, 4);
    o.w = by_cpu(w, c->out, c->in);
    o.rows = rows_by_cpu(o.x, c->t, o.inner);
    o.x_dev = device_copy(o.x, (size_t)c->t * o.inner * 2);
    o.add_dev = device_copy(o.add, (size_t)c->t * o.cols * 2);
    o.bias_dev = device_copy(o.bias, o.cols * 2);
    o.w_dev = device_copy(o.w.values, o.w.n);
    o.w_scales_dev = device_copy(o.w.scales, o.w.n_scales * sizeof(float));
    o.ws = device_poisoned(gr_cu_fp8_ws_bytes(c->t, c->in, c->out, 1, c->back));
    o.temp_dev = device_poisoned((size_t)c->t * o.cols * 2);
    free(w);
    return o;
}

static void operands_free(operands *o)
{
    void *const device[] = {o->x_dev, o->add_dev, o->bias_dev, o->w_dev, o->w_scales_dev, o->ws, o->temp_dev};
    for (size_t i = 0; i < GR_LEN(device); i++) CUDA(cudaFree(device[i]));
    free(o->x), free(o->add), free(o->bias);
    rounded_free(&o->w), rounded_free(&o->rows);
}

static double weight_at(const operands *o, size_t row, size_t col)
{
    return (double)gr_e4m3_to_f32(o->w.values[row * o->c.in + col]) *
           (double)o->w.scales[row / 128 * gr_fp8_scale_ld(o->c.in) + col / 128];
}

static double want_at(const operands *o, size_t row, size_t col)
{
    double sum = o->c.bias ? of_bf16(o->bias[col]) : 0;
    for (size_t k = 0; k < o->inner; k++)
        sum += (double)gr_e4m3_to_f32(o->rows.values[row * o->inner + k]) *
               (double)o->rows.scales[k / 128 * o->c.t + row] *
               (o->c.back ? weight_at(o, k, col) : weight_at(o, col, k));
    return sum + (o->c.add ? of_bf16(o->add[row * o->cols + col]) : 0);
}

/* Rows [first, first + n), by the table's functions; malloc'd. */
static gr_bf16 *run(gr_queue *q, const gr_kernels *k, const operands *o, uint32_t first, uint32_t n,
                    const char *name)
{
    const product_case *c = &o->c;
    const size_t bytes = (size_t)n * o->cols * 2;
    gr_bf16 *y = device_poisoned(bytes), *x = o->x_dev + (size_t)first * o->inner;
    const gr_product p = {.t = n,
                          .in = c->in,
                          .out = c->out,
                          .x = x,
                          .w = o->w_dev,
                          .bias = c->bias ? o->bias_dev : NULL,
                          .scales = o->w_scales_dev};
    gr_diag d;
    gr_diag_init(&d);
    if (c->back)
        k->layer->product_dx(q, &p, x, y, o->ws);
    else if (c->add)
        k->layer->product_add(q, &p, o->add_dev + (size_t)first * o->cols, 1, false, y, o->temp_dev, o->ws);
    else
        k->layer->product(q, &p, y, o->ws);
    expect_ok(k->check(q, &d), &d, name);
    CUDA(cudaDeviceSynchronize());
    gr_diag_release(&d);
    return take(name, y, bytes);
}

/* Whether cuBLASLt has all rows of a product. */
static bool by_library(gr_queue *q, const operands *o)
{
    const product_case *c = &o->c;
    const gr_cu_gemm_call call = {.form = GR_CU_GEMM_NT,
                                  .m = c->t,
                                  .n = o->cols,
                                  .k = o->inner,
                                  .a = o->x_dev,
                                  .b = o->w_dev,
                                  .a_scales = o->w_scales_dev,
                                  .b_scales = o->w_scales_dev,
                                  .lda = o->inner,
                                  .ldb = o->inner,
                                  .ldd = o->cols,
                                  .d = o->temp_dev,
                                  .type = GR_CU_BF16,
                                  .c = c->add ? o->add_dev : NULL,
                                  .ldc = o->cols,
                                  .bias = c->bias ? o->bias_dev : NULL};
    return gr_cu_gemm_fits(gr_cu_context_of(q)->gemm, &call);
}

/* The bits of some rows alone, one and more, beside those of all. */
static void check_strict(gr_queue *q, const operands *o, const char *name)
{
    const product_case *c = &o->c;
    gr_bf16 *all = run(q, gr_kernels_cuda.strict, o, 0, c->t, name);
    for (uint32_t first = 0, step = 1; first < c->t; first += step, step = step * 3 + 1) {
        const uint32_t some = GR_MIN(step, c->t - first);
        gr_bf16 *part = run(q, gr_kernels_cuda.strict, o, first, some, name);
        report_equal(name, "strict", part, all + (size_t)first * o->cols, (size_t)some * o->cols * 2);
        free(part);
    }
    free(all);
}

static void check_product(gr_queue *q, gr_queue *strict, const product_case *c)
{
    operands o = operands_of(c);
    char name[128];
    errors e = {0};
    uint64_t seed = 5;
    snprintf(name, sizeof(name), "%s %u: %u x %u%s%s%s%s", c->back ? "back" : "product", c->t, c->in, c->out,
             c->bias ? ", bias" : "", c->add ? ", added" : "", content_name[c->what],
             by_library(q, &o) ? " (library)" : "");
    gr_bf16 *y = run(q, &gr_kernels_cuda, &o, 0, c->t, name),
            *again = run(q, &gr_kernels_cuda, &o, 0, c->t, name);
    const size_t n = (size_t)c->t * o.cols;
    for (size_t i = 0; i < GR_MIN(n, (size_t)2048); i++) {
        random_float(&seed);
        const size_t at = n <= 2048 ? i : seed % n;
        errors_add(&e, of_bf16(y[at]), want_at(&o, at / o.cols, at % o.cols));
    }
    report_errors(&e, name, "y", 4e-3);
    report_equal(name, "again", y, again, n * 2);
    if (!check_own) check_strict(strict, &o, name);
    free(y), free(again);
    operands_free(&o);
}

/* ---- gradients of weights -------------------------------------------------------------------------------
 */

typedef struct dw_case {
    uint32_t t, in, out;
    gr_cu_dtype type;
    content what; /* of x */
} dw_case;

typedef struct dw_operands {
    dw_case c;
    rounded x, dy;
    gr_bf16 *x_dev, *dy_dev;
    void *ws;
    gradient grad;
} dw_operands;

static dw_operands dw_operands_of(const dw_case *c)
{
    dw_operands o = {.c = *c};
    gr_bf16 *x = values_of(c->t, c->in, c->what, 6), *dy = values_of(c->t, c->out, USUAL, 7);
    o.x = columns_by_cpu(x, c->t, c->in, true);
    o.dy = columns_by_cpu(dy, c->t, c->out, false);
    o.x_dev = device_copy(x, (size_t)c->t * c->in * 2);
    o.dy_dev = device_copy(dy, (size_t)c->t * c->out * 2);
    o.ws = device_poisoned(gr_cu_fp8_dw_ws_bytes(c->t, c->in, c->out, 1));
    o.grad = gradient_new((size_t)c->out * c->in, c->type, 8);
    free(x), free(dy);
    return o;
}

static void dw_operands_free(dw_operands *o)
{
    void *const device[] = {o->x_dev, o->dy_dev, o->ws};
    for (size_t i = 0; i < GR_LEN(device); i++) CUDA(cudaFree(device[i]));
    rounded_free(&o->x), rounded_free(&o->dy);
    gradient_free(&o->grad);
}

static double dw_want_at(const dw_operands *o, size_t row, size_t col)
{
    const size_t T = gr_cu_fp8_tokens(o->c.t);
    double sum = 0;
    for (size_t k = 0; k < o->c.t; k++)
        sum += (double)gr_e4m3_to_f32(o->dy.values[row * T + k]) *
               (double)o->dy.scales[k / 128 * o->c.out + row] *
               (double)gr_e4m3_to_f32(o->x.values[col * T + k]) *
               (double)o->x.scales[col / 128 * gr_fp8_scale_ld((uint32_t)T) + k / 128];
    return sum + gradient_before(&o->grad, row * o->c.in + col);
}

/* By the table; malloc'd. */
static void *run_dw(gr_queue *q, const dw_operands *o, const char *name)
{
    const gr_product p = {.t = o->c.t, .in = o->c.in, .out = o->c.out, .x = o->x_dev, .dw_fp8 = true};
    gr_diag d;
    gr_diag_init(&d);
    gr_kernels_cuda.layer->product_dw(q, &p, o->dy_dev, gradient_reset(&o->grad),
                                      o->c.type == GR_CU_F32 ? GR_F32 : GR_BF16, o->ws);
    expect_ok(gr_kernels_cuda.check(q, &d), &d, name);
    CUDA(cudaDeviceSynchronize());
    gr_diag_release(&d);
    return gradient_take(name, &o->grad);
}

static bool dw_by_library(gr_queue *q, const dw_operands *o)
{
    const dw_case *c = &o->c;
    const uint32_t T = gr_cu_fp8_tokens(c->t);
    const gr_cu_gemm_call call = {.form = GR_CU_GEMM_NT,
                                  .m = c->out,
                                  .n = c->in,
                                  .k = T,
                                  .a = o->ws,
                                  .b = o->ws,
                                  .a_scales = o->ws,
                                  .b_scales = o->ws,
                                  .lda = T,
                                  .ldb = T,
                                  .ldd = c->in,
                                  .d = o->grad.device,
                                  .type = c->type,
                                  .c = o->grad.device,
                                  .ldc = c->in};
    return gr_cu_gemm_fits(gr_cu_context_of(q)->gemm, &call);
}

static void check_dw(gr_queue *q, const dw_case *c)
{
    dw_operands o = dw_operands_of(c);
    char name[128];
    errors e = {0};
    uint64_t seed = 9;
    snprintf(name, sizeof(name), "gradient %u: %u x %u, %s%s%s", c->t, c->in, c->out,
             c->type == GR_CU_F32 ? "fp32" : "bf16", content_name[c->what],
             dw_by_library(q, &o) ? " (library)" : "");
    void *got = run_dw(q, &o, name), *again = run_dw(q, &o, name);
    for (size_t i = 0; i < GR_MIN(o.grad.n, (size_t)2048); i++) {
        random_float(&seed);
        const size_t at = o.grad.n <= 2048 ? i : seed % o.grad.n;
        errors_add(&e, gradient_at(&o.grad, got, at), dw_want_at(&o, at / c->in, at % c->in));
    }
    report_errors(&e, name, "grad", 4e-3);
    report_equal(name, "again", got, again, o.grad.bytes);
    free(got), free(again);
    dw_operands_free(&o);
}

/* Both gradients of a product at once have the bits of one after the other. */
static void check_back(gr_queue *q, const dw_case *c)
{
    const gr_layer_ops *ops = gr_kernels_cuda.layer;
    dw_operands o = dw_operands_of(c);
    gr_bf16 *w = values_of(c->out, c->in, USUAL, 10), *w_dev = device_copy(w, (size_t)c->in * c->out * 2);
    const size_t bytes = (size_t)c->t * c->in * 2;
    uint8_t *codes = device_poisoned((size_t)c->in * c->out);
    float *scales = device_poisoned((size_t)gr_fp8_blocks(c->out) * gr_fp8_scale_ld(c->in) * sizeof(float));
    gr_bf16 *dx = device_poisoned(bytes), *dx_each = device_poisoned(bytes);
    void *ws = device_poisoned(GR_MAX(gr_cu_fp8_ws_bytes(c->t, c->in, c->out, 1, true),
                                      gr_cu_fp8_dw_ws_bytes(c->t, c->in, c->out, 1)));
    const gr_product p = {
        .t = c->t, .in = c->in, .out = c->out, .x = o.x_dev, .w = codes, .scales = scales, .dw_fp8 = true};
    const gr_dtype grads = c->type == GR_CU_F32 ? GR_F32 : GR_BF16;
    char name[96];
    gr_diag d;
    gr_diag_init(&d);
    gr_cu_fp8_weights(NULL, w_dev, codes, scales, c->out, c->in);
    const bool both = ops->product_back(q, &p, o.dy_dev, dx, gradient_reset(&o.grad), grads, ws);
    snprintf(name, sizeof(name), "both gradients %u: %u x %u%s", c->t, c->in, c->out,
             both ? "" : " (not at once)");
    void *grad = gradient_take(name, &o.grad);
    ops->product_dx(q, &p, o.dy_dev, dx_each, ws);
    ops->product_dw(q, &p, o.dy_dev, gradient_reset(&o.grad), grads, ws);
    expect_ok(gr_kernels_cuda.check(q, &d), &d, name);
    gr_bf16 *got = take(name, dx, bytes), *want = take(name, dx_each, bytes);
    void *grad_each = gradient_take(name, &o.grad);
    if (both) report_equal(name, "dx", got, want, bytes);
    report_equal(name, "grad", grad, both ? grad_each : o.grad.before, o.grad.bytes);
    free(w), free(got), free(want), free(grad), free(grad_each);
    void *const device[] = {w_dev, codes, scales, ws};
    for (size_t i = 0; i < GR_LEN(device); i++) CUDA(cudaFree(device[i]));
    gr_diag_release(&d);
    dw_operands_free(&o);
}

static void check_gradients(gr_queue *q)
{
    static const uint32_t shapes[][2] = {{1, 16}, {8, 128}, {127, 144}, {128, 384}, {129, 208}, {700, 272}};
    static const dw_case cases[] = {{1, 128, 128, GR_CU_F32, USUAL},     {7, 304, 208, GR_CU_BF16, USUAL},
                                    {127, 16, 48, GR_CU_F32, USUAL},     {128, 512, 256, GR_CU_BF16, RANGES},
                                    {129, 256, 16, GR_CU_BF16, ZEROS},   {300, 304, 272, GR_CU_F32, ZEROS},
                                    {600, 1024, 512, GR_CU_F32, USUAL},  {1000, 512, 1024, GR_CU_BF16, USUAL},
                                    {2048, 208, 1040, GR_CU_BF16, USUAL}};
    static const dw_case large[] = {{4096, 4096, 6144, GR_CU_BF16, USUAL},
                                    {5000, 4096, 4096, GR_CU_F32, USUAL},
                                    {3000, 12288, 4096, GR_CU_BF16, USUAL}};
    for (size_t i = 0; i < GR_LEN(shapes); i++)
        for (int what = 0; what < N_CONTENTS; what++)
            for (int together = 0; together < 2; together++)
                check_columns(shapes[i][0], shapes[i][1], (content)what, together);
    for (size_t i = 0; i < GR_LEN(shapes); i++)
        for (int what = 0; what < WRONG; what++) check_both(shapes[i][0], shapes[i][1], (content)what);
    for (size_t i = 0; i < GR_LEN(cases) && !check_own; i++) {
        check_dw(q, &cases[i]);
        check_back(q, &cases[i]);
    }
    for (size_t i = 0; i < GR_LEN(large) && !check_small; i++) {
        check_dw(q, &large[i]);
        check_back(q, &large[i]);
    }
}

static void check_all(gr_queue *q, gr_queue *strict)
{
    static const uint32_t shapes[][2] = {{128, 128}, {256, 384}, {200, 304},
                                         {1, 16},    {129, 144}, {1024, 4096}};
    static const product_case products[] = {
        {1, 128, 128, 0, 0, 0, 0},      {7, 304, 200, 1, 0, 0, 0},     {8, 1024, 512, 0, 1, 0, RANGES},
        {9, 144, 48, 1, 1, 0, ZEROS},   {16, 4096, 256, 0, 0, 0, 0},   {33, 1040, 272, 0, 1, 0, 0},
        {64, 512, 1024, 1, 0, 0, 0},    {100, 768, 512, 0, 0, 0, 0},   {128, 1024, 1024, 0, 1, 0, 0},
        {203, 512, 256, 0, 1, 0, 0},    {256, 2048, 1024, 1, 0, 0, 0}, {5, 304, 208, 0, 0, 1, 0},
        {64, 512, 768, 0, 0, 1, ZEROS}, {131, 1024, 512, 0, 0, 1, 0},  {256, 1024, 2048, 0, 0, 1, 0}};
    static const product_case large[] = {{256, 4096, 6144, 0, 0, 0, 0},
                                         {1000, 4096, 4096, 0, 1, 0, 0},
                                         {4096, 4096, 1024, 0, 0, 0, 0},
                                         {1024, 12288, 4096, 0, 0, 1, 0}};
    for (size_t i = 0; i < GR_LEN(shapes); i++)
        for (int what = 0; what < N_CONTENTS; what++)
            for (int rows = 0; rows < 2; rows++)
                check_rounding(shapes[i][0], shapes[i][1], (content)what, rows);
    check_all_made();
    for (size_t i = 0; i < GR_LEN(products); i++)
        if (!check_own || products[i].t <= 8) check_product(q, strict, &products[i]);
    for (size_t i = 0; i < GR_LEN(large) && !check_small; i++) check_product(q, strict, &large[i]);
    check_gradients(q);
}

/* ---- whether cuBLASLt's rows depend on how many there are ------------------------------------------------
 */

static gr_bf16 *library_rows(gr_queue *q, const operands *o, uint32_t first, uint32_t n, bool *fits)
{
    gr_bf16 *y = device_poisoned((size_t)n * o->cols * 2);
    uint8_t *values = device_poisoned((size_t)n * o->inner);
    float *scales = device_poisoned((size_t)n * gr_fp8_blocks(o->inner) * sizeof(float));
    gr_diag d;
    gr_diag_init(&d);
    gr_cu_fp8_rows(NULL, o->x_dev + (size_t)first * o->inner, values, scales, n, n, o->inner);
    const gr_cu_gemm_call call = {.form = GR_CU_GEMM_NT,
                                  .m = n,
                                  .n = o->cols,
                                  .k = o->inner,
                                  .a = values,
                                  .b = o->w_dev,
                                  .a_scales = scales,
                                  .b_scales = o->w_scales_dev,
                                  .lda = o->inner,
                                  .ldb = o->inner,
                                  .ldd = o->cols,
                                  .d = y,
                                  .type = GR_CU_BF16,
                                  .strict = true};
    *fits = gr_cu_gemm_fits(gr_cu_context_of(q)->gemm, &call);
    if (*fits) expect_ok(gr_cu_gemm_run(gr_cu_context_of(q)->gemm, NULL, &call, o->ws, &d), &d, "strict");
    char how[128] = "";
    if (*fits && first == 0)
        expect_ok(gr_cu_gemm_describe(gr_cu_context_of(q)->gemm, &call, how, &d), &d, "how");
    if (*fits && first == 0) printf("%u rows: %s\n", n, how);
    gr_diag_release(&d);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaFree(values));
    CUDA(cudaFree(scales));
    return take("library", y, (size_t)n * o->cols * 2);
}

static void show_invariance(gr_queue *q, uint32_t in, uint32_t out)
{
    static const uint32_t rows[] = {1,  2,   3,   4,   7,   8,   16,   17,   33,
                                    64, 100, 128, 203, 256, 512, 1000, 1024, 2048};
    operands o = operands_of(&(product_case){.t = 2048, .in = in, .out = out});
    bool fits;
    gr_bf16 *all = library_rows(q, &o, 0, 2048, &fits);
    printf("%u x %u, 2048 rows: %s\n", in, out, fits ? "there" : "not there");
    for (size_t i = 0; i < GR_LEN(rows) && fits; i++) {
        bool some;
        gr_bf16 *part = library_rows(q, &o, 0, rows[i], &some);
        const bool same = some && !memcmp(part, all, (size_t)rows[i] * out * 2);
        printf("%u x %u, %u rows: %s\n", in, out, rows[i],
               !some  ? "not there"
               : same ? "same bits"
                      : "OTHER BITS");
        free(part);
    }
    free(all);
    operands_free(&o);
}

/* ---- times ----------------------------------------------------------------------------------------------
 */

enum { COPIES = 8 }; /* of weights, so that they come from memory */

typedef struct bench {
    gr_queue *q;
    uint32_t t, in, out;
    gr_bf16 *w, *x, *y;
    uint8_t *values, *turned, *x_values;
    float *scales, *x_scales;
    void *ws;
    gr_diag d;
} bench;

static void do_weights(void *arg, int i)
{
    bench *b = arg;
    const size_t at = (size_t)(i % COPIES) * b->in * b->out;
    gr_cu_fp8_weights(NULL, b->w + at, b->values + at, b->scales, b->out, b->in);
}

static void do_turn(void *arg, int i)
{
    bench *b = arg;
    gr_cu_fp8_turn(NULL, b->values + (size_t)(i % COPIES) * b->in * b->out, b->scales, b->turned,
                   (float *)b->ws, b->out, b->in);
}

static void do_rows(void *arg, int i)
{
    bench *b = arg;
    (void)i;
    gr_cu_fp8_rows(NULL, b->x, b->x_values, b->x_scales, b->t, b->t, b->in);
}

static void do_few(void *arg, int i)
{
    bench *b = arg;
    const gr_cu_fp8_product p = {.t = b->t,
                                 .in = b->in,
                                 .out = b->out,
                                 .raw = b->t <= GR_CU_FP8_RAW ? b->x : NULL,
                                 .x = b->x_values,
                                 .w = b->values + (size_t)(i % COPIES) * b->in * b->out,
                                 .x_scales = b->x_scales,
                                 .w_scales = b->scales,
                                 .scale = 1,
                                 .y = b->y};
    gr_cu_fp8_few(NULL, &p);
}

static gr_cu_gemm_call plain_call(const bench *b, int i)
{
    return (gr_cu_gemm_call){.form = GR_CU_GEMM_NT,
                             .m = b->t,
                             .n = b->out,
                             .k = b->in,
                             .a = b->x,
                             .b = b->w + (size_t)(i % COPIES) * b->in * b->out,
                             .lda = b->in,
                             .ldb = b->in,
                             .ldd = b->out,
                             .d = b->y,
                             .type = GR_CU_BF16};
}

static gr_cu_gemm_call fp8_call(const bench *b, int i)
{
    gr_cu_gemm_call c = plain_call(b, i);
    c.a = b->x_values;
    c.b = b->values + (size_t)(i % COPIES) * b->in * b->out;
    c.a_scales = b->x_scales;
    c.b_scales = b->scales;
    return c;
}

static void do_plain(void *arg, int i)
{
    bench *b = arg;
    const gr_cu_gemm_call c = plain_call(b, i);
    expect_ok(gr_cu_gemm_run(gr_cu_context_of(b->q)->gemm, NULL, &c, b->ws, &b->d), &b->d, "bf16");
}

static void do_library(void *arg, int i)
{
    bench *b = arg;
    const gr_cu_gemm_call c = fp8_call(b, i);
    expect_ok(gr_cu_gemm_run(gr_cu_context_of(b->q)->gemm, NULL, &c, b->ws, &b->d), &b->d, "fp8");
}

static void bench_rows(bench *b, uint32_t t)
{
    const double flop = 2.0 * t * b->in * b->out;
    b->t = t;
    gr_cu_fp8_rows(NULL, b->x, b->x_values, b->x_scales, t, t, b->in);
    const gr_cu_gemm_call call = fp8_call(b, 0);
    const bool fits = gr_cu_gemm_fits(gr_cu_context_of(b->q)->gemm, &call), few = t <= 256;
    const double rows = time_of(do_rows, b, 10), plain = time_of(do_plain, b, 10),
                 library = fits ? time_of(do_library, b, 10) : NAN, own = few ? time_of(do_few, b, 10) : NAN;
    CUDA(cudaGetLastError());
    printf("%5u rows %5u x %5u: bf16 %8.1f us %4.0f TFLOP/s; FP8 rows %6.1f us, library %8.1f us %5.0f "
           "TFLOP/s, own "
           "%8.1f us %5.0f GB/s\n",
           t, b->in, b->out, plain * 1e6, flop / plain * 1e-12, rows * 1e6, library * 1e6,
           flop / library * 1e-12, own * 1e6, (double)b->in * b->out / own * 1e-9);
    fflush(stdout);
}

/* Each algorithm that the heuristics name, in their order. */
static void bench_ranks(bench *b, uint32_t t)
{
    gr_cu_gemm *g = gr_cu_context_of(b->q)->gemm;
    char how[128];
    b->t = t;
    gr_cu_fp8_rows(NULL, b->x, b->x_values, b->x_scales, t, t, b->in);
    const gr_cu_gemm_call call = fp8_call(b, 0);
    gr_diag none;
    gr_diag_init(&none);
    for (uint32_t rank = 0; gr_cu_gemm_take(g, &call, rank, &none); rank++) {
        expect_ok(gr_cu_gemm_describe(g, &call, how, &b->d), &b->d, "ranks");
        printf("%5u rows %5u x %5u, rank %2u: %8.1f us  %s\n", t, b->in, b->out, rank,
               time_of(do_library, b, t > 1000 ? 2 : 5) * 1e6, how);
        fflush(stdout);
    }
    gr_diag_release(&none);
}

static void bench_shape(gr_queue *q, uint32_t in, uint32_t out, bool ranks)
{
    static const uint32_t rows[] = {1, 8, 16, 32, 64, 128, 256, 4096, 16384};
    const size_t n = (size_t)in * out;
    bench b = {.q = q, .in = in, .out = out};
    gr_diag_init(&b.d);
    b.w = device_random_bf16(COPIES * n, 1);
    b.x = device_random_bf16((size_t)16384 * in, 2);
    b.y = device_poisoned((size_t)16384 * out * 2);
    b.values = device_poisoned(COPIES * n);
    b.turned = device_poisoned(n);
    b.x_values = device_poisoned((size_t)16384 * in);
    b.x_scales = device_poisoned((size_t)16384 * gr_fp8_blocks(in) * sizeof(float));
    b.scales = device_poisoned((size_t)gr_fp8_blocks(out) * gr_fp8_scale_ld(in) * sizeof(float));
    b.ws = device_poisoned(GR_CU_GEMM_WS_BYTES);
    bench_line("weights to FP8", do_weights, &b, 3.0 * (double)n, "%u x %u", in, out);
    bench_line("and turned", do_turn, &b, 2.0 * (double)n, "%u x %u", in, out);
    for (size_t i = 0; i < GR_LEN(rows); i++)
        if (!ranks)
            bench_rows(&b, rows[i]);
        else if (rows[i] >= 64)
            bench_ranks(&b, rows[i]);
    void *const all[] = {b.w, b.x, b.y, b.values, b.turned, b.x_values, b.x_scales, b.scales, b.ws};
    for (size_t i = 0; i < GR_LEN(all); i++) CUDA(cudaFree(all[i]));
    gr_diag_release(&b.d);
}

/* ---- times of gradients: one binary, old and new --------------------------------------------------------
 */

typedef struct dw_bench {
    gr_queue *q;
    uint32_t t, in, out;
    gr_bf16 *x, *dy, *dx;
    uint8_t *w;
    float *w_scales;
    void *grad, *ws;
    gr_dtype grads;
    bool fp8;
    gr_cu_fp8_dw_ws at;
} dw_bench;

static void do_dw(void *arg, int i)
{
    const dw_bench *b = arg;
    const gr_product p = {.t = b->t, .in = b->in, .out = b->out, .x = b->x, .dw_fp8 = b->fp8};
    (void)i;
    gr_kernels_cuda.layer->product_dw(b->q, &p, b->dy, b->grad, b->grads, b->ws);
}

/* Both gradients, in FP8 at once, or those of weights in bf16. */
static void do_back(void *arg, int i)
{
    const dw_bench *b = arg;
    const gr_product p = {
        .t = b->t, .in = b->in, .out = b->out, .x = b->x, .w = b->w, .scales = b->w_scales, .dw_fp8 = b->fp8};
    const gr_layer_ops *ops = gr_kernels_cuda.layer;
    (void)i;
    if (ops->product_back(b->q, &p, b->dy, b->dx, b->grad, b->grads, b->ws)) return;
    ops->product_dx(b->q, &p, b->dy, b->dx, b->ws);
    ops->product_dw(b->q, &p, b->dy, b->grad, b->grads, b->ws);
}

static void do_columns(void *arg, int i)
{
    const dw_bench *b = arg;
    (void)i;
    gr_cu_fp8_columns(NULL, b->dy, b->at.dy, b->at.dy_scales, b->t, b->out);
}

static void do_columns_together(void *arg, int i)
{
    const dw_bench *b = arg;
    (void)i;
    gr_cu_fp8_columns_together(NULL, b->x, b->at.x, b->at.x_scales, b->t, b->in);
}

static void do_both(void *arg, int i)
{
    const dw_bench *b = arg;
    (void)i;
    gr_cu_fp8_both(NULL, b->dy,
                   &(gr_cu_fp8_ways){b->at.dy, (uint8_t *)b->dx, b->at.dy_scales, b->at.x_scales}, b->t, b->t,
                   b->out);
}

/* Of one product: bf16 beside FP8, roundings included: gradients of weights alone, and with those of rows. In
 * seconds. */
static void bench_dw(gr_queue *q, uint32_t t, uint32_t in, uint32_t out, gr_dtype grads, double sum[2][2])
{
    const double flop = 2.0 * t * in * out;
    dw_bench b = {.q = q, .t = t, .in = in, .out = out, .grads = grads};
    gr_workspace at = {0};
    gr_diag d;
    gr_diag_init(&d);
    b.x = device_random_bf16((size_t)t * in, 2);
    b.dy = device_random_bf16((size_t)t * out, 3);
    b.grad = device_poisoned((size_t)in * out * 4);
    CUDA(cudaMemset(b.grad, 0, (size_t)in * out * 4));
    b.dx = device_poisoned((size_t)t * GR_MAX(in * 2, out));
    b.w = device_poisoned((size_t)in * out);
    b.w_scales = device_poisoned((size_t)gr_fp8_blocks(out) * gr_fp8_scale_ld(in) * sizeof(float));
    gr_bf16 *w = device_random_bf16((size_t)in * out, 4);
    gr_cu_fp8_weights(NULL, w, b.w, b.w_scales, out, in);
    b.ws = device_poisoned(
        GR_MAX(gr_cu_fp8_dw_ws_bytes(t, in, out, 1), gr_cu_fp8_ws_bytes(t, in, out, 1, true)));
    at.base = b.ws;
    gr_cu_fp8_dw_layout(&at, t, in, out, &b.at);
    bench_line("columns to FP8", do_columns, &b, 3.0 * t * out, "%u x %u", t, out);
    bench_line("columns together", do_columns_together, &b, 3.0 * t * in, "%u x %u", t, in);
    double dw[2], back[2];
    for (int i = 0; i < 2; i++) {
        b.fp8 = i;
        sum[0][i] += dw[i] = time_of(do_dw, &b, 10);
        sum[1][i] += back[i] = time_of(do_back, &b, 10);
    }
    b.at.x_scales = (float *)b.grad; /* of rows, which may be more than those of x */
    bench_line("columns and rows", do_both, &b, 4.0 * t * out, "%u x %u", t, out);
    expect_ok(gr_kernels_cuda.check(q, &d), &d, "gradients");
    CUDA(cudaGetLastError());
    printf(
        "gradient of %5u x %5u, %s, %u tokens: bf16 %8.1f us %4.0f TFLOP/s, FP8 with its roundings %8.1f us "
        "%5.0f TFLOP/s; with that of rows %8.1f us, and %8.1f us\n",
        in, out, grads == GR_F32 ? "fp32" : "bf16", t, dw[0] * 1e6, flop / dw[0] * 1e-12, dw[1] * 1e6,
        flop / dw[1] * 1e-12, back[0] * 1e6, back[1] * 1e6);
    fflush(stdout);
    void *const all[] = {b.x, b.dy, b.grad, b.ws, b.dx, b.w, b.w_scales, w};
    for (size_t i = 0; i < GR_LEN(all); i++) CUDA(cudaFree(all[i]));
    gr_diag_release(&d);
}

/* The four products of a layer of 8B and of 1.7B. */
static void bench_gradients(gr_queue *q)
{
    static const uint32_t layers[][4][2] = {{{4096, 6144}, {4096, 4096}, {4096, 24576}, {12288, 4096}},
                                            {{2048, 4096}, {2048, 2048}, {2048, 12288}, {6144, 2048}}};
    static const uint32_t tokens[] = {4096, 16384};
    for (size_t l = 0; l < GR_LEN(layers); l++)
        for (size_t n = 0; n < GR_LEN(tokens); n++)
            for (int wide = 0; wide < 2; wide++) {
                double sum[2][2] = {{0}};
                for (int i = 0; i < 4; i++)
                    bench_dw(q, tokens[n], layers[l][i][0], layers[l][i][1], wide ? GR_F32 : GR_BF16, sum);
                printf("gradients of a layer of %s, %s, %u tokens: of weights bf16 %.1f us, FP8 %.1f us "
                       "(%.2f); with those of rows %.1f us, and %.1f us (%.2f)\n",
                       l ? "1.7B" : "8B", wide ? "fp32" : "bf16", tokens[n], sum[0][0] * 1e6, sum[0][1] * 1e6,
                       sum[0][0] / sum[0][1], sum[1][0] * 1e6, sum[1][1] * 1e6, sum[1][0] / sum[1][1]);
            }
}

int main(int argc, char **argv)
{
    gr_diag d;
    gr_queue q = {0}, strict = {0};
    const bool times = read_options(argc, argv);
    gr_diag_init(&d);
    need_device();
    expect_ok(gr_team_new(&team, (unsigned)GR_MIN(sysconf(_SC_NPROCESSORS_ONLN), 16), NULL), &d, "threads");
    if (check_failures) return 1;
    attach_queue(&gr_kernels_cuda, &q);
    attach_queue(gr_kernels_cuda.strict, &strict);
    if (argc > 1 && !strcmp(argv[1], "--invariance")) {
        static const uint32_t shapes[][2] = {
            {4096, 6144}, {4096, 4096}, {1024, 2048}, {12288, 4096}, {256, 512}};
        for (size_t i = 0; i < GR_LEN(shapes); i++) show_invariance(&q, shapes[i][0], shapes[i][1]);
    } else if (times && argc > 2 && !strcmp(argv[2], "gradients")) {
        bench_gradients(&q);
    } else if (times) {
        static const uint32_t shapes[][2] = {
            {4096, 6144}, {4096, 4096}, {4096, 24576}, {12288, 4096}, {1024, 6144}};
        const bool ranks = argc > 2 && !strcmp(argv[2], "ranks");
        for (size_t i = 0; i < GR_LEN(shapes); i++) bench_shape(&q, shapes[i][0], shapes[i][1], ranks);
    } else {
        check_all(&q, &strict);
    }
    gr_kernels_cuda.detach(&q);
    gr_kernels_cuda.strict->detach(&strict);
    gr_team_free(team);
    gr_diag_release(&d);
    printf("%s: %d failed\n", argv[0], check_failures);
    return check_failures != 0;
}
