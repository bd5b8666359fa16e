/* Token ids against published vectors and Hugging Face's `tokenizers` (tests/oracle/tokenizer_golden.py), the
 * way back, and files that must be refused. */
#include "ops/text/tokenizer.h"
#include "tests/unit/test.h"
#include "runtime/base/files.h"

#include <jansson.h>
#include <pthread.h>

static gr_tokenizer *load_file(const char *path)
{
    gr_diag d;
    gr_diag_init(&d);
    gr_tokenizer *t = NULL;
    char *text;
    size_t n;
    assert_int_equal(gr_file_read(path, 0, &text, &n, &d), GR_OK);
    if (gr_tokenizer_parse(&t, text, n, NULL, 0, &d) != GR_OK) fail_msg("%s: %s", path, d.messages[0].text);
    free(text);
    gr_diag_release(&d);
    return t;
}

static void encode(const gr_tokenizer *t, const char *text, size_t n, unsigned flags, gr_ids *ids)
{
    ids->n = 0;
    gr_diag d;
    gr_diag_init(&d);
    if (gr_tokenizer_encode(t, text, n, flags, ids, &d) != GR_OK) fail_msg("%s", d.messages[0].text);
    gr_diag_release(&d);
}

static void assert_ids(const gr_ids *got, const json_t *want, const char *what)
{
    bool same = got->n == json_array_size(want);
    for (size_t i = 0; same && i < got->n; i++)
        same = got->id[i] == json_integer_value(json_array_get(want, i));
    if (same) return;
    gr_str s = {0};
    for (size_t i = 0; i < got->n; i++) gr_str_printf(&s, " %d", got->id[i]);
    char *w = json_dumps(want, JSON_COMPACT);
    fail_msg("'%s': got%s, want %s", what, s.text ? s.text : "", w);
}

static void assert_round_trip(const gr_tokenizer *t, const char *text, size_t n, unsigned flags, gr_ids *ids)
{
    gr_str back = {0};
    encode(t, text, n, flags, ids);
    gr_tokenizer_decode(t, ids->id, ids->n, false, &back);
    assert_int_equal(back.len, n);
    if (n) assert_memory_equal(back.text, text, n);
    gr_str_release(&back);
}

static void check_golden(const char *name, const char *file)
{
    json_error_t e;
    json_t *golden = json_load_file("tests/golden/tokenizer.json", JSON_ALLOW_NUL, &e), *s;
    assert_non_null(golden);
    gr_tokenizer *t = load_file(file);
    json_t *strings = json_object_get(golden, "strings");
    size_t i;
    assert_true(json_array_size(strings) > 90);
    for (unsigned flags = 0; flags <= GR_ENCODE_SPECIAL; flags++) {
        json_t *want = json_object_get(json_object_get(golden, name), flags ? "special" : "plain");
        json_array_foreach(strings, i, s)
        {
            gr_ids ids = {0};
            gr_status st =
                gr_tokenizer_encode(t, json_string_value(s), json_string_length(s), flags, &ids, NULL);
            if (json_is_null(json_array_get(want, i)))
                assert_int_equal(st, GR_E_INVALID);
            else
                assert_ids(&ids, json_array_get(want, i), json_string_value(s));
            free(ids.id);
        }
    }
    gr_tokenizer_free(t);
    json_decref(golden);
}

static void test_qwen3_ids_are_those_of_tokenizers(void **state)
{
    (void)state;
    need_shared(path, "tokenizers/qwen3/tokenizer.json");
    check_golden("qwen3", path);
}

static void test_qwen2_ids_are_those_of_tokenizers(void **state)
{
    (void)state;
    need_shared(path, "tokenizers/qwen2/tokenizer.json");
    check_golden("qwen2", path);
}

static void test_minimind_ids_are_those_of_tokenizers(void **state)
{
    (void)state;
    need_shared(path, "tokenizers/minimind-6400/tokenizer.json");
    check_golden("minimind-6400", path);
}

