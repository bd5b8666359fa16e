/* scheduler/search/transfers_time.c: how long an iteration of a layout takes, by a clock for each lane.
 *
 * A copy is slower while another goes the other way, and when it begins it is not known which will: an
 * offload that stands behind a load may begin before that ends. So copies wait in a queue for each direction,
 * and are run on, both directions together, only until what a step asks for is known. That is exact as long
 * as no copy is put into a queue later that begins before. An offload begins after the last use of its
 * object, which stands just before it, and a load after the offloads before it; so where the step that asks
 * is on the lane `compute`, all that stands behind it begins after it. Where a lane asks that runs ahead of
 * that one, such as `comm`, an offload may come late: the loads beside it have their times, and it makes up
 * for them, so that what both directions move in that time is what they can. No loop begins, and no trip
 * ends, before all copies have. */
#include "scheduler/search/lanes.h"
#include "scheduler/search/transfers.h"

#include <math.h>
#include <stdlib.h>

#define PENDING UINT64_MAX /* a time that is not known yet: of a copy in a queue */

typedef struct copying {
    gr_item *it;
    uint64_t from; /* when it may begin, if its lane has got to it */
    double left;   /* ns that it would take yet, were it alone */
} copying;

typedef struct copy_queue { /* of a direction, in its order */
    copying *all;
    uint32_t n, at; /* those before `at` have ended; when all have, there are none */
    double slower;  /* how many times as long a copy takes beside one the other way */
} copy_queue;

typedef struct use { /* of an entry, side by side: a step asks for all of them */
    uint64_t ready;  /* when the last copy into it, or write on the host lane, ends */
    uint64_t used;   /* when the last use of it, or load from it, ends */
    uint64_t left;   /* when the offload that reads it last ends */
    uint32_t by;     /* the step that uses it last */
} use;

typedef struct clocks {
    uint64_t lane[GR_N_LANES]; /* of a direction of copies: when the last one that has left its queue ended */
    copy_queue queue[2];       /* loads, offloads */
    uint64_t now;              /* how far their first ones have run */
    use *entry;                /* of entries */
    uint64_t *done;            /* of works; loops: of all trips */
    uint64_t outside;          /* in a loop: when all ends that was begun before the outermost one */
    uint64_t stalled;          /* how long the compute lane waited for that, in loops */
} clocks;

/* When the last use of an entry is over for a step: one in loops that the step is not in ends with them. */
static uint64_t free_at(const gr_transfers *l, const gr_analysis *f, const clocks *c, const gr_item *it)
{
    uint64_t t = c->entry[it->entry].used;
    const uint32_t i = (uint32_t)(it - l->items);
    for (uint32_t w = l->items[c->entry[it->entry].by].scope; w != GR_NONE; w = f->parent[w]) {
        uint32_t loop = l->step_of[w];
        if (i > loop && i <= l->items[loop].body_last) break;
        t = GR_MAX(t, c->done[w]);
    }
    return t;
}

/* ---- copies ---------------------------------------------------------------------------------------------
 */

static const gr_lane lane_of[2] = {GR_LANE_H2D, GR_LANE_D2H};

static copying *first_of(const clocks *c, int way)
{
    const copy_queue *q = &c->queue[way];
    return q->at < q->n ? &q->all[q->at] : NULL;
}

static uint64_t begin_of(const clocks *c, int way)
{
    return GR_MAX(first_of(c, way)->from, c->lane[lane_of[way]]);
}

/* The first of a queue ends. */
static void end_copy(clocks *c, int way, uint64_t t)
{
    copy_queue *q = &c->queue[way];
    gr_item *it = first_of(c, way)->it;
    it->begin = begin_of(c, way);
    it->ns = t - it->begin;
    c->lane[lane_of[way]] = t;
    if (way) c->entry[it->entry].left = t;
    c->entry[it->kind == GR_STEP_LOAD ? it->entry : it->home].ready = t;
    if (it->kind == GR_STEP_LOAD) c->entry[it->home].used = t;
    if (++q->at == q->n) q->at = q->n = 0;
}

/* Run the copies until the next of them begins or ends. There is one. */
static void run_copies(clocks *c)
{
    bool runs[2];
    double slower[2] = {1, 1};
    uint64_t at[2], next;
    for (int way = 0; way < 2; way++) runs[way] = first_of(c, way) && begin_of(c, way) <= c->now;
    for (int way = 0; way < 2; way++) {
        copying *p = first_of(c, way);
        if (runs[0] && runs[1]) slower[way] = c->queue[way].slower;
        at[way] = !p          ? UINT64_MAX
                  : runs[way] ? c->now + (uint64_t)llround(p->left * slower[way])
                              : begin_of(c, way);
    }
    next = GR_MIN(at[0], at[1]);
    for (int way = 0; way < 2; way++) {
        if (!runs[way]) continue;
        if (at[way] == next)
            end_copy(c, way, next);
        else
            first_of(c, way)->left -= (double)(next - c->now) / slower[way];
    }
    c->now = next;
}

