/* ops/kernels/cuda/decode_fused.cu: of a decode step of few sequences all that stands between the product of
 * q, k and v and the product out: norms, rotation, the write of the new key and value, attention. What bounds
 * it is not bytes but how long one kernel waits for another: so it is one.
 *
 * A cluster of eight CTAs of four warps, fewer where there are more slots, has a slot's kv head. Blocks of 16
 * keys go to its warps in turn, from the last one back; every warp works alone, as in decode.cu. Old keys are
 * on their way before the kernel in front has ended (chained.cuh); the new one's place is left free for it,
 * and it gets there without a way through memory. The partial results go through distributed shared memory to
 * the CTAs that add up their columns, in the warps' order. The order of sums follows from a slot's length and
 * the number of slots. Its loops stay loops (`unroll 1`): all kernels of a layer should stay in the
 * instruction cache.
 */
#include "ops/kernels/cuda/chained.cuh"
#include "ops/kernels/cuda/decode_tiles.cuh"
#include "ops/kernels/cuda/device.cuh"
#include "ops/kernels/cuda/hopper.cuh"

namespace
{

using namespace gr_decode;

constexpr uint32_t D = 128, WARPS = 4, THREADS = WARPS * GR_WARP;
constexpr uint32_t QUERIES = 16;              /* of a kv head, at most */
constexpr uint32_t N_MOST = 16;               /* slots */
constexpr uint32_t STAGES = 2, Q_ROW = D + 8; /* rows of q are padded: no bank is met twice */
constexpr uint32_t STAGE_BYTES = tile<D>::STAGE_BYTES, WARP_BYTES = STAGES * STAGE_BYTES;

/* A cluster of so many CTAs. */
template <uint32_t CTAS> struct team {
    static constexpr uint32_t ALL_WARPS = CTAS * WARPS, COLUMNS = D / CTAS; /* that a CTA adds up */
    /* All parts of a query: columns, maximum and sum. */
    static constexpr uint32_t PART_BYTES = ALL_WARPS * (COLUMNS * sizeof(float) + sizeof(float2));
};

struct args {
    gr_cu_decode_fused p;
    uint32_t width; /* of a row of q, k and v */
    float scale;    /* of a score, times log2(e) */
    size_t half;    /* elements of a block's keys */
};

#if GR_HOPPER

/* A slot's kv head, for one warp. */
template <uint32_t CTAS> struct work : team<CTAS> {
    uint32_t slot, kv_head, rank, warp, lane, length, blocks;

    __device__ work(const args &a)
        : slot(blockIdx.z), kv_head(blockIdx.y), rank(blockIdx.x), warp(threadIdx.x / GR_WARP),
          lane(threadIdx.x % GR_WARP), length(a.p.length[slot]), blocks((length + BLOCK - 1) / BLOCK)
    {
    }

    /* How many blocks before the last one the i-th of this warp is; not below `blocks`: there is none. */
    __device__ uint32_t back(uint32_t i) const
    {
        return (i * WARPS + warp) * CTAS + rank;
    }

    __device__ void fetch(const args &a, uint32_t i, uint32_t stages, uint64_t policy) const
    {
        const uint32_t from_end = back(i);
        if (from_end < blocks) {
            const uint32_t block = blocks - 1 - from_end, keys = min(length - block * BLOCK, BLOCK);
            const uint32_t fresh = from_end ? BLOCK : keys - 1; /* its row is written by prepare */
            const uint32_t at = a.p.table[(size_t)slot * a.p.table_stride + block];
            const gr_bf16 *k = a.p.kv + at * 2 * a.half + (size_t)kv_head * BLOCK * D;
            const uint32_t to = stages + i % STAGES * STAGE_BYTES;
#pragma unroll
            for (uint32_t n = 0; n < BLOCK * D / 8 / GR_WARP; n++) {
                const uint32_t place = n * GR_WARP + lane, row = place / (D / 8), chunk = place % (D / 8);
                const uint32_t shared = to + row * D * 2 + ((chunk ^ (row & 7)) << 4),
                               bytes = row < keys ? 16 : 0;
                const size_t from = row < keys ? (size_t)place * 8 : 0;
                if (row == fresh) continue;
                copy_async(shared, k + from, bytes, policy);
                copy_async(shared + tile<D>::HALF_BYTES, k + a.half + from, bytes, policy);
            }
        }
        commit_group();
    }
};

/* One head of D by a warp, a lane's elements 2 lane, 2 lane + 1 and their partners D / 2 further on. */
struct head {
    float low[2], high[2];

