/* ops/kernels/cuda/head_product.cu: the head's product and its softmax in one: logits are summed up where
 * they arise, in the registers of the tensor cores' accumulators, and need not go to memory.
 *
 * The tiles are those of pipeline.cuh, 256 rows by 256 ids of a cluster: while the two warpgroups sum up
 * their parts of a tile, the operands of the next one come in. The sums of a row's tile are made in one
 * order, so that the bits of a row follow from that row alone, whatever else is in the batch and whether
 * logits are written too.
 *
 * Source of the fused softmax over tiles of a vocabulary: Wijmans et al., arXiv:2411.09009.
 */
#include "ops/kernels/cuda/pipeline.cuh"
#include "ops/kernels/cuda/softmax.cuh"

namespace
{

enum {
    IDS = GR_CU_HEAD_IDS, /* of a tile */
    STAGES = 4,
    BAND = 8 /* pairs of CTAs' rows whose tiles follow each other: 16 MB of x for 4,096 columns, which stay in
                the L2 cache */
};

typedef gr_pipe<IDS / 2, STAGES> pipe;

struct args {
    const int32_t *target;
    float4 *part;  /* [n, tiles] gr_tile_sums */
    float *logit;  /* [n] */
    float *logits; /* [n, V] or NULL */
    float inv_temperature;
    uint32_t n, V, steps, tiles; /* steps: of DEPTH columns */
};

#if GR_HOPPER

/* Where a cluster's t-th tile is. */
struct place {
    uint32_t row, tile;
};

__device__ __forceinline__ place place_of(const args &a, uint32_t pairs, uint32_t t)
{
    const uint32_t band = t / (BAND * a.tiles), rest = t % (BAND * a.tiles),
                   high = min((uint32_t)BAND, pairs - band * BAND);
    return {(band * BAND + rest % high) * GR_PIPE_PAIR, rest / high};
}

__device__ void produce(const args &a, pipe &p, const CUtensorMap *x, const CUtensorMap *lm, uint32_t pairs)
{
    const uint32_t rank = gr_cluster_rank(), clusters = gridDim.x / GR_PIPE_CLUSTER;
    for (uint32_t t = blockIdx.x / GR_PIPE_CLUSTER; t < pairs * a.tiles; t += clusters) {
        const place at = place_of(a, pairs, t);
        p.fetch(x, lm, at.row + rank * GR_PIPE_ROWS, at.tile * IDS + rank * (IDS / 2), a.steps);
    }
}

/* Over the four lanes that hold a row, for each of them. */
__device__ __forceinline__ float quad_sum(float x)
{
    x = __fadd_rn(x, __shfl_xor_sync(GR_ALL, x, 1));
    return __fadd_rn(x, __shfl_xor_sync(GR_ALL, x, 2));
}

/* Of row h of the thread's two. */
__device__ __forceinline__ gr_tile_sums sum_up(const float (&z)[128], int h, float c)
{
    gr_tile_sums s = {z[2 * h], 0, 0, 0};
#pragma unroll
    for (int j = 0; j < 32; j++) s.max = fmaxf(s.max, fmaxf(z[4 * j + 2 * h], z[4 * j + 2 * h + 1]));
    s.max = fmaxf(s.max, __shfl_xor_sync(GR_ALL, s.max, 1));
    s.max = fmaxf(s.max, __shfl_xor_sync(GR_ALL, s.max, 2));
    const float y_max = gr_scaled_max(s.max, c);
    float sum[2] = {0, 0}, first[2] = {0, 0}, second[2] = {0, 0}; /* of even columns and of odd ones */
#pragma unroll
    for (int j = 0; j < 32; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float d = __fmaf_rn(z[4 * j + 2 * h + e], c, -y_max), p = gr_exp2(d);
            sum[e] = __fadd_rn(sum[e], p);
            first[e] = __fmaf_rn(p, fmaxf(d, -1e4f), first[e]);
            second[e] = __fmaf_rn(p, p, second[e]);
        }
    s.sum = quad_sum(__fadd_rn(sum[0], sum[1]));
    s.first = quad_sum(__fadd_rn(first[0], first[1]));
    s.second = quad_sum(__fadd_rn(second[0], second[1]));
    return s;
}

/* Ids beyond the vocabulary: the copy engine wrote zeros for them. */
__device__ __forceinline__ void cut(float (&z)[128], uint32_t column, uint32_t ids)
{
#pragma unroll
    for (int i = 0; i < 128; i++)
        if (8 * (i / 4) + column + i % 2 >= ids) z[i] = -INFINITY;
}

/* The logit of each row's target, by the lane that holds it. at: of the target in the tile, beyond it where
 * it is not there. */
__device__ __forceinline__ void write_logit(float (&z)[128], uint32_t column, const uint32_t (&at)[2],
                                            const uint32_t (&row)[2], float *logit)
{
    if (!__any_sync(GR_ALL, at[0] < IDS || at[1] < IDS)) return;
#pragma unroll
    for (int i = 0; i < 128; i++)
        if (8 * (i / 4) + column + i % 2 == at[i / 2 % 2]) logit[row[i / 2 % 2]] = z[i];
}

__device__ __forceinline__ void write_logits(const args &a, const float (&z)[128], const uint32_t (&row)[2],
                                             uint32_t id)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (row[h] >= a.n) continue;
        float *to = a.logits + (size_t)row[h] * a.V;
#pragma unroll
        for (int j = 0; j < 32; j++) {
            const uint32_t at = id + 8 * j;
            const float low = z[4 * j + 2 * h], high = z[4 * j + 2 * h + 1];
            if (a.V % 2 == 0) { /* then pairs are there whole */
                if (at < a.V) __stcs((float2 *)(to + at), make_float2(low, high));
            } else {
                if (at < a.V) to[at] = low;
                if (at + 1 < a.V) to[at + 1] = high;
            }
        }
    }
}

