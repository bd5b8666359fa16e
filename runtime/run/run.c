/* runtime/run/run.c: a run from its first iteration to its last. */
#include "runtime/run/run_keep.h"
#include "runtime/run/run_parts.h"

#include "ops/parallel/parts.h"
#include "ops/data.h"
#include "runtime/io/progress.h"
#include "runtime/base/signals.h"
#include "runtime/comm/watchdog.h"

#include <math.h>
#include <stdlib.h>

/* ---- what an iteration sees ---------------------------------------------------------------------------- */

/* The data node that sets the pace of epochs: the first. */
static const gr_node *pace(const gr_running *r)
{
    for (size_t i = 0; i < r->g->n_nodes; i++)
        if (r->g->nodes[i]->op->any_field && !r->g->nodes[i]->timing.every) return r->g->nodes[i];
    return NULL;
}

static const void *data_of(const gr_running *r)
{
    const gr_node *n = pace(r);
    return n ? r->session.state[n->index] : NULL;
}

static uint32_t total_steps(const gr_running *r)
{
    if (r->g->run.steps) return r->g->run.steps;
    uint32_t epochs = GR_MAX(r->g->run.epochs, 1u);
    const void *data = data_of(r);
    if (!data) return 1;
    return (uint32_t)fmin(ceil((double)gr_data_records(data) * epochs / gr_data_batch(data)), UINT32_MAX);
}

/* The iteration that this call ends behind. */
static uint32_t last_step(const gr_running *r)
{
    return r->o->until ? r->o->until : r->session.steps;
}

static bool has_to_do(const gr_running *r)
{
    return r->session.step < last_step(r);
}

static gr_status check_until(const gr_running *r, gr_diag *d)
{
    if (last_step(r) <= r->session.steps) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                         "--until %u is behind the last iteration: the run has %u", last_step(r),
                         r->session.steps);
}

/* Whether its `when:` switches a node off. */
static bool sleeps(const gr_running *r, const gr_node *n)
{
    if (!n->timing.when.expr) return false;
    return gr_session_scalar(&r->session, n->timing.when.expr) == 0;
}

/* step 0: a validation before the first iteration. */
static gr_status begin_iteration(gr_running *r, uint32_t step, gr_diag *d)
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
    const gr_status st = gr_session_begin(s, d);
    for (size_t i = 0; i < r->g->n_nodes; i++) {
        const gr_node *n = r->g->nodes[i];
        s->skipped[i] = n->timing.every ? !gr_node_is_due(n, step) : sleeps(r, n);
    }
    gr_run_begin_check(r, step);
    if (s->progress) gr_progress_begin(s->progress, step, s->steps);
    return st;
}

/* ---- iterations ---------------------------------------------------------------------------------------- */

/* Its metrics join those of the iteration that it stands behind. Roles may have no part in it. */
static gr_status validate(gr_running *r, gr_diag *d)
{
    if (!r->p->plan->paths[GR_PATH_VALIDATE].n) return GR_OK;
    uint64_t begin = gr_now_ns();
    gr_status st = gr_run_path(r, GR_PATH_VALIDATE, d);
    gr_session_metric(&r->session, r->validation_seconds, (double)(gr_now_ns() - begin) * 1e-9);
    return st;
}

/* What cannot be read before the first iteration is the user's input. */
static gr_status as_input(gr_status st)
{
    return st == GR_E_IO ? GR_E_INVALID : st;
}

/* All ranks have what they go on from: one that has not ends the others here, before anything is written. */
static gr_status await_ranks(const gr_running *r, gr_diag *d)
{
    return r->comms.all ? r->comms.all->type->barrier(r->comms.all, d) : GR_OK;
}

static gr_status enter(gr_running *r, gr_diag *d)
{
    char *from = NULL;
    gr_status st = as_input(check_until(r, d));
    if (!st && r->o->resume) st = gr_outputs_checkpoint_from(r->outputs, &from, d);
    gr_bytes_hold(r->bytes, NULL, r->o->accept_changes);
    if (!st && from) st = as_input(gr_run_believe(r, from, d));
    if (!st && from) st = as_input(gr_run_load(r, from, d));
    if (!st) st = as_input(gr_run_list_inputs(r, from, d));
    if (!st && from) st = as_input(gr_run_hold_inputs(r, from, d)); /* before anything is written */
    const bool to_do = has_to_do(r); /* else the run's files stay as they are */
    if (!st && to_do) gr_outputs_look(r->outputs);
    gr_bytes_from(r->bytes, from);
    r->folder = from;
    if (!st) st = as_input(gr_run_path(r, from ? GR_PATH_RESUME : GR_PATH_INIT, d));
    r->folder = NULL;
    if (st && from) gr_run_explain_damage(r, from, d);
    if (!st && !from)
        st = as_input(gr_run_hold_inputs(r, from, d)); /* weights are loaded and hashed at once */
    if (!st) st = as_input(gr_inputs_loaded(r->read, d));
    if (!st) st = await_ranks(r, d);
    if (!st && to_do)
        st = gr_outputs_resume(r->outputs, r->session.step, d); /* what it had is left alone until here */
    if (!st && (to_do || !r->o->has_from) && r->best.step)
        st = gr_outputs_mark_best(r->outputs, r->best.step,
                                  d); /* perhaps killed before, also behind its last */
    free(from);
    return st;
}

