/* FP8 on the CPU device, which defines it: roundings, blocks and products against torch's numbers
 * (tests/oracle/fp8_goldens.py); rows and threads that change no bit; what is no number. */
#include <jansson.h>

#include "ops/kernels/cpu/cpu.h"
#include "ops/model/fp8.h"
#include "runtime/base/half.h"
#include "tests/unit/test.h"

enum { T = 3, IN = 300, OUT = 260 };

/* As in the oracle. */
static float *numbers(size_t n, uint32_t seed)
{
    float *x = gr_malloc(n * sizeof(*x));
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = ldexpf((float)(seed >> 8) * 0x1p-23f - 1, (int)(i * 7 % 13) - 6);
    }
    return x;
}

static json_t *goldens(void)
{
    json_t *root = json_load_file("tests/golden/fp8.json", 0, NULL);
    assert_non_null(root);
    return root;
}

static void test_roundings_are_those_of_torch(void **state)
{
    (void)state;
    json_t *root = goldens();
    const json_t *values = json_object_get(root, "values"), *rounded = json_object_get(root, "rounded");
    assert_int_equal(json_array_size(values), 256);
    assert_true(json_array_size(rounded) > 900);
    for (size_t i = 0; i < 256; i++) {
        const json_t *v = json_array_get(values, i);
        const float got = gr_e4m3_to_f32((uint8_t)i);
        if (json_is_null(v) ? !isnan(got) : got != (float)json_number_value(v))
            fail_msg("code %zu is %g", i, (double)got);
        if (!json_is_null(v)) assert_int_equal(gr_f32_to_e4m3(got), i);
    }
    for (size_t i = 0; i < json_array_size(rounded); i++) {
        const json_t *pair = json_array_get(rounded, i);
        const float x = gr_f32_of_bits((uint32_t)json_integer_value(json_array_get(pair, 0)));
        if (gr_f32_to_e4m3(x) != json_integer_value(json_array_get(pair, 1)))
            fail_msg("%.9g becomes %02x", (double)x, gr_f32_to_e4m3(x));
    }
    assert_int_equal(gr_f32_to_e4m3(1e9f), 0x7e);
    assert_int_equal(gr_f32_to_e4m3(-INFINITY), 0xfe);
    assert_int_equal(gr_f32_to_e4m3(NAN) & 0x7f, 0x7f);
    json_decref(root);
}

/* ---- a product ----------------------------------------------------------------------------------------- */

typedef struct problem {
    gr_queue q;
    float *w, *x, *dy;
    uint8_t *codes;
    float *scales;
} problem;

static problem problem_new(unsigned threads)
{
    problem p = {.w = numbers(OUT * IN, 1), .x = numbers(T * IN, 2), .dy = numbers(T * OUT, 4)};
    assert_int_equal(gr_team_new(&p.q.team, threads, NULL), GR_OK);
    for (size_t i = 128; i < 256; i++) memset(p.w + i * IN, 0, 128 * sizeof(float));
    for (size_t i = 0; i < 128; i++)
        for (size_t k = 128; k < 256; k++) p.w[i * IN + k] = ldexpf(p.w[i * IN + k], 60);
    memset(p.x + IN + 128, 0, 128 * sizeof(float));
    p.codes = gr_malloc(OUT * IN);
    p.scales = gr_malloc(gr_fp8_blocks(OUT) * gr_fp8_scale_ld(IN) * sizeof(float));
    return p;
}

static void quantize(problem *p)
{
    gr_kernels_cpu.layer->quantize(&p->q, &(gr_quantize){OUT, IN, p->w, p->codes, p->scales});
}

static void problem_free(problem *p)
{
    gr_team_free(p->q.team);
    free(p->w), free(p->x), free(p->dy), free(p->codes), free(p->scales);
}

/* Of t rows from `first` on: y, or dx. New. */
static float *product(problem *p, uint32_t first, uint32_t t, bool back)
{
    const gr_layer_ops *ops = gr_kernels_cpu.layer;
    const unsigned threads = gr_team_size(p->q.team);
    const gr_product c = {
        .t = t, .in = IN, .out = OUT, .x = p->x + first * IN, .w = p->codes, .scales = p->scales};
    float *y = gr_malloc((uint64_t)t * OUT * 2 * sizeof(*y));
    void *ws =
        gr_malloc(ops->fp8_ws_bytes(t, IN, OUT, threads, back)); /* AddressSanitizer holds it to them */
    if (back)
        ops->product_dx(&p->q, &c, p->dy + first * OUT, y, ws);
    else
        ops->product(&p->q, &c, y, ws);
    free(ws);
    return y;
}

