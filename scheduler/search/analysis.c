/* scheduler/search/analysis.c: what the search asks of a task graph again and again, worked out once. */
#include "scheduler/search/transfers.h"
#include "scheduler/cost/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NEW(f, n, a) ((a) = gr_arena_alloc((f)->arena, ((size_t)(n) + 1) * sizeof(*(a))))

/* The last work of a unit. */
static uint32_t end_of(const gr_tasks *g, uint32_t work)
{
    return g->task[work].loop.body_last == GR_NONE ? work : g->task[work].loop.body_last;
}

static bool inside(const gr_tasks *g, uint32_t loop, uint32_t work)
{
    return work > loop && work <= g->task[loop].loop.body_last;
}

static void find_scopes(gr_analysis *f)
{
    const gr_tasks *g = f->g;
    uint32_t stack[16], n = 0, before[17] = {GR_NONE};
    NEW(f, g->n_tasks, f->parent), NEW(f, g->n_tasks, f->prev), NEW(f, g->n_tasks, f->depth);
    NEW(f, g->n_tasks, f->top), NEW(f, g->n_tasks, f->node);
    for (uint32_t w = 0; w < g->n_tasks; w++) {
        while (n && w > g->task[stack[n - 1]].loop.body_last) n--;
        if (w == g->validate) before[0] = GR_NONE; /* another path */
        f->parent[w] = n ? stack[n - 1] : GR_NONE;
        f->depth[w] = n;
        f->top[w] = n ? stack[0] : w;
        f->prev[w] = before[n];
        before[n] = w;
        if (g->task[w].loop.body_last != GR_NONE) {
            stack[n++] = w;
            before[n] = GR_NONE;
        }
    }
    gr_index nodes = {0};
    for (uint32_t w = 0; w < g->n_tasks; w++) {
        const char *node = g->task[f->top[w]].node;
        f->n_nodes += gr_index_add(&nodes, node, f->n_nodes);
        f->node[w] = gr_index_find(&nodes, node, strlen(node));
    }
    gr_index_release(&nodes);
}

/* The path that a work is on, by the number of the works before its end. */
static uint32_t path_end(const gr_tasks *g, uint32_t work)
{
    uint32_t steady = gr_tasks_steady(g);
    return work < steady ? steady : (uint32_t)g->n_tasks;
}

/* The first unit of each node at the top of the iteration that generates whenever it runs. */
static void find_rollouts(gr_analysis *f)
{
    const gr_tasks *g = f->g;
    NEW(f, g->n_tasks, f->rollouts);
    for (uint32_t w = 0; w < gr_tasks_steady(g); w++) {
        if (!g->task[w].rollout || g->task[w].optional) continue;
        uint32_t unit = f->top[w];
        while (f->prev[unit] != GR_NONE && f->node[f->prev[unit]] == f->node[unit] &&
               g->task[f->prev[unit]].rollout)
            unit = f->prev[unit];
        if (!f->n_rollouts || f->rollouts[f->n_rollouts - 1] != unit) f->rollouts[f->n_rollouts++] = unit;
    }
}

static void find_refs(gr_analysis *f)
{
    const gr_tasks *g = f->g;
    NEW(f, g->n_objects + 1, f->begin), NEW(f, g->n_tasks + 1, f->use_begin);
    for (uint32_t w = 0; w < g->n_tasks; w++) {
        f->use_begin[w + 1] = f->use_begin[w] + g->task[w].uses.n;
        for (uint32_t u = 0; u < g->task[w].uses.n; u++)
            if (g->task[w].uses.list[u].object != GR_NONE) f->begin[g->task[w].uses.list[u].object + 1]++;
    }
    for (uint32_t o = 0; o < g->n_objects; o++) f->begin[o + 1] += f->begin[o];
    NEW(f, f->begin[g->n_objects], f->refs), NEW(f, f->use_begin[g->n_tasks], f->used);
    uint32_t *at = gr_malloc((g->n_objects + 1) * sizeof(*at));
    memcpy(at, f->begin, (g->n_objects + 1) * sizeof(*at));
    for (uint32_t w = 0; w < g->n_tasks; w++)
        for (uint32_t u = 0; u < g->task[w].uses.n; u++) {
            const gr_use *use = &g->task[w].uses.list[u];
            f->used[f->use_begin[w] + u] = use->object;
            if (use->object != GR_NONE) f->refs[at[use->object]++] = (gr_ref){w, use->mode & GR_UPDATE};
        }
    free(at);
}

