/* scheduler/search/transfers_disk.c: what the host pool has no room for lies on the disk.
 *
 * The homes that go are those of objects that live on and that an iteration brings up least often, byte for
 * byte; no more of them than it takes. Each use in the host pool, by a load, an offload or a task, then has a
 * copy of its own. Its fetch stands before the use that comes before it in the same body, so that the next
 * copy is read while the one before is used: two of them live at a time. A store follows its use at once. */
#include "scheduler/search/transfers_parts.h"

#include <stdlib.h>
#include <string.h>

enum { SPARE = 64 }; /* such a part of the host pool is left free, so that offsets are found */

typedef struct visit { /* a use of what may lie on the disk, in the host pool */
    uint32_t item, object;
    bool reads, writes;
    uint32_t from;  /* the item that its fetch stands before */
    uint32_t entry; /* its copy */
} visit;

typedef struct mover {
    gr_transfers *l;
    const gr_analysis *f;
    visit *visits;
    uint32_t n, cap;
    uint32_t *order, n_order; /* objects that may go, as they do */
    double *rate;             /* [objects] how often an iteration moves one */
    bool *may, *goes;         /* [objects] */
    uint32_t *last;           /* [works + 1] of scopes: the latest visit's item */
    uint32_t *wrote;          /* [objects] the item of the latest visit that writes it */
} mover;

static uint64_t whole_blocks(uint64_t bytes)
{
    return (bytes + GR_DISK_ALIGN - 1) / GR_DISK_ALIGN * GR_DISK_ALIGN;
}

static uint64_t bytes_of(const mover *m, uint32_t object)
{
    return whole_blocks(m->f->g->objects[object].bytes);
}

/* ---- what may go --------------------------------------------------------------------------------------- */

/* What lives on, and has its home in the host pool all the time. Of two that are saved together one stays:
 * the smaller, for the other's low bits stand beside moments. */
static void find_who_may_go(mover *m)
{
    const gr_transfers *l = m->l;
    for (uint32_t o = 0; o < m->f->g->n_objects; o++) {
        const gr_object *ob = &m->f->g->objects[o];
        const gr_copy *home = l->home[o] == GR_NONE ? NULL : &l->copies[l->home[o]];
        m->may[o] = ob->span == GR_SPAN_KEEP && ob->place == GR_DEVICE && home && home->place == GR_HOST &&
                    !home->first && home->last + 1 == l->n_items;
    }
    for (uint32_t o = 0; o < m->f->g->n_objects; o++)
        if (m->f->g->objects[o].saved_with) m->may[m->f->g->objects[o].saved_with - 1] = false;
}

static double trips_of(const mover *m, uint32_t item)
{
    double n = 1;
    for (uint32_t w = m->l->items[item].scope; w != GR_NONE; w = m->f->parent[w])
        n *= m->f->g->task[w].loop.trips_expected;
    return item < m->l->validate ? n : n / GR_MAX(m->f->g->validate_every, 1u);
}

static void add_visit(mover *m, uint32_t item, uint32_t object, bool reads, bool writes)
{
    const visit v = {item, object, reads, writes, item, GR_NONE};
    if (!m->may[object]) return;
    GR_PUSH(m->visits, m->n, m->cap, v);
    m->rate[object] += (reads + writes) * trips_of(m, item);
}

static void find_visits(mover *m)
{
    const gr_transfers *l = m->l;
    for (uint32_t i = 0; i < l->n_items; i++) {
        const gr_item *it = &l->items[i];
        if (it->kind == GR_STEP_LOAD || it->kind == GR_STEP_OFFLOAD)
            add_visit(m, i, it->object, it->kind == GR_STEP_LOAD, it->kind == GR_STEP_OFFLOAD);
        if (it->work == GR_NONE || !l->moved[it->work]) continue;
        const gr_task *w = &m->f->g->task[it->work];
        for (uint32_t u = 0; u < w->uses.n; u++) {
            const uint32_t o = w->uses.list[u].object;
            if (o != GR_NONE && l->use_entry[m->f->use_begin[it->work] + u] == l->home[o])
                add_visit(m, i, o, w->uses.list[u].mode & GR_READ, w->uses.list[u].mode & GR_WRITE);
        }
    }
}

