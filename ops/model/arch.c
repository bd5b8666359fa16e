/* ops/model/arch.c: the families, and how their checkpoints name tensors. */
#include "ops/model/arch.h"

#include <string.h>

const gr_arch *const gr_all_archs[] = {&gr_arch_llama,
                                       &gr_arch_mistral,
                                       &gr_arch_qwen2,
                                       &gr_arch_qwen3,
                                       &gr_arch_qwen3_5_text,
                                       &gr_arch_qwen3_5_moe_text,
                                       &gr_arch_qwen3_next,
                                       &gr_arch_qwen3_moe,
                                       &gr_arch_qwen2_moe,
                                       &gr_arch_glm4_moe,
                                       &gr_arch_glm4_moe_lite,
                                       &gr_arch_deepseek_v2,
                                       &gr_arch_deepseek_v3,
                                       &gr_arch_gpt_oss,
                                       &gr_arch_mixtral,
                                       &gr_arch_olmoe,
                                       &gr_arch_granitemoe,
                                       &gr_arch_gemma,
                                       &gr_arch_gemma2,
                                       &gr_arch_gemma3_text,
                                       &gr_arch_gemma4_text,
                                       &gr_arch_granite,
                                       &gr_arch_ministral,
                                       &gr_arch_ministral3,
                                       &gr_arch_olmo2,
                                       &gr_arch_olmo3,
                                       &gr_arch_phi3,
                                       &gr_arch_seed_oss,
                                       &gr_arch_exaone4,
                                       &gr_arch_smollm3,
                                       NULL};

const gr_arch *gr_arch_find(const char *model_type)
{
    for (const gr_arch *const *a = gr_all_archs; *a; a++)
        if (!strcmp((*a)->model_type, model_type)) return *a;
    return NULL;
}

const gr_arch *gr_arch_find_outer(const char *model_type, const char *text_type)
{
    const gr_arch *first = NULL;
    for (const gr_arch *const *a = gr_all_archs; *a; a++) {
        if (!(*a)->outer || strcmp((*a)->outer, model_type) != 0) continue;
        if (text_type && !strcmp((*a)->model_type, text_type)) return *a;
        if (!first) first = *a;
    }
    return first;
}

