/* scheduler/search/search.c: the walk over residencies: what stays on the device, and what comes and goes.
 */
#include "scheduler/search/search.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

enum { IN_A_QUARTER = 4 }; /* parts that lie between it and the next, when they are looked at */

typedef struct explorer {
    gr_residencies *r;
    gr_transfers *transfers;
    const gr_analysis *f;
    uint32_t level;
    gr_search_most most;
    gr_room *room;
    const void *user; /* of room */
    gr_arena *arena;
    size_t begin;                      /* of this program's residencies in r */
    uint32_t *table;                   /* hash table: 1 + index from begin, 0 where empty */
    size_t n_table;                    /* a power of two */
    size_t *front, n_front, cap_front; /* those no other beats, by time */
    uint32_t stage;                    /* of how many groups all are refined */
    size_t next[2]; /* of the others, in the order they were found: none before it is left to expand; to
                       refine */
} explorer;

static bool dominates(const gr_residency *a, const gr_residency *b)
{
    return a->live <= b->live && a->host <= b->host && a->ns <= b->ns;
}

static bool same(const explorer *x, const gr_residency *a, const gr_choice *choice, uint32_t ahead)
{
    return a->ahead == ahead && !memcmp(a->choice, choice, x->f->n_groups * sizeof(*choice));
}

/* Where a residency is, or would be, in the table. */
static size_t slot_of(const explorer *x, const gr_choice *choice, uint32_t ahead)
{
    size_t at = XXH3_64bits_withSeed(choice, x->f->n_groups * sizeof(*choice), ahead) & (x->n_table - 1);
    while (x->table[at] && !same(x, &x->r->all[x->begin + x->table[at] - 1], choice, ahead))
        at = (at + 1) & (x->n_table - 1);
    return at;
}

static void join_front(explorer *x, size_t i)
{
    const gr_residency *all = x->r->all;
    size_t n = 0, at = 0;
    for (size_t k = 0; k < x->n_front; k++)
        if (dominates(&all[x->front[k]], &all[i])) return;
    for (size_t k = 0; k < x->n_front; k++)
        if (!dominates(&all[i], &all[x->front[k]])) x->front[n++] = x->front[k];
    x->n_front = n;
    GR_PUSH(x->front, x->n_front, x->cap_front, i);
    while (at < n && all[x->front[at]].ns <= all[i].ns) at++;
    memmove(&x->front[at + 1], &x->front[at], (n - at) * sizeof(*x->front));
    x->front[at] = i;
}

static uint64_t time_of(const explorer *x)
{
    return x->transfers->ns + x->transfers->validate_ns / GR_MAX(x->f->g->validate_every, 1u);
}

static bool is_enough(const explorer *x)
{
    const size_t n = x->r->n - x->begin;
    return n >= x->most.residencies || (n && x->transfers->work >= x->most.work);
}

/* Price a residency, unless it is known already, or there are enough. */
static void add(explorer *x, const gr_choice *choice, uint32_t ahead)
{
    size_t at = slot_of(x, choice, ahead), bytes = x->f->n_groups * sizeof(*choice);
    if (x->table[at] || is_enough(x)) return;
    gr_transfers_make(x->transfers, x->f, choice, ahead);
    gr_residency res = {.level = x->level,
                        .ahead = ahead,
                        .choice = gr_arena_alloc(x->arena, bytes + 1),
                        .live = x->transfers->live,
                        .host = x->transfers->host_live,
                        .ns = time_of(x),
                        .copied = x->transfers->copied,
                        .n_transitions = x->transfers->n_transitions};
    memcpy(res.choice, choice, bytes);
    gr_transfers_widen(x->transfers, x->f, choice, x->room(x->user, x->level, res.host));
    res.wide_ns = time_of(x);
    GR_PUSH(x->r->all, x->r->n, x->r->cap, res);
    x->table[at] = (uint32_t)(x->r->n - x->begin);
    join_front(x, x->r->n - 1);
}

