/* A config.json of Hugging Face transformers, and the generation_config.json beside it, as a model's shape:
 * what all families have in common. */
#include "ops/model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ops/model/arch.h"
#include "ops/model/scales.h"
#include "ops/model/model_keys.h"
#include "runtime/base/files.h"

static bool is_in(const char *const *list, const char *key)
{
    for (; list && *list; list++)
        if (!strcmp(*list, key)) return true;
    return false;
}

/* ---- what is refused, and what is ignored aloud -------------------------------------------------------- */

/* "llama, mistral, qwen2 and qwen3" */
static void list_families(gr_str *out)
{
    for (const gr_arch *const *a = gr_all_archs; *a; a++) {
        gr_str_printf(out, "%s%s", a == gr_all_archs ? "" : a[1] ? ", " : " and ", (*a)->model_type);
        if ((*a)->outer) gr_str_printf(out, " (in %s)", (*a)->outer);
    }
}

/* What families that are near to supported ones have that is not built; NULL: nothing is known of it. */
static const char *what_lacks(const char *type)
{
    static const char *const table[][2] = {
        {"deepseek_v32", "its sparse attention with an indexer (DSA) is not built; deepseek_v3 is"},
        {"glm_moe_dsa", "its sparse attention with an indexer (DSA) is not built; glm4_moe_lite is"},
        {"deepseek_v4", "its compressed attention and its hyper-connections are not built; deepseek_v3 is"},
        {"ernie4_5", "its rotation of neighbouring dimensions is not built"},
        {"glm", "its rotation of neighbouring dimensions is not built; glm4_moe is"},
        {"glm4", "its rotation of neighbouring dimensions is not built; glm4_moe is"},
        {"hunyuan_v1_dense", "its norms of q and k behind their rotation are not built"},
        {"lfm2", "its short convolutions are not built"},
        {"lfm2_moe", "its short convolutions are not built"},
        {"llama4", "its attention in chunks is not built; llama is"},
        {"llama4_text", "its attention in chunks is not built; llama is"},
        {"granitemoehybrid", "its state-space layers are not built; granitemoe is"},
        {"nemotron_h", "its state-space layers are not built"},
    };
    for (size_t i = 0; i < GR_LEN(table); i++)
        if (!strcmp(table[i][0], type)) return table[i][1];
    return NULL;
}

static void refuse_family(gr_config *c, const char *type)
{
    const char *names[64];
    size_t n = 0;
    gr_str list = {0};
    list_families(&list);
    while (gr_all_archs[n] && n < GR_LEN(names)) {
        names[n] = gr_all_archs[n]->model_type;
        n++;
    }
    const char *near = gr_near(type, names, n);
    const char *lacks = what_lacks(type);
    if (lacks) {
        gr_config_refuse(c, "model_type", "model_type '%s' is not supported: %s", type, lacks);
        gr_str_release(&list);
        return;
    }
    const bool moe = strstr(type, "moe") || strstr(type, "mixtral");
    gr_config_refuse(c, "model_type", "model_type '%s' is not supported%s; supported are %s%s%s%s", type,
                     moe ? " (a mixture of experts)" : "", list.text, near ? "; did you mean '" : "",
                     near ? near : "", near ? "'?" : "");
    gr_str_release(&list);
}

/* *outer: it is a model of text and images, whose text_config is of the family. */
static const gr_arch *read_family(gr_config *c, bool *outer)
{
    const char *type = json_string_value(gr_config_value(c, "model_type"));
    const char *text = json_string_value(json_object_get(gr_config_value(c, "text_config"), "model_type"));
    const gr_arch *a = type ? gr_arch_find(type) : NULL,
                  *inner = type ? gr_arch_find_outer(type, text) : NULL;
    *outer = !a && inner;
    if (*outer) return inner;
    if (!type)
        gr_config_refuse(c, "model_type", "'model_type' is missing");
    else if (!a)
        refuse_family(c, type);
    return a;
}

/* The names that classes of value heads have: of transformers, behind the family's name, and of OpenRLHF. */
static const struct head_class {
    const char *name;
    bool of_family, bias;
} head_classes[] = {{"ForTokenClassification", true, true},
                    {"ForSequenceClassification", true, false},
                    {"CriticModel", false, false},
                    {"RewardModel", false, false}};

static const char *head_family(const gr_arch *a)
{
    return a->head_class ? a->head_class : a->class;
}

