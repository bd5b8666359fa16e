/* Manifests of checkpoints: what is written is read, hashes do not depend on who wrote, and whatever byte of
 * a folder changes is named. */
#include <stdlib.h>

#include <jansson.h>
#include <xxhash.h>

#include "runtime/io/manifest.h"
#include "runtime/io/safetensors.h"

#include "tests/unit/test.h"
#include "tests/unit/test_folder.h"
#include "runtime/base/files.h"

enum { BIG = 700001, SMALL = 5 }; /* elements: three blocks, the last one short; and one */

static const gr_st_spec specs[] = {{"big", BIG, 0, false, 0, false, false},
                                   {"none", 0, 3, false, 0, false, false},
                                   {"small", SMALL, 1, false, 0, false, false}};
static float big[BIG], small[SMALL];

static void fill(void)
{
    for (size_t i = 0; i < BIG; i++) big[i] = (float)i * 0.5f;
    for (size_t i = 0; i < SMALL; i++) small[i] = -(float)i;
}

/* DIR/NAME with a model/model.safetensors and a state.json; caller frees its path. */
static char *make_checkpoint(const char *name)
{
    char *path = in_dir(name), *model = gr_printf("%s/model", path),
         *state = gr_printf("%s/state.json", path);
    gr_st_writer *w = NULL;
    assert_int_equal(gr_dir_make(model, NULL), GR_OK);
    assert_int_equal(gr_st_writer_new(&w, model, "model", GR_ST_F32, specs, GR_LEN(specs), 0, NULL), GR_OK);
    assert_int_equal(gr_st_writer_put(w, big, NULL), GR_OK);
    assert_int_equal(gr_st_writer_put(w, small, NULL), GR_OK); /* no elements */
    assert_int_equal(gr_st_writer_put(w, small, NULL), GR_OK);
    assert_int_equal(gr_st_writer_finish(w, NULL), GR_OK);
    gr_st_writer_free(w);
    assert_int_equal(gr_file_write(state, "{\"run\": 1}\n", 11, NULL), GR_OK);
    free(state);
    free(model);
    return path;
}

static gr_seal *empty_seal(void)
{
    gr_seal *s = gr_seal_new();
    for (size_t i = 0; i < GR_LEN(specs); i++)
        gr_seal_add(s, specs[i].name, specs[i].rows * (specs[i].cols ? specs[i].cols : 1) * sizeof(float));
    return s;
}

static gr_manifest *sealed(const char *path, const gr_manifest_head *head, gr_sealed_file *files, size_t n)
{
    gr_manifest *m = NULL;
    gr_diag d;
    gr_diag_init(&d);
    if (gr_manifest_write(head, path, files, n, NULL, NULL, &d)) fail_msg("%s", d.messages[0].text);
    assert_int_equal(gr_manifest_read(&m, path, &d), GR_OK);
    assert_non_null(m);
    gr_diag_release(&d);
    return m;
}

static void test_what_a_manifest_says_is_read_back(void **state)
{
    (void)state;
    fill();
    char *path = make_checkpoint("said");
    gr_manifest *none;
    assert_int_equal(gr_manifest_read(&none, path, NULL), GR_OK);
    assert_null(none);
    json_t *inputs = json_pack("{s:s}", "data/train.jsonl", "0123");
    gr_manifest_head head = {
        .step = 6, .has_previous = true, .previous_step = 4, .machine = "cpu, here", .inputs = inputs};
    assert_int_equal(gr_run_id_new(&head.run, NULL), GR_OK);
    head.previous = gr_hash_bytes("before", 6);
    gr_manifest *m = sealed(path, &head, NULL, 0);
    const gr_manifest_head got = gr_manifest_says(m);
    assert_memory_equal(&got.run, &head.run, sizeof(head.run));
    assert_memory_equal(&got.previous, &head.previous, sizeof(head.previous));
    assert_int_equal(got.step, 6);
    assert_int_equal(got.previous_step, 4);
    assert_true(got.has_previous);
    assert_string_equal(got.machine, "cpu, here");
    assert_true(json_equal(gr_manifest_inputs(m), inputs));
    assert_int_equal(gr_manifest_verify(m, NULL, NULL), GR_OK);
    gr_manifest_free(m);
    json_decref(inputs);
    free(path);
}

