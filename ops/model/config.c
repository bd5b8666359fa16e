/* ops/model/config.c: values of a config.json within their bounds. */
#include "ops/model/config.h"

#include <math.h>
#include <string.h>

void gr_config_refuse(gr_config *c, const char *key, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    gr_diag_verror(c->d, gr_json_at(&c->j, key), GR_E_INVALID, fmt, ap);
    va_end(ap);
    c->bad = true;
}

const json_t *gr_config_value(const gr_config *c, const char *key)
{
    const json_t *v = json_object_get(c->j.root, key);
    return json_is_null(v) ? NULL : v;
}

bool gr_config_has(const gr_config *c, const char *key)
{
    return json_object_get(c->j.root, key) != NULL;
}

uint32_t gr_config_size(gr_config *c, const char *key, uint32_t fallback, uint32_t max)
{
    const json_t *v = gr_config_value(c, key);
    if (!v && !fallback) gr_config_refuse(c, key, "'%s' is missing", key);
    if (!v) return fallback;
    json_int_t n = json_integer_value(v);
    if (json_is_integer(v) && n >= 1 && n <= max) return (uint32_t)n;
    gr_config_refuse(c, key, "'%s' is not an integer from 1 to %u", key, max);
    return 0;
}

uint32_t gr_config_count(gr_config *c, const char *key, uint32_t fallback, uint32_t max)
{
    const json_t *v = gr_config_value(c, key);
    const json_int_t n = json_integer_value(v);
    if (!v) return fallback;
    if (json_is_integer(v) && n >= 0 && n <= max) return (uint32_t)n;
    gr_config_refuse(c, key, "'%s' is not an integer from 0 to %u", key, max);
    return fallback;
}

double gr_config_number(gr_config *c, const char *key, const json_t *v, double fallback, double low,
                        double high)
{
    if (!v || json_is_null(v)) return fallback;
    double x = json_is_number(v) ? json_number_value(v) : NAN;
    if (x >= low && x <= high) return x;
    gr_config_refuse(c, key, "'%s' is not a number from %g to %g", key, low, high);
    return fallback;
}

bool gr_config_flag(gr_config *c, const char *key, bool fallback)
{
    const json_t *v = gr_config_value(c, key);
    if (v && !json_is_boolean(v)) gr_config_refuse(c, key, "'%s' is not true or false", key);
    return v ? json_is_true(v) : fallback;
}

void gr_config_off(gr_config *c, const char *const *keys)
{
    for (; *keys; keys++) {
        const json_t *v = gr_config_value(c, *keys);
        if (v && !json_is_false(v))
            gr_config_refuse(c, *keys, "'%s' is not supported for '%s'; it must be false", *keys, c->family);
    }
}

/* The place of a name in the list; -1: it is not there. */
static int place_of(const char *const *list, const char *name)
{
    for (int i = 0; list[i]; i++)
        if (!strcmp(list[i], name)) return i;
    return -1;
}

static void refuse_type(gr_config *c, const char *name, const char *const *kinds)
{
    gr_str all = {0};
    for (size_t i = 0; kinds[i]; i++) gr_str_printf(&all, "%s'%s'", i ? " or " : "", kinds[i]);
    gr_config_refuse(c, "layer_types", "layer type '%s' is not supported; it must be %s", name ? name : "?",
                     all.text);
    gr_str_release(&all);
}

bool gr_config_layer_types(gr_config *c, const gr_model_shape *s, const char *const *kinds, uint8_t *out)
{
    size_t i;
    json_t *kind;
    const json_t *list = gr_config_value(c, "layer_types");
    if (!list) return false;
    if (!json_is_array(list)) gr_config_refuse(c, "layer_types", "'layer_types' is not a list");
    if (json_is_array(list) && s->layers && json_array_size(list) != s->layers)
        gr_config_refuse(c, "layer_types", "'layer_types' has %zu entries, but 'num_hidden_layers' is %u",
                         json_array_size(list), s->layers);
    if (c->bad) return false;
    json_array_foreach(list, i, kind)
    {
        const char *name = json_string_value(kind);
        const int place = name ? place_of(kinds, name) : -1;
        if (place < 0) {
            refuse_type(c, name, kinds);
            return false;
        }
        out[i] = (uint8_t)place;
    }
    return true;
}
