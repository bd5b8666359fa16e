/* ops/model/arch/mistral.c: Mistral, whose first models have a window of 4096, also as the text of Mistral 3,
 * and Ministral, where layers with a window and layers without may take turns; and Ministral 3, whose
 * positions are stretched by YaRN and whose queries are scaled by 1 + beta log(1 + floor(position / N)) from
 * position N on. Up to there the scale is 1: so far it is taken. */
#include "ops/model/arch.h"

#include <math.h>

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

/* transformers has values of its own where nothing is said; published configs say all of it. */
static void check_queries(gr_config *c, gr_model_shape *s, const gr_rope_desc *r)
{
    const char *key = gr_config_value(c, "rope_scaling") ? "rope_scaling" : "rope_parameters";
    const json_t *beta = json_object_get(gr_config_value(c, key), "llama_4_scaling_beta");
    if (r->type != GR_ROPE_YARN || !json_is_number(beta))
        gr_config_refuse(c, key, "positions of '%s' are those of yarn, with a 'llama_4_scaling_beta'",
                         c->family);
    else if (json_number_value(beta) != 0 && r->original_positions < s->max_positions) {
        gr_diag_warn(c->d, gr_json_at(&c->j, key),
                     "queries from position %u on are scaled ('llama_4_scaling_beta'), which is not built: "
                     "of %u positions there are these",
                     r->original_positions, s->max_positions);
        s->max_positions = r->original_positions;
    }
}

static void layers_scaled(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    gr_layer_desc d = *base;
    if (gr_config_has(c, "head_dim") && !gr_config_value(c, "head_dim"))
        gr_config_refuse(c, "head_dim", "'head_dim' is null; say the number");
    check_queries(c, s, &base->attention.rope);
    d.attention.window = gr_arch_any_window(c, s, 0);
    gr_arch_alike(c, s, &d);
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
const gr_arch gr_arch_ministral3 = {.model_type = "ministral3",
                                    .class = "Ministral3",
                                    .outer = "mistral3",
                                    .outer_class = "Mistral3",
                                    .head_dim = 128,
                                    .kv_heads = 8,
                                    .eps = 1e-5,
                                    .layers = layers_scaled,
                                    .keys = keys,
                                    .scales_queries = true};
