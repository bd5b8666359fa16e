/* ops/serve/call.c: see its header. */
#include "ops/serve/call.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/json.h"

/* ---- paths ----------------------------------------------------------------------------------------------
 */

gr_call_kind gr_call_kind_of(const char *method, const char *path)
{
    static const struct {
        const char *method, *path;
        gr_call_kind kind;
    } known[] = {{"POST", "/v1/chat/completions", GR_CALL_CHAT},
                 {"POST", "/v1/chat/completions/tokens", GR_CALL_CHAT},
                 {"POST", "/inference/v1/generate", GR_CALL_TOKENS},
                 {"POST", "/tokenize", GR_CALL_TOKENIZE},
                 {"POST", "/v1/tokenize", GR_CALL_TOKENIZE},
                 {"GET", "/v1/models", GR_CALL_MODELS},
                 {"GET", "/health", GR_CALL_HEALTH}};
    for (size_t i = 0; i < GR_LEN(known); i++)
        if (!strcmp(known[i].method, method) && !strcmp(known[i].path, path)) return known[i].kind;
    return GR_CALL_UNKNOWN;
}

/* ---- messages -------------------------------------------------------------------------------------------
 */

/* Contents of parts are joined; those that are no text are refused. */
static char *text_of_parts(const json_t *parts, gr_str *out)
{
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *text = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type || strcmp(type, "text") || !json_is_string(text))
            return gr_printf("part %zu of a content is no {\"type\": \"text\", \"text\": ...}: images and "
                             "sounds are not served",
                             i);
        gr_str_add(out, json_string_value(text), json_string_length(text));
    }
    return NULL;
}

static char *take_content(json_t *message, const json_t *content)
{
    gr_str text = {0};
    char *why = NULL;
    if (json_is_array(content)) {
        why = text_of_parts(content, &text);
        if (!why) json_object_set_new(message, "content", json_stringn(text.text ? text.text : "", text.len));
    } else if (!content || json_is_null(content)) {
        json_object_set_new(message, "content", json_string(""));
    } else if (!json_is_string(content)) {
        why = gr_printf("a 'content' is %s; a text is wanted", gr_json_kind(content));
    }
    gr_str_release(&text);
    return why;
}

/* Templates read arguments as objects; OpenAI's clients write them as texts. */
static char *take_tool_call(json_t *call)
{
    json_t *f = json_object_get(call, "function");
    if (!json_is_object(f)) f = call;
    if (!json_is_string(json_object_get(f, "name"))) return gr_strdup("a call of 'tool_calls' has no 'name'");
    const json_t *a = json_object_get(f, "arguments");
    json_t *read = json_is_string(a)
                       ? json_loadb(json_string_value(a), json_string_length(a), JSON_REJECT_DUPLICATES, NULL)
                       : NULL;
    if (json_is_object(read)) json_object_set(f, "arguments", read);
    json_decref(read);
    return NULL;
}

static char *take_tool_calls(json_t *message)
{
    json_t *calls = json_object_get(message, "tool_calls");
    char *why = NULL;
    if (!calls) return NULL;
    if (json_is_null(calls) || (json_is_array(calls) && !json_array_size(calls))) {
        json_object_del(message, "tool_calls");
        return NULL;
    }
    if (!json_is_array(calls)) return gr_printf("'tool_calls' is %s; a list is wanted", gr_json_kind(calls));
    for (size_t i = 0; i < json_array_size(calls) && !why; i++)
        why = take_tool_call(json_array_get(calls, i));
    return why;
}

static char *take_message(json_t *message)
{
    if (!json_is_string(json_object_get(message, "role")))
        return gr_strdup("a message is no object with a 'role'");
    char *why = take_content(message, json_object_get(message, "content"));
    return why ? why : take_tool_calls(message);
}

