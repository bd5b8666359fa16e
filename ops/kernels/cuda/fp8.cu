/* ops/kernels/cuda/fp8.cu: FP8: roundings to it, and products of few rows. Roundings are bound by memory:
 * each value is read once. Products of few rows are bound by reading the weights: each lane has 64 bytes of
 * them on the way at a time.
 */
#include "ops/kernels/cuda/fp8.cuh"

enum { BLOCK = 256, WARPS = BLOCK / GR_WARP, SIDE = 128 /* GR_FP8_BLOCK */, VECTOR = 8 };

/* ---- heads: a warp a head, 8 values a lane ---------------------------------------------------------------
 */

GR_KERNEL void __launch_bounds__(BLOCK)
    heads_kernel(gr_bf16 *x, uint64_t n, uint32_t ld, uint32_t heads, uint32_t D)
{
    const uint64_t i = (uint64_t)blockIdx.x * WARPS + threadIdx.x / GR_WARP;
    const uint32_t at = threadIdx.x % GR_WARP * VECTOR;
    if (i >= n) return; /* whole warps */
    uint4 *place = (uint4 *)(x + i / heads * ld + i % heads * D + at);
    const uint4 v = at < D ? *place : make_uint4(0, 0, 0, 0);
    const gr_block_scale s = gr_scale_of(__reduce_max_sync(GR_ALL, gr_largest(v)));
    const uint2 eight = gr_fp8_rounded(v, s.inverse), low = gr_fp8_scaled(eight.x, s.scale),
                high = gr_fp8_scaled(eight.y, s.scale);
    if (at < D) *place = make_uint4(low.x, low.y, high.x, high.y);
}

extern "C" void gr_cu_fp8_heads(cudaStream_t st, gr_bf16 *x, uint32_t T, uint32_t ld, uint32_t heads,
                                uint32_t D)
{
    const uint64_t n = (uint64_t)T * heads;
    assert(D % 16 == 0 && D <= VECTOR * GR_WARP);
    if (n) heads_kernel<<<gr_ceil_div(n, WARPS), BLOCK, 0, st>>>(x, n, ld, heads, D);
}

/* ---- weights: a block of threads a block of values -------------------------------------------------------
 */

enum { LANES = SIDE / VECTOR, ROWS = BLOCK / LANES, TURNS = SIDE / ROWS };

GR_KERNEL void __launch_bounds__(BLOCK)
    weights_kernel(const gr_bf16 *__restrict__ w, uint8_t *__restrict__ values, float *__restrict__ scales,
                   uint32_t rows, uint32_t cols, uint32_t ld)
{
    __shared__ uint32_t most[WARPS];
    const uint32_t col = blockIdx.x * SIDE + threadIdx.x % LANES * VECTOR,
                   row = blockIdx.y * SIDE + threadIdx.x / LANES;
    uint4 v[TURNS];
    uint32_t m = 0;
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
        const bool there = col < cols && row + i * ROWS < rows;
        v[i] = there ? *(const uint4 *)(w + (size_t)(row + i * ROWS) * cols + col) : make_uint4(0, 0, 0, 0);
        m = max(m, gr_largest(v[i]));
    }
    m = __reduce_max_sync(GR_ALL, m);
    if (threadIdx.x % GR_WARP == 0) most[threadIdx.x / GR_WARP] = m;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; i++) m = max(m, most[i]);
    const gr_block_scale s = gr_scale_of(m);
#pragma unroll
    for (int i = 0; i < TURNS; i++)
        if (col < cols && row + i * ROWS < rows)
            *(uint2 *)(values + (size_t)(row + i * ROWS) * cols + col) = gr_fp8_rounded(v[i], s.inverse);
    if (threadIdx.x == 0) scales[(size_t)blockIdx.y * ld + blockIdx.x] = s.scale;
    if (blockIdx.x == 0 && gridDim.x + threadIdx.x < ld) /* what fills up the row */
        scales[(size_t)blockIdx.y * ld + gridDim.x + threadIdx.x] = 0;
}

static uint32_t scale_ld(uint32_t cols)
{
    return (gr_ceil_div(cols, SIDE) + 3) / 4 * 4;
}

extern "C" void gr_cu_fp8_weights(cudaStream_t st, const gr_bf16 *w, uint8_t *values, float *scales,
                                  uint32_t rows, uint32_t cols)
{
    const dim3 grid(gr_ceil_div(cols, SIDE), gr_ceil_div(rows, SIDE));
    assert(cols % 16 == 0);
    if (rows && cols) weights_kernel<<<grid, BLOCK, 0, st>>>(w, values, scales, rows, cols, scale_ld(cols));
}

