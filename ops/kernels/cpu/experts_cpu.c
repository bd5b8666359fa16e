/* ops/kernels/cpu/experts_cpu.c: mixtures of experts on the CPU device, see ops/kernels/experts.h: tokens are
 * split between threads where each is by itself; products are one gr_gemm an expert, which splits its own.
 */
#include "ops/kernels/cpu/gemm.h"
#include "ops/kernels/experts.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* ---- jobs of products --------------------------------------------------------------------------------- */

/* n rows times the weights of one expert or of the router, and back. */
static gr_gemm_job forward_job(size_t n, uint32_t in, uint32_t out)
{
    return (gr_gemm_job){
        .m = n, .n = out, .k = in, .a = {NULL, in, false}, .b = {NULL, in, true}, .ldc = out};
}

static gr_gemm_job dx_job(size_t n, uint32_t in, uint32_t out)
{
    return (gr_gemm_job){
        .m = n, .n = in, .k = out, .a = {NULL, out, false}, .b = {NULL, in, false}, .ldc = in};
}

static gr_gemm_job dw_job(size_t n, uint32_t in, uint32_t out)
{
    return (gr_gemm_job){
        .m = out, .n = in, .k = n, .a = {NULL, out, true}, .b = {NULL, in, false}, .ldc = in, .add = true};
}

static uint64_t product_ws_bytes(uint32_t rows, uint32_t in, uint32_t out, unsigned threads, bool backward)
{
    const gr_gemm_job forward = forward_job(rows, in, out), dx = dx_job(rows, in, out),
                      dw = dw_job(rows, in, out);
    if (!backward) return gr_gemm_ws_bytes(&forward, threads);
    return GR_MAX(gr_gemm_ws_bytes(&dx, threads), gr_gemm_ws_bytes(&dw, threads));
}

/* ---- router -------------------------------------------------------------------------------------------- */

static void logits(gr_queue *q, const gr_router_product *p, const void *bias, float *out, void *ws)
{
    gr_gemm_job g = forward_job(p->T, p->H, p->E);
    g.a.p = p->x;
    g.b.p = p->w;
    g.c = out;
    if (p->w)
        gr_gemm(q, &g, ws);
    else
        memset(out, 0, (size_t)p->T * p->E * sizeof(*out));
    for (size_t t = 0; bias && t < p->T; t++) gr_simd_best()->add(out + t * p->E, bias, p->E);
}

static void logits_backward(gr_queue *q, const gr_router_product *p, const void *d_logits, bool add, void *dx,
                            void *grad, void *grad_bias, gr_dtype grads, void *ws)
{
    gr_gemm_job to_x = dx_job(p->T, p->H, p->E), to_w = dw_job(p->T, p->H, p->E);
    assert(grads == GR_F32);
    (void)grads;
    to_x.a.p = to_w.a.p = d_logits;
    to_x.b.p = p->w;
    to_x.c = dx;
    to_x.add = add;
    to_w.b.p = p->x;
    to_w.c = grad;
    gr_gemm(q, &to_x, ws);
    if (grad) gr_gemm(q, &to_w, ws);
    for (size_t t = 0; grad_bias && t < p->T; t++)
        gr_simd_best()->add(grad_bias, (const float *)d_logits + t * p->E, p->E);
}

struct routing {
    const gr_experts_desc *e;
    const float *logits, *selection, *d_weight;
    const uint16_t *given;
    uint32_t T;
    uint16_t *expert;
    float *weight, *d_logits;
};

/* Scores of all experts of a token: sigmoids, or the numerators of a softmax. Returns their sum. */
static float scores_of(const gr_experts_desc *e, const float *z, float *score)
{
    const gr_simd *v = gr_simd_best();
    const bool sigmoids = e->router == GR_ROUTER_SIGMOID;
    float lanes[16] = {0};
    v->scale(score, z, sigmoids ? -1 : 1, e->count);
    v->exp_sum(score, sigmoids ? 0 : v->max(z, e->count), lanes, e->count);
    for (uint32_t i = 0; sigmoids && i < e->count; i++) score[i] = 1 / (1 + score[i]);
    return gr_lanes_sum(lanes);
}

/* Floats in an order that all of them have: what is not a number is above the others, or below 0's. */
static uint32_t order_of(float x)
{
    uint32_t bits;
    x += 0.0f; /* there is one zero */
    memcpy(&bits, &x, sizeof(bits));
    bits = bits >> 31 ? ~bits : bits | UINT32_C(1) << 31;
    return GR_MAX(bits, 1); /* 0: not to be chosen */
}

