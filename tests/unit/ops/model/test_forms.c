/* Checkpoints whose tensors are not one each of ours: woven, fused and turned ones, blocks of 4 bits, and a
 * text within a model of text and images. The models are those of tests/oracle/make_model_goldens.py.
 */
#include "ops/model/checkpoint.h"

#include <fcntl.h>
#include <jansson.h>
#include <unistd.h>
#include <zlib.h>

#include "ops/model/arch.h"
#include "tests/unit/test.h"
#include "tests/unit/test_folder.h"
#include "runtime/base/files.h"

static const char *const names[] = {"qwen3_5_text", "qwen3_next",    "qwen3_5_moe",  "gemma3",
                                    "gpt_oss",      "gpt_oss_mxfp4", "phi3",         "granitemoe",
                                    "mixtral",      "mistral3",      "gemma4_shared"};

/* A model that is open. */
struct model {
    gr_model_shape s;
    gr_weights *w;
    gr_diag d;
};

static void open_model(struct model *m, const char *path)
{
    gr_diag_init(&m->d);
    assert_int_equal(gr_model_shape_read(&m->s, path, &m->d), GR_OK);
    if (gr_weights_open(&m->w, &m->s, path, "", &m->d)) fail_msg("%s", m->d.messages[m->d.n - 1].text);
}

static void open_golden(struct model *m, const char *name)
{
    char path[256];
    snprintf(path, sizeof(path), "tests/golden/model/%s", name);
    open_model(m, path);
}

static void close_model(struct model *m)
{
    gr_weights_free(m->w);
    gr_diag_release(&m->d);
}

static float *read_bucket(const struct model *m, uint32_t b)
{
    float *x = gr_malloc(gr_bucket_elems(&m->s, b) * sizeof(*x));
    assert_int_equal(gr_weights_read_bucket(m->w, b, x, NULL), GR_OK);
    return x;
}

static void assert_same(const struct model *a, const struct model *b)
{
    for (uint32_t i = 0; i < gr_model_buckets(&a->s); i++) {
        float *x = read_bucket(a, i), *y = read_bucket(b, i);
        assert_int_equal(gr_bucket_elems(&a->s, i), gr_bucket_elems(&b->s, i));
        assert_memory_equal(x, y, gr_bucket_elems(&a->s, i) * sizeof(*x));
        free(x), free(y);
    }
}

/* Of each bucket, parts of many sizes are those of the whole. */
static void assert_parts(struct model *m)
{
    for (uint32_t b = 0; b < gr_model_buckets(&m->s); b++) {
        const uint64_t n = gr_bucket_elems(&m->s, b);
        float *whole = read_bucket(m, b), *part = gr_malloc(n * sizeof(*part));
        for (uint64_t at = 0, size = 1; at < n; at += size, size = size * 5 % 997 + 1) {
            const uint64_t some = GR_MIN(size, n - at);
            assert_int_equal(gr_weights_read_part(m->w, b, at, some, part, NULL), GR_OK);
            assert_memory_equal(part, whole + at, some * sizeof(*part));
        }
        free(whole), free(part);
    }
}

static void test_a_part_is_the_part_of_the_whole(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_LEN(names); i++) {
        struct model m;
        open_golden(&m, names[i]);
        assert_parts(&m);
        close_model(&m);
    }
}

/* Exported as transformers has them, and read again. */
static void test_what_is_exported_reads_back_to_the_bit(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_LEN(names); i++) {
        struct model m, again;
        char from[256], *to = in_dir(names[i]), *config = gr_printf("%s/config.json", to), *text;
        size_t n;
        snprintf(from, sizeof(from), "tests/golden/model/%s", names[i]);
        assert_int_equal(gr_checkpoint_export(&(gr_export){to, from, GR_ST_F32, 20000, true, NULL}, NULL),
                         GR_OK);
        open_model(&m, from);
        open_model(&again, to);
        assert_int_equal(again.d.n, 0); /* nothing beside it, and no key unknown */
        assert_same(&m, &again);
        assert_int_equal(gr_file_read(config, 0, &text, &n, NULL), GR_OK);
        assert_null(strstr(text, "quantization_config"));
        assert_null(strstr(text, "vision_config"));
        if (m.s.n_eos) assert_non_null(strstr(text, "eos_token_id"));
        close_model(&m), close_model(&again);
        free(text), free(config), free(to);
    }
}

