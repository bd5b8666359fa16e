/* scheduler/search/descend.c: from all resident to what fits, by the cheapest change where it does not; and
 * up again where there is room.
 *
 * A change is of one choice: how much of a group of objects stays and how the rest comes and goes, when loads
 * begin, one level of one knob. It counts by the bytes that it brings down of what lies above the budgets,
 * at the instants that do so: what is not alive then brings nothing, and is left alone. Of those that bring
 * something the one is taken that costs the least time a byte. */
#include "scheduler/search/schedule_parts.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

enum {
    MOST_STEPS = 400,  /* of one way down, or up */
    N_RUNGS = 2,       /* smaller budgets from which a way leads up */
    LEAST_PART = 4096, /* what brings down less than this part of what is above the budgets brings nothing */
    WAY_BACK = 3,      /* what is slower by so many times does not come back up */
    HOST_FIRST = 16,   /* what a byte that the host pool lacks counts for, where that comes first */
    MUCH = 8,          /* what may be won over the first way, as a part of its time */
    SOME = 12,         /* the same over the first two */
    LITTLE = 50        /* and where ways up have ended */
};

typedef struct change {
    size_t knob; /* SIZE_MAX: of residency */
    uint32_t level;
    uint32_t group; /* GR_NONE: when loads begin */
    gr_choice choice;
    uint32_t ahead;
} change;

typedef struct changes {
    change *all;
    size_t n, cap;
} changes;

typedef struct walker {
    gr_schedule_search *s;
    const bool *may_lower; /* [n_knobs] */
    bool *frozen;          /* [n_knobs] those that stay as they are */
    uint64_t frozen_group; /* and so does this one, by name_of; 0: none */
    size_t turn;           /* of knobs and groups, in whose turn an exchange is looked for */
    changes list;
} walker;

/* ---- pricing ------------------------------------------------------------------------------------------- */

static gr_choice *choice_like(const gr_schedule_search *s, uint32_t n, const gr_choice *choice)
{
    gr_choice *own = gr_arena_alloc(s->arena, (n + 1) * sizeof(*own));
    if (choice) memcpy(own, choice, n * sizeof(*own));
    return own;
}

static bool is_lower(const gr_stand *a, const gr_stand *b)
{
    return a->over < b->over - b->over / LEAST_PART;
}

static uint64_t time_of(const gr_transfers *l, const gr_analysis *f)
{
    return l->ns + l->validate_ns / GR_MAX(f->g->validate_every, 1u);
}

/* All that a price follows from. */
static gr_price_key key_of(const gr_schedule_search *s, const gr_stand *st)
{
    const uint64_t about[] = {st->set, st->ahead, s->margin, s->o->budget_bytes};
    const XXH128_hash_t h = XXH3_128bits_withSeed(st->choice, s->sets[st->set].n_groups * sizeof(*st->choice),
                                                  XXH3_64bits(about, sizeof(about)));
    return (gr_price_key){h.low64 | 1, h.high64};
}

void gr_stand_place(gr_schedule_search *s, const gr_stand *st)
{
    const gr_analysis *f = gr_level_set_take(s, st->set)->analysis;
    gr_transfers_place(gr_transfers_for(s, st->set), f, st->choice, st->ahead);
}

/* Placed, unless it still is. */
static void place_once(gr_schedule_search *s, const gr_stand *st, gr_price_key key)
{
    if (s->placed.a == key.a && s->placed.b == key.b) return;
    gr_stand_place(s, st);
    s->placed = key;
}

static uint64_t arena_of(const gr_schedule_search *s, const gr_stand *st)
{
    return gr_arena_budget(s, st->set, s->transfers.host_live);
}

static void find_excess(gr_schedule_search *s, const gr_stand *st, gr_price *p)
{
    const gr_analysis *f = gr_level_set_take(s, st->set)->analysis;
    const uint64_t arena = arena_of(s, st);
    const gr_excess device =
                        gr_transfers_excess(&s->transfers, f, GR_DEVICE, arena - GR_MIN(arena, s->margin)),
                    host = gr_transfers_excess(&s->transfers, f, GR_HOST, gr_host_room(s, st->set));
    p->host_over = (double)host.most + host.mean;
    p->device_over = (double)device.most + device.mean;
    p->ns = UINT64_MAX;
}

