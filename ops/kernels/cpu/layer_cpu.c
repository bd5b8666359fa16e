/* ops/kernels/cpu/layer_cpu.c: the primitives of a layer on the CPU device, but attention: norms, products,
 * activations. Gradients of vectors (norms, biases) are split between threads by column, so that each is one
 * sum over tokens in order.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "ops/kernels/cpu/cpu.h"
#include "ops/kernels/experts.h"
#include "runtime/comm/comm.h"

/* ---- products ------------------------------------------------------------------------------------------ */

static void linear(gr_queue *q, const gr_product *p, float *y, void *ws)
{
    if (p->scales) {
        gr_cpu_fp8_product(q, p, y, ws);
        return;
    }
    gr_gemm_job g = {p->t, p->out, p->in, {p->x, p->in, false}, {p->w, p->in, true}, y, p->out, false, NULL};
    gr_gemm(q, &g, ws);
}

uint64_t gr_cpu_product_ws_bytes(uint32_t t, uint32_t in, uint32_t out, unsigned threads, bool backward)
{
    const gr_gemm_job forward = {.m = t, .n = out, .k = in, .b = {.transposed = true}};
    const gr_gemm_job to_x = {.m = t, .n = in, .k = out};
    const gr_gemm_job to_w = {.m = out, .n = in, .k = t, .a = {.transposed = true}};
    if (!backward) return gr_gemm_ws_bytes(&forward, threads);
    return GR_MAX(gr_gemm_ws_bytes(&to_x, threads), gr_gemm_ws_bytes(&to_w, threads));
}

/* y [t, cols]: to every row a row is added. */
struct bias_job {
    const gr_simd *v;
    const float *bias;
    float *y;
    size_t t, cols;
};

static void bias_rank(void *arg, unsigned rank, unsigned size)
{
    const struct bias_job *j = arg;
    uint64_t first, last;
    gr_team_range(j->t, 1, rank, size, &first, &last);
    for (uint64_t t = first; t < last; t++) j->v->add(j->y + t * j->cols, j->bias, j->cols);
}

void gr_cpu_product(gr_queue *q, const gr_product *p, void *y, void *ws)
{
    struct bias_job bias = {gr_simd_best(), p->bias, y, p->t, p->out};
    linear(q, p, y, ws);
    if (p->bias) gr_team_run(q->team, bias_rank, &bias);
}

/* y = add + scale x, all of n. */
struct sum_job {
    const gr_simd *v;
    const float *add, *x;
    float *y;
    float scale;
    uint64_t n;
};

static void sum_rank(void *arg, unsigned rank, unsigned size)
{
    const struct sum_job *j = arg;
    uint64_t first, last;
    gr_team_range(j->n, 4096, rank, size, &first, &last);
    const uint64_t n = last - first;
    if (j->y != j->add) memcpy(j->y + first, j->add + first, n * sizeof(float));
    if (j->scale == 1)
        j->v->add(j->y + first, j->x + first, n);
    else
        j->v->axpy(j->y + first, j->x + first, j->scale, n);
}

void gr_cpu_product_add(gr_queue *q, const gr_product *p, const void *add, float scale, bool sliced, void *y,
                        void *temp, void *ws)
{
    const uint64_t n = (uint64_t)p->t * p->out;
    struct sum_job sum = {gr_simd_best(), add, temp, y, scale, n};
    gr_cpu_product(q, p, temp, ws);
    if (sliced) gr_tp_sum(q, temp, n * sizeof(float), GR_COMM_SUM_F32);
    gr_team_run(q->team, sum_rank, &sum);
}

/* y = scale x, all of n. */
struct scale_job {
    const gr_simd *v;
    const float *x;
    float *y, scale;
    uint64_t n;
};

static void scale_rank(void *arg, unsigned rank, unsigned size)
{
    const struct scale_job *j = arg;
    uint64_t first, last;
    gr_team_range(j->n, 4096, rank, size, &first, &last);
    j->v->scale(j->y + first, j->x + first, j->scale, last - first);
}

