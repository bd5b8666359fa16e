/* ops/cuda/head_product.cu: the head's product and its softmax in one: logits are summed up where they arise,
 * in the registers of the tensor cores' accumulators, and need not go to memory.
 *
 * One CTA a multiprocessor, two to a cluster. A cluster computes tiles of 256 rows by 256 ids, a CTA 128 of
 * the rows; the ids' half of the operands comes once for both. A producer warp keeps STAGES steps of 64
 * columns in shared memory, ahead over the ends of tiles; two warpgroups of 64 rows each multiply them, and
 * then sum up their part of a tile while the producer fills the stages for the next one.
 *
 * Every element is one chain of products over the columns in their order, and the sums of a row's tile are
 * made in one order: the bits of a row follow from that row alone, whatever else is in the batch and whether
 * logits are written too.
 *
 * Source of the fused softmax over tiles of a vocabulary: Wijmans et al., arXiv:2411.09009.
 */
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/softmax.cuh"

namespace
{

enum {
    ROWS = 128,           /* of a CTA's tile */
    IDS = GR_CU_HEAD_IDS, /* of a tile */
    DEPTH = GR_TILE_DEPTH,
    STAGES = 4,
    CLUSTER = 2,
    CONSUMERS = 2, /* warpgroups */
    THREADS = (CONSUMERS + 1) * GR_WARPGROUP,
    ROW_BYTES = DEPTH * 2,
    X_BYTES = ROWS * ROW_BYTES,
    LM_BYTES = IDS * ROW_BYTES,
    STAGE_BYTES = X_BYTES + LM_BYTES,
    SHARED_BYTES = STAGES * STAGE_BYTES + 1024, /* what alignment may take */
    BAND = 8 /* pairs of CTAs' rows whose tiles follow each other: 16 MB of x for 4,096 columns, which stay in
                the L2 cache */
};

static_assert(IDS == 256, "gr_product_256");

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
    return {(band * BAND + rest % high) * CLUSTER * ROWS, rest / high};
}

struct shared {
    uint32_t stage, full, empty; /* addresses: of stages, and of barriers, 8 bytes a stage */
};

