/* runtime/run/executor.c: a plan followed: a thread for each lane, waits, loops, what was touched. */
#include "runtime/run/executor.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Every lane walks the whole path and executes the steps that are its own. What it must wait for is always a
 * step with a lower number, so the lowest step that has not run can run: no order of threads can block.
 *
 * Events are counters that only grow during a path: done[i] is how often step i has completed (a loop: all
 * its trips), granted[i] how many trips of loop i have been let begin, finished[i] how many trips of it other
 * lanes have finished. */

enum { ALL_LANES = (1u << GR_N_LANES) - 1 };

struct lane {
    struct gr_executor *e;
    gr_queue queue;
    pthread_t thread;
    bool started;
    gr_status st;
    gr_diag d;
    uint64_t *trips; /* [longest path] of a loop: trips begun on this path */
    unsigned mask;   /* the lanes whose steps it executes: one; with poison, all */
};

struct path_info {
    uint32_t *parent;     /* [n] innermost loop around a step, or GR_NONE */
    unsigned *body_lanes; /* [n] of a loop: mask of the lanes with steps in the body */
    bool *skip;           /* [n] this time */
};

struct timed {
    uint32_t step, trip, number;
};

struct gr_executor {
    const gr_plan *plan;
    gr_exec_hooks hooks;
    gr_exec_options o;
    gr_device *device;
    gr_arena *memory;
    struct path_info info[GR_N_PATHS];
    gr_memory_check *memory_check; /* or NULL */
    gr_disk *disk;                 /* NULL: the plan keeps nothing there */
    struct lane lanes[GR_N_LANES];
    uint32_t longest; /* steps of the longest path */
    unsigned running; /* mask of the lanes that have a thread, the caller's among them */

    pthread_mutex_t mutex; /* guards all below */
    pthread_cond_t changed;
    uint64_t round; /* paths begun: a lane's thread waits for the next */
    gr_path_id path;
    uint64_t *done, *granted, *finished; /* [longest path] */
    unsigned busy;                       /* other lanes that have not finished the path */
    bool stop, quit;
    int first_failed; /* lane, or -1 */

    struct timed *timed; /* steps whose times are read at the path's end; guarded by mutex */
    size_t n_timed, cap_timed;
    _Atomic uint64_t next_sample_ns, measured_peak;
};

/* ---- what a path looks like ---------------------------------------------------------------------------- */

static bool inside(const gr_step *steps, uint32_t loop, uint32_t i)
{
    return loop == GR_NONE || (i > loop && i <= steps[loop].body_last);
}

/* The step to wait for in the place of a: the outermost loop around a that i is not in, or a itself. *level:
 * the loop that holds both, or GR_NONE. */
static uint32_t lift(const gr_path *p, const struct path_info *in, uint32_t a, uint32_t i, uint32_t *level)
{
    while (!inside(p->steps, in->parent[a], i)) a = in->parent[a];
    *level = in->parent[a];
    return a;
}

static gr_status bad_step(const gr_step *s, uint32_t i, const char *what, gr_diag *d)
{
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "cannot run the plan: step %u '%s' %s", i, s->what,
                         what);
}

static bool copy_is_sound(const gr_plan *plan, const gr_step *s)
{
    if (!s->bytes) return true;
    if (!s->n_reads || !s->n_writes) return false;
    const gr_entry *from = &plan->ledger[s->reads[0]], *to = &plan->ledger[s->writes[0]];
    bool load = s->kind == GR_STEP_LOAD;
    return from->place == (load ? GR_HOST : GR_DEVICE) && to->place == (load ? GR_DEVICE : GR_HOST) &&
           s->bytes <= from->bytes && s->bytes <= to->bytes;
}

