/* ops/model/arch/granite.c: Granite 3 and 4, dense, and Granite 3 with experts: multipliers of embeddings,
 * residuals, scores and logits. Experts are chosen by their logits, and weighed among those that are chosen.
 *
 * Source: Hugging Face transformers, models/granite and models/granitemoe. router_aux_loss_coef: as in
 * qwen_moe.c.
 */
#include "ops/model/arch.h"

static float multiplier(gr_config *c, const char *key)
{
    return (float)gr_config_number(c, key, gr_config_value(c, key), 1, 1e-6, 1e6);
}

static gr_layer_desc multiplied(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    gr_layer_desc d = *base;
    d.attention.scale = multiplier(c, "attention_multiplier");
    s->embed_scale = multiplier(c, "embedding_multiplier");
    s->residual_scale = multiplier(c, "residual_multiplier");
    s->logit_scale = 1 / multiplier(c, "logits_scaling");
    return d;
}

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    const gr_layer_desc d = multiplied(c, s, base);
    gr_arch_alike(c, s, &d);
}

static void layers_moe(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    const gr_layer_desc dense = multiplied(c, s, base);
    const gr_experts_desc e = {.count = gr_config_size(c, "num_local_experts", 8, GR_EXPERTS_MAX),
                               .top_k = gr_config_size(c, "num_experts_per_tok", 2, GR_CHOICES_MAX),
                               .inner = base->dense.inner,
                               .softmax_after = true,
                               .scale = 1};
    const gr_layer_desc d = gr_arch_with_experts(&dense, &e);
    gr_arch_check_choices(c, "num_local_experts", &e);
    gr_arch_alike(c, s, &d);
}

#define KEYS "attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"
static const char *const keys[] = {KEYS, NULL};
static const char *const keys_moe[] = {
    KEYS, "num_experts_per_tok", "num_local_experts", "output_router_logits", "router_aux_loss_coef", NULL};

const gr_arch gr_arch_granite = {
    .model_type = "granite", .class = "Granite", .no_groups = true, .layers = layers, .keys = keys};

static const gr_arch_name names_moe[] = {
    {GR_T_ROUTER, 0, "block_sparse_moe.router.layer.weight"},
    {GR_T_EXPERTS_GATE_UP, GR_ARCH_FUSED, "block_sparse_moe.input_linear.weight"},
    {GR_T_EXPERTS_DOWN, GR_ARCH_FUSED, "block_sparse_moe.output_linear.weight"},
    {0, 0, NULL}};

const gr_arch gr_arch_granitemoe = {.model_type = "granitemoe",
                                    .class = "GraniteMoe",
                                    .no_groups = true,
                                    .layers = layers_moe,
                                    .experts = true,
                                    .experts_fused = true,
                                    .names = names_moe,
                                    .keys = keys_moe};
