/* Weights in safetensors: what is read back, what is refused, and the folders that init and export make. */
#include "ops/model/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include "tests/unit/test.h"
#include "tests/unit/test_folder.h"
#include "runtime/base/files.h"

static void write_text(const char *name, const char *text)
{
    char *path = in_dir(name);
    assert_int_equal(gr_file_write(path, text, strlen(text), NULL), GR_OK);
    free(path);
}

static gr_model_shape small(const char *type, bool tied)
{
    gr_model_shape s = {.vocab = 50, .hidden = 24, .layers = 2, .tied = tied, .init_std = 0.02};
    gr_layer_desc d = gr_layer_plain(4, 2, 6, 20);
    d.attention.qkv_bias = !strcmp(type, "qwen2");
    d.attention.qk_norm = !strcmp(type, "qwen3") ? GR_QK_NORM_HEAD : GR_QK_NORM_NONE;
    gr_model_of(&s, &d);
    return s;
}

struct sets {
    const gr_model_shape *shape;
    float *buffer;
    uint64_t seed;
};

/* Set i is random of seed + i. */
static gr_status random_set(void *ctx, size_t set, uint32_t bucket, const float **elems, gr_diag *d)
{
    struct sets *s = ctx;
    (void)d;
    gr_weights_random_bucket(NULL, s->shape, s->seed + set, bucket, s->buffer);
    *elems = s->buffer;
    return GR_OK;
}

static void write_sets(const gr_model_shape *s, const char *stem, const char *const *prefix, size_t n,
                       gr_st_dtype t, uint64_t shard_bytes)
{
    struct sets sets = {s, gr_calloc(4096, sizeof(float)), 5};
    gr_weights_source from = {random_set, &sets, prefix, n, NULL};
    assert_int_equal(gr_weights_write(s, dir, stem, &from, t, shard_bytes, NULL), GR_OK);
    free(sets.buffer);
}

static void assert_set_reads_back(const gr_model_shape *s, const char *file, const char *prefix,
                                  uint64_t seed)
{
    gr_diag d;
    gr_diag_init(&d);
    gr_weights *w = NULL;
    char *path = in_dir(file);
    float *got = gr_calloc(4096, sizeof(float)), *want = gr_calloc(4096, sizeof(float));
    assert_int_equal(gr_weights_open(&w, s, path, prefix, &d), GR_OK);
    assert_int_equal(d.n, 0);
    for (uint32_t b = 0; b < gr_model_buckets(s); b++) {
        uint64_t n = gr_bucket_elems(s, b);
        assert_in_range(n, 1, 4096);
        memset(got, 0xff, n * sizeof(float)); /* so that padding must be written */
        assert_int_equal(gr_weights_read_bucket(w, b, got, &d), GR_OK);
        gr_weights_random_bucket(NULL, s, seed, b, want);
        assert_memory_equal(got, want, n * sizeof(float));
    }
    gr_weights_free(w);
    gr_diag_release(&d);
    free(got);
    free(want);
    free(path);
}

static void test_weights_and_moments_read_back_to_the_bit(void **state)
{
    (void)state;
    static const char *const types[] = {"llama", "qwen2", "qwen3"};
    for (size_t i = 0; i < 2 * GR_LEN(types); i++) {
        gr_model_shape s = small(types[i / 2], i % 2);
        write_sets(&s, "model", (const char *const[]){""}, 1, GR_ST_F32, 0);
        assert_set_reads_back(&s, "model.safetensors", "", 5);
        char *stem = gr_printf("optimizer%zu", i), *index = gr_printf("%s.safetensors.index.json", stem);
        write_sets(&s, stem, (const char *const[]){"m.", "v."}, 2, GR_ST_F32, 9000);
        assert_set_reads_back(&s, index, "m.", 5);
        assert_set_reads_back(&s, index, "v.", 6);
        free(index);
        free(stem);
    }
}