/* The entries of a fetch or store; false: it does not name them. */
static bool disk_entries(const gr_plan *plan, const gr_step *s, const gr_entry **disk, uint32_t *host)
{
    const bool fetch = s->kind == GR_STEP_FETCH;
    if (s->n_reads != 1 || s->n_writes != 1) return false;
    *disk = &plan->ledger[fetch ? s->reads[0] : s->writes[0]];
    *host = fetch ? s->writes[0] : s->reads[0];
    const gr_entry *x = &plan->ledger[*host];
    return (*disk)->place == GR_DISK && x->place == GR_HOST && s->bytes <= (*disk)->bytes &&
           s->bytes <= x->bytes && x->offset % GR_DISK_BLOCK == 0 && (*disk)->offset % GR_DISK_BLOCK == 0;
}

static gr_status check_step(const gr_plan *plan, gr_path_id id, uint32_t i, uint32_t loop, gr_diag *d)
{
    const gr_path *p = &plan->paths[id];
    const gr_step *s = &p->steps[i];
    for (uint32_t k = 0; k < s->n_after; k++)
        if (s->after[k] >= i) return bad_step(s, i, "waits for itself or a later step", d);
    for (uint32_t k = 0; k < s->n_reads; k++)
        if (s->reads[k] >= plan->n_ledger) return bad_step(s, i, "reads what is not in the ledger", d);
    for (uint32_t k = 0; k < s->n_writes; k++)
        if (s->writes[k] >= plan->n_ledger) return bad_step(s, i, "writes what is not in the ledger", d);
    switch (s->kind) {
    case GR_STEP_LOAD:
    case GR_STEP_OFFLOAD:
        return copy_is_sound(plan, s) ? GR_OK : bad_step(s, i, "does not say what it copies", d);
    case GR_STEP_FETCH:
    case GR_STEP_STORE: {
        const gr_entry *disk;
        uint32_t host;
        return disk_entries(plan, s, &disk, &host) ? GR_OK : bad_step(s, i, "does not say what it copies", d);
    }
    case GR_STEP_LOOP:
        if (s->body_last == GR_NONE || s->body_last < i || s->body_last >= p->n ||
            (loop != GR_NONE && s->body_last > p->steps[loop].body_last))
            return bad_step(s, i, "has a body that does not nest", d);
        return GR_OK;
    case GR_STEP_RELEASE:
    case GR_STEP_RESUME:
    case GR_STEP_SAVE:
    case GR_STEP_RESTORE:
    case GR_STEP_RUN:
    case GR_STEP_SYNC: /* on one rank a copy */
        return GR_OK;
    case GR_STEP_SEND:
    case GR_STEP_RECV:
        return plan->pools && *plan->pools ? GR_OK : bad_step(s, i, "needs ranks of another role", d);
    default:
        return plan->ranks && gr_plan_ranks(plan) > 1 ? GR_OK : bad_step(s, i, "needs several ranks", d);
    }
}

static gr_status study_path(gr_executor *e, gr_path_id id, gr_diag *d)
{
    const gr_path *p = &e->plan->paths[id];
    struct path_info *in = &e->info[id];
    in->parent = gr_arena_alloc(e->memory, p->n * sizeof(*in->parent));
    in->body_lanes = gr_arena_alloc(e->memory, p->n * sizeof(*in->body_lanes));
    in->skip = gr_arena_alloc(e->memory, p->n * sizeof(*in->skip));
    uint32_t loop = GR_NONE;
    for (uint32_t i = 0; i < p->n; i++) {
        while (loop != GR_NONE && i > p->steps[loop].body_last) loop = in->parent[loop];
        gr_status st = check_step(e->plan, id, i, loop, d);
        if (st) return st;
        in->parent[i] = loop;
        for (uint32_t up = loop; up != GR_NONE && p->steps[i].kind != GR_STEP_LOOP; up = in->parent[up])
            in->body_lanes[up] |= 1u << p->steps[i].lane;
        if (p->steps[i].kind == GR_STEP_LOOP)
            loop = i;
        else
            e->running |= 1u << p->steps[i].lane;
    }
    return GR_OK;
}

/* ---- events -------------------------------------------------------------------------------------------- */

