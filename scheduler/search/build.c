/* scheduler/search/build.c: a finished plan from a residency that fits: steps, ledger, paths, waits. */
#include "scheduler/search/build.h"
#include "scheduler/search/timeline.h"
#include "scheduler/search/transfers_parts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct access {  /* of one entry by one step */
    uint32_t step, next; /* next: the one before of this lane and kind */
} access;

typedef struct heads { /* of an entry: latest accesses by lane, reads and writes */
    uint32_t at[GR_N_LANES][2];
} heads;

/* What each lane is known to have passed: its steps before this number are done or skipped. */
typedef struct clock {
    uint32_t lane[GR_N_LANES];
} clock;

typedef struct builder {
    gr_packings *known; /* NULL: nothing is */
    uint32_t *until;    /* [n_ledger] the last step before which nothing else may lie there */
    const gr_transfers *l;
    const gr_analysis *f;
    gr_plan *p;
    gr_step *steps;
    uint32_t n;
    access *accesses;
    uint32_t n_accesses, cap_accesses;
    heads *head;                 /* of entries */
    unsigned *lanes;             /* of entries: mask of those that use it */
    uint32_t **shares, *n_share; /* of entries: those whose bytes it shares, and that other lanes use */
    clock *at;                   /* of steps: known when it begins */
    clock lane[GR_N_LANES];      /* known by the latest sure step of each lane */
    uint32_t loops[16], n_loops;
    clock saved[16][GR_N_LANES];
    uint32_t *wanted, n_wanted, cap_wanted;
} builder;

static gr_step *path_steps(gr_plan *p, gr_path_id id, uint32_t n)
{
    p->paths[id].steps = gr_arena_alloc(p->arena, (n ? n : 1) * sizeof(gr_step));
    p->paths[id].n = n;
    return p->paths[id].steps;
}

static uint32_t *copy_ids(gr_arena *arena, const uint32_t *ids, uint32_t n)
{
    uint32_t *out = gr_arena_alloc(arena, (n ? n : 1) * sizeof(*out));
    if (n) memcpy(out, ids, n * sizeof(*out));
    return out;
}

/* ---- ledger and offsets ------------------------------------------------------------------------------- */

/* Where there is a disk, offsets there and in the host pool are those of whole blocks. */
static uint64_t room_of(const builder *b, const gr_entry *e)
{
    const uint64_t block = b->l->disk_live && e->place != GR_DEVICE ? GR_DISK_ALIGN : 1;
    return (e->bytes + block - 1) / block * block;
}

/* Of an entry: until when it is held back for a copy or use that still runs when its last step has begun. */
typedef struct held {
    uint32_t entry, begin, clear;
} held;

static int by_begin(const void *a, const void *b)
{
    const held *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->entry < y->entry ? -1 : x->entry > y->entry;
}

static held *find_held(const builder *b, uint32_t *n)
{
    held *all = gr_malloc((b->p->n_ledger + 1) * sizeof(*all));
    *n = 0;
    for (uint32_t e = 0; e < b->p->n_ledger; e++) {
        const gr_entry *x = &b->p->ledger[e];
        const uint32_t clear = gr_transfers_clear(b->l, e);
        if (x->place == GR_DEVICE && x->first <= x->last && clear > x->last)
            all[(*n)++] = (held){e, x->last + 1, clear};
    }
    qsort(all, *n, sizeof(*all), by_begin);
    return all;
}

/* Take those out of a list that are clear before step i; while too many bytes are live, the one that is clear
 * soonest as well: what comes to lie there waits least. */
static uint32_t let_go(const builder *b, held *list, uint32_t n, uint32_t i, uint64_t *live, uint64_t room)
{
    uint32_t kept = 0;
    for (uint32_t k = 0; k < n; k++) {
        if (list[k].clear >= i)
            list[kept++] = list[k];
        else
            *live -= b->p->ledger[list[k].entry].bytes;
    }
    while (*live > room && kept) {
        uint32_t soonest = 0;
        for (uint32_t k = 1; k < kept; k++)
            if (list[k].clear < list[soonest].clear) soonest = k;
        b->until[list[soonest].entry] = i - 1;
        *live -= b->p->ledger[list[soonest].entry].bytes;
        list[soonest] = list[--kept];
    }
    return kept;
}

