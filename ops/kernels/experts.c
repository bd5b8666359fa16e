/* ops/kernels/experts.c: the MLP of a layer of experts, in device-free C over gr_experts_ops: runs of tokens
 * that fit the workspace, each of them routed, sorted, multiplied and summed up whole.
 */
#include "ops/kernels/experts_impl.h"

void gr_experts_acts_layout(gr_workspace *m, const gr_experts_call *c, uint32_t T, gr_experts_acts *a)
{
    const gr_experts_desc *e = c->e;
    const uint64_t rows = (uint64_t)T * e->top_k;
    a->logits = gr_workspace_floats(m, (uint64_t)T * e->count);
    a->expert = gr_workspace_bytes(m, rows * sizeof(*a->expert));
    a->weight = gr_workspace_floats(m, rows);
    a->plain = e->expert_scale ? gr_workspace_floats(m, rows) : NULL;
    a->gate_up =
        gr_experts_values(m, c->type, e->holders ? gr_experts_cut_kept(c, T) : rows, 2 * (uint64_t)e->inner);
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

uint64_t gr_experts_products_bytes(const gr_experts_call *c, unsigned threads, bool backward)
{
    const gr_experts_desc *e = c->e;
    const uint32_t run = GR_MIN(c->T, c->run), rows = run * e->top_k;
    if (e->holders) return gr_experts_cut_products_bytes(c, threads, backward);
    uint64_t most = c->ops->logits_ws_bytes(run, c->H, e->count, threads, backward);
    most = GR_MAX(most, c->ops->product_ws_bytes(rows, c->H, 2 * e->inner, threads, backward));
    return GR_MAX(most, c->ops->product_ws_bytes(rows, e->inner, c->H, threads, backward));
}

void gr_experts_sort_layout(gr_workspace *m, const gr_experts_call *c, uint32_t T, gr_experts_work *w)
{
    const gr_experts_desc *e = c->e;
    w->sort = gr_workspace_bytes(m, c->ops->dispatch_ws_bytes(e->count, e->top_k, T));
    gr_dispatch_layout(m, e->count, e->top_k, T, &w->d);
}

void gr_experts_product_layout(gr_workspace *m, const gr_experts_call *c, uint32_t rows, bool backward,
                               gr_experts_work *w)
{
    const gr_experts_desc *e = c->e;
    const uint64_t back = backward ? rows : 0;
    w->rows = gr_experts_values(m, c->type, rows, c->H);
    w->h = gr_experts_values(m, c->type, rows, e->inner);
    w->d_gate_up = gr_experts_values(m, c->type, back, 2 * (uint64_t)e->inner);
    w->d_weight = gr_workspace_floats(m, back);
    w->dot = gr_workspace_floats(m, e->bias ? back : 0);
}

void gr_experts_router_layout(gr_workspace *m, const gr_experts_call *c, uint32_t T, gr_experts_work *w)
{
    w->d_logits = gr_experts_values(m, c->type, T, c->e->count);
}

static void work_layout(gr_workspace *m, const gr_experts_call *c, bool backward, gr_experts_work *w)
{
    const uint32_t run = GR_MIN(c->T, c->run);
    gr_experts_sort_layout(m, c, run, w);
    gr_experts_product_layout(m, c, run * c->e->top_k, backward, w);
    gr_experts_router_layout(m, c, backward ? run : 0, w);
}

static void forward_layout(gr_workspace *m, const gr_experts_call *c, bool keep, gr_experts_work *w)
{
    work_layout(m, c, false, w);
    if (!keep) gr_experts_acts_layout(m, c, GR_MIN(c->T, c->run), &w->acts);
}

uint64_t gr_experts_ws_bytes(const gr_experts_call *c, gr_layer_use use)
{
    gr_workspace m = {0};
    gr_experts_work w;
    if (c->e->holders) return gr_experts_cut_bytes(c, use);
    if (use == GR_LAYER_BACKWARD)
        work_layout(&m, c, true, &w);
    else
        forward_layout(&m, c, use == GR_LAYER_KEEP, &w);
    return m.used;
}

/* ---- a run --------------------------------------------------------------------------------------------- */

gr_experts_rows gr_experts_rows_of(gr_queue *q, const gr_experts_call *c, const gr_experts_work *w,
                                   uint32_t first, const gr_experts_acts *acts, bool kept)
{
    const gr_experts_desc *e = c->e;
    const uint32_t from = GR_MIN(first, c->T), T = GR_MIN(c->T - from, c->run);
    const uint64_t at = kept ? from : 0;
    uint16_t *expert = c->record ? c->record + (uint64_t)from * e->top_k : acts->expert + at * e->top_k;
    return (gr_experts_rows){
        .q = q,
        .c = c,
        .w = w,
        .first = from,
        .T = T,
        .rows = T * e->top_k,
        .x = gr_experts_later(c, c->x, from, c->H),
        .router_x = gr_experts_later(c, c->router_x ? c->router_x : c->x, from, c->H),
        .acts = {acts->logits + at * e->count, expert, acts->weight + at * e->top_k,
                 acts->plain ? acts->plain + at * e->top_k : NULL,
                 gr_experts_later(c, acts->gate_up, at * e->top_k, 2 * (uint64_t)e->inner)},
        .act = {e->act, e->limit, T * e->top_k, e->inner}};
}

static gr_router_product router_of(const gr_experts_rows *r)
{
    return (gr_router_product){r->T, r->c->H, r->c->e->count, r->router_x, r->c->w.router};
}

static gr_expert_product gate_up_of(const gr_experts_rows *r)
{
    const gr_experts_desc *e = r->c->e;
    return (gr_expert_product){e->count, r->rows, r->c->H, 2 * e->inner, r->w->d.first, r->c->w.gate_up};
}

static gr_expert_product down_of(const gr_experts_rows *r)
{
    const gr_experts_desc *e = r->c->e;
    return (gr_expert_product){e->count, r->rows, e->inner, r->c->H, r->w->d.first, r->c->w.down};
}

void gr_experts_sort(const gr_experts_rows *r)
{
    const gr_experts_desc *e = r->c->e;
    r->c->ops->dispatch(r->q, e->count, e->top_k, r->T, r->acts.expert, &r->w->d, r->w->sort);
}

/* Its tokens, without padding. */
static uint32_t counted(const gr_experts_rows *r)
{
    const uint32_t end = r->c->T - r->c->padding;
    return end > r->first ? GR_MIN(r->T, end - r->first) : 0;
}

static void choose(const gr_experts_rows *r, const uint16_t *given)
{
    const gr_experts_call *c = r->c;
    float *plain = r->acts.plain;
    c->ops->route(r->q, c->e, r->acts.logits, c->w.selection, given, r->T, r->acts.expert,
                  plain ? plain : r->acts.weight);
    if (plain)
        c->ops->scale_choices(r->q, c->e->top_k, r->T, r->acts.expert, c->w.expert_scale, plain,
                              r->acts.weight);
}

/* The router chooses, which is compared; then come the experts that are given. */
static void compare(const gr_experts_rows *r, const uint16_t *given)
{
    const gr_experts_call *c = r->c;
    const gr_experts_count *n = c->count;
    const uint32_t k = c->e->top_k;
    choose(r, NULL);
    c->ops->compare(r->q, k, r->T, r->acts.expert, n->recorded + (uint64_t)r->first * k, &n->tally,
                    n->differs + r->first);
    if (given) choose(r, given);
}

void gr_experts_route(const gr_experts_rows *r)
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
    if (n) c->ops->count(r->q, c->e->count, c->e->top_k, counted(r), r->acts.expert, n->tally.load);
    if (n && n->shares) c->ops->shares(r->q, c->e->count, counted(r), r->acts.logits, n->tally.share);
}