static void bump(gr_executor *e, uint64_t *counter)
{
    pthread_mutex_lock(&e->mutex);
    ++*counter;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->mutex);
}

/* Wait until *counter has reached value; false: the path was stopped. */
static bool await(gr_executor *e, const uint64_t *counter, uint64_t value)
{
    pthread_mutex_lock(&e->mutex);
    while (*counter < value && !e->stop) pthread_cond_wait(&e->changed, &e->mutex);
    bool go = !e->stop;
    pthread_mutex_unlock(&e->mutex);
    return go;
}

static void fail(struct lane *l, gr_status st)
{
    gr_executor *e = l->e;
    pthread_mutex_lock(&e->mutex);
    l->st = st;
    e->stop = true;
    if (e->first_failed < 0) e->first_failed = (int)(l - e->lanes);
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->mutex);
}

/* ---- order on the device: events of steps, and one a lane for where lanes meet; empty on the CPU device
 * ---- */

static void mark(struct lane *l, uint32_t event)
{
    if (l->queue.device) l->queue.device->type->mark(&l->queue, event);
}

static void follow(struct lane *l, uint32_t event)
{
    if (l->queue.device) l->queue.device->type->follow(&l->queue, event);
}

static uint32_t meeting(const gr_executor *e, unsigned lane)
{
    return e->longest + lane;
}

static void follow_lanes(struct lane *l, unsigned mask)
{
    for (unsigned i = 0; i < GR_N_LANES; i++)
        if (mask >> i & 1) follow(l, meeting(l->e, i));
}

static void mark_meeting(struct lane *l)
{
    mark(l, meeting(l->e, (unsigned)(l - l->e->lanes)));
}

/* ---- measuring ----------------------------------------------------------------------------------------- */

/* Arena pages stay resident once touched, so a sample now and then sees them all. The pause is 50 times what
 * the sample took: measuring costs 2 % at most. */
static void sample(gr_executor *e, bool now)
{
    uint64_t begin = gr_now_ns(), next = atomic_load(&e->next_sample_ns);
    if (!now && (begin < next || !atomic_compare_exchange_strong(&e->next_sample_ns, &next, UINT64_MAX)))
        return;
    uint64_t device = e->device->type->used(e->device), peak = atomic_load(&e->measured_peak);
    while (device > peak && !atomic_compare_exchange_weak(&e->measured_peak, &peak, device)) {
    }
    uint64_t end = gr_now_ns(), pause = 50 * (end - begin);
    atomic_store(&e->next_sample_ns, end + GR_MAX(pause, UINT64_C(2000000)));
}

/* ---- steps --------------------------------------------------------------------------------------------- */

static void *address_of(const gr_executor *e, uint32_t entry)
{
    const gr_entry *x = &e->plan->ledger[entry];
    return (x->place == GR_HOST ? e->device->pool.base : e->device->arena.base) + x->offset;
}

static void copy(gr_queue *q, void *to, const void *from, uint64_t bytes)
{
    if (q->device)
        q->device->type->copy(q, to, from, bytes);
    else
        memcpy(to, from, (size_t)bytes);
}

static gr_status copy_to_disk_or_back(struct lane *l, const gr_step *s)
{
    gr_executor *e = l->e;
    const gr_entry *disk;
    uint32_t host;
    disk_entries(e->plan, s, &disk, &host); /* it was looked at before */
    void *at = address_of(e, host);
    return s->kind == GR_STEP_FETCH ? gr_disk_read(e->disk, disk->offset, at, s->bytes, &l->d)
                                    : gr_disk_write(e->disk, disk->offset, at, s->bytes, &l->d);
}