/* As the header says: of one block the plain hash, of several that of their hashes. */
static void test_hashes_are_those_that_are_documented(void **state)
{
    (void)state;
    fill();
    char *path = make_checkpoint("documented"), hex[GR_HASH_HEX];
    gr_manifest *m = sealed(path, &(gr_manifest_head){.step = 1}, NULL, 0);
    const gr_seal *s = gr_manifest_seal(m, "model/model.safetensors");
    assert_non_null(s);
    assert_null(gr_manifest_seal(m, "model/optimizer.safetensors"));
    XXH128_canonical_t c, blocks[3];
    XXH128_canonicalFromHash(&c, XXH3_128bits(small, sizeof(small)));
    gr_hash is = gr_seal_tensor_hash(s, gr_seal_find(s, "small"));
    assert_memory_equal(&is, &c, sizeof(c));
    const char *at = (const char *)big;
    for (size_t b = 0; b < 3; b++) {
        const size_t first = b << 20, n = GR_MIN(sizeof(big) - first, (size_t)1 << 20);
        XXH128_canonicalFromHash(&blocks[b], XXH3_128bits(at + first, n));
    }
    XXH128_canonicalFromHash(&c, XXH3_128bits(blocks, sizeof(blocks)));
    is = gr_seal_tensor_hash(s, gr_seal_find(s, "big"));
    assert_memory_equal(&is, &c, sizeof(c));
    /* the hash of no bytes, from xxhash's own tests */
    assert_string_equal(gr_hash_hex(gr_hash_bytes("", 0), hex), "99aa06d3014798d86001c324468d497f");
    is = gr_seal_tensor_hash(s, gr_seal_find(s, "none"));
    assert_string_equal(gr_hash_hex(is, hex), "99aa06d3014798d86001c324468d497f");
    gr_manifest_free(m);
    free(path);
}

static void put(gr_seal *s, size_t tensor, const float *data, uint64_t first, uint64_t n)
{
    gr_sealing work;
    gr_sealing_begin(&work, s, tensor, first * sizeof(float), n * sizeof(float), data + first);
    while (gr_sealing_one(&work)) {
    }
}

static void test_a_hash_does_not_depend_on_the_parts_that_were_written(void **state)
{
    (void)state;
    fill();
    char *path = make_checkpoint("parts"), *what = NULL;
    gr_manifest *read = sealed(path, &(gr_manifest_head){.step = 1}, NULL, 0);
    for (uint64_t part = 1; part <= 6; part++) {
        gr_seal *s = empty_seal();
        gr_sealed_file file = {"model/model.safetensors", s};
        for (uint64_t i = 0; i < part; i++) /* blocks that an end cuts are read from the file */
            put(s, 0, big, BIG * i / part, BIG * (i + 1) / part - BIG * i / part);
        put(s, 2, small, 0, SMALL);
        gr_manifest *m = sealed(path, &(gr_manifest_head){.step = 1}, &file, 1);
        assert_true(gr_manifest_same_tensors(m, read, &what));
        assert_true(gr_hash_same(gr_manifest_own(m), gr_manifest_own(read)));
        gr_manifest_free(m);
        gr_seal_free(s);
    }
    gr_manifest_free(read);
    free(path);
}

static void test_a_tensor_that_differs_is_named(void **state)
{
    (void)state;
    fill();
    char *a = make_checkpoint("a"), *what = NULL;
    big[BIG - 1] += 1;
    char *b = make_checkpoint("b");
    gr_manifest *x = sealed(a, &(gr_manifest_head){.step = 1}, NULL, 0),
                *y = sealed(b, &(gr_manifest_head){.step = 1}, NULL, 0);
    assert_false(gr_manifest_same_tensors(x, y, &what));
    assert_string_equal(what, "model/model.safetensors, tensor 'big'");
    free(what);
    gr_manifest_free(x);
    gr_manifest_free(y);
    free(a);
    free(b);
}

/* ---- changed ------------------------------------------------------------------------------------------- */

static void flip(const char *path, long at, int bit)
{
    FILE *f = fopen(path, "r+b");
    fseek(f, at, SEEK_SET);
    const int c = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(c ^ 1 << bit, f);
    fclose(f);
}

static long size_of(const char *path)
{
    FILE *f = fopen(path, "rb");
    fseek(f, 0, SEEK_END);
    const long n = ftell(f);
    fclose(f);
    return n;
}

/* The message about a folder whose files are not all as they were; NULL: nothing was found. */
static char *found(const char *path)
{
    gr_diag d;
    gr_diag_init(&d);
    gr_manifest *m = NULL;
    gr_status st = gr_manifest_read(&m, path, &d);
    if (!st && m) st = gr_manifest_verify(m, NULL, &d);
    char *text = st ? gr_message_format(&d.messages[0]) : NULL;
    gr_manifest_free(m);
    gr_diag_release(&d);
    return text;
}