/* Until those in a direction have ended. */
static void finish_copies(clocks *c, int way)
{
    while (first_of(c, way)) run_copies(c);
}

static void finish_all_copies(clocks *c)
{
    finish_copies(c, 0);
    finish_copies(c, 1);
}

/* Until it is known when an entry has been filled, and is free. */
static void await_copies(clocks *c, const use *entry)
{
    while (entry->ready == PENDING || entry->used == PENDING) run_copies(c);
}

/* It begins where others have run on already: see above. */
static void begin_late(clocks *c, int way)
{
    copying *p = first_of(c, way);
    const double own = c->queue[way].slower, other = c->queue[!way].slower;
    const double speed = fmax(0, 1 + other / own - other), late = (double)(c->now - begin_of(c, way));
    if (late * speed < p->left)
        p->left -= late * speed;
    else
        end_copy(c, way, begin_of(c, way) + (uint64_t)llround(p->left / speed));
}

static void begin_copy(clocks *c, const gr_analysis *f, gr_item *it, uint64_t from)
{
    const int way = it->kind == GR_STEP_OFFLOAD;
    const double rate = way ? f->hardware.copy.d2h : f->hardware.copy.h2d;
    const double alone = 1e9 * (double)f->g->objects[it->object].bytes / rate + (double)f->hardware.step_ns;
    copy_queue *q = &c->queue[way];
    q->all[q->n++] = (copying){it, from, alone};
    c->entry[way ? it->home : it->entry].ready = PENDING;
    if (!way) c->entry[it->home].used = PENDING;
    if (q->n - q->at == 1 && begin_of(c, way) < c->now) begin_late(c, way);
}

/* ---- steps ----------------------------------------------------------------------------------------------
 */

static uint64_t start_of(const gr_transfers *l, const gr_analysis *f, clocks *c, const gr_item *it)
{
    const uint64_t *t = c->lane;
    switch (it->kind) {
    case GR_STEP_LOAD:
        finish_copies(c, 1);
        return GR_MAX(GR_MAX(GR_MAX(t[GR_LANE_H2D], t[GR_LANE_D2H]), t[GR_LANE_COMPUTE]),
                      c->entry[it->home].ready);
    case GR_STEP_OFFLOAD:
        return GR_MAX(t[GR_LANE_D2H], free_at(l, f, c, it));
    case GR_STEP_FETCH: /* where its bytes are free, which is where it stands */
        return GR_MAX(GR_MAX(t[GR_LANE_DISK], t[GR_LANE_COMPUTE]), c->entry[it->home].ready);
    case GR_STEP_STORE:
        await_copies(c, &c->entry[it->entry]);
        return GR_MAX(t[GR_LANE_DISK], c->entry[it->entry].ready);
    case GR_STEP_RELEASE:
        return GR_MAX(t[it->lane], c->entry[it->entry].used);
    case GR_STEP_RESUME:
        return t[it->lane];
    default:
        break;
    }
    uint64_t at = GR_MAX(t[it->lane], it->lane == GR_LANE_COMPUTE ? 0 : t[GR_LANE_COMPUTE]);
    bool moved = l->moved[it->work];
    for (uint32_t u = f->use_begin[it->work]; u < f->use_begin[it->work + 1]; u++) {
        uint32_t e = l->use_entry[u];
        if (e == GR_NONE) continue;
        const use *x = &c->entry[e];
        await_copies(c, x);
        at = GR_MAX(at, GR_MAX(x->ready, moved ? x->used : 0));
    }
    for (uint32_t w = f->cross_begin[it->work]; w < f->cross_begin[it->work + 1]; w++)
        at = GR_MAX(at, c->done[f->cross[w]]);
    return at;
}

static void run_items(gr_transfers *l, const gr_analysis *f, clocks *c, uint32_t begin, uint32_t end);

