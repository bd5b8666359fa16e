/* graphs/loader/tensor.c: `tensor:` and `expert:` of models, how the copy that generates is divided over
 * ranks; and how much of a batch a group of such ranks has. */
#include "graphs/loader/tensor.h"
#include "graphs/loader/loader.h"
#include "ops/base/configs.h"
#include "ops/base/routes.h"
#include "ops/model/tp.h"

#include <stdlib.h>
#include <string.h>

/* ---- what is refused --------------------------------------------------------------------------------------
 */

/* One of the two keys of a model. */
typedef struct division {
    const gr_model *m;
    const char *key;
    uint32_t ranks;
    gr_loc at;
} division;

static division tensor_of(const gr_model *m)
{
    return (division){m, "tensor", m->sharding.tensor, m->sharding.tensor_at};
}

static division expert_of(const gr_model *m)
{
    return (division){m, "expert", m->sharding.expert, m->sharding.expert_at};
}

static void refuse(const gr_loader *l, const division *v, const char *why)
{
    gr_diag_error(l->d, v->at, GR_E_INVALID, "model '%s': '%s: %u' %s", v->m->name, v->key, v->ranks, why);
}

static void check_even(const gr_loader *l, const division *v, gr_slicing cut)
{
    char buf[48];
    const gr_model_shape *s = &v->m->shape;
    const char *uneven = s->layers ? gr_tp_uneven(s, cut, buf) : NULL; /* else the shape is not known */
    if (!uneven) return;
    char *why = gr_printf("does not divide its %s", uneven);
    refuse(l, v, why);
    free(why);
}

static void check_tensor(const gr_loader *l, const division *v)
{
    if (l->g->canonical)
        refuse(l, v, "and canonical do not go together: sums over slices have another order");
    if (l->g->strict)
        refuse(l, v,
               "and strict do not go together: training is not in slices, whose sums have another order");
    check_even(l, v, (gr_slicing){v->ranks, 1, 1});
}

/* Experts stay whole, so their sums have the same order anywhere. */
static void check_expert(const gr_loader *l, const division *v)
{
    if (v->m->sharding.tensor > 1)
        refuse(l, v,
               "does not go with 'tensor': a rollout that does both is not built; leave one of them out");
    check_even(l, v, (gr_slicing){1, v->ranks, 1});
}

/* What of a rollout its ranks cannot do in step with each other, as a text; NULL: nothing. */
static const char *out_of_step(const gr_node *n)
{
    const gr_generate_cfg *c = n->cfg;
    if (!n->op->generates) return NULL;
    if (n->bounds.turns) return "environment";
    return c->speculate.tokens && c->speculate.from == GR_DRAFT_MTP ? "speculate: {from: mtp}" : NULL;
}

