/* ops/kernels/cuda/flash.cuh: attention in tiles on mma.sync m16n8k16 (bf16, fp32 sums), for sm_80 and up.
 *
 * Rows: a sequence's new tokens times the query heads that share a kv head, tokens outermost, so that keys
 * are read once for the whole group. Tiles lie in shared memory as [rows][DP] bf16, DP being head_dim rounded
 * up to 64, 128, 256 or 512 and what is beyond head_dim zero; 16-byte chunks of a row are XORed with the
 * row's low bits, so that ldmatrix meets no bank twice. A block of threads has at most 256 columns of what it
 * makes: of wider heads several share the rows, and each computes the scores.
 *
 * The order of every sum follows from a row's own keys: tiles of a fixed size, in ascending order from key 0;
 * PIECE keys at a time with a running maximum of their own; and the pieces merged in order. So a row's bits
 * depend on its own keys alone: not on the batch, nor on how a sequence was cut into calls, nor on whether
 * keys lie packed or in blocks, nor on whether one block of threads walked all pieces (forward, below) or
 * each had its own (ops/kernels/cuda/strict.cu). What those two share does arithmetic by functions that round
 * as they say: the compiler fuses nothing. With a window, tiles that no row of a block sees are left out, and
 * a tile that a row does not see leaves its sums as they are.
 *
 * Source: FlashAttention-2 (Dao, arXiv:2307.08691); the fragment layouts are PTX's.
 */
#ifndef GR_OPS_KERNELS_CUDA_FLASH_CUH
#define GR_OPS_KERNELS_CUDA_FLASH_CUH

#include <cuda_bf16.h>
#include <math_constants.h>
#include <stdint.h>

#include "ops/kernels/cuda/fp8.cuh"

namespace gr_flash
{

constexpr int THREADS = 128, ROWS = 64; /* 4 warps, 16 rows each */
constexpr int KV_BLOCK = 16;            /* GR_KV_BLOCK */
constexpr int PIECE = 256;              /* keys whose softmax is summed on its own; GR_CU_STRICT_PIECE */
constexpr float LEAST = -1e30f; /* below every score; finite, so that rows that see nothing stay numbers */
constexpr float LN2 = 0.69314718055994531f, LOG2E = 1.4426950408889634f;

/* Where keys and values are: with the queries, or in blocks of the pool, of which FP8 becomes bf16 on its way
 * into a tile. */
enum form { PACKED, PAGED, PAGED_FP8 };

/* One call over packed sequences. */
struct problem {
    const uint16_t *qkv;        /* [T, W] */
    const uint32_t *offset;     /* [n_seqs + 1] into T */
    const uint32_t *prefix;     /* [n_seqs] the sequence that one goes on from, or its own; NULL: none does */
    uint32_t n_seqs;            /* where there is a prefix */
    const uint32_t *cached;     /* tokens of each sequence before these; NULL: none */
    const uint16_t *kv;         /* paged keys and values; NULL: those of qkv */
    uint64_t kv_half, kv_block; /* bytes of a block's keys, and of a block */
    const uint32_t *table;      /* [n_seqs, table_stride] */
    uint32_t table_stride, heads, kv_heads, d, first_seq;
    /* ops/kernels/scores.h. A kernel's MORE says whether it looks at reach and softcap at all. */
    float scale, softcap;
    uint32_t reach;        /* the window; UINT32_MAX: none */
    const uint16_t *sinks; /* [heads] or NULL */

