/* ops/kernels/layer_impl.h: what the files of the composition share: a call, its buffers, and what a kind of
 * mixer or MLP is to ops/kernels/layer.c.
 */
#ifndef GR_OPS_KERNELS_LAYER_IMPL_H
#define GR_OPS_KERNELS_LAYER_IMPL_H

#include "ops/kernels/workspace.h"
#include "ops/kernels/experts.h"
#include "ops/kernels/layer.h"
#include "ops/kernels/layer_ops.h"

/* One call, or the sizes of one: then there are bounds and no pointers. */
typedef struct gr_layer_call {
    const gr_kernels *k;
    const gr_layer_ops *ops;
    gr_queue *q;
    const gr_model_shape *s;
    const gr_layer_desc *d;
    uint32_t bucket;
    gr_layer_use use;
    gr_pass_bounds bounds;
    gr_tokens b;
    /* Where tokens are cut over ranks: those of all of them; and the heads that this one attends with. */
    gr_tokens all;
    gr_attention_desc own;
    /* Where they have slices of the layer: a half works on all tokens, and this is the call on its own, which
     * it begins and ends with; else NULL. */
    const struct gr_layer_call *outer;
    bool whole;    /* this half is no slice, though the shape is one: of divided experts, of its own tokens */
    const char *w; /* the layer's bucket */
    char *grad;    /* its gradients */
    const gr_layer_adapters *adapters; /* whose the gradients are; NULL: the layer's own */
    gr_dtype grads;
    const gr_routing *routing; /* NULL: its routers choose, and tell nobody */
    void *carried, *d_carried; /* see gr_packed */
    gr_norm norm;        /* of what a half reads, where its first product norms that; w NULL: it is normed */
    const void *rounded; /* what its first product reads, where the norm has rounded that; NULL: it has not */
} gr_layer_call;

/* ---- buffers; T rows each, of the device's type unless said otherwise -------------------------------------
 */

typedef struct gr_attention_acts {
    void *proj; /* [gr_qkv_rows] as the product gave it; NULL: it is qkv, rotated in place */
    void *qkv;  /* [W]; NULL where proj is kept and it is rotated again */
    void *
        raw; /* [(heads + kv_heads) D] before norm and rotation, where proj is not kept and there is a norm */
    void *out;    /* [heads D] */
    float *stats; /* [heads] */
    /* Where tokens are cut over ranks, these are of all tokens and this rank's heads, without a gate's
     * logits; and of its tokens and all heads: */
    void *local;  /* [gr_qkv_rows] as the product gave it, where it has a gate */
    void *merged; /* [heads D] attention's output */
} gr_attention_acts;

typedef struct gr_delta_acts {
    void *proj;  /* [gr_delta_in] */
    void *mixed; /* [gr_delta_out] before the norm */
    void *out;   /* [gr_delta_out] */
    /* Where tokens are cut over ranks, these are of all tokens and this rank's heads; and of its tokens and
     * all heads: */
    void *merged; /* [gr_delta_out] out */
} gr_delta_acts;

typedef struct gr_latent_acts {
    void *in;     /* [gr_latent_in] of the first product, the key's part rotated */
    void *out;    /* [heads v_dim] */
    float *stats; /* [heads], where attention was computed expanded */
    /* Where tokens are cut over ranks, out and stats are of all tokens and this rank's heads; and of its
     * tokens and all heads: */
    void *merged; /* [heads v_dim] out */
} gr_latent_acts;

typedef struct gr_dense_acts {
    void *gate_up; /* [2 I] */
} gr_dense_acts;

/* Where experts stand beside a dense MLP, before the norms behind them: [H] each. */
typedef struct gr_beside_acts {
    void *dense, *experts;
} gr_beside_acts;

typedef struct gr_per_layer_acts {
    void *gate_embed; /* [2 P] the gate, then the token's embedding for this layer */
} gr_per_layer_acts;

/* What a layer keeps for its backward pass, beside its input. */
typedef struct gr_layer_acts {
    gr_attention_acts attention;
    gr_delta_acts delta;
    gr_latent_acts latent;
    gr_dense_acts dense;
    gr_experts_acts experts, shared;
    gr_beside_acts beside;
    gr_per_layer_acts per_layer;
    void *mid; /* [H] between the halves; NULL: in place of the input */
    /* [H] of the mixer, of the MLP, and of what stands behind that where the layer has embeddings of its own,
     * where norms stand behind them and backward follows */
    void *mixed, *fed, *shown;
} gr_layer_acts;