/* What experts are compared by: logits, which have the order of their softmax, unless something is added. */
static void compared_by(const struct routing *r, const float *z, const float *score, float sum, float *by)
{
    const gr_experts_desc *e = r->e;
    const bool sigmoids = e->router == GR_ROUTER_SIGMOID, plain = !sigmoids && !r->selection && e->groups < 2;
    for (uint32_t i = 0; i < e->count; i++) {
        by[i] = plain ? z[i] : sigmoids ? score[i] : score[i] / sum;
        if (r->selection) by[i] += gr_selection_sum(r->selection + (size_t)i * GR_SELECTION_PARTS);
    }
}

/* The n best of keys, best first, equal ones by index; their keys become 0. */
static void take_best(uint32_t *key, uint32_t count, uint32_t n, uint16_t *best)
{
    for (uint32_t j = 0; j < n; j++) {
        uint32_t at = 0;
        for (uint32_t i = 1; i < count; i++)
            if (key[i] > key[at]) at = i;
        best[j] = (uint16_t)at;
        key[at] = 0;
    }
}

/* The sum of the two highest scores of a group. */
static float group_score(const float *score, uint32_t n)
{
    float first = -INFINITY, second = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (score[i] > first) {
            second = first;
            first = score[i];
        } else {
            second = fmaxf(second, score[i]);
        }
    }
    return n > 1 ? first + second : first;
}

/* Keys of experts outside the best groups become 0. */
static void keep_groups(const gr_experts_desc *e, const float *score, uint32_t *key)
{
    const uint32_t size = e->count / e->groups;
    uint32_t group[GR_GROUPS_MAX];
    uint16_t best[GR_GROUPS_MAX];
    bool kept[GR_GROUPS_MAX] = {false};
    for (uint32_t g = 0; g < e->groups; g++) group[g] = order_of(group_score(score + g * size, size));
    take_best(group, e->groups, e->top_groups, best);
    for (uint32_t g = 0; g < e->top_groups; g++) kept[best[g]] = true;
    for (uint32_t i = 0; i < e->count; i++)
        if (!kept[i / size]) key[i] = 0;
}

static void choose(const struct routing *r, const float *z, const float *score, float sum, uint16_t *expert)
{
    const gr_experts_desc *e = r->e;
    float by[GR_EXPERTS_MAX];
    uint32_t key[GR_EXPERTS_MAX];
    compared_by(r, z, score, sum, by);
    for (uint32_t i = 0; i < e->count; i++) key[i] = order_of(by[i]);
    if (e->groups > 1) keep_groups(e, by, key);
    take_best(key, e->count, e->top_k, expert);
}

static bool over_chosen(const gr_experts_desc *e)
{
    return e->normalize || (e->router == GR_ROUTER_SOFTMAX && e->softmax_after);
}

/* What scores are divided by; sum: of all. Sigmoids of the chosen ones may all be 0. */
static float divisor(const gr_experts_desc *e, const float *score, float sum, const uint16_t *expert)
{
    if (!over_chosen(e)) return e->router == GR_ROUTER_SIGMOID ? 1 : sum;
    float chosen = 0;
    for (uint32_t j = 0; j < e->top_k; j++) chosen += score[expert[j]];
    return chosen + 1e-20f;
}

static void route_token(const struct routing *r, const float *z, const uint16_t *given, uint16_t *expert,
                        float *weight)
{
    const gr_experts_desc *e = r->e;
    float score[GR_EXPERTS_MAX];
    const float sum = scores_of(e, z, score);
    if (given && given[0] != GR_NO_EXPERT)
        memmove(expert, given, e->top_k * sizeof(*expert));
    else
        choose(r, z, score, sum, expert);
    const float below = divisor(e, score, sum, expert);
    for (uint32_t j = 0; j < e->top_k; j++) weight[j] = e->scale * (score[expert[j]] / below);
}

static void route_rank(void *arg, unsigned rank, unsigned size)
{
    const struct routing *r = arg;
    const size_t E = r->e->count, k = r->e->top_k;
    uint64_t first, last;
    gr_team_range(r->T, 1, rank, size, &first, &last);
    for (size_t t = first; t < last; t++)
        route_token(r, r->logits + t * E, r->given ? r->given + t * k : NULL, r->expert + t * k,
                    r->weight + t * k);
}

