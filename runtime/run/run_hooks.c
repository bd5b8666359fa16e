/* runtime/run/run_hooks.c: commands that a graph has run behind its events (`on:`). They run one after
 * another, beside the iterations, each for so long at most; that one fails is said, and is never the run's
 * failure. */
#include "runtime/run/run_parts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/guard.h"

enum { MOST_DUE = 256 }; /* commands that wait for others: what takes longer than its events are apart */

typedef struct due {
    const gr_hook *hook;
    uint32_t step;
    char *path, *message;
} due;

struct gr_run_hooks {
    due *queue; /* [next, n); that at next runs where runs is set */
    size_t next, n, cap;
    bool runs, dropped;
    gr_guard guard;
    uint64_t since_ns;
};

static const char *const events[] = {
#define X(name, text) text,
    GR_EVENT_MAP(X)
#undef X
};

void gr_run_event(gr_running *r, gr_event e, uint32_t step, const char *path, const char *message)
{
    if (gr_comm_rank(r->o->comm) || !r->g->n_hooks) return;
    if (!r->hooks_due) r->hooks_due = gr_calloc(1, sizeof(*r->hooks_due));
    struct gr_run_hooks *h = r->hooks_due;
    for (size_t i = 0; i < r->g->n_hooks; i++) {
        if (r->g->hooks[i].event != e) continue;
        h->dropped = h->dropped || h->n - h->next >= MOST_DUE;
        if (h->n - h->next >= MOST_DUE) continue;
        due x = {&r->g->hooks[i], step, gr_strdup(path), gr_strdup(message ? message : "")};
        GR_PUSH(h->queue, h->n, h->cap, x);
    }
}

static void warn(const due *x, const char *what, gr_diag *d)
{
    gr_diag_warn(d, x->hook->at, "the command of 'on: %s' at iteration %u %s: %s", events[x->hook->event],
                 x->step, what, x->hook->command);
}

/* $1 the event, $2 the iteration, $3 the checkpoint's folder, or the run's; $4 what failed. */
static void start(struct gr_run_hooks *h, gr_diag *d)
{
    const due *x = &h->queue[h->next];
    char step[16];
    snprintf(step, sizeof(step), "%u", x->step);
    const char *argv[] = {"/bin/sh", "-c",    x->hook->command, "graphrun", events[x->hook->event],
                          step,      x->path, x->message,       NULL};
    const int error = gr_guard_start(
        &h->guard, &(gr_guarded){.argv = argv, .in = -1, .out = STDERR_FILENO, .err = STDERR_FILENO});
    h->runs = !error;
    h->since_ns = gr_now_ns();
    if (error) warn(x, strerror(error), d);
}

static void finish(struct gr_run_hooks *h)
{
    free(h->queue[h->next].path);
    free(h->queue[h->next].message);
    h->next++;
    h->runs = false;
}

static void say_ended(const due *x, int status, gr_diag *d)
{
    char text[64];
    if (WIFEXITED(status) && !WEXITSTATUS(status)) return;
    if (WIFEXITED(status))
        snprintf(text, sizeof(text), "ended with status %d", WEXITSTATUS(status));
    else
        snprintf(text, sizeof(text), "was ended by signal %d", WTERMSIG(status));
    warn(x, text, d);
}

/* Whether it goes on. */
static bool look_at(struct gr_run_hooks *h, double timeout, gr_diag *d)
{
    const due *x = &h->queue[h->next];
    int status = 0;
    const bool ended = waitpid(h->guard.pid, &status, WNOHANG) == h->guard.pid;
    const bool late = (double)(gr_now_ns() - h->since_ns) * 1e-9 > timeout;
    if (!ended && !late) return true;
    close(h->guard.leash);
    if (!ended) waitpid(h->guard.pid, &status, 0);
    if (ended)
        say_ended(x, status, d);
    else
        warn(x, "took longer than its timeout, and was ended", d);
    finish(h);
    return false;
}

bool gr_run_hooks_go_on(gr_running *r, gr_diag *d)
{
    struct gr_run_hooks *h = r->hooks_due;
    if (!h || (h->runs && look_at(h, r->g->hook_timeout, d))) return h != NULL;
    while (!h->runs && h->next < h->n) {
        start(h, d);
        if (!h->runs) finish(h);
    }
    if (h->next == h->n) h->next = h->n = 0;
    return h->runs;
}

void gr_run_hooks_end(gr_running *r, gr_diag *d)
{
    struct gr_run_hooks *h = r->hooks_due;
    while (gr_run_hooks_go_on(r, d)) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    if (!h) return;
    if (h->dropped)
        gr_diag_warn(d, (gr_loc){0}, "commands of 'on' were left out: %d were waiting for those before them",
                     MOST_DUE);
    free(h->queue);
    free(h);
    r->hooks_due = NULL;
}
