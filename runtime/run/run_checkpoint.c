/* runtime/run/run_checkpoint.c: checkpoints of a run: saved, loaded, which was the best, which is damaged. */
#include "runtime/run/run_parts.h"

#include "ops/base/configs.h"
#include "ops/model/peft.h"
#include "runtime/base/files.h"
#include "runtime/io/checkpoint_dir.h"
#include "runtime/io/safetensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool gr_run_is_due(const gr_running *r, uint32_t step)
{
    return r->g->run.checkpoint_every && step % r->g->run.checkpoint_every == 0;
}

/* ---- the best ------------------------------------------------------------------------------------------ */

/* Which step was the best so far, and by what: another metric, or a run that had none, begins anew. */
static void save_best(const gr_running *r, gr_state_file *f)
{
    if (!r->g->run.best || !r->best.step) return;
    gr_state_set_text(f, "best", "metric", r->g->run.best);
    gr_state_set_text(f, "best", "is", r->g->run.best_is_least ? "min" : "max");
    gr_state_set_u64(f, "best", "step", r->best.step);
    gr_state_set_number(f, "best", "value", r->best.value);
}

static void load_best(gr_running *r, const gr_state_file *f)
{
    char *metric = NULL, *is = NULL;
    uint64_t step = 0;
    double value = 0;
    bool there = r->g->run.best && !gr_state_get_text(f, "best", "metric", &metric, NULL) &&
                 !gr_state_get_text(f, "best", "is", &is, NULL) &&
                 !gr_state_get_u64(f, "best", "step", &step, NULL) &&
                 !gr_state_get_number(f, "best", "value", &value, NULL);
    if (there && !strcmp(metric, r->g->run.best) && !strcmp(is, r->g->run.best_is_least ? "min" : "max"))
        r->best = (gr_scored){value, (uint32_t)step};
    free(metric);
    free(is);
}

/* All ranks have the same metrics. */
bool gr_run_is_best(gr_running *r)
{
    const gr_run_settings *s = &r->g->run;
    double now = s->best && r->candidate.step == r->session.step ? r->candidate.value : NAN;
    double before = r->best.value;
    if (isnan(now) || (r->best.step && !(s->best_is_least ? now < before : now > before))) return false;
    r->best = r->candidate;
    gr_outputs_best(r->outputs, s->best, r->best.value, r->best.step);
    return true;
}

/* ---- saved --------------------------------------------------------------------------------------------- */

/* Whose moments they are: all optimizers have moments of one shape. */
static void save_optimizers(const gr_graph *g, gr_state_file *f)
{
    for (size_t i = 0; i < g->n_models; i++) {
        const gr_model *m = g->models[i];
        if (gr_model_moments(m))
            gr_state_set_text(f, "optimizers", m->name, gr_optim_name(m->train.optimizer));
    }
}

static gr_state_file *state_of(const gr_running *r)
{
    gr_state_file *f = gr_state_new();
    gr_state_set_u64(f, "run", "step", r->session.step);
    gr_state_set_u64(f, "run", "seed", r->session.seed);
    gr_state_set_text(f, "run", "numerics", r->p->plan->numerics);
    save_best(r, f);
    save_optimizers(r->g, f);
    gr_run_save_health(r, f);
    for (size_t i = 0; i < r->g->n_state; i++)
        gr_state_set_number(f, "state", r->g->state[i].name, r->session.next_state[i]);
    gr_run_save_ops(r, true, f);
    return f;
}

static gr_status save_state(const gr_running *r, const char *dir, gr_diag *d)
{
    gr_state_file *f = state_of(r);
    char *path = gr_printf("%s/state.json", dir);
    gr_status st = gr_state_write(f, path, d);
    free(path);
    gr_state_free(f);
    return st;
}

/* Of several roles none is before or behind this point alone. */
static gr_status await_roles(const gr_running *r, gr_diag *d)
{
    return gr_graph_one_role(r->g) ? GR_OK : r->comms.all->type->barrier(r->comms.all, d);
}

