/* ops/kernels/cuda/delta_decode.cu: one token a slot of the gated delta rule, or the rows of a slot: gates,
 * the state's step and the gated norm. Formulas: ops/kernels/delta.h.
 *
 * A block has the state of one value head: a warp every eighth row of it, a lane four columns of these. It is
 * all that a step is bound by, so it is fetched first, whole, kept in registers as it came, and written once;
 * past the caches, for nothing reads it before the next step. Of a slot with several rows it stays in
 * registers from one to the next, as it would come from memory, and is written behind each. Sums over rows go
 * over the block's warps, in their order.
 */
#include "ops/kernels/cuda/delta_rows.cuh"
#include "ops/kernels/cuda/device.cuh"

namespace
{

constexpr int WARPS = 8, DIM = 128; /* of a head at most */

/* Four neighbouring values of a state, as they lie in memory. */
template <typename T> struct four;
template <> struct four<float> {
    typedef float4 raw;
    static constexpr int BLOCKS = 2; /* that a multiprocessor has registers for */
    static __device__ void widen(const raw &v, float (&x)[4])
    {
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    }
    static __device__ raw narrow(const float (&x)[4])
    {
        return make_float4(x[0], x[1], x[2], x[3]);
    }
};
template <> struct four<gr_bf16> {
    typedef uint2 raw;
    static constexpr int BLOCKS = 4;
    static __device__ void widen(const raw &v, float (&x)[4])
    {
        gr_unpack(v, x);
    }
    static __device__ raw narrow(const float (&x)[4])
    {
        return gr_pack(x);
    }
};

/* Of a token, what a value head reads beside q, k and v. */
struct gates {
    float beta, decay;

    __device__ gates(const gr_cu_delta &a, uint32_t t, uint32_t head)
    {
        const gr_bf16 *b = a.in + (uint64_t)(t + 1) * a.width - 2 * a.value_heads + head;
        beta = gr_sigmoid(gr_float(b[0]));
        decay = __expf(-__expf(gr_float(a.a_log[head])) *
                       gr_softplus(gr_float(b[a.value_heads]) + gr_float(a.dt_bias[head])));
    }
};

/* x of each warp to the sum over all of them. */
__device__ inline void sum_warps(float (*part)[DIM], float (&x)[4])
{
    const uint32_t col = threadIdx.x % GR_WARP * 4;
    gr_store4(part[threadIdx.x / GR_WARP], col, x);
    __syncthreads();
    x[0] = x[1] = x[2] = x[3] = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        float y[4];
        gr_load4(part[w], col, y);
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] += y[i];
    }
}

/* out of a token's head, by one warp: x in bf16 first, as other passes keep it. */
__device__ inline void store_normed(const gr_cu_delta &a, uint32_t t, uint32_t head, float (&x)[4],
                                    gr_bf16 *out)
{
    const uint32_t col = threadIdx.x % GR_WARP * 4;
    const bool in = col < a.dv;
    float z[4] = {}, w[4] = {};
    if (in) gr_load4(a.in, (uint64_t)t * a.width + a.channels + head * a.dv + col, z);
    if (in) gr_load4(a.norm, col, w);
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = in ? gr_float(gr_round(x[i])) : 0;
    const float sum = gr_warp_sum(x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3]),
                inv = rsqrtf(sum / a.dv + a.eps);
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = x[i] * inv * w[i] * gr_silu(z[i]);
    if (in) gr_store4(out, ((uint64_t)t * a.value_heads + head) * a.dv + col, x);
}

/* This lane's columns of a value head's state in a place. */
template <typename T>
__device__ inline typename four<T>::raw *state_in(const gr_cu_delta &a, uint32_t place, uint32_t head)
{
    return reinterpret_cast<typename four<T>::raw *>(
        reinterpret_cast<T *>(a.state + place * a.slot_floats + a.tail_floats) + (size_t)head * a.dk * a.dv +
        threadIdx.x % GR_WARP * 4);
}

/* What a block's warps leave to each other. */
struct decode_shared {
    __align__(16) float q[DIM], k[DIM], known[WARPS][DIM], out[WARPS][DIM];
};

/* Token t of a value head, whose state before it is kept: that behind it is left in `to`. AGAIN: it is kept,
 * too. */
