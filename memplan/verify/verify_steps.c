/* memplan/verify/verify_steps.c: each step by itself: its kind, lane, loop, and what it waits for. */
#include "memplan/verify/verifier.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 8

/* ---- shape: everything an index or a name can get wrong ----------------------------------------------- */

static bool ids_ok(gr_verifier *v, const gr_path *path, uint32_t i)
{
    const gr_step *s = &path->steps[i];
    bool ok = true;
    for (uint32_t k = 0; k < s->n_reads; k++) ok &= s->reads[k] < v->p->n_ledger;
    for (uint32_t k = 0; k < s->n_writes; k++) ok &= s->writes[k] < v->p->n_ledger;
    for (uint32_t k = 0; k < s->n_after; k++) ok &= s->after[k] < i;
    if (ok) return true;
    return gr_verify_wrong(v, "indices",
                           "%s step %u '%s' names an entry that is not there, or waits for a later step",
                           gr_path_str(v->path), i, s->what);
}

/* Loops nest, and bodies are not empty. parent: of steps, filled in. */
static bool loops_ok(gr_verifier *v, const gr_path *path, uint32_t *parent)
{
    uint32_t stack[MAX_DEPTH], n = 0;
    for (uint32_t i = 0; i < path->n; i++) {
        const gr_step *s = &path->steps[i];
        while (n && path->steps[stack[n - 1]].body_last < i) n--;
        parent[i] = n ? stack[n - 1] : GR_NONE;
        if (s->kind != GR_STEP_LOOP) {
            if (s->body_last != GR_NONE)
                return gr_verify_wrong(v, "loops", "step %u is no loop but has a body", i);
            continue;
        }
        uint32_t limit = n ? path->steps[stack[n - 1]].body_last : path->n - 1;
        if (n == MAX_DEPTH || s->body_last <= i || s->body_last > limit || !s->trips_max)
            return gr_verify_wrong(v, "loops", "the body of loop step %u '%s' ends at %u", i, s->what,
                                   s->body_last);
        stack[n++] = i;
    }
    return true;
}

/* A wait names a step of a body that the waiting step is in, too, and never a loop around itself. */
static bool waits_ok(gr_verifier *v, const gr_path *path, const uint32_t *parent, uint32_t i)
{
    const gr_step *s = &path->steps[i];
    for (uint32_t k = 0; k < s->n_after; k++) {
        uint32_t t = s->after[k], scope = parent[i];
        bool around = path->steps[t].body_last != GR_NONE && path->steps[t].body_last >= i;
        while (scope != GR_NONE && scope != parent[t]) scope = parent[scope];
        if (around || scope != parent[t])
            return gr_verify_wrong(v, "waits", "step %u '%s' waits for step %u, which is %s", i, s->what, t,
                                   around ? "the loop around it" : "inside a loop");
    }
    return true;
}

/* Tasks run in the paths of iterations; the others save, restore and move. */
static bool kind_ok(gr_verifier *v, const gr_path *path, uint32_t i)
{
    const gr_step *s = &path->steps[i];
    return gr_verify_runs_tasks(v->path) || !gr_step_is_task(s->kind) ||
           gr_verify_wrong(v, "kinds", "%s step %u '%s' is of kind %s", gr_path_str(v->path), i, s->what,
                           gr_step_kind_str(s->kind));
}

