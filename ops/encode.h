/* ops/encode.h: from a record to token ids, by a template or by the checkpoint's chat template.
 *
 * Special tokens in template text mean what they say; text from a field never becomes one. A prompt by a
 * plain template begins with BOS where the tokenizer's own post-processor adds one; a chat template brings
 * its own.
 * Threads: an encoder belongs to one thread at a time.
 */
#ifndef GR_OPS_ENCODE_H
#define GR_OPS_ENCODE_H

#include "graphs/graph/graph.h"
#include "ops/text/chat_template.h"
#include "ops/text/jsonl.h"
#include "ops/text/tokenizer.h"

/* What goes around a user's message, beside the message; all of it may be NULL. */
typedef struct gr_chat_config {
    const char *system;     /* a template of the system message */
    const gr_value *args;   /* a map of further variables of the chat template */
    const gr_value *tools;  /* a list of tools, or the text "{field}" */
    const char *tools_file; /* a JSON file with the list */
    const char *date;       /* YEAR-MONTH-DAY: today, to the template; NULL: gr_default_date */
} gr_chat_config;

bool gr_is_one_field(const char *text); /* "{field}" and nothing else */
extern const char gr_default_date[];
bool gr_date_is_valid(const char *date); /* YEAR-MONTH-DAY, a day there is */

typedef struct gr_encoder_config {
    const gr_tokenizer *tokenizer;
    const char *folder;   /* of the checkpoint: where the chat template comes from */
    const char *text;     /* the template, or "chat" */
    const char *messages; /* with "chat": the template of the user's message */
    gr_chat_config chat;  /* with "chat" */
    bool response;        /* follows a prompt: no BOS */
    uint32_t ids_below;   /* text is one {field} with a list of ids, each below this, taken as they stand; 0:
                             it is text */
    gr_loc at;
} gr_encoder_config;

typedef struct gr_encoder gr_encoder;

/* Texts are copied, the tokenizer is not. GR_E_INVALID for a template with errors. Warns of what the chat
 * template takes no notice of. */
GR_NODISCARD gr_status gr_encoder_new(gr_encoder **out, const gr_encoder_config *c, gr_diag *d);
void gr_encoder_free(gr_encoder *e); /* NULL is fine */

/* Whether a record has every field that the templates read; one that it has not is reported at the template.
 */
GR_NODISCARD gr_status gr_encoder_check(const gr_encoder *e, const json_t *row, gr_diag *d);

/* Append the ids of a record, whose place is at. */
GR_NODISCARD gr_status gr_encoder_run(const gr_encoder *e, const json_t *row, gr_loc at, gr_ids *ids,
                                      gr_diag *d);

/* The same of one with a chat template, where somebody else begins the conversation: with these messages in
 * the place of the record's, behind the system message of the graph, and with these tools in the place of its
 * own. NULL: those. */
GR_NODISCARD gr_status gr_encoder_open(const gr_encoder *e, const json_t *row, gr_loc at,
                                       const json_t *messages, const json_t *tools, gr_ids *ids, gr_diag *d);

/* Append the ids of messages that follow what the model has said (gr_chat_encode_more); of one with a plain
 * template GR_E_INVALID. tools: with which the conversation began, NULL: the graph's. */
GR_NODISCARD gr_status gr_encoder_more(const gr_encoder *e, const json_t *messages, const json_t *tools,
                                       int32_t last, const char *called, gr_ids *ids, gr_diag *d);
const gr_chat_template *gr_encoder_chat(const gr_encoder *e); /* NULL: a plain template */

/* Say which date the chat template puts into the prompts, where no key gave one: after a run of the encoder,
 * whose last record tells. name: of the node. */
void gr_encoder_warn_of_date(const gr_encoder *e, const char *name, gr_diag *d);

#endif
