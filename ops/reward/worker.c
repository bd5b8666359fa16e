/* ops/reward/worker.c: a pool of processes that score, and what becomes of requests when these misbehave. */
#include "ops/reward/worker.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/guard.h"
#include "runtime/base/json.h"

struct request {
    uint64_t id;
    size_t n_tokens;
    char *line; /* with its newline */
    size_t n;
    uint64_t deadline_ns;
    unsigned crashes;
    struct request *next;
};

/* A list of requests, in order. */
struct queue {
    struct request *first, **end;
};

struct worker {
    gr_guard guard;   /* pid 0: not running */
    int in, out;      /* our ends of its input and output */
    struct queue has; /* requests it holds, oldest first; the last may be half written */
    size_t n_has, unwritten;
    bool answered; /* since it was started */
    gr_str output; /* read, and not yet a whole line */
};

struct done {
    gr_reward reward;
    char *error; /* or why it failed */
};

struct gr_workers {
    gr_workers_config cfg;
    char *command;
    struct worker *worker;
    struct pollfd *fds;
    struct queue waiting;
    struct done *done; /* [next_done, n_done) are to be collected */
    size_t n_pending, next_done, n_done, cap_done;
};

static void queue_init(struct queue *q)
{
    *q = (struct queue){NULL, &q->first};
}

static void queue_add(struct queue *q, struct request *r)
{
    r->next = NULL;
    *q->end = r;
    q->end = &r->next;
}

static struct request *queue_take(struct queue *q, struct request **at)
{
    struct request *r = *at;
    *at = r->next;
    if (!r->next) q->end = at;
    return r;
}

/* Put all of back in front of q. */
static void queue_prepend(struct queue *q, struct queue *back)
{
    if (!back->first) return;
    *back->end = q->first;
    if (!q->first) q->end = back->end;
    q->first = back->first;
    queue_init(back);
}

static void request_free(struct request *r)
{
    free(r->line);
    free(r);
}

static void finish(gr_workers *w, struct request *r, gr_reward reward, char *error)
{
    reward.id = r->id;
    if (w->next_done == w->n_done) w->next_done = w->n_done = 0;
    GR_PUSH(w->done, w->n_done, w->cap_done, ((struct done){reward, error}));
    request_free(r);
}

/* ---- processes ---------------------------------------------------------------------------------------- */

static int spawn(const char *command, int in, int out, gr_guard *guard)
{
    const char *const argv[] = {"/bin/sh", "-c", command, NULL};
    return gr_guard_start(guard, &(gr_guarded){.argv = argv, .in = in, .out = out, .err = STDERR_FILENO});
}

/* Its input is a socket, so that writing to a dead worker is an error and not a SIGPIPE to our process. */
static gr_status start(gr_workers *w, struct worker *k, gr_diag *d)
{
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) || pipe2(out, O_CLOEXEC)) err = errno;
    if (!err) err = spawn(w->command, in[1], out[1], &k->guard);
    close(in[1]);
    close(out[1]);
    if (err) {
        close(in[0]);
        close(out[0]);
        return gr_diag_error(d, w->cfg.at, GR_E_IO, "cannot start a reward worker: %s", strerror(err));
    }
    k->in = in[0];
    k->out = out[0];
    k->unwritten = 0;
    k->answered = false;
    k->output.len = 0;
    shutdown(k->in, SHUT_RD);
    fcntl(k->in, F_SETFL, O_NONBLOCK);
    fcntl(k->out, F_SETFL, O_NONBLOCK);
    return GR_OK;
}

static void close_ends(struct worker *k)
{
    close(k->in);
    close(k->out);
    k->in = k->out = -1;
}

/* What still runs of it is killed, by its guard, whose status is the worker's. */
static int reap(struct worker *k)
{
    int status = 0;
    close(k->guard.leash);
    kill(k->guard.pid, SIGCONT); /* in case that it has been stopped */
    while (waitpid(k->guard.pid, &status, 0) < 0 && errno == EINTR) {
    }
    k->guard.pid = 0;
    return status;
}

