/* Works that use memory of the host at once, on a device that does later what it is given: they wait for it.
 */
#include "ops/registry.h"
#include "ops/rollout_impl.h"
#include "ops/summary.h"

#include "tests/unit/test.h"

static unsigned finished;

static gr_status fails_to_finish(gr_queue *q, gr_diag *d)
{
    (void)q;
    finished++;
    return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "lost");
}

/* What a work does first is to wait: it is not reached by anything that it would need to go on. */
static void waits_first(gr_status (*run)(const gr_call *, gr_diag *), gr_call c)
{
    const gr_device_type type = {.finish = fails_to_finish};
    gr_device device = {.type = &type};
    gr_queue q = {.device = &device};
    gr_diag d;
    gr_diag_init(&d);
    finished = 0;
    c.queue = &q;
    assert_int_equal(run(&c, &d), GR_E_FAILED);
    assert_int_equal(finished, 1);
    gr_diag_release(&d);
}

/* The columns that metrics read may be of the last kernels. */
static void test_the_ends_of_iterations_and_validations(void **state)
{
    (void)state;
    gr_node asked = {.name = "asked", .timing = {.every = 1}}, *nodes[] = {&asked};
    gr_graph g = {.nodes = nodes, .n_nodes = 1};
    gr_session s = {.graph = &g};
    gr_arena *arena = gr_arena_new();
    for (int validation = 0; validation < 2; validation++) {
        const gr_node *n = gr_summary_node(&g, validation, arena);
        waits_first(n->op->run, (gr_call){.session = &s, .node = n});
    }
    gr_arena_free(arena);
}

/* A chunk of steps behind the last token reads orders from the host and writes its report there. */
static void test_the_end_of_a_rollout(void **state)
{
    (void)state;
    gr_model m = {.name = "actor"};
    gr_node n = {.name = "rollout", .op = gr_op_find("generate"), .model = &m};
    gr_session s = {.kernels = &gr_kernels_cpu};
    gr_rollout r = {.session = &s, .node = &n};
    waits_first(gr_rollout_run, (gr_call){.session = &s, .node = &n, .state = &r, .kernel = ROLLOUT_FINISH});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_ends_of_iterations_and_validations),
        cmocka_unit_test(test_the_end_of_a_rollout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
