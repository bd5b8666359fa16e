/* ops/kernels/cuda/teach.cu: how far rows of a student's logits are from a teacher's, and the slope of that
 * by the student's logits, in the place of the teacher's. The formulas are those of
 * ops/kernels/cpu/teach_cpu.c.
 *
 * One block a row, three walks over it: the teacher's log-sum-exp; the divergence; the slope. Bound by
 * memory, 24 bytes an id: 4 and 8 and 8 read, 4 written; a walk that finds its row in L2 is not paid for
 * again. A thread always has the same ids and sums have one order, so the bits of a row follow from that row
 * alone.
 */
#include "ops/kernels/cuda/softmax.cuh"

enum { BLOCK = 512, WARPS = BLOCK / GR_WARP };

struct logs { /* natural, of one id: student, teacher, mixture */
    float p, t, m;
};

struct row_of_two {
    float c, lse, taught_lse; /* base 2 */
    gr_divergence kind;
    float beta;
};

GR_DEVICE logs logs_of(const row_of_two &r, float z, float taught)
{
    logs x;
    x.p = GR_LN_2 * fmaxf(fmaf(z, r.c, -r.lse), -1e4f);
    x.t = GR_LN_2 * fmaxf(fmaf(taught, r.c, -r.taught_lse), -1e4f);
    x.m = r.kind == GR_JSD ? logf(fmaxf(fmaf(r.beta, expf(x.t), (1 - r.beta) * expf(x.p)), FLT_MIN)) : 0;
    return x;
}

/* What an id adds to the divergence; *own: to KL(p || m). */
GR_DEVICE float part_of(const row_of_two &r, const logs &x, float *own)
{
    const float p = expf(x.p);
    if (r.kind == GR_REVERSE_KL) return p * (x.p - x.t);
    const float t = expf(x.t);
    if (r.kind == GR_FORWARD_KL) return t * (x.t - x.p);
    const float above = p * (x.p - x.m);
    *own += above;
    return fmaf(r.beta * t, x.t - x.m, (1 - r.beta) * above);
}

GR_DEVICE float slope_of(const row_of_two &r, const logs &x, float divergence, float own)
{
    const float p = expf(x.p);
    if (r.kind == GR_REVERSE_KL) return p * (x.p - x.t - divergence);
    if (r.kind == GR_FORWARD_KL) return p - expf(x.t);
    return (1 - r.beta) * p * (x.p - x.m - own);
}

GR_DEVICE float block_max(float x, float *part)
{
    x = gr_warp_max(x);
    if (threadIdx.x % GR_WARP == 0) part[threadIdx.x / GR_WARP] = x;
    __syncthreads();
    for (uint32_t i = 0; i < WARPS; i++) x = fmaxf(x, part[i]);
    return x;
}

/* Base 2, of the row's scaled logits. */
GR_DEVICE float log_sum(const float *z, float c, uint32_t V, float (*part)[WARPS])
{
    float max = -FLT_MAX, sum = 0;
    for (uint32_t i = threadIdx.x; i < V; i += BLOCK) max = fmaxf(max, z[i]);
    max = gr_scaled_max(block_max(max, part[0]), c);
    for (uint32_t i = threadIdx.x; i < V; i += BLOCK) sum += gr_exp2(fmaf(z[i], c, -max));
    return max + log2f(gr_block_sum(sum, part[1]));
}

GR_KERNEL void __launch_bounds__(BLOCK) teach_kernel(const gr_cu_teach_call a)
{
    __shared__ float part[4][WARPS];
    const float *z = a.logits + (size_t)blockIdx.x * a.V;
    float *taught = a.taught + (size_t)blockIdx.x * a.V, divergence = 0, own = 0;
    row_of_two r = {__fmul_rn(a.inv_temperature, GR_LOG2_E), a.lse[blockIdx.x] * GR_LOG2_E, 0, a.kind,
                    a.beta};
    r.taught_lse = log_sum(taught, r.c, a.V, part);
    for (uint32_t i = threadIdx.x; i < a.V; i += BLOCK)
        divergence += part_of(r, logs_of(r, z[i], taught[i]), &own);
    divergence = gr_block_sum(divergence, part[2]);
    own = gr_block_sum(own, part[3]);
    for (uint32_t i = threadIdx.x; i < a.V; i += BLOCK)
        taught[i] = slope_of(r, logs_of(r, z[i], taught[i]), divergence, own);
    if (!threadIdx.x) a.divergence[blockIdx.x] = divergence;
}

extern "C" void gr_cu_teach(cudaStream_t st, const gr_cu_teach_call *c)
{
    if (c->n) teach_kernel<<<c->n, BLOCK, 0, st>>>(*c);
}