struct turn { /* the stage that is next, and the parity of its phase */
    uint32_t stage, parity;
    __device__ __forceinline__ void next()
    {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

/* One thread. The empty barrier of a stage is arrived at by all consumers of the cluster, for its lm part is
 * in both CTAs. */
__device__ void produce(const args &a, const shared &s, const CUtensorMap *x, const CUtensorMap *lm,
                        uint32_t pairs)
{
    const uint32_t rank = gr_cluster_rank(), clusters = gridDim.x / CLUSTER;
    turn to = {0, 1};
    for (uint32_t t = blockIdx.x / CLUSTER; t < pairs * a.tiles; t += clusters) {
        const place p = place_of(a, pairs, t);
        for (uint32_t k = 0; k < a.steps; k++, to.next()) {
            const uint32_t at = s.stage + to.stage * STAGE_BYTES, full = s.full + 8 * to.stage;
            gr_barrier_wait(s.empty + 8 * to.stage, to.parity);
            gr_barrier_expect(full, STAGE_BYTES);
            gr_tile_copy(at, x, full, k * DEPTH, p.row + rank * ROWS);
            gr_tile_copy_to(3, at + X_BYTES + rank * (LM_BYTES / CLUSTER), lm, full, k * DEPTH,
                            p.tile * IDS + rank * (IDS / CLUSTER));
        }
    }
}

__device__ __forceinline__ void leave_stage(const shared &s, uint32_t stage)
{
    const uint32_t lane = threadIdx.x % GR_WARP;
    if (lane < CLUSTER) gr_barrier_arrive_at(s.empty + 8 * stage, lane);
}

/* z: the warpgroup's logits of a tile. A stage is left when the products that read it are through, one step
 * later. */
__device__ __forceinline__ void multiply(const args &a, const shared &s, uint32_t group, turn &from,
                                         float (&z)[128])
{
    uint32_t before = 0;
    for (uint32_t k = 0; k < a.steps; k++, from.next()) {
        const uint32_t at = s.stage + from.stage * STAGE_BYTES;
        gr_barrier_wait(s.full + 8 * from.stage, from.parity);
        const uint64_t x = gr_tile_operand(at + group * (X_BYTES / CONSUMERS)),
                       lm = gr_tile_operand(at + X_BYTES);
        gr_products_begin();
#pragma unroll
        for (int i = 0; i < DEPTH / 16; i++) gr_product_256(z, x + 2 * i, lm + 2 * i, k || i);
        gr_products_commit();
        gr_products_wait<1>();
        if (k) leave_stage(s, before);
        before = from.stage;
    }
    gr_products_wait<0>();
    leave_stage(s, before);
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

template <bool LOGITS> __device__ void consume(const args &a, const shared &s, uint32_t pairs)
{
    const uint32_t group = threadIdx.x / GR_WARPGROUP - 1, warp = threadIdx.x % GR_WARPGROUP / GR_WARP,
                   lane = threadIdx.x % GR_WARP;
    const uint32_t column = 2 * (lane % 4), clusters = gridDim.x / CLUSTER;
    const uint32_t mine = gr_cluster_rank() * ROWS + group * (ROWS / CONSUMERS) + 16 * warp + lane / 4;
    const float c = __fmul_rn(a.inv_temperature, GR_LOG2_E);
    turn from = {0, 0};
    for (uint32_t t = blockIdx.x / CLUSTER; t < pairs * a.tiles; t += clusters) {
        const place p = place_of(a, pairs, t);
        const uint32_t row[2] = {p.row + mine, p.row + mine + 8}, first = p.tile * IDS;
        uint32_t at[2];
#pragma unroll
        for (int h = 0; h < 2; h++) at[h] = row[h] < a.n ? (uint32_t)a.target[row[h]] - first : IDS;
        float z[128];
        multiply(a, s, group, from, z);
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
__global__ void __launch_bounds__(THREADS, 1)
    product_kernel(const args a, const __grid_constant__ CUtensorMap x,
                   const __grid_constant__ CUtensorMap lm)
{
#if GR_HOPPER
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ __align__(8) uint64_t barrier[2 * STAGES];
    const shared s = {(gr_shared(memory) + 1023) / 1024 * 1024, gr_shared(barrier),
                      gr_shared(barrier + STAGES)};
    const uint32_t pairs = (a.n + CLUSTER * ROWS - 1) / (CLUSTER * ROWS);
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < STAGES; i++) {
            gr_barrier_init(s.full + 8 * i, 1);
            gr_barrier_init(s.empty + 8 * i, CLUSTER * CONSUMERS * (GR_WARPGROUP / GR_WARP));
        }
        gr_barriers_made();
    }
    gr_cluster_meet();
    if (threadIdx.x < GR_WARPGROUP) {
        gr_registers_fewer<40>();
        if (threadIdx.x == 0) produce(a, s, &x, &lm, pairs);
        __syncwarp();
    } else {
        gr_registers_more<232>();
        consume<LOGITS>(a, s, pairs);
    }
    gr_cluster_meet(); /* the other CTA may still arrive at barriers of this one */
#else
    (void)a, (void)x, (void)lm;
#endif
}

typedef CUresult (*encode_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                    const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                    const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

encode_function find_encode()
{
    void *f = NULL;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found) !=
            cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
        return NULL;
    return (encode_function)f;
}

/* Boxes of 128 rows by DEPTH columns of a row-major [rows, columns]. */
bool encode(encode_function f, CUtensorMap *map, const gr_bf16 *p, uint64_t rows, uint64_t columns)
{
    const cuuint64_t size[] = {columns, rows}, stride[] = {columns * sizeof(*p)};
    const cuuint32_t box[] = {DEPTH, 128}, step[] = {1, 1};
    return f(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)p, size, stride, box, step,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

int attribute(cudaDeviceAttr what)
{
    int device = 0, value = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&value, what, device);
    return value;
}

} // namespace

static_assert(ROWS == 128 && IDS / CLUSTER == 128, "boxes");

extern "C" bool gr_cu_head_fuses(const gr_bf16 *lm, uint32_t H)
{
    return attribute(cudaDevAttrComputeCapabilityMajor) == 9 && H % 8 == 0 && (uintptr_t)lm % 16 == 0;
}

extern "C" bool gr_cu_head_product(cudaStream_t st, const gr_cu_head_rows *r)
{
    if (!r->n) return true;
    const args a = {r->target, (float4 *)r->part,        r->logit,
                    r->logits, r->inv_temperature,       r->n,
                    r->V,      gr_ceil_div(r->H, DEPTH), gr_ceil_div(r->V, IDS)};
    const encode_function f = find_encode();
    CUtensorMap x, lm;
    if (!f || !encode(f, &x, r->x, r->n, r->H) || !encode(f, &lm, r->lm, r->V, r->H)) return false;
    const uint32_t tiles = gr_ceil_div(r->n, CLUSTER * ROWS) * a.tiles;
    const uint32_t clusters = (uint32_t)attribute(cudaDevAttrMultiProcessorCount) / CLUSTER;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = CLUSTER;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t how = {};
    how.gridDim = dim3(CLUSTER * (tiles < clusters ? tiles : clusters));
    how.blockDim = dim3(THREADS);
    how.dynamicSmemBytes = SHARED_BYTES;
    how.stream = st;
    how.attrs = &cluster;
    how.numAttrs = 1;
    const auto kernel = r->logits ? product_kernel<true> : product_kernel<false>;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES) ==
               cudaSuccess &&
           cudaLaunchKernelEx(&how, kernel, a, x, lm) == cudaSuccess;
}
