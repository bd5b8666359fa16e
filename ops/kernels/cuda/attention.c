/* ops/kernels/cuda/attention.c: attention of packed passes on CUDA: cuDNN where it serves, else own kernels.
 */
#include "ops/kernels/cuda/attention.h"

#include "ops/kernels/workspace.h"
#include "ops/kernels/cuda/attention_cudnn.h"
#include "ops/kernels/cuda/attention_prefix.h"
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
static bool fused(const gr_cu_attention *a, const gr_cu_attention_shape *s, const gr_scores *scores,
                  bool backward)
{
    return a->handle && gr_cu_attention_fuses(s) && !scores->window && !scores->softcap &&
           (backward || !a->simple_forward);
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

/* What cuDNN is asked for. */
struct how {
    bool backward, prefix;
};

/* ---- plans ----------------------------------------------------------------------------------------------
 */

static gr_cudnn_attention graph_of(const gr_cu_attention_shape *s, const gr_cu_attention_run *r,
                                   struct how how)
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
        .backward = how.backward,
        .deterministic = s->deterministic || !how.backward,
        .prefix = how.prefix,
    };
}

static bool same_graph(const gr_cudnn_attention *a, const gr_cudnn_attention *b)
{
    return a->batch == b->batch && a->longest == b->longest && a->heads == b->heads &&
           a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->width == b->width &&
           a->o_width == b->o_width && a->stats_width == b->stats_width && a->backward == b->backward &&
           a->deterministic == b->deterministic && a->prefix == b->prefix;
}

