/* ops/kernels/cuda/layer.c: the primitives of a layer on CUDA.
 *
 * Residuals are added by the products (D = A B^T + C). Of slices (ops/model/tp.h) the peers' sums come
 * behind the products that close a half, in bf16, in place, on the queue's own stream: they are captured with
 * the rest of a step.
 */
#include "ops/kernels/cuda/layer.h"

#include "ops/kernels/cuda/context.h"
#include "ops/kernels/cuda/copy.h"
#include "ops/kernels/cuda/experts.h"
#include "ops/kernels/cuda/fp8.h"
#include "ops/kernels/cuda/layout.h"
#include "ops/kernels/cuda/model.h"
#include "ops/kernels/cuda/strict.h"
#include "ops/model/fp8.h"
#include "runtime/comm/comm.h"

/* ---- products -------------------------------------------------------------------------------------------
 */

/* Of a decode step of few sequences, whose bits may depend on how many there are. Where ranks hand each other
 * rows, the work in front of a product may be a library's, which is not to be overtaken. */
static bool is_few(gr_queue *q, const gr_product *p)
{
    return p->step && !p->scales && !q->peers && !q->sharers && !q->holders && !gr_cu_context_of(q)->strict &&
           gr_cu_decode_product_takes(p->w, p->t, p->in, p->out);
}

bool gr_cuda_product_norms(gr_queue *q, const gr_product *p)
{
    return is_few(q, p);
}

static void few(gr_queue *q, const gr_product *p, float scale, gr_bf16 *y, const gr_bf16 *add, bool activate)
{
    const gr_norm none = {0}, *norm = p->norm ? p->norm : &none;
    gr_cu_decode_product_run(q->stream, &(gr_cu_decode_product){.x = p->x,
                                                                .w = p->w,
                                                                .y = y,
                                                                .bias = p->bias,
                                                                .add = add,
                                                                .norm = norm->w,
                                                                .scale = scale,
                                                                .eps = norm->eps,
                                                                .one = norm->plus_one,
                                                                .t = p->t,
                                                                .in = p->in,
                                                                .out = p->out,
                                                                .ld = activate ? p->out / 2 : p->out,
                                                                .activate = activate});
}

/* y [t, out] = scale x w^T, + add where not NULL, else + bias: of forward passes alone, so that strict goes
 * with it. */
static void linear(gr_queue *q, const gr_product *p, float scale, gr_bf16 *y, const gr_bf16 *add, void *ws)
{
    if (is_few(q, p)) {
        few(q, p, scale, y, add, false);
        return;
    }
    if (p->scales) {
        gr_cuda_fp8_product(q, p, scale, y, NULL, NULL, ws);
        return;
    }
    gr_cu_product(q,
                  &(gr_cu_gemm_call){.form = GR_CU_GEMM_NT,
                                     .m = p->t,
                                     .n = p->out,
                                     .k = p->in,
                                     .a = p->x,
                                     .b = p->w,
                                     .lda = p->in,
                                     .ldb = p->in,
                                     .ldd = p->out,
                                     .d = y,
                                     .type = GR_CU_BF16,
                                     .c = add,
                                     .ldc = p->out,
                                     .scale = scale,
                                     .bias = p->bias,
                                     .strict = gr_cu_context_of(q)->strict},
                  ws);
}

/* y [t, out] = add + scale x w^T + bias. y == add is fine; then, or with a bias, which products that add do
 * not have, temp [t, out] is written. */
static void residual(gr_queue *q, const gr_product *p, float scale, gr_bf16 *y, const gr_bf16 *add,
                     gr_bf16 *temp, void *ws)
{
    if (p->scales) {
        gr_cuda_fp8_product(q, p, scale, y, add, temp, ws);
        return;
    }
    if (is_few(q, p) || (!gr_cu_context_of(q)->strict && !p->bias)) {
        linear(q, p, scale, y, add, ws);
        return;
    }
    gr_bf16 *product = y == add ? temp : y;
    linear(q, p, scale, product, NULL, ws);
    gr_cu_add(q->stream, y, y == add ? temp : add, GR_CU_BF16, (uint64_t)p->t * p->out);
}