/* Whether all values of the checkpoint that is being made are finite, whoever saved them. */
static gr_status note_finite(gr_running *r, gr_diag *d)
{
    uint64_t bad = !gr_bytes_finite(r->bytes) || !gr_run_states_finite(r);
    gr_status st = gr_comm_agree(r->comms.all, &bad, d);
    if (!st && !bad) r->health.finite = r->session.step;
    return st;
}

static void tell_saved(gr_running *r)
{
    const uint32_t step = r->session.step;
    char *path = gr_checkpoint_path(r->o->out, step);
    gr_run_event(r, GR_EVENT_CHECKPOINT, step, path, NULL);
    if (r->best.step == step) gr_run_event(r, GR_EVENT_BEST, step, path, NULL);
    free(path);
}

gr_status gr_run_save(gr_running *r, gr_path_id path, gr_diag *d)
{
    char *aside = NULL;
    gr_status st = gr_outputs_checkpoint_begin(r->outputs, r->session.step, &aside, d);
    if (!st) st = await_roles(r, d); /* the folder is there */
    if (!st && !gr_comm_rank(r->comms.own)) st = gr_run_check_copied(r, d);
    if (!st) st = gr_bytes_to(r->bytes, aside, d);
    r->folder = aside;
    if (!st) st = gr_run_path(r, path, d);
    r->folder = NULL;
    if (!st) st = gr_bytes_finish(r->bytes, d);
    if (!st) st = note_finite(r, d);
    if (!st && !gr_comm_rank(r->comms.all)) st = save_state(r, aside, d); /* it is the same everywhere */
    if (!st) st = await_roles(r, d);                                      /* all of it is there */
    if (!st) st = gr_run_seal(r, aside, d);
    if (!st)
        st = gr_outputs_checkpoint_commit(
            r->outputs, r->session.step,
            (gr_checkpoint_kept){r->g->run.checkpoint_keep, r->best.step, r->health.finite}, d);
    if (!st) tell_saved(r);
    free(aside);
    return st;
}

/* ---- what may stand there
 * ----------------------------------------------------------------------------------------- */

/* Changes that are meant are warned about. */
static gr_status unusable(const gr_running *r, const char *path, const char *what, gr_diag *d)
{
    if (!r->o->accept_changes) return gr_diag_error(d, (gr_loc){path, 0, 0}, GR_E_INVALID, "%s", what);
    gr_diag_warn(d, (gr_loc){path, 0, 0}, "%s; accepted, as asked for", what);
    return GR_OK;
}

/* `init` is always finite. In a checkpoint that has its manifest's bytes a state that is not is what the run
 * had come to, and goes on; elsewhere nobody knows where it comes from. */
static gr_status check_states(const gr_running *r, const char *path, gr_diag *d)
{
    gr_status all = GR_OK;
    for (size_t i = 0; i < r->g->n_state; i++) {
        const double value = r->session.next_state[i];
        if (isfinite(value)) continue;
        char *what = gr_printf("'state.%s' is %g", r->g->state[i].name, value);
        gr_status st = GR_OK;
        if (r->seal.from)
            gr_diag_warn(d, (gr_loc){path, 0, 0}, "%s, as it was when the run saved it", what);
        else
            st = unusable(r, path, what, d);
        if (st) all = st;
        free(what);
    }
    return all;
}

/* A model that was not trained has no optimizer there, and checkpoints of older versions name none. */
static gr_status check_optimizer(const gr_running *r, const gr_model *m, const gr_state_file *f,
                                 const char *path, gr_diag *d)
{
    char *was = NULL;
    gr_status st = GR_OK;
    const char *is = gr_optim_name(m->train.optimizer);
    if (!gr_state_get_text(f, "optimizers", m->name, &was, NULL) && strcmp(was, is)) {
        char *what =
            gr_printf("the moments of model '%s' are of optimizer %s, and the graph has %s; to begin "
                      "with fresh ones, name the checkpoint as the model's in a new run",
                      m->name, was, is);
        st = unusable(r, path, what, d);
        free(what);
    }
    free(was);
    return st;
}

static gr_status check_optimizers(const gr_running *r, const gr_state_file *f, const char *path, gr_diag *d)
{
    gr_status all = GR_OK;
    for (size_t i = 0; i < r->g->n_models; i++) {
        const gr_model *m = r->g->models[i];
        gr_status st = gr_model_moments(m) ? check_optimizer(r, m, f, path, d) : GR_OK;
        if (st) all = st;
    }
    return all;
}

