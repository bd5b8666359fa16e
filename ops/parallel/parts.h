/* ops/parallel/parts.h: what ranks keep of a model: weights, gradients, training state and copies that
 * generate, in buckets, each an object of the task graph.
 *
 * Sizes are bytes unless said otherwise. Threads: all functions are pure, but for gr_model_object, which adds
 * to a task graph.
 */
#ifndef GR_OPS_PARALLEL_PARTS_H
#define GR_OPS_PARALLEL_PARTS_H

#include "graphs/graph/graph.h"
#include "memplan/plan/tasks.h"
#include "ops/kernels/kernels.h"

/* params: the weights that passes compute with; of a model with adapters what these make of the frozen ones
 * (ops/parallel/merge.h); adapters: what an update of such a model changes in their place; state: the master,
 * or what weights lack of it, where the device keeps one, then the moments; rollout: a copy of the weights
 * that generates, where those of training are sharded over ranks, or on others; lagged: one of the iteration
 * before
 * (`lag: 1`), which lives on; nf4: a frozen model's layer as it is kept in 4 bits (ops/model/nf4.h), of which
 * params are opened */
typedef enum gr_model_part {
    GR_PART_PARAMS,
    GR_PART_GRADS,
    GR_PART_STATE,
    GR_PART_ROLLOUT,
    GR_PART_LAGGED,
    GR_PART_ADAPTERS,
    GR_PART_NF4,
} gr_model_part;

/* Bytes of a whole bucket; of the rollout's copy, of a tensor-parallel shard of it where it is cut
 * (ops/model/tp.h). */
uint64_t gr_part_bytes(const gr_kernels *k, const gr_model *m, gr_model_part part, uint32_t bucket);

/* Where a model lies. */
static inline gr_placement *gr_placed(const gr_tasks *p, const gr_model *m)
{
    return &p->placed[m->index];
}
/* How a part of it does, in a bucket. */
gr_spread gr_part_spread(const gr_tasks *p, const gr_model *m, gr_model_part part, uint32_t bucket);
/* Whether GR_MADE_* has been made of its weights as they are now. If not, the current node makes it: where it
 * may be left out, or is in a loop that may run no trip, for itself alone. */
bool gr_part_is_made(gr_tasks *p, const gr_model *m, unsigned what);

/* Elements of a rank's shard of n; the last shards may be short, or empty. Shards of 8 ranks or fewer are
 * made of eighths, so that those of 2 ranks are whole shards of 4; all begin at multiples of 64 elements. */
uint64_t gr_shard_elems(uint64_t n, uint32_t ranks);
/* A rank's shard of what is trained of a bucket, elements [first, first + n); of one that has all, the whole.
 * rank: of the role. */
typedef struct gr_shard {
    uint64_t first, n;
} gr_shard;
gr_shard gr_shard_at(const gr_placement *at, const gr_model *m, uint32_t bucket, uint32_t rank);

/* Whether adapters make weights of a bucket that are not those of the frozen model; elsewhere these two are
 * one object. */
bool gr_bucket_is_merged(const gr_model *m, uint32_t bucket);
/* Whether a frozen model's bucket is kept in 4 bits: its params are then made of it, too. */
bool gr_bucket_is_closed(const gr_model *m, uint32_t bucket);
/* The frozen model of a bucket of a model with adapters; of another one itself. */
const gr_model *gr_bucket_base(const gr_model *m, uint32_t bucket);
/* The part that a model's weights live on in: adapters, params, or their form of 4 bits. */
gr_model_part gr_part_kept(const gr_model *m, uint32_t bucket);
/* The part that an optimizer step writes: params, or adapters. */
static inline gr_model_part gr_part_stepped(const gr_model *m)
{
    return gr_model_has_lora(m) ? GR_PART_ADAPTERS : GR_PART_PARAMS;
}
/* Whether a bucket has anything that an update changes. */
bool gr_bucket_is_trained(const gr_model *m, uint32_t bucket);

/* The object of one bucket of a model, or of this rank's shard of it (ops/parallel/sharding.h). */
uint32_t gr_model_object(gr_tasks *p, const gr_kernels *k, const gr_model *m, gr_model_part part,
                         uint32_t bucket);

/* Its training state, or the shard that one of many ranks has of it, piece by piece. */
typedef struct gr_state_bytes {
    gr_master form;
    uint64_t master, moment; /* bytes of the master (NONE: 0) and of each moment */
    uint32_t moments;        /* how many the optimizer keeps */
} gr_state_bytes;
gr_state_bytes gr_state_bytes_of(const gr_kernels *k, const gr_model *m, uint32_t bucket, uint32_t ranks);

#endif
