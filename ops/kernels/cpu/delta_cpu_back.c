/* ops/kernels/cpu/delta_cpu_back.c: gradients of the gated delta rule.
 *
 * A head goes over its sequence twice: forwards, keeping the state before each STRIDE-th token, and
 * backwards, making the states between two of these again. With S' = decay S_(t-1), u = beta (v - S'^T k),
 * S_t = S' + k u^T and D the gradient that reaches S_t from what follows:
 *
 *     dq = S_t do,  D += q do^T,  du = D^T k,  dk = D u,  dv = beta du,  dbeta = du . (v - S'^T k)
 *     dr = -beta du,  dk += S' dr,  D += k dr^T,  d rate = sum of D * S',  D = decay D
 *
 * Sums into weights go over tokens in their order, as everywhere on this device.
 */
#include "ops/kernels/cpu/delta_cpu.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { STRIDE = 32 };

struct back_ws {
    gr_delta_rows r;
    float *d_mixed, *d_qkv;  /* [T, out], [T, channels] */
    float *d_rate, *d_beta;  /* [T, value_heads] */
    float *scratch, *thread; /* [out] of each thread; states */
};

/* States before each STRIDE-th token, after each of STRIDE tokens, one more; and rows. */
static uint64_t thread_floats(const gr_delta_desc *d, uint32_t length)
{
    const uint64_t states = (length + STRIDE - 1) / STRIDE + STRIDE + 1;
    return states * d->key_dim * d->value_dim + (STRIDE + 3) * d->value_dim;
}

static uint64_t lay_out(gr_workspace *c, const gr_delta_desc *d, uint32_t tokens, uint32_t length,
                        unsigned threads, struct back_ws *w)
{
    gr_delta_lay_out(c, d, tokens, &w->r);
    w->d_mixed = gr_workspace_floats(c, (uint64_t)tokens * gr_delta_out(d));
    w->d_qkv = gr_workspace_floats(c, (uint64_t)tokens * gr_delta_channels(d));
    w->d_rate = gr_workspace_floats(c, (uint64_t)tokens * d->value_heads);
    w->d_beta = gr_workspace_floats(c, (uint64_t)tokens * d->value_heads);
    w->scratch = gr_workspace_floats(c, (uint64_t)threads * gr_delta_channels(d));
    w->thread = gr_workspace_floats(c, threads * thread_floats(d, length));
    return c->used;
}

uint64_t gr_delta_back_bytes(const gr_delta_desc *d, const gr_pass_bounds *b)
{
    gr_workspace c = {0};
    struct back_ws w;
    return lay_out(&c, d, b->tokens, b->length, b->threads, &w);
}

struct job {
    const gr_delta_call *c;
    const gr_simd *v;
    struct back_ws w;
    const float *mixed, *dout;
    float *din;
    const gr_delta_grads *grads;
    atomic_uint next;
};

/* ---- gated norm ------------------------------------------------------------------------------------------
 */

static void norm_rank(void *arg, unsigned rank, unsigned size)
{
    const struct job *j = arg;
    const gr_delta_call *c = j->c;
    const uint32_t dv = c->d.value_dim, wide = gr_delta_out(&c->d), at = gr_delta_channels(&c->d);
    float *dn = j->w.scratch + (size_t)rank * at;
    uint64_t first, last;
    gr_team_range(c->n_tokens, 1, rank, size, &first, &last);
    for (uint64_t t = first; t < last; t++) {
        const float *row = (const float *)c->in + t * gr_delta_in(&c->d) + at;
        for (uint32_t i = 0; i < wide; i += dv) {
            const float *x = j->mixed + t * wide + i, inv = gr_rms_inv(j->v, x, dv, c->eps);
            float *n = j->w.d_mixed + t * wide + i, *dz = j->din + t * gr_delta_in(&c->d) + at + i;
            j->v->rms_apply(n, x, c->norm, inv, dv);
            j->v->silu_mul_back(dz, dn, j->dout + t * wide + i, row + i, n, dv);
            gr_rms_back(j->v, n, NULL, dn, x, c->norm, false, inv, dv);
        }
    }
}

