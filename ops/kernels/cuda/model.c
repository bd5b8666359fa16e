/* ops/kernels/cuda/model.c: the ends of a model's passes on CUDA, embedding and heads, and flat arrays:
 * cuBLASLt's products and the kernels of ops/kernels/cuda/launch.h. Layers are ops/kernels/layer.c over
 * ops/kernels/cuda/layer.c.
 */
#include "ops/kernels/cuda/model.h"

#include <cuda_runtime_api.h>
#include <math.h>

#include "ops/kernels/cuda/context.h"
#include "ops/kernels/cuda/layer.h"
#include "ops/kernels/cuda/layout.h"

/* ---- embedding and head ---------------------------------------------------------------------------------
 */

void gr_cuda_embed_forward(gr_queue *q, const gr_model_shape *s, const void *embed, const gr_packed *b,
                           void *x)
{
    if (b->n_tokens) gr_cu_embed(q->stream, embed, b->ids, s->embed_scale, x, b->n_tokens, s->hidden);
}

void gr_cuda_embed_backward(gr_queue *q, const gr_model_shape *s, const gr_packed *b, const void *dx,
                            void *grad_embed, gr_dtype grads, void *ws)
{
    if (b->n_tokens)
        gr_cu_embed_backward(q->stream, b->ids, dx, s->embed_scale, grad_embed, gr_cu_type(grads),
                             b->n_tokens, s->hidden, ws);
}

static gr_cu_norm last_norm(const gr_model_shape *s, const void *w, const void *x, const uint32_t *row,
                            uint32_t n)
{
    return (gr_cu_norm){x, row, s->hidden, w, s->norm_plus_one, n, s->hidden, s->norm_eps};
}

/* What the output matrix multiplies: logits are scaled here. */
void gr_cuda_head_hidden(gr_queue *q, const gr_model_shape *s, const void *norm_w, const void *x,
                         const uint32_t *row, uint32_t n, void *hidden)
{
    const gr_cu_norm norm = last_norm(s, norm_w, x, row, n);
    gr_cu_rmsnorm(q->stream, &norm, hidden);
    if (s->logit_scale != 1) gr_cu_scale(q->stream, hidden, s->logit_scale, hidden, (uint64_t)n * s->hidden);
}

static void head_logits(gr_queue *q, const gr_model_shape *s, const void *lm, const gr_bf16 *hidden,
                        uint32_t n, void *gemm, float *logits)
{
    gr_cu_product(q,
                  &(gr_cu_gemm_call){.form = GR_CU_GEMM_NT,
                                     .m = n,
                                     .n = s->vocab,
                                     .k = s->hidden,
                                     .a = hidden,
                                     .b = lm,
                                     .lda = s->hidden,
                                     .ldb = s->hidden,
                                     .ldd = s->vocab,
                                     .d = logits,
                                     .type = GR_CU_F32,
                                     .strict = gr_cu_context_of(q)->strict},
                  gemm);
    if (s->logit_softcap > 0) gr_cu_head_cap(q->stream, logits, s->logit_softcap, (uint64_t)n * s->vocab);
}

static float *later(float *x, uint64_t n)
{
    return x ? x + n : NULL;
}

/* A product, then its statistics. */
static void split_stats(gr_queue *q, const gr_model_shape *s, const void *lm, const gr_head_rows *rows,
                        const gr_head_stats *out, const gr_cu_head_ws *w)
{
    for (uint32_t at = 0; at < rows->n; at += GR_CU_HEAD_ROWS) {
        const uint32_t n = GR_MIN(rows->n - at, GR_CU_HEAD_ROWS);
        float *logits = w->logits + (rows->keep ? (uint64_t)at * s->vocab : 0);
        head_logits(q, s, lm, w->hidden + (uint64_t)at * s->hidden, n, w->gemm, logits);
        gr_cu_head_stats(q->stream, logits, rows->target + at, rows->inv_temperature, n, s->vocab,
                         later(out->logprob, at), w->entropy + at, later(out->sum_p2, at), w->lse + at);
    }
}

static void head_product(gr_queue *q, const gr_cu_head_rows *r)
{
    if (!gr_cu_head_product(q->stream, r))
        gr_cu_note(q, gr_diag_error(&gr_cu_context_of(q)->d, (gr_loc){0}, GR_E_FAILED,
                                    "the head's product cannot be launched"));
}

