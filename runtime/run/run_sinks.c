/* runtime/run/run_sinks.c: trackers that are told of a run (`log: {wandb: ...}`): a worker process each,
 * which reads the lines of metrics.jsonl. One that fails is said once and told nothing more; the run goes on.
 */
#include "runtime/run/run_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/guard.h"
#include "runtime/io/metrics.h"

enum {
    MOST_BYTES = 8 << 20, /* that a worker has not read: it hangs, or its network does */
    END_SECONDS = 120     /* for it to send what it has, when the run ends */
};

typedef struct sink {
    const gr_sink *of;
    gr_guard guard;
    int pipe; /* -1: it is told nothing more */
    gr_str waiting;
    char *log; /* what it prints */
} sink;

struct gr_run_sinks {
    sink *of;
    size_t n;
};

/* ---- what it is told -------------------------------------------------------------------------------------
 */

static void first_line(const gr_running *r, const sink *s, gr_str *out)
{
    json_t *map = gr_value_json(s->of->settings);
    char *settings = json_dumps(map, JSON_COMPACT | JSON_SORT_KEYS);
    gr_str_puts(out, "{\"tracker\": ");
    gr_json_add_text(out, s->of->name, strlen(s->of->name));
    gr_str_printf(out, ", \"settings\": %s, \"run\": ", settings);
    gr_json_add_text(out, r->o->out, strlen(r->o->out));
    gr_str_puts(out, ", \"graph\": ");
    gr_json_add_text(out, r->g->name, strlen(r->g->name));
    gr_str_puts(out, ", \"text\": ");
    gr_json_add_text(out, r->all->plan->graph_text, strlen(r->all->plan->graph_text));
    gr_str_printf(out, ", \"step\": %u, \"steps\": %u, \"seed\": %llu, \"numerics\": \"%s\"}\n",
                  r->session.step, r->session.steps, (unsigned long long)r->session.seed,
                  r->all->plan->numerics);
    free(settings);
    json_decref(map);
}

/* What the pipe takes now. false: nobody reads it. */
static bool put(sink *s)
{
    size_t done = 0;
    ssize_t n = 0;
    while (done < s->waiting.len && n >= 0) {
        n = write(s->pipe, s->waiting.text + done, s->waiting.len - done);
        if (n > 0) done += (size_t)n;
    }
    const bool gone = n < 0 && errno != EAGAIN && errno != EINTR;
    if (done) memmove(s->waiting.text, s->waiting.text + done, s->waiting.len - done);
    s->waiting.len -= done;
    return !gone;
}

/* ---- how it ends -----------------------------------------------------------------------------------------
 */

static void drop(sink *s, const char *what, gr_diag *d)
{
    gr_diag_warn(d, s->of->at,
                 "the worker of 'log: %s' %s: it is told nothing more, and the run goes on; %s has what it "
                 "said",
                 s->of->name, what, s->log);
    close(s->pipe);
    close(s->guard.leash);
    waitpid(s->guard.pid, NULL, 0);
    s->pipe = -1;
}

static void tell(sink *s, gr_diag *d)
{
    int status = 0;
    char text[64];
    if (s->pipe < 0) return;
    if (waitpid(s->guard.pid, &status, WNOHANG) == s->guard.pid) {
        snprintf(text, sizeof(text), WIFEXITED(status) ? "ended with status %d" : "was ended by signal %d",
                 WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
        drop(s, text, d);
    } else if (!put(s)) {
        drop(s, "reads no more", d);
    } else if (s->waiting.len > MOST_BYTES) {
        drop(s, "does not read", d);
    }
}

/* Its input ends, and it may send what it has. */
static void end(sink *s, gr_diag *d)
{
    const uint64_t until = gr_now_ns() + END_SECONDS * UINT64_C(1000000000);
    while (s->pipe >= 0 && s->waiting.len && gr_now_ns() < until) {
        tell(s, d);
        if (s->pipe >= 0) poll(&(struct pollfd){.fd = s->pipe, .events = POLLOUT}, 1, 100);
    }
    if (s->pipe < 0) return;
    int status = 0;
    close(s->pipe);
    s->pipe = open("/dev/null", O_WRONLY | O_CLOEXEC);
    pid_t ended = 0;
    while (!ended && gr_now_ns() < until) {
        ended = waitpid(s->guard.pid, &status, WNOHANG);
        if (!ended) poll(NULL, 0, 20);
    }
    if (!ended)
        drop(s, "was still sending two minutes behind the end, and was ended", d);
    else if (!WIFEXITED(status) || WEXITSTATUS(status))
        drop(s, "failed at the end", d);
    else
        close(s->guard.leash), close(s->pipe);
}

/* ---- started ---------------------------------------------------------------------------------------------
 */

/* Beside the program. */
static char *command_of(const char *name)
{
    char own[4096];
    char *path = gr_strdup(gr_own_path(own, sizeof(own))), *slash = strrchr(path, '/');
    if (slash) *slash = '\0';
    char *command = gr_printf("exec \"${GRAPHRUN_PYTHON:-python3}\" '%s/graphrun-log' %s", path, name);
    free(path);
    return command;
}

static int start(sink *s)
{
    int ends[2];
    char *command = command_of(s->of->name);
    const char *argv[] = {"/bin/sh", "-c", command, NULL};
    const int log = open(s->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    int error = log < 0 || pipe2(ends, O_CLOEXEC) ? errno : 0;
    if (!error) {
        error = gr_guard_start(&s->guard, &(gr_guarded){.argv = argv, .in = ends[0], .out = log, .err = log});
        close(ends[0]);
        if (error) close(ends[1]);
    }
    if (log >= 0) close(log);
    if (!error) fcntl(s->pipe = ends[1], F_SETFL, O_NONBLOCK);
    free(command);
    return error;
}

void gr_run_sinks_open(gr_running *r, gr_diag *d)
{
    if (gr_comm_rank(r->o->comm) || !r->g->n_sinks) return;
    r->sinks = gr_calloc(1, sizeof(*r->sinks));
    r->sinks->of = gr_calloc(r->g->n_sinks, sizeof(*r->sinks->of));
    r->sinks->n = r->g->n_sinks;
    for (size_t i = 0; i < r->sinks->n; i++) {
        sink *s = &r->sinks->of[i];
        *s = (sink){.of = &r->g->sinks[i], .pipe = -1};
        s->log = gr_printf("%s/log.%s.txt", r->o->out, s->of->name);
        const int error = start(s);
        if (error)
            gr_diag_warn(d, s->of->at, "the worker of 'log: %s' cannot be started: %s", s->of->name,
                         strerror(error));
        else
            first_line(r, s, &s->waiting);
    }
}

void gr_run_sinks_tell(gr_running *r, gr_diag *d)
{
    size_t n = 0;
    const char *line = r->sinks ? gr_outputs_line(r->outputs, &n) : NULL;
    for (size_t i = 0; r->sinks && i < r->sinks->n; i++) {
        gr_str_add(&r->sinks->of[i].waiting, line, n);
        tell(&r->sinks->of[i], d);
    }
}

void gr_run_sinks_close(gr_running *r, gr_diag *d)
{
    for (size_t i = 0; r->sinks && i < r->sinks->n; i++) {
        sink *s = &r->sinks->of[i];
        end(s, d);
        gr_str_release(&s->waiting);
        free(s->log);
    }
    if (r->sinks) free(r->sinks->of);
    free(r->sinks);
    r->sinks = NULL;
}
