/* tests/unit/meet.h: ranks that meet: each runs a plan of its own, and where a task needs others it waits for
 * them. An oracle apart from the verifier: it knows communicators, not rules.
 *
 * Lanes of a rank take their steps in order, each behind what it waits for; at the end of a trip a loop's
 * lanes meet. A task waits for its group along each axis of its mesh, a collective for the ranks of its
 * group, an exchange for the stage on its side, a send and its recv for the ranks of both roles. Ranks that
 * come to one communicator must have come for the same: the same task, of the same kind and bytes. Loops run
 * two trips where they may, on all ranks alike: that ranks could count them apart is the rule of trips
 * (memplan/verify). */
#ifndef GR_TESTS_MEET_H
#define GR_TESTS_MEET_H

#include "memplan/plan/tasks.h"
#include "runtime/comm/mesh.h"
#include "tests/unit/test.h"

enum { MEET_RANKS = 16, MEET_PHASES = GR_N_AXES + 1 };

typedef struct meet_item { /* of a lane: a step, or a place where lanes meet */
    uint32_t step, *need;  /* how often each step in its `after` must be done */
    uint32_t barrier;      /* 0: a step */
    bool enters, leaves;   /* a loop: its step is done where it is left */
} meet_item;

typedef struct meet_rank {
    const gr_plan *p; /* of its role, as this rank has it */
    const gr_tasks *g;
    uint32_t role, rank, ranks; /* within its role */
    meet_item *items[GR_N_LANES];
    size_t n[GR_N_LANES], cap[GR_N_LANES];
    size_t at[GR_N_LANES];
    uint32_t phase[GR_N_LANES];
    const gr_task **task; /* of steps; NULL: none of the program */
    uint32_t *planned, *done, barriers;
    uint64_t *arrived; /* of barriers: lanes */
    unsigned *lanes;   /* that meet there */
} meet_rank;

typedef struct meeting_run {
    gr_arena *arena;
    meet_rank all[MEET_RANKS];
    uint32_t n;
    const char *why;
    char what[128];
} meeting_run;

/* For whom a rank waits, and with what. */
typedef struct meet_call {
    uint64_t comm; /* the communicator; 0: it needs nobody */
    bool with[MEET_RANKS];
    const char *what;
    gr_step_kind kind;
    uint64_t bytes;
} meet_call;

static inline const gr_path *meet_path(const meet_rank *r)
{
    return &r->p->paths[GR_PATH_STEADY];
}

static inline void meet_add(meet_rank *r, int lane, meet_item item)
{
    GR_PUSH(r->items[lane], r->n[lane], r->cap[lane], item);
}

static inline unsigned meet_lanes(const gr_path *path, uint32_t loop)
{
    unsigned lanes = 1u << GR_LANE_COMPUTE;
    for (uint32_t j = loop + 1; j <= path->steps[loop].body_last; j++)
        if (path->steps[j].kind != GR_STEP_LOOP) lanes |= 1u << path->steps[j].lane;
    return lanes;
}

static inline void meet_step(meeting_run *m, meet_rank *r, uint32_t i)
{
    const gr_step *s = &meet_path(r)->steps[i];
    const bool loop = s->kind == GR_STEP_LOOP;
    meet_item item = {
        .step = i, .enters = loop, .need = gr_arena_alloc(m->arena, (s->n_after + 1) * sizeof(uint32_t))};
    for (uint32_t k = 0; k < s->n_after; k++) item.need[k] = r->planned[s->after[k]];
    meet_add(r, (int)s->lane, item);
    if (!loop) r->planned[i]++;
}

static inline void meet_expand(meeting_run *m, meet_rank *r, uint32_t begin, uint32_t end)
{
    const gr_path *path = meet_path(r);
    for (uint32_t i = begin; i < end; i++) {
        const gr_step *s = &path->steps[i];
        meet_step(m, r, i);
        if (s->kind != GR_STEP_LOOP) continue;
        const unsigned lanes = meet_lanes(path, i);
        for (uint32_t t = 0; t < GR_MIN(s->trips_max, 2u); t++) {
            meet_expand(m, r, i + 1, s->body_last + 1);
            const uint32_t barrier = ++r->barriers;
            r->lanes[barrier] = lanes;
            for (int l = 0; l < GR_N_LANES; l++)
                if (lanes >> l & 1) meet_add(r, l, (meet_item){.barrier = barrier});
        }
        meet_add(r, (int)s->lane, (meet_item){.step = i, .leaves = true});
        r->planned[i]++;
        i = s->body_last;
    }
}