static void find_time(gr_schedule_search *s, const gr_stand *st, gr_price *p)
{
    const gr_analysis *f = gr_level_set_take(s, st->set)->analysis;
    s->placed = (gr_price_key){0, 0};
    gr_transfers_time(&s->transfers, f, st->choice);
    if (p->device_over + p->host_over <= 0) gr_transfers_widen(&s->transfers, f, st->choice, arena_of(s, st));
    p->ns = time_of(&s->transfers, f);
}

void gr_stand_price(gr_schedule_search *s, gr_stand *st, bool time)
{
    const gr_price_key key = key_of(s, st);
    gr_price *p = gr_price_at(&s->prices, key);
    s->transfers.work++;
    if (!p->key.a) {
        place_once(s, st, key);
        find_excess(s, st, p);
        p->key = key;
    }
    if (time && p->ns == UINT64_MAX) {
        place_once(s, st, key);
        find_time(s, st, p);
    }
    st->over = p->device_over + (s->host_first ? HOST_FIRST : 1) * p->host_over;
    st->host_over = p->host_over;
    if (time) st->ns = p->ns;
}

/* All resident but what policies say. */
static gr_stand first_stand(gr_schedule_search *s, const uint32_t *level)
{
    gr_stand st = {.set = gr_level_set_at(s, level), .ahead = 1};
    const gr_analysis *f = gr_level_set_take(s, st.set)->analysis;
    st.choice = choice_like(s, f->n_groups, NULL);
    for (uint32_t g = 0; g < f->n_groups; g++) {
        const gr_policy policy = gr_policy_of(s->o, &f->groups[g]);
        st.choice[g] = (gr_choice){.parts = GR_PARTS, .host = policy == GR_POLICY_HOST, .policy = policy};
    }
    gr_stand_price(s, &st, true);
    return st;
}

static bool is_same_group(const gr_group *a, const gr_group *b)
{
    return !strcmp(a->name, b->name) && a->span == b->span;
}

/* Of a group in all programs; never 0. */
static uint64_t name_of(const gr_group *g)
{
    return XXH3_64bits_withSeed(g->name, strlen(g->name), (uint64_t)g->span) | 1;
}

/* The choice of a residency for the groups of another program. Of what only that one has, what holds nothing
 * between its uses is there for these alone: it would take the room that the other program is to make. */
static gr_choice *carry_over(gr_schedule_search *s, const gr_stand *from, uint32_t set)
{
    const gr_level_set *old = &s->sets[from->set], *f = &s->sets[set];
    gr_choice *own = choice_like(s, f->n_groups, NULL);
    for (uint32_t g = 0; g < f->n_groups; g++) {
        const gr_policy policy = gr_policy_of(s->o, &f->resources[g]);
        const bool brief = f->resources[g].span == GR_SPAN_SCRATCH && !policy;
        own[g] =
            (gr_choice){.parts = brief ? 0 : GR_PARTS, .host = policy == GR_POLICY_HOST, .policy = policy};
        for (uint32_t k = 0; k < old->n_groups; k++)
            if (is_same_group(&old->resources[k], &f->resources[g])) own[g] = from->choice[k];
        own[g].stream &= f->resources[g].nodes;
        own[g].host &= f->resources[g].may_host || own[g].policy == GR_POLICY_HOST;
    }
    return own;
}

gr_stand gr_stand_at_level(gr_schedule_search *s, const gr_stand *from, size_t knob, uint32_t level)
{
    gr_stand st = *from;
    uint32_t *levels = gr_calloc(s->src->n_knobs + 1, sizeof(*levels));
    memcpy(levels, s->sets[from->set].level, s->src->n_knobs * sizeof(*levels));
    levels[knob] = level;
    st.set = gr_level_set_at(s, levels);
    st.choice = carry_over(s, from, st.set);
    free(levels);
    return st;
}

/* What a change makes of it. */
static gr_stand changed(gr_schedule_search *s, const gr_stand *from, const change *c)
{
    if (c->knob != SIZE_MAX) return gr_stand_at_level(s, from, c->knob, c->level);
    gr_stand st = *from;
    st.choice = choice_like(s, s->sets[from->set].n_groups, from->choice);
    if (c->group == GR_NONE)
        st.ahead = c->ahead;
    else
        st.choice[c->group] = c->choice;
    return st;
}

