/* Value heads: against transformers (tests/oracle/make_value_goldens.py wrote the models and the answers),
 * against finite differences, in any cut; and under the names that checkpoints have for them. */
#include "ops/kernels/layer_ops.h"
#include "tests/unit/model_fixture.h"
#include "tests/unit/test_folder.h"

#include "graphs/graph/graph.h"
#include "ops/model/checkpoint.h"
#include "ops/pass.h"
#include "scheduler/search/planner.h"
#include "runtime/base/files.h"
#include "ops/registry.h"
#include "graphs/loader/load.h"

enum { N = 22, SEQS = 3 }; /* of every golden */

static const char *const names[] = {"llama", "mistral", "qwen2", "qwen3", "reward"};

struct golden {
    char path[64];
    fixture f;
    gr_safetensors *file;
    int32_t ids[N];
    uint32_t offset[SEQS + 1];
    float d_value[N];
};

static void read_floats(const struct golden *g, const char *name, uint64_t n, float *out)
{
    assert_int_equal(gr_safetensors_read_f32(g->file, name, n, 0, out, NULL), GR_OK);
}

static void golden_open(struct golden *g, const char *name, unsigned threads)
{
    float x[N];
    gr_model_shape s;
    snprintf(g->path, sizeof(g->path), "tests/golden/value/%s", name);
    assert_int_equal(gr_model_shape_read(&s, g->path, NULL), GR_OK);
    assert_int_equal(s.head, GR_HEAD_VALUE);
    assert_int_equal(s.value_bias, strcmp(name, "reward") != 0);
    g->f = fx_new(&s, threads);
    fx_read(&g->f, g->path, "", g->f.w);
    assert_int_equal(gr_safetensors_open(&g->file, g->path, NULL), GR_OK);
    read_floats(g, "golden.ids", N, x);
    for (int i = 0; i < N; i++) g->ids[i] = (int32_t)x[i];
    read_floats(g, "golden.offset", SEQS + 1, x);
    for (int i = 0; i <= SEQS; i++) g->offset[i] = (uint32_t)x[i];
    read_floats(g, "golden.d_value", N, g->d_value);
}

static void golden_release(struct golden *g)
{
    gr_safetensors_free(g->file);
    fx_free(&g->f);
}

static gr_packed packed(const struct golden *g)
{
    return (gr_packed){
        .n_tokens = N, .n_seqs = SEQS, .ids = g->ids, .offset = g->offset, .host_offset = g->offset};
}

/* Values of rows [0, n) of f->x, chunk rows at a time. */
static void head(fixture *f, const uint32_t *row, uint32_t n, uint32_t chunk, float *value)
{
    gr_value_head h = gr_value_head_at(&K, &f->s, f->w[f->s.layers + 1]);
    for (uint32_t at = 0; at < n; at += chunk)
        K.value_forward(&f->q, &f->s, &h, f->x, row + at, GR_MIN(chunk, n - at), value + at, f->ws);
}

static void all_values(fixture *f, const gr_packed *p, uint32_t chunk, float *value)
{
    uint32_t row[FX_TOKENS];
    for (uint32_t i = 0; i < p->n_tokens; i++) row[i] = i;
    fx_forward(f, p, NULL, NULL);
    head(f, row, p->n_tokens, chunk, value);
}

