/* safetensors: lying headers, sets of shards, dtypes, what is written and read again. */
#include "runtime/io/safetensors.h"

#include <signal.h>
#include <sys/resource.h>

#include "runtime/base/half.h"
#include "tests/unit/test.h"
#include "tests/unit/test_folder.h"
#include "runtime/base/files.h"

/* A file of header length n, the header, and data_bytes of zeros. */
static char *file_of(const char *name, uint64_t n, const char *header, size_t header_bytes, size_t data_bytes)
{
    gr_str s = {0};
    gr_str_add(&s, (const char *)&n, sizeof(n));
    gr_str_add(&s, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++) gr_str_putc(&s, 0);
    char *path = in_dir(name);
    assert_int_equal(gr_file_write(path, s.text, s.len, NULL), GR_OK);
    gr_str_release(&s);
    return path;
}

/* Opening path fails with a message that holds text. */
static void assert_refused(const char *path, const char *text)
{
    gr_diag d;
    gr_diag_init(&d);
    gr_safetensors *s = NULL;
    assert_int_not_equal(gr_safetensors_open(&s, path, &d), GR_OK);
    assert_null(s);
    assert_true(d.n_errors > 0);
    char *got = gr_message_format(&d.messages[0]);
    if (!strstr(got, text)) fail_msg("\"%s\" does not hold \"%s\"", got, text);
    free(got);
    gr_diag_release(&d);
}

static gr_safetensors *opened(const char *path)
{
    gr_diag d;
    gr_diag_init(&d);
    gr_safetensors *s = NULL;
    if (gr_safetensors_open(&s, path, &d)) fail_msg("%s", d.messages[0].text);
    gr_diag_release(&d);
    return s;
}

static void test_lying_headers_are_refused_by_name(void **state)
{
    (void)state;
#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
    static const struct {
        const char *header, *text;
        size_t data;
    } table[] = {
        {"{\"a\":" T("F32", "[2]", "[0,8]") "", "not sound JSON", 8},
        {"[]", "not a JSON object", 0},
        {"\xff\xfe", "not sound JSON", 0},
        {"{\"a\xc3\":1}", "not sound JSON", 0},
        {"{\"a\\u0000b\":1}", "not sound JSON", 0},
        {"{\"a\":1}", "'a': its entry is not an object", 0},
        {"{\"a\":{\"shape\":[],\"data_offsets\":[0,4]}}", "no 'dtype'", 4},
        {"{\"a\":{\"dtype\":7,\"shape\":[],\"data_offsets\":[0,4]}}", "no 'dtype'", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", "no 'shape'", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", "data_offsets", 4},
        {"{\"a\":" T("Q4", "[2]", "[0,8]") "}", "'a': unknown dtype 'Q4'", 8},
        {"{\"a\":" T("F32", "{}", "[0,8]") "}", "no 'shape'", 8},
        {"{\"a\":" T("F32", "[-2]", "[0,8]") "}", "a dimension", 8},
        {"{\"a\":" T("F32", "[2.0]", "[0,8]") "}", "a dimension", 8},
        {"{\"a\":" T("F32", "[\"2\"]", "[0,8]") "}", "a dimension", 8},
        {"{\"a\":" T("F32", "[4611686018427387904,4]", "[0,8]") "}", "overflows", 8},
        {"{\"a\":" T("F32", "[4294967296,4294967296]", "[0,0]") "}", "overflows", 0},
        {"{\"a\":" T("F32", "[99999999999999999999]", "[0,8]") "}", "not sound JSON", 8},
        {"{\"a\":" T("F4", "[3]", "[0,1]") "}", "whole bytes", 1},
        {"{\"a\":" T("F32", "[2]", "[0]") "}", "two integers", 8},
        {"{\"a\":" T("F32", "[2]", "[-8,0]") "}", "two integers", 8},
        {"{\"a\":" T("F32", "[2]", "[8,0]") "}", "[8, 0] do not lie", 8},
        {"{\"a\":" T("F32", "[2]", "[8,16]") "}", "[8, 16] do not lie in the file's 8 bytes", 8},
        {"{\"a\":" T("F32", "[2]", "[0,9223372036854775807]") "}", "do not lie", 8},
        {"{\"a\":" T("F32", "[3]", "[0,8]") "}", "hold 8 bytes, but its shape needs 12", 8},
        {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[2,6]") "}", "'b': its bytes overlap",
         6},
        {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[0,4]") "}", "its bytes overlap", 4},
        {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"b\":" T("F32", "[1]", "[8,12]") "}",
         "'b': a hole lies before it", 12},
        {"{\"a\":" T("F32", "[1]", "[4,8]") "}", "'a': a hole lies before it", 8},
        {"{\"a\":" T("F32", "[1]", "[0,4]") "}", "3 bytes at the end", 7},
        {"{\"a\":" T("F32", "[1]", "[0,4]") ",\"a\":" T("F32", "[1]", "[4,8]") "}", "not sound JSON", 8},
        {"{}", "1 bytes at the end", 1},
    };
    for (size_t i = 0; i < GR_LEN(table); i++) {
        size_t n = strlen(table[i].header);
        char *path = file_of("lie.safetensors", n, table[i].header, n, table[i].data);
        assert_refused(path, table[i].text);
        free(path);
    }
}

