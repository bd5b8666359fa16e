/* ops/kernels/experts.c: the MLP of a layer of experts, in device-free C over gr_experts_ops: runs of tokens
 * that fit the workspace, each of them routed, sorted, multiplied and summed up whole.
 */
#include "ops/kernels/experts.h"

static void *values(gr_workspace *c, gr_dtype type, uint64_t rows, uint64_t cols)
{
    return gr_workspace_bytes(c, rows * cols * gr_dtype_size(type));
}

static void *later(const gr_experts_call *c, const void *x, uint64_t row, uint64_t cols)
{
    return (char *)(uintptr_t)x + row * cols * gr_dtype_size(c->type);
}

void gr_experts_acts_layout(gr_workspace *c, const gr_experts_desc *e, gr_dtype type, uint32_t T,
                            gr_experts_acts *a)
{
    const uint64_t rows = (uint64_t)T * e->top_k;
    a->logits = gr_workspace_floats(c, (uint64_t)T * e->count);
    a->expert = gr_workspace_bytes(c, rows * sizeof(*a->expert));
    a->weight = gr_workspace_floats(c, rows);
    a->gate_up = values(c, type, rows, 2 * (uint64_t)e->inner);
}

double gr_balance_value(const gr_balance_loss *b, const double *load, const double *share)
{
    const size_t all = (size_t)b->routers * b->experts;
    double choices = 0, sum = 0;
    for (size_t i = 0; i < all; i++) choices += load[i];
    const double n = choices / b->top_k;
    for (size_t e = 0; e < b->experts && n > 0; e++) {
        double own = 0, probability = 0;
        for (size_t i = e; i < all; i += b->experts) {
            own += load[i];
            probability += share[i];
        }
        sum += own / n * (probability / n);
    }
    return b->experts * sum;
}

/* ---- workspaces: of one run ---------------------------------------------------------------------------- */

struct work {
    void *sort;
    gr_dispatch d;
    void *rows;           /* [R, H] a gather's, then a product's */
    void *h;              /* [R, I] the activation; backward: its gradient, then its weighted form */
    gr_experts_acts acts; /* forward, where they are not kept */
    void *d_gate_up;      /* backward: [R, 2 I] */
    float *d_weight;      /* [T, k] */
    void *d_logits;       /* [T, E] */
    float *dot;           /* [R], where down has a bias */
};

uint64_t gr_experts_products_bytes(const gr_experts_call *c, unsigned threads, bool backward)
{
    const gr_experts_desc *e = c->e;
    const uint32_t run = GR_MIN(c->T, c->run), rows = run * e->top_k;
    uint64_t most = c->ops->logits_ws_bytes(run, c->H, e->count, threads, backward);
    most = GR_MAX(most, c->ops->product_ws_bytes(rows, c->H, 2 * e->inner, threads, backward));
    return GR_MAX(most, c->ops->product_ws_bytes(rows, e->inner, c->H, threads, backward));
}

static void work_layout(gr_workspace *m, const gr_experts_call *c, bool backward, struct work *w)
{
    const gr_experts_desc *e = c->e;
    const uint32_t run = GR_MIN(c->T, c->run);
    const uint64_t rows = (uint64_t)run * e->top_k, back = backward ? rows : 0;
    w->sort = gr_workspace_bytes(m, c->ops->dispatch_ws_bytes(e->count, e->top_k, run));
    gr_dispatch_layout(m, e->count, e->top_k, run, &w->d);
    w->rows = values(m, c->type, rows, c->H);
    w->h = values(m, c->type, rows, e->inner);
    w->d_gate_up = values(m, c->type, back, 2 * (uint64_t)e->inner);
    w->d_weight = gr_workspace_floats(m, back);
    w->d_logits = values(m, c->type, backward ? run : 0, e->count);
    w->dot = gr_workspace_floats(m, e->bias ? back : 0);
}

static void forward_layout(gr_workspace *m, const gr_experts_call *c, bool keep, struct work *w)
{
    work_layout(m, c, false, w);
    if (!keep) gr_experts_acts_layout(m, c->e, c->type, GR_MIN(c->T, c->run), &w->acts);
}

uint64_t gr_experts_ws_bytes(const gr_experts_call *c, gr_layer_use use)
{
    gr_workspace m = {0};
    struct work w;
    if (use == GR_LAYER_BACKWARD)
        work_layout(&m, c, true, &w);
    else
        forward_layout(&m, c, use == GR_LAYER_KEEP, &w);
    return m.used;
}

