/* ops/kernels/cpu/adapters_cpu.h: adapters on the CPU device: entries of gr_layer_ops.
 *
 * Sizes are bytes. Threads: what runs is split over the queue's team.
 */
#ifndef GR_OPS_KERNELS_CPU_ADAPTERS_CPU_H
#define GR_OPS_KERNELS_CPU_ADAPTERS_CPU_H

#include "ops/kernels/layer_ops.h"

uint64_t gr_cpu_merge_ws_bytes(uint32_t rows, uint32_t in, uint32_t rank, unsigned threads);
void gr_cpu_merge(gr_queue *q, const gr_merge *c, void *ws);
/* The frozen weights that adapters are merged into; see gr_layer_ops.open. */
void gr_cpu_open(gr_queue *q, const gr_model_shape *s, uint32_t bucket, const void *from, void *w);
uint64_t gr_cpu_adapters_back_ws_bytes(const gr_adapters_back *c, unsigned threads);
void gr_cpu_adapters_back(gr_queue *q, const gr_adapters_back *c, void *ws);

#endif
