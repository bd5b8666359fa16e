/* ops/parallel/balance.c: which sequences each rank takes, so that all have about the same work. */
#include "ops/parallel/balance.h"

#include "ops/base/session.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define UNIT      1024 /* see gr_seq_cost: sums stay below 2^64 for millions of the longest sequences */
#define TOLERANCE 256  /* of the mean, above which sequences move */
#define MOVES     32   /* a rank, at most: each takes what is too much about in half */

gr_seq_cost gr_seq_cost_of(const gr_model_shape *s, bool last)
{
    uint64_t outputs = s->head == GR_HEAD_VALUE ? 1 : s->vocab;
    return (gr_seq_cost){.token = 2 * gr_model_token_macs(s),
                         .pair = gr_model_pair_macs(s),
                         .row = 2ull * s->hidden * outputs,
                         .last = last};
}

gr_balance_bounds gr_balance_bounds_of(uint32_t own, uint32_t all, uint32_t length, uint32_t ranks)
{
    uint64_t most = ranks < 2 ? own : GR_MIN(2ull * own, (uint64_t)all);
    return (gr_balance_bounds){(uint32_t)most, (uint64_t)own * length};
}

/* A sequence, or all of a group. */
typedef struct item {
    uint64_t work, tokens;
    uint32_t first, n; /* sequences, counted from the first that is assigned */
} item;

typedef struct load {
    uint64_t work, tokens;
    uint32_t n;   /* sequences */
    item **items; /* [n] least work first, while sequences move */
} load;

struct gr_balancer {
    item *seqs, *groups; /* [n + 1], [cap + 1] */
    uint32_t n, cap, ranks;
    load *loads;           /* [ranks] */
    item **room;           /* [ranks, b.seqs] of their items */
    uint32_t *rank, *list; /* [cap + 1] an assignment that is tried; the one whose own list is asked */
    gr_balance_bounds b;
};

static item seq_item(const gr_rows *r, uint32_t seq, uint32_t at, const gr_seq_cost *c)
{
    uint64_t n = (uint64_t)r->prompt_len[seq] + r->response_len[seq];
    uint64_t rows = c->last ? 1 : r->response_len[seq];
    return (item){(n * (c->token + n * c->pair) + rows * c->row) / UNIT + 1, n, at, 1};
}

static void put(gr_balancer *d, uint32_t rank, const item *it)
{
    load *l = &d->loads[rank];
    l->work += it->work;
    l->tokens += it->tokens;
    l->n += it->n;
}

static uint64_t most_work(const gr_balancer *d)
{
    uint64_t most = 0;
    for (uint32_t r = 0; r < d->ranks; r++) most = GR_MAX(most, d->loads[r].work);
    return most;
}

static void clear(gr_balancer *d)
{
    memset(d->loads, 0, d->ranks * sizeof(*d->loads));
}

/* ---- whole groups --------------------------------------------------------------------------------------
 */

static void balance_in_order(gr_balancer *d, const gr_rows *r, uint32_t from, uint32_t to, uint32_t *rank)
{
    uint32_t first = gr_rows_balance(r, from, to, 0, 1).seq;
    for (uint32_t k = 0; k < d->ranks; k++) {
        gr_rows_part own = gr_rows_balance(r, from, to, k, d->ranks);
        for (uint32_t i = own.seq - first; i < own.seq_end - first; i++) {
            rank[i] = k;
            put(d, k, &d->seqs[i]);
        }
    }
}

static int most_first(const void *a, const void *b)
{
    const item *x = a, *y = b;
    if (x->work != y->work) return x->work < y->work ? 1 : -1;
    return (x->first > y->first) - (x->first < y->first);
}

static uint32_t find_groups(const gr_balancer *d, const gr_rows *r, uint32_t first, item *groups)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n; i++) {
        if (!i || r->group[first + i] != r->group[first + i - 1]) groups[n++] = (item){.first = i};
        groups[n - 1].work += d->seqs[i].work;
        groups[n - 1].tokens += d->seqs[i].tokens;
        groups[n - 1].n++;
    }
    qsort(groups, n, sizeof(*groups), most_first);
    return n;
}

static bool fits(const gr_balancer *d, uint64_t n, uint64_t tokens)
{
    return n <= d->b.seqs && tokens <= d->b.tokens;
}