/* Who runs it from within sees the iteration, and may set what the next one begins with. */
static void tell_of(gr_running *r, uint32_t step, gr_diag *d)
{
    const gr_run_listener *l = r->o->listener;
    gr_run_told told = {
        .step = step, .steps = r->session.steps, .next_state = r->session.next_state, .said = d};
    told.number = gr_outputs_numbers(r->outputs, &told.n);
    (void)gr_run_hooks_go_on(r, d);
    if (l) l->iteration(l->user, &told);
}

static gr_status validate_before(gr_running *r, gr_diag *d)
{
    if (r->session.step || !gr_validation_is_due(r->g, 0)) return GR_OK;
    gr_status st = begin_iteration(r, 0, d);
    if (!st) st = validate(r, d);
    if (!st) st = gr_run_tell(r, 0, true, d);
    if (!st) tell_of(r, 0, d);
    return st;
}

/* Kernels and graphs that came with the first iterations count too. */
static void watch_overhead(gr_running *r, gr_diag *d)
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

static gr_status iteration(gr_running *r, uint32_t step, gr_diag *d)
{
    uint64_t begin = gr_now_ns();
    gr_status st = begin_iteration(r, step, d);
    if (!st) st = gr_run_path(r, GR_PATH_STEADY, d);
    uint64_t ns = gr_now_ns() - begin;
    if (!st) watch_overhead(r, d);
    if (!st) gr_outputs_warn(r->outputs, d);
    if (!st && gr_validation_is_due(r->g, step)) st = validate(r, d);
    if (!st) st = gr_run_end_check(r, d); /* before anything of it is kept */
    return st ? st : gr_run_tell(r, ns, gr_run_is_awaited(r, step), d);
}

/* Whether any rank was asked to stop. */
static gr_status should_stop(const gr_running *r, bool *stop, gr_diag *d)
{
    const gr_run_listener *l = r->o->listener;
    uint64_t asked = gr_signals_stop() || (l && l->stops(l->user));
    gr_status st = gr_comm_agree(r->comms.all, &asked, d);
    *stop = asked;
    return st;
}

static gr_status iterate(gr_running *r, gr_diag *d)
{
    const bool one_role = gr_graph_one_role(r->g);
    gr_status st = validate_before(r, d);
    uint32_t saved = r->session.step;
    bool stop = false;
    if (!st) st = should_stop(r, &stop, d);
    for (uint32_t step = r->session.step + 1; !st && step <= last_step(r) && !stop; step++) {
        st = iteration(r, step, d);
        if (!st) tell_of(r, step, d);
        if (!st && (gr_run_is_best(r) || gr_run_is_due(r, step))) {
            st = gr_run_save(r, GR_PATH_CHECKPOINT, d);
            saved = step;
        }
        if (!st && one_role) st = should_stop(r, &stop, d);
        stop = stop || (!one_role && r->stop) || r->stop_holds ||
               r->health.diverged; /* alike everywhere, and nobody waits */
    }
    if (!st) st = gr_run_hear(r, d);
    if (!st && r->health.diverged) return gr_run_say_diverged(r, d);
    bool wanted = r->g->run.checkpoint_last || r->session.step < r->session.steps;
    if (!st && wanted && saved != r->session.step) st = gr_run_save(r, GR_PATH_FINAL, d);
    return st;
}

/* ---- opening and closing ------------------------------------------------------------------------------- */

/* The first role whose program has a part of a model, its first bucket: GR_NONE, none has. */
static uint32_t role_with(const gr_planned *all, const gr_model *m, const char *part)
{
    uint32_t bucket = 0;
    while (!gr_bucket_is_trained(m, bucket)) bucket++;
    char *name = gr_printf("%s.%s.%u", m->name, part, bucket);
    uint32_t found = GR_NONE;
    for (uint32_t c = all->n_more + 1; c-- > 0;)
        if (gr_tasks_find(gr_planned_role(all, c)->tasks, name) != GR_NONE) found = c;
    free(name);
    return found;
}

/* What this rank's role saves; any: what one of the roles does. */
static gr_bytes_saved saved_by(const gr_running *r, bool any)
{
    gr_bytes_saved s = {0};
    for (size_t i = 0; i < r->g->n_models; i++) {
        const gr_model *m = r->g->models[i];
        if (!m->trained) continue;
        const uint32_t state = role_with(r->all, m, gr_model_has_lora(m) ? "adapters" : "params"),
                       lagged = role_with(r->all, m, "lagged");
        if (any ? state != GR_NONE : state == r->g->view) s.state |= 1ULL << i;
        if (any ? lagged != GR_NONE : lagged == r->g->view) s.lagged |= 1ULL << i;
    }
    return s;
}

