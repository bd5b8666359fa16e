/* scheduler/search/transfers.c: loads, offloads and releases of a residency, and how early each may stand. */
#include "scheduler/search/transfers_parts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A step to be put before a unit of work (slot 2 w), or after it (2 w + 1). Steps at one slot: those after
 * the innermost unit first; what comes in the order it is used first; then in the order they were made. */
typedef struct gr_insert {
    uint32_t slot, deep, use;
    gr_item item;
} gr_insert;

typedef struct segment {
    uint32_t object, scope, first, last; /* units of the scope */
    const char *node;
    bool optional, dirty, load, dead; /* written; contents needed at its begin; not needed after its end */
    bool apart;                       /* begins with its first use, never sooner, and holds one node only */
    bool stays;                       /* to the last use before something ends it */
} segment;

typedef struct maker {
    gr_transfers *l;
    const gr_analysis *f;
    const gr_tasks *g;
    const gr_choice *choice;
    uint32_t ahead; /* units of work, 0 or 1 */
} maker;

static uint32_t next_unit(const gr_tasks *g, uint32_t unit)
{
    return (g->task[unit].loop.body_last == GR_NONE ? unit : g->task[unit].loop.body_last) + 1;
}

static bool is_loop(const gr_tasks *g, uint32_t work)
{
    return g->task[work].loop.body_last != GR_NONE;
}

static uint32_t add_copy(gr_transfers *l, uint32_t object, gr_place place, uint32_t first, uint32_t last)
{
    gr_copy d = {object, place, first, last, 0};
    GR_PUSH(l->copies, l->n_copies, l->caps[1], d);
    return l->n_copies - 1;
}

/* use: the unit that what comes is for; of others 0. */
static void insert(maker *m, bool after, uint32_t unit, uint32_t use, gr_item item)
{
    bool ends = item.kind == GR_STEP_OFFLOAD || item.kind == GR_STEP_RELEASE;
    uint32_t slot = 2 * (after ? next_unit(m->g, unit) - 1 : unit) + after;
    uint32_t deep = after ? 15 - m->f->depth[unit] : ends ? 14 : 15; /* what goes makes room for what comes */
    gr_insert in = {slot, deep, use, item};
    GR_PUSH(m->l->inserts, m->l->n_inserts, m->l->caps[2], in);
}

/* Before which unit a load for one stands: the one before it, if not before `busy`, up to where the object's
 * last copy is still used. */
static uint32_t begin_ahead(const maker *m, uint32_t unit, uint32_t busy)
{
    uint32_t before = m->ahead ? m->f->prev[unit] : GR_NONE;
    return before == GR_NONE || (busy != GR_NONE && before < busy) ? unit : before;
}

/* The steps that bring a segment in and end it. busy: works before this one still use the object. */
static void emit(maker *m, const segment *s, uint32_t home, uint32_t busy)
{
    gr_item it = {.work = GR_NONE,
                  .object = s->object,
                  .entry = add_copy(m->l, s->object, GR_DEVICE, 0, 0),
                  .home = home,
                  .scope = s->scope,
                  .body_last = GR_NONE,
                  .node = s->node,
                  .optional = s->optional};
    it.kind = s->load ? GR_STEP_LOAD : GR_STEP_RESUME;
    it.lane = s->load ? GR_LANE_H2D : GR_LANE_COMPUTE;
    insert(m, false, s->load && !s->apart ? begin_ahead(m, s->first, busy) : s->first, s->first, it);
    bool offload = s->dirty && !s->dead;
    it.kind = offload ? GR_STEP_OFFLOAD : GR_STEP_RELEASE;
    it.lane = offload ? GR_LANE_D2H : GR_LANE_COMPUTE;
    insert(m, true, s->last, 0, it);
    m->l->n_transitions += 2;
}

/* Whether a work is sure to run whenever steps of that node in that scope do. */
static bool is_sure(const maker *m, uint32_t work, uint32_t scope, const char *node, bool optional)
{
    const gr_task *w = &m->g->task[work];
    if (w->optional && !(optional && !strcmp(w->node, node))) return false;
    for (uint32_t l = m->f->parent[work]; l != scope; l = m->f->parent[l])
        if (m->g->task[l].loop.agreed) return false;
    return true;
}

/* Whether a use of a unit of a scope joins the segment. */
static bool joins(const maker *m, const segment *s, uint32_t scope, uint32_t unit, bool stream,
                  uint32_t ref_work)
{
    const gr_task *w = &m->g->task[ref_work];
    uint32_t steady = gr_tasks_steady(m->g);
    if (s->scope != scope || (s->last < steady) != (unit < steady)) return false;
    if (s->optional && w->optional && strcmp(s->node, w->node)) return false;
    if (unit == s->last) return true;
    if (s->apart) return m->f->node[s->last] == m->f->node[unit];
    if (s->stays || (!stream && m->f->node[s->last] == m->f->node[unit])) return true;
    uint32_t next = next_unit(m->g, s->last);
    if (next == unit) return true;
    return m->ahead && !is_loop(m->g, next) && next_unit(m->g, next) == unit;
}

