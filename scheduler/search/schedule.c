/* scheduler/search/schedule.c: the search over choices for the fastest plan that fits. */
#include "scheduler/search/schedule_parts.h"

#include <stdlib.h>
#include <string.h>

#define EFFORT         400000 /* works laid out, over all residencies of all programs, about */
#define FIRST_LOOK     60
#define LEAST_STATES   800
#define MOST_STATES    16384
#define MAX_LEVELS     48       /* programs gone through whose bits are the same */
#define MOST_EFFORT    10000000 /* works laid out, so that they are */
#define DESCENT_EFFORT 12000000 /* steps laid out on one way down and up */
#define MOST_MARGINS   4
#define PACK_TRIES     40
#define MOST_LATER     24 /* candidates whose loads are placed later, of a list */
#define CORNERS        16 /* programs looked at before a refusal */
#define QUICK_LEVELS   3
#define QUICK_EFFORT   40000 /* works laid out for each of these */
#define QUICK_STATES   400

static gr_room arena_room;

static void lay_out(gr_schedule_search *s, const gr_residency *st)
{
    const gr_analysis *f = gr_level_set_take(s, st->level)->analysis;
    gr_transfers_make(gr_transfers_for(s, st->level), f, st->choice, st->ahead);
}

/* With the room that makes it faster. */
static void lay_out_wide(gr_schedule_search *s, const gr_residency *st)
{
    const gr_analysis *f = gr_level_set_take(s, st->level)->analysis;
    gr_transfers_fit(gr_transfers_for(s, st->level), f, st->choice, st->ahead,
                     gr_arena_budget(s, st->level, st->host));
}

static uint64_t arena_room(const void *user, uint32_t level, uint64_t host)
{
    return gr_arena_budget(user, level, host);
}

static bool may_fit(const gr_schedule_search *s, const gr_residency *st)
{
    return st->live <= gr_arena_budget(s, st->level, st->host) && st->host <= gr_host_room(s, st->level);
}

/* Price the residencies of one set of levels: `most` of them, or all resident alone. */
static void search_residencies(gr_schedule_search *s, uint32_t level, uint32_t most)
{
    const gr_analysis *f = gr_level_set_take(s, level)->analysis;
    gr_policy *policies = gr_calloc(f->n_groups + 1, sizeof(*policies));
    for (uint32_t g = 0; g < f->n_groups; g++) policies[g] = gr_policy_of(s->o, &f->groups[g]);
    gr_search(&s->found, gr_transfers_for(s, level), f, level, policies, most, arena_room, s, s->arena);
    free(policies);
}

/* A first look; the rest only where something of it fits. So more memory never leaves fewer to choose from.
 */
static void search_if_it_fits(gr_schedule_search *s, uint32_t level, uint32_t most)
{
    size_t begin = s->found.n;
    bool fits = false;
    search_residencies(s, level, FIRST_LOOK);
    for (size_t i = begin; i < s->found.n; i++) fits |= may_fit(s, &s->found.all[i]);
    if (!fits) return;
    s->found.n = begin;
    search_residencies(s, level, most);
}

/* How many residencies of each of n programs of this size: fewer where there is more to lay out. */
static uint32_t states_each(size_t works, size_t n)
{
    size_t each = EFFORT / (GR_MAX(works, (size_t)1) * n);
    return (uint32_t)GR_MIN(GR_MAX(each, (size_t)LEAST_STATES), (size_t)MOST_STATES);
}

/* How many there are of knobs that keep the bits; more than MAX_LEVELS: some number above that. */
static uint32_t count_levels(const gr_tasks_source *src)
{
    uint32_t n = 1;
    for (size_t k = 0; k < src->n_knobs && n <= MAX_LEVELS; k++)
        if (gr_keeps_bits(&src->knobs[k])) n *= src->knobs[k].n_levels;
    return n;
}

/* Sets to be searched. */
typedef struct set_list {
    uint32_t *set;
    size_t n, cap;
} set_list;