/* What most checkpoints call them. */
static const gr_arch_name names[] = {
    {GR_T_EMBED, 0, "model.embed_tokens.weight"},
    {GR_T_MIXER_NORM, 0, "input_layernorm.weight"},
    {GR_T_QKV, 0, "self_attn.q_proj.weight"},
    {GR_T_QKV, 1, "self_attn.k_proj.weight"},
    {GR_T_QKV, 2, "self_attn.v_proj.weight"},
    {GR_T_QKV, 3, "self_attn.q_proj.weight"},
    {GR_T_QKV_BIAS, 0, "self_attn.q_proj.bias"},
    {GR_T_QKV_BIAS, 1, "self_attn.k_proj.bias"},
    {GR_T_QKV_BIAS, 2, "self_attn.v_proj.bias"},
    {GR_T_Q_NORM, 0, "self_attn.q_norm.weight"},
    {GR_T_K_NORM, 0, "self_attn.k_norm.weight"},
    {GR_T_SINKS, 0, "self_attn.sinks"},
    {GR_T_O, 0, "self_attn.o_proj.weight"},
    {GR_T_DELTA_IN, 0, "linear_attn.in_proj_qkv.weight"},
    {GR_T_DELTA_IN, 1, "linear_attn.in_proj_z.weight"},
    {GR_T_DELTA_IN, 2, "linear_attn.in_proj_b.weight"},
    {GR_T_DELTA_IN, 3, "linear_attn.in_proj_a.weight"},
    {GR_T_DELTA_CONV, 0, "linear_attn.conv1d.weight"},
    {GR_T_DELTA_A_LOG, 0, "linear_attn.A_log"},
    {GR_T_DELTA_DT, 0, "linear_attn.dt_bias"},
    {GR_T_DELTA_NORM, 0, "linear_attn.norm.weight"},
    {GR_T_DELTA_OUT, 0, "linear_attn.out_proj.weight"},
    {GR_T_LATENT_IN, 0, "self_attn.q_a_proj.weight"},
    {GR_T_LATENT_IN, GR_ARCH_WHOLE_Q, "self_attn.q_proj.weight"},
    {GR_T_LATENT_IN, 1, "self_attn.kv_a_proj_with_mqa.weight"},
    {GR_T_LATENT_Q_NORM, 0, "self_attn.q_a_layernorm.weight"},
    {GR_T_LATENT_Q, 0, "self_attn.q_b_proj.weight"},
    {GR_T_LATENT_KV_NORM, 0, "self_attn.kv_a_layernorm.weight"},
    {GR_T_LATENT_KV, 0, "self_attn.kv_b_proj.weight"},
    {GR_T_O_BIAS, 0, "self_attn.o_proj.bias"},
    {GR_T_MLP_NORM, 0, "post_attention_layernorm.weight"},
    {GR_T_GATE_UP, 0, "mlp.gate_proj.weight"},
    {GR_T_GATE_UP, 1, "mlp.up_proj.weight"},
    {GR_T_DOWN, 0, "mlp.down_proj.weight"},
    {GR_T_ROUTER, 0, "mlp.gate.weight"},
    {GR_T_SELECTION, 0, "mlp.gate.e_score_correction_bias"},
    {GR_T_EXPERTS_GATE_UP, 0, "mlp.experts.#.gate_proj.weight"},
    {GR_T_EXPERTS_GATE_UP, 1, "mlp.experts.#.up_proj.weight"},
    {GR_T_EXPERTS_GATE_UP, GR_ARCH_FUSED, "mlp.experts.gate_up_proj"},
    {GR_T_EXPERTS_GATE_UP_BIAS, 0, "mlp.experts.#.gate_proj.bias"},
    {GR_T_EXPERTS_GATE_UP_BIAS, 1, "mlp.experts.#.up_proj.bias"},
    {GR_T_EXPERTS_GATE_UP_BIAS, GR_ARCH_FUSED, "mlp.experts.gate_up_proj_bias"},
    {GR_T_EXPERTS_DOWN, 0, "mlp.experts.#.down_proj.weight"},
    {GR_T_EXPERTS_DOWN, GR_ARCH_FUSED, "mlp.experts.down_proj"},
    {GR_T_EXPERTS_DOWN_BIAS, 0, "mlp.experts.#.down_proj.bias"},
    {GR_T_EXPERTS_DOWN_BIAS, GR_ARCH_FUSED, "mlp.experts.down_proj_bias"},
    {GR_T_SHARED_ROUTER, 0, "mlp.shared_expert_gate.weight"},
    {GR_T_SHARED_GATE_UP, 0, "mlp.shared_expert.gate_proj.weight"},
    {GR_T_SHARED_GATE_UP, 1, "mlp.shared_expert.up_proj.weight"},
    {GR_T_SHARED_DOWN, 0, "mlp.shared_expert.down_proj.weight"},
    {GR_T_LAYER_SCALE, 0, "layer_scalar"},
    {GR_T_NORM, 0, "model.norm.weight"},
    {GR_T_LM_HEAD, 0, "lm_head.weight"},
    {GR_T_VALUE, 0, "score.weight"},
    {GR_T_VALUE_BIAS, 0, "score.bias"},
    {0, 0, NULL},
};

static const char *find(const gr_arch_name *list, gr_tensor_slot slot, unsigned i)
{
    for (; list && list->name; list++)
        if (list->slot == slot && list->part == i) return list->name;
    return NULL;
}

