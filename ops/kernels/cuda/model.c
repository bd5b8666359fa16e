/* ops/kernels/cuda/model.c: the passes of a model on CUDA: cuBLASLt's products, cuDNN's attention and the
 * kernels of ops/kernels/cuda/launch.h, in the order of ops/kernels/cpu/layer_cpu.c and
 * ops/kernels/cpu/layer_back_cpu.c.
 *
 * Residuals are added by the products (D = A B^T + C). Of slices (ops/model/tp.h) the peers' sums come
 * behind o and down, in bf16, in place, on the queue's own stream: they are captured with the rest of a step.
 * Norm outputs, the rotated q and k of models with q and k norm, and the activation of the MLP are computed
 * again in the backward pass; products are not.
 */
#include "ops/kernels/cuda/model.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>

#include "ops/kernels/cuda/attention.h"
#include "ops/kernels/cuda/context.h"
#include "ops/kernels/cuda/gemm.h"
#include "ops/kernels/cuda/layout.h"
#include "ops/kernels/cuda/strict.h"
#include "ops/model/rope.h"
#include "runtime/comm/comm.h"

enum { ROPES_MAX = 16 };

/* Frequencies of one kind of model. */
typedef struct rope {
    uint32_t head_dim;
    float inv_freq[GR_HEAD_DIM_MAX / 2];
    float *device;
} rope;

typedef struct context {
    gr_cu_gemm *gemm;
    gr_cu_attention *attention;
    bool strict, nondeterministic; /* batch-invariant forward; backward with sums in the order of chance */
    rope ropes[ROPES_MAX];
    uint32_t n_ropes;
    gr_status failed; /* the first failure since check, with its message */
    gr_diag d;
} context;

static context *context_of(gr_queue *q)
{
    return q->context;
}

static void note(gr_queue *q, gr_status st)
{
    context *x = context_of(q);
    if (!x->failed) x->failed = st;
}

/* ---- context --------------------------------------------------------------------------------------------
 */

void gr_cuda_detach(gr_queue *q)
{
    context *x = q->context;
    if (!x) return;
    gr_cu_gemm_close(x->gemm);
    gr_cu_attention_close(x->attention);
    for (uint32_t i = 0; i < x->n_ropes; i++) cudaFree(x->ropes[i].device);
    gr_diag_release(&x->d);
    free(x);
    q->context = NULL;
}

/* A small product of each form: the library and its first kernels are loaded now, so that what the device has
 * in use after this is what it takes. */
static gr_status load_products(context *x, gr_queue *q, gr_diag *d)
{
    enum { N = 256 };
    void *ws = NULL;
    gr_bf16 *a = NULL;
    cudaError_t e = cudaMalloc(&ws, GR_CU_GEMM_WS_BYTES + 2 * N * N * sizeof(float));
    if (e == cudaSuccess) {
        a = (gr_bf16 *)((char *)ws + GR_CU_GEMM_WS_BYTES);
        e = cudaMemsetAsync(a, 0, 2 * N * N * sizeof(float), q->stream);
    }
    gr_status st = GR_OK;
    for (int form = 0; form < 3 && e == cudaSuccess && !st; form++)
        st = gr_cu_gemm_run(x->gemm, q->stream,
                            &(gr_cu_gemm_call){.form = (gr_cu_gemm_form)form,
                                               .m = N,
                                               .n = N,
                                               .k = N,
                                               .a = a,
                                               .b = a,
                                               .lda = N,
                                               .ldb = N,
                                               .ldd = N,
                                               .d = (float *)(void *)a + N * N,
                                               .type = form == GR_CU_GEMM_TN ? GR_CU_F32 : GR_CU_BF16},
                            ws, d);
    if (e == cudaSuccess) e = cudaStreamSynchronize(q->stream);
    cudaFree(ws);
    if (e == cudaSuccess || st) return st;
    return gr_diag_error(d, (gr_loc){0}, e == cudaErrorMemoryAllocation ? GR_E_NOMEM : GR_E_FAILED,
                         "loading cuBLASLt: %s", cudaGetErrorString(e));
}

