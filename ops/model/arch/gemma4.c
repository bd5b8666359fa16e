/* ops/model/arch/gemma4.c: Gemma 4, text: norms before and behind, norms of the heads of q, k and v, GELU,
 * embeddings times sqrt(H), and a number for each layer that its output is multiplied by. Layers without a
 * window have heads of their own size and number, rotate some pairs of each, and may take keys for values.
 * There may be experts beside the dense MLP. In the small forms each layer has embeddings of its own, and
 * late layers take the keys and values of the last one of their type before them.
 *
 * Source: models/gemma4 of Hugging Face transformers 5.24.
 */
#include "ops/model/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What is not built, each by the key that asks for it; and places that transformers passes over. */
static void refuse_others(gr_config *c)
{
    static const char *const off[] = {"rope_theta", "rope_scaling", "partial_rotary_factor", NULL};
    const char *sees = "use_bidirectional_attention", *who = json_string_value(gr_config_value(c, sees));
    if (gr_config_value(c, sees) && (!who || strcmp(who, "vision") != 0))
        gr_config_refuse(c, sees, "'%s' is not supported; it must be null or 'vision'", sees);
    gr_config_off(c, off);
}

/* ---- heads of layers without a window -------------------------------------------------------------------
 */

typedef struct heads {
    uint32_t size, kv;
} heads;

/* Of a layer in per_layer_config, which transformers 5 writes; where it has none, those of all. */
static heads heads_of_layer(gr_config *c, uint32_t l, heads all)
{
    const char *key = "per_layer_config", *name;
    const json_t *v;
    char number[16];
    snprintf(number, sizeof(number), "%u", l);
    json_t *own = json_object_get(gr_config_value(c, key), number);
    json_object_foreach(own, name, v)
    {
        const bool size = !strcmp(name, "head_dim"), kv = !strcmp(name, "num_key_value_heads");
        const json_int_t n = json_integer_value(v), most = size ? GR_HEAD_DIM_MAX : GR_HEADS_MAX;
        if (!size && !kv)
            gr_config_refuse(c, key, "'%s' of a layer's own is not supported", name);
        else if (!json_is_integer(v) || n < 1 || n > most)
            gr_config_refuse(c, key, "'%s' of layer %u is not an integer from 1 to %d", name, l, (int)most);
        else
            *(size ? &all.size : &all.kv) = (uint32_t)n;
    }
    return all;
}

/* Layers with a window have what all have, and the others agree. */
static heads heads_of_layers(gr_config *c, const gr_model_shape *s, const uint8_t *kind, heads all)
{
    heads full = heads_of_layer(c, s->layers - 1, all);
    for (uint32_t l = 0; l < s->layers; l++) {
        const heads own = heads_of_layer(c, l, all), *want = kind[l] == GR_ARCH_FULL ? &full : &all;
        if (own.size == want->size && own.kv == want->kv) continue;
        gr_config_refuse(c, "per_layer_config", "layer %u has other heads than layers of its type", l);
        break;
    }
    return full;
}

static heads read_heads(gr_config *c, const gr_model_shape *s, const uint8_t *kind,
                        const gr_attention_desc *all, bool keys_are_values)
{
    const heads usual = {all->head_dim, all->kv_heads};
    const json_t *layers = gr_config_value(c, "per_layer_config");
    if (layers && !json_is_object(layers))
        gr_config_refuse(c, "per_layer_config", "'per_layer_config' is not an object");
    if (layers) return heads_of_layers(c, s, kind, usual);
    const uint32_t kv = gr_config_size(c, "num_global_key_value_heads", usual.kv, GR_HEADS_MAX);
    return (heads){gr_config_size(c, "global_head_dim", 512, GR_HEAD_DIM_MAX),
                   keys_are_values ? kv : usual.kv};
}

static void set_heads(gr_config *c, gr_attention_desc *a, heads h)
{
    if (h.kv && a->heads % h.kv)
        gr_config_refuse(c, "num_attention_heads",
                         "'num_attention_heads' %u is not a multiple of %u, the heads of keys of layers "
                         "without a window",
                         a->heads, h.kv);
    if (h.size % 2)
        gr_config_refuse(c, "global_head_dim",
                         "a head dimension of %u is odd, which rotary positions cannot be", h.size);
    a->kv_heads = h.kv;
    a->head_dim = a->rope.dims = h.size;
}

/* ---- embeddings of each layer, and layers with another's keys --------------------------------------------
 */

