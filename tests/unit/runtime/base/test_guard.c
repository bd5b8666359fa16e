/* Commands under a guard: how they end is told, and nothing of them outlives the leash or who holds it. */
#include "runtime/base/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/test.h"

#define MARK "GR_TEST_GUARD" /* in the environment of all that a test starts */

static char mark[64]; /* "NAME=NUMBER" */

static void new_mark(void)
{
    static unsigned n;
    char value[32];
    snprintf(value, sizeof(value), "%d.%u", (int)getpid(), n++);
    snprintf(mark, sizeof(mark), MARK "=%s", value);
    setenv(MARK, value, 1);
}

static void look_for_mark(void *user, const gr_process *p)
{
    static char text[1 << 17];
    unsigned *found = user;
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/environ", (int)p->pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text));
    if (fd >= 0) close(fd);
    *found += n > 0 && p->state != 'Z' && memmem(text, (size_t)n, mark, strlen(mark) + 1);
}

/* Processes with the mark. */
static unsigned marked(void)
{
    unsigned found = 0;
    gr_each_process(look_for_mark, &found);
    return found;
}

/* Waits until there are as many or more, or with none until there are none; a minute at most. */
static void await_marked(unsigned n)
{
    for (int i = 0; i < 6000; i++) {
        unsigned is = marked();
        if (n ? is >= n : !is) return;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    fail_msg("%u processes and not %u", marked(), n);
}

static gr_guard start(const char *command, unsigned grace_s)
{
    const char *const argv[] = {"/bin/sh", "-c", command, NULL};
    gr_guard g;
    new_mark();
    assert_int_equal(
        gr_guard_start(&g, &(gr_guarded){.argv = argv, .in = -1, .out = 1, .err = 2, .grace_s = grace_s}), 0);
    return g;
}

static int wait_for(const gr_guard *g)
{
    int status = -1;
    assert_int_equal(waitpid(g->pid, &status, 0), g->pid);
    close(g->leash);
    return status;
}

static void test_it_ends_as_the_command_does(void **state)
{
    (void)state;
    gr_guard g = start("exit 7", 0);
    assert_int_equal(WEXITSTATUS(wait_for(&g)), 7);
    g = start("kill -SEGV $$", 0);
    assert_int_equal(WTERMSIG(wait_for(&g)), SIGSEGV);
}

static void test_a_command_that_is_not_there(void **state)
{
    (void)state;
    const char *const argv[] = {"no-such-command", NULL};
    gr_guard g;
    int status;
    assert_int_equal(gr_guard_start(&g, &(gr_guarded){.argv = argv, .in = -1, .out = 1, .err = 2}), 0);
    assert_int_equal(waitpid(g.pid, &status, 0), g.pid);
    assert_int_equal(WEXITSTATUS(status), 127);
    assert_int_equal(gr_guard_error(&g), ENOENT);
    close(g.leash);
    g = start("exit 127", 0);
    assert_int_equal(waitpid(g.pid, &status, 0), g.pid);
    assert_int_equal(gr_guard_error(&g), 0); /* its own */
    close(g.leash);
}

static void test_signals_are_passed_on(void **state)
{
    (void)state;
    int out[2];
    char c;
    const char *const argv[] = {"/bin/sh", "-c", "trap 'exit 5' USR1; echo; while :; do sleep 0.01; done",
                                NULL};
    gr_guard g;
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(gr_guard_start(&g, &(gr_guarded){.argv = argv, .in = -1, .out = out[1], .err = 2}), 0);
    close(out[1]);
    assert_int_equal(read(out[0], &c, 1), 1);
    kill(g.pid, SIGUSR1);
    assert_int_equal(WEXITSTATUS(wait_for(&g)), 5);
    assert_int_equal(read(out[0], &c, 1), 0); /* nobody else holds it */
    close(out[0]);
}

/* It ignores all that can be ignored, and so do its children: in its group, in another session, and one whose
 * parent has gone. */
#define STUBBORN                                                     \
    "trap '' TERM INT HUP QUIT USR1; exec </dev/null; sleep 1000 & " \
    "setsid sh -c 'sleep 1000 & sleep 1000' & "                      \
    "(setsid setsid sh -c 'sleep 1000; :' & ) ; while :; do sleep 1000; done"
#define OF_IT 7 /* the guard, the shell, its sleep, and four or five more */

static void test_the_leash_ends_all_of_it(void **state)
{
    (void)state;
    for (unsigned grace = 0; grace < 2; grace++) {
        gr_guard g = start(STUBBORN, grace);
        await_marked(OF_IT);
        close(g.leash);
        g.leash = -1;
        assert_true(waitpid(g.pid, NULL, 0) == g.pid);
        assert_int_equal(marked(), 0); /* by then */
    }
}

static void test_what_a_command_leaves_behind_ends_with_it(void **state)
{
    (void)state;
    gr_guard g = start("setsid sleep 1000 & (setsid sh -c 'sleep 1000; :' &); sleep 0.2; exit 3", 0);
    assert_int_equal(WEXITSTATUS(wait_for(&g)), 3);
    assert_int_equal(marked(), 0);
}

/* Even by SIGKILL, behind which nothing of it runs. */
static void test_the_death_of_who_holds_it_ends_all(void **state)
{
    (void)state;
    new_mark();
    pid_t holder = fork();
    if (!holder) {
        const char *const argv[] = {"/bin/sh", "-c", STUBBORN, NULL};
        gr_guard g;
        if (gr_guard_start(&g, &(gr_guarded){.argv = argv, .in = -1, .out = 1, .err = 2})) _exit(1);
        for (;;) pause();
    }
    await_marked(OF_IT);
    kill(holder, SIGKILL);
    assert_int_equal(waitpid(holder, NULL, 0), holder);
    await_marked(0);
}

/* What it has of grace it may use. */
static void test_with_grace_it_may_end_in_order(void **state)
{
    (void)state;
    int out[2];
    char c = 0;
    const char *const argv[] = {"/bin/sh", "-c",
                                "trap 'printf b; exit 0' TERM; printf a; while :; do sleep 0.01; done", NULL};
    gr_guard g;
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(
        gr_guard_start(&g, &(gr_guarded){.argv = argv, .in = -1, .out = out[1], .err = 2, .grace_s = 600}),
        0);
    close(out[1]);
    assert_true(read(out[0], &c, 1) == 1 && c == 'a');
    close(g.leash);
    assert_true(read(out[0], &c, 1) == 1 && c == 'b');
    assert_int_equal(waitpid(g.pid, NULL, 0), g.pid);
    close(out[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_ends_as_the_command_does),
        cmocka_unit_test(test_a_command_that_is_not_there),
        cmocka_unit_test(test_signals_are_passed_on),
        cmocka_unit_test(test_the_leash_ends_all_of_it),
        cmocka_unit_test(test_what_a_command_leaves_behind_ends_with_it),
        cmocka_unit_test(test_the_death_of_who_holds_it_ends_all),
        cmocka_unit_test(test_with_grace_it_may_end_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