static void test_gpt2_ids_are_those_of_tokenizers(void **state)
{
    (void)state;
    need_shared(path, "tokenizers/gpt2/tokenizer.with_type.json");
    check_golden("gpt2", path);
}

static void test_a_vocabulary_without_merges_or_some_bytes(void **state)
{
    (void)state;
    need_shared(path, "tokenizers/torchtitan-tiny/tokenizer.json");
    check_golden("torchtitan-tiny", path);
}

/* llama.cpp: texts between separator lines, and one line of ids a text. */
static void check_llama_cpp(const char *tokenizer, const char *vectors)
{
    char *path = gr_printf("tokenizer_vectors/llama.cpp/ggml-vocab-%s.gguf", vectors), *file, *inp, *out;
    const char *names[2] = {gr_printf("%s.inp", path), gr_printf("%s.out", path)};
    size_t n;
    gr_tokenizer *t = load_file(tokenizer);
    need_shared(inp_path, names[0]);
    file = gr_strdup(inp_path);
    assert_int_equal(gr_file_read(file, 0, &inp, &n, NULL), GR_OK);
    assert_non_null(shared_path(names[1]));
    assert_int_equal(gr_file_read(shared_path(names[1]), 0, &out, &n, NULL), GR_OK);
    const char separator[] = "\n__ggml_vocab_test__\n";
    gr_ids ids = {0};
    size_t cases = 0;
    for (char *text = inp, *line = out, *end; (end = strstr(text, separator));
         text = end + strlen(separator)) {
        json_t *want = json_array();
        char *stop = strchr(line, '\n');
        assert_non_null(stop);
        for (char *next; strtol(line, &next, 10), next != line && next <= stop; line = next)
            json_array_append_new(want, json_integer(strtol(line, NULL, 10)));
        *end = '\0';
        encode(t, text, (size_t)(end - text), 0, &ids);
        assert_ids(&ids, want, text);
        json_decref(want);
        line = stop + 1;
        cases++;
    }
    assert_true(cases >= 46);
    free(ids.id);
    free(inp), free(out), free(file), free(path), free((char *)names[0]), free((char *)names[1]);
    gr_tokenizer_free(t);
}

static void test_llama_cpp_vectors_of_gpt2(void **state)
{
    (void)state;
    need_shared(path, "tokenizers/gpt2/tokenizer.json");
    check_llama_cpp(path, "gpt-2");
}

static void test_llama_cpp_vectors_of_qwen2(void **state)
{
    (void)state;
    need_shared(path, "tokenizers/qwen2/tokenizer.json");
    check_llama_cpp(path, "qwen2");
}

/* Call fn for each line of a JSON-lines file. */
static size_t each_line(const char *path, void (*fn)(const gr_tokenizer *, json_t *, gr_ids *),
                        const gr_tokenizer *t)
{
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0, n = 0;
    gr_ids ids = {0};
    assert_non_null(f);
    while (getline(&line, &cap, f) > 0) {
        json_t *j = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_non_null(j);
        fn(t, j, &ids);
        json_decref(j);
        n++;
    }
    free(ids.id);
    free(line);
    fclose(f);
    return n;
}

static void check_transformers_js(const gr_tokenizer *t, json_t *j, gr_ids *ids)
{
    const json_t *text = json_object_get(j, "text");
    encode(t, json_string_value(text), json_string_length(text), GR_ENCODE_SPECIAL, ids);
    assert_ids(ids, json_object_get(j, "ids"), json_string_value(text));
}

static void test_transformers_js_vectors_of_gpt2(void **state)
{
    (void)state;
    need_shared(path, "tokenizers/gpt2/tokenizer.json");
    gr_tokenizer *t = load_file(path);
    need_shared(lines, "tokenizer_vectors/transformers.js/gpt2.jsonl");
    assert_int_equal(each_line(lines, check_transformers_js, t), 52);
    gr_tokenizer_free(t);
}

static void check_gsm8k(const gr_tokenizer *t, json_t *j, gr_ids *ids)
{
    static const char *const keys[] = {"question", "answer"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *s = json_object_get(j, keys[i]);
        assert_round_trip(t, json_string_value(s), json_string_length(s), 0, ids);
    }
}

