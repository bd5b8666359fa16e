/* graphs/loader/lora.c: `lora:` of a model's training: read, the frozen models beneath, and what is refused.
 */
#include "graphs/loader/loader.h"
#include "ops/base/configs.h"
#include "ops/model/fp8.h"
#include "ops/model/peft.h"
#include "runtime/base/files.h"

#include <string.h>

typedef struct lora_cfg {
    uint32_t rank;
    double alpha, dropout;
    gr_texts targets;
    const char *from;
    int base;
} lora_cfg;

static const char *const bases[] = {"bf16", "nf4", NULL};

/* clang-format off */
const gr_key gr_lora_keys[] = {
    {"rank", GR_KEY_UINT, offsetof(lora_cfg, rank), false, NULL, 1, GR_ADAPTER_RANK_MAX, NULL, "rank of the adapters; with 'from' it is that of the files"},
    {"alpha", GR_KEY_NUMBER, offsetof(lora_cfg, alpha), false, NULL, 0, 1e9, NULL, "adapters count alpha / rank times; default: the rank, or that of the files"},
    {"targets", GR_KEY_TEXTS, offsetof(lora_cfg, targets), false, NULL, 0, 0, NULL, "which matrices of a layer have one: of q, k, v, o, gate, up, down; default: all, or those of the files"},
    {"dropout", GR_KEY_NUMBER, offsetof(lora_cfg, dropout), false, "0", 0, 1, NULL, "must be 0: passes compute with the weights that adapters make"},
    {"from", GR_KEY_PATH, offsetof(lora_cfg, from), false, NULL, 0, 0, NULL, "a folder of adapters in the form of Hugging Face peft, or RUN@STEP, which they begin as; default: A is drawn, B is 0"},
    {"base", GR_KEY_ENUM, offsetof(lora_cfg, base), false, "bf16", 0, 0, bases, "what the frozen weights of layers are kept in: the device's own type, or NF4, 4 bits each, with scales of 8 bits (QLoRA)"},
    {0}};
/* clang-format on */

/* ---- read ---------------------------------------------------------------------------------------------- */

static gr_loc place_of(const gr_value *v, const char *key)
{
    const gr_value *own = gr_value_get(v, key);
    return own ? own->at : v->at;
}

static unsigned read_targets(gr_loader *l, const gr_texts *t)
{
    unsigned targets = 0;
    for (size_t i = 0; i < t->n; i++) {
        const gr_target found = gr_target_find(t->text[i]);
        if (found == GR_N_TARGETS)
            gr_diag_error(l->d, t->at[i], GR_E_INVALID,
                          "no target '%s'; there are q, k, v, o, gate, up and down", t->text[i]);
        else
            targets |= 1u << found;
    }
    return targets;
}

void gr_read_lora(gr_loader *l, const gr_value *v, gr_model *m)
{
    lora_cfg cfg = {0};
    gr_lora *lora = &m->lora;
    lora->given = true;
    lora->at = v->at;
    if (v->broken || !gr_value_is_map(l, "lora", v)) return;
    const size_t before = l->d->n_errors;
    gr_keys_read(l, v, v->at, "train: lora", gr_lora_keys, NULL, &cfg, NULL);
    const unsigned targets = read_targets(l, &cfg.targets);
    if (!cfg.rank && !cfg.from && l->d->n_errors == before)
        gr_diag_error(l->d, v->at, GR_E_INVALID, "'lora' needs 'rank', or 'from': a folder of adapters");
    if (cfg.dropout > 0)
        gr_diag_error(
            l->d, place_of(v, "dropout"), GR_E_INVALID,
            "'dropout' of adapters is not built: passes compute with the weights that adapters make, "
            "which have none; leave it out");
    if (gr_value_get(v, "alpha") && !(cfg.alpha > 0) && l->d->n_errors == before)
        gr_diag_error(l->d, place_of(v, "alpha"), GR_E_INVALID, "'alpha' must be above 0");
    lora->from = cfg.from;
    lora->from_at = place_of(v, "from");
    lora->alpha = cfg.alpha;
    lora->nf4 = cfg.base != 0;
    lora->base_at = place_of(v, "base");
    lora->shape.adapter = (gr_adapter_desc){.rank = GR_MAX(cfg.rank, 1u), .targets = targets};
    if (cfg.from) lora->shape.adapter.rank = cfg.rank; /* the files say it */
}

