/* ops/kernels/cuda/softmax.cuh: sums of a softmax over a row of logits, for the head and for sampling: one
 * code, so that the log-prob of a token has the same bits whether it was computed when it was drawn or
 * afterwards, whatever the batch.
 *
 * A row is cut into tiles of 1024 logits, each of which a warp reads once into registers (8 vectors of 16
 * bytes a lane) and sums relative to the tile's own maximum: nothing is ever rescaled but the few sums of a
 * tile. The tiles are then merged in order. Exponents are base 2: y = c z with c = log2(e) / temperature,
 * folded into one fma with the maximum.
 */
#ifndef GR_OPS_KERNELS_CUDA_SOFTMAX_CUH
#define GR_OPS_KERNELS_CUDA_SOFTMAX_CUH

#include "ops/kernels/cuda/device.cuh"

enum { GR_TILE_EACH = GR_TILE / GR_WARP };

#define GR_LOG2_E 1.4426950408889634f
#define GR_LN_2   0.6931471805599453f

struct gr_tile_sums {
    float max;           /* of the logits, unscaled; minus infinity where none is finite */
    float sum;           /* of e = 2^(y - y_max) */
    float first, second; /* of e (y - y_max), and of e^2 */
};

static_assert(sizeof(gr_tile_sums) == GR_TILE_BYTES, "the workspace of sampling counts on it");

struct gr_row_sums {
    float y_max, sum, first, second;
};

/* 2^x to 2 ulp; 0 below the range. */
GR_DEVICE float gr_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The scaled maximum, finite where the logits are minus infinity: their differences to it stay numbers. */
GR_DEVICE float gr_scaled_max(float max, float c)
{
    return fmaxf(__fmul_rn(max, c), -FLT_MAX);
}

/* The id of a lane's element e of a tile. */
GR_DEVICE uint32_t gr_tile_id(uint32_t tile, int e)
{
    return tile * GR_TILE + 4 * (threadIdx.x % GR_WARP + GR_WARP * (e / 4)) + e % 4;
}

/* A lane's elements of a tile, minus infinity beyond the row. VECTOR: V is a multiple of 4, so that every row
 * begins on 16 bytes. */
template <bool VECTOR>
GR_DEVICE void gr_tile_load(const float *row, uint32_t V, uint32_t tile, float (&z)[GR_TILE_EACH])
{
#pragma unroll
    for (int e = 0; e < GR_TILE_EACH; e += 4) {
        const uint32_t id = gr_tile_id(tile, e);
        if (VECTOR) {
            const float4 v = id < V ? *(const float4 *)(row + id)
                                    : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
            z[e] = v.x, z[e + 1] = v.y, z[e + 2] = v.z, z[e + 3] = v.w;
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) z[e + i] = id + i < V ? row[id + i] : -INFINITY;
        }
    }
}

/* For all lanes. MOMENTS: `first` and `second` too. */
template <bool MOMENTS> GR_DEVICE gr_tile_sums gr_tile_sum(const float (&z)[GR_TILE_EACH], float c)
{
    gr_tile_sums s = {z[0], 0, 0, 0};
#pragma unroll
    for (int e = 1; e < GR_TILE_EACH; e++) s.max = fmaxf(s.max, z[e]);
    s.max = gr_warp_max(s.max);
    const float y_max = gr_scaled_max(s.max, c);
#pragma unroll
    for (int e = 0; e < GR_TILE_EACH; e++) {
        const float d = __fmaf_rn(z[e], c, -y_max), p = gr_exp2(d);
        s.sum = __fadd_rn(s.sum, p);
        if (!MOMENTS) continue;
        s.first = fmaf(p, fmaxf(d, -1e4f), s.first); /* a logit of minus infinity: 0, not 0 times it */
        s.second = fmaf(p, p, s.second);
    }
    s.sum = gr_warp_sum(s.sum);
    if (MOMENTS) {
        s.first = gr_warp_sum(s.first);
        s.second = gr_warp_sum(s.second);
    }
    return s;
}

/* All tiles of a row, by one warp, for all its lanes. */
template <bool MOMENTS> GR_DEVICE gr_row_sums gr_tiles_merge(const gr_tile_sums *tile, uint32_t n, float c)
{
    gr_row_sums r = {-FLT_MAX, 0, 0, 0};
    const uint32_t lane = threadIdx.x % GR_WARP;
    for (uint32_t i = lane; i < n; i += GR_WARP) r.y_max = fmaxf(r.y_max, gr_scaled_max(tile[i].max, c));
    r.y_max = gr_warp_max(r.y_max);
    for (uint32_t i = lane; i < n; i += GR_WARP) {
        const float d = __fadd_rn(gr_scaled_max(tile[i].max, c), -r.y_max), f = gr_exp2(d);
        r.sum = __fmaf_rn(tile[i].sum, f, r.sum);
        if (!MOMENTS) continue;
        r.first = fmaf(f, fmaf(tile[i].sum, fmaxf(d, -1e4f), tile[i].first), r.first);
        r.second = fmaf(f * f, tile[i].second, r.second);
    }
    r.sum = gr_warp_sum(r.sum);
    if (MOMENTS) {
        r.first = gr_warp_sum(r.first);
        r.second = gr_warp_sum(r.second);
    }
    return r;
}

/* log softmax of a logit z of the row: the maximum cancels in the fma before anything is rounded. */
GR_DEVICE float gr_row_logprob(const gr_row_sums &r, float z, float c)
{
    return __fmul_rn(GR_LN_2, __fadd_rn(__fmaf_rn(z, c, -r.y_max), -log2f(r.sum)));
}

#endif
