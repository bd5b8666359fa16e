/* ops/kernels/ahead.h: what stands before the layer that predicts a further token (ops/model/ahead.h):
 *
 *     x [T, H] = W [norm(e); norm'(h)]
 *
 * with e [T, H] the embeddings of the tokens behind those whose hidden states are h [T, H]. What follows is
 * gr_layer_extend with the same shape, and the model's head with that shape's last norm.
 *
 * s: of the layer alone (gr_ahead_shape), bucket: its first. Types, workspaces and batch invariance as in
 * ops/kernels/kernels.h. Only enqueues, allocates nothing.
 */
#ifndef GR_OPS_KERNELS_AHEAD_H
#define GR_OPS_KERNELS_AHEAD_H

#include "ops/kernels/kernels.h"

uint64_t gr_ahead_ws_bytes(const gr_kernels *k, const gr_model_shape *s, uint32_t tokens, unsigned threads);

typedef struct gr_ahead_call {
    const gr_kernels *k;
    gr_queue *q;
    const gr_model_shape *s;
    const void *embed, *bucket; /* the model's embedding */
    const gr_packed *b;         /* ids are those of e; no more tokens than ws is for */
    const void *hidden;
    void *ws;
} gr_ahead_call;
void gr_ahead_enter(const gr_ahead_call *c, void *x);

/* y [n, H] = the norm of n rows of x; norm: its weights, of the model or of a layer that predicts a further
 * token. y == x is fine. */
void gr_ahead_norm(const gr_kernels *k, gr_queue *q, const gr_model_shape *s, const void *norm, const void *x,
                   uint32_t n, void *y);

/* hidden [n, H] = what a further pass reads: rows row [n] of x, which the layer gave, as they are or behind
 * its norm (gr_arch_ahead.normed). row as x; hidden: other memory. */
void gr_ahead_again(const gr_kernels *k, gr_queue *q, const gr_model_shape *s, const void *norm,
                    const void *x, const uint32_t *row, uint32_t n, void *hidden);

#endif