/* ---- the same turned: tiles of 64 x 64 through shared memory ---------------------------------------------
 */

enum { TILE = 64, PART = 16 };

GR_KERNEL void __launch_bounds__(BLOCK)
    turn_kernel(const uint8_t *__restrict__ values, uint8_t *__restrict__ to, uint32_t rows, uint32_t cols)
{
    __shared__ uint8_t tile[TILE][TILE + 4];
    const uint32_t r = threadIdx.x / (TILE / PART), part = threadIdx.x % (TILE / PART) * PART,
                   row = blockIdx.y * TILE + r, col = blockIdx.x * TILE + part;
    if (row < rows && col < cols) {
        const uint4 v = *(const uint4 *)(values + (size_t)row * cols + col);
        const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) *(uint32_t *)&tile[r][part + 4 * i] = word[i];
    }
    __syncthreads();
    const uint32_t to_row = blockIdx.x * TILE + r, to_col = blockIdx.y * TILE + part;
    if (to_row >= cols || to_col >= rows) return;
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        word[i] = tile[part + 4 * i][r] | tile[part + 4 * i + 1][r] << 8 | tile[part + 4 * i + 2][r] << 16 |
                  (uint32_t)tile[part + 4 * i + 3][r] << 24;
    *(uint4 *)(to + (size_t)to_row * rows + to_col) = make_uint4(word[0], word[1], word[2], word[3]);
}

GR_KERNEL void __launch_bounds__(BLOCK)
    turn_scales_kernel(const float *__restrict__ scales, float *__restrict__ to, uint32_t rows, uint32_t cols,
                       uint32_t ld, uint32_t to_ld)
{
    const uint32_t i = blockIdx.x * BLOCK + threadIdx.x, c = i / to_ld, r = i % to_ld;
    if (c < cols) to[i] = r < rows ? scales[(size_t)r * ld + c] : 0;
}

extern "C" void gr_cu_fp8_turn(cudaStream_t st, const uint8_t *values, const float *scales, uint8_t *to,
                               float *to_scales, uint32_t rows, uint32_t cols)
{
    const uint32_t r = gr_ceil_div(rows, SIDE), c = gr_ceil_div(cols, SIDE), ld = scale_ld(rows);
    assert(cols % 16 == 0 && rows % 16 == 0);
    if (!rows || !cols) return;
    turn_kernel<<<dim3(gr_ceil_div(cols, TILE), gr_ceil_div(rows, TILE)), BLOCK, 0, st>>>(values, to, rows,
                                                                                          cols);
    turn_scales_kernel<<<gr_ceil_div(c * ld, BLOCK), BLOCK, 0, st>>>(scales, to_scales, r, c, scale_ld(cols),
                                                                     ld);
}

/* ---- rows turned: a block of threads a block of 128 x 128 -----------------------------------------------
 *
 * A thread has 8 columns of 8 rows: two rows of a column become two bytes in a row, so that turning is which
 * values are paired. A column's 8 bytes then lie in shared memory among those of 16 threads; which of the 16
 * places they take differs from thread to thread of a row, so that all banks are met once.
 */

enum { EIGHTS = SIDE / VECTOR, PAIRS = SIDE / 2 };

/* Of two bf16 each, without signs. NaN is the largest. */
GR_DEVICE uint4 larger(uint4 most, uint4 v)
{
    const uint32_t size = 0x7fff7fff;
    return make_uint4(__vmaxu2(most.x, v.x & size), __vmaxu2(most.y, v.y & size),
                      __vmaxu2(most.z, v.z & size), __vmaxu2(most.w, v.w & size));
}

/* Of rows a, b, a + 1 or so: both values of a pair of columns, each column's beside each other. */
GR_DEVICE void two_rows(uint32_t a, uint32_t b, float low, float high, uint32_t &low_to, uint32_t &high_to,
                        int shift)
{
    const uint32_t l = __nv_cvt_float2_to_fp8x2(
        make_float2(__fmul_rn(gr_low(a), low), __fmul_rn(gr_low(b), low)), __NV_SATFINITE, __NV_E4M3);
    const uint32_t h = __nv_cvt_float2_to_fp8x2(
        make_float2(__fmul_rn(gr_high(a), high), __fmul_rn(gr_high(b), high)), __NV_SATFINITE, __NV_E4M3);
    low_to |= l << shift;
    high_to |= h << shift;
}