/* Of the uses of an object: the nearest one before each that is on another lane; GR_NONE. */
static uint32_t *nearest_of_other_lanes(const gr_analysis *f)
{
    const gr_tasks *g = f->g;
    uint32_t *other = gr_malloc((f->begin[g->n_objects] + 1) * sizeof(*other));
    for (uint32_t o = 0; o < g->n_objects; o++)
        for (uint32_t i = f->begin[o]; i < f->begin[o + 1]; i++) {
            bool first = i == f->begin[o];
            bool same = !first && g->task[f->refs[i].work].lane == g->task[f->refs[i - 1].work].lane;
            other[i] = first ? GR_NONE : same ? other[i - 1] : i - 1;
        }
    return other;
}

/* The use before i of an object that is not on a lane. */
static uint32_t before(const gr_analysis *f, const uint32_t *other, uint32_t o, uint32_t i, gr_lane lane)
{
    if (i == f->begin[o]) return GR_NONE;
    return f->g->task[f->refs[i - 1].work].lane == lane ? other[i - 1] : i - 1;
}

/* Works of other lanes that a work waits for because of what they use, nearest first. */
static void find_cross(gr_analysis *f)
{
    const gr_tasks *g = f->g;
    uint32_t *other = nearest_of_other_lanes(f);
    NEW(f, g->n_tasks + 1, f->cross_begin);
    for (int pass = 0; pass < 2; pass++) {
        uint32_t *at = gr_calloc(g->n_tasks + 1, sizeof(*at));
        for (uint32_t o = 0; o < g->n_objects; o++)
            for (uint32_t j = f->begin[o]; j < f->begin[o + 1]; j++)
                for (uint32_t i = other[j]; i != GR_NONE;
                     i = before(f, other, o, i, g->task[f->refs[j].work].lane)) {
                    const gr_task *a = &g->task[f->refs[i].work];
                    if (path_end(g, f->refs[i].work) != path_end(g, f->refs[j].work)) break;
                    if (!((f->refs[i].mode | f->refs[j].mode) & GR_WRITE)) continue;
                    uint32_t w = f->refs[j].work;
                    if (pass) f->cross[f->cross_begin[w] + at[w]] = f->refs[i].work;
                    at[w]++;
                    if (!a->optional) break; /* it waits for the earlier ones by its lane's order */
                }
        if (!pass) {
            for (uint32_t w = 0; w < g->n_tasks; w++) f->cross_begin[w + 1] = f->cross_begin[w] + at[w];
            NEW(f, f->cross_begin[g->n_tasks], f->cross);
        }
        free(at);
    }
    free(other);
}

static void find_outside(gr_analysis *f)
{
    NEW(f, f->g->n_tasks, f->waits_outside);
    for (uint32_t w = 0; w < f->g->n_tasks; w++)
        for (uint32_t l = f->parent[w]; l != GR_NONE; l = f->parent[l])
            for (uint32_t c = f->cross_begin[w]; c < f->cross_begin[w + 1]; c++)
                f->waits_outside[l] |= !inside(f->g, l, f->cross[c]);
}

/* The later of two units to end a lifetime with. */
static uint32_t later(const gr_tasks *g, uint32_t a, uint32_t b)
{
    if (a == GR_NONE || b == GR_NONE) return GR_NONE;
    uint32_t ea = end_of(g, a), eb = end_of(g, b);
    if (ea != eb) return ea > eb ? a : b;
    return GR_MIN(a, b); /* the outer loop */
}

/* The unit after which work h on the host lane is known to be done: something waits for it, or its loop's
 * trip ends. GR_NONE: the path ends. */
