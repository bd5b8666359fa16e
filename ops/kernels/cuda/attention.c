/* ops/kernels/cuda/attention.c: attention of packed passes on CUDA: cuDNN where it serves, else own kernels.
 */
#include "ops/kernels/cuda/attention.h"

#include "ops/kernels/workspace.h"
#include "ops/kernels/cuda/attention_cudnn.h"
#include "ops/kernels/cuda/attention_simple.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct entry {
    gr_cudnn_attention key;
    gr_cudnn_plan plan;
};

struct gr_cu_attention {
    cudnnHandle_t handle; /* NULL: the simple kernels */
    bool simple_forward;  /* these for forward all the same */
    struct entry **plans; /* some dozens: the buckets that the data met */
    size_t n, cap;
    char name[32];
};

/* One call: the tensors, whichever are there. */
struct tensors {
    const gr_bf16 *qkv, *o, *dout;
    gr_bf16 *out, *dqkv;
    float *stats, scale;
};

/* Whether cuDNN is asked. */
static bool fused(const gr_cu_attention *a, const gr_scores *scores, bool backward)
{
    return a->handle && !scores->window && !scores->softcap && (backward || !a->simple_forward);
}

static gr_status cuda_failed(cudaError_t e, const char *call, gr_diag *d)
{
    return gr_diag_error(d, (gr_loc){0}, e == cudaErrorMemoryAllocation ? GR_E_NOMEM : GR_E_FAILED, "%s: %s",
                         call, cudaGetErrorString(e));
}

gr_status gr_cu_attention_open(gr_cu_attention **out, gr_cu_attention_kind kind, gr_diag *d)
{
    int device = 0, major = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (e != cudaSuccess) return cuda_failed(e, "cudaGetDevice", d);
    e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (e != cudaSuccess) return cuda_failed(e, "cudaDeviceGetAttribute", d);
    gr_cu_attention *a = gr_calloc(1, sizeof(*a));
    snprintf(a->name, sizeof(a->name), "simple");
    a->simple_forward = kind == GR_CU_ATTENTION_STRICT;
    if (kind == GR_CU_ATTENTION_CUDNN || (kind != GR_CU_ATTENTION_SIMPLE && major >= 9)) {
        const cudnnStatus_t st = cudnnCreate(&a->handle);
        if (st != CUDNN_STATUS_SUCCESS) {
            free(a);
            return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "cudnnCreate: %s", cudnnGetErrorString(st));
        }
        snprintf(a->name, sizeof(a->name), "%scudnn %zu", a->simple_forward ? "simple, " : "",
                 cudnnGetVersion());
    }
    *out = a;
    return GR_OK;
}

void gr_cu_attention_close(gr_cu_attention *a)
{
    if (!a) return;
    for (size_t i = 0; i < a->n; i++) {
        gr_cudnn_plan_release(&a->plans[i]->plan);
        free(a->plans[i]);
    }
    free(a->plans);
    if (a->handle) cudnnDestroy(a->handle);
    free(a);
}

const char *gr_cu_attention_name(const gr_cu_attention *a)
{
    return a->name;
}

/* ---- plans ----------------------------------------------------------------------------------------------
 */

static gr_cudnn_attention graph_of(const gr_cu_attention_shape *s, const gr_cu_attention_run *r,
                                   bool backward)
{
    return (gr_cudnn_attention){
        .batch = r->batch,
        .longest = r->longest,
        .heads = r->kv_heads * (s->heads / s->kv_heads),
        .kv_heads = r->kv_heads,
        .head_dim = s->head_dim,
        .width = (int64_t)(s->heads + 2 * s->kv_heads) * s->head_dim,
        .o_width = (int64_t)s->heads * s->head_dim,
        .stats_width = s->heads,
        .backward = backward,
        .deterministic = s->deterministic || !backward,
    };
}

static bool same_graph(const gr_cudnn_attention *a, const gr_cudnn_attention *b)
{
    return a->batch == b->batch && a->longest == b->longest && a->heads == b->heads &&
           a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->width == b->width &&
           a->o_width == b->o_width && a->stats_width == b->stats_width && a->backward == b->backward &&
           a->deterministic == b->deterministic;
}

