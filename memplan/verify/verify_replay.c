/* The paths replayed, in every way they can run.
 *
 * Optional nodes are left out or not: each set of at most two of them that run, all, and all but one; so any
 * two steps are seen with nothing between them that may be missing. Loops whose trips are agreed may run
 * none: what holds after one is what holds both without a trip and after any number of them. Each fact is
 * one bit, "this holds on every way to here", and each new bit is a constant, the copy of an old one, or the
 * sum of two. So where ways meet bits are and-ed, and a loop is replayed until its first bits no longer
 * change.
 *
 * Contents: `current` of an entry says that it holds what the tasks, run in order without any plan, would
 * have its next reader find. Order: `known` of an entry says for each lane (where its code goes ahead of its
 * queue: for each of the two) which accesses of the others to it are over before its next step begins.
 */
#include "memplan/verify/verifier.h"

#include <stdlib.h>
#include <string.h>

/* A time is a line along which accesses have an order of their own. Where work runs at once a lane is one.
 * Where it runs later than it is given (gr_tasks.queued) a lane is two: its thread's, which runs code, and
 * its queue's; the lanes host and disk have no queue. The threads of copies touch no bytes, but what they
 * waited for other threads know that wait for them. */
enum { N_TIMES = 10 };

/* Accesses of an entry, a bit each: reads and writes of each time, and those in finished loops that the time
 * that knows was not in, or does not know the end of. A row of bits for each time that knows. */
#define IN_LOOPS             N_TIMES
#define ACCESS(time, writes) (2 * (time) + (writes))
#define ROW_BITS             (2 * (N_TIMES + 1))
#define ROW                  ((1u << ROW_BITS) - 1)
#define ALL_WRITES           (ROW / 3 * 2)

/* Of an entry: when it was last accessed in each way; in loops whose accesses a time does not know, for each
 * time; the latest of all. */
typedef struct stamps {
    uint32_t at[2 * N_TIMES], in_loops[N_TIMES][2], latest;
} stamps;

typedef struct ways {         /* what holds on every way to a point of a path */
    bool *current;            /* of entries; true where nobody may rely on any contents of the object */
    bool *void_now;           /* of objects: nobody may rely on contents */
    uint32_t *known[N_TIMES]; /* of entries: a row, the accesses so far that have ended for this time */
} ways;

/* Who reads or writes what a step uses. */
enum { BY_CODE = 1, BY_QUEUE = 2, BY_TURNS = 4 };

typedef struct replay {
    gr_verifier *v;
    ways now;
    uint32_t time;
    int n_times, code[GR_N_LANES], queue[GR_N_LANES]; /* times of lanes; both are one where there is one */
    uint8_t **by;                     /* of steps that are tasks: who, of its reads, then of its writes */
    stamps *seen;                     /* of entries */
    uint32_t **code_row, **queue_row; /* of steps others wait for: what was known when it ended, of entries */
    uint32_t *end_time;
    bool *ran, *awaited[GR_N_PATHS];
    uint32_t *option[GR_N_PATHS]; /* of steps: the optional node they belong to, or GR_NONE */
    uint32_t n_options;
    bool *runs;                      /* of optional nodes, in this replay */
    unsigned *lanes[GR_N_PATHS];     /* of steps that are loops: mask of those that meet at its trips' ends */
    uint32_t *object_loop;           /* of objects: the loop (a task) at whose trips' ends contents die */
    uint32_t *copies, *copies_begin; /* of objects: their entries */
} replay;

/* ---- facts -------------------------------------------------------------------------------------------- */

/* Where contents of an object die at a trip's end: in the innermost loop around all its uses, unless its
 * first use there reads. */
