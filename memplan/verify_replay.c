/* The paths run in thought, every way they may go.
 *
 * Optional nodes are left out or not: each set of at most two of them that run, all, and all but one; so any
 * two steps are seen with nothing between them that may be missing. Loops whose trips are agreed may run
 * none: what holds after one is what holds both without a trip and after any number of them. All that is
 * followed is one bit each, "it is so on every way here", and each new bit is a constant or the copy of an
 * old one, or the sum of two; so where ways meet bits are and-ed, and a loop is replayed until its first bits
 * no longer change.
 *
 * Contents: `fresh` of an entry says that it holds what the program itself, run in order without any plan,
 * would have its next reader find. Order: `known` of an entry says of each lane which accesses of the others
 * to it are over before the lane's next step begins.
 */
#include "memplan/verifier.h"

#include <stdlib.h>
#include <string.h>

/* Accesses of an entry, a bit each: reads and writes of each lane, and those in finished loops in which the
 * lane that knows was not; the lanes that were met at their ends. A row of bits for each lane that knows. */
#define IN_LOOPS             GR_N_LANES
#define ACCESS(lane, writes) (2 * (lane) + (writes))
#define ROW_BITS             (2 * (GR_N_LANES + 1))
#define ROW                  ((1u << ROW_BITS) - 1)
#define ALL_WRITES           (ROW / 3 * 2)

/* Of an entry: when it was last accessed in each way; in loops that a lane was not in, for each lane; the
 * latest of all. */
typedef struct stamps {
    uint32_t at[2 * GR_N_LANES], in_loops[GR_N_LANES][2], latest;
} stamps;

typedef struct ways { /* what holds on every way to a point of a path */
    bool *fresh;      /* of entries; true where nobody may rely on any contents of the object */
    bool *void_now;   /* of objects: nobody may rely on contents */
    uint64_t *known;  /* of entries: a row for each lane, the accesses so far that have ended for it */
} ways;

typedef struct replay {
    gr_verifier *v;
    ways now;
    uint32_t time;
    stamps *seen;       /* of entries */
    uint16_t **end_row; /* of steps others wait for: what was known when it ended, of entries */
    uint32_t *end_time;
    bool *ran, *awaited[GR_N_PATHS];
    uint32_t *option[GR_N_PATHS]; /* of steps: the optional node they belong to, or GR_NONE */
    uint32_t n_options;
    bool *runs;                      /* of optional nodes, in this replay */
    unsigned *lanes[GR_N_PATHS];     /* of steps that are loops: mask of those that meet at its trips' ends */
    uint32_t *object_loop;           /* of objects: the loop (a work) at whose trips' ends contents die */
    uint32_t *copies, *copies_begin; /* of objects: their entries */
} replay;

/* ---- facts -------------------------------------------------------------------------------------------- */

/* Where contents of an object die at a trip's end: in the innermost loop around all its uses, unless its
 * first use there reads. */
static void find_object_loops(replay *r)
{
    const gr_program *g = r->v->g;
    r->object_loop = gr_pool_alloc(r->v->pool, (g->n_objects + 1) * sizeof(uint32_t));
    uint32_t *first = gr_pool_alloc(r->v->pool, (g->n_objects + 1) * sizeof(*first));
    uint32_t *last = gr_pool_alloc(r->v->pool, (g->n_objects + 1) * sizeof(*last));
    bool *reads = gr_pool_alloc(r->v->pool, g->n_objects + 1);
    for (uint32_t o = 0; o < g->n_objects; o++) r->object_loop[o] = first[o] = GR_NONE;
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
                r->object_loop[o] = w;
}

/* The lanes with steps in each loop's body, and `compute`, which leads it. */
static void find_loop_lanes(replay *r, gr_path_id id)
{
    bool works = gr_verify_runs_works(id);
    const gr_step *steps = works ? r->v->steps : r->v->p->paths[id].steps;
    uint32_t n = works ? r->v->n : r->v->p->paths[id].n;
    r->lanes[id] = gr_pool_alloc(r->v->pool, (n + 1) * sizeof(**r->lanes));
    for (uint32_t i = 0; i < n; i++) {
        if (steps[i].kind != GR_STEP_LOOP) continue;
        r->lanes[id][i] = 1u << GR_LANE_COMPUTE;
        for (uint32_t k = i + 1; k <= steps[i].body_last; k++)
            if (steps[k].kind != GR_STEP_LOOP) r->lanes[id][i] |= 1u << steps[k].lane;
    }
}

