/* tests/gpu/models.h: small random models for the tests of whole passes. */
#ifndef GR_TESTS_GPU_MODELS_H
#define GR_TESTS_GPU_MODELS_H

#include "ops/model/weights.h"
#include "runtime/base/half.h"
#include "tests/gpu/check.h"

static inline gr_model_shape shape_of(const char *type, uint32_t hidden, uint32_t heads, uint32_t kv,
                                      uint32_t head_dim)
{
    gr_model_shape s = {.vocab = 1000,
                        .hidden = hidden,
                        .layers = 3,
                        .max_positions = 1024,
                        .init_std = 0.05,
                        .bos = -1,
                        .pad = -1};
    snprintf(s.model_type, sizeof(s.model_type), "%s", type);
    gr_layer_desc d = gr_layer_plain(heads, kv, head_dim, 3 * hidden / 8 * 8);
    d.attention.qkv_bias = !strcmp(type, "qwen2");
    d.attention.qk_norm = !strncmp(type, "qwen3", 5) ? GR_QK_NORM_HEAD : GR_QK_NORM_NONE;
    if (!strcmp(type, "qwen3_moe")) { /* all experts for every token: two devices might choose others */
        d.mlp = GR_MLP_EXPERTS;
        d.dense = (gr_dense_desc){0};
        d.experts = (gr_experts_desc){.count = 8, .top_k = 8, .inner = hidden / 2, .scale = 1};
    }
    gr_model_of(&s, &d);
    s.tied = strcmp(type, "llama") != 0;
    return s;
}

/* Every other layer has a window, sinks and no positions. */
static inline gr_model_shape windowed(void)
{
    gr_model_shape s = shape_of("llama", 128, 4, 2, 32);
    gr_layer_desc d = *gr_layer(&s, 1);
    d.attention.window = 24;
    d.attention.sinks = true;
    d.attention.rope = (gr_rope_desc){.type = GR_ROPE_NONE};
    gr_model_set_layer(&s, 1, &d);
    return s;
}

/* Norms of 1 + weight before and behind, GELU, capped scores with a scale of their own, windows and positions
 * in turn, embeddings multiplied. */
static inline gr_model_shape sandwich(void)
{
    gr_model_shape s = shape_of("qwen3", 256, 4, 2, 64);
    gr_layer_desc full = *gr_layer(&s, 0);
    full.norm_after = full.norm_plus_one = true;
    full.dense.act = GR_ACT_GELU_TANH;
    full.attention.scale = 0.2f;
    full.attention.softcap = 5;
    gr_model_of(&s, &full);
    gr_layer_desc window = full;
    window.attention.window = 40;
    window.attention.rope.theta = 100;
    gr_model_set_layer(&s, 1, &window);
    s.embed_scale = 4;
    s.logit_softcap = 3;
    return s;
}

/* Norms behind alone, and over all heads of q and of k. Embeddings of about 1: of 0.05, as they are drawn,
 * bf16 leaves 10 to 30 % of the gradients of q and k uncertain (PyTorch's own: 11 %), for nothing brings them
 * to one size. */
static inline gr_model_shape behind(void)
{
    gr_model_shape s = shape_of("qwen2", 128, 4, 2, 32);
    gr_layer_desc d = *gr_layer(&s, 0);
    d.norm_before = false;
    d.norm_after = true;
    d.attention.qk_norm = GR_QK_NORM_WHOLE;
    gr_model_of(&s, &d);
    s.embed_scale = 20;
    return s;
}

/* As gemma4: layers multiplied by a number, norms of values, and in turn windows and heads of another size
 * and number, whose keys are values and of which some pairs are rotated; with or without experts, all of them
 * for every token, beside the dense MLP. */
static inline gr_model_shape gemma4(bool experts)
{
    gr_model_shape s = shape_of("qwen3", 256, 4, 2, 64);
    gr_layer_desc window = *gr_layer(&s, 0);
    window.norm_after = window.scaled = true;
    window.dense.act = GR_ACT_GELU_TANH;
    window.attention.value_norm = true;
    window.attention.window = 40;
    if (experts) {
        window.mlp = GR_MLP_EXPERTS;
        window.experts = (gr_experts_desc){.count = 8,
                                           .top_k = 8,
                                           .inner = 72,
                                           .act = GR_ACT_GELU_TANH,
                                           .normalize = true,
                                           .scale = 1,
                                           .expert_scale = true};
    }
    gr_model_of(&s, &window);
    gr_layer_desc full = window;
    full.attention.window = 0;
    full.attention.kv_heads = 1;
    full.attention.head_dim = 512;
    full.attention.scale = 0.05f;
    full.attention.keys_are_values = true;
    full.attention.rope =
        (gr_rope_desc){.type = GR_ROPE_PROPORTIONAL, .dims = 512, .theta = 1e6, .factor = 1, .share = 0.25};
    gr_model_set_layer(&s, 1, &full);
    s.embed_scale = 16;
    s.logit_softcap = 3;
    return s;
}

