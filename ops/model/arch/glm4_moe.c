/* ops/model/arch/glm4_moe.c: GLM 4.5 and 4.6: attention with half of each head rotated; behind
 * `first_k_dense_replace` dense layers experts whose router is a sigmoid with a bias that selects, and beside
 * them one that every token goes through. Layers behind the last, which predict a further token, are not
 * read.
 *
 * Source: Hugging Face transformers, models/glm4_moe.
 */
#include "ops/model/arch.h"

static gr_experts_desc experts(gr_config *c)
{
    const uint32_t inner = gr_config_size(c, "moe_intermediate_size", 1408, GR_INNER_MAX),
                   shared = gr_config_size(c, "n_shared_experts", 1, GR_CHOICES_MAX);
    return (gr_experts_desc){.count = gr_config_size(c, "n_routed_experts", 128, GR_EXPERTS_MAX),
                             .top_k = gr_config_size(c, "num_experts_per_tok", 8, GR_CHOICES_MAX),
                             .inner = inner,
                             .router = GR_ROUTER_SIGMOID,
                             .normalize = gr_config_flag(c, "norm_topk_prob", true),
                             .selection_bias = true,
                             .groups = gr_config_size(c, "n_group", 1, GR_GROUPS_MAX),
                             .top_groups = gr_config_size(c, "topk_group", 1, GR_GROUPS_MAX),
                             .scale = (float)gr_config_number(c, "routed_scaling_factor",
                                                              gr_config_value(c, "routed_scaling_factor"), 1,
                                                              1e-6, 1e6),
                             .shared_inner = inner * shared};
}

/* What chooses from groups needs: two experts in each, and enough of them in those that are left. */
static void check_groups(gr_config *c, const gr_experts_desc *e)
{
    if (!e->count || !e->top_k || !e->groups || !e->top_groups) return;
    const uint32_t size = e->count / e->groups;
    if (e->count % e->groups || (e->groups > 1 && size < 2))
        gr_config_refuse(c, "n_group", "'n_group' %u does not cut %u experts into groups of two or more",
                         e->groups, e->count);
    else if (e->top_groups > e->groups || e->top_k > e->top_groups * size)
        gr_config_refuse(c, "topk_group",
                         "'topk_group' %u leaves no %u experts to choose: there are %u groups of %u",
                         e->top_groups, e->top_k, e->groups, size);
}

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    const uint32_t first = gr_config_count(c, "first_k_dense_replace", 1, GR_LAYERS_MAX);
    gr_layer_desc dense = *base;
    dense.attention.qkv_bias = gr_config_flag(c, "attention_bias", false);
    dense.attention.qk_norm = gr_config_flag(c, "use_qk_norm", false) ? GR_QK_NORM_HEAD : GR_QK_NORM_NONE;
    gr_layer_desc sparse = dense;
    sparse.mlp = GR_MLP_EXPERTS;
    sparse.dense = (gr_dense_desc){0};
    sparse.experts = experts(c);
    check_groups(c, &sparse.experts);
    for (uint32_t l = 0; l < s->layers; l++) gr_arch_layer(c, s, l, l < first ? &dense : &sparse);
}

static const gr_arch_name names[] = {
    {GR_T_SHARED_GATE_UP, 0, "mlp.shared_experts.gate_proj.weight"},
    {GR_T_SHARED_GATE_UP, 1, "mlp.shared_experts.up_proj.weight"},
    {GR_T_SHARED_DOWN, 0, "mlp.shared_experts.down_proj.weight"},
    {0, 0, NULL},
};

static const char *const keys[] = {"attention_bias",
                                   "first_k_dense_replace",
                                   "moe_intermediate_size",
                                   "n_group",
                                   "n_routed_experts",
                                   "n_shared_experts",
                                   "norm_topk_prob",
                                   "num_experts_per_tok",
                                   "num_nextn_predict_layers",
                                   "routed_scaling_factor",
                                   "topk_group",
                                   "use_qk_norm",
                                   NULL};

const gr_arch gr_arch_glm4_moe = {.model_type = "glm4_moe",
                                  .class = "Glm4Moe",
                                  .partial = 0.5,
                                  .eps = 1e-5,
                                  .layers = layers,
                                  .predicts_ahead = true,
                                  .experts = true,
                                  .names = names,
                                  .keys = keys};