/* Nothing lies where another lane is still busy, as far as no more than `room` bytes are live for it. */
static void hold_back(builder *b, uint64_t room)
{
    uint32_t n, now = 0;
    held *all = find_held(b, &n), *list = gr_malloc((n + 1) * sizeof(*list));
    uint64_t *live = gr_transfers_live(b->l, b->f, GR_DEVICE), more = 0;
    for (uint32_t i = 0, at = 0; i < b->l->n_items; i++) {
        for (; at < n && all[at].begin == i; at++) {
            list[now++] = all[at];
            b->until[all[at].entry] = all[at].clear;
            more += b->p->ledger[all[at].entry].bytes;
        }
        uint64_t sum = live[i] + more;
        now = let_go(b, list, now, i, &sum, room);
        more = sum - live[i];
    }
    free(all);
    free(list);
    free(live);
}

/* Whether it comes and goes in a host pool with a disk behind it: between it, the disk and the device. */
static bool visits(const builder *b, uint32_t e)
{
    const gr_transfers *l = b->l;
    const gr_copy *c = &l->copies[e];
    const uint32_t home = l->home[c->object];
    const bool from_disk = home != GR_NONE && l->copies[home].place == GR_DISK;
    return l->disk_live && c->place == GR_HOST && (from_disk || b->f->g->objects[c->object].place != GR_HOST);
}

/* Those of a place that visit, or all others, from offset `from` on; where they end. */
static uint64_t pack_those(builder *b, gr_place place, bool visiting, uint64_t from, uint32_t tries)
{
    gr_plan *p = b->p;
    gr_pack_item *items = gr_malloc((p->n_ledger + 1) * sizeof(*items));
    size_t n = 0;
    for (uint32_t e = 0; e < p->n_ledger; e++)
        if (p->ledger[e].place == place && visits(b, e) == visiting)
            items[n++] = (gr_pack_item){room_of(b, &p->ledger[e]), p->ledger[e].first, b->until[e], 0};
    uint64_t height = gr_pack_once(b->known, items, n, b->l->n_items, tries);
    n = 0;
    for (uint32_t e = 0; e < p->n_ledger; e++)
        if (p->ledger[e].place == place && visits(b, e) == visiting)
            p->ledger[e].offset = from + items[n++].offset;
    free(items);
    return from + height;
}

/* What visits the host pool has bytes of its own: a task's code there waits for no queue that loads from it.
 */
static uint64_t pack_place(builder *b, gr_place place, uint32_t tries)
{
    const uint64_t others = pack_those(b, place, false, 0, tries);
    return b->l->disk_live && place == GR_HOST ? pack_those(b, place, true, others, tries) : others;
}

/* Whether more than `room` bytes of the device are held at a time: no offsets are found in it then. */
static bool holds_more(const builder *b, uint64_t room)
{
    const gr_plan *p = b->p;
    gr_pack_item *items = gr_malloc((p->n_ledger + 1) * sizeof(*items));
    size_t n = 0;
    for (uint32_t e = 0; e < p->n_ledger; e++)
        if (p->ledger[e].place == GR_DEVICE)
            items[n++] = (gr_pack_item){p->ledger[e].bytes, p->ledger[e].first, b->until[e], 0};
    const bool more = gr_pack_bound(items, n, b->l->n_items) > room;
    free(items);
    return more;
}

