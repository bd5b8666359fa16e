/* scheduler/search/roles.c: plans of several roles of ranks together: what crosses, in which order, and
 * when. */
#include "scheduler/search/roles.h"

#include "scheduler/cost/collective.h"
#include "ops/base/configs.h"
#include "ops/parallel/sharding.h"

#include <stdlib.h>
#include <string.h>

typedef struct transfer {
    const gr_node *node;   /* whose steps these are: of a column the writer, of weights the reader */
    const char *object;    /* of a column; NULL: a bucket of weights */
    const gr_model *model; /* of weights */
    uint32_t bucket;
    bool lagged;       /* into the copy that lives on; from == to: a sync of the role with itself */
    uint32_t from, to; /* roles */
    uint32_t before;   /* the unit that it comes before */
    uint32_t channel;
} transfer;

struct gr_traffic {
    const gr_graph *g;
    const gr_tasks *const *whole;
    gr_hardware hw;
    gr_node *const *ends;
    uint32_t *unit; /* of nodes, the ends included */
    transfer *all;
    size_t n, cap;
    uint32_t order;
};

bool gr_node_optional(const gr_graph *g, const gr_node *n)
{
    bool alone = false;
    for (size_t i = 0; n->timing.every && i < g->n_nodes; i++) {
        const gr_node *o = g->nodes[i];
        alone = alone || (o->timing.every &&
                          (o->timing.every != n->timing.every || o->timing.before != n->timing.before));
    }
    return n->timing.when.expr || alone;
}

bool gr_graph_lags(const gr_graph *g)
{
    for (size_t i = 0; i < g->n_nodes; i++)
        if (gr_node_lags(g->nodes[i])) return true;
    return false;
}

uint32_t gr_traffic_orders(const gr_graph *g)
{
    return g->n_roles < 2 ? 1 : gr_graph_lags(g) ? GR_ORDERS : (uint32_t)GR_ORDER_UPDATE;
}

bool gr_model_is_away(const gr_graph *g, const gr_model *m)
{
    return g->n_roles > 1 && m->update && m->update->placement.role != g->view;
}

/* ---- units -----------------------------------------------------------------------------------------------
 */

/* Whether node a must stand before node b of another role: b reads it, or trains what it still reads. */
static bool must_precede(const gr_node *a, const gr_node *b)
{
    for (size_t i = 0; i < b->n_inputs; i++)
        if (b->inputs[i] == a || b->inputs[i]->timing.repeated_by == a) return true;
    bool updates = b->model && b->op->trains;
    return updates && a->model == b->model && a->index < b->index && !a->timing.every;
}

/* Of a select also what it repeats. */
static bool is_ready(const gr_traffic *t, const gr_node *n, const bool *placed)
{
    for (size_t i = 0; i < n->index; i++) {
        const gr_node *a = t->g->nodes[i];
        if (a->timing.repeated_by || placed[i] || a->timing.every != n->timing.every) continue;
        if (a->placement.role == n->placement.role || must_precede(a, n)) return false;
        for (size_t k = 0; n->timing.refills && k < n->index; k++)
            if (t->g->nodes[k]->timing.repeated_by == n && must_precede(a, t->g->nodes[k])) return false;
    }
    return true;
}

/* The next unit: of the role of the last one, if one of it is ready; else the first that is. */
static size_t next_unit(const gr_traffic *t, const bool *placed, bool validation, uint32_t role)
{
    const gr_graph *g = t->g;
    size_t first = g->n_nodes;
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_node *n = g->nodes[i];
        if (placed[i] || n->timing.repeated_by || (n->timing.every != 0) != validation) continue;
        if (!(t->order & GR_ORDER_BY_ROLE)) return i;
        if (!is_ready(t, n, placed)) continue;
        if (n->placement.role == role) return i;
        if (first == g->n_nodes) first = i;
    }
    return first;
}

static void find_units(gr_traffic *t)
{
    const gr_graph *g = t->g;
    bool *placed = gr_calloc(g->n_nodes + 1, sizeof(*placed));
    uint32_t n = 0, role = GR_NONE;
    for (int validation = 0; validation < 2; validation++) {
        for (size_t i; (i = next_unit(t, placed, validation, role)) < g->n_nodes;) {
            placed[i] = true;
            role = g->nodes[i]->placement.role;
            t->unit[i] = n++;
        }
        t->unit[g->n_nodes + (size_t)validation] = n++;
    }
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i]->timing.repeated_by) t->unit[i] = t->unit[g->nodes[i]->timing.repeated_by->index];
    free(placed);
}

