/* tests/gpu/gpu_kernels.c: norms, rotary embedding, SwiGLU, embedding, sums and optimizer on a CUDA device
 * against loops in double over the same bf16 inputs (ops/kernels/cuda/launch.h). The head and sampling:
 * gpu_head.c.
 *
 * --small: fewer rows, a shorter sum.
 * --bench: times instead, as bytes that must be read and written once, against the copy bandwidth of an H200.
 */
#include "runtime/device/move.h"
#include "runtime/base/half.h"
#include "tests/gpu/device.h"

#include "ops/kernels/cuda/copy.h"
#include "ops/kernels/cuda/fp8.h"
#include "ops/kernels/kernels.h"
#include "ops/model/fp8.h"
#include "ops/simd/simd.h"
#include "runtime/base/half.h"

#define HALF 4e-3 /* relative norm of the error that rounding to bf16 may leave: 2^-9 at most an element */
#define FULL 2e-5 /* of fp32 sums over thousands of terms */

enum { BEFORE = 17 }; /* seed of what gradients hold already */

static const char *type_name(gr_cu_dtype t)
{
    return t == GR_CU_F32 ? "f32" : "bf16";
}

static double bound_of(gr_cu_dtype t)
{
    return t == GR_CU_F32 ? FULL : HALF;
}

/* ---- RMSNorm --------------------------------------------------------------------------------------------
 */

typedef struct norm_case {
    uint32_t n, H;
    bool gathered, add;
    gr_cu_dtype grads;
} norm_case;

/* Rows of a case stand in a table of more, where they are gathered: an odd stride walks all of them once. */
static uint32_t *rows_of(const norm_case *c, uint32_t *table)
{
    *table = c->gathered ? 2 * c->n + 1 : c->n;
    uint32_t *row = gr_malloc(c->n * sizeof(*row));
    for (uint32_t i = 0; i < c->n; i++) row[i] = c->gathered ? (uint32_t)(2ull * i + 1) % *table : i;
    return row;
}

static double rms_inv(const gr_bf16 *x, uint32_t n, double eps)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)of_bf16(x[i]) * (double)of_bf16(x[i]);
    return 1 / sqrt(sum / n + eps);
}

/* dx of y = x inv w, for one row. */
static void rms_back(const gr_bf16 *x, const gr_bf16 *w, const double *dy, uint32_t n, double inv, double *dx)
{
    double dot = 0;
    for (uint32_t i = 0; i < n; i++) dot += dy[i] * (double)of_bf16(w[i]) * (double)of_bf16(x[i]);
    for (uint32_t i = 0; i < n; i++)
        dx[i] = inv * dy[i] * (double)of_bf16(w[i]) - (double)of_bf16(x[i]) * inv * inv * inv * dot / n;
}

static void check_norm_forward(const char *name, const norm_case *c, const gr_bf16 *x, const gr_bf16 *w,
                               const uint32_t *row, uint32_t table)
{
    const size_t bytes = (size_t)c->n * c->H * 2;
    gr_bf16 *dx = device_copy(x, (size_t)table * c->H * 2), *dw = device_copy(w, c->H * 2u);
    gr_bf16 *dy = device_poisoned(bytes);
    uint32_t *drow = device_copy(row, c->n * sizeof(*row));
    const gr_cu_norm norm = {dx, c->gathered ? drow : NULL, c->H, dw, 0, c->n, c->H, 1e-6f};
    gr_cu_rmsnorm(NULL, &norm, dy);
    gr_bf16 *y = take(name, dy, bytes);
    errors e = {0};
    for (uint32_t i = 0; i < c->n; i++) {
        const gr_bf16 *xi = x + (size_t)row[i] * c->H;
        const double inv = rms_inv(xi, c->H, 1e-6);
        for (uint32_t j = 0; j < c->H; j++)
            errors_add(&e, of_bf16(y[(size_t)i * c->H + j]),
                       (double)of_bf16(xi[j]) * inv * (double)of_bf16(w[j]));
    }
    report_errors(&e, name, "y", HALF);
    free(y);
    CUDA(cudaFree(dx));
    CUDA(cudaFree(dw));
    CUDA(cudaFree(drow));
}

static void check_norm_backward(const char *name, const norm_case *c, const gr_bf16 *x, const gr_bf16 *w,
                                const uint32_t *row, uint32_t table)
{
    const size_t H = c->H, all = table * H;
    gr_bf16 *dy = random_bf16(c->n * H, 1, 3), *old = random_bf16(all, 1, 4);
    gr_bf16 *d_x = device_copy(x, all * 2), *d_w = device_copy(w, H * 2),
            *d_dy = device_copy(dy, c->n * H * 2);
    uint32_t *d_row = device_copy(row, c->n * sizeof(*row));
    gradient g = gradient_new(H, c->grads, BEFORE);
    void *ws = device_poisoned(gr_cu_rmsnorm_backward_ws(c->n, c->H));
    gr_bf16 *result[2];
    void *grad[2];
    for (int k = 0; k < 2; k++) {
        gr_bf16 *d_dx = device_copy(old, all * 2);
        const gr_cu_norm norm = {d_x, c->gathered ? d_row : NULL, c->H, d_w, 0, c->n, c->H, 1e-6f};
        gr_cu_rmsnorm_backward(NULL, &norm, d_dy, d_dx, c->add, gradient_reset(&g), c->grads, ws);
        result[k] = take(name, d_dx, all * 2);
        grad[k] = gradient_take(name, &g);
    }
    check_tail(name, ws, gr_cu_rmsnorm_backward_ws(c->n, c->H));
    report_equal(name, "twice", result[0], result[1], all * 2);
    report_equal(name, "twice", grad[0], grad[1], g.bytes);

    errors e = {0}, eg = {0};
    double *want = gr_malloc(H * sizeof(*want)), *dyi = gr_malloc(H * sizeof(*dyi));
    double *want_grad = gr_calloc(H, sizeof(*want_grad));
    for (uint32_t i = 0; i < c->n; i++) {
        const gr_bf16 *xi = x + row[i] * H;
        gr_bf16 *got = result[0] + row[i] * H, *before = old + row[i] * H;
        const double inv = rms_inv(xi, c->H, 1e-6);
        for (size_t j = 0; j < H; j++) {
            dyi[j] = of_bf16(dy[i * H + j]);
            want_grad[j] += dyi[j] * (double)of_bf16(xi[j]) * inv;
        }
        rms_back(xi, w, dyi, c->H, inv, want);
        for (size_t j = 0; j < H; j++) {
            errors_add(&e, of_bf16(got[j]), want[j] + (c->add ? (double)of_bf16(before[j]) : 0));
            got[j] = before[j]; /* what is left differs from before only where it must not */
        }
    }
    for (size_t j = 0; j < H; j++)
        errors_add(&eg, gradient_at(&g, grad[0], j), gradient_before(&g, j) + want_grad[j]);
    report_errors(&e, name, "dx", HALF);
    report_errors(&eg, name, "dw", bound_of(c->grads));
    report_equal(name, "others", result[0], old, all * 2);
    for (int k = 0; k < 2; k++) free(result[k]), free(grad[k]);
    free(want), free(dyi), free(want_grad), free(dy), free(old);
    gradient_free(&g);
    CUDA(cudaFree(d_x));
    CUDA(cudaFree(d_w));
    CUDA(cudaFree(d_dy));
    CUDA(cudaFree(d_row));
    CUDA(cudaFree(ws));
}

static void test_norm(void)
{
    static const norm_case cases[] = {
        {1, 8, false, false, GR_CU_F32},       {3, 64, false, true, GR_CU_F32},
        {257, 64, true, true, GR_CU_BF16},     {1, 1024, false, false, GR_CU_F32},
        {4099, 1024, false, true, GR_CU_F32},  {4099, 1024, true, false, GR_CU_BF16},
        {515, 896, true, true, GR_CU_F32},     {130, 1536, false, false, GR_CU_F32},
        {2049, 2560, false, true, GR_CU_F32},  {1500, 4096, true, true, GR_CU_F32},
        {1500, 4096, false, false, GR_CU_F32}, {300, 5120, false, true, GR_CU_BF16},
        {200, 8192, true, true, GR_CU_F32},    {150, 16384, false, true, GR_CU_F32},
    };
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        norm_case few = cases[i], *c = &few;
        if (check_small) few.n = GR_MIN(few.n, 600);
        char name[96];
        uint32_t table, *row = rows_of(c, &table);
        gr_bf16 *x = random_bf16((size_t)table * c->H, 2, 1), *w = random_bf16(c->H, 1, 2);
        snprintf(name, sizeof(name), "rmsnorm n %u H %u%s%s %s", c->n, c->H, c->gathered ? " rows" : "",
                 c->add ? " add" : "", type_name(c->grads));
        check_norm_forward(name, c, x, w, row, table);
        check_norm_backward(name, c, x, w, row, table);
        free(row), free(x), free(w);
    }
}

/* ---- q and k norm, RoPE ---------------------------------------------------------------------------------
 */

typedef struct rope_case {
    uint32_t T, heads, kv_heads, D;
    uint8_t norm; /* of q and k; VALUES: of v, too */
    bool in_place;
    enum { NONE, WIDE, EIGHT } store; /* into the pool: in bf16, in FP8 */
    gr_cu_dtype grads;
    int32_t first; /* position of token 0 */
} rope_case;

enum { VALUES = 2, HEAD_MOST = 512 };

typedef struct rope_data {
    const char *name;
    const rope_case *c;
    uint32_t W;
    gr_cu_heads h; /* frequency on the device */
    float *frequency;
    int32_t *position, *d_position;
    gr_bf16 *raw, *norm[2], *d_norm[2]; /* of q, of k */
} rope_data;

static rope_data rope_data_new(const rope_case *c, const char *name)
{
    rope_data r = {.name = name, .c = c, .W = (c->heads + 2 * c->kv_heads) * c->D};
    r.frequency = gr_malloc(c->D / 2 * sizeof(float));
    for (uint32_t i = 0; i < c->D / 2; i++) r.frequency[i] = (float)(1 / pow(1e6, 2.0 * i / c->D));
    r.position = gr_malloc(c->T * sizeof(*r.position));
    for (uint32_t t = 0; t < c->T; t++) r.position[t] = c->first + (int32_t)(t * 7 % 1013);
    r.raw = random_bf16((size_t)c->T * r.W, 1.5f, 5);
    for (int k = 0; k < 2; k++) {
        r.norm[k] = random_bf16(c->D, 1, 6 + (uint64_t)k);
        r.d_norm[k] = device_copy(r.norm[k], c->D * 2u);
    }
    r.h = (gr_cu_heads){.heads = c->heads,
                        .kv_heads = c->kv_heads,
                        .head_dim = c->D,
                        .frequency = device_copy(r.frequency, c->D / 2 * sizeof(float)),
                        .eps = 1e-6f,
                        .kv_fp8 = c->store == EIGHT,
                        .value_norm = c->norm == VALUES};
    r.d_position = device_copy(r.position, c->T * sizeof(*r.position));
    return r;
}

