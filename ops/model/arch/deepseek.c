/* ops/model/arch/deepseek.c: families with latent attention: DeepSeek V2 and V3, and GLM 4.7 Flash
 * (glm4_moe_lite). Behind dense layers experts, with one or more beside them that every token goes through:
 * of V2 their router is a softmax, of the others a sigmoid with a bias that selects, and experts come in
 * groups. Layers behind the last predict a further token; of V2 none is published.
 *
 * Source: Hugging Face transformers, models/deepseek_v2, models/deepseek_v3 and models/glm4_moe_lite. What it
 * does not read but published configs have (topk_method, scoring_func, moe_layer_freq) must say what it
 * computes. aux_loss_alpha and seq_aux are of a loss that a graph would have of its own, auto_map of how
 * others load the model.
 */
#include "ops/model/arch.h"

#include <math.h>
#include <string.h>

/* ---- attention ----------------------------------------------------------------------------------------- */

/* A key that the family does without, but for this value. */
static void expect_text(gr_config *c, const char *key, const char *want)
{
    const json_t *v = gr_config_value(c, key);
    const char *text = json_string_value(v);
    if (v && (!text || strcmp(text, want) != 0))
        gr_config_refuse(c, key, "'%s' '%s' is not supported of '%s': it must be '%s'", key,
                         text ? text : "?", c->family, want);
}

static void expect_size(gr_config *c, const char *key, uint32_t want, const char *why)
{
    const json_t *v = gr_config_value(c, key);
    if (v && (!json_is_integer(v) || json_integer_value(v) != want))
        gr_config_refuse(c, key, "'%s' is not %u, %s", key, want, why);
}

/* What heads must be for the kernels of all devices. */
static void check_heads(gr_config *c, const gr_latent_desc *d)
{
    const uint32_t head = gr_latent_head(d);
    if (c->bad) return;
    if (d->rope_dim % 2)
        gr_config_refuse(c, "qk_rope_head_dim", "'qk_rope_head_dim' %u is odd, which cannot be rotated",
                         d->rope_dim);
    if (head > GR_LATENT_HEAD_MAX)
        gr_config_refuse(c, "qk_nope_head_dim",
                         "'qk_nope_head_dim' and 'qk_rope_head_dim' add up to %u, which is more than %d",
                         head, GR_LATENT_HEAD_MAX);
    if (d->v_dim > head)
        gr_config_refuse(c, "v_head_dim",
                         "a 'v_head_dim' of %u is not supported: it is more than the %u of a key", d->v_dim,
                         head);
    expect_size(c, "head_dim", d->rope_dim, "as 'qk_rope_head_dim' is");
    expect_size(c, "qk_head_dim", head, "as a key is wide");
}

/* With q_rank where config.json does not say. */
static gr_latent_desc latent(gr_config *c, const gr_layer_desc *base, gr_latent_desc unsaid)
{
    const bool whole = gr_config_has(c, "q_lora_rank") && !gr_config_value(c, "q_lora_rank");
    gr_latent_desc d = {.heads = base->attention.heads,
                        .q_rank = whole ? 0 : gr_config_size(c, "q_lora_rank", unsaid.q_rank, GR_INNER_MAX),
                        .kv_rank = gr_config_size(c, "kv_lora_rank", 512, GR_LATENT_RANK_MAX),
                        .nope_dim =
                            gr_config_size(c, "qk_nope_head_dim", unsaid.nope_dim, GR_LATENT_HEAD_MAX),
                        .rope_dim = gr_config_size(c, "qk_rope_head_dim", 64, GR_LATENT_ROPE_MAX),
                        .v_dim = gr_config_size(c, "v_head_dim", unsaid.v_dim, GR_LATENT_HEAD_MAX),
                        .norm_eps = 1e-6f, /* whatever rms_norm_eps says */
                        .interleaved = true,
                        .rope = base->attention.rope};
    check_heads(c, &d);
    if (!c->bad && base->attention.kv_heads != d.heads)
        gr_config_refuse(c, "num_key_value_heads",
                         "'num_key_value_heads' is not %u, as 'num_attention_heads' is", d.heads);
    d.rope.dims = d.rope_dim;
    d.scale = (float)(1 / sqrt(gr_latent_head(&d)));
    if (d.rope.type == GR_ROPE_YARN) d.scale *= (float)(d.rope.scores * d.rope.scores);
    return d;
}