static inline void meet_begin(meeting_run *m, const gr_plan *p, const gr_tasks *g, uint32_t role,
                              uint32_t rank, uint32_t ranks)
{
    enum { BARRIERS = 4096 };
    meet_rank *r = &m->all[m->n++];
    assert_true(m->n <= MEET_RANKS);
    *r = (meet_rank){.p = p, .g = g, .role = role, .rank = rank, .ranks = ranks};
    const gr_path *path = meet_path(r);
    r->task = gr_arena_alloc(m->arena, (path->n + 1) * sizeof(*r->task));
    r->planned = gr_arena_alloc(m->arena, (path->n + 1) * sizeof(uint32_t));
    r->done = gr_arena_alloc(m->arena, (path->n + 1) * sizeof(uint32_t));
    r->arrived = gr_arena_alloc(m->arena, BARRIERS * sizeof(uint64_t));
    r->lanes = gr_arena_alloc(m->arena, BARRIERS * sizeof(unsigned));
    for (uint32_t i = 0; i < path->n; i++)
        for (uint32_t w = 0; w < gr_tasks_steady(g) && gr_step_is_task(path->steps[i].kind); w++)
            if (!strcmp(g->task[w].what, path->steps[i].what)) r->task[i] = &g->task[w];
    meet_expand(m, r, 0, path->n);
    assert_true(r->barriers < BARRIERS);
}

/* ---- whom a task meets -------------------------------------------------------------------------------- */

enum { MEET_ALL = 1, MEET_NODE, MEET_REPLICAS, MEET_STAGES, MEET_ROLES, MEET_AXIS };

static inline uint64_t meet_comm(int kind, uint64_t role, uint64_t which, uint64_t group)
{
    return (uint64_t)kind << 56 | role << 48 | which << 32 | group;
}

/* Ranks of a role by a number that a group has in common. */
static inline uint32_t meet_place(const meet_rank *r, const gr_task *w, int axis)
{
    if (axis < GR_N_AXES) return gr_mesh_group(&w->comm.mesh, r->rank, (gr_axis)axis);
    const uint32_t node = r->g->node_ranks ? r->g->node_ranks : 1;
    return w->comm.group == GR_GROUP_NODE       ? r->rank / node
           : w->comm.group == GR_GROUP_REPLICAS ? r->rank % node
                                                : 0;
}

static inline void meet_group(const meeting_run *m, const meet_rank *r, const gr_task *w, int axis,
                              meet_call *c)
{
    const uint32_t own = meet_place(r, w, axis);
    for (uint32_t q = 0; q < m->n; q++)
        c->with[q] = m->all[q].role == r->role && meet_place(&m->all[q], w, axis) == own;
    c->comm = axis < GR_N_AXES
                  ? meet_comm(MEET_AXIS, r->role,
                              (uint64_t)axis << 8 | gr_mesh_size(&w->comm.mesh, (gr_axis)axis), own)
                  : meet_comm(MEET_ALL + (int)w->comm.group, r->role, 0, own);
}

/* The stage on the other side: it calls the same exchange the other way. */
static inline void meet_stage(const meeting_run *m, const meet_rank *r, const gr_task *w, meet_call *c)
{
    const gr_mesh *mesh = &w->comm.mesh;
    const uint32_t stride = gr_mesh_stride(mesh, GR_AXIS_PIPELINE),
                   at = gr_mesh_place(mesh, r->rank, GR_AXIS_PIPELINE);
    if (w->comm.to_next ? at + 1 == gr_mesh_size(mesh, GR_AXIS_PIPELINE) : at == 0) return;
    const uint32_t low = w->comm.to_next ? r->rank : r->rank - stride;
    for (uint32_t q = 0; q < m->n; q++)
        c->with[q] = m->all[q].role == r->role && (m->all[q].rank == low || m->all[q].rank == low + stride);
    c->comm = meet_comm(MEET_STAGES, r->role, stride, low);
    c->what = "an exchange";
}

static inline void meet_roles(const meeting_run *m, const meet_rank *r, const gr_task *w, meet_call *c)
{
    for (uint32_t q = 0; q < m->n; q++)
        c->with[q] = m->all[q].role == r->role || m->all[q].role == w->comm.peer;
    c->comm = meet_comm(MEET_ROLES, 0, 0, w->comm.channel);
    c->what = "a transfer";
    c->kind = GR_STEP_SEND;
}

/* What a rank waits for in a phase of a step; phases are the axes, then the collective. */
static inline meet_call meet_calls(const meeting_run *m, const meet_rank *r, uint32_t i, uint32_t phase)
{
    const gr_step *s = &meet_path(r)->steps[i];
    const gr_task *w = r->task[i];
    meet_call c = {.what = s->what, .kind = s->kind, .bytes = s->bytes};
    if (!w) return c;
    const bool exchange = w->kind == GR_STEP_EXCHANGE,
               collective = gr_step_is_task(s->kind) && s->kind != GR_STEP_RUN && s->kind != GR_STEP_LOOP;
    if (phase < GR_N_AXES) {
        if (!exchange && phase != GR_AXIS_PIPELINE && w->comm.peers > 1 &&
            gr_mesh_size(&w->comm.mesh, (gr_axis)phase) > 1)
            meet_group(m, r, w, (int)phase, &c);
    } else if (exchange && gr_mesh_chunks(&w->comm.mesh) < 2) { /* a ring is one of all */
        meet_stage(m, r, w, &c);
    } else if (s->kind == GR_STEP_SEND || s->kind == GR_STEP_RECV) {
        meet_roles(m, r, w, &c);
    } else if (collective && r->ranks > 1) {
        meet_group(m, r, w, GR_N_AXES, &c);
    }
    return c;
}

