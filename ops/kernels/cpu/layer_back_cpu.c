/* ops/kernels/cpu/layer_back_cpu.c: one decoder layer backward. Norm outputs and the activation of the MLP
 * are computed again, the rest comes from gr_acts. Gradients of vectors (norms, biases) are split between
 * threads by column, so that each is one sum over tokens in order.
 */
#include <assert.h>
#include <string.h>

#include "ops/kernels/cpu/cpu.h"

struct back_ws {
    float *row, *drow;       /* [T, H] a norm's output again, and d loss / d it */
    float *inv, *qk_inv;     /* [T], [T, heads + kv_heads]: RMSNorm's factors */
    float *act, *dact, *dgu; /* [T, I], [T, I], [T, 2 I] */
    float *datt, *dqkv;      /* [T, heads D], [T, gr_qkv_width] */
    float *attend;
    void *gemm;
};

static uint64_t products_ws_bytes(const gr_model_shape *s, const gr_pass_bounds *b)
{
    const size_t t = b->tokens, h = s->hidden, n = s->inter;
    uint64_t ws = gr_linear_back_ws_bytes(t, n, h, b->threads);
    ws = GR_MAX(ws, gr_linear_back_ws_bytes(t, h, 2 * n, b->threads));
    ws = GR_MAX(ws, gr_linear_back_ws_bytes(t, (size_t)s->heads * s->head_dim, h, b->threads));
    return GR_MAX(ws, gr_linear_back_ws_bytes(t, h, gr_qkv_width(s), b->threads));
}

static void ws_layout(gr_workspace *c, const gr_model_shape *s, const gr_pass_bounds *b, struct back_ws *w)
{
    const uint64_t t = b->tokens;
    w->gemm = gr_workspace_bytes(c, products_ws_bytes(s, b));
    w->attend = gr_workspace_floats(c, gr_attend_back_floats(s, b->length, b->threads));
    w->row = gr_workspace_floats(c, t * s->hidden);
    w->drow = gr_workspace_floats(c, t * s->hidden);
    w->inv = gr_workspace_floats(c, t);
    w->qk_inv = gr_workspace_floats(c, s->qk_norm ? t * (s->heads + s->kv_heads) : 0);
    gr_workspace mlp = *c; /* the two halves of a layer are not alive together */
    w->act = gr_workspace_floats(&mlp, t * s->inter);
    w->dact = gr_workspace_floats(&mlp, t * s->inter);
    w->dgu = gr_workspace_floats(&mlp, t * 2 * s->inter);
    w->datt = gr_workspace_floats(c, t * s->heads * s->head_dim);
    w->dqkv = gr_workspace_floats(c, t * gr_qkv_width(s));
    c->used = GR_MAX(c->used, mlp.used);
}

uint64_t gr_cpu_layer_back_ws_bytes(const gr_model_shape *s, const gr_pass_bounds *b)
{
    gr_workspace c = {0};
    struct back_ws w;
    ws_layout(&c, s, b, &w);
    return c.used;
}

struct back {
    gr_queue *q;
    const gr_model_shape *s;
    const gr_simd *v;
    const float *w;
    const gr_batch *b;
    gr_acts acts;
    float *dx, *grad;
    struct back_ws ws;
    gr_rope rope;
    struct { /* of norm_rank and norm_back_rank */
        const float *x, *w;
        float *grad;
    } norm;
};

static float *grad_at(const struct back *l, gr_tensor_slot slot)
{
    const uint64_t offset = gr_tensor_offset(l->s, 1, slot);
    return offset == UINT64_MAX ? NULL : l->grad + offset;
}

static void linear_back(const struct back *l, const float *dy, const float *x, size_t in, gr_tensor_slot slot,
                        size_t out, float *dx)
{
    gr_linear_back(l->q, dy, x, l->b->n_tokens, in, gr_tensor_at(l->s, l->w, slot), out, dx, grad_at(l, slot),
                   l->ws.gemm);
}

/* ---- norms --------------------------------------------------------------------------------------------- */

static void norm_rank(void *arg, unsigned rank, unsigned size)
{
    const struct back *l = arg;
    const size_t h = l->s->hidden;
    uint64_t first, last;
    gr_team_range(l->b->n_tokens, 1, rank, size, &first, &last);
    for (uint64_t t = first; t < last; t++) {
        const float *x = l->norm.x + t * h;
        l->ws.inv[t] = gr_rms_inv(l->v, x, h, l->s->norm_eps);
        l->v->rms_apply(l->ws.row + t * h, x, l->norm.w, l->ws.inv[t], h);
    }
}