void gr_cpu_scale(gr_queue *q, const void *x, float scale, uint64_t n, void *y)
{
    struct scale_job j = {gr_simd_best(), x, y, scale, n};
    gr_team_run(q->team, scale_rank, &j);
}

void gr_cpu_scale_by(gr_queue *q, void *x, const void *by, uint64_t n)
{
    gr_cpu_scale(q, x, *(const float *)by, n, x);
}

void gr_cpu_product_dx(gr_queue *q, const gr_product *p, const void *dy, void *dx, void *ws)
{
    if (p->scales) {
        gr_cpu_fp8_product_dx(q, p, dy, dx, ws);
        return;
    }
    gr_gemm_job g = {p->t, p->in, p->out, {dy, p->out, false}, {p->w, p->in, false}, dx, p->in, false, NULL};
    gr_gemm(q, &g, ws);
}

void gr_cpu_product_dw(gr_queue *q, const gr_product *p, const void *dy, void *grad, gr_dtype grads, void *ws)
{
    gr_gemm_job g = {p->out, p->in, p->t, {dy, p->out, true}, {p->x, p->in, false}, grad, p->in, true, NULL};
    assert(grads == GR_F32);
    (void)grads;
    if (p->dw_fp8)
        gr_cpu_fp8_product_dw(q, p, dy, grad, ws);
    else
        gr_gemm(q, &g, ws);
}

struct columns_job {
    const gr_simd *v;
    const float *d;
    float *grad;
    size_t t, cols;
};

static void columns_rank(void *arg, unsigned rank, unsigned size)
{
    const struct columns_job *j = arg;
    uint64_t first, last;
    gr_team_range(j->cols, 16, rank, size, &first, &last);
    for (size_t t = 0; t < j->t; t++) j->v->add(j->grad + first, j->d + t * j->cols + first, last - first);
}

void gr_cpu_column_sums(gr_queue *q, const void *d, uint32_t t, uint32_t cols, void *grad, gr_dtype grads,
                        void *ws)
{
    struct columns_job j = {gr_simd_best(), d, grad, t, cols};
    (void)ws;
    assert(grads == GR_F32);
    (void)grads;
    gr_team_run(q->team, columns_rank, &j);
}

/* ---- RMSNorm (Zhang and Sennrich, arXiv:1910.07467) ---------------------------------------------------- */

float gr_rms_inv(const gr_simd *v, const float *x, size_t n, float eps)
{
    return 1 / sqrtf(v->dot(x, x, n) / (float)n + eps);
}

enum { PIECE = 1024 }; /* of a weight vector, with 1 added */

static const float *add_one(const float *w, size_t n, float piece[PIECE])
{
    for (size_t i = 0; i < n; i++) piece[i] = 1 + w[i];
    return piece;
}

void gr_rms_norm(const gr_simd *v, float *y, const float *x, const float *w, bool plus_one, float inv,
                 size_t n)
{
    float piece[PIECE];
    if (!w) {
        v->scale(y, x, inv, n);
        return;
    }
    if (!plus_one) v->rms_apply(y, x, w, inv, n);
    for (size_t i = 0; plus_one && i < n; i += PIECE) {
        const size_t m = GR_MIN(n - i, (size_t)PIECE);
        v->rms_apply(y + i, x + i, add_one(w + i, m, piece), inv, m);
    }
}

void gr_rms_back(const gr_simd *v, float *dx, const float *base, const float *dy, const float *x,
                 const float *w, bool plus_one, float inv, size_t n)
{
    float piece[PIECE], sum = 0;
    if (!w) {
        const float c = inv * inv * inv * v->dot(dy, x, n) / (float)n;
        v->scale(dx, dy, inv, n);
        v->axpy(dx, x, -c, n);
        assert(!base);
        return;
    }
    if (!plus_one) {
        const float c = inv * inv * inv * v->dot3(dy, w, x, n) / (float)n;
        v->rms_back(dx, base, dy, x, w, inv, c, n);
        return;
    }
    for (size_t i = 0; i < n; i += PIECE) {
        const size_t m = GR_MIN(n - i, (size_t)PIECE);
        sum += v->dot3(dy + i, add_one(w + i, m, piece), x + i, m);
    }
    for (size_t i = 0; i < n; i += PIECE) {
        const size_t m = GR_MIN(n - i, (size_t)PIECE);
        v->rms_back(dx + i, base ? base + i : NULL, dy + i, x + i, add_one(w + i, m, piece), inv,
                    inv * inv * inv * sum / (float)n, m);
    }
}

