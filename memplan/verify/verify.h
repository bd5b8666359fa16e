/* memplan/verify/verify.h: an independent proof that a finished plan is right.
 *
 * Written apart from the planner: it takes what each op needs from the task graph (the ops' own
 * declarations) and replays the plan's steps, and never trusts the plan's own claims. It proves, on every
 * path, for any number of trips of agreed loops, and for sets of optional nodes that run (all of at most two,
 * all, all but one):
 *   - run, loop and collective steps are the tasks of the task graph, all of them, in an order
 *     that it allows;
 *   - collectives match across ranks: all on one lane, with the task graph's bytes, in no loop whose trips
 *     ranks count alone;
 *   - sums within tasks, over a tensor-parallel group, match across its ranks: on one lane, in no loop
 *     of another node whose trips ranks count alone, and the ranks come out even;
 *   - exchanges between the stages of a pipeline match across ranks, and nobody waits in a circle;
 *   - every use finds a copy in the right place, of the right size, with the right contents where it reads;
 *   - loads, offloads and saves read an up-to-date copy, and steps that begin or end copies are where the
 *     ledger has them begin and end;
 *   - fetches read what the disk holds up to date, stores write it; no task uses a copy there; copies in
 *     the host pool of what lies there begin by what writes them, at whole blocks, and share no bytes with
 *     what holds contents where a path saves or restores;
 *   - no version that only one copy holds is released while a task still needs it;
 *   - two entries share bytes only if all uses of one happen before all uses of the other, by lane order and
 *     `after`, where the device runs work later than it is given (gr_tasks.queued) in both times of a lane:
 *     what a task's code does in the host pool knows of a queue's work there only by a wait for it
 *     (memplan/plan/tasks.h, "The two times of a lane");
 *   - offsets are aligned and inside arena and pool; resident bytes, recomputed, are what the steps say, and
 *     with the overhead at most the budget; peak_bytes and peak_step are right;
 *   - loops: bodies leave what they enter with; the iteration leaves what it enters with; every path's entry
 *     and exit are true and fit the path that follows (init and resume lead to steady; checkpoint and
 *     validate restore what they found).
 */
#ifndef GR_MEMPLAN_VERIFY_VERIFY_H
#define GR_MEMPLAN_VERIFY_VERIFY_H

#include "memplan/plan/tasks.h"

/* One role. GR_E_INVALID with every broken rule, its name and the step; GR_OK: proven. */
GR_NODISCARD gr_status gr_plan_verify(const gr_plan *p, const gr_tasks *g, gr_diag *d);

/* The plan with all its roles, each with the task graph of its own [1 + n_more]. Of several it proves too:
 *   - they are of different ranks, of all from 0 on, the first of rank 0;
 *   - every send has one recv, of the same bytes of the same object, in the role that it says; the recv names
 *     it; neither is in a loop, and both are left out in the same iterations;
 *   - sends and receives, which wait for each other, never wait in a circle: over several iterations, with a
 *     validation, with all optional nodes, with none, with each alone and with all but each. */
GR_NODISCARD gr_status gr_plan_verify_all(const gr_plan *p, const gr_tasks *const *g, gr_diag *d);

/* Which task each run or loop step of the iteration and of validate executes, and the ledger entry of each of
 * its uses (GR_NONE for uses without object). Arrays belong to pool. The plan must have been verified. */
typedef struct gr_binding {
    const gr_task *task; /* NULL for steps that are no run or loop */
    uint32_t *entry;     /* [task->n_uses] */
} gr_binding;
gr_binding *gr_plan_bind(const gr_plan *p, const gr_tasks *g, gr_arena *arena); /* [gr_plan_steps] */

#endif
