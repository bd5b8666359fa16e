/* ops/kernels/cuda/delta_step.cu: the gated delta rule forward token by token, in fp32: all that `strict:
 * true` runs. A token's bits follow from the state before it alone, so it does not matter which call it comes
 * in. Decode steps otherwise: delta_decode.cu.
 *
 * Of a slot with several rows the state is left behind each of them.
 *
 * Columns of a state go each by itself. A warp has 16 of one value head, in registers: a lane has four of
 * them, and of 32 rows four. Bound by four multiply-adds a token and element.
 */
#include "ops/kernels/cuda/delta.cuh"

using namespace gr_delta;

namespace
{

constexpr int WARPS = 4, COLS = 16;

/* What a lane reads of a token: its rows of q and k, its columns of v. */
template <int J> struct token {
    uint2 q[J], k[J], v;
    float rate, beta;

    __device__ void load(const gr_cu_delta &a, const span &at, uint32_t t, uint32_t head, uint32_t row0,
                         uint32_t col)
    {
        const uint2 none = make_uint2(0, 0);
#pragma unroll
        for (int j = 0; j < J; j++) {
            const uint32_t row = row0 + 32 * j;
            q[j] = row < a.dk ? *reinterpret_cast<const uint2 *>(at.q(a, t) + row) : none;
            k[j] = row < a.dk ? *reinterpret_cast<const uint2 *>(at.k(a, t) + row) : none;
        }
        v = col < a.dv ? *reinterpret_cast<const uint2 *>(at.v(a, t, head) + col) : none;
        rate = a.rate[at.at(a, t, head, 1)];
        beta = a.beta[at.at(a, t, head, 1)];
    }
};

__device__ inline void widen(uint2 x, float (&y)[4])
{
    y[0] = low_of(x.x);
    y[1] = high_of(x.x);
    y[2] = low_of(x.y);
    y[3] = high_of(x.y);
}

/* The sums over the lanes that share columns; each of them gets the same bits. */
__device__ inline void sum_rows(float (&x)[4])
{
#pragma unroll
    for (int i = 4; i < 32; i *= 2)
#pragma unroll
        for (int c = 0; c < 4; c++) x[c] += __shfl_xor_sync(0xffffffff, x[c], i);
}

/* Four rows of four columns for each 32 rows of a state. */
template <int J> struct part {
    float s[J][4][4];

    __device__ void clear()
    {
#pragma unroll
        for (int j = 0; j < J; j++)
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int c = 0; c < 4; c++) s[j][r][c] = 0;
    }
    template <typename F> __device__ void each_row(const gr_cu_delta &a, uint32_t row0, F use)
    {
#pragma unroll
        for (int j = 0; j < J; j++)
#pragma unroll
            for (int r = 0; r < 4; r++)
                if (row0 + 32 * j < a.dk) use(s[j][r], (size_t)(row0 + 32 * j + r) * a.dv);
    }
    /* One token: what the columns give. */
    __device__ void step(const token<J> &x, float (&out)[4])
    {
        const float decay = exp2_of(x.rate * LOG2E);
        float known[4] = {}, v[4];
#pragma unroll
        for (int j = 0; j < J; j++) {
            float k[4];
            widen(x.k[j], k);
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    s[j][r][c] *= decay;
                    known[c] = fmaf(s[j][r][c], k[r], known[c]);
                }
        }
        sum_rows(known);
        widen(x.v, v);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            v[c] = x.beta * (v[c] - known[c]);
            out[c] = 0;
        }
#pragma unroll
        for (int j = 0; j < J; j++) {
            float q[4], k[4];
            widen(x.q[j], q);
            widen(x.k[j], k);
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    s[j][r][c] = fmaf(k[r], v[c], s[j][r][c]);
                    out[c] = fmaf(s[j][r][c], q[r], out[c]);
                }
        }
        sum_rows(out);
    }
};

/* Grid: parts of the columns, value heads, sequences. */
template <int J> __global__ void __launch_bounds__(WARPS * 32) step_kernel(gr_cu_delta a, uint32_t first_seq)
{
    const uint32_t head = blockIdx.y, seq = first_seq + blockIdx.z, lane = threadIdx.x % 32,
                   col0 = (blockIdx.x * WARPS + threadIdx.x / 32) * COLS, col = col0 + lane % 4 * 4,
                   row0 = lane / 4 * 4;
    if (col0 >= a.dv || (a.state && gr_delta_place(a, seq) == NONE)) return;
    const span at(a, seq, head);
    if (!at.n) return;
    const float *slot = a.state ? state_in<float>(a, gr_delta_place(a, seq), head) + col : nullptr;
    const bool in = col < a.dv;
    part<J> s;
    const auto leave = [&](uint32_t place) {
        float *to = state_in<float>(a, place, head) + col;
        s.each_row(a, row0, [&](float(&x)[4], size_t row) {
            *reinterpret_cast<float4 *>(to + row) = make_float4(x[0], x[1], x[2], x[3]);
        });
    };
    token<J> next;
    next.load(a, at, 0, head, row0, col);
    s.clear();
    if (slot && in && gr_delta_goes_on(a, seq))
        s.each_row(a, row0, [&](float(&x)[4], size_t row) {
            const float4 from = *reinterpret_cast<const float4 *>(slot + row);
            x[0] = from.x, x[1] = from.y, x[2] = from.z, x[3] = from.w;
        });
    for (uint32_t t = 0; t < at.n; t++) {
        const uint32_t place = a.each > 1 ? a.slot[at.first + t] : NONE;
        if (a.each > 1 && place == NONE) return; /* nor are there rows behind it */
        const token<J> now = next;
        float out[4];
        if (t + 1 < at.n) next.load(a, at, t + 1, head, row0, col);
        s.step(now, out);
        if (lane < 4 && in)
            *reinterpret_cast<uint2 *>(a.mixed + at.at(a, t, head, a.dv) + col) =
                make_uint2(pack(out[0], out[1]), pack(out[2], out[3]));
        if (place != NONE && in) leave(place);
    }
    if (slot && in && a.each == 1) leave(a.slot[seq]);
}

template <int J> void launch(cudaStream_t st, const gr_cu_delta *a)
{
    const uint32_t parts = (a->dv + WARPS * COLS - 1) / (WARPS * COLS);
    for (uint32_t seq = 0; seq < a->n_seqs; seq += 65535)
        step_kernel<J>
            <<<dim3(parts, a->value_heads, min(a->n_seqs - seq, 65535u)), WARPS * 32, 0, st>>>(*a, seq);
}

} /* namespace */

void gr_cu_delta_step(cudaStream_t st, const gr_cu_delta *a)
{
    if (a->dk <= 64)
        launch<2>(st, a);
    else
        launch<4>(st, a);
}
