/* ops/model/config_rope.c: rotary positions in a config.json. transformers 4 has rope_theta and rope_scaling,
 * transformers 5 rope_parameters with both in it; where a config has several of them, they must say the same.
 *
 * Source: modeling_rope_utils.py of Hugging Face transformers 5.
 */
#include "ops/model/config.h"

#include <math.h>
#include <string.h>

/* What one place says. */
typedef struct said {
    const char *key; /* the object's; NULL: the root */
    double theta;    /* NAN: not said */
    gr_rope_desc rope;
} said;

static const struct form {
    const char *name;
    gr_rope_type type;
    const char *keys[9]; /* what it has, ending with NULL */
} forms[] = {
    {"default", GR_ROPE_DEFAULT, {NULL}},
    {"linear", GR_ROPE_LINEAR, {"factor", NULL}},
    {"llama3",
     GR_ROPE_LLAMA3,
     {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", NULL}},
    {"yarn",
     GR_ROPE_YARN,
     {"factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate",
      "original_max_position_embeddings", NULL}},
};
#define SUPPORTED "default, linear, llama3 and yarn"

static const struct form *form_of(const char *name)
{
    for (size_t i = 0; i < GR_LEN(forms); i++)
        if (!strcmp(forms[i].name, name)) return &forms[i];
    return NULL;
}

/* The form that the object names; an object that has a base alone need not, and then is the default one.
 * NULL: refused. *given: whether it names one. */
static const struct form *read_form(gr_config *c, const char *key, const json_t *v, bool *given)
{
    const char *names[] = {"rope_type", "type"}, *type = NULL;
    for (size_t i = 0; i < GR_LEN(names); i++) {
        const json_t *is = json_object_get(v, names[i]);
        const char *name = is ? json_string_value(is) : type;
        if (is && (!name || !form_of(name))) {
            gr_config_refuse(c, key, "rope type '%s' is not supported; supported are " SUPPORTED,
                             name ? name : "?");
            return NULL;
        }
        if (type && strcmp(type, name) != 0) {
            gr_config_refuse(c, key, "'%s.rope_type' is '%s', but '%s.type' is '%s'", key, type, key, name);
            return NULL;
        }
        type = name;
    }
    *given = type;
    return form_of(type ? type : "default");
}

static bool form_has(const struct form *f, const char *key)
{
    for (const char *const *k = f->keys; *k; k++)
        if (!strcmp(*k, key)) return true;
    return false;
}

/* Refuses what one entry of the object means, if it is not what the form has. */
static void check_key(gr_config *c, const char *object, const struct form *f, bool given, const char *key,
                      const json_t *v)
{
    static const char *const known[] = {"rope_theta", "rope_type", "type", "partial_rotary_factor"};
    for (size_t i = 0; i < GR_LEN(known); i++)
        if (!strcmp(key, known[i])) return;
    if (json_is_object(v))
        gr_config_refuse(c, object,
                         "'%s.%s' is an object: positions that differ by the type of layer are not supported",
                         object, key);
    else if (!given)
        gr_config_refuse(c, object, "'%s' has '%s', but no 'rope_type'; supported are " SUPPORTED, object,
                         key);
    else if (!form_has(f, key))
        gr_diag_warn(c->d, gr_json_at(&c->j, object), "'%s.%s' is ignored: rope type '%s' has none", object,
                     key, f->name);
}

/* A positive number of the object; missing: fallback, or refused where that is NAN. */
static double part(gr_config *c, const said *o, const json_t *v, const char *key, double fallback)
{
    const json_t *is = json_object_get(v, key);
    const double x = json_is_number(is) ? json_number_value(is) : NAN;
    if (x > 0 && x <= GR_POSITIONS_MAX) return x;
    if ((!is || json_is_null(is)) && !isnan(fallback)) return fallback;
    gr_config_refuse(c, o->key, "'%s.%s' is missing or not a positive number", o->key, key);
    return NAN;
}

static void read_llama3(gr_config *c, const json_t *v, said *o)
{
    gr_rope_desc *r = &o->rope;
    r->factor = part(c, o, v, "factor", NAN);
    r->low_freq_factor = part(c, o, v, "low_freq_factor", NAN);
    r->high_freq_factor = part(c, o, v, "high_freq_factor", NAN);
    const double old = part(c, o, v, "original_max_position_embeddings", NAN);
    if (r->low_freq_factor >= r->high_freq_factor || r->factor < 1 || old < 1 || old != floor(old))
        gr_config_refuse(c, o->key,
                         "'%s': 'low_freq_factor' must be less than 'high_freq_factor', 'factor' and "
                         "'original_max_position_embeddings' at least 1, and this one an integer",
                         o->key);
    if (!c->bad) r->original_positions = (uint32_t)old;
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static void read_yarn(gr_config *c, const json_t *v, said *o, uint32_t max_positions)
{
    gr_rope_desc *r = &o->rope;
    const double old = part(c, o, v, "original_max_position_embeddings", max_positions),
                 all = part(c, o, v, "mscale_all_dim", 0), one = part(c, o, v, "mscale", 0);
    r->factor = part(c, o, v, "factor", NAN);
    r->beta_fast = part(c, o, v, "beta_fast", 32);
    r->beta_slow = part(c, o, v, "beta_slow", 1);
    r->truncate = !json_is_false(json_object_get(v, "truncate"));
    if (r->factor < 1 || old < 1 || old != floor(old) || r->beta_fast <= r->beta_slow)
        gr_config_refuse(c, o->key,
                         "'%s': 'beta_slow' must be less than 'beta_fast', 'factor' and "
                         "'original_max_position_embeddings' at least 1, and this one an integer",
                         o->key);
    if (c->bad) return;
    r->original_positions = (uint32_t)old;
    r->attention = part(c, o, v, "attention_factor",
                        one > 0 && all > 0 ? yarn_mscale(r->factor, one) / yarn_mscale(r->factor, all)
                                           : yarn_mscale(r->factor, 1));
}

static double read_theta(gr_config *c, const char *key, const json_t *v)
{
    return gr_config_number(c, key, v, NAN, 1, 1e15);
}

/* What the object under key says; false: there is none, or it was refused. */
static bool read_object(gr_config *c, const char *key, uint32_t max_positions, said *o)
{
    const json_t *v = gr_config_value(c, key);
    const struct form *f = NULL;
    const char *name;
    json_t *entry;
    bool given = false;
    *o = (said){.key = key, .theta = NAN};
    if (v && !json_is_object(v)) gr_config_refuse(c, key, "'%s' is not an object", key);
    if (json_is_object(v)) f = read_form(c, key, v, &given);
    if (!f) return false;
    json_object_foreach(json_object_get(c->j.root, key), name, entry)
        check_key(c, key, f, given, name, entry);
    gr_config_number(c, key, json_object_get(v, "partial_rotary_factor"), 1, 1, 1);
    o->theta = read_theta(c, key, json_object_get(v, "rope_theta"));
    o->rope.type = f->type;
    if (f->type == GR_ROPE_LINEAR) o->rope.factor = part(c, o, v, "factor", NAN);
    if (f->type == GR_ROPE_LLAMA3) read_llama3(c, v, o);
    if (f->type == GR_ROPE_YARN) read_yarn(c, v, o, max_positions);
    return true;
}

/* *theta: what was said before; NAN: nothing. */
static void take_theta(gr_config *c, const said *o, double *theta)
{
    const char *key = o->key ? o->key : "rope_theta";
    if (isnan(o->theta)) return;
    if (!isnan(*theta) && *theta != o->theta)
        gr_config_refuse(c, key, "'%s%s' is %.15g, but another place says %.15g; leave the one that is meant",
                         key, o->key ? ".rope_theta" : "", o->theta, *theta);
    *theta = o->theta;
}

/* phi's place for it, which transformers 5 prefers. */
static void check_original_positions(gr_config *c, const gr_rope_desc *r)
{
    const char *key = "original_max_position_embeddings";
    const uint32_t n = gr_config_size(c, key, r->original_positions + 1, GR_POSITIONS_MAX);
    if (gr_config_value(c, key) && r->original_positions && n != r->original_positions)
        gr_config_refuse(c, key, "'%s' is %u, but that of the rope's scaling %u", key, n,
                         r->original_positions);
}

void gr_config_rope(gr_config *c, gr_rope_desc *r, uint32_t max_positions)
{
    const said root = {.theta = read_theta(c, "rope_theta", gr_config_value(c, "rope_theta"))};
    said scaling, parameters;
    const bool old = read_object(c, "rope_scaling", max_positions, &scaling),
               new = read_object(c, "rope_parameters", max_positions, &parameters);
    const uint32_t dims = r->dims;
    double theta = NAN;
    if (old && new && !gr_rope_same(&scaling.rope, &parameters.rope))
        gr_config_refuse(
            c, "rope_scaling",
            "'rope_scaling' and 'rope_parameters' say different things; leave the one that is meant");
    take_theta(c, &root, &theta);
    if (old) take_theta(c, &scaling, &theta);
    if (new) take_theta(c, &parameters, &theta);
    if (isnan(theta)) theta = r->theta;
    if (old || new) *r = new ? parameters.rope : scaling.rope;
    r->dims = dims;
    r->theta = theta;
    check_original_positions(c, r);
}
