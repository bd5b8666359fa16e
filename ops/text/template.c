/* ops/text/template.c: templates with {field}s of records. */
#include "ops/text/template.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct part {
    char *text; /* literal text, or the name of a field */
    size_t character;
    bool is_field;
};

struct gr_template {
    gr_loc at;
    struct part *parts;
    size_t n, cap, n_fields;
};

static size_t count_characters(const char *from, const char *to)
{
    size_t n = 0;
    for (; from < to; from++) n += (*from & 0xC0) != 0x80;
    return n;
}

static gr_status brace_error(const gr_template *t, size_t character, const char *what, gr_diag *d)
{
    return gr_diag_error(d, t->at, GR_E_INVALID,
                         "%s at character %zu of the template; write '{{' or '}}' for a brace itself", what,
                         character);
}

static void end_literal(gr_template *t, gr_str *literal)
{
    if (literal->len) GR_PUSH(t->parts, t->n, t->cap, ((struct part){gr_strdup(literal->text), 0, false}));
    gr_str_release(literal);
    *literal = (gr_str){0};
}

/* Parse the field whose '{' is at p; returns what follows it, or the text's end after an error. */
static const char *parse_field(gr_template *t, const char *p, size_t character, gr_status *st, gr_diag *d)
{
    size_t n = strcspn(p + 1, "{}\n");
    const char *end = p + 1 + n;
    if (*end != '}') {
        *st = brace_error(t, character, "'{' without its '}'", d);
        return end;
    }
    if (n == 0) *st = brace_error(t, character, "'{}' without a name", d);
    GR_PUSH(t->parts, t->n, t->cap, ((struct part){gr_strndup(p + 1, n), character, true}));
    t->n_fields++;
    return end + 1;
}

gr_status gr_template_new(gr_template **out, const char *text, gr_loc at, gr_diag *d)
{
    gr_status st = GR_OK;
    gr_str literal = {0};
    gr_template *t = gr_calloc(1, sizeof(*t));
    t->at = at;
    for (const char *p = text; *p;) {
        size_t character = count_characters(text, p) + 1;
        size_t plain = strcspn(p, "{}");
        if (plain) {
            gr_str_add(&literal, p, plain);
            p += plain;
        } else if (p[1] == *p) {
            gr_str_putc(&literal, *p);
            p += 2;
        } else if (*p == '}') {
            st = brace_error(t, character, "'}' without its '{'", d);
            p++;
        } else {
            end_literal(t, &literal);
            p = parse_field(t, p, character, &st, d);
        }
    }
    end_literal(t, &literal);
    if (st)
        gr_template_free(t);
    else
        *out = t;
    return st;
}

void gr_template_free(gr_template *t)
{
    if (!t) return;
    for (size_t i = 0; i < t->n; i++) free(t->parts[i].text);
    free(t->parts);
    free(t);
}

size_t gr_template_fields(const gr_template *t)
{
    return t->n_fields;
}

const char *gr_template_field(const gr_template *t, size_t i)
{
    assert(i < t->n_fields);
    const struct part *p = t->parts;
    for (;; p++)
        if (p->is_field && i-- == 0) return p->text;
}

gr_status gr_template_check(const gr_template *t, const json_t *row, gr_diag *d)
{
    gr_status st = GR_OK;
    for (size_t i = 0; i < t->n; i++) {
        const json_t *v;
        if (!t->parts[i].is_field || !gr_json_field(row, t->parts[i].text, t->at, &v, d)) continue;
        st = GR_E_INVALID;
        gr_diag_note(d, t->at, "the field stands at character %zu of the template", t->parts[i].character);
    }
    return st;
}

gr_status gr_template_render(const gr_template *t, const json_t *row, gr_loc row_at, gr_rendered *out,
                             gr_diag *d)
{
    out->text.len = out->n = 0;
    for (size_t i = 0; i < t->n; i++) {
        const struct part *p = &t->parts[i];
        size_t from = out->text.len;
        gr_status st = GR_OK;
        if (p->is_field)
            st = gr_json_text(row, p->text, row_at, &out->text, d);
        else
            gr_str_puts(&out->text, p->text);
        if (st) return st;
        if (out->text.len > from)
            GR_PUSH(out->segments, out->n, out->cap, ((gr_segment){from, out->text.len - from, p->is_field}));
    }
    return GR_OK;
}

void gr_rendered_release(gr_rendered *r)
{
    gr_str_release(&r->text);
    free(r->segments);
    *r = (gr_rendered){0};
}