/* As gemma4's small forms: embeddings of each layer, and late layers with the keys and values of earlier
 * ones. Of five layers two take those of one with a window and one those of one without, with an MLP of twice
 * the width; or of four one of each, the wide heads' keys being values. */
static inline gr_model_shape gemma4_small(bool shared)
{
    const gr_model_shape plain = gemma4(false);
    gr_model_shape s = plain;
    s.layers = shared ? 4 : 5;
    s.per_layer = (gr_per_layer_desc){.vocab = s.vocab + 24, .width = 32};
    s.n_kinds = 0;
    snprintf(s.model_type, sizeof(s.model_type), "gemma4_text");
    for (uint32_t l = 0; l < s.layers; l++) {
        const bool full = l == 1 || l == s.layers - 1;
        gr_layer_desc d = *gr_layer(&plain, full);
        gr_attention_desc *a = &d.attention;
        d.per_layer = s.per_layer.width;
        a->keys = l < 2 ? GR_KEYS_LENT : GR_KEYS_TAKEN;
        if (full && !shared) {
            a->kv_heads = 2;
            a->head_dim = a->rope.dims = 128;
            a->scale = 0.1f;
            a->keys_are_values = false;
        }
        if (a->keys == GR_KEYS_TAKEN) {
            a->keys_are_values = a->value_norm = false;
            if (!shared) d.dense.inner *= 2;
        }
        gr_model_set_layer(&s, l, &d);
    }
    return s;
}

/* The same with narrow heads behind a short window beside wide ones, and of each kind two layers that take
 * one's keys, whose gradient is a sum of three then. Scores spread by 1: at 3 bf16 moves gradients by 12 %.
 */
static inline gr_model_shape gemma4_taken(void)
{
    const gr_model_shape plain = gemma4_small(true);
    gr_model_shape s = plain;
    s.layers = 6;
    s.n_kinds = 0;
    for (uint32_t l = 0; l < s.layers; l++) {
        gr_layer_desc d = *gr_layer(&plain, l < 2 ? l : 2 + l % 2);
        gr_attention_desc *a = &d.attention;
        if (l % 2) {
            a->scale = 0.05f;
        } else {
            a->head_dim = a->rope.dims = 16;
            a->scale = 0.25f;
            a->window = 5;
        }
        gr_model_set_layer(&s, l, &d);
    }
    return s;
}

/* Output gates, biases behind attention, and heads of which a part is rotated. */
static inline gr_model_shape gated(void)
{
    gr_model_shape s = shape_of("qwen3", 256, 4, 2, 64);
    gr_layer_desc d = *gr_layer(&s, 0);
    d.norm_plus_one = d.attention.gate = d.attention.o_bias = true;
    d.attention.rope.dims = 16;
    gr_model_of(&s, &d);
    gr_layer_desc bare = d;
    bare.attention.qk_norm = GR_QK_NORM_NONE;
    gr_model_set_layer(&s, 1, &bare);
    return s;
}

/* Multipliers everywhere, and YaRN. */
static inline gr_model_shape multiplied(void)
{
    gr_model_shape s = shape_of("llama", 128, 4, 1, 32);
    gr_layer_desc d = *gr_layer(&s, 0);
    d.attention.scale = 0.3f;
    d.attention.rope = (gr_rope_desc){.type = GR_ROPE_YARN,
                                      .dims = 32,
                                      .theta = 1e4,
                                      .factor = 4,
                                      .beta_fast = 32,
                                      .beta_slow = 1,
                                      .attention = 1.2,
                                      .truncate = true,
                                      .original_positions = 64};
    gr_model_of(&s, &d);
    s.embed_scale = 3;
    s.residual_scale = 0.3f;
    s.logit_scale = 0.4f;
    return s;
}

/* Latent attention with heads of nope + rope, values of v, and positions by YaRN; q_rank 0: queries without a
 * latent, rotated by halves. */