static void test_lying_lengths_are_refused(void **state)
{
    (void)state;
    const uint64_t lengths[] = {3, 1000, 1ull << 32, 1ull << 63, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < GR_LEN(lengths); i++) {
        char *path = file_of("length.safetensors", lengths[i], "{}", 2, 0);
        assert_refused(path, "header's length");
        free(path);
    }
    char *path = in_dir("short.safetensors");
    assert_int_equal(gr_file_write(path, "1234567", 7, NULL), GR_OK);
    assert_refused(path, "7 bytes are too few");
    free(path);
    assert_refused("/dev/null", "'/dev/null' is a device; a regular file is expected");
    assert_refused("/", "no model.safetensors");
    assert_refused("/nowhere/x.safetensors", "cannot read '/nowhere/x.safetensors'");
}

static void test_deep_nesting_is_refused(void **state)
{
    (void)state;
    gr_str s = {0};
    gr_str_puts(&s, "{\"a\":");
    for (int i = 0; i < 1000000; i++) gr_str_putc(&s, '[');
    char *path = file_of("deep.safetensors", s.len, s.text, s.len, 0);
    assert_refused(path, "not sound JSON");
    free(path);
    gr_str_release(&s);
}

static void test_every_prefix_of_a_file_is_refused(void **state)
{
    (void)state;
    const char *h = "{\"a\":" T("F32", "[2]", "[0,8]") "}";
    char *path = file_of("whole.safetensors", strlen(h), h, strlen(h), 8), *bytes = NULL;
    size_t n = 0;
    assert_int_equal(gr_file_read(path, 0, &bytes, &n, NULL), GR_OK);
    gr_safetensors_free(opened(path));
    for (size_t cut = 0; cut < n; cut++) {
        assert_int_equal(gr_file_write(path, bytes, cut, NULL), GR_OK);
        assert_refused(path, "");
    }
    free(bytes);
    free(path);
}

static void test_empty_tensors_scalars_and_null_metadata_are_sound(void **state)
{
    (void)state;
    const char *h =
        "{\"__metadata__\":null,\"e\":" T("F32", "[0,7]", "[4,4]") ",\"s\":" T("F32", "[]", "[0,4]") "}  ";
    char *path = file_of("empty.safetensors", strlen(h), h, strlen(h), 4);
    gr_safetensors *s = opened(path);
    assert_int_equal(gr_safetensors_count(s), 2);
    assert_string_equal(gr_safetensors_at(s, 0)->name, "e");
    assert_int_equal(gr_safetensors_find(s, "s")->n_dims, 0);
    assert_null(gr_safetensors_find(s, "t"));
    gr_safetensors_free(s);
    free(path);
}

/* Element i of a 5 x 5 Vandermonde matrix: (row + 1) to the power of (column + 1). */
static double vandermonde(int i)
{
    return pow(i / 5 + 1, i % 5 + 1);
}