template <typename T, int ROWS, bool AGAIN>
__device__ inline void decode_token(const gr_cu_delta &a, uint32_t t, uint32_t head,
                                    typename four<T>::raw (&kept)[ROWS], typename four<T>::raw *to,
                                    decode_shared &sh, gr_bf16 *out)
{
    typedef four<T> type;
    const uint32_t warp = threadIdx.x / GR_WARP, col = threadIdx.x % GR_WARP * 4;
    const bool in = col < a.dv;
    const auto row_of = [&](int i) { return (uint32_t)i * WARPS + warp; };
    const gr_bf16 *qkv = a.qkv + (uint64_t)t * a.channels;
    const uint32_t keys = a.key_heads * a.dk, key_head = head / (a.value_heads / a.key_heads);
    for (uint32_t i = threadIdx.x; i < a.dk; i += WARPS * GR_WARP) {
        sh.q[i] = gr_float(qkv[key_head * a.dk + i]);
        sh.k[i] = gr_float(qkv[keys + key_head * a.dk + i]);
    }
    const gates g(a, t, head);
    float v[4] = {}, known[4] = {}, o[4] = {};
    if (in) gr_load4(qkv, (uint64_t)2 * keys + head * a.dv + col, v);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float s[4];
        type::widen(kept[i], s);
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (row_of(i) < a.dk) known[c] = fmaf(s[c], sh.k[row_of(i)], known[c]);
    }
    sum_warps(sh.known, known);
#pragma unroll
    for (int c = 0; c < 4; c++) v[c] = g.beta * (v[c] - g.decay * known[c]);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (row_of(i) >= a.dk) break;
        float s[4];
        type::widen(kept[i], s);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            s[c] = fmaf(sh.k[row_of(i)], v[c], s[c] * g.decay);
            o[c] = fmaf(s[c], sh.q[row_of(i)], o[c]);
        }
        const typename type::raw behind = type::narrow(s);
        if (in) __stcs(to + (size_t)row_of(i) * (a.dv / 4), behind);
        if (AGAIN) kept[i] = behind;
    }
    sum_warps(sh.out, o);
    if (!warp) store_normed(a, t, head, o, out);
    if (AGAIN) __syncthreads(); /* q, k and sums are read no more */
}

/* What a row gives that has no state. */
__device__ inline void store_none(const gr_cu_delta &a, uint32_t t, uint32_t head, gr_bf16 *out)
{
    const uint32_t col = threadIdx.x % GR_WARP * 4;
    const float none[4] = {};
    if (threadIdx.x < GR_WARP && col < a.dv)
        gr_store4(out, ((uint64_t)t * a.value_heads + head) * a.dv + col, none);
}

/* Grid: value heads, sequences. ROWS: of a state, that a warp has. DRAFTS: sequences have several rows. */
template <typename T, int ROWS, bool DRAFTS>
__global__ void __launch_bounds__(WARPS *GR_WARP, four<T>::BLOCKS)
    decode_kernel(gr_cu_delta a, gr_bf16 *out, uint32_t first_seq)
{
    __shared__ decode_shared sh;
    const uint32_t head = blockIdx.x, seq = first_seq + blockIdx.y, each = DRAFTS ? a.each : 1,
                   warp = threadIdx.x / GR_WARP, first = a.offset[seq * each], place = a.slot[seq * each];
    const bool in = threadIdx.x % GR_WARP * 4 < a.dv, here = first < a.offset[seq * each + 1],
               goes_on = in & here & (place != 0xffffffffu) &
                         (a.cached[seq * each] != 0); /* no branches before the state's loads */
    const typename four<T>::raw *state = state_in<T>(a, place, head);
    typename four<T>::raw kept[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const uint32_t row = (uint32_t)i * WARPS + warp;
        kept[i] = {};
        if (goes_on && row < a.dk) kept[i] = __ldcs(state + (size_t)row * (a.dv / 4));
    }
    if (!here) return;
    for (uint32_t r = 0; r < each; r++) {
        const uint32_t to = DRAFTS ? a.slot[seq * each + r] : place;
        if (to == 0xffffffffu)
            store_none(a, first + r, head, out);
        else
            decode_token<T, ROWS, DRAFTS>(a, first + r, head, kept, state_in<T>(a, to, head), sh, out);
    }
}

template <typename T, int ROWS> void launch(cudaStream_t st, const gr_cu_delta *a, gr_bf16 *out)
{
    for (uint32_t seq = 0; seq < a->n_seqs; seq += 65535) {
        const dim3 grid(a->value_heads, min(a->n_seqs - seq, 65535u));
        if (a->each > 1)
            decode_kernel<T, ROWS, true><<<grid, WARPS * GR_WARP, 0, st>>>(*a, out, seq);
        else
            decode_kernel<T, ROWS, false><<<grid, WARPS * GR_WARP, 0, st>>>(*a, out, seq);
    }
}

template <typename T> void launch_rows(cudaStream_t st, const gr_cu_delta *a, gr_bf16 *out)
{
    if (a->dk <= 64)
        launch<T, 64 / WARPS>(st, a, out);
    else
        launch<T, DIM / WARPS>(st, a, out);
}

} /* namespace */

void gr_cu_delta_decode(cudaStream_t st, const gr_cu_delta *a, gr_bf16 *out)
{
    if (a->bf16)
        launch_rows<gr_bf16>(st, a, out);
    else
        launch_rows<float>(st, a, out);
}