static const char *fnv(const uint8_t *x, size_t n, char text[17])
{
    uint64_t h = 0xcbf29ce484222325;
    for (size_t i = 0; i < n; i++) h = (h ^ x[i]) * 0x100000001b3;
    snprintf(text, 17, "%016llx", (unsigned long long)h);
    return text;
}

/* Sums are fp32: to some units of the largest number among the columns of a block. */
static void compare(const json_t *want, const float *got, uint32_t cols)
{
    assert_int_equal(json_array_size(want), T * cols);
    for (uint32_t t = 0; t < T; t++)
        for (uint32_t c0 = 0; c0 < cols; c0 += GR_FP8_BLOCK) {
            double most = 0;
            const uint32_t end = GR_MIN(c0 + GR_FP8_BLOCK, cols);
            for (uint32_t c = c0; c < end; c++)
                most = fmax(most, fabs(json_number_value(json_array_get(want, t * cols + c))));
            for (uint32_t c = c0; c < end; c++)
                assert_close(got[t * cols + c], json_number_value(json_array_get(want, t * cols + c)),
                             2e-6 * most, 0);
        }
}

static void test_blocks_and_products_are_those_of_torch(void **state)
{
    (void)state;
    json_t *root = goldens();
    problem p = problem_new(2);
    char text[17];
    uint8_t row[T * IN];
    float scales[12];
    quantize(&p);
    const json_t *want = json_object_get(root, "scales");
    for (uint32_t i = 0; i < json_array_size(want); i++)
        assert_true(p.scales[i / 3 * gr_fp8_scale_ld(IN) + i % 3] ==
                    (float)json_number_value(json_array_get(want, i)));
    for (uint32_t i = 0; i < gr_fp8_blocks(OUT); i++) assert_true(p.scales[i * 4 + 3] == 0);
    assert_string_equal(fnv(p.codes, OUT * IN, text), json_string_value(json_object_get(root, "codes")));
    for (uint32_t t = 0; t < T; t++)
        gr_cpu_quantize(&p.q, &(gr_quantize){1, IN, p.x + t * IN, row + t * IN, scales});
    assert_string_equal(fnv(row, T * IN, text), json_string_value(json_object_get(root, "row_codes")));
    float *y = product(&p, 0, T, false), *dx = product(&p, 0, T, true);
    compare(json_object_get(root, "y"), y, OUT);
    compare(json_object_get(root, "dx"), dx, IN);
    free(y), free(dx);
    problem_free(&p);
    json_decref(root);
}

static void test_neither_rows_nor_threads_change_bits(void **state)
{
    (void)state;
    problem p = problem_new(1), q = problem_new(3);
    quantize(&p);
    quantize(&q);
    assert_memory_equal(p.codes, q.codes, OUT * IN);
    for (int back = 0; back < 2; back++) {
        const uint32_t cols = back ? IN : OUT;
        float *all = product(&p, 0, T, back), *threads = product(&q, 0, T, back);
        assert_memory_equal(all, threads, T * cols * sizeof(float));
        for (uint32_t t = 0; t < T; t++) {
            float *one = product(&p, t, 1, back);
            assert_memory_equal(one, all + t * cols, cols * sizeof(float));
            free(one);
        }
        free(all), free(threads);
    }
    problem_free(&p), problem_free(&q);
}

static void test_what_is_no_number_is_not_lost(void **state)
{
    (void)state;
    static const float wrong[] = {NAN, INFINITY, -INFINITY};
    problem p = problem_new(1);
    for (size_t i = 0; i < GR_LEN(wrong); i++) {
        p.w[5 * IN + 290] = wrong[i];
        quantize(&p);
        float *y = product(&p, 0, T, false);
        assert_true(isnan(y[5]) && !isnan(y[OUT - 1]));
        free(y);
        p.w[5 * IN + 290] = 0;
        quantize(&p);
        p.x[IN + 7] = wrong[i];
        y = product(&p, 0, T, false);
        assert_true(!isnan(y[0]) && isnan(y[OUT]) && !isnan(y[2 * OUT]));
        free(y);
        p.x[IN + 7] = 0;
    }
    problem_free(&p);
}

/* ---- gradients of weights -------------------------------------------------------------------------------
 */

