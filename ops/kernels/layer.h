/* ops/kernels/layer.h: the one composition of a layer, forward, backward and over a rollout's state, in
 * device-free C over the primitives of ops/kernels/layer_ops.h; and the sizes that follow from it.
 *
 * layer: from 0; its description is gr_layer(s, layer), its weights bucket 1 + layer. Shapes, types and
 * workspaces as in ops/kernels/kernels.h. What a pass needs is listed once (a function that hands out buffers
 * and counts them, ops/kernels/lay out.h), so that a size cannot differ from what runs.
 *
 * A kind of mixer or MLP is a file (layer_attention.c, layer_dense.c, ...) with one gr_layer_part
 * (ops/kernels/layer_impl.h): its buffers, forward, backward, extend. layer.c has the norms, the residuals
 * and the order.
 */
#ifndef GR_OPS_KERNELS_LAYER_H
#define GR_OPS_KERNELS_LAYER_H

#include "ops/kernels/kernels.h"
#include "ops/model/layer.h"

/* ---- sizes in bytes ---- */
uint64_t gr_layer_acts_bytes(const gr_kernels *k, const gr_model_shape *s, uint32_t layer,
                             const gr_pass_bounds *b); /* kept for backward, beside the input */
/* Bounds of GR_LAYER_EXTEND: tokens and sequences of one call, length of keys. */
uint64_t gr_layer_ws_bytes(const gr_kernels *k, const gr_model_shape *s, uint32_t layer,
                           const gr_pass_bounds *b, gr_layer_use use);
/* The largest of all layers. */
uint64_t gr_layers_acts_bytes(const gr_kernels *k, const gr_model_shape *s, const gr_pass_bounds *b);
uint64_t gr_layers_ws_bytes(const gr_kernels *k, const gr_model_shape *s, const gr_pass_bounds *b,
                            gr_layer_use use);

/* ---- state of a rollout ---- */
/* What it has room for: blocks of GR_KV_BLOCK positions for layers whose state is paged, of them those with a
 * window where these have others (window_blocks; 0: as many), and sequences at once for those whose state is
 * of one size. */
typedef struct gr_state_room {
    uint32_t blocks, slots, window_blocks;
} gr_state_room;
/* Bytes of a layer for one block, or for one slot; 0 where its state is of the other kind. */
uint64_t gr_layer_block_bytes(const gr_kernels *k, const gr_model_shape *s, uint32_t layer);
uint64_t gr_layer_slot_bytes(const gr_kernels *k, const gr_model_shape *s, uint32_t layer);
/* Where a layer's part begins in the state of all of them; of layer L, where all end. */
uint64_t gr_layer_state_at(const gr_kernels *k, const gr_model_shape *s, uint32_t layer, gr_state_room room);
/* Whether any layer's state is not paged. */
bool gr_layers_have_slots(const gr_kernels *k, const gr_model_shape *s);

/* Whether its blocks are those of gr_extend.window_at. */
bool gr_layer_has_window(const gr_model_shape *s, uint32_t layer);

/* Copy block src[i] to dst[i] in a layer's part of the state; nothing where it is not paged. */
void gr_layer_copy_blocks(const gr_kernels *k, gr_queue *q, const gr_model_shape *s, uint32_t layer,
                          void *state, const uint32_t *src, const uint32_t *dst, uint32_t n);
/* The same of slots; nothing where it is paged. */
void gr_layer_copy_slots(const gr_kernels *k, gr_queue *q, const gr_model_shape *s, uint32_t layer,
                         void *state, const uint32_t *src, const uint32_t *dst, uint32_t n);

/* ---- passes ---- */
/* In place on x [T, H]. keep_in [T, H], where not NULL, receives x as it came; acts, where not NULL, what
 * gr_layer_backward needs beside it. w: the layer's bucket. */
void gr_layer_forward(const gr_kernels *k, gr_queue *q, const gr_model_shape *s, uint32_t layer,
                      const void *w, const gr_packed *b, void *x, void *keep_in, void *acts, void *ws);
/* What of a layer has gradients, where it is not its weights: its adapters, which are merged into them. */
typedef struct gr_layer_adapters {
    const gr_model_shape *shape; /* of the adapters */
    const void *bucket;          /* their weights */
} gr_layer_adapters;
/* dx [T, H] in place: from d loss / d output to d loss / d input; grad (bucket layout, of the adapters where
 * not NULL) += its part. */
void gr_layer_backward(const gr_kernels *k, gr_queue *q, const gr_model_shape *s, uint32_t layer,
                       const void *w, const gr_layer_adapters *adapters, const gr_packed *b, const void *in,
                       const void *acts, void *dx, void *grad, gr_dtype grads, void *ws);
/* x [n_tokens, H] of new tokens, in place; state: this layer's part of the rollout's. */
void gr_layer_extend(const gr_kernels *k, gr_queue *q, const gr_model_shape *s, uint32_t layer, const void *w,
                     const gr_extend *e, void *x, void *state, void *ws);

/* What of this model the device's kernels are not made for, as a text in buf; NULL: nothing. */
const char *gr_layers_unfit(const gr_kernels *k, const gr_model_shape *s, char buf[GR_UNFIT_MAX]);

#endif
