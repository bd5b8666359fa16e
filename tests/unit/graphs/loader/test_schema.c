/* The JSON Schema of graph files, by a small validator of what it uses of draft 7: it takes every shipped
 * file as it stands, parts and files that use others too, and refuses files that are wrong.
 * tests/oracle/graph_schema.py asks python's jsonschema the same. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <glob.h>
#include <pcre2.h>

#include <jansson.h>

#include "graphs/loader/loader.h"
#include "tests/unit/test.h"
#include "runtime/base/files.h"
#include "graphs/loader/schema.h"

/* ---- YAML as JSON -----------------------------------------------------------------------------------------
 */

static json_t *scalar_as_json(const gr_value *v)
{
    double x;
    if (!v->quoted && !v->block && (!strcmp(v->text, "true") || !strcmp(v->text, "false")))
        return json_boolean(*v->text == 't');
    if (!gr_value_number(v, &x)) return json_string(v->text);
    return x == floor(x) && fabs(x) < 1e15 && !strpbrk(v->text, ".eE") ? json_integer((json_int_t)x)
                                                                       : json_real(x);
}

static json_t *as_json(const gr_value *v)
{
    if (v->kind == GR_VALUE_NULL) return json_null();
    if (v->kind == GR_VALUE_SCALAR) return scalar_as_json(v);
    json_t *out = v->kind == GR_VALUE_MAP ? json_object() : json_array();
    for (size_t i = 0; i < v->n; i++) {
        if (v->kind == GR_VALUE_MAP)
            json_object_set_new(out, v->pairs[i].key, as_json(&v->pairs[i].value));
        else
            json_array_append_new(out, as_json(&v->items[i]));
    }
    return out;
}

static json_t *parse_yaml(const char *text, size_t n, const char *path)
{
    gr_value v = {0};
    gr_arena *arena = gr_arena_new();
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_yaml_parse(&v, arena, text, n, path, &d), GR_OK);
    json_t *out = as_json(&v);
    gr_diag_release(&d);
    gr_arena_free(arena);
    return out;
}

static json_t *read_yaml(const char *path)
{
    char *text;
    size_t n;
    assert_int_equal(gr_file_read(path, 0, &text, &n, NULL), GR_OK);
    json_t *out = parse_yaml(text, n, path);
    free(text);
    return out;
}

/* ---- the validator ----------------------------------------------------------------------------------------
 */

static bool valid(const json_t *s, const json_t *v);

static bool has_type(const char *type, const json_t *v)
{
    if (!strcmp(type, "number")) return json_is_number(v);
    if (!strcmp(type, "integer")) return json_is_integer(v);
    if (!strcmp(type, "string")) return json_is_string(v);
    if (!strcmp(type, "boolean")) return json_is_boolean(v);
    if (!strcmp(type, "null")) return json_is_null(v);
    if (!strcmp(type, "array")) return json_is_array(v);
    assert_string_equal(type, "object");
    return json_is_object(v);
}

static bool type_fits(const json_t *types, const json_t *v)
{
    if (json_is_string(types)) return has_type(json_string_value(types), v);
    for (size_t i = 0; i < json_array_size(types); i++)
        if (has_type(json_string_value(json_array_get(types, i)), v)) return true;
    return false;
}

static bool matches(const char *pattern, const char *text)
{
    int error;
    PCRE2_SIZE at;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, 0, &error, &at, NULL);
    assert_non_null(re);
    pcre2_match_data *m = pcre2_match_data_create_from_pattern(re, NULL);
    bool found = pcre2_match(re, (PCRE2_SPTR)text, strlen(text), 0, 0, m, NULL) >= 0;
    pcre2_match_data_free(m);
    pcre2_code_free(re);
    return found;
}

static bool is_among(const json_t *list, const json_t *v)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_equal(json_array_get(list, i), v)) return true;
    return false;
}

static bool has_all(const json_t *required, const json_t *v)
{
    for (size_t i = 0; i < json_array_size(required) && json_is_object(v); i++)
        if (!json_object_get(v, json_string_value(json_array_get(required, i)))) return false;
    return true;
}

static bool object_fits(const json_t *s, const json_t *v)
{
    const json_t *properties = json_object_get(s, "properties"),
                 *others = json_object_get(s, "additionalProperties");
    const char *key;
    json_t *value;
    bool ok = true;
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        const json_t *own = json_object_get(properties, key);
        ok = ok && (own ? valid(own, value) : !others || (!json_is_false(others) && valid(others, value)));
    }
    return ok;
}

static bool any_fits(const json_t *list, const json_t *v)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (valid(json_array_get(list, i), v)) return true;
    return false;
}

static bool all_fit(const json_t *list, const json_t *v)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!valid(json_array_get(list, i), v)) return false;
    return true;
}

static bool items_fit(const json_t *items, const json_t *v)
{
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!valid(items, json_array_get(v, i))) return false;
    return true;
}

static bool branch_fits(const json_t *s, const json_t *v)
{
    const json_t *then = json_object_get(s, valid(json_object_get(s, "if"), v) ? "then" : "else");
    return !then || valid(then, v);
}

