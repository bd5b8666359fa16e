/* ops/zeros.h: why an update learns nothing: what can be seen of mini-batches whose gradient is exactly 0.
 *
 * Such a gradient is no error: where all rewards of a group are equal, nothing is to be learned. But a run
 * whose every gradient is 0 is as likely a mistake in its data or its graph, so the iteration says so, and
 * which of the values that the loss reads were 0 throughout. It is said once, at the first of such iterations
 * in a row.
 *
 * Threads: one update's belongs to one thread at a time.
 */
#ifndef GR_OPS_ZEROS_H
#define GR_OPS_ZEROS_H

#include "ops/env.h"

typedef struct gr_zeros {
    const gr_env_reads *reads; /* of the update */
    bool *zero;                /* [reads->n] columns that were 0 in all mini-batches looked at */
    uint32_t steps;            /* of this iteration: mini-batches looked at */
    uint64_t tokens;           /* response tokens in them */
    bool before;               /* the iteration before learned nothing either */
    uint32_t metric;
} gr_zeros;

/* reads is kept, and must be complete. Release it. */
void gr_zeros_init(gr_zeros *z, const gr_env_reads *reads, gr_session *s, const gr_node *update);
void gr_zeros_release(gr_zeros *z);

/* A mini-batch whose gradient is 0; e is narrowed to it. q and back: where columns are a device's, host
 * memory of 8 bytes for each of its tokens that they are read through; else NULL. */
GR_NODISCARD gr_status gr_zeros_look(gr_zeros *z, const gr_env *e, const gr_node *update, const gr_graph *g,
                                     gr_queue *q, void *back, gr_diag *d);

/* The iteration ends, with so many mini-batches that had rows: say what there is to say, and begin anew. */
void gr_zeros_end(gr_zeros *z, gr_session *s, const gr_node *update, uint32_t mini_batches);

#endif