static void route(gr_queue *q, const gr_experts_desc *e, const float *z, const void *selection,
                  const uint16_t *given, uint32_t T, uint16_t *expert, float *weight)
{
    struct routing r = {.e = e,
                        .logits = z,
                        .selection = selection,
                        .given = given,
                        .T = T,
                        .expert = expert,
                        .weight = weight};
    gr_team_run(q->team, route_rank, &r);
}

/* dz [E] of one token. With q_j = score_j / below and g_j = scale d_weight_j, the derivative by score_j is
 * (g_j - sum of q g) / below where below is a sum that score_j is in, else g_j / below. A softmax over all
 * has every score in it: experts that were not chosen have g = 0. */
static void token_backward(const struct routing *r, const float *z, const uint16_t *expert,
                           const float *d_weight, float *dz)
{
    const gr_experts_desc *e = r->e;
    const bool sigmoids = e->router == GR_ROUTER_SIGMOID, chosen = over_chosen(e);
    float score[GR_EXPERTS_MAX], dot = 0;
    const float sum = scores_of(e, z, score), below = divisor(e, score, sum, expert);
    for (uint32_t j = 0; j < e->top_k; j++) dot += score[expert[j]] / below * (e->scale * d_weight[j]);
    if (sigmoids && !chosen) dot = 0;
    for (uint32_t i = 0; i < e->count; i++) dz[i] = sigmoids || chosen ? 0 : score[i] / below * -dot;
    for (uint32_t j = 0; j < e->top_k; j++) {
        const float s = score[expert[j]], slope = s / below * (sigmoids ? 1 - s : 1);
        dz[expert[j]] = slope * (e->scale * d_weight[j] - dot);
    }
}

static void route_back_rank(void *arg, unsigned rank, unsigned size)
{
    const struct routing *r = arg;
    const uint32_t E = r->e->count, k = r->e->top_k;
    uint64_t first, last;
    gr_team_range(r->T, 1, rank, size, &first, &last);
    for (size_t t = first; t < last; t++)
        token_backward(r, r->logits + t * E, r->expert + t * k, r->d_weight + t * k, r->d_logits + t * E);
}

static void route_backward(gr_queue *q, const gr_experts_desc *e, const float *z, const uint16_t *expert,
                           const float *d_weight, uint32_t T, void *d_logits)
{
    struct routing r = {.e = e,
                        .logits = z,
                        .d_weight = d_weight,
                        .T = T,
                        .expert = (uint16_t *)(uintptr_t)expert,
                        .d_logits = d_logits};
    gr_team_run(q->team, route_back_rank, &r);
}

static void scale_choices(gr_queue *q, uint32_t k, uint32_t T, const uint16_t *expert, const void *scale,
                          const float *plain, float *weight)
{
    (void)q;
    for (size_t c = 0; c < (size_t)T * k; c++) weight[c] = plain[c] * ((const float *)scale)[expert[c]];
}

static void scale_choices_backward(gr_queue *q, uint32_t E, uint32_t k, uint32_t T, const uint16_t *expert,
                                   const void *scale, const float *plain, float *d_weight, void *grad,
                                   gr_dtype grads)
{
    assert(grads == GR_F32);
    (void)q, (void)E, (void)grads;
    for (size_t c = 0; c < (size_t)T * k; c++) {
        if (grad) ((float *)grad)[expert[c]] += d_weight[c] * plain[c];
        d_weight[c] *= ((const float *)scale)[expert[c]];
    }
}

/* ---- counting ------------------------------------------------------------------------------------------ */

static bool has_expert(const uint16_t *expert, uint32_t k, uint16_t which)
{
    for (uint32_t j = 0; j < k; j++)
        if (expert[j] == which) return true;
    return false;
}

static void compare(gr_queue *q, uint32_t k, uint32_t T, const uint16_t *expert, const uint16_t *recorded,
                    const gr_tally *t, uint32_t *differs)
{
    (void)q;
    for (size_t i = 0; i < T; i++) {
        bool other = false;
        if (recorded[i * k] == GR_NO_EXPERT) continue;
        for (uint32_t j = 0; j < k; j++) other = other || !has_expert(expert + i * k, k, recorded[i * k + j]);
        *t->compared += 1;
        *t->differ += other;
        *t->tokens += other && !differs[i];
        differs[i] = differs[i] || other;
    }
}

