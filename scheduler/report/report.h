/* scheduler/report/report.h: a plan as a table for people, 100 columns wide, UTF-8.
 *
 * On top the peak, who is alive then, headroom and time; then the steps in order with their lane, what they
 * move, what is resident on the device and a bar of it. Repeated steps (layers, and the copies around them)
 * are one line with a range of numbers: "update.forward.0..27".
 */
#ifndef GR_SCHEDULER_REPORT_REPORT_H
#define GR_SCHEDULER_REPORT_REPORT_H

#include "memplan/plan/plan.h"

/* Appends to *out; caller frees it. colour: with terminal escapes. */
void gr_plan_table(const gr_plan *p, gr_str *out, bool colour);

#endif
