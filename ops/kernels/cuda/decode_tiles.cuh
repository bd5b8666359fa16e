/* ops/kernels/cuda/decode_tiles.cuh: what the kernels of decode attention share: blocks of 16 keys and values
 * in shared memory, and 16 query rows of a kv head against one of them, by one warp.
 *
 * Source of the running softmax: Milakov and Gimelshein, arXiv:1805.02867.
 */
#ifndef GR_OPS_KERNELS_CUDA_DECODE_TILES_CUH
#define GR_OPS_KERNELS_CUDA_DECODE_TILES_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math_constants.h>
#include <stdint.h>

namespace gr_decode
{

constexpr uint32_t BLOCK = 16; /* keys of a block of the pool: GR_KV_BLOCK */

__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ uint32_t pack(float low, float high)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&v);
}

__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* 16 bytes to shared memory; bytes 0: zeros are written and `from` is not read. */
__device__ __forceinline__ void copy_async(uint32_t to, const void *from, uint32_t bytes, uint64_t policy)
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from),
                 "r"(bytes), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ void commit_group()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> __device__ __forceinline__ void wait_groups()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* What differs by the padded head dimension: 64, 128 or 256 columns, of which the last ones may be zeros. A
 * stage is the 16 keys of a block, then its 16 values; a row's 16-byte chunks are permuted by its number
 * modulo 8, so that ldmatrix finds 8 rows in 8 different banks. */
template <int DM> struct tile {
    static constexpr int CHUNKS = DM / 8; /* of a row */
    static constexpr uint32_t ROW_BYTES = DM * 2, HALF_BYTES = BLOCK * ROW_BYTES,
                              STAGE_BYTES = 2 * HALF_BYTES;
    static constexpr int STAGES = DM == 64 ? 6 : 3;
    static constexpr int WARPS = DM == 256 ? 4 : 8;
    static constexpr uint32_t WARP_BYTES = STAGES * STAGE_BYTES;
};

/* 16 query rows. A lane holds of each row pair (lane / 4 and 8 more) the columns that mma gives it. */
template <int DM> struct attending {
    using t = tile<DM>;
    uint32_t q[DM / 16][4];
    float o[DM / 8][4]; /* unnormalised */
    float max[2], sum[2];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int j = 0; j < DM / 8; j++) o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0;
        max[0] = max[1] = -CUDART_INF_F;
        sum[0] = sum[1] = 0;
    }

    __device__ __forceinline__ void scores(float (&s)[2][4], uint32_t keys) const
    {
        const uint32_t lane = threadIdx.x % 32, row = (lane & 7) + (lane >> 4) * 8;
        const uint32_t at = keys + row * t::ROW_BYTES, flip = (((lane >> 3) & 1) ^ (lane & 7)) << 4;
#pragma unroll
        for (int kk = 0; kk < DM / 16; kk++) {
            uint32_t k[4];
            load_matrices(k, at + ((kk << 5) ^ flip));
            mma(s[0], q[kk], k[0], k[1]);
            mma(s[1], q[kk], k[2], k[3]);
        }
    }

    __device__ __forceinline__ void weigh(float (&s)[2][4], float scale)
    {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float most = fmaxf(fmaxf(s[0][2 * j], s[0][2 * j + 1]), fmaxf(s[1][2 * j], s[1][2 * j + 1]));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            most = fmaxf(max[j], most * scale);
            const float keep = exp2_fast(max[j] - most);
            max[j] = most;
            float add = 0;
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int e = 2 * j; e < 2 * j + 2; e++) {
                    s[i][e] = exp2_fast(fmaf(s[i][e], scale, -most));
                    add += s[i][e];
                }
            sum[j] = fmaf(sum[j], keep, add);
#pragma unroll
            for (int i = 0; i < DM / 8; i++) {
                o[i][2 * j] *= keep;
                o[i][2 * j + 1] *= keep;
            }
        }
    }

    __device__ __forceinline__ void add_values(const float (&s)[2][4], uint32_t values)
    {
        const uint32_t lane = threadIdx.x % 32, row = (lane & 7) + ((lane >> 3) & 1) * 8;
        const uint32_t at = values + row * t::ROW_BYTES, flip = ((lane >> 4) ^ (lane & 7)) << 4;
        const uint32_t p[4] = {pack(s[0][0], s[0][1]), pack(s[0][2], s[0][3]), pack(s[1][0], s[1][1]),
                               pack(s[1][2], s[1][3])};
#pragma unroll
        for (int j = 0; j < DM / 16; j++) {
            uint32_t v[4];
            load_matrices_transposed(v, at + ((j << 5) ^ flip));
            mma(o[2 * j], p, v[0], v[1]);
            mma(o[2 * j + 1], p, v[2], v[3]);
        }
    }
};

} // namespace gr_decode

#endif
