/* ops/kernels/cuda/attention_cudnn.c: the graphs of attention that cuDNN is asked for. */
#include "ops/kernels/cuda/attention_cudnn.h"

#include <stdio.h>

#define F32  CUDNN_DATA_FLOAT
#define BF16 CUDNN_DATA_BFLOAT16
#define I32  CUDNN_DATA_INT32
#define BOOL CUDNN_DATA_BOOLEAN

/* The tensors that both graphs have, and the shapes of what flows between operations. */
struct parts {
    gr_cudnn_graph *g;
    const gr_cudnn_attention *a;
    gr_cudnn_desc q, k, v, o, stats, length, rows, o_rows, stats_rows, scale, minus_inf[2];
    gr_cudnn_desc kv_length, kv_rows; /* of queries, where keys are theirs */
    gr_cudnn_shape scores, row, q_shape, k_shape, kt_shape, o_shape;
};

/* [B, heads, S, D] as it lies in rows of `width`; the batch stride goes unused where offsets are given. */
static gr_cudnn_shape in_rows(const gr_cudnn_attention *a, int64_t heads, int64_t width, int64_t d)
{
    return (gr_cudnn_shape){{a->batch, heads, a->longest, d}, {a->longest * width, d, width, 1}};
}

static gr_cudnn_shape dense(int64_t b, int64_t h, int64_t s, int64_t d)
{
    return (gr_cudnn_shape){{b, h, s, d}, {h * s * d, s * d, d, 1}};
}

static gr_cudnn_shape transposed(gr_cudnn_shape s)
{
    return (gr_cudnn_shape){{s.dim[0], s.dim[1], s.dim[3], s.dim[2]},
                            {s.stride[0], s.stride[1], s.stride[3], s.stride[2]}};
}

static void declare(struct parts *p, gr_cudnn_graph *g, const gr_cudnn_attention *a)
{
    const gr_cudnn_shape per_seq = {{a->batch, 1, 1, 1}, {1, 1, 1, 1}};
    const gr_cudnn_shape offsets = {{a->batch + 1, 1, 1, 1}, {1, 1, 1, 1}};
    const gr_cudnn_shape stats = {{a->batch, a->heads, a->longest, 1},
                                  {a->longest * a->stats_width, 1, a->stats_width, 1}};
    *p = (struct parts){.g = g, .a = a};
    p->scores = dense(a->batch, a->heads, a->longest, a->longest);
    p->row = dense(a->batch, a->heads, a->longest, 1);
    p->q_shape = in_rows(a, a->heads, a->width, a->head_dim);
    p->k_shape = in_rows(a, a->kv_heads, a->width, a->head_dim);
    p->kt_shape = transposed(p->k_shape);
    p->o_shape = in_rows(a, a->heads, a->o_width, a->head_dim);
    p->length = gr_cudnn_tensor(g, GR_ATT_LENGTH, I32, &per_seq, NULL);
    p->rows = gr_cudnn_tensor(g, GR_ATT_ROWS, I32, &offsets, NULL);
    p->kv_length = a->prefix ? gr_cudnn_tensor(g, GR_ATT_KV_LENGTH, I32, &per_seq, NULL) : p->length;
    p->kv_rows = a->prefix ? gr_cudnn_tensor(g, GR_ATT_KV_ROWS, I32, &offsets, NULL) : p->rows;
    p->o_rows = gr_cudnn_tensor(g, GR_ATT_O_ROWS, I32, &offsets, NULL);
    p->stats_rows = gr_cudnn_tensor(g, GR_ATT_STATS_ROWS, I32, &offsets, NULL);
    p->q = gr_cudnn_tensor(g, GR_ATT_Q, BF16, &p->q_shape, p->rows);
    p->k = gr_cudnn_tensor(g, GR_ATT_K, BF16, &p->kt_shape, p->kv_rows);
    p->v = gr_cudnn_tensor(g, GR_ATT_V, BF16, a->backward ? &p->kt_shape : &p->k_shape, p->kv_rows);
    p->o = gr_cudnn_tensor(g, GR_ATT_O, BF16, &p->o_shape, p->o_rows);
    p->stats = gr_cudnn_tensor(g, GR_ATT_STATS, F32, &stats, p->stats_rows);
    p->scale = gr_cudnn_scalar(g, GR_ATT_SCALE);
    p->minus_inf[0] = gr_cudnn_scalar(g, GR_ATT_MINUS_INF);
    if (!a->prefix) p->minus_inf[1] = gr_cudnn_scalar(g, GR_ATT_MINUS_INF_2);
}

