/* The residency search against exhaustive search on random small programs.
 *
 * Exhaustive: every residency that the planner can express (for each group of objects how much of it stays,
 * in which nodes the rest is streamed or whether it is used on the host alone, whether loads are a unit of
 * work ahead, and as early as there is room), laid out and priced. Of those whose bytes fit the least time is
 * found first, then, of those that take a thousandth longer at most, the fewest bytes moved, and of these the
 * least time. Budgets lie between the smallest residency and all resident. On every other machine copies take
 * next to nothing, so that many plans take nearly the same time.
 */
#include "tests/unit/random_tasks.h"
#include "scheduler/search/timeline.h"
#include "scheduler/search/build.h"
#include "tests/unit/synthetic.h"

enum { MOST_RESIDENCIES = 60000 };

typedef struct priced {
    gr_choice *choice;
    uint32_t ahead;
    uint64_t live, ns, least_ns; /* least: in all the room there may be */
    uint64_t copied;
} priced;

typedef struct goal { /* what a plan is chosen by */
    uint64_t copied, ns;
} goal;

typedef struct space {
    gr_analysis *f;
    gr_arena *arena;
    gr_choice *choice;
    gr_transfers transfers;
    priced *found;
    size_t n, cap;
} space;

/* Residencies of one group: all of it stays, or fewer of its objects, and any set of its nodes streams the
 * rest, or that is used on the host alone. */
static uint64_t count_of(const gr_group *g)
{
    return 1 + g->n_objects * ((1ULL << __builtin_popcountll(g->nodes)) + g->may_host);
}

static uint64_t count_all(const gr_analysis *f)
{
    uint64_t n = GR_N_AHEAD;
    for (uint32_t g = 0; g < f->n_groups && n <= MOST_RESIDENCIES; g++) n *= count_of(&f->groups[g]);
    return n;
}

/* The next set of nodes, as bits of mask; 0 after the last. */
static uint64_t next_subset(uint64_t set, uint64_t mask)
{
    return (set - mask) & mask;
}

static void price(space *s)
{
    for (uint32_t ahead = 0; ahead < GR_N_AHEAD; ahead++) {
        gr_transfers_make(&s->transfers, s->f, s->choice, ahead);
        size_t bytes = s->f->n_groups * sizeof(*s->choice);
        priced p = {gr_arena_alloc(s->arena, bytes),
                    ahead,
                    s->transfers.live,
                    s->transfers.ns,
                    0,
                    s->transfers.copied};
        memcpy(p.choice, s->choice, bytes);
        gr_transfers_widen(&s->transfers, s->f, s->choice, UINT64_MAX);
        p.least_ns = s->transfers.ns;
        GR_PUSH(s->found, s->n, s->cap, p);
    }
}

static void walk(space *s, uint32_t g)
{
    if (g == s->f->n_groups) {
        price(s);
        return;
    }
    const gr_group *x = &s->f->groups[g];
    s->choice[g] = (gr_choice){.parts = GR_PARTS};
    walk(s, g + 1);
    for (uint8_t parts = 0; parts < GR_PARTS; parts++) {
        if (parts && x->n_objects * parts / GR_PARTS == x->n_objects * (parts - 1) / GR_PARTS) continue;
        s->choice[g] = (gr_choice){.parts = parts, .host = 1};
        if (x->may_host) walk(s, g + 1);
        uint64_t set = 0;
        do {
            s->choice[g] = (gr_choice){.parts = parts, .stream = set};
            walk(s, g + 1);
            set = next_subset(set, x->nodes);
        } while (set);
    }
}

static int by_time(const void *a, const void *b)
{
    const priced *x = a, *y = b;
    if (x->least_ns != y->least_ns) return x->least_ns < y->least_ns ? -1 : 1;
    return x->live < y->live ? -1 : x->live > y->live;
}

static bool all_stay(const space *s, const priced *p)
{
    for (uint32_t g = 0; g < s->f->n_groups; g++)
        if (p->choice[g].parts < GR_PARTS) return false;
    return true;
}

/* The time of a layout with the best of its offsets, which some steps wait for; UINT64_MAX: they are not
 * found. */
static uint64_t packed_ns(const space *s, uint64_t arena)
{
    const uint64_t apart[] = {0, UINT64_MAX, arena, arena / 64 * 63, arena / 64 * 60, arena / 64 * 54};
    uint64_t ns = UINT64_MAX;
    for (size_t i = 0; i < GR_LEN(apart) && ns > s->transfers.ns; i++) {
        gr_plan *plan = gr_plan_pack(&s->transfers, s->f, NULL, (gr_apart){apart[i], arena}, 40);
        if (plan && plan->arena_bytes <= arena) {
            gr_plan_finish(plan, &s->transfers, s->f);
            const uint64_t waits = gr_timeline_waits_ns(plan), own = GR_MAX(plan->ns, waits);
            ns = GR_MIN(ns, own);
        }
        gr_plan_free(plan);
    }
    return ns;
}

