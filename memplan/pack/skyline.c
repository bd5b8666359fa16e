/* memplan/pack/skyline.c: the skyline's lowest run, filled by the cheapest chain of items, again and again.
 */
#include "memplan/pack/skyline.h"

#include <stdlib.h>
#include <string.h>

#include "memplan/pack/sections.h"

#define NONE UINT32_MAX /* of what comes next in a row: its right wall */
#define GAP  (UINT32_MAX - 1)
#define FAR  UINT64_MAX

/* Costs. Of a thing that lies high, and of a section that wastes much, what a try adds; the next try counts
 * all that was added before by 98 in 100. */
enum { OF_PIECE = 300, OF_SIZE = 13, OF_STEP = 300, OF_GAP = 3000, OF_CHANCE = 100, ADDED = 300 };
enum { KEPT = 98, FULL = 100 }; /* a gap costs twice as much where it reaches a hundredth above the bound */

typedef struct piece {
    uint32_t lo, hi; /* sections, both inclusive */
    uint64_t size, at;
    uint32_t place;      /* in rows.starting */
    uint32_t next;       /* in a row that begins with it: the piece after it, GAP or NONE */
    int64_t cost, row;   /* its own; of the cheapest row that begins with it */
    int64_t large, high; /* parts of its own: of its size; of the tries in which it lay high */
} piece;

/* The row from here to the right wall, and whether it begins with a piece or a GAP. */
typedef struct section {
    uint32_t first, n_open; /* of those that start here: in rows.starting, not placed ones first */
    uint32_t cover;         /* pieces over it that are not placed */
    uint32_t head;
    int64_t row, wasted;
    uint64_t live, total; /* bytes; and those left free below something */
    /* Of the section where a run starts: its floor and end. Of the one where it ends: its start. */
    uint64_t floor;
    uint32_t end, start;
} section;

typedef struct rows {
    piece *pieces;
    section *sections; /* n_sections and one */
    uint32_t *starting;
    uint32_t n, n_sections, left, tries;
    uint64_t bound, height, looked;
} rows;

/* The run that is filled. */
typedef struct niche {
    uint32_t l, r;
    uint64_t floor, left, right; /* and the floors beside it, FAR at the ends of time */
    uint64_t least;              /* size of what would fit */
} niche;

/* ---- the skyline --------------------------------------------------------------------------------------- */

/* Part a to b of a run that starts at l gets another floor. */
static void set_floor(rows *w, uint32_t l, uint32_t a, uint32_t b, uint64_t to)
{
    section *s = w->sections;
    const uint64_t before = s[l].floor;
    const uint32_t r = s[l].end;
    if (a > l) {
        s[l].end = a - 1;
        s[a - 1].start = l;
    }
    if (b < r) {
        s[b + 1].floor = before;
        s[b + 1].end = r;
        s[r].start = b + 1;
    }
    if (a > 0 && s[s[a - 1].start].floor == to) a = s[a - 1].start;
    if (b + 1 < w->n_sections && s[b + 1].floor == to) b = s[b + 1].end;
    s[a].floor = to;
    s[a].end = b;
    s[b].start = a;
}

static niche lowest_niche(rows *w)
{
    const section *s = w->sections;
    uint32_t l = 0;
    for (uint32_t k = 0; k < w->n_sections; k = s[k].end + 1) {
        w->looked++;
        if (s[k].floor < s[l].floor) l = k;
    }
    const uint32_t r = s[l].end;
    return (niche){.l = l,
                   .r = r,
                   .floor = s[l].floor,
                   .left = l ? s[s[l - 1].start].floor : FAR,
                   .right = r + 1 < w->n_sections ? s[r + 1].floor : FAR,
                   .least = FAR};
}

static void put(rows *w, uint32_t i, uint64_t at)
{
    piece *p = &w->pieces[i];
    section *s = &w->sections[p->lo];
    const uint32_t last = s->first + --s->n_open, other = w->starting[last];
    w->starting[last] = i;
    w->starting[p->place] = other;
    w->pieces[other].place = p->place;
    p->place = last;
    p->at = at;
    for (uint32_t k = p->lo; k <= p->hi; k++) w->sections[k].cover--;
    w->looked += p->hi - p->lo + 1;
    w->height = GR_MAX(w->height, at + p->size);
    w->left--;
}

/* ---- a row --------------------------------------------------------------------------------------------- */