typedef struct gr_attention_ws {
    void *attend;
    uint64_t attend_bytes;
    void *qkv;   /* [W] where acts do not have it */
    void *gated; /* [heads D] */
    void *given; /* [gr_qkv_given] where keys are values: the product's output, or d loss / d it */
    void *d_keys, *d_values; /* [kv_heads D] there */
    void *queries;           /* [heads D] normed and rotated, where keys are another layer's */
    void *d_lent;            /* [2 kv_heads D] of keys and values that are lent or taken */
    void *d_qkv;             /* [W] */
    void *d_proj;            /* [gr_qkv_rows], where there is a gate; else d_qkv */
    void *d_out, *d_gated;   /* [heads D] */
    /* Where tokens are cut over ranks, qkv, d_qkv and d_out are of all tokens and this rank's heads; and of
     * its tokens and all heads: */
    void *local;    /* [gr_qkv_rows] the product's output where acts do not have it; or d loss / d it */
    void *d_merged; /* [heads D] */
    void *parts;    /* gr_layer_parts */
} gr_attention_ws;

typedef struct gr_delta_ws {
    void *rule;           /* of the rule's kernels */
    void *d_out, *d_proj; /* [gr_delta_out], [gr_delta_in] */
    /* Where tokens are cut over ranks, these are of all tokens and this rank's heads; and of its tokens and
     * all heads: */
    void *local;         /* [gr_delta_in] the product's output, or d loss / d it */
    void *d_merged;      /* [gr_delta_out] */
    void *parts;         /* gr_layer_parts */
    void *conv, *d_conv; /* the convolution's weights of its channels, and their gradients */
} gr_delta_ws;

typedef struct gr_latent_ws {
    void *latent; /* of the absorbed form's kernels */
    void *attend; /* of plain attention, expanded */
    uint64_t attend_bytes;
    void *low, *c, *q;      /* [q_rank], [kv_rank] behind their norms; [heads D], then its gradient */
    void *rows, *wide;      /* absorbed: [gr_latent_row], [heads gr_latent_row] */
    void *mixed;            /* [heads kv_rank] */
    void *kv, *qkv;         /* expanded: [heads gr_latent_kv], then its gradient; [3 heads D] */
    void *padded;           /* [heads D] attention's output, where v_dim is another or it is not kept so */
    float *stats;           /* [heads] computed again */
    void *d_out, *d_padded; /* [heads v_dim], [heads D] */
    void *d_qkv, *d_in;     /* [3 heads D], [gr_latent_in] */
    void *d_low, *raw;      /* of one of the ranks */
    /* Where tokens are cut over ranks, what attention reads and gives, and all gradients of that, are of all
     * tokens and this rank's heads; and of its tokens and all heads: */
    void *local;         /* [3 heads D] qkv, then its gradient; absorbed: [heads D + gr_latent_row] */
    void *d_merged;      /* [heads v_dim] */
    void *parts;         /* gr_layer_parts */
    void *heads, *own_q; /* absorbed: what came of local, and the queries of it */
} gr_latent_ws;

typedef struct gr_dense_ws {
    void *h, *d_h;   /* [I] */
    void *d_gate_up; /* [2 I] */
} gr_dense_ws;

typedef struct gr_per_layer_ws {
    void *gate, *h;           /* [P]; gate is d loss / d it at last */
    void *d_h, *d_gate_embed; /* [P], [2 P] */
} gr_per_layer_ws;

typedef struct gr_beside_ws { /* [H] each */
    void *in, *router;        /* what one of both reads; what the router reads */
    void *sum;                /* of both, where acts do not have it */
    void *d_out, *d_in, *d_router;
} gr_beside_ws;