static void test_decoding_gives_back_the_bytes_of_gsm8k(void **state)
{
    (void)state;
    need_shared(path, "tokenizers/qwen3/tokenizer.json");
    gr_tokenizer *t = load_file(path);
    need_shared(train, "datasets/gsm8k/train.jsonl");
    assert_true(each_line(train, check_gsm8k, t) +
                    each_line(shared_path("datasets/gsm8k/test.jsonl"), check_gsm8k, t) >
                8000);
    gr_tokenizer_free(t);
}

static void test_decoding_gives_back_any_bytes(void **state)
{
    (void)state;
    need_shared(path, "tokenizers/minimind-6400/tokenizer.json"); /* has no NFC */
    gr_tokenizer *t = load_file(path);
    gr_ids ids = {0};
    for (uint32_t round = 0; round < 3000; round++) {
        char text[64];
        size_t n = 0;
        for (uint32_t i = 0; i < 16; i++) {
            uint32_t r[4], counter[4] = {round, i};
            gr_philox(1, 2, counter, r);
            for (uint32_t k = 0; k < 1 + r[1] % 3;
                 k++) /* random bytes, or of a range that makes valid pairs */
                text[n++] = (char)(r[0] % 3 == 0   ? r[2] >> 8 * k
                                   : r[0] % 3 == 1 ? 0x20 + r[3] % 0x60
                                                   : 0xc3 - 0x20 * k);
        }
        assert_round_trip(t, text, n, round % 2 ? GR_ENCODE_SPECIAL : 0, &ids);
    }
    free(ids.id);
    gr_tokenizer_free(t);
}

static void test_a_long_run_without_a_break_is_not_slow(void **state)
{
    (void)state;
    need_shared(path, "tokenizers/minimind-6400/tokenizer.json");
    gr_tokenizer *t = load_file(path);
    size_t n = 1 << 20;
    char *text = gr_malloc(n);
    gr_ids ids = {0};
    for (int fill = 0; fill < 2; fill++) {
        memset(text, fill ? ' ' : 'a', n);
        assert_round_trip(t, text, n, 0, &ids);
    }
    free(ids.id);
    free(text);
    gr_tokenizer_free(t);
}

static void *encode_in_thread(void *tokenizer)
{
    static const char text[] = "It's 12 o'clock:  \u00e9\u0301 <|im_end|> <think>\n\n";
    gr_ids *ids = gr_calloc(1, sizeof(*ids));
    for (int i = 0; i < 200; i++) encode(tokenizer, text, strlen(text), i % 2 ? 0 : GR_ENCODE_SPECIAL, ids);
    return ids;
}

static void test_threads_share_a_tokenizer(void **state)
{
    (void)state;
    need_shared(path, "tokenizers/minimind-6400/tokenizer.json");
    gr_tokenizer *t = load_file(path);
    pthread_t threads[4];
    gr_ids *first = NULL;
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_in_thread, t), 0);
    for (size_t i = 0; i < 4; i++) {
        void *got;
        assert_int_equal(pthread_join(threads[i], &got), 0);
        gr_ids *ids = got;
        if (!first) {
            first = ids;
            continue;
        }
        assert_int_equal(ids->n, first->n);
        assert_memory_equal(ids->id, first->id, first->n * sizeof(*first->id));
        free(ids->id);
        free(ids);
    }
    free(first->id);
    free(first);
    gr_tokenizer_free(t);
}

/* ---- small files made here ---------------------------------------------------------------------------- */

#define BYTE_LEVEL                                                                                 \
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":" \
    "\"ByteLevel\"}"
#define TINY(vocab, merges, rest) /* rest: further keys, "" for none */ \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{" vocab "},\"merges\":[" merges "]}," BYTE_LEVEL rest "}"
#define ABC "\"a\":0,\"b\":1,\"c\":2,\"\u0120\":3,\"ab\":4,\"bc\":5,\"abc\":6"

