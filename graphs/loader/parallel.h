/* graphs/loader/parallel.h: meshes of ranks that a model's training passes may be on, of a graph that is
 * loaded. */
#ifndef GR_GRAPHS_LOADER_PARALLEL_H
#define GR_GRAPHS_LOADER_PARALLEL_H

#include "graphs/graph/graph.h"

/* Whether a file may say it: sizes divide what they must, and nothing in the graph is refused with it. */
bool gr_mesh_serves(const gr_graph *g, const gr_model *m, const gr_mesh *mesh);

/* The graph as if its file said so: shares of nodes follow, in all views. Nothing that was planned for the
 * graph before holds. */
void gr_graph_set_mesh(gr_graph *g, uint32_t model, const gr_mesh *mesh);

#endif
