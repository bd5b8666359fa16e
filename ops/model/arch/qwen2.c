/* ops/model/arch/qwen2.c: Qwen 2 and 2.5: biases of q, k and v. */
#include "ops/model/arch.h"

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    static const char *const kinds[] = {"full_attention", NULL};
    uint8_t kind[GR_LAYERS_MAX];
    gr_layer_desc d = *base;
    d.attention.qkv_bias = true;
    gr_config_layer_types(c, s, kinds, kind);
    gr_arch_alike(c, s, &d);
}

static const char *const keys[] = {"attention_bias", NULL}; /* it has its biases whatever that says */

const gr_arch gr_arch_qwen2 = {.model_type = "qwen2", .class = "Qwen2", .layers = layers, .keys = keys};
