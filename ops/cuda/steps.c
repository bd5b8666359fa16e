/* ops/cuda/steps.c: gr_steps_cuda. A model step with its list of keys to read and its end of step is one CUDA
 * graph for each number of slots, captured after it has run once as plain launches (which loads kernels and
 * lets libraries choose theirs); a chunk is that graph launched so many times. */
#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>

#include "ops/carve.h"
#include "ops/cuda/launch.h"
#include "ops/steps.h"

enum { GRAPHS_MAX = 64 };

/* The orders of a trip; the same layout on host and device, tables last: what is not used of them is not
 * copied. */
typedef struct orders {
    uint32_t *group_first, *shared, *member;
    gr_slot_change *change;
    uint32_t *table;
} orders;

/* Written once a rollout. */
typedef struct rules {
    gr_cu_sampling sampling;
    gr_cu_ending ending;
    int32_t stop[]; /* [stop_ids] */
} rules;

typedef struct graph {
    uint32_t n;
    cudaGraphExec_t exec;
} graph;

struct gr_steps {
    gr_cu_heads heads; /* without the table of frequencies: attention does not rotate */
    gr_steps_bounds bounds;
    gr_cu_slots slots; /* on the device, as all of these: */
    orders orders;
    rules *rules;
    uint32_t *row, *offset; /* 0, 1, ... */
    void *work, *ws;
    orders host_orders[2]; /* by trip modulo 2 */
    gr_steps_report report[2];
    rules *host_rules;
    uint32_t *host_count; /* [slots + 1] 0, 1, ... */
    gr_sampling sampling;
    cudaEvent_t done[2];
    graph graphs[GRAPHS_MAX];
    uint32_t n_graphs;
    uint64_t key;
    cudaError_t error; /* the first, and the call */
    const char *call;
};

static void note(gr_steps *s, cudaError_t e, const char *call)
{
    if (e == cudaSuccess || s->error != cudaSuccess) return;
    s->error = e;
    s->call = call;
}
#define CUDA(s, call) note((s), (call), #call)

static cudaStream_t stream_of(const gr_queue *q)
{
    return q->stream;
}

static gr_status told(gr_steps *s, gr_diag *d)
{
    note(s, cudaGetLastError(), "a kernel of the rollout");
    if (s->error == cudaSuccess) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "%s: %s", s->call, cudaGetErrorString(s->error));
}

/* ---- memory ---------------------------------------------------------------------------------------------
 */

static gr_cu_heads heads_of(const gr_model_shape *s)
{
    return (gr_cu_heads){.heads = s->heads, .kv_heads = s->kv_heads, .head_dim = s->head_dim};
}

static orders carve_orders(gr_carve *c, const gr_steps_bounds *b)
{
    orders o;
    o.group_first = gr_carve_bytes(c, (b->slots + 1ull) * sizeof(*o.group_first));
    o.shared = gr_carve_bytes(c, b->slots * sizeof(*o.shared));
    o.member = gr_carve_bytes(c, b->slots * sizeof(*o.member));
    o.change = gr_carve_bytes(c, b->slots * sizeof(*o.change));
    o.table = gr_carve_bytes(c, (uint64_t)b->slots * b->stride * sizeof(*o.table));
    return o;
}

static uint64_t rules_bytes(const gr_steps_bounds *b)
{
    return sizeof(rules) + b->stop_ids * sizeof(int32_t);
}

static void carve_device(gr_carve *c, gr_steps *s)
{
    const gr_steps_bounds *b = &s->bounds;
    const uint64_t n = b->slots, words = n * sizeof(uint32_t);
    s->orders = carve_orders(c, b);
    s->rules = gr_carve_bytes(c, rules_bytes(b));
    s->row = gr_carve_bytes(c, words);
    s->offset = gr_carve_bytes(c, words + sizeof(uint32_t));
    s->slots = (gr_cu_slots){.id = gr_carve_bytes(c, words),
                             .position = gr_carve_bytes(c, words),
                             .kv_slot = gr_carve_bytes(c, words),
                             .length = gr_carve_bytes(c, words),
                             .table = gr_carve_bytes(c, words * b->stride),
                             .draw = gr_carve_bytes(c, 2 * words),
                             .drawn = gr_carve_bytes(c, words),
                             .logprob = gr_carve_bytes(c, words),
                             .step = gr_carve_bytes(c, sizeof(uint32_t)),
                             .report_id = gr_carve_bytes(c, words * b->chunk),
                             .report_logprob = gr_carve_bytes(c, words * b->chunk),
                             .slots = b->slots,
                             .stride = b->stride};
    s->work = gr_carve_bytes(c, gr_cu_decode_work_bytes(&s->heads, b->slots, b->max_length));
    s->ws = gr_carve_bytes(c, gr_cu_decode_attention_ws(&s->heads, b->slots, b->max_length));
}

