/* graphs/loader/parallel.c: `parallel:` of models: axes along which ranks share each sequence of a training
 * pass. */
#include "graphs/loader/loader.h"
#include "ops/base/configs.h"
#include "runtime/comm/comm.h"

#include <stdlib.h>

#define AXIS(a) (offsetof(gr_mesh, size) + GR_AXIS_##a * sizeof(uint32_t))

/* clang-format off */
const gr_key gr_parallel_keys[] = {
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

static void check_context(gr_loader *l, const gr_model *m)
{
    const uint32_t n = gr_mesh_size(&m->sharding.mesh, GR_AXIS_CONTEXT);
    char uneven[48];
    if (l->g->canonical)
        refuse(
            l, m, GR_AXIS_CONTEXT,
            "and canonical do not go together: gradients of a sequence's parts are summed in another order");
    for (uint32_t i = 0; i < m->shape.n_kinds; i++) { /* none where the shape is not known */
        const char *what = gr_layer_cut_uneven(&m->shape.kinds[i], n, uneven);
        if (!what) continue;
        char *why = gr_printf("does not divide its %s", what);
        refuse(l, m, GR_AXIS_CONTEXT, why);
        free(why);
        return;
    }
}

bool gr_node_trains_parallel(const gr_node *n)
{
    return n->model && (n->op->trains || n->op->passes) && !gr_reads_rollout(n);
}

static void check_ranks(gr_loader *l, const gr_node *n)
{
    const uint32_t ranks = l->o && l->o->ranks ? l->o->ranks : 1,
                   size = gr_mesh_ranks(&n->model->sharding.mesh);
    const gr_ranks_role *role = &l->g->roles[n->placement.role];
    if (ranks < 2 || role->n % size == 0) return;
    char *why = role->n == ranks ? gr_printf("does not divide the %u ranks", ranks)
                                 : gr_printf("does not divide the %u ranks %s, which run '%s'", role->n,
                                             role->text, n->name);
    refuse(l, n->model, GR_AXIS_CONTEXT, why);
    free(why);
}

void gr_check_parallel(gr_loader *l)
{
    for (size_t i = 0; i < l->g->n_models; i++) {
        const gr_model *m = l->g->models[i];
        size_t used = 0, before = l->d->n_errors;
        if (gr_mesh_ranks(&m->sharding.mesh) < 2) continue;
        check_context(l, m);
        for (size_t k = 0; k < l->g->n_nodes; k++) {
            const gr_node *n = l->g->nodes[k];
            if (n->model != m || !gr_node_trains_parallel(n)) continue;
            if (l->d->n_errors == before) check_ranks(l, n);
            used++;
        }
        if (!used)
            gr_diag_warn(
                l->d, m->sharding.mesh_at[GR_AXIS_CONTEXT],
                "model '%s' has 'parallel', which is about passes of training, and none is made with it",
                m->name);
    }
}
