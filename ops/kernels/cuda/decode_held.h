/* ops/kernels/cuda/decode_held.h: those products of a decode step (gr_cu_decode_product) whose weights the
 * CTAs hold all at once. */
#ifndef GR_OPS_KERNELS_CUDA_DECODE_HELD_H
#define GR_OPS_KERNELS_CUDA_DECODE_HELD_H

#include "ops/kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Runs one that gr_cu_decode_product_takes. false: it has more weights, or more rows, than are held; nothing
 * was launched. */
bool gr_cu_decode_held_run(cudaStream_t st, const gr_cu_decode_product *p);

#ifdef __cplusplus
}
#endif

#endif