/* false: bounds leave no place for one of them. */
static bool balance_groups(gr_balancer *d, const item *groups, uint32_t n, uint32_t *rank)
{
    for (uint32_t g = 0; g < n; g++) {
        uint32_t to = d->ranks;
        for (uint32_t k = 0; k < d->ranks; k++) {
            const load *l = &d->loads[k];
            bool room = fits(d, (uint64_t)l->n + groups[g].n, l->tokens + groups[g].tokens);
            if (room && (to == d->ranks || l->work < d->loads[to].work)) to = k;
        }
        if (to == d->ranks) return false;
        put(d, to, &groups[g]);
        for (uint32_t i = 0; i < groups[g].n; i++) rank[groups[g].first + i] = to;
    }
    return true;
}

/* ---- single sequences ----------------------------------------------------------------------------------
 */

static int least_first(const void *a, const void *b)
{
    return most_first(*(item *const *)b, *(item *const *)a);
}

static void list_items(gr_balancer *d, const uint32_t *rank)
{
    for (uint32_t k = 0; k < d->ranks; k++) {
        d->loads[k].items = d->room + (size_t)k * d->b.seqs;
        d->loads[k].n = 0;
    }
    for (uint32_t i = 0; i < d->n; i++) {
        load *l = &d->loads[rank[i]];
        l->items[l->n++] = &d->seqs[i];
    }
    for (uint32_t k = 0; k < d->ranks; k++)
        qsort(d->loads[k].items, d->loads[k].n, sizeof(*d->loads[k].items), least_first);
}

/* Sequence i of one rank goes to another, which gives j for it (its n: none). */
typedef struct move {
    uint32_t i, j;
    uint64_t left; /* how far the two are from equal then; the gap between them: there is none */
} move;

static void try_move(const gr_balancer *d, const load *a, const load *b, uint32_t i, uint32_t j, move *best)
{
    const item none = {0}, *out = a->items[i], *in = j < b->n ? b->items[j] : &none;
    uint64_t gap = a->work - b->work;
    if (out->work <= in->work) return;
    uint64_t twice = 2 * (out->work - in->work), left = twice > gap ? twice - gap : gap - twice;
    if (left >= best->left ||
        !fits(d, (uint64_t)b->n + out->n - in->n, b->tokens + out->tokens - in->tokens) ||
        a->tokens - out->tokens + in->tokens > d->b.tokens)
        return;
    *best = (move){i, j, left};
}

/* Of two ranks, that which leaves them nearest to each other: for each of a's sequences the two of b's whose
 * work differs from its by about half of the gap. Both lists rise, so one walk finds them. */
static move best_move(const gr_balancer *d, const load *a, const load *b)
{
    uint64_t gap = a->work - b->work;
    move best = {.left = gap};
    for (uint32_t i = 0, j = 0; i < a->n; i++) {
        try_move(d, a, b, i, b->n, &best);
        while (j < b->n && 2 * b->items[j]->work + gap < 2 * a->items[i]->work) j++;
        if (j < b->n) try_move(d, a, b, i, j, &best);
        if (j) try_move(d, a, b, i, j - 1, &best);
    }
    return best;
}

static void take_out(load *l, uint32_t at)
{
    const item *it = l->items[at];
    l->work -= it->work;
    l->tokens -= it->tokens;
    memmove(l->items + at, l->items + at + 1, (--l->n - at) * sizeof(*l->items));
}

static void put_in(load *l, item *it)
{
    uint32_t at = l->n++;
    l->work += it->work;
    l->tokens += it->tokens;
    for (; at && least_first(&l->items[at - 1], &it) > 0; at--) l->items[at] = l->items[at - 1];
    l->items[at] = it;
}

static void make_move(load *a, load *b, const move *m)
{
    item *out = a->items[m->i], *in = m->j < b->n ? b->items[m->j] : NULL;
    take_out(a, m->i);
    if (in) take_out(b, m->j);
    put_in(b, out);
    if (in) put_in(a, in);
}

/* The rank that comes after *at by its work, then by its number, the one that has most left out; *at is none
 * of them: the first. false: there is none. */
static bool next_least(const gr_balancer *d, uint32_t most, uint32_t *at)
{
    const load *before = *at < d->ranks ? &d->loads[*at] : NULL;
    uint32_t found = d->ranks;
    for (uint32_t k = 0; k < d->ranks; k++) {
        const load *l = &d->loads[k];
        bool behind = !before || l->work > before->work || (l->work == before->work && k > *at);
        if (k != most && behind && (found == d->ranks || l->work < d->loads[found].work)) found = k;
    }
    *at = found;
    return found < d->ranks;
}

