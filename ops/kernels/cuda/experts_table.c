/* ops/kernels/cuda/experts_table.c: the experts of the CUDA device; without CUDA, their sizes alone. */
#include "ops/kernels/cuda/experts.h"
#include "ops/kernels/cuda/experts_run.h"
#include "ops/kernels/cuda/gemm.h"

/* cuBLASLt's, or behind its products the sums of a bias; of few experts the parts of gradients. */
static uint64_t logits_ws_bytes(uint32_t T, uint32_t H, uint32_t E, unsigned threads, bool backward)
{
    (void)threads;
    if (E % 8) return backward ? gr_cu_few_ws(T, H, E) : 0;
    return backward ? GR_MAX(GR_CU_GEMM_WS_BYTES, gr_cu_column_sums_ws(T, E)) : GR_CU_GEMM_WS_BYTES;
}

static uint64_t dispatch_ws_bytes(uint32_t E, uint32_t k, uint32_t T)
{
    (void)k;
    return gr_cu_dispatch_ws(E, T);
}

static uint64_t product_ws_bytes(uint32_t rows, uint32_t in, uint32_t out, unsigned threads, bool backward)
{
    (void)rows, (void)in, (void)out, (void)threads, (void)backward;
    return 0;
}

/* Rows are read in vectors of 16 bytes. */
static const char *unfit(const gr_experts_desc *e)
{
    return e->inner % 8 || e->shared_inner % 8 ? "experts of an inner size that is no multiple of 8" : NULL;
}

#ifdef GR_CUDA
#define RUNS(name) .name = gr_cuda_experts_##name
#else
#define RUNS(name) .name = NULL
#endif

const gr_experts_ops gr_experts_cuda = {
    .unfit = unfit,
    .logits_ws_bytes = logits_ws_bytes,
    .dispatch_ws_bytes = dispatch_ws_bytes,
    .product_ws_bytes = product_ws_bytes,
    RUNS(logits),
    RUNS(logits_backward),
    RUNS(route),
    RUNS(route_backward),
    RUNS(scale_choices),
    RUNS(scale_choices_backward),
    RUNS(compare),
    RUNS(count),
    RUNS(shares),
    RUNS(pull),
    RUNS(balance_backward),
    RUNS(dispatch),
    RUNS(gather),
    RUNS(combine),
    RUNS(choice_rows),
    RUNS(choice_back),
    RUNS(product),
    RUNS(product_dx),
    RUNS(product_dw),
    RUNS(bias_backward),
    RUNS(bias_dot),
    RUNS(activate),
    RUNS(activate_backward),
};
