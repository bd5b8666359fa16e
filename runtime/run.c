#include "runtime/run.h"

#include "ops/cross.h"
#include "ops/data.h"
#include "ops/spread.h"
#include "ops/summary.h"
#include "runtime/bytes.h"
#include "runtime/executor.h"
#include "runtime/news.h"
#include "runtime/outputs.h"
#include "runtime/session.h"
#include "runtime/signals.h"
#include "runtime/state.h"
#include "runtime/watch.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct run {
    const gr_graph *g;   /* as this rank's class sees it */
    const gr_planned *p; /* of the class */
    const gr_planned *all;
    const gr_run_options *o; /* its communicator is of all ranks, for memory of the host */
    gr_exec_hooks hooks;
    gr_session session;
    gr_executor *executor;
    gr_bytes *bytes;
    gr_outputs *outputs;
    gr_comm *ranks;           /* of the class, for memory of the host; of one class, o->comm itself */
    gr_comm *comm;            /* the same for memory of the device; it may be the same */
    gr_comm *node, *replicas; /* of the class's ranks, those of a node, and those of one place in all nodes */
    gr_comm *across;          /* of all ranks, for memory of the device, where several classes are */
    gr_peers *peers; /* [n_peers] of this rank, where models are in slices; one for each number of them */
    size_t n_peers;
    gr_news *news;
    gr_record *record; /* of the iteration that runs */
    bool stop;         /* of several classes: one was asked to, in an iteration that all have heard of */
    double candidate;  /* for the best checkpoint, the value of the latest iteration that all have heard of */
    uint32_t candidate_step;
    double best;        /* the best value of checkpoint.best so far */
    uint32_t best_step; /* where it was; 0: nowhere yet */
    bool over_plan;     /* that libraries take more than planned has been said */
    uint32_t entered;   /* the iteration that the run had behind it when it began here */
} run;

/* ---- hooks of the executor
 * ---------------------------------------------------------------------------------- */

/* The binding of a step counts as the ledger does. */
static const gr_binding *binding_of(const run *r, gr_path_id path, uint32_t step)
{
    uint32_t first = path == GR_PATH_VALIDATE ? r->p->plan->paths[GR_PATH_STEADY].n : 0;
    return &r->p->binding[first + step];
}

static gr_call call_of(run *r, gr_path_id path, uint32_t step, void **ptr, gr_queue *q)
{
    const gr_binding *b = binding_of(r, path, step);
    const gr_node *n = gr_planned_node(r->p, r->g, b->work->node);
    bool summary = n == r->p->summary || n == r->p->validation;
    for (uint32_t i = 0; i < b->work->n_uses; i++)
        ptr[i] = b->entry[i] == GR_NONE ? NULL : gr_executor_address(r->executor, b->entry[i]);
    return (gr_call){.session = &r->session,
                     .node = n,
                     .state = summary ? NULL : r->session.state[n->index],
                     .how = &r->p->choices[n->index],
                     .kernel = b->work->kernel,
                     .arg = b->work->arg,
                     .ptr = ptr,
                     .n_ptr = b->work->n_uses,
                     .lane = r->p->plan->paths[path].steps[step].lane,
                     .queue = q};
}

static gr_comm *comm_of(const run *r, const gr_work *w)
{
    return w->reach == GR_REACH_NODE ? r->node : w->reach == GR_REACH_ACROSS ? r->replicas : r->comm;
}

/* NULL: a node of so many parts is one rank's. */
static gr_peers *peers_of(const run *r, uint32_t parts)
{
    for (size_t i = 0; i < r->n_peers; i++)
        if (r->peers[i].comm->ranks == parts) return &r->peers[i];
    return NULL;
}

