#include "memplan/pack/pack.h"
#include "tests/unit/random_tasks.h"

/* The oracle: slow and obvious. Steps are marked one by one. */
static void assert_packed(const gr_pack_item *it, size_t n, uint32_t steps, uint64_t height)
{
    for (size_t i = 0; i < n; i++) {
        assert_true(it[i].offset + it[i].bytes <= height);
        for (size_t j = 0; j < i; j++) {
            bool meet = false;
            for (uint32_t s = 0; s < steps && !meet; s++) {
                bool a = it[i].first <= it[i].last ? it[i].first <= s && s <= it[i].last
                                                   : s >= it[i].first || s <= it[i].last;
                bool b = it[j].first <= it[j].last ? it[j].first <= s && s <= it[j].last
                                                   : s >= it[j].first || s <= it[j].last;
                meet = a && b;
            }
            assert_false(meet && it[i].offset < it[j].offset + it[j].bytes &&
                         it[j].offset < it[i].offset + it[i].bytes);
        }
    }
}

static void test_a_chain_uses_its_space_again(void **state)
{
    (void)state;
    gr_pack_item it[] = {{1024, 0, 1, 0}, {1024, 1, 2, 0}, {1024, 2, 3, 0}};
    assert_int_equal(gr_pack(it, 3, 4, 0, 20), 2048); /* the third takes the place of the first */
    assert_packed(it, 3, 4, 2048);
}

static void test_a_life_that_wraps_meets_both_ends(void **state)
{
    (void)state;
    gr_pack_item it[] = {{512, 6, 1, 0}, {512, 0, 0, 0}, {512, 7, 7, 0}, {512, 3, 4, 0}};
    assert_int_equal(gr_pack_bound(it, 4, 8), 1024);
    assert_int_equal(gr_pack(it, 4, 8, 0, 20), 1024);
    assert_packed(it, 4, 8, 1024);
}

static void test_nothing_takes_nothing(void **state)
{
    (void)state;
    assert_int_equal(gr_pack(NULL, 0, 5, 0, 20), 0);
}

static void test_random_lives_never_share_bytes(void **state)
{
    (void)state;
    double over = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        draw d = {seed};
        uint32_t steps = 1 + pick_below(&d, 40);
        size_t n = 1 + pick_below(&d, 60);
        gr_pack_item it[60];
        for (size_t i = 0; i < n; i++) {
            it[i] = (gr_pack_item){256 * (1ULL + pick_below(&d, 64)), pick_below(&d, steps), 0, 0};
            uint32_t last = it[i].first + pick_below(&d, 10);
            it[i].last = pick_below(&d, 8) ? GR_MIN(last, steps - 1) : pick_below(&d, steps);
        }
        uint64_t bound = gr_pack_bound(it, n, steps), height = gr_pack(it, n, steps, 0, 100);
        assert_packed(it, n, steps, height);
        assert_true(height >= bound);
        over += (double)height / (double)bound - 1;
    }
    assert_true(over / 300 < 0.02);
}

static void test_thousands_of_layers_are_packed_at_the_bound(void **state)
{
    (void)state;
    enum { N = 4000 };
    gr_pack_item *it = gr_malloc(N * sizeof(*it));
    for (uint32_t i = 0; i < N;
         i++) /* a forward pass that keeps, a backward pass that frees, and workspaces */
        it[i] =
            i % 2 ? (gr_pack_item){4096, i, i, 0} : (gr_pack_item){1024 * (1 + i % 3), i, 2 * N - 1 - i, 0};
    uint64_t bound = gr_pack_bound(it, N, 2 * N);
    assert_int_equal(gr_pack(it, N, 2 * N, 0, 20), bound);
    free(it);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_chain_uses_its_space_again),
        cmocka_unit_test(test_a_life_that_wraps_meets_both_ends),
        cmocka_unit_test(test_nothing_takes_nothing),
        cmocka_unit_test(test_random_lives_never_share_bytes),
        cmocka_unit_test(test_thousands_of_layers_are_packed_at_the_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
