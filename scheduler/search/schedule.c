/* scheduler/search/schedule.c: the search over choices for the fastest plan that fits. */
#include "memplan/pack/pack.h"
#include "scheduler/search/search.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define EFFORT       400000 /* works laid out, over all residencies of all programs, about */
#define FIRST_LOOK   60
#define LEAST_STATES 800
#define MOST_STATES  16384
#define MAX_LEVELS   48 /* programs looked at whose bits are the same */
#define PACK_TRIES   40
#define CORNERS      16 /* programs looked at before a refusal */
#define QUICK_LEVELS 3
#define QUICK_EFFORT 40000 /* works laid out for each of these */
#define QUICK_STATES 400

typedef struct level_set { /* levels of all knobs, and what follows from them */
    uint32_t *level;
    gr_tasks *tasks;
    gr_analysis *analysis;
} level_set;

typedef struct search {
    const gr_tasks_source *src;
    const gr_schedule_options *o;
    level_set *sets;
    size_t n_sets, cap_sets;
    gr_residencies found;
    gr_transfers transfers;
    uint32_t laid; /* the set the layout's arrays are for */
    gr_arena *arena;
} search;

static void take_transfers(search *s, uint32_t level)
{
    if (s->laid != level) gr_transfers_release(&s->transfers); /* another program: other array sizes */
    s->laid = level;
}

static void lay_out(search *s, const gr_residency *st)
{
    take_transfers(s, st->level);
    gr_transfers_make(&s->transfers, s->sets[st->level].analysis, st->choice, st->ahead);
}

static gr_room arena_room;

/* With the room that makes it faster. */
static void lay_out_wide(search *s, const gr_residency *st)
{
    take_transfers(s, st->level);
    gr_transfers_fit(&s->transfers, s->sets[st->level].analysis, st->choice, st->ahead,
                     arena_room(s, st->level, st->host));
}

static gr_policy policy_of(const gr_schedule_options *o, const gr_group *g)
{
    for (size_t i = 0; i < o->n_rules; i++)
        if (g->model && !strcmp(o->rules[i].model, g->model) && o->rules[i].category == g->category)
            return o->rules[i].policy;
    return o->policy;
}

/* Of one program, with so much in the host pool. */
static uint64_t arena_budget(const search *s, uint32_t level, uint64_t host_bytes)
{
    const gr_tasks *p = s->sets[level].tasks;
    uint64_t over = gr_hardware_overhead(&s->o->hardware, p->ranks, p->groups, p->captured, host_bytes);
    return s->o->budget_bytes > over ? s->o->budget_bytes - over : 0;
}

static uint64_t arena_room(const void *user, uint32_t level, uint64_t host)
{
    return arena_budget(user, level, host);
}

static bool may_fit(const search *s, const gr_residency *st)
{
    return st->live <= arena_budget(s, st->level, st->host) && st->host <= s->o->host_budget_bytes;
}

/* What no residency of a program goes below: at each work the temporary objects that are live, and the others
 * that it uses, if it is not done on the host; and all the time what a policy keeps. */
