/* ops/encode.c: records to token ids, by a template of the graph or the checkpoint's chat template. */
#include "ops/encode.h"

#include "ops/text/template.h"
#include "runtime/base/files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char gr_default_date[] = "2024-07-26"; /* what Llama-3's templates say where nobody tells the date */

enum { MAX_TOOLS_BYTES = 1 << 26 };

struct gr_encoder {
    const gr_tokenizer *tokenizer;
    gr_template *text;       /* the template, or that of the user's message */
    gr_chat_template *chat;  /* NULL: a plain template */
    gr_template *system;     /* with chat: the system message, or NULL */
    const char *list_field;  /* messages is one {field}, which may hold a list; NULL: it is not */
    gr_template *tools_text; /* tools is one {field}; NULL: it is not */
    json_t *variables;       /* of the chat template: template_args, tools */
    char *date;
    gr_loc at;
    bool dated; /* a key gave the date */
    bool response;
    uint32_t ids_below;
    gr_chat_asked *asked; /* by the last record */
};

bool gr_is_one_field(const char *text)
{
    size_t n = strlen(text);
    return n > 2 && text[0] == '{' && text[1] != '{' && strchr(text, '}') == text + n - 1;
}

bool gr_date_is_valid(const char *date)
{
    struct tm t = {0}, day;
    const char *end = strlen(date) == strlen(gr_default_date) ? strptime(date, "%Y-%m-%d", &t) : NULL;
    day = t;
    return end && !*end && timegm(&day) != -1 && day.tm_mday == t.tm_mday;
}

/* ---- variables ---------------------------------------------------------------------------------------- */

static void take_args(gr_encoder *e, const gr_value *args, gr_diag *d)
{
    for (size_t i = 0; args && i < args->n; i++) {
        const gr_pair *p = &args->pairs[i];
        json_object_set_new(e->variables, p->key, gr_value_json(&p->value));
        if (!gr_chat_template_names(e->chat, p->key))
            gr_diag_warn(d, p->at, "the chat template reads no variable '%s': it changes nothing", p->key);
    }
}

static gr_status read_tools(gr_encoder *e, const char *path, gr_diag *d)
{
    char *bytes = NULL;
    size_t n;
    json_error_t why;
    gr_status st = gr_file_read(path, MAX_TOOLS_BYTES, &bytes, &n, d);
    if (st) return st;
    json_t *tools = json_loadb(bytes, n, JSON_REJECT_DUPLICATES, &why);
    if (!tools)
        st = gr_diag_error(d, (gr_loc){path, (unsigned)GR_MAX(why.line, 1), (unsigned)GR_MAX(why.column, 1)},
                           GR_E_INVALID, "%s", why.text);
    else if (!json_is_array(tools))
        st = gr_diag_error(d, (gr_loc){path, 1, 1}, GR_E_INVALID, "expected a list of tools");
    else
        json_object_set(e->variables, "tools", tools);
    json_decref(tools);
    free(bytes);
    return st;
}

static gr_status take_tools(gr_encoder *e, const gr_chat_config *c, gr_diag *d)
{
    gr_status st = GR_OK;
    if (!c->tools && !c->tools_file) return GR_OK;
    if (!gr_chat_template_names(e->chat, "tools"))
        gr_diag_warn(d, c->tools ? c->tools->at : e->at,
                     "the chat template takes no tools: they change nothing");
    if (c->tools_file)
        st = read_tools(e, c->tools_file, d);
    else if (c->tools->kind == GR_VALUE_LIST)
        json_object_set_new(e->variables, "tools", gr_value_json(c->tools));
    else
        st = gr_template_new(&e->tools_text, c->tools->text, c->tools->at, d);
    return st;
}

static gr_status open_chat(gr_encoder *e, const gr_encoder_config *c, gr_diag *d)
{
    const gr_chat_config *chat = &c->chat;
    gr_status st = gr_chat_template_load(&e->chat, c->folder, d);
    if (st) return st;
    if (gr_is_one_field(c->messages)) e->list_field = gr_template_field(e->text, 0);
    e->dated = chat->date;
    e->date = gr_strdup(chat->date ? chat->date : gr_default_date);
    if (e->dated && !gr_chat_template_names(e->chat, "strftime_now"))
        gr_diag_warn(d, e->at, "the chat template does not ask for the date: 'date' changes nothing");
    e->variables = json_object();
    take_args(e, chat->args, d);
    st = take_tools(e, chat, d);
    return !st && chat->system ? gr_template_new(&e->system, chat->system, c->at, d) : st;
}