static void test_published_files_read_as_they_should(void **state)
{
    (void)state;
    need_shared(path, "weights/safetensors_format/vandermonde.safetensors");
    gr_safetensors *s = opened(path);
    float got[25];
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_safetensors_read_f32(s, "F32_vandermonde_5x5", 5, 5, got, &d), GR_OK);
    for (int i = 0; i < 25; i++) assert_close(got[i], vandermonde(i), 0, 0);
    assert_int_equal(gr_safetensors_read_f32(s, "BF16_vandermonde_5x5", 5, 5, got, &d), GR_OK);
    for (int i = 0; i < 25; i++) assert_close(got[i], vandermonde(i), 0, 0x1p-8);
    assert_int_equal(gr_safetensors_read_f32(s, "F64_vandermonde_5x5", 5, 5, got, &d), GR_E_INVALID);
    assert_non_null(strstr(d.messages[0].text, "'F64_vandermonde_5x5' is F64; weights are read from"));
    assert_int_equal(gr_safetensors_read_f32(s, "F32_vandermonde_5x5", 25, 0, got, &d), GR_E_INVALID);
    assert_non_null(strstr(d.messages[1].text, "shape [5, 5], but the model needs [25]"));
    assert_int_equal(gr_safetensors_read_f32(s, "x", 5, 5, got, &d), GR_E_INVALID);
    gr_diag_release(&d);
    gr_safetensors_free(s);
}

static void test_every_dtype_of_a_published_file_is_known(void **state)
{
    (void)state;
    need_shared(path, "weights/safetensors_format/safetensors_fixtures.safetensors");
    gr_safetensors *s = opened(path);
    float got[8];
    assert_int_equal(gr_safetensors_find(s, "BOOL_gradient_8")->dtype, GR_ST_BOOL);
    assert_int_equal(gr_safetensors_find(s, "I64_gradient_8")->bytes, 64);
    assert_int_equal(gr_safetensors_read_f32(s, "F16_repeating_8", 8, 0, got, NULL), GR_OK);
    for (int i = 0; i < 8; i++) assert_close(got[i], i + 1, 0, 0);
    assert_int_equal(gr_safetensors_read_f32(s, "F32_gradient_8", 8, 0, got, NULL), GR_OK);
    for (int i = 0; i < 8; i++) assert_close(got[i], i, 0, 0);
    gr_safetensors_free(s);
}

static void test_a_sharded_set_opens_from_its_folder(void **state)
{
    (void)state;
    need_shared(path, "weights/mlxd_tiny/tiny_qwen3_sharded");
    gr_safetensors *s = opened(path);
    assert_int_equal(gr_safetensors_count(s), 57); /* names in the weight map */
    const gr_st_tensor *t = gr_safetensors_find(s, "lm_head.weight");
    assert_int_equal(t->dtype, GR_ST_U32);
    assert_non_null(strstr(t->file, "model-00001-of-00002"));
    assert_null(gr_safetensors_want(s, "lm_head.weight", 256, 8, NULL));
    gr_safetensors_free(s);
}

static void test_bad_indexes_are_refused(void **state)
{
    (void)state;
    const char *h = "{\"a\":" T("F32", "[2]", "[0,8]") "}";
    char *shard = file_of("shard.safetensors", strlen(h), h, strlen(h), 8), *index = in_dir("m.index.json");
    static const char *const table[][2] = {
        {"{\"weight_map\": {\"a\": \"gone.safetensors\"}}", "gone.safetensors"},
        {"{\"weight_map\": {\"b\": \"shard.safetensors\"}}", "tensor 'b' is not in 'shard.safetensors'"},
        {"{\"weight_map\": {\"a\": \"../shard.safetensors\"}}",
         "'../shard.safetensors' is not the name of a file"},
        {"{\"weight_map\": {\"a\": \"/etc/passwd\"}}", "'/etc/passwd' is not the name"},
        {"{\"weight_map\": {\"a\": \"..\"}}", "'..' is not the name"},
        {"{\"weight_map\": {\"a\": \"\"}}", "'' is not the name"},
        {"{\"weight_map\": {\"a\": 3}}", "is not the name"},
        {"{\"weight_map\": []}", "no object 'weight_map'"},
        {"{}", "no object 'weight_map'"},
        {"{\"weight_map\": {\"a\": \"shard.safetensors\",}}", "m.index.json:1:42: error"},
        {"7", "m.index.json:1:1: error"},
    };
    for (size_t i = 0; i < GR_LEN(table); i++) {
        assert_int_equal(gr_file_write(index, table[i][0], strlen(table[i][0]), NULL), GR_OK);
        assert_refused(index, table[i][1]);
    }
    assert_refused(dir, "no model.safetensors and no model.safetensors.index.json");
    free(index);
    free(shard);
}

