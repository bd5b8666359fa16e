/* graphs/loader/order.c: which node comes before which, and which are left out.
 *
 * Edges: a reader after what it reads, `after:`, and versions of models: a node reads a model as it was when
 * the iteration began, so it comes before every update of it that it is not `after`. The order is
 * topological, file order among the nodes that are ready.
 */
#include "graphs/loader/loader.h"
#include "ops/base/states.h"

#include <stdlib.h>
#include <string.h>

/* ---- edges of names --------------------------------------------------------------------------------------
 */

static void name_edges(gr_loader *l)
{
    for (size_t i = 0; i < l->g->source->n_formulas; i++) {
        const gr_formula *f = l->g->source->formulas[i];
        size_t n;
        const gr_expr_name *names = gr_expr_names(f->expr, &n);
        for (size_t j = 0; f->owner && j < n; j++) {
            gr_unresolved *from = gr_unresolved_meant(gr_unresolved_named(l, names[j].name));
            if (from == f->owner && f->role == GR_ROLE_METRIC) continue; /* evaluated after its node */
            if (from) gr_draft_edge(f->owner, from, GR_WHY_READS, names[j].at);
        }
    }
}

/* ---- versions of models ----------------------------------------------------------------------------------
 */

static bool reads_model(const gr_node *n, const gr_model *m)
{
    const gr_node *teacher = gr_node_teacher(n);
    return n->model == m || n->second == m || (teacher && teacher->model == m);
}

/* Whether dr is after u by `after:` alone, however far. mark stops at circles. */
static bool is_after(gr_unresolved *dr, const gr_unresolved *u, int mark)
{
    dr->mark = mark;
    for (size_t i = 0; i < dr->n_edges; i++) {
        gr_unresolved *from = dr->edges[i].from;
        if (dr->edges[i].why != GR_WHY_AFTER) continue;
        if (from == u || (from->mark != mark && is_after(from, u, mark))) return true;
    }
    return false;
}

static void version_edges(gr_loader *l, gr_unresolved *u, int *mark)
{
    gr_model *m = u->node->model;
    if (!m->update) m->update = u->node;
    for (size_t i = 0; i < l->n_unresolved; i++) {
        gr_unresolved *r = l->unresolved[i];
        if (r == u || !reads_model(r->node, m)) continue;
        if (r->node->timing.every) { /* between iterations there is one version */
            r->node->timing.new_version = true;
            continue;
        }
        bool later = is_after(r, u, ++*mark), sooner = is_after(u, r, ++*mark);
        if (later) {
            r->node->timing.new_version = true;
        } else if (!r->writes || r->node->model != m) {
            gr_draft_edge(u, r, GR_WHY_VERSION, r->node->at);
        } else if (!sooner && m->update == u->node) { /* reported once, at the second */
            gr_diag_error(l->d, r->node->at, GR_E_INVALID, "two %s model '%s': '%s' needs 'after: %s'",
                          r->updates && u->updates ? "updates of" : "nodes write", m->name, r->node->name,
                          u->node->name);
            gr_diag_note(l->d, u->node->at, "the other %s is here",
                         r->updates && u->updates ? "update" : "one");
        }
    }
}

/* ---- selections ------------------------------------------------------------------------------------------
 */

static gr_unresolved *rows_maker(const gr_loader *l, gr_unresolved *dr)
{
    for (size_t i = 0; dr && dr->node->op && !dr->node->op->makes_rows && i < l->n_unresolved; i++)
        dr = gr_draft_of(l, dr->node->of);
    return dr && dr->node->op && dr->node->op->narrows ? dr : NULL;
}

/* Whether dr comes after `from`, however far. mark stops at circles. */
static bool depends(gr_unresolved *dr, const gr_unresolved *from, int mark)
{
    dr->mark = mark;
    for (size_t i = 0; i < dr->n_edges; i++) {
        gr_unresolved *next = dr->edges[i].from;
        if (next == from || (next->mark != mark && depends(next, from, mark))) return true;
    }
    return false;
}

/* A formula about selected rows reads values of their parents through the select, which copies them: so it
 * comes after them. What comes after the select itself has the selected rows already. */