static uint32_t host_done(const gr_analysis *f, uint32_t h)
{
    const gr_tasks *g = f->g;
    uint32_t loop = f->parent[h], end = loop == GR_NONE ? path_end(g, h) : g->task[loop].loop.body_last + 1;
    for (uint32_t s = h + 1; s < end; s++) {
        const gr_task *w = &g->task[s];
        if (w->lane == GR_LANE_HOST || (w->optional && strcmp(w->node, g->task[h].node))) continue;
        for (uint32_t c = f->cross_begin[s]; c < f->cross_begin[s + 1]; c++) {
            const gr_task *waited = &g->task[f->cross[c]];
            if (f->cross[c] < h || (waited->optional && strcmp(waited->node, w->node))) continue;
            while (f->parent[s] != loop) s = f->parent[s];
            return s;
        }
    }
    return loop;
}

/* The next work of `compute` behind w in the same loop; GR_NONE: there is none. In a backward pass that
 * recomputes its layers it is the recomputation, which needs less than the pass itself: with all layers
 * recomputed, what is kept until then is hardly ever what a budget lacks. */
static uint32_t next_beside(const gr_analysis *f, uint32_t w)
{
    const gr_tasks *g = f->g;
    const uint32_t loop = f->parent[w],
                   end = loop == GR_NONE ? path_end(g, w) : g->task[loop].loop.body_last + 1;
    for (uint32_t s = w + 1; s < end; s++)
        if (f->parent[s] == loop && g->task[s].loop.body_last == GR_NONE &&
            g->task[s].lane == GR_LANE_COMPUTE)
            return !strcmp(g->task[s].node, g->task[w].node) ? s : GR_NONE;
    return GR_NONE;
}

static void find_lifetime(gr_analysis *f, uint32_t o)
{
    const gr_tasks *g = f->g;
    uint32_t b = f->begin[o], e = f->begin[o + 1];
    if (b == e) return;
    uint32_t first = f->refs[b].work, last = f->refs[e - 1].work;
    for (uint32_t i = b; i < e; i++) { /* loops around each use, the inner ones first */
        if (i > b && f->parent[f->refs[i].work] == f->parent[f->refs[i - 1].work]) continue; /* the same */
        for (uint32_t l = f->parent[f->refs[i].work]; l != GR_NONE; l = f->parent[l]) {
            uint32_t in = b;
            while (!inside(g, l, f->refs[in].work)) in++;
            bool carried = in > b || !inside(g, l, f->refs[e - 1].work) || (f->refs[in].mode & GR_READ);
            if (!carried) continue;
            first = GR_MIN(first, l);
            last = later(g, last, l);
        }
    }
    for (uint32_t i = b; i < e && last != GR_NONE; i++)
        if (g->task[f->refs[i].work].lane == GR_LANE_HOST ||
            g->task[f->refs[i].work].uses.host_with != GR_NONE)
            last = later(g, last, host_done(f, f->refs[i].work));
    const uint32_t behind =
        g->task[f->refs[e - 1].work].comm.beside ? next_beside(f, f->refs[e - 1].work) : GR_NONE;
    if (behind != GR_NONE && last != GR_NONE) last = later(g, last, behind);
    f->first[o] = first;
    f->last[o] = last;
}

