/* tests/unit/simulate.h: an executor of nothing but versions, the oracle of schedules and of the verifier.
 *
 * Memory is an array of versions, one for each 256 bytes of arena and pool. The program is first run in
 * order, without a plan, which gives each read the version it must find. Then the plan's lanes run with every
 * step split into a begin and an end and the lanes interleaved at random; a read that finds another version,
 * a write that another write meets, and a deadlock are failures.
 */
#ifndef GR_TESTS_SIMULATE_H
#define GR_TESTS_SIMULATE_H

#include "memplan/program.h"

#include "test.h"

#define MAX_RUNS 512 /* executions of one work in one simulation */

typedef struct sim {
    const gr_plan *p;
    const gr_program *g;
    uint64_t *cells[2]; /* of arena and pool */
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
    uint32_t *runs, *work_of; /* of works: runs begun; of steps: the work */
    uint32_t *done, *pass[GR_N_LANES], *arrived[GR_N_LANES], *left[GR_N_LANES];
    unsigned *lanes_in; /* of loops: mask of the lanes that meet at its trips' ends */
    struct {
        uint32_t at, stack[16], n;
        bool running, ended;
        uint64_t *copy, mark;
    } lane[GR_N_LANES];
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
    for (uint32_t w = 0; w < s->g->n_works; w++)
        if (s->g->works[w].optional && !strcmp(s->g->works[w].node, node)) return true;
    return false;
}

static inline bool sim_skips(const sim *s, const char *node)
{
    if (!node) return false;
    return s->skip_all ? sim_optional(s, node) : s->skip && !strcmp(s->skip, node);
}

/* ---- in order ----------------------------------------------------------------------------------------- */

