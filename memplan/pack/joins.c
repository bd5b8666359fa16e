/* memplan/pack/joins.c: items that fit together without a gap, joined and taken apart. */
#include "memplan/pack/joins.h"

#include <stdlib.h>
#include <string.h>

#include "memplan/pack/sections.h"

#define NONE UINT32_MAX

enum { WORK_OF_JOIN = 20 }; /* making one takes as long as looking at so many pairs */

/* A part's kind says how its parts lie in it. A wheel's: left, bottom, middle, top, right; left and bottom
 * begin with it, top and right end with it, left ends where the middle begins, right begins where it ends. */
typedef enum kind { ITEM, NOBODY, CHAIN, STACK, WHEEL } kind;
enum { LEFT, BOTTOM, MIDDLE, TOP, RIGHT, PARTS };
typedef struct joint {
    uint64_t size;
    uint32_t border[SIDES]; /* where it begins and ends */
    uint32_t place[SIDES];  /* of a root: in those borders' lists */
    uint32_t up;            /* what it is part of, or NONE */
    uint32_t part[PARTS];   /* ITEM: the caller's number */
    uint32_t joined, next;  /* of a chain: its border, and the next in that border's list */
    uint8_t kind, n_parts;
    bool dead, empty; /* empty: there is no item in it */
} joint;

typedef struct list {
    uint32_t *of, n, cap;
} list;

typedef struct border {
    list roots[SIDES];
    list chains; /* joints joined here, also dead ones */
    uint8_t level;
    bool waits;
} border;

/* How certain a join is: one heir and one that leaves; a stack of the size of something beside it; a wheel;
 * one of several heirs; a stack. */
enum { SURE, FITTING, WHEELS, ANY, STACKS, LEVELS };

struct gr_joins {
    joint *joints;
    uint32_t n, cap;
    border *borders;
    uint32_t n_borders; /* sections and one */
    list queue[LEVELS];
    list unused;               /* joints */
    list log;                  /* of a trial: joints made, and, with TAKEN, those taken apart */
    uint32_t n_roots, doubted; /* border where guesses are made anew, or NONE */
    uint64_t looked, drawn;    /* pairs; numbers */
    gr_pack_item *left;
    uint32_t *left_of;
    size_t n_left;
};

#define TAKEN (UINT32_C(1) << 31)

static uint32_t draw(gr_joins *j, uint32_t n)
{
    uint32_t random[4];
    const uint64_t i = j->drawn++;
    gr_philox(23, 0, (const uint32_t[]){(uint32_t)i, (uint32_t)(i >> 32), 0, 0}, random);
    return (uint32_t)(((uint64_t)random[0] * n) >> 32);
}

/* ---- roots --------------------------------------------------------------------------------------------- */

static void list_add(list *l, uint32_t x)
{
    GR_PUSH(l->of, l->n, l->cap, x);
}

static void wake(gr_joins *j, uint32_t at)
{
    border *b = &j->borders[at];
    if (b->waits && b->level == SURE) return;
    b->waits = true;
    b->level = SURE;
    list_add(&j->queue[SURE], at);
}

static void add_root(gr_joins *j, uint32_t id)
{
    joint *x = &j->joints[id];
    x->up = NONE;
    for (int side = BEGINS; side < SIDES; side++) {
        list *l = &j->borders[x->border[side]].roots[side];
        x->place[side] = l->n;
        list_add(l, id);
        wake(j, x->border[side]);
    }
    j->n_roots++;
}

static void drop_root(gr_joins *j, uint32_t id)
{
    const joint *x = &j->joints[id];
    for (int side = BEGINS; side < SIDES; side++) {
        list *l = &j->borders[x->border[side]].roots[side];
        const uint32_t last = l->of[--l->n];
        l->of[x->place[side]] = last;
        j->joints[last].place[side] = x->place[side];
        wake(j, x->border[side]);
    }
    j->n_roots--;
}

