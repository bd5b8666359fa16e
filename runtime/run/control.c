/* runtime/run/control.c: what roles of ranks tell each other between iterations. */
#include "runtime/run/control.h"

#include <stdlib.h>
#include <string.h>

typedef struct voice { /* of a role */
    gr_record **said;  /* what gr_control_next has not returned yet */
    size_t n, cap;
    uint64_t total; /* of them, and of those before */
} voice;

struct gr_control {
    const gr_graph *g;
    gr_comm *world, *own;
    uint32_t roles;
    voice *voice;    /* [roles] */
    gr_record *all;  /* what gr_control_next has returned last */
    gr_record **now; /* [roles] */
};

static size_t n_nodes(const gr_control *n)
{
    return n->g->n_nodes + 2;
}

gr_control *gr_control_new(const gr_graph *g, gr_comm *world, gr_comm *own)
{
    gr_control *n = gr_calloc(1, sizeof(*n));
    *n = (gr_control){.g = g, .world = world, .own = own, .roles = (uint32_t)GR_MAX(g->n_roles, 1u)};
    n->voice = gr_calloc(n->roles, sizeof(*n->voice));
    n->now = gr_calloc(n->roles, sizeof(gr_record *));
    return n;
}

static void forget(gr_control *n)
{
    gr_record_free(n->all);
    n->all = NULL;
    for (uint32_t c = 0; c < n->roles; c++) {
        gr_record_free(n->now[c]);
        n->now[c] = NULL;
    }
}

void gr_control_free(gr_control *n)
{
    if (!n) return;
    forget(n);
    for (uint32_t c = 0; c < n->roles; c++) {
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

/* What ranks of a role have measured each for itself: the longest, and the most. */
static gr_status put_together(gr_control *n, gr_record *r, gr_diag *d)
{
    gr_comm *c = n->own;
    uint64_t asked = r->asked_to_stop;
    gr_status st = gr_comm_agree(c, &r->peak_bytes, d);
    if (!st) st = gr_comm_agree(c, &asked, d);
    r->asked_to_stop = asked;
    if (st || !c) return st;
    return c->type->host_reduce(c, r->node_ns, r->n_nodes * sizeof(*r->node_ns), GR_COMM_MAX_U64, d);
}

static uint32_t first_rank(const gr_control *n, uint32_t role)
{
    return n->g->roles[role].ranks[0];
}

gr_status gr_control_tell(gr_control *n, gr_record *r, gr_diag *d)
{
    add(&n->voice[n->g->view], r);
    gr_status st = put_together(n, r, d);
    if (st || n->roles < 2 || gr_comm_rank(n->own)) return st;
    gr_str message = {0};
    gr_record_pack(r, &message);
    for (uint32_t c = 0; c < n->roles && !st; c++)
        if (c != n->g->view)
            st = n->world->type->post(n->world, message.text, message.len, first_rank(n, c), d);
    gr_str_release(&message);
    return st;
}

/* From the first rank of the role to its others. */
static gr_status hand_on(gr_control *n, void **message, uint64_t *bytes, gr_diag *d)
{
    gr_comm *c = n->own;
    if (gr_comm_ranks(c) < 2) return GR_OK;
    gr_status st = c->type->broadcast(c, bytes, sizeof(*bytes), d);
    if (!st && c->rank) *message = gr_malloc(*bytes + 1);
    return st ? st : c->type->broadcast(c, *message, *bytes, d);
}

static gr_status hear_one(gr_control *n, uint32_t role, gr_diag *d)
{
    void *message = NULL;
    uint64_t bytes = 0;
    gr_record *r = NULL;
    gr_status st = GR_OK;
    if (!gr_comm_rank(n->own))
        st = n->world->type->collect(n->world, &message, &bytes, first_rank(n, role), d);
    if (!st) st = hand_on(n, &message, &bytes, d);
    if (!st) st = gr_record_unpack(&r, message, bytes, n_nodes(n), d);
    if (!st) add(&n->voice[role], r);
    free(message);
    return st;
}

gr_status gr_control_hear(gr_control *n, bool last, gr_diag *d)
{
    uint64_t told = n->voice[n->g->view].total, upto = last || !told ? told : told - 1;
    gr_status st = GR_OK;
    for (uint32_t c = 0; c < n->roles; c++)
        while (!st && n->voice[c].total < upto) st = hear_one(n, c, d);
    return st;
}

bool gr_control_next(gr_control *n, gr_heard *out)
{
    for (uint32_t c = 0; c < n->roles; c++)
        if (!n->voice[c].n) return false;
    forget(n);
    n->all = gr_record_new(n_nodes(n));
    for (uint32_t c = 0; c < n->roles; c++) {
        n->now[c] = take_first(&n->voice[c]);
        gr_record_merge(n->all, n->now[c]);
    }
    n->all->step = n->now[0]->step;
    n->all->ns = n->now[0]->ns; /* rank 0's */
    *out = (gr_heard){n->all, (const gr_record *const *)n->now};
    return true;
}
