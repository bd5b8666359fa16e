#include "memplan/verify.h"
#include "synthetic.h"

static void print_errors(gr_diag *d)
{
    for (size_t i = 0; i < d->n; i++) {
        char *text = gr_message_format(&d->messages[i]);
        print_message("%s\n", text);
        free(text);
    }
}

static gr_plan *plan_for(shape *s, uint64_t budget, gr_policy policy, gr_status *st)
{
    uint32_t level[1];
    gr_source src = {.user = s, .build = build_shape};
    gr_schedule_options o = {machine(), policy, budget, 1ULL << 40};
    gr_diag d;
    gr_diag_init(&d);
    gr_plan *p = NULL;
    *st = gr_schedule(&p, level, &src, &o, &d);
    if (*st == GR_OK) {
        gr_program *g = build_shape(s, NULL);
        if (gr_plan_verify(p, g, &d)) {
            print_errors(&d);
            fail_msg("the plan for %llu bytes is refused", (unsigned long long)budget);
        }
        gr_program_free(g);
    }else print_errors(&d);
    gr_diag_release(&d);
    return p;
}

static void test_everything_stays_where_everything_fits(void **state)
{
    (void)state;
    shape s = SMALL;
    gr_status st;
    gr_plan *p = plan_for(&s, 1ULL << 40, GR_POLICY_AUTO, &st);
    assert_int_equal(st, GR_OK);
    const gr_path *path = &p->paths[GR_PATH_STEADY];
    for (uint32_t i = 0; i < path->n; i++)
        assert_true(path->steps[i].kind == GR_STEP_RUN || path->steps[i].kind == GR_STEP_LOOP);
    uint64_t budget = p->peak_bytes, ns = p->ns;
    gr_plan_free(p);
    for (; budget > 1 << 20; budget = budget * 95 / 100) {
        p = plan_for(&s, budget, GR_POLICY_AUTO, &st);
        print_message("budget %9lu peak %9lu ns %lu steps %u\n", budget, p->peak_bytes, p->ns,
                      p->paths[0].n);
        if (st == GR_OK) {
            assert_true(p->peak_bytes <= budget);
            assert_true(p->ns >= ns);
            ns = p->ns;
        }
        gr_plan_free(p);
        if (st) break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_stays_where_everything_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
