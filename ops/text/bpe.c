/* ops/text/bpe.c: byte-pair merges of one piece of text, by rank, with a heap of neighbours. */
#include "ops/text/bpe.h"

#include <stdlib.h>
#include <string.h>

struct gr_symbol {
    int32_t id;
    uint32_t rank; /* of the pair this symbol begins, GR_NO_RANK: none (or the symbol was merged away) */
    uint32_t prev, next; /* END: none */
};

#define END UINT32_MAX

void gr_merges_init(gr_merges *m, size_t n_max)
{
    m->n = 0;
    m->n_slots = 16;
    while (m->n_slots < n_max + n_max / 2) m->n_slots *= 2;
    m->keys = gr_malloc(m->n_slots * sizeof(*m->keys));
    m->ranks = gr_malloc(m->n_slots * sizeof(*m->ranks));
    memset(m->ranks, 0xff, m->n_slots * sizeof(*m->ranks));
    m->merged = gr_malloc((n_max + 1) * sizeof(*m->merged));
}

void gr_merges_release(gr_merges *m)
{
    free(m->keys);
    free(m->ranks);
    free(m->merged);
    *m = (gr_merges){0};
}

static uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* The slot of the key, or the free one where it would go. */
static size_t find_slot(const gr_merges *m, uint64_t key)
{
    uint64_t h = key * 0x9E3779B97F4A7C15u;
    size_t slot = (h ^ h >> 32) & (m->n_slots - 1);
    while (m->ranks[slot] != GR_NO_RANK && m->keys[slot] != key) slot = (slot + 1) & (m->n_slots - 1);
    return slot;
}

bool gr_merges_add(gr_merges *m, int32_t left, int32_t right, int32_t merged)
{
    uint64_t key = pair_key(left, right);
    size_t slot = find_slot(m, key);
    if (m->ranks[slot] != GR_NO_RANK) return false;
    m->keys[slot] = key;
    m->ranks[slot] = (uint32_t)m->n;
    m->merged[m->n++] = merged;
    return true;
}

void gr_bpe_scratch_release(gr_bpe_scratch *s)
{
    free(s->symbols);
    free(s->heap);
    *s = (gr_bpe_scratch){0};
}

static void heap_push(gr_bpe_scratch *s, uint64_t entry)
{
    size_t i = s->n_heap++;
    for (; i > 0 && s->heap[(i - 1) / 2] > entry; i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = entry;
}

static uint64_t heap_pop(gr_bpe_scratch *s)
{
    uint64_t top = s->heap[0], last = s->heap[--s->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < s->n_heap; i = child) {
        if (child + 1 < s->n_heap && s->heap[child + 1] < s->heap[child]) child++;
        if (s->heap[child] >= last) break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = last;
    return top;
}

/* Look up the pair that symbol i begins and queue it. */
static void rank_pair(const gr_merges *m, gr_bpe_scratch *s, uint32_t i)
{
    struct gr_symbol *a = &s->symbols[i];
    a->rank = GR_NO_RANK;
    if (a->next == END) return;
    a->rank = m->ranks[find_slot(m, pair_key(a->id, s->symbols[a->next].id))];
    if (a->rank != GR_NO_RANK) heap_push(s, (uint64_t)a->rank << 32 | i);
}

static void merge_at(const gr_merges *m, gr_bpe_scratch *s, uint32_t i)
{
    struct gr_symbol *a = &s->symbols[i], *b = &s->symbols[a->next];
    a->id = m->merged[a->rank];
    a->next = b->next;
    b->rank = GR_NO_RANK;
    if (a->next != END) s->symbols[a->next].prev = i;
    rank_pair(m, s, i);
    if (a->prev != END) rank_pair(m, s, a->prev);
}

size_t gr_bpe_merge(const gr_merges *m, gr_bpe_scratch *s, int32_t *ids, size_t n)
{
    if (s->cap < n) {
        s->cap = GR_MAX(n, 2 * s->cap);
        s->symbols = gr_realloc(s->symbols, s->cap * sizeof(*s->symbols));
        /* a pair is queued at the start and at most twice a merge, of which there are fewer than n */
        s->heap = gr_realloc(s->heap, 3 * s->cap * sizeof(*s->heap));
    }
    s->n_heap = 0;
    for (uint32_t i = 0; i < n; i++)
        s->symbols[i] = (struct gr_symbol){ids[i], GR_NO_RANK, i ? i - 1 : END, i + 1 < n ? i + 1 : END};
    for (uint32_t i = 0; i + 1 < n; i++) rank_pair(m, s, i);
    while (s->n_heap) {
        uint64_t top = heap_pop(s);
        uint32_t i = (uint32_t)top;
        if (s->symbols[i].rank == top >> 32) merge_at(m, s, i); /* else: the pair has changed since */
    }
    size_t left = 0;
    for (uint32_t i = 0; i != END; i = s->symbols[i].next) ids[left++] = s->symbols[i].id;
    return left;
}