static void add_set(gr_schedule_search *s, set_list *l, const uint32_t *level)
{
    const uint32_t set = gr_level_set_at(s, level);
    for (size_t i = 0; i < l->n; i++)
        if (l->set[i] == set) return;
    GR_PUSH(l->set, l->n, l->cap, set);
}

typedef struct candidate { /* a residency, in its own bytes or in all the room there is */
    size_t residency;
    bool wide;
    uint64_t ns;
} candidate;

static int by_time(const void *a, const void *b, void *user)
{
    const candidate *x = a, *y = b;
    const gr_residency *all = ((const gr_schedule_search *)user)->found.all, *p = &all[x->residency],
                       *q = &all[y->residency];
    if (x->ns != y->ns) return x->ns < y->ns ? -1 : 1;
    if (x->wide != y->wide) return x->wide ? 1 : -1;
    if (p->n_transitions != q->n_transitions) return p->n_transitions < q->n_transitions ? -1 : 1;
    return x->residency < y->residency ? -1 : x->residency > y->residency;
}

/* What may fit, the fastest first. */
static candidate *find_candidates(gr_schedule_search *s, size_t begin, size_t *n)
{
    candidate *list = gr_malloc((2 * (s->found.n - begin) + 1) * sizeof(*list));
    *n = 0;
    for (size_t i = begin; i < s->found.n; i++) {
        const gr_residency *st = &s->found.all[i];
        if (!may_fit(s, st)) continue;
        list[(*n)++] = (candidate){i, false, st->ns};
        if (st->wide_ns < st->ns) list[(*n)++] = (candidate){i, true, st->wide_ns};
    }
    qsort_r(list, *n, sizeof(*list), by_time, s);
    return list;
}

/* Which of two moves less. */
static int by_moves(const void *a, const void *b, void *user)
{
    const candidate *x = a, *y = b;
    const gr_residency *all = ((const gr_schedule_search *)user)->found.all;
    const uint64_t p = all[x->residency].copied, q = all[y->residency].copied;
    return p != q ? p < q ? -1 : 1 : by_time(a, b, user);
}

static bool is_within(const gr_schedule_search *s, const gr_plan *p)
{
    return p->peak_bytes <= s->o->budget_bytes && p->host_bytes <= s->o->host_budget_bytes;
}

static gr_plan *build(gr_schedule_search *s, uint32_t level)
{
    return gr_plan_build(&s->transfers, gr_level_set_take(s, level)->analysis, 0, PACK_TRIES);
}

/* The plan of a candidate; NULL: offsets are not found for it. *lacks: bytes, where those are the device's.
 */
static gr_plan *pack(gr_schedule_search *s, const candidate *c, uint64_t *lacks)
{
    const gr_residency *st = &s->found.all[c->residency];
    if (c->wide)
        lay_out_wide(s, st);
    else
        lay_out(s, st);
    gr_plan *p = build(s, st->level);
    *lacks = 0;
    if (is_within(s, p)) return p;
    if (p->peak_bytes > s->o->budget_bytes) *lacks = p->peak_bytes - s->o->budget_bytes;
    gr_plan_free(p);
    return NULL;
}

/* The same where loads stand later than they could: all that live at once at some instants no less, but all
 * that live at others, and offsets are found where they were not. NULL: not for any. */
static gr_plan *pack_later(gr_schedule_search *s, const candidate *c)
{
    static const uint8_t rooms[] = {62, 60, 57, 54, 51, 45, 32, 0}; /* of 64, which loads may fill */
    const gr_residency *st = &s->found.all[c->residency];
    const uint64_t room = gr_arena_budget(s, st->level, st->host);
    for (size_t i = 0; i < GR_LEN(rooms); i++) {
        const gr_analysis *f = gr_level_set_take(s, st->level)->analysis;
        gr_transfers *l = gr_transfers_for(s, st->level);
        gr_transfers_within(l, f, st->choice, st->ahead, room / 64 * rooms[i]);
        if (l->live > room) continue;
        gr_plan *p = build(s, st->level);
        if (is_within(s, p)) return p;
        gr_plan_free(p);
    }
    return NULL;
}