static gr_layer_desc dense_of(gr_config *c, const gr_layer_desc *base, gr_latent_desc unsaid)
{
    gr_layer_desc d = *base;
    d.mixer = GR_MIXER_LATENT;
    d.attention = (gr_attention_desc){0};
    d.latent = latent(c, base, unsaid);
    return d;
}

static gr_layer_desc sparse_of(const gr_layer_desc *dense, const gr_experts_desc *e)
{
    gr_layer_desc d = *dense;
    d.mlp = GR_MLP_EXPERTS;
    d.dense = (gr_dense_desc){0};
    d.experts = *e;
    return d;
}

static uint32_t first_dense(gr_config *c, uint32_t unsaid)
{
    return gr_config_count(c, "first_k_dense_replace", unsaid, GR_LAYERS_MAX);
}

static void set_layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *dense, const gr_experts_desc *e,
                       uint32_t first)
{
    const gr_layer_desc sparse = sparse_of(dense, e);
    expect_size(c, "moe_layer_freq", 1, "which alone is supported");
    for (uint32_t l = 0; l < s->layers; l++) gr_arch_layer(c, s, l, l < first ? dense : &sparse);
    s->ahead = sparse;
}

/* ---- DeepSeek ------------------------------------------------------------------------------------------ */

static void v3(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    const gr_experts_desc unsaid = {.count = 256,
                                    .top_k = 8,
                                    .inner = 2048,
                                    .normalize = true,
                                    .groups = 8,
                                    .top_groups = 4,
                                    .scale = 2.5f,
                                    .shared_inner = 2048};
    gr_layer_desc dense = dense_of(c, base, (gr_latent_desc){.q_rank = 1536, .nope_dim = 128, .v_dim = 128});
    const gr_experts_desc e = gr_arch_sigmoid_experts(c, &unsaid);
    dense.latent.interleaved = gr_config_flag(c, "rope_interleave", true);
    expect_text(c, "scoring_func", "sigmoid");
    expect_text(c, "topk_method", "noaux_tc");
    set_layers(c, s, &dense, &e, first_dense(c, 3));
}

/* The weights of those that are chosen are never divided by their sum (norm_topk_prob is not read). */
static void v2(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    const char *scale = "routed_scaling_factor";
    gr_layer_desc dense = dense_of(c, base, (gr_latent_desc){.q_rank = 1536, .nope_dim = 128, .v_dim = 128});
    gr_experts_desc e = {.count = gr_config_size(c, "n_routed_experts", 64, GR_EXPERTS_MAX),
                         .top_k = gr_config_size(c, "num_experts_per_tok", 0, GR_CHOICES_MAX),
                         .inner = gr_config_size(c, "moe_intermediate_size", 1407, GR_INNER_MAX),
                         .scale = (float)gr_config_number(c, scale, gr_config_value(c, scale), 1, 1e-6, 1e6)};
    e.shared_inner = e.inner * gr_config_size(c, "n_shared_experts", 2, GR_CHOICES_MAX);
    if (e.count && e.top_k > e.count)
        gr_config_refuse(c, "num_experts_per_tok",
                         "'num_experts_per_tok' %u is more than the 'n_routed_experts' %u", e.top_k, e.count);
    if (gr_config_flag(c, "norm_topk_prob", false))
        gr_config_refuse(c, "norm_topk_prob", "'norm_topk_prob' is not supported of '%s'", c->family);
    expect_text(c, "scoring_func", "softmax");
    expect_text(c, "topk_method", "greedy");
    set_layers(c, s, &dense, &e, first_dense(c, 0));
}

/* ---- GLM 4.7 Flash ------------------------------------------------------------------------------------- */

