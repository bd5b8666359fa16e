/* ops/tunables.h: what may be chosen for nodes that ask a model: micro-batches of packed passes, and rows of
 * the head. Ops put these into their own lists (gr_op.tunables).
 */
#ifndef GR_OPS_TUNABLES_H
#define GR_OPS_TUNABLES_H

#include "ops/base/op.h"

/* Halvings until at most `to` is left. */
uint32_t gr_halvings(uint32_t from, uint32_t to);
/* Tokens of the longest sequence of a node with rows. */
uint32_t gr_node_longest(const gr_node *n);

/* Whether bits of a run follow from where a node's passes are cut, and from how many rows its head takes at a
 * time. */
bool gr_cuts_change_bits(const gr_graph *g, const gr_node *n, const gr_kernels *k);
bool gr_head_changes_bits(const gr_node *n, const gr_kernels *k);

/* Tokens of one micro-batch: the device's usual number, and halves of it, down to one sequence. */
gr_tunable gr_micro_tunable(const gr_graph *g, const gr_node *n, const gr_kernels *k);
void gr_micro_set(const gr_node *n, const gr_kernels *k, uint32_t level, gr_choices *c);

/* Rows of one head chunk: the usual number, and quarters of it. rows: that are ever asked about at once, the
 * other choices made. */
gr_tunable gr_head_tunable(const gr_node *n, const gr_kernels *k,
                           void (*set)(const gr_node *n, const gr_kernels *k, uint32_t level, gr_choices *c));
void gr_head_set(const gr_node *n, const gr_kernels *k, uint32_t level, uint32_t rows, gr_choices *c);

#endif