static uint32_t fullest(const gr_balancer *d)
{
    uint32_t most = 0;
    for (uint32_t k = 1; k < d->ranks; k++)
        if (d->loads[k].work > d->loads[most].work) most = k;
    return most;
}

static bool relieve(gr_balancer *d, uint32_t most)
{
    for (uint32_t to = d->ranks; next_least(d, most, &to);) {
        load *a = &d->loads[most], *b = &d->loads[to];
        move m = best_move(d, a, b);
        if (m.left == a->work - b->work) continue;
        make_move(a, b, &m);
        return true;
    }
    return false;
}

static void even_out(gr_balancer *d, uint32_t *rank, uint64_t all)
{
    uint64_t mean = all / d->ranks, enough = mean + mean / TOLERANCE;
    list_items(d, rank);
    for (uint64_t moves = (uint64_t)MOVES * d->ranks; moves; moves--) {
        uint32_t most = fullest(d);
        if (d->loads[most].work <= enough || !relieve(d, most)) break;
    }
    for (uint32_t k = 0; k < d->ranks; k++)
        for (uint32_t i = 0; i < d->loads[k].n; i++) rank[d->loads[k].items[i]->first] = k;
}

/* ---- the assignment ------------------------------------------------------------------------------------ */

gr_balancer *gr_balancer_new(uint32_t seqs, uint32_t ranks, const gr_balance_bounds *b)
{
    gr_balancer *d = gr_calloc(1, sizeof(*d));
    *d = (gr_balancer){.cap = seqs, .ranks = ranks, .b = *b};
    d->seqs = gr_calloc(seqs + 1ull, sizeof(*d->seqs));
    d->groups = gr_calloc(seqs + 1ull, sizeof(*d->groups));
    d->loads = gr_calloc(ranks, sizeof(*d->loads));
    d->room = gr_calloc((size_t)ranks * b->seqs, sizeof(*d->room));
    d->rank = gr_calloc(seqs + 1ull, sizeof(*d->rank));
    d->list = gr_calloc(seqs + 1ull, sizeof(*d->list));
    return d;
}

void gr_balancer_free(gr_balancer *d)
{
    if (!d) return;
    free(d->seqs);
    free(d->groups);
    free(d->loads);
    free(d->room);
    free(d->rank);
    free(d->list);
    free(d);
}

/* Whole groups to whom has least, then single sequences: into d->rank. */
static void deal_by_work(gr_balancer *d, const gr_rows *r, uint32_t from, uint32_t to, uint64_t all,
                         bool whole)
{
    const uint32_t first = gr_rows_balance(r, from, to, 0, 1).seq;
    clear(d);
    if (!balance_groups(d, d->groups, find_groups(d, r, first, d->groups), d->rank)) {
        clear(d);
        balance_in_order(d, r, from, to, d->rank);
    }
    if (!whole) even_out(d, d->rank, all);
}

gr_dealt gr_balance(gr_balancer *d, uint32_t *rank, const gr_rows *r, uint32_t from, uint32_t to,
                    const gr_seq_cost *cost)
{
    const gr_rows_part all = gr_rows_balance(r, from, to, 0, 1);
    gr_dealt done = {0};
    d->n = all.seq_end - all.seq;
    assert(d->n <= d->cap);
    for (uint32_t i = 0; i < d->n; i++) {
        d->seqs[i] = seq_item(r, all.seq + i, i, cost);
        done.all += d->seqs[i].work;
    }
    clear(d);
    balance_in_order(d, r, from, to, rank);
    done.most = done.most_before = most_work(d);
    deal_by_work(d, r, from, to, done.all, cost->whole);
    if (most_work(d) < done.most) {
        done.most = most_work(d);
        memcpy(rank, d->rank, d->n * sizeof(*rank));
    }
    return done;
}

gr_dealt gr_balance_own(gr_balancer *d, gr_seqs *own, uint32_t rank, const gr_rows *r, uint32_t from,
                        uint32_t to, const gr_seq_cost *cost)
{
    const gr_rows_part all = gr_rows_balance(r, from, to, 0, 1);
    uint32_t n = 0;
    gr_seqs_range(own, all.seq, all.seq_end);
    if (d->ranks < 2) return (gr_dealt){0};
    const gr_dealt done = gr_balance(d, d->list, r, from, to, cost);
    for (uint32_t i = 0; i < own->n; i++)
        if (d->list[i] == rank) own->seq[n++] = all.seq + i;
    own->n = n;
    return done;
}
