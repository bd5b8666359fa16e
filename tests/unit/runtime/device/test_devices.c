/* Which CUDA devices a rank sees, and which of them first; and memory near to them. */
#include "runtime/comm/comm.h"
#include "tests/unit/test.h"
#include "tests/unit/test_folder.h"
#include "runtime/base/files.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

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

static void put_node(const char *bus, const char *text)
{
    char *folder = gr_printf("%s/sys/bus/pci/devices/%s", dir, bus),
         *file = gr_printf("%s/numa_node", folder);
    assert_int_equal(gr_dir_make(folder, NULL), GR_OK);
    assert_int_equal(gr_file_write(file, text, strlen(text), NULL), GR_OK);
    free(file);
    free(folder);
}

static void test_the_system_says_which_node_a_device_is_at(void **state)
{
    (void)state;
    put_node("0000:4b:00.0", "1\n");
    put_node("0001:ca:00.0", "0\n");
    put_node("0000:06:00.0", "-1\n"); /* of a virtual machine */
    put_node("0000:07:00.0", "");
    assert_int_equal(gr_pci_numa_node(dir, "0000:4B:00.0"), 1);
    assert_int_equal(gr_pci_numa_node(dir, "0001:ca:00.0"), 0);
    assert_int_equal(gr_pci_numa_node(dir, "0000:06:00.0"), -1);
    assert_int_equal(gr_pci_numa_node(dir, "0000:07:00.0"), -1);
    assert_int_equal(gr_pci_numa_node(dir, "0000:08:00.0"), -1);
}

/* How pages at x are to be placed, and on which nodes. */
static int policy_of(const void *x, unsigned long *nodes)
{
    int policy = -1;
    *nodes = 0;
    assert_int_equal(syscall(SYS_get_mempolicy, &policy, nodes, 8 * sizeof(*nodes) + 1, x, MPOL_F_ADDR), 0);
    return policy;
}

static void test_memory_prefers_a_node_where_there_is_one(void **state)
{
    (void)state;
    gr_memory m;
    unsigned long nodes;
    int policy;
    assert_int_equal(gr_memory_take(&m, 1 << 20, "a test", NULL), GR_OK);
    if (syscall(SYS_mbind, m.base, m.bytes, MPOL_DEFAULT, NULL, 0, 0)) {
        print_message("this system does not place memory by node: skipped\n");
        gr_memory_release(&m);
        skip();
    }
    gr_memory_prefer_node(&m, -1);
    assert_int_equal(policy_of(m.base, &nodes), MPOL_DEFAULT);
    gr_memory_prefer_node(&m, 63); /* which no machine of the tests has */
    assert_int_equal(policy_of(m.base, &nodes), MPOL_DEFAULT);
    gr_memory_prefer_node(&m, 0);
    policy = policy_of(m.base + m.bytes - 1, &nodes);
    assert_int_equal(policy, MPOL_PREFERRED);
    assert_int_equal(nodes, 1);
    memset(m.base, 1, m.bytes);
    gr_memory_release(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_of_all_devices_a_rank_takes_its_own_first),
        cmocka_unit_test(test_of_a_list_it_takes_the_one_at_its_place),
        cmocka_unit_test(test_what_the_launcher_gave_to_each_stays),
        cmocka_unit_test(test_the_system_says_which_node_a_device_is_at),
        cmocka_unit_test(test_memory_prefers_a_node_where_there_is_one),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
