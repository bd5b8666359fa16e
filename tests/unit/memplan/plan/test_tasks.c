#include "memplan/plan/tasks.h"
#include "tests/unit/test.h"

static void test_objects_are_found_by_name_and_rounded_up(void **state)
{
    (void)state;
    gr_tasks *p = gr_tasks_new();
    assert_int_equal(gr_tasks_find(p, "x"), GR_NONE);
    for (uint32_t i = 0; i < 500; i++) {
        char name[32];
        snprintf(name, sizeof(name), "actor.params.%u", i);
        gr_object o = {name, GR_CAT_WEIGHTS, GR_SPAN_KEEP, GR_DEVICE, 1 + i, "actor", i, 0};
        assert_int_equal(gr_tasks_object(p, &o), i);
        assert_int_equal(gr_tasks_object(p, &o), i);
    }
    assert_int_equal(p->n_objects, 500);
    assert_int_equal(gr_tasks_find(p, "actor.params.321"), 321);
    assert_int_equal(gr_tasks_find(p, "actor.params.500"), GR_NONE);
    assert_int_equal(p->objects[255].bytes, 256);
    assert_int_equal(p->objects[256].bytes, 512); /* 257 bytes */
    gr_tasks_free(p);
}

static void test_tasks_carry_their_node_and_loops_their_bodies(void **state)
{
    (void)state;
    gr_tasks *p = gr_tasks_new();
    gr_tasks_node(p, "update", GR_LANE_COMPUTE, true);
    uint32_t t = gr_tasks_temp(p, GR_CAT_ACTIVATIONS, 0, "acts.%d", 2);
    assert_string_equal(p->objects[t].name, "update.acts.2");
    assert_int_equal(p->objects[t].bytes, 256);
    gr_tasks_loop(p, 7, 10, true, "mini")->loop.trips_expected = 5;
    gr_use uses[] = {{t, GR_WRITE}, {GR_NONE, GR_READ}};
    gr_task *w = gr_tasks_run(p, 1, 3, uses, 2, "forward.%d", 3);
    assert_string_equal(w->what, "update.forward.3");
    assert_int_equal(w->uses.list[1].object, GR_NONE);
    gr_tasks_loop(p, 8, 4, false, "micro");
    gr_tasks_run(p, 2, 0, uses, 1, "inner");
    gr_tasks_end(p);
    gr_tasks_end(p);
    gr_tasks_node(p, "reward", GR_LANE_HOST, false);
    gr_tasks_run(p, 3, 0, NULL, 0, "rule");
    assert_int_equal(p->n_tasks, 5);
    assert_int_equal(p->task[0].loop.body_last, 3);
    assert_int_equal(p->task[2].loop.body_last, 3);
    assert_int_equal(p->task[1].loop.body_last, GR_NONE);
    assert_int_equal(p->task[0].loop.trips_expected, 5);
    assert_int_equal(p->task[2].loop.trips_expected, 4);
    assert_true(p->task[3].optional);
    assert_false(p->task[4].optional);
    assert_int_equal(p->task[4].lane, GR_LANE_HOST);
    gr_tasks_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_objects_are_found_by_name_and_rounded_up),
        cmocka_unit_test(test_tasks_carry_their_node_and_loops_their_bodies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
