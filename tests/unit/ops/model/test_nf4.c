/* Matrices in NF4: codes, scales and weights of bitsandbytes (tests/oracle/nf4_goldens.py); a layer's bucket;
 * threads that change no bit; what is no number. */
#include <jansson.h>
#include <string.h>

#include "ops/model/nf4.h"
#include "tests/unit/test.h"

/* As in the oracle. */
static float *numbers(uint64_t n, uint32_t seed)
{
    float *x = gr_malloc(n * sizeof(*x));
    for (uint64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int k = 0; k < 4; k++) {
            seed = seed * 1664525u + 1013904223u;
            sum += (float)(seed >> 8) * 0x1p-23f - 1;
        }
        x[i] = ldexpf(sum, (int)(i / 640 % 5) - 6);
    }
    return x;
}

static uint64_t fnv(const void *at, uint64_t n)
{
    const uint8_t *b = at;
    uint64_t h = 0xcbf29ce484222325;
    for (uint64_t i = 0; i < n; i++) h = (h ^ b[i]) * 0x100000001b3;
    return h;
}

static void assert_sum(const json_t *c, const char *key, const void *at, uint64_t n)
{
    char text[32];
    snprintf(text, sizeof(text), "%016llx", (unsigned long long)fnv(at, n));
    assert_string_equal(text, json_string_value(json_object_get(c, key)));
}

static void assert_small(const json_t *c, const gr_nf4 *m, uint64_t blocks)
{
    const char *hex = json_string_value(json_object_get(c, "small"));
    assert_int_equal(strlen(hex), 2 * blocks);
    for (uint64_t i = 0; i < blocks; i++) {
        unsigned want;
        sscanf(hex + 2 * i, "%2x", &want);
        if (m->small[i] != want)
            fail_msg("scale %llu is %02x, not %02x", (unsigned long long)i, m->small[i], want);
    }
}

static void check_case(const json_t *c, gr_team *team)
{
    const uint64_t n = (uint64_t)json_integer_value(json_object_get(c, "n")), blocks = (n + 63) / 64;
    uint64_t bytes;
    gr_nf4_at(NULL, n, &bytes);
    void *at = aligned_alloc(64, bytes);
    const gr_nf4 m = gr_nf4_at(at, n, &bytes);
    float *w = numbers(n, (uint32_t)json_integer_value(json_object_get(c, "seed")));
    const json_t *opened = json_object_get(c, "opened"), *scales = json_object_get(c, "scales");
    gr_nf4_close(team, &m, w);
    assert_sum(c, "codes_sum", m.codes, (n + 1) / 2);
    assert_small(c, &m, blocks);
    assert_true(*m.mean == (float)json_real_value(json_object_get(c, "mean")));
    for (size_t i = 0; i < json_array_size(scales); i++)
        assert_true(m.scales[i] == (float)json_real_value(json_array_get(scales, i)));
    gr_nf4_open(team, &m, w);
    for (size_t i = 0; i < json_array_size(opened); i++)
        assert_true(w[i] == (float)json_real_value(json_array_get(opened, i)));
    assert_sum(c, "opened_sum", w, n * sizeof(*w));
    free(w);
    free(at);
}

static void test_codes_scales_and_weights_are_those_of_bitsandbytes(void **state)
{
    (void)state;
    json_t *root = json_load_file("tests/golden/nf4.json", 0, NULL);
    gr_team *two;
    assert_int_equal(gr_team_new(&two, 2, NULL), GR_OK);
    assert_int_equal(json_array_size(root), 4);
    for (size_t i = 0; i < json_array_size(root); i++) {
        check_case(json_array_get(root, i), NULL);
        check_case(json_array_get(root, i), two);
    }
    gr_team_free(two);
    json_decref(root);
}

/* A weight is off by at most half of the widest step of its block, and by what its scale lost. */
static void test_a_bucket_has_matrices_in_4_bits_and_the_rest_as_it_was(void **state)
{
    (void)state;
    gr_diag d;
    gr_model_shape s;
    gr_diag_init(&d);
    assert_int_equal(gr_model_shape_read(&s, "tests/golden/model/qwen2", &d), GR_OK);
    const uint64_t n = gr_bucket_elems(&s, 1), bytes = gr_nf4_bucket_bytes(&s, 1);
    float *w = numbers(n, 7), *got = gr_malloc(n * sizeof(*got));
    void *closed = aligned_alloc(64, bytes);
    gr_tensor t[GR_BUCKET_TENSORS_MAX];
    uint64_t matrices = 0;
    gr_nf4_close_bucket(NULL, &s, 1, w, closed);
    memset(got, 0xff, n * sizeof(*got));
    gr_nf4_open_bucket(NULL, &s, 1, closed, got);
    for (size_t k = gr_bucket_ranges(&s, 1, t); k--;) {
        const uint64_t many = (uint64_t)t[k].rows * GR_MAX(t[k].cols, 1u);
        const bool matrix = t[k].cols > 0;
        matrices += matrix;
        if (!matrix) assert_memory_equal(got + t[k].offset, w + t[k].offset, many * sizeof(*w));
        for (uint64_t i = 0; i < many; i++)
            assert_true(fabsf(got[t[k].offset + i] - w[t[k].offset + i]) <= 4 * 0.17f * 0.25f);
    }
    assert_int_equal(matrices, 7);
    assert_true(bytes < n);                                         /* fp32 is four times as many */
    for (uint64_t i = 0; i < n; i++) assert_true(isfinite(got[i])); /* between tensors, too */
    free(closed), free(got), free(w);
    gr_diag_release(&d);
}

static void test_zeros_stay_and_no_number_shows(void **state)
{
    (void)state;
    uint64_t bytes;
    _Alignas(64) char at[1024];
    const gr_nf4 m = gr_nf4_at(at, 130, &bytes);
    float w[130] = {0};
    assert_true(bytes <= sizeof(at));
    gr_nf4_close(NULL, &m, w);
    gr_nf4_open(NULL, &m, w);
    for (size_t i = 0; i < 130; i++) assert_true(w[i] == 0);
    w[100] = NAN;
    gr_nf4_close(NULL, &m, w);
    gr_nf4_open(NULL, &m, w);
    for (size_t i = 0; i < 130; i++) assert_true(isnan(w[i]));
    memset(w, 0, sizeof(w));
    w[3] = INFINITY;
    gr_nf4_close(NULL, &m, w);
    gr_nf4_open(NULL, &m, w);
    assert_true(isnan(w[3]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes_scales_and_weights_are_those_of_bitsandbytes),
        cmocka_unit_test(test_a_bucket_has_matrices_in_4_bits_and_the_rest_as_it_was),
        cmocka_unit_test(test_zeros_stay_and_no_number_shows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