static void count(gr_queue *q, uint32_t E, uint32_t k, uint32_t T, const uint16_t *expert, double *load)
{
    (void)q, (void)E;
    for (size_t i = 0; i < (size_t)T * k; i++) load[expert[i]] += 1;
}

/* softmax(z) [E] */
static void softmax(const float *z, uint32_t E, float *p)
{
    static const gr_experts_desc plain = {.router = GR_ROUTER_SOFTMAX};
    gr_experts_desc e = plain;
    e.count = E;
    const float sum = scores_of(&e, z, p);
    for (uint32_t i = 0; i < E; i++) p[i] /= sum;
}

static void shares(gr_queue *q, uint32_t E, uint32_t T, const float *z, double *share)
{
    float p[GR_EXPERTS_MAX];
    (void)q;
    for (size_t t = 0; t < T; t++) {
        softmax(z + t * E, E, p);
        for (uint32_t e = 0; e < E; e++) share[e] += (double)p[e];
    }
}

static void pull(gr_queue *q, const gr_balance_loss *b, const double *load, float *out)
{
    double all = 0;
    (void)q;
    for (size_t i = 0; i < (size_t)b->routers * b->experts; i++) all += load[i];
    const double n = all / b->top_k;
    for (uint32_t e = 0; e < b->experts; e++) {
        double own = 0;
        for (size_t r = 0; r < b->routers; r++) own += load[r * b->experts + e];
        out[e] = (float)(n > 0 ? b->coefficient * b->experts * own / (n * n) : 0);
    }
}

static void rebalance(gr_queue *q, uint32_t E, const double *load, uint32_t first, uint32_t n, float rate,
                      void *bias)
{
    float *part = bias;
    double mean = 0;
    (void)q;
    for (uint32_t e = 0; e < E; e++) mean += load[e];
    mean /= E;
    for (uint32_t i = 0; i < n; i++) {
        const double own = load[first + i];
        const float by = own < mean ? rate : own > mean ? -rate : 0;
        gr_selection_parts(gr_selection_sum(part) + by, part);
        part += GR_SELECTION_PARTS;
    }
}

/* With p = softmax(z): the derivative of the sum of pull p by z_i is p_i (pull_i - the sum of pull p). */
static void balance_rank(void *arg, unsigned rank, unsigned size)
{
    const struct routing *r = arg;
    const size_t E = r->e->count;
    float p[GR_EXPERTS_MAX];
    uint64_t first, last;
    gr_team_range(r->T, 1, rank, size, &first, &last);
    for (size_t t = first; t < last; t++) {
        float mean = 0;
        softmax(r->logits + t * E, r->e->count, p);
        for (size_t e = 0; e < E; e++) mean += r->d_weight[e] * p[e];
        for (size_t e = 0; e < E; e++) r->d_logits[t * E + e] += p[e] * (r->d_weight[e] - mean);
    }
}

static void balance_backward(gr_queue *q, uint32_t E, uint32_t T, const float *z, const float *pull,
                             void *d_logits)
{
    const gr_experts_desc e = {.count = E};
    struct routing r = {.e = &e, .logits = z, .d_weight = pull, .T = T, .d_logits = d_logits};
    gr_team_run(q->team, balance_rank, &r);
}

/* ---- dispatch and combine ------------------------------------------------------------------------------ */

static uint64_t dispatch_ws_bytes(uint32_t E, uint32_t k, uint32_t T)
{
    (void)k, (void)T;
    return E * sizeof(uint32_t);
}

static void dispatch(gr_queue *q, uint32_t E, uint32_t k, uint32_t T, const uint16_t *expert,
                     const gr_dispatch *to, void *ws)
{
    (void)q;
    uint32_t *next = ws;
    const size_t rows = (size_t)T * k;
    memset(next, 0, E * sizeof(*next));
    for (size_t c = 0; c < rows; c++) next[expert[c]]++;
    to->first[0] = 0;
    for (uint32_t e = 0; e < E; e++) {
        to->first[e + 1] = to->first[e] + next[e];
        next[e] = to->first[e];
    }
    for (size_t c = 0; c < rows; c++) {
        const uint32_t row = next[expert[c]]++;
        to->row[c] = row;
        to->choice[row] = (uint32_t)c;
    }
}

struct moving {
    const gr_simd *v;
    const gr_dispatch *d;
    uint32_t k, n, H;
    const float *from, *weight, *base;
    float scale;
    float *to;
};