/* What does not stay of a group is never on the device, and what uses it is done on the host lane. */
static void add_hosted(explorer *x, gr_choice *c, uint32_t g, uint32_t parts, uint32_t ahead)
{
    if (!x->f->groups[g].may_host || parts == GR_PARTS) return;
    c[g] = (gr_choice){.parts = (uint16_t)parts, .host = 1};
    add(x, c, ahead);
}

/* More or less of a group stays: a quarter, or none at all; with the same nodes streamed, none, or all. */
static void change_parts(explorer *x, gr_choice *c, uint32_t g, uint32_t ahead)
{
    const gr_choice was = c[g];
    const uint32_t all[] = {0, GR_MAX(was.parts, GR_QUARTER) - GR_QUARTER,
                            GR_MIN(was.parts + GR_QUARTER, GR_PARTS)};
    for (size_t i = 0; i < GR_LEN(all); i++) {
        const uint32_t parts = all[i];
        uint16_t few = gr_group_parts(&x->f->groups[g], parts);
        if (few == was.parts || (i == 1 && !parts)) continue;
        const uint64_t masks[] = {was.stream, 0, x->f->groups[g].nodes};
        for (size_t k = 0; k < (parts == GR_PARTS ? 1 : GR_LEN(masks)); k++) {
            c[g] = (gr_choice){.stream = parts < GR_PARTS ? masks[k] : 0, .parts = few};
            add(x, c, ahead);
        }
        add_hosted(x, c, g, few, ahead);
    }
    c[g] = was;
}

static void change_stream(explorer *x, gr_choice *c, uint32_t g, uint32_t ahead)
{
    const gr_choice was = c[g];
    uint64_t nodes = x->f->groups[g].nodes;
    if (was.parts == GR_PARTS) return;
    c[g] = (gr_choice){.stream = nodes, .parts = was.parts};
    add(x, c, ahead);
    if (!was.host) add_hosted(x, c, g, was.parts, ahead);
    for (uint32_t node = 0; node < 64 && !was.host; node++) {
        if (!(nodes >> node & 1)) continue;
        c[g] = was;
        c[g].stream = was.stream ^ 1ULL << node;
        add(x, c, ahead);
    }
    c[g] = was;
}

/* All residencies one change away. */
static void expand(explorer *x, size_t at)
{
    const gr_residency from = x->r->all[at];
    gr_choice *c = gr_malloc((x->f->n_groups + 1) * sizeof(*c));
    x->r->all[at].expanded = true;
    memcpy(c, from.choice, x->f->n_groups * sizeof(*c));
    for (uint32_t g = 0; g < x->f->n_groups; g++) {
        if (c[g].policy) continue;
        change_parts(x, c, g, from.ahead);
        change_stream(x, c, g, from.ahead);
    }
    if (from.ahead) add(x, c, from.ahead - 1);
    if (from.ahead + 1 < GR_N_AHEAD) add(x, c, from.ahead + 1);
    free(c);
}

/* The group of which most bytes come and go, but for so many; GR_NONE: there is none. */
static uint32_t most_moved(const explorer *x, const gr_choice *c, uint32_t but)
{
    uint64_t bytes[2] = {UINT64_MAX, 0}; /* of the last one found, of the best since */
    uint32_t found = GR_NONE, last = GR_NONE;
    for (uint32_t k = 0; k <= but; k++, last = found, bytes[0] = bytes[1], bytes[1] = 0) {
        found = GR_NONE;
        for (uint32_t g = 0; g < x->f->n_groups; g++) {
            uint64_t moved = x->f->groups[g].bytes / GR_PARTS * (GR_PARTS - c[g].parts);
            bool after = moved < bytes[0] || (moved == bytes[0] && last != GR_NONE && g > last);
            if (c[g].policy || !after || moved <= bytes[1]) continue;
            bytes[1] = moved;
            found = g;
        }
        if (found == GR_NONE) break;
    }
    return found;
}

