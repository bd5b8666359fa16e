#include "memplan/verify.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ERRORS 20
#define MAX_DEPTH  8

/* Contents are followed as versions: each write makes a new one. What a step must find is the version that
 * the program itself, run in order without any plan, would have it find. 0: contents nobody may rely on. */
typedef struct entry_state {
    uint64_t version;
    uint32_t read[GR_N_LANES], write[GR_N_LANES]; /* tick of the lane's latest access, on this path */
} entry_state;

typedef struct vclock { /* ticks of each lane that have happened before */
    uint32_t lane[GR_N_LANES];
} vclock;

typedef struct verifier {
    const gr_plan *p;
    const gr_program *g;
    gr_diag *d;
    size_t n_errors;
    gr_pool *pool;
    /* the iteration's steps, and behind them those of validate, as the ledger counts them */
    gr_step *steps;
    uint32_t n, n_steady;
    uint32_t *object;            /* of entries */
    uint32_t *work;              /* of steps, GR_NONE for transitions */
    uint32_t *parent;            /* of steps: the loop around */
    bool *holds_host;            /* of steps that are loops */
    uint32_t **shares, *n_share; /* of entries: others with some of the same bytes */
    uint32_t *ends, *ends_begin; /* of steps: entries whose life ends there */
    uint32_t *object_loop;       /* of objects: the loop (a work) at whose trips' ends contents die */
    bool *boundary;              /* of entries: holds contents between paths */
    /* replay */
    entry_state *state;
    uint64_t *expected, next_version; /* of objects */
    vclock lane[GR_N_LANES], *done;   /* done: of steps, after their latest execution */
    bool *ran;
    const char *skip; /* the optional node to skip; "*": all; NULL: none */
    bool zero_trips;  /* agreed loops run no trip */
    gr_path_id path;
} verifier;

GR_PRINTF(3, 4) static bool wrong(verifier *v, const char *rule, const char *fmt, ...)
{
    if (v->n_errors++ >= MAX_ERRORS) return false;
    gr_str s = {0};
    va_list ap;
    va_start(ap, fmt);
    gr_str_vprintf(&s, fmt, ap);
    va_end(ap);
    (void)gr_diag_error(v->d, (gr_loc){0}, GR_E_INVALID, "plan breaks rule '%s': %s", rule, s.text);
    gr_str_release(&s);
    return false;
}

/* The other paths move bytes between files and what lives on. */
static bool runs_works(gr_path_id id)
{
    return id == GR_PATH_STEADY || id == GR_PATH_VALIDATE;
}

/* ---- shape: everything an index or a name can get wrong ----------------------------------------------- */

static bool ids_ok(verifier *v, const gr_path *path, uint32_t i)
{
    const gr_step *s = &path->steps[i];
    bool ok = true;
    for (uint32_t k = 0; k < s->n_reads; k++) ok &= s->reads[k] < v->p->n_ledger;
    for (uint32_t k = 0; k < s->n_writes; k++) ok &= s->writes[k] < v->p->n_ledger;
    for (uint32_t k = 0; k < s->n_after; k++) ok &= s->after[k] < i;
    if (ok) return true;
    return wrong(v, "indices", "%s step %u '%s' names an entry that is not there, or waits for a later step",
                 gr_path_str(v->path), i, s->what);
}

/* Loops nest, and bodies are not empty. parent: of steps, filled in. */
static bool loops_ok(verifier *v, const gr_path *path, uint32_t *parent)
{
    uint32_t stack[MAX_DEPTH], n = 0;
    for (uint32_t i = 0; i < path->n; i++) {
        const gr_step *s = &path->steps[i];
        while (n && path->steps[stack[n - 1]].body_last < i) n--;
        parent[i] = n ? stack[n - 1] : GR_NONE;
        if (s->kind != GR_STEP_LOOP) {
            if (s->body_last != GR_NONE) return wrong(v, "loops", "step %u is no loop but has a body", i);
            continue;
        }
        uint32_t limit = n ? path->steps[stack[n - 1]].body_last : path->n - 1;
        if (n == MAX_DEPTH || s->body_last <= i || s->body_last > limit || !s->trips_max)
            return wrong(v, "loops", "the body of loop step %u '%s' ends at %u", i, s->what, s->body_last);
        stack[n++] = i;
    }
    return true;
}

/* A wait names a step of a body that the waiting step is in, too, and never a loop around itself. */
static bool waits_ok(verifier *v, const gr_path *path, const uint32_t *parent, uint32_t i)
{
    const gr_step *s = &path->steps[i];
    for (uint32_t k = 0; k < s->n_after; k++) {
        uint32_t t = s->after[k], scope = parent[i];
        bool around = path->steps[t].body_last != GR_NONE && path->steps[t].body_last >= i;
        while (scope != GR_NONE && scope != parent[t]) scope = parent[scope];
        if (around || scope != parent[t])
            return wrong(v, "waits", "step %u '%s' waits for step %u, which is %s", i, s->what, t,
                         around ? "the loop around it" : "inside a loop");
    }
    return true;
}