static void test_every_bit_of_every_file_counts(void **state)
{
    (void)state;
    static const char *const files[] = {"state.json", "manifest.json", "model/model.safetensors"};
    fill();
    char *path = make_checkpoint("flipped");
    gr_manifest_free(sealed(path, &(gr_manifest_head){.step = 1}, NULL, 0));
    for (size_t i = 0; i < GR_LEN(files); i++) {
        char *file = gr_printf("%s/%s", path, files[i]);
        const long n = size_of(file), stride = GR_MAX(n / 150, 1);
        for (long at = 0; at < n; at += stride) {
            flip(file, at, (int)(at % 8));
            char *text = found(path);
            if (!text || !strstr(text, files[i])) fail_msg("%s, byte %ld: %s", file, at, text);
            free(text);
            flip(file, at, (int)(at % 8));
        }
        free(file);
    }
    assert_null(found(path));
    free(path);
}

static void test_a_file_that_is_cut_or_gone_is_named_with_its_size(void **state)
{
    (void)state;
    fill();
    char *path = make_checkpoint("cut"), *file = gr_printf("%s/state.json", path), *text;
    gr_manifest_free(sealed(path, &(gr_manifest_head){.step = 1}, NULL, 0));
    assert_int_equal(truncate(file, 3), 0);
    text = found(path);
    assert_non_null(strstr(text, "state.json: error: the file has 3 bytes, the manifest says 11"));
    free(text);
    assert_int_equal(unlink(file), 0);
    text = found(path);
    assert_non_null(strstr(text, "state.json: error: the file is not there; the manifest names it"));
    free(text);
    free(file);
    free(path);
}

/* What is no manifest of ours is refused, however it is sealed. */
static void test_what_is_no_manifest_is_refused(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{",
        "{\"version\": 2",
        "{\"version\": 1, \"block_bytes\": 1048576",
        "{\"version\": 1, \"block_bytes\": 7",
        "{\"version\": 1, \"block_bytes\": 1048576, \"run\": \"0123456789abcdef0123456789abcdef\", \"step\": "
        "-1, "
        "\"previous\": null, \"files\": []",
        "{\"version\": 1, \"block_bytes\": 1048576, \"run\": \"0123456789abcdef0123456789abcdef\", \"step\": "
        "1, "
        "\"previous\": null, \"files\": [{\"name\": \"../x\", \"bytes\": 1, \"xxh3\": "
        "\"0123456789abcdef0123456789abcdef\"}]",
        "{\"version\": 1, \"block_bytes\": 1048576, \"run\": \"0123456789abcdef0123456789abcdef\", \"step\": "
        "1, "
        "\"previous\": null, \"files\": [{\"name\": \"x.safetensors\", \"bytes\": 1, \"xxh3\": "
        "\"0123456789abcdef0123456789abcdef\", \"header\": \"0123456789abcdef0123456789abcdef\", "
        "\"tensors\": "
        "[{\"name\": \"t\", \"bytes\": 9223372036854775807, \"xxh3\": "
        "\"0123456789abcdef0123456789abcdef\"}]}]",
    };
    char *path = in_dir("none"), *file = gr_printf("%s/manifest.json", path), hex[GR_HASH_HEX];
    assert_int_equal(gr_dir_make(path, NULL), GR_OK);
    for (size_t i = 0; i < GR_LEN(bodies); i++) {
        gr_hash_hex(gr_hash_bytes(bodies[i], strlen(bodies[i])), hex);
        char *text = gr_printf("%s,\n \"sealed\": \"%s\"\n}\n", bodies[i], hex);
        gr_manifest *m;
        assert_int_equal(gr_file_write(file, text, strlen(text), NULL), GR_OK);
        assert_int_equal(gr_manifest_read(&m, path, NULL), GR_E_INVALID);
        free(text);
    }
    free(file);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_a_manifest_says_is_read_back),
        cmocka_unit_test(test_hashes_are_those_that_are_documented),
        cmocka_unit_test(test_a_hash_does_not_depend_on_the_parts_that_were_written),
        cmocka_unit_test(test_a_tensor_that_differs_is_named),
        cmocka_unit_test(test_every_bit_of_every_file_counts),
        cmocka_unit_test(test_a_file_that_is_cut_or_gone_is_named_with_its_size),
        cmocka_unit_test(test_what_is_no_manifest_is_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
