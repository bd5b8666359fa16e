/* ops/data.h: how other ops reach the records behind a batch. */
#ifndef GR_OPS_DATA_H
#define GR_OPS_DATA_H

#include "ops/text/jsonl.h"
#include "ops/base/op.h"

/* The text of a field of a record; state: of a prompts or sequences node. Threads: any. */
GR_NODISCARD gr_status gr_data_text(const void *state, uint32_t record, const char *field, gr_str *out,
                                    gr_diag *d);
/* The whole record (json_decref it) and its place. */
GR_NODISCARD gr_status gr_data_record(const void *state, uint32_t record, json_t **out, gr_diag *d);
gr_loc gr_data_at(const void *state, uint32_t record);

/* What made its prompts' tokens. */
const struct gr_encoder *gr_data_encoder(const void *state);

size_t gr_data_records(const void *state); /* in the file */
uint32_t gr_data_batch(const void *state); /* drawn in an iteration */
uint64_t gr_data_epoch(const void *state); /* whole passes drawn so far */

#endif
