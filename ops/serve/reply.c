/* ops/serve/reply.c: see its header. */
#include "ops/serve/reply.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/base/json.h"

json_t *gr_reply_error(const char *code, const char *why)
{
    return json_pack("{s:{s:o, s:s, s:s}}", "error", "message", gr_json_string(why, strlen(why)), "type",
                     "invalid_request_error", "code", code);
}

json_t *gr_reply_models(const gr_serve_rules *rules)
{
    return json_pack("{s:s, s:[{s:s, s:s, s:i, s:s, s:I}]}", "object", "list", "data", "id", rules->model,
                     "object", "model", "created", 0, "owned_by", "graphrun", "max_model_len",
                     (json_int_t)rules->max_context);
}

static json_t *list_of(const int32_t *ids, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    return list;
}

json_t *gr_reply_tokens(const gr_ids *ids, const gr_serve_rules *rules)
{
    return json_pack("{s:I, s:I, s:o}", "count", (json_int_t)ids->n, "max_model_len",
                     (json_int_t)rules->max_context, "tokens", list_of(ids->id, ids->n));
}

/* ---- what was sampled -----------------------------------------------------------------------------------
 */

static json_t *token_of(const gr_tokenizer *t, int32_t id)
{
    gr_str text = {0};
    (void)gr_tokenizer_append(t, id, false, &text);
    json_t *out = gr_json_string(text.text ? text.text : "", text.len);
    gr_str_release(&text);
    return out;
}

/* t NULL: tokens are told by their ids. */
static json_t *logprobs_of(const gr_serve_said *said, const gr_tokenizer *t)
{
    json_t *content = json_array();
    for (uint32_t i = 0; i < said->n; i++) {
        json_t *token = t ? token_of(t, said->ids[i]) : json_sprintf("token_id:%d", said->ids[i]);
        json_array_append_new(content, json_pack("{s:o, s:f, s:n, s:[]}", "token", token, "logprob",
                                                 (double)said->logprobs[i], "bytes", "top_logprobs"));
    }
    return json_pack("{s:o}", "content", content);
}

static size_t good_calls(const json_t *calls)
{
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(calls); i++)
        n += !json_object_get(json_array_get(calls, i), "error");
    return n;
}

/* Calls of tools are told only to who offered some, and only where all of them can be read: else what was
 * said stands as text. */
static bool tells_calls(const gr_serve_call *call, const gr_serve_said *said)
{
    const size_t n = json_array_size(said->tool_calls);
    return json_object_get(call->variables, "tools") && n && good_calls(said->tool_calls) == n;
}

json_t *gr_reply_message(const gr_serve_call *call, const gr_serve_said *said)
{
    const bool calls = tells_calls(call, said);
    json_t *message = json_pack("{s:s, s:o}", "role", "assistant", "content",
                                gr_json_string(said->text, calls ? said->n_before : said->n_text));
    if (calls) json_object_set_new(message, "tool_calls", json_deep_copy(said->tool_calls));
    return message;
}

/* As OpenAI writes it: arguments are a text. */
static json_t *wire_calls(const json_t *calls, const char *id)
{
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i);
        char *arguments = json_dumps(json_object_get(call, "arguments"), JSON_COMPACT);
        json_array_append_new(out,
                              json_pack("{s:o, s:s, s:{s:O, s:s}}", "id", json_sprintf("call-%s-%zu", id, i),
                                        "type", "function", "function", "name", json_object_get(call, "name"),
                                        "arguments", arguments ? arguments : "{}"));
        free(arguments);
    }
    return out;
}

static json_t *errors_of(const json_t *calls)
{
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *call = json_array_get(calls, i);
        if (json_object_get(call, "error")) json_array_append(out, call);
    }
    return out;
}