static bool inside(const gr_tasks *g, uint32_t loop, uint32_t work)
{
    return work > loop && work <= g->task[loop].loop.body_last;
}

/* Returns the work from which on the object may come again. */
static uint32_t finish(maker *m, segment *s, uint32_t home, uint32_t busy, uint32_t end)
{
    /* A scratch object's contents die after its last use, but in a loop the next trip may want them. */
    const gr_span span = m->g->objects[s->object].span;
    if (span == GR_SPAN_SCRATCH && s->scope == GR_NONE && end != GR_NONE && next_unit(m->g, s->last) > end)
        s->dead = true;
    const uint32_t last = m->f->last[s->object];
    if (span == GR_SPAN_SPILL && end != GR_NONE && last != GR_NONE && !inside(m->g, last, end))
        s->dead = true;
    emit(m, s, home, busy);
    return next_unit(m->g, s->last);
}

/* The innermost loop around a use of an object in which the object is used on the host, too. */
static uint32_t host_scope(const maker *m, uint32_t o, uint32_t work)
{
    const gr_analysis *f = m->f;
    uint32_t loop = m->l->meets[o] ? f->parent[work] : GR_NONE;
    for (; loop != GR_NONE; loop = f->parent[loop])
        for (uint32_t r = f->begin[o]; r < f->begin[o + 1]; r++)
            if (m->l->moved[f->refs[r].work] && inside(m->g, loop, f->refs[r].work)) return loop;
    return GR_NONE;
}

static uint32_t unit_in(const gr_analysis *f, uint32_t scope, uint32_t work)
{
    while (f->parent[work] != scope) work = f->parent[work];
    return work;
}

/* Segments of an object that has a home in the host pool. stays: only what is done on the host ends one. */
static void come_and_go(maker *m, uint32_t o, uint64_t stream_nodes, bool stays)
{
    const gr_analysis *f = m->f;
    bool apart = m->choice[f->group[o]].policy == GR_POLICY_EVERY_NODE;
    uint32_t home = add_copy(m->l, o, GR_HOST, 0, GR_NONE), busy = GR_NONE;
    if (m->g->objects[o].span == GR_SPAN_KEEP) m->l->home[o] = home;
    m->l->hosted[o] = home;
    segment s = {.object = GR_NONE};
    for (uint32_t r = f->begin[o]; r < f->begin[o + 1]; r++) {
        uint32_t work = f->refs[r].work;
        if (m->l->moved[work]) {
            if (s.object != GR_NONE) finish(m, &s, home, busy, GR_NONE);
            s.object = GR_NONE;
            busy = work + 1;
            continue;
        }
        bool stream = stream_nodes >> GR_MIN(f->node[work], 63) & 1;
        uint32_t scope = stream ? f->parent[work] : host_scope(m, o, work), unit = unit_in(f, scope, work);
        const gr_task *w = &m->g->task[work];
        if (s.object == GR_NONE || !joins(m, &s, scope, unit, stream, work)) {
            if (s.object != GR_NONE) busy = finish(m, &s, home, busy, GR_NONE);
            s = (segment){o, scope, unit, unit, w->node, w->optional, false, true, false, apart, stays};
            s.load = f->refs[r].mode != GR_WRITE || !is_sure(m, work, scope, w->node, w->optional);
        } else if (s.optional && !w->optional) {
            s.load = true; /* the write that came first may be skipped now */
            s.optional = false;
            s.node = w->node;
        }
        s.last = unit;
        s.dirty |= (f->refs[r].mode & GR_WRITE) != 0;
    }
    if (s.object != GR_NONE) finish(m, &s, home, busy, f->refs[f->begin[o + 1] - 1].work);
}

/* A scratch object that is on the device from its first use to its last. */
static void resume_once(maker *m, uint32_t o)
{
    const gr_analysis *f = m->f;
    uint32_t first = f->first[o], last = f->last[o], scope = f->parent[first];
    if (last < first) { /* to the end of the body around its uses */
        scope = last;
        last = m->g->task[scope].loop.body_last;
    }
    while (scope != GR_NONE && m->g->task[scope].loop.body_last < last) scope = f->parent[scope];
    while (f->parent[first] != scope) first = f->parent[first];
    while (f->parent[last] != scope) last = f->parent[last];
    segment s = {o, scope, first, last, m->g->task[first].node, true, false, false, true, true, false};
    for (uint32_t r = f->begin[o]; r < f->begin[o + 1]; r++) {
        const gr_task *w = &m->g->task[f->refs[r].work];
        if (!w->optional || strcmp(w->node, s.node)) s.optional = false;
        if (!w->optional) s.node = w->node;
    }
    if (!s.optional && m->g->task[first].optional) s.node = NULL;
    emit(m, &s, GR_NONE, GR_NONE);
}

/* ---- at the transition to a rollout -------------------------------------------------------------------- */

