/* ops/kernels/cuda/strict.cu: see strict.h and, for tiles, pieces and their order, flash.cuh.
 *
 * A block of threads is one warp: one piece of one slot's keys, for up to 16 of the query rows that share a
 * kv head; of heads wider than 256 two warps have a half of the output's columns each. Nothing waits at a
 * barrier, and as many warps as shared memory holds keep loads in flight: 6 of 36 KiB a multiprocessor at D
 * 128. Bound by reading keys and values.
 */
#include "ops/kernels/cuda/flash.cuh"
#include "ops/kernels/cuda/strict.h"

using namespace gr_flash;

static_assert(PIECE == GR_CU_STRICT_PIECE, "workspaces are sized by it");

namespace
{

constexpr int WARP = 32, WARP_ROWS = 16;

struct partial {
    const uint32_t *length; /* [n] keys of each slot */
    float *acc;             /* [n, heads, pieces, D] unnormalised */
    float2 *stat;           /* [n, heads, pieces] maximum, sum */
    uint32_t n, pieces;

    __device__ size_t at(const problem &p, uint32_t slot, uint32_t head, uint32_t piece) const
    {
        return ((size_t)slot * p.heads + head) * pieces + piece;
    }
};

template <int DP> struct piece_shape {
    static constexpr int KEYS = forward_shape<DP>::KEYS, COLS = forward_shape<DP>::COLS,
                         PARTS = forward_shape<DP>::PARTS, Q_BYTES = WARP_ROWS * DP * 2,
                         K_BYTES = KEYS * DP * 2, SHARED = Q_BYTES + K_BYTES + KEYS * COLS * 2;
};

/* d columns of keys (or, `after` elements further on, of values) [key0, key0 + KEYS) of a slot, zeros from
 * `end` on. A block of the pool holds those of a kv head in one run. blocks: the piece's part of the slot's
 * table, block i in lane i. */
template <int DP, int KEYS>
__device__ void fill_blocks(uint32_t tile, const problem &p, uint32_t kv_head, uint32_t blocks, uint32_t key0,
                            uint32_t end, size_t after, uint32_t d)
{
    constexpr int CHUNKS = DP / 8;
#pragma unroll 1
    for (uint32_t b = 0; b < KEYS / KV_BLOCK; b++) {
        const uint32_t key = key0 + b * KV_BLOCK, block = __shfl_sync(~0u, blocks, key % PIECE / KV_BLOCK);
        const uint16_t *from = p.kv + ((size_t)block * 2 * p.kv_heads + kv_head) * KV_BLOCK * p.d + after;
#pragma unroll
        for (int i = 0; i < KV_BLOCK * CHUNKS / WARP; i++) {
            const uint32_t at = i * WARP + threadIdx.x, row = at / CHUNKS, chunk = at % CHUNKS;
            const bool in = key + row < end && chunk * 8 < d;
            copy16(chunk_at<DP>(tile, b * KV_BLOCK + row, chunk), in ? from + row * p.d + chunk * 8 : p.kv,
                   in);
        }
    }
}

/* Row `half` of a closed piece, columns from `from` on, to where the others of its slot lie. */
template <int COLS>
__device__ void leave_piece(const problem &p, const partial &to, const running<COLS> &r, int half, size_t at,
                            uint32_t from)
{
    if (threadIdx.x % 4 == 0 && from == 0) to.stat[at] = make_float2(r.max[half], r.sum[half]);
#pragma unroll
    for (int n = 0; n < COLS / 8; n++) {
        const uint32_t col = from + n * 8 + threadIdx.x % 4 * 2;
        if (col < p.d)
            *reinterpret_cast<float2 *>(to.acc + at * p.d + col) =
                make_float2(r.o[n][2 * half], r.o[n][2 * half + 1]);
    }
}

/* Grid: pieces times parts of columns; kv heads times parts of 16 of their query heads; slots. */
template <int DP, bool MORE>
__global__ void __launch_bounds__(WARP) piece_kernel(problem p, partial to, uint16_t *out)
{
    using S = piece_shape<DP>;
    constexpr int KEYS = S::KEYS, COLS = S::COLS;
    extern __shared__ __align__(128) unsigned char shared[];
    const uint32_t slot = blockIdx.z, length = to.length[slot], piece = blockIdx.x / S::PARTS,
                   first = piece * PIECE, col0 = blockIdx.x % S::PARTS * COLS;
    const uint32_t seen = MORE && length ? p.first_key(length - 1) : 0; /* the first key of the window */
    if (first >= length || first + PIECE <= seen) return;
    const uint32_t parts = gridDim.y / p.kv_heads, row0 = blockIdx.y % parts * WARP_ROWS, lane = threadIdx.x;
    const place w(p, slot, blockIdx.y / parts, length);
    const uint32_t end = min(length, first + PIECE), from = max(first, seen / KEYS * KEYS);
    const uint32_t q_tile = (uint32_t)__cvta_generic_to_shared(shared), k_tile = q_tile + S::Q_BYTES,
                   v_tile = k_tile + S::K_BYTES;
    const uint32_t key = first + lane * KV_BLOCK;
    const uint32_t blocks =
        lane < PIECE / KV_BLOCK && key < end ? p.table[(size_t)slot * p.table_stride + key / KV_BLOCK] : 0;
    const auto fill_k = [&](uint32_t key0) {
        fill_blocks<DP, KEYS>(k_tile, p, w.kv_head, blocks, key0, end, 0, p.d);
    };
    const auto fill_v = [&](uint32_t key0) {
        fill_blocks<COLS, KEYS>(v_tile, p, w.kv_head, blocks, key0, end, place::v_after(p) + col0,
                                p.d - col0);
    };

    fill<DP, WARP_ROWS, WARP>(
        q_tile, p.qkv, p.d, [&](int r) { return row0 + r < w.rows ? p.qkv + w.q_at(p, row0 + r) : nullptr; });
    fill_k(from);
    copies_done();
    __syncwarp();
    running<COLS> r;
    r.open();
    const float scale2 = (MORE ? p.unit() : p.scale) * LOG2E;
    for (uint32_t key0 = from; key0 < end; key0 += KEYS) {
        fill_v(key0);
        float s[KEYS / 8][4];
        clear<KEYS / 8>(s);
#pragma unroll
        for (int k = 0; k < DP / 16; k++) {
            uint32_t q[4];
            load_a<DP>(q, q_tile, 0, k);
            mma_turned<DP, KEYS>(s, q, k_tile, k);
        }
        copies_done(); /* values are here, and all lanes are through with these keys */
        __syncwarp();
        if (key0 + KEYS < end) fill_k(key0 + KEYS);
        if (MORE && p.softcap)
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) s[n][i] = capped(s[n][i], p);
        if (key0 + KEYS > end || (MORE && key0 < seen))
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint32_t at = key0 + n * 8 + lane % 4 * 2 + i % 2;
                    if (at >= end || (MORE && at < seen)) s[n][i] = -CUDART_INF_F;
                }
        r.template weigh<KEYS>(s, scale2);
        r.template add_values<KEYS>(s, v_tile);
        copies_done(); /* the next keys are here, and all lanes are through with these values */
        __syncwarp();
    }
    r.close();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t row = row0 + lane / 4 + 8 * half;
        if (row >= w.rows) continue;
        const uint32_t head = w.kv_head * p.group() + row;
        if ((length - 1) / PIECE == seen / PIECE)
            store_row<COLS / 8>(out + w.o_at(p, row), r.o, half,
                                end_row(p, head, r.max[half], r.sum[half]).share, col0, p.d);
        else
            leave_piece(p, to, r, half, to.at(p, slot, head, piece), col0);
    }
}

