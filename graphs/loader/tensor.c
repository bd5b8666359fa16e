/* graphs/loader/tensor.c: `tensor:` of models, and how much of a batch a tensor-parallel group has. */
#include "graphs/loader/loader.h"
#include "ops/base/configs.h"
#include "ops/base/routes.h"
#include "ops/model/tp.h"

#include <stdlib.h>
#include <string.h>

/* ---- what is refused --------------------------------------------------------------------------------------
 */

static void refuse(const gr_loader *l, const gr_model *m, const char *why)
{
    gr_diag_error(l->d, m->sharding.tensor_at, GR_E_INVALID, "model '%s': 'tensor: %u' %s", m->name,
                  m->sharding.tensor, why);
}

static void check_model(gr_loader *l, const gr_model *m)
{
    char buf[48];
    const char *uneven = m->shape.layers
                             ? gr_tp_uneven(&m->shape, (gr_slicing){m->sharding.tensor, 1, 1}, buf)
                             : NULL; /* the shape is not known */
    if (l->g->canonical)
        refuse(l, m, "and canonical do not go together: sums over slices have another order");
    if (l->g->strict)
        refuse(l, m,
               "and strict do not go together: training is not in slices, whose sums have another order");
    if (uneven) {
        char *why = gr_printf("does not divide its %s", uneven);
        refuse(l, m, why);
        free(why);
    }
}

/* Groups are of neighbours on one host. */
static bool groups_fit(const gr_ranks_role *c, uint32_t parts, uint32_t per_host)
{
    if (c->n % parts) return false;
    for (uint32_t i = 0; i < c->n; i += parts)
        if (c->ranks[i + parts - 1] - c->ranks[i] != parts - 1 ||
            c->ranks[i] / per_host != c->ranks[i + parts - 1] / per_host)
            return false;
    return true;
}

static void check_ranks(gr_loader *l, const gr_node *n)
{
    const gr_graph *g = l->g;
    const uint32_t ranks = l->o && l->o->ranks ? l->o->ranks : 1, per_host = GR_MAX(ranks / g->hosts, 1u);
    const gr_ranks_role *c = &g->roles[n->placement.role];
    const gr_model *m = n->model;
    if (ranks < 2 || groups_fit(c, m->sharding.tensor, per_host)) return;
    char *why = c->n == ranks
                    ? gr_printf("does not divide the %u ranks of a host", per_host)
                    : gr_printf("cannot group ranks %s, which run '%s': as many neighbours of one host each",
                                c->text, n->name);
    refuse(l, m, why);
    free(why);
}

/* Ranks that receive a model and cut it into tensor-parallel shards have no whole one. */
static void check_whole(gr_loader *l, const gr_node *n)
{
    const gr_graph *g = l->g;
    bool cut = false;
    if (!n->model->update || n->model->update->placement.role == n->placement.role || gr_reads_rollout(n))
        return;
    for (size_t i = 0; i < g->n_nodes; i++)
        cut = cut || (g->nodes[i]->model == n->model && g->nodes[i]->placement.role == n->placement.role &&
                      gr_reads_rollout(g->nodes[i]));
    if (cut)
        gr_diag_error(
            l->d, n->at, GR_E_INVALID,
            "'%s' asks model '%s', which another pool trains and which its ranks have in slices: a log-prob "
            "of it needs 'weights: rollout'",
            n->name, n->model->name);
}

void gr_check_tensor(gr_loader *l)
{
    const gr_graph *g = l->g;
    for (size_t i = 0; i < g->n_models; i++) {
        const gr_model *m = g->models[i];
        size_t used = 0, before = l->d->n_errors;
        if (m->sharding.tensor < 2) continue;
        check_model(l, m);
        for (size_t k = 0; k < g->n_nodes; k++) {
            const gr_node *n = g->nodes[k];
            if (n->model == m) check_whole(l, n);
            if (n->model != m || !gr_reads_rollout(n)) continue;
            if (l->d->n_errors == before) check_ranks(l, n);
            used++;
        }
        if (!used)
            gr_diag_warn(l->d, m->sharding.tensor_at,
                         "model '%s' has 'tensor', which is about rollouts, and none is made with it",
                         m->name);
    }
}