const char *gr_arch_tensor(const char *model_type, gr_tensor_slot slot, unsigned i)
{
    const gr_arch *a = gr_arch_find(model_type);
    const char *own = a ? find(a->names, slot, i) : NULL, *name = own ? own : find(names, slot, i);
    return name ? name : "?";
}

const char *gr_arch_ahead_tensor(const gr_arch *a, gr_tensor_slot slot)
{
    return find(a->ahead->names, slot, 0);
}

static const gr_arch_name behind_last[] = {
    {GR_T_AHEAD_EMBED_NORM, 0, "model.layers.#.enorm.weight"},
    {GR_T_AHEAD_HIDDEN_NORM, 0, "model.layers.#.hnorm.weight"},
    {GR_T_AHEAD_IN, 0, "model.layers.#.eh_proj.weight"},
    {GR_T_NORM, 0, "model.layers.#.shared_head.norm.weight"},
    {0, 0, NULL},
};

const gr_arch_ahead gr_arch_behind_last = {.key = "num_nextn_predict_layers", .names = behind_last};

void gr_arch_layer(gr_config *c, gr_model_shape *s, uint32_t l, const gr_layer_desc *d)
{
    if (gr_model_set_layer(s, l, d)) return;
    gr_config_refuse(c, "num_hidden_layers", "more than %d kinds of layers are not supported",
                     GR_LAYER_KINDS_MAX);
}

void gr_arch_alike(gr_config *c, gr_model_shape *s, const gr_layer_desc *d)
{
    static const char *const kinds[] = {"full_attention", NULL};
    uint8_t kind[GR_LAYERS_MAX];
    gr_config_layer_types(c, s, kinds, kind);
    for (uint32_t l = 0; l < s->layers; l++) gr_arch_layer(c, s, l, d);
}

uint32_t gr_arch_window(gr_config *c, uint32_t usual)
{
    const bool null = gr_config_has(c, "sliding_window") && !gr_config_value(c, "sliding_window");
    if (null) gr_config_refuse(c, "sliding_window", "'sliding_window' is null: '%s' has one", c->family);
    return gr_config_size(c, "sliding_window", usual, GR_POSITIONS_MAX);
}

uint32_t gr_arch_any_window(gr_config *c, const gr_model_shape *s, uint32_t usual)
{
    const bool said = gr_config_value(c, "sliding_window"),
               none = !said && (!usual || gr_config_has(c, "sliding_window"));
    const uint32_t window = none ? 0 : gr_config_size(c, "sliding_window", usual, GR_POSITIONS_MAX);
    return window < s->max_positions ? window : 0;
}

void gr_arch_in_turn(gr_config *c, gr_model_shape *s, uint8_t kind[GR_LAYERS_MAX],
                     const gr_layer_desc *sliding, const gr_layer_desc *full)
{
    static const char *const types[] = {"sliding_attention", "full_attention", NULL};
    gr_config_layer_types(c, s, types, kind);
    for (uint32_t l = 0; l < s->layers; l++) gr_arch_layer(c, s, l, kind[l] == GR_ARCH_FULL ? full : sliding);
}

/* ---- experts as GLM and DeepSeek say them
 * -------------------------------------------------------------------
 */

/* What chooses from groups needs: two experts in each, and enough of them in those that are left. */
static void check_groups(gr_config *c, const gr_experts_desc *e)
{
    if (!e->count || !e->top_k || !e->groups || !e->top_groups) return;
    const uint32_t size = e->count / e->groups;
    if (e->count % e->groups || (e->groups > 1 && size < 2))
        gr_config_refuse(c, "n_group", "'n_group' %u does not cut %u experts into groups of two or more",
                         e->groups, e->count);
    else if (e->top_groups > e->groups || e->top_k > e->top_groups * size)
        gr_config_refuse(c, "topk_group",
                         "'topk_group' %u leaves no %u experts to choose: there are %u groups of %u",
                         e->top_groups, e->top_k, e->groups, size);
}