static gr_status plan_for(gr_cu_attention *a, const gr_cu_attention_shape *s, const gr_cu_attention_run *r,
                          bool backward, const gr_cudnn_plan **out, gr_diag *d)
{
    const gr_cudnn_attention graph = graph_of(s, r, backward);
    for (size_t i = 0; i < a->n; i++)
        if (same_graph(&a->plans[i]->key, &graph)) {
            *out = &a->plans[i]->plan;
            return GR_OK;
        }
    struct entry *e = gr_calloc(1, sizeof(*e));
    e->key = graph;
    gr_status st = gr_cudnn_attention_plan(&e->plan, &graph, a->handle, NULL, d);
    const uint64_t most = gr_cu_attention_cudnn_bytes(s, r, backward);
    if (st == GR_OK && e->plan.ws_bytes > most) {
        st = gr_diag_error(
            d, (gr_loc){0}, GR_E_FAILED,
            "cuDNN %zu asks %llu bytes of workspace for attention %s of %u x %u tokens, heads %lld/%u of "
            "%u; planned for were %llu",
            cudnnGetVersion(), (unsigned long long)e->plan.ws_bytes, backward ? "backward" : "forward",
            r->batch, r->longest, (long long)graph.heads, r->kv_heads, s->head_dim, (unsigned long long)most);
        gr_cudnn_plan_release(&e->plan);
    }
    if (st != GR_OK) {
        free(e);
        return st;
    }
    GR_PUSH(a->plans, a->n, a->cap, e);
    *out = &e->plan;
    return GR_OK;
}

gr_status gr_cu_attention_prepare(gr_cu_attention *a, const gr_cu_attention_shape *s, const gr_scores *scores,
                                  const gr_cu_sequences *b, bool backward, gr_diag *d)
{
    const gr_cudnn_plan *plan;
    if (!fused(a, scores, backward) || b->offset[b->n_seqs] == 0) return GR_OK;
    for (uint32_t first = 0; first < b->n_seqs;) {
        const gr_cu_attention_run r = gr_cu_attention_cut(s, b->offset, first, b->n_seqs, backward);
        const gr_status st = plan_for(a, s, &r, backward, &plan, d);
        if (st != GR_OK) return st;
        first += r.n;
    }
    return GR_OK;
}

/* ---- cuDNN ----------------------------------------------------------------------------------------------
 */

struct run_ws {
    int32_t *length, *rows, *o_rows, *stats_rows;
    float *delta, *dq;
    void *cudnn;
    uint64_t bytes;
};

static struct run_ws layout(const gr_cu_attention_shape *s, const gr_cu_attention_run *r, bool backward,
                            void *base)
{
    gr_workspace c = {.base = base};
    struct run_ws w;
    const uint64_t index = gr_cu_attention_index_bytes(r->batch) / 4;
    w.length = gr_workspace_bytes(&c, index);
    w.rows = gr_workspace_bytes(&c, index);
    w.o_rows = gr_workspace_bytes(&c, index);
    w.stats_rows = gr_workspace_bytes(&c, index);
    w.delta = backward ? gr_workspace_bytes(&c, gr_cu_attention_delta_bytes(s, r)) : NULL;
    w.dq = backward ? gr_workspace_bytes(&c, gr_cu_attention_dq_bytes(s, r)) : NULL;
    w.cudnn = gr_workspace_bytes(&c, gr_cu_attention_cudnn_bytes(s, r, backward));
    w.bytes = c.used;
    return w;
}

static const float scalar_one = 1, scalar_minus_inf = -INFINITY;

