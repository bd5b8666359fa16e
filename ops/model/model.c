/* ops/model/model.c: what buckets of a model hold: tensors, their sizes and offsets. */
#include "ops/model/model.h"

#include "ops/model/adapters.h"
#include "ops/model/arch.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define TENSOR_ALIGN 64   /* elements */
#define BUCKET_ALIGN 4096 /* shards of up to 64 ranks are of one size, where these are a power of two */

#define INLINED static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 64")
#endif

struct dims {
    uint64_t rows, cols; /* rows 0: the model does not have this tensor; cols 0: one dimension */
};

INLINED struct dims attention_dims(const gr_attention_desc *a, uint32_t hidden, gr_tensor_slot slot)
{
    const uint64_t q = (uint64_t)a->heads * a->head_dim, kv = (uint64_t)a->kv_heads * a->head_dim;
    const bool whole = a->qk_norm == GR_QK_NORM_WHOLE;
    switch (slot) {
    case GR_T_QKV:
        return (struct dims){gr_qkv_given(a), hidden};
    case GR_T_QKV_BIAS:
        return (struct dims){a->qkv_bias ? gr_qkv_given(a) : 0, 0};
    case GR_T_Q_NORM:
        return (struct dims){!a->qk_norm ? 0 : whole ? q : a->head_dim, 0};
    case GR_T_K_NORM:
        return (struct dims){!a->qk_norm || a->keys == GR_KEYS_TAKEN ? 0 : whole ? kv : a->head_dim, 0};
    case GR_T_SINKS:
        return (struct dims){a->sinks ? a->heads : 0, 0};
    case GR_T_O:
        return (struct dims){hidden, q};
    case GR_T_O_BIAS:
        return (struct dims){a->o_bias ? hidden : 0, 0};
    default:
        return (struct dims){0};
    }
}

INLINED struct dims delta_dims(const gr_delta_desc *d, uint32_t hidden, gr_tensor_slot slot)
{
    switch (slot) {
    case GR_T_DELTA_IN:
        return (struct dims){gr_delta_in(d), hidden};
    case GR_T_DELTA_CONV:
        return (struct dims){gr_delta_channels(d), d->conv};
    case GR_T_DELTA_A_LOG:
    case GR_T_DELTA_DT:
        return (struct dims){d->value_heads, 0};
    case GR_T_DELTA_NORM:
        return (struct dims){d->value_dim, 0};
    case GR_T_DELTA_OUT:
        return (struct dims){hidden, gr_delta_out(d)};
    default:
        return (struct dims){0};
    }
}

INLINED struct dims latent_dims(const gr_latent_desc *l, uint32_t hidden, gr_tensor_slot slot)
{
    switch (slot) {
    case GR_T_LATENT_IN:
        return (struct dims){gr_latent_in(l), hidden};
    case GR_T_LATENT_Q_NORM:
        return (struct dims){l->q_rank, 0};
    case GR_T_LATENT_Q:
        return (struct dims){l->q_rank ? (uint64_t)l->heads * gr_latent_head(l) : 0, l->q_rank};
    case GR_T_LATENT_KV_NORM:
        return (struct dims){l->kv_rank, 0};
    case GR_T_LATENT_KV:
        return (struct dims){(uint64_t)l->heads * gr_latent_kv(l), l->kv_rank};
    case GR_T_O:
        return (struct dims){hidden, (uint64_t)l->heads * l->v_dim};
    default:
        return (struct dims){0};
    }
}

INLINED struct dims mixer_dims(const gr_layer_desc *d, uint32_t hidden, gr_tensor_slot slot)
{
    switch (d->mixer) {
    case GR_MIXER_DELTA:
        return delta_dims(&d->delta, hidden, slot);
    case GR_MIXER_LATENT:
        return latent_dims(&d->latent, hidden, slot);
    case GR_MIXER_ATTENTION:
        break;
    }
    return attention_dims(&d->attention, hidden, slot);
}

