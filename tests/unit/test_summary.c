/* The ends of an iteration and of a validation: they read columns where a device may still be writing them.
 */
#include "ops/summary.h"
#include "runtime/session.h"

#include "tests/unit/test.h"

static unsigned finished;

static gr_status fails_to_finish(gr_queue *q, gr_diag *d)
{
    (void)q;
    finished++;
    return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "lost");
}

static void test_both_wait_for_the_device_first(void **state)
{
    (void)state;
    gr_node asked = {.name = "asked", .every = 1}, *nodes[] = {&asked};
    gr_graph g = {.nodes = nodes, .n_nodes = 1};
    gr_session s = {.graph = &g};
    const gr_device_type type = {.finish = fails_to_finish};
    gr_device device = {.type = &type};
    gr_queue q = {.device = &device};
    gr_pool *pool = gr_pool_new();
    for (unsigned validation = 0; validation < 2; validation++) {
        gr_node *n = gr_summary_node(&g, validation, pool);
        gr_diag d;
        gr_diag_init(&d);
        assert_int_equal(n->op->run(&(gr_call){.session = &s, .node = n, .queue = &q}, &d), GR_E_FAILED);
        assert_int_equal(finished, validation + 1);
        gr_diag_release(&d);
    }
    gr_pool_free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_both_wait_for_the_device_first)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
