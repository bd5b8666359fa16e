/* ops/kernels/latent.h: multi-head latent attention (gr_latent_desc of ops/model/layer.h): what its
 * composition (ops/kernels/layer_latent.c) asks of a device beside products, norms and plain attention.
 *
 * Letters: N heads, A nope_dim, P rope_dim, V v_dim, R kv_rank, D = A + P. Of each token t come queries q [N,
 * D] and one row [c, k], c [R] behind its norm and k [P] rotated. With W the layer's [N, A + V, R]:
 *
 *     score of head h = scale (qA_h . (W_h,A c) + qP_h . k),   value of head h = W_h,V c
 *
 * There are two forms of the same sums. Expanded: keys and values of every head are made of c, and attention
 * is plain, with heads of D (values are filled up with zeros from V to D). Absorbed: (qA_h W_h,A) . c has the
 * same value, so that a query of R + P values a head reads the rows themselves, which all heads share, and
 * what it gathers, [N, R], goes through W_h,V once.
 *
 *  - A rollout keeps rows: R + P values a token, in blocks of GR_KV_BLOCK. It reads them absorbed. Expanding
 *    what is read would take N (A + V) R multiply-adds a key and a step, where absorbing takes N (2 R + P),
 *    and memory for the keys and values of every sequence at once, which is what rows are there to save.
 *  - Passes with gradients are expanded: 2 N D multiply-adds a pair where absorbed are N (2 R + P), three to
 *    four times as many with usual sizes; and the device's fastest attention serves.
 *  - Kernels with batch invariance (gr_kernels.invariant) compute packed passes absorbed, too, so that a
 *    token has the same bits wherever it is computed; their backward pass computes attention's output and
 *    statistics again, expanded, so that gradients are those of one form.
 *
 * Of a slice (ops/model/tp.h) N is its part of the heads; the latents, the norms and the rows are whole.
 *
 * Types: the device's; sums fp32. All pointers are device pointers. Only enqueues, allocates nothing. A row's
 * bits do not depend on what else is in the batch.
 *
 * Source: DeepSeek-V2, arXiv:2405.04434 (2.1); details as in Hugging Face transformers, models/deepseek_v3.
 */
#ifndef GR_OPS_KERNELS_LATENT_H
#define GR_OPS_KERNELS_LATENT_H

#include "ops/kernels/layer_ops.h"

/* Parts of rows: n heads of each row, P values each, head h of row t at x + t ld + h stride. */
typedef struct gr_latent_part {
    void *x;
    uint32_t ld, n, stride;
} gr_latent_part;

typedef struct gr_latent_call {
    const gr_latent_desc *d;
    const gr_tokens *b;
    const void *kv; /* W [N (A + V), R] */
    void *ws;       /* of ws_bytes */
    uint32_t first; /* which packed token b's first is, for rotate: where tokens are cut over ranks */
} gr_latent_call;

typedef struct gr_latent_ops {
    /* Of absorb, attend and emit within these bounds. */
    uint64_t (*ws_bytes)(const gr_latent_desc *d, const gr_pass_bounds *b, gr_layer_use use);
    uint64_t (*block_bytes)(const gr_latent_desc *d);
    /* Rotates parts in place by their tokens' positions; back: the other way, of gradients. */
    void (*rotate)(gr_queue *q, const gr_latent_call *c, const gr_latent_part *p, bool back);

    /* ---- absorbed ---- */
    /* wide [T, N (R + P)] of q [T, N D], whose parts are rotated. */
    void (*absorb)(gr_queue *q, const gr_latent_call *c, const void *queries, void *wide);
    /* rows [T, R + P] of new tokens go to their blocks. */
    void (*store)(gr_queue *q, const gr_latent_call *c, const void *rows);
    /* mixed [T, N R]: of each head the sum of c by the softmax's weights. rows [T, R + P] of packed
     * sequences; in a rollout those that were stored are read, the new ones among them. */
    void (*attend)(gr_queue *q, const gr_latent_call *c, const void *wide, const void *rows, void *mixed);
    /* out [T, N V] of mixed */
    void (*emit)(gr_queue *q, const gr_latent_call *c, const void *mixed, void *out);

    /* ---- expanded ---- */
    /* qkv [T, 3 N D], as ops/kernels/layer_ops.h has it for gr_latent_expanded, of q [T, N D], kv [T, N (A +
     * V)] and key, a part of one head. */
    void (*expand)(gr_queue *q, const gr_latent_call *c, const void *queries, const void *kv,
                   const gr_latent_part *key, void *qkv);
    /* d_q, d_kv and d_key from dqkv; d_key is the sum over heads, in their order. */
    void (*expand_backward)(gr_queue *q, const gr_latent_call *c, const void *dqkv, void *d_q, void *d_kv,
                            const gr_latent_part *d_key);
    /* What of these dimensions it is not made for; NULL: nothing. */
    const char *(*unfit)(const gr_latent_desc *d);
} gr_latent_ops;

/* In a build without CUDA its table has the sizes alone, for planning: what runs is NULL. */
extern const gr_latent_ops gr_latent_cpu, gr_latent_cuda;

#endif
