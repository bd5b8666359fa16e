/* ops/data.h: how other ops reach the records behind a batch. */
#ifndef GR_OPS_DATA_H
#define GR_OPS_DATA_H

#include "ops/base/op.h"
#include "ops/text/jsonl.h"
#include "ops/text/tokenizer.h"

/* Whether the first record has a field; GR_E_INVALID, reported at `at`, where it has not. */
GR_NODISCARD gr_status gr_data_check_field(const void *state, const char *field, gr_loc at, gr_diag *d);

/* The text of a field of a record; state: of a prompts or sequences node. Threads: any. */
GR_NODISCARD gr_status gr_data_text(const void *state, uint32_t record, const char *field, gr_str *out,
                                    gr_diag *d);
/* The whole record (json_decref it) and its place. */
GR_NODISCARD gr_status gr_data_record(const void *state, uint32_t record, json_t **out, gr_diag *d);
gr_loc gr_data_at(const void *state, uint32_t record);

/* What made its prompts' tokens. */
const struct gr_encoder *gr_data_encoder(const void *state);

/* Append the prompt of a record whose conversation somebody else begins (gr_encoder_open), within the bounds
 * of the node: too_long cuts it, else GR_E_INVALID. state: of a node that draws and has a chat template. */
GR_NODISCARD gr_status gr_data_open(const void *state, uint32_t record, const json_t *messages,
                                    const json_t *tools, gr_ids *ids, gr_diag *d);

/* What a record keeps from here on; which: its place among gr_graph.record_state. On the compute lane. */
void gr_data_keep(void *state, uint32_t which, uint32_t record, float value);

size_t gr_data_records(const void *state); /* in the file */
uint64_t gr_data_hash(const void *state);  /* of them all */
uint32_t gr_data_batch(const void *state); /* drawn in an iteration */
uint64_t gr_data_epoch(const void *state); /* whole passes drawn so far */

#endif