static void check_in_step(const gr_loader *l, const gr_node *n)
{
    const char *what = out_of_step(n);
    if (n->model->sharding.expert < 2 || !what) return;
    gr_diag_error(
        l->d, n->at, GR_E_INVALID,
        "'%s': '%s' is not built for a model whose experts are divided in rollouts ('expert: %u' of "
        "model '%s'); leave one of them out",
        n->name, what, n->model->sharding.expert, n->model->name);
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

static void check_ranks(const gr_loader *l, const division *v, const gr_node *n)
{
    const gr_graph *g = l->g;
    const uint32_t ranks = l->o && l->o->ranks ? l->o->ranks : 1, per_host = GR_MAX(ranks / g->hosts, 1u);
    const gr_ranks_role *c = &g->roles[n->placement.role];
    if (ranks < 2 || groups_fit(c, v->ranks, per_host)) return;
    char *why = c->n == ranks
                    ? gr_printf("does not divide the %u ranks of a host", per_host)
                    : gr_printf("cannot group ranks %s, which run '%s': as many neighbours of one host each",
                                c->text, n->name);
    refuse(l, v, why);
    free(why);
}

/* Ranks that receive a model and cut it into tensor-parallel shards have no whole one. */
static void check_whole(const gr_loader *l, const gr_node *n)
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

/* What every division asks of the nodes of its model; before: errors there were without it. */
static void check_nodes(const gr_loader *l, const division *v, size_t before)
{
    const gr_graph *g = l->g;
    size_t used = 0;
    for (size_t k = 0; k < g->n_nodes; k++) {
        const gr_node *n = g->nodes[k];
        if (n->model == v->m) check_whole(l, n);
        if (n->model != v->m || !gr_reads_rollout(n)) continue;
        check_in_step(l, n);
        if (l->d->n_errors == before) check_ranks(l, v, n);
        used++;
    }
    if (!used)
        gr_diag_warn(l->d, v->at, "model '%s' has '%s', which is about rollouts, and none is made with it",
                     v->m->name, v->key);
}

void gr_check_tensor(gr_loader *l)
{
    for (size_t i = 0; i < l->g->n_models; i++) {
        const division tensor = tensor_of(l->g->models[i]), expert = expert_of(l->g->models[i]);
        const size_t before = l->d->n_errors;
        if (tensor.ranks > 1) check_tensor(l, &tensor);
        if (expert.ranks > 1) check_expert(l, &expert);
        if (tensor.ranks > 1) check_nodes(l, &tensor, before);
        if (expert.ranks > 1 && tensor.ranks < 2) check_nodes(l, &expert, before);
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
static gr_slicing rollout_of(const gr_graph *g, const gr_model *m)
{
    for (size_t i = 0; i < g->n_nodes && g->ranks > 1; i++)
        if (g->nodes[i]->model == m && gr_reads_rollout(g->nodes[i]) &&
            (g->n_roles < 2 || g->nodes[i]->placement.role == g->view))
            return (gr_slicing){m->sharding.tensor, m->sharding.expert, 1};
    return (gr_slicing){1, 1, 1};
}

/* Holders of experts have sequences of their own, as in training; slices have not. */
static gr_mesh mesh_of(const gr_graph *g, const gr_node *n, bool whole)
{
    gr_mesh mesh = {.size = {1}};
    if (whole || g->ranks < 2 || !n->model) return mesh;
    if (gr_node_trains_parallel(n)) return n->model->sharding.mesh;
    if (gr_reads_rollout(n)) mesh.size[GR_AXIS_EXPERT] = n->model->sharding.rollout.experts;
    return mesh;
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
        m->sharding.rollout = whole ? (gr_slicing){1, 1, 1} : rollout_of(g, m);
        m->sharding.slice = gr_tp_shape(&m->shape, m->sharding.rollout);
        m->sharding.train = whole || g->ranks < 2 ? (gr_slicing){1, 1, 1} : slicing_of(m);
        m->sharding.train_slice = gr_tp_shape(&m->shape, m->sharding.train);
    }
    for (size_t i = 0; i < g->n_nodes; i++) {
        gr_node *n = g->nodes[i];
        n->placement.ranks = whole ? 1 : g->ranks;
        n->placement.share = share_of(&n->bounds, n->placement.ranks);
        n->placement.parts = n->model && gr_reads_rollout(n) ? n->model->sharding.rollout.width : 1;
        n->placement.mesh = mesh_of(g, n, whole);
        const uint32_t together = n->placement.parts * gr_mesh_ranks(&n->placement.mesh);
        n->placement.task =
            share_of(n->work.groups ? &n->work : &n->bounds, GR_MAX(n->placement.ranks / together, 1u));
    }
}

/* ---- of a graph that is loaded ----------------------------------------------------------------------------
 */

static bool is_written(gr_loc at)
{
    return at.file || at.line;
}

bool gr_rollout_is_open(const gr_model *m)
{
    return !is_written(m->sharding.tensor_at) && !is_written(m->sharding.expert_at);
}

bool gr_rollout_divides(gr_graph *g, uint32_t model, uint32_t n)
{
    gr_model *m = g->models[model];
    const bool fp8 = m->precision.rollout || m->precision.train || m->precision.kv; /* gr_check_precision */
    const uint32_t was = m->sharding.expert;
    const gr_load_options o = {.ranks = g->ranks};
    gr_diag said;
    const gr_loader l = {.g = g, .d = &said, .o = &o};
    gr_diag_init(&said);
    m->sharding.expert = n;
    const division v = expert_of(m);
    check_expert(&l, &v);
    check_nodes(&l, &v, 0);
    m->sharding.expert = was;
    const bool fine = !fp8 && !said.n;
    gr_diag_release(&said);
    return fine;
}

void gr_graph_divide_rollout(gr_graph *g, uint32_t model, uint32_t n)
{
    g->models[model]->sharding.expert = n;
    gr_set_shares(g, g->n_roles > 1);
    for (uint32_t role = 0; g->views && role < g->n_roles; role++) {
        g->views[role]->models[model]->sharding.expert = n;
        gr_set_shares(g->views[role], false);
    }
}
