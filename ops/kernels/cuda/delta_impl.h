/* ops/kernels/cuda/delta_impl.h: what a pass of the gated delta rule has in its workspace on CUDA, also
 * where CUDA is not built. */
#ifndef GR_OPS_KERNELS_CUDA_DELTA_IMPL_H
#define GR_OPS_KERNELS_CUDA_DELTA_IMPL_H

#include "ops/kernels/cuda/delta.h"
#include "ops/kernels/delta.h"
#include "ops/kernels/workspace.h"

/* For so many tokens and sequences; b: NULL, or what backward has beside it. */
void gr_cu_delta_lay_out(gr_workspace *w, const gr_delta_desc *d, uint32_t tokens, uint32_t seqs,
                         gr_cu_delta *a, gr_cu_delta_back *b);

/* A call as kernels have it, without what they leave to each other. */
gr_cu_delta gr_cu_delta_of(const gr_delta_call *c);

/* Entries of gr_delta_cuda (ops/kernels/cuda/delta.c). */
void gr_cuda_delta_forward(gr_queue *q, const gr_delta_call *c, void *out, void *mixed);
void gr_cuda_delta_backward(gr_queue *q, const gr_delta_call *c, const void *mixed, const void *dout,
                            void *din, const gr_delta_grads *grads);

#endif
