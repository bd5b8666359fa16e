/* ops/kernels/delta.h: the gated delta rule (gr_delta_desc of ops/model/layer.h), a token mixer whose state
 * has one size for every length.
 *
 * Of each token comes a row of `in` [T, P]: q [key_heads dk], k [key_heads dk], v [value_heads dv], then z
 * [value_heads dv], b [value_heads], a [value_heads]. With value head h on key head h key_heads /
 * value_heads:
 *
 *     (q, k, v)_t = silu(sum over j < conv of w_j (q, k, v)_(t - conv + 1 + j)), a channel at a time
 *     q_t = q_t / (|q_t| sqrt(dk)),  k_t = k_t / |k_t|           |x|^2 = sum of squares + 1e-6
 *     beta_t = sigmoid(b_t),  decay_t = exp(-exp(A_log) softplus(a_t + dt_bias))
 *     S_t = decay_t S_(t-1) + k_t (beta_t (v_t - (decay_t S_(t-1))^T k_t))^T         S [dk, dv]
 *     out_t = norm * rms(S_t^T q_t) * silu(z_t), rms over dv
 *
 * The convolution and S begin with zeros at each sequence, packed or not: nothing of one reaches the next.
 * In a rollout a slot keeps the last conv - 1 rows of (q, k, v) as they came and S, both fp32; a call goes on
 * from there, be it one token a slot or a part of a prompt. With gr_delta_desc.bf16_state S is kept in bf16:
 * what a token gives is of the S that it has made, which is rounded behind it (on CUDA, of a part of a prompt
 * taken in chunks, behind the part).
 *
 * The CPU device goes token by token everywhere, so its bits are those of one token at a time. So does CUDA
 * under `strict: true`, in fp32. Without it CUDA takes packed sequences and parts of prompts in chunks of
 * GR_DELTA_CHUNK tokens (the same sums in another order, with products in bf16 of fp32 states), as it does
 * for all gradients, and steps token by token.
 *
 * Types: in, out, weights and gradients of activations are the device's; states fp32; gradients of weights of
 * type `grads`, added to. All pointers are device pointers. Only enqueues, allocates nothing.
 *
 * Source: Yang, Kautz and Hatamizadeh, Gated Delta Networks, arXiv:2412.06464; the chunked form, Yang et al.,
 * arXiv:2406.06484; details as in Hugging Face transformers, models/qwen3_next.
 */
#ifndef GR_OPS_KERNELS_DELTA_H
#define GR_OPS_KERNELS_DELTA_H

#include "ops/kernels/kernels.h"
#include "ops/model/layer.h"

#define GR_DELTA_CHUNK    64
#define GR_DELTA_DIM_MAX  128 /* of a head */
#define GR_DELTA_CONV_MAX 8

/* A slot: floats of the convolution's rows, oldest first; then S of each value head, up to a multiple of four
 * bytes. */
static inline uint64_t gr_delta_tail(const gr_delta_desc *d)
{
    return (uint64_t)(d->conv - 1) * gr_delta_channels(d);
}
static inline uint64_t gr_delta_state_bytes(const gr_delta_desc *d)
{
    const uint64_t n = (uint64_t)d->value_heads * d->key_dim * d->value_dim;
    return 4 * gr_delta_tail(d) + gr_align(n * (d->bf16_state ? 2 : 4), 4);
}

typedef struct gr_delta_call {
    gr_delta_desc d;
    float eps;                                 /* of the norm over dv */
    const void *conv, *a_log, *dt_bias, *norm; /* [channels, conv], [value_heads] twice, [value_dim] */
    const void *in;                            /* [T, P] */
    uint32_t n_tokens, n_seqs, longest;        /* longest: no sequence has more tokens in this call */
    const uint32_t *offset;                    /* [n_seqs + 1] */
    float *state;                              /* of all slots; NULL: packed, and what follows is not read */
    const uint32_t *slot;                      /* [n_seqs] of each sequence; UINT32_MAX: none, its out is 0 */
    const uint32_t *cached;                    /* [n_seqs] tokens before; 0: the slot counts as zeros */
    const uint32_t *after; /* [T] as of gr_extend.held_after; on CUDA NULL, where drafts have this: */
    /* Sequences of one token each follow each other by so many, the rows of a slot (gr_decode.each): each but
     * the first goes on from the state behind the one before. slot is where a row's own is left; the first
     * begins with what is there. Behind a row without one there are none. 0, 1: they do not. */
    uint32_t each;
    void *ws; /* of ws_bytes */
} gr_delta_call;

typedef struct gr_delta_grads {
    gr_dtype type;
    void *conv, *a_log, *dt_bias, *norm;
} gr_delta_grads;

typedef struct gr_delta_ops {
    /* Of a pass within these bounds. */
    uint64_t (*ws_bytes)(const gr_delta_desc *d, const gr_pass_bounds *b, gr_layer_use use);
    /* mixed [T, out]: S^T q before the norm, which backward needs; NULL: not kept. */
    void (*forward)(gr_queue *q, const gr_delta_call *c, void *out, void *mixed);
    /* din [T, P] of dout [T, out]; packed sequences alone. */
    void (*backward)(gr_queue *q, const gr_delta_call *c, const void *mixed, const void *dout, void *din,
                     const gr_delta_grads *grads);
    /* What of these dimensions it is not made for; NULL: nothing. */
    const char *(*unfit)(const gr_delta_desc *d);
} gr_delta_ops;

/* In a build without CUDA its table has the sizes alone, for planning: what runs is NULL. */
extern const gr_delta_ops gr_delta_cpu, gr_delta_cuda;

#endif
