/* ops/model/arch/mistral.c: Mistral, whose first models have a window of 4096. */
#include "ops/model/arch.h"

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    static const char *const kinds[] = {"full_attention", NULL};
    uint8_t kind[GR_LAYERS_MAX];
    gr_config_layer_types(c, s, kinds, kind);
    const bool given = gr_config_has(c, "sliding_window");
    const uint32_t window = given && !gr_config_value(c, "sliding_window")
                                ? 0
                                : gr_config_size(c, "sliding_window", 4096, GR_POSITIONS_MAX);
    if (window && s->max_positions && window < s->max_positions)
        gr_config_refuse(c, given ? "sliding_window" : "model_type",
                         "a sliding window of %u%s, less than the %u of 'max_position_embeddings', is not "
                         "supported; null means none",
                         window, given ? "" : " (meant where 'sliding_window' is missing)", s->max_positions);
    gr_arch_alike(c, s, base);
}

const gr_arch gr_arch_mistral = {.model_type = "mistral", .class = "Mistral", .layers = layers};