static bool entry_shape_ok(gr_verifier *v, uint32_t e)
{
    const gr_entry *x = &v->p->ledger[e];
    const uint64_t limits[GR_N_PLACES] = {v->p->arena_bytes, v->p->host_bytes, v->p->disk_bytes},
                   limit = limits[x->place];
    v->object[e] = gr_tasks_find(v->g, x->what);
    if (v->object[e] == GR_NONE)
        return gr_verify_wrong(v, "objects", "entry %u '%s' is no object", e, x->what);
    const gr_object *o = &v->g->objects[v->object[e]];
    if (x->bytes != o->bytes || x->category != o->category)
        return gr_verify_wrong(
            v, "objects", "entry %u '%s' has %" PRIu64 " bytes, the object %" PRIu64 " or another category",
            e, x->what, x->bytes, o->bytes);
    if (o->place == GR_HOST && x->place != GR_HOST)
        return gr_verify_wrong(v, "objects", "entry %u '%s' is on the device, the object is used on the host",
                               e, x->what);
    if (x->place == GR_DISK && o->span != GR_SPAN_KEEP)
        return gr_verify_wrong(v, "objects", "entry %u '%s' is on the disk, and does not live on", e,
                               x->what);
    if (x->offset % (x->place == GR_DISK ? GR_DISK_ALIGN : GR_ALIGN) || x->offset > limit ||
        x->bytes > limit - x->offset)
        return gr_verify_wrong(v, "offsets",
                               "entry %u '%s' at offset %" PRIu64 " is not aligned or not inside", e, x->what,
                               x->offset);
    if (x->first >= v->n || x->last >= v->n)
        return gr_verify_wrong(v, "lifetimes", "entry %u '%s' lives in no step", e, x->what);
    return true;
}

static uint32_t shifted(uint32_t step, uint32_t by)
{
    return step == GR_NONE ? GR_NONE : step + by;
}

/* Put the steps of a path after those there are. */
static void add_steps(gr_verifier *v, const gr_path *path, const uint32_t *parent)
{
    uint32_t first = v->n;
    for (uint32_t i = 0; i < path->n; i++) {
        gr_step *s = &v->steps[v->n];
        *s = path->steps[i];
        s->body_last = shifted(s->body_last, first);
        s->after = gr_arena_alloc(v->arena, (s->n_after + 1) * sizeof(*s->after));
        for (uint32_t k = 0; k < s->n_after; k++) s->after[k] = path->steps[i].after[k] + first;
        v->parent[v->n++] = shifted(parent[i], first);
    }
}

static bool shape_ok(gr_verifier *v)
{
    const gr_plan *p = v->p;
    v->steps = gr_arena_alloc(v->arena, (gr_plan_steps(p) + 1) * sizeof(*v->steps));
    v->parent = gr_arena_alloc(v->arena, (gr_plan_steps(p) + 1) * sizeof(*v->parent));
    v->n_steady = p->paths[GR_PATH_STEADY].n;
    v->object = gr_arena_alloc(v->arena, (p->n_ledger + 1) * sizeof(*v->object));
    for (int id = 0; id < GR_N_PATHS; id++) {
        const gr_path *path = &p->paths[id];
        v->path = (gr_path_id)id;
        uint32_t *parent = gr_arena_alloc(v->arena, (path->n + 1) * sizeof(*parent));
        if (!loops_ok(v, path, parent)) return false;
        for (uint32_t i = 0; i < path->n; i++)
            if (!kind_ok(v, path, i) || !ids_ok(v, path, i) || !waits_ok(v, path, parent, i)) return false;
        for (uint32_t k = 0; k < path->n_entry; k++)
            if (path->entry[k] >= p->n_ledger)
                return gr_verify_wrong(v, "indices", "entry of path %s", gr_path_str(v->path));
        for (uint32_t k = 0; k < path->n_exit; k++)
            if (path->exit[k] >= p->n_ledger)
                return gr_verify_wrong(v, "indices", "exit of path %s", gr_path_str(v->path));
        if (gr_verify_runs_tasks(v->path)) add_steps(v, path, parent);
    }
    v->path = GR_PATH_STEADY;
    for (uint32_t e = 0; e < p->n_ledger; e++)
        if (!entry_shape_ok(v, e)) return false;
    return true;
}

/* ---- tasks -------------------------------------------------------------------------------------------- */