static void narrow_edges(gr_loader *l, int *mark)
{
    for (size_t i = 0; i < l->g->source->n_formulas; i++) {
        const gr_formula *f = l->g->source->formulas[i];
        bool own = f->owner && f->owner->node->op && f->owner->node->op->narrows && f->role == GR_ROLE_VALUE;
        gr_unresolved *first = own ? gr_draft_of(l, f->owner->node->of) : f->owner;
        size_t n;
        const gr_expr_name *names = gr_expr_names(f->expr, &n);
        for (size_t j = 0; j < n; j++) {
            gr_unresolved *from = gr_unresolved_meant(gr_unresolved_named(l, names[j].name)),
                          *s = rows_maker(l, first);
            for (size_t k = 0; from && s && k < l->n_unresolved; k++) {
                if (from != s && !depends(from, s, ++*mark))
                    gr_draft_edge(s, from, GR_WHY_READS, names[j].at);
                s = rows_maker(l, gr_draft_of(l, s->node->of));
            }
        }
    }
}

/* ---- circles ---------------------------------------------------------------------------------------------
 */

static void report_circle(gr_loader *l, gr_unresolved **path, size_t n, gr_loc at)
{
    gr_str s = {0};
    for (size_t i = 0; i < n; i++) gr_str_printf(&s, "%s -> ", path[i]->node->name);
    gr_str_puts(&s, path[0]->node->name);
    gr_diag_error(l->d, at, GR_E_INVALID, "nodes wait for each other: %s", s.text);
    gr_str_release(&s);
    for (size_t i = 0; i < n; i++) {
        gr_unresolved *to = path[i], *from = path[(i + 1) % n];
        to->bad = true;
        for (size_t j = 0; j < to->n_edges; j++)
            if (to->edges[j].from == from && to->edges[j].why == GR_WHY_VERSION && to->node->model)
                gr_diag_note(
                    l->d, from->node->at,
                    "'%s' reads model '%s' as it was before '%s'; with 'after: %s' it reads the new one",
                    from->node->name, to->node->model->name, to->node->name, to->node->name);
    }
}

/* Every draft that is not placed has an edge from one that is not: following them must close a circle. */
static void break_circle(gr_loader *l, int mark)
{
    gr_unresolved **path = gr_calloc(l->n_unresolved + 1, sizeof(*path)), *at = NULL;
    gr_loc *loc = gr_calloc(l->n_unresolved + 1, sizeof(*loc));
    size_t n = 0, first = 0;
    for (size_t i = 0; !at; i++)
        if (!l->unresolved[i]->placed) at = l->unresolved[i];
    while (at->mark != mark) {
        at->mark = mark;
        path[n] = at;
        size_t i = 0;
        while (at->edges[i].from->placed) i++;
        loc[n++] = at->edges[i].at;
        at = at->edges[i].from;
    }
    while (path[first] != at) first++;
    report_circle(l, path + first, n - first, loc[first]);
    for (size_t i = first; i < n; i++) {
        path[i]->placed = true;
        l->order[l->n_order++] = path[i];
    }
    free(path);
    free(loc);
}

/* ---- order -----------------------------------------------------------------------------------------------
 */

/* Of drafts that wait for nothing: a heap with the first of the file on top. */
typedef struct ready {
    gr_unresolved **heap;
    size_t n;
} ready;

static void ready_push(ready *r, gr_unresolved *dr)
{
    size_t i = r->n++;
    for (; i && r->heap[(i - 1) / 2]->place > dr->place; i = (i - 1) / 2) r->heap[i] = r->heap[(i - 1) / 2];
    r->heap[i] = dr;
}

static gr_unresolved *ready_pop(ready *r)
{
    gr_unresolved *top = r->heap[0], *last = r->heap[--r->n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < r->n; i = child) {
        child += child + 1 < r->n && r->heap[child + 1]->place < r->heap[child]->place;
        if (last->place <= r->heap[child]->place) break;
        r->heap[i] = r->heap[child];
    }
    r->heap[i] = last;
    return top;
}

