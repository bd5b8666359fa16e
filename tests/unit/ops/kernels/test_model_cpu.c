/* Bits: what a token's result may not depend on. And gradients against differences. */
#include "tests/unit/model_fixture.h"

enum { N = 150, SEQS = 5 };
static const uint32_t offsets[SEQS + 1] = {0, 37, 38, 70, 134, 150};

static gr_model_shape shape(uint32_t heads, uint32_t kv_heads, uint32_t head_dim)
{
    gr_model_shape s = {.vocab = 1100, .hidden = 40, .layers = 2};
    gr_layer_desc d = gr_layer_plain(heads, kv_heads, head_dim, 56);
    s.max_positions = 1024;
    s.init_std = 0.15;
    s.tied = heads != kv_heads;
    d.attention.qk_norm = s.tied ? GR_QK_NORM_HEAD : GR_QK_NORM_NONE;
    d.attention.qkv_bias = kv_heads == 1;
    gr_model_of(&s, &d);
    return s;
}

/* Layers of two kinds in turn, full and with a window, sandwiched by norms of 1 + weight; caps everywhere. */
static gr_model_shape sandwich(void)
{
    gr_model_shape s = shape(6, 2, 18);
    gr_layer_desc full = gr_layer_plain(6, 2, 18, 56);
    full.norm_after = full.norm_plus_one = true;
    full.dense.act = GR_ACT_GELU_TANH;
    full.attention.qk_norm = GR_QK_NORM_HEAD;
    full.attention.scale = 0.3f;
    full.attention.softcap = 2;
    gr_model_of(&s, &full);
    gr_layer_desc window = full;
    window.attention.window = 9;
    window.attention.rope.theta = 100;
    gr_model_set_layer(&s, 1, &window);
    s.embed_scale = 2;
    s.logit_softcap = 3;
    return s;
}

/* Norms behind alone, and over all heads of q and of k; biases. */
static gr_model_shape behind(void)
{
    gr_model_shape s = shape(6, 3, 8);
    gr_layer_desc d = gr_layer_plain(6, 3, 8, 24);
    d.norm_before = false;
    d.norm_after = true;
    d.attention.qk_norm = GR_QK_NORM_WHOLE;
    d.attention.qkv_bias = d.attention.o_bias = true;
    gr_model_of(&s, &d);
    return s;
}

/* Output gates, sinks, and heads of which a part is rotated. */
static gr_model_shape gated(void)
{
    gr_model_shape s = shape(4, 2, 16);
    gr_layer_desc d = gr_layer_plain(4, 2, 16, 24);
    d.norm_plus_one = d.attention.gate = d.attention.sinks = true;
    d.attention.qk_norm = GR_QK_NORM_HEAD;
    d.attention.rope.dims = 4;
    gr_model_of(&s, &d);
    gr_layer_desc bare = d;
    bare.attention.qk_norm = GR_QK_NORM_NONE;
    gr_model_set_layer(&s, 1, &bare);
    return s;
}

/* Multipliers, YaRN, and a layer without positions. */
static gr_model_shape multiplied(void)
{
    gr_model_shape s = shape(4, 1, 8);
    gr_layer_desc d = gr_layer_plain(4, 1, 8, 24);
    d.attention.rope = (gr_rope_desc){.type = GR_ROPE_YARN,
                                      .dims = 8,
                                      .theta = 1e4,
                                      .factor = 4,
                                      .beta_fast = 32,
                                      .beta_slow = 1,
                                      .attention = 1.2,
                                      .truncate = true,
                                      .original_positions = 32};
    gr_model_of(&s, &d);
    gr_layer_desc without = d;
    without.attention.rope = (gr_rope_desc){.type = GR_ROPE_NONE};
    gr_model_set_layer(&s, 1, &without);
    s.embed_scale = 3;
    s.residual_scale = 0.3f;
    s.logit_scale = 0.4f;
    return s;
}

