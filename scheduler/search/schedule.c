/* scheduler/search/schedule.c: the search over choices for the fastest plan that fits. */
#include "scheduler/search/build.h"
#include "scheduler/search/schedule_parts.h"
#include "scheduler/search/timeline.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define WORK         GR_SEARCH_WORK /* steps looked at (gr_transfers.work): seconds */
#define QUICK_WORK   3000000
#define EFFORT       400000 /* works laid out, over all residencies of all programs, about */
#define FIRST_LOOK   60     /* residencies of a program, or so many works laid out */
#define FIRST_WORKS  20000
#define LEAST_STATES 800
#define MOST_STATES  16384
#define MAX_LEVELS   48       /* programs gone through whose bits are the same */
#define MOST_EFFORT  10000000 /* works laid out, so that they are */
#define PROBE_EFFORT 1000000  /* the same, where it is only asked whether anything fits */
#define MOST_MARGINS 6
#define PACK_TRIES   40
#define PROBE_TRIES  10
#define QUICK_TRIES  5
#define HURRIED      8 /* so small a part of a search packs as where it is only asked what fits */
#define MOST_PACKING \
    2 /* and so many times its work is that of the packings of a list, where one of it fits */
#define PACKING     60 /* work of offsets in one order, a copy */
#define MOST_LATER  24 /* candidates whose loads are placed later, of a list */
#define FEW_WAITING 24 /* candidates packed of a list whose steps wait for bytes that others still use */
#define WAITING_SHARE                                                                       \
    40 /* and more of few copies, or not found for, by such a part of the work: each is the \
          square of their number */
#define EVERY_PACKING 24  /* offsets not found for so many: only what takes less is tried */
#define LEAST_PACKING 2   /* so many in a search that has a small part of the work */
#define LESS_TO_PACK  256 /* by such a part */
#define MOST_FREE     4   /* programs whose residencies are searched, with any levels */

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
void gr_search_set(gr_schedule_search *s, uint32_t level, uint32_t most)
{
    const gr_analysis *f = gr_level_set_take(s, level)->analysis;
    gr_policy *policies = gr_calloc(f->n_groups + 1, sizeof(*policies));
    for (uint32_t g = 0; g < f->n_groups; g++) policies[g] = gr_policy_of(s->o, &f->groups[g]);
    gr_search(&s->found, gr_transfers_for(s, level), f, level, policies, (gr_search_most){most, s->until},
              arena_room, s, s->arena);
    free(policies);
}

/* A first look; the rest only where something of it fits. So more memory never leaves fewer to choose from.
 */
static void search_if_it_fits(gr_schedule_search *s, uint32_t level, uint32_t most)
{
    size_t begin = s->found.n;
    bool fits = false;
    const size_t works = gr_level_set_take(s, level)->n_tasks;
    gr_search_set(s, level, GR_MAX(FIRST_LOOK, (uint32_t)(FIRST_WORKS / GR_MAX(works, (size_t)1))));
    for (size_t i = begin; i < s->found.n; i++) fits |= may_fit(s, &s->found.all[i]);
    if (!fits) return;
    s->found.n = begin;
    gr_search_set(s, level, most);
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
    return gr_plan_within(p, s->o->budget_bytes, s->o->host_budget_bytes, s->o->disk_budget_bytes);
}

static bool is_hurried(const gr_schedule_search *s)
{
    return s->o->hurry >= HURRIED;
}

static uint32_t tries_of(const gr_schedule_search *s)
{
    return s->o->quick || is_hurried(s) ? QUICK_TRIES : s->probes ? PROBE_TRIES : PACK_TRIES;
}

/* What offsets take: all orders are tried, unless the first packs to the bound. */
static void charge_packing(gr_schedule_search *s, bool to_bound)
{
    const uint32_t tries = to_bound ? 1 : tries_of(s);
    s->transfers.work += (uint64_t)PACKING * tries * s->transfers.n_copies;
}

/* apart: see build.h. NULL: that is more than there is. */
static gr_plan *build_once(gr_schedule_search *s, uint32_t level, gr_apart apart)
{
    const gr_analysis *f = gr_level_set_take(s, level)->analysis;
    gr_plan *p = gr_plan_pack(&s->transfers, f, &s->packings, apart, tries_of(s));
    charge_packing(s, p && p->arena_bytes <= s->transfers.live);
    if (!p || !is_within(s, p)) return p;
    gr_plan_finish(p, &s->transfers, f);
    const uint64_t waits = gr_timeline_waits_ns(p);
    p->ns = GR_MAX(p->ns, waits);
    return p;
}

