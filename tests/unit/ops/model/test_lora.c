/* Adapters against Hugging Face peft in float64: tests/oracle/make_lora_goldens.py wrote them and what it
 * computes, beside the models of tests/golden/model and tests/golden/value. */
#include "ops/kernels/layer_ops.h"
#include "ops/model/peft.h"
#include "ops/pass.h"
#include "runtime/base/files.h"
#include "tests/unit/model_fixture.h"

enum { N = 31, SEQS = 3 }; /* of every golden */

static const char *const names[] = {"qwen3",     "qwen2", "olmo2",  "gemma3",
                                    "qwen3_moe", "value", "gemma4", "gemma4_small"};
static const char *const bases[] = {"model/qwen3",       "model/qwen2",       "model/olmo2",
                                    "model/gemma3_text", "model/qwen3_moe",   "value/llama",
                                    "model/gemma4_text", "model/gemma4_small"};

/* A model with adapters merged, and beside it the adapters: their weights and gradients. */
typedef struct lora {
    fixture model, adapters;
    float **frozen;
    gr_safetensors *file;
    int32_t ids[N], target[N];
    uint32_t offset[SEQS + 1];
    float d_logprob[N], d_entropy[N];
    gr_diag d;
} lora;

/* As ops/parallel/merge.c does it. */
static void merge(lora *l)
{
    const gr_model_shape *s = &l->model.s, *a = &l->adapters.s;
    void *ws = fx_dirty(1 << 20);
    for (uint32_t b = 0; b < gr_model_buckets(s); b++) {
        gr_adapter list[GR_N_TARGETS];
        const size_t n = gr_adapters_of(s, a, b, list);
        memcpy(l->model.w[b], l->frozen[b], gr_bucket_elems(s, b) * sizeof(float));
        for (size_t i = 0; i < n; i++) {
            const gr_merge m = {.rows = list[i].rows,
                                .in = list[i].in,
                                .rank = a->adapter.rank,
                                .scale = a->adapter.scale,
                                .w = l->frozen[b] + list[i].w,
                                .a = l->adapters.w[b] + list[i].a,
                                .b = l->adapters.w[b] + list[i].b,
                                .out = l->model.w[b] + list[i].w};
            assert_true(K.layer->merge_ws_bytes(m.rows, m.in, m.rank, 2) <= 1 << 20);
            K.layer->merge(&l->model.q, &m, ws);
        }
    }
    if (s->head == GR_HEAD_VALUE)
        memcpy(l->model.w[s->layers + 1] + gr_tensor_offset(s, s->layers + 1, GR_T_VALUE),
               l->adapters.w[s->layers + 1], s->hidden * sizeof(float));
    free(ws);
}

static void read_floats(const lora *l, const char *name, uint64_t rows, float *out)
{
    assert_int_equal(gr_safetensors_read_f32(l->file, name, rows, 0, out, NULL), GR_OK);
}

static void read_ids(const lora *l, const char *name, uint64_t rows, int32_t *out)
{
    float x[N + 1];
    read_floats(l, name, rows, x);
    for (uint64_t i = 0; i < rows; i++) out[i] = (int32_t)x[i];
}

static void lora_open(lora *l, size_t i)
{
    char base[128], dir[128], path[192];
    gr_model_shape s;
    gr_peft p;
    snprintf(base, sizeof(base), "tests/golden/%s", bases[i]);
    snprintf(dir, sizeof(dir), "tests/golden/lora/%s", names[i]);
    gr_diag_init(&l->d);
    assert_int_equal(gr_model_shape_read(&s, base, &l->d), GR_OK);
    assert_int_equal(gr_peft_read(&p, dir, &s, &l->d), GR_OK);
    const gr_model_shape a = gr_peft_shape(&p, &s);
    l->model = fx_new(&s, 2);
    l->frozen = gr_calloc(gr_model_buckets(&s), sizeof(*l->frozen));
    l->adapters = fx_new(&a, 1);
    fx_read(&l->model, base, "", l->model.w);
    for (uint32_t b = 0; b < gr_model_buckets(&s); b++) {
        const size_t bytes = gr_bucket_elems(&s, b) * sizeof(float);
        l->frozen[b] = memcpy(gr_malloc(bytes), l->model.w[b], bytes);
    }
    snprintf(path, sizeof(path), "%s/" GR_PEFT_STEM ".safetensors", dir);
    fx_read(&l->adapters, path, "", l->adapters.w);
    snprintf(path, sizeof(path), "%s/golden.safetensors", dir);
    assert_int_equal(gr_safetensors_open(&l->file, path, &l->d), GR_OK);
    read_ids(l, "golden.ids", N, l->ids);
    read_ids(l, "golden.target", N, l->target);
    read_ids(l, "golden.offset", SEQS + 1, (int32_t *)l->offset);
    read_floats(l, "golden.d_logprob", N, l->d_logprob);
    read_floats(l, "golden.d_entropy", N, l->d_entropy);
}

