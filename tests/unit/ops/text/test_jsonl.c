#include "ops/text/jsonl.h"
#include "ops/text/template.h"

#include <sys/stat.h>

#include "tests/unit/test.h"
#include "runtime/base/files.h"

static const char file[] = "test_jsonl.tmp.jsonl"; /* in the working directory of the test */

static void write_bytes(const char *bytes, size_t n)
{
    assert_int_equal(gr_file_write(file, bytes, n, NULL), GR_OK);
}

static void write_text(const char *text)
{
    write_bytes(text, strlen(text));
}

/* The first message of d, and d emptied; the result lives until the next call. */
static const char *message(gr_diag *d)
{
    static char *text;
    free(text);
    assert_true(d->n > 0);
    text = gr_message_format(&d->messages[0]);
    gr_diag_release(d);
    gr_diag_init(d);
    return text;
}

static int remove_file(void **state)
{
    (void)state;
    return gr_path_remove(file, NULL);
}

static void test_rows_are_found_across_blank_lines_and_line_ends(void **state)
{
    (void)state;
    gr_jsonl *s;
    write_text("\xEF\xBB\xBF{\"a\":1}\r\n\n  \t\n{\"a\":2}\n{\"a\":3}");
    assert_int_equal(gr_jsonl_open(&s, file, (gr_loc){0}, NULL), GR_OK);
    assert_int_equal(gr_jsonl_rows(s), 3);
    const unsigned lines[] = {1, 4, 5};
    for (size_t i = 0; i < 3; i++) {
        json_t *row;
        assert_int_equal(gr_jsonl_row(s, i, &row, NULL), GR_OK);
        assert_int_equal(json_integer_value(json_object_get(row, "a")), i + 1);
        assert_int_equal(gr_jsonl_at(s, i).line, lines[i]);
        json_decref(row);
    }
    gr_jsonl_free(s);
}

static void test_lines_longer_than_a_read_are_whole(void **state)
{
    (void)state;
    gr_str text = {0};
    for (int i = 0; i < 3; i++) {
        gr_str_puts(&text, "{\"a\":\"");
        for (int j = 0; j < 100000 * (i + 1); j++) gr_str_putc(&text, (char)('a' + (i + j) % 26));
        gr_str_puts(&text, "\"}\n");
    }
    write_bytes(text.text, text.len);
    gr_jsonl *s;
    assert_int_equal(gr_jsonl_open(&s, file, (gr_loc){0}, NULL), GR_OK);
    assert_int_equal(gr_jsonl_rows(s), 3);
    for (size_t i = 0; i < 3; i++) {
        json_t *row;
        assert_int_equal(gr_jsonl_row(s, i, &row, NULL), GR_OK);
        assert_int_equal(json_string_length(json_object_get(row, "a")), 100000 * (i + 1));
        json_decref(row);
    }
    gr_jsonl_free(s);
    gr_str_release(&text);
}

static void test_a_bad_row_is_named_by_file_and_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *wants;
    } cases[] = {
        {"{}\n{\"a\":}\n", "test_jsonl.tmp.jsonl:2:6: error: not JSON: "},
        {"{}\n[1]\n", "test_jsonl.tmp.jsonl:2:1: error: the row is a list; an object is wanted"},
        {"{}\n\"x\"\n", "test_jsonl.tmp.jsonl:2:1: error: the row is a string; an object is wanted"},
        {"{}\n{\"a\":\"\xff\"}\n", "test_jsonl.tmp.jsonl:2:"},
        {"{}\n{\"a\":1} {}\n", "test_jsonl.tmp.jsonl:2:"},
        {"{}\n{\"a\":1,\"a\":2}\n", "test_jsonl.tmp.jsonl:2:"},
    };
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        gr_jsonl *s;
        json_t *row;
        gr_diag d;
        gr_diag_init(&d);
        write_text(cases[i].text);
        assert_int_equal(gr_jsonl_open(&s, file, (gr_loc){0}, &d), GR_OK);
        assert_int_equal(gr_jsonl_row(s, 0, &row, &d), GR_OK);
        json_decref(row);
        assert_int_equal(gr_jsonl_row(s, 1, &row, &d), GR_E_INVALID);
        assert_memory_equal(message(&d), cases[i].wants, strlen(cases[i].wants));
        gr_jsonl_free(s);
        gr_diag_release(&d);
    }
}

