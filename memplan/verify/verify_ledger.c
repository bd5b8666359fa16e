/* memplan/verify/verify_ledger.c: what the ledger claims: sizes, lives, and that no two that live at once
 * share bytes. */
#include "memplan/verify/verifier.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- ledger ------------------------------------------------------------------------------------------- */

bool gr_verify_lives_at(const gr_entry *e, uint32_t i)
{
    return e->first <= e->last ? e->first <= i && i <= e->last : i >= e->first || i <= e->last;
}

static bool lives_always(const gr_verifier *v, const gr_entry *e)
{
    return e->first <= e->last ? e->first == 0 && e->last + 1 == v->n : e->first == e->last + 1;
}

/* Lives as long as one of the two paths that run tasks. */
static bool lives_on_path(const gr_verifier *v, const gr_entry *e)
{
    return (e->first == 0 && e->last + 1 == v->n_steady) || (e->first == v->n_steady && e->last + 1 == v->n);
}

static bool share_time(const gr_entry *a, const gr_entry *b)
{
    return gr_verify_lives_at(a, b->first) || gr_verify_lives_at(b, a->first);
}

static int by_offset(const void *a, const void *b, void *ledger)
{
    const gr_entry *x = (const gr_entry *)ledger + *(const uint32_t *)a;
    const gr_entry *y = (const gr_entry *)ledger + *(const uint32_t *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static void note_share(gr_verifier *v, uint32_t a, uint32_t b, uint32_t *cap)
{
    if (v->n_share[a] == cap[a]) {
        cap[a] = cap[a] ? 2 * cap[a] : 8;
        v->shares[a] = gr_realloc(v->shares[a], cap[a] * sizeof(**v->shares));
    }
    v->shares[a][v->n_share[a]++] = b;
}

/* The lanes that use each entry, on any path. */
static unsigned *lanes_of_entries(const gr_verifier *v)
{
    unsigned *lanes = gr_calloc(v->p->n_ledger + 1, sizeof(*lanes));
    for (int k = 0; k < GR_N_PATHS; k++)
        for (uint32_t i = 0; i < v->p->paths[k].n; i++) {
            const gr_step *s = &v->p->paths[k].steps[i];
            for (uint32_t j = 0; j < s->n_reads; j++) lanes[s->reads[j]] |= 1u << s->lane;
            for (uint32_t j = 0; j < s->n_writes; j++) lanes[s->writes[j]] |= 1u << s->lane;
        }
    return lanes;
}

/* Who shares bytes with whom: those must not live at one step. Noted, for the waits, are pairs that more than
 * one lane uses: a lane's own order keeps the others apart, but not its code from its queue in the host pool.
 */
static void find_shares(gr_verifier *v)
{
    unsigned *lanes = lanes_of_entries(v), both;
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
                gr_verify_wrong(v, "shared bytes",
                                "entries %u '%s' and %u '%s' live at one step in the same bytes", a,
                                l[a].what, b, l[b].what);
            both = lanes[a] | lanes[b];
            if (!(both & (both - 1)) && !(v->g->queued && l[a].place == GR_HOST)) continue;
            note_share(v, a, b, cap);
            note_share(v, b, a, cap);
        }
    free(order);
    free(cap);
    free(lanes);
}

/* A life lies inside a body, or holds the whole loop, or is elsewhere; and it lies on one path, unless it
 * holds what lives on between them. */
static void check_nesting(gr_verifier *v, uint32_t e)
{
    const gr_entry *x = &v->p->ledger[e];
    if (lives_always(v, x)) return;
    if (x->first <= x->last && x->first < v->n_steady && x->last >= v->n_steady)
        gr_verify_wrong(v, "lifetimes", "entry %u '%s' of steps %u to %u lives on two paths", e, x->what,
                        x->first, x->last);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t end = i ? x->last : x->first;
        for (uint32_t l = v->parent[end]; l != GR_NONE; l = v->parent[l]) {
            bool first_in = x->first > l && x->first <= v->steps[l].body_last;
            bool last_in = x->last > l && x->last <= v->steps[l].body_last;
            bool whole = x->first <= x->last && x->first <= l && x->last >= v->steps[l].body_last;
            if (!whole && !(first_in && last_in && x->first <= x->last))
                gr_verify_wrong(v, "loops",
                                "entry %u '%s' begins or ends in the body of loop step %u, but not both", e,
                                x->what, l);
        }
    }
}

