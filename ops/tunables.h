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
/* Tokens that a pass of a node takes together at least: of one sequence, or of responses with the prompt that
 * they share. */
uint32_t gr_node_together(const gr_node *n);

/* Whether bits of a run follow from where a node's passes are cut, and from how many rows its head takes at a
 * time. */
bool gr_cuts_change_bits(const gr_graph *g, const gr_node *n, const gr_kernels *k);
bool gr_head_changes_bits(const gr_node *n, const gr_kernels *k);

typedef void gr_tunable_set(const gr_node *n, const gr_kernels *k, uint32_t level, gr_choices *c);

/* Tokens of one micro-batch: the device's usual number, and fractions of it (a power of two) below all the
 * tokens of the pass, down to one sequence. */
gr_tunable gr_micro_tunable(const gr_graph *g, const gr_node *n, const gr_kernels *k, uint64_t all,
                            gr_tunable_set *set);
void gr_micro_set(const gr_node *n, const gr_kernels *k, uint32_t level, uint64_t all, gr_choices *c);

/* Tokens that a pass takes through the experts of a layer at once: as many as keep the device busy, and
 * fractions of that. Returns how many tunables: none of models without experts. It stands behind that of
 * micro-batches. */
size_t gr_experts_tunable(const gr_node *n, const gr_kernels *k, gr_tunable *out);
void gr_experts_set(const gr_node *n, const gr_kernels *k, uint32_t level, gr_choices *c);
/* Whether ranks have parts of the experts in passes of a node; where it trains, whether their first product
 * is kept is a level. */
bool gr_experts_are_divided(const gr_node *n);
size_t gr_experts_kept_tunable(const gr_node *n, gr_tunable *out);
/* Whether its bits follow from that: gradients of weights are summed run by run. */
bool gr_experts_change_bits(const gr_node *n, const gr_kernels *k);

/* Rows of one head chunk: the usual number, and quarters of it. rows: that are ever asked about at once, the
 * other choices made. */
gr_tunable gr_head_tunable(const gr_node *n, const gr_kernels *k, gr_tunable_set *set);
void gr_head_set(const gr_node *n, const gr_kernels *k, uint32_t level, uint32_t rows, gr_choices *c);

#endif
