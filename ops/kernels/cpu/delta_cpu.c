/* ops/kernels/cpu/delta_cpu.c: the gated delta rule token by token: convolution, gates, the recurrence of
 * each head, gated norm. Packed sequences, parts of prompts and single tokens are one function, so that a
 * token's bits do not depend on how its sequence was cut. Backward: delta_cpu_back.c.
 */
#include "ops/kernels/cpu/delta_cpu.h"
#include "runtime/base/half.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#define NORM_EPS 1e-6f /* of |q| and |k| */

/* ---- layout ----------------------------------------------------------------------------------------------
 */

void gr_delta_lay_out(gr_workspace *c, const gr_delta_desc *d, uint32_t tokens, gr_delta_rows *r)
{
    const uint64_t channels = gr_delta_channels(d), t = tokens;
    r->taps = gr_workspace_floats(c, d->conv * channels);
    r->ones = gr_workspace_floats(c, channels);
    r->conv = gr_workspace_floats(c, t * channels);
    r->qkv = gr_workspace_floats(c, t * channels);
    r->rate = gr_workspace_floats(c, t * d->value_heads);
    r->beta = gr_workspace_floats(c, t * d->value_heads);
}

struct layout {
    gr_delta_rows rows;
    float *mixed, *thread; /* [T, out]; [dk, dv] and [dv] of each thread */
};

static uint64_t thread_floats(const gr_delta_desc *d)
{
    return (uint64_t)(d->key_dim + 1) * d->value_dim;
}

static uint64_t forward_bytes(const gr_delta_desc *d, uint32_t tokens, unsigned threads, void *ws,
                              struct layout *l)
{
    gr_workspace c = {.base = ws};
    gr_delta_lay_out(&c, d, tokens, &l->rows);
    l->mixed = gr_workspace_floats(&c, (uint64_t)tokens * gr_delta_out(d));
    l->thread = gr_workspace_floats(&c, threads * thread_floats(d));
    return c.used;
}

static uint64_t ws_bytes(const gr_delta_desc *d, const gr_pass_bounds *b, gr_layer_use use)
{
    struct layout l;
    return use == GR_LAYER_BACKWARD ? gr_delta_back_bytes(d, b)
                                    : forward_bytes(d, b->tokens, b->threads, NULL, &l);
}

/* ---- convolution -----------------------------------------------------------------------------------------
 */

struct job {
    const gr_delta_call *c;
    const gr_simd *v;
    gr_delta_rows r;
    float *mixed, *out, *thread;
    atomic_uint next;
};

static float *place_of(const gr_delta_call *c, uint32_t place)
{
    return c->state + place * (gr_delta_state_bytes(&c->d) / sizeof(float));
}

static float *state_of(const gr_delta_call *c, uint32_t seq)
{
    return place_of(c, c->slot[seq]);
}

static bool absent(const gr_delta_call *c, uint32_t seq)
{
    return c->state && c->slot[seq] == UINT32_MAX;
}

/* Row t of the sequence, t < 0: one that its slot keeps. NULL: before its beginning. */
static const float *input_row(const gr_delta_call *c, uint32_t seq, int64_t t)
{
    if (t >= 0) return (const float *)c->in + (c->offset[seq] + (uint64_t)t) * gr_delta_in(&c->d);
    if (!c->state || !c->cached[seq]) return NULL;
    return state_of(c, seq) + (c->d.conv - 1 + t) * gr_delta_channels(&c->d);
}

static void convolve(const struct job *j, uint32_t seq, uint32_t t)
{
    const gr_delta_call *c = j->c;
    const uint32_t n = gr_delta_channels(&c->d), taps = c->d.conv;
    float *y = j->r.conv + (size_t)(c->offset[seq] + t) * n;
    memset(y, 0, n * sizeof(*y));
    for (uint32_t i = 0; i < taps; i++) {
        const float *x = input_row(c, seq, (int64_t)t + i + 1 - taps);
        if (x) j->v->mul_axpy(y, x, j->r.taps + (size_t)i * n, 1, n);
    }
}

/* q and k of one token to length 1, q over sqrt(dk). */
static void normalise(const struct job *j, float *qkv)
{
    const gr_delta_desc *d = &j->c->d;
    const float scale = 1 / sqrtf((float)d->key_dim);
    for (uint32_t h = 0; h < 2 * d->key_heads; h++) {
        float *x = qkv + (size_t)h * d->key_dim;
        j->v->scale(x, x, gr_delta_inverse(j->v, x, d->key_dim), d->key_dim);
        if (h < d->key_heads) j->v->scale(x, x, scale, d->key_dim);
    }
}

float gr_delta_inverse(const gr_simd *v, const float *x, uint32_t n)
{
    return 1 / sqrtf(v->dot(x, x, n) + NORM_EPS);
}

static float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

static void gates(const struct job *j, size_t t)
{
    const gr_delta_desc *d = &j->c->d;
    const float *a_log = j->c->a_log, *dt_bias = j->c->dt_bias;
    const float *b = (const float *)j->c->in + (t + 1) * gr_delta_in(d) - 2 * d->value_heads,
                *a = b + d->value_heads;
    for (uint32_t h = 0; h < d->value_heads; h++) {
        j->r.beta[t * d->value_heads + h] = 1 / (1 + expf(-b[h]));
        j->r.rate[t * d->value_heads + h] = -expf(a_log[h]) * softplus(a[h] + dt_bias[h]);
    }
}

