/* ops/model/arch/llama.c: Llama 2 and 3. */
#include "ops/model/arch.h"

const gr_arch gr_arch_llama = {.model_type = "llama",
                               .class = "Llama",
                               .no_groups = true /* as in its first configs */,
                               .layers = gr_arch_alike};