/* ---- changes ------------------------------------------------------------------------------------------- */

static void add_change(changes *l, change c)
{
    GR_PUSH(l->all, l->n, l->cap, c);
}

/* So much of it stays, the rest in every way that is not a matter of single nodes. */
static void add_ways(changes *l, const gr_group *g, uint32_t group, const gr_stand *from, uint32_t parts)
{
    const gr_choice was = from->choice[group];
    change c = {.knob = SIZE_MAX, .group = group};
    c.choice.parts = gr_group_parts(g, parts);
    const uint64_t masks[] = {0, g->nodes, was.stream};
    const size_t n = parts >= GR_PARTS ? 1 : was.stream && was.stream != g->nodes ? 3 : 2;
    for (size_t k = 0; k < n; k++) {
        c.choice.stream = masks[k];
        if (memcmp(&c.choice, &was, sizeof(was))) add_change(l, c);
    }
    c.choice.stream = 0;
    c.choice.host = 1;
    if (g->may_host && parts < GR_PARTS && memcmp(&c.choice, &was, sizeof(was))) add_change(l, c);
}

static void add_toggles(changes *l, const gr_group *g, uint32_t group, const gr_stand *from)
{
    change c = {.knob = SIZE_MAX, .group = group, .choice = from->choice[group]};
    for (uint32_t node = 0; node < 64 && c.choice.parts < GR_PARTS && !c.choice.host; node++) {
        if (!(g->nodes >> node & 1)) continue;
        c.choice.stream = from->choice[group].stream ^ 1ULL << node;
        add_change(l, c);
    }
}

/* Changes of residency by what stays of a group. */
typedef enum extent {
    LESS, /* less, or as much */
    MORE, /* more, too */
    ALL   /* and what is streamed in single nodes */
} extent;

static void add_group(walker *w, const gr_group *x, uint32_t g, const gr_stand *from, extent how)
{
    const uint32_t now = from->choice[g].parts;
    const uint32_t less[] = {now, now ? gr_group_parts(x, now - 1) : 0, GR_MAX(now, GR_QUARTER) - GR_QUARTER,
                             0},
                   more[] = {gr_group_more(x, now), GR_MIN(now + GR_QUARTER, GR_PARTS), GR_PARTS};
    for (size_t k = 0; k < GR_LEN(less); k++) add_ways(&w->list, x, g, from, less[k]);
    for (size_t k = 0; k < GR_LEN(more) && how != LESS; k++) add_ways(&w->list, x, g, from, more[k]);
    if (how == ALL) add_toggles(&w->list, x, g, from);
}

static void add_residencies(walker *w, const gr_stand *from, extent how)
{
    const gr_level_set *f = &w->s->sets[from->set];
    for (uint32_t g = 0; g < f->n_groups; g++)
        if (!from->choice[g].policy && name_of(&f->resources[g]) != w->frozen_group)
            add_group(w, &f->resources[g], g, from, how);
    for (uint32_t ahead = 0; ahead < GR_N_AHEAD; ahead++)
        if (ahead != from->ahead)
            add_change(&w->list, (change){.knob = SIZE_MAX, .group = GR_NONE, .ahead = ahead});
}

static void add_level(walker *w, const gr_stand *from, size_t k, uint32_t level)
{
    if (level == w->s->sets[from->set].level[k]) return;
    for (size_t i = 0; i < w->list.n; i++)
        if (w->list.all[i].knob == k && w->list.all[i].level == level) return;
    add_change(&w->list, (change){.knob = k, .level = level, .group = GR_NONE});
}

/* Of each knob the next level, and one half of the way to its end. */
static void add_levels(walker *w, const gr_stand *from, bool down)
{
    const gr_tasks_source *src = w->s->src;
    for (size_t k = 0; k < src->n_knobs; k++) {
        const uint32_t now = w->s->sets[from->set].level[k], last = src->knobs[k].n_levels - 1;
        if (!w->may_lower[k] || w->frozen[k]) continue;
        if (down && now < last) add_level(w, from, k, now + 1);
        if (down && now < last) add_level(w, from, k, last);
        if (!down && now) add_level(w, from, k, now - 1);
        if (!down && now) add_level(w, from, k, 0);
    }
}