/* A dense layer, then one of experts; beside them one that every
 * token goes through, with a gate, and norms behind. */
static gr_model_shape with_experts(uint32_t count, bool shared)
{
    gr_model_shape s = shape(6, 2, 18);
    gr_layer_desc d = *gr_layer(&s, 1);
    d.mlp = GR_MLP_EXPERTS;
    d.dense = (gr_dense_desc){0};
    d.experts = (gr_experts_desc){.count = count, .top_k = 3, .inner = 20, .scale = 1, .normalize = true};
    if (shared) {
        d.experts.shared_inner = 28;
        d.experts.shared_gate = true;
        d.experts.router = GR_ROUTER_SIGMOID;
        d.norm_after = true;
    }
    gr_model_set_layer(&s, 1, &d);
    return s;
}

/* Layers of the gated delta rule and gated attention, of which a part of each head is rotated, in turn. */
static gr_model_shape hybrid(void)
{
    gr_model_shape s = shape(4, 2, 16);
    gr_layer_desc full = s.kinds[0], delta = s.kinds[0];
    s.layers = 3;
    full.norm_plus_one = delta.norm_plus_one = true;
    full.norm_eps = delta.norm_eps = 0.01f; /* else differences see the bends of norms of small numbers */
    full.attention.gate = true;
    full.attention.rope.dims = 4;
    delta.mixer = GR_MIXER_DELTA;
    delta.attention = (gr_attention_desc){0};
    delta.delta =
        (gr_delta_desc){.key_heads = 2, .value_heads = 4, .key_dim = 12, .value_dim = 10, .conv = 4};
    gr_model_of(&s, &delta);
    gr_model_set_layer(&s, 1, &full);
    return s;
}

/* Latent attention: with queries of a latent and values narrower than keys, more values a row than a panel of
 * the kernels holds; or with more heads than a tile, whose keys and values are of one width. */
static gr_model_shape latent(bool wide)
{
    gr_model_shape s = shape(4, 2, 16);
    gr_layer_desc d = *gr_layer(&s, 0);
    d.mixer = GR_MIXER_LATENT;
    d.attention = (gr_attention_desc){0};
    d.latent = (gr_latent_desc){.heads = wide ? 14 : 5,
                                .q_rank = wide ? 0 : 23,
                                .kv_rank = wide ? 20 : 300,
                                .nope_dim = 10,
                                .rope_dim = 6,
                                .v_dim = wide ? 16 : 9,
                                .scale = 0.3f,
                                .norm_eps = 0.01f,
                                .interleaved = wide,
                                .rope = {.type = GR_ROPE_YARN,
                                         .dims = 6,
                                         .theta = 1e3,
                                         .factor = 4,
                                         .beta_fast = 32,
                                         .beta_slow = 1,
                                         .attention = 1.2,
                                         .original_positions = 32}};
    gr_model_of(&s, &d);
    d.norm_after = true;
    if (wide) gr_model_set_layer(&s, 1, &d);
    return s;
}

enum { CHOOSES = 7, SHAPES = 13 };

/* Grouped (3 a group), one kv head (13 in its group: more than a tile holds), as many as heads; then what
 * other families have; experts of which some are chosen, all, and all beside a shared one; layers of
 * two kinds of mixers; latent attention. */
static gr_model_shape shape_at(int i)
{
    switch (i) {
    case 0:
        return shape(6, 2, 18);
    case 1:
        return shape(13, 1, 6);
    case 2:
        return shape(3, 3, 32);
    case 3:
        return sandwich();
    case 4:
        return behind();
    case 5:
        return gated();
    case 6:
        return multiplied();
    default:
        if (i > 10) return latent(i == 12);
        return i == 10 ? hybrid() : with_experts(i == CHOOSES ? 12 : 3, i == 9);
    }
}

struct data {
    int32_t ids[N], target[N];
    float d_logprob[N], d_entropy[N];
};

