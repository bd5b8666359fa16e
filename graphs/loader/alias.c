/* graphs/loader/alias.c: log-probs that an update computes anyway, or that the rollout has.
 *
 * An update that makes one optimizer step sees, in its own pass, the very weights that an old_logprob of its
 * model was computed with: there the old log-probs are stop_gradient(logprob), to the bit. Where nobody else
 * reads such a node, it is left out of the graph and its name stands for the update's own values.
 *
 * Under `strict: true` a rollout's log-probs are those of a log-prob pass by the same weights, to the bit.
 * There an old_logprob of the rollout's own model is left out too, however many steps the update makes, and
 * its name stands for the rollout's log-probs; but not where an expression names both, so as to compare them.
 * A log-prob node that asks for a rollout's experts (`replay`) is one of its own, unless the update asks
 * alike; and so is one under other prompts (`prompts`), and one that teaches an update.
 */
#include "graphs/loader/loader.h"
#include "ops/base/states.h"

#include <string.h>

/* Whether an update is taught by it: its hidden states are its own. */
static bool teaches(const gr_loader *l, const gr_node *n)
{
    bool any = false;
    for (size_t i = 0; i < l->n_unresolved; i++) any = any || gr_node_teacher(l->unresolved[i]->node) == n;
    return any;
}

static bool names_field(const gr_formula *f, const char *node)
{
    size_t n, len = strlen(node);
    const gr_expr_name *names = gr_expr_names(f->expr, &n);
    for (size_t i = 0; i < n; i++)
        if (!strncmp(names[i].name, node, len) && names[i].name[len] == '.') return true;
    return false;
}

static bool names_node_in(const char *name, const char *node)
{
    size_t len = strlen(node);
    return !strncmp(name, node, len) && (!name[len] || name[len] == '.');
}

static bool names_node(const gr_formula *f, const char *node)
{
    size_t n;
    const gr_expr_name *names = gr_expr_names(f->expr, &n);
    for (size_t i = 0; i < n; i++)
        if (!strcmp(names[i].name, node)) return true;
    return names_field(f, node);
}

/* Whether the bare node name, in the loss and metrics of u, is all that anybody reads of dr. */
static bool read_by_update_alone(const gr_loader *l, const gr_unresolved *dr, const gr_unresolved *u)
{
    for (size_t i = 0; i < l->n_unresolved; i++)
        for (size_t j = 0; j < l->unresolved[i]->n_edges; j++) {
            const gr_edge *e = &l->unresolved[i]->edges[j];
            if (e->from == dr &&
                (e->why == GR_WHY_AFTER || (e->why == GR_WHY_READS && l->unresolved[i] != u)))
                return false;
        }
    for (size_t i = 0; i < l->g->source->n_formulas; i++) {
        const gr_formula *f = l->g->source->formulas[i];
        if (f->owner == u ? names_field(f, dr->node->name) : names_node(f, dr->node->name)) return false;
    }
    return true;
}

/* ---- the rollout's
 * -----------------------------------------------------------------------------------------
 */

gr_unresolved *gr_unresolved_meant(gr_unresolved *dr)
{
    return dr && dr->alias && !dr->alias->updates ? dr->alias : dr;
}

static bool is_field(const char *name, const char *node, const char *field)
{
    size_t n = strlen(node);
    return !strncmp(name, node, n) && name[n] == '.' && !strcmp(name + n + 1, field);
}

/* Whether all that f names of dr are its log-probs, and those of the rollout are not beside them. */
static bool names_logprob_alone(const gr_formula *f, const char *node, const char *rollout)
{
    size_t n;
    const gr_expr_name *names = gr_expr_names(f->expr, &n);
    bool own = true, other = false;
    for (size_t i = 0; i < n; i++) {
        own = own && (!names_node_in(names[i].name, node) || !strcmp(names[i].name, node) ||
                      is_field(names[i].name, node, "logprob"));
        other = other || is_field(names[i].name, rollout, "logprob");
    }
    return own && !(other && names_node(f, node));
}

/* Whether its weights are older than the iteration's. */
static bool lags(const gr_node *rollout)
{
    const gr_value *v = gr_value_get(rollout->value, "lag"), *over = gr_value_get(rollout->value, "over");
    double lag = 0, x = 1;
    return (v && (!gr_value_number(v, &lag) || lag != 0)) || (over && (!gr_value_number(over, &x) || x > 1));
}