static bool entry_shape_ok(verifier *v, uint32_t e)
{
    const gr_entry *x = &v->p->ledger[e];
    uint64_t limit = x->place == GR_DEVICE ? v->p->arena_bytes : v->p->host_bytes;
    v->object[e] = gr_program_find(v->g, x->what);
    if (v->object[e] == GR_NONE) return wrong(v, "objects", "entry %u '%s' is no object", e, x->what);
    const gr_object *o = &v->g->objects[v->object[e]];
    if (x->bytes != o->bytes || x->category != o->category)
        return wrong(v, "objects",
                     "entry %u '%s' has %" PRIu64 " bytes, the object %" PRIu64 " or another category", e,
                     x->what, x->bytes, o->bytes);
    if (o->place == GR_HOST && x->place != GR_HOST)
        return wrong(v, "objects", "entry %u '%s' is on the device, the object is used on the host", e,
                     x->what);
    if (x->offset % GR_ALIGN || x->offset > limit || x->bytes > limit - x->offset)
        return wrong(v, "offsets", "entry %u '%s' at offset %" PRIu64 " is not aligned or not inside", e,
                     x->what, x->offset);
    if (x->first >= v->n || x->last >= v->n)
        return wrong(v, "lifetimes", "entry %u '%s' lives in no step", e, x->what);
    return true;
}

static uint32_t shifted(uint32_t step, uint32_t by)
{
    return step == GR_NONE ? GR_NONE : step + by;
}

/* Put the steps of a path behind those there are. */
static void add_steps(verifier *v, const gr_path *path, const uint32_t *parent)
{
    uint32_t first = v->n;
    for (uint32_t i = 0; i < path->n; i++) {
        gr_step *s = &v->steps[v->n];
        *s = path->steps[i];
        s->body_last = shifted(s->body_last, first);
        s->after = gr_pool_alloc(v->pool, (s->n_after + 1) * sizeof(*s->after));
        for (uint32_t k = 0; k < s->n_after; k++) s->after[k] = path->steps[i].after[k] + first;
        v->parent[v->n++] = shifted(parent[i], first);
    }
}

static bool shape_ok(verifier *v)
{
    const gr_plan *p = v->p;
    v->steps = gr_pool_alloc(v->pool, (gr_plan_steps(p) + 1) * sizeof(*v->steps));
    v->parent = gr_pool_alloc(v->pool, (gr_plan_steps(p) + 1) * sizeof(*v->parent));
    v->n_steady = p->paths[GR_PATH_STEADY].n;
    for (int id = 0; id < GR_N_PATHS; id++) {
        const gr_path *path = &p->paths[id];
        v->path = (gr_path_id)id;
        uint32_t *parent = gr_pool_alloc(v->pool, (path->n + 1) * sizeof(*parent));
        if (!loops_ok(v, path, parent)) return false;
        for (uint32_t i = 0; i < path->n; i++)
            if (!ids_ok(v, path, i) || !waits_ok(v, path, parent, i)) return false;
        for (uint32_t k = 0; k < path->n_entry; k++)
            if (path->entry[k] >= p->n_ledger)
                return wrong(v, "indices", "entry of path %s", gr_path_str(v->path));
        for (uint32_t k = 0; k < path->n_exit; k++)
            if (path->exit[k] >= p->n_ledger)
                return wrong(v, "indices", "exit of path %s", gr_path_str(v->path));
        if (runs_works(v->path)) add_steps(v, path, parent);
    }
    v->path = GR_PATH_STEADY;
    for (uint32_t e = 0; e < p->n_ledger; e++)
        if (!entry_shape_ok(v, e)) return false;
    return true;
}

/* ---- works -------------------------------------------------------------------------------------------- */

/* The uses of a work in order are the reads and the writes of its step in order. */
static bool uses_ok(verifier *v, uint32_t i, const gr_work *w)
{
    const gr_step *s = &v->steps[i];
    uint32_t r = 0, k = 0;
    for (uint32_t u = 0; u < w->n_uses; u++) {
        const gr_use *use = &w->uses[u];
        if (use->object == GR_NONE) continue;
        const gr_object *o = &v->g->objects[use->object];
        uint32_t from = GR_NONE, to = GR_NONE;
        if (use->mode & GR_READ && r < s->n_reads) from = s->reads[r++];
        if (use->mode & GR_WRITE && k < s->n_writes) to = s->writes[k++];
        uint32_t e = use->mode & GR_READ ? from : to;
        if (e == GR_NONE || (use->mode == GR_UPDATE && from != to) || v->object[e] != use->object ||
            v->p->ledger[e].place != o->place)
            return wrong(v, "uses", "step %u '%s' does not name a copy of '%s' where it needs it", i, s->what,
                         o->name);
    }
    if (r != s->n_reads || k != s->n_writes)
        return wrong(v, "uses", "step %u '%s' names entries that it does not use", i, s->what);
    return true;
}

/* Run and loop steps are the works, in the program's own order, in the same loops, on the same path. */
static bool works_ok(verifier *v)
{
    uint32_t next = 0, *step_of = gr_pool_alloc(v->pool, (v->g->n_works + 1) * sizeof(*step_of));
    uint32_t n_steady = gr_program_steady(v->g);
    v->work = gr_pool_alloc(v->pool, (v->n + 1) * sizeof(*v->work));
    for (uint32_t i = 0; i < v->n; i++) {
        const gr_step *s = &v->steps[i];
        v->work[i] = GR_NONE;
        if (s->kind != GR_STEP_RUN && s->kind != GR_STEP_LOOP) continue;
        const gr_work *w = next < v->g->n_works ? &v->g->works[next] : NULL;
        if (w && (next < n_steady) != (i < v->n_steady)) w = NULL; /* of the other path */
        if (!w || strcmp(w->what, s->what) || !s->node || strcmp(w->node, s->node) || w->lane != s->lane ||
            (w->body_last != GR_NONE) != (s->kind == GR_STEP_LOOP))
            return wrong(v, "order", "step %u '%s' stands where the program has '%s'", i, s->what,
                         w ? w->what : "its end");
        if (s->kind == GR_STEP_LOOP && (w->trips_max != s->trips_max || w->agreed != s->agreed))
            return wrong(v, "loops", "loop step %u '%s' has other trips than the program", i, s->what);
        if (!uses_ok(v, i, w)) return false;
        step_of[next] = i;
        v->work[i] = next++;
    }
    if (next != v->g->n_works) return wrong(v, "order", "'%s' is never run", v->g->works[next].what);
    for (uint32_t w = 0; w < v->g->n_works; w++) {
        if (v->g->works[w].body_last == GR_NONE) continue;
        uint32_t last = v->g->works[w].body_last, end = v->steps[step_of[w]].body_last;
        if (step_of[last] > end || (last + 1 < v->g->n_works && step_of[last + 1] <= end))
            return wrong(v, "loops", "the body of loop '%s' is not the program's", v->g->works[w].what);
    }
    return true;
}