static void lay_out(space *s, const priced *p, bool wide, uint64_t arena)
{
    if (wide)
        gr_transfers_fit(&s->transfers, s->f, p->choice, p->ahead, arena);
    else
        gr_transfers_make(&s->transfers, s->f, p->choice, p->ahead);
}

/* The least time of a residency that is packed into these bytes of arena. */
static uint64_t least_time(space *s, uint64_t arena)
{
    uint64_t best = UINT64_MAX;
    for (size_t i = 0; i < s->n && s->found[i].least_ns < best; i++)
        for (int wide = 0; wide < 2 && s->found[i].live <= arena; wide++) {
            lay_out(s, &s->found[i], wide, arena);
            const uint64_t ns = s->transfers.ns < best ? packed_ns(s, arena) : best;
            best = GR_MIN(best, ns);
        }
    return best;
}

static bool is_better(const goal *a, const goal *b)
{
    return a->copied != b->copied ? a->copied < b->copied : a->ns < b->ns;
}

/* What is to be found; where everything fits, that: no transition, though work that is done on the host
 * beside the rest might be faster. */
static goal best_goal(space *s, uint64_t arena)
{
    for (size_t i = 0; i < s->n; i++)
        if (all_stay(s, &s->found[i]) && s->found[i].live <= arena) {
            lay_out(s, &s->found[i], false, arena);
            const uint64_t ns = packed_ns(s, arena);
            if (ns <= gr_near_ns(s->transfers.ns)) return (goal){.ns = ns};
        }
    const uint64_t least = least_time(s, arena), most = least + least / 1000;
    goal best = {UINT64_MAX, UINT64_MAX};
    for (size_t i = 0; i < s->n && s->found[i].least_ns <= most; i++) {
        const priced *p = &s->found[i];
        goal here = {p->copied, p->least_ns};
        for (int wide = 0; wide < 2 && p->live <= arena && is_better(&here, &best); wide++) {
            lay_out(s, p, wide, arena);
            goal g = {p->copied, s->transfers.ns};
            if (g.ns > most || !is_better(&g, &best)) continue;
            g.ns = packed_ns(s, arena);
            if (g.ns <= most && is_better(&g, &best)) best = g;
        }
    }
    return best;
}

/* Of a plan, whose loops are the program's, in its order. */
static goal goal_of(const gr_plan *p, const gr_tasks *g)
{
    const gr_path *path = &p->paths[GR_PATH_STEADY];
    goal sum = {.ns = p->ns};
    uint64_t times[16] = {1};
    uint32_t ends[16], depth = 0, work = 0;
    for (uint32_t i = 0; i < path->n; i++) {
        const gr_step *t = &path->steps[i];
        while (depth && i > ends[depth]) depth--;
        if (gr_step_is_task(t->kind)) {
            const gr_task *w = &g->task[work++];
            if (t->kind != GR_STEP_LOOP) continue;
            times[depth + 1] = times[depth] * w->loop.trips_expected;
            ends[++depth] = t->body_last;
            continue;
        }
        if (t->kind == GR_STEP_LOAD || t->kind == GR_STEP_OFFLOAD) sum.copied += times[depth] * t->bytes;
    }
    return sum;
}

static gr_hardware hardware_of(uint64_t seed)
{
    gr_hardware hw = machine();
    if (seed % 2) return hw;
    hw.copy = hw.copies[0] = (gr_copy_rate){1, 1e12, 1e12, 1e12};
    hw.step_ns = 1;
    return hw;
}

typedef struct tally {
    uint32_t programs, budgets, equal, within, missed, slower; /* slower: than the fastest, for fewer moves */
    double worst;
} tally;