static gr_tokenizer *parse(const char *json, const char *config)
{
    gr_diag d;
    gr_diag_init(&d);
    gr_tokenizer *t = NULL;
    gr_status st =
        gr_tokenizer_parse(&t, json, json ? strlen(json) : 0, config, config ? strlen(config) : 0, &d);
    if (st != GR_OK) fail_msg("%s", d.messages[0].text);
    gr_diag_release(&d);
    return t;
}

static void assert_text(const gr_tokenizer *t, const char *text, unsigned flags, const char *want)
{
    gr_ids ids = {0};
    json_t *j = json_loads(want, 0, NULL);
    encode(t, text, strlen(text), flags, &ids);
    assert_ids(&ids, j, text);
    json_decref(j);
    free(ids.id);
}

static void test_merges_go_by_rank_then_from_the_left(void **state)
{
    (void)state;
    gr_tokenizer *t = parse(TINY(ABC, "\"b c\",\"a b\"", ""), NULL);
    assert_text(t, "abc", 0, "[0,5]"); /* bc has the lower rank, and a + bc is no merge */
    assert_text(t, "abab", 0, "[4,4]");
    gr_tokenizer_free(t);
    t = parse(TINY(ABC, "[\"a\",\"b\"],[\"ab\",\"c\"]", ""), NULL);
    assert_text(t, "abcab c", 0, "[6,4,3,2]");
    gr_tokenizer_free(t);
}

static void test_ignore_merges_takes_whole_words_first(void **state)
{
    (void)state;
    gr_tokenizer *t = parse(
        "{\"model\":{\"ignore_merges\":true,\"vocab\":{" ABC "},\"merges\":[\"b c\"]}," BYTE_LEVEL "}", NULL);
    assert_text(t, "abc abc", 0, "[6,3,0,5]"); /* ' abc' is no token: merged as usual */
    gr_tokenizer_free(t);
}

static void test_added_tokens_match_as_flagged(void **state)
{
    (void)state;
    gr_tokenizer *t =
        parse(TINY(ABC, "",
                   ",\"added_tokens\":["
                   "{\"id\":7,\"content\":\"<s>\",\"special\":true},"
                   "{\"id\":8,\"content\":\"<s>a\",\"special\":false},"
                   "{\"id\":9,\"content\":\"cc\",\"single_word\":true},"
                   "{\"id\":10,\"content\":\"<m>\",\"special\":true,\"lstrip\":true,\"rstrip\":true}]"),
              NULL);
    assert_text(t, "b<s>b", GR_ENCODE_SPECIAL, "[1,7,1]");
    assert_text(t, "b<s>a", GR_ENCODE_SPECIAL, "[1,8]"); /* the longest */
    assert_text(t, "cc acc cc", 0, "[9,3,0,2,2,3,9]");
    assert_text(t, "a <m>  b", GR_ENCODE_SPECIAL, "[0,10,1]");
    gr_ids ids = {0};
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_tokenizer_encode(t, "a<s>", 4, 0, &ids, &d),
                     GR_E_INVALID); /* as text, '<' has no token */
    assert_string_equal(d.messages[0].text, "the tokenizer has no token for byte 0x3c");
    gr_diag_release(&d);
    free(ids.id);
    assert_int_equal(gr_tokenizer_id(t, "<s>", 3), 7);
    assert_int_equal(gr_tokenizer_id(t, " ", 1), 3);
    assert_int_equal(gr_tokenizer_id(t, "zz", 2), -1);
    assert_true(gr_tokenizer_is_special(t, 7));
    assert_false(gr_tokenizer_is_special(t, 8));
    const int32_t all[] = {0, 7, 1, 99, -1};
    gr_str s = {0};
    gr_tokenizer_decode(t, all, 5, true, &s);
    assert_string_equal(s.text, "ab");
    gr_str_release(&s);
    gr_tokenizer_free(t);
}

