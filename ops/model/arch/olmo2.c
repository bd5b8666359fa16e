/* ops/model/arch/olmo2.c: OLMo 2: norms behind attention and MLP alone, and over all heads of q and of k. */
#include "ops/model/arch.h"

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    gr_layer_desc d = *base;
    d.norm_before = false;
    d.norm_after = true;
    d.attention.qk_norm = GR_QK_NORM_WHOLE;
    gr_arch_alike(c, s, &d);
}

static const gr_arch_name names[] = {{GR_T_MIXER_AFTER, 0, "post_attention_layernorm.weight"},
                                     {GR_T_MLP_AFTER, 0, "post_feedforward_layernorm.weight"},
                                     {0, 0, NULL}};

const gr_arch gr_arch_olmo2 = {.model_type = "olmo2",
                               .class = "Olmo2",
                               .no_groups = true,
                               .eps = 1e-5,
                               .layers = layers,
                               .names = names};
