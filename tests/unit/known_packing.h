/* tests/unit/known_packing.h: items cut from a full rectangle of time and bytes, so that the lowest packing
 * is known: the rectangle itself. */
#ifndef GR_TESTS_KNOWN_PACKING_H
#define GR_TESTS_KNOWN_PACKING_H

#include "memplan/pack/pack.h"

typedef struct known_packing {
    gr_pack_item *items;
    uint64_t random;
    size_t n;
} known_packing;

static inline uint32_t known_below(known_packing *k, uint32_t n)
{
    k->random = k->random * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(k->random >> 33) % n;
}

/* Cut steps [t, t + steps) by height units from h into n items, of 256 bytes a unit. */
static inline void known_cut(known_packing *k, size_t n, uint32_t t, uint32_t steps, uint32_t h,
                             uint32_t height)
{
    if (n == 1 || (steps == 1 && height == 1)) {
        k->items[k->n++] = (gr_pack_item){256 * (uint64_t)height, t, t + steps - 1, 256 * (uint64_t)h};
        return;
    }
    bool in_time = height == 1 || (steps > 1 && known_below(k, 2));
    uint32_t length = in_time ? steps : height, half = length / 2, jitter = half / 2;
    uint32_t at = half - jitter + known_below(k, 2 * jitter + 1);
    size_t below = GR_MIN(GR_MAX(n * at / length, 1), n - 1);
    known_cut(k, below, t, in_time ? at : steps, h, in_time ? height : at);
    known_cut(k, n - below, in_time ? t + at : t, in_time ? steps - at : steps, in_time ? h : h + at,
              in_time ? height : height - at);
}

/* At most n items over steps steps, with the offsets of a packing 256 * height bytes high, in mixed order. */
static inline size_t known_packing_make(gr_pack_item *items, size_t n, uint32_t steps, uint32_t height,
                                        uint64_t seed)
{
    known_packing k = {.items = items, .random = seed};
    known_cut(&k, n, 0, steps, 0, height);
    for (size_t i = k.n; i > 1; i--) {
        uint32_t j = known_below(&k, (uint32_t)i);
        gr_pack_item swap = items[i - 1];
        items[i - 1] = items[j];
        items[j] = swap;
    }
    return k.n;
}

#endif