static const gr_node *node_at(const gr_traffic *t, uint32_t i)
{
    return i < t->g->n_nodes ? t->g->nodes[i] : t->ends[i - t->g->n_nodes];
}

/* The node of a work; those of one node follow each other. */
static uint32_t owner_of(const gr_traffic *t, const gr_task *w, uint32_t last)
{
    uint32_t n = (uint32_t)t->g->n_nodes + (t->ends[1] ? 2 : 1);
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = (last + k) % n;
        if (!strcmp(node_at(t, i)->name, w->node)) return i;
    }
    return last;
}

/* ---- what crosses ----------------------------------------------------------------------------------------
 */

static void add(gr_traffic *t, transfer c)
{
    c.channel = (uint32_t)t->n;
    GR_PUSH(t->all, t->n, t->cap, c);
}

/* Where each object of the whole program is. */
typedef struct whereabouts {
    uint32_t *writer; /* of objects: the node that wrote it last; GR_NONE: none did */
    bool *there;      /* of objects and roles: it is there as it was written last */
} whereabouts;

/* What only the end of a path reads crosses before the role's last node: else who wrote it would wait for
 * that. */
static uint32_t unit_of_reader(const gr_traffic *t, uint32_t reader, uint32_t role)
{
    const gr_graph *g = t->g;
    uint32_t last = 0;
    if (reader < g->n_nodes) return t->unit[reader];
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i]->placement.role == role && (g->nodes[i]->timing.every != 0) == (reader > g->n_nodes))
            last = GR_MAX(last, t->unit[i]);
    return last;
}

static void read_column(gr_traffic *t, whereabouts *w, uint32_t object, uint32_t reader, uint32_t role)
{
    bool *here = &w->there[object * t->g->n_roles + role];
    if (w->writer[object] == GR_NONE || *here) return;
    const gr_node *from = node_at(t, w->writer[object]);
    bool early = t->order & GR_ORDER_WRITTEN;
    uint32_t written = t->unit[w->writer[object]] + 1;
    uint32_t before = early ? written : GR_MAX(written, unit_of_reader(t, reader, role));
    add(t, (transfer){.node = from,
                      .object = t->whole[0]->objects[object].name,
                      .from = from->placement.role,
                      .to = role,
                      .before = before});
    *here = true;
}

/* What is written everywhere is read where it was written: it has no one writer. */
static void write_column(const gr_traffic *t, whereabouts *w, uint32_t object, uint32_t writer)
{
    uint32_t role = node_at(t, writer)->placement.role;
    w->writer[object] = role == GR_NONE ? GR_NONE : writer;
    for (uint32_t c = 0; c < t->g->n_roles; c++)
        w->there[object * t->g->n_roles + c] = role == GR_NONE || role == c;
}

/* An object is where it was written, and wherever it was sent since. */
static void find_columns(gr_traffic *t)
{
    const gr_tasks *p = t->whole[0];
    uint32_t at = 0, roles = (uint32_t)t->g->n_roles;
    whereabouts where = {gr_malloc((p->n_objects + 1) * sizeof(uint32_t)),
                         gr_calloc(p->n_objects * roles + 1, sizeof(bool))};
    for (size_t o = 0; o < p->n_objects; o++) where.writer[o] = GR_NONE;
    for (size_t w = 0; w < p->n_tasks; w++) {
        at = owner_of(t, &p->task[w], at);
        uint32_t role = node_at(t, at)->placement.role;
        for (uint32_t u = 0; u < p->task[w].uses.n; u++) {
            const gr_use *use = &p->task[w].uses.list[u];
            if (use->object == GR_NONE || p->objects[use->object].span != GR_SPAN_TEMP) continue;
            for (uint32_t c = 0; c < roles && use->mode & GR_READ; c++)
                if (role == c || role == GR_NONE) read_column(t, &where, use->object, at, c);
            if (use->mode & GR_WRITE) write_column(t, &where, use->object, at);
        }
    }
    free(where.writer);
    free(where.there);
}

