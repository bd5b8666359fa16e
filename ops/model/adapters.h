/* ops/model/adapters.h: low-rank adapters beside a frozen model: which matrices have one, and where.
 *
 *     W' = W + scale B A,   W [out, in], A [rank, in], B [out, rank], scale = alpha / rank
 *
 * The shape of the adapters is that of the model with gr_adapter_desc set. Its buckets have the model's
 * numbers: a layer's holds A and B of each target, the last one a value head whole, the others nothing. So
 * shards, optimizer, checkpoints and draws treat adapters as they treat a model's weights. A new A is even
 * over +- 1 / sqrt(in) and a new B zero, as PEFT has it: W' is W to the bit.
 *
 * Tensors have PEFT's names: "base_model.model." before, ".lora_A.weight" in the place of ".weight".
 *
 * Source: Hu et al., LoRA, arXiv:2106.09685; the file format is that of Hugging Face peft.
 */
#ifndef GR_OPS_MODEL_ADAPTERS_H
#define GR_OPS_MODEL_ADAPTERS_H

#include "ops/model/model.h"

#define GR_ADAPTER_RANK_MAX 1024

/* "q", "gate": as a graph names a target; GR_N_TARGETS of the second: there is none of that name. */
const char *gr_target_str(gr_target t);
gr_target gr_target_find(const char *name);

/* One adapter of a layer. Offsets are in elements of a bucket. */
typedef struct gr_adapter {
    gr_target target;
    gr_tensor_slot slot; /* the matrix it is part of, [slot_rows, in] */
    uint32_t row, rows;  /* and its rows of that */
    uint32_t slot_rows, in;
    uint32_t index, count; /* its place among the targets of the slot, and how many these are */
    uint64_t w;            /* of its first row, in the model's bucket */
    uint64_t a, b;         /* in the adapters' bucket; those of one slot are [count rank, in] together */
} gr_adapter;

/* Those of a bucket in the order they lie in; base: the shape that the adapters stand beside. */
size_t gr_adapters_of(const gr_model_shape *base, const gr_model_shape *adapters, uint32_t bucket,
                      gr_adapter out[GR_N_TARGETS]);

/* Rows and columns of a slot of the adapters of a layer; rows 0: it has none. */
void gr_adapter_dims(const gr_layer_desc *d, const gr_adapter_desc *a, uint32_t hidden, gr_tensor_slot slot,
                     uint64_t *rows, uint64_t *cols);
/* Of part i of such a slot: its rows, and the slot and part of the matrix that it stands beside. */
uint32_t gr_adapter_part(const gr_layer_desc *d, const gr_adapter_desc *a, uint32_t hidden,
                         gr_tensor_slot slot, unsigned i, gr_tensor_slot *of, unsigned *part);

/* Whether a slot is that of a B. */
static inline bool gr_adapter_is_b(gr_tensor_slot slot)
{
    return (slot - GR_T_QKV_A) % 2;
}

/* Why a target cannot have an adapter, "layer 3 has latent attention", in buf; NULL: it can. */
#define GR_ADAPTER_WHY_MAX 256
const char *gr_adapter_unfit(const gr_model_shape *s, gr_target t, char buf[GR_ADAPTER_WHY_MAX]);

/* The name of a target's matrix as checkpoints of the family have it: "q_proj". buf of 96. */
const char *gr_target_module(const gr_model_shape *s, gr_target t, char buf[96]);

#endif