static void test_a_special_token_that_touches_a_field_is_text(void **state)
{
    (void)state;
    gr_tokenizer *t = parse(TINY("\"<\":0,\"s\":1,\">\":2,\"s>\":3", "\"s >\"",
                                 ",\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"special\":true}]"),
                            NULL);
    const gr_text_range fields[] = {{3, 6}, {8, 9}};
    gr_ids ids = {0};
    assert_int_equal(
        gr_tokenizer_encode_fields(t, "<s><s><s><s>", 12, fields, 2, GR_ENCODE_SPECIAL, &ids, NULL), GR_OK);
    json_t *want = json_loads("[4, 0,1,2, 0,1,2, 4]", 0, NULL);
    assert_ids(&ids, want, "<s><s><s><s>");
    json_decref(want);
    free(ids.id);
    gr_tokenizer_free(t);
}

static void test_split_behaviours(void **state)
{
    (void)state;
    static const struct {
        const char *behavior, *ids;
    } cases[] = {
        /* 'b' splits "abbc"; merges ab, bb, bc, abb, bbc show which pieces stood together */
        {"\"Removed\"", "[0,2]"},
        {"\"Isolated\"", "[0,1,1,2]"},
        {"\"MergedWithPrevious\"", "[3,1,2]"},
        {"\"MergedWithNext\"", "[0,1,5]"},
        {"\"Contiguous\"", "[0,4,2]"},
        {"\"Removed\",\"invert\":true", "[1,1]"},
    };
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        char *json = gr_printf("{\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"bb\":4,\"bc\":5},"
                               "\"merges\":[\"a b\",\"b b\",\"b c\"]},\"decoder\":{\"type\":\"ByteLevel\"},"
                               "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
                               "{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":%s},"
                               "{\"type\":\"ByteLevel\",\"use_regex\":false}]}}",
                               cases[i].behavior);
        gr_tokenizer *t = parse(json, NULL);
        assert_text(t, "abbc", 0, cases[i].ids);
        gr_tokenizer_free(t);
        free(json);
    }
}

static void test_the_frame_adds_what_the_post_processor_says(void **state)
{
    (void)state;
    gr_tokenizer *t = parse(
        TINY(ABC, "",
             ",\"added_tokens\":[{\"id\":7,\"content\":\"<s>\",\"special\":true}],"
             "\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},"
             "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},"
             "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\","
             "\"ids\":[7],\"tokens\":[\"<s>\"]}}}]}"),
        "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"c\"},\"pad_token\":null}");
    assert_text(t, "ab", GR_ENCODE_FRAME, "[7,0,1]");
    assert_text(t, "ab", 0, "[0,1]");
    assert_int_equal(gr_tokenizer_role(t, GR_TOKEN_BOS), 7);
    assert_int_equal(gr_tokenizer_role(t, GR_TOKEN_EOS), 2);
    assert_int_equal(gr_tokenizer_role(t, GR_TOKEN_PAD), -1);
    gr_tokenizer_free(t);
}

static void test_characters_have_an_id_each(void **state)
{
    (void)state;
    gr_tokenizer *t = parse(NULL, "{\"char_ords\":[48,49,44,228]}");
    assert_int_equal(gr_tokenizer_size(t), 8);
    assert_text(t, "0,1\u00e4", 0, "[4,6,5,7]");
    assert_text(t, "0S?", 0, "[4,3,3]"); /* S is special, ? has no id: both unknown */
    assert_text(t, "0S", GR_ENCODE_SPECIAL, "[4,0]");
    assert_int_equal(gr_tokenizer_role(t, GR_TOKEN_EOS), 1);
    assert_int_equal(gr_tokenizer_role(t, GR_TOKEN_BOS), -1);
    gr_tokenizer_free(t);
}

/* tests/oracle/tokenizer_tiny.py: SentencePiece's BPE in the forms of Llama-2, Mistral, Gemma and Phi-3, and
 * added tokens beside GPT-2's alphabet. */
