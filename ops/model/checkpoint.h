/* ops/model/checkpoint.h: Hugging Face folders, and where a run keeps its own.
 *
 * A folder holds config.json, generation_config.json, model.safetensors (or shards) and the tokenizer's
 * files. A run keeps RUN/checkpoints/step-N/: for each model MODEL/ such a folder in fp32, beside it in the
 * same folder optimizer.safetensors (sets "m." and "v.", where it is trained), and state.json. A step is
 * complete or absent. Of a model with adapters MODEL/ is a folder of these alone (ops/model/peft.h).
 *
 * Folders are made aside (runtime/base/aside.h) and renamed; what exists already under that name, be it
 * before or behind the writing, is refused and stays as it is.
 */
#ifndef GR_OPS_MODEL_CHECKPOINT_H
#define GR_OPS_MODEL_CHECKPOINT_H

#include "ops/model/weights.h"

/* Names of the files that a tokenizer and its chat template may be in, those of weights never; ends with
 * NULL.
 */
extern const char *const gr_tokenizer_files[];

/* Write what stands beside a run's weights of a model of shape s into dir: config.json as it is at config (a
 * file, or the folder it is in) but for its dtype and, where s has a value head, the class that loads one;
 * generation_config.json from beside it, and the tokenizer's files of the folder tokenizer (NULL: none); a
 * folder without any is warned about. */
GR_NODISCARD gr_status gr_checkpoint_write_config(const char *dir, const gr_model_shape *s,
                                                  const char *config, const char *tokenizer,
                                                  gr_st_dtype dtype, gr_diag *d);

/* A whole folder of random fp32 weights, those of a layer that predicts a further token included where the
 * config promises one. */
GR_NODISCARD gr_status gr_checkpoint_init(const char *path, const char *config, const char *tokenizer,
                                          uint64_t seed, gr_diag *d);

/* What graphrun export is to write. */
typedef struct gr_export {
    const char *path;  /* the folder to be made */
    const char *from;  /* a model's in a checkpoint, DIR/MODEL, which is held to that checkpoint's manifest */
    gr_st_dtype dtype; /* GR_ST_F32 or GR_ST_BF16 */
    uint64_t shard_bytes;
    bool accept;       /* what differs from the manifest is warned about */
    const char *ahead; /* a checkpoint of the same model whose layers that predict further tokens go with it
                          (ops/model/ahead.h); NULL: none go, and where config.json promises them a warning
                          says so and what is written does not */
} gr_export;

/* A whole folder with those weights, in another dtype or sharded differently. */
GR_NODISCARD gr_status gr_checkpoint_export(const gr_export *e, gr_diag *d);

/* The same of a folder of adapters, DIR/MODEL: written in the form of Hugging Face peft, or merged into the
 * model that they are beside. */
GR_NODISCARD gr_status gr_checkpoint_export_adapters(const gr_export *e, bool merge, gr_diag *d);

/* The folder of a model in a run: spec is RUN, RUN@STEP, RUN@best (without: the last step), or the folder of
 * a step, model its name (NULL: the only one; where there are several the message lists them). *out: caller
 * frees with free(). */
GR_NODISCARD gr_status gr_checkpoint_find(char **out, const char *spec, const char *model, gr_diag *d);

/* The folder of RUN, RUN@STEP or RUN@best; caller frees. *at: what stands behind @, in spec; NULL: nothing.
 */
char *gr_checkpoint_run(const char *spec, const char **at);
/* The step that STEP, or best, is of a run. GR_E_INVALID names those that are there. */
GR_NODISCARD gr_status gr_checkpoint_step(uint64_t *step, const char *run, const char *at, gr_diag *d);

#endif
