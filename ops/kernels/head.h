/* ops/kernels/head.h: embedding and output matrix whose rows, the vocabulary, are cut over ranks: rank i of N
 * side by side has the rows of ids [i V / N, (i + 1) V / N). They are the queue's peers, of which each has
 * some of the tokens (gr_packed.cut).
 *
 * Embedding: each rank looks up the tokens of all of them, as far as their ids are its own, and 0 elsewhere;
 * the sum is scattered over the ranks' tokens again. Back, d loss / d x is gathered, and each adds the rows
 * of its ids.
 *
 * Head: ranks gather the hidden states of so many rows of each, behind the final norm; multiply them by their
 * part of the matrix; and exchange, of each row, five numbers: the largest of its logits, three sums relative
 * to that, and the target's logit. From those of all ranks follow log-sum-exp, log-prob and entropy, on every
 * rank alike. Back, each has the gradients of its logits, adds those of its part of the matrix, and the sum
 * of what they give to the hidden states is scattered. No rank ever has a row of all logits; a chunk of rows
 * of every rank takes as many logits as one rank's chunk of whole rows.
 *
 * All ranks make the same calls, of as many rows each (gr_head_window.each), whichever they have: memory is
 * laid out by that alone, so that collectives find it at one place of the arena.
 *
 * Source: Shoeybi et al., Megatron-LM, arXiv:1909.08053, section 3 (vocabulary-parallel embedding and
 * cross-entropy); the sums of a softmax in parts: Milakov and Gimelshein, arXiv:1805.02867.
 */
#ifndef GR_OPS_KERNELS_HEAD_H
#define GR_OPS_KERNELS_HEAD_H

#include "ops/kernels/kernels.h"

/* What a rank knows of a row's logits, in the device's own form: the largest, and relative to it the sums of
 * e^z, e^z z and e^2z; and the target's logit, 0 where another rank has it. */
#define GR_HEAD_PART 5

/* What a device does. s: of a slice, whose vocab is its own. rows->target is relative to its first id, -1
 * where another rank has it; rows->row is not looked at, where there is `hidden`. */
typedef struct gr_head_ops {
    /* Of `part` and `part_backward` of n rows, and of `hidden_backward` of `own` rows. */
    uint64_t (*part_ws_bytes)(const gr_model_shape *s, uint32_t n, uint32_t own, gr_head_use use,
                              unsigned threads);
    /* hidden [n, H]: the final norm's output for rows of x. */
    void (*hidden)(gr_queue *q, const gr_model_shape *s, const void *norm, const void *x, const uint32_t *row,
                   uint32_t n, void *hidden);
    /* part [n, GR_HEAD_PART]; keep: part_backward follows, and finds the logits in ws. */
    void (*part)(gr_queue *q, const gr_model_shape *s, const void *lm, const void *hidden,
                 const gr_head_rows *rows, float *part, void *ws);
    /* From part [slices, n, GR_HEAD_PART]: out, all of it, and lse. [n] each. */
    void (*join)(gr_queue *q, const float *part, uint32_t slices, uint32_t n, float inv_temperature,
                 const gr_head_stats *out, float *lse);
    /* d_hidden [n, H] is written, grad_lm added to, where not NULL. d_entropy: may be NULL. */
    void (*part_backward)(gr_queue *q, const gr_model_shape *s, const void *lm, const void *hidden,
                          const gr_head_rows *rows, const float *lse, const float *entropy,
                          const float *d_logprob, const float *d_entropy, void *d_hidden, void *grad_lm,
                          gr_dtype grads, void *ws);
    /* The rows of dx named by row are written, grad_norm is added to, where not NULL. d_hidden [n, H] is
     * overwritten. */
    void (*hidden_backward)(gr_queue *q, const gr_model_shape *s, const void *norm, const void *x,
                            const uint32_t *row, uint32_t n, void *d_hidden, void *dx, void *grad_norm,
                            gr_dtype grads, void *ws);
} gr_head_ops;

/* ---- head ---- */

typedef struct gr_head_call {
    const gr_kernels *k;
    gr_queue *q;
    const gr_model_shape *s;
    uint32_t slices;
    uint32_t most; /* rows of one rank, for which ws is */
    unsigned threads;
    gr_head_use use;
    const void *norm, *lm; /* [H]; [V / slices, H] */
    const void *x;         /* [T, H] of this rank's tokens */
    void *ws;
} gr_head_call;

/* Rows of each rank of the group: `each`, of which this one has n, maybe none. */
typedef struct gr_head_window {
    uint32_t n, each;
    const uint32_t *row;   /* [n] as of gr_head_rows */
    const int32_t *target; /* of rank r of the group at r * stride: [each] */
    uint32_t stride;       /* of target */
    float inv_temperature;
} gr_head_window;

/* In ws, of this rank's rows: statistics, and room for d loss / d them. [n] each; d_logprob and d_entropy
 * have `each`, and what is behind n must be 0. */
typedef struct gr_head_own {
    gr_head_stats stats;
    float *d_logprob, *d_entropy;
} gr_head_own;

/* rows: the most of one rank. */
uint64_t gr_head_slices_ws_bytes(const gr_kernels *k, const gr_model_shape *s, uint32_t slices, uint32_t rows,
                                 gr_head_use use, unsigned threads);
gr_head_own gr_head_slices_forward(const gr_head_call *c, const gr_head_window *w);
/* For the window that forward just left in ws (of GR_HEAD_GRADIENT), with what was written to d_logprob and,
 * where has_d_entropy, d_entropy; as of gr_kernels.head_backward. */
void gr_head_slices_backward(const gr_head_call *c, const gr_head_window *w, bool has_d_entropy, void *dx,
                             void *grad_norm, void *grad_lm, gr_dtype grads);

/* ---- embedding ---- */

/* tokens: of one rank; ids [slices tokens] of all ranks of the group, relative to this one's first, -1 where
 * another rank has it. */
uint64_t gr_embed_slices_ws_bytes(const gr_kernels *k, const gr_model_shape *s, uint32_t slices,
                                  uint32_t tokens, bool backward);
typedef struct gr_embed_call {
    const gr_kernels *k;
    gr_queue *q;
    const gr_model_shape *s;
    uint32_t slices, tokens;
    uint32_t most; /* tokens of one rank, for which ws is */
    const int32_t *ids;
    void *ws;
} gr_embed_call;
void gr_embed_slices_forward(const gr_embed_call *c, const void *embed, void *x);
void gr_embed_slices_backward(const gr_embed_call *c, const void *dx, void *grad_embed, gr_dtype grads);

#endif
