/* scheduler/report/diff.h: what differs between two plans, in words.
 *
 * Roles of ranks, budget, highest peak and where, host pool, disk, predicted time, whole and per node;
 * whether results have the same bits; settings that the planner chose; lines of the resolved graphs;
 * resources that stay in one plan and come and go in the other; transitions by kind and resource. What is
 * equal is not said; of equal plans one line is.
 */
#ifndef GR_SCHEDULER_REPORT_DIFF_H
#define GR_SCHEDULER_REPORT_DIFF_H

#include "memplan/plan/plan.h"

/* Appends to *out; caller frees it. */
void gr_plan_diff(const gr_plan *a, const gr_plan *b, gr_str *out);

#endif
