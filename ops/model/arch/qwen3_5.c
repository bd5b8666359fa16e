/* ops/model/arch/qwen3_5.c: Qwen 3.5, text, dense and with experts, and Qwen 3 Next, which has experts:
 * layers of the gated delta rule, and every so many-th one of attention with an output gate, of whose heads a
 * part is rotated. A layer that predicts a further token is of the latter kind. Published configs of Qwen 3.5
 * are of models of text and images, with this one in text_config.
 *
 * Source: Hugging Face transformers, models/qwen3_5, qwen3_5_moe and qwen3_next.
 */
#include "ops/model/arch.h"

enum { LINEAR, FULL };
static const char *const types[] = {"linear_attention", "full_attention", NULL};

static gr_layer_desc linear_of(gr_config *c, const gr_layer_desc *full)
{
    gr_layer_desc d = *full;
    d.mixer = GR_MIXER_DELTA;
    d.attention = (gr_attention_desc){0};
    d.delta = (gr_delta_desc){.key_heads = gr_config_size(c, "linear_num_key_heads", 16, GR_HEADS_MAX),
                              .value_heads = gr_config_size(c, "linear_num_value_heads", 32, GR_HEADS_MAX),
                              .key_dim = gr_config_size(c, "linear_key_head_dim", 128, 128),
                              .value_dim = gr_config_size(c, "linear_value_head_dim", 128, 128),
                              .conv = gr_config_size(c, "linear_conv_kernel_dim", 4, 8)};
    if (!c->bad && d.delta.value_heads % d.delta.key_heads)
        gr_config_refuse(c, "linear_num_value_heads",
                         "'linear_num_value_heads' %u is not a multiple of 'linear_num_key_heads' %u",
                         d.delta.value_heads, d.delta.key_heads);
    return d;
}

/* Both kinds of layers with a dense MLP; false: refused. */
static bool read_kinds(gr_config *c, gr_model_shape *s, const gr_layer_desc *base, gr_layer_desc out[2],
                       uint8_t kind[GR_LAYERS_MAX])
{
    const uint32_t every = gr_config_size(c, "full_attention_interval", 4, GR_LAYERS_MAX);
    if (!gr_config_flag(c, "attn_output_gate", true))
        gr_config_refuse(c, "attn_output_gate",
                         "'attn_output_gate' of false is not supported: '%s' has the gate", c->family);
    out[FULL] = *base;
    out[FULL].norm_plus_one = s->norm_plus_one = true;
    out[FULL].attention.gate = true;
    out[FULL].attention.qk_norm = GR_QK_NORM_HEAD;
    out[LINEAR] = linear_of(c, &out[FULL]);
    for (uint32_t l = 0; l < s->layers && every; l++) kind[l] = (l + 1) % every ? LINEAR : FULL;
    gr_config_layer_types(c, s, types, kind);
    return !c->bad;
}

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    uint8_t kind[GR_LAYERS_MAX];
    gr_layer_desc of[2];
    if (!read_kinds(c, s, base, of, kind)) return;
    for (uint32_t l = 0; l < s->layers; l++) gr_arch_layer(c, s, l, &of[kind[l]]);
    s->ahead = of[FULL];
}

/* sparse: which layers have experts. */
static void with_experts(gr_config *c, gr_model_shape *s, const gr_layer_desc of[2],
                         const uint8_t kind[GR_LAYERS_MAX], const bool *sparse, const gr_experts_desc *e)
{
    const gr_layer_desc with[2] = {gr_arch_with_experts(&of[0], e), gr_arch_with_experts(&of[1], e)};
    for (uint32_t l = 0; l < s->layers; l++)
        gr_arch_layer(c, s, l, sparse[l] ? &with[kind[l]] : &of[kind[l]]);
    s->ahead = with[FULL];
}

static void layers_moe(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    uint8_t kind[GR_LAYERS_MAX];
    bool sparse[GR_LAYERS_MAX];
    gr_layer_desc of[2];
    const gr_experts_desc e = gr_arch_qwen_experts(c, &(gr_experts_desc){.count = 256,
                                                                         .top_k = 8,
                                                                         .inner = 512,
                                                                         .normalize = true,
                                                                         .shared_inner = 512,
                                                                         .shared_gate = true});
    if (!e.normalize)
        gr_config_refuse(c, "norm_topk_prob", "'norm_topk_prob' must be true for '%s'", c->family);
    for (uint32_t l = 0; l < s->layers; l++) sparse[l] = true;
    if (read_kinds(c, s, base, of, kind)) with_experts(c, s, of, kind, sparse, &e);
}