/* What was found so far of a list. */
typedef struct packed {
    gr_plan *plan; /* NULL: nothing */
    size_t at;     /* of which candidate */
} packed;

/* Keeps the faster. */
static void keep_faster(packed *best, gr_plan *p, size_t at)
{
    if (!p || (best->plan && best->plan->ns <= p->ns)) {
        gr_plan_free(p);
        return;
    }
    gr_plan_free(best->plan);
    *best = (packed){p, at};
}

/* The fastest of them for which offsets are found, with loads that stand later where need be. */
static packed pack_fastest(gr_schedule_search *s, const candidate *list, size_t n)
{
    packed best = {0};
    uint32_t later = 0;
    for (size_t i = 0; i < n && (!best.plan || list[i].ns < best.plan->ns); i++) {
        uint64_t lacks;
        gr_plan *p = pack(s, &list[i], &lacks);
        if (p) {
            keep_faster(&best, p, i);
            break;
        }
        if (!lacks) continue;
        const gr_residency *st = &s->found.all[list[i].residency];
        const bool again = !list[i].wide && st->wide_ns < st->ns; /* its wider form came before */
        if (!again && later++ < MOST_LATER) keep_faster(&best, pack_later(s, &list[i]), i);
        if (list[i].ns < s->lost_ns && !(best.plan && best.plan->ns <= gr_near_ns(list[i].ns))) {
            s->lost_ns = list[i].ns;
            s->lacks = lacks;
        }
    }
    return best;
}

/* The first of them for which they are, as it is. */
static packed pack_first(gr_schedule_search *s, const candidate *list, size_t n)
{
    uint64_t lacks;
    for (size_t i = 0; i < n; i++) {
        gr_plan *p = pack(s, &list[i], &lacks);
        if (p) return (packed){p, i};
    }
    return (packed){0};
}

/* Of all that fit and take as long as the fastest that does, or nearly, the one that moves least. */
static gr_plan *choose(gr_schedule_search *s, size_t begin, uint32_t *level)
{
    size_t n, n_near = 0, n_less = 0;
    candidate *list = find_candidates(s, begin, &n);
    packed best = pack_fastest(s, list, n);
    if (best.plan) {
        const candidate *taken = &list[best.at];
        candidate *near = &list[best.at + 1];
        while (near + n_near < list + n && near[n_near].ns <= gr_near_ns(best.plan->ns)) n_near++;
        qsort_r(near, n_near, sizeof(*near), by_moves, s);
        while (n_less < n_near && by_moves(&near[n_less], taken, s) < 0) n_less++;
        const packed less = pack_first(s, near, n_less);
        if (less.plan) {
            gr_plan_free(best.plan);
            best.plan = less.plan;
            taken = &near[less.at];
        }
        s->taken = s->found.all[taken->residency];
        const gr_level_set *set = &s->sets[s->taken.level];
        if (s->src->n_knobs) memcpy(level, set->level, s->src->n_knobs * sizeof(*level));
    }
    free(list);
    return best.plan;
}

/* Which of two that do not fit comes closer: on the device, where the host pool has room for it; else in the
 * host pool, where the device has. */
static bool is_smaller(const gr_schedule_search *s, const gr_residency *a, const gr_residency *b)
{
    bool host_a = a->host <= s->o->host_budget_bytes, host_b = b->host <= s->o->host_budget_bytes;
    if (host_a != host_b) return host_a;
    bool arena_a = !host_a && a->live <= gr_arena_budget(s, a->level, a->host),
         arena_b = !host_b && b->live <= gr_arena_budget(s, b->level, b->host);
    if (arena_a != arena_b) return arena_a;
    if (arena_a && a->host != b->host) return a->host < b->host;
    return a->live != b->live ? a->live < b->live : a->ns < b->ns;
}