/* False: see gr_plan_pack. */
static bool make_ledger(builder *b, gr_apart apart, uint32_t tries)
{
    gr_plan *p = b->p;
    p->n_ledger = b->l->n_copies;
    p->ledger = gr_arena_alloc(p->arena, (p->n_ledger + 1) * sizeof(*p->ledger));
    b->until = gr_malloc((p->n_ledger + 1) * sizeof(*b->until));
    for (uint32_t e = 0; e < p->n_ledger; e++) {
        const gr_copy *d = &b->l->copies[e];
        const gr_object *o = &b->f->g->objects[d->object];
        p->ledger[e] = (gr_entry){.category = o->category,
                                  .place = d->place,
                                  .bytes = o->bytes,
                                  .first = d->first,
                                  .last = d->last};
        b->until[e] = d->last;
    }
    if (apart.held) hold_back(b, apart.held);
    if (apart.held && holds_more(b, apart.room)) {
        free(b->until);
        return false;
    }
    p->arena_bytes = pack_place(b, GR_DEVICE, tries);
    p->host_bytes = pack_place(b, GR_HOST, GR_MIN(tries, 10)) + b->f->g->spare_bytes;
    p->disk_bytes = pack_place(b, GR_DISK, 1);
    free(b->until);
    const gr_tenant tenant = gr_tenant_of(b->f->g, p->host_bytes);
    p->overhead_bytes = gr_hardware_overhead(&b->f->hardware, &tenant);
    p->peak_bytes = p->arena_bytes + p->overhead_bytes;
    return true;
}

static void name_entries(builder *b)
{
    gr_plan *p = b->p;
    for (uint32_t e = 0; e < p->n_ledger; e++)
        p->ledger[e].what = gr_arena_strdup(p->arena, b->f->g->objects[b->l->copies[e].object].name);
}

static int by_place(const void *a, const void *b, void *ledger)
{
    const gr_entry *x = (const gr_entry *)ledger + *(const uint32_t *)a;
    const gr_entry *y = (const gr_entry *)ledger + *(const uint32_t *)b;
    if (x->place != y->place) return x->place < y->place ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static void find_lanes(builder *b)
{
    b->lanes = gr_calloc(b->p->n_ledger + 1, sizeof(*b->lanes));
    for (uint32_t s = 0; s < b->n; s++) {
        const gr_step *t = &b->steps[s];
        for (uint32_t i = 0; i < t->n_reads; i++) b->lanes[t->reads[i]] |= 1u << t->lane;
        for (uint32_t i = 0; i < t->n_writes; i++) b->lanes[t->writes[i]] |= 1u << t->lane;
    }
}

/* Those that one lane alone uses are kept apart by its order. */
static bool lanes_meet(const builder *b, uint32_t x, uint32_t y)
{
    unsigned both = b->lanes[x] | b->lanes[y];
    return (both & (both - 1)) != 0;
}

/* Of entries in an order: the next, from each on, that another lane than `compute` uses. Nearly all are used
 * by `compute` alone, and of those only such a one can be of interest to them. */
static uint32_t *next_unusual(const builder *b, const uint32_t *order)
{
    uint32_t n = b->p->n_ledger, *next = gr_malloc((n + 1) * sizeof(*next));
    next[n] = n;
    for (uint32_t i = n; i-- > 0;) next[i] = b->lanes[order[i]] & ~(1u << GR_LANE_COMPUTE) ? i : next[i + 1];
    return next;
}

/* For each entry those with some of the same bytes, and users on more than one lane. */
static void find_shares(builder *b)
{
    const gr_plan *p = b->p;
    uint32_t *order = gr_malloc((p->n_ledger + 1) * sizeof(*order));
    for (uint32_t e = 0; e < p->n_ledger; e++) order[e] = e;
    qsort_r(order, p->n_ledger, sizeof(*order), by_place, p->ledger);
    uint32_t *unusual = next_unusual(b, order);
    b->n_share = gr_calloc(p->n_ledger + 1, sizeof(*b->n_share));
    b->shares = gr_calloc(p->n_ledger + 1, sizeof(*b->shares));
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t e = 0; e < p->n_ledger && pass; e++) {
            b->shares[e] = gr_malloc((b->n_share[e] + 1) * sizeof(**b->shares));
            b->n_share[e] = 0;
        }
        for (uint32_t i = 0; i < p->n_ledger; i++) {
            const gr_entry *x = &p->ledger[order[i]];
            bool all = unusual[i] == i;
            for (uint32_t j = all ? i + 1 : unusual[i]; j < p->n_ledger; j = all ? j + 1 : unusual[j + 1]) {
                const gr_entry *y = &p->ledger[order[j]];
                if (y->place != x->place || y->offset >= x->offset + x->bytes) break;
                if (!lanes_meet(b, order[i], order[j])) continue;
                if (pass) {
                    b->shares[order[i]][b->n_share[order[i]]] = order[j];
                    b->shares[order[j]][b->n_share[order[j]]] = order[i];
                }
                b->n_share[order[i]]++;
                b->n_share[order[j]]++;
            }
        }
    }
    free(unusual);
    free(order);
}

