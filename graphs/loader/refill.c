/* graphs/loader/refill.c: which nodes a refilled select repeats: all it depends on, back to the data it
 * draws.
 *
 * What they hold at the iteration's end is of the last round alone, so nobody else may read it: others name
 * their values about the selected rows, and so read the select's copy.
 */
#include "graphs/loader/loader.h"
#include "ops/base/configs.h"

#include <stdlib.h>
#include <string.h>

static bool reads(const gr_node *n, const gr_node *input)
{
    for (size_t i = 0; i < n->n_inputs; i++)
        if (n->inputs[i] == input) return true;
    return false;
}

/* The nodes between the data and the select, both ways of the edges. */
static void mark_repeated(gr_loader *l, const gr_node *select)
{
    const gr_graph *g = l->g;
    const gr_node *data = gr_groups_maker(select->groups);
    bool *before = gr_calloc(g->n_nodes, sizeof(*before)), *behind = gr_calloc(g->n_nodes, sizeof(*behind));
    before[select->index] = behind[data->index] = true;
    for (size_t i = select->index; i-- > 0;)
        for (size_t j = i + 1; j <= select->index; j++)
            before[i] = before[i] || (before[j] && reads(g->nodes[j], g->nodes[i]));
    for (size_t i = 0; i < select->index; i++)
        for (size_t j = 0; j < i; j++)
            behind[i] = behind[i] || (behind[j] && reads(g->nodes[i], g->nodes[j]));
    for (size_t i = 0; i < select->index; i++) {
        gr_node *n = g->nodes[i];
        if (before[i] && behind[i] && !n->timing.repeated_by) n->timing.repeated_by = select;
    }
    free(before);
    free(behind);
}

static void check_repeated(gr_loader *l, const gr_unresolved *dr)
{
    const gr_node *n = dr->node, *select = n->timing.repeated_by;
    if (n->timing.refills)
        gr_diag_error(l->d, n->at, GR_E_INVALID, "'%s' refills, and would be refilled itself by '%s'",
                      n->name, select->name);
    else if (gr_node_keeps(n))
        gr_diag_error(
            l->d, n->at, GR_E_INVALID,
            "'%s' keeps rows from one iteration to the next, and cannot be drawn again in rounds of '%s'",
            n->name, select->name);
    else if (dr->writes)
        gr_diag_error(l->d, n->at, GR_E_INVALID, "'%s' would %s in each round of '%s'", n->name,
                      dr->updates ? "train" : "copy", select->name);
    else if (n->timing.when.expr)
        gr_diag_error(l->d, n->timing.when.at, GR_E_INVALID,
                      "'when' does not go with a node that '%s' repeats", select->name);
    else if (n->results.n_metrics)
        gr_diag_error(l->d, n->results.metrics[0].at, GR_E_INVALID,
                      "metrics of '%s' would be of the last round of '%s': give them to '%s'", n->name,
                      select->name, select->name);
}

/* An update of what a round reads would come before the last round. */
static void check_versions(gr_loader *l, const gr_unresolved *dr)
{
    const gr_node *n = dr->node;
    for (size_t i = 0; dr->writes && i < n->index; i++) {
        const gr_node *r = l->g->nodes[i], *select = r->timing.repeated_by;
        if (!select || r->model != n->model || r->timing.new_version || n->index > select->index) continue;
        gr_diag_error(l->d, n->at, GR_E_INVALID, "'%s' %s what '%s' repeats: it needs 'after: %s'", n->name,
                      dr->updates ? "trains" : "copies", select->name, select->name);
        return;
    }
}

static void refuse_read(gr_loader *l, gr_loc at, const char *who, const char *what, const gr_node *select)
{
    gr_diag_error(
        l->d, at, GR_E_INVALID,
        "'%s' reads '%s', which '%s' computes anew in each round: only rows 'of: %s' are of all rounds", who,
        what, select->name, select->name);
}

static bool check_columns(gr_loader *l, const gr_formula *f, const int *ids, size_t n)
{
    const gr_node *owner = f->owner ? f->owner->node : NULL;
    for (size_t i = 0; i < n; i++) {
        const gr_column *c = l->g->columns[ids[i]];
        const gr_node *select = c->node ? c->node->timing.repeated_by : NULL;
        if (!select || owner == select || (owner && owner->timing.repeated_by == select)) continue;
        refuse_read(l, f->at, owner ? owner->name : f->key, c->name, select);
        return false;
    }
    return true;
}

/* Rows that are only counted have no column. */
static void check_row_sets(gr_loader *l, const gr_formula *f)
{
    size_t n;
    const int *rows = gr_expr_row_sets(f->expr, &n);
    const gr_node *owner = f->owner ? f->owner->node : NULL;
    for (size_t i = 0; i < n; i++) {
        const gr_node *maker = l->g->nodes[rows[i]], *select = maker->timing.repeated_by;
        if (select && owner != select && !(owner && owner->timing.repeated_by == select))
            refuse_read(l, f->at, owner ? owner->name : f->key, maker->name, select);
    }
}

static void check_reads(gr_loader *l, const gr_formula *f)
{
    if (f->owner && !f->owner->live) return;
    size_t n;
    const int *ids = gr_formula_reads(f, &n);
    if (check_columns(l, f, ids, n) && !f->loss && !f->in_loss) check_row_sets(l, f);
}

void gr_find_repeated(gr_loader *l)
{
    bool any = false;
    for (size_t i = 0; i < l->g->n_nodes; i++) {
        const gr_node *n = l->g->nodes[i];
        if (!n->timing.refills) continue;
        any = true;
        mark_repeated(l, n);
        if (n->timing.when.expr)
            gr_diag_error(l->d, n->timing.when.at, GR_E_INVALID, "'when' does not go with 'refill'");
    }
    if (!any) return;
    for (size_t i = 0; i < l->g->n_nodes; i++) {
        const gr_unresolved *dr = l->order[i];
        const gr_node *n = dr->node, *of = n->of, *select = of ? of->timing.repeated_by : NULL;
        if (n->timing.repeated_by)
            check_repeated(l, dr);
        else if (select && n != select)
            refuse_read(l, n->at, n->name, of->name, select);
        check_versions(l, dr);
    }
    for (size_t i = 0; i < l->g->source->n_formulas; i++) check_reads(l, l->g->source->formulas[i]);
}
