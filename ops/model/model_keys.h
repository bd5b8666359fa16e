/* ops/model/model_keys.h: the keys of a config.json that ops/model/model_config.c does not read.
 *
 * A key is read, known to change nothing that we compute, known to change it, or unknown. Whoever loads a
 * model must not get another function than its authors had, so of the last two neither passes in silence.
 *
 * Source: the configurations of Hugging Face transformers 5.23 for llama, mistral, qwen2 and qwen3, and of
 * the families that were made from them (gemma, granite, cohere, minicpm, olmo, phi).
 */
#ifndef GR_OPS_MODEL_MODEL_KEYS_H
#define GR_OPS_MODEL_MODEL_KEYS_H

#include "runtime/base/json.h"

/* Keys that mean another computation than ours are refused, each by its name, unless their value turns them
 * off or they are in `read` (what the family reads itself; ends with NULL, NULL: nothing); unknown ones are
 * warned about, unless their value is null, false, 0, 1 or empty. GR_E_INVALID where one was refused. */
GR_NODISCARD gr_status gr_model_keys_check(const gr_json *j, const char *const *read, gr_diag *d);

#endif