/* ---- steps -------------------------------------------------------------------------------------------- */

static void use_entries(builder *b, const gr_item *it, gr_step *s)
{
    const gr_task *w = &b->f->g->task[it->work];
    s->reads = gr_arena_alloc(b->p->arena, (w->uses.n + 1) * sizeof(*s->reads));
    s->writes = gr_arena_alloc(b->p->arena, (w->uses.n + 1) * sizeof(*s->writes));
    for (uint32_t u = 0; u < w->uses.n; u++) {
        uint32_t e = b->l->use_entry[b->f->use_begin[it->work] + u];
        if (e == GR_NONE) continue;
        if (w->uses.list[u].mode & GR_READ) s->reads[s->n_reads++] = e;
        if (w->uses.list[u].mode & GR_WRITE) s->writes[s->n_writes++] = e;
    }
}

static void make_step(builder *b, uint32_t i)
{
    const gr_item *it = &b->l->items[i];
    gr_arena *arena = b->p->arena;
    gr_step *s = &b->steps[i];
    *s = (gr_step){.kind = it->kind, .lane = it->lane, .body_last = it->body_last, .ns = it->ns};
    s->node = it->node ? gr_arena_strdup(arena, it->node) : NULL;
    if (it->work != GR_NONE) {
        const gr_task *w = &b->f->g->task[it->work];
        s->what = gr_arena_strdup(arena, w->what);
        s->bytes = w->comm.moved;
        s->trips_max = w->loop.trips_max;
        s->agreed = w->loop.agreed;
        use_entries(b, it, s);
        return;
    }
    const gr_object *o = &b->f->g->objects[it->object];
    s->what = gr_arena_strdup(arena, o->name);
    bool in = it->kind == GR_STEP_LOAD || it->kind == GR_STEP_FETCH,
         out = it->kind == GR_STEP_OFFLOAD || it->kind == GR_STEP_STORE;
    if (in || out) {
        s->bytes = o->bytes;
        s->reads = copy_ids(arena, in ? &it->home : &it->entry, s->n_reads = 1);
    }
    s->writes = copy_ids(arena, out ? &it->home : &it->entry, s->n_writes = 1);
}

/* Predicted time of loops, and what is resident: most over the step, over its body for a loop. */
static void fill_resident(builder *b)
{
    gr_plan *p = b->p;
    uint64_t *delta = gr_calloc(b->n + 1, sizeof(*delta)), live = 0, most = 0;
    for (uint32_t e = 0; e < p->n_ledger; e++) {
        if (p->ledger[e].place != GR_DEVICE) continue;
        if (p->ledger[e].last < p->ledger[e].first) live += p->ledger[e].bytes;
        delta[p->ledger[e].first] += p->ledger[e].bytes;
        delta[p->ledger[e].last + 1] -= p->ledger[e].bytes;
    }
    for (uint32_t i = 0; i < b->n; i++) {
        live += delta[i];
        b->steps[i].resident_bytes = live;
        if (live > most) {
            most = live;
            p->peak_step = i;
        }
    }
    for (uint32_t i = b->n; i-- > 0;) {
        gr_step *s = &b->steps[i];
        for (uint32_t j = i + 1; s->kind == GR_STEP_LOOP && j <= s->body_last; j++)
            s->resident_bytes = GR_MAX(s->resident_bytes, b->steps[j].resident_bytes);
    }
    free(delta);
}

