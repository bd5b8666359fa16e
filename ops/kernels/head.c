/* ops/kernels/head.c: embedding and output matrix cut by rows over ranks, over a device's primitives. */
#include "ops/kernels/head.h"

#include "ops/kernels/workspace.h"
#include "runtime/comm/comm.h"

/* Arrays of all ranks' rows hold those of rank r from r * each on. */
typedef struct buffers {
    void *hidden, *d_hidden;                 /* [slices most, H] */
    void *staging;                           /* the same, where sums have one order */
    int32_t *target;                         /* [slices most] */
    float *part;                             /* [slices][slices most, GR_HEAD_PART] */
    float *logprob, *entropy, *sum_p2, *lse; /* [slices most] */
    float *d_logprob, *d_entropy;
    void *work; /* of the device's primitives */
} buffers;

static void *states(gr_workspace *m, const gr_kernels *k, const gr_model_shape *s, uint64_t rows)
{
    return gr_workspace_bytes(m, rows * s->hidden * gr_dtype_size(k->dtype));
}

static buffers layout(gr_workspace *m, const gr_head_call *c)
{
    const bool back = c->use == GR_HEAD_GRADIENT;
    const uint64_t rows = (uint64_t)c->slices * c->most, back_rows = back ? rows : 0;
    buffers b;
    b.hidden = states(m, c->k, c->s, rows);
    b.d_hidden = states(m, c->k, c->s, back_rows);
    b.staging = states(m, c->k, c->s, c->k->chained ? back_rows : 0);
    b.target = gr_workspace_bytes(m, rows * sizeof(*b.target));
    b.part = gr_workspace_floats(m, c->slices * rows * GR_HEAD_PART);
    b.logprob = gr_workspace_floats(m, rows);
    b.entropy = gr_workspace_floats(m, rows);
    b.sum_p2 = gr_workspace_floats(m, rows);
    b.lse = gr_workspace_floats(m, rows);
    b.d_logprob = gr_workspace_floats(m, back_rows);
    b.d_entropy = gr_workspace_floats(m, back_rows);
    b.work = gr_workspace_bytes(
        m, c->k->head->part_ws_bytes(c->s, (uint32_t)rows, back ? c->most : 0, c->use, c->threads));
    return b;
}

static buffers buffers_of(const gr_head_call *c)
{
    gr_workspace m = {.base = c->ws};
    return layout(&m, c);
}

uint64_t gr_head_slices_ws_bytes(const gr_kernels *k, const gr_model_shape *s, uint32_t slices, uint32_t rows,
                                 gr_head_use use, unsigned threads)
{
    gr_workspace m = {0};
    layout(&m,
           &(gr_head_call){.k = k, .s = s, .slices = slices, .most = rows, .threads = threads, .use = use});
    return m.used;
}

static uint64_t own_row(const gr_head_call *c, const gr_head_window *w)
{
    return (uint64_t)c->q->peers->comm->rank * w->each;
}

static char *own_states(const gr_head_call *c, const gr_head_window *w, void *all)
{
    return (char *)all + own_row(c, w) * c->s->hidden * gr_dtype_size(c->k->dtype);
}

static gr_head_rows rows_of(const gr_head_call *c, const gr_head_window *w, const buffers *b)
{
    return (gr_head_rows){.n = c->slices * w->each,
                          .target = b->target,
                          .inv_temperature = w->inv_temperature,
                          .keep = c->use == GR_HEAD_GRADIENT};
}

/* Rows that this rank does not have are 0. */
static void gather_hidden(const gr_head_call *c, const gr_head_window *w, const buffers *b)
{
    const uint32_t size = (uint32_t)gr_dtype_size(c->k->dtype);
    const uint64_t row = (uint64_t)c->s->hidden * size;
    char *own = own_states(c, w, b->hidden);
    if (w->n) c->k->head->hidden(c->q, c->s, c->norm, c->x, w->row, w->n, own);
    if (w->n < w->each) c->k->zero(c->q, own + w->n * row, (w->each - w->n) * row);
    gr_tp_gather(c->q, b->hidden, (uint64_t)w->each * c->s->hidden, size);
}