    __device__ uint32_t width() const
    {
        return (heads + 2 * kv_heads) * d;
    }
    __device__ uint32_t group() const
    {
        return heads / kv_heads;
    }
    __device__ uint32_t first_key(uint32_t position) const
    {
        return position >= reach ? position - reach + 1 : 0;
    }
    __device__ bool sees(uint32_t position, uint32_t key) const
    {
        return key <= position && position - key < reach;
    }
    /* What a score is multiplied by in the softmax: one that is capped has its scale already. */
    __device__ float unit() const
    {
        return softcap ? 1 : scale;
    }
    bool more() const
    {
        return reach != UINT32_MAX || softcap;
    }
    void set(const gr_scores *s)
    {
        scale = s->scale;
        softcap = s->softcap;
        reach = s->window ? s->window : UINT32_MAX;
        sinks = static_cast<const uint16_t *>(s->sinks);
    }
};

/* New tokens in qkv that follow keys in the pool; of which sequences and how many, the caller says. */
inline problem paged_problem(const gr_cu_paged *c, const uint16_t *qkv)
{
    problem p = {};
    p.qkv = qkv;
    p.kv = static_cast<const uint16_t *>(c->kv);
    p.kv_half = gr_cu_kv_half_bytes(&c->heads);
    p.kv_block = gr_cu_kv_block(&c->heads);
    p.table = c->table;
    p.table_stride = c->table_stride;
    p.heads = c->heads.heads;
    p.kv_heads = c->heads.kv_heads;
    p.d = c->heads.head_dim;
    p.set(&c->scores);
    return p;
}

/* A row in FP8: its values, NULL for zeros, and what they are multiplied by. */
struct row_fp8 {
    const uint8_t *values;
    float scale;
};

/* The part of a problem that one block of threads works on. */
struct place {
    uint32_t seq, kv_head, first, n, before, rows;
    uint32_t start; /* packed: where its first key is, of the sequence that it goes on from if it does */

    __device__ place(const problem &p)
    {
        seq = p.first_seq + blockIdx.z;
        kv_head = blockIdx.y;
        first = p.offset[seq];
        n = p.offset[seq + 1] - first;
        before = p.cached ? p.cached[seq] : 0;
        rows = n * p.group();
        start = first;
        const uint32_t of = p.prefix ? p.prefix[seq] : seq;
        if (of == seq) return;
        start = p.offset[of];
        before = p.offset[of + 1] - start;
    }
    /* The newest of a slot's tokens, row `slot` of qkv. */
    __device__ place(const problem &p, uint32_t slot, uint32_t kv_head_, uint32_t length)
        : seq(slot), kv_head(kv_head_), first(slot), n(1), before(length - 1), rows(p.group()), start(slot)
    {
    }
    __device__ size_t q_at(const problem &p, uint32_t row) const
    {
        return (size_t)(first + row / p.group()) * p.width() +
               (size_t)(kv_head * p.group() + row % p.group()) * p.d;
    }
    __device__ size_t stat_at(const problem &p, uint32_t row) const
    {
        return (size_t)(first + row / p.group()) * p.heads + kv_head * p.group() + row % p.group();
    }
    __device__ size_t o_at(const problem &p, uint32_t row) const
    {
        return stat_at(p, row) * p.d;
    }
    /* Keys of position `key`; its values are v_after(p) further on. */
    __device__ const uint16_t *k_at(const problem &p, uint32_t key) const
    {
        if (!p.kv) return packed_k(p, key < before ? start + key : first + key - before);
        const uint32_t block = p.table[(size_t)seq * p.table_stride + key / KV_BLOCK];
        return p.kv + (size_t)block * 2 * KV_BLOCK * p.kv_heads * p.d +
               (size_t)(kv_head * KV_BLOCK + key % KV_BLOCK) * p.d;
    }
    /* The same in a pool in FP8, of keys or of values. */
    __device__ row_fp8 fp8_at(const problem &p, uint32_t key, bool value) const
    {
        const uint32_t block = p.table[(size_t)seq * p.table_stride + key / KV_BLOCK], at = key % KV_BLOCK;
        const uint8_t *from = reinterpret_cast<const uint8_t *>(p.kv) + block * p.kv_block;
        const float *scales = reinterpret_cast<const float *>(from + 2 * p.kv_half);
        return {from + (value ? p.kv_half : 0) + (size_t)(kv_head * KV_BLOCK + at) * p.d,
                scales[(kv_head * 2 + value) * KV_BLOCK + at]};
    }
    /* Keys of a token of the batch. */
    __device__ const uint16_t *packed_k(const problem &p, uint32_t token) const
    {
        return p.qkv + (size_t)token * p.width() + (size_t)(p.heads + kv_head) * p.d;
    }
    /* Rows that see keys of its own tokens: also those of the sequences that go on from it, which stand
     * behind it. */
    __device__ uint32_t seen_by(const problem &p) const
    {
        if (!p.prefix || p.prefix[seq] != seq) return rows;
        uint32_t last = seq, beyond = p.n_seqs; /* prefix rises behind seq */
        while (beyond - last > 1) {
            const uint32_t middle = (last + beyond) / 2;
            if (p.prefix[middle] == seq)
                last = middle;
            else
                beyond = middle;
        }
        return (p.offset[last + 1] - first) * p.group();
    }
    __device__ static size_t v_after(const problem &p)
    {
        return (size_t)p.kv_heads * p.d * (p.kv ? KV_BLOCK : 1);
    }
};

/* ---- instructions ---------------------------------------------------------------------------------------
 */

__device__ inline void copy16(uint32_t to, const void *from, bool in) /* zeros where not in */
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(in ? 16 : 0)
                 : "memory");
}
__device__ inline void copies_done()
{
    asm volatile("cp.async.commit_group;\n\tcp.async.wait_group 0;" ::: "memory");
}
__device__ inline void load4(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
__device__ inline void load4_turned(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
__device__ inline void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline float exp2_of(float x) /* to 2 ulp; 0 for minus infinity */
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline uint32_t pack(float low, float high)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&v);
}

