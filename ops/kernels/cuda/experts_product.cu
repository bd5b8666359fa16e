/* ops/kernels/cuda/experts_product.cu: products of ragged groups of rows, each group by its expert's weights,
 * in one launch whatever the router chose: the tiles of experts_tiles.cuh, stored from registers.
 */
#include "ops/kernels/cuda/experts_tiles.cuh"

namespace
{

using namespace gr_groups;

enum { STAGES = 4 };
typedef gr_pipe<COLUMNS / 2, STAGES> pipe;

#if GR_HOPPER

/* Lane i of each four had word i of four, 8 columns apart; then it has four words of one of them, side by
 * side. */
__device__ __forceinline__ void exchange(uint32_t (&word)[4], uint32_t lane)
{
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & bit) continue;
            const bool high = lane & bit;
            const uint32_t got = __shfl_xor_sync(GR_ALL, high ? word[i] : word[i | bit], bit);
            if (high)
                word[i] = got;
            else
                word[i | bit] = got;
        }
}

/* A thread's two rows of 64 times two columns, 16 bytes an access. to: of the expert's group, column 0 of the
 * tile. */
__device__ __forceinline__ void store_rows(const args &a, const tile &at, uint32_t row,
                                           const float (&z)[COLUMNS / 2])
{
    const uint32_t lane = threadIdx.x % 4;
    gr_bf16 *to = (gr_bf16 *)a.d + ((size_t)at.first + row) * a.n;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int m = 0; m < COLUMNS / 32; m++) {
            uint32_t word[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                word[i] = gr_pair(z[4 * (4 * m + i) + 2 * h], z[4 * (4 * m + i) + 2 * h + 1]);
            exchange(word, lane);
            const uint32_t column = at.column + 8 * (4 * m + lane);
            if (row + 8 * h < at.rows && column < a.n)
                *(uint4 *)(to + (size_t)(8 * h) * a.n + column) =
                    make_uint4(word[0], word[1], word[2], word[3]);
        }
}

__device__ __forceinline__ void add_bias(const args &a, const tile &at, float (&z)[COLUMNS / 2])
{
    const gr_bf16 *bias = a.bias + (size_t)at.expert * a.n;
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++) {
        const uint32_t column = at.column + 8 * j + 2 * (threadIdx.x % 4);
        if (column >= a.n) continue;
        const uint32_t two = *(const uint32_t *)(bias + column);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            z[4 * j + 2 * h] += gr_low(two);
            z[4 * j + 2 * h + 1] += gr_high(two);
        }
    }
}

template <int FORM> __device__ __forceinline__ void consume(const args &a, pipe &in, const uint32_t *start)
{
    const uint32_t group = threadIdx.x / GR_WARPGROUP - 1, warp = threadIdx.x % GR_WARPGROUP / GR_WARP;
    const uint32_t mine = group * PART + 16 * warp + threadIdx.x % GR_WARP / 4;
    tiles<FORM> all(a, start);
    for (tile at; all.next(at);) {
        float z[COLUMNS / 2];
        multiply<FORM>(in, group, at, z, alone());
        if (FORM == GR_CU_EXPERTS_Y && a.bias) add_bias(a, at, z);
        store_rows(a, at, at.row + mine, z);
    }
}

#endif

template <int FORM>
__global__ void __launch_bounds__(GR_PIPE_THREADS, 1)
    product_kernel(const args a, const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w)
{
#if GR_HOPPER
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ __align__(8) uint64_t barrier[2 * STAGES];
    __shared__ uint32_t start[GR_CU_EXPERTS_MAX + 1];
    pipe p;
    if (threadIdx.x < GR_WARP) count_tiles<FORM>(a, start);
    __syncthreads();
    p.open(memory, barrier);
    if (threadIdx.x < GR_WARPGROUP) {
        gr_registers_fewer<40>();
        if (threadIdx.x == 0) produce<FORM>(a, p, start, &x, &w);
    } else {
        gr_registers_more<232>();
        consume<FORM>(a, p, start);
    }
    gr_cluster_meet(); /* the other CTA may still arrive at barriers of this one */
#else
    (void)a, (void)x, (void)w;
#endif
}

} // namespace

extern "C" bool gr_cu_experts_product_run(cudaStream_t st, const gr_cu_experts_product *p)
{
    const bool y = p->form == GR_CU_EXPERTS_Y;
    const uint32_t terms = y ? p->in : p->out;
    const args a = {p->first, p->bias, p->d, p->experts, 0, y ? p->out : p->in, terms};
    CUtensorMap x, w;
    if (!p->rows) return true;
    if (p->form == GR_CU_EXPERTS_DW) return gr_cu_experts_gradient_run(st, p);
    return take(p) && gr_tile_map(&x, p->a, p->rows, terms, PART) &&
           gr_tile_map(&w, p->b, (uint64_t)p->experts * p->out, p->in, PART) &&
           gr_pipe_launch(st, y ? product_kernel<GR_CU_EXPERTS_Y> : product_kernel<GR_CU_EXPERTS_DX>,
                          pipe::SHARED_BYTES, UINT32_MAX, a, x, w);
}
