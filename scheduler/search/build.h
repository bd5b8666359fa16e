/* scheduler/search/build.h: a layout becomes a plan in two halves, since most of those that are packed take
 * more than there is.
 *
 * First the ledger with its offsets, in so many orders, and the bytes of each memory; then names, steps,
 * waits and every path, of the same transfers. The caller sets names and budgets. apart: nothing lies where
 * another lane is still busy when it begins, so that no step waits for bytes, as far as no more than so many
 * are live on the device for it; 0: steps wait for them.
 * known: packings found before, and what is found now is added to; or NULL.
 */
#ifndef GR_SCHEDULER_SEARCH_BUILD_H
#define GR_SCHEDULER_SEARCH_BUILD_H

#include "scheduler/search/packings.h"
#include "scheduler/search/transfers.h"

gr_plan *gr_plan_pack(const gr_transfers *l, const gr_analysis *f, gr_packings *known, uint64_t apart,
                      uint32_t tries);
void gr_plan_finish(gr_plan *p, const gr_transfers *l, const gr_analysis *f);

#endif
