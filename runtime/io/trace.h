/* runtime/io/trace.h: trace.json in the trace-event format that Perfetto and chrome://tracing open.
 *
 * A track a lane and one of iterations, one process a rank, a counter of its memory. The file is a JSON array
 * that grows; viewers accept one whose closing bracket a killed run did not write. After limit events, the
 * rest is only counted.
 *
 * Threads: any.
 */
#ifndef GR_RUNTIME_IO_TRACE_H
#define GR_RUNTIME_IO_TRACE_H

#include "runtime/base/base.h"

typedef struct gr_trace gr_trace;

/* tracks [n_tracks]: their names. limit: events, 0 for 200,000. The file is begun anew. */
GR_NODISCARD gr_status gr_trace_open(gr_trace **out, const char *path, unsigned rank,
                                     const char *const *tracks, size_t n_tracks, uint64_t limit, gr_diag *d);

/* What an event is of: step, as the plan's ledger counts them, or GR_TRACE_NO_STEP, and how long it was
 * predicted to take. */
#define GR_TRACE_NO_STEP UINT32_MAX
typedef struct gr_trace_what {
    const char *name, *category;
    uint32_t step;
    uint64_t predicted_ns;
} gr_trace_what;

void gr_trace_event(gr_trace *t, size_t track, const gr_trace_what *what, uint64_t begin_ns, uint64_t end_ns);
/* Bytes of device memory from a time on, as a counter; a value like the last one is no event. */
void gr_trace_memory(gr_trace *t, uint64_t at_ns, uint64_t bytes);
/* An event over all those since the last iteration, on a track. */
void gr_trace_iteration(gr_trace *t, size_t track, uint32_t iteration);
GR_NODISCARD gr_status gr_trace_flush(gr_trace *t, gr_diag *d);

/* Close the array and the file. */
GR_NODISCARD gr_status gr_trace_close(gr_trace *t, gr_diag *d); /* NULL is fine */

#endif