    __device__ void load(const gr_bf16 *from, uint32_t lane)
    {
        const uint32_t a = *(const uint32_t *)(from + 2 * lane),
                       b = *(const uint32_t *)(from + D / 2 + 2 * lane);
        low[0] = gr_low(a), low[1] = gr_high(a);
        high[0] = gr_low(b), high[1] = gr_high(b);
    }

    __device__ void store(gr_bf16 *to, uint32_t lane) const
    {
        *(uint32_t *)(to + 2 * lane) = gr_pair(low[0], low[1]);
        *(uint32_t *)(to + D / 2 + 2 * lane) = gr_pair(high[0], high[1]);
    }

    __device__ void norm(const head &factor, float eps, float one)
    {
        const float sum =
            gr_warp_sum(low[0] * low[0] + low[1] * low[1] + high[0] * high[0] + high[1] * high[1]);
        const float inverse = rsqrtf(sum / (float)D + eps);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            low[i] *= inverse * (one + factor.low[i]);
            high[i] *= inverse * (one + factor.high[i]);
        }
    }

    __device__ void rotate(const float (&cosine)[2], const float (&sine)[2])
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float a = low[i], b = high[i];
            low[i] = fmaf(a, cosine[i], -(b * sine[i]));
            high[i] = fmaf(b, cosine[i], a * sine[i]);
        }
    }
};

/* What turns the slot's queries and its new key, found before they are there. */
struct turning {
    float cosine[2], sine[2];
    head q_norm, k_norm;

    __device__ turning(const args &a, uint32_t slot, uint32_t lane)
    {
        const gr_cu_heads &h = a.p.heads;
        const float position = (float)a.p.position[slot];
        if (a.p.q_norm) q_norm.load(a.p.q_norm, lane);
        if (a.p.k_norm) k_norm.load(a.p.k_norm, lane);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            gr_sine_cosine(position * h.frequency[2 * lane + i], &sine[i], &cosine[i]);
            if (h.factor != 0) cosine[i] *= h.factor, sine[i] *= h.factor;
        }
    }
};

/* A key or value into its row of a block in shared memory, as work::fetch lays it. */
__device__ __forceinline__ void store_shared(uint32_t half, uint32_t row, const head &x, uint32_t lane)
{
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const float *two = i ? x.high : x.low;
        const uint32_t chunk = i * (D / 16) + lane / 4;
        asm volatile(
            "st.shared.b32 [%0], %1;" ::"r"(half + row * D * 2 + ((chunk ^ (row & 7)) << 4) + lane % 4 * 4),
            "r"(gr_pair(two[0], two[1]))
            : "memory");
    }
}

/* The slot's queries of the kv head into shared memory, normed and rotated, and, by the first CTA, its new
 * key and value into the pool and into `first`, where that CTA's first warp has their block. Ends with a
 * barrier. */
template <uint32_t CTAS>
__device__ void prepare(const args &a, const work<CTAS> &w, const turning &turn, gr_bf16 *q, uint32_t first)
{
    const gr_cu_heads &h = a.p.heads;
    const uint32_t queries = h.heads / h.kv_heads, tasks = queries + (w.rank == 0 ? 2 : 0);
    const gr_bf16 *raw = a.p.qkv + (size_t)w.slot * a.width;
#pragma unroll 1
    for (uint32_t i = w.warp; i < tasks; i += WARPS) { /* queries, then the key, then the value */
        const bool query = i < queries, key = i == queries;
        const uint32_t from = query ? w.kv_head * queries + i : h.heads + (key ? 0 : h.kv_heads) + w.kv_head;
        head x;
        x.load(raw + (size_t)from * D, w.lane);
        if (query && a.p.q_norm) x.norm(turn.q_norm, h.eps, h.one);
        if (key && a.p.k_norm) x.norm(turn.k_norm, h.eps, h.one);
        if (query || key) x.rotate(turn.cosine, turn.sine);
        if (query) {
            x.store(q + i * Q_ROW, w.lane);
            continue;
        }
        const uint32_t place = a.p.slot[w.slot];
        x.store(a.p.kv + place / BLOCK * 2 * a.half + (key ? 0 : a.half) +
                    ((size_t)w.kv_head * BLOCK + place % BLOCK) * D,
                w.lane);
        store_shared(first + (key ? 0 : tile<D>::HALF_BYTES), (w.length - 1) % BLOCK, x, w.lane);
    }
    __syncthreads();
}