/* A pointwise operation whose result is virtual and has the shape of the scores. */
static gr_cudnn_desc on_scores(struct parts *p, cudnnPointwiseMode_t mode, cudnnDataType_t math,
                               cudnnDataType_t type, gr_cudnn_desc x, gr_cudnn_desc b, gr_cudnn_desc t)
{
    return gr_cudnn_pointwise(p->g, mode, math, x, b, t, gr_cudnn_virtual(p->g, type, &p->scores, NULL));
}

static gr_cudnn_desc index_of(struct parts *p, int64_t axis, cudnnDataType_t math, gr_cudnn_desc scores)
{
    return gr_cudnn_index(p->g, axis, math, scores, gr_cudnn_virtual(p->g, I32, &p->scores, NULL));
}

/* Scaled scores, those outside the sequence set to minus infinity. */
static gr_cudnn_desc padded_scores(struct parts *p)
{
    gr_cudnn_desc s = gr_cudnn_matmul(p->g, p->q, p->k, gr_cudnn_virtual(p->g, F32, &p->scores, NULL),
                                      p->length, p->kv_length, NULL);
    s = on_scores(p, CUDNN_POINTWISE_MUL, F32, F32, s, p->scale, NULL);
    gr_cudnn_desc row = index_of(p, 2, I32, s), col = index_of(p, 3, I32, s);
    gr_cudnn_desc row_in = on_scores(p, CUDNN_POINTWISE_CMP_LT, BOOL, BOOL, row, p->length, NULL);
    gr_cudnn_desc col_in = on_scores(p, CUDNN_POINTWISE_CMP_LT, BOOL, BOOL, col, p->kv_length, NULL);
    gr_cudnn_desc in = on_scores(p, CUDNN_POINTWISE_LOGICAL_AND, BOOL, BOOL, row_in, col_in, NULL);
    return on_scores(p, CUDNN_POINTWISE_BINARY_SELECT, F32, F32, s, p->minus_inf[0], in);
}

/* Those of later keys set to minus infinity; of a prefix there are none. */
static gr_cudnn_desc causal(struct parts *p, gr_cudnn_desc s)
{
    if (p->a->prefix) return s;
    gr_cudnn_desc row = index_of(p, 2, F32, s), col = index_of(p, 3, F32, s);
    gr_cudnn_desc seen = on_scores(p, CUDNN_POINTWISE_CMP_GE, BOOL, BOOL, row, col, NULL);
    return on_scores(p, CUDNN_POINTWISE_BINARY_SELECT, F32, F32, s, p->minus_inf[1], seen);
}

static void forward(struct parts *p)
{
    gr_cudnn_graph *g = p->g;
    gr_cudnn_desc s = causal(p, padded_scores(p));
    gr_cudnn_desc max =
        gr_cudnn_reduce(g, CUDNN_REDUCE_TENSOR_MAX, s, gr_cudnn_virtual(g, F32, &p->row, NULL));
    gr_cudnn_desc less = on_scores(p, CUDNN_POINTWISE_SUB, F32, F32, s, max, NULL);
    gr_cudnn_desc e = on_scores(p, CUDNN_POINTWISE_EXP, F32, F32, less, NULL, NULL);
    gr_cudnn_desc sum =
        gr_cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, gr_cudnn_virtual(g, F32, &p->row, NULL));
    gr_cudnn_desc log = gr_cudnn_pointwise(g, CUDNN_POINTWISE_LOG, F32, sum, NULL, NULL,
                                           gr_cudnn_virtual(g, F32, &p->row, NULL));
    gr_cudnn_pointwise(g, CUDNN_POINTWISE_ADD, F32, max, log, NULL, p->stats);
    gr_cudnn_desc probability = on_scores(p, CUDNN_POINTWISE_DIV, F32, BF16, e, sum, NULL);
    gr_cudnn_matmul(g, probability, p->v, p->o, p->length, NULL, p->kv_length);
}

/* Gradient of keys or values: m^T x, summed over the query heads of each kv head. */
static void kv_gradient(struct parts *p, gr_cudnn_desc m, gr_cudnn_desc x, int64_t uid)
{
    const gr_cudnn_attention *a = p->a;
    gr_cudnn_graph *g = p->g;
    const gr_cudnn_shape turned = transposed(p->scores),
                         full = dense(a->batch, a->heads, a->longest, a->head_dim);
    gr_cudnn_desc out = gr_cudnn_tensor(g, uid, BF16, &p->k_shape, p->kv_rows);
    gr_cudnn_desc t = gr_cudnn_reshape(g, m, gr_cudnn_virtual(g, BF16, &turned, NULL));
    if (a->heads == a->kv_heads) {
        gr_cudnn_matmul(g, t, x, out, p->kv_length, NULL, p->length);
        return;
    }
    gr_cudnn_desc each =
        gr_cudnn_matmul(g, t, x, gr_cudnn_virtual(g, BF16, &full, NULL), p->kv_length, NULL, p->length);
    gr_cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, each, out);
}