/* Those that move least first, and of these the largest. */
static int by_rate(const void *a, const void *b, void *user)
{
    const mover *m = user;
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    const uint64_t p = bytes_of(m, x), q = bytes_of(m, y);
    if (m->rate[x] != m->rate[y]) return m->rate[x] < m->rate[y] ? -1 : 1;
    return p != q ? (p > q ? -1 : 1) : x < y ? -1 : x > y;
}

static void find_order(mover *m)
{
    for (uint32_t o = 0; o < m->f->g->n_objects; o++)
        if (m->rate[o] > 0) m->order[m->n_order++] = o;
    qsort_r(m->order, m->n_order, sizeof(*m->order), by_rate, m);
}

/* ---- what goes ----------------------------------------------------------------------------------------- */

/* Where fetches stand: before the visit before, in the same body; but never before what is read is there. */
static void place_fetches(mover *m)
{
    const gr_transfers *l = m->l;
    memset(m->last, 0xff, (m->f->g->n_tasks + 1) * sizeof(*m->last)); /* GR_NONE */
    memset(m->wrote, 0xff, m->f->g->n_objects * sizeof(*m->wrote));
    for (uint32_t k = 0, next; k < m->n; k = next) {
        const uint32_t i = m->visits[k].item, scope = GR_MIN(l->items[i].scope, (uint32_t)m->f->g->n_tasks),
                       before = m->last[scope];
        const bool same_path = before != GR_NONE && (before < l->validate) == (i < l->validate);
        for (next = k; next < m->n && m->visits[next].item == i; next++) {
            visit *v = &m->visits[next];
            const uint32_t wrote = m->wrote[v->object];
            if (!m->goes[v->object]) continue;
            v->from = same_path && v->reads && (wrote == GR_NONE || wrote < before) ? before : i;
            if (v->writes) m->wrote[v->object] = i;
            m->last[scope] = i;
        }
    }
}

/* Most bytes in the host pool, with these gone. */
static uint64_t most_left(mover *m)
{
    gr_transfers *l = m->l;
    uint64_t *live = gr_calloc(l->n_items + 1, sizeof(*live)), now = 0, most = 0;
    place_fetches(m);
    for (uint32_t d = 0; d < l->n_copies; d++) {
        const gr_copy *c = &l->copies[d];
        if (c->place != GR_HOST || m->goes[c->object]) continue;
        if (c->last < c->first) live[0] += bytes_of(m, c->object);
        live[c->first] += bytes_of(m, c->object);
        live[c->last + 1] -= bytes_of(m, c->object);
    }
    for (uint32_t k = 0; k < m->n; k++) {
        const visit *v = &m->visits[k];
        if (!m->goes[v->object]) continue;
        live[v->from] += bytes_of(m, v->object);
        live[v->item + 1] -= bytes_of(m, v->object);
    }
    for (uint32_t i = 0; i < l->n_items; i++) {
        now += live[i];
        most = GR_MAX(most, now);
    }
    l->work += (l->n_items + m->n) / 4;
    free(live);
    return most;
}

/* The first n of the order, as far as the disk has room. Returns what the host pool then needs. */
static uint64_t take(mover *m, uint32_t n)
{
    uint64_t taken = 0;
    memset(m->goes, 0, m->f->g->n_objects);
    for (uint32_t k = 0; k < n; k++) {
        const uint64_t bytes = bytes_of(m, m->order[k]);
        if (bytes > m->f->disk.bytes - taken) continue;
        taken += bytes;
        m->goes[m->order[k]] = true;
    }
    return most_left(m);
}

/* As few as leave so much, or all. */
static void choose(mover *m, uint64_t room)
{
    uint32_t low = 1, high = m->n_order;
    while (low < high) {
        const uint32_t half = low + (high - low) / 2;
        if (take(m, half) > room)
            low = half + 1;
        else
            high = half;
    }
    take(m, low);
}

/* ---- the new steps ------------------------------------------------------------------------------------- */

typedef struct addition { /* a fetch before an item, or a store behind it */
    uint64_t key;
    uint32_t visit;
    gr_step_kind kind;
} addition;