/* ---- ways --------------------------------------------------------------------------------------------- */

static ways ways_new(const replay *r)
{
    return (ways){gr_malloc(r->v->p->n_ledger + 1), gr_malloc(r->v->g->n_objects + 1),
                  gr_malloc((r->v->p->n_ledger + 1) * sizeof(uint64_t))};
}

static void ways_release(ways *w)
{
    free(w->fresh);
    free(w->void_now);
    free(w->known);
}

static void ways_copy(const replay *r, ways *to, const ways *from)
{
    memcpy(to->fresh, from->fresh, r->v->p->n_ledger);
    memcpy(to->void_now, from->void_now, r->v->g->n_objects);
    memcpy(to->known, from->known, r->v->p->n_ledger * sizeof(*to->known));
}

/* Two ways meet. Returns whether `to` lost anything. */
static bool ways_meet(const replay *r, ways *to, const ways *from)
{
    bool lost = false;
    for (uint32_t e = 0; e < r->v->p->n_ledger; e++) {
        lost |= (to->fresh[e] && !from->fresh[e]) || (to->known[e] & ~from->known[e]);
        to->fresh[e] &= from->fresh[e];
        to->known[e] &= from->known[e];
    }
    for (uint32_t o = 0; o < r->v->g->n_objects; o++) {
        lost |= to->void_now[o] && !from->void_now[o];
        to->void_now[o] &= from->void_now[o];
    }
    return lost;
}

/* ---- contents ----------------------------------------------------------------------------------------- */

static const gr_step *step_at(const replay *r, uint32_t i)
{
    return gr_verify_runs_works(r->v->path) ? &r->v->steps[i] : &r->v->p->paths[r->v->path].steps[i];
}

static void set_copies(replay *r, uint32_t object, bool fresh)
{
    for (uint32_t k = r->copies_begin[object]; k < r->copies_begin[object + 1]; k++)
        r->now.fresh[r->copies[k]] = fresh;
}

static void write_contents(replay *r, uint32_t e)
{
    uint32_t o = r->v->object[e];
    set_copies(r, o, false);
    r->now.fresh[e] = true;
    r->now.void_now[o] = false;
}

static void forget_contents(replay *r, uint32_t object)
{
    set_copies(r, object, true);
    r->now.void_now[object] = true;
}

static void end_life(replay *r, uint32_t e)
{
    r->now.fresh[e] = r->now.void_now[r->v->object[e]];
}

static void check_fresh(replay *r, uint32_t i, uint32_t e)
{
    if (!r->now.fresh[e])
        gr_verify_wrong(r->v, "fresh contents",
                        "%s step %u '%s' reads entry %u '%s' while the contents it needs are not there",
                        gr_path_str(r->v->path), i, step_at(r, i)->what, e, r->v->p->ledger[e].what);
}

/* The two ends of a transition: which entries it must name, and that they are of one object. */
static bool names(const replay *r, uint32_t i, gr_place from, gr_place to, bool reads)
{
    const gr_step *s = step_at(r, i);
    const gr_entry *l = r->v->p->ledger;
    bool ok = s->n_reads == reads && s->n_writes == 1 && gr_verify_runs_works(r->v->path);
    if (ok && reads) ok = l[s->reads[0]].place == from && !strcmp(l[s->reads[0]].what, s->what);
    if (ok) ok = l[s->writes[0]].place == to && !strcmp(l[s->writes[0]].what, s->what);
    if (ok && s->bytes == (reads ? l[s->reads[0]].bytes : 0)) return true;
    return gr_verify_wrong(r->v, "transitions",
                           "%s step %u '%s' (%s) does not name the copies or bytes it should",
                           gr_path_str(r->v->path), i, s->what, gr_step_kind_str(s->kind));
}

