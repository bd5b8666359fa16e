/* ops/kernels/cuda/norm.cu: RMSNorm (Zhang and Sennrich, arXiv:1910.07467) and its gradient.
 *
 * A row belongs to one warp where its 16-byte vectors fit four a lane (H <= 1024), else to one block of as
 * few warps as hold it so: a row is read once, stays in registers between the sum and its use, and four loads
 * of each thread are in flight. Bound by memory. The layout, and with it the order of sums, depends on H
 * alone.
 */
#include "ops/kernels/cuda/chained.cuh"
#include "ops/kernels/cuda/fp8.cuh"

enum { VECS = 4, WARP_ROW = 8 * VECS * GR_WARP, BLOCK = 128 };

static uint32_t threads_of(uint32_t H)
{
    assert(H % 8 == 0 && H <= 8 * VECS * 1024);
    return H <= WARP_ROW ? (uint32_t)BLOCK : gr_ceil_div(H / 8, VECS * GR_WARP) * GR_WARP;
}

/* Rows that a block works on at once. */
static uint32_t rows_of(uint32_t H)
{
    return H <= WARP_ROW ? BLOCK / GR_WARP : 1;
}

/* Vectors lane, lane + lanes, ... of a row; zero beyond its end. */
template <int N>
GR_DEVICE void load_row(const gr_bf16 *row, uint32_t vecs, uint32_t lane, uint32_t lanes, uint4 (&v)[N])
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        const uint32_t at = lane + j * lanes;
        v[j] = at < vecs ? ((const uint4 *)row)[at] : make_uint4(0, 0, 0, 0);
    }
}

template <int N> GR_DEVICE float squares(const uint4 (&v)[N])
{
    float sum = 0;
#pragma unroll
    for (int j = 0; j < N; j++) {
        float x[8];
        gr_unpack(v[j], x);
#pragma unroll
        for (int i = 0; i < 8; i++) sum = fmaf(x[i], x[i], sum);
    }
    return sum;
}

/* PLAIN: y; ADDED: add + y; ROUNDED: to FP8, as far as `to` has rows. */
enum result { PLAIN, ADDED, ROUNDED };

/* y may be c.x or add: a row is in registers before it is written. */
template <bool WARP, result OF>
GR_KERNEL void norm_kernel(const gr_cu_norm c, const gr_bf16 *add, const gr_cu_fp8_to to, gr_bf16 *y)
{
    const bool ADD = OF == ADDED;
    __shared__ float part[GR_WARP];
    gr_chain_release();
    gr_chain_wait();
    const uint32_t lane = WARP ? threadIdx.x % GR_WARP : threadIdx.x, lanes = WARP ? GR_WARP : blockDim.x;
    const uint32_t i = WARP ? blockIdx.x * (BLOCK / GR_WARP) + threadIdx.x / GR_WARP : blockIdx.x;
    if (i >= c.n)
        return; /* whole warps, and nobody meets at a barrier where there are several rows a block */
    const uint32_t vecs = c.H / 8;
    uint4 xs[VECS], ws[VECS], old[VECS];
    load_row(c.x + (size_t)(c.row ? c.row[i] : i) * c.ld, vecs, lane, lanes, xs);
    load_row(c.w, vecs, lane, lanes, ws);
    if (ADD) load_row(add + (size_t)i * c.ld, vecs, lane, lanes, old);
    const float mine = squares(xs), sum = WARP ? gr_warp_sum(mine) : gr_block_sum(mine, part);
    const float inv = rsqrtf(sum / (float)c.H + c.eps);
    uint4 *row = (uint4 *)(y + (size_t)i * c.ld);
#pragma unroll
    for (int j = 0; j < VECS; j++) {
        const uint32_t at = lane + j * lanes;
        float a[8], b[8], base[8];
        gr_unpack(xs[j], a);
        gr_unpack(ws[j], b);
        if (ADD) gr_unpack(old[j], base);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            a[k] = a[k] * inv * (c.one + b[k]);
            if (ADD) a[k] += base[k];
        }
        const uint4 out = at < vecs ? gr_pack(a) : make_uint4(0, 0, 0, 0);
        if (OF == ROUNDED) gr_fp8_put(to, i, 8 * at, c.H, out);
        if (at < vecs && (OF != ROUNDED || i >= to.n)) row[at] = out;
    }
}