static void carve_host(gr_carve *c, gr_steps *s)
{
    const gr_steps_bounds *b = &s->bounds;
    for (int i = 0; i < 2; i++) {
        s->host_orders[i] = carve_orders(c, b);
        s->report[i].id = gr_carve_bytes(c, (uint64_t)b->slots * b->chunk * sizeof(int32_t));
        s->report[i].logprob = gr_carve_floats(c, (uint64_t)b->slots * b->chunk);
    }
    s->host_rules = gr_carve_bytes(c, rules_bytes(b));
    s->host_count = gr_carve_bytes(c, (b->slots + 1ull) * sizeof(uint32_t));
}

static uint64_t device_bytes(const gr_model_shape *shape, const gr_steps_bounds *b)
{
    gr_steps s = {.heads = heads_of(shape), .bounds = *b};
    gr_carve c = {0};
    carve_device(&c, &s);
    return c.used;
}

static uint64_t host_bytes(const gr_model_shape *shape, const gr_steps_bounds *b)
{
    gr_steps s = {.heads = heads_of(shape), .bounds = *b};
    gr_carve c = {0};
    carve_host(&c, &s);
    return c.used;
}

/* ---- opening and beginning ------------------------------------------------------------------------------
 */

static void forget_graphs(gr_steps *s)
{
    for (uint32_t i = 0; i < s->n_graphs; i++) cudaGraphExecDestroy(s->graphs[i].exec);
    s->n_graphs = 0;
}

static void close_steps(gr_steps *s)
{
    if (!s) return;
    forget_graphs(s);
    for (int i = 0; i < 2; i++)
        if (s->done[i]) cudaEventDestroy(s->done[i]);
    free(s);
}

static gr_status open_steps(gr_steps **out, const gr_model_shape *shape, const gr_steps_bounds *b, gr_diag *d)
{
    gr_steps *s = gr_calloc(1, sizeof(*s));
    s->heads = heads_of(shape);
    s->bounds = *b;
    for (int i = 0; i < 2; i++)
        CUDA(s, cudaEventCreateWithFlags(&s->done[i], cudaEventDisableTiming | cudaEventBlockingSync));
    gr_status st = told(s, d);
    if (st)
        close_steps(s);
    else
        *out = s;
    return st;
}

static void write_rules(gr_steps *s, const gr_steps_rules *r)
{
    const gr_sampling *how = &r->sampling;
    s->host_rules->sampling = (gr_cu_sampling){.temperature = how->temperature,
                                               .top_p = how->top_p,
                                               .top_k = how->top_k,
                                               .seed = how->seed,
                                               .stream = how->stream};
    s->host_rules->ending = (gr_cu_ending){.max_tokens = r->max_tokens, .n_stop = r->n_stop};
    if (r->n_stop) memcpy(s->host_rules->stop, r->stop, r->n_stop * sizeof(*r->stop));
    s->sampling = *how;
    s->sampling.device = &s->rules->sampling;
}

static gr_status begin(gr_steps *s, gr_queue *q, void *device, void *host, const gr_steps_rules *r,
                       gr_diag *d)
{
    const cudaStream_t st = stream_of(q);
    const uint64_t n = s->bounds.slots;
    for (int i = 0; i < 2; i++) CUDA(s, cudaEventSynchronize(s->done[i])); /* host memory is not being read */
    gr_carve on_device = {.base = device}, on_host = {.base = host};
    const void *before = s->row;
    carve_device(&on_device, s);
    carve_host(&on_host, s);
    if (s->row != before) forget_graphs(s);
    s->slots.ending = &s->rules->ending;
    s->slots.stop = s->rules->stop;
    write_rules(s, r);
    for (uint32_t i = 0; i <= n; i++) s->host_count[i] = i;
    CUDA(s, cudaMemcpyAsync(s->rules, s->host_rules, rules_bytes(&s->bounds), cudaMemcpyHostToDevice, st));
    CUDA(s, cudaMemcpyAsync(s->row, s->host_count, n * sizeof(*s->row), cudaMemcpyHostToDevice, st));
    CUDA(s,
         cudaMemcpyAsync(s->offset, s->host_count, (n + 1) * sizeof(*s->offset), cudaMemcpyHostToDevice, st));
    gr_cu_slots_clear(st, &s->slots);
    return told(s, d);
}

/* ---- trips ----------------------------------------------------------------------------------------------
 */

static gr_steps_input input(gr_steps *s, uint32_t trip)
{
    const orders *o = &s->host_orders[trip % 2];
    return (gr_steps_input){.change = o->change,
                            .table = o->table,
                            .member = o->member,
                            .group_first = o->group_first,
                            .shared = o->shared};
}

static void change(gr_steps *s, gr_queue *q, uint32_t trip, uint32_t n_changes, uint32_t n_groups)
{
    const orders *from = &s->host_orders[trip % 2];
    for (uint32_t g = n_groups; g < s->bounds.slots;
         g++) { /* captured steps look at as many groups as slots */
        from->group_first[g + 1] = from->group_first[n_groups];
        from->shared[g] = 0;
    }
    const char *end = (const char *)(from->table + (size_t)n_changes * s->bounds.stride);
    const size_t bytes = (size_t)(end - (const char *)from->group_first);
    CUDA(s, cudaMemcpyAsync(s->orders.group_first, from->group_first, bytes, cudaMemcpyHostToDevice,
                            stream_of(q)));
    gr_cu_slots_change(stream_of(q), &s->slots, s->orders.change, s->orders.table, n_changes);
}