/* One call of a run: kv heads [kv_head, kv_head + r->kv_heads). */
static gr_status execute(gr_cu_attention *a, const gr_cudnn_plan *plan, const gr_cu_attention_shape *s,
                         const gr_cu_attention_run *r, uint32_t token, uint32_t kv_head,
                         const struct tensors *t, const struct run_ws *w, gr_diag *d)
{
    const uint64_t dim = s->head_dim, width = (s->heads + 2 * s->kv_heads) * dim,
                   head = kv_head * (s->heads / s->kv_heads);
    const uint64_t q = token * width + head * dim, k = token * width + (s->heads + kv_head) * dim,
                   v = k + s->kv_heads * dim, o = token * s->heads * dim + head * dim;
    const bool backward = t->dqkv != NULL;
    float scale = t->scale;
    char what[128];
    int64_t uid[GR_ATT_END];
    void *pointer[GR_ATT_END] = {
        [GR_ATT_Q] = (void *)(t->qkv + q),
        [GR_ATT_K] = (void *)(t->qkv + k),
        [GR_ATT_V] = (void *)(t->qkv + v),
        [GR_ATT_O] = backward ? (void *)(t->o + o) : t->out + o,
        [GR_ATT_STATS] = t->stats + (uint64_t)token * s->heads + head,
        [GR_ATT_LENGTH] = w->length,
        [GR_ATT_ROWS] = w->rows,
        [GR_ATT_O_ROWS] = w->o_rows,
        [GR_ATT_STATS_ROWS] = w->stats_rows,
        [GR_ATT_SCALE] = &scale,
        [GR_ATT_MINUS_INF] = (void *)&scalar_minus_inf,
        [GR_ATT_MINUS_INF_2] = (void *)&scalar_minus_inf,
    };
    int end = GR_ATT_FORWARD_END;
    if (backward) {
        pointer[GR_ATT_ONE] = (void *)&scalar_one;
        pointer[GR_ATT_DO] = (void *)(t->dout + o);
        pointer[GR_ATT_DQ] = t->dqkv + q;
        pointer[GR_ATT_DK] = t->dqkv + k;
        pointer[GR_ATT_DV] = t->dqkv + v;
        pointer[GR_ATT_DELTA] = w->delta;
        pointer[GR_ATT_DQ_SUM] = w->dq;
        end = s->deterministic ? GR_ATT_BACKWARD_END : GR_ATT_END;
    }
    for (int i = 1; i < end; i++) uid[i] = i;
    snprintf(what, sizeof(what),
             "attention %s, %u sequences in %u x %u tokens, kv heads %u to %u, head_dim %u",
             backward ? "backward" : "forward", r->n, r->batch, r->longest, kv_head,
             kv_head + r->kv_heads - 1, s->head_dim);
    return gr_cudnn_plan_execute(plan, a->handle, uid + 1, pointer + 1, (size_t)end - 1, w->cudnn, what, d);
}

static gr_status run_once(gr_cu_attention *a, cudaStream_t st, const gr_cu_attention_shape *s,
                          const gr_cu_sequences *b, const gr_cu_attention_run *r, const struct tensors *t,
                          void *ws, uint64_t ws_bytes, gr_diag *d)
{
    const bool backward = t->dqkv != NULL;
    const struct run_ws w = layout(s, r, backward, ws);
    const uint32_t width = (s->heads + 2 * s->kv_heads) * s->head_dim, token = b->offset[r->first];
    const gr_cudnn_plan *plan;
    if ((uint64_t)(b->offset[r->first + r->n] - token) * width > INT32_MAX)
        return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED,
                             "a sequence of %u tokens is too long for cuDNN's offsets",
                             b->offset[r->first + r->n] - token);
    if (w.bytes > ws_bytes)
        return gr_diag_error(
            d, (gr_loc){0}, GR_E_FAILED,
            "attention needs %llu bytes of workspace, and has %llu (%u sequences in %u x %u tokens)",
            (unsigned long long)w.bytes, (unsigned long long)ws_bytes, r->n, r->batch, r->longest);
    gr_status status = plan_for(a, s, r, backward, &plan, d);
    if (status != GR_OK) return status;
    gr_cu_attention_index(st, b->device_offset, r->first, r->n, r->batch, width, s->heads * s->head_dim,
                          s->heads, w.length, w.rows, w.o_rows, w.stats_rows);
    for (uint32_t h = 0; h < s->kv_heads && status == GR_OK; h += r->kv_heads)
        status = execute(a, plan, s, r, token, h, t, &w, d);
    return status;
}

static gr_status run_cudnn(gr_cu_attention *a, cudaStream_t st, const gr_cu_attention_shape *s,
                           const gr_cu_sequences *b, const struct tensors *t, void *ws, uint64_t ws_bytes,
                           gr_diag *d)
{
    const cudnnStatus_t set = cudnnSetStream(a->handle, st);
    if (set != CUDNN_STATUS_SUCCESS)
        return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "cudnnSetStream: %s", cudnnGetErrorString(set));
    for (uint32_t first = 0; first < b->n_seqs;) {
        const gr_cu_attention_run r = gr_cu_attention_cut(s, b->offset, first, b->n_seqs, t->dqkv != NULL);
        first += r.n;
        if (b->offset[first] == b->offset[r.first]) continue; /* all empty */
        const gr_status status = run_once(a, st, s, b, &r, t, ws, ws_bytes, d);
        if (status != GR_OK) return status;
    }
    return GR_OK;
}

