/* ops/model/layer.h: what a layer of a decoder-only transformer is made of, as data.
 *
 * A layer is a token mixer and an MLP, each between its norms and added to the residual stream:
 *
 *     x = x + r after(mixer(before(x)));  x = x + r after(mlp(before(x)))        r:
 * gr_model_shape.residual_scale
 *
 * where a norm that the layer does not have is left out. A family's file (ops/model/arch.h) fills a
 * description from config.json; the tensors of a layer's bucket (ops/model/model.h), the composition that
 * runs it (ops/kernels/layer.h) and the costs of plans follow from it. Layers that are alike share one
 * description: a model has few of them (GR_LAYER_KINDS_MAX), and a map from layers to them.
 *
 * A description is plain data and holds no pointers. What a layer's kind does not have is zero in it.
 *
 * Source of the terms: the modelling code of Hugging Face transformers 5.
 */
#ifndef GR_OPS_MODEL_LAYER_H
#define GR_OPS_MODEL_LAYER_H

#include "runtime/base/base.h"

#define GR_HEAD_DIM_MAX 512 /* what the kernels keep of one head */

/* ---- rotary positions ---------------------------------------------------------------------------------- */

typedef enum gr_rope_type {
    GR_ROPE_NONE,    /* q and k are not rotated */
    GR_ROPE_DEFAULT, /* 1 / theta^(2 i / dims) */
    GR_ROPE_LINEAR,  /* the same over factor */
    GR_ROPE_LLAMA3,  /* long wavelengths over factor, short ones as they are, a ramp between */
    GR_ROPE_YARN,    /* a ramp by index between both, and a factor on cosines and sines (arXiv:2309.00071) */
    GR_ROPE_LONG,    /* each over a number of its own, of one list or another, and such a factor (LongRoPE,
                        arXiv:2402.13753) */
    GR_ROPE_PROPORTIONAL, /* the default one's of the first pairs, over factor; the others are not rotated */
} gr_rope_type;

#define GR_LONGROPE_MAX 64 /* pairs */

typedef struct gr_rope_desc {
    gr_rope_type type;
    uint32_t
        dims; /* of a head that are rotated: the first ones, an even number; pairs are i and i + dims / 2 */
    double theta;
    double factor;                            /* LINEAR, LLAMA3, YARN, LONG, PROPORTIONAL */
    double share;                             /* PROPORTIONAL: of the pairs, those that are rotated */
    double low_freq_factor, high_freq_factor; /* LLAMA3 */
    double beta_fast, beta_slow;              /* YARN: the ramp's ends, in turns over original_positions */
    double attention;                         /* YARN, LONG: factor on cosines and sines */
    double scores;               /* YARN: a factor on q and on k, which latent attention has in its scale */
    bool truncate;               /* YARN: the ramp's ends are whole indices */
    uint32_t original_positions; /* LLAMA3, YARN, LONG */
    /* LONG: [pairs] numbers for sequences of up to original_positions, and for longer ones. Which of the two
     * holds is said of a graph, for all of its sequences: gr_model_set_longest. */
    uint32_t pairs;
    bool far; /* the second ones do */
    float stretch[2][GR_LONGROPE_MAX];
} gr_rope_desc;

/* ---- token mixers -------------------------------------------------------------------------------------- */

typedef enum gr_mixer_kind {
    GR_MIXER_ATTENTION, /* grouped-query attention */
    GR_MIXER_LATENT,    /* multi-head latent attention (arXiv:2405.04434) */
    GR_MIXER_DELTA,     /* gated delta rule (arXiv:2412.06464) */
} gr_mixer_kind;

typedef enum gr_qk_norm {
    GR_QK_NORM_NONE,
    GR_QK_NORM_HEAD,  /* RMSNorm of each head of q and of k, over head_dim: weights [D] */
    GR_QK_NORM_WHOLE, /* of all of q, and of all of k: weights [heads D], [kv_heads D] */
} gr_qk_norm;

/* Whose keys and values a layer attends to. */
typedef enum gr_keys {
    GR_KEYS_OWN,
    GR_KEYS_LENT,  /* its own, which later layers take */
    GR_KEYS_TAKEN, /* those of a layer before it (gr_model_keys_of), normed and rotated there: it has q alone
                    */
} gr_keys;

