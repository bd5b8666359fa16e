/* ops/text/tool_calls.c: calls of tools in what a model wrote. */
#include "ops/text/tool_calls.h"

#include <string.h>

#include "runtime/base/json.h"

enum { MOST_CALLS = 64 }; /* of a turn: a model that repeats itself fills no request with them */

gr_tool_form gr_tool_form_of(const gr_chat_template *t)
{
    const bool llama = t && !gr_chat_template_says(t, "<tool_call>") &&
                       (gr_chat_template_says(t, "<|python_tag|>") || gr_chat_template_says(t, "ipython"));
    return llama ? GR_TOOLS_LLAMA : GR_TOOLS_HERMES;
}

static void add_error(json_t *calls, const char *why, const char *text, size_t n)
{
    json_array_append_new(calls, json_pack("{s:s, s:o}", "error", why, "text", gr_json_string(text, n)));
}

/* Arguments as an object; a text that holds one is read, as some models write it. A new reference, or NULL.
 */
static json_t *arguments_of(const json_t *call)
{
    json_t *a = json_object_get(call, "arguments");
    if (!a) a = json_object_get(call, "parameters");
    if (!a) return json_object();
    if (!json_is_string(a)) return json_is_object(a) ? json_incref(a) : NULL;
    json_t *read = json_loadb(json_string_value(a), json_string_length(a), JSON_REJECT_DUPLICATES, NULL);
    if (json_is_object(read)) return read;
    json_decref(read);
    return NULL;
}

/* Add the call of one JSON text. flags: of jansson. Returns the bytes that were read. */
static size_t add_call(json_t *calls, const char *text, size_t n, size_t flags)
{
    json_error_t e;
    json_t *call = json_loadb(text, n, flags | JSON_REJECT_DUPLICATES, &e);
    const char *name = json_string_value(json_object_get(call, "name"));
    json_t *arguments = name ? arguments_of(call) : NULL;
    if (!call)
        add_error(calls, e.text, text, n);
    else if (!name)
        add_error(calls, "a call is an object with a 'name'", text, n);
    else if (!arguments)
        add_error(calls, "the arguments are not an object", text, n);
    else
        json_array_append_new(calls, json_pack("{s:s, s:O}", "name", name, "arguments", arguments));
    json_decref(arguments);
    json_decref(call);
    return call && e.position > 0 ? (size_t)e.position : n;
}

static void hermes_calls(json_t *calls, const char *text, size_t n)
{
    static const char open[] = "<tool_call>", close[] = "</tool_call>";
    const size_t n_open = strlen(open), n_close = strlen(close);
    const char *at = text, *end = text + n;
    while (json_array_size(calls) < MOST_CALLS && (at = memmem(at, (size_t)(end - at), open, n_open))) {
        at += n_open;
        const char *to = memmem(at, (size_t)(end - at), close, n_close);
        if (!to) {
            add_error(calls, "no </tool_call> follows", at, (size_t)(end - at));
            return;
        }
        add_call(calls, at, (size_t)(to - at), 0);
        at = to + n_close;
    }
}

static size_t blanks(const char *text, size_t n, const char *of)
{
    size_t i = 0;
    while (i < n && text[i] && strchr(of, text[i])) i++;
    return i;
}

static void llama_calls(json_t *calls, const char *text, size_t n)
{
    static const char tag[] = "<|python_tag|>";
    const size_t n_tag = strlen(tag);
    size_t at = blanks(text, n, " \t\r\n");
    const bool tagged = n - at >= n_tag && !memcmp(text + at, tag, n_tag);
    if (tagged) at += n_tag;
    at += blanks(text + at, n - at, " \t\r\n");
    if (!tagged && (at == n || text[at] != '{')) return; /* plain text */
    while (at < n && json_array_size(calls) < MOST_CALLS) {
        at += add_call(calls, text + at, n - at, JSON_DISABLE_EOF_CHECK);
        at += blanks(text + at, n - at, " \t\r\n;");
    }
}

json_t *gr_tool_calls(gr_tool_form form, const char *text, size_t n)
{
    json_t *calls = json_array();
    if (form == GR_TOOLS_LLAMA)
        llama_calls(calls, text, n);
    else
        hermes_calls(calls, text, n);
    return calls;
}
