/* ops/model/ahead.h: layers that predict further tokens (multi-token prediction, MTP), which checkpoints of
 * some families have beside the model. They are never trained. A rollout may draft with one
 * (ops/rollout_ahead.c), as a frozen model of a shape of its own; graphrun export copies them from the
 * checkpoint that training began with, so that what samples with them finds them.
 *
 * Their tensors are named "mtp.", or stand in layers behind the last. A copy has the bits that it was read
 * with: what is not stored in bf16 is written in fp32 whatever the others are.
 *
 * With h_p the hidden state of position p behind the model's final norm, and e the embedding of the token at
 * p + 1, one layer of a transformer reads W [norm(e); norm'(h_p)] at position p. Behind its own last norm the
 * model's output matrix gives the logits of the token at p + 2. For tokens further on the layer is applied
 * again, to what it gave: as it gave it, or behind that norm (gr_arch_ahead.normed).
 * Source: DeepSeek-V3, arXiv:2412.19437, section 2.2; the order in the concatenation, and what is applied
 * again, as vLLM has them (deepseek_mtp, glm4_moe_mtp, qwen3_5_mtp, qwen3_next_mtp). vLLM leaves out the
 * embedding beside position 0 for the first two; here, as in the paper, it is read.
 *
 * Threads: an open gr_ahead does not change.
 */
#ifndef GR_OPS_MODEL_AHEAD_H
#define GR_OPS_MODEL_AHEAD_H

#include "ops/model/model.h"
#include "runtime/io/safetensors.h"

/* Keys of a config.json that say how many such layers there are; ends with NULL. */
extern const char *const gr_ahead_keys[];

/* The shape of one such layer alone, s->n_ahead not 0: of one layer. Bucket 0 has what makes its input, the
 * last its norm; embedding and output matrix are the model's. */
gr_model_shape gr_ahead_shape(const gr_model_shape *s);

/* Whether a tensor of a checkpoint of s is of such a layer. */
bool gr_ahead_is(const gr_model_shape *s, const char *name);

typedef struct gr_ahead gr_ahead;

/* Those of the checkpoint in folder. GR_E_INVALID: it is of another model than s, has none, has one in
 * FP8, or cannot be read. */
GR_NODISCARD gr_status gr_ahead_open(gr_ahead **out, const gr_model_shape *s, const char *folder, gr_diag *d);
void gr_ahead_free(gr_ahead *a); /* NULL is fine */

/* What its config.json says at gr_ahead_keys[i]; 0: nothing. */
uint64_t gr_ahead_layers(const gr_ahead *a, size_t i);

size_t gr_ahead_count(const gr_ahead *a);
gr_st_spec gr_ahead_spec(const gr_ahead *a, size_t i); /* its name lives as long as a */
/* All of them, as the next tensors of a file. */
GR_NODISCARD gr_status gr_ahead_put(const gr_ahead *a, gr_st_writer *to, gr_diag *d);

#endif
