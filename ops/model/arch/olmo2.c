/* ops/model/arch/olmo2.c: OLMo 2 and 3: norms behind attention and MLP alone, and over all heads of q and of
 * k. OLMo 3 has a window in three layers of four, and stretched positions in the others alone. */
#include "ops/model/arch.h"

static gr_layer_desc norms_behind(const gr_layer_desc *base)
{
    gr_layer_desc d = *base;
    d.norm_before = false;
    d.norm_after = true;
    d.attention.qk_norm = GR_QK_NORM_WHOLE;
    return d;
}

static void layers_2(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    const gr_layer_desc d = norms_behind(base);
    gr_arch_alike(c, s, &d);
}

static void layers_3(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    uint8_t kind[GR_LAYERS_MAX];
    gr_layer_desc full = norms_behind(base), sliding = full;
    sliding.attention.window = gr_arch_window(c, 4096);
    gr_config_rope_of(c, "full_attention", "rope_theta", true, &full.attention.rope, s->max_positions);
    gr_config_rope_of(c, "sliding_attention", "rope_theta", false, &sliding.attention.rope, s->max_positions);
    for (uint32_t l = 0; l < s->layers; l++) kind[l] = (l + 1) % 4 ? GR_ARCH_SLIDING : GR_ARCH_FULL;
    gr_arch_in_turn(c, s, kind, &sliding, &full);
}

static const gr_arch_name names[] = {{GR_T_MIXER_AFTER, 0, "post_attention_layernorm.weight"},
                                     {GR_T_MLP_AFTER, 0, "post_feedforward_layernorm.weight"},
                                     {0, 0, NULL}};

static const char *const keys_3[] = {"sliding_window", NULL};

const gr_arch gr_arch_olmo2 = {.model_type = "olmo2",
                               .class = "Olmo2",
                               .no_groups = true,
                               .eps = 1e-5,
                               .layers = layers_2,
                               .names = names};

const gr_arch gr_arch_olmo3 = {.model_type = "olmo3",
                               .class = "Olmo3",
                               .no_groups = true,
                               .eps = 1e-5,
                               .theta = 5e5,
                               .ropes = true,
                               .layers = layers_3,
                               .names = names,
                               .keys = keys_3};