static void assert_tensor(const char *folder, const char *name, const uint64_t *dims, size_t n)
{
    gr_safetensors *s = NULL;
    char *path = in_dir(folder);
    assert_int_equal(gr_safetensors_open(&s, path, NULL), GR_OK);
    const gr_st_tensor *t = gr_safetensors_find(s, name);
    if (!t) fail_msg("no '%s' in %s", name, folder);
    assert_int_equal(t->n_dims, n);
    assert_memory_equal(t->dims, dims, n * sizeof(*dims));
    gr_safetensors_free(s);
    free(path);
}

#define DIMS(...) (const uint64_t[]){__VA_ARGS__}, GR_LEN(((const uint64_t[]){__VA_ARGS__}))

/* After the test before. */
static void test_names_are_those_of_transformers(void **state)
{
    (void)state;
    assert_tensor("gpt_oss", "model.layers.0.mlp.experts.gate_up_proj", DIMS(4, 16, 48));
    assert_tensor("gpt_oss", "model.layers.1.mlp.experts.gate_up_proj_bias", DIMS(4, 48));
    assert_tensor("gpt_oss_mxfp4", "model.layers.1.mlp.experts.down_proj", DIMS(4, 32, 32));
    assert_tensor("gpt_oss", "model.layers.1.mlp.experts.down_proj_bias", DIMS(4, 16));
    assert_tensor("gpt_oss", "model.layers.0.mlp.router.bias", DIMS(4));
    assert_tensor("gpt_oss", "model.layers.0.self_attn.sinks", DIMS(2));
    assert_tensor("qwen3_next", "model.layers.0.linear_attn.in_proj_qkvz.weight", DIMS(80, 16));
    assert_tensor("qwen3_next", "model.layers.0.linear_attn.in_proj_ba.weight", DIMS(8, 16));
    assert_tensor("qwen3_next", "model.layers.1.mlp.experts.3.up_proj.weight", DIMS(8, 16));
    assert_tensor("qwen3_5_moe", "model.layers.1.mlp.shared_expert_gate.weight", DIMS(1, 16));
    assert_tensor("phi3", "model.layers.0.self_attn.qkv_proj.weight", DIMS(32, 16));
    assert_tensor("phi3", "model.layers.1.mlp.gate_up_proj.weight", DIMS(48, 16));
    assert_tensor("granitemoe", "model.layers.0.block_sparse_moe.input_linear.weight", DIMS(4, 48, 16));
    assert_tensor("granitemoe", "model.layers.0.block_sparse_moe.output_linear.weight", DIMS(4, 16, 24));
    assert_tensor("mixtral", "model.layers.0.block_sparse_moe.experts.3.w2.weight", DIMS(16, 24));
    assert_tensor("mistral3", "lm_head.weight", DIMS(32, 16));
    assert_tensor("gemma4_shared", "model.embed_tokens_per_layer.weight", DIMS(34, 16));
    assert_tensor("gemma4_shared", "model.per_layer_model_projection.weight", DIMS(16, 16));
    assert_tensor("gemma4_shared", "model.layers.3.per_layer_input_gate.weight", DIMS(4, 16));
    assert_tensor("gemma4_shared", "model.layers.1.self_attn.k_proj.weight", DIMS(12, 16));
    assert_tensor("gemma3", "model.embed_tokens.weight", DIMS(32, 16));
}

/* Training writes buckets in parts of any size. */
static void test_what_training_writes_reads_back_to_the_bit(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_LEN(names); i++) {
        struct model m;
        gr_weights_writer *w = NULL;
        gr_weights *again = NULL;
        char *folder = gr_printf("%s/training-%zu", dir, i);
        open_golden(&m, names[i]);
        assert_int_equal(gr_dir_make(folder, NULL), GR_OK);
        assert_int_equal(gr_weights_writer_new(&w, &m.s, folder, "model", (const char *const[]){""}, 1,
                                               GR_ST_F32, 0, NULL),
                         GR_OK);
        for (uint32_t b = gr_model_buckets(&m.s); b-- > 0;) {
            float *x = read_bucket(&m, b);
            const uint64_t n = gr_bucket_elems(&m.s, b);
            for (uint64_t at = 0, size = 77; at < n; at += size)
                assert_int_equal(
                    gr_weights_writer_put_part(w, NULL, 0, b, at, GR_MIN(size, n - at), x + at, NULL), GR_OK);
            free(x);
        }
        assert_int_equal(gr_weights_writer_finish(w, NULL), GR_OK);
        gr_weights_writer_free(w);
        assert_int_equal(gr_weights_open(&again, &m.s, folder, "", NULL), GR_OK);
        assert_same(&m, &(struct model){.s = m.s, .w = again});
        gr_weights_free(again);
        close_model(&m);
        free(folder);
    }
}