/* Gradients of sum(d_value value) into f->g. */
static void backward(fixture *f, const gr_packed *p, const float *d_value, uint32_t chunk, float *value)
{
    const gr_model_shape *s = &f->s;
    const gr_pass_bounds bounds = fx_bounds(f);
    const uint64_t row_bytes = (uint64_t)FX_TOKENS * s->hidden * sizeof(float);
    float **in = gr_calloc(s->layers, sizeof(*in)), *dx = fx_dirty(row_bytes);
    void **acts = gr_calloc(s->layers, sizeof(*acts));
    uint32_t row[FX_TOKENS];
    for (uint32_t i = 0; i < p->n_tokens; i++) row[i] = i;
    for (uint32_t i = 0; i < s->layers; i++) {
        in[i] = fx_dirty(row_bytes);
        acts[i] = fx_dirty(gr_layer_acts_bytes(&K, s, i, &bounds));
    }
    fx_forward(f, p, in, acts);
    gr_value_head h = gr_value_head_at(&K, s, f->w[s->layers + 1]);
    gr_value_grads grads = gr_value_grads_at(s, f->g[s->layers + 1], GR_F32);
    for (uint32_t at = 0; at < p->n_tokens; at += chunk) {
        uint32_t n = GR_MIN(chunk, p->n_tokens - at);
        K.value_forward(&f->q, s, &h, f->x, row + at, n, value + at, f->ws);
        K.value_backward(&f->q, s, &h, f->x, row + at, n, d_value + at, dx, &grads, f->ws);
    }
    for (uint32_t i = s->layers; i--;)
        gr_layer_backward(&K, &f->q, s, i, f->w[i + 1], NULL, p, in[i], acts[i], dx, f->g[i + 1], GR_F32,
                          f->ws);
    K.embed_backward(&f->q, s, p, dx, f->g[0], GR_F32, f->ws);
    for (uint32_t i = 0; i < s->layers; i++) free(in[i]), free(acts[i]);
    free(in), free(acts), free(dx);
}

/* ---- transformers ----------------------------------------------------------------------------------------
 */

static void assert_near(const char *what, const char *name, const float *got, const float *want, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, fabs((double)want[i]));
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= 1e-4 * most))
            fail_msg("%s of %s, element %zu: got %.9g, want %.9g", what, name, i, (double)got[i],
                     (double)want[i]);
}

static void test_values_and_gradients_agree_with_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_LEN(names); i++) {
        struct golden g;
        golden_open(&g, names[i], 2);
        gr_packed p = packed(&g);
        float value[N], want[N];
        backward(&g.f, &p, g.d_value, FX_CHUNK, value);
        read_floats(&g, "golden.value", N, want);
        assert_near("value", names[i], value, want, N);
        fixture wanted = fx_new(&g.f.s, 1);
        fx_read(&wanted, g.path, "grad.", wanted.w);
        for (uint32_t b = 0; b < gr_model_buckets(&g.f.s); b++) {
            gr_tensor t[GR_BUCKET_TENSORS_MAX];
            for (size_t k = gr_bucket_tensors(&g.f.s, b, t); k--;)
                assert_near(t[k].name, names[i], g.f.g[b] + t[k].offset, wanted.w[b] + t[k].offset,
                            (size_t)t[k].rows * GR_MAX(t[k].cols, 1));
        }
        fx_free(&wanted);
        golden_release(&g);
    }
}

static void test_scores_of_sequences_agree_with_transformers(void **state)
{
    (void)state;
    struct golden g;
    golden_open(&g, "reward", 2);
    gr_packed p = packed(&g);
    uint32_t last[SEQS];
    float score[SEQS], want[SEQS];
    for (uint32_t s = 0; s < SEQS; s++) last[s] = g.offset[s + 1] - 1;
    fx_forward(&g.f, &p, NULL, NULL);
    head(&g.f, last, SEQS, FX_CHUNK, score);
    read_floats(&g, "golden.score", SEQS, want);
    assert_near("score", "reward", score, want, SEQS);
    golden_release(&g);
}

/* ---- differences -----------------------------------------------------------------------------------------
 */

static double loss_of(fixture *f, const gr_packed *p, const float *d_value)
{
    float value[N];
    double sum = 0;
    all_values(f, p, FX_CHUNK, value);
    for (uint32_t i = 0; i < p->n_tokens; i++) sum += (double)d_value[i] * (double)value[i];
    return sum;
}