static gr_status plan_for(gr_cu_attention *a, const gr_cu_attention_shape *s, const gr_cu_attention_run *r,
                          struct how how, const gr_cudnn_plan **out, gr_diag *d)
{
    const gr_cudnn_attention graph = graph_of(s, r, how);
    for (size_t i = 0; i < a->n; i++)
        if (same_graph(&a->plans[i]->key, &graph)) {
            *out = &a->plans[i]->plan;
            return GR_OK;
        }
    struct entry *e = gr_calloc(1, sizeof(*e));
    e->key = graph;
    gr_status st = gr_cudnn_attention_plan(&e->plan, &graph, a->handle, NULL, d);
    const uint64_t most = gr_cu_attention_cudnn_bytes(s, r, how.backward);
    if (st == GR_OK && e->plan.ws_bytes > most) {
        st = gr_diag_error(
            d, (gr_loc){0}, GR_E_FAILED,
            "cuDNN %zu asks %llu bytes of workspace for attention %s of %u x %u tokens, heads %lld/%u of "
            "%u; planned for were %llu",
            cudnnGetVersion(), (unsigned long long)e->plan.ws_bytes, how.backward ? "backward" : "forward",
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

/* Keys of the longest sequence. */
static uint32_t most_keys(const gr_cu_sequences *b)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const uint32_t of = b->prefix[i], before = of == i ? 0 : b->offset[of + 1] - b->offset[of];
        most = GR_MAX(most, before + b->offset[i + 1] - b->offset[i]);
    }
    return most;
}

/* Rows that go on from a prefix are taken against it in pieces of at most as many as the longest sequence has
 * keys, each a call of one batch: so they take no more than that sequence would. */
static gr_cu_attention_run piece_run(const gr_cu_attention_shape *s, const gr_cu_sequences *b, bool backward)
{
    const uint32_t longest[] = {0, b->prefix ? most_keys(b) : 1};
    return gr_cu_attention_cut(s, longest, 0, 1, backward);
}

gr_status gr_cu_attention_prepare(gr_cu_attention *a, const gr_cu_attention_shape *s, const gr_scores *scores,
                                  const gr_cu_sequences *b, bool backward, gr_diag *d)
{
    const gr_cudnn_plan *plan;
    if (!fused(a, s, scores, backward) || b->offset[b->n_seqs] == 0) return GR_OK;
    for (uint32_t first = 0; first < b->n_seqs;) {
        const gr_cu_attention_run r = gr_cu_attention_cut(s, b->offset, first, b->n_seqs, backward);
        const gr_status st = plan_for(a, s, &r, (struct how){backward, false}, &plan, d);
        if (st != GR_OK) return st;
        first += r.n;
    }
    const gr_cu_attention_run r = piece_run(s, b, backward);
    return b->prefix ? plan_for(a, s, &r, (struct how){backward, true}, &plan, d) : GR_OK;
}

/* ---- cuDNN ----------------------------------------------------------------------------------------------
 */

struct run_ws {
    int32_t *length, *rows, *o_rows, *stats_rows;
    float *delta, *dq;
    void *cudnn;
    /* of a piece: */
    int32_t *kv_length, *kv_rows;
    gr_bf16 *o, *d_q, *d_kv; /* rows as those of o and dqkv */
    float *stats;
    uint64_t bytes;
};

static struct run_ws layout(const gr_cu_attention_shape *s, const gr_cu_attention_run *r, bool backward,
                            void *base)
{
    gr_workspace c = {.base = base};
    struct run_ws w = {0};
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

/* Behind that what a piece has more, of so many rows and keys at most. */
static struct run_ws piece_layout(const gr_cu_attention_shape *s, const gr_cu_attention_run *r, bool backward,
                                  uint32_t most, void *base)
{
    struct run_ws w = layout(s, r, backward, base);
    gr_workspace c = {.base = base, .used = w.bytes};
    const uint64_t heads = s->heads, row = (heads + 2 * s->kv_heads) * s->head_dim * sizeof(gr_bf16);
    w.kv_length = gr_workspace_bytes(&c, gr_cu_attention_index_bytes(r->batch) / 4);
    w.kv_rows = gr_workspace_bytes(&c, gr_cu_attention_index_bytes(r->batch) / 4);
    if (backward) {
        w.d_q = gr_workspace_bytes(&c, most * row);
        w.d_kv = gr_workspace_bytes(&c, most * row);
    } else {
        w.o = gr_workspace_bytes(&c, most * heads * s->head_dim * sizeof(gr_bf16));
        w.stats = gr_workspace_bytes(&c, most * heads * sizeof(float));
    }
    w.bytes = c.used;
    return w;
}

static const float scalar_one = 1, scalar_minus_inf = -INFINITY;

/* The first rows of a call. */
struct rows {
    const gr_bf16 *q, *kv, *o, *dout; /* o: of backward */
    gr_bf16 *out, *dq, *dkv;          /* out: of forward; the others of backward */
    float *stats, scale;
};

/* One call of a run: kv heads [kv_head, kv_head + r->kv_heads). */
static gr_status execute(gr_cu_attention *a, const gr_cudnn_plan *plan, const gr_cu_attention_shape *s,
                         const gr_cu_attention_run *r, uint32_t kv_head, const struct rows *t,
                         const struct run_ws *w, gr_diag *d)
{
    const uint64_t dim = s->head_dim, head = kv_head * (s->heads / s->kv_heads), q = head * dim,
                   k = (s->heads + kv_head) * dim, v = k + s->kv_heads * dim;
    const bool backward = t->dq != NULL, prefix = w->kv_rows != NULL;
    float scale = t->scale;
    char what[128];
    int64_t uid[GR_ATT_END];
    void *given[GR_ATT_END];
    size_t n = 0;
    void *pointer[GR_ATT_END] = {
        [GR_ATT_Q] = (void *)(t->q + q),
        [GR_ATT_K] = (void *)(t->kv + k),
        [GR_ATT_V] = (void *)(t->kv + v),
        [GR_ATT_O] = backward ? (void *)(t->o + q) : t->out + q,
        [GR_ATT_STATS] = t->stats + head,
        [GR_ATT_LENGTH] = w->length,
        [GR_ATT_ROWS] = w->rows,
        [GR_ATT_O_ROWS] = w->o_rows,
        [GR_ATT_STATS_ROWS] = w->stats_rows,
        [GR_ATT_SCALE] = &scale,
        [GR_ATT_MINUS_INF] = (void *)&scalar_minus_inf,
        [GR_ATT_MINUS_INF_2] = prefix ? NULL : (void *)&scalar_minus_inf,
        [GR_ATT_KV_LENGTH] = w->kv_length,
        [GR_ATT_KV_ROWS] = w->kv_rows,
    };
    if (backward) {
        pointer[GR_ATT_ONE] = (void *)&scalar_one;
        pointer[GR_ATT_DO] = (void *)(t->dout + q);
        pointer[GR_ATT_DQ] = t->dq + q;
        pointer[GR_ATT_DK] = t->dkv + k;
        pointer[GR_ATT_DV] = t->dkv + v;
        pointer[GR_ATT_DELTA] = w->delta;
        pointer[GR_ATT_DQ_SUM] = s->deterministic ? NULL : w->dq;
    }
    for (int i = 1; i < GR_ATT_END; i++) {
        if (!pointer[i]) continue;
        uid[n] = i;
        given[n++] = pointer[i];
    }
    snprintf(what, sizeof(what),
             "attention %s, %u sequences in %u x %u tokens, kv heads %u to %u, head_dim %u%s",
             backward ? "backward" : "forward", r->n, r->batch, r->longest, kv_head,
             kv_head + r->kv_heads - 1, s->head_dim, prefix ? ", of a prefix" : "");
    return gr_cudnn_plan_execute(plan, a->handle, uid, given, n, w->cudnn, what, d);
}

static gr_status execute_heads(gr_cu_attention *a, const gr_cu_attention_shape *s,
                               const gr_cu_attention_run *r, const struct rows *t, const struct run_ws *w,
                               gr_diag *d)
{
    const struct how how = {t->dq != NULL, w->kv_rows != NULL};
    const gr_cudnn_plan *plan;
    gr_status status = plan_for(a, s, r, how, &plan, d);
    for (uint32_t h = 0; h < s->kv_heads && status == GR_OK; h += r->kv_heads)
        status = execute(a, plan, s, r, h, t, w, d);
    return status;
}

/* The rows of a batch from a token on. */
static struct rows rows_at(const gr_cu_attention_shape *s, const struct tensors *t, uint64_t token)
{
    const uint64_t at = token * (s->heads + 2 * s->kv_heads) * s->head_dim,
                   o_at = token * s->heads * s->head_dim;
    struct rows r = {.q = t->qkv + at, .kv = t->qkv + at, .stats = t->stats + token * s->heads};
    r.scale = t->scale;
    if (t->dqkv) {
        r.o = t->o + o_at;
        r.dout = t->dout + o_at;
        r.dq = r.dkv = t->dqkv + at;
    } else {
        r.out = t->out + o_at;
    }
    return r;
}

static gr_status short_of(const gr_cu_attention_run *r, uint64_t bytes, uint64_t ws_bytes, gr_diag *d)
{
    if (bytes <= ws_bytes) return GR_OK;
    return gr_diag_error(
        d, (gr_loc){0}, GR_E_FAILED,
        "attention needs %llu bytes of workspace, and has %llu (%u sequences in %u x %u tokens)",
        (unsigned long long)bytes, (unsigned long long)ws_bytes, r->n, r->batch, r->longest);
}

static gr_status check_offsets(const gr_cu_attention_shape *s, uint32_t tokens, gr_diag *d)
{
    const uint64_t width = (s->heads + 2 * s->kv_heads) * s->head_dim;
    if (tokens * width <= INT32_MAX) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED,
                         "a sequence of %u tokens is too long for cuDNN's offsets", tokens);
}

static gr_status run_once(gr_cu_attention *a, cudaStream_t st, const gr_cu_attention_shape *s,
                          const gr_cu_sequences *b, const gr_cu_attention_run *r, const struct tensors *t,
                          void *ws, uint64_t ws_bytes, gr_diag *d)
{
    const struct run_ws w = layout(s, r, t->dqkv != NULL, ws);
    const uint32_t width = (s->heads + 2 * s->kv_heads) * s->head_dim, token = b->offset[r->first];
    const struct rows rows = rows_at(s, t, token);
    gr_status status = check_offsets(s, b->offset[r->first + r->n] - token, d);
    if (status == GR_OK) status = short_of(r, w.bytes, ws_bytes, d);
    if (status != GR_OK) return status;
    gr_cu_attention_index(st, b->device_offset, r->first, r->n, r->batch, width, s->heads * s->head_dim,
                          s->heads, w.length, w.rows, w.o_rows, w.stats_rows);
    return execute_heads(a, s, r, &rows, &w, d);
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

/* ---- what sequences go on from --------------------------------------------------------------------------
 */

/* Rows [q, q + n_q) of sequences that go on from the tokens [k, k + n_k). */
struct piece {
    uint32_t q, n_q, k, n_k;
};

/* What these rows see of their prefix is added to what they see of their own sequences. */
static gr_status run_piece(gr_cu_attention *a, cudaStream_t st, const gr_cu_attention_shape *s,
                           const gr_cu_attention_run *r, const struct piece *p, const struct tensors *t,
                           const struct run_ws *w, gr_diag *d)
{
    const uint32_t q_width = s->heads * s->head_dim, kv_width = 2 * s->kv_heads * s->head_dim,
                   width = q_width + kv_width;
    const bool backward = t->dqkv != NULL;
    const gr_cu_piece_index index = {w->length, w->rows, w->o_rows, w->stats_rows, w->kv_length, w->kv_rows};
    struct rows own = rows_at(s, t, p->q), rows = own;
    rows.kv = t->qkv + (uint64_t)p->k * width;
    rows.out = w->o;
    rows.dq = w->d_q;
    rows.dkv = w->d_kv;
    if (!backward) rows.stats = w->stats;
    gr_cu_attention_piece(st, p->n_q, p->n_k, width, q_width, s->heads, &index);
    const gr_status status = execute_heads(a, s, r, &rows, w, d);
    if (status != GR_OK) return status;
    if (backward) {
        gr_bf16 *to = t->dqkv + (uint64_t)p->k * width + q_width;
        gr_cu_attention_add(st, p->n_q, q_width, width, own.dq, w->d_q);
        gr_cu_attention_add(st, p->n_k, kv_width, width, to, w->d_kv + q_width);
    } else {
        gr_cu_attention_merge(st, p->n_q * s->heads, s->head_dim, own.out, own.stats, w->o, w->stats);
    }
    return GR_OK;
}

/* After run_cudnn. Pieces come one after another, so sums over them have one order. */
static gr_status run_prefixes(gr_cu_attention *a, cudaStream_t st, const gr_cu_attention_shape *s,
                              const gr_cu_sequences *b, const struct tensors *t, void *ws, uint64_t ws_bytes,
                              gr_diag *d)
{
    const bool backward = t->dqkv != NULL;
    const uint32_t most = most_keys(b);
    const gr_cu_attention_run r = piece_run(s, b, backward);
    const struct run_ws w = piece_layout(s, &r, backward, most, ws);
    gr_status status = check_offsets(s, most, d);
    if (status == GR_OK) status = short_of(&r, w.bytes, ws_bytes, d);
    for (uint32_t i = 0, end; i < b->n_seqs && status == GR_OK; i = end) {
        for (end = i + 1; end < b->n_seqs && b->prefix[end] == i;) end++;
        struct piece p = {.q = b->offset[i + 1], .k = b->offset[i], .n_k = b->offset[i + 1] - b->offset[i]};
        for (; p.n_k && p.q < b->offset[end] && status == GR_OK; p.q += p.n_q) {
            p.n_q = GR_MIN(most, b->offset[end] - p.q);
            status = run_piece(a, st, s, &r, &p, t, &w, d);
        }
    }
    return status;
}

/* ---- either ---------------------------------------------------------------------------------------------
 */

static gr_status check(const gr_cu_attention_shape *s, const gr_cu_sequences *b, gr_diag *d)
{
    if (s->kv_heads && s->heads % s->kv_heads == 0 && s->head_dim && s->head_dim % 8 == 0 &&
        s->head_dim <= 512 && b->offset[0] == 0)
        return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "attention: heads %u/%u of %u, first offset %u",
                         s->heads, s->kv_heads, s->head_dim, b->offset[0]);
}

static gr_cu_simple simple_of(const gr_cu_attention_shape *s, const gr_scores *scores,
                              const gr_cu_sequences *b)
{
    gr_cu_simple p = {s->heads,  s->kv_heads,          s->head_dim, *scores,         b->device_offset,
                      b->n_seqs, b->offset[b->n_seqs], 0,           b->device_prefix};
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
    if (!fused(a, s, scores, false)) {
        gr_cu_simple_forward(st, &p, qkv, o, stats);
        return GR_OK;
    }
    const struct tensors t = {.qkv = qkv, .out = o, .stats = stats, .scale = scores->scale};
    status = run_cudnn(a, st, s, b, &t, ws, ws_bytes, d);
    if (status == GR_OK && b->prefix) status = run_prefixes(a, st, s, b, &t, ws, ws_bytes, d);
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
    const bool simple = !fused(a, s, scores, true);
    const gr_cu_simple p = simple_of(s, scores, b);
    if (simple || sinks) status = need(gr_cu_attention_stats_bytes(s, p.n_tokens), ws_bytes, d);
    if (status != GR_OK) return status;
    if (simple) {
        gr_cu_simple_backward(st, &p, qkv, o, stats, dout, dqkv, ws);
    } else {
        const struct tensors t = {
            .qkv = qkv, .o = o, .dout = dout, .dqkv = dqkv, .stats = (float *)stats, .scale = scores->scale};
        status = run_cudnn(a, st, s, b, &t, ws, ws_bytes, d);
        if (status == GR_OK && b->prefix) status = run_prefixes(a, st, s, b, &t, ws, ws_bytes, d);
        if (sinks) gr_cu_attention_delta(st, &p, o, dout, ws); /* cuDNN is through with the workspace */
    }
    if (status == GR_OK && sinks) gr_cu_sinks_backward(st, &p, stats, ws, sinks->grad, sinks->type);
    return status;
}
