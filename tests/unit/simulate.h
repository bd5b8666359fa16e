/* tests/unit/simulate.h: an executor of nothing but versions, the oracle of schedules and of the verifier.
 *
 * Memory is an array of versions, one for each 256 bytes of arena and pool. The program is first run in
 * order, without a plan, which gives each read the version it must find. Then the plan's lanes run with every
 * step split into a begin and an end and the lanes interleaved at random; a read that finds another version,
 * a write that another write meets, and a deadlock are failures.
 *
 * Where the device runs work later than it is given (gr_tasks.queued), a lane is a thread and a queue, as
 * the executor has them: a step's code has a begin and an end on the thread, which then marks an event and
 * goes on; what the step leaves in its queue has them there, in order, behind the events that it follows.
 */
#ifndef GR_TESTS_SIMULATE_H
#define GR_TESTS_SIMULATE_H

#include "memplan/plan/tasks.h"

#include "tests/unit/test.h"

#define MAX_RUNS  512 /* executions of one work in one simulation */
#define MAX_TRIPS 8u  /* of a loop whose trips are agreed */

enum { SIM_CODE = 1, SIM_QUEUE = 2, SIM_ALL = 3 };

typedef struct sim_item { /* of a queue: a step, or a wait until another queue has done so many */
    uint32_t step, run;
    uint64_t mark;
    int lane; /* of a wait; of a step -1 */
    size_t until;
} sim_item;

typedef struct sim {
    const gr_plan *p;
    const gr_tasks *g;
    uint64_t *cells[GR_N_PLACES]; /* of arena, pool and disk */
    uint64_t seed, next;
    const char *why; /* first failure, or NULL */
    char what[128];
    bool skip_all;
    const char *skip;
    /* the program run in order */
    uint64_t *now;           /* of objects: version */
    uint64_t **need, **make; /* of works: [run * n_uses + use] versions */
    uint32_t *n_runs, **trips;
    uint32_t *dies; /* of objects: loop at whose trips' ends contents die */
    /* the plan run at random */
    gr_path_id path;
    uint32_t *runs, *task_of; /* of works: runs begun; of steps: the work */
    uint32_t *done, *pass[GR_N_LANES], *arrived[GR_N_LANES], *left[GR_N_LANES];
    unsigned *lanes_in; /* of loops: mask of the lanes that meet at its trips' ends */
    struct {
        uint32_t at, stack[16], n;
        bool running, ended;
        uint64_t *copy, mark;
        uint32_t run; /* of the step at hand */
        bool given, early;
    } lane[GR_N_LANES];
    /* where a lane has a queue */
    bool *turns;     /* of objects: used by turns: any contents that are the object's will do */
    uint32_t *owner; /* of versions: their object, where it is used by turns */
    uint64_t cap_owner;
    struct {
        sim_item *items;
        size_t n, done, cap;
        bool running;
    } queue[GR_N_LANES];
    uint32_t *event; /* of steps: items that its lane had been given when it was last marked */
    uint32_t meeting[GR_N_LANES];
    uint32_t *led, *led_at; /* of loops: trips that compute has ended; items it had been given then */
} sim;

static inline uint32_t sim_random(sim *s, uint32_t n)
{
    s->seed = s->seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(s->seed >> 33) % n;
}

static inline bool sim_fail(sim *s, const char *why, const char *what)
{
    if (!s->why) snprintf(s->what, sizeof(s->what), "%s", what ? what : "");
    if (!s->why) s->why = why;
    return false;
}

static inline bool sim_optional(const sim *s, const char *node)
{
    for (uint32_t w = 0; w < s->g->n_tasks; w++)
        if (s->g->task[w].optional && !strcmp(s->g->task[w].node, node)) return true;
    return false;
}

static inline bool sim_skips(const sim *s, const char *node)
{
    if (!node) return false;
    return s->skip_all ? sim_optional(s, node) : s->skip && !strcmp(s->skip, node);
}

/* A new version; of an object that is used by turns it is known whose. */
static inline uint64_t sim_version(sim *s, uint32_t object)
{
    if (++s->next >= s->cap_owner) {
        s->cap_owner = 2 * s->next + 1024;
        s->owner = gr_realloc(s->owner, s->cap_owner * sizeof(*s->owner));
    }
    s->owner[s->next] = object != GR_NONE && s->turns[object] ? object : GR_NONE;
    return s->next;
}