static void norm_again(struct back *l, const float *x, gr_tensor_slot slot)
{
    l->norm.x = x;
    l->norm.w = gr_tensor_at(l->s, l->w, slot);
    l->norm.grad = grad_at(l, slot);
    gr_team_run(l->q->team, norm_rank, l);
}

static void norm_back_rank(void *arg, unsigned rank, unsigned size)
{
    const struct back *l = arg;
    const size_t h = l->s->hidden, n = l->b->n_tokens;
    uint64_t first, last;
    gr_team_range(n, 1, rank, size, &first, &last);
    for (uint64_t t = first; t < last; t++) {
        float *dx = l->dx + t * h;
        gr_rms_back(l->v, dx, dx, l->ws.drow + t * h, l->norm.x + t * h, l->norm.w, l->ws.inv[t], h);
    }
    gr_team_range(h, 16, rank, size, &first, &last);
    for (uint64_t t = 0; t < n; t++)
        l->v->mul_axpy(l->norm.grad + first, l->norm.x + t * h + first, l->ws.drow + t * h + first,
                       l->ws.inv[t], last - first);
}

/* ---- MLP ----------------------------------------------------------------------------------------------- */

static void silu_rank(void *arg, unsigned rank, unsigned size)
{
    const struct back *l = arg;
    const size_t n = l->s->inter;
    uint64_t first, last;
    gr_team_range(l->b->n_tokens, 1, rank, size, &first, &last);
    for (uint64_t t = first; t < last; t++) {
        const float *gate = l->acts.gate_up + t * 2 * n;
        l->v->silu_mul(l->ws.act + t * n, gate, gate + n, n);
    }
}

static void silu_back_rank(void *arg, unsigned rank, unsigned size)
{
    const struct back *l = arg;
    const size_t n = l->s->inter;
    uint64_t first, last;
    gr_team_range(l->b->n_tokens, 1, rank, size, &first, &last);
    for (uint64_t t = first; t < last; t++) {
        const float *gate = l->acts.gate_up + t * 2 * n;
        float *d = l->ws.dgu + t * 2 * n;
        l->v->silu_mul_back(d, d + n, l->ws.dact + t * n, gate, gate + n, n);
    }
}

static void mlp_back(struct back *l)
{
    const size_t h = l->s->hidden, n = l->s->inter;
    gr_team_run(l->q->team, silu_rank, l);
    linear_back(l, l->dx, l->ws.act, n, GR_T_DOWN, h, l->ws.dact);
    gr_team_run(l->q->team, silu_back_rank, l);
    norm_again(l, l->acts.mid, GR_T_POST_NORM);
    linear_back(l, l->ws.dgu, l->ws.row, h, GR_T_GATE_UP, 2 * n, l->ws.drow);
    gr_team_run(l->q->team, norm_back_rank, l);
}

/* ---- attention ----------------------------------------------------------------------------------------- */

static void rope_back_rank(void *arg, unsigned rank, unsigned size)
{
    const struct back *l = arg;
    const gr_model_shape *s = l->s;
    const size_t d = s->head_dim, n_qk = s->heads + s->kv_heads;
    float cosine[GR_HEAD_DIM_MAX / 2], sine[GR_HEAD_DIM_MAX / 2];
    uint64_t first, last;
    gr_team_range(l->b->n_tokens, 1, rank, size, &first, &last);
    uint32_t seq = 0;
    for (uint32_t t = (uint32_t)first; t < last; t++) {
        while (t >= l->b->offset[seq + 1]) seq++;
        float *row = l->ws.dqkv + t * gr_qkv_width(s);
        gr_rope_angles(&l->rope, t - l->b->offset[seq], cosine, sine);
        for (size_t h = 0; h < n_qk; h++) {
            l->v->rotate(row + h * d, row + h * d + d / 2, cosine, sine, -1, d / 2);
            if (s->qk_norm)
                l->ws.qk_inv[t * n_qk + h] =
                    gr_rms_inv(l->v, l->acts.qk_raw + (t * n_qk + h) * d, d, s->norm_eps);
        }
    }
}

