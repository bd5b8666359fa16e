/* ops/kernels/cuda/decode.cu: attention of one new token a slot over the paged pool, and copies of its
 * blocks.
 *
 * What bounds it is reading keys and values once: 2 D bf16 a key and kv head, or 2 D bytes and two scales.
 * So:
 * - Keys are cut into pieces of PIECE keys, those that a group shares and a slot's own ones apart. A piece of
 * shared keys is read once for up to 16 query rows of the group, of keys in FP8 for up to 8; one of a slot's
 * own keys for the slot's heads / kv_heads rows. Query rows are the columns of mma.m16n8k16
 * (decode_tiles.cuh): 8 are one tile, 9 to 16 two.
 * - gr_cu_decode_plan lists the pieces once a step, longest first; all layers use the list. A persistent grid
 * of one CTA a multiprocessor walks it; every warp works alone (no barrier of a CTA), taking each W-th piece
 * of the list, and keeps STAGES - 1 blocks of 16 keys in flight with cp.async, across the ends of pieces.
 * Eight warps of two blocks of 8 KiB (D 128) are 128 KiB in flight a multiprocessor, four times what latency
 * times bandwidth asks. In FP8 it is sixteen warps of two blocks of 4 KiB: widening is work, which more warps
 * hide, and they have registers for 8 query rows each.
 * - A piece leaves the running maximum, the sum and the unnormalised output of its rows in fp32; a second
 * kernel combines a slot's pieces in the order of their positions. The order of every sum follows from a
 * slot's length and its shared keys alone, so the bits of a row do not depend on the batch, and which warp
 * takes which piece changes nothing.
 * - Slots that are rows of one (drafted tokens and the one before them) have a piece of their own keys read
 * once for all of them, too; each sees the keys up to its own.
 *
 * Source of the running softmax: Milakov and Gimelshein, arXiv:1805.02867; of reading a shared prefix once:
 * Juravsky et al., Hydragen, arXiv:2402.05099.
 */
#include "ops/kernels/cuda/chained.cuh"
#include "ops/kernels/cuda/decode_fp8.cuh"
#include "ops/kernels/cuda/decode_sizes.h"
#include "ops/kernels/cuda/decode_tiles.cuh"

#include <type_traits>

