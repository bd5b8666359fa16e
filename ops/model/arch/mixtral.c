/* ops/model/arch/mixtral.c: Mixtral: Mistral with experts in every layer, whose weights of a token add up
 * to 1.
 *
 * Source: Hugging Face transformers, models/mixtral. router_aux_loss_coef: as in qwen_moe.c.
 */
#include "ops/model/arch.h"

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    static const char *const off[] = {"router_jitter_noise", NULL};
    const json_t *jitter = gr_config_value(c, off[0]);
    const gr_experts_desc e = {.count = gr_config_size(c, "num_local_experts", 8, GR_EXPERTS_MAX),
                               .top_k = gr_config_size(c, "num_experts_per_tok", 2, GR_CHOICES_MAX),
                               .inner = base->dense.inner,
                               .normalize = true,
                               .scale = 1};
    gr_layer_desc d = gr_arch_with_experts(base, &e);
    d.attention.window = gr_arch_any_window(c, s, 0);
    if (!json_is_number(jitter) || json_number_value(jitter) != 0) gr_config_off(c, off);
    gr_arch_check_choices(c, "num_local_experts", &e);
    gr_arch_alike(c, s, &d);
}

static const gr_arch_name names[] = {{GR_T_ROUTER, 0, "block_sparse_moe.gate.weight"},
                                     {GR_T_EXPERTS_GATE_UP, 0, "block_sparse_moe.experts.#.w1.weight"},
                                     {GR_T_EXPERTS_GATE_UP, 1, "block_sparse_moe.experts.#.w3.weight"},
                                     {GR_T_EXPERTS_DOWN, 0, "block_sparse_moe.experts.#.w2.weight"},
                                     {0, 0, NULL}};

static const char *const keys[] = {"num_experts_per_tok",
                                   "num_local_experts",
                                   "output_router_logits",
                                   "router_aux_loss_coef",
                                   "router_jitter_noise",
                                   "sliding_window",
                                   NULL};

const gr_arch gr_arch_mixtral = {.model_type = "mixtral",
                                 .class = "Mixtral",
                                 .kv_heads = 8,
                                 .eps = 1e-5,
                                 .theta = 1e6,
                                 .layers = layers,
                                 .experts = true,
                                 .names = names,
                                 .keys = keys};
