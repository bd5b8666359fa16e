/* tests/e2e/exec_with.h: `graphrun exec` with kernels of one's own, on a plan made for them; under mpirun on
 * its ranks. On the CPU device gaps between objects are poisoned and checked. */
#ifndef GR_TESTS_EXEC_WITH_H
#define GR_TESTS_EXEC_WITH_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/run/run.h"
#include "scheduler/search/schedule.h"
#include "graphs/loader/load.h"

static inline void exec_lost(const char *message)
{
    fprintf(stderr, "%s\n", message);
}

/* The ranks that it was started with; NULL: it is alone. */
static inline gr_status exec_join(gr_comm **out, gr_diag *d)
{
    bool started;
    gr_status st = gr_comm_started(&started, d);
    return st || !started ? st : gr_comm_open_mpi(out, exec_lost, d);
}

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
    gr_comm *c = NULL;
    gr_status st = exec_join(&c, &d);
    gr_plan_options o = {.kernels = k, .threads = 1};
    const gr_load_options load = {.set = (const char *const *)argv + 3,
                                  .n_set = (size_t)argc - 3,
                                  .ranks = gr_comm_ranks(c),
                                  .need_shapes = true};
    if (!st) st = gr_hardware_local(&o.hardware, k->device, &d);
    if (!st) st = gr_graph_load(&g, argv[1], &load, &d);
    if (!st) st = gr_plan_graph(&p, g, &o, &d);
    const gr_run_options run_options = {.out = argv[2], .poison = on_cpu, .threads = 1, .comm = c};
    if (!st) st = gr_run(g, p, p->kernels, &run_options, &d);
    for (size_t i = 0; i < d.n; i++) {
        char *text = gr_message_format(&d.messages[i]);
        fprintf(stderr, "%s\n", text);
        free(text);
    }
    if (st && c) gr_comm_abort(c, 1);
    gr_comm_close(c); /* whose signs of life name steps of the plan */
    gr_planned_free(p);
    gr_graph_free(g);
    gr_diag_release(&d);
    return st != GR_OK;
}

#endif
