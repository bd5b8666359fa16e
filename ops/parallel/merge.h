/* ops/parallel/merge.h: the weights of a model with adapters, made of frozen ones: W' = W + scale B A.
 *
 * Such a model's params are a copy that lives within an iteration. It is made before the first node that
 * reads it, and again after each optimizer step that something follows; every pass reads it as it would a
 * model's own: rollouts, log-probs, and the passes of an update, which need no gradient of it (the adapters'
 * follow from what a backward pass has, ops/kernels/layer_ops.h). So all of them compute with the same bits.
 * The frozen weights stay as they are, one copy for all who have them in common; there is nothing to unmerge.
 * Buckets without adapters are the frozen model's objects themselves.
 *
 * Ranks of another role than the one that trains receive adapters, and make the weights of their own copy of
 * the frozen ones: what is sent is small.
 *
 * Frozen layers that are kept in 4 bits (ops/model/nf4.h) are opened into the copy, and merged there. Passes
 * of the frozen model itself read what is opened alone: forward passes open a layer before they come to it,
 * in each micro-batch anew, so no copy of the whole model is there; what else reads it, a rollout or a copy
 * in FP8, has all layers opened first. No other copy of what is opened is made.
 *
 * W' is rounded once, from a sum in fp32, to the type of weights: with B = 0 it is W to the bit.
 */
#ifndef GR_OPS_PARALLEL_MERGE_H
#define GR_OPS_PARALLEL_MERGE_H

#include "ops/base/op.h"
#include "ops/parallel/parts.h"

/* Declare what makes them, by the current node, whose model it is; nothing where they are there, or the model
 * has neither adapters nor layers of 4 bits. A node that may be left out, or is in a loop that may run no
 * trip, makes them for itself alone. */
void gr_merge_declare(gr_tasks *p, const gr_kernels *k, const gr_model *m, unsigned threads);

/* Declare what opens one bucket of a frozen model, for the tasks of this node that follow; nothing of a
 * bucket that is not in 4 bits. May be in a loop. What reads the model behind the node has it opened again.
 */
void gr_merge_open(gr_tasks *p, const gr_kernels *k, const gr_model *m, uint32_t bucket);

/* The kernel of these tasks, of every op. */
#define GR_MERGE_KERNEL UINT32_MAX

/* Run one; a call with this kernel. */
void gr_merge_run(const gr_call *c);

#endif
