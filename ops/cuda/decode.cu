/* ops/cuda/decode.cu: attention of one new token a slot over the paged pool, and copies of its blocks.
 *
 * What bounds it is reading keys and values once: 2 D bf16 a key and kv head. So:
 * - Keys are cut into pieces of PIECE keys: those that a group shares from the first on, a slot's own from
 * where the shared ones end. A shared piece is read once for all query rows of the group (16 at a time), an
 * own one for the slot's heads / kv_heads rows. Rows go through mma.m16n8k16, padded to 16: even so the
 * tensor cores are busy a tenth of the time.
 * - gr_cu_decode_plan lists the pieces once a step, longest first; all layers use the list. A persistent grid
 * of one CTA a multiprocessor takes from it; every warp works alone (no barrier of a CTA) and keeps STAGES -
 * 1 blocks of 16 keys in flight with cp.async, across the ends of pieces. Eight warps of two blocks of 8 KiB
 * (D 128) are 128 KiB in flight a multiprocessor, four times what latency times bandwidth asks.
 * - A piece leaves the running maximum, the sum and the unnormalised output of its rows in fp32; the warp
 * that brings the last piece of a slot and kv head combines them, in the order of their positions. The order
 * of every sum follows from a slot's length and its shared keys alone, so the bits of a row do not depend on
 * the batch; which warp takes which piece, and which comes last, changes nothing.
 *
 * Source of the running softmax: Milakov and Gimelshein, arXiv:1805.02867; of reading a shared prefix once:
 * Juravsky et al., Hydragen, arXiv:2402.05099.
 */
#include "ops/cuda/decode_sizes.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math_constants.h>