static void test_missing_and_misshapen_tensors_are_all_named(void **state)
{
    (void)state;
    gr_model_shape s = small("llama", false), other = small("qwen2", false);
    write_sets(&s, "model", (const char *const[]){""}, 1, GR_ST_F32, 0);
    char *path = in_dir("model.safetensors");
    gr_weights *w = NULL;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_weights_open(&w, &other, path, "", &d), GR_E_INVALID);
    assert_null(w);
    assert_int_equal(d.n, 1);
    assert_non_null(
        strstr(d.messages[0].text, "6 tensors are missing: 'model.layers.0.self_attn.q_proj.bias', "));
    assert_non_null(strstr(d.messages[0].text, "'model.layers.1.self_attn.v_proj.bias'"));
    gr_diag_release(&d);

    other = s;
    other.hidden = s.kinds[0].dense.inner; /* as many elements, transposed */
    other.kinds[0].dense.inner = s.hidden;
    assert_int_equal(gr_weights_open(&w, &other, path, "", &d), GR_E_INVALID);
    bool transposed = false;
    for (size_t i = 0; i < d.n; i++)
        transposed =
            transposed || strstr(d.messages[i].text, "'model.layers.0.mlp.down_proj.weight' has the shape "
                                                     "[24, 20], but the model needs [20, 24]");
    assert_true(transposed);
    gr_diag_release(&d);

    other = s;
    other.kinds[0].dense.inner = 30;
    assert_int_equal(gr_weights_open(&w, &other, path, "", &d), GR_E_INVALID);
    assert_int_equal(d.n_errors, 6);
    assert_non_null(strstr(d.messages[0].text,
                           "'model.layers.0.mlp.gate_proj.weight' has the shape [20, 24], but the "
                           "model needs [30, 24]"));
    gr_diag_release(&d);
    free(path);
}

static void test_unexpected_tensors_are_warned_about(void **state)
{
    (void)state;
    gr_model_shape biased = small("qwen2", false), s = small("llama", false);
    write_sets(&biased, "model", (const char *const[]){""}, 1, GR_ST_BF16, 0);
    char *path = in_dir("model.safetensors");
    gr_weights *w = NULL;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_weights_open(&w, &s, path, "", &d), GR_OK);
    assert_int_equal(d.n, 1);
    assert_int_equal(d.messages[0].severity, GR_WARNING);
    assert_non_null(
        strstr(d.messages[0].text, "6 tensors are not the model's and ignored: 'model.layers.0."));
    gr_weights_free(w);
    gr_diag_release(&d);
    free(path);
}

/* Write n bytes over element i of a tensor of DIR/FILE. */
static void patch(const char *file, const char *tensor, uint64_t i, const void *bytes, size_t n)
{
    char *path = in_dir(file);
    gr_safetensors *s = NULL;
    assert_int_equal(gr_safetensors_open(&s, path, NULL), GR_OK);
    const gr_st_tensor *t = gr_safetensors_find(s, tensor);
    assert_non_null(t);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, bytes, n, (off_t)(t->offset + i * n)), n);
    close(fd);
    gr_safetensors_free(s);
    free(path);
}

/* Copy one tensor of DIR/FILE over another of the same size. */
static void copy_tensor(const char *file, const char *from, const char *to)
{
    char *path = in_dir(file), *bytes;
    size_t n;
    gr_safetensors *s = NULL;
    assert_int_equal(gr_safetensors_open(&s, path, NULL), GR_OK);
    const gr_st_tensor *a = gr_safetensors_find(s, from), *b = gr_safetensors_find(s, to);
    assert_int_equal(a->bytes, b->bytes);
    assert_int_equal(gr_file_read(path, 0, &bytes, &n, NULL), GR_OK);
    patch(file, to, 0, bytes + a->offset, a->bytes);
    gr_safetensors_free(s);
    free(bytes);
    free(path);
}

static void test_an_output_matrix_beside_a_tied_embedding_must_be_the_same(void **state)
{
    (void)state;
    gr_model_shape untied = small("llama", false), s = small("llama", true);
    untied.vocab = s.vocab = 6000; /* of several blocks */
    struct sets sets = {&untied, gr_calloc(6000 * 24 + 4096, sizeof(float)), 5};
    gr_weights_source from = {random_set, &sets, (const char *const[]){""}, 1, NULL};
    char *path = in_dir("model.safetensors");
    gr_weights *w = NULL;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_weights_write(&untied, dir, "model", &from, GR_ST_F32, 0, NULL), GR_OK);
    assert_int_equal(gr_weights_open(&w, &s, path, "", &d), GR_E_INVALID);
    assert_string_equal(
        d.messages[0].text,
        "tensor 'lm_head.weight' differs from 'model.embed_tokens.weight', but config.json has "
        "'tie_word_embeddings' true; set it to false to use both, or remove 'lm_head.weight'");
    assert_string_equal(d.messages[0].at.file, path);
    gr_diag_release(&d);

    copy_tensor("model.safetensors", "model.embed_tokens.weight", "lm_head.weight");
    assert_int_equal(gr_weights_open(&w, &s, path, "", &d), GR_OK);
    assert_int_equal(d.n, 0);
    gr_weights_free(w);
    patch("model.safetensors", "lm_head.weight", 6000 * 24 - 1, &(float){1.5f},
          sizeof(float)); /* the last one */
    assert_int_equal(gr_weights_open(&w, &s, path, "", &d), GR_E_INVALID);
    gr_diag_release(&d);

    free(sets.buffer);
    free(path);
}