/* Where a column's bytes of rows [8 g, 8 g + 8) of the block lie. */
GR_DEVICE uint2 *eight_at(uint2 *tile, uint32_t column, uint32_t g)
{
    return tile + column * EIGHTS + ((g ^ column / VECTOR) & (EIGHTS - 1));
}

/* inverse [SIDE]: of each column. together: one scale for all of them. */
GR_DEVICE void scale_columns(uint4 own, bool together, float *inverse, float *scales, uint32_t cols,
                             uint32_t ld)
{
    __shared__ __align__(16) uint32_t most[WARPS][PAIRS];
    const uint32_t warp = threadIdx.x / GR_WARP, lane = threadIdx.x % GR_WARP, i = threadIdx.x,
                   column = blockIdx.x * SIDE + i;
    const uint4 other =
        make_uint4(__shfl_xor_sync(GR_ALL, own.x, LANES), __shfl_xor_sync(GR_ALL, own.y, LANES),
                   __shfl_xor_sync(GR_ALL, own.z, LANES), __shfl_xor_sync(GR_ALL, own.w, LANES));
    own = larger(own, other);
    if (lane < LANES) *(uint4 *)&most[warp][4 * lane] = own;
    __syncthreads();
    if (i < SIDE) {
        uint32_t m = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) m = __vmaxu2(m, most[w][i / 2]);
        inverse[i] = __uint_as_float(i % 2 ? m & 0xffff0000u : m << 16);
    }
    __syncthreads();
    uint32_t m = i < SIDE ? __float_as_uint(inverse[i]) : 0;
    if (together) {
        for (int c = lane; c < SIDE; c += GR_WARP) m = max(m, __float_as_uint(inverse[c]));
        m = __reduce_max_sync(GR_ALL, m);
        __syncthreads();
    }
    const gr_block_scale s = gr_scale_of(m);
    if (i < SIDE) inverse[i] = s.inverse;
    if (together && i == 0) scales[(size_t)blockIdx.x * ld + blockIdx.y] = s.scale;
    if (!together && i < SIDE && column < cols) scales[(size_t)blockIdx.y * cols + column] = s.scale;
    if (together && blockIdx.y == 0 && gridDim.y + i < ld) /* what fills up the row */
        scales[(size_t)blockIdx.x * ld + gridDim.y + i] = 0;
    __syncthreads();
}

/* Rows [row, row + 8) of the thread's 16 neighbours, as gr_cu_fp8_rows makes them, up to row n. */
GR_DEVICE void put_rows(const uint4 (&v)[VECTOR], const gr_cu_fp8_ways &to, uint32_t row, uint32_t n,
                        uint32_t col, uint32_t cols)
{
    const uint32_t lane = threadIdx.x % LANES;
    uint32_t m = 0; /* of row + lane % 8 */
#pragma unroll
    for (int i = 0; i < VECTOR; i += 2) {
        const uint4 a = larger(make_uint4(0, 0, 0, 0), v[i]), b = larger(make_uint4(0, 0, 0, 0), v[i + 1]);
        const uint32_t p = __vmaxu2(__vmaxu2(a.x, a.y), __vmaxu2(a.z, a.w)),
                       q = __vmaxu2(__vmaxu2(b.x, b.y), __vmaxu2(b.z, b.w));
        uint32_t two = max(p & 0xffff, p >> 16) | max(q & 0xffff, q >> 16) << 16;
#pragma unroll
        for (int o = LANES / 2; o; o /= 2) two = __vmaxu2(two, __shfl_xor_sync(GR_ALL, two, o));
        if (lane % VECTOR == i) m = two << 16;
        if (lane % VECTOR == i + 1) m = two & 0xffff0000u;
    }
    const gr_block_scale s = gr_scale_of(m);
    if (lane < VECTOR && row + lane < n) to.row_scales[(size_t)blockIdx.x * n + row + lane] = s.scale;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        const float inverse = __shfl_sync(GR_ALL, s.inverse, threadIdx.x % GR_WARP / LANES * LANES + i);
        if (col < cols && row + i < n)
            *(uint2 *)(to.rows + (size_t)(row + i) * cols + col) = gr_fp8_rounded(v[i], inverse);
    }
}

