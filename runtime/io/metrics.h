/* runtime/io/metrics.h: lines of JSON appended to a file: metrics.jsonl and samples.jsonl.
 *
 * A line is one object, its keys in the order they were added, written and flushed whole. Numbers have the
 * fewest digits that read back as the same double; NaN and infinities, which JSON lacks, are null. Bytes that
 * are not UTF-8 become U+FFFD.
 */
#ifndef GR_RUNTIME_IO_METRICS_H
#define GR_RUNTIME_IO_METRICS_H

#include "runtime/base/base.h"

typedef struct gr_lines gr_lines;

/* Open path to append. What a resumed run does again is removed first: all after the last line with a "step"
 * before from_step, and after damaged lines that follow it. Damaged lines that stay are kept as they are,
 * and d is warned of them. from_step 0 empties the file. */
GR_NODISCARD gr_status gr_lines_open(gr_lines **out, const char *path, uint64_t from_step, gr_diag *d);
void gr_lines_free(gr_lines *l); /* NULL is fine */

/* Begin a line with its step, add to it, end it. Keys must differ. */
void gr_lines_begin(gr_lines *l, uint64_t step);
void gr_lines_number(gr_lines *l, const char *key, double value);
void gr_lines_integer(gr_lines *l, const char *key, int64_t value);
void gr_lines_null(gr_lines *l, const char *key);
void gr_lines_text(gr_lines *l, const char *key, const char *bytes, size_t n);
void gr_lines_json(gr_lines *l, const char *key, const char *json); /* as it stands */
GR_NODISCARD gr_status gr_lines_end(gr_lines *l, gr_diag *d);
/* The last line that was ended, with its newline; valid until the next one begins. */
const char *gr_lines_last(const gr_lines *l, size_t *n);
/* All lines so far have reached the disk. */
GR_NODISCARD gr_status gr_lines_sync(gr_lines *l, gr_diag *d);

/* The pieces, for other writers of JSON. */
void gr_json_add_number(gr_str *s, double value);
void gr_json_add_text(gr_str *s, const char *bytes, size_t n); /* with its quotes */

#endif
