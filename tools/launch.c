/* tools/launch.c: start this command on several ranks, and report those that die.
 *
 * mpirun does the starting, under a guard (runtime/base/guard.h), so that nothing outlives this process. It
 * is found in PATH; what its ranks print is passed on as it comes, and what mpirun itself prints, in blocks
 * between lines of dashes, is replaced by one message of ours. Ranks tell where they are in memory that they
 * share with the launcher; for those of other hosts rank 0 does, as it hears of them. Ranks watch each other
 * while they are joined (runtime/comm/comm_mpi.c); whether mpirun, or a rank that nobody else watches, has
 * been stopped is looked up here, in /proc.
 *
 * SIGINT, SIGTERM and SIGHUP become SIGUSR1, which mpirun passes on and which asks ranks to stop after their
 * iteration: by the first two it would end them. It has a process group of its own, so that a terminal's
 * Ctrl-C comes here alone. Until rank 0 has said that all ranks listen, no run can stop in good order:
 * SIGUSR1 would be lost, or would end a rank that does not handle it yet. So mpirun is ended with all that it
 * has started, and this process by the signal, as a run of one rank that has not begun.
 */
#include "tools/cmd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/comm/comm.h"
#include "runtime/base/guard.h"
#include "runtime/base/limits.h"
#include "runtime/base/signals.h"
#include "runtime/comm/watchdog.h"

#define BOARD "GRAPHRUN_BOARD" /* names the file in which ranks tell where they are; empty: there is none */
#define READY "graphrun: all ranks listen" /* a line that rank 0 prints for the launcher alone */

#define GRACE   20 /* seconds that mpirun has to end in once it is asked to, or a rank has said why it must */
#define TIDY_UP 5  /* and after SIGTERM, before what is left is killed */
#define LOOK_NS UINT64_C(1000000000)

static const int passed[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP}; /* what ranks are to know of */
static volatile sig_atomic_t guard_pid, asked, ready, overdue;
static volatile sig_atomic_t early; /* the signal that came before ranks were ready, or 0 */
static gr_sign *board;              /* [ranks] */
static char board_path[64];

/* By its line, or by what it tells of itself: lines may be held up on their way. */
static bool is_ready(void)
{
    return ready || (board && __atomic_load_n(&board->watched, __ATOMIC_RELAXED));
}

/* A second SIGHUP is the first one's: the shell and the kernel send one each. */
static void pass_on(int number)
{
    const int error = errno;
    const bool first = !asked, in_order = first && is_ready();
    if (number == SIGHUP && !first) return;
    asked = 1;
    if (first && !in_order) early = number;
    if (guard_pid > 0) kill((pid_t)guard_pid, in_order ? SIGUSR1 : SIGTERM);
    if (in_order)
        gr_signals_answer();
    else
        alarm(GRACE);
    errno = error;
}

/* mpirun waits for ever for a host that is out of reach. */
static void give_up_waiting(int number)
{
    (void)number;
    overdue = 1;
}

static void catch_signals(void)
{
    struct sigaction s = {.sa_handler = pass_on, .sa_flags = SA_RESTART};
    for (size_t i = 0; i < GR_LEN(passed); i++)
        if (passed[i] != SIGHUP || !gr_signals_ignored(SIGHUP)) sigaction(passed[i], &s, NULL);
    s.sa_handler = give_up_waiting;
    sigaction(SIGALRM, &s, NULL);
}

/* While guard_pid is about to change: what comes waits. */
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

/* Its bytes are taken here: where there are none left, who writes to them later dies by SIGBUS. */
static gr_status make_board(uint32_t ranks, gr_diag *d)
{
    const size_t bytes = ranks * sizeof(*board);
    snprintf(board_path, sizeof(board_path), "/dev/shm/graphrun-XXXXXX");
    int fd = mkstemp(board_path), error = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)bytes);
    if (!error && !(board = map_board(fd, ranks))) error = errno;
    if (fd >= 0) close(fd);
    if (!error) return GR_OK;
    if (fd >= 0) unlink(board_path);
    return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED,
                         "cannot make '%s' of %zu bytes, memory in which ranks tell where they are: %s",
                         board_path, bytes, strerror(error));
}