static void add_weights(gr_traffic *t, const gr_node *reader, uint32_t before, bool lagged)
{
    const gr_model *m = reader->model;
    transfer c = {.node = reader,
                  .model = m,
                  .lagged = lagged,
                  .from = m->update->placement.role,
                  .to = reader->placement.role,
                  .before = before};
    bool sync = c.from == c.to; /* all buckets are one declaration */
    for (uint32_t b = 0; b < (sync ? 1 : gr_model_buckets(&m->shape)); b++) {
        c.bucket = b;
        if (gr_bucket_is_trained(m, b)) add(t, c);
    }
}

static bool is_last_to_lag(const gr_graph *g, const gr_node *n)
{
    for (size_t i = n->index + 1; i < g->n_nodes; i++)
        if (gr_node_lags(g->nodes[i]) && g->nodes[i]->model == n->model &&
            g->nodes[i]->placement.role == n->placement.role)
            return false;
    return true;
}

/* A version is sent to a role once: to the first node there that reads it and is sure to run. */
static void find_weights(gr_traffic *t)
{
    const gr_graph *g = t->g;
    bool *current = gr_calloc(g->n_models * g->n_roles + 1, sizeof(*current));
    for (int validation = 0; validation < 2; validation++) {
        memset(current, 0, g->n_models * g->n_roles * sizeof(*current));
        for (size_t i = 0; i < g->n_nodes; i++) {
            const gr_node *n = g->nodes[i];
            if (!n->model || !n->model->update || (n->timing.every != 0) != validation) continue;
            bool *here = &current[n->model->index * g->n_roles];
            if (n->op->trains) {
                memset(here, 0, g->n_roles * sizeof(*here));
            } else if (gr_node_lags(n)) {
                bool late =
                    t->order & GR_ORDER_UPDATE && n->placement.role != n->model->update->placement.role;
                uint32_t before = late ? t->unit[n->model->update->index] : t->unit[i] + 1;
                if (is_last_to_lag(g, n)) add_weights(t, n, before, true);
            } else if (n->placement.role != n->model->update->placement.role && !here[n->placement.role]) {
                add_weights(t, n, t->unit[i], false);
                here[n->placement.role] = !gr_node_optional(g, n);
            }
        }
    }
    free(current);
}

static int by_unit(const void *a, const void *b)
{
    const transfer *x = a, *y = b;
    if (x->before != y->before) return x->before < y->before ? -1 : 1;
    return x->channel < y->channel ? -1 : 1;
}

gr_traffic *gr_traffic_new(const gr_graph *g, gr_node *const ends[2], const gr_tasks *const *whole,
                           const gr_hardware *hw, uint32_t order)
{
    gr_traffic *t = gr_calloc(1, sizeof(*t));
    *t = (gr_traffic){.g = g, .whole = whole, .hw = *hw, .ends = ends, .order = order};
    t->unit = gr_calloc(g->n_nodes + 2, sizeof(*t->unit));
    find_units(t);
    find_weights(t);
    if (g->n_roles > 1) find_columns(t);
    if (t->n) qsort(t->all, t->n, sizeof(*t->all), by_unit);
    for (size_t i = 0; i < t->n; i++) t->all[i].channel = (uint32_t)i;
    return t;
}

void gr_traffic_free(gr_traffic *t)
{
    if (!t) return;
    free(t->unit);
    free(t->all);
    free(t);
}

/* ---- declaring -------------------------------------------------------------------------------------------
 */

static gr_side side_of(const gr_traffic *t, uint32_t role)
{
    const gr_ranks_role *r = &t->g->roles[role];
    return (gr_side){r->n, r->hosts, r->first_host};
}

/* Of weights each rank that has a part of them sends it to each that receives; a column comes from one. */
static uint32_t messages_of(gr_side from, gr_side to, bool weights)
{
    return weights ? GR_MAX(from.ranks, to.ranks) : (to.ranks + from.ranks - 1) / from.ranks;
}

/* What weights are received into. */
static gr_model_part copy_of(const transfer *c)
{
    return c->lagged ? GR_PART_LAGGED : GR_PART_ROLLOUT;
}