static void rows_rank(void *arg, unsigned rank, unsigned size)
{
    const struct job *j = arg;
    const gr_delta_call *c = j->c;
    const uint32_t n = gr_delta_channels(&c->d);
    uint64_t first, last;
    gr_team_range(c->n_tokens, 1, rank, size, &first, &last);
    for (uint32_t t = (uint32_t)first, seq = 0; t < last; t++) {
        while (t >= c->offset[seq + 1]) seq++;
        if (absent(c, seq)) continue;
        float *qkv = j->r.qkv + (size_t)t * n;
        convolve(j, seq, t - c->offset[seq]);
        j->v->silu_mul(qkv, j->r.conv + (size_t)t * n, j->r.ones, n);
        normalise(j, qkv);
        gates(j, t);
    }
}

void gr_delta_rows_run(gr_queue *q, const gr_delta_call *c, const gr_delta_rows *r)
{
    const uint32_t n = gr_delta_channels(&c->d), taps = c->d.conv;
    const float *w = c->conv;
    struct job j = {.c = c, .v = gr_simd_best(), .r = *r};
    for (uint32_t i = 0; i < n; i++) {
        r->ones[i] = 1;
        for (uint32_t k = 0; k < taps; k++) r->taps[(size_t)k * n + i] = w[(size_t)i * taps + k];
    }
    gr_team_run(q->team, rows_rank, &j);
}

/* The last rows of what a slot has seen, after so many tokens of this call. */
static void keep_tail(const gr_delta_call *c, uint32_t seq, uint32_t fresh, float *to)
{
    const uint32_t n = gr_delta_channels(&c->d), taps = c->d.conv;
    for (uint32_t i = 0; i + 1 < taps;
         i++) { /* a row moves down, so that none is overwritten before it went */
        const float *x = input_row(c, seq, (int64_t)fresh + i + 1 - taps);
        if (x)
            memmove(to + (size_t)i * n, x, n * sizeof(*x));
        else
            memset(to + (size_t)i * n, 0, n * sizeof(*x));
    }
}

/* Those of places beside the slot first, which is read for them. */
static void keep_tails(const gr_delta_call *c, uint32_t seq)
{
    const uint32_t first = c->offset[seq], end = c->offset[seq + 1];
    for (uint32_t t = first; c->after && t < end; t++)
        if (c->after[t] != UINT32_MAX) keep_tail(c, seq, t + 1 - first, place_of(c, c->after[t]));
    keep_tail(c, seq, end - first, state_of(c, seq));
}

/* ---- the recurrence --------------------------------------------------------------------------------------
 */

void gr_delta_decay(const gr_delta_step *s, float *state)
{
    s->v->scale(state, state, s->decay, (size_t)s->dk * s->dv);
}

void gr_delta_read(const gr_delta_step *s, const float *state, const float *x, float *out)
{
    memset(out, 0, s->dv * sizeof(*out));
    for (uint32_t i = 0; i < s->dk; i++) s->v->axpy(out, state + (size_t)i * s->dv, x[i], s->dv);
}

void gr_delta_write(const gr_delta_step *s, float *state, float *u)
{
    gr_delta_read(s, state, s->k, u);
    for (uint32_t i = 0; i < s->dv; i++) u[i] = s->beta * (s->value[i] - u[i]);
    for (uint32_t i = 0; i < s->dk; i++) s->v->axpy(state + (size_t)i * s->dv, u, s->k[i], s->dv);
}

gr_delta_step gr_delta_step_at(const gr_delta_desc *d, const gr_delta_rows *r, size_t t, uint32_t head)
{
    const uint32_t key_head = head / (d->value_heads / d->key_heads);
    const float *qkv = r->qkv + t * gr_delta_channels(d);
    return (gr_delta_step){.v = gr_simd_best(),
                           .dk = d->key_dim,
                           .dv = d->value_dim,
                           .q = qkv + (size_t)key_head * d->key_dim,
                           .k = qkv + (size_t)(d->key_heads + key_head) * d->key_dim,
                           .value = qkv + (size_t)2 * d->key_heads * d->key_dim + (size_t)head * d->value_dim,
                           .decay = expf(r->rate[t * d->value_heads + head]),
                           .beta = r->beta[t * d->value_heads + head]};
}

/* To what bf16 has of it. */
static void round_state(float *state, size_t n)
{
    for (size_t i = 0; i < n; i++) state[i] = gr_bf16_to_f32(gr_f32_to_bf16(state[i]));
}

/* A head's state as it is behind a token, in another place. */
static void leave_state(const gr_delta_call *c, uint32_t place, uint32_t head, const float *state)
{
    const size_t n = (size_t)c->d.key_dim * c->d.value_dim;
    float *to = place_of(c, place) + gr_delta_tail(&c->d);
    uint16_t *narrow = (uint16_t *)to + head * n;
    if (!c->d.bf16_state) memcpy(to + head * n, state, n * sizeof(*to));
    for (size_t i = 0; c->d.bf16_state && i < n; i++) narrow[i] = gr_f32_to_bf16(state[i]);
}