static char *take_messages(gr_serve_call *c, const json_t *v)
{
    if (!json_is_array(v) || !json_array_size(v)) return gr_strdup("'messages' must be a list of messages");
    c->messages = json_deep_copy(v);
    char *why = NULL;
    for (size_t i = 0; i < json_array_size(c->messages) && !why; i++) {
        why = take_message(json_array_get(c->messages, i));
        if (!why) continue;
        char *where = gr_printf("message %zu, counted from 0: %s", i, why);
        free(why);
        why = where;
    }
    return why;
}

static bool same(const json_t *a, const json_t *b)
{
    return (!a && !b) || json_equal(a, b);
}

static bool same_calls(const json_t *a, const json_t *b)
{
    if (json_array_size(a) != json_array_size(b)) return false;
    for (size_t i = 0; i < json_array_size(a); i++) {
        const json_t *x = json_array_get(a, i), *y = json_array_get(b, i);
        const json_t *f = json_object_get(x, "function"), *g = json_object_get(y, "function");
        if (!f) f = x;
        if (!g) g = y;
        if (!same(json_object_get(f, "name"), json_object_get(g, "name")) ||
            !same(json_object_get(f, "arguments"), json_object_get(g, "arguments")))
            return false;
    }
    return true;
}

bool gr_serve_same_message(const json_t *a, const json_t *b)
{
    return json_equal(json_object_get(a, "role"), json_object_get(b, "role")) &&
           json_equal(json_object_get(a, "content"), json_object_get(b, "content")) &&
           same_calls(json_object_get(a, "tool_calls"), json_object_get(b, "tool_calls"));
}

/* ---- what a key may say ---------------------------------------------------------------------------------
 */

typedef struct reader {
    gr_serve_call *call;
    const gr_serve_rules *rules;
    const char *key;
} reader;

static char *take_ids(const reader *r, const json_t *v)
{
    gr_ids *ids = &r->call->ids;
    if (!json_is_array(v)) return gr_printf("'%s' is %s; a list of ids is wanted", r->key, gr_json_kind(v));
    if (json_array_size(v) > r->rules->max_context)
        return gr_printf("'%s' has %zu tokens; this model's maximum context length is %u in a session",
                         r->key, json_array_size(v), r->rules->max_context);
    ids->n = 0;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *x = json_array_get(v, i);
        const json_int_t id = json_integer_value(x);
        if (!json_is_integer(x) || id < 0 || id >= (json_int_t)r->rules->vocab)
            return gr_printf("'%s': item %zu is no id from 0 to %u", r->key, i, r->rules->vocab - 1);
        GR_PUSH(ids->id, ids->n, ids->cap, (int32_t)id);
    }
    r->call->has_ids = true;
    return NULL;
}

static char *take_context(const reader *r, const json_t *v)
{
    r->call->whole = true;
    return take_ids(r, v);
}

static char *set_messages(const reader *r, const json_t *v)
{
    return take_messages(r->call, v);
}

static json_t *variables(gr_serve_call *c)
{
    if (!c->variables) c->variables = json_object();
    return c->variables;
}

static char *set_tools(const reader *r, const json_t *v)
{
    if (!json_is_array(v)) return gr_printf("'tools' is %s; a list is wanted", gr_json_kind(v));
    if (json_array_size(v)) json_object_set(variables(r->call), "tools", (json_t *)(uintptr_t)v);
    return NULL;
}

static char *set_variables(const reader *r, const json_t *v)
{
    if (!json_is_object(v)) return gr_printf("'%s' is %s; an object is wanted", r->key, gr_json_kind(v));
    if (json_object_get(v, "tools"))
        return gr_printf("'tools' of '%s' has a key of its own: 'tools'", r->key);
    json_object_update_missing(variables(r->call), (json_t *)(uintptr_t)v);
    return NULL;
}

static char *set_tool_choice(const reader *r, const json_t *v)
{
    const char *how = json_string_value(v);
    (void)r;
    return how && !strcmp(how, "auto") ? NULL : gr_strdup("'tool_choice' can only be \"auto\" here");
}

