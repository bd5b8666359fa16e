/* memplan/pack/lowest.h: as low as a few seconds bring it, whatever the order and the direction of the input.
 *
 * Items are sorted, and packed as they are and with time reversed, for a packing of one is a packing of the
 * other; what is refuted of one is of both. So neither the order in which items are given nor their mirror
 * image changes the height. Items that fit together without a gap are joined first (memplan/pack/joins.h),
 * and tilings come together again. Then each way goes through orders (memplan/pack/pack.h), where the items
 * are few through the exact search (memplan/pack/solve.h), and where they are many through rows of the
 * skyline (memplan/pack/skyline.h).
 */
#ifndef GR_MEMPLAN_PACK_LOWEST_H
#define GR_MEMPLAN_PACK_LOWEST_H

#include "memplan/pack/solve.h"

/* Set the offsets of a packing of at most `capacity` bytes, or of the lowest that is found; 0: of that. What
 * is found without a capacity is found with a higher one. Tries and nodes are counted, not timed: some five
 * seconds of a core at 60,000 items, and twenty at hundreds that resist. */
gr_solution gr_pack_lowest(gr_pack_item *items, size_t n, uint32_t n_steps, uint64_t capacity);

#endif
