/* Changed plans of models on every axis of a mesh, alone, in pairs, and over pools: none that goes wrong when
 * it is simulated is accepted by the verifier. Two simulations that know none of its rules say what goes
 * wrong: versions of memory under random interleavings of a rank's lanes (simulate.h), and ranks that meet
 * (meet.h), all with the changed plan or one of them.
 *
 * With GR_SLOW=1 10,000 changes; a table by axis and one by change are printed (docs/PERFORMANCE.md, "The
 * verifier"). */
#include "tests/unit/meet.h"
#include "tests/unit/mesh_fixture.h"
#include "tests/unit/mutants.h"

typedef struct axis_case {
    const char *name;
    config c;
} axis_case;

#define POOLS      .rollout = ", pool: b", .more = "pools: {a: {ranks: 2}, b: {share: 1}}\n", .ranks = 4
#define WIDE_POOLS .rollout = ", pool: b", .more = "pools: {a: {ranks: 4}, b: {share: 1}}\n", .ranks = 6
#define KEEP       ", residency: {rollout_weights: keep}"

static const axis_case cases[] = {
    {"data", {.model = "", .ranks = 4}},
    {"data, whole weights", {.model = KEEP, .ranks = 4}},
    {"host shards", {.model = ", shard: node", .ranks = 4, .hosts = 2}},
    {"tensor", {.model = ", parallel: {tensor: 2}" KEEP, .ranks = 4}},
    {"context", {.model = ", parallel: {context: 4}", .ranks = 4}},
    {"expert", {.model = ", parallel: {expert: 4}" KEEP, .ranks = 4, .experts = true}},
    {"pipeline", {.model = ", parallel: {pipeline: 3}", .ranks = 3}},
    {"rollout slices", {.model = ", tensor: 2", .ranks = 4}},
    {"data x tensor", {.model = ", parallel: {tensor: 2}", .ranks = 4}},
    {"data x context", {.model = ", parallel: {context: 2}", .ranks = 4}},
    {"data x expert", {.model = ", parallel: {expert: 2}", .ranks = 4, .experts = true}},
    {"data x pipeline", {.model = ", parallel: {pipeline: 2}", .ranks = 4}},
    {"host shards x tensor", {.model = ", shard: node, parallel: {tensor: 2}", .ranks = 4, .hosts = 2}},
    {"host shards x context", {.model = ", shard: node, parallel: {context: 2}", .ranks = 4, .hosts = 2}},
    {"host shards x expert",
     {.model = ", shard: node, parallel: {expert: 2}", .ranks = 4, .hosts = 2, .experts = true}},
    {"host shards x pipeline", {.model = ", shard: node, parallel: {pipeline: 2}", .ranks = 4, .hosts = 2}},
    {"host shards x pipeline over hosts",
     {.model = ", shard: node, parallel: {pipeline: 2}", .ranks = 4, .hosts = 4}},
    {"tensor x context", {.model = ", parallel: {tensor: 2, context: 2}", .ranks = 4}},
    {"tensor x expert", {.model = ", parallel: {tensor: 2, expert: 4}", .ranks = 4, .experts = true}},
    {"tensor x pipeline", {.model = ", parallel: {tensor: 2, pipeline: 2}" KEEP, .ranks = 4}},
    {"context x expert", {.model = ", parallel: {context: 2, expert: 4}", .ranks = 4, .experts = true}},
    {"expert x pipeline", {.model = ", parallel: {pipeline: 2, expert: 2}", .ranks = 4, .experts = true}},
    {"chunks", {.model = ", parallel: {pipeline: 2, chunks: 2}", .ranks = 2, .deep = true}},
    {"data x chunks", {.model = ", parallel: {pipeline: 2, chunks: 3}", .ranks = 4, .deep = true}},
    {"tensor x chunks",
     {.model = ", parallel: {tensor: 2, pipeline: 2, chunks: 2}" KEEP, .ranks = 4, .deep = true}},
    {"context x pipeline", {.model = ", parallel: {context: 2, pipeline: 2}", .ranks = 4}},
    {"context x rollout slices", {.model = ", parallel: {context: 2}, tensor: 4", .ranks = 4}},
    {"tensor x context x expert",
     {.model = ", parallel: {tensor: 2, context: 2, expert: 4}, tensor: 2", .ranks = 4, .experts = true}},
    {"tensor x context x pipeline",
     {.model = ", parallel: {tensor: 2, context: 2, pipeline: 2}", .ranks = 8}},
    {"pools x data", {.model = ", pool: a", POOLS}},
    {"pools x tensor", {.model = ", pool: a, parallel: {tensor: 2}", POOLS}},
    {"pools x context", {.model = ", pool: a, parallel: {context: 2}", POOLS}},
    {"pools x expert", {.model = ", pool: a, parallel: {expert: 2}", POOLS, .experts = true}},
    {"pools x pipeline", {.model = ", pool: a, parallel: {pipeline: 2}", WIDE_POOLS}},
    {"pools x chunks", {.model = ", pool: a, parallel: {pipeline: 2, chunks: 2}", .deep = true, WIDE_POOLS}},
};

