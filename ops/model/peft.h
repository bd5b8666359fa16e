/* ops/model/peft.h: a folder of adapters in the form of Hugging Face peft: adapter_config.json beside
 * adapter_model.safetensors.
 *
 * Adapters of other kinds, and settings that make other models of the same tensors (DoRA, ranks that differ,
 * biases), are refused by name. What is about training alone (dropout) is of no account.
 */
#ifndef GR_OPS_MODEL_PEFT_H
#define GR_OPS_MODEL_PEFT_H

#include "ops/model/adapters.h"

#define GR_PEFT_CONFIG "adapter_config.json"
#define GR_PEFT_BASE   "graphrun_base"
#define GR_PEFT_STEM   "adapter_model" /* .safetensors */

typedef struct gr_peft {
    uint32_t rank;
    unsigned targets; /* 1 << gr_target each */
    double alpha;
    bool nf4; /* they were trained beside weights in NF4 (ops/model/nf4.h) */
} gr_peft;

/* The shape of such adapters beside a model. */
gr_model_shape gr_peft_shape(const gr_peft *p, const gr_model_shape *s);

/* Read DIR/adapter_config.json; s: the model that the adapters stand beside. */
GR_NODISCARD gr_status gr_peft_read(gr_peft *out, const char *dir, const gr_model_shape *s, gr_diag *d);

/* Whether DIR has an adapter_config.json. */
bool gr_peft_is(const char *dir);

/* The model that a folder of adapters is beside, as its config names it, and its shape: with a value head
 * where the task says so. Caller frees *base. */
GR_NODISCARD gr_status gr_peft_base(char **base, gr_model_shape *s, const char *dir, gr_diag *d);

/* Write it. Of weights in NF4 "graphrun_base": "nf4" is in it, which peft ignores with a warning. s: the
 * shape of the adapters; base: the folder of the model, as peft loads it. */
GR_NODISCARD gr_status gr_peft_write(const char *dir, const gr_model_shape *s, double alpha, const char *base,
                                     gr_diag *d);

#endif