static void assert_said(const gr_diag *d, const char *text)
{
    for (size_t i = 0; i < d->n; i++)
        if (strstr(d->messages[i].text, text)) return;
    fail_msg("nothing says \"%s\"", text);
}

static void test_what_is_left_out_is_said(void **state)
{
    (void)state;
    struct model m;
    open_golden(&m, "qwen3_5_moe");
    assert_said(&m.d, "1 tensor is of images or sound and left out: the model is its text part alone: "
                      "'model.visual.patch_embed.proj.weight'");
    assert_said(&m.d,
                "1 tensor is of layers that predict further tokens and left out: they are not the model's, "
                "and never trained: 'mtp.fc.weight'");
    close_model(&m);
    open_golden(&m, "gemma3");
    assert_said(&m.d, "2 tensors are of images or sound and left out");
    close_model(&m);
    open_golden(&m, "gemma4_shared");
    assert_said(&m.d,
                "2 tensors are of layers that take the keys and values of another, and left out: nothing "
                "reads them: 'model.language_model.layers.2.self_attn.v_proj.weight'");
    close_model(&m);
    open_golden(&m, "gpt_oss_mxfp4");
    assert_said(
        &m.d, "experts are in MXFP4, and widened as they are read; they are written in float32 or bfloat16");
    close_model(&m);
}

/* ---- layers that predict further tokens
 * ------------------------------------------------------------------- */

/* A folder with the config of a golden that promises such a layer, and n tensors of value 1, 2, ... */
static char *folder_ahead(const char *name, const char *golden, const gr_st_spec *specs, size_t n)
{
    char *to = in_dir(name), *from = gr_printf("tests/golden/model/%s/config.json", golden),
         *config = gr_printf("%s/config.json", to), *text;
    float x[64];
    size_t size;
    gr_st_writer *w = NULL;
    for (size_t i = 0; i < GR_LEN(x); i++) x[i] = (float)(i + 1);
    assert_int_equal(gr_dir_make(to, NULL), GR_OK);
    assert_int_equal(gr_file_read(from, 0, &text, &size, NULL), GR_OK);
    char *promises = gr_printf("{\"num_nextn_predict_layers\": 1,%s", strchr(text, '{') + 1);
    assert_int_equal(gr_file_write(config, promises, strlen(promises), NULL), GR_OK);
    assert_int_equal(gr_st_writer_new(&w, to, "model", GR_ST_BF16, specs, n, 0, NULL), GR_OK);
    for (size_t i = 0; i < n; i++) assert_int_equal(gr_st_writer_put(w, x, NULL), GR_OK);
    assert_int_equal(gr_st_writer_finish(w, NULL), GR_OK);
    gr_st_writer_free(w);
    free(text), free(promises), free(config), free(from);
    return to;
}

static gr_status export_ahead(const char *to, const char *from, const char *ahead, gr_diag *d)
{
    gr_diag_init(d);
    return gr_checkpoint_export(&(gr_export){to, from, GR_ST_BF16, 0, true, ahead}, d);
}

static void assert_text(const char *folder, const char *text)
{
    char *path = gr_printf("%s/config.json", folder), *found;
    size_t n;
    assert_int_equal(gr_file_read(path, 0, &found, &n, NULL), GR_OK);
    if (!strstr(found, text)) fail_msg("no %s in %s", text, found);
    free(found), free(path);
}