/* By parts of a head's values, all tokens and heads in order. */
static void norm_grad_rank(void *arg, unsigned rank, unsigned size)
{
    const struct job *j = arg;
    const gr_delta_call *c = j->c;
    const uint32_t dv = c->d.value_dim, wide = gr_delta_out(&c->d), at = gr_delta_channels(&c->d);
    float dn[GR_DELTA_DIM_MAX], *grad = j->grads->norm;
    uint64_t first, last;
    gr_team_range(dv, 16, rank, size, &first, &last);
    if (first == last) return;
    for (uint64_t t = 0; t < c->n_tokens; t++)
        for (uint32_t i = 0; i < wide; i += dv) {
            const float *x = j->mixed + t * wide + i, inv = gr_rms_inv(j->v, x, dv, c->eps);
            j->v->silu_mul(dn, (const float *)c->in + t * gr_delta_in(&c->d) + at + i + first,
                           j->dout + t * wide + i + first, last - first);
            j->v->mul_axpy(grad + first, x + first, dn, inv, last - first);
        }
}

/* ---- the recurrence --------------------------------------------------------------------------------------
 */

/* Of one head of one sequence. */
struct head {
    uint32_t seq, head;
    size_t floats;          /* dk dv */
    float *before, *after;  /* [strides, floats], [STRIDE, floats] */
    float *d, *u;           /* [floats]; [STRIDE, dv] */
    float *du, *dr, *spare; /* [dv] */
    bool add;               /* to gradients of q and k, that an earlier head left */
};

static void states_before(const struct job *j, const struct head *h, uint32_t first, uint32_t n)
{
    float *state = h->after;
    memset(state, 0, h->floats * sizeof(*state));
    for (uint32_t t = 0; t < n; t++) {
        const gr_delta_step s = gr_delta_step_at(&j->c->d, &j->w.r, first + t, h->head);
        if (t % STRIDE == 0) memcpy(h->before + t / STRIDE * h->floats, state, h->floats * sizeof(*state));
        gr_delta_decay(&s, state);
        gr_delta_write(&s, state, h->u);
    }
}

/* The states after tokens [t, t + n) of the sequence, and what each wrote. */
static void states_after(const struct job *j, const struct head *h, uint32_t first, uint32_t t, uint32_t n)
{
    const float *state = h->before + t / STRIDE * h->floats;
    for (uint32_t i = 0; i < n; i++) {
        const gr_delta_step s = gr_delta_step_at(&j->c->d, &j->w.r, first + t + i, h->head);
        float *to = h->after + i * h->floats;
        memcpy(to, state, h->floats * sizeof(*to));
        gr_delta_decay(&s, to);
        gr_delta_write(&s, to, h->u + (size_t)i * s.dv);
        state = to;
    }
}

static void step_back(const struct job *j, const struct head *h, const gr_delta_step *s, uint32_t token,
                      const float *prior, const float *state, const float *u)
{
    const gr_delta_desc *d = &j->c->d;
    const uint32_t key_head = h->head / (d->value_heads / d->key_heads), dv = s->dv;
    const size_t at = (size_t)token * d->value_heads + h->head;
    const float *d_o = j->w.d_mixed + at * dv;
    float *row = j->w.d_qkv + (size_t)token * gr_delta_channels(d), *dq = row + (size_t)key_head * s->dk,
          *dk = dq + (size_t)d->key_heads * s->dk, rate = 0;
    for (uint32_t i = 0; i < s->dk; i++) {
        const float x = s->v->dot(state + (size_t)i * dv, d_o, dv);
        dq[i] = h->add ? dq[i] + x : x;
        s->v->axpy(h->d + (size_t)i * dv, d_o, s->q[i], dv);
    }
    gr_delta_read(s, h->d, s->k, h->du);
    s->v->scale(row + (size_t)2 * d->key_heads * s->dk + (size_t)h->head * dv, h->du, s->beta, dv);
    s->v->scale(h->dr, h->du, -s->beta, dv);
    gr_delta_read(s, prior, s->k, h->spare);
    for (uint32_t i = 0; i < dv; i++) h->spare[i] = s->value[i] - s->decay * h->spare[i];
    j->w.d_beta[at] = s->v->dot(h->du, h->spare, dv);
    for (uint32_t i = 0; i < s->dk; i++) {
        float *of = h->d + (size_t)i * dv;
        const float *was = prior + (size_t)i * dv,
                    x = s->v->dot(of, u, dv) + s->decay * s->v->dot(was, h->dr, dv);
        dk[i] = h->add ? dk[i] + x : x;
        s->v->axpy(of, h->dr, s->k[i], dv);
        rate = fmaf(s->decay, s->v->dot(of, was, dv), rate);
        s->v->scale(of, of, s->decay, dv);
    }
    j->w.d_rate[at] = rate;
}

