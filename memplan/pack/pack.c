/* memplan/pack/pack.c: offsets for lifetimes in one arena: several orders, first fit, and the exact packer
 * where they miss the bound. */
#include "memplan/pack/solve.h"

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

/* What is placed, by offset, in blocks that are skipped whole where none of a block lives at the same time. A
 * life that wraps is two. */
enum { BLOCK = 256 };
typedef struct block {
    struct stay {
        uint64_t at, top;
        uint32_t first, last;
    } stays[BLOCK];
    uint32_t n, first, last; /* earliest and latest step of all */
} block;

typedef struct packer {
    gr_pack_item *items;
    uint32_t *order, n; /* the items that do not live always, in the order they are placed */
    block **blocks;     /* n_blocks in use, of all_blocks; none of them empty */
    uint32_t n_blocks, all_blocks;
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

static block *add_block(packer *p, uint32_t at)
{
    if (p->n_blocks == p->all_blocks) {
        p->blocks = gr_realloc(p->blocks, (p->all_blocks + 1) * sizeof(*p->blocks));
        p->blocks[p->all_blocks++] = gr_malloc(sizeof(block));
    }
    block *added = p->blocks[p->n_blocks++];
    memmove(p->blocks + at + 1, p->blocks + at, (p->n_blocks - 1 - at) * sizeof(*p->blocks));
    p->blocks[at] = added;
    *added = (block){.first = UINT32_MAX};
    return added;
}

static void add_stay(packer *p, struct stay x)
{
    uint32_t lo = 0, hi = p->n_blocks; /* the last block that begins at or below x.at */
    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;
        *(p->blocks[mid]->stays[0].at <= x.at ? &lo : &hi) = mid;
    }
    block *b = p->n_blocks ? p->blocks[lo] : add_block(p, 0);
    if (b->n == BLOCK) {
        block *upper = add_block(p, lo + 1);
        b->n = upper->n = BLOCK / 2;
        memcpy(upper->stays, b->stays + b->n, BLOCK / 2 * sizeof(x));
        upper->first = b->first;
        upper->last = b->last;
        if (upper->stays[0].at <= x.at) b = upper;
    }
    uint32_t i = b->n++;
    for (; i && b->stays[i - 1].at > x.at; i--) b->stays[i] = b->stays[i - 1];
    b->stays[i] = x;
    b->first = GR_MIN(b->first, x.first);
    b->last = GR_MAX(b->last, x.last);
}

/* The lowest offset of at least `at` that is free from first to last. */
static uint64_t lowest(const packer *p, uint64_t bytes, uint32_t first, uint32_t last, uint64_t at)
{
    for (uint32_t k = 0; k < p->n_blocks; k++) {
        const block *b = p->blocks[k];
        if (b->stays[0].at >= at + bytes) break; /* all later ones begin higher still */
        if (first > b->last || b->first > last) continue;
        for (uint32_t i = 0; i < b->n; i++) {
            const struct stay *x = &b->stays[i];
            if ((x->top <= at) | (first > x->last) | (x->first > last)) continue; /* one branch */
            if (x->at >= at + bytes) return at;
            at = x->top;
        }
    }
    return at;
}

/* Place one item at the lowest offset that is free in all its steps. */
static void place(packer *p, uint32_t item)
{
    gr_pack_item *it = &p->items[item];
    bool wraps = it->last < it->first;
    uint32_t last = wraps ? p->n_steps - 1 : it->last;
    uint64_t at = p->base, before;
    do {
        before = at;
        at = lowest(p, it->bytes, it->first, last, at);
        if (wraps) at = lowest(p, it->bytes, 0, it->last, at);
    } while (wraps && at != before);
    it->offset = at;
    p->height = GR_MAX(p->height, at + it->bytes);
    add_stay(p, (struct stay){at, at + it->bytes, it->first, last});
    if (wraps) add_stay(p, (struct stay){at, at + it->bytes, 0, it->last});
}

static uint64_t place_all(packer *p)
{
    p->height = p->base;
    p->n_blocks = 0;
    for (uint32_t i = 0; i < p->n; i++) place(p, p->order[i]);
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

/* The exact packer, for what does not live always: those items stay below. Returns the height. */
static uint64_t solve(const packer *p, uint64_t height, uint64_t enough, uint64_t nodes)
{
    gr_pack_item *some = gr_malloc((p->n + (size_t)1) * sizeof(*some));
    for (uint32_t i = 0; i < p->n; i++) some[i] = p->items[p->order[i]];
    gr_solution s = gr_solve(some, p->n, p->n_steps, height - p->base, enough - p->base, nodes);
    for (uint32_t i = 0; i < p->n && p->base + s.height < height; i++)
        p->items[p->order[i]].offset = p->base + some[i].offset;
    free(some);
    return p->base + s.height;
}

uint64_t gr_pack(gr_pack_item *items, size_t n, uint32_t n_steps, uint64_t enough, uint32_t tries)
{
    enum { SOLVE_ITEMS = 1000, SOLVE_NODES = 100 };
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
    if (n && best > enough && p.n <= SOLVE_ITEMS) best = solve(&p, best, enough, tries * SOLVE_NODES);
    free(p.order);
    for (uint32_t k = 0; k < p.all_blocks; k++) free(p.blocks[k]);
    free(p.blocks);
    free(offset);
    free(scratch);
    return n ? best : 0;
}
