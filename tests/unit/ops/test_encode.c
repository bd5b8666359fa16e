/* Records around which a chat template goes: system message, variables, tools, the date. A tokenizer with a
 * token for each ASCII character makes the ids readable. */
#include "ops/encode.h"
#include "tests/unit/test.h"
#include "tests/unit/test_folder.h"
#include "runtime/base/files.h"

static void write_file(const char *name, const char *text)
{
    char *path = in_dir(name);
    assert_int_equal(gr_file_write(path, text, strlen(text), NULL), GR_OK);
    free(path);
}

/* A checkpoint's folder with the chat template. */
static gr_tokenizer *checkpoint(const char *chat)
{
    gr_tokenizer *t = NULL;
    gr_str config = {0};
    gr_str_puts(&config, "{\"char_ords\":[10");
    for (int c = ' '; c < 127; c++)
        if (!strchr("SEPU", c)) gr_str_printf(&config, ",%d", c); /* they are its special tokens */
    gr_str_puts(&config, "]}");
    write_file("tokenizer_config.json", config.text);
    write_file("chat_template.jinja", chat);
    assert_int_equal(gr_tokenizer_load(&t, dir, NULL), GR_OK);
    gr_str_release(&config);
    return t;
}

static gr_value scalar(const char *text, bool quoted)
{
    return (gr_value){.kind = GR_VALUE_SCALAR, .at = {"g.yaml", 3, 9}, .text = text, .quoted = quoted};
}

/* What a record becomes, or the first message; then the warnings, a line each. The caller frees it. */
static char *encoded(const char *chat, const gr_chat_config *c, const char *messages, const char *record)
{
    gr_tokenizer *t = checkpoint(chat);
    gr_encoder_config config = {.tokenizer = t,
                                .folder = dir,
                                .text = "chat",
                                .messages = messages,
                                .chat = *c,
                                .at = {"g.yaml", 2, 5}};
    gr_encoder *e = NULL;
    gr_diag d;
    gr_diag_init(&d);
    gr_ids ids = {0};
    gr_str out = {0};
    json_t *row = json_loads(record, 0, NULL);
    assert_non_null(row);
    gr_status st = gr_encoder_new(&e, &config, &d);
    if (!st) st = gr_encoder_run(e, row, (gr_loc){"d.jsonl", 1, 1}, &ids, &d);
    if (!st) {
        gr_tokenizer_decode(t, ids.id, ids.n, false, &out);
        gr_encoder_warn_of_date(e, "p", &d);
    }
    assert_int_equal(st != GR_OK, d.n_errors != 0);
    for (size_t i = 0; i < d.n; i++) {
        char *text = gr_message_format(&d.messages[i]);
        gr_str_printf(&out, "\n%s", text);
        free(text);
    }
    json_decref(row);
    free(ids.id);
    gr_encoder_free(e);
    gr_tokenizer_free(t);
    gr_diag_release(&d);
    return out.text;
}

static void assert_encoded(const char *chat, const gr_chat_config *c, const char *messages,
                           const char *record, const char *want)
{
    char *got = encoded(chat, c, messages, record);
    assert_string_equal(got, want);
    free(got);
}

