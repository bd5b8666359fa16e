/* ops/environment_keys.h: the map `environment` of a rollout, from the graph to the op's config. */
#ifndef GR_OPS_ENVIRONMENT_KEYS_H
#define GR_OPS_ENVIRONMENT_KEYS_H

#include "ops/base/configs.h"

/* Fill c->environment from c->answers. True: an environment answers, and its bounds hold; else there is none,
 * or d says what is wrong. */
bool gr_environment_read(gr_generate_cfg *c, const gr_node *n, gr_arena *arena, gr_diag *d);

/* Values of a key of such a map. */
gr_status gr_map_text(const char **out, const gr_pair *p, gr_diag *d);
gr_status gr_map_flag(bool *out, const gr_pair *p, gr_diag *d);
gr_status gr_map_count(uint32_t *out, const gr_pair *p, uint32_t least, uint32_t most, gr_diag *d);

#endif
