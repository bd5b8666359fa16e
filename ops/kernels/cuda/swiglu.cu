/* ops/kernels/cuda/swiglu.cu: silu(gate) * up, or gelu(gate) * up, and their gradients; and the output gate
 * of attention. Flat over vectors of 8 elements, 16 bytes an access; bound by memory (6 bytes an element
 * forward, 12 backward, against two calls of the special-function unit).
 */
#include "ops/kernels/cuda/fp8.cuh"

enum { BLOCK = 256 };

/* silu(a), or gelu(a) in its form with tanh; *slope: the derivative. 0.5 (1 + tanh(z)) is sigmoid(2 z). */
template <bool GELU> GR_DEVICE float activation(float a, float *slope)
{
    const float k = 1.5957691216057308f, b = 0.044715f; /* 2 sqrt(2 / pi) */
    const float s = gr_sigmoid(GELU ? k * fmaf(b * a * a, a, a) : a), y = a * s;
    const float inner = GELU ? k * fmaf(3 * b * a, a, 1) : 1;
    *slope = fmaf(y * inner, 1 - s, s); /* s + a s (1 - s) z' */
    return y;
}

/* Of a vector of each. */
template <bool GELU> GR_DEVICE uint4 activated(uint4 gate, uint4 up)
{
    float a[8], b[8];
    gr_unpack(gate, a);
    gr_unpack(up, b);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float slope;
        b[i] *= activation<GELU>(a[i], &slope);
    }
    return gr_pack(b);
}

/* Two vectors a thread, half the array apart, so that both loads are in flight. n: vectors in all. */
template <bool GELU>
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
    for (int j = 0; j < 2; j++) h[at[j]] = activated<GELU>(g[j], u[j]);
}

template <bool GELU>
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
        float slope;
        const float act = activation<GELU>(a[i], &slope), up = b[i];
        y[i] = act * up;
        b[i] = d[i] * act;
        a[i] = d[i] * up * slope;
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

extern "C" void gr_cu_swiglu(cudaStream_t st, const gr_bf16 *gate_up, bool gelu, gr_bf16 *h, uint32_t T,
                             uint32_t I)
{
    const uint32_t n = vectors(T, I), grid = gr_ceil_div((n + 1) / 2, BLOCK);
    if (!n) return;
    if (gelu)
        swiglu_kernel<true><<<grid, BLOCK, 0, st>>>((const uint4 *)gate_up, (uint4 *)h, n, I / 8);
    else
        swiglu_kernel<false><<<grid, BLOCK, 0, st>>>((const uint4 *)gate_up, (uint4 *)h, n, I / 8);
}

template <bool GELU>
static void launch_back(cudaStream_t st, const gr_bf16 *gate_up, const gr_bf16 *dh, gr_bf16 *d_gate_up,
                        gr_bf16 *h, uint32_t n, uint32_t I)
{
    swiglu_back_kernel<GELU><<<gr_ceil_div(n, BLOCK), BLOCK, 0, st>>>(
        (const uint4 *)gate_up, (const uint4 *)dh, (uint4 *)d_gate_up, (uint4 *)h, n, I / 8);
}

extern "C" void gr_cu_swiglu_backward(cudaStream_t st, const gr_bf16 *gate_up, const gr_bf16 *dh, bool gelu,
                                      gr_bf16 *d_gate_up, gr_bf16 *h, uint32_t T, uint32_t I)
{
    const uint32_t n = vectors(T, I);
    if (!n) return;
    if (gelu)
        launch_back<true>(st, gate_up, dh, d_gate_up, h, n, I);
    else
        launch_back<false>(st, gate_up, dh, d_gate_up, h, n, I);
}

/* ---- straight to FP8 -------------------------------------------------------------------------------------
 * 16 lanes a block of values, and two of them, so that both loads are in flight.
 */

enum { LANES = 128 / 8, GROUPS = BLOCK / LANES };