void gr_experts_gather(const gr_experts_rows *r, const void *from)
{
    r->c->ops->gather(r->q, &r->w->d, r->c->e->top_k, r->T, r->c->H, from, r->w->rows);
}

void gr_experts_open(const gr_experts_rows *r)
{
    const gr_experts_call *c = r->c;
    const gr_expert_product gate_up = gate_up_of(r);
    c->ops->product(r->q, &gate_up, r->w->rows, c->w.gate_up_bias, r->acts.gate_up, c->products);
}

void gr_experts_close(const gr_experts_rows *r)
{
    const gr_experts_call *c = r->c;
    const gr_expert_product down = down_of(r);
    c->ops->activate(r->q, &r->act, r->acts.gate_up, r->w->h);
    c->ops->product(r->q, &down, r->w->h, c->w.down_bias, r->w->rows, c->products);
}

static void run_forward(const gr_experts_rows *r, const void *base, void *y)
{
    const gr_experts_call *c = r->c;
    gr_experts_route(r);
    gr_experts_sort(r);
    gr_experts_gather(r, r->x);
    gr_experts_open(r);
    gr_experts_close(r);
    c->ops->combine(r->q, &r->w->d, c->e->top_k, r->T, c->H, r->w->rows, r->acts.weight, base, c->scale, y);
}

