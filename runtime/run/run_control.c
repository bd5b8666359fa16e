/* runtime/run/run_control.c: what is told and heard behind an iteration. */
#include "runtime/run/run_parts.h"

#include "runtime/base/signals.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void gr_run_save_ops(const gr_running *r, bool all, gr_state_file *f)
{
    for (size_t i = 0; i < r->g->n_nodes; i++) {
        const gr_node *n = r->g->nodes[i];
        if (n->op->save && (all || n->placement.role == r->g->view))
            n->op->save(r->session.state[i], n->name, f);
    }
}

/* What the other roles' ops keep, which a checkpoint has from rank 0, and epochs are counted by. */
static gr_status load_ops(gr_running *r, uint32_t role, const gr_str *text, gr_diag *d)
{
    gr_state_file *f = NULL;
    gr_status st = gr_state_parse(&f, text->text, text->len, "state of other ranks", d);
    for (size_t i = 0; i < r->g->n_nodes && !st; i++) {
        const gr_node *n = r->g->nodes[i];
        if (n->op->load && n->placement.role == role) st = n->op->load(r->session.state[i], n->name, f, d);
    }
    gr_state_free(f);
    return st;
}

/* run.stop of an iteration: alike on all ranks, for all have heard the same. A metric that the iteration has
 * not, or that is no number, ends nothing. */
static bool stop_holds(const gr_running *r, const gr_record *all)
{
    const gr_stop *stop = &r->g->run.stop;
    if (!stop->expr || !all->step) return false;
    size_t n;
    const int *reads = gr_expr_reads(stop->expr, &n);
    double *values = gr_calloc(stop->n_names, sizeof(*values));
    gr_expr_column *columns = gr_calloc(stop->n_names, sizeof(*columns));
    for (size_t i = 0; i < stop->n_names; i++) columns[i] = (gr_expr_column){&values[i], GR_EXPR_F64};
    bool there = true;
    for (size_t i = 0; i < n; i++) {
        double *v = &values[reads[i]];
        *v = reads[i] == GR_STOP_STEP       ? all->step
             : reads[i] == GR_STOP_PROGRESS ? (double)all->step / r->session.steps
                                            : gr_outputs_metric(r->outputs, all, stop->names[reads[i]]);
        there = there && isfinite(*v);
    }
    void *work = gr_calloc(1, gr_expr_bytes(stop->expr, (gr_expr_bounds){1, 1, 1}));
    const bool holds = there && gr_expr_scalar(stop->expr, &(gr_expr_env){.columns = columns}, work) != 0;
    free(work);
    free(columns);
    free(values);
    return holds;
}

static gr_status take_control(gr_running *r, gr_diag *d)
{
    gr_status st = GR_OK;
    gr_heard h;
    while (!st && gr_control_next(r->control, &h)) {
        for (uint32_t c = 0; c < r->g->n_roles && !st; c++)
            if (c != r->g->view && h.own[c]->state.len) st = load_ops(r, c, &h.own[c]->state, d);
        r->stop = r->stop || h.all->asked_to_stop;
        if (h.all->step) gr_run_watch_health(r, h.all);
        r->stop_holds = stop_holds(r, h.all);
        if (r->g->run.best)
            r->candidate = (gr_scored){gr_outputs_metric(r->outputs, h.all, r->g->run.best), h.all->step};
        if (!st)
            st = h.all->step ? gr_outputs_iteration(r->outputs, &h, r->session.steps, d)
                             : gr_outputs_before(r->outputs, h.all, d);
        if (!st) gr_run_sinks_tell(r, d);
    }
    return st;
}

gr_status gr_run_tell(gr_running *r, uint64_t ns, bool await, gr_diag *d)
{
    gr_record *own = r->record;
    r->record = NULL;
    own->step = r->session.step;
    own->ns = ns;
    own->peak_bytes = gr_executor_measured_peak(r->executor);
    own->asked_to_stop = gr_signals_stop();
    gr_record_take_measures(own, &r->session);
    if (!gr_graph_one_role(r->g)) {
        gr_state_file *f = gr_state_new();
        gr_run_save_ops(r, false, f);
        gr_state_text(f, &own->state);
        gr_state_free(f);
    }
    gr_status st = gr_control_tell(r->control, own, d);
    if (!st) st = gr_control_hear(r->control, await, d);
    return st ? st : take_control(r, d);
}

gr_status gr_run_hear(gr_running *r, gr_diag *d)
{
    gr_status st = gr_control_hear(r->control, true, d);
    return st ? st : take_control(r, d);
}

/* For a checkpoint that is due or may be the best, or an epoch that another role counts. */
bool gr_run_is_awaited(const gr_running *r, uint32_t step)
{
    const gr_run_settings *s = &r->g->run;
    const bool of_validation = s->best && !strncmp(s->best, GR_VALIDATION, strlen(GR_VALIDATION));
    const bool may_be_best = s->best && (!of_validation || gr_validation_is_due(r->g, step));
    const bool reads_epoch = r->g->columns[r->g->column_epoch]->read;
    return gr_run_is_due(r, step) || may_be_best || s->stop.expr || step >= r->session.steps || reads_epoch;
}