typedef struct gr_layer_ws {
    void *product;  /* of products */
    void *scratch;  /* of norms, rotations and sums of columns */
    void *adapters; /* of adapters' gradients */
    void *row;      /* [H] a norm's output; then a temporary */
    void *d_row;    /* [H] d loss / d it */
    void *d_block;  /* [H] d loss / d what a half gave, where that is not d loss / d its sum */
    gr_attention_ws attention;
    gr_delta_ws delta;
    gr_latent_ws latent;
    gr_dense_ws dense;
    gr_beside_ws beside;
    gr_per_layer_ws per_layer;
    void *experts;     /* of experts, and of a shared one */
    void *experts_sum; /* [H] where a sum is not added up in place */
    /* Of slices whose tokens are cut, [H] of all tokens: what a half reads, what it gives (or d loss / d what
     * it reads), d loss / d what it gives; and room for their sum's parts where it has one order. */
    void *all_in, *all_out, *all_d, *staging;
    gr_layer_acts acts; /* where they are not kept */
} gr_layer_ws;

/* rows values of T tokens. */
void *gr_layer_rows(gr_workspace *c, const gr_layer_call *l, uint64_t values);

/* Columns of T rows, from those of others; counts are of values. */
typedef struct gr_layer_copy {
    uint64_t to, to_ld, from, from_ld, n;
} gr_layer_copy;
void gr_layer_copy_columns(const gr_layer_call *l, void *to, const void *from, const gr_layer_copy *c);

/* ---- tokens that are cut over ranks ----------------------------------------------------------------------
 */

/* How many ranks they are cut over; 1: they are not. */
uint32_t gr_layer_cut(const gr_layer_call *l);
/* rows values of all their tokens. */
void *gr_layer_all_rows(gr_workspace *c, const gr_layer_call *l, uint64_t values);

/* The columns of a row, a group for each kind of head: each is cut by heads over the ranks. Of heads that
 * there are too few of, ranks have copies (gr_cut_copies): copy i of all of them is one of head i / copies.
 */
#define GR_LAYER_GROUPS 6
typedef struct gr_layer_columns {
    uint32_t n;
    struct gr_layer_group {
        uint32_t width, heads; /* columns of all of them */
        uint32_t copies;       /* of each; 1: it is one rank's */
    } group[GR_LAYER_GROUPS];
} gr_layer_columns;

/* From this rank's tokens, rows of ld values with the columns of all ranks, to all tokens, dense rows with
 * its own columns; and back, where what comes of a head's copies is summed, in one binary tree over them in
 * their order. Every rank of the queue's group does so. parts: of gr_layer_parts.
 * Source: Jacobs et al., DeepSpeed Ulysses, arXiv:2309.14509, section 3. */
void gr_layer_to_heads(const gr_layer_call *l, const gr_layer_columns *g, const void *rows, uint64_t ld,
                       void *heads, void *parts);
void gr_layer_to_tokens(const gr_layer_call *l, const gr_layer_columns *g, const void *heads, void *rows,
                        uint64_t ld, void *parts);
/* Room for what goes to each rank, or comes from it, for this rank's tokens; back: and for sums of copies. */
void *gr_layer_parts(gr_workspace *c, const gr_layer_call *l, const gr_layer_columns *g, bool back);

/* Of weights or gradients that stand in one row as such columns do, in elements of `type`: this rank's,
 * dense; and back to where they stand. It has no head twice. */
void gr_layer_take_own(const gr_layer_call *l, const gr_layer_columns *g, gr_dtype type, const void *all,
                       void *own);
void gr_layer_put_own(const gr_layer_call *l, const gr_layer_columns *g, gr_dtype type, const void *own,
                      void *all);
/* Of what has a value for each head, those of this rank's, as many on each; NULL of NULL. */
void *gr_layer_of_heads(const gr_layer_call *l, const void *of_heads, uint32_t own, gr_dtype type);

/* Which of the ranks that tokens are cut over this one is. */
uint32_t gr_layer_place(const gr_layer_call *l);

/* Whether the ranks that have the other tokens have the other slices of the layer. */
bool gr_layer_gathers(const gr_layer_call *l);
/* The call on all tokens; l, which is not such a one, must outlive it. */
gr_layer_call gr_layer_half(const gr_layer_call *l);
/* Of [H] rows of all tokens, this rank's; everyone's become whole; everyone's sum becomes its own's. Source:
 * Korthikanti et al., arXiv:2205.05198, section 4.2.2 (sequence parallelism). */
