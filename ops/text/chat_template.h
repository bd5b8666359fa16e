/* ops/text/chat_template.h: conversations to text and ids with the chat template that a checkpoint brings.
 *
 * Templates are Jinja, rendered as transformers does (trim_blocks, lstrip_blocks; raise_exception; tojson
 * without HTML escapes; loop controls; {% generation %}). This is an interpreter of the part that chat
 * templates use: all statements and operators but `raw`, `recursive` and those that read other templates, and
 * the filters, tests and methods in the tables of chat_filters.c and chat_methods.c. What it knows gives what
 * jinja2 gives, byte for byte; what it does not know, an argument too, it refuses with line and column of the
 * template.
 *
 * Every byte of the result is known to come from the template (and the tokenizer's own bos_token and kin) or
 * from a field: a message, a variable. Special tokens are only recognised in the former, so that no data set
 * can forge one.
 *
 * Messages name a place as "chat_template:LINE:COL", counted in the template's own text.
 * Threads: a template never changes once parsed; any number of threads may render it at once.
 */
#ifndef GR_OPS_TEXT_CHAT_TEMPLATE_H
#define GR_OPS_TEXT_CHAT_TEMPLATE_H

#include <jansson.h>

#include "ops/text/tokenizer.h"

typedef struct gr_chat_template gr_chat_template;

/* The template of a checkpoint's directory: chat_template.jinja, else chat_template of tokenizer_config.json
 * (of a list of named ones, "default"). *out: gr_chat_template_free. GR_E_IO, GR_E_INVALID. */
GR_NODISCARD gr_status gr_chat_template_load(gr_chat_template **out, const char *dir, gr_diag *d);
GR_NODISCARD gr_status gr_chat_template_parse(gr_chat_template **out, const char *source, size_t n,
                                              gr_diag *d);
void gr_chat_template_free(gr_chat_template *t); /* NULL is fine */

/* Whether the template's text has the name of a variable, be it in a branch that is not taken. */
bool gr_chat_template_names(const gr_chat_template *t, const char *variable);

/* Whether a text of the template, what it prints or a string in it, has these bytes. */
bool gr_chat_template_says(const gr_chat_template *t, const char *bytes);

/* What a rendering asked for and did not get from `variables`. */
typedef struct gr_chat_asked {
    bool date;              /* it called strftime_now() */
    char date_variable[32]; /* a variable for a date that nobody gave, so that the template set one; "": none
                             */
    char date_default[64];  /* what it set */
} gr_chat_asked;

typedef struct gr_chat_options {
    bool add_generation_prompt;
    const char *date;        /* "2024-07-26", what strftime_now() sees; NULL: there is no such function */
    const json_t *variables; /* an object of further variables ({"enable_thinking": false}), or NULL */
    gr_chat_asked *asked;    /* filled in, or NULL */
    const char *called;      /* of messages that follow: the function that was called last, or NULL */
} gr_chat_options;

typedef struct gr_chat_text {
    gr_str text;
    gr_text_range *fields; /* the bytes that came from fields; sorted, disjoint */
    size_t n_fields, cap_fields;
} gr_chat_text;

/* Render a conversation: a list of objects, each with "role", "content" and what else the template reads. tok
 * gives bos_token and kin; NULL: they are undefined. *out ({0} at first) is written over and released by the
 * caller, also on failure. GR_E_INVALID: the template refused the conversation or fails on it. */
GR_NODISCARD gr_status gr_chat_render(const gr_chat_template *t, const gr_tokenizer *tok,
                                      const json_t *messages, const gr_chat_options *options,
                                      gr_chat_text *out, gr_diag *d);
void gr_chat_text_release(gr_chat_text *x);

/* Render and append the ids. The template brings its own BOS: none is added. */
GR_NODISCARD gr_status gr_chat_encode(const gr_chat_template *t, const gr_tokenizer *tok,
                                      const json_t *messages, const gr_chat_options *options, gr_ids *ids,
                                      gr_diag *d);

/* Append the ids of messages that follow what the model has said, up to where it speaks again: what the
 * template puts behind the end of an assistant's message, whatever stood before. last: the last id of what it
 * said; where that is the end-of-turn token with which the template goes on, it is not said twice.
 * Templates of channels (gpt-oss) show a tool's message only behind the call that it answers: options->called
 * names its function. GR_E_INVALID also where the template does not show what an assistant's message says as
 * it stands. */
GR_NODISCARD gr_status gr_chat_encode_more(const gr_chat_template *t, const gr_tokenizer *tok,
                                           const json_t *messages, const gr_chat_options *options,
                                           int32_t last, gr_ids *ids, gr_diag *d);

#endif