INLINED struct dims experts_dims(const gr_experts_desc *e, uint32_t hidden, gr_tensor_slot slot)
{
    const uint64_t held = gr_experts_held(e), each = e->bias ? held : 0;
    switch (slot) {
    case GR_T_ROUTER:
        return (struct dims){e->count, hidden};
    case GR_T_ROUTER_BIAS:
        return (struct dims){e->router_bias ? e->count : 0, 0};
    case GR_T_SELECTION:
        return (struct dims){e->selection_bias ? (uint64_t)e->count * GR_SELECTION_PARTS : 0, 0};
    case GR_T_EXPERTS_GATE_UP:
        return (struct dims){held * 2 * e->inner, hidden};
    case GR_T_EXPERTS_GATE_UP_BIAS:
        return (struct dims){each * 2 * e->inner, 0};
    case GR_T_EXPERTS_DOWN:
        return (struct dims){held * hidden, e->inner};
    case GR_T_EXPERTS_DOWN_BIAS:
        return (struct dims){each * hidden, 0};
    case GR_T_SHARED_ROUTER:
        return (struct dims){e->shared_gate, hidden};
    case GR_T_SHARED_GATE_UP:
        return (struct dims){2 * (uint64_t)e->shared_inner, hidden};
    case GR_T_SHARED_DOWN:
        return (struct dims){e->shared_inner ? hidden : 0, e->shared_inner};
    default:
        return (struct dims){0};
    }
}

INLINED struct dims layer_dims(const gr_layer_desc *d, uint32_t hidden, gr_tensor_slot slot)
{
    switch (slot) {
    case GR_T_MIXER_NORM:
    case GR_T_MLP_NORM:
        return (struct dims){d->norm_before ? hidden : 0, 0};
    case GR_T_MIXER_AFTER:
    case GR_T_MLP_AFTER:
        return (struct dims){d->norm_after ? hidden : 0, 0};
    case GR_T_GATE_UP:
        return (struct dims){2 * (uint64_t)d->dense.inner, hidden};
    case GR_T_LAYER_SCALE:
        return (struct dims){d->scaled, 0};
    case GR_T_PER_LAYER_GATE:
        return (struct dims){d->per_layer, hidden};
    case GR_T_PER_LAYER_OUT:
        return (struct dims){d->per_layer ? hidden : 0, d->per_layer};
    case GR_T_PER_LAYER_AFTER:
        return (struct dims){d->per_layer ? hidden : 0, 0};
    case GR_T_EXPERT_SCALE:
        return (struct dims){d->experts.expert_scale ? d->experts.count : 0, 0};
    case GR_T_ROUTER_NORM:
    case GR_T_EXPERTS_NORM:
    case GR_T_DENSE_AFTER:
    case GR_T_EXPERTS_AFTER:
        return (struct dims){gr_layer_is_beside(d) ? hidden : 0, 0};
    case GR_T_DOWN:
        return (struct dims){d->dense.inner ? hidden : 0, d->dense.inner};
    default:
        if (slot >= GR_T_ROUTER) return experts_dims(&d->experts, hidden, slot);
        return mixer_dims(d, hidden, slot);
    }
}

/* Of what is not a layer's. */
static struct dims end_dims(const gr_model_shape *s, gr_tensor_slot slot)
{
    switch (slot) {
    case GR_T_EMBED:
        return (struct dims){s->vocab, s->hidden};
    case GR_T_NORM:
        return (struct dims){s->hidden, 0};
    case GR_T_LM_HEAD:
        return (struct dims){s->tied || s->head == GR_HEAD_VALUE ? 0 : s->vocab, s->hidden};
    case GR_T_VALUE:
        return (struct dims){s->head == GR_HEAD_VALUE, s->hidden};
    case GR_T_VALUE_BIAS:
        return (struct dims){s->head == GR_HEAD_VALUE && s->value_bias, 0};
    case GR_T_PER_LAYER_EMBED:
        return (struct dims){s->per_layer.vocab, gr_model_per_layer(s)};
    case GR_T_PER_LAYER_IN:
        return (struct dims){gr_model_per_layer(s), s->hidden};
    case GR_T_PER_LAYER_NORM:
        return (struct dims){s->per_layer.width, 0};
    case GR_T_AHEAD_EMBED_NORM:
    case GR_T_AHEAD_HIDDEN_NORM:
        return (struct dims){s->hidden, 0};
    case GR_T_AHEAD_IN:
        return (struct dims){s->hidden, 2 * (uint64_t)s->hidden};
    default:
        return (struct dims){0};
    }
}

