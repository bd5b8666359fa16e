/* runtime/comm/comm_mpi.c: communicators over MPI, for the CPU device and for host memory
 * (runtime/comm/comm.h).
 *
 * Every operation is begun and then tested until it is done, with the lock held for the test alone: so a
 * second thread, under the same lock, keeps giving signs of life and listening for those of others, whatever
 * the first one waits for. Rank 0 hears of all and judges (runtime/comm/watchdog.h); the others hear rank 0.
 * Where MPI cannot be asked, because it is being joined or left, or does not return, that thread has a limit
 * of its own.
 */
#include "runtime/comm/comm.h"

#include "runtime/base/half.h"
#include "runtime/comm/mpi_api.h"
#include "runtime/comm/watchdog.h"
#include "runtime/base/files.h"

#include <assert.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define BEAT_NS   UINT64_C(500000000)
#define SECOND_NS UINT64_C(1000000000)
#define SPIN_NS   UINT64_C(200000)    /* a wait that is longer lets the core go */
#define MOST      (UINT64_C(1) << 30) /* elements of one call of MPI, which counts in int */
#define TREE      (UINT64_C(1) << 20) /* bytes that are added at a time where the order is ours */

enum { JOINING, TOGETHER, LEAVING };

/* What the communicators of a process have together. */
typedef struct world {
    void *module;
    const gr_mpi_api *api;
    pthread_mutex_t lock; /* of the api */
    pthread_t thread;
    bool started;
    pthread_mutex_t quit_lock;
    pthread_cond_t quits;
    bool quit;
    atomic_int stage; /* changed with the lock held: signs of life are given while ranks are together */
    void (*lost)(const char *message);
    uint32_t rank, ranks;
    char (*hosts)[sizeof(((gr_comm *)0)->host)]; /* [ranks] */
    gr_watched *seen; /* [ranks], what was heard of each: rank 0 of all, others of it */
} world;

typedef struct mpi_comm {
    gr_comm c;
    world *w;
    const gr_mpi_api *api;
    gr_mpi_group *group;
    bool whole;                                 /* of all ranks: it is what takes w apart */
    int *count, *place, *own_count, *own_place; /* [ranks] of the operation that runs */
    float *tree;                                /* TREE bytes: all ranks' elements of a sum */
    uint16_t *halves;                           /* as many of bf16 */
} mpi_comm;

static mpi_comm *mpi_of(gr_comm *c)
{
    return (mpi_comm *)(void *)c; /* its first member */
}

static gr_status failed(const char *why, gr_diag *d)
{
    uint32_t iteration;
    const char *step;
    gr_watchdog_where(&iteration, &step);
    return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "iteration %u, step '%s': %s", iteration, step, why);
}

/* ---- one operation ---------------------------------------------------------------------------------------
 */

static void relax(uint64_t since)
{
    if (gr_now_ns() - since < SPIN_NS)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

/* why: what beginning it said. The lock is held on entry, and not on return. */
static gr_status finish(mpi_comm *m, const char *why, gr_diag *d)
{
    uint64_t begin = gr_now_ns();
    bool done = false;
    gr_watchdog_wait(true);
    while (!why) {
        why = m->api->test(m->group, &done);
        if (done || why) break;
        pthread_mutex_unlock(&m->w->lock);
        relax(begin);
        pthread_mutex_lock(&m->w->lock);
    }
    gr_status st = why ? failed(why, d) : GR_OK;
    pthread_mutex_unlock(&m->w->lock);
    gr_watchdog_wait(false);
    return st;
}

/* Elements of rank r's part. */
static uint64_t part_of(const gr_comm_parts *p, uint32_t r)
{
    uint64_t first = GR_MIN(r * p->part, p->n);
    return GR_MIN(p->part, p->n - first);
}

static gr_status too_large(uint64_t n, gr_diag *d)
{
    return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "%llu elements are more than MPI counts at once",
                         (unsigned long long)n);
}

static gr_status all_gather(gr_comm *c, gr_queue *q, const gr_comm_parts *p, gr_diag *d)
{
    mpi_comm *m = mpi_of(c);
    (void)q;
    if (p->n > INT32_MAX) return too_large(p->n, d);
    for (uint32_t r = 0; r < c->ranks; r++) {
        m->count[r] = (int)part_of(p, r);
        m->place[r] = (int)GR_MIN(r * p->part, p->n);
    }
    pthread_mutex_lock(&m->w->lock);
    return finish(m, m->api->all_gather(m->group, p->at, m->count, m->place, (int)p->elem_bytes), d);
}

