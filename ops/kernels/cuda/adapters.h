/* ops/kernels/cuda/adapters.h: adapters on CUDA: entries of gr_layer_ops, for ops/kernels/cuda/table.c.
 *
 * Workspaces: ops/kernels/cuda/adapters_layout.h. Threads: all is enqueued on the queue's stream.
 */
#ifndef GR_OPS_KERNELS_CUDA_ADAPTERS_H
#define GR_OPS_KERNELS_CUDA_ADAPTERS_H

#include "ops/kernels/layer_ops.h"

void gr_cuda_merge(gr_queue *q, const gr_merge *c, void *ws);
void gr_cuda_adapters_back(gr_queue *q, const gr_adapters_back *c, void *ws);

#endif