static void lora_release(lora *l)
{
    for (uint32_t b = 0; b < gr_model_buckets(&l->model.s); b++) free(l->frozen[b]);
    free(l->frozen);
    gr_safetensors_free(l->file);
    fx_free(&l->model);
    fx_free(&l->adapters);
    gr_diag_release(&l->d);
}

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

/* x, or what stands in the golden file under prefix, of each tensor of the adapters. */
static void assert_adapters(lora *l, size_t i, const char *prefix, float *const *got, double rtol)
{
    char path[192];
    fixture wanted = fx_new(&l->adapters.s, 1);
    snprintf(path, sizeof(path), "tests/golden/lora/%s/golden.safetensors", names[i]);
    fx_read(&wanted, path, prefix, wanted.w);
    for (uint32_t b = 0; b < gr_model_buckets(&l->adapters.s); b++) {
        gr_tensor t[GR_BUCKET_TENSORS_MAX];
        for (size_t k = gr_bucket_tensors(&l->adapters.s, b, t); k--;)
            assert_near(t[k].name, names[i], got[b] + t[k].offset, wanted.w[b] + t[k].offset,
                        (size_t)t[k].rows * GR_MAX(t[k].cols, 1), rtol);
    }
    fx_free(&wanted);
}

/* ---- a pass -------------------------------------------------------------------------------------------- */

static void head_pass(lora *l, const gr_packed *p, float *dx, float *out, float *entropy)
{
    fixture *f = &l->model;
    const gr_model_shape *s = &f->s;
    uint32_t row[FX_TOKENS];
    const fx_loss loss = {l->target, l->d_logprob, l->d_entropy, 1 / 0.7f};
    const gr_head_rows rows = fx_rows(&loss, 0, p->n_tokens, row);
    const gr_head_stats stats = {out, entropy, NULL};
    void *ws = fx_dirty(K.head_ws_bytes(s, N, GR_HEAD_GRADIENT, 2) + K.value_ws_bytes(s, N, 2));
    if (s->head == GR_HEAD_VALUE) {
        const gr_value_head h = gr_value_head_at(&K, s, f->w[s->layers + 1]);
        const gr_value_grads g = gr_value_grads_at(&l->adapters.s, l->adapters.g[s->layers + 1], GR_F32);
        assert_null(g.norm);
        K.value_forward(&f->q, s, &h, f->x, row, N, out, ws);
        K.value_backward(&f->q, s, &h, f->x, row, N, l->d_logprob, dx, &g, ws);
    } else {
        K.head_forward(&f->q, s, fx_norm(f), fx_lm(f), f->x, &rows, &stats, ws);
        K.head_backward(&f->q, s, fx_norm(f), fx_lm(f), f->x, &rows, l->d_logprob, l->d_entropy, dx, NULL,
                        NULL, GR_F32, ws);
    }
    free(ws);
}

/* Forward and backward, in one piece; gradients onto those of the adapters. */
static void pass(lora *l, float *out, float *entropy)
{
    fixture *f = &l->model;
    const gr_model_shape *s = &f->s;
    const gr_packed p = {.n_tokens = N,
                         .n_seqs = SEQS,
                         .ids = l->ids,
                         .offset = l->offset,
                         .host_offset = l->offset,
                         .carried = f->carried,
                         .d_carried = f->d_carried};
    gr_pass_bounds bounds = fx_bounds(f);
    const uint64_t row_bytes = (uint64_t)FX_TOKENS * s->hidden * sizeof(float);
    float **in = gr_calloc(s->layers, sizeof(*in)), *dx = fx_dirty(row_bytes);
    void **acts = gr_calloc(s->layers, sizeof(*acts));
    for (uint32_t i = 0; i < s->layers; i++) {
        in[i] = fx_dirty(row_bytes);
        acts[i] = fx_dirty(gr_layer_acts_bytes(&K, s, i, &bounds));
    }
    fx_forward(f, &p, in, acts);
    head_pass(l, &p, dx, out, entropy);
    bounds.adapters = &l->adapters.s;
    for (uint32_t i = s->layers; i--;) {
        const gr_layer_adapters adapters = {&l->adapters.s, l->adapters.w[i + 1]};
        void *ws = fx_dirty(gr_layer_ws_bytes(&K, s, i, &bounds, GR_LAYER_BACKWARD));
        gr_layer_backward(&K, &f->q, s, i, f->w[i + 1], &adapters, &p, in[i], acts[i], dx,
                          l->adapters.g[i + 1], GR_F32, ws);
        free(ws);
    }
    for (uint32_t i = 0; i < s->layers; i++) free(in[i]), free(acts[i]);
    free(in), free(acts), free(dx);
}