static uint64_t least_live(const search *s, uint32_t level)
{
    const gr_analysis *f = s->sets[level].analysis;
    const gr_tasks *g = f->g;
    uint64_t *delta = gr_calloc(g->n_tasks + 1, sizeof(*delta)), kept = 0, live = 0, most = 0;
    bool *keep = gr_calloc(f->n_groups + 1, sizeof(*keep));
    for (uint32_t i = 0; i < f->n_groups; i++) /* weights of a step on the host are not there all the time */
        keep[i] = policy_of(s->o, &f->groups[i]) == GR_POLICY_KEEP && !f->n_movable;
    for (uint32_t o = 0; o < g->n_objects; o++) {
        const gr_object *ob = &g->objects[o];
        if (ob->place == GR_HOST || f->begin[o] == f->begin[o + 1]) continue;
        if (f->group[o] != GR_NONE && keep[f->group[o]]) kept += ob->bytes;
        if (ob->span != GR_SPAN_TEMP) continue;
        uint32_t last = f->last[o];
        if (last != GR_NONE && g->task[last].loop.body_last != GR_NONE) last = g->task[last].loop.body_last;
        delta[f->first[o]] += ob->bytes;
        delta[last == GR_NONE ? g->n_tasks : last + 1] -= ob->bytes;
    }
    for (uint32_t w = 0; w < g->n_tasks; w++) {
        uint64_t used = 0;
        live += delta[w];
        for (uint32_t u = 0; u < g->task[w].uses.n; u++) {
            uint32_t o = g->task[w].uses.list[u].object;
            if (o == GR_NONE || g->objects[o].span == GR_SPAN_TEMP || g->objects[o].place == GR_HOST ||
                g->task[w].uses.host_with != GR_NONE)
                continue;
            used += f->group[o] != GR_NONE && keep[f->group[o]] ? 0 : g->objects[o].bytes;
        }
        most = GR_MAX(most, live + used);
    }
    free(delta);
    free(keep);
    return most + kept;
}

/* What lives on lies on the device or in the host pool. */
static uint64_t least_anywhere(const search *s, uint32_t level)
{
    const gr_tasks *g = s->sets[level].tasks;
    uint64_t bytes = 0;
    for (uint32_t o = 0; o < g->n_objects; o++)
        bytes += g->objects[o].span == GR_SPAN_KEEP ? g->objects[o].bytes : 0;
    return bytes;
}

static bool cannot_fit(const search *s, uint32_t level)
{
    uint64_t arena = arena_budget(s, level, 0), host = s->o->host_budget_bytes;
    if (host < UINT64_MAX - arena && least_anywhere(s, level) > arena + host) return true;
    return least_live(s, level) > arena;
}

/* Price the residencies of one set of levels: `most` of them, or all resident alone. */
static void search_residencies(search *s, uint32_t level, uint32_t most)
{
    const gr_analysis *f = s->sets[level].analysis;
    gr_policy *policies = gr_calloc(f->n_groups + 1, sizeof(*policies));
    for (uint32_t g = 0; g < f->n_groups; g++) policies[g] = policy_of(s->o, &f->groups[g]);
    take_transfers(s, level);
    gr_search(&s->found, &s->transfers, f, level, policies, most, arena_room, s, s->arena);
    free(policies);
}

/* A first look; the rest only where something of it fits. So more memory never leaves fewer to choose from.
 */
static void search_if_it_fits(search *s, uint32_t level, uint32_t most)
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

static void add_set(search *s, const uint32_t *level)
{
    level_set set = {.tasks = s->src->build(s->src->user, level)};
    set.level = gr_arena_alloc(s->arena, (s->src->n_knobs + 1) * sizeof(*level));
    if (s->src->n_knobs) memcpy(set.level, level, s->src->n_knobs * sizeof(*level));
    set.analysis = gr_analysis_new(set.tasks, &s->o->hardware);
    GR_PUSH(s->sets, s->n_sets, s->cap_sets, set);
}

static bool keeps_bits(const gr_knob *k)
{
    return k->bits == GR_BITS_SAME;
}

static bool is_spare(const gr_knob *k)
{
    return k->bits == GR_BITS_SPARE;
}

/* Changes them only where nothing fits without. */
static bool costs_bits(const gr_knob *k)
{
    return k->bits == GR_BITS_DIFFER;
}

/* The next vector of levels of such knobs, counted like an odometer; false: the last one was it. */
static bool next_levels(const gr_tasks_source *src, uint32_t *level, bool (*such)(const gr_knob *))
{
    for (size_t k = src->n_knobs; k-- > 0;) {
        if (!such(&src->knobs[k])) continue;
        if (++level[k] < src->knobs[k].n_levels) return true;
        level[k] = 0;
    }
    return false;
}

/* The last of them. */
static void set_last_levels(const gr_tasks_source *src, uint32_t *level, bool (*such)(const gr_knob *))
{
    for (size_t k = 0; k < src->n_knobs; k++)
        if (such(&src->knobs[k])) level[k] = src->knobs[k].n_levels - 1;
}