/* softmax(scale q k^T) v over the keys a token sees; heads / kv_heads query heads share a key head. */
typedef struct gr_attention_desc {
    uint32_t heads, kv_heads, head_dim;
    gr_keys keys;
    uint32_t window; /* a token sees this many keys, itself the last of them; 0: all before it */
    bool sinks;      /* a learned logit a head in the softmax's sum, whose value is zero */
    bool gate;       /* the output times sigmoid(g), g [heads D] projected beside q */
    bool qkv_bias, o_bias;
    bool keys_are_values; /* a value is what a key is before its norm and rotation: it has no projection */
    bool value_norm;      /* RMSNorm without a weight of each head of v, over head_dim */
    gr_qk_norm qk_norm;
    float scale;
    float softcap; /* scores s become c tanh(s / c); 0: they stay */
    bool kv_fp8;   /* keys and values are rounded to E4M3, each token's head with a scale of its own, and kept
                      so */
    gr_rope_desc rope;
} gr_attention_desc;

/* Latent attention: queries through q_rank (0: directly), keys and values through kv_rank; a head's query and
 * key are [nope, rope], where the rope part of the key is one for all heads. */
typedef struct gr_latent_desc {
    uint32_t heads, q_rank, kv_rank, nope_dim, rope_dim, v_dim;
    float scale;
    float norm_eps;    /* of the norms of both ranks */
    bool interleaved;  /* pairs that are rotated are 2 i and 2 i + 1; else i and i + rope_dim / 2 */
    gr_rope_desc rope; /* of rope_dim dimensions */
} gr_latent_desc;

#define GR_LATENT_RANK_MAX 1024 /* of keys and values */
#define GR_LATENT_ROPE_MAX 128
#define GR_LATENT_HEAD_MAX 256 /* nope_dim + rope_dim, and v_dim */

/* Gated delta rule: q, k and v go through a causal convolution a channel and SiLU; a state [key_dim,
 * value_dim] fp32 a value head. value_heads / key_heads value heads share a key head. */
typedef struct gr_delta_desc {
    uint32_t key_heads, value_heads, key_dim, value_dim, conv;
    bool by_head;    /* checkpoints have its input by key heads; of no account to what is computed */
    bool bf16_state; /* a rollout keeps states in bf16, not fp32 */
} gr_delta_desc;

/* ---- MLPs ---------------------------------------------------------------------------------------------- */

typedef enum gr_mlp_kind { GR_MLP_DENSE, GR_MLP_EXPERTS } gr_mlp_kind;

typedef enum gr_activation {
    GR_ACT_SILU,       /* silu(gate) up */
    GR_ACT_GELU_TANH,  /* gelu(gate) up, by its approximation with tanh */
    GR_ACT_SWIGLU_OAI, /* gate sigmoid(1.702 gate) (up + 1), gate at most limit, up within +- limit */
} gr_activation;

/* down(act(gate(x), up(x))) */
typedef struct gr_dense_desc {
    uint32_t inner;
    gr_activation act;
    float limit; /* of GR_ACT_SWIGLU_OAI */
} gr_dense_desc;

#define GR_EXPERTS_MAX        512 /* of a layer */
#define GR_BIASED_EXPERTS_MAX 256 /* that have biases, and so twice the tensors */
#define GR_CHOICES_MAX        32  /* of them for a token */
#define GR_GROUPS_MAX         32  /* of them that are chosen first */

typedef enum gr_router { GR_ROUTER_SOFTMAX, GR_ROUTER_SIGMOID } gr_router;

typedef struct gr_experts_desc {
    uint32_t count, top_k, inner;
    uint32_t holders; /* ranks that have a part of the experts each, in their order; 0: all are here */
    gr_activation act;
    float limit;
    gr_router router;
    bool softmax_after;          /* softmax over the chosen ones' logits, not over all */
    bool normalize;              /* the chosen ones' weights are divided by their sum */
    bool selection_bias;         /* a bias that chooses and does not weigh */
    bool router_bias, bias;      /* of the router's logits; of the experts' projections */
    uint32_t groups, top_groups; /* experts of the best groups alone are chosen from; 0: no groups */
    float scale;                 /* of the weights; 1 where nothing is said */
    uint32_t shared_inner;       /* of an expert that every token goes through; 0: none */
    bool shared_gate;            /* its output times sigmoid of one more projection */
    bool expert_scale;           /* a choice's weight times a number of its expert's own */
} gr_experts_desc;

