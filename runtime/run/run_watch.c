/* runtime/run/run_watch.c: columns and rows that who runs the graph from within looks at, where they lie. */
#include "runtime/run/run_parts.h"

#include <stdlib.h>
#include <string.h>

/* The last step of a node in an iteration that is a task; GR_NONE: it has none. in_loop: it runs in one. */
static uint32_t last_step(const gr_running *r, const gr_node *n, bool *in_loop)
{
    const gr_path *p = &r->p->plan->paths[GR_PATH_STEADY];
    uint32_t last = GR_NONE;
    for (uint32_t i = 0; i < p->n; i++)
        if (r->bound[i].node == n && r->bound[i].task && r->bound[i].task->kind == GR_STEP_RUN) last = i;
    *in_loop = false;
    for (uint32_t i = 0; last != GR_NONE && i < last; i++)
        *in_loop = *in_loop || (p->steps[i].kind == GR_STEP_LOOP && p->steps[i].body_last >= last);
    return last;
}

static gr_status mark(gr_running *r, const char *name, gr_diag *d)
{
    bool in_loop;
    const gr_node *n = gr_graph_node(r->g, name);
    const uint32_t step = n ? last_step(r, n, &in_loop) : GR_NONE;
    if (!n) return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "there is no node '%s' to watch", name);
    if (step == GR_NONE)
        return gr_diag_error(d, n->at, GR_E_INVALID,
                             "node '%s' cannot be watched: it has no step of its own in an iteration", name);
    if (in_loop)
        return gr_diag_error(
            d, n->at, GR_E_INVALID,
            "node '%s' cannot be watched: its last step is in a loop; watch a node that reads it", name);
    r->bound[step].watched = true;
    return GR_OK;
}

gr_status gr_run_open_watch(gr_running *r, gr_diag *d)
{
    const gr_run_listener *l = r->o->listener;
    gr_status st = GR_OK;
    for (size_t i = 0; l && i < l->n_watched && !st; i++) st = mark(r, l->watched[i], d);
    return st;
}

/* ---- what a step has used --------------------------------------------------------------------------------
 */

static const gr_object *object_of(const gr_running *r, const gr_bound *b, uint32_t use)
{
    const uint32_t object = b->task->uses.list[use].object;
    return object == GR_NONE || !b->call.ptr[use] ? NULL : &r->p->tasks->objects[object];
}

static const void *rows_of(const gr_running *r, const gr_bound *b, const gr_node *rows)
{
    char name[128];
    snprintf(name, sizeof(name), "%s.rows", rows->name);
    for (uint32_t i = 0; i < b->task->uses.n; i++) {
        const gr_object *o = object_of(r, b, i);
        if (o && !strcmp(o->name, name)) return b->call.ptr[i];
    }
    return NULL;
}

static const gr_column *column_of(const gr_running *r, const gr_object *o)
{
    for (size_t i = 0; i < r->g->n_columns; i++)
        if (r->g->columns[i]->node && !strcmp(r->g->columns[i]->name, o->name)) return r->g->columns[i];
    return NULL;
}

static size_t values_of(const gr_column *c, const gr_rows *rows)
{
    switch (c->level) {
    case GR_LEVEL_GROUP:
        return *rows->n_groups;
    case GR_LEVEL_SEQ:
        return *rows->n_seqs;
    case GR_LEVEL_TOKEN:
        return rows->token_offset[*rows->n_seqs];
    default:
        return 1;
    }
}

/* Columns in device memory, and those whose rows the step did not use, are left out. */
static bool see_column(const gr_running *r, const gr_bound *b, uint32_t use, gr_seen_column *out)
{
    const gr_object *o = object_of(r, b, use);
    const gr_column *c = o ? column_of(r, o) : NULL;
    const bool readable = o && (o->place == GR_HOST || !strcmp(r->p->plan->device, "cpu"));
    const void *block = c && c->rows ? rows_of(r, b, c->rows) : NULL;
    if (!c || !readable || (c->rows && !block)) return false;
    gr_rows rows = {0};
    if (block) rows = gr_rows_at((void *)(uintptr_t)block, &c->rows->bounds);
    *out = (gr_seen_column){c, b->call.ptr[use], values_of(c, &rows)};
    return true;
}

gr_status gr_run_show(const gr_running *r, const gr_bound *b, gr_queue *q, gr_diag *d)
{
    const gr_run_listener *l = r->o->listener;
    const gr_node *n = b->node;
    const void *block = n->rows ? rows_of(r, b, n->rows) : NULL;
    gr_status st = gr_queue_finish(q, d);
    if (st) return st;
    gr_seen_column *columns = gr_calloc(b->task->uses.n, sizeof(*columns));
    gr_rows rows = {0};
    if (block) rows = gr_rows_at((void *)(uintptr_t)block, &n->rows->bounds);
    gr_seen seen = {.node = n, .step = r->session.step, .rows = block ? &rows : NULL, .column = columns};
    for (uint32_t i = 0; i < b->task->uses.n; i++) seen.n += see_column(r, b, i, &columns[seen.n]);
    st = l->saw(l->user, &seen, d);
    free(columns);
    return st;
}