static inline gr_model_shape latent(uint32_t heads, uint32_t q_rank, uint32_t kv_rank, uint32_t nope,
                                    uint32_t rope, uint32_t v)
{
    gr_model_shape s = shape_of("llama", 256, 4, 2, 64);
    gr_layer_desc d = *gr_layer(&s, 0);
    const gr_rope_desc yarn = multiplied().kinds[0].attention.rope;
    d.mixer = GR_MIXER_LATENT;
    d.attention = (gr_attention_desc){0};
    d.latent = (gr_latent_desc){.heads = heads,
                                .q_rank = q_rank,
                                .kv_rank = kv_rank,
                                .nope_dim = nope,
                                .rope_dim = rope,
                                .v_dim = v,
                                .scale = 1 / sqrtf((float)(nope + rope)),
                                .norm_eps = 1e-6f,
                                .interleaved = q_rank != 0,
                                .rope = yarn};
    d.latent.rope.dims = rope;
    gr_model_of(&s, &d);
    return s;
}

/* Experts of every kind, all of them for every token: of gpt_oss with biases and clamps, and a gate of the
 * shared one; a dense layer with clamps; sigmoids with a bias that selects. */
static inline gr_model_shape assorted(void)
{
    gr_model_shape s = shape_of("qwen2", 128, 4, 2, 32);
    gr_layer_desc dense = *gr_layer(&s, 0);
    dense.dense.act = GR_ACT_SWIGLU_OAI;
    dense.dense.limit = 7;
    gr_layer_desc clamped = dense, sigmoid = dense;
    clamped.mlp = sigmoid.mlp = GR_MLP_EXPERTS;
    clamped.dense = sigmoid.dense = (gr_dense_desc){0};
    clamped.experts = (gr_experts_desc){.count = 6,
                                        .top_k = 6,
                                        .inner = 72,
                                        .act = GR_ACT_SWIGLU_OAI,
                                        .limit = 7,
                                        .softmax_after = true,
                                        .router_bias = true,
                                        .bias = true,
                                        .scale = 1,
                                        .shared_inner = 104,
                                        .shared_gate = true};
    sigmoid.experts = (gr_experts_desc){.count = 12,
                                        .top_k = 12,
                                        .inner = 40,
                                        .router = GR_ROUTER_SIGMOID,
                                        .normalize = true,
                                        .selection_bias = true,
                                        .groups = 4,
                                        .top_groups = 4,
                                        .scale = 2.5f,
                                        .shared_inner = 48};
    gr_model_of(&s, &clamped);
    gr_model_set_layer(&s, 1, &dense);
    gr_model_set_layer(&s, 2, &sigmoid);
    return s;
}

/* Layers of the gated delta rule around one of attention with an output gate, of whose heads a quarter is
 * rotated. */
static inline gr_model_shape hybrid(uint32_t head_dim, uint32_t key_dim, uint32_t value_dim)
{
    gr_model_shape s = shape_of("qwen3", 256, 2, 1, head_dim);
    gr_layer_desc full = *gr_layer(&s, 0), linear;
    full.norm_plus_one = full.attention.gate = true;
    full.attention.rope.dims = head_dim / 4;
    linear = full;
    linear.mixer = GR_MIXER_DELTA;
    linear.attention = (gr_attention_desc){0};
    linear.delta = (gr_delta_desc){
        .key_heads = 2, .value_heads = 4, .key_dim = key_dim, .value_dim = value_dim, .conv = 4};
    gr_model_of(&s, &linear);
    gr_model_set_layer(&s, 1, &full);
    return s;
}

/* Weights that fp32 and bf16 both hold exactly: norms around 1, biases around 0. */
static inline float *random_bucket(const gr_model_shape *s, uint32_t b, uint64_t seed)
{
    gr_tensor t[GR_BUCKET_TENSORS_MAX];
    uint64_t n = gr_bucket_elems(s, b), state = seed + b;
    float *w = gr_malloc(n * sizeof(*w));
    gr_weights_random_bucket(NULL, s, seed, b, w);
    for (size_t i = gr_bucket_tensors(s, b, t); i--;)
        for (uint32_t e = 0; !t[i].decay && e < t[i].rows; e++)
            w[t[i].offset + e] += 0.2f * random_float(&state);
    for (uint64_t i = 0; i < n; i++) w[i] = gr_bf16_to_f32(gr_f32_to_bf16(w[i]));
    return w;
}

#endif
