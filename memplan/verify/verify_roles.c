/* Roles of ranks: who they are, the transfers between them, and that they never wait in a circle.
 *
 * A send and a recv need each other: neither ends before both have begun, which is the least that any
 * transport gives. Lanes take their steps in order, roles meet nowhere else. Whether such a system comes to
 * a stop does not depend on how fast its parts are, so one replay, in any order, decides it. No loop contains
 * a transfer, so loops are single steps there.
 */
#include "memplan/verify/verifier.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 5 };
static const gr_path_id runs[RUNS] = {GR_PATH_STEADY, GR_PATH_STEADY, GR_PATH_VALIDATE, GR_PATH_STEADY,
                                      GR_PATH_STEADY};

typedef struct end {     /* of a transfer */
    uint32_t role, step; /* of the path */
    gr_path_id path;
    const gr_task *task;
} end;

typedef struct role_run {
    const gr_plan *p;
    const gr_tasks *g;
    const gr_task **task[GR_N_PATHS]; /* of the steps of steady and validate; NULL: transitions */
    gr_meeting *partner[GR_N_PATHS];  /* of sends and receives */
    bool *done, *skipped;             /* of the steps of the path that runs */
    unsigned *lanes;                  /* of those that are loops: mask of the lanes that meet there */
    uint32_t lane[GR_N_LANES], run;
} role_run;

typedef struct roles {
    gr_verifier *v;
    role_run *all;
    uint32_t n;
    end *sends, *recvs;
    size_t n_sends, n_recvs, cap_sends, cap_recvs;
} roles;

/* ---- ranks ----------------------------------------------------------------------------------------------
 */

static void check_ranks(roles *c)
{
    const gr_plan *p = c->v->p;
    uint32_t n = gr_plan_all_ranks(p), first = 0;
    bool *seen = gr_arena_alloc(c->v->arena, n + 1);
    for (uint32_t k = 0; k < c->n && n; k++) {
        gr_rank_list l;
        const char *text = c->all[k].p->ranks;
        gr_rank_list_begin(&l, text);
        for (bool begins = true; gr_rank_list_next(&l); begins = false) {
            if (begins && (k ? l.first <= first : l.first != 0))
                gr_verify_wrong(c->v, "ranks",
                                "role %u is of ranks '%s': roles stand by their first rank, "
                                "from 0 on",
                                k, text);
            if (begins) first = l.first;
            for (uint32_t r = l.first; r <= l.last; r++) {
                if (r >= n || seen[r])
                    gr_verify_wrong(c->v, "ranks", "role %u has rank %u, which %s", k, r,
                                    r < n ? "another one has" : "leaves one below it without a role");
                if (r >= n || seen[r]) return;
                seen[r] = true;
            }
        }
    }
    if (!n) gr_verify_wrong(c->v, "ranks", "a role is of no rising list of ranks");
}

/* ---- transfers ------------------------------------------------------------------------------------------
 */

/* The tasks of the steps of both paths; gr_plan_verify has shown that they are those of the task graph, in
 * order. */
static void find_tasks(roles *c, uint32_t k)
{
    role_run *r = &c->all[k];
    const gr_path_id ids[] = {GR_PATH_STEADY, GR_PATH_VALIDATE};
    uint32_t next = 0;
    for (size_t p = 0; p < GR_LEN(ids); p++) {
        const gr_path *path = &r->p->paths[ids[p]];
        r->task[ids[p]] = gr_arena_alloc(c->v->arena, (path->n + 1) * sizeof(gr_task *));
        r->partner[ids[p]] = gr_arena_alloc(c->v->arena, (path->n + 1) * sizeof(gr_meeting));
        for (uint32_t i = 0; i < path->n; i++) {
            const gr_step *s = &path->steps[i];
            if (!gr_step_is_task(s->kind)) continue;
            const gr_task *w = r->task[ids[p]][i] = &r->g->task[next++];
            const end e = {k, i, ids[p], w};
            if (w->kind == GR_STEP_SEND) GR_PUSH(c->sends, c->n_sends, c->cap_sends, e);
            if (w->kind == GR_STEP_RECV) GR_PUSH(c->recvs, c->n_recvs, c->cap_recvs, e);
        }
    }
}

