/* runtime/base/guard.h: commands that end with this process, whatever they do and however it ends.
 *
 * Between this process and a command stands a guard, a small process that holds one end of a socket; this one
 * alone holds the other end, the leash. When the leash closes, because the caller has closed it or because
 * this process is gone (kill -9 and the out-of-memory killer included), the guard kills the command and all
 * that it has started. What has left its process group or its session is among these: the guard is a child
 * subreaper (prctl(2)), so that the kernel makes orphans its children. When the command ends by itself, what
 * it has left behind is killed alike, and the guard ends as it did: with its exit status, or by its signal.
 *
 * The guard is this very program, started again under another name: it is spawned and not forked, so that a
 * large process is not copied, and needs no file beside the program. It takes over before main is entered.
 *
 * Limits: a process in an uninterruptible wait dies when the kernel lets it; the guard waits 10 s for it. Who
 * kills the guard itself with SIGKILL kills the command, and not what that has started.
 *
 * Threads: any.
 */
#ifndef GR_RUNTIME_BASE_GUARD_H
#define GR_RUNTIME_BASE_GUARD_H

#include <sys/types.h>

#include "runtime/base/base.h"

typedef struct gr_guard {
    pid_t pid; /* of the guard: to be waited for; signals to it but SIGKILL and SIGSTOP are the command's */
    int leash; /* to be closed: ends the command */
} gr_guard;

typedef struct gr_guarded {
    const char *const *argv; /* the command, found in PATH, and its arguments; NULL after the last */
    const char *setting;     /* NAME=VALUE, of its environment alone; NULL: none */
    int in, out, err;        /* its standard streams; in -1: /dev/null */
    pid_t group;             /* process group to join; 0: one of its own */
    unsigned grace_s; /* seconds that it has after SIGTERM when the leash closes; 0: it is killed at once */
} gr_guarded;

/* 0, or the errno of what failed. The command begins with no signal blocked or ignored. */
int gr_guard_start(gr_guard *out, const gr_guarded *c);

/* Of a guard that has ended with status 127: the errno because of which the command was never started, or 0.
 */
int gr_guard_error(const gr_guard *g);

/* The file of this program, to be started again: `path`, or /proc/self/exe where the file has been replaced.
 */
const char *gr_own_path(char *path, size_t n);
/* The path of a program that lies beside that file; free with free(). */
char *gr_program_beside(const char *name);
/* Where this is a library in another program: the program to be started in its place, and the file that this
 * code is of; texts that stay. Set before anything else here is called. program NULL: there is none, and no
 * command can be started. */
void gr_own_path_set(const char *program, const char *code);
/* The file that this code is of. */
const char *gr_own_code(void);

/* What /proc says of a process. */
typedef struct gr_process {
    pid_t pid, parent;
    char state; /* as in proc(5): T stopped, t stopped by a tracer, Z a zombie */
} gr_process;

/* Calls see for each process that there is. */
void gr_each_process(void (*see)(void *user, const gr_process *p), void *user);

#endif