/* Neighbours first, then neighbouring sums. */
static void add_tree(float *parts, uint64_t n, uint32_t ranks)
{
    for (uint32_t step = 1; step < ranks; step *= 2)
        for (uint32_t r = 0; r + step < ranks; r += 2 * step) {
            float *to = parts + r * n, *from = parts + (r + step) * n;
            for (uint64_t i = 0; i < n; i++) to[i] += from[i];
        }
}

static gr_status reduce_scatter(gr_comm *c, gr_queue *q, const gr_comm_parts *p, void *staging, gr_diag *d)
{
    mpi_comm *m = mpi_of(c);
    uint64_t n = part_of(p, c->rank);
    (void)q;
    if (p->elem_bytes != sizeof(float) || !staging)
        return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "MPI adds gradients in fp32, and by the side");
    if (c->ranks * p->part > INT32_MAX) return too_large(c->ranks * p->part, d);
    for (uint32_t r = 0; r < c->ranks; r++) {
        m->count[r] = (int)part_of(p, r);
        m->place[r] = (int)GR_MIN(r * p->part, p->n);
        m->own_count[r] = (int)n;
        m->own_place[r] = (int)(r * n);
    }
    pthread_mutex_lock(&m->w->lock);
    gr_status st = finish(m,
                          m->api->all_to_all(m->group, p->at, m->count, m->place, staging, m->own_count,
                                             m->own_place, (int)p->elem_bytes),
                          d);
    if (st) return st;
    add_tree(staging, n, c->ranks);
    if (n) memcpy((float *)p->at + c->rank * p->part, staging, n * sizeof(float));
    return GR_OK;
}

static void widen(float *to, const uint16_t *from, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) to[i] = gr_bf16_to_f32(from[i]);
}

static void narrow(uint16_t *to, const float *from, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) to[i] = gr_f32_to_bf16(from[i]);
}

/* Everyone gets everyone's elements, so many at a time, and adds them alike. unit: 4, or 2 for bf16. */
static gr_status sum_up(gr_comm *c, void *x, uint64_t bytes, uint32_t unit, gr_diag *d)
{
    mpi_comm *m = mpi_of(c);
    const uint64_t most = TREE / sizeof(float) / c->ranks * unit;
    char *parts = unit == 2 ? (char *)m->halves : (char *)m->tree;
    for (uint64_t at = 0; at < bytes; at += most) {
        const uint64_t part = GR_MIN(bytes - at, most), n = part / unit;
        char *own = (char *)x + at;
        memcpy(parts + c->rank * part, own, part);
        gr_status st = all_gather(c, NULL, &(gr_comm_parts){parts, c->ranks * n, n, unit}, d);
        if (st) return st;
        if (unit == 2) widen(m->tree, m->halves, c->ranks * n);
        add_tree(m->tree, n, c->ranks);
        if (unit == 2)
            narrow((uint16_t *)(void *)own, m->tree, n);
        else
            memcpy(own, m->tree, part);
    }
    return GR_OK;
}

static gr_status host_reduce(gr_comm *c, void *x, uint64_t bytes, gr_comm_reduction how, gr_diag *d)
{
    static const gr_mpi_reduction names[] = {[GR_COMM_SUM_F64] = GR_MPI_SUM_F64,
                                             [GR_COMM_MAX_U8] = GR_MPI_MAX_U8,
                                             [GR_COMM_MAX_U64] = GR_MPI_MAX_U64};
    mpi_comm *m = mpi_of(c);
    const uint32_t unit = gr_comm_unit(how);
    gr_status st = GR_OK;
    assert(bytes % unit == 0);
    if (how == GR_COMM_SUM_F32 || how == GR_COMM_SUM_BF16) return sum_up(c, x, bytes, unit, d);
    for (uint64_t at = 0; at < bytes && !st; at += MOST * unit) {
        uint64_t n = GR_MIN(bytes - at, MOST * unit) / unit;
        pthread_mutex_lock(&m->w->lock);
        st = finish(m, m->api->all_reduce(m->group, (char *)x + at, (int)n, names[how]), d);
    }
    return st;
}

