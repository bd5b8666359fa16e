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
    uint32_t *object;            /* of entries */
    uint32_t *work;              /* of steady steps, GR_NONE for transitions */
    uint32_t *parent;            /* of steady steps: the loop around */
    bool *holds_host;            /* of steady steps that are loops */
    uint32_t **shares, *n_share; /* of entries: others with some of the same bytes */
    uint32_t *ends, *ends_begin; /* of steady steps: entries whose life ends there */
    uint32_t *object_loop;       /* of objects: innermost loop (a work) at whose trips' ends contents die */
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
    uint32_t n = v->p->paths[GR_PATH_STEADY].n;
    v->object[e] = gr_program_find(v->g, x->what);
    if (v->object[e] == GR_NONE) return wrong(v, "objects", "entry %u '%s' is no object", e, x->what);
    const gr_object *o = &v->g->objects[v->object[e]];
    if (x->bytes != o->bytes || x->category != o->category)
        return wrong(v, "objects", "entry %u '%s' has %" PRIu64 " bytes, the object %" PRIu64 " or another category", e,
                     x->what, x->bytes, o->bytes);
    if (o->place == GR_HOST && x->place != GR_HOST)
        return wrong(v, "objects", "entry %u '%s' is on the device, the object is used on the host", e, x->what);
    if (x->offset % GR_ALIGN || x->offset > limit || x->bytes > limit - x->offset)
        return wrong(v, "offsets", "entry %u '%s' at offset %" PRIu64 " is not aligned or not inside", e, x->what,
                     x->offset);
    if (x->first >= n || x->last >= n) return wrong(v, "lifetimes", "entry %u '%s' lives in no step", e, x->what);
    return true;
}

static bool shape_ok(verifier *v)
{
    const gr_plan *p = v->p;
    for (int id = 0; id < GR_N_PATHS; id++) {
        const gr_path *path = &p->paths[id];
        v->path = (gr_path_id)id;
        uint32_t *parent = gr_pool_alloc(v->pool, (path->n + 1) * sizeof(*parent));
        if (!loops_ok(v, path, parent)) return false;
        for (uint32_t i = 0; i < path->n; i++)
            if (!ids_ok(v, path, i) || !waits_ok(v, path, parent, i)) return false;
        for (uint32_t k = 0; k < path->n_entry; k++)
            if (path->entry[k] >= p->n_ledger) return wrong(v, "indices", "entry of path %s", gr_path_str(v->path));
        for (uint32_t k = 0; k < path->n_exit; k++)
            if (path->exit[k] >= p->n_ledger) return wrong(v, "indices", "exit of path %s", gr_path_str(v->path));
        if (id == GR_PATH_STEADY) v->parent = parent;
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
    const gr_step *s = &v->p->paths[GR_PATH_STEADY].steps[i];
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
            return wrong(v, "uses", "step %u '%s' does not name a copy of '%s' where it needs it", i, s->what, o->name);
    }
    if (r != s->n_reads || k != s->n_writes)
        return wrong(v, "uses", "step %u '%s' names entries that it does not use", i, s->what);
    return true;
}

/* Run and loop steps are the works, in the program's own order, in the same loops. */
static bool works_ok(verifier *v)
{
    const gr_path *path = &v->p->paths[GR_PATH_STEADY];
    uint32_t next = 0, *step_of = gr_pool_alloc(v->pool, (v->g->n_works + 1) * sizeof(*step_of));
    v->work = gr_pool_alloc(v->pool, (path->n + 1) * sizeof(*v->work));
    for (uint32_t i = 0; i < path->n; i++) {
        const gr_step *s = &path->steps[i];
        v->work[i] = GR_NONE;
        if (s->kind != GR_STEP_RUN && s->kind != GR_STEP_LOOP) continue;
        const gr_work *w = next < v->g->n_works ? &v->g->works[next] : NULL;
        if (!w || strcmp(w->what, s->what) || !s->node || strcmp(w->node, s->node) || w->lane != s->lane ||
            (w->body_last != GR_NONE) != (s->kind == GR_STEP_LOOP))
            return wrong(v, "order", "step %u '%s' stands where the program has '%s'", i, s->what, w ? w->what : "its end");
        if (s->kind == GR_STEP_LOOP && (w->trips_max != s->trips_max || w->agreed != s->agreed))
            return wrong(v, "loops", "loop step %u '%s' has other trips than the program", i, s->what);
        if (!uses_ok(v, i, w)) return false;
        step_of[next] = i;
        v->work[i] = next++;
    }
    if (next != v->g->n_works) return wrong(v, "order", "'%s' is never run", v->g->works[next].what);
    for (uint32_t w = 0; w < v->g->n_works; w++) {
        if (v->g->works[w].body_last == GR_NONE) continue;
        uint32_t last = v->g->works[w].body_last, end = path->steps[step_of[w]].body_last;
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
    uint32_t n = v->p->paths[GR_PATH_STEADY].n;
    return e->first <= e->last ? e->first == 0 && e->last + 1 == n : e->first == e->last + 1;
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
    uint32_t n = v->p->n_ledger, *order = gr_malloc((n + 1) * sizeof(*order)), *cap = gr_calloc(n + 1, sizeof(*cap));
    for (uint32_t e = 0; e < n; e++) order[e] = e;
    qsort_r(order, n, sizeof(*order), by_offset, v->p->ledger);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = i + 1; j < n; j++) {
            uint32_t a = order[i], b = order[j];
            if (l[b].offset >= l[a].offset + l[a].bytes) break;
            if (l[a].place != l[b].place) continue;
            if (share_time(&l[a], &l[b]))
                wrong(v, "shared bytes", "entries %u '%s' and %u '%s' live at one step in the same bytes", a, l[a].what,
                      b, l[b].what);
            note_share(v, a, b, cap);
            note_share(v, b, a, cap);
        }
    free(order);
    free(cap);
}

