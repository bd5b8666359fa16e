/* ops/kernels/cpu/head_cpu.c: final norm, logits, log-softmax and its statistics, and their gradients;
 * embedding. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "ops/kernels/cpu/head_cpu.h"

void gr_head_ws_layout(gr_workspace *c, const gr_model_shape *s, uint32_t n, gr_head_use use,
                       unsigned threads, gr_head_ws *w)
{
    const bool samples = use == GR_HEAD_SAMPLE || use == GR_HEAD_TRUNCATE;
    uint64_t gemm = gr_cpu_product_ws_bytes(n, s->hidden, s->vocab, threads, false);
    if (use == GR_HEAD_GRADIENT)
        gemm = GR_MAX(gemm, gr_cpu_product_ws_bytes(n, s->hidden, s->vocab, threads, true));
    w->row = gr_workspace_floats(c, (uint64_t)n * s->hidden);
    w->inv = gr_workspace_floats(c, n);
    w->lse = gr_workspace_floats(c, samples ? 0 : n);
    w->entropy = gr_workspace_floats(c, samples ? 0 : n);
    w->logits = gr_workspace_floats(c, (uint64_t)n * s->vocab);
    w->drow = gr_workspace_floats(c, use == GR_HEAD_GRADIENT ? (uint64_t)n * s->hidden : 0);
    w->block = gr_workspace_bytes(c, samples ? threads * (s->vocab / 1024 + 1) * sizeof(double) : 0);
    w->heap =
        gr_workspace_bytes(c, use == GR_HEAD_TRUNCATE ? (uint64_t)threads * s->vocab * sizeof(uint32_t) : 0);
    w->gemm = gr_workspace_bytes(c, gemm);
}

uint64_t gr_cpu_head_ws_bytes(const gr_model_shape *s, uint32_t chunk_rows, gr_head_use use, unsigned threads)
{
    gr_workspace c = {0};
    gr_head_ws w;
    gr_head_ws_layout(&c, s, chunk_rows, use, threads, &w);
    return c.used;
}

struct head {
    const gr_model_shape *s;
    const gr_simd *v;
    const float *norm, *x;
    const uint32_t *row;
    uint32_t n;
    float inv_temperature;
    const gr_head_ws *w;
    const int32_t *target;
    const gr_head_stats *out;
    const float *lse, *entropy, *d_logprob, *d_entropy, *slope, *d_divergence;
    float *dx, *grad_norm;
};

static void norm_rank(void *arg, unsigned rank, unsigned size)
{
    const struct head *l = arg;
    const size_t h = l->s->hidden;
    uint64_t first, last;
    gr_team_range(l->n, 1, rank, size, &first, &last);
    for (uint64_t i = first; i < last; i++) {
        const float *x = l->x + l->row[i] * h;
        const float inv = gr_rms_inv(l->v, x, h, l->s->norm_eps);
        if (l->w->inv) l->w->inv[i] = inv;
        if (l->w->row) gr_rms_norm(l->v, l->w->row + i * h, x, l->norm, l->s->norm_plus_one, inv, h);
    }
}

static void temperature_rank(void *arg, unsigned rank, unsigned size)
{
    const struct head *l = arg;
    uint64_t first, last;
    gr_team_range((uint64_t)l->n * l->s->vocab, 4096, rank, size, &first, &last);
    l->v->scale(l->w->logits + first, l->w->logits + first, l->inv_temperature, last - first);
}

/* z = inv_temperature c tanh(z scale / c) */
static void softcap_rank(void *arg, unsigned rank, unsigned size)
{
    const struct head *l = arg;
    const float cap = l->s->logit_softcap, a = l->s->logit_scale / cap, b = cap * l->inv_temperature;
    uint64_t first, last;
    gr_team_range((uint64_t)l->n * l->s->vocab, 4096, rank, size, &first, &last);
    for (uint64_t i = first; i < last; i++) l->w->logits[i] = b * tanhf(l->w->logits[i] * a);
}

void gr_head_norm(gr_queue *q, const gr_model_shape *s, const float *norm, const float *x,
                  const uint32_t *row, uint32_t n, float *hidden, float *inv)
{
    const gr_head_ws w = {.row = hidden, .inv = inv};
    struct head l = {.s = s, .v = gr_simd_best(), .norm = norm, .x = x, .row = row, .n = n, .w = &w};
    gr_team_run(q->team, norm_rank, &l);
}

void gr_head_product(gr_queue *q, const gr_model_shape *s, const float *lm, const float *hidden, uint32_t n,
                     float inv_temperature, float *logits, void *gemm)
{
    const bool capped = s->logit_softcap > 0;
    const gr_head_ws w = {.logits = logits};
    const gr_product p = {.t = n, .in = s->hidden, .out = s->vocab, .x = hidden, .w = lm};
    struct head l = {.s = s, .v = gr_simd_best(), .n = n, .w = &w};
    l.inv_temperature = capped ? inv_temperature : inv_temperature * s->logit_scale;
    gr_cpu_product(q, &p, logits, gemm);
    if (capped || !(l.inv_temperature == 1))
        gr_team_run(q->team, capped ? softcap_rank : temperature_rank, &l);
}