namespace
{

using namespace gr_decode;

constexpr uint32_t PIECE = GR_CU_DECODE_PIECE;
constexpr uint32_t CLASSES = PIECE / BLOCK;
constexpr uint32_t ITEM = GR_CU_DECODE_ITEM;

/* Words of an item. A query row r of it belongs to slot member[MEMBER + r / G] and head r % G of the kv
 * head's G. Of its N_KEYS keys, from position KEY on, the first HIDDEN, fewer than a block, lie before the
 * window. */
enum { MEMBER, FIRST_ROW, N_ROWS, N_KEYS, INDEX, ONCE, HIDDEN, KEY, BLOCKS };
static_assert(BLOCKS + PIECE / BLOCK <= ITEM && ITEM <= 32, "an item is what the lanes of a warp have");

/* The list, at the start of `work`: how many items; pieces of each slot [n]; the items. */
struct list {
    uint32_t *n_items, *pieces, *item;
};

uint32_t ceil_div(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

list list_at(void *work, uint32_t n)
{
    char *p = static_cast<char *>(work);
    list l;
    l.n_items = reinterpret_cast<uint32_t *>(p);
    l.pieces = reinterpret_cast<uint32_t *>(p + 256);
    l.item = reinterpret_cast<uint32_t *>(p + 256 + gr_cu_decode_align(4ull * n));
    return l;
}

/* ---- the list -------------------------------------------------------------------------------------------
 */

struct list_args {
    const uint32_t *length, *member, *group_first, *shared, *table;
    uint32_t n, n_groups, table_stride, per_kv; /* query heads of a kv head */
    uint32_t rows;                              /* that read a piece together, at most */
    uint32_t window, each;
    list out;
};

/* One item, or only its place in the count of its class (blocks of keys). place [CLASSES]: where the next
 * item of each class goes, the class of most blocks first. */
__device__ void put(const list_args &a, uint32_t *place, bool count, uint32_t member, uint32_t table_of,
                    uint32_t first_row, uint32_t n_rows, uint32_t key, uint32_t n_keys, uint32_t index,
                    bool once, uint32_t hidden)
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
    w[HIDDEN] = hidden;
    w[KEY] = key;
    for (uint32_t b = 0; b < blocks; b++)
        w[BLOCKS + b] = a.table[(size_t)table_of * a.table_stride + key / BLOCK + b];
}

/* The items of the own keys of slots that are rows of one, member m and the following ones, by four lanes.
 * Those that are empty are the last of them. */
__device__ void put_rows(const list_args &a, uint32_t *place, bool count, uint32_t m, uint32_t each,
                         uint32_t shared, uint32_t shared_pieces)
{
    const uint32_t lane = threadIdx.x % 4;
    uint32_t rows = 0, length = 0; /* of the last one */
    for (uint32_t next; rows < each && (next = a.length[a.member[m + rows]]); rows++) length = next;
    const uint32_t before = a.window && length > a.window ? length - a.window : 0; /* the window */
    const uint32_t from = shared + before / BLOCK * BLOCK;
    const uint32_t own = length > from ? (length - from + PIECE - 1) / PIECE : 0;
    const uint32_t chunks = (rows * a.per_kv + a.rows - 1) / a.rows;
    for (uint32_t r = lane; !count && r < rows; r += 4) {
        const uint32_t seen = a.length[a.member[m + r]];
        a.out.pieces[a.member[m + r]] = shared_pieces + (seen > from ? (seen - from + PIECE - 1) / PIECE : 0);
    }
    for (uint32_t i = lane; i < own * chunks; i += 4) {
        const uint32_t key = from + i / chunks * PIECE, row = i % chunks * a.rows;
        put(a, place, count, m, a.member[m], row, min(a.rows, rows * a.per_kv - row), key,
            min(PIECE, length - key), shared_pieces + i / chunks, chunks == 1,
            i < chunks ? before % BLOCK : 0);
    }
}

/* All items of one group, by the lanes of a warp. */
__device__ void put_group(const list_args &a, uint32_t *place, bool count, uint32_t g)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t first = a.group_first[g], end = a.group_first[g + 1], shared = a.window ? 0 : a.shared[g];
    const uint32_t shared_pieces = (shared + PIECE - 1) / PIECE;
    uint32_t live = end; /* the first that is not empty: empty slots' tables are not read */
    for (uint32_t m = first; m < end && live == end; m += 32) {
        const bool full = m + lane < end && a.length[a.member[m + lane]];
        const uint32_t lanes = __ballot_sync(~0u, full);
        if (lanes) live = m + __ffs(static_cast<int>(lanes)) - 1;
    }
    if (live < end) {
        const uint32_t rows = (end - first) * a.per_kv, chunks = (rows + a.rows - 1) / a.rows;
        for (uint32_t i = lane; i < shared_pieces * chunks; i += 32) {
            const uint32_t key = i / chunks * PIECE, row = i % chunks * a.rows;
            put(a, place, count, first, a.member[live], row, min(a.rows, rows - row), key,
                min(PIECE, shared - key), i / chunks, chunks == 1, 0);
        }
    }
    const uint32_t each = a.window ? 1 : a.each; /* windows begin in other blocks */
    for (uint32_t m = first + lane / 4 * each; m < end; m += 8 * each)
        put_rows(a, place, count, m, each, shared, shared_pieces);
}

/* One CTA: count items by class, then write them. Their order within a class is the order of atomics: it
 * moves work between warps and changes no result. */