static struct data random_data(void)
{
    struct data d;
    uint32_t seed = 5;
    for (uint32_t i = 0; i < N; i++) {
        d.ids[i] = (int32_t)((fx_random(&seed) + 1) * 549);
        d.target[i] = (int32_t)((fx_random(&seed) + 1) * 549);
        d.d_logprob[i] = fx_random(&seed) / N;
        d.d_entropy[i] = fx_random(&seed) / N;
    }
    return d;
}

static fixture filled(int shape_index, unsigned threads)
{
    gr_model_shape s = shape_at(shape_index);
    fixture f = fx_new(&s, threads);
    fx_fill(&f, 7);
    return f;
}

/* Hidden states of all tokens, packed together; free(). */
static float *hidden(fixture *f, const struct data *d)
{
    const size_t bytes = (size_t)N * f->s.hidden * sizeof(float);
    fx_forward(
        f,
        &(gr_packed){.n_tokens = N, .n_seqs = SEQS, .ids = d->ids, .offset = offsets, .host_offset = offsets},
        NULL, NULL);
    return memcpy(gr_malloc(bytes), f->x, bytes);
}

static void test_a_sequence_has_the_same_bits_alone_and_packed(void **state)
{
    (void)state;
    const struct data d = random_data();
    for (int i = 0; i < SHAPES; i++) {
        fixture f = filled(i, 2);
        float *want = hidden(&f, &d);
        for (uint32_t s = 0; s < SEQS; s++) {
            const uint32_t n = offsets[s + 1] - offsets[s], one[] = {0, n};
            fx_forward(
                &f,
                &(gr_packed){
                    .n_tokens = n, .n_seqs = 1, .ids = d.ids + offsets[s], .offset = one, .host_offset = one},
                NULL, NULL);
            assert_memory_equal(f.x, want + offsets[s] * f.s.hidden, n * f.s.hidden * sizeof(float));
        }
        free(want);
        fx_free(&f);
    }
}

/* All sequences step on together, by different numbers of tokens, until each is whole. */
static void extend_all(fixture *f, const struct data *d, const float *want, uint32_t most)
{
    uint32_t cached[SEQS] = {0}, table[SEQS * 5], seed = most;
    const uint32_t held[SEQS] = {3, 0, 6, 1, 4};
    for (uint32_t i = 0; i < SEQS * 5; i++) table[i] = (i * 37 + 11) % FX_BLOCKS;
    for (;;) {
        int32_t ids[N];
        uint32_t offset[SEQS + 1] = {0};
        for (uint32_t s = 0; s < SEQS; s++) {
            const uint32_t left = offsets[s + 1] - offsets[s] - cached[s];
            seed = seed * 1664525u + 1013904223u;
            const uint32_t n = GR_MIN(left, 1 + (seed >> 8) % most);
            memcpy(ids + offset[s], d->ids + offsets[s] + cached[s], n * sizeof(*ids));
            offset[s + 1] = offset[s] + n;
        }
        if (!offset[SEQS]) return;
        fx_extend(f, &(gr_extend){.n_tokens = offset[SEQS],
                                  .n_seqs = SEQS,
                                  .ids = ids,
                                  .offset = offset,
                                  .cached = cached,
                                  .block_table = table,
                                  .table_stride = 5,
                                  .held = held});
        for (uint32_t s = 0; s < SEQS; s++) {
            const uint32_t n = offset[s + 1] - offset[s];
            assert_memory_equal(f->x + offset[s] * f->s.hidden, want + (offsets[s] + cached[s]) * f->s.hidden,
                                n * f->s.hidden * sizeof(float));
            cached[s] += n;
        }
    }
}