static void gather_rank(void *arg, unsigned rank, unsigned size)
{
    const struct moving *m = arg;
    uint64_t first, last;
    gr_team_range(m->n, 1, rank, size, &first, &last);
    for (size_t r = first; r < last; r++)
        memcpy(m->to + r * m->H, m->from + (size_t)(m->d->choice[r] / m->k) * m->H, m->H * sizeof(*m->to));
}

static void gather(gr_queue *q, const gr_dispatch *d, uint32_t k, uint32_t T, uint32_t H, const void *x,
                   void *rows)
{
    struct moving m = {.d = d, .k = k, .n = T * k, .H = H, .from = x, .to = rows};
    gr_team_run(q->team, gather_rank, &m);
}

static void combine_rank(void *arg, unsigned rank, unsigned size)
{
    const struct moving *m = arg;
    uint64_t first, last;
    gr_team_range(m->n, 1, rank, size, &first, &last);
    for (size_t t = first; t < last; t++) {
        float *y = m->to + t * m->H;
        if (!m->base)
            memset(y, 0, m->H * sizeof(*y));
        else if (m->base != m->to)
            memcpy(y, m->base + t * m->H, m->H * sizeof(*y));
        for (size_t c = t * m->k; c < (t + 1) * m->k; c++)
            m->v->axpy(y, m->from + (size_t)m->d->row[c] * m->H, m->scale * (m->weight ? m->weight[c] : 1),
                       m->H);
    }
}

static void combine(gr_queue *q, const gr_dispatch *d, uint32_t k, uint32_t T, uint32_t H, const void *rows,
                    const float *weight, const void *base, float scale, void *y)
{
    struct moving m = {.v = gr_simd_best(),
                       .d = d,
                       .k = k,
                       .n = T,
                       .H = H,
                       .from = rows,
                       .weight = weight,
                       .base = base,
                       .scale = scale,
                       .to = y};
    gr_team_run(q->team, combine_rank, &m);
}

static void choice_rows(gr_queue *q, const gr_dispatch *d, uint32_t R, uint32_t held, const uint16_t *expert,
                        const float *weight, uint16_t *row_expert, float *row_weight)
{
    (void)q;
    for (size_t r = 0; r < R; r++) {
        row_expert[r] = (uint16_t)(expert[d->choice[r]] % held);
        if (weight) row_weight[r] = weight[d->choice[r]];
    }
}

static void choice_back(gr_queue *q, const gr_dispatch *d, uint32_t R, const float *rows, float *to)
{
    (void)q;
    for (size_t r = 0; r < R; r++) to[d->choice[r]] = rows[r];
}

/* ---- products ------------------------------------------------------------------------------------------ */

static uint32_t rows_of(const gr_expert_product *p, uint32_t e)
{
    return p->first[e + 1] - p->first[e];
}

static const float *weights_of(const gr_expert_product *p, uint32_t e)
{
    return (const float *)p->w + (size_t)e * p->out * p->in;
}

static void product(gr_queue *q, const gr_expert_product *p, const void *x, const void *bias, void *y,
                    void *ws)
{
    const gr_simd *v = gr_simd_best();
    for (uint32_t e = 0; e < p->experts; e++) {
        const size_t n = rows_of(p, e), at = p->first[e];
        gr_gemm_job g = forward_job(n, p->in, p->out);
        if (!n) continue;
        g.a.p = (const float *)x + at * p->in;
        g.b.p = weights_of(p, e);
        g.c = (float *)y + at * p->out;
        gr_gemm(q, &g, ws);
        for (size_t r = 0; bias && r < n; r++)
            v->add(g.c + r * p->out, (const float *)bias + (size_t)e * p->out, p->out);
    }
}

static void product_dx(gr_queue *q, const gr_expert_product *p, const void *dy, void *dx, void *ws)
{
    for (uint32_t e = 0; e < p->experts; e++) {
        const size_t n = rows_of(p, e), at = p->first[e];
        gr_gemm_job g = dx_job(n, p->in, p->out);
        g.a.p = (const float *)dy + at * p->out;
        g.b.p = weights_of(p, e);
        g.c = (float *)dx + at * p->in;
        if (n) gr_gemm(q, &g, ws);
    }
}