static const gr_object *object_at(const roles *c, const end *e)
{
    return e->task->uses.n == 1 ? &c->all[e->role].g->objects[e->task->uses.list[0].object] : NULL;
}

/* A column is the same object on both sides, of which ranks of roles of other sizes may hold parts of other
 * sizes; weights become a copy of their model's. */
static bool same_object(const gr_object *a, const gr_object *b)
{
    if (!a || !b) return false;
    if (!a->model || !b->model)
        return a->model == b->model && !strcmp(a->name, b->name) && a->place == b->place;
    return !strcmp(a->model, b->model) && a->bucket == b->bucket && a->category == GR_CAT_WEIGHTS &&
           b->category == GR_CAT_ROLLOUT;
}

static bool in_loop(const gr_path *path, uint32_t step)
{
    for (uint32_t i = 0; i < step; i++)
        if (path->steps[i].kind == GR_STEP_LOOP && path->steps[i].body_last >= step) return true;
    return false;
}

static void check_pair(roles *c, const end *s, const end *r)
{
    const gr_step *send = &c->all[s->role].p->paths[s->path].steps[s->step],
                  *recv = &c->all[r->role].p->paths[r->path].steps[r->step];
    bool fits = s->task->comm.peer == r->role && r->task->comm.peer == s->role && s->role != r->role &&
                s->path == r->path && recv->meets.role == s->role && recv->meets.step == s->step;
    if (!fits)
        gr_verify_wrong(c->v, "crossings", "role %u step %u '%s' does not meet role %u step %u '%s'", r->role,
                        r->step, recv->what, s->role, s->step, send->what);
    if (send->bytes != recv->bytes || !same_object(object_at(c, s), object_at(c, r)))
        gr_verify_wrong(c->v, "crossings",
                        "role %u step %u '%s' sends %" PRIu64
                        " bytes, but role %u step %u '%s' receives %" PRIu64 ", or another object",
                        s->role, s->step, send->what, send->bytes, r->role, r->step, recv->what, recv->bytes);
    if (s->task->optional != r->task->optional || strcmp(s->task->node, r->task->node))
        gr_verify_wrong(c->v, "crossings", "role %u step %u '%s' is left out when role %u step %u is not",
                        s->role, s->step, send->what, r->role, r->step);
    if (in_loop(&c->all[s->role].p->paths[s->path], s->step) ||
        in_loop(&c->all[r->role].p->paths[r->path], r->step))
        gr_verify_wrong(c->v, "crossings", "role %u step %u '%s' or the recv it meets is in a loop", s->role,
                        s->step, send->what);
    if (!fits) return;
    c->all[s->role].partner[s->path][s->step] = (gr_meeting){r->role, r->step};
    c->all[r->role].partner[r->path][r->step] = recv->meets;
}

static const end *of_channel(const end *list, size_t n, uint32_t channel, size_t *count)
{
    const end *found = NULL;
    *count = 0;
    for (size_t i = 0; i < n; i++) {
        if (list[i].task->comm.channel != channel) continue;
        if (!found) found = &list[i];
        ++*count;
    }
    return found;
}

static void check_lonely(roles *c, const end *e, size_t sends, size_t receives)
{
    if (sends == 1 && receives == 1) return;
    gr_verify_wrong(c->v, "crossings",
                    "role %u step %u '%s' is one of %zu sends and %zu receives, not of one each", e->role,
                    e->step, e->task->what, sends, receives);
}

static void check_transfers(roles *c)
{
    size_t sends, receives;
    for (size_t i = 0; i < c->n_sends; i++) {
        const end *s = &c->sends[i];
        of_channel(c->sends, c->n_sends, s->task->comm.channel, &sends);
        const end *r = of_channel(c->recvs, c->n_recvs, s->task->comm.channel, &receives);
        check_lonely(c, s, sends, receives);
        if (sends == 1 && receives == 1) check_pair(c, s, r);
    }
    for (size_t i = 0; i < c->n_recvs; i++) {
        of_channel(c->sends, c->n_sends, c->recvs[i].task->comm.channel, &sends);
        of_channel(c->recvs, c->n_recvs, c->recvs[i].task->comm.channel, &receives);
        if (!sends) check_lonely(c, &c->recvs[i], sends, receives);
    }
}