static uint32_t new_joint(gr_joins *j)
{
    if (j->unused.n) return j->unused.of[--j->unused.n];
    joint none = {.dead = true};
    GR_PUSH(j->joints, j->n, j->cap, none);
    return j->n - 1;
}

static uint32_t new_item(gr_joins *j, uint64_t size, uint32_t begins, uint32_t ends, uint32_t item)
{
    const uint32_t id = new_joint(j);
    j->joints[id] = (joint){.size = size,
                            .border = {begins, ends},
                            .up = NONE,
                            .kind = item == NONE ? NOBODY : ITEM,
                            .empty = item == NONE,
                            .part = {item}};
    return id;
}

/* Its parts are roots; it becomes one. */
static void put_together(gr_joins *j, uint32_t id)
{
    joint *x = &j->joints[id];
    for (uint32_t k = 0; k < x->n_parts; k++) {
        drop_root(j, x->part[k]);
        j->joints[x->part[k]].up = id;
    }
    x->dead = false;
    j->looked += WORK_OF_JOIN;
    if (x->kind == CHAIN) {
        list_add(&j->borders[x->joined].chains, id);
        wake(j, x->joined);
    }
    add_root(j, id);
}

/* It is a root; its parts become some. */
static void take_apart(gr_joins *j, uint32_t id)
{
    joint *x = &j->joints[id];
    drop_root(j, id);
    x->dead = true;
    for (uint32_t k = 0; k < x->n_parts; k++) add_root(j, x->part[k]);
}

static void join(gr_joins *j, joint x)
{
    const uint32_t id = new_joint(j);
    x.empty = true;
    for (uint32_t k = 0; k < x.n_parts; k++) x.empty = x.empty && j->joints[x.part[k]].empty;
    j->joints[id] = x;
    put_together(j, id);
    list_add(&j->log, id);
}

static void join_chain(gr_joins *j, uint32_t a, uint32_t b)
{
    const joint *x = &j->joints[a], *y = &j->joints[b];
    join(j, (joint){.size = x->size,
                    .border = {x->border[BEGINS], y->border[ENDS]},
                    .joined = x->border[ENDS],
                    .kind = CHAIN,
                    .part = {a, b},
                    .n_parts = 2});
}

static void join_stack(gr_joins *j, uint32_t a, uint32_t b)
{
    const joint *x = &j->joints[a], *y = &j->joints[b];
    join(j, (joint){.size = x->size + y->size,
                    .border = {x->border[BEGINS], x->border[ENDS]},
                    .kind = STACK,
                    .part = {a, b},
                    .n_parts = 2});
}

static void join_wheel(gr_joins *j, const uint32_t part[PARTS])
{
    const joint *l = &j->joints[part[LEFT]], *b = &j->joints[part[BOTTOM]], *r = &j->joints[part[RIGHT]];
    joint x = {.size = l->size + b->size,
               .border = {l->border[BEGINS], r->border[ENDS]},
               .kind = WHEEL,
               .n_parts = PARTS};
    memcpy(x.part, part, sizeof(x.part));
    join(j, x);
}

/* ---- what goes together -------------------------------------------------------------------------------- */

static const list *roots_at(const gr_joins *j, uint32_t at, int side)
{
    return &j->borders[at].roots[side];
}

static uint32_t count_of_size(gr_joins *j, const list *l, uint64_t size)
{
    uint32_t n = 0;
    j->looked += l->n;
    for (uint32_t i = 0; i < l->n; i++) n += j->joints[l->of[i]].size == size;
    return n;
}

/* A guess that was made here before is not always made again. */
static bool doubts(gr_joins *j, uint32_t at)
{
    return at == j->doubted && draw(j, 3) == 0;
}

