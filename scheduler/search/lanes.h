/* scheduler/search/lanes.h: times by lane, and sets of lanes as bit masks: what clocks of layouts and of
 * finished plans share.
 *
 * lane [GR_N_LANES]: ns at which each lane is through with what was given to it.
 */
#ifndef GR_SCHEDULER_SEARCH_LANES_H
#define GR_SCHEDULER_SEARCH_LANES_H

#include "memplan/plan/plan.h"

enum { GR_ALL_LANES = (1u << GR_N_LANES) - 1 };

/* When all of these lanes are through; 0 where there are none. */
static inline uint64_t gr_lanes_latest(const uint64_t *lane, unsigned lanes)
{
    uint64_t t = 0;
    for (int l = 0; l < GR_N_LANES; l++)
        if (lanes >> l & 1) t = GR_MAX(t, lane[l]);
    return t;
}

/* None of these lanes goes on before t. */
static inline void gr_lanes_meet(uint64_t *lane, unsigned lanes, uint64_t t)
{
    for (int l = 0; l < GR_N_LANES; l++)
        if (lanes >> l & 1) lane[l] = GR_MAX(lane[l], t);
}

#endif
