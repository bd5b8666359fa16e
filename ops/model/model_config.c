/* A config.json of Hugging Face transformers, and the generation_config.json beside it, as a model's shape.
 */
#include "ops/model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ops/model/model_keys.h"
#include "runtime/base/json.h"

/* Bounds that no real model nears; with them no size in bytes of any bucket or model overflows 64 bits. */
#define VOCAB_MAX     (1u << 24)
#define HIDDEN_MAX    (1u << 18)
#define INTER_MAX     (1u << 20)
#define LAYERS_MAX    (1u << 12)
#define HEADS_MAX     (1u << 12)
#define POSITIONS_MAX (1u << 30)

static const struct family {
    const char *model_type, *class;
    bool qkv_bias, qk_norm;
    uint32_t head_dim;       /* where config.json has none; 0: hidden / heads */
    uint32_t sliding_window; /* where config.json has none; 0: none */
} families[] = {
    {.model_type = "llama", .class = "Llama"},
    {.model_type = "mistral", .class = "Mistral", .sliding_window = 4096},
    {.model_type = "qwen2", .class = "Qwen2", .qkv_bias = true},
    {.model_type = "qwen3", .class = "Qwen3", .qk_norm = true, .head_dim = 128},
};

struct reader {
    gr_json j;
    gr_diag *d;
    bool bad;
};

GR_PRINTF(3, 4) static void refuse(struct reader *r, const char *key, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    gr_diag_verror(r->d, gr_json_at(&r->j, key), GR_E_INVALID, fmt, ap);
    va_end(ap);
    r->bad = true;
}

/* The value of a key, NULL where it is missing or null. */
static const json_t *value(const struct reader *r, const char *key)
{
    const json_t *v = json_object_get(r->j.root, key);
    return json_is_null(v) ? NULL : v;
}

/* An integer in [1, max]; missing: fallback, or refused where that is 0. */
static uint32_t size(struct reader *r, const char *key, uint32_t fallback, uint32_t max)
{
    const json_t *v = value(r, key);
    if (!v && !fallback) refuse(r, key, "'%s' is missing", key);
    if (!v) return fallback;
    json_int_t n = json_integer_value(v);
    if (json_is_integer(v) && n >= 1 && n <= max) return (uint32_t)n;
    refuse(r, key, "'%s' is not an integer from 1 to %u", key, max);
    return 0;
}

/* A number in [low, high] of v, which is under key; missing: fallback. */
static double number(struct reader *r, const char *key, const json_t *v, double fallback, double low,
                     double high)
{
    if (!v || json_is_null(v)) return fallback;
    double x = json_is_number(v) ? json_number_value(v) : NAN;
    if (x >= low && x <= high) return x;
    refuse(r, key, "'%s' is not a number from %g to %g", key, low, high);
    return fallback;
}

/* ---- what is refused, and what is ignored aloud -------------------------------------------------------- */

static const struct family *read_family(struct reader *r)
{
    const char *names[GR_LEN(families)], *type = json_string_value(value(r, "model_type"));
    if (!type) {
        refuse(r, "model_type", "'model_type' is missing");
        return NULL;
    }
    for (size_t i = 0; i < GR_LEN(families); i++) {
        names[i] = families[i].model_type;
        if (!strcmp(type, names[i])) return &families[i];
    }
    const char *near = gr_near(type, names, GR_LEN(names));
    bool moe = strstr(type, "moe") || strstr(type, "mixtral");
    refuse(r, "model_type",
           "model_type '%s' is not supported%s; supported are llama, mistral, qwen2 and qwen3%s%s%s", type,
           moe ? " (a mixture of experts)" : "", near ? "; did you mean '" : "", near ? near : "",
           near ? "'?" : "");
    return NULL;
}

/* The names that classes of value heads have: of transformers, behind the family's name, and of OpenRLHF. */
static const struct head_class {
    const char *name;
    bool of_family, bias;
} head_classes[] = {{"ForTokenClassification", true, true},
                    {"ForSequenceClassification", true, false},
                    {"CriticModel", false, false},
                    {"RewardModel", false, false}};

static const struct head_class *value_class(const struct family *f, const char *name)
{
    for (size_t i = 0; i < GR_LEN(head_classes); i++) {
        const struct head_class *c = &head_classes[i];
        size_t skip = c->of_family ? strlen(f->class) : 0;
        if (!strncmp(name, f->class, skip) && !strcmp(name + skip, c->name)) return c;
    }
    return NULL;
}

