/* ops/reward/pool.c: worker processes and their requests, and what becomes of these when workers misbehave.
 */
#include "ops/reward/pool.h"

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
#include "runtime/base/visible.h"

#define NEVER UINT64_MAX /* the deadline of what is waited for without limit */

struct request {
    uint64_t id;
    size_t about;
    char *what; /* NULL: nobody waits for a reply */
    char *line; /* with its newline */
    size_t n;
    uint64_t sent_ns, deadline_ns;
    unsigned crashes;
    gr_pool_worker to; /* {0}: any */
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
    size_t n_kept;        /* first requests of conversations, ever */
    unsigned start;       /* how often it was started */
    uint64_t answered_ns; /* the last time since it was started; 0: never */
    uint64_t *given_up;   /* ids that it may still answer, though nobody waits */
    size_t n_given_up, cap_given_up;
    gr_str output; /* read, and not yet a whole line */
    char *ended;   /* why it ended the last time; NULL: never */
};

struct gr_pool {
    gr_pool_config cfg;
    char *command;
    struct worker *worker;
    struct pollfd *fds;
    struct queue waiting;
    gr_pool_reply *done; /* [next_done, n_done) are to be collected */
    size_t n_pending, next_done, n_done, cap_done;
    uint64_t listened_ns; /* when it was last looked what workers say; 0: never */
    int also;             /* a file that ends a wait when it is readable; -1: none */
    bool woken;           /* it was */
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
    free(r->what);
    free(r->line);
    free(r);
}

/* The end of a request: of one that nobody waits for, nothing is told. */
static void finish(gr_pool *w, struct request *r, gr_pool_reply reply)
{
    if (!r->what) {
        free(reply.error);
    } else {
        reply.id = r->id;
        if (w->next_done == w->n_done) w->next_done = w->n_done = 0;
        GR_PUSH(w->done, w->n_done, w->cap_done, reply);
    }
    request_free(r);
}

static gr_pool_worker name_of(const gr_pool *w, const struct worker *k)
{
    return (gr_pool_worker){(unsigned)(k - w->worker) + 1, k->start};
}

/* ---- processes ---------------------------------------------------------------------------------------- */

static int spawn(const char *command, int in, int out, gr_guard *guard)
{
    const char *const argv[] = {"/bin/sh", "-c", command, NULL};
    return gr_guard_start(guard, &(gr_guarded){.argv = argv, .in = in, .out = out, .err = STDERR_FILENO});
}

/* Its input is a socket, so that writing to a dead worker is an error and not a SIGPIPE to our process. */
static gr_status start(gr_pool *w, struct worker *k, gr_diag *d)
{
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) || pipe2(out, O_CLOEXEC)) err = errno;
    if (!err) err = spawn(w->command, in[1], out[1], &k->guard);
    close(in[1]);
    close(out[1]);
    if (err) {
        close(in[0]);
        close(out[0]);
        return gr_diag_error(d, w->cfg.at, GR_E_IO, "cannot start a worker (%s): %s", w->cfg.who,
                             strerror(err));
    }
    k->in = in[0];
    k->out = out[0];
    k->unwritten = 0;
    k->start++;
    k->answered_ns = k->n_given_up = 0;
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

/* why: taken. */
static void stop_for(struct worker *k, char *why)
{
    stop(k);
    free(k->ended);
    k->ended = why;
}

/* ---- what goes wrong ---------------------------------------------------------------------------------- */

/* Requests that a worker held go back to wait; where it kept the state that they are about, they fail. */
static void hand_back(gr_pool *w, struct worker *k, const char *why)
{
    while (w->cfg.keeps_state && k->has.first) {
        struct request *r = queue_take(&k->has, &k->has.first);
        char *error = gr_printf("%s: %s", r->what ? r->what : "", why);
        finish(w, r, (gr_pool_reply){.error = error});
    }
    queue_prepend(&w->waiting, &k->has);
}

/* A worker that does not do as it should: the request at `at` fails, the others go back to wait. */
static void give_up(gr_pool *w, struct worker *k, struct request **at, gr_pool_reply reply)
{
    struct request *r = queue_take(&k->has, at);
    stop_for(k, gr_strdup(reply.error));
    char *why =
        gr_printf("the %s was stopped for what became of another request: %s", w->cfg.who, reply.error);
    hand_back(w, k, why);
    free(why);
    finish(w, r, reply);
}