static bool head_fuses(gr_queue *q, const gr_model_shape *s, const void *lm)
{
    return !gr_cu_context_of(q)->strict && !(s->logit_softcap > 0) && gr_cu_head_fuses(lm, s->hidden);
}

/* Both at once. */
static void fused_stats(gr_queue *q, const gr_model_shape *s, const void *lm, const gr_head_rows *rows,
                        const gr_head_stats *out, const gr_cu_head_ws *w)
{
    const gr_cu_head_rows r = {.x = w->hidden,
                               .lm = lm,
                               .target = rows->target,
                               .inv_temperature = rows->inv_temperature,
                               .n = rows->n,
                               .V = s->vocab,
                               .H = s->hidden,
                               .part = w->part,
                               .logit = w->logit,
                               .logits = rows->keep ? w->logits : NULL};
    head_product(q, &r);
    gr_cu_head_merge(q->stream, &r, out->logprob, w->entropy, out->sum_p2, w->lse);
}

void gr_cuda_head_forward(gr_queue *q, const gr_model_shape *s, const void *norm_w, const void *lm,
                          const void *x, const gr_head_rows *rows, const gr_head_stats *out, void *ws)
{
    if (!rows->n) return;
    gr_workspace c = {.base = ws};
    gr_cu_head_ws w;
    gr_cu_head_layout(&c, s, rows->n, rows->keep ? GR_HEAD_GRADIENT : GR_HEAD_LOGPROB, &w);
    gr_cuda_head_hidden(q, s, norm_w, x, rows->row, rows->n, w.hidden);
    if (head_fuses(q, s, lm))
        fused_stats(q, s, lm, rows, out, &w);
    else
        split_stats(q, s, lm, rows, out, &w);
    if (out->entropy)
        cudaMemcpyAsync(out->entropy, w.entropy, rows->n * sizeof(float), cudaMemcpyDefault, q->stream);
}

typedef struct head_adjoint {
    const float *lse, *entropy, *d_logprob, *d_entropy;
    float *logits; /* become their gradients in place: rows of 2 V halves, of which V are used */
    void *gemm;
} head_adjoint;

static void logits_backward(gr_queue *q, const gr_model_shape *s, const void *lm, const gr_bf16 *hidden,
                            const gr_head_rows *rows, const head_adjoint *a, gr_bf16 *d_hidden, void *grad_lm,
                            gr_dtype grads)
{
    const gr_bf16 *d_logits = (const gr_bf16 *)a->logits;
    const uint64_t ld = 2 * (uint64_t)s->vocab;
    gr_cu_head_dlogits(q->stream, a->logits,
                       &(gr_cu_head_adjoint){.target = rows->target,
                                             .lse = a->lse,
                                             .entropy = a->entropy,
                                             .d_logprob = a->d_logprob,
                                             .d_entropy = a->d_entropy,
                                             .slope = rows->slope,
                                             .d_divergence = rows->d_divergence,
                                             .inv_temperature = rows->inv_temperature,
                                             .cap = s->logit_softcap,
                                             .n = rows->n,
                                             .V = s->vocab});
    gr_cu_linear_dx(q, d_logits, ld, rows->n, s->hidden, lm, s->vocab, d_hidden, a->gemm);
    if (grad_lm)
        gr_cu_linear_dw(q, d_logits, ld, hidden, rows->n, s->hidden, s->vocab, grad_lm, grads, a->gemm);
}

static void norm_backward(gr_queue *q, const gr_model_shape *s, const void *norm_w, const void *x,
                          const uint32_t *row, uint32_t n, gr_bf16 *d_hidden, void *dx, void *grad_norm,
                          gr_dtype grads, void *sums)
{
    const gr_cu_norm norm = last_norm(s, norm_w, x, row, n);
    if (s->logit_scale != 1)
        gr_cu_scale(q->stream, d_hidden, s->logit_scale, d_hidden, (uint64_t)n * s->hidden);
    gr_cu_rmsnorm_backward(q->stream, &norm, d_hidden, dx, false, grad_norm, gr_cu_type(grads), sums);
}