/* One head of one sequence. state [dk, dv] goes on from what it holds; u [dv]. */
static void run_head(const struct job *j, uint32_t seq, uint32_t head, float *state, float *u)
{
    const gr_delta_desc *d = &j->c->d;
    for (uint32_t t = j->c->offset[seq]; t < j->c->offset[seq + 1]; t++) {
        const gr_delta_step s = gr_delta_step_at(d, &j->r, t, head);
        gr_delta_decay(&s, state);
        gr_delta_write(&s, state, u);
        gr_delta_read(&s, state, s.q, j->mixed + ((size_t)t * d->value_heads + head) * d->value_dim);
        if (j->c->state && d->bf16_state) round_state(state, (size_t)d->key_dim * d->value_dim);
        if (j->c->state && j->c->after && j->c->after[t] != UINT32_MAX)
            leave_state(j->c, j->c->after[t], head, state);
    }
}

/* The same of a slot whose states are in bf16; wide: [dk, dv] fp32. */
static void run_bf16_head(const struct job *j, uint32_t seq, uint32_t head, float *wide, float *u)
{
    const gr_delta_call *c = j->c;
    const size_t n = (size_t)c->d.key_dim * c->d.value_dim;
    uint16_t *state = (uint16_t *)(state_of(c, seq) + gr_delta_tail(&c->d)) + head * n;
    for (size_t i = 0; i < n; i++) wide[i] = c->cached[seq] ? gr_bf16_to_f32(state[i]) : 0;
    run_head(j, seq, head, wide, u);
    for (size_t i = 0; i < n; i++) state[i] = gr_f32_to_bf16(wide[i]);
}

static void mix_rank(void *arg, unsigned rank, unsigned size)
{
    (void)size;
    struct job *j = arg;
    const gr_delta_call *c = j->c;
    const size_t floats = (size_t)c->d.key_dim * c->d.value_dim;
    float *own = j->thread + rank * thread_floats(&c->d), *u = own + floats;
    for (;;) {
        const uint32_t unit = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        const uint32_t seq = unit / c->d.value_heads, head = unit % c->d.value_heads;
        if (seq >= c->n_seqs) return;
        if (absent(c, seq)) continue;
        if (c->state && c->d.bf16_state) {
            run_bf16_head(j, seq, head, own, u);
            continue;
        }
        float *state = c->state ? state_of(c, seq) + gr_delta_tail(&c->d) + head * floats : own;
        if (!c->state || !c->cached[seq]) memset(state, 0, floats * sizeof(*state));
        run_head(j, seq, head, state, u);
    }
}

/* ---- gated norm ------------------------------------------------------------------------------------------
 */

static void norm_rank(void *arg, unsigned rank, unsigned size)
{
    const struct job *j = arg;
    const gr_delta_call *c = j->c;
    const uint32_t dv = c->d.value_dim, wide = gr_delta_out(&c->d), channels = gr_delta_channels(&c->d);
    uint64_t first, last;
    gr_team_range(c->n_tokens, 1, rank, size, &first, &last);
    for (uint32_t t = (uint32_t)first, seq = 0; t < last; t++) {
        while (t >= c->offset[seq + 1]) seq++;
        float *out = j->out + (size_t)t * wide;
        if (absent(c, seq)) {
            memset(out, 0, wide * sizeof(*out));
            continue;
        }
        const float *x = j->mixed + (size_t)t * wide,
                    *z = (const float *)c->in + (size_t)t * gr_delta_in(&c->d) + channels;
        for (uint32_t i = 0; i < wide; i += dv)
            j->v->rms_apply(out + i, x + i, c->norm, gr_rms_inv(j->v, x + i, dv, c->eps), dv);
        j->v->silu_mul(out, z, out, wide);
    }
}

static void forward(gr_queue *q, const gr_delta_call *c, void *out, void *mixed)
{
    struct layout l;
    if (!c->n_tokens) return;
    forward_bytes(&c->d, c->n_tokens, gr_team_size(q->team), c->ws, &l);
    gr_delta_rows_run(q, c, &l.rows);
    struct job j = {.c = c,
                    .v = gr_simd_best(),
                    .r = l.rows,
                    .mixed = mixed ? mixed : l.mixed,
                    .out = out,
                    .thread = l.thread};
    for (uint32_t i = 0; c->state && i < c->n_seqs; i++)
        if (!absent(c, i)) keep_tails(c, i);
    gr_team_run(q->team, mix_rank, &j);
    gr_team_run(q->team, norm_rank, &j);
}

static const char *unfit(const gr_delta_desc *d)
{
    if (d->conv < 1 || d->conv > GR_DELTA_CONV_MAX) return "a convolution of more than 8 taps";
    return d->key_heads && d->value_heads % d->key_heads == 0
               ? NULL
               : "value heads that are no multiple of key heads";
}

const gr_delta_ops gr_delta_cpu = {ws_bytes, forward, gr_delta_back, unfit};