/* One that failed alone: what its worker may yet say of it is dropped. */
static void give_up_one(gr_pool *w, struct worker *k, struct request **at, gr_pool_reply reply)
{
    reply.worker = name_of(w, k);
    GR_PUSH(k->given_up, k->n_given_up, k->cap_given_up, (*at)->id);
    k->n_has--;
    finish(w, queue_take(&k->has, at), reply);
}

static char *how_it_ended(int status)
{
    if (WIFEXITED(status)) return gr_printf("exited with status %d", WEXITSTATUS(status));
    return gr_printf("was killed by signal %d", WTERMSIG(status));
}

/* Its output has ended. A worker that closed it and runs on gets a moment to exit, so that the message can
 * tell its status, before it is killed. */
static void crashed(gr_pool *w, struct worker *k)
{
    for (int i = 0; i < 100 && !has_ended(k); i++) nanosleep(&(struct timespec){0, 1000000}, NULL);
    close_ends(k);
    int status = reap(k);
    k->unwritten = k->n_has = 0;
    char *how = how_it_ended(status), *why = gr_printf("the %s %s", w->cfg.who, how);
    struct request **at = &k->has.first;
    bool had_its_day =
        k->answered_ns && WIFEXITED(status) && !WEXITSTATUS(status); /* what it holds came late */
    while (*at && !had_its_day && !w->cfg.keeps_state) {
        struct request *r = *at;
        if (++r->crashes < 2) {
            at = &r->next;
            continue;
        }
        char *error = gr_printf("%s: %s, and so did the one before it", r->what, why);
        finish(w, queue_take(&k->has, at), (gr_pool_reply){.error = error});
    }
    hand_back(w, k, why);
    free(k->ended);
    k->ended = why;
    free(how);
}

/* ---- replies ------------------------------------------------------------------------------------------ */

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

static char *bad_reply(const gr_pool *w, const struct request *r, const char *why, const char *line, size_t n)
{
    char *shown = gr_excerpt(line, n);
    char *error =
        gr_printf("%s: bad reply of the %s: %s: '%s'", r->what ? r->what : "", w->cfg.who, why, shown);
    free(shown);
    return error;
}

/* Whether a reply is about a request that has failed alone; it is not waited for any more. */
static bool was_given_up(struct worker *k, const json_t *reply)
{
    const json_t *id = json_object_get(reply, "id");
    for (size_t i = 0; json_is_integer(id) && i < k->n_given_up; i++)
        if ((json_int_t)k->given_up[i] == json_integer_value(id)) {
            k->given_up[i] = k->given_up[--k->n_given_up];
            return true;
        }
    return false;
}

/* The worker says that a request has failed; NULL: it does not. To free(). */
static char *said_failed(const gr_pool *w, const struct request *r, const json_t *reply)
{
    const json_t *error = json_object_get(reply, "error");
    if (!json_is_string(error)) return NULL;
    return gr_printf("%s: the %s says: %s", r->what ? r->what : "", w->cfg.who, json_string_value(error));
}

/* One reply of a line. false where the worker was stopped for it. */
static bool take_reply(gr_pool *w, struct worker *k, const json_t *reply, const char *line, size_t n)
{
    struct request **at = reply ? find_request(k, reply) : NULL;
    gr_pool_reply got = {.worker = name_of(w, k)};
    char *why = NULL;
    const bool known = at != NULL, unread = at && is_unread(k, at);
    if (unread)
        why = gr_strdup("it answers what it has not read");
    else if (at && (got.error = said_failed(w, *at, reply)))
        got.late = json_is_true(json_object_get(reply, "late"));
    else if (at)
        got.result = w->cfg.read(w->cfg.user, (*at)->about, reply, &why);
    else
        why = gr_strdup(!reply                  ? "not JSON (what is no answer goes to stderr)"
                        : json_is_object(reply) ? "no 'id' of a request"
                                                : "not an object");
    if (!at) at = &k->has.first;
    if (why) {
        got.error = bad_reply(w, *at, why, line, n);
        free(why);
        const bool alone = w->cfg.keeps_state && known && !unread;
        if (alone) {
            k->n_has--;
            finish(w, queue_take(&k->has, at), got);
        } else {
            give_up(w, k, at, got);
        }
        return alone;
    }
    k->n_has--;
    k->answered_ns = gr_now_ns();
    finish(w, queue_take(&k->has, at), got);
    return true;
}

