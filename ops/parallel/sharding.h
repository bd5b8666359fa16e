/* ops/parallel/sharding.h: a model over many ranks: what of it a rank holds, and the collectives that bring
 * the rest.
 *
 * On R ranks a bucket of n elements is cut, flat, into R shards (gr_shard_elems). Optimizer state and reduced
 * gradients are shards always. The weights are whole on every rank, and gathered in place after each
 * optimizer step (one copy serves training and rollout); or they are sharded, too: then each pass gathers
 * them bucket by bucket, one bucket ahead of the task that reads it, and a rollout reads a whole copy of its
 * own, filled by `sync` before it begins. On one rank there is nothing to do, and these functions do nothing.
 *
 * The copy that generates may be cut into tensor-parallel shards, over neighbouring ranks (ops/model/tp.h):
 * `sync` then fills a rank's own part, from the flat shards (ops/parallel/reshard.h) or from the whole layers
 * that are there.
 *
 * Training passes may be on a mesh of ranks (runtime/comm/mesh.h). What is kept does not change for it. Along
 * its axis tensor, or expert, a pass reads slices of layers: gathered from the flat shards, or cut from whole
 * layers that are there; and gradients of slices go back into flat shards (gr_reshard_back): those of experts
 * are summed over the ranks that have the same ones, all others over all ranks. Ranks that share sequences
 * have each a part of the sum of gradients, as ranks with sequences of their own have.
 *
 * A model that is trained on other ranks (pools) is read here as a copy, the rollout's, which transfers
 * between the pools fill; nothing of it is gathered. A rollout with `lag: 1` reads a copy of the iteration
 * before.
 *
 * Gradients of a bucket are computed whole. They are reduced over the ranks in each micro-batch, beside the
 * backward pass of the buckets below, and added to the rank's shard; or, where the planner takes the memory
 * for it (gr_choices.whole_grads), each rank sums those of its micro-batches, whole, and they are reduced
 * once, beside the backward pass of the last one, which stands after the loop of the others: that is another
 * order of sums. Either way sums have the same order, whether weights are sharded or not.
 *
 * The batch is divided among the ranks by whole groups to be generated and scored (gr_rows_own), and by
 * length for passes (ops/parallel/balance.h): each rank fills in its own rows, in columns that are zero
 * elsewhere, and `share` makes the columns whole on every rank. So each rank has all columns, and what
 * follows from them, expressions over the batch, selections, metrics, is evaluated everywhere, over the whole
 * batch in its order, with the same bits for any number of ranks.
 *
 * A model may be sharded over the ranks of a host, and the hosts be replicas of each other (`shard: node`).
 * Then all of this is among the ranks of a host, with two exceptions. After the last micro-batch of a
 * mini-batch each rank's shard of the gradients is summed with the same shard on the other hosts (`across`),
 * with the same bits on all of them. And the gradient's norm is the sum over one host, which all ranks
 * receive. So every replica makes the same step, from equal bits to equal bits.
 *
 * Canonical runs cut a mini-batch into GR_LEAVES parts, whole groups in their order, and each rank has as
 * many of them one after another. A leaf's gradient is summed in a whole bucket of its own; leaves are then
 * added in one binary tree (a tree reduction), within a rank as they come, as a binary counter carries, and
 * over the ranks in `reduce`, once a mini-batch. So the sum is the same tree on any number of ranks.
 *
 * Source: Rajbhandari et al., ZeRO, arXiv:1910.02054 (stages 1, 2 and 3); Zhao et al., FSDP, arXiv:2304.11277
 * (hybrid sharding: its section 3.2.2).
 */
#ifndef GR_OPS_PARALLEL_SHARDING_H
#define GR_OPS_PARALLEL_SHARDING_H

#include "ops/base/op.h"
#include "ops/parallel/parts.h"
#include "runtime/comm/comm.h"

/* The weights that a task of the current node reads in a pass ("", "back_": a pass of the node): the model's
 * own bucket, or the one gathered for that pass. */
uint32_t gr_sharding_params(gr_tasks *p, const gr_kernels *k, const gr_model *m, const char *pass,
                            uint32_t bucket);
/* Declare the gather that fills it, where there is one; buckets the model does not have are ignored. */
void gr_sharding_gather(gr_tasks *p, const gr_kernels *k, const gr_model *m, const char *pass,
                        uint32_t bucket);

/* The weights that a rollout reads, and what fills them, declared before its first task; a log-prob node that
 * asks the rollout's copy has the same. */
uint32_t gr_sharding_rollout(gr_tasks *p, const gr_kernels *k, const gr_model *m, uint32_t bucket);
void gr_sharding_sync(gr_tasks *p, const gr_kernels *k, const gr_model *m);

