/* scheduler/classes.h: classes of unequal ranks: what crosses between them, and when.
 *
 * A node runs on one class; what it writes and a node of another class reads is sent there, and so are the
 * weights of a model that one class trains and another one reads. All crossings are found from the program of
 * the whole graph (who writes an object, who reads it next) and put into one order, which every class keeps:
 * so the first crossing in it that is not done can always be done, and no cycle of classes waits for itself.
 *
 * Of a node whose class is GR_NONE, the end of an iteration that changes state, every class has a copy.
 *
 * A crossing stands before the node that reads it, so that nothing before waits for it; or, where a rollout
 * lags, behind the node that writes it, so that the writer is free for its next iteration soonest.
 *
 * Receiving ranks each get all of an object. Weights come in equal parts from all sending ranks, a column
 * from one of them; so both use min(senders, receivers) links at once, of the hosts or of the network.
 */
#ifndef GR_SCHEDULER_CLASSES_H
#define GR_SCHEDULER_CLASSES_H

#include "ops/op.h"
#include "scheduler/hardware.h"

typedef struct gr_traffic gr_traffic;

/* ends: the nodes behind those of the graph, which end an iteration and a validation (the second may be
 * NULL); their class is set. whole [classes]: for each class the program of all nodes with its bounds, which
 * gives the objects their sizes; all must outlive the traffic. */
gr_traffic *gr_traffic_new(const gr_graph *g, gr_node *const ends[2], const gr_program *const *whole,
                           const gr_hardware *hw);
void gr_traffic_free(gr_traffic *t); /* NULL is fine */

/* Models whose weights a class has to be sent, by their bits. */
uint64_t gr_traffic_remote(const gr_graph *g, uint32_t class);

/* Nodes are declared in units: a node, or a select with all that it repeats. Declare what crosses before unit
 * number `unit`: the sends and receives of one class, whose view of the graph this is. */
void gr_traffic_declare(const gr_traffic *t, const gr_graph *view, gr_program *p, const gr_kernels *k,
                        uint32_t unit);

/* The program of class c; its plan was made from it. Fills in which send each recv meets, and the predicted
 * time of an iteration of all classes: what is between the ends of two iterations when many follow. */
void gr_classes_link(gr_plan *plan, const gr_program *const *programs);

/* When the steps of a class, outside of loops, begin and end [steps of the iteration], from the time at which
 * the first of the classes begins this iteration; returns when the last one ends it. Where a rollout lags
 * that is longer than the plan's time, for the classes are in two iterations at once. */
uint64_t gr_classes_times(const gr_plan *plan, uint32_t class, uint64_t *begin, uint64_t *end);

/* Whether an iteration or a validation may leave a node out. Validations that all come together leave out
 * nothing. */
bool gr_node_optional(const gr_graph *g, const gr_node *n);

#endif
