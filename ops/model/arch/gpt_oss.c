/* ops/model/arch/gpt_oss.c: gpt-oss: attention with sinks and biases, every other layer with a window;
 * experts with biases and a clamped SwiGLU, whose router is a softmax over the chosen ones; YaRN positions.
 * It is published with its experts in MXFP4 (GR_EXPERTS_MXFP4), which are widened as they are read; what is
 * trained and written is not in MXFP4 any more.
 *
 * Source: Hugging Face transformers, models/gpt_oss. router_aux_loss_coef: as in qwen_moe.c.
 */
#include "ops/model/arch.h"

#include <math.h>

#define ALPHA 1.702 /* of GR_ACT_SWIGLU_OAI */

static gr_experts_desc experts(gr_config *c, uint32_t inner)
{
    const json_t *alpha = gr_config_value(c, "swiglu_alpha");
    const gr_experts_desc e = {
        .count = gr_config_size(c, "num_local_experts", 128, GR_BIASED_EXPERTS_MAX),
        .top_k = gr_config_size(c, "num_experts_per_tok", 4, GR_CHOICES_MAX),
        .inner = inner,
        .act = GR_ACT_SWIGLU_OAI,
        .limit = (float)gr_config_number(c, "swiglu_limit", gr_config_value(c, "swiglu_limit"), 7, 1e-6, 1e6),
        .softmax_after = true,
        .router_bias = true,
        .bias = true,
        .scale = 1};
    if (gr_config_number(c, "swiglu_alpha", alpha, ALPHA, 0, 1e6) != ALPHA)
        gr_config_refuse(c, "swiglu_alpha", "a 'swiglu_alpha' other than %g is not supported", ALPHA);
    gr_arch_check_choices(c, "num_local_experts", &e);
    return e;
}

/* Where a config says no positions: those that gpt-oss was published with. */
static gr_rope_desc rope_of(gr_config *c, const gr_rope_desc *said)
{
    gr_rope_desc r = *said;
    if (gr_config_value(c, "rope_scaling") || gr_config_value(c, "rope_parameters")) return r;
    r.type = GR_ROPE_YARN;
    r.factor = 32;
    r.beta_fast = 32;
    r.beta_slow = 1;
    r.attention = 0.1 * log(32) + 1;
    r.truncate = false;
    r.original_positions = 4096;
    return r;
}

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    uint8_t kind[GR_LAYERS_MAX];
    const gr_experts_desc e = experts(c, base->dense.inner);
    gr_layer_desc full = gr_arch_with_experts(base, &e);
    full.attention.sinks = true;
    full.attention.qkv_bias = full.attention.o_bias = gr_config_flag(c, "attention_bias", true);
    full.attention.rope = rope_of(c, &base->attention.rope);
    gr_layer_desc sliding = full;
    sliding.attention.window = gr_config_has(c, "sliding_window")
                                   ? gr_arch_window(c, 4096)
                                   : 128; /* gr_arch_window has the others' default */
    for (uint32_t l = 0; l < s->layers; l++) kind[l] = (l + 1) % 2 ? GR_ARCH_SLIDING : GR_ARCH_FULL;
    gr_arch_in_turn(c, s, kind, &sliding, &full);
}

static const gr_arch_name names[] = {
    {GR_T_ROUTER, 0, "mlp.router.weight"}, {GR_T_ROUTER_BIAS, 0, "mlp.router.bias"}, {0, 0, NULL}};

/* experts_per_token and initial_context_length are beside num_experts_per_tok and the rope's, and not read.
 */
static const char *const keys[] = {"attention_bias",
                                   "experts_per_token",
                                   "initial_context_length",
                                   "num_experts_per_tok",
                                   "num_local_experts",
                                   "output_router_logits",
                                   "router_aux_loss_coef",
                                   "sliding_window",
                                   "swiglu_alpha",
                                   "swiglu_limit",
                                   NULL};

const gr_arch gr_arch_gpt_oss = {.model_type = "gpt_oss",
                                 .class = "GptOss",
                                 .head_dim = 64,
                                 .sizes = {.inner = 2880},
                                 .eps = 1e-5,
                                 .theta = 150000,
                                 .layers = layers,
                                 .experts = true,
                                 .experts_turned = true,
                                 .gate_up_in_turn = true,
                                 .mxfp4 = true,
                                 .names = names,
                                 .keys = keys};