/* What lies between two rollouts that do not use an object. */
typedef struct zone {
    uint32_t first; /* unit of its first use; GR_NONE: there is none */
    bool dirty;
} zone;

/* Of a rollout within a loop, such as the rounds of a select, all of that counts: weights that each round is
 * filled from are used in it. */
static bool uses_rollout(const gr_analysis *f, uint32_t o, uint32_t rollout)
{
    const uint32_t unit = f->rollouts[rollout];
    for (uint32_t r = f->begin[o]; r < f->begin[o + 1]; r++) {
        const uint32_t work = f->refs[r].work;
        if (f->top[work] == unit || (f->g->task[work].rollout && f->node[work] == f->node[unit])) return true;
    }
    return false;
}

/* The rollouts during which an object is in nobody's way. */
static uint32_t idle_rollouts(const gr_analysis *f, uint32_t o, uint32_t *unit)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n_rollouts; i++) {
        if (uses_rollout(f, o, i)) continue;
        if (unit) unit[n] = f->rollouts[i];
        n++;
    }
    return n;
}

static bool find_zones(const gr_analysis *f, uint32_t o, const uint32_t *idle, uint32_t n, zone *z)
{
    bool dirty = false;
    for (uint32_t i = 0; i <= n; i++) z[i] = (zone){GR_NONE, false};
    uint32_t steady = gr_tasks_steady(f->g);
    for (uint32_t r = f->begin[o], at = 0; r < f->begin[o + 1] && f->refs[r].work < steady; r++) {
        uint32_t unit = f->top[f->refs[r].work];
        while (at < n && idle[at] < unit) at++;
        if (z[at].first == GR_NONE) z[at].first = unit;
        z[at].dirty |= (f->refs[r].mode & GR_WRITE) != 0;
        dirty |= z[at].dirty;
    }
    return dirty;
}

/* Load an object before a unit, and move it off before another (GR_NONE: at the path's end). Returns its
 * entry. */
static uint32_t stay(maker *m, uint32_t o, uint32_t home, uint32_t from, uint32_t until, bool dirty)
{
    const gr_analysis *f = m->f;
    const gr_task *w = &m->g->task[from];
    gr_item it = {.kind = GR_STEP_LOAD,
                  .work = GR_NONE,
                  .object = o,
                  .entry = add_copy(m->l, o, GR_DEVICE, 0, 0),
                  .home = home,
                  .scope = GR_NONE,
                  .body_last = GR_NONE,
                  .lane = GR_LANE_H2D,
                  .node = w->optional ? NULL : w->node};
    insert(m, false, from, from, it);
    it.kind = dirty ? GR_STEP_OFFLOAD : GR_STEP_RELEASE;
    it.lane = dirty ? GR_LANE_D2H : GR_LANE_COMPUTE;
    it.node = until == GR_NONE ? NULL : m->g->task[until].node;
    uint32_t steady = gr_tasks_steady(m->g), last = (from < steady ? steady : (uint32_t)m->g->n_tasks) - 1;
    insert(m, until == GR_NONE, until == GR_NONE ? f->top[last] : until, 0, it);
    m->l->n_transitions += 2;
    return it.entry;
}

/* What a validation uses of it, where it does not stay on the device between iterations. */
static void stay_for_validation(maker *m, uint32_t o, uint32_t home)
{
    const gr_analysis *f = m->f;
    uint32_t first = GR_NONE, steady = gr_tasks_steady(m->g);
    bool dirty = false;
    for (uint32_t r = f->begin[o]; r < f->begin[o + 1]; r++) {
        if (f->refs[r].work < steady) continue;
        if (first == GR_NONE) first = f->top[f->refs[r].work];
        dirty |= (f->refs[r].mode & GR_WRITE) != 0;
    }
    if (first != GR_NONE) stay(m, o, home, first, GR_NONE, dirty);
}

/* Policy `transition`. Returns the entry that holds the object when an iteration begins; GR_NONE: the host's.
 */
static uint32_t stay_between(maker *m, uint32_t o)
{
    const gr_analysis *f = m->f;
    uint32_t *idle = gr_malloc((f->n_rollouts + 1) * sizeof(*idle)), n = idle_rollouts(f, o, idle);
    zone *z = gr_malloc((n + 1) * sizeof(*z));
    bool wraps = find_zones(f, o, idle, n, z) && z[n].first != GR_NONE;
    uint32_t home = add_copy(m->l, o, GR_HOST, 0, GR_NONE), held = GR_NONE;
    if (wraps) held = stay(m, o, home, z[n].first, idle[0], true);
    for (uint32_t i = wraps; i < n + !wraps; i++)
        if (z[i].first != GR_NONE) stay(m, o, home, z[i].first, i < n ? idle[i] : GR_NONE, z[i].dirty);
    if (!wraps) stay_for_validation(m, o, home);
    m->l->home[o] = wraps ? held : home;
    free(idle);
    free(z);
    return held;
}