void gr_cuda_head_backward(gr_queue *q, const gr_model_shape *s, const void *norm_w, const void *lm,
                           const void *x, const gr_head_rows *rows, const float *d_logprob,
                           const float *d_entropy, void *dx, void *grad_norm, void *grad_lm, gr_dtype grads,
                           void *ws)
{
    if (!rows->n) return;
    gr_workspace c = {.base = ws};
    gr_cu_head_ws w;
    gr_cu_head_layout(&c, s, rows->n, GR_HEAD_GRADIENT, &w);
    const head_adjoint a = {w.lse, w.entropy, d_logprob, d_entropy, w.logits, w.gemm};
    logits_backward(q, s, lm, w.hidden, rows, &a, w.d_hidden, grad_lm, grads);
    norm_backward(q, s, norm_w, x, rows->row, rows->n, w.d_hidden, dx, grad_norm, grads, w.sums);
}

/* ---- a teacher ------------------------------------------------------------------------------------------
 */

void gr_cuda_teach(gr_queue *q, const gr_model_shape *s, const gr_head_rows *rows, const gr_head_teacher *t,
                   float *divergence, void *ws, void *taught)
{
    if (!rows->n) return;
    gr_workspace own = {.base = ws}, c = {.base = taught};
    gr_cu_head_ws w;
    gr_cu_teach_ws to;
    gr_cu_head_layout(&own, s, rows->n, GR_HEAD_GRADIENT, &w);
    gr_cu_teach_layout(&c, s, rows->n, &to);
    gr_model_shape teacher = *t->s;
    teacher.vocab = s->vocab;
    for (uint32_t at = 0; at < rows->n; at += GR_CU_HEAD_ROWS)
        head_logits(q, &teacher, t->lm, (const gr_bf16 *)t->hidden + (uint64_t)at * teacher.hidden,
                    GR_MIN(rows->n - at, GR_CU_HEAD_ROWS), to.gemm, to.slope + (uint64_t)at * s->vocab);
    gr_cu_teach(q->stream, &(gr_cu_teach_call){.logits = w.logits,
                                               .lse = w.lse,
                                               .taught = to.slope,
                                               .divergence = divergence,
                                               .kind = t->kind,
                                               .beta = t->beta,
                                               .inv_temperature = rows->inv_temperature,
                                               .n = rows->n,
                                               .V = s->vocab});
}

/* ---- a part of the vocabulary ---------------------------------------------------------------------------
 */

void gr_cuda_head_part(gr_queue *q, const gr_model_shape *s, const void *lm, const void *hidden,
                       const gr_head_rows *rows, float *part, void *ws)
{
    gr_workspace c = {.base = ws};
    gr_cu_part_ws w;
    gr_cu_part_layout(&c, s, rows->n, 0, rows->keep ? GR_HEAD_GRADIENT : GR_HEAD_LOGPROB, &w);
    const gr_cu_head_rows r = {.x = hidden,
                               .lm = lm,
                               .target = rows->target,
                               .inv_temperature = rows->inv_temperature,
                               .n = rows->n,
                               .V = s->vocab,
                               .H = s->hidden,
                               .part = w.part,
                               .logit = w.logit,
                               .logits = rows->keep ? w.logits : NULL};
    if (head_fuses(q, s, lm)) {
        head_product(q, &r);
        gr_cu_head_part_merge(q->stream, &r, part);
        return;
    }
    for (uint32_t at = 0; at < rows->n; at += GR_CU_HEAD_ROWS) {
        const uint32_t n = GR_MIN(rows->n - at, GR_CU_HEAD_ROWS);
        float *logits = w.logits + (rows->keep ? (uint64_t)at * s->vocab : 0);
        head_logits(q, s, lm, r.x + (uint64_t)at * s->hidden, n, w.gemm, logits);
        gr_cu_head_part_stats(q->stream, logits, rows->target + at, rows->inv_temperature, n, s->vocab,
                              part + (uint64_t)at * GR_HEAD_PART);
    }
}

void gr_cuda_head_join(gr_queue *q, const float *part, uint32_t slices, uint32_t n, float inv_temperature,
                       const gr_head_stats *out, float *lse)
{
    gr_cu_head_join(q->stream, part, slices, n, inv_temperature, out->logprob, out->entropy, out->sum_p2,
                    lse);
}