static gr_status all_reduce(gr_comm *c, gr_queue *q, void *x, uint64_t bytes, gr_comm_reduction how,
                            gr_diag *d)
{
    (void)q;
    return host_reduce(c, x, bytes, how, d);
}

/* false: it is more than MPI counts. */
static bool count_in(uint32_t unit, const uint64_t *at, const uint64_t *bytes, uint32_t n, int *place,
                     int *count)
{
    for (uint32_t i = 0; i < n; i++) {
        if (at[i] / unit > INT32_MAX || bytes[i] / unit > INT32_MAX) return false;
        place[i] = (int)(at[i] / unit);
        count[i] = (int)(bytes[i] / unit);
    }
    return true;
}

static gr_status all_to_all(gr_comm *c, gr_queue *q, const gr_comm_exchange *e, gr_diag *d)
{
    mpi_comm *m = mpi_of(c);
    (void)q;
    if (!count_in(e->unit, e->from_at, e->from_bytes, c->ranks, m->place, m->count) ||
        !count_in(e->unit, e->to_at, e->to_bytes, c->ranks, m->own_place, m->own_count))
        return too_large((uint64_t)INT32_MAX + 1, d);
    pthread_mutex_lock(&m->w->lock);
    return finish(m,
                  m->api->all_to_all(m->group, e->from, m->count, m->place, e->to, m->own_count, m->own_place,
                                     (int)e->unit),
                  d);
}

static gr_status send_to(gr_comm *c, gr_queue *q, const void *x, uint64_t bytes, uint32_t to, gr_diag *d)
{
    mpi_comm *m = mpi_of(c);
    gr_status st = GR_OK;
    (void)q;
    for (uint64_t at = 0; at < bytes && !st; at += MOST) {
        pthread_mutex_lock(&m->w->lock);
        st = finish(m, m->api->send(m->group, (const char *)x + at, (int)GR_MIN(bytes - at, MOST), (int)to),
                    d);
    }
    return st;
}

static gr_status recv_from(gr_comm *c, gr_queue *q, void *x, uint64_t bytes, uint32_t from, gr_diag *d)
{
    mpi_comm *m = mpi_of(c);
    gr_status st = GR_OK;
    (void)q;
    for (uint64_t at = 0; at < bytes && !st; at += MOST) {
        pthread_mutex_lock(&m->w->lock);
        st = finish(m, m->api->recv(m->group, (char *)x + at, (int)GR_MIN(bytes - at, MOST), (int)from), d);
    }
    return st;
}

static gr_status broadcast(gr_comm *c, void *x, uint64_t bytes, gr_diag *d)
{
    mpi_comm *m = mpi_of(c);
    gr_status st = GR_OK;
    for (uint64_t at = 0; at < bytes && !st; at += MOST) {
        pthread_mutex_lock(&m->w->lock);
        st = finish(m, m->api->broadcast(m->group, (char *)x + at, (int)GR_MIN(bytes - at, MOST)), d);
    }
    return st;
}

static gr_status barrier(gr_comm *c, gr_diag *d)
{
    mpi_comm *m = mpi_of(c);
    pthread_mutex_lock(&m->w->lock);
    return finish(m, m->api->barrier(m->group), d);
}

static gr_status post(gr_comm *c, const void *x, uint64_t bytes, uint32_t to, gr_diag *d)
{
    mpi_comm *m = mpi_of(c);
    if (bytes > INT32_MAX) return too_large(bytes, d);
    pthread_mutex_lock(&m->w->lock);
    const char *why = m->api->post(m->group, x, (int)bytes, (int)to);
    gr_status st = why ? failed(why, d) : GR_OK;
    pthread_mutex_unlock(&m->w->lock);
    return st;
}

static gr_status await_message(mpi_comm *m, uint32_t from, int *bytes, gr_diag *d)
{
    uint64_t begin = gr_now_ns();
    bool came = false;
    gr_status st = GR_OK;
    gr_watchdog_wait(true);
    while (!came && !st) {
        pthread_mutex_lock(&m->w->lock);
        const char *why = m->api->message(m->group, (int)from, bytes, &came);
        if (why) st = failed(why, d);
        pthread_mutex_unlock(&m->w->lock);
        if (!came && !st) relax(begin);
    }
    gr_watchdog_wait(false);
    return st;
}