/* Along a direction, half the gradient's, half at random: (L(w + e r) - L(w - e r)) / 2 e against r g. */
static void assert_slope(struct golden *g, float *w, const float *grad, size_t n, const char *name)
{
    gr_packed p = packed(g);
    float *kept = gr_malloc(n * sizeof(*w));
    double norm = 0, want = 0, at[2];
    const float step = (float)(0.003 / sqrt((double)n));
    memcpy(kept, w, n * sizeof(*w));
    for (size_t e = 0; e < n; e++) norm += (double)grad[e] * (double)grad[e];
    for (int side = 0; side < 2; side++) {
        uint32_t seed = 11;
        for (size_t e = 0; e < n; e++) {
            double r = (double)grad[e] / sqrt(norm) * sqrt((double)n) + (double)fx_random(&seed);
            if (side) want += r * (double)grad[e];
            w[e] = kept[e] + (side ? -step : step) * (float)r;
        }
        at[side] = loss_of(&g->f, &p, g->d_value);
    }
    memcpy(w, kept, n * sizeof(*w));
    const double got = (at[0] - at[1]) / (2 * (double)step);
    if (!(fabs(got - want) <= 0.02 * fabs(want) + 2e-5))
        fail_msg("%s: difference %.6g, gradient %.6g", name, got, want);
    free(kept);
}

static void test_gradients_agree_with_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_LEN(names); i++) {
        struct golden g;
        golden_open(&g, names[i], 1);
        gr_packed p = packed(&g);
        float value[N];
        backward(&g.f, &p, g.d_value, FX_CHUNK, value);
        for (uint32_t b = 0; b < gr_model_buckets(&g.f.s); b++) {
            gr_tensor t[GR_BUCKET_TENSORS_MAX];
            for (size_t k = gr_bucket_tensors(&g.f.s, b, t); k--;)
                assert_slope(&g, g.f.w[b] + t[k].offset, g.f.g[b] + t[k].offset,
                             (size_t)t[k].rows * GR_MAX(t[k].cols, 1), t[k].name);
        }
        golden_release(&g);
    }
}

/* ---- bits ------------------------------------------------------------------------------------------------
 */

static void test_a_value_has_the_same_bits_alone_and_packed_and_in_any_chunk(void **state)
{
    (void)state;
    struct golden g;
    golden_open(&g, "qwen3", 2);
    gr_packed p = packed(&g);
    float all[N], some[N];
    all_values(&g.f, &p, FX_CHUNK, all);
    for (uint32_t chunk = 1; chunk < FX_CHUNK; chunk += 3) {
        all_values(&g.f, &p, chunk, some);
        assert_memory_equal(all, some, sizeof(all));
    }
    for (uint32_t s = 0; s < SEQS; s++) {
        uint32_t n = g.offset[s + 1] - g.offset[s], one[] = {0, n};
        all_values(
            &g.f,
            &(gr_packed){
                .n_tokens = n, .n_seqs = 1, .ids = g.ids + g.offset[s], .offset = one, .host_offset = one},
            FX_CHUNK, some);
        assert_memory_equal(some, all + g.offset[s], n * sizeof(*some));
    }
    golden_release(&g);
}

static void test_neither_threads_nor_chunks_change_a_bit_of_gradients(void **state)
{
    (void)state;
    static const struct {
        unsigned threads;
        uint32_t chunk;
    } cuts[] = {{2, FX_CHUNK}, {3, 5}, {1, 1}};
    struct golden one;
    golden_open(&one, "llama", 1);
    gr_packed p = packed(&one);
    float value[2][N];
    backward(&one.f, &p, one.d_value, FX_CHUNK, value[0]);
    for (size_t i = 0; i < GR_LEN(cuts); i++) {
        struct golden some;
        golden_open(&some, "llama", cuts[i].threads);
        backward(&some.f, &p, one.d_value, cuts[i].chunk, value[1]);
        assert_memory_equal(value[0], value[1], sizeof(value[0]));
        for (uint32_t b = 0; b < gr_model_buckets(&one.f.s); b++)
            assert_memory_equal(one.f.g[b], some.f.g[b], gr_bucket_elems(&one.f.s, b) * sizeof(float));
        golden_release(&some);
    }
    golden_release(&one);
}

