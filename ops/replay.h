/* ops/replay.h: rows of earlier iterations beside those of this one (the op `replay`), and what an
 * iteration's end does for them.
 *
 * Such a node has a store of responses, an object NODE.store of the plan that lives on across iterations and
 * is saved in checkpoints: `size` places of a response with its log-probs as it was sampled. The node's rows
 * are those that it is of, and in each group, behind them, what the store has of the group's record. At the
 * end of an iteration its `keep` is a number for each of these sequences, and the store has
 *
 *     of each record the `samples` with the largest numbers above 0, of equal ones the newest,
 *     and of these as many as there are places, by the same order.
 *
 * So a response comes again when its record is drawn again, and stays as long as its number says. All ranks
 * have all rows and keep the same, so that any number of them goes on with a checkpoint.
 *
 * Sources: RePO, arXiv:2506.09340; RLEP, arXiv:2507.07451.
 */
#ifndef GR_OPS_REPLAY_H
#define GR_OPS_REPLAY_H

#include "ops/base/rows.h"

/* The object NODE.store. */
uint32_t gr_replay_object(gr_tasks *p, const gr_node *n);

/* The end of an iteration, on the compute lane: what is kept from here on. state: of the node; store: that
 * object; value: one for each sequence of rows, which are the node's. One that is no number leaves what there
 * is. */
void gr_replay_keep(void *state, void *store, const gr_rows *rows, const float *value);

/* Whether a sequence of its rows was sampled in this iteration. state: of the node. */
bool gr_replay_is_new(const void *state, uint32_t seq);

#endif