/* ---- waits -------------------------------------------------------------------------------------------- */

static bool in_body(const builder *b, uint32_t loop, uint32_t i)
{
    return i > loop && i <= b->l->items[loop].body_last;
}

static bool skippable_for(const builder *b, uint32_t d, uint32_t s)
{
    const gr_item *x = &b->l->items[d], *y = &b->l->items[s];
    return x->optional && !(y->optional && !strcmp(x->node, y->node));
}

static void join(clock *c, const clock *other)
{
    for (int l = 0; l < GR_N_LANES; l++) c->lane[l] = GR_MAX(c->lane[l], other->lane[l]);
}

/* The outermost loop around step d that is not around step s; GR_NONE: there is none. */
static uint32_t foreign_loop(const builder *b, uint32_t d, uint32_t s)
{
    uint32_t found = GR_NONE;
    for (uint32_t w = b->l->items[d].scope; w != GR_NONE; w = b->f->parent[w])
        if (!in_body(b, b->l->step_of[w], s)) found = b->l->step_of[w];
    return found;
}

static int descending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x > y ? -1 : x < y;
}

/* Note the earlier steps on other lanes whose access to an entry must not meet this one: of each lane, back
 * to the first that is known to be over. */
static void want(builder *b, uint32_t s, uint32_t entry, bool any)
{
    for (int l = 0; l < GR_N_LANES; l++)
        for (int writes = !any; writes < 2 && l != (int)b->steps[s].lane; writes++)
            for (uint32_t a = b->head[entry].at[l][writes]; a != GR_NONE; a = b->accesses[a].next) {
                uint32_t d = b->accesses[a].step;
                if (b->at[s].lane[l] > d) break;
                GR_PUSH(b->wanted, b->n_wanted, b->cap_wanted, d);
            }
}

/* Turn what is wanted into waits, the latest first: they often imply the others. */
static void wait_for(builder *b, uint32_t s)
{
    uint32_t n = 0;
    clock *c = &b->at[s];
    if (b->n_wanted) qsort(b->wanted, b->n_wanted, sizeof(*b->wanted), descending);
    for (uint32_t i = 0; i < b->n_wanted; i++) {
        uint32_t d = b->wanted[i], loop = foreign_loop(b, d, s);
        if ((i && d == b->wanted[i - 1]) || c->lane[b->steps[d].lane] > d) continue;
        if (loop != GR_NONE) { /* at the end of its trips its lanes met */
            if (b->l->lanes[b->l->items[loop].work] >> b->steps[s].lane & 1) continue;
            d = loop;
        }
        bool have = false;
        for (uint32_t k = 0; k < n; k++) have |= b->wanted[k] == d;
        if (have) continue;
        b->wanted[n++] = d; /* n <= i: the ones written over were looked at */
        if (skippable_for(b, d, s)) continue;
        join(c, &b->at[d]);
        uint32_t passed = loop == GR_NONE ? d : b->l->items[d].body_last;
        c->lane[b->steps[d].lane] = GR_MAX(c->lane[b->steps[d].lane], passed + 1);
    }
    b->steps[s].after = copy_ids(b->p->arena, b->wanted, b->steps[s].n_after = n);
}

static void leave_loops(builder *b, uint32_t s)
{
    while (b->n_loops && !in_body(b, b->loops[b->n_loops - 1], s)) {
        uint32_t loop = b->loops[--b->n_loops];
        const gr_item *it = &b->l->items[loop];
        unsigned lanes = b->l->lanes[it->work];
        bool ran = !b->steps[loop].agreed && !it->optional;
        for (int l = 0; l < GR_N_LANES; l++) {
            if (!(lanes >> l & 1)) continue;
            b->lane[l] = b->saved[b->n_loops][l];
            for (int k = 0; k < GR_N_LANES && ran; k++)
                if (lanes >> k & 1) b->lane[l].lane[k] = it->body_last + 1;
        }
    }
}

