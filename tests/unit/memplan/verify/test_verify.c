#include "tests/unit/mutants.h"

/* Every line of a refusal has its rule, and the step, entry or path that breaks it. */
static void assert_named(const char *why)
{
    for (const char *line = why; *line; line = strchr(line, '\n') + 1) {
        const char *end = strchr(line, '\n'), *place = NULL;
        static const char *const places[] = {"step", "entry", "entries", "path"};
        for (size_t i = 0; i < GR_LEN(places) && !(place && place < end); i++)
            place = strstr(line, places[i]);
        if (strncmp(line, "plan breaks rule '", 18) || !place || place > end)
            fail_msg("names no place: %s", line);
    }
}

static void test_mutants_that_break_a_rule_are_refused(void **state)
{
    (void)state;
    uint32_t broken = 0, refused = 0, total = 0, unchanged = 0, missed = 0, passing = 0, disks = 0, load,
             loop;
    uint32_t per_plan = getenv("GR_SLOW") ? 400 : 60;
    const uint64_t next = getenv("GR_SLOW") ? 1 : 3; /* two of those with a disk, and of both budgets */
    for (uint64_t seed = 1; seed <= 64; seed += next) {
        gr_plan *p = seed % 16 ? NULL : disk_plan(build_stateful, &seed, 60, 60, seed % 32 == 0);
        gr_tasks *g = p ? build_stateful(&seed, NULL) : build_any(&seed, NULL);
        disks += p != NULL;
        if (!p) p = tight_plan(build_any, &seed, seed > 60 ? 75 : 60 + 40 * (seed % 2));
        draw d = {seed * 977};
        passing += find_passing(p, &load, &loop);
        if (p->arena_bytes == 0) per_plan = 0;
        for (uint32_t m = 0; m < per_plan && p->arena_bytes; m++) {
            gr_plan *mutant = copy_plan(p);
            gr_str why = {0};
            bool changed = mutate(mutant, &d), ok = accepted(mutant, g, &why);
            total += changed;
            refused += changed && !ok;
            if (!ok) assert_named(why.text);
            if (!changed) {
                unchanged++;
                if (!ok) fail_msg("seed %lu: a copy of a plan is refused: %s", seed, why.text);
            } else if (can_simulate(mutant, g)) {
                char what[128];
                const char *fault = breaks(mutant, g, seed * 1000 + m, what);
                broken += fault != NULL;
                if (fault && ok) {
                    missed++;
                    print_message("seed %lu, mutant %u: %s: %s, and nobody says so\n", seed, m, fault, what);
                }
            }
            gr_str_release(&why);
            gr_plan_free(mutant);
        }
        gr_plan_free(p);
        gr_tasks_free(g);
    }
    print_message("%u mutants, %u refused, %u seen to break in a run, %u unchanged; %u plans with loads that "
                  "pass loops, %u with a disk\n",
                  total, refused, broken, unchanged, passing, disks);
    assert_true(disks > 1);
    assert_int_equal(missed, 0);
    assert_true(broken > total / 4 && unchanged > 10 && passing > (getenv("GR_SLOW") ? 4 : 1));
}

/* The room of what a step loads, with nothing in it. */
static void empty_instead(gr_plan *p, uint32_t load)
{
    gr_step *s = &p->paths[GR_PATH_STEADY].steps[load];
    s->kind = GR_STEP_RESUME;
    s->n_reads = 0;
    s->bytes = 0;
}

