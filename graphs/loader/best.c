/* graphs/loader/best.c: whether a run will have the metric that `checkpoint: {best: METRIC}` names.
 *
 * Names are those of metrics.jsonl; who writes them is ops/summary.c, ops/train.c and runtime/run/outputs.c.
 */
#include "graphs/loader/loader.h"

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

void gr_check_best(gr_loader *l)
{
    static const char *const always[] = {
        "reward_mean", "loss", "kl", "entropy", "grad_norm", "response_tokens_mean", "truncated_fraction"};
    const gr_run_settings *r = &l->g->run;
    names m = {.arena = l->arena};
    if (!r->best) return;
    for (size_t i = 0; i < GR_LEN(always); i++) add(&m, always[i]);
    for (size_t i = 0; i < l->g->n_log; i++) add(&m, l->g->log[i].name);
    for (size_t i = 0; i < l->g->n_state; i++)
        add(&m, gr_arena_printf(m.arena, "state.%s", l->g->state[i].name));
    for (size_t i = 0; i < l->g->n_nodes; i++) add_of_node(&m, l->g->nodes[i], l->order[i]->updates);
    bool known = false;
    for (size_t i = 0; i < m.n; i++) known = known || !strcmp(m.list[i], r->best);
    const char *near = known ? NULL : gr_near(r->best, m.list, m.n);
    if (!known)
        gr_diag_error(l->d, r->best_at, GR_E_INVALID, "the run has no metric '%s'%s%s%s", r->best,
                      near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    free(m.list);
}
