/* ops/text/tool_calls.c: calls of tools in what a model wrote. */
#include "ops/text/tool_calls.h"

#include <string.h>

#include "runtime/base/json.h"

enum { MOST_CALLS = 64 }; /* of a turn: a model that repeats itself fills no request with them */

gr_tool_form gr_tool_form_of(const gr_chat_template *t)
{
    if (t && gr_chat_template_says(t, "<|channel|>")) return GR_TOOLS_HARMONY;
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

/* Add a call, and say of one that cannot be read why: with the text that it was in. */
static void add_named(json_t *calls, const char *name, size_t n_name, json_t *arguments)
{
    json_array_append_new(
        calls, json_pack("{s:o, s:O}", "name", gr_json_string(name, n_name), "arguments", arguments));
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
        add_named(calls, name, strlen(name), arguments);
    json_decref(arguments);
    json_decref(call);
    return call && e.position > 0 ? (size_t)e.position : n;
}

/* ---- tags ------------------------------------------------------------------------------------------------
 */

/* Where `what` begins in [at, end); NULL. */
static const char *find(const char *at, const char *end, const char *what)
{
    return memmem(at, (size_t)(end - at), what, strlen(what));
}

static bool begins(const char *at, const char *end, const char *what)
{
    return (size_t)(end - at) >= strlen(what) && !memcmp(at, what, strlen(what));
}

static size_t blanks(const char *text, size_t n, const char *of)
{
    size_t i = 0;
    while (i < n && text[i] && strchr(of, text[i])) i++;
    return i;
}

/* A value as the template writes it, between line feeds of its own. */
static json_t *value_of(const char *at, const char *end)
{
    if (at < end && *at == '\n') at++;
    if (at < end && end[-1] == '\n') end--;
    json_t *v = at < end && strchr("{[", *at)
                    ? json_loadb(at, (size_t)(end - at), JSON_REJECT_DUPLICATES, NULL)
                    : NULL;
    return v ? v : gr_json_string(at, (size_t)(end - at));
}

/* The parameters of [at, end), into arguments; NULL, or what is wrong. */
static const char *take_parameters(const char *at, const char *end, json_t *arguments)
{
    static const char open[] = "<parameter=", close[] = "</parameter>";
    for (;;) {
        at += blanks(at, (size_t)(end - at), " \t\r\n");
        if (at == end) return NULL;
        if (!begins(at, end, open)) return "<parameter=NAME> is wanted";
        const char *name = at + strlen(open), *to = find(name, end, ">"),
                   *stop = to ? find(to, end, close) : NULL;
        if (!to || to == name) return "a parameter has no name";
        if (!stop) return "no </parameter> follows";
        json_t *key = gr_json_string(name, (size_t)(to - name));
        json_object_set_new(arguments, json_string_value(key), value_of(to + 1, stop));
        json_decref(key);
        at = stop + strlen(close);
    }
}

/* <function=NAME> ... </function> */
static void tagged_call(json_t *calls, const char *text, const char *end)
{
    const char *name = text + strlen("<function="), *to = find(name, end, ">"),
               *stop = to ? find(to, end, "</function>") : NULL;
    json_t *arguments = json_object();
    const char *why = memchr(text, 0, (size_t)(end - text)) ? "it holds the character \\u0000"
                      : !to || to == name                   ? "a function has no name"
                      : !stop                               ? "no </function> follows"
                                                            : take_parameters(to + 1, stop, arguments);
    if (why)
        add_error(calls, why, text, (size_t)(end - text));
    else
        add_named(calls, name, (size_t)(to - name), arguments);
    json_decref(arguments);
}

/* What one <tool_call> holds. */
static void hermes_call(json_t *calls, const char *text, const char *end)
{
    const char *at = text + blanks(text, (size_t)(end - text), " \t\r\n");
    if (begins(at, end, "<function="))
        tagged_call(calls, at, end);
    else
        add_call(calls, text, (size_t)(end - text), 0);
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
        hermes_call(calls, at, to);
        at = to + n_close;
    }
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

/* ---- channels --------------------------------------------------------------------------------------------
 */

/* A message of a turn: its header, and behind <|message|> what it says. */
typedef struct channel_message {
    const char *header, *says, *end; /* says NULL: there is no <|message|> */
} channel_message;

/* The next message of [*at, end); false: none is left. The first one's header begins with the turn. */
static bool next_message(const char **at, const char *end, channel_message *m)
{
    static const char *const ends[] = {"<|end|>", "<|call|>", "<|return|>", "<|start|>"};
    if (*at >= end) return false;
    const char *says = find(*at, end, "<|message|>");
    *m = (channel_message){*at, says ? says + strlen("<|message|>") : NULL, end};
    const char *from = says ? m->says : *at, *next = end;
    for (size_t i = 0; i < GR_LEN(ends); i++) {
        const char *to = find(from, m->end, ends[i]);
        if (!to || (!says && to == *at)) continue; /* a header may begin with <|start|> */
        m->end = to;
        next = to + (strcmp(ends[i], "<|start|>") ? strlen(ends[i]) : 0);
    }
    *at = next;
    return true;
}

/* Who a message is to, in its header; NULL: nobody. */
static const char *recipient(const channel_message *m, size_t *n)
{
    static const char functions[] = "functions.";
    const char *end = m->says ? m->says : m->end, *to = find(m->header, end, "to=");
    if (!to) return NULL;
    to += strlen("to=");
    if (begins(to, end, functions)) to += strlen(functions);
    *n = 0;
    while (to + *n < end && !strchr(" \t\r\n<", to[*n])) ++*n;
    return to;
}

static void harmony_calls(json_t *calls, const char *text, size_t n)
{
    channel_message m;
    for (const char *at = text; json_array_size(calls) < MOST_CALLS && next_message(&at, text + n, &m);) {
        size_t n_name = 0;
        const char *name = recipient(&m, &n_name);
        if (!name) continue;
        json_error_t e = {0};
        json_t *arguments =
            m.says ? json_loadb(m.says, (size_t)(m.end - m.says), JSON_REJECT_DUPLICATES, &e) : NULL;
        const char *why = !n_name                      ? "a call names no function"
                          : !m.says                    ? "no <|message|> follows"
                          : !arguments                 ? e.text
                          : !json_is_object(arguments) ? "the arguments are not an object"
                                                       : NULL;
        if (why)
            add_error(calls, why, m.says ? m.says : m.header, (size_t)(m.end - (m.says ? m.says : m.header)));
        else
            add_named(calls, name, n_name, arguments);
        json_decref(arguments);
    }
}

static size_t first_harmony_call(const char *text, size_t n)
{
    channel_message m;
    size_t n_name;
    for (const char *at = text; next_message(&at, text + n, &m);)
        if (recipient(&m, &n_name)) return (size_t)(m.header - text);
    return n;
}

size_t gr_tool_calls_at(gr_tool_form form, const char *text, size_t n)
{
    const char *call = form == GR_TOOLS_HERMES ? find(text, text + n, "<tool_call>") : NULL;
    size_t at = form == GR_TOOLS_HARMONY ? first_harmony_call(text, n) : call ? (size_t)(call - text) : 0;
    while (at && strchr(" \t\r\n", text[at - 1])) at--;
    return at;
}

json_t *gr_tool_calls(gr_tool_form form, const char *text, size_t n)
{
    json_t *calls = json_array();
    if (form == GR_TOOLS_LLAMA)
        llama_calls(calls, text, n);
    else if (form == GR_TOOLS_HARMONY)
        harmony_calls(calls, text, n);
    else
        hermes_calls(calls, text, n);
    return calls;
}