/* A life lies inside a body, or holds the whole loop, or is elsewhere. */
static void check_nesting(verifier *v, uint32_t e)
{
    const gr_path *path = &v->p->paths[GR_PATH_STEADY];
    const gr_entry *x = &v->p->ledger[e];
    if (lives_always(v, x)) return;
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t end = i ? x->last : x->first;
        for (uint32_t l = v->parent[end]; l != GR_NONE; l = v->parent[l]) {
            bool first_in = x->first > l && x->first <= path->steps[l].body_last;
            bool last_in = x->last > l && x->last <= path->steps[l].body_last;
            bool whole = x->first <= x->last && x->first <= l && x->last >= path->steps[l].body_last;
            if (!whole && !(first_in && last_in && x->first <= x->last))
                wrong(v, "loops", "entry %u '%s' begins or ends in the body of loop step %u, but not both", e, x->what, l);
        }
    }
}

/* Copies of what lives on, and of resources, begin and end by steps, unless they stay for ever. */
static void check_ends(verifier *v, uint32_t e)
{
    const gr_path *path = &v->p->paths[GR_PATH_STEADY];
    const gr_entry *x = &v->p->ledger[e];
    if (v->g->objects[v->object[e]].span == GR_SPAN_TEMP || lives_always(v, x)) return;
    const gr_step *a = &path->steps[x->first], *b = &path->steps[x->last];
    bool begins = (a->kind == GR_STEP_LOAD || a->kind == GR_STEP_RESUME) && a->n_writes == 1 && a->writes[0] == e;
    bool ends = (b->kind == GR_STEP_RELEASE && b->n_writes == 1 && b->writes[0] == e) ||
                (b->kind == GR_STEP_OFFLOAD && b->n_reads == 1 && b->reads[0] == e);
    if (!begins || !ends)
        wrong(v, "lifetimes", "entry %u '%s' of steps %u to %u does not %s by a transition", e, x->what, x->first,
              x->last, begins ? "end" : "begin");
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
    const gr_path *path = &p->paths[GR_PATH_STEADY];
    uint64_t *live = gr_pool_alloc(v->pool, (path->n + 1) * sizeof(*live)), most = 0;
    for (uint32_t i = 0; i < path->n; i++) most = GR_MAX(most, live[i] = live_bytes(v, i));
    for (uint32_t i = 0; i < path->n; i++) {
        const gr_step *s = &path->steps[i];
        uint64_t want = live[i];
        for (uint32_t j = i + 1; s->kind == GR_STEP_LOOP && j <= s->body_last; j++) want = GR_MAX(want, live[j]);
        if (s->resident_bytes != want)
            wrong(v, "resident bytes", "step %u '%s' says %" PRIu64 ", alive are %" PRIu64, i, s->what, s->resident_bytes,
                  want);
    }
    if (path->n && (p->peak_step >= path->n || live[p->peak_step] != most))
        wrong(v, "peak", "step %u is not where most bytes are alive", p->peak_step);
    if (p->peak_bytes != p->arena_bytes + p->overhead_bytes)
        wrong(v, "peak", "peak bytes are not those of arena and overhead");
    bool fits = p->peak_bytes <= p->budget_bytes && p->host_bytes <= p->host_budget_bytes;
    if (!fits) wrong(v, "budget", "%" PRIu64 " bytes are more than the budget of %" PRIu64, p->peak_bytes, p->budget_bytes);
    if (fits != p->fits) wrong(v, "budget", "'fits' is not true");
}

static void find_ends(verifier *v)
{
    const gr_plan *p = v->p;
    uint32_t n = p->paths[GR_PATH_STEADY].n, *at = gr_pool_alloc(v->pool, (n + 1) * sizeof(*at));
    v->ends_begin = gr_pool_alloc(v->pool, (n + 2) * sizeof(*v->ends_begin));
    v->ends = gr_pool_alloc(v->pool, (p->n_ledger + 1) * sizeof(*v->ends));
    for (uint32_t e = 0; e < p->n_ledger; e++)
        if (!v->boundary[e]) v->ends_begin[p->ledger[e].last + 1]++;
    for (uint32_t i = 0; i < n; i++) at[i] = v->ends_begin[i + 1] += v->ends_begin[i];
    for (uint32_t e = 0; e < p->n_ledger; e++)
        if (!v->boundary[e]) v->ends[--at[p->ledger[e].last]] = e;
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
        if (!lives_at(&p->ledger[e], 0) || !lives_at(&p->ledger[e], steady->n - 1))
            wrong(v, "boundary", "entry %u '%s' does not live across the end of the iteration", e, p->ledger[e].what);
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
