/* ops/kernels/layer_ops.h: what the composition of a layer (ops/kernels/layer.h) asks of a device.
 *
 * Each device has one gr_layer_ops (gr_kernels.layer). A primitive does one thing to T rows; where a device
 * does two at once it offers a fused form, which the composition asks for first. A primitive knows nothing of
 * layers, buckets or families: it gets a part of a description and plain pointers.
 *
 * Letters: T tokens, H hidden, D head_dim, I inner, W = gr_qkv_width. Matrices are row-major and dense.
 * Values are of the device's type (fp32, bf16) where the pointer is void, statistics fp32; gradients of
 * weights are of type `grads` and are added to. All pointers are device pointers. Nothing is allocated:
 * workspaces come with their sizes, pure functions that the planner counts too, also where the device is not
 * built. A failure is told by gr_kernels.check. Batch invariance and the order of sums:
 * ops/kernels/kernels.h.
 */
#ifndef GR_OPS_KERNELS_LAYER_OPS_H
#define GR_OPS_KERNELS_LAYER_OPS_H

#include "ops/kernels/kernels.h"
#include "ops/kernels/scores.h"
#include "ops/model/adapters.h"
#include "ops/model/layer.h"

/* The tokens of a call, and where their sequences' state lies: packed sequences, or new tokens of sequences
 * in a rollout. Arrays as in gr_packed and gr_extend. */
typedef struct gr_tokens {
    uint32_t n, n_seqs;
    const uint32_t *offset;               /* [n_seqs + 1] */
    const uint32_t *host_offset;          /* the same on the host; NULL in a rollout */
    const uint32_t *prefix, *host_prefix; /* [n_seqs] of packed sequences that share their beginning; NULL */
    const int32_t *position;     /* [n]; may be NULL on a device that counts from offset and cached */
    void *state;                 /* this layer's part of the rollout's state; NULL: packed, and what follows
                                    is not there */
    const uint32_t *cached;      /* [n_seqs] */
    const uint32_t *block_table; /* [n_seqs, table_stride] */
    uint32_t table_stride;
    const uint32_t *slot;       /* [n] where a token's keys go */
    const uint32_t *held;       /* [n_seqs] whose state of one size is a sequence's; see gr_extend */
    const uint32_t *held_after; /* [n]; NULL */
    uint32_t longest;
    const gr_decode *decode; /* one token a slot; NULL: not */
} gr_tokens;

/* Of packed sequences: tokens that sequence i goes on from, 0 where it has its beginning itself; and its
 * keys, these included. prefix: NULL where none shares. */
static inline uint32_t gr_seq_before(const uint32_t *offset, const uint32_t *prefix, uint32_t i)
{
    return prefix && prefix[i] != i ? offset[prefix[i] + 1] - offset[prefix[i]] : 0;
}
static inline uint32_t gr_seq_keys(const uint32_t *offset, const uint32_t *prefix, uint32_t i)
{
    return gr_seq_before(offset, prefix, i) + offset[i + 1] - offset[i];
}

/* RMSNorm of n rows. */
typedef struct gr_norm {
    uint32_t n, cols;
    const void *x, *w; /* [n, cols], [cols] */
    float eps;
    bool plus_one; /* the factor is 1 + w */
} gr_norm;

/* x [t, in] times w [out, in], transposed. */
typedef struct gr_product {
    uint32_t t, in, out;
    const void *x, *w;
    const void *bias;    /* [out]; NULL: none */
    const float *scales; /* w is in FP8, and these are its scales (ops/model/fp8.h); NULL: it is not. A
                            product for the gradient of w does not read w, and is the same either way */
    bool dw_fp8;         /* that product is in FP8 as well: what it multiplies is rounded on the way */
    bool step;           /* of a decode step: the work in front of it does not write w */
    const gr_norm *norm; /* of x, which is to be normed first; NULL: it is as it is. Only where product_norms
                            says that a product does so */
    bool rounded;        /* x is in the product's workspace, where norm_round and the like have left it */
} gr_product;

