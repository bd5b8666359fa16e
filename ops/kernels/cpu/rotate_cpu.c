/* ops/kernels/cpu/rotate_cpu.c: q, k and v of a layer on the CPU device: norms of heads or of all of them,
 * rotary positions, and back. Also the output gate.
 *
 * Source: the modelling code of Hugging Face transformers.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "ops/kernels/cpu/cpu.h"

struct rotate_job {
    const gr_rotate *c;
    const gr_simd *v;
    gr_rope rope;
    const float *from;
    float *to, *raw;
};

static uint32_t qk_heads(const gr_attention_desc *a)
{
    return a->heads + a->kv_heads;
}

static bool is_q(const gr_attention_desc *a, size_t head)
{
    return head < a->heads;
}

/* One row of q, or of k: its heads [first, first + n) share a norm, each of width d. */
typedef struct span {
    size_t first, n;
} span;

/* What is normalised together: of each head, or of q and of k. Returns how many spans there are. */
static size_t spans_of(const gr_attention_desc *a)
{
    return a->qk_norm == GR_QK_NORM_WHOLE ? 2 : qk_heads(a);
}

static span span_at(const gr_attention_desc *a, size_t i)
{
    if (a->qk_norm != GR_QK_NORM_WHOLE) return (span){i, 1};
    return i ? (span){a->heads, a->kv_heads} : (span){0, a->heads};
}

static uint32_t position_of(const gr_tokens *b, uint32_t seq, uint32_t token)
{
    const uint32_t before = b->cached ? b->cached[seq] : gr_seq_before(b->offset, b->prefix, seq);
    return before + token - b->offset[seq];
}

static void rotate_head(const struct rotate_job *j, float *x, const float *cosine, const float *sine,
                        float sign)
{
    const uint32_t n = j->rope.n;
    if (n) j->v->rotate(x, x + n, cosine, sine, sign, n);
}

static void norm_row(const struct rotate_job *j, float *row)
{
    const gr_rotate *c = j->c;
    const size_t d = c->d->head_dim;
    for (size_t i = 0; c->d->qk_norm && i < spans_of(c->d); i++) {
        const span s = span_at(c->d, i);
        float *x = row + s.first * d;
        gr_rms_norm(j->v, x, x, is_q(c->d, s.first) ? c->q_norm : c->k_norm, c->plus_one,
                    gr_rms_inv(j->v, x, s.n * d, c->eps), s.n * d);
    }
}

/* row: of [T, W]. */
static void norm_values(const struct rotate_job *j, float *row)
{
    const gr_attention_desc *a = j->c->d;
    const size_t d = a->head_dim;
    for (size_t i = 0; a->value_norm && i < a->kv_heads; i++) {
        float *x = row + (qk_heads(a) + i) * d;
        gr_rms_norm(j->v, x, x, NULL, false, gr_rms_inv(j->v, x, d, j->c->eps), d);
    }
}

static void rotate_rank(void *arg, unsigned rank, unsigned size)
{
    const struct rotate_job *j = arg;
    const gr_attention_desc *a = j->c->d;
    const gr_tokens *b = j->c->b;
    const size_t width = gr_qkv_width(a), rows = gr_qkv_rows(a), d = a->head_dim, n_qk = qk_heads(a);
    float cosine[GR_HEAD_DIM_MAX / 2], sine[GR_HEAD_DIM_MAX / 2];
    uint64_t first, last;
    gr_team_range(b->n, 1, rank, size, &first, &last);
    uint32_t seq = 0;
    for (uint32_t t = (uint32_t)first; t < last; t++) {
        while (t >= b->offset[seq + 1]) seq++;
        float *row = j->to + t * width;
        if (j->from != j->to) memcpy(row, j->from + t * rows, width * sizeof(float));
        if (j->raw) memcpy(j->raw + t * n_qk * d, row, n_qk * d * sizeof(float));
        norm_row(j, row);
        norm_values(j, row);
        gr_rope_angles(&j->rope, position_of(b, seq, t), cosine, sine);
        for (size_t h = 0; h < n_qk; h++) rotate_head(j, row + h * d, cosine, sine, 1);
    }
}

void gr_cpu_rotate(gr_queue *q, const gr_rotate *c, const void *from, void *to, void *raw)
{
    struct rotate_job j = {.c = c, .v = gr_simd_best(), .from = from, .to = to, .raw = raw};
    gr_rope_init(&j.rope, &c->d->rope);
    gr_team_run(q->team, rotate_rank, &j);
    if (c->b->state) gr_kv_write(q, c->d, c->b, to);
}

/* ---- backward ------------------------------------------------------------------------------------------ */

struct back_job {
    struct rotate_job r;
    const float *raw;
    size_t raw_ld;
    float *d, *grad_q, *grad_k;
    float *inv; /* [T, spans] */
};

static void rotate_back_rank(void *arg, unsigned rank, unsigned size)
{
    const struct back_job *j = arg;
    const gr_rotate *c = j->r.c;
    const gr_attention_desc *a = c->d;
    const gr_tokens *b = c->b;
    const size_t d = a->head_dim, n_spans = spans_of(a);
    float cosine[GR_HEAD_DIM_MAX / 2], sine[GR_HEAD_DIM_MAX / 2];
    uint64_t first, last;
    gr_team_range(b->n, 1, rank, size, &first, &last);
    uint32_t seq = 0;
    for (uint32_t t = (uint32_t)first; t < last; t++) {
        while (t >= b->offset[seq + 1]) seq++;
        float *row = j->d + t * gr_qkv_width(a);
        gr_rope_angles(&j->r.rope, position_of(b, seq, t), cosine, sine);
        for (size_t h = 0; h < qk_heads(a); h++) rotate_head(&j->r, row + h * d, cosine, sine, -1);
        for (size_t i = 0; a->qk_norm && i < n_spans; i++) {
            const span s = span_at(a, i);
            j->inv[t * n_spans + i] =
                gr_rms_inv(j->r.v, j->raw + t * j->raw_ld + s.first * d, s.n * d, c->eps);
        }
    }
}

