/* A config.json: what is read of it, what is refused by name, what is ignored aloud. */
#include "ops/model/model.h"
#include "ops/model/rope.h"

#include <jansson.h>

#include "tests/unit/test.h"
#include "tests/unit/test_folder.h"

static const char base[] =
    "{'model_type': 'llama', 'vocab_size': 100, 'hidden_size': 64, 'intermediate_size': 96,"
    "'num_hidden_layers': 2, 'num_attention_heads': 4, 'num_key_value_heads': 2,"
    "'max_position_embeddings': 512, 'eos_token_id': 7}";

static json_t *parse_quoted(const char *text) /* with ' for " */
{
    char *copy = gr_strdup(text);
    for (char *c = copy; *c; c++)
        if (*c == '\'') *c = '"';
    json_t *v = json_loads(copy, 0, NULL);
    free(copy);
    assert_non_null(v);
    return v;
}

static void write_text(const char *name, const char *text)
{
    char *path = in_dir(name);
    assert_int_equal(gr_file_write(path, text, strlen(text), NULL), GR_OK);
    free(path);
}

/* Write base with changes as config.json and read its folder. */
static gr_status read_changed(const char *changes, gr_model_shape *s, gr_diag *d)
{
    json_t *config = parse_quoted(base), *update = parse_quoted(changes);
    json_object_update(config, update);
    char *text = json_dumps(config, JSON_INDENT(1));
    write_text("config.json", text);
    free(text);
    json_decref(update);
    json_decref(config);
    return gr_model_shape_read(s, dir, d);
}

static gr_model_shape accepted(const char *changes)
{
    gr_model_shape s = {0};
    gr_diag d;
    gr_diag_init(&d);
    if (read_changed(changes, &s, &d)) fail_msg("%s", d.messages[0].text);
    assert_int_equal(d.n, 0);
    gr_diag_release(&d);
    return s;
}

/* Of the first layer. */
static gr_attention_desc attention(const char *changes)
{
    const gr_model_shape s = accepted(changes);
    return gr_layer(&s, 0)->attention;
}

static gr_rope_desc rope(const char *changes)
{
    return attention(changes).rope;
}

static void assert_refused(const char *changes, const char *text)
{
    gr_model_shape s = {.vocab = 12345};
    gr_diag d;
    gr_diag_init(&d);
    if (read_changed(changes, &s, &d) != GR_E_INVALID) fail_msg("%s was not refused", changes);
    assert_int_equal(s.vocab, 12345); /* left alone */
    bool found = false;
    for (size_t i = 0; i < d.n; i++) found = found || strstr(d.messages[i].text, text);
    if (!found) fail_msg("\"%s\" does not hold \"%s\"", d.messages[0].text, text);
    gr_diag_release(&d);
}

static void test_defaults_are_those_of_transformers(void **state)
{
    (void)state;
    gr_model_shape s = accepted("{}");
    assert_string_equal(s.model_type, "llama");
    const gr_layer_desc plain = gr_layer_plain(4, 2, 16, 96);
    assert_int_equal(s.n_kinds, 1);
    assert_true(gr_layer_same(gr_layer(&s, 0), &plain) && gr_layer_same(gr_layer(&s, 1), &plain));
    assert_close(s.norm_eps, 1e-6, 0, 1e-6);
    assert_close(s.init_std, 0.02, 0, 0);
    assert_false(s.tied);
    assert_int_equal(s.bos, -1);
    assert_int_equal(s.pad, -1);
    assert_int_equal(s.n_eos, 1);
    assert_int_equal(s.eos[0], 7);
    assert_int_equal(attention("{'num_key_value_heads': null}").kv_heads, 4);
    assert_int_equal(attention("{'model_type': 'qwen3'}").head_dim, 128);
    assert_int_equal(attention("{'model_type': 'qwen3'}").qk_norm, GR_QK_NORM_HEAD);
    assert_true(attention("{'model_type': 'qwen2', 'tie_word_embeddings': true}").qkv_bias);
    assert_int_equal(attention("{'model_type': 'mistral', 'sliding_window': 512, 'head_dim': 30}").head_dim,
                     30);
}

static void test_rope_is_read_in_every_spelling(void **state)
{
    (void)state;
#define L3                                                                                                 \
    "'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0, 'original_max_position_embeddings': " \
    "8192"
    const char *const spellings[] = {
        "{'rope_theta': 5e5, 'rope_scaling': {'rope_type': 'llama3', " L3 "}}",
        "{'rope_theta': 500000, 'rope_scaling': {'type': 'llama3', " L3 "}}",
        "{'rope_parameters': {'rope_theta': 500000.0, 'rope_type': 'llama3', " L3 "}}",
        "{'rope_theta': 500000, 'rope_parameters': {'rope_type': 'llama3', " L3 "}}",
    };
    const gr_rope_desc want = {.type = GR_ROPE_LLAMA3,
                               .dims = 16,
                               .theta = 5e5,
                               .factor = 8,
                               .low_freq_factor = 1,
                               .high_freq_factor = 4,
                               .original_positions = 8192};
    for (size_t i = 0; i < GR_LEN(spellings); i++) {
        const gr_rope_desc got = rope(spellings[i]);
        assert_true(gr_rope_same(&got, &want));
    }
    const gr_rope_desc twice = rope("{'rope_theta': 5e5, 'rope_scaling': {'rope_type': 'llama3', " L3
                                    "}, 'rope_parameters': {'rope_theta': 500000, 'type': 'llama3', "
                                    "'rope_type': 'llama3', " L3 "}}");
    assert_true(gr_rope_same(&twice, &want));
    assert_close(rope("{'rope_parameters': {'rope_theta': 20000}}").theta, 2e4, 0, 0);
    assert_close(rope("{'rope_scaling': {}}").theta, 1e4, 0, 0);
    assert_int_equal(rope("{'rope_scaling': null}").type, GR_ROPE_DEFAULT);
    assert_int_equal(rope("{'rope_scaling': {'type': 'default'}}").type, GR_ROPE_DEFAULT);
    assert_close(rope("{'rope_parameters': {'rope_type': 'default', 'rope_theta': 20000}}").theta, 2e4, 0, 0);
}

/* Defaults are those of modeling_rope_utils.py. */
static void test_linear_and_yarn_positions_are_read(void **state)
{
    (void)state;
    const gr_rope_desc linear = rope("{'rope_scaling': {'type': 'linear', 'factor': 4.0}}");
    assert_int_equal(linear.type, GR_ROPE_LINEAR);
    assert_close(linear.factor, 4, 0, 0);
    const gr_rope_desc yarn = rope("{'rope_scaling': {'rope_type': 'yarn', 'factor': 4.0}}");
    assert_int_equal(yarn.type, GR_ROPE_YARN);
    assert_int_equal(yarn.original_positions, 512); /* max_position_embeddings */
    assert_close(yarn.beta_fast, 32, 0, 0);
    assert_close(yarn.beta_slow, 1, 0, 0);
    assert_close(yarn.attention, 0.1 * log(4) + 1, 0, 1e-12);
    assert_true(yarn.truncate);
    const gr_rope_desc own =
        rope("{'rope_parameters': {'rope_type': 'yarn', 'factor': 32.0, 'truncate': false, 'mscale': 1.0, "
             "'mscale_all_dim': 0.5, 'original_max_position_embeddings': 4096, 'rope_theta': 150000}}");
    assert_int_equal(own.original_positions, 4096);
    assert_close(own.attention, (0.1 * log(32) + 1) / (0.05 * log(32) + 1), 0, 1e-12);
    assert_false(own.truncate);
}

static void assert_warned(const char *changes, const char *text)
{
    gr_model_shape s;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(read_changed(changes, &s, &d), GR_OK);
    assert_int_equal(d.n, 1);
    assert_int_equal(d.messages[0].severity, GR_WARNING);
    assert_string_equal(d.messages[0].text, text);
    assert_true(d.messages[0].at.line > 1);
    gr_diag_release(&d);
}

#define LISTS "'short_factor': [1, 1, 1, 1, 1, 1, 1, 2.5], 'long_factor': [1.5, 3, 4, 5, 6, 7, 8, 9]"

/* The factor on cosines and sines is that of Phi 3.5 and Phi 4 mini, whose configs have these positions. */
static void test_longrope_positions_are_read(void **state)
{
    (void)state;
    const gr_rope_desc phi =
        rope("{'model_type': 'phi3', 'max_position_embeddings': 131072, 'original_max_position_embeddings': "
             "4096, 'rope_scaling': {'type': 'longrope', " LISTS "}}");
    assert_int_equal(phi.type, GR_ROPE_LONG);
    assert_int_equal(phi.pairs, 8);
    assert_int_equal(phi.original_positions, 4096);
    assert_close(phi.attention, 1.1902380714238083, 0, 1e-15);
    assert_close(phi.stretch[0][7], 2.5, 0, 0);
    assert_close(phi.stretch[1][0], 1.5, 0, 0);
    const gr_rope_desc old = rope("{'model_type': 'phi3', 'max_position_embeddings': 131072, "
                                  "'rope_scaling': {'type': 'su', " LISTS "}}");
    assert_true(gr_rope_same(&phi, &old)); /* the border is 4096 where nothing is said */
    const gr_rope_desc own =
        rope("{'rope_parameters': {'rope_type': 'longrope', 'factor': 4.0, "
             "'attention_factor': 1.5, 'original_max_position_embeddings': 128, " LISTS "}}");
    assert_int_equal(own.original_positions, 128);
    assert_close(own.attention, 1.5, 0, 0);
    assert_int_equal(rope("{'rope_scaling': {'type': 'longrope', " LISTS "}}").original_positions, 512);
    assert_close(rope("{'rope_scaling': {'type': 'longrope', " LISTS "}}").attention, 1, 0, 0);
}