/* What may wait in the host pool from one use to another does not where only the node's uses together would
 * be a segment. */
static bool is_never_away(const maker *m, uint32_t o)
{
    const gr_choice *c = &m->choice[m->f->group[o]];
    return c->policy || !(c->stream & m->f->groups[m->f->group[o]].nodes);
}

static bool resident(const maker *m, uint32_t o)
{
    const gr_analysis *f = m->f;
    if (f->group[o] == GR_NONE) return true;
    if (m->g->objects[o].span == GR_SPAN_SPILL && is_never_away(m, o)) return true;
    bool scratch = m->g->objects[o].span == GR_SPAN_SCRATCH;
    /* where the host lane uses it to the end, there is no step to release it at */
    if (scratch && f->last[o] == GR_NONE) return true;
    gr_policy policy = m->choice[f->group[o]].policy;
    if (policy == GR_POLICY_TRANSITION && !scratch) return !idle_rollouts(f, o, NULL);
    if (policy != GR_POLICY_AUTO) return policy == GR_POLICY_KEEP;
    uint32_t n = f->groups[f->group[o]].n_objects;
    return n - f->rank[o] <= n * m->choice[f->group[o]].parts / GR_PARTS;
}

/* Which works are done on the host lane instead of their own, and the objects they use there. */
static void find_moved(maker *m)
{
    const gr_analysis *f = m->f;
    gr_transfers *l = m->l;
    memset(l->moved, 0, m->g->n_tasks);
    memset(l->meets, 0, m->g->n_objects);
    for (uint32_t w = 0; f->n_movable && w < m->g->n_tasks; w++) {
        const gr_task *k = &m->g->task[w];
        uint32_t o = k->uses.host_with;
        l->moved[w] = o != GR_NONE && m->choice[f->group[o]].host && !resident(m, o);
        for (uint32_t u = 0; l->moved[w] && u < k->uses.n; u++)
            if (k->uses.list[u].object != GR_NONE &&
                !gr_span_is_brief(m->g->objects[k->uses.list[u].object].span))
                l->meets[k->uses.list[u].object] = true;
    }
}

/* An object that works on the host lane use, too. Its own ones are done there all. */
static void place_met(maker *m, uint32_t o)
{
    const gr_choice *c = &m->choice[m->f->group[o]];
    if (m->f->groups[m->f->group[o]].may_host && c->host) {
        m->l->home[o] = m->l->hosted[o] = add_copy(m->l, o, GR_HOST, 0, GR_NONE);
        return;
    }
    bool stays = c->policy == GR_POLICY_TRANSITION || resident(m, o);
    come_and_go(m, o, stays || c->policy ? 0 : c->stream & m->f->groups[m->f->group[o]].nodes, stays);
}

/* Entries of what stays; steps of what comes and goes. Lifetimes are in works until number() turns them. */
static void place_objects(maker *m, uint32_t *fixed)
{
    for (uint32_t o = 0; o < m->g->n_objects; o++) {
        const gr_object *ob = &m->g->objects[o];
        fixed[o] = m->l->home[o] = m->l->hosted[o] = GR_NONE;
        if (ob->span != GR_SPAN_KEEP && m->f->begin[o] == m->f->begin[o + 1]) continue;
        if (m->l->meets[o] && ob->place == GR_DEVICE) {
            place_met(m, o);
        } else if (!resident(m, o)) {
            const gr_choice *c = &m->choice[m->f->group[o]];
            uint64_t stream = c->policy ? 0 : c->stream & m->f->groups[m->f->group[o]].nodes;
            if (c->policy == GR_POLICY_TRANSITION && ob->span == GR_SPAN_KEEP)
                fixed[o] = stay_between(m, o);
            else if (ob->span == GR_SPAN_SCRATCH && !stream)
                resume_once(m, o);
            else
                come_and_go(m, o, stream, false);
        } else {
            bool whole = !gr_span_is_brief(ob->span);
            fixed[o] =
                add_copy(m->l, o, ob->place, whole ? 0 : m->f->first[o], whole ? GR_NONE : m->f->last[o]);
            if (ob->span == GR_SPAN_KEEP) m->l->home[o] = fixed[o];
        }
    }
}

static bool is_behind(const gr_insert *x, const gr_insert *y)
{
    if (x->slot != y->slot) return x->slot > y->slot;
    return x->deep != y->deep ? x->deep > y->deep : x->use > y->use;
}

/* The order of the steps to be put in, which the caller frees: counted by slot, of which nearly all have a
 * few or what is in order. */
static uint32_t *order_inserts(const maker *m)
{
    const gr_transfers *l = m->l;
    uint32_t *order = gr_malloc((l->n_inserts + 1) * sizeof(*order)),
             *begin = gr_calloc(2 * m->g->n_tasks + 2, sizeof(*begin));
    for (uint32_t i = 0; i < l->n_inserts; i++) begin[l->inserts[i].slot + 1]++;
    for (size_t s = 0; s < 2 * m->g->n_tasks; s++) begin[s + 1] += begin[s];
    for (uint32_t i = 0; i < l->n_inserts; i++) order[begin[l->inserts[i].slot]++] = i;
    for (uint32_t i = 1; i < l->n_inserts; i++) {
        const uint32_t x = order[i];
        uint32_t k = i;
        for (; k && is_behind(&l->inserts[order[k - 1]], &l->inserts[x]); k--) order[k] = order[k - 1];
        order[k] = x;
    }
    free(begin);
    return order;
}

