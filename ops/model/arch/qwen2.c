/* ops/model/arch/qwen2.c: Qwen 2 and 2.5: biases of q, k and v. */
#include "ops/model/arch.h"

void gr_arch_qwen_layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *d)
{
    uint8_t kind[GR_LAYERS_MAX];
    const bool none = gr_config_has(c, "sliding_window") && !gr_config_value(c, "sliding_window");
    if (!gr_config_flag(c, "use_sliding_window", false) || none) {
        gr_arch_alike(c, s, d);
        return;
    }
    gr_layer_desc sliding = *d;
    const uint32_t first = gr_config_count(c, "max_window_layers", 28, GR_LAYERS_MAX);
    sliding.attention.window = gr_config_size(c, "sliding_window", 4096, GR_POSITIONS_MAX);
    for (uint32_t l = 0; l < s->layers; l++) kind[l] = l < first ? GR_ARCH_FULL : GR_ARCH_SLIDING;
    gr_arch_in_turn(c, s, kind, &sliding, d);
}

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    gr_layer_desc d = *base;
    d.attention.qkv_bias = true;
    gr_arch_qwen_layers(c, s, &d);
}

/* It has its biases whatever attention_bias says. */
static const char *const keys[] = {"attention_bias", "sliding_window", "use_sliding_window", NULL};

const gr_arch gr_arch_qwen2 = {.model_type = "qwen2", .class = "Qwen2", .layers = layers, .keys = keys};