static void test_the_longest_sequence_says_which_list_of_longrope_holds(void **state)
{
    (void)state;
    gr_model_shape s = {.layers = 3};
    gr_layer_desc d = gr_layer_plain(2, 2, 8, 8);
    uint32_t border = 0;
    gr_model_of(&s, &d);
    assert_false(gr_model_set_longest(&s, 1u << 20, &border));
    d.attention.rope = (gr_rope_desc){.type = GR_ROPE_LONG,
                                      .dims = 8,
                                      .theta = 1e4,
                                      .attention = 1.25,
                                      .pairs = 4,
                                      .original_positions = 64,
                                      .stretch = {{1, 1, 1, 2}, {3, 3, 3, 4}}};
    gr_model_of(&s, &d);
    for (uint32_t tokens = 63; tokens < 67; tokens++) {
        gr_rope r;
        assert_int_equal(gr_model_set_longest(&s, tokens, &border), tokens > 64);
        assert_int_equal(border, 64);
        gr_rope_init(&r, &gr_layer(&s, 2)->attention.rope);
        assert_close(r.inv_freq[3], 1e-3 / (tokens > 64 ? 4 : 2), 0, 1e-7);
        assert_close(r.factor, 1.25, 0, 0);
    }
}

#define SCALED "'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 128"

/* Of Ministral 3 there are the positions whose queries are not scaled, and no more; as a text, too. */
static void test_positions_end_where_queries_are_scaled(void **state)
{
    (void)state;
    const char *of =
        "{'model_type': 'ministral3', 'rope_parameters': {'llama_4_scaling_beta': %s, " SCALED "}}";
    char *scaled = gr_printf(of, "0.1"), *plain = gr_printf(of, "0");
    gr_model_shape s;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(read_changed(scaled, &s, &d), GR_OK);
    gr_diag_release(&d);
    assert_int_equal(s.max_positions, 128);
    assert_close(gr_layer(&s, 1)->attention.rope.factor, 4, 0, 0);
    assert_int_equal(accepted(plain).max_positions, 512);
    assert_warned(scaled,
                  "queries from position 128 on are scaled ('llama_4_scaling_beta'), which is not built: "
                  "of 512 positions there are these");
    free(scaled), free(plain);
    assert_string_equal(
        accepted("{'model_type': 'mistral3', 'architectures': ['Mistral3ForConditionalGeneration'], "
                 "'text_config': {'model_type': 'ministral3', 'vocab_size': 100, 'hidden_size': 64, "
                 "'intermediate_size': 96, 'num_hidden_layers': 2, 'num_attention_heads': 4, "
                 "'num_key_value_heads': 2, 'head_dim': 16, 'max_position_embeddings': 512, "
                 "'rope_parameters': {'llama_4_scaling_beta': 0, " SCALED "}}}")
            .model_type,
        "ministral3");
}

/* Positions that are read wrongly give other numbers for every token, and no error anywhere. */
static void test_rope_that_is_ambiguous_or_not_built_is_refused(void **state)
{
    (void)state;
#define DEFAULT "'rope_parameters': {'rope_type': 'default', 'rope_theta': 10000.0}"
    static const char *const types[] = {"proportional", "mrope", "Llama3"};
    for (size_t i = 0; i < GR_LEN(types); i++) {
        char *changes = gr_printf("{" DEFAULT ", 'rope_scaling': {'type': '%s', 'factor': 4.0}}", types[i]);
        char *text = gr_printf(
            "rope type '%s' is not supported; supported are default, dynamic, linear, llama3, longrope and "
            "yarn",
            types[i]);
        assert_refused(changes, text);
        free(text);
        free(changes);
    }
    static const char *const table[][2] = {
        {"{" DEFAULT ", 'rope_scaling': {'rope_type': 'llama3', " L3 "}}",
         "'rope_scaling' and 'rope_parameters' say different things"},
        {"{'rope_parameters': {'full_attention': {'rope_type': 'default', 'rope_theta': 1e6}, "
         "'sliding_attention': {'rope_type': 'default', 'rope_theta': 1e4}}}",
         "'rope_parameters.full_attention' is an object: positions that differ by the type of layer"},
        {"{'rope_theta': 1e6, 'rope_parameters': {'rope_type': 'default', 'rope_theta': 10000.0}}",
         "'rope_parameters.rope_theta' is 10000, but another place says 1000000"},
        {"{'rope_scaling': {'factor': 4.0}}", "'rope_scaling' has 'factor', but no 'rope_type'"},
        {"{'rope_scaling': {'type': 'longrope', 'factor': 4.0}}",
         "'rope_scaling.short_factor' is not a list of 1 to 64 positive numbers"},
        {"{'rope_scaling': {'type': 'longrope', 'short_factor': [1, 0], 'long_factor': [1, 2]}}",
         "'rope_scaling.short_factor' is not a list of 1 to 64 positive numbers"},
        {"{'rope_scaling': {'type': 'longrope', 'short_factor': [1, 2], 'long_factor': [1, '2']}}",
         "'rope_scaling.long_factor' is not a list of 1 to 64 positive numbers"},
        {"{'rope_scaling': {'type': 'longrope', 'short_factor': [1, 2], 'long_factor': [1]}}",
         "'rope_scaling': 'short_factor' has 2 numbers, but 'long_factor' 1"},
        {"{'rope_scaling': {'type': 'longrope', 'short_factor': [1, 2], 'long_factor': [1, 2], "
         "'original_max_position_embeddings': 7.5}}",
         "'rope_scaling': 'original_max_position_embeddings' must be an integer of at least 2"},
        {"{'rope_scaling': {'type': 'su', 'factor': 4.0}}", "rope type 'su' is not supported; supported are"},
        {"{'model_type': 'olmo3', 'rope_parameters': {'sliding_attention': {'rope_type': 'default'}, "
         "'full_attention': {'rope_type': 'yarn', 'factor': 4.0, 'truncate': false}}}",
         "'rope_parameters.full_attention.truncate' of false is passed over by transformers"},
        {"{'rope_parameters': {'rope_theta': 1e6, 'factor': 4.0}}", "'rope_parameters' has 'factor', but no"},
        {"{'rope_scaling': {'rope_type': 7}}", "rope type '?' is not supported"},
        {"{'rope_scaling': {'rope_type': null, 'factor': 2}}", "rope type '?' is not supported"},
        {"{'rope_scaling': {'rope_type': 'llama3', 'type': 'default', " L3 "}}",
         "'rope_scaling.rope_type' is 'llama3', but 'rope_scaling.type' is 'default'"},
        {"{'rope_scaling': {'rope_type': 'llama3', 'type': 'yarn', " L3 "}}",
         "'rope_scaling.rope_type' is 'llama3', but 'rope_scaling.type' is 'yarn'"},
        {"{'rope_scaling': [1]}", "'rope_scaling' is not an object"},
        {"{'rope_parameters': {'rope_type': 'default', 'rope_theta': '1e6'}}", "is not a number from 1"},
        {"{'rope_parameters': {'rope_type': 'default', 'partial_rotary_factor': 0.5}}", "from 1 to 1"},
        {"{'original_max_position_embeddings': 4096, 'rope_scaling': {'rope_type': 'llama3', " L3 "}}",
         "'original_max_position_embeddings' is 4096, but that of the rope's scaling 8192"},
        {"{'rope_scaling': {'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0, "
         "'high_freq_factor': 4.0, 'original_max_position_embeddings': 8192.5}}",
         "and this one an integer"},
    };
    for (size_t i = 0; i < GR_LEN(table); i++) assert_refused(table[i][0], table[i][1]);
}

#define GEMMA4 "{'model_type': 'gemma4_text', 'hidden_size_per_layer_input': 0, "

