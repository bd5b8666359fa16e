/* tools/restarts.c: exec --restarts N: a run that fails is restarted, by a small process beside it.
 *
 * The run itself is this program again, without --restarts, under a guard (runtime/base/guard.h): it may
 * crash, or be killed for its memory, and when it has ended nothing of it is left that could hold its folder
 * or its devices. Once the run has written its plan.json, it goes on by --resume, from the newest checkpoint
 * or, before there is one, from the beginning; until then the same command is given again.
 */
#include "tools/cmd.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/io/checkpoint_dir.h"
#include "runtime/base/guard.h"
#include "runtime/base/signals.h"

#define LONGEST_WAIT 300 /* seconds; the first is 1, and each twice the one before */

static const int passed[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};
static volatile sig_atomic_t guard_pid; /* of the run, 0 between two */
static volatile sig_atomic_t asked;     /* the first signal that came, or 0 */

/* The run knows what to do, and guards pass it on. */
static void pass_on(int number)
{
    const int error = errno;
    if (!asked) asked = number;
    if (guard_pid > 0) kill((pid_t)guard_pid, number);
    errno = error;
}

static void catch_signals(void)
{
    struct sigaction s = {.sa_handler = pass_on}; /* a wait ends by it */
    for (size_t i = 0; i < GR_LEN(passed); i++)
        if (!gr_signals_ignored(passed[i]) || passed[i] != SIGHUP) sigaction(passed[i], &s, NULL);
}

static void hold_signals(sigset_t *before)
{
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < GR_LEN(passed); i++) sigaddset(&set, passed[i]);
    sigprocmask(SIG_BLOCK, &set, before);
}

/* ---- commands --------------------------------------------------------------------------------------------
 */

typedef struct words {
    char **word;
    size_t n, cap;
} words;

static void add(words *w, const char *word)
{
    GR_PUSH(w->word, w->n, w->cap, word ? gr_strdup(word) : NULL);
}

static void add_option(words *w, const char *name, const char *value)
{
    if (!value) return;
    add(w, name);
    add(w, value);
}

static void release(words *w)
{
    for (size_t i = 0; i < w->n; i++) free(w->word[i]);
    free(w->word);
    *w = (words){0};
}

static void add_self(words *w)
{
    char path[4096];
    add(w, gr_own_path(path, sizeof(path)));
    add(w, "exec");
}

/* What was given, without --restarts and its number; out: the folder that was chosen for it, or NULL. */
static gr_status given_command(words *w, const char *out, gr_diag *d)
{
    static const char name[] = "--restarts";
    char *text = NULL;
    size_t cap = 0, i = 0, skip = 2; /* the program and the command */
    bool options = true;
    FILE *f = fopen("/proc/self/cmdline", "r");
    if (!f) return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "cannot read /proc/self: %s", strerror(errno));
    add_self(w);
    add_option(w, "--out", out);
    for (; getdelim(&text, &cap, 0, f) > 0; i++) {
        options = options && strcmp(text, "--") != 0;
        const bool own = options && !strncmp(text, name, strlen(name));
        if (own) skip = i + (text[strlen(name)] == '=' ? 1 : 2);
        if (i >= skip) add(w, text);
    }
    add(w, NULL);
    free(text);
    fclose(f);
    return GR_OK;
}

/* What else was given is in the run's own graph and plan by now. */
static void resume_command(words *w, const gr_args *a, const char *run)
{
    char *until = a->until ? gr_printf("%llu", (unsigned long long)a->until) : NULL;
    add_self(w);
    add_option(w, "--resume", run);
    add_option(w, "--ranks", a->ask.ranks);
    add_option(w, "--hosts", a->hosts);
    add_option(w, "--device", a->ask.device);
    add_option(w, "--hardware", a->ask.hardware);
    add_option(w, "--disk", a->ask.disk);
    add_option(w, "--until", until);
    if (a->ask.check_memory) add(w, "--check-memory");
    if (a->accept_changes) add(w, "--accept-changes");
    add(w, NULL);
    free(until);
}

/* ---- a run -----------------------------------------------------------------------------------------------
 */

typedef struct watch {
    const gr_args *args;
    const char *run;
    uint64_t newest; /* checkpoint when it last failed, counted from 1; 0: there was none */
    uint64_t tried;  /* restarts since then that have brought no newer one */
    bool begun;      /* the run is in its folder, to be gone on with */
} watch;

static uint64_t newest_checkpoint(const char *run)
{
    uint64_t *steps = NULL, newest = 0;
    size_t n = 0;
    if (!gr_checkpoint_list(&steps, &n, run, NULL) && n) newest = steps[n - 1] + 1;
    free(steps);
    return newest;
}

/* Which plan.json is there; another one that is written is another file. */
static struct stat plan_of(const char *run)
{
    char *path = gr_printf("%s/plan.json", run);
    struct stat s;
    if (stat(path, &s)) memset(&s, 0, sizeof(s));
    free(path);
    return s;
}

static bool is_same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* *status as waitpid gives it. A signal that has come before is not lost: nothing begins, and it is as if the
 * run had ended by it. */