/* ---- in order ----------------------------------------------------------------------------------------- */

static inline void sim_order(sim *s, uint32_t begin, uint32_t end)
{
    for (uint32_t w = begin; w < end; w++) {
        const gr_task *k = &s->g->task[w];
        bool loop = k->loop.body_last != GR_NONE;
        if (sim_skips(s, k->node)) {
            if (loop) w = k->loop.body_last;
            continue;
        }
        uint32_t run = s->n_runs[w]++;
        assert_true(run < MAX_RUNS);
        if (loop) {
            uint32_t trips =
                k->loop.agreed ? sim_random(s, GR_MIN(k->loop.trips_max, MAX_TRIPS) + 1) : k->loop.trips_max;
            s->trips[w][run] = trips;
            for (uint32_t t = 0; t < trips; t++) {
                sim_order(s, w + 1, k->loop.body_last + 1);
                for (uint32_t o = 0; o < s->g->n_objects; o++)
                    if (s->dies[o] == w) s->now[o] = 0;
            }
            w = k->loop.body_last;
            continue;
        }
        for (uint32_t u = 0; u < k->uses.n; u++) {
            uint32_t o = k->uses.list[u].object;
            if (o == GR_NONE) continue;
            s->need[w][run * k->uses.n + u] = k->uses.list[u].mode & GR_READ ? s->now[o] : 0;
            if (k->uses.list[u].mode & GR_WRITE)
                s->now[o] = s->make[w][run * k->uses.n + u] = sim_version(s, o);
        }
    }
}

/* ---- at random ---------------------------------------------------------------------------------------- */

static inline uint64_t *sim_cells(sim *s, uint32_t e)
{
    return s->cells[s->p->ledger[e].place] + s->p->ledger[e].offset / GR_ALIGN;
}

static inline void sim_fill(sim *s, uint32_t e, uint64_t v)
{
    for (uint64_t c = 0; c < s->p->ledger[e].bytes / GR_ALIGN; c++) sim_cells(s, e)[c] = v;
}

static inline bool sim_holds(sim *s, uint32_t e, uint64_t v)
{
    for (uint64_t c = 0; c < s->p->ledger[e].bytes / GR_ALIGN; c++)
        if (sim_cells(s, e)[c] != v) return false;
    return true;
}

/* The entry of a use: reads and writes follow the uses in order. */
static inline uint32_t sim_entry(const gr_step *t, const gr_task *k, uint32_t use, bool write)
{
    uint32_t r = 0;
    gr_use_mode bit = write ? GR_WRITE : GR_READ;
    for (uint32_t u = 0; u < use; u++) r += k->uses.list[u].object != GR_NONE && (k->uses.list[u].mode & bit);
    return write ? t->writes[r] : t->reads[r];
}

/* Contents that are the object's, whichever. */
static inline bool sim_owns(sim *s, uint32_t e, uint32_t object)
{
    for (uint64_t c = 0; c < s->p->ledger[e].bytes / GR_ALIGN; c++) {
        uint64_t v = sim_cells(s, e)[c];
        if (!v || v >= s->cap_owner || s->owner[v] != object) return false;
    }
    return true;
}

/* Who uses it: code, queue, or both; on a lane without queue all is one. */
static inline unsigned sim_who(const sim *s, const gr_step *t, const gr_task *k, uint32_t use, uint32_t e)
{
    gr_use_mode mode = k->uses.list[use].mode;
    if (!s->g->queued || t->lane == GR_LANE_HOST || t->lane == GR_LANE_DISK) return SIM_ALL;
    if (s->p->ledger[e].place == GR_DEVICE) return SIM_QUEUE;
    if (k->uses.by_code || mode & GR_BY_CODE) return SIM_CODE;
    return mode & GR_BY_QUEUE ? SIM_QUEUE : SIM_ALL;
}

/* Memory that is used by turns: the op knows when which contents are there, and that they are its own. */
static inline void sim_turn(sim *s, const gr_step *t, uint32_t e, uint32_t object, bool reads, bool writes,
                            bool begin)
{
    bool owns = sim_owns(s, e, object);
    if (!owns && (reads || (writes && !begin))) sim_fail(s, "reads other contents in its turn", t->what);
    if (writes && (begin || owns)) sim_fill(s, e, sim_version(s, object));
}