/* One program at several budgets. */
static void compare(space *s, uint64_t seed, tally *score)
{
    gr_tasks *g = random_tasks(seed);
    uint64_t least = UINT64_MAX, most = 0;
    for (size_t i = 0; i < s->n; i++) {
        least = GR_MIN(least, s->found[i].live);
        most = GR_MAX(most, s->found[i].live);
    }
    for (uint32_t k = 0; k < 4; k++) {
        uint64_t arena = gr_align(least + (most - least) * k / 4, GR_ALIGN);
        gr_tasks_source src = {.user = &seed, .build = build_random};
        gr_schedule_options o = {
            .hardware = s->f->hardware, .policy = GR_POLICY_AUTO, .host_budget_bytes = 1ULL << 40};
        o.budget_bytes = o.hardware.overhead_bytes + arena;
        const goal best = best_goal(s, arena);
        gr_plan *p = NULL;
        bool fits = gr_schedule(&p, NULL, &src, &o, NULL) == GR_OK;
        const goal found = goal_of(p, g);
        double over = fits ? (double)p->ns / (double)best.ns - 1 : 1;
        score->budgets++;
        score->equal += fits && !is_better(&best, &found) && !is_better(&found, &best);
        score->slower += best.ns > least_time(s, arena);
        score->within += fits && over <= 0.02;
        score->missed += !fits;
        score->worst = GR_MAX(score->worst, over);
        if (over > 0.02)
            print_message("seed %lu, %lu of %lu bytes: %lu ns, exhaustive %lu%s\n", seed, arena, most, p->ns,
                          best.ns, fits ? "" : " (nothing found)");
        gr_plan_free(p);
    }
    gr_tasks_free(g);
    score->programs++;
}

static void test_search_is_as_good_as_trying_everything(void **state)
{
    (void)state;
    uint32_t wanted = getenv("GR_SLOW") ? 600 : 25, hosts = 0;
    tally score = {0};
    uint64_t tried = 0;
    for (uint64_t seed = 1; score.programs < wanted; seed++) {
        gr_tasks *g = random_tasks(seed);
        const gr_hardware hw = hardware_of(seed);
        space s = {.f = gr_analysis_new(g, &hw), .arena = gr_arena_new()};
        if (g->validate == GR_NONE && s.f->n_groups && count_all(s.f) <= MOST_RESIDENCIES) {
            s.choice = gr_calloc(s.f->n_groups, sizeof(*s.choice));
            walk(&s, 0);
            qsort(s.found, s.n, sizeof(*s.found), by_time);
            tried += s.n;
            for (uint32_t k = 0; k < s.f->n_groups; k++) hosts += s.f->groups[k].may_host;
            compare(&s, seed, &score);
            free(s.choice);
        }
        gr_transfers_release(&s.transfers);
        free(s.found);
        gr_arena_free(s.arena);
        gr_analysis_free(s.f);
        gr_tasks_free(g);
    }
    print_message("%u programs, %u groups that may stay on the host, ", score.programs, hosts);
    print_message("%lu residencies, %u budgets: equal %.1f %%, within 2 %% %.1f %%, worst %.1f "
                  "%%, nothing "
                  "found %u; %u slower than the fastest, and moving less\n",
                  tried, score.budgets, 100.0 * score.equal / score.budgets,
                  100.0 * score.within / score.budgets, 100 * score.worst, score.missed, score.slower);
    assert_true(hosts * 5 > score.programs);
    assert_true(score.within * 1000 >= score.budgets * 999); /* of all 2,400 one or two are not reached */
    assert_true(score.worst <= 0.05);
    assert_true(score.equal * 100 >= score.budgets * 95);
    assert_true(score.slower > 0);
}

/* ---- with choices that programs depend on -------------------------------------------------------------- */

enum { KNOBS = 3, LEVELS = 4, VECTORS = 64, MOST_OF_EACH = 600 };

/* Each knob is about every third node: a level makes its temporary objects smaller, and its works longer, one
 * node's more than another's. */
static gr_tasks *build_choices(void *user, const uint32_t *level)
{
    const uint64_t seed = *(const uint64_t *)user;
    gr_tasks *p = random_tasks(seed);
    for (size_t w = 0; w < p->n_tasks; w++) {
        gr_task *t = &p->task[w];
        const uint32_t knob = (uint32_t)(t->node[4] - '0') % KNOBS, by = level[knob];
        t->cost.flops *= 1 + 0.25 * by * (1 + (double)((seed + knob) % 3));
        for (uint32_t u = 0; u < t->uses.n && by; u++) {
            gr_object *o = t->uses.list[u].object == GR_NONE ? NULL : &p->objects[t->uses.list[u].object];
            if (o && o->span == GR_SPAN_TEMP && o->bytes >> 20 == 0) /* marked: once */
                o->bytes = (gr_align(o->bytes >> by, GR_ALIGN)) | 1ULL << 20;
        }
    }
    for (size_t o = 0; o < p->n_objects; o++) p->objects[o].bytes &= (1ULL << 20) - 1;
    return p;
}

static void levels_of(uint32_t vector, uint32_t *level)
{
    for (int k = 0; k < KNOBS; k++, vector /= LEVELS) level[k] = vector % LEVELS;
}

