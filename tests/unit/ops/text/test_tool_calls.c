/* Calls of tools in what a model wrote: the forms of three families, and what is none. */
#include "ops/text/tool_calls.h"

#include "tests/unit/test.h"

static void wants(gr_tool_form form, const char *text, const char *calls)
{
    json_t *got = gr_tool_calls(form, text, strlen(text)), *want = json_loads(calls, 0, NULL);
    assert_non_null(want);
    char *shown = json_dumps(got, JSON_COMPACT);
    if (!json_equal(got, want)) fail_msg("'%s' has the calls %s, not %s", text, shown, calls);
    free(shown);
    json_decref(got);
    json_decref(want);
}

/* The error of the only call, and what was there. */
static void wants_error(gr_tool_form form, const char *text, const char *error, const char *there)
{
    json_t *got = gr_tool_calls(form, text, strlen(text)), *call = json_array_get(got, 0);
    assert_int_equal(json_array_size(got), 1);
    const char *why = json_string_value(json_object_get(call, "error"));
    if (!why || !strstr(why, error))
        fail_msg("'%s': '%s' does not have '%s'", text, why ? why : "no error", error);
    assert_string_equal(json_string_value(json_object_get(call, "text")), there);
    json_decref(got);
}

static void test_hermes(void **state)
{
    (void)state;
    wants(GR_TOOLS_HERMES, "The answer is 4.", "[]");
    wants(GR_TOOLS_HERMES, "", "[]");
    wants(
        GR_TOOLS_HERMES,
        "I ask.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1, \"y\": [\"</a>\"]}}\n</tool_call>",
        "[{\"name\": \"f\", \"arguments\": {\"x\": 1, \"y\": [\"</a>\"]}}]");
    wants(GR_TOOLS_HERMES,
          "<tool_call>{\"name\":\"f\"}</"
          "tool_call><tool_call>{\"name\":\"g\",\"arguments\":\"{\\\"a\\\":2}\"}</tool_call>",
          "[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {\"a\": 2}}]");
    wants_error(GR_TOOLS_HERMES, "<tool_call>{\"name\": f}</tool_call>", "invalid token", "{\"name\": f}");
    wants_error(GR_TOOLS_HERMES, "<tool_call>{\"name\": \"f\"", "no </tool_call> follows",
                "{\"name\": \"f\"");
    wants_error(GR_TOOLS_HERMES, "<tool_call>{\"tool\": \"f\"}</tool_call>", "a 'name'", "{\"tool\": \"f\"}");
    wants_error(GR_TOOLS_HERMES, "<tool_call>[1]</tool_call>", "a 'name'", "[1]");
    wants_error(GR_TOOLS_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": 3}</tool_call>",
                "not an object", "{\"name\": \"f\", \"arguments\": 3}");
}

static void test_llama(void **state)
{
    (void)state;
    wants(GR_TOOLS_LLAMA, "The answer is {4}.", "[]");
    wants(GR_TOOLS_LLAMA, "  ", "[]");
    wants(GR_TOOLS_LLAMA, " {\"name\": \"f\", \"parameters\": {\"x\": 1}}\n",
          "[{\"name\": \"f\", \"arguments\": {\"x\": 1}}]");
    wants(GR_TOOLS_LLAMA,
          "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"arguments\": {\"a\": 2}}",
          "[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {\"a\": 2}}]");
    wants_error(GR_TOOLS_LLAMA, "{\"name\": \"f\"", "expected", "{\"name\": \"f\"");
    wants_error(GR_TOOLS_LLAMA, "<|python_tag|>f(1)", "expected", "f(1)");
}

static void test_tags(void **state)
{
    (void)state;
    wants(GR_TOOLS_HERMES,
          "I ask.\n<tool_call>\n<function=f>\n<parameter=x>\n12\n</parameter>\n<parameter=y>\n[1, "
          "2]\n</parameter>\n<parameter=z>\na\n<b>\n</parameter>\n</function>\n</tool_call>"
          "<tool_call><function=g></function></tool_call>",
          "[{\"name\": \"f\", \"arguments\": {\"x\": \"12\", \"y\": [1, 2], \"z\": \"a\\n<b>\"}}, {\"name\": "
          "\"g\", \"arguments\": {}}]");
    wants_error(GR_TOOLS_HERMES, "<tool_call><function=></function></tool_call>", "no name",
                "<function=></function>");
    wants_error(GR_TOOLS_HERMES, "<tool_call><function=f></tool_call>", "no </function>", "<function=f>");
    wants_error(GR_TOOLS_HERMES, "<tool_call><function=f", "no </tool_call>", "<function=f");
    wants_error(GR_TOOLS_HERMES, "<tool_call><function=f>x</function></tool_call>",
                "<parameter=NAME> is wanted", "<function=f>x</function>");
    wants_error(GR_TOOLS_HERMES, "<tool_call><function=f><parameter=a>1</function></tool_call>",
                "no </parameter>", "<function=f><parameter=a>1</function>");
    wants_error(GR_TOOLS_HERMES, "<tool_call><function=f><parameter=>1</parameter></function></tool_call>",
                "a parameter has no name", "<function=f><parameter=>1</parameter></function>");
}

