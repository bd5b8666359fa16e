/* tests/unit/planned.h: graphs planned for the CPU device of the synthetic machine. */
#ifndef GR_TESTS_PLANNED_H
#define GR_TESTS_PLANNED_H

#include "scheduler/search/planner.h"
#include "tests/unit/synthetic.h"

/* NULL: it does not fit. Any other failure is the test's. */
static inline gr_planned *plan_or_null(const gr_graph *g, gr_policy policy, uint64_t budget, uint32_t hosts)
{
    gr_plan_options o = {.kernels = &gr_kernels_cpu,
                         .hardware = machine(),
                         .policy = policy,
                         .budget_bytes = budget,
                         .hosts = hosts,
                         .threads = 1};
    gr_planned *p = NULL;
    gr_diag d;
    gr_diag_init(&d);
    gr_status st = gr_plan_graph(&p, g, &o, &d);
    for (size_t i = 0; st && st != GR_E_NOFIT && i < d.n; i++) print_message("%s\n", d.messages[i].text);
    assert_true(st == GR_OK || st == GR_E_NOFIT);
    gr_diag_release(&d);
    if (!st) return p;
    gr_planned_free(p);
    return NULL;
}

#endif
