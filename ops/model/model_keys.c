/* The keys of a config.json beyond those that are read: refused where they mean another computation, passed
 * over where they mean none, warned about where nobody here knows them. */
#include "ops/model/model_keys.h"

#include <stdlib.h>
#include <string.h>

/* What ops/model/model_config.c reads or refuses itself. */
static const char *const read_keys[] = {
    "architectures",
    "attention_bias",
    "bos_token_id",
    "compression_config",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_activation",
    "hidden_size",
    "id2label",
    "initializer_range",
    "intermediate_size",
    "layer_types",
    "max_position_embeddings",
    "mlp_bias",
    "model_type",
    "n_routed_experts",
    "num_attention_heads",
    "num_experts",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_labels",
    "num_local_experts",
    "original_max_position_embeddings",
    "pad_token_id",
    "partial_rotary_factor",
    "quantization",
    "quantization_config",
    "rms_norm_eps",
    "rope_interleaved",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "tie_word_embeddings",
    "use_mrope",
    "use_sliding_window",
    "vocab_size",
};

/* How the model is loaded, sampled from, trained or shown by others, or what the families do not look at. */
static const char *const harmless[] = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_flash_attn_2_enabled",
    "_name_or_path",
    "add_cross_attention",
    "attn_implementation",
    "bad_words_ids",
    "begin_suppress_tokens",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype", /* tensors say their own */
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "is_decoder",
    "is_encoder_decoder",
    "is_llama_config",
    "label2id",
    "length_penalty",
    "max_length",
    "max_window_layers", /* of sliding windows, which are refused where they do not count */
    "min_length",
    "model_max_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "prefix",
    "pretraining_tp", /* products in pieces, with the same sum */
    "problem_type",
    "pruned_heads",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "tokenizer_model_max_length",
    "tokenizer_padding_side",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
};

/* Keys of other families and forks that change what a model computes. */
static const struct {
    const char *key;
    double neutral; /* the number that turns it off, as null, false and 0 do */
} refused[] = {
    {"alibi", 0},
    {"attention_chunk_size", 0},
    {"attention_multiplier", 0},
    {"attention_out_bias", 0},
    {"attn_logit_softcapping", 0},
    {"attn_temperature_tuning", 0},
    {"clip_qkv", 0},
    {"embedding_multiplier", 1},
    {"final_logit_softcapping", 0},
    {"logit_scale", 1},
    {"logits_scaling", 1},
    {"logits_soft_cap", 0},
    {"no_rope_layer_interval", 0},
    {"no_rope_layers", 0},
    {"qk_layernorm", 0},
    {"query_pre_attn_scalar", 0},
    {"residual_multiplier", 1},
    {"rope_local_base_freq", 0},
    {"rotary_dim", 0},
    {"rotary_emb_fraction", 1},
    {"rotary_pct", 1},
    {"scale_depth", 1},
    {"scale_emb", 1},
    {"use_alibi", 0},
    {"use_parallel_residual", 0},
    {"use_qk_norm", 0},
};

static bool is_in(const char *const *list, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i], key)) return true;
    return false;
}

/* The same of a list that ends with NULL; NULL: an empty one. */
static bool is_listed(const char *const *list, const char *key)
{
    size_t n = 0;
    while (list && list[n]) n++;
    return is_in(list, n, key);
}

static bool is_number(const json_t *v, double x)
{
    return json_is_number(v) && json_number_value(v) == x;
}

/* Nothing is said with it, but maybe a number. */
static bool is_empty(const json_t *v)
{
    return json_is_null(v) || json_is_false(v) || (json_is_string(v) && !json_string_length(v)) ||
           (json_is_array(v) && !json_array_size(v)) || (json_is_object(v) && !json_object_size(v));
}

/* The value as it stands in the file, cut short; caller frees. */
static char *value_text(const json_t *v)
{
    enum { SHOWN = 60 };
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
    char *shown = gr_printf("%.*s%s", SHOWN, text ? text : "?", text && strlen(text) > SHOWN ? "..." : "");
    free(text);
    return shown;
}

static bool is_dropout(const char *key)
{
    return strstr(key, "dropout") || strstr(key, "pdrop");
}

static bool is_refused(const char *key, const json_t *v)
{
    for (size_t i = 0; i < GR_LEN(refused); i++)
        if (!strcmp(refused[i].key, key)) return !is_empty(v) && !is_number(v, refused[i].neutral);
    return false;
}

static bool is_ignored_aloud(const char *key, const json_t *v)
{
    return !is_empty(v) && !is_number(v, 0) && !is_number(v, 1) &&
           !is_in(read_keys, GR_LEN(read_keys), key) && !is_in(harmless, GR_LEN(harmless), key);
}

static gr_status check_key(const gr_json *j, const char *key, const json_t *v, gr_diag *d)
{
    const gr_loc at = gr_json_at(j, key);
    gr_status st = GR_OK;
    char *text = value_text(v);
    if (is_refused(key, v))
        st = gr_diag_error(d, at, GR_E_INVALID,
                           "'%s' of %s changes what the model computes, and is not supported", key, text);
    else if (is_dropout(key) && !is_number(v, 0) && !is_empty(v))
        gr_diag_warn(d, at, "'%s' of %s is ignored: nothing is dropped", key, text);
    else if (is_ignored_aloud(key, v))
        gr_diag_warn(d, at, "'%s' of %s is not known and is ignored", key, text);
    free(text);
    return st;
}

gr_status gr_model_keys_check(const gr_json *j, const char *const *read, gr_diag *d)
{
    gr_status st = GR_OK;
    const char *key;
    json_t *v;
    json_object_foreach(j->root, key, v)
    {
        const gr_status one = is_listed(read, key) ? GR_OK : check_key(j, key, v, d);
        if (!st) st = one;
    }
    return st;
}
