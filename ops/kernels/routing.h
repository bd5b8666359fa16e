/* ops/kernels/routing.h: which experts the routers of a pass choose: recorded, given, compared, counted.
 *
 * A rollout records the experts of its tokens; a later pass over the same tokens is given them, and follows
 * them or compares its own with them. *Choices* of a pass of T tokens: of each layer of experts, one after
 * another, [T, k], best first (gr_model_routers says where a layer's begin). A token whose first choice is
 * GR_NO_EXPERT has none recorded: its router chooses.
 *
 * A *tally* is an array of doubles on the device: counts, so that its sums are exact in any order, and where
 * asked for the routers' probabilities, summed over tokens in their order. It is added to by passes, summed
 * over ranks as it is, and read by the host.
 */
#ifndef GR_OPS_KERNELS_ROUTING_H
#define GR_OPS_KERNELS_ROUTING_H

#include "ops/model/model.h"

#define GR_NO_EXPERT UINT16_MAX

/* Where experts are divided over ranks: runs of tokens that had rows to send, and the trips they took
 * (ops/kernels/experts_cut.c). Of the host. */
typedef struct gr_exchanges {
    uint64_t runs, trips;
} gr_exchanges;

typedef struct gr_routing {
    const uint16_t *recorded; /* choices; NULL: there are none */
    bool follow;              /* they are taken, else compared only */
    uint16_t *record;         /* where choices go; NULL: nowhere */
    double *tally;            /* NULL: nothing is counted */
    uint32_t *differs; /* [T] 0 before the first layer: whether a router of the token chose other experts */
    bool shares;       /* sum up probabilities, too */
    uint32_t padding;  /* tokens at the end that are no one's: not counted, nor in what pull is about */
    const float *pull; /* of the backward pass, see gr_experts_ops.balance_backward; NULL: none */
    gr_exchanges *exchanges; /* added to while it runs; NULL: nobody asks */
} gr_routing;

/* Of a tally: the tokens of which any router chose other experts than were recorded; then of each router the
 * number of tokens compared and of those that differ; then of all routers' experts how many choices each has;
 * then their probabilities. */
typedef struct gr_tally {
    double *tokens, *compared, *differ, *load, *share;
} gr_tally;

static inline uint64_t gr_tally_values(gr_routers all)
{
    return 1 + 2 * (uint64_t)all.n + 2 * (uint64_t)all.experts;
}

/* Those of the layer behind `before`, in the tally of a model whose routers are `all`. */
static inline gr_tally gr_tally_at(double *tally, gr_routers all, gr_routers before)
{
    double *load = tally + 1 + 2 * (uint64_t)all.n;
    return (gr_tally){.tokens = tally,
                      .compared = tally + 1 + before.n,
                      .differ = tally + 1 + all.n + before.n,
                      .load = load + before.experts,
                      .share = load + all.experts + before.experts};
}

#endif
