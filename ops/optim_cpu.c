/* ops/optim_cpu.c: kernels over flat arrays. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "ops/cpu.h"

enum { GRAIN = 4096, SUM_PARTS = 256 };

struct flat {
    const gr_simd *v;
    uint64_t n, part;
    const float *x;
    double *sums;
    gr_adamw_consts k;
    float *w, *m, *s;
    char *bytes;
};

static void zero_rank(void *arg, unsigned rank, unsigned size)
{
    const struct flat *f = arg;
    uint64_t first, last;
    gr_team_range(f->n, GRAIN, rank, size, &first, &last);
    memset(f->bytes + first, 0, last - first);
}

void gr_cpu_zero(gr_queue *q, void *p, uint64_t bytes)
{
    struct flat f = {.n = bytes, .bytes = p};
    gr_team_run(q->team, zero_rank, &f);
}

static void add_rank(void *arg, unsigned rank, unsigned size)
{
    const struct flat *f = arg;
    uint64_t first, last;
    gr_team_range(f->n, GRAIN, rank, size, &first, &last);
    for (uint64_t i = first; i < last; i++) f->w[i] += f->x[i];
}

void gr_cpu_add(gr_queue *q, void *to, const void *from, gr_dtype type, uint64_t n)
{
    assert(type == GR_F32);
    (void)type;
    struct flat f = {.n = n, .w = to, .x = from};
    gr_team_run(q->team, add_rank, &f);
}

uint64_t gr_cpu_sum_squares_ws_bytes(void)
{
    return 0;
}

static void sum_rank(void *arg, unsigned rank, unsigned size)
{
    const struct flat *f = arg;
    uint64_t first, last;
    gr_team_range(SUM_PARTS, 1, rank, size, &first, &last);
    for (uint64_t i = first; i < last; i++) {
        const uint64_t at = GR_MIN(i * f->part, f->n);
        f->sums[i] = f->v->sum_squares(f->x + at, GR_MIN(f->part, f->n - at));
    }
}

/* Parts whose size depends on n alone, then their sums in order. */
void gr_cpu_sum_squares(gr_queue *q, const void *x, gr_dtype type, uint64_t n, double *out, void *ws)
{
    assert(type == GR_F32);
    (void)type;
    (void)ws;
    double sums[SUM_PARTS], total = 0;
    struct flat f = {.v = gr_simd_best(), .n = n, .part = n / SUM_PARTS / 16 * 16 + 16, .x = x, .sums = sums};
    gr_team_run(q->team, sum_rank, &f);
    for (size_t i = 0; i < SUM_PARTS; i++) total += sums[i];
    *out = total;
}

static void adamw_rank(void *arg, unsigned rank, unsigned size)
{
    const struct flat *f = arg;
    uint64_t a, b;
    gr_team_range(f->n, GRAIN, rank, size, &a, &b);
    f->v->adamw(&f->k, f->w + a, f->x + a, f->m + a, f->s + a, b - a);
}

void gr_cpu_adamw(gr_queue *q, const gr_adamw *how, bool decay, const gr_adamw_range *r, uint64_t n)
{
    assert(!r->master && r->grads == GR_F32 && r->moments == GR_F32);
    struct flat f = {.v = gr_simd_best(), .n = n, .x = r->g, .w = r->w, .m = r->m, .s = r->v};
    f.k.keep = (float)(1 - (decay ? how->lr * how->weight_decay : 0));
    f.k.b1 = (float)(1 - how->beta1);
    f.k.beta2 = (float)how->beta2;
    f.k.b2 = (float)(1 - how->beta2);
    f.k.step_size = (float)(how->lr / (1 - pow(how->beta1, how->step)));
    f.k.inv_sqrt_bc2 = (float)(1 / sqrt(1 - pow(how->beta2, how->step)));
    f.k.eps = (float)how->eps;
    f.k.grad_scale = how->grad_scale;
    gr_team_run(q->team, adamw_rank, &f);
}
