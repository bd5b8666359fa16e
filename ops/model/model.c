/* ops/model/model.c: what buckets of a model hold: tensors, their sizes and offsets. */
#include "ops/model/model.h"

#include <assert.h>
#include <stdio.h>

#define TENSOR_ALIGN 64   /* elements */
#define BUCKET_ALIGN 4096 /* shards of up to 64 ranks are of one size, where these are a power of two */

struct dims {
    uint64_t rows, cols; /* rows 0: the model does not have this tensor; cols 0: one dimension */
};

static struct dims slot_dims(const gr_model_shape *s, gr_tensor_slot slot)
{
    uint64_t q_rows = (uint64_t)s->heads * s->head_dim;
    uint64_t qkv_rows = q_rows + 2 * (uint64_t)s->kv_heads * s->head_dim;
    switch (slot) {
    case GR_T_EMBED:
        return (struct dims){s->vocab, s->hidden};
    case GR_T_IN_NORM:
    case GR_T_POST_NORM:
    case GR_T_NORM:
        return (struct dims){s->hidden, 0};
    case GR_T_QKV:
        return (struct dims){qkv_rows, s->hidden};
    case GR_T_QKV_BIAS:
        return (struct dims){s->qkv_bias ? qkv_rows : 0, 0};
    case GR_T_Q_NORM:
    case GR_T_K_NORM:
        return (struct dims){s->qk_norm ? s->head_dim : 0, 0};
    case GR_T_O:
        return (struct dims){s->hidden, q_rows};
    case GR_T_GATE_UP:
        return (struct dims){2 * (uint64_t)s->inter, s->hidden};
    case GR_T_DOWN:
        return (struct dims){s->hidden, s->inter};
    case GR_T_LM_HEAD:
        return (struct dims){s->tied || s->head == GR_HEAD_VALUE ? 0 : s->vocab, s->hidden};
    case GR_T_VALUE:
        return (struct dims){s->head == GR_HEAD_VALUE, s->hidden};
    case GR_T_VALUE_BIAS:
        return (struct dims){s->head == GR_HEAD_VALUE && s->value_bias, 0};
    case GR_T_COUNT:
        break;
    }
    assert(!"a slot");
    return (struct dims){0};
}

/* Slots [*first, *last] are those a bucket can hold. */
static void bucket_slots(const gr_model_shape *s, uint32_t bucket, gr_tensor_slot *first,
                         gr_tensor_slot *last)
{
    assert(bucket < gr_model_buckets(s));
    bool layer = bucket > 0 && bucket <= s->layers;
    *first = bucket == 0 ? GR_T_EMBED : layer ? GR_T_IN_NORM : GR_T_NORM;
    *last = bucket == 0 ? GR_T_EMBED : layer ? GR_T_DOWN : GR_T_VALUE_BIAS;
}

static uint64_t elems(struct dims d)
{
    return d.rows * (d.cols ? d.cols : 1);
}

uint64_t gr_bucket_elems(const gr_model_shape *s, uint32_t bucket)
{
    gr_tensor_slot first, last;
    bucket_slots(s, bucket, &first, &last);
    uint64_t sum = 0;
    for (gr_tensor_slot slot = first; slot <= last; slot++)
        sum += gr_align(elems(slot_dims(s, slot)), TENSOR_ALIGN);
    return gr_align(sum, BUCKET_ALIGN);
}

uint64_t gr_tensor_offset(const gr_model_shape *s, uint32_t bucket, gr_tensor_slot slot)
{
    gr_tensor_slot first, last;
    bucket_slots(s, bucket, &first, &last);
    if (slot < first || slot > last || slot_dims(s, slot).rows == 0) return UINT64_MAX;
    uint64_t offset = 0;
    for (gr_tensor_slot before = first; before < slot; before++)
        offset += gr_align(elems(slot_dims(s, before)), TENSOR_ALIGN);
    return offset;
}