static void test_a_source_without_rows_is_refused(void **state)
{
    (void)state;
    gr_jsonl *s;
    gr_diag d;
    gr_diag_init(&d);
    const gr_loc at = {"g.yaml", 4, 20};
    write_text("\n \n");
    assert_int_equal(gr_jsonl_open(&s, file, at, &d), GR_E_INVALID);
    assert_string_equal(message(&d), "g.yaml:4:20: error: 'test_jsonl.tmp.jsonl' holds no rows");
    assert_int_equal(gr_jsonl_open(&s, "no/such.jsonl", at, &d), GR_E_IO);
    assert_string_equal(message(&d),
                        "g.yaml:4:20: error: cannot read 'no/such.jsonl': No such file or directory");
    assert_int_equal(gr_jsonl_open(&s, "tests", at, &d), GR_E_IO); /* a directory */
    gr_diag_release(&d);
}

static void test_a_pipe_is_refused_at_once(void **state)
{
    (void)state;
    gr_jsonl *s;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_path_remove(file, NULL), GR_OK);
    assert_int_equal(mkfifo(file, 0600), 0);
    assert_int_equal(gr_jsonl_open(&s, file, (gr_loc){"g.yaml", 3, 9}, &d), GR_E_INVALID);
    assert_string_equal(message(&d), "g.yaml:3:9: error: 'test_jsonl.tmp.jsonl' is a pipe, and rows are read "
                                     "again and again: write them to a file, or give the command that prints "
                                     "them");
    gr_diag_release(&d);
    assert_int_equal(gr_path_remove(file, NULL), GR_OK);
}

static void test_a_command_is_a_source(void **state)
{
    (void)state;
    gr_jsonl *s;
    gr_diag d;
    gr_diag_init(&d);
    const gr_loc at = {"g.yaml", 4, 20};
    assert_int_equal(gr_jsonl_command(&s, "for i in 1 2 3; do echo \"{\\\"i\\\": $i}\"; done", at, &d),
                     GR_OK);
    assert_int_equal(gr_jsonl_rows(s), 3);
    json_t *row;
    assert_int_equal(gr_jsonl_row(s, 2, &row, &d), GR_OK);
    assert_int_equal(json_integer_value(json_object_get(row, "i")), 3);
    assert_string_equal(gr_jsonl_at(s, 2).file,
                        "output of 'for i in 1 2 3; do echo \"{\\\"i\\\": $i}\"; done'");
    json_decref(row);
    gr_jsonl_free(s);
    gr_diag_release(&d);
}

static void test_a_command_that_fails_is_quoted(void **state)
{
    (void)state;
    static const struct {
        const char *command;
        gr_status st;
        const char *says, *last; /* the first message, and the last */
    } cases[] = {
        {"echo '{}'; exit 3", GR_E_IO, "g.yaml:4:20: error: 'echo '{}'; exit 3' exited with status 3", NULL},
        {"kill -9 $$", GR_E_IO, "g.yaml:4:20: error: 'kill -9 $$' was killed by signal 9", NULL},
        {"true", GR_E_INVALID, "g.yaml:4:20: error: 'output of 'true'' holds no rows", NULL},
        {"echo well >&2; echo no such table >&2; exit 1", GR_E_IO,
         "g.yaml:4:20: error: 'echo well >&2; echo no such table >&2; exit 1' exited with status 1",
         "it said: no such table"},
        {"echo reading; echo '{}'", GR_E_INVALID,
         "output of 'echo reading; echo '{}'':1:7: error: not JSON: invalid token near 'reading'", NULL},
        {"echo '{}'; echo '[1]'", GR_E_INVALID,
         "output of 'echo '{}'; echo '[1]'':2:1: error: the row is a list; an object is wanted", NULL},
    };
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        gr_jsonl *s;
        gr_diag d;
        gr_diag_init(&d);
        assert_int_equal(gr_jsonl_command(&s, cases[i].command, (gr_loc){"g.yaml", 4, 20}, &d), cases[i].st);
        if (cases[i].last)
            assert_string_equal(d.messages[d.n - 1].text, cases[i].last);
        else
            assert_int_equal(d.n, 1);
        assert_string_equal(message(&d), cases[i].says);
        gr_diag_release(&d);
    }
}