/* ---- tiles ----------------------------------------------------------------------------------------------
 */

/* Byte address of a 16-byte chunk of a tile. */
template <int DP> __device__ inline uint32_t chunk_at(uint32_t tile, int row, int chunk)
{
    return tile + row * (DP * 2) + ((chunk ^ (row & 7)) << 4);
}

/* Fill a tile of N rows by T threads; row_of(i): where row i begins, or NULL for zeros. Asynchronous. */
template <int DP, int N, int T = THREADS, typename F>
__device__ inline void fill(uint32_t tile, const uint16_t *any, uint32_t d, F row_of)
{
    constexpr int CHUNKS = DP / 8;
    static_assert(N * CHUNKS % T == 0, "every thread copies the same number of chunks");
#pragma unroll
    for (int i = 0; i < N * CHUNKS / T; i++) {
        const int at = i * T + threadIdx.x, row = at / CHUNKS, chunk = at % CHUNKS;
        const uint16_t *from = row_of(row);
        const bool in = from != nullptr && chunk * 8u < d;
        copy16(chunk_at<DP>(tile, row, chunk), in ? from + chunk * 8 : any, in);
    }
}

__device__ inline void store16(uint32_t to, uint4 x)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}

/* As fill, of rows in FP8; not asynchronous. */
template <int DP, int N, typename F> __device__ inline void fill_fp8(uint32_t tile, uint32_t d, F row_of)
{
    constexpr int CHUNKS = DP / 16;
    static_assert(N * CHUNKS % THREADS == 0, "every thread copies the same number of chunks");
#pragma unroll
    for (int i = 0; i < N * CHUNKS / THREADS; i++) {
        const int at = i * THREADS + threadIdx.x, row = at / CHUNKS, chunk = at % CHUNKS;
        const row_fp8 from = row_of(row);
        uint4 v = make_uint4(0, 0, 0, 0);
        if (from.values && chunk * 16u < d) v = *reinterpret_cast<const uint4 *>(from.values + chunk * 16);
        const uint2 a = gr_fp8_scaled(v.x, from.scale), b = gr_fp8_scaled(v.y, from.scale),
                    c = gr_fp8_scaled(v.z, from.scale), e = gr_fp8_scaled(v.w, from.scale);
        store16(chunk_at<DP>(tile, row, 2 * chunk), make_uint4(a.x, a.y, b.x, b.y));
        store16(chunk_at<DP>(tile, row, 2 * chunk + 1), make_uint4(c.x, c.y, e.x, e.y));
    }
}

/* Fragment A: rows [row, row + 16), columns [16 k, 16 k + 16). */
template <int DP> __device__ inline void load_a(uint32_t a[4], uint32_t tile, int row, int k)
{
    const int lane = threadIdx.x % 32;
    load4(a, chunk_at<DP>(tile, row + lane % 16, 2 * k + lane / 16));
}