static gr_status perform(struct lane *l, gr_path_id id, uint32_t i)
{
    gr_executor *e = l->e;
    const gr_step *s = &e->plan->paths[id].steps[i];
    switch (s->kind) {
    case GR_STEP_LOAD:
    case GR_STEP_OFFLOAD:
        if (s->bytes) copy(&l->queue, address_of(e, s->writes[0]), address_of(e, s->reads[0]), s->bytes);
        return GR_OK;
    case GR_STEP_FETCH:
    case GR_STEP_STORE:
        return copy_to_disk_or_back(l, s);
    case GR_STEP_RELEASE:
    case GR_STEP_RESUME:
        return GR_OK; /* they move nothing */
    default:
        return e->hooks.run(e->hooks.user, id, i, &l->queue, &l->d);
    }
}

static gr_status perform_now(struct lane *l, gr_path_id id, uint32_t i, uint32_t trip)
{
    gr_executor *e = l->e;
    uint64_t begin = gr_now_ns();
    if (e->memory_check) gr_memory_check_before(e->memory_check, id, i);
    gr_status st = perform(l, id, i);
    if (!st && e->memory_check) st = gr_memory_check_after(e->memory_check, id, i, &l->d);
    if (e->o.trace) e->o.trace(e->o.trace_user, id, i, trip, begin, gr_now_ns());
    return st;
}

/* A step that failed because the device is lost says so, in one message instead of those of what stumbled
 * over it. */
static gr_status explain(struct lane *l, gr_status st)
{
    const char *seen = NULL;
    gr_diag one;
    if (l->queue.at.told) return st;
    gr_diag_init(&one);
    for (size_t i = 0; i < l->d.n && !seen; i++)
        if (l->d.messages[i].severity == GR_ERROR) seen = l->d.messages[i].text;
    gr_status lost = l->e->device->type->lost(&l->queue, seen, &one);
    if (lost) {
        gr_diag_release(&l->d);
        l->d = one;
        return lost;
    }
    gr_diag_release(&one);
    return st;
}

/* The device's own times are read when the path has ended. What an earlier step of any lane has left of a
 * failed device is no ground for this one. */
static gr_status perform_queued(struct lane *l, gr_path_id id, uint32_t i, uint32_t trip)
{
    gr_executor *e = l->e;
    const gr_device_type *t = e->device->type;
    l->queue.at = (gr_queue_place){.step = e->plan->paths[id].steps[i].what};
    t->range(l->queue.at.step);
    uint32_t number = e->o.trace ? t->time_begin(&l->queue) : GR_NONE;
    gr_status st = t->check(&l->queue, &l->d);
    if (!st) {
        st = perform(l, id, i);
        st = st ? explain(l, st) : t->check(&l->queue, &l->d);
    }
    if (number != GR_NONE) {
        t->time_end(&l->queue, number);
        struct timed x = {i, trip, number};
        pthread_mutex_lock(&e->mutex);
        GR_PUSH(e->timed, e->n_timed, e->cap_timed, x);
        pthread_mutex_unlock(&e->mutex);
    }
    mark(l, i);
    t->range(NULL);
    return st;
}

static bool execute(struct lane *l, gr_path_id id, uint32_t i, uint32_t trip)
{
    gr_executor *e = l->e;
    if (e->info[id].skip[i]) return true;
    gr_status st = l->queue.device ? perform_queued(l, id, i, trip) : perform_now(l, id, i, trip);
    sample(e, false);
    if (st) fail(l, st);
    return !st;
}

/* ---- lanes --------------------------------------------------------------------------------------------- */

/* Where a lane is: a loop's trips are numbered from the path's begin, so that events of an earlier round of
 * an outer loop are never taken for this one's. */
struct level {
    const struct level *up;
    uint32_t loop;   /* GR_NONE: the path itself */
    uint64_t number; /* trips of this loop so far on this path, this one counted; the path: 1 */
    uint32_t trip;   /* from 0 in each round */
};

