/* memplan/pack/lowest.c: both directions of time, by joins, by orders, by the exact search and by rows. */
#include "memplan/pack/lowest.h"

#include <stdlib.h>
#include <string.h>

#include "memplan/pack/joins.h"
#include "memplan/pack/skyline.h"

enum { FEW = 5000, MANY = 30000, TRIES = 20, TRIES_OF_MANY = 5, NODES = 1500000, SOME = 500 };
/* Of joins: items that are worth it, pairs looked at, what of them is left to be searched. */
enum { LEAST_JOINED = SOME, WORK = 600000000, FEW_LEFT = 2000 };
enum { ROWS_WORK = 200000000 }; /* items and sections looked at by rows, each time */

/* A node takes time with the items that are open beside it. */
static uint64_t nodes_for(size_t n)
{
    return n <= SOME ? NODES : UINT64_C(200) * NODES / n;
}

/* A direction of time: items sorted, and whose they are. */
typedef struct way {
    struct placed {
        gr_pack_item it;
        uint32_t of;
    } * sorted;
    gr_pack_item *items;
    gr_solution s;
} way;

static int by_life(const void *a, const void *b)
{
    const gr_pack_item *x = &((const struct placed *)a)->it, *y = &((const struct placed *)b)->it;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    if (x->last != y->last) return x->last < y->last ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static way way_new(const gr_pack_item *items, size_t n, uint32_t n_steps, bool reversed)
{
    way w = {.sorted = gr_malloc((n + 1) * sizeof(*w.sorted)),
             .items = gr_malloc((n + 1) * sizeof(*w.items))};
    for (size_t i = 0; i < n; i++) {
        w.sorted[i] = (struct placed){items[i], (uint32_t)i};
        if (!reversed) continue;
        w.sorted[i].it.first = n_steps - 1 - items[i].last;
        w.sorted[i].it.last = n_steps - 1 - items[i].first;
    }
    qsort(w.sorted, n, sizeof(*w.sorted), by_life);
    for (size_t i = 0; i < n; i++) w.items[i] = w.sorted[i].it;
    return w;
}

static void way_free(way *w)
{
    free(w->sorted);
    free(w->items);
}

/* Which of the two is gone first: the same one for an input and its mirror image. */
static bool comes_first(const way *a, const way *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const int c = by_life(&a->sorted[i], &b->sorted[i]);
        if (c) return c < 0;
    }
    return true;
}

/* What is left of items that were joined, by orders and by search: a packing of it is one of theirs. */
static uint64_t pack_left(gr_joins *j, uint64_t enough, uint64_t *nodes)
{
    size_t n;
    uint32_t n_steps;
    gr_pack_item *left = gr_joins_left(j, &n, &n_steps);
    const uint64_t bound = gr_pack_bound(left, n, n_steps);
    uint64_t height = gr_pack(left, n, n_steps, enough, TRIES);
    if (height > GR_MAX(enough, bound) && n <= FEW_LEFT) {
        const gr_solution s = gr_solve(left, n, n_steps, height, enough, nodes_for(n) / 4);
        *nodes += s.nodes;
        height = s.height;
    }
    return gr_pack_skyline(left, n, n_steps, height, enough, ROWS_WORK);
}

static bool any_wraps(const gr_pack_item *items, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (items[i].last < items[i].first) return true;
    return false;
}

/* Items that fit together without a gap as one. Tilings come together again; of others little is joined, and
 * that soon. */
static const way *go_joined(way *w, const way *best, size_t n, uint32_t n_steps, uint64_t enough)
{
    gr_joins *j = gr_joins_new(w->items, n, n_steps, WORK);
    size_t n_left;
    uint32_t steps;
    gr_joins_left(j, &n_left, &steps);
    const uint64_t height = n_left <= n - n / 5 ? pack_left(j, enough, &w->s.nodes) : UINT64_MAX;
    if (height < best->s.height) {
        gr_joins_place(j, w->items);
        w->s.height = height;
        best = w;
    }
    gr_joins_free(j);
    return best;
}

/* By orders; what was found before stays where it is lower. */
static void go_orders(way *w, size_t n, uint32_t n_steps, uint64_t enough, uint32_t tries)
{
    gr_pack_item *items = gr_malloc((n + 1) * sizeof(*items));
    memcpy(items, w->items, n * sizeof(*items));
    const uint64_t height = gr_pack(items, n, n_steps, enough, tries);
    if (height < w->s.height) {
        memcpy(w->items, items, n * sizeof(*items));
        w->s.height = height;
    }
    free(items);
}

