/* ops/model/arch/olmoe.c: OLMoE: norms over all heads of q and of k, and experts in every layer.
 *
 * Source: Hugging Face transformers, models/olmoe. router_aux_loss_coef: as in qwen_moe.c.
 */
#include "ops/model/arch.h"

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    const gr_experts_desc e = {.count = gr_config_size(c, "num_experts", 64, GR_EXPERTS_MAX),
                               .top_k = gr_config_size(c, "num_experts_per_tok", 8, GR_CHOICES_MAX),
                               .inner = base->dense.inner,
                               .normalize = gr_config_flag(c, "norm_topk_prob", false),
                               .scale = 1};
    gr_layer_desc d = gr_arch_with_experts(base, &e);
    d.attention.qk_norm = GR_QK_NORM_WHOLE;
    gr_arch_check_choices(c, "num_experts", &e);
    gr_arch_alike(c, s, &d);
}

static const char *const keys[] = {"norm_topk_prob",       "num_experts",          "num_experts_per_tok",
                                   "output_router_logits", "router_aux_loss_coef", NULL};

const gr_arch gr_arch_olmoe = {.model_type = "olmoe",
                               .class = "Olmoe",
                               .no_groups = true,
                               .eps = 1e-5,
                               .layers = layers,
                               .experts = true,
                               .keys = keys};