static gr_status run_once(const words *w, int *status, gr_diag *d)
{
    sigset_t before;
    gr_guard guard = {.leash = -1};
    const gr_guarded command = {.setting = GR_SUPERVISED "=1",
                                .argv = (const char *const *)w->word,
                                .in = STDIN_FILENO,
                                .out = STDOUT_FILENO,
                                .err = STDERR_FILENO};
    hold_signals(&before);
    const int error = asked ? 0 : gr_guard_start(&guard, &command);
    guard_pid = guard.pid;
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (error) return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "cannot start the run: %s", strerror(error));
    if (!guard.pid) {
        *status = asked;
        return GR_OK;
    }
    siginfo_t info;
    while (waitid(P_PID, (id_t)guard.pid, &info, WEXITED | WNOWAIT) && errno == EINTR) continue;
    guard_pid = 0; /* its number is its own until here */
    waitpid(guard.pid, status, 0);
    close(guard.leash);
    return GR_OK;
}

static gr_status attempt(watch *w, int *status, gr_diag *d)
{
    words command = {0};
    const struct stat before = plan_of(w->run);
    gr_status st = GR_OK;
    if (w->begun)
        resume_command(&command, w->args, w->run);
    else
        st = given_command(&command, w->args->ask.out || w->args->ask.resume ? NULL : w->run, d);
    if (!st) st = run_once(&command, status, d);
    const struct stat after = plan_of(w->run);
    w->begun = w->begun || !is_same_file(&before, &after);
    release(&command);
    return st;
}

/* ---- again -----------------------------------------------------------------------------------------------
 */

static char *how_it_ended(int status)
{
    if (WIFSIGNALED(status))
        return gr_printf("was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    return gr_printf("failed with exit status %d", WEXITSTATUS(status));
}

/* What is wrong with the input is so the next time, too; and what has diverged does so again. */
static bool may_be_tried_again(int status)
{
    static const int final[] = {0, 2, 3, GR_EXIT_DIVERGED};
    bool may = !asked;
    for (size_t i = 0; i < GR_LEN(final) && WIFEXITED(status); i++)
        may = may && WEXITSTATUS(status) != final[i];
    return may;
}

static void count(watch *w)
{
    const uint64_t newest = newest_checkpoint(w->run);
    if (newest != w->newest) w->tried = 0;
    w->newest = newest;
    w->tried++;
}

/* 1, 2, 4 ... */
static unsigned seconds_to_wait(uint64_t tried)
{
    return tried > 9 ? LONGEST_WAIT : GR_MIN(1u << (tried - 1), (unsigned)LONGEST_WAIT);
}

static void announce(const watch *w, unsigned seconds, const char *how)
{
    char *from = !w->begun   ? gr_strdup("as it was started")
                 : w->newest ? gr_printf("from iteration %llu", (unsigned long long)w->newest - 1)
                             : gr_strdup("from the beginning");
    fprintf(stderr, "%srestart %llu of %llu in %u s, %s: the run %s\n", isatty(STDERR_FILENO) ? "\n" : "",
            (unsigned long long)w->tried, (unsigned long long)w->args->restarts, seconds, from, how);
    free(from);
}

/* Until the time is up, or somebody asks to stop. */
static void wait_for(unsigned seconds)
{
    sigset_t before;
    struct timespec t = {.tv_sec = (time_t)seconds};
    hold_signals(&before); /* one that comes between the question and the wait ends the wait */
    if (!asked) ppoll(NULL, 0, &t, &before);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

/* true: it is to be tried once more. */
static bool again(watch *w, int status, gr_diag *d)
{
    if (!may_be_tried_again(status)) return false;
    char *how = how_it_ended(status);
    count(w);
    const bool gives_up = w->tried > w->args->restarts;
    if (gives_up) {
        gr_diag_error(
            d, (gr_loc){0}, GR_E_FAILED,
            "the run %s, and %llu restarts have brought no newer checkpoint; graphrun exec --resume %s goes "
            "on with it",
            how, (unsigned long long)w->args->restarts, w->run);
    } else {
        announce(w, seconds_to_wait(w->tried), how);
        wait_for(seconds_to_wait(w->tried));
    }
    free(how);
    return !gives_up && !asked;
}

/* One that was asked to stop before it had begun has ended by the signal, and so do we. */
static int exit_status(int status)
{
    if (WIFEXITED(status)) return WEXITSTATUS(status) == GR_EXIT_DIVERGED ? 1 : WEXITSTATUS(status);
    if (asked && WTERMSIG(status) == asked) {
        signal(asked, SIG_DFL);
        raise(asked);
    }
    return 1;
}

int gr_cmd_supervise(const gr_args *a, const char *run, gr_diag *d)
{
    watch w = {.args = a, .run = run, .newest = newest_checkpoint(run)};
    int status = 1 << 8; /* as of waitpid: exit status 1 */
    catch_signals();
    gr_status st = attempt(&w, &status, d);
    while (!st && again(&w, status, d)) st = attempt(&w, &status, d);
    return st ? gr_exit_status(st) : exit_status(status);
}
