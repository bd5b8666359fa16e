/* Where the device runs work later than it is given, a lane's code goes ahead of its queue. The simulation
 * runs the two apart; what the verifier lets pass may not break there. */
#include "graphs/graph/graph.h"
#include "tests/unit/mutants.h"
#include "scheduler/search/planner.h"
#include "graphs/loader/load.h"

enum { USER_CODE, USER_QUEUE, USER_BOTH, USER_TURNS };

/* A program for such a device: who uses each of its objects in the host pool, and works whose code uses some
 * wait for their queue, all of them. */
static void make_queued(gr_tasks *p, uint64_t seed)
{
    static const gr_use_mode modes[] = {GR_BY_CODE, GR_BY_QUEUE, 0, GR_BY_TURNS};
    draw d = {seed * 7919 + 3};
    p->queued = true;
    uint32_t *users = gr_calloc(p->n_objects, sizeof(*users));
    for (uint32_t o = 0; o < p->n_objects; o++)
        users[o] = pick_below(&d, p->objects[o].span == GR_SPAN_KEEP ? USER_TURNS : USER_TURNS + 1);
    for (uint32_t w = 0; w < p->n_tasks; w++) {
        gr_task *k = &p->task[w];
        for (uint32_t u = 0; u < k->uses.n; u++) {
            uint32_t o = k->uses.list[u].object;
            if (o == GR_NONE || p->objects[o].place != GR_HOST) continue;
            k->uses.list[u].mode |= modes[users[o]];
            k->uses.waits |=
                users[o] != USER_QUEUE && k->lane == GR_LANE_COMPUTE && k->loop.body_last == GR_NONE;
        }
    }
    free(users);
}

/* Some objects that were the device's are in the host pool, so that more meet there. */
static gr_tasks *build_queued(void *user, const uint32_t *level)
{
    uint64_t seed = *(const uint64_t *)user;
    gr_tasks *p = build_any(user, level);
    draw d = {seed * 31 + 7};
    for (uint32_t o = 0; o < p->n_objects; o++)
        if (p->objects[o].span == GR_SPAN_TEMP && pick_below(&d, 2)) p->objects[o].place = GR_HOST;
    make_queued(p, seed);
    return p;
}

/* The verifier's view without queues: a lane is one time line. */
static bool accepted_in_line(const gr_plan *p, const gr_tasks *g)
{
    gr_tasks line = *g;
    line.queued = false;
    return accepted(p, &line, NULL);
}

/* ---- by hand ------------------------------------------------------------------------------------------- */

/* Two works, the first of which writes an object in the host pool, as `first` says, and the second reads it,
 * or writes another, whose bytes are the same, as `second` says. */
typedef struct pair {
    gr_use_mode first, second;
    bool other, loop; /* another object; both in a loop of two trips */
    bool waits[2];    /* for its queue */
    gr_lane lane;     /* of the second */
    bool proven;
} pair;

#define CODE  GR_BY_CODE
#define QUEUE GR_BY_QUEUE
#define BOTH  (gr_use_mode)0
#define TURNS GR_BY_TURNS

static gr_tasks *tasks_of(const pair *x)
{
    gr_tasks *p = gr_tasks_new();
    p->queued = true;
    gr_tasks_node(p, "a", GR_LANE_COMPUTE, false);
    uint32_t a = gr_tasks_host(p, GR_CAT_COLUMNS, 1024, "one"), b = a;
    if (x->other) b = gr_tasks_host(p, GR_CAT_COLUMNS, 1024, "other");
    if (x->loop) gr_tasks_loop(p, 0, 2, false, "loop");
    gr_tasks_run(p, 0, 0, (gr_use[]){{a, GR_WRITE | x->first}}, 1, "first")->uses.waits = x->waits[0];
    p->lane = x->lane;
    gr_tasks_run(p, 0, 0, (gr_use[]){{b, (x->other ? GR_WRITE : GR_READ) | x->second}}, 1, "second")
        ->uses.waits = x->waits[1];
    if (x->loop) gr_tasks_end(p);
    return p;
}