static gr_status attach(gr_queue *q, bool strict, bool nondeterministic, gr_diag *d)
{
    context *x = q->context = gr_calloc(1, sizeof(*x));
    gr_diag_init(&x->d);
    x->strict = strict;
    x->nondeterministic = nondeterministic;
    gr_status st = gr_cu_gemm_open(&x->gemm, d);
    if (!st)
        st = gr_cu_attention_open(&x->attention, strict ? GR_CU_ATTENTION_STRICT : GR_CU_ATTENTION_AUTO, d);
    if (!st) st = load_products(x, q, d);
    if (st) gr_cuda_detach(q);
    return st;
}

gr_status gr_cuda_attach(gr_queue *q, gr_diag *d)
{
    return attach(q, false, false, d);
}

gr_status gr_cuda_attach_strict(gr_queue *q, gr_diag *d)
{
    return attach(q, true, false, d);
}

gr_status gr_cuda_attach_nondeterministic(gr_queue *q, gr_diag *d)
{
    return attach(q, false, true, d);
}

gr_status gr_cuda_attach_strict_nondeterministic(gr_queue *q, gr_diag *d)
{
    return attach(q, true, true, d);
}

gr_status gr_cuda_check(gr_queue *q, gr_diag *d)
{
    context *x = q->context;
    gr_status st = x ? x->failed : GR_OK;
    if (!st) return GR_OK;
    for (size_t i = 0; i < x->d.n; i++)
        if (x->d.messages[i].severity == GR_ERROR)
            gr_diag_error(d, (gr_loc){0}, st, "%s", x->d.messages[i].text);
    gr_diag_release(&x->d);
    gr_diag_init(&x->d);
    x->failed = GR_OK;
    return st;
}

/* The table of a model's frequencies, made when it is first seen. */
static const float *frequencies(gr_queue *q, const gr_model_shape *s)
{
    context *x = context_of(q);
    gr_rope r;
    gr_rope_init(&r, s);
    for (uint32_t i = 0; i < x->n_ropes; i++)
        if (x->ropes[i].head_dim == s->head_dim &&
            !memcmp(x->ropes[i].inv_freq, r.inv_freq, r.n * sizeof(float)))
            return x->ropes[i].device;
    if (x->n_ropes == ROPES_MAX) {
        note(q, gr_diag_error(&x->d, (gr_loc){0}, GR_E_FAILED, "more than %d kinds of models", ROPES_MAX));
        return NULL;
    }
    rope *made = &x->ropes[x->n_ropes];
    made->head_dim = s->head_dim;
    memcpy(made->inv_freq, r.inv_freq, r.n * sizeof(float));
    void *at = NULL;
    cudaError_t e = cudaMalloc(&at, r.n * sizeof(float));
    if (e == cudaSuccess) e = cudaMemcpy(at, r.inv_freq, r.n * sizeof(float), cudaMemcpyHostToDevice);
    if (e == cudaSuccess) e = cudaStreamSynchronize(cudaStreamLegacy); /* for which no queue waits */
    if (e != cudaSuccess) {
        note(q, gr_diag_error(&x->d, (gr_loc){0}, GR_E_FAILED, "RoPE's table: %s", cudaGetErrorString(e)));
        cudaFree(at);
        return NULL;
    }
    made->device = at;
    x->n_ropes++;
    return at;
}

static gr_cu_heads heads_of(gr_queue *q, const gr_model_shape *s)
{
    return (gr_cu_heads){.heads = s->heads,
                         .kv_heads = s->kv_heads,
                         .head_dim = s->head_dim,
                         .frequency = frequencies(q, s),
                         .eps = s->norm_eps};
}

/* ---- products -------------------------------------------------------------------------------------------
 */

static void gemm(gr_queue *q, const gr_cu_gemm_call *call, void *ws)
{
    context *x = context_of(q);
    note(q, gr_cu_gemm_run(x->gemm, q->stream, call, ws, &x->d));
}

void gr_cuda_gemm(gr_queue *q, const gr_cu_gemm_call *call, void *ws)
{
    gemm(q, call, ws);
}

