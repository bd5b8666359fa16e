/* ops/kernels/cuda/swiglu.cu: silu(gate) * up and its gradient. Flat over vectors of 8 elements, 16 bytes an
 * access; bound by memory (6 bytes an element forward, 12 backward, against two calls of the special-function
 * unit).
 */
#include "ops/kernels/cuda/device.cuh"

enum { BLOCK = 256 };

/* Two vectors a thread, half the array apart, so that both loads are in flight. n: vectors in all. */
GR_KERNEL void __launch_bounds__(BLOCK)
    swiglu_kernel(const uint4 *__restrict__ gate_up, uint4 *__restrict__ h, uint32_t n, uint32_t width)
{
    const uint32_t half = (n + 1) / 2, v = blockIdx.x * BLOCK + threadIdx.x;
    if (v >= half) return;
    const uint32_t at[2] = {v, v + half < n ? v + half : v};
    uint4 g[2], u[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const size_t gate = (size_t)at[j] + (size_t)(at[j] / width) * width;
        g[j] = gate_up[gate];
        u[j] = gate_up[gate + width];
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float a[8], b[8];
        gr_unpack(g[j], a);
        gr_unpack(u[j], b);
#pragma unroll
        for (int i = 0; i < 8; i++) b[i] *= a[i] * gr_sigmoid(a[i]);
        h[at[j]] = gr_pack(b);
    }
}

GR_KERNEL void __launch_bounds__(BLOCK)
    swiglu_back_kernel(const uint4 *__restrict__ gate_up, const uint4 *__restrict__ dh,
                       uint4 *__restrict__ d_gate_up, uint4 *__restrict__ h, uint32_t n, uint32_t width)
{
    const uint32_t v = blockIdx.x * BLOCK + threadIdx.x;
    if (v >= n) return;
    const size_t gate = (size_t)v + (size_t)(v / width) * width;
    float a[8], b[8], d[8], y[8];
    const uint4 g = gate_up[gate], u = gate_up[gate + width], dy = dh[v];
    gr_unpack(g, a);
    gr_unpack(u, b);
    gr_unpack(dy, d);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float s = gr_sigmoid(a[i]), silu = a[i] * s, up = b[i];
        y[i] = silu * up;
        b[i] = d[i] * silu;
        a[i] = d[i] * up * fmaf(silu, 1 - s, s); /* silu' = s + a s (1 - s) */
    }
    d_gate_up[gate] = gr_pack(a);
    d_gate_up[gate + width] = gr_pack(b);
    h[v] = gr_pack(y);
}

static uint32_t vectors(uint32_t T, uint32_t I)
{
    const uint64_t n = (uint64_t)T * (I / 8);
    assert(I % 8 == 0 && n < UINT32_MAX - BLOCK); /* 34 G elements */
    return (uint32_t)n;
}

extern "C" void gr_cu_swiglu(cudaStream_t st, const gr_bf16 *gate_up, gr_bf16 *h, uint32_t T, uint32_t I)
{
    const uint32_t n = vectors(T, I), grid = gr_ceil_div((n + 1) / 2, BLOCK);
    if (!n) return;
    swiglu_kernel<<<grid, BLOCK, 0, st>>>((const uint4 *)gate_up, (uint4 *)h, n, I / 8);
}

extern "C" void gr_cu_swiglu_backward(cudaStream_t st, const gr_bf16 *gate_up, const gr_bf16 *dh,
                                      gr_bf16 *d_gate_up, gr_bf16 *h, uint32_t T, uint32_t I)
{
    const uint32_t n = vectors(T, I), grid = gr_ceil_div(n, BLOCK);
    if (!n) return;
    swiglu_back_kernel<<<grid, BLOCK, 0, st>>>((const uint4 *)gate_up, (const uint4 *)dh, (uint4 *)d_gate_up,
                                               (uint4 *)h, n, I / 8);
}