void gr_cuda_head_part_backward(gr_queue *q, const gr_model_shape *s, const void *lm, const void *hidden,
                                const gr_head_rows *rows, const float *lse, const float *entropy,
                                const float *d_logprob, const float *d_entropy, void *d_hidden, void *grad_lm,
                                gr_dtype grads, void *ws)
{
    gr_workspace c = {.base = ws};
    gr_cu_part_ws w;
    gr_cu_part_layout(&c, s, rows->n, 0, GR_HEAD_GRADIENT, &w);
    const head_adjoint a = {lse, entropy, d_logprob, d_entropy, w.logits, w.gemm};
    logits_backward(q, s, lm, hidden, rows, &a, d_hidden, grad_lm, grads);
}

void gr_cuda_head_hidden_backward(gr_queue *q, const gr_model_shape *s, const void *norm, const void *x,
                                  const uint32_t *row, uint32_t n, void *d_hidden, void *dx, void *grad_norm,
                                  gr_dtype grads, void *ws)
{
    gr_workspace c = {.base = ws};
    gr_cu_part_ws w;
    gr_cu_part_layout(&c, s, 0, n, GR_HEAD_GRADIENT, &w);
    norm_backward(q, s, norm, x, row, n, d_hidden, dx, grad_norm, grads, w.sums);
}

static gr_cu_value_head value_head(const gr_model_shape *s, const gr_value_head *h)
{
    return (gr_cu_value_head){h->norm, h->weight, h->bias, s->norm_plus_one};
}

void gr_cuda_value_forward(gr_queue *q, const gr_model_shape *s, const gr_value_head *head, const void *x,
                           const uint32_t *row, uint32_t n, float *value, void *ws)
{
    const gr_cu_value_head h = value_head(s, head);
    gr_cu_value(q->stream, x, row, &h, value, n, s->hidden, s->norm_eps, ws);
}

void gr_cuda_value_backward(gr_queue *q, const gr_model_shape *s, const gr_value_head *head, const void *x,
                            const uint32_t *row, uint32_t n, const float *d_value, void *dx,
                            const gr_value_grads *grad, void *ws)
{
    const gr_cu_value_head h = value_head(s, head);
    const gr_cu_value_grads g = {gr_cu_type(grad->type), grad->norm, grad->weight, grad->bias};
    gr_cu_value_backward(q->stream, x, row, &h, d_value, dx, &g, n, s->hidden, ws);
}

/* step: of a decode step, where the kernel in front does not write the output matrix. */
static void sampled_logits(gr_queue *q, const gr_model_shape *s, const void *lm, const gr_cu_head_ws *w,
                           uint32_t n, bool step)
{
    if (!step || gr_cu_context_of(q)->strict || !gr_cu_decode_product_takes(lm, n, s->hidden, s->vocab)) {
        head_logits(q, s, lm, w->hidden, n, w->gemm, w->logits);
        return;
    }
    gr_cu_decode_product_run(q->stream, &(gr_cu_decode_product){.x = w->hidden,
                                                                .w = lm,
                                                                .logits = w->logits,
                                                                .scale = 1,
                                                                .t = n,
                                                                .in = s->hidden,
                                                                .out = s->vocab,
                                                                .ld = s->vocab});
    if (s->logit_softcap > 0) gr_cu_head_cap(q->stream, w->logits, s->logit_softcap, (uint64_t)n * s->vocab);
}

void gr_cuda_head_sample(gr_queue *q, const gr_model_shape *s, const void *norm_w, const void *lm,
                         const void *x, const uint32_t *row, uint32_t n, const gr_sampling *how,
                         const uint32_t (*draw)[2], int32_t *id, float *logprob, void *ws)
{
    if (!n) return;
    gr_workspace c = {.base = ws};
    gr_cu_head_ws w;
    gr_cu_head_layout(&c, s, n, GR_HEAD_SAMPLE, &w);
    const gr_cu_sampling sampling = {how->temperature, how->top_p, how->top_k, how->seed, how->stream};
    if (!how->device) gr_device_write(q, w.how, &sampling, sizeof(sampling));
    gr_cuda_head_hidden(q, s, norm_w, x, row, n, w.hidden);
    sampled_logits(q, s, lm, &w, n, how->device);
    gr_cu_sample(q->stream, w.logits, how->device ? how->device : w.how, draw, id, logprob, n, s->vocab,
                 w.sample);
}