__global__ void __launch_bounds__(1024, 1) list_kernel(list_args a)
{
    __shared__ uint32_t place[CLASSES];
    gr_chain_release();
    gr_chain_wait();
    const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (threadIdx.x < CLASSES) place[threadIdx.x] = 0;
    for (uint32_t s = threadIdx.x; s < a.n; s += blockDim.x) a.out.pieces[s] = 0; /* of slots in no group */
    __syncthreads();
    for (uint32_t g = warp; g < a.n_groups; g += warps) put_group(a, place, true, g);
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
    for (uint32_t g = warp; g < a.n_groups; g += warps) put_group(a, place, false, g);
}

/* ---- pieces ---------------------------------------------------------------------------------------------
 */

struct args {
    const char *kv;
    const __nv_bfloat16 *qkv;
    const uint32_t *n_items, *pieces, *item, *member, *length;
    uint64_t kv_half, kv_block; /* bytes of a block's keys, and of a block */
    float *acc, *stat;          /* [n, heads, pieces_max, D] and [.., 2]: maximum and sum */
    __nv_bfloat16 *out;
    uint32_t n, heads, kv_heads, per_kv, head_dim, width, pieces_max;
    float scale;                /* of a score, times log2(e); where capped, log2(e) */
    float softcap, in_cap;      /* 2 log2(e) scale / softcap */
    const __nv_bfloat16 *sinks; /* [heads] or NULL */
    gr_cu_fp8_to to;            /* where the first of the rows go, and not to out */
};

template <int DM, bool FP8> using tile_of = std::conditional_t<FP8, tile_fp8<DM>, tile<DM>>;

/* A warp's way through its units, each an item times a kv head: word i of this one's item and of the
 * following one's in lane i. Warps take units of the list in turn, in every other round from the last warp
 * back: so none has the longest one of each round. */
struct walk {
    uint32_t round, item, head, n_items, word, next;

    __device__ __forceinline__ uint32_t read(const args &a, uint32_t i) const
    {
        const uint32_t lane = threadIdx.x % 32;
        return i < n_items && lane < ITEM ? __ldg(a.item + (size_t)i * ITEM + lane) : 0;
    }

    static __device__ __forceinline__ uint32_t unit(uint32_t round)
    {
        const uint32_t warps = gridDim.x * (blockDim.x / 32),
                       mine = threadIdx.x / 32 * gridDim.x + blockIdx.x;
        return round * warps + (round % 2 ? warps - 1 - mine : mine);
    }

    __device__ __forceinline__ void look(const args &a)
    {
        item = unit(round) / a.kv_heads;
        head = unit(round) % a.kv_heads;
        next = read(a, unit(round + 1) / a.kv_heads);
    }

    __device__ __forceinline__ void open(const args &a)
    {
        round = 0;
        n_items = *a.n_items;
        word = read(a, unit(0) / a.kv_heads);
        look(a);
    }

    __device__ __forceinline__ bool more() const
    {
        return item < n_items;
    }

    __device__ __forceinline__ void advance(const args &a)
    {
        round++;
        word = next;
        look(a);
    }

    __device__ __forceinline__ uint32_t get(uint32_t i) const
    {
        return __shfl_sync(~0u, word, i);
    }
};

