/* ops/kernels/cuda/sums.cu: sums over tokens that go into gradients of weights. Two stages of a fixed shape:
 * blocks sum strips of rows into fp32 parts, one small kernel adds the parts up in order. Bound by memory:
 * the first stage reads every row once, 16 bytes a thread; the parts are a few per cent of that.
 */
#include "ops/kernels/cuda/device.cuh"

enum { COLS = GR_WARP, DEEP = 16 }; /* of the block of add_kernel */

template <typename G>
GR_KERNEL void __launch_bounds__(COLS *DEEP)
    add_kernel(const float *__restrict__ parts, uint32_t n_parts, uint32_t cols, G *grad)
{
    __shared__ float sums[DEEP][COLS];
    const uint32_t col = blockIdx.x * COLS + threadIdx.x;
    float sum = 0;
    if (col < cols) {
#pragma unroll 8
        for (uint32_t p = threadIdx.y; p < n_parts; p += DEEP) sum += parts[(size_t)p * cols + col];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || col >= cols) return;
    float total = 0;
#pragma unroll
    for (int i = 0; i < DEEP; i++) total += sums[i][threadIdx.x];
    gr_put(grad + col, gr_get(grad + col) + total);
}

extern "C" void gr_cu_parts_add(cudaStream_t st, const float *parts, uint32_t n_parts, uint32_t cols,
                                void *grad, gr_cu_dtype grad_type)
{
    const dim3 block(COLS, DEEP);
    const uint32_t grid = gr_ceil_div(cols, COLS);
    if (grad_type == GR_CU_F32)
        add_kernel<<<grid, block, 0, st>>>(parts, n_parts, cols, (float *)grad);
    else
        add_kernel<<<grid, block, 0, st>>>(parts, n_parts, cols, (gr_bf16 *)grad);
}

/* ---- columns of a matrix ---------------------------------------------------------------------------------
 */

enum { STRIP_COLS = GR_STRIP_COLS, STRIP_ROWS = 8 }; /* a block has 8 rows in hand, 8 columns a lane */

GR_KERNEL void __launch_bounds__(GR_WARP *STRIP_ROWS)
    strip_kernel(const gr_bf16 *__restrict__ d, float *__restrict__ parts, uint32_t T, uint32_t cols,
                 uint32_t rows)
{
    __shared__ float sums[STRIP_ROWS][STRIP_COLS];
    const uint32_t col = blockIdx.x * STRIP_COLS + 8 * threadIdx.x, first = blockIdx.y * rows;
    const uint32_t end = first + rows < T ? first + rows : T;
    float sum[8] = {0};
    if (col < cols) {
#pragma unroll 4
        for (uint32_t t = first + threadIdx.y; t < end; t += STRIP_ROWS) {
            float x[8];
            gr_unpack(*(const uint4 *)(d + (size_t)t * cols + col), x);
#pragma unroll
            for (int i = 0; i < 8; i++) sum[i] += x[i];
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) sums[threadIdx.y][8 * threadIdx.x + i] = sum[i];
    __syncthreads();
    const uint32_t at = threadIdx.y * GR_WARP + threadIdx.x, to = blockIdx.x * STRIP_COLS + at;
    if (to >= cols) return;
    float total = 0;
#pragma unroll
    for (int i = 0; i < STRIP_ROWS; i++) total += sums[i][at];
    parts[(size_t)blockIdx.y * cols + to] = total;
}

extern "C" void gr_cu_column_sums(cudaStream_t st, const gr_bf16 *d, void *grad, gr_cu_dtype grad_type,
                                  uint32_t T, uint32_t cols, void *ws)
{
    if (!T) return;
    const uint32_t rows = gr_ceil_div(T, gr_strips(T, cols)), parts = gr_ceil_div(T, rows);
    const dim3 grid(gr_ceil_div(cols, STRIP_COLS), parts), block(GR_WARP, STRIP_ROWS);
    strip_kernel<<<grid, block, 0, st>>>(d, (float *)ws, T, cols, rows);
    gr_cu_parts_add(st, (const float *)ws, parts, cols, grad, grad_type);
}
