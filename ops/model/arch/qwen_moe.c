/* ops/model/arch/qwen_moe.c: Qwen 2 and 3 with experts: the dense layers of qwen3_moe are those of qwen3;
 * qwen2_moe has beside its experts one that every token goes through, with a gate. A layer has experts unless
 * `mlp_only_layers` names it or its number is no multiple of `decoder_sparse_step`.
 *
 * Source: Hugging Face transformers, models/qwen3_moe and models/qwen2_moe. router_aux_loss_coef is of a loss
 * that transformers adds where output_router_logits asks for it; a graph's losses are its own, so that it has
 * no effect here. sliding_window counts with use_sliding_window alone, which is refused.
 */
#include "ops/model/arch.h"

static void set_layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *dense, const gr_experts_desc *e)
{
    static const char *const kinds[] = {"full_attention", NULL};
    uint8_t kind[GR_LAYERS_MAX];
    bool sparse[GR_LAYERS_MAX];
    const gr_layer_desc with = gr_arch_with_experts(dense, e);
    gr_arch_qwen_sparse(c, s, sparse);
    gr_config_layer_types(c, s, kinds, kind);
    for (uint32_t l = 0; l < s->layers; l++) gr_arch_layer(c, s, l, sparse[l] ? &with : dense);
}

static void qwen3(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    gr_layer_desc dense = *base;
    const gr_experts_desc e =
        gr_arch_qwen_experts(c, &(gr_experts_desc){.count = 128, .top_k = 8, .inner = 768});
    dense.attention.qk_norm = GR_QK_NORM_HEAD;
    set_layers(c, s, &dense, &e);
}

static void qwen2(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    gr_layer_desc dense = *base;
    const gr_experts_desc e = gr_arch_qwen_experts(
        c, &(gr_experts_desc){
               .count = 60, .top_k = 4, .inner = 1408, .shared_inner = 5632, .shared_gate = true});
    dense.attention.qkv_bias = gr_config_flag(c, "qkv_bias", true);
    set_layers(c, s, &dense, &e);
}

#define KEYS                                                                                                \
    "num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", \
        "mlp_only_layers", "output_router_logits", "router_aux_loss_coef", "sliding_window"

static const char *const qwen3_keys[] = {KEYS, NULL};
static const char *const qwen2_keys[] = {KEYS, "shared_expert_intermediate_size", "qkv_bias", NULL};

const gr_arch gr_arch_qwen3_moe = {
    .model_type = "qwen3_moe", .class = "Qwen3Moe", .layers = qwen3, .experts = true, .keys = qwen3_keys};
const gr_arch gr_arch_qwen2_moe = {
    .model_type = "qwen2_moe", .class = "Qwen2Moe", .layers = qwen2, .experts = true, .keys = qwen2_keys};
