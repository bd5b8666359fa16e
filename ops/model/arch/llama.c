/* ops/model/arch/llama.c: Llama 2 and 3. */
#include "ops/model/arch.h"

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    static const char *const kinds[] = {"full_attention", NULL};
    uint8_t kind[GR_LAYERS_MAX];
    gr_config_layer_types(c, s, kinds, kind);
    gr_arch_alike(c, s, base);
}

const gr_arch gr_arch_llama = {.model_type = "llama",
                               .class = "Llama",
                               .no_groups = true /* as in its first configs */,
                               .layers = layers};