static void one_step(gr_steps *s, gr_queue *q, const gr_steps_chunk *c)
{
    const gr_cu_slots *k = &s->slots;
    const gr_cu_decode list = {.length = k->length,
                               .member = s->orders.member,
                               .group_first = s->orders.group_first,
                               .shared = s->orders.shared,
                               .n = c->n,
                               .n_groups = c->n,
                               .max_length = s->bounds.max_length};
    const gr_decode decode = {.length = k->length,
                              .member = list.member,
                              .group_first = list.group_first,
                              .shared = list.shared,
                              .n_groups = list.n_groups,
                              .max_length = list.max_length,
                              .work = s->work,
                              .ws = s->ws};
    const gr_extend e = {.n_tokens = c->n,
                         .n_seqs = c->n,
                         .ids = k->id,
                         .offset = s->offset,
                         .cached = (const uint32_t *)k->position,
                         .block_table = k->table,
                         .table_stride = k->stride,
                         .position = k->position,
                         .slot = k->kv_slot,
                         .longest = 1,
                         .decode = &decode};
    const gr_steps_draw d = {.row = s->row,
                             .how = &s->sampling,
                             .draw = (const uint32_t(*)[2])k->draw,
                             .id = k->drawn,
                             .logprob = k->logprob};
    gr_cu_decode_plan(stream_of(q), &s->heads, &list, k->table, k->stride, s->work);
    c->step(c->user, q, &e, &d);
    gr_cu_slots_advance(stream_of(q), k, c->n);
}

/* NULL where nothing could be captured: s->error says why. */
static cudaGraphExec_t capture(gr_steps *s, gr_queue *q, const gr_steps_chunk *c)
{
    cudaGraph_t g = NULL;
    cudaGraphExec_t exec = NULL;
    CUDA(s, cudaStreamBeginCapture(stream_of(q), cudaStreamCaptureModeThreadLocal));
    if (s->error != cudaSuccess) return NULL;
    one_step(s, q, c);
    CUDA(s, cudaStreamEndCapture(stream_of(q), &g));
    if (s->error == cudaSuccess) CUDA(s, cudaGraphInstantiate(&exec, g, 0));
    if (g) cudaGraphDestroy(g);
    return exec;
}

static cudaGraphExec_t find_graph(const gr_steps *s, uint32_t n)
{
    for (uint32_t i = 0; i < s->n_graphs; i++)
        if (s->graphs[i].n == n) return s->graphs[i].exec;
    return NULL;
}

static void run_chunk(gr_steps *s, gr_queue *q, const gr_steps_chunk *c)
{
    if (c->key != s->key || s->n_graphs == GRAPHS_MAX) forget_graphs(s);
    s->key = c->key;
    cudaGraphExec_t exec = find_graph(s, c->n);
    uint32_t i = 0;
    if (!exec) {
        one_step(s, q, c);
        i++;
        note(s, cudaGetLastError(), "a kernel of the rollout");
        if (s->error == cudaSuccess) exec = capture(s, q, c);
        if (exec) s->graphs[s->n_graphs++] = (graph){c->n, exec};
    }
    for (; exec && i < s->bounds.chunk; i++) CUDA(s, cudaGraphLaunch(exec, stream_of(q)));
}

static void run(gr_steps *s, gr_queue *q, uint32_t trip, const gr_steps_chunk *c)
{
    const cudaStream_t st = stream_of(q);
    const gr_steps_report *to = &s->report[trip % 2];
    const size_t bytes = (size_t)s->bounds.slots * s->bounds.chunk * sizeof(int32_t);
    if (c->n && s->error == cudaSuccess) {
        run_chunk(s, q, c);
        CUDA(s, cudaMemcpyAsync((void *)to->id, s->slots.report_id, bytes, cudaMemcpyDeviceToHost, st));
        CUDA(s, cudaMemcpyAsync((void *)to->logprob, s->slots.report_logprob, bytes, cudaMemcpyDeviceToHost,
                                st));
    }
    CUDA(s, cudaEventRecord(s->done[trip % 2], st));
}

static gr_status report(gr_steps *s, uint32_t trip, gr_steps_report *out, gr_diag *d)
{
    CUDA(s, cudaEventSynchronize(s->done[trip % 2]));
    *out = s->report[trip % 2];
    return told(s, d);
}

const gr_steps_ops gr_steps_cuda = {.device_bytes = device_bytes,
                                    .host_bytes = host_bytes,
                                    .open = open_steps,
                                    .close = close_steps,
                                    .begin = begin,
                                    .input = input,
                                    .change = change,
                                    .run = run,
                                    .report = report};