static bool word_fits(const json_t *s, const char *word, const json_t *x, const json_t *v)
{
    static const char *const silent[] = {
        "properties", "additionalProperties", "then", "else", "$schema", "title", "default", "description"};
    if (!strcmp(word, "type")) return type_fits(x, v);
    if (!strcmp(word, "enum")) return is_among(x, v);
    if (!strcmp(word, "const")) return json_equal(x, v);
    if (!strcmp(word, "pattern"))
        return !json_is_string(v) || matches(json_string_value(x), json_string_value(v));
    if (!strcmp(word, "minimum")) return !json_is_number(v) || json_number_value(v) >= json_number_value(x);
    if (!strcmp(word, "maximum")) return !json_is_number(v) || json_number_value(v) <= json_number_value(x);
    if (!strcmp(word, "anyOf")) return any_fits(x, v);
    if (!strcmp(word, "allOf")) return all_fit(x, v);
    if (!strcmp(word, "not")) return !valid(x, v);
    if (!strcmp(word, "required")) return has_all(x, v);
    if (!strcmp(word, "items")) return items_fit(x, v);
    if (!strcmp(word, "if")) return branch_fits(s, v);
    for (size_t i = 0; i < GR_LEN(silent); i++)
        if (!strcmp(word, silent[i])) return true;
    fail_msg("a word of JSON Schema that this validator does not know: %s", word);
    return false;
}

static bool valid(const json_t *s, const json_t *v)
{
    const char *word;
    json_t *x;
    bool ok = !json_is_object(v) || object_fits(s, v);
    json_object_foreach((json_t *)(uintptr_t)s, word, x) ok = ok && word_fits(s, word, x, v);
    return ok;
}

/* ---- tests ------------------------------------------------------------------------------------------------
 */

static json_t *schema(void)
{
    gr_str text = {0};
    gr_graph_schema(&text);
    json_t *s = json_loadb(text.text, text.len, 0, NULL);
    assert_non_null(s);
    gr_str_release(&text);
    return s;
}

static bool takes(const json_t *s, const char *path)
{
    json_t *v = read_yaml(path);
    bool ok = valid(s, v);
    json_decref(v);
    return ok;
}

static void test_every_shipped_file_is_taken_as_it_stands(void **state)
{
    (void)state;
    json_t *s = schema();
    glob_t g;
    assert_int_equal(glob("graphs/*.yaml", 0, NULL, &g), 0);
    assert_int_equal(glob("graphs/*/*.yaml", GLOB_APPEND, NULL, &g), 0);
    assert_true(g.gl_pathc >= 50);
    size_t refused = 0;
    for (size_t i = 0; i < g.gl_pathc; i++)
        if (!takes(s, g.gl_pathv[i])) print_message("refused: %s\n", g.gl_pathv[i]), refused++;
    assert_int_equal(refused, 0);
    globfree(&g);
    json_decref(s);
}

static void test_broken_files_are_refused(void **state)
{
    (void)state;
    static const char *const broken[] = {"node_not_a_map",  "out_of_range",    "run_keys",   "state_keys",
                                         "train_keys",      "unknown_key_far", "unknown_op", "unknown_op_far",
                                         "unknown_top_key", "wrong_choice",    "wrong_head", "wrong_kind"};
    json_t *s = schema();
    size_t taken = 0;
    for (size_t i = 0; i < GR_LEN(broken); i++) {
        char *path = gr_printf("tests/golden/graphs/%s.yaml", broken[i]);
        if (takes(s, path)) print_message("taken: %s\n", broken[i]), taken++;
        free(path);
    }
    assert_int_equal(taken, 0);
    json_decref(s);
}

/* What a part may leave out, a whole graph may not, and the reverse: a null takes nothing away from nothing.
 */
static void test_whole_graphs_need_more_than_parts(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool taken;
    } cases[] = {
        {"nodes: {a: {batch: 8}}", true},
        {"{graph: g, use: x.yaml, nodes: {a: {batch: 8}}}", true},
        {"{graph: g, nodes: {a: {batch: 8}}}", false},
        {"{graph: g, use: x.yaml, nodes: {a: {batch: many}}}", false},
        {"{graph: g, use: x.yaml, nodes: {a: {btach: 8}}}", false},
        {"{graph: g, use: x.yaml, nodes: {a: {btach: null}}}", true},
        {"{graph: g, use: x.yaml, nodes: {a: null}}", true},
        {"{graph: g, nodes: {a: null}}", false},
        {"{graph: g, nodes: {a: {op: compute}}}", false},
        {"{graph: g, nodes: {a: {op: compute, expr: x}}}", true},
        {"{graph: g, use: x.yaml, nodes: {a: {op: compute, metrics: {m: x}}}}", true},
        {"{graph: g, models: {m: {checkpoint: x, gather: $how, shard: all}}}", true},
        {"{graph: g, models: {m: {checkpoint: x, gather: much}}}", false},
        {"{graph: g, models: {m: {train: {lr: 1}}}}", false},
        {"{graph: g, use: [x.yaml], models: {m: {train: {lr: $lr}}}}", true},
        {"{graph: g, use: x.yaml, models: {m: {train: {lr: 2}}}}", false},
        {"{graph: g, strict: $strict}", true},
        {"{graph: g, strict: perhaps}", false},
        {"{graph: g, pools: {p: {with: q}}}", true},
        {"{use: x.yaml, pools: {p: {with: null, share: 1}}}", true},
    };
    json_t *s = schema();
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        json_t *json = parse_yaml(cases[i].text, strlen(cases[i].text), "t.yaml");
        if (valid(s, json) != cases[i].taken)
            fail_msg("%s: %s", cases[i].taken ? "refused" : "taken", cases[i].text);
        json_decref(json);
    }
    json_decref(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_shipped_file_is_taken_as_it_stands),
        cmocka_unit_test(test_broken_files_are_refused),
        cmocka_unit_test(test_whole_graphs_need_more_than_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
