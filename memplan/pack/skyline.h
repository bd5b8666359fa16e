/* memplan/pack/skyline.h: many items by rows: the lowest run of the skyline is filled from wall to wall.
 *
 * Time is cut into sections, one for each step at which something begins after something ended. What lies
 * just above the lowest run lies between its two walls. So a row is chosen for the whole run at once: of the
 * chains of items, each of which begins where the one before ends, the one of the least cost. A section that
 * no item covers costs much, the more the fuller it is already. A change of height costs a little, for what
 * lies above has less room there. Large items are cheap, for they are the hard ones later. The chain is found
 * by dynamic programming from the right wall, in time linear in the items of the run.
 *
 * Then all is packed again, with costs changed: items that ended high are cheaper, sections that waste most
 * are dearer (squeaky wheel optimization: Joslin and Clements, 1999). The rows and their costs are ours.
 *
 * It pays where items are many and most steps are full; orders (memplan/pack/pack.h) are better elsewhere.
 * Work is counted, never timed. Memory is linear in the items and steps.
 */
#ifndef GR_MEMPLAN_PACK_SKYLINE_H
#define GR_MEMPLAN_PACK_SKYLINE_H

#include "memplan/pack/pack.h"

/* Look for a packing lower than height, of items none of whose lives wrap, and stop at one of at most enough.
 * Sets the offsets where it finds one. Returns the height: as given where none is lower. At most about work
 * items and sections are looked at, and none where one try takes more than an eighth of that. */
uint64_t gr_pack_skyline(gr_pack_item *items, size_t n, uint32_t n_steps, uint64_t height, uint64_t enough,
                         uint64_t work);

#endif
