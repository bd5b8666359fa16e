/* runtime/run/control.h: what the roles of a run (memplan/plan/plan.h) tell each other between iterations.
 *
 * Roles run their own plans, and may be in two iterations at once. Behind each, a role leaves the others a
 * letter with its record, and goes on; it waits only for what the others left behind earlier ones. So all
 * ranks decide alike, from the same records, and rank 0 writes what all have measured, without a step at
 * which everybody waits for everybody. The first rank of a role writes and reads the letters, and hands what
 * came to the others of its role.
 *
 * A role that has told of iteration N and heard of N - 1 goes on: which holds nobody up where a rollout
 * lags, for the weights that it needs next were sent behind the end of that iteration already.
 *
 * With one role all is there as soon as it is told. Threads: one at a time, between paths.
 */
#ifndef GR_RUNTIME_RUN_CONTROL_H
#define GR_RUNTIME_RUN_CONTROL_H

#include "runtime/comm/comm.h"
#include "runtime/run/record.h"

typedef struct gr_control gr_control;

/* g: of the role. world: of all ranks, own: of those of the role; both NULL: there is one rank. They must
 * outlive it. */
gr_control *gr_control_new(const gr_graph *g, gr_comm *world, gr_comm *own);
void gr_control_free(gr_control *n); /* NULL is fine */

/* Tell of an iteration, or of a validation before the first: by all ranks of the role, whose measures are
 * put together. Takes r. */
GR_NODISCARD gr_status gr_control_tell(gr_control *n, gr_record *r, gr_diag *d);

/* Wait for the others' records of all that this role has told of; or of all but the last. */
GR_NODISCARD gr_status gr_control_hear(gr_control *n, bool last, gr_diag *d);

/* What one role has said. */
typedef struct gr_heard {
    const gr_record *all;        /* of an iteration, merged */
    const gr_record *const *own; /* [roles] what each has said of it; samples are in `all` */
} gr_heard;

/* The next iteration of which all roles have told; false: not yet. Valid until the next call. */
bool gr_control_next(gr_control *n, gr_heard *out);

#endif