static const gr_residency *smallest_of(const gr_schedule_search *s)
{
    size_t best = 0;
    for (size_t i = 1; i < s->found.n; i++)
        if (is_smaller(s, &s->found.all[i], &s->found.all[best])) best = i;
    return &s->found.all[best];
}

static gr_plan *smallest(gr_schedule_search *s, uint32_t *level)
{
    const gr_residency *st = smallest_of(s);
    lay_out(s, st);
    if (s->src->n_knobs) memcpy(level, s->sets[st->level].level, s->src->n_knobs * sizeof(*level));
    gr_plan *p = build(s, st->level);
    gr_transfers_within(&s->transfers, gr_level_set_take(s, st->level)->analysis, st->choice, st->ahead, 0);
    gr_plan *late = build(s, st->level);
    const bool less = late->arena_bytes < p->arena_bytes;
    gr_plan_free(less ? p : late);
    return less ? late : p;
}

static const char *make_notes(const gr_tasks_source *src, const uint32_t *level, gr_plan *p)
{
    gr_str s = {0}, text = {0};
    for (size_t k = 0; k < src->n_knobs; k++) {
        if (!level[k]) continue;
        gr_str_release(&text);
        if (src->describe)
            src->describe(src->user, k, level[k], &text);
        else
            gr_str_printf(&text, "level %u", level[k]);
        gr_str_printf(&s, "%s: %s, to fit the budget%s\n", src->knobs[k].name,
                      text.len ? text.text : "changed",
                      !gr_keeps_bits(&src->knobs[k]) ? " (changes the bits of results)" : "");
    }
    const char *notes = s.len ? gr_arena_strdup(p->arena, s.text) : "";
    gr_str_release(&s);
    gr_str_release(&text);
    return notes;
}

static void search_free(gr_schedule_search *s)
{
    gr_level_sets_free(s);
    gr_transfers_release(&s->transfers);
    free(s->found.all);
    gr_arena_free(s->arena);
}

static void search_sets(gr_schedule_search *s, const set_list *l)
{
    const uint32_t each = l->n ? states_each(s->sets[l->set[0]].n_tasks, l->n) : 0;
    for (size_t i = 0; i < l->n; i++)
        if (!gr_cannot_fit(s, l->set[i])) search_if_it_fits(s, l->set[i], each);
}

/* Whether all may stay with the first levels of what keeps the bits. */
static bool fits_resident(gr_schedule_search *s, size_t set)
{
    const size_t begin = s->found.n;
    search_residencies(s, (uint32_t)set, 1);
    bool fits = may_fit(s, &s->found.all[begin]);
    s->found.n = begin;
    return fits;
}

/* Whether the residencies of so many programs can be gone through. */
static bool is_affordable(size_t n, uint32_t n_tasks)
{
    return n <= MAX_LEVELS && (uint64_t)n * n_tasks * LEAST_STATES <= MOST_EFFORT;
}

/* The sets with all levels of the knobs that keep the bits, from these on. */
static void add_all(gr_schedule_search *s, set_list *l, const uint32_t *first)
{
    uint32_t *level = gr_calloc(s->src->n_knobs + 1, sizeof(*level));
    if (s->src->n_knobs) memcpy(level, first, s->src->n_knobs * sizeof(*level));
    do add_set(s, l, level);
    while (gr_next_levels(s->src, level, gr_keeps_bits));
    free(level);
}

/* Those with one level of one knob that keeps the bits better. */
static void add_better(gr_schedule_search *s, set_list *l, uint32_t set, size_t most)
{
    uint32_t *level = gr_calloc(s->src->n_knobs + 1, sizeof(*level));
    for (size_t k = 0; k < s->src->n_knobs && l->n < most; k++) {
        if (!gr_keeps_bits(&s->src->knobs[k]) || !s->sets[set].level[k]) continue;
        memcpy(level, s->sets[set].level, s->src->n_knobs * sizeof(*level));
        level[k]--;
        add_set(s, l, level);
    }
    free(level);
}

/* Of the sets in which descents found what fits, those with the fastest, and then what is next to the first.
 */