/* A part of a step, PART: its code, what it left in its queue, or all of it. A use that is both parts' holds
 * the mark from the begin of the code to the end in the queue, where it is made. */
static inline void sim_use(sim *s, const gr_step *t, const gr_task *k, uint32_t u, uint64_t need,
                           uint64_t make, uint64_t mark, bool begin, unsigned part)
{
    bool reads = k->uses.list[u].mode & GR_READ, writes = k->uses.list[u].mode & GR_WRITE;
    uint32_t e = sim_entry(t, k, u, !reads);
    unsigned who = sim_who(s, t, k, u, e);
    if (!(who & part)) return;
    if (s->turns[k->uses.list[u].object]) {
        sim_turn(s, t, e, k->uses.list[u].object, reads && need, writes, begin);
        return;
    }
    bool both = who == SIM_ALL && part != SIM_ALL, first = !both || part == SIM_CODE;
    if (reads && need && ((begin && first) || !writes) && !sim_holds(s, e, need))
        sim_fail(s, begin ? "reads other contents" : "contents changed under a reader", t->what);
    if (!writes) return;
    bool marked = sim_holds(s, e, mark), made = both && part == SIM_CODE && sim_holds(s, e, make);
    if (!(begin && first) && !marked && !made) sim_fail(s, "two writers", t->what);
    if (begin || made) {
        if (!made) sim_fill(s, e, mark);
    } else if (!both || part == SIM_QUEUE) {
        sim_fill(s, e, make);
    }
}

static inline void sim_run(sim *s, const gr_step *t, uint32_t w, uint32_t run, uint64_t mark, bool begin,
                           unsigned part)
{
    const gr_task *k = &s->g->task[w];
    if (run >= s->n_runs[w]) {
        sim_fail(s, "runs more often than the program", t->what);
        return;
    }
    for (uint32_t u = 0; u < k->uses.n; u++)
        if (k->uses.list[u].object != GR_NONE)
            sim_use(s, t, k, u, s->need[w][run * k->uses.n + u], s->make[w][run * k->uses.n + u], mark, begin,
                    part);
}

static inline void sim_copy(sim *s, int l, const gr_step *t, uint64_t mark, bool begin)
{
    uint32_t from = t->reads[0], to = t->writes[0];
    size_t n = s->p->ledger[from].bytes / GR_ALIGN;
    if (begin) {
        s->lane[l].copy = gr_malloc(n * sizeof(uint64_t));
        memcpy(s->lane[l].copy, sim_cells(s, from), n * sizeof(uint64_t));
        sim_fill(s, to, mark);
        return;
    }
    if (memcmp(s->lane[l].copy, sim_cells(s, from), n * sizeof(uint64_t)))
        sim_fail(s, "contents changed under a copy", t->what);
    if (!sim_holds(s, to, mark)) sim_fail(s, "two writers", t->what);
    memcpy(sim_cells(s, to), s->lane[l].copy, n * sizeof(uint64_t));
    free(s->lane[l].copy);
    s->lane[l].copy = NULL;
    if (t->kind == GR_STEP_OFFLOAD)
        sim_fill(s, from, sim_version(s, GR_NONE)); /* space free: nobody may rely on it */
}

static inline bool sim_is_task(gr_step_kind kind)
{
    return gr_step_is_task(kind) && kind != GR_STEP_LOOP;
}

static inline void sim_step(sim *s, int l, uint32_t i, uint32_t run, uint64_t mark, bool begin, unsigned part)
{
    const gr_step *t = &s->p->paths[s->path].steps[i];
    if (sim_is_task(t->kind)) sim_run(s, t, s->task_of[i], run, mark, begin, part);
    if (!(part & SIM_QUEUE)) return; /* code of the executor's own touches nothing */
    switch (t->kind) {
    case GR_STEP_LOAD:
    case GR_STEP_OFFLOAD:
    case GR_STEP_FETCH:
    case GR_STEP_STORE:
        sim_copy(s, l, t, mark, begin);
        break;
    case GR_STEP_RESUME:
    case GR_STEP_RELEASE:
        if (begin)
            sim_fill(s, t->writes[0], mark);
        else if (!sim_holds(s, t->writes[0], mark))
            sim_fail(s, "two users", t->what);
        break;
    case GR_STEP_RESTORE:
        if (begin) break;
        s->now[gr_tasks_find(s->g, t->what)] = sim_version(s, GR_NONE);
        sim_fill(s, t->writes[0], s->next);
        break;
    case GR_STEP_SAVE:
        if (!sim_holds(s, t->reads[0], s->now[gr_tasks_find(s->g, t->what)]))
            sim_fail(s, "saves other contents", t->what);
        break;
    default:
        break;
    }
}

