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
 * samples are of; other than rows where those are some sequences of these, such as the best ones. advantage:
 * of scored, what the update's loss reads under a name with this word in it. */
typedef struct gr_subject {
    const gr_node *rows, *scored, *update, *policy_logprob, *ref_logprob;
    const gr_column *reward, *advantage;
} gr_subject;
gr_subject gr_graph_subject(const gr_graph *g);

/* A column, as it is at the end of an iteration: f32 of its level, or what its dtype says. */
typedef struct gr_shown_column {
    const gr_column *column; /* NULL: there is none, or its node did not run */
    const void *data;
} gr_shown_column;

/* The responses of an iteration, as samples show them. */
typedef struct gr_shown {
    const gr_node *node; /* whose rows */
    const struct gr_rows *rows;
    gr_shown_column reward, advantage;
    const gr_shown_column *values; /* what the update's loss reads of these rows; of a run that keeps all */
    size_t n_values;
} gr_shown;
/* A sequence's number: of a column a token the sum over the tokens that count, or their mean. NaN: none. */
double gr_shown_number(const gr_shown *s, const gr_shown_column *c, uint32_t seq, bool mean);
/* One of a token's, counted in the rows, or of the sequence or group that it is of. */
double gr_shown_at(const gr_shown *s, const gr_shown_column *c, uint32_t seq, uint32_t token);

#endif