static void add_access(builder *b, uint32_t entry, uint32_t step, bool writes)
{
    uint32_t *head = &b->head[entry].at[b->steps[step].lane][writes];
    access a = {step, *head};
    GR_PUSH(b->accesses, b->n_accesses, b->cap_accesses, a);
    *head = b->n_accesses - 1;
}

static void touch(builder *b, uint32_t s, uint32_t entry, bool writes)
{
    want(b, s, entry, writes);
    for (uint32_t i = 0; i < b->n_share[entry]; i++) want(b, s, b->shares[entry][i], true);
}

/* A path begins when all lanes have ended the one before. */
static void begin_path(builder *b, uint32_t s)
{
    for (int l = 0; l < GR_N_LANES; l++)
        for (int k = 0; k < GR_N_LANES; k++) b->lane[l].lane[k] = s;
}

static void find_waits(builder *b)
{
    memset(b->head, 0xff, b->p->n_ledger * sizeof(*b->head)); /* GR_NONE */
    for (uint32_t s = 0; s < b->n; s++) {
        leave_loops(b, s);
        if (s == b->l->validate) begin_path(b, s);
        gr_step *t = &b->steps[s];
        bool ends = t->kind == GR_STEP_OFFLOAD; /* of the copy it reads */
        b->at[s] = b->lane[t->lane];
        b->at[s].lane[t->lane] = s;
        b->n_wanted = 0;
        for (uint32_t i = 0; i < t->n_reads; i++) touch(b, s, t->reads[i], ends);
        for (uint32_t i = 0; i < t->n_writes; i++) touch(b, s, t->writes[i], true);
        wait_for(b, s);
        for (uint32_t i = 0; i < t->n_reads; i++) add_access(b, t->reads[i], s, ends);
        for (uint32_t i = 0; i < t->n_writes; i++) add_access(b, t->writes[i], s, true);
        if (!b->l->items[s].optional) b->lane[t->lane] = b->at[s];
        if (t->kind == GR_STEP_LOOP) {
            memcpy(b->saved[b->n_loops], b->lane, sizeof(b->lane));
            b->loops[b->n_loops++] = s;
        }
    }
}

/* ---- the other paths ---------------------------------------------------------------------------------- */

/* Whether training changes it, or the model that it is part of: [objects]; the caller frees it. */
static bool *find_trained(const gr_analysis *f)
{
    const gr_tasks *g = f->g;
    bool *trained = gr_calloc(g->n_objects + 1, sizeof(*trained)), *model = gr_calloc(g->n_objects + 1, 1);
    gr_index models = {0};
    uint32_t *of = gr_malloc((g->n_objects + 1) * sizeof(*of)), n = 0;
    for (uint32_t o = 0; o < g->n_objects; o++) {
        const gr_object *ob = &g->objects[o];
        for (uint32_t r = f->begin[o]; r < f->begin[o + 1]; r++)
            trained[o] |= (f->refs[r].mode & GR_WRITE) != 0;
        of[o] = GR_NONE;
        if (ob->span != GR_SPAN_KEEP || !ob->model) continue;
        n += gr_index_add(&models, ob->model, n);
        of[o] = gr_index_find(&models, ob->model, strlen(ob->model));
        model[of[o]] |= trained[o];
    }
    for (uint32_t o = 0; o < g->n_objects; o++)
        if (of[o] != GR_NONE) trained[o] |= model[of[o]];
    gr_index_release(&models);
    free(model);
    free(of);
    return trained;
}

/* The steps of a path that is made one after another: a step on another lane waits for the one before. */
typedef struct file_steps {
    builder *b;
    gr_path *path;
    uint64_t resident; /* on the device, all the time */
    double rate;       /* of files */
} file_steps;