/* What is above the budgets has its ledger alone. Its time is known when its offsets are: where a step's
 * bytes are those of an offload that still runs, it waits, unless others are found: where all that is still
 * busy is kept apart, or as much of it as there is room for. Roles wait for each other besides, which is seen
 * when all have plans. */
static gr_plan *build(gr_schedule_search *s, uint32_t level)
{
    static const uint8_t rooms[] = {64, 63, 60, 54}; /* of 64 */
    const uint64_t wanted = gr_near_ns(s->transfers.ns),
                   room = gr_arena_budget(s, level, s->transfers.host_live);
    gr_plan *best = build_once(s, level, (gr_apart){0, room});
    for (size_t i = 0; i <= GR_LEN(rooms) && is_within(s, best) && best->ns > wanted; i++) {
        if (i && (s->o->quick || s->probes)) break;
        if (i <= GR_LEN(rooms) / 2 && is_hurried(s)) continue; /* that seldom fits */
        const uint64_t held = i ? room / 64 * rooms[i - 1] : UINT64_MAX;
        gr_plan *apart = build_once(s, level, (gr_apart){held, room});
        const bool faster = apart && is_within(s, apart) && apart->ns < best->ns;
        gr_plan_free(faster ? best : apart);
        if (faster) best = apart;
    }
    return best;
}

/* The same with all steps, whether it is within the budgets or not. */
static gr_plan *build_whole(gr_schedule_search *s, uint32_t level)
{
    gr_plan *p = build(s, level);
    if (!is_within(s, p)) gr_plan_finish(p, &s->transfers, gr_level_set_take(s, level)->analysis);
    return p;
}

static void lay_out_as(gr_schedule_search *s, const candidate *c)
{
    const gr_residency *st = &s->found.all[c->residency];
    if (c->wide)
        lay_out_wide(s, st);
    else
        lay_out(s, st);
}

/* The plan of a candidate; NULL: offsets are not found for it. *lacks: bytes, where those are the device's.
 */