static void product_dw(gr_queue *q, const gr_expert_product *p, const void *dy, const void *x, void *grad,
                       gr_dtype grads, void *ws)
{
    assert(grads == GR_F32);
    (void)grads;
    for (uint32_t e = 0; e < p->experts; e++) {
        const size_t n = rows_of(p, e), at = p->first[e];
        gr_gemm_job g = dw_job(n, p->in, p->out);
        g.a.p = (const float *)dy + at * p->out;
        g.b.p = (const float *)x + at * p->in;
        g.c = (float *)grad + (size_t)e * p->out * p->in;
        if (n) gr_gemm(q, &g, ws);
    }
}

static void bias_backward(gr_queue *q, const gr_dispatch *d, uint32_t E, uint32_t cols, const void *dy,
                          const float *weight, void *grad, gr_dtype grads)
{
    const gr_simd *v = gr_simd_best();
    assert(grads == GR_F32);
    (void)q, (void)grads;
    for (uint32_t e = 0; e < E; e++)
        for (size_t r = d->first[e]; r < d->first[e + 1]; r++)
            v->axpy((float *)grad + (size_t)e * cols, (const float *)dy + r * cols,
                    weight ? weight[d->choice[r]] : 1, cols);
}

static void bias_dot(gr_queue *q, const gr_dispatch *d, uint32_t E, uint32_t R, uint32_t H, const void *dy,
                     const void *bias, float *dot)
{
    const gr_simd *v = gr_simd_best();
    (void)q, (void)R;
    for (uint32_t e = 0; e < E; e++)
        for (size_t r = d->first[e]; r < d->first[e + 1]; r++)
            dot[r] = v->dot((const float *)dy + r * H, (const float *)bias + (size_t)e * H, H);
}

/* ---- activation ---------------------------------------------------------------------------------------- */

struct acting {
    const gr_simd *v;
    const gr_expert_act *a;
    const gr_dispatch *d;
    const float *weight, *base, *gate_up, *dh;
    float *h, *d_gate_up, *d_weight;
};

#define OAI_ALPHA 1.702f
#define GELU_C    1.5957691216057308f /* 2 sqrt(2 / pi): 1 + tanh(x) is 2 sigmoid(2 x) */
#define GELU_CUBE 0.044715f

enum { PART = 256 }; /* of a row, at a time */

/* gate sigmoid(at) is the activation: at, and its derivative by gate. */
static float sigmoid_at(const gr_expert_act *a, float gate, float *slope)
{
    const bool oai = a->act == GR_ACT_SWIGLU_OAI;
    *slope = oai ? OAI_ALPHA : GELU_C * (1 + 3 * GELU_CUBE * gate * gate);
    return gate * (oai ? OAI_ALPHA : GELU_C * (1 + GELU_CUBE * gate * gate));
}

static float gate_of(const gr_expert_act *a, float gate)
{
    return a->act == GR_ACT_SWIGLU_OAI ? fminf(gate, a->limit) : gate;
}

static float up_of(const gr_expert_act *a, float up)
{
    return a->act == GR_ACT_SWIGLU_OAI ? fmaxf(fminf(up, a->limit), -a->limit) + 1 : up;
}

/* s [n]: the sigmoids of a part of a row of gate. */
static void gate_sigmoids(const struct acting *c, const float *gate, size_t n, float *s)
{
    float lanes[16] = {0}, slope;
    for (size_t i = 0; i < n; i++) s[i] = -sigmoid_at(c->a, gate_of(c->a, gate[i]), &slope);
    c->v->exp_sum(s, 0, lanes, n);
    for (size_t i = 0; i < n; i++) s[i] = 1 / (1 + s[i]);
}

static void other_act(const struct acting *c, const float *gate, const float *up, float *h, size_t n)
{
    float s[PART];
    gate_sigmoids(c, gate, n, s);
    for (size_t i = 0; i < n; i++) h[i] = gate_of(c->a, gate[i]) * s[i] * up_of(c->a, up[i]);
}

/* Beyond the limits gradients end. d_gate == dh is fine. */
static void other_act_back(const struct acting *c, const float *gate, const float *up, const float *dh,
                           float *d_gate, float *d_up, size_t n)
{
    const gr_expert_act *a = c->a;
    const float limit = a->act == GR_ACT_SWIGLU_OAI ? a->limit : INFINITY;
    float s[PART], at;
    gate_sigmoids(c, gate, n, s);
    for (size_t i = 0; i < n; i++) {
        const float g = gate_of(a, gate[i]), d = dh[i];
        sigmoid_at(a, g, &at);
        d_gate[i] = gate[i] > limit ? 0 : d * up_of(a, up[i]) * (s[i] + g * s[i] * (1 - s[i]) * at);
        d_up[i] = fabsf(up[i]) > limit ? 0 : d * g * s[i];
    }
}

