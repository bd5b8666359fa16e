/* ops/kernels/cuda/latent.cu: see latent.h and, for tiles, flash.cuh.
 *
 * Absorbed attention has one key and value for all heads: the rows themselves, of which the first R values are
 * the value. A block of threads takes 32 or 64 rows of queries (tokens times heads, tokens outermost) of
 * one sequence against its rows of latents from the first on, 32 at a time; the next ones are fetched meanwhile.
 * Two warps have the same 16 rows and half of the values each, for which both compute the scores: sums of 512
 * values do not fit into the registers of one. How many rows a block has changes no bit of them. A row's sums go in the order of keys, tiles of a fixed size, so
 * that its bits follow from its own keys alone, packed or in blocks, one token at a time or many.
 */
#include "ops/kernels/cuda/device.cuh"
#include "ops/kernels/cuda/flash.cuh"
#include "ops/kernels/cuda/latent.h"

using namespace gr_flash;

enum { BLOCK = 256 };

static uint32_t blocks_of(uint64_t n)
{
    return (uint32_t)((n + BLOCK - 1) / BLOCK);
}

/* ---- rotation: a thread a pair; bound by memory ----------------------------------------------------------- */

GR_KERNEL void __launch_bounds__(BLOCK) rotate_pairs(gr_cu_latent_rope r, uint64_t n)
{
    const uint64_t at = (uint64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (at >= n) return;
    const uint32_t half = r.dims / 2, i = at % half;
    const uint64_t head = at / half;
    const uint32_t h = head % r.heads, t = head / r.heads;
    gr_bf16 *row = r.x + (size_t)t * r.ld + (size_t)h * r.stride, *low = row + (r.interleaved ? 2 * i : i),
            *high = low + (r.interleaved ? 1 : half);
    float sine, cosine;
    gr_sine_cosine((float)r.position[t] * r.frequency[i], &sine, &cosine);
    const float a = gr_float(*low), b = gr_float(*high), c = cosine * r.factor, s = sine * r.factor * r.sign;
    *low = gr_round(fmaf(a, c, -(b * s)));
    *high = gr_round(fmaf(b, c, a * s));
}

void gr_cu_latent_rotate(cudaStream_t st, const gr_cu_latent_rope *r, uint32_t n_tokens)
{
    const uint64_t n = (uint64_t)n_tokens * r->heads * (r->dims / 2);
    if (n) rotate_pairs<<<blocks_of(n), BLOCK, 0, st>>>(*r, n);
}

/* ---- copies: a thread 8 values; bound by memory ------------------------------------------------------------ */

GR_KERNEL void __launch_bounds__(BLOCK)
    store_rows(const uint4 *rows, const uint32_t *slot, uint32_t chunks, uint64_t n, uint4 *pool)
{
    const uint64_t at = (uint64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (at >= n) return;
    const uint32_t to = slot[at / chunks];
    if (to != UINT32_MAX) pool[(size_t)to * chunks + at % chunks] = rows[at];
}

void gr_cu_latent_store(cudaStream_t st, const gr_bf16 *rows, const uint32_t *slot, uint32_t n_tokens,
                        uint32_t width, gr_bf16 *pool)
{
    const uint64_t n = (uint64_t)n_tokens * (width / 8);
    if (n)
        store_rows<<<blocks_of(n), BLOCK, 0, st>>>((const uint4 *)rows, slot, width / 8, n, (uint4 *)pool);
}

/* heads [n]: of each, `chunks` chunks from `from` on in a head of from_chunks to `to` on in one of to_chunks. */
GR_KERNEL void __launch_bounds__(BLOCK) copy_parts(const uint4 *heads, uint32_t from, uint32_t from_chunks,
                                                   uint32_t to, uint32_t to_chunks, uint32_t chunks, uint64_t n,
                                                   uint4 *out)
{
    const uint64_t at = (uint64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (at >= n) return;
    const uint64_t head = at / chunks;
    const uint32_t i = at % chunks;
    out[head * to_chunks + to + i] = heads[head * from_chunks + from + i];
}

void gr_cu_latent_widen(cudaStream_t st, const gr_cu_latent *l, const gr_bf16 *queries, gr_bf16 *wide)
{
    const uint32_t chunks = l->rope / 8;
    const uint64_t n = (uint64_t)l->n_tokens * l->heads * chunks;
    if (n)
        copy_parts<<<blocks_of(n), BLOCK, 0, st>>>((const uint4 *)queries, l->nope / 8,
                                                   (l->nope + l->rope) / 8, l->rank / 8,
                                                   (l->rank + l->rope) / 8, chunks, n, (uint4 *)wide);
}

/* Widths in chunks. */
struct widths {
    uint32_t heads, nope, rope, v, key_ld;
    __host__ __device__ uint32_t head() const
    {
        return nope + rope;
    }
};

static widths widths_of(const gr_cu_latent *l, uint32_t key_ld)
{
    return {l->heads, l->nope / 8, l->rope / 8, l->v / 8, key_ld / 8};
}

GR_KERNEL void __launch_bounds__(BLOCK)
    expand_rows(widths w, const uint4 *q, const uint4 *kv, const uint4 *key, uint64_t n, uint4 *qkv)
{
    const uint64_t at = (uint64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (at >= n) return;
    const uint32_t i = at % w.head();
    const uint64_t head = at / w.head();
    const uint32_t h = head % w.heads, part = head / w.heads % 3;
    const uint64_t t = head / w.heads / 3, own = t * w.heads + h;
    const uint4 *of_kv = kv + own * (w.nope + w.v);
    uint4 x = make_uint4(0, 0, 0, 0);
    if (part == 0)
        x = q[own * w.head() + i];
    else if (part == 1)
        x = i < w.nope ? of_kv[i] : key[t * w.key_ld + i - w.nope];
    else if (i < w.v)
        x = of_kv[w.nope + i];
    qkv[at] = x;
}

void gr_cu_latent_expand(cudaStream_t st, const gr_cu_latent *l, const gr_bf16 *queries, const gr_bf16 *kv,
                         const gr_bf16 *key, uint32_t ld, gr_bf16 *qkv)
{
    const widths w = widths_of(l, ld);
    const uint64_t n = (uint64_t)l->n_tokens * 3 * w.heads * w.head();
    if (n)
        expand_rows<<<blocks_of(n), BLOCK, 0, st>>>(w, (const uint4 *)queries, (const uint4 *)kv,
                                                    (const uint4 *)key, n, (uint4 *)qkv);
}

GR_KERNEL void __launch_bounds__(BLOCK)
    collect_rows(widths w, const uint4 *dqkv, uint64_t n, uint4 *q, uint4 *kv)
{
    const uint64_t at = (uint64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (at >= n) return;
    const uint32_t i = at % w.head();
    const uint64_t head = at / w.head();
    const uint32_t h = head % w.heads, part = head / w.heads % 3;
    const uint64_t t = head / w.heads / 3, own = t * w.heads + h;
    uint4 *to_kv = kv + own * (w.nope + w.v);
    if (part == 0)
        q[own * w.head() + i] = dqkv[at];
    else if (part == 1 && i < w.nope)
        to_kv[i] = dqkv[at];
    else if (part == 2 && i < w.v)
        to_kv[w.nope + i] = dqkv[at];
}

GR_KERNEL void __launch_bounds__(BLOCK) sum_keys(widths w, const uint4 *dqkv, uint64_t n, uint4 *key)
{
    const uint64_t at = (uint64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (at >= n) return;
    const uint32_t i = at % w.rope;
    const uint64_t t = at / w.rope;
    const uint4 *from = dqkv + (t * 3 + 1) * w.heads * w.head() + w.nope + i;
    float sum[8] = {0};
    for (uint32_t h = 0; h < w.heads; h++) {
        float x[8];
        gr_unpack(from[(size_t)h * w.head()], x);
#pragma unroll
        for (int j = 0; j < 8; j++) sum[j] += x[j];
    }
    key[t * w.key_ld + i] = gr_pack(sum);
}

void gr_cu_latent_expand_backward(cudaStream_t st, const gr_cu_latent *l, const gr_bf16 *dqkv, gr_bf16 *queries,
                                  gr_bf16 *kv, gr_bf16 *key, uint32_t ld)
{
    const widths w = widths_of(l, ld);
    const uint64_t n = (uint64_t)l->n_tokens * 3 * w.heads * w.head(), n_key = (uint64_t)l->n_tokens * w.rope;
    if (!n) return;
    collect_rows<<<blocks_of(n), BLOCK, 0, st>>>(w, (const uint4 *)dqkv, n, (uint4 *)queries, (uint4 *)kv);
    sum_keys<<<blocks_of(n_key), BLOCK, 0, st>>>(w, (const uint4 *)dqkv, n_key, (uint4 *)key);
}

/* ---- products of a head: tiles of 64 by 64, 64 terms at a time ---------------------------------------------- */

enum { TILE = 64, TILE_BYTES = TILE * TILE * 2 };

template <bool TURNED> static __global__ void __launch_bounds__(THREADS) head_products(gr_cu_latent_product p)
{
    __shared__ __align__(128) unsigned char shared[4 * TILE_BYTES]; /* two tiles of a, two of b */
    const uint32_t tiles = (uint32_t)__cvta_generic_to_shared(shared), warp = threadIdx.x / 32,
                   lane = threadIdx.x % 32;
    const uint32_t n0 = blockIdx.x * TILE, m0 = blockIdx.y * TILE, h = blockIdx.z;
    const uint16_t *a = p.a + h * p.a_head, *b = p.b + h * p.b_head;
    const auto fill_both = [&](uint32_t k0) {
        const uint32_t at = tiles + k0 / TILE % 2 * (2 * TILE_BYTES);
        fill<TILE, TILE>(at, a, p.k - k0, [&](int r) {
            return m0 + r < p.m ? a + (size_t)(m0 + r) * p.a_ld + k0 : nullptr;
        });
        if (TURNED)
            fill<TILE, TILE>(at + TILE_BYTES, b, p.k - k0, [&](int r) {
                return n0 + r < p.n ? b + (size_t)(n0 + r) * p.b_ld + k0 : nullptr;
            });
        else
            fill<TILE, TILE>(at + TILE_BYTES, b, p.n - n0, [&](int r) {
                return k0 + r < p.k ? b + (size_t)(k0 + r) * p.b_ld + n0 : nullptr;
            });
    };
    float c[TILE / 8][4];
    clear<TILE / 8>(c);
    fill_both(0);
    for (uint32_t k0 = 0; k0 < p.k; k0 += TILE) {
        const uint32_t at = tiles + k0 / TILE % 2 * (2 * TILE_BYTES);
        copies_done();
        __syncthreads(); /* everyone is through with the tiles before */
        if (k0 + TILE < p.k) fill_both(k0 + TILE);
#pragma unroll
        for (int k = 0; k < TILE / 16; k++) {
            uint32_t of_a[4];
            load_a<TILE>(of_a, at, warp * 16, k);
            if (TURNED)
                mma_turned<TILE, TILE>(c, of_a, at + TILE_BYTES, k);
            else
                mma_plain<TILE, TILE>(c, of_a, at + TILE_BYTES, k * 16, 0);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t row = m0 + warp * 16 + lane / 4 + 8 * half;
        if (row < p.m) store_row<TILE / 8>(p.c + h * p.c_head + (size_t)row * p.c_ld, c, half, 1, n0, p.n);
    }
}

void gr_cu_latent_products(cudaStream_t st, const gr_cu_latent_product *p)
{
    const dim3 grid((p->n + TILE - 1) / TILE, (p->m + TILE - 1) / TILE, p->heads);
    if (!p->m) return;
    if (p->turned)
        head_products<true><<<grid, THREADS, 0, st>>>(*p);
    else
        head_products<false><<<grid, THREADS, 0, st>>>(*p);
}

/* ---- absorbed attention --------------------------------------------------------------------------------- */

enum {
    WIDE = GR_CU_LATENT_RANK + GR_CU_LATENT_ROPE,
    VALUES = 256, /* of a warp */
    KEYS = 32,
    KEY_BYTES = KEYS * WIDE * 2,
    BUSY = 132 /* blocks of 32 rows that keep a GPU busy; of fewer, those of more threads are faster */
};

/* Of so many rows of queries. */
template <int N> struct latent_block {
    static constexpr int HALF = 2 * N, SIZE = 2 * HALF; /* threads of a half of the values; all */
    static constexpr int Q_BYTES = N * WIDE * 2, SHARED = Q_BYTES + 2 * KEY_BYTES;
};

struct latent_problem {
    gr_cu_latent l;
    const uint16_t *wide, *rows;
    uint16_t *mixed;
    uint32_t first_seq;

    __device__ uint32_t width() const
    {
        return l.rank + l.rope;
    }
    __device__ const uint16_t *row_at(uint32_t seq, uint32_t first, uint32_t key) const
    {
        if (!l.table) return rows + (size_t)(first + key) * width();
        const uint32_t block = l.table[(size_t)seq * l.table_stride + key / KV_BLOCK];
        return rows + ((size_t)block * KV_BLOCK + key % KV_BLOCK) * width();
    }
};

/* An empty slot's output. */
static __device__ void clear_rows(const latent_problem &p, uint32_t first, uint32_t row0, uint32_t n_rows)
{
    const uint32_t chunks = p.l.rank / 8;
    uint4 *out = reinterpret_cast<uint4 *>(p.mixed + ((size_t)first * p.l.heads + row0) * p.l.rank);
    for (uint32_t i = threadIdx.x; i < n_rows * chunks; i += blockDim.x) out[i] = make_uint4(0, 0, 0, 0);
}

template <int N>
static __global__ void __launch_bounds__(latent_block<N>::SIZE) latent_attention(latent_problem p)
{
    using B = latent_block<N>;
    extern __shared__ __align__(128) unsigned char shared[];
    const uint32_t seq = p.first_seq + blockIdx.z, first = p.l.offset[seq], n = p.l.offset[seq + 1] - first,
                   heads = p.l.heads, n_rows = n * heads;
    const uint32_t row0 = (gridDim.x - 1 - blockIdx.x) * N; /* the longest rows first */
    if (row0 >= n_rows) return;
    const uint32_t block_rows = min(n_rows - row0, (uint32_t)N);
    if (p.l.length && p.l.length[seq] == 0) {
        clear_rows(p, first, row0, block_rows);
        return;
    }
    const uint32_t before = p.l.length ? p.l.length[seq] - 1 : p.l.cached ? p.l.cached[seq] : 0;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x % B::HALF / 32,
                   half_of_values = threadIdx.x / B::HALF;
    const uint32_t n_keys = before + (row0 + block_rows - 1) / heads + 1,
                   n_tiles = (n_keys + KEYS - 1) / KEYS, steps = (p.width() + 15) / 16;
    const uint32_t q_tile = (uint32_t)__cvta_generic_to_shared(shared), key_tiles = q_tile + B::Q_BYTES;
    const uint16_t *q = p.wide + ((size_t)first * heads + row0) * p.width();
    const auto fill_keys = [&](uint32_t t) {
        fill<WIDE, KEYS, B::SIZE>(key_tiles + t % 2 * KEY_BYTES, p.rows, p.width(), [&](int r) {
            const uint32_t key = t * KEYS + r;
            return key < n_keys ? p.row_at(seq, first, key) : nullptr;
        });
    };
    fill<WIDE, N, B::SIZE>(q_tile, p.wide, p.width(), [&](int r) {
        return (uint32_t)r < block_rows ? q + (size_t)r * p.width() : nullptr;
    });
    fill_keys(0);

    running<VALUES> r;
    r.open();
    const float scale2 = p.l.scale * LOG2E;
    const uint32_t row[2] = {row0 + warp * 16 + lane / 4, row0 + warp * 16 + lane / 4 + 8};
    const uint32_t sees[2] = {before + row[0] / heads, before + row[1] / heads}; /* its last key */
    for (uint32_t t = 0; t < n_tiles; t++) {
        const uint32_t tile = key_tiles + t % 2 * KEY_BYTES;
        float s[KEYS / 8][4];
        copies_done();
        __syncthreads(); /* these keys are here, and everyone is through with those before */
        if (t + 1 < n_tiles) fill_keys(t + 1);
        clear<KEYS / 8>(s);
#pragma unroll 4
        for (uint32_t k = 0; k < steps; k++) {
            uint32_t a[4];
            load_a<WIDE>(a, q_tile, warp * 16, k);
            mma_turned<WIDE, KEYS>(s, a, tile, k);
        }
        if ((t + 1) * KEYS - 1 > before + row0 / heads)
#pragma unroll
            for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (t * KEYS + i * 8 + lane % 4 * 2 + j % 2 > sees[j / 2]) s[i][j] = -CUDART_INF_F;
        r.weigh<KEYS>(s, scale2);
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            uint32_t a[4];
            as_a(a, s, k);
            mma_plain<WIDE, VALUES>(r.o, a, tile, k * 16, half_of_values * (VALUES / 8));
        }
    }
    r.close();
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (row[half] < n_rows)
            store_row<VALUES / 8>(p.mixed + ((size_t)first * heads + row[half]) * p.l.rank, r.o, half,
                                  __frcp_rn(r.sum[half]), half_of_values * VALUES, p.l.rank);
}

template <int N> static void launch_attention(cudaStream_t st, latent_problem p, uint64_t rows)
{
    constexpr int shared = latent_block<N>::SHARED;
    const uint32_t tiles = (uint32_t)((rows + N - 1) / N), n_seqs = p.l.n_seqs;
    cudaFuncSetAttribute(latent_attention<N>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    for (; p.first_seq < n_seqs; p.first_seq += 65535)
        latent_attention<N>
            <<<dim3(tiles, 1, min(n_seqs - p.first_seq, 65535u)), latent_block<N>::SIZE, shared, st>>>(p);
}

void gr_cu_latent_attention(cudaStream_t st, const gr_cu_latent *l, const gr_bf16 *wide, const gr_bf16 *rows,
                            gr_bf16 *mixed)
{
    const uint64_t most = (uint64_t)min(l->longest, l->n_tokens) * l->heads; /* rows of a sequence */
    const latent_problem p = {*l, wide, rows, mixed, 0};
    if (!most) return;
    if (most <= 32 && l->n_seqs >= BUSY)
        launch_attention<32>(st, p, most);
    else
        launch_attention<64>(st, p, most);
}
