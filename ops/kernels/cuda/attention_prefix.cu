/* ops/kernels/cuda/attention_prefix.cu: see attention_prefix.h. All of it is bound by memory. */
#include "ops/kernels/cuda/attention_prefix.h"

#include <cuda_bf16.h>

static __global__ void index_piece(uint32_t n_q, uint32_t n_k, uint32_t width, uint32_t o_width,
                                   uint32_t stats_width, gr_cu_piece_index out)
{
    const uint32_t i = threadIdx.x; /* 0, 1 */
    if (i == 0) *out.length = n_q;
    if (i == 0) *out.kv_length = n_k;
    out.rows[i] = i * n_q * width;
    out.o_rows[i] = i * n_q * o_width;
    out.stats_rows[i] = i * n_q * stats_width;
    out.kv_rows[i] = i * n_k * width;
}

void gr_cu_attention_piece(cudaStream_t st, uint32_t n_q, uint32_t n_k, uint32_t width, uint32_t o_width,
                           uint32_t stats_width, const gr_cu_piece_index *out)
{
    index_piece<<<1, 2, 0, st>>>(n_q, n_k, width, o_width, stats_width, *out);
}

/* Two bf16 as floats, and back. */
static __device__ float2 wide(uint32_t x)
{
    return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)};
}
static __device__ uint32_t narrow(float2 x)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(x.x, x.y);
    return *reinterpret_cast<const uint32_t *>(&v);
}

/* A warp for each row. */
static __global__ void __launch_bounds__(256)
    merge(uint32_t n, uint32_t d, uint16_t *o, float *lse, const uint16_t *o_part, const float *lse_part)
{
    const uint32_t at = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (at >= n) return;
    const float a = lse[at], b = lse_part[at], most = fmaxf(a, b), ea = expf(a - most), eb = expf(b - most),
                inv = 1 / (ea + eb);
    uint32_t *own = reinterpret_cast<uint32_t *>(o + (size_t)at * d);
    const uint32_t *part = reinterpret_cast<const uint32_t *>(o_part + (size_t)at * d);
    for (uint32_t i = lane; i < d / 2; i += 32) {
        const float2 x = wide(own[i]), y = wide(part[i]);
        own[i] = narrow({(ea * x.x + eb * y.x) * inv, (ea * x.y + eb * y.y) * inv});
    }
    __syncwarp(); /* all have read what lane 0 overwrites */
    if (lane == 0) lse[at] = most + logf(ea + eb);
}

void gr_cu_attention_merge(cudaStream_t st, uint32_t n, uint32_t d, gr_bf16 *o, float *lse,
                           const gr_bf16 *o_part, const float *lse_part)
{
    if (n) merge<<<(n + 7) / 8, 256, 0, st>>>(n, d, o, lse, o_part, lse_part);
}

/* A thread for 8 values. */
static __global__ void __launch_bounds__(256)
    add_rows(uint64_t n, uint32_t cols8, uint32_t ld, uint16_t *to, const uint16_t *from)
{
    const uint64_t at = (uint64_t)blockIdx.x * 256 + threadIdx.x;
    if (at >= n) return;
    const size_t of = at / cols8 * ld + at % cols8 * 8;
    uint4 x = *reinterpret_cast<uint4 *>(to + of);
    const uint4 y = *reinterpret_cast<const uint4 *>(from + of);
    uint32_t *a = &x.x;
    const uint32_t *b = &y.x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 p = wide(a[i]), q = wide(b[i]);
        a[i] = narrow({p.x + q.x, p.y + q.y});
    }
    *reinterpret_cast<uint4 *>(to + of) = x;
}

void gr_cu_attention_add(cudaStream_t st, uint32_t n, uint32_t cols, uint32_t ld, gr_bf16 *to,
                         const gr_bf16 *from)
{
    const uint64_t all = (uint64_t)n * (cols / 8);
    if (all) add_rows<<<(uint32_t)((all + 255) / 256), 256, 0, st>>>(all, cols / 8, ld, to, from);
}