/* Brings blocks into the stages of a warp, item after item. */
template <int DM, bool EXACT, bool FP8> struct loader {
    using t = tile_of<DM, FP8>;
    static constexpr uint32_t SIZE = FP8 ? 1 : 2, EACH = 16 / SIZE; /* of a value; values of a chunk */
    static constexpr uint32_t AT_ONCE = 32 / t::CHUNKS;             /* rows by one copy of each lane */
    walk at;
    uint32_t block, n_keys, stage, base;
    uint64_t once, again, policy; /* of the cache */

    __device__ __forceinline__ void look()
    {
        block = 0;
        n_keys = at.get(N_KEYS);
        policy = at.get(ONCE) ? once : again;
    }

    __device__ __forceinline__ void open(const args &a, const walk &from, uint32_t smem)
    {
        at = from;
        base = smem;
        stage = 0;
        asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
        asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(again));
        look();
    }

    /* Rows of keys, or of values, of which the first `left` are there; FULL: all, as long as they are laid
     * out. */
    template <bool FULL>
    __device__ __forceinline__ void copy(const char *from, uint32_t to, uint32_t left, uint32_t d)
    {
        const uint32_t lane = threadIdx.x % 32, chunk = lane % t::CHUNKS, first = lane / t::CHUNKS;
        const uint32_t mine = first * t::ROW_BYTES + ((chunk ^ flip(first)) << 4);
        const char *own = from + (FULL ? lane * 16 : 0);
#pragma unroll
        for (uint32_t i = 0; i < BLOCK; i += AT_ONCE) { /* flips of i and of first have no bit in common */
            const uint32_t place = to + i * t::ROW_BYTES + (mine ^ flip(i) << 4);
            const bool real = FULL || (i + first < left && chunk * EACH < d);
            const uint32_t at = FULL ? i * t::ROW_BYTES : real ? ((i + first) * d / EACH + chunk) * 16 : 0;
            copy_async(place, own + at, real ? 16 : 0, policy);
        }
    }

    __device__ __forceinline__ void fill(const args &a)
    {
        const uint32_t lane = threadIdx.x % 32, d = EXACT ? DM : a.head_dim;
        const uint32_t left = n_keys - block * BLOCK, to = base + stage * t::STAGE_BYTES;
        const char *from = a.kv + at.get(BLOCKS + block) * a.kv_block;
        const char *keys = from + at.head * (BLOCK * d * SIZE), *values = keys + a.kv_half;
        if (EXACT && left >= BLOCK) {
            copy<true>(keys, to, left, d);
            copy<true>(values, to + t::HALF_BYTES, left, d);
        } else {
            copy<false>(keys, to, left, d);
            copy<false>(values, to + t::HALF_BYTES, left, d);
        }
        if (FP8 && lane < 2 * BLOCK / 4) /* scales */
            copy_async(to + 2 * t::HALF_BYTES + lane * 16,
                       from + 2 * a.kv_half + at.head * (2 * BLOCK * 4) + lane * 16, 16, policy);
    }

    static __device__ __forceinline__ uint32_t flip(uint32_t row)
    {
        if constexpr (FP8)
            return t::flip(row);
        else
            return row & 7;
    }

    /* The next block into the next stage, as one group of copies: an empty one where no block is left. */
    __device__ __forceinline__ void advance(const args &a)
    {
        if (at.more()) {
            fill(a);
            if (++block * BLOCK >= n_keys) {
                at.advance(a);
                look();
            }
        }
        commit_group();
        stage = stage + 1 == t::STAGES ? 0 : stage + 1;
    }
};

template <int DM, int T> struct attending_bf16 : attending<DM, T> {
    using attending<DM, T>::q;
    using attending<DM, T>::o;

    /* row [T]: where rows lane / 4 begin. */
    __device__ __forceinline__ void load_queries(const __nv_bfloat16 *const (&row)[T], uint32_t d)
    {
#pragma unroll
        for (int n = 0; n < T; n++)
#pragma unroll
            for (int kk = 0; kk < DM / 16; kk++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint32_t c = kk * 16 + i * 8 + threadIdx.x % 4 * 2;
                    q[n][kk][i] = c < d ? *reinterpret_cast<const uint32_t *>(row[n] + c) : 0;
                }
    }

    /* Row lane % 4 * 2 + c of the n-th 8, unnormalised, to d floats. */
    __device__ __forceinline__ void store(float *to, int n, int c, uint32_t d) const
    {
#pragma unroll
        for (int i = 0; i < DM / 8; i++)
            if (i * 8 < d) to[i * 8 + threadIdx.x % 32 / 4] = o[n][i / 2][i % 2 * 2 + c];
    }
};