static void add_found(gr_schedule_search *s, set_list *l, size_t begin, size_t most)
{
    size_t n;
    candidate *list = find_candidates(s, begin, &n);
    most += l->n;
    for (size_t i = 0; i < n && l->n < most; i++)
        add_set(s, l, s->sets[s->found.all[list[i].residency].level].level);
    if (n) add_better(s, l, s->found.all[list[0].residency].level, most);
    free(list);
}

static bool *knobs_of(const gr_schedule_search *s, gr_knob_sort *such)
{
    bool *may = gr_calloc(s->src->n_knobs + 1, sizeof(*may));
    for (size_t k = 0; k < s->src->n_knobs; k++) may[k] = such(&s->src->knobs[k]);
    return may;
}

/* From all resident down, without luxuries, to what may be packed in all but the margin. */
static void descend(gr_schedule_search *s, const uint32_t *first)
{
    bool *may = knobs_of(s, gr_keeps_bits);
    s->effort = s->effort_below = DESCENT_EFFORT / 2;
    s->stand = gr_descend(s, first, may);
    free(may);
}

/* The residencies of all levels that keep the bits, or of those that the way down led to. */
static void search_without(gr_schedule_search *s, set_list *l, const uint32_t *first, size_t begin)
{
    const uint32_t n_tasks = s->sets[gr_level_set_at(s, first)].n_tasks;
    add_set(s, l, first);
    if (is_affordable(count_levels(s->src), n_tasks))
        add_all(s, l, first);
    else
        add_found(s, l, begin, GR_MAX(MOST_EFFORT / LEAST_STATES / GR_MAX(n_tasks, 1u), 1u));
    search_sets(s, l);
}

/* Another way down, in what is less the margin: its plan, where it is faster than p. */
static gr_plan *plan_again(gr_schedule_search *s, const uint32_t *first, gr_plan *p, uint32_t *level)
{
    uint32_t *others = gr_calloc(s->src->n_knobs + 1, sizeof(*others));
    const gr_residency taken = s->taken;
    const size_t begin = s->found.n;
    descend(s, first);
    gr_plan *other = choose(s, begin, others);
    if (other && (!p || other->ns < p->ns)) {
        gr_plan_free(p);
        p = other;
        if (s->src->n_knobs) memcpy(level, others, s->src->n_knobs * sizeof(*level));
    } else {
        gr_plan_free(other);
        s->taken = taken;
    }
    free(others);
    return p;
}

/* Where offsets are not found for what would fit and be faster, another way down leaves as much room as they
 * lacked. */
static gr_plan *plan_without(gr_schedule_search *s, set_list *l, const uint32_t *first, uint32_t *level)
{
    const size_t begin = s->found.n;
    descend(s, first);
    const gr_stand stand = s->stand;
    search_without(s, l, first, begin);
    s->lost_ns = UINT64_MAX;
    gr_plan *p = choose(s, 0, level);
    for (int tries = 0; tries < MOST_MARGINS && s->lost_ns < UINT64_MAX; tries++) {
        if (p && p->ns <= gr_near_ns(s->lost_ns)) break;
        s->margin += s->lacks + s->lacks / 8;
        s->lost_ns = UINT64_MAX;
        p = plan_again(s, first, p, level);
    }
    s->margin = 0;
    s->stand = stand;
    return p;
}

/* All resident does not fit with the first levels, of which walk is. Luxuries are tried with them alone.
 * Where all is resident without, nothing else without is faster. */
static gr_plan *search_levels(gr_schedule_search *s, uint32_t *walk, uint32_t *level)
{
    const gr_tasks_source *src = s->src;
    const size_t begin = s->found.n;
    set_list with = {0};
    gr_plan *p = NULL;
    do add_set(s, &with, walk);
    while (gr_next_levels(src, walk, gr_is_spare));
    const uint32_t without = with.set[--with.n];
    if (with.n && fits_resident(s, without)) {
        search_sets(s, &with);
        search_residencies(s, without, 1);
        p = choose(s, begin, level);
    }
    if (!p) {
        s->found.n = begin;
        gr_set_last_levels(src, walk, gr_is_spare);
        p = plan_without(s, &with, walk, level);
    }
    free(with.set);
    return p;
}