/* The uses of a task in order are the reads and the writes of its step in order. */
static bool uses_ok(gr_verifier *v, uint32_t i, const gr_task *w)
{
    const gr_step *s = &v->steps[i];
    uint32_t r = 0, k = 0;
    for (uint32_t u = 0; u < w->uses.n; u++) {
        const gr_use *use = &w->uses.list[u];
        if (use->object == GR_NONE) continue;
        const gr_object *o = &v->g->objects[use->object];
        uint32_t from = GR_NONE, to = GR_NONE;
        if (use->mode & GR_READ && r < s->n_reads) from = s->reads[r++];
        if (use->mode & GR_WRITE && k < s->n_writes) to = s->writes[k++];
        uint32_t e = use->mode & GR_READ ? from : to;
        gr_place place = gr_use_on_host(o, s->lane != w->lane) ? GR_HOST : GR_DEVICE;
        if (e == GR_NONE || ((use->mode & GR_UPDATE) == GR_UPDATE && from != to) ||
            v->object[e] != use->object || v->p->ledger[e].place != place)
            return gr_verify_wrong(v, "uses", "step %u '%s' does not name a copy of '%s' where it needs it",
                                   i, s->what, o->name);
    }
    if (r != s->n_reads || k != s->n_writes)
        return gr_verify_wrong(v, "uses", "step %u '%s' names entries that it does not use", i, s->what);
    return true;
}

/* Whether no rank counts a loop's trips alone: they are fixed, or all have agreed on them before. */
static bool trips_are_common(const gr_verifier *v, uint32_t loop)
{
    const gr_step *l = &v->steps[loop];
    bool common = !l->agreed;
    for (uint32_t k = loop; k-- > 0 && !common;) {
        const gr_step *a = &v->steps[k];
        common =
            a->kind == GR_STEP_AGREE && l->n_reads == 1 && a->n_writes == 1 && a->writes[0] == l->reads[0];
    }
    return common;
}

/* Of any task, also one that moves none. */
static bool bytes_ok(gr_verifier *v, uint32_t i, const gr_task *w)
{
    const gr_step *s = &v->steps[i];
    return s->bytes == w->comm.moved ||
           gr_verify_wrong(v, "collectives", "step %u '%s' moves %" PRIu64 " bytes, not %" PRIu64, i, s->what,
                           s->bytes, w->comm.moved);
}

/* Ranks meet in a collective only if all of them come to it: as often, and in one order. All run the same
 * steps. So there must be one lane for all collectives, and no loop around them whose trips a rank could
 * count alone. */
static bool collective_ok(gr_verifier *v, uint32_t i, const gr_task *w)
{
    const gr_step *s = &v->steps[i];
    if (w->lane != GR_LANE_COMM)
        return gr_verify_wrong(v, "collectives", "step %u '%s' is on lane %s", i, s->what,
                               gr_lane_str(s->lane));
    for (uint32_t l = v->parent[i]; l != GR_NONE; l = v->parent[l])
        if (!trips_are_common(v, l))
            return gr_verify_wrong(v, "collectives",
                                   "step %u '%s' is in loop step %u, on whose trips the ranks do not agree",
                                   i, s->what, l);
    return true;
}

static bool same_holders(const gr_task *a, const gr_task *b)
{
    return gr_mesh_size(&a->comm.mesh, GR_AXIS_EXPERT) == gr_mesh_size(&b->comm.mesh, GR_AXIS_EXPERT) &&
           gr_mesh_stride(&a->comm.mesh, GR_AXIS_EXPERT) == gr_mesh_stride(&b->comm.mesh, GR_AXIS_EXPERT);
}

/* Whether the holders of step i agree in every trip of a loop of its node, before they come to it, on whether
 * there is another: in it itself, or in a step that is right in the loop's body, on the same lane. */
static bool trips_are_met(const gr_verifier *v, uint32_t loop, uint32_t i, const gr_task *w)
{
    bool met = w->comm.agrees && v->parent[i] == loop;
    for (uint32_t k = loop + 1; k < i && !met; k++) {
        const gr_task *a = v->task[k] == GR_NONE ? NULL : &v->g->task[v->task[k]];
        met = a && a->comm.agrees && v->parent[k] == loop && v->steps[k].lane == v->steps[i].lane &&
              same_holders(a, w);
    }
    return met && !strcmp(v->steps[loop].node, w->node);
}

