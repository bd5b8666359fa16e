/* graphs/loader/precision.c: `precision:` of a model: read, and what is refused. */
#include "graphs/loader/loader.h"
#include "ops/base/configs.h"
#include "ops/base/nodes.h"
#include "ops/model/fp8.h"

typedef struct precision_cfg {
    int rollout, train, gradients, kv, state;
} precision_cfg;

static const char *const kinds[] = {"bf16", "fp8", NULL};
static const char *const states[] = {"fp32", "bf16", NULL};

/* clang-format off */
const gr_key gr_precision_keys[] = {
    {"rollout", GR_KEY_ENUM, offsetof(precision_cfg, rollout), false, "bf16", 0, 0, kinds, "what the products of its layers compute in where it samples; bf16 is the device's own type, on the CPU device fp32"},
    {"train", GR_KEY_ENUM, offsetof(precision_cfg, train), false, "bf16", 0, 0, kinds, "the same in log-prob passes and updates"},
    {"gradients", GR_KEY_ENUM, offsetof(precision_cfg, gradients), false, "bf16", 0, 0, kinds, "what the gradients of these products' weights are computed in; fp8 goes with train: fp8"},
    {"kv", GR_KEY_ENUM, offsetof(precision_cfg, kv), false, "bf16", 0, 0, kinds, "what a rollout keeps keys and values in; fp8: with a scale for each token's head"},
    {"state", GR_KEY_ENUM, offsetof(precision_cfg, state), false, "fp32", 0, 0, states, "what a rollout keeps of a sequence in layers of the gated delta rule: their states, half as large in bf16"},
    {0}};
/* clang-format on */

void gr_read_precision(gr_loader *l, const gr_value *v, gr_model *m)
{
    precision_cfg cfg = {0};
    m->precision.at = v->at;
    if (v->broken || !gr_value_is_map(l, "precision", v)) return;
    gr_keys_read(l, v, v->at, "precision", gr_precision_keys, NULL, &cfg, NULL);
    m->precision.rollout = cfg.rollout != 0;
    m->precision.train = cfg.train != 0;
    m->precision.gradients = cfg.gradients != 0;
    m->precision.kv = cfg.kv != 0;
    m->precision.bf16_state = cfg.state != 0;
}

/* false: there are none. */
static bool set_bf16_states(gr_model_shape *s)
{
    bool found = false;
    for (uint32_t k = 0; k < s->n_kinds; k++) {
        if (s->kinds[k].mixer != GR_MIXER_DELTA) continue;
        s->kinds[k].delta.bf16_state = found = true;
    }
    return found;
}

void gr_find_states(gr_loader *l)
{
    for (size_t i = 0; i < l->g->n_models; i++) {
        gr_model *m = l->g->models[i];
        if (!m->precision.bf16_state) continue;
        if (!set_bf16_states(&m->shape) && m->shape.layers) /* else it is not known */
            gr_diag_error(l->d, m->precision.at, GR_E_INVALID,
                          "model '%s' has no layers of the gated delta rule, which alone have a state: leave "
                          "'state' out",
                          m->name);
        if (l->g->strict)
            gr_diag_error(l->d, m->precision.at, GR_E_INVALID,
                          "model '%s': 'state: bf16' and strict do not go together: log-prob passes and "
                          "updates carry states in fp32",
                          m->name);
    }
}

static bool is_fp8(const gr_model *m)
{
    return m->precision.rollout || m->precision.train;
}

/* A copy in FP8 is made of layers that a rank has whole (axes that cut them: parallel.c). */
static const char *divided(const gr_loader *l, const gr_model *m)
{
    const bool ranks = l->o && l->o->ranks > 1;
    if (ranks && m->sharding.tensor > 1) return "tensor";
    if (ranks && m->sharding.expert > 1) return "expert";
    if (ranks && m->sharding.gather != GR_GATHER_DIRECT) return "gather";
    if (ranks && m->residency.policy[GR_RESOURCE_ROLLOUT_WEIGHTS] > GR_POLICY_AUTO)
        return "residency: {rollout_weights: ...}";
    if (ranks && m->residency.policy[GR_RESOURCE_OPTIMIZER] == GR_POLICY_HOST)
        return "residency: {optimizer: host}";
    return NULL;
}

