/* ops/model/arch/granite.c: Granite 3 and 4, dense: multipliers of embeddings, residuals, scores and logits.
 */
#include "ops/model/arch.h"

static float multiplier(gr_config *c, const char *key)
{
    return (float)gr_config_number(c, key, gr_config_value(c, key), 1, 1e-6, 1e6);
}

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    gr_layer_desc d = *base;
    d.attention.scale = multiplier(c, "attention_multiplier");
    s->embed_scale = multiplier(c, "embedding_multiplier");
    s->residual_scale = multiplier(c, "residual_multiplier");
    s->logit_scale = 1 / multiplier(c, "logits_scaling");
    gr_arch_alike(c, s, &d);
}

static const char *const keys[] = {"attention_multiplier", "embedding_multiplier", "residual_multiplier",
                                   "logits_scaling", NULL};

const gr_arch gr_arch_granite = {
    .model_type = "granite", .class = "Granite", .no_groups = true, .layers = layers, .keys = keys};
