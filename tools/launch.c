/* tools/launch.c: start this very command on several ranks, and speak for those that die.
 *
 * mpirun does the starting. It is found in PATH; what its ranks print is passed on as it comes, and what
 * mpirun itself has to say, in blocks between lines of dashes, gives way to one message of ours. Ranks tell
 * where they are in memory that they share with the launcher; for those of other hosts rank 0 does, as it
 * hears of them.
 *
 * SIGINT and SIGTERM become SIGUSR1, which mpirun passes on and which asks ranks to stop after their
 * iteration: by the first two it would end them. It gets a process group of its own, so that a terminal's
 * Ctrl-C comes here alone. Until rank 0 has said that all ranks listen, there is nothing to stop in good
 * order, and SIGUSR1 would be lost, or end who does not know it yet: mpirun is ended with all that it has
 * started, and this process by the signal, as a run of one rank is that has not begun.
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

#define BOARD "GRAPHRUN_BOARD" /* names the file in which ranks tell where they are; empty: there is none */
#define READY "graphrun: all ranks listen" /* a line that rank 0 prints for the launcher alone */

#define GRACE 20 /* seconds that mpirun has to end in once it is asked to, or a rank has said why it must */

static const int passed[] = {SIGINT, SIGTERM, SIGUSR1}; /* what ranks are to know of */
static volatile sig_atomic_t mpirun_pid, asked, ready;
static volatile sig_atomic_t early; /* the signal that came before ranks were ready, or 0 */
static gr_sign *board;              /* [ranks], or NULL */
static char board_path[64];

/* By its line, or by the first step that it tells of: lines may be held up on their way. */
static bool is_ready(void)
{
    return ready || (board && __atomic_load_n(&board->step[0], __ATOMIC_RELAXED));
}

