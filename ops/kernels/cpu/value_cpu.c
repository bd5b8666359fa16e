/* ops/kernels/cpu/value_cpu.c: a value head: final norm, one number a row, and their gradients.
 *
 *     value = sum over h of x[h] inv norm[h] head[h], plus bias;   inv = 1 / rms(x)
 */
#include <assert.h>

#include "ops/kernels/cpu/cpu.h"

typedef struct value_ws {
    float *inv; /* [n] factors of the norm, kept for backward */
    float *dy;  /* [threads, H] d loss / d the norm's output, of one row */
} value_ws;

static void layout(gr_workspace *c, const gr_model_shape *s, uint32_t n, unsigned threads, value_ws *w)
{
    w->inv = gr_workspace_floats(c, n);
    w->dy = gr_workspace_floats(c, (uint64_t)threads * s->hidden);
}

uint64_t gr_cpu_value_ws_bytes(const gr_model_shape *s, uint32_t chunk_rows, unsigned threads)
{
    gr_workspace c = {0};
    value_ws w;
    layout(&c, s, chunk_rows, threads, &w);
    return c.used;
}

struct value {
    size_t h;
    float eps;
    bool plus_one; /* the norm's factor is 1 + its weight */
    const gr_simd *v;
    const float *norm, *weight, *bias;
    const float *x;
    const uint32_t *row;
    uint32_t n;
    value_ws w;
    float *out;
    const float *d_value;
    float *dx;
    float *grad_norm, *grad_weight;
};

static struct value value_of(gr_queue *q, const gr_model_shape *s, const gr_value_head *head, const void *x,
                             const uint32_t *row, uint32_t n, void *ws)
{
    struct value l = {.h = s->hidden, .eps = s->norm_eps, .plus_one = s->norm_plus_one, .v = gr_simd_best()};
    gr_workspace c = {.base = ws};
    l.norm = head->norm;
    l.weight = head->weight;
    l.bias = head->bias;
    l.x = x;
    l.row = row;
    l.n = n;
    layout(&c, s, n, gr_team_size(q->team), &l.w);
    return l;
}

static void forward_rank(void *arg, unsigned rank, unsigned size)
{
    const struct value *l = arg;
    uint64_t first, last;
    gr_team_range(l->n, 1, rank, size, &first, &last);
    for (uint64_t i = first; i < last; i++) {
        const float *x = l->x + l->row[i] * l->h;
        l->w.inv[i] = gr_rms_inv(l->v, x, l->h, l->eps);
        const float one = l->plus_one ? l->v->dot(x, l->weight, l->h) : 0;
        l->out[i] = l->w.inv[i] * (l->v->dot3(x, l->norm, l->weight, l->h) + one);
        if (l->bias) l->out[i] += *l->bias;
    }
}

void gr_cpu_value_forward(gr_queue *q, const gr_model_shape *s, const gr_value_head *head, const void *x,
                          const uint32_t *row, uint32_t n, float *value, void *ws)
{
    struct value l = value_of(q, s, head, x, row, n, ws);
    l.out = value;
    gr_team_run(q->team, forward_rank, &l);
}

/* Of x: rows are cut among threads. Of the weights: columns are, each a chain of additions over the rows. */
static void backward_rank(void *arg, unsigned rank, unsigned size)
{
    const struct value *l = arg;
    uint64_t first, last;
    float *dy = l->w.dy + rank * l->h;
    gr_team_range(l->n, 1, rank, size, &first, &last);
    for (uint64_t i = first; i < last; i++) {
        l->v->scale(dy, l->weight, l->d_value[i], l->h);
        gr_rms_back(l->v, l->dx + l->row[i] * l->h, NULL, dy, l->x + l->row[i] * l->h, l->norm, l->plus_one,
                    l->w.inv[i], l->h);
    }
    gr_team_range(l->h, 16, rank, size, &first, &last);
    for (uint64_t i = 0; i < l->n; i++) {
        const float *x = l->x + l->row[i] * l->h + first, a = l->d_value[i] * l->w.inv[i];
        if (l->grad_norm) l->v->mul_axpy(l->grad_norm + first, x, l->weight + first, a, last - first);
        l->v->mul_axpy(l->grad_weight + first, x, l->norm + first, a, last - first);
        if (l->plus_one) l->v->axpy(l->grad_weight + first, x, a, last - first);
    }
}

void gr_cpu_value_backward(gr_queue *q, const gr_model_shape *s, const gr_value_head *head, const void *x,
                           const uint32_t *row, uint32_t n, const float *d_value, void *dx,
                           const gr_value_grads *grad, void *ws)
{
    assert(grad->type == GR_F32);
    struct value l = value_of(q, s, head, x, row, n, ws);
    l.d_value = d_value;
    l.dx = dx;
    l.grad_norm = grad->norm;
    l.grad_weight = grad->weight;
    gr_team_run(q->team, backward_rank, &l);
    for (uint32_t i = 0; i < n && grad->bias; i++) *(float *)grad->bias += d_value[i];
}