/* How many there are of knobs that keep the bits; more than MAX_LEVELS: some number above that. */
static uint32_t count_levels(const gr_tasks_source *src)
{
    uint32_t n = 1;
    for (size_t k = 0; k < src->n_knobs && n <= MAX_LEVELS; k++)
        if (keeps_bits(&src->knobs[k])) n *= src->knobs[k].n_levels;
    return n;
}

/* Of the knobs that change bits, from one on: the least vector of a sum, which has as much as goes in the
 * last ones. */
static void set_least_of_sum(const gr_tasks_source *src, uint32_t *level, size_t from, uint32_t sum)
{
    for (size_t k = src->n_knobs; k-- > from;) {
        if (!costs_bits(&src->knobs[k])) continue;
        level[k] = GR_MIN(sum, src->knobs[k].n_levels - 1);
        sum -= level[k];
    }
}

/* The next one of the same sum, in the same order. */
static bool next_of_sum(const gr_tasks_source *src, uint32_t *level)
{
    uint32_t behind = 0;
    for (size_t k = src->n_knobs; k-- > 0;) {
        if (!costs_bits(&src->knobs[k])) continue;
        if (behind && level[k] + 1 < src->knobs[k].n_levels) {
            level[k]++;
            set_least_of_sum(src, level, k + 1, behind - 1);
            return true;
        }
        behind += level[k];
    }
    return false;
}

/* Programs for all levels of the knobs that keep the bits; where those are too many, the ones in which each
 * knob but one is at its first or its last level, and of those the first so many and the last, which is the
 * smallest. */
static void add_sets(search *s, uint32_t *level)
{
    const gr_tasks_source *src = s->src;
    bool all = count_levels(src) <= MAX_LEVELS;
    size_t begin = s->n_sets;
    do {
        uint32_t inner = 0;
        if (s->n_sets - begin == 2 * MAX_LEVELS) /* not by way of all others */
            set_last_levels(src, level, keeps_bits);
        for (size_t k = 0; k < src->n_knobs; k++)
            inner += keeps_bits(&src->knobs[k]) && level[k] > 0 && level[k] + 1 < src->knobs[k].n_levels;
        if (all || inner <= 1) add_set(s, level);
    } while (next_levels(src, level, keeps_bits));
}

typedef struct candidate { /* a residency, in its own bytes or in all the room there is */
    size_t residency;
    bool wide;
    uint64_t ns;
} candidate;

static int by_time(const void *a, const void *b, void *user)
{
    const candidate *x = a, *y = b;
    const gr_residency *all = ((const search *)user)->found.all, *p = &all[x->residency],
                       *q = &all[y->residency];
    if (x->ns != y->ns) return x->ns < y->ns ? -1 : 1;
    if (x->wide != y->wide) return x->wide ? 1 : -1;
    if (p->n_transitions != q->n_transitions) return p->n_transitions < q->n_transitions ? -1 : 1;
    return x->residency < y->residency ? -1 : x->residency > y->residency;
}

/* What may fit, the fastest first. */
static candidate *find_candidates(search *s, size_t begin, size_t *n)
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
    const gr_residency *all = ((const search *)user)->found.all;
    const uint64_t p = all[x->residency].copied, q = all[y->residency].copied;
    return p != q ? p < q ? -1 : 1 : by_time(a, b, user);
}

/* The plan of a candidate; NULL: offsets are not found for it. */
static gr_plan *pack(search *s, const candidate *c)
{
    const gr_residency *st = &s->found.all[c->residency];
    if (c->wide)
        lay_out_wide(s, st);
    else
        lay_out(s, st);
    gr_plan *p = gr_plan_build(&s->transfers, s->sets[st->level].analysis, 0, PACK_TRIES);
    if (p->peak_bytes <= s->o->budget_bytes && p->host_bytes <= s->o->host_budget_bytes) return p;
    gr_plan_free(p);
    return NULL;
}

