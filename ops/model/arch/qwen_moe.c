/* ops/model/arch/qwen_moe.c: Qwen 2 and 3 with experts: the dense layers of qwen3_moe are those of qwen3;
 * qwen2_moe has beside its experts one that every token goes through, with a gate. A layer has experts unless
 * `mlp_only_layers` names it or its number is no multiple of `decoder_sparse_step`.
 *
 * Source: Hugging Face transformers, models/qwen3_moe and models/qwen2_moe. router_aux_loss_coef is of a loss
 * that transformers adds where output_router_logits asks for it; a graph's losses are its own, so that it has
 * no effect here.
 */
#include "ops/model/arch.h"

gr_experts_desc gr_arch_qwen_experts(gr_config *c, const gr_experts_desc *usual)
{
    gr_experts_desc e = *usual;
    e.count = gr_config_size(c, "num_experts", usual->count, GR_EXPERTS_MAX);
    e.top_k = gr_config_size(c, "num_experts_per_tok", usual->top_k, GR_CHOICES_MAX);
    e.inner = gr_config_size(c, "moe_intermediate_size", usual->inner, GR_INNER_MAX);
    e.normalize = gr_config_flag(c, "norm_topk_prob", usual->normalize);
    e.scale = 1;
    if (usual->shared_inner)
        e.shared_inner =
            gr_config_size(c, "shared_expert_intermediate_size", usual->shared_inner, GR_INNER_MAX);
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

void gr_arch_qwen_sparse(gr_config *c, const gr_model_shape *s, bool sparse[GR_LAYERS_MAX])
{
    const uint32_t step = gr_config_size(c, "decoder_sparse_step", 1, GR_LAYERS_MAX);
    check_named(c, s);
    for (uint32_t l = 0; l < s->layers; l++) sparse[l] = step && !((l + 1) % step || is_named(c, l));
}

gr_layer_desc gr_arch_with_experts(const gr_layer_desc *dense, const gr_experts_desc *e)
{
    gr_layer_desc d = *dense;
    d.mlp = GR_MLP_EXPERTS;
    d.dense = (gr_dense_desc){0};
    d.experts = *e;
    return d;
}

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
        "mlp_only_layers", "output_router_logits", "router_aux_loss_coef"

static const char *const qwen3_keys[] = {KEYS, NULL};
static const char *const qwen2_keys[] = {KEYS, "shared_expert_intermediate_size", "qkv_bias", NULL};

const gr_arch gr_arch_qwen3_moe = {
    .model_type = "qwen3_moe", .class = "Qwen3Moe", .layers = qwen3, .experts = true, .keys = qwen3_keys};
const gr_arch gr_arch_qwen2_moe = {
    .model_type = "qwen2_moe", .class = "Qwen2Moe", .layers = qwen2, .experts = true, .keys = qwen2_keys};