static void read_per_layer(gr_config *c, gr_model_shape *s)
{
    const char *rows = "vocab_size_per_layer_input", *columns = "hidden_size_per_layer_input";
    const uint32_t width = gr_config_count(c, columns, 256, GR_HIDDEN_MAX),
                   vocab = gr_config_size(c, rows, 262144, GR_VOCAB_MAX);
    if (gr_config_has(c, columns) && !gr_config_value(c, columns))
        gr_config_refuse(c, columns, "'%s' is null: 0 says that layers have no embeddings of their own",
                         columns);
    if (!width) return;
    if (vocab < s->vocab)
        gr_config_refuse(c, rows,
                         "'%s' %u is less than the 'vocab_size' %u: some tokens have no embeddings of "
                         "each layer",
                         rows, vocab, s->vocab);
    s->per_layer = (gr_per_layer_desc){vocab, width};
}

/* The last layer of a type before `end`; end: there is none. */
static uint32_t last_of(const uint8_t *kind, uint8_t type, uint32_t end)
{
    uint32_t l = end;
    while (l > 0 && kind[l - 1] != type) l--;
    return l ? l - 1 : end;
}

/* The first layer that takes keys and values; s->layers: none does. */
static uint32_t first_taker(gr_config *c, const gr_model_shape *s, const uint8_t *kind)
{
    const char *key = "num_kv_shared_layers";
    const uint32_t n = gr_config_count(c, key, 0, s->layers), first = s->layers - n;
    for (uint32_t l = first; l < s->layers; l++) {
        if (last_of(kind, kind[l], first) < first) continue;
        gr_config_refuse(c, key,
                         "'%s' %u leaves layer %u none of its type before layer %u to take keys and "
                         "values of",
                         key, n, l, first);
        return s->layers;
    }
    return first;
}

/* What layer l, of a type, does with keys and values where those from `first` on take them. */
static gr_keys keys_of(const gr_model_shape *s, const uint8_t *kind, uint32_t l, uint32_t first)
{
    if (l >= first) return GR_KEYS_TAKEN;
    uint32_t taker = first;
    while (taker < s->layers && kind[taker] != kind[l]) taker++;
    return taker < s->layers && last_of(kind, kind[l], first) == l ? GR_KEYS_LENT : GR_KEYS_OWN;
}

static void set_keys(gr_layer_desc *d, gr_keys keys, bool wide)
{
    d->attention.keys = keys;
    if (keys != GR_KEYS_TAKEN) return;
    d->attention.keys_are_values = d->attention.value_norm = false; /* they are made elsewhere */
    if (wide) d->dense.inner *= 2;
}

/* ---- layers ---------------------------------------------------------------------------------------------
 */

/* Where layer_types does not say, every sixth sees everything; the last one always does. */
static void read_kinds(gr_config *c, const gr_model_shape *s, uint8_t kind[GR_LAYERS_MAX])
{
    static const char *const types[] = {"sliding_attention", "full_attention", NULL};
    for (uint32_t l = 0; l < s->layers; l++)
        kind[l] = (l + 1) % 6 && l + 1 < s->layers ? GR_ARCH_SLIDING : GR_ARCH_FULL;
    gr_config_layer_types(c, s, types, kind);
    if (s->layers && kind[s->layers - 1] != GR_ARCH_FULL)
        gr_config_refuse(c, "layer_types", "the last of 'layer_types' must be 'full_attention'");
}

static void read_rope(gr_config *c, const char *type, gr_rope_desc *r, const gr_model_shape *s)
{
    if (gr_config_value(c, "rope_parameters"))
        gr_config_rope_of(c, type, "rope_theta", false, r, s->max_positions);
}

/* Of layers that have some. */
static gr_experts_desc read_experts(gr_config *c)
{
    const gr_experts_desc e = {.count = gr_config_size(c, "num_experts", 0, GR_EXPERTS_MAX),
                               .top_k = gr_config_size(c, "top_k_experts", 0, GR_CHOICES_MAX),
                               .inner = gr_config_size(c, "moe_intermediate_size", 0, GR_INNER_MAX),
                               .act = GR_ACT_GELU_TANH,
                               .normalize = true,
                               .scale = 1,
                               .expert_scale = true};
    if (e.count && e.top_k > e.count)
        gr_config_refuse(c, "top_k_experts", "'top_k_experts' %u is more than the 'num_experts' %u", e.top_k,
                         e.count);
    return e;
}

