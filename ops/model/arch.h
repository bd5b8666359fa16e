/* ops/model/arch.h: families of models, a file of ops/model/arch each.
 *
 * A family reads what is its own in config.json and describes each layer (ops/model/layer.h); kernels,
 * planner, executor and ops know descriptions alone. What it cannot describe it refuses by name. To add one:
 * its file with one gr_arch, a line in ops/model/arch.c, goldens (tests/oracle/make_model_goldens.py).
 */
#ifndef GR_OPS_MODEL_ARCH_H
#define GR_OPS_MODEL_ARCH_H

#include "ops/model/config.h"
#include "ops/model/model.h"

/* How checkpoints of a family name part i of a slot, where it differs from what most have. */
typedef struct gr_arch_name {
    gr_tensor_slot slot;
    unsigned part;
    const char *name; /* in layers what stands behind "model.layers.N.", '#' for an expert's number; NULL ends
                         the list */
} gr_arch_name;

/* The part of GR_T_LATENT_IN that queries are where they have no latent. */
#define GR_ARCH_WHOLE_Q 2
#define GR_ARCH_FUSED   1000u /* the part of the one tensor of all experts, where a checkpoint has one */

/* Sizes of a family where config.json does not say them; 0: it must. */
typedef struct gr_arch_sizes {
    uint32_t vocab, hidden, inner, layers, heads, positions;
} gr_arch_sizes;

/* The layer that predicts a further token, as checkpoints of a family have it beside the model. */
typedef struct gr_arch_ahead {
    const char *key; /* of config.json: how many there are */
    uint32_t unsaid; /* where it does not say */
    bool normed;     /* what the token after the next is predicted from is behind the layer's own last norm */
    const char *layer; /* what its tensors begin with; NULL: it is numbered as the layer behind the last */
    const gr_arch_name *names; /* of GR_T_AHEAD_* and of its GR_T_NORM; '#' is the number of that layer */
} gr_arch_ahead;
/* Of layers behind the last. */
extern const gr_arch_ahead gr_arch_behind_last;

typedef struct gr_arch {
    const char *model_type; /* in config.json */
    const char *class;      /* "Llama": LlamaForCausalLM, and so on */
    const char *outer;      /* model_type of configs that have this one's as their text_config; NULL: none */
    const char
        *outer_class; /* and the class of their architecture, "Qwen3_5": Qwen3_5ForConditionalGeneration */
    const char *head_class; /* of value heads, "Gemma3Text"; NULL: class */
    gr_arch_sizes sizes;    /* whose configs leave out what is usual */
    uint32_t head_dim;      /* where config.json has none; 0: hidden / heads */
    bool no_groups;         /* kv_heads are heads where config.json does not say */
    uint32_t kv_heads;      /* or this many, and heads where it says null; 0: it must say */
    bool tied;              /* where config.json does not say */
    double eps;             /* of norms, where it does not say; 0: 1e-6 */
    double theta;           /* of rotary positions, where it does not say; 0: 10000 */
    double partial; /* of a head that is rotated, the same; 0: all, and config.json can say no other */
    bool grids;     /* positions may be said to be of several grids, of which text has one: "mrope_..." */
    bool ropes;     /* rotary positions differ by the type of layer: layers reads them */
    bool scales_queries; /* by their positions, of which the rope's object says how: layers reads it */
    bool proportional;   /* positions may be GR_ROPE_PROPORTIONAL */
    uint32_t original_positions; /* of longrope, which config.json may call "su", where it does not say; 0:
                                    all positions, and it may not */
    /* Describe all layers: base is gr_layer_plain of the sizes that every family has, with its epsilon and
     * rotary positions (those of config.json's root). s has everything but its layers. */
    void (*layers)(gr_config *c, gr_model_shape *s, const gr_layer_desc *base);
    const gr_arch_name *names;  /* NULL: those that most have */
    const char *const *keys;    /* that layers reads beyond those that all do, ending with NULL; NULL: none */
    const gr_arch_ahead *ahead; /* NULL: its checkpoints have no layers that predict further tokens; else
                                   `layers` says what they are */
    bool experts;               /* it has them: their keys are among `keys` */
    bool experts_fused;         /* checkpoints always have one tensor of all of them, GR_EXPERTS_FUSED */
    bool experts_turned;        /* which is [E, H, 2 I], and [E, I, H]; graphrun export writes it, too */
    bool gate_up_in_turn;       /* and has rows (or columns) of gate and up in turn */
    bool mxfp4;                 /* it may be GR_EXPERTS_MXFP4 */
    const char *const *acts;    /* of hidden_act and hidden_activation that it takes, ending with NULL; NULL:
                                   "silu" alone */
} gr_arch;

