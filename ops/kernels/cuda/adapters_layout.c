/* ops/kernels/cuda/adapters_layout.c: workspaces of adapters on CUDA, also where CUDA is not built. */
#include "ops/kernels/cuda/adapters_layout.h"

#include "ops/kernels/cuda/gemm.h"

void gr_cu_adapters_layout(gr_workspace *c, uint32_t t, uint32_t cols, gr_cu_adapters_ws *w)
{
    w->gemm = gr_workspace_bytes(c, GR_CU_GEMM_WS_BYTES);
    w->u = gr_workspace_bytes(c, (uint64_t)t * cols * sizeof(gr_bf16));
    w->v = gr_workspace_bytes(c, (uint64_t)t * cols * sizeof(gr_bf16));
}

uint64_t gr_cu_merge_ws_bytes(uint32_t rows, uint32_t in, uint32_t rank, unsigned threads)
{
    (void)rows, (void)in, (void)rank, (void)threads;
    return GR_CU_GEMM_WS_BYTES;
}

uint64_t gr_cu_adapters_back_ws_bytes(const gr_adapters_back *b, unsigned threads)
{
    gr_workspace c = {0};
    gr_cu_adapters_ws w;
    (void)threads;
    gr_cu_adapters_layout(&c, b->t, b->count * b->rank, &w);
    return c.used;
}