/* Copied as they are, and what is written stays the model that it was. */
static void test_layers_that_predict_ahead_go_with_an_export(void **state)
{
    (void)state;
    const gr_st_spec specs[] = {
        {.name = "model.layers.2.eh_proj.weight", .rows = 2, .cols = 16},
        {.name = "model.layers.2.enorm.weight", .rows = 16},
        {.name = "model.layers.2.mlp.gate.e_score_correction_bias", .rows = 8, .exact = true},
        {.name = "model.layers.2.mlp.experts.down_proj", .rows = 8, .cols = 4, .depth = 2},
        {.name = "model.layers.1.not_ahead", .rows = 4}};
    gr_diag d;
    struct model m;
    char *from = folder_ahead("glm-ahead", "glm4_moe", specs, GR_LEN(specs)), *to = in_dir("glm-with");
    if (export_ahead(to, "tests/golden/model/glm4_moe", from, &d)) fail_msg("%s", d.messages[0].text);
    assert_tensor("glm-with", specs[0].name, DIMS(2, 16));
    assert_tensor("glm-with", specs[1].name, DIMS(16));
    assert_tensor("glm-with", specs[3].name, DIMS(2, 4, 4));
    assert_text(to, "\"num_nextn_predict_layers\": 1");
    gr_diag_release(&d);

    gr_safetensors *s = NULL;
    assert_int_equal(gr_safetensors_open(&s, to, NULL), GR_OK);
    assert_null(gr_safetensors_find(s, "model.layers.1.not_ahead"));
    const gr_st_tensor *exact = gr_safetensors_find(s, specs[2].name);
    float x[8];
    assert_int_equal(exact->dtype, GR_ST_F32);
    assert_int_equal(gr_safetensors_find(s, specs[0].name)->dtype, GR_ST_BF16);
    assert_int_equal(gr_safetensors_read_elems(s, exact, 0, 8, x, NULL), GR_OK);
    for (size_t i = 0; i < 8; i++) assert_float_equal(x[i], (float)(i + 1), 0);
    gr_safetensors_free(s);

    open_model(&m, to); /* read again, they are left out, and said to be */
    assert_said(&m.d, "4 tensors are of layers that predict further tokens and left out");
    close_model(&m);
    free(from), free(to);
}

/* A config whose weights lack what it says would fail in whoever asks for it. */
static void test_an_export_without_them_does_not_promise_them(void **state)
{
    (void)state;
    gr_diag d;
    bool found = false;
    const gr_st_spec spec = {.name = "mtp.fc.weight", .rows = 4};
    char *from = folder_ahead("glm-promises", "glm4_moe", &spec, 1), *to = in_dir("glm-without");
    assert_int_equal(gr_file_copy("tests/golden/model/glm4_moe", "model.safetensors", from, &found, NULL),
                     GR_OK);
    assert_int_equal(export_ahead(to, from, NULL, &d), GR_OK);
    assert_said(&d, "'num_nextn_predict_layers' is 1, and 0 in what is written: layers that predict further "
                    "tokens are not in it; 'graphrun export --mtp FOLDER' copies them");
    assert_text(to, "\"num_nextn_predict_layers\": 0");
    gr_diag_release(&d);
    free(from), free(to);
}

static void test_layers_ahead_of_another_model_are_refused(void **state)
{
    (void)state;
    const struct {
        const char *ahead, *said;
    } bad[] = {{"tests/golden/model/glm4_moe", "no layers that predict further tokens"},
               {"tests/golden/model/qwen3_moe", "another model: qwen3_moe of 3 layers"},
               {"tests/golden/model/none", "none"}};
    for (size_t i = 0; i < GR_LEN(bad); i++) {
        gr_diag d;
        char *to = in_dir("never");
        assert_int_not_equal(export_ahead(to, "tests/golden/model/glm4_moe", bad[i].ahead, &d), GR_OK);
        assert_said(&d, bad[i].said);
        assert_false(gr_path_exists(to));
        gr_diag_release(&d);
        free(to);
    }
}

/* ---- what is refused of blocks ---------------------------------------------------------------------------
 */

/* A copy of gpt_oss_mxfp4 in a folder. */
static char *copy_blocks(const char *name)
{
    char *to = in_dir(name);
    bool found = false;
    assert_int_equal(gr_dir_make(to, NULL), GR_OK);
    assert_int_equal(gr_file_copy("tests/golden/model/gpt_oss_mxfp4", "config.json", to, &found, NULL),
                     GR_OK);
    assert_int_equal(gr_file_copy("tests/golden/model/gpt_oss_mxfp4", "model.safetensors", to, &found, NULL),
                     GR_OK);
    return to;
}

static void assert_not_read(const char *path, const char *text)
{
    gr_model_shape s;
    gr_weights *w = NULL;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_model_shape_read(&s, path, &d), GR_OK);
    gr_status st = gr_weights_open(&w, &s, path, "", &d);
    for (uint32_t b = 0; b < gr_model_buckets(&s) && !st; b++) {
        float *x = gr_malloc(gr_bucket_elems(&s, b) * sizeof(*x));
        st = gr_weights_read_bucket(w, b, x, &d);
        free(x);
    }
    assert_int_equal(st, GR_E_INVALID);
    assert_said(&d, text);
    gr_weights_free(w);
    gr_diag_release(&d);
}