/* Changes of a task that ranks meet in, beside the random ones of mutants.h; each of all ranks' plan, or of
 * one's. */
enum { DROPPED, DOUBLED, MOVED, SWAPPED, OTHER_LANE, OTHER_KIND, OTHER_BYTES, OTHER_GROUP, N_MEETS };
static const char *const of_meetings[N_MEETS] = {
    "meeting taken away",    "meeting doubled", "meeting moved",  "two meetings changed over",
    "meeting on other lane", "of another kind", "of other bytes", "sent to another group"};
enum { N_KINDS = MUTATIONS + N_MEETS };

static const char *kind_name(unsigned kind)
{
    return kind < MUTATIONS ? mutations[kind] : of_meetings[kind - MUTATIONS];
}

typedef struct tally {
    uint32_t tried, refused, harmless, simulated, broken, bad;
} tally;

static void put_tally(const char *name, const tally *t)
{
    print_message("| %s | %u | %u | %u | %u | %u |\n", name, t->tried, t->refused, t->broken, t->harmless,
                  t->bad);
}

/* ---- changes ------------------------------------------------------------------------------------------ */

static const gr_task *task_of(const gr_tasks *g, const gr_step *s)
{
    for (uint32_t w = 0; w < gr_tasks_steady(g) && gr_step_is_task(s->kind); w++)
        if (!strcmp(g->task[w].what, s->what)) return &g->task[w];
    return NULL;
}

static bool meets(const gr_tasks *g, const gr_step *s)
{
    const gr_task *w = task_of(g, s);
    return w && w->kind != GR_STEP_LOOP && (w->kind != GR_STEP_RUN || w->comm.peers > 1);
}

/* Whether two tasks meet other ranks; not both are collectives of one group. */
static bool other_group(const gr_task *a, const gr_task *b)
{
    return a->kind != b->kind || a->comm.group != b->comm.group || a->comm.peers != b->comm.peers ||
           a->comm.to_next != b->comm.to_next ||
           memcmp(&a->comm.mesh, &b->comm.mesh, sizeof(a->comm.mesh)) != 0;
}

/* A step that ranks meet in; GR_NONE: there is none. */
static uint32_t pick_meeting(const gr_plan *p, const gr_tasks *g, draw *d)
{
    const gr_path *path = &p->paths[GR_PATH_STEADY];
    const uint32_t from = pick_below(d, path->n);
    for (uint32_t k = 0; k < path->n; k++)
        if (meets(g, &path->steps[(from + k) % path->n])) return (from + k) % path->n;
    return GR_NONE;
}