void gr_cu_linear_dx(gr_queue *q, const gr_bf16 *dy, uint64_t ld, uint32_t t, uint32_t in, const gr_bf16 *w,
                     uint32_t out, gr_bf16 *dx, void *ws)
{
    gr_cu_product(q,
                  &(gr_cu_gemm_call){.form = GR_CU_GEMM_NN,
                                     .m = t,
                                     .n = in,
                                     .k = out,
                                     .a = dy,
                                     .b = w,
                                     .lda = ld,
                                     .ldb = in,
                                     .ldd = in,
                                     .d = dx,
                                     .type = GR_CU_BF16},
                  ws);
}

void gr_cu_linear_dw(gr_queue *q, const gr_bf16 *dy, uint64_t ld, const gr_bf16 *x, uint32_t t, uint32_t in,
                     uint32_t out, void *grad, gr_dtype grads, void *ws)
{
    gr_cu_product(q,
                  &(gr_cu_gemm_call){.form = GR_CU_GEMM_TN,
                                     .m = out,
                                     .n = in,
                                     .k = t,
                                     .a = dy,
                                     .b = x,
                                     .lda = ld,
                                     .ldb = in,
                                     .ldd = in,
                                     .d = grad,
                                     .type = gr_cu_type(grads),
                                     .c = grad,
                                     .ldc = in},
                  ws);
}

void gr_cuda_product(gr_queue *q, const gr_product *p, void *y, void *ws)
{
    linear(q, p, 1, y, NULL, ws);
}

/* Of a slice: the sum of what all peers' slices give, to which the first of them alone brings what is added;
 * one rounding more than the product's own. */
void gr_cuda_product_add(gr_queue *q, const gr_product *p, const void *add, float scale, bool sliced, void *y,
                         void *temp, void *ws)
{
    if (sliced && q->peers->comm->rank)
        linear(q, p, scale, y, NULL, ws);
    else
        residual(q, p, scale, y, add, temp, ws);
    if (sliced) gr_tp_sum(q, y, (uint64_t)p->t * p->out * sizeof(gr_bf16), GR_COMM_SUM_BF16);
}

/* In one where a decode step is small, or large enough. */
bool gr_cuda_product_activate(gr_queue *q, const gr_dense_desc *d, const gr_tokens *b, const gr_product *p,
                              void *h)
{
    if (d->act == GR_ACT_SILU && is_few(q, p)) {
        few(q, p, 1, h, NULL, true);
        return true;
    }
    if (p->scales || !b->decode || d->act != GR_ACT_SILU || gr_cu_context_of(q)->strict ||
        !gr_cu_swiglu_fuses(p->w, p->t, p->in, d->inner))
        return false;
    if (!gr_cu_swiglu_product(q->stream, p->x, p->w, h, p->t, p->in, d->inner))
        gr_cu_note(q, gr_diag_error(&gr_cu_context_of(q)->d, (gr_loc){0}, GR_E_FAILED,
                                    "gate and up cannot be launched"));
    return true;
}

void gr_cuda_product_dx(gr_queue *q, const gr_product *p, const void *dy, void *dx, void *ws)
{
    if (p->scales)
        gr_cuda_fp8_product_dx(q, p, dy, dx, ws);
    else
        gr_cu_linear_dx(q, dy, p->out, p->t, p->in, p->w, p->out, dx, ws);
}

void gr_cuda_product_dw(gr_queue *q, const gr_product *p, const void *dy, void *grad, gr_dtype grads,
                        void *ws)
{
    if (p->dw_fp8)
        gr_cuda_fp8_product_dw(q, p, dy, grad, grads, ws);
    else
        gr_cu_linear_dw(q, dy, p->out, p->x, p->t, p->in, p->out, grad, grads, ws);
}