/* ---- ledger ------------------------------------------------------------------------------------------- */

static bool lives_at(const gr_entry *e, uint32_t i)
{
    return e->first <= e->last ? e->first <= i && i <= e->last : i >= e->first || i <= e->last;
}

static bool lives_always(const verifier *v, const gr_entry *e)
{
    return e->first <= e->last ? e->first == 0 && e->last + 1 == v->n : e->first == e->last + 1;
}

/* Lives as long as one of the two paths. */
static bool lives_on_path(const verifier *v, const gr_entry *e)
{
    return (e->first == 0 && e->last + 1 == v->n_steady) || (e->first == v->n_steady && e->last + 1 == v->n);
}

static bool share_time(const gr_entry *a, const gr_entry *b)
{
    return lives_at(a, b->first) || lives_at(b, a->first);
}

static int by_offset(const void *a, const void *b, void *ledger)
{
    const gr_entry *x = (const gr_entry *)ledger + *(const uint32_t *)a;
    const gr_entry *y = (const gr_entry *)ledger + *(const uint32_t *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static void note_share(verifier *v, uint32_t a, uint32_t b, uint32_t *cap)
{
    if (v->n_share[a] == cap[a]) {
        cap[a] = cap[a] ? 2 * cap[a] : 8;
        v->shares[a] = gr_realloc(v->shares[a], cap[a] * sizeof(**v->shares));
    }
    v->shares[a][v->n_share[a]++] = b;
}

/* Who shares bytes with whom; those must not live at one step. */
static void find_shares(verifier *v)
{
    const gr_entry *l = v->p->ledger;
    uint32_t n = v->p->n_ledger, *order = gr_malloc((n + 1) * sizeof(*order)),
             *cap = gr_calloc(n + 1, sizeof(*cap));
    for (uint32_t e = 0; e < n; e++) order[e] = e;
    qsort_r(order, n, sizeof(*order), by_offset, v->p->ledger);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = i + 1; j < n; j++) {
            uint32_t a = order[i], b = order[j];
            if (l[b].offset >= l[a].offset + l[a].bytes) break;
            if (l[a].place != l[b].place) continue;
            if (share_time(&l[a], &l[b]))
                wrong(v, "shared bytes", "entries %u '%s' and %u '%s' live at one step in the same bytes", a,
                      l[a].what, b, l[b].what);
            note_share(v, a, b, cap);
            note_share(v, b, a, cap);
        }
    free(order);
    free(cap);
}

/* A life lies inside a body, or holds the whole loop, or is elsewhere. */
static void check_nesting(verifier *v, uint32_t e)
{
    const gr_entry *x = &v->p->ledger[e];
    if (lives_always(v, x)) return;
    if (x->first <= x->last && x->first < v->n_steady && x->last >= v->n_steady)
        wrong(v, "lifetimes", "entry %u '%s' of steps %u to %u lives on two paths", e, x->what, x->first,
              x->last);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t end = i ? x->last : x->first;
        for (uint32_t l = v->parent[end]; l != GR_NONE; l = v->parent[l]) {
            bool first_in = x->first > l && x->first <= v->steps[l].body_last;
            bool last_in = x->last > l && x->last <= v->steps[l].body_last;
            bool whole = x->first <= x->last && x->first <= l && x->last >= v->steps[l].body_last;
            if (!whole && !(first_in && last_in && x->first <= x->last))
                wrong(v, "loops", "entry %u '%s' begins or ends in the body of loop step %u, but not both", e,
                      x->what, l);
        }
    }
}

/* Copies of what lives on, and of resources, begin and end by steps, unless they stay for ever. */
static void check_ends(verifier *v, uint32_t e)
{
    const gr_entry *x = &v->p->ledger[e];
    gr_span span = v->g->objects[v->object[e]].span;
    if (span == GR_SPAN_TEMP || lives_always(v, x) || (span == GR_SPAN_SCRATCH && lives_on_path(v, x)))
        return;
    const gr_step *a = &v->steps[x->first], *b = &v->steps[x->last];
    bool begins =
        (a->kind == GR_STEP_LOAD || a->kind == GR_STEP_RESUME) && a->n_writes == 1 && a->writes[0] == e;
    bool ends = (b->kind == GR_STEP_RELEASE && b->n_writes == 1 && b->writes[0] == e) ||
                (b->kind == GR_STEP_OFFLOAD && b->n_reads == 1 && b->reads[0] == e);
    if (!begins || !ends)
        wrong(v, "lifetimes", "entry %u '%s' of steps %u to %u does not %s by a transition", e, x->what,
              x->first, x->last, begins ? "end" : "begin");
    if (begins && ends && v->parent[x->first] != v->parent[x->last])
        wrong(v, "loops", "entry %u '%s' begins in one body and ends in another", e, x->what);
}