/* The first of them that is packed; *at: which. */
static gr_plan *pack_first(search *s, const candidate *list, size_t n, size_t *at)
{
    gr_plan *p = NULL;
    for (*at = 0; *at < n; ++*at)
        if ((p = pack(s, &list[*at]))) break;
    return p;
}

/* Of all that fit and take as long as the fastest that does, or nearly, the one that moves least. */
static gr_plan *choose(search *s, size_t begin, uint32_t *level)
{
    size_t n, at, n_near = 0, n_less = 0;
    candidate *list = find_candidates(s, begin, &n);
    gr_plan *p = pack_first(s, list, n, &at);
    if (p) {
        const candidate *taken = &list[at];
        candidate *near = &list[at + 1];
        while (near + n_near < list + n && near[n_near].ns <= gr_near_ns(taken->ns)) n_near++;
        qsort_r(near, n_near, sizeof(*near), by_moves, s);
        while (n_less < n_near && by_moves(&near[n_less], taken, s) < 0) n_less++;
        gr_plan *less = pack_first(s, near, n_less, &at);
        if (less) {
            gr_plan_free(p);
            p = less;
            taken = &near[at];
        }
        const level_set *set = &s->sets[s->found.all[taken->residency].level];
        if (s->src->n_knobs) memcpy(level, set->level, s->src->n_knobs * sizeof(*level));
    }
    free(list);
    return p;
}

/* Which of two that do not fit comes closer: on the device, where the host pool has room for it; else in the
 * host pool, where the device has. */
static bool is_smaller(const search *s, const gr_residency *a, const gr_residency *b)
{
    bool host_a = a->host <= s->o->host_budget_bytes, host_b = b->host <= s->o->host_budget_bytes;
    if (host_a != host_b) return host_a;
    bool arena_a = !host_a && a->live <= arena_budget(s, a->level, a->host),
         arena_b = !host_b && b->live <= arena_budget(s, b->level, b->host);
    if (arena_a != arena_b) return arena_a;
    if (arena_a && a->host != b->host) return a->host < b->host;
    return a->live != b->live ? a->live < b->live : a->ns < b->ns;
}

static gr_plan *smallest(search *s, uint32_t *level)
{
    size_t best = 0;
    for (size_t i = 1; i < s->found.n; i++)
        if (is_smaller(s, &s->found.all[i], &s->found.all[best])) best = i;
    const gr_residency *st = &s->found.all[best];
    lay_out(s, st);
    if (s->src->n_knobs) memcpy(level, s->sets[st->level].level, s->src->n_knobs * sizeof(*level));
    return gr_plan_build(&s->transfers, s->sets[st->level].analysis, 0, PACK_TRIES);
}

static bool lives_at(const gr_entry *e, uint32_t i)
{
    return e->first <= e->last ? e->first <= i && i <= e->last : i >= e->first || i <= e->last;
}

/* The first step at which most bytes of a place are live. */
static uint32_t worst_step(const gr_plan *p, gr_place place)
{
    uint64_t most = 0;
    uint32_t worst = 0;
    for (uint32_t i = 0; i < gr_plan_steps(p); i++) {
        uint64_t live = 0;
        for (uint32_t e = 0; e < p->n_ledger; e++)
            if (p->ledger[e].place == place && lives_at(&p->ledger[e], i)) live += p->ledger[e].bytes;
        if (live > most) most = live, worst = i;
    }
    return worst;
}

/* "actor weights 2.31 GiB, ..." of what is live at a step: the largest of the groups of entries. */
static void add_culprits(gr_str *out, const gr_plan *p, gr_place place, uint32_t step)
{
    uint64_t sum[GR_N_CATEGORIES] = {0};
    for (uint32_t e = 0; e < p->n_ledger; e++)
        if (p->ledger[e].place == place && lives_at(&p->ledger[e], step))
            sum[p->ledger[e].category] += p->ledger[e].bytes;
    for (int shown = 0; shown < 3; shown++) {
        int top = 0;
        char buf[32];
        for (int c = 1; c < GR_N_CATEGORIES; c++)
            if (sum[c] > sum[top]) top = c;
        if (!sum[top]) break;
        gr_str_printf(out, "%s%s %s", shown ? ", " : "", gr_category_str(top),
                      gr_bytes_format(sum[top], buf));
        sum[top] = 0;
    }
}