/* Everything that one vector allows. */
static void lay_open(space *s, uint64_t *seed, const gr_hardware *hw, uint32_t vector)
{
    uint32_t level[KNOBS];
    levels_of(vector, level);
    *s = (space){.f = gr_analysis_new(build_choices(seed, level), hw), .arena = gr_arena_new()};
    s->choice = gr_calloc(s->f->n_groups + 1, sizeof(*s->choice));
    walk(s, 0);
    qsort(s->found, s->n, sizeof(*s->found), by_time);
}

static void close_space(space *s)
{
    gr_tasks *g = (gr_tasks *)(uintptr_t)s->f->g;
    free(s->choice);
    gr_transfers_release(&s->transfers);
    free(s->found);
    gr_arena_free(s->arena);
    gr_analysis_free(s->f);
    gr_tasks_free(g);
}

static bool fits_resident(const space *s, uint64_t arena)
{
    for (size_t i = 0; i < s->n; i++)
        if (all_stay(s, &s->found[i]) && s->found[i].live <= arena) return true;
    return false;
}

static void compare_choices(space *all, uint64_t seed, const gr_hardware *hw, tally *score)
{
    static const gr_knob knobs[KNOBS] = {
        {"a", LEVELS, GR_BITS_SAME}, {"b", LEVELS, GR_BITS_SAME}, {"c", LEVELS, GR_BITS_SAME}};
    uint64_t least = UINT64_MAX, most = 0;
    for (uint32_t v = 0; v < VECTORS; v++)
        for (size_t i = 0; i < all[v].n; i++) {
            least = GR_MIN(least, all[v].found[i].live);
            most = GR_MAX(most, all[v].found[i].live);
        }
    for (uint32_t k = 0; k < 4; k++) {
        const uint64_t arena = gr_align(least + (most - least) * k / 4, GR_ALIGN);
        uint64_t best = UINT64_MAX;
        for (uint32_t v = 0; v < VECTORS; v++) best = GR_MIN(best, least_time(&all[v], arena));
        if (fits_resident(&all[0], arena))
            best = best_goal(&all[0], arena).ns; /* nothing is looked for then */
        if (best == UINT64_MAX) continue;        /* no offsets */
        gr_tasks_source src = {&seed, knobs, KNOBS, build_choices, NULL};
        gr_schedule_options o = {.hardware = *hw, .host_budget_bytes = 1ULL << 40};
        o.budget_bytes = hw->overhead_bytes + arena;
        uint32_t level[KNOBS];
        gr_plan *p = NULL;
        const bool fits = gr_schedule(&p, level, &src, &o, NULL) == GR_OK;
        const double over = fits ? (double)p->ns / (double)best - 1 : 1;
        score->budgets++;
        score->equal += over <= 0.001;
        score->within += over <= 0.01;
        score->missed += !fits;
        score->worst = GR_MAX(score->worst, over);
        if (over > 0.01)
            print_message("seed %lu, %lu of %lu bytes: %lu ns, exhaustive %lu\n", seed, arena, most, p->ns,
                          best);
        gr_plan_free(p);
    }
}

/* More programs than are gone through: the search goes down to what fits, and up again. */
static void test_choices_are_as_good_as_trying_all_of_them(void **state)
{
    (void)state;
    const uint32_t wanted = getenv("GR_SLOW") ? 300 : 6;
    static space all[VECTORS];
    tally score = {0};
    for (uint64_t seed = 1; score.programs < wanted; seed++) {
        gr_tasks *g = random_tasks(seed);
        const gr_hardware hw = hardware_of(seed);
        gr_analysis *f = gr_analysis_new(g, &hw);
        const bool small = g->validate == GR_NONE && f->n_nodes >= KNOBS && count_all(f) <= MOST_OF_EACH;
        gr_analysis_free(f);
        gr_tasks_free(g);
        if (!small) continue;
        for (uint32_t v = 0; v < VECTORS; v++) lay_open(&all[v], &seed, &hw, v);
        compare_choices(all, seed, &hw, &score);
        for (uint32_t v = 0; v < VECTORS; v++) close_space(&all[v]);
        score.programs++;
    }
    print_message(
        "%u programs, %u budgets: within a thousandth %.1f %%, within 1 %% %.1f %%, worst %.1f %%, nothing "
        "found %u\n",
        score.programs, score.budgets, 100.0 * score.equal / score.budgets,
        100.0 * score.within / score.budgets, 100 * score.worst, score.missed);
    assert_int_equal(score.missed, 0);
    assert_true(score.within * 1000 >= score.budgets * 995);
    assert_true(score.worst <= 0.02);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_search_is_as_good_as_trying_everything),
                                       cmocka_unit_test(test_choices_are_as_good_as_trying_all_of_them)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