static uint64_t live_bytes(const verifier *v, uint32_t i)
{
    uint64_t sum = 0;
    for (uint32_t e = 0; e < v->p->n_ledger; e++)
        if (v->p->ledger[e].place == GR_DEVICE && lives_at(&v->p->ledger[e], i)) sum += v->p->ledger[e].bytes;
    return sum;
}

static void check_bytes(verifier *v)
{
    const gr_plan *p = v->p;
    uint64_t *live = gr_pool_alloc(v->pool, (v->n + 1) * sizeof(*live)), most = 0;
    for (uint32_t i = 0; i < v->n; i++) most = GR_MAX(most, live[i] = live_bytes(v, i));
    for (uint32_t i = 0; i < v->n; i++) {
        const gr_step *s = &v->steps[i];
        uint64_t want = live[i];
        for (uint32_t j = i + 1; s->kind == GR_STEP_LOOP && j <= s->body_last; j++)
            want = GR_MAX(want, live[j]);
        if (s->resident_bytes != want)
            wrong(v, "resident bytes", "step %u '%s' says %" PRIu64 ", alive are %" PRIu64, i, s->what,
                  s->resident_bytes, want);
    }
    if (v->n && (p->peak_step >= v->n || live[p->peak_step] != most))
        wrong(v, "peak", "step %u is not where most bytes are alive", p->peak_step);
    if (p->peak_bytes != p->arena_bytes + p->overhead_bytes)
        wrong(v, "peak", "peak bytes are not those of arena and overhead");
    bool fits = p->peak_bytes <= p->budget_bytes && p->host_bytes <= p->host_budget_bytes;
    if (!fits)
        wrong(v, "budget", "%" PRIu64 " bytes are more than the budget of %" PRIu64, p->peak_bytes,
              p->budget_bytes);
    if (fits != p->fits) wrong(v, "budget", "'fits' is not true");
}

static bool dies(const verifier *v, uint32_t e)
{
    return !v->boundary[e] || !lives_always(v, &v->p->ledger[e]);
}

static void find_ends(verifier *v)
{
    const gr_plan *p = v->p;
    uint32_t n = v->n, *at = gr_pool_alloc(v->pool, (n + 1) * sizeof(*at));
    v->ends_begin = gr_pool_alloc(v->pool, (n + 2) * sizeof(*v->ends_begin));
    v->ends = gr_pool_alloc(v->pool, (p->n_ledger + 1) * sizeof(*v->ends));
    for (uint32_t e = 0; e < p->n_ledger; e++)
        if (dies(v, e)) v->ends_begin[p->ledger[e].last + 1]++;
    for (uint32_t i = 0; i < n; i++) {
        v->ends_begin[i + 1] += v->ends_begin[i];
        at[i] = v->ends_begin[i + 1];
    }
    for (uint32_t e = 0; e < p->n_ledger; e++)
        if (dies(v, e)) v->ends[--at[p->ledger[e].last]] = e;
}

/* ---- paths' ends -------------------------------------------------------------------------------------- */

static bool same_set(const uint32_t *a, uint32_t na, const bool *set, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t e = 0; e < n; e++) count += set[e];
    for (uint32_t i = 0; i < na; i++) {
        if (!set[a[i]]) return false;
        for (uint32_t j = 0; j < i; j++)
            if (a[i] == a[j]) return false;
    }
    return na == count;
}

/* Between paths the same entries hold contents, whichever path follows which. */
static void check_boundary(verifier *v)
{
    const gr_plan *p = v->p;
    const gr_path *steady = &p->paths[GR_PATH_STEADY];
    v->boundary = gr_pool_alloc(v->pool, p->n_ledger + 1);
    for (uint32_t k = 0; k < steady->n_entry; k++) {
        uint32_t e = steady->entry[k];
        v->boundary[e] = true;
        if (!lives_at(&p->ledger[e], 0) || !lives_at(&p->ledger[e], v->n_steady - 1) ||
            !lives_at(&p->ledger[e], v->n - 1))
            wrong(v, "boundary", "entry %u '%s' does not live across the end of the iteration", e,
                  p->ledger[e].what);
    }
    for (int i = 0; i < GR_N_PATHS; i++) {
        bool fresh = i == GR_PATH_INIT || i == GR_PATH_RESUME;
        const gr_path *path = &p->paths[i];
        if (fresh ? path->n_entry != 0 : !same_set(path->entry, path->n_entry, v->boundary, p->n_ledger))
            wrong(v, "boundary", "path %s does not enter with what the path before leaves", gr_path_str(i));
        if (!same_set(path->exit, path->n_exit, v->boundary, p->n_ledger))
            wrong(v, "boundary", "path %s does not leave what the path after it enters with", gr_path_str(i));
    }
}

/* ---- replay ------------------------------------------------------------------------------------------- */

static bool skipped(const verifier *v, const char *node)
{
    if (!v->skip || !node) return false;
    if (strcmp(v->skip, "*")) return !strcmp(v->skip, node);
    for (uint32_t w = 0; w < v->g->n_works; w++)
        if (v->g->works[w].optional && !strcmp(v->g->works[w].node, node)) return true;
    return false;
}

static const gr_step *step_at(const verifier *v, uint32_t i)
{
    return runs_works(v->path) ? &v->steps[i] : &v->p->paths[v->path].steps[i];
}

/* Whether lane accesses up to these ticks have happened before a clock. */
static bool before(const uint32_t tick[GR_N_LANES], const vclock *c)
{
    for (int l = 0; l < GR_N_LANES; l++)
        if (tick[l] > c->lane[l]) return false;
    return true;
}