static gr_step *add_file_step(file_steps *to, gr_step_kind kind, gr_lane lane, uint32_t o)
{
    const gr_object *ob = &to->b->f->g->objects[o];
    gr_step *s = &to->path->steps[to->path->n];
    *s = (gr_step){.kind = kind,
                   .what = to->b->p->ledger[to->b->l->home[o]].what,
                   .lane = lane,
                   .bytes = ob->bytes,
                   .body_last = GR_NONE,
                   .resident_bytes = to->resident,
                   .ns = (uint64_t)(1e9 * (double)ob->bytes / to->rate)};
    const uint32_t before = to->path->n++ - 1;
    if (before != GR_NONE && s[-1].lane != lane)
        s->after = copy_ids(to->b->p->arena, &before, s->n_after = 1);
    return s;
}

/* Between the disk and the host pool, before an object is saved or behind its being restored. */
static void add_disk_step(file_steps *to, gr_step_kind kind, uint32_t o)
{
    gr_arena *arena = to->b->p->arena;
    const gr_transfers *l = to->b->l;
    const bool fetch = kind == GR_STEP_FETCH;
    if (l->staged[o] == GR_NONE) return;
    gr_step *s = add_file_step(to, kind, GR_LANE_DISK, o);
    const gr_disk_rate rate = gr_hardware_disk(&to->b->f->hardware);
    s->ns = rate.latency_ns + (uint64_t)(1e9 * (double)s->bytes / (fetch ? rate.read : rate.write));
    s->reads = copy_ids(arena, fetch ? &l->home[o] : &l->staged[o], s->n_reads = 1);
    s->writes = copy_ids(arena, fetch ? &l->staged[o] : &l->home[o], s->n_writes = 1);
}

static uint32_t in_memory(const gr_transfers *l, uint32_t o)
{
    return l->staged[o] == GR_NONE ? l->home[o] : l->staged[o];
}

static void save_object(file_steps *to, uint32_t o)
{
    const gr_transfers *l = to->b->l;
    const uint32_t with = to->b->f->g->objects[o].saved_with;
    add_disk_step(to, GR_STEP_FETCH, o);
    if (with) add_disk_step(to, GR_STEP_FETCH, with - 1);
    const uint32_t from[] = {in_memory(l, o), with ? in_memory(l, with - 1) : GR_NONE};
    gr_step *s = add_file_step(to, GR_STEP_SAVE, GR_LANE_COMPUTE, o);
    s->reads = copy_ids(to->b->p->arena, from, s->n_reads = with ? 2 : 1);
}

static void restore_object(file_steps *to, uint32_t o)
{
    const uint32_t at = in_memory(to->b->l, o);
    gr_step *s = add_file_step(to, GR_STEP_RESTORE, GR_LANE_COMPUTE, o);
    s->writes = copy_ids(to->b->p->arena, &at, s->n_writes = 1);
    add_disk_step(to, GR_STEP_STORE, o);
}

/* Restore everything kept into its home, or save what training changed; nothing overlaps, so that these paths
 * need no memory beside the homes, but that of what goes to the disk or comes from there, one at a time. */
static void file_path(builder *b, gr_path_id id, gr_step_kind kind)
{
    const gr_tasks *g = b->f->g;
    file_steps to = {.b = b, .path = &b->p->paths[id], .rate = b->f->hardware.disk};
    path_steps(b->p, id, 3 * (uint32_t)g->n_objects);
    to.path->n = 0;
    bool *trained = kind == GR_STEP_SAVE ? find_trained(b->f) : NULL;
    for (uint32_t o = 0; o < g->n_objects; o++)
        if (b->l->home[o] != GR_NONE && b->p->ledger[b->l->home[o]].place == GR_DEVICE)
            to.resident += g->objects[o].bytes;
    for (uint32_t o = 0; o < g->n_objects; o++) {
        if (b->l->home[o] == GR_NONE || (trained && !trained[o])) continue;
        if (trained)
            save_object(&to, o);
        else
            restore_object(&to, o);
    }
    free(trained);
}

