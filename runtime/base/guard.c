/* runtime/base/guard.c: start commands under a guard, and be that guard. The guard allocates nothing but what
 * a folder of /proc takes to be read, and has one thread. */
#include "runtime/base/guard.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NAME      "graphrun-guard" /* as which the program is a guard */
#define LEASH     3                /* the guard's end */
#define PATIENCE  UINT64_C(10)     /* seconds for what was killed to be gone */
#define SECOND_NS UINT64_C(1000000000)

/* ---- processes -------------------------------------------------------------------------------------------
 */

/* The name, in brackets, may hold anything: what is after the last one counts. */
static bool read_process(const char *name, gr_process *p)
{
    char path[64], text[512];
    int parent;
    snprintf(path, sizeof(path), "/proc/%.20s/stat", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0) close(fd);
    text[GR_MAX(n, 0)] = '\0';
    const char *behind = strrchr(text, ')');
    if (!behind || sscanf(behind, ") %c %d", &p->state, &parent) != 2) return false;
    p->pid = (pid_t)atoi(name);
    p->parent = (pid_t)parent;
    return true;
}

void gr_each_process(void (*see)(void *user, const gr_process *p), void *user)
{
    DIR *dir = opendir("/proc");
    gr_process p;
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (*e->d_name >= '1' && *e->d_name <= '9' && read_process(e->d_name, &p)) see(user, &p);
    if (dir) closedir(dir);
}

/* ---- the guard -------------------------------------------------------------------------------------------
 */

typedef struct watched {
    pid_t pid; /* of the command, which is waited for last: until then its number is its own */
    bool ended;
    int status;     /* as of waitpid, once it has ended */
    uint64_t until; /* when its grace is over; 0: it has none yet */
    unsigned grace_s;
} watched;

/* In the command's process. Its parent may be gone before prctl is told so. */
_Noreturn static void become(char **argv, char *setting, pid_t guard, pid_t group)
{
    sigset_t none;
    sigemptyset(&none);
    for (int i = 1; i < NSIG; i++) signal(i, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != guard) _exit(127);
    setpgid(0, group);
    if (*setting) putenv(setting);
    execvp(argv[0], argv);
    const int why = errno;
    (void)!write(LEASH, &why, sizeof(why));
    _exit(127);
}

static void kill_child(void *user, const gr_process *p)
{
    (void)user;
    if (p->parent == getpid()) kill(p->pid, SIGKILL);
}

/* Those that have ended, orphans too. false: there is no child left. */
static bool reap(watched *w)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid != w->pid) continue;
        w->ended = true;
        w->status = status;
    }
    return pid == 0;
}

/* The children, and then those who become so by their death. */
static void kill_all(watched *w)
{
    const uint64_t until = gr_now_ns() + PATIENCE * SECOND_NS;
    while (reap(w) && gr_now_ns() < until) {
        gr_each_process(kill_child, NULL);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* As the command did. */
_Noreturn static void end_as(const watched *w)
{
    sigset_t all;
    if (w->ended && WIFSIGNALED(w->status)) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0});
        sigfillset(&all);
        signal(WTERMSIG(w->status), SIG_DFL);
        sigprocmask(SIG_UNBLOCK, &all, NULL);
        raise(WTERMSIG(w->status));
    }
    _exit(w->ended && WIFEXITED(w->status) ? WEXITSTATUS(w->status) : 128 + SIGKILL);
}

static void take_signal(watched *w, int signals)
{
    struct signalfd_siginfo info;
    if (read(signals, &info, sizeof(info)) != sizeof(info)) return;
    if (info.ssi_signo == SIGCHLD)
        reap(w);
    else if (!w->ended)
        kill(w->pid, (int)info.ssi_signo);
}

/* Nobody holds the leash any more. */
static void take_leave(watched *w)
{
    w->until = gr_now_ns() + w->grace_s * SECOND_NS;
    if (!w->grace_s || w->ended) return;
    kill(w->pid, SIGTERM);
    kill(w->pid, SIGCONT);
}

static void stand_guard(watched *w, int signals)
{
    struct pollfd fds[] = {{signals, POLLIN, 0}, {LEASH, POLLIN, 0}};
    while (!w->ended && !(w->until && gr_now_ns() >= w->until)) {
        if (poll(fds, GR_LEN(fds), w->until ? 50 : -1) < 0 && errno != EINTR) break;
        if (fds[0].revents) take_signal(w, signals);
        if (fds[1].revents && !w->until) {
            take_leave(w);
            fds[1].fd = -1;
        }
    }
}

