/* ops/kernels/cuda/steps.c: gr_steps_cuda. A model step with its list of keys to read and its end of step is
 * one CUDA graph for each number of slots, captured after it has run once as plain launches (which loads
 * kernels and lets libraries choose theirs); a chunk is that graph launched so many times. */
#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>

#include "ops/kernels/cuda/model.h"
#include "ops/kernels/cuda/steps_layout.h"

enum { GRAPHS_MAX = 64 };

typedef struct graph {
    uint32_t n;
    cudaGraphExec_t exec;
} graph;

struct gr_steps {
    gr_cu_steps_model model;
    gr_steps_bounds bounds;
    gr_cu_steps_device device;
    gr_cu_steps_host host;
    gr_sampling sampling, best;
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

/* ---- opening and beginning ------------------------------------------------------------------------------
 */

static void forget_graphs(gr_steps *s)
{
    for (uint32_t i = 0; i < s->n_graphs; i++) cudaGraphExecDestroy(s->graphs[i].exec);
    s->n_graphs = 0;
}

void gr_cuda_steps_close(gr_steps *s)
{
    if (!s) return;
    forget_graphs(s);
    for (int i = 0; i < 2; i++)
        if (s->done[i]) cudaEventDestroy(s->done[i]);
    free(s);
}

gr_status gr_cuda_steps_open(gr_steps **out, const gr_model_shape *shape, const gr_steps_bounds *b,
                             gr_diag *d)
{
    gr_steps *s = gr_calloc(1, sizeof(*s));
    s->model = gr_cu_steps_model_of(shape);
    s->bounds = *b;
    for (int i = 0; i < 2; i++)
        CUDA(s, cudaEventCreateWithFlags(&s->done[i], cudaEventDisableTiming | cudaEventBlockingSync));
    gr_status st = told(s, d);
    if (st)
        gr_cuda_steps_close(s);
    else
        *out = s;
    return st;
}

static void write_rules(gr_steps *s, const gr_steps_rules *r)
{
    const gr_sampling *how = &r->sampling;
    s->host.rules->sampling = (gr_cu_sampling){.temperature = how->temperature,
                                               .top_p = how->top_p,
                                               .top_k = how->top_k,
                                               .seed = how->seed,
                                               .stream = how->stream};
    s->host.rules->best = (gr_cu_sampling){.top_p = 1};
    s->host.rules->ending = (gr_cu_ending){.max_tokens = r->max_tokens, .n_stop = r->n_stop};
    if (r->n_stop) memcpy(s->host.rules->stop, r->stop, r->n_stop * sizeof(*r->stop));
    s->sampling = *how;
    s->sampling.device = &s->device.rules->sampling;
    s->best = (gr_sampling){.top_p = 1, .device = &s->device.rules->best};
}

gr_status gr_cuda_steps_begin(gr_steps *s, gr_queue *q, void *device, void *host, const gr_steps_rules *r,
                              gr_diag *d)
{
    const cudaStream_t st = stream_of(q);
    const uint64_t n = gr_steps_rows(&s->bounds);
    for (int i = 0; i < 2; i++) CUDA(s, cudaEventSynchronize(s->done[i])); /* host memory is not being read */
    gr_workspace on_device = {.base = device}, on_host = {.base = host};
    const void *before = s->device.row;
    gr_cu_steps_layout_device(&on_device, &s->model, &s->bounds, &s->device);
    gr_cu_steps_layout_host(&on_host, &s->bounds, &s->host);
    if (s->device.row != before) forget_graphs(s);
    s->device.slots.ending = &s->device.rules->ending;
    s->device.slots.stop = s->device.rules->stop;
    write_rules(s, r);
    for (uint32_t i = 0; i <= n; i++) s->host.count[i] = i;
    gr_cuda_copy(q, s->device.rules, s->host.rules, gr_cu_rules_bytes(&s->bounds));
    gr_cuda_copy(q, s->device.row, s->host.count, (n + 1) * sizeof(*s->device.row));
    gr_cu_slots_clear(st, &s->device.slots);
    return told(s, d);
}

/* ---- trips ----------------------------------------------------------------------------------------------
 */

gr_steps_input gr_cuda_steps_input(gr_steps *s, uint32_t trip)
{
    const gr_cu_orders *o = &s->host.orders[trip % 2];
    return (gr_steps_input){.change = o->change,
                            .table = o->table,
                            .held = o->held,
                            .text = o->text,
                            .member = o->member,
                            .group_first = o->group_first,
                            .shared = o->shared};
}

void gr_cuda_steps_change(gr_steps *s, gr_queue *q, uint32_t trip, uint32_t n_changes, uint32_t n_groups)
{
    const gr_cu_orders *from = &s->host.orders[trip % 2];
    for (uint32_t g = n_groups; g < s->bounds.slots;
         g++) { /* captured steps look at as many groups as slots */
        from->group_first[g + 1] = from->group_first[n_groups];
        from->shared[g] = 0;
    }
    const char *end = (const char *)(from->table + (size_t)n_changes * s->bounds.stride);
    const size_t bytes = (size_t)(end - (const char *)from->group_first);
    const gr_cu_orders *to = &s->device.orders;
    gr_cuda_copy(q, to->group_first, from->group_first, bytes);
    if (to->text && n_changes)
        gr_cuda_copy(q, to->text, from->text, (size_t)n_changes * s->bounds.max_length * sizeof(*to->text));
    gr_cu_slots_change(stream_of(q), &s->device.slots, to->change, to->table, to->held, to->text, n_changes);
}

void gr_cuda_steps_copy(gr_steps *s, gr_queue *q, const gr_steps_blocks *b, const uint32_t *src,
                        const uint32_t *dst, uint32_t n)
{
    (void)s;
    gr_cu_kv_copy(stream_of(q), b->kv, b->layers, b->layer_bytes, b->block_bytes, src, dst, n);
}

/* The lists of keys that rows on the device read, made of `list` for layers of each kind. */
static gr_decode plan_lists(gr_steps *s, gr_queue *q, const gr_cu_decode *list, uint32_t table_stride)
{
    const gr_cu_slots *k = &s->device.slots;
    gr_decode decode = {.length = list->length,
                        .member = list->member,
                        .group_first = list->group_first,
                        .shared = list->shared,
                        .n_groups = list->n_groups,
                        .max_length = list->max_length,
                        .each = list->each,
                        .n_lists = s->model.n_lists,
                        .ws = s->device.ws};
    for (uint32_t i = 0; i < s->model.n_lists; i++) {
        const gr_cu_heads *h = &s->model.lists[i].heads;
        const uint32_t window = s->model.lists[i].window;
        decode.lists[i] = (gr_decode_list){window, h->heads / h->kv_heads, s->device.work[i]};
        gr_cu_decode_plan(stream_of(q), h, list, window, k->table + (window ? k->window_at : 0), table_stride,
                          s->device.work[i]);
    }
    return decode;
}

/* The first pass of the layer that drafts: it reads all rows of the step e, of which one a slot goes on. */
static void draft_first(gr_steps *s, gr_queue *q, const gr_steps_chunk *c, const gr_extend *step)
{
    const gr_cu_slots *k = &s->device.slots;
    gr_extend e = *step;
    e.ids = k->drawn;
    e.window_at = 0;
    e.held = NULL;
    e.routing = NULL;
    gr_cu_slots_last(stream_of(q), k, c->n);
    c->ahead(c->user, q, &e, NULL,
             &(gr_steps_draw){c->n, k->ahead.last, &s->best, (const uint32_t(*)[2])k->draw, k->ahead.drafted,
                              k->ahead.logprob});
}

/* Another one, a row a slot. */
static void draft_more(gr_steps *s, gr_queue *q, const gr_steps_chunk *c, uint32_t pass)
{
    const gr_cu_slots *k = &s->device.slots;
    const gr_cu_ahead *a = &k->ahead;
    const uint32_t stride = k->each * k->stride;
    gr_cu_slots_ahead(stream_of(q), k, c->n, pass, s->device.orders.member, s->device.orders.group_first);
    const gr_decode decode = plan_lists(s, q,
                                        &(gr_cu_decode){.length = a->length,
                                                        .member = a->member,
                                                        .group_first = a->group_first,
                                                        .shared = s->device.orders.shared,
                                                        .n = c->n,
                                                        .n_groups = c->n,
                                                        .max_length = s->bounds.max_length,
                                                        .each = 1},
                                        stride);
    const gr_extend e = {.n_tokens = c->n,
                         .n_seqs = c->n,
                         .ids = a->drafted + (size_t)(pass - 1) * k->slots,
                         .offset = s->device.offset,
                         .cached = (const uint32_t *)a->position,
                         .block_table = k->table,
                         .table_stride = stride,
                         .position = a->position,
                         .slot = a->kv_slot,
                         .longest = 1,
                         .decode = &decode};
    c->ahead(c->user, q, &e, pass > 1 ? s->device.row : a->last,
             &(gr_steps_draw){c->n, s->device.row, &s->best, (const uint32_t(*)[2])k->draw,
                              a->drafted + (size_t)pass * k->slots, a->logprob});
}

static void one_step(gr_steps *s, gr_queue *q, const gr_steps_chunk *c)
{
    const gr_cu_slots *k = &s->device.slots;
    const uint32_t rows = c->n * k->each;
    const gr_routing routing = {.record = s->device.choices};
    gr_cu_slots_draft(stream_of(q), k, c->n);
    const gr_decode decode = plan_lists(s, q,
                                        &(gr_cu_decode){.length = k->length,
                                                        .member = s->device.orders.member,
                                                        .group_first = s->device.orders.group_first,
                                                        .shared = s->device.orders.shared,
                                                        .n = rows,
                                                        .n_groups = c->n,
                                                        .max_length = s->bounds.max_length,
                                                        .each = k->each},
                                        k->stride);
    const gr_extend e = {.n_tokens = rows,
                         .n_seqs = rows,
                         .ids = k->id,
                         .offset = s->device.offset,
                         .cached = (const uint32_t *)k->position,
                         .block_table = k->table,
                         .table_stride = k->stride,
                         .window_at = k->window_at,
                         .position = k->position,
                         .slot = k->kv_slot,
                         .window_slot = k->window_slot,
                         .longest = 1,
                         .held = k->held,
                         .decode = &decode,
                         .routing = s->device.choices ? &routing : NULL};
    const gr_steps_draw d = {.n = rows,
                             .row = s->device.row,
                             .how = &s->sampling,
                             .draw = (const uint32_t(*)[2])k->draw,
                             .id = k->drawn,
                             .logprob = k->logprob};
    c->step(c->user, q, &e, &d);
    if (s->device.choices)
        gr_cu_slots_choices(stream_of(q), k, s->device.choices, rows * s->bounds.choices,
                            gr_steps_rows(&s->bounds) * s->bounds.choices, s->device.report_choices);
    if (k->ahead.drafted) draft_first(s, q, c, &e);
    gr_cu_slots_advance(stream_of(q), k, c->n);
    for (uint32_t pass = 1; k->ahead.drafted && pass + 1 < k->each; pass++) draft_more(s, q, c, pass);
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

static void run_together(gr_steps *s, gr_queue *q, const gr_steps_chunk *c)
{
    for (uint32_t i = 0; i < s->bounds.chunk; i++) {
        if (c->n)
            one_step(s, q, c);
        else
            c->step(c->user, q, &(gr_extend){0}, &(gr_steps_draw){0});
    }
    note(s, cudaGetLastError(), "a kernel of the rollout");
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

void gr_cuda_steps_run(gr_steps *s, gr_queue *q, uint32_t trip, const gr_steps_chunk *c)
{
    const cudaStream_t st = stream_of(q);
    const uint32_t which = trip % 2;
    const size_t bytes = (size_t)gr_steps_rows(&s->bounds) * s->bounds.chunk * sizeof(int32_t);
    if (c->together && s->error == cudaSuccess) run_together(s, q, c);
    if (c->n && s->error == cudaSuccess) {
        if (!c->together) run_chunk(s, q, c);
        gr_cuda_copy(q, s->host.report_id[which], s->device.slots.report_id, bytes);
        gr_cuda_copy(q, s->host.report_logprob[which], s->device.slots.report_logprob, bytes);
        if (s->device.choices)
            gr_cuda_copy(q, s->host.report_choices[which], s->device.report_choices,
                         bytes / sizeof(int32_t) * s->bounds.choices * sizeof(uint16_t));
    }
    CUDA(s, cudaEventRecord(s->done[which], st));
}

gr_status gr_cuda_steps_report(gr_steps *s, uint32_t trip, gr_steps_report *out, gr_diag *d)
{
    CUDA(s, cudaEventSynchronize(s->done[trip % 2]));
    const uint32_t which = trip % 2;
    *out = (gr_steps_report){s->host.report_id[which], s->host.report_logprob[which],
                             s->host.report_choices[which]};
    return told(s, d);
}
