/* ops/model/model.h: the shape of a decoder-only transformer, and how its weights are cut into buckets.
 *
 * Letters: T tokens of a packed batch, H hidden, I intermediate, V vocabulary, D head_dim, L layers, P what a
 * layer has of its own embeddings.
 * A weight matrix is [out, in], row-major, as in Hugging Face checkpoints: y = x W^T.
 *
 * A bucket is the unit of residency: bucket 0 holds the token embedding, 1..L one layer each, L + 1 the final
 * norm and what reads it: the output matrix (where the embedding is not tied), or a value head. Where layers
 * have embeddings of their own, bucket L + 2 has what these are made of. Every tensor
 * of a bucket is at a fixed element offset, a multiple of 64 elements; the elements between tensors are zero
 * and stay zero. Gradients and moments of a bucket have the same layout, so that the optimizer walks a bucket
 * as one flat array.
 *
 * Source: the modelling code of Hugging Face transformers.
 */
#ifndef GR_OPS_MODEL_MODEL_H
#define GR_OPS_MODEL_MODEL_H

#include "ops/model/layer.h"

#define GR_EOS_MAX 8

/* Types of arrays whose type is chosen: by the device (weights) or by the graph (gradients, moments). */
typedef enum gr_dtype {
    GR_F32,
    GR_BF16,
    GR_I8, /* of moments alone: codes, with scales of blocks behind them (gr_moment_bytes) */
} gr_dtype;

static inline uint64_t gr_dtype_size(gr_dtype t)
{
    return t == GR_F32 ? 4 : t == GR_BF16 ? 2 : 1;
}

/* What stands on the last hidden state: an output matrix over the vocabulary, or one number a token. */
typedef enum gr_head { GR_HEAD_LM, GR_HEAD_VALUE } gr_head;

/* Matrices of a layer that may have an adapter. */
typedef enum gr_target {
    GR_TARGET_Q,
    GR_TARGET_K,
    GR_TARGET_V,
    GR_TARGET_O,
    GR_TARGET_GATE,
    GR_TARGET_UP,
    GR_TARGET_DOWN,
    GR_N_TARGETS
} gr_target;

/* Low-rank adapters: W + scale B A in the place of W [out, in], A [rank, in], B [out, rank] (Hu et al.,
 * LoRA, arXiv:2106.09685). See ops/model/adapters.h. */
typedef struct gr_adapter_desc {
    uint32_t rank;    /* 0: there are none */
    unsigned targets; /* 1 << gr_target each */
    float scale;      /* alpha / rank */
} gr_adapter_desc;

/* Embeddings of each layer. With x0 [H] a token's embedding, its e of all layers [L, P] is
 *
 *     (norm(in(x0) / sqrt(H)) + sqrt(P) table[id]) / sqrt(2)
 *
 * where norm is an RMSNorm of each layer's P with one weight [P] for all. */
typedef struct gr_per_layer_desc {
    uint32_t vocab; /* rows of the table; 0: layers have none */
    uint32_t width; /* P */
} gr_per_layer_desc;

typedef struct gr_model_shape {
    char model_type[24]; /* as config.json has it: a family of ops/model/arch.h */
    uint32_t vocab, hidden, layers, max_positions;
    uint32_t parts;          /* of a slice (ops/model/tp.h): the layers have one of so many parts; else 0 */
    gr_adapter_desc adapter; /* rank not 0: buckets hold what is trained beside a frozen model of this shape,
                                the adapters, and a value head whole */
    bool fp8;                /* passes compute with layers whose projections are in FP8 (ops/model/fp8.h) */
    bool fp8_gradients;      /* and the gradients of these projections in FP8, too */
    bool nf4; /* layers of a frozen model are kept in NF4 (ops/model/nf4.h); of one with adapters:
                 those of the one beneath */
    uint32_t n_kinds;
    gr_layer_desc kinds[GR_LAYER_KINDS_MAX]; /* layers that differ */
    uint8_t kind_of[GR_LAYERS_MAX];          /* [layers] which of them each is: gr_layer */
    float norm_eps;                          /* of the final norm */
    bool norm_plus_one;
    gr_per_layer_desc per_layer; /* width is gr_layer_desc.per_layer of every layer */
    float embed_scale;           /* embedding rows are multiplied by it */
    float residual_scale;        /* and what each half of a layer adds */
    float logit_scale;           /* and logits */
    float logit_softcap;         /* logits z then become c tanh(z / c); 0: they stay */
    gr_head head;
    bool value_bias; /* of a value head: a number is added (token classification has one, sequence
                        classification none) */
    bool fresh_head; /* a value head that the checkpoint need not have */
    bool tied;       /* the output matrix is the embedding; never with a value head */
    double init_std;
    int32_t bos, pad;        /* -1: none */
    int32_t eos[GR_EOS_MAX]; /* union of config.json and generation_config.json */
    uint32_t n_eos;
    uint32_t n_ahead;    /* layers of its checkpoints that predict further tokens (ops/model/ahead.h) */
    gr_layer_desc ahead; /* what such a layer is; where there are none, of no account */
    uint32_t behind;     /* not 0: this is one of them alone, of a model of so many layers: gr_ahead_shape */
} gr_model_shape;

