/* ops/kernels/experts_cut.c: a layer whose experts are divided over ranks, the queue's holders: rank i of n
 * has experts [i E / n, (i + 1) E / n). Each routes its own tokens, sorts their choices by expert and so by
 * rank, and sends each rank the rows of its experts; that one multiplies and sends them back, and the
 * weighted sums are made where the tokens are. So the bits of a token's result are those of one rank with all
 * experts.
 *
 * Nothing is dropped, whatever the routers choose, and buffers have one size. Ranks tell each other how many
 * rows each has for each, and so know alike how many trips it takes to move them all, of at most
 * gr_experts_slot rows from one rank to another in a trip. Usual choices take one trip. Backward, rows are
 * sent again; of a run's first trip the first product was kept, where the caller has room for it, of others
 * it is made again.
 *
 * Sources: Lepikhin et al., GShard, arXiv:2006.16668, section 3 (dispatch and combine), without its capacity.
 */
#include "ops/kernels/experts_impl.h"

#include <assert.h>

#include "runtime/comm/comm.h"

/* What comes from other ranks and goes back to them, of one trip. */
typedef struct received {
    gr_experts_desc e;
    gr_experts_call call; /* of those rows: one choice each, of the experts here */
    gr_experts_work w;
    void *in, *d_in;  /* [n slot, H] as they come: rows, and backward those of dy */
    uint16_t *expert; /* [n slot] */
    float *weight;    /* [n slot] backward */
    void *gate_up;    /* [n slot, 2 I], where it is not kept */
} received;

/* This rank's own. */
typedef struct sent {
    gr_experts_work w;
    void *rows, *d_rows; /* [R, H] what goes out and what came of it; backward those of dy */
    uint16_t *expert;    /* [R] */
    float *weight;       /* [R] backward */
    uint32_t *tell;      /* [n + 1] where this rank's rows for each begin; then their end */
    uint32_t *told;      /* [n, n + 1] the same of each rank */
} sent;

typedef struct buffers {
    sent out;
    received in;
} buffers;

static uint32_t holders_of(const gr_experts_call *c)
{
    return c->e->holders;
}

static uint32_t most_arriving(const gr_experts_call *c)
{
    return holders_of(c) * gr_experts_slot(c->e, c->most);
}

/* Runs of a rank that has more tokens than this one are not kept. */
static uint32_t kept_runs(const gr_experts_call *c, uint32_t T)
{
    return GR_MAX((T + c->most - 1) / c->most, 1u);
}

uint64_t gr_experts_cut_kept(const gr_experts_call *c, uint32_t T)
{
    return c->again ? 0 : (uint64_t)kept_runs(c, T) * most_arriving(c);
}

/* Where that of a run's trip is kept; NULL: it is not. */
static void *kept_at(const gr_experts_call *c, const gr_experts_acts *kept, uint32_t run, uint32_t trip)
{
    if (!kept || c->again || trip || run >= kept_runs(c, c->T)) return NULL;
    return gr_experts_later(c, kept->gate_up, (uint64_t)run * most_arriving(c), 2 * (uint64_t)c->e->inner);
}

/* ---- buffers ---------------------------------------------------------------------------------------------
 */

static void set_call(const gr_experts_call *c, received *in)
{
    const uint32_t rows = most_arriving(c);
    in->e = *c->e;
    in->e.count = gr_experts_held(c->e);
    in->e.top_k = 1;
    in->e.holders = 0;
    in->call = (gr_experts_call){.ops = c->ops,
                                 .k = c->k,
                                 .e = &in->e,
                                 .type = c->type,
                                 .T = rows,
                                 .H = c->H,
                                 .run = rows,
                                 .scale = 1,
                                 .w = {.gate_up = c->w.gate_up,
                                       .gate_up_bias = c->w.gate_up_bias,
                                       .down = c->w.down,
                                       .down_bias = c->w.down_bias},
                                 .products = c->products};
}

static void sent_layout(gr_workspace *m, const gr_experts_call *c, bool backward, sent *out)
{
    const uint32_t run = GR_MIN(c->T, c->run), n = holders_of(c);
    const uint64_t rows = (uint64_t)run * c->e->top_k, back = backward ? rows : 0;
    gr_experts_sort_layout(m, c, run, &out->w);
    gr_experts_router_layout(m, c, backward ? run : 0, &out->w);
    out->rows = gr_experts_values(m, c->type, rows, c->H);
    out->d_rows = gr_experts_values(m, c->type, back, c->H);
    out->expert = gr_workspace_bytes(m, rows * sizeof(*out->expert));
    out->weight = gr_workspace_floats(m, back);
    out->w.d_weight = gr_workspace_floats(m, back);
    out->tell = gr_workspace_bytes(m, (n + UINT64_C(1)) * sizeof(*out->tell));
    out->told = gr_workspace_bytes(m, (uint64_t)n * (n + 1) * sizeof(*out->told));
}