static gr_status collect(gr_comm *c, void **x, uint64_t *bytes, uint32_t from, gr_diag *d)
{
    mpi_comm *m = mpi_of(c);
    int n = 0;
    gr_status st = await_message(m, from, &n, d);
    if (st) return st;
    *bytes = (uint64_t)n;
    *x = gr_malloc(GR_MAX(*bytes, (uint64_t)1));
    pthread_mutex_lock(&m->w->lock);
    st = finish(m, m->api->take(m->group, *x, n, (int)from), d);
    if (!st) return GR_OK;
    free(*x);
    return st;
}

/* ---- signs of life ---------------------------------------------------------------------------------------
 */

/* The run ends here: what abort waits for may be what is lost. */
static void end_all(world *w, const char *why)
{
    w->lost(why);
    signal(SIGALRM, SIG_DFL);
    alarm(10);
    w->api->abort(1);
    _exit(1);
}

/* What all ranks meet with before they can speak to each other the first one says, whose end is the others'.
 */
static void let_the_first_speak(void)
{
    const char *rank = getenv("PMIX_RANK");
    unsigned seconds = rank && strcmp(rank, "0") ? 5 : 0;
    while (seconds) seconds = sleep(seconds); /* mpirun's signals end it early */
}

/* Nobody can be asked: MPI is what does not answer. */
_Noreturn static void end_alone(world *w, const char *where)
{
    const char *rank = getenv("PMIX_RANK");
    char host[64] = "";
    uint32_t iteration;
    const char *step;
    gr_watchdog_where(&iteration, &step);
    gethostname(host, sizeof(host) - 1);
    char *why = gr_printf("rank %s on host %s has waited in %s for %u s, in iteration %u, step '%s': another "
                          "rank, or who has started them, has stopped (" GR_WATCHDOG_SILENCE
                          "=%u in the environment waits twice as long): all ranks are ended",
                          rank ? rank : "?", host, where, gr_watchdog_silence_alone(), iteration, step,
                          2 * gr_watchdog_silence());
    let_the_first_speak();
    w->lost(why);
    _exit(1);
}

/* This rank's sign, to rank 0 or of it to all. */
static const char *give(world *w)
{
    gr_sign own;
    const char *why = NULL;
    gr_watchdog_sign(&own);
    w->seen[w->rank].sign = own;
    w->seen[w->rank].heard_ns = gr_now_ns();
    if (w->rank) return w->api->beat(&own, sizeof(own), 0);
    for (uint32_t r = 1; r < w->ranks && !why; r++) why = w->api->beat(&own, sizeof(own), (int)r);
    return why;
}

enum { SPELL_NS = 100000000 };

/* false: somebody has been in a call of MPI for too long. ThreadSanitizer knows no lock with a limit but this
 * one, whose clock may be set: so it waits by short spells, and a clock that never jumps says for how long.
 */
static bool take_lock(world *w)
{
    const uint64_t end = gr_now_ns() + gr_watchdog_silence_alone() * SECOND_NS;
    bool taken;
    do {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += SPELL_NS;
        until.tv_sec += until.tv_nsec / (long)SECOND_NS;
        until.tv_nsec %= (long)SECOND_NS;
        taken = !pthread_mutex_timedlock(&w->lock, &until);
    } while (!taken && gr_now_ns() < end);
    return taken;
}

static void take_signs(world *w)
{
    gr_sign came;
    int from;
    const char *why = give(w);
    while (!why) {
        why = w->api->heard(&came, sizeof(came), &from);
        if (why || from < 0) break;
        w->seen[from].sign = came;
        w->seen[from].heard_ns = gr_now_ns();
        if (strcmp(w->hosts[from], w->hosts[w->rank])) gr_watchdog_tell_of((uint32_t)from, &came);
    }
}

/* Give a sign, and take what came. */
static void beat(world *w)
{
    if (!take_lock(w)) end_alone(w, "a call of MPI");
    if (atomic_load(&w->stage) == TOGETHER) take_signs(w);
    pthread_mutex_unlock(&w->lock);
}