static void test_code_knows_of_its_queue_by_a_wait_alone(void **state)
{
    static const pair pairs[] = {
        {.first = CODE, .second = CODE, .proven = true},
        {.first = CODE, .second = QUEUE, .proven = true},
        {.first = QUEUE, .second = QUEUE, .proven = true},
        {.first = QUEUE, .second = CODE},
        {.first = QUEUE, .second = CODE, .waits = {false, true}, .proven = true},
        {.first = QUEUE, .second = CODE, .waits = {true, false}}, /* it goes on writing behind the wait */
        {.first = QUEUE, .second = CODE, .lane = GR_LANE_HOST, .proven = true},
        {.first = QUEUE, .second = BOTH},
        {.first = BOTH, .second = CODE},
        {.first = BOTH, .second = QUEUE, .proven = true},
        {.first = TURNS, .second = TURNS, .proven = true},
        {.first = QUEUE, .second = CODE, .other = true},
        {.first = QUEUE, .second = CODE, .other = true, .waits = {false, true}, .proven = true},
        {.first = TURNS, .second = TURNS, .other = true}, /* they are not the same op's */
        {.first = CODE, .second = QUEUE, .other = true, .proven = true},
        /* the second trip's code, while the first one's queue reads */
        {.first = CODE, .second = QUEUE, .loop = true},
        {.first = CODE, .second = QUEUE, .loop = true, .waits = {true, false}, .proven = true},
        {.first = CODE, .second = CODE, .loop = true, .proven = true},
        {.first = TURNS, .second = TURNS, .loop = true, .proven = true},
        {.first = QUEUE, .second = QUEUE, .loop = true, .proven = true},
        {.first = CODE, .second = QUEUE, .other = true, .loop = true},
        /* where `host` has read what the queue wrote, the threads that meet know of that queue's end */
        {.first = QUEUE, .second = CODE, .loop = true, .lane = GR_LANE_HOST, .proven = true},
    };
    (void)state;
    for (size_t i = 0; i < GR_LEN(pairs); i++) {
        gr_tasks *g = tasks_of(&pairs[i]);
        gr_plan *p = still_plan(g, "0");
        char what[128];
        const char *why = NULL;
        gr_str said = {0};
        if (pairs[i].other) assert_int_equal(p->ledger[0].offset, p->ledger[1].offset);
        if (accepted(p, g, &said) != pairs[i].proven) fail_msg("pair %zu: %s", i, said.text);
        for (uint64_t run = 0; run < 100 && !why; run++)
            why = simulate(p, g, run * 13 + i, NULL, false, what);
        if (pairs[i].proven == (why != NULL)) fail_msg("pair %zu: %s", i, why ? why : "never breaks");
        gr_str_release(&said);
        gr_plan_free(p);
        gr_tasks_free(g);
    }
}

/* ---- at random ----------------------------------------------------------------------------------------- */

typedef struct counts {
    uint32_t waits, needed, harmful, plans, mutants, broken, refused, missed, missed_in_line;
    uint32_t early, early_refused, early_broken, early_in_line;
} counts;

/* Take away each wait that the verifier lets go. */
static void drop_waits(gr_tasks *g, const gr_plan *p, uint64_t seed, counts *n)
{
    char what[128];
    for (uint32_t w = 0; w < g->n_tasks; w++) {
        if (!g->task[w].uses.waits) continue;
        n->waits++;
        g->task[w].uses.waits = false;
        if (accepted(p, g, NULL)) continue;
        n->needed++;
        n->harmful += breaks(p, g, seed * 100 + w, what) != NULL;
        g->task[w].uses.waits = true;
    }
}

/* Whether bytes of the host pool can be used again early: one entry moved to where another lies that lives
 * before it or behind it. */
static bool can_reuse(const gr_plan *p, const gr_entry *e, const gr_entry *o)
{
    bool apart = e->first <= e->last && o->first <= o->last && (e->last < o->first || o->last < e->first);
    return e->place == GR_HOST && o->place == GR_HOST && apart && e->offset != o->offset &&
           o->offset + e->bytes <= p->host_bytes;
}

