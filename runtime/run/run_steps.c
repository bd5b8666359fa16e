/* runtime/run/run_steps.c: the executor's hooks: steps of ops, collectives, how long they may take. */
#include "runtime/run/run_parts.h"

#include "ops/parallel/cross.h"
#include "ops/parallel/merge.h"
#include "ops/parallel/quantize.h"
#include "ops/parallel/sharding.h"
#include "runtime/io/progress.h"
#include "runtime/comm/watchdog.h"

_Static_assert(GR_N_LANES <= GR_WATCHDOG_LANES, "the watch has a place for each lane");

#include <assert.h>
#include <string.h>

/* ---- works of steps ------------------------------------------------------------------------------------ */

static gr_tp_group *with(gr_tp_group *group, gr_diag *d)
{
    if (group) group->d = d;
    return group;
}

/* A node's own work. Sums over the slices of its model, and exchanges, are within it, on this queue. */
static gr_status run_op(const gr_bound *b, const gr_call *c, gr_diag *d)
{
    gr_tp_group *const groups[] = {b->peers, b->sharers, b->holders};
    c->queue->peers = with(b->peers, d);
    c->queue->sharers = with(b->sharers, d);
    c->queue->holders = with(b->holders, d);
    gr_status st = b->node->op->run(c, d);
    c->queue->peers = c->queue->sharers = c->queue->holders = NULL;
    for (size_t i = 0; i < GR_LEN(groups) && !st; i++)
        if (groups[i]) st = groups[i]->failed;
    return st;
}

static gr_status run_kind(gr_running *r, const gr_bound *b, const gr_call *c, gr_diag *d)
{
    const gr_task *w = b->task;
    const gr_comms *comms = &r->comms;
    switch (w->kind) {
    case GR_STEP_RUN:
        gr_run_check_task(r, w, c);
        if (w->kernel != GR_MERGE_KERNEL && w->kernel != GR_QUANTIZE_KERNEL) return run_op(b, c, d);
        (w->kernel == GR_MERGE_KERNEL ? gr_merge_run : gr_quantize_run)(c);
        return GR_OK;
    case GR_STEP_SEND:
    case GR_STEP_RECV:
        return gr_cross_run(c, r->p->tasks, w, b->model, comms->all_device, comms->all, d);
    default:
        return gr_sharding_run(c, r->p->tasks, w, b->comm, comms->own, d);
    }
}

static gr_status run_task(gr_running *r, const gr_bound *b, gr_queue *q, gr_diag *d)
{
    const gr_kernels *k = r->session.kernels;
    gr_call c = b->call;
    c.queue = q;
    const uint64_t waits = q->waits;
    q->at.op = b->node->op->name;
    if (c.lane == GR_LANE_COMPUTE) gr_progress_at(r->session.progress, b->node->name, 0, 0, NULL);
    gr_status st = run_kind(r, b, &c, d);
    if (!st && b->watched) st = gr_run_show(r, b, q, d);
    assert(st || !b->task->uses.waits || q->waits > waits); /* the plan was proven with this wait */
    if (!st && k->check) st = k->check(q, d);
    return st;
}

/* ---- how long they may take ---------------------------------------------------------------------------- */

enum {
    SLACK = 50, /* times the predicted time: the machine may be shared, or not calibrated */
    SOON = 45   /* seconds: the least that a step may take; with what it takes to see it, within a minute */
};

static uint32_t seconds_of(uint64_t ns)
{
    return (uint32_t)GR_MIN(ns / 1000000000 + 1, UINT32_MAX);
}

/* Files, commands, data, and whatever else nothing predicts. */
static bool is_predicted(const gr_running *r, gr_path_id path, uint32_t i)
{
    const gr_step *s = &r->p->plan->paths[path].steps[i];
    if (s->kind == GR_STEP_SAVE || s->kind == GR_STEP_RESTORE) return false;
    return s->kind != GR_STEP_RUN || gr_run_bound(r, path, i)->node->op->kernels;
}

/* Of a step, for runtime/comm/watchdog.h. In the first iteration libraries are loaded and things come to be.
 * A device that runs steps later may make any of them wait for what it was given before. */
static uint32_t limit_of(const gr_running *r, gr_path_id path, uint32_t i, const gr_queue *q)
{
    const gr_plan *p = r->p->plan;
    const uint32_t timeout = r->g->run.timeout;
    bool settled = r->session.step > r->entered + 1;
    uint64_t predicted = SLACK * p->paths[path].steps[i].ns + (q->device ? 3 * p->ns : 0);
    if (!timeout) return 0;
    return GR_MAX(settled && is_predicted(r, path, i) ? GR_MIN(timeout, SOON) : timeout,
                  seconds_of(predicted));
}

/* ---- hooks of the executor ----------------------------------------------------------------------------- */

/* What an op keeps by itself: an object without a model. NULL: it is of a model. */
static const gr_node *keeper_of(const gr_running *r, const char *what)
{
    for (size_t i = 0; i < r->g->n_nodes; i++) {
        const gr_node *n = r->g->nodes[i];
        const size_t len = strlen(n->name);
        if (n->op->keep && !strncmp(n->name, what, len) && what[len] == '.') return n;
    }
    return NULL;
}

