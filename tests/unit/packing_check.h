/* tests/unit/packing_check.h: whether offsets are a packing, pair by pair. */
#ifndef GR_TESTS_PACKING_CHECK_H
#define GR_TESTS_PACKING_CHECK_H

#include "memplan/pack/pack.h"

#include "tests/unit/test.h"

static inline bool meets(const gr_pack_item *a, const gr_pack_item *b)
{
    const bool wraps = a->last < a->first, too = b->last < b->first;
    if (wraps && too) return true;
    if (wraps || too) return a->first <= b->last || b->first <= a->last;
    return a->first <= b->last && b->first <= a->last;
}

static inline void assert_valid(const gr_pack_item *it, size_t n, uint64_t height)
{
    uint64_t top = 0;
    for (size_t i = 0; i < n; i++) {
        top = GR_MAX(top, it[i].offset + it[i].bytes);
        for (size_t j = 0; j < i; j++)
            if (meets(&it[i], &it[j]))
                assert_true(it[i].offset >= it[j].offset + it[j].bytes ||
                            it[j].offset >= it[i].offset + it[i].bytes);
    }
    assert_int_equal(top, height);
}

#endif
