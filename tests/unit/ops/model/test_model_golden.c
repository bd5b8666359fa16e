/* Against Hugging Face transformers: tests/oracle/make_model_goldens.py wrote the models and the answers, and
 * tests/oracle/routing_goldens.py those of routers that are told what to choose. */
#include "ops/kernels/experts.h"
#include "ops/kernels/layer_ops.h"
#include "tests/unit/model_fixture.h"

enum { N = 62, SEQS = 3, STEPS = 12, PROMPT = 5, LONGEST = 37 }; /* of every golden */

struct golden {
    fixture f;
    gr_safetensors *file;
    int32_t ids[N], target[N];
    uint32_t offset[SEQS + 1];
    float d_logprob[N], d_entropy[N];
    gr_diag d;
};

static void read_floats(const struct golden *g, const char *name, uint64_t rows, uint64_t cols, float *out)
{
    assert_int_equal(gr_safetensors_read_f32(g->file, name, rows, cols, out, NULL), GR_OK);
}

static void read_ids(const struct golden *g, const char *name, uint64_t rows, uint64_t cols, int32_t *out)
{
    float x[N];
    read_floats(g, name, rows, cols, x);
    for (uint64_t i = 0; i < rows * (cols ? cols : 1); i++) out[i] = (int32_t)x[i];
}

static void golden_open(struct golden *g, const char *name)
{
    char path[256];
    snprintf(path, sizeof(path), "tests/golden/model/%s", name);
    gr_model_shape s;
    gr_diag_init(&g->d);
    assert_int_equal(gr_model_shape_read(&s, path, &g->d), GR_OK);
    uint32_t border = 0;
    assert_int_equal(gr_model_set_longest(&s, LONGEST, &border), !strcmp(name, "phi3_long"));
    g->f = fx_new(&s, 2);
    fx_read(&g->f, path, "", g->f.w);
    assert_int_equal(gr_safetensors_open(&g->file, path, &g->d), GR_OK);
    read_ids(g, "golden.ids", N, 0, g->ids);
    read_ids(g, "golden.target", N, 0, g->target);
    read_ids(g, "golden.offset", SEQS + 1, 0, (int32_t *)g->offset);
    read_floats(g, "golden.d_logprob", N, 0, g->d_logprob);
    read_floats(g, "golden.d_entropy", N, 0, g->d_entropy);
}

static void golden_release(struct golden *g)
{
    gr_safetensors_free(g->file);
    fx_free(&g->f);
    gr_diag_release(&g->d);
}

static gr_packed packed_of(const struct golden *g, const gr_routing *routing)
{
    return (gr_packed){.n_tokens = N,
                       .n_seqs = SEQS,
                       .ids = g->ids,
                       .offset = g->offset,
                       .host_offset = g->offset,
                       .routing = routing};
}

static const char *const names[] = {
    "llama",         "qwen2",         "qwen3",       "mistral",     "yarn",
    "olmo2",         "smollm3",       "granite",     "gemma2",      "gemma3_text",
    "olmo3",         "qwen3_window",  "qwen3_moe",   "qwen2_moe",   "glm4_moe",
    "qwen3_5_text",  "qwen3_next",    "qwen3_5_moe", "gemma3",      "gpt_oss",
    "gpt_oss_mxfp4", "phi3",          "mixtral",     "olmoe",       "granitemoe",
    "seed_oss",      "exaone4",       "gemma",       "mistral3",    "ministral",
    "ministral3",    "phi3_short",    "phi3_long",   "deepseek_v3", "deepseek_v3_halves",
    "deepseek_v2",   "glm4_moe_lite", "gemma4_text", "gemma4",      "gemma4_moe",
    "gemma4_small",  "gemma4_shared"};

static void assert_near(const char *what, const char *name, const float *got, const float *want, size_t n,
                        double rtol)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, fabs((double)want[i]));
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= rtol * most))
            fail_msg("%s of %s, element %zu: got %.9g, want %.9g (scale %g)", what, name, i, (double)got[i],
                     (double)want[i], most);
}

static void assert_gradients(const struct golden *g, const char *name, const char *path, const char *prefix)
{
    fixture wanted = fx_new(&g->f.s, 1);
    fx_read(&wanted, path, prefix, wanted.w);
    for (uint32_t b = 0; b < gr_model_buckets(&g->f.s); b++) {
        gr_tensor t[GR_BUCKET_TENSORS_MAX];
        for (size_t k = gr_bucket_tensors(&g->f.s, b, t); k--;)
            assert_near(t[k].name, name, g->f.g[b] + t[k].offset, wanted.w[b] + t[k].offset,
                        (size_t)t[k].rows * GR_MAX(t[k].cols, 1), 1e-4);
    }
    fx_free(&wanted);
}