static void drop_board(uint32_t ranks)
{
    if (!board) return;
    if (board_path[0]) unlink(board_path);
    munmap(board, ranks * sizeof(*board));
    board = NULL;
}

static uint32_t number_in_env(const char *name)
{
    const char *text = getenv(name);
    return text ? (uint32_t)strtoul(text, NULL, 10) : 0;
}

void gr_cmd_launched(void)
{
    const char *path = getenv(BOARD);
    const uint32_t rank = number_in_env("OMPI_COMM_WORLD_RANK"),
                   ranks = number_in_env("OMPI_COMM_WORLD_SIZE");
    int fd = path && ranks ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    gr_sign *signs = map_board(fd, ranks);
    close(fd);
    if (signs) gr_watchdog_tell(signs, rank, ranks);
    gr_watchdog_at(GR_WATCHDOG_BEFORE, false);
}

void gr_cmd_listens(uint32_t rank)
{
    if (getenv(BOARD) && !rank) (void)!write(STDERR_FILENO, READY "\n", strlen(READY "\n"));
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

/* On one host nothing of the run can be reached from elsewhere: ranks speak by shared memory, mpirun and what
 * NCCL starts with by the loopback device. What the environment says already stays as it is. */
static void stay_at_home(void)
{
    setenv("OMPI_MCA_btl", "self,vader", 0);
    if (!getenv("OMPI_MCA_oob_tcp_if_exclude")) setenv("OMPI_MCA_oob_tcp_if_include", "lo", 0);
    setenv("OMPI_MCA_oob_tcp_disable_ipv6_family", "1", 0);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
}

static void add_setting(words *w, const char *name, const char *value)
{
    char *set = gr_printf("%s=%s", name, value);
    add(w, "-x");
    add(w, set);
    free(set);
}

static gr_status make_command(words *w, uint32_t ranks, const char *hosts, gr_diag *d)
{
    const char *silence = getenv(GR_WATCHDOG_SILENCE), *supervised = getenv(GR_SUPERVISED);
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
    add_setting(w, BOARD, board_path);
    if (silence) add_setting(w, GR_WATCHDOG_SILENCE, silence);
    if (supervised) add_setting(w, GR_SUPERVISED, supervised);
    gr_status st = add_own_command(w, d);
    add(w, NULL);
    return st;
}

/* Signals are held. */
static gr_status start(const words *w, bool at_home, gr_guard *guard, int *errors, gr_diag *d)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC))
        return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "cannot make a pipe: %s", strerror(errno));
    char *setting = at_home ? gr_comm_loopback_setting() : NULL;
    const int error = gr_guard_start(guard, &(gr_guarded){.setting = setting,
                                                          .argv = (const char *const *)w->word,
                                                          .in = STDIN_FILENO,
                                                          .out = STDOUT_FILENO,
                                                          .err = fds[1],
                                                          .grace_s = TIDY_UP});
    free(setting);
    close(fds[1]);
    *errors = fds[0];
    if (error) return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "cannot start mpirun: %s", strerror(error));
    guard_pid = guard->pid;
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    return GR_OK;
}

/* ---- what is said ----------------------------------------------------------------------------------------
 */