static gr_status run_work(run *r, gr_path_id path, uint32_t step, gr_queue *q, gr_diag *d)
{
    void **ptr = gr_calloc(binding_of(r, path, step)->work->n_uses, sizeof(*ptr));
    gr_call c = call_of(r, path, step, ptr, q);
    const gr_kernels *k = r->session.kernels;
    const gr_work *w = binding_of(r, path, step)->work;
    q->at.op = c.node->op->name;
    bool crosses = w->kind == GR_STEP_SEND || w->kind == GR_STEP_RECV;
    q->peers = w->kind == GR_STEP_RUN ? peers_of(r, c.node->parts) : NULL;
    if (q->peers) q->peers->d = d;
    gr_status st = w->kind == GR_STEP_RUN ? c.node->op->run(&c, d)
                   : crosses              ? gr_cross_run(&c, r->p->program, w, r->across, r->o->comm, d)
                                          : gr_spread_run(&c, r->p->program, w, comm_of(r, w), r->ranks, d);
    if (!st && q->peers) st = q->peers->failed;
    q->peers = NULL;
    if (!st && k->check) st = k->check(q, d);
    free(ptr);
    return st;
}

/* Times of steps: for the trace, and summed by node. */
static void trace_step(void *user, gr_path_id path, uint32_t i, uint32_t trip, uint64_t begin_ns,
                       uint64_t end_ns)
{
    run *r = user;
    bool works = path == GR_PATH_STEADY || path == GR_PATH_VALIDATE;
    if (works && r->p->plan->paths[path].steps[i].kind == GR_STEP_RUN) {
        const gr_node *n = gr_planned_node(r->p, r->g, binding_of(r, path, i)->work->node);
        __atomic_add_fetch(&r->record->node_ns[n->index], end_ns - begin_ns, __ATOMIC_RELAXED);
    }
    gr_outputs_trace(r->outputs, path, i, trip, begin_ns, end_ns);
}

/* ---- how long ranks wait for each other
 * ----------------------------------------------------------------- */

enum {
    SLACK = 50, /* times the predicted time: the machine may be shared, or not calibrated */
    SOON = 45   /* seconds: the least that a step may take; with what it takes to see it, within a minute */
};

static uint32_t seconds_of(uint64_t ns)
{
    return (uint32_t)GR_MIN(ns / 1000000000 + 1, UINT32_MAX);
}

/* Files, commands, data, and whatever else nothing predicts. */
static bool is_predicted(const run *r, gr_path_id path, uint32_t i)
{
    const gr_step *s = &r->p->plan->paths[path].steps[i];
    if (s->kind == GR_STEP_SAVE || s->kind == GR_STEP_RESTORE) return false;
    return s->kind != GR_STEP_RUN ||
           gr_planned_node(r->p, r->g, binding_of(r, path, i)->work->node)->op->kernels;
}

/* Of a step, for runtime/watch.h. In the first iteration libraries are loaded and things come to be. A device
 * that runs steps later may make any of them wait for what it was given before. */
static uint32_t limit_of(const run *r, gr_path_id path, uint32_t i, const gr_queue *q)
{
    const gr_plan *p = r->p->plan;
    const uint32_t timeout = r->g->run.timeout;
    bool settled = r->session.step > r->entered + 1;
    uint64_t predicted = SLACK * p->paths[path].steps[i].ns + (q->device ? 3 * p->ns : 0);
    if (!timeout) return 0;
    return GR_MAX(settled && is_predicted(r, path, i) ? GR_MIN(timeout, SOON) : timeout,
                  seconds_of(predicted));
}

/* A path of the plan, from its first step to its last. */
static gr_status follow(run *r, gr_path_id path, gr_diag *d)
{
    const uint32_t timeout = r->g->run.timeout;
    bool later = gr_executor_queue(r->executor, GR_LANE_COMPUTE)->device;
    gr_watch_path(true, later, timeout ? GR_MAX(timeout, seconds_of(3 * r->p->plan->ns)) : 0);
    gr_status st = gr_executor_path(r->executor, path, d);
    gr_watch_path(false, false, 0);
    return st;
}

static gr_status run_step(void *user, gr_path_id path, uint32_t i, gr_queue *q, gr_diag *d)
{
    run *r = user;
    const gr_step *s = &r->p->plan->paths[path].steps[i];
    gr_watch_step(s->lane, r->session.step, s->what, limit_of(r, path, i, q));
    gr_status st = GR_OK;
    if (s->kind == GR_STEP_RESTORE)
        st = gr_bytes_restore(r->bytes, s->what, gr_executor_address(r->executor, s->writes[0]), q, d);
    else if (s->kind == GR_STEP_SAVE)
        st = gr_bytes_save(r->bytes, s->what, gr_executor_address(r->executor, s->reads[0]), q, d);
    else
        st = run_work(r, path, i, q, d);
    gr_watch_done(s->lane);
    return st;
}