static void begin_copy(replay *r, uint32_t i, uint32_t e)
{
    if (r->v->p->ledger[e].first != i)
        gr_verify_wrong(r->v, "transitions", "step %u '%s' begins entry %u, which begins at step %u", i,
                        step_at(r, i)->what, e, r->v->p->ledger[e].first);
}

static void end_copy(replay *r, uint32_t i, uint32_t e)
{
    if (r->v->p->ledger[e].last != i)
        gr_verify_wrong(r->v, "transitions", "step %u '%s' ends entry %u, which ends at step %u", i,
                        step_at(r, i)->what, e, r->v->p->ledger[e].last);
    uint32_t o = r->v->object[e];
    bool other = r->v->g->objects[o].span != GR_SPAN_KEEP;
    for (uint32_t k = r->copies_begin[o]; k < r->copies_begin[o + 1]; k++)
        other |= r->copies[k] != e && r->now.fresh[r->copies[k]];
    if (!other)
        gr_verify_wrong(r->v, "transitions", "step %u '%s' ends the only copy of the current version", i,
                        step_at(r, i)->what);
}

static void do_transition(replay *r, uint32_t i)
{
    const gr_step *s = step_at(r, i);
    bool *fresh = r->now.fresh;
    switch (s->kind) {
    case GR_STEP_LOAD:
        if (!names(r, i, GR_HOST, GR_DEVICE, true)) return;
        begin_copy(r, i, s->writes[0]);
        check_fresh(r, i, s->reads[0]);
        fresh[s->writes[0]] = fresh[s->reads[0]];
        return;
    case GR_STEP_OFFLOAD:
        if (!names(r, i, GR_DEVICE, GR_HOST, true)) return;
        check_fresh(r, i, s->reads[0]);
        fresh[s->writes[0]] = fresh[s->reads[0]];
        end_copy(r, i, s->reads[0]);
        return;
    case GR_STEP_RESUME:
        if (!names(r, i, GR_DEVICE, GR_DEVICE, false)) return;
        begin_copy(r, i, s->writes[0]);
        end_life(r, s->writes[0]); /* of what was there before */
        return;
    case GR_STEP_RELEASE:
        if (names(r, i, GR_DEVICE, GR_DEVICE, false)) end_copy(r, i, s->writes[0]);
        return;
    default:
        gr_verify_wrong(r->v, "kinds", "%s step %u '%s' is of kind %s", gr_path_str(r->v->path), i, s->what,
                        gr_step_kind_str(s->kind));
    }
}

static void do_run(replay *r, uint32_t i)
{
    const gr_step *s = step_at(r, i);
    for (uint32_t k = 0; k < s->n_reads; k++) check_fresh(r, i, s->reads[k]);
    for (uint32_t k = 0; k < s->n_writes; k++) write_contents(r, s->writes[k]);
}

static void do_file(replay *r, uint32_t i)
{
    const gr_step *s = step_at(r, i);
    gr_path_id path = r->v->path;
    bool save = s->kind == GR_STEP_SAVE;
    bool here = save ? path == GR_PATH_CHECKPOINT || path == GR_PATH_FINAL
                     : path == GR_PATH_INIT || path == GR_PATH_RESUME;
    uint32_t e = save && s->n_reads == 1 ? s->reads[0] : !save && s->n_writes == 1 ? s->writes[0] : GR_NONE;
    const gr_entry *l = r->v->p->ledger;
    if (!here || e == GR_NONE || s->n_reads + s->n_writes != 1 || strcmp(l[e].what, s->what) ||
        s->bytes != l[e].bytes)
        gr_verify_wrong(r->v, "transitions", "%s step %u '%s' (%s) does not name the copy or bytes it should",
                        gr_path_str(path), i, s->what, gr_step_kind_str(s->kind));
    else if (save)
        check_fresh(r, i, e);
    else
        write_contents(r, e);
}

/* ---- order -------------------------------------------------------------------------------------------- */

static uint32_t row_of(const replay *r, uint32_t e, int lane)
{
    return (uint32_t)(r->now.known[e] >> lane * ROW_BITS) & ROW;
}