/* c [16, N] += a tile's transpose: fragments B of N rows of the tile, columns [16 k, 16 k + 16). */
template <int DP, int N>
__device__ inline void mma_turned(float (*c)[4], const uint32_t a[4], uint32_t tile, int k)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
        uint32_t b[4];
        load4(b, chunk_at<DP>(tile, n * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
        mma(c[2 * n], a, b[0], b[1]);
        mma(c[2 * n + 1], a, b[2], b[3]);
    }
}

/* c [16, N] += a tile: its rows [row, row + 16), columns from 8 chunk on. */
template <int DP, int N>
__device__ inline void mma_plain(float (*c)[4], const uint32_t a[4], uint32_t tile, int row, int chunk)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
        uint32_t b[4];
        load4_turned(b, chunk_at<DP>(tile, row + lane / 8 % 2 * 8 + lane % 8, chunk + 2 * n + lane / 16));
        mma(c[2 * n], a, b[0], b[1]);
        mma(c[2 * n + 1], a, b[2], b[3]);
    }
}

/* Columns [16 k, 16 k + 16) of an accumulator as a fragment A, in bf16. */
__device__ inline void as_a(uint32_t a[4], const float (*c)[4], int k)
{
    a[0] = pack(c[2 * k][0], c[2 * k][1]);
    a[1] = pack(c[2 * k][2], c[2 * k][3]);
    a[2] = pack(c[2 * k + 1][0], c[2 * k + 1][1]);
    a[3] = pack(c[2 * k + 1][2], c[2 * k + 1][3]);
}

template <int N> __device__ inline void clear(float (*c)[4])
{
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) c[i][j] = 0;
}

/* Over the four threads that hold one row of an accumulator. */
__device__ inline float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ inline float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

/* Row `half` (0: lane / 4, 1: lane / 4 + 8) of an accumulator, times f, to memory as bf16; columns from
 * `from` on. */
template <int N>
__device__ inline void store_row(uint16_t *to, const float (*c)[4], int half, float f, uint32_t from,
                                 uint32_t d)
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        const uint32_t col = from + n * 8 + threadIdx.x % 4 * 2;
        if (col < d)
            *reinterpret_cast<uint32_t *>(to + col) =
                pack(__fmul_rn(c[n][2 * half], f), __fmul_rn(c[n][2 * half + 1], f));
    }
}

/* ---- softmax ----------------------------------------------------------------------------------------------
 */

/* softcap tanh(scale q k / softcap), by tanh x = 1 - 2 / (exp(2 x) + 1): the same bits wherever it is
 * computed. */
__device__ inline float capped(float score, const problem &p)
{
    const float e = exp2_of(__fmul_rn(score, __fmul_rn(p.scale, 2 * LOG2E / p.softcap)));
    return __fmul_rn(p.softcap, __fmaf_rn(-2, __frcp_rn(__fadd_rn(e, 1)), 1));
}
/* Its derivative, over the scale. */
__device__ inline float cap_slope(float cap, const problem &p)
{
    const float t = __fdividef(cap, p.softcap);
    return fmaf(-t, t, 1);
}

/* Of a warp's 16 rows over the keys of one piece: rows lane / 4 (0) and lane / 4 + 8 (1). */
template <int DP> struct running {
    float o[DP / 8][4], max[2], sum[2]; /* sum: this thread's columns, until close */

    __device__ void open()
    {
        clear<DP / 8>(o);
        max[0] = max[1] = LEAST;
        sum[0] = sum[1] = 0;
    }
    /* Scores of a tile become weights; minus infinity where a row does not see a key. */
    template <int KEYS> __device__ void weigh(float (*s)[4], float scale2)
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = max[half];
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
            most = quad_max(most);
            const float shrink = exp2_of(__fmul_rn(__fsub_rn(max[half], most), scale2)),
                        minus = __fmul_rn(most, scale2);
            max[half] = most;
            sum[half] = __fmul_rn(sum[half], shrink);
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    s[n][i] = exp2_of(__fmaf_rn(s[n][i], scale2, -minus));
                    sum[half] = __fadd_rn(sum[half], s[n][i]);
                }