static char *set_model(const reader *r, const json_t *v)
{
    const char *name = json_string_value(v);
    if (name && !strcmp(name, r->rules->model)) return NULL;
    return gr_printf("the model served here is '%s'", r->rules->model);
}

static char *same_number(const reader *r, const json_t *v, double is)
{
    if (json_is_number(v) && json_number_value(v) == is) return NULL;
    return gr_printf("'%s' is %g here for every token, as the graph says: leave it out or say the same",
                     r->key, is);
}

static char *same_temperature(const reader *r, const json_t *v)
{
    return same_number(r, v, r->rules->temperature);
}

static char *same_top_p(const reader *r, const json_t *v)
{
    return same_number(r, v, r->rules->top_p);
}

static char *same_top_k(const reader *r, const json_t *v)
{
    if (!r->rules->top_k && json_is_integer(v) && json_integer_value(v) == -1) return NULL; /* off, to vLLM */
    return same_number(r, v, r->rules->top_k);
}

static char *none(const reader *r, const json_t *v)
{
    return same_number(r, v, 0);
}

static char *one(const reader *r, const json_t *v)
{
    return same_number(r, v, 1);
}

static char *empty(const reader *r, const json_t *v)
{
    if (json_is_false(v) || (json_is_object(v) && !json_object_size(v)) ||
        (json_is_array(v) && !json_array_size(v)))
        return NULL;
    return gr_printf("'%s' is not served here: leave it out", r->key);
}

static char *only_true(const reader *r, const json_t *v)
{
    return json_is_true(v) ? NULL : gr_printf("'%s' can only be true here", r->key);
}

static char *no_stream(const reader *r, const json_t *v)
{
    (void)r;
    return json_is_false(v) ? NULL
                            : gr_strdup("'stream' is served of /v1/chat/completions alone: ids come whole");
}

static char *same_ignore_eos(const reader *r, const json_t *v)
{
    if (json_is_boolean(v) && json_is_true(v) == r->rules->ignore_eos) return NULL;
    return gr_printf("'ignore_eos' is %s here, as the graph says", r->rules->ignore_eos ? "true" : "false");
}

static bool stops_at(const gr_serve_rules *rules, const json_t *text)
{
    for (size_t i = 0; i < rules->n_stop; i++)
        if (json_is_string(text) && !strcmp(rules->stop[i], json_string_value(text))) return true;
    return false;
}

static char *known_stops(const reader *r, const json_t *v)
{
    const size_t n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; i < n; i++)
        if (!stops_at(r->rules, json_is_array(v) ? json_array_get(v, i) : v))
            return gr_strdup(
                "a text of 'stop' is none of the rollout's: name it in the graph, as 'stop' of the node");
    return NULL;
}

static bool stops_at_id(const gr_serve_rules *rules, const json_t *id)
{
    for (size_t i = 0; i < rules->n_stop_ids; i++)
        if (json_is_integer(id) && json_integer_value(id) == rules->stop_ids[i]) return true;
    return false;
}

static char *known_stop_ids(const reader *r, const json_t *v)
{
    if (!json_is_array(v)) return gr_printf("'%s' is %s; a list is wanted", r->key, gr_json_kind(v));
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *id = json_array_get(v, i);
        if (stops_at_id(r->rules, id)) continue;
        if (!json_is_integer(id)) return gr_printf("'%s': item %zu is no id", r->key, i);
        return gr_printf(
            "the rollout does not stop at id %lld of '%s': name it in the graph, as 'stop_ids' of the node",
            (long long)json_integer_value(id), r->key);
    }
    return NULL;
}

static char *set_max_tokens(const reader *r, const json_t *v)
{
    const json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < 1) return gr_printf("'%s' must be a whole number, at least 1", r->key);
    if (n > (json_int_t)r->rules->max_tokens)
        return gr_printf("'%s' is %lld, and a turn here has at most %u tokens ('max_tokens' of the node)",
                         r->key, (long long)n, r->rules->max_tokens);
    r->call->max_tokens = (uint32_t)n;
    return NULL;
}