void gr_cuda_failed(gr_queue *q, const char *what)
{
    note(q, gr_diag_error(&context_of(q)->d, (gr_loc){0}, GR_E_FAILED, "%s", what));
}

/* y [t, out] = x [t, in] W^T, + add where not NULL, + bias where not NULL: of forward passes alone, so that
 * strict goes with it. */
static void linear(gr_queue *q, const gr_bf16 *x, uint32_t t, uint32_t in, const gr_bf16 *w, uint32_t out,
                   gr_bf16 *y, const gr_bf16 *add, const gr_bf16 *bias, void *ws)
{
    gemm(q,
         &(gr_cu_gemm_call){.form = GR_CU_GEMM_NT,
                            .m = t,
                            .n = out,
                            .k = in,
                            .a = x,
                            .b = w,
                            .lda = in,
                            .ldb = in,
                            .ldd = out,
                            .d = y,
                            .type = GR_CU_BF16,
                            .c = add,
                            .ldc = out,
                            .bias = bias,
                            .strict = context_of(q)->strict},
         ws);
}

/* y [t, out] = add + x [t, in] W^T. y == add is fine; then temp [t, out] is written. */
static void residual(gr_queue *q, const gr_bf16 *x, uint32_t t, uint32_t in, const gr_bf16 *w, uint32_t out,
                     gr_bf16 *y, const gr_bf16 *add, gr_bf16 *temp, void *ws)
{
    const bool in_place = y == add;
    if (!context_of(q)->strict) {
        linear(q, x, t, in, w, out, y, add, NULL, ws);
        return;
    }
    linear(q, x, t, in, w, out, in_place ? temp : y, NULL, NULL, ws);
    gr_cu_add(q->stream, y, in_place ? temp : add, GR_CU_BF16, (uint64_t)t * out);
}

