/* ops/kernels/ahead.c: the input of a layer that predicts a further token. */
#include "ops/kernels/ahead.h"

#include "ops/kernels/layer_ops.h"
#include "ops/kernels/workspace.h"
#include "ops/model/arch.h"

typedef struct buffers {
    void *one, *both; /* [T, H] an embedding, or a norm; [T, 2 H] */
    void *product;
} buffers;

static buffers lay_out(gr_workspace *w, const gr_kernels *k, const gr_model_shape *s, uint32_t tokens,
                       unsigned threads)
{
    const uint64_t row = s->hidden * gr_dtype_size(k->dtype);
    buffers b = {.one = gr_workspace_bytes(w, tokens * row), .both = gr_workspace_bytes(w, 2 * tokens * row)};
    b.product =
        gr_workspace_bytes(w, k->layer->product_ws_bytes(tokens, 2 * s->hidden, s->hidden, threads, false));
    return b;
}

uint64_t gr_ahead_ws_bytes(const gr_kernels *k, const gr_model_shape *s, uint32_t tokens, unsigned threads)
{
    gr_workspace w = {0};
    lay_out(&w, k, s, tokens, threads);
    return w.used;
}

void gr_ahead_norm(const gr_kernels *k, gr_queue *q, const gr_model_shape *s, const void *norm, const void *x,
                   uint32_t n, void *y)
{
    k->layer->norm(q, &(gr_norm){n, s->hidden, x, norm, s->norm_eps, s->norm_plus_one}, y);
}

void gr_ahead_again(const gr_kernels *k, gr_queue *q, const gr_model_shape *s, const void *norm,
                    const void *x, const uint32_t *row, uint32_t n, void *hidden)
{
    k->gather(q, x, row, n, s->hidden, hidden);
    if (gr_arch_find(s->model_type)->ahead->normed) gr_ahead_norm(k, q, s, norm, hidden, n, hidden);
}

static const void *weights(const gr_ahead_call *c, gr_tensor_slot slot)
{
    return (const char *)c->bucket + gr_tensor_offset(c->s, 0, slot) * gr_dtype_size(c->k->dtype);
}

void gr_ahead_enter(const gr_ahead_call *c, void *x)
{
    const gr_kernels *k = c->k;
    const uint32_t n = c->b->n_tokens;
    const uint64_t row = c->s->hidden * gr_dtype_size(k->dtype);
    gr_workspace w = {.base = c->ws};
    const buffers b = lay_out(&w, k, c->s, n, gr_team_size(c->q->team));
    const gr_product p = {
        .t = n, .in = 2 * c->s->hidden, .out = c->s->hidden, .x = b.both, .w = weights(c, GR_T_AHEAD_IN)};
    k->embed_forward(c->q, c->s, c->embed, c->b, b.one);
    gr_ahead_norm(k, c->q, c->s, weights(c, GR_T_AHEAD_EMBED_NORM), b.one, n, b.one);
    k->copy_rows(c->q, b.both, 2 * row, b.one, row, row, n);
    gr_ahead_norm(k, c->q, c->s, weights(c, GR_T_AHEAD_HIDDEN_NORM), c->hidden, n, b.one);
    k->copy_rows(c->q, (char *)b.both + row, 2 * row, b.one, row, row, n);
    k->layer->product(c->q, &p, x, b.product);
}