void gr_cuda_column_sums(gr_queue *q, const void *d, uint32_t t, uint32_t cols, void *grad, gr_dtype grads,
                         void *ws)
{
    gr_cu_column_sums(q->stream, d, grad, gr_cu_type(grads), t, cols, ws);
}

/* ---- norms ----------------------------------------------------------------------------------------------
 */

static gr_cu_norm norm_of(const gr_norm *c)
{
    return (gr_cu_norm){
        .x = c->x, .ld = c->cols, .w = c->w, .one = c->plus_one, .n = c->n, .H = c->cols, .eps = c->eps};
}

void gr_cuda_norm(gr_queue *q, const gr_norm *c, void *y)
{
    const gr_cu_norm norm = norm_of(c);
    gr_cu_rmsnorm(q->stream, &norm, y);
}

bool gr_cuda_norm_round(gr_queue *q, const gr_norm *c, const gr_product *p, void *y, void *ws)
{
    const gr_cu_norm norm = norm_of(c);
    gr_cu_fp8_to to;
    if (!gr_cuda_fp8_takes(q, p, false, ws, &to)) return false;
    gr_cu_fp8_rmsnorm(q->stream, &norm, &to, y);
    return true;
}

void gr_cuda_norm_add(gr_queue *q, const gr_norm *c, const void *add, void *y)
{
    const gr_cu_norm norm = norm_of(c);
    gr_cu_rmsnorm_add(q->stream, &norm, add, y);
}

void gr_cuda_norm_backward(gr_queue *q, const gr_norm *c, const void *dy, void *dx, bool add, void *grad,
                           gr_dtype grads, void *ws)
{
    const gr_cu_norm norm = norm_of(c);
    gr_cu_rmsnorm_backward(q->stream, &norm, dy, dx, add, grad, gr_cu_type(grads), ws);
}

void gr_cuda_scale(gr_queue *q, const void *x, float scale, uint64_t n, void *y)
{
    gr_cu_scale(q->stream, x, scale, y, n);
}

void gr_cuda_scale_by(gr_queue *q, void *x, const void *by, uint64_t n)
{
    gr_cu_scale_by(q->stream, x, by, n);
}

/* ---- q, k and v -----------------------------------------------------------------------------------------
 */

static gr_cu_heads heads_of(gr_queue *q, const gr_rotate *c, uint32_t raw_ld)
{
    const gr_attention_desc *d = c->d;
    const float factor = gr_rope_factor(&d->rope);
    return (gr_cu_heads){.heads = d->heads,
                         .kv_heads = d->kv_heads,
                         .head_dim = d->head_dim,
                         .frequency = gr_cu_frequencies(q, &d->rope, d->head_dim),
                         .eps = c->eps,
                         .one = c->plus_one,
                         .factor = factor != 1 ? factor : 0,
                         .rotated = d->rope.type == GR_ROPE_NONE ? 0 : d->rope.dims,
                         .raw_ld = raw_ld,
                         .kv_fp8 = d->kv_fp8,
                         .value_norm = d->value_norm};
}

/* The norm over all of q, or over all of k, in rows of q, k and v. */
static gr_cu_norm whole_norm(const gr_rotate *c, bool k, const void *rows)
{
    const gr_attention_desc *d = c->d;
    return (gr_cu_norm){.x = (const gr_bf16 *)rows + (k ? d->heads * d->head_dim : 0),
                        .ld = gr_qkv_width(d),
                        .w = k ? c->k_norm : c->q_norm,
                        .one = c->plus_one,
                        .n = c->b->n,
                        .H = (k ? d->kv_heads : d->heads) * d->head_dim,
                        .eps = c->eps};
}

/* Rows of a few whole units. */
static bool few_units(const void *to, uint64_t to_stride, const void *from, uint64_t from_stride,
                      uint64_t row_bytes, uint64_t n)
{
    const uint64_t any = (uintptr_t)to | (uintptr_t)from | to_stride | from_stride | row_bytes;
    return any % GR_CU_COPY_UNIT == 0 && n * row_bytes <= GR_CU_COPY_MOST;
}