static void rope_data_free(rope_data *r)
{
    free(r->frequency), free(r->position), free(r->raw), free(r->norm[0]), free(r->norm[1]);
    CUDA(cudaFree((void *)(uintptr_t)r->h.frequency));
    CUDA(cudaFree(r->d_position));
    CUDA(cudaFree(r->d_norm[0]));
    CUDA(cudaFree(r->d_norm[1]));
}

/* One head of one token by the definition; sign -1 turns back. */
static void rotate(const rope_data *r, uint32_t t, double *x, double sign)
{
    const uint32_t half = r->c->D / 2;
    for (uint32_t i = 0; i < half; i++) {
        const double angle = (float)r->position[t] * r->frequency[i], c = cos(angle), s = sign * sin(angle);
        const double a = x[i], b = x[i + half];
        x[i] = a * c - b * s;
        x[i + half] = b * c + a * s;
    }
}

static void want_head(const rope_data *r, uint32_t t, uint32_t head, double *x)
{
    const rope_case *c = r->c;
    const gr_bf16 *raw = r->raw + (size_t)t * r->W + head * c->D;
    const double inv = c->norm ? rms_inv(raw, c->D, 1e-6) : 1;
    for (uint32_t i = 0; i < c->D; i++)
        x[i] = (double)of_bf16(raw[i]) * inv * (c->norm ? (double)of_bf16(r->norm[head >= c->heads][i]) : 1);
    rotate(r, t, x, 1);
}

/* Values of a token that have a norm, against rows of the same shape. */
static void add_value_errors(const rope_data *r, uint32_t t, const gr_bf16 *out, errors *e)
{
    const rope_case *c = r->c;
    for (uint32_t head = c->heads + c->kv_heads; head < c->heads + 2 * c->kv_heads; head++) {
        const size_t at = (size_t)t * r->W + head * c->D;
        const double inv = rms_inv(r->raw + at, c->D, 1e-6);
        for (uint32_t i = 0; i < c->D; i++)
            errors_add(e, of_bf16(out[at + i]), (double)of_bf16(r->raw[at + i]) * inv);
    }
}

static void check_rope_out(const rope_data *r, const gr_bf16 *out)
{
    const rope_case *c = r->c;
    const uint32_t n_qk = c->heads + c->kv_heads;
    errors e = {0}, ev = {0};
    double x[HEAD_MOST];
    bool same = true;
    for (uint32_t t = 0; t < c->T; t++) {
        for (uint32_t head = 0; head < n_qk; head++) {
            want_head(r, t, head, x);
            for (uint32_t i = 0; i < c->D; i++)
                errors_add(&e, of_bf16(out[(size_t)t * r->W + head * c->D + i]), x[i]);
        }
        const size_t v = (size_t)t * r->W + n_qk * c->D;
        if (c->norm == VALUES)
            add_value_errors(r, t, out, &ev);
        else
            same = same && !memcmp(out + v, r->raw + v, c->kv_heads * c->D * 2u);
    }
    report_errors(&e, r->name, "q k", HALF);
    if (c->norm == VALUES)
        report_errors(&ev, r->name, "v", HALF);
    else
        report_equal(r->name, "v", &same, &(bool){true}, sizeof(same));
}

/* x [d] as a pool in FP8 has it. */
static void want_eight(const gr_bf16 *x, uint32_t d, uint8_t *values, float *scale)
{
    float most = 0;
    bool finite = true;
    for (uint32_t i = 0; i < d; i++) {
        finite = finite && isfinite(of_bf16(x[i]));
        most = fmaxf(most, fabsf(of_bf16(x[i])));
    }
    const gr_fp8_scale s = gr_fp8_scale_of(most);
    for (uint32_t i = 0; i < d; i++) values[i] = gr_f32_to_e4m3(of_bf16(x[i]) * s.inverse);
    *scale = finite ? s.scale : NAN;
}

/* Head k, of keys first, of a token to its place. */
static void want_in_pool(const rope_data *r, const gr_bf16 *x, char *pool, uint32_t slot, uint32_t k)
{
    const rope_case *c = r->c;
    const uint32_t head = k % c->kv_heads, value = k / c->kv_heads;
    const size_t half = gr_cu_kv_half_bytes(&r->h), at = ((size_t)head * 16 + slot % 16) * c->D;
    char *block = pool + slot / 16 * gr_cu_kv_block(&r->h), *to = block + value * half;
    float *scales = (float *)(void *)(block + 2 * half);
    if (c->store == EIGHT)
        want_eight(x, c->D, (uint8_t *)to + at, scales + (head * 2 + value) * 16 + slot % 16);
    else
        memcpy(to + 2 * at, x, c->D * 2u);
}

/* Every byte of the pool: what out has where a slot says so, else as it was. */
static void check_pool(const rope_data *r, const gr_bf16 *out, const void *pool, const uint32_t *slot,
                       size_t blocks)
{
    const rope_case *c = r->c;
    const size_t bytes = blocks * gr_cu_kv_block(&r->h);
    char *want = gr_malloc(bytes);
    memset(want, 0xff, bytes);
    for (uint32_t t = 0; t < c->T; t++)
        for (uint32_t k = 0; slot[t] != UINT32_MAX && k < 2 * c->kv_heads; k++)
            want_in_pool(r, out + (size_t)t * r->W + (c->heads + k) * c->D, want, slot[t], k);
    report_equal(r->name, "pool", pool, want, bytes);
    free(want);
}

/* Rows as a pool in FP8 gives them back. */
static void check_heads(const rope_data *r, const gr_bf16 *device, const gr_bf16 *out)
{
    const rope_case *c = r->c;
    const size_t bytes = (size_t)c->T * r->W * 2;
    gr_bf16 *want = gr_malloc(bytes), *x = device_poisoned(bytes);
    memcpy(want, out, bytes);
    for (uint32_t t = 0; t < c->T; t++)
        for (uint32_t k = 0; k < 2 * c->kv_heads; k++) {
            gr_bf16 *head = want + (size_t)t * r->W + (c->heads + k) * c->D;
            uint8_t values[HEAD_MOST];
            float scale;
            want_eight(head, c->D, values, &scale);
            for (uint32_t i = 0; i < c->D; i++) head[i] = bf16_of(gr_e4m3_to_f32(values[i]) * scale);
        }
    CUDA(cudaMemcpy(x, device, bytes, cudaMemcpyDeviceToDevice));
    gr_cu_fp8_heads(NULL, x + c->heads * c->D, c->T, r->W, 2 * c->kv_heads, c->D);
    gr_bf16 *got = take(r->name, x, bytes);
    report_equal(r->name, "rounded", got, want, bytes);
    free(got), free(want);
}

static void check_rope_forward(const rope_data *r)
{
    const rope_case *c = r->c;
    const size_t bytes = (size_t)c->T * r->W * 2, blocks = (c->T + 15) / 16 + 3;
    const size_t pool_bytes = blocks * gr_cu_kv_block(&r->h);
    gr_bf16 *raw = device_copy(r->raw, bytes), *out = c->in_place ? raw : device_poisoned(bytes);
    gr_bf16 *q = c->norm ? r->d_norm[0] : NULL, *k = c->norm && c->kv_heads ? r->d_norm[1] : NULL;
    if (c->store) {
        uint32_t *slot = gr_malloc(c->T * sizeof(*slot));
        for (uint32_t t = 0; t < c->T; t++)
            slot[t] = t % 11 == 3 ? UINT32_MAX : (uint32_t)(blocks * 16 - 1 - t);
        uint32_t *d_slot = device_copy(slot, c->T * sizeof(*slot));
        void *pool = device_poisoned(pool_bytes);
        gr_cu_qk_rope_store(NULL, &r->h, raw, q, k, r->d_position, d_slot, out, pool, c->T);
        gr_bf16 *h_out = host_copy(out, bytes);
        void *h_pool = take(r->name, pool, pool_bytes);
        check_pool(r, h_out, h_pool, slot, blocks);
        if (c->store == EIGHT) check_heads(r, out, h_out);
        free(h_out), free(h_pool), free(slot);
        CUDA(cudaFree(d_slot));
    } else {
        gr_cu_qk_rope(NULL, &r->h, raw, q, k, r->d_position, out, c->T);
    }
    if (!c->in_place) {
        gr_bf16 *h_raw = take(r->name, raw, bytes);
        report_equal(r->name, "raw", h_raw, r->raw, bytes);
        free(h_raw);
    }
    gr_bf16 *h = take(r->name, out, bytes);
    check_rope_out(r, h);
    free(h);
}

/* Gradients of a token's values that have a norm, from those of its result. */
static void add_value_back_errors(const rope_data *r, uint32_t t, const gr_bf16 *dy, const gr_bf16 *got,
                                  errors *e)
{
    const rope_case *c = r->c;
    gr_bf16 ones[HEAD_MOST];
    double d[HEAD_MOST], dx[HEAD_MOST];
    for (uint32_t i = 0; i < c->D; i++) ones[i] = bf16_of(1);
    for (uint32_t head = c->heads + c->kv_heads; head < c->heads + 2 * c->kv_heads; head++) {
        const size_t at = (size_t)t * r->W + head * c->D;
        for (uint32_t i = 0; i < c->D; i++) d[i] = of_bf16(dy[at + i]);
        rms_back(r->raw + at, ones, d, c->D, rms_inv(r->raw + at, c->D, 1e-6), dx);
        for (uint32_t i = 0; i < c->D; i++) errors_add(e, of_bf16(got[at + i]), dx[i]);
    }
}

