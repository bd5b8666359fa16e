/* Messages, sizes, random numbers, and files: read whole, written whole, nothing else touched. */
#include "runtime/base/aside.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/test.h"
#include "runtime/base/files.h"
#include "runtime/base/visible.h"

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

static void assert_shown(const char *bytes, const char *want)
{
    gr_str s = {0};
    gr_str_visible(&s, bytes, strlen(bytes), false);
    assert_string_equal(s.text, want);
    gr_str_release(&s);
}

/* ESC, CSI of one byte (C1), OSC, bells, turned writing, bytes that are no text. */
static void test_messages_give_terminals_no_orders(void **state)
{
    (void)state;
    assert_shown("plain, \t, \xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80 \\x1b",
                 "plain, \t, \xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80 \\x1b");
    assert_shown("\x1b[2J\x1b]0;owned\a", "\\x1b[2J\\x1b]0;owned\\x07");
    assert_shown("a\xc2\x9b"
                 "31m\x7f\b",
                 "a\\u009b31m\\x7f\\x08");
    assert_shown("x\xe2\x80\xaey\xe2\x81\xa6z\xe2\x80\x8f\xd8\x9c", "x\\u202ey\\u2066z\\u200f\\u061c");
    assert_shown("\xff\xc3(\xed\xa0\x80", "\\xff\\xc3(\\xed\\xa0\\x80");
    assert_shown("a\r\nb\xe2\x80\xa8\xf3\xa0\x81\x81", "a\\r\\nb\\u2028\\U000e0041");
    assert_shown("\xe2\x80\x8d\xe2\x80\x8c", "\xe2\x80\x8d\xe2\x80\x8c"); /* joiners are letters' */
    gr_str lines = {0};
    gr_str_visible(&lines, "a\nb\r\n", 5, true);
    assert_string_equal(lines.text, "a\nb\\r\n");
    gr_str_release(&lines);

    gr_diag d;
    gr_diag_init(&d);
    gr_diag_warn(&d, (gr_loc){"a\x1b[1m.yaml", 3, 9}, "tensor '%s'",
                 "x\n/etc/passwd:1:1: error: owned\x1b[0m");
    char *text = gr_message_format(&d.messages[0]);
    assert_string_equal(text,
                        "a\\x1b[1m.yaml:3:9: warning: tensor 'x\\n/etc/passwd:1:1: error: owned\\x1b[0m'");
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

static char *in_folder(const char *dir, const char *name, const char *text) /* written where text is given */
{
    char *path = gr_printf("%s/%s", dir, name);
    if (text) assert_int_equal(gr_file_write(path, text, strlen(text), NULL), GR_OK);
    return path;
}

static void assert_holds(const char *path, const char *text)
{
    char *got;
    size_t n;
    assert_int_equal(gr_file_read(path, 0, &got, &n, NULL), GR_OK);
    assert_string_equal(got, text);
    free(got);
}

static size_t names_in(const char *dir)
{
    size_t n = 0;
    DIR *open_dir = opendir(dir);
    while (readdir(open_dir)) n++;
    closedir(open_dir);
    return n - 2; /* . and .. */
}

/* Whatever a user calls X.tmp, and wherever it leads. */
static void test_writing_touches_nothing_beside_the_file(void **state)
{
    (void)state;
    char dir[] = "/tmp/gr_base_XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *precious = in_folder(dir, "precious", "mine"), *link = in_folder(dir, "x.tmp", NULL),
         *plain = in_folder(dir, "y.tmp", "kept"), *x = in_folder(dir, "x", NULL),
         *y = in_folder(dir, "y", NULL);
    assert_int_equal(symlink("precious", link), 0);
    assert_int_equal(gr_file_write(x, "new", 3, NULL), GR_OK);
    assert_int_equal(gr_file_write(y, "new", 3, NULL), GR_OK);
    assert_holds(precious, "mine");
    assert_holds(link, "mine");
    assert_holds(plain, "kept");
    assert_holds(x, "new");
    assert_int_equal(names_in(dir), 5);

    char *lost = in_folder(dir, "lost", NULL); /* a link whose target is away is not replaced */
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(symlink("nowhere", lost), 0);
    assert_int_equal(gr_file_write(lost, "new", 3, &d), GR_E_IO);
    assert_non_null(strstr(d.messages[0].text, "/lost': it is a symbolic link to nothing"));
    assert_int_equal(names_in(dir), 6);
    gr_diag_release(&d);

    char *name = gr_calloc(251, 1), *full; /* as long as names may be, or nearly */
    memset(name, 'n', 250);
    full = in_folder(dir, name, "long");
    assert_holds(full, "long");
    assert_int_equal(names_in(dir), 7);
    assert_int_equal(gr_path_remove(dir, NULL), GR_OK);
    char *all[] = {precious, link, plain, x, y, lost, name, full};
    for (size_t i = 0; i < GR_LEN(all); i++) free(all[i]);
}

/* What a dead process left is removed; what another holds, and what only looks so, stays. */
static void test_only_what_is_left_is_swept(void **state)
{
    (void)state;
    char dir[] = "/tmp/gr_base_XXXXXX", *held, *left, *folder;
    assert_non_null(mkdtemp(dir));
    char *x = in_folder(dir, "x", NULL);
    int fd = gr_aside_new(&held, x, true), other = gr_aside_new(&left, x, true),
        file = gr_aside_new(&folder, x, false);
    assert_true(fd >= 0 && other >= 0 && file >= 0);
    assert_string_not_equal(held, left);
    char *inside = in_folder(left, "weights", "half");
    const char *const like[] = {"x.graphrun-0123456", "x.graphrun-0123456g", "x.tmp",
                                ".graphrun-01234567", "y.graphrun-01234567", "xx.graphrun-01234567"};
    for (size_t i = 0; i < GR_LEN(like); i++) free(in_folder(dir, like[i], "mine"));
    close(other);
    close(file);
    gr_aside_sweep(dir, x);
    assert_true(gr_path_exists(held));
    assert_false(gr_path_exists(left) || gr_path_exists(folder));
    assert_int_equal(names_in(dir), 1 + GR_LEN(like));
    close(fd);
    gr_aside_sweep(dir, NULL); /* of files alone: those of x.tmp and of y, and of xx, are such */
    assert_true(gr_path_exists(held));
    assert_int_equal(names_in(dir), 1 + GR_LEN(like) - 2);
    assert_int_equal(gr_path_remove(dir, NULL), GR_OK);
    free(inside);
    free(folder);
    free(left);
    free(held);
    free(x);
}

static void assert_not_read(const char *path, gr_status want, const char *text)
{
    char *got = NULL;
    size_t n;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_file_read(path, 0, &got, &n, &d), want);
    assert_null(got);
    if (!strstr(d.messages[0].text, text)) fail_msg("\"%s\" does not hold \"%s\"", d.messages[0].text, text);
    gr_diag_release(&d);
}

