#include "tools/repeats.h"

#include "tests/unit/test.h"

#include <math.h>

static void test_spread_is_of_the_same_thing_in_all_rounds(void **state)
{
    (void)state;
    gr_repeats r = {0};
    static const double rounds[3][2] = {{1, 10}, {1.2, 10}, {1.1, 15}};
    assert_true(isnan(gr_repeats_usual(&r)));
    assert_null(gr_repeats_worst(&r));
    for (int i = 0; i < 3; i++) {
        gr_repeats_round(&r);
        gr_repeats_add(&r, rounds[i][0], "forward of %d rows", 4);
        if (!i) assert_true(isnan(gr_repeats_usual(&r))); /* one round says nothing */
        gr_repeats_add(&r, rounds[i][1], "backward of %d rows", 4);
    }
    assert_int_equal(r.n, 2);
    assert_float_equal(gr_repeat_spread(&r.list[0]), 0.2 / 1.1, 1e-12);
    assert_float_equal(gr_repeat_spread(&r.list[1]), 5 / (35.0 / 3), 1e-12);
    assert_string_equal(gr_repeats_worst(&r)->name, "backward of 4 rows");
    assert_float_equal(gr_repeats_usual(&r), 5 / (35.0 / 3), 1e-12); /* of two the larger */
    gr_repeats_round(&r);
    gr_repeats_add(&r, 1.1, "another name");
    assert_string_equal(r.list[0].name, "forward of 4 rows");
    gr_repeats_release(&r);
}

static void test_things_of_no_time_have_no_spread(void **state)
{
    (void)state;
    gr_repeats r = {0};
    for (int i = 0; i < 2; i++) gr_repeats_round(&r), gr_repeats_add(&r, 0, "nothing");
    assert_float_equal(gr_repeats_usual(&r), 0, 0);
    gr_repeats_release(&r);
}

static void test_waits_are_a_share_of_ready_time(void **state)
{
    (void)state;
    const gr_turns a = {100, 10}, b = {400, 110}, none = {0, 0};
    assert_float_equal(gr_turns_waited(&a, &b), 0.25, 1e-12);
    assert_float_equal(gr_turns_waited(&none, &none), 0, 0);
    assert_float_equal(gr_turns_waited(&b, &a), 0, 0); /* threads have ended since */
    volatile double x = 1;
    const gr_turns before = gr_turns_read();
    for (int i = 0; i < 20000000; i++) x = x * 1.0000001;
    const gr_turns after = gr_turns_read();
    assert_true(after.ran >= before.ran);
}

static void test_load_is_for_each_processor(void **state)
{
    (void)state;
    assert_float_equal(gr_load_of("14.50 11.70 7.46 3/512 4711\n", 2), 7.25, 1e-12);
    assert_float_equal(gr_load_of("0.00 0.1 0.2 1/1 1", 2), 0, 0);
    assert_float_equal(gr_load_of("", 2), 0, 0);
    assert_float_equal(gr_load_of("nonsense", 2), 0, 0);
    assert_float_equal(gr_load_of("1.0", 0), 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spread_is_of_the_same_thing_in_all_rounds),
        cmocka_unit_test(test_things_of_no_time_have_no_spread),
        cmocka_unit_test(test_waits_are_a_share_of_ready_time),
        cmocka_unit_test(test_load_is_for_each_processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