static void check_rope_backward(const rope_data *r)
{
    const rope_case *c = r->c;
    const uint32_t n_qk = c->heads + c->kv_heads;
    const size_t bytes = (size_t)c->T * r->W * 2;
    gr_bf16 *dy = random_bf16((size_t)c->T * r->W, 1, 8), *raw = device_copy(r->raw, bytes);
    gradient g[2] = {gradient_new(c->D, c->grads, BEFORE), gradient_new(c->D, c->grads, BEFORE + 1)};
    const uint64_t ws_bytes = gr_cu_qk_rope_backward_ws(&r->h, c->T);
    void *ws = device_poisoned(ws_bytes), *grad[2][2];
    gr_bf16 *result[2];
    for (int k = 0; k < 2; k++) {
        gr_bf16 *d = device_copy(dy, bytes);
        for (int m = 0; m < 2; m++) gradient_reset(&g[m]);
        gr_cu_qk_rope_backward(NULL, &r->h, raw, c->norm ? r->d_norm[0] : NULL,
                               c->norm && c->kv_heads ? r->d_norm[1] : NULL, r->d_position, d, g[0].device,
                               c->kv_heads ? g[1].device : NULL, c->grads, c->T, ws);
        result[k] = take(r->name, d, bytes);
        for (int m = 0; m < 2; m++) grad[k][m] = gradient_take(r->name, &g[m]);
    }
    check_tail(r->name, ws, ws_bytes);
    report_equal(r->name, "twice", result[0], result[1], bytes);

    errors e = {0}, ev = {0}, eg[2] = {{0}};
    double want_grad[2][HEAD_MOST] = {{0}}, d[HEAD_MOST], dx[HEAD_MOST];
    bool same = true;
    for (uint32_t t = 0; t < c->T; t++) {
        for (uint32_t head = 0; head < n_qk; head++) {
            const size_t at = (size_t)t * r->W + head * c->D;
            const int m = head >= c->heads;
            for (uint32_t i = 0; i < c->D; i++) d[i] = of_bf16(dy[at + i]);
            rotate(r, t, d, -1);
            if (c->norm) {
                const double inv = rms_inv(r->raw + at, c->D, 1e-6);
                for (uint32_t i = 0; i < c->D; i++)
                    want_grad[m][i] += d[i] * (double)of_bf16(r->raw[at + i]) * inv;
                rms_back(r->raw + at, r->norm[m], d, c->D, inv, dx);
                memcpy(d, dx, sizeof(d));
            }
            for (uint32_t i = 0; i < c->D; i++) errors_add(&e, of_bf16(result[0][at + i]), d[i]);
        }
        const size_t v = (size_t)t * r->W + n_qk * c->D;
        if (c->norm == VALUES)
            add_value_back_errors(r, t, dy, result[0], &ev);
        else
            same = same && !memcmp(result[0] + v, dy + v, c->kv_heads * c->D * 2u);
    }
    report_errors(&e, r->name, "d qk", HALF);
    if (c->norm == VALUES)
        report_errors(&ev, r->name, "d v", HALF);
    else
        report_equal(r->name, "d v", &same, &(bool){true}, sizeof(same));
    for (int m = 0; m < 2; m++) {
        for (uint32_t i = 0; i < c->D; i++)
            errors_add(&eg[m], gradient_at(&g[m], grad[0][m], i),
                       gradient_before(&g[m], i) + want_grad[m][i]);
        report_errors(&eg[m], r->name, m ? "dw k" : "dw q", bound_of(c->grads));
        report_equal(r->name, "twice", grad[0][m], grad[1][m], g[m].bytes);
        free(grad[0][m]), free(grad[1][m]);
        gradient_free(&g[m]);
    }
    free(result[0]), free(result[1]), free(dy);
    CUDA(cudaFree(raw));
    CUDA(cudaFree(ws));
}

/* Values that are no numbers, or all 0: a pool in FP8 says of them what they are. */
static void check_store_odd(void)
{
    static const rope_case c = {4, 1, 1, 32, false, true, EIGHT, GR_CU_F32, 0};
    const uint32_t slot[4] = {3, 2, 17, 16};
    rope_data r = rope_data_new(&c, "qk_rope store FP8, odd values");
    const size_t bytes = (size_t)c.T * r.W * 2, pool_bytes = 2 * gr_cu_kv_block(&r.h);
    gr_bf16 *v = r.raw + 2 * c.D; /* of token 0 */
    v[5] = 0x7f80;                /* infinity, and of the next one NaN */
    v[r.W + 31] = 0x7fc0;
    memset(v + 2 * r.W, 0, c.D * 2u);
    v[3 * r.W] = 0x7f7f; /* the largest */
    gr_bf16 *raw = device_copy(r.raw, bytes);
    void *pool = device_poisoned(pool_bytes);
    uint32_t *d_slot = device_copy(slot, sizeof(slot));
    gr_cu_qk_rope_store(NULL, &r.h, raw, NULL, NULL, r.d_position, d_slot, raw, pool, c.T);
    gr_bf16 *out = host_copy(raw, bytes);
    char *got = take(r.name, pool, pool_bytes);
    const float *scales = (const float *)(void *)(got + 2 * gr_cu_kv_half_bytes(&r.h)) + 16; /* of values */
    const float *next = (const float *)(const void *)((const char *)scales + gr_cu_kv_block(&r.h));
    const bool odd[4] = {isnan(scales[3]), isnan(scales[2]), next[1] > 0, isfinite(next[0])};
    report_equal(r.name, "scales", odd, (const bool[4]){true, true, true, true}, sizeof(odd));
    char *want = gr_malloc(pool_bytes);
    memset(want, 0xff, pool_bytes);
    for (uint32_t t = 2; t < c.T; t++)
        for (uint32_t k = 0; k < 2; k++)
            want_in_pool(&r, out + (size_t)t * r.W + (1 + k) * c.D, want, slot[t], k);
    const size_t second = gr_cu_kv_block(&r.h);
    report_equal(r.name, "block", got + second, want + second, second);
    free(out), free(got), free(want);
    CUDA(cudaFree(raw));
    CUDA(cudaFree(d_slot));
    rope_data_free(&r);
}

static void test_rope(void)
{
    static const rope_case cases[] = {
        {1, 1, 1, 8, true, false, NONE, GR_CU_F32, 3},
        {1, 2, 1, 16, true, false, WIDE, GR_CU_F32, 0},
        {37, 4, 2, 16, true, false, NONE, GR_CU_F32, 0},
        {61, 3, 3, 24, true, true, WIDE, GR_CU_F32, 5},
        {53, 8, 2, 64, false, true, NONE, GR_CU_F32, 0},      /* as llama, in place */
        {53, 9, 3, 64, false, false, WIDE, GR_CU_F32, 0},     /* with the pool */
        {129, 14, 2, 64, false, true, WIDE, GR_CU_BF16, 900}, /* as qwen2.5 0.5B */
        {301, 16, 8, 128, true, false, NONE, GR_CU_F32, 0},   /* as qwen3 0.6B */
        {301, 16, 8, 128, true, false, WIDE, GR_CU_F32, 40000},
        {4001, 16, 8, 128, true, false, NONE, GR_CU_F32, 11}, /* all three shares of heads */
        {997, 32, 8, 128, true, true, WIDE, GR_CU_BF16, 0},   /* as qwen3 8B */
        {70, 5, 5, 80, true, false, WIDE, GR_CU_F32, 0},
        {33, 4, 1, 256, true, true, WIDE, GR_CU_F32, 130000},
        {33, 20, 4, 256, false, false, NONE, GR_CU_F32, 130000},
        {1, 2, 1, 16, true, false, EIGHT, GR_CU_F32, 0}, /* with the pool in FP8 */
        {53, 9, 3, 64, false, false, EIGHT, GR_CU_F32, 0},
        {301, 16, 8, 128, true, false, EIGHT, GR_CU_F32, 40000},
        {997, 32, 8, 128, true, true, EIGHT, GR_CU_BF16, 0},
        {70, 5, 5, 80, true, false, EIGHT, GR_CU_F32, 0},
        {33, 4, 1, 256, true, true, EIGHT, GR_CU_F32, 130000},
        {37, 8, 2, 512, true, false, NONE, GR_CU_F32, 11}, /* heads wider than 256 */
        {33, 4, 1, 512, true, true, WIDE, GR_CU_BF16, 0},
        {20, 3, 3, 320, false, false, WIDE, GR_CU_F32, 0},
        {301, 32, 4, 512, VALUES, false, NONE, GR_CU_F32, 40000}, /* as gemma4 */
        {129, 16, 8, 256, VALUES, true, WIDE, GR_CU_BF16, 0},
        {61, 9, 3, 24, VALUES, true, NONE, GR_CU_F32, 5},
        {53, 4, 2, 64, VALUES, true, EIGHT, GR_CU_F32, 0},
        {301, 8, 0, 256, true, false, NONE, GR_CU_F32, 11}, /* queries alone */
        {4001, 32, 0, 512, true, false, NONE, GR_CU_BF16, 40000},
        {129, 8, 0, 512, true, false, WIDE, GR_CU_F32, 0},
        {53, 3, 0, 24, false, true, WIDE, GR_CU_F32, 5},
    };
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        const rope_case *c = &cases[i];
        char name[96];
        snprintf(name, sizeof(name), "qk_rope T %u %u/%u D %u%s%s%s %s", c->T, c->heads, c->kv_heads, c->D,
                 c->norm == VALUES ? " norm with values"
                 : c->norm         ? " norm"
                                   : "",
                 c->in_place ? " in place" : "",
                 c->store == EIGHT ? " store FP8"
                 : c->store        ? " store"
                                   : "",
                 type_name(c->grads));
        rope_data r = rope_data_new(c, name);
        check_rope_forward(&r);
        check_rope_backward(&r);
        rope_data_free(&r);
    }
    check_store_odd();
}

/* ---- column sums, SwiGLU --------------------------------------------------------------------------------
 */

static void check_column_sums(uint32_t T, uint32_t cols, gr_cu_dtype type)
{
    char name[96];
    snprintf(name, sizeof(name), "column_sums T %u cols %u %s", T, cols, type_name(type));
    gr_bf16 *x = random_bf16((size_t)T * cols, 1, 9), *d = device_copy(x, (size_t)T * cols * 2);
    gradient g = gradient_new(cols, type, BEFORE);
    void *ws = device_poisoned(gr_cu_column_sums_ws(T, cols)), *grad[2];
    for (int k = 0; k < 2; k++) {
        gr_cu_column_sums(NULL, d, gradient_reset(&g), type, T, cols, ws);
        grad[k] = gradient_take(name, &g);
    }
    check_tail(name, ws, gr_cu_column_sums_ws(T, cols));
    errors e = {0};
    for (uint32_t j = 0; j < cols; j++) {
        double sum = gradient_before(&g, j);
        for (uint32_t t = 0; t < T; t++) sum += (double)of_bf16(x[(size_t)t * cols + j]);
        errors_add(&e, gradient_at(&g, grad[0], j), sum);
    }
    report_errors(&e, name, "", bound_of(type));
    report_equal(name, "twice", grad[0], grad[1], g.bytes);
    free(grad[0]), free(grad[1]), free(x);
    gradient_free(&g);
    CUDA(cudaFree(d));
    CUDA(cudaFree(ws));
}