static void find_object_loops(replay *r)
{
    const gr_tasks *g = r->v->g;
    r->object_loop = gr_arena_alloc(r->v->arena, (g->n_objects + 1) * sizeof(uint32_t));
    uint32_t *first = gr_arena_alloc(r->v->arena, (g->n_objects + 1) * sizeof(*first));
    uint32_t *last = gr_arena_alloc(r->v->arena, (g->n_objects + 1) * sizeof(*last));
    bool *reads = gr_arena_alloc(r->v->arena, g->n_objects + 1);
    for (uint32_t o = 0; o < g->n_objects; o++) r->object_loop[o] = first[o] = GR_NONE;
    for (uint32_t w = 0; w < g->n_tasks; w++)
        for (uint32_t u = 0; u < g->task[w].uses.n; u++) {
            uint32_t o = g->task[w].uses.list[u].object;
            if (o == GR_NONE) continue;
            if (first[o] == GR_NONE) {
                first[o] = w;
                reads[o] = (g->task[w].uses.list[u].mode & GR_READ) != 0;
            }
            last[o] = w;
        }
    for (uint32_t w = 0; w < g->n_tasks; w++) /* the innermost loops come last and stay */
        for (uint32_t o = 0; o < g->n_objects && g->task[w].loop.body_last != GR_NONE; o++)
            if (g->objects[o].span != GR_SPAN_KEEP && first[o] != GR_NONE && !reads[o] && first[o] > w &&
                last[o] <= g->task[w].loop.body_last)
                r->object_loop[o] = w;
}

/* The lanes with steps in each loop's body, and `compute`, which leads it. */
static void find_loop_lanes(replay *r, gr_path_id id)
{
    bool runs = gr_verify_runs_tasks(id);
    const gr_step *steps = runs ? r->v->steps : r->v->p->paths[id].steps;
    uint32_t n = runs ? r->v->n : r->v->p->paths[id].n;
    r->lanes[id] = gr_arena_alloc(r->v->arena, (n + 1) * sizeof(**r->lanes));
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
    uint32_t n = r->v->p->n_ledger;
    ways w = {gr_malloc(n + 1), gr_malloc(r->v->g->n_objects + 1), {0}};
    for (int t = 0; t < r->n_times; t++) w.known[t] = gr_malloc((n + 1) * sizeof(**w.known));
    return w;
}

static void ways_release(ways *w)
{
    free(w->current);
    free(w->void_now);
    for (int t = 0; t < N_TIMES; t++) free(w->known[t]);
}

static void ways_copy(const replay *r, ways *to, const ways *from)
{
    memcpy(to->current, from->current, r->v->p->n_ledger);
    memcpy(to->void_now, from->void_now, r->v->g->n_objects);
    for (int t = 0; t < r->n_times; t++)
        memcpy(to->known[t], from->known[t], r->v->p->n_ledger * sizeof(**to->known));
}