/* A changed plan, as it stands: what the two views say of it, and what happens. */
static void judge(const gr_plan *mutant, const gr_tasks *g, uint64_t seed, counts *n)
{
    char what[128];
    bool ok = accepted(mutant, g, NULL), in_line = accepted_in_line(mutant, g);
    const char *why = breaks(mutant, g, seed, what);
    if (ok && !in_line) fail_msg("seed %lu: with queues more is let pass than without", seed);
    if (ok && why) fail_msg("seed %lu: %s: %s, and nobody says so", seed, why, what);
    n->early++;
    n->early_refused += !ok;
    n->early_broken += why != NULL;
    n->early_in_line += why && in_line;
}

/* Every pair of entries of the host pool that can be put in the same bytes. */
static void reuse_early(gr_plan *p, const gr_tasks *g, uint64_t seed, counts *n)
{
    for (uint32_t i = 0; i < p->n_ledger; i++)
        for (uint32_t k = 0; k < p->n_ledger; k++) {
            gr_entry *e = &p->ledger[i];
            const uint64_t before = e->offset;
            if (!can_reuse(p, e, &p->ledger[k])) continue;
            e->offset = p->ledger[k].offset;
            judge(p, g, seed * 5000 + i * 70 + k, n);
            e->offset = before;
        }
}

static void try_mutants(const gr_tasks *g, const gr_plan *p, uint64_t seed, uint32_t each, counts *n)
{
    draw d = {seed * 977 + 5};
    for (uint32_t m = 0; m < each; m++) {
        char what[128];
        gr_plan *mutant = copy_plan(p);
        if (mutate(mutant, &d) && can_simulate(mutant, g)) {
            bool ok = accepted(mutant, g, NULL);
            const char *why = breaks(mutant, g, seed * 1000 + m, what);
            n->mutants++;
            n->broken += why != NULL;
            n->refused += !ok;
            n->missed += why && ok;
            n->missed_in_line += why && accepted_in_line(mutant, g);
            if (why && ok)
                print_message("seed %lu, mutant %u: %s: %s, and nobody says so\n", seed, m, why, what);
        }
        gr_plan_free(mutant);
    }
}

static gr_tasks *build_blocks(void *user, const uint32_t *level)
{
    gr_tasks *p = build_stateful(user, level);
    make_queued(p, *(const uint64_t *)user);
    return p;
}

static void test_code_that_goes_ahead_of_its_queue_is_refused(void **state)
{
    (void)state;
    uint32_t disks = 0;
    counts n = {0};
    char what[128];
    uint32_t each = getenv("GR_SLOW") ? 200 : 15;
    const uint64_t next = getenv("GR_SLOW") ? 1 : 3; /* two of those with a disk, and of both budgets */
    for (uint64_t seed = 1; seed <= 64; seed += next) {
        gr_plan *p = seed % 16 ? NULL : disk_plan(build_blocks, &seed, 60, 60, seed % 32 == 0);
        gr_tasks *g = p ? build_blocks(&seed, NULL) : build_queued(&seed, NULL);
        disks += p != NULL;
        if (!p) p = tight_plan(build_queued, &seed, seed > 60 ? 90 : 60 + 40 * (seed % 2));
        gr_str why = {0};
        if (!accepted(p, g, &why)) fail_msg("seed %lu: %s", seed, why.text);
        gr_str_release(&why);
        drop_waits(g, p, seed, &n);
        for (uint64_t run = 0; run < 20; run++) {
            const char *fault = simulate(p, g, seed * 50 + run, NULL, run == 3, what);
            if (fault) fail_msg("seed %lu, run %lu: %s: %s", seed, run, fault, what);
        }
        n.plans++;
        reuse_early(p, g, seed, &n);
        if (p->arena_bytes + p->host_bytes) try_mutants(g, p, seed, p->arena_bytes ? each : 0, &n);
        gr_plan_free(p);
        gr_tasks_free(g);
    }
    print_message(
        "%u plans; %u of %u waits of code for its queue are needed, of these %u seen to break without\n",
        n.plans, n.needed, n.waits, n.harmful);
    print_message(
        "%u mutants, %u refused, %u seen to break, %u of these let pass, with lanes in one line %u\n",
        n.mutants, n.refused, n.broken, n.missed, n.missed_in_line);
    print_message("%u plans with a disk\n", disks);
    assert_true(disks > 1);
    print_message("bytes of the host pool used early: %u, %u refused, %u seen to break, with lanes in one "
                  "line %u of these let pass\n",
                  n.early, n.early_refused, n.early_broken, n.early_in_line);
    assert_int_equal(n.missed, 0);
    if (getenv("GR_SLOW")) assert_true(n.needed > 50 && n.harmful > n.needed / 2 && n.early_in_line > 4);
    assert_true(n.needed > 30 && n.harmful > n.needed / 3 && n.early_in_line > 0);
}