/* w [rows, cols] of the device's type, made FP8. */
typedef struct gr_quantize {
    uint32_t rows, cols;
    const void *w;
    void *values;  /* [rows, cols] E4M3 */
    float *scales; /* [gr_fp8_blocks(rows), gr_fp8_scale_ld(cols)]; what fills up rows is 0 */
} gr_quantize;

/* out [rows, in] = w + scale b a, rounded once: an adapter a [rank, in], b [rows, rank] made part of what it
 * stands beside. out is w, or does not overlap it. */
typedef struct gr_merge {
    uint32_t rows, in, rank;
    float scale;
    const void *w, *a, *b;
    void *out;
} gr_merge;

/* The adapters of a product y [t, out] = x w'^T in its backward pass, where w' has them merged:
 *
 *     grad_a += (scale dy b)^T x;  grad_b += dy^T (scale x a^T)      of each, dy its columns of [t, out]
 *
 * Offsets are those of gr_adapter, into the bucket and its gradients. */
typedef struct gr_adapters_back {
    uint32_t t, rank, count;
    float scale;
    const gr_adapter *list; /* [count] of one slot */
    const void *x, *dy;
    const void *bucket;
    void *grad;
    gr_dtype grads;
} gr_adapters_back;

/* Attention of a layer over some tokens. */
typedef struct gr_attend {
    const gr_attention_desc *d;
    const gr_tokens *b;
    const void *qkv;   /* [T, W], q and k as they are multiplied */
    const void *sinks; /* [heads] where d->sinks, else NULL */
    void *ws;
    uint64_t ws_bytes;
} gr_attend;

static inline gr_scores gr_attend_scores(const gr_attend *c)
{
    return (gr_scores){c->d->window, c->d->scale, c->d->softcap, c->sinks};
}

/* q and k of a layer: normalised, then rotated; and v, normalised where the layer does so. */
typedef struct gr_rotate {
    const gr_attention_desc *d;
    const gr_tokens *b;
    const void *q_norm, *k_norm; /* NULL: no norm */
    float eps;                   /* of values' norm, too, where d->value_norm */
    bool plus_one;
} gr_rotate;

struct gr_experts_ops; /* ops/kernels/experts.h */
struct gr_delta_ops;   /* ops/kernels/delta.h */
struct gr_latent_ops;  /* ops/kernels/latent.h */