void *gr_layer_own(const gr_layer_call *l, void *all);
void gr_layer_gather(const gr_layer_call *l, void *all);
void gr_layer_scatter(const gr_layer_call *l, void *all, void *staging);

/* ---- a kind of mixer or MLP ------------------------------------------------------------------------------
 */

/* Where a half of a layer ends: y = add + r after(out). */
typedef struct gr_layer_close {
    const void *add;
    void *y;              /* may be add */
    void *temp;           /* [H] */
    void *keep;           /* [H] where out is kept; NULL: it is not */
    void *all, *staging;  /* of slices whose tokens are cut: see gr_layer_ws */
    gr_tensor_slot after; /* of the norm behind, where the layer has one */
} gr_layer_close;

typedef struct gr_layer_part {
    /* Hand out its buffers. */
    void (*acts)(gr_workspace *c, const gr_layer_call *l, gr_layer_acts *a);
    void (*ws)(gr_workspace *c, const gr_layer_call *l, gr_layer_ws *w);
    /* The same of what its kernels ask for themselves, which takes no turns. NULL: nothing. */
    void (*kernel_ws)(gr_workspace *c, const gr_layer_call *l, gr_layer_ws *w);
    /* The most that its products take. */
    uint64_t (*product_ws)(const gr_layer_call *l);
    /* The product that alone reads what the norm before gave. NULL: others do, too. */
    gr_product (*first)(const gr_layer_call *l, const void *in);
    /* in [T, H], what the norm before gave (or l->norm reads), to close. */
    void (*forward)(const gr_layer_call *l, const void *in, const gr_layer_acts *a, const gr_layer_ws *w,
                    const gr_layer_close *close);
    /* From d_out [T, H], d loss / d what it gave to close, to d_in [T, H]; and gradients of weights. */
    void (*backward)(const gr_layer_call *l, const void *in, const gr_layer_acts *a, const gr_layer_ws *w,
                     const void *d_out, void *d_in);
    /* What a rank without tokens does for those that have some, where experts are divided. */
    void (*idle)(const gr_layer_call *l, const gr_layer_acts *a, const gr_layer_ws *w);
    /* What of the description the device lacks, as a text; NULL: nothing. */
    const char *(*unfit)(const gr_layer_ops *ops, const gr_layer_desc *d);
    /* Of a mixer: its state in a rollout, of a block or of a slot (gr_layer_state). */
    uint64_t (*state_bytes)(const gr_layer_ops *ops, const gr_layer_desc *d);
} gr_layer_part;

extern const gr_layer_part gr_layer_attention, gr_layer_latent, gr_layer_delta, gr_layer_dense,
    gr_layer_experts, gr_layer_beside, gr_layer_per_layer;

/* A tensor of the bucket, or of its gradient; NULL where the layer does not have it, or no gradient of it; of
 * slices, what the first rank alone adds to their sum (biases). */
const void *gr_layer_tensor(const gr_layer_call *l, gr_tensor_slot slot);
void *gr_layer_grad(const gr_layer_call *l, gr_tensor_slot slot);

/* Of x [T, H], with a norm's weights. */
gr_norm gr_layer_norm(const gr_layer_call *l, const void *x, gr_tensor_slot slot);

/* Of the layer's tensors: w is slot's, bias (GR_T_COUNT: none) its bias. */
gr_product gr_layer_product(const gr_layer_call *l, const void *x, uint32_t in, gr_tensor_slot slot,
                            gr_tensor_slot bias, uint32_t out);
uint64_t gr_layer_product_ws(const gr_layer_call *l, uint32_t in, uint32_t out);

/* End a half with a product to H. */
void gr_layer_close_product(const gr_layer_call *l, const gr_product *p, const gr_layer_ws *w,
                            const gr_layer_close *c);
/* The same with out [T, H] that is there, multiplied by the residual scale where the layer has no norm
 * behind: of norms and slices, else what makes out can add it itself. */
void gr_layer_close_rows(const gr_layer_call *l, void *out, const gr_layer_close *c);

/* dx of a product from dy, and gradients of its weights and bias; dx == NULL or p->x == NULL: not that one.
 */
void gr_layer_product_back(const gr_layer_call *l, const gr_product *p, gr_tensor_slot slot,
                           gr_tensor_slot bias, const void *dy, void *dx, const gr_layer_ws *w);

#endif