static void write_text(const char *name, const char *text)
{
    char *path = in_dir(name);
    assert_int_equal(gr_file_write(path, text, strlen(text), NULL), GR_OK);
    free(path);
}

static void remove_name(const char *name)
{
    char *path = in_dir(name);
    assert_int_equal(gr_path_remove(path, NULL), GR_OK);
    free(path);
}

/* Shards of two writings in one folder, and tensors that are there twice or not named. */
static void test_sets_that_do_not_belong_together_are_refused(void **state)
{
    (void)state;
    const char *a = "{\"a\":" T("F32", "[2]", "[0,8]") "}", *b = "{\"b\":" T("F32", "[2]", "[0,8]") "}";
    const char *ab = "{\"a\":" T("F32", "[2]", "[0,8]") ",\"b\":" T("F32", "[2]", "[8,16]") "}";
    const char *one = "set-00001-of-00002.safetensors", *two = "set-00002-of-00002.safetensors";
    char *index = in_dir("set.safetensors.index.json"), *model = in_dir("both");
    free(file_of(one, strlen(a), a, strlen(a), 8));
    free(file_of(two, strlen(b), b, strlen(b), 8));
    write_text("set.safetensors.index.json", "{\"weight_map\": {\"a\": \"set-00001-of-00002.safetensors\", "
                                             "\"b\": \"set-00002-of-00002.safetensors\"}}");
    gr_safetensors_free(opened(index));

    static const char *const extra[] = {"set-00003-of-00003.safetensors", "set.safetensors"};
    for (size_t i = 0; i < GR_LEN(extra); i++) {
        char *text = gr_printf("'%s' lies beside this index, which does not name it", extra[i]);
        free(file_of(extra[i], strlen(a), a, strlen(a), 8));
        assert_refused(index, text);
        remove_name(extra[i]);
        free(text);
    }
    write_text("set-1.safetensors", ""); /* of another set, or of none */
    write_text("set-00001-of-00002.safetensors.bak", "");
    gr_safetensors_free(opened(index));

    free(file_of(two, strlen(ab), ab, strlen(ab), 16));
    assert_refused(index, "set-00002-of-00002.safetensors: error: tensor 'a' is here and in "
                          "'set-00001-of-00002.safetensors', too");
    free(file_of(two, strlen(b), b, strlen(b), 8));
    remove_name(one);
    assert_refused(index, "set-00001-of-00002.safetensors': No such file");

    free(file_of(one, strlen(ab), ab, strlen(ab),
                 16)); /* one that is not named is left out, and that is said */
    remove_name(two);
    write_text("set.safetensors.index.json", "{\"weight_map\": {\"b\": \"set-00001-of-00002.safetensors\"}}");
    gr_safetensors *s = NULL;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_safetensors_open(&s, index, &d), GR_OK);
    assert_int_equal(gr_safetensors_count(s), 1);
    assert_string_equal(d.messages[0].text,
                        "1 tensor is in the shards, but not named here, and left out, such as 'a'");
    gr_safetensors_free(s);
    gr_diag_release(&d);

    assert_int_equal(gr_dir_make(model, NULL), GR_OK); /* an index and a whole file */
    free(file_of("both/model.safetensors", strlen(a), a, strlen(a), 8));
    write_text("both/model.safetensors.index.json", "{\"weight_map\": {\"a\": \"model.safetensors\"}}");
    gr_safetensors_free(opened(model));
    free(file_of("both/x.safetensors", strlen(a), a, strlen(a), 8));
    write_text("both/model.safetensors.index.json", "{\"weight_map\": {\"a\": \"x.safetensors\"}}");
    assert_refused(model, "'model.safetensors' lies beside this index");
    free(model);
    free(index);
}

