/* runtime/base/index.h: numbers by name: a hash table with open addressing. {0} is empty. Names are not
 * copied, and must stay where they are. No locks. */
#ifndef GR_RUNTIME_BASE_INDEX_H
#define GR_RUNTIME_BASE_INDEX_H

#include "runtime/base/base.h"

typedef struct gr_index {
    struct gr_index_slot {
        const char *name; /* NULL: empty */
        size_t len;
        uint32_t value;
    } * slots;
    size_t n, cap; /* cap: a power of two, at least twice n */
} gr_index;

/* false: the name is there already, and stays as it is. */
bool gr_index_add(gr_index *x, const char *name, uint32_t value);
/* Of the first len bytes of name. UINT32_MAX: it is not there. */
uint32_t gr_index_find(const gr_index *x, const char *name, size_t len);
void gr_index_release(gr_index *x);

#endif
