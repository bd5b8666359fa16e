/* runtime/base/index.c: names and their numbers, through many growths; names that are parts of others. */
#include "tests/unit/test.h"

#include <string.h>

#include "runtime/base/index.h"

enum { N = 5000 };

static void test_every_name_is_found_again(void **state)
{
    (void)state;
    gr_index x = {0};
    gr_arena *arena = gr_arena_new();
    assert_int_equal(gr_index_find(&x, "none", 4), UINT32_MAX);
    for (uint32_t i = 0; i < N; i++) assert_true(gr_index_add(&x, gr_arena_printf(arena, "c%u", i), i));
    for (uint32_t i = 0; i < N; i++) {
        const char *name = gr_arena_printf(arena, "c%u.length", i);
        assert_int_equal(gr_index_find(&x, name, strcspn(name, ".")), i);
        assert_int_equal(gr_index_find(&x, name, strlen(name)), UINT32_MAX);
    }
    assert_false(gr_index_add(&x, "c7", 9));
    assert_int_equal(gr_index_find(&x, "c7", 2), 7);
    assert_true(gr_index_add(&x, "", 1));
    assert_int_equal(gr_index_find(&x, "c7", 0), 1);
    assert_int_equal(x.n, N + 1);
    assert_true(2 * x.n <= x.cap);
    gr_index_release(&x);
    gr_arena_free(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_name_is_found_again)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