/* ROWS: rows as they are, too, n of them. */
template <bool TOGETHER, bool ROWS>
GR_KERNEL void __launch_bounds__(BLOCK)
    columns_kernel(const gr_bf16 *__restrict__ x, const gr_cu_fp8_ways ways, uint32_t n, uint32_t t,
                   uint32_t cols, uint32_t ld)
{
    __shared__ uint2 tile[SIDE * EIGHTS];
    __shared__ __align__(8) float inverse[SIDE];
    const uint32_t own = threadIdx.x % LANES * VECTOR, g = threadIdx.x / LANES, col = blockIdx.x * SIDE + own,
                   row = blockIdx.y * SIDE + g * VECTOR;
    uint4 v[VECTOR], most = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        const bool there = col < cols && row + i < t;
        v[i] = there ? *(const uint4 *)(x + (size_t)(row + i) * cols + col) : make_uint4(0, 0, 0, 0);
        most = larger(most, v[i]);
    }
    if (ROWS) put_rows(v, ways, row, n, col, cols);
    scale_columns(most, TOGETHER, inverse, ways.column_scales, cols, ld);
    uint2 to[VECTOR] = {};
#pragma unroll
    for (int i = 0; i < VECTOR; i += 2) {
        const uint32_t a[4] = {v[i].x, v[i].y, v[i].z, v[i].w},
                       b[4] = {v[i + 1].x, v[i + 1].y, v[i + 1].z, v[i + 1].w};
#pragma unroll
        for (int c = 0; c < VECTOR; c += 2) {
            const float2 f = *(const float2 *)&inverse[own + c];
            uint32_t &low = i < 4 ? to[c].x : to[c].y, &high = i < 4 ? to[c + 1].x : to[c + 1].y;
            two_rows(a[c / 2], b[c / 2], f.x, f.y, low, high, 8 * (i % 4));
        }
    }
#pragma unroll
    for (int c = 0; c < VECTOR; c++) *eight_at(tile, own + c, g) = to[c];
    __syncthreads();
    const uint64_t T = (uint64_t)gridDim.y * SIDE;
#pragma unroll
    for (int i = 0; i < SIDE * EIGHTS / BLOCK; i++) {
        const uint32_t c = i * (BLOCK / EIGHTS) + threadIdx.x / EIGHTS, e = threadIdx.x % EIGHTS,
                       column = blockIdx.x * SIDE + c;
        if (column < cols)
            *(uint2 *)(ways.columns + column * T + blockIdx.y * SIDE + e * VECTOR) = *eight_at(tile, c, e);
    }
}

static dim3 columns_grid(uint32_t t, uint32_t cols)
{
    assert(cols % 16 == 0);
    return dim3(gr_ceil_div(cols, SIDE), gr_ceil_div(t, SIDE));
}

template <bool TOGETHER, bool ROWS>
static void run_columns(cudaStream_t st, const gr_bf16 *x, const gr_cu_fp8_ways &to, uint32_t n, uint32_t t,
                        uint32_t cols)
{
    const dim3 grid = columns_grid(t, cols);
    if (t && cols)
        columns_kernel<TOGETHER, ROWS><<<grid, BLOCK, 0, st>>>(x, to, n, t, cols, scale_ld(grid.y * SIDE));
}

extern "C" void gr_cu_fp8_columns(cudaStream_t st, const gr_bf16 *x, uint8_t *values, float *scales,
                                  uint32_t t, uint32_t cols)
{
    run_columns<false, false>(st, x, gr_cu_fp8_ways{values, NULL, scales, NULL}, 0, t, cols);
}

extern "C" void gr_cu_fp8_columns_together(cudaStream_t st, const gr_bf16 *x, uint8_t *values, float *scales,
                                           uint32_t t, uint32_t cols)
{
    run_columns<true, false>(st, x, gr_cu_fp8_ways{values, NULL, scales, NULL}, 0, t, cols);
}

extern "C" void gr_cu_fp8_both(cudaStream_t st, const gr_bf16 *x, const gr_cu_fp8_ways *to, uint32_t n,
                               uint32_t t, uint32_t cols)
{
    assert(n <= t);
    run_columns<false, true>(st, x, *to, n, t, cols);
}

/* ---- rows: 16 lanes a block of values, and two of them, so that both loads are in flight -----------------
 */

enum { GROUPS = BLOCK / LANES, EACH = 2 };