static void test_channels(void **state)
{
    (void)state;
    static const char weather[] = "[{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}]";
    wants(GR_TOOLS_HARMONY, "", "[]");
    wants(GR_TOOLS_HARMONY, "<|channel|>final<|message|>It is 4: to=nobody.", "[]");
    wants(GR_TOOLS_HARMONY,
          "<|channel|>analysis<|message|>I ask.<|end|><|start|>assistant<|channel|>commentary "
          "to=functions.weather <|constrain|>json<|message|>{\"city\": \"Bern\"}<|call|>",
          weather);
    wants(GR_TOOLS_HARMONY, " to=functions.weather<|channel|>commentary json<|message|>{\"city\": \"Bern\"}",
          weather);
    wants(GR_TOOLS_HARMONY,
          "<|start|>assistant to=weather<|channel|>commentary<|message|>{\"city\": \"Bern\"}<|call|>",
          weather);
    wants_error(GR_TOOLS_HARMONY, "<|channel|>commentary to=functions.f<|message|>{\"a\": }",
                "unexpected token", "{\"a\": }");
    wants_error(GR_TOOLS_HARMONY, "<|channel|>commentary to=python<|message|>[1]<|call|>", "not an object",
                "[1]");
    wants_error(GR_TOOLS_HARMONY, "<|channel|>commentary to=functions.f <|constrain|>json", "no <|message|>",
                "<|channel|>commentary to=functions.f <|constrain|>json");
    wants_error(GR_TOOLS_HARMONY, "<|channel|>commentary to=functions.<|message|>{}", "no function", "{}");
}

static void test_what_stands_before_calls(void **state)
{
    (void)state;
    static const char hermes[] = "I ask.\n<tool_call>{}</tool_call>", llama[] = "{\"name\": \"f\"}",
                      said[] = "<|channel|>analysis<|message|>I ask.<|end|>",
                      harmony[] = "<|channel|>analysis<|message|>I ask.<|end|><|start|>assistant "
                                  "to=functions.f<|channel|>commentary<|message|>{}";
    assert_int_equal(gr_tool_calls_at(GR_TOOLS_HERMES, hermes, strlen(hermes)), strlen("I ask."));
    assert_int_equal(gr_tool_calls_at(GR_TOOLS_LLAMA, llama, strlen(llama)), 0);
    assert_int_equal(gr_tool_calls_at(GR_TOOLS_HARMONY, harmony, strlen(harmony)), strlen(said));
}

/* A model that repeats itself fills no request. */
static void test_calls_are_bounded(void **state)
{
    (void)state;
    gr_str s = {0};
    for (int i = 0; i < 1000; i++) gr_str_puts(&s, "<tool_call>{\"name\":\"f\"}</tool_call>");
    json_t *got = gr_tool_calls(GR_TOOLS_HERMES, s.text, s.len);
    assert_int_equal(json_array_size(got), 64);
    json_decref(got);
    gr_str_release(&s);
}

static void wants_form(const char *source, gr_tool_form form)
{
    gr_chat_template *t = NULL;
    assert_int_equal(gr_chat_template_parse(&t, source, strlen(source), NULL), GR_OK);
    assert_int_equal(gr_tool_form_of(t), form);
    gr_chat_template_free(t);
}

static void test_the_form_follows_from_the_template(void **state)
{
    (void)state;
    assert_int_equal(gr_tool_form_of(NULL), GR_TOOLS_HERMES);
    wants_form("{{ messages[0].content }}", GR_TOOLS_HERMES);
    wants_form("{% if tools %}<tool_call> like this{% endif %}", GR_TOOLS_HERMES);
    wants_form("{% for m in messages %}{{ '<|start_header_id|>ipython' }}{% endfor %}", GR_TOOLS_LLAMA);
    wants_form("{% if tools %}{{ '<|python_tag|>' + x }}{% endif %}", GR_TOOLS_LLAMA);
    wants_form("{% for m in messages %}{{ '<|start|>assistant<|channel|>final<|message|>' }}{% endfor %}",
               GR_TOOLS_HARMONY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hermes),
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_tags),
        cmocka_unit_test(test_channels),
        cmocka_unit_test(test_what_stands_before_calls),
        cmocka_unit_test(test_calls_are_bounded),
        cmocka_unit_test(test_the_form_follows_from_the_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
