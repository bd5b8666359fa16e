/* runtime/io/responses.h: RUN/samples: all responses of each iteration, lines of JSON in a gzip file of its
 * own, step-N.jsonl.gz.
 *
 * A file appears whole or not at all, and is on the disk then. So a run that goes on from an iteration
 * removes the files behind it and writes each of them again: none is lost, none is there twice. A file is
 * gzip members one behind the other, each of some lines, so that threads may pack at once; its bytes depend
 * on what is packed together alone.
 *
 * Threads: one at a time for a writer; readers any.
 */
#ifndef GR_RUNTIME_IO_RESPONSES_H
#define GR_RUNTIME_IO_RESPONSES_H

#include "runtime/base/base.h"

typedef struct gr_responses gr_responses;

/* Begin the file of an iteration in this folder, which is made; GR_E_IO. */
GR_NODISCARD gr_status gr_responses_new(gr_responses **out, const char *dir, uint64_t step, gr_diag *d);
/* Append to packed a member that holds text; any threads. */
void gr_responses_pack(const gr_str *text, gr_str *packed);
/* Write members, in their order. */
GR_NODISCARD gr_status gr_responses_add(gr_responses *r, const gr_str *packed, gr_diag *d);
/* Let it take its place, that of an earlier file of the iteration too; frees r in any case. */
GR_NODISCARD gr_status gr_responses_end(gr_responses *r, gr_diag *d);
void gr_responses_free(gr_responses *r); /* without an end: nothing stays. NULL is fine */

/* Iterations that a run has files of, in rising order; *steps: free(). No folder: none. */
GR_NODISCARD gr_status gr_responses_steps(const char *run, uint64_t **steps, size_t *n, gr_diag *d);

/* The whole lines among the first `limit` bytes of an iteration's; *cut: there are more. GR_E_INVALID: there
 * is no such file, or it is damaged. */
GR_NODISCARD gr_status gr_responses_read(const char *run, uint64_t step, size_t limit, gr_str *out, bool *cut,
                                         gr_diag *d);

/* Remove the files of iterations behind `step`, and what dead writers left. */
GR_NODISCARD gr_status gr_responses_remove_behind(const char *run, uint64_t step, gr_diag *d);
/* Give a folder beside them all files, as further names of the same bytes where the file system has these. */
GR_NODISCARD gr_status gr_responses_link(const char *run, const char *aside, gr_diag *d);

#endif