/* ---- down and up --------------------------------------------------------------------------------------- */

/* What of what is above the budgets it brings down for each ns that it costs; 0: nothing. */
static double worth_of(gr_schedule_search *s, const gr_stand *from, gr_stand *next)
{
    gr_stand_price(s, next, false);
    if (!is_lower(next, from)) return 0;
    gr_stand_price(s, next, true);
    return (from->over - next->over) / (next->ns > from->ns ? (double)(next->ns - from->ns) + 1 : 1);
}

/* The same change, so many times as far; false: there is none. */
static bool stretch(gr_schedule_search *s, const gr_stand *from, const change *c, uint32_t times, change *out)
{
    *out = *c;
    if (c->knob != SIZE_MAX) {
        const uint32_t now = s->sets[from->set].level[c->knob];
        out->level = GR_MIN(now + (c->level - now) * times, s->src->knobs[c->knob].n_levels - 1);
        return out->level != c->level;
    }
    if (c->group == GR_NONE) return false;
    const gr_group *g = &s->sets[from->set].resources[c->group];
    const uint32_t was = gr_group_stays(g, from->choice[c->group].parts),
                   now = gr_group_stays(g, c->choice.parts), by = now < was ? was - now : now - was,
                   far = (uint32_t)GR_MIN((uint64_t)by * times, (uint64_t)g->n_objects),
                   stays = now < was ? was - GR_MIN(was, far) : GR_MIN(was + far, g->n_objects);
    out->choice.parts = gr_group_parts_of(g, stays);
    return stays != now && by && !(stays == g->n_objects && (c->choice.host || c->choice.stream));
}

/* As far as it goes on at the same price, about. */
static void go_on(walker *w, const gr_stand *from, const change *c, double worth, gr_stand *best)
{
    change further;
    for (uint32_t times = 2; best->over > 0 && stretch(w->s, from, c, times, &further); times *= 2) {
        gr_stand next = changed(w->s, from, &further);
        if (worth_of(w->s, from, &next) < worth * 7 / 8 || next.over >= best->over) break;
        *best = next;
    }
}

/* The cheapest change in the list that brings it down; false: none does. */
static bool take_cheapest(walker *w, gr_stand *st)
{
    gr_stand best = {0};
    size_t which = 0;
    double most = 0;
    for (size_t i = 0; i < w->list.n && gr_may_go_on(w->s); i++) {
        gr_stand next = changed(w->s, st, &w->list.all[i]);
        const double worth = worth_of(w->s, st, &next);
        if (worth <= most) continue;
        most = worth;
        best = next;
        which = i;
    }
    if (!most) return false;
    const change taken = w->list.all[which];
    go_on(w, st, &taken, most, &best);
    *st = best;
    return true;
}

static bool step_down(walker *w, gr_stand *st)
{
    w->list.n = 0;
    add_residencies(w, st, st->host_over > 0 ? MORE : LESS);
    add_levels(w, st, true);
    if (take_cheapest(w, st)) return true;
    w->list.n = 0;
    add_residencies(w, st, ALL);
    return take_cheapest(w, st);
}

/* Where no change brings it down, and the host pool lacks bytes, too: what relieves the pool takes as much of
 * the device, and what relieves that as much of the pool. So the pool comes first, whatever the device lacks
 * then; what brings that down must leave the pool alone. */
static bool go_down(walker *w, gr_stand *st)
{
    gr_schedule_search *s = w->s;
    const bool was = s->host_first;
    for (uint32_t i = 0; i < MOST_STEPS && st->over > 0 && gr_may_go_on(s); i++) {
        if (step_down(w, st)) continue;
        if (s->host_first || st->host_over <= 0) break;
        s->host_first = true;
        gr_stand_price(s, st, false);
    }
    s->host_first = was;
    gr_stand_price(s, st, true);
    return st->over <= 0;
}