/* How checkpoints name the parts of a slot, in the order they lie in it. */
static const struct part {
    gr_tensor_slot slot;
    const char *name; /* after "model.layers.N." in layers, whole elsewhere */
} parts[] = {
    {GR_T_EMBED, "model.embed_tokens.weight"}, {GR_T_IN_NORM, "input_layernorm.weight"},
    {GR_T_QKV, "self_attn.q_proj.weight"},     {GR_T_QKV, "self_attn.k_proj.weight"},
    {GR_T_QKV, "self_attn.v_proj.weight"},     {GR_T_QKV_BIAS, "self_attn.q_proj.bias"},
    {GR_T_QKV_BIAS, "self_attn.k_proj.bias"},  {GR_T_QKV_BIAS, "self_attn.v_proj.bias"},
    {GR_T_Q_NORM, "self_attn.q_norm.weight"},  {GR_T_K_NORM, "self_attn.k_norm.weight"},
    {GR_T_O, "self_attn.o_proj.weight"},       {GR_T_POST_NORM, "post_attention_layernorm.weight"},
    {GR_T_GATE_UP, "mlp.gate_proj.weight"},    {GR_T_GATE_UP, "mlp.up_proj.weight"},
    {GR_T_DOWN, "mlp.down_proj.weight"},       {GR_T_NORM, "model.norm.weight"},
    {GR_T_LM_HEAD, "lm_head.weight"},          {GR_T_VALUE, "score.weight"},
    {GR_T_VALUE_BIAS, "score.bias"},
};

/* Rows of part i of a slot; the parts of a slot add up to its rows. */
static uint32_t part_rows(const gr_model_shape *s, gr_tensor_slot slot, unsigned i)
{
    if (slot == GR_T_QKV || slot == GR_T_QKV_BIAS) return (i == 0 ? s->heads : s->kv_heads) * s->head_dim;
    if (slot == GR_T_GATE_UP) return s->inter;
    return (uint32_t)slot_dims(s, slot).rows;
}

size_t gr_bucket_tensors(const gr_model_shape *s, uint32_t bucket, gr_tensor out[GR_BUCKET_TENSORS_MAX])
{
    size_t n = 0;
    gr_tensor_slot slot = GR_T_COUNT;
    unsigned i = 0; /* part within the slot */
    uint64_t offset = 0;
    for (size_t p = 0; p < GR_LEN(parts); p++) {
        if (parts[p].slot != slot) {
            slot = parts[p].slot;
            i = 0;
            offset = gr_tensor_offset(s, bucket, slot);
        }
        if (offset == UINT64_MAX) continue;
        struct dims d = {part_rows(s, slot, i++), slot_dims(s, slot).cols};
        gr_tensor *t = &out[n++];
        *t = (gr_tensor){
            .rows = (uint32_t)d.rows, .cols = (uint32_t)d.cols, .offset = offset, .decay = d.cols != 0};
        if (bucket > 0 && bucket <= s->layers)
            snprintf(t->name, sizeof(t->name), "model.layers.%u.%s", bucket - 1, parts[p].name);
        else
            snprintf(t->name, sizeof(t->name), "%s", parts[p].name);
        offset += elems(d);
    }
    return n;
}

uint64_t gr_model_params(const gr_model_shape *s)
{
    uint64_t embed = elems(slot_dims(s, GR_T_EMBED)), layer = 0;
    for (gr_tensor_slot slot = GR_T_IN_NORM; slot <= GR_T_DOWN; slot++) layer += elems(slot_dims(s, slot));
    uint64_t last = 0;
    for (gr_tensor_slot slot = GR_T_NORM; slot <= GR_T_VALUE_BIAS; slot++) last += elems(slot_dims(s, slot));
    return embed + s->layers * layer + last;
}

uint32_t gr_model_head_bucket(const gr_model_shape *s, uint64_t *offset)
{
    assert(s->head == GR_HEAD_LM);
    uint32_t bucket = s->tied ? 0 : s->layers + 1;
    *offset = gr_tensor_offset(s, bucket, s->tied ? GR_T_EMBED : GR_T_LM_HEAD);
    return bucket;
}
