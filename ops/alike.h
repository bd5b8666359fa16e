/* ops/alike.h: which weights several ranks hold with the same bits.
 *
 * Whole weights: of models that are not cut into shards, and the copies that generate (the rollout's, and
 * those of the iteration before). All ranks of the role hold the same. And shards, where nodes are replicas
 * of each other: the ranks of one place in all nodes do (ops/parallel/sharding.h). What nobody else holds, a
 * shard among all ranks, its training state, and slices (ops/model/tp.h), is not compared; a wrong bit of
 * the state shows in the weights that are made from it, where those are alike.
 *
 * Trained weights are gathered behind each optimizer step, in the place of what was there. So they are to be
 * compared as the iteration has used them: before a work writes them. All others as a work reads them.
 *
 * Threads: pure functions.
 */
#ifndef GR_OPS_ALIKE_H
#define GR_OPS_ALIKE_H

#include "ops/pass.h"

typedef struct gr_alike {
    bool written;   /* compare before a work writes it; else before one reads it */
    uint32_t group; /* ranks of one number hold the same */
    uint64_t bytes; /* from its begin, that they do */
} gr_alike;

/* Of an object of a program, as a rank of its role holds it; false: nobody else does. */
bool gr_alike_of(gr_alike *out, const gr_tasks *p, const gr_graph *g, const gr_kernels *k, uint32_t object,
                 uint32_t rank);

/* Bytes of the host pool that comparing takes where a device runs work later than it is given: the parts of a
 * checksum for each object that is alike, at the end of the pool. 0: the program has no such, or the graph
 * does not ask for it. */
uint64_t gr_alike_room(const gr_tasks *p, const gr_graph *g, const gr_kernels *k);

#endif
