/* ops/kernels/cpu/head_part_cpu.c: a part of the vocabulary, of a head that ranks have together
 * (ops/kernels/head.h): sums of a softmax over its logits, the rows' statistics from those of all parts, and
 * gradients.
 */
#include <assert.h>
#include <math.h>

#include "ops/kernels/cpu/head_cpu.h"

/* Of a row's logits z, scaled. */
typedef struct part {
    float max, sum;      /* of e = e^(z - max) */
    float first, second; /* of e (z - max), and of e^2 */
    float target;
} part;
_Static_assert(sizeof(part) == GR_HEAD_PART * sizeof(float), "parts are floats side by side");

typedef struct part_ws {
    float *logits; /* [n, V] */
    float *inv;    /* [own] factors of the norm */
    void *gemm;
} part_ws;

static part_ws layout(gr_workspace *c, const gr_model_shape *s, uint32_t n, uint32_t own, uint64_t gemm)
{
    part_ws w;
    w.logits = gr_workspace_floats(c, (uint64_t)n * s->vocab);
    w.inv = gr_workspace_floats(c, own);
    w.gemm = gr_workspace_bytes(c, gemm);
    return w;
}

/* The products' part is last: what is before it lies where it does for any. */
static part_ws ws_of(const gr_model_shape *s, uint32_t n, uint32_t own, void *ws)
{
    gr_workspace c = {.base = ws};
    return layout(&c, s, n, own, 0);
}

static uint64_t part_ws_bytes(const gr_model_shape *s, uint32_t n, uint32_t own, gr_head_use use,
                              unsigned threads)
{
    gr_workspace c = {0};
    uint64_t gemm = gr_cpu_product_ws_bytes(n, s->hidden, s->vocab, threads, false);
    if (use == GR_HEAD_GRADIENT)
        gemm = GR_MAX(gemm, gr_cpu_product_ws_bytes(n, s->hidden, s->vocab, threads, true));
    layout(&c, s, n, own, gemm);
    return c.used;
}

static void hidden(gr_queue *q, const gr_model_shape *s, const void *norm, const void *x, const uint32_t *row,
                   uint32_t n, void *out)
{
    gr_head_norm(q, s, norm, x, row, n, out, NULL);
}

struct sums {
    const gr_simd *v;
    const float *logits;
    const int32_t *target;
    uint32_t n;
    size_t vocab;
    part *out;
};

static void sums_rank(void *arg, unsigned rank, unsigned size)
{
    const struct sums *l = arg;
    uint64_t first, last;
    gr_team_range(l->n, 1, rank, size, &first, &last);
    for (uint64_t i = first; i < last; i++) {
        const float *z = l->logits + i * l->vocab, max = l->v->max(z, l->vocab);
        const int32_t target = l->target[i];
        double sums[3];
        l->v->softmax_sums(z, max, l->vocab, sums, NULL);
        l->out[i] = (part){max, (float)sums[0], (float)sums[1], (float)sums[2], target < 0 ? 0 : z[target]};
    }
}

static void part_forward(gr_queue *q, const gr_model_shape *s, const void *lm, const void *x,
                         const gr_head_rows *rows, float *out, void *ws)
{
    const part_ws w = ws_of(s, rows->n, 0, ws);
    struct sums l = {gr_simd_best(), w.logits, rows->target, rows->n, s->vocab, (part *)out};
    gr_head_product(q, s, lm, x, rows->n, rows->inv_temperature, w.logits, w.gemm);
    gr_team_run(q->team, sums_rank, &l);
}

static void join_row(const part *p, uint32_t slices, uint64_t stride, uint64_t i, const gr_head_stats *out,
                     float *lse)
{
    double max = -INFINITY, sum = 0, first = 0, second = 0, target = 0;
    for (uint32_t k = 0; k < slices; k++) max = fmax(max, p[k * stride + i].max);
    for (uint32_t k = 0; k < slices; k++) {
        const part *of = &p[k * stride + i];
        const double lower = of->max - max, f = exp(lower);
        sum += f * of->sum;
        first += f > 0 ? f * (of->first + lower * of->sum) : 0;
        second += f * f * of->second;
        target += of->target;
    }
    const double log_sum = log(sum);
    lse[i] = (float)(max + log_sum);
    out->entropy[i] = (float)(log_sum - first / sum);
    out->logprob[i] = (float)(target - max - log_sum);
    out->sum_p2[i] = (float)(second / (sum * sum));
}

static void join(gr_queue *q, const float *parts, uint32_t slices, uint32_t n, float inv_temperature,
                 const gr_head_stats *out, float *lse)
{
    (void)q, (void)inv_temperature; /* logits were scaled */
    for (uint64_t i = 0; i < n; i++) join_row((const part *)parts, slices, n, i, out, lse);
}

static void part_backward(gr_queue *q, const gr_model_shape *s, const void *lm, const void *x,
                          const gr_head_rows *rows, const float *lse, const float *entropy,
                          const float *d_logprob, const float *d_entropy, void *d_hidden, void *grad_lm,
                          gr_dtype grads, void *ws)
{
    const part_ws w = ws_of(s, rows->n, 0, ws);
    const gr_head_adjoint a = {.target = rows->target,
                               .lse = lse,
                               .entropy = entropy,
                               .d_logprob = d_logprob,
                               .d_entropy = d_entropy,
                               .inv_temperature = rows->inv_temperature};
    const gr_product p = {.t = rows->n, .in = s->hidden, .out = s->vocab, .x = x, .w = lm};
    gr_head_logits_back(q, s, &a, rows->n, w.logits);
    gr_cpu_product_dx(q, &p, w.logits, d_hidden, w.gemm);
    if (grad_lm) gr_cpu_product_dw(q, &p, w.logits, grad_lm, grads, w.gemm);
}

static void hidden_backward(gr_queue *q, const gr_model_shape *s, const void *norm, const void *x,
                            const uint32_t *row, uint32_t n, void *d_hidden, void *dx, void *grad_norm,
                            gr_dtype grads, void *ws)
{
    const part_ws w = ws_of(s, 0, n, ws);
    assert(grads == GR_F32);
    (void)grads;
    gr_head_norm(q, s, norm, x, row, n, NULL, w.inv);
    gr_head_norm_back(q, s, norm, x, row, n, w.inv, d_hidden, dx, grad_norm);
}

const gr_head_ops gr_head_cpu = {
    .part_ws_bytes = part_ws_bytes,
    .hidden = hidden,
    .part = part_forward,
    .join = join,
    .part_backward = part_backward,
    .hidden_backward = hidden_backward,
};
