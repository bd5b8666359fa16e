/* ops/kernels/cpu/teach_cpu.c: how far each row of the head is from a teacher's, over the whole vocabulary,
 * and the slope of that by the row's logits.
 *
 * With p = softmax of the row's logits, t of the teacher's, D the divergence, d D / d z_i is, before the
 * temperature: forward p_i - t_i; reverse p_i (log p_i - log t_i - D); of a mixture m, (1 - beta) p_i (log
 * p_i - log m_i - KL(p || m)).
 */
#include <float.h>
#include <math.h>

#include "ops/kernels/cpu/head_cpu.h"

typedef struct teaching {
    const gr_head_teacher *t;
    const gr_simd *v;
    uint32_t n;
    size_t vocab;
    const float *logits, *lse; /* the student's */
    float *taught;             /* the teacher's logits, which become slopes */
    float *divergence;
} teaching;

/* log p and log t of one id, and the log of their mixture; finite also where a probability is 0. */
typedef struct logs {
    double p, t, m;
} logs;

static logs logs_of(const teaching *l, double z, double taught, double lse, double taught_lse)
{
    logs x = {fmax(z - lse, -1e4), fmax(taught - taught_lse, -1e4), 0};
    const double b = l->t->beta;
    if (l->t->kind == GR_JSD) x.m = log(fmax(b * exp(x.t) + (1 - b) * exp(x.p), DBL_MIN));
    return x;
}

/* What one id adds to the divergence, and to KL(p || m). */
static double part_of(const teaching *l, const logs *x, double *own)
{
    const double p = exp(x->p), t = exp(x->t), b = l->t->beta;
    if (l->t->kind == GR_FORWARD_KL) return t * (x->t - x->p);
    if (l->t->kind == GR_REVERSE_KL) return p * (x->p - x->t);
    *own += p * (x->p - x->m);
    return b * t * (x->t - x->m) + (1 - b) * p * (x->p - x->m);
}

static double slope_of(const teaching *l, const logs *x, double divergence, double own)
{
    const double p = exp(x->p);
    if (l->t->kind == GR_FORWARD_KL) return p - exp(x->t);
    if (l->t->kind == GR_REVERSE_KL) return p * (x->p - x->t - divergence);
    return (1 - (double)l->t->beta) * p * (x->p - x->m - own);
}

static void teach_row(const teaching *l, uint64_t i)
{
    const float *z = l->logits + i * l->vocab;
    float *taught = l->taught + i * l->vocab;
    const float max = l->v->max(taught, l->vocab);
    double sums[3], divergence = 0, own = 0;
    l->v->softmax_sums(taught, max, l->vocab, sums, NULL);
    const double lse = max + log(sums[0]);
    for (size_t k = 0; k < l->vocab; k++) {
        const logs x = logs_of(l, z[k], taught[k], l->lse[i], lse);
        divergence += part_of(l, &x, &own);
    }
    for (size_t k = 0; k < l->vocab; k++) {
        const logs x = logs_of(l, z[k], taught[k], l->lse[i], lse);
        taught[k] = (float)slope_of(l, &x, divergence, own);
    }
    l->divergence[i] = (float)divergence;
}

static void teach_rank(void *arg, unsigned rank, unsigned size)
{
    const teaching *l = arg;
    uint64_t first, last;
    gr_team_range(l->n, 1, rank, size, &first, &last);
    for (uint64_t i = first; i < last; i++) teach_row(l, i);
}

typedef struct teach_ws {
    float *slope;
    void *gemm;
} teach_ws;

static teach_ws layout(gr_workspace *c, const gr_model_shape *s, const gr_model_shape *teacher, uint32_t n,
                       unsigned threads)
{
    return (teach_ws){
        gr_workspace_floats(c, (uint64_t)n * s->vocab),
        gr_workspace_bytes(c, gr_cpu_product_ws_bytes(n, teacher->hidden, s->vocab, threads, false))};
}

uint64_t gr_cpu_teach_ws_bytes(const gr_model_shape *s, const gr_model_shape *teacher, uint32_t chunk_rows,
                               unsigned threads)
{
    gr_workspace c = {0};
    layout(&c, s, teacher, chunk_rows, threads);
    return c.used;
}

void gr_cpu_teach(gr_queue *q, const gr_model_shape *s, const gr_head_rows *rows, const gr_head_teacher *t,
                  float *divergence, void *ws, void *taught)
{
    if (!rows->n) return;
    gr_workspace own = {.base = ws}, c = {.base = taught};
    gr_head_ws w;
    gr_head_ws_layout(&own, s, rows->n, GR_HEAD_LOGPROB, gr_team_size(q->team), &w);
    const teach_ws to = layout(&c, s, t->s, rows->n, gr_team_size(q->team));
    gr_model_shape teacher = *t->s;
    teacher.vocab = s->vocab;
    gr_head_product(q, &teacher, t->lm, t->hidden, rows->n, rows->inv_temperature, to.slope, to.gemm);
    teaching l = {t, gr_simd_best(), rows->n, s->vocab, w.logits, w.lse, to.slope, divergence};
    gr_team_run(q->team, teach_rank, &l);
}
