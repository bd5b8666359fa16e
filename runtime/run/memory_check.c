/* runtime/run/memory_check.c: the memory check: gaps and dead bytes are marked, and marks are looked at after
 * each step. */
#include "runtime/run/memory_check.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#define PATTERN UINT64_C(0xFFF4DEADBEEF5A5A) /* a NaN as a double; laid down by absolute offset */

enum { BLOCK = 1 << 16 }; /* bytes compared with a block of the pattern at once: it stays in the cache */

typedef struct span { /* an entry, in the order of place and offset */
    gr_place place;
    uint64_t begin, end;
    uint32_t entry;
} span;

struct gr_memory_check {
    const gr_plan *plan;
    const gr_memory *memory[2]; /* by place */
    bool *named[GR_N_PATHS];    /* [n_ledger] but for steady: what the path names anywhere */
    bool *live, *written;       /* [n_ledger] in the step being checked */
    bool *was_live;             /* [n_ledger] in the step before: outside of these, all is pattern */
    bool *same;                 /* [n_ledger] hash and touched are of the contents */
    uint64_t *hash;             /* [n_ledger] */
    struct gr_touched_entry *now, *at_peak; /* [n_ledger] see gr_touched */
    uint64_t planned_peak;                  /* device bytes live at the step that holds most */
    gr_touched peak;
    span *spans; /* [n_ledger] */
    uint64_t block[BLOCK / sizeof(uint64_t) + 1];
};

/* The next part of [at, end): its bytes, what they are and what they are to be. */
static size_t part(const gr_memory_check *p, gr_place place, uint64_t at, uint64_t end, char **is,
                   const char **want)
{
    *is = (char *)p->memory[place]->base + at;
    *want = (const char *)p->block + at % sizeof(*p->block);
    return GR_MIN((size_t)(end - at), (size_t)BLOCK);
}

static void fill(const gr_memory_check *p, gr_place place, uint64_t begin, uint64_t end)
{
    char *is;
    const char *want;
    for (uint64_t at = begin, n; at < end; at += n) {
        n = part(p, place, at, end, &is, &want);
        if (memcmp(is, want, n)) memcpy(is, want, n);
    }
}

/* The first byte that does not hold the pattern, as an offset; end: all do. */
static uint64_t find_touched(const gr_memory_check *p, gr_place place, uint64_t begin, uint64_t end)
{
    char *is;
    const char *want;
    for (uint64_t at = begin, n; at < end; at += n) {
        n = part(p, place, at, end, &is, &want);
        if (!memcmp(is, want, n)) continue;
        for (uint64_t i = 0;; i++)
            if (is[i] != want[i]) return at + i;
    }
    return end;
}

static int by_offset(const void *a, const void *b)
{
    const span *x = a, *y = b;
    if (x->place != y->place) return x->place < y->place ? -1 : 1;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static void mark(bool *set, const uint32_t *entries, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) set[entries[i]] = true;
}

static bool live_at(const gr_entry *x, uint32_t step)
{
    bool after = step >= x->first, before = step <= x->last;
    return x->last < x->first ? after || before : after && before;
}

static uint64_t planned_at(const gr_plan *plan, uint32_t step)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < plan->n_ledger; i++)
        if (plan->ledger[i].place == GR_DEVICE && live_at(&plan->ledger[i], step))
            bytes += plan->ledger[i].bytes;
    return bytes;
}

static uint64_t planned_peak(const gr_plan *plan)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < gr_plan_steps(plan); i++) most = GR_MAX(most, planned_at(plan, i));
    return most;
}