/* Of a thousand lines the last eight are told, of a line without end its end. */
static void test_the_end_of_what_a_command_says_is_kept(void **state)
{
    (void)state;
    gr_jsonl *s;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_jsonl_command(&s, "seq 1000 >&2; exit 1", (gr_loc){0}, &d), GR_E_IO);
    assert_int_equal(d.n, 9);
    assert_string_equal(d.messages[1].text, "it said: 993");
    assert_string_equal(d.messages[8].text, "it said: 1000");
    gr_diag_release(&d);
    gr_diag_init(&d);
    assert_int_equal(gr_jsonl_command(&s, "printf '%9000dend' 0 >&2; exit 1", (gr_loc){0}, &d), GR_E_IO);
    assert_int_equal(d.n, 2);
    assert_int_equal(strlen(d.messages[1].text), strlen("it said: ") + 2000);
    gr_diag_release(&d);
}

static void test_a_file_that_shrinks_is_an_error_not_a_crash(void **state)
{
    (void)state;
    gr_jsonl *s;
    json_t *row;
    write_text("{\"a\":1}\n{\"a\":2}\n");
    assert_int_equal(gr_jsonl_open(&s, file, (gr_loc){0}, NULL), GR_OK);
    assert_int_equal(truncate(file, 10), 0);
    assert_int_equal(gr_jsonl_row(s, 0, &row, NULL), GR_OK);
    json_decref(row);
    assert_int_equal(gr_jsonl_row(s, 1, &row, NULL), GR_E_IO);
    gr_jsonl_free(s);
}

/* Whether written in place or grown: a row is the one that was there, or an error. */
static void test_a_row_that_has_changed_is_an_error_that_names_it(void **state)
{
    (void)state;
    gr_jsonl *s;
    json_t *row;
    gr_diag d;
    gr_diag_init(&d);
    write_text("{\"a\":1}\n{\"a\":2}\n{\"a\":3}\n");
    assert_int_equal(gr_jsonl_open(&s, file, (gr_loc){0}, NULL), GR_OK);
    FILE *f = fopen(file, "r+");
    assert_int_equal(fseek(f, 13, SEEK_SET), 0);
    assert_int_equal(fputc('7', f), '7');
    assert_int_equal(fclose(f), 0);
    for (size_t i = 0; i < 3; i += 2) {
        assert_int_equal(gr_jsonl_row(s, i, &row, NULL), GR_OK);
        json_decref(row);
    }
    assert_int_equal(gr_jsonl_row(s, 1, &row, &d), GR_E_IO);
    assert_string_equal(
        message(&d),
        "test_jsonl.tmp.jsonl:2:1: error: the file has changed while in use: this is not the row it was");
    write_text("{\"a\":8}\n{\"a\":8}\n{\"a\":8}\n"); /* another file of that name: this one is held */
    assert_int_equal(gr_jsonl_row(s, 0, &row, NULL), GR_OK);
    assert_int_equal(json_integer_value(json_object_get(row, "a")), 1);
    json_decref(row);
    gr_jsonl_free(s);
}

/* One pass: lines that a read cuts, blank ones and the last one without its end have the hash of their bytes.
 */
static void test_rows_of_every_length_are_known_again(void **state)
{
    (void)state;
    gr_str text = {0};
    for (int i = 0; i < 40; i++)
        gr_str_printf(&text, "{\"a\": \"%0*d\"}%s", i * i * 17 + 1, i,
                      i == 39 ? ""
                      : i % 7 ? "\n"
                              : "\r\n \n\n");
    write_bytes(text.text, text.len);
    gr_jsonl *s;
    assert_int_equal(gr_jsonl_open(&s, file, (gr_loc){0}, NULL), GR_OK);
    assert_int_equal(gr_jsonl_rows(s), 40);
    for (size_t i = 0; i < 40; i++) {
        json_t *row;
        assert_int_equal(gr_jsonl_row(s, i, &row, NULL), GR_OK);
        json_decref(row);
    }
    const gr_jsonl_content c = gr_jsonl_content_of(s);
    assert_int_equal(c.bytes, text.len);
    assert_true(gr_hash_same(c.hash, gr_hash_bytes(text.text, text.len)));
    assert_string_equal(c.name, file);
    gr_jsonl_free(s);
    gr_str_release(&text);
}