static const struct head_class *value_class(const gr_arch *a, const char *name)
{
    for (size_t i = 0; i < GR_LEN(head_classes); i++) {
        const struct head_class *h = &head_classes[i];
        size_t skip = h->of_family ? strlen(head_family(a)) : 0;
        if (!strncmp(name, head_family(a), skip) && !strcmp(name + skip, h->name)) return h;
    }
    return NULL;
}

/* A value is one number: transformers would make a classifier of several labels of other configs. */
static void check_labels(gr_config *c)
{
    const char *key = gr_config_value(c, "id2label") ? "id2label" : "num_labels";
    const json_t *v = gr_config_value(c, key);
    json_int_t n = json_is_object(v) ? (json_int_t)json_object_size(v) : json_integer_value(v);
    if (v && n != 1)
        gr_config_refuse(c, key, "'%s' says %lld labels: a value head has one", key, (long long)n);
}

/* Of a model of text and images: what stands on its text is an output matrix. */
static void check_outer_class(gr_config *c, const gr_arch *a)
{
    const json_t *list = gr_config_value(c, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    char own[GR_ARCHITECTURE_MAX], text[GR_ARCHITECTURE_MAX];
    snprintf(own, sizeof(own), "%sForConditionalGeneration", a->outer_class);
    snprintf(text, sizeof(text), "%sForCausalLM", a->class);
    if (list && (!name || (strcmp(name, own) != 0 && strcmp(name, text) != 0)))
        gr_config_refuse(
            c, "architectures",
            "architecture '%s' is not supported; model_type '%s' must be '%s', whose text part is read",
            name ? name : "?", a->outer, own);
}

static void read_head(gr_config *c, const gr_arch *a, gr_model_shape *s)
{
    const json_t *list = gr_config_value(c, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    const struct head_class *h = name ? value_class(a, name) : NULL;
    bool language =
        name && !strncmp(name, a->class, strlen(a->class)) && !strcmp(name + strlen(a->class), "ForCausalLM");
    if (list && !h && !language)
        gr_config_refuse(
            c, "architectures",
            "architecture '%s' is not supported; model_type '%s' must be '%sForCausalLM', or with a value "
            "head '%sForTokenClassification' or '%sForSequenceClassification'",
            name ? name : "?", a->model_type, a->class, head_family(a), head_family(a));
    if (!h) return;
    s->head = GR_HEAD_VALUE;
    s->value_bias = h->bias;
    s->tied = false;
    check_labels(c);
}

/* Keys that mean another computation than ours unless they are absent, null or false, or the family reads
 * them.
 */
static void check_flags(gr_config *c, const gr_arch *a)
{
    static const char *const keys[] = {"attention_bias", "mlp_bias", "use_sliding_window", "rope_interleaved",
                                       "use_mrope"};
    for (size_t i = 0; i < GR_LEN(keys); i++)
        if (!is_in(a->keys, keys[i])) gr_config_off(c, (const char *const[]){keys[i], NULL});
}

/* Transformers passes over a window that the family's code does not read; who wrote it down may rely on it.
 */
static void check_window(gr_config *c, const gr_arch *a, const gr_model_shape *s)
{
    const char *key = "sliding_window";
    const json_t *v = gr_config_value(c, key);
    const bool off = json_is_false(gr_config_value(c, "use_sliding_window"));
    if (!v || json_is_false(v) || off || is_in(a->keys, key)) return;
    if (!json_is_integer(v) || json_integer_value(v) < s->max_positions)
        gr_config_refuse(
            c, key, "'%s' is not supported for '%s', whose layers see all tokens before; it must be null",
            key, a->model_type);
}

static void check_act(gr_config *c, const gr_arch *a)
{
    static const char *const silu[] = {"silu", NULL};
    const char *const *taken = a->acts ? a->acts : silu;
    const bool other = a->acts && gr_config_value(c, "hidden_activation"); /* the others never read it */
    const char *key = other ? "hidden_activation" : "hidden_act",
               *act = json_string_value(gr_config_value(c, key));
    if (gr_config_value(c, key) && (!act || !is_in(taken, act)))
        gr_config_refuse(c, key, "%s '%s' is not supported; it must be '%s'", key, act ? act : "?", taken[0]);
}

/* FP8 in blocks, or with one scale for a tensor (ops/model/scales.h): what is said of it fits. */
static void check_fp8(gr_config *c, const char *key, const json_t *v)
{
    const json_t *fmt = json_object_get(v, "fmt"), *block = json_object_get(v, "weight_block_size");
    const bool known =
        !fmt || json_is_null(fmt) || !strcmp(json_string_value(fmt) ? json_string_value(fmt) : "", "e4m3");
    bool fits = json_is_null(block) || !block || json_array_size(block) == 2;
    for (size_t i = 0; i < json_array_size(block); i++)
        fits = fits && json_integer_value(json_array_get(block, i)) == GR_SCALES_BLOCK;
    if (!known) gr_config_refuse(c, key, "'%s.fmt' is not supported; it must be 'e4m3'", key);
    if (!fits)
        gr_config_refuse(c, key, "'%s.weight_block_size' is not supported; it must be [%d, %d] or null", key,
                         GR_SCALES_BLOCK, GR_SCALES_BLOCK);
}

/* Weights in fewer bits that are widened as they are read. */
static bool is_widened(const gr_arch *a, const char *method)
{
    return method && (!strcmp(method, "fp8") || (a && a->mxfp4 && !strcmp(method, "mxfp4")));
}

static void check_forms(gr_config *c, const gr_arch *a)
{
    static const char *const quantized[] = {"quantization_config", "quantization", "compression_config"};
    static const char *const experts[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    for (size_t i = 0; i < GR_LEN(quantized); i++) {
        const json_t *v = gr_config_value(c, quantized[i]);
        const char *method = json_string_value(json_object_get(v, "quant_method"));
        if (is_widened(a, method) && !strcmp(method, "fp8")) check_fp8(c, quantized[i], v);
        if (v && !is_widened(a, method))
            gr_config_refuse(
                c, quantized[i],
                "'%s'%s%s%s: quantised weights are not supported; convert the checkpoint to bf16",
                quantized[i], method ? " (" : "", method ? method : "", method ? ")" : "");
    }
    for (size_t i = 0; i < GR_LEN(experts); i++) {
        const json_t *v = gr_config_value(c, experts[i]);
        const bool none = !v || json_is_false(v) || (json_is_number(v) && json_number_value(v) == 0);
        if (none || (a && is_in(a->keys, experts[i]))) continue;
        if (a && a->experts)
            gr_config_refuse(c, experts[i], "'%s' is not what '%s' calls its experts", experts[i],
                             a->model_type);
        else
            gr_config_refuse(c, experts[i], "'%s': mixtures of experts are not supported%s%s%s", experts[i],
                             a ? " of model_type '" : "", a ? a->model_type : "", a ? "'" : "");
    }
}

/* ---- what is read -------------------------------------------------------------------------------------- */

static void read_sizes(gr_config *c, const gr_arch_sizes *usual, gr_model_shape *s)
{
    s->vocab = gr_config_size(c, "vocab_size", usual->vocab, GR_VOCAB_MAX);
    s->hidden = gr_config_size(c, "hidden_size", usual->hidden, GR_HIDDEN_MAX);
    s->layers = gr_config_size(c, "num_hidden_layers", usual->layers, GR_LAYERS_MAX);
    s->max_positions = gr_config_size(c, "max_position_embeddings", usual->positions, GR_POSITIONS_MAX);
}

static uint32_t read_head_dim(gr_config *c, const gr_arch *a, uint32_t hidden, uint32_t heads)
{
    const bool given = gr_config_value(c, "head_dim");
    if (!given && !a->head_dim && hidden % heads) {
        gr_config_refuse(c, "num_attention_heads",
                         "'hidden_size' %u is not a multiple of 'num_attention_heads' %u, and there is "
                         "no 'head_dim'",
                         hidden, heads);
        return 0;
    }
    const uint32_t d =
        gr_config_size(c, "head_dim", a->head_dim ? a->head_dim : hidden / heads, GR_HEAD_DIM_MAX);
    if (d % 2)
        gr_config_refuse(c, given ? "head_dim" : "hidden_size",
                         "a head dimension of %u is odd, which rotary positions cannot be", d);
    return d;
}

/* The layer that a family begins with. */
static gr_layer_desc read_base(gr_config *c, const gr_arch *a, const gr_model_shape *s)
{
    const uint32_t inner = gr_config_size(c, "intermediate_size", a->sizes.inner, GR_INNER_MAX),
                   heads = gr_config_size(c, "num_attention_heads", a->sizes.heads, GR_HEADS_MAX);
    if (!heads || !s->hidden) return (gr_layer_desc){0};
    const bool null = a->kv_heads && gr_config_has(c, "num_key_value_heads"); /* or a value, which counts */
    const uint32_t kv_heads =
        gr_config_size(c, "num_key_value_heads", a->no_groups || null ? heads : a->kv_heads, GR_HEADS_MAX);
    if (kv_heads && heads % kv_heads)
        gr_config_refuse(c, "num_key_value_heads",
                         "'num_attention_heads' %u is not a multiple of 'num_key_value_heads' %u", heads,
                         kv_heads);
    gr_layer_desc base = gr_layer_plain(heads, kv_heads, read_head_dim(c, a, s->hidden, heads), inner);
    base.norm_eps = (float)gr_config_number(c, "rms_norm_eps", gr_config_value(c, "rms_norm_eps"),
                                            a->eps != 0 ? a->eps : 1e-6, 0, 1);
    if (a->theta != 0) base.attention.rope.theta = a->theta;
    base.attention.rope.dims = gr_config_rotated(c, base.attention.head_dim);
    if (a->ropes)
        gr_config_rope_types(c);
    else
        gr_config_rope(c, &base.attention.rope, s->max_positions);
    return base;
}

/* ---- ids and the rest ------------------------------------------------------------------------------------
 */

/* A token id; -1 where it is none. */
static int32_t token_id(gr_config *c, const char *key, const json_t *v, const gr_model_shape *s)
{
    if (!v || json_is_null(v)) return -1;
    json_int_t id = json_integer_value(v);
    if (json_is_integer(v) && id >= -1 && id < s->vocab) return (int32_t)id;
    if (s->vocab)
        gr_config_refuse(c, key, "'%s' is not a token id below the 'vocab_size' of %u", key, s->vocab);
    return -1;
}

static void add_eos(gr_config *c, const json_t *v, gr_model_shape *s)
{
    int32_t id = token_id(c, "eos_token_id", v, s);
    for (uint32_t i = 0; i < s->n_eos; i++)
        if (s->eos[i] == id) return;
    if (id >= 0 && s->n_eos == GR_EOS_MAX)
        gr_config_refuse(c, "eos_token_id", "more than %d end-of-sequence ids", GR_EOS_MAX);
    if (id >= 0 && s->n_eos < GR_EOS_MAX) s->eos[s->n_eos++] = id;
}

static void read_eos(gr_config *c, gr_model_shape *s)
{
    const json_t *v = gr_config_value(c, "eos_token_id");
    if (!json_is_array(v)) {
        add_eos(c, v, s);
        return;
    }
    for (size_t i = 0; i < json_array_size(v); i++) add_eos(c, json_array_get(v, i), s);
}

static void read_rest(gr_config *c, gr_model_shape *s)
{
    s->init_std =
        gr_config_number(c, "initializer_range", gr_config_value(c, "initializer_range"), 0.02, 0, 1e3);
    s->tied = gr_config_flag(c, "tie_word_embeddings", s->tied);
    s->bos = token_id(c, "bos_token_id", gr_config_value(c, "bos_token_id"), s);
    s->pad = token_id(c, "pad_token_id", gr_config_value(c, "pad_token_id"), s);
}

static void read_model(gr_config *c, const gr_arch *a, gr_model_shape *s)
{
    c->family = a->model_type;
    c->partial = a->partial;
    c->grids = a->grids;
    c->original_positions = a->original_positions;
    c->scales_queries = a->scales_queries;
    c->proportional = a->proportional;
    snprintf(s->model_type, sizeof(s->model_type), "%s", a->model_type);
    s->embed_scale = s->residual_scale = s->logit_scale = 1;
    check_flags(c, a);
    check_act(c, a);
    read_sizes(c, &a->sizes, s);
    check_window(c, a, s);
    const gr_layer_desc base = read_base(c, a, s);
    s->norm_eps = base.norm_eps;
    a->layers(c, s, &base);
    if (a->ahead) s->n_ahead = gr_config_count(c, a->ahead->key, a->ahead->unsaid, GR_LAYERS_MAX);
    read_rest(c, s);
    read_head(c, a, s);
    read_eos(c, s);
    for (uint32_t i = 0; i < s->n_eos && s->vocab; i++) /* of the model around it */
        if (s->eos[i] >= (int32_t)s->vocab)
            gr_config_refuse(c, "vocab_size", "'vocab_size' is %u, but 'eos_token_id' has %d", s->vocab,
                             s->eos[i]);
    c->bad = gr_model_keys_check(&c->j, a->keys, c->d) || c->bad;
}

/* What of a model of text and images counts for its text: ids, and whether the output matrix is tied, which
 * its two parts must not tell apart. */
static void read_outer(gr_config *c, const gr_arch *a, gr_model_shape *s)
{
    const char *key = "tie_word_embeddings";
    const json_t *tied = gr_config_value(c, key),
                 *inner = json_object_get(gr_config_value(c, "text_config"), key);
    if (json_is_boolean(tied) && json_is_boolean(inner) && tied != inner)
        gr_config_refuse(c, key, "'%s' is not what 'text_config.%s' is; leave the one that is meant", key,
                         key);
    s->vocab = GR_VOCAB_MAX; /* its own is in the text's */
    s->tied = gr_config_flag(c, key, a->tied);
    read_eos(c, s);
}

/* Go on with the text_config of the family. */
static void enter_text(gr_config *c, const gr_arch *a, gr_model_shape *s)
{
    static const char *const read[] = {"boi_token_index",
                                       "eoi_token_index",
                                       "image_token_id",
                                       "image_token_index",
                                       "mm_tokens_per_image",
                                       "text_config",
                                       "vision_config",
                                       "vision_end_token_id",
                                       "vision_start_token_id",
                                       "video_token_id",
                                       "language_model_only",
                                       "audio_config",
                                       "audio_token_id",
                                       "boa_token_id",
                                       "boi_token_id",
                                       "eoa_token_id",
                                       "eoa_token_index",
                                       "eoi_token_id",
                                       "vision_soft_tokens_per_image",
                                       NULL};
    const json_t *text = gr_config_value(c, "text_config");
    const char *type = json_string_value(json_object_get(text, "model_type"));
    check_outer_class(c, a);
    read_outer(c, a, s);
    c->bad = gr_model_keys_check(&c->j, read, c->d) || c->bad;
    if (!json_is_object(text))
        gr_config_refuse(c, "text_config", "'text_config' is missing or not an object");
    else if (type && strcmp(type, a->model_type) != 0)
        gr_config_refuse(c, "text_config",
                         "'text_config.model_type' is '%s'; of model_type '%s' it must be '%s'", type,
                         a->outer, a->model_type);
    else if (!gr_json_into(&c->j, "text_config"))
        gr_config_refuse(c, "text_config", "the key 'text_config' is written with escapes");
}

static gr_status read_config(gr_model_shape *s, const char *path, gr_diag *d)
{
    gr_config c = {.d = d};
    gr_status st = gr_json_read(&c.j, path, d);
    if (st) return st;
    bool outer;
    const gr_arch *a = read_family(&c, &outer);
    check_forms(&c, a);
    s->tied = a && a->tied;
    if (outer) enter_text(&c, a, s);
    if (outer && !c.bad) check_forms(&c, a);
    if (a && !(outer && c.bad)) read_model(&c, a, s);
    gr_json_release(&c.j);
    return c.bad ? GR_E_INVALID : GR_OK;
}

/* generation_config.json may lie beside; only its EOS ids are read. */
static gr_status read_generation(gr_model_shape *s, const char *path, gr_diag *d)
{
    if (!gr_path_exists(path)) return GR_OK;
    gr_config c = {.d = d};
    gr_status st = gr_json_read(&c.j, path, d);
    if (st) return st;
    read_eos(&c, s);
    gr_json_release(&c.j);
    return c.bad ? GR_E_INVALID : GR_OK;
}

gr_status gr_model_shape_read(gr_model_shape *out, const char *path, gr_diag *d)
{
    struct stat info;
    bool folder = !stat(path, &info) && S_ISDIR(info.st_mode);
    const char *slash = folder ? NULL : strrchr(path, '/');
    char *dir = folder ? gr_strdup(path) : slash ? gr_strndup(path, (size_t)(slash - path)) : gr_strdup(".");
    char *config = folder ? gr_printf("%s/config.json", path) : gr_strdup(path);
    char *generation = gr_printf("%s/generation_config.json", dir);
    gr_model_shape s = {.bos = -1, .pad = -1};
    gr_status st = read_config(&s, config, d);
    if (!st) st = read_generation(&s, generation, d);
    if (!st) *out = s;
    free(generation);
    free(config);
    free(dir);
    return st;
}

void gr_model_shape_to_value(gr_model_shape *s)
{
    if (s->head == GR_HEAD_VALUE) return;
    s->head = GR_HEAD_VALUE;
    s->value_bias = s->fresh_head = true;
    s->tied = false;
}

const char *gr_model_architecture(const gr_model_shape *s, char buf[GR_ARCHITECTURE_MAX])
{
    const gr_arch *a = gr_arch_find(s->model_type);
    const char *head = s->head == GR_HEAD_LM ? "CausalLM"
                       : s->value_bias       ? "TokenClassification"
                                             : "SequenceClassification";
    const char *family = !a ? "" : s->head == GR_HEAD_LM ? a->class : head_family(a);
    snprintf(buf, GR_ARCHITECTURE_MAX, "%sFor%s", family, head);
    return buf;
}