/* What fits becomes a candidate. */
static void keep(gr_schedule_search *s, const gr_stand *st)
{
    const gr_analysis *f = gr_level_set_take(s, st->set)->analysis;
    gr_transfers *l = gr_transfers_for(s, st->set);
    gr_transfers_make(l, f, st->choice, st->ahead);
    gr_residency r = {.level = st->set,
                      .choice = st->choice,
                      .ahead = st->ahead,
                      .live = l->live,
                      .host = l->host_live,
                      .ns = time_of(l, f),
                      .copied = l->copied,
                      .n_transitions = l->n_transitions};
    gr_transfers_widen(l, f, st->choice, gr_arena_budget(s, st->set, r.host));
    r.wide_ns = time_of(l, f);
    GR_PUSH(s->found.all, s->found.n, s->found.cap, r);
}

/* Any change of residency that makes it faster, while it fits. Returns whether there was one. */
static bool step_up(walker *w, gr_stand *st)
{
    bool better = false;
    w->list.n = 0;
    add_levels(w, st, false);
    add_residencies(w, st, ALL);
    for (size_t i = 0; i < w->list.n && gr_may_go_on(w->s); i++) {
        const change *c = &w->list.all[i];
        if (better && c->knob != SIZE_MAX) continue; /* of another vector of levels by now */
        gr_stand next = changed(w->s, st, c);
        gr_stand_price(w->s, &next, false);
        if (next.over > 0) continue;
        gr_stand_price(w->s, &next, true);
        if (next.ns >= st->ns) continue;
        *st = next;
        better = true;
        if (c->knob != SIZE_MAX) break;
    }
    return better;
}

static void go_up(walker *w, gr_stand *st)
{
    for (uint32_t i = 0; i < MOST_STEPS && gr_may_go_on(w->s) && step_up(w, st); i++) continue;
}

/* Down to what fits, where another change has been made, and up again; true: that is faster, and *st. What is
 * much slower before it goes up does not come back. */
static bool settle(walker *w, gr_stand *st, gr_stand *next)
{
    gr_stand_price(w->s, next, true);
    if (!go_down(w, next) || next->ns / WAY_BACK > st->ns) return false;
    go_up(w, next);
    if (next->ns >= st->ns) return false;
    *st = *next;
    return true;
}

/* One level of a knob, up or down, and what follows from it: where that is up, something else is brought down
 * for it; where it is down, other things have the room. */
static bool exchange_level(walker *w, gr_stand *st, size_t k, uint32_t level)
{
    gr_stand next = gr_stand_at_level(w->s, st, k, level);
    w->frozen[k] = true;
    const bool faster = settle(w, st, &next);
    w->frozen[k] = false;
    return faster;
}

/* On in the same direction, further each time. */
static void exchange_on(walker *w, gr_stand *st, size_t k, uint32_t from)
{
    const uint32_t last = w->s->src->knobs[k].n_levels - 1;
    uint32_t now = w->s->sets[st->set].level[k], by = now < from ? from - now : now - from;
    const bool up = now < from;
    do {
        by *= 2;
        now = up ? now - GR_MIN(by, now) : GR_MIN(now + by, last);
    } while (now != w->s->sets[st->set].level[k] && gr_may_go_on(w->s) && exchange_level(w, st, k, now));
}

static bool exchange_knob(walker *w, gr_stand *st, size_t k)
{
    const uint32_t now = w->s->sets[st->set].level[k], last = w->s->src->knobs[k].n_levels - 1;
    const uint32_t levels[] = {0, now ? now - 1 : 0, GR_MIN(now + 1, last), last};
    for (size_t i = 0; i < GR_LEN(levels) && gr_may_go_on(w->s); i++) {
        if (levels[i] == now || (i && levels[i] == levels[i - 1]) || !exchange_level(w, st, k, levels[i]))
            continue;
        exchange_on(w, st, k, now);
        return true;
    }
    return false;
}

/* More of a group stays, or nothing of it, and other things give or have the room. */
static bool exchange_group(walker *w, gr_stand *st, uint32_t g)
{
    const gr_group *x = &w->s->sets[st->set].resources[g];
    const gr_choice was = st->choice[g];
    const uint16_t more = gr_group_parts(x, GR_MIN(was.parts + GR_QUARTER, GR_PARTS));
    const gr_choice all[] = {
        {.parts = GR_PARTS}, {.parts = more, .stream = was.stream}, {0}, {.stream = x->nodes}};
    bool faster = false;
    w->frozen_group = name_of(x);
    for (size_t i = 0; i < GR_LEN(all) && !faster && gr_may_go_on(w->s); i++) {
        if (was.host || (all[i].parts ? was.parts == GR_PARTS : !was.parts)) continue;
        gr_stand next = *st;
        next.choice = choice_like(w->s, w->s->sets[st->set].n_groups, st->choice);
        next.choice[g] = all[i];
        faster = settle(w, st, &next);
    }
    w->frozen_group = 0;
    return faster;
}