/* dx [t, in] = dy [t, out] W. */
static void linear_dx(gr_queue *q, const gr_bf16 *dy, uint64_t ld, uint32_t t, uint32_t in, const gr_bf16 *w,
                      uint32_t out, gr_bf16 *dx, void *ws)
{
    gemm(q,
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

/* grad [out, in] += dy [t, out]^T x [t, in]. */
static void linear_dw(gr_queue *q, const gr_bf16 *dy, uint64_t ld, const gr_bf16 *x, uint32_t t, uint32_t in,
                      uint32_t out, void *grad, gr_dtype grads, void *ws)
{
    gemm(q,
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
                            .type = grads == GR_F32 ? GR_CU_F32 : GR_CU_BF16,
                            .c = grad,
                            .ldc = in},
         ws);
}

/* ---- one layer ------------------------------------------------------------------------------------------
 */

typedef struct layer { /* one call's arguments, to the last detail */
    gr_queue *q;
    const gr_model_shape *s;
    const gr_bf16 *w;
    const gr_packed *b;
    gr_pass_bounds bounds;
    gr_cu_heads heads;
    uint32_t t;
} layer;

static layer layer_of(gr_queue *q, const gr_model_shape *s, const void *w, const gr_packed *b)
{
    uint32_t longest = 0;
    for (uint32_t i = 0; i < b->n_seqs; i++)
        longest = GR_MAX(longest, b->host_offset[i + 1] - b->host_offset[i]);
    return (layer){.q = q,
                   .s = s,
                   .w = w,
                   .b = b,
                   .bounds = {.tokens = b->n_tokens, .seqs = b->n_seqs, .length = longest},
                   .heads = heads_of(q, s),
                   .t = b->n_tokens};
}

/* A tensor of the bucket, or of its gradient; NULL where the model does not have it. */
static const gr_bf16 *tensor(const gr_model_shape *s, const gr_bf16 *w, gr_tensor_slot slot)
{
    uint64_t at = gr_tensor_offset(s, 1, slot);
    return at == UINT64_MAX ? NULL : w + at;
}

static void *grad_at(const gr_model_shape *s, void *grad, gr_dtype grads, gr_tensor_slot slot)
{
    uint64_t at = gr_tensor_offset(s, 1, slot);
    return at == UINT64_MAX ? NULL : (char *)grad + at * gr_dtype_size(grads);
}

static gr_cu_dtype cu_type(gr_dtype t)
{
    return t == GR_F32 ? GR_CU_F32 : GR_CU_BF16;
}

static void norm(const layer *l, const gr_bf16 *x, gr_tensor_slot slot, gr_bf16 *y)
{
    gr_cu_rmsnorm(l->q->stream, x, NULL, tensor(l->s, l->w, slot), y, l->t, l->s->hidden, l->s->norm_eps);
}

/* y [t, H] = add + x [t, in] W^T. Of a slice: the sum of what all peers' slices give, to which the first of
 * them alone brings what is added; one rounding more than the product's own. y == add: residual's temp. */
static void close_block(const layer *l, const gr_bf16 *x, uint32_t in, gr_tensor_slot slot, gr_bf16 *y,
                        const gr_bf16 *add, gr_bf16 *temp, void *ws)
{
    const gr_model_shape *s = l->s;
    const gr_bf16 *w = tensor(s, l->w, slot);
    const bool sliced = s->parts > 1;
    if (sliced && l->q->peers->comm->rank)
        linear(l->q, x, l->t, in, w, s->hidden, y, NULL, NULL, ws);
    else
        residual(l->q, x, l->t, in, w, s->hidden, y, add, temp, ws);
    if (sliced) gr_tp_sum(l->q, y, (uint64_t)l->t * s->hidden * sizeof(*y), GR_COMM_SUM_BF16);
}

static void rotate(const layer *l, const gr_bf16 *raw, gr_bf16 *out)
{
    gr_cu_qk_rope(l->q->stream, &l->heads, raw, tensor(l->s, l->w, GR_T_Q_NORM),
                  tensor(l->s, l->w, GR_T_K_NORM), l->b->position, out, l->t);
}

static gr_cu_sequences sequences_of(const gr_packed *b)
{
    return (gr_cu_sequences){b->n_seqs, b->host_offset, b->offset};
}

static void attend(const layer *l, const gr_bf16 *qkv, const gr_cu_layer_ws *at)
{
    context *x = context_of(l->q);
    const gr_cu_attention_shape shape = gr_cu_attention_shape_of(l->s, !x->nondeterministic);
    const gr_cu_sequences b = sequences_of(l->b);
    note(l->q, gr_cu_attention_forward(x->attention, l->q->stream, &shape, &b, qkv, at->acts.o,
                                       at->acts.stats, at->attend, at->attend_bytes, &x->d));
}

void gr_cuda_layer_forward(gr_queue *q, const gr_model_shape *s, const void *w, const gr_packed *b, void *x,
                           void *keep_in, void *acts, void *ws)
{
    if (!b->n_tokens) return;
    const layer l = layer_of(q, s, w, b);
    const uint32_t wide = s->heads * s->head_dim;
    gr_workspace c = {.base = ws}, kept = {.base = acts};
    gr_cu_layer_ws at;
    gr_cu_layer_layout(&c, s, &l.bounds, acts != NULL, &at);
    if (acts) gr_cu_acts_layout(&kept, s, &l.bounds, &at.acts);
    const gr_cu_acts *a = &at.acts;
    if (keep_in)
        cudaMemcpyAsync(keep_in, x, (uint64_t)l.t * s->hidden * sizeof(gr_bf16), cudaMemcpyDefault,
                        q->stream);
    norm(&l, x, GR_T_IN_NORM, at.y);
    linear(q, at.y, l.t, s->hidden, tensor(s, w, GR_T_QKV), gr_cu_qkv_width(s), a->qkv, NULL,
           tensor(s, w, GR_T_QKV_BIAS), at.gemm);
    gr_bf16 *qkv = s->qk_norm ? at.qkv : a->qkv;
    rotate(&l, a->qkv, qkv);
    attend(&l, qkv, &at);
    close_block(&l, a->o, wide, GR_T_O, a->mid, x, NULL, at.gemm);
    norm(&l, a->mid, GR_T_POST_NORM, at.y);
    linear(q, at.y, l.t, s->hidden, tensor(s, w, GR_T_GATE_UP), 2 * s->inter, a->gate_up, NULL, NULL,
           at.gemm);
    gr_cu_swiglu(q->stream, a->gate_up, at.h, l.t, s->inter);
    close_block(&l, at.h, s->inter, GR_T_DOWN, x, a->mid, NULL, at.gemm);
}

static void decode_attention(gr_queue *q, const gr_extend *e, const gr_cu_paged *paged, const gr_bf16 *qkv,
                             gr_bf16 *o)
{
    const gr_decode *d = e->decode;
    const gr_cu_decode call = {.length = d->length,
                               .member = d->member,
                               .group_first = d->group_first,
                               .shared = d->shared,
                               .n = e->n_seqs,
                               .n_groups = d->n_groups,
                               .max_length = d->max_length};
    if (context_of(q)->strict)
        gr_cu_strict_attention(q->stream, paged, &call, qkv, o, d->ws);
    else
        gr_cu_decode_attention(q->stream, paged, &call, qkv, o, d->work, d->ws);
}

/* silu(gate) * up of at->y: in one where a decode step is large enough. */
static void mlp_hidden(const layer *l, bool decodes, const gr_cu_extend_ws *at)
{
    gr_queue *q = l->q;
    const gr_model_shape *s = l->s;
    const gr_bf16 *w = tensor(s, l->w, GR_T_GATE_UP);
    if (decodes && !context_of(q)->strict && gr_cu_swiglu_fuses(w, l->t, s->hidden, s->inter)) {
        if (!gr_cu_swiglu_product(q->stream, at->y, w, at->h, l->t, s->hidden, s->inter))
            note(q, gr_diag_error(&context_of(q)->d, (gr_loc){0}, GR_E_FAILED,
                                  "gate and up cannot be launched"));
        return;
    }
    linear(q, at->y, l->t, s->hidden, w, 2 * s->inter, at->gate_up, NULL, NULL, at->gemm);
    gr_cu_swiglu(q->stream, at->gate_up, at->h, l->t, s->inter);
}

void gr_cuda_layer_extend(gr_queue *q, const gr_model_shape *s, const void *w, const gr_extend *e, void *x,
                          void *kv, void *ws)
{
    if (!e->n_tokens) return;
    const gr_packed b = {.n_tokens = e->n_tokens};
    const layer l = layer_of(q, s, w, &b);
    gr_workspace c = {.base = ws};
    gr_cu_extend_ws at;
    gr_cu_extend_layout(&c, s, l.t, &at);
    norm(&l, x, GR_T_IN_NORM, at.y);
    linear(q, at.y, l.t, s->hidden, tensor(s, w, GR_T_QKV), gr_cu_qkv_width(s), at.qkv, NULL,
           tensor(s, w, GR_T_QKV_BIAS), at.gemm);
    gr_cu_qk_rope_store(q->stream, &l.heads, at.qkv, tensor(s, w, GR_T_Q_NORM), tensor(s, w, GR_T_K_NORM),
                        e->position, e->slot, at.qkv, kv, l.t);
    const gr_cu_paged paged = {l.heads, kv, e->block_table, e->table_stride};
    if (e->decode)
        decode_attention(q, e, &paged, at.qkv, at.o);
    else
        gr_cu_extend_attention(q->stream, &paged, at.qkv, e->offset, e->cached, e->n_seqs, l.t, e->longest,
                               at.o);
    close_block(&l, at.o, s->heads * s->head_dim, GR_T_O, x, x, at.y, at.gemm);
    norm(&l, x, GR_T_POST_NORM, at.y);
    mlp_hidden(&l, e->decode != NULL, &at);
    close_block(&l, at.h, s->inter, GR_T_DOWN, x, x, at.y, at.gemm);
}

/* ---- one layer, backward --------------------------------------------------------------------------------
 */

typedef struct back {
    layer l;
    gr_cu_acts acts;
    gr_cu_back_ws ws;
    gr_bf16 *dx;
    void *grad;
    gr_dtype grads;
} back;

static void norm_back(const back *k, const gr_bf16 *x, gr_tensor_slot slot)
{
    const layer *l = &k->l;
    gr_cu_rmsnorm_backward(l->q->stream, x, NULL, tensor(l->s, l->w, slot), k->ws.dy, k->dx, true,
                           grad_at(l->s, k->grad, k->grads, slot), cu_type(k->grads), l->t, l->s->hidden,
                           l->s->norm_eps, k->ws.sums);
}

static void linear_back(const back *k, const gr_bf16 *dy, const gr_bf16 *x, uint32_t in, gr_tensor_slot slot,
                        uint32_t out, gr_bf16 *dx)
{
    const layer *l = &k->l;
    linear_dx(l->q, dy, out, l->t, in, tensor(l->s, l->w, slot), out, dx, k->ws.gemm);
    if (x)
        linear_dw(l->q, dy, out, x, l->t, in, out, grad_at(l->s, k->grad, k->grads, slot), k->grads,
                  k->ws.gemm);
}

static void mlp_back(const back *k)
{
    const layer *l = &k->l;
    const gr_model_shape *s = l->s;
    linear_back(k, k->dx, NULL, s->inter, GR_T_DOWN, s->hidden, k->ws.dh); /* h comes with the next call */
    gr_cu_swiglu_backward(l->q->stream, k->acts.gate_up, k->ws.dh, k->ws.dgu, k->ws.h, l->t, s->inter);
    linear_dw(l->q, k->dx, s->hidden, k->ws.h, l->t, s->inter, s->hidden,
              grad_at(s, k->grad, k->grads, GR_T_DOWN), k->grads, k->ws.gemm);
    norm(l, k->acts.mid, GR_T_POST_NORM, k->ws.y);
    linear_back(k, k->ws.dgu, k->ws.y, s->hidden, GR_T_GATE_UP, 2 * s->inter, k->ws.dy);
    norm_back(k, k->acts.mid, GR_T_POST_NORM);
}

static void attention_back(const back *k, const gr_bf16 *in)
{
    const layer *l = &k->l;
    const gr_model_shape *s = l->s;
    const uint32_t wide = s->heads * s->head_dim, width = gr_cu_qkv_width(s);
    context *x = context_of(l->q);
    linear_back(k, k->dx, k->acts.o, wide, GR_T_O, s->hidden, k->ws.d_o);
    const gr_bf16 *qkv = k->acts.qkv;
    if (s->qk_norm) {
        rotate(l, k->acts.qkv, k->ws.qkv);
        qkv = k->ws.qkv;
    }
    const gr_cu_attention_shape shape = gr_cu_attention_shape_of(s, !x->nondeterministic);
    const gr_cu_sequences b = sequences_of(l->b);
    note(l->q, gr_cu_attention_backward(x->attention, l->q->stream, &shape, &b, qkv, k->acts.o, k->acts.stats,
                                        k->ws.d_o, k->ws.dqkv, k->ws.attend, k->ws.attend_bytes, &x->d));
    gr_cu_qk_rope_backward(l->q->stream, &l->heads, k->acts.qkv, tensor(s, l->w, GR_T_Q_NORM),
                           tensor(s, l->w, GR_T_K_NORM), l->b->position, k->ws.dqkv,
                           grad_at(s, k->grad, k->grads, GR_T_Q_NORM),
                           grad_at(s, k->grad, k->grads, GR_T_K_NORM), cu_type(k->grads), l->t, k->ws.sums);
    if (s->qkv_bias)
        gr_cu_column_sums(l->q->stream, k->ws.dqkv, grad_at(s, k->grad, k->grads, GR_T_QKV_BIAS),
                          cu_type(k->grads), l->t, width, k->ws.sums);
    norm(l, in, GR_T_IN_NORM, k->ws.y);
    linear_back(k, k->ws.dqkv, k->ws.y, s->hidden, GR_T_QKV, width, k->ws.dy);
    norm_back(k, in, GR_T_IN_NORM);
}

void gr_cuda_layer_backward(gr_queue *q, const gr_model_shape *s, const void *w, const gr_packed *b,
                            const void *in, const void *acts, void *dx, void *grad, gr_dtype grads, void *ws)
{
    if (!b->n_tokens) return;
    back k = {.l = layer_of(q, s, w, b), .dx = dx, .grad = grad, .grads = grads};
    gr_workspace c = {.base = ws}, kept = {.base = (char *)(uintptr_t)acts};
    gr_cu_back_layout(&c, s, &k.l.bounds, !context_of(q)->nondeterministic, &k.ws);
    gr_cu_acts_layout(&kept, s, &k.l.bounds, &k.acts);
    mlp_back(&k);
    attention_back(&k, in);
}

/* ---- embedding and head ---------------------------------------------------------------------------------
 */

void gr_cuda_embed_forward(gr_queue *q, const gr_model_shape *s, const void *embed, const gr_packed *b,
                           void *x)
{
    if (b->n_tokens) gr_cu_embed(q->stream, embed, b->ids, x, b->n_tokens, s->hidden);
}

void gr_cuda_embed_backward(gr_queue *q, const gr_model_shape *s, const gr_packed *b, const void *dx,
                            void *grad_embed, gr_dtype grads, void *ws)
{
    if (b->n_tokens)
        gr_cu_embed_backward(q->stream, b->ids, dx, grad_embed, cu_type(grads), b->n_tokens, s->hidden, ws);
}

/* Of rows of w->hidden. */
static void head_logits(gr_queue *q, const gr_model_shape *s, const void *lm, uint32_t first, uint32_t n,
                        const gr_cu_head_ws *w, float *logits)
{
    gemm(q,
         &(gr_cu_gemm_call){.form = GR_CU_GEMM_NT,
                            .m = n,
                            .n = s->vocab,
                            .k = s->hidden,
                            .a = w->hidden + (uint64_t)first * s->hidden,
                            .b = lm,
                            .lda = s->hidden,
                            .ldb = s->hidden,
                            .ldd = s->vocab,
                            .d = logits,
                            .type = GR_CU_F32,
                            .strict = context_of(q)->strict},
         w->gemm);
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
        head_logits(q, s, lm, at, n, w, logits);
        gr_cu_head_stats(q->stream, logits, rows->target + at, rows->inv_temperature, n, s->vocab,
                         later(out->logprob, at), w->entropy + at, later(out->sum_p2, at), w->lse + at);
    }
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
    if (!gr_cu_head_product(q->stream, &r))
        note(q, gr_diag_error(&context_of(q)->d, (gr_loc){0}, GR_E_FAILED,
                              "the head's product cannot be launched"));
    gr_cu_head_merge(q->stream, &r, out->logprob, w->entropy, out->sum_p2, w->lse);
}