static bool is_layer(const gr_model_shape *s, uint32_t bucket)
{
    assert(bucket < gr_model_buckets(s));
    return bucket > 0 && bucket <= s->layers;
}

static struct dims slot_dims(const gr_model_shape *s, uint32_t bucket, gr_tensor_slot slot)
{
    struct dims d = {0};
    if (slot >= GR_T_QKV_A) {
        gr_adapter_dims(gr_layer(s, bucket - 1), &s->adapter, s->hidden, slot, &d.rows, &d.cols);
        return d;
    }
    return is_layer(s, bucket) ? layer_dims(gr_layer(s, bucket - 1), s->hidden, slot) : end_dims(s, slot);
}

/* Slots [*first, *last] are those a bucket can hold. */
static void bucket_slots(const gr_model_shape *s, uint32_t bucket, gr_tensor_slot *first,
                         gr_tensor_slot *last)
{
    const bool layer = is_layer(s, bucket), embeds = bucket == 0 || bucket > 1 + s->layers;
    if (s->adapter.rank) { /* of embeddings none */
        *first = layer ? GR_T_QKV_A : GR_T_VALUE;
        *last = layer ? GR_T_DOWN_B : embeds ? GR_T_NORM : GR_T_VALUE_BIAS;
        return;
    }
    if (bucket > 1 + s->layers) {
        *first = GR_T_PER_LAYER_EMBED;
        *last = GR_T_PER_LAYER_NORM;
        return;
    }
    if (s->behind && !layer) { /* embedding and output matrix are the model's */
        *first = bucket ? GR_T_NORM : GR_T_AHEAD_EMBED_NORM;
        *last = bucket ? GR_T_NORM : GR_T_AHEAD_IN;
        return;
    }
    *first = bucket == 0 ? GR_T_EMBED : layer ? GR_T_MIXER_NORM : GR_T_NORM;
    *last = bucket == 0 ? GR_T_EMBED : layer ? GR_T_MLP_AFTER : GR_T_VALUE_BIAS;
}

static uint64_t elems(struct dims d)
{
    return d.rows * (d.cols ? d.cols : 1);
}

/* The slot after one, past those of mixers and experts that the bucket's layer has not: sizes are asked for
 * a hundred thousand times in the search for a plan. */
static gr_tensor_slot next_slot(const gr_model_shape *s, uint32_t bucket, gr_tensor_slot slot)
{
    slot++;
    if (slot != GR_T_QKV && slot != GR_T_DELTA_IN && slot != GR_T_LATENT_IN && slot != GR_T_ROUTER)
        return slot;
    const gr_layer_desc *d = gr_layer(s, bucket - 1);
    if (slot == GR_T_QKV && d->mixer != GR_MIXER_ATTENTION) slot = GR_T_DELTA_IN;
    if (slot == GR_T_DELTA_IN && d->mixer != GR_MIXER_DELTA) slot = GR_T_LATENT_IN;
    if (slot == GR_T_LATENT_IN && d->mixer != GR_MIXER_LATENT) slot = GR_T_O;
    if (slot == GR_T_ROUTER && !d->experts.count) slot = GR_T_LAYER_SCALE;
    return slot;
}

/* Of a layer, and asked for a hundred thousand times in the search for a plan: with the slot a constant in
 * each turn most of them come to nothing when this is compiled. */
