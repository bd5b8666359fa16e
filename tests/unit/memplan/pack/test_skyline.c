#include "memplan/pack/skyline.h"

#include <stdlib.h>

#include "tests/unit/known_packing.h"
#include "tests/unit/packing_check.h"
#include "tests/unit/random_tasks.h"

enum { WORK = 1000000000 };

static void random_items(gr_pack_item *it, size_t n, uint32_t steps, uint64_t seed)
{
    draw d = {seed};
    for (size_t i = 0; i < n; i++) {
        const uint32_t first = pick_below(&d, steps), last = first + pick_below(&d, 1 + steps / 3);
        it[i] = (gr_pack_item){GR_ALIGN * (1ULL + pick_below(&d, 40)), first, GR_MIN(last, steps - 1), 7};
    }
}

static void test_random_lives_never_share_bytes(void **state)
{
    (void)state;
    gr_pack_item it[80];
    for (uint64_t seed = 1; seed <= 300; seed++) {
        const size_t n = 1 + seed % 80;
        const uint32_t steps = 1 + (uint32_t)seed % 37;
        random_items(it, n, steps, seed);
        const uint64_t bound = gr_pack_bound(it, n, steps);
        const uint64_t height = gr_pack_skyline(it, n, steps, UINT64_MAX, 0, WORK);
        assert_true(height >= bound && height < UINT64_MAX);
        assert_valid(it, n, height);
    }
}

/* Steps at which nothing is alive, at the ends and between. */
static void test_time_without_anything_is_passed_over(void **state)
{
    (void)state;
    gr_pack_item it[] = {{512, 3, 4, 0}, {256, 4, 5, 0}, {768, 9, 9, 0}, {256, 12, 14, 0}};
    assert_int_equal(gr_pack_skyline(it, 4, 20, UINT64_MAX, 0, WORK), 768);
    assert_valid(it, 4, 768);
}

/* Cut out of a full rectangle, on so few steps that many begin at each: orders leave a fifth of it free. */
static void test_rows_are_lower_than_orders_where_all_is_full(void **state)
{
    (void)state;
    enum { MOST = 3000, STEPS = 500, UNITS = 500 };
    const uint64_t full = UNITS * UINT64_C(256);
    gr_pack_item *it = gr_malloc(MOST * sizeof(*it));
    for (uint64_t seed = 1; seed <= 3; seed++) {
        const size_t n = known_packing_make(it, MOST, STEPS, UNITS, seed);
        const uint64_t orders = gr_pack(it, n, STEPS, 0, 20);
        const uint64_t height = gr_pack_skyline(it, n, STEPS, UINT64_MAX, 0, WORK / 10);
        assert_valid(it, n, height);
        assert_true(orders > full + full * 15 / 100);
        assert_true(height < full + full * 13 / 100);
    }
    free(it);
}

static void test_what_is_not_lower_changes_nothing(void **state)
{
    (void)state;
    gr_pack_item it[40];
    random_items(it, 40, 30, 5);
    const uint64_t bound = gr_pack_bound(it, 40, 30);
    assert_int_equal(gr_pack_skyline(it, 40, 30, bound, 0, WORK), bound);
    assert_int_equal(gr_pack_skyline(it, 40, 30, bound * 4, bound * 4, WORK), bound * 4);
    assert_int_equal(gr_pack_skyline(it, 40, 30, bound * 4, 0, 50), bound * 4); /* too little for one try */
    for (size_t i = 0; i < 40; i++) assert_int_equal(it[i].offset, 7);
    assert_int_equal(gr_pack_skyline(NULL, 0, 5, 0, 0, WORK), 0);
}

static void test_the_same_again_and_no_lower_than_asked(void **state)
{
    (void)state;
    gr_pack_item a[500], b[500];
    random_items(a, 500, 200, 9);
    random_items(b, 500, 200, 9);
    const uint64_t height = gr_pack_skyline(a, 500, 200, UINT64_MAX, 0, WORK / 50);
    assert_int_equal(gr_pack_skyline(b, 500, 200, UINT64_MAX, 0, WORK / 50), height);
    for (size_t i = 0; i < 500; i++) assert_int_equal(a[i].offset, b[i].offset);
    const uint64_t enough = gr_pack_skyline(b, 500, 200, UINT64_MAX, UINT64_MAX, WORK); /* the first try */
    assert_true(enough > height);
    assert_int_equal(gr_pack_skyline(b, 500, 200, UINT64_MAX, enough, WORK), enough);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_lives_never_share_bytes),
        cmocka_unit_test(test_time_without_anything_is_passed_over),
        cmocka_unit_test(test_rows_are_lower_than_orders_where_all_is_full),
        cmocka_unit_test(test_what_is_not_lower_changes_nothing),
        cmocka_unit_test(test_the_same_again_and_no_lower_than_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