/* ---- checkpoints -----------------------------------------------------------------------------------------
 */

enum { H = 8, ROOM = 4096 };

static gr_model_shape backbone(void)
{
    gr_model_shape s = {
        .model_type = "llama", .vocab = 10, .hidden = H, .layers = 1, .tied = true, .init_std = 0.02};
    const gr_layer_desc d = gr_layer_plain(2, 1, 4, 6);
    gr_model_of(&s, &d);
    return s;
}

/* A checkpoint of the backbone whose head has these names; bias NULL: none. Element i of its weight is i + 1,
 * the bias 0.5. */
static void write_with_head(const char *weight, const char *bias)
{
    gr_st_spec specs[32];
    size_t n = 0;
    gr_arena *arena = gr_arena_new();
    float zeros[ROOM] = {0}, head_weight[H], half = 0.5f;
    for (int i = 0; i < H; i++) head_weight[i] = (float)(i + 1);
    const gr_model_shape s = backbone();
    for (uint32_t b = 0; b < gr_model_buckets(&s); b++) {
        gr_tensor t[GR_BUCKET_TENSORS_MAX];
        size_t n_tensors = gr_bucket_tensors(&s, b, t);
        for (size_t i = 0; i < n_tensors; i++)
            specs[n++] =
                (gr_st_spec){gr_arena_strdup(arena, t[i].name), t[i].rows, t[i].cols, false, 0, false, false};
    }
    size_t n_backbone = n;
    if (weight) specs[n++] = (gr_st_spec){weight, 1, H, false, 0, false, false};
    if (bias) specs[n++] = (gr_st_spec){bias, 1, 0, false, 0, false, false};
    gr_st_writer *w = NULL;
    assert_int_equal(gr_st_writer_new(&w, dir, "model", GR_ST_F32, specs, n, 0, NULL), GR_OK);
    for (size_t i = 0; i < n_backbone; i++) assert_int_equal(gr_st_writer_put(w, zeros, NULL), GR_OK);
    if (weight) assert_int_equal(gr_st_writer_put(w, head_weight, NULL), GR_OK);
    if (bias) assert_int_equal(gr_st_writer_put(w, &half, NULL), GR_OK);
    assert_int_equal(gr_st_writer_finish(w, NULL), GR_OK);
    gr_st_writer_free(w);
    gr_arena_free(arena);
}

static void assert_head_reads(bool has_bias)
{
    gr_model_shape s = backbone();
    gr_weights *w = NULL;
    gr_diag d;
    gr_diag_init(&d);
    gr_model_shape_to_value(&s);
    assert_int_equal(gr_weights_open(&w, &s, dir, "", &d), GR_OK);
    assert_int_equal(d.n, 0); /* nothing is left over */
    assert_true(gr_weights_has_head(w));
    float last[ROOM];
    assert_int_equal(gr_weights_read_bucket(w, 2, last, &d), GR_OK);
    for (int i = 0; i < H; i++)
        assert_close(last[gr_tensor_offset(&s, 2, GR_T_VALUE) + (uint64_t)i], i + 1, 0, 0);
    assert_close(last[gr_tensor_offset(&s, 2, GR_T_VALUE_BIAS)], has_bias ? 0.5 : 0, 0, 0);
    gr_weights_free(w);
    gr_diag_release(&d);
}

static void test_a_head_is_found_under_the_names_in_use(void **state)
{
    (void)state;
    static const char *const heads[][2] = {{"score.weight", NULL}, /* sequence classification */
                                           {"score.weight", "score.bias"},
                                           {"classifier.weight", "classifier.bias"},
                                           {"v_head.summary.weight", "v_head.summary.bias"},
                                           {"v_head.weight", "v_head.bias"},
                                           {"value_head.weight", NULL},
                                           {"regression_head.weight", NULL}};
    for (size_t i = 0; i < GR_LEN(heads); i++) {
        write_with_head(heads[i][0], heads[i][1]);
        assert_head_reads(heads[i][1] != NULL);
    }
}

