/* ops/model/config_rope.c: rotary positions in a config.json. transformers 4 has rope_theta and rope_scaling,
 * transformers 5 rope_parameters with both in it; where a config has several of them, they must say the same.
 *
 * Source: modeling_rope_utils.py of Hugging Face transformers 5.
 */
#include "ops/model/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What one place says. */
typedef struct said {
    const char *key;  /* of config.json: the object's, or the one it is in; NULL: the root */
    const char *name; /* in messages */
    double theta;     /* NAN: not said */
    gr_rope_desc rope;
} said;

static const struct form {
    const char *name;
    gr_rope_type type;
    const char *keys[9]; /* what it has, ending with NULL */
} forms[] = {
    {"default", GR_ROPE_DEFAULT, {NULL}},
    {"dynamic", GR_ROPE_DEFAULT, {"factor", "original_max_position_embeddings", NULL}},
    {"linear", GR_ROPE_LINEAR, {"factor", NULL}},
    {"llama3",
     GR_ROPE_LLAMA3,
     {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", NULL}},
    {"yarn",
     GR_ROPE_YARN,
     {"factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate",
      "original_max_position_embeddings", NULL}},
#define LONG_KEYS                                                                                        \
    {                                                                                                    \
        "short_factor", "long_factor", "factor", "attention_factor", "original_max_position_embeddings", \
            NULL                                                                                         \
    }
    {"longrope", GR_ROPE_LONG, LONG_KEYS},
    {"su", GR_ROPE_LONG, LONG_KEYS}, /* what phi3 called it */
    {"proportional", GR_ROPE_PROPORTIONAL, {"factor", NULL}},
};
#define SUPPORTED "default, dynamic, linear, llama3, longrope and yarn"

static const struct form *form_of(const gr_config *c, const char *name)
{
    for (size_t i = 0; i < GR_LEN(forms); i++)
        if (!strcmp(forms[i].name, name) && (c->original_positions || strcmp(name, "su") != 0) &&
            (c->proportional || forms[i].type != GR_ROPE_PROPORTIONAL))
            return &forms[i];
    return NULL;
}

/* The form that the object names; an object that has a base alone need not, and then is the default one.
 * NULL: refused. *given: whether it names one. */
static const struct form *read_form(gr_config *c, const said *o, const json_t *v, bool *given)
{
    const char *names[] = {"rope_type", "type"}, *type = NULL;
    for (size_t i = 0; i < GR_LEN(names); i++) {
        const json_t *is = json_object_get(v, names[i]);
        const char *name = is ? json_string_value(is) : type;
        if (is && (!name || !form_of(c, name))) {
            gr_config_refuse(c, o->key, "rope type '%s' is not supported; supported are " SUPPORTED,
                             name ? name : "?");
            return NULL;
        }
        if (type && strcmp(type, name) != 0) {
            gr_config_refuse(c, o->key, "'%s.rope_type' is '%s', but '%s.type' is '%s'", o->name, type,
                             o->name, name);
            return NULL;
        }
        type = name;
    }
    *given = type;
    return form_of(c, type ? type : "default");
}

static bool form_has(const struct form *f, const char *key)
{
    for (const char *const *k = f->keys; *k; k++)
        if (!strcmp(*k, key)) return true;
    return false;
}

/* Refuses what one entry of the object means, if it is not what the form has. */
static void check_key(gr_config *c, const said *o, const struct form *f, bool given, const char *key,
                      const json_t *v)
{
    static const char *const known[] = {"rope_theta", "rope_type", "type", "partial_rotary_factor"};
    for (size_t i = 0; i < GR_LEN(known); i++)
        if (!strcmp(key, known[i])) return;
    if (c->grids && !strncmp(key, "mrope_", 6)) return;
    if (c->scales_queries &&
        (!strcmp(key, "llama_4_scaling_beta") || !strcmp(key, "max_position_embeddings")))
        return;
    if (json_is_object(v))
        gr_config_refuse(c, o->key,
                         "'%s.%s' is an object: positions that differ by the type of layer are not supported",
                         o->name, key);
    else if (!given)
        gr_config_refuse(c, o->key, "'%s' has '%s', but no 'rope_type'; supported are " SUPPORTED, o->name,
                         key);
    else if (!form_has(f, key))
        gr_diag_warn(c->d, gr_json_at(&c->j, o->key), "'%s.%s' is ignored: rope type '%s' has none", o->name,
                     key, f->name);
}

/* A positive number of the object; missing: fallback, or refused where that is NAN. */
static double part(gr_config *c, const said *o, const json_t *v, const char *key, double fallback)
{
    const json_t *is = json_object_get(v, key);
    const double x = json_is_number(is) ? json_number_value(is) : NAN;
    if (x > 0 && x <= GR_POSITIONS_MAX) return x;
    if ((!is || json_is_null(is)) && !isnan(fallback)) return fallback;
    gr_config_refuse(c, o->key, "'%s.%s' is missing or not a positive number", o->name, key);
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
                         o->name);
    if (!c->bad) r->original_positions = (uint32_t)old;
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static void read_yarn(gr_config *c, const json_t *v, said *o, uint32_t max_positions)
{
    gr_rope_desc *r = &o->rope;
    const json_t *truncate = json_object_get(v, "truncate");
    const double old = part(c, o, v, "original_max_position_embeddings", max_positions),
                 all = part(c, o, v, "mscale_all_dim", 0), one = part(c, o, v, "mscale", 0);
    r->factor = part(c, o, v, "factor", NAN);
    r->beta_fast = part(c, o, v, "beta_fast", 32);
    r->beta_slow = part(c, o, v, "beta_slow", 1);
    r->truncate = !json_is_false(truncate);
    if (truncate && !json_is_boolean(truncate))
        gr_config_refuse(c, o->key, "'%s.truncate' is not true or false", o->name);
    if (r->factor < 1 || old < 1 || old != floor(old) || r->beta_fast <= r->beta_slow)
        gr_config_refuse(c, o->key,
                         "'%s': 'beta_slow' must be less than 'beta_fast', 'factor' and "
                         "'original_max_position_embeddings' at least 1, and this one an integer",
                         o->name);
    if (c->bad) return;
    r->original_positions = (uint32_t)old;
    r->scores = all > 0 ? yarn_mscale(r->factor, all) : 1;
    r->attention = part(c, o, v, "attention_factor",
                        one > 0 && all > 0 ? yarn_mscale(r->factor, one) / yarn_mscale(r->factor, all)
                                           : yarn_mscale(r->factor, 1));
}

/* One of longrope's lists. */
static void read_stretch(gr_config *c, const said *o, const json_t *v, const char *key, gr_rope_desc *r,
                         float *out)
{
    const json_t *list = json_object_get(v, key);
    const size_t n = json_array_size(list);
    bool fine = json_is_array(list) && n > 0 && n <= GR_LONGROPE_MAX;
    for (size_t i = 0; i < n && fine; i++) {
        const json_t *x = json_array_get(list, i);
        out[i] = (float)json_number_value(x);
        fine = json_is_number(x) && out[i] > 0 && isfinite(out[i]);
    }
    if (!fine)
        gr_config_refuse(c, o->key, "'%s.%s' is not a list of 1 to %d positive numbers", o->name, key,
                         GR_LONGROPE_MAX);
    else if (r->pairs && r->pairs != n)
        gr_config_refuse(c, o->key, "'%s': 'short_factor' has %u numbers, but 'long_factor' %zu", o->name,
                         r->pairs, n);
    else
        r->pairs = (uint32_t)n;
}

static void read_longrope(gr_config *c, const json_t *v, said *o, uint32_t max_positions)
{
    static const char *const key = "original_max_position_embeddings";
    gr_rope_desc *r = &o->rope;
    const uint32_t usual = c->original_positions ? c->original_positions : max_positions,
                   root = gr_config_size(c, key, usual, GR_POSITIONS_MAX);
    /* phi3's config has it in the root, be it unsaid: transformers then passes over the object's */
    const double old = gr_config_value(c, key) ? root : part(c, o, v, key, root);
    if (c->original_positions && old != root)
        gr_config_refuse(c, o->key, "'%s.%s' is %.15g, but transformers reads that of the root, which is %u",
                         o->name, key, old, root);
    if (old < 2 || old != floor(old))
        gr_config_refuse(c, o->key, "'%s': '%s' must be an integer of at least 2", o->name, key);
    read_stretch(c, o, v, "short_factor", r, r->stretch[0]);
    read_stretch(c, o, v, "long_factor", r, r->stretch[1]);
    r->factor = part(c, o, v, "factor", max_positions / old);
    if (c->bad) return;
    r->original_positions = (uint32_t)old;
    r->attention = part(c, o, v, "attention_factor",
                        r->factor <= 1 ? 1 : sqrt(1 + log(r->factor) / log(r->original_positions)));
}

static double read_theta(gr_config *c, const char *key, const json_t *v)
{
    return gr_config_number(c, key, v, NAN, 1, 1e15);
}

/* What an object says; false: there is none, or it was refused. */
static bool read_object(gr_config *c, const json_t *v, uint32_t max_positions, said *o)
{
    const struct form *f = NULL;
    const char *key;
    json_t *entry;
    bool given = false;
    o->theta = NAN;
    if (json_is_null(v)) v = NULL;
    if (v && !json_is_object(v)) gr_config_refuse(c, o->key, "'%s' is not an object", o->name);
    if (json_is_object(v)) f = read_form(c, o, v, &given);
    if (!f) return false;
    json_object_foreach((json_t *)(uintptr_t)v, key, entry) check_key(c, o, f, given, key, entry);
    const bool partly = c->partial > 0 || f->type == GR_ROPE_PROPORTIONAL;
    const double share =
        gr_config_number(c, o->key, json_object_get(v, "partial_rotary_factor"), 1, partly ? 0 : 1, 1);
    o->theta = read_theta(c, o->key, json_object_get(v, "rope_theta"));
    o->rope.type = f->type;
    if (!strcmp(f->name, "dynamic"))
        gr_diag_warn(c->d, gr_json_at(&c->j, o->key),
                     "'%s' of type 'dynamic' counts beyond the %u positions of 'max_position_embeddings' "
                     "alone, and is "
                     "not built there: up to them positions are those of 'default'",
                     o->name, max_positions);
    if (f->type == GR_ROPE_LINEAR) o->rope.factor = part(c, o, v, "factor", NAN);
    if (f->type == GR_ROPE_PROPORTIONAL) {
        o->rope.factor = part(c, o, v, "factor", 1);
        o->rope.share = share;
    }
    if (f->type == GR_ROPE_LLAMA3) read_llama3(c, v, o);
    if (f->type == GR_ROPE_YARN) read_yarn(c, v, o, max_positions);
    if (f->type == GR_ROPE_LONG) read_longrope(c, v, o, max_positions);
    return true;
}

uint32_t gr_config_rotated(gr_config *c, uint32_t head_dim)
{
    static const char *const places[] = {"rope_parameters", "rope_scaling", NULL};
    const char *key = "partial_rotary_factor";
    double share = gr_config_number(c, key, gr_config_value(c, key), c->partial > 0 ? c->partial : 1,
                                    c->partial > 0 ? 0 : 1, 1);
    for (const char *const *p = places; *p; p++) {
        const json_t *v = json_object_get(gr_config_value(c, *p), key);
        if (v) share = json_number_value(v);
    }
    const uint32_t dims = (uint32_t)(head_dim * share);
    if (dims % 2 || !dims)
        gr_config_refuse(c, key,
                         "a '%s' of %.15g leaves %u of a head's %u dimensions to rotate, which must be even",
                         key, share, dims, head_dim);
    return dims;
}

/* *theta: what was said before; NAN: nothing. */
static void take_theta(gr_config *c, const said *o, double *theta)
{
    const char *key = o->key ? o->key : "rope_theta";
    if (isnan(o->theta)) return;
    if (!isnan(*theta) && *theta != o->theta)
        gr_config_refuse(c, key, "'%s%s' is %.15g, but another place says %.15g; leave the one that is meant",
                         o->name, o->key ? ".rope_theta" : "", o->theta, *theta);
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

/* r gets what was said, but for its dims; and theta. */
static void take(gr_config *c, gr_rope_desc *r, const said *o, double theta)
{
    const uint32_t dims = r->dims;
    if (o) *r = o->rope;
    r->dims = dims;
    r->theta = theta;
    if (r->pairs && 2 * r->pairs != dims && !c->bad)
        gr_config_refuse(c, o->key, "'%s': lists of %u numbers, but %u pairs of a head are rotated", o->name,
                         r->pairs, dims / 2);
}

void gr_config_rope(gr_config *c, gr_rope_desc *r, uint32_t max_positions)
{
    const said root = {.name = "rope_theta",
                       .theta = read_theta(c, "rope_theta", gr_config_value(c, "rope_theta"))};
    said scaling = {"rope_scaling", "rope_scaling", NAN, {0}},
         parameters = {"rope_parameters", "rope_parameters", NAN, {0}};
    const bool old = read_object(c, gr_config_value(c, "rope_scaling"), max_positions, &scaling),
               new = read_object(c, gr_config_value(c, "rope_parameters"), max_positions, &parameters);
    double theta = NAN;
    if (old && new && !gr_rope_same(&scaling.rope, &parameters.rope))
        gr_config_refuse(
            c, "rope_scaling",
            "'rope_scaling' and 'rope_parameters' say different things; leave the one that is meant");
    take_theta(c, &root, &theta);
    if (old) take_theta(c, &scaling, &theta);
    if (new) take_theta(c, &parameters, &theta);
    take(c, r, new ? &parameters : old ? &scaling : NULL, isnan(theta) ? r->theta : theta);
    check_original_positions(c, r);
}

/* transformers 4 had rope_scaling and rope_theta for layers that see everything, and a key of the root for
 * the base of the others. */
static void rope_of_root(gr_config *c, const char *base, bool scaled, gr_rope_desc *r, uint32_t max_positions)
{
    said scaling = {"rope_scaling", "rope_scaling", NAN, {0}};
    const bool said_so =
        scaled && read_object(c, gr_config_value(c, "rope_scaling"), max_positions, &scaling);
    double theta = read_theta(c, base, gr_config_value(c, base));
    if (said_so) take_theta(c, &scaling, &theta);
    take(c, r, said_so ? &scaling : NULL, isnan(theta) ? r->theta : theta);
}

void gr_config_rope_types(gr_config *c)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)gr_config_value(c, "rope_parameters"), key, v)
    {
        if (!strcmp(key, "full_attention") || !strcmp(key, "sliding_attention")) continue;
        gr_config_refuse(c, "rope_parameters", "'rope_parameters.%s' is of no type of layer of '%s'", key,
                         c->family);
    }
}

void gr_config_rope_of(gr_config *c, const char *type, const char *base, bool scaled, gr_rope_desc *r,
                       uint32_t max_positions)
{
    const json_t *all = gr_config_value(c, "rope_parameters"), *v = json_object_get(all, type);
    double theta = NAN;
    char *name = gr_printf("rope_parameters.%s", type);
    said o = {"rope_parameters", name, NAN, {0}};
    if (!all)
        rope_of_root(c, base, scaled, r, max_positions);
    else if (gr_config_value(c, "rope_scaling"))
        gr_config_refuse(c, "rope_scaling", "'rope_scaling' and 'rope_parameters' are both there");
    else if (!v || json_is_null(v))
        gr_config_refuse(c, "rope_parameters", "'rope_parameters' has no '%s'", type);
    else if (json_is_false(json_object_get(v, "truncate"))) /* transformers looks for it in the wrong place */
        gr_config_refuse(c, "rope_parameters",
                         "'%s.truncate' of false is passed over by transformers; leave it out", o.name);
    else if (read_object(c, v, max_positions, &o)) {
        theta = read_theta(c, base, gr_config_value(c, base));
        take_theta(c, &o, &theta);
        take(c, r, &o, isnan(theta) ? r->theta : theta);
    }
    free(name);
}
