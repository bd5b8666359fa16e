/* ops/kernels/cuda/context.h: what the CUDA kernels keep with a queue. Threads: the queue's alone. */
#ifndef GR_OPS_KERNELS_CUDA_CONTEXT_H
#define GR_OPS_KERNELS_CUDA_CONTEXT_H

#include "ops/kernels/cuda/attention.h"
#include "ops/kernels/cuda/gemm.h"
#include "ops/kernels/cuda/model.h"
#include "ops/model/rope.h"

#define GR_CU_ROPES_MAX 16

/* Frequencies of one kind of rotary positions. */
typedef struct gr_cu_rope {
    uint32_t n;
    float inv_freq[GR_HEAD_DIM_MAX / 2];
    float *device;
} gr_cu_rope;

typedef struct gr_cu_context {
    gr_cu_gemm *gemm;
    gr_cu_attention *attention;
    bool strict, nondeterministic; /* batch-invariant forward; backward with sums in no fixed order */
    gr_cu_rope ropes[GR_CU_ROPES_MAX];
    uint32_t n_ropes;
    gr_status failed; /* the first failure since check, with its message */
    gr_diag d;
} gr_cu_context;

static inline gr_cu_context *gr_cu_context_of(gr_queue *q)
{
    return q->context;
}

static inline gr_cu_dtype gr_cu_type(gr_dtype t)
{
    return t == GR_F32 ? GR_CU_F32 : GR_CU_BF16;
}

/* Keep the first failure. */
void gr_cu_note(gr_queue *q, gr_status st);

/* The table of frequencies [head_dim / 2] on the device, made when it is first seen: zeros where nothing is
 * rotated, for an angle of 0 changes no bit. NULL: it could not be, which is noted. */
const float *gr_cu_frequencies(gr_queue *q, const gr_rope_desc *d, uint32_t head_dim);

/* One product on the queue; a failure is noted. */
static inline void gr_cu_product(gr_queue *q, const gr_cu_gemm_call *call, void *ws)
{
    gr_cu_context *x = gr_cu_context_of(q);
    gr_cu_note(q, gr_cu_gemm_run(x->gemm, q->stream, call, ws, &x->d));
}

#endif
