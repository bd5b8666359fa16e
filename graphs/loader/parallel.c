/* graphs/loader/parallel.c: `parallel:` of models: axes along which ranks share each sequence of a training
 * pass. */
#include "graphs/loader/loader.h"
#include "ops/base/configs.h"
#include "ops/model/tp.h"
#include "runtime/comm/comm.h"

#include <stdlib.h>

#define AXIS(a) (offsetof(gr_mesh, size) + GR_AXIS_##a * sizeof(uint32_t))

/* clang-format off */
const gr_key gr_parallel_keys[] = {
    {"tensor", GR_KEY_UINT, AXIS(TENSOR), false, "1", 1, GR_PEERS_MAX, NULL, "neighbouring ranks of one host that have a slice of each layer, and a part of the tokens between its halves, in log-prob, value, score and update; must divide heads, KV heads and the width of the feed-forward network"},
    {"context", GR_KEY_UINT, AXIS(CONTEXT), false, "1", 1, GR_PEERS_MAX, NULL, "neighbouring ranks that have the tokens of each sequence in log-prob, value, score and update, as many each; must divide heads and KV heads"},
    {0}};
/* clang-format on */

void gr_read_parallel(gr_loader *l, const gr_value *v, gr_model *m)
{
    if (v->broken || !gr_value_is_map(l, "parallel", v)) return;
    gr_keys_read(l, v, v->at, "parallel", gr_parallel_keys, NULL, &m->sharding.mesh, NULL);
    for (int a = 0; a < GR_N_AXES; a++) {
        const gr_value *axis = gr_value_get(v, gr_axis_str((gr_axis)a));
        m->sharding.mesh_at[a] = axis ? axis->at : v->at;
    }
}

/* ---- what is refused ------------------------------------------------------------------------------------
 */

static void refuse(const gr_loader *l, const gr_model *m, gr_axis axis, const char *why)
{
    gr_diag_error(l->d, m->sharding.mesh_at[axis], GR_E_INVALID, "model '%s': '%s: %u' %s", m->name,
                  gr_axis_str(axis), gr_mesh_size(&m->sharding.mesh, axis), why);
}

/* What of a layer is not cut along an axis; NULL: it is. */
static const char *uneven_along(const gr_model *m, gr_axis axis, uint32_t n, char buf[48])
{
    const char *what = NULL;
    if (!m->shape.layers) return NULL; /* it is not known */
    if (axis == GR_AXIS_TENSOR) return gr_tp_uneven(&m->shape, n, buf);
    for (uint32_t i = 0; i < m->shape.n_kinds && !what; i++)
        what = gr_layer_cut_uneven(&m->shape.kinds[i], n, buf);
    return what;
}

static void check_axis(gr_loader *l, const gr_model *m, gr_axis axis)
{
    const uint32_t n = gr_mesh_size(&m->sharding.mesh, axis);
    char uneven[48];
    if (n < 2) return;
    if (l->g->canonical)
        refuse(
            l, m, axis,
            "and canonical do not go together: gradients of a sequence's parts are summed in another order");
    if (axis == GR_AXIS_TENSOR && l->g->strict)
        refuse(
            l, m, axis,
            "and strict do not go together: sums over slices have another order than those of the rollout");
    const char *what = uneven_along(m, axis, n, uneven);
    if (!what) return;
    char *why = gr_printf("does not divide its %s", what);
    refuse(l, m, axis, why);
    free(why);
}

static void check_axes(gr_loader *l, const gr_model *m)
{
    for (int a = 0; a < GR_N_AXES; a++) check_axis(l, m, (gr_axis)a);
    if (gr_mesh_size(&m->sharding.mesh, GR_AXIS_TENSOR) > 1 &&
        gr_mesh_size(&m->sharding.mesh, GR_AXIS_CONTEXT) > 1)
        refuse(l, m, GR_AXIS_CONTEXT, "and tensor together are not built");
}

bool gr_node_trains_parallel(const gr_node *n)
{
    return n->model && (n->op->trains || n->op->passes) && !gr_reads_rollout(n);
}

/* The first axis that has several ranks. */
static gr_axis said(const gr_mesh *m)
{
    gr_axis a = (gr_axis)0;
    while (a + 1 < GR_N_AXES && gr_mesh_size(m, a) < 2) a++;
    return a;
}

/* Layers go from flat shards to slices, whose ranks are counted through each host alike. */
static bool slices_fit(const gr_loader *l, const gr_ranks_role *role, uint32_t parts)
{
    const uint32_t per_host = GR_MAX(l->o->ranks / l->g->hosts, 1u);
    bool fit = role->n % parts || (parts <= per_host && per_host % parts == 0);
    for (uint32_t i = 0; fit && i + parts <= role->n; i += parts)
        fit = role->ranks[i] / per_host == role->ranks[i + parts - 1] / per_host;
    return fit;
}

static void check_ranks(gr_loader *l, const gr_node *n)
{
    const gr_mesh *mesh = &n->model->sharding.mesh;
    const uint32_t ranks = l->o && l->o->ranks ? l->o->ranks : 1, size = gr_mesh_ranks(mesh);
    const gr_ranks_role *role = &l->g->roles[n->placement.role];
    if (ranks > 1 && !slices_fit(l, role, gr_mesh_size(mesh, GR_AXIS_TENSOR)))
        refuse(l, n->model, GR_AXIS_TENSOR,
               "does not divide the ranks of a host: slices are of neighbours there");
    if (ranks < 2 || role->n % size == 0) return;
    char *why = role->n == ranks ? gr_printf("does not divide the %u ranks", ranks)
                                 : gr_printf("does not divide the %u ranks %s, which run '%s'", role->n,
                                             role->text, n->name);
    refuse(l, n->model, said(mesh), why);
    free(why);
}

void gr_check_parallel(gr_loader *l)
{
    for (size_t i = 0; i < l->g->n_models; i++) {
        const gr_model *m = l->g->models[i];
        size_t used = 0, before = l->d->n_errors;
        if (gr_mesh_ranks(&m->sharding.mesh) < 2) continue;
        check_axes(l, m);
        for (size_t k = 0; k < l->g->n_nodes; k++) {
            const gr_node *n = l->g->nodes[k];
            if (n->model != m || !gr_node_trains_parallel(n)) continue;
            if (l->d->n_errors == before) check_ranks(l, n);
            used++;
        }
        if (!used)
            gr_diag_warn(
                l->d, m->sharding.mesh_at[said(&m->sharding.mesh)],
                "model '%s' has 'parallel', which is about passes of training, and none is made with it",
                m->name);
    }
}