typedef struct gr_layer_ops {
    /* How this device lays a layer out. */
    bool keeps_rotated; /* q and k are kept rotated, and their raw form beside them; else raw, and are rotated
                           again in the backward pass */
    bool turns;         /* workspaces of a layer's two halves take turns in the backward pass, and those of a
                           forward pass whose activations are kept have no room for them; where tokens are
                           cut over ranks that is so on every device */
    bool extends_packed; /* layer_extend has the buffers of a packed pass; else it updates x in place and
                            keeps nothing */

    unsigned acts; /* activations it has: 1 << gr_activation each */
    /* What of attention it is not made for, as a text; NULL: nothing. No function: it is made for all. */
    const char *(*attend_unfit)(const gr_attention_desc *d);

    /* ---- RMSNorm ---- */
    /* y [n, cols] */
    void (*norm)(gr_queue *q, const gr_norm *c, void *y);
    /* y = add + norm(x); y == add is fine. */
    void (*norm_add)(gr_queue *q, const gr_norm *c, const void *add, void *y);
    /* Fused: y = norm(x) and the rounding of it by the product p, whose x is y and which alone reads it; ws
     * is that product's workspace, where nothing else may come between. The bits are the same. y itself has
     * what of it the product wants beside. false: not done. NULL: never. */
    bool (*norm_round)(gr_queue *q, const gr_norm *c, const gr_product *p, void *y, void *ws);
    /* dx [n, cols] += (add) or = what dy gives to x; grad [cols] += its part, where not NULL. dx == dy is
     * fine where not add. */
    void (*norm_backward)(gr_queue *q, const gr_norm *c, const void *dy, void *dx, bool add, void *grad,
                          gr_dtype grads, void *ws);

    /* ---- products ---- */
    uint64_t (*product_ws_bytes)(uint32_t t, uint32_t in, uint32_t out, unsigned threads, bool backward);
    /* The same where weights are in FP8. */
    uint64_t (*fp8_ws_bytes)(uint32_t t, uint32_t in, uint32_t out, unsigned threads, bool backward);
    /* Of product_dw, and of product_back, where that is in FP8. */
    uint64_t (*fp8_dw_ws_bytes)(uint32_t t, uint32_t in, uint32_t out, unsigned threads);
    bool has_fp8; /* it has products in FP8, and this: */
    void (*quantize)(gr_queue *q, const gr_quantize *c);
    /* Whether `product`, and product_activate, norm x on the way in a decode step. NULL: never. */
    bool (*product_norms)(gr_queue *q, const gr_product *p);
    /* y [t, out] = x w^T + bias */
    void (*product)(gr_queue *q, const gr_product *p, void *y, void *ws);
    /* Fused: y [t, out] = add + scale (x w^T + bias), summed over the queue's peers where sliced (each of
     * them has a part of `in`; add is added once). y == add is fine; temp [t, out]. */
    void (*product_add)(gr_queue *q, const gr_product *p, const void *add, float scale, bool sliced, void *y,
                        void *temp, void *ws);
    /* Fused: h [t, I] = act of gate and up, w [2 I, in], out = 2 I. false: not done, the caller does both.
     * NULL: never. */
    bool (*product_activate)(gr_queue *q, const gr_dense_desc *d, const gr_tokens *b, const gr_product *p,
                             void *h);
    /* dx [t, in] = dy [t, out] w */
    void (*product_dx)(gr_queue *q, const gr_product *p, const void *dy, void *dx, void *ws);
    /* grad [out, in] += dy^T x */
    void (*product_dw)(gr_queue *q, const gr_product *p, const void *dy, void *grad, gr_dtype grads,
                       void *ws);
    /* Fused: both, of dy that is read once. false: not done, the caller does both. NULL: never. */
    bool (*product_back)(gr_queue *q, const gr_product *p, const void *dy, void *dx, void *grad,
                         gr_dtype grads, void *ws);
    uint64_t (*merge_ws_bytes)(uint32_t rows, uint32_t in, uint32_t rank, unsigned threads);
    void (*merge)(gr_queue *q, const gr_merge *c, void *ws);
    bool has_nf4; /* it has layers in NF4 (ops/model/nf4.h), and this: */
    /* A layer's bucket in that form becomes weights w. */
    void (*open)(gr_queue *q, const gr_model_shape *s, uint32_t bucket, const void *from, void *w);
    /* Of a slot: list and t alone are read. */
    uint64_t (*adapters_back_ws_bytes)(const gr_adapters_back *c, unsigned threads);
    void (*adapters_back)(gr_queue *q, const gr_adapters_back *c, void *ws);
    /* y [n] = scale x; n a multiple of hidden, or of the width of embeddings of each layer */
    void (*scale)(gr_queue *q, const void *x, float scale, uint64_t n, void *y);
    /* x [n] times the number at `by`, in place; n a multiple of hidden. */
    void (*scale_by)(gr_queue *q, void *x, const void *by, uint64_t n);
    /* What copy_rows of the device's table does, of activations alone: kernels behind it may read weights
     * before it has ended. NULL: that one serves. */
    void (*copy_rows)(gr_queue *q, void *to, uint64_t to_stride, const void *from, uint64_t from_stride,
                      uint64_t row_bytes, uint64_t n);
    /* grad [cols] += sums of the columns of d [t, cols]. */
    void (*column_sums)(gr_queue *q, const void *d, uint32_t t, uint32_t cols, void *grad, gr_dtype grads,
                        void *ws);

    /* ---- q, k and v ---- */
    /* Fused: norm, rotation and, in a rollout, keys and values to their blocks. from [T, gr_qkv_rows], to
     * [T, W]; from == to is fine where there is no gate. raw: NULL, or [T, (heads + kv_heads) D], where q and
     * k go as they came (keeps_rotated). kv_heads 0: of queries alone, and nothing goes to blocks; k_norm is
     * NULL then. */
    void (*rotate)(gr_queue *q, const gr_rotate *c, const void *from, void *to, void *raw);
    /* Fused: rotate, and attend of a decode step; c->qkv is not written. false: not done, the caller does
     * both. NULL: never. */
    bool (*rotate_attend)(gr_queue *q, const gr_rotate *r, const gr_attend *c, const void *from, void *out);
    /* d [T, W] in place, from the gradient of rotate's output to that of its input. raw: what rotate read, or
     * left there, in rows of raw_ld values; read where there are norms, whose gradients are added to where
     * not NULL. With a norm of values it is what rotate read. */
    void (*rotate_backward)(gr_queue *q, const gr_rotate *c, const void *raw, uint32_t raw_ld, void *d,
                            void *grad_q_norm, void *grad_k_norm, gr_dtype grads, void *ws);
    /* Scratch of norm_backward, rotate_backward and column_sums of a layer. */
    uint64_t (*back_ws_bytes)(const gr_layer_desc *d, uint32_t hidden, uint32_t tokens);

    /* ---- attention ---- */
    uint64_t (*attend_ws_bytes)(const gr_attention_desc *d, const gr_pass_bounds *b, gr_layer_use use);
    uint64_t (*kv_block_bytes)(const gr_attention_desc *d);
    /* out [T, heads D]; stats [T, heads], or NULL in a rollout of a device without extends_packed. */
    void (*attend)(gr_queue *q, const gr_attend *c, void *out, float *stats);
    /* Fused: that and the rounding of out by the product p, as norm_round; in a decode step. */
    bool (*attend_round)(gr_queue *q, const gr_attend *c, const gr_product *p, void *out, void *ws);
    void (*attend_backward)(gr_queue *q, const gr_attend *c, const void *out, const float *stats,
                            const void *dout, void *dqkv, void *grad_sinks, gr_dtype grads);
    /* y [T, n] = x sigmoid(g), g in rows of ld values; and back: dx from dy, dg to rows of ld. y == x and
     * dx == dy are fine. */
    void (*gate)(gr_queue *q, uint32_t t, uint32_t n, const void *x, const void *g, uint32_t ld, void *y);
    void (*gate_backward)(gr_queue *q, uint32_t t, uint32_t n, const void *x, const void *g, uint32_t ld,
                          const void *dy, void *dx, void *dg);

    /* ---- MLP ---- */
    /* h [T, I] of gate_up [T, 2 I]: gate, then up, in each row. */
    void (*activate)(gr_queue *q, const gr_dense_desc *d, uint32_t t, const void *gate_up, void *h);
    /* Fused: that and the rounding of it by the product p, as norm_round. */
    bool (*activate_round)(gr_queue *q, const gr_dense_desc *d, const void *gate_up, const gr_product *p,
                           void *h, void *ws);
    /* d_gate_up [T, 2 I] of dh [T, I]; h [T, I] is computed again. */
    void (*activate_backward)(gr_queue *q, const gr_dense_desc *d, uint32_t t, const void *gate_up,
                              const void *dh, void *d_gate_up, void *h);

    /* ---- other kinds; NULL: not built on this device ---- */
    const struct gr_experts_ops *experts;
    const struct gr_delta_ops *delta;
    const struct gr_latent_ops *latent;
} gr_layer_ops;

#endif
