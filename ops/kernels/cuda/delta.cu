/* ops/kernels/cuda/delta.cu: what stands before and behind the gated delta rule, token by token, and its
 * gradients: convolution and silu, lengths of q and k, gates, gated norm. Formulas: ops/kernels/delta.h.
 *
 * A warp has one head of q, k or v, four channels a lane, and goes over some tokens. Bound by memory.
 */
#include "ops/kernels/cuda/delta_rows.cuh"
#include "ops/kernels/cuda/device.cuh"

namespace
{

constexpr int WARPS = 8, TOKENS = 16; /* of a block; of a warp, one where a call has FEW */
constexpr uint32_t FEW = 2048, ROWS = 4;
constexpr float LENGTH_EPS = 1e-6f;

/* The sequence of a token: the last that begins at or before it. */
__device__ inline uint32_t sequence_of(const gr_cu_delta &a, uint32_t t)
{
    uint32_t low = 0, high = a.n_seqs;
    if (a.each > 1) return t / a.each;
    if (a.longest == 1 && a.n_tokens == a.n_seqs) return t;
    while (high - low > 1) {
        const uint32_t mid = (low + high) / 2;
        if (a.offset[mid] <= t)
            low = mid;
        else
            high = mid;
    }
    return low;
}

__device__ inline bool absent(const gr_cu_delta &a, uint32_t seq)
{
    return a.state && gr_delta_place(a, seq) == 0xffffffffu;
}

/* The same of a row. */
__device__ inline bool absent_row(const gr_cu_delta &a, uint32_t t)
{
    return a.state && gr_delta_place_behind(a, sequence_of(a, t), t) == 0xffffffffu;
}

/* A head of q (kind 0), k (1) or v (2): its channels, and this lane's four of them. */
struct unit {
    uint32_t kind, head, dim, first, ch;
    bool in;

    __device__ unit(const gr_cu_delta &a, uint32_t index)
    {
        kind = min(index / a.key_heads, 2u);
        head = index - kind * a.key_heads;
        dim = kind < 2 ? a.dk : a.dv;
        first = kind * a.key_heads * a.dk + head * dim;
        ch = first + threadIdx.x % GR_WARP * 4;
        in = threadIdx.x % GR_WARP * 4 < dim;
    }
    static uint32_t count(const gr_cu_delta *a)
    {
        return 2 * a->key_heads + a->value_heads;
    }
};

/* Row `back` tokens before token t, which is `position` tokens behind its sequence's first in this call. */
__device__ inline void input4(const gr_cu_delta &a, const unit &u, uint32_t seq, uint32_t t,
                              uint32_t position, uint32_t back, float (&x)[4])
{
    x[0] = x[1] = x[2] = x[3] = 0;
    if (!u.in) return;
    if (position >= back) {
        gr_load4(a.in, (uint64_t)(t - back) * a.width + u.ch, x);
    } else if (a.state && gr_delta_goes_on(a, seq)) {
        const float *slot = a.state + gr_delta_place(a, seq) * a.slot_floats;
        gr_load4(slot, (uint64_t)(a.conv - 1 - (back - position)) * a.channels + u.ch, x);
    }
}

/* w[j]: the weight of the row j tokens before. */
template <int TAPS> __device__ inline void weights4(const gr_cu_delta &a, const unit &u, float (&w)[TAPS][4])
{
    if (TAPS == 4 && a.conv == 4 && u.in) { /* four of each channel stand side by side */
        const uint64_t at = (uint64_t)u.ch * 4;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x[4];
            gr_load4(a.w_conv, at + 4 * i, x);
#pragma unroll
            for (int j = 0; j < 4; j++) w[j % TAPS][i] = x[3 - j];
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < TAPS; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[j][i] = u.in && j < (int)a.conv
                          ? gr_float(a.w_conv[(uint64_t)(u.ch + i) * a.conv + a.conv - 1 - j])
                          : 0;
}

/* The convolution's rows, one token after another. */
template <int TAPS> struct convolution {
    float w[TAPS][4], x[TAPS][4];
    uint32_t seq, end; /* of the sequence */

    __device__ void enter(const gr_cu_delta &a, const unit &u, uint32_t t)
    {
        seq = sequence_of(a, t);
        end = gr_delta_end(a, seq);
#pragma unroll
        for (int j = 1; j < TAPS; j++)
            if (j < (int)a.conv && !absent(a, seq))
                input4(a, u, seq, t, t - gr_delta_begin(a, seq), j, x[j - 1]);
    }
    /* Of the next token's row; y: before silu */
    __device__ void next(const gr_cu_delta &a, const float (&row)[4], float (&y)[4])
    {
#pragma unroll
        for (int j = TAPS - 1; j > 0; j--)
#pragma unroll
            for (int i = 0; i < 4; i++) x[j][i] = x[j - 1][i];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[0][i] = row[i];
            y[i] = 0;
#pragma unroll
            for (int j = TAPS - 1; j >= 0; j--)
                if (j < (int)a.conv) y[i] = fmaf(w[j][i], x[j][i], y[i]);
        }
    }
};

__device__ inline float length_inverse(const float (&y)[4])
{
    return rsqrtf(gr_warp_sum(y[0] * y[0] + y[1] * y[1] + y[2] * y[2] + y[3] * y[3]) + LENGTH_EPS);
}

/* For each of a warp's tokens, of which it has `each`, use(t, y): the convolution before silu. */
template <int TAPS, typename F>
__device__ inline void each_token(const gr_cu_delta &a, const unit &u, uint32_t each, F use)
{
    const uint32_t t0 = blockIdx.x * each, end = min(t0 + each, a.n_tokens);
    constexpr uint32_t AT_ONCE = 4; /* rows that are fetched together */
    convolution<TAPS> c;
    weights4<TAPS>(a, u, c.w);
    c.end = t0;
    for (uint32_t t = t0, n; t < end; t += n) {
        float row[AT_ONCE][4], y[4];
        if (t == c.end) c.enter(a, u, t);
        n = min(AT_ONCE, min(end, c.end) - t);
        if (absent(a, c.seq)) continue;
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++)
            if (i < n) input4(a, u, c.seq, t + i, 0, 0, row[i]);
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            if (i >= n) break;
            c.next(a, row[i], y);
            use(t + i, y);
        }
    }
}

