/* ops/kernels/cpu/layer_cpu.c: one decoder layer forward, over packed sequences (layer_forward) or over new
 * tokens of sequences whose keys lie in the pool (layer_extend). Both are the same function of a gr_batch;
 * packed sequences get blocks in the workspace. Also RoPE, RMSNorm and products with weights.
 *
 * Source: the modelling code of Hugging Face transformers for llama, qwen2 and qwen3.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "ops/kernels/cpu/cpu.h"
#include "runtime/comm/comm.h"

/* ---- products ------------------------------------------------------------------------------------------ */

void gr_linear(gr_queue *q, const float *x, size_t t, size_t in, const float *w, size_t out, float *y,
               void *ws)
{
    gr_gemm_job g = {t, out, in, {x, in, false}, {w, in, true}, y, out, false, NULL};
    gr_gemm(q, &g, ws);
}

void gr_linear_back(gr_queue *q, const float *dy, const float *x, size_t t, size_t in, const float *w,
                    size_t out, float *dx, float *grad, void *ws)
{
    gr_gemm_job to_x = {t, in, out, {dy, out, false}, {w, in, false}, dx, in, false, NULL};
    gr_gemm(q, &to_x, ws);
    gr_gemm_job to_w = {out, in, t, {dy, out, true}, {x, in, false}, grad, in, true, NULL};
    gr_gemm(q, &to_w, ws);
}

uint64_t gr_linear_ws_bytes(size_t t, size_t in, size_t out, unsigned threads)
{
    const gr_gemm_job g = {.m = t, .n = out, .k = in, .b = {.transposed = true}};
    return gr_gemm_ws_bytes(&g, threads);
}

uint64_t gr_linear_back_ws_bytes(size_t t, size_t in, size_t out, unsigned threads)
{
    const gr_gemm_job to_x = {.m = t, .n = in, .k = out};
    const gr_gemm_job to_w = {.m = out, .n = in, .k = t, .a = {.transposed = true}};
    return GR_MAX(gr_gemm_ws_bytes(&to_x, threads), gr_gemm_ws_bytes(&to_w, threads));
}

/* ---- RMSNorm (Zhang and Sennrich, arXiv:1910.07467) ---------------------------------------------------- */

float gr_rms_inv(const gr_simd *v, const float *x, size_t n, float eps)
{
    return 1 / sqrtf(v->dot(x, x, n) / (float)n + eps);
}

void gr_rms_back(const gr_simd *v, float *dx, const float *base, const float *dy, const float *x,
                 const float *w, float inv, size_t n)
{
    const float c = inv * inv * inv * v->dot3(dy, w, x, n) / (float)n;
    v->rms_back(dx, base, dy, x, w, inv, c, n);
}

/* ---- layer --------------------------------------------------------------------------------------------- */

void gr_acts_layout(gr_workspace *c, const gr_model_shape *s, uint32_t tokens, gr_acts *a)
{
    const uint64_t t = tokens, d = s->head_dim;
    a->qkv = gr_workspace_floats(c, t * gr_qkv_width(s));
    a->qk_raw = s->qk_norm ? gr_workspace_floats(c, t * (s->heads + s->kv_heads) * d) : NULL;
    a->att = gr_workspace_floats(c, t * s->heads * d);
    a->lse = gr_workspace_floats(c, t * s->heads);
    a->mid = gr_workspace_floats(c, t * s->hidden);
    a->gate_up = gr_workspace_floats(c, t * 2 * s->inter);
}

struct layer_ws {
    gr_acts acts;
    float *row; /* [T, H]: a norm's output, then a projection's */
    float *act; /* [T, I] */
    float *attend;
    void *gemm;
};

static uint64_t products_ws_bytes(const gr_model_shape *s, const gr_pass_bounds *b)
{
    const size_t t = b->tokens, h = s->hidden, n = s->inter;
    uint64_t ws = gr_linear_ws_bytes(t, h, gr_qkv_width(s), b->threads);
    ws = GR_MAX(ws, gr_linear_ws_bytes(t, (size_t)s->heads * s->head_dim, h, b->threads));
    ws = GR_MAX(ws, gr_linear_ws_bytes(t, h, 2 * n, b->threads));
    return GR_MAX(ws, gr_linear_ws_bytes(t, n, h, b->threads));
}

