/* ops/model/arch/gemma.c: Gemma: norms of 1 + weight, GELU, embeddings times sqrt(H). Gemma 2 and 3, text:
 * layers with a window and layers without in turn, norms of 1 + weight before and behind, GELU, embeddings
 * times sqrt(H); Gemma 2 caps scores and logits, Gemma 3 has norms of the heads of q and k, and positions of
 * their own for layers with a window.
 */
#include "ops/model/arch.h"

#include <math.h>

/* A cap of scores or of logits; 0: none. */
static float read_cap(gr_config *c, const char *key, double fallback)
{
    const bool none = gr_config_has(c, key) && !gr_config_value(c, key);
    return none ? 0 : (float)gr_config_number(c, key, gr_config_value(c, key), fallback, 0, 1e6);
}

static gr_layer_desc read_layer(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    gr_layer_desc d = *base;
    d.norm_after = d.norm_plus_one = s->norm_plus_one = true;
    d.dense.act = GR_ACT_GELU_TANH;
    d.attention.scale = 1 / sqrtf((float)gr_config_size(c, "query_pre_attn_scalar", 256, GR_HIDDEN_MAX));
    s->embed_scale = sqrtf((float)s->hidden);
    gr_config_off(c, (const char *const[]){"use_bidirectional_attention", NULL});
    return d;
}

/* The first one: norms before alone. */
static void layers_1(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    gr_layer_desc d = *base;
    d.norm_plus_one = s->norm_plus_one = true;
    d.dense.act = GR_ACT_GELU_TANH;
    s->embed_scale = sqrtf((float)s->hidden);
    gr_config_off(c, (const char *const[]){"use_bidirectional_attention", NULL});
    gr_arch_alike(c, s, &d);
}

/* Where layer_types does not say, every so many-th layer sees everything. */
static void set_layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *sliding,
                       const gr_layer_desc *full, uint32_t every)
{
    uint8_t kind[GR_LAYERS_MAX];
    if (!every) return; /* refused */
    for (uint32_t l = 0; l < s->layers; l++) kind[l] = (l + 1) % every ? GR_ARCH_SLIDING : GR_ARCH_FULL;
    gr_arch_in_turn(c, s, kind, sliding, full);
}

static void layers_2(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    gr_layer_desc full = read_layer(c, s, base);
    full.attention.softcap = read_cap(c, "attn_logit_softcapping", 50);
    s->logit_softcap = read_cap(c, "final_logit_softcapping", 30);
    gr_layer_desc sliding = full;
    sliding.attention.window = gr_arch_window(c, 4096);
    set_layers(c, s, &sliding, &full, 2);
}

static void layers_3(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    gr_layer_desc full = read_layer(c, s, base);
    full.attention.qk_norm = GR_QK_NORM_HEAD;
    s->logit_softcap = read_cap(c, "final_logit_softcapping", 0);
    gr_layer_desc sliding = full;
    sliding.attention.window = gr_arch_window(c, 4096);
    full.attention.rope.theta = 1e6;
    gr_config_rope_of(c, "full_attention", "rope_theta", true, &full.attention.rope, s->max_positions);
    gr_config_rope_of(c, "sliding_attention", "rope_local_base_freq", false, &sliding.attention.rope,
                      s->max_positions);
    set_layers(c, s, &sliding, &full, gr_config_size(c, "sliding_window_pattern", 6, GR_LAYERS_MAX));
}

static const gr_arch_name names[] = {{GR_T_MIXER_AFTER, 0, "post_attention_layernorm.weight"},
                                     {GR_T_MLP_NORM, 0, "pre_feedforward_layernorm.weight"},
                                     {GR_T_MLP_AFTER, 0, "post_feedforward_layernorm.weight"},
                                     {0, 0, NULL}};
static const char *const acts[] = {"gelu_pytorch_tanh", NULL};
static const char *const keys_2[] = {"attn_logit_softcapping",      "final_logit_softcapping",
                                     "query_pre_attn_scalar",       "sliding_window",
                                     "use_bidirectional_attention", NULL};
/* Its attention has no cap: one is refused, though transformers passes over it. */
static const char *const keys_3[] = {"final_logit_softcapping",
                                     "query_pre_attn_scalar",
                                     "rope_local_base_freq",
                                     "sliding_window",
                                     "sliding_window_pattern",
                                     "use_bidirectional_attention",
                                     NULL};

/* Its first configs say "gelu" and mean the other one, as transformers does. */
static const char *const acts_1[] = {"gelu_pytorch_tanh", "gelu", NULL};
static const char *const keys_1[] = {"use_bidirectional_attention", NULL};

const gr_arch gr_arch_gemma = {.model_type = "gemma",
                               .class = "Gemma",
                               .head_dim = 256,
                               .kv_heads = 16,
                               .tied = true,
                               .layers = layers_1,
                               .keys = keys_1,
                               .acts = acts_1};

const gr_arch gr_arch_gemma2 = {.model_type = "gemma2",
                                .class = "Gemma2",
                                .head_dim = 256,
                                .tied = true,
                                .layers = layers_2,
                                .names = names,
                                .keys = keys_2,
                                .acts = acts};

const gr_arch gr_arch_gemma3_text = {.model_type = "gemma3_text",
                                     .class = "Gemma3",
                                     .head_class = "Gemma3Text",
                                     .outer = "gemma3",
                                     .outer_class = "Gemma3",
                                     .sizes = {262208, 2304, 9216, 26, 8, 131072},
                                     .kv_heads = 4,
                                     .head_dim = 256,
                                     .tied = true,
                                     .ropes = true,
                                     .layers = layers_3,
                                     .names = names,
                                     .keys = keys_3,
                                     .acts = acts};
