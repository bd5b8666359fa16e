/* ops/parallel/cross.h: what crosses between roles of ranks (scheduler/search/roles.h), carried out: send
 * and recv steps.
 *
 * Ranks count within their roles here. Of weights, which are cut as shards are, sender s sends part s to
 * every receiver; a column comes whole, to receiver r from sender r % senders. In round t sender s serves
 * receiver (s + t) % max(senders, receivers): so each rank has one partner at a time, and as all take the
 * rounds in order, none waits in a circle where a send waits for its receiver (MPI). NCCL does them at once.
 */
#ifndef GR_OPS_PARALLEL_CROSS_H
#define GR_OPS_PARALLEL_CROSS_H

#include "ops/base/op.h"
#include "runtime/comm/comm.h"

/* Run a send or recv of program p; m: whose weights cross, NULL: a column does. device and host: of the ranks
 * of all roles, for memory of either place; they may be the same. */
GR_NODISCARD gr_status gr_cross_run(const gr_call *c, const gr_tasks *p, const gr_task *w, const gr_model *m,
                                    gr_comm *device, gr_comm *host, gr_diag *d);

#endif