static void test_the_hash_is_of_the_bytes(void **state)
{
    (void)state;
    gr_jsonl *a, *b;
    write_text("{\"a\":1}\n");
    assert_int_equal(gr_jsonl_open(&a, file, (gr_loc){0}, NULL), GR_OK);
    assert_int_equal(gr_jsonl_command(&b, "echo '{\"a\":1}'", (gr_loc){0}, NULL), GR_OK);
    assert_true(gr_jsonl_hash(a) == gr_jsonl_hash(b));
    gr_jsonl_free(b);
    assert_int_equal(gr_jsonl_command(&b, "echo '{\"a\":2}'", (gr_loc){0}, NULL), GR_OK);
    assert_true(gr_jsonl_hash(a) != gr_jsonl_hash(b));
    gr_jsonl_free(a);
    gr_jsonl_free(b);
}

static const char *text_of(const json_t *row, const char *path)
{
    static gr_str s;
    gr_str_release(&s);
    s = (gr_str){0};
    gr_str_puts(&s, "");
    return gr_json_text(row, path, (gr_loc){0}, &s, NULL) ? NULL : s.text;
}

static void test_fields_are_read_as_text(void **state)
{
    (void)state;
    json_t *row =
        json_loads("{\"s\":\"\\u00e9 {x}\", \"i\":-7, \"r\":0.1, \"big\":1e300, \"t\":true, \"z\":null,"
                   " \"o\":{\"p\":{\"q\":\"deep\"}}, \"a.b\":\"dotted\", \"a\":{\"b\":\"nested\"},"
                   " \"m\":[{\"content\":\"hi\"}]}",
                   0, NULL);
    assert_string_equal(text_of(row, "s"), "\xC3\xA9 {x}");
    assert_string_equal(text_of(row, "i"), "-7");
    assert_string_equal(text_of(row, "r"), "0.1");
    assert_string_equal(text_of(row, "big"), "1e+300");
    assert_string_equal(text_of(row, "t"), "true");
    assert_string_equal(text_of(row, "o.p.q"), "deep");
    assert_string_equal(text_of(row, "a.b"), "dotted");
    assert_string_equal(text_of(row, "m.0.content"), "hi");
    static const char *const bad[] = {"z",   "o",  "m",  "q",    "o.p.x", "m.1",
                                      "m.x", "m.", ".s", "o..p", "s.t",   ""};
    for (size_t i = 0; i < GR_LEN(bad); i++) assert_null(text_of(row, bad[i]));
    json_decref(row);
}

static void test_a_missing_field_suggests_a_near_one(void **state)
{
    (void)state;
    json_t *row = json_loads("{\"question\":\"x\", \"list\":[]}", 0, NULL);
    const json_t *v;
    gr_str s = {0};
    gr_diag d;
    gr_diag_init(&d);
    const gr_loc at = {"a.jsonl", 7, 1};
    assert_int_equal(gr_json_field(row, "qestion", at, &v, &d), GR_E_INVALID);
    assert_string_equal(message(&d), "a.jsonl:7:1: error: no field 'qestion'; did you mean 'question'?");
    assert_int_equal(gr_json_text(row, "list", at, &s, &d), GR_E_INVALID);
    assert_string_equal(message(&d), "a.jsonl:7:1: error: field 'list' is a list; text is wanted");
    assert_int_equal(gr_json_field(row, "list", at, &v, &d), GR_OK);
    assert_true(json_is_array(v));
    gr_str_release(&s);
    gr_diag_release(&d);
    json_decref(row);
}