namespace
{

constexpr uint32_t BLOCK = 16; /* keys of a block of the pool: GR_KV_BLOCK */
constexpr uint32_t PIECE = GR_CU_DECODE_PIECE;
constexpr uint32_t CLASSES = PIECE / BLOCK;
constexpr uint32_t ITEM = GR_CU_DECODE_ITEM;
constexpr uint32_t ROWS = GR_CU_DECODE_ROWS;

/* Words of an item. A query row r of it belongs to slot member[MEMBER + r / G] and head r % G of the kv
 * head's G. */
enum { MEMBER, FIRST_ROW, N_ROWS, N_KEYS, INDEX, ONCE, BLOCKS = 8 };

/* The list. n_items, taken and left stand at the start of `work`. */
struct list {
    uint32_t *n_items;
    uint32_t *taken;  /* items times kv heads that were taken beyond those that each warp begins with */
    uint32_t *left;   /* warps that have come to the end; both are 0 again after every layer */
    uint32_t *pieces; /* [n] of each slot */
    uint32_t *done;   /* [n, kv_heads] rows of pieces that are in the workspace; 0 again after every layer */
    uint32_t *group_of; /* [n] of each member */
    uint32_t *item;
};

list list_at(void *work, uint32_t n, uint32_t kv_heads)
{
    uint32_t *p = static_cast<uint32_t *>(work);
    const uint64_t slots = gr_cu_decode_align(4ull * n) / 4,
                   counts = gr_cu_decode_align(4ull * n * kv_heads) / 4;
    list l;
    l.n_items = p;
    l.taken = p + 1;
    l.left = p + 2;
    l.pieces = p + 64;
    l.group_of = l.pieces + slots;
    l.done = l.group_of + slots;
    l.item = l.done + counts;
    return l;
}

/* ---- the list -------------------------------------------------------------------------------------------
 */

struct list_args {
    const uint32_t *length, *member, *group_first, *shared, *table;
    uint32_t n, n_groups, table_stride, kv_heads, per_kv; /* per_kv: query heads of a kv head */
    list out;
};

/* One item, or only its place in the count of its class (blocks of keys). place [CLASSES]: where the next
 * item of each class goes, the class of most blocks first. */
__device__ void put(const list_args &a, uint32_t *place, bool count, uint32_t member, uint32_t table_of,
                    uint32_t first_row, uint32_t n_rows, uint32_t key, uint32_t n_keys, uint32_t index,
                    bool once)
{
    const uint32_t blocks = (n_keys + BLOCK - 1) / BLOCK;
    const uint32_t at = atomicAdd(&place[CLASSES - blocks], 1);
    if (count) return;
    uint32_t *w = a.out.item + (size_t)at * ITEM;
    w[MEMBER] = member;
    w[FIRST_ROW] = first_row;
    w[N_ROWS] = n_rows;
    w[N_KEYS] = n_keys;
    w[INDEX] = index;
    w[ONCE] = once;
    for (uint32_t b = 0; b < blocks; b++)
        w[BLOCKS + b] = a.table[(size_t)table_of * a.table_stride + key / BLOCK + b];
}

/* Pieces that a group shares, by the lanes of a warp. */
__device__ void put_shared(const list_args &a, uint32_t *place, bool count, uint32_t g)
{
    const uint32_t lane = threadIdx.x % 32, shared = a.shared[g];
    if (!shared) return;
    const uint32_t first = a.group_first[g], end = a.group_first[g + 1];
    uint32_t live = end; /* empty slots' tables are not read */
    for (uint32_t m = first; m < end && live == end; m += 32) {
        const uint32_t mask = __ballot_sync(~0u, m + lane < end && a.length[a.member[m + lane]]);
        if (mask) live = m + __ffs(mask) - 1;
    }
    if (live == end) return;
    const uint32_t rows = (end - first) * a.per_kv, chunks = (rows + ROWS - 1) / ROWS;
    const uint32_t pieces = (shared + PIECE - 1) / PIECE;
    for (uint32_t i = lane; i < pieces * chunks; i += 32) {
        const uint32_t key = i / chunks * PIECE, row = i % chunks * ROWS;
        put(a, place, count, first, a.member[live], row, min(ROWS, rows - row), key, min(PIECE, shared - key),
            i / chunks, chunks == 1);
    }
}

/* Own pieces of 32 members, by the lanes of a warp: a lane counts those of one slot, then all lanes write
 * them. */
__device__ void put_own(const list_args &a, uint32_t *place, bool count, uint32_t first, uint32_t members)
{
    const uint32_t lane = threadIdx.x % 32, chunks = (a.per_kv + ROWS - 1) / ROWS;
    uint32_t slot = 0, length = 0, shared = 0;
    if (first + lane < members) {
        slot = a.member[first + lane];
        length = a.length[slot];
        shared = a.shared[a.out.group_of[first + lane]];
    }
    const uint32_t own = length > shared ? (length - shared + PIECE - 1) / PIECE : 0,
                   before = (shared + PIECE - 1) / PIECE;
    if (!count && length) a.out.pieces[slot] = before + own;
    uint32_t sum = own * chunks; /* with those of the lanes before */
    for (uint32_t d = 1; d < 32; d *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, sum, d);
        if (lane >= d) sum += other;
    }
    const uint32_t total = __shfl_sync(~0u, sum, 31);
    for (uint32_t t = lane; t - lane < total; t += 32) {
        uint32_t j = 0; /* the lane whose slot this item is of */
        for (uint32_t d = 16; d; d /= 2)
            if (__shfl_sync(~0u, sum, j + d - 1) <= t) j += d;
        const uint32_t i = t - (__shfl_sync(~0u, sum, j) - __shfl_sync(~0u, own, j) * chunks);
        const uint32_t of = __shfl_sync(~0u, slot, j), keys = __shfl_sync(~0u, length, j);
        const uint32_t key = __shfl_sync(~0u, shared, j) + i / chunks * PIECE, row = i % chunks * ROWS;
        const uint32_t index = __shfl_sync(~0u, before, j) + i / chunks;
        if (t < total)
            put(a, place, count, first + j, of, row, min(ROWS, a.per_kv - row), key, min(PIECE, keys - key),
                index, chunks == 1);
    }
}