static void act_row(const struct acting *c, const float *gate_up, float *h)
{
    const size_t n = c->a->inner;
    if (c->a->act == GR_ACT_SILU) {
        c->v->silu_mul(h, gate_up, gate_up + n, n);
        return;
    }
    for (size_t i = 0; i < n; i += PART)
        other_act(c, gate_up + i, gate_up + n + i, h + i, GR_MIN(n - i, (size_t)PART));
}

static void act_row_back(const struct acting *c, const float *gate_up, const float *dh, float *d)
{
    const size_t n = c->a->inner;
    if (c->a->act == GR_ACT_SILU) {
        c->v->silu_mul_back(d, d + n, dh, gate_up, gate_up + n, n);
        return;
    }
    for (size_t i = 0; i < n; i += PART)
        other_act_back(c, gate_up + i, gate_up + n + i, dh + i, d + i, d + n + i,
                       GR_MIN(n - i, (size_t)PART));
}

static void act_rank(void *arg, unsigned rank, unsigned size)
{
    const struct acting *c = arg;
    const size_t n = c->a->inner;
    uint64_t first, last;
    gr_team_range(c->a->rows, 1, rank, size, &first, &last);
    for (size_t r = first; r < last; r++) act_row(c, c->gate_up + r * 2 * n, c->h + r * n);
}

static void activate(gr_queue *q, const gr_expert_act *a, const void *gate_up, void *h)
{
    struct acting c = {.v = gr_simd_best(), .a = a, .gate_up = gate_up, .h = h};
    gr_team_run(q->team, act_rank, &c);
}

/* In a row of d_gate_up: first h, which d_weight and weighted come from, then weight dh, then what they give.
 */
static void act_back_rank(void *arg, unsigned rank, unsigned size)
{
    const struct acting *c = arg;
    const size_t n = c->a->inner;
    uint64_t first, last;
    gr_team_range(c->a->rows, 1, rank, size, &first, &last);
    for (size_t r = first; r < last; r++) {
        const float *gate_up = c->gate_up + r * 2 * n, *dh = c->dh + r * n;
        const uint32_t choice = c->d ? c->d->choice[r] : 0;
        const float weight = c->d ? c->weight[choice] : 1;
        float *d = c->d_gate_up + r * 2 * n, *h = d + n;
        act_row(c, gate_up, h);
        if (c->d) c->d_weight[choice] = (c->base ? c->base[r] : 0) + c->v->dot(dh, h, n);
        c->v->scale(d, dh, weight, n);
        c->v->scale(c->h + r * n, h, weight, n); /* dh may be overwritten from here on */
        act_row_back(c, gate_up, d, d);
    }
}

static void activate_backward(gr_queue *q, const gr_expert_act *a, const gr_dispatch *d, const float *weight,
                              const float *base, const void *gate_up, const void *dh, void *d_gate_up,
                              void *weighted, float *d_weight)
{
    struct acting c = {.v = gr_simd_best(),
                       .a = a,
                       .d = d,
                       .weight = weight,
                       .base = base,
                       .gate_up = gate_up,
                       .dh = dh,
                       .h = weighted,
                       .d_gate_up = d_gate_up,
                       .d_weight = d_weight};
    gr_team_run(q->team, act_back_rank, &c);
}

const gr_experts_ops gr_experts_cpu = {
    .logits = logits,
    .logits_backward = logits_backward,
    .logits_ws_bytes = product_ws_bytes,
    .route = route,
    .route_backward = route_backward,
    .scale_choices = scale_choices,
    .scale_choices_backward = scale_choices_backward,
    .compare = compare,
    .count = count,
    .shares = shares,
    .pull = pull,
    .rebalance = rebalance,
    .balance_backward = balance_backward,
    .dispatch_ws_bytes = dispatch_ws_bytes,
    .dispatch = dispatch,
    .gather = gather,
    .combine = combine,
    .choice_rows = choice_rows,
    .choice_back = choice_back,
    .product_ws_bytes = product_ws_bytes,
    .product = product,
    .product_dx = product_dx,
    .product_dw = product_dw,
    .bias_backward = bias_backward,
    .activate = activate,
    .activate_backward = activate_backward,
    .bias_dot = bias_dot,
};
