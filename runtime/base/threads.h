/* runtime/base/threads.h: a fixed team of threads that run one function together.
 *
 * Which thread does what never changes a result: kernels split work by rows or columns, never a sum.
 */
#ifndef GR_RUNTIME_BASE_THREADS_H
#define GR_RUNTIME_BASE_THREADS_H

#include "runtime/base/base.h"

typedef struct gr_team gr_team;

/* n >= 1 threads, the caller counted: n - 1 are started and sleep until work comes. */
GR_NODISCARD gr_status gr_team_new(gr_team **out, unsigned n, gr_diag *d);
void gr_team_free(gr_team *t);           /* NULL is fine */
unsigned gr_team_size(const gr_team *t); /* NULL: 1 */

/* Run fn(arg, rank, n) for rank 0..n-1, each once, and return when all have: at the same time where the
 * system lets the threads run, else a thread does several. t NULL: fn(arg, 0, 1). Not reentrant: one caller
 * at a time. */
void gr_team_run(gr_team *t, void (*fn)(void *arg, unsigned rank, unsigned n), void *arg);

/* The part [*first, *last) of n items for one rank of size ranks, in units of grain items. */
void gr_team_range(uint64_t n, uint64_t grain, unsigned rank, unsigned size, uint64_t *first, uint64_t *last);

#endif