/* Every bucket is read; the first that is refused ends it. */
static gr_status read_all(const gr_model_shape *s, const char *file, const char *prefix, gr_diag *d)
{
    gr_weights *w = NULL;
    char *path = in_dir(file);
    gr_status st = gr_weights_open(&w, s, path, prefix, d);
    for (uint32_t b = 0; b < gr_model_buckets(s) && !st; b++) {
        float *x = gr_calloc(gr_bucket_elems(s, b), sizeof(*x));
        st = gr_weights_read_bucket(w, b, x, d);
        free(x);
    }
    gr_weights_free(w);
    free(path);
    return st;
}

static void assert_not_finite(const gr_model_shape *s, const char *file, const char *prefix, const char *text)
{
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(read_all(s, file, prefix, &d), GR_E_INVALID);
    assert_int_equal(d.n_errors, 1);
    assert_string_equal(d.messages[0].text, text);
    assert_non_null(strstr(d.messages[0].at.file, file));
    gr_diag_release(&d);
}

static void test_weights_that_are_not_finite_are_refused_by_their_place(void **state)
{
    (void)state;
    gr_model_shape s = small("qwen2", false);
    write_sets(&s, "wide", (const char *const[]){""}, 1, GR_ST_F32, 0);
    assert_int_equal(read_all(&s, "wide.safetensors", "", NULL), GR_OK);
    patch("wide.safetensors", "model.layers.1.mlp.down_proj.weight", 3 * 20 + 17, &(float){-INFINITY}, 4);
    assert_not_finite(
        &s, "wide.safetensors", "",
        "tensor 'model.layers.1.mlp.down_proj.weight': element [3, 17] is -inf, but weights are "
        "finite numbers");
    write_sets(&s, "narrow", (const char *const[]){""}, 1, GR_ST_BF16, 0);
    patch("narrow.safetensors", "model.layers.0.self_attn.q_proj.bias", 23, &(uint16_t){0x7f81}, 2);
    assert_not_finite(&s, "narrow.safetensors", "",
                      "tensor 'model.layers.0.self_attn.q_proj.bias': element [23] is nan, but weights are "
                      "finite numbers");
    write_sets(&s, "moments", (const char *const[]){"m.", "v."}, 2, GR_ST_F32, 0);
    patch("moments.safetensors", "v.model.norm.weight", 0, &(float){INFINITY}, 4);
    assert_int_equal(read_all(&s, "moments.safetensors", "m.", NULL), GR_OK);
    assert_not_finite(&s, "moments.safetensors", "v.",
                      "tensor 'v.model.norm.weight': element [0] is inf, but weights are finite numbers");
    gr_model_shape value = small("llama", false);
    gr_model_shape_to_value(&value);
    write_sets(&value, "value", (const char *const[]){""}, 1, GR_ST_F32, 0);
    patch("value.safetensors", "score.bias", 0, &(float){NAN}, 4);
    assert_not_finite(&value, "value.safetensors", "",
                      "tensor 'score.bias': element [0] is nan, but weights are finite numbers");
}