/* Of them, those that one rank has. */
static inline uint32_t gr_experts_held(const gr_experts_desc *e)
{
    return e->holders ? e->count / e->holders : e->count;
}

/* ---- a layer ------------------------------------------------------------------------------------------- */

/* What a layer keeps of a sequence while it generates. */
typedef enum gr_state_kind {
    GR_STATE_PAGED, /* keys and values of every position, in blocks */
    GR_STATE_FIXED, /* one size for every length, a place for each slot */
} gr_state_kind;

typedef struct gr_layer_desc {
    gr_mixer_kind mixer;
    gr_attention_desc attention; /* of the mixer's kind the one; the others are zero */
    gr_latent_desc latent;
    gr_delta_desc delta;
    gr_mlp_kind mlp;
    gr_dense_desc dense; /* with experts: beside them, where it has a width (gr_layer_is_beside) */
    gr_experts_desc experts;
    bool norm_before, norm_after; /* of the mixer, and of the MLP */
    bool norm_plus_one;           /* a norm's factor is 1 + its weight; q and k norm's, too */
    float norm_eps;
    bool scaled; /* its output is multiplied by a number of its own, a tensor that is not trained */
    /* P, not 0: behind the MLP x = x + norm(out(act(gate(x)) e)) with e [P] of the token and this layer,
     * which is computed once for all layers (gr_per_layer_desc of ops/model/model.h); act is the MLP's. Of
     * layers with norms behind alone. */
    uint32_t per_layer;
} gr_layer_desc;

/* Experts beside a dense MLP, each with norms of its own: ops/kernels/layer_beside.c. */
static inline bool gr_layer_is_beside(const gr_layer_desc *d)
{
    return d->mlp == GR_MLP_EXPERTS && d->dense.inner;
}

#define GR_LAYER_KINDS_MAX 8
#define GR_LAYERS_MAX      512

/* The layer that every other is compared with: full causal attention with rotary positions (theta 10000) and
 * a dense MLP with SiLU, a norm before each (eps 1e-6). */
gr_layer_desc gr_layer_plain(uint32_t heads, uint32_t kv_heads, uint32_t head_dim, uint32_t inner);

gr_state_kind gr_layer_state(const gr_layer_desc *d);

/* W, the width of a row of attention's input: q [heads D], k [kv_heads D], v [kv_heads D]. */
static inline uint32_t gr_qkv_width(const gr_attention_desc *a)
{
    return (a->heads + 2 * a->kv_heads) * a->head_dim;
}

/* What a layer hands to later ones beside hidden states, or takes from earlier ones, as a text; NULL:
 * nothing. Where it does, a layer is not computed without those before it: pipelines and slices of layers are
 * not built for it, nor weights in FP8 or NF4. */
const char *gr_layer_carries(const gr_layer_desc *d);

/* What of a layer reads each sequence from its beginning, so that several cannot read tokens that they begin
 * with once; a text. NULL: nothing. */
const char *gr_layer_unshared(const gr_layer_desc *d);

/* Where the tokens of a sequence are cut over ranks, each rank works with a share of the heads, and with all
 * tokens. Query heads, or value heads of the gated delta rule, are divided. The heads of keys that these
 * share are divided, too, as far as they go; beyond that they are copied, and several ranks have the same
 * one. A head is computed where it is as it is alone, with the same bits; each rank has as much to do, causal
 * or not; and no rank gets more keys than its own queries see, which is less than all of them. So neither
 * passing keys around nor gathering all of them is needed, up to as many ranks as there are query heads. */

/* What one of so many ranks attends with. Of one: all. A gate stays with the tokens. */
gr_attention_desc gr_attention_cut(const gr_attention_desc *a, uint32_t ranks);
/* The same of the gated delta rule; its gate goes with its heads. */
gr_delta_desc gr_delta_cut(const gr_delta_desc *d, uint32_t ranks);
/* How many of so many ranks' heads of keys are copies of one: own of each, of all together. 1: they are not
 * copied. */
