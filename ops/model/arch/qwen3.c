/* ops/model/arch/qwen3.c: Qwen 3, dense: norms of the heads of q and k. */
#include "ops/model/arch.h"

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    gr_layer_desc d = *base;
    d.attention.qk_norm = GR_QK_NORM_HEAD;
    gr_arch_qwen_layers(c, s, &d);
}

static const char *const keys[] = {"sliding_window", "use_sliding_window", NULL};

const gr_arch gr_arch_qwen3 = {
    .model_type = "qwen3", .class = "Qwen3", .head_dim = 128, .layers = layers, .keys = keys};