static uint64_t layer_elems(const gr_layer_desc *d, uint32_t hidden)
{
    uint64_t sum = 0;
    UNROLL
    for (int slot = GR_T_MIXER_NORM; slot <= GR_T_MLP_AFTER; slot++)
        sum += gr_align(elems(layer_dims(d, hidden, (gr_tensor_slot)slot)), TENSOR_ALIGN);
    return gr_align(sum, BUCKET_ALIGN);
}

uint64_t gr_bucket_elems(const gr_model_shape *s, uint32_t bucket)
{
    if (is_layer(s, bucket) && !s->adapter.rank) return layer_elems(gr_layer(s, bucket - 1), s->hidden);
    gr_tensor_slot first, last;
    bucket_slots(s, bucket, &first, &last);
    uint64_t sum = 0;
    for (gr_tensor_slot slot = first; slot <= last; slot = next_slot(s, bucket, slot))
        sum += gr_align(elems(slot_dims(s, bucket, slot)), TENSOR_ALIGN);
    return gr_align(sum, BUCKET_ALIGN);
}

uint64_t gr_tensor_offset(const gr_model_shape *s, uint32_t bucket, gr_tensor_slot slot)
{
    gr_tensor_slot first, last;
    bucket_slots(s, bucket, &first, &last);
    if (slot < first || slot > last || slot_dims(s, bucket, slot).rows == 0) return UINT64_MAX;
    uint64_t offset = 0;
    for (gr_tensor_slot before = first; before < slot; before = next_slot(s, bucket, before))
        offset += gr_align(elems(slot_dims(s, bucket, before)), TENSOR_ALIGN);
    return offset;
}

bool gr_tensor_dims(const gr_model_shape *s, uint32_t bucket, gr_tensor_slot slot, uint64_t *rows,
                    uint64_t *cols)
{
    gr_tensor_slot first, last;
    bucket_slots(s, bucket, &first, &last);
    if (slot < first || slot > last) return false;
    const struct dims d = slot_dims(s, bucket, slot);
    *rows = d.rows;
    *cols = d.cols;
    return d.rows > 0;
}

/* Of the rule's input: q, k and v; z; b; a. By head q, k, v, z, b, a. */
static uint32_t delta_in_rows(const gr_delta_desc *d, unsigned i)
{
    const uint32_t keys = d->key_heads * d->key_dim, values = gr_delta_out(d);
    if (d->by_head) return i < 2 ? keys : i < 4 ? values : d->value_heads;
    return i == 0 ? gr_delta_channels(d) : i == 1 ? values : d->value_heads;
}

/* Rows of part i of a slot; the parts of a slot add up to its rows. */
static uint32_t part_rows(const gr_model_shape *s, uint32_t bucket, gr_tensor_slot slot, unsigned i)
{
    const gr_layer_desc *d = is_layer(s, bucket) ? gr_layer(s, bucket - 1) : NULL;
    gr_tensor_slot of;
    unsigned part;
    if (slot >= GR_T_QKV_A) return gr_adapter_part(d, &s->adapter, s->hidden, slot, i, &of, &part);
    switch (slot) {
    case GR_T_GATE_UP:
        return d->dense.inner;
    case GR_T_DELTA_IN:
        return delta_in_rows(&d->delta, i);
    case GR_T_LATENT_IN:
        return i ? gr_latent_row(&d->latent) : gr_latent_queries(&d->latent);
    case GR_T_EXPERTS_GATE_UP:
    case GR_T_EXPERTS_GATE_UP_BIAS:
        return d->experts.inner;
    case GR_T_EXPERTS_DOWN:
    case GR_T_EXPERTS_DOWN_BIAS:
        return s->hidden;
    case GR_T_SHARED_GATE_UP:
        return d->experts.shared_inner;
    case GR_T_QKV: /* q, k, v, and the gate of q */
    case GR_T_QKV_BIAS:
        return (i % 3 ? d->attention.kv_heads : d->attention.heads) * d->attention.head_dim;
    default:
        return (uint32_t)slot_dims(s, bucket, slot).rows;
    }
}