void gr_cuda_head_forward(gr_queue *q, const gr_model_shape *s, const void *norm_w, const void *lm,
                          const void *x, const gr_head_rows *rows, const gr_head_stats *out, void *ws)
{
    if (!rows->n) return;
    gr_workspace c = {.base = ws};
    gr_cu_head_ws w;
    gr_cu_head_layout(&c, s, rows->n, rows->keep ? GR_HEAD_GRADIENT : GR_HEAD_LOGPROB, &w);
    gr_cu_rmsnorm(q->stream, x, rows->row, norm_w, w.hidden, rows->n, s->hidden, s->norm_eps);
    if (!context_of(q)->strict && gr_cu_head_fuses(lm, s->hidden))
        fused_stats(q, s, lm, rows, out, &w);
    else
        split_stats(q, s, lm, rows, out, &w);
    if (out->entropy)
        cudaMemcpyAsync(out->entropy, w.entropy, rows->n * sizeof(float), cudaMemcpyDefault, q->stream);
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
    gr_cu_head_dlogits(q->stream, w.logits, rows->target, w.lse, w.entropy, d_logprob, d_entropy,
                       rows->inv_temperature, rows->n, s->vocab);
    const gr_bf16 *d_logits =
        (const gr_bf16 *)w.logits; /* in place: rows of 2 V halves, of which V are used */
    const uint64_t ld = 2 * (uint64_t)s->vocab;
    linear_dx(q, d_logits, ld, rows->n, s->hidden, lm, s->vocab, w.d_hidden, w.gemm);
    linear_dw(q, d_logits, ld, w.hidden, rows->n, s->hidden, s->vocab, grad_lm, grads, w.gemm);
    gr_cu_rmsnorm_backward(q->stream, x, rows->row, norm_w, w.d_hidden, dx, false, grad_norm, cu_type(grads),
                           rows->n, s->hidden, s->norm_eps, w.sums);
}