/* Without acts and kv where they come from elsewhere; *kv: by gr_batch without a block table. */
static void ws_layout(gr_workspace *c, const gr_model_shape *s, const gr_pass_bounds *b, bool acts,
                      float **kv, struct layer_ws *w)
{
    w->gemm = gr_workspace_bytes(c, products_ws_bytes(s, b));
    w->attend = gr_workspace_floats(c, gr_attend_floats(b->length, b->threads));
    if (acts) gr_acts_layout(c, s, b->tokens, &w->acts);
    if (kv)
        *kv = gr_workspace_floats(c, ((uint64_t)b->tokens / GR_KV_BLOCK + b->seqs) * gr_kv_block_floats(s));
    w->row = gr_workspace_floats(c, (uint64_t)b->tokens * s->hidden);
    w->act = gr_workspace_floats(c, (uint64_t)b->tokens * s->inter);
}

uint64_t gr_cpu_acts_bytes(const gr_model_shape *s, const gr_pass_bounds *b)
{
    gr_workspace c = {0};
    gr_acts a;
    gr_acts_layout(&c, s, b->tokens, &a);
    return c.used;
}

uint64_t gr_cpu_extend_ws_bytes(const gr_model_shape *s, const gr_pass_bounds *b)
{
    gr_workspace c = {0};
    struct layer_ws w;
    ws_layout(&c, s, b, true, NULL, &w);
    return c.used;
}

uint64_t gr_cpu_layer_ws_bytes(const gr_model_shape *s, const gr_pass_bounds *b, gr_layer_use use)
{
    gr_workspace c = {0};
    struct layer_ws w;
    float *kv;
    if (use == GR_LAYER_BACKWARD) return gr_cpu_layer_back_ws_bytes(s, b);
    ws_layout(&c, s, b, use == GR_LAYER_FORWARD, &kv, &w);
    return c.used;
}

struct layer {
    gr_queue *q;
    const gr_model_shape *s;
    const gr_simd *v;
    const float *w;
    const gr_batch *b;
    float *x;
    struct layer_ws ws;
    gr_rope rope;
    const float *norm_in, *norm_w; /* of norm_rank */
};

static void norm_rank(void *arg, unsigned rank, unsigned size)
{
    const struct layer *l = arg;
    const size_t h = l->s->hidden;
    uint64_t first, last;
    gr_team_range(l->b->n_tokens, 1, rank, size, &first, &last);
    for (uint64_t t = first; t < last; t++) {
        const float *x = l->norm_in + t * h;
        l->v->rms_apply(l->ws.row + t * h, x, l->norm_w, gr_rms_inv(l->v, x, h, l->s->norm_eps), h);
    }
}

static void norm(struct layer *l, const float *in, gr_tensor_slot slot)
{
    l->norm_in = in;
    l->norm_w = gr_tensor_at(l->s, l->w, slot);
    gr_team_run(l->q->team, norm_rank, l);
}

static void finish_head(const struct layer *l, float *x, const float *weight, const float *cosine,
                        const float *sine)
{
    const uint32_t d = l->s->head_dim;
    if (l->s->qk_norm) l->v->rms_apply(x, x, weight, gr_rms_inv(l->v, x, d, l->s->norm_eps), d);
    l->v->rotate(x, x + d / 2, cosine, sine, 1, d / 2);
}

/* Bias, q and k norm, RoPE. */
static void qkv_rank(void *arg, unsigned rank, unsigned size)
{
    const struct layer *l = arg;
    const gr_model_shape *s = l->s;
    const size_t width = gr_qkv_width(s), d = s->head_dim, n_qk = s->heads + s->kv_heads;
    const float *bias = gr_tensor_at(s, l->w, GR_T_QKV_BIAS), *q_norm = gr_tensor_at(s, l->w, GR_T_Q_NORM);
    const float *k_norm = gr_tensor_at(s, l->w, GR_T_K_NORM);
    float cosine[GR_HEAD_DIM_MAX / 2], sine[GR_HEAD_DIM_MAX / 2];
    uint64_t first, last;
    gr_team_range(l->b->n_tokens, 1, rank, size, &first, &last);
    uint32_t seq = 0;
    for (uint32_t t = (uint32_t)first; t < last; t++) {
        while (t >= l->b->offset[seq + 1]) seq++;
        float *row = l->ws.acts.qkv + t * width;
        if (s->qkv_bias) l->v->add(row, bias, width);
        if (s->qk_norm) memcpy(l->ws.acts.qk_raw + t * n_qk * d, row, n_qk * d * sizeof(float));
        gr_rope_angles(&l->rope, (l->b->cached ? l->b->cached[seq] : 0) + t - l->b->offset[seq], cosine,
                       sine);
        for (size_t h = 0; h < n_qk; h++)
            finish_head(l, row + h * d, h < s->heads ? q_norm : k_norm, cosine, sine);
    }
}

static void residual_rank(void *arg, unsigned rank, unsigned size)
{
    const struct layer *l = arg;
    uint64_t first, last;
    gr_team_range((uint64_t)l->b->n_tokens * l->s->hidden, 4096, rank, size, &first, &last);
    l->v->add(l->x + first, l->ws.row + first, last - first);
}

