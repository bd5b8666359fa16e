/* ops/model/adapters.c: targets of adapters: their matrices, their places in buckets, their names. */
#include "ops/model/adapters.h"

#include "ops/model/arch.h"

#include <stdio.h>
#include <string.h>

/* The slot that a target is a part of. */
typedef struct place {
    const char *name;
    gr_tensor_slot slot, a;
    unsigned part;
} place;

static const place places[GR_N_TARGETS] = {[GR_TARGET_Q] = {"q", GR_T_QKV, GR_T_QKV_A, 0},
                                           [GR_TARGET_K] = {"k", GR_T_QKV, GR_T_QKV_A, 1},
                                           [GR_TARGET_V] = {"v", GR_T_QKV, GR_T_QKV_A, 2},
                                           [GR_TARGET_O] = {"o", GR_T_O, GR_T_O_A, 0},
                                           [GR_TARGET_GATE] = {"gate", GR_T_GATE_UP, GR_T_GATE_UP_A, 0},
                                           [GR_TARGET_UP] = {"up", GR_T_GATE_UP, GR_T_GATE_UP_A, 1},
                                           [GR_TARGET_DOWN] = {"down", GR_T_DOWN, GR_T_DOWN_A, 0}};

const char *gr_target_str(gr_target t)
{
    return places[t].name;
}

gr_target gr_target_find(const char *name)
{
    gr_target t = GR_TARGET_Q;
    while (t < GR_N_TARGETS && strcmp(places[t].name, name)) t++;
    return t;
}

/* ---- sizes --------------------------------------------------------------------------------------------- */

static uint32_t rows_of(const gr_layer_desc *d, uint32_t hidden, gr_target t)
{
    const gr_attention_desc *a = &d->attention;
    if (t == GR_TARGET_Q) return a->heads * a->head_dim;
    if (t == GR_TARGET_V && a->keys_are_values) return 0;
    if ((t == GR_TARGET_K || t == GR_TARGET_V) && a->keys == GR_KEYS_TAKEN) return 0;
    if (t == GR_TARGET_K || t == GR_TARGET_V) return a->kv_heads * a->head_dim;
    return t == GR_TARGET_GATE || t == GR_TARGET_UP ? d->dense.inner : hidden;
}

static uint32_t cols_of(const gr_layer_desc *d, uint32_t hidden, gr_tensor_slot slot)
{
    if (slot == GR_T_O) return d->attention.heads * d->attention.head_dim;
    return slot == GR_T_DOWN ? d->dense.inner : hidden;
}

/* Targets that this layer has: where keys are values there is no projection of v, and where they are another
 * layer's none of either. */
static unsigned targets_of(const gr_layer_desc *d, const gr_adapter_desc *a)
{
    const unsigned v = 1u << GR_TARGET_V, k = 1u << GR_TARGET_K;
    if (d->attention.keys == GR_KEYS_TAKEN) return a->targets & ~(k | v);
    return d->attention.keys_are_values ? a->targets & ~v : a->targets;
}

/* Target i of those of an adapters' slot, A's or B's; GR_N_TARGETS: there are not so many. */
static gr_target target_at(const gr_layer_desc *d, const gr_adapter_desc *a, gr_tensor_slot slot, unsigned i)
{
    gr_target t = GR_TARGET_Q;
    const gr_tensor_slot first = slot - gr_adapter_is_b(slot);
    for (; t < GR_N_TARGETS; t++)
        if (places[t].a == first && targets_of(d, a) >> t & 1 && !i--) break;
    return t;
}

void gr_adapter_dims(const gr_layer_desc *d, const gr_adapter_desc *a, uint32_t hidden, gr_tensor_slot slot,
                     uint64_t *rows, uint64_t *cols)
{
    *rows = *cols = 0;
    for (unsigned i = 0; target_at(d, a, slot, i) < GR_N_TARGETS; i++) {
        const gr_target t = target_at(d, a, slot, i);
        *rows += gr_adapter_is_b(slot) ? rows_of(d, hidden, t) : a->rank;
        *cols = gr_adapter_is_b(slot) ? a->rank : cols_of(d, hidden, places[t].slot);
    }
}

uint32_t gr_adapter_part(const gr_layer_desc *d, const gr_adapter_desc *a, uint32_t hidden,
                         gr_tensor_slot slot, unsigned i, gr_tensor_slot *of, unsigned *part)
{
    const gr_target t = target_at(d, a, slot, i);
    *of = places[t].slot;
    *part = places[t].part;
    return gr_adapter_is_b(slot) ? rows_of(d, hidden, t) : a->rank;
}