/* ---- threads and queues ------------------------------------------------------------------------------- */

static inline bool sim_has_queue(const sim *s, int l)
{
    return s->g->queued && l != GR_LANE_HOST && l != GR_LANE_DISK;
}

static inline void sim_give(sim *s, int l, sim_item item)
{
    GR_PUSH(s->queue[l].items, s->queue[l].n, s->queue[l].cap, item);
}

/* Whether all of a lane's queue up to some item is done; without a queue it is. */
static inline bool sim_has_done(const sim *s, int l, size_t items)
{
    return !sim_has_queue(s, l) || s->queue[l].done >= items;
}

/* What comes next follows the other lane's event: in the queue, or without one on the thread; false: it has
 * to wait. */
static inline bool sim_follow(sim *s, int l, int other, uint32_t until)
{
    if (!sim_has_queue(s, other) || l == other) return true;
    if (!sim_has_queue(s, l)) return sim_has_done(s, other, until);
    sim_give(s, l, (sim_item){.lane = other, .until = until});
    return true;
}

/* One action of a queue; false: it has to wait. */
static inline bool sim_drain(sim *s, int l)
{
    if (s->queue[l].done == s->queue[l].n) return false;
    const sim_item *x = &s->queue[l].items[s->queue[l].done];
    if (x->lane >= 0) {
        if (s->queue[x->lane].done < x->until) return false;
        s->queue[l].done++;
        return true;
    }
    sim_step(s, l, x->step, x->run, x->mark, !s->queue[l].running, SIM_QUEUE);
    s->queue[l].done += s->queue[l].running;
    s->queue[l].running = !s->queue[l].running;
    return true;
}

static inline bool sim_ready(const sim *s, int l, const gr_step *t)
{
    const gr_path *path = &s->p->paths[s->path];
    for (uint32_t k = 0; k < t->n_after; k++) {
        const gr_step *a = &path->steps[t->after[k]];
        if (sim_skips(s, a->node)) continue;
        if (s->done[t->after[k]] < s->pass[l][t->after[k]]) return false;
        if (s->g->queued && !sim_has_queue(s, l) && !sim_has_done(s, (int)a->lane, s->event[t->after[k]]))
            return false;
    }
    return true;
}

static inline void sim_follow_steps(sim *s, int l, const gr_step *t)
{
    const gr_path *path = &s->p->paths[s->path];
    for (uint32_t k = 0; k < t->n_after; k++)
        if (!sim_skips(s, path->steps[t->after[k]].node))
            sim_follow(s, l, (int)path->steps[t->after[k]].lane, s->event[t->after[k]]);
}

static inline void sim_give_step(sim *s, int l, uint32_t i)
{
    sim_give(s, l, (sim_item){.step = i, .run = s->lane[l].run, .mark = s->lane[l].mark, .lane = -1});
}

/* A step's code begins: what it leaves in its queue may be given at once or at its end. false: it waits. */
static inline bool sim_begin(sim *s, int l, uint32_t i)
{
    const gr_step *t = &s->p->paths[s->path].steps[i];
    bool work = sim_is_task(t->kind), queue = sim_has_queue(s, l);
    bool waits = work && s->g->task[s->task_of[i]].uses.waits;
    if (!s->lane[l].given) {
        if (!sim_ready(s, l, t)) return false;
        s->lane[l].given = true;
        s->lane[l].mark = sim_version(s, GR_NONE);
        s->lane[l].run = work ? s->runs[s->task_of[i]]++ : 0;
        s->lane[l].early = queue && !waits && sim_random(s, 2);
        if (queue) sim_follow_steps(s, l, t);
        if (s->lane[l].early) sim_give_step(s, l, i);
    }
    if (queue && waits && !sim_has_done(s, l, s->queue[l].n)) return false;
    sim_step(s, l, i, s->lane[l].run, s->lane[l].mark, true, queue ? SIM_CODE : SIM_ALL);
    s->lane[l].running = true;
    return true;
}