static bool more_trips(void *user, gr_path_id path, uint32_t i, uint32_t trip)
{
    run *r = user;
    void *trips = NULL; /* that ranks have agreed on: the one use that a loop has */
    gr_call c = call_of(r, path, i, &trips, NULL);
    bool more = c.node->op->more(&c, trip);
    return trips && c.node->op->trips ? trip < *(const uint32_t *)trips : more;
}

static bool skip_node(void *user, const char *name)
{
    const run *r = user;
    const gr_node *n = gr_graph_node(r->g, name);
    return n && r->session.skipped[n->index];
}

/* ---- what an iteration sees
 * --------------------------------------------------------------------------------- */

/* The data node that sets the pace of epochs: the first. */
static const gr_node *pace(const run *r)
{
    for (size_t i = 0; i < r->g->n_nodes; i++)
        if (r->g->nodes[i]->op->any_field && !r->g->nodes[i]->every) return r->g->nodes[i];
    return NULL;
}

static const void *data_of(const run *r)
{
    const gr_node *n = pace(r);
    return n ? r->session.state[n->index] : NULL;
}

static uint32_t total_steps(const run *r)
{
    if (r->g->run.steps) return r->g->run.steps;
    uint32_t epochs = GR_MAX(r->g->run.epochs, 1u);
    const void *data = data_of(r);
    return data ? (uint32_t)ceil((double)gr_data_records(data) * epochs / pace(r)->bounds.groups) : 1;
}

/* Whether its `when:` switches a node off. */
static bool sleeps(const run *r, const gr_node *n)
{
    if (!n->when.expr) return false;
    gr_expr_column *columns = gr_calloc(r->g->n_columns, sizeof(*columns));
    for (size_t i = 0; i < r->g->n_columns; i++)
        columns[i] = (gr_expr_column){&r->session.scalars[i], GR_EXPR_F64};
    gr_expr_env env = {.columns = columns, .seed = r->session.seed, .step = r->session.step};
    void *work = gr_calloc(1, gr_expr_bytes(n->when.expr, (gr_expr_bounds){1, 1, 1}));
    bool skip = gr_expr_scalar(n->when.expr, &env, work) == 0;
    free(work);
    free(columns);
    return skip;
}

/* step 0: a validation before the first iteration. */
static void begin_iteration(run *r, uint32_t step)
{
    gr_session *s = &r->session;
    const void *data = data_of(r);
    s->step = step;
    s->n_metrics = 0;
    gr_record_free(r->record);
    r->record = gr_record_new(r->g->n_nodes + 2);
    s->user = r->record;
    s->scalars[r->g->column_step] = step;
    s->scalars[r->g->column_epoch] = data ? (double)gr_data_epoch(data) : 0;
    s->scalars[r->g->column_progress] = (GR_MAX(step, 1u) - 1.0) / s->steps;
    for (size_t i = 0; i < r->g->n_state; i++) s->scalars[r->g->state[i].column] = s->next_state[i];
    for (size_t i = 0; i < r->g->n_nodes; i++) {
        const gr_node *n = r->g->nodes[i];
        s->skipped[i] = n->every ? !gr_node_is_due(n, step) : sleeps(r, n);
    }
}

static bool validates(const run *r, uint32_t step)
{
    bool any = false;
    for (size_t i = 0; i < r->g->n_nodes; i++) any = any || gr_node_is_due(r->g->nodes[i], step);
    return any;
}

/* Its metrics join those of the iteration that it stands behind. Classes may have no part in it. */
static gr_status validate(run *r, gr_diag *d)
{
    if (!r->p->plan->paths[GR_PATH_VALIDATE].n) return GR_OK;
    uint64_t begin = gr_now_ns();
    r->session.validating = true;
    gr_status st = follow(r, GR_PATH_VALIDATE, d);
    gr_session_metric(&r->session, (double)(gr_now_ns() - begin) * 1e-9, "seconds");
    r->session.validating = false;
    return st;
}

