/* tests/oracle/text_lines.c: templates and tokenizers for the comparing scripts beside it, one JSON a line.
 *
 * usage: text_lines [TOKENIZER_FOLDER] < REQUESTS
 *     {"template", "messages", "variables", "date", "add_generation_prompt"}   gives {"text"} or {"error"}
 *     {"encode": text, "special": bool, "frame": bool}                         gives {"ids"} or {"error"}
 *     {"decode": [ids], "skip_special": bool}                                  gives {"text"}
 * A text that is not UTF-8 comes as a list of its bytes.
 */
#include "ops/text/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *failed(const gr_diag *d)
{
    char *text = d->n_errors ? gr_message_format(&d->messages[0]) : gr_strdup("(no message)");
    json_t *out = json_pack("{s:s}", "error", text);
    free(text);
    return out;
}

static json_t *text_or_bytes(const gr_str *s)
{
    json_t *text = json_stringn(s->text ? s->text : "", s->len);
    if (text) return text;
    text = json_array();
    for (size_t i = 0; i < s->len; i++) json_array_append_new(text, json_integer((unsigned char)s->text[i]));
    return text;
}

static json_t *render(const json_t *q, gr_diag *d)
{
    const json_t *source = json_object_get(q, "template");
    gr_chat_template *t = NULL;
    gr_chat_text x = {0};
    gr_chat_options o = {.add_generation_prompt = json_is_true(json_object_get(q, "add_generation_prompt")),
                         .date = json_string_value(json_object_get(q, "date")),
                         .variables = json_object_get(q, "variables")};
    gr_status st = gr_chat_template_parse(&t, json_string_value(source), json_string_length(source), d);
    if (!st) st = gr_chat_render(t, NULL, json_object_get(q, "messages"), &o, &x, d);
    json_t *out = st ? failed(d) : json_pack("{s:o}", "text", text_or_bytes(&x.text));
    gr_chat_text_release(&x);
    gr_chat_template_free(t);
    return out;
}

static json_t *encode(const gr_tokenizer *t, const json_t *q, gr_diag *d)
{
    const json_t *text = json_object_get(q, "encode");
    unsigned flags = (json_is_true(json_object_get(q, "special")) ? GR_ENCODE_SPECIAL : 0) |
                     (json_is_true(json_object_get(q, "frame")) ? GR_ENCODE_FRAME : 0);
    gr_ids ids = {0};
    gr_status st = gr_tokenizer_encode(t, json_string_value(text), json_string_length(text), flags, &ids, d);
    json_t *list = json_array();
    for (size_t i = 0; i < ids.n; i++) json_array_append_new(list, json_integer(ids.id[i]));
    json_t *out = st ? failed(d) : json_pack("{s:O}", "ids", list);
    json_decref(list);
    free(ids.id);
    return out;
}

static json_t *decode(const gr_tokenizer *t, const json_t *q)
{
    const json_t *list = json_object_get(q, "decode");
    size_t n = json_array_size(list);
    int32_t *ids = gr_malloc((n + 1) * sizeof(*ids));
    gr_str s = {0};
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    gr_tokenizer_decode(t, ids, n, json_is_true(json_object_get(q, "skip_special")), &s);
    json_t *out = json_pack("{s:o}", "text", text_or_bytes(&s));
    gr_str_release(&s);
    free(ids);
    return out;
}

static void answer(const gr_tokenizer *t, const char *line, size_t n)
{
    gr_diag d;
    gr_diag_init(&d);
    json_t *q = json_loadb(line, n, JSON_ALLOW_NUL, NULL);
    json_t *out = json_object_get(q, "template")      ? render(q, &d)
                  : t && json_object_get(q, "encode") ? encode(t, q, &d)
                  : t && json_object_get(q, "decode") ? decode(t, q)
                                                      : json_pack("{s:s}", "error", "no request");
    char *text = json_dumps(out, JSON_COMPACT | JSON_ENSURE_ASCII);
    puts(text);
    fflush(stdout); /* who asks waits for it */
    free(text);
    json_decref(out);
    json_decref(q);
    gr_diag_release(&d);
}

int main(int argc, char **argv)
{
    gr_tokenizer *t = NULL;
    gr_diag d;
    gr_diag_init(&d);
    char *line = NULL;
    size_t cap = 0;
    bool loaded = argc < 2 || gr_tokenizer_load(&t, argv[1], &d) == GR_OK;
    for (size_t i = 0; i < d.n; i++) {
        char *text = gr_message_format(&d.messages[i]);
        fprintf(stderr, "%s\n", text);
        free(text);
    }
    for (ssize_t n; loaded && (n = getline(&line, &cap, stdin)) > 0;) answer(t, line, (size_t)n);
    free(line);
    gr_tokenizer_free(t);
    gr_diag_release(&d);
    return !loaded;
}