static void go_rows(way *w, size_t n, uint32_t n_steps, uint64_t enough)
{
    w->s.height = gr_pack_skyline(w->items, n, n_steps, w->s.height, enough, ROWS_WORK);
}

/* Both ways, until one is low enough, first joined, then by orders (of many items the one that comes first,
 * which is the same one for their mirror image), then by search from the lower of the two, then by rows. */
static const way *go_both(way *const ways[2], size_t n, uint32_t n_steps, uint64_t enough)
{
    const uint32_t tries = n > MANY ? TRIES_OF_MANY : TRIES;
    const int n_ways = n > MANY ? 1 : 2;
    const uint64_t aim = GR_MAX(enough, ways[0]->s.bound);
    const way *best = ways[0];
    const bool may_join = n >= LEAST_JOINED && !any_wraps(ways[0]->items, n);
    if (may_join) best = go_joined(ways[0], best, n, n_steps, enough);
    for (int k = 0; k < n_ways && best->s.height > aim; k++) {
        go_orders(ways[k], n, n_steps, enough, tries);
        if (ways[k]->s.height < best->s.height) best = ways[k];
    }
    uint64_t bound = best->s.bound, nodes = 0;
    for (int k = 0; k < 2 && n <= FEW && best->s.height > GR_MAX(enough, bound); k++) {
        const gr_solution s =
            gr_solve(ways[k]->items, n, n_steps, best->s.height, enough, nodes_for(n) / (k ? 4 : 1));
        bound = GR_MAX(bound, s.bound);
        nodes += s.nodes;
        if (s.height >= best->s.height) continue;
        ways[k]->s.height = s.height;
        best = ways[k];
    }
    for (int k = 0; k < 2 && may_join && best->s.height > GR_MAX(enough, bound); k++) {
        go_rows(ways[k], n, n_steps, enough);
        if (ways[k]->s.height < best->s.height) best = ways[k];
    }
    for (int k = 0; k < 2; k++) {
        ways[k]->s.bound = bound;
        ways[k]->s.nodes += nodes;
    }
    return best;
}

/* A packing of at most so many bytes, by either way; NULL: none was found. */
static const way *go_below(way *const ways[2], size_t n, uint32_t n_steps, uint64_t enough)
{
    for (int k = 0; k < 2; k++) {
        const uint64_t nodes = nodes_for(n) / (n <= SOME ? 4 : 8);
        const gr_solution s = gr_solve(ways[k]->items, n, n_steps, UINT64_MAX, enough, nodes);
        ways[k]->s.nodes += s.nodes;
        if (s.height > enough) continue;
        ways[k]->s.height = s.height;
        return ways[k];
    }
    return NULL;
}

/* On from the best, by some sixteenths of what is between it and the bound: a search that stops at a capacity
 * above the lowest comes to it sooner than one that tries the lowest in turn. */
static const way *go_down(way *const ways[2], const way *best, size_t n, uint32_t n_steps)
{
    static const uint8_t sixteenths[] = {12, 14, 15};
    for (size_t i = 0; i < GR_LEN(sixteenths) && n <= FEW && best->s.height > best->s.bound; i++) {
        const uint64_t gap = best->s.height - best->s.bound;
        const way *lower = go_below(ways, n, n_steps, best->s.bound + gap / 16 * sixteenths[i]);
        if (!lower) continue;
        best = lower;
        i--; /* as far again */
    }
    return best;
}

gr_solution gr_pack_lowest(gr_pack_item *items, size_t n, uint32_t n_steps, uint64_t capacity)
{
    way forth = way_new(items, n, n_steps, false), back = way_new(items, n, n_steps, true);
    const bool first = comes_first(&forth, &back, n);
    way *const ways[2] = {first ? &forth : &back, first ? &back : &forth};
    const uint64_t bound = gr_pack_bound(items, n, n_steps);
    for (int k = 0; k < 2; k++) ways[k]->s = (gr_solution){.height = n ? UINT64_MAX : 0, .bound = bound};
    const way *best = go_both(ways, n, n_steps, capacity);
    if (capacity && capacity >= best->s.bound && best->s.height > capacity) {
        /* It may be found on the way to lower ones. */
        for (int k = 0; k < 2; k++) ways[k]->s.height = UINT64_MAX;
        best = go_both(ways, n, n_steps, 0);
    }
    if (!capacity || best->s.height > capacity) best = go_down(ways, best, n, n_steps);
    const gr_solution s = best->s;
    for (size_t i = 0; i < n; i++) items[best->sorted[i].of].offset = best->items[i].offset;
    way_free(&forth);
    way_free(&back);
    return s;
}
