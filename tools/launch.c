/* tools/launch.c: start this very command on several ranks, and speak for those that die.
 *
 * mpirun does the starting. It is found in PATH; what its ranks print is passed on as it comes, and what
 * mpirun itself has to say, in blocks between lines of dashes, gives way to one message of ours. Ranks tell
 * where they are in memory that they share with the launcher; for those of other hosts rank 0 does, as it
 * hears of them.
 *
 * SIGINT and SIGTERM become SIGUSR1, which mpirun passes on and which asks ranks to stop after their
 * iteration: by the first two it would end them. It gets a process group of its own, so that a terminal's
 * Ctrl-C comes here alone.
 */
#include "tools/cmd.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/comm.h"
#include "runtime/limits.h"
#include "runtime/signals.h"
#include "runtime/watch.h"

#define BOARD "GRAPHRUN_BOARD" /* names the file in which ranks tell where they are */

#define GRACE 20 /* seconds that mpirun has to end in once a rank has said why */

static volatile sig_atomic_t mpirun_pid, asked;
static char board_path[64];

static void pass_on(int number)
{
    const int error = errno;
    (void)number;
    if (mpirun_pid > 0) kill((pid_t)mpirun_pid, asked ? SIGTERM : SIGUSR1);
    if (!asked) gr_signals_answer();
    asked = 1;
    errno = error;
}

/* mpirun waits for ever for a host that is out of reach, and what it has started to reach it holds our pipe.
 */
static void end_mpirun(int number)
{
    (void)number;
    if (mpirun_pid > 0) kill((pid_t)mpirun_pid, SIGKILL);
    unlink(board_path);
    _exit(1);
}

/* ---- the board -------------------------------------------------------------------------------------------
 */

static gr_sign *map_board(int fd, uint32_t ranks)
{
    void *at = mmap(NULL, ranks * sizeof(gr_sign), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

static gr_sign *make_board(uint32_t ranks)
{
    snprintf(board_path, sizeof(board_path), "/dev/shm/graphrun-XXXXXX");
    int fd = mkstemp(board_path);
    gr_sign *board = fd >= 0 && !ftruncate(fd, (off_t)(ranks * sizeof(*board))) ? map_board(fd, ranks) : NULL;
    if (fd >= 0) close(fd);
    return board;
}

void gr_cmd_launched(uint32_t rank, uint32_t ranks)
{
    const char *path = getenv(BOARD);
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    gr_sign *board = map_board(fd, ranks);
    close(fd);
    if (board) gr_watch_tell(board, rank, ranks);
}

/* ---- the command -----------------------------------------------------------------------------------------
 */

typedef struct words {
    char **word;
    size_t n, cap;
} words;

static void add(words *w, const char *word)
{
    GR_PUSH(w->word, w->n, w->cap, word ? gr_strdup(word) : NULL);
}

/* This program and its arguments, as they were given. */
static gr_status add_own_command(words *w, gr_diag *d)
{
    char exe[4096], *text = NULL;
    size_t n = 0;
    ssize_t len = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
    FILE *f = fopen("/proc/self/cmdline", "r");
    ssize_t got = 0;
    if (len < 0 || !f)
        return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "cannot read /proc/self: %s", strerror(errno));
    exe[len] = '\0';
    add(w, exe);
    for (int i = 0; (got = getdelim(&text, &n, 0, f)) > 0; i++)
        if (i) add(w, text);
    free(text);
    fclose(f);
    return GR_OK;
}

uint32_t gr_cmd_count_hosts(const char *hosts)
{
    uint32_t n = 1;
    for (const char *at = hosts; *at; at++) n += *at == ',';
    return n;
}

/* Each host with its ranks: A:2,B:2. */
static void add_hosts(words *w, const char *hosts, uint32_t each)
{
    gr_str text = {0};
    for (const char *at = hosts;; at++) {
        if (*at == ',' || !*at) gr_str_printf(&text, ":%u", each);
        if (!*at) break;
        gr_str_putc(&text, *at);
    }
    add(w, "--host");
    add(w, text.text);
    gr_str_release(&text);
}

static gr_status make_command(words *w, uint32_t ranks, const char *hosts, const char *board, gr_diag *d)
{
    char n[16];
    const uint32_t each = ranks / (hosts ? gr_cmd_count_hosts(hosts) : 1);
    snprintf(n, sizeof(n), "%u", ranks);
    add(w, "mpirun");
    if (!geteuid()) add(w, "--allow-run-as-root");
    if (hosts) add_hosts(w, hosts, each);
    if (each > gr_usable_cores()) {
        add(w, "--oversubscribe");
        add(w, "--mca");
        add(w, "mpi_yield_when_idle");
        add(w, "1");
    }
    add(w, "--bind-to"); /* threads are ours to place */
    add(w, "none");
    add(w, "-n");
    add(w, n);
    if (board) {
        char *set = gr_printf(BOARD "=%s", board);
        add(w, "-x");
        add(w, set);
        free(set);
    }
    gr_status st = add_own_command(w, d);
    add(w, NULL);
    return st;
}

static gr_status start(const words *w, int *errors, gr_diag *d)
{
    int fds[2], failed[2], why = 0;
    if (pipe2(fds, O_CLOEXEC) || pipe2(failed, O_CLOEXEC))
        return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "cannot make a pipe: %s", strerror(errno));
    pid_t pid = fork();
    if (!pid) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        dup2(fds[1], STDERR_FILENO);
        execvp(w->word[0], w->word);
        why = errno;
        (void)!write(failed[1], &why, sizeof(why));
        _exit(127);
    }
    close(fds[1]);
    close(failed[1]);
    if (pid < 0) why = errno;
    if (pid > 0 && read(failed[0], &why, sizeof(why)) != sizeof(why)) why = 0;
    close(failed[0]);
    *errors = fds[0];
    mpirun_pid = pid;
    if (!why) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED,
                         why == ENOENT ? "several ranks are started by mpirun, which is not in PATH (Debian: "
                                         "openmpi-bin)"
                                       : "cannot start mpirun: %s",
                         strerror(why));
}

