#include "memplan/pack/solve.h"

#include "tests/unit/known_packing.h"
#include "tests/unit/packing_check.h"
#include "tests/unit/public_packing.h"
#include "tests/unit/random_tasks.h"

/* The oracle of the height: a lowest packing is found by placing in some order at the lowest free offset (in
 * the order of its offsets, nothing lands higher than it lay), so all orders are tried; up to one that meets
 * the bound. */
static uint64_t lowest(gr_pack_item *it, size_t n, size_t k, uint64_t height, uint64_t best, uint64_t bound)
{
    if (height >= best || best == bound) return best;
    if (k == n) return height;
    for (size_t i = k; i < n; i++) {
        gr_pack_item swap = it[k];
        it[k] = it[i];
        it[i] = swap;
        it[k].offset = 0;
        for (size_t j = 0; j < k; j++) {
            if (!meets(&it[j], &it[k]) || it[j].offset >= it[k].offset + it[k].bytes ||
                it[k].offset >= it[j].offset + it[j].bytes)
                continue;
            it[k].offset = it[j].offset + it[j].bytes;
            j = SIZE_MAX; /* from the first again */
        }
        best = lowest(it, n, k + 1, GR_MAX(height, it[k].offset + it[k].bytes), best, bound);
        it[i] = it[k];
        it[k] = swap;
    }
    return best;
}

/* Random lives, and fillers of one step that leave no byte free at any: often more than the bound is needed.
 */
static size_t tight_items(gr_pack_item *it, draw *d, uint32_t n, uint32_t steps)
{
    uint64_t live[8] = {0}, most = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t first = pick_below(d, steps - 1), last = first + 1 + pick_below(d, 2);
        it[i] = (gr_pack_item){256 * (1ULL + pick_below(d, 3)), first, GR_MIN(last, steps - 1), 0};
        for (uint32_t s = it[i].first; s <= it[i].last; s++) live[s] += it[i].bytes;
    }
    for (uint32_t s = 0; s < steps; s++) most = GR_MAX(most, live[s]);
    for (uint32_t s = 0; s < steps; s++)
        if (live[s] < most) it[n++] = (gr_pack_item){most - live[s], s, s, 0};
    return n;
}

static void test_small_packings_are_as_low_as_all_orders_find(void **state)
{
    (void)state;
    unsigned above = 0, all = 0;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        draw d = {seed};
        gr_pack_item it[16], copy[16];
        uint32_t steps = 5, lives = 4 + pick_below(&d, 3);
        size_t n = tight_items(it, &d, lives, steps);
        if (n > 10) continue; /* too many orders */
        memcpy(copy, it, sizeof(it));
        uint64_t bound = gr_pack_bound(it, n, steps);
        gr_solution s = gr_solve(it, n, steps, UINT64_MAX, 0, 100000);
        assert_valid(it, n, s.height);
        assert_int_equal(s.height, lowest(copy, n, 0, 0, UINT64_MAX, bound));
        assert_int_equal(s.height, s.bound); /* and it is proven */
        above += s.bound > bound;
        all++;
    }
    print_message("%u of %u above the bound of live bytes\n", above, all);
    assert_true(all >= 1000 && above >= 2);
}

static void test_more_than_the_live_bytes_is_proven_necessary(void **state)
{
    (void)state;
    gr_pack_item a[] = {{2, 1, 3, 0}, {1, 2, 3, 0}, {3, 0, 1, 0}, {1, 1, 2, 0}, /* 6 live at each step */
                        {3, 3, 4, 0}, {3, 0, 0, 0}, {2, 2, 2, 0}, {3, 4, 4, 0}};
    gr_pack_item b[] = {{2, 1, 3, 0}, {3, 2, 3, 0}, {1, 1, 2, 0}, {2, 3, 4, 0}, {2, 0, 1, 0}, /* 7 */
                        {5, 0, 0, 0}, {2, 1, 1, 0}, {1, 2, 2, 0}, {5, 4, 4, 0}};
    const struct {
        gr_pack_item *it;
        size_t n;
        uint64_t live;
    } cases[] = {{a, GR_LEN(a), 6}, {b, GR_LEN(b), 7}};
    for (size_t c = 0; c < GR_LEN(cases); c++) {
        gr_pack_item copy[16];
        memcpy(copy, cases[c].it, cases[c].n * sizeof(*copy));
        gr_solution s = gr_solve(cases[c].it, cases[c].n, 5, UINT64_MAX, 0, 100000);
        assert_int_equal(gr_pack_bound(cases[c].it, cases[c].n, 5), cases[c].live);
        assert_int_equal(s.height, cases[c].live + 1);
        assert_int_equal(s.bound, cases[c].live + 1);
        assert_valid(cases[c].it, cases[c].n, s.height);
        assert_int_equal(lowest(copy, cases[c].n, 0, 0, UINT64_MAX, cases[c].live), cases[c].live + 1);
    }
}

