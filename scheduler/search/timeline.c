/* scheduler/search/timeline.c: when the steps of a finished plan run, from their lanes and waits. */
#include "scheduler/search/timeline.h"

#include "scheduler/search/lanes.h"
#include "scheduler/search/roles.h"

#define LATEST (1ULL << 62) /* ns */

enum { MAX_DEPTH = 64 };

/* ---- scopes and times --------------------------------------------------------------------------------- */

static void find_scopes(gr_timeline *t)
{
    for (uint32_t i = 0, loop = GR_NONE; i < t->n; i++) {
        while (loop != GR_NONE && t->steps[loop].body_last < i) loop = t->parent[loop];
        t->parent[i] = loop;
        t->depth[i] = loop == GR_NONE ? 0 : t->depth[loop] + 1;
        if (t->steps[i].kind == GR_STEP_LOOP) loop = i;
    }
}

/* Move and stretch the times of steps that were laid out from `from` on, so that `length` becomes `want`. */
static void stretch(gr_timeline *t, uint32_t first, uint32_t last, uint64_t from, uint64_t length,
                    uint64_t want)
{
    double scale = length ? (double)want / (double)length : 0;
    for (uint32_t i = first; i < last; i++) {
        t->begin[i] = from + (uint64_t)((double)(t->begin[i] - from) * scale + 0.5);
        t->end[i] = from + (uint64_t)((double)(t->end[i] - from) * scale + 0.5);
    }
}

/* Files may say any time: sums must not overflow. */
static uint64_t after(uint64_t t, uint64_t ns)
{
    return GR_MIN(t + GR_MIN(ns, LATEST), LATEST);
}

/* When lanes are through with what was laid out; as the planner's own clocks (scheduler/search/transfers.c).
 */
typedef struct clocks {
    uint64_t lane[GR_N_LANES];
    uint64_t outside; /* in a loop: when all ends that was begun before the outermost one, 1 at least */
    uint64_t stalled; /* how long `compute` waited for that, in loops */
    bool late; /* a load waits for all that stands before it on `compute` and of offloads, as the search
                  counts before offsets are known */
} clocks;

static clocks clocks_at(uint64_t t)
{
    clocks c = {0};
    for (int l = 0; l < GR_N_LANES; l++) c.lane[l] = t;
    return c;
}

static void lay_out(gr_timeline *t, clocks *c, uint32_t i, uint32_t last);

/* All trips of a loop as its own waits let them run, once the first has been laid out: the others are as the
 * second, which begins where lanes have met. What it waited for from outside is not in it. */
static uint64_t own_trips(gr_timeline *t, clocks *c, uint32_t i, unsigned meet, uint64_t stalled)
{
    const uint64_t first = gr_lanes_latest(c->lane, meet);
    uint64_t trip = 0;
    if (t->trips[i] > 1) {
        gr_lanes_meet(c->lane, meet, first);
        lay_out(t, c, i + 1, t->steps[i].body_last + 1);
        trip = gr_lanes_latest(c->lane, meet) - first;
    }
    const uint64_t all = first - t->begin[i] + trip * (t->trips[i] - GR_MIN(t->trips[i], 1u));
    return t->trips[i] ? GR_MIN(all - GR_MIN(all, c->stalled - stalled), LATEST) : 0;
}

/* A loop that begins with step i: one trip, stretched to the time of all of them and of what the first of
 * them waited for. Its lanes meet at its end. */
static void lay_out_loop(gr_timeline *t, clocks *c, uint32_t i)
{
    gr_step *s = &t->steps[i];
    const uint64_t begin = t->begin[i], stalled = c->stalled;
    const bool outermost = !c->outside;
    unsigned meet = 1u << s->lane;
    for (uint32_t k = i + 1; k <= s->body_last; k++) meet |= 1u << t->steps[k].lane;
    if (outermost) c->outside = GR_MAX(gr_lanes_latest(c->lane, GR_ALL_LANES), UINT64_C(1));
    gr_lanes_meet(c->lane, meet, begin);
    if (t->depth[i] < MAX_DEPTH) {
        lay_out(t, c, i + 1, s->body_last + 1);
        const uint64_t own = t->trips ? own_trips(t, c, i, meet, stalled) : 0;
        s->ns = GR_MAX(s->ns, own);
        t->end[i] =
            s->ns ? after(after(begin, s->ns), c->stalled - stalled) : begin; /* no trip waits for nothing */
        stretch(t, i + 1, s->body_last + 1, begin, gr_lanes_latest(c->lane, meet) - begin, t->end[i] - begin);
    }
    for (int l = 0; l < GR_N_LANES; l++)
        if (meet >> l & 1) c->lane[l] = t->end[i];
    if (outermost) c->outside = 0;
}

/* Lay out steps [i, last). */
static void lay_out(gr_timeline *t, clocks *c, uint32_t i, uint32_t last)
{
    for (; i < last; i++) {
        const gr_step *s = &t->steps[i];
        uint64_t at = c->lane[s->lane];
        for (uint32_t a = 0; a < s->n_after; a++)
            if (s->after[a] < i) at = GR_MAX(at, t->end[s->after[a]]);
        if (c->late && s->kind == GR_STEP_LOAD)
            at = GR_MAX(at, gr_lanes_latest(c->lane, 1u << GR_LANE_COMPUTE | 1u << GR_LANE_D2H));
        if (c->late && s->kind == GR_STEP_FETCH) at = GR_MAX(at, c->lane[GR_LANE_COMPUTE]);
        t->begin[i] = at;
        t->end[i] = after(at, s->ns);
        if (s->kind == GR_STEP_LOOP) {
            lay_out_loop(t, c, i);
            i = s->body_last;
            continue;
        }
        if (s->lane == GR_LANE_COMPUTE && at <= c->outside) c->stalled += at - c->lane[s->lane];
        c->lane[s->lane] = t->end[i];
    }
}

