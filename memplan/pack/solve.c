/* memplan/pack/solve.c: the exact packer: search over orders with lower bounds, cut off by a count of nodes.
 */
#include "memplan/pack/solve.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- the problem --------------------------------------------------------------------------------------- */

typedef int64_t length; /* in units of what divides all sizes */
#define FAR INT64_MAX

/* Items in the order of their first sections; those that wrap are only floors. */
typedef struct problem {
    uint32_t n, n_sections, n_wraps;
    struct open {
        uint32_t lo, hi; /* sections, both inclusive */
        uint32_t id;     /* the caller's number */
        bool twin;       /* of the item before: the same in all but the number */
        length size;
    } * item;
    uint32_t *first_at; /* of section: the first item that begins there or later */
    length *floor;      /* of section: the height of what wraps */
    uint64_t unit;
} problem;

typedef struct event {
    uint64_t time; /* twice the step, and one more for a start: ends come first */
    uint32_t piece;
} event;

static int by_time(const void *a, const void *b)
{
    const event *x = a, *y = b;
    if (x->time != y->time) return x->time < y->time ? -1 : 1;
    return x->piece < y->piece ? -1 : x->piece > y->piece;
}

static int by_section(const void *a, const void *b)
{
    const struct open *x = a, *y = b;
    if (x->lo != y->lo) return x->lo < y->lo ? -1 : 1;
    if (x->hi != y->hi) return x->hi < y->hi ? -1 : 1;
    if (x->size != y->size) return x->size < y->size ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static bool are_twins(const struct open *x, const struct open *y)
{
    return x->lo == y->lo && x->hi == y->hi && x->size == y->size;
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* A section begins where a start follows an end. Pieces are lives that do not wrap; those that do have a
 * second piece, from step 0, after all others. */
static void cut_time(problem *p, struct open *piece, const gr_pack_item *items, uint32_t n, uint32_t n_steps)
{
    event *e = gr_malloc((4 * (size_t)n + 1) * sizeof(*e));
    size_t n_events = 0;
    uint32_t second = n;
    for (uint32_t i = 0; i < n; i++) {
        const gr_pack_item *it = &items[i];
        bool wraps = it->last < it->first;
        e[n_events++] = (event){2 * (uint64_t)it->first + 1, i};
        e[n_events++] = (event){2 * (wraps ? n_steps : it->last + UINT64_C(1)), i};
        if (!wraps) continue;
        e[n_events++] = (event){1, second};
        e[n_events++] = (event){2 * (it->last + UINT64_C(1)), second++};
    }
    qsort(e, n_events, sizeof(*e), by_time);
    bool ended = false;
    for (size_t i = 0; i < n_events; i++) {
        bool starts = e[i].time & 1;
        p->n_sections += starts && ended;
        if (starts)
            piece[e[i].piece].lo = p->n_sections;
        else
            piece[e[i].piece].hi = p->n_sections;
        ended = !starts;
    }
    p->n_sections++;
    free(e);
}

static void add_floor(problem *p, const struct open *piece, length to)
{
    for (uint32_t s = piece->lo; s <= piece->hi; s++) p->floor[s] = to;
}

static void problem_init(problem *p, gr_pack_item *items, uint32_t n, uint32_t n_steps)
{
    *p = (problem){0};
    p->item = gr_malloc((2 * (size_t)n + 1) * sizeof(*p->item));
    cut_time(p, p->item, items, n, n_steps);
    p->floor = gr_calloc(p->n_sections, sizeof(*p->floor));
    p->first_at = gr_calloc(p->n_sections + 1, sizeof(*p->first_at));
    for (uint32_t i = 0; i < n; i++) p->unit = common_divisor(p->unit, items[i].bytes);
    uint64_t wrapped = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct open it = p->item[i];
        if (items[i].last < items[i].first) {
            items[i].offset = wrapped;
            wrapped += items[i].bytes;
            add_floor(p, &it, (length)(wrapped / p->unit));
            add_floor(p, &p->item[n + p->n_wraps++], (length)(wrapped / p->unit));
            continue;
        }
        it.id = i;
        it.size = (length)(items[i].bytes / p->unit);
        p->item[p->n++] = it;
        p->first_at[it.lo + 1]++;
    }
    for (uint32_t s = 0; s < p->n_sections; s++) p->first_at[s + 1] += p->first_at[s];
    qsort(p->item, p->n, sizeof(*p->item), by_section);
    for (uint32_t i = 0; i < p->n; i++) p->item[i].twin = i && are_twins(&p->item[i - 1], &p->item[i]);
}

static void problem_release(problem *p)
{
    free(p->item);
    free(p->floor);
    free(p->first_at);
}

/* ---- the state of a search ----------------------------------------------------------------------------- */

#define NONE UINT32_MAX

typedef struct section {
    length floor;   /* nothing more is placed below */
    length top;     /* of what is placed; the floor may be higher */
    length rest;    /* sum of the open items */
    uint32_t cross; /* open items in this section and in the next */
} section;

/* Found anew at each node, for its sections. */
typedef struct niche {
    uint32_t l, r;      /* the run of equal floor around; r NONE: it is no niche */
    int32_t candidates; /* that cover the section; while counted: more than cover the section before */
    length wall, least; /* at l: the lower wall; the smallest candidate */
} niche;

typedef struct part { /* sections a to b, which share no open item with others */
    uint32_t a, b;
    uint32_t parent; /* the frame that cut it off, or NONE */
    uint32_t next;   /* in the list of parts to do */
} part;

typedef struct undo {
    uint32_t at;
    section was;
} undo;

typedef struct option {
    double appeal; /* the greatest is tried first */
    uint32_t item;
} option;

/* What lies on the floor of this section? */
typedef struct frame {
    uint32_t a, b, parent; /* of its part */
    uint32_t at;
    uint32_t option, n_options; /* next of and end in search.options */
    uint32_t placed;            /* item, or NONE */
    length raise;               /* last option: nothing, and the floor goes up to this; 0: cannot be */
    uint32_t n_undo, n_parts, todo;
} frame;

/* Of sections: the one with the fewest options, then the least slack; the other way round; the fewest
 * options, then the lowest floor. */
enum { FEWEST_SLACK, SLACK_FEWEST, FEWEST_LOW };
enum { BY_HEIGHT, BY_SPAN, BY_AREA, BY_NARROW };

typedef enum outcome { OPEN, FOUND, REFUTED } outcome;

typedef struct search {
    const problem *p;
    length capacity;
    int pick;
    section *sections;
    niche *niches;
    double *rank; /* of items, see appeal */
    length *at;   /* of items: where they lie */
    bool *placed;
    frame *frames;
    undo *undos;
    part *parts;
    option *options;
    uint32_t n_frames, cap_frames, n_undo, cap_undo, n_parts, cap_parts, n_options, cap_options;
    uint32_t todo; /* the first part to do, or NONE */
    uint64_t nodes;
    outcome outcome;
} search;

static void remember(search *s, uint32_t at)
{
    undo u = {at, s->sections[at]};
    GR_PUSH(s->undos, s->n_undo, s->cap_undo, u);
}

static bool raise_floor(search *s, uint32_t at, length to)
{
    remember(s, at);
    s->sections[at].floor = to;
    return to + s->sections[at].rest <= s->capacity;
}

static bool put(search *s, uint32_t i, length at)
{
    const struct open *it = &s->p->item[i];
    length top = at + it->size;
    bool fits = true;
    s->at[i] = at;
    s->placed[i] = true;
    for (uint32_t k = it->lo; k <= it->hi; k++) {
        section *x = &s->sections[k];
        remember(s, k);
        x->floor = x->top = top;
        x->rest -= it->size;
        x->cross -= k < it->hi;
        fits = fits && top + x->rest <= s->capacity;
    }
    return fits;
}

/* Back to before the top frame's last option. */
static void take_back(search *s, frame *f)
{
    if (f->placed != NONE) s->placed[f->placed] = false;
    f->placed = NONE;
    while (s->n_undo > f->n_undo) {
        const undo *u = &s->undos[--s->n_undo];
        s->sections[u->at] = u->was;
    }
    s->n_parts = f->n_parts;
    s->todo = f->todo;
    s->n_options = f->n_options;
}

static void add_parts(search *s, uint32_t a, uint32_t b, uint32_t parent)
{
    for (uint32_t end; a <= b; a = end + 1) {
        end = a;
        if (!s->sections[a].rest) continue;
        while (end < b && s->sections[end].cross) end++;
        part q = {a, end, parent, s->todo};
        s->todo = s->n_parts;
        GR_PUSH(s->parts, s->n_parts, s->cap_parts, q);
    }
}

/* ---- a node -------------------------------------------------------------------------------------------- */

/* Whether an item that begins in a niche may lie on its floor; of twins the first is first. */
static bool is_candidate(const search *s, uint32_t i, uint32_t r)
{
    const struct open *it = &s->p->item[i];
    return !s->placed[i] && it->hi <= r && (!it->twin || s->placed[i - 1]);
}

static void find_niches(search *s, uint32_t a, uint32_t b)
{
    for (uint32_t l = a, r; l <= b; l = r + 1) {
        length h = s->sections[l].floor;
        for (r = l; r < b && s->sections[r + 1].floor == h;) r++;
        length left = l == a ? FAR : s->sections[l - 1].floor;
        length right = r == b ? FAR : s->sections[r + 1].floor;
        bool low = left > h && right > h;
        for (uint32_t k = l; k <= r; k++) s->niches[k] = (niche){l, low ? r : NONE, 0, 0, 0};
        s->niches[l].wall = GR_MIN(left, right);
    }
}

static void count_in_niche(search *s, uint32_t l, uint32_t r)
{
    const problem *p = s->p;
    length least = FAR;
    for (uint32_t i = p->first_at[l]; i < p->first_at[r + 1]; i++) {
        if (!is_candidate(s, i, r)) continue;
        const struct open *it = &p->item[i];
        s->niches[it->lo].candidates++;
        s->niches[it->hi + 1].candidates--;
        least = GR_MIN(least, it->size);
    }
    s->niches[l].least = least;
}

static void count_candidates(search *s, uint32_t a, uint32_t b)
{
    s->niches[b + 1].candidates = 0;
    for (uint32_t k = a; k <= b; k++) {
        const uint32_t r = s->niches[k].r;
        if (r == NONE) continue;
        count_in_niche(s, k, r);
        k = r;
    }
    for (uint32_t k = a + 1; k <= b; k++) s->niches[k].candidates += s->niches[k - 1].candidates;
}

/* What no candidate covers is closed from a wall at the earliest. Returns whether a floor went up. */
static bool raise_bare(search *s, uint32_t a, uint32_t b, bool *fits)
{
    bool any = false;
    for (uint32_t k = a; k <= b && *fits; k++) {
        if (s->niches[k].r == NONE || s->niches[k].candidates) continue;
        length wall = s->niches[s->niches[k].l].wall;
        *fits = wall != FAR && raise_floor(s, k, wall);
        any = true;
    }
    return any;
}

static uint32_t pick_section(const search *s, uint32_t a, uint32_t b)
{
    uint32_t best = NONE;
    length best_first = FAR, best_second = FAR;
    for (uint32_t k = a; k <= b; k++) {
        const niche *x = &s->niches[k];
        if (x->r == NONE) continue;
        length floor = s->sections[k].floor, slack = s->capacity - floor - s->sections[k].rest;
        length gap = GR_MIN(s->niches[x->l].wall - floor, s->niches[x->l].least);
        length options = x->candidates + (slack >= gap);
        length first = s->pick == SLACK_FEWEST ? slack : options;
        length second = s->pick == SLACK_FEWEST ? options : s->pick == FEWEST_LOW ? floor : slack;
        if (first > best_first || (first == best_first && second >= best_second)) continue;
        best = k;
        best_first = first;
        best_second = second;
    }
    return best;
}

/* An item is tried sooner where it stands at a wall, and more so where it ends flush with the wall's top. */
static double appeal(const search *s, const frame *f, uint32_t i)
{
    const double beside = 1.3, flush = 2.5;
    const struct open *it = &s->p->item[i];
    const niche *at = &s->niches[f->at];
    length top = s->sections[f->at].floor + it->size;
    double v = s->rank[i];
    if (it->lo == at->l && at->l > f->a) v *= s->sections[at->l - 1].floor == top ? beside * flush : beside;
    if (it->hi == at->r && at->r < f->b) v *= s->sections[at->r + 1].floor == top ? beside * flush : beside;
    return v;
}

static void add_option(search *s, const frame *f, uint32_t i)
{
    option o = {appeal(s, f, i), i};
    GR_PUSH(s->options, s->n_options, s->cap_options, o);
    for (uint32_t k = s->n_options - 1; k > f->option && s->options[k - 1].appeal < o.appeal; k--) {
        s->options[k] = s->options[k - 1];
        s->options[k - 1] = o;
    }
}

/* The answers for section f->at. If nothing lies there, an item above is held up by a wall, or by one that
 * lies in the niche beside the section. */
static void list_options(search *s, frame *f)
{
    const problem *p = s->p;
    uint32_t l = s->niches[f->at].l, r = s->niches[f->at].r;
    length floor = s->sections[f->at].floor, beside = FAR;
    f->option = s->n_options;
    for (uint32_t i = p->first_at[l]; i < p->first_at[r + 1]; i++) {
        if (!is_candidate(s, i, r)) continue;
        if (p->item[i].lo <= f->at && f->at <= p->item[i].hi)
            add_option(s, f, i);
        else
            beside = GR_MIN(beside, floor + p->item[i].size);
    }
    f->n_options = s->n_options;
    f->raise = GR_MIN(beside, s->niches[l].wall);
    if (f->raise == FAR || f->raise + s->sections[f->at].rest > s->capacity) f->raise = 0;
}

/* Make the frame of the next part to do; false if there is no way on. */
static bool enter(search *s)
{
    const part *q = &s->parts[s->todo];
    frame f = {.a = q->a, .b = q->b, .parent = q->parent, .placed = NONE};
    s->todo = q->next;
    bool fits = true;
    do {
        find_niches(s, f.a, f.b);
        count_candidates(s, f.a, f.b);
    } while (raise_bare(s, f.a, f.b, &fits) && fits);
    if (!fits) return false;
    f.at = pick_section(s, f.a, f.b);
    list_options(s, &f);
    f.n_undo = s->n_undo;
    f.n_parts = s->n_parts;
    f.todo = s->todo;
    GR_PUSH(s->frames, s->n_frames, s->cap_frames, f);
    return true;
}

/* Does an open item fit below the floors around a section? */
static bool could_drop(const search *s, uint32_t a, uint32_t at)
{
    const problem *p = s->p;
    for (uint32_t i = p->first_at[a]; i < p->first_at[at + 1]; i++) {
        const struct open *it = &p->item[i];
        if (s->placed[i] || it->hi < at) continue;
        length top = s->sections[at].top, floor = s->sections[at].floor; /* that of most that do not */
        for (uint32_t k = it->lo; k <= it->hi && top + it->size <= floor; k++) {
            top = GR_MAX(top, s->sections[k].top);
            floor = GR_MIN(floor, s->sections[k].floor);
        }
        if (top + it->size <= floor) return true;
    }
    return false;
}

static bool try_option(search *s, frame *f)
{
    s->nodes++;
    if (f->option < f->n_options) {
        uint32_t i = s->options[f->option++].item;
        f->placed = i;
        return put(s, i, s->sections[f->at].floor);
    }
    length to = f->raise;
    f->raise = 0;
    return raise_floor(s, f->at, to) && !could_drop(s, f->a, f->at);
}

/* ---- the search ---------------------------------------------------------------------------------------- */

/* Go on with the next option of the top frame that is not refused at once, or of one further down. */
static void advance(search *s, uint32_t top)
{
    for (;;) {
        while (s->n_frames && s->n_frames - 1 != top) take_back(s, &s->frames[--s->n_frames]);
        if (top == NONE) {
            s->outcome = REFUTED;
            return;
        }
        frame *f = &s->frames[top];
        take_back(s, f);
        if (f->option == f->n_options && !f->raise) {
            top = f->parent;
        } else if (try_option(s, f)) {
            add_parts(s, f->a, f->b, top);
            return;
        }
    }
}

static void search_run(search *s, uint64_t nodes)
{
    uint64_t end = s->nodes + nodes;
    while (!s->outcome && s->nodes < end) {
        if (s->todo == NONE) {
            s->outcome = FOUND;
            return;
        }
        uint32_t parent = s->parts[s->todo].parent;
        advance(s, enter(s) ? s->n_frames - 1 : parent);
    }
}

static void search_init(search *s, const problem *p)
{
    *s = (search){.p = p};
    s->sections = gr_malloc(p->n_sections * sizeof(*s->sections));
    s->niches = gr_malloc((p->n_sections + 1) * sizeof(*s->niches));
    s->rank = gr_malloc((p->n + 1) * sizeof(*s->rank));
    s->at = gr_malloc((p->n + 1) * sizeof(*s->at));
    s->placed = gr_malloc((p->n + 1) * sizeof(*s->placed));
}

static void search_release(search *s)
{
    free(s->sections);
    free(s->niches);
    free(s->rank);
    free(s->at);
    free(s->placed);
    free(s->frames);
    free(s->undos);
    free(s->parts);
    free(s->options);
}

static double weigh(const struct open *it, int order)
{
    double height = (double)it->size, width = it->hi - it->lo + 1;
    switch (order) {
    case BY_HEIGHT:
        return height + width * 1e-3;
    case BY_SPAN:
        return width * width * height;
    case BY_AREA:
        return width * height;
    default:
        return 1 / width;
    }
}

/* To the start, with the orders of a given try; the first of each are not random. */
static void search_reset(search *s, length capacity, uint32_t round)
{
    static const struct {
        uint8_t order, pick;
    } ways[] = {
        {BY_HEIGHT, SLACK_FEWEST}, {BY_SPAN, FEWEST_SLACK},   {BY_NARROW, FEWEST_SLACK},
        {BY_AREA, FEWEST_SLACK},   {BY_NARROW, SLACK_FEWEST}, {BY_HEIGHT, FEWEST_SLACK},
        {BY_AREA, FEWEST_LOW},     {BY_AREA, FEWEST_SLACK},
    };
    const problem *p = s->p;
    uint32_t way = round % GR_LEN(ways), shuffle = round / GR_LEN(ways);
    s->capacity = capacity;
    s->pick = ways[way].pick;
    s->n_frames = s->n_undo = s->n_parts = s->n_options = 0;
    s->todo = NONE;
    s->outcome = OPEN;
    for (uint32_t k = 0; k < p->n_sections; k++)
        s->sections[k] = (section){.floor = p->floor[k], .top = p->floor[k]};
    for (uint32_t i = 0; i < p->n; i++) {
        const struct open *it = &p->item[i];
        s->placed[i] = false;
        for (uint32_t k = it->lo; k <= it->hi; k++) {
            s->sections[k].rest += it->size;
            s->sections[k].cross += k < it->hi;
        }
    }
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t random[4] = {0};
        if (shuffle) gr_philox(shuffle + 1000003, way, (const uint32_t[]){i, 0, 0, 0}, random);
        s->rank[i] =
            weigh(&p->item[i], ways[way].order) * (shuffle ? 0.5 + (double)gr_uniform(random[0]) : 1);
    }
    for (uint32_t k = 0; k < p->n_sections; k++)
        if (s->sections[k].floor + s->sections[k].rest > capacity) s->outcome = REFUTED;
    add_parts(s, 0, p->n_sections - 1, NONE);
}

