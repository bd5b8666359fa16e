/* Failures of other systems that were made public, as faults of a plan: each is refused by its rule. */
#include "tests/unit/plan_edit.h"

static shape small = SMALL;

static uint32_t find_named(const gr_plan *p, gr_step_kind kind, const char *what, uint32_t from)
{
    const gr_path *path = &p->paths[GR_PATH_STEADY];
    for (uint32_t i = from; i < path->n; i++)
        if (path->steps[i].kind == kind && !strcmp(path->steps[i].what, what)) return i;
    fail_msg("no step %s '%s'", gr_step_kind_str(kind), what);
    return 0;
}

/* A plan of the synthetic GRPO under 30 % of its memory, and its program. */
static gr_plan *tight(gr_tasks **g)
{
    gr_plan *p = tight_plan(build_shape, &small, 30);
    *g = build_shape(&small, NULL);
    assert_true(accepted(p, *g, NULL));
    return p;
}

/* trl#5142: weights are written into a model that is asleep. Here: the load ("wake-up") of what the
 * optimizer's step writes comes after it. */
static void test_weights_written_before_wake_up_trl_5142(void **state)
{
    (void)state;
    gr_tasks *g;
    gr_plan *p = tight(&g);
    uint32_t step = find_named(p, GR_STEP_RUN, "update.step.0", 0);
    uint32_t load =
        find_named(p, GR_STEP_LOAD, "actor.params.0", find_named(p, GR_STEP_RUN, "update.backward.0", 0));
    assert_true(load < step);
    gr_step woken = p->paths[GR_PATH_STEADY].steps[load];
    for (uint32_t i = load; i < step; i++) {
        swap_steps(p, GR_PATH_STEADY, i, i + 1);
        const gr_step *s = &p->paths[GR_PATH_STEADY].steps[i];
        if (s->kind == GR_STEP_LOAD) p->ledger[s->writes[0]].first = i;
    }
    p->ledger[woken.writes[0]].first = step;
    char place[128];
    snprintf(place, sizeof(place),
             "step %u 'update.step.0' uses entry %u 'actor.params.0', which is not alive", step - 1,
             woken.writes[0]);
    for (uint32_t i = load; i <= step; i++) p->paths[GR_PATH_STEADY].steps[i].n_after = 0;
    fix_resident(p);
    refuse(p, g, "'lifetimes'");
    refuse(p, g, place);
    gr_plan_free(p);
    gr_tasks_free(g);
}

/* trl#5312: after the weights were synced, a reload puts the old ones over them. Here: the host copy is
 * loaded once more, after the step that made new weights and before they are offloaded. */
static void test_a_reload_over_synced_weights_trl_5312(void **state)
{
    (void)state;
    gr_tasks *g;
    gr_plan *p = tight(&g);
    uint32_t step = find_named(p, GR_STEP_RUN, "update.step.0", 0);
    uint32_t load =
        find_named(p, GR_STEP_LOAD, "actor.params.0", find_named(p, GR_STEP_RUN, "update.backward.0", 0));
    gr_step again = p->paths[GR_PATH_STEADY].steps[load];
    double_step(p, GR_PATH_STEADY, step);
    again.after = gr_arena_alloc(p->arena, sizeof(uint32_t));
    again.after[0] = step;
    again.n_after = 1;
    p->paths[GR_PATH_STEADY].steps[step + 1] = again;
    fix_resident(p);
    char place[128];
    snprintf(place, sizeof(place), "step %u 'actor.params.0' reads entry", step + 1);
    refuse(p, g, "'fresh contents'");
    refuse(p, g, place);
    gr_plan_free(p);
    gr_tasks_free(g);
}

/* NeMo-RL PR 1159: on the path that follows validation an offload is missing, so what the next iteration
 * enters with is not what it counts on. */
static void test_no_offload_after_validation_nemo_rl_1159(void **state)
{
    (void)state;
    gr_tasks *g;
    gr_plan *p = tight(&g);
    gr_path *validate = &p->paths[GR_PATH_VALIDATE];
    uint32_t *more = gr_arena_alloc(p->arena, (validate->n_exit + 1) * sizeof(*more));
    memcpy(more, validate->exit, validate->n_exit * sizeof(*more));
    more[validate->n_exit] =
        p->paths[GR_PATH_STEADY].steps[find_named(p, GR_STEP_LOAD, "actor.params.0", 0)].writes[0];
    validate->exit = more;
    validate->n_exit++;
    refuse(p, g, "'boundary'");
    refuse(p, g, "path validate does not leave");
    gr_plan_free(p);
    gr_tasks_free(g);
}

