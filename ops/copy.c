/* ops/copy.c: the op `copy`: the weights of a model follow those of another: to = decay to + (1 - decay)
 * from.
 *
 * With decay 0 they are the other's, to the bit: a reference that is refreshed. Else they are an exponential
 * moving average. Where the device's weights have fewer bits than fp32 a float32 master holds it: a step is
 * often smaller than half of a weight's last bit, and would be lost.
 *
 * It is done shard by shard, as an optimizer step is: each rank has the same elements of both models, and
 * weights that are whole are gathered behind it. An element follows from the same element alone, so bits do
 * not depend on how they are cut.
 */
#include "ops/base/configs.h"
#include "ops/base/session.h"
#include "ops/parallel/sharding.h"

#include <string.h>

#define CFG(f) offsetof(gr_copy_cfg, f)

/* clang-format off */
static const gr_key keys[] = {
    {"from", GR_KEY_SECOND_MODEL, CFG(from), true, NULL, 0, 0, NULL, "the model whose weights are taken; it is trained"},
    {"to", GR_KEY_MODEL, CFG(to), true, NULL, 0, 0, NULL, "the model that follows it: of the same shape, and not trained itself"},
    {"decay", GR_KEY_SCALAR, CFG(decay), false, "0", 0, 1, NULL, "what stays of its weights: to = decay to + (1 - decay) from"},
    {0}};
/* clang-format on */

static const gr_field fields[] = {{0}};

/* Whether something stays of the weights that follow: else they are a copy. */
static bool averages(const gr_node *n)
{
    const gr_copy_cfg *c = n->cfg;
    return c->decay.changes || c->decay.value > 0;
}

/* ---- checked --------------------------------------------------------------------------------------------
 */

/* What of two models differs, so that weights of the one are none of the other; NULL: nothing. */
static const char *differs(const gr_model_shape *a, const gr_model_shape *b)
{
    if (strcmp(a->model_type, b->model_type) != 0) return "families";
    if (a->layers != b->layers) return "numbers of layers";
    if (a->vocab != b->vocab) return "vocabularies";
    if (a->head != b->head || a->value_bias != b->value_bias) return "heads";
    if (a->tied != b->tied) return "heads: one is its embedding";
    for (uint32_t bucket = 0; bucket < gr_model_buckets(a); bucket++) {
        gr_tensor x[GR_BUCKET_TENSORS_MAX], y[GR_BUCKET_TENSORS_MAX];
        const size_t n = gr_bucket_tensors(a, bucket, x);
        if (n != gr_bucket_tensors(b, bucket, y)) return "tensors";
        for (size_t i = 0; i < n; i++)
            if (x[i].rows != y[i].rows || x[i].cols != y[i].cols || x[i].offset != y[i].offset)
                return "widths";
    }
    return NULL;
}

static void check_from(const gr_node *n, gr_diag *d)
{
    const gr_copy_cfg *c = n->cfg;
    const gr_loc at = gr_value_get(n->value, "from")->at;
    if (c->from->follows)
        gr_diag_error(d, at, GR_E_INVALID, "model '%s' follows another itself, by '%s': copy from that one",
                      c->from->name, c->from->follows->name);
    else if (!c->from->trained)
        gr_diag_error(d, at, GR_E_INVALID,
                      "model '%s' has no 'train' settings: its weights never change, so there is nothing to "
                      "follow",
                      c->from->name);
    else if (gr_model_has_lora(c->from))
        gr_diag_error(d, at, GR_E_INVALID,
                      "model '%s' trains adapters, and its own weights stay as they are: 'copy' is made for "
                      "models that are trained whole",
                      c->from->name);
}

static void check_copy(gr_graph *g, gr_node *n, gr_diag *d)
{
    (void)g;
    const gr_copy_cfg *c = n->cfg;
    const gr_loc at = gr_value_get(n->value, "to")->at;
    if (c->from == c->to) {
        gr_diag_error(d, at, GR_E_INVALID, "'to' is the model that 'from' names");
        return;
    }
    check_from(n, d);
    if (averages(n)) c->to->train.master = GR_MASTER_F32;
    if (!c->to->follows) {
        gr_diag_error(d, at, GR_E_INVALID,
                      "model '%s' has 'train' settings: a model is trained, or it follows another",
                      c->to->name);
        return;
    }
    const char *what = differs(&c->from->shape, &c->to->shape);
    if (what)
        gr_diag_error(d, at, GR_E_INVALID, "models '%s' and '%s' have other %s: one cannot follow the other",
                      c->from->name, c->to->name, what);
}

