/* memplan/pack/joins.h: items that fit together without a gap, as one item.
 *
 * Where no byte is free at any step, what ends at a step leaves its bytes to what begins there. So an item of
 * the same size that begins where one ends is likely to be its heir: both are one item. So are two that live
 * at the same steps, one above the other, and five around a middle one (a wheel). Joined so, an input that
 * was cut out of a full rectangle comes together again, from the small to the large: a plane graph of its
 * borders and items is made smaller as series-parallel graphs are, wheels beside. Bytes that are free at a
 * step are filled up with items of nobody before.
 *
 * Whether two of the same size belong together is a guess where several begin and end at one step. What is
 * certain comes first. Where nothing goes together any more, some of the joins around a border that is left
 * are taken back and made in another order, and kept where no more items are left (ruin and recreate:
 * Schrimpf et al., 2000). The joins, the guesses and this use of them are ours.
 *
 * Work is counted, never timed. Memory is linear in the items.
 */
#ifndef GR_MEMPLAN_PACK_JOINS_H
#define GR_MEMPLAN_PACK_JOINS_H

#include "memplan/pack/pack.h"

typedef struct gr_joins gr_joins;

/* Join items, none of whose lives wrap, within so much work (pairs looked at). Free with gr_joins_free. */
gr_joins *gr_joins_new(const gr_pack_item *items, size_t n, uint32_t n_steps, uint64_t work);
void gr_joins_free(gr_joins *j);

/* What is left, to be packed: n_left items over steps steps, whose bound is that of the items joined. */
gr_pack_item *gr_joins_left(gr_joins *j, size_t *n_left, uint32_t *steps);

/* The offsets of the items that were joined, of those that are left. */
void gr_joins_place(const gr_joins *j, gr_pack_item *items);

#endif