static const gr_st_spec specs[] = {{"w.one", 3, 5, false, 0, false, false},
                                   {"w.two", 4, 0, false, 0, false, false},
                                   {"w.three", 2, 2, false, 0, false, false}};
static float values[3][15];

static void write_set(const char *stem, gr_st_dtype dtype, uint64_t shard_bytes)
{
    gr_st_writer *w = NULL;
    uint32_t bits = 0x3f800000;
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < 15; i++) values[t][i] = gr_f32_of_bits(bits += 0x00321fed);
    values[0][3] = -0.0f;
    values[0][4] = INFINITY;
    values[0][5] = gr_f32_of_bits(0x7fc12345);
    values[0][6] = 0x1p-149f;
    assert_int_equal(gr_st_writer_new(&w, dir, stem, dtype, specs, 3, shard_bytes, NULL), GR_OK);
    for (int t = 0; t < 3; t++) assert_int_equal(gr_st_writer_put(w, values[t], NULL), GR_OK);
    assert_int_equal(gr_st_writer_finish(w, NULL), GR_OK);
    gr_st_writer_free(w);
}

static void assert_reads_back(const char *name, bool rounded)
{
    char *path = in_dir(name);
    gr_safetensors *s = opened(path);
    assert_int_equal(gr_safetensors_count(s), 3);
    for (int t = 0; t < 3; t++) {
        float got[15];
        size_t n = specs[t].rows * GR_MAX(specs[t].cols, UINT64_C(1));
        assert_int_equal(gr_safetensors_read_f32(s, specs[t].name, specs[t].rows, specs[t].cols, got, NULL),
                         GR_OK);
        for (size_t i = 0; i < n; i++) {
            float want = rounded ? gr_bf16_to_f32(gr_f32_to_bf16(values[t][i])) : values[t][i];
            assert_memory_equal(&got[i], &want, sizeof(want));
        }
    }
    gr_safetensors_free(s);
    free(path);
}

static void test_what_is_written_reads_back_to_the_bit(void **state)
{
    (void)state;
    write_set("one", GR_ST_F32, 0);
    assert_reads_back("one.safetensors", false);
    write_set("half", GR_ST_BF16, 0);
    assert_reads_back("half.safetensors", true);
    char *aside = in_dir("one.safetensors.tmp");
    assert_false(gr_path_exists(aside));
    free(aside);
}

static void test_large_sets_are_sharded(void **state)
{
    (void)state;
    write_set("big", GR_ST_F32, 64); /* 60, 16 and 16 bytes: the second does not fit beside the first */
    char *first = in_dir("big-00001-of-00002.safetensors"), *third = in_dir("big-00003-of-00002.safetensors");
    assert_true(gr_path_exists(first));
    assert_false(gr_path_exists(third));
    assert_reads_back("big.safetensors.index.json", false);
    free(first);
    free(third);
}

static void test_an_unfinished_file_leaves_nothing(void **state)
{
    (void)state;
    gr_st_writer *w = NULL;
    assert_int_equal(gr_st_writer_new(&w, dir, "never", GR_ST_F32, specs, 3, 0, NULL), GR_OK);
    assert_int_equal(gr_st_writer_put(w, values[0], NULL), GR_OK);
    gr_st_writer_free(w);
    char *path = in_dir("never.safetensors"), *aside = in_dir("never.safetensors.tmp");
    assert_false(gr_path_exists(path));
    assert_false(gr_path_exists(aside));
    free(path);
    free(aside);
    assert_int_equal(gr_st_writer_new(&w, "/nowhere", "x", GR_ST_F32, specs, 3, 0, NULL), GR_E_IO);
}

