/* ops/kernels/cuda/delta.cuh: what the kernels of the gated delta rule share. Formulas: ops/kernels/delta.h.
 *
 * A chunk is 64 tokens of one value head. With G the sums of rates (log2 of decays) from its first token on,
 * K, Q, V its rows, S the state before it and L_ij = beta_i (k_i . k_j) 2^(G_i - G_j) for j < i:
 *
 *     A = (I + L)^-1,  W = A (beta 2^G K),  U' = A (beta V)       for all chunks side by side
 *     U = U' - W S                                                what the tokens write: rows u_i
 *     O = 2^G Q S + P U,   P_ij = (q_i . k_j) 2^(G_i - G_j), j <= i
 *     S' = 2^(G_last) S + K^T (2^(G_last - G) U)
 *
 * Products are mma.sync of bf16 with fp32 sums, those that make A of tf32. Rows beyond a sequence's end are
 * zeros with beta and rate 0, which leave S as it is. Tiles as in flash.cuh.
 */
#ifndef GR_OPS_KERNELS_CUDA_DELTA_CUH
#define GR_OPS_KERNELS_CUDA_DELTA_CUH

#include "ops/kernels/cuda/delta_rows.cuh"
#include "ops/kernels/cuda/flash.cuh"

namespace gr_delta
{

using namespace gr_flash;

constexpr int CHUNK = 64, PAD = 4; /* floats behind a row of fp32, so that rows begin in other banks */
constexpr uint32_t NONE = 0xffffffffu;

/* Where sequence `seq`, value head `head` begins. */
struct span {
    uint32_t first, n, key_head;

    __device__ span(const gr_cu_delta &a, uint32_t seq, uint32_t head)
        : first(gr_delta_begin(a, seq)), n(gr_delta_end(a, seq) - first),
          key_head(head / (a.value_heads / a.key_heads))
    {
    }
    __device__ const uint16_t *q(const gr_cu_delta &a, uint32_t t) const
    {
        return a.qkv + (size_t)(first + t) * a.channels + key_head * a.dk;
    }
    __device__ const uint16_t *k(const gr_cu_delta &a, uint32_t t) const
    {
        return q(a, t) + a.key_heads * a.dk;
    }
    __device__ const uint16_t *v(const gr_cu_delta &a, uint32_t t, uint32_t head) const
    {
        return a.qkv + (size_t)(first + t) * a.channels + 2 * a.key_heads * a.dk + head * a.dv;
    }
    /* Of a token's row [value_heads, width]. */
    __device__ size_t at(const gr_cu_delta &a, uint32_t t, uint32_t head, uint32_t width) const
    {
        return ((size_t)(first + t) * a.value_heads + head) * width;
    }
};

/* S of a value head in a place. */
template <typename T> __device__ inline T *state_in(const gr_cu_delta &a, uint32_t place, uint32_t head)
{
    return reinterpret_cast<T *>(a.state + place * a.slot_floats + a.tail_floats) +
           (size_t)head * a.dk * a.dv;
}

/* The same in its sequence's slot. */
template <typename T> __device__ inline T *state_of(const gr_cu_delta &a, uint32_t seq, uint32_t head)
{
    return state_in<T>(a, a.slot[seq], head);
}

/* The number of a sequence's first chunk: those of earlier sequences have smaller ones. */
__device__ inline uint32_t first_chunk(uint32_t first_token, uint32_t seq)
{
    return first_token / CHUNK + seq;
}

/* What a number of a chunk stands for: no sequence has some of them, then n is 0. */
struct piece {
    uint32_t seq, t0, n; /* its first token in its sequence, of so many */

    __device__ piece(const gr_cu_delta &a, uint32_t chunk)
    {
        uint32_t low = 0, high = a.n_seqs;
        while (high - low > 1) {
            const uint32_t mid = (low + high) / 2;
            if (first_chunk(a.offset[mid], mid) <= chunk)
                low = mid;
            else
                high = mid;
        }
        seq = low;
        t0 = (chunk - first_chunk(a.offset[seq], seq)) * CHUNK;
        n = a.offset[seq + 1] - a.offset[seq];
        if (t0 >= n || (a.state && a.slot[seq] == NONE)) n = 0;
    }
};

/* Copies so far are a group; wait until at most N groups are under way. */
__device__ inline void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> __device__ inline void copies_left()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Two neighbouring bf16 of a tile. */
template <int DP> __device__ inline uint32_t *pair_at(unsigned char *tile, int row, int col)
{
    return reinterpret_cast<uint32_t *>(tile + row * (DP * 2) + (((col / 8) ^ (row & 7)) << 4) + col % 8 * 2);
}
__device__ inline float low_of(uint32_t two)
{
    return __uint_as_float(two << 16);
}
__device__ inline float high_of(uint32_t two)
{
    return __uint_as_float(two & 0xffff0000u);
}

/* Fragment A of a tile's transpose: rows are the tile's columns [col, col + 16), columns its rows [row, row +
 * 16). */
template <int DP> __device__ inline void load_a_turned(uint32_t a[4], uint32_t tile, int row, int col)
{
    const int lane = threadIdx.x % 32;
    load4_turned(a, chunk_at<DP>(tile, row + lane / 16 * 8 + lane % 8, col / 8 + lane / 8 % 2));
}

/* Rates (log2) and betas of a chunk's tokens; then rates become sums from the first on. By all threads. */
__device__ inline void load_gates(const gr_cu_delta &a, const span &s, uint32_t head, uint32_t t0,
                                  float *rate, float *beta)
{
    if (threadIdx.x < CHUNK) {
        const bool in = t0 + threadIdx.x < s.n;
        const size_t at = in ? s.at(a, t0 + threadIdx.x, head, 1) : 0;
        rate[threadIdx.x] = in ? a.rate[at] * LOG2E : 0;
        beta[threadIdx.x] = in ? a.beta[at] : 0;
    }
}
__device__ inline void sum_rates(float *rate)
{
    if (threadIdx.x >= 32) return;
    const uint32_t lane = threadIdx.x;
    const float x = rate[2 * lane], y = x + rate[2 * lane + 1];
    float before = y;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
        const float of = __shfl_up_sync(0xffffffff, before, i);
        if (lane >= i) before += of;
    }
    before -= y;
    rate[2 * lane] = before + x;
    rate[2 * lane + 1] = before + y;
}

} /* namespace gr_delta */

#endif