/* The log-prob of every id at every token, one target at a time, gives the logits up to a constant a row. */
static void test_logits_agree_with_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_LEN(names); i++) {
        struct golden g;
        golden_open(&g, names[i]);
        const gr_packed packed = packed_of(&g, NULL);
        const uint32_t vocab = g.f.s.vocab;
        float *logits = gr_malloc(N * vocab * sizeof(*logits)), logprob[N], first[N];
        read_floats(&g, "golden.logits", N, vocab, logits);
        fx_forward(&g.f, &packed, NULL, NULL);
        for (uint32_t v = 0; v < vocab; v++) {
            int32_t target[N];
            for (uint32_t t = 0; t < N; t++) target[t] = (int32_t)v;
            fx_head(&g.f, N, FX_CHUNK, &(fx_loss){.target = target, .inv_temperature = 1}, logprob, NULL,
                    NULL);
            if (v == 0) memcpy(first, logprob, sizeof(first));
            for (uint32_t t = 0; t < N; t++) {
                const float *z = logits + t * vocab;
                assert_close(logprob[t] - first[t], (double)z[v] - (double)z[0], 2e-4, 1e-4);
            }
        }
        free(logits);
        golden_release(&g);
    }
}

static void test_logprobs_entropies_and_gradients_agree_with_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_LEN(names); i++) {
        struct golden g;
        golden_open(&g, names[i]);
        float logprob[N], entropy[N], want[N];
        const fx_loss loss = {g.target, g.d_logprob, g.d_entropy, 1 / 0.7f};
        const gr_packed packed = packed_of(&g, NULL);
        fx_backward(&g.f, &packed, &loss, logprob, entropy);
        read_floats(&g, "golden.logprob", N, 0, want);
        assert_near("logprob", names[i], logprob, want, N, 1e-5);
        read_floats(&g, "golden.entropy", N, 0, want);
        assert_near("entropy", names[i], entropy, want, N, 1e-5);
        char path[256];
        snprintf(path, sizeof(path), "tests/golden/model/%s", names[i]);
        assert_gradients(&g, names[i], path, "grad.");
        golden_release(&g);
    }
}

/* Layers that take keys and values keep none while they generate; what layers hand on has room for each
 * token's embeddings of all layers, and in a pass for the keys and values that two of them lend. */
static void test_taken_keys_are_kept_once(void **state)
{
    (void)state;
    struct golden g;
    golden_open(&g, "gemma4_small");
    const gr_model_shape *s = &g.f.s;
    const gr_state_room room = {.blocks = 3};
    for (uint32_t l = 0; l < s->layers; l++) {
        const gr_attention_desc *a = &gr_layer(s, l)->attention;
        const uint64_t own = l < 3 ? gr_align(2 * sizeof(float) * a->kv_heads * GR_KV_BLOCK * 16, 256) : 0;
        assert_int_equal(gr_layer_block_bytes(&K, s, l), own);
        assert_int_equal(gr_layer_state_at(&K, s, l + 1, room) - gr_layer_state_at(&K, s, l, room), 3 * own);
    }
    const uint64_t tokens = 64, embeds = tokens * 6 * 4 * sizeof(float),
                   window = tokens * 2 * 2 * 8 * sizeof(float), full = tokens * 2 * 2 * 16 * sizeof(float);
    assert_int_equal(gr_carried_bytes(&K, s, tokens, false), embeds);
    assert_int_equal(gr_carried_bytes(&K, s, tokens, true), embeds + window + full);
    golden_release(&g);
}

/* ---- routers ----------------------------------------------------------------------------------------- */

#define ROUTING "tests/golden/routing"
enum { ROUTERS = 2, EXPERTS = 6, CHOICES = 2 }; /* of qwen3_moe */

static void read_routing(const struct golden *g, const char *name, uint64_t rows, uint64_t cols, float *out)
{
    gr_safetensors *file = NULL;
    gr_diag d = g->d;
    assert_int_equal(gr_safetensors_open(&file, ROUTING, &d), GR_OK);
    assert_int_equal(gr_safetensors_read_f32(file, name, rows, cols, out, NULL), GR_OK);
    gr_safetensors_free(file);
}