template <int T>
__device__ void read_queries(attending<D, T> &r, const gr_bf16 *q, uint32_t queries, uint32_t lane)
{
#pragma unroll
    for (int n = 0; n < T; n++)
#pragma unroll
        for (int kk = 0; kk < (int)D / 16; kk++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t row = n * 8 + lane / 4, column = kk * 16 + i * 8 + lane % 4 * 2;
                r.q[n][kk][i] = row < queries ? *(const uint32_t *)(q + row * Q_ROW + column) : 0;
            }
}

template <int T>
__device__ void attend_block(attending<D, T> &r, uint32_t stage, uint32_t keys, uint32_t lane, float scale)
{
    float s[T][4] = {};
    r.scores(s, stage);
    if (keys < BLOCK) {
#pragma unroll
        for (int n = 0; n < T; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (lane / 4 + 8 * (e / 2) >= keys) s[n][e] = -CUDART_INF_F;
    }
    r.weigh(s, scale);
    r.add_values(s, stage + tile<D>::HALF_BYTES);
}

/* Where shared memory of another CTA of the cluster is. */
__device__ __forceinline__ uint32_t of_rank(uint32_t shared, uint32_t rank)
{
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
    return there;
}

__device__ __forceinline__ void give(uint32_t to, float x)
{
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}

__device__ __forceinline__ void give(uint32_t to, float first, float second)
{
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(first), "f"(second) : "memory");
}

/* A warp's part of the result to the CTAs that add up its columns: [ALL_WARPS, queries, COLUMNS], and its
 * maxima and sums, [ALL_WARPS, queries], to all. */
template <uint32_t CTAS, int T>
__device__ void leave(const attending<D, T> &r, const work<CTAS> &w, uint32_t queries, uint32_t acc,
                      uint32_t stat)
{
    constexpr uint32_t COLUMNS = team<CTAS>::COLUMNS;
    const uint32_t number = (w.rank * WARPS + w.warp) * queries, q = w.lane / 4;
#pragma unroll
    for (int n = 0; n < T; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const float sum = r.whole_sum(n, c);
            const uint32_t row = n * 8 + w.lane % 4 * 2 + c;
            if (row >= queries) continue;
            for (uint32_t rank = q; rank < CTAS; rank += 8)
                give(of_rank(stat, rank) + (number + row) * sizeof(float2), r.max[n][c], sum);
#pragma unroll
            for (int i = 0; i < (int)D / 8; i++)
                give(of_rank(acc, i * 8 / COLUMNS) +
                         ((number + row) * COLUMNS + i * 8 % COLUMNS + q) * sizeof(float),
                     r.o[n][i / 2][i % 2 * 2 + c]);
        }
}

/* This CTA's columns of all queries, of all warps' parts. */
template <uint32_t CTAS>
__device__ void combine(const args &a, const work<CTAS> &w, uint32_t queries, const float *acc,
                        const float2 *stat)
{
    constexpr uint32_t COLUMNS = team<CTAS>::COLUMNS, ALL_WARPS = team<CTAS>::ALL_WARPS;
    const uint32_t column = threadIdx.x % COLUMNS;
    for (uint32_t row = threadIdx.x / COLUMNS; row < queries; row += THREADS / COLUMNS) {
        float most = -CUDART_INF_F, sum = 0, o = 0;
#pragma unroll 8
        for (uint32_t i = 0; i < ALL_WARPS; i++) most = fmaxf(most, stat[i * queries + row].x);
#pragma unroll 8
        for (uint32_t i = 0; i < ALL_WARPS; i++) {
            const float2 s = stat[i * queries + row];
            const float weight = exp2_fast(s.x - most);
            sum = fmaf(s.y, weight, sum);
            o = fmaf(acc[(i * queries + row) * COLUMNS + column], weight, o);
        }
        a.p.out[((size_t)w.slot * a.p.heads.heads + w.kv_head * queries + row) * D + w.rank * COLUMNS +
                column] = gr_round(o / sum);
    }
}