static void check_swiglu(uint32_t T, uint32_t I, float scale)
{
    char name[96];
    snprintf(name, sizeof(name), "swiglu T %u I %u scale %g", T, I, (double)scale);
    const size_t n = (size_t)T * I;
    gr_bf16 *gu = random_bf16(2 * n, scale, 10), *dh = random_bf16(n, 1, 11);
    gr_bf16 *d_gu = device_copy(gu, 4 * n), *d_dh = device_copy(dh, 2 * n), *d_h = device_poisoned(2 * n);
    gr_bf16 *d_h2 = device_poisoned(2 * n), *d_dgu = device_poisoned(4 * n);
    gr_cu_swiglu(NULL, d_gu, false, d_h, T, I);
    gr_cu_swiglu_backward(NULL, d_gu, d_dh, false, d_dgu, d_h2, T, I);
    gr_bf16 *h = take(name, d_h, 2 * n), *h2 = take(name, d_h2, 2 * n), *dgu = take(name, d_dgu, 4 * n);
    errors e = {0}, eg = {0}, eu = {0};
    for (uint32_t t = 0; t < T; t++)
        for (uint32_t i = 0; i < I; i++) {
            const size_t at = 2 * (size_t)t * I + i;
            const double g = of_bf16(gu[at]), u = of_bf16(gu[at + I]), d = of_bf16(dh[(size_t)t * I + i]);
            const double s = 1 / (1 + exp(-g));
            errors_add(&e, of_bf16(h[(size_t)t * I + i]), g * s * u);
            errors_add(&eg, of_bf16(dgu[at]), d * u * (s + g * s * (1 - s)));
            errors_add(&eu, of_bf16(dgu[at + I]), d * g * s);
        }
    report_errors(&e, name, "h", HALF);
    report_equal(name, "again", h, h2, 2 * n);
    report_errors(&eg, name, "d gate", HALF);
    report_errors(&eu, name, "d up", HALF);
    free(gu), free(dh), free(h), free(h2), free(dgu);
    CUDA(cudaFree(d_gu));
    CUDA(cudaFree(d_dh));
}

/* With its product: sums in double of the same bf16 values; all elements are looked at for poison. */
static void check_swiglu_product(uint32_t m, uint32_t H, uint32_t I)
{
    char name[96];
    snprintf(name, sizeof(name), "swiglu product m %u H %u I %u", m, H, I);
    gr_bf16 *x = random_bf16((size_t)m * H, 1, 12),
            *w = random_bf16(2 * (size_t)I * H, 2 / sqrtf((float)H), 13);
    gr_bf16 *d_x = device_copy(x, 2 * (size_t)m * H), *d_w = device_copy(w, 4 * (size_t)I * H), *h[2];
    const size_t bytes = 2 * (size_t)m * I;
    for (int i = 0; i < 2; i++) {
        gr_bf16 *d_h = device_poisoned(bytes);
        if (!gr_cu_swiglu_product(NULL, d_x, d_w, d_h, m, H, I)) report(false, name, "launch", 0, 0);
        h[i] = take(name, d_h, bytes);
    }
    errors e = {0};
    const size_t all = (size_t)m * I, step = all < 5000 ? 1 : all / 5000;
    for (size_t at = 0; at < all; at++) {
        if (at % step) { /* only that it was written */
            if (isnan(of_bf16(h[0][at]))) errors_add(&e, NAN, 0);
            continue;
        }
        const size_t t = at / I, i = at % I;
        double g = 0, u = 0;
        for (uint32_t k = 0; k < H; k++) {
            g += (double)of_bf16(x[t * H + k]) * of_bf16(w[i * H + k]);
            u += (double)of_bf16(x[t * H + k]) * of_bf16(w[(i + I) * H + k]);
        }
        errors_add(&e, of_bf16(h[0][at]), g / (1 + exp(-g)) * u);
    }
    report_errors(&e, name, "h", HALF);
    report_equal(name, "twice", h[0], h[1], bytes);
    free(x), free(w), free(h[0]), free(h[1]);
    CUDA(cudaFree(d_x));
    CUDA(cudaFree(d_w));
}

static void test_swiglu_product(void)
{
    gr_bf16 *w = device_poisoned(256);
    int processors = 0;
    CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    const bool can = gr_cu_swiglu_fuses(w, 256, 64, 96 * (uint32_t)(processors / 2));
    CUDA(cudaFree(w));
    if (!can) {
        printf("SwiGLU with its product: not on this device\n");
        return;
    }
    check_swiglu_product(1, 8, 2);
    check_swiglu_product(129, 72, 96);
    check_swiglu_product(256, 64, 194);
    check_swiglu_product(200, 1000, 3000);
    check_swiglu_product(600, 320, 1030); /* several pairs of rows */
    check_swiglu_product(256, check_small ? 256 : 4096, 12288);
}

static void test_rows(void)
{
    check_column_sums(1, 8, GR_CU_F32);
    check_column_sums(63, 264, GR_CU_BF16);
    check_column_sums(5000, 1152, GR_CU_F32);
    check_column_sums(4097, 6144, GR_CU_F32);
    check_swiglu(1, 8, 1);
    check_swiglu(3, 24, 40); /* beyond the range of exp */
    check_swiglu(61, 768, 300);
    check_swiglu(255, 3072, 2);
    check_swiglu(33, 12288, 2);
    test_swiglu_product();
}

/* ---- embedding ------------------------------------------------------------------------------------------
 */

typedef enum id_pattern { UNIFORM, COMMON, ONE } id_pattern;

static int32_t *ids_of(uint32_t T, uint32_t V, id_pattern pattern)
{
    int32_t *ids = gr_malloc(T * sizeof(*ids));
    uint64_t seed = 12;
    for (uint32_t t = 0; t < T; t++) {
        const float r = fabsf(random_float(&seed)) / 3.5f; /* below 1 */
        const double x = pattern == COMMON ? pow((double)r, 6) : (double)r;
        ids[t] = pattern == ONE ? (int32_t)V - 1 : (int32_t)fmin((double)V - 1, x * V);
    }
    return ids;
}

static void check_embed(uint32_t T, uint32_t V, uint32_t H, id_pattern pattern, gr_cu_dtype type)
{
    static const char *const patterns[] = {"uniform", "common", "one"};
    char name[96];
    snprintf(name, sizeof(name), "embed T %u V %u H %u %s %s", T, V, H, patterns[pattern], type_name(type));
    int32_t *ids = ids_of(T, V, pattern), *d_ids = device_copy(ids, T * sizeof(*ids));
    gr_bf16 *embed = random_bf16((size_t)V * H, 1, 13), *d_embed = device_copy(embed, (size_t)V * H * 2);
    gr_bf16 *d_x = device_poisoned((size_t)T * H * 2);
    gr_cu_embed(NULL, d_embed, d_ids, 1, d_x, T, H);
    gr_bf16 *x = take(name, d_x, (size_t)T * H * 2), *want = gr_malloc((size_t)T * H * 2);
    for (uint32_t t = 0; t < T; t++) memcpy(want + (size_t)t * H, embed + (size_t)ids[t] * H, H * 2u);
    report_equal(name, "x", x, want, (size_t)T * H * 2);

    gr_bf16 *dx = random_bf16((size_t)T * H, 1, 14), *d_dx = device_copy(dx, (size_t)T * H * 2);
    gradient g = gradient_new((size_t)V * H, type, BEFORE);
    void *ws = device_poisoned(gr_cu_embed_backward_ws(T)), *grad[2];
    for (int k = 0; k < 2; k++) {
        gr_cu_embed_backward(NULL, d_ids, d_dx, 1, gradient_reset(&g), type, T, H, ws);
        grad[k] = gradient_take(name, &g);
    }
    check_tail(name, ws, gr_cu_embed_backward_ws(T));
    double *sum = gr_malloc((size_t)V * H * sizeof(*sum));
    for (size_t i = 0; i < (size_t)V * H; i++) sum[i] = gradient_before(&g, i);
    for (uint32_t t = 0; t < T; t++)
        for (uint32_t j = 0; j < H; j++)
            sum[(size_t)ids[t] * H + j] += (double)of_bf16(dx[(size_t)t * H + j]);
    errors e = {0};
    for (size_t i = 0; i < (size_t)V * H; i++) errors_add(&e, gradient_at(&g, grad[0], i), sum[i]);
    report_errors(&e, name, "grad", bound_of(type));
    report_equal(name, "twice", grad[0], grad[1], g.bytes);
    free(ids), free(embed), free(x), free(want), free(dx), free(sum), free(grad[0]), free(grad[1]);
    gradient_free(&g);
    CUDA(cudaFree(d_ids));
    CUDA(cudaFree(d_embed));
    CUDA(cudaFree(d_dx));
    CUDA(cudaFree(ws));
}

static void test_embed(void)
{
    check_embed(1, 17, 8, UNIFORM, GR_CU_F32);
    check_embed(31, 1, 64, ONE, GR_CU_F32);
    check_embed(32, 1, 64, ONE, GR_CU_F32); /* the shortest long run */
    check_embed(33, 3, 64, ONE, GR_CU_BF16);
    check_embed(1000, 9, 264, UNIFORM, GR_CU_F32); /* runs of about 100, that end anywhere */
    check_embed(5003, 200, 1024, UNIFORM, GR_CU_F32);
    check_embed(5003, 5000, 1024, COMMON, GR_CU_BF16);
    check_embed(20011, 3000, 1536, COMMON, GR_CU_F32);
    check_embed(301, 100, 8960, COMMON, GR_CU_BF16); /* as gemma4's embeddings of 35 layers */
    check_embed(70001, 4000, 64, COMMON, GR_CU_F32); /* the sort's larger kernels */
}

/* ---- optimizer ------------------------------------------------------------------------------------------
 */

static void *as_type(const float *x, size_t n, gr_cu_dtype type)
{
    if (type == GR_CU_F32) return memcpy(gr_malloc(n * sizeof(*x)), x, n * sizeof(*x));
    gr_bf16 *y = gr_malloc(n * sizeof(*y));
    for (size_t i = 0; i < n; i++) y[i] = bf16_of(x[i]);
    return y;
}

static double value_at(const void *x, gr_cu_dtype type, size_t i)
{
    return type == GR_CU_F32 ? ((const float *)x)[i] : of_bf16(((const gr_bf16 *)x)[i]);
}