static bool try_chain(gr_joins *j, uint32_t at, bool sure)
{
    const list *from = roots_at(j, at, ENDS), *to = roots_at(j, at, BEGINS);
    for (uint32_t i = 0; i < from->n; i++) {
        const uint64_t size = j->joints[from->of[i]].size;
        const uint32_t heirs = count_of_size(j, to, size);
        if (!heirs || (sure && (heirs > 1 || count_of_size(j, from, size) > 1)) || doubts(j, at)) continue;
        uint32_t which = heirs > 1 ? draw(j, heirs) : 0;
        for (uint32_t k = 0; k < to->n; k++) {
            if (j->joints[to->of[k]].size != size || which--) continue;
            join_chain(j, from->of[i], to->of[k]);
            return true;
        }
    }
    return false;
}

/* Whether something that ends where x begins, or begins where it ends, is as large. */
static bool has_match(gr_joins *j, const joint *x, uint64_t size)
{
    return count_of_size(j, roots_at(j, x->border[BEGINS], ENDS), size) ||
           count_of_size(j, roots_at(j, x->border[ENDS], BEGINS), size);
}

static bool try_stack(gr_joins *j, uint32_t at, bool fitting)
{
    for (int side = BEGINS; side < SIDES; side++) {
        const list *l = roots_at(j, at, side);
        for (uint32_t i = 0; i < l->n; i++)
            for (uint32_t k = i + 1; k < l->n; k++) {
                const joint *x = &j->joints[l->of[i]], *y = &j->joints[l->of[k]];
                j->looked++;
                if (x->border[!side] != y->border[!side]) continue;
                if (fitting && !has_match(j, x, x->size + y->size)) continue;
                if (doubts(j, at)) continue;
                join_stack(j, l->of[i], l->of[k]);
                return true;
            }
    }
    return false;
}

/* Left, which ends where the middle begins, and top, which begins there. */
static bool try_sides(gr_joins *j, uint32_t part[PARTS])
{
    const joint *c = &j->joints[part[MIDDLE]], *b = &j->joints[part[BOTTOM]], *r = &j->joints[part[RIGHT]];
    const list *lefts = roots_at(j, c->border[BEGINS], ENDS), *tops = roots_at(j, c->border[BEGINS], BEGINS);
    j->looked += lefts->n;
    for (uint32_t i = 0; i < lefts->n; i++) {
        const joint *l = &j->joints[lefts->of[i]];
        if (l->border[BEGINS] != b->border[BEGINS]) continue;
        j->looked += tops->n;
        for (uint32_t k = 0; k < tops->n; k++) {
            const joint *t = &j->joints[tops->of[k]];
            if (t->border[ENDS] != r->border[ENDS] || l->size != t->size + c->size) continue;
            part[LEFT] = lefts->of[i];
            part[TOP] = tops->of[k];
            join_wheel(j, part);
            return true;
        }
    }
    return false;
}

static bool try_middle(gr_joins *j, uint32_t middle)
{
    uint32_t part[PARTS] = {[MIDDLE] = middle};
    const joint *c = &j->joints[middle];
    const list *bottoms = roots_at(j, c->border[ENDS], ENDS), *rights = roots_at(j, c->border[ENDS], BEGINS);
    for (uint32_t i = 0; i < bottoms->n; i++) {
        j->looked += rights->n;
        for (uint32_t k = 0; k < rights->n; k++) {
            const joint *b = &j->joints[bottoms->of[i]], *r = &j->joints[rights->of[k]];
            if (b->border[BEGINS] >= c->border[BEGINS] || r->size != b->size + c->size) continue;
            part[BOTTOM] = bottoms->of[i];
            part[RIGHT] = rights->of[k];
            if (try_sides(j, part)) return true;
        }
    }
    return false;
}

static bool try_wheel(gr_joins *j, uint32_t at)
{
    for (int side = BEGINS; side < SIDES; side++) {
        const list *l = roots_at(j, at, side);
        for (uint32_t i = 0; i < l->n; i++)
            if (try_middle(j, l->of[i])) return true;
    }
    return false;
}

