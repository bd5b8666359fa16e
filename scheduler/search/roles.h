/* scheduler/search/roles.h: roles of unequal ranks: what crosses between them, and when.
 *
 * A node runs on one role; what it writes and a node of another role reads is sent there, and so are the
 * weights of a model that one role trains and another one reads. All transfers are found from the program of
 * the whole graph (who writes an object, who reads it next) and put into one order, which every role keeps:
 * so the first transfer in it that is not done can always be done, and no cycle of roles waits for itself.
 *
 * Of a node whose role is GR_NONE, the end of an iteration that changes state, every role has a copy.
 *
 * A transfer of a column stands before the node that reads it, so that nothing before waits for it, or behind
 * the node that writes it, so that the writer is free for its next iteration soonest. The older weights of a
 * lagging rollout cross behind it, or before the update: then the ranks that generate need not wait for the
 * training of the iteration before until they have done the rest of theirs. And the nodes, which stand in one
 * order for all roles, stand as in the graph, or so that a role goes on as long as it can before another
 * does: then what it sends stands behind more of its own work. Which of these is best the times say: the
 * planner tries all.
 *
 * Receiving ranks each get all of an object. Weights come in equal parts from all sending ranks, a column
 * from one of them; so both use min(senders, receivers) links at once, of the hosts or of the network.
 */
#ifndef GR_SCHEDULER_SEARCH_ROLES_H
#define GR_SCHEDULER_SEARCH_ROLES_H

#include "ops/base/op.h"
#include "scheduler/cost/hardware.h"

typedef struct gr_traffic gr_traffic;

/* Bits of an order. */
enum { GR_ORDER_WRITTEN = 1, GR_ORDER_BY_ROLE = 2, GR_ORDER_UPDATE = 4, GR_ORDERS = 8 };

/* How many orders there are to try, from 0 on. */
uint32_t gr_traffic_orders(const gr_graph *g);
/* Whether a rollout has `lag: 1`. */
bool gr_graph_lags(const gr_graph *g);

/* ends: the nodes behind those of the graph, which end an iteration and a validation (the second may be
 * NULL); their role is set. whole [roles]: for each role the program of all nodes with its bounds, which
 * gives the objects their sizes; all must outlive the traffic. */
gr_traffic *gr_traffic_new(const gr_graph *g, gr_node *const ends[2], const gr_tasks *const *whole,
                           const gr_hardware *hw, uint32_t order);
void gr_traffic_free(gr_traffic *t); /* NULL is fine */

/* Whether the role that the graph is seen by has to be sent a model's weights. */
bool gr_model_is_away(const gr_graph *g, const gr_model *m);

/* Nodes are declared in units: a node, or a select with all that it repeats, each role its own in the order
 * of the graph. Declare what crosses before that of node n and has not been declared: the sends and receives
 * of one role, whose view of the graph this is. *next: 0 at first. */
void gr_traffic_declare(const gr_traffic *t, const gr_graph *view, gr_tasks *p, const gr_kernels *k,
                        const gr_node *n, size_t *next);

/* The program of role c; its plan was made from it. Fills in which send each recv meets, and the predicted
 * time of an iteration of all roles: what is between the ends of two iterations when many follow. */
void gr_roles_link(gr_plan *plan, const gr_tasks *const *tasks);

/* When the steps of a role, outside of loops, begin and end [steps of the iteration], from the time at which
 * the first of the roles begins this iteration; returns when the last one ends it. Where a rollout lags
 * that is longer than the plan's time, for the roles are in two iterations at once. */
uint64_t gr_roles_times(const gr_plan *plan, uint32_t role, uint64_t *begin, uint64_t *end);

/* The time of an iteration of all roles, as gr_roles_link sets it. */
uint64_t gr_roles_ns(const gr_plan *plan);

/* Whether an iteration or a validation may leave a node out. Validations that all come together leave out
 * nothing. */
bool gr_node_optional(const gr_graph *g, const gr_node *n);

#endif
