#include "runtime/base.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/test.h"

static void test_near_names_are_suggested(void **state)
{
    (void)state;
    const char *const names[] = {"generate", "reward", "logprob"};
    assert_string_equal(gr_near("genrate", names, 3), "generate");
    assert_null(gr_near("update", names, 3));
    const char *fields[] = {"rollout.token", "rollout.length"}; /* both three away */
    assert_string_equal(gr_near("rollout.len", fields, 2), "rollout.length");
}

static void test_messages_carry_their_place(void **state)
{
    (void)state;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_diag_error(&d, (gr_loc){"a.yaml", 3, 9}, GR_E_INVALID, "unknown op '%s'", "x"),
                     GR_E_INVALID);
    char *text = gr_message_format(&d.messages[0]);
    assert_string_equal(text, "a.yaml:3:9: error: unknown op 'x'");
    free(text);
    gr_diag_release(&d);
}

static void test_bytes_are_parsed_and_refused(void **state)
{
    (void)state;
    uint64_t b;
    assert_true(gr_bytes_parse("80GiB", &b) && b == 80ull << 30);
    assert_true(gr_bytes_parse("1.5 kB", &b) && b == 1500);
    assert_false(gr_bytes_parse("-1", &b));
    assert_false(gr_bytes_parse("12 GiBs", &b));
    assert_false(gr_bytes_parse("1e99GiB", &b));
    assert_false(gr_bytes_parse("", &b));
}

/* Known answers of the Random123 distribution need the bare key; ours mixes a stream in, so what is tested
 * is that every part of the key and counter matters and that the values never change. */
static void test_philox_is_a_pure_function_of_key_and_counter(void **state)
{
    (void)state;
    uint32_t zero[4] = {0}, one[4] = {1}, a[4], b[4];
    gr_philox(1, 2, zero, a);
    gr_philox(1, 2, zero, b);
    assert_memory_equal(a, b, sizeof(a));
    gr_philox(1, 2, one, b);
    assert_memory_not_equal(a, b, sizeof(a));
    gr_philox(1, 3, zero, b);
    assert_memory_not_equal(a, b, sizeof(a));
    gr_philox(2, 2, zero, b);
    assert_memory_not_equal(a, b, sizeof(a));
}

static void test_files_appear_whole(void **state)
{
    (void)state;
    gr_diag d;
    gr_diag_init(&d);
    char dir[] = "/tmp/gr_base_XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = gr_printf("%s/x/y/z", dir), *parent = gr_printf("%s/x/y", dir), *back = NULL;
    size_t n = 0;
    assert_int_equal(gr_dir_make(parent, &d), GR_OK);
    assert_int_equal(gr_file_write(path, "abc", 3, &d), GR_OK);
    assert_int_equal(gr_file_read(path, 0, &back, &n, &d), GR_OK);
    assert_int_equal(n, 3);
    assert_string_equal(back, "abc");
    free(back);
    assert_int_equal(gr_file_read(path, 2, &back, &n, &d), GR_E_INVALID);
    assert_int_equal(gr_path_remove(dir, &d), GR_OK);
    assert_int_equal(gr_file_read(path, 0, &back, &n, &d), GR_E_IO);
    free(path);
    free(parent);
    gr_diag_release(&d);
}

/* A link stays a link, and its target gets the bytes; a pipe is written into. */
static void test_only_plain_files_are_replaced(void **state)
{
    (void)state;
    gr_diag d;
    gr_diag_init(&d);
    char dir[] = "/tmp/gr_base_XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *file = gr_printf("%s/file", dir), *link = gr_printf("%s/link", dir),
         *fifo = gr_printf("%s/fifo", dir);
    char *back = NULL, got[8] = "";
    struct stat s;
    size_t n = 0;
    assert_int_equal(gr_file_write(file, "old", 3, &d), GR_OK);
    assert_int_equal(symlink("file", link), 0);
    assert_int_equal(gr_file_write(link, "new", 3, &d), GR_OK);
    assert_int_equal(lstat(link, &s), 0);
    assert_true(S_ISLNK(s.st_mode));
    assert_int_equal(gr_file_read(file, 0, &back, &n, &d), GR_OK);
    assert_string_equal(back, "new");
    free(back);

    assert_int_equal(mkfifo(fifo, 0600), 0);
    int fd = open(fifo, O_RDWR | O_CLOEXEC); /* so that writing finds a reader */
    assert_true(fd >= 0);
    assert_int_equal(gr_file_write(fifo, "abc", 3, &d), GR_OK);
    assert_int_equal(read(fd, got, sizeof(got)), 3);
    assert_string_equal(got, "abc");
    assert_int_equal(lstat(fifo, &s), 0);
    assert_true(S_ISFIFO(s.st_mode));
    close(fd);
    assert_int_equal(gr_path_remove(dir, &d), GR_OK);
    free(file);
    free(link);
    free(fifo);
    gr_diag_release(&d);
}