enum { TOKENS = 300 }; /* two blocks of tokens, and one that is not full */

typedef struct gradient {
    float *x, *dy, *grad; /* grad: what is there before */
} gradient;

static gradient gradient_new(void)
{
    gradient g = {numbers(TOKENS * IN, 5), numbers(TOKENS * OUT, 6), numbers(OUT * IN, 7)};
    for (size_t i = 0; i < 128; i++) memset(g.x + i * IN + 128, 0, 128 * sizeof(float));
    for (size_t i = 128; i < 256; i++) g.dy[i * OUT + 3] = 0;
    for (size_t i = 0; i < TOKENS; i++) g.dy[i * OUT + 4] = ldexpf(g.dy[i * OUT + 4], -70);
    return g;
}

static void gradient_free(gradient *g)
{
    free(g->x), free(g->dy), free(g->grad);
}

/* By the table, of t tokens. New. */
static float *weight_gradient(const gradient *g, uint32_t t, unsigned threads, bool fp8)
{
    const gr_layer_ops *ops = gr_kernels_cpu.layer;
    const gr_product p = {.t = t, .in = IN, .out = OUT, .x = g->x, .dw_fp8 = fp8};
    float *grad = gr_malloc(OUT * IN * sizeof(*grad));
    gr_queue q = {0};
    assert_int_equal(gr_team_new(&q.team, threads, NULL), GR_OK);
    memcpy(grad, g->grad, OUT * IN * sizeof(*grad));
    void *ws = gr_malloc(fp8 ? ops->fp8_dw_ws_bytes(t, IN, OUT, threads)
                             : ops->product_ws_bytes(t, IN, OUT, threads, true));
    ops->product_dw(&q, &p, g->dy, grad, GR_F32, ws);
    free(ws);
    gr_team_free(q.team);
    return grad;
}

/* x [t, cols] rounded in blocks of 128 rows and `width` columns, value by value. New. */
static double *rounded(const float *x, uint32_t t, uint32_t cols, uint32_t width)
{
    double *to = gr_malloc((size_t)t * cols * sizeof(*to));
    float *most =
        gr_calloc((size_t)gr_fp8_blocks(t) * cols, sizeof(*most)); /* of a block, at its first column */
    for (uint32_t at = 0; at < t * cols; at++) {
        float *m = &most[at / cols / 128 * cols + at % cols / width * width];
        *m = fmaxf(*m, fabsf(x[at]));
    }
    for (uint32_t at = 0; at < t * cols; at++) {
        const gr_fp8_scale s = gr_fp8_scale_of(most[at / cols / 128 * cols + at % cols / width * width]);
        to[at] = (double)gr_e4m3_to_f32(gr_f32_to_e4m3(x[at] * s.inverse)) * (double)s.scale;
    }
    free(most);
    return to;
}

/* dy^T x for element (o, i), of t tokens; and the sum of its terms' sizes. */
static double sum_of(const double *dy, const double *x, uint32_t t, uint32_t o, uint32_t i, double *size)
{
    double sum = 0;
    *size = 0;
    for (uint32_t k = 0; k < t; k++) {
        sum += dy[k * OUT + o] * x[k * IN + i];
        *size += fabs(dy[k * OUT + o] * x[k * IN + i]);
    }
    return sum;
}

static void test_gradients_of_weights_are_sums_of_rounded_values(void **state)
{
    (void)state;
    static const uint32_t tokens[] = {1, 127, 128, TOKENS};
    gradient g = gradient_new();
    for (size_t n = 0; n < GR_LEN(tokens); n++) {
        const uint32_t t = tokens[n], step = t == TOKENS ? 1 : 7;
        double *x = rounded(g.x, t, IN, 128), *dy = rounded(g.dy, t, OUT, 1);
        float *got = weight_gradient(&g, t, 2, true);
        for (uint32_t at = 0; at < OUT * IN; at += step) {
            double size;
            const double want = sum_of(dy, x, t, at / IN, at % IN, &size) + (double)g.grad[at];
            size += fabs((double)g.grad[at]); /* each of the sum's roundings is of no more */
            assert_close(got[at], want, (t + 4) * 0x1p-24 * size, 0);
        }
        free(x), free(dy), free(got);
    }
    gradient_free(&g);
}

/* What is rounded is off, by no more than E4M3's rounding of two factors: 3 bits of mantissa are 1/16 at
 * most, and a root mean square of about 0.026 each. */