void gr_note_fits(gr_diag *d, const char *what, uint64_t ns)
{
    gr_str time = {0};
    gr_time_put(&time, ns);
    gr_diag_note(d, (gr_loc){0}, "would fit: %s, with a predicted %s an iteration", what, time.text);
    gr_str_release(&time);
}

/* Whether other options would make it fit, and at what price. */
static void suggest(const search *s, const gr_schedule_options *o, const char *what, gr_diag *d)
{
    uint32_t *level = gr_calloc(s->src->n_knobs + 1, sizeof(*level));
    gr_schedule_options quick = *o;
    gr_plan *p = NULL;
    quick.quick = true;
    if (gr_schedule(&p, level, s->src, &quick, NULL) == GR_OK) gr_note_fits(d, what, p->ns);
    gr_plan_free(p);
    free(level);
}

/* Where the device has room enough for what the host pool cannot take. */
static void suggest_host(const search *s, gr_diag *d)
{
    uint32_t *level = gr_calloc(s->src->n_knobs + 1, sizeof(*level));
    gr_schedule_options o = *s->o;
    gr_plan *p = NULL;
    char text[32];
    o.quick = true;
    o.host_budget_bytes = UINT64_MAX;
    if (gr_schedule(&p, level, s->src, &o, NULL) == GR_OK) {
        char *what =
            gr_printf("--host-budget %" PRIu64 " (%s)", p->host_bytes, gr_bytes_format(p->host_bytes, text));
        gr_note_fits(d, what, p->ns);
        free(what);
    }
    gr_plan_free(p);
    free(level);
}

static void suggest_options(const search *s, bool host, gr_diag *d)
{
    gr_schedule_options o = *s->o;
    if (!host) suggest_host(s, d);
    if (o.keep_bits) {
        o.keep_bits = false;
        suggest(s, &o, "with run.bits=any", d);
    }
    if (!o.policy && !o.n_rules) return;
    const char *what = o.n_rules ? "'auto' for all in 'residency' and --policy" : "--policy auto";
    o = *s->o;
    o.policy = GR_POLICY_AUTO;
    o.n_rules = 0;
    suggest(s, &o, what, d);
}

static gr_status refuse(const search *s, const gr_plan *p, gr_diag *d)
{
    const gr_schedule_options *o = s->o;
    bool host = p->peak_bytes <= o->budget_bytes;
    gr_place place = host ? GR_HOST : GR_DEVICE;
    uint64_t need = host ? p->host_bytes : p->peak_bytes,
             have = host ? o->host_budget_bytes : o->budget_bytes;
    uint32_t at = worst_step(p, place);
    gr_str culprits = {0};
    add_culprits(&culprits, p, place, at);
    char a[32], b[32], c[32];
    gr_diag_error(d, (gr_loc){0}, GR_E_NOFIT,
                  "the smallest plan found needs %s of %s memory and the budget is %s: %s missing at step %u "
                  "'%s'; alive "
                  "then: %s",
                  gr_bytes_format(need, a), host ? "host" : "device", gr_bytes_format(have, b),
                  gr_bytes_format(need - have, c), at, gr_plan_step(p, at)->what,
                  culprits.len ? culprits.text : "nothing");
    gr_str_release(&culprits);
    if (!host && p->host_bytes > o->host_budget_bytes)
        gr_diag_note(d, (gr_loc){0}, "would fit: --budget %" PRIu64 " --host-budget %" PRIu64 " (%s and %s)",
                     need, p->host_bytes, gr_bytes_format(need, a), gr_bytes_format(p->host_bytes, b));
    else
        gr_diag_note(d, (gr_loc){0}, "would fit: --%s %" PRIu64 " (%s)", host ? "host-budget" : "budget",
                     need, gr_bytes_format(need, a));
    if (d && !o->quick) suggest_options(s, host, d);
    return GR_E_NOFIT;
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
                      !keeps_bits(&src->knobs[k]) ? " (changes the bits of results)" : "");
    }
    const char *notes = s.len ? gr_arena_strdup(p->arena, s.text) : "";
    gr_str_release(&s);
    gr_str_release(&text);
    return notes;
}

