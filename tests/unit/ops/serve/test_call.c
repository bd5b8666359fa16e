/* What calls of the endpoint may ask for, and what is refused. */
#include "ops/serve/reply.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char *const stop[] = {"END"};
static const int32_t stop_ids[] = {2, 7};
static const gr_serve_rules rules = {.model = "actor",
                                     .temperature = 0.5,
                                     .top_p = 1,
                                     .stop = stop,
                                     .n_stop = 1,
                                     .stop_ids = stop_ids,
                                     .n_stop_ids = 2,
                                     .max_tokens = 16,
                                     .max_context = 6,
                                     .turns = 4,
                                     .vocab = 100};

/* Reads a body; *body is the caller's, as is what is returned. */
static char *read(gr_serve_call *c, gr_call_kind kind, const char *text, json_t **body)
{
    json_error_t e;
    *body = json_loads(text, JSON_ALLOW_NUL, &e);
    if (!*body) fail_msg("%s: %s", text, e.text);
    return gr_serve_call_read(c, kind, *body, &rules);
}

static void wants_call(gr_call_kind kind, const char *text)
{
    gr_serve_call c;
    json_t *body;
    char *why = read(&c, kind, text, &body);
    if (why) fail_msg("%s: %s", text, why);
    gr_serve_call_release(&c);
    json_decref(body);
}

static void wants_refusal(gr_call_kind kind, const char *text, const char *wants)
{
    gr_serve_call c;
    json_t *body;
    char *why = read(&c, kind, text, &body);
    if (!why || !strstr(why, wants)) fail_msg("%s: '%s' does not have '%s'", text, why ? why : "", wants);
    gr_serve_call_release(&c);
    json_decref(body);
    free(why);
}

#define CHAT(more)   "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]" more "}"
#define TOKENS(more) "{\"token_ids\": [1, 2], \"sampling_params\": {" more "}}"

static void test_what_changes_nothing_may_be_said(void **state)
{
    (void)state;
    wants_call(GR_CALL_CHAT, CHAT(""));
    wants_call(
        GR_CALL_CHAT,
        CHAT(
            ", \"temperature\": 0.5, \"top_p\": 1, \"top_k\": -1, \"n\": 1, \"stop\": \"END\", \"seed\": null"
            ", \"max_completion_tokens\": 16, \"stream\": true, \"stream_options\": {\"include_usage\": "
            "true}, \"tools\": [], \"tool_choice\": \"auto\""
            ", \"user\": \"me\", \"presence_penalty\": 0.0, \"logprobs\": true, \"top_logprobs\": 0"));
    wants_call(GR_CALL_TOKENS,
               TOKENS("\"stop_token_ids\": [7], \"logprobs\": 1, \"min_p\": 0, \"repetition_penalty\": 1.0"));
    wants_call(GR_CALL_TOKENIZE, "{\"prompt\": \"hi\"}");
}

