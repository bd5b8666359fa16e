/* memplan/pack/solve.h: the lowest packing of a few hundred items, and the proof that none is lower.
 *
 * Branch and bound over a skyline. Time is cut into sections, the maximal sets of items that live together.
 * Each section has a floor, below which all is decided. A niche is a run of sections of one floor with higher
 * ones around: whatever covers a section just above its floor lies inside the niche, on the floor. A node of
 * the search takes the section with the fewest answers to "what lies here?" and tries each: an item of the
 * niche, or nothing, if floor, gap and the bytes still to come stay within the capacity. So every packing is
 * met at most once, and a section without room to spare is never left a gap. Also used:
 *   - sections that share no open item any more are searched apart, and a failure goes back to where they
 *     were one;
 *   - a gap is as high as the lowest thing that could hold up what closes it, and never so high that an open
 *     item would fit below: that one could drop, and the lower packing is found elsewhere;
 *   - of items that are the same in all, the first comes first.
 * Failures come early or (nearly) never, so searches are short and many, with other orders and random weights
 * each, in Luby's sequence of lengths (Luby, Sinclair and Zuckerman, 1993); one that ends by itself is a
 * proof. The capacity begins at the bound; where that is not settled, higher ones are tried in turn.
 * The setting is Moffitt's (MiniMalloc, ASPLOS 2023); branching on points and the restarts are ours.
 *
 * Nodes are counted, never seconds: the same input gives the same offsets. Memory is linear in the items and
 * the depth; a node costs time linear in the items and sections still open beside it.
 */
#ifndef GR_MEMPLAN_PACK_SOLVE_H
#define GR_MEMPLAN_PACK_SOLVE_H

#include "memplan/pack/pack.h"

typedef struct gr_solution {
    uint64_t height; /* of the offsets set; as given where nothing lower was found */
    uint64_t bound;  /* no packing is lower: most bytes live at a step, or more where less is refuted */
    uint64_t nodes;  /* looked at */
} gr_solution;

/* Look for a packing lower than height (of one that is known; UINT64_MAX: none is), and stop at a height of
 * at most enough (0: at the lowest there is). Sets the offsets where it finds one. At most about nodes nodes
 * are looked at. It is the lowest when height and bound are equal.
 * Items that wrap round the end lie at the bottom in the order given; with such, only the bound of live bytes
 * is proven. */
gr_solution gr_solve(gr_pack_item *items, size_t n, uint32_t n_steps, uint64_t height, uint64_t enough,
                     uint64_t nodes);

#endif
