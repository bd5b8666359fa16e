/* ops/kernels/cuda/context.h: what the C files of the CUDA kernels ask of what is kept with a queue
 * (ops/kernels/cuda/model.c).
 */
#ifndef GR_OPS_KERNELS_CUDA_CONTEXT_H
#define GR_OPS_KERNELS_CUDA_CONTEXT_H

#include "ops/kernels/cuda/gemm.h"
#include "runtime/device/device.h"

/* One product; a failure is told by the table's check. */
void gr_cuda_gemm(gr_queue *q, const gr_cu_gemm_call *call, void *ws);
/* A failure of the queue, to be told by check. */
void gr_cuda_failed(gr_queue *q, const char *what);

#endif