/* What layer l is. */
static inline const gr_layer_desc *gr_layer(const gr_model_shape *s, uint32_t l)
{
    return &s->kinds[s->kind_of[l]];
}

/* Make layer l what d is. Layers are set in order, from 0; false: more kinds than GR_LAYER_KINDS_MAX. */
bool gr_model_set_layer(gr_model_shape *s, uint32_t l, const gr_layer_desc *d);

/* All layers alike, and nothing multiplied. */
void gr_model_of(gr_model_shape *s, const gr_layer_desc *d);

/* How many layers are of a kind, and the first of them. */
uint32_t gr_model_layers_of(const gr_model_shape *s, uint32_t kind, uint32_t *first);

/* The layer whose keys and values layer l attends to: itself, or of GR_KEYS_TAKEN the last one before it that
 * lends its own and has the same window. */
uint32_t gr_model_keys_of(const gr_model_shape *s, uint32_t l);
/* The last layer that attends to the keys and values of layer l, which lends them. */
uint32_t gr_model_last_taker(const gr_model_shape *s, uint32_t l);

/* Values that all layers have of a token's embeddings of each layer, L P. */
static inline uint32_t gr_model_per_layer(const gr_model_shape *s)
{
    return s->layers * s->per_layer.width;
}

/* The routers of a model: of its layers of experts before layer l (gr_model_routers; l: all layers), how many
 * there are, and the choices and the experts that they have together. */
typedef struct gr_routers {
    uint32_t n, choices, experts;
} gr_routers;
gr_routers gr_model_routers(const gr_model_shape *s, uint32_t l);

/* Multiply-adds of a token in the weights of all layers, and for each key that it sees. */
uint64_t gr_model_token_macs(const gr_model_shape *s);
uint64_t gr_model_pair_macs(const gr_model_shape *s);

/* Read DIR/config.json (or a config.json itself) and, beside it, generation_config.json for more EOS ids.
 * What the model code does not support is refused by name (GR_E_INVALID); what is ignored is warned about. */
GR_NODISCARD gr_status gr_model_shape_read(gr_model_shape *out, const char *path, gr_diag *d);

/* No sequence has more tokens than this: says which numbers of GR_ROPE_LONG hold, for all sequences. *border:
 * up to how many the first ones do. Returns whether the second ones hold now. */
bool gr_model_set_longest(gr_model_shape *s, uint64_t tokens, uint32_t *border);

/* Put a value head with bias in the place of a language model's output matrix. One that has a value head
 * stays as it is. */
void gr_model_shape_to_value(gr_model_shape *s);

/* Room for a class name. */
#define GR_ARCHITECTURE_MAX 48
/* The class of Hugging Face transformers with these tensors: LlamaForCausalLM, LlamaForTokenClassification
 * (value head with bias), LlamaForSequenceClassification (without). */
const char *gr_model_architecture(const gr_model_shape *s, char buf[GR_ARCHITECTURE_MAX]);

