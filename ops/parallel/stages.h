/* ops/parallel/stages.h: a model in stages, for the axis `pipeline` of a mesh (runtime/comm/mesh.h).
 *
 * The layers are cut into stages, in their order; the first has the embedding, too, the last the head. A rank
 * of a training pass has the weights of one stage, and micro-batches flow through the stages: activations
 * from each to the next, and their gradients back. All ranks run one program, in which tasks are of places
 * that every stage fills with parts of its own: layer `slot` of a stage is another layer of the model on each
 * rank. A stage with fewer layers leaves slots empty, as all but the first and the last leave the embedding
 * and the head. So sizes are those of the stage that needs most.
 *
 * A piece is what a stage has in place of a bucket. Piece 0 is of the ends: the embedding, or the bucket of
 * the head; pieces 1 to `slots` are layers. A tied embedding is piece 0 of both ends, and the head's bucket
 * is a piece behind the others. What is kept does not change for all this: weights may be whole or flat
 * shards over all ranks, state and reduced gradients are shards (ops/parallel/sharding.h). A stage's weights
 * are gathered once a mini-batch, or a pass; its gradients are summed over all micro-batches, and reduced to
 * shards once. So a checkpoint goes on with any mesh. Where each host has shards of the whole model (`shard:
 * node`), that is among the ranks of a host, whichever stages these have: the stages may all be on one host,
 * or each on hosts of its own, between which then only activations go, and once a mini-batch shards'
 * gradients. Of a model with adapters weights are whole, and gradients are those of adapters.
 *
 * An update runs its micro-batches 1F1B: in trip t of its loop, stage s of n passes micro-batch t forward,
 * and micro-batch t - (n - 1 - s) backward; it holds the activations of n - s of them. Both ways a trip has
 * one exchange with the stage before and one with the next, in this order, each of messages both ways at
 * once: exchange t between s and s + 1 comes behind exchange t between s - 1 and s, and exchange t - 1
 * between s + 1 and s + 2. So nobody waits in a circle, however long a message's sender must wait for who
 * receives it. In forward passes all stages pass micro-batch t in trip t.
 *
 * Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM,
 * arXiv:2104.04473, section 2.2.
 */
#ifndef GR_OPS_PARALLEL_STAGES_H
#define GR_OPS_PARALLEL_STAGES_H

#include "ops/base/op.h"
#include "runtime/comm/comm.h"

#define GR_STAGES_MAX 64

typedef struct gr_stages {
    uint32_t n;                        /* 1: each rank has all layers */
    uint32_t slots, pieces;            /* most layers of a stage; and what it has in place of buckets */
    uint32_t first[GR_STAGES_MAX + 1]; /* of a stage its first layer; behind the last one's, all layers */
    bool tied;
} gr_stages;

/* The stages of a node's passes: cut so that the slowest takes as little time as can be, by multiply-adds of
 * sequences of full length. */
gr_stages gr_stages_of(const gr_node *n);

static inline bool gr_node_piped(const gr_node *n)
{
    return gr_mesh_size(&n->placement.mesh, GR_AXIS_PIPELINE) > 1;
}
/* Which stage a rank has. */
uint32_t gr_stage_of(const gr_node *n, uint32_t rank);
/* The layer of a stage's slot; GR_NONE: the slot is empty. */
uint32_t gr_stage_layer(const gr_stages *s, uint32_t stage, uint32_t slot);
/* The layer of any stage's slot that takes most time. */
uint32_t gr_stage_slowest(const gr_stages *s, const gr_model_shape *shape, uint32_t slot);
/* The bucket of a stage's piece; GR_NONE: it has none. */
uint32_t gr_stage_bucket(const gr_stages *s, const gr_model_shape *shape, uint32_t stage, uint32_t piece);
/* The piece with the last bucket. */
static inline uint32_t gr_stages_last(const gr_stages *s)
{
    return s->tied ? s->slots + 1 : 0;
}
/* What of the head's time the slowest stage is slower than `slots` layers: 0 to 1. */
double gr_stages_head(const gr_stages *s, const gr_node *n);
/* Elements of a piece, of the stage that has most; shape: of the model, or of a slice of it. */
uint64_t gr_piece_elems(const gr_stages *s, const gr_model_shape *shape, uint32_t piece);
/* Of its gradients; 0: nothing of it is trained. */
uint64_t gr_piece_grad_elems(const gr_stages *s, const gr_node *n, uint32_t piece);

/* ---- declaring ----------------------------------------------------------------------------------------- */

/* The weights of a piece, and what brings them: from flat shards, or what is whole here. */
uint32_t gr_piece_weights(gr_tasks *p, const gr_kernels *k, const gr_node *n, const gr_stages *s,
                          uint32_t piece);
void gr_piece_gather(gr_tasks *p, const gr_kernels *k, const gr_node *n, const gr_stages *s, uint32_t piece);
/* The adapters of a piece's weights, and what takes them from those of the model. */
uint32_t gr_piece_adapters(gr_tasks *p, const gr_kernels *k, const gr_node *n, const gr_stages *s,
                           uint32_t piece);
void gr_piece_take_adapters(gr_tasks *p, const gr_kernels *k, const gr_node *n, const gr_stages *s,
                            uint32_t piece);
/* What backward tasks add a piece's gradients to, GR_NONE where none is trained, and their reduction into
 * shards, in place of what is there. */
uint32_t gr_piece_grads(gr_tasks *p, const gr_node *n, const gr_stages *s, uint32_t piece);
void gr_piece_reduce(gr_tasks *p, const gr_kernels *k, const gr_node *n, const gr_stages *s, uint32_t piece);

/* What stages send each other of a micro-batch. */
typedef struct gr_stage_messages {
    uint32_t x, dx;     /* objects: activations; their gradients, GR_NONE of a forward pass */
    uint32_t cut, back; /* the arrays that say how many tokens these have, which are read; or GR_NONE */
    uint64_t bytes;     /* of one of them, at most */
} gr_stage_messages;
/* Declare the exchange with the next stage, or the one before. How much goes is the op's to say
 * (gr_op.sends).
 */
void gr_stage_exchange(gr_tasks *p, const gr_node *n, bool next, const gr_stage_messages *m,
                       const char *what);

/* ---- running ------------------------------------------------------------------------------------------- */

/* Kernels of these tasks, among those of other collectives (gr_sharding_run). */
enum { GR_PIECE_GATHER = 100, GR_PIECE_ADAPTERS, GR_PIECE_REDUCE, GR_STAGE_EXCHANGE };
gr_status gr_piece_gather_run(const gr_call *c, gr_comm *comm, gr_diag *d);
void gr_piece_adapters_run(const gr_call *c);
gr_status gr_piece_reduce_run(const gr_call *c, gr_comm *comm, gr_diag *d);
gr_status gr_stage_exchange_run(const gr_call *c, const gr_task *w, gr_comm *comm, gr_diag *d);

#endif