static void test_experts_that_are_given_are_those_of_transformers(void **state)
{
    (void)state;
    struct golden g;
    golden_open(&g, "qwen3_moe");
    float routes[ROUTERS * N * CHOICES], logprob[N], entropy[N], want[N];
    uint16_t recorded[ROUTERS * N * CHOICES];
    const float none[N] = {0};
    const fx_loss loss = {g.target, g.d_logprob, none, 1 / 0.7f};
    const gr_routing routing = {.recorded = recorded, .follow = true};
    const gr_packed packed = packed_of(&g, &routing);
    read_routing(&g, "routes", ROUTERS * N, CHOICES, routes);
    for (size_t i = 0; i < GR_LEN(routes); i++) recorded[i] = (uint16_t)routes[i];
    fx_backward(&g.f, &packed, &loss, logprob, entropy);
    read_routing(&g, "logprob", N, 0, want);
    assert_near("logprob", "given routes", logprob, want, N, 1e-5);
    assert_gradients(&g, "given routes", ROUTING, "given.grad.");
    golden_release(&g);
}

static void test_the_balance_loss_is_that_of_transformers(void **state)
{
    (void)state;
    struct golden g;
    golden_open(&g, "qwen3_moe");
    const gr_routers all = gr_model_routers(&g.f.s, g.f.s.layers);
    double tally[1 + 2 * ROUTERS + 2 * ROUTERS * EXPERTS] = {0};
    float pull[EXPERTS], logprob[N], entropy[N], want;
    const float none[N] = {0};
    const gr_balance_loss balance = {ROUTERS, EXPERTS, CHOICES, 1};
    const gr_tally at = gr_tally_at(tally, all, (gr_routers){0});
    assert_int_equal(gr_tally_values(all), GR_LEN(tally));

    const gr_routing counts = {.tally = tally, .shares = true}, pulls = {.pull = pull};
    const gr_packed before = packed_of(&g, &counts), packed = packed_of(&g, &pulls);
    fx_forward(&g.f, &before, NULL, NULL);
    read_routing(&g, "balance", 1, 0, &want);
    assert_close(gr_balance_value(&balance, at.load, at.share), (double)want, 1e-6, 0);

    K.layer->experts->pull(&g.f.q, &balance, at.load, pull);
    fx_backward(&g.f, &packed, &(fx_loss){g.target, none, none, 1}, logprob, entropy);
    assert_gradients(&g, "balance loss", ROUTING, "balance.grad.");
    golden_release(&g);
}

/* Recorded while prompts are read and tokens are decoded, they are those of one pass, which agrees with
 * itself and not with others. */
static void test_a_rollouts_experts_are_recorded_and_compared(void **state)
{
    (void)state;
    struct golden g;
    golden_open(&g, "qwen3_moe");
    uint16_t recorded[ROUTERS * N * CHOICES], step[ROUTERS * CHOICES];
    uint32_t differs[N] = {0}, table[N], length = g.offset[1];
    double tally[1 + 2 * ROUTERS + 2 * ROUTERS * EXPERTS] = {0};
    const gr_tally at = gr_tally_at(tally, gr_model_routers(&g.f.s, g.f.s.layers), (gr_routers){0});
    for (uint32_t i = 0; i < N; i++) table[i] = i;
    const gr_routing writes = {.record = step},
                     compares = {.recorded = recorded, .tally = tally, .differs = differs};
    for (uint32_t t = 0; t < length; t++) {
        const uint32_t one[2] = {0, 1};
        fx_extend(&g.f, &(gr_extend){.n_tokens = 1,
                                     .n_seqs = 1,
                                     .ids = g.ids + t,
                                     .offset = one,
                                     .cached = &t,
                                     .block_table = table,
                                     .table_stride = N,
                                     .routing = &writes});
        for (uint32_t r = 0; r < ROUTERS; r++)
            memcpy(recorded + (r * length + t) * CHOICES, step + r * CHOICES, sizeof(*step) * CHOICES);
    }
    gr_packed packed = packed_of(&g, &compares);
    packed.n_tokens = length;
    packed.n_seqs = 1;
    fx_forward(&g.f, &packed, NULL, NULL);
    assert_true(*at.tokens == 0 && at.differ[0] == 0 && at.differ[1] == 0);
    assert_true(at.compared[0] == length && at.compared[1] == length);

    uint16_t other = 0; /* the third token has another expert, the fourth the same two in another order */
    while (other == recorded[4] || other == recorded[5]) other++;
    recorded[4] = other;
    other = recorded[6];
    recorded[6] = recorded[7];
    recorded[7] = other;
    recorded[(length + 2) * CHOICES] = GR_NO_EXPERT;
    fx_forward(&g.f, &packed, NULL, NULL);
    assert_true(*at.tokens == 1 && at.differ[0] == 1 && at.differ[1] == 0);
    assert_true(at.compared[0] == 2 * length && at.compared[1] == 2 * length - 1);
    double choices = 0;
    for (uint32_t e = 0; e < ROUTERS * EXPERTS; e++) choices += at.load[e];
    assert_true(choices == 2.0 * ROUTERS * CHOICES * length);
    golden_release(&g);
}