static void received_layout(gr_workspace *m, const gr_experts_call *c, bool backward, received *in)
{
    const uint32_t rows = most_arriving(c);
    set_call(c, in);
    gr_experts_sort_layout(m, &in->call, rows, &in->w);
    gr_experts_product_layout(m, &in->call, rows, backward, &in->w);
    in->in = gr_experts_values(m, c->type, rows, c->H);
    in->d_in = gr_experts_values(m, c->type, backward ? rows : 0, c->H);
    in->expert = gr_workspace_bytes(m, rows * sizeof(*in->expert));
    in->weight = gr_workspace_floats(m, backward ? rows : 0);
}

static void layout(gr_workspace *m, const gr_experts_call *c, bool backward, buffers *b)
{
    sent_layout(m, c, backward, &b->out);
    received_layout(m, c, backward, &b->in);
}

static void spare_layout(gr_workspace *m, const gr_experts_call *c, buffers *b)
{
    b->in.gate_up = gr_experts_values(m, c->type, most_arriving(c), 2 * (uint64_t)c->e->inner);
}

/* Where nothing is kept there are acts of one run, for all of them. */
static void forward_layout(gr_workspace *m, const gr_experts_call *c, bool keep, buffers *b)
{
    gr_experts_acts *own = &b->out.w.acts;
    layout(m, c, false, b);
    if (keep || c->again) spare_layout(m, c, b);
    if (!keep) gr_experts_acts_layout(m, c, GR_MIN(c->T, c->run), own);
    if (!keep && !c->again) b->in.gate_up = own->gate_up;
}

static void backward_layout(gr_workspace *m, const gr_experts_call *c, buffers *b)
{
    layout(m, c, true, b);
    spare_layout(m, c, b);
}

uint64_t gr_experts_cut_bytes(const gr_experts_call *c, gr_layer_use use)
{
    gr_workspace m = {0};
    buffers b;
    if (use == GR_LAYER_BACKWARD)
        backward_layout(&m, c, &b);
    else
        forward_layout(&m, c, use == GR_LAYER_KEEP, &b);
    return m.used;
}

uint64_t gr_experts_cut_products_bytes(const gr_experts_call *c, unsigned threads, bool backward)
{
    const uint32_t run = GR_MIN(c->T, c->run), rows = most_arriving(c), inner = c->e->inner;
    uint64_t most = c->ops->logits_ws_bytes(run, c->H, c->e->count, threads, backward);
    most = GR_MAX(most, c->ops->product_ws_bytes(rows, c->H, 2 * inner, threads, backward));
    return GR_MAX(most, c->ops->product_ws_bytes(rows, inner, c->H, threads, backward));
}

/* ---- exchanges -------------------------------------------------------------------------------------------
 */

/* A run: what all ranks have for each other, and which rows the current trip moves. */
typedef struct exchange {
    gr_queue *q;
    uint32_t n, own, slot;
    uint32_t told[GR_PEERS_MAX * (GR_PEERS_MAX + 1)];
    uint32_t out_at[GR_PEERS_MAX], out[GR_PEERS_MAX]; /* rows from here to each rank, */
    uint32_t in_at[GR_PEERS_MAX], in[GR_PEERS_MAX];   /* and from each to here, side by side */
    uint32_t arrived;
} exchange;

static uint32_t rows_between(const exchange *x, uint32_t from, uint32_t to)
{
    const uint32_t *first = x->told + (size_t)from * (x->n + 1);
    return first[to + 1] - first[to];
}

/* To every rank, this one too. false: they cannot be reached any more. */
static bool tell_all(gr_queue *q, const sent *out, uint32_t n, uint64_t bytes)
{
    uint64_t from[GR_PEERS_MAX] = {0}, each[GR_PEERS_MAX], to[GR_PEERS_MAX];
    for (uint32_t i = 0; i < n; i++) to[i] = i * bytes, each[i] = bytes;
    return gr_tp_send_rows(q, &(gr_comm_exchange){out->tell, from, each, out->told, to, each, 4});
}

/* Every rank learns what every rank has. */
static bool tell(const gr_experts_rows *r, const sent *out, exchange *x)
{
    const gr_experts_call *c = r->c;
    const uint64_t bytes = (x->n + 1) * sizeof(*out->told);
    const uint64_t one = sizeof(*out->tell);
    if (r->T)
        c->k->copy_rows(r->q, out->tell, one, out->w.d.first, gr_experts_held(c->e) * one, one, x->n + 1);
    else
        c->k->zero(r->q, out->tell, bytes);
    if (!tell_all(r->q, out, x->n, bytes)) return false;
    gr_device_read(r->q, x->told, out->told, x->n * bytes);
    gr_tp_group *group = r->q->holders;
    group->failed = gr_queue_finish(r->q, group->d);
    return !group->failed;
}

