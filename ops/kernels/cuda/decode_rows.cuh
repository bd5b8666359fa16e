/* ops/kernels/cuda/decode_rows.cuh: what products of a decode step have in common, wherever their weights
 * wait (decode_product.cu: queues; decode_held.cu: all at once).
 *
 * The warps of a CTA share its rows of W and divide k, 64 at a time in turn; their sums are added in order.
 * A lane takes the same 8 numbers that follow each other of W and of x, so the k of a product are permuted,
 * alike on both sides, and loads need no shuffle.
 */
#ifndef GR_OPS_KERNELS_CUDA_DECODE_ROWS_CUH
#define GR_OPS_KERNELS_CUDA_DECODE_ROWS_CUH

#include "ops/kernels/cuda/device.cuh"

namespace gr_decode_rows
{

constexpr uint32_t WARPS = 8, THREADS = WARPS * GR_WARP, CHUNK = 64; /* k of a step of a warp */
constexpr uint32_t STRIDE = WARPS * CHUNK;                           /* k of a step of all */
constexpr uint32_t ROWS = 8;                                         /* of W in a tile */

/* Numbers 8 q to 8 q + 7 of each half of a chunk, lane q of four. */
struct part {
    uint4 half[2];

    __device__ __forceinline__ void load(const gr_bf16 *from)
    {
        half[0] = *(const uint4 *)from;
        half[1] = *(const uint4 *)(from + CHUNK / 2);
    }

    /* Times the norm's factors; what is left of the norm, one number a row, the result is multiplied by.
     * Returns the sum of squares. */
    __device__ __forceinline__ float norm(const part &factors, float one)
    {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float f[8], n[8];
            gr_unpack(half[i], f);
            gr_unpack(factors.half[i], n);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                sum = fmaf(f[e], f[e], sum);
                f[e] *= one + n[e];
            }
            half[i] = gr_pack(f);
        }
        return sum;
    }
};

/* One number of the result, `at` of y; of PAIRS: gate and up. */
template <bool PAIRS>
__device__ __forceinline__ void put(const gr_cu_decode_product &p, size_t at, float gate, float up, float old)
{
    const float v = PAIRS ? gate * gr_sigmoid(gate) * up : gate * p.scale + old;
    if (!PAIRS && p.logits)
        p.logits[at] = v;
    else
        p.y[at] = gr_round(v);
}

static inline uint32_t processors(void)
{
    int device = 0, n = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    return (uint32_t)n;
}

} // namespace gr_decode_rows

#endif
