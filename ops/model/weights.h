/* ops/model/weights.h: a model's weights, bucket by bucket, to and from safetensors in Hugging Face form.
 *
 * A set of arrays with the layout of ops/model/model.h (weights, or the first or second moments of an
 * optimizer) is stored under the checkpoint names of its tensors, with a prefix where several sets share a
 * file ("m.", "v."). fp32 written and read again has the same bits. Never more than one bucket is needed in
 * memory.
 *
 * A value head is written as score.weight and score.bias, as transformers has it, and read under the other
 * names that are in use too: classifier, v_head.summary (TRL), v_head, value_head (OpenRLHF),
 * regression_head.
 *
 * Where a checkpoint has one tensor for all experts of a layer, or has them in MXFP4 (blocks of values of 4
 * bits, widened as they are read), or a model of text and images around the text, it is read as well; see
 * gr_experts_form and gr_arch. Training writes each expert by itself, gr_weights_write as transformers has
 * it.
 *
 * Threads: an open gr_weights does not change; buckets may be read by several threads at once.
 */
#ifndef GR_OPS_MODEL_WEIGHTS_H
#define GR_OPS_MODEL_WEIGHTS_H

#include "ops/model/ahead.h"
#include "ops/model/model.h"
#include "runtime/io/safetensors.h"
#include "runtime/io/seal.h"
#include "runtime/base/threads.h"

typedef struct gr_weights gr_weights;

/* Open path (folder, file or index; see gr_safetensors_open) and check that every tensor of the model is
 * there under prefix, with its shape and a dtype that can be read: all that are missing are named at once.
 * Unexpected ones are warned about, those of images and of layers that predict further tokens as such; rotary
 * tables and, where it holds the same numbers, an output matrix beside the embedding it is tied to are not
 * unexpected. One that holds others is refused: dropped, it would make another model. */
GR_NODISCARD gr_status gr_weights_open(gr_weights **out, const gr_model_shape *s, const char *path,
                                       const char *prefix, gr_diag *d);
void gr_weights_free(gr_weights *w); /* NULL is fine */

/* From here on what is read is held to a seal, see gr_safetensors_hold. */
GR_NODISCARD gr_status gr_weights_hold(gr_weights *w, const gr_seal *seal, gr_diag *d);

/* Whether the value head is there: always, unless the shape says fresh_head. A bias that is not there is 0.
 */
bool gr_weights_has_head(const gr_weights *w);

/* Fill dst [gr_bucket_elems] with one bucket; elements between tensors, and a head that is not there, become
 * zero. NaN and infinity are refused by tensor and element (GR_E_INVALID): no model has them, a run that
 * diverged or a conversion that overflowed does. */
GR_NODISCARD gr_status gr_weights_read_bucket(const gr_weights *w, uint32_t bucket, float *dst, gr_diag *d);

/* Elements [first, first + n) of it alone: no other bytes are read. */
GR_NODISCARD gr_status gr_weights_read_part(const gr_weights *w, uint32_t bucket, uint64_t first, uint64_t n,
                                            float *dst, gr_diag *d);

/* Fill dst with random weights: matrices normal with the shape's init_std, norms 1, biases 0, and zero
 * between tensors. A pure function of seed, tensor name and element, whatever the order of calls. */
void gr_weights_random_bucket(gr_team *team, const gr_model_shape *s, uint64_t seed, uint32_t bucket,
                              float *dst);

/* The same for the value head alone, in the last bucket, which is dst. */
void gr_weights_random_head(gr_team *team, const gr_model_shape *s, uint64_t seed, float *dst);

/* Write DIR/STEM.safetensors, or shards of it (see gr_st_writer_new), as buckets come: bucket 0 of every set,
 * bucket 1 of every set, and so on. Files appear, whole, in finish; free removes what was not finished. */
typedef struct gr_weights_writer gr_weights_writer;
GR_NODISCARD gr_status gr_weights_writer_new(gr_weights_writer **out, const gr_model_shape *s,
                                             const char *dir, const char *stem, const char *const *prefix,
                                             size_t n_sets, gr_st_dtype dtype, uint64_t shard_bytes,
                                             gr_diag *d);
/* Several processes may write one file (fp32): see gr_st_writer_join. */
GR_NODISCARD gr_status gr_weights_writer_join(gr_weights_writer **out, const gr_model_shape *s,
                                              const char *dir, const char *stem, const char *const *prefix,
                                              size_t n_sets, gr_diag *d);
/* The seal of such a file (fp32), of which no block is known; and parts are hashed into it from here on. */
gr_seal *gr_weights_seal_new(const gr_model_shape *s, const char *const *prefix, size_t n_sets);
void gr_weights_writer_seal(gr_weights_writer *w, gr_seal *seal);
/* Elements [first, first + n) of a bucket of a set, in any order. team: see gr_st_writer_put_part. */
GR_NODISCARD gr_status gr_weights_writer_put_part(gr_weights_writer *w, gr_team *team, size_t set,
                                                  uint32_t bucket, uint64_t first, uint64_t n,
                                                  const float *elems, gr_diag *d);
GR_NODISCARD gr_status gr_weights_writer_finish(gr_weights_writer *w, gr_diag *d);
void gr_weights_writer_free(gr_weights_writer *w); /* NULL is fine */

/* Where written buckets come from. */
typedef struct gr_weights_source {
    /* The elements of a bucket of a set; they must stay as they are until the next call. */
    gr_status (*bucket)(void *ctx, size_t set, uint32_t bucket, const float **elems, gr_diag *d);
    void *ctx;
    const char *const *prefix; /* [n_sets] */
    size_t n_sets;
    const gr_ahead *ahead; /* written behind the buckets; NULL: none */
} gr_weights_source;

/* The same in one call: buckets are asked for in order. */
GR_NODISCARD gr_status gr_weights_write(const gr_model_shape *s, const char *dir, const char *stem,
                                        const gr_weights_source *from, gr_st_dtype dtype,
                                        uint64_t shard_bytes, gr_diag *d);

#endif