gr_head_own gr_head_slices_forward(const gr_head_call *c, const gr_head_window *w)
{
    const buffers b = buffers_of(c);
    const gr_head_rows rows = rows_of(c, w, &b);
    const gr_head_stats all = {b.logprob, b.entropy, b.sum_p2};
    const uint64_t part = (uint64_t)rows.n * GR_HEAD_PART, own = own_row(c, w), id = sizeof(*b.target);
    gather_hidden(c, w, &b);
    c->k->copy_rows(c->q, b.target, w->each * id, w->target, w->stride * id, w->each * id, c->slices);
    c->k->head->part(c->q, c->s, c->lm, b.hidden, &rows, b.part + c->q->peers->comm->rank * part, b.work);
    gr_tp_gather(c->q, b.part, part, sizeof(float));
    c->k->head->join(c->q, b.part, c->slices, rows.n, w->inv_temperature, &all, b.lse);
    return (gr_head_own){{b.logprob + own, b.entropy + own, b.sum_p2 + own},
                         b.d_logprob ? b.d_logprob + own : NULL,
                         b.d_entropy ? b.d_entropy + own : NULL};
}

void gr_head_slices_backward(const gr_head_call *c, const gr_head_window *w, bool has_d_entropy, void *dx,
                             void *grad_norm, void *grad_lm, gr_dtype grads)
{
    const buffers b = buffers_of(c);
    const gr_head_rows rows = rows_of(c, w, &b);
    gr_tp_gather(c->q, b.d_logprob, w->each, sizeof(float));
    if (has_d_entropy) gr_tp_gather(c->q, b.d_entropy, w->each, sizeof(float));
    c->k->head->part_backward(c->q, c->s, c->lm, b.hidden, &rows, b.lse, b.entropy, b.d_logprob,
                              has_d_entropy ? b.d_entropy : NULL, b.d_hidden, grad_lm, grads, b.work);
    gr_tp_scatter(c->q, b.d_hidden, (uint64_t)w->each * c->s->hidden, (uint32_t)gr_dtype_size(c->k->dtype),
                  c->k->chained ? b.staging : NULL);
    if (w->n)
        c->k->head->hidden_backward(c->q, c->s, c->norm, c->x, w->row, w->n, own_states(c, w, b.d_hidden), dx,
                                    grad_norm, grads, b.work);
}

/* ---- embedding -------------------------------------------------------------------------------------------
 */

typedef struct embed_buffers {
    void *all;     /* [slices most, H] of all ranks' tokens */
    void *staging; /* forward: the same, where sums have one order */
    void *work;    /* backward: of the device */
} embed_buffers;

static embed_buffers embed_layout(gr_workspace *m, const gr_embed_call *c, bool backward)
{
    const uint64_t tokens = (uint64_t)c->slices * c->most;
    embed_buffers b;
    b.all = states(m, c->k, c->s, tokens);
    b.staging = states(m, c->k, c->s, c->k->chained && !backward ? tokens : 0);
    b.work = gr_workspace_bytes(m, backward ? c->k->embed_ws_bytes((uint32_t)tokens) : 0);
    return b;
}

uint64_t gr_embed_slices_ws_bytes(const gr_kernels *k, const gr_model_shape *s, uint32_t slices,
                                  uint32_t tokens, bool backward)
{
    gr_workspace m = {0};
    embed_layout(&m, &(gr_embed_call){.k = k, .s = s, .slices = slices, .most = tokens}, backward);
    return m.used;
}

static gr_packed all_tokens(const gr_embed_call *c)
{
    return (gr_packed){.n_tokens = c->slices * c->tokens, .ids = c->ids};
}

static uint64_t own_bytes(const gr_embed_call *c)
{
    return (uint64_t)c->tokens * c->s->hidden * gr_dtype_size(c->k->dtype);
}

static char *own_tokens(const gr_embed_call *c, void *all)
{
    return (char *)all + c->q->peers->comm->rank * own_bytes(c);
}

void gr_embed_slices_forward(const gr_embed_call *c, const void *embed, void *x)
{
    gr_workspace m = {.base = c->ws};
    const embed_buffers b = embed_layout(&m, c, false);
    const gr_packed all = all_tokens(c);
    c->k->embed_forward(c->q, c->s, embed, &all, b.all);
    gr_tp_scatter(c->q, b.all, (uint64_t)c->tokens * c->s->hidden, (uint32_t)gr_dtype_size(c->k->dtype),
                  c->k->chained ? b.staging : NULL);
    c->k->copy(c->q, x, own_tokens(c, b.all), own_bytes(c));
}

void gr_embed_slices_backward(const gr_embed_call *c, const void *dx, void *grad_embed, gr_dtype grads)
{
    gr_workspace m = {.base = c->ws};
    const embed_buffers b = embed_layout(&m, c, true);
    const gr_packed all = all_tokens(c);
    c->k->copy(c->q, own_tokens(c, b.all), dx, own_bytes(c));
    gr_tp_gather(c->q, b.all, (uint64_t)c->tokens * c->s->hidden, (uint32_t)gr_dtype_size(c->k->dtype));
    c->k->embed_backward(c->q, c->s, &all, b.all, grad_embed, grads, b.work);
}