/* A test that waits for a writer would never end. */
static void test_what_is_no_file_is_refused_without_waiting(void **state)
{
    (void)state;
    char dir[] = "/tmp/gr_base_XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *fifo = in_folder(dir, "fifo", NULL), *sock = in_folder(dir, "sock", NULL);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof(at.sun_path), "%s", sock);
    int s = socket(AF_UNIX, SOCK_STREAM, 0), fds[2];
    assert_int_equal(bind(s, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_not_read(fifo, GR_E_INVALID, "/fifo' is a pipe; a regular file is expected");
    assert_not_read("/dev/zero", GR_E_INVALID, "'/dev/zero' is a device; a regular file is expected");
    assert_not_read(sock, GR_E_IO, "/sock': No such device or address");
    assert_not_read(dir, GR_E_IO, "': Is a directory");

    assert_int_equal(pipe(fds),
                     0); /* one that the shell names is waited for: what comes is read to its end */
    char *stream = gr_printf("/dev/fd/%d", fds[0]);
    pid_t child = fork();
    if (!child) {
        usleep(20000);
        _exit(write(fds[1], "slow", 4) != 4);
    }
    close(fds[1]);
    assert_holds(stream, "slow");
    close(fds[0]);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(s);
    assert_int_equal(gr_path_remove(dir, NULL), GR_OK);
    free(stream);
    free(sock);
    free(fifo);
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
        cmocka_unit_test(test_messages_give_terminals_no_orders),
        cmocka_unit_test(test_bytes_are_parsed_and_refused),
        cmocka_unit_test(test_philox_is_a_pure_function_of_key_and_counter),
        cmocka_unit_test(test_files_appear_whole),
        cmocka_unit_test(test_only_plain_files_are_replaced),
        cmocka_unit_test(test_writing_touches_nothing_beside_the_file),
        cmocka_unit_test(test_only_what_is_left_is_swept),
        cmocka_unit_test(test_what_is_no_file_is_refused_without_waiting),
        cmocka_unit_test(test_paths_are_looked_at),
        cmocka_unit_test(test_memory_that_ends_in_several_threads_is_said_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
