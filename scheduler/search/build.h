/* scheduler/search/build.h: a layout becomes a plan in two halves, since most of those that are packed take
 * more than there is.
 *
 * First the ledger with its offsets, in so many orders, and the bytes of each memory; then names, steps,
 * waits and every path, of the same transfers. The caller sets names and budgets.
 * known: packings found before, and what is found now is added to; or NULL.
 */
#ifndef GR_SCHEDULER_SEARCH_BUILD_H
#define GR_SCHEDULER_SEARCH_BUILD_H

#include "scheduler/search/packings.h"
#include "scheduler/search/transfers.h"

/* Nothing lies where another lane is still busy when it begins, so that no step waits for bytes, as far as no
 * more than `held` are live on the device for it; 0: steps wait for them. Else room: of the arena. */
typedef struct gr_apart {
    uint64_t held, room;
} gr_apart;

/* NULL: what is to lie apart is more than the arena has room for. */
gr_plan *gr_plan_pack(const gr_transfers *l, const gr_analysis *f, gr_packings *known, gr_apart apart,
                      uint32_t tries);
void gr_plan_finish(gr_plan *p, const gr_transfers *l, const gr_analysis *f);

#endif