static inline void sim_end(sim *s, int l)
{
    uint32_t i = s->lane[l].at++;
    bool queue = sim_has_queue(s, l);
    sim_step(s, l, i, s->lane[l].run, s->lane[l].mark, false, queue ? SIM_CODE : SIM_ALL);
    if (queue && !s->lane[l].early) sim_give_step(s, l, i);
    s->event[i] = (uint32_t)s->queue[l].n;
    s->done[i]++;
    s->lane[l].running = s->lane[l].given = false;
}

/* Where the lanes of a loop meet, its leader's queue follows the others', and theirs follow it. */
static inline bool sim_meet(sim *s, int l, uint32_t loop)
{
    if (!s->lane[l].ended) {
        s->arrived[l][loop]++;
        s->meeting[l] = (uint32_t)s->queue[l].n;
    }
    s->lane[l].ended = true;
    for (int m = 0; m < GR_N_LANES; m++)
        if (s->lanes_in[loop] >> m & 1 && s->arrived[m][loop] < s->arrived[l][loop]) return false;
    if (!s->g->queued) return true;
    if (l != GR_LANE_COMPUTE)
        return s->led[loop] >= s->arrived[l][loop] && sim_follow(s, l, GR_LANE_COMPUTE, s->led_at[loop]);
    for (int m = 0; m < GR_N_LANES; m++)
        if (s->lanes_in[loop] >> m & 1) sim_follow(s, l, m, s->meeting[m]);
    s->led[loop]++;
    s->led_at[loop] = (uint32_t)s->queue[l].n;
    return true;
}

static inline void sim_end_loop(sim *s, uint32_t loop)
{
    s->event[loop] = (uint32_t)s->queue[GR_LANE_COMPUTE].n;
    s->done[loop]++;
}

/* One action of a lane; false: it has to wait. */
static inline bool sim_advance(sim *s, int l)
{
    const gr_path *path = &s->p->paths[s->path];
    if (s->lane[l].running) {
        sim_end(s, l);
        return true;
    }
    uint32_t i = s->lane[l].at;
    if (s->lane[l].n) { /* the end of a body: its lanes meet, then go round or on */
        uint32_t loop = s->lane[l].stack[s->lane[l].n - 1];
        const gr_step *t = &path->steps[loop];
        if (i > t->body_last) {
            if (!sim_meet(s, l, loop)) return false;
            s->lane[l].ended = false;
            if (--s->left[l][loop]) {
                s->lane[l].at = loop + 1;
            } else {
                s->lane[l].n--;
                if (l == GR_LANE_COMPUTE) sim_end_loop(s, loop);
            }
            return true;
        }
    }
    if (i >= path->n) return false;
    const gr_step *t = &path->steps[i];
    bool skip = sim_skips(s, t->node), loop = t->kind == GR_STEP_LOOP;
    if (skip || (loop && !(s->lanes_in[i] >> l & 1))) { /* it passes the loop by */
        if (loop && !skip) s->pass[l][i]++;
        s->lane[l].at = loop ? t->body_last + 1 : i + 1;
        return true;
    }
    if ((int)t->lane == l && !loop) {
        bool given = s->lane[l].given, begun = sim_begin(s, l, i);
        s->pass[l][i] += !given && s->lane[l].given;
        return begun || given != s->lane[l].given;
    }
    if ((int)t->lane == l && !sim_ready(s, l, t)) return false;
    s->pass[l][i]++;
    if (loop) {
        if ((int)t->lane == l && sim_has_queue(s, l)) sim_follow_steps(s, l, t);
        uint32_t w = s->task_of[i],
                 trips = s->pass[l][i] <= s->n_runs[w] ? s->trips[w][s->pass[l][i] - 1] : 0;
        s->left[l][i] = trips;
        s->lane[l].at = trips ? i + 1 : t->body_last + 1;
        if (trips)
            s->lane[l].stack[s->lane[l].n++] = i;
        else if (l == GR_LANE_COMPUTE)
            sim_end_loop(s, i);
        return true;
    }
    s->lane[l].at++;
    return true;
}