/* ---- declared --------------------------------------------------------------------------------------------
 */

enum {
    COPY_WHOLE,
    COPY_SHARD
}; /* kernels, by what this rank has of the weights that are taken; arg: bucket */
enum { COPY_FROM, COPY_TO, COPY_STATE, N_COPY };

static void declare_copy(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                         gr_tasks *p)
{
    (void)g, (void)how;
    const gr_copy_cfg *c = n->cfg;
    const uint32_t shards = gr_placed(p, c->to)->shards;
    const bool shard = gr_placed(p, c->from)->weights == GR_SPREAD_FLAT,
               parts = shards > 1 && gr_placed(p, c->to)->weights == GR_SPREAD_WHOLE;
    for (uint32_t b = 0; b < gr_model_buckets(&c->to->shape); b++) {
        const bool master = gr_state_bytes_of(k, c->to, b, 1).master;
        const uint32_t state = master ? gr_model_object(p, k, c->to, GR_PART_STATE, b) : GR_NONE;
        const uint64_t weights = gr_part_bytes(k, c->to, GR_PART_PARAMS, b),
                       kept = gr_part_bytes(k, c->to, GR_PART_STATE, b);
        gr_task *t = gr_tasks_run(
            p, shard ? COPY_SHARD : COPY_WHOLE, b,
            (gr_use[]){[COPY_FROM] = {gr_model_object(p, k, c->from, GR_PART_PARAMS, b), GR_READ},
                       [COPY_TO] = {gr_model_object(p, k, c->to, GR_PART_PARAMS, b),
                                    parts || (averages(n) && !master) ? GR_UPDATE : GR_WRITE},
                       [COPY_STATE] = {state, GR_UPDATE}},
            N_COPY, "copy.%u", b);
        t->cost.bytes = (2.0 * (double)weights + 2.0 * (double)kept) / shards;
        gr_sharding_stepped(p, k, c->to, b);
    }
}

/* ---- run -------------------------------------------------------------------------------------------------
 */

static gr_status run_copy(const gr_call *c, gr_diag *d)
{
    (void)d;
    const gr_kernels *k = c->session->kernels;
    const gr_copy_cfg *cfg = c->node->cfg;
    const gr_shard own = gr_shard_of(c, c->arg);
    const uint64_t size = gr_dtype_size(k->dtype);
    const double decay = gr_session_number(c->session, &cfg->decay);
    const char *from = (const char *)c->ptr[COPY_FROM] + (c->kernel == COPY_SHARD ? 0 : own.first * size);
    char *to = (char *)c->ptr[COPY_TO] + (c->placed->weights == GR_SPREAD_FLAT ? 0 : own.first * size);
    if (!own.n) return GR_OK;
    if (averages(c->node))
        k->blend(c->queue, to, c->ptr[COPY_STATE], from, (float)decay, (float)(1 - decay), own.n);
    else
        k->copy(c->queue, to, from, own.n * size);
    return GR_OK;
}

const gr_op gr_op_copy = {
    .name = "copy",
    .follows = true,
    .summary =
        "the weights of a model follow those of another: a moving average, or a reference that is refreshed",
    .doc = "to = decay to + (1 - decay) from, as often as the node runs; `when` says in which iterations. It "
           "takes the weights as the iteration began, or with `after: UPDATE` the new ones. Nodes read `to` "
           "as it was "
           "when the iteration began, unless they are `after` this one. The model is saved in checkpoints.",
    .kernels = GR_KERNELS_BACKWARD,
    .lane = GR_LANE_COMPUTE,
    .cfg_bytes = sizeof(gr_copy_cfg),
    .keys = keys,
    .fields = fields,
    .check = check_copy,
    .declare = declare_copy,
    .run = run_copy,
};