static void test_any_bytes_make_a_string(void **state)
{
    (void)state;
    json_t *v = gr_json_string("a\xff\xC3\xA9\xE2\x82", 6);
    assert_string_equal(json_string_value(v), "a\xEF\xBF\xBD\xC3\xA9\xEF\xBF\xBD\xEF\xBF\xBD");
    json_decref(v);
    v = gr_json_string("a\0b", 3);
    assert_int_equal(json_string_length(v), 3);
    json_decref(v);
}

/* ---- order -------------------------------------------------------------------------------------------- */

static void test_a_plain_order_wraps_into_the_next_epoch(void **state)
{
    (void)state;
    gr_order o;
    gr_cursor c = {0};
    size_t rows[4];
    gr_order_init(&o, 5, false, NULL, 1);
    gr_order_draw(&o, &c, 4, rows);
    gr_order_draw(&o, &c, 4, rows);
    const size_t wants[] = {4, 0, 1, 2};
    assert_memory_equal(rows, wants, sizeof(wants));
    assert_int_equal(c.epoch, 1);
    assert_int_equal(c.position, 3);
    gr_order_release(&o);
}

static void test_each_shuffled_epoch_draws_every_row_once(void **state)
{
    (void)state;
    enum { n = 1000 };
    gr_order o;
    gr_cursor c = {0};
    static size_t rows[2][n];
    gr_order_init(&o, n, true, NULL, 42);
    for (int e = 0; e < 2; e++) {
        bool seen[n] = {0};
        gr_order_draw(&o, &c, n, rows[e]);
        size_t at_home = 0;
        for (size_t i = 0; i < n; i++) {
            assert_false(seen[rows[e][i]]);
            seen[rows[e][i]] = true;
            at_home += rows[e][i] == i;
        }
        assert_true(at_home < 10); /* one is expected; the chance of 10 is 1e-7 */
    }
    assert_memory_not_equal(rows[0], rows[1], sizeof(rows[0]));
    gr_order_release(&o);
}

static void test_a_restored_cursor_draws_what_the_first_run_would_have(void **state)
{
    (void)state;
    gr_order a, b;
    gr_cursor c = {0}, saved = {0};
    size_t want[7], got[7];
    gr_order_init(&a, 10, true, NULL, 3);
    for (int i = 0; i < 5; i++) {
        saved = c;
        gr_order_draw(&a, &c, 7, want);
    }
    gr_order_init(&b, 10, true, NULL, 3);
    gr_order_draw(&b, &saved, 7, got);
    assert_memory_equal(got, want, sizeof(want));
    gr_order_release(&a);
    gr_order_release(&b);
}

static double *keys_of(const double *from, size_t n)
{
    double *keys = gr_malloc(n * sizeof(*keys));
    memcpy(keys, from, n * sizeof(*keys));
    return keys;
}

static void test_a_curriculum_goes_from_the_smallest_key_to_the_largest(void **state)
{
    (void)state;
    static const double key[] = {3, 1, 2, 1, -5, 2, 1};
    const size_t wants[] = {4, 1, 3, 6, 2, 5, 0};
    size_t rows[7], other[7];
    gr_order o;
    gr_cursor c = {0};
    gr_order_init(&o, 7, false, keys_of(key, 7), 1);
    for (int epoch = 0; epoch < 2; epoch++) {
        gr_order_draw(&o, &c, 7, rows);
        assert_memory_equal(rows, wants, sizeof(wants));
    }
    gr_order_release(&o);
    /* shuffled: rows of one key in an order of the epoch's own, found again from the cursor alone */
    bool differ = false;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        gr_order_init(&o, 7, true, keys_of(key, 7), seed);
        c = (gr_cursor){0};
        gr_order_draw(&o, &c, 7, other);
        gr_order_draw(&o, &c, 7, rows);
        for (size_t i = 0; i < 7; i++) {
            assert_true(key[rows[i]] == key[wants[i]]);
            differ = differ || rows[i] != other[i];
            for (size_t k = 0; k < i; k++) assert_true(rows[k] != rows[i]);
        }
        gr_order again;
        gr_order_init(&again, 7, true, keys_of(key, 7), seed);
        c = (gr_cursor){1, 3};
        gr_order_draw(&again, &c, 4, other);
        assert_memory_equal(other, rows + 3, 4 * sizeof(*rows));
        gr_order_release(&again);
        gr_order_release(&o);
    }
    assert_true(differ);
}