void gr_cuda_copy_activations(gr_queue *q, void *to, uint64_t to_stride, const void *from,
                              uint64_t from_stride, uint64_t row_bytes, uint64_t n)
{
    const uint64_t unit = GR_CU_COPY_UNIT;
    if (few_units(to, to_stride, from, from_stride, row_bytes, n))
        gr_cu_copy_rows(q->stream, to, to_stride / unit, from, from_stride / unit,
                        (uint32_t)(row_bytes / unit), (uint32_t)n);
    else
        gr_cuda_copy_rows(q, to, to_stride, from, from_stride, row_bytes, n);
}

/* Norms over all of q and of k, and v as it is. */
static void norm_whole(gr_queue *q, const gr_rotate *c, const void *from, void *to)
{
    const gr_attention_desc *d = c->d;
    const gr_cu_norm of_q = whole_norm(c, false, from), of_k = whole_norm(c, true, from);
    const uint64_t row = gr_qkv_width(d) * sizeof(gr_bf16), v = (uint64_t)d->kv_heads * d->head_dim * 2;
    if (from != to) /* first: what follows may be chained to a kernel, not to a copy */
        gr_cuda_copy_rows(q, (char *)to + row - v, row, (const char *)from + row - v, row, v, c->b->n);
    gr_cu_rmsnorm(q->stream, &of_q, to);
    gr_cu_rmsnorm(q->stream, &of_k, (gr_bf16 *)to + d->heads * d->head_dim);
}

void gr_cuda_rotate(gr_queue *q, const gr_rotate *c, const void *from, void *to, void *raw)
{
    const gr_cu_heads h = heads_of(q, c, gr_qkv_rows(c->d));
    const gr_tokens *b = c->b;
    const bool whole = c->d->qk_norm == GR_QK_NORM_WHOLE;
    const void *q_norm = whole ? NULL : c->q_norm, *k_norm = whole ? NULL : c->k_norm;
    (void)raw; /* from stays as it is, or has no norm */
    if (whole) norm_whole(q, c, from, to);
    if (b->state)
        gr_cu_qk_rope_store(q->stream, &h, whole ? to : from, q_norm, k_norm, b->position, b->slot, to,
                            b->state, b->n);
    else
        gr_cu_qk_rope(q->stream, &h, whole ? to : from, q_norm, k_norm, b->position, to, b->n);
    if (!b->state && h.kv_fp8) /* as rollouts see them */
        gr_cu_fp8_heads(q->stream, (gr_bf16 *)to + h.heads * h.head_dim, b->n, gr_qkv_width(c->d),
                        2 * h.kv_heads, h.head_dim);
}

bool gr_cuda_rotate_attend(gr_queue *q, const gr_rotate *r, const gr_attend *c, const void *from, void *out)
{
    const gr_cu_heads h = heads_of(q, r, gr_qkv_rows(r->d));
    const gr_scores scores = gr_attend_scores(c);
    const gr_tokens *b = c->b;
    if (!b->decode || b->decode->each > 1 || gr_cu_context_of(q)->strict ||
        r->d->qk_norm == GR_QK_NORM_WHOLE || !gr_cu_decode_fuses(&h, &scores, b->n_seqs))
        return false;
    gr_cu_decode_fused_run(q->stream,
                           &(gr_cu_decode_fused){.heads = h,
                                                 .qkv = from,
                                                 .q_norm = r->q_norm,
                                                 .k_norm = r->k_norm,
                                                 .position = b->position,
                                                 .slot = b->slot,
                                                 .length = b->decode->length,
                                                 .table = b->block_table,
                                                 .table_stride = b->table_stride,
                                                 .n = b->n_seqs,
                                                 .kv = b->state,
                                                 .out = out},
                           scores.scale);
    return true;
}