static void test_what_is_not_supported_is_refused_by_name(void **state)
{
    (void)state;
    static const char *const table[][2] = {
        {"{'model_type': null}", "'model_type' is missing"},
        {"{'model_type': 'lama'}",
         "model_type 'lama' is not supported; supported are llama, mistral (in mistral3), qwen2, "},
        {"{'model_type': 'lama'}", " and smollm3; did you mean 'llama'?"},
        {"{'sliding_window': 511}",
         "'sliding_window' is not supported for 'llama', whose layers see all tokens"},
        {"{'model_type': 'granite', 'sliding_window': 'x'}",
         "'sliding_window' is not supported for 'granite'"},
        {"{'model_type': 'qwen3_next', 'attn_output_gate': false}", "'attn_output_gate' of false is not"},
        {"{'model_type': 'qwen3_5_moe_text', 'norm_topk_prob': false}", "'norm_topk_prob' must be true"},
        {"{'model_type': 'qwen3_next', 'num_experts': 9}",
         "'num_experts_per_tok' 10 is more than the 'num_experts' 9"},
        {"{'model_type': 'gpt_oss', 'swiglu_alpha': 1.5}",
         "a 'swiglu_alpha' other than 1.702 is not supported"},
        {"{'model_type': 'gpt_oss', 'num_local_experts': 3}", "'num_experts_per_tok' 4 is more than"},
        {"{'model_type': 'gpt_oss', 'num_local_experts': 257}",
         "'num_local_experts' is not an integer from 1 to 256"},
        {"{'model_type': 'gpt_oss', 'sliding_window': null}", "'sliding_window' is null: 'gpt_oss' has one"},
        {"{'model_type': 'gpt_oss', 'quantization_config': {'quant_method': 'gptq'}}",
         "'quantization_config' (gptq)"},
        {"{'quantization_config': {'quant_method': 'mxfp4'}}",
         "'quantization_config' (mxfp4): quantised weights"},
        {"{'model_type': 'gemma3'}", "'text_config' is missing or not an object"},
        {"{'model_type': 'gemma3', 'text_config': []}", "'text_config' is missing or not an object"},
        {"{'model_type': 'gemma3', 'text_config': {'model_type': 'gemma2'}}",
         "'text_config.model_type' is 'gemma2'; of model_type 'gemma3' it must be 'gemma3_text'"},
        {"{'model_type': 'qwen3_5', 'architectures': ['Qwen3_5ForTokenClassification'], 'text_config': {}}",
         "must be 'Qwen3_5ForConditionalGeneration', whose text part is read"},
        {"{'model_type': 'gemma3', 'tie_word_embeddings': false, 'text_config': {'tie_word_embeddings': "
         "true}}",
         "'tie_word_embeddings' is not what 'text_config.tie_word_embeddings' is"},
        {"{'model_type': 'gemma3', 'eos_token_id': 9, 'text_config': {'vocab_size': 8}}",
         "'vocab_size' is 8, but 'eos_token_id' has 9"},
        {"{'model_type': 'qwen3_5', 'quantization_config': {'quant_method': 'awq'}, 'text_config': {}}",
         "'quantization_config' (awq): quantised"},
        {"{'quantization_config': {'quant_method': 'compressed-tensors'}}",
         "'quantization_config' (compressed-tensors): quantised weights are not supported; convert the"},
        {"{'quantization_config': {'quant_method': 'fp8', 'fmt': 'e5m2'}}",
         "'quantization_config.fmt' is not supported; it must be 'e4m3'"},
        {"{'quantization_config': {'quant_method': 'fp8', 'weight_block_size': [1, 128]}}",
         "'quantization_config.weight_block_size' is not supported; it must be [128, 128] or null"},
        {"{'model_type': 'jetmoe'}", "model_type 'jetmoe' is not supported (a mixture of experts)"},
        {"{'model_type': 'lfm2'}",
         "model_type 'lfm2' is not supported: its short convolutions are not built"},
        {"{'model_type': 'gemma4_text', 'hidden_size_per_layer_input': null}",
         "'hidden_size_per_layer_input' is null: 0 says that layers have no embeddings of their own"},
        {"{'model_type': 'gemma4_text', 'vocab_size': 300000}",
         "'vocab_size_per_layer_input' 262144 is less than the 'vocab_size' 300000"},
        {GEMMA4 "'enable_moe_block': true}", "'num_experts' is missing"},
        {GEMMA4 "'enable_moe_block': true, 'num_experts': 4, 'top_k_experts': 5, 'moe_intermediate_size': 8}",
         "'top_k_experts' 5 is more than the 'num_experts' 4"},
        {GEMMA4 "'num_hidden_layers': 6, 'num_kv_shared_layers': 1}",
         "'num_kv_shared_layers' 1 leaves layer 5 none of its type before layer 5 to take keys"},
        {GEMMA4 "'num_hidden_layers': 6, 'num_kv_shared_layers': 6}",
         "'num_kv_shared_layers' 6 leaves layer 0 none of its type before layer 0"},
        {GEMMA4 "'num_hidden_layers': 6, 'num_kv_shared_layers': 7}",
         "'num_kv_shared_layers' is not an integer from 0 to 6"},
        {GEMMA4 "'sliding_window': null}", "'sliding_window' is null: 'gemma4_text' has one"},
        {GEMMA4 "'use_bidirectional_attention': 'all'}", "it must be null or 'vision'"},
        {GEMMA4 "'rope_theta': 1e4}", "'rope_theta' is not supported for 'gemma4_text'"},
        {GEMMA4 "'attention_bias': true}", "'attention_bias' is not supported for 'gemma4_text'"},
        {GEMMA4 "'layer_types': ['full_attention', 'sliding_attention']}",
         "the last of 'layer_types' must be 'full_attention'"},
        {GEMMA4 "'global_head_dim': 1024}", "'global_head_dim' is not an integer from 1 to 512"},
        {GEMMA4 "'global_head_dim': 33}", "a head dimension of 33 is odd"},
        {GEMMA4 "'attention_k_eq_v': true, 'num_global_key_value_heads': 5}",
         "is not a multiple of 5, the heads of keys of layers without a window"},
        {GEMMA4 "'per_layer_config': []}", "'per_layer_config' is not an object"},
        {GEMMA4 "'per_layer_config': {'1': {'sliding_window': 7}}}",
         "'sliding_window' of a layer's own is not supported"},
        {GEMMA4 "'per_layer_config': {'1': {'head_dim': 0}}}",
         "'head_dim' of layer 1 is not an integer from 1 to 512"},
        {GEMMA4 "'per_layer_config': {'0': {'head_dim': 32}}}",
         "layer 0 has other heads than layers of its type"},
        {GEMMA4 "'rope_parameters': {'sliding_attention': {}, 'full_attention': {'rope_type': "
                "'proportional', 'partial_rotary_factor': 2}}}",
         "'rope_parameters' is not a number from 0 to 1"},
        {"{'rope_parameters': {'rope_type': 'proportional', 'rope_theta': 1e4}}",
         "rope type 'proportional' is not supported"},
        {"{'model_type': 'ernie4_5'}", "its rotation of neighbouring dimensions is not built"},
        {"{'model_type': 'phi3', 'rope_scaling': {'type': 'su', 'factor': 4.0}}",
         "'rope_scaling.short_factor' is not a list of 1 to 64 positive numbers"},
        {"{'model_type': 'phi3', 'rope_scaling': {'type': 'su', 'short_factor': [1, 2, 3], "
         "'long_factor': [1, 2, 3]}}",
         "'rope_scaling': lists of 3 numbers, but"},
        {"{'model_type': 'phi3', 'rope_scaling': {'type': 'longrope', 'short_factor': [1], 'long_factor': "
         "[1], 'original_max_position_embeddings': 64}}",
         "'rope_scaling.original_max_position_embeddings' is 64, but transformers reads that of the root, "
         "which is 4096"},
        {"{'model_type': 'phi3', 'rope_scaling': {'type': 'yarn', 'factor': 4.0}}",
         "positions of 'phi3' are stretched by longrope alone"},
        {"{'model_type': 'ministral3'}", "positions of 'ministral3' are those of yarn, with a 'llama_4_"},
        {"{'model_type': 'ministral3', 'rope_parameters': {'rope_type': 'yarn', 'factor': 4.0}}",
         "positions of 'ministral3' are those of yarn, with a 'llama_4_scaling_beta'"},
        {"{'model_type': 'mixtral', 'router_jitter_noise': 0.1}",
         "'router_jitter_noise' is not supported for 'mixtral'"},
        {"{'model_type': 'mixtral', 'num_local_experts': 1}",
         "'num_experts_per_tok' 2 is more than the 'num_local_experts' 1"},
        {"{'model_type': 'mixtral', 'num_experts': 4}",
         "'num_experts' is not what 'mixtral' calls its experts"},
        {"{'model_type': 'olmoe', 'clip_qkv': 8.0}", "'clip_qkv' of 8.0 changes what the model computes"},
        {"{'model_type': 'granitemoe', 'num_experts_per_tok': 9}",
         "'num_experts_per_tok' 9 is more than the"},
        {"{'model_type': 'seed_oss', 'mlp_bias': true}", "'mlp_bias' is not supported for 'seed_oss'"},
        {"{'model_type': 'exaone4', 'sliding_window_pattern': 'LLLG'}",
         "'sliding_window_pattern' is not an integer"},
        {"{'model_type': 'gemma', 'use_bidirectional_attention': true}",
         "'use_bidirectional_attention' is not"},
        {"{'num_local_experts': 8}",
         "'num_local_experts': mixtures of experts are not supported of model_type 'llama'"},
        {"{'model_type': 'qwen3_moe', 'num_experts': 513}", "'num_experts' is not an integer from 1 to 512"},
        {"{'model_type': 'qwen3_moe', 'num_experts': 4, 'num_experts_per_tok': 5}",
         "'num_experts_per_tok' 5 is more than the 'num_experts' 4"},
        {"{'model_type': 'qwen3_moe', 'mlp_only_layers': [2]}",
         "'mlp_only_layers' is not a list of layers from 0 to 1"},
        {"{'model_type': 'glm4_moe', 'n_group': 3}", "'n_group' 3 does not cut 128 experts into groups"},
        {"{'model_type': 'glm4_moe', 'n_group': 32, 'topk_group': 1}",
         "'topk_group' 1 leaves no 8 experts to choose"},
        {"{'model_type': 'glm4_moe', 'partial_rotary_factor': 0.45}", "leaves 7 of a head's 16 dimensions"},
        {"{'model_type': 'deepseek_v32'}",
         "model_type 'deepseek_v32' is not supported: its sparse attention"},
        {"{'model_type': 'glm_moe_dsa'}", "its sparse attention with an indexer (DSA) is not built"},
        {"{'model_type': 'deepseek_v4'}", "its compressed attention and its hyper-connections are not built"},
        {"{'model_type': 'deepseek_v3', 'quantization_config': {'quant_method': 'awq'}}",
         "'quantization_config' (awq): quantised weights are not supported; convert the checkpoint to bf16"},
        {"{'model_type': 'deepseek_v3', 'num_key_value_heads': 2}",
         "'num_key_value_heads' is not 4, as 'num_attention_heads' is"},
        {"{'model_type': 'deepseek_v3', 'qk_nope_head_dim': 224}", "add up to 288, which is more than 256"},
        {"{'model_type': 'deepseek_v3', 'v_head_dim': 200}", "it is more than the 192 of a key"},
        {"{'model_type': 'deepseek_v3', 'qk_rope_head_dim': 63}", "'qk_rope_head_dim' 63 is odd"},
        {"{'model_type': 'deepseek_v3', 'head_dim': 128}", "'head_dim' is not 64, as 'qk_rope_head_dim' is"},
        {"{'model_type': 'deepseek_v3', 'kv_lora_rank': 2048}",
         "'kv_lora_rank' is not an integer from 1 to 1024"},
        {"{'model_type': 'deepseek_v3', 'attention_bias': true}", "'attention_bias'"},
        {"{'model_type': 'deepseek_v3', 'scoring_func': 'softmax'}",
         "'scoring_func' 'softmax' is not supported of 'deepseek_v3': it must be 'sigmoid'"},
        {"{'model_type': 'deepseek_v3', 'moe_layer_freq': 2}", "'moe_layer_freq' is not 1"},
        {"{'model_type': 'deepseek_v2', 'num_experts_per_tok': 6, 'topk_method': 'group_limited_greedy'}",
         "'topk_method' 'group_limited_greedy' is not supported of 'deepseek_v2': it must be 'greedy'"},
        {"{'model_type': 'deepseek_v2', 'num_experts_per_tok': 6, 'norm_topk_prob': true}",
         "'norm_topk_prob' is not supported of 'deepseek_v2'"},
        {"{'model_type': 'deepseek_v2', 'num_experts_per_tok': 65}", "is not an integer from 1 to 32"},
        {"{'model_type': 'glm4_moe_lite', 'mlp_layer_types': ['sparse', 'dense']}",
         "first 'dense' ones and then 'sparse' ones"},
        {"{'model_type': 'glm4_moe_lite', 'num_key_value_heads': 4, 'first_k_dense_replace': 2}",
         "'first_k_dense_replace' is not 1"},
        {"{'model_type': 'qwen3_moe', 'norm_topk_prob': 1}", "'norm_topk_prob' is not true or false"},
        {"{'model_type': 'qwen3_moe', 'moe_intermediate_size': 0}",
         "'moe_intermediate_size' is not an integer"},
        {"{'architectures': ['LlamaForQuestionAnswering']}",
         "'LlamaForQuestionAnswering' is not supported; "
         "model_type 'llama' must be 'LlamaForCausalLM', or with a value head 'LlamaForTokenClassification' "
         "or "
         "'LlamaForSequenceClassification'"},
        {"{'architectures': ['Qwen2ForTokenClassification']}",
         "'Qwen2ForTokenClassification' is not supported"},
        {"{'architectures': ['LlamaForTokenClassification'], 'id2label': {'0': 'bad', '1': 'good'}}",
         "'id2label' says 2 labels: a value head has one"},
        {"{'architectures': ['LlamaForSequenceClassification'], 'num_labels': 5}",
         "'num_labels' says 5 labels: a value head has one"},
        {"{'architectures': []}", "architecture '?'"},
        {"{'model_type': 'gemma3_text', 'architectures': ['Gemma3ForSequenceClassification']}",
         "'Gemma3ForCausalLM', or with a value head 'Gemma3TextForTokenClassification'"},
        {"{'num_local_experts': 8}", "'num_local_experts': mixtures"},
        {"{'hidden_act': 'gelu'}", "hidden_act 'gelu' is not supported; it must be 'silu'"},
        {"{'quantization_config': {'quant_method': 'gptq'}}", "'quantization_config' (gptq): quantised"},
        {"{'quantization': {'bits': 4}}", "'quantization': quantised"},
        {"{'attention_bias': true}", "'attention_bias' is not supported for 'llama'"},
        {"{'mlp_bias': true}", "'mlp_bias' is not supported"},
        {"{'model_type': 'qwen2', 'use_sliding_window': 1}", "'use_sliding_window' is not true or false"},
        {"{'model_type': 'qwen2', 'layer_types': ['full_attention', 'sliding_attention']}",
         "layer type 'sliding_attention'"},
        {"{'use_sliding_window': true}", "'use_sliding_window' is not supported for 'llama'"},
        {"{'model_type': 'smollm3', 'use_sliding_window': true}", "'use_sliding_window' is not supported"},
        {"{'model_type': 'smollm3', 'no_rope_layers': [1]}",
         "'no_rope_layers' does not have a 0 or 1 for layer 1"},
        {"{'model_type': 'smollm3', 'no_rope_layers': [1, 2]}", "a 0 or 1 for layer 1"},
        {"{'model_type': 'olmo2', 'attention_bias': true}", "'attention_bias' is not supported for 'olmo2'"},
        {"{'model_type': 'granite', 'logits_scaling': 0}", "'logits_scaling' is not a number from"},
        {"{'model_type': 'granite', 'final_logit_softcapping': 30}",
         "'final_logit_softcapping' of 30 changes"},
        {"{'model_type': 'gemma2', 'hidden_activation': 'silu'}",
         "hidden_activation 'silu' is not supported; it must be 'gelu_pytorch_tanh'"},
        {"{'model_type': 'gemma2', 'use_bidirectional_attention': true}",
         "'use_bidirectional_attention' is not supported for 'gemma2'"},
        {"{'model_type': 'gemma2', 'layer_types': ['full_attention', 'chunked_attention']}",
         "layer type 'chunked_attention' is not supported; it must be 'sliding_attention' or "
         "'full_attention'"},
        {"{'model_type': 'gemma2', 'query_pre_attn_scalar': 0}", "'query_pre_attn_scalar' is not an integer"},
        {"{'model_type': 'qwen3_5_text', 'linear_num_value_heads': 3}",
         "'linear_num_value_heads' 3 is not a multiple of 'linear_num_key_heads' 16"},
        {"{'model_type': 'qwen3_5_text', 'partial_rotary_factor': 0.001}",
         "'partial_rotary_factor' of 0.001 leaves 0 of a head's"},
        {"{'model_type': 'qwen3_5_text', 'linear_key_head_dim': 512}",
         "'linear_key_head_dim' is not an integer from 1 to 128"},
        {"{'model_type': 'gemma3_text', 'rope_parameters': {'rope_theta': 1e6}}",
         "'rope_parameters' has no 'full_attention'"},
        {"{'model_type': 'gemma3_text', 'rope_scaling': {'rope_type': 'linear', 'factor': 8.0}, "
         "'rope_parameters': {'full_attention': {}, 'sliding_attention': {}}}",
         "'rope_scaling' and 'rope_parameters' are both there"},
        {"{'model_type': 'gemma3_text', 'rope_scaling': {'rope_type': 'longrope', 'factor': 8.0}}",
         "'rope_scaling.short_factor' is not a list of 1 to 64 positive numbers"},
        {"{'model_type': 'gemma3_text', 'rope_parameters': {'full_attention': {'rope_type': 'linear'}, "
         "'sliding_attention': {}}}",
         "'rope_parameters.full_attention.factor' is missing or not a positive number"},
        {"{'model_type': 'gemma3_text', 'rope_theta': 5e3, 'rope_parameters': {'full_attention': "
         "{'rope_theta': 1e6}, 'sliding_attention': {}}}",
         "'rope_parameters.full_attention.rope_theta' is 1000000, but another place says 5000"},
        {"{'model_type': 'gemma3_text', 'rope_parameters': {'full_attention': {}, 'sliding_attention': {}, "
         "'rope_theta': 1e6}}",
         "'rope_parameters.rope_theta' is of no type of layer of 'gemma3_text'"},
        {"{'model_type': 'gemma3_text', 'rope_parameters': {'full_attention': null, 'sliding_attention': "
         "{}}}",
         "'rope_parameters' has no 'full_attention'"},
        {"{'model_type': 'gemma3_text', 'sliding_window_pattern': 0}",
         "'sliding_window_pattern' is not an integer from 1 to"},
        {"{'model_type': 'gemma3_text', 'sliding_window': null}", "'sliding_window' is null: 'gemma3_text'"},
        {"{'model_type': 'olmo3', 'sliding_window': null}", "'sliding_window' is null: 'olmo3' has one"},
        {"{'model_type': 'gemma2', 'sliding_window': null}", "'sliding_window' is null: 'gemma2' has one"},
        {"{'model_type': 'gemma3_text', 'attn_logit_softcapping': 50.0}",
         "'attn_logit_softcapping' of 50.0 changes"},
        {"{'model_type': 'olmo2', 'layer_types': ['sliding_attention', 'full_attention']}",
         "layer type 'sliding_attention'"},
        {"{'model_type': 'granite', 'layer_types': ['full_attention']}", "'layer_types' has 1 entries"},
        {"{'model_type': 'smollm3', 'no_rope_layers': [1, 0, 1]}",
         "'no_rope_layers' has 3 entries, but 'num_hidden_layers' is 2"},
        {"{'hidden_act': 'gelu', 'hidden_activation': 'silu'}", "hidden_act 'gelu' is not supported"},
        {"{'rope_scaling': {'rope_type': 'yarn', 'factor': 4.0, 'truncate': 'no'}}",
         "'rope_scaling.truncate' is not true or false"},
        {"{'layer_types': ['full_attention', 'sliding_attention']}", "layer type 'sliding_attention'"},
        {"{'layer_types': 'full_attention'}", "'layer_types' is not a list"},
        {"{'layer_types': {}}", "'layer_types' is not a list"},
        {"{'layer_types': ['full_attention']}", "'layer_types' has 1 entries, but 'num_hidden_layers' is 2"},
        {"{'layer_types': []}", "'layer_types' has 0 entries"},
        {"{'layer_types': ['full_attention', null]}", "layer type '?'"},
        {"{'attn_logit_softcapping': 50.0}",
         "'attn_logit_softcapping' of 50.0 changes what the model computes"},
        {"{'final_logit_softcapping': 30}", "'final_logit_softcapping' of 30 changes"},
        {"{'attention_multiplier': 0.0078125}", "'attention_multiplier' of 0.0078125 changes"},
        {"{'residual_multiplier': 0}", "'residual_multiplier' of 0 changes"},
        {"{'scale_emb': 12}", "'scale_emb' of 12 changes"},
        {"{'use_qk_norm': true}", "'use_qk_norm' of true changes"},
        {"{'no_rope_layers': [1, 0]}", "'no_rope_layers' of [1,0] changes"},
        {"{'partial_rotary_factor': 0.5}", "'partial_rotary_factor' is not a number from 1 to 1"},
        {"{'num_key_value_heads': 3}",
         "'num_attention_heads' 4 is not a multiple of 'num_key_value_heads' 3"},
        {"{'num_attention_heads': 5, 'num_key_value_heads': 5}", "'hidden_size' 64 is not a multiple"},
        {"{'head_dim': 5}", "a head dimension of 5 is odd"},
        {"{'hidden_size': 0}", "'hidden_size' is not an integer from 1 to"},
        {"{'hidden_size': -64}", "'hidden_size' is not an integer from 1 to"},
        {"{'hidden_size': 64.0}", "'hidden_size' is not an integer from 1 to"},
        {"{'hidden_size': '64'}", "'hidden_size' is not an integer from 1 to"},
        {"{'hidden_size': null}", "'hidden_size' is missing"},
        {"{'vocab_size': 9223372036854775807}", "'vocab_size' is not an integer from 1 to"},
        {"{'num_hidden_layers': 4294967298}", "'num_hidden_layers' is not an integer from 1 to"},
        {"{'rms_norm_eps': -1e-6}", "'rms_norm_eps' is not a number from 0 to 1"},
        {"{'rope_theta': 0}", "'rope_theta' is not a number"},
        {"{'rope_scaling': {'rope_type': 'yarn', 'factor': 0.5}}", "'factor' and"},
        {"{'rope_scaling': {'rope_type': 'llama3', 'factor': 4.0}}",
         "'rope_scaling.low_freq_factor' is missing"},
        {"{'rope_scaling': 'llama3'}", "'rope_scaling' is not an object"},
        {"{'eos_token_id': 100}", "'eos_token_id' is not a token id below the 'vocab_size' of 100"},
        {"{'eos_token_id': [1,2,3,4,5,6,7,8,9]}", "more than 8 end-of-sequence ids"},
        {"{'bos_token_id': 'x'}", "'bos_token_id' is not a token id"},
        {"{'tie_word_embeddings': 1}", "'tie_word_embeddings' is not true or false"},
    };
    for (size_t i = 0; i < GR_LEN(table); i++) assert_refused(table[i][0], table[i][1]);
}