static gr_cu_value_head value_head(const gr_value_head *h)
{
    return (gr_cu_value_head){h->norm, h->weight, h->bias};
}

void gr_cuda_value_forward(gr_queue *q, const gr_model_shape *s, const gr_value_head *head, const void *x,
                           const uint32_t *row, uint32_t n, float *value, void *ws)
{
    const gr_cu_value_head h = value_head(head);
    gr_cu_value(q->stream, x, row, &h, value, n, s->hidden, s->norm_eps, ws);
}

void gr_cuda_value_backward(gr_queue *q, const gr_model_shape *s, const gr_value_head *head, const void *x,
                            const uint32_t *row, uint32_t n, const float *d_value, void *dx,
                            const gr_value_grads *grad, void *ws)
{
    const gr_cu_value_head h = value_head(head);
    const gr_cu_value_grads g = {cu_type(grad->type), grad->norm, grad->weight, grad->bias};
    gr_cu_value_backward(q->stream, x, row, &h, d_value, dx, &g, n, s->hidden, ws);
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
    gr_cu_rmsnorm(q->stream, x, row, norm_w, w.hidden, n, s->hidden, s->norm_eps);
    head_logits(q, s, lm, 0, n, &w, w.logits);
    gr_cu_sample(q->stream, w.logits, how->device ? how->device : w.how, draw, id, logprob, n, s->vocab,
                 w.sample);
}

