/* ops/base/states.h: what a teacher leaves for an update that is taught by it (`teacher` of `update`): the
 * hidden states behind its final norm from which each response token was predicted.
 *
 * A row of them says as much as the teacher's distribution over the whole vocabulary, in its width instead of
 * the vocabulary's: the update multiplies it by the teacher's output matrix again, some rows at a time. An
 * object of the plan named "NODE.states", beside the columns of the teacher's log-prob node; row t is that of
 * token t of those columns, in the device's type.
 */
#ifndef GR_OPS_BASE_STATES_H
#define GR_OPS_BASE_STATES_H

#include "ops/base/op.h"

/* The log-prob node that teaches an update; NULL: none, or another op. */
const gr_node *gr_node_teacher(const gr_node *n);

/* Whether an update of the graph is taught by this node. */
bool gr_node_teaches(const gr_graph *g, const gr_node *n);

/* Whether an update is taught whose own model, or whose teacher's, this is. */
bool gr_model_in_lesson(const gr_graph *g, const gr_model *m);

/* Bytes of a row. n: the teacher's node. */
uint64_t gr_states_row_bytes(const gr_kernels *k, const gr_node *n);
/* Bytes of all. */
uint64_t gr_states_bytes(const gr_kernels *k, const gr_node *n);
/* The object, added on first use. */
uint32_t gr_states_object(gr_tasks *p, const gr_kernels *k, const gr_node *n);

#endif