static void layers_next(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    uint8_t kind[GR_LAYERS_MAX];
    bool sparse[GR_LAYERS_MAX];
    gr_layer_desc of[2];
    const gr_experts_desc e = gr_arch_qwen_experts(c, &(gr_experts_desc){.count = 512,
                                                                         .top_k = 10,
                                                                         .inner = 512,
                                                                         .normalize = true,
                                                                         .shared_inner = 512,
                                                                         .shared_gate = true});
    gr_arch_qwen_sparse(c, s, sparse);
    if (!read_kinds(c, s, base, of, kind)) return;
    of[LINEAR].delta.by_head = true;
    with_experts(c, s, of, kind, sparse, &e);
}

#define KEYS                                                                                                \
    "attn_output_gate", "full_attention_interval", "linear_conv_kernel_dim", "linear_key_head_dim",         \
        "linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim", "mtp_num_hidden_layers", \
        "mtp_use_dedicated_embeddings", "mamba_ssm_dtype"
#define EXPERTS                                                                      \
    "num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", \
        "shared_expert_intermediate_size", "output_router_logits", "router_aux_loss_coef"

/* Of a dense model mlp_only_layers say nothing. */
static const char *const keys[] = {KEYS, "mlp_only_layers", NULL};
static const char *const keys_moe[] = {KEYS, EXPERTS, NULL};
static const char *const keys_next[] = {KEYS, EXPERTS, "decoder_sparse_step", "mlp_only_layers", NULL};

static const gr_arch_name names_ahead[] = {{GR_T_AHEAD_EMBED_NORM, 0, "mtp.pre_fc_norm_embedding.weight"},
                                           {GR_T_AHEAD_HIDDEN_NORM, 0, "mtp.pre_fc_norm_hidden.weight"},
                                           {GR_T_AHEAD_IN, 0, "mtp.fc.weight"},
                                           {GR_T_NORM, 0, "mtp.norm.weight"},
                                           {0, 0, NULL}};
static const gr_arch_ahead ahead = {
    .key = "mtp_num_hidden_layers", .normed = true, .layer = "mtp.layers.0.", .names = names_ahead};
/* Published configs do not say that there is one. */
static const gr_arch_ahead ahead_next = {.key = "mtp_num_hidden_layers",
                                         .unsaid = 1,
                                         .normed = true,
                                         .layer = "mtp.layers.0.",
                                         .names = names_ahead};

const gr_arch gr_arch_qwen3_5_text = {.model_type = "qwen3_5_text",
                                      .class = "Qwen3_5",
                                      .outer = "qwen3_5",
                                      .outer_class = "Qwen3_5",
                                      .head_dim = 256,
                                      .partial = 0.25,
                                      .grids = true,
                                      .layers = layers,
                                      .ahead = &ahead,
                                      .keys = keys};

const gr_arch gr_arch_qwen3_5_moe_text = {.model_type = "qwen3_5_moe_text",
                                          .class = "Qwen3_5Moe",
                                          .outer = "qwen3_5_moe",
                                          .outer_class = "Qwen3_5Moe",
                                          .sizes = {.inner = 512}, /* no layer is dense */
                                          .head_dim = 256,
                                          .partial = 0.25,
                                          .grids = true,
                                          .layers = layers_moe,
                                          .ahead = &ahead,
                                          .experts = true,
                                          .keys = keys_moe};

static const gr_arch_name names_next[] = {{GR_T_DELTA_IN, 0, "linear_attn.in_proj_qkvz.weight"},
                                          {GR_T_DELTA_IN, 1, "linear_attn.in_proj_qkvz.weight"},
                                          {GR_T_DELTA_IN, 2, "linear_attn.in_proj_qkvz.weight"},
                                          {GR_T_DELTA_IN, 3, "linear_attn.in_proj_qkvz.weight"},
                                          {GR_T_DELTA_IN, 4, "linear_attn.in_proj_ba.weight"},
                                          {GR_T_DELTA_IN, 5, "linear_attn.in_proj_ba.weight"},
                                          {0, 0, NULL}};

const gr_arch gr_arch_qwen3_next = {.model_type = "qwen3_next",
                                    .class = "Qwen3Next",
                                    .sizes = {.inner = 5632},
                                    .head_dim = 256,
                                    .partial = 0.25,
                                    .layers = layers_next,
                                    .ahead = &ahead_next,
                                    .experts = true,
                                    .names = names_next,
                                    .keys = keys_next};