static float *random_floats(size_t n, float scale, uint64_t seed)
{
    float *x = gr_malloc(n * sizeof(*x) + 1);
    for (size_t i = 0; i < n; i++) x[i] = scale * random_float(&seed);
    return x;
}

static const gr_cu_optim adamw_how = {.lr = 1e-2,
                                      .beta1 = 0.9,
                                      .beta2 = 0.999,
                                      .eps = 1e-8,
                                      .weight_decay = 0.1,
                                      .correction1 = 1 - 0.729,
                                      .correction2 = 1 - 0.997002999,
                                      .grad_scale = 0.7f};

static void check_adamw(size_t n, gr_cu_dtype grads, gr_cu_dtype moments, bool with_master)
{
    char name[96];
    snprintf(name, sizeof(name), "adamw n %zu grads %s moments %s%s", n, type_name(grads), type_name(moments),
             with_master ? " master" : "");
    const gr_cu_optim *k = &adamw_how;
    const size_t size = gr_size(moments);
    float *master = random_floats(n, 0.5f, 15), *g32 = random_floats(n, 0.1f, 16),
          *m32 = random_floats(n, 0.1f, 17);
    float *v32 = random_floats(n, 0.1f, 18);
    for (size_t i = 0; i < n; i++) v32[i] *= v32[i];
    void *g = as_type(g32, n, grads), *m = as_type(m32, n, moments), *v = as_type(v32, n, moments);
    gr_bf16 *w = as_type(master, n, GR_CU_BF16);
    float *d_master = with_master ? device_copy(master, n * 4) : NULL;
    gr_bf16 *d_w = with_master ? device_poisoned(n * 2) : device_copy(w, n * 2);
    void *d_g = device_copy(g, n * gr_size(grads)), *d_m = device_copy(m, n * size),
         *d_v = device_copy(v, n * size);
    gr_cu_optim_step(NULL, k,
                     &(gr_cu_optim_range){.w = d_w,
                                          .g = d_g,
                                          .master = d_master,
                                          .m = d_m,
                                          .v = d_v,
                                          .grads = grads,
                                          .moments = moments,
                                          .n = n});
    void *got_m = take(name, d_m, n * size), *got_v = take(name, d_v, n * size);
    gr_bf16 *got_w = take(name, d_w, n * 2);
    float *got = with_master ? take(name, d_master, n * 4) : NULL;
    errors ew = {0}, em = {0}, ev = {0};
    bool rounded = true;
    for (size_t i = 0; i < n; i++) {
        const double from = with_master ? (double)master[i] : (double)of_bf16(w[i]);
        const double gi = value_at(g, grads, i) * (double)k->grad_scale;
        const double mi = k->beta1 * value_at(m, moments, i) + (1 - k->beta1) * gi;
        const double vi = k->beta2 * value_at(v, moments, i) + (1 - k->beta2) * gi * gi;
        const double to = from * (1 - k->lr * k->weight_decay) -
                          k->lr * (mi / k->correction1) / (sqrt(vi / k->correction2) + k->eps);
        errors_add(&em, value_at(got_m, moments, i), mi);
        errors_add(&ev, value_at(got_v, moments, i), vi);
        errors_add(&ew, with_master ? (double)got[i] : (double)of_bf16(got_w[i]), to);
        if (with_master) rounded = rounded && got_w[i] == bf16_of(got[i]);
    }
    report_errors(&ew, name, "w", with_master ? 1e-6 : HALF);
    report_errors(&em, name, "m", moments == GR_CU_F32 ? 1e-6 : HALF);
    report_errors(&ev, name, "v", moments == GR_CU_F32 ? 1e-6 : HALF);
    if (with_master) report_equal(name, "bf16", &rounded, &(bool){true}, sizeof(rounded));
    free(master), free(g32), free(m32), free(v32), free(g), free(m), free(v), free(w);
    free(got_m), free(got_v), free(got_w), free(got);
    CUDA(cudaFree(d_g));
}

/* Lion and SGD round as the host's step does: the same bits, whatever the types. */
static void check_one_moment(size_t n, gr_optim_kind kind, gr_cu_dtype grads, gr_cu_dtype moments,
                             bool with_master)
{
    char name[96];
    snprintf(name, sizeof(name), "%s n %zu grads %s moments %s%s", kind == GR_OPTIM_LION ? "lion" : "sgd", n,
             type_name(grads), type_name(moments), with_master ? " master" : "");
    const gr_optim how = {1e-2, 0.9, 0.99, 0, 0.1, 3, 0.7f, kind};
    const gr_cu_optim k = {.lr = (float)how.lr,
                           .beta1 = (float)how.beta1,
                           .beta2 = (float)how.beta2,
                           .weight_decay = (float)how.weight_decay,
                           .correction1 = 1,
                           .correction2 = 1,
                           .grad_scale = how.grad_scale,
                           .kind = (gr_cu_optim_kind)kind};
    const gr_optim rounded = {(double)(float)how.lr,
                              (double)(float)how.beta1,
                              (double)(float)how.beta2,
                              0,
                              (double)(float)how.weight_decay,
                              3,
                              0.7f,
                              kind};
    float *master = random_floats(n, 0.5f, 31), *g32 = random_floats(n, 0.1f, 32),
          *m32 = random_floats(n, 0.1f, 33);
    void *g = as_type(g32, n, grads), *m = as_type(m32, n, moments);
    gr_bf16 *w = as_type(master, n, GR_CU_BF16);
    float *d_master = with_master ? device_copy(master, n * 4) : NULL;
    gr_bf16 *d_w = with_master ? device_poisoned(n * 2) : device_copy(w, n * 2);
    void *d_g = device_copy(g, n * gr_size(grads)), *d_m = device_copy(m, n * gr_size(moments));
    gr_cu_optim_step(
        NULL, &k,
        &(gr_cu_optim_range){
            .w = d_w, .g = d_g, .master = d_master, .m = d_m, .grads = grads, .moments = moments, .n = n});
    const gr_optim_range r = {.w = w,
                              .g = g,
                              .master = with_master ? master : NULL,
                              .m = m,
                              .grads = grads == GR_CU_F32 ? GR_F32 : GR_BF16,
                              .moments = moments == GR_CU_F32 ? GR_F32 : GR_BF16};
    gr_host_optim_step(&(gr_queue){0}, GR_BF16, &rounded, true, &r, n);
    void *got_m = take(name, d_m, n * gr_size(moments));
    gr_bf16 *got_w = take(name, d_w, n * 2);
    report_equal(name, "m", got_m, m, n * gr_size(moments));
    report_equal(name, "w", got_w, w, n * 2);
    if (with_master) {
        float *got = take(name, d_master, n * 4);
        report_equal(name, "master", got, master, n * 4);
        free(got);
    }
    free(master), free(g32), free(m32), free(g), free(m), free(w), free(got_m), free(got_w);
    CUDA(cudaFree(d_g));
}

static void step_both(const gr_cu_optim *how, gr_bf16 *d_w, float *d_master, uint16_t *d_low, const void *d_g,
                      gr_cu_dtype grads, float *const d_m[2], float *const d_v[2], size_t n, size_t other)
{
    const bool two = how->kind == GR_CU_ADAMW;
    for (int k = 0; k < 2; k++) {
        const gr_cu_optim_range r = {.w = d_w + (k ? other : 0),
                                     .g = d_g,
                                     .master = k ? NULL : d_master,
                                     .low = k ? d_low : NULL,
                                     .m = d_m[k],
                                     .v = two ? d_v[k] : NULL,
                                     .grads = grads,
                                     .moments = GR_CU_F32,
                                     .n = n};
        gr_cu_optim_step(NULL, how, &r);
    }
}

/* A master in two halves is the fp32 one, to the bit, step after step; and weights round to the nearest. */
static void check_split(size_t n, gr_cu_optim_kind kind, gr_cu_dtype grads)
{
    char name[96];
    snprintf(name, sizeof(name), "split master n %zu kind %d grads %s", n, (int)kind, type_name(grads));
    float *master = random_floats(n, 0.5f, 51), *zero = gr_calloc(n, sizeof(*zero));
    uint16_t *low = gr_malloc(n * sizeof(*low));
    const size_t other = gr_align(n, 64); /* the other weights */
    gr_bf16 *w = gr_calloc(2 * other, sizeof(*w));
    for (size_t i = 0; i < n; i++) w[other + i] = gr_f32_high(master[i]), low[i] = gr_f32_low(master[i]);
    gr_bf16 *d_w = device_copy(w, 2 * other * 2);
    float *d_master = device_copy(master, n * 4);
    uint16_t *d_low = device_copy(low, n * 2);
    float *const d_m[] = {device_copy(zero, n * 4), device_copy(zero, n * 4)}, *const d_v[] = {
                                                                                   device_copy(zero, n * 4),
                                                                                   device_copy(zero, n * 4)};
    for (int step = 1; step <= 4; step++) {
        gr_cu_optim how = adamw_how;
        how.kind = kind;
        how.correction1 = kind == GR_CU_ADAMW ? 1 - pow(how.beta1, step) : 1;
        how.correction2 = kind == GR_CU_ADAMW ? 1 - pow(how.beta2, step) : 1;
        float *g32 = random_floats(n, 0.1f, 60 + (uint64_t)step);
        void *g = as_type(g32, n, grads), *d_g = device_copy(g, n * gr_size(grads));
        step_both(&how, d_w, d_master, d_low, d_g, grads, d_m, d_v, n, other);
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaFree(d_g));
        free(g32), free(g);
    }
    float *got = take(name, d_master, n * 4), *joined = gr_malloc(n * sizeof(*joined));
    uint16_t *got_low = take(name, d_low, n * 2);
    gr_bf16 *got_w = take(name, d_w, 2 * other * 2);
    size_t off = 0;
    for (size_t i = 0; i < n; i++) {
        const gr_bf16 high = got_w[other + i];
        joined[i] = gr_f32_join(high, got_low[i]);
        off += high != got_w[i] && got_low[i] != 0x8000; /* to even on one side, away on the other */
        off += high != gr_f32_high(got[i]);
    }
    report_equal(name, "master", joined, got, n * 4);
    report_equal(name, "weights that round another way", &off, &(size_t){0}, sizeof(off));
    free(master), free(zero), free(low), free(w), free(got), free(joined), free(got_low), free(got_w);
    for (int k = 0; k < 2; k++) {
        CUDA(cudaFree(d_m[k]));
        CUDA(cudaFree(d_v[k]));
    }
}