GR_KERNEL void __launch_bounds__(BLOCK) rows_kernel(const gr_bf16 *__restrict__ x, const gr_cu_fp8_to to,
                                                    uint32_t n, uint32_t cols, uint32_t blocks)
{
    const uint32_t first = blockIdx.x * EACH * GROUPS + threadIdx.x / LANES;
    uint32_t row[EACH], col[EACH];
    uint4 v[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        row[j] = (first + j * GROUPS) / blocks;
        col[j] = (first + j * GROUPS) % blocks * SIDE + threadIdx.x % LANES * VECTOR;
        const bool there = row[j] < n && col[j] < cols;
        v[j] = there ? *(const uint4 *)(x + (size_t)row[j] * cols + col[j]) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) gr_fp8_put(to, row[j], col[j], cols, v[j]);
}

extern "C" void gr_cu_fp8_rows(cudaStream_t st, const gr_bf16 *x, uint8_t *values, float *scales, uint32_t n,
                               uint32_t t, uint32_t cols)
{
    const uint32_t blocks = gr_ceil_div(cols, SIDE);
    const uint64_t all = (uint64_t)t * blocks;
    assert(cols % 16 == 0 && n <= t && all < UINT32_MAX - EACH * GROUPS);
    if (all)
        rows_kernel<<<gr_ceil_div(all, EACH * GROUPS), BLOCK, 0, st>>>(x, gr_cu_fp8_to{values, scales, t}, n,
                                                                       cols, blocks);
}

/* ---- products of few rows ---------------------------------------------------------------------------------
 *
 * A block of threads has 16 outputs of up to 8 N rows of x; its warps share the blocks of 128 terms, and
 * their sums are added in order. Weights are the first operand, so that few rows waste little. Of a block of
 * terms a lane reads 32 bytes in a row, of two outputs and of N rows of x: the order of terms within a block
 * is the same for both factors, and any order serves.
 */

enum { OUTPUTS = 16, LANE_BYTES = 32 };

/* d += a b: 16 x 8, of 32 terms. */
GR_DEVICE void multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                        uint32_t b1)
{
#if __CUDA_ARCH__ >= 890
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
    d[0] = d[1] = d[2] = d[3] = __int_as_float(0x7fc00000); /* such devices are refused: fp8.c */
#endif
}

/* Bytes [k, k + 32) of a row of `in`; what is beyond is 0. */
GR_DEVICE void read(const uint8_t *row, bool there, uint32_t k, uint32_t in, uint32_t (&to)[8])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint4 v =
            there && k + 16 * i < in ? __ldg((const uint4 *)(row + k + 16 * i)) : make_uint4(0, 0, 0, 0);
        to[4 * i] = v.x, to[4 * i + 1] = v.y, to[4 * i + 2] = v.z, to[4 * i + 3] = v.w;
    }
}

/* A lane's terms of a row of x, rounded, and the scales of the lane's two columns of sums. */
struct row_block {
    uint32_t x[8];
    float scale[2];
};

/* Rounded before. */
GR_DEVICE void read_rounded(const gr_cu_fp8_product &p, uint32_t block, uint32_t token, row_block &r)
{
    const uint32_t lane = threadIdx.x % GR_WARP, row = token + lane / 4, mine = token + lane % 4 * 2;
    const float *scales = p.x_scales + (size_t)block * p.t;
    read(p.x + (size_t)row * p.in, row < p.t, block * SIDE + lane % 4 * LANE_BYTES, p.in, r.x);
    r.scale[0] = mine < p.t ? scales[mine] : 0;
    r.scale[1] = mine + 1 < p.t ? scales[mine + 1] : 0;
}

/* Rounded here: four lanes have a row's block. */
GR_DEVICE void round_raw(const gr_cu_fp8_product &p, uint32_t block, uint32_t token, row_block &r)
{
    const uint32_t lane = threadIdx.x % GR_WARP, row = token + lane / 4,
                   k = block * SIDE + lane % 4 * LANE_BYTES;
    uint4 v[4];
    uint32_t m = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const bool there = row < p.t && k + VECTOR * i < p.in;
        v[i] = there ? __ldg((const uint4 *)(p.raw + (size_t)row * p.in + k + VECTOR * i))
                     : make_uint4(0, 0, 0, 0);
        m = max(m, gr_largest(v[i]));
    }
    m = max(m, __shfl_xor_sync(GR_ALL, m, 1));
    m = max(m, __shfl_xor_sync(GR_ALL, m, 2));
    const gr_block_scale s = gr_scale_of(m);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint2 q = gr_fp8_rounded(v[i], s.inverse);
        r.x[2 * i] = q.x, r.x[2 * i + 1] = q.y;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) r.scale[i] = __shfl_sync(GR_ALL, s.scale, 4 * (lane % 4 * 2 + i));
}