/* What a tensor of one dimension holds before anybody has trained it. */
static float initial_value(const gr_model_shape *s, uint32_t bucket, gr_tensor_slot slot)
{
    const bool bias = slot == GR_T_QKV_BIAS || slot == GR_T_O_BIAS || slot == GR_T_VALUE_BIAS ||
                      slot == GR_T_ROUTER_BIAS || slot == GR_T_SELECTION ||
                      slot == GR_T_EXPERTS_GATE_UP_BIAS || slot == GR_T_EXPERTS_DOWN_BIAS;
    if (bias || slot == GR_T_SINKS || slot == GR_T_DELTA_A_LOG) return 0;
    if (slot == GR_T_DELTA_DT || slot == GR_T_DELTA_NORM) return 1;
    if (slot == GR_T_LAYER_SCALE || slot == GR_T_EXPERT_SCALE) return 1;
    return (is_layer(s, bucket) ? gr_layer(s, bucket - 1)->norm_plus_one : s->norm_plus_one) ? 0 : 1;
}

/* The part that it has its name by. */
static unsigned named_part(const gr_model_shape *s, uint32_t bucket, gr_tensor_slot slot, unsigned i)
{
    const bool whole = slot == GR_T_LATENT_IN && i == 0 && !gr_layer(s, bucket - 1)->latent.q_rank;
    return whole ? GR_ARCH_WHOLE_Q : i;
}

/* Parts that each expert has in a slot; 0: it is not one of experts. */
static unsigned expert_parts(gr_tensor_slot slot)
{
    const bool down = slot == GR_T_EXPERTS_DOWN || slot == GR_T_EXPERTS_DOWN_BIAS;
    return slot == GR_T_EXPERTS_GATE_UP || slot == GR_T_EXPERTS_GATE_UP_BIAS ? 2 : down;
}

/* What names of a layer's tensors begin with. */
static void name_layer(char out[32], const gr_model_shape *s, uint32_t bucket)
{
    const char *own = s->behind ? gr_arch_find(s->model_type)->ahead->layer : NULL;
    if (own)
        snprintf(out, 32, "%s", own);
    else
        snprintf(out, 32, "model.layers.%u.", s->behind + bucket - 1);
}

/* The name of part i of a slot, where '#' is a number: in layers of an expert. */
static void set_name(gr_tensor *t, const gr_model_shape *s, uint32_t bucket, const char *name,
                     unsigned expert)
{
    const char *number = strchr(name, '#');
    char layer[32] = "";
    if (is_layer(s, bucket)) name_layer(layer, s, bucket);
    if (number)
        snprintf(t->name, sizeof(t->name), "%s%.*s%u%s", layer, (int)(number - name), name, expert,
                 number + 1);
    else
        snprintf(t->name, sizeof(t->name), "%s%s", layer, name);
}

/* Of q, k, v and z, or of b and a, of each key head. */
static gr_woven delta_woven(const gr_delta_desc *d, unsigned i)
{
    const uint32_t each = d->value_heads / d->key_heads, k = d->key_dim, v = each * d->value_dim;
    const uint32_t run[] = {k, k, v, v, each, each}, first[] = {0, k, 2 * k, 2 * k + v, 0, each};
    const uint32_t period = i < 4 ? 2 * (k + v) : 2 * each;
    return (gr_woven){.run = run[i],
                      .period = period,
                      .first = first[i],
                      .rows = period * d->key_heads,
                      .phase = i < 4 ? i : i - 4};
}

/* How the checkpoint has a tensor, where it is not as here. */
static void set_stored(gr_tensor *t, const gr_model_shape *s, uint32_t bucket, gr_tensor_slot slot,
                       unsigned i)
{
    const gr_layer_desc *d = is_layer(s, bucket) ? gr_layer(s, bucket - 1) : NULL;
    const uint32_t heads = d ? d->attention.head_dim : 0;
    t->thin = slot == GR_T_DELTA_CONV;
    if (slot == GR_T_DELTA_CONV || (slot == GR_T_DELTA_IN && !i && !d->delta.by_head))
        t->keys = d->delta.key_heads * d->delta.key_dim;
    t->sums = slot == GR_T_SELECTION ? GR_SELECTION_PARTS : 0;
    if (slot == GR_T_DELTA_IN && d->delta.by_head) t->woven = delta_woven(&d->delta, i);
    if (slot == GR_T_QKV && i % 3 == 0 && d->attention.gate)
        t->woven = (gr_woven){
            .run = heads, .period = 2 * heads, .first = i / 3 * heads, .rows = 2 * t->rows, .phase = i / 3};
}

