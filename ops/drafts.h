/* ops/drafts.h: speculative decoding of a rollout without a second model: tokens are drafted by looking up
 * what was said before, or by the layer of the checkpoint that predicts a further token
 * (ops/rollout_ahead.c), and the model samples behind all of them in one step.
 *
 * A draft that is looked up is what followed, earlier, the same last few tokens: in the sequence itself (its
 * prompt included), or in other samples of its prompt, finished or not. The longest match counts, of equal
 * ones the latest of the sequence itself, then the first of the others.
 *
 * Exactness. The model samples a token behind the last one and behind each drafted one, every one with the
 * random number of its place, as if it were sampled alone. A sampled token that is the drafted one makes the
 * next one valid; the first that is not is kept itself, and what was sampled behind it is thrown away. So
 * the ids are those of a rollout without drafts: to the bit where a step of several tokens has the bits of
 * steps of one (gr_kernels.invariant), in distribution else. This is the acceptance rule of Leviathan et al.,
 * arXiv:2211.17192, for a drafting distribution that is one token with probability 1. Looking up n-grams:
 * Saxena, "Prompt Lookup Decoding", 2023.
 *
 * Threads: one.
 */
#ifndef GR_OPS_DRAFTS_H
#define GR_OPS_DRAFTS_H

#include "ops/base/configs.h"
#include "ops/base/rows.h"

enum { GR_DRAFT_MOST = 32 /* tokens */ };

/* Fill the `speculate` of a rollout's config from its value as written; else d says what is wrong. With
 * `from: mtp` n->second becomes the layer that drafts, a model that the graph has from here on. */
void gr_drafts_read(gr_graph *g, gr_node *n, gr_diag *d);

/* How many tokens a step is expected to yield of a sequence for which `draft` are drafted, each being the
 * sampled one with this probability as long as those before it were. */
double gr_drafts_yield(uint32_t draft, double rate);

/* One text to look up in: ids [0, n), of which those from `from` on may be proposed. */
typedef struct gr_draft_source {
    const int32_t *ids;
    uint32_t from, n;
} gr_draft_source;

/* Of the tokens that followed the longest match of the end of `own` at least `least` long, up to `most` to
 * out [most]; returns how many, 0: there is no match. own is the first source. */
uint32_t gr_draft(const gr_draft_source *sources, uint32_t n, uint32_t least, uint32_t most, int32_t *out);

/* How a sequence's drafts went. One whose drafts are rejected drafts less often: after k in a row that gave
 * nothing it rests for 2^k - 1 steps, 31 at most. */
typedef struct gr_draft_record {
    uint32_t misses, rest;
} gr_draft_record;
/* Whether to draft in this step. */
bool gr_draft_now(gr_draft_record *r);
void gr_draft_went(gr_draft_record *r, uint32_t drafted, uint32_t accepted);

#endif