/* One action of whoever is drawn. slow: queues are behind. */
static inline bool sim_act(sim *s, bool slow)
{
    int l = (int)sim_random(s, GR_N_LANES);
    if (!s->g->queued || sim_random(s, slow ? 8 : 2)) return sim_advance(s, l);
    return sim_drain(s, l);
}

static inline void sim_path(sim *s, gr_path_id id)
{
    const gr_path *path = &s->p->paths[id];
    bool tasks_run = id == GR_PATH_STEADY || id == GR_PATH_VALIDATE;
    uint32_t first = id == GR_PATH_VALIDATE ? gr_tasks_steady(s->g) : 0;
    uint32_t end = id == GR_PATH_VALIDATE ? (uint32_t)s->g->n_tasks : gr_tasks_steady(s->g);
    s->path = id;
    size_t n = path->n + 1, works = s->g->n_tasks + 1;
    gr_arena *arena = gr_arena_new();
    s->done = gr_arena_alloc(arena, n * sizeof(uint32_t));
    s->runs = gr_arena_alloc(arena, works * sizeof(uint32_t));
    s->task_of = gr_arena_alloc(arena, n * sizeof(uint32_t));
    s->lanes_in = gr_arena_alloc(arena, n * sizeof(*s->lanes_in));
    s->event = gr_arena_alloc(arena, n * sizeof(uint32_t));
    s->led = gr_arena_alloc(arena, n * sizeof(uint32_t));
    s->led_at = gr_arena_alloc(arena, n * sizeof(uint32_t));
    for (int l = 0; l < GR_N_LANES; l++) {
        s->pass[l] = gr_arena_alloc(arena, n * sizeof(uint32_t));
        s->arrived[l] = gr_arena_alloc(arena, n * sizeof(uint32_t));
        s->left[l] = gr_arena_alloc(arena, n * sizeof(uint32_t));
        s->lane[l].at = s->lane[l].n = 0;
        s->lane[l].running = s->lane[l].ended = s->lane[l].given = s->queue[l].running = false;
        s->queue[l].n = s->queue[l].done = 0;
    }
    for (uint32_t i = 0; i < path->n; i++) {
        s->task_of[i] = GR_NONE;
        for (uint32_t w = first; w < end && tasks_run; w++)
            if (!strcmp(s->g->task[w].what, path->steps[i].what)) s->task_of[i] = w;
        s->lanes_in[i] = 1u << GR_LANE_COMPUTE;
        for (uint32_t j = i + 1; path->steps[i].kind == GR_STEP_LOOP && j <= path->steps[i].body_last; j++)
            s->lanes_in[i] |= path->steps[j].kind == GR_STEP_LOOP ? 0 : 1u << path->steps[j].lane;
    }
    if (tasks_run) {
        for (uint32_t o = 0; o < s->g->n_objects; o++)
            if (s->g->objects[o].span != GR_SPAN_KEEP) s->now[o] = 0;
        memset(s->n_runs, 0, works * sizeof(uint32_t));
        sim_order(s, first, end);
    }
    bool slow = s->g->queued && sim_random(s, 2);
    for (uint32_t idle = 0, limit = s->g->queued ? 1000 : 200; idle < limit && !s->why;)
        idle = sim_act(s, slow) ? 0 : idle + 1;
    for (int l = 0; l < GR_N_LANES; l++) {
        if (s->lane[l].at < path->n || s->lane[l].running || s->lane[l].n || s->queue[l].done < s->queue[l].n)
            sim_fail(s, "deadlock", gr_lane_str(l));
        free(s->lane[l].copy);
        s->lane[l].copy = NULL;
    }
    for (uint32_t w = first; w < end && tasks_run; w++)
        if (s->g->task[w].loop.body_last == GR_NONE && s->runs[w] != s->n_runs[w])
            sim_fail(s, "is not run", s->g->task[w].what);
    gr_arena_free(arena);
}

/* Objects that some work uses by turns: there they are only ever that op's. */
static inline void sim_turns(sim *s)
{
    for (uint32_t w = 0; w < s->g->n_tasks && s->g->queued; w++)
        for (uint32_t u = 0; u < s->g->task[w].uses.n; u++) {
            const gr_use *use = &s->g->task[w].uses.list[u];
            if (use->object != GR_NONE && use->mode & GR_BY_TURNS) s->turns[use->object] = true;
        }
}