__device__ void put_all(const list_args &a, uint32_t *place, bool count)
{
    const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32, members = a.group_first[a.n_groups];
    for (uint32_t g = warp; g < a.n_groups; g += warps) put_shared(a, place, count, g);
    for (uint32_t m = warp * 32; m < members; m += warps * 32) put_own(a, place, count, m, members);
}

/* One CTA: count items by class, then write them. Their order within a class is the order of atomics: it
 * moves work between warps and changes no result. */
__global__ void __launch_bounds__(1024, 1) list_kernel(list_args a)
{
    __shared__ uint32_t place[CLASSES];
    if (threadIdx.x < CLASSES) place[threadIdx.x] = 0;
    if (threadIdx.x == 0) *a.out.taken = *a.out.left = 0;
    for (uint32_t i = threadIdx.x; i < a.n * a.kv_heads; i += blockDim.x) a.out.done[i] = 0;
    for (uint32_t s = threadIdx.x; s < a.n; s += blockDim.x) a.out.pieces[s] = 0; /* what stays so is empty */
    for (uint32_t g = threadIdx.x; g < a.n_groups; g += blockDim.x)
        for (uint32_t m = a.group_first[g]; m < a.group_first[g + 1]; m++) a.out.group_of[m] = g;
    __syncthreads();
    put_all(a, place, true);
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t sum = 0;
        for (uint32_t c = 0; c < CLASSES; c++) {
            const uint32_t n = place[c];
            place[c] = sum;
            sum += n;
        }
        *a.out.n_items = sum;
    }
    __syncthreads();
    put_all(a, place, false);
}

/* ---- pieces ---------------------------------------------------------------------------------------------
 */

struct args {
    const __nv_bfloat16 *kv, *qkv;
    list work;
    const uint32_t *member;
    float *acc, *stat; /* [n, heads, pieces_max, D] and [.., 2]: maximum and sum */
    __nv_bfloat16 *out;
    uint32_t n, heads, kv_heads, head_dim, width, pieces_max;
    float scale; /* log2(e) / sqrt(D) */
};

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
    static constexpr uint32_t NOTES =
        STAGES * STAGE_BYTES; /* offset of what is noted about each stage: 32 bytes */
    static constexpr uint32_t WARP_BYTES = NOTES + 256;
};

/* What is noted of a stage: the first words of its item, and this. N_KEYS 0: nothing, and nothing more comes.
 */
enum { KV_HEAD = 6, NOTE };