/* Samples are of the role that ends iterations; where all do, of the first. */
static bool keeps_samples(const gr_running *r)
{
    uint32_t role = r->p->summary->placement.role;
    return !gr_comm_rank(r->comms.own) &&
           (gr_graph_one_role(r->g) || r->g->view == (role == GR_NONE ? 0 : role));
}

/* What libraries take is known once they are loaded. A plan that counts on less would fail later, or be in
 * the way of others. */
static gr_status check_overhead(const gr_running *r, gr_diag *d)
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

/* The role of a rank. */
static uint32_t find_role(const gr_graph *g, uint32_t rank)
{
    for (uint32_t c = 0; c < g->n_roles && !gr_graph_one_role(g); c++)
        for (uint32_t i = 0; i < g->roles[c].n; i++)
            if (g->roles[c].ranks[i] == rank) return c;
    return 0;
}

static gr_status open_all(gr_running *r, const gr_kernels *k, gr_diag *d)
{
    gr_status st = gr_outputs_open(&r->outputs, r->o, r->g, r->all->plan, d);
    if (!st) st = gr_comms_open(&r->comms, r->g, r->o->comm, d);
    if (!st) st = as_input(gr_session_open(&r->session, r->g, k, r->comms.own, r->o->functions, d));
    if (!st) st = gr_session_add(&r->session, r->p->summary, d);
    if (!st && r->p->validation) st = gr_session_add(&r->session, r->p->validation, d);
    if (r->p->validation) r->validation_seconds = gr_session_name(&r->session, r->p->validation, "seconds");
    if (st) return st;
    r->session.steps = total_steps(r);
    r->session.progress = gr_outputs_progress(r->outputs);
    r->session.sample = keeps_samples(r) ? gr_record_sample : NULL;
    r->session.keep = keeps_samples(r) && r->g->run.keep_all ? gr_run_keep : NULL;
    r->session.keep_dir = gr_arena_printf(r->memory, "%s/samples", r->o->out);
    r->control = gr_control_new(r->g, r->comms.all, r->comms.own);
    r->bytes = gr_bytes_new(r->g, r->p->tasks, k, r->comms.own, saved_by(r, false));
    gr_bytes_seal(r->bytes, saved_by(r, true));
    st = gr_run_open_executor(r, k, d);
    if (!st) gr_run_open_checks(r, k, d);
    if (!st)
        st = gr_comms_open_device(&r->comms, r->g, r->p->tasks, k->device, gr_executor_arena(r->executor), d);
    if (!st) gr_run_bind(r);
    if (!st) st = gr_run_open_watch(r, d);
    return st ? st : check_overhead(r, d);
}

/* Sessions hold what was captured with calls of the peers, and communicators memory of the executor. */
static void close_all(gr_running *r, const gr_kernels *k, bool together)
{
    gr_outputs_close(r->outputs, r->executor, r->executor ? gr_executor_measured_peak(r->executor) : 0);
    if (r->session.graph) gr_session_close(&r->session);
    if (r->executor && k->detach) k->detach(gr_executor_queue(r->executor, GR_LANE_COMPUTE));
    gr_comms_close(&r->comms, together);
    gr_executor_free(r->executor);
    gr_run_close_checks(r);
    gr_bytes_free(r->bytes);
    gr_manifest_free(r->seal.from);
    json_decref(r->inputs);
    gr_control_free(r->control);
    gr_inputs_free(r->read);
    gr_record_free(r->record);
    free(r->health.diverged);
    gr_arena_free(r->memory);
}

/* It has ended, in whatever way. */
static void end_event(gr_running *r, gr_status st, const gr_diag *d)
{
    const char *why = NULL;
    for (size_t i = 0; i < d->n && !why; i++)
        if (d->messages[i].severity == GR_ERROR) why = d->messages[i].text;
    gr_run_event(r, st ? GR_EVENT_FAILURE : GR_EVENT_STOP, r->session.step, r->o->out, why);
}

gr_status gr_run(const gr_graph *g, const gr_planned *p, const gr_kernels *k, const gr_run_options *o,
                 gr_diag *d)
{
    const gr_planned *own = gr_planned_role(p, find_role(g, gr_comm_rank(o->comm)));
    gr_running r = {.g = own->graph, .p = own, .all = p, .o = o, .memory = gr_arena_new()};
    gr_watchdog_between(g->run.timeout);
    gr_status st = open_all(&r, k, d);
    if (!st) st = enter(&r, d);
    r.entered = r.session.step;
    if (!st) st = gr_outputs_begin(r.outputs, &r.session, d);
    const bool begun = !st && has_to_do(&r);
    if (begun) gr_run_sinks_open(&r, d);
    if (!st && o->say) o->say(d);
    if (!st) st = iterate(&r, d);
    if (!st && r.session.step < r.session.steps) gr_outputs_stopped(r.outputs, &r.session, r.stop_holds);
    if (!st && o->poison) st = gr_outputs_touched(r.outputs, r.executor, d);
    if (begun) end_event(&r, st, d);
    gr_run_sinks_close(&r, d);
    close_all(&r, k, !st);   /* after a failure the caller ends all ranks */
    gr_run_hooks_end(&r, d); /* which find the run's folder free */
    return st;
}