/* The lane goes on when step t has ended: it knows what was known then, but for what came after. */
static void wait_for(replay *r, int lane, uint32_t t)
{
    for (uint32_t e = 0; e < r->v->p->n_ledger; e++) {
        const stamps *seen = &r->seen[e];
        uint32_t row = r->end_row[t][e];
        for (int k = 0; k < ROW_BITS && seen->latest > r->end_time[t]; k++)
            if ((k < 2 * IN_LOOPS ? seen->at[k] : seen->in_loops[lane][k % 2]) > r->end_time[t])
                row &= ~(1u << k);
        r->now.known[e] |= (uint64_t)row << lane * ROW_BITS;
    }
}

static void note_end(replay *r, int lane, uint32_t i)
{
    if (!r->awaited[r->v->path][i]) return;
    uint32_t n = r->v->p->n_ledger;
    if (!r->end_row[i]) r->end_row[i] = gr_malloc((n + 1) * sizeof(**r->end_row));
    for (uint32_t e = 0; e < n; e++) r->end_row[i][e] = (uint16_t)row_of(r, e, lane);
    r->end_time[i] = r->time;
}

/* Step i reads or writes an entry: nobody else is at these bytes. */
static void touch(replay *r, uint32_t i, uint32_t e, bool writes)
{
    const gr_step *s = step_at(r, i);
    const gr_verifier *v = r->v;
    const gr_entry *x = &v->p->ledger[e];
    if ((writes ? ROW : ALL_WRITES) & ~row_of(r, e, s->lane))
        gr_verify_wrong(r->v, "waits", "%s step %u '%s' does not wait for another lane at entry %u '%s'",
                        gr_path_str(v->path), i, s->what, e, x->what);
    for (uint32_t k = 0; k < v->n_share[e]; k++) {
        uint32_t o = v->shares[e][k];
        if (row_of(r, o, s->lane) == ROW) continue;
        gr_verify_wrong(r->v, "waits",
                        "%s step %u '%s' does not wait until the bytes of entry %u '%s' are free of %u '%s'",
                        gr_path_str(v->path), i, s->what, e, x->what, o, v->p->ledger[o].what);
    }
    if (gr_verify_runs_works(v->path) ? !gr_verify_lives_at(x, i) : !v->boundary[e])
        gr_verify_wrong(r->v, "lifetimes", "%s step %u '%s' uses entry %u '%s', which is not alive then",
                        gr_path_str(v->path), i, s->what, e, x->what);
}

/* The access is news for all other lanes. */
static void leave_mark(replay *r, uint32_t e, bool writes, int lane)
{
    for (int l = 0; l < GR_N_LANES; l++)
        if (l != lane) r->now.known[e] &= ~(1ULL << (l * ROW_BITS + ACCESS(lane, writes)));
    r->seen[e].latest = r->seen[e].at[ACCESS(lane, writes)] = r->time;
}

/* These lanes meet. */
static void meet(replay *r, unsigned lanes)
{
    for (uint32_t e = 0; e < r->v->p->n_ledger; e++) {
        uint32_t row = 0;
        for (int l = 0; l < GR_N_LANES; l++)
            if (lanes >> l & 1) row |= row_of(r, e, l);
        for (int l = 0; l < GR_N_LANES; l++)
            if (lanes >> l & 1) r->now.known[e] |= (uint64_t)row << l * ROW_BITS;
    }
}

/* Whether a trip that began then read, or wrote, in whatever way. */
static bool accessed(const stamps *in_trip, bool writes, uint32_t began)
{
    bool any = false;
    for (int l = 0; l < GR_N_LANES; l++)
        any = any || in_trip->at[ACCESS(l, writes)] > began || in_trip->in_loops[l][writes] > began;
    return any;
}

static void tell_of_loop(replay *r, uint32_t e, int lane, bool writes)
{
    r->now.known[e] &= ~(1ULL << (lane * ROW_BITS + ACCESS(IN_LOOPS, writes)));
    r->seen[e].latest = r->seen[e].in_loops[lane][writes] = r->time;
}

/* After a trip no lane that was in the loop has to hear of accesses in it any more; so that these do not hide
 * what was accessed before, times are what they were then. A lane that was not knows what it knew before, and
 * has news of another kind. before: seen, and known, when the loop began. */
