/* ops/parallel/cross.c: what one role of ranks sends another: columns and weights, piece by piece in rounds.
 */
#include "ops/parallel/cross.h"

#include "ops/base/op.h"
#include "ops/parallel/parts.h"
#include "ops/base/session.h"

#include <assert.h>

enum { CROSS_OBJECT }; /* operand: what is sent or received */

typedef struct transfer {
    const gr_ranks_role *from, *to;
    bool sends, weights;          /* this rank does; else a column */
    uint32_t own;                 /* its number within its role */
    char *at;                     /* of the object here */
    uint64_t n, part, elem_bytes; /* elements of the bucket, of a part; of a column bytes */
    bool sharded;                 /* weights of which this rank, a sender, has its part alone */
} transfer;

/* What sender s gives receiver r; 0 bytes: nothing. */
static uint64_t piece(const transfer *x, uint32_t s, uint32_t r, char **at)
{
    uint64_t first = GR_MIN(s * x->part, x->n), n = GR_MIN(x->part, x->n - first);
    *at = x->at;
    if (!x->weights) return r % x->from->n == s ? x->n : 0;
    if (!x->sends || !x->sharded) *at += first * x->elem_bytes;
    return n * x->elem_bytes;
}

static gr_status run_rounds(const transfer *x, gr_comm *comm, gr_queue *q, gr_diag *d)
{
    uint32_t rounds = GR_MAX(x->from->n, x->to->n);
    gr_status st = GR_OK;
    for (uint32_t t = 0; t < rounds && !st; t++) {
        uint32_t other = (x->own + (x->sends ? t : rounds - t)) % rounds;
        if (other >= (x->sends ? x->to->n : x->from->n)) continue;
        char *at;
        uint64_t bytes = x->sends ? piece(x, x->own, other, &at) : piece(x, other, x->own, &at);
        if (!bytes) continue;
        st = x->sends ? comm->type->send(comm, q, at, bytes, x->to->ranks[other], d)
                      : comm->type->recv(comm, q, at, bytes, x->from->ranks[other], d);
    }
    return st;
}

static transfer transfer_of(const gr_call *c, const gr_tasks *p, const gr_task *w, const gr_model *m)
{
    const gr_graph *g = c->session->graph;
    const gr_object *o = &p->objects[w->uses.list[CROSS_OBJECT].object];
    bool sends = w->kind == GR_STEP_SEND;
    transfer x = {.from = &g->roles[sends ? g->view : w->comm.peer],
                  .to = &g->roles[sends ? w->comm.peer : g->view],
                  .sends = sends,
                  .weights = m != NULL,
                  .own = c->session->rank,
                  .at = c->ptr[CROSS_OBJECT]};
    if (m) {
        x.n = gr_bucket_elems(gr_model_trains(m), o->bucket);
        x.part = gr_shard_elems(x.n, x.from->n);
        x.elem_bytes = gr_dtype_size(c->session->kernels->dtype);
        x.sharded = gr_placed(p, m)->weights == GR_SPREAD_FLAT;
    } else {
        x.n = w->comm.moved / x.to->n;
        x.elem_bytes = 1;
    }
    assert(x.n * x.elem_bytes <= o->bytes || x.sharded);
    return x;
}

gr_status gr_cross_run(const gr_call *c, const gr_tasks *p, const gr_task *w, const gr_model *m,
                       gr_comm *device, gr_comm *host, gr_diag *d)
{
    const transfer x = transfer_of(c, p, w, m);
    bool on_host = p->objects[w->uses.list[CROSS_OBJECT].object].place == GR_HOST;
    gr_comm *comm = on_host ? host : device;
    gr_status st = on_host ? gr_queue_finish(c->queue, d) : GR_OK; /* who wrote it, or read what was there */
    if (!st && comm->type->group) st = comm->type->group(comm, true, d);
    if (st) return st;
    st = run_rounds(&x, comm, c->queue, d);
    if (!comm->type->group) return st;
    gr_status ended = comm->type->group(comm, false, d);
    return st ? st : ended;
}