/* One line of output. false where the worker was stopped for it. */
static bool take_line(gr_pool *w, struct worker *k, const char *line, size_t n)
{
    json_t *reply = json_loadb(line, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    const size_t several = json_is_array(reply) ? json_array_size(reply) : 0;
    bool runs = true;
    for (size_t i = 0; runs && i < GR_MAX(several, (size_t)1); i++) {
        const json_t *one = several ? json_array_get(reply, i) : reply;
        if (was_given_up(k, one)) continue;
        if (k->has.first) {
            runs = take_reply(w, k, one, line, n);
        } else { /* nothing was asked: no sequence to blame, so it is only stopped */
            stop_for(k, gr_strdup("it spoke unasked"));
            runs = false;
        }
    }
    json_decref(reply);
    return runs;
}

/* Read what there is, at most one block, so that a flood cannot keep us from the other workers. */
static void read_output(gr_pool *w, struct worker *k)
{
    char block[65536];
    ssize_t got = read(k->out, block, sizeof(block));
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        crashed(w, k);
        return;
    }
    gr_str_add(&k->output, block, (size_t)got);
    size_t from = 0, n;
    for (const char *line; (line = gr_str_line(&k->output, &from, &n));)
        if (!take_line(w, k, line, n)) return;
    gr_str_drop(&k->output, from);
    if (k->output.len <= w->cfg.line_bytes) return;
    if (k->has.first)
        give_up(
            w, k, &k->has.first,
            (gr_pool_reply){.error = bad_reply(w, k->has.first, "too long", k->output.text, k->output.len)});
    else
        stop_for(k, gr_strdup("it spoke unasked"));
}

/* ---- requests ----------------------------------------------------------------------------------------- */

static struct request **last_of(struct queue *q)
{
    struct request **at = &q->first;
    while (*at && (*at)->next) at = &(*at)->next;
    return at;
}

static void write_input(gr_pool *w, struct worker *k)
{
    if (!k->unwritten) return;
    struct request **last = last_of(&k->has);
    const struct request *r = *last;
    ssize_t put = send(k->in, r->line + (r->n - k->unwritten), k->unwritten, MSG_NOSIGNAL);
    if (put < 0 && errno != EAGAIN && errno != EINTR) {
        crashed(w, k);
        return;
    }
    k->unwritten -= put > 0 ? (size_t)put : 0;
    if (k->unwritten || r->what) return;
    k->n_has--; /* no reply is waited for */
    request_free(queue_take(&k->has, last));
}

static bool takes_more(const gr_pool *w, const struct worker *k)
{
    return !k->unwritten && k->n_has < w->cfg.depth;
}

/* What it holds; where it keeps state, what it has been given to keep. */
static size_t load_of(const gr_pool *w, const struct worker *k)
{
    return w->cfg.keeps_state ? k->n_kept : k->n_has;
}

static struct worker *free_worker(gr_pool *w)
{
    struct worker *best = NULL;
    for (struct worker *k = w->worker; k < w->worker + w->cfg.n; k++)
        if (takes_more(w, k) && (!best || load_of(w, k) < load_of(w, best))) best = k;
    return best;
}

static gr_status start_again(gr_pool *w, struct worker *k, gr_diag *d)
{
    gr_status st = w->cfg.again ? w->cfg.again(w->cfg.user, d) : GR_OK;
    return st ? st : start(w, k, d);
}

static void hand_out(gr_pool *w, struct worker *k, struct request *r)
{
    r->sent_ns = gr_now_ns();
    r->deadline_ns = r->sent_ns + w->cfg.timeout_ms * 1000000ull;
    queue_add(&k->has, r);
    k->n_has++;
    k->n_kept += !r->to.number;
    k->unwritten = r->n;
    write_input(w, k);
}

/* The one worker that a request is for; NULL: it cannot take it yet, or has ended, and then so has the
 * request (*at is another one). */
static struct worker *own_worker(gr_pool *w, struct request **at)
{
    struct worker *k = &w->worker[(*at)->to.number - 1];
    if (k->guard.pid && k->start == (*at)->to.start) return takes_more(w, k) ? k : NULL;
    struct request *r = queue_take(&w->waiting, at);
    char *error = gr_printf("%s: the %s that had it has ended (the last time because of this: %s)",
                            r->what ? r->what : "", w->cfg.who, k->ended ? k->ended : "?");
    finish(w, r, (gr_pool_reply){.error = error});
    return NULL;
}