/* One after another, from where the last one led to something. */
static bool exchange(walker *w, gr_stand *st)
{
    const size_t n_knobs = w->s->src->n_knobs, n = n_knobs + w->s->sets[st->set].n_groups;
    for (size_t i = 0; i < n && gr_may_go_on(w->s); i++, w->turn++) {
        const size_t at = w->turn % n;
        if (at < n_knobs && (!w->may_lower[at] || !exchange_knob(w, st, at))) continue;
        if (at >= n_knobs &&
            (st->choice[at - n_knobs].policy || !exchange_group(w, st, (uint32_t)(at - n_knobs))))
            continue;
        return true;
    }
    return false;
}

/* The same with all knobs at their last levels. */
static gr_stand at_the_bottom(walker *w, const gr_stand *from)
{
    gr_schedule_search *s = w->s;
    uint32_t *levels = gr_calloc(s->src->n_knobs + 1, sizeof(*levels));
    memcpy(levels, s->sets[from->set].level, s->src->n_knobs * sizeof(*levels));
    for (size_t k = 0; k < s->src->n_knobs; k++)
        if (w->may_lower[k]) levels[k] = s->src->knobs[k].n_levels - 1;
    gr_stand st = *from;
    st.set = gr_level_set_at(s, levels);
    st.choice = carry_over(s, from, st.set);
    gr_stand_price(s, &st, true);
    free(levels);
    return st;
}

/* Up from what fits, as far as single changes and exchanges lead. */
static void climb(walker *w, gr_stand *st)
{
    keep(w->s, st);
    if (w->s->probes) return;
    do {
        go_up(w, st);
        keep(w->s, st);
    } while (exchange(w, st));
}

typedef void allowing(gr_schedule_search *s, uint64_t work);

/* Down takes what it takes, of what is left; up only so much. Down goes on until so many bytes of the device
 * are left, which are there again on the way up. */
static void down_and_up(walker *w, gr_stand *st, uint64_t bytes, allowing *allow)
{
    gr_schedule_search *s = w->s;
    const uint64_t before = s->transfers.work, margin = s->margin;
    allow(s, s->probes && s->down ? 2 * s->down : s->work);
    s->margin += bytes;
    gr_stand_price(s, st, true);
    const bool fits = go_down(w, st);
    if (fits) s->down = GR_MAX(s->down, s->transfers.work - before);
    s->margin = margin;
    gr_stand_price(s, st, true);
    if (!fits) return;
    gr_allow(s, s->each_way / 2);
    keep(s, st);
    if (s->probes) return;
    go_up(w, st);
    keep(s, st);
}

/* The bytes between a budget and the next of the budgets, eight to a doubling, that is below it by a part. */
static uint64_t down_to_rung(uint64_t budget)
{
    static const uint8_t rungs[] = {128, 140, 152, 166, 181, 197, 215, 235}; /* of 128 */
    uint64_t below = budget - budget / 32, unit = 1;
    if (budget < 1 << 16) return 0;
    while (unit <= below >> 8) unit *= 2;
    size_t k = GR_LEN(rungs);
    while (k && rungs[k - 1] * unit > below) k--;
    return budget - (k ? rungs[k - 1] : 118) * unit;
}

static gr_stand better_of(gr_stand a, gr_stand b)
{
    return b.over < a.over || (b.over <= 0 && b.ns < a.ns) ? b : a;
}

/* The one that fits in the least time, not before `after`; n: none does. */
static size_t fastest_of(const gr_stand *all, size_t n, uint64_t after)
{
    size_t best = n;
    for (size_t i = 0; i < n; i++)
        if (all[i].over <= 0 && all[i].ns > after && (best == n || all[i].ns < all[best].ns)) best = i;
    return best;
}

