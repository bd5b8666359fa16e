/* scheduler/search/packings.h: packings that were found, so that nothing is packed twice.
 *
 * One search lays the same steps out again and again, of a residency with and without wider room, of what
 * each level of what changes bits leaves as it was; half of all that is packed was packed before. Known by
 * 128 bits of all that a packing follows from; those that are equal are taken to be of the same. Of one
 * thread.
 */
#ifndef GR_SCHEDULER_SEARCH_PACKINGS_H
#define GR_SCHEDULER_SEARCH_PACKINGS_H

#include "memplan/pack/pack.h"

typedef struct gr_packing {
    uint64_t a, b; /* its key; a: odd; 0: none */
    uint64_t height;
    uint64_t *offset; /* of items */
} gr_packing;

typedef struct gr_packings { /* {0}: none */
    gr_packing *all;
    size_t n, size; /* size: a power of two, or 0 */
    size_t offsets; /* of all of them; where there are very many, all are forgotten */
} gr_packings;

/* gr_pack of items whose offsets are 0, to the bound. known: NULL: nothing is. */
uint64_t gr_pack_once(gr_packings *known, gr_pack_item *items, size_t n, uint32_t n_steps, uint32_t tries);
void gr_packings_release(gr_packings *known);

#endif
