/* ops/kernels/cuda/embed.cu: rows of the embedding, and their gradient.
 *
 * The gradient adds rows that several tokens name, without atomics: tokens are sorted by id (CUB's radix sort
 * is stable, so that the tokens of one id stay in order), and the run of each id has one owner. Runs below 32
 * tokens belong to a warp; longer ones to a block, whose 16 warps take every 16th row and add up their sums
 * in order. Both walk columns 16 bytes a lane. Bound by memory: dx is read once, in rows; of grad only the
 * rows that occur are touched.
 */
#include "ops/kernels/cuda/device.cuh"

#include <cub/device/device_radix_sort.cuh>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCK = 256, WARPS = BLOCK / GR_WARP };

GR_DEVICE uint4 times(uint4 v, float scale)
{
    float x[8];
    gr_unpack(v, x);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] *= scale;
    return gr_pack(x);
}

/* One warp a token. */
GR_KERNEL void __launch_bounds__(BLOCK)
    embed_kernel(const gr_bf16 *__restrict__ embed, const int32_t *__restrict__ ids, float scale,
                 gr_bf16 *__restrict__ x, uint32_t T, uint32_t vecs)
{
    const uint32_t t = blockIdx.x * WARPS + threadIdx.x / GR_WARP, lane = threadIdx.x % GR_WARP;
    if (t >= T) return;
    const int32_t id = ids[t]; /* below 0: zeros */
    const uint4 *from = (const uint4 *)embed + (size_t)max(id, 0) * vecs;
    uint4 *to = (uint4 *)x + (size_t)t * vecs;
    enum { WIDE = 4 }; /* loads in flight */
    for (uint32_t first = lane; first < vecs; first += WIDE * GR_WARP) {
        uint4 v[WIDE];
#pragma unroll
        for (uint32_t j = 0; j < WIDE; j++)
            v[j] = id >= 0 && first + j * GR_WARP < vecs ? from[first + j * GR_WARP] : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t j = 0; j < WIDE; j++)
            if (first + j * GR_WARP < vecs) to[first + j * GR_WARP] = scale == 1 ? v[j] : times(v[j], scale);
    }
}

extern "C" void gr_cu_embed(cudaStream_t st, const gr_bf16 *embed, const int32_t *ids, float scale,
                            gr_bf16 *x, uint32_t T, uint32_t H)
{
    if (!T) return;
    embed_kernel<<<gr_ceil_div(T, WARPS), BLOCK, 0, st>>>(embed, ids, scale, x, T, H / 8);
}

/* ---- gradient
 * ---------------------------------------------------------------------------------------------- */

constexpr uint32_t NOBODY = 0xffffffff; /* the key of ids below 0, in any number of bits the last */

enum { ID_BITS = 24, LONG = GR_WARP, DEEP = 16, SLICE = 8 * GR_WARP /* columns of a warp's vectors */ };

struct sorted { /* keys and tokens by id: [T] each, twice, for the sort to go back and forth */
    uint32_t *key[2], *token[2];
    void *own;
    size_t own_bytes;
};

static sorted layout(void *ws, uint32_t T)
{
    const uint64_t array = gr_sort_array_bytes(T) / sizeof(uint32_t);
    uint32_t *at = (uint32_t *)ws;
    return {{at, at + array}, {at + 2 * array, at + 3 * array}, at + 4 * array, (size_t)gr_sort_own_bytes(T)};
}

GR_KERNEL void __launch_bounds__(BLOCK)
    keys_kernel(const int32_t *__restrict__ ids, uint32_t *__restrict__ key, uint32_t *__restrict__ token,
                uint32_t T)
{
    const uint32_t t = blockIdx.x * BLOCK + threadIdx.x;
    if (t >= T) return;
    key[t] = ids[t] < 0 ? NOBODY : (uint32_t)ids[t];
    token[t] = t;
}

template <typename G> GR_DEVICE void add_columns(G *grad, const float (&sum)[8], float scale)
{
    float old[4], part[4];
#pragma unroll
    for (int h = 0; h < 8; h += 4) {
        gr_load4(grad, h, old);
#pragma unroll
        for (int i = 0; i < 4; i++) part[i] = fmaf(scale, sum[h + i], old[i]);
        gr_store4(grad, h, part);
    }
}

GR_DEVICE void add_vector(float (&sum)[8], uint4 v)
{
    float x[8];
    gr_unpack(v, x);
#pragma unroll
    for (int i = 0; i < 8; i++) sum[i] += x[i];
}