/* How many dense layers stand first: `mlp_layer_types`, where it is there. */
static uint32_t first_of_types(gr_config *c, const gr_model_shape *s)
{
    const char *key = "mlp_layer_types";
    const json_t *list = gr_config_value(c, key);
    uint32_t dense = 0;
    bool fine = json_is_array(list) && json_array_size(list) == s->layers;
    if (!list) return 1;
    for (uint32_t l = 0; fine && l < s->layers; l++) {
        const char *type = json_string_value(json_array_get(list, l));
        const bool is_dense = type && !strcmp(type, "dense");
        fine = is_dense ? dense == l : type && !strcmp(type, "sparse");
        dense += is_dense;
    }
    if (!fine)
        gr_config_refuse(c, key, "'%s' is not a list of %u, first 'dense' ones and then 'sparse' ones", key,
                         s->layers);
    return dense;
}

static void glm4_lite(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    const gr_experts_desc unsaid = {.count = 64,
                                    .top_k = 4,
                                    .inner = 1536,
                                    .normalize = true,
                                    .groups = 1,
                                    .top_groups = 1,
                                    .scale = 1.8f,
                                    .shared_inner = 1536};
    gr_layer_desc dense = dense_of(c, base, (gr_latent_desc){.q_rank = 768, .nope_dim = 192, .v_dim = 256});
    const gr_experts_desc e = gr_arch_sigmoid_experts(c, &unsaid);
    const uint32_t first = first_of_types(c, s);
    dense.latent.interleaved = gr_config_flag(c, "rope_interleave", true);
    expect_text(c, "topk_method", "noaux_tc");
    if (!c->bad && first_dense(c, first) != first)
        gr_config_refuse(c, "first_k_dense_replace",
                         "'first_k_dense_replace' is not %u, as 'mlp_layer_types' is", first);
    set_layers(c, s, &dense, &e, first);
}

/* ---- families ------------------------------------------------------------------------------------------ */

static const gr_arch_name names[] = {
    {GR_T_SHARED_GATE_UP, 0, "mlp.shared_experts.gate_proj.weight"},
    {GR_T_SHARED_GATE_UP, 1, "mlp.shared_experts.up_proj.weight"},
    {GR_T_SHARED_DOWN, 0, "mlp.shared_experts.down_proj.weight"},
    {0, 0, NULL},
};

#define KEYS                                                                                           \
    "auto_map", "aux_loss_alpha", "ep_size", "first_k_dense_replace", "kv_lora_rank",                  \
        "moe_intermediate_size", "moe_layer_freq", "n_group", "n_routed_experts", "n_shared_experts",  \
        "norm_topk_prob", "num_experts_per_tok", "num_nextn_predict_layers", "output_router_logits",   \
        "q_lora_rank", "qk_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "routed_scaling_factor", \
        "scoring_func", "seq_aux", "topk_group", "topk_method", "v_head_dim"

static const char *const v2_keys[] = {KEYS, NULL};
static const char *const v3_keys[] = {KEYS, "num_mtp_layers", "rope_interleave", NULL};
static const char *const lite_keys[] = {KEYS, "mlp_layer_types", "rope_interleave", NULL};

/* head_dim: of the part that is rotated, which is read under another name. */
const gr_arch gr_arch_deepseek_v2 = {.model_type = "deepseek_v2",
                                     .class = "DeepseekV2",
                                     .head_dim = 64,
                                     .no_groups = true,
                                     .layers = v2,
                                     .experts = true,
                                     .names = names,
                                     .keys = v2_keys};
const gr_arch gr_arch_deepseek_v3 = {.model_type = "deepseek_v3",
                                     .class = "DeepseekV3",
                                     .head_dim = 64,
                                     .kv_heads = 128,
                                     .layers = v3,
                                     .ahead = &gr_arch_behind_last,
                                     .experts = true,
                                     .names = names,
                                     .keys = v3_keys};
const gr_arch gr_arch_glm4_moe_lite = {.model_type = "glm4_moe_lite",
                                       .class = "Glm4MoeLite",
                                       .head_dim = 64,
                                       .kv_heads = 20,
                                       .eps = 1e-5,
                                       .layers = glm4_lite,
                                       .ahead = &gr_arch_behind_last,
                                       .experts = true,
                                       .names = names,
                                       .keys = lite_keys};