static void test_what_would_change_something_is_refused(void **state)
{
    (void)state;
    wants_refusal(GR_CALL_CHAT, CHAT(", \"temperature\": 1"),
                  "'temperature' is 0.5 here for every token, as the graph says");
    wants_refusal(GR_CALL_CHAT, CHAT(", \"top_k\": 5"), "'top_k' is 0 here");
    wants_refusal(GR_CALL_CHAT, CHAT(", \"n\": 2"), "'n' is 1 here");
    wants_refusal(GR_CALL_CHAT, CHAT(", \"seed\": 2"), "'seed' is no key of this request");
    wants_refusal(GR_CALL_CHAT, CHAT(", \"stream\": 1"), "'stream' is a number; true or false is wanted");
    wants_refusal(GR_CALL_CHAT, CHAT(", \"stream_options\": {\"include_all\": true}"),
                  "'include_all' is no key of 'stream_options' that is served here");
    wants_refusal(GR_CALL_TOKENS, "{\"token_ids\": [1], \"stream\": true}", "'stream' is served of /v1/chat");
    wants_refusal(GR_CALL_CHAT, CHAT(", \"stop\": [\"END\", \"x\"]"),
                  "a text of 'stop' is none of the rollout's");
    wants_refusal(GR_CALL_CHAT, CHAT(", \"max_tokens\": 17"),
                  "'max_tokens' is 17, and a turn here has at most 16");
    wants_refusal(GR_CALL_CHAT, CHAT(", \"max_tokens\": 0"), "'max_tokens' must be a whole number");
    wants_refusal(GR_CALL_CHAT, CHAT(", \"tool_choice\": \"none\""), "'tool_choice' can only be \"auto\"");
    wants_refusal(GR_CALL_CHAT, CHAT(", \"logit_bias\": {\"5\": 1}"), "'logit_bias' is not served");
    wants_refusal(GR_CALL_CHAT, CHAT(", \"response_format\": {\"type\": \"json_object\"}"),
                  "'response_format'");
    wants_refusal(GR_CALL_CHAT, CHAT(", \"model\": \"gpt\""), "the model served here is 'actor'");
    wants_refusal(GR_CALL_CHAT, CHAT(", \"logprobs\": 5"), "'logprobs' of more than the sampled token");
    wants_refusal(GR_CALL_CHAT, "{}", "'messages' is missing");
    wants_refusal(GR_CALL_CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": \"\\u0000\"}]}",
                  "the character \\u0000");
    wants_refusal(GR_CALL_CHAT, "{\"messages\": [{\"role\": 1}]}",
                  "message 0, counted from 0: a message is no object with a 'role'");
    wants_refusal(GR_CALL_CHAT,
                  "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}",
                  "images and sounds are not served");
    wants_refusal(GR_CALL_TOKENS, TOKENS("\"stop_token_ids\": [3]"), "the rollout does not stop at id 3");
    wants_refusal(GR_CALL_TOKENS, "{}", "'token_ids' is missing");
    wants_refusal(GR_CALL_TOKENS, "{\"token_ids\": [100]}", "item 0 is no id from 0 to 99");
    wants_refusal(GR_CALL_TOKENS, "{\"token_ids\": [1, 1.5]}", "item 1 is no id");
    wants_refusal(GR_CALL_TOKENS, "{\"token_ids\": [1,1,1,1,1,1,1]}",
                  "has 7 tokens; this model's maximum context length is 6 in a session");
    wants_refusal(GR_CALL_TOKENS, "{\"token_ids\": [1], \"sampling_params\": 3}",
                  "'sampling_params' is a number");
    wants_refusal(GR_CALL_TOKENIZE, "{}", "'prompt' or 'messages' is wanted");
}

static void test_messages_are_as_templates_take_them(void **state)
{
    gr_serve_call c;
    json_t *body;
    (void)state;
    char *why = read(&c, GR_CALL_CHAT,
                     "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": "
                     "\"a\"}, {\"type\": \"text\", "
                     "\"text\": \"b\"}]}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": "
                     "[{\"id\": \"x\", \"type\": "
                     "\"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"n\\\": 1}\"}}]}], "
                     "\"tools\": [{\"a\": 1}], "
                     "\"chat_template_kwargs\": {\"thinking\": false}}",
                     &body);
    assert_null(why);
    const json_t *one = json_array_get(c.messages, 0), *two = json_array_get(c.messages, 1);
    assert_string_equal(json_string_value(json_object_get(one, "content")), "ab");
    assert_string_equal(json_string_value(json_object_get(two, "content")), "");
    const json_t *f = json_object_get(json_array_get(json_object_get(two, "tool_calls"), 0), "function");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(f, "arguments"), "n")), 1);
    assert_int_equal(json_object_size(c.variables), 2);
    json_t *said = json_pack("{s:s, s:s, s:[{s:s, s:{s:i}}]}", "role", "assistant", "content", "",
                             "tool_calls", "name", "f", "arguments", "n", 1);
    assert_true(gr_serve_same_message(two, said)); /* whatever its ids are, and in whichever form */
    json_object_set_new(said, "content", json_string("x"));
    assert_false(gr_serve_same_message(two, said));
    json_decref(said);
    gr_serve_call_release(&c);
    json_decref(body);
}

