/* ops/text/template.h: prompt templates: "Q: {question}\nA:", filled from the fields of a row.
 *
 * {name} stands for a field (ops/text/jsonl.h: a dotted path is fine); {{ and }} are the braces themselves.
 * What comes out keeps apart the template's own text, whose special tokens mean what they say, and the text
 * of fields, which must never become a special token. Threads: a template never changes after
 * gr_template_new.
 */
#ifndef GR_OPS_TEXT_TEMPLATE_H
#define GR_OPS_TEXT_TEMPLATE_H

#include "ops/text/jsonl.h"

typedef struct gr_template gr_template;

/* A run of bytes in gr_rendered.text. */
typedef struct gr_segment {
    size_t from, n;
    bool is_field;
} gr_segment;

/* Segments cover text in order, without gaps; none is empty. Start with {0}; reuse or release. */
typedef struct gr_rendered {
    gr_str text;
    gr_segment *segments;
    size_t n, cap;
} gr_rendered;

void gr_rendered_release(gr_rendered *r);

/* Parse a template. text is copied; at is its place in the graph, and is kept for messages, which also name
 * the character of the template. GR_E_INVALID for an unpaired brace or an empty name, all of them reported.
 */
GR_NODISCARD gr_status gr_template_new(gr_template **out, const char *text, gr_loc at, gr_diag *d);
void gr_template_free(gr_template *t); /* NULL is fine */

/* Fields in the order they stand, repeats included. */
size_t gr_template_fields(const gr_template *t);
const char *gr_template_field(const gr_template *t, size_t i);

/* Report every field that this row, usually the first of a source, does not have. */
GR_NODISCARD gr_status gr_template_check(const gr_template *t, const json_t *row, gr_diag *d);

/* Fill in a row whose place is row_at; out is emptied first. Errors are those of gr_json_text. */
GR_NODISCARD gr_status gr_template_render(const gr_template *t, const json_t *row, gr_loc row_at,
                                          gr_rendered *out, gr_diag *d);

#endif