typedef struct heard {
    gr_str noise; /* what mpirun said itself */
    bool spoken;  /* a rank, or graphrun on its behalf, said what is wrong */
    unsigned rank, signal;
    char host[64];
    bool died;
    bool block;  /* between lines of dashes */
    gr_str line; /* one that has not ended yet */
    bool over;   /* what mpirun says from now on is of our doing */
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

static void take_line(heard *h, char *line)
{
    if (!ready) ready = says_ready(line);
    if (h->over) return;
    if (is_ruler(line)) {
        h->block = !h->block;
        return;
    }
    if (h->block || early || is_of_mpi(line)) {
        study(h, line);
        gr_str_puts(&h->noise, line);
        return;
    }
    fputs(line, stderr);
    if (h->spoken || !strstr(line, "error: ")) return;
    h->spoken = true;
    alarm(GRACE);
}

/* Whole lines of what has come; false: there is no more, or none at the moment. */
static bool take_lines(int fd, heard *h)
{
    char block[4096];
    const ssize_t n = read(fd, block, sizeof(block));
    for (ssize_t i = 0; i < n; i++) {
        if (block[i]) gr_str_putc(&h->line, block[i]);
        if (block[i] != '\n') continue;
        take_line(h, h->line.text);
        h->line.len = 0;
    }
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

/* What mpirun said, line by line. */
static void note_noise(const char *noise, gr_diag *d)
{
    for (size_t n; *noise; noise += n + (noise[n] == '\n')) {
        n = strcspn(noise, "\n");
        if (n) gr_diag_note(d, (gr_loc){0}, "it said: %.*s", (int)n, noise);
    }
}

static void explain(const heard *h, uint32_t ranks, const char *run, const char *ended, gr_diag *d)
{
    if (h->spoken) return;
    if (!h->died) {
        gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "%s the ranks%s", ended,
                      h->noise.len ? "" : ": it does not say why");
        if (h->noise.len) note_noise(h->noise.text, d);
        return;
    }
    gr_sign at = {.step = "start"};
    if (h->rank < ranks) at = board[h->rank];
    gr_diag_error(
        d, (gr_loc){0}, GR_E_FAILED,
        "rank %u on host %s ended by signal %u (%s) in iteration %u, step '%s': all ranks are ended%s%s",
        h->rank, h->host, h->signal, strsignal((int)h->signal), at.iteration, at.step[0] ? at.step : "start",
        run ? "; the run goes on with --resume " : "", run ? run : "");
}

/* ---- who has stopped --------------------------------------------------------------------------------------
 */

typedef struct lookout {
    pid_t guard, mpirun;
    pid_t stopped;      /* mpirun, or what it has started: 0, none */
    pid_t found;        /* by the look that goes on */
    uint64_t since_ns;  /* it has been stopped */
    uint64_t looked_ns; /* the last time */
    uint64_t left_ns;   /* since when all ranks of this host have ended; 0: they have not */
    uint64_t began_ns;
    uint32_t ranks;
    bool abroad; /* on other hosts, too */
    const char *run;
} lookout;

static void see(void *user, const gr_process *p)
{
    lookout *l = user;
    if (p->parent == l->guard && !l->mpirun) l->mpirun = p->pid;
    const bool ours = p->parent == l->guard || (l->mpirun && p->parent == l->mpirun);
    if (ours && (p->state == 'T' || p->state == 't') && (!l->found || p->pid == l->stopped))
        l->found = p->pid;
}

/* By its environment; `ranks` where it is none. */
static uint32_t rank_of(pid_t pid, uint32_t ranks)
{
    static const char name[] = "OMPI_COMM_WORLD_RANK=";
    uint32_t rank = ranks;
    char *text = NULL, *path = gr_printf("/proc/%d/environ", (int)pid);
    size_t n = 0;
    FILE *f = fopen(path, "r");
    while (f && rank == ranks && getdelim(&text, &n, 0, f) > 0)
        if (!strncmp(text, name, strlen(name))) rank = (uint32_t)strtoul(text + strlen(name), NULL, 10);
    if (f) fclose(f);
    free(text);
    free(path);
    return GR_MIN(rank, ranks);
}

static void describe(const lookout *l, uint32_t rank, uint32_t seconds, gr_str *out)
{
    char host[64] = "";
    gethostname(host, sizeof(host) - 1);
    const char *what = l->stopped == l->mpirun ? "mpirun" : "what mpirun has started";
    if (rank < l->ranks)
        gr_str_printf(out, "rank %u", rank);
    else
        gr_str_puts(out, what);
    gr_str_printf(out, " on host %s has been stopped (process %d) for %u s", host, (int)l->stopped, seconds);
    if (rank >= l->ranks) rank = 0;
    const gr_sign *at = &board[rank];
    gr_str_printf(
        out, l->stopped == l->mpirun ? ", rank 0 in iteration %u, step '%s'" : " in iteration %u, step '%s'",
        at->iteration, at->step[0] ? at->step : GR_WATCHDOG_BEFORE);
}

/* A rank that others watch they end themselves, and know more of it: it has a little longer here. */
static char *who_has_stopped(const lookout *l, uint64_t now)
{
    const uint32_t rank = l->stopped ? rank_of(l->stopped, l->ranks) : 0;
    if (!l->stopped) return NULL;
    const bool watched = rank < l->ranks && board[rank].watched;
    const uint32_t limit = watched ? gr_watchdog_silence_alone() : gr_watchdog_silence();
    const uint32_t seconds = (uint32_t)((now - l->since_ns) / LOOK_NS);
    gr_str text = {0};
    if (seconds >= limit) describe(l, rank, seconds, &text);
    return text.text;
}

/* Ranks of this host that have begun; and those of them that are at their end. */
static uint32_t count_begun(const lookout *l, uint32_t *left)
{
    uint32_t begun = 0;
    *left = 0;
    for (uint32_t r = 0; r < l->ranks; r++) {
        begun += board[r].step[0] != '\0';
        *left += !strcmp(board[r].step, GR_WATCHDOG_LEFT);
    }
    return begun;
}

static bool all_have_left(const lookout *l)
{
    uint32_t left;
    return count_begun(l, &left) == left && left > 0;
}

/* Before mpirun has reached all hosts it starts no rank on any. */
static char *who_does_not_begin(const lookout *l, uint64_t now)
{
    uint32_t left;
    if (!l->abroad || is_ready() || count_begun(l, &left)) return NULL;
    if ((now - l->began_ns) / LOOK_NS < gr_watchdog_silence_alone()) return NULL;
    return gr_printf(
        "mpirun has started no rank for %u s: a host is slow or out of reach, or what mpirun has "
        "started there has stopped (" GR_WATCHDOG_SILENCE "=%u in the environment waits twice as long)",
        gr_watchdog_silence_alone(), 2 * gr_watchdog_silence());
}

static char *who_does_not_end(const lookout *l, uint64_t now)
{
    if (!l->left_ns || (now - l->left_ns) / LOOK_NS < gr_watchdog_silence_alone()) return NULL;
    return gr_printf("mpirun has not ended for %u s, though ranks have: it, or a daemon of it on another "
                     "host, has stopped",
                     gr_watchdog_silence_alone());
}

/* All ranks of this host have it by now: what is killed from here on leaves nothing in /dev/shm. */
static void unname_board(void)
{
    if (!board_path[0] || !is_ready()) return;
    unlink(board_path);
    board_path[0] = '\0';
}

/* Who could not look for a while does not know what was meanwhile. Why the run must end; the caller frees it.
 */
static char *look(lookout *l)
{
    const uint64_t now = gr_now_ns();
    if (now - l->looked_ns < LOOK_NS) return NULL;
    const bool slept = now - l->looked_ns > 5 * LOOK_NS;
    l->looked_ns = now;
    l->found = 0;
    unname_board();
    gr_each_process(see, l);
    if (l->found != l->stopped || slept) l->since_ns = now;
    l->stopped = l->found;
    if (!all_have_left(l))
        l->left_ns = 0;
    else if (!l->left_ns || slept)
        l->left_ns = now;
    char *why = who_has_stopped(l, now);
    if (!why) why = who_does_not_begin(l, now);
    return why ? why : who_does_not_end(l, now);
}

/* ---- from start to end ------------------------------------------------------------------------------------
 */

static bool has_ended(pid_t pid)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid == pid;
}

