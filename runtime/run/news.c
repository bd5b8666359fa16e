/* runtime/run/news.c: what classes of ranks tell each other between iterations. */
#include "runtime/run/news.h"

#include <stdlib.h>
#include <string.h>

typedef struct voice { /* of a class */
    gr_record **said;  /* what gr_news_next has not returned yet */
    size_t n, cap;
    uint64_t total; /* of them, and of those before */
} voice;

struct gr_news {
    const gr_graph *g;
    gr_comm *world, *own;
    uint32_t classes;
    voice *voice;    /* [classes] */
    gr_record *all;  /* what gr_news_next has returned last */
    gr_record **now; /* [classes] */
};

static size_t n_nodes(const gr_news *n)
{
    return n->g->n_nodes + 2;
}

gr_news *gr_news_new(const gr_graph *g, gr_comm *world, gr_comm *own)
{
    gr_news *n = gr_calloc(1, sizeof(*n));
    *n = (gr_news){.g = g, .world = world, .own = own, .classes = (uint32_t)GR_MAX(g->n_classes, 1u)};
    n->voice = gr_calloc(n->classes, sizeof(*n->voice));
    n->now = gr_calloc(n->classes, sizeof(gr_record *));
    return n;
}

static void forget(gr_news *n)
{
    gr_record_free(n->all);
    n->all = NULL;
    for (uint32_t c = 0; c < n->classes; c++) {
        gr_record_free(n->now[c]);
        n->now[c] = NULL;
    }
}

void gr_news_free(gr_news *n)
{
    if (!n) return;
    forget(n);
    for (uint32_t c = 0; c < n->classes; c++) {
        for (size_t i = 0; i < n->voice[c].n; i++) gr_record_free(n->voice[c].said[i]);
        free(n->voice[c].said);
    }
    free(n->voice);
    free(n->now);
    free(n);
}

static void add(voice *v, gr_record *r)
{
    GR_PUSH(v->said, v->n, v->cap, r);
    v->total++;
}

static gr_record *take_first(voice *v)
{
    gr_record *r = v->said[0];
    memmove(v->said, v->said + 1, --v->n * sizeof(gr_record *));
    return r;
}

/* What ranks of a class have measured each for itself: the longest, and the most. */
static gr_status put_together(gr_news *n, gr_record *r, gr_diag *d)
{
    gr_comm *c = n->own;
    uint64_t asked = r->asked_to_stop;
    gr_status st = gr_comm_agree(c, &r->peak_bytes, d);
    if (!st) st = gr_comm_agree(c, &asked, d);
    r->asked_to_stop = asked;
    if (st || !c) return st;
    return c->type->host_reduce(c, r->node_ns, r->n_nodes * sizeof(*r->node_ns), GR_COMM_MAX_U64, d);
}

static uint32_t first_rank(const gr_news *n, uint32_t class)
{
    return n->g->classes[class].ranks[0];
}

gr_status gr_news_tell(gr_news *n, gr_record *r, gr_diag *d)
{
    add(&n->voice[n->g->view], r);
    gr_status st = put_together(n, r, d);
    if (st || n->classes < 2 || gr_comm_rank(n->own)) return st;
    gr_str letter = {0};
    gr_record_pack(r, &letter);
    for (uint32_t c = 0; c < n->classes && !st; c++)
        if (c != n->g->view)
            st = n->world->type->post(n->world, letter.text, letter.len, first_rank(n, c), d);
    gr_str_release(&letter);
    return st;
}

/* From the first rank of the class to its others. */
static gr_status hand_on(gr_news *n, void **letter, uint64_t *bytes, gr_diag *d)
{
    gr_comm *c = n->own;
    if (gr_comm_ranks(c) < 2) return GR_OK;
    gr_status st = c->type->broadcast(c, bytes, sizeof(*bytes), d);
    if (!st && c->rank) *letter = gr_malloc(*bytes + 1);
    return st ? st : c->type->broadcast(c, *letter, *bytes, d);
}

static gr_status hear_one(gr_news *n, uint32_t class, gr_diag *d)
{
    void *letter = NULL;
    uint64_t bytes = 0;
    gr_record *r = NULL;
    gr_status st = GR_OK;
    if (!gr_comm_rank(n->own))
        st = n->world->type->collect(n->world, &letter, &bytes, first_rank(n, class), d);
    if (!st) st = hand_on(n, &letter, &bytes, d);
    if (!st) st = gr_record_unpack(&r, letter, bytes, n_nodes(n), d);
    if (!st) add(&n->voice[class], r);
    free(letter);
    return st;
}

gr_status gr_news_hear(gr_news *n, bool last, gr_diag *d)
{
    uint64_t told = n->voice[n->g->view].total, upto = last || !told ? told : told - 1;
    gr_status st = GR_OK;
    for (uint32_t c = 0; c < n->classes; c++)
        while (!st && n->voice[c].total < upto) st = hear_one(n, c, d);
    return st;
}

bool gr_news_next(gr_news *n, gr_heard *out)
{
    for (uint32_t c = 0; c < n->classes; c++)
        if (!n->voice[c].n) return false;
    forget(n);
    n->all = gr_record_new(n_nodes(n));
    for (uint32_t c = 0; c < n->classes; c++) {
        n->now[c] = take_first(&n->voice[c]);
        gr_record_merge(n->all, n->now[c]);
    }
    n->all->step = n->now[0]->step;
    n->all->ns = n->now[0]->ns; /* rank 0's */
    *out = (gr_heard){n->all, (const gr_record *const *)n->now};
    return true;
}
