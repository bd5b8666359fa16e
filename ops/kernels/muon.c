/* ops/kernels/muon.c: Newton and Schulz's iteration over a device's products. */
#include "ops/kernels/muon.h"

#include "ops/kernels/layer_ops.h"
#include "ops/kernels/workspace.h"

enum { ROUNDS = 5 };
static const float A = 3.4445f, B = -4.775f, C = 2.0315f;

typedef struct muon {
    const gr_kernels *k;
    gr_queue *q;
    uint32_t rows, cols, side; /* side: the smaller of them */
    void *x, *gram, *square, *next, *product, *sums;
    double *norm;
} muon;

static void layout(gr_workspace *c, muon *m, unsigned threads)
{
    const uint64_t size = gr_dtype_size(m->k->dtype), side = m->side, all = (uint64_t)m->rows * m->cols;
    const uint32_t larger = GR_MAX(m->rows, m->cols);
    m->gram = gr_workspace_bytes(c, side * side * size);
    m->square = gr_workspace_bytes(c, side * side * size);
    m->next = gr_workspace_bytes(c, all * size);
    m->norm = gr_workspace_bytes(c, sizeof(*m->norm));
    m->sums = gr_workspace_bytes(c, m->k->sum_squares_ws_bytes());
    m->product =
        gr_workspace_bytes(c, GR_MAX(m->k->layer->product_ws_bytes(larger, larger, m->side, threads, true),
                                     m->k->layer->product_ws_bytes(m->side, larger, m->side, threads, true)));
}

uint64_t gr_muon_ws_bytes(const gr_kernels *k, uint32_t rows, uint32_t cols, unsigned threads)
{
    gr_workspace c = {0};
    muon m = {.k = k, .rows = rows, .cols = cols, .side = GR_MIN(rows, cols)};
    layout(&c, &m, threads);
    return c.used;
}

double gr_muon_flops(uint32_t rows, uint32_t cols)
{
    const double side = GR_MIN(rows, cols), larger = GR_MAX(rows, cols);
    return ROUNDS * (4 * side * side * larger + 2 * side * side * side);
}

bool gr_muon_steps(const gr_model_shape *s, uint32_t bucket, const gr_tensor *t)
{
    return bucket >= 1 && bucket <= s->layers && t->decay && t->cols;
}

/* x x^T, or of a tall one x^T x. */
static void make_gram(const muon *m)
{
    if (m->rows <= m->cols) {
        const gr_product p = {.t = m->rows, .in = m->cols, .out = m->rows, .x = m->x, .w = m->x};
        m->k->layer->product(m->q, &p, m->gram, m->product);
        return;
    }
    const gr_product p = {.t = m->rows, .in = m->cols, .out = m->cols, .x = m->x};
    m->k->zero(m->q, m->gram, (uint64_t)m->cols * m->cols * gr_dtype_size(m->k->dtype));
    m->k->layer->product_dw(m->q, &p, m->x, m->gram, m->k->dtype, m->product);
}

/* next = gram x, or of a tall one x gram; gram is its own transpose. */
static void apply_gram(const muon *m)
{
    const bool wide = m->rows <= m->cols;
    const gr_product left = {.t = m->rows, .in = m->cols, .out = m->rows, .w = m->x},
                     right = {.t = m->rows, .in = m->cols, .out = m->cols, .x = m->x, .w = m->gram};
    if (wide)
        m->k->layer->product_dx(m->q, &left, m->gram, m->next, m->product);
    else
        m->k->layer->product(m->q, &right, m->next, m->product);
}

static void round_once(const muon *m)
{
    const uint64_t all = (uint64_t)m->rows * m->cols, square = (uint64_t)m->side * m->side;
    const gr_product p = {.t = m->side, .in = m->side, .out = m->side, .x = m->gram, .w = m->gram};
    make_gram(m);
    m->k->layer->product(m->q, &p, m->square, m->product);
    m->k->blend(m->q, m->gram, NULL, m->square, B, C, square);
    apply_gram(m);
    m->k->blend(m->q, m->x, NULL, m->next, A, 1, all);
}

void gr_muon_orthogonalize(const gr_kernels *k, gr_queue *q, void *x, uint32_t rows, uint32_t cols, void *ws)
{
    gr_workspace c = {.base = ws};
    muon m = {.k = k, .q = q, .rows = rows, .cols = cols, .side = GR_MIN(rows, cols), .x = x};
    layout(&c, &m, gr_team_size(q->team));
    k->sum_squares(q, x, k->dtype, (uint64_t)rows * cols, m.norm, m.sums);
    k->to_unit(q, x, (uint64_t)rows * cols, m.norm);
    for (int i = 0; i < ROUNDS; i++) round_once(&m);
}