/* ---- circles --------------------------------------------------------------------------------------------
 */

static const gr_path *path_of(const role_run *r)
{
    return &r->p->paths[runs[r->run]];
}

/* Optional nodes that run: all but one, or none but one, or (NULL) all or none. */
typedef struct subset {
    bool all;
    const char *but;
} subset;

static bool runs_in(const subset *s, const char *node)
{
    return s->all != (s->but && !strcmp(s->but, node));
}

/* Ready for its next path: lanes at its first step, nothing done; optional steps skipped or not. */
static void begin_path(role_run *r, const subset *runs_of)
{
    const gr_path *path = r->run < RUNS ? path_of(r) : NULL;
    for (int l = 0; l < GR_N_LANES; l++) r->lane[l] = 0;
    if (!path) return;
    memset(r->done, 0, path->n);
    memset(r->lanes, 0, path->n * sizeof(*r->lanes));
    for (uint32_t i = 0; i < path->n; i++) {
        const gr_task *w = r->task[runs[r->run]][i];
        r->skipped[i] = w && w->optional && !runs_in(runs_of, w->node);
        for (uint32_t k = 0; k < i; k++) /* a loop's own lane is the one that leads it */
            if (path->steps[k].kind == GR_STEP_LOOP && path->steps[k].body_last >= i)
                r->lanes[k] |= 1u << path->steps[k].lane | 1u << path->steps[i].lane;
    }
}

/* A lane goes past what is not its own: steps of others, loops that are done, or that it has no steps in. */
static void go_on(role_run *r, int lane)
{
    const gr_path *path = path_of(r);
    while (r->lane[lane] < path->n) {
        uint32_t i = r->lane[lane];
        const gr_step *s = &path->steps[i];
        bool loop = s->kind == GR_STEP_LOOP, stays = loop ? r->lanes[i] >> lane & 1 : (int)s->lane == lane;
        if (stays && !r->done[i] && !r->skipped[i]) return;
        r->lane[lane] = loop ? s->body_last + 1 : i + 1;
    }
}

static bool is_transfer(const gr_step *s)
{
    return s->kind == GR_STEP_SEND || s->kind == GR_STEP_RECV;
}

/* Whether step i of a role can begin: its lane is there, and what it waits for is done; of a loop, which is
 * one step here, all its lanes, and what any step in it waits for from outside. */
static bool ready(const role_run *r, uint32_t i)
{
    const gr_step *s = &path_of(r)->steps[i];
    for (int l = 0; l < GR_N_LANES; l++) {
        bool needed = s->kind == GR_STEP_LOOP ? r->lanes[i] >> l & 1 : (int)s->lane == l;
        if (needed && r->lane[l] != i) return false;
    }
    for (uint32_t k = i; k <= (s->kind == GR_STEP_LOOP ? s->body_last : i); k++) {
        const gr_step *in = &path_of(r)->steps[k];
        for (uint32_t a = 0; a < in->n_after; a++)
            if (in->after[a] < i && !r->done[in->after[a]] && !r->skipped[in->after[a]]) return false;
    }
    return true;
}

/* Do the next step of a lane, with the other side of it where it has one. */
static bool advance(roles *c, role_run *r, int lane)
{
    go_on(r, lane);
    uint32_t i = r->lane[lane];
    const gr_path *path = path_of(r);
    if (i >= path->n || !ready(r, i)) return false;
    if (is_transfer(&path->steps[i])) {
        const gr_meeting at = r->partner[runs[r->run]][i];
        role_run *peer = &c->all[at.role];
        if (peer->run != r->run) return false;
        for (int l = 0; l < GR_N_LANES; l++) go_on(peer, l);
        if (!ready(peer, at.step)) return false;
        peer->done[at.step] = true;
    }
    r->done[i] = true;
    return true;
}