/* 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 ...; i from 1. */
static uint64_t luby(uint32_t i)
{
    for (;;) {
        uint64_t k = 1;
        while (2 * k - 1 < i) k *= 2;
        if (2 * k - 1 == i) return k;
        i -= (uint32_t)(k - 1);
    }
}

/* ---- heights ------------------------------------------------------------------------------------------- */

typedef struct ladder {
    gr_pack_item *items;
    problem p;
    search s;
    length low, high;            /* no packing is below low; one of height high is known, if below FAR */
    uint32_t rounds[2];          /* tries at the lowest capacity that would do; at higher ones */
    uint32_t sixteenths, failed; /* how high those are, between low and high; tries in vain since */
} ladder;

static void keep(ladder *l)
{
    const problem *p = &l->p;
    l->high = 0;
    for (uint32_t k = 0; k < p->n_sections; k++) l->high = GR_MAX(l->high, p->floor[k]);
    for (uint32_t i = 0; i < p->n; i++) {
        l->items[p->item[i].id].offset = (uint64_t)l->s.at[i] * p->unit;
        l->high = GR_MAX(l->high, l->s.at[i] + p->item[i].size);
    }
}

static outcome try_capacity(ladder *l, length capacity, uint32_t round, uint64_t nodes)
{
    enum { SHORTEST = 200 }; /* beyond the one way down */
    search_reset(&l->s, capacity, round);
    search_run(&l->s, GR_MIN(l->p.n + SHORTEST * luby(round + 1), nodes));
    if (l->s.outcome == FOUND) keep(l);
    if (l->s.outcome == REFUTED) l->low = GR_MAX(l->low, capacity + 1);
    return l->s.outcome;
}

