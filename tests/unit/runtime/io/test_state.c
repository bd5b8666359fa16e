#include "runtime/io/state.h"

#include "tests/unit/test.h"
#include "runtime/base/files.h"

static char dir[64];
static gr_diag diag;

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/gr_state_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    gr_diag_release(&diag);
    return gr_path_remove(dir, NULL) != GR_OK;
}

static const char *file(void)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/state.json", dir);
    return path;
}

static gr_state_file *written_and_read(gr_state_file *f)
{
    gr_state_file *back = NULL;
    assert_int_equal(gr_state_write(f, file(), &diag), GR_OK);
    gr_state_free(f);
    assert_int_equal(gr_state_read(&back, file(), &diag), GR_OK);
    return back;
}

static gr_state_file *read_text(const char *text)
{
    gr_state_file *f = NULL;
    assert_int_equal(gr_file_write(file(), text, strlen(text), &diag), GR_OK);
    gr_status st = gr_state_read(&f, file(), &diag);
    assert_int_equal(st, f ? GR_OK : GR_E_INVALID);
    return f;
}

static void assert_message(const char *part)
{
    assert_true(diag.n > 0);
    char *text = gr_message_format(&diag.messages[diag.n - 1]);
    if (!strstr(text, part)) fail_msg("'%s' lacks '%s'", text, part);
    free(text);
}

static void test_numbers_come_back_bit_for_bit(void **state)
{
    (void)state;
    const double values[] = {0.1,      -0.0,      1.0 / 3, 5e-324, 1.7976931348623157e308,
                             INFINITY, -INFINITY, 1e-6 * 7};
    char key[16];
    gr_state_file *f = gr_state_new();
    for (size_t i = 0; i < GR_LEN(values); i++) {
        snprintf(key, sizeof(key), "v%zu", i);
        gr_state_set_number(f, "numbers", key, values[i]);
    }
    gr_state_set_number(f, "numbers", "nan", NAN);
    f = written_and_read(f);
    double got;
    for (size_t i = 0; i < GR_LEN(values); i++) {
        snprintf(key, sizeof(key), "v%zu", i);
        assert_int_equal(gr_state_get_number(f, "numbers", key, &got, &diag), GR_OK);
        assert_memory_equal(&got, &values[i], sizeof(got));
    }
    assert_int_equal(gr_state_get_number(f, "numbers", "nan", &got, &diag), GR_OK);
    assert_true(isnan(got));
    gr_state_free(f);
}

static void test_integers_of_64_bits_and_texts_come_back(void **state)
{
    (void)state;
    gr_state_file *f = gr_state_new();
    gr_state_set_u64(f, "data", "position", UINT64_MAX);
    gr_state_set_u64(f, "data", "epoch", 0);
    gr_state_set_text(f, "data", "graph", "a \"b\"\n\xC3\xA9");
    gr_state_set_text(f, "data", "graph", "the last one stays \xC3\xA9\n");
    f = written_and_read(f);
    uint64_t got = 1;
    char *text = NULL;
    assert_int_equal(gr_state_get_u64(f, "data", "position", &got, &diag), GR_OK);
    assert_true(got == UINT64_MAX);
    assert_int_equal(gr_state_get_u64(f, "data", "epoch", &got, &diag), GR_OK);
    assert_true(got == 0);
    assert_int_equal(gr_state_get_text(f, "data", "graph", &text, &diag), GR_OK);
    assert_string_equal(text, "the last one stays \xC3\xA9\n");
    free(text);
    gr_state_free(f);
}

static void test_the_same_values_make_the_same_bytes(void **state)
{
    (void)state;
    char *bytes[2] = {NULL, NULL};
    for (int order = 0; order < 2; order++) {
        gr_state_file *f = gr_state_new();
        gr_state_set_u64(f, order ? "a" : "b", "k", order ? 1 : 2);
        gr_state_set_u64(f, order ? "b" : "a", "k", order ? 2 : 1);
        assert_int_equal(gr_state_write(f, file(), &diag), GR_OK);
        gr_state_free(f);
        size_t n;
        assert_int_equal(gr_file_read(file(), 0, &bytes[order], &n, &diag), GR_OK);
    }
    assert_string_equal(bytes[0], bytes[1]);
    free(bytes[0]);
    free(bytes[1]);
}

static void test_what_is_missing_or_of_another_type_is_named(void **state)
{
    (void)state;
    static const char *const no_integers[] = {"-1", "1.5", "", " 7", "18446744073709551616", "7x"};
    uint64_t n;
    double x;
    char *text = NULL;
    gr_state_file *f = read_text("{\"g\": {\"word\": \"seven\", \"bare\": 7}, \"list\": []}");
    assert_int_equal(gr_state_get_u64(f, "g", "none", &n, &diag), GR_E_INVALID);
    assert_message("'g.none' is missing");
    assert_int_equal(gr_state_get_text(f, "h", "word", &text, &diag), GR_E_INVALID);
    assert_message("'h.word' is missing");
    assert_int_equal(gr_state_get_text(f, "list", "word", &text, &diag), GR_E_INVALID);
    assert_int_equal(gr_state_get_u64(f, "g", "bare", &n, &diag), GR_E_INVALID);
    assert_int_equal(gr_state_get_u64(f, "g", "word", &n, &diag), GR_E_INVALID);
    assert_message("state.json: error: 'g.word' is not an integer");
    assert_int_equal(gr_state_get_number(f, "g", "word", &x, &diag), GR_E_INVALID);
    assert_message("'g.word' is not a number");
    assert_null(text);
    for (size_t i = 0; i < GR_LEN(no_integers); i++) {
        gr_state_set_text(f, "g", "k", no_integers[i]);
        assert_int_equal(gr_state_get_u64(f, "g", "k", &n, &diag), GR_E_INVALID);
    }
    gr_state_free(f);
}

static void test_a_file_that_is_no_object_is_refused_with_its_place(void **state)
{
    (void)state;
    static const char *const broken[] = {"", "[1]", "{\"a\": ", "{\"a\": {}, \"a\": {}}", "\x01"};
    for (size_t i = 0; i < GR_LEN(broken); i++) {
        assert_null(read_text(broken[i]));
        assert_message("state.json:");
    }
    gr_state_file *f = NULL;
    assert_int_equal(gr_state_read(&f, "/nowhere/state.json", &diag), GR_E_IO);
    assert_null(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_numbers_come_back_bit_for_bit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_integers_of_64_bits_and_texts_come_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_same_values_make_the_same_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_missing_or_of_another_type_is_named, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_file_that_is_no_object_is_refused_with_its_place, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