static gr_status check_best(const gr_running *r, const char *path, uint64_t step, gr_diag *d)
{
    if (r->best.step <= step && !isnan(r->best.value)) return GR_OK;
    char *what = gr_printf("'best' is %g, of iteration %llu: it is no number, or of an iteration behind this "
                           "one, %llu",
                           r->best.value, (unsigned long long)r->best.step, (unsigned long long)step);
    gr_status st = unusable(r, path, what, d);
    free(what);
    return st;
}

/* Whatever is accepted: the run counts from here. */
static gr_status check_step(const char *dir, const char *path, uint64_t step, gr_diag *d)
{
    uint64_t named = 0;
    if (gr_checkpoint_number(strrchr(dir, '/') + 1, &named) && named == step) return GR_OK;
    return gr_diag_error(d, (gr_loc){path, 0, 0}, GR_E_INVALID,
                         "'run.step' is %llu, but the folder is that of iteration %llu",
                         (unsigned long long)step, (unsigned long long)named);
}

/* ---- resumed ------------------------------------------------------------------------------------------- */

/* The node of a file NODE.queue.RANK or NODE.store, where it still keeps such a file. */
static bool keeps_file(const gr_graph *g, const char *name)
{
    const char *dot = strchr(name, '.');
    char *node = gr_strndup(name, dot ? (size_t)(dot - name) : strlen(name));
    const gr_node *n = gr_graph_node(g, node);
    free(node);
    return n && dot && (n->op->replays ? !strcmp(dot, ".store") : gr_node_keeps(n));
}

static bool holds_model(const char *folder)
{
    char *whole = gr_printf("%s/config.json", folder),
         *adapters = gr_printf("%s/adapter_config.json", folder);
    const bool holds = gr_path_exists(whole) || gr_path_exists(adapters);
    free(adapters);
    free(whole);
    return holds;
}

/* What a changed graph has no use for is left behind, which nobody would see: rows that were kept, a model.
 */
static gr_status note_left(void *user, const char *dir, const char *name, gr_diag *d)
{
    const gr_graph *g = *(const gr_graph **)user;
    char *path = gr_printf("%s/%s", dir, name);
    const bool rows = strstr(name, ".queue.") || strstr(name, ".store");
    const gr_model *m = gr_graph_model(g, name);
    if (rows && !keeps_file(g, name))
        gr_diag_warn(d, (gr_loc){path, 0, 0},
                     "responses that the run had kept are left out: no node of this graph keeps them");
    if (holds_model(path) && !(m && (m->trained || m->follows)))
        gr_diag_warn(d, (gr_loc){path, 0, 0},
                     "this model's weights are left out: the graph has no such model that changes");
    free(path);
    return GR_OK;
}

gr_status gr_run_load(gr_running *r, const char *dir, gr_diag *d)
{
    char *path = gr_printf("%s/state.json", dir), *numerics = NULL;
    gr_state_file *f = NULL;
    uint64_t step = 0, seed = 0;
    gr_status st = gr_state_read(&f, path, d);
    if (!st) st = gr_state_get_u64(f, "run", "step", &step, d);
    if (!st) st = gr_state_get_u64(f, "run", "seed", &seed, d);
    if (!st) st = gr_state_get_text(f, "run", "numerics", &numerics, d);
    if (!st) st = check_step(dir, path, step, d);
    if (!st && seed != r->session.seed)
        st = gr_diag_error(
            d, (gr_loc){path, 0, 0}, GR_E_INVALID,
            "the run has seed %llu, but graph '%s' has %llu: give no graph file, or --set run.seed=%llu",
            (unsigned long long)seed, r->g->name, (unsigned long long)r->session.seed,
            (unsigned long long)seed);
    for (size_t i = 0; i < r->g->n_state && !st; i++)
        st = gr_state_get_number(f, "state", r->g->state[i].name, &r->session.next_state[i], d);
    if (!st) st = check_states(r, path, d);
    if (!st) st = check_optimizers(r, f, path, d);
    for (size_t i = 0; i < r->g->n_nodes && !st; i++)
        if (r->g->nodes[i]->op->load)
            st = r->g->nodes[i]->op->load(r->session.state[i], r->g->nodes[i]->name, f, d);
    if (!st && step < r->session.steps && strcmp(numerics, r->p->plan->numerics))
        gr_diag_warn(d, (gr_loc){0},
                     "the checkpoint was made with numerics %s, this run has %s: its bits may differ",
                     numerics, r->p->plan->numerics);
    r->session.step = (uint32_t)step;
    if (!st && !gr_comm_rank(r->o->comm)) st = gr_dir_each(dir, note_left, &r->g, d);
    if (!st) load_best(r, f);
    if (!st) gr_run_load_health(r, f);
    if (!st) st = check_best(r, path, step, d);
    gr_state_free(f);
    free(numerics);
    free(path);
    return st;
}