/* Drafts by what they wait for: those of drafts[i] are after[begin[i]] to after[begin[i + 1]], as often as
 * they have edges. */
typedef struct readers {
    size_t *begin;
    gr_unresolved **after;
} readers;

static readers readers_of(const gr_loader *l)
{
    readers r = {.begin = gr_calloc(l->n_unresolved + 2, sizeof(*r.begin))};
    for (size_t i = 0; i < l->n_unresolved; i++)
        for (size_t j = 0; j < l->unresolved[i]->n_edges; j++)
            r.begin[l->unresolved[i]->edges[j].from->place + 2]++;
    for (size_t i = 2; i < l->n_unresolved + 2; i++) r.begin[i] += r.begin[i - 1];
    r.after = gr_malloc((r.begin[l->n_unresolved + 1] + 1) * sizeof(*r.after));
    for (size_t i = 0; i < l->n_unresolved; i++)
        for (size_t j = 0; j < l->unresolved[i]->n_edges; j++)
            r.after[r.begin[l->unresolved[i]->edges[j].from->place + 1]++] = l->unresolved[i];
    return r;
}

/* Those placed since the last call, up to the end of the order, are waited for no more. */
static void release_readers(gr_loader *l, const readers *by, size_t from, ready *r)
{
    for (; from < l->n_order; from++) {
        size_t at = l->order[from]->place;
        for (size_t i = by->begin[at]; i < by->begin[at + 1]; i++)
            if (!--by->after[i]->waiting && !by->after[i]->placed) ready_push(r, by->after[i]);
    }
}

static void sort_drafts(gr_loader *l, int *mark)
{
    readers by = readers_of(l);
    ready r = {.heap = gr_malloc((l->n_unresolved + 1) * sizeof(*r.heap))};
    l->order = gr_arena_alloc(l->arena, l->n_unresolved * sizeof(gr_unresolved *));
    for (size_t i = 0; i < l->n_unresolved; i++)
        if (!(l->unresolved[i]->waiting = l->unresolved[i]->n_edges)) ready_push(&r, l->unresolved[i]);
    while (l->n_order < l->n_unresolved) {
        size_t begin = l->n_order;
        if (r.n) {
            l->order[l->n_order] = ready_pop(&r);
            l->order[l->n_order++]->placed = true;
        } else {
            break_circle(l, ++*mark);
        }
        release_readers(l, &by, begin, &r);
    }
    free(r.heap);
    free(by.after);
    free(by.begin);
}

/* ---- who is read -----------------------------------------------------------------------------------------
 */

static void keep(gr_unresolved *dr)
{
    if (dr->live) return;
    dr->live = true;
    for (size_t i = 0; i < dr->n_edges; i++)
        if (dr->edges[i].why != GR_WHY_VERSION) keep(dr->edges[i].from);
}

static bool has_effect(const gr_unresolved *dr)
{
    const gr_node *n = dr->node;
    return dr->writes || n->results.n_metrics || (n->timing.every && n->op && n->op->scores);
}

static void keep_what_has_effect(gr_loader *l)
{
    for (size_t i = 0; i < l->n_unresolved; i++)
        if (has_effect(l->unresolved[i])) keep(l->unresolved[i]);
    for (size_t i = 0; i < l->g->source->n_formulas; i++) {
        const gr_formula *f = l->g->source->formulas[i];
        size_t n;
        const gr_expr_name *names = gr_expr_names(f->expr, &n);
        for (size_t j = 0; !f->owner && j < n; j++) {
            gr_unresolved *dr = gr_unresolved_meant(gr_unresolved_named(l, names[j].name));
            if (dr) keep(dr);
        }
    }
}