/* Brings blocks into the stages of a warp, item after item. */
template <int DM, bool EXACT> struct loader {
    using t = tile<DM>;
    uint32_t unit, units;  /* this item times its kv head, and all of them */
    uint32_t next, after;  /* the following unit; in lane 0, the one after it, less the warps' first two */
    uint32_t word, coming; /* of this item and of the following one: word i in lane i */
    uint32_t block, n_blocks, stage, base, fixed;
    uint64_t once, again; /* cache policies */

    __device__ __forceinline__ uint32_t read(const args &a, uint32_t u) const
    {
        const uint32_t lane = threadIdx.x % 32;
        return u < units && lane < ITEM ? __ldg(a.work.item + (size_t)(u / a.kv_heads) * ITEM + lane) : 0;
    }

    __device__ __forceinline__ uint32_t take(const args &a) const
    {
        return threadIdx.x % 32 == 0 ? atomicAdd(a.work.taken, 1) : 0;
    }

    __device__ __forceinline__ void open(const args &a, uint32_t warp, uint32_t warps, uint32_t smem)
    {
        units = *a.work.n_items * a.kv_heads;
        unit = warp;
        next = warp + warps;
        fixed = 2 * warps;
        base = smem;
        block = stage = 0;
        word = read(a, unit);
        coming = read(a, next);
        after = take(a);
        n_blocks = (__shfl_sync(~0u, word, N_KEYS) + BLOCK - 1) / BLOCK;
        asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
        asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(again));
    }

    __device__ __forceinline__ void note(const args &a) const
    {
        const uint32_t lane = threadIdx.x % 32;
        const uint32_t value = lane == KV_HEAD ? unit % a.kv_heads : word;
        if (lane < NOTE)
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(base + t::NOTES + stage * 32 + lane * 4), "r"(value)
                         : "memory");
    }

    __device__ __forceinline__ void fill(const args &a)
    {
        const uint32_t lane = threadIdx.x % 32, d = EXACT ? DM : a.head_dim;
        const uint32_t left = __shfl_sync(~0u, word, N_KEYS) - block * BLOCK; /* rows that hold keys */
        const uint64_t policy = __shfl_sync(~0u, word, ONCE) ? once : again;
        const size_t half = (size_t)a.kv_heads * BLOCK * d;
        const __nv_bfloat16 *k = a.kv + __shfl_sync(~0u, word, BLOCKS + block) * (2 * half) +
                                 (size_t)(unit % a.kv_heads) * BLOCK * d;
        const uint32_t to = base + stage * t::STAGE_BYTES;
#pragma unroll
        for (int i = 0; i < t::CHUNKS / 2; i++) {
            const uint32_t at = i * 32 + lane, row = at / t::CHUNKS, chunk = at % t::CHUNKS;
            const bool real = row < left && (EXACT || chunk * 8 < d);
            const size_t from = real ? (EXACT ? (size_t)at * 8 : (size_t)row * d + chunk * 8) : 0;
            const uint32_t place = to + row * t::ROW_BYTES + ((chunk ^ (row & 7)) << 4);
            copy_async(place, k + from, real ? 16 : 0, policy);
            copy_async(place + t::HALF_BYTES, k + half + from, real ? 16 : 0, policy);
        }
    }

    /* The next block into the next stage, as one group of copies: an empty one where no block is left. */
    __device__ __forceinline__ void advance(const args &a)
    {
        note(a);
        if (unit < units) {
            fill(a);
            if (++block == n_blocks) {
                unit = next;
                next = fixed + __shfl_sync(~0u, after, 0);
                word = coming;
                coming = read(a, next);
                after = take(a);
                block = 0;
                n_blocks = (__shfl_sync(~0u, word, N_KEYS) + BLOCK - 1) / BLOCK;
            }
        }
        commit_group();
        stage = stage + 1 == t::STAGES ? 0 : stage + 1;
    }
};

/* 16 query rows of one kv head against one block at a time. A lane holds of each row pair (lane / 4 and 8
 * more) the columns that mma gives it. */
template <int DM> struct rows {
    using t = tile<DM>;
    uint32_t q[DM / 16][4];
    float o[DM / 8][4];
    float max[2], sum[2];

    /* Slot and query head of row r of an item. */
    static __device__ __forceinline__ size_t row_of(const args &a, uint32_t member, uint32_t row,
                                                    uint32_t kv_head, uint32_t *head)
    {
        const uint32_t per_kv = a.heads / a.kv_heads;
        *head = kv_head * per_kv + row % per_kv;
        return a.member[member + row / per_kv];
    }

    __device__ __forceinline__ void open(const args &a, uint32_t member, uint32_t first, uint32_t n,
                                         uint32_t kv_head, uint32_t d)
    {
        const uint32_t lane = threadIdx.x % 32, column = lane % 4 * 2;
        const __nv_bfloat16 *from[2];
#pragma unroll
        for (int j = 0; j < 2; j++) { /* rows that are not there repeat the last one, and are not written */
            uint32_t head;
            const size_t s = row_of(a, member, first + min(lane / 4 + 8 * j, n - 1), kv_head, &head);
            from[j] = a.qkv + s * a.width + (size_t)head * d;
        }
#pragma unroll
        for (int kk = 0; kk < DM / 16; kk++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t c = kk * 16 + (i >> 1) * 8 + column;
                q[kk][i] = c < d ? *reinterpret_cast<const uint32_t *>(from[i & 1] + c) : 0;
            }
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

    /* left: keys from the start of this block on; what lies behind them counts nothing (its values are
     * zeros). */
    __device__ __forceinline__ void block(uint32_t stage, uint32_t left, float scale)
    {
        float s[2][4] = {};
        scores(s, stage);
        if (left < BLOCK) {
            const uint32_t column = threadIdx.x % 4 * 2;
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (i * 8 + column + (e & 1) >= left) s[i][e] = -CUDART_INF_F;
        }
        weigh(s, scale);
        add_values(s, stage + t::HALF_BYTES);
    }

    __device__ __forceinline__ void close(const args &a, uint32_t member, uint32_t first, uint32_t n,
                                          uint32_t kv_head, uint32_t index, uint32_t d) const
    {
        const uint32_t lane = threadIdx.x % 32, column = lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float l = sum[j] + __shfl_xor_sync(~0u, sum[j], 1);
            l += __shfl_xor_sync(~0u, l, 2);
            const uint32_t row = lane / 4 + 8 * j;
            if (row >= n) continue;
            uint32_t head;
            const size_t s = row_of(a, member, first + row, kv_head, &head);
            const size_t place = (s * a.heads + head) * a.pieces_max + index;
            if (lane % 4 == 0) *reinterpret_cast<float2 *>(a.stat + 2 * place) = make_float2(max[j], l);
#pragma unroll
            for (int i = 0; i < DM / 8; i++)
                if (i * 8 < d)
                    *reinterpret_cast<float2 *>(a.acc + place * d + i * 8 + column) =
                        make_float2(o[i][2 * j], o[i][2 * j + 1]);
        }
    }
};

