/* ops/text/chat_template.c: loading and rendering of chat templates. */
#include "ops/text/chat_impl.h"
#include "runtime/base/files.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 1 << 28 };

/* ---- loading ------------------------------------------------------------------------------------------ */

gr_status gr_chat_template_parse(gr_chat_template **out, const char *source, size_t n, gr_diag *d)
{
    gr_chat_template *t = gr_calloc(1, sizeof(*t));
    t->arena = gr_arena_new();
    gr_status st = gr_chat_parse(t->arena, source, n, &t->body, d);
    if (st == GR_OK)
        *out = t;
    else
        gr_chat_template_free(t);
    return st;
}

void gr_chat_template_free(gr_chat_template *t)
{
    if (!t) return;
    gr_arena_free(t->arena);
    free(t);
}

static bool names(const node *first, const char *variable)
{
    bool found = false;
    for (const node *n = first; n && !found; n = n->next) {
        const node *const below[] = {n->a, n->b, n->c, n->args, n->body, n->or_else};
        found = n->kind == N_NAME && !strcmp(n->text, variable);
        for (size_t i = 0; i < GR_LEN(below) && !found; i++) found = names(below[i], variable);
    }
    return found;
}

bool gr_chat_template_names(const gr_chat_template *t, const char *variable)
{
    return names(t->body, variable);
}

static bool says(const node *first, const char *bytes, size_t n)
{
    bool found = false;
    for (const node *x = first; x && !found; x = x->next) {
        const node *const below[] = {x->a, x->b, x->c, x->args, x->body, x->or_else};
        found = x->text && memmem(x->text, x->n, bytes, n);
        for (size_t i = 0; i < GR_LEN(below) && !found; i++) found = says(below[i], bytes, n);
    }
    return found;
}

bool gr_chat_template_says(const gr_chat_template *t, const char *bytes)
{
    return says(t->body, bytes, strlen(bytes));
}

/* The "default" of a list of {"name", "template"}, or the one there is. */
static const json_t *find_template(const json_t *config)
{
    const json_t *t = json_object_get(config, "chat_template");
    for (size_t i = 0; i < json_array_size(t); i++) {
        const json_t *one = json_array_get(t, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && !strcmp(name, "default")) return json_object_get(one, "template");
    }
    return t;
}

static gr_status parse_config(gr_chat_template **out, const char *path, const char *config, size_t n,
                              gr_diag *d)
{
    json_error_t e;
    json_t *root = json_loadb(config, n, 0, &e);
    const json_t *source = find_template(root);
    gr_status st;
    if (!root)
        st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "'%s': line %d column %d: %s", path, e.line,
                           e.column, e.text);
    else if (!json_is_string(source))
        st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "'%s' has no chat_template", path);
    else
        st = gr_chat_template_parse(out, json_string_value(source), json_string_length(source), d);
    json_decref(root);
    return st;
}

gr_status gr_chat_template_load(gr_chat_template **out, const char *dir, gr_diag *d)
{
    char *jinja = gr_printf("%s/chat_template.jinja", dir),
         *config = gr_printf("%s/tokenizer_config.json", dir);
    bool alone = gr_path_exists(jinja);
    const char *path = alone ? jinja : config;
    char *bytes = NULL;
    size_t n;
    gr_status st = gr_file_read(path, MAX_FILE_BYTES, &bytes, &n, d);
    if (st == GR_OK)
        st = alone ? gr_chat_template_parse(out, bytes, n, d) : parse_config(out, path, bytes, n, d);
    if (st == GR_E_INVALID) gr_diag_note(d, (gr_loc){0}, "while reading the chat template in '%s'", path);
    free(bytes);
    free(jinja);
    free(config);
    return st;
}

/* ---- rendering ---------------------------------------------------------------------------------------- */

static void set(render *r, const char *name, value v)
{
    gr_chat_bind(r, &r->root, name, v);
}

static void set_variables(render *r, const gr_tokenizer *tok, const json_t *messages,
                          const gr_chat_options *options)
{
    const char *key;
    json_t *j;
    set(r, "messages", gr_chat_from_json(r, messages));
    set(r, "tools", (value){.kind = V_NONE});
    set(r, "documents", (value){.kind = V_NONE});
    set(r, "add_generation_prompt", gr_chat_bool(options->add_generation_prompt));
    for (int i = 0; tok && i < GR_TOKEN_ROLES; i++) {
        size_t n;
        const char *bytes = gr_tokenizer_token(tok, gr_tokenizer_role(tok, (gr_token_role)i), &n);
        if (bytes) set(r, gr_token_role_names[i], gr_chat_string(r, bytes, n, false));
    }
    json_object_foreach((json_t *)options->variables, key, j)
    {
        set(r, gr_arena_strdup(r->arena, key), gr_chat_from_json(r, j));
    }
}

/* What the template itself set for a date that it found nowhere; not where it went by strftime_now. */
static void set_asked(const render *r, gr_chat_asked *asked)
{
    const char *name = r->asked.date_variable;
    const value *v = gr_chat_dict_get(&r->root.vars, name, strlen(name));
    *asked = (gr_chat_asked){.date = r->asked.date};
    if (!*name || asked->date || !v || v->kind != V_STRING) return;
    memcpy(asked->date_variable, name, strlen(name));
    memcpy(asked->date_default, v->s.s, GR_MIN(v->s.n, sizeof(asked->date_default) - 1));
}