static void head_back(const struct job *j, const struct head *h)
{
    const uint32_t first = j->c->offset[h->seq], n = j->c->offset[h->seq + 1] - first, dv = j->c->d.value_dim;
    states_before(j, h, first, n);
    memset(h->d, 0, h->floats * sizeof(*h->d));
    for (uint32_t end = n; end;) {
        const uint32_t t = (end - 1) / STRIDE * STRIDE;
        states_after(j, h, first, t, end - t);
        while (end > t) {
            const uint32_t i = --end - t;
            const gr_delta_step s = gr_delta_step_at(&j->c->d, &j->w.r, first + end, h->head);
            const float *prior = i ? h->after + (i - 1) * h->floats : h->before + t / STRIDE * h->floats;
            step_back(j, h, &s, first + end, prior, h->after + i * h->floats, h->u + (size_t)i * dv);
        }
    }
}

static void mix_rank(void *arg, unsigned rank, unsigned size)
{
    (void)size;
    struct job *j = arg;
    const gr_delta_desc *d = &j->c->d;
    const uint32_t group = d->value_heads / d->key_heads;
    struct head h = {.floats = (size_t)d->key_dim * d->value_dim};
    h.d = j->w.thread + rank * thread_floats(d, j->c->longest);
    h.after = h.d + h.floats;
    h.before = h.after + STRIDE * h.floats;
    h.u = h.before + (j->c->longest + STRIDE - 1) / STRIDE * h.floats;
    h.du = h.u + (size_t)STRIDE * d->value_dim;
    h.dr = h.du + d->value_dim;
    h.spare = h.dr + d->value_dim;
    for (;;) {
        const uint32_t unit = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        h.seq = unit / d->key_heads;
        if (h.seq >= j->c->n_seqs) return;
        for (uint32_t i = 0; i < group; i++) {
            h.head = unit % d->key_heads * group + i;
            h.add = i > 0;
            head_back(j, &h);
        }
    }
}

/* ---- gates, norms of q and k, silu -----------------------------------------------------------------------
 */

/* y = scale x / |x|; dy in place becomes dx. */
static void unit_back(const gr_simd *v, float *dy, const float *x, float scale, uint32_t n)
{
    const float inv = gr_delta_inverse(v, x, n), c = inv * inv * v->dot(x, dy, n);
    for (uint32_t i = 0; i < n; i++) dy[i] = scale * inv * (dy[i] - c * x[i]);
}

static void gates_back(const struct job *j, size_t t)
{
    const gr_delta_desc *d = &j->c->d;
    const float *a_log = j->c->a_log, *dt_bias = j->c->dt_bias;
    const float *a = (const float *)j->c->in + (t + 1) * gr_delta_in(d) - d->value_heads;
    float *da = j->din + (t + 1) * gr_delta_in(d) - d->value_heads, *db = da - d->value_heads;
    for (uint32_t h = 0; h < d->value_heads; h++) {
        const size_t at = t * d->value_heads + h;
        const float beta = j->w.r.beta[at], slope = 1 / (1 + expf(-a[h] - dt_bias[h]));
        db[h] = j->w.d_beta[at] * beta * (1 - beta);
        da[h] = -j->w.d_rate[at] * expf(a_log[h]) * slope;
    }
}

