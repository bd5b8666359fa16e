/* ops/model/arch/glm4_moe.c: GLM 4.5 and 4.6: attention with half of each head rotated; behind
 * `first_k_dense_replace` dense layers experts whose router is a sigmoid with a bias that selects, and beside
 * them one that every token goes through. Layers behind the last predict a further token.
 *
 * Source: Hugging Face transformers, models/glm4_moe.
 */
#include "ops/model/arch.h"

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    const gr_experts_desc unsaid = {.count = 128,
                                    .top_k = 8,
                                    .inner = 1408,
                                    .normalize = true,
                                    .groups = 1,
                                    .top_groups = 1,
                                    .scale = 1,
                                    .shared_inner = 1408};
    const uint32_t first = gr_config_count(c, "first_k_dense_replace", 1, GR_LAYERS_MAX);
    gr_layer_desc dense = *base;
    dense.attention.qkv_bias = gr_config_flag(c, "attention_bias", false);
    dense.attention.qk_norm = gr_config_flag(c, "use_qk_norm", false) ? GR_QK_NORM_HEAD : GR_QK_NORM_NONE;
    gr_layer_desc sparse = dense;
    sparse.mlp = GR_MLP_EXPERTS;
    sparse.dense = (gr_dense_desc){0};
    sparse.experts = gr_arch_sigmoid_experts(c, &unsaid);
    for (uint32_t l = 0; l < s->layers; l++) gr_arch_layer(c, s, l, l < first ? &dense : &sparse);
    s->ahead = sparse;
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
                                  .ahead = &gr_arch_behind_last,
                                  .experts = true,
                                  .names = names,
                                  .keys = keys};