/* ---- flat arrays ----------------------------------------------------------------------------------------
 */

void gr_cuda_kv_copy(gr_queue *q, const gr_model_shape *s, void *kv, const uint32_t *src, const uint32_t *dst,
                     uint32_t n)
{
    const uint64_t bytes = gr_cu_kv_block_bytes(s);
    for (uint32_t i = 0; i < n; i++)
        cudaMemcpyAsync((char *)kv + dst[i] * bytes, (char *)kv + src[i] * bytes, bytes,
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

void gr_cuda_add(gr_queue *q, void *to, const void *from, gr_dtype type, uint64_t n)
{
    gr_cu_add(q->stream, to, from, cu_type(type), n);
}

void gr_cuda_checksum(gr_queue *q, const void *x, uint64_t bytes, uint64_t *parts)
{
    gr_cu_checksum(q->stream, x, bytes, parts);
}

void gr_cuda_sum_squares(gr_queue *q, const void *x, gr_dtype type, uint64_t n, double *out, void *ws)
{
    gr_cu_sum_squares(q->stream, x, cu_type(type), n, out, ws);
}

void gr_cuda_adamw(gr_queue *q, const gr_adamw *how, bool decay, const gr_adamw_range *r, uint64_t n)
{
    const gr_cu_adamw a = {.lr = (float)how->lr,
                           .beta1 = (float)how->beta1,
                           .beta2 = (float)how->beta2,
                           .eps = (float)how->eps,
                           .weight_decay = decay ? (float)how->weight_decay : 0,
                           .correction1 = (float)(1 - pow(how->beta1, how->step)),
                           .correction2 = (float)(1 - pow(how->beta2, how->step)),
                           .grad_scale = how->grad_scale};
    gr_cu_adamw_step(q->stream, &a, r->master, r->w, r->g, cu_type(r->grads), r->m, r->v, cu_type(r->moments),
                     n);
}

void gr_cuda_code_run(gr_queue *q, const struct gr_code_call *c)
{
    gr_cu_code_run(q->stream, c);
}
