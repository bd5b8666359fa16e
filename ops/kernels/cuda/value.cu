/* ops/kernels/cuda/value.cu: a value head: final norm and a linear map to one number, in fp32 throughout, and
 * its gradient.
 *
 * With inv = 1 / rms(x) and u = inv sum(x norm w): value = u + bias. For d = d loss / d value,
 *
 *     dx      = inv d (norm w - x inv u / H)
 *     norm   += w S,   w += norm S,   bias += sum of d;   S [H] = the sum over rows of d inv x
 *
 * so forward leaves inv and inv u / H of each row, and backward needs no sum within a row: one pass over x
 * that writes dx and sums the columns of S in strips of rows. Bound by memory, 2 bytes an element forward and
 * 4 backward.
 */
#include "ops/kernels/cuda/device.cuh"

enum { WARPS = 8 }; /* of a block: rows of the forward kernel, rows in hand of the strips */

/* What the workspace holds, in this order; gr_cu_value_ws is its size. */
struct scratch {
    float2 *factor; /* [n] of forward: inv, inv u / H */
    float2 *change; /* [n] of backward: inv d, inv d inv u / H */
    float *parts;   /* [strips, H] */
};

static scratch scratch_of(void *ws, uint32_t n)
{
    float2 *first = (float2 *)ws;
    return {first, first + gr_value_row_room(n), (float *)(first + 2 * gr_value_row_room(n))};
}

/* ---- forward: a warp a row -------------------------------------------------------------------------------
 */

GR_DEVICE void add_vector(uint4 xs, uint4 norms, uint4 ws, float one, float &squares, float &dot)
{
    float x[8], norm[8], w[8];
    gr_unpack(xs, x);
    gr_unpack(norms, norm);
    gr_unpack(ws, w);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        squares = fmaf(x[i], x[i], squares);
        dot = fmaf(x[i], (one + norm[i]) * w[i], dot);
    }
}

GR_KERNEL void __launch_bounds__(GR_WARP *WARPS)
    value_kernel(const gr_bf16 *__restrict__ x, const uint32_t *__restrict__ row, const gr_cu_value_head head,
                 float *value, float2 *factor, uint32_t n, uint32_t H, float eps)
{
    const uint32_t i = blockIdx.x * WARPS + threadIdx.x / GR_WARP, lane = threadIdx.x % GR_WARP;
    if (i >= n) return; /* whole warps */
    const uint4 *from = (const uint4 *)(x + (size_t)row[i] * H);
    float squares = 0, dot = 0;
#pragma unroll 4
    for (uint32_t at = lane; at < H / 8; at += GR_WARP)
        add_vector(from[at], ((const uint4 *)head.norm)[at], ((const uint4 *)head.weight)[at], head.one,
                   squares, dot);
    squares = gr_warp_sum(squares);
    dot = gr_warp_sum(dot);
    if (lane) return;
    const float inv = rsqrtf(squares / (float)H + eps), u = inv * dot;
    value[i] = head.bias ? u + gr_float(*head.bias) : u;
    factor[i] = make_float2(inv, inv * u / (float)H);
}

extern "C" void gr_cu_value(cudaStream_t st, const gr_bf16 *x, const uint32_t *row,
                            const gr_cu_value_head *head, float *value, uint32_t n, uint32_t H, float eps,
                            void *ws)
{
    if (!n) return;
    value_kernel<<<gr_ceil_div(n, WARPS), GR_WARP * WARPS, 0, st>>>(x, row, *head, value,
                                                                    scratch_of(ws, n).factor, n, H, eps);
}

/* ---- backward --------------------------------------------------------------------------------------------
 */

enum { CHANGE_BLOCK = 1024 };

/* d_value may lie on the host: one block reads it once, and sums it for the bias in an order that n alone
 * decides. */
template <typename G>
GR_KERNEL void __launch_bounds__(CHANGE_BLOCK)
    change_kernel(const float2 *__restrict__ factor, const float *__restrict__ d_value,
                  float2 *__restrict__ change, G *grad_bias, uint32_t n)
{
    __shared__ float part[CHANGE_BLOCK / GR_WARP];
    float mine = 0;
    for (uint32_t i = threadIdx.x; i < n; i += CHANGE_BLOCK) {
        const float2 f = factor[i];
        const float d = d_value[i], scaled = f.x * d;
        change[i] = make_float2(scaled, scaled * f.y);
        mine += d;
    }
    const float sum = gr_block_sum(mine, part);
    if (grad_bias && !threadIdx.x) gr_put(grad_bias, gr_get(grad_bias) + sum);
}

struct strip {
    const gr_bf16 *x;
    const uint32_t *row;
    const gr_bf16 *norm, *weight;
    const float2 *change;
    gr_bf16 *dx;
    float *parts;
    uint32_t n, H, rows; /* rows: of a strip */
    float one;
};

