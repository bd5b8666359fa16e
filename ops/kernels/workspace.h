/* ops/kernels/workspace.h: hand out pieces of one buffer. With base NULL nothing is handed out and `used`
 * counts what would be: so the function that carves a buffer also tells its size.
 */
#ifndef GR_OPS_KERNELS_WORKSPACE_H
#define GR_OPS_KERNELS_WORKSPACE_H

#include "runtime/base/base.h"

typedef struct gr_workspace {
    char *base;
    uint64_t used;
} gr_workspace;

/* The next bytes, at a multiple of 256. */
static inline void *gr_workspace_bytes(gr_workspace *c, uint64_t bytes)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used += gr_align(bytes, 256);
    return p;
}

static inline float *gr_workspace_floats(gr_workspace *c, uint64_t n)
{
    return gr_workspace_bytes(c, n * sizeof(float));
}

#endif
