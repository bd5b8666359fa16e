/* scheduler/search/lower.c: the program of a role of ranks, from what its nodes declare. */
#include "scheduler/search/planner_parts.h"

#include "ops/alike.h"
#include "ops/base/configs.h"
#include "ops/parallel/parts.h"
#include "ops/select.h"

/* A program while its nodes are declared, unit by unit (scheduler/search/roles.h). */
typedef struct assembly {
    const gr_graph *g;
    const gr_kernels *k;
    const gr_choices *how;
    const gr_traffic *traffic; /* NULL: of all nodes, and nothing crosses */
    gr_tasks *p;
    size_t crossed;
} assembly;

static void declare_node(assembly *a, const gr_node *n)
{
    gr_tasks_node(a->p, n->name, n->op->lane, gr_node_optional(a->g, n));
    a->p->lagged = gr_node_lags(n);
    n->op->declare(a->g, n, &a->how[n->index], a->k, a->p);
}

static void begin_rounds(const assembly *a, const gr_node *select)
{
    gr_tasks_node(a->p, select->name, select->op->lane, false);
    gr_select_begin_rounds(a->g, select, a->p);
}

static void declare_unit(assembly *a, const gr_node *n)
{
    if (a->traffic && !gr_node_runs(a->g, n)) return;
    gr_traffic_declare(a->traffic, a->g, a->p, a->k, n, &a->crossed);
    if (n->timing.refills) begin_rounds(a, n);
    for (size_t i = 0; n->timing.refills && i < n->index; i++)
        if (a->g->nodes[i]->timing.repeated_by == n) declare_node(a, a->g->nodes[i]);
    declare_node(a, n);
    if (n->timing.refills) gr_tasks_end(a->p);
}

/* The nodes of an iteration, or those of validations; nothing before a select waits for what it repeats. */
static void declare_nodes(assembly *a, bool validation, const gr_node *end)
{
    for (size_t i = 0; i < a->g->n_nodes; i++) {
        const gr_node *n = a->g->nodes[i];
        if ((n->timing.every != 0) == validation && !n->timing.repeated_by) declare_unit(a, n);
    }
    declare_unit(a, end);
    gr_traffic_declare(a->traffic, a->g, a->p, a->k, end, &a->crossed); /* where others run the end */
}

/* How ranks run tasks of a node together (gr_task_comm.mesh). */
static gr_mesh mesh_of(const gr_graph *g, const gr_node *n)
{
    if (!n->model || !gr_node_runs(g, n)) return (gr_mesh){.size = {0}};
    gr_mesh mesh = n->placement.mesh;
    mesh.size[GR_AXIS_PIPELINE] = 1; /* stages have no group of their own */
    return n->placement.parts > 1 ? (gr_mesh){.size = {[GR_AXIS_TENSOR] = n->placement.parts}} : mesh;
}

/* Whether a node before has the groups that this one has along an axis, or an axis before; of axes from
 * `first` on, before `end`. */
static bool has_groups(const gr_graph *g, size_t node, int axis, int first, int end)
{
    const gr_mesh m = mesh_of(g, g->nodes[node]);
    for (size_t i = 0; i <= node; i++)
        for (int a = first; a < (i < node ? end : axis); a++) {
            const gr_mesh other = mesh_of(g, g->nodes[i]);
            if (gr_mesh_size(&other, (gr_axis)a) == gr_mesh_size(&m, (gr_axis)axis) &&
                gr_mesh_stride(&other, (gr_axis)a) == gr_mesh_stride(&m, (gr_axis)axis))
                return true;
        }
    return false;
}

/* One for each kind of group that runs tasks together. */
static uint32_t count_groups(const gr_graph *g)
{
    uint32_t n = 0;
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_mesh m = mesh_of(g, g->nodes[i]);
        for (int a = 0; a < GR_N_AXES; a++)
            n += gr_mesh_size(&m, (gr_axis)a) > 1 && !has_groups(g, i, a, 0, GR_N_AXES);
    }
    return n;
}

/* Whether a node's ranks send each other parts of buckets: slices, or stages, and gradients that come back
 * from there. */
static bool moves_parts(const gr_node *n, const gr_placement *at)
{
    return gr_mesh_size(&n->placement.mesh, GR_AXIS_PIPELINE) > 1 ||
           gr_slicing_parts(n->model->sharding.train) > 1 ||
           (gr_reads_rollout(n) && gr_slicing_parts(n->model->sharding.rollout) > 1 &&
            at->weights == GR_SPREAD_FLAT);
}

static uint32_t all_ranks(const gr_graph *g)
{
    uint32_t n = 0;
    for (size_t c = 0; c < g->n_roles; c++) n += g->roles[c].n;
    return GR_MAX(n, g->ranks);
}

/* Of so many others those on this host: for each of them there is memory, and what is behind an adapter
 * shares it. */