/* Wherever it is in a vector or a block; the largest numbers are numbers. */
static void test_no_element_escapes_the_look_for_nan(void **state)
{
    (void)state;
    gr_model_shape s = small("llama", true);
    s.vocab = 5500; /* 132,000 elements: two blocks and a part of 928, which no 64 divides */
    struct sets sets = {&s, gr_calloc(5500 * 24 + 4096, sizeof(float)), 5};
    gr_weights_source from = {random_set, &sets, (const char *const[]){""}, 1, NULL};
    assert_int_equal(gr_weights_write(&s, dir, "large", &from, GR_ST_F32, 0, NULL), GR_OK);
    const uint64_t n = 5500 * 24, at[] = {0, 1, 63, 64, 65535, 65536, 131071, 131072, n - 33, n - 32, n - 1};
    const char *name = "model.embed_tokens.weight";
    for (size_t i = 0; i < GR_LEN(at); i++) {
        char *text = gr_printf("tensor '%s': element [%ju, %ju] is nan, but weights are finite numbers", name,
                               (uintmax_t)(at[i] / 24), (uintmax_t)(at[i] % 24));
        patch("large.safetensors", name, at[i], &(float){-NAN}, 4);
        assert_not_finite(&s, "large.safetensors", "", text);
        patch("large.safetensors", name, at[i], &(float){i % 2 ? -3.4028235e38f : 3.4028235e38f}, 4);
        assert_int_equal(read_all(&s, "large.safetensors", "", NULL), GR_OK);
        free(text);
    }
    free(sets.buffer);
}

#define SELECTION "model.layers.1.mlp.gate.e_score_correction_bias"

/* Layers of 17 experts that a bias selects. */
static gr_model_shape selected(void)
{
    gr_model_shape s = small("glm4_moe", false);
    gr_layer_desc d = gr_layer_plain(4, 2, 6, 0);
    snprintf(s.model_type, sizeof(s.model_type), "glm4_moe");
    d.mlp = GR_MLP_EXPERTS;
    d.experts = (gr_experts_desc){.count = 17, .top_k = 2, .inner = 1, .selection_bias = true, .scale = 1};
    gr_model_of(&s, &d);
    return s;
}

/* fp32 that bf16 would round. */
static float bias_of(size_t i)
{
    return 3 + (float)i / 7;
}

static gr_status selected_set(void *ctx, size_t set, uint32_t bucket, const float **elems, gr_diag *d)
{
    struct sets *s = ctx;
    const gr_status st = random_set(ctx, set, bucket, elems, d);
    const uint64_t at = gr_tensor_offset(s->shape, bucket, GR_T_SELECTION);
    for (size_t i = 0; at != UINT64_MAX && i < 17; i++)
        gr_selection_parts(bias_of(i), s->buffer + at + i * GR_SELECTION_PARTS);
    return st;
}

/* It is stored as the checkpoints of others have it. */
static void assert_selection_is_stored(const char *path)
{
    gr_safetensors *file = NULL;
    float got[17];
    assert_int_equal(gr_safetensors_open(&file, path, NULL), GR_OK);
    assert_int_equal(gr_safetensors_find(file, SELECTION)->dtype, GR_ST_F32);
    assert_int_equal(gr_safetensors_read_f32(file, SELECTION, 17, 0, got, NULL), GR_OK);
    for (size_t i = 0; i < 17; i++) assert_true(got[i] == bias_of(i));
    gr_safetensors_free(file);
}

static void assert_selection_reads_back(const gr_model_shape *s, const char *path)
{
    gr_weights *w = NULL;
    struct sets sets = {s, gr_calloc(4096, sizeof(float)), 5};
    const float *want;
    const uint64_t at = gr_tensor_offset(s, 2, GR_T_SELECTION);
    float part[40];
    assert_int_equal(gr_weights_open(&w, s, path, "", NULL), GR_OK);
    assert_int_equal(selected_set(&sets, 0, 2, &want, NULL), GR_OK);
    for (uint64_t first = 0; first < 28; first++) { /* wherever a part begins and ends */
        assert_int_equal(gr_weights_read_part(w, 2, at + first, 40, part, NULL), GR_OK);
        assert_memory_equal(part, want + at + first, sizeof(part));
    }
    free(sets.buffer);
    gr_weights_free(w);
}

static void test_what_selects_experts_keeps_its_bits(void **state)
{
    (void)state;
    const gr_model_shape s = selected();
    static const gr_st_dtype types[] = {GR_ST_F32, GR_ST_BF16};
    static const char *const none[] = {""};
    for (size_t i = 0; i < GR_LEN(types); i++) {
        struct sets sets = {&s, gr_calloc(4096, sizeof(float)), 5};
        const gr_weights_source from = {selected_set, &sets, none, 1, NULL};
        char *stem = gr_printf("selected%zu", i), *file = gr_printf("%s.safetensors", stem),
             *path = in_dir(file);
        assert_int_equal(gr_bucket_elems(&s, 1), 4096);
        assert_int_equal(gr_weights_write(&s, dir, stem, &from, types[i], 0, NULL), GR_OK);
        assert_selection_is_stored(path);
        assert_selection_reads_back(&s, path);
        free(sets.buffer), free(stem), free(file), free(path);
    }
}