/* ---- damaged ------------------------------------------------------------------------------------------- */

/* By its header, which says how long the file is. */
static bool is_whole_file(const char *dir, const char *model, const char *name)
{
    char *path = gr_printf("%s/%s/%s.safetensors", dir, model, name);
    gr_safetensors *s = NULL;
    const bool whole = !gr_safetensors_open(&s, path, NULL);
    gr_safetensors_free(s);
    free(path);
    return whole;
}

/* Whether a rollout uses the weights of the iteration before. */
static bool has_lag(const gr_running *r, const gr_model *m)
{
    for (size_t i = 0; i < r->g->n_nodes; i++)
        if (r->g->nodes[i]->model == m && gr_node_lags(r->g->nodes[i])) return true;
    return false;
}

/* Whether it is the run's, and has the bytes that were saved; without a manifest that is not known. */
static bool is_as_saved(const gr_running *r, const char *dir)
{
    gr_manifest *m = NULL;
    uint64_t step;
    bool same = gr_checkpoint_number(strrchr(dir, '/') + 1, &step) &&
                !gr_checkpoint_check(&m, r->o->out, dir, step, NULL) &&
                (!m || !gr_manifest_verify(m, gr_run_team(r), NULL));
    gr_manifest_free(m);
    return same;
}

/* Whether nothing of a checkpoint is missing, cut short or changed. */
static bool is_whole(const gr_running *r, const char *dir)
{
    if (!is_as_saved(r, dir)) return false;
    char *path = gr_printf("%s/state.json", dir);
    gr_state_file *f = NULL;
    bool whole = !gr_state_read(&f, path, NULL);
    for (size_t i = 0; i < r->g->n_models && whole; i++) {
        const gr_model *m = r->g->models[i];
        whole = !m->trained || (is_whole_file(dir, m->name, gr_model_has_lora(m) ? GR_PEFT_STEM : "model") &&
                                (!gr_model_moments(m) || is_whole_file(dir, m->name, "optimizer")) &&
                                (!has_lag(r, m) || is_whole_file(dir, m->name, "lagged")));
    }
    gr_state_free(f);
    free(path);
    return whole;
}

void gr_run_explain_damage(const gr_running *r, const char *dir, gr_diag *d)
{
    const char *run = r->o->out;
    const gr_loc nowhere = {0};
    uint64_t *steps = NULL, found = 0;
    size_t n = 0;
    if (is_whole(r, dir) || gr_checkpoint_list(&steps, &n, run, NULL)) return;
    const uint64_t damaged = strtoull(strrchr(dir, '-') + 1, NULL, 10);
    bool any = false;
    for (size_t i = n; i-- > 0 && !any;) {
        char *path = steps[i] < damaged ? gr_checkpoint_path(run, steps[i]) : NULL;
        any = path && is_whole(r, path);
        found = steps[i];
        free(path);
    }
    if (any)
        gr_diag_note(
            d, nowhere,
            "the checkpoint of iteration %llu is damaged; that of %llu is whole: graphrun exec --resume "
            "%s@%llu goes on from it, and keeps what is behind it in a folder of its own",
            (unsigned long long)damaged, (unsigned long long)found, run, (unsigned long long)found);
    else
        gr_diag_note(d, nowhere, "the checkpoint of iteration %llu is damaged, and none before it is whole",
                     (unsigned long long)damaged);
    free(steps);
}