/* A step on clock c reads or writes an entry: nobody else is at these bytes. */
static void touch(verifier *v, uint32_t i, uint32_t e, bool writes, const vclock *c)
{
    const gr_step *s = step_at(v, i);
    const gr_entry *x = &v->p->ledger[e];
    bool ok = before(v->state[e].write, c) && (!writes || before(v->state[e].read, c));
    if (!ok)
        wrong(v, "waits", "%s step %u '%s' does not wait for another lane at entry %u '%s'",
              gr_path_str(v->path), i, s->what, e, x->what);
    for (uint32_t k = 0; k < v->n_share[e]; k++) {
        const entry_state *o = &v->state[v->shares[e][k]];
        if (!before(o->read, c) || !before(o->write, c))
            wrong(v, "waits",
                  "%s step %u '%s' does not wait until the bytes of entry %u '%s' are free of %u '%s'",
                  gr_path_str(v->path), i, s->what, e, x->what, v->shares[e][k],
                  v->p->ledger[v->shares[e][k]].what);
    }
    if (runs_works(v->path) ? !lives_at(x, i) : !v->boundary[e])
        wrong(v, "lifetimes", "%s step %u '%s' uses entry %u '%s', which is not alive then",
              gr_path_str(v->path), i, s->what, e, x->what);
}

static void leave_mark(verifier *v, uint32_t e, bool writes, gr_lane lane, const vclock *c)
{
    uint32_t *tick = writes ? v->state[e].write : v->state[e].read;
    tick[lane] = c->lane[lane];
}

static void check_fresh(verifier *v, uint32_t i, uint32_t e)
{
    uint32_t o = v->object[e];
    bool never = !v->expected[o] && v->g->objects[o].span == GR_SPAN_KEEP;
    if (never || (v->expected[o] && v->state[e].version != v->expected[o]))
        wrong(v, "fresh contents",
              "%s step %u '%s' reads entry %u '%s' while the contents it needs are not there",
              gr_path_str(v->path), i, step_at(v, i)->what, e, v->p->ledger[e].what);
}

/* The two ends of a transition: which entries it must name, and that they are of one object. */
static bool names(verifier *v, uint32_t i, gr_place from, gr_place to, bool reads, bool writes)
{
    const gr_step *s = step_at(v, i);
    bool ok = s->n_reads == reads && s->n_writes == writes;
    if (ok && reads)
        ok = v->p->ledger[s->reads[0]].place == from && !strcmp(v->p->ledger[s->reads[0]].what, s->what);
    if (ok && writes)
        ok = v->p->ledger[s->writes[0]].place == to && !strcmp(v->p->ledger[s->writes[0]].what, s->what);
    uint64_t bytes = ok && reads && writes ? v->p->ledger[s->reads[0]].bytes : 0;
    if (ok && s->bytes == bytes && runs_works(v->path)) return true;
    return wrong(v, "transitions", "%s step %u '%s' (%s) does not name the copies or bytes it should",
                 gr_path_str(v->path), i, s->what, gr_step_kind_str(s->kind));
}

static void begin_copy(verifier *v, uint32_t i, uint32_t e)
{
    if (v->p->ledger[e].first != i)
        wrong(v, "transitions", "step %u '%s' begins entry %u, which begins at step %u", i,
              step_at(v, i)->what, e, v->p->ledger[e].first);
}

static void end_copy(verifier *v, uint32_t i, uint32_t e)
{
    if (v->p->ledger[e].last != i)
        wrong(v, "transitions", "step %u '%s' ends entry %u, which ends at step %u", i, step_at(v, i)->what,
              e, v->p->ledger[e].last);
    uint32_t o = v->object[e], copies = 0;
    if (v->g->objects[o].span != GR_SPAN_KEEP || v->state[e].version != v->expected[o]) return;
    for (uint32_t k = 0; k < v->p->n_ledger; k++)
        copies += k != e && v->object[k] == o && v->state[k].version == v->expected[o];
    if (!copies)
        wrong(v, "transitions", "step %u '%s' ends the only copy of the current version", i,
              step_at(v, i)->what);
}

static void do_transition(verifier *v, uint32_t i)
{
    const gr_step *s = step_at(v, i);
    switch (s->kind) {
    case GR_STEP_LOAD:
        if (!names(v, i, GR_HOST, GR_DEVICE, true, true)) return;
        begin_copy(v, i, s->writes[0]);
        if (v->expected[v->object[s->reads[0]]]) check_fresh(v, i, s->reads[0]);
        v->state[s->writes[0]].version = v->state[s->reads[0]].version;
        return;
    case GR_STEP_OFFLOAD:
        if (!names(v, i, GR_DEVICE, GR_HOST, true, true)) return;
        if (v->expected[v->object[s->reads[0]]]) check_fresh(v, i, s->reads[0]);
        v->state[s->writes[0]].version = v->state[s->reads[0]].version;
        end_copy(v, i, s->reads[0]);
        return;
    case GR_STEP_RESUME:
        if (!names(v, i, GR_DEVICE, GR_DEVICE, false, true)) return;
        begin_copy(v, i, s->writes[0]);
        v->state[s->writes[0]].version = 0;
        return;
    case GR_STEP_RELEASE:
        if (names(v, i, GR_DEVICE, GR_DEVICE, false, true)) end_copy(v, i, s->writes[0]);
        return;
    default:
        wrong(v, "kinds", "%s step %u '%s' is of kind %s", gr_path_str(v->path), i, s->what,
              gr_step_kind_str(s->kind));
    }
}

