/* ops/model/arch/qwen_moe.c: Qwen 2 and 3 with experts: the dense layers of qwen3_moe are those of qwen3;
 * qwen2_moe has beside its experts one that every token goes through, with a gate. A layer has experts unless
 * `mlp_only_layers` names it or its number is no multiple of `decoder_sparse_step`.
 *
 * Source: Hugging Face transformers, models/qwen3_moe and models/qwen2_moe. router_aux_loss_coef is of a loss
 * that transformers adds where output_router_logits asks for it; a graph's losses are its own, so that it has
 * no effect here.
 */
#include "ops/model/arch.h"

/* What config.json says; the arguments are meant where it does not. */
static gr_experts_desc experts(gr_config *c, uint32_t count, uint32_t top_k, uint32_t inner)
{
    gr_experts_desc e = {.count = gr_config_size(c, "num_experts", count, GR_EXPERTS_MAX),
                         .top_k = gr_config_size(c, "num_experts_per_tok", top_k, GR_CHOICES_MAX),
                         .inner = gr_config_size(c, "moe_intermediate_size", inner, GR_INNER_MAX),
                         .normalize = gr_config_flag(c, "norm_topk_prob", false),
                         .scale = 1};
    if (e.count && e.top_k > e.count)
        gr_config_refuse(c, "num_experts_per_tok",
                         "'num_experts_per_tok' %u is more than the 'num_experts' %u", e.top_k, e.count);
    return e;
}

static bool is_named(gr_config *c, uint32_t layer)
{
    const json_t *list = gr_config_value(c, "mlp_only_layers");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == layer) return true;
    return false;
}

static void check_named(gr_config *c, const gr_model_shape *s)
{
    const json_t *list = gr_config_value(c, "mlp_only_layers");
    bool fine = !list || json_is_array(list);
    for (size_t i = 0; fine && i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        fine = json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < s->layers;
    }
    if (!fine)
        gr_config_refuse(c, "mlp_only_layers", "'mlp_only_layers' is not a list of layers from 0 to %u",
                         s->layers ? s->layers - 1 : 0);
}

static void set_layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *dense, const gr_experts_desc *e)
{
    static const char *const kinds[] = {"full_attention", NULL};
    const uint32_t step = gr_config_size(c, "decoder_sparse_step", 1, GR_LAYERS_MAX);
    uint8_t kind[GR_LAYERS_MAX];
    gr_layer_desc sparse = *dense;
    sparse.mlp = GR_MLP_EXPERTS;
    sparse.dense = (gr_dense_desc){0};
    sparse.experts = *e;
    check_named(c, s);
    gr_config_layer_types(c, s, kinds, kind);
    for (uint32_t l = 0; step && l < s->layers; l++)
        gr_arch_layer(c, s, l, (l + 1) % step || is_named(c, l) ? dense : &sparse);
}

static void qwen3(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    gr_layer_desc dense = *base;
    const gr_experts_desc e = experts(c, 128, 8, 768);
    dense.attention.qk_norm = GR_QK_NORM_HEAD;
    set_layers(c, s, &dense, &e);
}

static void qwen2(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    gr_layer_desc dense = *base;
    gr_experts_desc e = experts(c, 60, 4, 1408);
    e.shared_inner = gr_config_size(c, "shared_expert_intermediate_size", 5632, GR_INNER_MAX);
    e.shared_gate = true;
    dense.attention.qkv_bias = gr_config_flag(c, "qkv_bias", true);
    set_layers(c, s, &dense, &e);
}

#define KEYS                                                                                                \
    "num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", \
        "mlp_only_layers", "output_router_logits", "router_aux_loss_coef"

static const char *const qwen3_keys[] = {KEYS, NULL};
static const char *const qwen2_keys[] = {KEYS, "shared_expert_intermediate_size", "qkv_bias", NULL};

const gr_arch gr_arch_qwen3_moe = {
    .model_type = "qwen3_moe", .class = "Qwen3Moe", .layers = qwen3, .experts = true, .keys = qwen3_keys};
const gr_arch gr_arch_qwen2_moe = {
    .model_type = "qwen2_moe", .class = "Qwen2Moe", .layers = qwen2, .experts = true, .keys = qwen2_keys};
