/* scheduler/report/sweep.h: plans over a range of one setting, as a table and as a picture.
 */
#ifndef GR_SCHEDULER_REPORT_SWEEP_H
#define GR_SCHEDULER_REPORT_SWEEP_H

#include "memplan/plan/plan.h"

/* One plan of a sweep. Texts are borrowed. */
typedef struct gr_point {
    double value;
    const char *text;  /* the value as given: "80.00 GiB", "8" */
    const char *error; /* why there is no plan; NULL: there is one, and the rest holds */
    bool fits;
    uint64_t peak_bytes, budget_bytes, ns, moved_bytes;
    uint32_t n_transitions;
    const char *notes; /* of the plan, a line each */
} gr_point;

typedef struct gr_sweep {
    const char *title; /* "grpo on h200" */
    const char *name;  /* "budget" */
    const gr_point *points;
    size_t n;
} gr_sweep;

/* Both append to *out; caller frees it. csv: value, fits, peak_bytes, seconds, transitions, moved_bytes,
 * notes; the columns of values that give no plan are empty, notes then say why. */
void gr_sweep_table(const gr_sweep *s, gr_str *out);
void gr_sweep_csv(const gr_sweep *s, gr_str *out);
/* Step time above, peak below; values that do not fit are hollow. */
void gr_sweep_svg(const gr_sweep *s, gr_str *out);

#endif