static bool try_level(gr_joins *j, uint32_t at, int level)
{
    switch (level) {
    case SURE:
        return try_chain(j, at, true);
    case FITTING:
        return try_stack(j, at, true);
    case WHEELS:
        return try_wheel(j, at);
    case ANY:
        return try_chain(j, at, false);
    default:
        return try_stack(j, at, false);
    }
}

/* The most certain first, until nothing goes together. */
static void join_all(gr_joins *j)
{
    for (int level = SURE; level < LEVELS;) {
        list *q = &j->queue[level];
        if (!q->n) {
            level++;
            continue;
        }
        const uint32_t at = q->of[--q->n];
        border *b = &j->borders[at];
        if (!b->waits || b->level != level) continue;
        if (try_level(j, at, level)) {
            list_add(q, at); /* there may be more */
            level = SURE;
        } else if (level + 1 < LEVELS) {
            b->level = (uint8_t)(level + 1);
            list_add(&j->queue[level + 1], at);
        } else {
            b->waits = false;
        }
    }
}

/* ---- another try --------------------------------------------------------------------------------------- */

static void undo(gr_joins *j, uint32_t id)
{
    list_add(&j->log, id | TAKEN);
    take_apart(j, id);
}

/* Everything that it is part of, and it. */
static void undo_all_above(gr_joins *j, uint32_t id)
{
    while (!j->joints[id].dead) {
        uint32_t top = id;
        while (j->joints[top].up != NONE) top = j->joints[top].up;
        undo(j, top);
    }
}

/* Bytes of nobody need not be the same ones before and behind a border. */
static void cut_gap(gr_joins *j, uint32_t id, uint32_t at)
{
    const uint64_t size = j->joints[id].size;
    const uint32_t before = new_item(j, size, j->joints[id].border[BEGINS], at, NONE);
    const uint32_t behind = new_item(j, size, at, j->joints[id].border[ENDS], NONE);
    joint *x = &j->joints[id];
    x->kind = CHAIN;
    x->part[0] = before;
    x->part[1] = behind;
    x->n_parts = 2;
    x->joined = at;
    undo(j, id);
}

static void cut_gaps(gr_joins *j, uint32_t at)
{
    for (int drawn = 0; drawn < 4; drawn++) {
        const uint32_t id = draw(j, j->n);
        const joint *x = &j->joints[id];
        if (x->dead || x->up != NONE || x->kind != NOBODY) continue;
        if (x->border[BEGINS] < at && at < x->border[ENDS]) cut_gap(j, id, at);
    }
}

static void undo_roots(gr_joins *j, uint32_t at)
{
    for (int side = BEGINS; side < SIDES; side++) {
        list *l = &j->borders[at].roots[side];
        for (uint32_t i = l->n; i-- > 0;) {
            if (i >= l->n) continue;
            const uint32_t id = l->of[i];
            if (j->joints[id].n_parts && draw(j, 3)) undo(j, id);
        }
    }
}

static void undo_chains(gr_joins *j, uint32_t at)
{
    list *l = &j->borders[at].chains;
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        const joint *x = &j->joints[l->of[i]];
        if (!x->dead && x->kind == CHAIN && x->joined == at) l->of[n++] = l->of[i];
    }
    l->n = n;
    for (uint32_t i = 0; i < n; i++)
        if (!j->joints[l->of[i]].dead && draw(j, 2)) undo_all_above(j, l->of[i]);
}

static void keep(gr_joins *j)
{
    for (uint32_t i = 0; i < j->log.n; i++) {
        const uint32_t id = j->log.of[i] & ~TAKEN;
        joint *x = &j->joints[id];
        if (x->dead && x->n_parts) {
            x->n_parts = 0; /* once, though it is in the log twice */
            list_add(&j->unused, id);
        }
    }
    j->log.n = 0;
}

