/* scheduler/search/timeline.h: when the steps of a finished plan run, from their lanes and waits.
 *
 * Of a loop one trip is laid out, stretched to the time of all. Times are scaled so that the iteration ends
 * at the plan's predicted time. What a validation runs stands behind the iteration, as if one came there. Of
 * several roles of ranks a timeline is of one, on the time of all: it begins when the first of them begins
 * an iteration, and has what a role waits for the others (scheduler/search/roles.h).
 *
 * Threads: as a plan.
 */
#ifndef GR_SCHEDULER_SEARCH_TIMELINE_H
#define GR_SCHEDULER_SEARCH_TIMELINE_H

#include "memplan/plan/plan.h"

typedef struct gr_timeline {
    const gr_plan *all;  /* of all roles */
    const gr_plan *plan; /* of the role */
    uint32_t role;
    gr_step *steps; /* of the iteration, then of validate; numbers in them count as the ledger does */
    uint32_t n, n_steady;
    uint64_t ns, steady_ns;   /* of all of them; of the iteration's */
    uint32_t *parent, *depth; /* [n] loop around each step, or GR_NONE; loops around it */
    uint64_t *begin, *end;    /* [n] nanoseconds from the iteration's begin */
    const uint32_t *trips;    /* [n] of loops whose time is to be found: how often they turn; else NULL */
    gr_arena *arena;          /* the caller's: all of it is there */
} gr_timeline;

/* The plan and the pool must outlive it. */
gr_timeline gr_timeline_of_role(const gr_plan *p, uint32_t role, gr_arena *arena);

/* How long an iteration of a plan takes as its steps wait for each other, of one role: more than was
 * predicted where, once offsets were known, some wait for bytes that others still use. */
uint64_t gr_timeline_waits_ns(const gr_plan *p);
/* The same where each load waits for what stands before it on `compute` and of offloads, too: as long as the
 * search may have counted, which knew no offsets. */
uint64_t gr_timeline_late_ns(const gr_plan *p);
/* Loops of a plan of one role come to take as long as their own steps wait for each other, where that is
 * longer than they say: offsets are known, and some wait for bytes that others still use. trips [steps of both
 * paths]: of those that are loops, how often they turn. */
void gr_timeline_set_loops(gr_plan *p, const uint32_t *trips);

#endif