extern const gr_arch gr_arch_exaone4, gr_arch_gemma, gr_arch_granitemoe, gr_arch_mixtral, gr_arch_olmoe,
    gr_arch_phi3, gr_arch_seed_oss, gr_arch_gemma2, gr_arch_gemma3_text, gr_arch_gemma4_text, gr_arch_gpt_oss,
    gr_arch_granite, gr_arch_llama, gr_arch_ministral, gr_arch_ministral3, gr_arch_mistral, gr_arch_olmo2,
    gr_arch_olmo3, gr_arch_qwen2, gr_arch_qwen3, gr_arch_qwen3_5_text, gr_arch_qwen3_5_moe_text,
    gr_arch_qwen3_next, gr_arch_qwen3_moe, gr_arch_qwen2_moe, gr_arch_glm4_moe, gr_arch_glm4_moe_lite,
    gr_arch_deepseek_v2, gr_arch_deepseek_v3, gr_arch_smollm3;

/* All of them, ending with NULL. */
extern const gr_arch *const gr_all_archs[];

/* By config.json's model_type; NULL: there is none. */
const gr_arch *gr_arch_find(const char *model_type);

/* The family that a config's text_config is of, by the config's own model_type and, where there are several,
 * the text's (NULL: it is not said); NULL: there is none. */
const gr_arch *gr_arch_find_outer(const char *model_type, const char *text_type);

/* The checkpoint name of part i of a slot; of an unknown family what most have. */
const char *gr_arch_tensor(const char *model_type, gr_tensor_slot slot, unsigned i);

/* Of the layer that predicts further tokens, what stands before and behind it; a has one. */
const char *gr_arch_ahead_tensor(const gr_arch *a, gr_tensor_slot slot);

/* Layers with a window and layers without: kind has what holds where `layer_types` does not say. */
enum { GR_ARCH_SLIDING, GR_ARCH_FULL };
void gr_arch_in_turn(gr_config *c, gr_model_shape *s, uint8_t kind[GR_LAYERS_MAX],
                     const gr_layer_desc *sliding, const gr_layer_desc *full);

/* The window of a family whose layers cannot do without one; usual where nothing is said, and null is
 * refused.
 */
uint32_t gr_arch_window(gr_config *c, uint32_t usual);

/* The window of a family whose layers all have the same one, or none, which null says, too; usual: where
 * nothing is said, 0: none. One that reaches over all positions is none. */
uint32_t gr_arch_any_window(gr_config *c, const gr_model_shape *s, uint32_t usual);

/* Layers of Qwen 2 and 3: from max_window_layers on with a window, where use_sliding_window asks for it. */
void gr_arch_qwen_layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *d);

/* Experts whose router is a sigmoid with a bias that selects, in groups, with some beside them that every
 * token goes through. unsaid: what holds where config.json does not say. */
gr_experts_desc gr_arch_sigmoid_experts(gr_config *c, const gr_experts_desc *unsaid);
/* Experts as configs of Qwen say them; what they do not say is as usual. */
gr_experts_desc gr_arch_qwen_experts(gr_config *c, const gr_experts_desc *usual);
/* Which layers have them: not those of `mlp_only_layers`, nor those beside every `decoder_sparse_step`-th. */
void gr_arch_qwen_sparse(gr_config *c, const gr_model_shape *s, bool sparse[GR_LAYERS_MAX]);
/* More choices for a token than there are experts, which `key` says, are refused. */
void gr_arch_check_choices(gr_config *c, const char *key, const gr_experts_desc *e);
/* A layer with experts in place of its dense MLP. */
gr_layer_desc gr_arch_with_experts(const gr_layer_desc *dense, const gr_experts_desc *e);

/* All layers are d; of layer_types each must be full_attention. */
void gr_arch_alike(gr_config *c, gr_model_shape *s, const gr_layer_desc *d);
/* Layer l is d; more kinds of layers than are held are refused. */
void gr_arch_layer(gr_config *c, gr_model_shape *s, uint32_t l, const gr_layer_desc *d);

#endif
