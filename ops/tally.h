/* ops/tally.h: what the routers of a model chose in the passes of a node, counted and told as metrics.
 *
 * Of a model without experts there is nothing: objects are GR_NONE, and the functions do nothing. A tally is
 * on the device (ops/kernels/routing.h); passes add to it, ranks sum it, and the host takes it. Metrics of
 * node N, over the choices of an iteration (of an update: of all its mini-batches):
 *   N.expert_load       the busiest expert's choices over the mean, in the layer where that is most
 *   N.expert_entropy    the entropy of the experts' loads over the most it can be (1: all alike), where least
 *   N.experts_dead      experts that nobody chose, in all layers together
 *   N.expert_trips      where experts are divided over ranks: trips that a run of tokens took, on average,
 *                       among the first ranks (ops/kernels/experts_cut.c)
 *   N.balance_loss      of an update with router_aux_loss_coef: the loss, without the coefficient
 *   N.routing_agreement        routers of tokens that choose the experts that the rollout chose: a share
 *   N.routing_agreement_tokens tokens of which all routers do
 *   N.routing_agreement_least  the first, in the layer where it is least
 */
#ifndef GR_OPS_TALLY_H
#define GR_OPS_TALLY_H

#include "ops/base/session.h"
#include "ops/kernels/experts.h"
#include "ops/pass.h"

/* Recorded choices that come with each token of the node's passes; 0: none. */
uint32_t gr_tally_routes(const gr_node *n);

/* Its objects in the plan. */
typedef struct gr_tally_objects {
    uint32_t tally;
    uint32_t differs; /* where choices are compared */
    uint32_t back;    /* the host's copy */
} gr_tally_objects;
gr_tally_objects gr_tally_declare(gr_tasks *p, const gr_node *n, const gr_micro_bounds *b);
/* The task that takes it, behind the sum over ranks; of many ranks all have the same. */
enum { TAKE_TALLY, TAKE_BACK, N_TAKE };
void gr_tally_declare_take(gr_tasks *p, const gr_node *n, const gr_tally_objects *o, uint32_t kernel);

typedef struct gr_tally_state gr_tally_state;
/* NULL: there are no experts. */
gr_tally_state *gr_tally_open(gr_session *s, const gr_node *n);
void gr_tally_close(gr_tally_state *t);

/* Of an update with a balance loss: what it is over; coefficient 0: it has none. */
gr_balance_loss gr_tally_balance(const gr_node *n);

/* Begin to count; compared tokens of a pass begin as equal. */
void gr_tally_clear(const gr_call *c, void *tally);
void gr_tally_begin_pass(const gr_call *c, void *differs, uint32_t tokens);
/* What a pass is asked. tally, differs: pointers of the objects, NULL where it does not count. */
gr_routing gr_tally_routing(const gr_node *n, const gr_pass *p, const gr_micro *k, void *tally,
                            void *differs);
/* Run the task: add what was counted to what the state has. */
gr_status gr_tally_take(const gr_call *c, gr_tally_state *t, gr_diag *d);
/* Give the metrics of what has been taken, and forget it. */
void gr_tally_report(gr_tally_state *t);

#endif