static uint32_t object_of(const gr_traffic *t, const transfer *c, const gr_graph *view, gr_tasks *p,
                          const gr_kernels *k)
{
    bool sends = view->view == c->from;
    const gr_model *m = c->model ? view->models[c->model->index] : NULL;
    if (m && (sends || gr_model_has_lora(m))) return gr_model_object(p, k, m, gr_part_stepped(m), c->bucket);
    if (m) return gr_sharding_received(p, k, m, copy_of(c), c->bucket);
    const gr_tasks *whole = t->whole[view->view];
    return gr_tasks_object(p, &whole->objects[gr_tasks_find(whole, c->object)]);
}

/* Of all receiving ranks. */
static uint64_t bytes_of(const gr_traffic *t, const transfer *c, const gr_kernels *k)
{
    const gr_tasks *whole = t->whole[c->to];
    uint64_t bytes = c->model ? gr_part_bytes(k, c->model, gr_part_stepped(c->model), c->bucket)
                              : whole->objects[gr_tasks_find(whole, c->object)].bytes;
    return bytes * t->g->roles[c->to].n;
}

static void declare_transfer(const gr_traffic *t, const transfer *c, const gr_graph *view, gr_tasks *p,
                             const gr_kernels *k)
{
    bool sends = view->view == c->from;
    gr_tasks_node(p, c->node->name, GR_LANE_COMM, gr_node_optional(t->g, c->node));
    if (c->from == c->to) {
        gr_sharding_older(p, k, view->models[c->model->index]);
        return;
    }
    uint32_t o = object_of(t, c, view, p, k), peer = sends ? c->to : c->from;
    gr_task *w = gr_tasks_run(p, 0, c->bucket, (gr_use[]){{o, sends ? GR_READ : GR_WRITE}}, 1, "%s.%u.%s",
                              sends ? "to" : "from", peer, p->objects[o].name);
    w->kind = sends ? GR_STEP_SEND : GR_STEP_RECV;
    if (p->objects[o].place == GR_HOST) gr_tasks_waits(w);
    w->comm.moved = bytes_of(t, c, k);
    w->comm.peer = peer;
    w->comm.channel = c->channel;
    const gr_side from = side_of(t, c->from), to = side_of(t, c->to);
    w->comm.rate = gr_sides_rate(&t->hw, from, to);
    w->comm.messages_ns = gr_sides_ns(&t->hw, from, to, messages_of(from, to, c->model));
    if (!c->model || sends) return;
    gr_placed(p, c->model)->made = 0; /* of what was there before */
    if (!gr_model_has_lora(c->model))
        gr_sharding_cut(p, k, view->models[c->model->index], copy_of(c), c->bucket);
}

void gr_traffic_declare(const gr_traffic *t, const gr_graph *view, gr_tasks *p, const gr_kernels *k,
                        const gr_node *n, size_t *next)
{
    for (; t && *next < t->n && t->all[*next].before <= t->unit[n->index]; ++*next) {
        const transfer *c = &t->all[*next];
        if (c->from == view->view || c->to == view->view) declare_transfer(t, c, view, p, k);
    }
}

/* ---- plans of all roles ---------------------------------------------------------------------------------
 */

typedef struct runner { /* of one role */
    const gr_path *path;
    uint32_t at, iteration;
    uint64_t lane[GR_N_LANES];
    uint64_t *begin, *end; /* of steps, in the latest iteration */
    uint64_t *ready;       /* of sends and receives: when this side is there, then both */
    uint32_t *posted;      /* of these: the iterations in which they were come to; in which both sides were */
    uint32_t *met;
    gr_meeting *partner; /* of sends and receives */
    unsigned *lanes;     /* of loops: mask of the lanes that meet there */
    uint64_t *done;      /* [iterations]: when each ended */
} runner;

#define LATEST (1ULL << 60)         /* ns: files may say any time, sums must not overflow */
enum { WARM_UP = 4, MEASURED = 4 }; /* iterations: their time settles, or repeats after a few */

static uint64_t latest(const runner *r, unsigned lanes)
{
    uint64_t t = 0;
    for (int l = 0; l < GR_N_LANES; l++)
        if (lanes >> l & 1) t = GR_MAX(t, r->lane[l]);
    return t;
}

