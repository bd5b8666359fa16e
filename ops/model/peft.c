/* ops/model/peft.c: adapter_config.json, read and written. */
#include "ops/model/peft.h"

#include "runtime/base/files.h"
#include "runtime/base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ------------------------------------------------------------------------------------------- */

typedef struct reading {
    const gr_json *j;
    const gr_model_shape *s;
    gr_diag *d;
} reading;

static gr_status refuse(const reading *r, const char *key, const char *why)
{
    return gr_diag_error(r->d, gr_json_at(r->j, key), GR_E_INVALID, "'%s' %s", key, why);
}

static bool says_nothing(const json_t *v)
{
    return !v || json_is_null(v) || json_is_false(v) || (json_is_object(v) && !json_object_size(v)) ||
           (json_is_array(v) && !json_array_size(v));
}

/* Some ways to begin change the model's own weights, and the tensors are beside those. */
static gr_status check_begin(const reading *r)
{
    const char *begin = json_string_value(json_object_get(r->j->root, "init_lora_weights"));
    if (!begin || !strcmp(begin, "gaussian") || !strcmp(begin, "orthogonal")) return GR_OK;
    return refuse(r, "init_lora_weights", "may have changed the weights beneath");
}

/* What makes another model of the same tensors. */
static gr_status check_plain(const reading *r)
{
    static const char *const keys[] = {"use_dora",
                                       "use_rslora",
                                       "rank_pattern",
                                       "alpha_pattern",
                                       "fan_in_fan_out",
                                       "layers_to_transform",
                                       "layer_replication",
                                       "exclude_modules",
                                       "target_parameters",
                                       "trainable_token_indices",
                                       "use_qalora",
                                       "lora_bias",
                                       "alora_invocation_tokens",
                                       "use_bdlora",
                                       "velora_config",
                                       "monteclora_config",
                                       "kasa_config"};
    const char *bias = json_string_value(json_object_get(r->j->root, "bias")),
               *type = json_string_value(json_object_get(r->j->root, "peft_type"));
    if (!type || strcmp(type, "LORA") != 0) return refuse(r, "peft_type", "must be \"LORA\"");
    if (bias && strcmp(bias, "none") != 0) return refuse(r, "bias", "must be \"none\": biases are frozen");
    for (size_t i = 0; i < GR_LEN(keys); i++)
        if (!says_nothing(json_object_get(r->j->root, keys[i])))
            return refuse(r, keys[i], "is set, which is not built: adapters are plain and of one rank");
    return check_begin(r);
}

/* Beside adapters a value head may be trained whole; peft names both that it may be. */
static gr_status check_saved(const reading *r)
{
    const json_t *list = json_object_get(r->j->root, "modules_to_save");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        const bool head = name && (!strcmp(name, "score") || !strcmp(name, "classifier"));
        if (!head || r->s->head != GR_HEAD_VALUE)
            return refuse(r, "modules_to_save", "has what is not a value head");
    }
    return GR_OK;
}

/* "q_proj", or a path that ends in it. */
static gr_target target_of(const gr_model_shape *s, const char *module)
{
    const char *dot = strrchr(module, '.');
    char name[96];
    gr_target t = GR_TARGET_Q;
    while (t < GR_N_TARGETS && strcmp(gr_target_module(s, t, name), dot ? dot + 1 : module)) t++;
    return t;
}

static gr_status read_targets(const reading *r, unsigned *out)
{
    const json_t *list = json_object_get(r->j->root, "target_modules");
    const char *text = json_string_value(list);
    *out = 0;
    if (text && !strcmp(text, "all-linear")) *out = (1u << GR_N_TARGETS) - 1;
    if (*out) return GR_OK;
    if (!json_is_array(list) || !json_array_size(list))
        return refuse(r, "target_modules", "must be a list of names such as \"q_proj\", or \"all-linear\"");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        const gr_target t = name ? target_of(r->s, name) : GR_N_TARGETS;
        if (t == GR_N_TARGETS)
            return gr_diag_error(r->d, gr_json_at(r->j, "target_modules"), GR_E_INVALID,
                                 "'target_modules' has '%s', which adapters are not built for",
                                 name ? name : "no text");
        *out |= 1u << t;
    }
    return GR_OK;
}

/* What the weights beneath were kept in, which is a key of ours. */
static gr_status read_base(const reading *r, bool *nf4)
{
    const json_t *v = json_object_get(r->j->root, GR_PEFT_BASE);
    const char *text = json_string_value(v);
    *nf4 = text && !strcmp(text, "nf4");
    return !v || *nf4 ? GR_OK : refuse(r, GR_PEFT_BASE, "must be \"nf4\" or be left out");
}

