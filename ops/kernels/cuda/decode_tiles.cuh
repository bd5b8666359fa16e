/* ops/kernels/cuda/decode_tiles.cuh: what the kernels of decode attention share: blocks of 16 keys and values
 * in shared memory, and 8 query rows of a kv head, or several times 8, against one of them, by one warp.
 *
 * Keys, and columns of values, are the 16 rows of the tensor cores' products, and query rows their 8 columns:
 * S^T = K Q^T and O^T = V^T P^T. So few rows are padded to 8, not to 16, and a fragment of keys or values
 * that was read (and widened) once is multiplied with each 8 rows.
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

/* An 8 x 8 matrix of bf16 whose row i the lanes 4 i to 4 i + 3 hold: transposed. */
__device__ __forceinline__ uint32_t transposed(uint32_t matrix)
{
    uint32_t r;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(matrix));
    return r;
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

/* 8 T query rows. Of each 8 a lane holds, as mma has them, query row lane / 4, and of scores and outputs the
 * rows lane % 4 * 2 (first) and one more. Its scores are those of key lane / 4, then of key 8 + lane / 4:
 * s[.][e] is of key lane / 4 + 8 (e / 2) and row lane % 4 * 2 + e % 2. */
template <int DM, int T> struct attending {
    using t = tile<DM>;
    uint32_t q[T][DM / 16][2];
    float o[T][DM / 16][4]; /* unnormalised; [e]: column lane / 4 + 8 (e / 2) of 16, row as of scores */
    float max[T][2], sum[T][2];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int n = 0; n < T; n++) {
#pragma unroll
            for (int j = 0; j < DM / 16; j++) o[n][j][0] = o[n][j][1] = o[n][j][2] = o[n][j][3] = 0;
            max[n][0] = max[n][1] = -CUDART_INF_F;
            sum[n][0] = sum[n][1] = 0;
        }
    }

    __device__ __forceinline__ void scores(float (&s)[T][4], uint32_t keys) const
    {
        const uint32_t lane = threadIdx.x % 32;
        const uint32_t at = keys + lane % 16 * t::ROW_BYTES, flip = (lane / 16 ^ (lane & 7)) << 4;
#pragma unroll
        for (int kk = 0; kk < DM / 16; kk++) {
            uint32_t k[4];
            load_matrices(k, at + ((kk << 5) ^ flip));
#pragma unroll
            for (int n = 0; n < T; n++) mma(s[n], k, q[n][kk][0], q[n][kk][1]);
        }
    }

    /* Scores become weights. */
    __device__ __forceinline__ void weigh(float (&s)[T][4], float scale)
    {
        float keep[T][2];
        bool moved = false;
#pragma unroll
        for (int n = 0; n < T; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float most = fmaxf(s[n][c], s[n][2 + c]);
#pragma unroll
                for (int lanes = 4; lanes < 32; lanes *= 2)
                    most = fmaxf(most, __shfl_xor_sync(~0u, most, lanes));
                most = fmaxf(max[n][c], most * scale);
                moved |= most != max[n][c];
                keep[n][c] = exp2_fast(max[n][c] - most);
                max[n][c] = most;
#pragma unroll
                for (int e = c; e < 4; e += 2) s[n][e] = exp2_fast(fmaf(s[n][e], scale, -most));
                sum[n][c] = fmaf(sum[n][c], keep[n][c], s[n][c] + s[n][2 + c]);
            }
        if (!__any_sync(~0u, moved)) return; /* all are to be kept as they are: times 1 */
#pragma unroll
        for (int n = 0; n < T; n++)
#pragma unroll
            for (int j = 0; j < DM / 16; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) o[n][j][e] *= keep[n][e % 2];
    }

    /* Weights of 16 keys as the other side of a product. */
    static __device__ __forceinline__ void turn(uint32_t (&p)[T][2], const float (&s)[T][4])
    {
#pragma unroll
        for (int n = 0; n < T; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) p[n][i] = transposed(pack(s[n][2 * i], s[n][2 * i + 1]));
    }

    __device__ __forceinline__ void add_values(const float (&s)[T][4], uint32_t values)
    {
        const uint32_t lane = threadIdx.x % 32, row = lane % 8 + lane / 16 * 8;
        const uint32_t at = values + row * t::ROW_BYTES, flip = (lane / 8 % 2 ^ (lane & 7)) << 4;
        uint32_t p[T][2];
        turn(p, s);
#pragma unroll
        for (int j = 0; j < DM / 16; j++) {
            uint32_t v[4];
            load_matrices_transposed(v, at + ((j << 5) ^ flip));
#pragma unroll
            for (int n = 0; n < T; n++) mma(o[n][j], v, p[n][0], p[n][1]);
        }
    }

    /* The sum of row lane % 4 * 2 + c of the n-th 8. */
    __device__ __forceinline__ float whole_sum(int n, int c) const
    {
        float all = sum[n][c];
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) all += __shfl_xor_sync(~0u, all, lanes);
        return all;
    }
};

} // namespace gr_decode

#endif