static void test_each_rule_refuses_its_own_fault(void **state)
{
    (void)state;
    shape s = SMALL;
    gr_tasks *g = build_shape(&s, NULL);
    gr_plan *p = tight_plan(build_shape, &s, 40), *m;
    assert_true(accepted(p, g, NULL));
    m = copy_plan(p), delete_step(m, GR_PATH_STEADY, find_step(m, GR_STEP_LOAD, 0)),
    refuse(m, g, "'lifetimes'"), gr_plan_free(m);
    m = copy_plan(p), delete_step(m, GR_PATH_STEADY, find_step(m, GR_STEP_RUN, 0)), refuse(m, g, "'order'"),
    gr_plan_free(m);
    m = copy_plan(p), delete_step(m, GR_PATH_INIT, 0), refuse(m, g, "'paths'"), gr_plan_free(m);
    m = copy_plan(p), delete_step(m, GR_PATH_CHECKPOINT, 0), refuse(m, g, "'paths'"), gr_plan_free(m);
    m = copy_plan(p), m->ledger[0].offset += 1, refuse(m, g, "'offsets'"), gr_plan_free(m);
    m = copy_plan(p), m->budget_bytes = 1 << 20, refuse(m, g, "'budget'"), gr_plan_free(m);
    m = copy_plan(p), m->paths[0].steps[1].resident_bytes++, refuse(m, g, "'resident bytes'"),
    gr_plan_free(m);
    m = copy_plan(p), m->paths[GR_PATH_FINAL].n_entry--, refuse(m, g, "'boundary'"), gr_plan_free(m);
    m = copy_plan(p), m->paths[0].steps[find_step(m, GR_STEP_LOAD, 0)].lane = GR_LANE_D2H,
    refuse(m, g, "'lanes'"), gr_plan_free(m);
    m = copy_plan(p), m->paths[0].steps[find_step(m, GR_STEP_LOOP, 0)].trips_max++, refuse(m, g, "'loops'"),
    gr_plan_free(m);
    m = copy_plan(p), m->paths[0].steps[find_step(m, GR_STEP_OFFLOAD, 0)].n_after = 0,
    refuse(m, g, "'waits'"), gr_plan_free(m);
    m = copy_plan(p), m->peak_step = find_step(m, GR_STEP_RELEASE, 0), refuse(m, g, "'peak'"),
    gr_plan_free(m);
    m = copy_plan(p), m->peak_bytes--, refuse(m, g, "'peak'"), gr_plan_free(m);
    m = copy_plan(p), m->ledger[0].category = (m->ledger[0].category + 1) % GR_N_CATEGORIES,
    refuse(m, g, "'objects'"), gr_plan_free(m);
    m = copy_plan(p), double_step(m, GR_PATH_INIT, 0), m->paths[GR_PATH_INIT].steps[0].kind = GR_STEP_SYNC,
    refuse(m, g, "'kinds'"), gr_plan_free(m);
    m = copy_plan(p), empty_instead(m, find_step(m, GR_STEP_LOAD, 0)), refuse(m, g, "'fresh contents'"),
    gr_plan_free(m);
    gr_plan_free(p);
    gr_tasks_free(g);
}

/* What lanes that pass a loop by do behind it waits for the loop where it takes bytes that the loop uses: a
 * plan without such a wait is refused, or other waits keep the order. */
static void test_a_copy_behind_a_loop_waits_for_it(void **state)
{
    (void)state;
    uint32_t waits = 0, needed = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        gr_tasks *g = random_tasks(seed);
        gr_plan *p = tight_plan(build_random, &seed, 60), *m;
        const gr_path *path = &p->paths[GR_PATH_STEADY];
        for (uint32_t i = 0; i < path->n; i++)
            for (uint32_t k = 0; k < path->steps[i].n_after; k++) {
                const gr_step *from = &path->steps[path->steps[i].after[k]];
                bool copies = path->steps[i].lane == GR_LANE_H2D || path->steps[i].lane == GR_LANE_D2H;
                if (!copies || from->kind != GR_STEP_LOOP) continue;
                waits++;
                m = copy_plan(p);
                gr_step *t = &m->paths[GR_PATH_STEADY].steps[i];
                t->after[k] = t->after[--t->n_after];
                bool ok = accepted(m, g, NULL);
                char what[128];
                for (uint64_t run = 0; run < 20 && ok; run++)
                    assert_null(simulate(m, g, run, NULL, false, what));
                needed += !ok;
                gr_plan_free(m);
            }
        gr_plan_free(p);
        gr_tasks_free(g);
    }
    print_message("%u of %u waits of copies for loops are needed\n", needed, waits);
    assert_true(needed > 10);
}

/* A load under a loop: what the loop uses may not lie where the copy goes, and the copy's life says so. */
static void test_a_copy_in_flight_during_a_loop_keeps_its_bytes_to_itself(void **state)
{
    (void)state;
    shape s = SMALL;
    s.kv_bytes = 24 << 20; /* the rollout is the peak: the update has room */
    gr_tasks *g = build_shape(&s, NULL);
    gr_plan *p = tight_plan(build_shape, &s, 75), *m;
    const gr_path *path = &p->paths[GR_PATH_STEADY];
    uint32_t load = 0, loop = 0, inside = GR_NONE;
    assert_true(accepted(p, g, NULL) && find_passing(p, &load, &loop));
    uint32_t copy = path->steps[load].writes[0];
    for (uint32_t i = loop + 1; i <= path->steps[loop].body_last; i++) /* an entry of the loop's own */
        for (uint32_t k = 0; k < path->steps[i].n_writes; k++)
            if (p->ledger[path->steps[i].writes[k]].first > loop && inside == GR_NONE)
                inside = path->steps[i].writes[k];
    assert_true(inside != GR_NONE);
    m = copy_plan(p), m->ledger[inside].offset = m->ledger[copy].offset, refuse(m, g, "'shared bytes'");
    gr_plan_free(m);
    /* with a life that begins behind the loop, as if the copy were made there: its step is still before it */
    m = copy_plan(p), m->ledger[inside].offset = m->ledger[copy].offset;
    m->ledger[copy].first = path->steps[loop].body_last + 1;
    refuse(m, g, "'lifetimes'"), gr_plan_free(m);
    gr_plan_free(p);
    gr_tasks_free(g);
}