/* ---- a run --------------------------------------------------------------------------------------------- */

/* Tokens [first, first + T) of a call. */
struct run {
    gr_queue *q;
    const gr_experts_call *c;
    const struct work *w;
    uint32_t first, T, rows;
    const void *x;
    gr_experts_acts acts;
    gr_expert_act act;
};

/* acts: of the call, or where they are not kept of any run. */
static struct run run_of(gr_queue *q, const gr_experts_call *c, const struct work *w, uint32_t first,
                         const gr_experts_acts *acts, bool kept)
{
    const gr_experts_desc *e = c->e;
    const uint64_t at = kept ? first : 0;
    const uint32_t T = GR_MIN(c->T - first, c->run);
    uint16_t *expert = c->record ? c->record + (uint64_t)first * e->top_k : acts->expert + at * e->top_k;
    return (struct run){.q = q,
                        .c = c,
                        .w = w,
                        .first = first,
                        .T = T,
                        .rows = T * e->top_k,
                        .x = later(c, c->x, first, c->H),
                        .acts = {acts->logits + at * e->count, expert, acts->weight + at * e->top_k,
                                 later(c, acts->gate_up, at * e->top_k, 2 * (uint64_t)e->inner)},
                        .act = {e->act, e->limit, T * e->top_k, e->inner}};
}

static gr_router_product router_of(const struct run *r)
{
    return (gr_router_product){r->T, r->c->H, r->c->e->count, r->x, r->c->w.router};
}

static gr_expert_product gate_up_of(const struct run *r)
{
    const gr_experts_desc *e = r->c->e;
    return (gr_expert_product){e->count, r->rows, r->c->H, 2 * e->inner, r->w->d.first, r->c->w.gate_up};
}

static gr_expert_product down_of(const struct run *r)
{
    const gr_experts_desc *e = r->c->e;
    return (gr_expert_product){e->count, r->rows, e->inner, r->c->H, r->w->d.first, r->c->w.down};
}

static void sort(const struct run *r)
{
    const gr_experts_desc *e = r->c->e;
    r->c->ops->dispatch(r->q, e->count, e->top_k, r->T, r->acts.expert, &r->w->d, r->w->sort);
}

/* Its tokens, without padding. */
static uint32_t counted(const struct run *r)
{
    const uint32_t end = r->c->T - r->c->padding;
    return end > r->first ? GR_MIN(r->T, end - r->first) : 0;
}

static void choose(const struct run *r, const uint16_t *given)
{
    const gr_experts_call *c = r->c;
    c->ops->route(r->q, c->e, r->acts.logits, c->w.selection, given, r->T, r->acts.expert, r->acts.weight);
}

/* The router chooses, which is compared; then come the experts that are given. */
static void compare(const struct run *r, const uint16_t *given)
{
    const gr_experts_call *c = r->c;
    const gr_experts_count *n = c->count;
    const uint32_t k = c->e->top_k;
    choose(r, NULL);
    c->ops->compare(r->q, k, r->T, r->acts.expert, n->recorded + (uint64_t)r->first * k, &n->tally,
                    n->differs + r->first);
    if (given) choose(r, given);
}

static void route(const struct run *r)
{
    const gr_experts_call *c = r->c;
    const gr_experts_count *n = c->count;
    const gr_router_product p = router_of(r);
    const uint16_t *given = c->given ? c->given + (uint64_t)r->first * c->e->top_k : NULL;
    c->ops->logits(r->q, &p, c->w.router_bias, r->acts.logits, c->products);
    if (n && n->recorded)
        compare(r, given);
    else
        choose(r, given);
    sort(r);
    if (n) c->ops->count(r->q, c->e->count, c->e->top_k, counted(r), r->acts.expert, n->tally.load);
    if (n && n->shares) c->ops->shares(r->q, c->e->count, counted(r), r->acts.logits, n->tally.share);
}

static void gather(const struct run *r, const void *from)
{
    r->c->ops->gather(r->q, &r->w->d, r->c->e->top_k, r->T, r->c->H, from, r->w->rows);
}