/* Tensors of a bucket, in the order they lie in memory. */
typedef enum gr_tensor_slot {
    GR_T_EMBED,          /* bucket 0:    [V, H] */
    GR_T_MIXER_NORM,     /* layers:      [H] before the mixer */
    GR_T_QKV,            /*              [gr_qkv_given, H]: q, k and v, one after another; then the gate */
    GR_T_QKV_BIAS,       /*              [gr_qkv_given] */
    GR_T_Q_NORM,         /*              [D], or [heads D] */
    GR_T_K_NORM,         /*              [D], or [kv_heads D] */
    GR_T_SINKS,          /*              [heads] */
    GR_T_DELTA_IN,       /*              [gr_delta_in, H]: q, k, v; z; b; a */
    GR_T_DELTA_CONV,     /*              [gr_delta_channels, conv] */
    GR_T_DELTA_A_LOG,    /*              [value_heads] */
    GR_T_DELTA_DT,       /*              [value_heads] */
    GR_T_DELTA_NORM,     /*              [value_dim] */
    GR_T_DELTA_OUT,      /*              [H, gr_delta_out] */
    GR_T_LATENT_IN,      /*              [gr_latent_in, H]: queries or their latent; latent and rotated key */
    GR_T_LATENT_Q_NORM,  /*              [q_rank] */
    GR_T_LATENT_Q,       /*              [heads gr_latent_head, q_rank] */
    GR_T_LATENT_KV_NORM, /*              [kv_rank] */
    GR_T_LATENT_KV,      /*              [heads gr_latent_kv, kv_rank]: of each head key, then value */
    GR_T_O,              /*              [H, heads D], or of latent attention [H, heads v_dim] */
    GR_T_O_BIAS,         /*              [H] */
    GR_T_MIXER_AFTER,    /*              [H] of the norm after the mixer */
    GR_T_MLP_NORM,       /*              [H] before the MLP */
    GR_T_GATE_UP,        /*              [2 I, H]: gate, then up */
    GR_T_DOWN,           /*              [H, I] */
    GR_T_ROUTER,         /*              [E, H] of experts */
    GR_T_ROUTER_BIAS,    /*              [E] */
    GR_T_SELECTION, /*              [E, GR_SELECTION_PARTS] what chooses experts and does not weigh them */
    GR_T_EXPERTS_GATE_UP,      /*     [E, 2 I, H]: of each expert gate, then up */
    GR_T_EXPERTS_GATE_UP_BIAS, /*     [E, 2 I] */
    GR_T_EXPERTS_DOWN,         /*     [E, H, I] */
    GR_T_EXPERTS_DOWN_BIAS,    /*     [E, H] */
    GR_T_SHARED_ROUTER,        /* [1, H] of the expert that every token goes through, where it has a gate */
    GR_T_SHARED_GATE_UP,       /* [2 I, H]: gate, then up */
    GR_T_SHARED_DOWN,          /* [H, I] */
    GR_T_ROUTER_NORM,          /* experts beside a dense MLP: [H] of what the router reads */
    GR_T_EXPERT_SCALE,         /* [E] where choices' weights have a number of their expert's */
    GR_T_EXPERTS_NORM,         /* [H] of what the experts read; MLP_NORM is of the dense MLP */
    GR_T_DENSE_AFTER,          /* [H] of the norm after the dense MLP */
    GR_T_EXPERTS_AFTER,        /* [H] after the experts; MLP_AFTER is of their sum */
    GR_T_LAYER_SCALE,          /*              [1] where the layer is scaled; it has no gradient */
    GR_T_PER_LAYER_GATE,       /*              [P, H] where it has embeddings of its own */
    GR_T_PER_LAYER_OUT,        /*              [H, P] */
    GR_T_PER_LAYER_AFTER,      /*              [H] of the norm behind */
    GR_T_MLP_AFTER,            /*              [H] of the norm after the MLP */
    GR_T_NORM,                 /* bucket L+1:  [H] */
    GR_T_LM_HEAD,              /*              [V, H], where not tied and no value head */
    GR_T_VALUE,                /*              [1, H], where a value head */
    GR_T_VALUE_BIAS,           /*              [1], where value_bias */
    GR_T_PER_LAYER_EMBED,      /* bucket L+2:  [V, L P] of all layers' own embeddings, V of theirs */
    GR_T_PER_LAYER_IN,         /*              [L P, H] */
    GR_T_PER_LAYER_NORM,       /*              [P] */
    GR_T_AHEAD_EMBED_NORM,     /* bucket 0 of a layer that predicts further tokens: [H] of embeddings, */
    GR_T_AHEAD_HIDDEN_NORM,    /*              [H] of hidden states, */
    GR_T_AHEAD_IN,             /*              [H, 2 H] of both: embedding, then hidden state */
    GR_T_QKV_A, /* layers of adapters: [n rank, in] of the n targets of a slot, one after another */
    GR_T_QKV_B, /*              and of each [out, rank], one after another */
    GR_T_O_A,   /*              as QKV_A and _B, here and below */
    GR_T_O_B,
    GR_T_GATE_UP_A,
    GR_T_GATE_UP_B,
    GR_T_DOWN_A,
    GR_T_DOWN_B,
    GR_T_COUNT
} gr_tensor_slot;

static inline uint32_t gr_model_buckets(const gr_model_shape *s)
{
    return s->layers + 2 + (s->per_layer.vocab > 0);
}

/* The bucket of what embeddings of each layer are made of, where the model has them. */
static inline uint32_t gr_model_per_layer_bucket(const gr_model_shape *s)
{
    return s->layers + 2;
}

/* Elements (floats on the CPU device) of a bucket, padding included. */
uint64_t gr_bucket_elems(const gr_model_shape *s, uint32_t bucket);

/* Element offset of a tensor in its bucket; UINT64_MAX where this model does not have it. */
uint64_t gr_tensor_offset(const gr_model_shape *s, uint32_t bucket, gr_tensor_slot slot);