/* Ranks that keep rows each draw, stop and take for themselves: so all have as many of a batch. */
void gr_check_kept(gr_loader *l)
{
    const gr_graph *g = l->g;
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_node *n = g->nodes[i];
        if (!gr_node_keeps(n)) continue;
        if (gr_rows_routed(g, n))
            gr_diag_error(
                l->d, n->at, GR_E_INVALID,
                "'%s' keeps rows ('over', or 'lag' above 1), and a node asks for the experts that it "
                "chose ('replay'): those of rows that are kept are not known later",
                n->name);
        const uint32_t ranks = g->roles[n->placement.role].n,
                       parts = GR_MAX(ranks / GR_MAX(n->model->sharding.tensor, 1u), 1u);
        if (n->bounds.groups % parts)
            gr_diag_error(
                l->d, n->at, GR_E_INVALID,
                "'%s' keeps rows on %u ranks, which a batch of %u prompts does not divide among: give "
                "'%s' a multiple of %u",
                n->name, parts, n->bounds.groups, n->of->name, parts);
    }
}

/* ---- shares -----------------------------------------------------------------------------------------------
 */

/* Prompts are divided among ranks with their groups whole; some ranks have one more than others. */
static gr_rows_bounds share_of(const gr_rows_bounds *b, uint32_t ranks)
{
    gr_rows_bounds share = *b;
    if (!b->groups) return share;
    share.groups = (b->groups + ranks - 1) / ranks;
    share.seqs = (uint32_t)((uint64_t)b->seqs * share.groups / b->groups);
    return share;
}

/* One rank has every model whole; so have ranks that make no rollouts with it. */
static uint32_t parts_of(const gr_graph *g, const gr_model *m)
{
    for (size_t i = 0; i < g->n_nodes && g->ranks > 1; i++)
        if (g->nodes[i]->model == m && gr_reads_rollout(g->nodes[i]) &&
            (g->n_roles < 2 || g->nodes[i]->placement.role == g->view))
            return m->sharding.tensor;
    return 1;
}

/* A vocabulary that slices do not divide is whole on each rank. */
static gr_slicing slicing_of(const gr_model *m)
{
    const gr_mesh *mesh = &m->sharding.mesh;
    const uint32_t width = gr_mesh_size(mesh, GR_AXIS_TENSOR);
    return (gr_slicing){width, gr_mesh_size(mesh, GR_AXIS_EXPERT), m->shape.vocab % width ? 1 : width};
}

void gr_set_shares(gr_graph *g, bool whole)
{
    for (size_t i = 0; i < g->n_models; i++) {
        gr_model *m = g->models[i];
        m->sharding.parts = whole ? 1 : parts_of(g, m);
        m->sharding.slice = gr_tp_shape(&m->shape, (gr_slicing){m->sharding.parts, 1, 1});
        m->sharding.train = whole || g->ranks < 2 ? (gr_slicing){1, 1, 1} : slicing_of(m);
        m->sharding.train_slice = gr_tp_shape(&m->shape, m->sharding.train);
    }
    for (size_t i = 0; i < g->n_nodes; i++) {
        gr_node *n = g->nodes[i];
        n->placement.ranks = whole ? 1 : g->ranks;
        n->placement.share = share_of(&n->bounds, n->placement.ranks);
        n->placement.parts = n->model && gr_reads_rollout(n) ? n->model->sharding.parts : 1;
        n->placement.mesh = !whole && g->ranks > 1 && gr_node_trains_parallel(n) ? n->model->sharding.mesh
                                                                                 : (gr_mesh){.size = {1}};
        const uint32_t together = n->placement.parts * gr_mesh_ranks(&n->placement.mesh);
        n->placement.task =
            share_of(n->work.groups ? &n->work : &n->bounds, GR_MAX(n->placement.ranks / together, 1u));
    }
}