/* A warp for each slot and query head, two columns of 64 a lane. Slots of one piece are done; empty ones get
 * zeros. */
__global__ void __launch_bounds__(256) merge_kernel(problem p, partial from, uint16_t *out)
{
    constexpr int PAIRS = 8; /* of columns a lane: D up to 512 */
    const uint32_t row = blockIdx.x * 8 + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (row >= from.n * p.heads) return;
    const uint32_t slot = row / p.heads, length = from.length[slot], pieces = (length + PIECE - 1) / PIECE;
    const uint32_t first =
        length ? p.first_key(length - 1) / PIECE : 0; /* the first that the window reaches */
    if (pieces - first == 1) return;
    const float scale2 = p.unit() * LOG2E;
    float2 o[PAIRS] = {};
    float max = LEAST, sum = 1;
    for (uint32_t i = first; i < pieces; i++) {
        const size_t at = from.at(p, slot, row % p.heads, i);
        const float2 stat = from.stat[at];
        shares f = {0, 1};
        if (i > first) {
            f = merge(max, sum, stat.x, stat.y, scale2);
        } else {
            max = stat.x;
            sum = stat.y;
        }
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            const uint32_t col = j * 64 + lane * 2;
            if (col >= p.d) continue;
            const float2 x = *reinterpret_cast<const float2 *>(from.acc + at * p.d + col);
            o[j] = i > first ? make_float2(merged(o[j].x, x.x, f), merged(o[j].y, x.y, f)) : x;
        }
    }
    const float share = length ? end_row(p, row % p.heads, max, sum).share : 1; /* of zeros */
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        const uint32_t col = j * 64 + lane * 2;
        if (col < p.d)
            *reinterpret_cast<uint32_t *>(out + (size_t)row * p.d + col) =
                pack(__fmul_rn(o[j].x, share), __fmul_rn(o[j].y, share));
    }
}

