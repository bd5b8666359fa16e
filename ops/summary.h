/* ops/summary.h: the work that ends an iteration: log, next state, the usual metrics, samples of the rollout.
 *
 * It is an op like the others, but no graph names it: the planner appends one node of it.
 */
#ifndef GR_OPS_SUMMARY_H
#define GR_OPS_SUMMARY_H

#include "ops/op.h"

extern const gr_op gr_op_summary;

/* A node of it for this graph, named "iteration"; from pool. */
gr_node *gr_summary_node(const gr_graph *g, gr_pool *pool);

/* What metrics and samples are about: the rollout that the policy is trained on (or the first row maker), the
 * update of its model, the reward; NULL where there is none. */
typedef struct gr_subject {
    const gr_node *rows, *update, *policy_logprob, *ref_logprob;
    const gr_column *reward;
} gr_subject;
gr_subject gr_graph_subject(const gr_graph *g);

#endif