template <int DM, bool FP8, int T>
using attending_of = std::conditional_t<FP8, attending_fp8<DM, T>, attending_bf16<DM, T>>;

/* The query rows of an item, 8 T at most. */
template <int DM, bool FP8, int T> struct rows : attending_of<DM, FP8, T> {
    using t = tile_of<DM, FP8>;
    using base = attending_of<DM, FP8, T>;
    using base::max;
    uint32_t n;
    uint32_t slot[T], row[T]; /* of rows lane / 4: slot, and row of out */
    uint32_t left[T][2];      /* keys of the item that a row sees, or has still to see */

    __device__ __forceinline__ void open(const args &a, const walk &at, uint32_t d)
    {
        const uint32_t member = at.get(MEMBER), first = at.get(FIRST_ROW);
        const __nv_bfloat16 *from[T];
        n = at.get(N_ROWS);
#pragma unroll
        for (int i = 0; i < T; i++) { /* rows that are not there repeat the last one, and are not written */
            const uint32_t r = first + min(i * 8 + threadIdx.x % 32 / 4, n - 1), before = r / a.per_kv,
                           head = at.head * a.per_kv + (r - before * a.per_kv);
            slot[i] = a.member[member + before];
            row[i] = slot[i] * a.heads + head;
            from[i] = a.qkv + (size_t)slot[i] * a.width + head * d;
        }
        this->clear();
        this->load_queries(from, d);
    }

    /* Of x, which lanes have of rows lane / 4, that of row lane % 4 * 2 + c. */
    static __device__ __forceinline__ uint32_t of_mine(uint32_t x, int c)
    {
        return __shfl_sync(~0u, x, (threadIdx.x % 4 * 2 + c) * 4);
    }

    /* softcap tanh(score / softcap), as 1 - 2 / (exp(2 x) + 1). */
    static __device__ __forceinline__ void cap(const args &a, float (&s)[T][4])
    {
#pragma unroll
        for (int i = 0; i < T; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[i][e] = a.softcap * fmaf(-2, __frcp_rn(exp2_fast(s[i][e] * a.in_cap) + 1), 1);
    }

    /* Where slots are rows of one, each sees the keys up to its own: of an item's that begin at `key`. */
    __device__ __forceinline__ void look(const args &a, uint32_t key)
    {
#pragma unroll
        for (int i = 0; i < T; i++) {
            const uint32_t length = a.length[slot[i]], sees = length > key ? length - key : 0;
#pragma unroll
            for (int c = 0; c < 2; c++) left[i][c] = of_mine(sees, c);
        }
    }

    /* all: keys from the start of this block on; what lies behind them counts nothing (its values are
     * zeros). MORE: nor do the first `hidden`, nor those that a row does not see, and scores may be capped. A
     * row that sees none of an item's keys has no number, and is not read. */
    template <bool MORE>
    __device__ __forceinline__ void block(const args &a, uint32_t stage, uint32_t all, uint32_t hidden)
    {
        float s[T][4] = {};
        this->scores(s, stage);
        if (MORE && a.softcap) cap(a, s);
        if (MORE || all < BLOCK)
#pragma unroll
            for (int i = 0; i < T; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const uint32_t key = threadIdx.x % 32 / 4 + e / 2 * 8;
                    if (key >= all || (MORE && (key < hidden || key >= left[i][e % 2])))
                        s[i][e] = -CUDART_INF_F;
                }
        if (MORE)
#pragma unroll
            for (int i = 0; i < T; i++)
#pragma unroll
                for (int c = 0; c < 2; c++) left[i][c] -= min(left[i][c], BLOCK);
        this->weigh(s, a.scale);
        if constexpr (FP8) this->scale_weights(s, stage, all);
        this->add_values(s, stage + t::HALF_BYTES);
    }

    __device__ __forceinline__ void close(const args &a, uint32_t index, uint32_t d) const
    {
#pragma unroll
        for (int i = 0; i < T; i++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const float l = this->whole_sum(i, c);
                const size_t place = (size_t)of_mine(row[i], c) * a.pieces_max + index;
                if (i * 8 + threadIdx.x % 4 * 2 + c >= n) continue;
                if (threadIdx.x % 32 < 4)
                    *reinterpret_cast<float2 *>(a.stat + 2 * place) = make_float2(max[i][c], l);
                this->store(a.acc + place * d, i, c, d);
            }
    }
};

/* A unit, whose blocks are the next that the loader brings. */
template <int T, bool MORE, int DM, bool EXACT, bool FP8>
__device__ __forceinline__ void attend(const args &a, const walk &at, loader<DM, EXACT, FP8> &in,
                                       uint32_t *stage)
{
    using t = tile_of<DM, FP8>;
    const uint32_t d = EXACT ? DM : a.head_dim, keys = at.get(N_KEYS), hidden = MORE ? at.get(HIDDEN) : 0;
    rows<DM, FP8, T> r;
    r.open(a, at, d);
    if (MORE) r.look(a, at.get(KEY));
#pragma unroll 1
    for (uint32_t key = 0; key < keys; key += BLOCK) {
        wait_groups<t::STAGES - 2>();
        __syncwarp(); /* this block is there for all lanes, and all have left the stage that is filled now */
        in.advance(a);
        r.template block<MORE>(a, in.base + *stage * t::STAGE_BYTES, keys - key, key ? 0 : hidden);
        *stage = *stage + 1 == t::STAGES ? 0 : *stage + 1;
    }
    r.close(a, at.get(INDEX), d);
}

template <int DM, bool EXACT, bool MORE, bool FP8>
__global__ void __launch_bounds__(tile_of<DM, FP8>::WARPS * 32, 1) piece_kernel(const args a)
{
    using t = tile_of<DM, FP8>;
    extern __shared__ __align__(1024) unsigned char memory[];
    gr_chain_release();
    gr_chain_wait();
    const uint32_t base =
        static_cast<uint32_t>(__cvta_generic_to_shared(memory)) + threadIdx.x / 32 * t::WARP_BYTES;
    walk at;
    at.open(a);
    if (!at.more()) return;
    loader<DM, EXACT, FP8> in;
    in.open(a, at, base);
    uint32_t stage = 0;
#pragma unroll 1
    for (int i = 0; i < t::STAGES - 1; i++) in.advance(a);
    for (; at.more(); at.advance(a))
        if (FP8 || at.get(N_ROWS) <= 8)
            attend<1, MORE>(a, at, in, &stage);
        else
            attend<2, MORE>(a, at, in, &stage);
    wait_groups<0>();
}

/* ---- combining ------------------------------------------------------------------------------------------
 */

/* Four columns of one slot and query head by a thread. What each piece left is on its way before the first
 * is used, PARTS pieces at once. Where rows go to FP8, heads are blocks of 128 columns and a warp has one of
 * them: it leaves as a whole or not at all. */
__global__ void __launch_bounds__(256) combine_kernel(const args a)
{
    constexpr uint32_t PARTS = 4;
    const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x, fours = a.head_dim / 4;
    const uint32_t at = thread / fours, column = thread % fours * 4;
    gr_chain_release();
    gr_chain_wait();
    if (at >= a.n * a.heads) return;
    const uint32_t n = a.pieces[at / a.heads];
    const float2 *stat = reinterpret_cast<const float2 *>(a.stat) + (size_t)at * a.pieces_max;
    const float *acc = a.acc + (size_t)at * a.pieces_max * a.head_dim + column;
    float most = -CUDART_INF_F, sum = 0;
    float4 o = make_float4(0, 0, 0, 0);
    for (uint32_t first = 0; first < n; first += PARTS) {
        float2 s[PARTS];
        float4 v[PARTS];
#pragma unroll
        for (uint32_t i = 0; i < PARTS; i++) {
            const bool there = first + i < n;
            s[i] = there ? __ldcg(stat + first + i) : make_float2(-CUDART_INF_F, 0);
            v[i] = there ? __ldcs(reinterpret_cast<const float4 *>(acc + (size_t)(first + i) * a.head_dim))
                         : make_float4(0, 0, 0, 0);
        }
        float now = most;
#pragma unroll
        for (uint32_t i = 0; i < PARTS; i++) now = fmaxf(now, s[i].x);
        const float keep = exp2_fast(most - now);
        most = now;
        sum *= keep;
        o = make_float4(o.x * keep, o.y * keep, o.z * keep, o.w * keep);
#pragma unroll
        for (uint32_t i = 0; i < PARTS; i++) {
            const float w = exp2_fast(s[i].x - now);
            sum = fmaf(s[i].y, w, sum);
            o.x = fmaf(v[i].x, w, o.x);
            o.y = fmaf(v[i].y, w, o.y);
            o.z = fmaf(v[i].z, w, o.z);
            o.w = fmaf(v[i].w, w, o.w);
        }
    }
    float share = n ? 1 / sum : 0;
    if (a.sinks && n) {
        const float sink = __bfloat162float(a.sinks[at % a.heads]) * 1.4426950408889634f,
                    top = fmaxf(most, sink);
        const float own = exp2_fast(most - top);
        share = own / fmaf(sum, own, exp2_fast(sink - top));
    }
    const uint2 four = make_uint2(pack(o.x * share, o.y * share), pack(o.z * share, o.w * share));
    const uint32_t row = at / a.heads;
    if (a.to.n) gr_fp8_put(a.to, row, at % a.heads * a.head_dim + column, a.heads * a.head_dim, four);
    if (row >= a.to.n) *reinterpret_cast<uint2 *>(a.out + (size_t)at * a.head_dim + column) = four;
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

template <int DM, bool EXACT, bool MORE, bool FP8> void launch_pieces_as(cudaStream_t st, const args &a)
{
    using t = tile_of<DM, FP8>;
    const uint32_t most =
        static_cast<uint32_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)) / t::WARP_BYTES;
    const uint32_t warps = most < t::WARPS ? most : t::WARPS, bytes = warps * t::WARP_BYTES;
    cudaFuncSetAttribute(piece_kernel<DM, EXACT, MORE, FP8>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(bytes));
    const uint32_t sms = static_cast<uint32_t>(attribute(cudaDevAttrMultiProcessorCount));
    gr_chain(st, piece_kernel<DM, EXACT, MORE, FP8>, dim3(sms), dim3(warps * 32), bytes, a);
}

