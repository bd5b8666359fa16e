#include "ops/reward/command_files.h"
#include "runtime/io/inputs.h"

#include <sys/stat.h>

#include "tests/unit/test.h"
#include "tests/unit/test_folder.h"
#include "runtime/base/files.h"

static char *file_of(const char *name, const char *text)
{
    char *path = in_dir(name);
    assert_int_equal(gr_file_write(path, text, strlen(text), NULL), GR_OK);
    return path;
}

static void add(gr_inputs *in, gr_input_kind kind, const char *owner, const char *name, const char *text)
{
    char *path = file_of(name, text);
    assert_int_equal(gr_inputs_add_file(in, kind, owner, name, path, NULL), GR_OK);
    free(path);
}

/* A list of one model's weights and tokenizer, some data, a program and a graph. */
static gr_inputs *list(const char *tokenizer, const char *weights, const char *data, const char *program)
{
    gr_inputs *in = gr_inputs_new();
    add(in, GR_INPUT_PROGRAM, "program", "graphrun", program);
    add(in, GR_INPUT_TOKENIZER, "models.actor", "tokenizer.json", tokenizer);
    if (weights) add(in, GR_INPUT_WEIGHTS, "models.actor", "model.safetensors", weights);
    add(in, GR_INPUT_DATA, "nodes.train", "train.jsonl", data);
    gr_inputs_add(in, (gr_input){.kind = GR_INPUT_GRAPH,
                                 .owner = "graph",
                                 .name = "graph.yaml",
                                 .bytes = strlen(data),
                                 .hashed = true});
    assert_int_equal(gr_inputs_begin(in, NULL, 2, NULL), GR_OK);
    assert_int_equal(gr_inputs_end(in, NULL, NULL), GR_OK);
    return in;
}

typedef struct held {
    gr_diag d;
    gr_status st;
    char *all; /* the messages, a line each */
} held;

static held hold(gr_inputs *now, const gr_inputs *was, bool accept)
{
    held h = {.all = NULL};
    gr_str all = {0};
    json_t *pinned = gr_inputs_json(was);
    gr_diag_init(&h.d);
    h.st = gr_inputs_hold(now, pinned, "manifest.json", accept, &h.d);
    gr_str_puts(&all, "");
    for (size_t i = 0; i < h.d.n; i++) {
        char *text = gr_message_format(&h.d.messages[i]);
        gr_str_printf(&all, "%s\n", text);
        free(text);
    }
    h.all = all.text;
    json_decref(pinned);
    return h;
}

static void release(held *h)
{
    gr_diag_release(&h->d);
    free(h->all);
}

static void assert_says(const held *h, const char *part)
{
    if (!strstr(h->all, part)) fail_msg("\"%s\" does not hold \"%s\"", h->all, part);
}

/* The known hash of no bytes; of others what xxh128sum prints. */
static void test_hashes_are_those_of_xxh128sum(void **state)
{
    (void)state;
    gr_inputs *in = list("", "abc", "x", "p");
    char text[GR_HASH_HEX];
    assert_string_equal(gr_hash_hex(gr_inputs_at(in, 1)->hash, text), "99aa06d3014798d86001c324468d497f");
    assert_string_equal(gr_hash_hex(gr_inputs_at(in, 2)->hash, text), "06b05ab6733a618578af5f94892f3950");
    assert_int_equal(gr_inputs_at(in, 2)->bytes, 3);
    gr_inputs_free(in);
}

static void test_equal_inputs_are_held(void **state)
{
    (void)state;
    gr_inputs *was = list("t", "w", "d", "p"), *now = list("t", "w", "d", "p");
    held h = hold(now, was, false);
    assert_int_equal(h.st, GR_OK);
    assert_string_equal(h.all, "");
    release(&h);
    gr_inputs_free(was);
    gr_inputs_free(now);
}

static void test_each_changed_file_is_named_with_what_it_was_and_is(void **state)
{
    (void)state;
    gr_inputs *was = list("t", "abc", "d", "p"), *now = list("t2", "abd", "d", "p");
    held h = hold(now, was, false);
    assert_int_equal(h.st, GR_E_INVALID);
    assert_int_equal(h.d.n_errors, 2);
    assert_says(&h, "manifest.json: error: 'tokenizer.json' of models.actor is not what the checkpoint was "
                    "made with: it was 1 bytes, xxh3 ");
    assert_says(
        &h,
        "'model.safetensors' of models.actor is not what the checkpoint was made with: it was 3 bytes, xxh3 "
        "06b05ab6733a618578af5f94892f3950 ('");
    assert_says(&h, ", and is 3 bytes, xxh3 ");
    assert_says(&h, "--accept-changes");
    release(&h);
    h = hold(now, was, true);
    assert_int_equal(h.st, GR_OK);
    assert_int_equal(h.d.n_errors, 0);
    assert_says(&h, "manifest.json: warning: 'tokenizer.json' of models.actor is not what");
    assert_says(&h, "warning: 'model.safetensors' of models.actor is not what");
    release(&h);
    gr_inputs_free(was);
    gr_inputs_free(now);
}

