/* scheduler/search/packings.c: a hash table of packings, by keys that are hashes themselves. */
#include "scheduler/search/packings.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

enum { FEWEST = 1 << 6, MOST_OFFSETS = 1 << 20 }; /* 8 MiB */

static gr_packing *slot_of(const gr_packings *k, XXH128_hash_t key)
{
    size_t at = key.low64 >> 1 & (k->size - 1);
    while (k->all[at].a && (k->all[at].a != (key.low64 | 1) || k->all[at].b != key.high64))
        at = (at + 1) & (k->size - 1);
    return &k->all[at];
}

static void grow(gr_packings *k)
{
    gr_packings more = {.n = k->n, .offsets = k->offsets, .size = k->size ? 2 * k->size : FEWEST};
    more.all = gr_calloc(more.size, sizeof(*more.all));
    for (size_t i = 0; i < k->size; i++)
        if (k->all[i].a) *slot_of(&more, (XXH128_hash_t){k->all[i].a, k->all[i].b}) = k->all[i];
    free(k->all);
    *k = more;
}

static void remember(gr_packings *k, XXH128_hash_t key, const gr_pack_item *items, size_t n, uint64_t height)
{
    if (k->offsets + n > MOST_OFFSETS) gr_packings_release(k);
    if (2 * (k->n + 1) > k->size) grow(k);
    gr_packing *p = slot_of(k, key);
    *p = (gr_packing){key.low64 | 1, key.high64, height, gr_malloc((n + 1) * sizeof(*p->offset))};
    for (size_t i = 0; i < n; i++) p->offset[i] = items[i].offset;
    k->offsets += n;
    k->n++;
}

uint64_t gr_pack_once(gr_packings *known, gr_pack_item *items, size_t n, uint32_t n_steps, uint32_t tries)
{
    if (!known) return gr_pack(items, n, n_steps, 0, tries);
    const XXH128_hash_t key =
        XXH3_128bits_withSeed(items, n * sizeof(*items), (uint64_t)n_steps << 32 | tries);
    const gr_packing *p = known->size ? slot_of(known, key) : NULL;
    if (p && p->a) {
        for (size_t i = 0; i < n; i++) items[i].offset = p->offset[i];
        return p->height;
    }
    const uint64_t height = gr_pack(items, n, n_steps, 0, tries);
    remember(known, key, items, n, height);
    return height;
}

void gr_packings_release(gr_packings *known)
{
    for (size_t i = 0; i < known->size; i++) free(known->all[i].offset);
    free(known->all);
    *known = (gr_packings){0};
}