/* All as if they had just been heard. */
static void forgive(world *w)
{
    for (uint32_t r = 0; r < w->ranks; r++) w->seen[r].heard_ns = gr_now_ns();
}

/* Where rank 0 is lost, the next one speaks, and its word ends the others before theirs. */
static void judge(world *w)
{
    char *why = w->rank ? gr_watchdog_lost(w->seen, 1, gr_now_ns())
                        : gr_watchdog_judge(w->seen, w->ranks, gr_now_ns());
    if (!why) return;
    if (w->rank > 1) sleep(2);
    end_all(w, why);
}

/* One rank alone waits for nobody: it is not known before it has joined. */
static void watch_alone(world *w, uint64_t since)
{
    if (gr_now_ns() - since < gr_watchdog_silence_alone() * SECOND_NS) return;
    end_alone(w, atomic_load(&w->stage) == JOINING ? "MPI_Init" : "MPI_Finalize");
}

/* Until the next beat is due. false: this process leaves. */
static bool wait_for_beat(world *w)
{
    struct timespec due;
    clock_gettime(CLOCK_MONOTONIC, &due);
    const uint64_t ns = (uint64_t)due.tv_nsec + BEAT_NS;
    due.tv_sec += (time_t)(ns / SECOND_NS);
    due.tv_nsec = (long)(ns % SECOND_NS);
    int late = 0;
    pthread_mutex_lock(&w->quit_lock);
    while (!w->quit && !late) late = pthread_cond_timedwait(&w->quits, &w->quit_lock, &due);
    const bool goes_on = !w->quit;
    pthread_mutex_unlock(&w->quit_lock);
    return goes_on;
}

static void end_watch(world *w)
{
    pthread_mutex_lock(&w->quit_lock);
    w->quit = true;
    pthread_cond_signal(&w->quits);
    pthread_mutex_unlock(&w->quit_lock);
    if (w->started) pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->quits);
    pthread_mutex_destroy(&w->quit_lock);
}

/* A process that was stopped as a whole, or a machine that was, has heard nothing, and has no right to
 * complain. */
static void *watch(void *arg)
{
    world *w = arg;
    uint64_t awake = gr_now_ns(), since = awake;
    int before = JOINING;
    do {
        const uint64_t now = gr_now_ns();
        const int stage = atomic_load(&w->stage);
        if (now - awake > 5 * SECOND_NS || stage != before) {
            since = now;
            if (stage == TOGETHER) forgive(w);
        }
        awake = now;
        before = stage;
        if (stage == TOGETHER && w->ranks > 1) {
            beat(w);
            judge(w);
        } else if (stage != TOGETHER) {
            watch_alone(w, since);
        }
    } while (wait_for_beat(w));
    return NULL;
}

/* ---- opening ---------------------------------------------------------------------------------------------
 */

/* Beside the program where it was built, or where it was installed. */
char *gr_comm_mpi_module(void)
{
    static const char *const places[] = {"../runtime/comm", "../lib/graphrun", "."};
    char exe[4096];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
    const char *given = getenv("GRAPHRUN_MPI");
    if (given && *given) return gr_strdup(given);
    exe[GR_MAX(n, 0)] = '\0';
    char *slash = strrchr(exe, '/');
    if (slash) *slash = '\0';
    for (size_t i = 0; i < GR_LEN(places); i++) {
        char *path = gr_printf("%s/%s/graphrun_mpi.so", exe, places[i]);
        if (gr_path_exists(path)) return path;
        free(path);
    }
    return NULL;
}

bool gr_comm_has_mpi(void)
{
    char *path = gr_comm_mpi_module();
    const bool there = path != NULL;
    free(path);
    return there;
}

char *gr_comm_loopback_setting(void)
{
    static const char name[] = "graphrun_loopback.so";
    char *module = gr_comm_mpi_module(), *folder = module ? gr_path_real(module) : NULL;
    char *slash = folder ? strrchr(folder, '/') : NULL;
    const char *before = getenv("LD_PRELOAD");
    if (slash) *slash = '\0';
    char *path = slash ? gr_printf("%s/%s", folder, name) : NULL, *setting = NULL;
    if (path && gr_path_exists(path))
        setting = gr_printf("LD_PRELOAD=%s%s%s", path, before ? ":" : "", before ? before : "");
    free(path);
    free(folder);
    free(module);
    return setting;
}

