/* scheduler/search/transfers_parts.h: what the parts of a layout share. Not for others: they include
 * scheduler/search/transfers.h.
 */
#ifndef GR_SCHEDULER_SEARCH_TRANSFERS_PARTS_H
#define GR_SCHEDULER_SEARCH_TRANSFERS_PARTS_H

#include "scheduler/search/transfers.h"

/* The ends of loops' bodies, and the lanes with steps in them. */
void gr_transfers_close_loops(gr_transfers *l, const gr_analysis *f);

/* Bytes live at each step; the caller frees them. */
uint64_t *gr_transfers_live(const gr_transfers *l, const gr_analysis *f, gr_place place);

/* transfers_disk.c: where the host pool has no room for all homes, some of them to the disk, if that has. */
void gr_transfers_to_disk(gr_transfers *l, const gr_analysis *f);

#endif
