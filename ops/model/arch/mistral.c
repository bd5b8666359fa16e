/* ops/model/arch/mistral.c: Mistral, whose first models have a window of 4096, also as the text of Mistral 3,
 * and Ministral, where layers with a window and layers without may take turns. */
#include "ops/model/arch.h"

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    gr_layer_desc d = *base;
    d.attention.window = gr_arch_any_window(c, s, 4096);
    gr_arch_alike(c, s, &d);
}

static void layers_in_turn(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    uint8_t kind[GR_LAYERS_MAX];
    gr_layer_desc sliding = *base;
    sliding.attention.window = gr_arch_any_window(c, s, 4096);
    for (uint32_t l = 0; l < s->layers; l++) kind[l] = GR_ARCH_SLIDING;
    gr_arch_in_turn(c, s, kind, &sliding, base);
}

static const char *const keys[] = {"sliding_window", NULL};

const gr_arch gr_arch_mistral = {.model_type = "mistral",
                                 .class = "Mistral",
                                 .outer = "mistral3",
                                 .outer_class = "Mistral3",
                                 .layers = layers,
                                 .keys = keys};
const gr_arch gr_arch_ministral = {
    .model_type = "ministral", .class = "Ministral", .layers = layers_in_turn, .keys = keys};