/* Hand waiting requests to workers that can take one, starting those that do not run. */
static gr_status dispatch(gr_pool *w, gr_diag *d)
{
    for (struct request **at = &w->waiting.first; *at;) {
        struct request *r = *at;
        struct worker *k = r->to.number ? own_worker(w, at) : free_worker(w);
        if (!k && *at == r) {
            if (!r->to.number && !w->cfg.keeps_state) return GR_OK; /* nor could any that follow */
            at = &r->next;
        }
        if (!k) continue;
        gr_status st = k->guard.pid ? GR_OK : start_again(w, k, d);
        if (st) return st;
        hand_out(w, k, queue_take(&w->waiting, at));
        if (!k->guard.pid) at = &w->waiting.first; /* it has ended: what it had may be first */
    }
    return GR_OK;
}

/* A request of a worker has no reply in time. */
static void ran_late(gr_pool *w, struct worker *k, struct request **at)
{
    const struct request *r = *at;
    const gr_pool_reply late = {.late = true,
                                .error = gr_printf("%s: no reply of the %s within %g seconds",
                                                   r->what ? r->what : "", w->cfg.who,
                                                   w->cfg.timeout_ms / 1000.0)};
    if (w->cfg.keeps_state && k->answered_ns > r->sent_ns && !is_unread(k, at))
        give_up_one(w, k, at, late);
    else
        give_up(w, k, at, late);
}

/* The first request of a worker whose time is up at `now`, or NULL. */
static struct request **late_one(struct worker *k, uint64_t now)
{
    struct request **at = &k->has.first;
    while (*at && (*at)->deadline_ns > now) at = &(*at)->next;
    return *at ? at : NULL;
}

static void check_deadlines(gr_pool *w, uint64_t now)
{
    for (struct worker *k = w->worker; k < w->worker + w->cfg.n; k++)
        for (struct request **at; (at = late_one(k, now));) ran_late(w, k, at);
}

/* A time limit is the worker's: what passes while nobody listens to it does not count. */
static void extend_deadlines(gr_pool *w, uint64_t now)
{
    const uint64_t deaf = w->listened_ns ? now - w->listened_ns : 0;
    for (struct worker *k = w->worker; k < w->worker + w->cfg.n; k++)
        for (struct request *r = k->has.first; r; r = r->next)
            if (r->deadline_ns != NEVER) r->deadline_ns += GR_MIN(deaf, now - r->sent_ns);
}

/* Wait for input or output, or until a request's time or `until` is up, and deal with what happened. */
static void step(gr_pool *w, uint64_t until)
{
    extend_deadlines(w, gr_now_ns());
    for (unsigned i = 0; i < w->cfg.n; i++) {
        const struct worker *k = &w->worker[i];
        w->fds[2 * i] = (struct pollfd){k->guard.pid ? k->out : -1, POLLIN, 0};
        w->fds[2 * i + 1] = (struct pollfd){k->guard.pid && k->unwritten ? k->in : -1, POLLOUT, 0};
        for (const struct request *r = k->has.first; r; r = r->next) until = GR_MIN(until, r->deadline_ns);
    }
    w->fds[2 * w->cfg.n] = (struct pollfd){w->also, POLLIN, 0};
    uint64_t now = gr_now_ns(), ms = until > now ? (until - now + 999999) / 1000000 : 0;
    poll(w->fds, 2 * w->cfg.n + 1, (int)GR_MIN(ms, (uint64_t)60000));
    w->woken = w->fds[2 * w->cfg.n].revents;
    for (unsigned i = 0; i < w->cfg.n; i++) {
        struct worker *k = &w->worker[i];
        pid_t pid = k->guard.pid;
        if (w->fds[2 * i].revents) read_output(w, k);
        if (w->fds[2 * i + 1].revents && k->guard.pid == pid) write_input(w, k);
    }
    check_deadlines(w, w->listened_ns = gr_now_ns());
}

/* ---- the pool ----------------------------------------------------------------------------------------- */

