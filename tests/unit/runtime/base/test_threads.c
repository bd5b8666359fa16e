#include "tests/unit/test.h"

#include "runtime/base/threads.h"

struct counts {
    unsigned size;
    uint64_t part[8];
};

static void count(void *arg, unsigned rank, unsigned n)
{
    struct counts *c = arg;
    assert_int_equal(n, c->size);
    c->part[rank] += rank + 1;
}

static void test_every_rank_runs_once_and_the_call_waits(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 5; n++) {
        gr_team *team = NULL;
        assert_int_equal(gr_team_new(&team, n, NULL), GR_OK);
        assert_int_equal(gr_team_size(team), n);
        struct counts c = {.size = n};
        for (int i = 1; i <= 300; i++) {
            gr_team_run(team, count, &c);
            for (unsigned r = 0; r < n; r++) assert_int_equal(c.part[r], (uint64_t)i * (r + 1));
            if (i % 100 == 0) usleep(2000); /* long enough for the workers to fall asleep */
        }
        gr_team_free(team);
    }
}

static void test_no_team_is_a_team_of_one(void **state)
{
    (void)state;
    struct counts c = {.size = 1};
    gr_team_run(NULL, count, &c);
    assert_int_equal(c.part[0], 1);
    assert_int_equal(gr_team_size(NULL), 1);
    gr_team_free(NULL);
}

static void test_parts_of_a_range_join_and_keep_to_the_grain(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 70; n++)
        for (unsigned size = 1; size < 6; size++) {
            uint64_t at = 0, first, last;
            for (unsigned r = 0; r < size; r++) {
                gr_team_range(n, 16, r, size, &first, &last);
                assert_int_equal(first, at);
                assert_true(first == n || first % 16 == 0);
                at = last;
            }
            assert_int_equal(at, n);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_rank_runs_once_and_the_call_waits),
        cmocka_unit_test(test_no_team_is_a_team_of_one),
        cmocka_unit_test(test_parts_of_a_range_join_and_keep_to_the_grain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
