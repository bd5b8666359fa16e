/* ops/kernels/cuda/adapters.h: adapters on CUDA: entries of gr_layer_ops, for ops/kernels/cuda/table.c.
 *
 * Workspaces: ops/kernels/cuda/adapters_layout.h. Threads: all is enqueued on the queue's stream.
 */
#ifndef GR_OPS_KERNELS_CUDA_ADAPTERS_H
#define GR_OPS_KERNELS_CUDA_ADAPTERS_H

#include "ops/kernels/layer_ops.h"

/* The frozen weights that adapters are merged into; see gr_layer_ops.open. The CPU's, rounded to bf16. */
void gr_cuda_open(gr_queue *q, const gr_model_shape *s, uint32_t bucket, const void *from, void *w);
void gr_cuda_merge(gr_queue *q, const gr_merge *c, void *ws);
void gr_cuda_adapters_back(gr_queue *q, const gr_adapters_back *c, void *ws);

#endif
