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
 * With `chunks: v` the layers are cut into v times as many stages as there are ranks along the axis, r, and
 * stage c r + s is chunk c of rank s: the ranks are a ring, and a micro-batch goes around it v times. The
 * unit of work is then a micro-batch in a chunk. Units have one order on all ranks: r micro-batches pass
 * chunk 0, the same ones chunk 1, and so on to the last; then the next r come. Backward the chunks come last
 * first. In trip t rank s passes unit t - s forward and unit t - (v r - 1) - (r - 1 - s) backward, where
 * there is one: what it needs is what its neighbours made in the trip before. So every trip begins with one
 * exchange around the ring, both ways at once, of which all ranks have as many: it is a collective, and no
 * more can wait in a circle than at any other. At both ends of a mini-batch ranks wait for r - 1 units, each
 * a v-th of a stage's work. The first rank holds v r + r - 1 units. Where the micro-batches are no multiple
 * of r, the last units of a round are empty: they take no time of their own, but those behind them still wait
 * for the way around the ring.
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
    uint32_t ranks, chunks;            /* n is their product: stages of a rank are so many ranks apart */
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
/* Whether its ranks are a ring, of which each has several stages. */
static inline bool gr_node_interleaves(const gr_node *n)
{
    return gr_node_piped(n) && gr_mesh_chunks(&n->placement.mesh) > 1;
}
/* Which stage a rank has; of several, the first. */
uint32_t gr_stage_of(const gr_node *n, uint32_t rank);
/* Trips of a loop over so many micro-batches: of an update's, whose trips go both ways, and of a pass forward
 * alone. And as many full ones as would take as long. */
uint32_t gr_stages_trips(const gr_stages *s, uint32_t micro_batches, bool back);
uint32_t gr_stages_full_trips(const gr_stages *s, uint32_t micro_batches);
/* The most units of work that a rank holds at a time, of so many micro-batches. */
uint32_t gr_stages_held(const gr_stages *s, uint32_t micro_batches);
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
/* What of the head's time the slowest stage is slower than `slots` layers: 0 to 1. Of a ring, the mean of the
 * slowest of each trip; and what of these layers' time that takes, where it is less: 0 to 1. */
double gr_stages_head(const gr_stages *s, const gr_node *n);
double gr_stages_layers(const gr_stages *s, const gr_node *n);
/* How often a rank may have a piece: each chunk has layers of its own, and one of all has an end. */
static inline uint32_t gr_piece_chunks(const gr_stages *s, uint32_t piece)
{
    return piece && piece <= s->slots ? s->chunks : 1;
}
/* Elements of a piece, of the stage that has most; shape: of the model, or of a slice of it. */
uint64_t gr_piece_elems(const gr_stages *s, const gr_model_shape *shape, uint32_t piece);
/* Of its gradients; 0: nothing of it is trained. */
uint64_t gr_piece_grad_elems(const gr_stages *s, const gr_node *n, uint32_t piece);

/* Bytes from a chunk's part of an object of a piece to the next one's: of weights as passes read them, of
 * adapters, and of gradients. */
uint64_t gr_piece_weights_apart(const gr_stages *s, const gr_kernels *k, const gr_node *n, uint32_t piece);
uint64_t gr_piece_adapters_apart(const gr_stages *s, const gr_kernels *k, const gr_node *n, uint32_t piece);
uint64_t gr_piece_grads_apart(const gr_stages *s, const gr_node *n, uint32_t piece);

/* ---- the flow of units --------------------------------------------------------------------------------- */

/* One way through the ring: what a rank does of it in the current trip. */
typedef struct gr_stage_flow {
    uint32_t chunk; /* of the unit; 0 where there is none, or no ring */
    uint32_t unit;  /* its number on the way forward */
    uint32_t micro; /* which of the micro-batches it is of; there may be fewer */
    bool works;     /* there is a unit, which may be of no tokens */
    bool sent;      /* whether what the unit before made goes to a neighbour, */
    uint32_t out;   /* and of how many tokens that is */
    uint32_t begin; /* where in its pass the round's micro-batches begin */
} gr_stage_flow;
/* Trip t: the next unit. back: the way of gradients. *next: the pass's place, which goes back to the round's
 * begin where another chunk's turn comes; own: this rank's tokens of the unit before. */
void gr_stage_flow_next(gr_stage_flow *f, const gr_stages *s, uint32_t rank, uint32_t trip, bool back,
                        uint32_t *next, uint32_t own);
/* Whether the unit is of the stage with the embedding, or of the one with the head. */
bool gr_stage_flow_first(const gr_stage_flow *f, const gr_stages *s, uint32_t rank);
bool gr_stage_flow_last(const gr_stage_flow *f, const gr_stages *s, uint32_t rank);

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
/* Of a ring: what comes is beside what goes. */
typedef struct gr_ring_messages {
    gr_stage_messages go;
    uint32_t x, dx; /* objects that are written; dx GR_NONE as in go */
} gr_ring_messages;
void gr_stage_ring(gr_tasks *p, const gr_node *n, const gr_ring_messages *m, const char *what);

/* ---- running ------------------------------------------------------------------------------------------- */

/* Kernels of these tasks, among those of other collectives (gr_sharding_run). */
enum { GR_PIECE_GATHER = 100, GR_PIECE_ADAPTERS, GR_PIECE_REDUCE, GR_STAGE_EXCHANGE, GR_STAGE_RING };
gr_status gr_piece_gather_run(const gr_call *c, gr_comm *comm, gr_diag *d);
void gr_piece_adapters_run(const gr_call *c);
gr_status gr_piece_reduce_run(const gr_call *c, gr_comm *comm, gr_diag *d);
gr_status gr_stage_exchange_run(const gr_call *c, const gr_task *w, gr_comm *comm, gr_diag *d);
gr_status gr_stage_ring_run(const gr_call *c, gr_comm *comm, gr_diag *d);

#endif