/* Try one choice of the knobs that change bits, with everything that does not. level: what was chosen. */
static gr_plan *try_levels(gr_schedule_search *s, const uint32_t *bits, uint32_t *level)
{
    uint32_t *walk = gr_calloc(s->src->n_knobs + 1, sizeof(*walk));
    for (size_t k = 0; k < s->src->n_knobs; k++) walk[k] = gr_costs_bits(&s->src->knobs[k]) ? bits[k] : 0;
    s->found.n = 0;
    search_residencies(s, gr_level_set_at(s, walk), 1);
    gr_plan *p = choose(s, 0, level); /* all resident at the first levels: no search */
    if (!p) {
        s->found.n = 0;
        p = search_levels(s, walk, level);
    }
    free(walk);
    return p;
}

static uint32_t last_level(const gr_schedule_search *s, size_t knob)
{
    const gr_knob *k = &s->src->knobs[knob];
    return s->o->keep_bits && !gr_keeps_bits(k) ? 0 : k->n_levels - 1;
}

/* Whether no program may fit: since each next level needs less memory, none does where those do not that have
 * every knob at its last level, or of those that keep the bits some at their first. */
static bool is_hopeless(gr_schedule_search *s)
{
    const gr_tasks_source *src = s->src;
    uint32_t *level = gr_calloc(src->n_knobs + 1, sizeof(*level)), n_free = 0;
    bool hopeless = true;
    for (size_t k = 0; k < src->n_knobs; k++) n_free += gr_keeps_bits(&src->knobs[k]);
    uint32_t corners = n_free < 5 ? 1u << n_free : CORNERS;
    for (uint32_t c = 0; c < corners && hopeless; c++) {
        uint32_t at = 0;
        for (size_t k = 0; k < src->n_knobs; k++) {
            bool first = gr_keeps_bits(&src->knobs[k]) && at < 5 && c >> at & 1;
            at += gr_keeps_bits(&src->knobs[k]);
            level[k] = first ? 0 : last_level(s, k);
        }
        hopeless = gr_cannot_fit(s, gr_level_set_at(s, level));
    }
    free(level);
    return hopeless;
}

/* Of all knobs together the first level, one between, the last: of what fits the fastest. */
static gr_plan *find_quickly(gr_schedule_search *s, uint32_t *level)
{
    const gr_tasks_source *src = s->src;
    uint32_t *walk = gr_calloc(src->n_knobs + 1, sizeof(*walk));
    gr_plan *p = NULL;
    for (uint32_t i = 0; i < QUICK_LEVELS && !p; i++) {
        size_t begin = s->found.n;
        for (size_t k = 0; k < src->n_knobs; k++) walk[k] = last_level(s, k) * i / (QUICK_LEVELS - 1);
        if (i) gr_set_last_levels(src, walk, gr_is_spare);
        const uint32_t set = gr_level_set_at(s, walk);
        size_t states = QUICK_EFFORT / GR_MAX((size_t)s->sets[set].n_tasks, (size_t)1);
        if (gr_cannot_fit(s, set) && i + 1 < QUICK_LEVELS) continue;
        search_residencies(s, set,
                           (uint32_t)GR_MIN(GR_MAX(states, (size_t)FIRST_LOOK), (size_t)QUICK_STATES));
        p = choose(s, begin, level);
    }
    free(walk);
    return p;
}

/* What fits with one level more of one knob that changes bits, from the way down that did not: the one that
 * brings down most for the time that it costs; and on, until something does. */