/* Two ways meet. Returns whether `to` lost anything. */
static bool ways_meet(const replay *r, ways *to, const ways *from)
{
    bool lost = false;
    uint32_t n = r->v->p->n_ledger;
    for (uint32_t e = 0; e < n; e++) {
        lost |= to->current[e] && !from->current[e];
        to->current[e] &= from->current[e];
    }
    for (int t = 0; t < r->n_times; t++)
        for (uint32_t e = 0; e < n; e++) {
            lost |= (to->known[t][e] & ~from->known[t][e]) != 0;
            to->known[t][e] &= from->known[t][e];
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
    return gr_verify_runs_tasks(r->v->path) ? &r->v->steps[i] : &r->v->p->paths[r->v->path].steps[i];
}

static void set_copies(replay *r, uint32_t object, bool current)
{
    for (uint32_t k = r->copies_begin[object]; k < r->copies_begin[object + 1]; k++)
        r->now.current[r->copies[k]] = current;
}

static void write_contents(replay *r, uint32_t e)
{
    uint32_t o = r->v->object[e];
    set_copies(r, o, false);
    r->now.current[e] = true;
    r->now.void_now[o] = false;
}

static void forget_contents(replay *r, uint32_t object)
{
    set_copies(r, object, true);
    r->now.void_now[object] = true;
}

static void end_life(replay *r, uint32_t e)
{
    r->now.current[e] = r->now.void_now[r->v->object[e]];
}

static void check_current(replay *r, uint32_t i, uint32_t e)
{
    if (!r->now.current[e])
        gr_verify_wrong(r->v, "fresh contents",
                        "%s step %u '%s' reads entry %u '%s' while the contents it needs are not there",
                        gr_path_str(r->v->path), i, step_at(r, i)->what, e, r->v->p->ledger[e].what);
}

/* The two ends of a transition: which entries it must name, and that they are of one object. Those with the
 * disk are of all paths. */
static bool names(const replay *r, uint32_t i, gr_place from, gr_place to, bool reads)
{
    const gr_step *s = step_at(r, i);
    const gr_entry *l = r->v->p->ledger;
    const bool here = from == GR_DISK || to == GR_DISK || gr_verify_runs_tasks(r->v->path);
    bool ok = s->n_reads == reads && s->n_writes == 1 && here;
    if (ok && reads) ok = l[s->reads[0]].place == from && !strcmp(l[s->reads[0]].what, s->what);
    if (ok) ok = l[s->writes[0]].place == to && !strcmp(l[s->writes[0]].what, s->what);
    if (ok && s->bytes == (reads ? l[s->reads[0]].bytes : 0)) return true;
    return gr_verify_wrong(r->v, "transitions",
                           "%s step %u '%s' (%s) does not name the copies or bytes it should",
                           gr_path_str(r->v->path), i, s->what, gr_step_kind_str(s->kind));
}

static void begin_copy(replay *r, uint32_t i, uint32_t e)
{
    if (gr_verify_runs_tasks(r->v->path) && r->v->p->ledger[e].first != i)
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
        other |= r->copies[k] != e && r->now.current[r->copies[k]];
    if (!other)
        gr_verify_wrong(r->v, "transitions", "step %u '%s' ends the only copy of the current version", i,
                        step_at(r, i)->what);
}

static void do_transition(replay *r, uint32_t i)
{
    const gr_step *s = step_at(r, i);
    bool *current = r->now.current;
    switch (s->kind) {
    case GR_STEP_LOAD:
        if (!names(r, i, GR_HOST, GR_DEVICE, true)) return;
        begin_copy(r, i, s->writes[0]);
        check_current(r, i, s->reads[0]);
        current[s->writes[0]] = current[s->reads[0]];
        return;
    case GR_STEP_OFFLOAD:
        if (!names(r, i, GR_DEVICE, GR_HOST, true)) return;
        check_current(r, i, s->reads[0]);
        current[s->writes[0]] = current[s->reads[0]];
        end_copy(r, i, s->reads[0]);
        return;
    case GR_STEP_FETCH:
        if (!names(r, i, GR_DISK, GR_HOST, true)) return;
        begin_copy(r, i, s->writes[0]);
        check_current(r, i, s->reads[0]);
        current[s->writes[0]] = current[s->reads[0]];
        return;
    case GR_STEP_STORE:
        if (!names(r, i, GR_HOST, GR_DISK, true)) return;
        check_current(r, i, s->reads[0]);
        current[s->writes[0]] = current[s->reads[0]];
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
        return; /* files, tasks and loops, which are no transitions */
    }
}

static void do_run(replay *r, uint32_t i)
{
    const gr_step *s = step_at(r, i);
    for (uint32_t k = 0; k < s->n_reads; k++) check_current(r, i, s->reads[k]);
    for (uint32_t k = 0; k < s->n_writes; k++) write_contents(r, s->writes[k]);
}

static void do_file(replay *r, uint32_t i)
{
    const gr_step *s = step_at(r, i);
    gr_path_id path = r->v->path;
    bool save = s->kind == GR_STEP_SAVE;
    bool here = save ? path == GR_PATH_CHECKPOINT || path == GR_PATH_FINAL
                     : path == GR_PATH_INIT || path == GR_PATH_RESUME;
    const gr_entry *l = r->v->p->ledger;
    const uint32_t o = gr_tasks_find(r->v->g, s->what),
                   with = save && o != GR_NONE ? r->v->g->objects[o].saved_with : 0, n = with ? 2 : 1;
    uint32_t e = save && s->n_reads == n ? s->reads[0] : !save && s->n_writes == 1 ? s->writes[0] : GR_NONE;
    if (!here || e == GR_NONE || s->n_reads + s->n_writes != n || strcmp(l[e].what, s->what) ||
        s->bytes != l[e].bytes || (with && strcmp(l[s->reads[1]].what, r->v->g->objects[with - 1].name)))
        gr_verify_wrong(r->v, "transitions", "%s step %u '%s' (%s) does not name the copy or bytes it should",
                        gr_path_str(path), i, s->what, gr_step_kind_str(s->kind));
    else if (save)
        do_run(r, i);
    else
        write_contents(r, e);
}

/* ---- order -------------------------------------------------------------------------------------------- */

/* A time knows what another knows now. */
static void tell_all(replay *r, int to, int from)
{
    uint32_t *known = r->now.known[to];
    for (uint32_t e = 0; to != from && e < r->v->p->n_ledger; e++) known[e] |= r->now.known[from][e];
}

/* What a lane's queue is given from here on begins after what its code knows. */
static void enqueue(replay *r, int lane)
{
    tell_all(r, r->queue[lane], r->code[lane]);
}

/* A time goes on when step t has ended: it knows what was known then, but for what came after. */
static void learn(replay *r, int time, const uint32_t *then, uint32_t t)
{
    for (uint32_t e = 0; e < r->v->p->n_ledger; e++) {
        const stamps *seen = &r->seen[e];
        uint32_t row = then[e];
        for (int k = 0; k < ROW_BITS && seen->latest > r->end_time[t]; k++)
            if ((k < 2 * IN_LOOPS ? seen->at[k] : seen->in_loops[time][k % 2]) > r->end_time[t])
                row &= ~(1u << k);
        r->now.known[time][e] |= row;
    }
}

/* A lane's thread waits until another has given its queue all of step t, and lets its own queue follow the
 * other's. Without a queue it waits itself for what the other's has done. */
static void wait_for(replay *r, int lane, uint32_t t)
{
    int code = r->code[lane], queue = r->queue[lane];
    learn(r, queue, r->queue_row[t], t);
    if (code != queue) learn(r, code, r->code_row[t], t);
}

static void keep_row(replay *r, uint32_t **to, int time)
{
    size_t bytes = r->v->p->n_ledger * sizeof(**to);
    if (!*to) *to = gr_malloc(bytes + 1);
    memcpy(*to, r->now.known[time], bytes);
}

static void note_end(replay *r, int lane, uint32_t i)
{
    enqueue(r, lane); /* the event that others follow */
    if (!r->awaited[r->v->path][i]) return;
    keep_row(r, &r->code_row[i], r->code[lane]);
    keep_row(r, &r->queue_row[i], r->queue[lane]);
    r->end_time[i] = r->time;
}

/* What a lane's own code knows of its queue's accesses to memory that the op uses by turns. */
static uint32_t own_turns(const replay *r, int lane)
{
    return 3u << ACCESS(r->queue[lane], 0) | 3u << ACCESS(IN_LOOPS, 0);
}

/* Step i reads or writes an entry at one of its lane's times: nobody else is at these bytes. allowed: what
 * that time need not know of the entry itself. */
static bool is_alone(replay *r, uint32_t i, uint32_t e, bool writes, int time, uint32_t allowed)
{
    const gr_step *s = step_at(r, i);
    const gr_verifier *v = r->v;
    const uint32_t *known = r->now.known[time];
    if ((writes ? ROW : ALL_WRITES) & ~(known[e] | allowed))
        return gr_verify_wrong(r->v, "waits",
                               "%s step %u '%s' does not wait for another lane%s at entry %u '%s'",
                               gr_path_str(v->path), i, s->what, r->n_times > GR_N_LANES ? " or queue" : "",
                               e, v->p->ledger[e].what);
    bool alone = true;
    for (uint32_t k = 0; k < v->n_share[e]; k++) {
        uint32_t o = v->shares[e][k];
        if (!(ROW & ~known[o])) continue;
        alone = gr_verify_wrong(
            r->v, "waits",
            "%s step %u '%s' does not wait until the bytes of entry %u '%s' are free of %u '%s'",
            gr_path_str(v->path), i, s->what, e, v->p->ledger[e].what, o, v->p->ledger[o].what);
    }
    return alone;
}

/* Of the paths that save and restore: it holds contents between paths; or it is in the host pool, of what
 * lies on the disk, and has no byte of what does. */
static bool may_be_used(const gr_verifier *v, uint32_t e)
{
    const gr_entry *l = v->p->ledger, *x = &l[e];
    bool on_disk = false;
    if (v->boundary[e]) return true;
    for (uint32_t k = 0; k < v->p->n_ledger; k++) {
        on_disk |= v->object[k] == v->object[e] && l[k].place == GR_DISK;
        if (v->boundary[k] && l[k].place == x->place && l[k].offset < x->offset + x->bytes &&
            x->offset < l[k].offset + l[k].bytes)
            return false;
    }
    return on_disk && x->place == GR_HOST;
}

static void touch(replay *r, uint32_t i, uint32_t e, bool writes, unsigned by)
{
    const gr_step *s = step_at(r, i);
    const gr_entry *x = &r->v->p->ledger[e];
    int code = r->code[s->lane], queue = r->queue[s->lane];
    bool alone = true;
    if (by & BY_CODE && code != queue)
        alone = is_alone(r, i, e, writes, code, by & BY_TURNS ? own_turns(r, s->lane) : 0);
    if (alone && (by & BY_QUEUE || code == queue)) is_alone(r, i, e, writes, queue, 0);
    if (gr_verify_runs_tasks(r->v->path) ? !gr_verify_lives_at(x, i) : !may_be_used(r->v, e))
        gr_verify_wrong(r->v, "lifetimes", "%s step %u '%s' uses entry %u '%s', which is not alive then",
                        gr_path_str(r->v->path), i, s->what, e, x->what);
}

/* No other time knows of the access yet. */
static void leave_mark_at(replay *r, uint32_t e, bool writes, int time)
{
    for (int t = 0; t < r->n_times; t++)
        if (t != time) r->now.known[t][e] &= ~(1u << ACCESS(time, writes));
    r->seen[e].latest = r->seen[e].at[ACCESS(time, writes)] = r->time;
}

static void leave_mark(replay *r, uint32_t e, bool writes, int lane, unsigned by)
{
    int code = r->code[lane], queue = r->queue[lane];
    if (by & BY_CODE && code != queue) leave_mark_at(r, e, writes, code);
    if (by & BY_QUEUE || code == queue) leave_mark_at(r, e, writes, queue);
}

/* These lanes meet at the end of a trip: the threads each other, and then the queues, which follow `compute`
 * that has followed the others. No code waits for a queue there. */
static void meet(replay *r, unsigned lanes)
{
    for (uint32_t e = 0; e < r->v->p->n_ledger; e++) {
        uint32_t code = 0, queue = 0;
        for (int l = 0; l < GR_N_LANES; l++) {
            if (!(lanes >> l & 1)) continue;
            code |= r->now.known[r->code[l]][e];
            queue |= r->now.known[r->queue[l]][e];
        }
        for (int l = 0; l < GR_N_LANES; l++) {
            if (!(lanes >> l & 1)) continue;
            r->now.known[r->code[l]][e] |= code;
            r->now.known[r->queue[l]][e] |= code | queue;
        }
    }
}

/* Whether a trip that began then read, or wrote, in whatever way. */
static bool accessed(const stamps *in_trip, bool writes, uint32_t began)
{
    bool any = false;
    for (int t = 0; t < N_TIMES; t++)
        any = any || in_trip->at[ACCESS(t, writes)] > began || in_trip->in_loops[t][writes] > began;
    return any;
}

/* Whether code that was in the trip knows that all such accesses in it are over. */
static bool knows_trip(const stamps *in_trip, uint32_t row, int time, bool writes, uint32_t began)
{
    bool all = in_trip->in_loops[time][writes] <= began || row >> ACCESS(IN_LOOPS, writes) & 1;
    for (int t = 0; t < N_TIMES; t++)
        all = all && (in_trip->at[ACCESS(t, writes)] <= began || row >> ACCESS(t, writes) & 1);
    return all;
}

static void tell_of_loop(replay *r, uint32_t e, int time, bool writes)
{
    r->now.known[time][e] &= ~(1u << ACCESS(IN_LOOPS, writes));
    r->seen[e].latest = r->seen[e].in_loops[time][writes] = r->time;
}

/* After a trip none of the times that met in it has to hear of accesses in it any more; so that these do not
 * hide what was accessed before, stamps are what they were then. A time that was not in it knows what it knew
 * before, and does not know of accesses in the loop; nor does code that was in it know what queues may still
 * be doing. before: seen, and known, when the loop began. */
static void close_trip(replay *r, unsigned lanes, const stamps *before, uint32_t *const *known,
                       uint32_t began)
{
    bool met[N_TIMES] = {0}, gave[N_TIMES] = {0}; /* the others: not in the loop */
    for (int l = 0; l < GR_N_LANES; l++) {
        if (!(lanes >> l & 1)) continue;
        gave[r->code[l]] = true;
        met[r->queue[l]] = true;
    }
    for (uint32_t e = 0; e < r->v->p->n_ledger; e++) {
        const stamps in_trip = r->seen[e];
        if (in_trip.latest <= began) continue;
        r->seen[e] = before[e];
        for (int t = 0; t < r->n_times; t++) {
            uint32_t *row = &r->now.known[t][e], then = *row;
            if (met[t]) continue;
            if (!gave[t]) *row = known[t][e];
            for (int writes = 0; writes < 2; writes++)
                if (gave[t] ? !knows_trip(&in_trip, then, t, writes, began)
                            : accessed(&in_trip, writes, began))
                    tell_of_loop(r, e, t, writes);
        }
    }
}

/* ---- steps -------------------------------------------------------------------------------------------- */

static unsigned who(const replay *r, uint32_t i, uint32_t k)
{
    return gr_verify_runs_tasks(r->v->path) && r->by[i] ? r->by[i][k] : BY_QUEUE;
}

/* A lane's thread waits for the steps before, and where the task says so for its own queue. */
static void do_waits(replay *r, uint32_t i)
{
    const gr_step *s = step_at(r, i);
    for (uint32_t k = 0; k < s->n_after; k++)
        if (r->ran[s->after[k]]) wait_for(r, s->lane, s->after[k]);
    enqueue(r, s->lane);
    bool is_task = gr_verify_runs_tasks(r->v->path) && r->v->task[i] != GR_NONE;
    if (is_task && r->v->g->task[r->v->task[i]].uses.waits) tell_all(r, r->code[s->lane], r->queue[s->lane]);
}

static void do_step(replay *r, uint32_t i)
{
    const gr_step *s = step_at(r, i);
    static const gr_lane lanes[GR_N_STEP_KINDS] = {[GR_STEP_LOAD] = GR_LANE_H2D,
                                                   [GR_STEP_OFFLOAD] = GR_LANE_D2H,
                                                   [GR_STEP_FETCH] = GR_LANE_DISK,
                                                   [GR_STEP_STORE] = GR_LANE_DISK};
    if (lanes[s->kind] && s->lane != lanes[s->kind])
        gr_verify_wrong(r->v, "lanes", "step %u '%s' (%s) is on lane %s", i, s->what,
                        gr_step_kind_str(s->kind), gr_lane_str(s->lane));
    do_waits(r, i);
    uint32_t n = s->n_reads;
    bool ends = s->kind == GR_STEP_OFFLOAD; /* the copy it reads */
    for (uint32_t k = 0; k < n; k++) touch(r, i, s->reads[k], ends, who(r, i, k));
    for (uint32_t k = 0; k < s->n_writes; k++) touch(r, i, s->writes[k], true, who(r, i, n + k));
    r->time++;
    for (uint32_t k = 0; k < n; k++) leave_mark(r, s->reads[k], ends, s->lane, who(r, i, k));
    for (uint32_t k = 0; k < s->n_writes; k++) leave_mark(r, s->writes[k], true, s->lane, who(r, i, n + k));
    if (gr_step_is_task(s->kind) && s->kind != GR_STEP_LOOP)
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
    if (!gr_verify_runs_tasks(v->path)) return;
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
            if (r->object_loop[o] == r->v->task[i]) forget_contents(r, o);
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
    for (int t = 0; t < r->n_times; t++) /* lanes have met, and queues are empty */
        memset(r->now.known[t], 0xff, v->p->n_ledger * sizeof(**r->now.known));
    for (uint32_t e = 0; e < v->p->n_ledger; e++)
        if (!v->boundary[e]) end_life(r, e);
    uint32_t first = id == GR_PATH_VALIDATE ? v->n_steady : 0;
    replay_steps(r, first, first + path->n);
    for (uint32_t o = 0; o < v->g->n_objects; o++)
        if (v->g->objects[o].span != GR_SPAN_KEEP) forget_contents(r, o);
    for (uint32_t k = 0; k < path->n_exit && v->n_errors < GR_VERIFY_MAX_ERRORS; k++) {
        uint32_t e = path->exit[k];
        if (!r->now.current[e] || v->g->objects[v->object[e]].span != GR_SPAN_KEEP)
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
    const gr_tasks *g = r->v->g;
    const char **names = gr_malloc((g->n_tasks + 1) * sizeof(*names));
    for (uint32_t w = 0; w < g->n_tasks; w++)
        if (g->task[w].optional && option_of(names, r->n_options, g->task[w].node) == GR_NONE)
            names[r->n_options++] = g->task[w].node;
    r->runs = gr_arena_alloc(r->v->arena, r->n_options + 1);
    for (int id = 0; id < GR_N_PATHS; id++) {
        bool runs = gr_verify_runs_tasks((gr_path_id)id);
        const gr_step *steps = runs ? r->v->steps : r->v->p->paths[id].steps;
        uint32_t n = runs ? r->v->n : r->v->p->paths[id].n;
        r->option[id] = gr_arena_alloc(r->v->arena, (n + 1) * sizeof(**r->option));
        r->awaited[id] = gr_arena_alloc(r->v->arena, n + 1);
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
    r->copies_begin = gr_arena_alloc(v->arena, (n + 2) * sizeof(*r->copies_begin));
    r->copies = gr_arena_alloc(v->arena, (v->p->n_ledger + 1) * sizeof(*r->copies));
    for (uint32_t e = 0; e < v->p->n_ledger; e++) r->copies_begin[v->object[e] + 1]++;
    for (uint32_t o = 0; o < n; o++) r->copies_begin[o + 1] += r->copies_begin[o];
    uint32_t *at = gr_malloc((n + 1) * sizeof(*at));
    memcpy(at, r->copies_begin, (n + 1) * sizeof(*at));
    for (uint32_t e = 0; e < v->p->n_ledger; e++) r->copies[at[v->object[e]]++] = e;
    free(at);
}

/* The times of lanes. */
static void find_times(replay *r)
{
    static const struct {
        int code, queue;
    } queued[GR_N_LANES] = {[GR_LANE_COMPUTE] = {0, 1}, [GR_LANE_COMM] = {2, 3}, [GR_LANE_H2D] = {7, 4},
                            [GR_LANE_D2H] = {8, 5},     [GR_LANE_HOST] = {6, 6}, [GR_LANE_DISK] = {9, 9}};
    bool two = r->v->g->queued;
    r->n_times = two ? N_TIMES : GR_N_LANES;
    for (int l = 0; l < GR_N_LANES; l++) {
        r->code[l] = two ? queued[l].code : l;
        r->queue[l] = two ? queued[l].queue : l;
    }
}

/* Of objects: a mask of the lanes whose tasks use them. */
static unsigned *lanes_of_objects(const gr_verifier *v)
{
    unsigned *lanes = gr_calloc(v->g->n_objects + 1, sizeof(*lanes));
    for (uint32_t i = 0; i < v->n; i++) {
        if (v->task[i] == GR_NONE) continue;
        const gr_task *w = &v->g->task[v->task[i]];
        for (uint32_t u = 0; u < w->uses.n; u++)
            if (w->uses.list[u].object != GR_NONE) lanes[w->uses.list[u].object] |= 1u << v->steps[i].lane;
    }
    return lanes;
}

/* Bytes of the device are a queue's; those of the host pool both's, where the task does not say less. */
static uint8_t who_uses(const gr_task *w, const gr_use *use, gr_place place, bool one_lane)
{
    if (place == GR_DEVICE) return BY_QUEUE;
    if (w->uses.by_code || use->mode & GR_BY_CODE) return BY_CODE;
    if (use->mode & GR_BY_QUEUE) return BY_QUEUE;
    return BY_CODE | BY_QUEUE | (use->mode & GR_BY_TURNS && one_lane ? BY_TURNS : 0);
}

static void find_users(replay *r)
{
    const gr_verifier *v = r->v;
    r->by = gr_arena_alloc(v->arena, (v->n + 1) * sizeof(*r->by));
    if (!v->g->queued) return;
    unsigned *lanes = lanes_of_objects(v);
    for (uint32_t i = 0; i < v->n; i++) {
        if (v->task[i] == GR_NONE) continue;
        const gr_step *s = &v->steps[i];
        const gr_task *w = &v->g->task[v->task[i]];
        uint8_t *reads = r->by[i] = gr_arena_alloc(v->arena, s->n_reads + s->n_writes + 1),
                *writes = reads + s->n_reads;
        for (uint32_t u = 0; u < w->uses.n; u++) {
            const gr_use *use = &w->uses.list[u];
            if (use->object == GR_NONE) continue;
            uint32_t e =
                use->mode & GR_READ ? s->reads[reads - r->by[i]] : s->writes[writes - r->by[i] - s->n_reads];
            unsigned on = lanes[use->object];
            uint8_t by = who_uses(w, use, v->p->ledger[e].place, !(on & (on - 1)));
            if (use->mode & GR_READ) *reads++ = by;
            if (use->mode & GR_WRITE) *writes++ = by;
        }
    }
    free(lanes);
}

void gr_verify_replay(gr_verifier *v)
{
    replay r = {.v = v, .now = {0}};
    find_times(&r);
    r.now = ways_new(&r);
    uint32_t n = v->n;
    for (int i = 0; i < GR_N_PATHS; i++) n = GR_MAX(n, v->p->paths[i].n);
    r.seen = gr_arena_alloc(v->arena, (v->p->n_ledger + 1) * sizeof(*r.seen));
    r.code_row = gr_calloc(n + 1, sizeof(*r.code_row));
    r.queue_row = gr_calloc(n + 1, sizeof(*r.queue_row));
    r.end_time = gr_arena_alloc(v->arena, (n + 1) * sizeof(*r.end_time));
    r.ran = gr_arena_alloc(v->arena, n + 1);
    find_users(&r);
    find_options(&r);
    find_copies(&r);
    find_object_loops(&r);
    for (int id = 0; id < GR_N_PATHS; id++) find_loop_lanes(&r, (gr_path_id)id);
    replay_options(&r);
    for (uint32_t i = 0; i < n; i++) {
        free(r.code_row[i]);
        free(r.queue_row[i]);
    }
    free(r.code_row);
    free(r.queue_row);
    ways_release(&r.now);
}