static void test_a_file_that_is_gone_or_new_is_named(void **state)
{
    (void)state;
    gr_inputs *was = list("t", "w", "d", "p"), *now = list("t", "w", "d", "p");
    add(was, GR_INPUT_TEMPLATE, "models.actor", "chat_template.jinja", "c");
    add(now, GR_INPUT_CONFIG, "models.actor", "generation_config.json", "{}");
    held h = hold(now, was, false);
    assert_int_equal(h.st, GR_E_INVALID);
    assert_int_equal(h.d.n_errors, 2);
    assert_says(
        &h, "'chat_template.jinja' of models.actor is not what the checkpoint was made with: it was 1 bytes");
    assert_says(&h, ", and is gone");
    assert_says(&h, "'generation_config.json' of models.actor is not what the checkpoint was made with: it "
                    "was not there, and is 2 bytes");
    release(&h);
    gr_inputs_free(was);
    gr_inputs_free(now);
}

/* Who reads nothing of an owner has nothing to say of it; a graph is changed on purpose, a build is said. */
static void test_what_is_no_change_is_not_refused(void **state)
{
    (void)state;
    gr_inputs *was = list("t", "w", "d", "p"), *now = list("t", "w", "d", "q");
    add(was, GR_INPUT_DATA, "nodes.old", "old.jsonl", "o");
    add(now, GR_INPUT_DATA, "nodes.new", "new.jsonl", "n");
    held h = hold(now, was, false);
    assert_int_equal(h.st, GR_OK);
    assert_int_equal(h.d.n, 1);
    assert_says(&h, "manifest.json: warning: this is another build of program: it was 1 bytes");
    release(&h);
    gr_inputs_free(was);
    gr_inputs_free(now);
}

static void test_weights_that_are_not_read_any_more_stay_pinned(void **state)
{
    (void)state;
    gr_inputs *was = list("t", "abc", "d", "p"), *now = list("t", NULL, "d", "p");
    const size_t n = gr_inputs_count(now);
    held h = hold(now, was, false);
    assert_int_equal(h.st, GR_OK);
    assert_int_equal(gr_inputs_count(now), n + 1);
    assert_string_equal(gr_inputs_at(now, n)->name, "model.safetensors");
    assert_true(gr_hash_same(gr_inputs_at(now, n)->hash, gr_inputs_at(was, 2)->hash));
    release(&h);
    gr_inputs_free(was);
    gr_inputs_free(now);
}

static void test_a_list_that_is_none_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{}", "[1]", "[{\"kind\": \"data\"}]",
        "[{\"kind\": \"dates\", \"owner\": \"o\", \"name\": \"n\", \"bytes\": 1}]",
        "[{\"kind\": \"data\", \"owner\": \"o\", \"name\": \"n\", \"bytes\": 1, \"xxh3\": \"12\"}]"};
    for (size_t i = 0; i < GR_LEN(texts); i++) {
        gr_inputs *in = list("t", "w", "d", "p");
        json_t *pinned = json_loads(texts[i], 0, NULL);
        gr_diag d;
        gr_diag_init(&d);
        assert_int_equal(gr_inputs_hold(in, pinned, "m.json", true, &d), GR_E_INVALID);
        assert_int_equal(d.n_errors, 1);
        gr_diag_release(&d);
        json_decref(pinned);
        gr_inputs_free(in);
    }
}

static void test_weights_that_change_while_they_are_loaded_are_refused(void **state)
{
    (void)state;
    gr_inputs *in = gr_inputs_new();
    gr_diag d;
    gr_diag_init(&d);
    add(in, GR_INPUT_WEIGHTS, "models.ref", "ref.safetensors", "weights");
    free(file_of("ref.safetensors", "others"));
    assert_int_equal(gr_inputs_begin(in, NULL, 1, &d), GR_OK);
    assert_int_equal(gr_inputs_end(in, NULL, &d), GR_E_INVALID);
    assert_non_null(strstr(d.messages[0].text, "has changed while it was read"));
    gr_diag_release(&d);
    gr_inputs_free(in);
    in = list("t", "weights", "d", "p");
    gr_diag_init(&d);
    assert_int_equal(gr_inputs_loaded(in, &d), GR_OK);
    free(file_of("model.safetensors", "others"));
    assert_int_equal(gr_inputs_loaded(in, &d), GR_E_INVALID);
    assert_non_null(strstr(d.messages[0].text, "has changed while it was read"));
    gr_diag_release(&d);
    gr_inputs_free(in);
}