static void run_loop(gr_transfers *l, const gr_analysis *f, clocks *c, uint32_t i)
{
    gr_item *it = &l->items[i];
    const unsigned lanes = l->lanes[it->work];
    finish_all_copies(c);
    const uint64_t t = start_of(l, f, c, it); /* ranks may have to agree on its trips */
    if (t <= c->outside) c->stalled += t - c->lane[GR_LANE_COMPUTE];
    c->lane[GR_LANE_COMPUTE] = t;
    const uint64_t stalled = c->stalled;
    uint64_t all = t;
    it->begin = t;
    const bool outermost = !c->outside;
    if (outermost) c->outside = GR_MAX(gr_lanes_latest(c->lane, GR_ALL_LANES), UINT64_C(1));
    uint32_t trips = f->g->task[it->work].loop.trips_expected;
    bool late = f->waits_outside[it->work] ||
                gr_lanes_latest(c->lane, GR_ALL_LANES) > t; /* only the first trip has to wait */
    if (trips) {
        run_items(l, f, c, i + 1, it->body_last + 1);
        finish_all_copies(c);
        uint64_t ends = gr_lanes_latest(c->lane, lanes), trip = ends - t;
        gr_lanes_meet(c->lane, lanes, ends);
        if (trips > 1 && late) {
            run_items(l, f, c, i + 1, it->body_last + 1);
            finish_all_copies(c);
            trip = gr_lanes_latest(c->lane, lanes) - ends;
        }
        all = ends + trip * (trips - 1);
    }
    gr_lanes_meet(c->lane, lanes, all);
    c->done[it->work] = all;
    if (outermost) c->outside = 0;
    it->ns = all - t - (c->stalled - stalled); /* its own time: what it waits for has its own step */
}

static void run_items(gr_transfers *l, const gr_analysis *f, clocks *c, uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin; i < end; i++) {
        gr_item *it = &l->items[i];
        if (it->kind == GR_STEP_LOOP) {
            run_loop(l, f, c, i);
            i = it->body_last;
            continue;
        }
        uint64_t begins = start_of(l, f, c, it);
        if (it->kind == GR_STEP_LOAD || it->kind == GR_STEP_OFFLOAD) {
            begin_copy(c, f, it, begins);
            continue;
        }
        uint64_t ends = begins + it->ns;
        it->begin = begins;
        if (it->lane == GR_LANE_COMPUTE && begins <= c->outside)
            c->stalled += begins - c->lane[GR_LANE_COMPUTE];
        c->lane[it->lane] = ends;
        if (it->lane == GR_LANE_DISK) c->entry[it->kind == GR_STEP_FETCH ? it->entry : it->home].ready = ends;
        if (it->work == GR_NONE) continue;
        c->done[it->work] = ends;
        c->lane[GR_LANE_COMPUTE] += f->lost_ns[it->work];
        for (uint32_t u = f->use_begin[it->work]; u < f->use_begin[it->work + 1]; u++) {
            uint32_t e = l->use_entry[u];
            if (e == GR_NONE) continue;
            c->entry[e].used = ends;
            c->entry[e].by = i;
            if (l->moved[it->work]) c->entry[e].ready = ends;
        }
    }
}

/* The last step of its scope and path that begins before a time, from step i on. What stands behind one of
 * the lane `compute` that begins later does so, too; no lane goes on into another trip. */
static uint32_t last_before(const gr_transfers *l, uint32_t i, uint64_t time)
{
    const uint32_t scope = l->items[i].scope, path = i < l->validate ? l->validate : l->n_items,
                   end = scope == GR_NONE ? path : l->items[l->step_of[scope]].body_last + 1;
    uint32_t found = i;
    for (uint32_t k = i + 1; k < end; k++) {
        const gr_item *it = &l->items[k];
        const bool loop = it->kind == GR_STEP_LOOP;
        if (it->begin >= time && it->lane == GR_LANE_COMPUTE) break;
        if (loop) k = it->body_last;
        if (it->begin < time) found = k;
    }
    return found;
}

uint32_t gr_transfers_clear(const gr_transfers *l, uint32_t copy)
{
    const gr_copy *x = &l->copies[copy];
    return x->place != GR_DEVICE || x->last < x->first ? x->last : last_before(l, x->last, x->busy_ns);
}

uint64_t gr_transfers_ns(gr_transfers *l, const gr_analysis *f)
{
    clocks c = {.entry = gr_calloc(l->n_copies + 1, sizeof(*c.entry)),
                .done = gr_calloc(f->g->n_tasks + 1, sizeof(*c.done))};
    const gr_copy_rate *rate = &f->hardware.copy;
    for (int way = 0; way < 2; way++) {
        c.queue[way].all = gr_malloc((l->n_transitions + 1) * sizeof(copying));
        c.queue[way].slower = (way ? rate->d2h : rate->h2d) / rate->both;
    }
    run_items(l, f, &c, 0, l->validate);
    finish_all_copies(&c);
    uint64_t ns = gr_lanes_latest(c.lane, GR_ALL_LANES);
    gr_lanes_meet(c.lane, GR_ALL_LANES, ns);
    run_items(l, f, &c, l->validate, l->n_items);
    finish_all_copies(&c);
    l->validate_ns = gr_lanes_latest(c.lane, GR_ALL_LANES) - ns;
    for (uint32_t d = 0; d < l->n_copies; d++)
        l->copies[d].busy_ns = GR_MAX(c.entry[d].used, c.entry[d].left);
    for (int way = 0; way < 2; way++) free(c.queue[way].all);
    free(c.entry);
    free(c.done);
    l->work += l->n_items;
    return ns;
}