/* How many of [n] codes differ, and by how much at most. */
static size_t codes_off(const uint8_t *a, const uint8_t *b, size_t n, int *most)
{
    size_t off = 0;
    for (size_t i = 0; i < n; i++) {
        const int by = abs((int8_t)(a[i] - b[i]));
        off += by != 0;
        *most = GR_MAX(*most, by);
    }
    return off;
}

/* Steps with moments of 8 bits beside the host's: Lion's and SGD's bits; AdamW's but for what the compiler
 * fuses, which now and then is the next code. */
static void check_moments8(size_t n, gr_optim_kind kind, gr_cu_dtype grads)
{
    enum { STEPS = 4 };
    char name[96];
    snprintf(name, sizeof(name), "8-bit moments n %zu kind %d grads %s", n, (int)kind, type_name(grads));
    const size_t codes = gr_align(n, GR_MOMENT_BLOCK), scales = codes / GR_MOMENT_BLOCK;
    float *master = random_floats(n, 0.5f, 71), *m_scale = gr_calloc(scales, 4),
          *v_scale = gr_calloc(scales, 4);
    uint8_t *m = gr_calloc(codes, 1), *v = gr_calloc(codes, 1);
    uint16_t *low = gr_malloc(n * 2);
    gr_bf16 *w = gr_malloc(n * 2);
    for (size_t i = 0; i < n; i++) w[i] = gr_f32_high(master[i]), low[i] = gr_f32_low(master[i]);
    gr_bf16 *d_w = device_copy(w, n * 2);
    uint16_t *d_low = device_copy(low, n * 2);
    uint8_t *d_m = device_copy(m, codes), *d_v = device_copy(v, codes);
    float *d_ms = device_copy(m_scale, scales * 4), *d_vs = device_copy(v_scale, scales * 4);
    for (uint32_t step = 1; step <= STEPS; step++) {
        const gr_cu_optim k = {.lr = (float)1e-2,
                               .beta1 = (float)0.9,
                               .beta2 = (float)0.95,
                               .eps = (float)1e-8,
                               .weight_decay = (float)0.1,
                               .correction1 = kind ? 1 : (float)(1 - pow((double)(float)0.9, step)),
                               .correction2 = kind ? 1 : (float)(1 - pow((double)(float)0.95, step)),
                               .grad_scale = 0.7f,
                               .kind = (gr_cu_optim_kind)kind};
        const gr_optim how = {(double)(float)1e-2,
                              (double)(float)0.9,
                              (double)(float)0.95,
                              (double)(float)1e-8,
                              (double)(float)0.1,
                              step,
                              0.7f,
                              kind};
        float *g32 = random_floats(n, 0.1f, 80 + step);
        void *g = as_type(g32, n, grads), *d_g = device_copy(g, n * gr_size(grads));
        const gr_cu_optim_range on = {.w = d_w,
                                      .g = d_g,
                                      .low = d_low,
                                      .m = d_m,
                                      .v = d_v,
                                      .grads = grads,
                                      .n = n,
                                      .m_scale = d_ms,
                                      .v_scale = d_vs,
                                      .chance = step * 77,
                                      .first = 128};
        const gr_optim_range r = {.w = w,
                                  .g = g,
                                  .low = low,
                                  .m = m,
                                  .v = kind == GR_OPTIM_ADAMW ? v : NULL,
                                  .m_scale = m_scale,
                                  .v_scale = v_scale,
                                  .grads = grads == GR_CU_F32 ? GR_F32 : GR_BF16,
                                  .moments = GR_I8,
                                  .chance = {step * 77, 128}};
        gr_cu_optim_step(NULL, &k, &on);
        gr_host_optim_step(&(gr_queue){0}, GR_BF16, &how, true, &r, n);
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaFree(d_g));
        free(g32), free(g);
    }
    uint8_t *got_m = take(name, d_m, codes), *got_v = take(name, d_v, codes);
    float *got_ms = take(name, d_ms, scales * 4), *got_vs = take(name, d_vs, scales * 4);
    uint16_t *got_low = take(name, d_low, n * 2);
    gr_bf16 *got_w = take(name, d_w, n * 2);
    int most = 0;
    const bool few =
        codes_off(got_m, m, codes, &most) + codes_off(got_v, v, codes, &most) <= codes / 2000 + 1;
    errors e = {0};
    for (size_t i = 0; i < n; i++)
        errors_add(&e, gr_f32_join(got_w[i], got_low[i]), gr_f32_join(w[i], low[i]));
    if (kind == GR_OPTIM_ADAMW) {
        report_equal(name, "few codes differ, by one", &(bool){few && most <= 1}, &(bool){true},
                     sizeof(bool));
        report_errors(&e, name, "master", 1e-4);
    } else {
        report_equal(name, "m", got_m, m, codes);
        report_equal(name, "scales", got_ms, m_scale, scales * 4);
        report_equal(name, "w", got_w, w, n * 2);
        report_equal(name, "low", got_low, low, n * 2);
    }
    free(master), free(m_scale), free(v_scale), free(m), free(v), free(low), free(w);
    free(got_m), free(got_v), free(got_ms), free(got_vs), free(got_low), free(got_w);
}

/* Several steps beside the CPU kernel, which is checked against torch. */
static void check_adamw_cpu(void)
{
    enum { N = 100003, STEPS = 5 };
    float *w = random_floats(N, 0.5f, 19), *m = gr_calloc(N, sizeof(*m)), *v = gr_calloc(N, sizeof(*v));
    float *d_w = device_copy(w, N * 4), *d_m = device_copy(m, N * 4), *d_v = device_copy(v, N * 4);
    gr_bf16 *d_half = device_poisoned(N * 2);
    for (int step = 1; step <= STEPS; step++) {
        gr_cu_optim how = adamw_how;
        how.correction1 = 1 - pow(how.beta1, step);
        how.correction2 = 1 - pow(how.beta2, step);
        const gr_optim_consts k = {.keep = (float)(1 - how.lr * how.weight_decay),
                                   .b1 = (float)(1 - how.beta1),
                                   .beta2 = (float)how.beta2,
                                   .b2 = (float)(1 - how.beta2),
                                   .step_size = (float)(how.lr / how.correction1),
                                   .inv_sqrt_bc2 = (float)(1 / sqrt(how.correction2)),
                                   .eps = (float)how.eps,
                                   .grad_scale = how.grad_scale};
        float *g = random_floats(N, 0.1f, 20 + (uint64_t)step), *d_g = device_copy(g, N * 4);
        gr_simd_best()->adamw(&k, w, g, m, v, N);
        gr_cu_optim_step(NULL, &how,
                         &(gr_cu_optim_range){.w = d_half,
                                              .g = d_g,
                                              .master = d_w,
                                              .m = d_m,
                                              .v = d_v,
                                              .grads = GR_CU_F32,
                                              .moments = GR_CU_F32,
                                              .n = N});
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaFree(d_g));
        free(g);
    }
    float *got = take("adamw", d_w, N * 4);
    errors e = {0};
    for (size_t i = 0; i < N; i++) errors_add(&e, got[i], w[i]);
    report_errors(&e, "adamw 5 steps beside the CPU's", "w", 1e-6);
    free(w), free(m), free(v), free(got);
    CUDA(cudaFree(d_m));
    CUDA(cudaFree(d_v));
    CUDA(cudaFree(d_half));
}

static void check_sum_squares(size_t n, gr_cu_dtype type)
{
    char name[96];
    snprintf(name, sizeof(name), "sum_squares n %zu %s", n, type_name(type));
    float *x32 = random_floats(n, 3, 21);
    void *x = as_type(x32, n, type), *d_x = device_copy(x, n * gr_size(type));
    void *ws = device_poisoned(gr_cu_sum_squares_ws());
    double *out = device_poisoned(sizeof(*out)), want = 0;
    gr_cu_sum_squares(NULL, d_x, type, n, out, ws);
    double *got = take(name, out, sizeof(*out));
    check_tail(name, ws, gr_cu_sum_squares_ws());
    for (size_t i = 0; i < n; i++) want += value_at(x, type, i) * value_at(x, type, i);
    errors e = {0};
    errors_add(&e, *got, want);
    report_errors(&e, name, "", 1e-12);
    free(x32), free(x), free(got);
    CUDA(cudaFree(d_x));
    CUDA(cudaFree(ws));
}

/* Of bytes of any length, beside the CPU's; and one bit of them. */
static void check_checksum(size_t bytes)
{
    char name[96];
    snprintf(name, sizeof(name), "checksum of %zu bytes", bytes);
    unsigned char *x = gr_malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++) x[i] = (unsigned char)(i * i * 31 + i / 7);
    uint64_t *parts = device_poisoned(GR_CHECKSUM_PARTS * sizeof(*parts)), want[GR_CHECKSUM_PARTS];
    for (int flipped = 0; flipped < 2; flipped++) {
        if (flipped && bytes) x[bytes / 2] ^= 64;
        void *d_x = device_copy(x, bytes);
        gr_host_checksum(&(gr_queue){0}, x, bytes, want);
        gr_cu_checksum(NULL, d_x, bytes, parts);
        uint64_t *got = take(name, parts, GR_CHECKSUM_PARTS * sizeof(*parts));
        const uint64_t sum = gr_checksum_of(got), host = gr_checksum_of(want);
        report_equal(name, flipped ? "a bit flipped" : "", &sum, &host, sizeof(sum));
        parts = device_poisoned(GR_CHECKSUM_PARTS * sizeof(*parts));
        free(got);
        CUDA(cudaFree(d_x));
    }
    CUDA(cudaFree(parts));
    free(x);
}

static void check_round(size_t n)
{
    char name[96];
    snprintf(name, sizeof(name), "round n %zu", n);
    float *x = random_floats(n, 3, 22);
    const uint32_t special[] = {0x3f808000, 0x3f818000, 0x3f808001, 0x7f800000,
                                0xff800000, 0x80000000, 1,          0x7f7fffff};
    for (size_t i = 0; i < GR_LEN(special) && i < n; i++)
        memcpy(x + n - 1 - i, &special[i], 4); /* ties, infinities */
    float *d_x = device_copy(x, n * 4);
    gr_bf16 *d_y = device_poisoned(n * 2), *want = as_type(x, n, GR_CU_BF16);
    gr_cu_round(NULL, d_x, d_y, n);
    gr_bf16 *y = take(name, d_y, n * 2);
    report_equal(name, "", y, want, n * 2);
    free(x), free(y), free(want);
    CUDA(cudaFree(d_x));
}