#pragma unroll
            for (int n = 0; n < DP / 8; n++) {
                o[n][2 * half] = __fmul_rn(o[n][2 * half], shrink);
                o[n][2 * half + 1] = __fmul_rn(o[n][2 * half + 1], shrink);
            }
        }
    }
    template <int KEYS> __device__ void add_values(const float (*s)[4], uint32_t v_tile)
    {
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            uint32_t a[4];
            as_a(a, s, k);
            mma_plain<DP, DP>(o, a, v_tile, k * 16, 0);
        }
    }
    __device__ void close()
    {
        sum[0] = quad_sum(sum[0]);
        sum[1] = quad_sum(sum[1]);
    }
};

/* How much of what was merged so far, and of a piece, goes on. */
struct shares {
    float old, own;
};

/* Maximum and sum of a row get those of its next piece. One in which it sees nothing changes nothing. */
__device__ inline shares merge(float &max, float &sum, float piece_max, float piece_sum, float scale2)
{
    if (piece_sum == 0) return {1, 0};
    const float most = fmaxf(max, piece_max);
    const shares f = {exp2_of(__fmul_rn(__fsub_rn(max, most), scale2)),
                      exp2_of(__fmul_rn(__fsub_rn(piece_max, most), scale2))};
    max = most;
    sum = __fmaf_rn(sum, f.old, __fmul_rn(piece_sum, f.own));
    return f;
}
__device__ inline float merged(float old, float own, shares f)
{
    return f.own == 0 && f.old == 1 ? old : __fmaf_rn(old, f.old, __fmul_rn(own, f.own));
}

/* What a row's sum of weighted values is multiplied by, and the log of its denominator, sink included. */
struct row_end {
    float share, lse;
};
__device__ inline row_end end_row(const problem &p, uint32_t head, float max, float sum)
{
    if (!p.sinks) return {__frcp_rn(sum), max * p.unit() + logf(sum)};
    const float own2 = __fmul_rn(max, __fmul_rn(p.unit(), LOG2E)),
                sink2 = __fmul_rn(__uint_as_float((uint32_t)p.sinks[head] << 16), LOG2E),
                most = fmaxf(own2, sink2);
    const float own = exp2_of(__fsub_rn(own2, most)),
                all = __fmaf_rn(sum, own, exp2_of(__fsub_rn(sink2, most)));
    return {__fmul_rn(own, __frcp_rn(all)), fmaf(most, LN2, logf(all))};
}

/* ---- forward --------------------------------------------------------------------------------------------
 */

template <int DP> struct forward_shape {
    static constexpr int KEYS = DP > 128 ? 32 : 64;
    static constexpr int COLS = DP > 256 ? 256 : DP, /* of the output that a block keeps */
        PARTS = DP / COLS;
    static constexpr bool HOLD_Q = DP <= 128; /* in registers: the merged pieces then lie where q was */
    static constexpr int TOTAL_BYTES = ROWS * COLS * 4, Q_BYTES = ROWS * DP * 2;
    static constexpr int TILES_AT = HOLD_Q ? TOTAL_BYTES : Q_BYTES + TOTAL_BYTES;
    static constexpr int K_BYTES = KEYS * DP * 2, SHARED = TILES_AT + K_BYTES + KEYS * COLS * 2;
    static constexpr int BLOCKS =
        DP > 128 ? 1 : 3; /* on one multiprocessor: what registers and shared memory allow */
};

/* The pieces of a block's rows so far. Each thread keeps its own elements in shared memory, where no other
 * reads. */
template <int DP> struct merged_pieces {
    float max[2], sum[2];
    float *o; /* [DP / 2][THREADS] */

    /* r: a closed piece; afterwards, where last, all pieces. */
    __device__ void take(running<DP> &r, bool first, bool last, float scale2)
    {
        shares f[2] = {{0, 1}, {0, 1}};
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (first) {
                max[half] = r.max[half];
                sum[half] = r.sum[half];
            } else {
                f[half] = merge(max[half], sum[half], r.max[half], r.sum[half], scale2);
            }
        if (first && last) return;
#pragma unroll
        for (int i = 0; i < DP / 2; i++) {
            float *at = o + i * THREADS + threadIdx.x;
            if (!first) r.o[i / 4][i % 4] = merged(*at, r.o[i / 4][i % 4], f[i / 2 % 2]);
            if (!last) *at = r.o[i / 4][i % 4];
        }
    }
};