/* The entry that a step of the path validate brings to the device, of a model's weights. */
static uint32_t loaded_to_validate(const gr_plan *p)
{
    const gr_path *path = &p->paths[GR_PATH_VALIDATE];
    for (uint32_t i = 0; i < path->n; i++)
        if (path->steps[i].kind == GR_STEP_LOAD &&
            p->ledger[path->steps[i].writes[0]].category == GR_CAT_WEIGHTS)
            return path->steps[i].writes[0];
    fail_msg("validation loads no weights");
    return 0;
}

/* NeMo-RL PR 1159: weights stayed on the device behind a validation, where the iteration wants the room. */
static void test_what_validation_leaves_behind_is_refused(void **state)
{
    (void)state;
    shape s = SMALL;
    s.validates = true;
    gr_tasks *g = build_shape(&s, NULL);
    gr_plan *p = tight_plan(build_shape, &s, 30), *m;
    assert_true(accepted(p, g, NULL));
    uint32_t left = loaded_to_validate(p), n_steady = p->paths[GR_PATH_STEADY].n;
    uint32_t ends = p->ledger[left].last - n_steady;
    m = copy_plan(p), delete_step(m, GR_PATH_VALIDATE, ends), refuse(m, g, "'lifetimes'"), gr_plan_free(m);
    /* with a life that says so: then the iteration's own copies have these bytes */
    m = copy_plan(p), delete_step(m, GR_PATH_VALIDATE, ends);
    m->ledger[left].first = 0, m->ledger[left].last = gr_plan_steps(m) - 1;
    refuse(m, g, "'shared bytes'"), gr_plan_free(m);
    m = copy_plan(p), m->paths[GR_PATH_VALIDATE].exit[0] = left, refuse(m, g, "'boundary'"), gr_plan_free(m);
    /* and what validation needs must come, from where it is */
    m = copy_plan(p), delete_step(m, GR_PATH_VALIDATE, m->ledger[left].first - n_steady);
    refuse(m, g, "'lifetimes'"), gr_plan_free(m);
    m = copy_plan(p), m->paths[GR_PATH_VALIDATE].n = 0, refuse(m, g, "'lifetimes'"), gr_plan_free(m);
    gr_plan_free(p);
    gr_tasks_free(g);
}

static void test_bindings_name_the_copy_of_each_use(void **state)
{
    (void)state;
    shape s = SMALL;
    s.validates = true;
    gr_tasks *g = build_shape(&s, NULL);
    gr_plan *p = tight_plan(build_shape, &s, 50);
    gr_arena *arena = gr_arena_new();
    gr_binding *b = gr_plan_bind(p, g, arena);
    uint32_t uses = 0;
    for (uint32_t i = 0; i < gr_plan_steps(p); i++) {
        if (!b[i].task) continue;
        assert_string_equal(b[i].task->what, gr_plan_step(p, i)->what);
        for (uint32_t u = 0; u < b[i].task->uses.n; u++) {
            uint32_t o = b[i].task->uses.list[u].object;
            assert_int_equal(o == GR_NONE, b[i].entry[u] == GR_NONE);
            if (o == GR_NONE) continue;
            assert_string_equal(g->objects[o].name, p->ledger[b[i].entry[u]].what);
            uses++;
        }
    }
    assert_true(uses > 100);
    gr_arena_free(arena);
    gr_plan_free(p);
    gr_tasks_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_rule_refuses_its_own_fault),
        cmocka_unit_test(test_a_copy_behind_a_loop_waits_for_it),
        cmocka_unit_test(test_a_copy_in_flight_during_a_loop_keeps_its_bytes_to_itself),
        cmocka_unit_test(test_what_validation_leaves_behind_is_refused),
        cmocka_unit_test(test_bindings_name_the_copy_of_each_use),
        cmocka_unit_test(test_mutants_that_break_a_rule_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