template <int DM, bool EXACT> void launch_pieces(cudaStream_t st, const args &a, bool more, bool fp8)
{
    if (fp8)
        more ? launch_pieces_as<DM, EXACT, true, true>(st, a)
             : launch_pieces_as<DM, EXACT, false, true>(st, a);
    else
        more ? launch_pieces_as<DM, EXACT, true, false>(st, a)
             : launch_pieces_as<DM, EXACT, false, false>(st, a);
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
                                  uint32_t window, const uint32_t *table, uint32_t table_stride, void *work)
{
    list_args a;
    a.window = window;
    a.length = d->length;
    a.member = d->member;
    a.n = d->n;
    a.group_first = d->group_first;
    a.shared = d->shared;
    a.table = table;
    a.n_groups = d->n_groups;
    a.table_stride = table_stride;
    a.per_kv = h->heads / h->kv_heads;
    a.rows = gr_cu_decode_rows(h);
    a.each = d->each ? d->each : 1;
    a.out = list_at(work, d->n);
    gr_chain(st, list_kernel, dim3(1), dim3(1024), 0, a);
}

static void attend(cudaStream_t st, const gr_cu_paged *p, const gr_cu_decode *d, const gr_bf16 *qkv,
                   const gr_cu_fp8_to &to, gr_bf16 *out, const void *work, void *ws)
{
    if (!d->n) return;
    const gr_cu_heads *h = &p->heads;
    const list l = list_at(const_cast<void *>(work), d->n);
    args a;
    a.kv = static_cast<const char *>(p->kv);
    a.kv_half = gr_cu_kv_half_bytes(h);
    a.kv_block = gr_cu_kv_block(h);
    a.qkv = reinterpret_cast<const __nv_bfloat16 *>(qkv);
    a.n_items = l.n_items;
    a.pieces = l.pieces;
    a.item = l.item;
    a.member = d->member;
    a.length = d->length;
    a.acc = static_cast<float *>(ws);
    a.stat =
        reinterpret_cast<float *>(static_cast<char *>(ws) + gr_cu_decode_acc_bytes(h, d->n, d->max_length));
    a.out = reinterpret_cast<__nv_bfloat16 *>(out);
    a.n = d->n;
    a.heads = h->heads;
    a.kv_heads = h->kv_heads;
    a.per_kv = h->heads / h->kv_heads;
    a.head_dim = h->head_dim;
    a.width = (h->heads + 2 * h->kv_heads) * h->head_dim;
    a.pieces_max = gr_cu_decode_pieces(d->max_length);
    const gr_scores *s = &p->scores;
    const bool more = s->window || s->softcap || d->each > 1;
    a.scale = 1.4426950408889634f * (s->softcap ? 1 : s->scale);
    a.softcap = s->softcap;
    a.in_cap = s->softcap ? 2 * 1.4426950408889634f * s->scale / s->softcap : 0;
    a.sinks = static_cast<const __nv_bfloat16 *>(s->sinks);
    a.to = to;
    if (h->head_dim == 128)
        launch_pieces<128, true>(st, a, more, h->kv_fp8);
    else if (h->head_dim == 64)
        launch_pieces<64, true>(st, a, more, h->kv_fp8);
    else if (h->head_dim < 64)
        launch_pieces<64, false>(st, a, more, h->kv_fp8);
    else if (h->head_dim < 128)
        launch_pieces<128, false>(st, a, more, h->kv_fp8);
    else
        launch_pieces<256, false>(st, a, more, h->kv_fp8);
    gr_chain(st, combine_kernel, dim3(ceil_div(d->n * h->heads * (h->head_dim / 4), 256)), dim3(256), 0, a);
}