static void test_prefill_in_any_chunks_and_decode_have_the_bits_of_the_packed_pass(void **state)
{
    (void)state;
    const struct data d = random_data();
    for (int i = 0; i < SHAPES; i++) {
        fixture f = filled(i, 2);
        float *want = hidden(&f, &d);
        extend_all(&f, &d, want, 1);
        extend_all(&f, &d, want, 9);
        extend_all(&f, &d, want, 64);
        free(want);
        fx_free(&f);
    }
}

static void test_a_long_sequence_crosses_score_panels_with_the_same_bits(void **state)
{
    (void)state;
    fixture f = filled(0, 2);
    int32_t ids[400];
    uint32_t seed = 3, table[25];
    for (int i = 0; i < 400; i++) ids[i] = (int32_t)((fx_random(&seed) + 1) * 549);
    for (uint32_t i = 0; i < 25; i++) table[i] = 2 * i;
    const uint32_t whole[] = {0, 400};
    fx_forward(&f,
               &(gr_packed){.n_tokens = 400, .n_seqs = 1, .ids = ids, .offset = whole, .host_offset = whole},
               NULL, NULL);
    float *want = memcpy(gr_malloc(400 * f.s.hidden * sizeof(float)), f.x, 400 * f.s.hidden * sizeof(float));
    for (uint32_t at = 0, n; at < 400; at += n) {
        n = at < 250 ? 50 : 3;
        n = GR_MIN(n, 400 - at);
        fx_extend(&f, &(gr_extend){.n_tokens = n,
                                   .n_seqs = 1,
                                   .ids = ids + at,
                                   .offset = (const uint32_t[]){0, n},
                                   .cached = &at,
                                   .block_table = table,
                                   .table_stride = 25});
        assert_memory_equal(f.x, want + at * f.s.hidden, n * f.s.hidden * sizeof(float));
    }
    free(want);
    fx_free(&f);
}

static void test_logprobs_have_the_same_bits_for_any_chunk(void **state)
{
    (void)state;
    const struct data d = random_data();
    fixture f = filled(0, 2);
    free(hidden(&f, &d));
    float all[3][N], some[3][N];
    const fx_loss loss = {.target = d.target, .inv_temperature = 1.25f};
    fx_head(&f, N, FX_CHUNK, &loss, all[0], all[1], all[2]);
    for (uint32_t chunk = 1; chunk < FX_CHUNK; chunk += 3) {
        fx_head(&f, N, chunk, &loss, some[0], some[1], some[2]);
        assert_memory_equal(all, some, sizeof(all));
    }
    fx_free(&f);
}

static void test_threads_change_no_bit_of_hidden_states_or_gradients(void **state)
{
    (void)state;
    const struct data d = random_data();
    const fx_loss loss = {d.target, d.d_logprob, d.d_entropy, 1};
    const gr_packed p = {
        .n_tokens = N, .n_seqs = SEQS, .ids = d.ids, .offset = offsets, .host_offset = offsets};
    for (int i = 0; i < SHAPES; i++) {
        fixture one = filled(i, 1);
        float logprob[2][N], entropy[2][N];
        fx_backward(&one, &p, &loss, logprob[0], entropy[0]);
        for (unsigned threads = 2; threads <= 3; threads++) {
            fixture some = filled(i, threads);
            fx_backward(&some, &p, &loss, logprob[1], entropy[1]);
            assert_memory_equal(logprob[0], logprob[1], sizeof(logprob[0]));
            for (uint32_t b = 0; b < gr_model_buckets(&one.s); b++)
                assert_memory_equal(one.g[b], some.g[b], gr_bucket_elems(&one.s, b) * sizeof(float));
            fx_free(&some);
        }
        fx_free(&one);
    }
}

static double loss_value(fixture *f, const gr_packed *p, const fx_loss *l)
{
    float logprob[N], entropy[N];
    double sum = 0;
    fx_forward(f, p, NULL, NULL);
    fx_head(f, p->n_tokens, FX_CHUNK, l, logprob, entropy, NULL);
    for (uint32_t i = 0; i < p->n_tokens; i++)
        sum += (double)l->d_logprob[i] * (double)logprob[i] + (double)l->d_entropy[i] * (double)entropy[i];
    return sum;
}