/* Runs of marked bytes as ranges. */
static void collect_fields(const gr_str *marks, gr_chat_text *out)
{
    for (size_t i = 0; i < marks->len;) {
        size_t begin = i;
        while (i < marks->len && marks->text[i] == marks->text[begin]) i++;
        if (marks->text[begin])
            GR_PUSH(out->fields, out->n_fields, out->cap_fields, ((gr_text_range){begin, i}));
    }
}

gr_status gr_chat_render(const gr_chat_template *t, const gr_tokenizer *tok, const json_t *messages,
                         const gr_chat_options *options, gr_chat_text *out, gr_diag *d)
{
    builder b = {0};
    render r = {.arena = gr_arena_new(), .d = d, .date = options->date, .out = &b};
    r.scope = &r.root;
    gr_chat_text_release(out);
    if (json_is_array(messages))
        set_variables(&r, tok, messages, options);
    else
        gr_chat_fail(&r, NULL, "a conversation must be a list of messages");
    gr_chat_exec(&r, t->body);
    if (options->asked) set_asked(&r, options->asked);
    if (r.st == GR_OK) {
        collect_fields(&b.field, out);
        out->text = b.s;
        b.s = (gr_str){0};
    }
    gr_str_release(&b.s);
    gr_str_release(&b.field);
    gr_arena_free(r.arena);
    return r.st;
}

void gr_chat_text_release(gr_chat_text *x)
{
    gr_str_release(&x->text);
    free(x->fields);
    *x = (gr_chat_text){0};
}

gr_status gr_chat_encode(const gr_chat_template *t, const gr_tokenizer *tok, const json_t *messages,
                         const gr_chat_options *options, gr_ids *ids, gr_diag *d)
{
    gr_chat_text x = {0};
    gr_status st = gr_chat_render(t, tok, messages, options, &x, d);
    if (st == GR_OK)
        st = gr_tokenizer_encode_fields(tok, x.text.text ? x.text.text : "", x.text.len, x.fields, x.n_fields,
                                        GR_ENCODE_SPECIAL, ids, d);
    gr_chat_text_release(&x);
    return st;
}

/* What stands for the model's own words: no template takes blanks off it, or finds a tag in it. */
static const char words[] = "~the.words.of.the.model~";

/* Whether they answer a call, which the template wants to see before them. */
static bool answers_call(const gr_chat_template *t, const json_t *messages, const char *called)
{
    const char *role = json_string_value(json_object_get(json_array_get(messages, 0), "role"));
    return called && role && !strcmp(role, "tool") && gr_chat_template_says(t, "<|channel|>");
}

/* The conversation up to the model's words, then the messages. called: they are the argument of a call; NULL.
 */
static json_t *after_words(const json_t *messages, const char *called)
{
    json_t *said = called ? json_pack("{s:s, s:[{s:{s:s, s:{s:s}}}]}", "role", "assistant", "tool_calls",
                                      "function", "name", called, "arguments", "x", words)
                          : json_pack("{s:s, s:s}", "role", "assistant", "content", words);
    json_t *all = json_pack("[{s:s, s:s}, o]", "role", "user", "content", "-", said);
    json_array_extend(all, (json_t *)(uintptr_t)messages);
    return all;
}

/* By channels (gpt-oss) a model ends its last message with the first of these; what goes on, with the other.
 */
static const char returns[] = "<|return|>", ends[] = "<|end|>";

/* The bytes behind the model's words, and what of them came from fields. */
static gr_status encode_behind(const gr_tokenizer *tok, gr_chat_text *x, size_t from, int32_t last,
                               gr_ids *ids, gr_diag *d)
{
    size_t n_end = 0, n_fields = 0;
    const char *end = gr_tokenizer_token(tok, last, &n_end);
    if (end && n_end && gr_tokenizer_is_special(tok, last) && x->text.len - from >= n_end &&
        !memcmp(x->text.text + from, end, n_end))
        from += n_end;
    else if (end && n_end == strlen(returns) && !memcmp(end, returns, n_end) &&
             !strncmp(x->text.text + from, ends, strlen(ends)))
        from += strlen(ends);
    for (size_t i = 0; i < x->n_fields; i++)
        if (x->fields[i].begin >= from)
            x->fields[n_fields++] = (gr_text_range){x->fields[i].begin - from, x->fields[i].end - from};
    return gr_tokenizer_encode_fields(tok, x->text.text + from, x->text.len - from, x->fields, n_fields,
                                      GR_ENCODE_SPECIAL, ids, d);
}

gr_status gr_chat_encode_more(const gr_chat_template *t, const gr_tokenizer *tok, const json_t *messages,
                              const gr_chat_options *options, int32_t last, gr_ids *ids, gr_diag *d)
{
    gr_chat_text x = {0};
    const bool answers = answers_call(t, messages, options->called);
    json_t *all = after_words(messages, answers ? options->called : NULL);
    gr_status st = gr_chat_render(t, tok, all, options, &x, d);
    const size_t n = strlen(words);
    const char *at = st ? NULL : memmem(x.text.text ? x.text.text : "", x.text.len, words, n);
    if (!st && !at)
        st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                           "the chat template does not show what an assistant's message says as it stands");
    if (!st)
        st = encode_behind(tok, &x, (size_t)(at - x.text.text) + n + (answers ? strlen("\"}") : 0), last, ids,
                           d);
    gr_chat_text_release(&x);
    json_decref(all);
    return st;
}