static bool same(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

/* Whether the lane `compute` alone uses it: then it may wait in the host pool from one use to another. */
static bool is_of_compute(const gr_analysis *f, uint32_t o)
{
    for (uint32_t r = f->begin[o]; r < f->begin[o + 1]; r++) {
        const gr_task *t = &f->g->task[f->refs[r].work];
        if (t->lane != GR_LANE_COMPUTE || t->uses.host_with != GR_NONE) return false;
    }
    return true;
}

static void find_groups(gr_analysis *f)
{
    const gr_tasks *g = f->g;
    NEW(f, g->n_objects, f->group), NEW(f, g->n_objects, f->rank), NEW(f, g->n_objects, f->groups);
    for (uint32_t o = 0; o < g->n_objects; o++) {
        const gr_object *ob = &g->objects[o];
        f->group[o] = GR_NONE;
        if (ob->span == GR_SPAN_TEMP || ob->place == GR_HOST || f->begin[o] == f->begin[o + 1]) continue;
        if (ob->span == GR_SPAN_SPILL && !is_of_compute(f, o)) continue;
        uint32_t i = 0;
        while (i < f->n_groups && !(same(f->groups[i].model, ob->model) && f->groups[i].span == ob->span &&
                                    f->groups[i].category == ob->category))
            i++;
        gr_group *gp = &f->groups[i];
        if (i == f->n_groups) {
            const char *cat = gr_category_str(ob->category);
            *gp = (gr_group){.name = ob->model ? gr_arena_printf(f->arena, "%s %s", ob->model, cat) : cat,
                             .model = ob->model,
                             .category = ob->category,
                             .span = ob->span,
                             .may_host = ob->span == GR_SPAN_KEEP};
            f->n_groups++;
        }
        f->group[o] = i;
        gp->n_objects++;
        gp->bytes += ob->bytes;
        for (uint32_t r = f->begin[o]; r < f->begin[o + 1]; r++) {
            gp->nodes |= 1ULL << GR_MIN(f->node[f->refs[r].work], 63);
            gp->may_host &= g->task[f->refs[r].work].uses.host_with == o;
        }
    }
}

static int by_rank(const void *a, const void *b, void *facts)
{
    const gr_analysis *f = facts;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    uint64_t p = f->g->objects[x].bytes, q = f->g->objects[y].bytes;
    if (f->group[x] != f->group[y]) return f->group[x] < f->group[y] ? -1 : 1;
    return p != q ? (p < q ? -1 : 1) : x < y ? -1 : x > y;
}

/* Of a group the last ones stay: the largest, which would hold up all others that come and go; among equals
 * the last, with which backward passes begin. */
static void find_ranks(gr_analysis *f)
{
    uint32_t n = (uint32_t)f->g->n_objects, *order = gr_malloc((n + 1) * sizeof(*order));
    for (uint32_t o = 0; o < n; o++) order[o] = o;
    qsort_r(order, n, sizeof(*order), by_rank, f);
    for (uint32_t i = 0; i < n; i++) {
        bool first = !i || f->group[order[i]] != f->group[order[i - 1]];
        f->rank[order[i]] = first ? 0 : f->rank[order[i - 1]] + 1;
    }
    free(order);
}

/* Each layout begins with a copy of these. */
static void make_steps(gr_analysis *f)
{
    NEW(f, f->g->n_tasks, f->steps);
    for (uint32_t w = 0; w < f->g->n_tasks; w++) {
        const gr_task *t = &f->g->task[w];
        f->steps[w] = (gr_item){.kind = t->kind,
                                .work = w,
                                .object = GR_NONE,
                                .entry = GR_NONE,
                                .home = GR_NONE,
                                .scope = f->parent[w],
                                .body_last = GR_NONE,
                                .lane = t->lane,
                                .node = t->node,
                                .optional = t->optional,
                                .ns = f->ns[w]};
    }
}

gr_analysis *gr_analysis_new(const gr_tasks *g, const gr_hardware *hw)
{
    gr_analysis *f = gr_calloc(1, sizeof(*f));
    *f = (gr_analysis){.g = g, .arena = gr_arena_new(), .hardware = *hw};
    find_scopes(f);
    find_rollouts(f);
    find_refs(f);
    find_cross(f);
    find_outside(f);
    NEW(f, g->n_objects, f->first), NEW(f, g->n_objects, f->last);
    for (uint32_t o = 0; o < g->n_objects; o++) find_lifetime(f, o);
    find_groups(f);
    find_ranks(f);
    NEW(f, g->n_tasks, f->ns), NEW(f, g->n_tasks, f->host_ns), NEW(f, g->n_tasks, f->lost_ns);
    for (uint32_t w = 0; w < g->n_tasks; w++) {
        if (g->task[w].loop.body_last == GR_NONE) f->ns[w] = gr_task_ns(&g->task[w], hw);
        f->lost_ns[w] = gr_task_lost_ns(&g->task[w], hw);
        if (g->task[w].uses.host_with == GR_NONE) continue;
        f->host_ns[w] = gr_task_host_ns(&g->task[w], hw);
        f->n_movable++;
    }
    make_steps(f);
    return f;
}

void gr_analysis_free(gr_analysis *f)
{
    if (!f) return;
    gr_arena_free(f->arena);
    free(f);
}