template <uint32_t CTAS> __device__ void make_zero(const args &a, const work<CTAS> &w, uint32_t queries)
{
    gr_bf16 *out = a.p.out + ((size_t)w.slot * a.p.heads.heads + w.kv_head * queries) * D;
    for (uint32_t i = w.rank * THREADS + threadIdx.x; i < queries * D; i += CTAS * THREADS) out[i] = 0;
}

#endif

/* T: queries of a kv head over 8, upwards. */
template <uint32_t CTAS, int T> __global__ void __launch_bounds__(THREADS, 4) fused_kernel(const args a)
{
#if GR_HOPPER
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ __align__(16) gr_bf16 q[QUERIES * Q_ROW];
    const work<CTAS> w(a);
    const uint32_t queries = a.p.heads.heads / a.p.heads.kv_heads;
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(memory), stages = base + w.warp * WARP_BYTES;
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    float *acc = (float *)(memory + WARPS * WARP_BYTES);
    float2 *stat = (float2 *)(acc + team<CTAS>::ALL_WARPS * queries * team<CTAS>::COLUMNS);
    gr_chain_release();
    if (!w.length) { /* of the whole cluster */
        gr_chain_wait();
        make_zero(a, w, queries);
        return;
    }
    gr_cluster_arrive();
#pragma unroll 1
    for (uint32_t i = 0; i < STAGES; i++) w.fetch(a, i, stages, policy);
    const turning turn(a, w.slot, w.lane);
    gr_chain_wait();
    prepare(a, w, turn, q, base);
    attending<D, T> r;
    r.clear();
    read_queries(r, q, queries, w.lane);
#pragma unroll 1
    for (uint32_t i = 0; w.back(i) < w.blocks; i++) {
        const uint32_t block = w.blocks - 1 - w.back(i);
        wait_groups<STAGES - 1>();
        __syncwarp();
        attend_block(r, stages + i % STAGES * STAGE_BYTES, w.length - block * BLOCK, w.lane, a.scale);
        __syncwarp(); /* all have left the stage that is filled now */
        w.fetch(a, i + STAGES, stages, policy);
    }
    wait_groups<0>();
    gr_cluster_wait(); /* all are there, so that they can be given */
    leave(r, w, queries, gr_shared(acc), gr_shared(stat));
    gr_cluster_meet();
    combine(a, w, queries, acc, stat);
#else
    (void)a;
#endif
}

template <uint32_t CTAS, int T> void launch_as(cudaStream_t st, const args &a)
{
    const gr_cu_heads &h = a.p.heads;
    const uint32_t shared = WARPS * WARP_BYTES + h.heads / h.kv_heads * team<CTAS>::PART_BYTES;
    cudaFuncSetAttribute(fused_kernel<CTAS, T>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    gr_chain_clusters(st, fused_kernel<CTAS, T>, CTAS, dim3(CTAS, h.kv_heads, a.p.n), dim3(THREADS), shared,
                      a);
}

template <uint32_t CTAS> void launch(cudaStream_t st, const args &a)
{
    if (a.p.heads.heads / a.p.heads.kv_heads > 8)
        launch_as<CTAS, 2>(st, a);
    else
        launch_as<CTAS, 1>(st, a);
}

} // namespace

extern "C" bool gr_cu_decode_fuses(const gr_cu_heads *h, const gr_scores *s, uint32_t n)
{
    return n && n <= N_MOST && h->head_dim == D && !h->kv_fp8 && !h->value_norm &&
           h->heads / h->kv_heads <= QUERIES && !s->window && !s->softcap && !s->sinks &&
           (!h->rotated || h->rotated == D) && gr_chain_there();
}

extern "C" void gr_cu_decode_fused_run(cudaStream_t st, const gr_cu_decode_fused *p, float scale)
{
    const gr_cu_heads *h = &p->heads;
    args a = {};
    a.p = *p;
    a.width = (h->heads + 2 * h->kv_heads) * D;
    if (h->raw_ld) a.width = h->raw_ld;
    a.scale = scale * 1.4426950408889634f;
    a.half = (size_t)BLOCK * h->kv_heads * D;
    if (p->n <= 4)
        launch<8>(st, a);
    else if (p->n <= 8)
        launch<4>(st, a);
    else
        launch<2>(st, a);
}
