/* scheduler/search/policy.h: which policy holds for which resource of which model. */
#ifndef GR_SCHEDULER_SEARCH_POLICY_H
#define GR_SCHEDULER_SEARCH_POLICY_H

#include "graphs/graph/graph.h"
#include "scheduler/search/schedule.h"

/* What the graph's `residency:` says, for the others `all`. Where a model's params or optimizer is to move at
 * every node, a `transition` of the other yields to it and becomes `keep`, with a warning: it would be moved
 * for a rollout that the first already makes room for. *n rules, in the pool. d may be NULL. */
gr_rule *gr_rules_of(const gr_graph *g, gr_policy all, gr_arena *arena, size_t *n, gr_diag *d);

/* The policy of a name; GR_N_POLICIES: there is none. */
gr_policy gr_policy_find(const char *name);

#endif