/* Rows and columns of a tensor (cols 0: it has one dimension); false: this model does not have it. */
bool gr_tensor_dims(const gr_model_shape *s, uint32_t bucket, gr_tensor_slot slot, uint64_t *rows,
                    uint64_t *cols);

/* A tensor that is several of ours: rows of them in turn. */
typedef struct gr_woven {
    uint32_t run;    /* so many rows of this one stand together; 0: the checkpoint's tensor is this one */
    uint32_t period; /* and begin again so many rows later, */
    uint32_t first;  /* from this row on */
    uint32_t rows;   /* that the checkpoint's has */
    uint32_t depth;  /* it is [depth, rows / depth, cols]; 0: [rows, cols] */
    uint32_t phase;  /* which of ours in it this is, from 0 */
    bool turned;     /* of the last two dimensions the other one comes first: [depth, cols, rows / depth] */
} gr_woven;

/* How a checkpoint has the experts of a layer. */
typedef enum gr_experts_form {
    GR_EXPERTS_EACH,  /* tensors of each expert: the form of gr_bucket_tensors, unless its family has another
                       */
    GR_EXPERTS_FUSED, /* one tensor of all: [E, 2 I, H] and [E, H, I]; a family may have them turned, see
                         gr_arch */
    GR_EXPERTS_MXFP4, /* fused, not turned, in blocks of 32 values of 4 bits with a scale each:
                         NAME_blocks [E, rows, cols / 32, 16], NAME_scales [E, rows, cols / 32] */
} gr_experts_form;

/* One tensor as checkpoints name it; fused slots are several of these. */
typedef struct gr_tensor {
    char name[96];       /* "model.layers.3.self_attn.q_proj.weight" */
    uint32_t rows, cols; /* cols 0: one dimension, [rows] */
    uint64_t offset;     /* elements from the start of the bucket */
    uint32_t expert;     /* whose it is, from 1; 0: it is no expert's */
    bool thin;           /* the checkpoint has it as [rows, 1, cols] */
    uint32_t keys;  /* rows of q, then as many of k, before those of v, which are cut by heads each; 0: it
                       has rows of one kind */
    gr_woven woven; /* where in the checkpoint's tensor of this name it lies */
    uint32_t sums;  /* not 0: the checkpoint's is a vector of fp32, each of them the sum of so many elements
                       here, one after another: gr_selection_parts */
    bool decay;     /* weight decay applies (matrices; not norms, not biases) */
    float spread;   /* not 0: a new one is even over +- spread; of an adapter's A */
    bool zero;      /* a new one is 0; of its B */
    float initial;  /* what a new one that is no matrix holds: norms what changes nothing, biases 0 */
} gr_tensor;

/* What chooses experts is fp32 in every checkpoint, and bf16 would choose others. So it is held as a sum, in
 * the order of its parts, of bf16 whose first three are exactly x and whose last is 0. It has no gradient. */
#define GR_SELECTION_PARTS 4
void gr_selection_parts(float x, float part[GR_SELECTION_PARTS]);
static inline float gr_selection_sum(const float part[GR_SELECTION_PARTS])
{
    return part[0] + part[1] + part[2] + part[3];
}

#define GR_BUCKET_TENSORS_MAX (24 + 3 * GR_EXPERTS_MAX)
/* Fill out with the checkpoint tensors of a bucket in memory order; returns how many. */
size_t gr_bucket_tensors(const gr_model_shape *s, uint32_t bucket, gr_tensor out[GR_BUCKET_TENSORS_MAX]);
/* The same as a checkpoint of that form has them: names and places alone differ. */
size_t gr_bucket_tensors_as(const gr_model_shape *s, uint32_t bucket, gr_experts_form form,
                            gr_tensor out[GR_BUCKET_TENSORS_MAX]);
/* The same without their names, which take a search each: for what runs in every iteration. */
size_t gr_bucket_ranges(const gr_model_shape *s, uint32_t bucket, gr_tensor out[GR_BUCKET_TENSORS_MAX]);
/* Of these one expert's, the first, whose sizes are those of every expert: for what plans. */
size_t gr_bucket_samples(const gr_model_shape *s, uint32_t bucket, gr_tensor out[GR_BUCKET_TENSORS_MAX]);
/* For how many tensors such a one stands in a model that is not cut. */
uint32_t gr_sample_stands(const gr_model_shape *s, uint32_t bucket, const gr_tensor *t);

/* Parameters (not padding) in all. */
uint64_t gr_model_params(const gr_model_shape *s);

/* Where the output matrix of a language model lies: bucket 0 when tied, else bucket L + 1; *offset in
 * elements. */
uint32_t gr_model_head_bucket(const gr_model_shape *s, uint64_t *offset);

#endif