struct norm_job {
    const gr_simd *v;
    const gr_norm *c;
    const float *add;
    float *y;
};

static const float *row_of(const gr_norm *c, uint64_t i)
{
    return (const float *)c->x + i * c->cols;
}

static void norm_rank(void *arg, unsigned rank, unsigned size)
{
    const struct norm_job *j = arg;
    const gr_norm *c = j->c;
    uint64_t first, last;
    gr_team_range(c->n, 1, rank, size, &first, &last);
    for (uint64_t t = first; t < last; t++) {
        const float *x = row_of(c, t);
        gr_rms_norm(j->v, j->y + t * c->cols, x, c->w, c->plus_one, gr_rms_inv(j->v, x, c->cols, c->eps),
                    c->cols);
    }
}

void gr_cpu_norm(gr_queue *q, const gr_norm *c, void *y)
{
    struct norm_job j = {gr_simd_best(), c, NULL, y};
    gr_team_run(q->team, norm_rank, &j);
}

static void norm_add_rank(void *arg, unsigned rank, unsigned size)
{
    const struct norm_job *j = arg;
    const gr_norm *c = j->c;
    const float *w = c->w, one = c->plus_one;
    uint64_t first, last;
    gr_team_range(c->n, 1, rank, size, &first, &last);
    for (uint64_t t = first; t < last; t++) {
        const float *x = row_of(c, t), *add = j->add + t * c->cols,
                    inv = gr_rms_inv(j->v, x, c->cols, c->eps);
        float *y = j->y + t * c->cols;
        for (uint32_t i = 0; i < c->cols; i++) y[i] = add[i] + x[i] * inv * (one + w[i]);
    }
}

void gr_cpu_norm_add(gr_queue *q, const gr_norm *c, const void *add, void *y)
{
    struct norm_job j = {gr_simd_best(), c, add, y};
    gr_team_run(q->team, norm_add_rank, &j);
}

struct norm_back_job {
    const gr_simd *v;
    const gr_norm *c;
    const float *dy;
    float *dx, *grad, *inv; /* inv [n] */
    bool add;
};

static void inv_rank(void *arg, unsigned rank, unsigned size)
{
    const struct norm_back_job *j = arg;
    uint64_t first, last;
    gr_team_range(j->c->n, 1, rank, size, &first, &last);
    for (uint64_t t = first; t < last; t++)
        j->inv[t] = gr_rms_inv(j->v, row_of(j->c, t), j->c->cols, j->c->eps);
}

static void norm_grad_rank(void *arg, unsigned rank, unsigned size)
{
    const struct norm_back_job *j = arg;
    const size_t h = j->c->cols;
    uint64_t first, last;
    gr_team_range(h, 16, rank, size, &first, &last);
    for (uint64_t t = 0; t < j->c->n; t++)
        j->v->mul_axpy(j->grad + first, row_of(j->c, t) + first, j->dy + t * h + first, j->inv[t],
                       last - first);
}

static void norm_back_rank(void *arg, unsigned rank, unsigned size)
{
    const struct norm_back_job *j = arg;
    const size_t h = j->c->cols;
    uint64_t first, last;
    gr_team_range(j->c->n, 1, rank, size, &first, &last);
    for (uint64_t t = first; t < last; t++) {
        float *dx = j->dx + t * h;
        gr_rms_back(j->v, dx, j->add ? dx : NULL, j->dy + t * h, row_of(j->c, t), j->c->w, j->c->plus_one,
                    j->inv[t], h);
    }
}

