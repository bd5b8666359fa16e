/* Which CUDA devices a rank sees, and which of them first. */
#include "runtime/comm.h"
#include "tests/unit/test.h"

static const char name[] = "CUDA_VISIBLE_DEVICES";

/* seen NULL: the launcher has set nothing; want NULL: nothing is set after it either. */
static void check(const char *seen, uint32_t local, uint32_t locals, const char *want, bool sees_peers)
{
    unsetenv(name);
    if (seen) setenv(name, seen, 1);
    assert_int_equal(gr_comm_take_device(local, locals), sees_peers);
    const char *got = getenv(name);
    assert_int_equal(got != NULL, want != NULL);
    if (want) assert_string_equal(got, want);
}

static void test_of_all_devices_a_rank_takes_its_own_first(void **state)
{
    (void)state;
    check(NULL, 0, 1, "0", true);
    check(NULL, 0, 4, "0,1,2,3", true);
    check(NULL, 2, 4, "2,0,1,3", true);
    check(NULL, 11, 12, "11,0,1,2,3,4,5,6,7,8,9,10", true);
}

static void test_of_a_list_it_takes_the_one_at_its_place(void **state)
{
    (void)state;
    check("4,5,6", 0, 2, "4,5,6", true);
    check("4,5,6", 1, 2, "5,4,6", true);
    check("GPU-8932f937,GPU-01de", 1, 2, "GPU-01de,GPU-8932f937", true);
    check("MIG-GPU-5d4c71ef-c53a-4e8c-94ea-5c5b8eed23c1/1/0,7", 1, 2,
          "7,MIG-GPU-5d4c71ef-c53a-4e8c-94ea-5c5b8eed23c1/1/0", true);
}

static void test_what_the_launcher_gave_to_each_stays(void **state)
{
    (void)state;
    check("3", 0, 4, "3", false);
    check("3", 3, 4, "3", false);
    check("0,1", 1, 4, "1,0", false); /* those of too short a list: the first two have theirs */
    check("0,1", 2, 4, "0,1", false);
    check("6", 0, 1, "6", true);
    check("", 0, 1, "", true); /* no device is to be seen */
    check("", 1, 2, "", false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_of_all_devices_a_rank_takes_its_own_first),
        cmocka_unit_test(test_of_a_list_it_takes_the_one_at_its_place),
        cmocka_unit_test(test_what_the_launcher_gave_to_each_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