/* One vector of a row: returns dx, adds to S. */
GR_DEVICE uint4 back_vector(uint4 xs, const float (&nw)[8], float2 change, float (&sum)[8])
{
    float x[8];
    gr_unpack(xs, x);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum[i] = fmaf(change.x, x[i], sum[i]);
        x[i] = fmaf(-change.y, x[i], change.x * nw[i]);
    }
    return gr_pack(x);
}

/* A block has 256 columns of a strip of rows: 8 columns a lane, a row a warp. */
GR_KERNEL void __launch_bounds__(GR_WARP *WARPS) back_kernel(const strip p)
{
    __shared__ float sums[WARPS][GR_STRIP_COLS];
    const uint32_t warp = threadIdx.x / GR_WARP, lane = threadIdx.x % GR_WARP;
    const uint32_t col = blockIdx.x * GR_STRIP_COLS + 8 * lane, first = blockIdx.y * p.rows;
    const uint32_t end = first + p.rows < p.n ? first + p.rows : p.n;
    float sum[8] = {0};
    if (col < p.H) {
        float nw[8], w[8];
        gr_unpack(*(const uint4 *)(p.norm + col), nw);
        gr_unpack(*(const uint4 *)(p.weight + col), w);
#pragma unroll
        for (int i = 0; i < 8; i++) nw[i] = (p.one + nw[i]) * w[i];
#pragma unroll 4
        for (uint32_t i = first + warp; i < end; i += WARPS) {
            const size_t at = (size_t)__ldg(p.row + i) * p.H + col; /* read-only: loads may pass the stores */
            const uint4 x = __ldg((const uint4 *)(p.x + at));
            *(uint4 *)(p.dx + at) = back_vector(x, nw, __ldg(p.change + i), sum);
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) sums[warp][8 * lane + i] = sum[i];
    __syncthreads();
    const uint32_t to = blockIdx.x * GR_STRIP_COLS + threadIdx.x;
    if (to >= p.H) return;
    float total = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) total += sums[i][threadIdx.x];
    p.parts[(size_t)blockIdx.y * p.H + to] = total;
}

enum { COLS = GR_WARP, DEEP = 16 }; /* of the block of sum_kernel */

/* S from its parts, in order; then both gradients. */
template <typename G>
GR_KERNEL void __launch_bounds__(COLS *DEEP)
    sum_kernel(const float *__restrict__ parts, uint32_t n_parts, const gr_bf16 *__restrict__ norm,
               const gr_bf16 *__restrict__ weight, float one, G *grad_norm, G *grad_weight, uint32_t H)
{
    __shared__ float sums[DEEP][COLS];
    const uint32_t col = blockIdx.x * COLS + threadIdx.x;
    float sum = 0;
    if (col < H)
        for (uint32_t p = threadIdx.y; p < n_parts; p += DEEP) sum += parts[(size_t)p * H + col];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || col >= H) return;
    float total = 0;
#pragma unroll
    for (int i = 0; i < DEEP; i++) total += sums[i][threadIdx.x];
    if (grad_norm) gr_put(grad_norm + col, fmaf(total, gr_float(weight[col]), gr_get(grad_norm + col)));
    gr_put(grad_weight + col, fmaf(total, one + gr_float(norm[col]), gr_get(grad_weight + col)));
}

template <typename G>
static void launch_back(cudaStream_t st, const strip &p, const scratch &s, const float *d_value,
                        const gr_cu_value_grads &grad)
{
    const uint32_t parts = gr_ceil_div(p.n, p.rows);
    change_kernel<<<1, CHANGE_BLOCK, 0, st>>>(s.factor, d_value, s.change, (G *)grad.bias, p.n);
    back_kernel<<<dim3(gr_ceil_div(p.H, GR_STRIP_COLS), parts), GR_WARP * WARPS, 0, st>>>(p);
    sum_kernel<<<gr_ceil_div(p.H, COLS), dim3(COLS, DEEP), 0, st>>>(s.parts, parts, p.norm, p.weight, p.one,
                                                                    (G *)grad.norm, (G *)grad.weight, p.H);
}

extern "C" void gr_cu_value_backward(cudaStream_t st, const gr_bf16 *x, const uint32_t *row,
                                     const gr_cu_value_head *head, const float *d_value, gr_bf16 *dx,
                                     const gr_cu_value_grads *grad, uint32_t n, uint32_t H, void *ws)
{
    if (!n) return;
    const scratch s = scratch_of(ws, n);
    const uint32_t rows = gr_ceil_div(n, gr_strips(n, H));
    const strip p = {x, row, head->norm, head->weight, s.change, dx, s.parts, n, H, rows, head->one};
    if (grad->type == GR_CU_F32)
        launch_back<float>(st, p, s, d_value, *grad);
    else
        launch_back<gr_bf16>(st, p, s, d_value, *grad);
}