static void whole_back(gr_queue *q, const gr_rotate *c, bool k, const void *raw, gr_bf16 *d, void *grad,
                       gr_dtype grads, void *ws)
{
    const gr_cu_norm norm = whole_norm(c, k, raw);
    gr_bf16 *at = d + (k ? c->d->heads * c->d->head_dim : 0);
    gr_cu_rmsnorm_backward(q->stream, &norm, at, at, false, grad, gr_cu_type(grads), ws);
}

void gr_cuda_rotate_backward(gr_queue *q, const gr_rotate *c, const void *raw, uint32_t raw_ld, void *d,
                             void *grad_q_norm, void *grad_k_norm, gr_dtype grads, void *ws)
{
    const gr_cu_heads h = heads_of(q, c, raw_ld);
    const bool whole = c->d->qk_norm == GR_QK_NORM_WHOLE;
    gr_cu_qk_rope_backward(q->stream, &h, raw, whole ? NULL : c->q_norm, whole ? NULL : c->k_norm,
                           c->b->position, d, whole ? NULL : grad_q_norm, whole ? NULL : grad_k_norm,
                           gr_cu_type(grads), c->b->n, ws);
    if (!whole) return;
    whole_back(q, c, false, raw, d, grad_q_norm, grads, ws);
    whole_back(q, c, true, raw, d, grad_k_norm, grads, ws);
}

void gr_cuda_gate(gr_queue *q, uint32_t t, uint32_t n, const void *x, const void *g, uint32_t ld, void *y)
{
    gr_cu_gate(q->stream, t, n, x, g, ld, y);
}

void gr_cuda_gate_backward(gr_queue *q, uint32_t t, uint32_t n, const void *x, const void *g, uint32_t ld,
                           const void *dy, void *dx, void *dg)
{
    gr_cu_gate_backward(q->stream, t, n, x, g, ld, dy, dx, dg);
}

/* ---- attention ------------------------------------------------------------------------------------------
 */

/* The list of what is to be read by these heads. */
static const void *work_of(const gr_decode *d, const gr_attention_desc *a)
{
    const uint32_t group = a->heads / a->kv_heads;
    uint32_t i = 0;
    while (i + 1 < d->n_lists && (d->lists[i].window != a->window || d->lists[i].group != group)) i++;
    return d->lists[i].work;
}

static bool attends_strictly(gr_queue *q, const gr_attend *c)
{
    return gr_cu_context_of(q)->strict || c->d->head_dim > GR_CU_DECODE_HEAD;
}

/* to: where the first of the rows go; NULL: none do. */
static void attend_decode(gr_queue *q, const gr_attend *c, const gr_cu_paged *paged, const gr_cu_fp8_to *to,
                          void *out)
{
    const gr_decode *d = c->b->decode;
    const gr_cu_decode call = {.length = d->length,
                               .member = d->member,
                               .group_first = d->group_first,
                               .shared = d->shared,
                               .n = c->b->n_seqs,
                               .n_groups = d->n_groups,
                               .max_length = d->max_length,
                               .each = d->each};
    if (attends_strictly(q, c))
        gr_cu_strict_attention(q->stream, paged, &call, c->qkv, out, d->ws);
    else if (to)
        gr_cu_fp8_decode_attention(q->stream, paged, &call, c->qkv, to, out, work_of(d, c->d), d->ws);
    else
        gr_cu_decode_attention(q->stream, paged, &call, c->qkv, out, work_of(d, c->d), d->ws);
}

static gr_cu_paged paged_of(const gr_attend *c)
{
    return (gr_cu_paged){gr_cu_heads_of(c->d), c->b->state, c->b->block_table, c->b->table_stride,
                         gr_attend_scores(c)};
}

static void attend_paged(gr_queue *q, const gr_attend *c, void *out)
{
    const gr_tokens *b = c->b;
    const gr_cu_paged paged = paged_of(c);
    if (b->decode)
        attend_decode(q, c, &paged, NULL, out);
    else
        gr_cu_extend_attention(q->stream, &paged, c->qkv, b->offset, b->cached, b->n_seqs, b->n, b->longest,
                               out);
}