/* Where part i of a slot of experts lies in the tensor of all of them. */
static void set_fused(gr_tensor *t, const gr_layer_desc *d, gr_tensor_slot slot, unsigned i,
                      gr_experts_form form, const gr_arch *a)
{
    const unsigned each = expert_parts(slot);
    const bool in_turn = each == 2 && a->gate_up_in_turn;
    t->woven = (gr_woven){.run = in_turn ? 1 : t->rows,
                          .period = in_turn ? 2 : t->rows,
                          .first = in_turn ? i / 2 * 2 * t->rows + i % 2 : i * t->rows,
                          .rows = d->experts.count * each * t->rows,
                          .depth = d->experts.count,
                          .phase = i,
                          .turned = form != GR_EXPERTS_MXFP4 && t->cols && a->experts_turned};
}

/* A list of a bucket's tensors, with names or without, of all experts or of the first. */
typedef struct listing {
    const gr_model_shape *s;
    uint32_t bucket;
    bool named, one;
    gr_experts_form form;
    const gr_arch *arch; /* NULL: unknown */
} listing;

/* Parts of one name follow each other in the checkpoint's tensor. rows: of those before. */
static void set_joined(const listing *l, gr_tensor *t, gr_tensor_slot slot, unsigned i, uint64_t rows)
{
    const char *type = l->s->model_type, *name = gr_arch_tensor(type, slot, i);
    if (strcmp(gr_arch_tensor(type, slot, 0), gr_arch_tensor(type, slot, 1)) != 0 ||
        strcmp(name, gr_arch_tensor(type, slot, 0)) != 0)
        return;
    t->woven = (gr_woven){.run = t->rows,
                          .period = t->rows,
                          .first = (uint32_t)rows,
                          .rows = (uint32_t)slot_dims(l->s, l->bucket, slot).rows,
                          .phase = i};
}

static void name_tensor(const listing *l, gr_tensor *t, gr_tensor_slot slot, unsigned i, uint64_t rows)
{
    const unsigned each = expert_parts(slot), part = each ? i % each : named_part(l->s, l->bucket, slot, i);
    const bool fused = each && (l->form != GR_EXPERTS_EACH || (l->arch && l->arch->experts_fused));
    if (fused) set_fused(t, gr_layer(l->s, l->bucket - 1), slot, i, l->form, l->arch);
    if (l->named && !t->woven.run && (slot == GR_T_QKV || slot == GR_T_GATE_UP))
        set_joined(l, t, slot, i, rows);
    if (l->named && l->s->behind && !is_layer(l->s, l->bucket))
        set_name(t, l->s, l->bucket, gr_arch_ahead_tensor(l->arch, slot), l->s->behind);
    else if (l->named)
        set_name(t, l->s, l->bucket, gr_arch_tensor(l->s->model_type, slot, fused ? GR_ARCH_FUSED : part),
                 each ? i / each : 0);
}

/* A, B or, of a value head, the tensor itself, as PEFT has them. */
static void set_adapter(const listing *l, gr_tensor *t, gr_tensor_slot slot, unsigned i)
{
    const bool b = gr_adapter_is_b(slot), head = slot < GR_T_QKV_A;
    gr_tensor_slot of = slot;
    unsigned part = i;
    if (!head) {
        gr_adapter_part(gr_layer(l->s, l->bucket - 1), &l->s->adapter, l->s->hidden, slot, i, &of, &part);
        t->spread = b ? 0 : 1 / sqrtf((float)t->cols);
        t->zero = b;
    }
    if (!l->named) return;
    set_name(t, l->s, l->bucket, gr_arch_tensor(l->s->model_type, of, part), 0);
    char name[sizeof(t->name)];
    memcpy(name, t->name, sizeof(name));
    snprintf(t->name, sizeof(t->name), "base_model.model.%.*s%s",
             (int)(strlen(name) - (head ? 0 : strlen(".weight"))), name,
             head ? ""
             : b  ? ".lora_B.weight"
                  : ".lora_A.weight");
}

