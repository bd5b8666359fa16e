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
    d.attention.qk_norm = !strcmp(type, "qwen3") ? GR_QK_NORM_HEAD : GR_QK_NORM_NONE;
    gr_model_of(&s, &d);
    s.tied = strcmp(type, "llama") != 0;
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