/* Against the defaults and rules of their configurations in transformers. */
static void test_families_describe_their_layers(void **state)
{
    (void)state;
    assert_int_equal(attention("{'model_type': 'mistral', 'sliding_window': 8}").window, 8);
    assert_int_equal(attention("{'model_type': 'mistral', 'sliding_window': 512}").window, 0);
    assert_int_equal(attention("{'model_type': 'mistral', 'sliding_window': null}").window, 0);
    assert_int_equal(attention("{'model_type': 'mistral', 'max_position_embeddings': 8192}").window, 4096);

    char class[GR_ARCHITECTURE_MAX];
    gr_model_shape head =
        accepted("{'model_type': 'gemma3_text', 'architectures': ['Gemma3TextForSequenceClassification'], "
                 "'num_labels': 1}");
    assert_string_equal(gr_model_architecture(&head, class), "Gemma3TextForSequenceClassification");
    gr_model_shape s = accepted("{'model_type': 'qwen2', 'num_hidden_layers': 3, 'use_sliding_window': true, "
                                "'sliding_window': 9, 'max_window_layers': 2}");
    for (uint32_t l = 0; l < 3; l++) assert_int_equal(gr_layer(&s, l)->attention.window, l < 2 ? 0 : 9);
    assert_int_equal(attention("{'model_type': 'qwen3', 'use_sliding_window': true}").window, 0); /* of 28 */
    assert_int_equal(attention("{'model_type': 'ministral', 'sliding_window': 9}").window, 9);
    s = accepted("{'model_type': 'ministral', 'sliding_window': 9, "
                 "'layer_types': ['full_attention', 'sliding_attention']}");
    assert_int_equal(gr_layer(&s, 0)->attention.window, 0);
    assert_int_equal(gr_layer(&s, 1)->attention.window, 9);

    s = accepted(
        "{'model_type': 'olmo3', 'num_hidden_layers': 8, 'rope_theta': 5e5, 'rope_scaling': {'rope_type': "
        "'yarn', 'factor': 8.0, 'original_max_position_embeddings': 128}}");
    for (uint32_t l = 0; l < 8; l++) {
        const gr_attention_desc *a = &gr_layer(&s, l)->attention;
        assert_int_equal(a->window, l % 4 == 3 ? 0 : 4096);
        assert_int_equal(a->rope.type, l % 4 == 3 ? GR_ROPE_YARN : GR_ROPE_DEFAULT);
        assert_close(a->rope.theta, 5e5, 0, 0);
    }

    s = accepted("{'model_type': 'olmo2', 'num_key_value_heads': null}");
    assert_close(s.norm_eps, 1e-5, 0, 1e-6);
    assert_true(gr_layer(&s, 0)->norm_after && !gr_layer(&s, 0)->norm_before);
    assert_int_equal(gr_layer(&s, 0)->attention.qk_norm, GR_QK_NORM_WHOLE);
    assert_int_equal(gr_layer(&s, 0)->attention.kv_heads, 4);

    s = accepted("{'model_type': 'smollm3', 'num_hidden_layers': 8, 'num_key_value_heads': null}");
    assert_int_equal(s.n_kinds, 2);
    for (uint32_t l = 0; l < 8; l++)
        assert_int_equal(gr_layer(&s, l)->attention.rope.type, l % 4 == 3 ? GR_ROPE_NONE : GR_ROPE_DEFAULT);
    assert_close(gr_layer(&s, 0)->attention.rope.theta, 2e6, 0, 0);
    assert_true(s.tied);
    assert_int_equal(attention("{'model_type': 'smollm3', 'num_attention_heads': 8, "
                               "'num_key_value_heads': null}")
                         .kv_heads,
                     8);

    s = accepted("{'model_type': 'granite', 'embedding_multiplier': 12, 'attention_multiplier': 0.015625, "
                 "'residual_multiplier': 0.22, 'logits_scaling': 8}");
    assert_close(s.embed_scale, 12, 0, 0);
    assert_close(s.residual_scale, 0.22, 0, 1e-6);
    assert_close(s.logit_scale, 0.125, 0, 0);
    assert_close(gr_layer(&s, 1)->attention.scale, 0.015625, 0, 0);

    s = accepted("{'model_type': 'gemma2', 'num_hidden_layers': 4, 'sliding_window': 100}");
    for (uint32_t l = 0; l < 4; l++) assert_int_equal(gr_layer(&s, l)->attention.window, l % 2 ? 0 : 100);
    assert_close(gr_layer(&s, 0)->attention.softcap, 50, 0, 0);
    assert_close(s.logit_softcap, 30, 0, 0);
    assert_close(s.embed_scale, 8, 0, 0);
    assert_close(gr_layer(&s, 0)->attention.scale, 0.0625, 0, 0);
    assert_int_equal(gr_layer(&s, 0)->attention.head_dim, 256);
    assert_true(s.norm_plus_one && s.tied && gr_layer(&s, 1)->dense.act == GR_ACT_GELU_TANH);
    assert_close(accepted("{'model_type': 'gemma2', 'final_logit_softcapping': null}").logit_softcap, 0, 0,
                 0);

    s = accepted("{'model_type': 'gemma3_text', 'num_hidden_layers': 12, 'rope_scaling': "
                 "{'rope_type': 'linear', 'factor': 8.0}}");
    for (uint32_t l = 0; l < 12; l++) {
        const gr_attention_desc *a = &gr_layer(&s, l)->attention;
        const bool full = l % 6 == 5;
        assert_int_equal(a->window, full ? 0 : 4096);
        assert_close(a->rope.theta, full ? 1e6 : 1e4, 0, 0);
        assert_int_equal(a->rope.type, full ? GR_ROPE_LINEAR : GR_ROPE_DEFAULT);
    }
    const gr_model_shape same =
        accepted("{'model_type': 'gemma3_text', 'num_hidden_layers': 12, 'rope_parameters': {"
                 "'full_attention': {'rope_type': 'linear', 'factor': 8.0, 'rope_theta': 1e6}, "
                 "'sliding_attention': {'rope_type': 'default', 'rope_theta': 1e4}}}");
    for (uint32_t l = 0; l < 12; l++) assert_true(gr_layer_same(gr_layer(&s, l), gr_layer(&same, l)));
    s = accepted("{'model_type': 'gemma3_text', 'rope_theta': 5e3, 'rope_local_base_freq': 50, "
                 "'rope_parameters': {'full_attention': {}, 'sliding_attention': {}}, "
                 "'layer_types': ['sliding_attention', 'full_attention']}");
    assert_close(gr_layer(&s, 0)->attention.rope.theta, 50, 0, 0);
    assert_close(gr_layer(&s, 1)->attention.rope.theta, 5e3, 0, 0);
}