gr_memory_check *gr_memory_check_new(const gr_plan *plan, const gr_memory *arena, const gr_memory *pool)
{
    gr_memory_check *p = gr_calloc(1, sizeof(*p));
    p->plan = plan;
    p->memory[GR_DEVICE] = arena;
    p->memory[GR_HOST] = pool;
    p->live = gr_calloc(plan->n_ledger, sizeof(*p->live));
    p->written = gr_calloc(plan->n_ledger, sizeof(*p->written));
    p->was_live = gr_calloc(plan->n_ledger, sizeof(*p->was_live));
    p->same = gr_calloc(plan->n_ledger, sizeof(*p->same));
    p->hash = gr_calloc(plan->n_ledger, sizeof(*p->hash));
    p->now = gr_calloc(plan->n_ledger, sizeof(*p->now));
    p->at_peak = gr_calloc(plan->n_ledger, sizeof(*p->at_peak));
    p->planned_peak = planned_peak(plan);
    p->peak = (gr_touched){.step = GR_NONE, .entry = p->at_peak};
    for (size_t i = 0; i < GR_LEN(p->block); i++) p->block[i] = PATTERN;
    p->spans = gr_calloc(plan->n_ledger, sizeof(*p->spans));
    for (uint32_t i = 0; i < plan->n_ledger; i++) {
        const gr_entry *x = &plan->ledger[i];
        p->spans[i] = (span){x->place, x->offset, x->offset + x->bytes, i};
    }
    qsort(p->spans, plan->n_ledger, sizeof(*p->spans), by_offset);
    for (int i = 0; i < GR_N_PATHS; i++) {
        const gr_path *path = &plan->paths[i];
        p->named[i] = gr_calloc(plan->n_ledger, sizeof(**p->named));
        mark(p->named[i], path->entry, path->n_entry);
        mark(p->named[i], path->exit, path->n_exit);
        for (uint32_t s = 0; s < path->n; s++) {
            mark(p->named[i], path->steps[s].reads, path->steps[s].n_reads);
            mark(p->named[i], path->steps[s].writes, path->steps[s].n_writes);
        }
    }
    fill(p, GR_DEVICE, 0, arena->bytes);
    fill(p, GR_HOST, 0, pool->bytes);
    return p;
}

void gr_memory_check_free(gr_memory_check *p)
{
    if (!p) return;
    for (int i = 0; i < GR_N_PATHS; i++) free(p->named[i]);
    free(p->live);
    free(p->written);
    free(p->was_live);
    free(p->same);
    free(p->hash);
    free(p->now);
    free(p->at_peak);
    free(p->spans);
    free(p);
}

/* The steps of the iteration and of validate are counted on by the ledger; other paths hold what they name.
 */
static bool live_on(const gr_memory_check *p, gr_path_id path, uint32_t step, uint32_t entry)
{
    uint32_t first = path == GR_PATH_VALIDATE ? p->plan->paths[GR_PATH_STEADY].n : 0;
    bool counted = path == GR_PATH_STEADY || path == GR_PATH_VALIDATE;
    if (p->plan->ledger[entry].place == GR_DISK) return false; /* that is not memory */
    return counted ? live_at(&p->plan->ledger[entry], first + step) : p->named[path][entry];
}

/* The next gap from *at (place and offset) on; *k: the first entry not yet passed. */
static bool next_gap(const gr_memory_check *p, uint32_t *k, span *gap)
{
    for (;;) {
        uint64_t end = p->memory[gap->place]->bytes;
        gap->begin = gap->end;
        while (*k < p->plan->n_ledger && p->spans[*k].place == gap->place) {
            const span *s = &p->spans[*k];
            if (p->live[s->entry]) {
                if (s->begin > gap->begin) break;
                gap->begin = GR_MAX(gap->begin, s->end);
            }
            ++*k;
        }
        bool at_entry = *k < p->plan->n_ledger && p->spans[*k].place == gap->place;
        gap->end = at_entry ? p->spans[*k].begin : end;
        if (gap->begin < gap->end) return true;
        if (at_entry) continue;
        if (gap->place == GR_HOST) return false;
        *gap = (span){.place = GR_HOST};
    }
}

/* Entries that share bytes with a written one change with it: on paths other than steady, where liveness is
 * only roughly known. */
static bool shares_with_written(const gr_memory_check *p, uint32_t entry)
{
    const gr_entry *x = &p->plan->ledger[entry];
    for (uint32_t i = 0; i < p->plan->n_ledger; i++) {
        const gr_entry *y = &p->plan->ledger[i];
        if (p->written[i] && x->place == y->place && x->offset < y->offset + y->bytes &&
            y->offset < x->offset + x->bytes)
            return true;
    }
    return false;
}

static uint64_t hash_of(const gr_memory_check *p, const gr_entry *x)
{
    return XXH3_64bits(p->memory[x->place]->base + x->offset, (size_t)x->bytes);
}

static void measure(gr_memory_check *p, uint32_t entry)
{
    const gr_entry *x = &p->plan->ledger[entry];
    struct gr_touched_entry *e = &p->now[entry];
    e->mark = e->touched = 0;
    for (uint64_t at = 0; at < x->bytes; at += GR_ALIGN) {
        char *is;
        const char *want;
        part(p, x->place, x->offset + at, x->offset + at + GR_ALIGN, &is, &want);
        if (!memcmp(is, want, GR_ALIGN)) continue;
        e->mark = at + GR_ALIGN;
        e->touched += GR_ALIGN;
    }
}

/* What the step must leave alone has been looked at before, if it is as the last step that wrote it left it.
 */