/* Prompts are prefilled together, then all sequences decode. */
static void test_greedy_continuations_agree_with_transformers(void **state)
{
    (void)state;
    const gr_sampling greedy = {.top_p = 1};
    const uint32_t held[SEQS] = {5, 0, 2};
    for (size_t i = 0; i < GR_LEN(names); i++) {
        struct golden g;
        golden_open(&g, names[i]);
        int32_t want[SEQS * STEPS], ids[SEQS * PROMPT];
        read_ids(&g, "golden.greedy", SEQS, STEPS, want);
        uint32_t offset[SEQS + 1] = {0}, cached[SEQS] = {0}, row[SEQS], table[SEQS * 2],
                               draw[SEQS][2] = {{0}};
        float logprob[SEQS];
        for (uint32_t s = 0; s < SEQS; s++) {
            memcpy(ids + s * PROMPT, g.ids + g.offset[s], PROMPT * sizeof(*ids));
            offset[s + 1] = (s + 1) * PROMPT;
            table[2 * s] = 7 * s + 3;
            table[2 * s + 1] = 20 - s;
        }
        for (uint32_t step = 0; step < STEPS; step++) {
            fx_extend(&g.f, &(gr_extend){.n_tokens = offset[SEQS],
                                         .n_seqs = SEQS,
                                         .ids = ids,
                                         .offset = offset,
                                         .cached = cached,
                                         .block_table = table,
                                         .table_stride = 2,
                                         .held = held});
            for (uint32_t s = 0; s < SEQS; s++) row[s] = offset[s + 1] - 1;
            K.head_sample(&g.f.q, &g.f.s, fx_norm(&g.f), fx_lm(&g.f), g.f.x, row, SEQS, &greedy,
                          (const uint32_t(*)[2])draw, ids, logprob, g.f.ws);
            for (uint32_t s = 0; s < SEQS; s++) {
                assert_int_equal(ids[s], want[s * STEPS + step]);
                cached[s] += offset[s + 1] - offset[s];
            }
            for (uint32_t s = 0; s <= SEQS; s++) offset[s] = s;
        }
        golden_release(&g);
    }
}

static float *copy_states(const struct golden *g, uint32_t n)
{
    const size_t bytes = (size_t)n * g->f.s.hidden * sizeof(float);
    return memcpy(gr_malloc(bytes), g->f.x, bytes);
}

/* Hidden states of all tokens, packed: [N, H]. */
static float *packed_states(struct golden *g)
{
    fx_forward(&g->f,
               &(gr_packed){.n_tokens = N,
                            .n_seqs = SEQS,
                            .ids = g->ids,
                            .offset = g->offset,
                            .host_offset = g->offset,
                            .cut = 0},
               NULL, NULL);
    return copy_states(g, N);
}

static void test_a_sequence_has_the_same_bits_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_LEN(names); i++) {
        struct golden g;
        golden_open(&g, names[i]);
        float *want = packed_states(&g);
        const size_t row = g.f.s.hidden;
        for (uint32_t s = 0; s < SEQS; s++) {
            const uint32_t n = g.offset[s + 1] - g.offset[s], whole[] = {0, n};
            fx_forward(&g.f,
                       &(gr_packed){.n_tokens = n,
                                    .n_seqs = 1,
                                    .ids = g.ids + g.offset[s],
                                    .offset = whole,
                                    .host_offset = whole,
                                    .cut = 0},
                       NULL, NULL);
            if (memcmp(g.f.x, want + g.offset[s] * row, n * row * sizeof(float)) != 0)
                fail_msg("%s: sequence %u has other bits alone", names[i], s);
        }
        free(want);
        golden_release(&g);
    }
}

/* New tokens of all sequences, as many as each has left of `most`; returns how many. held: those of sequences
 * that have some, first[i] being the place of the tokens of sequence i among all. */