static void test_a_file_that_changes_behind_the_run_is_noticed(void **state)
{
    (void)state;
    gr_inputs *in = list("t", "w", "d", "p");
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_inputs_unchanged(in, "models.actor", &d), GR_OK);
    free(file_of("model.safetensors", "W")); /* loaded once, and not asked about */
    free(file_of("train.jsonl", "D"));       /* another owner's */
    assert_int_equal(gr_inputs_unchanged(in, "models.actor", &d), GR_OK);
    free(file_of("tokenizer.json", "T"));
    assert_int_equal(gr_inputs_unchanged(in, "models.actor", &d), GR_E_FAILED);
    assert_non_null(
        strstr(d.messages[0].text,
               "'tokenizer.json' of models.actor has changed while the run uses it: it was 1 bytes, xxh3 "));
    gr_diag_release(&d);
    gr_diag_init(&d);
    char *path = in_dir("tokenizer.json");
    assert_int_equal(gr_path_remove(path, NULL), GR_OK);
    assert_int_equal(gr_inputs_unchanged(in, "models.actor", &d), GR_E_FAILED);
    assert_non_null(strstr(d.messages[0].text, "tokenizer.json"));
    free(path);
    gr_diag_release(&d);
    gr_inputs_free(in);
}

/* ---- files that commands name ---------------------------------------------------------------------------
 */

static void note(void *user, const char *word, const char *path)
{
    gr_str *s = user;
    (void)word;
    gr_str_printf(s, "%s%s", s->len ? " " : "", path);
}

/* In a folder with the files a.py, "b c.txt" and rules.json, and on PATH the script grade. */
static void test_files_of_commands(void **state)
{
    (void)state;
    static const struct {
        const char *command, *files;
    } table[] = {
        {"python3 a.py", "a.py"},
        {"python3 ./a.py --rules=rules.json missing.py", "./a.py rules.json"},
        {"RULES=rules.json exec python3 -u 'a.py' a.py", "rules.json a.py"},
        {"cat \"b c.txt\" b\\ c.txt", "b c.txt"},
        {"cat <rules.json|python3 a.py", "rules.json a.py"},
        {"python3 a.py >rules.json 2>&1", "a.py"},
        {"python3 a.py > rules.json; cat rules.json", "a.py rules.json"},
        {"grade a.py && true", "bin/grade a.py"},
        {"X=1 grade; echo grade", "bin/grade"},
        {"sh -c 'grade \"b c.txt\"' a.py", "bin/grade b c.txt a.py"},
        {"echo 'a.py", "a.py"},
        {"", ""},
        {"python3 .", ""},
    };
    char *was = getcwd(NULL, 0), *path = gr_strdup(getenv("PATH"));
    assert_int_equal(chdir(dir), 0);
    assert_int_equal(mkdir("bin", 0777), 0);
    assert_int_equal(gr_file_write("bin/grade", "#!/bin/sh\n", 10, NULL), GR_OK);
    assert_int_equal(gr_file_write("a.py", "", 0, NULL), GR_OK);
    assert_int_equal(gr_file_write("b c.txt", "", 0, NULL), GR_OK);
    assert_int_equal(gr_file_write("rules.json", "", 0, NULL), GR_OK);
    setenv("PATH", "bin:/usr/bin:/bin", 1);
    for (size_t i = 0; i < GR_LEN(table); i++) {
        gr_str s = {0};
        gr_str_puts(&s, "");
        gr_command_files(table[i].command, note, &s);
        assert_string_equal(s.text, table[i].files);
        gr_str_release(&s);
    }
    setenv("PATH", path, 1);
    assert_int_equal(chdir(was), 0);
    free(path);
    free(was);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hashes_are_those_of_xxh128sum),
        cmocka_unit_test(test_equal_inputs_are_held),
        cmocka_unit_test(test_each_changed_file_is_named_with_what_it_was_and_is),
        cmocka_unit_test(test_a_file_that_is_gone_or_new_is_named),
        cmocka_unit_test(test_what_is_no_change_is_not_refused),
        cmocka_unit_test(test_weights_that_are_not_read_any_more_stay_pinned),
        cmocka_unit_test(test_a_list_that_is_none_is_refused),
        cmocka_unit_test(test_weights_that_change_while_they_are_loaded_are_refused),
        cmocka_unit_test(test_a_file_that_changes_behind_the_run_is_noticed),
        cmocka_unit_test(test_files_of_commands),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