/* Holders of experts meet in exchanges within a task, with rows of their own: trips of every loop around it
 * are agreed on, before it or trip by trip. */
static bool exchanges_ok(gr_verifier *v, uint32_t i, const gr_task *w)
{
    const gr_step *s = &v->steps[i];
    const uint32_t holders = gr_mesh_size(&w->comm.mesh, GR_AXIS_EXPERT),
                   apart = gr_mesh_stride(&w->comm.mesh, GR_AXIS_EXPERT);
    if (holders < 2) return true;
    if (v->g->ranks % (holders * apart))
        return gr_verify_wrong(v, "collectives",
                               "step %u '%s' has experts of %u ranks, which %u ranks are not", i, s->what,
                               holders, v->g->ranks);
    for (uint32_t l = v->parent[i]; l != GR_NONE; l = v->parent[l])
        if (!trips_are_common(v, l) && !trips_are_met(v, l, i, w))
            return gr_verify_wrong(v, "collectives",
                                   "step %u '%s' is in loop step %u, on whose trips the ranks do not agree",
                                   i, s->what, l);
    return true;
}

/* Ranks of a tensor-parallel or context group meet in the sums and exchanges within a task, which are no
 * collectives of all ranks: in the order of one lane, `compute`. They have the same rows, so they count the
 * trips of the node's own loops alike; those of other nodes only where all ranks do. */
static bool sums_ok(gr_verifier *v, uint32_t i, const gr_task *w)
{
    const gr_step *s = &v->steps[i];
    if (s->lane != GR_LANE_COMPUTE)
        return gr_verify_wrong(v, "collectives", "step %u '%s', which has sums over peers, is on lane %s", i,
                               s->what, gr_lane_str(s->lane));
    if (v->g->ranks % w->comm.peers)
        return gr_verify_wrong(v, "collectives",
                               "step %u '%s' is of %u ranks together, which %u ranks are not", i, s->what,
                               w->comm.peers, v->g->ranks);
    for (uint32_t l = v->parent[i]; l != GR_NONE; l = v->parent[l])
        if (strcmp(v->steps[l].node, w->node) && !trips_are_common(v, l))
            return gr_verify_wrong(v, "collectives",
                                   "step %u '%s' is in loop step %u, on whose trips the ranks do not agree",
                                   i, s->what, l);
    return exchanges_ok(v, i, w);
}

/* Neighbouring stages meet in exchanges, of which both have as many: exchange t of the one with the next is
 * exchange t of the other with the one before. Every body has by turns one with the stage before and one with
 * the next, as all ranks run the same steps: so the t-th between a pair waits only for the t-th between the
 * pair before, and for the one before that between the pair behind, and nobody waits in a circle. Stages in a
 * ring have one exchange all at once: as a collective of theirs it is proven above (collective_ok), and it
 * stands between no two of the others. */
static bool stages_ok(gr_verifier *v, const uint32_t *step_of)
{
    const gr_task *open = NULL; /* with the stage before; its other is to come */
    uint32_t body = GR_NONE;
    for (uint32_t i = 0; i < v->g->n_tasks; i++) {
        const gr_task *w = &v->g->task[i];
        const gr_mesh *m = &w->comm.mesh;
        if (w->kind != GR_STEP_EXCHANGE) continue;
        if (gr_mesh_size(m, GR_AXIS_PIPELINE) < 2 || v->g->ranks % gr_mesh_block(m))
            return gr_verify_wrong(v, "collectives",
                                   "step %u '%s' is of %u stages of %u ranks, which %u ranks are not",
                                   step_of[i], w->what, gr_mesh_size(m, GR_AXIS_PIPELINE),
                                   gr_mesh_stride(m, GR_AXIS_PIPELINE), v->g->ranks);
        if (gr_mesh_chunks(m) > 1 && !open && !w->comm.to_next) continue;
        if (gr_mesh_chunks(m) > 1 || w->comm.to_next != (open != NULL) ||
            (open && v->parent[step_of[i]] != body))
            return gr_verify_wrong(v, "collectives",
                                   "step %u '%s' is an exchange with the %s stage out of turn", step_of[i],
                                   w->what, w->comm.to_next ? "next" : "previous");
        body = v->parent[step_of[i]];
        open = open ? NULL : w;
    }
    return !open ||
           gr_verify_wrong(v, "collectives", "after '%s' no exchange with the next stage comes", open->what);
}

