/* graphs/loader/nodes.c: nodes with their keys, references and expressions, as written. */
#include "graphs/loader/loader.h"
#include "ops/registry.h"

#include <stdlib.h>
#include <string.h>

bool gr_node_has_seqs(const gr_node *n)
{
    if (!n->op || !n->op->makes_rows) return false;
    for (const gr_field *f = n->op->fields; f && f->name; f++)
        if (f->level >= GR_LEVEL_SEQ) return true;
    return false;
}

gr_unresolved *gr_unresolved_find(const gr_loader *l, const char *name)
{
    uint32_t i = gr_index_find(&l->by_name, name, strlen(name));
    return i == UINT32_MAX ? NULL : l->unresolved[i];
}

gr_unresolved *gr_unresolved_named(const gr_loader *l, const char *name)
{
    uint32_t i = gr_index_find(&l->by_name, name, strcspn(name, "."));
    return i == UINT32_MAX ? NULL : l->unresolved[i];
}

gr_unresolved *gr_draft_of(const gr_loader *l, const gr_node *n)
{
    return n ? gr_unresolved_find(l, n->name) : NULL;
}

void gr_draft_edge(gr_unresolved *to, gr_unresolved *from, gr_why why, gr_loc at)
{
    for (size_t i = 0; i < to->n_edges; i++)
        if (to->edges[i].from == from && to->edges[i].why == why) return;
    const gr_edge e = {from, why, at};
    GR_PUSH(to->edges, to->n_edges, to->cap_edges, e);
}