static void close_trip(replay *r, unsigned lanes, const stamps *before, const uint64_t *known, uint32_t began)
{
    uint64_t others = 0; /* the rows of those that were not */
    for (int l = 0; l < GR_N_LANES; l++)
        if (!(lanes >> l & 1)) others |= (uint64_t)ROW << l * ROW_BITS;
    for (uint32_t e = 0; e < r->v->p->n_ledger; e++) {
        const stamps in_trip = r->seen[e];
        if (in_trip.latest <= began) continue;
        r->seen[e] = before[e];
        r->now.known[e] = (r->now.known[e] & ~others) | (known[e] & others);
        for (int writes = 0; writes < 2; writes++)
            for (int l = 0; l < GR_N_LANES && accessed(&in_trip, writes, began); l++)
                if (!(lanes >> l & 1)) tell_of_loop(r, e, l, writes);
    }
}

/* ---- steps -------------------------------------------------------------------------------------------- */

static void do_step(replay *r, uint32_t i)
{
    const gr_step *s = step_at(r, i);
    static const gr_lane lanes[GR_N_STEP_KINDS] = {
        [GR_STEP_LOAD] = GR_LANE_H2D, [GR_STEP_OFFLOAD] = GR_LANE_D2H};
    if (lanes[s->kind] && s->lane != lanes[s->kind])
        gr_verify_wrong(r->v, "lanes", "step %u '%s' (%s) is on lane %s", i, s->what,
                        gr_step_kind_str(s->kind), gr_lane_str(s->lane));
    for (uint32_t k = 0; k < s->n_after; k++)
        if (r->ran[s->after[k]]) wait_for(r, s->lane, s->after[k]);
    bool ends = s->kind == GR_STEP_OFFLOAD; /* the copy it reads */
    for (uint32_t k = 0; k < s->n_reads; k++) touch(r, i, s->reads[k], ends);
    for (uint32_t k = 0; k < s->n_writes; k++) touch(r, i, s->writes[k], true);
    r->time++;
    for (uint32_t k = 0; k < s->n_reads; k++) leave_mark(r, s->reads[k], ends, s->lane);
    for (uint32_t k = 0; k < s->n_writes; k++) leave_mark(r, s->writes[k], true, s->lane);
    if (gr_step_is_work(s->kind) && s->kind != GR_STEP_LOOP)
        do_run(r, i);
    else if (s->kind == GR_STEP_SAVE || s->kind == GR_STEP_RESTORE)
        do_file(r, i);
    else if (s->kind != GR_STEP_LOOP)
        do_transition(r, i);
    if (s->kind != GR_STEP_LOOP) note_end(r, s->lane, i);
    r->ran[i] = true;
}

/* End the lives whose last step is this one, or the last of this loop after all its trips: those that began
 * in the same body, but not inside the loop. */
static void end_lives(replay *r, uint32_t i)
{
    const gr_verifier *v = r->v;
    if (!gr_verify_runs_works(v->path)) return;
    bool loop = step_at(r, i)->kind == GR_STEP_LOOP;
    uint32_t last = loop ? step_at(r, i)->body_last : i, around = v->parent[i];
    for (uint32_t k = v->ends_begin[last]; k < v->ends_begin[last + 1]; k++) {
        const gr_entry *e = &v->p->ledger[v->ends[k]];
        bool wraps = e->last < e->first;
        bool here = around == GR_NONE || (!wraps && e->first > around);
        if (here && (!loop || wraps || e->first <= i)) end_life(r, v->ends[k]);
    }
}

static void replay_steps(replay *r, uint32_t begin, uint32_t end);