static void check_model(gr_loader *l, gr_model *m)
{
    const char *unfit = gr_fp8_unfit(&m->shape), *key = divided(l, m);
    if (unfit)
        gr_diag_error(l->d, m->precision.at, GR_E_INVALID,
                      "model '%s' has %s, whose products are not built in FP8: leave 'precision' out",
                      m->name, unfit);
    else if (key)
        gr_diag_error(l->d, m->precision.at, GR_E_INVALID,
                      "model '%s': 'precision: fp8' needs whole layers on each rank, and '%s' divides them: "
                      "leave one of the two out",
                      m->name, key);
}

/* Why gradients of weights cannot be in FP8, as a text; NULL: they can. */
static const char *without_gradients(const gr_loader *l, const gr_model *m)
{
    if (!m->precision.train) return "goes with 'train: fp8', whose products they belong to";
    if (!m->update || m->follows) return "is about updates, and none trains it";
    if (gr_model_has_lora(m)) return "is about a layer's own weights, and 'lora' trains others";
    if (l->g->strict)
        return "rounds in blocks of 128 tokens of a micro-batch, so that what is packed beside a token "
               "matters, and 'strict: true' cannot hold";
    return NULL;
}

static void check_gradients(gr_loader *l, const gr_model *m)
{
    const char *why = without_gradients(l, m);
    if (why)
        gr_diag_error(l->d, m->precision.at, GR_E_INVALID,
                      "model '%s': 'precision: {gradients: fp8}' %s: leave it out", m->name, why);
}

/* Layers that keep no keys and values by heads, as a text; NULL: all do. */
static const char *without_keys(const gr_model_shape *s)
{
    for (uint32_t i = 0; i < s->n_kinds; i++)
        if (s->kinds[i].mixer != GR_MIXER_ATTENTION)
            return s->kinds[i].mixer == GR_MIXER_LATENT ? "latent attention"
                                                        : "layers of the gated delta rule";
    return NULL;
}

static void check_kv(gr_loader *l, const gr_model *m)
{
    const char *other = without_keys(&m->shape);
    const bool ranks = l->o && l->o->ranks > 1;
    if (other)
        gr_diag_error(l->d, m->precision.at, GR_E_INVALID,
                      "model '%s' has %s, whose state is not kept in FP8: leave 'kv' out of 'precision'",
                      m->name, other);
    else if (l->g->strict)
        gr_diag_error(
            l->d, m->precision.at, GR_E_INVALID,
            "model '%s': 'precision: {kv: fp8}' rounds the keys of rollouts and not those of updates, so "
            "that 'strict: true' cannot hold: leave one of the two out",
            m->name);
    else if (ranks && (m->sharding.tensor > 1 || m->sharding.expert > 1 || gr_mesh_any(&m->sharding.mesh) ||
                       m->sharding.mesh_auto))
        gr_diag_error(
            l->d, m->precision.at, GR_E_INVALID,
            "model '%s': 'precision: {kv: fp8}' is not built where '%s' divides layers: leave one of the "
            "two out",
            m->name,
            m->sharding.tensor > 1   ? "tensor"
            : m->sharding.expert > 1 ? "expert"
                                     : "parallel");
}

static void shape_kv(gr_precision *p, const gr_model_shape *s)
{
    p->kv_shape = *s;
    p->kv_shape.fp8 = p->rollout;
    for (uint32_t i = 0; i < s->n_kinds; i++) p->kv_shape.kinds[i].attention.kv_fp8 = true;
}

void gr_check_precision(gr_loader *l)
{
    for (size_t i = 0; i < l->g->n_models; i++) {
        gr_model *m = l->g->models[i];
        if (m->precision.kv) {
            check_kv(l, m);
            shape_kv(&m->precision, &m->shape);
        }
        if (m->precision.gradients) check_gradients(l, m);
        if (!is_fp8(m)) continue;
        check_model(l, m);
        m->precision.shape = m->shape;
        m->precision.shape.fp8 = true;
        m->precision.shape.fp8_gradients = m->precision.gradients;
    }
}