/* What lies between it and a quarter more of a group: at first of that of which most comes and goes. */
static void refine(explorer *x, size_t at)
{
    const gr_residency from = x->r->all[at];
    uint32_t g = most_moved(x, from.choice, x->stage);
    x->r->all[at].refined = x->stage + 1;
    if (g == GR_NONE) return;
    gr_choice *c = gr_malloc((x->f->n_groups + 1) * sizeof(*c));
    memcpy(c, from.choice, x->f->n_groups * sizeof(*c));
    const gr_group *group = &x->f->groups[g];
    for (uint32_t k = 1; k <= IN_A_QUARTER; k++) {
        const uint32_t parts = from.choice[g].parts + k * GR_QUARTER / IN_A_QUARTER;
        if (parts >= GR_PARTS) break;
        c[g].parts = gr_group_parts(group, parts);
        add(x, c, from.ahead);
    }
    free(c);
}

static bool is_done(const explorer *x, size_t at, bool little)
{
    return little ? x->r->all[at].refined > x->stage : x->r->all[at].expanded;
}

/* The next to expand, or refine: of the front in turn the fastest, the smallest, one between; when all of it
 * is done, of the others the one found first. SIZE_MAX: none is left. */
static size_t pick(explorer *x, uint32_t turn, bool little)
{
    size_t n = 0, left = 0, i = x->next[little];
    for (size_t k = 0; k < x->n_front; k++) n += !is_done(x, x->front[k], little);
    size_t want = turn % 3 == 0 ? 0 : turn % 3 == 1 ? n - 1 : n / 2;
    for (size_t k = 0; n && k < x->n_front; k++)
        if (!is_done(x, x->front[k], little) && left++ == want) return x->front[k];
    while (i < x->r->n && is_done(x, i, little)) i++;
    x->next[little] = i;
    return i < x->r->n ? i : SIZE_MAX;
}

/* Quarters first, then what lies between them, until there are so many. */
static void search_on(explorer *x)
{
    for (uint32_t turn = 0;; turn++) {
        bool little = x->r->n - x->begin >= x->most.residencies / 2;
        size_t at = pick(x, turn, little);
        if (at == SIZE_MAX) at = pick(x, turn, little = !little);
        while (at == SIZE_MAX && x->stage + 1 < x->f->n_groups) { /* there are few: other groups, too */
            x->stage++;
            x->next[1] = x->begin;
            at = pick(x, turn, little = true);
        }
        if (at == SIZE_MAX || is_enough(x)) return;
        if (little)
            refine(x, at);
        else
            expand(x, at);
    }
}

void gr_search(gr_residencies *r, gr_transfers *transfers, const gr_analysis *f, uint32_t level,
               const gr_policy *policies, gr_search_most most, gr_room *room, const void *user,
               gr_arena *arena)
{
    explorer x = {.r = r,
                  .transfers = transfers,
                  .f = f,
                  .level = level,
                  .most = most,
                  .room = room,
                  .user = user,
                  .arena = arena};
    x.begin = x.next[0] = x.next[1] = r->n;
    x.n_table = 16;
    while (x.n_table < 2 * ((size_t)most.residencies + 1)) x.n_table *= 2;
    x.table = gr_calloc(x.n_table, sizeof(*x.table));
    gr_choice *c = gr_calloc(f->n_groups + 1, sizeof(*c));
    bool moves = false, hosts = false;
    for (uint32_t g = 0; g < f->n_groups; g++) {
        c[g] = (gr_choice){.parts = GR_PARTS, .host = policies[g] == GR_POLICY_HOST, .policy = policies[g]};
        moves |= !policies[g];
        hosts |= !policies[g] && f->groups[g].may_host;
    }
    add(&x, c, 1);
    /* nothing stays; and everything is streamed; and optimizer steps are done on the host */
    for (int extreme = 0; extreme < (hosts ? 8 : 4) && moves; extreme++) {
        for (uint32_t g = 0; g < f->n_groups; g++) {
            bool host = extreme & 4 && f->groups[g].may_host;
            if (policies[g]) continue;
            c[g] = (gr_choice){.stream = !host && extreme & 1 ? f->groups[g].nodes : 0, .host = host};
        }
        add(&x, c, extreme & 2 ? 0 : 1);
    }
    if (moves) search_on(&x);
    free(c);
    free(x.table);
    free(x.front);
}
