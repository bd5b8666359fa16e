/* scheduler/search/planner_parts.h: the parts of the planner; private to scheduler/.
 *
 *     knobs.c     what may be chosen for a role of ranks, and what that makes of its nodes
 *     lower.c     the program of a role, from what its nodes declare
 *     numerics.c  what fixes the bits of a run
 *     settings.c  choices as plans keep them
 *     claims.c    what a plan's file says, held against graph and hardware
 *     planner.c   plans of all roles, together and proven
 *
 * Graphs here are as a role sees them (gr_graph.views), unless it says otherwise.
 */
#ifndef GR_SCHEDULER_SEARCH_PLANNER_PARTS_H
#define GR_SCHEDULER_SEARCH_PLANNER_PARTS_H

#include "scheduler/search/roles.h"
#include "scheduler/search/planner.h"

static inline bool gr_node_is_pass(const gr_node *n)
{
    return n->op->passes || n->op->trains;
}

/* Of the graph's nodes, and of the two summaries. */
static inline size_t gr_n_choices(const gr_graph *g)
{
    return g->n_nodes + 2;
}

/* ---- knobs.c ---- */

/* What is open for the role of p, whose graph, kernels and summaries are set. */
typedef struct gr_knobs gr_knobs;

/* It lives in pool, and uses all it is given. traffic: what crosses; NULL: programs are of all nodes. */
gr_knobs *gr_knobs_new(const gr_planned *p, const gr_plan_options *o, const gr_traffic *traffic,
                       gr_arena *arena);
gr_tasks_source gr_knobs_source(gr_knobs *s);
/* The choices that levels [n_knobs] stand for: how [gr_n_choices]. */
void gr_knobs_choose(const gr_knobs *s, const uint32_t *level, gr_choices *how);

/* The hardware between the ranks of a role. */
gr_hardware gr_plan_hardware(const gr_plan_options *o, const gr_graph *view);
/* Whether a model's weights are sent to other ranks: from shards over all that train it, or whole. */
bool gr_model_is_sent(const gr_graph *g, const gr_model *m);

/* ---- lower.c ---- */

/* The program of a role with these choices [gr_n_choices]; the caller frees it. of: whose summaries end it.
 */
gr_tasks *gr_lower(const gr_graph *g, const gr_kernels *k, const gr_choices *how, const gr_planned *of,
                   const gr_traffic *traffic);
/* That of one node alone, as if the others had run. */
gr_tasks *gr_lower_node(const gr_graph *g, const gr_kernels *k, const gr_choices *how, const gr_node *n);

/* ---- numerics.c ---- */

/* Whether bits of a run follow from where an optimizer step is done; see also ops/tunables.h. */
bool gr_host_step_changes_bits(const gr_kernels *k);
/* A hash of all that does, as text in pool. g: of all roles; choices: of every node those of its role. */
const char *gr_numerics(const gr_graph *g, const gr_choices *choices, const gr_plan_options *o,
                        gr_arena *arena);

/* ---- claims.c ---- */

/* Whether p's plan, proven, says what is so: the memory beside the arena, how long its steps and an iteration
 * take on the hardware that it names. */
GR_NODISCARD gr_status gr_check_claims(const gr_planned *p, const gr_plan_options *o, gr_adoption why,
                                       gr_diag *d);
/* Whether it said the numerics that it has now: of_graph is the text that it had then. */
GR_NODISCARD gr_status gr_check_numerics(const gr_planned *p, const char *said, const char *of_graph,
                                         gr_diag *d);

/* ---- settings.c ---- */

/* p's choices into its plan; and those of a plan into p, which is for the graph g. GR_E_INVALID: g cannot run
 * with them. */
void gr_settings_write(gr_planned *p);
GR_NODISCARD gr_status gr_settings_read(gr_planned *p, const gr_plan *plan, const gr_graph *g, gr_diag *d);

#endif