gr_status gr_encoder_new(gr_encoder **out, const gr_encoder_config *c, gr_diag *d)
{
    gr_encoder *e = gr_calloc(1, sizeof(*e));
    bool chat = !strcmp(c->text, "chat") && !c->response;
    e->tokenizer = c->tokenizer;
    e->response = c->response;
    e->ids_below = c->ids_below;
    e->at = c->at;
    e->asked = gr_calloc(1, sizeof(*e->asked));
    gr_status st = gr_template_new(&e->text, chat ? c->messages : c->text, c->at, d);
    if (!st && chat) st = open_chat(e, c, d);
    if (st)
        gr_encoder_free(e);
    else
        *out = e;
    return st;
}

void gr_encoder_free(gr_encoder *e)
{
    if (!e) return;
    gr_template_free(e->text);
    gr_template_free(e->system);
    gr_template_free(e->tools_text);
    gr_chat_template_free(e->chat);
    json_decref(e->variables);
    free(e->date);
    free(e->asked);
    free(e);
}

void gr_encoder_warn_of_date(const gr_encoder *e, const char *name, gr_diag *d)
{
    const gr_chat_asked *asked = e->asked;
    if (asked->date && !e->dated)
        gr_diag_warn(d, e->at,
                     "node '%s': the chat template asks for today's date and gets %s in every run; 'date' "
                     "sets another",
                     name, e->date);
    if (*asked->date_variable)
        gr_diag_warn(
            d, e->at,
            "node '%s': the chat template puts its own date '%s' into the prompts; template_args: {%s: ...} "
            "sets another",
            name, asked->date_default, asked->date_variable);
}

/* ---- running ------------------------------------------------------------------------------------------ */

static gr_status run_plain(const gr_encoder *e, const gr_rendered *r, gr_ids *ids, gr_diag *d)
{
    gr_text_range *fields = gr_malloc(r->n * sizeof(*fields));
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++)
        if (r->segments[i].is_field)
            fields[n++] = (gr_text_range){r->segments[i].from, r->segments[i].from + r->segments[i].n};
    unsigned flags = GR_ENCODE_SPECIAL | (e->response ? 0 : GR_ENCODE_FRAME);
    gr_status st = gr_tokenizer_encode_fields(e->tokenizer, r->text.text ? r->text.text : "", r->text.len,
                                              fields, n, flags, ids, d);
    free(fields);
    return st;
}

/* The list of a record's own tools. */
static gr_status put_tools(const gr_encoder *e, const json_t *row, gr_loc at, json_t *variables, gr_diag *d)
{
    const char *name = gr_template_field(e->tools_text, 0);
    const json_t *tools;
    gr_status st = gr_json_field(row, name, at, &tools, d);
    if (st) return st;
    if (!json_is_array(tools))
        return gr_diag_error(d, at, GR_E_INVALID, "field '%s' must be a list of tools", name);
    json_object_set(variables, "tools", (json_t *)tools);
    return GR_OK;
}

/* The messages with the system message, filled from the row, before them. */
static gr_status put_system(const gr_encoder *e, const json_t *row, gr_loc at, json_t *messages, gr_diag *d)
{
    gr_rendered r = {0};
    const char *first = json_string_value(json_object_get(json_array_get(messages, 0), "role"));
    gr_status st = gr_template_render(e->system, row, at, &r, d);
    if (!st && first && !strcmp(first, "system"))
        st = gr_diag_error(
            d, at, GR_E_INVALID,
            "the messages begin with a system message of their own, and the node has one ('system')");
    if (!st)
        json_array_insert_new(messages, 0,
                              json_pack("{s:s, s:s%}", "role", "system", "content",
                                        r.text.text ? r.text.text : "", r.text.len));
    gr_rendered_release(&r);
    return st;
}

/* Variables of the chat template with other tools, where there are any; a new reference. */
static json_t *variables_with(const gr_encoder *e, const json_t *tools)
{
    json_t *variables = json_copy(e->variables);
    if (tools) json_object_set(variables, "tools", (json_t *)(uintptr_t)tools);
    return variables;
}