static bool await_after(struct lane *l, gr_path_id id, uint32_t i, const struct level *at)
{
    gr_executor *e = l->e;
    const gr_step *s = &e->plan->paths[id].steps[i];
    for (uint32_t k = 0; k < s->n_after; k++) {
        uint32_t level, target = lift(&e->plan->paths[id], &e->info[id], s->after[k], i, &level);
        bool is_loop = e->plan->paths[id].steps[target].kind == GR_STEP_LOOP;
        if (is_loop && inside(e->plan->paths[id].steps, target, i)) continue; /* its own loop: begun */
        const struct level *common = at;
        while (common->loop != level) common = common->up;
        if (!await(e, &e->done[target], common->number)) return false;
        if (!(l->mask & 1u << e->plan->paths[id].steps[target].lane)) follow(l, target);
    }
    return true;
}

static bool walk(struct lane *l, gr_path_id id, uint32_t first, uint32_t last, const struct level *at);

/* The lanes beside this one that have steps in a loop's body; the others pass it by. */
static unsigned workers(const struct lane *l, gr_path_id id, uint32_t loop)
{
    return l->e->running & l->e->info[id].body_lanes[loop] & ~l->mask;
}

static unsigned count(unsigned mask)
{
    return (unsigned)__builtin_popcount(mask);
}

static bool another_trip(const gr_executor *e, gr_path_id id, uint32_t loop, uint32_t trip)
{
    const gr_step *s = &e->plan->paths[id].steps[loop];
    if (e->info[id].skip[loop] || trip >= s->trips_max) return false;
    return !s->agreed || e->hooks.more(e->hooks.user, id, loop, trip);
}

/* Where the lanes of a loop meet: the others have finished its trip. */
static bool await_workers(struct lane *l, gr_path_id id, const struct level *at)
{
    unsigned others = workers(l, id, at->loop);
    if (!await(l->e, &l->e->finished[at->loop], at->number * count(others))) return false;
    follow_lanes(l, others);
    return true;
}

/* The compute lane's part: decide each trip once the loop's other lanes have finished the one before. */
static bool lead_loop(struct lane *l, gr_path_id id, uint32_t loop, const struct level *up)
{
    gr_executor *e = l->e;
    if (!await_after(l, id, loop, up)) return false;
    struct level at = {up, loop, l->trips[loop], 0};
    for (; another_trip(e, id, loop, at.trip); at.trip++) {
        at.number = ++l->trips[loop];
        mark_meeting(l);
        bump(e, &e->granted[loop]);
        if (!walk(l, id, loop + 1, e->plan->paths[id].steps[loop].body_last, &at)) return false;
        if (!await_workers(l, id, &at)) return false;
    }
    mark(l, loop);
    bump(e, &e->done[loop]);
    return true;
}

/* Wait for the leader's word on trip `number` of round `round`: true, begin it; false: the loop has ended, or
 * all stops. */
static bool await_trip(gr_executor *e, uint32_t loop, uint64_t number, uint64_t round)
{
    pthread_mutex_lock(&e->mutex);
    while (e->granted[loop] < number && e->done[loop] < round && !e->stop)
        pthread_cond_wait(&e->changed, &e->mutex);
    bool begin = e->granted[loop] >= number && !e->stop;
    pthread_mutex_unlock(&e->mutex);
    return begin;
}

static bool follow_loop(struct lane *l, gr_path_id id, uint32_t loop, const struct level *up)
{
    gr_executor *e = l->e;
    if (!(e->info[id].body_lanes[loop] & l->mask)) return true;
    struct level at = {up, loop, l->trips[loop] + 1, 0};
    for (; await_trip(e, loop, at.number, up->number); at.number++, at.trip++) {
        l->trips[loop] = at.number;
        follow(l, meeting(e, GR_LANE_COMPUTE));
        if (!walk(l, id, loop + 1, e->plan->paths[id].steps[loop].body_last, &at)) return false;
        mark_meeting(l);
        bump(e, &e->finished[loop]);
    }
    if (!await(e, &e->done[loop], up->number)) return false;
    follow(l, loop);
    return true;
}