/* Where a role receives a bucket that others train: its copy, the rollout's or the lagging one; or, where
 * that copy is a tensor-parallel shard, the whole bucket; `cut` then declares the sync from it. */
uint32_t gr_sharding_received(gr_tasks *p, const gr_kernels *k, const gr_model *m, gr_model_part copy,
                              uint32_t bucket);
void gr_sharding_cut(gr_tasks *p, const gr_kernels *k, const gr_model *m, gr_model_part copy,
                     uint32_t bucket);

/* Declare the sync that makes the copy of lagging rollouts the weights as this iteration began: after the
 * last of these, before the update. */
void gr_sharding_older(gr_tasks *p, const gr_kernels *k, const gr_model *m);

/* What a backward task adds a bucket's gradients to: the model's own, or a whole bucket, which the first task
 * that uses it writes. */
gr_use gr_sharding_grads(gr_tasks *p, const gr_kernels *k, const gr_model *m, uint32_t bucket, bool first);
/* Of many ranks, or leaves: the whole gradients of a bucket, of one micro-batch, of all of them, or of the
 * leaf that runs. */
uint32_t gr_sharding_whole(gr_tasks *p, const gr_kernels *k, const gr_model *m, uint32_t bucket);
/* Canonical: sums of leaves before the one that runs that wait for their other half, one bucket for each
 * level of the tree within a rank (GR_NONE: there is none). */
uint32_t gr_sharding_tree(gr_tasks *p, const gr_kernels *k, const gr_model *m, uint32_t bucket);
/* Declare the reduction of whole gradients into the model's own: added to what is there, or, where it is all
 * of a mini-batch, in its place. */
void gr_sharding_reduce(gr_tasks *p, const gr_kernels *k, const gr_model *m, uint32_t bucket, bool all);
/* Declare its sum over replicas, where hosts are replicas: once a mini-batch, after all its reductions. */
void gr_sharding_replicas(gr_tasks *p, const gr_kernels *k, const gr_model *m, uint32_t bucket);
/* Declare the gather of a bucket that an optimizer step changed a shard of, where weights are whole. */
void gr_sharding_stepped(gr_tasks *p, const gr_kernels *k, const gr_model *m, uint32_t bucket);

/* Declare the gather of another object that lies as the bucket's weights do when they are whole, of which
 * each rank has written its shard. */
void gr_sharding_unite(gr_tasks *p, const gr_kernels *k, const gr_model *m, uint32_t object, uint32_t bucket);

/* The sum over all ranks of n doubles at the beginning of an object, in place. */
void gr_sharding_total(gr_tasks *p, uint32_t object, uint32_t n, const char *what);
/* A collective on the lane `comm`, of which a rank receives so many bytes: among the ranks that have shards
 * of a model together; m NULL: of all. */
gr_task *gr_sharding_collective(gr_tasks *p, const gr_model *m, gr_step_kind kind, uint32_t kernel,
                                uint32_t arg, uint64_t bytes, const gr_use *uses, size_t n, const char *what);
/* An object to which each rank has written what is its own, the rest being zero, becomes whole on all of
 * them. GR_NONE is fine. */
void gr_sharding_share(gr_tasks *p, uint32_t object);
/* Operands of the task that agrees on the trips of a loop: what gr_op.trips is given. */
enum { GR_AGREE_TRIPS, GR_AGREE_ROWS, GR_N_AGREE };
/* Open a loop whose trips follow from data, with collectives inside: all ranks agree on the most trips of any
 * of them first (gr_op.trips, of these rows), and the others run empty trips at its end. */
gr_task *gr_sharding_loop(gr_tasks *p, uint32_t kernel, uint32_t trips_max, bool collectives, uint32_t rows,
                          const char *what);
/* Whether passes of a model hold collectives. */
bool gr_sharding_gathers(const gr_tasks *p, const gr_model *m);

/* ---- running ------------------------------------------------------------------------------------------- */

/* This rank's shard of a bucket of the model of a call's node. */
gr_shard gr_shard_of(const gr_call *c, uint32_t bucket);

/* Host memory that a collective takes while it runs (gr_call.room); m: of its node. */
uint64_t gr_sharding_room_bytes(const gr_tasks *p, const gr_task *w, const gr_model *m);
/* Run a collective of task graph p. device: for memory of the device, of the ranks in the task's group; host:
 * for that of the host, of all; they may be the same. */
gr_status gr_sharding_run(const gr_call *c, const gr_tasks *p, const gr_task *w, gr_comm *device,
                          gr_comm *host, gr_diag *d);

#endif