void gr_head_logits(gr_queue *q, const gr_model_shape *s, const float *norm, const float *lm, const float *x,
                    const uint32_t *row, uint32_t n, float inv_temperature, const gr_head_ws *w)
{
    gr_head_norm(q, s, norm, x, row, n, w->row, w->inv);
    gr_head_product(q, s, lm, w->row, n, inv_temperature, w->logits, w->gemm);
}

static void stats_rank(void *arg, unsigned rank, unsigned size)
{
    const struct head *l = arg;
    const size_t vocab = l->s->vocab;
    uint64_t first, last;
    gr_team_range(l->n, 1, rank, size, &first, &last);
    for (uint64_t i = first; i < last; i++) {
        const float *z = l->w->logits + i * vocab, max = l->v->max(z, vocab);
        double sums[3];
        l->v->softmax_sums(z, max, vocab, sums, NULL);
        const double log_sum = log(sums[0]);
        l->w->lse[i] = (float)(max + log_sum);
        l->w->entropy[i] = (float)(log_sum - sums[1] / sums[0]);
        l->out->logprob[i] = (float)((double)z[l->target[i]] - max - log_sum);
        if (l->out->entropy) l->out->entropy[i] = l->w->entropy[i];
        if (l->out->sum_p2) l->out->sum_p2[i] = (float)(sums[2] / (sums[0] * sums[0]));
    }
}

void gr_cpu_head_forward(gr_queue *q, const gr_model_shape *s, const void *norm, const void *lm,
                         const void *x, const gr_head_rows *rows, const gr_head_stats *out, void *ws)
{
    if (!rows->n) return;
    gr_workspace c = {.base = ws};
    gr_head_ws w;
    gr_head_ws_layout(&c, s, rows->n, GR_HEAD_LOGPROB, gr_team_size(q->team), &w);
    gr_head_logits(q, s, norm, lm, x, rows->row, rows->n, rows->inv_temperature, &w);
    struct head l = {.s = s, .v = gr_simd_best(), .n = rows->n, .w = &w, .target = rows->target, .out = out};
    gr_team_run(q->team, stats_rank, &l);
}

/* Elements [first, first + n) of row i of logits become their own gradients. */
static void softmax_back(const struct head *l, uint64_t i, size_t first, size_t n)
{
    float *z = l->w->logits + i * l->s->vocab + first;
    const size_t target = (size_t)l->target[i]; /* below 0: beyond all */
    l->v->softmax_back(z, l->lse[i], l->entropy[i], l->d_logprob[i], l->d_entropy ? l->d_entropy[i] : 0,
                       l->inv_temperature, n);
    if (target >= first && target < first + n) z[target - first] += l->inv_temperature * l->d_logprob[i];
    if (l->slope)
        l->v->axpy(z, l->slope + i * l->s->vocab + first, l->inv_temperature * l->d_divergence[i], n);
}

/* The same behind a cap, whose slope follows from what it gave. */
static void capped_back(const struct head *l, uint64_t i)
{
    enum { PIECE = 1024 };
    const size_t vocab = l->s->vocab;
    const float full = l->s->logit_softcap * l->inv_temperature;
    float slope[PIECE], *z = l->w->logits + i * vocab;
    for (size_t at = 0; at < vocab; at += PIECE) {
        const size_t n = GR_MIN(vocab - at, (size_t)PIECE);
        for (size_t k = 0; k < n; k++) slope[k] = 1 - z[at + k] / full * (z[at + k] / full);
        softmax_back(l, i, at, n);
        for (size_t k = 0; k < n; k++) z[at + k] *= slope[k] * l->s->logit_scale;
    }
}

static void softmax_back_rank(void *arg, unsigned rank, unsigned size)
{
    const struct head *l = arg;
    uint64_t first, last;
    gr_team_range(l->n, 1, rank, size, &first, &last);
    for (uint64_t i = first; i < last; i++)
        if (l->s->logit_softcap > 0)
            capped_back(l, i);
        else
            softmax_back(l, i, 0, l->s->vocab);
}

static void norm_back_rank(void *arg, unsigned rank, unsigned size)
{
    const struct head *l = arg;
    const size_t h = l->s->hidden;
    uint64_t first, last;
    gr_team_range(l->n, 1, rank, size, &first, &last);
    for (uint64_t i = first; i < last; i++)
        gr_rms_back(l->v, l->dx + l->row[i] * h, NULL, l->w->drow + i * h, l->x + l->row[i] * h, l->norm,
                    l->s->norm_plus_one, l->w->inv[i], h);
    gr_team_range(h, 16, rank, size, &first, &last);
    for (uint64_t i = 0; i < l->n && l->grad_norm; i++)
        l->v->mul_axpy(l->grad_norm + first, l->x + l->row[i] * h + first, l->w->drow + i * h + first,
                       l->w->inv[i], last - first);
}