static char *set_flag(const reader *r, const json_t *v, bool *out)
{
    if (!json_is_boolean(v)) return gr_printf("'%s' is %s; true or false is wanted", r->key, gr_json_kind(v));
    *out = json_is_true(v);
    return NULL;
}

static char *set_stream(const reader *r, const json_t *v)
{
    return set_flag(r, v, &r->call->stream);
}

static char *set_stream_options(const reader *r, const json_t *v)
{
    const char *key;
    json_t *value;
    if (!json_is_object(v)) return gr_printf("'%s' is %s; an object is wanted", r->key, gr_json_kind(v));
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        if (strcmp(key, "include_usage"))
            return gr_printf("'%s' is no key of '%s' that is served here", key, r->key);
    }
    value = json_object_get(v, "include_usage");
    return value ? set_flag(r, value, &r->call->stream_usage) : NULL;
}

/* Of a chat a truth value, of sampling_params how many alternatives: none but the token itself. */
static char *set_logprobs(const reader *r, const json_t *v)
{
    if (!json_is_integer(v)) return set_flag(r, v, &r->call->logprobs);
    r->call->logprobs = true;
    return json_integer_value(v) == 0 || json_integer_value(v) == 1
               ? NULL
               : gr_strdup("'logprobs' of more than the sampled token are not served");
}

static char *set_as_ids(const reader *r, const json_t *v)
{
    return set_flag(r, v, &r->call->tokens_as_ids);
}

static char *set_return_ids(const reader *r, const json_t *v)
{
    return set_flag(r, v, &r->call->return_ids);
}

static char *set_prompt(const reader *r, const json_t *v)
{
    if (!json_is_string(v)) return gr_printf("'prompt' is %s; a text is wanted", gr_json_kind(v));
    r->call->prompt = v;
    return NULL;
}

static char *set_frame(const reader *r, const json_t *v)
{
    bool with = true;
    char *why = set_flag(r, v, &with);
    r->call->bare = !with;
    return why;
}

static char *plain_text(const reader *r, const json_t *v)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    (void)r;
    return type && !strcmp(type, "text") ? NULL
                                         : gr_strdup("'response_format' can only be of type \"text\" here");
}

/* It changes nothing of what is sampled or answered. */
static char *any(const reader *r, const json_t *v)
{
    (void)r, (void)v;
    return NULL;
}

/* ---- keys -----------------------------------------------------------------------------------------------
 */

typedef struct key {
    const char *name;
    char *(*take)(const reader *r, const json_t *v);
} key;

static char *read_keys(gr_serve_call *c, const json_t *body, const gr_serve_rules *rules, const key *keys,
                       size_t n, const char *where)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)body, name, v)
    {
        size_t i = 0;
        if (json_is_null(v)) continue; /* not said */
        while (i < n && strcmp(keys[i].name, name)) i++;
        if (i == n) return gr_printf("'%s' is no key of %s that is served here", name, where);
        const reader r = {c, rules, name};
        char *why = keys[i].take(&r, v);
        if (why) return why;
    }
    return NULL;
}

#define SAMPLING                                                                                        \
    {"temperature", same_temperature}, {"top_p", same_top_p}, {"top_k", same_top_k}, {"min_p", none},   \
        {"n", one}, {"best_of", one}, {"presence_penalty", none}, {"frequency_penalty", none},          \
        {"repetition_penalty", one}, {"logit_bias", empty}, {"bad_words", empty}, {"min_tokens", none}, \
        {"ignore_eos", same_ignore_eos}, {"stop", known_stops}, {"stop_token_ids", known_stop_ids},     \
        {"max_tokens", set_max_tokens}, {"logprobs", set_logprobs}, {"skip_special_tokens", any},       \
        {"spaces_between_special_tokens", any},                                                         \
    {                                                                                                   \
        "include_stop_str_in_output", empty                                                             \
    }