/* From the convolution on. */
__device__ inline void store_row(const gr_cu_delta &a, const unit &u, uint32_t t, float (&y)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) y[i] = gr_silu(y[i]);
    if (u.kind < 2) {
        const float inv = length_inverse(y) * (u.kind == 0 ? rsqrtf((float)a.dk) : 1);
#pragma unroll
        for (int i = 0; i < 4; i++) y[i] *= inv;
    }
    if (u.in) gr_store4(a.qkv, (uint64_t)t * a.channels + u.ch, y);
}

template <int TAPS>
__global__ void __launch_bounds__(WARPS *GR_WARP) rows_kernel(gr_cu_delta a, uint32_t each)
{
    const uint32_t index = blockIdx.y * WARPS + threadIdx.x / GR_WARP;
    if (index >= 2 * a.key_heads + a.value_heads) return;
    const unit u(a, index);
    each_token<TAPS>(a, u, each, [&](uint32_t t, float(&y)[4]) { store_row(a, u, t, y); });
}

/* In a decode step a warp has a channel's rows in registers, and leaves those that are kept behind each row.
 */
template <int TAPS> __global__ void __launch_bounds__(WARPS *GR_WARP) decode_rows_kernel(gr_cu_delta a)
{
    const uint32_t index = blockIdx.y * WARPS + threadIdx.x / GR_WARP, first = blockIdx.x * a.each;
    if (index >= 2 * a.key_heads + a.value_heads) return;
    const unit u(a, index);
    convolution<TAPS> c;
    weights4<TAPS>(a, u, c.w);
    c.enter(a, u, first);
    for (uint32_t t = first; t < first + a.each; t++) {
        float row[4], y[4];
        if (absent_row(a, t)) return; /* nor are there any behind it */
        input4(a, u, c.seq, t, 0, 0, row);
        c.next(a, row, y);
        store_row(a, u, t, y);
        float *tail = a.state + gr_delta_place_behind(a, c.seq, t) * a.slot_floats;
#pragma unroll
        for (int j = 0; j + 1 < TAPS; j++)
            if (u.in && j + 1 < (int)a.conv)
                gr_store4(tail, (uint64_t)(a.conv - 2 - j) * a.channels + u.ch, c.x[j]);
    }
}