static inline uint32_t gr_cut_copies(uint32_t own, uint32_t ranks, uint32_t heads)
{
    return own * ranks / heads;
}
/* What of a layer does not come out even so, "6 heads"; NULL: it does. buf: for the text. */
const char *gr_layer_cut_uneven(const gr_layer_desc *d, uint32_t ranks, char buf[48]);
/* Values of a token that ranks exchange for it, copies counted: what goes to the heads, and what comes back.
 */
uint64_t gr_layer_cut_values(const gr_layer_desc *d, uint32_t ranks);

/* Of the gated delta rule: channels of its convolution (q, k, v), values that its output has, and P, those
 * that it is given (q, k, v; then a gate as wide as the output, b and a: ops/kernels/delta.h). */
static inline uint32_t gr_delta_channels(const gr_delta_desc *d)
{
    return 2 * d->key_heads * d->key_dim + d->value_heads * d->value_dim;
}
static inline uint32_t gr_delta_out(const gr_delta_desc *d)
{
    return d->value_heads * d->value_dim;
}
static inline uint32_t gr_delta_in(const gr_delta_desc *d)
{
    return gr_delta_channels(d) + gr_delta_out(d) + 2 * d->value_heads;
}

/* Of latent attention: a head of a query or key, and of keys and values together; what is kept of a token,
 * the normed latent and the rotated part of the key; what the layer's first product gives: queries, or their
 * latent, then that of keys and values, then the part of the key that is rotated. */
static inline uint32_t gr_latent_head(const gr_latent_desc *d)
{
    return d->nope_dim + d->rope_dim;
}
static inline uint32_t gr_latent_kv(const gr_latent_desc *d)
{
    return d->nope_dim + d->v_dim;
}
static inline uint32_t gr_latent_row(const gr_latent_desc *d)
{
    return d->kv_rank + d->rope_dim;
}
static inline uint32_t gr_latent_queries(const gr_latent_desc *d)
{
    return d->q_rank ? d->q_rank : d->heads * gr_latent_head(d);
}
static inline uint32_t gr_latent_in(const gr_latent_desc *d)
{
    return gr_latent_queries(d) + gr_latent_row(d);
}

/* The attention that it is once keys and values of each head are made of the latents: values are filled up
 * with zeros to the width of a key, and nothing is left to rotate. */
gr_attention_desc gr_latent_expanded(const gr_latent_desc *d);

/* Of a row of the projection that it comes from: with an output gate, its logits [heads D] stand behind. */
static inline uint32_t gr_qkv_rows(const gr_attention_desc *a)
{
    return gr_qkv_width(a) + (a->gate ? a->heads * a->head_dim : 0);
}

/* Rows of that projection: where keys are values it gives them once, and where they are another layer's not
 * at all. */
static inline uint32_t gr_qkv_given(const gr_attention_desc *a)
{
    const uint32_t absent = a->keys == GR_KEYS_TAKEN ? 2 : a->keys_are_values ? 1 : 0;
    return gr_qkv_rows(a) - absent * a->kv_heads * a->head_dim;
}

/* A description as a text of its own, for hashes of what fixes bits. */
void gr_layer_describe(const gr_layer_desc *d, gr_str *out);

/* Whether they say the same. */
bool gr_layer_same(const gr_layer_desc *a, const gr_layer_desc *b);
bool gr_rope_same(const gr_rope_desc *a, const gr_rope_desc *b);

/* The width of the MLP that a token goes through. */
uint32_t gr_layer_inner(const gr_layer_desc *d);

/* Multiply-adds of a token in the layer's weights, and of a pair of tokens of which one sees the other. */
uint64_t gr_layer_token_macs(const gr_layer_desc *d, uint32_t hidden);
uint64_t gr_layer_pair_macs(const gr_layer_desc *d);

/* Twice the keys that a token of a sequence of this length sees, on average: the length, or less with a
 * window. */
double gr_layer_keys(const gr_layer_desc *d, double length);

#endif
