/* ops/text/bpe.h: byte-pair merging of one pre-token.
 *
 * Merges have ranks 0, 1, ... in the order of the file. A word starts as one token a byte; the pair of least
 * rank (leftmost first) is replaced by its merged token until no pair has a rank. A heap over candidate pairs
 * makes this n log n, so that a megabyte without a space takes no longer than other text.
 *
 * Threads: a table never changes after its last gr_merges_add; a scratch belongs to one thread.
 */
#ifndef GR_OPS_TEXT_BPE_H
#define GR_OPS_TEXT_BPE_H

#include "runtime/base/base.h"

typedef struct gr_merges {
    uint64_t *keys;  /* left id << 32 | right id; open addressing */
    uint32_t *ranks; /* of the key in the same slot; GR_NO_RANK: free slot */
    int32_t *merged; /* by rank */
    size_t n, n_slots;
} gr_merges;

#define GR_NO_RANK UINT32_MAX

void gr_merges_init(gr_merges *m, size_t n_max); /* room for n_max merges */
void gr_merges_release(gr_merges *m);

/* Give the pair the next rank; false where it has one already. */
bool gr_merges_add(gr_merges *m, int32_t left, int32_t right, int32_t merged);

typedef struct gr_bpe_scratch {
    struct gr_symbol *symbols;
    uint64_t *heap; /* rank << 32 | symbol, least first */
    size_t cap, n_heap;
} gr_bpe_scratch;

void gr_bpe_scratch_release(gr_bpe_scratch *s);

/* Merge the n >= 1 ids in place; returns how many are left. n < 2^31. */
size_t gr_bpe_merge(const gr_merges *m, gr_bpe_scratch *s, int32_t *ids, size_t n);

#endif