static gr_plan *pack(gr_schedule_search *s, const candidate *c, uint64_t *lacks)
{
    const gr_residency *st = &s->found.all[c->residency];
    lay_out_as(s, c);
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

/* Where offsets were not found for many of a list, of few copies many more, only what takes less than any of
 * those is tried, and less and less. */
typedef struct patience {
    uint64_t least;
    uint32_t failed;
    uint64_t effort; /* squares of their numbers of copies */
} patience;

/* So many candidates in a whole search, in the same measure fewer in a shorter one. */
static uint32_t share_of(const gr_schedule_search *s, uint32_t most)
{
    return GR_MAX((uint32_t)(most * GR_MIN(s->work, (uint64_t)WORK) / WORK), (uint32_t)LEAST_PACKING);
}

static bool is_in_vain(const gr_schedule_search *s, const patience *left, const candidate *c)
{
    return left->failed >= share_of(s, EVERY_PACKING) && left->effort > s->work / WAITING_SHARE &&
           s->found.all[c->residency].live >= left->least;
}

static void lose_patience(const gr_schedule_search *s, patience *left, const candidate *c)
{
    const uint64_t live = s->found.all[c->residency].live;
    left->least = GR_MIN(left->least, live - live / LESS_TO_PACK);
    left->effort += (uint64_t)s->transfers.n_copies * s->transfers.n_copies;
    left->failed++;
}

/* The fastest of them for which offsets are found, with loads that stand later where need be. Of a few, and
 * of many where they are small, it is seen how long their steps wait for bytes. */
static packed pack_fastest(gr_schedule_search *s, const candidate *list, size_t n)
{
    packed best = {0};
    uint32_t later = 0, waiting = 0;
    patience left = {.least = UINT64_MAX};
    uint64_t waited = 0;
    const uint64_t end = s->transfers.work + MOST_PACKING * s->work;
    for (size_t i = 0; i < n && (!best.plan || list[i].ns < best.plan->ns); i++) {
        uint64_t lacks;
        if (best.plan && is_hurried(s) && s->transfers.work > end) break;
        if (is_in_vain(s, &left, &list[i])) continue;
        gr_plan *p = pack(s, &list[i], &lacks);
        if (p) {
            const bool waits = p->ns > gr_near_ns(list[i].ns);
            keep_faster(&best, p, i);
            waited += (uint64_t)s->transfers.n_copies * s->transfers.n_copies;
            if (!waits || (++waiting > share_of(s, FEW_WAITING) && waited > s->work / WAITING_SHARE)) break;
            continue;
        }
        lose_patience(s, &left, &list[i]);
        if (!lacks) continue;
        const gr_residency *st = &s->found.all[list[i].residency];
        const bool again = !list[i].wide && st->wide_ns < st->ns; /* its wider form came before */
        if (!again && later++ < (s->probes ? MOST_LATER / 8 : share_of(s, MOST_LATER)))
            keep_faster(&best, pack_later(s, &list[i]), i);
        if (list[i].ns < s->lost_ns && !(best.plan && best.plan->ns <= gr_near_ns(list[i].ns))) {
            s->lost_ns = list[i].ns;
            s->lacks = lacks;
            s->lost = *st;
        }
    }
    return best;
}

/* The first of them for which they are, as it is, in no more time. */
static packed pack_first(gr_schedule_search *s, const candidate *list, size_t n, uint64_t most)
{
    patience left = {.least = UINT64_MAX};
    for (size_t i = 0; i < n; i++) {
        uint64_t lacks;
        if (is_in_vain(s, &left, &list[i])) continue;
        gr_plan *p = pack(s, &list[i], &lacks);
        if (p && p->ns <= most) return (packed){p, i};
        lose_patience(s, &left, &list[i]);
        gr_plan_free(p);
    }
    return (packed){0};
}

/* Of all that fit and take as long as the fastest that does, or nearly, the one that moves least. */
static gr_plan *choose(gr_schedule_search *s, size_t begin, uint32_t *level)
{
    size_t n, n_near = 0, n_less = 0;
    candidate *list = find_candidates(s, begin, &n);
    s->given_up |= n && !s->probes && gr_is_too_slow(s, list[0].ns);
    packed best = pack_fastest(s, list, s->given_up ? 0 : n);
    if (best.plan) {
        const candidate *taken = &list[best.at];
        candidate *near = &list[best.at + 1];
        while (near + n_near < list + n && near[n_near].ns <= gr_near_ns(best.plan->ns)) n_near++;
        qsort_r(near, n_near, sizeof(*near), by_moves, s);
        while (n_less < n_near && by_moves(&near[n_less], taken, s) < 0) n_less++;
        const packed less = pack_first(s, near, n_less, gr_near_ns(best.plan->ns));
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

gr_plan *gr_choose_plan(gr_schedule_search *s, uint32_t *level)
{
    return choose(s, 0, level);
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

const gr_residency *gr_smallest_found(const gr_schedule_search *s)
{
    size_t best = 0;
    for (size_t i = 1; i < s->found.n; i++)
        if (is_smaller(s, &s->found.all[i], &s->found.all[best])) best = i;
    return &s->found.all[best];
}

gr_plan *gr_smallest(gr_schedule_search *s, uint32_t *level)
{
    const gr_residency *st = gr_smallest_found(s);
    s->taken = *st; /* of a plan that fits after all, where loads stand later */
    lay_out(s, st);
    if (s->src->n_knobs) memcpy(level, s->sets[st->level].level, s->src->n_knobs * sizeof(*level));
    gr_plan *p = build_whole(s, st->level);
    gr_transfers_within(&s->transfers, gr_level_set_take(s, st->level)->analysis, st->choice, st->ahead, 0);
    gr_plan *late = build_whole(s, st->level);
    const bool less = late->arena_bytes < p->arena_bytes;
    gr_plan_free(less ? p : late);
    return less ? late : p;
}

gr_plan *gr_any_plan(gr_schedule_search *s, uint32_t *level)
{
    const gr_residency *st = &s->found.all[0];
    lay_out(s, st);
    s->taken = *st;
    if (s->src->n_knobs) memcpy(level, s->sets[st->level].level, s->src->n_knobs * sizeof(*level));
    const gr_analysis *f = gr_level_set_take(s, st->level)->analysis;
    gr_plan *p = gr_plan_pack(&s->transfers, f, NULL, (gr_apart){0, 0}, 1);
    gr_plan_finish(p, &s->transfers, f);
    return p;
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
    gr_prices_release(&s->prices);
    gr_packings_release(&s->packings);
    free(s->found.all);
    gr_arena_free(s->arena);
}

static void search_sets(gr_schedule_search *s, const set_list *l)
{
    const uint32_t each = l->n ? states_each(s->sets[l->set[0]].n_tasks, l->n) : 0;
    for (size_t i = 0; i < l->n; i++) {
        const uint64_t left = s->limit - GR_MIN(s->limit, s->transfers.work);
        gr_allow(s, left / (l->n - i));
        if (i && !left) break;
        if (!gr_cannot_fit(s, l->set[i])) search_if_it_fits(s, l->set[i], each);
    }
}

/* Whether all may stay with the first levels of what keeps the bits. */
static bool fits_resident(gr_schedule_search *s, size_t set)
{
    const size_t begin = s->found.n;
    gr_search_set(s, (uint32_t)set, 1);
    bool fits = may_fit(s, &s->found.all[begin]);
    s->found.n = begin;
    return fits;
}

/* Whether the residencies of so many programs can be gone through. */
static bool is_affordable(const gr_schedule_search *s, size_t n, uint32_t n_tasks)
{
    return n <= MAX_LEVELS &&
           (uint64_t)n * n_tasks * LEAST_STATES <= (s->probes ? PROBE_EFFORT : MOST_EFFORT);
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

/* Of the sets in which descents found what fits, those with the fastest, and then what is next to the first;
 * of small programs also where the way down ended. */
static void add_found(gr_schedule_search *s, set_list *l, size_t begin, size_t most)
{
    size_t n;
    candidate *list = find_candidates(s, begin, &n);
    most += l->n;
    for (size_t i = 0; i < n && l->n < most; i++)
        add_set(s, l, s->sets[s->found.all[list[i].residency].level].level);
    if (n) add_better(s, l, s->found.all[list[0].residency].level, most);
    if (most > MAX_LEVELS) add_set(s, l, s->sets[s->stand.set].level);
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
    s->each_way = s->work / 100 * FOR_A_WAY;
    s->stand = gr_descend(s, first, may);
    free(may);
}

/* The residencies of all levels that keep the bits, or of those that the way down led to. */
static void search_without(gr_schedule_search *s, set_list *l, const uint32_t *first, size_t begin)
{
    const uint32_t n_tasks = s->sets[gr_level_set_at(s, first)].n_tasks;
    add_set(s, l, first);
    if (is_affordable(s, count_levels(s->src), n_tasks))
        add_all(s, l, first);
    else if (s->probes)
        return;
    else
        add_found(s, l, begin, GR_MAX(MOST_EFFORT / LEAST_STATES / GR_MAX(n_tasks, 1u), 1u));
    search_sets(s, l);
}

/* On from what offsets were not found for, down by the margin and up again: its plan, where it is faster than
 * p. */
static gr_plan *plan_again(gr_schedule_search *s, gr_plan *p, uint32_t *level)
{
    uint32_t *others = gr_calloc(s->src->n_knobs + 1, sizeof(*others));
    bool *may = knobs_of(s, gr_keeps_bits);
    const gr_residency taken = s->taken, lost = s->lost;
    const size_t begin = s->found.n;
    s->lost_ns = UINT64_MAX;
    gr_descend_again(s, &lost, may);
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
    free(may);
    return p;
}

/* Where offsets are not found for what would fit and be faster, less of it stays: as much as they lacked. */
static gr_plan *make_room(gr_schedule_search *s, gr_plan *p, uint32_t *level)
{
    const uint64_t end = s->transfers.work + s->work / 100 * (p ? FOR_ROOM : FOR_ANY);
    if (!s->probes) s->limit = GR_MAX(s->limit, end);
    for (int tries = 0;
         tries < MOST_MARGINS && s->lost_ns < UINT64_MAX && s->transfers.work < GR_MIN(end, s->limit);
         tries++) {
        if (p && (s->probes || p->ns <= gr_near_ns(s->lost_ns))) break;
        s->margin += s->lacks + s->lacks * (1 + (uint64_t)tries) / 8;
        p = plan_again(s, p, level);
    }
    s->lacking = p ? 0 : s->margin;
    s->margin = 0;
    return p;
}

/* The residencies of all levels that keep the bits, or of those that a way down leads to. */
static gr_plan *plan_without(gr_schedule_search *s, set_list *l, const uint32_t *first, uint32_t *level)
{
    const size_t begin = s->found.n;
    descend(s, first);
    if (!s->given_up) search_without(s, l, first, begin);
    s->lost_ns = UINT64_MAX;
    gr_plan *p = choose(s, 0, level);
    return s->given_up ? p : make_room(s, p, level);
}

/* With all levels of the luxuries; of many the first and the last alone. */
static void add_spares(gr_schedule_search *s, set_list *l, uint32_t *walk)
{
    uint32_t n = 1;
    for (size_t k = 0; k < s->src->n_knobs && n <= MAX_LEVELS; k++)
        if (gr_is_spare(&s->src->knobs[k])) n *= s->src->knobs[k].n_levels;
    do add_set(s, l, walk);
    while (n <= MAX_LEVELS && gr_next_levels(s->src, walk, gr_is_spare));
    gr_set_last_levels(s->src, walk, gr_is_spare);
    if (n > MAX_LEVELS) add_set(s, l, walk);
}

/* All resident does not fit with the first levels, of which walk is. Luxuries are tried with them alone.
 * Where all is resident without, nothing else without is faster. */
static gr_plan *search_levels(gr_schedule_search *s, uint32_t *walk, uint32_t *level)
{
    const size_t begin = s->found.n;
    set_list with = {0};
    gr_plan *p = NULL;
    add_spares(s, &with, walk);
    const uint32_t without = with.set[--with.n];
    if (with.n && fits_resident(s, without)) {
        search_sets(s, &with);
        gr_search_set(s, without, 1);
        p = choose(s, begin, level);
    }
    if (!p && !s->given_up) {
        s->found.n = begin;
        p = plan_without(s, &with, walk, level);
    }
    free(with.set);
    return p;
}

/* All is resident, and fits. The other plan, if it is faster by more than plans may differ anyway; else p.
 * level: p's; others: the other's. */
static gr_plan *faster_of(gr_schedule_search *s, gr_plan *p, const gr_residency *of_p, gr_plan *other,
                          const uint32_t *others, uint32_t *level)
{
    if (!other || gr_near_ns(other->ns) >= p->ns) {
        gr_plan_free(other);
        s->taken = *of_p;
        return p;
    }
    gr_plan_free(p);
    if (s->src->n_knobs) memcpy(level, others, s->src->n_knobs * sizeof(*level));
    return other;
}

/* What other choices that keep the bits make faster. */
static gr_plan *try_faster(gr_schedule_search *s, const uint32_t *first, gr_plan *p, uint32_t *level)
{
    uint32_t *others = gr_calloc(s->src->n_knobs + 1, sizeof(*others));
    const gr_residency taken = s->taken;
    descend(s, first);
    p = faster_of(s, p, &taken, choose(s, 0, others), others, level);
    free(others);
    return p;
}

/* Where steps wait for bytes that others still use, for all that stays leaves no room: what is faster with
 * some of it moved. */
static gr_plan *move_some(gr_schedule_search *s, uint32_t *walk, gr_plan *p, uint32_t *level)
{
    uint32_t *others = gr_calloc(s->src->n_knobs + 1, sizeof(*others));
    const gr_residency taken = s->taken;
    s->found.n = 0;
    p = faster_of(s, p, &taken, search_levels(s, walk, others), others, level);
    free(others);
    return p;
}

/* Any levels at all: those next to first, and those that first leads to. */
gr_plan *gr_try_all_levels(gr_schedule_search *s, const uint32_t *first, uint32_t *level)
{
    bool *may = gr_calloc(s->src->n_knobs + 1, sizeof(*may));
    set_list l = {0};
    for (size_t k = 0; k < s->src->n_knobs; k++) may[k] = true;
    s->found.n = 0;
    s->probes = false;
    s->each_way = (s->limit - s->transfers.work) / 4;
    gr_descend(s, first, may);
    add_found(s, &l, 0, MOST_FREE);
    search_sets(s, &l);
    gr_plan *p = choose(s, 0, level);
    free(l.set);
    free(may);
    return p;
}

gr_plan *gr_try_levels(gr_schedule_search *s, const uint32_t *bits, uint32_t *level, bool probe)
{
    uint32_t *walk = gr_calloc(s->src->n_knobs + 1, sizeof(*walk));
    for (size_t k = 0; k < s->src->n_knobs; k++) walk[k] = gr_costs_bits(&s->src->knobs[k]) ? bits[k] : 0;
    s->found.n = 0;
    s->probes = probe;
    gr_allow(s, s->work);
    gr_search_set(s, gr_level_set_at(s, walk), 1);
    gr_plan *p = choose(s, 0, level);
    const bool waits = p && p->ns > gr_near_ns(s->taken.ns);
    if (p && !probe && !waits) p = try_faster(s, walk, p, level);
    if (waits && !probe) p = move_some(s, walk, p, level);
    if (!p && !s->given_up) {
        s->found.n = 0;
        p = search_levels(s, walk, level);
    }
    free(walk);
    return p;
}

void gr_note_budgets(gr_diag *d, const gr_schedule_options *o, uint64_t device, uint64_t host)
{
    char a[32], b[32];
    gr_bytes_format(device, a);
    gr_bytes_format(host, b);
    if (device > o->hardware.device_bytes || host > GR_MAX(o->hardware.host_bytes, o->host_budget_bytes))
        gr_diag_note(d, (gr_loc){0}, "would fit: a machine with %s of device memory and %s of host memory", a,
                     b);
    else if (device > o->budget_bytes && host > o->host_budget_bytes)
        gr_diag_note(d, (gr_loc){0}, "would fit: --budget %" PRIu64 " --host-budget %" PRIu64 " (%s and %s)",
                     device, host, a, b);
    else if (device > o->budget_bytes)
        gr_diag_note(d, (gr_loc){0}, "would fit: --budget %" PRIu64 " (%s)", device, a);
    else
        gr_diag_note(d, (gr_loc){0}, "would fit: --host-budget %" PRIu64 " (%s)", host, b);
}

gr_status gr_schedule(gr_plan **out, uint32_t *level, const gr_tasks_source *src,
                      const gr_schedule_options *o, gr_diag *d)
{
    gr_schedule_options own = *o;
    gr_schedule_search s = {
        .src = src, .o = &own, .spills = &own, .laid = UINT32_MAX, .arena = gr_arena_new()};
    own.spills = false; /* at first: see gr_find_plan */
    s.work = (o->quick ? QUICK_WORK : WORK) / GR_MAX(o->parts, 1u) / GR_MAX(o->hurry, 1u);
    gr_plan *p = gr_find_plan(&s, level);
    const bool fits =
        !s.given_up && gr_plan_within(p, o->budget_bytes, o->host_budget_bytes, o->disk_budget_bytes);
    p->hardware = gr_arena_strdup(p->arena, o->hardware.name);
    p->device = o->hardware.device;
    p->ranks = "0";
    p->budget_bytes = o->budget_bytes;
    p->host_budget_bytes = o->host_budget_bytes;
    p->disk_budget_bytes = o->disk_budget_bytes;
    p->fits = fits;
    p->notes = make_notes(src, level, p);
    if (fits && !o->quick) p->reasons = gr_explain(&s, &s.taken, p->arena);
    gr_status st = fits ? GR_OK : s.given_up ? GR_E_NOFIT : gr_refuse(&s, p, d);
    if (o->spent) *o->spent += s.transfers.work;
    search_free(&s);
    *out = p;
    return st;
}

/* All resident with these levels. */
static gr_outlook all_resident(gr_schedule_search *s, const uint32_t *level)
{
    const uint32_t set = gr_level_set_at(s, level);
    s->found.n = 0;
    gr_search_set(s, set, 1);
    const gr_residency *all = &s->found.all[0];
    const gr_tenant tenant = s->sets[set].tenant;
    return (gr_outlook){.ns = all->ns,
                        .bytes = all->live + gr_hardware_overhead(&s->o->hardware, &tenant),
                        .hopeless = !may_fit(s, all)};
}

/* Few levels may be faster at the last where memory has no end, as shards that are gathered layer by layer
 * are beside whole weights that are gathered after each step: of such each is tried. */
gr_outlook gr_schedule_outlook(const gr_tasks_source *src, const gr_schedule_options *o)
{
    enum { FEW = 3 };
    gr_schedule_options own = *o;
    gr_schedule_search s = {
        .src = src, .o = &own, .spills = &own, .laid = UINT32_MAX, .arena = gr_arena_new()};
    uint32_t *level = gr_calloc(src->n_knobs + 1, sizeof(*level));
    own.spills = false;
    s.limit = UINT64_MAX;
    gr_allow(&s, UINT64_MAX);
    gr_outlook x = all_resident(&s, level);
    for (size_t k = 0; k < src->n_knobs; k++) {
        if (!gr_keeps_bits(&src->knobs[k]) || src->knobs[k].n_levels > FEW) continue;
        level[k] = src->knobs[k].n_levels - 1;
        const gr_outlook other = all_resident(&s, level);
        if (other.ns < x.ns)
            x = other;
        else
            level[k] = 0;
    }
    own.spills = true; /* they may */
    x.hopeless = x.hopeless && gr_is_hopeless(&s);
    free(level);
    search_free(&s);
    return x;
}
