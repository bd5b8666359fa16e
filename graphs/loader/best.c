/* graphs/loader/best.c: whether a run will have the metrics that `checkpoint: {best: METRIC}` and `stop:`
 * name.
 *
 * Names are those of metrics.jsonl; who writes them is ops/summary.c, ops/train.c and runtime/run/outputs.c.
 */
#include "graphs/loader/loader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct names {
    gr_arena *arena;
    const char **list;
    size_t n, cap;
} names;

static void add(names *m, const char *name)
{
    GR_PUSH(m->list, m->n, m->cap, name);
}

static void add_of_node(names *m, const gr_node *n, bool updates)
{
    static const char *const of_update[] = {"loss", "grad_norm", "entropy"};
    static const char *const of_rollout[] = {"response_tokens_mean", "truncated_fraction"};
    const char *prefix = n->timing.every ? "val." : "";
    bool rollout = n->timing.every && n->op->generates;
    if (n->timing.every && n->op->scores) add(m, gr_arena_printf(m->arena, "%s%s", prefix, n->name));
    for (size_t i = 0; i < n->results.n_metrics; i++)
        add(m, gr_arena_printf(m->arena, "%s%s.%s", prefix, n->name, n->results.metrics[i].name));
    for (size_t i = 0; updates && i < GR_LEN(of_update); i++)
        add(m, gr_arena_printf(m->arena, "%s.%s", n->name, of_update[i]));
    for (size_t i = 0; rollout && i < GR_LEN(of_rollout); i++)
        add(m, gr_arena_printf(m->arena, "%s%s.%s", prefix, n->name, of_rollout[i]));
}

static void list_metrics(const gr_loader *l, names *m)
{
    static const char *const always[] = {
        "reward_mean", "loss", "kl", "entropy", "grad_norm", "response_tokens_mean", "truncated_fraction"};
    const gr_graph *g = l->g;
    for (size_t i = 0; i < GR_LEN(always); i++) add(m, always[i]);
    for (size_t i = 0; i < g->n_log; i++) add(m, g->log[i].name);
    for (size_t i = 0; i < g->n_state; i++) add(m, gr_arena_printf(m->arena, "state.%s", g->state[i].name));
    for (size_t i = 0; i < g->n_nodes; i++) add_of_node(m, g->nodes[i], l->order[i]->updates);
}

void gr_check_best(gr_loader *l)
{
    const gr_run_settings *r = &l->g->run;
    names m = {.arena = l->arena};
    if (!r->best) return;
    list_metrics(l, &m);
    bool known = false;
    for (size_t i = 0; i < m.n; i++) known = known || !strcmp(m.list[i], r->best);
    const char *near = known ? NULL : gr_near(r->best, m.list, m.n);
    if (!known)
        gr_diag_error(l->d, r->best_at, GR_E_INVALID, "the run has no metric '%s'%s%s%s", r->best,
                      near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    free(m.list);
}

/* ---- stop ------------------------------------------------------------------------------------------------
 */

typedef struct stop_names {
    const gr_loader *l;
    const names *m;
} stop_names;

/* A metric, or a state by its own name: its metric is its value in the iteration. */
static bool resolve(void *user, const char *name, gr_expr_symbol *out)
{
    const stop_names *u = user;
    char state[128];
    snprintf(state, sizeof(state), "state.%s", name);
    for (size_t i = 0; i < u->m->n; i++) {
        if (strcmp(u->m->list[i], name) != 0 && strcmp(u->m->list[i], state) != 0) continue;
        if (out) *out = (gr_expr_symbol){.level = GR_LEVEL_SCALAR, .rows = -1, .id = (int)i};
        return true;
    }
    return false;
}

void gr_read_stop(gr_loader *l)
{
    gr_stop *stop = &l->g->run.stop;
    if (!stop->text) return;
    names m = {.arena = l->arena};
    add(&m, "step"); /* GR_STOP_STEP */
    add(&m, "progress");
    list_metrics(l, &m);
    stop->names = gr_arena_alloc(l->arena, m.n * sizeof(*stop->names));
    stop->n_names = m.n;
    memcpy(stop->names, m.list, m.n * sizeof(*stop->names));
    stop_names user = {l, &m};
    const gr_expr_scope scope = {
        .user = &user, .resolve = resolve, .names = stop->names, .n_names = m.n, .rows = -1};
    const gr_value *v = gr_value_get(gr_value_get(&l->g->source->root, "run"), "stop");
    const gr_expr_source source = {stop->text, v->at, v->indent};
    gr_expr *e = NULL;
    gr_status st = gr_expr_parse(&e, &source, l->d);
    if (!st) st = gr_expr_compile(e, &scope, l->d);
    if (!st && gr_expr_kind(e) != GR_KIND_BOOL)
        st = gr_diag_error(l->d, v->at, GR_E_INVALID,
                           "'stop' is a number where a condition is wanted; compare it, e.g. with > 0.9");
    if (st)
        gr_expr_free(e);
    else
        stop->expr = e;
    free(m.list);
}
