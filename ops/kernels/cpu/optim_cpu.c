/* ops/kernels/cpu/optim_cpu.c: kernels over flat arrays. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "ops/kernels/cpu/cpu.h"
#include "runtime/base/half.h"

enum { GRAIN = 4096, SUM_PARTS = 256 };

struct flat {
    const gr_simd *v;
    uint64_t n, part;
    const float *x;
    double *sums;
    gr_optim_kind kind;
    gr_optim_consts k;
    float decay, share;
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

static void blend_rank(void *arg, unsigned rank, unsigned size)
{
    const struct flat *f = arg;
    uint64_t first, last;
    gr_team_range(f->n, GRAIN, rank, size, &first, &last);
    for (uint64_t i = first; i < last; i++) f->w[i] = f->decay * f->w[i] + f->share * f->x[i];
}

void gr_cpu_blend(gr_queue *q, void *to, float *master, const void *from, float decay, float share,
                  uint64_t n)
{
    (void)master; /* weights are fp32 themselves */
    struct flat f = {.n = n, .w = to, .x = from, .decay = decay, .share = share};
    gr_team_run(q->team, blend_rank, &f);
}

/* ---- checksums -------------------------------------------------------------------------------------------
 */

struct summed {
    const char *x;
    uint64_t bytes, words, *parts;
};

static uint64_t word_at(const struct summed *f, uint64_t i, uint64_t bytes)
{
    uint64_t word = 0;
    memcpy(&word, f->x + i * sizeof(word), bytes);
    return gr_checksum_word(i, word);
}

static uint64_t sum_words(const struct summed *f, uint64_t first, uint64_t last)
{
    const uint64_t whole = GR_MIN(last, f->bytes / sizeof(uint64_t));
    uint64_t sum = 0;
    for (uint64_t i = first; i < whole; i++) sum += word_at(f, i, sizeof(uint64_t));
    return whole < last ? sum + word_at(f, whole, f->bytes % sizeof(uint64_t)) : sum;
}

static void sum_parts(void *arg, unsigned rank, unsigned size)
{
    const struct summed *f = arg;
    uint64_t first, last;
    gr_team_range(GR_CHECKSUM_PARTS, 1, rank, size, &first, &last);
    for (uint64_t p = first; p < last; p++)
        f->parts[p] = sum_words(f, f->words * p / GR_CHECKSUM_PARTS, f->words * (p + 1) / GR_CHECKSUM_PARTS);
}

void gr_host_checksum(gr_queue *q, const void *x, uint64_t bytes, uint64_t *parts)
{
    struct summed f = {x, bytes, (bytes + 7) / 8, parts};
    gr_team_run(q->team, sum_parts, &f);
}

uint64_t gr_checksum_of(const uint64_t *parts)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < GR_CHECKSUM_PARTS; i++) sum += parts[i];
    return sum;
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

static void step_n(const gr_simd *v, gr_optim_kind kind, const gr_optim_consts *k, float *w, const float *g,
                   float *m, float *second, uint64_t n)
{
    if (kind == GR_OPTIM_LION)
        v->lion(k, w, g, m, n);
    else if (kind == GR_OPTIM_SGD)
        v->sgd(k, w, g, m, n);
    else
        v->adamw(k, w, g, m, second, n);
}

static void optim_rank(void *arg, unsigned rank, unsigned size)
{
    const struct flat *f = arg;
    uint64_t a, b;
    gr_team_range(f->n, GRAIN, rank, size, &a, &b);
    step_n(f->v, f->kind, &f->k, f->w + a, f->x + a, f->m + a, f->s ? f->s + a : NULL, b - a);
}

static gr_optim_consts consts_of(const gr_optim *how, bool decay)
{
    const bool corrects = how->kind == GR_OPTIM_ADAMW;
    return (gr_optim_consts){.keep = (float)(1 - (decay ? how->lr * how->weight_decay : 0)),
                             .b1 = (float)(1 - how->beta1),
                             .beta2 = (float)how->beta2,
                             .b2 = (float)(1 - how->beta2),
                             .momentum = (float)how->beta1,
                             .decay = decay ? (float)how->weight_decay : 0,
                             .step_size =
                                 (float)(corrects ? how->lr / (1 - pow(how->beta1, how->step)) : how->lr),
                             .inv_sqrt_bc2 = corrects ? (float)(1 / sqrt(1 - pow(how->beta2, how->step))) : 0,
                             .eps = (float)how->eps,
                             .grad_scale = how->grad_scale};
}

void gr_cpu_optim_step(gr_queue *q, const gr_optim *how, bool decay, const gr_optim_range *r, uint64_t n)
{
    assert(!r->master && !r->low && r->grads == GR_F32);
    if (r->moments != GR_F32) {
        gr_host_optim_step(q, GR_F32, how, decay, r, n);
        return;
    }
    struct flat f = {
        .v = gr_simd_best(), .kind = how->kind, .n = n, .x = r->g, .w = r->w, .m = r->m, .s = r->v};
    f.k = consts_of(how, decay);
    gr_team_run(q->team, optim_rank, &f);
}

/* ---- muon -------------------------------------------------------------------------------------------------
 */

static void unit_rank(void *arg, unsigned rank, unsigned size)
{
    const struct flat *f = arg;
    uint64_t first, last;
    gr_team_range(f->n, GRAIN, rank, size, &first, &last);
    for (uint64_t i = first; i < last; i++) f->w[i] *= f->share;
}

