/* scheduler/search/planner.h: from a graph to a proven plan.
 *
 * Asks every op for its works, offers the scheduler the choices that are open (micro-batch tokens, KV blocks,
 * head chunks, recomputation), and has the verifier prove what comes back.
 */
#ifndef GR_SCHEDULER_SEARCH_PLANNER_H
#define GR_SCHEDULER_SEARCH_PLANNER_H

#include "memplan/verify/verify.h"
#include "ops/base/op.h"
#include "scheduler/search/schedule.h"

typedef struct gr_plan_options {
    const gr_kernels *kernels;
    gr_hardware hardware;
    gr_policy policy;
    uint64_t budget_bytes, host_budget_bytes; /* 0: what the hardware has */
    uint64_t disk_budget_bytes;               /* 0: there is no disk for state */
    unsigned threads;
    uint32_t hosts; /* that the graph's ranks are on, as many on each; 0: 1 */
    uint32_t hurry; /* see gr_schedule_options */
    bool quick;     /* whether it fits, not how best: see gr_schedule_options */
    bool sketch;    /* its time and bytes are asked for, and nobody runs it: it is not proven, nor bound */
    uint64_t beat_ns, *spent; /* see gr_schedule_options */
} gr_plan_options;

/* A plan, and what it was made from. Of several roles of ranks, that of the first holds the others; the
 * plan of the first holds theirs. */
typedef struct gr_planned {
    gr_arena *arena;
    const gr_kernels *kernels; /* those of the device that keep what the graph asks for; gr_run takes them */
    const gr_graph *graph;     /* as the role sees it: the caller's, or a view of it */
    gr_plan *plan;
    gr_tasks *tasks;
    gr_choices *choices; /* by node index; the last two are for the summaries */
    gr_node *summary;    /* the node that ends an iteration: log, state, metrics (ops/summary.h) */
    gr_node *validation; /* the one that ends a validation: metrics; NULL: the graph has none */
    gr_binding *binding; /* of the iteration and of validate, as the ledger counts steps */
    struct gr_planned **more;
    uint32_t n_more;
} gr_planned;

/* Graph and options must outlive the result.
 * GR_E_NOFIT as gr_schedule: *out then has the smallest plan and no binding; of several roles, of each that
 * does not fit. GR_E_FAILED where the verifier
 * refuses the plan: our own bug, with its findings. */
GR_NODISCARD gr_status gr_plan_graph(gr_planned **out, const gr_graph *g, const gr_plan_options *o,
                                     gr_diag *d);
/* What is known before a search: of several roles the time of the slowest, and the most bytes. GR_E_INVALID
 * as gr_plan_graph; of what crosses between roles nothing is known. */
GR_NODISCARD gr_status gr_plan_outlook(gr_outlook *out, const gr_graph *g, const gr_plan_options *o);
/* A sketch that fits, of a graph that is as it was then, becomes what gr_plan_graph makes with the same
 * options: proven and bound. GR_E_FAILED as there; p stays the caller's. */
GR_NODISCARD gr_status gr_plan_sketched(gr_planned *p, const gr_graph *g, const gr_plan_options *o,
                                        gr_diag *d);
/* What a plan made before is taken for: to be proven (`verify`), to run (`--plan FILE`), or to go on with, as
 * the run's own, which its manifest seals. */
typedef enum gr_adoption { GR_ADOPT_TO_PROVE, GR_ADOPT_TO_RUN, GR_ADOPT_OWN } gr_adoption;

/* The same for a plan made before: proven against the graph, which must need the memory of the one it was
 * made from. What it says of its hardware and of its bits is worked out again (claims.c). The plan then holds
 * this graph's name, text and numerics. GR_E_NOFIT: it says itself that it does not fit; GR_E_INVALID: it is
 * not proven. */
GR_NODISCARD gr_status gr_plan_adopt(gr_planned **out, gr_plan *plan, const gr_graph *g,
                                     const gr_plan_options *o, gr_adoption why, gr_diag *d);
/* Whether any plan can be made of a graph for its ranks, whatever the device. */
GR_NODISCARD gr_status gr_plan_check(const gr_graph *g, gr_diag *d);
void gr_planned_free(gr_planned *p); /* NULL is fine */

/* Of role c of 1 + n_more. */
static inline gr_planned *gr_planned_role(const gr_planned *p, uint32_t c)
{
    return c ? p->more[c - 1] : (gr_planned *)(uintptr_t)p;
}

/* A node of the program by its name: of the graph, or a summary. */
const gr_node *gr_planned_node(const gr_planned *p, const gr_graph *g, const char *name);

#endif