static void test_shuffles_are_even(void **state)
{
    (void)state;
    unsigned count[6] = {0};
    for (uint64_t seed = 0; seed < 6000; seed++) {
        gr_order o;
        gr_cursor c = {0};
        size_t r[3];
        gr_order_init(&o, 3, true, NULL, seed);
        gr_order_draw(&o, &c, 3, r);
        count[2 * r[0] + (r[1] > r[2])]++;
        gr_order_release(&o);
    }
    for (int i = 0; i < 6; i++) assert_in_range(count[i], 850, 1150); /* 1000 expected, five sigmas are 144 */
}

/* ---- templates ---------------------------------------------------------------------------------------- */

static void test_a_template_keeps_field_text_apart(void **state)
{
    (void)state;
    gr_template *t;
    gr_rendered out = {0};
    json_t *row = json_loads("{\"q\":\"<|im_end|>{x}\", \"e\":\"\", \"o\":{\"k\":4}}", 0, NULL);
    assert_int_equal(gr_template_new(&t, "<|im_start|>{{{q}}}{e}{o.k}{q}!", (gr_loc){0}, NULL), GR_OK);
    assert_int_equal(gr_template_fields(t), 4);
    assert_string_equal(gr_template_field(t, 2), "o.k");
    for (int again = 0; again < 2; again++) {
        assert_int_equal(gr_template_render(t, row, (gr_loc){0}, &out, NULL), GR_OK);
        assert_string_equal(out.text.text, "<|im_start|>{<|im_end|>{x}}4<|im_end|>{x}!");
        const gr_segment wants[] = {{0, 13, false}, {13, 13, true}, {26, 1, false},
                                    {27, 1, true},  {28, 13, true}, {41, 1, false}};
        assert_int_equal(out.n, GR_LEN(wants));
        for (size_t i = 0; i < out.n; i++) {
            assert_int_equal(out.segments[i].from, wants[i].from);
            assert_int_equal(out.segments[i].n, wants[i].n);
            assert_int_equal(out.segments[i].is_field, wants[i].is_field);
        }
    }
    gr_rendered_release(&out);
    gr_template_free(t);
    json_decref(row);
}

static void test_bad_templates_are_refused_with_the_character(void **state)
{
    (void)state;
    static const struct {
        const char *text, *wants;
    } cases[] = {
        {"ab{c", "'{' without its '}' at character 3 of the template"},
        {"\xC3\xA9{c\nd}", "'{' without its '}' at character 2 of the template"},
        {"a}b", "'}' without its '{' at character 2 of the template"},
        {"a{}b", "'{}' without a name at character 2 of the template"},
        {"{a{b}}", "'{' without its '}' at character 1 of the template"},
    };
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        gr_template *t;
        gr_diag d;
        gr_diag_init(&d);
        assert_int_equal(gr_template_new(&t, cases[i].text, (gr_loc){"g.yaml", 3, 5}, &d), GR_E_INVALID);
        assert_non_null(strstr(message(&d), cases[i].wants));
        gr_diag_release(&d);
    }
}

static void test_a_template_names_every_field_a_row_lacks(void **state)
{
    (void)state;
    gr_template *t;
    gr_diag d;
    gr_diag_init(&d);
    json_t *row = json_loads("{\"question\":\"x\"}", 0, NULL);
    assert_int_equal(gr_template_new(&t, "{question} {qustion} {b}", (gr_loc){"g.yaml", 3, 5}, &d), GR_OK);
    assert_int_equal(gr_template_check(t, row, &d), GR_E_INVALID);
    assert_int_equal(d.n_errors, 2);
    assert_string_equal(message(&d), "g.yaml:3:5: error: no field 'qustion'; did you mean 'question'?");
    gr_rendered out = {0};
    assert_int_equal(gr_template_render(t, row, (gr_loc){"a.jsonl", 9, 1}, &out, &d), GR_E_INVALID);
    assert_string_equal(message(&d), "a.jsonl:9:1: error: no field 'qustion'; did you mean 'question'?");
    gr_rendered_release(&out);
    gr_template_free(t);
    gr_diag_release(&d);
    json_decref(row);
}