/* A block of threads: 64 rows of one kv head of one sequence, or a part of their columns. Bound by the tensor
 * cores and, at short lengths, by the softmax between them; keys of the next step are fetched while this
 * one's softmax runs. */
template <int DP, form KV, bool MORE>
__global__ void __launch_bounds__(THREADS, forward_shape<DP>::BLOCKS)
    forward(problem p, uint16_t *out, float *lse)
{
    using S = forward_shape<DP>;
    constexpr int KEYS = S::KEYS, COLS = S::COLS;
    constexpr bool HOLD_Q = S::HOLD_Q;
    extern __shared__ __align__(128) unsigned char shared[];
    const place w(p);
    const uint32_t from_end = gridDim.x - 1 - blockIdx.x; /* the longest rows first */
    const uint32_t row0 = from_end / S::PARTS * ROWS, col0 = from_end % S::PARTS * COLS;
    if (row0 >= w.rows) return;
    const uint32_t group = p.group(), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t last = min((row0 + ROWS - 1) / group, w.n - 1), n_keys = w.before + last + 1;
    const uint32_t n_tiles = (n_keys + KEYS - 1) / KEYS;
    const uint32_t first_key =
        MORE ? p.first_key(w.before + row0 / group) : 0; /* that any of the rows sees */
    const uint32_t first_tile = first_key / KEYS, first_piece = first_key / PIECE;
    const uint32_t q_tile = (uint32_t)__cvta_generic_to_shared(shared), k_tile = q_tile + S::TILES_AT,
                   v_tile = k_tile + S::K_BYTES;
    if (KV == PACKED) p.kv = nullptr; /* lets the compiler drop the lookup */
    const auto q_row = [&](int r) { return row0 + r < w.rows ? p.qkv + w.q_at(p, row0 + r) : nullptr; };
    const auto k_row = [&](uint32_t key) { return key < n_keys ? w.k_at(p, key) : nullptr; };
    const auto fp8_row = [&](uint32_t key, bool value) {
        return key < n_keys ? w.fp8_at(p, key, value) : row_fp8{nullptr, 0};
    };
    const auto fill_k = [&](uint32_t key0) {
        if (KV == PAGED_FP8)
            fill_fp8<DP, KEYS>(k_tile, p.d, [&](int r) { return fp8_row(key0 + r, false); });
        else
            fill<DP, KEYS>(k_tile, p.qkv, p.d, [&](int r) { return k_row(key0 + r); });
    };
    const auto fill_v = [&](uint32_t key0) {
        if (KV == PAGED_FP8)
            fill_fp8<DP, KEYS>(v_tile, p.d, [&](int r) { return fp8_row(key0 + r, true); });
        else
            fill<COLS, KEYS>(v_tile, p.qkv, p.d - col0, [&](int r) {
                const uint16_t *k = k_row(key0 + r);
                return k ? k + place::v_after(p) + col0 : nullptr;
            });
    };

    fill<DP, ROWS>(q_tile, p.qkv, p.d, q_row);
    fill_k(first_tile * KEYS);
    copies_done();
    __syncthreads();
    uint32_t q[HOLD_Q ? DP / 16 : 1][4];
    if (HOLD_Q)
#pragma unroll
        for (int k = 0; k < DP / 16; k++) load_a<DP>(q[HOLD_Q ? k : 0], q_tile, warp * 16, k);

    running<COLS> r;
    merged_pieces<COLS> all;
    all.o = reinterpret_cast<float *>(shared + (HOLD_Q ? 0 : S::Q_BYTES));
    r.open();
    const float scale2 = (MORE ? p.unit() : p.scale) * LOG2E;
    const uint32_t row[2] = {row0 + warp * 16 + lane / 4, row0 + warp * 16 + lane / 4 + 8};
    const uint32_t sees[2] = {w.before + row[0] / group, w.before + row[1] / group}; /* its last key */
    for (uint32_t t = first_tile; t < n_tiles; t++) {
        const uint32_t key0 = t * KEYS;
        fill_v(key0);
        float s[KEYS / 8][4];
        clear<KEYS / 8>(s);
#pragma unroll
        for (int k = 0; k < DP / 16; k++) {
            if (!HOLD_Q) load_a<DP>(q[0], q_tile, warp * 16, k);
            mma_turned<DP, KEYS>(s, q[HOLD_Q ? k : 0], k_tile, k);
        }
        copies_done(); /* values are here, and everyone is through with these keys */
        __syncthreads();
        if (t + 1 < n_tiles) fill_k(key0 + KEYS);

        if (MORE && p.softcap)
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) s[n][i] = capped(s[n][i], p);
        if (key0 + KEYS - 1 > w.before + row0 / group || (MORE && key0 < p.first_key(w.before + last)))
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint32_t key = key0 + n * 8 + lane % 4 * 2 + i % 2;
                    if (MORE ? !p.sees(sees[i / 2], key) : key > sees[i / 2]) s[n][i] = -CUDART_INF_F;
                }
        r.template weigh<KEYS>(s, scale2);
        r.template add_values<KEYS>(s, v_tile);
        if (t + 1 == n_tiles || (key0 + KEYS) % PIECE == 0) {
            r.close();
            all.take(r, MORE ? key0 / PIECE == first_piece : key0 < PIECE, t + 1 == n_tiles, scale2);
            if (t + 1 < n_tiles) r.open();
        }
        copies_done(); /* the next keys are here, and everyone is through with these values */
        __syncthreads();
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (row[half] >= w.rows) continue;
        const row_end e = end_row(p, w.kv_head * group + row[half] % group, all.max[half], all.sum[half]);
        store_row<COLS / 8>(out + w.o_at(p, row[half]), r.o, half, e.share, col0, p.d);
        if (lse && lane % 4 == 0 && col0 == 0) lse[w.stat_at(p, row[half])] = e.lse;
    }
}