static void test_values_and_gradients_agree_with_peft(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_LEN(names); i++) {
        lora l;
        float out[N], entropy[N], want[N];
        lora_open(&l, i);
        merge(&l);
        pass(&l, out, entropy);
        const bool value = l.model.s.head == GR_HEAD_VALUE;
        read_floats(&l, value ? "golden.values" : "golden.logprob", N, want);
        assert_near("output", names[i], out, want, N, 1e-5);
        if (!value) read_floats(&l, "golden.entropy", N, want);
        if (!value) assert_near("entropy", names[i], entropy, want, N, 1e-5);
        /* of six layers fp32 is as far from fp64 in transformers itself */
        assert_adapters(&l, i, "grad.", l.adapters.g, strcmp(names[i], "gemma4_small") ? 3e-5 : 1e-4);
        lora_release(&l);
    }
}

/* The optimizer walks a bucket tensor by tensor; its first step is about the sign of a gradient. */
static void test_a_step_agrees_with_peft(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_LEN(names); i++) {
        lora l;
        lora_open(&l, i);
        fixture grads = fx_new(&l.adapters.s, 1);
        char path[192];
        snprintf(path, sizeof(path), "tests/golden/lora/%s/golden.safetensors", names[i]);
        fx_read(&grads, path, "grad.", grads.w);
        const gr_optim how = {.kind = GR_OPTIM_ADAMW,
                              .lr = 0.01,
                              .beta1 = 0.9,
                              .beta2 = 0.999,
                              .eps = 1e-8,
                              .weight_decay = 0.1,
                              .step = 1,
                              .grad_scale = 1};
        for (uint32_t b = 0; b < gr_model_buckets(&l.adapters.s); b++) {
            gr_tensor t[GR_BUCKET_TENSORS_MAX];
            const uint64_t elems = gr_bucket_elems(&l.adapters.s, b);
            float *m = gr_calloc(2 * elems + 1, sizeof(*m));
            for (size_t k = gr_bucket_ranges(&l.adapters.s, b, t); k--;) {
                const gr_optim_range r = {.w = l.adapters.w[b] + t[k].offset,
                                          .g = grads.w[b] + t[k].offset,
                                          .m = m + t[k].offset,
                                          .v = m + elems + t[k].offset};
                /* torch decays all that it is given, a bias too */
                K.optim_step(&l.model.q, &how, true, &r, (uint64_t)t[k].rows * GR_MAX(t[k].cols, 1));
            }
            free(m);
        }
        assert_adapters(&l, i, "stepped.", l.adapters.w, 1e-5);
        fx_free(&grads);
        lora_release(&l);
    }
}

/* ---- new adapters -------------------------------------------------------------------------------------- */

static void test_new_adapters_leave_every_weight_to_the_bit(void **state)
{
    (void)state;
    lora l;
    lora_open(&l, 0);
    const gr_model_shape *s = &l.adapters.s;
    for (uint32_t b = 0; b < gr_model_buckets(s); b++)
        gr_weights_random_bucket(NULL, s, 7, b, l.adapters.w[b]);
    merge(&l);
    for (uint32_t b = 0; b < gr_model_buckets(s); b++)
        assert_memory_equal(l.model.w[b], l.frozen[b], gr_bucket_elems(&l.model.s, b) * sizeof(float));
    lora_release(&l);
}

