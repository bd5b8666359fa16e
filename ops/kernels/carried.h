/* ops/kernels/carried.h: what the layers of a pass hand on beside hidden states, in one buffer for all of
 * them: embeddings of each layer, which are made before the first (gr_per_layer_desc), and keys and values of
 * layers that lend them (GR_KEYS_LENT), normed and rotated, of packed sequences alone: in a rollout they are
 * in its blocks. In a backward pass a second buffer of the same layout has d loss / d these.
 *
 * Everything here is composed of a device's primitives (ops/kernels/layer_ops.h), as layers are.
 */
#ifndef GR_OPS_KERNELS_CARRIED_H
#define GR_OPS_KERNELS_CARRIED_H

#include "ops/kernels/kernels.h"

/* Of so many tokens; 0: this model's layers hand on nothing. packed: of packed sequences, not of a rollout.
 */
uint64_t gr_carried_bytes(const gr_kernels *k, const gr_model_shape *s, uint64_t tokens, bool packed);

/* Where embeddings of each layer lie in it, [T, L, P]; and the keys, then values, [T, 2 kv_heads D], that
 * this layer lends. carried: of so many tokens. */
void *gr_carried_per_layer(void *carried);
void *gr_carried_keys(const gr_kernels *k, const gr_model_shape *s, uint64_t tokens, uint32_t layer,
                      void *carried);

/* ---- embeddings of each layer ---- */

/* tokens: of one call; 0: the model has none. */
uint64_t gr_per_layer_ws_bytes(const gr_kernels *k, const gr_model_shape *s, uint32_t tokens,
                               unsigned threads, bool backward);
/* What is read: ids of b, x [T, H], the tokens' embeddings as the first layer gets them, and w, bucket L + 2;
 * what is written: b->carried. */
void gr_per_layer_forward(const gr_kernels *k, gr_queue *q, const gr_model_shape *s, const void *w,
                          const gr_packed *b, const void *x, void *ws);
/* From b->d_carried, which is overwritten: grad (bucket L + 2) += its part, and dx [T, H] += what it gives to
 * x. */
void gr_per_layer_backward(const gr_kernels *k, gr_queue *q, const gr_model_shape *s, const void *w,
                           const gr_packed *b, const void *x, void *dx, void *grad, gr_dtype grads, void *ws);

#endif
