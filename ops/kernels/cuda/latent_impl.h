/* ops/kernels/cuda/latent_impl.h: entries of gr_latent_cuda (ops/kernels/cuda/latent.c). */
#ifndef GR_OPS_KERNELS_CUDA_LATENT_IMPL_H
#define GR_OPS_KERNELS_CUDA_LATENT_IMPL_H

#include "ops/kernels/latent.h"

void gr_cuda_latent_rotate(gr_queue *q, const gr_latent_call *c, const gr_latent_part *p, bool back);
void gr_cuda_latent_absorb(gr_queue *q, const gr_latent_call *c, const void *queries, void *wide);
void gr_cuda_latent_store(gr_queue *q, const gr_latent_call *c, const void *rows);
void gr_cuda_latent_attend(gr_queue *q, const gr_latent_call *c, const void *wide, const void *rows,
                           void *mixed);
void gr_cuda_latent_emit(gr_queue *q, const gr_latent_call *c, const void *mixed, void *out);
void gr_cuda_latent_expand(gr_queue *q, const gr_latent_call *c, const void *queries, const void *kv,
                           const gr_latent_part *key, void *qkv);
void gr_cuda_latent_expand_backward(gr_queue *q, const gr_latent_call *c, const void *dqkv, void *d_q,
                                    void *d_kv, const gr_latent_part *d_key);

#endif