/* ---- the files it begins as ---------------------------------------------------------------------------- */

static void differs(gr_loader *l, const gr_model *m, const char *what)
{
    gr_diag_error(l->d, m->lora.at, GR_E_INVALID, "'%s' is not that of the adapters in '%s'; leave it out",
                  what, m->lora.from);
}

static void take_files(gr_loader *l, gr_model *m)
{
    gr_adapter_desc *a = &m->lora.shape.adapter;
    gr_peft files;
    if (gr_peft_read(&files, m->lora.from, &m->shape, l->d)) {
        gr_diag_note(l->d, m->lora.from_at, "needed here");
        return;
    }
    if (a->rank && a->rank != files.rank) differs(l, m, "rank");
    if (a->targets && a->targets != files.targets) differs(l, m, "targets");
    if (m->lora.alpha > 0 && m->lora.alpha != files.alpha) differs(l, m, "alpha");
    a->rank = files.rank;
    a->targets = files.targets;
    m->lora.alpha = files.alpha;
    if (files.nf4 != m->lora.nf4)
        gr_diag_warn(l->d, m->lora.from_at,
                     "the adapters in '%s' were trained beside frozen weights %s NF4, and begin here beside "
                     "weights %s: 'base' says which",
                     m->lora.from, files.nf4 ? "in" : "that are not in",
                     files.nf4 ? "that are not" : "that are");
}

/* ---- the frozen models beneath ------------------------------------------------------------------------- */

static bool is_twin(const gr_model *a, const gr_model *m, bool head)
{
    return !a->trained && a->files.checkpoint && !strcmp(a->files.checkpoint, m->files.checkpoint) &&
           (!head || a->value_head == m->value_head);
}

static gr_model *find_twin(const gr_loader *l, const gr_model *m, bool head)
{
    for (size_t i = 0; i < l->g->n_models; i++)
        if (is_twin(l->g->models[i], m, head)) return l->g->models[i];
    return NULL;
}

static bool is_taken(const gr_graph *g, const char *name)
{
    for (size_t i = 0; i < g->n_models; i++)
        if (!strcmp(g->models[i]->name, name)) return true;
    return false;
}

static gr_model *add_base(gr_loader *l, const gr_model *m)
{
    gr_model *base = gr_arena_alloc(l->arena, sizeof(*base));
    const char *name = gr_arena_printf(l->arena, "%s_base", m->name);
    while (is_taken(l->g, name)) name = gr_arena_printf(l->arena, "%s_", name);
    *base = *m;
    base->name = name;
    base->index = (uint32_t)l->g->n_models;
    base->implied = true;
    base->trained = false;
    base->lora = (gr_lora){0};
    base->precision = (gr_precision){0};
    base->train = (gr_train){0};
    base->sharding = (gr_model_sharding){.tensor = 1, .expert = 1, .rollout = {1, 1, 1}};
    if (l->g->n_models == GR_MODELS_MAX)
        gr_diag_error(l->d, m->lora.at, GR_E_INVALID, "more than %d models, with those beneath adapters",
                      GR_MODELS_MAX);
    else
        l->g->models[l->g->n_models++] = base;
    return base;
}

/* A frozen model of the same checkpoint is the base, wherever it runs: each role has what it uses; else one
 * is added, which others then find. */