/* ---- what the classes tell each other
 * --------------------------------------------------------------------- */

static bool one_class(const run *r)
{
    return r->g->n_classes < 2;
}

/* State that ops keep, of the nodes that this class runs. */
static void save_ops(const run *r, bool all, gr_state_file *f)
{
    for (size_t i = 0; i < r->g->n_nodes; i++) {
        const gr_node *n = r->g->nodes[i];
        if (n->op->save && (all || n->class == r->g->view)) n->op->save(r->session.state[i], n->name, f);
    }
}

/* What the other classes' ops keep, which a checkpoint has from rank 0, and epochs are counted by. */
static gr_status load_ops(run *r, uint32_t class, const gr_str *text, gr_diag *d)
{
    gr_state_file *f = NULL;
    gr_status st = gr_state_parse(&f, text->text, text->len, "state of other ranks", d);
    for (size_t i = 0; i < r->g->n_nodes && !st; i++) {
        const gr_node *n = r->g->nodes[i];
        if (n->op->load && n->class == class) st = n->op->load(r->session.state[i], n->name, f, d);
    }
    gr_state_free(f);
    return st;
}

static gr_status take_news(run *r, gr_diag *d)
{
    gr_status st = GR_OK;
    gr_heard h;
    while (!st && gr_news_next(r->news, &h)) {
        for (uint32_t c = 0; c < r->g->n_classes && !st; c++)
            if (c != r->g->view && h.own[c]->state.len) st = load_ops(r, c, &h.own[c]->state, d);
        r->stop = r->stop || h.all->asked_to_stop;
        r->candidate_step = h.all->step;
        if (r->g->run.best) r->candidate = gr_outputs_metric(r->outputs, h.all, r->g->run.best);
        if (!st)
            st = h.all->step ? gr_outputs_iteration(r->outputs, &h, r->session.steps, d)
                             : gr_outputs_before(r->outputs, h.all, d);
    }
    return st;
}

/* last: wait until the others have told of this iteration, too. */
static gr_status exchange_news(run *r, uint64_t ns, bool last, gr_diag *d)
{
    gr_record *own = r->record;
    r->record = NULL;
    own->step = r->session.step;
    own->ns = ns;
    own->peak_bytes = gr_executor_measured_peak(r->executor);
    own->asked_to_stop = gr_signals_stop();
    gr_record_take_metrics(own, &r->session);
    if (!one_class(r)) {
        gr_state_file *f = gr_state_new();
        save_ops(r, false, f);
        gr_state_text(f, &own->state);
        gr_state_free(f);
    }
    gr_status st = gr_news_tell(r->news, own, d);
    if (!st) st = gr_news_hear(r->news, last, d);
    return st ? st : take_news(r, d);
}

/* Whether what follows this iteration needs its record from all classes: a checkpoint that is due or may be
 * the best, or an epoch that another class counts. */
static bool is_awaited(const run *r, uint32_t step)
{
    const gr_run_settings *s = &r->g->run;
    bool of_validation = s->best && !strncmp(s->best, GR_VALIDATION, strlen(GR_VALIDATION));
    return (s->checkpoint_every && step % s->checkpoint_every == 0) || step >= r->session.steps ||
           (s->best && (!of_validation || validates(r, step))) || r->g->reads_epoch;
}

/* ---- checkpoints
 * -------------------------------------------------------------------------------------------- */

/* Which step was the best so far, and by what: another metric, or a run that had none, begins anew. */
static void save_best(const run *r, gr_state_file *f)
{
    if (!r->g->run.best || !r->best_step) return;
    gr_state_set_text(f, "best", "metric", r->g->run.best);
    gr_state_set_text(f, "best", "is", r->g->run.best_is_least ? "min" : "max");
    gr_state_set_u64(f, "best", "step", r->best_step);
    gr_state_set_number(f, "best", "value", r->best);
}