void gr_transfers_close_loops(gr_transfers *l, const gr_analysis *f)
{
    for (uint32_t w = 0; w < f->g->n_tasks; w++) l->lanes[w] = 1u << GR_LANE_COMPUTE;
    for (uint32_t i = 0; i < l->n_items; i++) {
        const uint32_t s = l->items[i].scope;
        if (s == GR_NONE) continue;
        l->items[l->step_of[s]].body_last = i;
        l->lanes[s] |= 1u << l->items[i].lane;
    }
    for (uint32_t w = (uint32_t)f->g->n_tasks; w-- > 0;) { /* inner loops first: they are behind outer ones */
        const uint32_t s = f->parent[w];
        if (s == GR_NONE || f->g->task[w].loop.body_last == GR_NONE) continue;
        gr_item *outer = &l->items[l->step_of[s]];
        outer->body_last = GR_MAX(outer->body_last, l->items[l->step_of[w]].body_last);
        l->lanes[s] |= l->lanes[w];
    }
}

/* All steps in order: works with the transitions around them. */
static void merge(maker *m)
{
    gr_transfers *l = m->l;
    const uint32_t n_tasks = (uint32_t)m->g->n_tasks, steady = gr_tasks_steady(m->g);
    uint32_t *order = order_inserts(m), at = 0;
    if (l->caps[0] < n_tasks + l->n_inserts) {
        l->caps[0] = n_tasks + 2 * l->n_inserts;
        l->items = gr_realloc(l->items, l->caps[0] * sizeof(*l->items));
    }
    for (uint32_t w = 0; w <= n_tasks; w++) {
        while (at < l->n_inserts && l->inserts[order[at]].slot < 2 * w)
            l->items[l->n_items++] = l->inserts[order[at++]].item;
        if (w == steady) l->validate = l->n_items;
        while (at < l->n_inserts && l->inserts[order[at]].slot == 2 * w)
            l->items[l->n_items++] = l->inserts[order[at++]].item;
        if (w == n_tasks) break;
        gr_item *it = &l->items[l->n_items];
        l->step_of[w] = l->n_items++;
        *it = m->f->steps[w];
        if (!l->moved[w]) continue;
        it->lane = GR_LANE_HOST;
        it->ns = m->f->host_ns[w];
    }
    free(order);
    gr_transfers_close_loops(l, m->f);
}

/* Whether an object that does not live on is used by the path validate. */
static bool on_validate(const maker *m, uint32_t o)
{
    const gr_analysis *f = m->f;
    return f->begin[o] < f->begin[o + 1] && f->refs[f->begin[o]].work >= gr_tasks_steady(m->g);
}

/* Lifetimes in steps, and the entry of each use. current: of objects, the entry that stands for it now. */
static void number(maker *m, uint32_t *current)
{
    gr_transfers *l = m->l;
    for (uint32_t d = 0; d < l->n_copies; d++) {
        gr_copy *e = &l->copies[d];
        gr_span span = m->g->objects[e->object].span;
        bool temp = span == GR_SPAN_TEMP || (span == GR_SPAN_SPILL && e->place == GR_DEVICE),
             validates = span != GR_SPAN_KEEP && on_validate(m, e->object);
        if (temp) e->first = l->step_of[e->first];
        if (e->last == GR_NONE) { /* to the end: of the path that uses it, or for ever */
            if (validates && !temp) e->first = l->validate;
            e->last = (span == GR_SPAN_KEEP || validates ? l->n_items : l->validate) - 1;
        } else if (temp) {
            const gr_item *end = &l->items[l->step_of[e->last]];
            e->last = end->kind == GR_STEP_LOOP ? end->body_last : l->step_of[e->last];
        }
    }
    for (uint32_t i = 0; i < l->n_items; i++) {
        const gr_item *it = &l->items[i];
        if (it->kind == GR_STEP_LOAD || it->kind == GR_STEP_RESUME) {
            current[it->object] = it->entry;
            l->copies[it->entry].first = i;
        } else if (it->kind == GR_STEP_OFFLOAD || it->kind == GR_STEP_RELEASE) {
            l->copies[it->entry].last = i;
        } else {
            const bool moved = l->moved[it->work];
            for (uint32_t u = m->f->use_begin[it->work]; u < m->f->use_begin[it->work + 1]; u++) {
                const uint32_t o = m->f->used[u];
                const bool host = o != GR_NONE && moved && l->hosted[o] != GR_NONE;
                l->use_entry[u] = o == GR_NONE ? GR_NONE : host ? l->hosted[o] : current[o];
            }
        }
    }
}

