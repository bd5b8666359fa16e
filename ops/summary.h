/* ops/summary.h: the work that ends an iteration: log, next state, the usual metrics, samples of the rollout;
 * and the one that ends a validation: its metrics.
 *
 * They are ops like the others, but no graph names them: the planner appends a node of each.
 *
 * Of a validation, beside the metrics of its nodes: a score's mean as NODE, and of a rollout
 * NODE.response_tokens_mean and NODE.truncated_fraction.
 */
#ifndef GR_OPS_SUMMARY_H
#define GR_OPS_SUMMARY_H

#include "ops/base/op.h"

/* The node for this graph, from pool, named "iteration" or "end of validation". NULL: the graph has no
 * validation. */
gr_node *gr_summary_node(const gr_graph *g, bool validation, gr_arena *arena);

/* Whether a metric, by its name in metrics.jsonl, says how good the model was in a validation: not how long
 * its responses were, or what they took. */
bool gr_is_validation_score(const char *metric);

/* What metrics and samples are about: the rollout that the policy is trained on (or the first row maker), the
 * update of its model, the reward; NULL where there is none. scored: the rows that the reward, lengths and
 * samples are of; other than rows where those are some sequences of these, such as the best ones. */
typedef struct gr_subject {
    const gr_node *rows, *scored, *update, *policy_logprob, *ref_logprob;
    const gr_column *reward;
} gr_subject;
gr_subject gr_graph_subject(const gr_graph *g);

#endif