/* Steps first to last, of which last is the end of a body or of the path. */
static bool walk(struct lane *l, gr_path_id id, uint32_t first, uint32_t last, const struct level *at)
{
    gr_executor *e = l->e;
    const gr_step *steps = e->plan->paths[id].steps;
    bool leads = l->mask & 1u << GR_LANE_COMPUTE;
    for (uint32_t i = first; i <= last; i++) {
        if (steps[i].kind == GR_STEP_LOOP) {
            if (!(leads ? lead_loop(l, id, i, at) : follow_loop(l, id, i, at))) return false;
            i = steps[i].body_last;
        } else if (l->mask & 1u << steps[i].lane) {
            if (!await_after(l, id, i, at) || !execute(l, id, i, at->trip)) return false;
            bump(e, &e->done[i]);
        }
    }
    return true;
}

static void walk_path(struct lane *l, gr_path_id id)
{
    const struct level whole = {NULL, GR_NONE, 1, 0};
    uint32_t n = l->e->plan->paths[id].n;
    memset(l->trips, 0, n * sizeof(*l->trips));
    if (n) walk(l, id, 0, n - 1, &whole);
}

static void *lane_main(void *arg)
{
    struct lane *l = arg;
    gr_executor *e = l->e;
    for (uint64_t round = 1;; round++) {
        pthread_mutex_lock(&e->mutex);
        while (e->round < round && !e->quit) pthread_cond_wait(&e->changed, &e->mutex);
        bool quit = e->quit;
        gr_path_id id = e->path;
        pthread_mutex_unlock(&e->mutex);
        if (quit) return NULL;
        walk_path(l, id);
        pthread_mutex_lock(&e->mutex);
        e->busy--;
        pthread_cond_broadcast(&e->changed);
        pthread_mutex_unlock(&e->mutex);
    }
}

/* ---- the executor -------------------------------------------------------------------------------------- */

static gr_status start_lanes(gr_executor *e, uint32_t longest, gr_diag *d)
{
    if (e->o.poison) e->running = 1u << GR_LANE_COMPUTE;
    for (int i = 0; i < GR_N_LANES; i++) {
        struct lane *l = &e->lanes[i];
        if (!(e->running & 1u << i)) continue;
        l->e = e;
        l->mask = e->o.poison ? ALL_LANES : 1u << i;
        l->trips = gr_arena_alloc(e->memory, longest * sizeof(*l->trips));
        if (i == GR_LANE_COMPUTE) continue; /* the caller's thread */
        int failed = pthread_create(&l->thread, NULL, lane_main, l);
        if (failed)
            return gr_diag_error(d, (gr_loc){0}, GR_E_NOMEM, "cannot start the thread of a lane: %s",
                                 strerror(failed));
        l->started = true;
    }
    return GR_OK;
}

static gr_status open_device(gr_executor *e, gr_diag *d)
{
    const gr_device_type *type = e->o.device ? e->o.device : &gr_device_cpu;
    gr_device_needs needs = {e->plan->arena_bytes, e->plan->host_bytes, e->longest + GR_N_LANES};
    gr_status st = type->open(&e->device, &needs, d);
    for (int i = 0; i < GR_N_LANES && !st && type->queue_open; i++)
        if (e->running >> i & 1)
            st = type->queue_open(e->device, &e->lanes[i].queue, i == GR_LANE_HOST || i == GR_LANE_DISK, d);
    return st;
}

static gr_status open_disk(gr_executor *e, gr_diag *d)
{
    char bytes[32];
    if (!e->plan->disk_bytes) return GR_OK;
    if (e->o.disk) return gr_disk_open(&e->disk, e->o.disk, e->plan->disk_bytes, d);
    gr_bytes_format(e->plan->disk_bytes, bytes);
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                         "the plan keeps %s (%llu) on a disk: --disk FOLDER:SIZE says where", bytes,
                         (unsigned long long)e->plan->disk_bytes);
}