static void check_add(size_t n, gr_cu_dtype type)
{
    char name[96];
    snprintf(name, sizeof(name), "add n %zu, %zu bytes each", n, gr_size(type));
    gradient g = gradient_new(n, type, 23), x = gradient_new(n, type, 24);
    float *sum = gr_malloc(n * sizeof(*sum));
    for (size_t i = 0; i < n; i++) sum[i] = (float)gradient_before(&g, i) + (float)gradient_before(&x, i);
    void *want = as_type(sum, n, type);
    gr_cu_add(NULL, g.device, x.device, type, n);
    void *got = gradient_take(name, &g);
    report_equal(name, "", got, want, g.bytes);
    free(sum), free(want), free(got);
    gradient_free(&g);
    gradient_free(&x);
}

/* The CPU's bits: the same products and the same sum, of a master or of weights themselves, and its rounding.
 */
static void check_blend(size_t n, bool mastered)
{
    char name[96];
    snprintf(name, sizeof(name), "blend n %zu%s", n, mastered ? "" : " of weights");
    float *master = gr_malloc(n * sizeof(*master)), *from = gr_malloc(n * sizeof(*from));
    for (size_t i = 0; i < n; i++) {
        master[i] = (float)sin((double)i) * (i % 7 ? 1 : 1e-30f);
        from[i] = (float)cos(3.0 * (double)i);
    }
    gr_bf16 *taken = as_type(from, n, GR_CU_BF16);
    gr_bf16 *begun = as_type(master, n, GR_CU_BF16);
    float *d_master = mastered ? device_copy(master, n * 4) : NULL;
    gr_bf16 *d_from = device_copy(taken, n * 2), *d_to = device_copy(begun, n * 2);
    gr_cu_blend(NULL, d_to, d_master, d_from, 0.999f, (float)(1 - 0.999), n);
    for (size_t i = 0; i < n; i++) {
        const volatile float kept = 0.999f * (mastered ? master[i] : gr_bf16_to_f32(begun[i])),
                             share = (float)(1 - 0.999) * gr_bf16_to_f32(taken[i]);
        master[i] = kept + share;
    }
    gr_bf16 *want = as_type(master, n, GR_CU_BF16), *to = take(name, d_to, n * 2);
    float *got = mastered ? take(name, d_master, n * 4) : NULL;
    if (mastered) report_equal(name, "master", got, master, n * 4);
    report_equal(name, "weights", to, want, n * 2);
    free(master), free(from), free(taken), free(begun), free(want), free(to), free(got);
    CUDA(cudaFree(d_from));
}

/* By a number on the device: to the bit what it is by the same one on the host. */
static void check_scale_by(size_t n, float scale)
{
    char name[96];
    snprintf(name, sizeof(name), "scale_by n %zu", n);
    const gr_bf16 by = bf16_of(scale);
    gr_bf16 *x = random_bf16(n, 2, 31), *d_x = device_copy(x, n * 2), *d_want = device_poisoned(n * 2),
            *d_by = device_copy(&by, sizeof(by));
    gr_cu_scale(NULL, d_x, of_bf16(by), d_want, n);
    gr_cu_scale_by(NULL, d_x, d_by, n);
    gr_bf16 *got = take(name, d_x, n * 2), *want = take(name, d_want, n * 2);
    report_equal(name, "x", got, want, n * 2);
    errors e = {0};
    for (size_t i = 0; i < n; i++)
        errors_add(&e, of_bf16(got[i]), (double)of_bf16(x[i]) * (double)of_bf16(by));
    report_errors(&e, name, "x", HALF);
    free(x), free(got), free(want);
    CUDA(cudaFree(d_by));
}

static void test_flat(void)
{
    static const size_t sizes[] = {1, 3, 2047, 2049, 300007};
    for (int k = 0; k < 8; k++)
        for (size_t i = 0; i < GR_LEN(sizes); i++)
            check_adamw(sizes[i], k & 1 ? GR_CU_BF16 : GR_CU_F32, k & 2 ? GR_CU_BF16 : GR_CU_F32, k & 4);
    for (size_t i = 0; i < GR_LEN(sizes); i++)
        for (int k = 0; k < 16; k++)
            check_one_moment(sizes[i], k & 8 ? GR_OPTIM_LION : GR_OPTIM_SGD, k & 1 ? GR_CU_BF16 : GR_CU_F32,
                             k & 2 ? GR_CU_BF16 : GR_CU_F32, k & 4);
    check_adamw_cpu();
    for (size_t i = 0; i < GR_LEN(sizes); i++)
        for (int k = 0; k < 6; k++)
            check_split(sizes[i], (gr_cu_optim_kind)(k % 3), k < 3 ? GR_CU_F32 : GR_CU_BF16);
    for (size_t i = 0; i < GR_LEN(sizes); i++)
        for (int k = 0; k < 6; k++)
            check_moments8(sizes[i], (gr_optim_kind)(k % 3), k < 3 ? GR_CU_F32 : GR_CU_BF16);
    for (int type = 0; type < 2; type++) {
        check_sum_squares(0, (gr_cu_dtype)type);
        check_sum_squares(1, (gr_cu_dtype)type);
        check_sum_squares(4099, (gr_cu_dtype)type);
        check_sum_squares(9000001, (gr_cu_dtype)type);
    }
    for (size_t i = 0; i < GR_LEN(sizes); i++)
        check_checksum(sizes[i]), check_blend(sizes[i], true), check_blend(sizes[i], false);
    check_checksum(0);
    check_checksum(16);
    check_checksum(9000001);
    check_round(1);
    check_round(4095);
    check_round(100001);
    check_scale_by(8, 1.3f);
    check_scale_by(100008, 0.017f);
    for (int type = 0; type < 2; type++)
        for (size_t i = 0; i < GR_LEN(sizes); i++) {
            check_add(sizes[i], (gr_cu_dtype)type);
            check_add(8 * sizes[i], (gr_cu_dtype)type); /* whole vectors */
        }
}

/* ---- copies of few bytes ---------------------------------------------------------------------------------
 */

/* From page-locked memory to the device and back, each beginning so many bytes past a whole vector. */
static void check_move(size_t bytes, size_t from, size_t there, size_t back)
{
    char name[96];
    unsigned char *host, *device = device_poisoned(bytes + there);
    snprintf(name, sizeof(name), "move %zu bytes, from %zu to %zu to %zu", bytes, from, there, back);
    const size_t room = bytes + 32;
    CUDA(cudaHostAlloc((void **)&host, 2 * room, cudaHostAllocDefault));
    for (size_t i = 0; i < room; i++) host[i] = (unsigned char)(i * 31 + i / 256);
    memset(host + room, 0xee, room);
    gr_cu_move(NULL, device + there, host + from, bytes);
    gr_cu_move(NULL, host + room + back, device + there, bytes);
    check_tail(name, device, bytes + there);
    report_equal(name, "", host + room + back, host + from, bytes);
    const unsigned char around[16] = {0xee, 0xee, 0xee, 0xee, 0xee, 0xee, 0xee, 0xee,
                                      0xee, 0xee, 0xee, 0xee, 0xee, 0xee, 0xee, 0xee};
    report_equal(name, "before", host + room, around, back);
    report_equal(name, "behind", host + room + back + bytes, around, 16);
    CUDA(cudaFree(device));
    CUDA(cudaFreeHost(host));
}

/* Rows out of the middle of a matrix, between columns of another that stay as they are. */
static void check_copy_rows(uint32_t units, uint32_t n, uint32_t to_ld, uint32_t from_ld)
{
    enum { UNIT = GR_CU_COPY_UNIT };
    char name[96];
    snprintf(name, sizeof(name), "copy %u rows of %u units, by %u from %u", n, units, to_ld, from_ld);
    const size_t bytes = (size_t)n * from_ld * UNIT, there = (size_t)n * to_ld * UNIT, at = from_ld - units;
    unsigned char *from = gr_malloc(bytes), *want = memset(gr_malloc(there), 0xff, there);
    for (size_t i = 0; i < bytes; i++) from[i] = (unsigned char)(i * 31 + i / 256);
    for (size_t r = 0; r < n; r++)
        memcpy(want + r * to_ld * UNIT, from + (r * from_ld + at) * UNIT, units * (size_t)UNIT);
    char *d_from = device_copy(from, bytes), *to = device_poisoned(there);
    gr_cu_copy_rows(NULL, to, to_ld, d_from + at * UNIT, from_ld, units, n);
    unsigned char *got = take(name, to, there);
    report_equal(name, "", got, want, there);
    free(from), free(want), free(got);
    CUDA(cudaFree(d_from));
}

static void test_move(void)
{
    static const size_t sizes[] = {1, 4, 15, 16, 4099, 65536, GR_CU_MOVE_MAX};
    for (size_t i = 0; i < GR_LEN(sizes); i++) {
        check_move(sizes[i], 0, 0, 0);
        check_move(sizes[i], 4, 8, 12);
        check_move(sizes[i], 1, 4, 0);
        check_move(sizes[i], 0, 0, 3);
    }
    check_copy_rows(1, 1, 1, 1);
    check_copy_rows(32, 7, 64, 1120);
    check_copy_rows(255, 1031, 256, 257);
    gr_cu_copy_rows(NULL, NULL, 0, NULL, 0, 3, 0);
}

/* ---- captured -------------------------------------------------------------------------------------------
 */

/* What takes most calls of others inside, the sort, in a graph, played twice: grad + 2 sums. */
static void test_capture(void)
{
    enum { T = 20000, V = 500, H = 128 };
    int32_t *ids = ids_of(T, V, COMMON), *d_ids = device_copy(ids, T * sizeof(*ids));
    gr_bf16 *dx = random_bf16((size_t)T * H, 1, 23), *d_dx = device_copy(dx, (size_t)T * H * 2);
    gradient g = gradient_new((size_t)V * H, GR_CU_F32, BEFORE);
    void *ws = device_poisoned(gr_cu_embed_backward_ws(T));
    cudaStream_t st;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamCreate(&st));
    CUDA(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal));
    gr_cu_embed_backward(st, d_ids, d_dx, 1, g.device, GR_CU_F32, T, H, ws);
    CUDA(cudaStreamEndCapture(st, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    gradient_reset(&g);
    for (int k = 0; k < 2; k++) CUDA(cudaGraphLaunch(exec, st));
    CUDA(cudaStreamSynchronize(st));
    void *twice = gradient_take("embed in a graph", &g);
    gradient_reset(&g);
    for (int k = 0; k < 2; k++) gr_cu_embed_backward(st, d_ids, d_dx, 1, g.device, GR_CU_F32, T, H, ws);
    CUDA(cudaStreamSynchronize(st));
    void *want = gradient_take("embed", &g);
    report_equal("embed backward in a graph", "twice", twice, want, g.bytes);
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(st));
    free(ids), free(dx), free(twice), free(want);
    gradient_free(&g);
    CUDA(cudaFree(d_ids));
    CUDA(cudaFree(d_dx));
    CUDA(cudaFree(ws));
}

