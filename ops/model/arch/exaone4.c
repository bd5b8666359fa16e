/* ops/model/arch/exaone4.c: EXAONE 4: norms behind attention and MLP alone, and of the heads of q and k.
 * Where there is a window, layers with it and layers without take turns, and those without do not rotate.
 *
 * Source: Hugging Face transformers, models/exaone4.
 */
#include "ops/model/arch.h"

static gr_layer_desc norms_behind(const gr_layer_desc *base)
{
    gr_layer_desc d = *base;
    d.norm_before = false;
    d.norm_after = true;
    d.attention.qk_norm = GR_QK_NORM_HEAD;
    return d;
}

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    uint8_t kind[GR_LAYERS_MAX];
    gr_layer_desc full = norms_behind(base), sliding = full;
    if (gr_config_has(c, "sliding_window") && !gr_config_value(c, "sliding_window")) {
        gr_arch_alike(c, s, &full);
        return;
    }
    const uint32_t every = gr_config_size(c, "sliding_window_pattern", 4, GR_LAYERS_MAX);
    sliding.attention.window = gr_arch_window(c, 4096);
    full.attention.rope = (gr_rope_desc){.type = GR_ROPE_NONE};
    for (uint32_t l = 0; l < s->layers && every; l++)
        kind[l] = (l + 1) % every ? GR_ARCH_SLIDING : GR_ARCH_FULL;
    if (every) gr_arch_in_turn(c, s, kind, &sliding, &full);
}

static const gr_arch_name names[] = {{GR_T_MIXER_AFTER, 0, "post_attention_layernorm.weight"},
                                     {GR_T_MLP_AFTER, 0, "post_feedforward_layernorm.weight"},
                                     {0, 0, NULL}};

static const char *const keys[] = {"sliding_window", "sliding_window_pattern", NULL};

const gr_arch gr_arch_exaone4 = {.model_type = "exaone4",
                                 .class = "Exaone4",
                                 .kv_heads = 32,
                                 .eps = 1e-5,
                                 .layers = layers,
                                 .names = names,
                                 .keys = keys};