static void free_comm(mpi_comm *m)
{
    free(m->count);
    free(m->tree);
    free(m->halves);
    free(m);
}

static void enter_stage(world *w, int stage, const char *step)
{
    pthread_mutex_lock(&w->lock);
    atomic_store(&w->stage, stage);
    pthread_mutex_unlock(&w->lock);
    gr_watchdog_at(step, stage == TOGETHER);
}

static void close_world(mpi_comm *m)
{
    world *w = m->w;
    if (m->group && atomic_load(&w->stage) == TOGETHER) {
        gr_status st = barrier(&m->c, NULL); /* all are heard until all have come here */
        (void)st;                            /* a rank that failed is ended by abort */
        enter_stage(w, LEAVING, GR_WATCHDOG_LEAVES);
    }
    if (m->group) w->api->stop();
    end_watch(w);
    gr_watchdog_at(GR_WATCHDOG_LEFT, false);
    pthread_mutex_destroy(&w->lock);
    free(w->hosts);
    free(w->seen);
    free(w); /* the module stays: what it was linked with does not like to be unloaded */
}

static void close_comm(gr_comm *c)
{
    mpi_comm *m = mpi_of(c);
    if (m->whole) {
        close_world(m);
    } else {
        pthread_mutex_lock(&m->w->lock);
        m->api->leave(m->group);
        pthread_mutex_unlock(&m->w->lock);
    }
    free_comm(m);
}

static void abort_comm(gr_comm *c, int status)
{
    mpi_of(c)->api->abort(status);
}

static gr_status split(gr_comm **out, gr_comm *c, uint32_t color, gr_diag *d);

static const gr_comm_type mpi_type = {
    .name = "mpi",
    .close = close_comm,
    .abort = abort_comm,
    .split = split,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .all_reduce = all_reduce,
    .all_to_all = all_to_all,
    .send = send_to,
    .recv = recv_from,
    .host_reduce = host_reduce,
    .broadcast = broadcast,
    .barrier = barrier,
    .post = post,
    .collect = collect,
};

static mpi_comm *comm_of(world *w, bool whole)
{
    mpi_comm *m = gr_calloc(1, sizeof(*m));
    m->c.type = &mpi_type;
    m->w = w;
    m->api = w->api;
    m->whole = whole;
    return m;
}

static void take_place(mpi_comm *m, const gr_mpi_place *p)
{
    const size_t n = (size_t)p->ranks;
    m->group = p->group;
    m->c.rank = (uint32_t)p->rank;
    m->c.ranks = (uint32_t)p->ranks;
    m->c.local = (uint32_t)p->local;
    m->c.locals = (uint32_t)p->locals;
    snprintf(m->c.host, sizeof(m->c.host), "%s", p->host);
    m->count = gr_calloc(4 * n, sizeof(*m->count));
    m->place = m->count + n;
    m->own_count = m->place + n;
    m->own_place = m->own_count + n;
    m->tree = gr_malloc(TREE);
    m->halves = gr_malloc(TREE / 2);
}

/* MPI waits for all of them by itself, and nobody gives signs of life meanwhile: gr_comm_split has seen that
 * they are there. */
static gr_status split(gr_comm **out, gr_comm *c, uint32_t color, gr_diag *d)
{
    const mpi_comm *of = mpi_of(c);
    gr_mpi_place place = {0};
    pthread_mutex_lock(&of->w->lock);
    const char *why = of->api->split(of->group, (int)color, &place);
    gr_status st = why ? failed(why, d) : GR_OK;
    pthread_mutex_unlock(&of->w->lock);
    if (st) return st;
    mpi_comm *m = comm_of(of->w, false);
    take_place(m, &place);
    *out = &m->c;
    return GR_OK;
}

static gr_status load(world *w, gr_diag *d)
{
    char *path = gr_comm_mpi_module();
    if (!path)
        return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED,
                             "several ranks need MPI, which this build has not (meson setup -Dmpi=enabled)");
    w->module = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* Open MPI's own modules look for its symbols */
    w->api = w->module ? dlsym(w->module, GR_MPI_API_SYMBOL) : NULL;
    gr_status st = w->api && w->api->version == GR_MPI_API_VERSION
                       ? GR_OK
                       : gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "cannot load '%s': %s", path,
                                       w->api ? "it belongs to another version" : dlerror());
    free(path);
    return st;
}