/* ---- what is said ----------------------------------------------------------------------------------------
 */

typedef struct heard {
    gr_str noise; /* what mpirun said itself */
    bool spoken;  /* a rank, or graphrun on its behalf, said what is wrong */
    unsigned rank, signal;
    char host[64];
    bool died;
} heard;

static bool is_ruler(const char *line)
{
    return strspn(line, "-") > 40;
}

static void study(heard *h, const char *line)
{
    unsigned rank, signal;
    char host[64];
    if (sscanf(line, "mpirun noticed that process rank %u with PID %*d on node %63s exited on signal %u",
               &rank, host, &signal) != 3)
        return;
    h->died = true;
    h->rank = rank;
    h->signal = signal;
    snprintf(h->host, sizeof(h->host), "%s", host);
}

/* Open MPI prints blocks, and lines that begin with "[HOST:PID] ": of what it stumbles over when a rank is
 * gone ("[[", its names of processes, or words), and where a rank has crashed ("***", "[ 1]"), which is
 * passed on. Its libevent begins with "[warn] ". */
static bool is_of_mpi(const char *line)
{
    unsigned pid;
    int end = 0;
    if (!strncmp(line, "[warn] ", 7)) return true;
    if (sscanf(line, "[%*[^]:]:%u] %n", &pid, &end) != 1 || !end) return false;
    return line[end] != '*' && (line[end] != '[' || line[end + 1] == '[');
}

static void listen_to(int fd, heard *h)
{
    FILE *f = fdopen(fd, "r");
    char *line = NULL;
    size_t cap = 0;
    bool block = false;
    while (f && getline(&line, &cap, f) > 0) {
        if (is_ruler(line)) {
            block = !block;
            continue;
        }
        if (block || is_of_mpi(line)) {
            study(h, line);
            gr_str_puts(&h->noise, line);
            continue;
        }
        fputs(line, stderr);
        if (h->spoken || !strstr(line, "error: ")) continue;
        h->spoken = true;
        alarm(GRACE);
    }
    free(line);
    if (f) fclose(f);
}

static void explain(const heard *h, const gr_sign *board, uint32_t ranks, const char *run, gr_diag *d)
{
    if (h->spoken) return;
    if (!h->died) {
        gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "mpirun ended the ranks: %s",
                      h->noise.len ? h->noise.text : "it does not say why");
        return;
    }
    gr_sign at = {.step = "start"};
    if (board && h->rank < ranks) at = board[h->rank];
    gr_diag_error(
        d, (gr_loc){0}, GR_E_FAILED,
        "rank %u on host %s ended by signal %u (%s) in iteration %u, step '%s': all ranks are ended%s%s",
        h->rank, h->host, h->signal, strsignal((int)h->signal), at.iteration, at.step[0] ? at.step : "start",
        run ? "; the run goes on with --resume " : "", run ? run : "");
}

int gr_cmd_launch(uint32_t ranks, const char *hosts, const char *run, gr_diag *d)
{
    words w = {0};
    heard h = {0};
    int errors = -1, ended = 0;
    if (!gr_comm_has_mpi())
        return gr_exit_status(gr_diag_error(d, (gr_loc){0}, GR_E_FAILED,
                                            "%u ranks need MPI, which this build of graphrun has not "
                                            "(meson setup -Dmpi=enabled; Debian: libopenmpi-dev)",
                                            ranks));
    gr_sign *board = make_board(ranks);
    gr_status st = make_command(&w, ranks, hosts, board ? board_path : NULL, d);
    struct sigaction s = {.sa_handler = pass_on, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &s, NULL);
    sigaction(SIGTERM, &s, NULL);
    s.sa_handler = end_mpirun;
    sigaction(SIGALRM, &s, NULL);
    if (!st) st = start(&w, &errors, d);
    if (errors >= 0) listen_to(errors, &h);
    if (mpirun_pid > 0)
        while (waitpid((pid_t)mpirun_pid, &ended, 0) < 0 && errno == EINTR) {
        }
    int status = st ? gr_exit_status(st) : WIFEXITED(ended) ? WEXITSTATUS(ended) : 1;
    if (!st && status) explain(&h, board, ranks, run, d);
    if (status > 3) status = 1;
    unlink(board_path);
    gr_str_release(&h.noise);
    for (size_t i = 0; i < w.n; i++) free(w.word[i]);
    free(w.word);
    return status;
}