static void look_at(gr_memory_check *p, uint32_t entry)
{
    p->hash[entry] = hash_of(p, &p->plan->ledger[entry]);
    measure(p, entry);
    p->same[entry] = true;
}

/* The rest of a gap holds the pattern since it was looked at after the last step. */
static void fill_dead(const gr_memory_check *p, const span *gap)
{
    for (uint32_t i = 0; i < p->plan->n_ledger; i++) {
        const gr_entry *x = &p->plan->ledger[i];
        if (p->was_live[i] && !p->live[i] && x->place == gap->place)
            fill(p, gap->place, GR_MAX(gap->begin, x->offset), GR_MIN(gap->end, x->offset + x->bytes));
    }
}

void gr_memory_check_before(gr_memory_check *p, gr_path_id path, uint32_t step)
{
    const gr_plan *plan = p->plan;
    const gr_step *s = &plan->paths[path].steps[step];
    for (uint32_t i = 0; i < plan->n_ledger; i++) {
        p->live[i] = live_on(p, path, step, i);
        p->written[i] = false;
    }
    mark(p->written, s->writes, s->n_writes);
    span gap = {.place = GR_DEVICE};
    for (uint32_t k = 0; next_gap(p, &k, &gap);) fill_dead(p, &gap);
    memcpy(p->was_live, p->live, plan->n_ledger * sizeof(*p->live));
    for (uint32_t i = 0; i < plan->n_ledger; i++) {
        if (!p->live[i] || shares_with_written(p, i))
            p->same[i] = false;
        else if (!p->same[i])
            look_at(p, i);
    }
}

static void keep_peak(gr_memory_check *p, uint32_t step, uint64_t marks)
{
    p->peak.step = step;
    p->peak.planned = p->planned_peak;
    p->peak.marks = marks;
    p->peak.touched = 0;
    for (uint32_t i = 0; i < p->plan->n_ledger; i++) {
        p->at_peak[i] = p->now[i];
        if (p->now[i].live) p->peak.touched += p->now[i].touched;
    }
}

static void count_touched(gr_memory_check *p, gr_path_id path, uint32_t step)
{
    uint64_t marks = 0;
    if (path != GR_PATH_STEADY && path != GR_PATH_VALIDATE) return;
    step += path == GR_PATH_VALIDATE ? p->plan->paths[GR_PATH_STEADY].n : 0;
    for (uint32_t i = 0; i < p->plan->n_ledger; i++) {
        struct gr_touched_entry *e = &p->now[i];
        e->live = p->live[i] && p->plan->ledger[i].place == GR_DEVICE;
        if (!e->live) continue;
        if (!p->same[i]) measure(p, i);
        marks += e->mark;
    }
    p->peak.most = GR_MAX(p->peak.most, marks);
    if (planned_at(p->plan, step) == p->planned_peak && marks > p->peak.marks) keep_peak(p, step, marks);
}

gr_status gr_memory_check_after(gr_memory_check *p, gr_path_id path, uint32_t step, gr_diag *d)
{
    const gr_plan *plan = p->plan;
    const gr_step *s = &plan->paths[path].steps[step];
    gr_status st = GR_OK;
    count_touched(p, path, step);
    span gap = {.place = GR_DEVICE};
    for (uint32_t k = 0; next_gap(p, &k, &gap);) {
        uint64_t at = find_touched(p, gap.place, gap.begin, gap.end);
        if (at >= gap.end) continue;
        fill(p, gap.place, at, gap.end);
        st = gr_diag_error(d, (gr_loc){0}, GR_E_FAILED,
                           "step %u '%s' wrote to byte %llu of the %s, where nothing is live", step, s->what,
                           (unsigned long long)at, gap.place == GR_HOST ? "host pool" : "arena");
    }
    for (uint32_t i = 0; i < plan->n_ledger; i++) {
        if (!p->same[i] || p->hash[i] == hash_of(p, &plan->ledger[i])) continue;
        p->same[i] = false;
        st = gr_diag_error(d, (gr_loc){0}, GR_E_FAILED,
                           "step %u '%s' changed '%s', which it does not declare to write", step, s->what,
                           plan->ledger[i].what);
    }
    /* what began or ended here holds nothing */
    if (s->kind == GR_STEP_RESUME || s->kind == GR_STEP_RELEASE)
        for (uint32_t i = 0; i < s->n_writes; i++) {
            const gr_entry *x = &plan->ledger[s->writes[i]];
            fill(p, x->place, x->offset, x->offset + x->bytes);
        }
    return st;
}

gr_touched gr_memory_check_touched(const gr_memory_check *p)
{
    return p->peak;
}