static void layers(gr_config *c, gr_model_shape *s, const gr_layer_desc *base)
{
    uint8_t kind[GR_LAYERS_MAX];
    gr_layer_desc full = *base;
    const char *cap = "final_logit_softcapping";
    refuse_others(c);
    read_kinds(c, s, kind);
    if (c->bad || !s->layers) return;
    full.norm_after = full.scaled = true;
    full.dense.act = GR_ACT_GELU_TANH;
    if (gr_config_flag(c, "enable_moe_block", false)) {
        full.mlp = GR_MLP_EXPERTS;
        full.experts = read_experts(c);
    }
    full.attention.scale = 1;
    full.attention.qk_norm = GR_QK_NORM_HEAD;
    full.attention.value_norm = true;
    s->embed_scale = sqrtf((float)s->hidden);
    read_per_layer(c, s);
    full.per_layer = s->per_layer.width;
    s->logit_softcap = (float)gr_config_number(c, cap, gr_config_value(c, cap), 0, 0, 1e6);
    gr_layer_desc sliding = full;
    sliding.attention.window = gr_arch_window(c, 512);
    full.attention.keys_are_values = gr_config_flag(c, "attention_k_eq_v", false);
    set_heads(c, &full.attention, read_heads(c, s, kind, &sliding.attention, full.attention.keys_are_values));
    full.attention.rope.type = GR_ROPE_PROPORTIONAL;
    full.attention.rope.theta = 1e6;
    full.attention.rope.factor = 1;
    full.attention.rope.share = 0.25;
    read_rope(c, "full_attention", &full.attention.rope, s);
    read_rope(c, "sliding_attention", &sliding.attention.rope, s);
    const bool wide = gr_config_flag(c, "use_double_wide_mlp", false);
    const uint32_t first = first_taker(c, s, kind);
    for (uint32_t l = 0; l < s->layers && !c->bad; l++) {
        gr_layer_desc own = kind[l] == GR_ARCH_FULL ? full : sliding;
        set_keys(&own, keys_of(s, kind, l, first), wide);
        gr_arch_layer(c, s, l, &own);
    }
}

static const gr_arch_name names[] = {{GR_T_MIXER_AFTER, 0, "post_attention_layernorm.weight"},
                                     {GR_T_MLP_NORM, 0, "pre_feedforward_layernorm.weight"},
                                     {GR_T_MLP_AFTER, 0, "post_feedforward_layernorm.weight"},
                                     {GR_T_ROUTER, 0, "router.proj.weight"},
                                     {GR_T_ROUTER_NORM, 0, "router.scale"},
                                     {GR_T_EXPERT_SCALE, 0, "router.per_expert_scale"},
                                     {GR_T_EXPERTS_NORM, 0, "pre_feedforward_layernorm_2.weight"},
                                     {GR_T_DENSE_AFTER, 0, "post_feedforward_layernorm_1.weight"},
                                     {GR_T_EXPERTS_AFTER, 0, "post_feedforward_layernorm_2.weight"},
                                     {GR_T_EXPERTS_GATE_UP, GR_ARCH_FUSED, "experts.gate_up_proj"},
                                     {GR_T_EXPERTS_DOWN, GR_ARCH_FUSED, "experts.down_proj"},
                                     {GR_T_PER_LAYER_GATE, 0, "per_layer_input_gate.weight"},
                                     {GR_T_PER_LAYER_OUT, 0, "per_layer_projection.weight"},
                                     {GR_T_PER_LAYER_AFTER, 0, "post_per_layer_input_norm.weight"},
                                     {GR_T_PER_LAYER_EMBED, 0, "model.embed_tokens_per_layer.weight"},
                                     {GR_T_PER_LAYER_IN, 0, "model.per_layer_model_projection.weight"},
                                     {GR_T_PER_LAYER_NORM, 0, "model.per_layer_projection_norm.weight"},
                                     {0, 0, NULL}};
static const char *const acts[] = {"gelu_pytorch_tanh", NULL};
static const char *const keys[] = {"attention_k_eq_v",
                                   "enable_moe_block",
                                   "final_logit_softcapping",
                                   "global_head_dim",
                                   "hidden_size_per_layer_input",
                                   "moe_intermediate_size",
                                   "num_experts",
                                   "num_global_key_value_heads",
                                   "num_kv_shared_layers",
                                   "per_layer_config",
                                   "sliding_window",
                                   "top_k_experts",
                                   "use_bidirectional_attention",
                                   "use_double_wide_mlp",
                                   "vocab_size_per_layer_input",
                                   NULL};

const gr_arch gr_arch_gemma4_text = {.model_type = "gemma4_text",
                                     .class = "Gemma4",
                                     .outer = "gemma4",
                                     .outer_class = "Gemma4",
                                     .sizes = {262144, 2304, 9216, 30, 8, 131072},
                                     .kv_heads = 4,
                                     .head_dim = 256,
                                     .tied = true,
                                     .ropes = true,
                                     .proportional = true,
                                     .layers = layers,
                                     .names = names,
                                     .keys = keys,
                                     .experts = true,
                                     .experts_fused = true,
                                     .acts = acts};