static uint32_t count_trips(const exchange *x, gr_exchanges *count)
{
    uint32_t most = 0;
    for (uint32_t from = 0; from < x->n; from++)
        for (uint32_t to = 0; to < x->n; to++) most = GR_MAX(most, rows_between(x, from, to));
    const uint32_t trips = (most + x->slot - 1) / x->slot;
    if (count) count->runs += trips > 0, count->trips += trips;
    return trips;
}

static uint32_t of_trip(uint32_t rows, uint32_t slot, uint32_t trip)
{
    const uint64_t before = (uint64_t)trip * slot;
    return rows > before ? (uint32_t)GR_MIN(rows - before, slot) : 0;
}

static void begin_trip(exchange *x, uint32_t trip)
{
    const uint32_t *first = x->told + (size_t)x->own * (x->n + 1);
    x->arrived = 0;
    for (uint32_t i = 0; i < x->n; i++) {
        x->out_at[i] = first[i] + trip * x->slot;
        x->out[i] = of_trip(rows_between(x, x->own, i), x->slot, trip);
        x->in_at[i] = x->arrived;
        x->in[i] = of_trip(rows_between(x, i, x->own), x->slot, trip);
        x->arrived += x->in[i];
    }
}

static void in_bytes(const exchange *x, const uint32_t *rows, uint64_t each, uint64_t bytes[GR_PEERS_MAX])
{
    for (uint32_t i = 0; i < x->n; i++) bytes[i] = rows[i] * each;
}

/* Rows of so many bytes of the trip, from those that are this rank's to those of its experts; or back. */
static void move(const exchange *x, const void *from, void *to, uint64_t each, uint32_t unit, bool back)
{
    uint64_t out_at[GR_PEERS_MAX], out[GR_PEERS_MAX], in_at[GR_PEERS_MAX], in[GR_PEERS_MAX];
    in_bytes(x, x->out_at, each, out_at);
    in_bytes(x, x->out, each, out);
    in_bytes(x, x->in_at, each, in_at);
    in_bytes(x, x->in, each, in);
    const gr_comm_exchange forth = {from, out_at, out, to, in_at, in, unit},
                           return_ = {from, in_at, in, to, out_at, out, unit};
    gr_tp_send_rows(x->q, back ? &return_ : &forth);
}

static void move_rows(const exchange *x, const gr_experts_call *c, const void *from, void *to, bool back)
{
    const uint32_t size = (uint32_t)gr_dtype_size(c->type);
    move(x, from, to, (uint64_t)c->H * size, size, back);
}

/* ---- a run -----------------------------------------------------------------------------------------------
 */

/* The trip's rows, as a run of their own. in must outlive it; gate_up: NULL, or where the product goes. */
static gr_experts_rows arrived_of(const exchange *x, received *in, void *gate_up)
{
    in->call.T = in->call.run = x->arrived;
    in->call.x = in->in;
    const gr_experts_acts acts = {
        .expert = in->expert, .weight = in->weight, .gate_up = gate_up ? gate_up : in->gate_up};
    return gr_experts_rows_of(x->q, &in->call, &in->w, 0, &acts, false);
}

/* Products, or rows, in the order in which they came. */
static void unsort(const gr_experts_rows *r, void *to)
{
    const gr_experts_call *c = r->c;
    c->ops->combine(r->q, &r->w->d, 1, r->T, c->H, r->w->rows, NULL, NULL, 1, to);
}

static void forward_trip(const exchange *x, const gr_experts_call *c, buffers *b, void *keep)
{
    move(x, b->out.expert, b->in.expert, sizeof(*b->out.expert), sizeof(*b->out.expert), false);
    move_rows(x, c, b->out.rows, b->in.in, false);
    if (x->arrived) {
        const gr_experts_rows r = arrived_of(x, &b->in, keep);
        gr_experts_sort(&r);
        gr_experts_gather(&r, r.x);
        gr_experts_open(&r);
        gr_experts_close(&r);
        unsort(&r, b->in.in);
    }
    move_rows(x, c, b->in.in, b->out.rows, true);
}

static void backward_trip(const exchange *x, const gr_experts_call *c, buffers *b, void *kept,
                          const gr_experts_grads *g)
{
    move(x, b->out.expert, b->in.expert, sizeof(*b->out.expert), sizeof(*b->out.expert), false);
    move(x, b->out.weight, b->in.weight, sizeof(float), sizeof(float), false);
    move_rows(x, c, b->out.rows, b->in.in, false);
    move_rows(x, c, b->out.d_rows, b->in.d_in, false);
    if (x->arrived) {
        const gr_experts_rows r = arrived_of(x, &b->in, kept);
        gr_experts_sort(&r);
        if (!kept) gr_experts_gather(&r, r.x);
        if (!kept) gr_experts_open(&r);
        gr_experts_gather(&r, b->in.d_in);
        gr_experts_rows_back(&r, g);
        unsort(&r, b->in.in);
    }
    move_rows(x, c, b->in.in, b->out.rows, true);
    move(x, b->in.w.d_weight, b->out.weight, sizeof(float), sizeof(float), true);
}

