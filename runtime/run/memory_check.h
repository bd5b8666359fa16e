/* runtime/run/memory_check.h: catch a step that touches memory it did not declare.
 *
 * Before a step, all bytes of arena and host pool that no live entry covers are filled with a pattern; after
 * it they must hold it still, and every live entry that the step does not write must be as it was. Steps run
 * one at a time, in the order of their numbers.
 *
 * On the steady path an entry is live as the ledger says; on other paths all entries that the path names
 * anywhere are taken to be live throughout. Costs a pass over all memory a step: for tests.
 */
#ifndef GR_RUNTIME_RUN_MEMORY_CHECK_H
#define GR_RUNTIME_RUN_MEMORY_CHECK_H

#include "memplan/plan/plan.h"
#include "runtime/device/device.h"

typedef struct gr_memory_check gr_memory_check;

/* plan, arena and pool must outlive it; both are filled with the pattern. */
gr_memory_check *gr_memory_check_new(const gr_plan *plan, const gr_memory *arena, const gr_memory *pool);
void gr_memory_check_free(gr_memory_check *p); /* NULL is fine */

void gr_memory_check_before(gr_memory_check *p, gr_path_id path, uint32_t step);

/* GR_E_FAILED with the step and the place where something was touched. */
GR_NODISCARD gr_status gr_memory_check_after(gr_memory_check *p, gr_path_id path, uint32_t step, gr_diag *d);

/* What was touched of the device, so far, on the steps that the ledger counts. Two measures of an entry: its
 * bytes up to the last one that does not hold the pattern (its watermark: what a smaller entry would not have
 * held), and those of them that do not (counted in units of GR_ALIGN, as the ledger does). */
typedef struct gr_touched {
    uint64_t most; /* the largest sum of watermarks at any step */
    /* at the plan's peak: of the steps that hold as much as any, the one and the trip with the largest sum */
    uint32_t step;           /* as the ledger counts; GR_NONE: none of them has run */
    uint64_t planned;        /* bytes of the entries live there */
    uint64_t marks, touched; /* sums over the entries live there */
    const struct gr_touched_entry {
        bool live; /* there, on the device */
        uint64_t mark, touched;
    } * entry; /* [n_ledger] */
} gr_touched;

/* Valid until the next step. */
gr_touched gr_memory_check_touched(const gr_memory_check *p);

#endif
