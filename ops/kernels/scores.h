/* ops/kernels/scores.h: how attention scores queries and keys, beside causal softmax(q k^T / sqrt(D)).
 *
 * Token i of a sequence sees keys j <= i, and of these the newest `window` alone where there is one. A score
 * is s = scale q_i k_j, then softcap tanh(s / softcap). A head's sink is one more logit of each row's
 * softmax, with no value: weights of a row then sum to less than 1. So, with lse the log of the whole
 * denominator,
 *
 *     weight_ij = exp(s_ij - lse_i),   lse_i = log(exp(sink) + sum over j of exp(s_ij)),
 *     d loss / d sink = - sum over i of exp(sink - lse_i) dout_i . out_i
 *
 * Source: sliding windows, Beltagy et al., arXiv:2004.05150 (a window counts the token itself, as in Hugging
 * Face transformers); sinks, Xiao et al., arXiv:2309.17453, learned as in gpt-oss (transformers,
 * models/gpt_oss); softcap, Gemma 2, arXiv:2408.00118.
 *
 * C and CUDA C++ both read it.
 */
#ifndef GR_OPS_KERNELS_SCORES_H
#define GR_OPS_KERNELS_SCORES_H

#include <math.h>
#include <stdint.h>

typedef struct gr_scores {
    uint32_t window;   /* keys that a token sees, itself included; 0: all before it */
    float scale;       /* of q k^T */
    float softcap;     /* 0: none */
    const void *sinks; /* [heads] of the device's type of weights; NULL: none */
} gr_scores;

/* Without window, softcap and sinks, scaled by 1 / sqrt(D). */
static inline gr_scores gr_scores_plain(uint32_t head_dim)
{
    const gr_scores a = {0, 1 / sqrtf((float)head_dim), 0, 0};
    return a;
}

/* The first key that a token at this position sees. */
static inline uint32_t gr_scores_first(uint32_t window, uint32_t position)
{
    return window && position >= window ? position - window + 1 : 0;
}

#endif