static gr_status join(mpi_comm *m, gr_diag *d)
{
    world *w = m->w;
    gr_mpi_place p = {0};
    const char *why = w->api->start(&p);
    if (why) return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "MPI does not start: %s", why);
    take_place(m, &p);
    w->rank = m->c.rank;
    w->ranks = m->c.ranks;
    w->hosts = gr_calloc(w->ranks, sizeof(*w->hosts));
    memcpy(w->hosts[w->rank], p.host, sizeof(*w->hosts));
    w->seen = gr_calloc(w->ranks, sizeof(*w->seen));
    for (uint32_t r = 0; r < w->ranks; r++)
        w->seen[r] = (gr_watched){.sign.step = "start", .host = w->hosts[r]};
    return all_gather(&m->c, NULL,
                      &(gr_comm_parts){w->hosts, w->ranks * sizeof(*w->hosts), sizeof(*w->hosts), 1}, d);
}

/* ---- memory that MPI shares ------------------------------------------------------------------------------
 */

#define SHARED_FOLDER "OMPI_MCA_btl_vader_backing_directory"
#define SHARED_SEGMENT \
    (UINT64_C(5) << 20) /* bytes: a rank's btl_vader_segment_size, 4 MiB, and what is around it */

/* Of a file system that says no size there is no end. */
static uint64_t room_in(const char *folder)
{
    struct statvfs s;
    if (statvfs(folder, &s)) return 0;
    return s.f_blocks ? (uint64_t)s.f_bavail * s.f_frsize : UINT64_MAX;
}

/* Open MPI takes its memory without asking whether it is there, and who first writes where none is left dies
 * of SIGBUS: it goes where all ranks of this host find room. What the environment says of it already stays.
 */
static gr_status find_room(gr_diag *d)
{
    const char *locals = getenv("OMPI_COMM_WORLD_LOCAL_SIZE"), *temporary = getenv("TMPDIR");
    const uint64_t wanted = GR_MAX(locals ? strtoull(locals, NULL, 10) : 1, 1ull) * SHARED_SEGMENT;
    const uint64_t room = room_in("/dev/shm");
    char is[32], wants[32];
    if (getenv(SHARED_FOLDER) || room >= wanted) return GR_OK;
    if (!temporary || !*temporary) temporary = "/tmp";
    if (room_in(temporary) >= wanted) {
        setenv(SHARED_FOLDER, temporary, 1);
        return GR_OK;
    }
    return gr_diag_error(
        d, (gr_loc){0}, GR_E_FAILED,
        "'/dev/shm' has %s left, the ranks of this host need %s there for messages, and '%s' has "
        "no room for them either: make room, or name another folder by " SHARED_FOLDER,
        gr_bytes_format(room, is), gr_bytes_format(wanted, wants), temporary);
}

static void init_quit(world *w)
{
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->quit_lock, NULL);
    pthread_cond_init(&w->quits, &clock);
    pthread_condattr_destroy(&clock);
}

static gr_status start_watch(world *w, gr_diag *d)
{
    const int error = pthread_create(&w->thread, NULL, watch, w);
    w->started = !error;
    if (!error) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_NOMEM,
                         "cannot start the thread that listens for other ranks: %s", strerror(error));
}

gr_status gr_comm_open_mpi(gr_comm **out, void (*lost)(const char *message), gr_diag *d)
{
    const char *silence = getenv(GR_WATCHDOG_SILENCE);
    gr_status st = silence && *silence ? gr_watchdog_set_silence(silence, d) : GR_OK;
    world *w = gr_calloc(1, sizeof(*w));
    w->lost = lost;
    pthread_mutex_init(&w->lock, NULL);
    init_quit(w);
    if (!st) st = find_room(d);
    if (!st) st = load(w, d);
    mpi_comm *m = comm_of(w, true);
    gr_watchdog_at(GR_WATCHDOG_JOINS, false);
    if (!st) st = start_watch(w, d);
    if (!st) st = join(m, d);
    if (st) {
        close_comm(&m->c);
        let_the_first_speak();
        return st;
    }
    enter_stage(w, TOGETHER, "start");
    *out = &m->c;
    return GR_OK;
}