static gr_status prepare(gr_executor *e, gr_diag *d)
{
    uint32_t longest = 0;
    e->running = 1u << GR_LANE_COMPUTE;
    for (int i = 0; i < GR_N_PATHS; i++) {
        gr_status st = study_path(e, (gr_path_id)i, d);
        if (st) return st;
        longest = GR_MAX(longest, e->plan->paths[i].n);
    }
    e->longest = longest;
    e->done = gr_arena_alloc(e->memory, longest * sizeof(*e->done));
    e->granted = gr_arena_alloc(e->memory, longest * sizeof(*e->granted));
    e->finished = gr_arena_alloc(e->memory, longest * sizeof(*e->finished));
    gr_status st = start_lanes(e, longest, d);
    if (!st && e->o.threads > 1) st = gr_team_new(&e->lanes[GR_LANE_COMPUTE].queue.team, e->o.threads, d);
    if (!st && e->o.host_threads > 1)
        st = gr_team_new(&e->lanes[GR_LANE_HOST].queue.team, e->o.host_threads, d);
    if (!st) st = open_disk(e, d); /* before memory is taken, for it may be refused */
    if (!st) st = open_device(e, d);
    if (!st && e->o.poison)
        e->memory_check = gr_memory_check_new(e->plan, &e->device->arena, &e->device->pool);
    return st;
}

static gr_status check_ledger(const gr_plan *plan, gr_diag *d)
{
    for (uint32_t i = 0; i < plan->n_ledger; i++) {
        const gr_entry *x = &plan->ledger[i];
        static const char *const names[GR_N_PLACES] = {"arena", "host pool", "disk"};
        const uint64_t spaces[GR_N_PLACES] = {plan->arena_bytes, plan->host_bytes, plan->disk_bytes},
                       space = spaces[x->place];
        if (x->offset > space || x->bytes > space - x->offset)
            return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                                 "cannot run the plan: '%s' lies outside the %s", x->what, names[x->place]);
    }
    return GR_OK;
}

gr_status gr_executor_new(gr_executor **out, const gr_plan *plan, const gr_exec_hooks *hooks,
                          const gr_exec_options *o, gr_diag *d)
{
    gr_status st = check_ledger(plan, d);
    if (st) return st;
    gr_executor *e = gr_calloc(1, sizeof(*e));
    e->plan = plan;
    e->hooks = *hooks;
    e->o = *o;
    e->memory = gr_arena_new();
    pthread_mutex_init(&e->mutex, NULL);
    pthread_cond_init(&e->changed, NULL);
    st = prepare(e, d);
    if (st)
        gr_executor_free(e);
    else
        *out = e;
    return st;
}

void gr_executor_free(gr_executor *e)
{
    if (!e) return;
    pthread_mutex_lock(&e->mutex);
    e->quit = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->mutex);
    for (int i = 0; i < GR_N_LANES; i++)
        if (e->lanes[i].started) pthread_join(e->lanes[i].thread, NULL);
    for (int i = 0; i < GR_N_LANES; i++) gr_team_free(e->lanes[i].queue.team);
    gr_memory_check_free(e->memory_check);
    for (int i = 0; i < GR_N_LANES; i++)
        if (e->lanes[i].queue.device) e->device->type->queue_close(&e->lanes[i].queue);
    if (e->device) e->device->type->close(e->device);
    gr_disk_close(e->disk);
    free(e->timed);
    gr_arena_free(e->memory);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->mutex);
    free(e);
}

/* Steps that are work; what moves bytes is done all the same, so that every later step finds what the plan
 * says. */
static void mark_skipped(gr_executor *e, gr_path_id id)
{
    const gr_path *p = &e->plan->paths[id];
    for (uint32_t i = 0; i < p->n; i++) {
        const gr_step *s = &p->steps[i];
        e->info[id].skip[i] = s->node && e->hooks.skip && e->hooks.skip(e->hooks.user, id, i);
    }
}

static void begin_path(gr_executor *e, gr_path_id id)
{
    size_t bytes = e->plan->paths[id].n * sizeof(uint64_t);
    mark_skipped(e, id);
    pthread_mutex_lock(&e->mutex);
    if (bytes) {
        memset(e->done, 0, bytes);
        memset(e->granted, 0, bytes);
        memset(e->finished, 0, bytes);
    }
    e->path = id;
    e->stop = false;
    e->first_failed = -1;
    e->busy = count(e->running) - 1;
    e->round++;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->mutex);
}

