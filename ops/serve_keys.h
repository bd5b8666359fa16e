/* ops/serve_keys.h: the map `serve` of a rollout, from the graph to the op's config.
 *
 * Threads: any.
 */
#ifndef GR_OPS_SERVE_KEYS_H
#define GR_OPS_SERVE_KEYS_H

#include "ops/base/configs.h"

/* Fill c->serve from c->endpoint, behind the environment. True: the rollout is served; else it is not, or d
 * says what is wrong. */
bool gr_serve_read(gr_generate_cfg *c, const gr_node *n, gr_diag *d);

#endif