void gr_experts_forward(gr_queue *q, const gr_experts_call *c, const void *base, void *y,
                        const gr_experts_acts *keep, void *ws)
{
    gr_workspace m = {.base = ws};
    gr_experts_work w;
    if (c->e->holders) {
        gr_experts_cut_forward(q, c, base, y, keep, ws);
        return;
    }
    forward_layout(&m, c, keep != NULL, &w);
    for (uint32_t first = 0; first < c->T; first += c->run) {
        const gr_experts_rows r = gr_experts_rows_of(q, c, &w, first, keep ? keep : &w.acts, keep != NULL);
        run_forward(&r, base ? gr_experts_later(c, base, first, c->H) : NULL,
                    gr_experts_later(c, y, first, c->H));
    }
}

/* From rows of dy: gradients of down, of what it read, and of the weights of choices. */
static void down_backward(const gr_experts_rows *r, const gr_experts_grads *g)
{
    const gr_experts_call *c = r->c;
    const gr_experts_ops *o = c->ops;
    const gr_experts_work *w = r->w;
    const gr_expert_product down = down_of(r);
    o->product_dx(r->q, &down, w->rows, w->h, c->products);
    if (c->w.down_bias) o->bias_dot(r->q, &w->d, c->e->count, r->rows, c->H, w->rows, c->w.down_bias, w->dot);
    o->activate_backward(r->q, &r->act, &w->d, r->acts.weight, c->w.down_bias ? w->dot : NULL,
                         r->acts.gate_up, w->h, w->d_gate_up, w->h, w->d_weight);
    if (g->down) o->product_dw(r->q, &down, w->rows, w->h, g->down, g->type, c->products);
    if (g->down_bias)
        o->bias_backward(r->q, &w->d, c->e->count, c->H, w->rows, r->acts.weight, g->down_bias, g->type);
}

static void gate_up_backward(const gr_experts_rows *r, const gr_experts_grads *g)
{
    const gr_experts_call *c = r->c;
    const gr_experts_ops *o = c->ops;
    const gr_experts_work *w = r->w;
    const gr_expert_product gate_up = gate_up_of(r);
    gr_experts_gather(r, r->x);
    if (g->gate_up) o->product_dw(r->q, &gate_up, w->d_gate_up, w->rows, g->gate_up, g->type, c->products);
    if (g->gate_up_bias)
        o->bias_backward(r->q, &w->d, c->e->count, gate_up.out, w->d_gate_up, NULL, g->gate_up_bias, g->type);
    o->product_dx(r->q, &gate_up, w->d_gate_up, w->rows, c->products);
}

void gr_experts_rows_back(const gr_experts_rows *r, const gr_experts_grads *g)
{
    down_backward(r, g);
    gate_up_backward(r, g);
}

void gr_experts_router_back(const gr_experts_rows *r, bool add, void *dx, const gr_experts_grads *g)
{
    const gr_experts_call *c = r->c;
    const gr_router_product p = router_of(r);
    if (r->acts.plain)
        c->ops->scale_choices_backward(r->q, c->e->count, c->e->top_k, r->T, r->acts.expert,
                                       c->w.expert_scale, r->acts.plain, r->w->d_weight, g->expert_scale,
                                       g->type);
    c->ops->route_backward(r->q, c->e, r->acts.logits, r->acts.expert, r->w->d_weight, r->T, r->w->d_logits);
    if (c->pull)
        c->ops->balance_backward(r->q, c->e->count, counted(r), r->acts.logits, c->pull, r->w->d_logits);
    c->ops->logits_backward(r->q, &p, r->w->d_logits, add, dx, g->router, g->router_bias, g->type,
                            c->products);
}

static void run_backward(const gr_experts_rows *r, const void *dy, bool add, void *dx,
                         const gr_experts_grads *g)
{
    const gr_experts_call *c = r->c;
    const bool apart = c->router_x;
    gr_experts_sort(r);
    gr_experts_gather(r, dy);
    gr_experts_rows_back(r, g);
    if (c->w.router)
        gr_experts_router_back(r, add && !apart,
                               apart ? gr_experts_later(c, c->d_router, r->first, c->H) : dx, g);
    c->ops->combine(r->q, &r->w->d, c->e->top_k, r->T, c->H, r->w->rows, NULL,
                    add || (c->w.router && !apart) ? dx : NULL, 1, dx);
}

void gr_experts_backward(gr_queue *q, const gr_experts_call *c, const gr_experts_acts *kept, const void *dy,
                         bool add, void *dx, const gr_experts_grads *grads, void *ws)
{
    gr_workspace m = {.base = ws};
    gr_experts_work w;
    if (c->e->holders) {
        gr_experts_cut_backward(q, c, kept, dy, add, dx, grads, ws);
        return;
    }
    work_layout(&m, c, true, &w);
    for (uint32_t first = 0; first < c->T; first += c->run) {
        const gr_experts_rows r = gr_experts_rows_of(q, c, &w, first, kept, true);
        run_backward(&r, gr_experts_later(c, dy, first, c->H), add, gr_experts_later(c, dx, first, c->H),
                     grads);
    }
}