/* The messages of all lanes, or of the one that failed first. */
static gr_status collect(gr_executor *e, gr_diag *d)
{
    gr_status st = e->first_failed < 0 ? GR_OK : e->lanes[e->first_failed].st;
    for (int i = 0; i < GR_N_LANES; i++) {
        gr_diag *from = &e->lanes[i].d;
        for (size_t k = 0; k < from->n; k++) {
            const struct gr_message *m = &from->messages[k];
            if (m->severity == GR_WARNING)
                gr_diag_warn(d, m->at, "%s", m->text);
            else if (m->severity == GR_NOTE)
                gr_diag_note(d, m->at, "%s", m->text);
            else if (i == e->first_failed)
                gr_diag_error(d, m->at, st, "%s", m->text);
        }
        gr_diag_release(from);
    }
    return st;
}

/* Until the device has done what was given to it; then its times. */
static gr_status finish_queues(gr_executor *e, gr_path_id path, gr_diag *d, gr_status st)
{
    const gr_device_type *t = e->device->type;
    for (int i = 0; i < GR_N_LANES; i++) {
        gr_queue *q = &e->lanes[i].queue;
        gr_status finished = q->device ? t->finish(q, st ? NULL : d) : GR_OK;
        st = st ? st : finished;
    }
    for (size_t i = 0; i < e->n_timed && !st; i++) {
        uint64_t begin, end;
        t->time_read(e->device, e->timed[i].number, &begin, &end);
        e->o.trace(e->o.trace_user, path, e->timed[i].step, e->timed[i].trip, begin, end);
    }
    e->n_timed = 0;
    if (t->time_reset) t->time_reset(e->device);
    return st;
}

gr_status gr_executor_path(gr_executor *e, gr_path_id path, gr_diag *d)
{
    begin_path(e, path);
    walk_path(&e->lanes[GR_LANE_COMPUTE], path);
    pthread_mutex_lock(&e->mutex);
    while (e->busy) pthread_cond_wait(&e->changed, &e->mutex);
    pthread_mutex_unlock(&e->mutex);
    sample(e, true);
    gr_status st = collect(e, d);
    return finish_queues(e, path, d, st);
}

const gr_memory *gr_executor_arena(const gr_executor *e)
{
    return &e->device->arena;
}

void *gr_executor_spare(const gr_executor *e, uint64_t bytes)
{
    uint64_t top = 0;
    for (uint32_t i = 0; i < e->plan->n_ledger; i++) {
        const gr_entry *x = &e->plan->ledger[i];
        if (x->place == GR_HOST) top = GR_MAX(top, x->offset + x->bytes);
    }
    return e->plan->host_bytes - top < bytes ? NULL : e->device->pool.base + (e->plan->host_bytes - bytes);
}

gr_queue *gr_executor_queue(gr_executor *e, gr_lane lane)
{
    return &e->lanes[lane].queue;
}

void *gr_executor_address(const gr_executor *e, uint32_t entry)
{
    return address_of(e, entry);
}

uint64_t gr_executor_measured_peak(gr_executor *e)
{
    sample(e, true);
    return atomic_load(&e->measured_peak);
}

uint64_t gr_executor_overhead(gr_executor *e)
{
    if (!e->device->type->queue_open) return 0;
    uint64_t all = e->device->type->used(e->device), arena = e->device->arena.bytes;
    return all > arena ? all - arena : 0;
}

gr_disk_use gr_executor_disk(const gr_executor *e)
{
    return e->disk ? gr_disk_used(e->disk) : (gr_disk_use){0};
}

gr_touched gr_executor_touched(const gr_executor *e)
{
    return e->memory_check ? gr_memory_check_touched(e->memory_check) : (gr_touched){.step = GR_NONE};
}