static void run_forward(const struct run *r, const void *base, void *y)
{
    const gr_experts_call *c = r->c;
    const gr_experts_ops *o = c->ops;
    const struct work *w = r->w;
    const gr_expert_product gate_up = gate_up_of(r), down = down_of(r);
    route(r);
    gather(r, r->x);
    o->product(r->q, &gate_up, w->rows, c->w.gate_up_bias, r->acts.gate_up, c->products);
    o->activate(r->q, &r->act, r->acts.gate_up, w->h);
    o->product(r->q, &down, w->h, c->w.down_bias, w->rows, c->products);
    o->combine(r->q, &w->d, c->e->top_k, r->T, c->H, w->rows, r->acts.weight, base, c->scale, y);
}

void gr_experts_forward(gr_queue *q, const gr_experts_call *c, const void *base, void *y,
                        const gr_experts_acts *keep, void *ws)
{
    gr_workspace m = {.base = ws};
    struct work w;
    forward_layout(&m, c, keep != NULL, &w);
    for (uint32_t first = 0; first < c->T; first += c->run) {
        const struct run r = run_of(q, c, &w, first, keep ? keep : &w.acts, keep != NULL);
        run_forward(&r, base ? later(c, base, first, c->H) : NULL, later(c, y, first, c->H));
    }
}

/* From rows of dy: gradients of down, of what it read, and of the weights of choices. */
static void down_backward(const struct run *r, const gr_experts_grads *g)
{
    const gr_experts_call *c = r->c;
    const gr_experts_ops *o = c->ops;
    const struct work *w = r->w;
    const gr_expert_product down = down_of(r);
    o->product_dx(r->q, &down, w->rows, w->h, c->products);
    if (c->w.down_bias) o->bias_dot(r->q, &w->d, c->e->count, r->rows, c->H, w->rows, c->w.down_bias, w->dot);
    o->activate_backward(r->q, &r->act, &w->d, r->acts.weight, c->w.down_bias ? w->dot : NULL,
                         r->acts.gate_up, w->h, w->d_gate_up, w->h, w->d_weight);
    o->product_dw(r->q, &down, w->rows, w->h, g->down, g->type, c->products);
    if (g->down_bias)
        o->bias_backward(r->q, &w->d, c->e->count, c->H, w->rows, r->acts.weight, g->down_bias, g->type);
}

static void gate_up_backward(const struct run *r, const gr_experts_grads *g)
{
    const gr_experts_call *c = r->c;
    const gr_experts_ops *o = c->ops;
    const struct work *w = r->w;
    const gr_expert_product gate_up = gate_up_of(r);
    gather(r, r->x);
    o->product_dw(r->q, &gate_up, w->d_gate_up, w->rows, g->gate_up, g->type, c->products);
    if (g->gate_up_bias)
        o->bias_backward(r->q, &w->d, c->e->count, gate_up.out, w->d_gate_up, NULL, g->gate_up_bias, g->type);
    o->product_dx(r->q, &gate_up, w->d_gate_up, w->rows, c->products);
}

/* From the weights of choices to what the router read, and its gradients. */
static void router_backward(const struct run *r, bool add, void *dx, const gr_experts_grads *g)
{
    const gr_experts_call *c = r->c;
    const gr_router_product p = router_of(r);
    c->ops->route_backward(r->q, c->e, r->acts.logits, r->acts.expert, r->w->d_weight, r->T, r->w->d_logits);
    if (c->pull)
        c->ops->balance_backward(r->q, c->e->count, counted(r), r->acts.logits, c->pull, r->w->d_logits);
    c->ops->logits_backward(r->q, &p, r->w->d_logits, add, dx, g->router, g->router_bias, g->type,
                            c->products);
}

static void run_backward(const struct run *r, const void *dy, bool add, void *dx, const gr_experts_grads *g)
{
    const gr_experts_call *c = r->c;
    sort(r);
    gather(r, dy);
    down_backward(r, g);
    gate_up_backward(r, g);
    if (c->w.router) router_backward(r, add, dx, g);
    c->ops->combine(r->q, &r->w->d, c->e->top_k, r->T, c->H, r->w->rows, NULL, add || c->w.router ? dx : NULL,
                    1, dx);
}

void gr_experts_backward(gr_queue *q, const gr_experts_call *c, const gr_experts_acts *kept, const void *dy,
                         bool add, void *dx, const gr_experts_grads *grads, void *ws)
{
    gr_workspace m = {.base = ws};
    struct work w;
    work_layout(&m, c, true, &w);
    for (uint32_t first = 0; first < c->T; first += c->run) {
        const struct run r = run_of(q, c, &w, first, kept, true);
        run_backward(&r, later(c, dy, first, c->H), add, later(c, dx, first, c->H), grads);
    }
}