static void do_run(verifier *v, uint32_t i)
{
    const gr_step *s = step_at(v, i);
    for (uint32_t k = 0; k < s->n_reads; k++) check_fresh(v, i, s->reads[k]);
    for (uint32_t k = 0; k < s->n_writes; k++) {
        v->expected[v->object[s->writes[k]]] = ++v->next_version;
        v->state[s->writes[k]].version = v->next_version;
    }
}

static void do_file(verifier *v, uint32_t i)
{
    const gr_step *s = step_at(v, i);
    bool save = s->kind == GR_STEP_SAVE;
    bool here = save ? v->path == GR_PATH_CHECKPOINT || v->path == GR_PATH_FINAL
                     : v->path == GR_PATH_INIT || v->path == GR_PATH_RESUME;
    uint32_t e = save && s->n_reads == 1 ? s->reads[0] : !save && s->n_writes == 1 ? s->writes[0] : GR_NONE;
    if (!here || e == GR_NONE || s->n_reads + s->n_writes != 1 || strcmp(v->p->ledger[e].what, s->what) ||
        s->bytes != v->p->ledger[e].bytes) {
        wrong(v, "transitions", "%s step %u '%s' (%s) does not name the copy or bytes it should",
              gr_path_str(v->path), i, s->what, gr_step_kind_str(s->kind));
    } else if (save) {
        check_fresh(v, i, e);
    } else {
        v->expected[v->object[e]] = v->state[e].version = ++v->next_version;
    }
}

static void do_step(verifier *v, uint32_t i)
{
    const gr_step *s = step_at(v, i);
    static const gr_lane lanes[GR_N_STEP_KINDS] = {
        [GR_STEP_LOAD] = GR_LANE_H2D, [GR_STEP_OFFLOAD] = GR_LANE_D2H};
    if (lanes[s->kind] && s->lane != lanes[s->kind])
        wrong(v, "lanes", "step %u '%s' (%s) is on lane %s", i, s->what, gr_step_kind_str(s->kind),
              gr_lane_str(s->lane));
    vclock c = v->lane[s->lane];
    for (uint32_t k = 0; k < s->n_after; k++)
        for (int l = 0; l < GR_N_LANES && v->ran[s->after[k]]; l++)
            c.lane[l] = GR_MAX(c.lane[l], v->done[s->after[k]].lane[l]);
    bool ends = s->kind == GR_STEP_OFFLOAD; /* the copy it reads */
    for (uint32_t k = 0; k < s->n_reads; k++) touch(v, i, s->reads[k], ends, &c);
    for (uint32_t k = 0; k < s->n_writes; k++) touch(v, i, s->writes[k], true, &c);
    c.lane[s->lane]++;
    for (uint32_t k = 0; k < s->n_reads; k++) leave_mark(v, s->reads[k], ends, s->lane, &c);
    for (uint32_t k = 0; k < s->n_writes; k++) leave_mark(v, s->writes[k], true, s->lane, &c);
    if (s->kind == GR_STEP_RUN)
        do_run(v, i);
    else if (s->kind == GR_STEP_SAVE || s->kind == GR_STEP_RESTORE)
        do_file(v, i);
    else if (s->kind != GR_STEP_LOOP)
        do_transition(v, i);
    v->lane[s->lane] = v->done[i] = c;
    v->ran[i] = true;
}

static void meet(verifier *v, bool host)
{
    vclock all = {{0}};
    for (int l = 0; l < GR_N_LANES; l++)
        for (int k = 0; k < GR_N_LANES; k++)
            if (host || l != GR_LANE_HOST) all.lane[k] = GR_MAX(all.lane[k], v->lane[l].lane[k]);
    for (int l = 0; l < GR_N_LANES; l++)
        if (host || l != GR_LANE_HOST) v->lane[l] = all;
}

/* End the lives whose last step is this one, or the last of this loop after all its trips: those that began
 * in the same body, but not inside the loop. */
static void end_lives(verifier *v, uint32_t i)
{
    if (!runs_works(v->path)) return;
    bool loop = step_at(v, i)->kind == GR_STEP_LOOP;
    uint32_t last = loop ? step_at(v, i)->body_last : i, around = v->parent[i];
    for (uint32_t k = v->ends_begin[last]; k < v->ends_begin[last + 1]; k++) {
        const gr_entry *e = &v->p->ledger[v->ends[k]];
        bool wraps = e->last < e->first;
        bool here = around == GR_NONE || (!wraps && e->first > around);
        if (here && (!loop || wraps || e->first <= i)) v->state[v->ends[k]].version = 0;
    }
}

static void replay(verifier *v, uint32_t begin, uint32_t end);

static void replay_loop(verifier *v, uint32_t i)
{
    const gr_step *s = step_at(v, i);
    uint32_t work = v->work[i], trips = GR_MIN(s->trips_max, 2);
    if (s->agreed && v->zero_trips) trips = 0;
    for (uint32_t t = 0; t < trips; t++) {
        replay(v, i + 1, s->body_last + 1);
        meet(v, v->holds_host[i]);
        for (uint32_t o = 0; o < v->g->n_objects; o++)
            if (v->object_loop[o] == work) v->expected[o] = 0;
    }
    v->done[i] = v->lane[GR_LANE_COMPUTE];
}

static void replay(verifier *v, uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin; i < end && v->n_errors < MAX_ERRORS; i++) {
        const gr_step *s = step_at(v, i);
        bool skip = skipped(v, s->node), loop = s->kind == GR_STEP_LOOP;
        v->ran[i] = false;
        if (!skip) do_step(v, i);
        if (loop && !skip) replay_loop(v, i);
        end_lives(v, i);
        if (loop) i = s->body_last;
    }
}