static bool at_end(role_run *r)
{
    for (int l = 0; l < GR_N_LANES; l++) {
        go_on(r, l);
        if (r->lane[l] < path_of(r)->n) return false;
    }
    return true;
}

static bool run_role(roles *c, role_run *r, const subset *of)
{
    bool moved = false;
    while (r->run < RUNS) {
        bool step = false;
        for (int l = 0; l < GR_N_LANES; l++)
            while (advance(c, r, l)) step = true;
        moved = moved || step;
        if (at_end(r)) {
            r->run++;
            begin_path(r, of);
            moved = true;
        } else if (!step) {
            break;
        }
    }
    return moved;
}

static void report_circle(roles *c)
{
    for (uint32_t k = 0; k < c->n; k++) {
        const role_run *r = &c->all[k];
        for (int l = 0; r->run < RUNS && l < GR_N_LANES; l++) {
            uint32_t i = r->lane[l];
            if (i >= path_of(r)->n || (l != GR_LANE_COMM && !is_transfer(&path_of(r)->steps[i]))) continue;
            gr_verify_wrong(c->v, "circles", "role %u stays at step %u '%s': roles wait for each other", k, i,
                            path_of(r)->steps[i].what);
        }
    }
}

static void run_all(roles *c, const subset *of)
{
    bool moved = true, ended = true;
    for (uint32_t k = 0; k < c->n; k++) {
        c->all[k].run = 0;
        begin_path(&c->all[k], of);
    }
    while (moved) {
        moved = false;
        for (uint32_t k = 0; k < c->n; k++) moved = run_role(c, &c->all[k], of) || moved;
    }
    for (uint32_t k = 0; k < c->n; k++) ended = ended && c->all[k].run == RUNS;
    if (!ended) report_circle(c);
}

/* With all optional nodes, with none, with all but each, with each alone. */
static void run_subsets(roles *c)
{
    for (int all = 0; all < 2; all++) {
        run_all(c, &(subset){all, NULL});
        for (uint32_t k = 0; k < c->n; k++) {
            const gr_tasks *g = c->all[k].g;
            for (size_t w = 0; w < g->n_tasks; w++) {
                bool first = g->task[w].optional && (!w || strcmp(g->task[w - 1].node, g->task[w].node));
                if (first && !c->v->n_errors) run_all(c, &(subset){all, g->task[w].node});
            }
        }
    }
}

/* ---- all -------------------------------------------------------------------------------------------------
 */

static void check_roles(roles *c, const gr_tasks *const *g)
{
    gr_verifier *v = c->v;
    c->all = gr_arena_alloc(v->arena, c->n * sizeof(*c->all));
    for (uint32_t k = 0; k < c->n; k++) {
        role_run *r = &c->all[k];
        *r = (role_run){.p = gr_plan_role(v->p, k), .g = g[k]};
        size_t n = gr_plan_steps(r->p) + 1;
        r->done = gr_arena_alloc(v->arena, n);
        r->skipped = gr_arena_alloc(v->arena, n);
        r->lanes = gr_arena_alloc(v->arena, n * sizeof(*r->lanes));
    }
    check_ranks(c);
    for (uint32_t k = 0; k < c->n; k++) find_tasks(c, k);
    check_transfers(c);
    if (!v->n_errors) run_subsets(c);
    free(c->sends);
    free(c->recvs);
}

gr_status gr_plan_verify_all(const gr_plan *p, const gr_tasks *const *g, gr_diag *d)
{
    gr_status st = GR_OK;
    for (uint32_t k = 0; k <= p->n_more; k++) {
        gr_status own = gr_plan_verify(gr_plan_role(p, k), g[k], d);
        if (own && p->n_more)
            gr_diag_note(d, (gr_loc){0}, "in role %u, of ranks %s", k, gr_plan_role(p, k)->ranks);
        st = st ? st : own;
    }
    if (st) return st;
    gr_verifier v = {.p = p, .d = d, .arena = gr_arena_new()};
    roles c = {.v = &v, .n = p->n_more + 1};
    check_roles(&c, g);
    gr_arena_free(v.arena);
    return v.n_errors ? GR_E_INVALID : GR_OK;
}