static int by_key(const void *a, const void *b)
{
    const addition *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->visit < y->visit ? -1 : x->visit > y->visit;
}

static addition *find_additions(const mover *m, uint32_t *n)
{
    addition *all = gr_malloc((2 * (size_t)m->n + 1) * sizeof(*all));
    *n = 0;
    for (uint32_t k = 0; k < m->n; k++) {
        const visit *v = &m->visits[k];
        if (!m->goes[v->object]) continue;
        if (v->reads) all[(*n)++] = (addition){2 * (uint64_t)v->from, k, GR_STEP_FETCH};
        if (v->writes) all[(*n)++] = (addition){2 * (uint64_t)v->item + 1, k, GR_STEP_STORE};
    }
    if (*n) qsort(all, *n, sizeof(*all), by_key);
    return all;
}

/* A visit's own copy, which its step uses in the place of the home. */
static void give_copies(mover *m)
{
    gr_transfers *l = m->l;
    for (uint32_t k = 0; k < m->n; k++) {
        visit *v = &m->visits[k];
        gr_item *it = &l->items[v->item];
        if (!m->goes[v->object]) continue;
        const gr_copy copy = {.object = v->object, .place = GR_HOST, .first = v->item, .last = v->item};
        v->entry = l->n_copies;
        GR_PUSH(l->copies, l->n_copies, l->caps[1], copy);
        l->staged[v->object] = v->entry;
        if (it->work == GR_NONE) {
            it->home = v->entry;
            continue;
        }
        for (uint32_t u = m->f->use_begin[it->work]; u < m->f->use_begin[it->work + 1]; u++)
            if (l->use_entry[u] == l->home[v->object]) l->use_entry[u] = v->entry;
    }
    for (uint32_t o = 0; o < m->f->g->n_objects; o++)
        if (m->goes[o]) l->copies[l->home[o]].place = GR_DISK;
}

static gr_item item_of(const mover *m, const addition *a)
{
    const visit *v = &m->visits[a->visit];
    const gr_item *with = &m->l->items[v->item];
    const gr_disk_rate rate = gr_hardware_disk(&m->f->hardware);
    const double bytes = (double)m->f->g->objects[v->object].bytes,
                 seconds = bytes / (a->kind == GR_STEP_FETCH ? rate.read : rate.write);
    return (gr_item){.kind = a->kind,
                     .work = GR_NONE,
                     .object = v->object,
                     .entry = v->entry,
                     .home = m->l->home[v->object],
                     .scope = with->scope,
                     .body_last = GR_NONE,
                     .lane = GR_LANE_DISK,
                     .node = with->node,
                     .optional = with->optional,
                     .ns = rate.latency_ns + (uint64_t)(1e9 * seconds)};
}

/* Items as they were, and where each has come to stand. */
typedef struct moved_items {
    gr_item *was;
    uint32_t *place, n, validate;
} moved_items;

static void insert_items(mover *m, moved_items *x, const addition *all, uint32_t n)
{
    gr_transfers *l = m->l;
    gr_item *items = gr_malloc(((size_t)l->n_items + n) * sizeof(*items));
    uint32_t at = 0, next = 0;
    *x = (moved_items){l->items, gr_malloc((l->n_items + 1) * sizeof(uint32_t)), l->n_items, l->validate};
    for (uint32_t i = 0; i <= x->n; i++) {
        for (; next < n && all[next].key < 2 * (uint64_t)i; next++) items[at++] = item_of(m, &all[next]);
        if (i == x->validate) l->validate = at;
        for (; next < n && all[next].key == 2 * (uint64_t)i; next++) items[at++] = item_of(m, &all[next]);
        x->place[i] = at;
        if (i < x->n) items[at++] = l->items[i];
    }
    l->items = items;
    l->n_items = l->caps[0] = at;
    for (uint32_t w = 0; w < m->f->g->n_tasks; w++) l->step_of[w] = x->place[l->step_of[w]];
    gr_transfers_close_loops(l, m->f);
}