/* A value is one number: transformers would make a classifier of several labels of other configs. */
static void check_labels(struct reader *r)
{
    const char *key = value(r, "id2label") ? "id2label" : "num_labels";
    const json_t *v = value(r, key);
    json_int_t n = json_is_object(v) ? (json_int_t)json_object_size(v) : json_integer_value(v);
    if (v && n != 1) refuse(r, key, "'%s' says %lld labels: a value head has one", key, (long long)n);
}

static void read_head(struct reader *r, const struct family *f, gr_model_shape *s)
{
    const json_t *list = value(r, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    const struct head_class *c = name ? value_class(f, name) : NULL;
    bool language =
        name && !strncmp(name, f->class, strlen(f->class)) && !strcmp(name + strlen(f->class), "ForCausalLM");
    if (list && !c && !language)
        refuse(r, "architectures",
               "architecture '%s' is not supported; model_type '%s' must be '%sForCausalLM', or with a value "
               "head '%sForTokenClassification' or '%sForSequenceClassification'",
               name ? name : "?", f->model_type, f->class, f->class, f->class);
    if (!c) return;
    s->head = GR_HEAD_VALUE;
    s->value_bias = c->bias;
    s->tied = false;
    check_labels(r);
}

/* Keys that mean another computation than ours unless they are absent, null or false. */
static void check_flags(struct reader *r, const struct family *f)
{
    static const char *const keys[] = {"attention_bias", "mlp_bias", "use_sliding_window", "rope_interleaved",
                                       "use_mrope"};
    for (size_t i = f->qkv_bias ? 1 : 0; i < GR_LEN(keys);
         i++) { /* qwen2 has its biases whatever the key says */
        const json_t *v = value(r, keys[i]);
        if (v && !json_is_false(v))
            refuse(r, keys[i], "'%s' is not supported for '%s'; it must be false", keys[i], f->model_type);
    }
    const char *act = json_string_value(value(r, "hidden_act"));
    if (value(r, "hidden_act") && (!act || strcmp(act, "silu") != 0))
        refuse(r, "hidden_act", "hidden_act '%s' is not supported; it must be 'silu'", act ? act : "?");
    number(r, "partial_rotary_factor", value(r, "partial_rotary_factor"), 1, 1, 1);
}

static void check_forms(struct reader *r)
{
    static const char *const quantized[] = {"quantization_config", "quantization", "compression_config"};
    static const char *const experts[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    for (size_t i = 0; i < GR_LEN(quantized); i++) {
        const json_t *v = value(r, quantized[i]);
        const char *method = json_string_value(json_object_get(v, "quant_method"));
        if (v)
            refuse(r, quantized[i], "'%s'%s%s%s: quantised weights are not supported", quantized[i],
                   method ? " (" : "", method ? method : "", method ? ")" : "");
    }
    for (size_t i = 0; i < GR_LEN(experts); i++)
        if (json_integer_value(value(r, experts[i])) > 0)
            refuse(r, experts[i], "'%s': mixtures of experts are not supported", experts[i]);
}

/* What each layer is: a list of their number, of layers that see everything before them. */
static void check_layer_types(struct reader *r, const gr_model_shape *s)
{
    size_t i;
    json_t *kind;
    const json_t *list = value(r, "layer_types");
    if (list && !json_is_array(list)) refuse(r, "layer_types", "'layer_types' is not a list");
    if (json_is_array(list) && s->layers && json_array_size(list) != s->layers)
        refuse(r, "layer_types", "'layer_types' has %zu entries, but 'num_hidden_layers' is %u",
               json_array_size(list), s->layers);
    json_array_foreach(list, i, kind)
    {
        const char *name = json_string_value(kind);
        if (name && !strcmp(name, "full_attention")) continue;
        refuse(r, "layer_types", "layer type '%s' is not supported; it must be 'full_attention'",
               name ? name : "?");
        return;
    }
}

static void check_window(struct reader *r, const struct family *f, const gr_model_shape *s)
{
    if (!f->sliding_window) return; /* the others use it only with use_sliding_window */
    bool given = json_object_get(r->j.root, "sliding_window"), null = given && !value(r, "sliding_window");
    uint32_t window = null ? 0 : size(r, "sliding_window", f->sliding_window, POSITIONS_MAX);
    if (window && s->max_positions && window < s->max_positions)
        refuse(r, given ? "sliding_window" : "model_type",
               "a sliding window of %u%s, less than the %u of 'max_position_embeddings', is not supported; "
               "null means "
               "none",
               window, given ? "" : " (meant where 'sliding_window' is missing)", s->max_positions);
}

/* ---- what is read -------------------------------------------------------------------------------------- */

static void read_sizes(struct reader *r, const struct family *f, gr_model_shape *s)
{
    s->vocab = size(r, "vocab_size", 0, VOCAB_MAX);
    s->hidden = size(r, "hidden_size", 0, HIDDEN_MAX);
    s->inter = size(r, "intermediate_size", 0, INTER_MAX);
    s->layers = size(r, "num_hidden_layers", 0, LAYERS_MAX);
    s->heads = size(r, "num_attention_heads", 0, HEADS_MAX);
    s->max_positions = size(r, "max_position_embeddings", 0, POSITIONS_MAX);
    if (!s->heads || !s->hidden) return;
    bool llama = !strcmp(f->model_type, "llama"); /* whose first configs had no grouped queries */
    s->kv_heads = size(r, "num_key_value_heads", llama ? s->heads : 0, HEADS_MAX);
    if (s->kv_heads && s->heads % s->kv_heads)
        refuse(r, "num_key_value_heads",
               "'num_attention_heads' %u is not a multiple of 'num_key_value_heads' %u", s->heads,
               s->kv_heads);
    if (!value(r, "head_dim") && !f->head_dim && s->hidden % s->heads) {
        refuse(r, "num_attention_heads",
               "'hidden_size' %u is not a multiple of 'num_attention_heads' %u, and there is "
               "no 'head_dim'",
               s->hidden, s->heads);
        return;
    }
    s->head_dim = size(r, "head_dim", f->head_dim ? f->head_dim : s->hidden / s->heads, GR_HEAD_DIM_MAX);
    if (s->head_dim % 2)
        refuse(r, value(r, "head_dim") ? "head_dim" : "hidden_size",
               "a head dimension of %u is odd, which rotary "
               "positions cannot be",
               s->head_dim);
}

/* ---- rotary positions -----------------------------------------------------------------------------------
 */

/* What one place says of them; transformers 4 has rope_theta and rope_scaling, transformers 5 rope_parameters
 * with both in it. */
struct rope {
    const char *key; /* the object's; NULL: the root */
    double theta;    /* NAN: not said */
    gr_rope_scaling scaling;
};

static bool is_llama3_key(const char *key)
{
    static const char *const keys[] = {"factor", "low_freq_factor", "high_freq_factor",
                                       "original_max_position_embeddings"};
    for (size_t i = 0; i < GR_LEN(keys); i++)
        if (!strcmp(key, keys[i])) return true;
    return false;
}

static double llama3_number(struct reader *r, const struct rope *o, const json_t *v, const char *key)
{
    const json_t *part = json_object_get(v, key);
    const double x = json_is_number(part) ? json_number_value(part) : NAN;
    if (x > 0 && x <= POSITIONS_MAX) return x;
    refuse(r, o->key, "'%s.%s' is missing or not a positive number", o->key, key);
    return NAN;
}

static void read_llama3(struct reader *r, const json_t *v, struct rope *o)
{
    const double factor = llama3_number(r, o, v, "factor"), low = llama3_number(r, o, v, "low_freq_factor"),
                 high = llama3_number(r, o, v, "high_freq_factor"),
                 old = llama3_number(r, o, v, "original_max_position_embeddings");
    if (low >= high || factor < 1 || old < 1 || old != floor(old))
        refuse(r, o->key,
               "'%s': 'low_freq_factor' must be less than 'high_freq_factor', 'factor' and "
               "'original_max_position_embeddings' at least 1, and this one an integer",
               o->key);
    if (r->bad) return;
    o->scaling = (gr_rope_scaling){.on = true,
                                   .factor = factor,
                                   .low_freq_factor = low,
                                   .high_freq_factor = high,
                                   .original_positions = (uint32_t)old};
}

/* "default" or "llama3"; NULL: refused. An object that has a base alone need not say it. */
static const char *rope_type(struct reader *r, const char *key, const json_t *v)
{
    const char *names[] = {"rope_type", "type"}, *type = NULL;
    for (size_t i = 0; i < GR_LEN(names); i++) {
        const json_t *said = json_object_get(v, names[i]);
        const char *name = said ? json_string_value(said) : type;
        if (said && (!name || (strcmp(name, "default") != 0 && strcmp(name, "llama3") != 0))) {
            refuse(r, key, "rope type '%s' is not supported; supported are default and llama3",
                   name ? name : "?");
            return NULL;
        }
        if (type && strcmp(type, name) != 0) {
            refuse(r, key, "'%s.rope_type' is '%s', but '%s.type' is '%s'", key, type, key, name);
            return NULL;
        }
        type = name;
    }
    return type ? type : "";
}

/* Refuses what one entry of the object means, if it is not what type has. */
static void check_rope_key(struct reader *r, const char *object, const char *type, const char *key,
                           const json_t *v)
{
    static const char *const known[] = {"rope_theta", "rope_type", "type", "partial_rotary_factor"};
    for (size_t i = 0; i < GR_LEN(known); i++)
        if (!strcmp(key, known[i])) return;
    if (json_is_object(v))
        refuse(r, object,
               "'%s.%s' is an object: positions that differ by the type of layer are not supported", object,
               key);
    else if (!*type)
        refuse(r, object, "'%s' has '%s', but no 'rope_type'; supported are default and llama3", object, key);
    else if (strcmp(type, "llama3") != 0 || !is_llama3_key(key))
        gr_diag_warn(r->d, gr_json_at(&r->j, object), "'%s.%s' is ignored: rope type '%s' has none", object,
                     key, type);
}

static double read_theta(struct reader *r, const char *key, const json_t *v)
{
    return number(r, key, v, NAN, 1, 1e15);
}

/* What the object under key says; false: there is none, or it was refused. */
static bool read_rope_object(struct reader *r, const char *key, struct rope *o)
{
    const json_t *v = value(r, key);
    const char *name, *type = NULL;
    json_t *entry;
    *o = (struct rope){.key = key, .theta = NAN};
    if (v && !json_is_object(v)) refuse(r, key, "'%s' is not an object", key);
    if (json_is_object(v)) type = rope_type(r, key, v);
    if (!type) return false;
    json_object_foreach(json_object_get(r->j.root, key), name, entry)
        check_rope_key(r, key, type, name, entry);
    number(r, key, json_object_get(v, "partial_rotary_factor"), 1, 1, 1);
    o->theta = read_theta(r, key, json_object_get(v, "rope_theta"));
    if (!strcmp(type, "llama3")) read_llama3(r, v, o);
    return true;
}

static bool same_scaling(const gr_rope_scaling *a, const gr_rope_scaling *b)
{
    return a->on == b->on && a->factor == b->factor && a->low_freq_factor == b->low_freq_factor &&
           a->high_freq_factor == b->high_freq_factor && a->original_positions == b->original_positions;
}

static void take_theta(struct reader *r, const struct rope *o, gr_model_shape *s)
{
    const char *key = o->key ? o->key : "rope_theta";
    if (isnan(o->theta)) return;
    if (s->rope_theta != 0 && s->rope_theta != o->theta)
        refuse(r, key, "'%s%s' is %.15g, but another place says %.15g; leave the one that is meant", key,
               o->key ? ".rope_theta" : "", o->theta, s->rope_theta);
    s->rope_theta = o->theta;
}

/* phi's place for it, which transformers 5 prefers. */
static void check_original_positions(struct reader *r, const gr_model_shape *s)
{
    const char *key = "original_max_position_embeddings";
    const uint32_t n = size(r, key, s->rope_scaling.original_positions + 1, POSITIONS_MAX);
    if (value(r, key) && s->rope_scaling.on && n != s->rope_scaling.original_positions)
        refuse(r, key, "'%s' is %u, but that of the rope's scaling %u", key, n,
               s->rope_scaling.original_positions);
}

static void read_rope(struct reader *r, gr_model_shape *s)
{
    struct rope root = {.theta = read_theta(r, "rope_theta", value(r, "rope_theta"))}, scaling, parameters;
    const bool old = read_rope_object(r, "rope_scaling", &scaling),
               new = read_rope_object(r, "rope_parameters", &parameters);
    if (old && new && !same_scaling(&scaling.scaling, &parameters.scaling))
        refuse(r, "rope_scaling",
               "'rope_scaling' and 'rope_parameters' say different things; leave the one that is meant");
    take_theta(r, &root, s);
    if (old) take_theta(r, &scaling, s);
    if (new) take_theta(r, &parameters, s);
    if (s->rope_theta == 0) s->rope_theta = 10000;
    s->rope_scaling = new ? parameters.scaling : old ? scaling.scaling : (gr_rope_scaling){0};
    check_original_positions(r, s);
}

/* ---- ids and the rest -------------------------------------------------------------------------------------
 */

/* A token id; -1 where it is none. */
static int32_t token_id(struct reader *r, const char *key, const json_t *v, const gr_model_shape *s)
{
    if (!v || json_is_null(v)) return -1;
    json_int_t id = json_integer_value(v);
    if (json_is_integer(v) && id >= -1 && id < s->vocab) return (int32_t)id;
    if (s->vocab) refuse(r, key, "'%s' is not a token id below the 'vocab_size' of %u", key, s->vocab);
    return -1;
}

static void add_eos(struct reader *r, const json_t *v, gr_model_shape *s)
{
    int32_t id = token_id(r, "eos_token_id", v, s);
    for (uint32_t i = 0; i < s->n_eos; i++)
        if (s->eos[i] == id) return;
    if (id >= 0 && s->n_eos == GR_EOS_MAX)
        refuse(r, "eos_token_id", "more than %d end-of-sequence ids", GR_EOS_MAX);
    if (id >= 0 && s->n_eos < GR_EOS_MAX) s->eos[s->n_eos++] = id;
}

static void read_eos(struct reader *r, gr_model_shape *s)
{
    const json_t *v = value(r, "eos_token_id");
    if (!json_is_array(v)) {
        add_eos(r, v, s);
        return;
    }
    for (size_t i = 0; i < json_array_size(v); i++) add_eos(r, json_array_get(v, i), s);
}

static void read_rest(struct reader *r, gr_model_shape *s)
{
    s->norm_eps = (float)number(r, "rms_norm_eps", value(r, "rms_norm_eps"), 1e-6, 0, 1);
    s->init_std = number(r, "initializer_range", value(r, "initializer_range"), 0.02, 0, 1e3);
    const json_t *tied = value(r, "tie_word_embeddings");
    if (tied && !json_is_boolean(tied))
        refuse(r, "tie_word_embeddings", "'tie_word_embeddings' is not true or false");
    s->tied = json_is_true(tied);
    s->bos = token_id(r, "bos_token_id", value(r, "bos_token_id"), s);
    s->pad = token_id(r, "pad_token_id", value(r, "pad_token_id"), s);
}

static gr_status read_config(gr_model_shape *s, const char *path, gr_diag *d)
{
    struct reader r = {.d = d};
    gr_status st = gr_json_read(&r.j, path, d);
    if (st) return st;
    const struct family *f = read_family(&r);
    check_forms(&r);
    if (f) {
        snprintf(s->model_type, sizeof(s->model_type), "%s", f->model_type);
        s->qkv_bias = f->qkv_bias;
        s->qk_norm = f->qk_norm;
        check_flags(&r, f);
        read_sizes(&r, f, s);
        check_layer_types(&r, s);
        check_window(&r, f, s);
        read_rope(&r, s);
        read_rest(&r, s);
        read_head(&r, f, s);
        read_eos(&r, s);
        r.bad = gr_model_keys_check(&r.j, d) || r.bad;
    }
    gr_json_release(&r.j);
    return r.bad ? GR_E_INVALID : GR_OK;
}

/* generation_config.json may lie beside; only its EOS ids are read. */
static gr_status read_generation(gr_model_shape *s, const char *path, gr_diag *d)
{
    if (!gr_path_exists(path)) return GR_OK;
    struct reader r = {.d = d};
    gr_status st = gr_json_read(&r.j, path, d);
    if (st) return st;
    read_eos(&r, s);
    gr_json_release(&r.j);
    return r.bad ? GR_E_INVALID : GR_OK;
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
    const char *class = "";
    for (size_t i = 0; i < GR_LEN(families); i++)
        if (!strcmp(families[i].model_type, s->model_type)) class = families[i].class;
    const char *head = s->head == GR_HEAD_LM ? "CausalLM"
                       : s->value_bias       ? "TokenClassification"
                                             : "SequenceClassification";
    snprintf(buf, GR_ARCHITECTURE_MAX, "%sFor%s", class, head);
    return buf;
}