/* The streams are the command's alone: who reads its output sees its end. */
static void drop_streams(void)
{
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < LEASH; fd++) dup2(null, fd);
    if (null > LEASH) close(null);
}

/* Blocked are all signals: they are read. */
_Noreturn static void guard(char **argv, char *setting, pid_t group, unsigned grace_s)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    signal(SIGCHLD, SIG_DFL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_NAME, NAME);
    fcntl(LEASH, F_SETFD, FD_CLOEXEC);
    const int signals = signalfd(-1, &all, SFD_CLOEXEC);
    const pid_t self = getpid();
    watched w = {.pid = fork(), .grace_s = grace_s};
    if (!w.pid) become(argv, setting, self, group);
    if (w.pid < 0) _exit(127);
    drop_streams();
    stand_guard(&w, signals);
    kill_all(&w);
    end_as(&w);
}

/* Arguments: NAME GROUP GRACE SETTING COMMAND... glibc gives them to constructors, too. */
__attribute__((constructor)) static void be_guard(int argc, char **argv)
{
    if (argc < 5 || strcmp(argv[0], NAME)) return;
    guard(argv + 4, argv[3], (pid_t)atoi(argv[1]), (unsigned)atoi(argv[2]));
}

/* ---- who starts it ---------------------------------------------------------------------------------------
 */

static const char self[] = "/proc/self/exe";
static const char *own_program = self, *own_code = self;

void gr_own_path_set(const char *program, const char *code)
{
    own_program = program ? program : "/nonexistent/graphrun";
    own_code = code;
}

const char *gr_own_code(void)
{
    return own_code;
}

/* By its path, so that valgrind, for which /proc/self/exe is another program, finds it; a program that has
 * been replaced since it started has none. */
const char *gr_own_path(char *path, size_t n)
{
    if (own_program != self) return own_program;
    ssize_t len = readlink(self, path, n - 1);
    path[GR_MAX(len, 0)] = '\0';
    return access(path, X_OK) ? self : path;
}

char *gr_program_beside(const char *name)
{
    char own[4096];
    const char *path = gr_own_path(own, sizeof(own)), *slash = strrchr(path, '/');
    return gr_printf("%.*s%s", slash ? (int)(slash - path) + 1 : 0, path, name);
}

static int spawn(pid_t *pid, const char *path, char *const *argv, const gr_guarded *c, int leash)
{
    extern char **environ;
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t attr;
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP);
    posix_spawn_file_actions_init(&fa);
    int error = c->in < 0 ? posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0)
                          : posix_spawn_file_actions_adddup2(&fa, c->in, 0);
    if (!error) error = posix_spawn_file_actions_adddup2(&fa, c->out, 1);
    if (!error) error = posix_spawn_file_actions_adddup2(&fa, c->err, 2);
    if (!error) error = posix_spawn_file_actions_adddup2(&fa, leash, LEASH);
    if (!error) error = posix_spawn(pid, path, &fa, &attr, argv, environ);
    posix_spawn_file_actions_destroy(&fa);
    posix_spawnattr_destroy(&attr);
    return error;
}

static int start_on(gr_guard *out, const gr_guarded *c, int leash)
{
    char path[4096], group[16], grace[16];
    size_t n = 0;
    while (c->argv[n]) n++;
    const char **argv = gr_calloc(n + 5, sizeof(*argv));
    snprintf(group, sizeof(group), "%d", (int)c->group);
    snprintf(grace, sizeof(grace), "%u", c->grace_s);
    memcpy(argv, (const char *[]){NAME, group, grace, c->setting ? c->setting : ""}, 4 * sizeof(*argv));
    memcpy(argv + 4, c->argv, n * sizeof(*argv));
    int error = spawn(&out->pid, gr_own_path(path, sizeof(path)), (char *const *)(void *)argv, c, leash);
    free(argv);
    return error;
}

int gr_guard_start(gr_guard *out, const gr_guarded *c)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) return errno;
    int error = start_on(out, c, ends[1]);
    close(ends[1]);
    if (error)
        close(ends[0]);
    else
        out->leash = ends[0];
    return error;
}

int gr_guard_error(const gr_guard *g)
{
    int why;
    return recv(g->leash, &why, sizeof(why), MSG_DONTWAIT) == sizeof(why) ? why : 0;
}