/* What may still be won over it is such a part of its time. */
static void give_up(gr_schedule_search *s, const gr_stand *st, uint32_t part)
{
    s->given_up |= !s->probes && st->over <= 0 && gr_is_too_slow(s, st->ns - st->ns / part);
}

/* Four ways: from the top; from all knobs at their last levels, which leads up elsewhere; and from the top
 * to what fits in budgets that are somewhat smaller and the same for all that are a little larger, so that
 * what serves there is known to them, too. The two that led furthest go on. */
gr_stand gr_descend(gr_schedule_search *s, const uint32_t *level, const bool *may_lower)
{
    walker w = {.s = s, .may_lower = may_lower};
    w.frozen = gr_calloc(s->src->n_knobs + 1, sizeof(*w.frozen));
    const gr_stand top = first_stand(s, level);
    gr_stand way[2 + N_RUNGS] = {top, at_the_bottom(&w, &top)};
    size_t n = 0;
    down_and_up(&w, &way[n++], 0, gr_allow_down);
    give_up(s, &way[0], MUCH);
    if (!s->given_up && (!s->probes || way[0].over > 0)) down_and_up(&w, &way[n++], 0, gr_allow);
    gr_stand best = n > 1 ? better_of(way[0], way[1]) : way[0];
    give_up(s, &best, SOME);
    if (!s->probes && best.over <= 0 && !s->given_up) {
        for (uint64_t bytes = 0; n < GR_LEN(way); n++) {
            way[n] = top;
            bytes += down_to_rung(s->o->budget_bytes - bytes);
            down_and_up(&w, &way[n], bytes, gr_allow);
        }
        for (uint64_t k = 0, after = 0; k < 2; k++) {
            const size_t i = fastest_of(way, n, after);
            if (i == n) break;
            after = way[i].ns;
            gr_allow(s, GR_MIN(s->each_way * 2, (s->limit - GR_MIN(s->limit, s->transfers.work)) / (2 - k)));
            climb(&w, &way[i]);
            best = better_of(best, way[i]);
        }
        give_up(s, &best, LITTLE);
    }
    free(w.frozen);
    free(w.list.all);
    return best;
}

gr_stand gr_descend_from(gr_schedule_search *s, const gr_stand *from, size_t knob, uint32_t level,
                         const bool *may_lower)
{
    walker w = {.s = s, .may_lower = may_lower};
    w.frozen = gr_calloc(s->src->n_knobs + 1, sizeof(*w.frozen));
    gr_stand st = gr_stand_at_level(s, from, knob, level);
    gr_stand_price(s, &st, true);
    go_down(&w, &st);
    free(w.frozen);
    free(w.list.all);
    return st;
}

void gr_descend_again(gr_schedule_search *s, const gr_residency *from, const bool *may_lower)
{
    walker w = {.s = s, .may_lower = may_lower};
    w.frozen = gr_calloc(s->src->n_knobs + 1, sizeof(*w.frozen));
    gr_stand st = {.set = from->level, .ahead = from->ahead};
    st.choice = choice_like(s, s->sets[st.set].n_groups, from->choice);
    gr_allow(s, s->work);
    gr_stand_price(s, &st, true);
    const bool fits = go_down(&w, &st);
    gr_allow(s, s->work / 100 * FOR_ROOM / 2);
    if (fits) climb(&w, &st);
    free(w.frozen);
    free(w.list.all);
}

void gr_descend_to_least(gr_schedule_search *s, uint32_t set, const gr_residency *from)
{
    const gr_schedule_options *was = s->o;
    gr_schedule_options least = *was;
    bool *none = gr_calloc(2 * s->src->n_knobs + 1, sizeof(*none));
    walker w = {.s = s, .may_lower = none, .frozen = none};
    least.budget_bytes = 0;
    s->o = &least;
    s->host_first = true;
    gr_stand st = first_stand(s, s->sets[set].level);
    if (from) {
        st.choice = from->choice;
        st.ahead = from->ahead;
        gr_stand_price(s, &st, true);
    }
    go_down(&w, &st);
    s->o = was;
    s->host_first = false;
    keep(s, &st);
    free(none);
    free(w.list.all);
}

/* So much of one group stays from its first use to its last, and the rest waits in the host pool in between;
 * what is on the device for less of the time leaves room for others. */