uint64_t *gr_transfers_live(const gr_transfers *l, const gr_analysis *f, gr_place place)
{
    uint64_t *live = gr_calloc(l->n_items + 1, sizeof(*live)); /* first changes, then their sums */
    for (uint32_t d = 0; d < l->n_copies; d++) {
        uint64_t bytes = f->g->objects[l->copies[d].object].bytes;
        if (l->copies[d].place != place) continue;
        if (l->copies[d].last < l->copies[d].first) live[0] += bytes;
        live[l->copies[d].first] += bytes;
        live[l->copies[d].last + 1] -= bytes;
    }
    for (uint32_t i = 1; i < l->n_items; i++) live[i] += live[i - 1];
    return live;
}

static uint64_t most_live(const maker *m, gr_place place)
{
    uint64_t *live = gr_transfers_live(m->l, m->f, place), most = 0;
    for (uint32_t i = 0; i < m->l->n_items; i++) most = GR_MAX(most, live[i]);
    free(live);
    return most;
}

/* ---- loads as early as there is room ---------------------------------------------------------------------
 */

typedef struct hoist {
    const maker *m;
    uint64_t *live, most; /* [n_items] bytes on the device as loads are placed so far; as much as may be */
    uint32_t *to;         /* [n_items] the step that it comes to stand before; its own number: it stays */
    uint32_t *run;    /* [n_items] the first of those before it in its scope with nothing between that is more
                         than a matter of room, order and objects; itself, where it is more */
    uint32_t *latest; /* [n_objects] 1 + the last transition of each so far; 0: none */
    bool *plain;      /* [n_items] of loops: nothing comes or goes inside; live is the most in them then */
    bool moved;
    uint64_t looked; /* at so many steps */
} hoist;

static bool is_moved(const gr_transfers *l, const gr_item *it)
{
    return it->work != GR_NONE && l->moved[it->work];
}

static void find_runs(hoist *h)
{
    const gr_transfers *l = h->m->l;
    for (uint32_t i = 0; i < l->n_items; i++) {
        const gr_item *it = &l->items[i];
        const bool alone = it->kind != GR_STEP_LOOP && it->kind != GR_STEP_FETCH && !is_moved(l, it);
        const bool goes_on = i && alone && h->run[i - 1] <= i - 1 && it->scope == l->items[i - 1].scope;
        h->run[i] = goes_on ? h->run[i - 1] : alone ? i : i + 1;
    }
}

/* Items at once, then inner loops into outer ones, which stand before them. */
static void find_plain_loops(hoist *h)
{
    const gr_transfers *l = h->m->l;
    for (uint32_t i = 0; i < l->n_items; i++) h->plain[i] = l->items[i].kind == GR_STEP_LOOP;
    for (uint32_t i = l->n_items; i-- > 0;) {
        const gr_item *it = &l->items[i];
        if (it->scope == GR_NONE) continue;
        const uint32_t loop = l->step_of[it->scope];
        if (it->kind == GR_STEP_LOOP ? !h->plain[i] : it->work == GR_NONE || is_moved(l, it))
            h->plain[loop] = false;
    }
    for (uint32_t i = l->n_items; i-- > 0;) {
        const uint32_t w = l->items[i].scope, loop = w == GR_NONE ? 0 : l->step_of[w];
        if (w != GR_NONE && h->plain[loop]) h->live[loop] = GR_MAX(h->live[loop], h->live[i]);
    }
}

/* Whether a load may stand before this step: it has room, no load that is needed sooner is behind it, and it
 * finds its object where it was. first: of the steps that it passes together with this one. */
static bool passes(const hoist *h, const gr_item *load, uint32_t i, uint32_t first)
{
    const gr_transfers *l = h->m->l;
    const gr_item *it = &l->items[i];
    if (h->live[i] + h->m->g->objects[load->object].bytes > h->most || it->object == load->object)
        return false;
    if (it->kind == GR_STEP_LOAD && h->to[i] >= first) return false;
    /* the next fetch is to run beside it, into other bytes */
    if (it->kind == GR_STEP_FETCH && l->staged[load->object] != GR_NONE) return false;
    if (!is_moved(l, it)) return true;
    const gr_task *w = &h->m->g->task[it->work];
    for (uint32_t u = 0; u < w->uses.n; u++)
        if (w->uses.list[u].object == load->object) return false;
    return true;
}

/* As far up among those before it as it passes one by one at a glance: through its run, not past a transition
 * of its object or the limit, which a load stays at that has not moved itself, and while there is room. */
static uint32_t pass_run(hoist *h, const gr_item *load, uint32_t to, uint32_t limit)
{
    const gr_transfers *l = h->m->l;
    const uint64_t bytes = h->m->g->objects[load->object].bytes;
    const bool held = l->items[limit].kind == GR_STEP_LOAD && h->to[limit] == limit;
    uint32_t end = GR_MAX(GR_MAX(h->run[to - 1], h->latest[load->object]), limit + held);
    if (l->items[to - 1].scope != load->scope || bytes > h->most) return to;
    const uint64_t room = h->most - bytes;
    const uint32_t from = to;
    while (to > end && h->live[to - 1] <= room) h->live[--to] += bytes;
    h->looked += 2 * (uint64_t)(from - to);
    return to;
}