void gr_cpu_norm_backward(gr_queue *q, const gr_norm *c, const void *dy, void *dx, bool add, void *grad,
                          gr_dtype grads, void *ws)
{
    struct norm_back_job j = {gr_simd_best(), c, dy, dx, grad, ws, add};
    assert(grads == GR_F32);
    (void)grads;
    gr_team_run(q->team, inv_rank, &j);
    if (grad) gr_team_run(q->team, norm_grad_rank, &j); /* first: dx may be dy */
    gr_team_run(q->team, norm_back_rank, &j);
}

uint64_t gr_cpu_back_ws_bytes(const gr_layer_desc *d, uint32_t hidden, uint32_t tokens)
{
    const gr_attention_desc *a = &d->attention;
    gr_workspace c = {0};
    (void)hidden;
    gr_workspace_floats(&c, tokens);
    if (a->qk_norm) gr_workspace_floats(&c, (uint64_t)tokens * (a->heads + a->kv_heads));
    return c.used;
}

/* ---- activations --------------------------------------------------------------------------------------- */

struct act_job {
    const gr_simd *v;
    const gr_dense_desc *d;
    const float *gate_up, *dh;
    float *h, *d_gate_up; /* d_gate_up NULL: forward */
    uint32_t t;
};

/* 0.5 g (1 + tanh(z)), z = sqrt(2 / pi) (g + 0.044715 g^3); slope: its derivative */
static float gelu_tanh(float g, float *slope)
{
    const float a = 0.79788456080286536f, b = 0.044715f, th = tanhf(a * (g + b * g * g * g));
    *slope = 0.5f * (1 + th) + 0.5f * g * (1 - th * th) * a * (1 + 3 * b * g * g);
    return 0.5f * g * (1 + th);
}

static void gelu_row(const struct act_job *j, const float *gate, const float *dh, float *h, float *d)
{
    const size_t n = j->d->inner;
    for (size_t i = 0; i < n; i++) {
        float slope;
        const float a = gelu_tanh(gate[i], &slope), up = gate[n + i];
        h[i] = a * up;
        if (!d) continue;
        d[i] = dh[i] * up * slope;
        d[n + i] = dh[i] * a;
    }
}

static void act_rank(void *arg, unsigned rank, unsigned size)
{
    const struct act_job *j = arg;
    const size_t n = j->d->inner;
    uint64_t first, last;
    gr_team_range(j->t, 1, rank, size, &first, &last);
    for (uint64_t t = first; t < last; t++) {
        const float *gate = j->gate_up + t * 2 * n, *dh = j->dh ? j->dh + t * n : NULL;
        float *h = j->h + t * n, *d = j->d_gate_up ? j->d_gate_up + t * 2 * n : NULL;
        if (j->d->act == GR_ACT_GELU_TANH) {
            gelu_row(j, gate, dh, h, d);
            continue;
        }
        j->v->silu_mul(h, gate, gate + n, n);
        if (d) j->v->silu_mul_back(d, d + n, dh, gate, gate + n, n);
    }
}

void gr_cpu_activate(gr_queue *q, const gr_dense_desc *d, uint32_t t, const void *gate_up, void *h)
{
    const gr_expert_act rows = {d->act, d->limit, t, d->inner};
    if (d->act == GR_ACT_SWIGLU_OAI) {
        gr_experts_cpu.activate(q, &rows, gate_up, h);
        return;
    }
    struct act_job j = {.v = gr_simd_best(), .d = d, .gate_up = gate_up, .h = h, .t = t};
    gr_team_run(q->team, act_rank, &j);
}

void gr_cpu_activate_backward(gr_queue *q, const gr_dense_desc *d, uint32_t t, const void *gate_up,
                              const void *dh, void *d_gate_up, void *h)
{
    const gr_expert_act rows = {d->act, d->limit, t, d->inner};
    if (d->act == GR_ACT_SWIGLU_OAI) {
        gr_experts_cpu.activate_backward(q, &rows, NULL, NULL, NULL, gate_up, dh, d_gate_up, h, NULL);
        return;
    }
    struct act_job j = {gr_simd_best(), d, gate_up, dh, h, d_gate_up, t};
    gr_team_run(q->team, act_rank, &j);
}