/* What a client puts together of the chunks is the answer that comes whole. */
static void test_a_stream_says_what_a_whole_answer_says(void **state)
{
    (void)state;
    const int32_t said_ids[] = {4, 2}, context_ids[] = {1, 2, 3};
    const float logprobs[] = {-1, -2};
    const gr_serve_config c = {.rules = {.model = "actor"}};
    json_t *calls = json_loads("[{\"name\": \"f\", \"arguments\": {\"n\": 1}}]", 0, NULL);
    const gr_serve_said said = {.ids = said_ids,
                                .logprobs = logprobs,
                                .n = 2,
                                .text = "Well.<call>",
                                .n_text = 11,
                                .tool_calls = calls,
                                .n_before = 5};
    const gr_ids context = {.id = (int32_t *)(uintptr_t)context_ids, .n = 3};
    const gr_serve_call call = {.kind = GR_CALL_CHAT,
                                .variables = json_pack("{s:[{}]}", "tools"),
                                .logprobs = true,
                                .tokens_as_ids = true,
                                .return_ids = true,
                                .stream = true,
                                .stream_usage = true};
    json_t *whole = gr_reply_chat(&c, &call, &said, &context, "7-0"),
           *choice = json_array_get(json_object_get(whole, "choices"), 0),
           *chunks = gr_reply_stream(&call, gr_reply_chat(&c, &call, &said, &context, "7-0"));
    assert_int_equal(json_array_size(chunks), 3);
    json_t *first = json_array_get(chunks, 0), *one = json_array_get(json_object_get(first, "choices"), 0),
           *end = json_array_get(json_object_get(json_array_get(chunks, 1), "choices"), 0),
           *delta = json_object_get(one, "delta"),
           *told = json_array_get(json_object_get(delta, "tool_calls"), 0);
    assert_int_equal(json_integer_value(json_object_get(told, "index")), 0);
    json_object_del(told, "index");
    assert_true(json_equal(delta, json_object_get(choice, "message")));
    assert_true(json_equal(json_object_get(one, "token_ids"), json_object_get(choice, "token_ids")));
    assert_true(json_equal(json_object_get(one, "logprobs"), json_object_get(choice, "logprobs")));
    assert_true(
        json_equal(json_object_get(first, "prompt_token_ids"), json_object_get(whole, "prompt_token_ids")));
    assert_true(json_is_null(json_object_get(one, "finish_reason")));
    assert_string_equal(json_string_value(json_object_get(end, "finish_reason")), "tool_calls");
    assert_true(
        json_equal(json_object_get(json_array_get(chunks, 2), "usage"), json_object_get(whole, "usage")));
    json_decref(chunks);
    json_decref(whole);
    json_decref(calls);
    json_decref(call.variables);
}

static void test_paths(void **state)
{
    (void)state;
    assert_int_equal(gr_call_kind_of("POST", "/v1/chat/completions"), GR_CALL_CHAT);
    assert_int_equal(gr_call_kind_of("GET", "/v1/models"), GR_CALL_MODELS);
    assert_int_equal(gr_call_kind_of("GET", "/v1/chat/completions"), GR_CALL_UNKNOWN);
    assert_int_equal(gr_call_kind_of("POST", "/v1/chat/completions/"), GR_CALL_UNKNOWN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_changes_nothing_may_be_said),
        cmocka_unit_test(test_what_would_change_something_is_refused),
        cmocka_unit_test(test_messages_are_as_templates_take_them),
        cmocka_unit_test(test_a_stream_says_what_a_whole_answer_says),
        cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