/* blocks: of a row; n: of all rows. */
template <bool GELU>
GR_KERNEL void __launch_bounds__(BLOCK)
    fp8_kernel(const gr_bf16 *__restrict__ gate_up, const gr_cu_fp8_to to, gr_bf16 *__restrict__ h,
               uint32_t n, uint32_t blocks, uint32_t I)
{
    const uint32_t first = blockIdx.x * 2 * GROUPS + threadIdx.x / LANES;
    uint32_t row[2], col[2];
    uint4 g[2], u[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t block = first + j * GROUPS;
        row[j] = block / blocks;
        col[j] = block < n ? block % blocks * 128 + threadIdx.x % LANES * 8 : I;
        const gr_bf16 *gate = gate_up + (size_t)row[j] * 2 * I + col[j];
        g[j] = col[j] < I ? *(const uint4 *)gate : make_uint4(0, 0, 0, 0);
        u[j] = col[j] < I ? *(const uint4 *)(gate + I) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint4 out = activated<GELU>(g[j], u[j]);
        gr_fp8_put(to, row[j], col[j], I, out);
        if (row[j] >= to.n && col[j] < I) *(uint4 *)(h + (size_t)row[j] * I + col[j]) = out;
    }
}

extern "C" void gr_cu_fp8_swiglu(cudaStream_t st, const gr_bf16 *gate_up, bool gelu, const gr_cu_fp8_to *to,
                                 gr_bf16 *h, uint32_t T, uint32_t I)
{
    const uint32_t blocks = gr_ceil_div(I, 128), n = T * blocks, grid = gr_ceil_div(n, 2 * GROUPS);
    assert(I % 16 == 0 && to->n <= T && (uint64_t)T * blocks < UINT32_MAX - BLOCK);
    if (!n) return;
    if (gelu)
        fp8_kernel<true><<<grid, BLOCK, 0, st>>>(gate_up, *to, h, n, blocks, I);
    else
        fp8_kernel<false><<<grid, BLOCK, 0, st>>>(gate_up, *to, h, n, blocks, I);
}

/* ---- output gate -----------------------------------------------------------------------------------------
 * x sigmoid(g), a vector of 8 elements a thread; rows of x have `width` vectors, those of g `ld`.
 */

GR_KERNEL void __launch_bounds__(BLOCK)
    gate_kernel(const uint4 *x, const uint4 *g, uint4 *y, uint64_t n, uint32_t width, uint32_t ld)
{
    const uint64_t v = (uint64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (v >= n) return;
    float a[8], b[8];
    gr_unpack(x[v], a);
    gr_unpack(g[v / width * ld + v % width], b);
#pragma unroll
    for (int i = 0; i < 8; i++) a[i] *= gr_sigmoid(b[i]);
    y[v] = gr_pack(a);
}

GR_KERNEL void __launch_bounds__(BLOCK)
    gate_back_kernel(const uint4 *x, const uint4 *g, const uint4 *dy, uint4 *dx, uint4 *dg, uint64_t n,
                     uint32_t width, uint32_t ld)
{
    const uint64_t v = (uint64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (v >= n) return;
    const uint64_t at = v / width * ld + v % width;
    float a[8], b[8], d[8];
    gr_unpack(x[v], a);
    gr_unpack(g[at], b);
    gr_unpack(dy[v], d);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float s = gr_sigmoid(b[i]);
        b[i] = d[i] * a[i] * s * (1 - s);
        a[i] = d[i] * s;
    }
    dx[v] = gr_pack(a);
    dg[at] = gr_pack(b);
}

extern "C" void gr_cu_gate(cudaStream_t st, uint32_t T, uint32_t n, const gr_bf16 *x, const gr_bf16 *g,
                           uint32_t ld, gr_bf16 *y)
{
    const uint64_t all = (uint64_t)T * (n / 8);
    assert(n % 8 == 0 && ld % 8 == 0);
    if (all)
        gate_kernel<<<gr_ceil_div(all, BLOCK), BLOCK, 0, st>>>((const uint4 *)x, (const uint4 *)g, (uint4 *)y,
                                                               all, n / 8, ld / 8);
}

extern "C" void gr_cu_gate_backward(cudaStream_t st, uint32_t T, uint32_t n, const gr_bf16 *x,
                                    const gr_bf16 *g, uint32_t ld, const gr_bf16 *dy, gr_bf16 *dx,
                                    gr_bf16 *dg)
{
    const uint64_t all = (uint64_t)T * (n / 8);
    assert(n % 8 == 0 && ld % 8 == 0);
    if (all)
        gate_back_kernel<<<gr_ceil_div(all, BLOCK), BLOCK, 0, st>>>((const uint4 *)x, (const uint4 *)g,
                                                                    (const uint4 *)dy, (uint4 *)dx,
                                                                    (uint4 *)dg, all, n / 8, ld / 8);
}
