/* tests/e2e/exec_with.h: `graphrun exec` with kernels of one's own, on a plan made for them. On the CPU
 * device gaps between objects are poisoned and checked. */
#ifndef GR_TESTS_EXEC_WITH_H
#define GR_TESTS_EXEC_WITH_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/run/run.h"
#include "scheduler/search/schedule.h"
#include "graphs/loader/load.h"

/* Arguments: GRAPH OUT [KEY=VALUE ...]. Returns the exit status. */
static inline int exec_with(const gr_kernels *k, int argc, char **argv)
{
    const bool on_cpu = !strcmp(k->device, "cpu");
    if (argc < 3) {
        fprintf(stderr, "usage: %s GRAPH OUT [KEY=VALUE ...]\n", argv[0]);
        return 2;
    }
    gr_diag d;
    gr_diag_init(&d);
    gr_graph *g = NULL;
    gr_planned *p = NULL;
    gr_plan_options o = {.kernels = k, .threads = 1};
    const gr_load_options load = {
        .set = (const char *const *)argv + 3, .n_set = (size_t)argc - 3, .need_shapes = true};
    gr_status st = gr_hardware_local(&o.hardware, k->device, &d);
    if (!st) st = gr_graph_load(&g, argv[1], &load, &d);
    if (!st) st = gr_plan_graph(&p, g, &o, &d);
    const gr_run_options run_options = {.out = argv[2], .poison = on_cpu, .threads = 1};
    if (!st) st = gr_run(g, p, p->kernels, &run_options, &d);
    for (size_t i = 0; i < d.n; i++) {
        char *text = gr_message_format(&d.messages[i]);
        fprintf(stderr, "%s\n", text);
        free(text);
    }
    gr_planned_free(p);
    gr_graph_free(g);
    gr_diag_release(&d);
    return st != GR_OK;
}

#endif
