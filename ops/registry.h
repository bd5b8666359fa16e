/* ops/registry.h: the ops that there are.
 */
#ifndef GR_OPS_REGISTRY_H
#define GR_OPS_REGISTRY_H

#include "ops/base/op.h"

/* All ops, sorted by name, ending with NULL. */
extern const gr_op *const gr_ops[];
const gr_op *gr_op_find(const char *name); /* NULL */

/* The devices it runs on, "cpu, cuda". */
void gr_op_devices(const gr_op *op, gr_str *out);

#endif