static void check_tiny(const json_t *one, const char *name)
{
    json_t *file = json_object_get(one, "file"), *item;
    gr_tokenizer *t = NULL;
    gr_diag d;
    gr_diag_init(&d);
    if (gr_tokenizer_parse(&t, json_string_value(file), json_string_length(file), NULL, 0, &d))
        fail_msg("%s: %s", name, gr_message_format(&d.messages[0]));
    size_t i;
    json_array_foreach(json_object_get(one, "cases"), i, item)
    {
        const json_t *text = json_array_get(item, 0);
        unsigned flags = (json_is_true(json_array_get(item, 1)) ? GR_ENCODE_SPECIAL : 0) |
                         (json_is_true(json_array_get(item, 2)) ? GR_ENCODE_FRAME : 0);
        gr_ids ids = {0};
        assert_int_equal(
            gr_tokenizer_encode(t, json_string_value(text), json_string_length(text), flags, &ids, &d),
            GR_OK);
        assert_ids(&ids, json_array_get(item, 3), json_string_value(text));
        for (size_t skip = 0; skip < 2; skip++) {
            const json_t *want = json_array_get(item, 4 + skip);
            gr_str back = {0};
            gr_tokenizer_decode(t, ids.id, ids.n, skip, &back);
            assert_int_equal(back.len, json_string_length(want));
            if (back.len) assert_memory_equal(back.text, json_string_value(want), back.len);
            gr_str_release(&back);
        }
        free(ids.id);
    }
    assert_true(i > 15);
    gr_tokenizer_free(t);
    gr_diag_release(&d);
}

static void test_pieces_and_raw_added_tokens_equal_tokenizers(void **state)
{
    (void)state;
    json_t *golden = json_load_file("tests/golden/tokenizer_tiny.json", JSON_ALLOW_NUL, NULL), *one;
    const char *name;
    assert_int_equal(json_object_size(golden), 7);
    json_object_foreach(golden, name, one) check_tiny(one, name);
    json_decref(golden);
}

static void test_a_text_of_pieces_keeps_fields_apart(void **state)
{
    (void)state;
    json_t *golden = json_load_file("tests/golden/tokenizer_tiny.json", JSON_ALLOW_NUL, NULL);
    const json_t *file = json_object_get(json_object_get(golden, "old_llama"), "file");
    gr_tokenizer *t = NULL;
    gr_ids ids = {0};
    assert_int_equal(gr_tokenizer_parse(&t, json_string_value(file), json_string_length(file), NULL, 0, NULL),
                     GR_OK);
    const char *text =
        " <s> a </s> b </s>"; /* the first </s> is a field's: its tokens are looked for in normalized text */
    const gr_text_range field = {5, 11};
    assert_int_equal(
        gr_tokenizer_encode_fields(t, text, strlen(text), &field, 1, GR_ENCODE_SPECIAL, &ids, NULL), GR_OK);
    int n_special = 0;
    for (size_t i = 0; i < ids.n; i++) n_special += gr_tokenizer_is_special(t, ids.id[i]);
    assert_int_equal(n_special, 2);
    free(ids.id);
    gr_tokenizer_free(t);
    json_decref(golden);
}

static void test_files_of_a_slow_tokenizer_get_a_hint(void **state)
{
    (void)state;
    char dir[] = "/tmp/gr_slow_XXXXXX";
    gr_tokenizer *t = NULL;
    gr_diag d;
    gr_diag_init(&d);
    assert_non_null(mkdtemp(dir));
    char *vocab = gr_printf("%s/vocab.json", dir);
    assert_int_equal(gr_file_write(vocab, "{}", 2, NULL), GR_OK);
    assert_int_equal(gr_tokenizer_load(&t, dir, &d), GR_E_INVALID);
    assert_string_equal(d.messages[0].text, "no tokenizer.json and no tokenizer_config.json");
    assert_non_null(
        strstr(d.messages[d.n - 1].text, "has vocab.json but no tokenizer.json; transformers writes one"));
    assert_int_equal(gr_path_remove(dir, NULL), GR_OK);
    gr_diag_release(&d);
    free(vocab);
}