static void rows_rank(void *arg, unsigned rank, unsigned size)
{
    const struct job *j = arg;
    const gr_delta_desc *d = &j->c->d;
    const uint32_t n = gr_delta_channels(d), dk = d->key_dim;
    const float scale = 1 / sqrtf((float)dk);
    float *act = j->w.scratch + (size_t)rank * n;
    uint64_t first, last;
    gr_team_range(j->c->n_tokens, 1, rank, size, &first, &last);
    for (uint64_t t = first; t < last; t++) {
        const float *conv = j->w.r.conv + t * n;
        float *dy = j->w.d_qkv + t * n;
        j->v->silu_mul(act, conv, j->w.r.ones, n);
        for (uint32_t h = 0; h < 2 * d->key_heads; h++)
            unit_back(j->v, dy + (size_t)h * dk, act + (size_t)h * dk, h < d->key_heads ? scale : 1, dk);
        j->v->silu_mul_back(dy, act, dy, conv, j->w.r.ones, n);
        gates_back(j, t);
    }
}

static void gate_grads(const struct job *j)
{
    const uint32_t heads = j->c->d.value_heads;
    float *a_log = j->grads->a_log, *dt_bias = j->grads->dt_bias;
    for (size_t t = 0; t < j->c->n_tokens; t++) {
        const float *da = j->din + (t + 1) * gr_delta_in(&j->c->d) - heads;
        for (uint32_t h = 0; h < heads; h++) {
            a_log[h] = fmaf(j->w.d_rate[t * heads + h], j->w.r.rate[t * heads + h], a_log[h]);
            dt_bias[h] += da[h];
        }
    }
}

/* ---- convolution -----------------------------------------------------------------------------------------
 */

static void conv_rank(void *arg, unsigned rank, unsigned size)
{
    const struct job *j = arg;
    const gr_delta_call *c = j->c;
    const uint32_t n = gr_delta_channels(&c->d), taps = c->d.conv, width = gr_delta_in(&c->d);
    uint64_t first, last;
    gr_team_range(c->n_tokens, 1, rank, size, &first, &last);
    for (uint32_t t = (uint32_t)first, seq = 0; t < last; t++) {
        while (t >= c->offset[seq + 1]) seq++;
        float *dx = j->din + (size_t)t * width;
        memset(dx, 0, n * sizeof(*dx));
        for (uint32_t i = 0; i < taps && t + i < c->offset[seq + 1]; i++)
            j->v->mul_axpy(dx, j->w.d_qkv + (size_t)(t + i) * n, j->w.r.taps + (size_t)(taps - 1 - i) * n, 1,
                           n);
    }
}

/* By channels, all tokens in order. */
static void conv_grad_rank(void *arg, unsigned rank, unsigned size)
{
    const struct job *j = arg;
    const gr_delta_call *c = j->c;
    const uint32_t n = gr_delta_channels(&c->d), taps = c->d.conv, width = gr_delta_in(&c->d);
    float *grad = j->grads->conv;
    uint64_t first, last;
    gr_team_range(n, 16, rank, size, &first, &last);
    for (uint32_t t = 0, seq = 0; t < c->n_tokens; t++) {
        while (t >= c->offset[seq + 1]) seq++;
        for (uint32_t k = 0; k < taps && t >= c->offset[seq] + k; k++) {
            const float *x = (const float *)c->in + (size_t)(t - k) * width, *dy = j->w.d_qkv + (size_t)t * n;
            for (uint64_t i = first; i < last; i++)
                grad[i * taps + taps - 1 - k] = fmaf(x[i], dy[i], grad[i * taps + taps - 1 - k]);
        }
    }
}

void gr_delta_back(gr_queue *q, const gr_delta_call *c, const void *mixed, const void *dout, void *din,
                   const gr_delta_grads *grads)
{
    struct job j = {.c = c, .v = gr_simd_best(), .mixed = mixed, .dout = dout, .din = din, .grads = grads};
    gr_workspace w = {.base = c->ws};
    if (!c->n_tokens) return;
    lay_out(&w, &c->d, c->n_tokens, c->longest, gr_team_size(q->team), &j.w);
    gr_delta_rows_run(q, c, &j.w.r);
    gr_team_run(q->team, norm_rank, &j);
    gr_team_run(q->team, norm_grad_rank, &j);
    gr_team_run(q->team, mix_rank, &j);
    gr_team_run(q->team, rows_rank, &j);
    gate_grads(&j);
    gr_team_run(q->team, conv_rank, &j);
    gr_team_run(q->team, conv_grad_rank, &j);
}