static void pass_on(int number)
{
    const int error = errno;
    const bool first = !asked, in_order = first && is_ready();
    asked = 1;
    if (first && !in_order) early = number;
    if (mpirun_pid > 0) kill((pid_t)mpirun_pid, in_order ? SIGUSR1 : SIGTERM);
    if (in_order)
        gr_signals_answer();
    else
        alarm(GRACE);
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

static void catch_signals(void)
{
    struct sigaction s = {.sa_handler = pass_on, .sa_flags = SA_RESTART};
    for (size_t i = 0; i < GR_LEN(passed); i++) sigaction(passed[i], &s, NULL);
    s.sa_handler = end_mpirun;
    sigaction(SIGALRM, &s, NULL);
}

/* In mpirun, before it is mpirun: what comes until it has its own handlers ends it. */
static void forget_signals(void)
{
    for (size_t i = 0; i < GR_LEN(passed); i++) signal(passed[i], SIG_DFL);
}

/* While mpirun_pid is about to change: what comes waits. */
static void hold_signals(bool hold)
{
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < GR_LEN(passed); i++) sigaddset(&set, passed[i]);
    sigprocmask(hold ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

/* ---- the board -------------------------------------------------------------------------------------------
 */

static gr_sign *map_board(int fd, uint32_t ranks)
{
    void *at = mmap(NULL, ranks * sizeof(gr_sign), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

static void make_board(uint32_t ranks)
{
    snprintf(board_path, sizeof(board_path), "/dev/shm/graphrun-XXXXXX");
    int fd = mkstemp(board_path);
    if (fd >= 0 && !ftruncate(fd, (off_t)(ranks * sizeof(*board)))) board = map_board(fd, ranks);
    if (fd >= 0) close(fd);
}

void gr_cmd_launched(uint32_t rank, uint32_t ranks)
{
    const char *path = getenv(BOARD);
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (path && !rank) (void)!write(STDERR_FILENO, READY "\n", strlen(READY "\n"));
    if (fd < 0) return;
    gr_sign *signs = map_board(fd, ranks);
    close(fd);
    if (signs) gr_watch_tell(signs, rank, ranks);
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
    if (!feof(f)) gr_out_of_memory(0); /* or a word of the command would be missing */
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

static gr_status make_command(words *w, uint32_t ranks, const char *hosts, const char *path, gr_diag *d)
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
    char *set = gr_printf(BOARD "=%s", path);
    add(w, "-x");
    add(w, set);
    free(set);
    gr_status st = add_own_command(w, d);
    add(w, NULL);
    return st;
}

/* Signals are held. */
static gr_status start(const words *w, int *errors, gr_diag *d)
{
    int fds[2], failed[2], why = 0;
    if (pipe2(fds, O_CLOEXEC) || pipe2(failed, O_CLOEXEC))
        return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "cannot make a pipe: %s", strerror(errno));
    pid_t pid = fork();
    if (!pid) {
        setpgid(0, 0);
        forget_signals();
        hold_signals(false);
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

/* Another rank's words may stand before it where their line has not ended. */
static bool says_ready(char *line)
{
    char *word = strstr(line, READY "\n");
    if (!word) return false;
    *word = '\0';
    return true;
}

static void listen_to(int fd, heard *h)
{
    FILE *f = fdopen(fd, "r");
    char *line = NULL;
    size_t cap = 0;
    bool block = false;
    if (!f) gr_out_of_memory(0); /* which ends mpirun, too: nobody would read what it says */
    while (getline(&line, &cap, f) > 0) {
        if (!ready) ready = says_ready(line);
        if (is_ruler(line)) {
            block = !block;
            continue;
        }
        if (block || early || is_of_mpi(line)) {
            study(h, line);
            gr_str_puts(&h->noise, line);
            continue;
        }
        fputs(line, stderr);
        if (h->spoken || !strstr(line, "error: ")) continue;
        h->spoken = true;
        alarm(GRACE);
    }
    if (!feof(f)) gr_out_of_memory(0);
    free(line);
    fclose(f);
}

/* What mpirun said, line by line. */
static void note_noise(const char *noise, gr_diag *d)
{
    for (size_t n; *noise; noise += n + (noise[n] == '\n')) {
        n = strcspn(noise, "\n");
        if (n) gr_diag_note(d, (gr_loc){0}, "it said: %.*s", (int)n, noise);
    }
}

static void explain(const heard *h, uint32_t ranks, const char *run, gr_diag *d)
{
    if (h->spoken) return;
    if (!h->died) {
        gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "mpirun ended the ranks%s",
                      h->noise.len ? "" : ": it does not say why");
        if (h->noise.len) note_noise(h->noise.text, d);
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

/* Its exit status, as waitpid gives it. Nobody sends it signals once its number may be another's. */
static int await_mpirun(void)
{
    const pid_t pid = (pid_t)mpirun_pid;
    siginfo_t info;
    int ended = 0;
    if (pid <= 0) return 0;
    while (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
    }
    mpirun_pid = 0;
    alarm(0);
    waitpid(pid, &ended, 0);
    return ended;
}

int gr_cmd_launch(uint32_t ranks, const char *hosts, const char *run, gr_diag *d)
{
    words w = {0};
    heard h = {0};
    int errors = -1;
    if (!gr_comm_has_mpi())
        return gr_exit_status(gr_diag_error(d, (gr_loc){0}, GR_E_FAILED,
                                            "%u ranks need MPI, which this build of graphrun has not "
                                            "(meson setup -Dmpi=enabled; Debian: libopenmpi-dev)",
                                            ranks));
    catch_signals();
    make_board(ranks);
    gr_status st = make_command(&w, ranks, hosts, board ? board_path : "", d);
    hold_signals(true);
    if (!st && !early) st = start(&w, &errors, d);
    hold_signals(false);
    if (errors >= 0) listen_to(errors, &h);
    const int ended = await_mpirun();
    int status = st ? gr_exit_status(st) : WIFEXITED(ended) ? WEXITSTATUS(ended) : 1;
    if (!st && status && !early) explain(&h, ranks, run, d);
    if (status > 3) status = 1;
    unlink(board_path);
    gr_str_release(&h.noise);
    for (size_t i = 0; i < w.n; i++) free(w.word[i]);
    free(w.word);
    if (!st && early) {
        forget_signals();
        raise((int)early);
    }
    return status;
}