/* Steps are the tasks of the task graph, in its own order, in the same loops, on the same path. */
static bool tasks_ok(gr_verifier *v)
{
    uint32_t next = 0, *step_of = gr_arena_alloc(v->arena, (v->g->n_tasks + 1) * sizeof(*step_of));
    uint32_t n_steady = gr_tasks_steady(v->g);
    v->task = gr_arena_alloc(v->arena, (v->n + 1) * sizeof(*v->task));
    for (uint32_t i = 0; i < v->n; i++) {
        const gr_step *s = &v->steps[i];
        v->task[i] = GR_NONE;
        if (!gr_step_is_task(s->kind)) continue;
        const gr_task *w = next < v->g->n_tasks ? &v->g->task[next] : NULL;
        if (w && (next < n_steady) != (i < v->n_steady)) w = NULL; /* of the other path */
        if (!w || strcmp(w->what, s->what) || !s->node || strcmp(w->node, s->node))
            return gr_verify_wrong(v, "order", "step %u '%s' stands where the program has '%s'", i, s->what,
                                   w ? w->what : "its end");
        bool moved = s->lane == GR_LANE_HOST && w->uses.host_with != GR_NONE;
        if ((w->lane != s->lane && !moved) || w->kind != s->kind)
            return gr_verify_wrong(v, "lanes", "step %u '%s' is a %s on lane %s, not a %s on lane %s", i,
                                   s->what, gr_step_kind_str(s->kind), gr_lane_str(s->lane),
                                   gr_step_kind_str(w->kind), gr_lane_str(w->lane));
        if (s->kind == GR_STEP_LOOP && (w->loop.trips_max != s->trips_max || w->loop.agreed != s->agreed))
            return gr_verify_wrong(v, "loops", "loop step %u '%s' has other trips than the program", i,
                                   s->what);
        if (!bytes_ok(v, i, w) || !uses_ok(v, i, w)) return false;
        if (s->kind != GR_STEP_RUN && s->kind != GR_STEP_LOOP && !collective_ok(v, i, w)) return false;
        if (w->comm.peers > 1 && !sums_ok(v, i, w)) return false;
        step_of[next] = i;
        v->task[i] = next++;
    }
    if (next != v->g->n_tasks) return gr_verify_wrong(v, "order", "no step runs '%s'", v->g->task[next].what);
    for (uint32_t w = 0; w < v->g->n_tasks; w++) {
        if (v->g->task[w].loop.body_last == GR_NONE) continue;
        uint32_t last = v->g->task[w].loop.body_last, end = v->steps[step_of[w]].body_last;
        if (step_of[last] > end || (last + 1 < v->g->n_tasks && step_of[last + 1] <= end))
            return gr_verify_wrong(v, "loops", "step %u: the body of loop '%s' is not the program's",
                                   step_of[w], v->g->task[w].what);
    }
    return stages_ok(v, step_of);
}

bool gr_verify_steps(gr_verifier *v)
{
    if (gr_plan_ranks(v->p) != v->g->ranks)
        return gr_verify_wrong(v, "ranks", "the plan is for ranks '%s', the program for %u", v->p->ranks,
                               v->g->ranks);
    return shape_ok(v) && tasks_ok(v);
}
