/* runtime/run/run_health.c: whether a run still trains. Optimizer steps whose gradients are not finite are
 * skipped, so that one bad batch does no harm; but a run in which all of them are would go on for days and
 * train nothing.
 */
#include "runtime/run/run_parts.h"

#include <math.h>
#include <stdlib.h>

/* ---- what is looked at --------------------------------------------------------------------------------- */

bool gr_run_states_finite(const gr_running *r)
{
    for (size_t i = 0; i < r->g->n_state; i++)
        if (!isfinite(r->session.next_state[i])) return false;
    return true;
}

/* A metric of a record by NODE.what or state.NAME; NaN: it has none. */
static double find(const gr_record *all, const char *before, const char *behind, bool *found)
{
    char *name = gr_printf("%s.%s", before, behind);
    const struct gr_metric *m = gr_record_find(all, name);
    free(name);
    *found = m != NULL;
    return m ? m->value : NAN;
}

static const gr_state_value *bad_state(const gr_running *r, const gr_record *all)
{
    for (size_t i = 0; i < r->g->n_state; i++) {
        bool found;
        const double value = find(all, "state", r->g->state[i].name, &found);
        if (found && !isfinite(value)) return &r->g->state[i];
    }
    return NULL;
}

/* ---- what follows -------------------------------------------------------------------------------------- */

static bool is_too_many(const gr_running *r, double in_a_row)
{
    return r->g->run.stop_after_skipped && in_a_row >= r->g->run.stop_after_skipped;
}

static void diverge(gr_running *r, char *why)
{
    if (r->health.diverged)
        free(why);
    else
        r->health.diverged = why;
}

static void watch_states(gr_running *r, const gr_record *all)
{
    const gr_state_value *bad = bad_state(r, all);
    r->health.bad_states = bad ? r->health.bad_states + 1 : 0;
    if (r->health.bad_states == 1) gr_outputs_say_state(r->outputs, all->step, bad->name);
    if (bad && is_too_many(r, (double)r->health.bad_states))
        diverge(r, gr_printf("state '%s' has not been finite for %llu iterations", bad->name,
                             (unsigned long long)r->health.bad_states));
}

static void watch_updates(gr_running *r, const gr_record *all)
{
    for (size_t i = 0; i < r->g->n_nodes; i++) {
        bool found;
        const char *name = r->g->nodes[i]->name;
        const double skipped = find(all, name, "skipped_in_a_row", &found);
        if (found && is_too_many(r, skipped))
            diverge(r, gr_printf("the last %.0f optimizer steps of '%s' were skipped, because its gradients "
                                 "are not finite",
                                 skipped, name));
    }
}

void gr_run_watch_health(gr_running *r, const gr_record *all)
{
    watch_states(r, all);
    watch_updates(r, all);
}

gr_status gr_run_say_diverged(const gr_running *r, gr_diag *d)
{
    if (gr_comm_rank(r->comms.all)) return GR_E_DIVERGED; /* it is the same everywhere: one speaks */
    const gr_status st =
        gr_diag_error(d, (gr_loc){0}, GR_E_DIVERGED, "the run has diverged in iteration %u: %s",
                      r->session.step, r->health.diverged);
    const unsigned long long finite = r->health.finite;
    if (finite)
        gr_diag_note(d, (gr_loc){0},
                     "the newest checkpoint whose values are all finite is that of iteration %llu: graphrun "
                     "exec --resume %s@%llu goes on from it",
                     finite, r->o->out, finite);
    else
        gr_diag_note(d, (gr_loc){0}, "no checkpoint was written while all values were finite");
    gr_diag_note(d, (gr_loc){0}, "run: {stop_after_skipped: 0} never ends a run for this");
    return st;
}

/* ---- kept ---------------------------------------------------------------------------------------------- */

void gr_run_save_health(const gr_running *r, gr_state_file *f)
{
    gr_state_set_u64(f, "health", "finite", r->health.finite);
    gr_state_set_u64(f, "health", "bad_states", r->health.bad_states);
}

/* A checkpoint of before this was kept was never looked at: it stays until there is a finite one. */
void gr_run_load_health(gr_running *r, const gr_state_file *f)
{
    if (gr_state_get_u64(f, "health", "finite", &r->health.finite, NULL)) r->health.finite = r->session.step;
    if (gr_state_get_u64(f, "health", "bad_states", &r->health.bad_states, NULL)) r->health.bad_states = 0;
}