/* Rows of its slot's matrix before a target, or in all (t GR_N_TARGETS), and of those before of the targets
 * alone. */
static uint32_t rows_before(const gr_layer_desc *d, uint32_t hidden, gr_tensor_slot slot, gr_target t,
                            unsigned targets)
{
    uint32_t rows = 0;
    for (gr_target k = GR_TARGET_Q; k < t; k++)
        if (places[k].slot == slot && targets >> k & 1) rows += rows_of(d, hidden, k);
    return rows;
}

static uint32_t count_of(unsigned targets, gr_tensor_slot slot, gr_target before)
{
    uint32_t n = 0;
    for (gr_target t = GR_TARGET_Q; t < before; t++) n += places[t].slot == slot && targets >> t & 1;
    return n;
}

size_t gr_adapters_of(const gr_model_shape *base, const gr_model_shape *adapters, uint32_t bucket,
                      gr_adapter out[GR_N_TARGETS])
{
    const gr_adapter_desc *desc = &adapters->adapter;
    const uint32_t hidden = base->hidden;
    size_t n = 0;
    if (bucket == 0 || bucket > base->layers) return 0;
    const gr_layer_desc *d = gr_layer(base, bucket - 1);
    const unsigned targets = targets_of(d, desc);
    for (gr_target t = GR_TARGET_Q; t < GR_N_TARGETS; t++) {
        const place *p = &places[t];
        if (!(targets >> t & 1)) continue;
        gr_adapter *a = &out[n++];
        *a = (gr_adapter){.target = t,
                          .slot = p->slot,
                          .row = rows_before(d, hidden, p->slot, t, ~0u),
                          .rows = rows_of(d, hidden, t),
                          .slot_rows = rows_before(d, hidden, p->slot, GR_N_TARGETS, ~0u),
                          .in = cols_of(d, hidden, p->slot),
                          .index = count_of(targets, p->slot, t),
                          .count = count_of(targets, p->slot, GR_N_TARGETS)};
        a->w = gr_tensor_offset(base, bucket, p->slot) + (uint64_t)a->row * a->in;
        a->a = gr_tensor_offset(adapters, bucket, p->a) + (uint64_t)a->index * desc->rank * a->in;
        a->b = gr_tensor_offset(adapters, bucket, p->a + 1) +
               (uint64_t)rows_before(d, hidden, p->slot, t, targets) * desc->rank;
    }
    return n;
}

/* ---- names, and what has none -------------------------------------------------------------------------- */

const char *gr_target_module(const gr_model_shape *s, gr_target t, char buf[96])
{
    const char *name = gr_arch_tensor(s->model_type, places[t].slot, places[t].part),
               *end = name + strlen(name) - strlen(".weight"), *begin = end;
    while (begin > name && begin[-1] != '.') begin--;
    snprintf(buf, 96, "%.*s", (int)(end - begin), begin);
    return buf;
}

/* Whether a checkpoint has the target and another one in one tensor, of which an adapter would be one. */
static bool is_joined(const gr_model_shape *s, gr_target t)
{
    char own[96], other[96];
    for (gr_target k = GR_TARGET_Q; k < GR_N_TARGETS; k++)
        if (k != t && places[k].slot == places[t].slot &&
            !strcmp(gr_target_module(s, t, own), gr_target_module(s, k, other)))
            return true;
    return false;
}

/* Mixers of other kinds make gradients of their weights with those of what they read, frozen or not. */
static const char *layer_unfit(const gr_layer_desc *d, gr_target t)
{
    if (t >= GR_TARGET_GATE && d->mlp == GR_MLP_EXPERTS) return "a mixture of experts";
    if (d->mixer == GR_MIXER_LATENT) return "latent attention";
    if (d->mixer == GR_MIXER_DELTA) return "a gated delta rule";
    return d->attention.gate ? "attention with an output gate" : NULL;
}

const char *gr_adapter_unfit(const gr_model_shape *s, gr_target t, char buf[GR_ADAPTER_WHY_MAX])
{
    char module[96];
    for (uint32_t l = 0; l < s->layers; l++) {
        const char *has = layer_unfit(gr_layer(s, l), t);
        if (!has) continue;
        snprintf(buf, GR_ADAPTER_WHY_MAX, "layer %u has %s, for which adapters are not built", l, has);
        return buf;
    }
    if (!is_joined(s, t)) return NULL;
    snprintf(buf, GR_ADAPTER_WHY_MAX, "%s checkpoints have it and others in one tensor, '%s'", s->model_type,
             gr_target_module(s, t, module));
    return buf;
}