/* Trips until what holds when one begins is settled. */
static void replay_loop(replay *r, uint32_t i)
{
    const gr_step *s = step_at(r, i);
    ways begin = ways_new(r), end = ways_new(r);
    uint32_t n = r->v->p->n_ledger, began = r->time;
    unsigned lanes = r->lanes[r->v->path][i];
    stamps *before = gr_malloc((n + 1) * sizeof(*before));
    memcpy(before, r->seen, n * sizeof(*before));
    ways_copy(r, &begin, &r->now);
    if (s->agreed) ways_copy(r, &end, &r->now); /* after no trip */
    for (uint32_t t = 0; t < s->trips_max && r->v->n_errors < GR_VERIFY_MAX_ERRORS; t++) {
        replay_steps(r, i + 1, s->body_last + 1);
        meet(r, lanes);
        close_trip(r, lanes, before, begin.known, began);
        for (uint32_t o = 0; o < r->v->g->n_objects; o++)
            if (r->object_loop[o] == r->v->work[i]) forget_contents(r, o);
        if (t || s->agreed)
            ways_meet(r, &end, &r->now);
        else
            ways_copy(r, &end, &r->now);
        if (!ways_meet(r, &begin, &r->now)) break;
        ways_copy(r, &r->now, &begin);
    }
    ways_copy(r, &r->now, &end);
    ways_release(&begin);
    ways_release(&end);
    free(before);
    note_end(r, GR_LANE_COMPUTE, i);
}

static void replay_steps(replay *r, uint32_t begin, uint32_t end)
{
    const uint32_t *option = r->option[r->v->path];
    for (uint32_t i = begin; i < end && r->v->n_errors < GR_VERIFY_MAX_ERRORS; i++) {
        bool loop = step_at(r, i)->kind == GR_STEP_LOOP, runs = option[i] == GR_NONE || r->runs[option[i]];
        r->ran[i] = false;
        if (runs) do_step(r, i);
        if (runs && loop) replay_loop(r, i);
        end_lives(r, i);
        if (loop) i = step_at(r, i)->body_last;
    }
}

static void replay_path(replay *r, gr_path_id id)
{
    const gr_verifier *v = r->v;
    const gr_path *path = &v->p->paths[id];
    r->v->path = id;
    for (uint32_t e = 0; e < v->p->n_ledger; e++) {
        r->now.known[e] = UINT64_MAX; /* lanes have met */
        if (!v->boundary[e]) end_life(r, e);
    }
    uint32_t first = id == GR_PATH_VALIDATE ? v->n_steady : 0;
    replay_steps(r, first, first + path->n);
    for (uint32_t o = 0; o < v->g->n_objects; o++)
        if (v->g->objects[o].span != GR_SPAN_KEEP) forget_contents(r, o);
    for (uint32_t k = 0; k < path->n_exit && v->n_errors < GR_VERIFY_MAX_ERRORS; k++) {
        uint32_t e = path->exit[k];
        if (!r->now.fresh[e] || v->g->objects[v->object[e]].span != GR_SPAN_KEEP)
            gr_verify_wrong(r->v, "boundary", "path %s leaves entry %u '%s' without its current contents",
                            gr_path_str(id), e, v->p->ledger[e].what);
    }
}

/* Another process: nothing is there. What lives on must be restored before it is read. */
static void start_process(replay *r)
{
    for (uint32_t o = 0; o < r->v->g->n_objects; o++) {
        forget_contents(r, o);
        if (r->v->g->objects[o].span != GR_SPAN_KEEP) continue;
        set_copies(r, o, false);
        r->now.void_now[o] = false;
    }
}

static void replay_paths(replay *r)
{
    static const gr_path_id order[] = {
        GR_PATH_INIT,       GR_PATH_VALIDATE,   GR_PATH_STEADY,   GR_PATH_STEADY,
        GR_PATH_CHECKPOINT, GR_PATH_STEADY,     GR_PATH_VALIDATE, GR_PATH_STEADY,
        GR_PATH_VALIDATE,   GR_PATH_CHECKPOINT, GR_PATH_STEADY,   GR_PATH_FINAL,
        GR_PATH_RESUME,     GR_PATH_STEADY,     GR_PATH_VALIDATE, GR_PATH_FINAL};
    for (size_t i = 0; i < GR_LEN(order) && r->v->n_errors < GR_VERIFY_MAX_ERRORS; i++) {
        if (order[i] == GR_PATH_INIT || order[i] == GR_PATH_RESUME) start_process(r);
        replay_path(r, order[i]);
    }
}

/* ---- what may be left out ----------------------------------------------------------------------------- */

static void set_runs(replay *r, bool all, uint32_t a, uint32_t b)
{
    for (uint32_t k = 0; k < r->n_options; k++) r->runs[k] = all;
    if (a != GR_NONE) r->runs[a] = !all;
    if (b != GR_NONE) r->runs[b] = !all;
    if (!r->v->n_errors) replay_paths(r);
}

