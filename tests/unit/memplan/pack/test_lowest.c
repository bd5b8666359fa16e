#include "memplan/pack/lowest.h"

#include <stdlib.h>

#include "memplan/pack/joins.h"
#include "tests/unit/known_packing.h"
#include "tests/unit/packing_check.h"
#include "tests/unit/public_packing.h"
#include "tests/unit/random_tasks.h"

/* Lives and sizes of all kinds, one in five round the end. */
static void random_items(gr_pack_item *it, size_t n, uint32_t steps, uint64_t seed)
{
    draw d = {seed};
    for (size_t i = 0; i < n; i++) {
        const uint32_t first = pick_below(&d, steps), length = 1 + pick_below(&d, steps / 3);
        uint32_t last = first + length - 1;
        if (last >= steps) last = pick_below(&d, 5) ? steps - 1 : last - steps;
        it[i] = (gr_pack_item){GR_ALIGN * (1ULL + pick_below(&d, 40)), first, last, 0};
    }
}

static void mirror(gr_pack_item *it, size_t n, uint32_t steps)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t first = it[i].first;
        it[i].first = steps - 1 - it[i].last;
        it[i].last = steps - 1 - first;
    }
}

static void shuffle(gr_pack_item *it, size_t n, uint64_t seed)
{
    draw d = {seed};
    for (size_t i = n; i > 1; i--) {
        const uint32_t j = pick_below(&d, (uint32_t)i);
        const gr_pack_item swap = it[i - 1];
        it[i - 1] = it[j];
        it[j] = swap;
    }
}

static uint64_t height_of(gr_pack_item *it, size_t n, uint32_t steps)
{
    const gr_solution s = gr_pack_lowest(it, n, steps, 0);
    assert_valid(it, n, s.height);
    assert_true(s.height >= s.bound && s.bound >= gr_pack_bound(it, n, steps));
    return s.height;
}

/* Also of what is not packed to its bound, where searches end without a proof. */
static void test_neither_order_nor_direction_changes_the_height(void **state)
{
    (void)state;
    enum { N = 24, STEPS = 30 };
    gr_pack_item it[N];
    uint32_t above = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        random_items(it, N, STEPS, seed);
        const uint64_t height = height_of(it, N, STEPS);
        above += height > gr_pack_bound(it, N, STEPS);
        shuffle(it, N, seed);
        assert_int_equal(height_of(it, N, STEPS), height);
        mirror(it, N, STEPS);
        assert_int_equal(height_of(it, N, STEPS), height);
        shuffle(it, N, seed + 1);
        assert_int_equal(height_of(it, N, STEPS), height);
    }
    assert_true(above > 0);
}

/* Of some of the public instances and of random lives. */
static void test_what_is_found_is_found_with_a_higher_capacity(void **state)
{
    (void)state;
    gr_pack_item it[PUBLIC_ITEMS];
    for (const char *c = "CEK"; *c; c++) {
        const size_t n = public_read(it, "../shared/data/minimalloc", *c, false);
        if (!n) skip();
        const uint64_t height = height_of(it, n, PUBLIC_STEPS);
        for (uint64_t more = 0; more < 4; more++) {
            const uint64_t capacity = height + 512 * more;
            const gr_solution s = gr_pack_lowest(it, n, PUBLIC_STEPS, capacity);
            assert_true(s.height <= capacity);
            assert_valid(it, n, s.height);
        }
    }
    for (uint64_t seed = 1; seed <= 40; seed++) {
        random_items(it, 30, 40, seed);
        const uint64_t height = height_of(it, 30, 40);
        const gr_solution s = gr_pack_lowest(it, 30, 40, height + GR_ALIGN * (seed % 3));
        assert_true(s.height <= height + GR_ALIGN * (seed % 3));
        assert_valid(it, 30, s.height);
    }
}

/* Cut out of a full rectangle, which joins put together again whatever the order and the direction. */
static void test_tilings_come_together_again(void **state)
{
    (void)state;
    enum { STEPS = 1000000, MOST = 3000 };
    gr_pack_item *it = gr_malloc(MOST * sizeof(*it));
    for (uint64_t seed = 1; seed <= 4; seed++) {
        const size_t n = known_packing_make(it, seed % 2 ? 1000 : MOST, STEPS, STEPS, seed);
        assert_int_equal(height_of(it, n, STEPS), STEPS * UINT64_C(256));
        mirror(it, n, STEPS);
        shuffle(it, n, seed);
        assert_int_equal(height_of(it, n, STEPS), STEPS * UINT64_C(256));
    }
    free(it);
}

/* J, which no order packs to its bound: as low in all forms of it. */
static void test_j_is_as_low_in_any_order_and_direction(void **state)
{
    (void)state;
    need_shared(folder, "minimalloc");
    if (!getenv("GR_SLOW")) {
        print_message("skipped: needs GR_SLOW=1\n");
        skip();
    }
    gr_pack_item it[PUBLIC_ITEMS];
    for (int reversed = 0; reversed < 2; reversed++) {
        const size_t n = public_read(it, folder, 'J', reversed);
        if (reversed) shuffle(it, n, 7);
        assert_int_equal(height_of(it, n, PUBLIC_STEPS), 1007616);
    }
}

/* A wheel has no straight cut. Of every third the middle is left out, and its place is nobody's. */
static void test_wheels_and_gaps_are_joined(void **state)
{
    (void)state;
    enum { WHEELS = 100, STEPS = 30 * WHEELS };
    const uint64_t height = 100000;
    gr_pack_item it[5 * WHEELS];
    size_t n = 0, left;
    for (uint32_t i = 0; i < WHEELS; i++) {
        const uint32_t t = 30 * i;
        const uint64_t bottom = 20000 + 37 * i, middle = 7001 + 11 * i;
        it[n++] = (gr_pack_item){height - bottom, t, t + 9, 0};
        it[n++] = (gr_pack_item){bottom, t, t + 19, 0};
        it[n++] = (gr_pack_item){height - bottom - middle, t + 10, t + 29, 0};
        it[n++] = (gr_pack_item){bottom + middle, t + 20, t + 29, 0};
        if (i % 3) it[n++] = (gr_pack_item){middle, t + 10, t + 19, 0};
    }
    gr_joins *j = gr_joins_new(it, n, STEPS, 10000000);
    uint32_t steps;
    gr_pack_item *roots = gr_joins_left(j, &left, &steps);
    assert_int_equal(left, 1);
    roots->offset = 0;
    gr_joins_place(j, it);
    assert_valid(it, n, height);
    gr_joins_free(j);
}

static void test_nothing_takes_nothing(void **state)
{
    (void)state;
    const gr_solution s = gr_pack_lowest(NULL, 0, 0, 0);
    assert_int_equal(s.height, 0);
    assert_int_equal(s.bound, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_neither_order_nor_direction_changes_the_height),
        cmocka_unit_test(test_what_is_found_is_found_with_a_higher_capacity),
        cmocka_unit_test(test_tilings_come_together_again),
        cmocka_unit_test(test_j_is_as_low_in_any_order_and_direction),
        cmocka_unit_test(test_wheels_and_gaps_are_joined),
        cmocka_unit_test(test_nothing_takes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
