/* runtime/base/index.c: a hash index from names to numbers. */
#include "runtime/base/index.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

/* The slot of a name: where it is, or the empty one where it would go. */
static struct gr_index_slot *slot_of(const gr_index *x, const char *name, size_t len)
{
    size_t i = (size_t)XXH3_64bits(name, len) & (x->cap - 1);
    while (x->slots[i].name && (x->slots[i].len != len || memcmp(x->slots[i].name, name, len)))
        i = (i + 1) & (x->cap - 1);
    return &x->slots[i];
}

static void grow(gr_index *x)
{
    gr_index old = *x;
    if (2 * (x->n + 1) <= x->cap) return;
    x->cap = x->cap ? 2 * x->cap : 64;
    x->slots = gr_calloc(x->cap, sizeof(*x->slots));
    for (size_t i = 0; i < old.cap; i++)
        if (old.slots[i].name) *slot_of(x, old.slots[i].name, old.slots[i].len) = old.slots[i];
    free(old.slots);
}

bool gr_index_add(gr_index *x, const char *name, uint32_t value)
{
    grow(x);
    struct gr_index_slot *s = slot_of(x, name, strlen(name));
    if (s->name) return false;
    *s = (struct gr_index_slot){name, strlen(name), value};
    x->n++;
    return true;
}

uint32_t gr_index_find(const gr_index *x, const char *name, size_t len)
{
    if (!x->cap) return UINT32_MAX;
    const struct gr_index_slot *s = slot_of(x, name, len);
    return s->name ? s->value : UINT32_MAX;
}

void gr_index_release(gr_index *x)
{
    free(x->slots);
    *x = (gr_index){0};
}