extern "C" void gr_cu_decode_attention(cudaStream_t st, const gr_cu_paged *p, const gr_cu_decode *d,
                                       const gr_bf16 *qkv, gr_bf16 *out, const void *work, void *ws)
{
    attend(st, p, d, qkv, gr_cu_fp8_to{}, out, work, ws);
}

extern "C" void gr_cu_fp8_decode_attention(cudaStream_t st, const gr_cu_paged *p, const gr_cu_decode *d,
                                           const gr_bf16 *qkv, const gr_cu_fp8_to *to, gr_bf16 *out,
                                           const void *work, void *ws)
{
    assert(p->heads.head_dim % 128 == 0 && to->n <= d->n);
    attend(st, p, d, qkv, *to, out, work, ws);
}

extern "C" void gr_cu_kv_copy(cudaStream_t st, void *kv, uint32_t layers, uint64_t layer_bytes,
                              uint64_t block_bytes, const uint32_t *src, const uint32_t *dst, uint32_t n)
{
    if (!n) return;
    const uint64_t vectors = block_bytes / sizeof(uint4);
    const uint32_t parts = static_cast<uint32_t>((vectors + 1023) / 1024);
    copy_kernel<<<dim3(parts, n, layers), 256, 0, st>>>(static_cast<uint4 *>(kv), layer_bytes / sizeof(uint4),
                                                        vectors, src, dst);
}
