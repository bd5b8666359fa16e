/* ops/base/nodes.h: the columns and rows of a graph's nodes, as their ops declare them.
 *
 * Ownership: columns are the graph's. Threads: a graph is added to while it is loaded, by one thread.
 */
#ifndef GR_OPS_BASE_NODES_H
#define GR_OPS_BASE_NODES_H

#include "graphs/graph/graph.h"

struct gr_field;

/* A field of a node by name, or its main one (name NULL); a field of data, or one of several results, is any
 * name that the op takes. NULL: it has none. */
const struct gr_field *gr_field_find(const gr_node *n, const char *name);

/* The column of a field of a node, NULL where nobody reads it. field NULL: the main one. */
const gr_column *gr_node_column(const gr_node *n, const char *field);

/* The column of a field, added where nobody read it before; for an op's check that reads another node's
 * field. NULL: the node has no such field. */
const gr_column *gr_graph_column(gr_graph *g, const gr_node *n, const char *field);

/* A column more, whose id follows those before; and among those that a node fills. */
gr_column *gr_graph_add_column(gr_graph *g, gr_column c);
void gr_node_add_column(gr_graph *g, gr_node *n, const gr_column *c);

/* The node that made these rows, and that drew these groups, before anything was selected or joined to them.
 */
const gr_node *gr_rows_maker(const gr_node *rows);
const gr_node *gr_groups_maker(const gr_node *groups);
/* Whether some of the rows were joined to those that were made. */
bool gr_rows_joined(const gr_node *rows);
/* Whether rows that were made in groups are groups of one now: a select draws one at a time. */
bool gr_rows_split(const gr_node *rows);

/* Whether a node reads the weights that generate. */
bool gr_reads_rollout(const gr_node *n);

/* Whether the products of its model's layers are in FP8. */
bool gr_node_fp8(const gr_node *n);

#endif