static size_t list_tensors(const listing *l, gr_tensor *out)
{
    size_t n = 0;
    uint64_t begin = 0;
    gr_tensor_slot first, last;
    bucket_slots(l->s, l->bucket, &first, &last);
    for (gr_tensor_slot slot = first; slot <= last; slot = next_slot(l->s, l->bucket, slot)) {
        const struct dims whole = slot_dims(l->s, l->bucket, slot);
        const unsigned each = expert_parts(slot), end = l->one && each ? each : UINT_MAX;
        uint64_t offset = begin, rows = 0;
        for (unsigned i = 0; rows < whole.rows && i < end; i++) {
            const struct dims d = {part_rows(l->s, l->bucket, slot, i), whole.cols};
            gr_tensor *t = &out[n++];
            *t = (gr_tensor){.rows = (uint32_t)d.rows,
                             .cols = (uint32_t)d.cols,
                             .offset = offset,
                             .decay = d.cols != 0,
                             .initial = d.cols ? 0 : initial_value(l->s, l->bucket, slot)};
            if (each) t->expert = 1 + i / each;
            if (l->s->adapter.rank) {
                set_adapter(l, t, slot, i);
            } else {
                set_stored(t, l->s, l->bucket, slot, i);
                name_tensor(l, t, slot, i, rows);
            }
            offset += elems(d);
            rows += d.rows;
        }
        begin += gr_align(elems(whole), TENSOR_ALIGN);
    }
    return n;
}

size_t gr_bucket_tensors_as(const gr_model_shape *s, uint32_t bucket, gr_experts_form form,
                            gr_tensor out[GR_BUCKET_TENSORS_MAX])
{
    return list_tensors(&(listing){s, bucket, true, false, form, gr_arch_find(s->model_type)}, out);
}

size_t gr_bucket_tensors(const gr_model_shape *s, uint32_t bucket, gr_tensor out[GR_BUCKET_TENSORS_MAX])
{
    return gr_bucket_tensors_as(s, bucket, GR_EXPERTS_EACH, out);
}

size_t gr_bucket_ranges(const gr_model_shape *s, uint32_t bucket, gr_tensor out[GR_BUCKET_TENSORS_MAX])
{
    return list_tensors(&(listing){s, bucket, false, false, GR_EXPERTS_EACH, NULL}, out);
}

size_t gr_bucket_samples(const gr_model_shape *s, uint32_t bucket, gr_tensor out[GR_BUCKET_TENSORS_MAX])
{
    return list_tensors(&(listing){s, bucket, false, true, GR_EXPERTS_EACH, NULL}, out);
}

uint32_t gr_sample_stands(const gr_model_shape *s, uint32_t bucket, const gr_tensor *t)
{
    return t->expert ? gr_layer(s, bucket - 1)->experts.count : 1;
}

uint64_t gr_model_params(const gr_model_shape *s)
{
    uint64_t sum = 0;
    for (uint32_t b = 0; b < gr_model_buckets(s); b++) {
        gr_tensor_slot first, last;
        bucket_slots(s, b, &first, &last);
        for (gr_tensor_slot slot = first; slot <= last; slot++)
            sum += elems(slot_dims(s, b, slot)) / (slot == GR_T_SELECTION ? GR_SELECTION_PARTS : 1);
    }
    return sum;
}

/* The upper bits of what is left, three times: 8 of 24 each. */
void gr_selection_parts(float x, float part[GR_SELECTION_PARTS])
{
    for (int i = 0; i < GR_SELECTION_PARTS; i++) {
        uint32_t bits;
        memcpy(&bits, &x, sizeof(bits));
        bits &= 0xffff0000u;
        memcpy(&part[i], &bits, sizeof(bits));
        x -= part[i];
    }
}

