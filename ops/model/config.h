/* ops/model/config.h: reading a config.json: values within bounds, refusals with their place.
 *
 * A refusal is an error at the key's place, and sets bad; reading goes on, so that all are told at once.
 */
#ifndef GR_OPS_MODEL_CONFIG_H
#define GR_OPS_MODEL_CONFIG_H

#include "ops/model/model.h"
#include "runtime/base/json.h"

/* Bounds that no real model nears; with them no size in bytes of any bucket or model overflows 64 bits. */
#define GR_VOCAB_MAX     (1u << 24)
#define GR_HIDDEN_MAX    (1u << 18)
#define GR_INNER_MAX     (1u << 20)
#define GR_HEADS_MAX     (1u << 12)
#define GR_POSITIONS_MAX (1u << 30)

typedef struct gr_config {
    gr_json j;
    gr_diag *d;
    const char *family; /* for messages */
    double partial;     /* of a head that is rotated, where config.json does not say; 0: all of it, always */
    bool grids;         /* positions may be of several grids, of which text has one */
    uint32_t original_positions; /* gr_arch.original_positions */
    bool scales_queries;         /* gr_arch.scales_queries */
    bool proportional;           /* gr_arch.proportional */
    bool bad;
} gr_config;

GR_PRINTF(3, 4) void gr_config_refuse(gr_config *c, const char *key, const char *fmt, ...);

/* The value of a key, NULL where it is missing or null; and whether it is there, be it null. */
const json_t *gr_config_value(const gr_config *c, const char *key);
bool gr_config_has(const gr_config *c, const char *key);

/* An integer in [1, max]; missing: fallback, or refused where that is 0. */
uint32_t gr_config_size(gr_config *c, const char *key, uint32_t fallback, uint32_t max);
/* An integer in [0, max]; missing: fallback. */
uint32_t gr_config_count(gr_config *c, const char *key, uint32_t fallback, uint32_t max);
/* A number in [low, high] of v, which is under key; missing: fallback. */
double gr_config_number(gr_config *c, const char *key, const json_t *v, double fallback, double low,
                        double high);
/* true or false; missing: fallback. */
bool gr_config_flag(gr_config *c, const char *key, bool fallback);

/* Refuse each of these keys (ending with NULL) unless it is absent, null or false. */
void gr_config_off(gr_config *c, const char *const *keys);

/* Which kind each layer is: `layer_types`, of s->layers names out of `kinds` (ending with NULL), as their
 * places in it; missing: false, and out stays. Others are refused. out [GR_LAYERS_MAX]. */
bool gr_config_layer_types(gr_config *c, const gr_model_shape *s, const char *const *kinds, uint8_t *out);

/* How many of a head's dimensions are rotated: `partial_rotary_factor` of the root or of the rope, which
 * without c->partial can only be 1. */
uint32_t gr_config_rotated(gr_config *c, uint32_t head_dim);

/* Rotary positions as config.json says them: r has the defaults, and gets what is read. */
void gr_config_rope(gr_config *c, gr_rope_desc *r, uint32_t max_positions);

/* Refuses entries of rope_parameters that are of no type of layer, where positions differ by the type. */
void gr_config_rope_types(gr_config *c);

/* Rotary positions of layers of one type, where they differ by the type: in rope_parameters.TYPE; else by the
 * key of the root that has their base and, where scaled, rope_scaling. */
void gr_config_rope_of(gr_config *c, const char *type, const char *base, bool scaled, gr_rope_desc *r,
                       uint32_t max_positions);

#endif