/* As ranks write a checkpoint: pieces of a bucket, which end where shards do. */
static void test_what_selects_experts_is_written_in_parts(void **state)
{
    (void)state;
    const gr_model_shape s = selected();
    static const char *const none[] = {""};
    struct sets sets = {&s, gr_calloc(4096, sizeof(float)), 5};
    gr_weights_writer *w = NULL;
    assert_int_equal(gr_weights_writer_new(&w, &s, dir, "pieces", none, 1, GR_ST_F32, 0, NULL), GR_OK);
    for (uint32_t b = 0; b < gr_model_buckets(&s); b++) {
        const float *elems;
        assert_int_equal(selected_set(&sets, 0, b, &elems, NULL), GR_OK);
        for (uint64_t first = 0, n = gr_bucket_elems(&s, b); first < n; first += 64)
            assert_int_equal(gr_weights_writer_put_part(w, NULL, 0, b, first, 64, elems + first, NULL),
                             GR_OK);
    }
    assert_int_equal(gr_weights_writer_finish(w, NULL), GR_OK);
    gr_weights_writer_free(w);
    char *path = in_dir("pieces.safetensors");
    assert_selection_is_stored(path);
    assert_selection_reads_back(&s, path);
    free(sets.buffer), free(path);
}

static void test_random_weights_have_the_moments_they_should(void **state)
{
    (void)state;
    gr_model_shape s = small("qwen2", true);
    s.vocab = 20000;
    uint64_t n = gr_bucket_elems(&s, 0), inside = 0;
    float *x = gr_calloc(n, sizeof(*x));
    gr_weights_random_bucket(NULL, &s, 3, 0, x);
    double sum = 0, sum2 = 0;
    for (uint64_t i = 0; i < 480000; i++) {
        sum += x[i];
        sum2 += (double)x[i] * x[i];
        inside += fabsf(x[i]) < 0.02f;
    }
    /* five standard errors of mean, variance and of the share within one deviation (0.682689) */
    assert_close(sum / 480000, 0, 5 * 0.02 / 692.8, 0);
    assert_close(sum2 / 480000, 4e-4, 0, 5 * sqrt(2.0) / 692.8);
    assert_close((double)inside / 480000, 0.682689, 5 * 0.4655 / 692.8, 0);
    gr_tensor t[GR_BUCKET_TENSORS_MAX];
    gr_weights_random_bucket(NULL, &s, 3, 1, x);
    gr_bucket_tensors(&s, 1, t);
    assert_close(x[t[0].offset + 23], 1, 0, 0);     /* a norm */
    assert_close(x[t[4].offset], 0, 0, 0);          /* a bias */
    assert_false(x[t[1].offset] == x[t[2].offset]); /* q and k differ */
    float layer0 = x[t[1].offset];
    gr_weights_random_bucket(NULL, &s, 3, 2, x);
    assert_false(x[t[1].offset] == layer0);
    gr_weights_random_bucket(NULL, &s, 4, 1, x);
    assert_false(x[t[1].offset] == layer0);
    free(x);
}

static void test_random_weights_are_the_same_by_any_number_of_threads(void **state)
{
    (void)state;
    gr_model_shape s = small("qwen2", true);
    s.vocab = 3001; /* not a multiple of what threads share out */
    uint64_t n = gr_bucket_elems(&s, 0);
    float *x = gr_calloc(n, sizeof(*x)), *y = gr_calloc(n, sizeof(*y));
    gr_team *team = NULL;
    assert_int_equal(gr_team_new(&team, 3, NULL), GR_OK);
    gr_weights_random_bucket(NULL, &s, 3, 0, x);
    gr_weights_random_bucket(team, &s, 3, 0, y);
    assert_memory_equal(x, y, n * sizeof(*x));
    assert_false(y[(uint64_t)s.vocab * s.hidden - 1] == 0); /* to the last element */
    gr_team_free(team);
    free(x);
    free(y);
}

#define CONFIG                                                                                               \
    "{\n  \"model_type\": \"qwen3\", \"vocab_size\": 50, \"hidden_size\": 24, \"intermediate_size\": 20,\n"  \
    "  \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 6,\n" \
    "  \"max_position_embeddings\": 64, \"eos_token_id\": 3, \"torch_dtype\": \"float16\", "                 \
    "\"rms_norm_eps\": 1e-06\n}\n"