static bool has_ended(const struct worker *k)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)k->guard.pid, &info, WEXITED | WNOHANG | WNOWAIT) ||
           info.si_pid == k->guard.pid;
}

static void stop(struct worker *k)
{
    close_ends(k);
    reap(k);
    k->unwritten = k->n_has = 0;
}

/* ---- what goes wrong ---------------------------------------------------------------------------------- */

/* A worker that does not do as it should: the request at `at` fails, the others go back to wait. */
static void give_up(gr_workers *w, struct worker *k, struct request **at, char *error)
{
    struct request *r = queue_take(&k->has, at);
    stop(k);
    queue_prepend(&w->waiting, &k->has);
    finish(w, r, (gr_reward){0}, error);
}

static char *how_it_ended(int status)
{
    if (WIFEXITED(status)) return gr_printf("exited with status %d", WEXITSTATUS(status));
    return gr_printf("was killed by signal %d", WTERMSIG(status));
}

/* Its output has ended. A worker that closed it and runs on gets a moment to exit, so that the message can
 * tell its status, before it is killed. */
static void crashed(gr_workers *w, struct worker *k)
{
    for (int i = 0; i < 100 && !has_ended(k); i++) nanosleep(&(struct timespec){0, 1000000}, NULL);
    close_ends(k);
    int status = reap(k);
    k->unwritten = k->n_has = 0;
    struct request **at = &k->has.first;
    bool had_its_day = k->answered && WIFEXITED(status) && !WEXITSTATUS(status); /* what it holds came late */
    while (*at && !had_its_day) {
        struct request *r = *at;
        if (++r->crashes < 2) {
            at = &r->next;
            continue;
        }
        char *how = how_it_ended(status);
        char *error =
            gr_printf("sequence %" PRIu64 ": the reward worker %s, and so did the one before it", r->id, how);
        free(how);
        finish(w, queue_take(&k->has, at), (gr_reward){0}, error);
    }
    queue_prepend(&w->waiting, &k->has);
}

/* The beginning of a line as it may be shown: control characters and bytes above 126 become '?'. */
static char *excerpt(const char *line, size_t n)
{
    char text[64];
    size_t shown = GR_MIN(n, sizeof(text) - 4);
    for (size_t i = 0; i < shown; i++) text[i] = line[i] < 32 || line[i] > 126 ? '?' : line[i];
    strcpy(text + shown, shown < n ? "..." : "");
    return gr_strdup(text);
}

/* ---- replies ------------------------------------------------------------------------------------------ */

/* NULL, or why not, to free(). what: the number's name. */
static char *take_number(const json_t *v, const char *what, double *out)
{
    if (!json_is_number(v)) return gr_printf("%s is %s; a number is wanted", what, gr_json_kind(v));
    *out = json_number_value(v);
    if (gr_json_fits_float(*out)) return NULL;
    return gr_printf("%s is %g, more than a 32-bit float can hold (3.4e38)", what, *out);
}

static char *take_names(const gr_workers_config *c, const json_t *score, double *values)
{
    char *why = NULL;
    double sum = 0;
    if (!json_is_object(score))
        return gr_printf("'score' is %s; an object with a number for each of 'names' is wanted",
                         gr_json_kind(score));
    for (size_t i = 0; i < c->n_names && !why; i++) {
        char *what = gr_printf("'%s' of 'score'", c->names[i]);
        why = take_number(json_object_get(score, c->names[i]), what, &values[i]);
        sum += values[i];
        free(what);
    }
    if (!why && !gr_json_fits_float(sum))
        why =
            gr_printf("the numbers of 'score' add up to %g, more than a 32-bit float can hold (3.4e38)", sum);
    return why;
}