/* Whether an item was the last of the body of a loop around it. */
static bool ended_body(const mover *m, const moved_items *x, uint32_t item, uint32_t loop)
{
    uint32_t s = item + 1 < x->n ? x->was[item + 1].scope : GR_NONE;
    while (s != GR_NONE && s != loop) s = m->f->parent[s];
    return s == GR_NONE;
}

/* The last step of a life that was to end with an item: that, where it is what ends it; else what now stands
 * last in the path, or in the outermost body that both were the end of. */
static uint32_t new_last(const mover *m, const moved_items *x, uint32_t d)
{
    const gr_transfers *l = m->l;
    const uint32_t last = l->copies[d].last, first = l->copies[d].first;
    const gr_item *end = &x->was[last];
    uint32_t to = x->place[last];
    if (end->work == GR_NONE && end->entry == d) return to;
    if (last + 1 == x->n) return l->n_items - 1;
    if (last + 1 == x->validate) return l->validate - 1;
    for (uint32_t w = end->scope; w != GR_NONE && ended_body(m, x, last, w); w = m->f->parent[w])
        if (first > last || x->place[first] <= l->step_of[w]) to = l->items[l->step_of[w]].body_last;
    return to;
}

static void renumber(mover *m, const moved_items *x, uint32_t n_homes)
{
    gr_transfers *l = m->l;
    for (uint32_t d = 0; d < n_homes; d++) {
        gr_copy *c = &l->copies[d];
        const uint32_t first = c->first;
        const bool begins = (first == 0 || first == x->validate) && x->was[first].entry != d;
        c->last = new_last(m, x, d);
        c->first = !begins ? x->place[first] : first ? l->validate : 0;
    }
}

/* Copies of visits live from the fetch, or the item, to the item, or the store. */
static void set_lives(mover *m, const moved_items *x)
{
    gr_transfers *l = m->l;
    for (uint32_t k = 0; k < m->n; k++) {
        const visit *v = &m->visits[k];
        if (v->entry != GR_NONE) l->copies[v->entry].first = l->copies[v->entry].last = x->place[v->item];
    }
    for (uint32_t i = 0; i < l->n_items; i++) {
        const gr_item *it = &l->items[i];
        if (it->kind == GR_STEP_FETCH) l->copies[it->entry].first = i;
        if (it->kind == GR_STEP_STORE) l->copies[it->entry].last = i;
    }
}

static void add_steps(mover *m)
{
    const uint32_t n_homes = m->l->n_copies;
    moved_items x;
    uint32_t n;
    give_copies(m);
    addition *all = find_additions(m, &n);
    insert_items(m, &x, all, n);
    renumber(m, &x, n_homes);
    set_lives(m, &x);
    m->l->n_transitions += n;
    m->l->work += m->l->n_items;
    free(all);
    free(x.was);
    free(x.place);
}

static uint64_t most_of(const gr_transfers *l, const gr_analysis *f)
{
    uint64_t *live = gr_transfers_live(l, f, GR_HOST), most = 0;
    for (uint32_t i = 0; i < l->n_items; i++) most = GR_MAX(most, live[i]);
    free(live);
    return most;
}

void gr_transfers_to_disk(gr_transfers *l, const gr_analysis *f)
{
    const size_t n = f->g->n_objects + 1;
    memset(l->staged, 0xff, n * sizeof(*l->staged)); /* GR_NONE */
    if (!f->disk.bytes || most_of(l, f) <= f->disk.host) return;
    mover m = {.l = l,
               .f = f,
               .order = gr_malloc(n * sizeof(*m.order)),
               .rate = gr_calloc(n, sizeof(*m.rate)),
               .may = gr_calloc(n, sizeof(*m.may)),
               .goes = gr_calloc(n, sizeof(*m.goes)),
               .last = gr_malloc((f->g->n_tasks + 1) * sizeof(*m.last)),
               .wrote = gr_malloc(n * sizeof(*m.wrote))};
    find_who_may_go(&m);
    find_visits(&m);
    find_order(&m);
    if (m.n_order) {
        choose(&m, f->disk.host - f->disk.host / SPARE);
        add_steps(&m);
    }
    free(m.visits);
    free(m.order), free(m.rate), free(m.may), free(m.goes), free(m.last), free(m.wrote);
}
