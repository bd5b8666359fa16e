/* scheduler/layout_time.c: how long an iteration of a layout takes, by a clock for each lane. */
#include "scheduler/layout.h"

#include <stdlib.h>

#define ALL_LANES ((1u << GR_N_LANES) - 1)

typedef struct clocks {
    uint64_t lane[GR_N_LANES];
    uint64_t *ready;   /* of entries: when the last copy into them, or write on the host lane, ends */
    uint64_t *used;    /* of entries: when the last use of them, or load from them, ends */
    uint32_t *used_by; /* of entries: the step that is */
    uint64_t *done;    /* of works; loops: of all trips */
    uint64_t outside;  /* in a loop: when all ends that was begun before the outermost one */
    uint64_t stalled;  /* how long the compute lane waited for that, in loops */
} clocks;

static uint64_t join(const clocks *c, unsigned lanes)
{
    uint64_t t = 0;
    for (int l = 0; l < GR_N_LANES; l++)
        if (lanes >> l & 1) t = GR_MAX(t, c->lane[l]);
    return t;
}

static void meet_at(clocks *c, unsigned lanes, uint64_t t)
{
    for (int l = 0; l < GR_N_LANES; l++)
        if (lanes >> l & 1) c->lane[l] = GR_MAX(c->lane[l], t);
}

/* When the last use of an entry is over for a step: one in loops that the step is not in ends with them. */
static uint64_t free_at(const gr_layout *l, const gr_facts *f, const clocks *c, const gr_item *it)
{
    uint64_t t = c->used[it->entry];
    const uint32_t i = (uint32_t)(it - l->items);
    for (uint32_t w = l->items[c->used_by[it->entry]].scope; w != GR_NONE; w = f->parent[w]) {
        uint32_t loop = l->step_of[w];
        if (i > loop && i <= l->items[loop].body_last) break;
        t = GR_MAX(t, c->done[w]);
    }
    return t;
}

static uint64_t start_of(const gr_layout *l, const gr_facts *f, const clocks *c, const gr_item *it)
{
    const uint64_t *t = c->lane;
    switch (it->kind) {
    case GR_STEP_LOAD:
        return GR_MAX(GR_MAX(GR_MAX(t[GR_LANE_H2D], t[GR_LANE_D2H]), t[GR_LANE_COMPUTE]), c->ready[it->home]);
    case GR_STEP_OFFLOAD:
        return GR_MAX(t[GR_LANE_D2H], free_at(l, f, c, it));
    case GR_STEP_RELEASE:
        return GR_MAX(t[it->lane], c->used[it->entry]);
    case GR_STEP_RESUME:
    case GR_STEP_LOOP:
        return t[it->lane];
    default:
        break;
    }
    uint64_t at = GR_MAX(t[it->lane], it->lane == GR_LANE_COMPUTE ? 0 : t[GR_LANE_COMPUTE]);
    bool moved = l->moved[it->work];
    for (uint32_t u = f->use_begin[it->work]; u < f->use_begin[it->work + 1]; u++) {
        uint32_t e = l->use_entry[u];
        if (e != GR_NONE) at = GR_MAX(at, GR_MAX(c->ready[e], moved ? c->used[e] : 0));
    }
    for (uint32_t w = f->cross_begin[it->work]; w < f->cross_begin[it->work + 1]; w++)
        at = GR_MAX(at, c->done[f->cross[w]]);
    return at;
}

static void run_items(gr_layout *l, const gr_facts *f, clocks *c, uint32_t begin, uint32_t end);

static void run_loop(gr_layout *l, const gr_facts *f, clocks *c, uint32_t i)
{
    gr_item *it = &l->items[i];
    const unsigned lanes = l->lanes[it->work];
    uint64_t t = c->lane[GR_LANE_COMPUTE], all = t, stalled = c->stalled;
    const bool outermost = !c->outside;
    if (outermost) c->outside = GR_MAX(join(c, ALL_LANES), UINT64_C(1));
    uint32_t trips = f->g->works[it->work].trips_expected;
    bool late = f->waits_outside[it->work] || join(c, ALL_LANES) > t; /* only the first trip has to wait */
    if (trips) {
        run_items(l, f, c, i + 1, it->body_last + 1);
        uint64_t ends = join(c, lanes), trip = ends - t;
        meet_at(c, lanes, ends);
        if (trips > 1 && late) {
            run_items(l, f, c, i + 1, it->body_last + 1);
            trip = join(c, lanes) - ends;
        }
        all = ends + trip * (trips - 1);
    }
    meet_at(c, lanes, all);
    c->done[it->work] = all;
    if (outermost) c->outside = 0;
    it->ns = all - t - (c->stalled - stalled); /* its own time: what it waits for has its own step */
}

static void run_items(gr_layout *l, const gr_facts *f, clocks *c, uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin; i < end; i++) {
        gr_item *it = &l->items[i];
        if (it->kind == GR_STEP_LOOP) {
            run_loop(l, f, c, i);
            i = it->body_last;
            continue;
        }
        uint64_t begins = start_of(l, f, c, it), ends = begins + it->ns;
        if (it->lane == GR_LANE_COMPUTE && begins <= c->outside)
            c->stalled += begins - c->lane[GR_LANE_COMPUTE];
        c->lane[it->lane] = ends;
        if (it->kind == GR_STEP_LOAD) c->ready[it->entry] = c->used[it->home] = ends;
        if (it->kind == GR_STEP_OFFLOAD) c->ready[it->home] = ends;
        if (it->work == GR_NONE) continue;
        c->done[it->work] = ends;
        c->lane[GR_LANE_COMPUTE] += f->lost_ns[it->work];
        for (uint32_t u = f->use_begin[it->work]; u < f->use_begin[it->work + 1]; u++) {
            uint32_t e = l->use_entry[u];
            if (e == GR_NONE) continue;
            c->used[e] = ends;
            c->used_by[e] = i;
            if (l->moved[it->work]) c->ready[e] = ends;
        }
    }
}

uint64_t gr_layout_ns(gr_layout *l, const gr_facts *f)
{
    clocks c = {.ready = gr_calloc(l->n_copies + 1, sizeof(*c.ready)),
                .used = gr_calloc(l->n_copies + 1, sizeof(*c.used)),
                .used_by = gr_calloc(l->n_copies + 1, sizeof(*c.used_by)),
                .done = gr_calloc(f->g->n_works + 1, sizeof(*c.done))};
    run_items(l, f, &c, 0, l->validate);
    uint64_t ns = join(&c, ALL_LANES);
    meet_at(&c, ALL_LANES, ns);
    run_items(l, f, &c, l->validate, l->n_items);
    l->validate_ns = join(&c, ALL_LANES) - ns;
    free(c.ready);
    free(c.used);
    free(c.used_by);
    free(c.done);
    return ns;
}