static char *take_tokens(const struct request *r, const json_t *score, double *values)
{
    char *why = NULL;
    if (!json_is_array(score))
        return gr_printf(
            "'score' is %s; a list of one number for each of the response's %zu tokens is wanted",
            gr_json_kind(score), r->n_tokens);
    if (json_array_size(score) != r->n_tokens)
        return gr_printf("'score' has %zu numbers, but the response has %zu tokens", json_array_size(score),
                         r->n_tokens);
    for (size_t i = 0; i < r->n_tokens && !why; i++) {
        char *what = gr_printf("'score' of token %zu, counted from 0,", i);
        why = take_number(json_array_get(score, i), what, &values[i]);
        free(what);
    }
    return why;
}

/* The values of a score; NULL and why in *error, to free(), where they are not what was asked for. */
static double *take_values(const gr_workers_config *c, const struct request *r, const json_t *score,
                           size_t *n, char **error)
{
    *n = c->n_names ? c->n_names : c->per_token ? r->n_tokens : 1;
    double *values = gr_calloc(*n + 1, sizeof(*values)); /* + 1: never of size 0 */
    *error = c->n_names     ? take_names(c, score, values)
             : c->per_token ? take_tokens(r, score, values)
                            : take_number(score, "'score'", values);
    if (!*error) return values;
    free(values);
    return NULL;
}

/* The request of which a part is still to be written: the last one. */
static bool is_unread(const struct worker *k, struct request *const *at)
{
    return k->unwritten && !(*at)->next;
}

/* Which request a reply answers; NULL where none. */
static struct request **find_request(struct worker *k, const json_t *reply)
{
    const json_t *id = json_object_get(reply, "id");
    if (!json_is_integer(id)) return NULL;
    struct request **at = &k->has.first;
    while (*at && (json_int_t)(*at)->id != json_integer_value(id)) at = &(*at)->next;
    return *at ? at : NULL;
}

static char *bad_reply(const struct request *r, const char *why, const char *line, size_t n)
{
    char *shown = excerpt(line, n);
    char *error =
        gr_printf("sequence %" PRIu64 ": bad reply of the reward worker: %s: '%s'", r->id, why, shown);
    free(shown);
    return error;
}

/* One line of output. false where the worker was stopped for it. */
static bool take_line(gr_workers *w, struct worker *k, const char *line, size_t n)
{
    if (!k->has.first) { /* nothing was asked: no sequence to blame, so it is only stopped */
        stop(k);
        return false;
    }
    json_t *reply = json_loadb(line, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL);
    struct request **at = reply ? find_request(k, reply) : NULL;
    gr_reward got = {0};
    char *why = NULL;
    if (at && is_unread(k, at))
        why = gr_strdup("it answers what it has not read");
    else if (at)
        got.values = take_values(&w->cfg, *at, json_object_get(reply, "score"), &got.n, &why);
    else
        why = gr_strdup(!reply                  ? "not JSON (what is no answer goes to stderr)"
                        : json_is_object(reply) ? "no 'id' of a request"
                                                : "not an object");
    json_decref(reply);
    if (!at) at = &k->has.first;
    if (why) {
        give_up(w, k, at, bad_reply(*at, why, line, n));
        free(why);
        return false;
    }
    k->n_has--;
    k->answered = true;
    finish(w, queue_take(&k->has, at), got, NULL);
    return true;
}

/* Read what there is, at most one block, so that a flood cannot keep us from the other workers. */
static void read_output(gr_workers *w, struct worker *k)
{
    char block[65536];
    ssize_t got = read(k->out, block, sizeof(block));
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        crashed(w, k);
        return;
    }
    gr_str_add(&k->output, block, (size_t)got);
    size_t from = 0;
    for (const char *end; (end = memchr(k->output.text + from, '\n', k->output.len - from));) {
        size_t n = (size_t)(end - k->output.text) - from;
        if (!take_line(w, k, k->output.text + from, n)) return;
        from += n + 1;
    }
    memmove(k->output.text, k->output.text + from, k->output.len - from);
    k->output.len -= from;
    if (k->output.len <= w->cfg.line_bytes) return;
    if (k->has.first)
        give_up(w, k, &k->has.first, bad_reply(k->has.first, "too long", k->output.text, k->output.len));
    else
        stop(k);
}

