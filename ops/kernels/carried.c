/* ops/kernels/carried.c: where lies what layers hand on, and embeddings of each layer, forward and backward.
 */
#include "ops/kernels/carried.h"

#include "ops/kernels/layer_ops.h"
#include "ops/kernels/workspace.h"

#include <math.h>

/* ---- places ----------------------------------------------------------------------------------------------
 */

static void *take(gr_workspace *c, const gr_kernels *k, uint64_t values)
{
    return gr_workspace_bytes(c, values * gr_dtype_size(k->dtype));
}

static uint64_t lent_values(const gr_attention_desc *a)
{
    return a->keys == GR_KEYS_LENT ? 2ull * a->kv_heads * a->head_dim : 0;
}

uint64_t gr_carried_bytes(const gr_kernels *k, const gr_model_shape *s, uint64_t tokens, bool packed)
{
    gr_workspace c = {0};
    take(&c, k, tokens * gr_model_per_layer(s));
    for (uint32_t l = 0; l < s->layers && packed; l++)
        take(&c, k, tokens * lent_values(&gr_layer(s, l)->attention));
    return c.used;
}

void *gr_carried_per_layer(void *carried)
{
    return carried;
}

void *gr_carried_keys(const gr_kernels *k, const gr_model_shape *s, uint64_t tokens, uint32_t layer,
                      void *carried)
{
    gr_workspace c = {.base = carried};
    take(&c, k, tokens * gr_model_per_layer(s));
    for (uint32_t l = 0; l < layer; l++) take(&c, k, tokens * lent_values(&gr_layer(s, l)->attention));
    return c.base + c.used;
}

/* ---- embeddings of each layer ----------------------------------------------------------------------------
 */

typedef struct buffers {
    void *product, *scratch, *embed;
    void *rows;  /* [T, L P] of the product, or of the table */
    void *d_row; /* [T, H] d loss / d x */
} buffers;

static buffers layout(gr_workspace *c, const gr_kernels *k, const gr_model_shape *s, uint32_t tokens,
                      unsigned threads, bool backward)
{
    const uint32_t all = gr_model_per_layer(s);
    const gr_layer_desc none = {0};
    const uint64_t forth = k->layer->product_ws_bytes(tokens, s->hidden, all, threads, false),
                   back = backward ? k->layer->product_ws_bytes(tokens, s->hidden, all, threads, true) : 0;
    buffers b = {.product = gr_workspace_bytes(c, GR_MAX(forth, back)), /* back the product is made again */
                 .rows = take(c, k, (uint64_t)tokens * all)};
    if (!backward) return b;
    b.scratch = gr_workspace_bytes(c, k->layer->back_ws_bytes(&none, s->per_layer.width, tokens * s->layers));
    b.embed = gr_workspace_bytes(c, k->embed_ws_bytes(tokens));
    b.d_row = take(c, k, (uint64_t)tokens * s->hidden);
    return b;
}

uint64_t gr_per_layer_ws_bytes(const gr_kernels *k, const gr_model_shape *s, uint32_t tokens,
                               unsigned threads, bool backward)
{
    gr_workspace c = {0};
    if (s->per_layer.vocab) layout(&c, k, s, tokens, threads, backward);
    return c.used;
}

/* The table is an embedding of its own, as wide as all layers' together. */
static gr_model_shape table_of(const gr_model_shape *s)
{
    return (gr_model_shape){.vocab = s->per_layer.vocab,
                            .hidden = gr_model_per_layer(s),
                            .embed_scale = sqrtf((float)s->per_layer.width)};
}

/* A tensor of the bucket, or of its gradient. */
static void *tensor(const gr_model_shape *s, gr_tensor_slot slot, const void *bucket, gr_dtype type)
{
    return (char *)(uintptr_t)bucket +
           gr_tensor_offset(s, gr_model_per_layer_bucket(s), slot) * gr_dtype_size(type);
}

static float root(float x)
{
    return 1 / sqrtf(x);
}

static gr_product product_of(const gr_kernels *k, const gr_model_shape *s, const void *w, const gr_packed *b,
                             const void *x)
{
    return (gr_product){.t = b->n_tokens,
                        .in = s->hidden,
                        .out = gr_model_per_layer(s),
                        .x = x,
                        .w = tensor(s, GR_T_PER_LAYER_IN, w, k->dtype)};
}

static gr_norm norm_of(const gr_kernels *k, const gr_model_shape *s, const void *w, const gr_packed *b,
                       const void *rows)
{
    return (gr_norm){.n = b->n_tokens * s->layers,
                     .cols = s->per_layer.width,
                     .x = rows,
                     .w = tensor(s, GR_T_PER_LAYER_NORM, w, k->dtype),
                     .eps = s->norm_eps};
}

static uint64_t values_of(const gr_model_shape *s, const gr_packed *b)
{
    return (uint64_t)b->n_tokens * gr_model_per_layer(s);
}

void gr_per_layer_forward(const gr_kernels *k, gr_queue *q, const gr_model_shape *s, const void *w,
                          const gr_packed *b, const void *x, void *ws)
{
    gr_workspace c = {.base = ws};
    const buffers at = layout(&c, k, s, b->n_tokens, gr_team_size(q->team), false);
    const gr_product p = product_of(k, s, w, b, x);
    const gr_norm norm = norm_of(k, s, w, b, at.rows);
    const gr_model_shape table = table_of(s);
    const uint64_t n = values_of(s, b);
    void *out = gr_carried_per_layer(b->carried);
    k->layer->product(q, &p, at.rows, at.product);
    k->layer->scale(q, at.rows, root((float)s->hidden), n, at.rows);
    k->layer->norm(q, &norm, out);
    k->embed_forward(q, &table, tensor(s, GR_T_PER_LAYER_EMBED, w, k->dtype), b, at.rows);
    k->add(q, out, at.rows, k->dtype, n);
    k->layer->scale(q, out, root(2), n, out);
}

void gr_per_layer_backward(const gr_kernels *k, gr_queue *q, const gr_model_shape *s, const void *w,
                           const gr_packed *b, const void *x, void *dx, void *grad, gr_dtype grads, void *ws)
{
    gr_workspace c = {.base = ws};
    const buffers at = layout(&c, k, s, b->n_tokens, gr_team_size(q->team), true);
    const gr_product p = product_of(k, s, w, b, x);
    const gr_norm norm = norm_of(k, s, w, b, at.rows);
    const gr_model_shape table = table_of(s);
    const uint64_t n = values_of(s, b);
    void *d = gr_carried_per_layer(b->d_carried);
    k->layer->scale(q, d, root(2), n, d);
    k->embed_backward(q, &table, b, d, tensor(s, GR_T_PER_LAYER_EMBED, grad, grads), grads, at.embed);
    k->layer->product(q, &p, at.rows, at.product); /* again */
    k->layer->scale(q, at.rows, root((float)s->hidden), n, at.rows);
    k->layer->norm_backward(q, &norm, d, d, false, tensor(s, GR_T_PER_LAYER_NORM, grad, grads), grads,
                            at.scratch);
    k->layer->scale(q, d, root((float)s->hidden), n, d);
    k->layer->product_dw(q, &p, d, tensor(s, GR_T_PER_LAYER_IN, grad, grads), grads, at.product);
    k->layer->product_dx(q, &p, d, at.d_row, at.product);
    k->add(q, dx, at.d_row, k->dtype, (uint64_t)b->n_tokens * s->hidden);
}