static void take_back(gr_joins *j)
{
    const uint32_t n = j->log.n;
    for (uint32_t i = n; i-- > 0;) {
        const uint32_t x = j->log.of[i];
        if (x & TAKEN)
            put_together(j, x & ~TAKEN);
        else
            take_apart(j, x);
    }
    keep(j);
    list *woken = &j->queue[SURE]; /* nothing more goes together than before */
    while (woken->n) j->borders[woken->of[--woken->n]].waits = false;
}

/* A border where something is left: of a root drawn. */
static uint32_t pick_border(gr_joins *j)
{
    for (;;) {
        const uint32_t id = draw(j, j->n);
        const joint *x = &j->joints[id];
        if (x->dead || x->up != NONE) continue;
        const uint32_t at = x->border[draw(j, 2)];
        if (at && at + 1 < j->n_borders) return at;
    }
}

/* Whether fewer are left. */
static bool try_again(gr_joins *j)
{
    const uint32_t before = j->n_roots, at = pick_border(j);
    undo_chains(j, at);
    undo_roots(j, at);
    cut_gaps(j, at);
    j->doubted = at;
    join_all(j);
    j->doubted = NONE;
    if (j->n_roots > before)
        take_back(j);
    else
        keep(j);
    return j->n_roots < before;
}

/* ---- from items to what is left ------------------------------------------------------------------------ */

/* Free bytes grow at a section, or, negative, shrink. */
typedef struct change {
    int64_t by;
    uint32_t at, other; /* that takes all of it back, or NONE */
} change;

/* What grows by as much as it shrinks by later, the latest first, is one gap. */
static void pair_changes(change *c, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = i; c[i].by < 0 && k-- > 0;) {
            if (c[k].by + c[i].by || c[k].other != NONE) continue;
            c[i].other = k;
            c[k].other = i;
            break;
        }
}

/* So many bytes of one gap are not free any more. */
static void close_gap(gr_joins *j, change *gap, int64_t *by, uint32_t at)
{
    const int64_t part = GR_MIN(gap->by, -*by);
    if (part > 0) add_root(j, new_item(j, (uint64_t)part, gap->at, at, NONE));
    gap->by -= part;
    *by += part;
}

/* Each shrinking takes its own gap, else the latest that are nobody's, else the latest. */
static void close_gaps(gr_joins *j, change *c, uint32_t i)
{
    int64_t left = c[i].by;
    if (c[i].other != NONE) close_gap(j, &c[c[i].other], &left, c[i].at);
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t k = i; left < 0 && k-- > 0;)
            if (c[k].by > 0 && (pass || c[k].other == NONE)) close_gap(j, &c[k], &left, c[i].at);
}

/* Items of nobody where fewer bytes live than at most. */
static void fill_gaps(gr_joins *j, const uint64_t *live, uint32_t n_sections)
{
    uint64_t most = 0, free_now = 0;
    for (uint32_t k = 0; k < n_sections; k++) most = GR_MAX(most, live[k]);
    change *c = gr_malloc((n_sections + (size_t)1) * sizeof(*c));
    uint32_t n = 0;
    for (uint32_t k = 0; k <= n_sections; k++) {
        const uint64_t now = k < n_sections ? most - live[k] : 0;
        if (now != free_now) c[n++] = (change){(int64_t)(now - free_now), k, NONE};
        free_now = now;
    }
    pair_changes(c, n);
    for (uint32_t i = 0; i < n; i++)
        if (c[i].by < 0) close_gaps(j, c, i);
    free(c);
}