static void load_best(run *r, const gr_state_file *f)
{
    char *metric = NULL, *is = NULL;
    uint64_t step = 0;
    double value = 0;
    bool there = r->g->run.best && !gr_state_get_text(f, "best", "metric", &metric, NULL) &&
                 !gr_state_get_text(f, "best", "is", &is, NULL) &&
                 !gr_state_get_u64(f, "best", "step", &step, NULL) &&
                 !gr_state_get_number(f, "best", "value", &value, NULL);
    if (there && !strcmp(metric, r->g->run.best) && !strcmp(is, r->g->run.best_is_least ? "min" : "max")) {
        r->best = value;
        r->best_step = (uint32_t)step;
    }
    free(metric);
    free(is);
}

/* Whether this iteration is the best so far; all ranks have the same metrics. */
static bool is_best(run *r)
{
    const gr_run_settings *s = &r->g->run;
    double now = s->best && r->candidate_step == r->session.step ? r->candidate : NAN;
    if (isnan(now) || (r->best_step && !(s->best_is_least ? now < r->best : now > r->best))) return false;
    r->best = now;
    r->best_step = r->session.step;
    gr_outputs_best(r->outputs, s->best, now, r->best_step);
    return true;
}

static gr_state_file *state_of(run *r)
{
    gr_state_file *f = gr_state_new();
    gr_state_set_u64(f, "run", "step", r->session.step);
    gr_state_set_u64(f, "run", "seed", r->session.seed);
    gr_state_set_text(f, "run", "numerics", r->p->plan->numerics);
    save_best(r, f);
    for (size_t i = 0; i < r->g->n_state; i++)
        gr_state_set_number(f, "state", r->g->state[i].name, r->session.next_state[i]);
    save_ops(r, true, f);
    return f;
}

static gr_status save_state(run *r, const char *dir, gr_diag *d)
{
    gr_state_file *f = state_of(r);
    char *path = gr_printf("%s/state.json", dir);
    gr_status st = gr_state_write(f, path, d);
    free(path);
    gr_state_free(f);
    return st;
}

/* Of several classes none is before or behind this point alone. */
static gr_status await_classes(const run *r, gr_diag *d)
{
    return one_class(r) ? GR_OK : r->o->comm->type->barrier(r->o->comm, d);
}

static gr_status checkpoint(run *r, gr_path_id path, gr_diag *d)
{
    char *aside = NULL;
    gr_status st = gr_outputs_checkpoint_begin(r->outputs, r->session.step, &aside, d);
    if (!st) st = await_classes(r, d); /* the folder is there */
    if (!st) st = gr_bytes_to(r->bytes, aside, d);
    if (!st) st = follow(r, path, d);
    if (!st) st = gr_bytes_finish(r->bytes, d);
    if (!st && !gr_comm_rank(r->o->comm)) st = save_state(r, aside, d); /* it is the same everywhere */
    if (!st) st = await_classes(r, d);                                  /* all of it is there */
    if (!st)
        st = gr_outputs_checkpoint_commit(r->outputs, r->session.step, r->g->run.checkpoint_keep,
                                          r->best_step, d);
    free(aside);
    return st;
}

static gr_status load_state(run *r, const char *dir, gr_diag *d)
{
    char *path = gr_printf("%s/state.json", dir), *numerics = NULL;
    gr_state_file *f = NULL;
    uint64_t step = 0, seed = 0;
    gr_status st = gr_state_read(&f, path, d);
    if (!st) st = gr_state_get_u64(f, "run", "step", &step, d);
    if (!st) st = gr_state_get_u64(f, "run", "seed", &seed, d);
    if (!st) st = gr_state_get_text(f, "run", "numerics", &numerics, d);
    if (!st && seed != r->session.seed)
        st = gr_diag_error(
            d, (gr_loc){path, 0, 0}, GR_E_INVALID,
            "the run has seed %llu, but graph '%s' has %llu: give no graph file, or --set run.seed=%llu",
            (unsigned long long)seed, r->g->name, (unsigned long long)r->session.seed,
            (unsigned long long)seed);
    for (size_t i = 0; i < r->g->n_state && !st; i++)
        st = gr_state_get_number(f, "state", r->g->state[i].name, &r->session.next_state[i], d);
    for (size_t i = 0; i < r->g->n_nodes && !st; i++)
        if (r->g->nodes[i]->op->load)
            st = r->g->nodes[i]->op->load(r->session.state[i], r->g->nodes[i]->name, f, d);
    if (!st && strcmp(numerics, r->p->plan->numerics))
        gr_diag_warn(d, (gr_loc){0},
                     "the checkpoint was made with numerics %s, this run has %s: its bits may differ",
                     numerics, r->p->plan->numerics);
    r->session.step = (uint32_t)step;
    if (!st) load_best(r, f);
    gr_state_free(f);
    free(numerics);
    free(path);
    return st;
}

