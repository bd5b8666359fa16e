/* tools/run_page.h: runs as a page (tools/run.html), and as lines that a page asks for while they come.
 *
 * Of metrics.jsonl and samples.jsonl whole lines are read, up to GR_PAGE_LINES_BYTES of them at a time; a
 * line that is no object of JSON is left out. A file that is not there has no lines. Threads: any; nothing is
 * kept between calls.
 */
#ifndef GR_TOOLS_RUN_PAGE_H
#define GR_TOOLS_RUN_PAGE_H

#include <jansson.h>

#include "runtime/base/base.h"

#define GR_PAGE_LINES_BYTES (32u << 20)

/* Lines of a file, from a byte on to another. mark is of the last line before `to`, "" where there is none: a
 * run that went back to an earlier iteration has another line there, or none, and is read from its start. */
typedef struct gr_page_place {
    uint64_t from, to; /* bytes; from 0: what came before has gone */
    uint64_t damaged;  /* lines between them that are no objects */
    char mark[17];
} gr_page_place;

/* The lines of RUN/name behind `at`, which is moved to their end; {} at the start. A list of objects, a new
 * reference; NULL with a message where the file cannot be read. */
json_t *gr_page_lines(const char *run, const char *name, gr_page_place *at, gr_diag *d);

/* All responses of an iteration of a run with `samples: all`, without their ids and what there is for each of
 * them: {"lines": [...], "cut": whether GR_PAGE_LINES_BYTES were not enough}. A new reference; NULL with a
 * message where there are none. */
json_t *gr_page_responses(const char *run, uint64_t step, gr_diag *d);
/* The first and the last of such iterations, as a list; empty: there are none. */
json_t *gr_page_kept(const char *run);

/* The page of n runs. live: without lines, which it asks for; else with all there are, the newest of more
 * than GR_PAGE_LINES_BYTES, with a warning. GR_E_INVALID where a folder is no run. */
GR_NODISCARD gr_status gr_page_runs(const char *const *runs, size_t n, bool live, gr_str *out, gr_diag *d);

/* The numbers of each run's last iteration, as Prometheus reads them. */
GR_NODISCARD gr_status gr_page_prometheus(const char *const *runs, size_t n, gr_str *out, gr_diag *d);

#endif