gr_status gr_pool_new(gr_pool **out, const gr_pool_config *c, gr_diag *d)
{
    assert(c->n > 0);
    gr_pool *w = gr_calloc(1, sizeof(*w));
    w->cfg = *c;
    if (!c->depth) w->cfg.depth = 1;
    if (!c->timeout_ms) w->cfg.timeout_ms = 60000;
    if (!c->grace_ms) w->cfg.grace_ms = 2000;
    if (!c->line_bytes) w->cfg.line_bytes = 16u << 20;
    w->command = gr_strdup(c->command);
    w->worker = gr_calloc(c->n, sizeof(*w->worker));
    w->fds = gr_calloc(2 * (size_t)c->n + 1, sizeof(*w->fds));
    w->also = -1;
    queue_init(&w->waiting);
    for (unsigned i = 0; i < c->n; i++) queue_init(&w->worker[i].has);
    gr_status st = GR_OK;
    for (unsigned i = 0; i < c->n && !st; i++) st = start(w, &w->worker[i], d);
    if (st)
        gr_pool_free(w);
    else
        *out = w;
    return st;
}

static struct request *request_of(uint64_t id, const json_t *fields)
{
    struct request *r = gr_calloc(1, sizeof(*r));
    json_t *object = json_object();
    json_object_set_new(object, "id", json_integer((json_int_t)id));
    json_object_update_missing(object, (json_t *)(uintptr_t)fields);
    char *text = json_dumps(object, JSON_COMPACT);
    assert(text && "a request must be JSON text");
    r->id = id;
    r->n = strlen(text) + 1;
    r->line = gr_printf("%s\n", text);
    free(text);
    json_decref(object);
    return r;
}

void gr_pool_submit(gr_pool *w, uint64_t id, const char *what, size_t about, json_t *fields,
                    gr_pool_worker worker)
{
    struct request *r = request_of(id, fields);
    r->what = gr_strdup(what);
    r->about = about;
    r->to = worker;
    queue_add(&w->waiting, r);
    w->n_pending++;
    (void)!dispatch(w, NULL); /* a worker that cannot start is tried again, and reported, by collect */
}

void gr_pool_tell(gr_pool *w, uint64_t id, json_t *fields, gr_pool_worker worker)
{
    struct request *r = request_of(id, fields);
    r->to = worker;
    queue_add(&w->waiting, r);
    (void)!dispatch(w, NULL);
}

size_t gr_pool_pending(const gr_pool *w)
{
    return w->n_pending;
}

gr_status gr_pool_collect(gr_pool *w, int timeout_ms, gr_pool_reply *out, gr_diag *d)
{
    uint64_t until = timeout_ms < 0 ? UINT64_MAX : gr_now_ns() + (uint64_t)timeout_ms * 1000000;
    *out = (gr_pool_reply){0};
    while (w->n_pending) {
        if (w->next_done < w->n_done) {
            *out = w->done[w->next_done++];
            w->n_pending--;
            return GR_OK;
        }
        gr_status st = dispatch(w, d);
        if (st) return st;
        if (w->next_done == w->n_done) step(w, until);
        (void)!dispatch(w, NULL);
        if (w->next_done == w->n_done && (w->woken || gr_now_ns() >= until)) break;
    }
    return GR_OK;
}

void gr_pool_also(gr_pool *w, int fd)
{
    w->also = fd;
}

void gr_pool_alive(gr_pool *w, uint64_t id, bool held)
{
    const uint64_t now = gr_now_ns();
    for (struct worker *k = w->worker; k < w->worker + w->cfg.n; k++)
        for (struct request *r = k->has.first; r; r = r->next) {
            if (r->id != id) continue;
            r->deadline_ns = held ? NEVER : now + w->cfg.timeout_ms * 1000000ull;
            k->answered_ns = now;
        }
}

static void queue_release(struct queue *q)
{
    while (q->first) request_free(queue_take(q, &q->first));
}

void gr_pool_free(gr_pool *w)
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
        free(k->given_up);
        free(k->ended);
    }
    queue_release(&w->waiting);
    for (; w->next_done < w->n_done; w->next_done++) {
        void *result = w->done[w->next_done].result;
        if (result) (w->cfg.drop ? w->cfg.drop : free)(result);
        free(w->done[w->next_done].error);
    }
    free(w->done);
    free(w->worker);
    free(w->fds);
    free(w->command);
    free(w);
}