/* Gradients of the weights of q and k norm, a range of columns each. */
static void qk_grad_rank(void *arg, unsigned rank, unsigned size)
{
    const struct back *l = arg;
    const gr_model_shape *s = l->s;
    const size_t d = s->head_dim, n_qk = s->heads + s->kv_heads;
    float *dq = grad_at(l, GR_T_Q_NORM), *dk = grad_at(l, GR_T_K_NORM);
    uint64_t first, last;
    gr_team_range(d, 16, rank, size, &first, &last);
    for (size_t t = 0; t < l->b->n_tokens; t++)
        for (size_t h = 0; h < n_qk; h++)
            l->v->mul_axpy((h < s->heads ? dq : dk) + first, l->acts.qk_raw + (t * n_qk + h) * d + first,
                           l->ws.dqkv + t * gr_qkv_width(s) + h * d + first, l->ws.qk_inv[t * n_qk + h],
                           last - first);
}

static void qk_norm_back_rank(void *arg, unsigned rank, unsigned size)
{
    const struct back *l = arg;
    const gr_model_shape *s = l->s;
    const size_t d = s->head_dim, n_qk = s->heads + s->kv_heads;
    const float *q = gr_tensor_at(s, l->w, GR_T_Q_NORM), *k = gr_tensor_at(s, l->w, GR_T_K_NORM);
    uint64_t first, last;
    gr_team_range(l->b->n_tokens, 1, rank, size, &first, &last);
    for (size_t t = first; t < last; t++)
        for (size_t h = 0; h < n_qk; h++) {
            float *dy = l->ws.dqkv + t * gr_qkv_width(s) + h * d;
            gr_rms_back(l->v, dy, NULL, dy, l->acts.qk_raw + (t * n_qk + h) * d, h < s->heads ? q : k,
                        l->ws.qk_inv[t * n_qk + h], d);
        }
}

static void bias_grad_rank(void *arg, unsigned rank, unsigned size)
{
    const struct back *l = arg;
    const size_t width = gr_qkv_width(l->s);
    float *grad = grad_at(l, GR_T_QKV_BIAS);
    uint64_t first, last;
    gr_team_range(width, 16, rank, size, &first, &last);
    for (size_t t = 0; t < l->b->n_tokens; t++)
        l->v->add(grad + first, l->ws.dqkv + t * width + first, last - first);
}

static void attention_back(struct back *l, const float *in)
{
    const gr_model_shape *s = l->s;
    const size_t h = s->hidden;
    linear_back(l, l->dx, l->acts.att, (size_t)s->heads * s->head_dim, GR_T_O, h, l->ws.datt);
    gr_attend_back(l->q, s, l->b, l->acts.qkv, l->acts.att, l->acts.lse, l->ws.datt, l->ws.dqkv,
                   l->ws.attend);
    gr_team_run(l->q->team, rope_back_rank, l);
    if (s->qk_norm) {
        gr_team_run(l->q->team, qk_grad_rank, l);
        gr_team_run(l->q->team, qk_norm_back_rank, l);
    }
    if (s->qkv_bias) gr_team_run(l->q->team, bias_grad_rank, l);
    norm_again(l, in, GR_T_IN_NORM);
    linear_back(l, l->ws.dqkv, l->ws.row, h, GR_T_QKV, gr_qkv_width(s), l->ws.drow);
    gr_team_run(l->q->team, norm_back_rank, l);
}

void gr_cpu_layer_backward(gr_queue *q, const gr_model_shape *s, const void *w, const gr_packed *p,
                           const void *in, const void *acts, void *dx, void *grad, gr_dtype grads, void *ws)
{
    assert(grads == GR_F32);
    (void)grads;
    if (!p->n_tokens) return;
    gr_batch b = {.n_tokens = p->n_tokens, .n_seqs = p->n_seqs, .offset = p->offset};
    struct back l = {.q = q, .s = s, .v = gr_simd_best(), .w = w, .b = &b, .dx = dx, .grad = grad};
    gr_pass_bounds bounds = {b.n_tokens, b.n_seqs, gr_batch_length(&b), gr_team_size(q->team)};
    gr_workspace c = {.base = ws}, kept = {.base = (char *)(uintptr_t)acts};
    ws_layout(&c, s, &bounds, &l.ws);
    gr_acts_layout(&kept, s, p->n_tokens, &l.acts);
    gr_rope_init(&l.rope, s);
    mlp_back(&l);
    attention_back(&l, in);
}