gr_experts_desc gr_arch_sigmoid_experts(gr_config *c, const gr_experts_desc *unsaid)
{
    const char *scale = "routed_scaling_factor";
    gr_experts_desc e = {.count = gr_config_size(c, "n_routed_experts", unsaid->count, GR_EXPERTS_MAX),
                         .top_k = gr_config_size(c, "num_experts_per_tok", unsaid->top_k, GR_CHOICES_MAX),
                         .inner = gr_config_size(c, "moe_intermediate_size", unsaid->inner, GR_INNER_MAX),
                         .router = GR_ROUTER_SIGMOID,
                         .normalize = gr_config_flag(c, "norm_topk_prob", unsaid->normalize),
                         .selection_bias = true,
                         .groups = gr_config_size(c, "n_group", unsaid->groups, GR_GROUPS_MAX),
                         .top_groups = gr_config_size(c, "topk_group", unsaid->top_groups, GR_GROUPS_MAX),
                         .scale = (float)gr_config_number(c, scale, gr_config_value(c, scale),
                                                          (double)unsaid->scale, 1e-6, 1e6)};
    e.shared_inner =
        e.inner * gr_config_size(c, "n_shared_experts", unsaid->shared_inner / unsaid->inner, GR_CHOICES_MAX);
    check_groups(c, &e);
    return e;
}

/* ---- experts as Qwen says them ---------------------------------------------------------------------------
 */

void gr_arch_check_choices(gr_config *c, const char *key, const gr_experts_desc *e)
{
    if (e->count && e->top_k > e->count)
        gr_config_refuse(c, "num_experts_per_tok", "'num_experts_per_tok' %u is more than the '%s' %u",
                         e->top_k, key, e->count);
}

gr_experts_desc gr_arch_qwen_experts(gr_config *c, const gr_experts_desc *usual)
{
    gr_experts_desc e = *usual;
    e.count = gr_config_size(c, "num_experts", usual->count, GR_EXPERTS_MAX);
    e.top_k = gr_config_size(c, "num_experts_per_tok", usual->top_k, GR_CHOICES_MAX);
    e.inner = gr_config_size(c, "moe_intermediate_size", usual->inner, GR_INNER_MAX);
    e.normalize = gr_config_flag(c, "norm_topk_prob", usual->normalize);
    e.scale = 1;
    if (usual->shared_inner)
        e.shared_inner =
            gr_config_size(c, "shared_expert_intermediate_size", usual->shared_inner, GR_INNER_MAX);
    gr_arch_check_choices(c, "num_experts", &e);
    return e;
}

static bool is_named(gr_config *c, uint32_t layer)
{
    const json_t *list = gr_config_value(c, "mlp_only_layers");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == layer) return true;
    return false;
}

static void check_named(gr_config *c, const gr_model_shape *s)
{
    const json_t *list = gr_config_value(c, "mlp_only_layers");
    bool fine = !list || json_is_array(list);
    for (size_t i = 0; fine && i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        fine = json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < s->layers;
    }
    if (!fine)
        gr_config_refuse(c, "mlp_only_layers", "'mlp_only_layers' is not a list of layers from 0 to %u",
                         s->layers ? s->layers - 1 : 0);
}

void gr_arch_qwen_sparse(gr_config *c, const gr_model_shape *s, bool sparse[GR_LAYERS_MAX])
{
    const uint32_t step = gr_config_size(c, "decoder_sparse_step", 1, GR_LAYERS_MAX);
    check_named(c, s);
    for (uint32_t l = 0; l < s->layers; l++) sparse[l] = step && !((l + 1) % step || is_named(c, l));
}

gr_layer_desc gr_arch_with_experts(const gr_layer_desc *dense, const gr_experts_desc *e)
{
    gr_layer_desc d = *dense;
    d.mlp = GR_MLP_EXPERTS;
    d.dense = (gr_dense_desc){0};
    d.experts = *e;
    return d;
}