/* Calls launch(p, n_seqs) for parts of at most the grid's third dimension. */
template <typename F> inline void by_seqs(problem p, uint32_t n_seqs, F launch)
{
    for (; p.first_seq < n_seqs; p.first_seq += 65535) launch(p, min(n_seqs - p.first_seq, 65535u));
}

template <int DP, form KV, bool MORE>
inline void launch_forward(cudaStream_t st, const problem &p, uint32_t n_seqs, uint32_t longest,
                           uint16_t *out, float *lse)
{
    const uint32_t tiles = (longest * (p.heads / p.kv_heads) + ROWS - 1) / ROWS * forward_shape<DP>::PARTS;
    constexpr int shared = forward_shape<DP>::SHARED;
    static_assert(KV != PAGED_FP8 || forward_shape<DP>::PARTS == 1, "values in FP8 are filled whole");
    cudaFuncSetAttribute(forward<DP, KV, MORE>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    by_seqs(p, n_seqs, [&](const problem &part, uint32_t n) {
        forward<DP, KV, MORE><<<dim3(tiles, p.kv_heads, n), THREADS, shared, st>>>(part, out, lse);
    });
}

template <form KV, bool MORE>
inline void run_forward_as(cudaStream_t st, const problem &p, uint32_t n_seqs, uint32_t longest,
                           uint16_t *out, float *lse)
{
    if (p.d <= 64)
        launch_forward<64, KV, MORE>(st, p, n_seqs, longest, out, lse);
    else if (p.d <= 128)
        launch_forward<128, KV, MORE>(st, p, n_seqs, longest, out, lse);
    else if (p.d <= 256)
        launch_forward<256, KV, MORE>(st, p, n_seqs, longest, out, lse);
    else if constexpr (KV != PAGED_FP8) /* gr_cu_attend_unfit */
        launch_forward<512, KV, MORE>(st, p, n_seqs, longest, out, lse);
}

template <form KV>
inline void run_forward(cudaStream_t st, const problem &p, uint32_t n_seqs, uint32_t longest, uint16_t *out,
                        float *lse)
{
    if (!n_seqs || !longest) return;
    if (p.more())
        run_forward_as<KV, true>(st, p, n_seqs, longest, out, lse);
    else
        run_forward_as<KV, false>(st, p, n_seqs, longest, out, lse);
}

} /* namespace gr_flash */

#endif
