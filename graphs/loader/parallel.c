/* graphs/loader/parallel.c: `parallel:` of models: axes along which ranks share each sequence, or the
 * experts, of a training pass. */
#include "graphs/loader/loader.h"
#include "graphs/loader/parallel.h"
#include "ops/base/configs.h"
#include "ops/base/states.h"
#include "ops/model/tp.h"
#include "ops/parallel/stages.h"
#include "runtime/comm/comm.h"

#include <stdlib.h>
#include <string.h>

#define AXIS(a) (offsetof(gr_mesh, size) + GR_AXIS_##a * sizeof(uint32_t))

/* clang-format off */
const gr_key gr_parallel_keys[] = {
    {"tensor", GR_KEY_UINT, AXIS(TENSOR), false, "1", 1, GR_PEERS_MAX, NULL, "neighbouring ranks of one host that have a slice of each layer, and a part of the tokens between its halves, in log-prob, value, score and update; must divide heads, KV heads and the width of the feed-forward network"},
    {"context", GR_KEY_UINT, AXIS(CONTEXT), false, "1", 1, GR_PEERS_MAX, NULL, "neighbouring ranks that have the tokens of each sequence in log-prob, value, score and update, as many each; must divide heads"},
    {"expert", GR_KEY_UINT, AXIS(EXPERT), false, "1", 1, GR_PEERS_MAX, NULL, "neighbouring ranks that have a part of the experts of each layer each, in log-prob, value, score and update; must divide experts, and tensor or be divided by it. Tokens go to the ranks of their experts and back; ranks keep sequences of their own"},
    {"pipeline", GR_KEY_UINT, AXIS(PIPELINE), false, "1", 1, GR_PEERS_MAX, NULL, "stages that the layers are cut into, in their order, in log-prob, value, score and update: ranks have the weights of one stage, and micro-batches flow through all of them; at most as many as there are layers"},
    {"chunks", GR_KEY_UINT, offsetof(gr_mesh, chunks), false, "1", 1, GR_STAGES_MAX, NULL, "groups of layers that each rank of 'pipeline' has, far from each other: a micro-batch goes through all ranks so many times, and these wait so much less at the begin and the end of a mini-batch; pipeline times chunks is at most as many as there are layers, and 64"},
    {0}};
/* clang-format on */

void gr_read_parallel(gr_loader *l, const gr_value *v, gr_model *m)
{
    if (v->broken) return;
    for (int a = 0; a < GR_N_AXES; a++) m->sharding.mesh_at[a] = v->at;
    m->sharding.mesh_auto = v->kind == GR_VALUE_SCALAR && !strcmp(v->text, "auto");
    if (m->sharding.mesh_auto || !gr_value_is_map(l, "parallel", v)) return;
    gr_keys_read(l, v, v->at, "parallel", gr_parallel_keys, NULL, &m->sharding.mesh, NULL);
    for (int a = 0; a < GR_N_AXES; a++) {
        const gr_value *axis = gr_value_get(v, gr_axis_str((gr_axis)a));
        if (axis) m->sharding.mesh_at[a] = axis->at;
    }
}

bool gr_node_trains_parallel(const gr_node *n)
{
    return n->model && (n->op->trains || n->op->passes) && !gr_reads_rollout(n);
}

/* ---- what is refused ------------------------------------------------------------------------------------
 */

/* A mesh that a model of a graph is to be trained on, of so many ranks in all. */
typedef struct question {
    const gr_graph *g;
    const gr_model *m;
    const gr_mesh *mesh;
    uint32_t ranks;
    gr_axis axis; /* that the answer is about */
} question;

/* What of a layer does not come out even along an axis, or is not cut; NULL: all is fine. */
static const char *uneven_along(const question *q, uint32_t n, char buf[48])
{
    const gr_model_shape *s = &q->m->shape;
    const char *what = NULL;
    if (!s->layers) return NULL; /* it is not known */
    if (q->axis == GR_AXIS_TENSOR)
        return gr_tp_uneven(s, (gr_slicing){n, gr_mesh_size(q->mesh, GR_AXIS_EXPERT), 1}, buf);
    if (q->axis == GR_AXIS_EXPERT) return gr_tp_uneven(s, (gr_slicing){1, n, 1}, buf);
    for (uint32_t i = 0; i < s->n_kinds && !what; i++) /* of a slice's */
        what = gr_layer_cut_uneven(&s->kinds[i], n * gr_mesh_size(q->mesh, GR_AXIS_TENSOR), buf);
    return what;
}

/* What stages of a pipeline would have to hand on beside hidden states; NULL: nothing. */
static const char *carried_by(const gr_model_shape *s)
{
    const char *what = NULL;
    for (uint32_t i = 0; i < s->n_kinds && !what; i++) what = gr_layer_carries(&s->kinds[i]);
    return what;
}