static void test_a_head_that_is_not_there_is_fresh_or_missing(void **state)
{
    (void)state;
    gr_model_shape s = backbone();
    gr_weights *w = NULL;
    gr_diag d;
    gr_diag_init(&d);
    gr_model_shape_to_value(&s);
    write_with_head(NULL, NULL);
    assert_int_equal(gr_weights_open(&w, &s, dir, "", &d), GR_OK);
    assert_false(gr_weights_has_head(w));
    float last[ROOM], again[ROOM];
    assert_int_equal(gr_weights_read_bucket(w, 2, last, &d), GR_OK);
    uint64_t at = gr_tensor_offset(&s, 2, GR_T_VALUE);
    for (int i = 0; i < H; i++) assert_close(last[at + (uint64_t)i], 0, 0, 0);
    gr_weights_random_head(NULL, &s, 3, last);
    gr_weights_random_bucket(NULL, &s, 3, 2, again);
    assert_memory_equal(last + at, again + at, H * sizeof(float)); /* as in a whole random model */
    assert_true(last[at] != 0 && fabsf(last[at]) < 0.2f);
    assert_close(last[0], 0, 0, 0); /* the norm is the checkpoint's */
    gr_weights_free(w);
    s.fresh_head = false;
    assert_int_equal(gr_weights_open(&w, &s, dir, "", &d), GR_E_INVALID);
    assert_non_null(strstr(d.messages[0].text, "1 tensor is missing: 'score.weight'"));
    gr_diag_release(&d);
}

static char *written_config(const char *config, gr_model_shape *s, bool to_value)
{
    char *path = in_dir("source.json"), *to = in_dir("config.json"), *text;
    size_t n;
    assert_int_equal(gr_file_write(path, config, strlen(config), NULL), GR_OK);
    assert_int_equal(gr_model_shape_read(s, path, NULL), GR_OK);
    if (to_value) gr_model_shape_to_value(s);
    assert_int_equal(gr_checkpoint_write_config(dir, s, path, NULL, GR_ST_F32, NULL), GR_OK);
    assert_int_equal(gr_file_read(to, 0, &text, &n, NULL), GR_OK);
    gr_model_shape again;
    assert_int_equal(gr_model_shape_read(&again, to, NULL), GR_OK);
    assert_int_equal(again.head, s->head);
    assert_int_equal(again.value_bias, s->value_bias);
    assert_false(again.fresh_head);
    free(path);
    free(to);
    return text;
}

#define SIZES                                                                                       \
    "\"vocab_size\": 10, \"hidden_size\": 8, \"intermediate_size\": 6, \"num_hidden_layers\": 1,\n" \
    " \"num_attention_heads\": 2, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-06}\n"

static void test_a_config_that_is_written_names_the_class_that_loads_it(void **state)
{
    (void)state;
    gr_model_shape s;
    char *text = written_config("{\"model_type\": \"llama\", \"architectures\": [\n \"LlamaForCausalLM\"], "
                                "\"num_labels\": 3,\n " SIZES,
                                &s, true);
    assert_non_null(
        strstr(text, "\"architectures\": [\"LlamaForTokenClassification\"], \"num_labels\": 1,\n"));
    assert_non_null(strstr(text, "\"id2label\": {\"0\": \"LABEL_0\"}"));
    assert_non_null(strstr(text, "\"rms_norm_eps\": 1e-06"));
    free(text);
    text = written_config("{\"model_type\": \"llama\", " SIZES, &s, true); /* no class named */
    assert_non_null(strstr(text, "\"architectures\": [\"LlamaForTokenClassification\"]"));
    free(text);
    text = written_config("{\"model_type\": \"llama\", \"architectures\": [\"RewardModel\"],\n " SIZES, &s,
                          false);
    assert_non_null(strstr(text, "\"architectures\": [\"LlamaForSequenceClassification\"]"));
    free(text);
    text = written_config(
        "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForSequenceClassification\"],\n "
        "\"id2label\": {\"0\": \"a, } reward\"}, " SIZES,
        &s, false);
    assert_non_null(strstr(text, "\"id2label\": {\"0\": \"a, } reward\"}"));
    free(text);
    text = written_config("{\"model_type\": \"llama\", " SIZES, &s, false); /* a language model stays one */
    assert_null(strstr(text, "architectures"));
    free(text);
}