static gr_status run_chat(const gr_encoder *e, const json_t *row, gr_loc at, const json_t *said,
                          const json_t *tools, gr_ids *ids, gr_diag *d)
{
    gr_status st = GR_OK;
    json_t *messages = json_copy((json_t *)said), *variables = variables_with(e, tools);
    if (e->system) st = put_system(e, row, at, messages, d);
    if (!st && e->tools_text && !tools) st = put_tools(e, row, at, variables, d);
    gr_chat_options options = {
        .add_generation_prompt = true, .date = e->date, .variables = variables, .asked = e->asked};
    if (!st) st = gr_chat_encode(e->chat, e->tokenizer, messages, &options, ids, d);
    json_decref(messages);
    json_decref(variables);
    return st;
}

/* The messages of a record: a list that it has, or one of the user; a new reference. */
static gr_status messages_of(const gr_encoder *e, const json_t *row, gr_loc at, json_t **out, gr_diag *d)
{
    const json_t *field = NULL;
    gr_rendered r = {0};
    gr_status st = e->list_field ? gr_json_field(row, e->list_field, at, &field, d) : GR_OK;
    if (st) return st;
    if (json_is_array(field)) {
        *out = json_incref((json_t *)(uintptr_t)field);
        return GR_OK;
    }
    st = gr_template_render(e->text, row, at, &r, d);
    if (!st)
        *out =
            json_pack("[{s:s, s:s%}]", "role", "user", "content", r.text.text ? r.text.text : "", r.text.len);
    gr_rendered_release(&r);
    return st;
}

gr_status gr_encoder_open(const gr_encoder *e, const json_t *row, gr_loc at, const json_t *messages,
                          const json_t *tools, gr_ids *ids, gr_diag *d)
{
    json_t *own = NULL;
    gr_status st = messages ? GR_OK : messages_of(e, row, at, &own, d);
    if (!st) st = run_chat(e, row, at, messages ? messages : own, tools, ids, d);
    json_decref(own);
    return st;
}

gr_status gr_encoder_check(const gr_encoder *e, const json_t *row, gr_diag *d)
{
    gr_status st = gr_template_check(e->text, row, d);
    if (e->system && gr_template_check(e->system, row, d)) st = GR_E_INVALID;
    if (e->tools_text && gr_template_check(e->tools_text, row, d)) st = GR_E_INVALID;
    return st;
}

static gr_status run_ids(const gr_encoder *e, const json_t *row, gr_loc at, gr_ids *ids, gr_diag *d)
{
    const char *name = gr_template_field(e->text, 0);
    const json_t *list, *id;
    size_t i;
    gr_status st = gr_json_field(row, name, at, &list, d);
    if (st) return st;
    if (!json_is_array(list))
        return gr_diag_error(d, at, GR_E_INVALID, "field '%s' must be a list of ids", name);
    json_array_foreach(list, i, id)
    {
        const json_int_t x = json_is_integer(id) ? json_integer_value(id) : -1;
        if (x < 0 || x >= (json_int_t)e->ids_below)
            return gr_diag_error(d, at, GR_E_INVALID,
                                 "field '%s': item %zu is no id of the model, from 0 to %u", name, i,
                                 e->ids_below - 1);
        GR_PUSH(ids->id, ids->n, ids->cap, (int32_t)x);
    }
    return GR_OK;
}

gr_status gr_encoder_run(const gr_encoder *e, const json_t *row, gr_loc at, gr_ids *ids, gr_diag *d)
{
    if (e->ids_below) return run_ids(e, row, at, ids, d);
    if (e->chat) return gr_encoder_open(e, row, at, NULL, NULL, ids, d);
    gr_rendered r = {0};
    gr_status st = gr_template_render(e->text, row, at, &r, d);
    if (!st) st = run_plain(e, &r, ids, d);
    gr_rendered_release(&r);
    return st;
}

const gr_chat_template *gr_encoder_chat(const gr_encoder *e)
{
    return e->chat;
}

gr_status gr_encoder_more(const gr_encoder *e, const json_t *messages, const json_t *tools, int32_t last,
                          const char *called, gr_ids *ids, gr_diag *d)
{
    if (!e->chat)
        return gr_diag_error(
            d, e->at, GR_E_INVALID,
            "an environment answers with 'messages' where prompts have 'template: chat'; here "
            "it can answer with 'text'");
    json_t *variables = variables_with(e, tools);
    const gr_chat_options options = {.add_generation_prompt = true,
                                     .date = e->date,
                                     .variables = variables,
                                     .asked = e->asked,
                                     .called = called};
    const gr_status st = gr_chat_encode_more(e->chat, e->tokenizer, messages, &options, last, ids, d);
    json_decref(variables);
    return st;
}