static bool stands_for_rollout(const gr_loader *l, const gr_unresolved *dr)
{
    const gr_node *n = dr->node, *rollout = n->of;
    if (!n->op || !n->op->logprob || dr->bad || teaches(l, n) || dr->alias || n->results.n_metrics ||
        n->timing.every || n->timing.new_version || gr_value_get(n->value, "when") ||
        gr_value_get(n->value, "replay") || gr_value_get(n->value, "prompts"))
        return false;
    if (!rollout || !rollout->op || !rollout->op->makes_rows || !gr_field_find(rollout, "logprob") ||
        rollout->model != n->model || rollout->timing.every || rollout->timing.new_version ||
        gr_value_get(rollout->value, "when") || lags(rollout))
        return false;
    for (size_t i = 0; i < l->n_unresolved; i++)
        for (size_t j = 0; j < l->unresolved[i]->n_edges; j++)
            if (l->unresolved[i]->edges[j].from == dr && l->unresolved[i]->edges[j].why == GR_WHY_AFTER)
                return false;
    for (size_t i = 0; i < l->g->source->n_formulas; i++)
        if (!names_logprob_alone(l->g->source->formulas[i], n->name, rollout->name)) return false;
    return true;
}

/* Readers of dr read the rollout instead. */
static void read_rollout(gr_loader *l, gr_unresolved *dr, gr_unresolved *rollout)
{
    dr->alias = rollout;
    dr->node->stands_for = rollout->node;
    for (size_t i = 0; i < l->n_unresolved; i++)
        for (size_t j = 0; j < l->unresolved[i]->n_edges; j++) {
            gr_edge *e = &l->unresolved[i]->edges[j];
            if (e->from == dr && e->why == GR_WHY_READS) e->from = rollout;
        }
}

static void find_rollouts(gr_loader *l)
{
    for (size_t i = 0; i < l->n_unresolved && l->g->strict; i++) {
        gr_unresolved *dr = l->unresolved[i];
        if (stands_for_rollout(l, dr)) read_rollout(l, dr, gr_draft_of(l, dr->node->of));
    }
}

/* ---- the update's
 * ------------------------------------------------------------------------------------------
 */

static const char *replay_of(const gr_node *n)
{
    const gr_value *v = gr_value_get(n->value, "replay");
    return v && v->text ? v->text : "none";
}

/* Whether the update's pass does with a rollout's experts what n asks for; to compare them changes no value.
 */
static bool same_replay(const gr_node *n, const gr_node *update)
{
    const char *asked = replay_of(n), *done = replay_of(update);
    return !strcmp(asked, done) || (!strcmp(asked, "none") && !strcmp(done, "compare"));
}

static bool is_own_logprob(const gr_loader *l, const gr_unresolved *dr, const gr_unresolved *u)
{
    const gr_node *n = dr->node;
    return n->op && n->op->logprob && !dr->bad && n->model == u->node->model && n->of == u->node->of &&
           !n->timing.new_version && !n->results.n_metrics && !gr_value_get(n->value, "when") &&
           !gr_value_get(n->value, "prompts") && !teaches(l, n) && same_replay(n, u->node) &&
           read_by_update_alone(l, dr, u);
}

static void drop_edge(gr_unresolved *u, size_t edge)
{
    memmove(&u->edges[edge], &u->edges[edge + 1], (u->n_edges - edge - 1) * sizeof(*u->edges));
    u->n_edges--;
}

void gr_find_aliases(gr_loader *l)
{
    for (size_t i = 0; i < l->n_unresolved; i++) {
        gr_unresolved *u = l->unresolved[i];
        if (!u->updates || u->bad || u->node->timing.new_version || !u->node->op->one_step ||
            !u->node->op->one_step(u->node))
            continue;
        for (size_t j = u->n_edges; j-- > 0;) {
            gr_unresolved *dr = u->edges[j].from;
            if (u->edges[j].why != GR_WHY_READS || !is_own_logprob(l, dr, u)) continue;
            dr->alias = u;
            drop_edge(u, j);
        }
    }
    find_rollouts(l);
}