/* Gradients of the weights of norms, a range of columns each. */
static void grad_rank(void *arg, unsigned rank, unsigned size)
{
    const struct back_job *j = arg;
    const gr_attention_desc *a = j->r.c->d;
    const size_t d = a->head_dim, n_spans = spans_of(a), width = gr_qkv_width(a);
    for (size_t t = 0; t < j->r.c->b->n; t++)
        for (size_t i = 0; i < n_spans; i++) {
            const span s = span_at(a, i);
            uint64_t first, last;
            gr_team_range(s.n * d, 16, rank, size, &first, &last);
            j->r.v->mul_axpy((is_q(a, s.first) ? j->grad_q : j->grad_k) + first,
                             j->raw + t * j->raw_ld + s.first * d + first,
                             j->d + t * width + s.first * d + first, j->inv[t * n_spans + i], last - first);
        }
}

static void norm_back_rank(void *arg, unsigned rank, unsigned size)
{
    const struct back_job *j = arg;
    const gr_rotate *c = j->r.c;
    const size_t d = c->d->head_dim, n_spans = spans_of(c->d);
    uint64_t first, last;
    gr_team_range(c->b->n, 1, rank, size, &first, &last);
    for (size_t t = first; t < last; t++)
        for (size_t i = 0; i < n_spans; i++) {
            const span s = span_at(c->d, i);
            float *dy = j->d + t * gr_qkv_width(c->d) + s.first * d;
            gr_rms_back(j->r.v, dy, NULL, dy, j->raw + t * j->raw_ld + s.first * d,
                        is_q(c->d, s.first) ? c->q_norm : c->k_norm, c->plus_one, j->inv[t * n_spans + i],
                        s.n * d);
        }
}

static void values_back_rank(void *arg, unsigned rank, unsigned size)
{
    const struct back_job *j = arg;
    const gr_rotate *c = j->r.c;
    const size_t d = c->d->head_dim;
    uint64_t first, last;
    gr_team_range(c->b->n, 1, rank, size, &first, &last);
    for (size_t t = first; t < last; t++)
        for (size_t i = qk_heads(c->d); i < qk_heads(c->d) + c->d->kv_heads; i++) {
            float *dy = j->d + t * gr_qkv_width(c->d) + i * d;
            const float *x = j->raw + t * j->raw_ld + i * d;
            gr_rms_back(j->r.v, dy, NULL, dy, x, NULL, false, gr_rms_inv(j->r.v, x, d, c->eps), d);
        }
}

void gr_cpu_rotate_backward(gr_queue *q, const gr_rotate *c, const void *raw, uint32_t raw_ld, void *d,
                            void *grad_q_norm, void *grad_k_norm, gr_dtype grads, void *ws)
{
    gr_workspace at = {.base = ws};
    struct back_job j = {{.c = c, .v = gr_simd_best()}, raw, raw_ld, d, grad_q_norm, grad_k_norm, NULL};
    assert(grads == GR_F32);
    (void)grads;
    gr_workspace_floats(&at, c->b->n); /* a norm's of the layer: as gr_cpu_back_ws_bytes */
    j.inv = gr_workspace_floats(&at, 0);
    gr_rope_init(&j.r.rope, &c->d->rope);
    gr_team_run(q->team, rotate_back_rank, &j);
    if (c->d->value_norm) gr_team_run(q->team, values_back_rank, &j);
    if (!c->d->qk_norm) return;
    if (grad_q_norm) gr_team_run(q->team, grad_rank, &j);
    gr_team_run(q->team, norm_back_rank, &j);
}

/* ---- output gate --------------------------------------------------------------------------------------- */

struct gate_job {
    const float *x, *g, *dy; /* dy NULL: forward */
    float *y, *dx, *dg;
    uint32_t t, n, ld;
};

static void gate_rank(void *arg, unsigned rank, unsigned size)
{
    const struct gate_job *j = arg;
    uint64_t first, last;
    gr_team_range(j->t, 1, rank, size, &first, &last);
    for (uint64_t t = first; t < last; t++)
        for (uint32_t i = 0; i < j->n; i++) {
            const size_t at = t * j->n + i, g = t * j->ld + i;
            const float s = 1 / (1 + expf(-j->g[g])), x = j->x[at];
            if (!j->dy) {
                j->y[at] = x * s;
                continue;
            }
            j->dg[g] = j->dy[at] * x * s * (1 - s);
            j->dx[at] = j->dy[at] * s;
        }
}

void gr_cpu_gate(gr_queue *q, uint32_t t, uint32_t n, const void *x, const void *g, uint32_t ld, void *y)
{
    struct gate_job j = {.x = x, .g = g, .y = y, .t = t, .n = n, .ld = ld};
    gr_team_run(q->team, gate_rank, &j);
}

void gr_cpu_gate_backward(gr_queue *q, uint32_t t, uint32_t n, const void *x, const void *g, uint32_t ld,
                          const void *dy, void *dx, void *dg)
{
    struct gate_job j = {.x = x, .g = g, .dy = dy, .dx = dx, .dg = dg, .t = t, .n = n, .ld = ld};
    gr_team_run(q->team, gate_rank, &j);
}