/* ---- combining ------------------------------------------------------------------------------------------
 */

/* All pieces of one query head of a slot, by a warp: stat and acc as other warps left them, hence not through
 * L1. */
__device__ void combine_head(const args &a, uint32_t slot, uint32_t head, uint32_t n)
{
    const uint32_t lane = threadIdx.x % 32, d = a.head_dim;
    const size_t at = (size_t)slot * a.heads + head;
    const float2 *stat = reinterpret_cast<const float2 *>(a.stat) + at * a.pieces_max;
    const float *acc = a.acc + at * a.pieces_max * d;
    float most = -CUDART_INF_F, sum = 0;
    for (uint32_t i = lane; i < n; i += 32) most = fmaxf(most, __ldcg(stat + i).x);
    for (int i = 16; i; i /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, i));
    for (uint32_t i = lane; i < n; i += 32) {
        const float2 s = __ldcg(stat + i);
        sum = fmaf(s.y, exp2_fast(s.x - most), sum);
    }
    for (int i = 16; i; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    for (uint32_t c = lane * 4; c - lane * 4 < d; c += 128) {
        float4 o = make_float4(0, 0, 0, 0);
        for (uint32_t first = 0; first < n; first += 32) {
            const float mine = first + lane < n ? exp2_fast(__ldcg(stat + first + lane).x - most) : 0;
            const uint32_t end = min(n - first, 32u);
#pragma unroll 4
            for (uint32_t i = 0; i < end; i++) {
                const float w = __shfl_sync(~0u, mine, i);
                if (c >= d) continue;
                const float4 v = __ldcg(reinterpret_cast<const float4 *>(acc + (size_t)(first + i) * d + c));
                o.x = fmaf(v.x, w, o.x);
                o.y = fmaf(v.y, w, o.y);
                o.z = fmaf(v.z, w, o.z);
                o.w = fmaf(v.w, w, o.w);
            }
        }
        if (c < d)
            *reinterpret_cast<uint2 *>(a.out + at * d + c) =
                make_uint2(pack(o.x / sum, o.y / sum), pack(o.z / sum, o.w / sum));
    }
}

