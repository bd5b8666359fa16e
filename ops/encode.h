/* ops/encode.h: from a record to token ids, by a template or by the checkpoint's chat template.
 *
 * Special tokens in template text mean what they say; text from a field never becomes one. A prompt by a
 * plain template begins with BOS where the tokenizer's own post-processor adds one; a chat template brings
 * its own.
 */
#ifndef GR_OPS_ENCODE_H
#define GR_OPS_ENCODE_H

#include "ops/jsonl.h"
#include "ops/tokenizer.h"

typedef struct gr_encoder_config {
    const gr_tokenizer *tokenizer;
    const char *folder;   /* of the checkpoint: where the chat template comes from */
    const char *text;     /* the template, or "chat" */
    const char *messages; /* with "chat": the template of the user's message */
    bool response;        /* follows a prompt: no BOS */
    gr_loc at;
} gr_encoder_config;

typedef struct gr_encoder gr_encoder;

/* Texts are copied, the tokenizer is not. GR_E_INVALID for a template with errors. */
GR_NODISCARD gr_status gr_encoder_new(gr_encoder **out, const gr_encoder_config *c, gr_diag *d);
void gr_encoder_free(gr_encoder *e); /* NULL is fine */

/* Append the ids of a record, whose place is at. */
GR_NODISCARD gr_status gr_encoder_run(const gr_encoder *e, const json_t *row, gr_loc at, gr_ids *ids,
                                      gr_diag *d);

#endif