void gr_cpu_to_unit(gr_queue *q, void *x, uint64_t n, const double *squares)
{
    struct flat f = {.n = n, .w = x, .share = (float)(1 / fmax(sqrt(*squares), 1e-7))};
    gr_team_run(q->team, unit_rank, &f);
}

/* share is 1 - mu, decay mu, and s is u. */
static void mix_rank(void *arg, unsigned rank, unsigned size)
{
    const struct flat *f = arg;
    uint64_t first, last;
    gr_team_range(f->n, GRAIN, rank, size, &first, &last);
    for (uint64_t i = first; i < last; i++) {
        const float g = f->x[i] * f->k.grad_scale;
        f->m[i] = f->m[i] + f->share * (g - f->m[i]);
        f->s[i] = g + f->decay * (f->m[i] - g);
    }
}

void gr_cpu_muon_mix(gr_queue *q, const gr_optim *how, const gr_optim_range *r, void *u, uint64_t n)
{
    assert(r->grads == GR_F32 && r->moments == GR_F32);
    struct flat f = {
        .n = n, .x = r->g, .m = r->m, .s = u, .share = (float)(1 - how->beta1), .decay = (float)how->beta1};
    f.k.grad_scale = how->grad_scale;
    gr_team_run(q->team, mix_rank, &f);
}

/* ---- on the host, for any device ----------------------------------------------------------------------- */

struct host_step {
    const gr_simd *v;
    gr_optim_kind kind;
    gr_optim_consts k;
    const gr_optim_range *r;
    gr_dtype weights;
    uint64_t n;
};

static char *element(const void *p, gr_dtype type, uint64_t i)
{
    return (char *)(uintptr_t)p + i * gr_dtype_size(type);
}

/* n elements as floats: in place where they are such, else in `room`. */
static float *widened(void *p, gr_dtype type, uint64_t n, float *room)
{
    const uint16_t *half = p;
    if (type == GR_F32) return p;
    for (uint64_t i = 0; i < n; i++) room[i] = gr_bf16_to_f32(half[i]);
    return room;
}

static void put_back(void *p, gr_dtype type, uint64_t n, const float *from)
{
    uint16_t *half = p;
    for (uint64_t i = 0; i < n && type != GR_F32; i++) half[i] = gr_f32_to_bf16(from[i]);
}

/* The first moment of a block, or (root) the second. */
static float *moment(const struct host_step *h, bool root, uint64_t at, uint64_t n, float *room)
{
    const gr_optim_range *r = h->r;
    char *p = element(root ? r->v : r->m, r->moments, at);
    if (r->moments != GR_I8) return widened(p, r->moments, n, room);
    h->v->moments_widen(root, p, (root ? r->v_scale : r->m_scale) + at / GR_MOMENT_BLOCK, room, n);
    return room;
}

static void put_moment(const struct host_step *h, bool root, uint64_t at, uint64_t n, const float *from)
{
    const gr_optim_range *r = h->r;
    char *p = element(root ? r->v : r->m, r->moments, at);
    const gr_chance by = {r->chance.key, r->chance.first + at};
    if (r->moments == GR_I8)
        h->v->moments_narrow(root, from, n, &by, p, (root ? r->v_scale : r->m_scale) + at / GR_MOMENT_BLOCK);
    else
        put_back(p, r->moments, n, from);
}

static float *joined(const gr_simd *v, const uint16_t *high, const uint16_t *low, uint64_t n, float *room)
{
    v->halves_join(high, low, room, n);
    return room;
}

/* Elements [at, at + n), n at most GRAIN: what is not fp32 goes through the stack. */
static void host_block(const struct host_step *h, uint64_t at, uint64_t n)
{
    float room[4][GRAIN];
    const gr_optim_range *r = h->r;
    char *w = element(r->w, h->weights, at), *g = element(r->g, r->grads, at);
    uint16_t *halves = (uint16_t *)(void *)w, *low = r->low ? r->low + at : NULL;
    float *master = low         ? joined(h->v, halves, low, n, room[0])
                    : r->master ? r->master + at
                                : widened(w, h->weights, n, room[0]);
    const float *grad = widened(g, r->grads, n, room[1]);
    float *first = moment(h, false, at, n, room[2]);
    float *second = r->v ? moment(h, true, at, n, room[3]) : NULL;
    step_n(h->v, h->kind, &h->k, master, grad, first, second, n);
    put_moment(h, false, at, n, first);
    if (r->v) put_moment(h, true, at, n, second);
    if (low)
        h->v->halves_split(master, halves, low, n);
    else
        put_back(w, h->weights, n, master);
    if (r->master && h->weights == GR_F32) memcpy(w, master, n * sizeof(float));
}

static void host_rank(void *arg, unsigned rank, unsigned size)
{
    const struct host_step *h = arg;
    uint64_t a, b;
    gr_team_range(h->n, GRAIN, rank, size, &a, &b);
    for (uint64_t at = a; at < b; at += GRAIN) host_block(h, at, GR_MIN((uint64_t)GRAIN, b - at));
}

void gr_host_optim_step(gr_queue *q, gr_dtype weights, const gr_optim *how, bool decay,
                        const gr_optim_range *r, uint64_t n)
{
    struct host_step h = {gr_simd_best(), how->kind, consts_of(how, decay), r, weights, n};
    gr_team_run(q->team, host_rank, &h);
}
