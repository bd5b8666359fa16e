/* ops/model/arch/smollm3.c: SmolLM 3: every fourth layer has no rotary positions. */
#include "ops/model/arch.h"

/* Whether layer l rotates: no_rope_layers has a 1 for those that do. */
static bool rotates(gr_config *c, uint32_t l, uint32_t every)
{
    const json_t *list = gr_config_value(c, "no_rope_layers"), *v = json_array_get(list, l);
    const json_int_t one = json_integer_value(v);
    if (!list) return (l + 1) % every != 0;
    if (!json_is_integer(v) || (one != 0 && one != 1))
        gr_config_refuse(c, "no_rope_layers", "'no_rope_layers' does not have a 0 or 1 for layer %u", l);
    return one;
}

static void check_length(gr_config *c, const gr_model_shape *s)
{
    const json_t *list = gr_config_value(c, "no_rope_layers");
    if (json_array_size(list) > s->layers)
        gr_config_refuse(c, "no_rope_layers",
                         "'no_rope_layers' has %zu entries, but 'num_hidden_layers' is %u",
                         json_array_size(list), s->layers);
}

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    static const char *const kinds[] = {"full_attention", NULL};
    uint8_t kind[GR_LAYERS_MAX];
    gr_layer_desc without = *base;
    without.attention.rope = (gr_rope_desc){.type = GR_ROPE_NONE};
    gr_config_layer_types(c, s, kinds, kind);
    check_length(c, s);
    const uint32_t every = gr_config_size(c, "no_rope_layer_interval", 4, GR_LAYERS_MAX);
    for (uint32_t l = 0; l < s->layers && !c->bad; l++)
        gr_arch_layer(c, s, l, rotates(c, l, every) ? base : &without);
}

/* A window counts with use_sliding_window alone, which is refused. */
static const char *const keys[] = {"no_rope_layers", "no_rope_layer_interval", "sliding_window", NULL};

const gr_arch gr_arch_smollm3 = {.model_type = "smollm3",
                                 .class = "SmolLM3",
                                 .kv_heads = 4,
                                 .tied = true,
                                 .theta = 2e6,
                                 .layers = layers,
                                 .keys = keys};