__global__ void __launch_bounds__(256) gates_kernel(gr_cu_delta a)
{
    const uint32_t i = blockIdx.x * 256 + threadIdx.x, h = i % a.value_heads;
    if (i >= a.n_tokens * a.value_heads) return;
    const gr_bf16 *b = a.in + (uint64_t)(i / a.value_heads + 1) * a.width - 2 * a.value_heads;
    a.beta[i] = gr_sigmoid(gr_float(b[h]));
    a.rate[i] =
        -__expf(gr_float(a.a_log[h])) * gr_softplus(gr_float(b[a.value_heads + h]) + gr_float(a.dt_bias[h]));
}

/* The rows of a channel that are kept behind n tokens of this call, in a place. */
__device__ inline void keep_tail(const gr_cu_delta &a, uint32_t seq, uint32_t c, uint32_t n, uint32_t place)
{
    constexpr int KEPT = 7;
    const uint32_t first = gr_delta_begin(a, seq);
    const bool goes_on = gr_delta_goes_on(a, seq);
    const float *from = a.state + gr_delta_place(a, seq) * a.slot_floats + c;
    float *to = a.state + place * a.slot_floats + c, x[KEPT];
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        if (i + 1 >= (int)a.conv) break;
        const int at = (int)n + i + 1 - (int)a.conv; /* a row of this call, or before it */
        x[i] = at >= 0   ? gr_float(a.in[(uint64_t)(first + at) * a.width + c])
               : goes_on ? from[(uint64_t)(a.conv - 1 + at) * a.channels]
                         : 0;
    }
#pragma unroll
    for (int i = 0; i < KEPT; i++)
        if (i + 1 < (int)a.conv) to[(uint64_t)i * a.channels] = x[i];
}

/* What slots keep of the convolution's rows; a thread has a channel. Of a slot with several rows the first
 * one's place comes last: the others read what it held. */
__global__ void __launch_bounds__(256) tails_kernel(gr_cu_delta a)
{
    const uint32_t c = blockIdx.y * 256 + threadIdx.x, seq = blockIdx.x;
    if (c >= a.channels || absent(a, seq)) return;
    for (uint32_t r = a.each - 1; r > 0; r--) {
        const uint32_t place = a.slot[seq * a.each + r];
        if (place != 0xffffffffu) keep_tail(a, seq, c, r + 1, place);
    }
    keep_tail(a, seq, c, a.each > 1 ? 1 : a.offset[seq + 1] - a.offset[seq], gr_delta_place(a, seq));
}

/* ---- gated norm ------------------------------------------------------------------------------------------
 */

/* A row of dv, four values a lane: x, z and 1 / rms. */
struct normed {
    float x[4], z[4], inv;
    bool in;

    __device__ void load(const gr_cu_delta &a, uint32_t row, bool there)
    {
        const uint32_t t = row / a.value_heads, h = row % a.value_heads, col = threadIdx.x % GR_WARP * 4;
        in = there && col < a.dv;
        x[0] = x[1] = x[2] = x[3] = z[0] = z[1] = z[2] = z[3] = 0;
        if (!in) return;
        gr_load4(a.mixed, (uint64_t)row * a.dv + col, x);
        gr_load4(a.in, (uint64_t)t * a.width + a.channels + h * a.dv + col, z);
    }
    __device__ void measure(const gr_cu_delta &a)
    {
        const float sum = gr_warp_sum(x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3]);
        inv = rsqrtf(sum / a.dv + a.eps);
    }
};

/* A warp has some rows, which it fetches together. */
__global__ void __launch_bounds__(WARPS *GR_WARP) norm_kernel(gr_cu_delta a, gr_bf16 *out)
{
    const uint32_t rows = a.n_tokens * a.value_heads, col = threadIdx.x % GR_WARP * 4,
                   row0 = (blockIdx.x * WARPS + threadIdx.x / GR_WARP) * ROWS;
    normed n[ROWS];
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++) {
        const uint32_t row = row0 + r;
        n[r].load(a, row, row < rows && !absent_row(a, row / a.value_heads));
    }
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++) {
        float y[4] = {};
        n[r].measure(a);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (n[r].in) y[i] = n[r].x[i] * n[r].inv * gr_float(a.norm[col + i]) * gr_silu(n[r].z[i]);
        if (row0 + r < rows && col < a.dv) gr_store4(out, (uint64_t)(row0 + r) * a.dv + col, y);
    }
}