template <result OF>
static void launch_norm(cudaStream_t st, const gr_cu_norm *c, const gr_bf16 *add, const gr_cu_fp8_to &to,
                        gr_bf16 *y)
{
    const uint32_t grid = gr_ceil_div(c->n, rows_of(c->H)), threads = threads_of(c->H);
    if (!c->n) return;
    if (c->H <= WARP_ROW)
        gr_chain(st, norm_kernel<true, OF>, dim3(grid), dim3(threads), 0, *c, add, to, y);
    else
        gr_chain(st, norm_kernel<false, OF>, dim3(grid), dim3(threads), 0, *c, add, to, y);
}

extern "C" void gr_cu_rmsnorm(cudaStream_t st, const gr_cu_norm *c, gr_bf16 *y)
{
    launch_norm<PLAIN>(st, c, NULL, gr_cu_fp8_to{}, y);
}

extern "C" void gr_cu_rmsnorm_add(cudaStream_t st, const gr_cu_norm *c, const gr_bf16 *add, gr_bf16 *y)
{
    launch_norm<ADDED>(st, c, add, gr_cu_fp8_to{}, y);
}

extern "C" void gr_cu_fp8_rmsnorm(cudaStream_t st, const gr_cu_norm *c, const gr_cu_fp8_to *to, gr_bf16 *y)
{
    assert(c->ld == c->H && c->H % 16 == 0 && to->n <= c->n);
    launch_norm<ROUNDED>(st, c, NULL, *to, y);
}

/* ---- gradient ---------------------------------------------------------------------------------------------
 * With inv = 1 / rms: dx = inv (dy w - x inv c), c = inv mean(dy w x), and the weight's part is dy x inv.
 *
 * The shape is that of ops/kernels/cuda/parts.h; blocks walk the rows at a fixed stride and keep their share
 * of the weight's gradient in registers.
 */

enum { BACK_VECS = GR_NORM_VECS, BACK_BLOCK = GR_NORM_BLOCK };

struct back {
    gr_cu_norm c;
    const gr_bf16 *dy;
    gr_bf16 *dx;
    float *parts;
    uint32_t lanes;
};

/* Sum of dy w x. */
GR_DEVICE float dot3(const uint4 (&x)[BACK_VECS], const uint4 (&dy)[BACK_VECS], const uint4 (&w)[BACK_VECS],
                     float one)
{
    float sum = 0;
#pragma unroll
    for (int j = 0; j < BACK_VECS; j++) {
        float a[8], b[8], c[8];
        gr_unpack(x[j], a);
        gr_unpack(dy[j], b);
        gr_unpack(w[j], c);
#pragma unroll
        for (int i = 0; i < 8; i++) sum = fmaf(a[i], b[i] * (one + c[i]), sum);
    }
    return sum;
}

/* The compiler must not keep these unpacked from the sums to their next use: twice the registers, and spills.
 */
GR_DEVICE void stay_packed(uint4 (&v)[BACK_VECS])
{
#pragma unroll
    for (int j = 0; j < BACK_VECS; j++)
        asm volatile("" : "+r"(v[j].x), "+r"(v[j].y), "+r"(v[j].z), "+r"(v[j].w));
}

/* Both sums over the warps of one row; part as gr_block_sum's. */
GR_DEVICE float2 row_sums(float a, float b, uint32_t lanes, float2 *part)
{
    a = gr_warp_sum(a);
    b = gr_warp_sum(b);
    const uint32_t warps = lanes / GR_WARP, warp = threadIdx.x / GR_WARP;
    if (threadIdx.x % GR_WARP == 0) part[warp] = make_float2(a, b);
    __syncthreads();
    float2 sum = make_float2(0, 0);
    for (uint32_t i = 0; i < warps; i++) {
        const float2 next = part[warp / warps * warps + i];
        sum.x += next.x;
        sum.y += next.y;
    }
    return sum;
}

/* One vector of a row: returns dx (added to old, where ADD) and adds to the weight's gradient. */
template <bool ADD>
GR_DEVICE uint4 back_vector(uint4 x, uint4 dy, uint4 w, uint4 old, float one, float inv, float c,
                            float (&grad)[8])
{
    float a[8], d[8], b[8], base[8];
    gr_unpack(x, a);
    gr_unpack(dy, d);
    gr_unpack(w, b);
    if (ADD) gr_unpack(old, base);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float xi = a[i] * inv, g = inv * fmaf(-c, xi, d[i] * (one + b[i]));
        grad[i] = fmaf(d[i], xi, grad[i]);
        a[i] = ADD ? base[i] + g : g;
    }
    return gr_pack(a);
}