/* What follows says why not, an end of a sentence that is the caller's to free; NULL: nothing. */
static char *pipeline_wrong(const question *q, uint32_t stages)
{
    const uint32_t layers = q->m->shape.layers, chunks = gr_mesh_chunks(q->mesh);
    gr_str times = {0};
    char *why = NULL;
    if (carried_by(&q->m->shape))
        return gr_printf("is not built for %s: its stages hand on hidden states alone",
                         carried_by(&q->m->shape));
    if (chunks > 1) gr_str_printf(&times, "times 'chunks: %u' ", chunks);
    if (layers && (uint64_t)stages * chunks > layers)
        why = gr_printf("%sis more than its %u layers", times.len ? times.text : "", layers);
    else if (stages * chunks > GR_STAGES_MAX)
        why = gr_printf("%sis more than %d", times.text, GR_STAGES_MAX);
    gr_str_release(&times);
    return why;
}

/* A stage of its own has no others whose layers lie between its chunks. */
static char *chunks_wrong(question *q)
{
    const uint32_t chunks = gr_mesh_chunks(q->mesh);
    if (chunks < 2 || gr_mesh_size(q->mesh, GR_AXIS_PIPELINE) > 1) return NULL;
    q->axis = GR_AXIS_PIPELINE;
    return gr_printf("does not go with 'chunks: %u': they are of the ranks that have stages", chunks);
}

static char *axis_wrong(const question *q)
{
    const uint32_t n = gr_mesh_size(q->mesh, q->axis);
    char uneven[48];
    if (n < 2) return NULL;
    if (q->g->canonical)
        return gr_printf("and canonical do not go together: gradients of a sequence's parts are summed in "
                         "another order");
    if (q->axis == GR_AXIS_TENSOR && q->g->strict)
        return gr_printf("and strict do not go together: sums over slices have another order than those of "
                         "the rollout");
    if (q->axis != GR_AXIS_CONTEXT && gr_model_in_lesson(q->g, q->m))
        return gr_printf(
            "does not go with an update that has a 'teacher', which is made for whole output matrices "
            "on every rank: 'context', and more data, share its work");
    const bool fp8 = q->m->precision.rollout || q->m->precision.train;
    if ((gr_model_has_lora(q->m) || fp8) && (q->axis == GR_AXIS_TENSOR || q->axis == GR_AXIS_EXPERT))
        return gr_printf("and '%s' do not go together: %s; 'context' and 'pipeline' do",
                         fp8 ? "precision: fp8" : "lora",
                         fp8 ? "it needs whole layers on each rank" : "adapters are not cut");
    const uint32_t slices = gr_mesh_size(q->mesh, GR_AXIS_TENSOR);
    if (q->axis == GR_AXIS_EXPERT && n % slices && slices % n)
        return gr_printf("does not go with 'tensor: %u': one must divide the other", slices);
    if (q->axis == GR_AXIS_PIPELINE) return pipeline_wrong(q, n);
    const char *what = uneven_along(q, n, uneven);
    const bool both = q->axis == GR_AXIS_CONTEXT && gr_mesh_size(q->mesh, GR_AXIS_TENSOR) > 1;
    return what ? gr_printf("%sdoes not divide its %s", both ? "times tensor " : "", what) : NULL;
}

static uint32_t per_host_of(const question *q)
{
    return GR_MAX(q->ranks / q->g->hosts, 1u);
}

/* Layers go from flat shards to slices, whose ranks are counted through each host alike. */
static bool slices_fit(const question *q, const gr_ranks_role *role)
{
    const uint32_t parts = gr_mesh_size(q->mesh, GR_AXIS_TENSOR), per_host = per_host_of(q);
    bool fit = role->n % parts || per_host % parts == 0;
    for (uint32_t i = 0; fit && i + parts <= role->n; i += parts)
        fit = role->ranks[i] / per_host == role->ranks[i + parts - 1] / per_host;
    return fit;
}

/* The first axis that has several ranks. */
static gr_axis first_axis(const gr_mesh *m)
{
    gr_axis a = (gr_axis)0;
    while (a + 1 < GR_N_AXES && gr_mesh_size(m, a) < 2) a++;
    return a;
}

/* So are shards of a model that each host has all of: experts of a layer are of one host, and of stages it
 * has all, or they have whole hosts. */
static bool experts_fit(const question *q)
{
    return q->m->sharding.over != GR_SHARD_NODE ||
           per_host_of(q) % gr_mesh_size(q->mesh, GR_AXIS_EXPERT) == 0;
}