/* A block has NORM_ROWS rows, and one part of the sums into the weights' gradient. */
__global__ void __launch_bounds__(WARPS *GR_WARP) norm_back_kernel(gr_cu_delta a, gr_cu_delta_back b)
{
    constexpr uint32_t EACH = GR_CU_DELTA_NORM_ROWS / WARPS;
    __shared__ float part[WARPS * 128];
    const uint32_t warp = threadIdx.x / GR_WARP, col = threadIdx.x % GR_WARP * 4;
    const uint32_t row0 = blockIdx.x * GR_CU_DELTA_NORM_ROWS + warp * EACH;
    const uint32_t end = min(row0 + EACH, a.n_tokens * a.value_heads);
    float grad[4] = {};
    for (uint32_t row = row0; row < end; row++) {
        normed n;
        n.load(a, row, true);
        n.measure(a);
        float dy[4] = {}, dx[4], dz[4], sum = 0;
        if (n.in) gr_load4(b.dout, (uint64_t)row * a.dv + col, dy);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float w = n.in ? gr_float(a.norm[col + i]) : 0, s = gr_sigmoid(n.z[i]), g = n.z[i] * s;
            const float unit = n.x[i] * n.inv;
            dz[i] = dy[i] * unit * w * fmaf(g, 1 - s, s);
            grad[i] += dy[i] * g * unit;
            dx[i] = dy[i] * g * w;
            sum += dx[i] * unit;
        }
        sum = gr_warp_sum(sum) / a.dv;
#pragma unroll
        for (int i = 0; i < 4; i++) dx[i] = n.inv * (dx[i] - n.x[i] * n.inv * sum);
        if (!n.in) continue;
        gr_store4(b.d_mixed, (uint64_t)row * a.dv + col, dx);
        gr_store4(b.din,
                  (uint64_t)(row / a.value_heads) * a.width + a.channels + row % a.value_heads * a.dv + col,
                  dz);
    }
    gr_store4(part, warp * 128 + col, grad);
    __syncthreads();
    if (threadIdx.x >= a.dv) return;
    float sum = 0;
    for (int w = 0; w < WARPS; w++) sum += part[w * 128 + threadIdx.x];
    b.parts[(uint64_t)blockIdx.x * a.dv + threadIdx.x] = sum;
}

/* ---- gradients of rows ------------------------------------------------------------------------------------
 */

/* Of a token: what its value heads leave to a head of q or k, or a head of v's own. */
__device__ inline void gradient4(const gr_cu_delta &a, const gr_cu_delta_back &b, const unit &u, uint32_t t,
                                 float (&dy)[4])
{
    const uint32_t group = u.kind < 2 ? a.value_heads / a.key_heads : 1, col = u.ch - u.first;
    const gr_bf16 *from = u.kind == 0 ? b.dq : u.kind == 1 ? b.dk : b.dv;
    dy[0] = dy[1] = dy[2] = dy[3] = 0;
    for (uint32_t g = 0; u.in && g < group; g++) {
        float x[4];
        gr_load4(from, ((uint64_t)t * a.value_heads + u.head * group + g) * u.dim + col, x);
#pragma unroll
        for (int i = 0; i < 4; i++) dy[i] += x[i];
    }
}

