#include "ops/encode.h"

#include "ops/chat_template.h"
#include "ops/template.h"

#include <stdlib.h>
#include <string.h>

struct gr_encoder {
    const gr_tokenizer *tokenizer;
    gr_template *text;      /* the template, or that of the user's message */
    gr_chat_template *chat; /* NULL: a plain template */
    const char *list_field; /* messages is one {field}, which may hold a list; NULL: it is not */
    bool response;
};

/* "{field}" and nothing else. */
static bool is_one_field(const char *text)
{
    size_t n = strlen(text);
    return n > 2 && text[0] == '{' && text[1] != '{' && strchr(text, '}') == text + n - 1;
}

gr_status gr_encoder_new(gr_encoder **out, const gr_encoder_config *c, gr_diag *d)
{
    gr_encoder *e = gr_calloc(1, sizeof(*e));
    bool chat = !strcmp(c->text, "chat") && !c->response;
    e->tokenizer = c->tokenizer;
    e->response = c->response;
    gr_status st = gr_template_new(&e->text, chat ? c->messages : c->text, c->at, d);
    if (!st && chat) {
        st = gr_chat_template_load(&e->chat, c->folder, d);
        if (!st && is_one_field(c->messages)) e->list_field = gr_template_field(e->text, 0);
    }
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
    gr_chat_template_free(e->chat);
    free(e);
}

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

static gr_status run_chat(const gr_encoder *e, const json_t *messages, gr_ids *ids, gr_diag *d)
{
    gr_chat_options options = {.add_generation_prompt = true};
    return gr_chat_encode(e->chat, e->tokenizer, messages, &options, ids, d);
}

static gr_status run_message(const gr_encoder *e, const gr_rendered *r, gr_ids *ids, gr_diag *d)
{
    json_t *messages =
        json_pack("[{s:s, s:s%}]", "role", "user", "content", r->text.text ? r->text.text : "", r->text.len);
    gr_status st = run_chat(e, messages, ids, d);
    json_decref(messages);
    return st;
}

gr_status gr_encoder_run(const gr_encoder *e, const json_t *row, gr_loc at, gr_ids *ids, gr_diag *d)
{
    const json_t *field = NULL;
    if (e->list_field) {
        gr_status st = gr_json_field(row, e->list_field, at, &field, d);
        if (st) return st;
        if (json_is_array(field)) return run_chat(e, field, ids, d);
    }
    gr_rendered r = {0};
    gr_status st = gr_template_render(e->text, row, at, &r, d);
    if (!st) st = e->chat ? run_message(e, &r, ids, d) : run_plain(e, &r, ids, d);
    gr_rendered_release(&r);
    return st;
}
