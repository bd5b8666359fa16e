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

size_t gr_train_tunables(const gr_graph *g, const gr_node *n, const gr_kernels *k, const gr_choices *c,
                         gr_tunable *out);
void gr_train_default_choice(const gr_node *n, const gr_kernels *k, gr_choices *c);
bool gr_train_runs_with(const gr_node *n, const gr_choices *c);
void gr_train_declare(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                      gr_tasks *p);
/* Tokens that a rank has of a mini-batch at most; 0: the graph says how large micro-batches are. */
uint64_t gr_train_open_tokens(const gr_node *n);
gr_status gr_train_open(gr_session *s, const gr_node *n, void **state, gr_diag *d);
void gr_train_close(void *state);
gr_status gr_train_run(const gr_call *c, gr_diag *d);
bool gr_train_more(const gr_call *c, uint32_t trip);
uint32_t gr_train_trips(const gr_call *c);
void gr_train_sends(const gr_call *c, bool next, uint64_t *goes, uint64_t *comes);
void gr_train_save(void *state, const char *prefix, gr_state_file *out);
gr_status gr_train_load(void *state, const char *prefix, const gr_state_file *in, gr_diag *d);

#endif
