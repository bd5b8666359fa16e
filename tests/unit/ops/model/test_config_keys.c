/* Every key of config.json that Hugging Face transformers has for a family (tests/oracle/config_keys.py) is
 * obeyed here, refused, or listed below with the reason for which it changes nothing. And what is meant where
 * a key is missing is what transformers means.
 */
#include "ops/model/model.h"

#include <jansson.h>

#include "tests/unit/test.h"
#include "tests/unit/test_folder.h"

/* The table of keys that are read nowhere; family NULL: all. */
static const struct {
    const char *family, *key, *why;
} passed_over[] = {
    {NULL, "use_cache", "how others keep keys and values"},
    {NULL, "pretraining_tp", "products in pieces, with the same sum"},
    {NULL, "output_router_logits", "asks for a loss of transformers"},
    {NULL, "router_aux_loss_coef", "is of that loss; a graph's losses are its own"},
    {NULL, "attention_dropout", "nothing is dropped; said unless it is 0"},
    {NULL, "depth", "of images"},
    {NULL, "image_token_id", "of images"},
    {NULL, "in_channels", "of images"},
    {NULL, "mm_tokens_per_image", "of images"},
    {NULL, "num_heads", "of images"},
    {NULL, "num_position_embeddings", "of images"},
    {NULL, "out_hidden_size", "of images"},
    {NULL, "patch_size", "of images"},
    {NULL, "spatial_merge_size", "of images"},
    {NULL, "temporal_patch_size", "of images"},
    {NULL, "video_token_id", "of images"},
    {NULL, "vision_config", "of images"},
    {NULL, "vision_start_token_id", "of images"},
    {NULL, "vision_end_token_id", "of images"},
    {NULL, "text_config", "of a model around the text"},
    {"qwen2_moe", "max_window_layers", "counts with use_sliding_window alone, which is refused"},
    {"qwen2_moe", "sliding_window", "counts with use_sliding_window alone, which is refused"},
    {"qwen3_moe", "sliding_window", "counts with use_sliding_window alone, which is refused"},
    {"smollm3", "sliding_window", "counts with use_sliding_window alone, which is refused"},
    {"qwen3_5_moe_text", "intermediate_size", "of dense layers, of which it has none"},
    {"deepseek_v2", "n_group", "of topk_method group_limited_greedy, which is refused"},
    {"deepseek_v2", "topk_group", "of topk_method group_limited_greedy, which is refused"},
    {"deepseek_v3", "num_mtp_layers", "of layers behind the last, which are not read"},
};

/* What a family's base has beside, so that other keys count. */
static const struct {
    const char *family, *keys;
} beside[] = {
    {"qwen2", "{\"use_sliding_window\": true, \"sliding_window\": 40, \"max_window_layers\": 2}"},
    {"qwen3", "{\"use_sliding_window\": true, \"sliding_window\": 40, \"max_window_layers\": 2}"},
    {"qwen3_moe", "{\"mlp_only_layers\": [1]}"},
    {"qwen2_moe", "{\"mlp_only_layers\": [1]}"},
    {"qwen3_next", "{\"mlp_only_layers\": [1]}"},
    {"gemma4_text",
     "{\"hidden_size_per_layer_input\": 8, \"attention_k_eq_v\": true, \"layer_types\": "
     "[\"sliding_attention\", \"full_attention\", \"sliding_attention\", \"sliding_attention\", "
     "\"sliding_attention\", \"full_attention\"], \"num_kv_shared_layers\": 2, "
     "\"enable_moe_block\": "
     "true, \"num_experts\": 8, \"top_k_experts\": 2, \"moe_intermediate_size\": 16}"},
    {"ministral3", "{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4.0, "
                   "\"original_max_position_embeddings\": 65536, \"llama_4_scaling_beta\": 0.1}}"},
    {"phi3", "{\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 1, 1, 1, 1, 1, 1, 1], "
             "\"long_factor\": [2, 3, 4, 5, 6, 7, 8, 9]}}"},
    {"deepseek_v2", "{\"num_key_value_heads\": 4, \"head_dim\": 64, \"num_experts_per_tok\": 6, "
                    "\"first_k_dense_replace\": 1}"},
    {"deepseek_v3", "{\"num_key_value_heads\": 4, \"head_dim\": 64}"},
    {"glm4_moe_lite", "{\"num_key_value_heads\": 4, \"head_dim\": 64}"},
};

static const char base[] =
    "{\"model_type\": \"%s\", \"vocab_size\": 100, \"hidden_size\": 64, \"intermediate_size\": 96, "
    "\"num_hidden_layers\": 6, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, "
    "\"max_position_embeddings\": 65536, \"initializer_range\": 0.02}";

static unsigned n_wrong; /* all are told */

static bool is_passed_over(const char *family, const char *key)
{
    for (size_t i = 0; i < GR_LEN(passed_over); i++)
        if (!strcmp(passed_over[i].key, key) &&
            (!passed_over[i].family || !strcmp(passed_over[i].family, family)))
            return true;
    return false;
}

static void add_shape(const gr_model_shape *s, gr_str *out)
{
    gr_str_printf(out, "%u %u %u %u %d %d %d %d %.17g", s->vocab, s->hidden, s->layers, s->max_positions,
                  s->head, s->tied, s->bos, s->pad, s->init_std);
    gr_str_printf(out, " per_layer %u %u", s->per_layer.vocab, s->per_layer.width);
    gr_str_printf(out, " %d %.9g %.9g %.9g %.9g %.9g eos", s->norm_plus_one, (double)s->norm_eps,
                  (double)s->embed_scale, (double)s->residual_scale, (double)s->logit_scale,
                  (double)s->logit_softcap);
    for (uint32_t i = 0; i < s->n_eos; i++) gr_str_printf(out, " %d", s->eos[i]);
    for (uint32_t l = 0; l < s->layers; l++) gr_layer_describe(gr_layer(s, l), out);
}