/* ---- flat arrays ----------------------------------------------------------------------------------------
 */

void gr_cuda_copy_blocks(gr_queue *q, void *blocks, uint64_t bytes, const uint32_t *src, const uint32_t *dst,
                         uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        cudaMemcpyAsync((char *)blocks + dst[i] * bytes, (char *)blocks + src[i] * bytes, bytes,
                        cudaMemcpyDeviceToDevice, q->stream);
}

void gr_cuda_zero(gr_queue *q, void *p, uint64_t bytes)
{
    cudaMemsetAsync(p, 0, bytes, q->stream);
}

void gr_cuda_copy_rows(gr_queue *q, void *to, uint64_t to_stride, const void *from, uint64_t from_stride,
                       uint64_t row_bytes, uint64_t n)
{
    const bool dense = to_stride == row_bytes && from_stride == row_bytes;
    if (n == 1 || dense) /* the strides of one row may be anything */
        cudaMemcpyAsync(to, from, n * row_bytes, cudaMemcpyDefault, q->stream);
    else if (n)
        cudaMemcpy2DAsync(to, to_stride, from, from_stride, row_bytes, n, cudaMemcpyDefault, q->stream);
}

/* As rows of an embedding. */
void gr_cuda_gather(gr_queue *q, const void *x, const uint32_t *row, uint32_t n, uint32_t width, void *y)
{
    gr_cu_embed(q->stream, x, (const int32_t *)row, 1, y, n, width);
}

void gr_cuda_add(gr_queue *q, void *to, const void *from, gr_dtype type, uint64_t n)
{
    gr_cu_add(q->stream, to, from, gr_cu_type(type), n);
}

void gr_cuda_blend(gr_queue *q, void *to, float *master, const void *from, float decay, float share,
                   uint64_t n)
{
    gr_cu_blend(q->stream, to, master, from, decay, share, n);
}

void gr_cuda_checksum(gr_queue *q, const void *x, uint64_t bytes, uint64_t *parts)
{
    gr_cu_checksum(q->stream, x, bytes, parts);
}

void gr_cuda_sum_squares(gr_queue *q, const void *x, gr_dtype type, uint64_t n, double *out, void *ws)
{
    gr_cu_sum_squares(q->stream, x, gr_cu_type(type), n, out, ws);
}

void gr_cuda_optim_step(gr_queue *q, const gr_optim *how, bool decay, const gr_optim_range *r, uint64_t n)
{
    const bool corrects = how->kind == GR_OPTIM_ADAMW;
    const gr_cu_optim a = {.lr = (float)how->lr,
                           .beta1 = (float)how->beta1,
                           .beta2 = (float)how->beta2,
                           .eps = (float)how->eps,
                           .weight_decay = decay ? (float)how->weight_decay : 0,
                           .correction1 = corrects ? (float)(1 - pow(how->beta1, how->step)) : 1,
                           .correction2 = corrects ? (float)(1 - pow(how->beta2, how->step)) : 1,
                           .grad_scale = how->grad_scale,
                           .kind = (gr_cu_optim_kind)how->kind};
    const gr_cu_optim_range range = {.w = r->w,
                                     .g = r->g,
                                     .master = r->master,
                                     .low = r->low,
                                     .m = r->m,
                                     .v = r->v,
                                     .grads = gr_cu_type(r->grads),
                                     .moments = gr_cu_type(r->moments),
                                     .n = n,
                                     .m_scale = r->m_scale,
                                     .v_scale = r->v_scale,
                                     .chance = r->chance.key,
                                     .first = r->chance.first};
    gr_cu_optim_step(q->stream, &a, &range);
}

void gr_cuda_to_unit(gr_queue *q, void *x, uint64_t n, const double *squares)
{
    gr_cu_to_unit(q->stream, x, n, squares);
}

void gr_cuda_muon_mix(gr_queue *q, const gr_optim *how, const gr_optim_range *r, void *u, uint64_t n)
{
    gr_cu_muon_mix(q->stream, r->g, gr_cu_type(r->grads), how->grad_scale, (float)how->beta1, r->m, u, n);
}

void gr_cuda_code_run(gr_queue *q, const struct gr_code_call *c)
{
    gr_cu_code_run(q->stream, c);
}
