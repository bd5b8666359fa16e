/* ops/kernels/cuda/experts_act.cu: what experts compute between their products: gate and up to one row, and
 * back; and gradients of their biases. Bound by memory.
 *
 * An activation is gate sigmoid(at(gate)) (up + shift): at is gate itself of SiLU; 1.702 gate of gpt_oss,
 * where gate and up are held within limits; and 2 sqrt(2 / pi) (gate + 0.044715 gate^3) of the GELU that is
 * written with tanh.
 */
#include "ops/kernels/cuda/device.cuh"
#include "ops/kernels/cuda/experts.h"

enum { BLOCK = 256, WARPS = BLOCK / GR_WARP };

#define OAI_ALPHA 1.702f
#define GELU_C    1.5957691216057308f
#define GELU_CUBE 0.044715f

template <int ACT> struct activation {
    float gate, up, sigmoid, slope; /* gate and up as they are multiplied; slope: of gate's factor */
    bool gate_moves, up_moves;      /* within the limits */

    __device__ __forceinline__ activation(float g, float u, float limit)
    {
        const bool oai = ACT == GR_CU_SWIGLU_OAI;
        gate_moves = !oai || g <= limit;
        up_moves = !oai || fabsf(u) <= limit;
        gate = oai ? fminf(g, limit) : g;
        up = oai ? fmaxf(fminf(u, limit), -limit) + 1 : u;
        float at = gate, at_slope = 1;
        if (ACT == GR_CU_SWIGLU_OAI) {
            at = OAI_ALPHA * gate;
            at_slope = OAI_ALPHA;
        } else if (ACT == GR_CU_GELU_TANH) {
            at = GELU_C * (gate + GELU_CUBE * gate * gate * gate);
            at_slope = GELU_C * (1 + 3 * GELU_CUBE * gate * gate);
        }
        sigmoid = gr_sigmoid(at);
        slope = fmaf(gate * sigmoid * at_slope, 1 - sigmoid, sigmoid);
    }

    __device__ __forceinline__ float value() const
    {
        return gate * sigmoid * up;
    }
};

template <int ACT>
GR_KERNEL void __launch_bounds__(BLOCK) act_kernel(const uint4 *__restrict__ gate_up, uint4 *__restrict__ h,
                                                   uint64_t n, uint32_t width, float limit)
{
    const uint64_t v = (uint64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (v >= n) return;
    const size_t gate = v + v / width * width;
    float a[8], b[8];
    gr_unpack(gate_up[gate], a);
    gr_unpack(gate_up[gate + width], b);
#pragma unroll
    for (int i = 0; i < 8; i++) b[i] = activation<ACT>(a[i], b[i], limit).value();
    h[v] = gr_pack(b);
}

/* A warp a row. */
template <int ACT>
GR_KERNEL void __launch_bounds__(BLOCK)
    act_back_kernel(uint32_t rows, uint32_t width, float limit, const uint32_t *__restrict__ choice,
                    const float *__restrict__ weight, const float *__restrict__ base,
                    const uint4 *__restrict__ gate_up, const uint4 *dh, uint4 *__restrict__ d_gate_up,
                    uint4 *weighted, float *__restrict__ d_weight)
{
    const uint32_t r = blockIdx.x * WARPS + threadIdx.x / GR_WARP, lane = threadIdx.x % GR_WARP;
    if (r >= rows) return;
    const uint32_t c = choice ? choice[r] : 0;
    const float w = choice ? weight[c] : 1;
    float dot = 0;
    for (uint32_t v = lane; v < width; v += GR_WARP) {
        const size_t gate = (size_t)r * 2 * width + v, at = (size_t)r * width + v;
        float a[8], b[8], d[8], h[8];
        gr_unpack(gate_up[gate], a);
        gr_unpack(gate_up[gate + width], b);
        gr_unpack(dh[at], d);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const activation<ACT> f(a[i], b[i], limit);
            const float y = f.value(), g = w * d[i];
            dot = fmaf(d[i], y, dot);
            h[i] = w * y;
            a[i] = f.gate_moves ? g * f.up * f.slope : 0;
            b[i] = f.up_moves ? g * f.gate * f.sigmoid : 0;
        }
        d_gate_up[gate] = gr_pack(a);
        d_gate_up[gate + width] = gr_pack(b);
        weighted[at] = gr_pack(h);
    }
    dot = gr_warp_sum(dot);
    if (lane == 0 && choice) d_weight[c] = (base ? base[r] : 0) + dot;
}

/* The expert of a row: the last whose first row is not behind it. */
GR_DEVICE uint32_t expert_of(const uint32_t *first, uint32_t E, uint32_t row)
{
    uint32_t low = 0, high = E; /* first[low] <= row < first[high] */
    while (high - low > 1) {
        const uint32_t mid = (low + high) / 2;
        if (first[mid] <= row)
            low = mid;
        else
            high = mid;
    }
    return low;
}