static void search_free(search *s)
{
    for (size_t i = 0; i < s->n_sets; i++) {
        gr_analysis_free(s->sets[i].analysis);
        gr_tasks_free(s->sets[i].tasks);
    }
    gr_transfers_release(&s->transfers);
    free(s->sets);
    free(s->found.all);
    gr_arena_free(s->arena);
}

/* Explore sets [first, end). */
static void search_sets(search *s, size_t first, size_t end)
{
    uint32_t each = states_each(s->sets[first].tasks->n_tasks, end - first);
    for (size_t i = first; i < end; i++)
        if (!cannot_fit(s, (uint32_t)i)) search_if_it_fits(s, (uint32_t)i, each);
}

/* Whether all may stay with the first levels of what keeps the bits. */
static bool fits_resident(search *s, size_t set)
{
    const size_t begin = s->found.n;
    search_residencies(s, (uint32_t)set, 1);
    bool fits = may_fit(s, &s->found.all[begin]);
    s->found.n = begin;
    return fits;
}

/* All resident does not fit with the first levels, of which walk is and set `first` was made. Luxuries are
 * tried with them alone. Where all is resident without, nothing else without is faster. */
static gr_plan *search_levels(search *s, uint32_t *walk, size_t first, uint32_t *level)
{
    const gr_tasks_source *src = s->src;
    const size_t begin = s->found.n;
    gr_plan *p = NULL;
    while (next_levels(src, walk, is_spare)) add_set(s, walk);
    const size_t without = s->n_sets - 1;
    if (without > first && fits_resident(s, without)) {
        search_sets(s, first, without);
        search_residencies(s, (uint32_t)without, 1);
        p = choose(s, begin, level);
    }
    if (p) return p;
    s->found.n = begin;
    set_last_levels(src, walk, is_spare);
    if (next_levels(src, walk, keeps_bits)) add_sets(s, walk);
    search_sets(s, first, s->n_sets);
    return choose(s, begin, level);
}

/* Try one choice of the knobs that change bits, with everything that does not. level: what was chosen. */
static gr_plan *try_levels(search *s, const uint32_t *bits, uint32_t *level)
{
    uint32_t *walk = gr_calloc(s->src->n_knobs + 1, sizeof(*walk));
    for (size_t k = 0; k < s->src->n_knobs; k++) walk[k] = costs_bits(&s->src->knobs[k]) ? bits[k] : 0;
    size_t begin = s->found.n, first = s->n_sets;
    add_set(s, walk);
    search_residencies(s, (uint32_t)first, 1);
    gr_plan *p = choose(s, begin, level); /* all resident at the first levels: no search */
    if (!p) {
        s->found.n = begin;
        p = search_levels(s, walk, first, level);
    }
    free(walk);
    return p;
}

static uint32_t last_level(const search *s, size_t knob)
{
    const gr_knob *k = &s->src->knobs[knob];
    return s->o->keep_bits && !keeps_bits(k) ? 0 : k->n_levels - 1;
}

static void drop_last_set(search *s)
{
    level_set *set = &s->sets[--s->n_sets];
    s->laid = UINT32_MAX;
    gr_transfers_release(&s->transfers);
    gr_analysis_free(set->analysis);
    gr_tasks_free(set->tasks);
}

/* Whether no program may fit: since each next level needs less memory, none does where those do not that have
 * every knob at its last level, or of those that keep the bits some at their first. */