json_t *gr_reply_chat(const gr_serve_config *c, const gr_serve_call *call, const gr_serve_said *said,
                      const gr_ids *context, const char *id)
{
    json_t *message = gr_reply_message(call, said), *calls = json_object_get(message, "tool_calls");
    const char *why = said->cut ? "length" : calls ? "tool_calls" : "stop";
    if (calls) json_object_set_new(message, "tool_calls", wire_calls(calls, id));
    if (calls && !json_string_length(json_object_get(message, "content")))
        json_object_set_new(message, "content", json_null());
    json_t *choice =
        json_pack("{s:i, s:o, s:s, s:n}", "index", 0, "message", message, "finish_reason", why, "logprobs");
    if (call->logprobs)
        json_object_set_new(choice, "logprobs", logprobs_of(said, call->tokens_as_ids ? NULL : c->tokenizer));
    if (call->return_ids) json_object_set_new(choice, "token_ids", list_of(said->ids, said->n));
    if (json_object_get(call->variables, "tools") &&
        good_calls(said->tool_calls) < json_array_size(said->tool_calls))
        json_object_set_new(choice, "tool_call_errors", errors_of(said->tool_calls));
    json_t *reply =
        json_pack("{s:s, s:s, s:I, s:s, s:[o], s:{s:I, s:I, s:I}}", "id", id, "object", "chat.completion",
                  "created", (json_int_t)time(NULL), "model", c->rules.model, "choices", choice, "usage",
                  "prompt_tokens", (json_int_t)context->n, "completion_tokens", (json_int_t)said->n,
                  "total_tokens", (json_int_t)(context->n + said->n));
    if (call->return_ids) json_object_set_new(reply, "prompt_token_ids", list_of(context->id, context->n));
    return reply;
}

/* With a choice, which is taken over; NULL: none. */
static json_t *chunk_of(const json_t *reply, json_t *choice)
{
    static const char *const same[] = {"id", "created", "model"};
    json_t *chunk = json_pack("{s:s, s:[]}", "object", "chat.completion.chunk", "choices");
    for (size_t i = 0; i < GR_LEN(same); i++)
        json_object_set(chunk, same[i], json_object_get(reply, same[i]));
    if (choice) json_array_append_new(json_object_get(chunk, "choices"), choice);
    return chunk;
}

/* All that was said is the first chunk, why it ended the second. */
json_t *gr_reply_stream(const gr_serve_call *call, json_t *reply)
{
    json_t *said = json_incref(json_array_get(json_object_get(reply, "choices"), 0)),
           *delta = json_object_get(said, "message"), *calls = json_object_get(delta, "tool_calls"),
           *ids = json_object_get(reply, "prompt_token_ids"),
           *end = json_pack("{s:i, s:{}, s:O, s:n}", "index", 0, "delta", "finish_reason",
                            json_object_get(said, "finish_reason"), "logprobs");
    for (size_t i = 0; i < json_array_size(calls); i++)
        json_object_set_new(json_array_get(calls, i), "index", json_integer((json_int_t)i));
    json_object_set(said, "delta", delta);
    json_object_del(said, "message");
    json_object_set_new(said, "finish_reason", json_null());
    json_t *first = chunk_of(reply, said), *chunks = json_pack("[o, o]", first, chunk_of(reply, end));
    if (ids) json_object_set(first, "prompt_token_ids", ids);
    if (call->stream_usage) {
        json_t *usage = chunk_of(reply, NULL);
        json_object_set(usage, "usage", json_object_get(reply, "usage"));
        json_array_append_new(chunks, usage);
    }
    json_decref(reply);
    return chunks;
}

json_t *gr_reply_generate(const gr_serve_call *call, const gr_serve_said *said, const gr_ids *context,
                          const char *id)
{
    json_t *choice = json_pack("{s:i, s:o, s:s, s:o}", "index", 0, "token_ids", list_of(said->ids, said->n),
                               "finish_reason", said->cut ? "length" : "stop", "logprobs",
                               call->logprobs ? logprobs_of(said, NULL) : json_null());
    json_t *reply = json_pack("{s:s, s:[o]}", "request_id", id, "choices", choice);
    if (call->return_ids) json_object_set_new(reply, "prompt_token_ids", list_of(context->id, context->n));
    return reply;
}