static void let_go(gr_guard *guard)
{
    if (guard->leash >= 0) close(guard->leash);
    guard->leash = -1;
}

static void end_for(heard *h, const char *why, const char *run)
{
    if (!h->spoken)
        fprintf(stderr, "graphrun: error: %s: all ranks are ended%s%s\n", why,
                run ? "; the run goes on with --resume " : "", run ? run : "");
    h->spoken = h->over = true;
    overdue = 1;
}

/* What mpirun and its ranks say and do, until they have ended: then the guard's end of the leash closes. */
static void attend(gr_guard *guard, int errors, heard *h, lookout *l)
{
    struct pollfd from[] = {{errors, POLLIN, 0}, {guard->leash, 0, 0}};
    while (!from[1].revents && !has_ended(guard->pid)) {
        poll(from, GR_LEN(from), 200);
        if (from[0].revents && !take_lines(errors, h)) from[0].fd = -1;
        char *why = guard->leash >= 0 ? look(l) : NULL;
        if (why) end_for(h, why, l->run);
        if (overdue && guard->leash >= 0) {
            kill(guard->pid, SIGCONT); /* in case that it has been stopped */
            let_go(guard);
            from[1] = (struct pollfd){.fd = -1};
        }
        free(why);
    }
    while (from[0].fd >= 0 && poll(from, 1, 0) > 0 && take_lines(errors, h)) continue;
    if (h->line.len) take_line(h, h->line.text);
}