/* Change a byte at so many behind where `what` stands in the header; from its end where behind < 0: in the
 * data of the tensor. */
static void write_at(const char *path, uint64_t at, const void *bytes, size_t n)
{
    char *file = gr_printf("%s/model.safetensors", path);
    const int fd = open(file, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, bytes, n, (off_t)at), n);
    close(fd);
    free(file);
}

static void test_blocks_that_cannot_be_widened_are_refused(void **state)
{
    (void)state;
    char *nan = copy_blocks("nan"), *gone = copy_blocks("gone"), *text;
    gr_safetensors *s = NULL;
    size_t n;
    assert_int_equal(gr_safetensors_open(&s, nan, NULL), GR_OK);
    const gr_st_tensor *t = gr_safetensors_find(s, "model.layers.1.mlp.experts.down_proj_scales");
    write_at(nan, t->offset + 2 * 32 + 5, "\xff", 1);
    gr_safetensors_free(s);
    assert_not_read(nan, "tensor 'model.layers.1.mlp.experts.down_proj_scales': element [2, 5, 0] is nan");
    char *large = copy_blocks("large"); /* 6 times 2^127: no float has it */
    assert_int_equal(gr_safetensors_open(&s, large, NULL), GR_OK);
    write_at(large, gr_safetensors_find(s, "model.layers.0.mlp.experts.down_proj_scales")->offset + 3, "\xfe",
             1);
    write_at(large, gr_safetensors_find(s, "model.layers.0.mlp.experts.down_proj_blocks")->offset + 3 * 16,
             "\xf7", 1);
    gr_safetensors_free(s);
    assert_not_read(large, "tensor 'model.layers.0.mlp.experts.down_proj_scales': element [0, 3, 0] is inf");
    free(large);
    char *file = gr_printf("%s/model.safetensors", gone);
    assert_int_equal(gr_file_read(file, 0, &text, &n, NULL), GR_OK);
    const char *name = memmem(text, n, "1.mlp.experts.down_proj_scales", 30);
    write_at(gone, (uint64_t)(name - text), "1.mlp.experts.down_proj_gone  ", 30);
    assert_not_read(gone, "1 tensor is missing: 'model.layers.1.mlp.experts.down_proj_scales'");
    free(text), free(file), free(nan), free(gone);
}

static void test_blocks_must_be_whole(void **state)
{
    (void)state;
    char *path = copy_blocks("uneven"), *config = gr_printf("%s/config.json", path), *text;
    size_t n;
    assert_int_equal(gr_file_read(config, 0, &text, &n, NULL), GR_OK);
    memcpy(strstr(text, "\"hidden_size\": 32"), "\"hidden_size\": 48", 17);
    assert_int_equal(gr_file_write(config, text, n, NULL), GR_OK);
    assert_not_read(path, "experts in MXFP4 need sizes that are multiples of 32: they have 48 and 32");
    free(text), free(config), free(path);
}

/* ---- FP8: tests/oracle/fp8_checkpoints.py ----------------------------------------------------------------
 */

static const char *const scaled[] = {"qwen3", "qwen3_next", "deepseek_v3", "ministral"};

/* Every tensor that is written has the bits of torch's product, where rows stand as the checkpoint has them.
 */
static void assert_hashes(const char *folder, const char *golden)
{
    gr_safetensors *s = NULL;
    json_t *want = json_load_file(golden, 0, NULL);
    assert_int_equal(gr_safetensors_open(&s, folder, NULL), GR_OK);
    assert_int_equal(json_object_size(want), gr_safetensors_count(s));
    for (size_t i = 0; i < gr_safetensors_count(s); i++) {
        const gr_st_tensor *t = gr_safetensors_at(s, i);
        uint8_t *bytes = gr_malloc(t->bytes);
        assert_int_equal(gr_safetensors_read_bytes(s, t, 0, t->bytes, bytes, NULL), GR_OK);
        if (json_integer_value(json_object_get(want, t->name)) != (json_int_t)crc32(0, bytes, (uInt)t->bytes))
            fail_msg("'%s' of %s has other bits than torch's", t->name, folder);
        free(bytes);
    }
    gr_safetensors_free(s);
    json_decref(want);
}