template <int N, bool RAW>
GR_DEVICE void add_block(const gr_cu_fp8_product &p, uint32_t block, uint32_t first, uint32_t token,
                         const uint32_t (&low)[8], const uint32_t (&high)[8], float (&sum)[N][4])
{
    const float w_scale =
        p.w_scales[(size_t)(first / SIDE) * (((p.in + SIDE - 1) / SIDE + 3) / 4 * 4) + block];
#pragma unroll
    for (int n = 0; n < N; n++) {
        row_block r;
        float d[4] = {};
        if (RAW)
            round_raw(p, block, token + 8 * n, r);
        else
            read_rounded(p, block, token + 8 * n, r);
#pragma unroll
        for (int i = 0; i < 8; i += 2)
            multiply(d, low[i], high[i], low[i + 1], high[i + 1], r.x[i], r.x[i + 1]);
        const float s0 = w_scale * r.scale[0], s1 = w_scale * r.scale[1];
        sum[n][0] = fmaf(d[0], s0, sum[n][0]), sum[n][1] = fmaf(d[1], s1, sum[n][1]);
        sum[n][2] = fmaf(d[2], s0, sum[n][2]), sum[n][3] = fmaf(d[3], s1, sum[n][3]);
    }
}

template <int N, bool RAW> GR_KERNEL void __launch_bounds__(BLOCK) few_kernel(const gr_cu_fp8_product p)
{
    __shared__ float part[WARPS][8 * N][OUTPUTS + 1];
    const uint32_t warp = threadIdx.x / GR_WARP, lane = threadIdx.x % GR_WARP, group = lane / 4,
                   first = blockIdx.x * OUTPUTS, token = blockIdx.y * 8 * N,
                   blocks = (p.in + SIDE - 1) / SIDE;
    const uint8_t *low_row = p.w + (size_t)(first + group) * p.in, *high_row = low_row + (size_t)8 * p.in;
    float sum[N][4] = {};
    for (uint32_t block = warp; block < blocks; block += 2 * WARPS) {
        const uint32_t k = block * SIDE + lane % 4 * LANE_BYTES, next = k + WARPS * SIDE;
        uint32_t low[2][8], high[2][8];
        read(low_row, first + group < p.out, k, p.in, low[0]);
        read(high_row, first + group + 8 < p.out, k, p.in, high[0]);
        read(low_row, first + group < p.out, next, p.in, low[1]);
        read(high_row, first + group + 8 < p.out, next, p.in, high[1]);
        add_block<N, RAW>(p, block, first, token, low[0], high[0], sum);
        if (block + WARPS < blocks) add_block<N, RAW>(p, block + WARPS, first, token, low[1], high[1], sum);
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) part[warp][8 * n + lane % 4 * 2 + i % 2][group + i / 2 * 8] = sum[n][i];
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < 8 * N * OUTPUTS; e += BLOCK) {
        const uint32_t row = token + e / OUTPUTS, o = first + e % OUTPUTS;
        if (row >= p.t || o >= p.out) continue;
        float y = p.bias ? gr_float(p.bias[o]) : 0;
        for (int i = 0; i < WARPS; i++) y += part[i][e / OUTPUTS][e % OUTPUTS];
        const size_t at = (size_t)row * p.out + o;
        if (p.sum)
            p.sum[at] = fmaf(p.scale, y, p.sum[at]);
        else
            p.y[at] = gr_round(p.add ? fmaf(p.scale, y, gr_float(p.add[at])) : p.scale * y);
    }
}

extern "C" void gr_cu_fp8_few(cudaStream_t st, const gr_cu_fp8_product *p)
{
    const uint32_t outputs = gr_ceil_div(p->out, OUTPUTS);
    assert(p->in % 16 == 0 && (!p->raw || p->t <= GR_CU_FP8_RAW));
    if (!p->t || !p->out) return;
    if (p->raw && p->t <= 8)
        few_kernel<1, true><<<outputs, BLOCK, 0, st>>>(*p);
    else if (p->raw)
        few_kernel<2, true><<<outputs, BLOCK, 0, st>>>(*p);
    else if (p->t <= 32)
        few_kernel<4, false><<<outputs, BLOCK, 0, st>>>(*p);
    else
        few_kernel<8, false><<<dim3(outputs, gr_ceil_div(p->t, 64)), BLOCK, 0, st>>>(*p);
}