/* d_conv, from gradients of q, k and v. */
template <int TAPS>
__global__ void __launch_bounds__(WARPS *GR_WARP) rows_back_kernel(gr_cu_delta a, gr_cu_delta_back b)
{
    const uint32_t index = blockIdx.y * WARPS + threadIdx.x / GR_WARP;
    if (index >= 2 * a.key_heads + a.value_heads) return;
    const unit u(a, index);
    const float scale = u.kind == 0 ? rsqrtf((float)a.dk) : 1;
    each_token<TAPS>(a, u, TOKENS, [&](uint32_t t, float(&c)[4]) {
        float dy[4], y[4], sum = 0;
        gradient4(a, b, u, t, dy);
#pragma unroll
        for (int i = 0; i < 4; i++) y[i] = gr_silu(c[i]);
        if (u.kind < 2) {
            const float inv = length_inverse(y);
#pragma unroll
            for (int i = 0; i < 4; i++) sum += y[i] * dy[i];
            sum = gr_warp_sum(sum) * inv * inv;
#pragma unroll
            for (int i = 0; i < 4; i++) dy[i] = scale * inv * (dy[i] - sum * y[i]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float s = gr_sigmoid(c[i]);
            dy[i] *= fmaf(y[i], 1 - s, s);
        }
        if (u.in) gr_store4(b.d_conv, (uint64_t)t * a.channels + u.ch, dy);
    });
}

/* Row t of d_conv; zeros behind the sequence. */
__device__ inline void later4(const gr_cu_delta &a, const gr_cu_delta_back &b, const unit &u, uint32_t t,
                              uint32_t end, float (&dy)[4])
{
    dy[0] = dy[1] = dy[2] = dy[3] = 0;
    if (u.in && t < end) gr_load4(b.d_conv, (uint64_t)t * a.channels + u.ch, dy);
}

/* din's channels, and a part of the sums into the convolution's weights. Rows before a token and behind it
 * stay in registers from one token to the next. */
template <int TAPS>
__global__ void __launch_bounds__(WARPS *GR_WARP) conv_back_kernel(gr_cu_delta a, gr_cu_delta_back b)
{
    const uint32_t index = blockIdx.y * WARPS + threadIdx.x / GR_WARP;
    if (index >= 2 * a.key_heads + a.value_heads) return;
    const unit u(a, index);
    const uint32_t t0 = blockIdx.x * GR_CU_DELTA_CONV_ROWS,
                   t_end = min(t0 + GR_CU_DELTA_CONV_ROWS, a.n_tokens);
    float dy[TAPS][4], grad[TAPS][4] = {}; /* dy[j]: of the row j tokens behind */
    convolution<TAPS> c;
    weights4<TAPS>(a, u, c.w);
    c.end = t0;
    for (uint32_t t = t0; t < t_end; t++) {
        float dx[4] = {}, row[4], y[4];
        if (t == c.end) {
            c.enter(a, u, t);
#pragma unroll
            for (int j = 1; j < TAPS; j++) later4(a, b, u, t + j - 1, c.end, dy[j]);
        }
        input4(a, u, c.seq, t, 0, 0, row);
        c.next(a, row, y);
#pragma unroll
        for (int j = 0; j < TAPS; j++) {
            if (j + 1 < (int)a.conv) {
#pragma unroll
                for (int i = 0; i < 4; i++) dy[j][i] = dy[min(j + 1, TAPS - 1)][i];
            } else if (j + 1 == (int)a.conv) {
                later4(a, b, u, t + j, c.end, dy[j]);
            } else {
                break;
            }
        }
#pragma unroll
        for (int j = 0; j < TAPS; j++) {
            if (j >= (int)a.conv) break;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                dx[i] = fmaf(c.w[j][i], dy[j][i], dx[i]);
                grad[j][i] = fmaf(c.x[j][i], dy[0][i], grad[j][i]);
            }
        }
        if (u.in) gr_store4(b.din, (uint64_t)t * a.width + u.ch, dx);
    }
    if (!u.in) return;
    float *to = b.parts + ((uint64_t)blockIdx.x * a.channels + u.ch) * a.conv;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < TAPS; j++)
            if (j < (int)a.conv) to[i * a.conv + a.conv - 1 - j] = grad[j][i];
}

/* din's b and a, and parts of the sums over tokens: [2, blocks, value_heads]. A thread has one head, and
 * every so many-th of its block's tokens; grid: tokens, heads. */
__global__ void __launch_bounds__(256) gates_back_kernel(gr_cu_delta a, gr_cu_delta_back b)
{
    __shared__ float sums[2][256];
    const uint32_t heads = min(a.value_heads - blockIdx.y * 256, 256u), h = threadIdx.x % heads,
                   head = blockIdx.y * 256 + h, each = 256 / heads, mine = threadIdx.x / heads,
                   t0 = blockIdx.x * GR_CU_DELTA_CONV_ROWS, end = min(t0 + GR_CU_DELTA_CONV_ROWS, a.n_tokens);
    const float bias = gr_float(a.dt_bias[head]), grows = __expf(gr_float(a.a_log[head]));
    float of_log = 0, of_bias = 0;
    for (uint32_t t = t0 + mine; mine < each && t < end; t += each) {
        const uint64_t at = (uint64_t)t * a.value_heads + head,
                       row = (uint64_t)(t + 1) * a.width - 2 * a.value_heads + head;
        const float beta = a.beta[at],
                    da = -b.d_rate[at] * grows * gr_sigmoid(gr_float(a.in[row + a.value_heads]) + bias);
        b.din[row] = gr_round(b.d_beta[at] * beta * (1 - beta));
        b.din[row + a.value_heads] = gr_round(da);
        of_log = fmaf(b.d_rate[at], a.rate[at], of_log);
        of_bias += da;
    }
    sums[0][threadIdx.x] = of_log;
    sums[1][threadIdx.x] = of_bias;
    __syncthreads();
    if (threadIdx.x >= heads) return;
    for (uint32_t i = 1; i < each; i++) {
        of_log += sums[0][i * heads + h];
        of_bias += sums[1][i * heads + h];
    }
    float *to = b.parts + (uint64_t)blockIdx.x * a.value_heads + head;
    to[0] = of_log;
    to[(uint64_t)gridDim.x * a.value_heads] = of_bias;
}