/* ---- the run
 * ------------------------------------------------------------------------------------------------ */

/* What cannot be read before the first iteration is the user's input. */
static gr_status as_input(gr_status st)
{
    return st == GR_E_IO ? GR_E_INVALID : st;
}

static gr_status enter(run *r, gr_diag *d)
{
    char *from = NULL;
    gr_status st = GR_OK;
    if (r->o->resume) st = gr_outputs_checkpoint_latest(r->outputs, &from, d);
    if (!st && from) st = as_input(load_state(r, from, d));
    if (!st) st = gr_outputs_resume(r->outputs, r->session.step, d);
    if (!st && r->best_step)
        st = gr_outputs_mark_best(r->outputs, r->best_step, d); /* perhaps killed before */
    gr_bytes_from(r->bytes, from);
    if (!st) st = as_input(follow(r, from ? GR_PATH_RESUME : GR_PATH_INIT, d));
    free(from);
    return st;
}

static gr_status validate_before(run *r, gr_diag *d)
{
    if (r->session.step || !validates(r, 0)) return GR_OK;
    begin_iteration(r, 0);
    gr_status st = validate(r, d);
    return st ? st : exchange_news(r, 0, true, d);
}

/* Kernels and graphs that came with the first iterations count too. */
static void watch_overhead(run *r, gr_diag *d)
{
    const uint64_t taken = gr_executor_overhead(r->executor), planned = r->p->plan->overhead_bytes;
    char is[32], was[32];
    if (taken <= planned || r->over_plan) return;
    r->over_plan = true;
    gr_diag_warn(d, (gr_loc){0},
                 "%s of the device are in use beside the arena by now, the plan counts %s; `graphrun "
                 "calibrate` measures it",
                 gr_bytes_format(taken, is), gr_bytes_format(planned, was));
}

static gr_status iteration(run *r, uint32_t step, gr_diag *d)
{
    uint64_t begin = gr_now_ns();
    begin_iteration(r, step);
    gr_status st = follow(r, GR_PATH_STEADY, d);
    uint64_t ns = gr_now_ns() - begin;
    if (!st) watch_overhead(r, d);
    if (!st && validates(r, step)) st = validate(r, d);
    return st ? st : exchange_news(r, ns, is_awaited(r, step), d);
}

/* Whether any rank was asked to stop. */
static gr_status should_stop(const run *r, bool *stop, gr_diag *d)
{
    uint64_t asked = gr_signals_stop();
    gr_status st = gr_comm_agree(r->o->comm, &asked, d);
    *stop = asked;
    return st;
}

static gr_status iterate(run *r, gr_diag *d)
{
    const gr_run_settings *settings = &r->g->run;
    gr_status st = validate_before(r, d);
    uint32_t saved = r->session.step;
    bool stop = false;
    if (!st) st = should_stop(r, &stop, d);
    for (uint32_t step = r->session.step + 1; !st && step <= r->session.steps && !stop; step++) {
        st = iteration(r, step, d);
        bool due = settings->checkpoint_every && step % settings->checkpoint_every == 0;
        if (!st && (is_best(r) || due)) {
            st = checkpoint(r, GR_PATH_CHECKPOINT, d);
            saved = step;
        }
        if (!st && one_class(r)) st = should_stop(r, &stop, d);
        stop = stop || (!one_class(r) && r->stop); /* alike everywhere, and nobody waits */
    }
    if (!st) st = gr_news_hear(r->news, true, d);
    if (!st) st = take_news(r, d);
    bool wanted = settings->checkpoint_last || r->session.step < r->session.steps;
    if (!st && wanted && saved != r->session.step) st = checkpoint(r, GR_PATH_FINAL, d);
    return st;
}

/* Workspaces are cut for the threads that the plan was made with: a machine with more of them uses as many.
 */