static void test_gemma_4_has_two_kinds_of_heads(void **state)
{
    (void)state;
    gr_model_shape s = accepted("{'model_type': 'gemma4_text', 'hidden_size_per_layer_input': 0, 'head_dim': "
                                "256, 'attention_k_eq_v': true, 'num_global_key_value_heads': 2, "
                                "'num_hidden_layers': 8, 'final_logit_softcapping': 30.0}");
    for (uint32_t l = 0; l < 8; l++) {
        const gr_layer_desc *d = gr_layer(&s, l);
        const bool full = l == 5 || l == 7;
        assert_int_equal(d->attention.window, full ? 0 : 512);
        assert_int_equal(d->attention.head_dim, full ? 512 : 256);
        assert_int_equal(d->attention.keys_are_values, full);
        assert_int_equal(d->attention.rope.type, full ? GR_ROPE_PROPORTIONAL : GR_ROPE_DEFAULT);
        assert_true(d->scaled && d->norm_after && !d->norm_plus_one && d->attention.value_norm);
        assert_close(d->attention.scale, 1, 0, 0);
    }
    assert_int_equal(gr_layer(&s, 7)->attention.kv_heads, 2);
    assert_close(s.logit_softcap, 30, 0, 0);
    s = accepted("{'model_type': 'gemma4_text', 'hidden_size_per_layer_input': 0, 'per_layer_config': {'1': "
                 "{'head_dim': 128, 'num_key_value_heads': 1}}, 'rope_parameters': {'sliding_attention': "
                 "{'rope_type': 'default', 'rope_theta': 1e3}, 'full_attention': {'rope_type': "
                 "'proportional', 'rope_theta': 1e5, 'partial_rotary_factor': 0.5}}}");
    const gr_attention_desc *a = &gr_layer(&s, 1)->attention;
    assert_int_equal(a->kv_heads * 1000 + a->head_dim, 1128);
    assert_close(a->rope.share, 0.5, 0, 0);
    assert_close(gr_layer(&s, 0)->attention.rope.theta, 1e3, 0, 0);
}