void gr_head_logits_back(gr_queue *q, const gr_model_shape *s, const gr_head_adjoint *a, uint32_t n,
                         float *logits)
{
    const gr_head_ws w = {.logits = logits};
    struct head l = {.s = s,
                     .v = gr_simd_best(),
                     .n = n,
                     .inv_temperature = a->inv_temperature,
                     .w = &w,
                     .target = a->target,
                     .lse = a->lse,
                     .entropy = a->entropy,
                     .d_logprob = a->d_logprob,
                     .d_entropy = a->d_entropy,
                     .slope = a->slope,
                     .d_divergence = a->d_divergence};
    if (!(s->logit_softcap > 0)) l.inv_temperature *= s->logit_scale;
    gr_team_run(q->team, softmax_back_rank, &l);
}

void gr_head_norm_back(gr_queue *q, const gr_model_shape *s, const float *norm, const float *x,
                       const uint32_t *row, uint32_t n, const float *inv, const float *d_hidden, float *dx,
                       float *grad_norm)
{
    const gr_head_ws w = {.drow = (float *)(uintptr_t)d_hidden, .inv = (float *)(uintptr_t)inv};
    struct head l = {.s = s,
                     .v = gr_simd_best(),
                     .norm = norm,
                     .x = x,
                     .row = row,
                     .n = n,
                     .w = &w,
                     .dx = dx,
                     .grad_norm = grad_norm};
    gr_team_run(q->team, norm_back_rank, &l);
}

void gr_cpu_head_backward(gr_queue *q, const gr_model_shape *s, const void *norm, const void *lm,
                          const void *x, const gr_head_rows *rows, const float *d_logprob,
                          const float *d_entropy, void *dx, void *grad_norm, void *grad_lm, gr_dtype grads,
                          void *ws)
{
    assert(grads == GR_F32);
    if (!rows->n) return;
    gr_workspace c = {.base = ws};
    gr_head_ws w;
    gr_head_ws_layout(&c, s, rows->n, GR_HEAD_GRADIENT, gr_team_size(q->team), &w);
    const gr_head_adjoint a = {.target = rows->target,
                               .lse = w.lse,
                               .entropy = w.entropy,
                               .d_logprob = d_logprob,
                               .d_entropy = d_entropy,
                               .slope = rows->slope,
                               .d_divergence = rows->d_divergence,
                               .inv_temperature = rows->inv_temperature};
    const gr_product p = {.t = rows->n, .in = s->hidden, .out = s->vocab, .x = w.row, .w = lm};
    gr_head_logits_back(q, s, &a, rows->n, w.logits);
    gr_cpu_product_dx(q, &p, w.logits, w.drow, w.gemm);
    if (grad_lm) gr_cpu_product_dw(q, &p, w.logits, grad_lm, grads, w.gemm);
    gr_head_norm_back(q, s, norm, x, rows->row, rows->n, w.inv, w.drow, dx, grad_norm);
}

/* ---- embedding ----------------------------------------------------------------------------------------- */

struct embed {
    size_t h;
    const gr_simd *v;
    const gr_packed *b;
    const float *from;
    float *to, scale;
};

static void embed_rank(void *arg, unsigned rank, unsigned size)
{
    const struct embed *e = arg;
    uint64_t first, last;
    gr_team_range(e->b->n_tokens, 1, rank, size, &first, &last);
    for (uint64_t t = first; t < last; t++) {
        float *to = e->to + t * e->h;
        if (e->b->ids[t] < 0)
            memset(to, 0, e->h * sizeof(float));
        else
            memcpy(to, e->from + (size_t)e->b->ids[t] * e->h, e->h * sizeof(float));
        if (e->scale != 1) e->v->scale(to, to, e->scale, e->h);
    }
}

void gr_cpu_embed_forward(gr_queue *q, const gr_model_shape *s, const void *embed, const gr_packed *b,
                          void *x)
{
    struct embed e = {s->hidden, gr_simd_best(), b, embed, x, s->embed_scale};
    gr_team_run(q->team, embed_rank, &e);
}

static void embed_back_rank(void *arg, unsigned rank, unsigned size)
{
    const struct embed *e = arg;
    uint64_t first, last;
    gr_team_range(e->h, 16, rank, size, &first, &last);
    for (size_t t = 0; t < e->b->n_tokens; t++) {
        if (e->b->ids[t] < 0) continue;
        float *to = e->to + (size_t)e->b->ids[t] * e->h + first;
        const float *from = e->from + t * e->h + first;
        if (e->scale == 1)
            e->v->add(to, from, last - first);
        else
            e->v->axpy(to, from, e->scale, last - first);
    }
}

uint64_t gr_cpu_embed_ws_bytes(uint32_t tokens)
{
    (void)tokens;
    return 0;
}

void gr_cpu_embed_backward(gr_queue *q, const gr_model_shape *s, const gr_packed *b, const void *dx,
                           void *grad_embed, gr_dtype grads, void *ws)
{
    assert(grads == GR_F32);
    (void)grads;
    (void)ws;
    struct embed e = {s->hidden, gr_simd_best(), b, dx, grad_embed, s->embed_scale};
    gr_team_run(q->team, embed_back_rank, &e);
}