static void query_gradient(struct parts *p, gr_cudnn_desc ds)
{
    gr_cudnn_graph *g = p->g;
    const gr_cudnn_shape sum_shape = dense(p->a->batch, p->a->heads, p->a->longest, p->a->head_dim);
    gr_cudnn_desc dq = gr_cudnn_tensor(g, GR_ATT_DQ, BF16, &p->q_shape, p->rows);
    gr_cudnn_desc k = gr_cudnn_reshape(g, p->k, gr_cudnn_virtual(g, F32, &p->k_shape, p->kv_rows));
    if (p->a->deterministic) {
        gr_cudnn_matmul(g, ds, k, dq, p->length, NULL, p->kv_length);
        return;
    }
    gr_cudnn_desc sum = gr_cudnn_tensor(g, GR_ATT_DQ_SUM, F32, &sum_shape, NULL);
    gr_cudnn_matmul(g, ds, k, sum, p->length, NULL, p->kv_length);
    gr_cudnn_pointwise(g, CUDNN_POINTWISE_IDENTITY, F32, sum, NULL, NULL, dq);
}

static void backward(struct parts *p)
{
    gr_cudnn_graph *g = p->g;
    const gr_cudnn_attention *a = p->a;
    const gr_cudnn_shape products = {
        {a->batch, a->heads, a->longest, a->head_dim},
        {a->heads * a->longest * a->head_dim, a->longest * a->head_dim, a->heads * a->head_dim, 1}};
    gr_cudnn_desc one = gr_cudnn_scalar(g, GR_ATT_ONE);
    gr_cudnn_desc dout = gr_cudnn_tensor(g, GR_ATT_DO, BF16, &p->o_shape, p->o_rows);
    gr_cudnn_desc delta = gr_cudnn_tensor(g, GR_ATT_DELTA, F32, &p->row, NULL);

    gr_cudnn_desc x = gr_cudnn_pointwise(g, CUDNN_POINTWISE_MUL, F32, dout, p->o, NULL,
                                         gr_cudnn_virtual(g, F32, &products, NULL));
    x = gr_cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, x, gr_cudnn_virtual(g, F32, &p->row, NULL));
    gr_cudnn_pointwise(g, CUDNN_POINTWISE_MUL, F32, x, one, NULL, delta);

    gr_cudnn_desc s = on_scores(p, CUDNN_POINTWISE_SUB, F32, F32, padded_scores(p), p->stats, NULL);
    gr_cudnn_desc prob = on_scores(p, CUDNN_POINTWISE_EXP, F32, F32, causal(p, s), NULL, NULL);
    kv_gradient(p, prob, dout, GR_ATT_DV);

    gr_cudnn_desc dp = gr_cudnn_matmul(g, dout, p->v, gr_cudnn_virtual(g, F32, &p->scores, NULL), p->length,
                                       p->kv_length, NULL);
    dp = on_scores(p, CUDNN_POINTWISE_SUB, F32, F32, dp, delta, NULL);
    dp = on_scores(p, CUDNN_POINTWISE_MUL, F32, F32, dp, prob, NULL);
    gr_cudnn_desc ds = on_scores(p, CUDNN_POINTWISE_MUL, F32, F32, dp, p->scale, NULL);
    kv_gradient(p, ds, p->q, GR_ATT_DK);
    query_gradient(p, ds);
}

gr_status gr_cudnn_attention_plan(gr_cudnn_plan *out, const gr_cudnn_attention *a, cudnnHandle_t handle,
                                  gr_cudnn_desc device, gr_diag *d)
{
    gr_cudnn_graph g;
    struct parts p;
    char what[160];
    snprintf(what, sizeof(what), "attention %s%s%s, %lld x %lld tokens, heads %lld/%lld of %lld",
             a->backward ? "backward" : "forward",
             a->backward && !a->deterministic ? ", not deterministic" : "", a->prefix ? ", prefix" : "",
             (long long)a->batch, (long long)a->longest, (long long)a->heads, (long long)a->kv_heads,
             (long long)a->head_dim);
    gr_cudnn_graph_init(&g, handle, device);
    declare(&p, &g, a);
    (a->backward ? backward : forward)(&p);
    const gr_status st = gr_cudnn_plan_build(out, &g, a->deterministic, what, d);
    gr_cudnn_graph_release(&g);
    return st;
}