/* ---- shipped graphs, planned for CUDA ------------------------------------------------------------------ */

static gr_graph *load(const char *file, uint32_t ranks)
{
    static const char *const sets[] = {"model=tests/cli/model/config.json", "batch=4", "mini_batch=2",
                                       "max_prompt=16", "max_tokens=16"};
    char *path = gr_printf("graphs/%s.yaml", file);
    gr_load_options o = {.set = sets, .n_set = GR_LEN(sets), .need_shapes = true, .ranks = ranks};
    gr_graph *g = NULL;
    gr_diag d;
    gr_diag_init(&d);
    if (gr_graph_load(&g, path, &o, &d)) fail_msg("%s: %s", path, d.messages[0].text);
    gr_diag_release(&d);
    free(path);
    return g;
}

static gr_planned *plan_for_cuda(const gr_graph *g, gr_policy policy)
{
    gr_plan_options o = {.kernels = gr_kernels_find("cuda"), .policy = policy, .threads = 1};
    gr_planned *p = NULL;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_hardware_find(&o.hardware, "h200", &d), GR_OK);
    if (gr_plan_graph(&p, g, &o, &d)) fail_msg("%s", d.messages[0].text);
    gr_diag_release(&d);
    return p;
}

/* What the ops' own code waits for: without it, plans are refused where it is needed, and run wrong. */
static void judge_graph(gr_planned *p, const char *file, counts *n)
{
    char what[128];
    for (uint64_t run = 0; run < 4; run++) {
        const char *why = simulate(p->plan, p->tasks, run, NULL, false, what);
        if (why) fail_msg("%s, run %lu: %s: %s", file, run, why, what);
    }
    drop_waits(p->tasks, p->plan, 1, n);
    n->plans++;
}

static void test_shipped_graphs_wait_where_they_must(void **state)
{
    static const char *const files[] = {"grpo", "ppo", "dapo", "kl_cov", "grpo_validated", "pf_ppo"};
    (void)state;
    counts n = {0};
    for (size_t i = 0; i < GR_LEN(files); i++)
        for (uint32_t ranks = 1; ranks <= 2; ranks++) {
            if (!getenv("GR_SLOW") && ranks != 1 + i % 2) continue;
            gr_graph *g = load(files[i], ranks);
            gr_planned *p = plan_for_cuda(g, ranks == 1 ? GR_POLICY_AUTO : GR_POLICY_EVERY_NODE);
            assert_true(p->tasks->queued);
            judge_graph(p, files[i], &n);
            gr_planned_free(p);
            gr_graph_free(g);
        }
    print_message(
        "%u plans of shipped graphs; %u of %u waits of code for its queue are needed, of these %u seen "
        "to break without\n",
        n.plans, n.needed, n.waits, n.harmful);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_code_knows_of_its_queue_by_a_wait_alone),
        cmocka_unit_test(test_code_that_goes_ahead_of_its_queue_is_refused),
        cmocka_unit_test(test_shipped_graphs_wait_where_they_must),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