void gr_find_bases(gr_loader *l)
{
    const size_t n = l->g->n_models;
    for (size_t i = 0; i < n; i++) {
        gr_model *m = l->g->models[i];
        gr_lora *lora = &m->lora;
        if (!lora->given || !m->files.checkpoint || l->d->n_errors) continue;
        if (lora->from) lora->from = gr_adapters_folder(l->arena, lora->from, m->name);
        if (lora->from) take_files(l, m);
        gr_adapter_desc a = lora->shape.adapter;
        if (!a.targets) a.targets = (1u << GR_N_TARGETS) - 1;
        if (!(lora->alpha > 0)) lora->alpha = a.rank;
        a.scale = (float)(lora->alpha / GR_MAX(a.rank, 1u));
        lora->shape = m->shape;
        lora->shape.adapter = a;
        lora->shape.fresh_head = false;
        gr_model *ends = find_twin(l, m, true);
        if (!ends) ends = add_base(l, m);
        gr_model *base = find_twin(l, m, false);
        if (lora->nf4) ends->shape.nf4 = base->shape.nf4 = m->shape.nf4 = lora->shape.nf4 = true;
        lora->ends = ends;
        lora->base = base;
    }
}

/* ---- refused ------------------------------------------------------------------------------------------- */

static void check_targets(gr_loader *l, const gr_model *m)
{
    char why[GR_ADAPTER_WHY_MAX];
    for (gr_target t = GR_TARGET_Q; t < GR_N_TARGETS && m->shape.layers; t++) {
        if (!(m->lora.shape.adapter.targets >> t & 1) || !gr_adapter_unfit(&m->shape, t, why)) continue;
        gr_diag_error(l->d, m->lora.at, GR_E_INVALID, "model '%s': target '%s': %s", m->name,
                      gr_target_str(t), why);
        return;
    }
}

static void check_nodes(gr_loader *l, const gr_model *m)
{
    for (size_t i = 0; i < l->g->n_nodes; i++) {
        const gr_node *n = l->g->nodes[i];
        if (n->model != m) continue;
        if (gr_node_lags(n))
            gr_diag_error(l->d, n->at, GR_E_INVALID,
                          "'%s' has 'lag', which is not built for model '%s' with adapters; without it the "
                          "rollout has this iteration's weights",
                          n->name, m->name);
    }
}

/* Of many ranks each has all of its weights: what is about shards of them has nothing to be about. */
static void check_ranks(gr_loader *l, const gr_model *m)
{
    const bool ranks = l->o && l->o->ranks > 1, gathers = m->sharding.gather != GR_GATHER_DIRECT,
               copies = m->residency.policy[GR_RESOURCE_ROLLOUT_WEIGHTS] > GR_POLICY_AUTO,
               steps = m->residency.policy[GR_RESOURCE_OPTIMIZER] == GR_POLICY_HOST;
    if (ranks && (gathers || copies || steps))
        gr_diag_error(
            l->d, m->lora.at, GR_E_INVALID,
            "model '%s': '%s' shards weights over the ranks, which is not built with adapters: leave it out",
            m->name,
            gathers  ? "gather"
            : copies ? "residency: {rollout_weights: ...}"
                     : "residency: {optimizer: host}");
}

/* The frozen weights are there once, in one form. */
static void check_base(gr_loader *l, const gr_model *m)
{
    const char *unfit = m->lora.nf4 ? gr_fp8_unfit(&m->shape) : NULL;
    if (unfit)
        gr_diag_error(l->d, m->lora.base_at, GR_E_INVALID,
                      "model '%s' has %s, whose weights are not kept in NF4: leave 'base' out", m->name,
                      unfit);
    if (m->lora.base->shape.nf4 != m->lora.nf4)
        gr_diag_error(
            l->d, m->lora.base_at, GR_E_INVALID,
            "model '%s' stands on frozen weights that are kept in NF4 for another model's adapters: say "
            "'base: nf4' for both or for none",
            m->name);
}

void gr_check_lora(gr_loader *l)
{
    for (size_t i = 0; i < l->g->n_models; i++) {
        const gr_model *m = l->g->models[i];
        if (!gr_model_has_lora(m)) continue;
        check_targets(l, m);
        check_base(l, m);
        check_nodes(l, m);
        check_ranks(l, m);
        if (m->train.n_groups)
            gr_diag_error(
                l->d, m->lora.at, GR_E_INVALID,
                "model '%s': 'groups' of tensors beside 'lora' are not built: adapters have one rate",
                m->name);
    }
}