/* The shares of the block's groups, which hold the same columns, become one part. */
GR_DEVICE void leave_part(const float (&grad)[BACK_VECS][8], float *part, uint32_t H, uint32_t lanes,
                          float *shared)
{
    const uint32_t group = threadIdx.x / lanes, lane = threadIdx.x % lanes, groups = blockDim.x / lanes;
#pragma unroll
    for (int j = 0; j < BACK_VECS; j++) {
        const uint32_t at = lane + j * lanes;
        if (at >= H / 8) continue;
        float4 *to = (float4 *)(groups > 1 ? shared + (size_t)group * H + 8 * at : part + 8 * at);
        to[0] = make_float4(grad[j][0], grad[j][1], grad[j][2], grad[j][3]);
        to[1] = make_float4(grad[j][4], grad[j][5], grad[j][6], grad[j][7]);
    }
    if (groups == 1) return;
    __syncthreads();
    for (uint32_t col = threadIdx.x; col < H; col += blockDim.x) {
        float sum = 0;
        for (uint32_t g = 0; g < groups; g++) sum += shared[(size_t)g * H + col];
        part[col] = sum;
    }
}

template <int MAX_THREADS, bool ADD>
GR_KERNEL void __launch_bounds__(MAX_THREADS, MAX_THREADS == BACK_BLOCK ? 3 : 1) back_kernel(const back p)
{
    /* groups H <= 256 / lanes * 16 lanes floats, where there is more than one group */
    __shared__ __align__(16) float shared[MAX_THREADS == BACK_BLOCK ? BACK_BLOCK * 8 * BACK_VECS : 4];
    __shared__ float2 part[2][MAX_THREADS / GR_WARP];
    const uint32_t lanes = p.lanes, group = threadIdx.x / lanes, lane = threadIdx.x % lanes;
    const uint32_t groups = blockDim.x / lanes, vecs = p.c.H / 8;
    uint4 w[BACK_VECS];
    load_row(p.c.w, vecs, lane, lanes, w);
    float grad[BACK_VECS][8] = {};
    uint32_t parity = 0; /* of part: one barrier a row is enough */
    for (uint32_t first = blockIdx.x * groups; first < p.c.n; first += gridDim.x * groups) {
        const uint32_t i = first + group, live = i < p.c.n ? vecs : 0; /* all groups meet at the barrier */
        const size_t at = live ? (size_t)(p.c.row ? p.c.row[i] : i) * p.c.ld : 0;
        uint4 x[BACK_VECS], dy[BACK_VECS], old[BACK_VECS];
        load_row(p.c.x + at, live, lane, lanes, x);
        load_row(p.dy + (live ? (size_t)i * p.c.ld : 0), live, lane, lanes, dy);
        if (ADD) load_row(p.dx + at, live, lane, lanes, old);
        const float2 sum = row_sums(squares(x), dot3(x, dy, w, p.c.one), lanes, part[parity]);
        parity ^= 1;
        stay_packed(x);
        stay_packed(dy);
        stay_packed(w);
        const float inv = rsqrtf(sum.x / (float)p.c.H + p.c.eps), c = inv * sum.y / (float)p.c.H;
        uint4 *dx = (uint4 *)(p.dx + at);
#pragma unroll
        for (int j = 0; j < BACK_VECS; j++) {
            const uint4 out =
                back_vector<ADD>(x[j], dy[j], w[j], ADD ? old[j] : x[j], p.c.one, inv, c, grad[j]);
            if (lane + j * lanes < live) dx[lane + j * lanes] = out;
        }
    }
    leave_part(grad, p.parts + (size_t)blockIdx.x * p.c.H, p.c.H, lanes, shared);
}

template <bool ADD> static void launch_back(cudaStream_t st, const back &p)
{
    const uint32_t grid = gr_norm_parts(p.c.n, p.c.H), threads = p.lanes * gr_norm_rows(p.c.H);
    if (threads <= BACK_BLOCK)
        back_kernel<BACK_BLOCK, ADD><<<grid, threads, 0, st>>>(p);
    else if (threads <= 512)
        back_kernel<512, ADD><<<grid, threads, 0, st>>>(p);
    else
        back_kernel<1024, ADD><<<grid, threads, 0, st>>>(p);
}

extern "C" void gr_cu_rmsnorm_backward(cudaStream_t st, const gr_cu_norm *c, const gr_bf16 *dy, gr_bf16 *dx,
                                       bool add, void *grad_w, gr_cu_dtype grad_type, void *ws)
{
    if (!c->n) return;
    const back p = {*c, dy, dx, (float *)ws, gr_norm_lanes(c->H)};
    if (add)
        launch_back<true>(st, p);
    else
        launch_back<false>(st, p);
    if (grad_w) gr_cu_parts_add(st, (const float *)ws, gr_norm_parts(c->n, c->H), c->H, grad_w, grad_type);
}