static void add_items(gr_joins *j, const gr_pack_item *items, size_t n, uint32_t n_steps)
{
    uint32_t *section[SIDES];
    for (int side = BEGINS; side < SIDES; side++)
        section[side] = gr_malloc(((size_t)n_steps + 1) * sizeof(*section[side]));
    const uint32_t n_sections = gr_pack_sections(section, items, n, n_steps);
    uint64_t *live = gr_calloc((size_t)n_sections + 1, sizeof(*live));
    j->n_borders = n_sections + 1;
    j->borders = gr_calloc(j->n_borders, sizeof(*j->borders));
    for (size_t i = 0; i < n; i++) {
        const uint32_t lo = section[BEGINS][items[i].first], hi = section[ENDS][items[i].last + 1];
        live[lo] += items[i].bytes; /* modulo 2^64: differences */
        live[hi + 1] -= items[i].bytes;
        add_root(j, new_item(j, items[i].bytes, lo, hi + 1, (uint32_t)i));
    }
    for (uint32_t k = 1; k < n_sections; k++) live[k] += live[k - 1];
    fill_gaps(j, live, n_sections);
    for (int side = BEGINS; side < SIDES; side++) free(section[side]);
    free(live);
}

static bool is_left(const joint *x)
{
    return !x->dead && x->up == NONE && !x->empty;
}

static void list_left(gr_joins *j)
{
    j->left = gr_malloc((j->n_roots + (size_t)1) * sizeof(*j->left));
    j->left_of = gr_malloc((j->n_roots + (size_t)1) * sizeof(*j->left_of));
    for (uint32_t i = 0; i < j->n; i++) {
        const joint *x = &j->joints[i];
        if (!is_left(x)) continue;
        j->left_of[j->n_left] = i;
        j->left[j->n_left++] = (gr_pack_item){x->size, x->border[BEGINS], x->border[ENDS] - 1, 0};
    }
}

gr_joins *gr_joins_new(const gr_pack_item *items, size_t n, uint32_t n_steps, uint64_t work)
{
    enum { PATIENCE = 100000 }; /* tries after the last that helped; none where little was joined */
    gr_joins *j = gr_calloc(1, sizeof(*j));
    j->doubted = NONE;
    add_items(j, items, n, n_steps);
    join_all(j);
    keep(j);
    uint32_t in_vain = j->n_roots > n - n / 5 ? PATIENCE : 0;
    while (j->n_roots > 1 && j->looked < work && in_vain < PATIENCE) in_vain = try_again(j) ? 0 : in_vain + 1;
    list_left(j);
    return j;
}

gr_pack_item *gr_joins_left(gr_joins *j, size_t *n_left, uint32_t *steps)
{
    *n_left = j->n_left;
    *steps = j->n_borders - 1;
    return j->left;
}

static void place(const gr_joins *j, uint32_t id, uint64_t at, gr_pack_item *items)
{
    const joint *x = &j->joints[id];
    const uint64_t above = x->kind == STACK ? j->joints[x->part[0]].size : 0;
    switch ((kind)x->kind) {
    case ITEM:
        items[x->part[0]].offset = at;
        return;
    case NOBODY:
        return;
    case CHAIN:
    case STACK:
        place(j, x->part[0], at, items);
        place(j, x->part[1], at + above, items);
        return;
    case WHEEL:
        place(j, x->part[BOTTOM], at, items);
        place(j, x->part[RIGHT], at, items);
        place(j, x->part[LEFT], at + j->joints[x->part[BOTTOM]].size, items);
        place(j, x->part[MIDDLE], at + j->joints[x->part[BOTTOM]].size, items);
        place(j, x->part[TOP], at + j->joints[x->part[RIGHT]].size, items);
        return;
    }
}

void gr_joins_place(const gr_joins *j, gr_pack_item *items)
{
    for (size_t i = 0; i < j->n_left; i++) place(j, j->left_of[i], j->left[i].offset, items);
}

void gr_joins_free(gr_joins *j)
{
    for (uint32_t t = 0; t < j->n_borders; t++) {
        for (int side = BEGINS; side < SIDES; side++) free(j->borders[t].roots[side].of);
        free(j->borders[t].chains.of);
    }
    for (int level = SURE; level < LEVELS; level++) free(j->queue[level].of);
    free(j->borders);
    free(j->joints);
    free(j->unused.of);
    free(j->log.of);
    free(j->left);
    free(j->left_of);
    free(j);
}