/* Along a random direction of each tensor: (L(w + e r) - L(w - e r)) / 2 e against the gradient's part. */
static void test_gradients_agree_with_differences(void **state)
{
    (void)state;
    const struct data d = random_data();
    const fx_loss loss = {d.target, d.d_logprob, d.d_entropy, 1};
    const gr_packed p = {
        .n_tokens = N, .n_seqs = SEQS, .ids = d.ids, .offset = offsets, .host_offset = offsets};
    for (int i = 0; i < SHAPES; i++) {
        if (i == CHOOSES) continue; /* where another expert is chosen the loss jumps */
        fixture f = filled(i, 2);
        float logprob[N], entropy[N];
        fx_backward(&f, &p, &loss, logprob, entropy);
        for (uint32_t b = 0; b < gr_model_buckets(&f.s); b++) {
            gr_tensor t[GR_BUCKET_TENSORS_MAX];
            for (size_t k = gr_bucket_tensors(&f.s, b, t); k--;) {
                const size_t n = (size_t)t[k].rows * GR_MAX(t[k].cols, 1);
                float *w = f.w[b] + t[k].offset, *g = f.g[b] + t[k].offset, *kept = gr_malloc(n * sizeof(*w));
                memcpy(kept, w, n * sizeof(*w));
                double norm = 0, want = 0, at[2];
                for (size_t e = 0; e < n; e++) norm += (double)g[e] * (double)g[e];
                const float step = (float)(0.01 / sqrt((double)n));
                for (int side = 0; side < 2; side++) {
                    uint32_t seed = 11;
                    for (size_t e = 0; e < n; e++) { /* half along the gradient, half at random */
                        const double r =
                            (double)g[e] / sqrt(norm) * sqrt((double)n) + (double)fx_random(&seed);
                        if (side) want += r * (double)g[e];
                        w[e] = kept[e] + (side ? -step : step) * (float)r;
                    }
                    at[side] = loss_value(&f, &p, &loss);
                }
                memcpy(w, kept, n * sizeof(*w));
                const double got = (at[0] - at[1]) / (2 * (double)step);
                if (!(fabs(got - want) <= 0.01 * fabs(want) + 1e-5))
                    fail_msg("shape %d, %s: difference %.6g, gradient %.6g", i, t[k].name, got, want);
                free(kept);
            }
        }
        fx_free(&f);
    }
}

static void test_blocks_of_the_pool_copy_whole(void **state)
{
    (void)state;
    gr_model_shape s = shape_at(0);
    const size_t bytes = gr_layer_block_bytes(&K, &s, 1);
    char *kv = gr_calloc(4, bytes);
    for (size_t i = 0; i < 4 * bytes; i++) kv[i] = (char)(i / bytes + 1);
    gr_layer_copy_blocks(&K, &(gr_queue){.team = NULL}, &s, 1, kv, (const uint32_t[]){1, 0},
                         (const uint32_t[]){3, 2}, 2);
    for (size_t i = 0; i < bytes; i++) {
        assert_int_equal(kv[2 * bytes + i], 1);
        assert_int_equal(kv[3 * bytes + i], 2);
    }
    free(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_sequence_has_the_same_bits_alone_and_packed),
        cmocka_unit_test(test_prefill_in_any_chunks_and_decode_have_the_bits_of_the_packed_pass),
        cmocka_unit_test(test_a_long_sequence_crosses_score_panels_with_the_same_bits),
        cmocka_unit_test(test_logprobs_have_the_same_bits_for_any_chunk),
        cmocka_unit_test(test_threads_change_no_bit_of_hidden_states_or_gradients),
        cmocka_unit_test(test_gradients_agree_with_differences),
        cmocka_unit_test(test_blocks_of_the_pool_copy_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