/* Of the pieces that could come after this one: one of its size, where the row is not dearer for it. */
static void link_on(rows *w, const niche *x, piece *p)
{
    const section *s = &w->sections[p->hi + 1];
    p->next = s->head;
    p->row = s->row + OF_STEP;
    if (s->head == GAP) return;
    w->looked += s->n_open;
    for (uint32_t k = s->first; k < s->first + s->n_open; k++) {
        const piece *q = &w->pieces[w->starting[k]];
        if (q->hi > x->r || q->size != p->size || q->row >= p->row) continue;
        p->row = q->row;
        p->next = w->starting[k];
    }
}

static void price(rows *w, niche *x, piece *p)
{
    x->least = GR_MIN(x->least, p->size);
    if (p->hi == x->r) {
        p->next = NONE;
        p->row = x->right == FAR || x->floor + p->size == x->right ? 0 : OF_STEP;
    } else {
        link_on(w, x, p);
    }
    p->row += p->cost;
}

static int64_t price_of_gap(const rows *w, const niche *x, const section *s)
{
    if (!s->cover) return 0;
    const uint64_t wall = GR_MIN(x->left, x->right), top = s->total + (wall == FAR ? 0 : wall - x->floor);
    const double above = ((double)top - (double)w->bound) / (double)w->bound;
    return (int64_t)(OF_GAP * (1 + above * FULL)) + s->wasted;
}

/* The cheapest rows from each section to the right wall. */
static void price_rows(rows *w, niche *x)
{
    w->sections[x->r + 1].row = 0;
    for (uint32_t b = x->r + 1; b-- > x->l;) {
        section *s = &w->sections[b];
        s->head = GAP;
        s->row = w->sections[b + 1].row + price_of_gap(w, x, s);
        w->looked += s->n_open + 1;
        for (uint32_t k = s->first; k < s->first + s->n_open; k++) {
            piece *p = &w->pieces[w->starting[k]];
            if (p->hi > x->r) continue;
            price(w, x, p);
            const bool steps = b == x->l && x->left != FAR && x->floor + p->size != x->left;
            const int64_t row = p->row + (steps ? OF_STEP : 0);
            if (row >= s->row) continue;
            s->row = row;
            s->head = w->starting[k];
        }
    }
}

/* Nothing lies on the floor from b on; what would is held up by a wall or by the least that fits beside it.
 * What is covered by nothing any more stays free. Returns the section behind. */
static uint32_t leave_gap(rows *w, const niche *x, uint32_t b)
{
    section *s = w->sections;
    uint32_t e = b;
    uint64_t to = GR_MIN(x->left, x->right);
    bool done = true;
    for (; e <= x->r && s[e].head == GAP; e++) done = done && !s[e].cover;
    if (x->least != FAR) to = GR_MIN(to, x->floor + x->least);
    if (done) to = FAR;
    for (uint32_t k = b; k < e && !done; k++)
        if (s[k].cover) s[k].total += to - x->floor;
    set_floor(w, b, b, e - 1, to);
    return e;
}

static void fill(rows *w, const niche *x)
{
    uint32_t i = w->sections[x->l].head;
    for (uint32_t b = x->l; b <= x->r;) {
        if (i == GAP) {
            b = leave_gap(w, x, b);
            if (b <= x->r) i = w->sections[b].head;
            continue;
        }
        const piece *p = &w->pieces[i];
        put(w, i, x->floor);
        set_floor(w, b, b, p->hi, x->floor + p->size);
        b = p->hi + 1;
        i = p->next;
    }
}

/* ---- a try --------------------------------------------------------------------------------------------- */

static void start(rows *w)
{
    for (uint32_t i = 0; i < w->n; i++) {
        piece *p = &w->pieces[i];
        uint32_t random[4] = {0};
        if (w->tries) gr_philox(29, w->tries, (const uint32_t[]){i, 0, 0, 0}, random);
        p->cost = OF_PIECE - p->high + (int64_t)((double)gr_uniform(random[0]) * OF_CHANCE);
        if (w->tries % 2 == 0) p->cost -= p->large; /* which helps is not known before */
        for (uint32_t k = p->lo; k <= p->hi; k++) w->sections[k].cover++;
        w->looked += p->hi - p->lo + 1;
    }
    for (uint32_t k = 0; k < w->n_sections; k++) {
        section *s = &w->sections[k];
        s->n_open = s[1].first - s->first;
        s->total = s->live;
    }
    w->sections[0].floor = 0;
    w->sections[0].end = w->n_sections - 1;
    w->sections[w->n_sections - 1].start = 0;
    w->left = w->n;
    w->height = 0;
}