/* What a config gives: its shape as a text, then what was said; "refused" alone where it was. Caller frees.
 */
static char *outcome(const json_t *config)
{
    gr_model_shape s;
    gr_diag d;
    gr_diag_init(&d);
    gr_str text = {0};
    char *path = in_dir("config.json");
    assert_int_equal(json_dump_file(config, path, 0), 0);
    if (gr_model_shape_read(&s, path, &d))
        gr_str_puts(&text, "refused");
    else
        add_shape(&s, &text);
    for (size_t i = 0; i < d.n && strcmp(text.text, "refused") != 0; i++)
        gr_str_printf(&text, "\n%s", d.messages[i].text);
    gr_diag_release(&d);
    free(path);
    return text.text;
}

static json_t *base_of(const char *family)
{
    char *text = gr_printf(base, family);
    json_t *config = json_loads(text, 0, NULL);
    free(text);
    for (size_t i = 0; i < GR_LEN(beside); i++) {
        if (strcmp(beside[i].family, family) != 0) continue;
        json_t *more = json_loads(beside[i].keys, 0, NULL);
        json_object_update(config, more);
        json_decref(more);
    }
    return config;
}

/* Values to try in place of one. */
static json_t *probes_of(const json_t *usual)
{
    json_t *list = json_pack("[b, b, i, i, f, s]", 1, 0, 3, 24, 0.375, "probe");
    if (json_is_integer(usual)) json_array_append_new(list, json_integer(json_integer_value(usual) + 8));
    if (json_is_real(usual)) json_array_append_new(list, json_real(json_real_value(usual) * 2 + 0.5));
    json_array_append_new(list, json_pack("[s, i]", "probe", 1));
    json_array_append_new(list, json_pack("{s: s}", "rope_type", "probe"));
    return list;
}

/* Whether a value does something: it is refused, said, or gives another shape than no key at all. */
static void assert_counts(const char *family, const char *key, const char *without, json_t *value)
{
    json_t *config = base_of(family);
    const bool same = json_equal(json_object_get(config, key), value);
    json_object_set(config, key, value);
    char *with = outcome(config);
    if (!same && !strcmp(with, without)) {
        char *text = json_dumps(value, JSON_ENCODE_ANY);
        print_error("%s: '%s' of %s does nothing, and nothing is said\n", family, key, text);
        n_wrong++;
        free(text);
    }
    free(with);
    json_decref(config);
}

/* What a key may be without meaning anything else than what it means where it is missing. */
static bool says_nothing(const char *key, const json_t *usual, const json_t *value)
{
    const bool number = json_is_number(value) && json_is_number(usual);
    if (json_equal(usual, value)) return true;
    if (number && json_number_value(usual) == json_number_value(value)) return true;
    /* off, where it may be on */
    if (json_is_false(value) && !json_is_boolean(usual)) return true;
    /* sizes of base, and a share that is all */
    return json_is_integer(value) && !strcmp(key, "num_key_value_heads") && json_integer_value(value) == 2;
}

static void try_key(const char *family, const char *key, const json_t *usual, const char *without)
{
    json_t *probes = probes_of(usual), *value;
    size_t i;
    json_array_foreach(probes, i, value) if (!says_nothing(key, usual, value))
        assert_counts(family, key, without, value);
    json_decref(probes);
}

static json_t *load(void)
{
    json_t *all = json_load_file("tests/golden/config_keys.json", 0, NULL);
    assert_non_null(all);
    json_object_del(all, "transformers");
    return all;
}

static void test_every_key_is_obeyed_refused_or_listed(void **state)
{
    (void)state;
    json_t *all = load(), *keys, *usual;
    const char *family, *key;
    size_t n = 0;
    json_object_foreach(all, family, keys)
    {
        json_t *config = base_of(family);
        char *without = outcome(config);
        if (!strcmp(without, "refused")) fail_msg("%s: its base is refused", family);
        json_object_foreach(keys, key, usual)
        {
            if (!is_passed_over(family, key)) try_key(family, key, usual, without);
            n++;
        }
        free(without);
        json_decref(config);
    }
    assert_true(n > 300);
    assert_int_equal(n_wrong, 0);
    json_decref(all);
}

/* Ids are in no shape that follows from them; what a text ends with must be said. */
static bool is_id(const char *key)
{
    const size_t n = strlen(key);
    return n > 9 && !strcmp(key + n - 9, "_token_id");
}

static void test_what_is_not_said_is_what_transformers_means(void **state)
{
    (void)state;
    json_t *all = load(), *keys, *usual;
    const char *family, *key;
    json_object_foreach(all, family, keys)
    {
        json_object_foreach(keys, key, usual)
        {
            if (json_is_null(usual) || is_id(key) || strstr(key, "dropout"))
                continue; /* nothing is dropped */
            json_t *config = base_of(family);
            json_object_del(config, key);
            char *without = outcome(config);
            json_object_set(config, key, usual);
            char *with = outcome(config);
            if (strcmp(without, "refused") != 0 && strcmp(without, with) != 0) {
                char *text = json_dumps(usual, JSON_ENCODE_ANY);
                print_error("%s: without '%s' it is not %s\n", family, key, text);
                n_wrong++;
                free(text);
            }
            free(with), free(without);
            json_decref(config);
        }
    }
    assert_int_equal(n_wrong, 0);
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_key_is_obeyed_refused_or_listed),
        cmocka_unit_test(test_what_is_not_said_is_what_transformers_means),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