static gr_status run_file(gr_running *r, const gr_step *s, gr_queue *q, gr_diag *d)
{
    const bool back = s->kind == GR_STEP_RESTORE;
    const gr_object *o = &r->p->tasks->objects[gr_tasks_find(r->p->tasks, s->what)];
    void *at = gr_executor_address(r->executor, back ? s->writes[0] : s->reads[0]);
    void *with = s->n_reads > 1 ? gr_executor_address(r->executor, s->reads[1]) : NULL;
    if (o->model)
        return back ? gr_bytes_restore(r->bytes, s->what, at, q, d)
                    : gr_bytes_save(r->bytes, s->what, at, with, q, d);
    const gr_node *n = keeper_of(r, s->what);
    void *state = r->session.state[n->index];
    return back ? n->op->take_back(state, at, r->folder, d) : n->op->keep(state, at, r->folder, d);
}

static gr_status run_step(void *user, gr_path_id path, uint32_t i, gr_queue *q, gr_diag *d)
{
    gr_running *r = user;
    const gr_step *s = &r->p->plan->paths[path].steps[i];
    gr_watchdog_step(s->lane, r->session.step, s->what, limit_of(r, path, i, q));
    gr_status st = GR_OK;
    if (s->kind == GR_STEP_RESTORE || s->kind == GR_STEP_SAVE)
        st = run_file(r, s, q, d);
    else
        st = run_task(r, gr_run_bound(r, path, i), q, d);
    gr_watchdog_done(s->lane);
    return st;
}

static bool more_trips(void *user, gr_path_id path, uint32_t i, uint32_t trip)
{
    const gr_call *c = &gr_run_bound(user, path, i)->call;
    const uint32_t *trips = c->n_ptr ? c->ptr[0] : NULL; /* that ranks have agreed on: a loop's one use */
    bool more = c->node->op->more(c, trip);
    return trips && c->node->op->trips ? trip < *trips : more;
}

static bool skip_step(void *user, gr_path_id path, uint32_t i)
{
    const gr_running *r = user;
    const gr_bound *b = gr_run_bound(r, path, i);
    return b && b->node && r->session.skipped[b->node->index];
}

/* Times of steps: for the trace, and summed by node. */
static void trace_step(void *user, gr_path_id path, uint32_t i, uint32_t trip, uint64_t begin_ns,
                       uint64_t end_ns)
{
    gr_running *r = user;
    const gr_bound *b = gr_run_bound(r, path, i);
    if (b && b->task && b->task->kind == GR_STEP_RUN)
        __atomic_add_fetch(&r->record->node_ns[b->node->index], end_ns - begin_ns, __ATOMIC_RELAXED);
    gr_outputs_trace(r->outputs, path, i, trip, begin_ns, end_ns);
}

/* ---- the executor -------------------------------------------------------------------------------------- */

/* Workspaces are cut for the threads that the plan was made with: a machine with more of them uses as many.
 */
static unsigned threads_of(const gr_running *r)
{
    unsigned threads = r->o->threads;
    for (size_t i = 0; i < r->g->n_nodes; i++)
        if (r->g->nodes[i]->model) threads = GR_MIN(threads, r->p->choices[i].threads);
    return threads;
}

/* Of the host lane: where optimizer steps are done there, those of the machine. Their bits do not depend on
 * it. */
static unsigned host_threads_of(const gr_running *r)
{
    for (uint32_t i = 0; i < gr_plan_steps(r->p->plan); i++) {
        const gr_task *w = r->p->binding[i].task;
        if (w && w->lane != gr_plan_step(r->p->plan, i)->lane) return r->o->threads;
    }
    return 0;
}

gr_status gr_run_open_executor(gr_running *r, const gr_kernels *k, gr_diag *d)
{
    r->hooks = (gr_exec_hooks){.user = r, .run = run_step, .more = more_trips, .skip = skip_step};
    gr_exec_options e = {.threads = threads_of(r),
                         .host_threads = host_threads_of(r),
                         .disk = r->o->disk,
                         .poison = r->o->poison,
                         .trace = trace_step,
                         .trace_user = r};
    gr_status st = gr_device_find(&e.device, k->device, d);
    if (!st) st = gr_executor_new(&r->executor, r->p->plan, &r->hooks, &e, d);
    if (!st && k->attach) st = k->attach(gr_executor_queue(r->executor, GR_LANE_COMPUTE), d);
    return st;
}

gr_status gr_run_path(gr_running *r, gr_path_id path, gr_diag *d)
{
    const uint32_t timeout = r->g->run.timeout;
    bool later = gr_executor_queue(r->executor, GR_LANE_COMPUTE)->device;
    gr_watchdog_path(true, later, timeout ? GR_MAX(timeout, seconds_of(3 * r->p->plan->ns)) : 0);
    gr_status st = gr_executor_path(r->executor, path, d);
    gr_watchdog_path(false, false, 0);
    return st;
}