gr_unresolved *gr_draft_ref(gr_loader *l, gr_unresolved *owner, const char *key, const char *name, gr_loc at,
                            gr_why why)
{
    gr_unresolved *from = gr_unresolved_find(l, name);
    if (from) {
        gr_draft_edge(owner, from, why, at);
        return from;
    }
    const char **names = gr_calloc(l->n_unresolved, sizeof(*names));
    for (size_t i = 0; i < l->n_unresolved; i++) names[i] = l->unresolved[i]->node->name;
    const char *near = l->d->n_errors < GR_NEAR_ERRORS ? gr_near(name, names, l->n_unresolved) : NULL;
    gr_diag_error(l->d, at, GR_E_INVALID, "'%s': unknown node '%s'%s%s%s", key, name,
                  near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    free(names);
    owner->bad = true;
    return NULL;
}

gr_formula *gr_formula_read(gr_loader *l, gr_formula_use role, const char *key, const gr_value *v,
                            gr_unresolved *owner)
{
    gr_source *s = l->g->source;
    const char *text = gr_value_text(l, key, v);
    gr_formula *f = gr_arena_alloc(l->arena, sizeof(*f));
    *f = (gr_formula){.role = role, .text = text, .at = v->at, .key = key, .owner = owner};
    f->name_of_owner = owner ? owner->node->name : NULL;
    f->in_loss = role == GR_ROLE_METRIC && owner->updates;
    const gr_expr_source source = {text, v->at, v->indent};
    if (!text || gr_expr_parse(&f->expr, &source, l->d)) return NULL;
    GR_PUSH(s->formulas, s->n_formulas, s->cap_formulas, f);
    if (owner) GR_PUSH(owner->formulas, owner->n_formulas, owner->cap_formulas, f);
    return f;
}

/* ---- the keys of every node ------------------------------------------------------------------------------
 */

static void read_after(gr_loader *l, gr_unresolved *dr)
{
    const gr_value *v = gr_value_get(dr->map, "after");
    if (!v || v->broken) return;
    bool many = v->kind == GR_VALUE_LIST;
    for (size_t i = 0; i < (many ? v->n : 1); i++) {
        const gr_value *item = many ? &v->items[i] : v;
        const char *name = gr_value_text(l, "after", item);
        if (name) gr_draft_ref(l, dr, "after", name, item->at, GR_WHY_AFTER);
    }
}

static void read_metrics(gr_loader *l, gr_unresolved *dr)
{
    const gr_value *v = gr_value_get(dr->map, "metrics");
    if (!v || v->broken || !gr_value_is_map(l, "metrics", v)) return;
    dr->node->results.metrics = gr_arena_alloc(l->arena, v->n * sizeof(*dr->node->results.metrics));
    for (size_t i = 0; i < v->n; i++) {
        const gr_pair *p = &v->pairs[i];
        const gr_formula *f = gr_formula_read(l, GR_ROLE_METRIC, p->key, &p->value, dr);
        if (f)
            dr->node->results.metrics[dr->node->results.n_metrics++] =
                (gr_named_expression){p->key, p->at, f->expr};
    }
}

static void read_when(gr_loader *l, gr_unresolved *dr)
{
    const gr_value *v = gr_value_get(dr->map, "when");
    if (!v || v->broken) return;
    const gr_formula *f = gr_formula_read(l, GR_ROLE_WHEN, "when", v, dr);
    if (f) dr->node->timing.when = (gr_expression){f->expr, f->at};
}

/* ---- ops -------------------------------------------------------------------------------------------------
 */

static void unknown_op(gr_loader *l, const gr_value *v)
{
    size_t n = 0;
    while (gr_ops[n]) n++;
    const char **names = gr_calloc(n, sizeof(*names));
    gr_str all = {0};
    for (size_t i = 0; i < n; i++) {
        names[i] = gr_ops[i]->name;
        gr_str_printf(&all, "%s%s", i ? ", " : "", names[i]);
    }
    const char *near = gr_near(v->text, names, n);
    if (near)
        gr_diag_error(l->d, v->at, GR_E_INVALID, "unknown op '%s'; did you mean '%s'?", v->text, near);
    else
        gr_diag_error(l->d, v->at, GR_E_INVALID, "unknown op '%s'; there are %s", v->text,
                      all.text ? all.text : "none");
    gr_str_release(&all);
    free(names);
}

static void find_op(gr_loader *l, gr_unresolved *dr)
{
    const gr_value *v = gr_value_get(dr->map, "op");
    gr_node *n = dr->node;
    if (!v) {
        gr_diag_error(l->d, n->at, GR_E_INVALID, "node '%s' needs 'op': what it does", n->name);
    } else if (gr_value_text(l, "op", v)) {
        n->op = gr_op_find(v->text);
        if (!n->op) unknown_op(l, v);
    }
    for (const gr_key *k = n->op ? n->op->keys : NULL; k && k->name; k++)
        dr->updates = dr->updates || k->kind == GR_KEY_LOSS;
    dr->writes = dr->updates || (n->op && n->op->follows);
}

/* Its weights are state from here on: saved, restored, sharded. */
static void follow(const gr_node *n)
{
    gr_model *m = n->model;
    if (m->trained && !m->follows) return; /* refused by the op */
    m->follows = n;
    m->trained = true;
}

static void read_keys(gr_loader *l, gr_unresolved *dr)
{
    gr_node *n = dr->node;
    if (!n->op) {
        dr->bad = true;
        return;
    }
    size_t before = l->d->n_errors;
    n->cfg = gr_arena_alloc(l->arena, n->op->cfg_bytes);
    const char *what = gr_arena_printf(l->arena, "node '%s' (op %s)", n->name, n->op->name);
    gr_keys_read(l, dr->map, n->at, what, n->op->keys, gr_node_keys, n->cfg, dr);
    dr->unsure = dr->unsure || l->d->n_errors > before;
    gr_keys_pick(l, dr->map, gr_validate_keys, n, dr);
    if (n->op->follows && n->model) follow(n);
    gr_read_record_state(l, dr);
    const gr_value *pool = gr_value_get(dr->map, "pool");
    if (pool) n->placement.pool = gr_pool_named(l, pool);
    if (pool) n->placement.at = pool->at;
    read_when(l, dr);
    read_after(l, dr);
    read_metrics(l, dr);
}

static void add_draft(gr_loader *l, const gr_pair *p)
{
    static const gr_value none = {.kind = GR_VALUE_MAP};
    gr_unresolved *dr = gr_arena_alloc(l->arena, sizeof(*dr));
    gr_node *n = dr->node = gr_arena_alloc(l->arena, sizeof(*n));
    *n = (gr_node){.name = p->key, .at = p->at, .value = &p->value};
    dr->map = &p->value;
    dr->place = l->n_unresolved;
    gr_index_add(&l->by_name, p->key, (uint32_t)l->n_unresolved);
    l->unresolved[l->n_unresolved++] = dr;
    gr_name_allowed(l, "a node", p->key, p->at);
    for (size_t i = 0; i < l->g->n_state; i++)
        if (!strcmp(l->g->state[i].name, p->key)) {
            gr_diag_error(l->d, p->at, GR_E_INVALID, "node '%s' has the name of a state", p->key);
            gr_diag_note(l->d, l->g->state[i].at, "the state is here");
            dr->bad = true;
        }
    if (p->value.broken || !gr_value_is_map(l, p->key, &p->value)) {
        dr->map = &none;
        dr->bad = true;
        return;
    }
    find_op(l, dr);
}

void gr_read_nodes(gr_loader *l)
{
    const gr_value *v = gr_value_get(&l->g->source->root, "nodes");
    if (!v && l->d->n_errors) return; /* perhaps a file that could not be used has them */
    if (!v) {
        gr_diag_error(l->d, (gr_loc){l->g->path, 1, 1}, GR_E_INVALID, "a graph file needs 'nodes'");
        return;
    }
    if (v->broken || !gr_value_is_map(l, "nodes", v)) return;
    if (v->n > GR_NODES_MAX) {
        gr_diag_error(l->d, v->at, GR_E_INVALID, "more than %d nodes", GR_NODES_MAX);
        return;
    }
    l->unresolved = gr_arena_alloc(l->arena, v->n * sizeof(*l->unresolved));
    for (size_t i = 0; i < v->n; i++) add_draft(l, &v->pairs[i]);
    for (size_t i = 0; i < l->n_unresolved; i++) read_keys(l, l->unresolved[i]);
}