/* The step becomes another one's task, which is of another group where there is such a one. */
static bool send_elsewhere(gr_plan *p, const gr_tasks *g, uint32_t at, draw *d)
{
    gr_path *path = &p->paths[GR_PATH_STEADY];
    gr_step *s = &path->steps[at];
    const uint32_t from = pick_below(d, path->n);
    for (uint32_t k = 0; k < path->n; k++) {
        const gr_step *o = &path->steps[(from + k) % path->n];
        if (!meets(g, o) || !other_group(task_of(g, s), task_of(g, o))) continue;
        const gr_step was = *s;
        *s = *o;
        s->after = was.after, s->n_after = was.n_after;
        return true;
    }
    return false;
}

static gr_step_kind other_kind(gr_step_kind kind)
{
    return kind == GR_STEP_GATHER ? GR_STEP_REDUCE : kind == GR_STEP_SEND ? GR_STEP_RECV : GR_STEP_GATHER;
}

static bool change_meeting(gr_plan *p, const gr_tasks *g, draw *d, unsigned how)
{
    gr_path *path = &p->paths[GR_PATH_STEADY];
    const uint32_t at = pick_meeting(p, g, d), other = pick_meeting(p, g, d), to = pick_below(d, path->n);
    if (at == GR_NONE) return false;
    gr_step *s = &path->steps[at];
    switch (how) {
    case DROPPED:
        delete_step(p, GR_PATH_STEADY, at);
        return true;
    case DOUBLED:
        double_step(p, GR_PATH_STEADY, at);
        return true;
    case MOVED:
        if (to != at) move_step(p, GR_PATH_STEADY, at, GR_MIN(to, path->n - 1));
        return to != at;
    case SWAPPED:
        swap_steps(p, GR_PATH_STEADY, at, other);
        return at != other;
    case OTHER_LANE:
        s->lane = s->lane == GR_LANE_COMM ? GR_LANE_COMPUTE : GR_LANE_COMM;
        return true;
    case OTHER_KIND:
        s->kind = other_kind(s->kind);
        return true;
    case OTHER_BYTES:
        s->bytes += GR_ALIGN;
        return true;
    default:
        return send_elsewhere(p, g, at, d);
    }
}

/* ---- what is accepted, and what goes wrong ------------------------------------------------------------ */

typedef struct subject {
    const gr_planned *p;
    const gr_tasks *tasks[8];
    const char *name;
} subject;

static bool all_accepted(const gr_plan *plan, const subject *x)
{
    gr_diag d;
    gr_diag_init(&d);
    const bool ok = gr_plan_verify_all(plan, x->tasks, &d) == GR_OK;
    gr_diag_release(&d);
    return ok;
}

/* With the changed plan on all ranks of its role, and on one of them alone. */
static const char *goes_wrong(const gr_plan *mutant, const subject *x, uint32_t role, uint32_t odd,
                              uint64_t seed, char what[128])
{
    const gr_plan *own = gr_plan_role(mutant, role);
    uint32_t first = 0;
    for (uint32_t c = 0; c < role; c++) first += x->tasks[c]->ranks;
    const char *why = meet_all(mutant, x->tasks, GR_NONE, NULL, what);
    if (!why) why = meet_all(x->p->plan, x->tasks, first + odd % x->tasks[role]->ranks, own, what);
    return why ? why : breaks(own, x->tasks[role], seed, what);
}

static void count(tally *t, bool ok, bool simulated, const char *why)
{
    t->tried++;
    t->refused += !ok;
    t->simulated += simulated;
    t->broken += why != NULL;
    t->bad += ok && why;
    t->harmless += ok && !why;
}

