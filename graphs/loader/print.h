/* graphs/loader/print.h: a loaded graph as text.
 */
#ifndef GR_GRAPHS_LOADER_PRINT_H
#define GR_GRAPHS_LOADER_PRINT_H

#include "graphs/graph/graph.h"

/* The resolved file: `use:` merged, parameters replaced, defaults and the planner's choices written out; of
 * files the whole path, which reads back anywhere, or their name alone. */
typedef enum gr_paths { GR_PATHS_WHOLE, GR_PATHS_NAME } gr_paths;
void gr_graph_resolved(const gr_graph *g, gr_paths paths, gr_str *out);

/* `check --explain`: every value with level, rows, size; every expression with its stages. */
void gr_graph_explain(const gr_graph *g, gr_str *out);

#endif