static void mid_rank(void *arg, unsigned rank, unsigned size)
{
    const struct layer *l = arg;
    uint64_t first, last;
    residual_rank(arg, rank, size);
    gr_team_range((uint64_t)l->b->n_tokens * l->s->hidden, 4096, rank, size, &first, &last);
    memcpy(l->ws.acts.mid + first, l->x + first, (last - first) * sizeof(float));
}

static void silu_rank(void *arg, unsigned rank, unsigned size)
{
    const struct layer *l = arg;
    const size_t n = l->s->inter;
    uint64_t first, last;
    gr_team_range(l->b->n_tokens, 1, rank, size, &first, &last);
    for (uint64_t t = first; t < last; t++) {
        const float *gate = l->ws.acts.gate_up + t * 2 * n;
        l->v->silu_mul(l->ws.act + t * n, gate, gate + n, n);
    }
}

static void project(const struct layer *l, const float *x, size_t in, gr_tensor_slot slot, size_t out,
                    float *y)
{
    gr_linear(l->q, x, l->b->n_tokens, in, gr_tensor_at(l->s, l->w, slot), out, y, l->ws.gemm);
}

/* Of a slice, what was projected is a part of the sum over the ranks that have the others. */
static void add_parts(const struct layer *l)
{
    if (l->s->parts > 1)
        gr_tp_sum(l->q, l->ws.row, (uint64_t)l->b->n_tokens * l->s->hidden * sizeof(float), GR_COMM_SUM_F32);
}

static void run_layer(struct layer *l)
{
    const gr_model_shape *s = l->s;
    const gr_acts *a = &l->ws.acts;
    const size_t h = s->hidden, wide = (size_t)s->heads * s->head_dim;
    gr_rope_init(&l->rope, s);
    norm(l, l->x, GR_T_IN_NORM);
    project(l, l->ws.row, h, GR_T_QKV, gr_qkv_width(s), a->qkv);
    gr_team_run(l->q->team, qkv_rank, l);
    gr_kv_write(l->q, s, l->b, a->qkv);
    gr_attend(l->q, s, l->b, a->qkv, a->att, a->lse, l->ws.attend);
    project(l, a->att, wide, GR_T_O, h, l->ws.row);
    add_parts(l);
    gr_team_run(l->q->team, mid_rank, l);
    norm(l, l->x, GR_T_POST_NORM);
    project(l, l->ws.row, h, GR_T_GATE_UP, 2 * (size_t)s->inter, a->gate_up);
    gr_team_run(l->q->team, silu_rank, l);
    project(l, l->ws.act, s->inter, GR_T_DOWN, h, l->ws.row);
    add_parts(l);
    gr_team_run(l->q->team, residual_rank, l);
}

static gr_pass_bounds bounds_of(const gr_queue *q, const gr_batch *b)
{
    return (gr_pass_bounds){b->n_tokens, b->n_seqs, gr_batch_length(b), gr_team_size(q->team)};
}

void gr_cpu_layer_forward(gr_queue *q, const gr_model_shape *s, const void *w, const gr_packed *p, void *x,
                          void *keep_in, void *acts, void *ws)
{
    if (!p->n_tokens) return;
    if (keep_in) memcpy(keep_in, x, (size_t)p->n_tokens * s->hidden * sizeof(float));
    gr_batch b = {.n_tokens = p->n_tokens, .n_seqs = p->n_seqs, .offset = p->offset};
    struct layer l = {.q = q, .s = s, .v = gr_simd_best(), .w = w, .b = &b, .x = x};
    gr_pass_bounds bounds = bounds_of(q, &b);
    gr_workspace c = {.base = ws}, kept = {.base = acts};
    ws_layout(&c, s, &bounds, !acts, &b.kv, &l.ws);
    if (acts) gr_acts_layout(&kept, s, p->n_tokens, &l.ws.acts);
    run_layer(&l);
}

void gr_cpu_layer_extend(gr_queue *q, const gr_model_shape *s, const void *w, const gr_extend *e, void *x,
                         void *kv, void *ws)
{
    if (!e->n_tokens) return;
    gr_batch b = {e->n_tokens, e->n_seqs, e->offset, e->cached, e->block_table, e->table_stride, kv};
    struct layer l = {.q = q, .s = s, .v = gr_simd_best(), .w = w, .b = &b, .x = x};
    gr_pass_bounds bounds = bounds_of(q, &b);
    gr_workspace c = {.base = ws};
    ws_layout(&c, s, &bounds, true, NULL, &l.ws);
    run_layer(&l);
}