/* A warp for each sorted place: where a run of less than LONG tokens begins, it sums that run. */
template <typename G>
GR_KERNEL void __launch_bounds__(BLOCK)
    short_runs_kernel(const uint32_t *__restrict__ key, const uint32_t *__restrict__ token,
                      const gr_bf16 *__restrict__ dx, float scale, G *grad, uint32_t T, uint32_t H)
{
    const uint32_t at = blockIdx.x * WARPS + threadIdx.x / GR_WARP, lane = threadIdx.x % GR_WARP;
    if (at >= T) return;
    const uint32_t id = key[at];
    if (id == NOBODY || (at && key[at - 1] == id)) return;
    const uint32_t same = __ballot_sync(GR_ALL, at + lane < T && key[at + lane] == id);
    if (same == GR_ALL) return;
    const uint32_t length = (uint32_t)__ffs((int)~same) - 1;
    const uint32_t mine = lane < length ? token[at + lane] : 0;
    G *row = grad + (size_t)id * H;
    enum { WIDE = 4 }; /* slices whose loads are in flight together */
    for (uint32_t col = 8 * lane; col - 8 * lane < H; col += WIDE * SLICE) {
        float sum[WIDE][8] = {};
        for (uint32_t i = 0; i < length; i++) {
            const gr_bf16 *from = dx + (size_t)__shfl_sync(GR_ALL, mine, (int)i) * H;
            uint4 v[WIDE];
#pragma unroll
            for (uint32_t j = 0; j < WIDE; j++)
                v[j] =
                    col + j * SLICE < H ? *(const uint4 *)(from + col + j * SLICE) : make_uint4(0, 0, 0, 0);
#pragma unroll
            for (uint32_t j = 0; j < WIDE; j++) add_vector(sum[j], v[j]);
        }
#pragma unroll
        for (uint32_t j = 0; j < WIDE; j++)
            if (col + j * SLICE < H) add_columns(row + col + j * SLICE, sum[j], scale);
    }
}

/* Where the run of key[at] ends. */
GR_DEVICE uint32_t run_end(const uint32_t *key, uint32_t at, uint32_t T)
{
    const uint32_t id = key[at];
    uint32_t low = at + 1,
             high = T; /* all before low are of the run or before it, all from high on behind it */
    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;
        if (key[mid] == id)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* A block for each multiple of LONG and slice of columns. A run of LONG tokens or more holds such a place;
 * the first one in it owns it. */
template <typename G>
GR_KERNEL void __launch_bounds__(GR_WARP *DEEP)
    long_runs_kernel(const uint32_t *__restrict__ key, const uint32_t *__restrict__ token,
                     const gr_bf16 *__restrict__ dx, float scale, G *grad, uint32_t T, uint32_t H)
{
    __shared__ float sums[DEEP][SLICE];
    const uint32_t at = blockIdx.x * LONG, id = key[at], lane = threadIdx.x;
    if (id == NOBODY || (at && key[at - LONG] == id)) return;
    const uint32_t before =
        __ballot_sync(GR_ALL, at > lane && key[at - lane - 1] == id); /* not all: see above */
    const uint32_t begin = at - ((uint32_t)__ffs((int)~before) - 1);
    if (begin + LONG > T || key[begin + LONG - 1] != id) return;
    const uint32_t end = run_end(key, begin + LONG - 1, T), col = blockIdx.y * SLICE + 8 * lane;
    float sum[8] = {0};
    if (col < H) {
#pragma unroll 4
        for (uint32_t i = begin + threadIdx.y; i < end; i += DEEP)
            add_vector(sum, *(const uint4 *)(dx + (size_t)token[i] * H + col));
    }
#pragma unroll
    for (int i = 0; i < 8; i++) sums[threadIdx.y][8 * lane + i] = sum[i];
    __syncthreads();
    if (threadIdx.y || col >= H) return;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum[i] = 0;
        for (int k = 0; k < DEEP; k++) sum[i] += sums[k][8 * lane + i];
    }
    add_columns(grad + (size_t)id * H + col, sum, scale);
}

template <typename G>
static void add_runs(cudaStream_t st, const uint32_t *key, const uint32_t *token, const gr_bf16 *dx,
                     float scale, G *grad, uint32_t T, uint32_t H)
{
    const dim3 grid(gr_ceil_div(T, LONG), gr_ceil_div(H, SLICE)), block(GR_WARP, DEEP);
    short_runs_kernel<<<gr_ceil_div(T, WARPS), BLOCK, 0, st>>>(key, token, dx, scale, grad, T, H);
    long_runs_kernel<<<grid, block, 0, st>>>(key, token, dx, scale, grad, T, H);
}

/* A workspace too small is our own bug. */
static void check_workspace(const sorted *s, size_t wanted)
{
    if (wanted <= s->own_bytes) return;
    fprintf(stderr, "gr_cu_embed_backward: the sort wants %zu bytes, the workspace has %zu\n", wanted,
            s->own_bytes);
    abort();
}

extern "C" void gr_cu_embed_backward(cudaStream_t st, const int32_t *ids, const gr_bf16 *dx, float scale,
                                     void *grad, gr_cu_dtype grad_type, uint32_t T, uint32_t H, void *ws)
{
    if (!T) return;
    const sorted s = layout(ws, T);
    cub::DoubleBuffer<uint32_t> key(s.key[0], s.key[1]), token(s.token[0], s.token[1]);
    keys_kernel<<<gr_ceil_div(T, BLOCK), BLOCK, 0, st>>>(ids, s.key[0], s.token[0], T);
    size_t wanted = 0;
    cub::DeviceRadixSort::SortPairs(NULL, wanted, key, token, (int)T, 0, ID_BITS, st);
    check_workspace(&s, wanted);
    cub::DeviceRadixSort::SortPairs(s.own, wanted, key, token, (int)T, 0, ID_BITS, st);
    if (grad_type == GR_CU_F32)
        add_runs(st, key.Current(), token.Current(), dx, scale, (float *)grad, T, H);
    else
        add_runs(st, key.Current(), token.Current(), dx, scale, (gr_bf16 *)grad, T, H);
}
