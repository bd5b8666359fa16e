/* memplan/pack/pack.h: offsets for lifetimes on a cycle, in as few bytes as can be found.
 *
 * Two items may share bytes only when their lifetimes have no step in common. No packing is lower than the
 * most bytes live at one step (the bound); the search stops as soon as it meets it.
 * Method: items that live always lie at the bottom; the others are placed one by one at the lowest offset
 * that is free in all their steps, in several orders (area, size, duration, ...); then the orders are
 * improved: the items that make the packing too high are moved to the front and the placing is repeated. What
 * is still above the bound then and has few items goes to the exact packer, memplan/pack/solve.h, for a
 * while. Deciding the best packing is NP-hard; tries are counted, not timed, so that the same input gives the
 * same offsets.
 *
 * Time of a try: n times what lies below an item's place, 20 bytes of each read in order, skipped in blocks
 * where a block lives at other times. Memory: linear.
 */
#ifndef GR_MEMPLAN_PACK_PACK_H
#define GR_MEMPLAN_PACK_PACK_H

#include "runtime/base/base.h"

typedef struct gr_pack_item {
    uint64_t bytes;       /* > 0; offsets are multiples of whatever all sizes are multiples of */
    uint32_t first, last; /* steps, both inclusive; last < first wraps round the end */
    uint64_t offset;      /* set by gr_pack */
} gr_pack_item;

/* The bound: most bytes live at one of n_steps steps. */
uint64_t gr_pack_bound(const gr_pack_item *items, size_t n, uint32_t n_steps);

/* Set all offsets; returns the height, the highest offset + bytes. Stops early at a height <= enough (0: only
 * at the bound). tries: how many orders are placed at most. */
uint64_t gr_pack(gr_pack_item *items, size_t n, uint32_t n_steps, uint64_t enough, uint32_t tries);

#endif
