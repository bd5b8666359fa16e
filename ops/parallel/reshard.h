/* ops/parallel/reshard.h: weights of a layer from flat shards, or from a whole bucket, into slices.
 *
 * Rank r of R has shard r (gr_shard_elems), and is to have slice r modulo parts. Each packs, for each slice,
 * what its shard has of it: the pieces of its blocks, in their order (ops/model/tp.h). That goes to all
 * ranks which have the slice; what a rank gets of all shards, one behind another, it puts in its place. Both
 * sides know the lists from the two layouts, so that nothing is said about them, and a rank receives what its
 * slice has and nothing else.
 */
#ifndef GR_OPS_PARALLEL_RESHARD_H
#define GR_OPS_PARALLEL_RESHARD_H

#include "ops/kernels/kernels.h"
#include "ops/model/tp.h"
#include "runtime/comm/comm.h"

/* What is done, and for whom. */
typedef struct gr_reshard {
    const gr_model_shape *shape; /* the whole one */
    uint32_t parts, bucket;      /* of a layer */
    uint32_t rank, ranks;
    const gr_kernels *k;
    gr_queue *q;
} gr_reshard;

/* Elements of the buffer, which what goes out and what comes in share, at most on any rank. */
uint64_t gr_reshard_room(const gr_model_shape *s, uint32_t parts, uint32_t bucket, uint32_t ranks);

/* Elements: where they begin in the buffer, and how many. */
typedef struct gr_reshard_part {
    uint64_t at, n;
} gr_reshard_part;

/* Pack what this rank's shard has of each slice; out [parts]. */
void gr_reshard_pack(const gr_reshard *r, const void *shard, void *buffer, gr_reshard_part *out);
/* What comes of each rank, behind all that this one packs; in [ranks]. */
void gr_reshard_expect(const gr_reshard *r, gr_reshard_part *in);
/* It goes to its place in the slice, and zeros between tensors. */
void gr_reshard_unpack(const gr_reshard *r, const gr_reshard_part *in, const void *buffer, void *slice);

/* All of it, over the communicator of all ranks. room: host memory of gr_reshard_room_bytes. */
uint64_t gr_reshard_room_bytes(uint32_t ranks, uint32_t parts);
GR_NODISCARD gr_status gr_reshard_run(const gr_reshard *r, gr_comm *c, const void *shard, void *slice,
                                      void *buffer, void *room, gr_diag *d);

/* From a whole bucket that is here. */
void gr_reshard_local(const gr_reshard *r, const void *whole, void *slice);

#endif