/* After a piece has been left for these rows: the slots for which it was the last are combined. */
__device__ void finish(const args &a, uint32_t member, uint32_t first, uint32_t n, uint32_t kv_head)
{
    const uint32_t lane = threadIdx.x % 32, per_kv = a.heads / a.kv_heads;
    __threadfence(); /* each lane's part, before the count says so */
    __syncwarp();
    for (uint32_t m = first / per_kv; m * per_kv < first + n; m++) {
        const uint32_t slot = a.member[member + m], pieces = a.work.pieces[slot];
        if (!pieces) continue; /* an empty slot among those that share */
        const uint32_t rows = min(first + n, (m + 1) * per_kv) - max(first, m * per_kv);
        uint32_t *done = a.work.done + (size_t)slot * a.kv_heads + kv_head;
        uint32_t before = 0;
        if (lane == 0) before = atomicAdd(done, rows);
        before = __shfl_sync(~0u, before, 0);
        if (before + rows < pieces * per_kv) continue;
        __threadfence();
        for (uint32_t h = 0; h < per_kv; h++) combine_head(a, slot, kv_head * per_kv + h, pieces);
        if (lane == 0) *done = 0;
    }
}

__device__ void clear_empty(const args &a, uint32_t warp, uint32_t warps)
{
    const uint32_t lane = threadIdx.x % 32, vectors = a.heads * a.head_dim / 8;
    for (uint32_t slot = warp; slot < a.n; slot += warps) {
        if (a.work.pieces[slot]) continue;
        uint4 *out = reinterpret_cast<uint4 *>(a.out + (size_t)slot * a.heads * a.head_dim);
        for (uint32_t i = lane; i < vectors; i += 32) out[i] = make_uint4(0, 0, 0, 0);
    }
}

/* The last warp to come here makes the counts 0 for the next layer. */
__device__ void leave(const args &a, uint32_t warps)
{
    if (threadIdx.x % 32) return;
    __threadfence(); /* what this warp took has been counted */
    if (atomicAdd(a.work.left, 1) + 1 < warps) return;
    *a.work.taken = 0;
    *a.work.left = 0;
}

/* The next block is there for all lanes, and all have left the stage that is filled next. */
template <int DM> __device__ __forceinline__ void wait_stage()
{
    wait_groups<tile<DM>::STAGES - 2>();
    __syncwarp();
}

template <int DM, bool EXACT>
__global__ void __launch_bounds__(tile<DM>::WARPS * 32, 1) piece_kernel(const args a)
{
    using t = tile<DM>;
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t d = EXACT ? DM : a.head_dim;
    const uint32_t base =
        static_cast<uint32_t>(__cvta_generic_to_shared(memory)) + threadIdx.x / 32 * t::WARP_BYTES;
    const uint32_t warps = gridDim.x * (blockDim.x / 32), warp = threadIdx.x / 32 * gridDim.x + blockIdx.x;

    loader<DM, EXACT> in;
    in.open(a, warp, warps, base);
#pragma unroll 1
    for (int i = 0; i < t::STAGES - 1; i++) in.advance(a);
    clear_empty(a, warp, warps);

    for (uint32_t stage = 0;;) {
        wait_stage<DM>();
        const uint4 *note =
            reinterpret_cast<const uint4 *>(memory + threadIdx.x / 32 * t::WARP_BYTES + t::NOTES);
        const uint4 n0 = note[2 * stage], n1 = note[2 * stage + 1];
        const uint32_t member = n0.x, row = n0.y, n_rows = n0.z, keys = n0.w, index = n1.x, kv_head = n1.z;
        if (!keys) break;
        rows<DM> r;
        r.open(a, member, row, n_rows, kv_head, d);
#pragma unroll 1
        for (uint32_t key = 0;;) {
            in.advance(a);
            r.block(base + stage * t::STAGE_BYTES, keys - key, a.scale);
            stage = stage + 1 == t::STAGES ? 0 : stage + 1;
            key += BLOCK;
            if (key >= keys) break;
            wait_stage<DM>();
        }
        r.close(a, member, row, n_rows, kv_head, index, d);
        finish(a, member, row, n_rows, kv_head);
    }
    wait_groups<0>();
    leave(a, warps);
}

/* ---- launching ------------------------------------------------------------------------------------------
 */

int attribute(cudaDeviceAttr what)
{
    int device = 0, value = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&value, what, device);
    return value;
}