/* ---- either ---------------------------------------------------------------------------------------------
 */

static gr_status check(const gr_cu_attention_shape *s, const gr_cu_sequences *b, gr_diag *d)
{
    if (s->kv_heads && s->heads % s->kv_heads == 0 && s->head_dim && s->head_dim % 8 == 0 &&
        s->head_dim <= 256 && b->offset[0] == 0)
        return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "attention: heads %u/%u of %u, first offset %u",
                         s->heads, s->kv_heads, s->head_dim, b->offset[0]);
}

static gr_cu_simple simple_of(const gr_cu_attention_shape *s, const gr_scores *scores,
                              const gr_cu_sequences *b)
{
    gr_cu_simple p = {s->heads,         s->kv_heads, s->head_dim,          *scores,
                      b->device_offset, b->n_seqs,   b->offset[b->n_seqs], 0};
    for (uint32_t i = 0; i < b->n_seqs; i++) p.longest = GR_MAX(p.longest, b->offset[i + 1] - b->offset[i]);
    return p;
}

gr_status gr_cu_attention_forward(gr_cu_attention *a, cudaStream_t st, const gr_cu_attention_shape *s,
                                  const gr_scores *scores, const gr_cu_sequences *b, const gr_bf16 *qkv,
                                  gr_bf16 *o, float *stats, void *ws, uint64_t ws_bytes, gr_diag *d)
{
    gr_status status = check(s, b, d);
    if (status != GR_OK || b->offset[b->n_seqs] == 0) return status;
    const gr_cu_simple p = simple_of(s, scores, b);
    if (!fused(a, scores, false)) {
        gr_cu_simple_forward(st, &p, qkv, o, stats);
        return GR_OK;
    }
    const struct tensors t = {.qkv = qkv, .out = o, .stats = stats, .scale = scores->scale};
    status = run_cudnn(a, st, s, b, &t, ws, ws_bytes, d);
    if (status == GR_OK && scores->sinks) gr_cu_sinks_forward(st, &p, o, stats);
    return status;
}

static gr_status need(uint64_t bytes, uint64_t ws_bytes, gr_diag *d)
{
    if (bytes <= ws_bytes) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "attention needs %llu bytes of workspace, and has %llu",
                         (unsigned long long)bytes, (unsigned long long)ws_bytes);
}

gr_status gr_cu_attention_backward(gr_cu_attention *a, cudaStream_t st, const gr_cu_attention_shape *s,
                                   const gr_scores *scores, const gr_cu_sequences *b, const gr_bf16 *qkv,
                                   const gr_bf16 *o, const float *stats, const gr_bf16 *dout, gr_bf16 *dqkv,
                                   const gr_cu_sink_grads *sinks, void *ws, uint64_t ws_bytes, gr_diag *d)
{
    gr_status status = check(s, b, d);
    if (status != GR_OK || b->offset[b->n_seqs] == 0) return status;
    const bool simple = !fused(a, scores, true);
    const gr_cu_simple p = simple_of(s, scores, b);
    if (simple || sinks) status = need(gr_cu_attention_stats_bytes(s, p.n_tokens), ws_bytes, d);
    if (status != GR_OK) return status;
    if (simple) {
        gr_cu_simple_backward(st, &p, qkv, o, stats, dout, dqkv, ws);
    } else {
        const struct tensors t = {
            .qkv = qkv, .o = o, .dout = dout, .dqkv = dqkv, .stats = (float *)stats, .scale = scores->scale};
        status = run_cudnn(a, st, s, b, &t, ws, ws_bytes, d);
        if (sinks) gr_cu_attention_delta(st, &p, o, dout, ws); /* cuDNN is through with the workspace */
    }
    if (status == GR_OK && sinks) gr_cu_sinks_backward(st, &p, stats, ws, sinks->grad, sinks->type);
    return status;
}
