/* scheduler/search/prices.c: a hash table of prices, by keys that are hashes themselves. */
#include "scheduler/search/prices.h"

#include "runtime/base/base.h"

#include <stdlib.h>
#include <string.h>

enum { FEWEST = 1 << 10, MOST = 1 << 18 };

static gr_price *slot_of(const gr_prices *p, gr_price_key key)
{
    size_t at = key.a & (p->size - 1);
    while (p->all[at].key.a && (p->all[at].key.a != key.a || p->all[at].key.b != key.b))
        at = (at + 1) & (p->size - 1);
    return &p->all[at];
}

static void grow(gr_prices *p)
{
    gr_prices more = {.size = p->size ? 2 * p->size : FEWEST};
    more.all = gr_calloc(more.size, sizeof(*more.all));
    for (size_t i = 0; i < p->size; i++)
        if (p->all[i].key.a) *slot_of(&more, p->all[i].key) = p->all[i];
    more.n = p->n;
    free(p->all);
    *p = more;
}

gr_price *gr_price_at(gr_prices *p, gr_price_key key)
{
    if (p->n == MOST / 2) {
        memset(p->all, 0, p->size * sizeof(*p->all));
        p->n = 0;
    }
    if (2 * (p->n + 1) > p->size) grow(p);
    gr_price *at = slot_of(p, key);
    p->n += !at->key.a;
    return at;
}

void gr_prices_release(gr_prices *p)
{
    free(p->all);
    *p = (gr_prices){0};
}
