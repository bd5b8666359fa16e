/* ops/kernels/cuda/decode_fp8.cuh: as decode_tiles.cuh, of blocks in FP8: E4M3 become bf16, which has all of
 * their values, on the way from shared memory to the tensor cores, and scales are taken of scores and of
 * weights, which are a sixteenth as many or less.
 *
 * A product may take its terms in any order, if both of its sides do, and leave its columns in any order: so
 * words of four values go through ldmatrix as two of 16 bits each, their even bytes make one part of a
 * fragment and their odd bytes the other, and queries and outputs follow that.
 */
#ifndef GR_OPS_KERNELS_CUDA_DECODE_FP8_CUH
#define GR_OPS_KERNELS_CUDA_DECODE_FP8_CUH

#include "ops/kernels/cuda/decode_tiles.cuh"
#include "ops/kernels/cuda/fp8.cuh"

namespace gr_decode
{

/* As tile. A stage is the 16 keys of a block, its 16 values, and the scales of both. Widening is work: it
 * takes more warps to hide, each with fewer blocks on their way. */
template <int DM> struct tile_fp8 {
    static constexpr int CHUNKS = DM / 16; /* of a row */
    static constexpr uint32_t ROW_BYTES = DM, HALF_BYTES = BLOCK * ROW_BYTES, SCALE_BYTES = BLOCK * 4,
                              STAGE_BYTES = 2 * (HALF_BYTES + SCALE_BYTES);
    static constexpr int STAGES = DM == 64 ? 6 : 3;
    static constexpr int WARPS = DM == 256 ? 8 : 16;
    static constexpr uint32_t WARP_BYTES = STAGES * STAGE_BYTES;

    /* What a row's chunks are permuted by: two rows of 64 bytes share a line of banks. */
    static __device__ __forceinline__ uint32_t flip(uint32_t row)
    {
        return DM == 64 ? row / 2 % 4 : row % 8;
    }
};

template <int DM, int T> struct attending_fp8 : attending<DM, T> {
    using t = tile_fp8<DM>;
    using attending<DM, T>::q;
    using attending<DM, T>::o;

    /* Widened keys and values are 2^-120 of themselves: a multiplication each would be a fourth of the work
     * of widening. Queries and weights are 2^64 of themselves instead, and scores and outputs have the 2^56
     * that are left. So terms of a product are normal numbers in fp32 down to 2^-70 of the scores' and
     * values' own (before a block's scale), and bf16 has room for queries to 2^63 and weights times a scale
     * to 2^63. */
    static constexpr uint16_t UP = 0x5f80; /* 2^64 */
    static constexpr float WEIGHTS_UP = 0x1p64f, REST = 0x1p56f;

    /* Columns of q: the lane's four of each 16, even ones and odd ones. row [T]: where rows lane / 4 begin.
     */
    __device__ __forceinline__ void load_queries(const __nv_bfloat16 *const (&row)[T], uint32_t d)
    {
#pragma unroll
        for (int n = 0; n < T; n++)
#pragma unroll
            for (int kk = 0; kk < DM / 16; kk++) {
                const uint32_t c = kk * 16 + threadIdx.x % 4 * 4;
                const uint2 x = c < d ? *reinterpret_cast<const uint2 *>(row[n] + c) : make_uint2(0, 0);
                q[n][kk][0] = gr_bf16_times(__byte_perm(x.x, x.y, 0x5410), UP);
                q[n][kk][1] = gr_bf16_times(__byte_perm(x.x, x.y, 0x7632), UP);
            }
    }

    /* Scales of the lane's two keys (half 0), or values (1). */
    static __device__ __forceinline__ void scales(float (&f)[2], uint32_t stage, uint32_t half)
    {
        const uint32_t at =
            stage + 2 * t::HALF_BYTES + half * t::SCALE_BYTES + threadIdx.x % 32 / 4 * sizeof(float);
#pragma unroll
        for (int i = 0; i < 2; i++)
            asm volatile("ld.shared.f32 %0, [%1];"
                         : "=f"(f[i])
                         : "r"(at + i * 8 * (uint32_t)sizeof(float))
                         : "memory");
    }

    /* Of two words of a row's four bytes each, of rows 8 apart: 16 of keys or columns against 16 terms. */
    static __device__ __forceinline__ void widen(uint32_t (&a)[4], uint32_t first, uint32_t second, bool keys)
    {
        a[0] = gr_fp8_small<false>(first);
        a[keys ? 2 : 1] = gr_fp8_small<true>(first);
        a[keys ? 1 : 2] = gr_fp8_small<false>(second);
        a[3] = gr_fp8_small<true>(second);
    }

    __device__ __forceinline__ void scores(float (&s)[T][4], uint32_t stage) const
    {
        const uint32_t lane = threadIdx.x % 32, row = lane % 16;
        const uint32_t at = stage + row * t::ROW_BYTES, flip = (lane / 16 ^ t::flip(row)) << 4;
#pragma unroll
        for (int kk = 0; kk < DM / 16; kk += 2) {
            uint32_t k[4];
            load_matrices(k, at + ((kk << 4) ^ flip));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t wide[4];
                widen(wide, k[2 * i], k[2 * i + 1], true);
#pragma unroll
                for (int n = 0; n < T; n++) mma(s[n], wide, q[n][kk + i][0], q[n][kk + i][1]);
            }
        }
        float f[2];
        scales(f, stage, 0);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int n = 0; n < T; n++) s[n][e] *= f[e / 2] * REST;
    }

    /* Weights become those of values as they lie in the block. What lies behind the first `all` is no
     * number. */
    static __device__ __forceinline__ void scale_weights(float (&s)[T][4], uint32_t stage, uint32_t all)
    {
        float f[2];
        scales(f, stage, 1);
#pragma unroll
        for (int i = 0; i < 2; i++) f[i] = i * 8 + threadIdx.x % 32 / 4 < all ? f[i] * WEIGHTS_UP : 0;
#pragma unroll
        for (int n = 0; n < T; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[n][e] *= f[e / 2];
    }

    /* values: where those of the stage begin. */
    __device__ __forceinline__ void add_values(const float (&s)[T][4], uint32_t values)
    {
        const uint32_t lane = threadIdx.x % 32, row = lane % 16;
        const uint32_t at = values + row * t::ROW_BYTES, flip = (lane / 16 ^ t::flip(row)) << 4;
        uint32_t p[T][2];
        this->turn(p, s);
#pragma unroll
        for (int j = 0; j < DM / 16; j += 2) {
            uint32_t v[4];
            load_matrices_transposed(v, at + ((j << 4) ^ flip));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t wide[4];
                widen(wide, v[2 * i], v[2 * i + 1], false);
#pragma unroll
                for (int n = 0; n < T; n++) mma(o[n][j + i], wide, p[n][0], p[n][1]);
            }
        }
    }

    /* Row lane % 4 * 2 + c of the n-th 8, unnormalised, to d floats. */
    __device__ __forceinline__ void store(float *to, int n, int c, uint32_t d) const
    {
#pragma unroll
        for (int j = 0; j < DM / 16; j++) {
            const uint32_t column = j * 16 + threadIdx.x % 32 / 4 * 2;
            if (column < d)
                *reinterpret_cast<float2 *>(to + column) =
                    make_float2(o[n][j][c] * REST, o[n][j][2 + c] * REST);
        }
    }
};

} // namespace gr_decode

#endif