static void test_a_full_disk_is_named_and_leaves_nothing(void **state)
{
    (void)state;
    static const gr_st_spec big = {"big", 100, 100, false, 0, false, false};
    struct rlimit was, small;
    gr_st_writer *w = NULL;
    gr_diag d;
    gr_diag_init(&d);
    float *x = gr_calloc(10000, sizeof(*x));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = was;
    small.rlim_cur = 10000;
    signal(SIGXFSZ, SIG_IGN); /* so that writing more fails, as on a full disk */
    const gr_st_dtype dtypes[] = {GR_ST_F32, GR_ST_BF16};
    for (size_t i = 0; i < GR_LEN(dtypes); i++) {
        assert_int_equal(gr_st_writer_new(&w, dir, "full", dtypes[i], &big, 1, 0, &d), GR_OK);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        gr_status st = gr_st_writer_put(w, x, &d);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
        assert_int_equal(st, GR_E_IO);
        gr_st_writer_free(w);
    }
    assert_non_null(strstr(d.messages[0].text, "full.safetensors.tmp': File too large"));
    char *aside = in_dir("full.safetensors.tmp");
    assert_false(gr_path_exists(aside));
    free(aside);
    free(x);
    gr_diag_release(&d);
}

static void test_a_file_cut_short_after_opening_is_an_error(void **state)
{
    (void)state;
    write_set("cut", GR_ST_BF16, 0);
    char *path = in_dir("cut.safetensors");
    gr_safetensors *s = opened(path);
    const gr_st_tensor *t = gr_safetensors_find(s, "w.one");
    float got[15];
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(truncate(path, (off_t)(t->offset + t->bytes - 1)), 0);
    assert_int_equal(gr_safetensors_read_f32(s, "w.one", 3, 5, got, &d), GR_E_IO);
    assert_non_null(strstr(d.messages[0].text, "the file ends inside 'w.one'"));
    gr_diag_release(&d);
    gr_safetensors_free(s);
    free(path);
}

static void test_sixteen_bit_floats_convert_as_ieee_says(void **state)
{
    (void)state;
    assert_int_equal(gr_f32_to_bf16(1.0f), 0x3f80);
    assert_int_equal(gr_f32_to_bf16(gr_f32_of_bits(0x3f808000)), 0x3f80); /* tie: to even, down */
    assert_int_equal(gr_f32_to_bf16(gr_f32_of_bits(0x3f818000)), 0x3f82); /* tie: to even, up */
    assert_int_equal(gr_f32_to_bf16(gr_f32_of_bits(0x3f808001)), 0x3f81);
    assert_int_equal(gr_f32_to_bf16(gr_f32_of_bits(0x7f7fffff)), 0x7f80); /* rounds to infinity */
    assert_int_equal(gr_f32_to_bf16(-INFINITY), 0xff80);
    assert_true(isnan(gr_bf16_to_f32(gr_f32_to_bf16(gr_f32_of_bits(0x7f800001)))));
    assert_close(gr_f16_to_f32(0x3555), 0.333251953125, 0, 0);
    assert_close(gr_f16_to_f32(0x7bff), 65504, 0, 0);
    assert_close(gr_f16_to_f32(0x0400), 0x1p-14, 0, 0);
    assert_close(gr_f16_to_f32(0x83ff), -0x3ffp-24, 0, 0);
    assert_true(isinf(gr_f16_to_f32(0xfc00)) && isnan(gr_f16_to_f32(0x7e00)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lying_headers_are_refused_by_name),
        cmocka_unit_test(test_lying_lengths_are_refused),
        cmocka_unit_test(test_deep_nesting_is_refused),
        cmocka_unit_test(test_every_prefix_of_a_file_is_refused),
        cmocka_unit_test(test_empty_tensors_scalars_and_null_metadata_are_sound),
        cmocka_unit_test(test_published_files_read_as_they_should),
        cmocka_unit_test(test_every_dtype_of_a_published_file_is_known),
        cmocka_unit_test(test_a_sharded_set_opens_from_its_folder),
        cmocka_unit_test(test_bad_indexes_are_refused),
        cmocka_unit_test(test_sets_that_do_not_belong_together_are_refused),
        cmocka_unit_test(test_what_is_written_reads_back_to_the_bit),
        cmocka_unit_test(test_large_sets_are_sharded),
        cmocka_unit_test(test_an_unfinished_file_leaves_nothing),
        cmocka_unit_test(test_a_full_disk_is_named_and_leaves_nothing),
        cmocka_unit_test(test_a_file_cut_short_after_opening_is_an_error),
        cmocka_unit_test(test_sixteen_bit_floats_convert_as_ieee_says),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