static exchange exchange_of(gr_queue *q, const gr_experts_call *c)
{
    const gr_comm *comm = q->holders->comm;
    assert(comm->ranks == holders_of(c) && comm->ranks <= GR_PEERS_MAX);
    return (exchange){.q = q, .n = comm->ranks, .own = comm->rank, .slot = gr_experts_slot(c->e, c->most)};
}

/* Whether a rank may have more tokens than this run took of it. */
static bool more(const exchange *x, const gr_experts_call *c)
{
    bool full = false;
    for (uint32_t i = 0; i < x->n; i++)
        full = full || x->told[(size_t)i * (x->n + 1) + x->n] == c->most * c->e->top_k;
    return full;
}

/* Rows of what they were chosen for, and backward those of dy and the weights. */
static void pack(const gr_experts_rows *r, const sent *out, const void *dy)
{
    const gr_experts_call *c = r->c;
    const uint32_t k = c->e->top_k;
    if (!r->T) return;
    c->ops->choice_rows(r->q, &r->w->d, r->rows, gr_experts_held(c->e), r->acts.expert,
                        dy ? r->acts.weight : NULL, out->expert, out->weight);
    c->ops->gather(r->q, &r->w->d, k, r->T, c->H, r->x, out->rows);
    if (dy) c->ops->gather(r->q, &r->w->d, k, r->T, c->H, dy, out->d_rows);
}

void gr_experts_cut_forward(gr_queue *q, const gr_experts_call *c, const void *base, void *y,
                            const gr_experts_acts *keep, void *ws)
{
    gr_workspace m = {.base = ws};
    exchange x = exchange_of(q, c);
    buffers b;
    bool goes_on = true;
    forward_layout(&m, c, keep != NULL, &b);
    for (uint32_t first = 0; goes_on; first += c->most) {
        const gr_experts_rows r =
            gr_experts_rows_of(q, c, &b.out.w, first, keep ? keep : &b.out.w.acts, keep != NULL);
        if (r.T) gr_experts_route(&r);
        if (r.T) gr_experts_sort(&r);
        pack(&r, &b.out, NULL);
        if (!tell(&r, &b.out, &x)) return;
        for (uint32_t trip = 0, trips = count_trips(&x, c->exchanges); trip < trips; trip++) {
            begin_trip(&x, trip);
            forward_trip(&x, c, &b, kept_at(c, keep, first / c->most, trip));
        }
        if (r.T)
            c->ops->combine(q, &b.out.w.d, c->e->top_k, r.T, c->H, b.out.rows, r.acts.weight,
                            base ? gr_experts_later(c, base, r.first, c->H) : NULL, c->scale,
                            gr_experts_later(c, y, r.first, c->H));
        goes_on = more(&x, c);
    }
}

/* What came back: the gradients of rows and of choices' weights. */
static void close_backward(const gr_experts_rows *r, const sent *out, bool add, void *dx,
                           const gr_experts_grads *g)
{
    const gr_experts_call *c = r->c;
    void *to = gr_experts_later(c, dx, r->first, c->H);
    if (!r->T) return;
    c->ops->choice_back(r->q, &r->w->d, r->rows, out->weight, r->w->d_weight);
    gr_experts_router_back(r, add, to, g);
    c->ops->combine(r->q, &r->w->d, c->e->top_k, r->T, c->H, out->rows, NULL, to, 1, to);
}

void gr_experts_cut_backward(gr_queue *q, const gr_experts_call *c, const gr_experts_acts *kept,
                             const void *dy, bool add, void *dx, const gr_experts_grads *grads, void *ws)
{
    gr_workspace m = {.base = ws};
    exchange x = exchange_of(q, c);
    buffers b;
    bool goes_on = true;
    backward_layout(&m, c, &b);
    for (uint32_t first = 0; goes_on; first += c->most) {
        const gr_experts_rows r = gr_experts_rows_of(q, c, &b.out.w, first, kept, true);
        if (r.T) gr_experts_sort(&r);
        pack(&r, &b.out, gr_experts_later(c, dy, r.first, c->H));
        if (!tell(&r, &b.out, &x)) return;
        for (uint32_t trip = 0, trips = count_trips(&x, c->exchanges); trip < trips; trip++) {
            begin_trip(&x, trip);
            backward_trip(&x, c, &b, kept_at(c, kept, first / c->most, trip), grads);
        }
        close_backward(&r, &b.out, add, dx, grads);
        goes_on = more(&x, c);
    }
}