/* ---- requests ----------------------------------------------------------------------------------------- */

static void write_input(gr_workers *w, struct worker *k)
{
    if (!k->unwritten) return;
    const struct request *r =
        (const struct request *)(const void *)((const char *)k->has.end - offsetof(struct request, next));
    ssize_t put = send(k->in, r->line + (r->n - k->unwritten), k->unwritten, MSG_NOSIGNAL);
    if (put >= 0)
        k->unwritten -= (size_t)put;
    else if (errno != EAGAIN && errno != EINTR)
        crashed(w, k);
}

static struct worker *free_worker(gr_workers *w)
{
    struct worker *best = NULL;
    for (struct worker *k = w->worker; k < w->worker + w->cfg.n; k++)
        if (!k->unwritten && k->n_has < w->cfg.depth && (!best || k->n_has < best->n_has)) best = k;
    return best;
}

static gr_status start_again(gr_workers *w, struct worker *k, gr_diag *d)
{
    gr_status st = w->cfg.again ? w->cfg.again(w->cfg.user, d) : GR_OK;
    return st ? st : start(w, k, d);
}

/* Hand waiting requests to workers that can take one, starting those that do not run. */
static gr_status dispatch(gr_workers *w, gr_diag *d)
{
    for (struct worker *k; w->waiting.first && (k = free_worker(w));) {
        gr_status st = k->guard.pid ? GR_OK : start_again(w, k, d);
        if (st) return st;
        struct request *r = queue_take(&w->waiting, &w->waiting.first);
        r->deadline_ns = gr_now_ns() + w->cfg.timeout_ms * 1000000ull;
        queue_add(&k->has, r);
        k->n_has++;
        k->unwritten = r->n;
        write_input(w, k);
    }
    return GR_OK;
}

static void check_deadlines(gr_workers *w, uint64_t now)
{
    for (struct worker *k = w->worker; k < w->worker + w->cfg.n; k++) {
        struct request *r = k->has.first; /* the oldest: its time is up first */
        if (!r || r->deadline_ns > now) continue;
        give_up(w, k, &k->has.first,
                gr_printf("sequence %" PRIu64 ": no reply of the reward worker within %g seconds", r->id,
                          w->cfg.timeout_ms / 1000.0));
    }
}

/* Wait for input or output, or until a request's time or `until` is up, and deal with what happened. */
static void step(gr_workers *w, uint64_t until)
{
    for (unsigned i = 0; i < w->cfg.n; i++) {
        const struct worker *k = &w->worker[i];
        w->fds[2 * i] = (struct pollfd){k->guard.pid ? k->out : -1, POLLIN, 0};
        w->fds[2 * i + 1] = (struct pollfd){k->guard.pid && k->unwritten ? k->in : -1, POLLOUT, 0};
        if (k->has.first) until = GR_MIN(until, k->has.first->deadline_ns);
    }
    uint64_t now = gr_now_ns(), ms = until > now ? (until - now + 999999) / 1000000 : 0;
    poll(w->fds, 2 * w->cfg.n, (int)GR_MIN(ms, (uint64_t)60000));
    for (unsigned i = 0; i < w->cfg.n; i++) {
        struct worker *k = &w->worker[i];
        pid_t pid = k->guard.pid;
        if (w->fds[2 * i].revents) read_output(w, k);
        if (w->fds[2 * i + 1].revents && k->guard.pid == pid) write_input(w, k);
    }
    check_deadlines(w, gr_now_ns());
}

/* ---- the pool ----------------------------------------------------------------------------------------- */