/* The last of each type before the first that takes lends; a type that nobody takes from lends nothing. */
static void test_gemma_4s_late_layers_take_keys_and_values(void **state)
{
    (void)state;
    static const char common[] =
        "{'model_type': 'gemma4_text', 'num_hidden_layers': 18, 'intermediate_size': "
        "96, 'attention_k_eq_v': true, 'num_kv_shared_layers': %u, "
        "'use_double_wide_mlp': %s}";
    static const struct {
        uint32_t shared;
        const char *wide;
        uint32_t lends[2]; /* without a window, with one */
    } cases[] = {{6, "true", {11, 10}}, {1, "false", {11, 18}}, {8, "true", {5, 9}}};
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        char *text = gr_printf(common, cases[i].shared, cases[i].wide);
        const gr_model_shape s = accepted(text);
        assert_int_equal(s.per_layer.vocab * 1000ull + s.per_layer.width, 262144256);
        assert_int_equal(gr_model_buckets(&s), 21);
        for (uint32_t l = 0; l < 18; l++) {
            const gr_layer_desc *d = gr_layer(&s, l);
            const uint32_t lender = cases[i].lends[d->attention.window > 0];
            const bool takes = l >= 18 - cases[i].shared, wide = takes && cases[i].wide[0] == 't';
            assert_int_equal(d->attention.keys, takes         ? GR_KEYS_TAKEN
                                                : l == lender ? GR_KEYS_LENT
                                                              : GR_KEYS_OWN);
            assert_int_equal(gr_model_keys_of(&s, l), takes ? lender : l);
            assert_int_equal(d->dense.inner, wide ? 192 : 96);
            assert_int_equal(d->per_layer, 256);
            assert_int_equal(d->attention.value_norm, !takes);
        }
        assert_int_equal(gr_model_last_taker(&s, cases[i].lends[0]), 17);
        free(text);
    }
}

static void test_a_hybrid_has_both_kinds_of_layers(void **state)
{
    (void)state;
    gr_model_shape s = accepted("{'model_type': 'qwen3_5_text', 'num_hidden_layers': 8}");
    for (uint32_t l = 0; l < 8; l++) {
        const gr_layer_desc *d = gr_layer(&s, l);
        assert_int_equal(d->mixer, l % 4 == 3 ? GR_MIXER_ATTENTION : GR_MIXER_DELTA);
        assert_true(d->norm_plus_one);
    }
    const gr_attention_desc *a = &gr_layer(&s, 3)->attention;
    assert_true(s.norm_plus_one && a->gate && a->qk_norm == GR_QK_NORM_HEAD);
    assert_int_equal(a->rope.dims, a->head_dim / 4);
    const gr_delta_desc *d = &gr_layer(&s, 0)->delta;
    assert_int_equal(d->key_heads * 10000 + d->value_heads * 100 + d->conv, 163204);
    assert_int_equal(d->key_dim * 1000 + d->value_dim, 128128);
    s = accepted(
        "{'model_type': 'qwen3_5_text', 'num_hidden_layers': 2, 'full_attention_interval': 2, "
        "'linear_conv_kernel_dim': 3, 'rope_parameters': {'rope_type': 'default', 'rope_theta': 1e7, "
        "'partial_rotary_factor': 0.5, 'mrope_section': [11, 11, 10], 'mrope_interleaved': true}}");
    assert_int_equal(gr_layer(&s, 0)->delta.conv, 3);
    assert_int_equal(gr_layer(&s, 1)->attention.rope.dims, gr_layer(&s, 1)->attention.head_dim / 2);
}