static void replay_options(replay *r)
{
    set_runs(r, false, GR_NONE, GR_NONE);
    for (uint32_t a = 0; a < r->n_options; a++) {
        set_runs(r, false, a, GR_NONE);
        for (uint32_t b = 0; b < a; b++) set_runs(r, false, a, b);
    }
    if (r->n_options > 2) set_runs(r, true, GR_NONE, GR_NONE);
    for (uint32_t a = 0; r->n_options > 3 && a < r->n_options; a++) set_runs(r, true, a, GR_NONE);
}

static uint32_t option_of(const char *const *names, uint32_t n, const char *node)
{
    for (uint32_t k = 0; k < n && node; k++)
        if (!strcmp(names[k], node)) return k;
    return GR_NONE;
}

/* Optional nodes, and the steps that belong to each; steps that others wait for. */
static void find_options(replay *r)
{
    const gr_program *g = r->v->g;
    const char **names = gr_malloc((g->n_works + 1) * sizeof(*names));
    for (uint32_t w = 0; w < g->n_works; w++)
        if (g->works[w].optional && option_of(names, r->n_options, g->works[w].node) == GR_NONE)
            names[r->n_options++] = g->works[w].node;
    r->runs = gr_pool_alloc(r->v->pool, r->n_options + 1);
    for (int id = 0; id < GR_N_PATHS; id++) {
        bool works = gr_verify_runs_works((gr_path_id)id);
        const gr_step *steps = works ? r->v->steps : r->v->p->paths[id].steps;
        uint32_t n = works ? r->v->n : r->v->p->paths[id].n;
        r->option[id] = gr_pool_alloc(r->v->pool, (n + 1) * sizeof(**r->option));
        r->awaited[id] = gr_pool_alloc(r->v->pool, n + 1);
        for (uint32_t i = 0; i < n; i++) {
            r->option[id][i] = option_of(names, r->n_options, steps[i].node);
            for (uint32_t k = 0; k < steps[i].n_after; k++) r->awaited[id][steps[i].after[k]] = true;
        }
    }
    free(names);
}

static void find_copies(replay *r)
{
    const gr_verifier *v = r->v;
    uint32_t n = (uint32_t)v->g->n_objects;
    r->copies_begin = gr_pool_alloc(v->pool, (n + 2) * sizeof(*r->copies_begin));
    r->copies = gr_pool_alloc(v->pool, (v->p->n_ledger + 1) * sizeof(*r->copies));
    for (uint32_t e = 0; e < v->p->n_ledger; e++) r->copies_begin[v->object[e] + 1]++;
    for (uint32_t o = 0; o < n; o++) r->copies_begin[o + 1] += r->copies_begin[o];
    uint32_t *at = gr_malloc((n + 1) * sizeof(*at));
    memcpy(at, r->copies_begin, (n + 1) * sizeof(*at));
    for (uint32_t e = 0; e < v->p->n_ledger; e++) r->copies[at[v->object[e]]++] = e;
    free(at);
}

void gr_verify_replay(gr_verifier *v)
{
    replay r = {.v = v, .now = {0}};
    r.now = ways_new(&r);
    uint32_t n = v->n;
    for (int i = 0; i < GR_N_PATHS; i++) n = GR_MAX(n, v->p->paths[i].n);
    r.seen = gr_pool_alloc(v->pool, (v->p->n_ledger + 1) * sizeof(*r.seen));
    r.end_row = gr_calloc(n + 1, sizeof(*r.end_row));
    r.end_time = gr_pool_alloc(v->pool, (n + 1) * sizeof(*r.end_time));
    r.ran = gr_pool_alloc(v->pool, n + 1);
    find_options(&r);
    find_copies(&r);
    find_object_loops(&r);
    for (int id = 0; id < GR_N_PATHS; id++) find_loop_lanes(&r, (gr_path_id)id);
    replay_options(&r);
    for (uint32_t i = 0; i < n; i++) free(r.end_row[i]);
    free(r.end_row);
    ways_release(&r.now);
}