static void replay_path(verifier *v, gr_path_id id)
{
    const gr_path *path = &v->p->paths[id];
    v->path = id;
    memset(v->lane, 0, sizeof(v->lane));
    for (uint32_t e = 0; e < v->p->n_ledger; e++) {
        memset(v->state[e].read, 0, sizeof(v->state[e].read));
        memset(v->state[e].write, 0, sizeof(v->state[e].write));
        if (!v->boundary[e]) v->state[e].version = 0;
    }
    uint32_t first = id == GR_PATH_VALIDATE ? v->n_steady : 0;
    replay(v, first, first + path->n);
    for (uint32_t o = 0; o < v->g->n_objects; o++)
        if (v->g->objects[o].span != GR_SPAN_KEEP) v->expected[o] = 0;
    for (uint32_t k = 0; k < path->n_exit && v->n_errors < MAX_ERRORS; k++) {
        uint32_t e = path->exit[k];
        if (!v->state[e].version || v->state[e].version != v->expected[v->object[e]])
            wrong(v, "boundary", "path %s leaves entry %u '%s' without its current contents", gr_path_str(id),
                  e, v->p->ledger[e].what);
    }
}

static void replay_all(verifier *v, const char *skip, bool zero_trips)
{
    static const gr_path_id order[] = {GR_PATH_INIT,     GR_PATH_VALIDATE,   GR_PATH_STEADY, GR_PATH_STEADY,
                                       GR_PATH_VALIDATE, GR_PATH_CHECKPOINT, GR_PATH_STEADY, GR_PATH_VALIDATE,
                                       GR_PATH_STEADY,   GR_PATH_FINAL,      GR_PATH_RESUME, GR_PATH_VALIDATE,
                                       GR_PATH_FINAL,    GR_PATH_STEADY};
    v->skip = skip;
    v->zero_trips = zero_trips;
    memset(v->state, 0, v->p->n_ledger * sizeof(*v->state));
    memset(v->expected, 0, v->g->n_objects * sizeof(*v->expected));
    for (size_t i = 0; i < GR_LEN(order) && v->n_errors < MAX_ERRORS; i++) {
        if (order[i] == GR_PATH_RESUME) { /* another process: nothing is there */
            memset(v->state, 0, v->p->n_ledger * sizeof(*v->state));
            memset(v->expected, 0, v->g->n_objects * sizeof(*v->expected));
        }
        replay_path(v, order[i]);
    }
}

/* Whether training changes an object or another one of its model. */
static bool is_trained(const verifier *v, const bool *written, uint32_t object)
{
    const gr_object *o = &v->g->objects[object];
    for (uint32_t k = 0; k < v->g->n_objects; k++) {
        const gr_object *other = &v->g->objects[k];
        bool kin = k == object || (other->span == GR_SPAN_KEEP && o->model && other->model &&
                                   !strcmp(o->model, other->model));
        if (kin && written[k]) return true;
    }
    return false;
}

/* Each object that lives on is restored once at a start; each that training changes is saved once. */
static void check_files(verifier *v)
{
    static const gr_path_id ids[] = {GR_PATH_INIT, GR_PATH_RESUME, GR_PATH_CHECKPOINT, GR_PATH_FINAL};
    bool *used = gr_pool_alloc(v->pool, v->g->n_objects + 1),
         *written = gr_pool_alloc(v->pool, v->g->n_objects + 1);
    for (uint32_t w = 0; w < v->g->n_works; w++)
        for (uint32_t u = 0; u < v->g->works[w].n_uses; u++) {
            const gr_use *use = &v->g->works[w].uses[u];
            if (use->object == GR_NONE) continue;
            used[use->object] = true;
            written[use->object] |= (use->mode & GR_WRITE) != 0;
        }
    uint32_t *seen = gr_pool_alloc(v->pool, (v->g->n_objects + 1) * sizeof(*seen));
    for (size_t k = 0; k < GR_LEN(ids); k++) {
        const gr_path *path = &v->p->paths[ids[k]];
        gr_step_kind kind = k < 2 ? GR_STEP_RESTORE : GR_STEP_SAVE;
        memset(seen, 0, v->g->n_objects * sizeof(*seen));
        for (uint32_t i = 0; i < path->n; i++) {
            uint32_t o = gr_program_find(v->g, path->steps[i].what);
            if (path->steps[i].kind == kind && o != GR_NONE) seen[o]++;
        }
        for (uint32_t o = 0; o < v->g->n_objects; o++) {
            bool keep = v->g->objects[o].span == GR_SPAN_KEEP;
            bool must = keep && (k < 2 ? used[o] : is_trained(v, written, o));
            if (seen[o] > 1 || (must && !seen[o]))
                wrong(v, "paths", "path %s has %u steps '%s' of '%s'", gr_path_str(ids[k]), seen[o],
                      gr_step_kind_str(kind), v->g->objects[o].name);
        }
    }
}

static void check_other_paths(verifier *v)
{
    uint64_t held = 0;
    for (uint32_t e = 0; e < v->p->n_ledger; e++)
        if (v->boundary[e] && v->p->ledger[e].place == GR_DEVICE) held += v->p->ledger[e].bytes;
    for (int id = 0; id < GR_N_PATHS; id++)
        for (uint32_t i = 0; i < v->p->paths[id].n && !runs_works((gr_path_id)id); i++)
            if (v->p->paths[id].steps[i].resident_bytes != held)
                wrong(v, "resident bytes", "%s step %u says %" PRIu64 ", alive are %" PRIu64, gr_path_str(id),
                      i, v->p->paths[id].steps[i].resident_bytes, held);
}