static bool stages_fit(const question *q)
{
    const uint32_t block = gr_mesh_block(q->mesh), per_host = per_host_of(q);
    return q->m->sharding.over != GR_SHARD_NODE || gr_mesh_size(q->mesh, GR_AXIS_PIPELINE) < 2 ||
           per_host % block == 0 || block % per_host == 0;
}

static char *ranks_wrong(question *q, const gr_node *n)
{
    const gr_ranks_role *role = &q->g->roles[n->placement.role];
    const uint32_t experts = gr_mesh_size(q->mesh, GR_AXIS_EXPERT);
    q->axis = first_axis(q->mesh);
    if (role->n % gr_mesh_ranks(q->mesh) == 0 && !slices_fit(q, role))
        return gr_printf("does not divide the ranks of a host: slices are of neighbours there");
    if (role->n % gr_mesh_ranks(q->mesh) == 0) {
        q->axis = stages_fit(q) ? GR_AXIS_EXPERT : GR_AXIS_PIPELINE;
        if (!stages_fit(q))
            return gr_printf(
                "beside 'shard: node': the %u ranks of a host are no multiple of the %u that have "
                "all stages once, and no part of them",
                per_host_of(q), gr_mesh_block(q->mesh));
        if (role->n % experts == 0 && role->n % gr_mesh_block(q->mesh) == 0)
            return experts_fit(q) ? NULL
                                  : gr_printf("does not divide the ranks of a host, which have all shards of "
                                              "the model ('shard: node')");
    }
    return role->n == q->ranks
               ? gr_printf("does not divide the %u ranks", q->ranks)
               : gr_printf("does not divide the %u ranks %s, which run '%s'", role->n, role->text, n->name);
}

static bool is_of(const question *q, const gr_node *n)
{
    return n->model && n->model->index == q->m->index && gr_node_trains_parallel(n);
}

static char *wrong(question *q)
{
    char *why = chunks_wrong(q);
    for (int a = 0; a < GR_N_AXES && !why; a++) {
        q->axis = (gr_axis)a;
        why = axis_wrong(q);
    }
    for (size_t k = 0; k < q->g->n_nodes && !why && q->ranks > 1; k++)
        if (is_of(q, q->g->nodes[k])) why = ranks_wrong(q, q->g->nodes[k]);
    return why;
}

static void check_model(gr_loader *l, const gr_model *m)
{
    const gr_mesh *mesh = &m->sharding.mesh;
    question q = {.g = l->g, .m = m, .mesh = mesh, .ranks = l->o && l->o->ranks ? l->o->ranks : 1};
    bool used = false;
    for (size_t k = 0; k < l->g->n_nodes; k++) used = used || is_of(&q, l->g->nodes[k]);
    char *why = wrong(&q);
    if (why)
        gr_diag_error(l->d, m->sharding.mesh_at[q.axis], GR_E_INVALID, "model '%s': '%s: %u' %s", m->name,
                      gr_axis_str(q.axis), gr_mesh_size(mesh, q.axis), why);
    else if (!used)
        gr_diag_warn(l->d, m->sharding.mesh_at[first_axis(mesh)],
                     "model '%s' has 'parallel', which is about passes of training, and none is made with it",
                     m->name);
    free(why);
}

void gr_check_parallel(gr_loader *l)
{
    for (size_t i = 0; i < l->g->n_models; i++)
        if (l->g->models[i]->sharding.mesh_auto || gr_mesh_any(&l->g->models[i]->sharding.mesh) ||
            gr_mesh_chunks(&l->g->models[i]->sharding.mesh) > 1)
            check_model(l, l->g->models[i]);
}

/* ---- of a graph that is loaded --------------------------------------------------------------------------
 */

bool gr_mesh_serves(const gr_graph *g, const gr_model *m, const gr_mesh *mesh)
{
    question q = {.g = g, .m = m, .mesh = mesh, .ranks = g->ranks};
    bool used = false;
    for (size_t k = 0; k < g->n_nodes; k++) used = used || is_of(&q, g->nodes[k]);
    char *why = wrong(&q);
    free(why);
    return used && !why;
}

void gr_graph_set_mesh(gr_graph *g, uint32_t model, const gr_mesh *mesh)
{
    g->models[model]->sharding.mesh = *mesh;
    g->models[model]->sharding.mesh_auto = false;
    gr_set_shares(g, g->n_roles > 1);
    for (uint32_t role = 0; g->views && role < g->n_roles; role++) {
        g->views[role]->models[model]->sharding.mesh = *mesh;
        g->views[role]->models[model]->sharding.mesh_auto = false;
        gr_set_shares(g->views[role], false);
    }
}