static void assert_refused(const char *json, const char *config, const char *want)
{
    gr_diag d;
    gr_diag_init(&d);
    gr_tokenizer *t = NULL;
    assert_int_equal(
        gr_tokenizer_parse(&t, json, json ? strlen(json) : 0, config, config ? strlen(config) : 0, &d),
        GR_E_INVALID);
    assert_null(t);
    assert_string_equal(d.messages[0].text, want);
    gr_diag_release(&d);
}

static void test_broken_files_are_refused_by_place(void **state)
{
    (void)state;
    assert_refused("{\"model\":", NULL, "tokenizer.json: line 1 column 9: unexpected token near end of file");
    assert_refused("[]", NULL, "tokenizer.json: (root): expected an object, not a list");
    assert_refused("{}", NULL, "tokenizer.json: model: expected an object, not nothing");
    assert_refused("{\"modle\":{}}", NULL, "tokenizer.json: (root): unknown key 'modle'");
    assert_refused("{\"model\":{\"type\":\"Unigram\"}}", NULL,
                   "tokenizer.json: model.type: only 'BPE' is supported, not Unigram");
    assert_refused("{\"model\":{\"type\":\"WordPiece\",\"max_input_chars_per_word\":9}}", NULL,
                   "tokenizer.json: model.type: only 'BPE' is supported, not WordPiece");
    assert_refused(
        "{\"model\":{\"byte_fallback\":true}}", NULL,
        "tokenizer.json: decoder: a SentencePiece vocabulary without Replace or Metaspace is not supported");
    assert_refused("{\"model\":{\"vocab\":[]}}", NULL,
                   "tokenizer.json: model.vocab: expected an object, not a list");
    assert_refused(TINY("\"a\":\"0\"", "", ""), NULL,
                   "tokenizer.json: model.vocab['a']: expected a whole number, not a string");
    assert_refused(TINY("\"a\":-1", "", ""), NULL,
                   "tokenizer.json: model.vocab['a']: id -1 is not in 0 to 4194303");
    assert_refused(TINY("\"a\":9000000000", "", ""), NULL,
                   "tokenizer.json: model.vocab['a']: id 9000000000 is not in 0 to 4194303");
    assert_refused(TINY("\"a\":0,\"b\":0", "", ""), NULL,
                   "tokenizer.json: model.vocab['b']: id 0 is taken by another token");
    assert_refused(TINY("\"a\":0,\"a\":1", "", ""), NULL,
                   "tokenizer.json: line 1 column 41: duplicate object key near '\"a\"'");
    assert_refused(TINY(ABC, "\"a x\"", ""), NULL,
                   "tokenizer.json: model.merges[0]: 'x' is not in the vocabulary");
    assert_refused(TINY(ABC, "\"a c\"", ""), NULL,
                   "tokenizer.json: model.merges[0]: its result 'ac' is not in the vocabulary");
    assert_refused(TINY(ABC, "\"a b\",[\"a\",\"b\"]", ""), NULL,
                   "tokenizer.json: model.merges[1]: the pair 'a' and 'b' has been given before");
    assert_refused(TINY(ABC, "[\"a\"]", ""), NULL,
                   "tokenizer.json: model.merges[0]: expected \"a b\" or [\"a\", \"b\"], not a list");
    assert_refused(TINY(ABC, "", ",\"added_tokens\":[{\"id\":1,\"content\":\"<s>\"}]"), NULL,
                   "tokenizer.json: added_tokens[0]: id 1 of '<s>' is taken by another token");
    assert_refused(TINY(ABC, "", ",\"added_tokens\":[{\"id\":9,\"content\":\"a\"}]"), NULL,
                   "tokenizer.json: added_tokens[0]: 'a' is id 0 already");
    assert_refused(
        TINY(ABC, "", ",\"normalizer\":{\"type\":\"Lowercase\"}"), NULL,
        "tokenizer.json: normalizer: normalizer 'Lowercase' is not supported; NFC is, and in a SentencePiece "
        "vocabulary Prepend and Replace of a String");
    assert_refused("{\"model\":{\"vocab\":{},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Split\","
                   "\"pattern\":{\"Regex\":\"(\"},"
                   "\"behavior\":\"Isolated\"}}",
                   NULL, "tokenizer.json: pre_tokenizer: missing closing parenthesis at byte 1 of '('");
    assert_refused(
        "{\"model\":{\"vocab\":{},\"merges\":[]}}", NULL,
        "tokenizer.json: pre_tokenizer: must end in ByteLevel: other vocabularies are not supported");
    assert_refused(NULL, "{}",
                   "tokenizer_config.json: char_ords: must be a list where there is no tokenizer.json");
    assert_refused(NULL, "{\"char_ords\":[65,65]}",
                   "tokenizer_config.json: char_ords[1]: code point 65 has a token already");
    assert_refused(NULL, NULL, "no tokenizer.json and no tokenizer_config.json");
}

