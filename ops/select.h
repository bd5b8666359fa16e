/* ops/select.h: the op `select` for the planner: where the rounds of a refill begin. */
#ifndef GR_OPS_SELECT_H
#define GR_OPS_SELECT_H

#include "ops/base/op.h"

/* Empty the selection and begin the loop over its rounds: the works of the nodes it repeats and its own come
 * next, then gr_tasks_end. The node is the program's current one. */
void gr_select_begin_rounds(const gr_graph *g, const gr_node *n, gr_tasks *p);

#endif