uint32_t gr_model_head_bucket(const gr_model_shape *s, uint64_t *offset)
{
    assert(s->head == GR_HEAD_LM);
    uint32_t bucket = s->tied ? 0 : s->layers + 1;
    *offset = gr_tensor_offset(s, bucket, s->tied ? GR_T_EMBED : GR_T_LM_HEAD);
    return bucket;
}

/* ---- layers ----------------------------------------------------------------------------------------------
 */

bool gr_model_set_longest(gr_model_shape *s, uint64_t tokens, uint32_t *border)
{
    bool far = false;
    for (uint32_t i = 0; i < 2 * s->n_kinds; i++) {
        gr_layer_desc *d = &s->kinds[i / 2];
        gr_rope_desc *r = i % 2 ? &d->latent.rope : &d->attention.rope;
        if (r->type != GR_ROPE_LONG) continue;
        r->far = tokens > r->original_positions;
        far |= r->far;
        *border = r->original_positions;
    }
    return far;
}

bool gr_model_set_layer(gr_model_shape *s, uint32_t l, const gr_layer_desc *d)
{
    uint32_t kind = 0;
    assert(l < GR_LAYERS_MAX);
    while (kind < s->n_kinds && !gr_layer_same(&s->kinds[kind], d)) kind++;
    if (kind == GR_LAYER_KINDS_MAX) return false;
    if (kind == s->n_kinds) s->kinds[s->n_kinds++] = *d;
    s->kind_of[l] = (uint8_t)kind;
    return true;
}

void gr_model_of(gr_model_shape *s, const gr_layer_desc *d)
{
    s->n_kinds = 0;
    s->embed_scale = s->residual_scale = s->logit_scale = 1;
    s->norm_eps = d->norm_eps;
    s->norm_plus_one = d->norm_plus_one;
    for (uint32_t l = 0; l < s->layers; l++) gr_model_set_layer(s, l, d);
}

uint32_t gr_model_layers_of(const gr_model_shape *s, uint32_t kind, uint32_t *first)
{
    uint32_t n = 0;
    for (uint32_t l = s->layers; l-- > 0;) {
        if (s->kind_of[l] != kind) continue;
        *first = l;
        n++;
    }
    return n;
}

uint32_t gr_model_keys_of(const gr_model_shape *s, uint32_t l)
{
    const gr_attention_desc *own = &gr_layer(s, l)->attention, *a = own;
    while (own->keys == GR_KEYS_TAKEN && (a->keys != GR_KEYS_LENT || a->window != own->window)) {
        assert(l > 0);
        a = &gr_layer(s, --l)->attention;
    }
    return l;
}

uint32_t gr_model_last_taker(const gr_model_shape *s, uint32_t l)
{
    uint32_t last = s->layers - 1;
    while (last > l && gr_model_keys_of(s, last) != l) last--;
    return last;
}

gr_routers gr_model_routers(const gr_model_shape *s, uint32_t l)
{
    gr_routers r = {0};
    while (l-- > 0) {
        const gr_layer_desc *d = gr_layer(s, l);
        if (d->mlp != GR_MLP_EXPERTS) continue;
        r.n++;
        r.choices += d->experts.top_k;
        r.experts += d->experts.count;
    }
    return r;
}

uint64_t gr_model_token_macs(const gr_model_shape *s)
{
    uint64_t sum = (uint64_t)s->hidden * gr_model_per_layer(s);
    for (uint32_t l = 0; l < s->layers; l++) sum += gr_layer_token_macs(gr_layer(s, l), s->hidden);
    return sum;
}

uint64_t gr_model_pair_macs(const gr_model_shape *s)
{
    uint64_t sum = 0;
    for (uint32_t l = 0; l < s->layers; l++) sum += gr_layer_pair_macs(gr_layer(s, l));
    return sum;
}
