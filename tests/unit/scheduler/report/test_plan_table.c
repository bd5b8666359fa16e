#include "scheduler/report/report.h"
#include "tests/unit/synthetic.h"

static gr_plan *plan_for(shape *s, uint64_t budget)
{
    gr_tasks_source src = {.user = s, .build = build_shape};
    gr_schedule_options o = {.hardware = machine(),
                             .policy = GR_POLICY_AUTO,
                             .budget_bytes = budget,
                             .host_budget_bytes = 1ULL << 40};
    gr_plan *p = NULL;
    (void)!gr_schedule(&p, NULL, &src, &o, NULL);
    p->graph = "grpo";
    return p;
}

/* Characters of the longest line; bytes that continue a UTF-8 character do not count. */
static size_t widest(const char *text)
{
    size_t most = 0, n = 0;
    for (; *text; text++) {
        if (*text == '\n')
            n = 0;
        else if (((unsigned char)*text & 0xc0) != 0x80)
            n++;
        most = GR_MAX(most, n);
    }
    return most;
}

static void test_layers_are_folded_and_lines_fit_100_columns(void **state)
{
    (void)state;
    shape s = SMALL;
    s.layers = 28;
    for (uint64_t budget = 40 << 20; budget < 400 << 20; budget = budget * 3 / 2) {
        gr_plan *p = plan_for(&s, budget);
        gr_str out = {0};
        gr_plan_table(p, &out, false);
        if (getenv("GR_SHOW")) puts(out.text);
        assert_true(widest(out.text) <= 100);
        size_t lines = 0;
        for (const char *c = out.text; *c; c++) lines += *c == '\n';
        assert_true(lines <
                    200); /* of some 200 to 750 steps; loads are where room comes free, not regularly */
        gr_str_release(&out);
        gr_plan_free(p);
    }
    gr_plan *p = plan_for(&s, 1ULL << 40);
    gr_str out = {0};
    gr_plan_table(p, &out, true);
    assert_non_null(strstr(out.text, "update.forward.0..27"));
    assert_non_null(strstr(out.text, "update.backward.27..0"));
    assert_non_null(strstr(out.text, "no transitions"));
    assert_non_null(strstr(out.text, "\033["));
    gr_str_release(&out);
    gr_plan_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers_are_folded_and_lines_fit_100_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
