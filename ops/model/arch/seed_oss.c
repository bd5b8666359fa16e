/* ops/model/arch/seed_oss.c: Seed-OSS: biases of q, k and v, and maybe behind attention.
 *
 * Source: Hugging Face transformers, models/seed_oss.
 */
#include "ops/model/arch.h"

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    gr_layer_desc d = *base;
    d.attention.qkv_bias = gr_config_flag(c, "attention_bias", true);
    d.attention.o_bias = gr_config_flag(c, "attention_out_bias", false);
    gr_arch_alike(c, s, &d);
}

static const char *const keys[] = {"attention_bias", "attention_out_bias", NULL};

const gr_arch gr_arch_seed_oss = {.model_type = "seed_oss",
                                  .class = "SeedOss",
                                  .head_dim = 128,
                                  .kv_heads = 8,
                                  .layers = layers,
                                  .keys = keys};
