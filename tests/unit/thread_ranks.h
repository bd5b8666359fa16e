/* tests/unit/thread_ranks.h: ranks that are threads of a test, and exchange rows through memory. */
#ifndef GR_TESTS_THREAD_RANKS_H
#define GR_TESTS_THREAD_RANKS_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/comm/comm.h"

enum { THREAD_RANKS_MAX = 12 };

/* What the ranks of a group see of each other between two barriers. */
struct thread_group {
    uint32_t n, moves; /* moves: exchanges there have been */
    pthread_barrier_t barrier;
    const gr_comm_exchange *exchange[THREAD_RANKS_MAX];
};

/* A rank's communicator. */
struct thread_comm {
    gr_comm comm; /* first: what is called with it finds the rest */
    struct thread_group *group;
};

static inline gr_status thread_all_to_all(gr_comm *c, gr_queue *q, const gr_comm_exchange *e, gr_diag *d)
{
    struct thread_group *g = ((struct thread_comm *)(void *)c)->group;
    (void)q, (void)d;
    g->exchange[c->rank] = e;
    pthread_barrier_wait(&g->barrier);
    if (c->rank == 0) g->moves++;
    for (uint32_t r = 0; r < g->n; r++) {
        const gr_comm_exchange *from = g->exchange[r];
        if (from->from_bytes[c->rank] != e->to_bytes[r] || e->to_bytes[r] % e->unit) abort();
        memcpy((char *)e->to + e->to_at[r], (const char *)from->from + from->from_at[c->rank],
               e->to_bytes[r]);
    }
    pthread_barrier_wait(&g->barrier);
    return GR_OK;
}

static const gr_comm_type thread_comms = {.name = "threads", .all_to_all = thread_all_to_all};

static inline struct thread_comm thread_comm_of(struct thread_group *g, uint32_t rank, uint32_t ranks)
{
    return (struct thread_comm){{.type = &thread_comms, .rank = rank, .ranks = ranks}, g};
}

#endif
