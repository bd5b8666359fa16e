/* ops/kernels/cuda/swiglu_product.cu: h = silu(x G^T) * (x U^T) of a decode step, in one: gate and up need
 * not go to memory.
 *
 * The tiles are those of pipeline.cuh, 256 rows by 96 columns of gate and the 96 of up beside them: one CTA
 * of a cluster fetches the rows of G, the other those of U, and a thread holds both parts of its elements.
 */
#include "ops/kernels/cuda/pipeline.cuh"

namespace
{

enum { WIDE = 96, STAGES = 5 };

typedef gr_pipe<WIDE, STAGES> pipe;

struct args {
    gr_bf16 *h;                         /* [m, I] */
    uint32_t m, I, steps, tiles, pairs; /* of GR_PIPE_PAIR rows */
};

#if GR_HOPPER

__device__ void produce(const args &a, pipe &p, const CUtensorMap *x, const CUtensorMap *w)
{
    const uint32_t rank = gr_cluster_rank(), clusters = gridDim.x / GR_PIPE_CLUSTER;
    for (uint32_t t = blockIdx.x / GR_PIPE_CLUSTER; t < a.pairs * a.tiles; t += clusters)
        p.fetch(x, w, t % a.pairs * GR_PIPE_PAIR + rank * GR_PIPE_ROWS, t / a.pairs * WIDE + rank * a.I,
                a.steps);
}

__device__ void consume(const args &a, pipe &in)
{
    const uint32_t group = threadIdx.x / GR_WARPGROUP - 1, warp = threadIdx.x % GR_WARPGROUP / GR_WARP,
                   lane = threadIdx.x % GR_WARP;
    const uint32_t mine =
        gr_cluster_rank() * GR_PIPE_ROWS + group * (GR_PIPE_ROWS / GR_PIPE_CONSUMERS) + 16 * warp + lane / 4;
    const uint32_t clusters = gridDim.x / GR_PIPE_CLUSTER;
    for (uint32_t t = blockIdx.x / GR_PIPE_CLUSTER; t < a.pairs * a.tiles; t += clusters) {
        const uint32_t first = t / a.pairs * WIDE + 2 * (lane % 4);
        float z[WIDE];
        in.multiply(group, a.steps, z);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t row = t % a.pairs * GR_PIPE_PAIR + mine + 8 * r;
            if (row >= a.m) continue;
            gr_bf16 *to = a.h + (size_t)row * a.I;
#pragma unroll
            for (int j = 0; j < WIDE / 8; j++) {
                const float *gate = z + 4 * j + 2 * r, *up = gate + WIDE / 2;
                if (first + 8 * j < a.I)
                    *(uint32_t *)(to + first + 8 * j) =
                        gr_pair(gate[0] * gr_sigmoid(gate[0]) * up[0], gate[1] * gr_sigmoid(gate[1]) * up[1]);
            }
        }
    }
}

#endif

__global__ void __launch_bounds__(GR_PIPE_THREADS, 1)
    product_kernel(const args a, const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w)
{
#if GR_HOPPER
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ __align__(8) uint64_t barrier[2 * STAGES];
    pipe p;
    p.open(memory, barrier);
    if (threadIdx.x < GR_WARPGROUP) {
        gr_registers_fewer<40>();
        if (threadIdx.x == 0) produce(a, p, &x, &w);
    } else {
        gr_registers_more<232>();
        consume(a, p);
    }
    gr_cluster_meet(); /* the other CTA may still arrive at barriers of this one */
#else
    (void)a, (void)x, (void)w;
#endif
}

} // namespace

extern "C" bool gr_cu_swiglu_fuses(const gr_bf16 *gate_up, uint32_t m, uint32_t H, uint32_t I)
{
    if (m <= GR_PIPE_ROWS || m > GR_PIPE_PAIR || I % 2 || !gr_pipe_takes(gate_up, H)) return false;
    const uint32_t tiles = gr_ceil_div(I, WIDE), clusters = gr_pipe_clusters(),
                   rounds = gr_ceil_div(tiles, clusters);
    return 10 * tiles >= 9 * rounds * clusters;
}

extern "C" bool gr_cu_swiglu_product(cudaStream_t st, const gr_bf16 *x, const gr_bf16 *gate_up, gr_bf16 *h,
                                     uint32_t m, uint32_t H, uint32_t I)
{
    const args a = {
        h, m, I, gr_ceil_div(H, GR_TILE_DEPTH), gr_ceil_div(I, WIDE), gr_ceil_div(m, GR_PIPE_PAIR)};
    CUtensorMap xs, ws;
    return gr_tile_map(&xs, x, m, H, GR_PIPE_ROWS) && gr_tile_map(&ws, gate_up, 2 * (uint64_t)I, H, WIDE) &&
           gr_pipe_launch(st, product_kernel, pipe::SHARED_BYTES, a.tiles * a.pairs, a, xs, ws);
}
