/* ops/parallel/quantize.h: the copy of a model's layers whose projections are in FP8 (`precision:`).
 *
 * The copy lives within an iteration. It is made before the first node whose passes read it, and again after
 * each optimizer step that such a node follows: one task a layer, which reads the weights as they are and
 * writes values and scales (ops/model/fp8.h). Embedding, final norm and head are read as they are. All passes
 * that compute in FP8 read one copy, so they compute with the same bits.
 *
 * A rollout with `lag` has a copy of its own, of the weights that it samples with.
 */
#ifndef GR_OPS_PARALLEL_QUANTIZE_H
#define GR_OPS_PARALLEL_QUANTIZE_H

#include "ops/base/op.h"

/* Declare what makes it, by the current node, whose model it is; nothing where it is there. A node that may
 * be left out, or is in a loop that may run no trip, makes it for itself alone. rollout: the current node
 * reads what rollouts read. */
void gr_quantize_declare(gr_tasks *p, const gr_kernels *k, const gr_model *m, bool rollout);

/* The object that a pass in FP8 reads for a bucket: the copy, or of what is no layer the weights. */
uint32_t gr_quantize_object(gr_tasks *p, const gr_kernels *k, const gr_model *m, bool rollout,
                            uint32_t bucket);

/* The kernel of these tasks, of every op. */
#define GR_QUANTIZE_KERNEL (UINT32_MAX - 1)

/* Run one; a call with this kernel. */
void gr_quantize_run(const gr_call *c);

#endif