/* What lay in the upper half of what is too much was hard to place. */
static void learn(rows *w)
{
    const uint64_t limit = w->bound + (w->height - w->bound) / 2;
    for (uint32_t i = 0; i < w->n; i++) {
        piece *p = &w->pieces[i];
        p->high = p->high * KEPT / 100 + (p->at + p->size > limit ? ADDED : 0);
    }
    for (uint32_t k = 0; k < w->n_sections; k++) {
        section *s = &w->sections[k];
        s->wasted = s->wasted * KEPT / 100 + (s->total > limit ? ADDED * (OF_GAP / 1000) : 0);
    }
    w->tries++;
}

/* Whether all were placed within the work. */
static bool try_rows(rows *w, uint64_t work)
{
    start(w);
    while (w->left && w->looked < work) {
        niche x = lowest_niche(w);
        price_rows(w, &x);
        fill(w, &x);
    }
    return !w->left;
}

/* ---- from items to pieces ------------------------------------------------------------------------------ */

/* Sixteen times the logarithm to the base of 2, with lines between its whole values. */
static int64_t log_of(uint64_t x)
{
    const int whole = 63 - __builtin_clzll(x);
    return 16 * whole + (int64_t)((double)(x - (UINT64_C(1) << whole)) / (double)(UINT64_C(1) << whole) * 16);
}

static void list_starting(rows *w)
{
    for (uint32_t i = 0; i < w->n; i++) w->sections[w->pieces[i].lo + 1].first++;
    for (uint32_t k = 0; k < w->n_sections; k++) w->sections[k + 1].first += w->sections[k].first;
    for (uint32_t i = 0; i < w->n; i++) {
        section *s = &w->sections[w->pieces[i].lo];
        w->pieces[i].place = s->first + s->n_open++;
        w->starting[w->pieces[i].place] = i;
    }
}

static void rows_init(rows *w, const gr_pack_item *items, size_t n, uint32_t n_steps)
{
    uint32_t *section_of[SIDES];
    for (int side = BEGINS; side < SIDES; side++)
        section_of[side] = gr_malloc(((size_t)n_steps + 1) * sizeof(*section_of[side]));
    *w = (rows){.n = (uint32_t)n, .bound = gr_pack_bound(items, n, n_steps)};
    w->n_sections = gr_pack_sections(section_of, items, n, n_steps);
    w->pieces = gr_calloc(n + 1, sizeof(*w->pieces));
    w->starting = gr_malloc((n + 1) * sizeof(*w->starting));
    w->sections = gr_calloc((size_t)w->n_sections + 2, sizeof(*w->sections));
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += items[i].bytes;
    for (size_t i = 0; i < n; i++) {
        piece *p = &w->pieces[i];
        *p = (piece){.lo = section_of[BEGINS][items[i].first],
                     .hi = section_of[ENDS][items[i].last + 1],
                     .size = items[i].bytes,
                     .large = OF_SIZE * (log_of(items[i].bytes) - log_of(GR_MAX(sum / n, 1)))};
        w->sections[p->lo].live += p->size; /* modulo 2^64: differences */
        w->sections[p->hi + 1].live -= p->size;
    }
    for (uint32_t k = 1; k < w->n_sections; k++) w->sections[k].live += w->sections[k - 1].live;
    list_starting(w);
    for (int side = BEGINS; side < SIDES; side++) free(section_of[side]);
}

uint64_t gr_pack_skyline(gr_pack_item *items, size_t n, uint32_t n_steps, uint64_t height, uint64_t enough,
                         uint64_t work)
{
    if (!n) return height;
    enum { LEAST_TRIES = 8 };
    enum { PATIENCE = 50, AT_FIRST = 10 }; /* tries after the last that helped; before any has */
    rows w;
    rows_init(&w, items, n, n_steps);
    uint32_t in_vain = PATIENCE - AT_FIRST;
    while (height > GR_MAX(enough, w.bound) && in_vain < PATIENCE &&
           try_rows(&w, GR_MIN(work, w.looked + work / LEAST_TRIES))) {
        learn(&w);
        in_vain++;
        if (w.height >= height) continue;
        height = w.height;
        in_vain = 0;
        for (size_t i = 0; i < n; i++) items[i].offset = w.pieces[i].at;
    }
    free(w.pieces);
    free(w.sections);
    free(w.starting);
    return height;
}