/* A capacity above the lowest: further up after each few failures, down again after a success. */
static void try_higher(ladder *l, uint64_t nodes)
{
    enum { PATIENCE = 8 };
    length gap = l->high - l->low, up = gap / 16 * l->sixteenths + gap % 16 * l->sixteenths / 16;
    outcome o = try_capacity(l, GR_MIN(l->low + GR_MAX(up, 1), l->high - 1), l->rounds[1]++, nodes);
    if (o == FOUND) {
        l->sixteenths = GR_MAX(l->sixteenths / 2, 1);
    } else if (++l->failed % PATIENCE == 0) {
        l->sixteenths = GR_MIN(l->sixteenths * 2, 16);
    }
}

static void climb(ladder *l, length enough, uint64_t nodes)
{
    for (uint32_t turn = 0; l->s.nodes < nodes; turn++) {
        length aim = GR_MAX(l->low, enough);
        if (l->high <= aim) return;
        uint64_t left = nodes - l->s.nodes;
        bool known = l->high < FAR;
        if (turn % 2 && known && aim == l->low && l->high - l->low > 1)
            try_higher(l, left);
        else
            try_capacity(l, aim, l->rounds[0]++, left);
    }
}

gr_solution gr_solve(gr_pack_item *items, size_t n, uint32_t n_steps, uint64_t height, uint64_t enough,
                     uint64_t nodes)
{
    gr_solution found = {.height = height, .bound = gr_pack_bound(items, n, n_steps)};
    if (!n || found.bound >= height) return found;
    assert(n < UINT32_MAX / 4 && found.bound <= INT64_MAX);
    ladder l = {.items = items, .sixteenths = 2, .high = FAR};
    problem_init(&l.p, items, (uint32_t)n, n_steps);
    search_init(&l.s, &l.p);
    length unit = (length)l.p.unit, known = FAR;
    if (height < UINT64_MAX) known = l.high = (length)(height / l.p.unit);
    l.low = (length)(found.bound / l.p.unit);
    climb(&l, (length)(GR_MIN(enough, INT64_MAX) / l.p.unit), nodes);
    if (l.high < known) found.height = (uint64_t)(l.high * unit);
    if (!l.p.n_wraps) found.bound = (uint64_t)(l.low * unit);
    found.nodes = l.s.nodes;
    search_release(&l.s);
    problem_release(&l.p);
    return found;
}