/* A load moves up within its scope, past whole loops, not past `limit`. */
static void hoist_load(hoist *h, uint32_t at, uint32_t limit)
{
    const gr_transfers *l = h->m->l;
    const gr_item *load = &l->items[at];
    const uint64_t bytes = h->m->g->objects[load->object].bytes;
    uint32_t own = load->scope == GR_NONE ? GR_NONE : l->step_of[load->scope], to = at;
    while (to > limit && to - 1 != own) {
        const uint32_t before = to;
        to = pass_run(h, load, to, limit);
        if (to < before) continue;
        uint32_t first = to - 1;
        while (l->items[first].scope != load->scope) first = l->step_of[l->items[first].scope];
        uint32_t end = h->plain[first] ? first + 1 : to, i = end;
        while (i > first && passes(h, load, i - 1, first)) i--;
        h->looked += end - i + 1;
        if (i > first || first < limit) break;
        for (; i < end; i++) h->live[i] += bytes;
        to = first;
    }
    h->moved |= to < at;
    h->to[at] = to;
}

/* Put the steps in their new order. */
static void reorder(maker *m, const uint32_t *to)
{
    gr_transfers *l = m->l;
    uint32_t n = l->n_items, next = 0, at = 0;
    uint32_t *place = gr_malloc((n + 1) * sizeof(*place));
    gr_item *was = gr_malloc((n + 1) * sizeof(*was));
    memcpy(was, l->items, n * sizeof(*was));
    for (uint32_t i = 0; i < n; i++) { /* those that move keep their order, and never pass each other */
        for (next = GR_MAX(next, i); next < n && (to[next] == next || to[next] <= i); next++)
            if (to[next] < next) place[next] = at++;
        if (to[i] == i) place[i] = at++;
    }
    for (uint32_t i = 0; i < n; i++) l->items[place[i]] = was[i];
    for (uint32_t i = 0; i < n; i++)
        if (was[i].work != GR_NONE) l->step_of[was[i].work] = place[i];
    for (uint32_t d = 0; d < l->n_copies; d++) {
        uint32_t first = l->copies[d].first; /* what a path begins with, it still does */
        bool begins = (first == 0 || first == l->validate) && was[first].entry != d;
        l->copies[d].first = begins ? first : place[first];
        l->copies[d].last = place[l->copies[d].last];
    }
    free(place);
    free(was);
    gr_transfers_close_loops(l, m->f);
}

/* Loads whose time is the planner's choice move up as far as they can without more than so many bytes live
 * anywhere; in the order in which they are needed, one after another. Returns whether any moved. */
static bool hoist_loads(maker *m, uint64_t most)
{
    gr_transfers *l = m->l;
    if (!l->n_transitions) return false;
    hoist h = {.m = m, .most = most, .live = gr_transfers_live(l, m->f, GR_DEVICE)};
    h.to = gr_malloc((l->n_items + 1) * sizeof(*h.to));
    h.plain = gr_malloc(l->n_items + 1);
    h.run = gr_malloc((l->n_items + 1) * sizeof(*h.run));
    h.latest = gr_calloc(m->g->n_objects + 1, sizeof(*h.latest));
    find_runs(&h);
    find_plain_loops(&h);
    uint32_t limit = 0;
    for (uint32_t i = 0; i < l->n_items; i++) {
        const gr_item *it = &l->items[i];
        h.to[i] = i;
        if (i == l->validate) limit = i; /* another path */
        if (it->kind == GR_STEP_LOAD) {
            if (m->choice[m->f->group[it->object]].policy == GR_POLICY_AUTO) hoist_load(&h, i, limit);
            limit = GR_MAX(limit, h.to[i]);
        }
        if (it->object != GR_NONE) h.latest[it->object] = i + 1;
    }
    if (h.moved) reorder(m, h.to);
    l->work += h.looked / 4 + l->n_items;
    free(h.to);
    free(h.live);
    free(h.plain);
    free(h.run);
    free(h.latest);
    return h.moved;
}

/* Bytes that transitions among these items move, each as often as its loops are expected to turn. */
static uint64_t copied_by(const maker *m, uint32_t begin, uint32_t end)
{
    uint64_t sum = 0;
    for (uint32_t i = begin; i < end; i++) {
        const gr_item *it = &m->l->items[i];
        if (it->kind != GR_STEP_LOAD && it->kind != GR_STEP_OFFLOAD && it->lane != GR_LANE_DISK) continue;
        uint64_t bytes = m->g->objects[it->object].bytes;
        for (uint32_t w = it->scope; w != GR_NONE; w = m->f->parent[w])
            bytes *= m->g->task[w].loop.trips_expected;
        sum += bytes;
    }
    return sum;
}

