/* ops/kernels/cuda/parts.h: into how many parts the device kernels cut what they sum, and so how much
 * workspace they take. Pure functions of sizes, for the kernels that do it and for plans made where there is
 * no CUDA (ops/kernels/cuda/parts.c has the gr_cu_*_ws of ops/kernels/cuda/launch.h): the order of a sum
 * never depends on the device.
 */
#ifndef GR_OPS_KERNELS_CUDA_PARTS_H
#define GR_OPS_KERNELS_CUDA_PARTS_H

#include <assert.h>
#include <stdint.h>

static inline uint32_t gr_ceil_div(uint64_t a, uint64_t b)
{
    return (uint32_t)((a + b - 1) / b);
}

/* ---- gradient of RMSNorm ---------------------------------------------------------------------------------
 * A row belongs to as few warps as hold it with two vectors of 16 bytes a lane; a block of 256 threads works
 * on as many rows at once as fit (one from H = 4096 on). Three such blocks fit a multiprocessor, and a
 * multiple of 132 of them is launched: one full wave on H100 and H200. Each leaves one part, [H]. */

#define GR_NORM_VECS  2
#define GR_NORM_BLOCK 256

static inline uint32_t gr_norm_lanes(uint32_t H) /* of a row */
{
    assert(H % 8 == 0 && H <= 8 * GR_NORM_VECS * 1024);
    return gr_ceil_div(H / 8, GR_NORM_VECS * 32) * 32;
}

static inline uint32_t gr_norm_rows(uint32_t H) /* that a block works on at once */
{
    const uint32_t lanes = gr_norm_lanes(H);
    return lanes < GR_NORM_BLOCK ? GR_NORM_BLOCK / lanes : 1;
}

static inline uint32_t gr_norm_parts(uint32_t n, uint32_t H)
{
    const uint32_t all = gr_ceil_div(n, gr_norm_rows(H)),
                   most = gr_norm_lanes(H) <= GR_NORM_BLOCK ? 396 : 132;
    return all < most ? all : most;
}

/* ---- gradient of q and k norm ----------------------------------------------------------------------------
 * A group of lanes (a power of two) holds a head, each lane N elements of its first half and their partners
 * of the second. A block of 256 threads stays with up to 8 heads of q, or of k, and walks the tokens at a
 * fixed stride. Each leaves one part, [D]. */

#define GR_ROPE_BLOCK 256
#define GR_ROPE_HEADS 8

static inline uint32_t gr_rope_width(uint32_t D) /* N */
{
    return D % 16 ? 4 : 8;
}

static inline uint32_t gr_rope_lanes(uint32_t D)
{
    uint32_t lanes = 1;
    while (lanes * gr_rope_width(D) < D / 2) lanes *= 2;
    assert(D % 8 == 0 && lanes <= 32);
    return lanes;
}

static inline uint32_t gr_rope_blocks(uint32_t heads) /* across the heads of q, or of k */
{
    return gr_ceil_div(heads, GR_ROPE_HEADS);
}

/* Along the tokens; about 2048 in all where blocks_across of them stand side by side. */
static inline uint32_t gr_rope_blocks_along(uint32_t T, uint32_t D, uint32_t blocks_across)
{
    const uint32_t all = gr_ceil_div(T, GR_ROPE_BLOCK / gr_rope_lanes(D)), most = 2048 / blocks_across + 1;
    return all < most ? all : most;
}

/* ---- columns of a matrix ---------------------------------------------------------------------------------
 * A block of 32 by 8 threads sums 256 columns of a strip of rows. About a thousand blocks, of at least 64
 * rows each; a strip leaves one part, [cols]. */

#define GR_STRIP_COLS 256

static inline uint32_t gr_strips(uint32_t T, uint32_t cols) /* at most; grows with T */
{
    const uint32_t across = gr_ceil_div(cols, GR_STRIP_COLS), most = across < 1024 ? 1024 / across : 1;
    const uint32_t wanted = gr_ceil_div(T, 64);
    return wanted < most ? wanted : most;
}

/* ---- routers of few experts ------------------------------------------------------------------------------
 * A block has 256 columns of so many experts; each strip of tokens leaves one part, [E, H]. */

#define GR_FEW_EXPERTS 4

static inline uint32_t gr_few_strips(uint32_t T, uint32_t H, uint32_t E)
{
    return gr_strips(T, gr_ceil_div(E, GR_FEW_EXPERTS) * H);
}

/* ---- value head ------------------------------------------------------------------------------------------
 * Two numbers a row from forward, two of backward, then the parts of strips. */

static inline uint64_t gr_value_row_room(uint32_t n) /* rows, so that what follows is aligned */
{
    return ((uint64_t)n + 31) / 32 * 32;
}

/* ---- gradient of the embedding ---------------------------------------------------------------------------
 * Keys and tokens [T] twice each, for the sort to go back and forth, then the sort's own bytes: histograms,
 * and 256 counters for each tile of at least 1024 keys (asking CUB would ask the device; the kernel's
 * launcher checks it). */

static inline uint64_t gr_sort_array_bytes(uint32_t T)
{
    return ((uint64_t)T * sizeof(uint32_t) + 255) / 256 * 256;
}

static inline uint64_t gr_sort_own_bytes(uint32_t T)
{
    return gr_sort_array_bytes(T) + 65536;
}

/* ---- sum of squares, sampling ----------------------------------------------------------------------------
 */

#define GR_SUM_BLOCKS 1056 /* at most; a double each */

#define GR_TILE       1024 /* logits that a warp reads at once; a row of them has 16 bytes of sums for each */
#define GR_TILE_BYTES 16

#endif