static uint32_t extend_all(struct golden *g, uint32_t most, uint32_t done[SEQS], uint32_t first[SEQS + 1])
{
    enum { STRIDE = 3 };
    static const uint32_t slots[SEQS] = {5, 0, 2};
    int32_t ids[N];
    uint32_t offset[SEQS + 1] = {0}, cached[SEQS], table[SEQS * STRIDE], held[SEQS], n = 0, total = 0;
    for (uint32_t s = 0; s < SEQS; s++) {
        const uint32_t left = g->offset[s + 1] - g->offset[s] - done[s], some = GR_MIN(left, most);
        first[s] = total;
        if (!some) continue;
        memcpy(ids + total, g->ids + g->offset[s] + done[s], some * sizeof(*ids));
        for (uint32_t b = 0; b < STRIDE; b++) table[n * STRIDE + b] = (b * SEQS + s) * 5 % 61;
        cached[n] = done[s];
        held[n] = slots[s];
        total += some;
        done[s] += some;
        offset[++n] = total;
    }
    first[SEQS] = total;
    if (n)
        fx_extend(&g->f, &(gr_extend){.n_tokens = total,
                                      .n_seqs = n,
                                      .ids = ids,
                                      .offset = offset,
                                      .cached = cached,
                                      .block_table = table,
                                      .table_stride = STRIDE,
                                      .held = held});
    return total;
}

/* Prompts in parts of any size, then token by token. */
static void test_a_rollout_has_the_bits_of_a_pass(void **state)
{
    (void)state;
    static const uint32_t parts[] = {1, 4, 9, 1, 1, 3, 1};
    for (size_t i = 0; i < GR_LEN(names); i++) {
        struct golden g;
        golden_open(&g, names[i]);
        float *want = packed_states(&g);
        const size_t row = g.f.s.hidden;
        uint32_t done[SEQS] = {0}, first[SEQS + 1], seen = 0;
        for (size_t k = 0; seen < N; k++) {
            uint32_t before[SEQS];
            memcpy(before, done, sizeof(before));
            seen += extend_all(&g, parts[k % GR_LEN(parts)], done, first);
            for (uint32_t s = 0; s < SEQS; s++)
                if (memcmp(g.f.x + first[s] * row, want + (g.offset[s] + before[s]) * row,
                           (done[s] - before[s]) * row * sizeof(float)) != 0)
                    fail_msg("%s: tokens %u to %u of sequence %u have other bits in a rollout", names[i],
                             before[s], done[s], s);
        }
        free(want);
        golden_release(&g);
    }
}

/* An independent engine's greedy text, teacher-forced: its fifth step was a tie in bf16, where exact
 * arithmetic gives 112. */
static void test_a_bf16_checkpoint_gives_the_text_of_another_engine(void **state)
{
    (void)state;
    static const int32_t ids[] = {1, 2, 76, 112, 63, 76, 195, 184, 121};
    static const int32_t want[] = {76, 112, 63, 76, 112, 184, 121, 189};
    enum { STEP = GR_LEN(want) };
    need_shared(found, "weights/mlxd_tiny/tiny_qwen3/model.safetensors");
    char path[4096];
    snprintf(path, sizeof(path), "%s", found);
    *strrchr(path, '/') = 0;
    gr_model_shape s;
    assert_int_equal(gr_model_shape_read(&s, path, NULL), GR_OK);
    fixture f = fx_new(&s, 2);
    fx_read(&f, path, "", f.w);
    uint32_t row[STEP], draw[STEP][2] = {{0}};
    for (uint32_t i = 0; i < STEP; i++) row[i] = i + 1;
    int32_t got[STEP];
    float logprob[STEP];
    const uint32_t whole[] = {0, GR_LEN(ids)};
    fx_forward(
        &f,
        &(gr_packed){.n_tokens = GR_LEN(ids), .n_seqs = 1, .ids = ids, .offset = whole, .host_offset = whole},
        NULL, NULL);
    K.head_sample(&f.q, &f.s, fx_norm(&f), fx_lm(&f), f.x, row, STEP, &(gr_sampling){.top_p = 1},
                  (const uint32_t(*)[2])draw, got, logprob, f.ws);
    assert_memory_equal(got, want, sizeof(want));
    fx_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_agree_with_transformers),
        cmocka_unit_test(test_taken_keys_are_kept_once),
        cmocka_unit_test(test_logprobs_entropies_and_gradients_agree_with_transformers),
        cmocka_unit_test(test_experts_that_are_given_are_those_of_transformers),
        cmocka_unit_test(test_the_balance_loss_is_that_of_transformers),
        cmocka_unit_test(test_a_rollouts_experts_are_recorded_and_compared),
        cmocka_unit_test(test_greedy_continuations_agree_with_transformers),
        cmocka_unit_test(test_a_sequence_has_the_same_bits_alone),
        cmocka_unit_test(test_a_rollout_has_the_bits_of_a_pass),
        cmocka_unit_test(test_a_bf16_checkpoint_gives_the_text_of_another_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
