/* graphs/loader/tensor.h: how many ranks may have the experts of a model's rollouts, of a graph that is
 * loaded.
 */
#ifndef GR_GRAPHS_LOADER_TENSOR_H
#define GR_GRAPHS_LOADER_TENSOR_H

#include "graphs/graph/graph.h"

/* Whether its file leaves to the planner how the copy that generates is divided: it says neither `tensor` nor
 * `expert`. */
bool gr_rollout_is_open(const gr_model *m);

/* Whether the file may say `expert: n` of that model, n > 1: it makes rollouts, n divides what it must, and
 * nothing in the graph is refused with it. The graph is as it was when this returns. */
bool gr_rollout_divides(gr_graph *g, uint32_t model, uint32_t n);

/* The graph as if its file said so: shares of nodes follow, in all views. Nothing that was planned for the
 * graph before holds. */
void gr_graph_divide_rollout(gr_graph *g, uint32_t model, uint32_t n);

#endif
