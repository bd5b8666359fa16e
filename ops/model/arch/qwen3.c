/* ops/model/arch/qwen3.c: Qwen 3, dense: norms of the heads of q and k. */
#include "ops/model/arch.h"

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    static const char *const kinds[] = {"full_attention", NULL};
    uint8_t kind[GR_LAYERS_MAX];
    gr_layer_desc d = *base;
    d.attention.qk_norm = GR_QK_NORM_HEAD;
    gr_config_layer_types(c, s, kinds, kind);
    gr_arch_alike(c, s, &d);
}

const gr_arch gr_arch_qwen3 = {.model_type = "qwen3", .class = "Qwen3", .head_dim = 128, .layers = layers};
