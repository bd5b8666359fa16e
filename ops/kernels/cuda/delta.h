/* ops/kernels/cuda/delta.h: the kernels of the gated delta rule as C functions that launch them. Formulas,
 * shapes and types: ops/kernels/delta.h. As ops/kernels/cuda/launch.h: they only enqueue, and are
 * deterministic. dk and dv are multiples of 8, at most 128; P a multiple of 8; value_heads of 4. C and CUDA
 * C++ both read it.
 */
#ifndef GR_OPS_KERNELS_CUDA_DELTA_H
#define GR_OPS_KERNELS_CUDA_DELTA_H

#include "ops/kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GR_CU_DELTA_CHUNK 64 /* tokens */
#define GR_CU_DELTA_CONV_ROWS \
    256 /* tokens whose gradients of the convolution's weights are one part of the sum */
#define GR_CU_DELTA_NORM_ROWS 512 /* the same of the norm's weights: rows of dv */

/* One call, and what its kernels leave to each other. */
typedef struct gr_cu_delta {
    uint32_t key_heads, value_heads, dk, dv, conv, channels, width; /* width: P */
    uint32_t n_tokens, n_seqs, longest;
    float eps;
    const uint32_t *offset, *slot, *cached;
    /* 1; or in a decode step the rows of a slot, which is a sequence then: n_seqs counts slots, and each row
     * has an entry of slot and cached (delta_rows.cuh). */
    uint32_t each;
    float *state; /* NULL: packed */
    bool bf16;    /* S is, in slots */
    uint64_t slot_floats, tail_floats;
    const gr_bf16 *in, *w_conv, *a_log, *dt_bias, *norm;
    gr_bf16 *qkv;       /* [T, channels] q over |q| sqrt(dk), k over |k|, v */
    float *rate, *beta; /* [T, value_heads]; rate: log of decay */
    gr_bf16 *mixed;     /* [T, value_heads dv] */
    /* Of chunks (delta.cuh): W [T, value_heads, dk]; U' [T, value_heads, dv], which U or mixed may take the
     * place of; sums of rates (log2) [gr_cu_delta_chunks, value_heads, 64]. */
    gr_bf16 *w, *u;
    float *sums;
} gr_cu_delta;

/* What backward has beside it. */
typedef struct gr_cu_delta_back {
    gr_bf16 *states, *d_states;      /* [gr_cu_delta_chunks, value_heads, dk, dv] before each chunk; and their
                                        gradients behind it */
    gr_bf16 *inverse;                /* [gr_cu_delta_chunks, value_heads, 64, 64]: A */
    const gr_bf16 *dout;             /* [T, value_heads dv] */
    gr_bf16 *d_mixed, *dq, *dk, *dv; /* [T, value_heads, dv or dk] */
    float *d_rate, *d_beta;          /* [T, value_heads] */
    gr_bf16 *d_conv;                 /* [T, channels] before silu */
    float *parts;                    /* of sums into gradients */
    gr_bf16 *din;                    /* [T, P] */
} gr_cu_delta_back;

static inline uint32_t gr_cu_delta_chunks(uint32_t tokens, uint32_t seqs)
{
    return tokens / GR_CU_DELTA_CHUNK + seqs;
}

/* qkv, rate and beta of in; then, in a rollout, the rows that the slots keep. */
void gr_cu_delta_rows(cudaStream_t st, const gr_cu_delta *a);
/* w, u and sums; A to inverse, or NULL. */
void gr_cu_delta_prepare(cudaStream_t st, const gr_cu_delta *a, gr_bf16 *inverse);
/* After it mixed, by chunks; or token by token, whose bits do not depend on how tokens come in calls. States
 * go on. */
void gr_cu_delta_chunked(cudaStream_t st, const gr_cu_delta *a);
void gr_cu_delta_step(cudaStream_t st, const gr_cu_delta *a);
/* out [T, value_heads dv] of mixed. */
void gr_cu_delta_norm(cudaStream_t st, const gr_cu_delta *a, gr_bf16 *out);
/* All of the above in a decode step, where sequences have one token at most, or `each` rows: qkv and the rows
 * that slots keep; then states go on, and out. rate, beta and mixed are not written. */
void gr_cu_delta_decode_rows(cudaStream_t st, const gr_cu_delta *a);
void gr_cu_delta_decode(cudaStream_t st, const gr_cu_delta *a, gr_bf16 *out);

/* In this order, after gr_cu_delta_rows and gr_cu_delta_prepare: */
/* states; u becomes what tokens write. */
void gr_cu_delta_states(cudaStream_t st, const gr_cu_delta *a, const gr_cu_delta_back *b);
/* d_mixed, and z's part of din; grad [dv] +=. */
void gr_cu_delta_norm_backward(cudaStream_t st, const gr_cu_delta *a, const gr_cu_delta_back *b, void *grad,
                               gr_cu_dtype type);
/* d_states; dv becomes d loss / d what tokens write. */
void gr_cu_delta_states_backward(cudaStream_t st, const gr_cu_delta *a, const gr_cu_delta_back *b);
/* dq, dk, dv, d_rate, d_beta. dk may have the place of w. */
void gr_cu_delta_chunked_backward(cudaStream_t st, const gr_cu_delta *a, const gr_cu_delta_back *b);
/* The rest of din; grads [channels, conv], [value_heads] twice +=. */
void gr_cu_delta_rows_backward(cudaStream_t st, const gr_cu_delta *a, const gr_cu_delta_back *b, void *conv,
                               void *a_log, void *dt_bias, gr_cu_dtype type);
/* Floats of parts. */
uint64_t gr_cu_delta_parts(uint32_t tokens, uint32_t channels, uint32_t conv, uint32_t heads, uint32_t dv);

#ifdef __cplusplus
}
#endif

#endif
