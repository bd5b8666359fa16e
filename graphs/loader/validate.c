/* graphs/loader/validate.c: which nodes run on validations, between iterations, and not in them.
 *
 * `every` stands where data is drawn, or at any other node; what reads a node of a validation belongs to it,
 * too. An iteration and a validation cannot read each other's values: when one runs, what the other computed
 * is gone. They share only models; a validation reads them as the iteration before it left them.
 */
#include "graphs/loader/loader.h"

#include <string.h>

const gr_key gr_validate_keys[] = {
    {"every", GR_KEY_UINT, offsetof(gr_node, timing.every), false, NULL, 1, UINT32_MAX, NULL,
     "run the node, and what reads it, after every so many iterations instead of in them"},
    {"before", GR_KEY_BOOL, offsetof(gr_node, timing.before), false, NULL, 0, 0, NULL,
     "with every: before the first iteration, too"},
    {0}};

/* Take over what the nodes that are read say; true: something changed. */
static bool inherit(gr_unresolved *dr)
{
    gr_node *n = dr->node;
    bool changed = false;
    for (size_t i = 0; i < dr->n_edges; i++) {
        const gr_node *from = dr->edges[i].from->node;
        if (dr->edges[i].why != GR_WHY_READS || !from->timing.every) continue;
        if (!n->timing.every) n->timing.every = from->timing.every, changed = true;
        if (!n->timing.before && from->timing.before) n->timing.before = changed = true;
    }
    return changed;
}

static void check_edge(gr_loader *l, gr_unresolved *dr, const gr_edge *e)
{
    const gr_node *n = dr->node, *from = e->from->node;
    size_t before = l->d->n_errors;
    if (e->why == GR_WHY_VERSION || e->from->bad) return;
    if (e->why == GR_WHY_AFTER && from->timing.every && !n->timing.every)
        gr_diag_error(l->d, e->at, GR_E_INVALID,
                      "'%s' runs in every iteration, and cannot wait for '%s' of a validation", n->name,
                      from->name);
    if (e->why == GR_WHY_READS && n->timing.every && !from->timing.every)
        gr_diag_error(l->d, e->at, GR_E_INVALID,
                      "'%s' runs on validations, but '%s', which it reads, in the iterations: a validation "
                      "draws and computes all it reads",
                      n->name, from->name);
    if (e->why == GR_WHY_READS && n->timing.every && from->timing.every &&
        n->timing.every != from->timing.every)
        gr_diag_error(l->d, e->at, GR_E_INVALID,
                      "'%s' runs every %u iterations, but '%s', which it reads, every %u", n->name,
                      n->timing.every, from->name, from->timing.every);
    else if (e->why == GR_WHY_READS && n->timing.before && from->timing.every && !from->timing.before)
        gr_diag_error(l->d, e->at, GR_E_INVALID,
                      "'%s' runs before the first iteration, but '%s', which it reads, does not: give it "
                      "'before: true'",
                      n->name, from->name);
    dr->bad = dr->bad || l->d->n_errors > before;
}

static void check_node(gr_loader *l, gr_unresolved *dr)
{
    gr_node *n = dr->node;
    const gr_value *when = gr_value_get(dr->map, "when"), *before = gr_value_get(dr->map, "before");
    size_t errors = l->d->n_errors;
    if (!n->timing.every && n->timing.before && before)
        gr_diag_error(l->d, before->at, GR_E_INVALID,
                      "'before' goes with 'every', or with a node that has it");
    if (!n->timing.every) return;
    if (dr->writes)
        gr_diag_error(l->d, n->at, GR_E_INVALID, "'%s' would %s on a validation", n->name,
                      dr->updates ? "train" : "copy weights");
    if (when)
        gr_diag_error(l->d, when->at, GR_E_INVALID,
                      "'when' does not go with 'every': '%s' runs every %u iterations", n->name,
                      n->timing.every);
    const gr_value *refill = n->op && n->op->narrows ? gr_value_get(dr->map, "refill") : NULL;
    if (refill)
        gr_diag_error(l->d, refill->at, GR_E_INVALID,
                      "'refill' does not go with a validation, which always draws the same records");
    dr->bad = dr->bad || l->d->n_errors > errors;
}

void gr_find_validation(gr_loader *l)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < l->n_unresolved; i++) changed = inherit(l->unresolved[i]) || changed;
    }
    for (size_t i = 0; i < l->n_unresolved; i++) {
        gr_unresolved *dr = l->unresolved[i];
        if (!dr->bad) check_node(l, dr);
        for (size_t j = 0; j < dr->n_edges && !dr->bad; j++) check_edge(l, dr, &dr->edges[j]);
    }
}

bool gr_reads_validation(gr_loader *l, const gr_formula *f, const gr_node *from)
{
    if (!from->timing.every) return false;
    gr_diag_error(l->d, f->at, GR_E_INVALID,
                  "'%s' reads '%s', which runs on validations alone: give this to 'metrics' of a node there",
                  f->key, from->name);
    return true;
}