void gr_transfers_place(gr_transfers *l, const gr_analysis *f, const gr_choice *choice, uint32_t ahead)
{
    const gr_tasks *g = f->g;
    maker m = {l, f, g, choice, ahead};
    if (!l->step_of) {
        l->step_of = gr_malloc((g->n_tasks + 1) * sizeof(*l->step_of));
        l->home = gr_malloc((g->n_objects + 1) * sizeof(*l->home));
        l->hosted = gr_malloc((g->n_objects + 1) * sizeof(*l->hosted));
        l->staged = gr_malloc((g->n_objects + 1) * sizeof(*l->staged));
        l->use_entry = gr_malloc((f->use_begin[g->n_tasks] + 1) * sizeof(*l->use_entry));
        l->moved = gr_malloc(g->n_tasks + 1);
        l->lanes = gr_malloc((g->n_tasks + 1) * sizeof(*l->lanes));
        l->meets = gr_malloc(g->n_objects + 1);
    }
    l->n_items = l->n_copies = l->n_inserts = l->n_transitions = 0;
    uint32_t *current = gr_malloc((g->n_objects + 1) * sizeof(*current));
    find_moved(&m);
    place_objects(&m, current);
    merge(&m);
    number(&m, current);
    free(current);
    gr_transfers_to_disk(l, f);
    l->work += l->n_items;
    l->copied = copied_by(&m, 0, l->validate) +
                copied_by(&m, l->validate, l->n_items) / GR_MAX(g->validate_every, 1u);
    l->host_live = most_live(&m, GR_HOST);
    l->live = most_live(&m, GR_DEVICE);
    l->disk_live = f->disk.bytes ? most_live(&m, GR_DISK) : 0;
}

void gr_transfers_time(gr_transfers *l, const gr_analysis *f, const gr_choice *choice)
{
    maker m = {.l = l, .f = f, .g = f->g, .choice = choice};
    hoist_loads(&m, l->live);
    l->ns = gr_transfers_ns(l, f);
}

void gr_transfers_make(gr_transfers *l, const gr_analysis *f, const gr_choice *choice, uint32_t ahead)
{
    gr_transfers_place(l, f, choice, ahead);
    gr_transfers_time(l, f, choice);
}

gr_excess gr_transfers_excess(const gr_transfers *l, const gr_analysis *f, gr_place place, uint64_t room)
{
    uint64_t *live = gr_transfers_live(l, f, place);
    gr_excess e = {0};
    for (uint32_t i = 0; i < l->n_items; i++) {
        if (live[i] <= room) continue;
        const uint64_t over = live[i] - room;
        if (over > e.most) e.most = over, e.at = i;
        e.mean += (double)over / l->n_items;
    }
    free(live);
    return e;
}

void gr_transfers_widen(gr_transfers *l, const gr_analysis *f, const gr_choice *choice, uint64_t room)
{
    maker m = {.l = l, .f = f, .g = f->g, .choice = choice};
    if (room <= l->live || !hoist_loads(&m, room)) return;
    l->live = most_live(&m, GR_DEVICE);
    l->ns = gr_transfers_ns(l, f);
}

void gr_transfers_within(gr_transfers *l, const gr_analysis *f, const gr_choice *choice, uint32_t ahead,
                         uint64_t room)
{
    maker m = {.l = l, .f = f, .g = f->g, .choice = choice};
    gr_transfers_place(l, f, choice, ahead);
    if (hoist_loads(&m, room)) l->live = most_live(&m, GR_DEVICE);
    l->ns = gr_transfers_ns(l, f);
}

void gr_transfers_fit(gr_transfers *l, const gr_analysis *f, const gr_choice *choice, uint32_t ahead,
                      uint64_t room)
{
    gr_transfers_make(l, f, choice, ahead);
    const uint64_t least = l->live, slow = l->ns;
    gr_transfers_widen(l, f, choice, room);
    const uint64_t fast = l->ns;
    uint64_t low = 0, high = 64,
             wide = GR_MAX(l->live, least) - least; /* of which so many parts are enough */
    while (low < high && fast < slow) {
        uint64_t half = (low + high) / 2;
        gr_transfers_make(l, f, choice, ahead);
        gr_transfers_widen(l, f, choice, least + wide / 64 * half);
        if (l->ns > fast)
            low = half + 1;
        else
            high = half;
    }
    gr_transfers_make(l, f, choice, ahead);
    if (fast < slow) gr_transfers_widen(l, f, choice, high < 64 ? least + wide / 64 * high : room);
}

void gr_transfers_release(gr_transfers *l)
{
    free(l->items);
    free(l->copies);
    free(l->inserts);
    free(l->use_entry);
    free(l->home);
    free(l->hosted);
    free(l->staged);
    free(l->moved);
    free(l->meets);
    free(l->lanes);
    free(l->step_of);
    *l = (gr_transfers){.work = l->work};
}
