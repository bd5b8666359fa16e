/* scheduler/search/search.h: residencies of one program, priced: bytes and predicted time of each.
 *
 * A walk from "all stays" and "nothing stays" by single changes (a quarter more or less of a group of objects
 * stays; the rest is streamed in one node more or less, or, of an optimizer's state, stays in the host pool,
 * where its step is done then; loads begin earlier or not). Those that no other beats in bytes and in time go
 * first, then the others; where the limit is higher than what there is, everything that can be reached is
 * priced. The budget has no say in it, so that every budget chooses among the same residencies; it only says
 * how much faster each is in the room that it has beyond its own bytes.
 */
#ifndef GR_SCHEDULER_SEARCH_SEARCH_H
#define GR_SCHEDULER_SEARCH_SEARCH_H

#include "scheduler/search/transfers.h"

typedef struct gr_residency {
    uint32_t level;          /* which program; the caller's number */
    gr_choice *choice;       /* [n_groups], of the pool */
    uint32_t ahead;          /* see gr_transfers_make */
    bool expanded;           /* those one change away are there too */
    uint32_t refined;        /* of so many groups, those one little change away */
    uint64_t live, host, ns; /* bytes that must lie on the device and in the host pool; predicted time */
    uint64_t wide_ns;        /* with all the room there is (gr_transfers_widen) */
    uint64_t copied;         /* bytes that it moves */
    uint32_t n_transitions;
} gr_residency;

typedef struct gr_residencies {
    gr_residency *all;
    size_t n, cap;
} gr_residencies;

/* The bytes that the arena may have, of a program with so much in the host pool. */
typedef uint64_t gr_room(const void *user, uint32_t level, uint64_t host);

typedef struct gr_search_most {
    uint32_t residencies; /* about; 1: only all resident */
    uint64_t work;        /* transfers->work from which on there are no more */
} gr_search_most;

/* Append so many residencies of a program at most. policies [n_groups]: of groups
 * whose policy is not AUTO nothing is chosen. layout: scratch, of this program or {0}. */
void gr_search(gr_residencies *r, gr_transfers *transfers, const gr_analysis *f, uint32_t level,
               const gr_policy *policies, gr_search_most most, gr_room *room, const void *user,
               gr_arena *arena);

#endif