/* Where contents of an object die at a trip's end: in the innermost loop around all its uses, unless its
 * first use there reads. */
static void find_object_loops(verifier *v)
{
    const gr_program *g = v->g;
    v->object_loop = gr_pool_alloc(v->pool, (g->n_objects + 1) * sizeof(uint32_t));
    uint32_t *first = gr_pool_alloc(v->pool, (g->n_objects + 1) * sizeof(*first));
    uint32_t *last = gr_pool_alloc(v->pool, (g->n_objects + 1) * sizeof(*last));
    bool *reads = gr_pool_alloc(v->pool, g->n_objects + 1);
    for (uint32_t o = 0; o < g->n_objects; o++) v->object_loop[o] = first[o] = GR_NONE;
    for (uint32_t w = 0; w < g->n_works; w++)
        for (uint32_t u = 0; u < g->works[w].n_uses; u++) {
            uint32_t o = g->works[w].uses[u].object;
            if (o == GR_NONE) continue;
            if (first[o] == GR_NONE) {
                first[o] = w;
                reads[o] = (g->works[w].uses[u].mode & GR_READ) != 0;
            }
            last[o] = w;
        }
    for (uint32_t w = 0; w < g->n_works; w++) /* the innermost loops come last and stay */
        for (uint32_t o = 0; o < g->n_objects && g->works[w].body_last != GR_NONE; o++)
            if (g->objects[o].span != GR_SPAN_KEEP && first[o] != GR_NONE && !reads[o] && first[o] > w &&
                last[o] <= g->works[w].body_last)
                v->object_loop[o] = w;
}

static void find_host_loops(verifier *v)
{
    v->holds_host = gr_pool_alloc(v->pool, v->n + 1);
    for (uint32_t i = 0; i < v->n; i++)
        for (uint32_t l = v->parent[i]; l != GR_NONE && v->steps[i].lane == GR_LANE_HOST; l = v->parent[l])
            v->holds_host[l] = true;
}

static void prove(verifier *v)
{
    const gr_plan *p = v->p;
    uint32_t n = gr_plan_steps(p);
    for (int i = 0; i < GR_N_PATHS; i++) n = GR_MAX(n, p->paths[i].n);
    v->object = gr_pool_alloc(v->pool, (p->n_ledger + 1) * sizeof(*v->object));
    v->n_share = gr_calloc(p->n_ledger + 1, sizeof(*v->n_share));
    v->shares = gr_calloc(p->n_ledger + 1, sizeof(*v->shares));
    v->state = gr_pool_alloc(v->pool, (p->n_ledger + 1) * sizeof(*v->state));
    v->expected = gr_pool_alloc(v->pool, (v->g->n_objects + 1) * sizeof(*v->expected));
    v->done = gr_pool_alloc(v->pool, (n + 1) * sizeof(*v->done));
    v->ran = gr_pool_alloc(v->pool, n + 1);
    if (!p->paths[GR_PATH_STEADY].n) {
        if (v->g->n_works) wrong(v, "order", "the plan has no steps");
        return;
    }
    if (!shape_ok(v) || !works_ok(v)) return;
    find_shares(v);
    check_boundary(v);
    for (uint32_t e = 0; e < p->n_ledger; e++) {
        check_nesting(v, e);
        check_ends(v, e);
    }
    check_bytes(v);
    check_other_paths(v);
    check_files(v);
    if (v->n_errors) return;
    find_ends(v);
    find_object_loops(v);
    find_host_loops(v);
    const char *last = NULL;
    for (int zero = 0; zero < 2 && !v->n_errors; zero++) {
        replay_all(v, NULL, zero);
        replay_all(v, "*", zero);
        for (uint32_t w = 0; w < v->g->n_works && !v->n_errors; w++) {
            const gr_work *k = &v->g->works[w];
            if (!k->optional || (last && !strcmp(last, k->node))) continue;
            replay_all(v, last = k->node, zero);
        }
    }
}

gr_status gr_plan_verify(const gr_plan *p, const gr_program *g, gr_diag *d)
{
    verifier v = {.p = p, .g = g, .d = d, .pool = gr_pool_new()};
    prove(&v);
    for (uint32_t e = 0; v.shares && e < p->n_ledger; e++) free(v.shares[e]);
    free(v.shares);
    free(v.n_share);
    gr_pool_free(v.pool);
    return v.n_errors ? GR_E_INVALID : GR_OK;
}

gr_binding *gr_plan_bind(const gr_plan *p, const gr_program *g, gr_pool *pool)
{
    uint32_t n = gr_plan_steps(p), next = 0;
    gr_binding *out = gr_pool_alloc(pool, (n + 1) * sizeof(*out));
    for (uint32_t i = 0; i < n; i++) {
        const gr_step *s = gr_plan_step(p, i);
        if (s->kind != GR_STEP_RUN && s->kind != GR_STEP_LOOP) continue;
        const gr_work *w = &g->works[next++];
        out[i].work = w;
        out[i].entry = gr_pool_alloc(pool, (w->n_uses + 1) * sizeof(uint32_t));
        uint32_t r = 0, k = 0;
        for (uint32_t u = 0; u < w->n_uses; u++) {
            const gr_use *use = &w->uses[u];
            uint32_t e = GR_NONE;
            if (use->object != GR_NONE && use->mode & GR_READ) e = s->reads[r++];
            if (use->object != GR_NONE && use->mode & GR_WRITE) e = s->writes[k++];
            out[i].entry[u] = e;
        }
    }
    return out;
}