static gr_plan *lower_bits(gr_schedule_search *s, uint32_t *walk, uint32_t *level)
{
    bool *bits = knobs_of(s, gr_costs_bits), *same = knobs_of(s, gr_keeps_bits);
    gr_plan *p = NULL;
    while (!p) {
        s->effort = DESCENT_EFFORT;
        const size_t k = gr_cheapest_knob(s, &s->stand, bits);
        if (k == SIZE_MAX) break;
        walk[k]++;
        s->stand = gr_descend_from(s, &s->stand, k, walk[k], same);
        if (s->stand.over <= 0) p = try_levels(s, walk, level);
    }
    if (!p) { /* no level by itself */
        gr_set_last_levels(s->src, walk, gr_costs_bits);
        p = try_levels(s, walk, level);
    }
    free(bits);
    free(same);
    return p;
}

/* Take a plan in place of another, if there is one. */
static bool take_plan(gr_plan **p, gr_plan *other)
{
    if (!other) return false;
    gr_plan_free(*p);
    *p = other;
    return true;
}

/* Levels that change bits go back up where that fits: only what must is lowered. */
static gr_plan *raise_bits(gr_schedule_search *s, uint32_t *walk, uint32_t *level, gr_plan *p)
{
    for (size_t k = 0; k < s->src->n_knobs; k++) {
        const uint32_t was = walk[k];
        if (!was || !gr_costs_bits(&s->src->knobs[k])) continue;
        walk[k] = 0;
        if (take_plan(&p, try_levels(s, walk, level))) continue;
        for (walk[k] = was; walk[k] > 1; walk[k]--) {
            walk[k]--;
            const bool fits = take_plan(&p, try_levels(s, walk, level));
            walk[k]++;
            if (!fits) break;
        }
    }
    return p;
}

/* The smallest that is found, whatever the device has: its budget would find it again. */
static gr_plan *find_least(gr_schedule_search *s, uint32_t *level)
{
    uint32_t *walk = gr_calloc(s->src->n_knobs + 1, sizeof(*walk));
    for (size_t k = 0; k < s->src->n_knobs; k++) walk[k] = last_level(s, k);
    s->found.n = 0;
    s->effort = DESCENT_EFFORT;
    const uint32_t set = gr_level_set_at(s, walk);
    search_residencies(s, set, LEAST_STATES);
    gr_descend_to_least(s, set, smallest_of(s));
    gr_descend_to_least(s, set, NULL);
    gr_plan *p = choose(s, 0, level);
    free(walk);
    return p ? p : smallest(s, level);
}

/* The least change of the knobs that change bits with which anything fits. */
static gr_plan *find_plan(gr_schedule_search *s, uint32_t *level)
{
    uint32_t *walk = gr_calloc(s->src->n_knobs + 1, sizeof(*walk));
    gr_plan *p = try_levels(s, walk, level);
    if (!p && !s->o->keep_bits && !is_hopeless(s)) {
        p = lower_bits(s, walk, level);
        if (p) p = raise_bits(s, walk, level, p);
    }
    free(walk);
    return p ? p : find_least(s, level);
}

gr_status gr_schedule(gr_plan **out, uint32_t *level, const gr_tasks_source *src,
                      const gr_schedule_options *o, gr_diag *d)
{
    gr_schedule_search s = {.src = src, .o = o, .laid = UINT32_MAX, .arena = gr_arena_new()};
    gr_plan *p = o->quick ? find_quickly(&s, level) : find_plan(&s, level);
    if (!p) p = smallest(&s, level);
    const bool fits = p->peak_bytes <= o->budget_bytes && p->host_bytes <= o->host_budget_bytes;
    p->hardware = gr_arena_strdup(p->arena, o->hardware.name);
    p->device = o->hardware.device;
    p->ranks = "0";
    p->budget_bytes = o->budget_bytes;
    p->host_budget_bytes = o->host_budget_bytes;
    p->fits = fits;
    p->notes = make_notes(src, level, p);
    if (fits && !o->quick) p->reasons = gr_explain(&s, &s.taken, p->arena);
    gr_status st = fits ? GR_OK : gr_refuse(&s, p, d);
    search_free(&s);
    *out = p;
    return st;
}