/* A send or recv begins when both sides have come to it, the second of which says so for both. */
static bool meet(runner *all, runner *r, uint64_t t)
{
    runner *peer = &all[r->partner[r->at].role];
    uint32_t step = r->partner[r->at].step;
    if (r->met[r->at] > r->iteration) return true;
    r->ready[r->at] = t;
    r->posted[r->at] = r->iteration + 1;
    if (peer->posted[step] <= r->iteration) return false;
    r->ready[r->at] = peer->ready[step] = GR_MAX(t, peer->ready[step]);
    r->met[r->at] = peer->met[step] = r->iteration + 1;
    return true;
}

/* The next step; false: its other side is not there yet. Loops are one step, their time is of all trips. */
static bool run_step(runner *all, runner *r)
{
    const gr_step *s = &r->path->steps[r->at];
    bool loop = s->kind == GR_STEP_LOOP, meets = s->kind == GR_STEP_SEND || s->kind == GR_STEP_RECV;
    uint64_t t = loop ? latest(r, r->lanes[r->at]) : r->lane[s->lane];
    for (uint32_t i = r->at; i <= (loop ? s->body_last : r->at); i++) /* and steps in it from outside */
        for (uint32_t k = 0; k < r->path->steps[i].n_after; k++)
            if (r->path->steps[i].after[k] < r->at) t = GR_MAX(t, r->end[r->path->steps[i].after[k]]);
    if (meets && !meet(all, r, t)) return false;
    r->begin[r->at] = t = meets ? r->ready[r->at] : t;
    t = GR_MIN(t + GR_MIN(s->ns, LATEST), LATEST);
    r->end[r->at] = r->lane[s->lane] = t;
    for (int l = 0; loop && l < GR_N_LANES; l++)
        if (r->lanes[r->at] >> l & 1) r->lane[l] = t;
    r->at = loop ? s->body_last + 1 : r->at + 1;
    return true;
}

/* Until it has to wait for another role. Returns whether it came on. */
static bool run_role(runner *all, runner *r)
{
    bool moved = false;
    while (r->iteration < WARM_UP + MEASURED && (r->at == r->path->n || run_step(all, r))) {
        moved = true;
        if (r->at < r->path->n) continue;
        uint64_t t = latest(r, ~0u);
        for (int l = 0; l < GR_N_LANES; l++) r->lane[l] = t;
        r->done[r->iteration++] = t;
        r->at = 0;
    }
    return moved;
}

static void runner_begin(runner *r, const gr_plan *p)
{
    r->path = &p->paths[GR_PATH_STEADY];
    r->begin = gr_calloc(r->path->n + 1, sizeof(*r->begin));
    r->end = gr_calloc(r->path->n + 1, sizeof(*r->end));
    r->ready = gr_calloc(r->path->n + 1, sizeof(*r->ready));
    r->posted = gr_calloc(r->path->n + 1, sizeof(*r->posted));
    r->met = gr_calloc(r->path->n + 1, sizeof(*r->met));
    r->partner = gr_calloc(r->path->n + 1, sizeof(*r->partner));
    r->lanes = gr_calloc(r->path->n + 1, sizeof(*r->lanes));
    r->done = gr_calloc(WARM_UP + MEASURED, sizeof(*r->done));
    for (uint32_t i = 0; i < r->path->n; i++)
        for (uint32_t k = i + 1; r->path->steps[i].kind == GR_STEP_LOOP && k <= r->path->steps[i].body_last;
             k++)
            r->lanes[i] |= 1u << r->path->steps[i].lane | 1u << r->path->steps[k].lane;
}

static void runner_end(runner *r)
{
    free(r->begin), free(r->end), free(r->ready), free(r->posted), free(r->met), free(r->partner),
        free(r->lanes), free(r->done);
}

static uint64_t ended(const runner *all, uint32_t n, uint32_t iteration)
{
    uint64_t t = 0;
    for (uint32_t c = 0; c < n; c++) t = GR_MAX(t, all[c].done[iteration]);
    return t;
}