static uint32_t on_host(const gr_graph *g, uint32_t others)
{
    return GR_MIN(others, GR_MAX(all_ranks(g) / GR_MAX(g->hosts, 1u), 1u) - 1);
}

/* Groups along an axis whose ranks send each other messages: tokens' heads, or rows of experts. Where such a
 * group is that of slices, too, it is one communicator, which has messages all the same. */
static uint32_t group_messages(const gr_graph *g, size_t node)
{
    const gr_mesh m = mesh_of(g, g->nodes[node]);
    uint32_t n = 0;
    for (int a = GR_AXIS_CONTEXT; a <= GR_AXIS_EXPERT; a++) {
        const uint32_t size = gr_mesh_size(&m, (gr_axis)a);
        if (size > 1 && !has_groups(g, node, a, GR_AXIS_CONTEXT, GR_AXIS_EXPERT + 1))
            n += on_host(g, size - 1);
    }
    return n;
}

/* Of all communicators: of those groups; of the ranks that have shards; and of all roles. */
static uint32_t count_messages(const gr_tasks *p, const gr_graph *g)
{
    uint32_t n = 0, shards = 1;
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_node *node = g->nodes[i];
        n += group_messages(g, i);
        if (node->model && gr_node_runs(g, node) && moves_parts(node, gr_placed(p, node->model)))
            shards = GR_MAX(shards, gr_placed(p, node->model)->shards);
    }
    return n + on_host(g, shards - 1) + on_host(g, g->n_roles > 1 ? all_ranks(g) - g->ranks : 0);
}

/* Where a model lies, as its nodes choose it. */
static gr_placement place(const gr_graph *g, const gr_choices *how, const gr_model *m)
{
    gr_placement at = {.shards = g->ranks};
    bool sharded = false;
    for (size_t i = 0; i < g->n_nodes; i++) {
        if (g->nodes[i]->model != m) continue;
        sharded = sharded || how[i].sharded;
        if (!how[i].shards || !gr_node_runs(g, g->nodes[i])) continue;
        at.group = GR_GROUP_NODE;
        at.shards = how[i].shards;
    }
    if (sharded && at.shards > 1) at.weights = GR_SPREAD_FLAT;
    return at;
}

/* All models, and the communicators that they need. */
static void place_models(gr_tasks *p, const gr_graph *g, const gr_choices *how)
{
    p->n_placed = (uint32_t)g->n_models;
    p->placed = gr_arena_alloc(p->arena, g->n_models * sizeof(*p->placed));
    for (uint32_t m = 0; m < p->n_placed; m++) {
        p->placed[m] = place(g, how, g->models[m]);
        if (p->placed[m].group == GR_GROUP_NODE) p->node_ranks = p->placed[m].shards;
    }
    if (p->node_ranks) p->groups += 1 + (p->node_ranks > 1); /* across nodes, and of a node */
}

/* Without works yet. */
static gr_tasks *empty_tasks(const gr_graph *g, const gr_kernels *k, const gr_choices *how)
{
    gr_tasks *p = gr_tasks_new();
    p->values = k->columns;
    p->queued = k->queued;
    p->ranks = g->ranks;
    p->leaves = g->canonical ? GR_LEAVES / g->ranks : 0;
    /* what crosses does by one of all ranks */
    p->groups = (g->n_roles > 1) + count_groups(g);
    place_models(p, g, how);
    p->messages = count_messages(p, g);
    return p;
}

gr_tasks *gr_lower_node(const gr_graph *g, const gr_kernels *k, const gr_choices *how, const gr_node *n)
{
    assembly a = {.g = g, .k = k, .how = how, .p = empty_tasks(g, k, how)};
    declare_node(&a, n);
    return a.p;
}

/* Ranks may have no part in validations. */
static void declare_validation(assembly *a, const gr_node *end)
{
    gr_tasks *p = a->p;
    uint32_t every = UINT32_MAX;
    for (size_t i = 0; i < a->g->n_nodes; i++)
        if (a->g->nodes[i]->timing.every) every = GR_MIN(every, a->g->nodes[i]->timing.every);
    gr_tasks_validate(p, every);
    declare_nodes(a, true, end);
    if (p->validate < p->n_tasks) return;
    p->validate = GR_NONE;
    p->validate_every = 0;
}

gr_tasks *gr_lower(const gr_graph *g, const gr_kernels *k, const gr_choices *how, const gr_planned *of,
                   const gr_traffic *traffic)
{
    gr_tasks *p = empty_tasks(g, k, how);
    assembly a = {.g = g, .k = k, .how = how, .traffic = traffic, .p = p};
    for (size_t m = 0; m < g->n_models && traffic; m++)
        if (gr_model_is_away(g, g->models[m])) p->placed[m].weights = GR_SPREAD_AWAY;
    declare_nodes(&a, false, of->summary);
    if (of->validation) declare_validation(&a, of->validation);
    p->spare_bytes = gr_alike_room(p, g, k);
    return p;
}