static const key chat_keys[] = {SAMPLING,
                                {"model", set_model},
                                {"messages", set_messages},
                                {"tools", set_tools},
                                {"tool_choice", set_tool_choice},
                                {"parallel_tool_calls", only_true},
                                {"chat_template_kwargs", set_variables},
                                {"max_completion_tokens", set_max_tokens},
                                {"top_logprobs", none},
                                {"return_tokens_as_token_ids", set_as_ids},
                                {"return_token_ids", set_return_ids},
                                {"required_prefix_token_ids", take_ids},
                                {"tokens", take_context},
                                {"add_generation_prompt", only_true},
                                {"response_format", plain_text},
                                {"stream", set_stream},
                                {"store", empty},
                                {"stream_options", set_stream_options},
                                {"user", any},
                                {"metadata", any},
                                {"request_id", any},
                                {"priority", any},
                                {"cache_salt", any}};
static const key token_keys[] = {
    {"model", set_model},  {"token_ids", take_ids}, {"sampling_params", any},
    {"stream", no_stream}, {"request_id", any},     {"return_token_ids", set_return_ids},
    {"features", empty},   {"priority", any},       {"cache_salt", any}};
static const key sampling_keys[] = {SAMPLING,
                                    {"detokenize", any},
                                    {"prompt_logprobs", empty},
                                    {"chat_template_kwargs", any}, /* said of messages; here are none */
                                    {"routed_experts_prompt_start", any}};
static const key tokenize_keys[] = {{"model", set_model},
                                    {"prompt", set_prompt},
                                    {"messages", set_messages},
                                    {"tools", set_tools},
                                    {"chat_template_kwargs", set_variables},
                                    {"add_generation_prompt", set_frame},
                                    {"add_special_tokens", set_frame},
                                    {"return_token_strs", empty}};

static char *read_tokens_call(gr_serve_call *c, const json_t *body, const gr_serve_rules *rules)
{
    const json_t *how = json_object_get(body, "sampling_params");
    char *why = read_keys(c, body, rules, token_keys, GR_LEN(token_keys), "this request");
    if (!why && how && !json_is_null(how) && !json_is_object(how))
        why = gr_printf("'sampling_params' is %s; an object is wanted", gr_json_kind(how));
    if (!why) why = read_keys(c, how, rules, sampling_keys, GR_LEN(sampling_keys), "'sampling_params'");
    if (!why && !c->ids.n)
        why = gr_strdup("'token_ids' is missing: the whole context, what was sampled included");
    return why;
}

char *gr_serve_call_read(gr_serve_call *out, gr_call_kind kind, const json_t *body,
                         const gr_serve_rules *rules)
{
    *out = (gr_serve_call){.kind = kind};
    char *why = NULL;
    if (body && gr_json_has_nul(body)) return gr_strdup("it holds the character \\u0000");
    if (kind == GR_CALL_TOKENS) return read_tokens_call(out, body, rules);
    if (kind == GR_CALL_CHAT) {
        why = read_keys(out, body, rules, chat_keys, GR_LEN(chat_keys), "this request");
        if (!why && !out->messages) why = gr_strdup("'messages' is missing");
        if (!why && out->whole && json_object_get(body, "required_prefix_token_ids"))
            why = gr_strdup("'tokens' is the whole context: 'required_prefix_token_ids' does not go with it");
    }
    if (kind == GR_CALL_TOKENIZE) {
        why = read_keys(out, body, rules, tokenize_keys, GR_LEN(tokenize_keys), "this request");
        if (!why && !out->messages == !out->prompt)
            why = gr_strdup("'prompt' or 'messages' is wanted, and not both");
    }
    return why;
}

void gr_serve_call_release(gr_serve_call *c)
{
    json_decref(c->messages);
    json_decref(c->variables);
    free(c->ids.id);
    *c = (gr_serve_call){0};
}