static runner *run_all(const gr_plan *plan)
{
    uint32_t n = plan->n_more + 1;
    runner *all = gr_calloc(n, sizeof(*all));
    bool moved = true;
    for (uint32_t c = 0; c < n; c++) runner_begin(&all[c], gr_plan_role(plan, c));
    for (uint32_t c = 0; c < n; c++)
        for (uint32_t i = 0; i < all[c].path->n; i++) {
            const gr_step *s = &all[c].path->steps[i];
            if (s->kind != GR_STEP_RECV || s->meets.role >= n || s->meets.step >= all[s->meets.role].path->n)
                continue;
            all[c].partner[i] = s->meets;
            all[s->meets.role].partner[s->meets.step] = (gr_meeting){c, i};
        }
    while (moved) {
        moved = false;
        for (uint32_t c = 0; c < n; c++) moved = run_role(all, &all[c]) || moved;
    }
    return all;
}

static void free_all(runner *all, uint32_t n)
{
    for (uint32_t c = 0; c < n; c++) runner_end(&all[c]);
    free(all);
}

uint64_t gr_roles_ns(const gr_plan *plan)
{
    runner *all = run_all(plan);
    uint32_t n = plan->n_more + 1;
    uint64_t t = ended(all, n, WARM_UP + MEASURED - 1) - ended(all, n, WARM_UP - 1);
    free_all(all, n);
    return t / MEASURED;
}

uint64_t gr_roles_times(const gr_plan *plan, uint32_t role, uint64_t *begin, uint64_t *end)
{
    runner *all = run_all(plan);
    uint32_t n = plan->n_more + 1, last = WARM_UP + MEASURED - 1;
    uint64_t first = UINT64_MAX;
    for (uint32_t c = 0; c < n; c++) first = GR_MIN(first, all[c].done[last - 1]);
    for (uint32_t i = 0; i < all[role].path->n; i++) {
        begin[i] = all[role].begin[i] > first ? all[role].begin[i] - first : 0;
        end[i] = all[role].end[i] > first ? all[role].end[i] - first : 0;
    }
    uint64_t ns = ended(all, n, last);
    ns = ns > first ? ns - first : 0;
    free_all(all, n);
    return ns;
}

/* The steps of the sends, by channel: work steps are the program's task in order. */
static void find_sends(const gr_plan *p, const gr_tasks *g, uint32_t role, gr_meeting *send)
{
    uint32_t next = 0, n = gr_plan_steps(p), n_steady = p->paths[GR_PATH_STEADY].n;
    for (uint32_t i = 0; i < n; i++) {
        const gr_step *s = gr_plan_step(p, i);
        if (!gr_step_is_task(s->kind)) continue;
        const gr_task *w = &g->task[next++];
        if (s->kind == GR_STEP_SEND)
            send[w->comm.channel] = (gr_meeting){role, i < n_steady ? i : i - n_steady};
    }
}

static void set_meetings(gr_plan *p, const gr_tasks *g, const gr_meeting *send)
{
    uint32_t next = 0, n = gr_plan_steps(p);
    for (uint32_t i = 0; i < n; i++) {
        gr_step *s = (gr_step *)(uintptr_t)gr_plan_step(p, i);
        if (!gr_step_is_task(s->kind)) continue;
        const gr_task *w = &g->task[next++];
        if (s->kind == GR_STEP_RECV) s->meets = send[w->comm.channel];
    }
}

void gr_roles_link(gr_plan *plan, const gr_tasks *const *tasks)
{
    uint32_t n = plan->n_more + 1;
    size_t channels = 0;
    for (uint32_t c = 0; c < n; c++)
        for (size_t w = 0; w < tasks[c]->n_tasks; w++)
            if (tasks[c]->task[w].comm.peer != GR_NONE)
                channels = GR_MAX(channels, (size_t)tasks[c]->task[w].comm.channel + 1);
    gr_meeting *send = gr_calloc(channels + 1, sizeof(*send));
    for (uint32_t c = 0; c < n; c++) find_sends(gr_plan_role(plan, c), tasks[c], c, send);
    for (uint32_t c = 0; c < n; c++) set_meetings(gr_plan_role(plan, c), tasks[c], send);
    free(send);
    uint64_t ns = gr_roles_ns(plan);
    for (uint32_t c = 0; c < n; c++) gr_plan_role(plan, c)->ns = ns;
}