static void make_paths(builder *b)
{
    gr_plan *p = b->p;
    uint32_t *homes = gr_malloc((b->f->g->n_objects + 1) * sizeof(*homes)), n = 0;
    for (uint32_t o = 0; o < b->f->g->n_objects; o++)
        if (b->l->home[o] != GR_NONE) homes[n++] = b->l->home[o];
    file_path(b, GR_PATH_INIT, GR_STEP_RESTORE);
    file_path(b, GR_PATH_RESUME, GR_STEP_RESTORE);
    file_path(b, GR_PATH_CHECKPOINT, GR_STEP_SAVE);
    file_path(b, GR_PATH_FINAL, GR_STEP_SAVE);
    for (int i = 0; i < GR_N_PATHS; i++) {
        bool from_nothing = i == GR_PATH_INIT || i == GR_PATH_RESUME;
        p->paths[i].entry = copy_ids(p->arena, homes, p->paths[i].n_entry = from_nothing ? 0 : n);
        p->paths[i].exit = copy_ids(p->arena, homes, p->paths[i].n_exit = n);
    }
    free(homes);
}

/* Steps were made and numbered as the ledger counts them; each path counts its own. */
static void split_paths(builder *b)
{
    uint32_t first = b->l->validate;
    gr_path *validate = &b->p->paths[GR_PATH_VALIDATE];
    b->p->paths[GR_PATH_STEADY].n = first;
    validate->steps = b->steps + first;
    validate->n = b->n - first;
    for (uint32_t i = 0; i < validate->n; i++) {
        gr_step *s = &validate->steps[i];
        if (s->body_last != GR_NONE) s->body_last -= first;
        for (uint32_t k = 0; k < s->n_after; k++) s->after[k] -= first;
    }
}

gr_plan *gr_plan_pack(const gr_transfers *l, const gr_analysis *f, gr_packings *known, gr_apart apart,
                      uint32_t tries)
{
    gr_arena *arena = gr_arena_new();
    gr_plan *p = gr_arena_alloc(arena, sizeof(*p));
    p->arena = arena;
    p->ranks = p->pools = p->graph = p->graph_text = p->hardware = p->device = p->numerics = p->notes =
        p->reasons = "";
    p->ns = p->own_ns = l->ns;
    builder b = {.known = known, .l = l, .f = f, .p = p};
    if (make_ledger(&b, apart, tries)) return p;
    gr_plan_free(p);
    return NULL;
}

/* Where offsets make steps in loops wait, those take longer than the layout said. */
static void set_loops(const builder *b)
{
    uint32_t *trips = gr_calloc(b->n + 1, sizeof(*trips));
    for (uint32_t i = 0; i < b->n; i++)
        if (b->l->items[i].kind == GR_STEP_LOOP)
            trips[i] = b->f->g->task[b->l->items[i].work].loop.trips_expected;
    gr_timeline_set_loops(b->p, trips);
    free(trips);
}

void gr_plan_finish(gr_plan *p, const gr_transfers *l, const gr_analysis *f)
{
    builder b = {.l = l, .f = f, .p = p, .n = l->n_items};
    name_entries(&b);
    b.steps = path_steps(p, GR_PATH_STEADY, l->n_items);
    for (uint32_t i = 0; i < b.n; i++) make_step(&b, i);
    fill_resident(&b);
    find_lanes(&b);
    find_shares(&b);
    b.head = gr_malloc((p->n_ledger + 1) * sizeof(*b.head));
    b.at = gr_calloc(b.n + 1, sizeof(*b.at));
    find_waits(&b);
    split_paths(&b);
    make_paths(&b);
    set_loops(&b);
    for (uint32_t e = 0; e < p->n_ledger; e++) free(b.shares[e]);
    free(b.shares), free(b.n_share), free(b.lanes), free(b.head), free(b.at), free(b.accesses),
        free(b.wanted);
}
