/* ops/model/arch/mistral.c: Mistral, whose first models have a window of 4096, and Ministral, where layers
 * with a window and layers without may take turns. */
#include "ops/model/arch.h"

/* One that reaches over all positions is none. */
static uint32_t read_window(gr_config *c, const gr_model_shape *s)
{
    const bool none = gr_config_has(c, "sliding_window") && !gr_config_value(c, "sliding_window");
    const uint32_t window = none ? 0 : gr_config_size(c, "sliding_window", 4096, GR_POSITIONS_MAX);
    return window < s->max_positions ? window : 0;
}

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    gr_layer_desc d = *base;
    d.attention.window = read_window(c, s);
    gr_arch_alike(c, s, &d);
}

static void layers_in_turn(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    uint8_t kind[GR_LAYERS_MAX];
    gr_layer_desc sliding = *base;
    sliding.attention.window = read_window(c, s);
    for (uint32_t l = 0; l < s->layers; l++) kind[l] = GR_ARCH_SLIDING;
    gr_arch_in_turn(c, s, kind, &sliding, base);
}

static const char *const keys[] = {"sliding_window", NULL};

const gr_arch gr_arch_mistral = {.model_type = "mistral", .class = "Mistral", .layers = layers, .keys = keys};
const gr_arch gr_arch_ministral = {
    .model_type = "ministral", .class = "Ministral", .layers = layers_in_turn, .keys = keys};
