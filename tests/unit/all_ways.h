/* tests/unit/all_ways.h: plans of a graph under tighter and tighter budgets, run in random interleavings. */
#ifndef GR_TESTS_ALL_WAYS_H
#define GR_TESTS_ALL_WAYS_H

#include "tests/unit/planned.h"
#include "tests/unit/simulate.h"

/* what: the graph, for messages. plans grows by the plans that were run. */
static inline void run_all_ways(const gr_graph *g, gr_policy policy, uint64_t budget, uint32_t hosts,
                                const char *what, uint32_t *plans)
{
    for (int step = 0; step < 3; step++) {
        gr_planned *p = plan_or_null(g, policy, budget, hosts);
        if (!p) break;
        ++*plans;
        for (uint64_t run = 0; run < 2; run++) {
            char where[128];
            const char *why = simulate(p->plan, p->tasks, run * 7 + g->ranks, NULL, false, where);
            if (why)
                fail_msg("%s on %u ranks, policy %d, budget %lu: %s: %s", what, g->ranks, policy, budget, why,
                         where);
        }
        budget = machine().overhead_bytes + p->plan->arena_bytes * 94 / 100;
        gr_planned_free(p);
    }
}

#endif