static bool is_hopeless(search *s)
{
    const gr_tasks_source *src = s->src;
    uint32_t *level = gr_calloc(src->n_knobs + 1, sizeof(*level)), n_free = 0;
    bool hopeless = true;
    for (size_t k = 0; k < src->n_knobs; k++) n_free += keeps_bits(&src->knobs[k]);
    uint32_t corners = n_free < 5 ? 1u << n_free : CORNERS;
    for (uint32_t c = 0; c < corners && hopeless; c++) {
        uint32_t at = 0;
        for (size_t k = 0; k < src->n_knobs; k++) {
            bool first = keeps_bits(&src->knobs[k]) && at < 5 && c >> at & 1;
            at += keeps_bits(&src->knobs[k]);
            level[k] = first ? 0 : last_level(s, k);
        }
        add_set(s, level);
        hopeless = cannot_fit(s, (uint32_t)s->n_sets - 1);
        drop_last_set(s);
    }
    free(level);
    return hopeless;
}

/* Of all knobs together the first level, one between, the last: of what fits the fastest. */
static gr_plan *find_quickly(search *s, uint32_t *level)
{
    const gr_tasks_source *src = s->src;
    uint32_t *walk = gr_calloc(src->n_knobs + 1, sizeof(*walk));
    gr_plan *p = NULL;
    for (uint32_t i = 0; i < QUICK_LEVELS && !p; i++) {
        size_t begin = s->found.n;
        for (size_t k = 0; k < src->n_knobs; k++) walk[k] = last_level(s, k) * i / (QUICK_LEVELS - 1);
        if (i) set_last_levels(src, walk, is_spare);
        add_set(s, walk);
        size_t states = QUICK_EFFORT / GR_MAX(s->sets[s->n_sets - 1].tasks->n_tasks, (size_t)1);
        if (cannot_fit(s, (uint32_t)s->n_sets - 1) && i + 1 < QUICK_LEVELS) continue;
        search_residencies(s, (uint32_t)s->n_sets - 1,
                           (uint32_t)GR_MIN(GR_MAX(states, (size_t)FIRST_LOOK), (size_t)QUICK_STATES));
        p = choose(s, begin, level);
    }
    free(walk);
    return p;
}

/* The least change of the knobs that change bits with which anything fits; among equal ones the fastest. */
static gr_plan *find_plan(search *s, uint32_t *level)
{
    const gr_tasks_source *src = s->src;
    uint32_t *walk = gr_calloc(src->n_knobs + 1, sizeof(*walk)), most = 0;
    uint32_t *chosen = gr_calloc(src->n_knobs + 1, sizeof(*chosen));
    for (size_t k = 0; k < src->n_knobs && !s->o->keep_bits; k++)
        most += costs_bits(&src->knobs[k]) ? src->knobs[k].n_levels - 1 : 0;
    gr_plan *best = NULL;
    for (uint32_t sum = 0; sum <= most && !best; sum++) { /* least change first */
        if (sum == 1 && is_hopeless(s)) break;
        set_least_of_sum(src, walk, 0, sum);
        do {
            gr_plan *p = try_levels(s, walk, chosen);
            if (p && (!best || p->ns < best->ns)) {
                gr_plan_free(best);
                best = p;
                if (src->n_knobs) memcpy(level, chosen, src->n_knobs * sizeof(*level));
            } else {
                gr_plan_free(p);
            }
        } while (next_of_sum(src, walk));
    }
    for (size_t k = 0; k < src->n_knobs; k++) walk[k] = last_level(s, k);
    if (!best) { /* the smallest that can be had, to say what is missing */
        add_set(s, walk);
        search_residencies(s, (uint32_t)s->n_sets - 1,
                           LEAST_STATES); /* so that its budget would find it again */
    }
    free(walk);
    free(chosen);
    return best;
}

gr_status gr_schedule(gr_plan **out, uint32_t *level, const gr_tasks_source *src,
                      const gr_schedule_options *o, gr_diag *d)
{
    search s = {.src = src, .o = o, .laid = UINT32_MAX, .arena = gr_arena_new()};
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
    gr_status st = fits ? GR_OK : refuse(&s, p, d);
    search_free(&s);
    *out = p;
    return st;
}