/* As published: Gemma's leave out what is usual; ids and ties may stand around the text. */
static void test_a_text_within_a_model_of_text_and_images_is_read(void **state)
{
    (void)state;
    gr_model_shape s =
        accepted("{'model_type': 'gemma3', 'architectures': ['Gemma3ForConditionalGeneration'], "
                 "'eos_token_id': [1, 106], 'boi_token_index': 255999, 'mm_tokens_per_image': 256, "
                 "'vision_config': {'hidden_size': 1152}, 'text_config': {'hidden_size': 2560, "
                 "'num_hidden_layers': 34, "
                 "'intermediate_size': 10240, 'model_type': 'gemma3_text', 'sliding_window': 1024, "
                 "'rope_scaling': {'factor': 8.0, 'rope_type': 'linear'}}}");
    assert_string_equal(s.model_type, "gemma3_text");
    assert_int_equal(gr_model_params(&s), 3880263168); /* of gemma-3-4b's 4300079472, less its images' */
    assert_int_equal(s.n_eos, 2);
    assert_int_equal(s.max_positions, 131072);
    assert_true(s.tied);
    assert_int_equal(gr_layer(&s, 0)->attention.window, 1024);
    assert_int_equal(gr_layer(&s, 5)->attention.rope.type, GR_ROPE_LINEAR);
    s = accepted(
        "{'model_type': 'qwen3_5', 'tie_word_embeddings': true, 'text_config': {'vocab_size': 64, "
        "'hidden_size': 16, 'intermediate_size': 24, 'num_hidden_layers': 4, 'num_attention_heads': 2, "
        "'num_key_value_heads': 1, 'max_position_embeddings': 64, 'mtp_num_hidden_layers': 1}}");
    assert_true(s.tied);
    assert_string_equal(s.model_type, "qwen3_5_text");
    char class[GR_ARCHITECTURE_MAX];
    assert_string_equal(gr_model_architecture(&s, class), "Qwen3_5ForCausalLM");
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(
        read_changed("{'model_type': 'gemma3', 'text_config': {'num_hidden_layers': 0}}", &s, &d),
        GR_E_INVALID);
    assert_true(d.messages[0].at.line > 10); /* within text_config */
    gr_diag_release(&d);
}

static void test_a_text_whose_place_is_not_found_is_refused(void **state)
{
    (void)state;
    gr_model_shape s;
    gr_diag d;
    gr_diag_init(&d);
    write_text("config.json", "{\"model_type\": \"gemma3\", \"text\\u005fconfig\": {}}");
    assert_int_equal(gr_model_shape_read(&s, dir, &d), GR_E_INVALID);
    assert_string_equal(d.messages[0].text, "the key 'text_config' is written with escapes");
    gr_diag_release(&d);
}

static void test_errors_are_all_named_with_their_lines(void **state)
{
    (void)state;
    write_text("config.json",
               "{\n  \"model_type\": \"llama\",\n  \"hidden_act\": \"gelu\",\n  \"mlp_bias\": true\n}\n");
    gr_model_shape s;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_model_shape_read(&s, dir, &d), GR_E_INVALID);
    assert_int_equal(d.messages[0].at.line, 4);
    assert_int_equal(d.messages[1].at.line, 3);
    assert_int_equal(d.messages[1].at.col, 3);
    assert_non_null(strstr(d.messages[1].at.file, "/config.json"));
    assert_int_equal(d.n_errors, 2 + 6); /* and six sizes missing */
    gr_diag_release(&d);
    write_text("config.json", "{\n  \"a\": 1,\n  \"a\": 2\n}\n");
    gr_diag_init(&d);
    assert_int_equal(gr_model_shape_read(&s, dir, &d), GR_E_INVALID);
    assert_int_equal(d.messages[0].at.line, 3);
    gr_diag_release(&d);
    assert_int_equal(gr_model_shape_read(&s, "/nowhere/config.json", NULL), GR_E_IO);
}

/* A config is copied into checkpoints as text. */
static void test_zero_bytes_are_refused(void **state)
{
    (void)state;
    static const char text[] = "{\"model_type\": \"llama\",\n \"tie_word_embeddings\": true\0}";
    gr_model_shape s;
    gr_diag d;
    char *path = in_dir("config.json");
    gr_diag_init(&d);
    assert_int_equal(gr_file_write(path, text, sizeof(text) - 1, NULL), GR_OK);
    assert_int_equal(gr_model_shape_read(&s, dir, &d), GR_E_INVALID);
    assert_string_equal(d.messages[0].text, "a zero byte, which JSON text does not have");
    assert_int_equal(d.messages[0].at.line, 2);
    assert_int_equal(d.messages[0].at.col, 29);
    gr_diag_release(&d);
    free(path);
}

static void test_what_is_ignored_is_said(void **state)
{
    (void)state;
    assert_warned("{'attention_dropout': 0.1, 'resid_pdrop': 0.0}",
                  "'attention_dropout' of 0.1 is ignored: nothing is dropped");
    assert_warned("{'layer_scale_init': 0.1}", "'layer_scale_init' of 0.1 is not known and is ignored");
    assert_warned("{'auto_map': {'AutoModel': 'modeling_x.X'}}",
                  "'auto_map' of {\"AutoModel\":\"modeling_x.X\"} is not known and is ignored");
    assert_warned("{'rope_parameters': {'rope_type': 'default', 'factor': 4.0}}",
                  "'rope_parameters.factor' is ignored: rope type 'default' has none");
    assert_warned(
        "{'rope_scaling': {'type': 'dynamic', 'factor': 4.0}}",
        "'rope_scaling' of type 'dynamic' counts beyond the 512 positions of 'max_position_embeddings' "
        "alone, and is not built there: up to them positions are those of 'default'");
    accepted("{'layer_scale_init': 1.0, 'new_bias': false, 'new_list': [], 'new_name': '', 'extra': 0, "
             "'scale_emb': 1, 'alibi': false, 'query_pre_attn_scalar': null, 'sliding_window': 4096, "
             "'torch_dtype': 'bfloat16', 'use_cache': true, 'partial_rotary_factor': 1.0, "
             "'layer_types': ['full_attention', 'full_attention']}");
}

static void test_eos_is_the_union_with_the_generation_config(void **state)
{
    (void)state;
    write_text("generation_config.json", "{\"eos_token_id\": [9, 7, 8]}");
    gr_model_shape s = accepted("{}");
    assert_int_equal(s.n_eos, 3);
    assert_int_equal(s.eos[0], 7);
    assert_int_equal(s.eos[1], 9);
    assert_int_equal(s.eos[2], 8);
    write_text("generation_config.json", "{\"eos_token_id\": ");
    assert_int_equal(read_changed("{}", &s, NULL), GR_E_INVALID);
    char *path = in_dir("generation_config.json");
    assert_int_equal(gr_path_remove(path, NULL), GR_OK);
    free(path);
}

/* What the model cards and the parameter counters of the hub give. */
static const struct {
    const char *name;
    uint64_t params;
} known[] = {
    {"meta-llama/Llama-3.1-8B", 8030261248}, {"meta-llama/Llama-3.1-70B", 70553706496},
    {"meta-llama/Llama-3.2-1B", 1235814400}, {"Qwen/Qwen2.5-0.5B", 494032768},
    {"Qwen/Qwen2.5-7B", 7615616512},         {"Qwen/Qwen3-0.6B", 596049920},
    {"Qwen/Qwen3-8B", 8190735360},           {"HuggingFaceTB/SmolLM2-135M", 134515008},
    {"Qwen/Qwen3-30B-A3B", 30532122624},     {"Qwen/Qwen3-235B-A22B", 235093634560},
};

/* Of the families beyond the first four: what is not a default, as published with these models. */
/* [S] sizes as published; params of the text alone, from the model cards. */
static const struct {
    const char *changes;
    uint64_t params, macs; /* macs: of a token in the layers */
    uint32_t kinds;
} published[] = {
    {"{'model_type': 'mistral', 'vocab_size': 32000, 'hidden_size': 4096, 'intermediate_size': 14336, "
     "'num_hidden_layers': 32, 'num_attention_heads': 32, 'num_key_value_heads': 8, 'sliding_window': 4096, "
     "'max_position_embeddings': 32768}", /* Mistral-7B-v0.1 */
     7241732096, 32 * (218103808ull), 1},
    {"{'model_type': 'olmo2', 'vocab_size': 100352, 'hidden_size': 4096, 'intermediate_size': 11008, "
     "'num_hidden_layers': 32, 'num_attention_heads': 32, 'num_key_value_heads': 32, 'rope_theta': 500000}",
     7298617344, 32 * (202375168ull), 1}, /* OLMo-2-1124-7B */
    {"{'model_type': 'smollm3', 'vocab_size': 128256, 'hidden_size': 2048, 'intermediate_size': 11008, "
     "'num_hidden_layers': 36, 'num_attention_heads': 16, 'num_key_value_heads': 4, 'rope_theta': 5e6}",
     3075098624, 36 * (78118912ull), 2}, /* SmolLM3-3B */
    {"{'model_type': 'granite', 'vocab_size': 49159, 'hidden_size': 4096, 'intermediate_size': 12800, "
     "'num_hidden_layers': 40, 'num_attention_heads': 32, 'num_key_value_heads': 8, 'rope_theta': 1e7, "
     "'attention_multiplier': 0.0078125, 'embedding_multiplier': 12.0, 'residual_multiplier': 0.22, "
     "'logits_scaling': 16.0, 'tie_word_embeddings': true}", /* granite-3.3-8b */
     8170864640, 40 * (199229440ull), 1},
    {"{'model_type': 'gemma2', 'vocab_size': 256000, 'hidden_size': 3584, 'intermediate_size': 14336, "
     "'num_hidden_layers': 42, 'num_attention_heads': 16, 'num_key_value_heads': 8, "
     "'max_position_embeddings': 8192}", /* gemma-2-9b */
     9241705984, 42 * (198180864ull), 2},
    {"{'model_type': 'gemma3_text', 'vocab_size': 262144, 'hidden_size': 1152, 'intermediate_size': 6912, "
     "'num_hidden_layers': 26, 'num_attention_heads': 4, 'num_key_value_heads': 1, 'sliding_window': 512, "
     "'max_position_embeddings': 32768}", /* gemma-3-1b-it */
     999885952, 26 * (26836992ull), 2},
    {"{'model_type': 'qwen2_moe', 'vocab_size': 151936, 'hidden_size': 2048, 'intermediate_size': 5632, "
     "'num_hidden_layers': 24, 'num_attention_heads': 16, 'num_key_value_heads': 16, "
     "'max_position_embeddings': 8192}",
     14315784192, 24 * (16777216ull + 3 * 2048 * (4 * 1408 + 5632) + 2048 * 61), 1}, /* Qwen1.5-MoE-A2.7B */
};