uint32_t parts_of(uint64_t n, uint32_t each)
{
    return (uint32_t)((n + each - 1) / each);
}

/* Warps for all heads and parts of `each` tokens. */
dim3 unit_grid(const gr_cu_delta *a, uint32_t each)
{
    return dim3(parts_of(a->n_tokens, each), parts_of(unit::count(a), WARPS));
}

} /* namespace */

void gr_cu_delta_rows(cudaStream_t st, const gr_cu_delta *a)
{
    const uint32_t each = a->n_tokens < FEW ? 1 : TOKENS;
    if (a->conv <= 4)
        rows_kernel<4><<<unit_grid(a, each), WARPS * GR_WARP, 0, st>>>(*a, each);
    else
        rows_kernel<8><<<unit_grid(a, each), WARPS * GR_WARP, 0, st>>>(*a, each);
    gates_kernel<<<parts_of((uint64_t)a->n_tokens * a->value_heads, 256), 256, 0, st>>>(*a);
    if (a->state && a->conv > 1)
        tails_kernel<<<dim3(a->n_seqs, parts_of(a->channels, 256)), 256, 0, st>>>(*a);
}

void gr_cu_delta_decode_rows(cudaStream_t st, const gr_cu_delta *a)
{
    if (a->conv <= 4)
        decode_rows_kernel<4><<<unit_grid(a, a->each), WARPS * GR_WARP, 0, st>>>(*a);
    else
        decode_rows_kernel<8><<<unit_grid(a, a->each), WARPS * GR_WARP, 0, st>>>(*a);
}

void gr_cu_delta_norm(cudaStream_t st, const gr_cu_delta *a, gr_bf16 *out)
{
    norm_kernel<<<parts_of((uint64_t)a->n_tokens * a->value_heads, WARPS * ROWS), WARPS * GR_WARP, 0, st>>>(
        *a, out);
}

void gr_cu_delta_norm_backward(cudaStream_t st, const gr_cu_delta *a, const gr_cu_delta_back *b, void *grad,
                               gr_cu_dtype type)
{
    const uint32_t parts = parts_of((uint64_t)a->n_tokens * a->value_heads, GR_CU_DELTA_NORM_ROWS);
    norm_back_kernel<<<parts, WARPS * GR_WARP, 0, st>>>(*a, *b);
    gr_cu_parts_add(st, b->parts, parts, a->dv, grad, type);
}

void gr_cu_delta_rows_backward(cudaStream_t st, const gr_cu_delta *a, const gr_cu_delta_back *b, void *conv,
                               void *a_log, void *dt_bias, gr_cu_dtype type)
{
    const dim3 rows = unit_grid(a, TOKENS), parts = unit_grid(a, GR_CU_DELTA_CONV_ROWS);
    gates_back_kernel<<<dim3(parts.x, parts_of(a->value_heads, 256)), 256, 0, st>>>(*a, *b);
    gr_cu_parts_add(st, b->parts, parts.x, a->value_heads, a_log, type);
    gr_cu_parts_add(st, b->parts + (uint64_t)parts.x * a->value_heads, parts.x, a->value_heads, dt_bias,
                    type);
    if (a->conv <= 4) {
        rows_back_kernel<4><<<rows, WARPS * GR_WARP, 0, st>>>(*a, *b);
        conv_back_kernel<4><<<parts, WARPS * GR_WARP, 0, st>>>(*a, *b);
    } else {
        rows_back_kernel<8><<<rows, WARPS * GR_WARP, 0, st>>>(*a, *b);
        conv_back_kernel<8><<<parts, WARPS * GR_WARP, 0, st>>>(*a, *b);
    }
    gr_cu_parts_add(st, b->parts, parts.x, a->channels * a->conv, conv, type);
}