/* What waits elsewhere between its uses has a copy there. */
static bool waits_at(const gr_verifier *v, uint32_t object, gr_place place)
{
    for (uint32_t e = 0; e < v->p->n_ledger; e++)
        if (v->object[e] == object && v->p->ledger[e].place == place) return true;
    return false;
}

static bool is_among(const uint32_t *ids, uint32_t n, uint32_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

/* In the host pool, of what lies on the disk: whether the step writes it before anything reads it. */
static bool begins_staged(const gr_step *s, uint32_t e)
{
    const bool writes = is_among(s->writes, s->n_writes, e), reads = is_among(s->reads, s->n_reads, e);
    return writes && !reads &&
           (s->kind == GR_STEP_FETCH || s->kind == GR_STEP_OFFLOAD || gr_step_is_task(s->kind));
}

static bool ends_staged(const gr_step *s, uint32_t e)
{
    return is_among(s->reads, s->n_reads, e) || is_among(s->writes, s->n_writes, e);
}

/* What is copied from and to the disk stands at whole blocks. */
static void check_staged(gr_verifier *v, uint32_t e)
{
    const gr_entry *x = &v->p->ledger[e];
    if (x->offset % GR_DISK_ALIGN)
        gr_verify_wrong(v, "offsets", "entry %u '%s', of what lies on the disk, is not at a whole block", e,
                        x->what);
    if (!begins_staged(&v->steps[x->first], e) || !ends_staged(&v->steps[x->last], e))
        gr_verify_wrong(v, "lifetimes",
                        "entry %u '%s' of steps %u to %u, of what lies on the disk, does not begin by what "
                        "writes it or end by what uses it",
                        e, x->what, x->first, x->last);
    if (v->parent[x->first] != v->parent[x->last])
        gr_verify_wrong(v, "loops", "entry %u '%s' begins in one body and ends in another", e, x->what);
}

/* Copies of what lives on, and of resources, begin and end by steps, unless they stay for ever. */
static void check_ends(gr_verifier *v, uint32_t e)
{
    const gr_entry *x = &v->p->ledger[e];
    const gr_object *o = &v->g->objects[v->object[e]];
    if (o->span == GR_SPAN_TEMP || lives_always(v, x) || (o->span != GR_SPAN_KEEP && lives_on_path(v, x)) ||
        (o->span == GR_SPAN_SPILL && !waits_at(v, v->object[e], GR_HOST)))
        return;
    if (x->place == GR_HOST && waits_at(v, v->object[e], GR_DISK)) {
        check_staged(v, e);
        return;
    }
    const gr_step *a = &v->steps[x->first], *b = &v->steps[x->last];
    bool begins =
        (a->kind == GR_STEP_LOAD || a->kind == GR_STEP_RESUME) && a->n_writes == 1 && a->writes[0] == e;
    bool ends = (b->kind == GR_STEP_RELEASE && b->n_writes == 1 && b->writes[0] == e) ||
                (b->kind == GR_STEP_OFFLOAD && b->n_reads == 1 && b->reads[0] == e);
    if (!begins || !ends)
        gr_verify_wrong(v, "lifetimes", "entry %u '%s' of steps %u to %u does not %s by a transition", e,
                        x->what, x->first, x->last, begins ? "end" : "begin");
    if (begins && ends && v->parent[x->first] != v->parent[x->last])
        gr_verify_wrong(v, "loops", "entry %u '%s' begins in one body and ends in another", e, x->what);
}

/* Bytes alive on the device at each step. */
static uint64_t *live_bytes(const gr_verifier *v)
{
    uint32_t n = v->n;
    uint64_t *live = gr_arena_alloc(v->arena, (n + 1) * sizeof(*live)); /* first changes, then their sums */
    for (uint32_t e = 0; e < v->p->n_ledger; e++) {
        const gr_entry *x = &v->p->ledger[e];
        if (x->place != GR_DEVICE) continue;
        live[x->first] += x->bytes;
        live[x->last + 1] -= x->bytes;
        if (x->last < x->first) live[0] += x->bytes;
    }
    for (uint32_t i = 1; i < n; i++) live[i] += live[i - 1];
    return live;
}

static void check_bytes(gr_verifier *v)
{
    const gr_plan *p = v->p;
    uint64_t *live = live_bytes(v), most = 0;
    for (uint32_t i = 0; i < v->n; i++) most = GR_MAX(most, live[i]);
    for (uint32_t i = 0; i < v->n; i++) {
        const gr_step *s = &v->steps[i];
        uint64_t want = live[i];
        for (uint32_t j = i + 1; s->kind == GR_STEP_LOOP && j <= s->body_last; j++)
            want = GR_MAX(want, live[j]);
        if (s->resident_bytes != want)
            gr_verify_wrong(v, "resident bytes", "step %u '%s' says %" PRIu64 ", alive are %" PRIu64, i,
                            s->what, s->resident_bytes, want);
    }
    if (v->n && (p->peak_step >= v->n || live[p->peak_step] != most))
        gr_verify_wrong(v, "peak", "step %u is not where most bytes are alive", p->peak_step);
    if (p->peak_bytes != p->arena_bytes + p->overhead_bytes)
        gr_verify_wrong(v, "peak", "the bytes at the peak, step %u, are not those of arena and overhead",
                        p->peak_step);
    bool fits = gr_plan_within(p, p->budget_bytes, p->host_budget_bytes, p->disk_budget_bytes);
    if (!fits && p->disk_bytes > p->disk_budget_bytes)
        gr_verify_wrong(v, "budget", "%" PRIu64 " bytes on the disk are more than the budget of %" PRIu64,
                        p->disk_bytes, p->disk_budget_bytes);
    else if (!fits)
        gr_verify_wrong(v, "budget", "at step %u %" PRIu64 " bytes are more than the budget of %" PRIu64,
                        p->peak_step, p->peak_bytes, p->budget_bytes);
    if (fits != p->fits)
        gr_verify_wrong(v, "budget", "'fits' is not true of the peak, step %u", p->peak_step);
}

static bool dies(const gr_verifier *v, uint32_t e)
{
    return !v->boundary[e] || !lives_always(v, &v->p->ledger[e]);
}

static void find_ends(gr_verifier *v)
{
    const gr_plan *p = v->p;
    uint32_t n = v->n, *at = gr_arena_alloc(v->arena, (n + 1) * sizeof(*at));
    v->ends_begin = gr_arena_alloc(v->arena, (n + 2) * sizeof(*v->ends_begin));
    v->ends = gr_arena_alloc(v->arena, (p->n_ledger + 1) * sizeof(*v->ends));
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
static void check_boundary(gr_verifier *v)
{
    const gr_plan *p = v->p;
    const gr_path *steady = &p->paths[GR_PATH_STEADY];
    v->boundary = gr_arena_alloc(v->arena, p->n_ledger + 1);
    for (uint32_t k = 0; k < steady->n_entry; k++) {
        uint32_t e = steady->entry[k];
        v->boundary[e] = true;
        if (!gr_verify_lives_at(&p->ledger[e], 0) || !gr_verify_lives_at(&p->ledger[e], v->n_steady - 1) ||
            !gr_verify_lives_at(&p->ledger[e], v->n - 1))
            gr_verify_wrong(v, "boundary", "entry %u '%s' does not live across the end of the iteration", e,
                            p->ledger[e].what);
    }
    for (int i = 0; i < GR_N_PATHS; i++) {
        bool begins = i == GR_PATH_INIT || i == GR_PATH_RESUME;
        const gr_path *path = &p->paths[i];
        if (begins ? path->n_entry != 0 : !same_set(path->entry, path->n_entry, v->boundary, p->n_ledger))
            gr_verify_wrong(v, "boundary", "path %s does not enter with what the path before leaves",
                            gr_path_str(i));
        if (!same_set(path->exit, path->n_exit, v->boundary, p->n_ledger))
            gr_verify_wrong(v, "boundary", "path %s does not leave what the path after it enters with",
                            gr_path_str(i));
    }
}

void gr_verify_ledger(gr_verifier *v)
{
    v->n_share = gr_calloc(v->p->n_ledger + 1, sizeof(*v->n_share));
    v->shares = gr_calloc(v->p->n_ledger + 1, sizeof(*v->shares));
    find_shares(v);
    check_boundary(v);
    for (uint32_t e = 0; e < v->p->n_ledger; e++) {
        check_nesting(v, e);
        check_ends(v, e);
    }
    check_bytes(v);
    find_ends(v);
}