static void test_init_makes_a_whole_folder_or_none(void **state)
{
    (void)state;
    char *source = in_dir("source"), *out = in_dir("fresh/made"), *config = in_dir("source/config.json");
    assert_int_equal(gr_dir_make(source, NULL), GR_OK);
    write_text("source/config.json", CONFIG);
    write_text("source/generation_config.json", "{\"eos_token_id\": [4]}");
    write_text("source/tokenizer.json", "{}");
    assert_int_equal(gr_checkpoint_init(out, config, source, 5, NULL), GR_OK);

    gr_model_shape s;
    assert_int_equal(gr_model_shape_read(&s, out, NULL), GR_OK);
    assert_int_equal(s.n_eos, 2);
    assert_set_reads_back(&s, "fresh/made", "", 5);
    char *text, *made = in_dir("fresh/made/config.json"), *aside = in_dir("fresh/made.tmp");
    size_t n;
    assert_int_equal(gr_file_read(made, 0, &text, &n, NULL), GR_OK);
    assert_non_null(strstr(text, "\"torch_dtype\": \"float32\", \"rms_norm_eps\": 1e-06\n}\n"));
    assert_false(gr_path_exists(aside));
    free(text);

    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_checkpoint_init(out, config, NULL, 5, &d), GR_E_INVALID);
    assert_non_null(strstr(d.messages[0].text, "exists already"));
    gr_diag_release(&d);
    char *other = in_dir("other");
    assert_int_equal(gr_checkpoint_init(other, config, "/nowhere", 5, NULL), GR_E_IO);
    assert_false(gr_path_exists(other));
    free(other);
    free(aside);
    free(made);
    free(config);
    free(out);
    free(source);
}

/* Other names beside it are other people's; what an attempt that was killed left is not. */
static void test_init_leaves_what_lies_beside_alone(void **state)
{
    (void)state;
    char *source = in_dir("beside"), *out = in_dir("beside/model"), *config = in_dir("beside/config.json"),
         *kept = in_dir("beside/model.tmp"), *left = in_dir("beside/model.graphrun-0123abcd"), *text;
    size_t n;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_dir_make(kept, NULL), GR_OK);
    assert_int_equal(gr_dir_make(left, NULL), GR_OK);
    write_text("beside/config.json", CONFIG);
    write_text("beside/model.tmp/thesis", "years");
    assert_int_equal(gr_checkpoint_init(out, config, NULL, 5, NULL), GR_OK);
    char *thesis = in_dir("beside/model.tmp/thesis"), *lost = in_dir("beside/lost");
    assert_int_equal(gr_file_read(thesis, 0, &text, &n, NULL), GR_OK);
    assert_false(gr_path_exists(left));
    assert_int_equal(symlink("nowhere", lost), 0);
    assert_int_equal(gr_checkpoint_init(lost, config, NULL, 5, &d), GR_E_INVALID);
    assert_non_null(strstr(d.messages[0].text, "/lost' exists already"));
    gr_diag_release(&d);
    free(text);
    char *all[] = {lost, thesis, left, kept, config, out, source};
    for (size_t i = 0; i < GR_LEN(all); i++) free(all[i]);
}

