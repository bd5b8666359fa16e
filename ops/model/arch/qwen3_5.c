/* ops/model/arch/qwen3_5.c: Qwen 3.5, text, dense: layers of the gated delta rule, and every so many-th one
 * of attention with an output gate, of whose heads a part is rotated.
 */
#include "ops/model/arch.h"

enum { LINEAR, FULL };
static const char *const types[] = {"linear_attention", "full_attention", NULL};

static gr_layer_desc linear_of(gr_config *c, const gr_layer_desc *full)
{
    gr_layer_desc d = *full;
    d.mixer = GR_MIXER_DELTA;
    d.attention = (gr_attention_desc){0};
    d.delta = (gr_delta_desc){.key_heads = gr_config_size(c, "linear_num_key_heads", 16, GR_HEADS_MAX),
                              .value_heads = gr_config_size(c, "linear_num_value_heads", 32, GR_HEADS_MAX),
                              .key_dim = gr_config_size(c, "linear_key_head_dim", 128, 128),
                              .value_dim = gr_config_size(c, "linear_value_head_dim", 128, 128),
                              .conv = gr_config_size(c, "linear_conv_kernel_dim", 4, 8)};
    if (!c->bad && d.delta.value_heads % d.delta.key_heads)
        gr_config_refuse(c, "linear_num_value_heads",
                         "'linear_num_value_heads' %u is not a multiple of 'linear_num_key_heads' %u",
                         d.delta.value_heads, d.delta.key_heads);
    return d;
}

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    uint8_t kind[GR_LAYERS_MAX];
    gr_layer_desc full = *base;
    const uint32_t every = gr_config_size(c, "full_attention_interval", 4, GR_LAYERS_MAX);
    full.norm_plus_one = s->norm_plus_one = true;
    full.attention.gate = true;
    full.attention.qk_norm = GR_QK_NORM_HEAD;
    const gr_layer_desc linear = linear_of(c, &full);
    for (uint32_t l = 0; l < s->layers && every; l++) kind[l] = (l + 1) % every ? LINEAR : FULL;
    gr_config_layer_types(c, s, types, kind);
    for (uint32_t l = 0; l < s->layers && !c->bad; l++)
        gr_arch_layer(c, s, l, kind[l] == FULL ? &full : &linear);
}

static const char *const keys[] = {"full_attention_interval",
                                   "linear_conv_kernel_dim",
                                   "linear_key_head_dim",
                                   "linear_num_key_heads",
                                   "linear_num_value_heads",
                                   "linear_value_head_dim",
                                   NULL};

const gr_arch gr_arch_qwen3_5_text = {.model_type = "qwen3_5_text",
                                      .class = "Qwen3_5",
                                      .head_dim = 256,
                                      .partial = 0.25,
                                      .grids = true,
                                      .layers = layers,
                                      .keys = keys};