static void test_gradients_of_weights_are_near_those_without(void **state)
{
    (void)state;
    gradient g = gradient_new();
    float *got = weight_gradient(&g, TOKENS, 2, true), *want = weight_gradient(&g, TOKENS, 2, false);
    double off = 0, all = 0;
    for (uint32_t i = 0; i < OUT * IN; i++) {
        const double w = (double)want[i] - (double)g.grad[i], d = (double)got[i] - (double)want[i];
        off += d * d, all += w * w;
    }
    assert_true(sqrt(off / all) > 0.01 && sqrt(off / all) < 0.06);
    free(got), free(want);
    gradient_free(&g);
}

static void test_threads_change_no_bits_of_gradients(void **state)
{
    (void)state;
    gradient g = gradient_new();
    float *one = weight_gradient(&g, TOKENS, 1, true), *three = weight_gradient(&g, TOKENS, 3, true);
    assert_memory_equal(one, three, OUT * IN * sizeof(*one));
    free(one), free(three);
    gradient_free(&g);
}

static void test_gradients_of_what_is_no_number_are_none(void **state)
{
    (void)state;
    static const float wrong[] = {NAN, INFINITY, -INFINITY};
    gradient g = gradient_new();
    for (size_t i = 0; i < GR_LEN(wrong); i++) {
        const float was = g.dy[5 * OUT + 9];
        g.dy[5 * OUT + 9] = wrong[i];
        float *got = weight_gradient(&g, TOKENS, 1, true);
        assert_true(isnan(got[9 * IN]) && !isnan(got[8 * IN]) && !isnan(got[10 * IN]));
        free(got);
        g.dy[5 * OUT + 9] = was;
    }
    gradient_free(&g);
}

/* ---- where a layer's tensors lie ------------------------------------------------------------------------
 */

/* A layer of Qwen3-8B in bf16: projections of 25,165,824, 16,777,216, 100,663,296 and 50,331,648 weights, a
 * byte each; 48 x 32, 32 x 32, 192 x 32 and 32 x 96 scales; two norms of 4,096 and two of 128. */
static void test_a_layer_of_8b_has_a_byte_a_weight(void **state)
{
    (void)state;
    gr_layer_desc d = gr_layer_plain(32, 8, 128, 12288);
    d.attention.qk_norm = GR_QK_NORM_HEAD;
    gr_model_shape s = {.hidden = 4096, .layers = 2};
    gr_model_of(&s, &d);
    assert_int_equal(gr_fp8_bucket_bytes(&s, 1, 2),
                     192937984 + 4 * (48 * 32 + 32 * 32 + 192 * 32 + 32 * 96) + 2 * 2 * (4096 + 128));
    gr_fp8_tensor t;
    uint64_t end = 0;
    unsigned projections = 0;
    for (gr_tensor_slot slot = GR_T_MIXER_NORM; slot <= GR_T_MLP_AFTER; slot++) {
        if (!gr_fp8_tensor_at(&s, 2, slot, 2, &t)) continue;
        const bool rounded = t.scales != UINT64_MAX;
        assert_true(t.at == end && t.at % 256 == 0);
        assert_true(!rounded || (t.scales == t.at + t.bytes && t.bytes == (uint64_t)t.rows * t.cols));
        end = t.at + t.bytes + (rounded ? 4 * gr_fp8_blocks(t.rows) * gr_fp8_scale_ld(t.cols) : 0);
        projections += rounded;
    }
    assert_int_equal(projections, 4);
    assert_int_equal(end, gr_fp8_bucket_bytes(&s, 2, 2));
    assert_false(gr_fp8_tensor_at(&s, 2, GR_T_QKV_BIAS, 2, &t));
    assert_null(gr_fp8_unfit(&s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roundings_are_those_of_torch),
        cmocka_unit_test(test_blocks_and_products_are_those_of_torch),
        cmocka_unit_test(test_neither_rows_nor_threads_change_bits),
        cmocka_unit_test(test_what_is_no_number_is_not_lost),
        cmocka_unit_test(test_gradients_of_weights_are_sums_of_rounded_values),
        cmocka_unit_test(test_gradients_of_weights_are_near_those_without),
        cmocka_unit_test(test_threads_change_no_bits_of_gradients),
        cmocka_unit_test(test_gradients_of_what_is_no_number_are_none),
        cmocka_unit_test(test_a_layer_of_8b_has_a_byte_a_weight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
