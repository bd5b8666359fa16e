/* ops/kernels/cuda/adapters_layout.h: how adapters' work on CUDA cuts its workspace; sizes without a device,
 * in bytes, for plans. Pure functions.
 */
#ifndef GR_OPS_KERNELS_CUDA_ADAPTERS_LAYOUT_H
#define GR_OPS_KERNELS_CUDA_ADAPTERS_LAYOUT_H

#include "ops/kernels/cuda/launch.h"
#include "ops/kernels/layer_ops.h"
#include "ops/kernels/workspace.h"

typedef struct gr_cu_adapters_ws { /* t rows */
    void *gemm;
    gr_bf16 *u, *v; /* [cols] */
} gr_cu_adapters_ws;
void gr_cu_adapters_layout(gr_workspace *c, uint32_t t, uint32_t cols, gr_cu_adapters_ws *w);

uint64_t gr_cu_merge_ws_bytes(uint32_t rows, uint32_t in, uint32_t rank, unsigned threads);
uint64_t gr_cu_adapters_back_ws_bytes(const gr_adapters_back *c, unsigned threads);

#endif
