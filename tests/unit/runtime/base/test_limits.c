/* Control groups as Slurm, Docker and Kubernetes set them, written into a folder. */
#include "runtime/base/limits.h"

#include <limits.h>

#include "tests/unit/test.h"
#include "tests/unit/test_folder.h"
#include "runtime/base/files.h"

static void put(const char *path, const char *text)
{
    char *file = in_dir(path), *folder = gr_strdup(file);
    *strrchr(folder, '/') = '\0';
    assert_int_equal(gr_dir_make(folder, NULL), GR_OK);
    assert_int_equal(gr_file_write(file, text, strlen(text), NULL), GR_OK);
    free(folder);
    free(file);
}

static void begin(const char *groups)
{
    assert_int_equal(gr_path_remove(dir, NULL), GR_OK);
    put("proc/self/cgroup", groups);
}

static void test_without_groups_nothing_is_limited(void **state)
{
    (void)state;
    assert_int_equal(gr_path_remove(dir, NULL), GR_OK);
    assert_int_equal(gr_dir_make(dir, NULL), GR_OK);
    assert_true(gr_group_memory(dir) == UINT64_MAX);
    assert_int_equal(gr_group_cores(dir), UINT_MAX);
    begin("0::/user.slice\n");
    put("sys/fs/cgroup/user.slice/memory.max", "max\n");
    put("sys/fs/cgroup/user.slice/cpu.max", "max 100000\n");
    assert_true(gr_group_memory(dir) == UINT64_MAX);
    assert_int_equal(gr_group_cores(dir), UINT_MAX);
}

static void test_a_job_of_slurm_has_the_limit_of_its_group_and_of_those_above(void **state)
{
    (void)state;
    begin("0::/system.slice/slurmstepd.scope/job_17/step_0/user/task_0\n");
    put("sys/fs/cgroup/system.slice/slurmstepd.scope/job_17/memory.max", "17179869184\n");
    put("sys/fs/cgroup/system.slice/slurmstepd.scope/job_17/step_0/user/task_0/memory.max", "max\n");
    put("sys/fs/cgroup/system.slice/memory.max", "34359738368\n");
    put("sys/fs/cgroup/system.slice/slurmstepd.scope/job_17/cpu.max", "350000 100000\n");
    put("sys/fs/cgroup/system.slice/slurmstepd.scope/job_18/memory.max", "1024\n"); /* another's */
    assert_true(gr_group_memory(dir) == UINT64_C(17179869184));
    assert_int_equal(gr_group_cores(dir), 4); /* three and a half */
}

static void test_groups_of_version_1_are_found_by_their_controller(void **state)
{
    (void)state;
    begin("9:name=systemd:/\n5:cpu,cpuacct:/docker/a\n4:memory:/docker/a\n3:cpuset:/docker/b\n0::/\n");
    put("sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes", "8589934592\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/docker/b/memory.limit_in_bytes", "1024\n");
    put("sys/fs/cgroup/cpu/docker/a/cpu.cfs_quota_us", "200000\n");
    put("sys/fs/cgroup/cpu/docker/a/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_true(gr_group_memory(dir) == UINT64_C(8589934592));
    assert_int_equal(gr_group_cores(dir), 2);
}

/* A container sees its own group as the root, whatever its path is called outside. */
static void test_a_container_has_the_limit_of_its_root(void **state)
{
    (void)state;
    static const char *const paths[] = {"0::/\n", "0::/../../pod7/c3\n", "0::/kubepods/pod7/c3\n", "0::\n",
                                        "?\n\n"};
    for (size_t i = 0; i < GR_LEN(paths); i++) {
        begin(paths[i]);
        put("sys/fs/cgroup/memory.max", "4294967296\n");
        put("sys/fs/cgroup/cpu.max", "50000 100000\n");
        assert_true(gr_group_memory(dir) == UINT64_C(4294967296));
        assert_int_equal(gr_group_cores(dir), 1);
    }
}

static void test_this_machine_has_memory_and_a_core(void **state)
{
    (void)state;
    assert_true(gr_usable_memory() > 1 << 20);
    assert_true(gr_usable_cores() >= 1);
}

static gr_core_set cores(uint64_t host, unsigned first, unsigned n)
{
    gr_core_set s = {.host = host};
    for (unsigned i = first; i < first + n; i++) s.word[i / 64] |= UINT64_C(1) << i % 64;
    return s;
}

static void test_what_ranks_are_bound_to_is_theirs_and_the_rest_is_divided(void **state)
{
    (void)state;
    const gr_core_set bound[] = {cores(1, 0, 4), cores(1, 4, 4), cores(2, 0, 4), cores(2, 1000, 6)};
    for (uint32_t r = 0; r < 3; r++) assert_int_equal(gr_core_sets_share(bound, 4, r), 4);
    assert_int_equal(gr_core_sets_share(bound, 4, 3), 4); /* as many as the other of its host */
    const gr_core_set free_ones[] = {cores(1, 60, 9), cores(1, 60, 9), cores(1, 60, 9), cores(2, 60, 9)};
    for (uint32_t r = 0; r < 3; r++) assert_int_equal(gr_core_sets_share(free_ones, 4, r), 3);
    assert_int_equal(gr_core_sets_share(free_ones, 4, 3), 9);
    /* a core each, and four that both may use */
    const gr_core_set both[] = {cores(1, 0, 5), cores(1, 1, 5)};
    assert_int_equal(gr_core_sets_share(both, 2, 0), 3);
    const gr_core_set crowded[] = {cores(1, 0, 1), cores(1, 0, 1)}, unknown[] = {cores(1, 0, 4), {.host = 1}};
    assert_int_equal(gr_core_sets_share(crowded, 2, 1), 1);
    assert_int_equal(gr_core_sets_share(unknown, 2, 0), 0);
}

static void test_this_process_has_its_cores(void **state)
{
    (void)state;
    const gr_core_set own = gr_core_set_own(7);
    const unsigned n = gr_core_sets_share(&own, 1, 0);
    assert_int_equal(GR_MIN(n, gr_group_cores("")), gr_usable_cores());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_groups_nothing_is_limited),
        cmocka_unit_test(test_a_job_of_slurm_has_the_limit_of_its_group_and_of_those_above),
        cmocka_unit_test(test_groups_of_version_1_are_found_by_their_controller),
        cmocka_unit_test(test_a_container_has_the_limit_of_its_root),
        cmocka_unit_test(test_this_machine_has_memory_and_a_core),
        cmocka_unit_test(test_what_ranks_are_bound_to_is_theirs_and_the_rest_is_divided),
        cmocka_unit_test(test_this_process_has_its_cores),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