static void test_an_unsupported_tokenizer_is_refused_by_name(void **state)
{
    (void)state;
    need_shared(path, "tokenizers/added-tokens-edge");
    gr_diag d;
    gr_diag_init(&d);
    gr_tokenizer *t = NULL;
    assert_int_equal(gr_tokenizer_load(&t, path, &d), GR_E_INVALID);
    assert_string_equal(d.messages[0].text, "tokenizer.json: model.merges: expected a list, not an object");
    gr_diag_release(&d);
}

static void test_config_adds_the_tokens_that_tokenizer_json_lacks(void **state)
{
    (void)state;
    need_shared(path, "tokenizers/torchtitan-tiny");
    gr_diag d;
    gr_diag_init(&d);
    gr_tokenizer *t = NULL;
    assert_int_equal(gr_tokenizer_load(&t, path, &d), GR_OK);
    assert_text(t, "<|im_start|>", GR_ENCODE_SPECIAL, "[2009]");
    assert_int_equal(gr_tokenizer_role(t, GR_TOKEN_BOS), 2002);
    gr_diag_release(&d);
    gr_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_qwen3_ids_are_those_of_tokenizers),
        cmocka_unit_test(test_qwen2_ids_are_those_of_tokenizers),
        cmocka_unit_test(test_minimind_ids_are_those_of_tokenizers),
        cmocka_unit_test(test_gpt2_ids_are_those_of_tokenizers),
        cmocka_unit_test(test_a_vocabulary_without_merges_or_some_bytes),
        cmocka_unit_test(test_llama_cpp_vectors_of_gpt2),
        cmocka_unit_test(test_llama_cpp_vectors_of_qwen2),
        cmocka_unit_test(test_transformers_js_vectors_of_gpt2),
        cmocka_unit_test(test_decoding_gives_back_the_bytes_of_gsm8k),
        cmocka_unit_test(test_decoding_gives_back_any_bytes),
        cmocka_unit_test(test_a_long_run_without_a_break_is_not_slow),
        cmocka_unit_test(test_threads_share_a_tokenizer),
        cmocka_unit_test(test_merges_go_by_rank_then_from_the_left),
        cmocka_unit_test(test_ignore_merges_takes_whole_words_first),
        cmocka_unit_test(test_added_tokens_match_as_flagged),
        cmocka_unit_test(test_a_special_token_that_touches_a_field_is_text),
        cmocka_unit_test(test_split_behaviours),
        cmocka_unit_test(test_the_frame_adds_what_the_post_processor_says),
        cmocka_unit_test(test_characters_have_an_id_each),
        cmocka_unit_test(test_pieces_and_raw_added_tokens_equal_tokenizers),
        cmocka_unit_test(test_a_text_of_pieces_keeps_fields_apart),
        cmocka_unit_test(test_files_of_a_slow_tokenizer_get_a_hint),
        cmocka_unit_test(test_broken_files_are_refused_by_place),
        cmocka_unit_test(test_an_unsupported_tokenizer_is_refused_by_name),
        cmocka_unit_test(test_config_adds_the_tokens_that_tokenizer_json_lacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