static void test_weights_in_fp8_are_widened_as_torch_does(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_LEN(scaled); i++) {
        struct model m, again;
        char *from = gr_printf("tests/golden/fp8/%s", scaled[i]),
             *golden = gr_printf("%s/weights.json", from), *name = gr_printf("fp8-%s", scaled[i]),
             *to = in_dir(name);
        open_model(&m, from);
        assert_said(&m.d, "tensors are in FP8, and widened as they are read; they are written in float32 or");
        if (i == 3)
            assert_said(&m.d, "7 tensors are for activations in FP8 and left out: weights are widened");
        assert_int_equal(m.d.n, i == 3 ? 2 : 1);
        assert_int_equal(gr_checkpoint_export(&(gr_export){to, from, GR_ST_F32, 0, true, NULL}, NULL), GR_OK);
        open_model(&again, to);
        assert_int_equal(again.d.n, 0);
        assert_same(&m, &again);
        assert_hashes(to, golden);
        assert_parts(&m);
        close_model(&m), close_model(&again);
        free(from), free(golden), free(name), free(to);
    }
}

/* A copy of qwen3 in FP8, with a tensor's name or shape in the header changed into one of the same length. */
static char *changed_fp8(const char *name, const char *from, const char *to)
{
    char *path = in_dir(name), *file = gr_printf("%s/model.safetensors", path), *text;
    bool found = false;
    size_t n;
    assert_int_equal(gr_dir_make(path, NULL), GR_OK);
    assert_int_equal(gr_file_copy("tests/golden/fp8/qwen3", "config.json", path, &found, NULL), GR_OK);
    assert_int_equal(gr_file_copy("tests/golden/fp8/qwen3", "model.safetensors", path, &found, NULL), GR_OK);
    assert_int_equal(gr_file_read(file, 0, &text, &n, NULL), GR_OK);
    const char *at = memmem(text, n, from, strlen(from));
    assert_non_null(at);
    write_at(path, (uint64_t)(at - text), to, strlen(to));
    free(text), free(file);
    return path;
}

static void test_fp8_whose_scales_do_not_fit_is_refused(void **state)
{
    (void)state;
    char *gone = changed_fp8("gone-scale", "gate_proj.weight_scale_inv", "gate_proj.weight_scales__t"),
         *shape = changed_fp8("other-scale", "\"dtype\":\"BF16\",\"shape\":[2,2]",
                              "\"dtype\":\"BF16\",\"shape\":[4,1]"),
         *kind = changed_fp8("norm", "\"dtype\":\"BF16\",\"shape\":[16,136]",
                             "\"dtype\":\"I16\" ,\"shape\":[16,136]");
    assert_not_read(gone, "tensor 'model.layers.0.mlp.gate_proj.weight' is F8_E4M3, but there is no "
                          "'model.layers.0.mlp.gate_proj.weight_scale_inv'");
    assert_not_read(shape, "has the shape [4, 1], but the model needs [2, 2]");
    assert_not_read(kind, "is I16; weights are read from F32, BF16 and F16");
    free(gone), free(shape), free(kind);
}

static void test_a_nan_in_fp8_is_refused_with_its_place(void **state)
{
    (void)state;
    char *path = changed_fp8("nan-fp8", "F8_E4M3", "F8_E4M3");
    gr_safetensors *s = NULL;
    assert_int_equal(gr_safetensors_open(&s, path, NULL), GR_OK);
    write_at(path, gr_safetensors_find(s, "model.layers.0.mlp.up_proj.weight")->offset + 130 * 136 + 133,
             "\xff", 1);
    gr_safetensors_free(s);
    assert_not_read(path, "tensor 'model.layers.0.mlp.up_proj.weight': element [130, 133] is nan");
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_part_is_the_part_of_the_whole),
        cmocka_unit_test(test_what_is_exported_reads_back_to_the_bit),
        cmocka_unit_test(test_names_are_those_of_transformers),
        cmocka_unit_test(test_what_training_writes_reads_back_to_the_bit),
        cmocka_unit_test(test_what_is_left_out_is_said),
        cmocka_unit_test(test_layers_that_predict_ahead_go_with_an_export),
        cmocka_unit_test(test_an_export_without_them_does_not_promise_them),
        cmocka_unit_test(test_layers_ahead_of_another_model_are_refused),
        cmocka_unit_test(test_blocks_that_cannot_be_widened_are_refused),
        cmocka_unit_test(test_blocks_must_be_whole),
        cmocka_unit_test(test_weights_in_fp8_are_widened_as_torch_does),
        cmocka_unit_test(test_fp8_whose_scales_do_not_fit_is_refused),
        cmocka_unit_test(test_a_nan_in_fp8_is_refused_with_its_place),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
