/* memplan/verify/verify.c: the verifier's entry: binds a plan to its task graph, then asks each of its parts.
 */
#include "memplan/verify/verifier.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

bool gr_verify_wrong(gr_verifier *v, const char *rule, const char *fmt, ...)
{
    if (v->n_errors++ >= GR_VERIFY_MAX_ERRORS) return false;
    gr_str s = {0};
    va_list ap;
    va_start(ap, fmt);
    gr_str_vprintf(&s, fmt, ap);
    va_end(ap);
    (void)gr_diag_error(v->d, (gr_loc){0}, GR_E_INVALID, "plan breaks rule '%s': %s", rule, s.text);
    gr_str_release(&s);
    return false;
}

bool gr_verify_runs_tasks(gr_path_id path)
{
    return path == GR_PATH_STEADY || path == GR_PATH_VALIDATE;
}

/* Whether training changes an object or another one of its model. */
static bool is_trained(const gr_verifier *v, const bool *written, uint32_t object)
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
static void check_files(gr_verifier *v)
{
    static const gr_path_id ids[] = {GR_PATH_INIT, GR_PATH_RESUME, GR_PATH_CHECKPOINT, GR_PATH_FINAL};
    bool *used = gr_arena_alloc(v->arena, v->g->n_objects + 1),
         *written = gr_arena_alloc(v->arena, v->g->n_objects + 1);
    for (uint32_t w = 0; w < v->g->n_tasks; w++)
        for (uint32_t u = 0; u < v->g->task[w].uses.n; u++) {
            const gr_use *use = &v->g->task[w].uses.list[u];
            if (use->object == GR_NONE) continue;
            used[use->object] = true;
            written[use->object] |= (use->mode & GR_WRITE) != 0;
        }
    uint32_t *seen = gr_arena_alloc(v->arena, (v->g->n_objects + 1) * sizeof(*seen));
    for (size_t k = 0; k < GR_LEN(ids); k++) {
        const gr_path *path = &v->p->paths[ids[k]];
        gr_step_kind kind = k < 2 ? GR_STEP_RESTORE : GR_STEP_SAVE;
        memset(seen, 0, v->g->n_objects * sizeof(*seen));
        for (uint32_t i = 0; i < path->n; i++) {
            uint32_t o = gr_tasks_find(v->g, path->steps[i].what);
            if (path->steps[i].kind == kind && o != GR_NONE) seen[o]++;
        }
        for (uint32_t o = 0; o < v->g->n_objects; o++) {
            bool keep = v->g->objects[o].span == GR_SPAN_KEEP;
            bool must = keep && (k < 2 ? used[o] : is_trained(v, written, o));
            if (seen[o] > 1 || (must && !seen[o]))
                gr_verify_wrong(v, "paths", "path %s has %u steps '%s' of '%s'", gr_path_str(ids[k]), seen[o],
                                gr_step_kind_str(kind), v->g->objects[o].name);
        }
    }
}

static void check_other_paths(gr_verifier *v)
{
    uint64_t held = 0;
    for (uint32_t e = 0; e < v->p->n_ledger; e++)
        if (v->boundary[e] && v->p->ledger[e].place == GR_DEVICE) held += v->p->ledger[e].bytes;
    for (int id = 0; id < GR_N_PATHS; id++)
        for (uint32_t i = 0; i < v->p->paths[id].n && !gr_verify_runs_tasks((gr_path_id)id); i++)
            if (v->p->paths[id].steps[i].resident_bytes != held)
                gr_verify_wrong(v, "resident bytes", "%s step %u says %" PRIu64 ", alive are %" PRIu64,
                                gr_path_str(id), i, v->p->paths[id].steps[i].resident_bytes, held);
}

static void prove(gr_verifier *v)
{
    if (!v->p->paths[GR_PATH_STEADY].n) {
        if (v->g->n_tasks) gr_verify_wrong(v, "order", "the plan has no steps");
        return;
    }
    if (!gr_verify_steps(v)) return;
    gr_verify_ledger(v);
    check_other_paths(v);
    check_files(v);
    if (!v->n_errors) gr_verify_replay(v);
}

gr_status gr_plan_verify(const gr_plan *p, const gr_tasks *g, gr_diag *d)
{
    gr_verifier v = {.p = p, .g = g, .d = d, .arena = gr_arena_new()};
    prove(&v);
    for (uint32_t e = 0; v.shares && e < p->n_ledger; e++) free(v.shares[e]);
    free(v.shares);
    free(v.n_share);
    gr_arena_free(v.arena);
    return v.n_errors ? GR_E_INVALID : GR_OK;
}

gr_binding *gr_plan_bind(const gr_plan *p, const gr_tasks *g, gr_arena *arena)
{
    uint32_t n = gr_plan_steps(p), next = 0;
    gr_binding *out = gr_arena_alloc(arena, (n + 1) * sizeof(*out));
    for (uint32_t i = 0; i < n; i++) {
        const gr_step *s = gr_plan_step(p, i);
        if (!gr_step_is_task(s->kind)) continue;
        const gr_task *w = &g->task[next++];
        out[i].task = w;
        out[i].entry = gr_arena_alloc(arena, (w->uses.n + 1) * sizeof(uint32_t));
        uint32_t r = 0, k = 0;
        for (uint32_t u = 0; u < w->uses.n; u++) {
            const gr_use *use = &w->uses.list[u];
            uint32_t e = GR_NONE;
            if (use->object != GR_NONE && use->mode & GR_READ) e = s->reads[r++];
            if (use->object != GR_NONE && use->mode & GR_WRITE) e = s->writes[k++];
            out[i].entry[u] = e;
        }
    }
    return out;
}