static void test_families_have_their_published_parameters(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_LEN(published); i++) {
        const gr_model_shape s = accepted(published[i].changes);
        assert_int_equal(gr_model_params(&s), published[i].params);
        assert_int_equal(gr_model_token_macs(&s), published[i].macs);
        assert_int_equal(s.n_kinds, published[i].kinds);
    }
}

/* Those of tests/golden/configs, which has their sources. */
static void test_published_sizes_have_the_parameters_of_transformers(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t params;
    } sizes[] = {{"Qwen3-235B-A22B", 235093634560},
                 {"Qwen3.5-397B-A17B", 396346350336},
                 {"Qwen3-Next-80B-A3B", 79674391296},
                 {"GLM-4.7", 352796486560},
                 {"Qwen3.5-27B", 26895998464},
                 {"gpt-oss-20b", 20914757184},
                 {"gpt-oss-120b", 116829156672},
                 {"gemma-3-27b-it", 27009346304},
                 {"gemma-4-31b-it", 30697345280 + 60}, /* with a number for each layer, no parameter there */
                 {"gemma-4-26b-a4b-it", 25233141760 + 30},
                 {"gemma-4-e2b-it", 4628569344 + 35},
                 {"gemma-4-e4b-it", 7463013376 + 42},
                 {"Phi-4-mini-instruct", 3836021760}};
    for (size_t i = 0; i < GR_LEN(sizes); i++) {
        gr_model_shape s;
        gr_diag d;
        gr_diag_init(&d);
        char *path = gr_printf("tests/golden/configs/%s.json", sizes[i].name);
        if (gr_model_shape_read(&s, path, &d) || d.n) fail_msg("%s: %s", sizes[i].name, d.messages[0].text);
        if (gr_model_params(&s) != sizes[i].params)
            fail_msg("%s has %ju parameters", sizes[i].name, (uintmax_t)gr_model_params(&s));
        gr_diag_release(&d);
        free(path);
    }
}

static void test_published_configs_are_read(void **state)
{
    (void)state;
    need_shared(path, "model_configs.json");
    json_t *all = json_load_file(path, 0, NULL), *entry;
    const char *name;
    size_t n_read = 0, n_known = 0;
    json_object_foreach(all, name, entry)
    {
        const json_t *config = json_object_get(entry, "config");
        char *text = json_dumps(config, 0);
        write_text("config.json", text);
        free(text);
        gr_model_shape s;
        gr_diag d;
        gr_diag_init(&d);
        gr_status st = gr_model_shape_read(&s, dir, &d);
        if (st) fail_msg("%s: %s", name, d.messages[0].text);
        assert_int_equal(d.n, 0); /* no warning of what everybody has */
        n_read += !st;
        for (size_t i = 0; i < GR_LEN(known); i++) {
            if (strcmp(name, known[i].name) != 0) continue;
            assert_int_equal(gr_model_params(&s), known[i].params);
            n_known++;
        }
        gr_diag_release(&d);
    }
    json_decref(all);
    assert_true(n_read >= 18);
    assert_int_equal(n_known, GR_LEN(known));
}

/* tests/golden/configs: what transformers counts, and what follows from the sizes by hand. */
static void test_published_models_of_latent_attention_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t params, macs;
        uint32_t dense, row;
        double scale; /* times the root of a head's width */
    } want[] = {
        {"DeepSeek-V3", 671026404352 + 14848,
         61 * 187105280ull + 3 * 396361728ull + 58 * (396361728ull + 1835008), 3, 576, 1.873854},
        {"GLM-4.7-Flash", 29943390976 + 2944,
         47 * (2048 * (768 + 576 + 5120ull) + 768 * 5120 + 512 * 8960) +
             3ull * 2048 * (10240 + 46 * 5 * 1536) + 46 * 2048 * 64ull,
         1, 576, 1},
        {"DeepSeek-V2-Lite", 15706484224,
         27 * (2048 * (3072 + 576 + 2048ull) + 512 * 4096) + 3ull * 2048 * (10944 + 26 * 8 * 1408) +
             26 * 2048 * 64ull,
         1, 576, 1.589643},
    };
    for (size_t i = 0; i < GR_LEN(want); i++) {
        char path[64];
        gr_model_shape s;
        gr_diag d;
        gr_diag_init(&d);
        snprintf(path, sizeof(path), "tests/golden/configs/%s.json", want[i].name);
        if (gr_model_shape_read(&s, path, &d)) fail_msg("%s: %s", path, d.messages[0].text);
        assert_int_equal(d.n, 0);
        const gr_latent_desc *l = &gr_layer(&s, 0)->latent;
        assert_int_equal(gr_model_params(&s), want[i].params);
        assert_int_equal(gr_model_token_macs(&s), want[i].macs);
        assert_int_equal(s.n_kinds, 2);
        assert_int_equal(gr_layer(&s, want[i].dense - 1)->mlp, GR_MLP_DENSE);
        assert_int_equal(gr_layer(&s, want[i].dense)->mlp, GR_MLP_EXPERTS);
        assert_int_equal(gr_latent_row(l), want[i].row);
        assert_close((double)l->scale * sqrt(gr_latent_head(l)), want[i].scale, 1e-4, 0);
        gr_diag_release(&d);
    }
}

static void assert_experts(const char *changes, const char *want)
{
    const gr_model_shape s = accepted(changes);
    for (uint32_t l = 0; l < s.layers; l++)
        assert_int_equal(gr_layer(&s, l)->mlp, want[l] == 'x' ? GR_MLP_EXPERTS : GR_MLP_DENSE);
}

static void test_which_layers_have_experts(void **state)
{
    (void)state;
    assert_experts("{'model_type': 'qwen3_moe', 'num_hidden_layers': 5}", "xxxxx");
    assert_experts("{'model_type': 'qwen3_moe', 'num_hidden_layers': 5, 'decoder_sparse_step': 2}", ".x.x.");
    assert_experts("{'model_type': 'qwen3_moe', 'num_hidden_layers': 5, 'mlp_only_layers': [0, 3]}", ".xx.x");
    const gr_model_shape s =
        accepted("{'model_type': 'qwen3_moe', 'num_experts': 12, 'num_experts_per_tok': 3, "
                 "'moe_intermediate_size': 40, 'norm_topk_prob': true}");
    const gr_experts_desc *e = &gr_layer(&s, 0)->experts;
    assert_int_equal(e->count, 12);
    assert_int_equal(e->top_k, 3);
    assert_int_equal(e->inner, 40);
    assert_true(e->normalize);
    assert_int_equal(e->router, GR_ROUTER_SOFTMAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_those_of_transformers),
        cmocka_unit_test(test_rope_is_read_in_every_spelling),
        cmocka_unit_test(test_linear_and_yarn_positions_are_read),
        cmocka_unit_test(test_longrope_positions_are_read),
        cmocka_unit_test(test_positions_end_where_queries_are_scaled),
        cmocka_unit_test(test_the_longest_sequence_says_which_list_of_longrope_holds),
        cmocka_unit_test(test_rope_that_is_ambiguous_or_not_built_is_refused),
        cmocka_unit_test(test_what_is_not_supported_is_refused_by_name),
        cmocka_unit_test(test_families_describe_their_layers),
        cmocka_unit_test(test_gemma_4_has_two_kinds_of_heads),
        cmocka_unit_test(test_gemma_4s_late_layers_take_keys_and_values),
        cmocka_unit_test(test_a_hybrid_has_both_kinds_of_layers),
        cmocka_unit_test(test_a_text_within_a_model_of_text_and_images_is_read),
        cmocka_unit_test(test_a_text_whose_place_is_not_found_is_refused),
        cmocka_unit_test(test_errors_are_all_named_with_their_lines),
        cmocka_unit_test(test_zero_bytes_are_refused),
        cmocka_unit_test(test_what_is_ignored_is_said),
        cmocka_unit_test(test_eos_is_the_union_with_the_generation_config),
        cmocka_unit_test(test_families_have_their_published_parameters),
        cmocka_unit_test(test_published_sizes_have_the_parameters_of_transformers),
        cmocka_unit_test(test_published_configs_are_read),
        cmocka_unit_test(test_published_models_of_latent_attention_are_read),
        cmocka_unit_test(test_which_layers_have_experts),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