static gr_cu_sequences sequences_of(const gr_tokens *b)
{
    return (gr_cu_sequences){b->n_seqs, b->host_offset, b->offset, b->host_prefix, b->prefix};
}

void gr_cuda_attend(gr_queue *q, const gr_attend *c, void *out, float *stats)
{
    gr_cu_context *x = gr_cu_context_of(q);
    const gr_cu_attention_shape shape = gr_cu_attention_shape_of(c->d, !x->nondeterministic);
    const gr_cu_sequences b = sequences_of(c->b);
    const gr_scores scores = gr_attend_scores(c);
    if (c->b->state)
        attend_paged(q, c, out);
    else
        gr_cu_note(q, gr_cu_attention_forward(x->attention, q->stream, &shape, &scores, &b, c->qkv, out,
                                              stats, c->ws, c->ws_bytes, &x->d));
}

/* Blocks of values are parts of heads. */
bool gr_cuda_attend_round(gr_queue *q, const gr_attend *c, const gr_product *p, void *out, void *ws)
{
    gr_cu_fp8_to to;
    if (!c->b->decode || attends_strictly(q, c) || c->d->head_dim % GR_FP8_BLOCK ||
        !gr_cuda_fp8_takes(q, p, true, ws, &to))
        return false;
    const gr_cu_paged paged = paged_of(c);
    attend_decode(q, c, &paged, &to, out);
    return true;
}

void gr_cuda_attend_backward(gr_queue *q, const gr_attend *c, const void *out, const float *stats,
                             const void *dout, void *dqkv, void *grad_sinks, gr_dtype grads)
{
    gr_cu_context *x = gr_cu_context_of(q);
    const gr_cu_attention_shape shape = gr_cu_attention_shape_of(c->d, !x->nondeterministic);
    const gr_cu_sequences b = sequences_of(c->b);
    const gr_scores scores = gr_attend_scores(c);
    const gr_cu_sink_grads sinks = {grad_sinks, gr_cu_type(grads)};
    gr_cu_note(q,
               gr_cu_attention_backward(x->attention, q->stream, &shape, &scores, &b, c->qkv, out, stats,
                                        dout, dqkv, grad_sinks ? &sinks : NULL, c->ws, c->ws_bytes, &x->d));
}

/* ---- activations ----------------------------------------------------------------------------------------
 */

void gr_cuda_activate(gr_queue *q, const gr_dense_desc *d, uint32_t t, const void *gate_up, void *h)
{
    const gr_cu_expert_act rows = {GR_CU_SWIGLU_OAI, d->limit, t, d->inner};
    if (d->act == GR_ACT_SWIGLU_OAI)
        gr_cu_experts_act(q->stream, &rows, gate_up, h);
    else
        gr_cu_swiglu(q->stream, gate_up, d->act == GR_ACT_GELU_TANH, h, t, d->inner);
}

bool gr_cuda_activate_round(gr_queue *q, const gr_dense_desc *d, const void *gate_up, const gr_product *p,
                            void *h, void *ws)
{
    gr_cu_fp8_to to;
    if (d->act == GR_ACT_SWIGLU_OAI || !gr_cuda_fp8_takes(q, p, true, ws, &to)) return false;
    gr_cu_fp8_swiglu(q->stream, gate_up, d->act == GR_ACT_GELU_TANH, &to, h, p->t, p->in);
    return true;
}

void gr_cuda_activate_backward(gr_queue *q, const gr_dense_desc *d, uint32_t t, const void *gate_up,
                               const void *dh, void *d_gate_up, void *h)
{
    const gr_cu_expert_act rows = {GR_CU_SWIGLU_OAI, d->limit, t, d->inner};
    if (d->act == GR_ACT_SWIGLU_OAI)
        gr_cu_experts_act_backward(q->stream, &rows, NULL, NULL, NULL, gate_up, dh, d_gate_up, h, NULL);
    else
        gr_cu_swiglu_backward(q->stream, gate_up, dh, d->act == GR_ACT_GELU_TANH, d_gate_up, h, t, d->inner);
}