template <int DP, bool MORE>
void launch_pieces_as(cudaStream_t st, const problem &p, const partial &to, uint16_t *out)
{
    constexpr int shared = piece_shape<DP>::SHARED;
    const uint32_t parts = (p.heads / p.kv_heads + WARP_ROWS - 1) / WARP_ROWS;
    cudaFuncSetAttribute(piece_kernel<DP, MORE>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    piece_kernel<DP, MORE>
        <<<dim3(to.pieces * piece_shape<DP>::PARTS, p.kv_heads * parts, to.n), WARP, shared, st>>>(p, to,
                                                                                                   out);
}

template <int DP> void launch_pieces(cudaStream_t st, const problem &p, const partial &to, uint16_t *out)
{
    if (p.more())
        launch_pieces_as<DP, true>(st, p, to, out);
    else
        launch_pieces_as<DP, false>(st, p, to, out);
}

} /* namespace */

void gr_cu_strict_attention(cudaStream_t st, const gr_cu_paged *c, const gr_cu_decode *d, const gr_bf16 *qkv,
                            gr_bf16 *out, void *ws)
{
    if (!d->n) return;
    assert(!c->heads.kv_fp8); /* not of a graph that is strict, nor of such heads (gr_cu_attend_unfit) */
    const problem p = paged_problem(c, qkv);
    partial to;
    to.length = d->length;
    to.n = d->n;
    to.pieces = gr_cu_strict_pieces(d->max_length);
    to.acc = static_cast<float *>(ws);
    to.stat = reinterpret_cast<float2 *>(to.acc + (size_t)to.n * p.heads * to.pieces * p.d);
    if (p.d <= 64)
        launch_pieces<64>(st, p, to, out);
    else if (p.d <= 128)
        launch_pieces<128>(st, p, to, out);
    else if (p.d <= 256)
        launch_pieces<256>(st, p, to, out);
    else
        launch_pieces<512>(st, p, to, out);
    merge_kernel<<<(d->n * p.heads + 7) / 8, 256, 0, st>>>(p, to, out);
}