template <int DM, bool EXACT> void launch_pieces(cudaStream_t st, const args &a)
{
    using t = tile<DM>;
    const uint32_t most =
        static_cast<uint32_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)) / t::WARP_BYTES;
    const uint32_t warps = most < t::WARPS ? most : t::WARPS, bytes = warps * t::WARP_BYTES;
    cudaFuncSetAttribute(piece_kernel<DM, EXACT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(bytes));
    const uint32_t sms = static_cast<uint32_t>(attribute(cudaDevAttrMultiProcessorCount));
    piece_kernel<DM, EXACT><<<sms, warps * 32, bytes, st>>>(a);
}

/* ---- copying blocks -------------------------------------------------------------------------------------
 */

__global__ void __launch_bounds__(256)
    copy_kernel(uint4 *kv, uint64_t layer, uint64_t block, const uint32_t *src, const uint32_t *dst)
{
    uint4 *part = kv + blockIdx.z * layer;
    const uint64_t from = src[blockIdx.y] * block, to = dst[blockIdx.y] * block;
    if (from == to) return;
    for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < block; i += (uint64_t)gridDim.x * blockDim.x)
        part[to + i] = part[from + i];
}

} // namespace

extern "C" void gr_cu_decode_plan(cudaStream_t st, const gr_cu_heads *h, const gr_cu_decode *d,
                                  const uint32_t *table, uint32_t table_stride, void *work)
{
    list_args a;
    a.length = d->length;
    a.member = d->member;
    a.n = d->n;
    a.group_first = d->group_first;
    a.shared = d->shared;
    a.table = table;
    a.n_groups = d->n_groups;
    a.table_stride = table_stride;
    a.kv_heads = h->kv_heads;
    a.per_kv = h->heads / h->kv_heads;
    a.out = list_at(work, d->n, h->kv_heads);
    list_kernel<<<1, 1024, 0, st>>>(a);
}

extern "C" void gr_cu_decode_attention(cudaStream_t st, const gr_cu_paged *p, const gr_cu_decode *d,
                                       const gr_bf16 *qkv, gr_bf16 *out, void *work, void *ws)
{
    if (!d->n) return;
    const gr_cu_heads *h = &p->heads;
    args a;
    a.kv = reinterpret_cast<const __nv_bfloat16 *>(p->kv);
    a.qkv = reinterpret_cast<const __nv_bfloat16 *>(qkv);
    a.work = list_at(work, d->n, h->kv_heads);
    a.member = d->member;
    a.acc = static_cast<float *>(ws);
    a.stat =
        reinterpret_cast<float *>(static_cast<char *>(ws) + gr_cu_decode_acc_bytes(h, d->n, d->max_length));
    a.out = reinterpret_cast<__nv_bfloat16 *>(out);
    a.n = d->n;
    a.heads = h->heads;
    a.kv_heads = h->kv_heads;
    a.head_dim = h->head_dim;
    a.width = (h->heads + 2 * h->kv_heads) * h->head_dim;
    a.pieces_max = gr_cu_decode_pieces(d->max_length);
    a.scale = 1.4426950408889634f / sqrtf(static_cast<float>(h->head_dim));
    if (h->head_dim == 128)
        launch_pieces<128, true>(st, a);
    else if (h->head_dim == 64)
        launch_pieces<64, true>(st, a);
    else if (h->head_dim < 64)
        launch_pieces<64, false>(st, a);
    else if (h->head_dim < 128)
        launch_pieces<128, false>(st, a);
    else
        launch_pieces<256, false>(st, a);
}

extern "C" void gr_cu_kv_copy(cudaStream_t st, gr_bf16 *kv, uint32_t layers, uint64_t layer_elems,
                              uint64_t block_elems, const uint32_t *src, const uint32_t *dst, uint32_t n)
{
    if (!n) return;
    const uint64_t vectors = block_elems / 8;
    const uint32_t parts = static_cast<uint32_t>((vectors + 1023) / 1024);
    copy_kernel<<<dim3(parts, n, layers), 256, 0, st>>>(reinterpret_cast<uint4 *>(kv), layer_elems / 8,
                                                        vectors, src, dst);
}
