/* ops/train.h: how the op `update` is planned and run.
 *
 * A mini-batch is one optimizer step: prepare the loss, walk the micro-batches forward and backward, take the
 * norm, step. How the head and the loss meet depends on the loss's role (graphs/expr/loss.h):
 *
 * - token: head chunk by chunk: log-probs, adjoint, backward
 *
 * - sequence: head over the micro-batch, adjoint, then the chunks once more for backward
 *
 * - mini-batch: a forward-only pass over all micro-batches first, then the adjoint of every token at once
 */
#ifndef GR_OPS_TRAIN_H
#define GR_OPS_TRAIN_H

#include "ops/base/op.h"

void gr_train_declare(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                      gr_tasks *p);
uint32_t gr_train_rows(const gr_node *n,
                       const gr_choices *how); /* response tokens of the largest micro-batch */
/* Micro-batches that a rank is expected to have of a mini-batch. */
uint32_t gr_train_micro_batches(const gr_node *n, const gr_choices *how);
gr_status gr_train_open(gr_session *s, const gr_node *n, void **state, gr_diag *d);
void gr_train_close(void *state);
gr_status gr_train_run(const gr_call *c, gr_diag *d);
bool gr_train_more(const gr_call *c, uint32_t trip);
uint32_t gr_train_trips(const gr_call *c);
void gr_train_save(void *state, const char *prefix, gr_state_file *out);
gr_status gr_train_load(void *state, const char *prefix, const gr_state_file *in, gr_diag *d);

#endif