static void test_a_is_even_and_b_zero(void **state)
{
    (void)state;
    lora l;
    lora_open(&l, 0);
    gr_tensor t[GR_BUCKET_TENSORS_MAX];
    gr_weights_random_bucket(NULL, &l.adapters.s, 7, 1, l.adapters.w[1]);
    const size_t n = gr_bucket_tensors(&l.adapters.s, 1, t);
    assert_int_equal(n, 14);
    assert_string_equal(t[0].name, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
    assert_string_equal(t[3].name, "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight");
    for (size_t i = 0; i < n; i++) {
        const bool is_a = strstr(t[i].name, "lora_A") != NULL;
        const float bound = is_a ? 1 / sqrtf((float)t[i].cols) : 0;
        double least = 1, most = -1, mean = 0;
        for (uint32_t k = 0; k < t[i].rows * t[i].cols; k++) {
            const double x = (double)l.adapters.w[1][t[i].offset + k];
            least = fmin(least, x), most = fmax(most, x), mean += x / (t[i].rows * t[i].cols);
        }
        assert_true(most <= (double)bound && least >= -(double)bound);
        if (is_a) assert_true(most > 0.9 * (double)bound && least < -0.9 * (double)bound);
        assert_true(fabs(mean) <= 0.2 * (double)bound);
    }
    assert_int_equal(gr_bucket_elems(&l.adapters.s, 0), 0); /* of the embedding there are none */
    lora_release(&l);
}

/* ---- peft's configs ------------------------------------------------------------------------------------ */

static void test_a_config_that_is_written_is_read_again(void **state)
{
    (void)state;
    lora l;
    lora_open(&l, 1);
    char dir[] = "/tmp/gr_loraXXXXXX";
    gr_peft p;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(gr_peft_write(dir, &l.adapters.s, 8.5, "models/base", &l.d), GR_OK);
    assert_int_equal(gr_peft_read(&p, dir, &l.model.s, &l.d), GR_OK);
    assert_int_equal(p.rank, 3);
    assert_true(p.alpha == 8.5);
    assert_int_equal(p.targets, 1 << GR_TARGET_Q | 1 << GR_TARGET_V | 1 << GR_TARGET_UP);
    assert_int_equal(gr_path_remove(dir, NULL), GR_OK);
    lora_release(&l);
}

/* A plain config with one line more, or in the place of its own. */
static char *config_with(const char *line)
{
    static const char *const plain[] = {"\"peft_type\": \"LORA\"", "\"r\": 4", "\"lora_alpha\": 8",
                                        "\"target_modules\": [\"q_proj\"]"};
    const size_t key = strcspn(line, ":");
    gr_str s = {0};
    gr_str_printf(&s, "{%s", line);
    for (size_t i = 0; i < GR_LEN(plain); i++)
        if (strncmp(plain[i], line, key)) gr_str_printf(&s, ",\n %s", plain[i]);
    gr_str_puts(&s, "}\n");
    return s.text;
}

static void test_configs_of_other_adapters_are_refused(void **state)
{
    static const char *const keys[][2] = {
        {"\"peft_type\": \"IA3\"", "'peft_type' must be \"LORA\""},
        {"\"use_dora\": true", "'use_dora' is set"},
        {"\"use_rslora\": true", "'use_rslora' is set"},
        {"\"rank_pattern\": {\"q_proj\": 8}", "'rank_pattern' is set"},
        {"\"bias\": \"all\"", "'bias' must be"},
        {"\"init_lora_weights\": \"pissa\"", "'init_lora_weights' may have changed"},
        {"\"modules_to_save\": [\"embed_tokens\"]", "'modules_to_save' has what is not a value head"},
        {"\"target_modules\": [\"lm_head\"]", "'target_modules' has 'lm_head'"},
        {"\"target_modules\": \".*q_proj\"", "'target_modules' must be a list"},
        {"\"r\": 0", "'r' must be a rank"},
        {"\"lora_alpha\": 0", "'lora_alpha' must be"}};
    (void)state;
    lora l;
    char dir[] = "/tmp/gr_loraXXXXXX", path[64];
    lora_open(&l, 1);
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/" GR_PEFT_CONFIG, dir);
    for (size_t i = 0; i < GR_LEN(keys); i++) {
        gr_diag d;
        gr_peft p;
        gr_diag_init(&d);
        char *text = config_with(keys[i][0]);
        assert_int_equal(gr_file_write(path, text, strlen(text), NULL), GR_OK);
        assert_int_equal(gr_peft_read(&p, dir, &l.model.s, &d), GR_E_INVALID);
        if (!strstr(d.messages[0].text, keys[i][1]))
            fail_msg("'%s', not '%s'", d.messages[0].text, keys[i][1]);
        assert_string_equal(d.messages[0].at.file, path);
        gr_diag_release(&d);
        free(text);
    }
    assert_int_equal(gr_path_remove(dir, NULL), GR_OK);
    lora_release(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_and_gradients_agree_with_peft),
        cmocka_unit_test(test_a_step_agrees_with_peft),
        cmocka_unit_test(test_new_adapters_leave_every_weight_to_the_bit),
        cmocka_unit_test(test_a_is_even_and_b_zero),
        cmocka_unit_test(test_a_config_that_is_written_is_read_again),
        cmocka_unit_test(test_configs_of_other_adapters_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