static inline void sim_dies(sim *s)
{
    for (uint32_t o = 0; o < s->g->n_objects; o++) {
        s->dies[o] = GR_NONE;
        if (s->g->objects[o].span == GR_SPAN_KEEP) continue;
        uint32_t first = GR_NONE, last = 0;
        gr_use_mode mode = GR_READ;
        for (uint32_t w = 0; w < s->g->n_tasks; w++)
            for (uint32_t u = 0; u < s->g->task[w].uses.n; u++) {
                if (s->g->task[w].uses.list[u].object != o) continue;
                if (first == GR_NONE) first = w, mode = s->g->task[w].uses.list[u].mode;
                last = w;
            }
        for (uint32_t w = 0; w < s->g->n_tasks && mode == GR_WRITE; w++)
            if (s->g->task[w].loop.body_last != GR_NONE && w < first && last <= s->g->task[w].loop.body_last)
                s->dies[o] = w;
    }
}

/* Run init, iterations with a checkpoint and validations between them, and the end, once. Returns what went
 * wrong, or NULL; what: the step. */
static inline const char *simulate(const gr_plan *p, const gr_tasks *g, uint64_t seed, const char *skip,
                                   bool skip_all, char what[128])
{
    static const gr_path_id order[] = {GR_PATH_INIT,       GR_PATH_VALIDATE, GR_PATH_STEADY,
                                       GR_PATH_CHECKPOINT, GR_PATH_STEADY,   GR_PATH_STEADY,
                                       GR_PATH_VALIDATE,   GR_PATH_STEADY,   GR_PATH_FINAL};
    for (uint32_t e = 0; e < p->n_ledger; e++) {
        const uint64_t limits[GR_N_PLACES] = {p->arena_bytes, p->host_bytes, p->disk_bytes},
                       limit = limits[p->ledger[e].place];
        if (p->ledger[e].offset % GR_ALIGN || p->ledger[e].offset + p->ledger[e].bytes > limit)
            return "out of the arena";
    }
    sim s = {.p = p, .g = g, .seed = seed, .skip = skip, .skip_all = skip_all};
    gr_arena *arena = gr_arena_new();
    s.cells[0] = gr_arena_alloc(arena, (p->arena_bytes / GR_ALIGN + 1) * sizeof(uint64_t));
    s.cells[1] = gr_arena_alloc(arena, (p->host_bytes / GR_ALIGN + 1) * sizeof(uint64_t));
    s.cells[2] = gr_arena_alloc(arena, (p->disk_bytes / GR_ALIGN + 1) * sizeof(uint64_t));
    s.now = gr_arena_alloc(arena, (g->n_objects + 1) * sizeof(uint64_t));
    s.dies = gr_arena_alloc(arena, (g->n_objects + 1) * sizeof(uint32_t));
    s.turns = gr_arena_alloc(arena, g->n_objects + 1);
    s.n_runs = gr_arena_alloc(arena, (g->n_tasks + 1) * sizeof(uint32_t));
    s.need = gr_arena_alloc(arena, (g->n_tasks + 1) * sizeof(void *));
    s.make = gr_arena_alloc(arena, (g->n_tasks + 1) * sizeof(void *));
    s.trips = gr_arena_alloc(arena, (g->n_tasks + 1) * sizeof(void *));
    for (uint32_t w = 0; w < g->n_tasks; w++) {
        s.need[w] = gr_arena_alloc(arena, MAX_RUNS * (g->task[w].uses.n + 1) * sizeof(uint64_t));
        s.make[w] = gr_arena_alloc(arena, MAX_RUNS * (g->task[w].uses.n + 1) * sizeof(uint64_t));
        s.trips[w] = gr_arena_alloc(arena, MAX_RUNS * sizeof(uint32_t));
    }
    sim_dies(&s);
    sim_turns(&s);
    for (size_t i = 0; i < GR_LEN(order) && !s.why; i++) sim_path(&s, order[i]);
    memcpy(what, s.what, sizeof(s.what));
    for (int l = 0; l < GR_N_LANES; l++) free(s.queue[l].items);
    free(s.owner);
    gr_arena_free(arena);
    return s.why;
}

#endif