template <bool LOGITS> __device__ void consume(const args &a, pipe &in, uint32_t pairs)
{
    const uint32_t group = threadIdx.x / GR_WARPGROUP - 1, warp = threadIdx.x % GR_WARPGROUP / GR_WARP,
                   lane = threadIdx.x % GR_WARP;
    const uint32_t column = 2 * (lane % 4), clusters = gridDim.x / GR_PIPE_CLUSTER;
    const uint32_t mine =
        gr_cluster_rank() * GR_PIPE_ROWS + group * (GR_PIPE_ROWS / GR_PIPE_CONSUMERS) + 16 * warp + lane / 4;
    const float c = __fmul_rn(a.inv_temperature, GR_LOG2_E);
    for (uint32_t t = blockIdx.x / GR_PIPE_CLUSTER; t < pairs * a.tiles; t += clusters) {
        const place p = place_of(a, pairs, t);
        const uint32_t row[2] = {p.row + mine, p.row + mine + 8}, first = p.tile * IDS;
        uint32_t at[2];
#pragma unroll
        for (int h = 0; h < 2; h++) at[h] = row[h] < a.n ? (uint32_t)a.target[row[h]] - first : IDS;
        float z[128];
        in.multiply(group, a.steps, z);
        if (LOGITS) write_logits(a, z, row, first + column);
        write_logit(z, column, at, row, a.logit);
        if (a.V - first < IDS) cut(z, column, a.V - first);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const gr_tile_sums sums = sum_up(z, h, c);
            if (lane % 4 == 0 && row[h] < a.n)
                a.part[(size_t)row[h] * a.tiles + p.tile] =
                    make_float4(sums.max, sums.sum, sums.first, sums.second);
        }
    }
}

#endif

template <bool LOGITS>
__global__ void __launch_bounds__(GR_PIPE_THREADS, 1)
    product_kernel(const args a, const __grid_constant__ CUtensorMap x,
                   const __grid_constant__ CUtensorMap lm)
{
#if GR_HOPPER
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ __align__(8) uint64_t barrier[2 * STAGES];
    pipe p;
    p.open(memory, barrier);
    const uint32_t pairs = (a.n + GR_PIPE_PAIR - 1) / GR_PIPE_PAIR;
    if (threadIdx.x < GR_WARPGROUP) {
        gr_registers_fewer<40>();
        if (threadIdx.x == 0) produce(a, p, &x, &lm, pairs);
    } else {
        gr_registers_more<232>();
        consume<LOGITS>(a, p, pairs);
    }
    gr_cluster_meet(); /* the other CTA may still arrive at barriers of this one */
#else
    (void)a, (void)x, (void)lm;
#endif
}

} // namespace

extern "C" bool gr_cu_head_fuses(const gr_bf16 *lm, uint32_t H)
{
    return gr_pipe_takes(lm, H);
}

extern "C" bool gr_cu_head_product(cudaStream_t st, const gr_cu_head_rows *r)
{
    if (!r->n) return true;
    const args a = {r->target,
                    (float4 *)r->part,
                    r->logit,
                    r->logits,
                    r->inv_temperature,
                    r->n,
                    r->V,
                    gr_ceil_div(r->H, GR_TILE_DEPTH),
                    gr_ceil_div(r->V, IDS)};
    CUtensorMap x, lm;
    return gr_tile_map(&x, r->x, r->n, r->H, GR_PIPE_ROWS) && gr_tile_map(&lm, r->lm, r->V, r->H, IDS / 2) &&
           gr_pipe_launch(st, r->logits ? product_kernel<true> : product_kernel<false>, pipe::SHARED_BYTES,
                          gr_ceil_div(r->n, GR_PIPE_PAIR) * a.tiles, a, x, lm);
}