/* Its exit status, as waitpid gives it. Nobody sends it signals once its number may be another's. */
static int await_guard(pid_t pid)
{
    int ended = 0;
    hold_signals(true);
    guard_pid = 0;
    hold_signals(false);
    alarm(0);
    waitpid(pid, &ended, 0);
    return ended;
}

static gr_status not_started(int error, gr_diag *d)
{
    if (error == ENOENT)
        return gr_diag_error(
            d, (gr_loc){0}, GR_E_FAILED,
            "several ranks are started by mpirun, which is not in PATH (Debian: openmpi-bin)");
    return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "cannot start mpirun: %s", strerror(error));
}

/* Its exit status, and why it ended where it did not end well. */
static int see_through(gr_guard *guard, int errors, lookout *l, gr_diag *d)
{
    heard h = {0};
    char *how = NULL;
    l->guard = guard->pid;
    l->looked_ns = l->began_ns = gr_now_ns();
    attend(guard, errors, &h, l);
    const int ended = await_guard(guard->pid), status = WIFEXITED(ended) ? WEXITSTATUS(ended) : 1;
    const int error = status == 127 && guard->leash >= 0 ? gr_guard_error(guard) : 0;
    if (WIFSIGNALED(ended))
        how = gr_printf("mpirun ended by signal %d (%s), and", WTERMSIG(ended), strsignal(WTERMSIG(ended)));
    if (error) {
        gr_status st = not_started(error, d);
        (void)st;
    } else if (status && !early) {
        explain(&h, l->ranks, l->run, how ? how : "mpirun ended", d);
    }
    let_go(guard);
    free(how);
    gr_str_release(&h.noise);
    gr_str_release(&h.line);
    return status > GR_EXIT_DIVERGED || (h.over && !status) ? 1 : status;
}

static void release_words(words *w)
{
    for (size_t i = 0; i < w->n; i++) free(w->word[i]);
    free(w->word);
}

static gr_status prepare(words *w, uint32_t ranks, const char *hosts, gr_diag *d)
{
    const char *silence = getenv(GR_WATCHDOG_SILENCE);
    if (!gr_comm_has_mpi())
        return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED,
                             "%u ranks need MPI, which this build of graphrun has not "
                             "(meson setup -Dmpi=enabled; Debian: libopenmpi-dev)",
                             ranks);
    gr_status st = silence && *silence ? gr_watchdog_set_silence(silence, d) : GR_OK;
    if (!st) st = make_board(ranks, d);
    if (!st && !hosts) stay_at_home();
    return st ? st : make_command(w, ranks, hosts, d);
}

int gr_cmd_launch(uint32_t ranks, const char *hosts, const char *run, gr_diag *d)
{
    words w = {0};
    gr_guard guard = {.leash = -1};
    int errors = -1;
    lookout l = {.ranks = ranks, .abroad = hosts != NULL, .run = run};
    catch_signals();
    gr_status st = prepare(&w, ranks, hosts, d);
    hold_signals(true);
    if (!st && !early) st = start(&w, !hosts, &guard, &errors, d);
    hold_signals(false);
    int status = gr_exit_status(st);
    if (guard.pid) status = see_through(&guard, errors, &l, d);
    if (errors >= 0) close(errors);
    drop_board(ranks);
    release_words(&w);
    if (!st && early) {
        signal(early, SIG_DFL);
        raise((int)early);
    }
    return status;
}
