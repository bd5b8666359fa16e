#include "memplan/pack.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

uint64_t gr_pack_bound(const gr_pack_item *items, size_t n, uint32_t n_steps)
{
    uint64_t *delta = gr_calloc((size_t)n_steps + 1, sizeof(*delta)), live = 0, most = 0;
    for (size_t i = 0; i < n; i++) { /* modulo 2^64: differences may be negative, sums are not */
        const gr_pack_item *it = &items[i];
        assert(it->first < n_steps && it->last < n_steps);
        if (it->last < it->first) delta[0] += it->bytes;
        delta[it->first] += it->bytes;
        delta[it->last + 1] -= it->bytes;
    }
    for (uint32_t s = 0; s < n_steps; s++) {
        live += delta[s];
        most = GR_MAX(most, live);
    }
    free(delta);
    return most;
}

static bool always(const gr_pack_item *it, uint32_t n_steps)
{
    return it->last + 1 == it->first || (it->first == 0 && it->last + 1 == n_steps);
}

static bool meet(const gr_pack_item *a, const gr_pack_item *b)
{
    bool wa = a->last < a->first, wb = b->last < b->first;
    if (wa && wb) return true;
    if (wa) return b->first <= a->last || b->last >= a->first;
    if (wb) return a->first <= b->last || a->last >= b->first;
    return a->first <= b->last && b->first <= a->last;
}

typedef struct packer {
    gr_pack_item *items;
    uint32_t *order, n;    /* the items that do not live always, in the order they are placed */
    uint32_t *placed;      /* those already placed, by offset */
    uint64_t base, height; /* of the items that live always; of the last placing */
    uint32_t rule, n_steps;
} packer;

static uint32_t duration(const packer *p, const gr_pack_item *it)
{
    return it->last < it->first ? it->last + 1 + p->n_steps - it->first : it->last - it->first + 1;
}

enum { BY_AREA, BY_SIZE, BY_DURATION, BY_BIRTH, BY_DEATH, N_RULES };

/* What an order sorts by, the greatest first. */
static double weight(const packer *p, const gr_pack_item *it)
{
    switch (p->rule) {
    case BY_AREA:
        return (double)it->bytes * duration(p, it);
    case BY_SIZE:
        return (double)it->bytes;
    case BY_DURATION:
        return duration(p, it);
    case BY_BIRTH:
        return -(double)it->first;
    default:
        return it->last;
    }
}

static int compare(const void *a, const void *b, void *user)
{
    const packer *p = user;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    double wx = weight(p, &p->items[x]), wy = weight(p, &p->items[y]);
    if (wx != wy) return wx > wy ? -1 : 1;
    uint64_t bx = p->items[x].bytes, by = p->items[y].bytes;
    if (bx != by) return bx > by ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Place one item at the lowest offset that is free in all its steps; k items are placed already. */
static void place(packer *p, uint32_t item, uint32_t k)
{
    gr_pack_item *it = &p->items[item];
    uint64_t at = p->base;
    for (uint32_t i = 0; i < k; i++) {
        const gr_pack_item *other = &p->items[p->placed[i]];
        if (other->offset + other->bytes <= at || !meet(it, other)) continue;
        if (other->offset >= at + it->bytes) break; /* all later ones begin higher still */
        at = other->offset + other->bytes;
    }
    it->offset = at;
    p->height = GR_MAX(p->height, at + it->bytes);
    uint32_t lo = 0, hi = k;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (p->items[p->placed[mid]].offset <= at)
            lo = mid + 1;
        else
            hi = mid;
    }
    memmove(&p->placed[lo + 1], &p->placed[lo], (k - lo) * sizeof(*p->placed));
    p->placed[lo] = item;
}

static uint64_t place_all(packer *p)
{
    p->height = p->base;
    for (uint32_t i = 0; i < p->n; i++) place(p, p->order[i], i);
    return p->height;
}

/* Move the items that reach above limit to the front: next time they find room lower down. */
static void favour_tall(packer *p, uint64_t limit, uint32_t *scratch)
{
    uint32_t front = 0, back = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        const gr_pack_item *it = &p->items[p->order[i]];
        if (it->offset + it->bytes > limit)
            p->order[front++] = p->order[i];
        else
            scratch[back++] = p->order[i];
    }
    memcpy(p->order + front, scratch, back * sizeof(*scratch));
}

static packer start(gr_pack_item *items, size_t n, uint32_t n_steps)
{
    packer p = {.items = items, .n_steps = n_steps};
    p.order = gr_malloc((n + 1) * sizeof(*p.order));
    p.placed = gr_malloc((n + 1) * sizeof(*p.placed));
    for (size_t i = 0; i < n; i++) {
        if (always(&items[i], n_steps)) {
            items[i].offset = p.base;
            p.base += items[i].bytes;
        } else {
            p.order[p.n++] = (uint32_t)i;
        }
    }
    return p;
}

uint64_t gr_pack(gr_pack_item *items, size_t n, uint32_t n_steps, uint64_t enough, uint32_t tries)
{
    uint64_t bound = gr_pack_bound(items, n, n_steps), best = UINT64_MAX;
    enough = GR_MAX(enough, bound);
    packer p = start(items, n, n_steps);
    uint64_t *offset = gr_malloc((n + 1) * sizeof(*offset));
    uint32_t *scratch = gr_malloc((n + 1) * sizeof(*scratch));
    uint32_t each = GR_MAX(tries / N_RULES, 1);
    for (p.rule = 0; p.rule < N_RULES && best > enough; p.rule++) {
        qsort_r(p.order, p.n, sizeof(*p.order), compare, &p);
        for (uint32_t t = 0; t < each && best > enough; t++) {
            uint64_t height = place_all(&p);
            if (height < best) {
                best = height;
                for (size_t i = 0; i < n; i++) offset[i] = items[i].offset;
            }
            favour_tall(&p, GR_MIN(bound, height - 1), scratch);
        }
    }
    for (size_t i = 0; i < n; i++) items[i].offset = offset[i];
    free(p.order);
    free(p.placed);
    free(offset);
    free(scratch);
    return n ? best : 0;
}
