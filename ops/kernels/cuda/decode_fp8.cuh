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
    static constexpr int STAGES = DM == 64 ? 8 : DM == 128 ? 4 : 3;
    static constexpr int WARPS = DM == 256 ? 8 : 12;
    static constexpr uint32_t WARP_BYTES = STAGES * STAGE_BYTES;

    /* What a row's chunks are permuted by: two rows of 64 bytes share a line of banks. */
    static __device__ __forceinline__ uint32_t flip(uint32_t row)
    {
        return DM == 64 ? row / 2 % 4 : row % 8;
    }
};

template <int DM> struct attending_fp8 : attending<DM> {
    using t = tile_fp8<DM>;
    using attending<DM>::q;
    using attending<DM>::o;

    /* Columns of q: the lane's four of each 16, even ones and odd ones. row [2]: where rows lane / 4 and 8
     * more begin. */
    __device__ __forceinline__ void load_queries(const __nv_bfloat16 *const (&row)[2], uint32_t d)
    {
#pragma unroll
        for (int kk = 0; kk < DM / 16; kk++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint32_t c = kk * 16 + threadIdx.x % 4 * 4;
                const uint2 x = c < d ? *reinterpret_cast<const uint2 *>(row[j] + c) : make_uint2(0, 0);
                q[kk][j] = __byte_perm(x.x, x.y, 0x5410);
                q[kk][2 + j] = __byte_perm(x.x, x.y, 0x7632);
            }
    }

    /* Of the lane's columns of scores, which scale a block's keys (half 0) or values (1) have. */
    static __device__ __forceinline__ void scales(float (&f)[2][2], uint32_t stage, uint32_t half)
    {
        const uint32_t at =
            stage + 2 * t::HALF_BYTES + half * t::SCALE_BYTES + threadIdx.x % 4 * 2 * sizeof(float);
#pragma unroll
        for (int i = 0; i < 2; i++)
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                         : "=f"(f[i][0]), "=f"(f[i][1])
                         : "r"(at + i * 8 * (uint32_t)sizeof(float))
                         : "memory");
    }

    __device__ __forceinline__ void scores(float (&s)[2][4], uint32_t stage) const
    {
        const uint32_t lane = threadIdx.x % 32, row = (lane & 7) + (lane >> 4) * 8;
        const uint32_t at = stage + row * t::ROW_BYTES, flip = (((lane >> 3) & 1) ^ t::flip(row)) << 4;
        float part[2][2][4] = {}; /* sums of every other 16 terms, which do not wait for each other */
#pragma unroll
        for (int kk = 0; kk < DM / 16; kk += 2) {
            uint32_t k[4];
            load_matrices(k, at + ((kk << 4) ^ flip));
#pragma unroll
            for (int i = 0; i < 4; i++)
                mma(part[i % 2][i / 2], q[kk + i % 2], gr_fp8_wide<false>(k[i]), gr_fp8_wide<true>(k[i]));
        }
        float f[2][2];
        scales(f, stage, 0);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[i][e] = (part[0][i][e] + part[1][i][e]) * f[i][e % 2];
    }

    /* Weights become those of values as they lie in the block. What lies behind the first `all` is no
     * number. */
    static __device__ __forceinline__ void scale_weights(float (&s)[2][4], uint32_t stage, uint32_t all)
    {
        float f[2][2];
        scales(f, stage, 1);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[i][e] = i * 8 + threadIdx.x % 4 * 2 + e % 2 < all ? s[i][e] * f[i][e % 2] : 0;
    }

    /* values: where those of the stage begin. */
    __device__ __forceinline__ void add_values(const float (&s)[2][4], uint32_t values)
    {
        const uint32_t lane = threadIdx.x % 32, row = (lane & 7) + ((lane >> 3) & 1) * 8;
        const uint32_t at = values + row * t::ROW_BYTES, flip = ((lane >> 4) ^ t::flip(row)) << 4;
        const uint32_t p[4] = {pack(s[0][0], s[0][1]), pack(s[0][2], s[0][3]), pack(s[1][0], s[1][1]),
                               pack(s[1][2], s[1][3])};
#pragma unroll
        for (int j = 0; j < DM / 16; j += 2) {
            uint32_t v[4];
            load_matrices_transposed(v, at + ((j << 4) ^ flip));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                mma(o[2 * (j + i)], p, gr_fp8_wide<false>(v[2 * i]), gr_fp8_wide<false>(v[2 * i + 1]));
                mma(o[2 * (j + i) + 1], p, gr_fp8_wide<true>(v[2 * i]), gr_fp8_wide<true>(v[2 * i + 1]));
            }
        }
    }

    /* Row lane / 4 (j 0) or 8 more, unnormalised, to d floats. */
    __device__ __forceinline__ void store(float *to, int j, uint32_t d) const
    {
#pragma unroll
        for (int i = 0; i < DM / 16; i++) {
            const uint32_t c = i * 16 + threadIdx.x % 4 * 4;
            if (c < d)
                *reinterpret_cast<float4 *>(to + c) = make_float4(
                    o[2 * i][2 * j], o[2 * i + 1][2 * j], o[2 * i][2 * j + 1], o[2 * i + 1][2 * j + 1]);
        }
    }
};

} // namespace gr_decode

#endif