static void say_what_is_dead(gr_loader *l)
{
    size_t n_live = 0;
    for (size_t i = 0; i < l->n_unresolved; i++) {
        const gr_unresolved *dr = l->unresolved[i];
        n_live += dr->live;
        if (!dr->live && !dr->alias)
            gr_diag_warn(l->d, dr->node->at, "node '%s' is left out: nothing reads it%s%s%s", dr->node->name,
                         dr->node->op->scores ? "; 'log: {NAME: batch_mean(" : "",
                         dr->node->op->scores ? dr->node->name : "",
                         dr->node->op->scores ? ")}' would report it" : "");
    }
    if (!n_live)
        gr_diag_error(l->d, (gr_loc){l->g->path, 1, 1}, GR_E_INVALID,
                      "the graph does nothing: it has no update, no metrics, no log and no state");
}

static void say_what_models_are_unread(gr_loader *l)
{
    for (size_t i = 0; i < l->g->n_models; i++) {
        const gr_model *m = l->g->models[i];
        bool read = false;
        for (size_t j = 0; j < l->n_unresolved; j++)
            read = read || (l->unresolved[j]->live && reads_model(l->unresolved[j]->node, m));
        if (m->implied) continue;
        if (!read)
            gr_diag_warn(l->d, m->at, "model '%s' is read by no node that matters", m->name);
        else if (m->trained && !m->update)
            gr_diag_warn(l->d, m->at, "model '%s' has 'train', but no update trains it", m->name);
    }
}

static void list_inputs(gr_loader *l, gr_unresolved *dr)
{
    gr_node *n = dr->node;
    n->inputs = gr_arena_alloc(l->arena, dr->n_edges * sizeof(*n->inputs));
    for (size_t i = 0; i < dr->n_edges; i++) {
        bool there = dr->edges[i].why == GR_WHY_VERSION;
        for (size_t j = 0; j < n->n_inputs; j++) there = there || n->inputs[j] == dr->edges[i].from->node;
        if (!there) n->inputs[n->n_inputs++] = dr->edges[i].from->node;
    }
}

/* Live nodes before a place in the order. */
static size_t live_before(const gr_loader *l, const gr_unresolved *dr)
{
    size_t n = 0;
    for (size_t i = 0; l->order[i] != dr; i++) n += l->order[i]->live;
    return n;
}

static void list_aliases(gr_loader *l)
{
    gr_source *s = l->g->source;
    s->aliases = gr_arena_alloc(l->g->arena, l->n_unresolved * sizeof(*s->aliases));
    s->alias_at = gr_arena_alloc(l->g->arena, l->n_unresolved * sizeof(*s->alias_at));
    for (size_t i = 0; i < l->n_unresolved; i++) {
        if (!l->unresolved[i]->alias || l->unresolved[i]->live) continue;
        s->alias_at[s->n_aliases] = live_before(l, l->unresolved[i]);
        s->aliases[s->n_aliases++] = l->unresolved[i]->node;
    }
}

/* The live first: ids of rows and columns of a graph do not depend on what is left out. */
static void list_nodes(gr_loader *l)
{
    gr_unresolved **order = gr_arena_alloc(l->arena, l->n_order * sizeof(*order));
    size_t n = 0;
    l->g->nodes = gr_arena_alloc(l->arena, l->n_order * sizeof(*l->g->nodes));
    for (int live = 1; live >= 0; live--)
        for (size_t i = 0; i < l->n_order; i++) {
            gr_unresolved *dr = l->order[i];
            if (dr->live != live) continue;
            dr->node->index = (uint32_t)n;
            l->g->nodes[n] = dr->node;
            order[n++] = dr;
            if (live) gr_index_add(&l->g->by_name, dr->node->name, dr->node->index);
            if (live) l->g->n_nodes = n;
            list_inputs(l, dr);
        }
    list_aliases(l);
    l->order = order;
}

void gr_order(gr_loader *l)
{
    int mark = 0;
    name_edges(l);
    gr_find_validation(l);
    for (size_t i = 0; i < l->n_unresolved; i++)
        if (l->unresolved[i]->writes && l->unresolved[i]->node->model)
            version_edges(l, l->unresolved[i], &mark);
    gr_find_aliases(l);
    narrow_edges(l, &mark);
    sort_drafts(l, &mark);
    keep_what_has_effect(l);
    list_nodes(l);
}

void gr_order_warn(gr_loader *l)
{
    say_what_is_dead(l);
    say_what_models_are_unread(l);
}
