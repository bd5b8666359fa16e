/* ops/model/arch/phi3.c: Phi 3 and 4: one tensor for q, k and v, one for gate and up; a part of each head may
 * be rotated. Of positions transformers takes the default and longrope alone.
 *
 * Source: Hugging Face transformers, models/phi3.
 */
#include "ops/model/arch.h"

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    gr_layer_desc d = *base;
    d.attention.window = gr_arch_any_window(c, s, 0);
    if (d.attention.rope.type != GR_ROPE_DEFAULT && d.attention.rope.type != GR_ROPE_LONG)
        gr_config_refuse(c, gr_config_value(c, "rope_scaling") ? "rope_scaling" : "rope_parameters",
                         "positions of '%s' are stretched by longrope alone", c->family);
    gr_arch_alike(c, s, &d);
}

static const gr_arch_name names[] = {
    {GR_T_QKV, 0, "self_attn.qkv_proj.weight"},   {GR_T_QKV, 1, "self_attn.qkv_proj.weight"},
    {GR_T_QKV, 2, "self_attn.qkv_proj.weight"},   {GR_T_GATE_UP, 0, "mlp.gate_up_proj.weight"},
    {GR_T_GATE_UP, 1, "mlp.gate_up_proj.weight"}, {0, 0, NULL}};

static const char *const keys[] = {"sliding_window", NULL};

const gr_arch gr_arch_phi3 = {.model_type = "phi3",
                              .class = "Phi3",
                              .no_groups = true,
                              .eps = 1e-5,
                              .partial = 1,
                              .original_positions = 4096,
                              .layers = layers,
                              .names = names,
                              .keys = keys};