static gr_status count_names(void *user, const char *dir, const char *name, gr_diag *d)
{
    (void)dir;
    ++*(int *)user;
    return strcmp(name, "stop") ? GR_OK : gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "stopped");
}

/* What names nothing is not there; a folder that is missing has no names, and what is none is an error. */
static void test_paths_are_looked_at(void **state)
{
    (void)state;
    gr_diag d;
    gr_diag_init(&d);
    char dir[] = "/tmp/gr_base_XXXXXX", *real;
    int n = 0;
    assert_non_null(mkdtemp(dir));
    char *file = gr_printf("%s/file", dir), *loop = gr_printf("%s/loop", dir),
         *below = gr_printf("%s/below", file), *longest = gr_printf("%s/%0500d", dir, 0);
    assert_int_equal(gr_file_write(file, "abc", 3, &d), GR_OK);
    assert_int_equal(symlink("loop", loop), 0);
    assert_true(gr_path_exists(file));
    assert_false(gr_path_exists(loop) || gr_path_exists(below) || gr_path_exists(longest));
    assert_int_equal(gr_dir_each(dir, count_names, &n, &d), GR_OK);
    assert_int_equal(n, 2);
    assert_int_equal(gr_dir_each(loop + strlen(loop), count_names, &n, &d), GR_OK);
    assert_int_equal(gr_dir_each(file, count_names, &n, &d), GR_E_IO);
    real = gr_path_real(file);
    assert_string_equal(strrchr(real, '/'), "/file");
    free(real);
    assert_null(gr_path_real(below));
    free(file);
    file = gr_printf("%s/stop", dir);
    assert_int_equal(gr_file_write(file, "", 0, &d), GR_OK);
    assert_int_equal(gr_dir_each(dir, count_names, &n, &d), GR_E_FAILED);
    assert_int_equal(gr_path_remove(dir, &d), GR_OK);
    free(file);
    free(loop);
    free(below);
    free(longest);
    gr_diag_release(&d);
}

static void *find_no_memory(void *arg)
{
    (void)arg;
    gr_out_of_memory(17);
}

/* Several threads find no memory while others write what they hold: one line, status 1, and nobody waits. */
static void test_memory_that_ends_in_several_threads_is_said_once(void **state)
{
    (void)state;
    int fds[2], status;
    char text[256] = "";
    assert_int_equal(pipe(fds), 0);
    fflush(NULL);
    const pid_t pid = fork();
    if (!pid) {
        pthread_t threads[4];
        dup2(fds[1], STDERR_FILENO);
        flockfile(stdout); /* somebody is at it, and stays */
        for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, find_no_memory, NULL);
        for (;;) pause();
    }
    close(fds[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    size_t n = 0;
    for (ssize_t got; (got = read(fds[0], text + n, sizeof(text) - 1 - n)) > 0;) n += (size_t)got;
    close(fds[0]);
    assert_string_equal(text, "graphrun: error: out of host memory (17 bytes)\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_near_names_are_suggested),
        cmocka_unit_test(test_messages_carry_their_place),
        cmocka_unit_test(test_bytes_are_parsed_and_refused),
        cmocka_unit_test(test_philox_is_a_pure_function_of_key_and_counter),
        cmocka_unit_test(test_files_appear_whole),
        cmocka_unit_test(test_only_plain_files_are_replaced),
        cmocka_unit_test(test_paths_are_looked_at),
        cmocka_unit_test(test_memory_that_ends_in_several_threads_is_said_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