static const char turns[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";

static void test_a_system_message_is_filled_from_the_record(void **state)
{
    (void)state;
    const gr_chat_config c = {.system = "be {how}"};
    assert_encoded(turns, &c, "{q}?", "{\"q\":\"why\",\"how\":\"brief\"}", "<system>be brief<user>why?");
    assert_encoded(turns, &c, "{q}",
                   "{\"q\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]"
                   ",\"how\":1}",
                   "<system>be 1<user>a<assistant>b");
    assert_encoded(turns, &c, "{q}", "{\"q\":[{\"role\":\"system\",\"content\":\"a\"}],\"how\":1}",
                   "\nd.jsonl:1:1: error: the messages begin with a system message of their own, and the "
                   "node has one ('system')");
    assert_encoded(turns, &c, "{q}", "{\"q\":\"a\"}", "\nd.jsonl:1:1: error: no field 'how'");
}

static void test_template_args_are_variables_of_the_template(void **state)
{
    (void)state;
    const gr_value inner[] = {scalar("1.5", false),
                              {.kind = GR_VALUE_NULL},
                              scalar("-3", false),
                              scalar("3", true),
                              scalar("yes", false)};
    const gr_pair pairs[] = {
        {"think", {"g.yaml", 3, 5}, scalar("false", false)},
        {"list", {"g.yaml", 4, 5}, {.kind = GR_VALUE_LIST, .items = inner, .n = GR_LEN(inner)}},
        {"thinkng", {"g.yaml", 5, 5}, scalar("1", false)}};
    const gr_value args = {.kind = GR_VALUE_MAP, .pairs = pairs, .n = 2},
                   more = {.kind = GR_VALUE_MAP, .pairs = pairs, .n = 3};
    const char *chat = "{{ messages[0].content }}{{ think is false }}{{ list | tojson }}";
    assert_encoded(chat, &(gr_chat_config){.args = &args}, "{q}", "{\"q\":\"x\"}",
                   "xTrue[1.5, null, -3, \"3\", \"yes\"]");
    assert_encoded(chat, &(gr_chat_config){.args = &more}, "{q}", "{\"q\":\"x\"}",
                   "xTrue[1.5, null, -3, \"3\", \"yes\"]\n"
                   "g.yaml:5:5: warning: the chat template reads no variable 'thinkng': it changes nothing");
}

static void test_tools_come_from_the_graph_a_field_or_a_file(void **state)
{
    (void)state;
    const gr_pair name = {"name", {"g.yaml", 4, 5}, scalar("f", false)};
    const gr_value tool = {.kind = GR_VALUE_MAP, .pairs = &name, .n = 1}, field = scalar("{t}", true);
    const gr_value list = {.kind = GR_VALUE_LIST, .at = {"g.yaml", 3, 9}, .items = &tool, .n = 1};
    const char *chat = "{{ messages[0].content }}{% if tools %}{{ tools | tojson }}{% endif %}";
    assert_encoded(chat, &(gr_chat_config){.tools = &list}, "{q}", "{\"q\":\"x\"}", "x[{\"name\": \"f\"}]");
    assert_encoded(chat, &(gr_chat_config){.tools = &field}, "{q}", "{\"q\":\"x\",\"t\":[1]}", "x[1]");
    assert_encoded(chat, &(gr_chat_config){.tools = &field}, "{q}", "{\"q\":\"x\",\"t\":2}",
                   "\nd.jsonl:1:1: error: field 't' must be a list of tools");
    assert_encoded(turns, &(gr_chat_config){.tools = &list}, "{q}", "{\"q\":\"x\"}",
                   "<user>x\ng.yaml:3:9: warning: the chat template takes no tools: they change nothing");
    char *path = in_dir("tools.json"), *want = gr_printf("\n%s:1:1: error: expected a list of tools", path);
    write_file("tools.json", "[{\"name\":\"g\"}]");
    assert_encoded(chat, &(gr_chat_config){.tools_file = path}, "{q}", "{\"q\":\"x\"}",
                   "x[{\"name\": \"g\"}]");
    write_file("tools.json", "{}");
    assert_encoded(chat, &(gr_chat_config){.tools_file = path}, "{q}", "{\"q\":\"x\"}", want);
    free(path), free(want);
}

static void test_the_date_is_fixed_and_said(void **state)
{
    (void)state;
    const char *chat = "{{ messages[0].content }}{{ strftime_now('%d %b %Y') }}";
    assert_encoded(
        chat, &(gr_chat_config){0}, "{q}", "{\"q\":\"x\"}",
        "x26 Jul 2024\ng.yaml:2:5: warning: node 'p': the chat template asks for today's date and gets "
        "2024-07-26 in every run; 'date' sets another");
    assert_encoded(chat, &(gr_chat_config){.date = "2025-03-09"}, "{q}", "{\"q\":\"x\"}", "x09 Mar 2025");
    assert_encoded(
        turns, &(gr_chat_config){.date = "2025-03-09"}, "{q}", "{\"q\":\"x\"}",
        "<user>x\ng.yaml:2:5: warning: the chat template does not ask for the date: 'date' changes nothing");
    const char *own =
        "{% if date_string is not defined %}{% set date_string = '1 May' %}{% endif %}{{ date_string }}";
    assert_encoded(
        own, &(gr_chat_config){0}, "{q}", "{\"q\":\"x\"}",
        "1 May\ng.yaml:2:5: warning: node 'p': the chat template puts its own date '1 May' into the prompts; "
        "template_args: {date_string: ...} sets another");
    const gr_pair pair = {"date_string", {"g.yaml", 3, 5}, scalar("2 June", false)};
    const gr_value args = {.kind = GR_VALUE_MAP, .pairs = &pair, .n = 1};
    assert_encoded(own, &(gr_chat_config){.args = &args}, "{q}", "{\"q\":\"x\"}", "2 June");
    assert_true(gr_date_is_valid("2024-02-29") && gr_date_is_valid(gr_default_date));
    assert_false(gr_date_is_valid("2025-02-29") || gr_date_is_valid("2025-3-9") ||
                 gr_date_is_valid("09-03-2025"));
    assert_false(gr_date_is_valid("") || gr_date_is_valid("2025-03-09x") || gr_date_is_valid("2025-13-01"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_system_message_is_filled_from_the_record),
        cmocka_unit_test(test_template_args_are_variables_of_the_template),
        cmocka_unit_test(test_tools_come_from_the_graph_a_field_or_a_file),
        cmocka_unit_test(test_the_date_is_fixed_and_said),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