/* Beside the other roles, with what it waits for them. */
static uint64_t find_times_beside(gr_timeline *t)
{
    uint64_t *begin = gr_arena_alloc(t->arena, (t->n_steady + 1) * sizeof(*begin)),
             *end = gr_arena_alloc(t->arena, (t->n_steady + 1) * sizeof(*end));
    uint64_t ns = gr_roles_times(t->all, t->role, begin, end);
    for (uint32_t i = 0; i < t->n_steady; i++) {
        t->begin[i] = begin[i];
        t->end[i] = end[i];
        if (t->steps[i].kind != GR_STEP_LOOP) continue;
        uint32_t last = t->steps[i].body_last + 1;
        clocks c = clocks_at(begin[i]);
        lay_out(t, &c, i + 1, last);
        stretch(t, i + 1, last, begin[i], gr_lanes_latest(c.lane, GR_ALL_LANES) - begin[i],
                end[i] - begin[i]);
        i = last - 1;
    }
    return ns;
}

/* The iteration, as its own waits let it run; returns how long that takes. */
static uint64_t lay_out_steady(gr_timeline *t, bool late)
{
    clocks c = {.late = late};
    lay_out(t, &c, 0, t->n_steady);
    return gr_lanes_latest(c.lane, GR_ALL_LANES);
}

static void find_times(gr_timeline *t)
{
    if (t->all->n_more) {
        t->ns = find_times_beside(t);
    } else {
        stretch(t, 0, t->n_steady, 0, lay_out_steady(t, false), t->plan->ns);
        t->ns = t->plan->ns;
    }
    t->steady_ns = t->ns;
    clocks c = clocks_at(t->ns);
    lay_out(t, &c, t->n_steady, t->n);
    t->ns = gr_lanes_latest(c.lane, GR_ALL_LANES);
}

/* ---- opening ------------------------------------------------------------------------------------------- */

/* The steps of both paths in one row, with numbers that fit. */
static void find_steps(gr_timeline *t)
{
    const gr_plan *p = t->plan;
    t->n_steady = p->paths[GR_PATH_STEADY].n;
    t->n = gr_plan_steps(p);
    t->steps = gr_arena_alloc(t->arena, (t->n + 1) * sizeof(*t->steps));
    for (uint32_t i = 0; i < t->n; i++) {
        gr_step *s = &t->steps[i];
        *s = *gr_plan_step(p, i);
        if (i < t->n_steady) continue;
        if (s->body_last != GR_NONE) s->body_last += t->n_steady;
        uint32_t *waits = gr_arena_alloc(t->arena, (s->n_after + 1) * sizeof(*waits));
        for (uint32_t k = 0; k < s->n_after; k++) waits[k] = s->after[k] + t->n_steady;
        s->after = waits;
    }
}

/* Its steps and loops, without times. */
static gr_timeline bare(const gr_plan *p, uint32_t role, gr_arena *arena)
{
    gr_timeline t = {.all = p, .role = role, .plan = gr_plan_role(p, role), .arena = arena};
    find_steps(&t);
    t.parent = gr_arena_alloc(arena, (t.n + 1) * sizeof(*t.parent));
    t.depth = gr_arena_alloc(arena, (t.n + 1) * sizeof(*t.depth));
    t.begin = gr_arena_alloc(arena, (t.n + 1) * sizeof(*t.begin));
    t.end = gr_arena_alloc(arena, (t.n + 1) * sizeof(*t.end));
    find_scopes(&t);
    return t;
}

gr_timeline gr_timeline_of_role(const gr_plan *p, uint32_t role, gr_arena *arena)
{
    gr_timeline t = bare(p, role, arena);
    find_times(&t);
    return t;
}

static uint64_t steady_ns(const gr_plan *p, bool late)
{
    gr_arena *arena = gr_arena_new();
    gr_timeline t = bare(p, 0, arena);
    const uint64_t ns = lay_out_steady(&t, late);
    gr_arena_free(arena);
    return ns;
}

uint64_t gr_timeline_waits_ns(const gr_plan *p)
{
    return steady_ns(p, false);
}

uint64_t gr_timeline_late_ns(const gr_plan *p)
{
    return steady_ns(p, true);
}

void gr_timeline_set_loops(gr_plan *p, const uint32_t *trips)
{
    gr_arena *arena = gr_arena_new();
    gr_timeline t = bare(p, 0, arena);
    t.trips = trips;
    clocks c = clocks_at(lay_out_steady(&t, false));
    lay_out(&t, &c, t.n_steady, t.n);
    for (uint32_t i = 0; i < t.n; i++) {
        gr_path *path = &p->paths[i < t.n_steady ? GR_PATH_STEADY : GR_PATH_VALIDATE];
        path->steps[i < t.n_steady ? i : i - t.n_steady].ns = t.steps[i].ns;
    }
    gr_arena_free(arena);
}