/* Training state, and a KV pool that takes its bytes: 4 KiB each, and 6 KiB of memory. */
static gr_tasks *build_pair(void *user, const uint32_t *level)
{
    (void)user, (void)level;
    gr_tasks *p = gr_tasks_new();
    gr_tasks_node(p, "update", GR_LANE_COMPUTE, false);
    uint32_t w = gr_tasks_object(
        p, &(gr_object){"actor.moments", GR_CAT_OPTIMIZER, GR_SPAN_KEEP, GR_DEVICE, 4096, "actor", 0, 0});
    gr_tasks_run(p, 0, 0, &(gr_use){w, GR_UPDATE}, 1, "step");
    gr_tasks_node(p, "rollout", GR_LANE_COMPUTE, false);
    uint32_t kv = gr_tasks_object(
        p, &(gr_object){"rollout.kv", GR_CAT_KV, GR_SPAN_SCRATCH, GR_DEVICE, 4096, NULL, GR_NONE, 0});
    gr_tasks_run(p, 0, 0, &(gr_use){kv, GR_WRITE}, 1, "prefill");
    return p;
}

static gr_schedule_options options(void)
{
    return (gr_schedule_options){.hardware = machine(),
                                 .policy = GR_POLICY_AUTO,
                                 .budget_bytes = machine().overhead_bytes + 6144,
                                 .host_budget_bytes = 1 << 20};
}

/* verl PR 7851: the KV pool is resumed while another party is still at the memory it takes; there a rank that
 * was late, here the copy lane. */
static void test_a_race_before_the_kv_pool_is_resumed_verl_7851(void **state)
{
    (void)state;
    gr_tasks_source src = {.build = build_pair};
    gr_schedule_options o = options();
    gr_plan *p = NULL;
    assert_int_equal(gr_schedule(&p, NULL, &src, &o, NULL), GR_OK);
    gr_tasks *g = build_pair(NULL, NULL);
    assert_true(accepted(p, g, NULL));
    gr_step *resume = &p->paths[GR_PATH_STEADY].steps[find_named(p, GR_STEP_RESUME, "rollout.kv", 0)];
    uint32_t offload = find_named(p, GR_STEP_OFFLOAD, "actor.moments", 0);
    assert_int_equal(resume->n_after, 1);
    assert_int_equal(resume->after[0], offload);
    resume->n_after = 0;
    refuse(p, g, "'waits'");
    refuse(p, g, "'rollout.kv' does not wait until the bytes of entry");
    gr_plan_free(p);
    gr_tasks_free(g);
}

/* verl PR 6729: two calls in the other order, and the peak is higher: here the KV pool comes before the
 * offload that makes room for it, and every claim of the plan follows. */
static void test_an_order_of_two_calls_that_raises_the_peak_verl_6729(void **state)
{
    (void)state;
    gr_tasks_source src = {.build = build_pair};
    gr_schedule_options o = options();
    gr_plan *p = NULL;
    assert_int_equal(gr_schedule(&p, NULL, &src, &o, NULL), GR_OK);
    gr_tasks *g = build_pair(NULL, NULL);
    uint32_t offload = find_named(p, GR_STEP_OFFLOAD, "actor.moments", 0),
             resume = find_named(p, GR_STEP_RESUME, "rollout.kv", 0);
    assert_int_equal(resume, offload + 1);
    gr_step *steps = p->paths[GR_PATH_STEADY].steps;
    gr_entry *state_copy = &p->ledger[steps[offload].reads[0]], *kv = &p->ledger[steps[resume].writes[0]];
    swap_steps(p, GR_PATH_STEADY, offload, resume);
    steps[offload].n_after = 0;
    state_copy->last = resume;
    kv->first = offload;
    kv->offset = state_copy->offset + state_copy->bytes; /* no bytes shared: only more of them */
    p->arena_bytes = kv->offset + kv->bytes;
    p->peak_bytes = p->arena_bytes + p->overhead_bytes;
    p->peak_step = offload;
    fix_resident(p);
    refuse(p, g, "'budget'");
    char place[128];
    snprintf(place, sizeof(place), "at step %u ", offload);
    refuse(p, g, place);
    p->budget_bytes = p->peak_bytes; /* with as much memory the order is right */
    assert_true(accepted(p, g, NULL));
    gr_plan_free(p);
    gr_tasks_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_written_before_wake_up_trl_5142),
        cmocka_unit_test(test_a_reload_over_synced_weights_trl_5312),
        cmocka_unit_test(test_no_offload_after_validation_nemo_rl_1159),
        cmocka_unit_test(test_a_race_before_the_kv_pool_is_resumed_verl_7851),
        cmocka_unit_test(test_an_order_of_two_calls_that_raises_the_peak_verl_6729),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