GR_KERNEL void __launch_bounds__(BLOCK)
    bias_dot_kernel(const uint32_t *__restrict__ first, uint32_t E, uint32_t R, uint32_t width,
                    const uint4 *__restrict__ dy, const uint4 *__restrict__ bias, float *__restrict__ dot)
{
    const uint32_t r = blockIdx.x * WARPS + threadIdx.x / GR_WARP, lane = threadIdx.x % GR_WARP;
    if (r >= R) return;
    const uint4 *own = bias + (size_t)expert_of(first, E, r) * width;
    float sum = 0;
    for (uint32_t v = lane; v < width; v += GR_WARP) {
        float a[8], b[8];
        gr_unpack(dy[(size_t)r * width + v], a);
        gr_unpack(own[v], b);
#pragma unroll
        for (int i = 0; i < 8; i++) sum = fmaf(a[i], b[i], sum);
    }
    sum = gr_warp_sum(sum);
    if (lane == 0) dot[r] = sum;
}

/* A thread a column of an expert. */
template <class G>
GR_KERNEL void __launch_bounds__(BLOCK)
    bias_back_kernel(const uint32_t *__restrict__ first, const uint32_t *__restrict__ choice, uint32_t cols,
                     const gr_bf16 *__restrict__ dy, const float *__restrict__ weight, G *__restrict__ grad)
{
    const uint32_t column = blockIdx.x * BLOCK + threadIdx.x, begin = first[blockIdx.y],
                   end = first[blockIdx.y + 1];
    if (column >= cols || begin == end) return;
    float sum = 0;
#pragma unroll 8
    for (uint32_t r = begin; r < end; r++)
        sum = fmaf(weight ? weight[choice[r]] : 1, gr_float(dy[(size_t)r * cols + column]), sum);
    G *to = grad + (size_t)blockIdx.y * cols + column;
    gr_put(to, gr_get(to) + sum);
}

extern "C" void gr_cu_experts_act(cudaStream_t st, const gr_cu_expert_act *a, const gr_bf16 *gate_up,
                                  gr_bf16 *h)
{
    const uint64_t n = (uint64_t)a->rows * (a->inner / 8);
    const uint32_t grid = gr_ceil_div(n, BLOCK);
    assert(a->inner % 8 == 0);
    if (!n) return;
    const auto kernel = a->act == GR_CU_SILU        ? act_kernel<GR_CU_SILU>
                        : a->act == GR_CU_GELU_TANH ? act_kernel<GR_CU_GELU_TANH>
                                                    : act_kernel<GR_CU_SWIGLU_OAI>;
    kernel<<<grid, BLOCK, 0, st>>>((const uint4 *)gate_up, (uint4 *)h, n, a->inner / 8, a->limit);
}

extern "C" void gr_cu_experts_act_backward(cudaStream_t st, const gr_cu_expert_act *a, const uint32_t *choice,
                                           const float *weight, const float *base, const gr_bf16 *gate_up,
                                           const gr_bf16 *dh, gr_bf16 *d_gate_up, gr_bf16 *weighted,
                                           float *d_weight)
{
    assert(a->inner % 8 == 0);
    if (!a->rows) return;
    const auto kernel = a->act == GR_CU_SILU        ? act_back_kernel<GR_CU_SILU>
                        : a->act == GR_CU_GELU_TANH ? act_back_kernel<GR_CU_GELU_TANH>
                                                    : act_back_kernel<GR_CU_SWIGLU_OAI>;
    kernel<<<gr_ceil_div(a->rows, WARPS), BLOCK, 0, st>>>(a->rows, a->inner / 8, a->limit, choice, weight,
                                                          base, (const uint4 *)gate_up, (const uint4 *)dh,
                                                          (uint4 *)d_gate_up, (uint4 *)weighted, d_weight);
}

extern "C" void gr_cu_experts_bias_dot(cudaStream_t st, const uint32_t *first, uint32_t E, uint32_t R,
                                       uint32_t H, const gr_bf16 *dy, const gr_bf16 *bias, float *dot)
{
    assert(H % 8 == 0);
    if (R)
        bias_dot_kernel<<<gr_ceil_div(R, WARPS), BLOCK, 0, st>>>(first, E, R, H / 8, (const uint4 *)dy,
                                                                 (const uint4 *)bias, dot);
}

extern "C" void gr_cu_experts_bias_backward(cudaStream_t st, const gr_cu_dispatch *d, uint32_t E,
                                            uint32_t cols, const gr_bf16 *dy, const float *weight, void *grad,
                                            gr_cu_dtype grad_type)
{
    const dim3 grid(gr_ceil_div(cols, BLOCK), E);
    if (grad_type == GR_CU_F32)
        bias_back_kernel<<<grid, BLOCK, 0, st>>>(d->first, d->choice, cols, dy, weight, (float *)grad);
    else
        bias_back_kernel<<<grid, BLOCK, 0, st>>>(d->first, d->choice, cols, dy, weight, (gr_bf16 *)grad);
}