gr_status gr_peft_read(gr_peft *out, const char *dir, const gr_model_shape *s, gr_diag *d)
{
    char *path = gr_printf("%s/" GR_PEFT_CONFIG, dir);
    gr_json j;
    gr_status st = gr_json_read(&j, path, d);
    free(path);
    if (st) return st;
    const reading r = {&j, s, d};
    const json_t *rank = json_object_get(j.root, "r"), *alpha = json_object_get(j.root, "lora_alpha");
    *out = (gr_peft){0};
    st = check_plain(&r);
    if (!st) st = check_saved(&r);
    if (!st && (!json_is_integer(rank) || json_integer_value(rank) < 1 ||
                json_integer_value(rank) > GR_ADAPTER_RANK_MAX))
        st = refuse(&r, "r", "must be a rank from 1 to 1024");
    if (!st && (!json_is_number(alpha) || !(json_number_value(alpha) > 0)))
        st = refuse(&r, "lora_alpha", "must be a number above 0");
    if (!st) st = read_targets(&r, &out->targets);
    if (!st) out->rank = (uint32_t)json_integer_value(rank);
    if (!st) out->alpha = json_number_value(alpha);
    if (!st) st = read_base(&r, &out->nf4);
    gr_json_release(&j);
    return st;
}

gr_model_shape gr_peft_shape(const gr_peft *p, const gr_model_shape *s)
{
    gr_model_shape a = *s;
    a.adapter = (gr_adapter_desc){p->rank, p->targets, (float)(p->alpha / p->rank)};
    a.fresh_head = false;
    a.nf4 = p->nf4;
    return a;
}

bool gr_peft_is(const char *dir)
{
    char *path = gr_printf("%s/" GR_PEFT_CONFIG, dir);
    const bool there = gr_path_exists(path);
    free(path);
    return there;
}

gr_status gr_peft_base(char **base, gr_model_shape *s, const char *dir, gr_diag *d)
{
    char *path = gr_printf("%s/" GR_PEFT_CONFIG, dir);
    gr_json j;
    gr_status st = gr_json_read(&j, path, d);
    free(path);
    if (st) return st;
    const char *name = json_string_value(json_object_get(j.root, "base_model_name_or_path")),
               *task = json_string_value(json_object_get(j.root, "task_type"));
    const reading r = {&j, s, d};
    if (!name)
        st = refuse(&r, "base_model_name_or_path", "must name the folder of the model that they are beside");
    else
        st = gr_model_shape_read(s, name, d);
    if (st && name) gr_diag_note(d, gr_json_at(&j, "base_model_name_or_path"), "needed here");
    if (!st && task && strcmp(task, "CAUSAL_LM") != 0 && s->head == GR_HEAD_LM) {
        gr_model_shape_to_value(s);
        s->value_bias = !strcmp(task, "TOKEN_CLS");
    }
    if (!st) *base = gr_strdup(name);
    gr_json_release(&j);
    return st;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static json_t *targets_of(const gr_model_shape *s)
{
    json_t *list = json_array();
    char name[96];
    for (gr_target t = GR_TARGET_Q; t < GR_N_TARGETS; t++)
        if (s->adapter.targets >> t & 1)
            json_array_append_new(list, json_string(gr_target_module(s, t, name)));
    return list;
}

gr_status gr_peft_write(const char *dir, const gr_model_shape *s, double alpha, const char *base, gr_diag *d)
{
    const bool value = s->head == GR_HEAD_VALUE;
    json_t *number = alpha == floor(alpha) ? json_integer((json_int_t)alpha) : json_real(alpha);
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:i, s:o, s:f, s:s, s:o, s:b, s:b, s:b, s:b, s:o}", "peft_type", "LORA", "task_type",
        value ? s->value_bias ? "TOKEN_CLS" : "SEQ_CLS" : "CAUSAL_LM", "base_model_name_or_path", base, "r",
        (int)s->adapter.rank, "lora_alpha", number, "lora_dropout", 0.0, "bias", "none", "target_modules",
        targets_of(s), "use_rslora", 0, "use_dora", 0, "fan_in_fan_out", 0, "inference_mode", 1,
        "modules_to_save", value ? json_pack("[s]", "score") : json_null());
    if (s->nf4) json_object_set_new(root, GR_PEFT_BASE, json_string("nf4"));
    char *text = json_dumps(root, JSON_INDENT(2)), *path = gr_printf("%s/" GR_PEFT_CONFIG, dir);
    char *line = gr_printf("%s\n", text);
    gr_status st = gr_file_write(path, line, strlen(line), d);
    free(line);
    free(path);
    free(text);
    json_decref(root);
    return st;
}