/* ---- running ------------------------------------------------------------------------------------------ */

static inline bool meet_ready(const meet_rank *r, const meet_item *x)
{
    const gr_step *s = &meet_path(r)->steps[x->step];
    for (uint32_t k = 0; k < s->n_after && !x->leaves; k++)
        if (r->done[s->after[k]] < x->need[k]) return false;
    return true;
}

static inline void meet_next(meet_rank *r, int l)
{
    const meet_item *x = &r->items[l][r->at[l]];
    if (!x->barrier && !x->enters) r->done[x->step]++;
    r->at[l]++;
    r->phase[l] = 0;
}

/* The lane on which a rank waits at a communicator; -1: none does. */
static inline int meet_waits_at(const meeting_run *m, const meet_rank *r, uint64_t comm, meet_call *found)
{
    for (int l = 0; l < GR_N_LANES; l++) {
        if (r->at[l] >= r->n[l]) continue;
        const meet_item *x = &r->items[l][r->at[l]];
        if (x->barrier || r->phase[l] > GR_N_AXES || !meet_ready(r, x)) continue;
        const meet_call c = meet_calls(m, r, x->step, r->phase[l]);
        if (c.comm != comm) continue;
        *found = c;
        return l;
    }
    return -1;
}

/* All who are needed are there: they go on together. false: somebody is not. */
static inline bool meet_together(meeting_run *m, const meet_rank *r, const meet_call *c)
{
    int lane[MEET_RANKS];
    for (uint32_t q = 0; q < m->n; q++) {
        meet_call other;
        if (!c->with[q]) continue;
        if ((lane[q] = meet_waits_at(m, &m->all[q], c->comm, &other)) < 0) return false;
        const bool same = !strcmp(other.what, c->what) && other.kind == c->kind && other.bytes == c->bytes;
        if (!same && !m->why) {
            m->why = "ranks meet for different things";
            snprintf(m->what, sizeof(m->what), "%s of rank %u, %s of rank %u", c->what, r->rank, other.what,
                     m->all[q].rank);
        }
    }
    for (uint32_t q = 0; q < m->n; q++)
        if (c->with[q]) m->all[q].phase[lane[q]]++;
    return true;
}

static inline bool meet_at_barrier(meet_rank *r, int l, uint32_t barrier)
{
    r->arrived[barrier] |= 1u << l;
    if ((r->arrived[barrier] & r->lanes[barrier]) != r->lanes[barrier]) return false;
    meet_next(r, l);
    return true;
}

/* One action of a lane; false: it waits. */
static inline bool meet_act(meeting_run *m, meet_rank *r, int l)
{
    if (r->at[l] >= r->n[l]) return false;
    const meet_item *x = &r->items[l][r->at[l]];
    if (x->barrier) return meet_at_barrier(r, l, x->barrier);
    if (!meet_ready(r, x)) return false;
    if (r->phase[l] > GR_N_AXES) {
        meet_next(r, l);
        return true;
    }
    const meet_call c = meet_calls(m, r, x->step, r->phase[l]);
    if (c.comm) return meet_together(m, r, &c);
    r->phase[l]++;
    return true;
}

static inline void meet_stuck(meeting_run *m)
{
    for (uint32_t q = 0; q < m->n && !m->why; q++)
        for (int l = 0; l < GR_N_LANES; l++)
            if (m->all[q].at[l] < m->all[q].n[l]) {
                const meet_item *x = &m->all[q].items[l][m->all[q].at[l]];
                m->why = "ranks wait for ever";
                snprintf(m->what, sizeof(m->what), "rank %u at %s", m->all[q].rank,
                         x->barrier ? "the end of a trip" : meet_path(&m->all[q])->steps[x->step].what);
                break;
            }
}

/* An iteration of all ranks; plans and programs by role, and the plan that rank `odd` (of all of them;
 * GR_NONE: none) has instead. Returns what goes wrong, or NULL. */
static inline const char *meet_all(const gr_plan *plan, const gr_tasks *const *g, uint32_t odd,
                                   const gr_plan *instead, char what[128])
{
    meeting_run m = {.arena = gr_arena_new()};
    for (uint32_t c = 0; c <= plan->n_more; c++)
        for (uint32_t r = 0, n = g[c]->ranks; r < n; r++)
            meet_begin(&m, m.n == odd ? instead : gr_plan_role(plan, c), g[c], c, r, n);
    for (bool moved = true; moved && !m.why;) {
        moved = false;
        for (uint32_t q = 0; q < m.n; q++)
            for (int l = 0; l < GR_N_LANES; l++)
                while (!m.why && meet_act(&m, &m.all[q], l)) moved = true;
    }
    meet_stuck(&m);
    memcpy(what, m.what, sizeof(m.what));
    for (uint32_t q = 0; q < m.n; q++)
        for (int l = 0; l < GR_N_LANES; l++) free(m.all[q].items[l]);
    gr_arena_free(m.arena);
    return m.why;
}

#endif