static inline void sim_order(sim *s, uint32_t begin, uint32_t end)
{
    for (uint32_t w = begin; w < end; w++) {
        const gr_work *k = &s->g->works[w];
        bool loop = k->body_last != GR_NONE;
        if (sim_skips(s, k->node)) {
            if (loop) w = k->body_last;
            continue;
        }
        uint32_t run = s->n_runs[w]++;
        assert_true(run < MAX_RUNS);
        if (loop) {
            uint32_t trips = k->agreed ? sim_random(s, k->trips_max + 1) : k->trips_max;
            s->trips[w][run] = trips;
            for (uint32_t t = 0; t < trips; t++) {
                sim_order(s, w + 1, k->body_last + 1);
                for (uint32_t o = 0; o < s->g->n_objects; o++)
                    if (s->dies[o] == w) s->now[o] = 0;
            }
            w = k->body_last;
            continue;
        }
        for (uint32_t u = 0; u < k->n_uses; u++) {
            uint32_t o = k->uses[u].object;
            if (o == GR_NONE) continue;
            s->need[w][run * k->n_uses + u] = k->uses[u].mode & GR_READ ? s->now[o] : 0;
            if (k->uses[u].mode & GR_WRITE) s->now[o] = s->make[w][run * k->n_uses + u] = ++s->next;
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
static inline uint32_t sim_entry(const gr_step *t, const gr_work *k, uint32_t use, bool write)
{
    uint32_t r = 0;
    gr_use_mode bit = write ? GR_WRITE : GR_READ;
    for (uint32_t u = 0; u < use; u++) r += k->uses[u].object != GR_NONE && (k->uses[u].mode & bit);
    return write ? t->writes[r] : t->reads[r];
}

static inline void sim_run(sim *s, const gr_step *t, uint32_t w, uint64_t mark, bool begin)
{
    const gr_work *k = &s->g->works[w];
    uint32_t run = begin ? s->runs[w]++ : s->runs[w] - 1;
    if (run >= s->n_runs[w]) {
        sim_fail(s, "runs more often than the program", t->what);
        return;
    }
    for (uint32_t u = 0; u < k->n_uses; u++) {
        if (k->uses[u].object == GR_NONE) continue;
        uint64_t need = s->need[w][run * k->n_uses + u];
        bool reads = k->uses[u].mode & GR_READ, writes = k->uses[u].mode & GR_WRITE;
        if (reads && need && (begin || !writes) && !sim_holds(s, sim_entry(t, k, u, false), need))
            sim_fail(s, begin ? "reads other contents" : "contents changed under a reader", t->what);
        if (!writes) continue;
        uint32_t e = sim_entry(t, k, u, true);
        if (!begin && !sim_holds(s, e, mark)) sim_fail(s, "two writers", t->what);
        sim_fill(s, e, begin ? mark : s->make[w][run * k->n_uses + u]);
    }
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
    if (t->kind == GR_STEP_OFFLOAD) sim_fill(s, from, ++s->next); /* space free: nobody may rely on it */
}

static inline void sim_step(sim *s, int l, uint32_t i, bool begin)
{
    const gr_step *t = &s->p->paths[s->path].steps[i];
    uint64_t mark = begin ? (s->lane[l].mark = ++s->next) : s->lane[l].mark;
    switch (t->kind) {
    case GR_STEP_RUN:
    case GR_STEP_GATHER:
    case GR_STEP_REDUCE:
    case GR_STEP_SYNC:
    case GR_STEP_AGREE:
    case GR_STEP_SEND:
    case GR_STEP_RECV:
        sim_run(s, t, s->work_of[i], mark, begin);
        break;
    case GR_STEP_LOAD:
    case GR_STEP_OFFLOAD:
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
        s->now[gr_program_find(s->g, t->what)] = ++s->next;
        sim_fill(s, t->writes[0], s->next);
        break;
    case GR_STEP_SAVE:
        if (!sim_holds(s, t->reads[0], s->now[gr_program_find(s->g, t->what)]))
            sim_fail(s, "saves other contents", t->what);
        break;
    default:
        break;
    }
}

static inline bool sim_ready(const sim *s, int l, const gr_step *t)
{
    const gr_path *path = &s->p->paths[s->path];
    for (uint32_t k = 0; k < t->n_after; k++)
        if (!sim_skips(s, path->steps[t->after[k]].node) && s->done[t->after[k]] < s->pass[l][t->after[k]])
            return false;
    return true;
}

/* One action of a lane; false: it has to wait. */
static inline bool sim_advance(sim *s, int l)
{
    const gr_path *path = &s->p->paths[s->path];
    if (s->lane[l].running) {
        sim_step(s, l, s->lane[l].at, false);
        s->done[s->lane[l].at++]++;
        s->lane[l].running = false;
        return true;
    }
    uint32_t i = s->lane[l].at;
    if (s->lane[l].n) { /* the end of a body: its lanes meet, then go round or on */
        uint32_t loop = s->lane[l].stack[s->lane[l].n - 1];
        const gr_step *t = &path->steps[loop];
        if (i > t->body_last) {
            if (!s->lane[l].ended) s->arrived[l][loop]++;
            s->lane[l].ended = true;
            for (int m = 0; m < GR_N_LANES; m++)
                if (s->lanes_in[loop] >> m & 1 && s->arrived[m][loop] < s->arrived[l][loop]) return false;
            s->lane[l].ended = false;
            if (--s->left[l][loop]) {
                s->lane[l].at = loop + 1;
            } else {
                s->lane[l].n--;
                if (l == GR_LANE_COMPUTE) s->done[loop]++;
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
    if ((int)t->lane == l && !sim_ready(s, l, t)) return false;
    s->pass[l][i]++;
    if (loop) {
        uint32_t w = s->work_of[i],
                 trips = s->pass[l][i] <= s->n_runs[w] ? s->trips[w][s->pass[l][i] - 1] : 0;
        s->left[l][i] = trips;
        s->lane[l].at = trips ? i + 1 : t->body_last + 1;
        if (trips)
            s->lane[l].stack[s->lane[l].n++] = i;
        else if (l == GR_LANE_COMPUTE)
            s->done[i]++;
        return true;
    }
    if ((int)t->lane != l) {
        s->lane[l].at++;
        return true;
    }
    sim_step(s, l, i, true);
    s->lane[l].running = true;
    return true;
}

static inline void sim_path(sim *s, gr_path_id id)
{
    const gr_path *path = &s->p->paths[id];
    bool works_run = id == GR_PATH_STEADY || id == GR_PATH_VALIDATE;
    uint32_t first = id == GR_PATH_VALIDATE ? gr_program_steady(s->g) : 0;
    uint32_t end = id == GR_PATH_VALIDATE ? (uint32_t)s->g->n_works : gr_program_steady(s->g);
    s->path = id;
    size_t n = path->n + 1, works = s->g->n_works + 1;
    gr_pool *pool = gr_pool_new();
    s->done = gr_pool_alloc(pool, n * sizeof(uint32_t));
    s->runs = gr_pool_alloc(pool, works * sizeof(uint32_t));
    s->work_of = gr_pool_alloc(pool, n * sizeof(uint32_t));
    s->lanes_in = gr_pool_alloc(pool, n * sizeof(*s->lanes_in));
    for (int l = 0; l < GR_N_LANES; l++) {
        s->pass[l] = gr_pool_alloc(pool, n * sizeof(uint32_t));
        s->arrived[l] = gr_pool_alloc(pool, n * sizeof(uint32_t));
        s->left[l] = gr_pool_alloc(pool, n * sizeof(uint32_t));
        s->lane[l].at = s->lane[l].n = 0;
        s->lane[l].running = s->lane[l].ended = false;
    }
    for (uint32_t i = 0; i < path->n; i++) {
        s->work_of[i] = GR_NONE;
        for (uint32_t w = first; w < end && works_run; w++)
            if (!strcmp(s->g->works[w].what, path->steps[i].what)) s->work_of[i] = w;
        s->lanes_in[i] = 1u << GR_LANE_COMPUTE;
        for (uint32_t j = i + 1; path->steps[i].kind == GR_STEP_LOOP && j <= path->steps[i].body_last; j++)
            s->lanes_in[i] |= path->steps[j].kind == GR_STEP_LOOP ? 0 : 1u << path->steps[j].lane;
    }
    if (works_run) {
        for (uint32_t o = 0; o < s->g->n_objects; o++)
            if (s->g->objects[o].span != GR_SPAN_KEEP) s->now[o] = 0;
        memset(s->n_runs, 0, works * sizeof(uint32_t));
        sim_order(s, first, end);
    }
    for (uint32_t idle = 0; idle < 200 && !s->why;) {
        if (sim_advance(s, (int)sim_random(s, GR_N_LANES)))
            idle = 0;
        else
            idle++;
    }
    for (int l = 0; l < GR_N_LANES; l++) {
        if (s->lane[l].at < path->n || s->lane[l].running || s->lane[l].n)
            sim_fail(s, "deadlock", gr_lane_str(l));
        free(s->lane[l].copy);
        s->lane[l].copy = NULL;
    }
    for (uint32_t w = first; w < end && works_run; w++)
        if (s->g->works[w].body_last == GR_NONE && s->runs[w] != s->n_runs[w])
            sim_fail(s, "is not run", s->g->works[w].what);
    gr_pool_free(pool);
}

static inline void sim_dies(sim *s)
{
    for (uint32_t o = 0; o < s->g->n_objects; o++) {
        s->dies[o] = GR_NONE;
        if (s->g->objects[o].span == GR_SPAN_KEEP) continue;
        uint32_t first = GR_NONE, last = 0;
        gr_use_mode mode = GR_READ;
        for (uint32_t w = 0; w < s->g->n_works; w++)
            for (uint32_t u = 0; u < s->g->works[w].n_uses; u++) {
                if (s->g->works[w].uses[u].object != o) continue;
                if (first == GR_NONE) first = w, mode = s->g->works[w].uses[u].mode;
                last = w;
            }
        for (uint32_t w = 0; w < s->g->n_works && mode == GR_WRITE; w++)
            if (s->g->works[w].body_last != GR_NONE && w < first && last <= s->g->works[w].body_last)
                s->dies[o] = w;
    }
}

/* Run init, iterations with a checkpoint and validations between them, and the end, once. Returns what went
 * wrong, or NULL; what: the step. */
static inline const char *simulate(const gr_plan *p, const gr_program *g, uint64_t seed, const char *skip,
                                   bool skip_all, char what[128])
{
    static const gr_path_id order[] = {GR_PATH_INIT,       GR_PATH_VALIDATE, GR_PATH_STEADY,
                                       GR_PATH_CHECKPOINT, GR_PATH_STEADY,   GR_PATH_STEADY,
                                       GR_PATH_VALIDATE,   GR_PATH_STEADY,   GR_PATH_FINAL};
    for (uint32_t e = 0; e < p->n_ledger; e++) {
        uint64_t limit = p->ledger[e].place == GR_DEVICE ? p->arena_bytes : p->host_bytes;
        if (p->ledger[e].offset % GR_ALIGN || p->ledger[e].offset + p->ledger[e].bytes > limit)
            return "out of the arena";
    }
    sim s = {.p = p, .g = g, .seed = seed, .skip = skip, .skip_all = skip_all};
    gr_pool *pool = gr_pool_new();
    s.cells[0] = gr_pool_alloc(pool, (p->arena_bytes / GR_ALIGN + 1) * sizeof(uint64_t));
    s.cells[1] = gr_pool_alloc(pool, (p->host_bytes / GR_ALIGN + 1) * sizeof(uint64_t));
    s.now = gr_pool_alloc(pool, (g->n_objects + 1) * sizeof(uint64_t));
    s.dies = gr_pool_alloc(pool, (g->n_objects + 1) * sizeof(uint32_t));
    s.n_runs = gr_pool_alloc(pool, (g->n_works + 1) * sizeof(uint32_t));
    s.need = gr_pool_alloc(pool, (g->n_works + 1) * sizeof(void *));
    s.make = gr_pool_alloc(pool, (g->n_works + 1) * sizeof(void *));
    s.trips = gr_pool_alloc(pool, (g->n_works + 1) * sizeof(void *));
    for (uint32_t w = 0; w < g->n_works; w++) {
        s.need[w] = gr_pool_alloc(pool, MAX_RUNS * (g->works[w].n_uses + 1) * sizeof(uint64_t));
        s.make[w] = gr_pool_alloc(pool, MAX_RUNS * (g->works[w].n_uses + 1) * sizeof(uint64_t));
        s.trips[w] = gr_pool_alloc(pool, MAX_RUNS * sizeof(uint32_t));
    }
    sim_dies(&s);
    for (size_t i = 0; i < GR_LEN(order) && !s.why; i++) sim_path(&s, order[i]);
    memcpy(what, s.what, sizeof(s.what));
    gr_pool_free(pool);
    return s.why;
}

#endif