static unsigned threads_of(const run *r)
{
    unsigned threads = r->o->threads;
    for (size_t i = 0; i < r->g->n_nodes; i++)
        if (r->g->nodes[i]->model) threads = GR_MIN(threads, r->p->choices[i].threads);
    return threads;
}

/* Of the host lane: where optimizer steps are done there, those of the machine. Their bits do not depend on
 * it. */
static unsigned host_threads_of(const run *r)
{
    for (uint32_t i = 0; i < gr_plan_steps(r->p->plan); i++) {
        const gr_work *w = r->p->binding[i].work;
        if (w && w->lane != gr_plan_step(r->p->plan, i)->lane) return r->o->threads;
    }
    return 0;
}

/* What libraries take is known once they are loaded. A plan that counts on less would fail later, or be in
 * the way of others. */
static gr_status check_overhead(const run *r, gr_diag *d)
{
    const gr_plan *p = r->p->plan;
    uint64_t taken = gr_executor_overhead(r->executor);
    char is[32], planned[32];
    if (taken <= p->overhead_bytes) return GR_OK;
    return gr_diag_error(
        d, (gr_loc){0}, GR_E_NOFIT,
        "%s of the device are in use beside the arena, the plan counts %s: other processes use it, or "
        "the plan is for another machine; plan again with --hardware FILE of `graphrun calibrate`",
        gr_bytes_format(taken, is), gr_bytes_format(p->overhead_bytes, planned));
}

/* ---- communicators and classes --------------------------------------------------------------------------
 */

/* The class of this rank. */
static uint32_t find_class(const gr_graph *g, uint32_t rank)
{
    for (uint32_t c = 0; c < g->n_classes && g->n_classes > 1; c++)
        for (uint32_t i = 0; i < g->classes[c].n; i++)
            if (g->classes[c].ranks[i] == rank) return c;
    return 0;
}

static const gr_planned *planned_of(const gr_planned *p, uint32_t class)
{
    return class ? p->more[class - 1] : p;
}

/* The first class whose program has bucket 0 of a part of a model: GR_NONE, none has. */
static uint32_t class_with(const gr_planned *all, const gr_model *m, const char *part)
{
    char *name = gr_printf("%s.%s.0", m->name, part);
    uint32_t found = GR_NONE;
    for (uint32_t c = all->n_more + 1; c-- > 0;)
        if (gr_program_find(planned_of(all, c)->program, name) != GR_NONE) found = c;
    free(name);
    return found;
}

static gr_bytes_saved saved_here(const run *r)
{
    gr_bytes_saved s = {0};
    for (size_t i = 0; i < r->g->n_models; i++) {
        const gr_model *m = r->g->models[i];
        if (!m->trained) continue;
        if (class_with(r->all, m, "params") == r->g->view) s.state |= 1ULL << i;
        if (class_with(r->all, m, "lagged") == r->g->view) s.lagged |= 1ULL << i;
    }
    return s;
}

/* Samples are of the class that ends iterations; where all do, of the first. */
static bool keeps_samples(const run *r)
{
    uint32_t class = r->p->summary->class;
    return !gr_comm_rank(r->ranks) && (one_class(r) || r->g->view == (class == GR_NONE ? 0 : class));
}

/* The CPU device's memory is the host's. */
static gr_status open_device_comms(run *r, const gr_kernels *k, gr_diag *d)
{
    gr_status st = GR_OK;
    r->comm = r->ranks;
    r->across = r->o->comm;
#ifdef GR_CUDA
    bool cuda = !strcmp(k->device, "cuda");
    if (cuda && gr_comm_ranks(r->ranks) > 1)
        st = gr_comm_open_nccl(&r->comm, r->ranks, gr_executor_arena(r->executor), d);
    if (cuda && !one_class(r) && !st) st = gr_comm_open_nccl(&r->across, r->o->comm, &(gr_memory){0}, d);
#endif
    (void)k;
    (void)d;
    return st;
}

static void close_comms(run *r)
{
    for (size_t i = 0; i < r->n_peers; i++) gr_comm_close(r->peers[i].comm);
    if (r->across != r->o->comm) gr_comm_close(r->across);
    gr_comm_close(r->replicas);
    gr_comm_close(r->node);
    if (r->comm != r->ranks) gr_comm_close(r->comm);
    if (r->ranks != r->o->comm) gr_comm_close(r->ranks);
}