static void test_export_finds_the_step_and_the_model(void **state)
{
    (void)state;
    char *run = in_dir("run"), *out = in_dir("exported"), *config = in_dir("run.json");
    char *steps[] = {in_dir("run/checkpoints/step-2/actor"), in_dir("run/checkpoints/step-10/actor"),
                     in_dir("run/checkpoints/step-10/critic"), in_dir("run/checkpoints/step-11.tmp/actor")};
    write_text("run.json", CONFIG);
    for (size_t i = 0; i < GR_LEN(steps); i++)
        assert_int_equal(gr_checkpoint_init(steps[i], config, NULL, 5 + i, NULL), GR_OK);
    char *found = NULL, *second = in_dir("run@2"), *gone = in_dir("run@7");
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_checkpoint_find(&found, run, NULL, &d), GR_E_INVALID);
    assert_non_null(strstr(d.messages[d.n - 1].text, "several models, choose one: '"));
    assert_int_equal(gr_checkpoint_find(&found, run, "reference", &d), GR_E_INVALID);
    assert_int_equal(gr_checkpoint_find(&found, run, "../step-2/actor", &d), GR_E_INVALID);
    assert_int_equal(gr_checkpoint_find(&found, gone, "actor", &d), GR_E_INVALID);
    assert_string_equal(d.messages[d.n - 1].text,
                        "no checkpoint of step 7 in its folder 'checkpoints'; it has 2 10");
    assert_int_equal(gr_checkpoint_find(&found, second, NULL, &d), GR_OK);
    assert_string_equal(found, steps[0]);
    free(found);
    assert_int_equal(gr_checkpoint_find(&found, run, "actor", &d), GR_OK);
    assert_string_equal(found, steps[1]);
    gr_diag_release(&d);

    gr_model_shape s;
    assert_int_equal(gr_checkpoint_export(&(gr_export){out, found, GR_ST_F32, 20000, false, NULL}, NULL),
                     GR_OK);
    assert_int_equal(gr_model_shape_read(&s, out, NULL), GR_OK);
    assert_set_reads_back(&s, "exported", "", 6);
    char *index = in_dir("exported/model.safetensors.index.json");
    assert_true(gr_path_exists(index));
    free(index);
    for (size_t i = 0; i < GR_LEN(steps); i++) free(steps[i]);
    free(found);
    free(second);
    free(gone);
    free(config);
    free(out);
    free(run);
}

static void assert_published_opens(const char *path)
{
    gr_model_shape s;
    gr_weights *w = NULL;
    gr_diag d;
    gr_diag_init(&d);
    if (gr_model_shape_read(&s, path, &d) || gr_weights_open(&w, &s, path, "", &d))
        fail_msg("%s", d.messages[0].text);
    assert_int_equal(d.n, 0);
    for (uint32_t b = 0; b < gr_model_buckets(&s); b++) {
        uint64_t n = gr_bucket_elems(&s, b);
        float *x = gr_calloc(n, sizeof(*x));
        double sum2 = 0;
        assert_int_equal(gr_weights_read_bucket(w, b, x, &d), GR_OK);
        for (uint64_t i = 0; i < n; i++) sum2 += (double)x[i] * x[i];
        assert_true(isfinite(sum2) && sum2 > 0);
        free(x);
    }
    gr_weights_free(w);
    gr_diag_release(&d);
}

static void test_published_weights_open(void **state)
{
    (void)state;
    need_shared(first, "weights/arithmetic_sequence");
    assert_published_opens(first);
    need_shared(second, "weights/mlxd_tiny/tiny_qwen3");
    assert_published_opens(second);
    need_shared(third, "weights/mlxd_tiny/tiny_llama3");
    assert_published_opens(third);
}

static void test_quantised_weights_are_refused_by_name(void **state)
{
    (void)state;
    need_shared(path, "weights/mlxd_tiny/tiny_qwen3_sharded");
    gr_model_shape s = {.vocab = 256, .hidden = 64, .layers = 2};
    gr_layer_desc d_of = gr_layer_plain(4, 2, 16, 128);
    d_of.attention.qk_norm = GR_QK_NORM_HEAD;
    gr_model_of(&s, &d_of);
    gr_weights *w = NULL;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_weights_open(&w, &s, path, "", &d), GR_E_INVALID);
    assert_non_null(strstr(d.messages[0].text, "'model.embed_tokens.weight' is U32; weights are read from"));
    gr_diag_release(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_and_moments_read_back_to_the_bit),
        cmocka_unit_test(test_what_selects_experts_keeps_its_bits),
        cmocka_unit_test(test_what_selects_experts_is_written_in_parts),
        cmocka_unit_test(test_missing_and_misshapen_tensors_are_all_named),
        cmocka_unit_test(test_unexpected_tensors_are_warned_about),
        cmocka_unit_test(test_an_output_matrix_beside_a_tied_embedding_must_be_the_same),
        cmocka_unit_test(test_weights_that_are_not_finite_are_refused_by_their_place),
        cmocka_unit_test(test_no_element_escapes_the_look_for_nan),
        cmocka_unit_test(test_random_weights_have_the_moments_they_should),
        cmocka_unit_test(test_random_weights_are_the_same_by_any_number_of_threads),
        cmocka_unit_test(test_init_makes_a_whole_folder_or_none),
        cmocka_unit_test(test_init_leaves_what_lies_beside_alone),
        cmocka_unit_test(test_export_finds_the_step_and_the_model),
        cmocka_unit_test(test_published_weights_open),
        cmocka_unit_test(test_quantised_weights_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