static gr_stand spill(walker *w, const gr_stand *from, uint32_t g, uint32_t parts)
{
    gr_schedule_search *s = w->s;
    const gr_group *x = &s->sets[from->set].resources[g];
    gr_stand st = *from;
    st.choice = choice_like(s, s->sets[from->set].n_groups, from->choice);
    st.choice[g] = (gr_choice){.stream = x->nodes, .parts = gr_group_parts(x, parts)};
    gr_stand_price(s, &st, true);
    w->frozen_group = name_of(x);
    gr_allow(s, s->work / 100 * FOR_SPILLS / 8);
    if (st.over <= 0) go_up(w, &st);
    w->frozen_group = 0;
    return st;
}

/* As much of a spilled group stays as fits and makes nothing slower: copies that run beside the passes cost
 * no time that would make the way up take fewer of them. */
static void keep_of_group(walker *w, gr_stand *st, uint32_t g)
{
    const gr_group *x = &w->s->sets[st->set].resources[g];
    const uint64_t most = gr_near_ns(st->ns);
    uint32_t least = gr_group_stays(x, st->choice[g].parts), end = x->n_objects;
    while (least < end) {
        const uint32_t n = (least + end + 1) / 2;
        gr_stand next = *st;
        next.choice = choice_like(w->s, w->s->sets[st->set].n_groups, st->choice);
        next.choice[g].parts = gr_group_parts_of(x, n);
        if (n == x->n_objects) next.choice[g].stream = 0;
        gr_stand_price(w->s, &next, true);
        if (next.over > 0 || next.ns > most) {
            end = n - 1;
            continue;
        }
        least = n;
        *st = next;
    }
}

static void keep_what_fits(walker *w, gr_stand *st)
{
    for (uint32_t g = 0; g < w->s->sets[st->set].n_groups && gr_may_go_on(w->s); g++)
        if (w->s->sets[st->set].resources[g].span == GR_SPAN_SPILL && st->choice[g].parts < GR_PARTS &&
            !st->choice[g].policy)
            keep_of_group(w, st, g);
    keep(w->s, st);
}

void gr_descend_spilled(gr_schedule_search *s, const gr_residency *from)
{
    const gr_group *groups = s->sets[from->level].resources; /* sets move as there are more; these do not */
    const uint32_t n = s->sets[from->level].n_groups;
    bool *may = gr_calloc(2 * s->src->n_knobs + 1, sizeof(*may));
    walker w = {.s = s, .may_lower = may, .frozen = may + s->src->n_knobs};
    gr_stand st = {.set = from->level, .ahead = from->ahead};
    for (size_t k = 0; k < s->src->n_knobs; k++) may[k] = gr_keeps_bits(&s->src->knobs[k]);
    st.choice = choice_like(s, n, from->choice);
    for (uint32_t g = 0; g < n; g++) st.choice[g].policy = gr_policy_of(s->o, &groups[g]);
    gr_stand_price(s, &st, true);
    const gr_stand first = st;
    for (uint32_t g = 0; g < n; g++)
        for (uint32_t k = 0; k < 4 && groups[g].span == GR_SPAN_SPILL && !first.choice[g].policy; k++)
            st = better_of(st, spill(&w, &first, g, k * GR_QUARTER));
    gr_allow(s, s->work / 100 * FOR_SPILLS / 2);
    climb(&w, &st);
    gr_allow(s, s->work / 100 * FOR_SPILLS / 8);
    keep_what_fits(&w, &st);
    free(may);
    free(w.list.all);
}

/* ---- what changes bits --------------------------------------------------------------------------------- */

size_t gr_cheapest_knob(gr_schedule_search *s, const gr_stand *from, const bool *may_lower)
{
    size_t best = SIZE_MAX;
    double most = 0;
    for (int far = 0; far < 2 && best == SIZE_MAX;
         far++) /* the next level, where that brings nothing the last */
        for (size_t k = 0; k < s->src->n_knobs; k++) {
            const uint32_t now = s->sets[from->set].level[k], last = s->src->knobs[k].n_levels - 1;
            if (!may_lower[k] || now == last) continue;
            gr_stand next = gr_stand_at_level(s, from, k, far ? last : now + 1);
            const double worth = worth_of(s, from, &next);
            if (worth <= most) continue;
            most = worth;
            best = k;
        }
    return best;
}