gr_status gr_workers_new(gr_workers **out, const gr_workers_config *c, gr_diag *d)
{
    assert(c->n > 0);
    gr_workers *w = gr_calloc(1, sizeof(*w));
    w->cfg = *c;
    if (!c->depth) w->cfg.depth = 1;
    if (!c->timeout_ms) w->cfg.timeout_ms = 60000;
    if (!c->grace_ms) w->cfg.grace_ms = 2000;
    if (!c->line_bytes) w->cfg.line_bytes = 16u << 20;
    w->command = gr_strdup(c->command);
    w->worker = gr_calloc(c->n, sizeof(*w->worker));
    w->fds = gr_calloc(2 * (size_t)c->n, sizeof(*w->fds));
    queue_init(&w->waiting);
    for (unsigned i = 0; i < c->n; i++) queue_init(&w->worker[i].has);
    gr_status st = GR_OK;
    for (unsigned i = 0; i < c->n && !st; i++) st = start(w, &w->worker[i], d);
    if (st)
        gr_workers_free(w);
    else
        *out = w;
    return st;
}

void gr_workers_submit(gr_workers *w, uint64_t id, size_t n_tokens, json_t *fields)
{
    struct request *r = gr_calloc(1, sizeof(*r));
    json_t *object = json_object();
    json_object_set_new(object, "id", json_integer((json_int_t)id));
    json_object_update_missing(object, fields);
    char *text = json_dumps(object, JSON_COMPACT);
    assert(text && "a request must be JSON text");
    r->id = id;
    r->n_tokens = n_tokens;
    r->n = strlen(text) + 1;
    r->line = gr_printf("%s\n", text);
    free(text);
    json_decref(object);
    queue_add(&w->waiting, r);
    w->n_pending++;
    (void)!dispatch(w, NULL); /* a worker that cannot start is tried again, and reported, by collect */
}

size_t gr_workers_pending(const gr_workers *w)
{
    return w->n_pending;
}

gr_status gr_workers_collect(gr_workers *w, int timeout_ms, gr_reward *out, gr_diag *d)
{
    uint64_t until = timeout_ms < 0 ? UINT64_MAX : gr_now_ns() + (uint64_t)timeout_ms * 1000000;
    *out = (gr_reward){0};
    while (w->n_pending) {
        if (w->next_done < w->n_done) {
            struct done *f = &w->done[w->next_done++];
            *out = f->reward;
            w->n_pending--;
            gr_status st = f->error ? gr_diag_error(d, w->cfg.at, GR_E_FAILED, "%s", f->error) : GR_OK;
            free(f->error);
            return st;
        }
        gr_status st = dispatch(w, d);
        if (st) return st;
        step(w, until);
        (void)!dispatch(w, NULL);
        if (w->next_done == w->n_done && gr_now_ns() >= until) break;
    }
    return GR_OK;
}

static void queue_release(struct queue *q)
{
    while (q->first) request_free(queue_take(q, &q->first));
}

void gr_workers_free(gr_workers *w)
{
    if (!w) return;
    struct worker *end = w->worker + w->cfg.n;
    for (struct worker *k = w->worker; k < end; k++)
        if (k->guard.pid) close_ends(k);
    uint64_t until = gr_now_ns() + w->cfg.grace_ms * 1000000ull;
    for (struct worker *k = w->worker; k < end; k++) {
        while (k->guard.pid && !has_ended(k) && gr_now_ns() < until)
            nanosleep(&(struct timespec){0, 2000000}, NULL);
        if (k->guard.pid) reap(k);
        queue_release(&k->has);
        gr_str_release(&k->output);
    }
    queue_release(&w->waiting);
    for (; w->next_done < w->n_done; w->next_done++) {
        free(w->done[w->next_done].reward.values);
        free(w->done[w->next_done].error);
    }
    free(w->done);
    free(w->worker);
    free(w->fds);
    free(w->command);
    free(w);
}
