/* ops/parallel/reshard.h: weights of a layer from flat shards, or from a whole bucket, into tensor-parallel
 * shards ("tp shards" below).
 *
 * Rank r of R has flat shard r (gr_shard_elems), and needs tp shard r modulo parts. Each rank packs, for each
 * tp shard, what its flat shard has of it: the pieces of its blocks, in their order (ops/model/tp.h). It
 * sends that to all ranks which need the tp shard. A rank puts what it gets of all flat shards, one after
 * another, in its place. Both sides know the lists from the two layouts, so nothing is sent about them, and a
 * rank receives only what its tp shard has.
 */
#ifndef GR_OPS_PARALLEL_RESHARD_H
#define GR_OPS_PARALLEL_RESHARD_H

#include "ops/kernels/kernels.h"
#include "ops/model/tp.h"
#include "runtime/comm/comm.h"

/* What is done, and for whom. */
typedef struct gr_reshard {
    const gr_model_shape *shape; /* the whole one */
    gr_slicing cut;
    uint32_t bucket; /* of a layer */
    uint32_t rank, ranks;
    const gr_kernels *k;
    gr_queue *q;
} gr_reshard;

/* Most elements of the buffer on any rank; what goes out and what comes in share it. */
uint64_t gr_reshard_room(const gr_model_shape *s, gr_slicing cut, uint32_t bucket, uint32_t ranks);

/* Elements: where they begin in the buffer, and how many. */
typedef struct gr_reshard_part {
    uint64_t at, n;
} gr_reshard_part;

/* Pack what this rank's flat shard has of each tp shard; out [parts]. */
void gr_reshard_pack(const gr_reshard *r, const void *shard, void *buffer, gr_reshard_part *out);
/* What comes from each rank, after all that this one packs; in [ranks]. */
void gr_reshard_expect(const gr_reshard *r, gr_reshard_part *in);
/* Put it in its place in the tp shard, and zeros between tensors. */
void gr_reshard_unpack(const gr_reshard *r, const gr_reshard_part *in, const void *buffer, void *tp);

/* All of it, over the communicator of all ranks. room: host memory of gr_reshard_room_bytes. */
uint64_t gr_reshard_room_bytes(uint32_t ranks, uint32_t parts);
GR_NODISCARD gr_status gr_reshard_run(const gr_reshard *r, gr_comm *c, const void *shard, void *tp,
                                      void *buffer, void *room, gr_diag *d);

/* The way back, for gradients: what each rank has summed up in a slice, into flat shards. A flat shard is the
 * sum over all ranks; of what every slice has (norms; all but experts), over all of them too. Sums are of one
 * binary tree over the ranks of a slice, then over slices in their order. */

/* Elements of the buffer on any rank: what goes out, what comes in, and the shard's sum. */
uint64_t gr_reshard_back_room(const gr_model_shape *s, gr_slicing cut, uint32_t bucket, uint32_t ranks);
/* All of it. shard: what it has, to which the sum is added. type: of the gradients. room: host memory of
 * gr_reshard_room_bytes. */
GR_NODISCARD gr_status gr_reshard_back(const gr_reshard *r, gr_comm *c, gr_dtype type, const void *tp,
                                       void *shard, void *buffer, void *room, gr_diag *d);

/* From a whole bucket that is here. */
void gr_reshard_local(const gr_reshard *r, const void *whole, void *tp);
/* And a slice, of gradients of this type, into its place in a whole bucket, which is zero elsewhere. */
void gr_reshard_place(const gr_reshard *r, gr_dtype type, const void *tp, void *whole);

#endif