/* ---- times ----------------------------------------------------------------------------------------------
 */

typedef struct bench {
    uint32_t T, H, V, I;
    gr_cu_heads h;
    gr_bf16 *a, *b, *c, *w;
    float *f[4];
    void *grad, *ws;
    int32_t *ids, *position;
    uint32_t *slot;
    uint64_t n;
    gr_cu_dtype grads, moments;
    bool master, split, eight;
} bench;

static void run_norm(void *arg, int i)
{
    (void)i;
    const bench *k = arg;
    const gr_cu_norm norm = {k->a, NULL, k->H, k->w, 0, k->T, k->H, 1e-6f};
    gr_cu_rmsnorm(NULL, &norm, k->b);
}

static void run_norm_back(void *arg, int i)
{
    (void)i;
    const bench *k = arg;
    const gr_cu_norm norm = {k->a, NULL, k->H, k->w, 0, k->T, k->H, 1e-6f};
    gr_cu_rmsnorm_backward(NULL, &norm, k->b, k->c, k->master, k->grad, GR_CU_F32, k->ws);
}

static void run_rope(void *arg, int i)
{
    (void)i;
    const bench *k = arg;
    gr_cu_qk_rope(NULL, &k->h, k->a, k->w, k->w, k->position, k->b, k->T);
}

static void run_rope_store(void *arg, int i)
{
    (void)i;
    const bench *k = arg;
    gr_cu_qk_rope_store(NULL, &k->h, k->a, k->w, k->w, k->position, k->slot, k->a, k->b, k->T);
}

static void run_rope_back(void *arg, int i)
{
    (void)i;
    const bench *k = arg;
    gr_cu_qk_rope_backward(NULL, &k->h, k->a, k->w, k->w, k->position, k->b, k->grad, k->grad, GR_CU_F32,
                           k->T, k->ws);
}

static void run_column_sums(void *arg, int i)
{
    (void)i;
    const bench *k = arg;
    gr_cu_column_sums(NULL, k->a, k->grad, GR_CU_F32, k->T, k->H, k->ws);
}

static void run_swiglu(void *arg, int i)
{
    (void)i;
    const bench *k = arg;
    gr_cu_swiglu(NULL, k->a, false, k->c, k->T, k->I);
}

static void run_swiglu_back(void *arg, int i)
{
    (void)i;
    const bench *k = arg;
    gr_cu_swiglu_backward(NULL, k->a, k->c, false, k->b, k->c + (size_t)k->T * k->I, k->T, k->I);
}

static void run_embed(void *arg, int i)
{
    (void)i;
    const bench *k = arg;
    gr_cu_embed(NULL, k->c, k->ids, 1, k->a, k->T, k->H);
}

static void run_embed_back(void *arg, int i)
{
    (void)i;
    const bench *k = arg;
    gr_cu_embed_backward(NULL, k->ids, k->a, 1, k->grad, GR_CU_F32, k->T, k->H, k->ws);
}

static void run_adamw(void *arg, int i)
{
    (void)i;
    const bench *k = arg;
    gr_cu_optim_step(NULL, &adamw_how,
                     &(gr_cu_optim_range){.w = k->w,
                                          .g = k->f[1],
                                          .master = k->master ? k->f[0] : NULL,
                                          .low = k->split ? (uint16_t *)k->f[0] : NULL,
                                          .m = k->f[2],
                                          .v = k->f[3],
                                          .grads = k->grads,
                                          .moments = k->moments,
                                          .n = k->n,
                                          .m_scale = k->eight ? k->f[2] + k->n / 2 : NULL,
                                          .v_scale = k->f[3] + k->n / 2});
}

static void run_sum_squares(void *arg, int i)
{
    (void)i;
    const bench *k = arg;
    gr_cu_sum_squares(NULL, k->f[1], k->grads, k->n, k->grad, k->ws);
}

static void run_round(void *arg, int i)
{
    (void)i;
    const bench *k = arg;
    gr_cu_round(NULL, k->f[1], k->w, k->n);
}

static bench bench_new(void)
{
    enum { ELEMS = 1 << 28 };
    bench k = {.ws = device_poisoned(64 << 20), .n = 1 << 27};
    k.a = device_random_bf16(ELEMS, 31);
    k.b = device_random_bf16(ELEMS, 32);
    k.c = device_random_bf16(ELEMS, 33);
    k.w = device_random_bf16(ELEMS, 34);
    k.grad = device_random_bf16(ELEMS, 35);
    k.position = gr_malloc(65536 * sizeof(*k.position));
    for (int t = 0; t < 65536; t++) k.position[t] = t % 4096;
    k.slot = device_copy(k.position, 65536 * sizeof(*k.position));
    int32_t *position = device_copy(k.position, 65536 * sizeof(*k.position)),
            *ids = ids_of(65536, ELEMS / 4096, COMMON); /* rows that c has at every width */
    free(k.position);
    k.position = position;
    k.ids = device_copy(ids, 65536 * sizeof(*ids));
    free(ids);
    float *frequency = random_floats(128, 0.01f, 36);
    k.h.frequency = device_copy(frequency, 128 * sizeof(*frequency));
    k.h.eps = 1e-6f;
    free(frequency);
    return k;
}

static void bench_rows(bench *k)
{
    static const uint32_t widths[] = {1024, 2560, 4096};
    for (size_t i = 0; i < GR_LEN(widths); i++) {
        k->H = widths[i];
        k->T = 65536 / (k->H / 1024);
        const double x = (double)k->T * k->H * 2;
        bench_line("rmsnorm", run_norm, k, 2 * x, "n %u H %u", k->T, k->H);
        for (int add = 0; add < 2; add++) {
            k->master = add;
            bench_line(add ? "rmsnorm backward, add" : "rmsnorm backward", run_norm_back, k, (3 + add) * x,
                       "n %u H %u", k->T, k->H);
        }
        bench_line("embed", run_embed, k, 2 * x, "T %u H %u", k->T, k->H);
        bench_line("column_sums", run_column_sums, k, x, "T %u cols %u", k->T, k->H);
    }
    for (k->T = 16384; k->T <= 65536; k->T *= 4) {
        k->H = 1024;
        bench_line("embed backward (dx alone counted)", run_embed_back, k, (double)k->T * k->H * 2,
                   "T %u H %u", k->T, k->H);
    }
    static const uint32_t inter[] = {3072, 12288};
    for (size_t i = 0; i < GR_LEN(inter); i++) {
        k->I = inter[i];
        k->T = (1u << 26) / k->I;
        const double x = (double)k->T * k->I * 2;
        bench_line("swiglu", run_swiglu, k, 3 * x, "T %u I %u", k->T, k->I);
        bench_line("swiglu backward", run_swiglu_back, k, 6 * x, "T %u I %u", k->T, k->I);
    }
}

static void bench_rope(bench *k)
{
    static const uint32_t heads[][3] = {{16, 8, 128}, {32, 8, 128}, {32, 8, 64}};
    for (size_t i = 0; i < GR_LEN(heads); i++) {
        k->h.heads = heads[i][0], k->h.kv_heads = heads[i][1], k->h.head_dim = heads[i][2];
        const uint32_t qk = (k->h.heads + k->h.kv_heads) * k->h.head_dim, kv = k->h.kv_heads * k->h.head_dim;
        k->T = 32768;
        const double t = k->T;
        bench_line("qk_rope", run_rope, k, 4 * t * (qk + kv), "T %u %u/%u D %u", k->T, k->h.heads,
                   k->h.kv_heads, k->h.head_dim);
        bench_line("qk_rope backward", run_rope_back, k, 6 * t * qk, "T %u %u/%u D %u", k->T, k->h.heads,
                   k->h.kv_heads, k->h.head_dim);
        k->T = 256;
        bench_line("qk_rope store (in cache)", run_rope_store, k, 256.0 * (4 * qk + 2 * kv + 4 * kv),
                   "T %u %u/%u D %u", k->T, k->h.heads, k->h.kv_heads, k->h.head_dim);
    }
}

static void bench_flat(bench *k)
{
    for (int i = 0; i < 4; i++) k->f[i] = device_random_f32(k->n, 41 + (uint64_t)i);
    for (int i = 0; i < 8; i++) {
        k->master = !(i & 4), k->split = false, k->grads = i & 1 ? GR_CU_BF16 : GR_CU_F32,
        k->moments = i & 2 ? GR_CU_BF16 : GR_CU_F32;
        const double each = (k->master ? 10 : 4) + gr_size(k->grads) + 4 * gr_size(k->moments);
        bench_line("adamw", run_adamw, k, each * (double)k->n, "grads %s moments %s%s", type_name(k->grads),
                   type_name(k->moments), k->master ? " master" : "");
    }
    k->split = true;
    for (int i = 0; i < 3; i++) {
        k->grads = GR_CU_BF16, k->moments = i ? GR_CU_BF16 : GR_CU_F32, k->eight = i == 2;
        const double moments = k->eight ? 2 * (1 + 4.0 / GR_MOMENT_BLOCK) : 2.0 * gr_size(k->moments);
        bench_line("adamw", run_adamw, k, (8 + 2 + 2 * moments) * (double)k->n,
                   "grads bf16 moments %s split master", k->eight ? "int8" : type_name(k->moments));
    }
    k->eight = false;
    for (int i = 0; i < 2; i++) {
        k->grads = i ? GR_CU_BF16 : GR_CU_F32;
        bench_line("sum_squares", run_sum_squares, k, (double)k->n * gr_size(k->grads), "%s",
                   type_name(k->grads));
    }
    bench_line("round", run_round, k, (double)k->n * 6, "n %zu", (size_t)k->n);
}

int main(int argc, char **argv)
{
    need_device();
    if (read_options(argc, argv)) {
        bench k = bench_new();
        bench_rows(&k);
        bench_rope(&k);
        bench_flat(&k);
        return 0;
    }
    test_norm();
    test_rope();
    test_rows();
    test_embed();
    test_flat();
    test_move();
    test_capture();
    CUDA(cudaGetLastError());
    printf("%d failed\n", check_failures);
    return check_failures ? 1 : 0;
}
