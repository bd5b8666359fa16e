/* ops/rollout_kept.h: rows that a rollout keeps from one iteration to the next: `over`, and `lag` above 1.
 *
 * Such a rollout has a queue of groups in work, an object NODE.queue of the plan that lives on across
 * iterations and is saved in checkpoints: `places` groups of `samples` sequences each. A group keeps its
 * place from its draw until it is taken or dropped. An iteration
 *
 *     draws a prompt for each free place,
 *     samples until `enough` groups of the queue are complete, and all that would otherwise grow too old,
 *     takes the oldest complete ones, one for each prompt of the batch, which are its rows,
 *     and keeps the others: complete ones wait, the rest go on in the next iteration, with the tokens,
 *     log-probs and versions that they have. With `partial: drop` what is not complete is dropped.
 *
 *     places = (lag - 1) * batch + ceil(over * batch)      enough = lag * batch          (lag 0 counts as 1)
 *
 * So with `lag: n` an iteration trains on what was sampled n - 1 iterations before, with weights that were
 * one older. `over` alone takes the first complete groups of somewhat more than are needed.
 *
 * Places are dealt to ranks, whose batch is a multiple of their number: each draws for its own, and stops and
 * takes by itself. Which groups are first complete follows from the seed and the plan's choices, and from
 * when environments answer, which their record has (ops/reward/environment.h).
 *
 * Sources: AReaL, arXiv:2505.24298 (staleness bound, versions of tokens); APRIL, arXiv:2509.18521 (more
 * prompts than needed, partial rollouts that go on).
 */
#ifndef GR_OPS_ROLLOUT_KEPT_H
#define GR_OPS_ROLLOUT_KEPT_H

#include "ops/base/op.h"

/* Read the keys of a rollout; where it keeps rows, sets its bounds, and those of its prompts. */
void gr_kept_check(const gr_graph *g, gr_node *n, gr_diag *d);

/* The rollout of the graph that keeps rows of these prompts; NULL: none does. */
const gr_node *gr_kept_of(const gr_graph *g, const gr_node *prompts);

/* The prompts that it wants in this iteration, of all ranks; state: of the rollout. */
uint32_t gr_kept_wanted(const void *state);

/* The object NODE.queue in the folder of a checkpoint: a file for each rank. dir NULL: nothing is kept yet.
 */
GR_NODISCARD gr_status gr_kept_save(const void *state, const void *block, const char *dir, gr_diag *d);
GR_NODISCARD gr_status gr_kept_restore(void *state, void *block, const char *dir, gr_diag *d);

#endif
