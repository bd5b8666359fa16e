/* ops/kernels/cuda/copy.h: rows out of one matrix into another, where they are so few bytes that a copy
 * between kernels would cost more than its bytes do: in decode steps, whose kernels each begin before the one
 * in front has ended (ops/kernels/cuda/chained.cuh).
 */
#ifndef GR_OPS_KERNELS_CUDA_COPY_H
#define GR_OPS_KERNELS_CUDA_COPY_H

#include "ops/kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GR_CU_COPY_UNIT 16         /* bytes that rows, strides and places are multiples of */
#define GR_CU_COPY_MOST (16 << 20) /* bytes, all rows together */

/* Kernels behind it begin early, and may read weights before it has ended: it copies activations. n rows of
 * so many units, at multiples of to_ld and of from_ld units; they do not overlap. */
void gr_cu_copy_rows(cudaStream_t st, void *to, uint64_t to_ld, const void *from, uint64_t from_ld,
                     uint32_t units, uint32_t n);

#ifdef __cplusplus
}
#endif

#endif