static void test_gsm8k_is_read(void **state)
{
    (void)state;
    need_shared(path, "datasets/gsm8k/train.jsonl");
    gr_jsonl *s;
    json_t *row;
    assert_int_equal(gr_jsonl_open(&s, path, (gr_loc){0}, NULL), GR_OK);
    assert_int_equal(gr_jsonl_rows(s), 7473);
    for (size_t i = 0; i < gr_jsonl_rows(s); i++) {
        assert_int_equal(gr_jsonl_row(s, i, &row, NULL), GR_OK);
        assert_non_null(strstr(text_of(row, "answer"), "#### "));
        json_decref(row);
    }
    gr_jsonl_free(s);
}

/* Pieces as tokens cut them: between characters, inside one of three bytes, empty, and bytes that are no
 * character, each of which is one U+FFFD in the JSON string. */
static void test_offsets_count_characters_of_the_json_string(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t ends[6], n;
        const char *wants;
    } cases[] = {
        {"abcd", {1, 3, 4, 4}, 4, "[[0,1],[1,3],[3,4],[4,4]]"},
        {"a\xe2\x82\xac"
         "b",
         {1, 2, 3, 4, 5},
         5,
         "[[0,1],[1,2],[1,2],[1,2],[2,3]]"}, /* a euro sign in three */
        {"a\xe2\x82\xac"
         "b",
         {2, 2, 5},
         3,
         "[[0,2],[2,2],[1,3]]"},
        {"\xff"
         "a\xe2\x82",
         {1, 2, 3, 4},
         4,
         "[[0,1],[1,2],[2,3],[3,4]]"},
        {"", {0, 0}, 2, "[[0,0],[0,0]]"},
    };
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        json_t *got = gr_json_offsets(cases[i].text, strlen(cases[i].text), cases[i].ends, cases[i].n);
        char *text = json_dumps(got, JSON_COMPACT);
        assert_string_equal(text, cases[i].wants);
        free(text);
        json_decref(got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_offsets_count_characters_of_the_json_string),
        cmocka_unit_test(test_rows_are_found_across_blank_lines_and_line_ends),
        cmocka_unit_test(test_lines_longer_than_a_read_are_whole),
        cmocka_unit_test(test_a_bad_row_is_named_by_file_and_line),
        cmocka_unit_test(test_a_source_without_rows_is_refused),
        cmocka_unit_test(test_a_pipe_is_refused_at_once),
        cmocka_unit_test(test_a_command_is_a_source),
        cmocka_unit_test(test_a_command_that_fails_is_quoted),
        cmocka_unit_test(test_the_end_of_what_a_command_says_is_kept),
        cmocka_unit_test(test_a_file_that_shrinks_is_an_error_not_a_crash),
        cmocka_unit_test(test_a_row_that_has_changed_is_an_error_that_names_it),
        cmocka_unit_test(test_rows_of_every_length_are_known_again),
        cmocka_unit_test(test_the_hash_is_of_the_bytes),
        cmocka_unit_test(test_fields_are_read_as_text),
        cmocka_unit_test(test_a_missing_field_suggests_a_near_one),
        cmocka_unit_test(test_any_bytes_make_a_string),
        cmocka_unit_test(test_a_plain_order_wraps_into_the_next_epoch),
        cmocka_unit_test(test_each_shuffled_epoch_draws_every_row_once),
        cmocka_unit_test(test_a_restored_cursor_draws_what_the_first_run_would_have),
        cmocka_unit_test(test_a_curriculum_goes_from_the_smallest_key_to_the_largest),
        cmocka_unit_test(test_shuffles_are_even),
        cmocka_unit_test(test_a_template_keeps_field_text_apart),
        cmocka_unit_test(test_bad_templates_are_refused_with_the_character),
        cmocka_unit_test(test_a_template_names_every_field_a_row_lacks),
        cmocka_unit_test(test_gsm8k_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, remove_file);
}
