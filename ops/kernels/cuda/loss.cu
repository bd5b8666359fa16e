/* ops/kernels/cuda/loss.cu: passes of compiled expressions (graphs/expr/code.h): the loss of an update.
 *
 * A call is the kernel's argument, 3 KiB in constant memory: all threads read the same instruction at the
 * same time, which is what that memory is for, and nothing has to be copied or kept. Values within a pass are
 * in local memory of the thread (L1); bound by the double arithmetic of exp and log, and by launches where
 * batches are small.
 */
#include "ops/kernels/cuda/device.cuh"

#include "graphs/expr/code_run.h"

static_assert(sizeof(gr_code_call) <= 4096, "a kernel's arguments");
static_assert(GR_CODE_LANES == GR_WARP, "a strand is a lane");

enum { EACH = 128, FOLD_WARPS = 4, SELECT = 1024 };

GR_KERNEL void __launch_bounds__(EACH) each_kernel(const __grid_constant__ gr_code_call c)
{
    const uint32_t i = blockIdx.x * EACH + threadIdx.x;
    if (i < c.n) gr_code_each(&c, c.first + i);
}

/* A warp a sequence. By exchange, as tests/unit/code_host.h does it. */
GR_KERNEL void __launch_bounds__(FOLD_WARPS *GR_WARP) fold_kernel(const __grid_constant__ gr_code_call c)
{
    const uint32_t warp = (blockIdx.x * FOLD_WARPS * GR_WARP + threadIdx.x) / GR_WARP,
                   lane = threadIdx.x % GR_WARP;
    if (warp >= c.n) return;
    const uint32_t unit = c.first + warp;
    const gr_code_place p = gr_code_at(&c, c.pass.level, unit);
    for (uint32_t k = 0; k < c.pass.n_instrs; k++) {
        const gr_code_instr *x = &c.pass.instr[k];
        double sum = gr_code_fold_lane(&c, x, unit, lane);
        for (int o = GR_WARP / 2; o; o /= 2) sum = gr_code_fold_join(x, sum, __shfl_xor_sync(GR_ALL, sum, o));
        if (!lane) gr_code_put(&c, x->to, &p, NULL, sum);
    }
}

/* A thread a sequence, alone in its warp's company of 32: few sequences are in flight, so blocks are small.
 */
GR_KERNEL void __launch_bounds__(GR_WARP) scan_kernel(const __grid_constant__ gr_code_call c)
{
    const uint32_t i = blockIdx.x * GR_WARP + threadIdx.x;
    if (i >= c.n) return;
    for (uint32_t k = 0; k < c.pass.n_instrs; k++) gr_code_scan(&c, &c.pass.instr[k], c.first + i);
}

GR_KERNEL void __launch_bounds__(SELECT) select_kernel(const __grid_constant__ gr_code_call c)
{
    __shared__ gr_code_selection s;
    for (uint32_t k = 0; k < c.pass.n_instrs; k++)
        gr_code_select(&c, &c.pass.instr[k], threadIdx.x, SELECT, &s);
}

extern "C" void gr_cu_code_run(cudaStream_t st, const gr_code_call *c)
{
    switch (c->pass.form) {
    case GR_CODE_EACH:
        each_kernel<<<gr_ceil_div(c->n, EACH), EACH, 0, st>>>(*c);
        break;
    case GR_CODE_FOLD:
        fold_kernel<<<gr_ceil_div(c->n, FOLD_WARPS), FOLD_WARPS * GR_WARP, 0, st>>>(*c);
        break;
    case GR_CODE_SCAN:
        scan_kernel<<<gr_ceil_div(c->n, GR_WARP), GR_WARP, 0, st>>>(*c);
        break;
    default:
        select_kernel<<<1, SELECT, 0, st>>>(*c);
    }
}