static void test_nothing_lower_than_what_is_known_changes_nothing(void **state)
{
    (void)state;
    gr_pack_item it[] = {{512, 0, 1, 7}, {256, 1, 2, 9}};
    gr_solution s = gr_solve(it, 2, 3, 768, 0, 1000);
    assert_int_equal(s.height, 768);
    assert_int_equal(s.nodes, 0);
    assert_int_equal(it[0].offset, 7);
    assert_int_equal(it[1].offset, 9);
}

static void test_items_that_wrap_lie_below(void **state)
{
    (void)state;
    gr_pack_item it[] = {{512, 6, 1, 0}, {512, 0, 0, 0}, {512, 7, 7, 0}, {1024, 3, 4, 0}};
    gr_solution s = gr_solve(it, 4, 8, UINT64_MAX, 0, 1000);
    assert_int_equal(s.height, 1024);
    assert_int_equal(s.bound, 1024);
    assert_int_equal(it[0].offset, 0);
    assert_int_equal(it[1].offset, 512);
    assert_int_equal(it[2].offset, 512);
    assert_int_equal(it[3].offset, 0);
}

static void test_full_rectangles_are_put_together_again(void **state)
{
    (void)state;
    unsigned solved = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        gr_pack_item it[120];
        size_t n = known_packing_make(it, 20 + seed % 101, 300, 500, seed);
        gr_solution s = gr_solve(it, n, 300, UINT64_MAX, 500 * 256, 200000);
        assert_int_equal(s.bound, 500 * 256);
        if (s.height == UINT64_MAX) continue;
        assert_valid(it, n, s.height);
        assert_int_equal(s.height, 500 * 256);
        solved++;
    }
    print_message("%u of 200 solved\n", solved);
    assert_true(solved >= 190);
}

static void test_a_node_limit_gives_the_same_packing_again(void **state)
{
    (void)state;
    gr_pack_item a[90], b[90];
    size_t n = known_packing_make(a, 90, 200, 300, 5);
    memcpy(b, a, sizeof(a));
    gr_solution first = gr_solve(a, n, 200, 400 * 256, 0, 3000),
                again = gr_solve(b, n, 200, 400 * 256, 0, 3000);
    assert_int_equal(first.height, again.height);
    assert_int_equal(first.nodes, again.nodes);
    assert_memory_equal(a, b, n * sizeof(*a));
}

static void solve_public(const char *folder, char name, bool reversed, uint64_t enough, uint64_t nodes)
{
    gr_pack_item it[PUBLIC_ITEMS];
    size_t n = public_read(it, folder, name, reversed);
    assert_true(n > 100);
    uint64_t known = enough < PUBLIC_CAPACITY ? PUBLIC_CAPACITY : UINT64_MAX;
    gr_solution s = gr_solve(it, n, PUBLIC_STEPS, known, enough, nodes);
    print_message("%c%s: height %llu, bound %llu, %llu nodes\n", name, reversed ? " reversed" : "",
                  (unsigned long long)s.height, (unsigned long long)s.bound, (unsigned long long)s.nodes);
    assert_true(s.height <= enough);
    assert_valid(it, n, s.height);
}

static void test_the_public_instances_fit_their_capacity(void **state)
{
    (void)state;
    need_shared(path, "minimalloc");
    char folder[4096];
    snprintf(folder, sizeof(folder), "%s", path);
    for (const char *c = public_names; *c; c++)
        for (int reversed = 0; reversed < 2; reversed++)
            solve_public(folder, *c, reversed, PUBLIC_CAPACITY, 150000);
    solve_public(folder, 'C', false, 1039360, 10000); /* its live bytes */
}

static void test_the_public_instances_with_room_get_lower(void **state)
{
    (void)state;
    need_shared(path, "minimalloc");
    if (!getenv("GR_SLOW")) {
        print_message("skipped: needs GR_SLOW=1\n");
        skip();
    }
    char folder[4096];
    snprintf(folder, sizeof(folder), "%s", path);
    solve_public(folder, 'D', false, 986112, 3000000); /* its live bytes: the lowest there is */
    solve_public(folder, 'J', false, 1028096, 3000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_packings_are_as_low_as_all_orders_find),
        cmocka_unit_test(test_more_than_the_live_bytes_is_proven_necessary),
        cmocka_unit_test(test_nothing_lower_than_what_is_known_changes_nothing),
        cmocka_unit_test(test_items_that_wrap_lie_below),
        cmocka_unit_test(test_full_rectangles_are_put_together_again),
        cmocka_unit_test(test_a_node_limit_gives_the_same_packing_again),
        cmocka_unit_test(test_the_public_instances_fit_their_capacity),
        cmocka_unit_test(test_the_public_instances_with_room_get_lower),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