/* One change; false: it changed nothing. */
static bool try_one(const subject *x, draw *d, uint64_t seed, tally *axis, tally *kinds)
{
    gr_plan *mutant = copy_plan(x->p->plan);
    const uint32_t role = pick_below(d, mutant->n_more + 1), odd = pick_below(d, 16);
    gr_plan *own = gr_plan_role(mutant, role);
    unsigned kind;
    bool changed;
    if (pick_below(d, 2)) {
        changed = mutate_as(own, d, &kind);
    } else {
        kind = MUTATIONS + pick_below(d, N_MEETS);
        changed = change_meeting(own, x->tasks[role], d, kind - MUTATIONS);
    }
    const bool ok = all_accepted(mutant, x), can = can_simulate(own, x->tasks[role]);
    char what[128] = "";
    const char *why = changed && can ? goes_wrong(mutant, x, role, odd, seed, what) : NULL;
    if (!changed) assert_true(ok);
    if (ok && changed && !can)
        fail_msg("%s: what is accepted cannot be simulated: %s", x->name, kind_name(kind));
    if (changed) count(axis, ok, can, why);
    if (changed) count(&kinds[kind], ok, can, why);
    if (why && ok)
        print_message("%s, %s, seed %lu: %s: %s, and nobody says so\n", x->name, kind_name(kind), seed, why,
                      what);
    gr_plan_free(mutant);
    return changed;
}

/* The plan as it is meets nobody in vain, which is what the simulation is worth. */
static subject begin(const axis_case *k, gr_graph **g)
{
    *g = load(&k->c);
    subject x = {.p = plan(&k->c, *g), .name = k->name};
    char what[128];
    for (uint32_t c = 0; c <= x.p->n_more; c++) x.tasks[c] = gr_planned_role(x.p, c)->tasks;
    assert_true(all_accepted(x.p->plan, &x));
    const char *why = meet_all(x.p->plan, x.tasks, GR_NONE, NULL, what);
    for (uint32_t c = 0; c <= x.p->n_more && !why; c++) {
        assert_true(can_simulate(gr_plan_role(x.p->plan, c), x.tasks[c]));
        why = breaks(gr_plan_role(x.p->plan, c), x.tasks[c], c, what);
    }
    if (why) fail_msg("%s, as it is planned: %s: %s", k->name, why, what);
    return x;
}

static void test_no_mutant_that_goes_wrong_is_accepted(void **state)
{
    (void)state;
    const uint32_t each = getenv("GR_SLOW") ? (10000 + GR_LEN(cases) - 1) / GR_LEN(cases) : 6;
    tally axes[GR_LEN(cases)] = {{0}}, kinds[N_KINDS] = {{0}}, all = {0};
    for (size_t k = 0; k < GR_LEN(cases); k++) {
        gr_graph *g;
        const subject x = begin(&cases[k], &g);
        draw d = {k * 977 + 5};
        for (uint64_t seed = k * 100000; axes[k].tried < each; seed++) try_one(&x, &d, seed, &axes[k], kinds);
        gr_planned_free((gr_planned *)(uintptr_t)x.p);
        gr_graph_free(g);
    }
    print_message("| axes | tried | refused | seen to go wrong | accepted, harmless | accepted, wrong "
                  "|\n|---|---|---|---|---|---|\n");
    for (size_t k = 0; k < GR_LEN(cases); k++) put_tally(cases[k].name, &axes[k]);
    print_message("\n| change | tried | refused | seen to go wrong | accepted, harmless | accepted, wrong "
                  "|\n|---|---|---|---|---|---|\n");
    for (unsigned k = 0; k < N_KINDS; k++) {
        put_tally(kind_name(k), &kinds[k]);
        all.tried += kinds[k].tried, all.refused += kinds[k].refused, all.broken += kinds[k].broken;
        all.harmless += kinds[k].harmless, all.bad += kinds[k].bad, all.simulated += kinds[k].simulated;
    }
    put_tally("all", &all);
    print_message("%u of %u simulated\n", all.simulated, all.tried);
    assert_int_equal(all.bad, 0);
    assert_true(all.broken > all.tried / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_mutant_that_goes_wrong_is_accepted),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