/* Where models are whole in each node, ranks are counted through the nodes. */
static gr_status open_nodes(run *r, gr_diag *d)
{
    uint32_t each = r->p->program->node_ranks, rank = r->session.rank;
    if (!each) return GR_OK;
    gr_status st = gr_comm_split(&r->node, r->comm, rank / each, d);
    return st ? st : gr_comm_split(&r->replicas, r->comm, rank % each, d);
}

/* Neighbours have the slices of a layer. */
static gr_status open_peers(run *r, gr_diag *d)
{
    gr_status st = GR_OK;
    r->peers = gr_calloc(r->g->n_models + 1, sizeof(*r->peers));
    for (size_t i = 0; i < r->g->n_models && !st; i++) {
        const uint32_t parts = r->g->models[i]->parts;
        if (parts < 2 || peers_of(r, parts)) continue;
        st = gr_comm_split(&r->peers[r->n_peers].comm, r->comm, r->session.rank / parts, d);
        if (!st) r->n_peers++;
    }
    return st;
}

static gr_status open_all(run *r, const gr_kernels *k, gr_diag *d)
{
    r->hooks = (gr_exec_hooks){.user = r, .run = run_step, .more = more_trips, .skip = skip_node};
    gr_status st = gr_outputs_open(&r->outputs, r->o, r->g, r->all->plan, d);
    r->ranks = r->o->comm;
    if (!st && !one_class(r)) st = gr_comm_split(&r->ranks, r->o->comm, r->g->view, d);
    if (!st) st = as_input(gr_session_open(&r->session, r->g, k, d));
    if (st) return st;
    r->session.rank = gr_comm_rank(r->ranks);
    r->session.ranks = gr_comm_ranks(r->ranks);
    r->session.steps = total_steps(r);
    r->session.sample = keeps_samples(r) ? gr_record_sample : NULL;
    r->news = gr_news_new(r->g, r->o->comm, r->ranks);
    r->bytes = gr_bytes_new(r->g, r->p->program, k, r->ranks, saved_here(r));
    gr_exec_options e = {.threads = threads_of(r),
                         .host_threads = host_threads_of(r),
                         .poison = r->o->poison,
                         .trace = trace_step,
                         .trace_user = r};
    st = gr_device_find(&e.device, k->device, d);
    if (!st) st = gr_executor_new(&r->executor, r->p->plan, &r->hooks, &e, d);
    if (!st && k->attach) st = k->attach(gr_executor_queue(r->executor, GR_LANE_COMPUTE), d);
    if (!st) st = open_device_comms(r, k, d);
    if (!st) st = open_nodes(r, d);
    if (!st) st = open_peers(r, d);
    if (!st) st = check_overhead(r, d);
    return st;
}

gr_status gr_run(const gr_graph *g, const gr_planned *p, const gr_kernels *k, const gr_run_options *o,
                 gr_diag *d)
{
    const gr_planned *own = planned_of(p, find_class(g, gr_comm_rank(o->comm)));
    run r = {.g = own->graph, .p = own, .all = p, .o = o};
    gr_watch_between(g->run.timeout);
    gr_status st = open_all(&r, k, d);
    if (!st) st = enter(&r, d);
    r.entered = r.session.step;
    if (!st) st = gr_outputs_begin(r.outputs, &r.session, d);
    if (!st) st = iterate(&r, d);
    if (!st && o->poison) st = gr_outputs_touched(r.outputs, r.executor, d);
    gr_outputs_close(r.outputs, r.executor, r.executor ? gr_executor_measured_peak(r.executor) : 0);
    if (r.session.graph) gr_session_close(&r.session); /* and what was captured with calls of the peers */
    if (r.executor && k->detach) k->detach(gr_executor_queue(r.executor, GR_LANE_COMPUTE));
    if (!st) close_comms(&r); /* else the caller ends all ranks, and who waits here would wait for them */
    gr_executor_free(r.executor);
    gr_bytes_free(r.bytes);
    gr_news_free(r.news);
    gr_record_free(r.record);
    free(r.peers);
    return st;
}