/* ---- devices ---------------------------------------------------------------------------------------------
 */

static void test_a_device_without_value_heads_refuses_them_by_name(void **state)
{
    (void)state;
    gr_graph *g = NULL;
    gr_diag d;
    gr_diag_init(&d);
    gr_load_options load = {.need_shapes = true};
    assert_int_equal(gr_graph_load(&g, "tests/golden/graphs/proof_ppo.yaml", &load, &d), GR_OK);
    gr_kernels without = K;
    without.device = "bare";
    without.value_ws_bytes = NULL; /* a device without the kernels has no size for them either */
    gr_plan_options o = {.kernels = &without, .threads = 1};
    gr_planned *p = NULL;
    assert_int_equal(gr_plan_graph(&p, g, &o, &d), GR_E_INVALID);
    assert_null(p);
    assert_string_equal(d.messages[0].text, "node 'values': op 'value' does not run on the bare device, "
                                            "which has no kernels for value heads");
    assert_int_equal(d.messages[0].at.line, 11);
    assert_string_equal(d.messages[d.n - 1].text,
                        "model 'critic' has a value head: the bare device has none in this version");
    assert_int_equal(d.messages[d.n - 1].at.line, 7);
    gr_graph_free(g);
    gr_diag_release(&d);
}

/* What a plan takes a device to have, by its sizes, is there to run; a build without CUDA has its sizes
 * alone. */
static void test_a_device_has_all_of_a_set_of_kernels_or_none(void **state)
{
    (void)state;
#ifdef GR_CUDA
    const bool built = true;
#else
    const bool built = false;
#endif
    for (const gr_kernels *const *at = gr_all_kernels; *at; at++) {
        const gr_kernels *k = *at;
        bool runs = k == &gr_kernels_cpu || built;
        unsigned sets = gr_kernels_sets(k), there = 0;
        if (k->embed_forward && k->layer && k->layer->attend && k->zero && k->copy)
            there |= GR_KERNELS_FORWARD;
        if (k->embed_backward && k->layer && k->layer->attend_backward && k->sum_squares && k->optim_step &&
            (!k->losses || k->code_run))
            there |= GR_KERNELS_BACKWARD;
        if (k->head_forward && k->head_backward) there |= GR_KERNELS_LM_HEAD;
        if (k->value_forward && k->value_backward) there |= GR_KERNELS_VALUE_HEAD;
        if (k->layer && k->layer->rotate && k->copy_blocks && k->head_sample) there |= GR_KERNELS_ROLLOUT;
        assert_int_equal(there, runs ? sets : 0);
        for (const gr_op *const *op = gr_ops; *op; op++) assert_int_equal((*op)->kernels & ~sets, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_and_gradients_agree_with_transformers),
        cmocka_unit_test(test_scores_of_sequences_agree_with_transformers),
        cmocka_unit_test(test_gradients_agree_with_differences),
        cmocka_unit_test(test_a_value_has_the_same_bits_alone_and_packed_and_in_any_chunk),
        cmocka_unit_test(test_neither_threads_nor_chunks_change_a_bit_of_gradients),
        cmocka_unit_test(test_a_head_is_found_under_the_names_in_use),
        cmocka_unit_test(test_a_head_that_is_not_there_is_fresh_or_missing),
        cmocka_unit_test(test_a_config_that_is_written_names_the_class_that_loads_it),
        cmocka_unit_test(test_a_device_without_value_heads_refuses_them_by_name),
        cmocka_unit_test(test_a_device_has_all_of_a_set_of_kernels_or_none),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
