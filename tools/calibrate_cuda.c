/* tools/calibrate_cuda.c: measurements of `graphrun calibrate` on CUDA. */
#include "tools/calibrate.h"

#ifdef GR_CUDA

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ops/kernels/cuda/attention.h"
#include "ops/kernels/cuda/decode_sizes.h"
#include "ops/kernels/cuda/gemm.h"
#include "ops/kernels/cuda/layout.h"
#include "ops/kernels/cuda/steps_layout.h"
#include "ops/pass.h"
#include "runtime/device/device_cuda.h"

enum {
    PRODUCT = 2048,    /* of the products that load cuBLASLt's kernels */
    GRAPH_LAYERS = 32, /* of one step */
    GRAPHS = 8,        /* whose memory is measured */
    MIB = 1 << 20,
    COPIES = 5,
    COPY_BYTES = 512 << 20 /* of a device and way */
};

static uint64_t used(const gr_bench *b)
{
    const uint64_t all = b->dev->type->used(b->dev), arena = gr_align(b->dev->arena.bytes, 2 << 20);
    return all > arena ? all - arena : 0;
}

/* What the device's page tables of the bench's own pool take. */
static uint64_t pool_tables(const gr_hardware *h, const gr_bench *b)
{
    return gr_align((uint64_t)((double)b->dev->pool.bytes * h->pinned), 2 * MIB);
}

static gr_status cuda_failed(cudaError_t e, const char *call, gr_diag *d)
{
    return e == cudaSuccess
               ? GR_OK
               : gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "%s: %s", call, cudaGetErrorString(e));
}

/* Groups of slots that share the begin of their keys; where nothing is shared, one slot a group. */
void gr_bench_decode(gr_bench *b)
{
    if (!b->q.device) return;
    const uint32_t n = b->seqs, size = b->shared ? b->sizes->group : 1, groups = n / size;
    const gr_cu_heads heads = gr_cu_steps_model_of(&b->shape).heads[0];
    uint32_t *list = gr_calloc(n + 1, sizeof(*list));
    b->decode = (gr_decode){.n_groups = groups, .max_length = b->length};
    for (uint32_t i = 0; i < n; i++) list[i] = b->length;
    b->decode.length = gr_bench_place(b, list, n * sizeof(*list));
    for (uint32_t i = 0; i < n; i++) list[i] = i;
    b->decode.member = gr_bench_place(b, list, n * sizeof(*list));
    for (uint32_t i = 0; i <= groups; i++) list[i] = i * size;
    b->decode.group_first = gr_bench_place(b, list, (groups + 1ull) * sizeof(*list));
    for (uint32_t i = 0; i < groups; i++) list[i] = b->shared;
    b->decode.shared = gr_bench_place(b, list, groups * sizeof(*list));
    void *work = gr_bench_place(b, NULL, gr_cu_decode_work_bytes(&heads, n, b->length));
    b->decode.lists[0].work = work;
    b->decode.n_lists = 1;
    b->decode.ws = gr_bench_place(b, NULL, gr_cu_decode_attention_ws(&heads, n, b->length));
    free(list);
    const gr_cu_decode call = {.length = b->decode.length,
                               .member = b->decode.member,
                               .group_first = b->decode.group_first,
                               .shared = b->decode.shared,
                               .n = n,
                               .n_groups = groups,
                               .max_length = b->length};
    gr_cu_decode_plan(b->q.stream, &heads, &call, 0, b->extend.block_table, b->extend.table_stride, work);
    b->extend.decode = &b->decode;
}

/* A product of each form. */
static gr_status load_blas(gr_bench *b, gr_cu_gemm **g, gr_diag *d)
{
    const uint64_t n = PRODUCT;
    gr_status st = gr_cu_gemm_open(g, d);
    b->used = 0;
    gr_bf16 *x = gr_bench_place(b, NULL, n * n * sizeof(*x));
    void *y = gr_bench_place(b, NULL, n * n * sizeof(float)),
         *ws = gr_bench_place(b, NULL, GR_CU_GEMM_WS_BYTES);
    for (int form = 0; form < 3 && !st; form++)
        st = gr_cu_gemm_run(*g, b->q.stream,
                            &(gr_cu_gemm_call){.form = (gr_cu_gemm_form)form,
                                               .m = PRODUCT,
                                               .n = PRODUCT,
                                               .k = PRODUCT,
                                               .a = x,
                                               .b = x,
                                               .lda = n,
                                               .ldb = n,
                                               .ldd = n,
                                               .d = y,
                                               .type = form == GR_CU_GEMM_TN ? GR_CU_F32 : GR_CU_BF16},
                            ws, d);
    return st ? st : gr_queue_finish(&b->q, d);
}

/* The layers of one step, of a paged bench, as a graph that has run once. */
static gr_status make_graph(gr_bench *b, cudaGraphExec_t *out, gr_diag *d)
{
    cudaStream_t stream = b->q.stream;
    cudaGraph_t graph = NULL;
    gr_bench_extend(b); /* once as plain launches: libraries choose their kernels */
    gr_status st = gr_queue_finish(&b->q, d);
    if (st) return st;
    cudaError_t e = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    for (int i = 0; i < GRAPH_LAYERS && e == cudaSuccess; i++) gr_bench_extend(b);
    if (e == cudaSuccess) e = cudaStreamEndCapture(stream, &graph);
    if (e == cudaSuccess) e = cudaGraphInstantiate(out, graph, 0);
    if (e == cudaSuccess) e = cudaGraphLaunch(*out, stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    if (graph) cudaGraphDestroy(graph);
    return cuda_failed(e, "a CUDA graph of a decode step", d);
}

static void launch(gr_bench *b)
{
    if (!b->st)
        b->st =
            cuda_failed(cudaGraphLaunch(b->own, b->q.stream), "a launch of the graph of a decode step", b->d);
}

double gr_calibrate_cuda_decode(gr_bench *b)
{
    cudaGraphExec_t graph = NULL;
    if (!b->st) b->st = make_graph(b, &graph, b->d);
    b->own = graph;
    const double seconds = gr_bench_seconds(b, launch);
    if (graph) cudaGraphExecDestroy(graph);
    return seconds / GRAPH_LAYERS;
}

/* What a layer takes in a graph, by several of them; the first has loaded the kernels. */
static gr_status measure_graphs(gr_hardware *h, gr_bench *b, gr_diag *d)
{
    cudaGraphExec_t graph[1 + GRAPHS] = {NULL};
    uint64_t before = 0;
    gr_bench_open(b, 1024, 32, 256, true);
    gr_status st = GR_OK;
    for (int i = 0; i <= GRAPHS && !st; i++) {
        st = make_graph(b, &graph[i], d);
        if (!i) before = used(b);
    }
    const uint64_t after = used(b);
    for (int i = 0; i <= GRAPHS; i++)
        if (graph[i]) cudaGraphExecDestroy(graph[i]);
    gr_bench_close(b);
    h->layer_graph_bytes = after > before ? (after - before) / (GRAPHS * GRAPH_LAYERS) : 0;
    return st;
}

/* Both passes of a layer, whose kernels, cuDNN's plans among them, are then loaded. */
static gr_status load_layer(gr_bench *b, gr_diag *d)
{
    gr_status st = b->k->attach(&b->q, d);
    if (st) return st;
    gr_bench_open(b, 1024, 4096, b->sizes->short_length, false);
    gr_bench_forward(b);
    gr_bench_backward(b);
    gr_bench_close(b);
    st = gr_queue_finish(&b->q, d);
    return st ? st : b->k->check(&b->q, d);
}

/* Device memory that page-locked host memory takes: 8 bytes for each of its pages. The driver takes it in
 * pieces of 2 MiB, so that what two more gigabytes take tells which size of page it is. */
static gr_status measure_pinned(gr_hardware *h, gr_diag *d)
{
    const size_t bytes = 2048ull * MIB, small = 4 << 10, large = 64 << 10;
    size_t before = 0, after = 0, all;
    void *p = NULL;
    cudaError_t e = cudaMemGetInfo(&before, &all);
    if (e == cudaSuccess) e = cudaHostAlloc(&p, bytes, 0);
    if (e == cudaSuccess) e = cudaMemGetInfo(&after, &all);
    if (p) cudaFreeHost(p);
    h->pinned = 8.0 / (double)(before >= after + bytes / small * 8 / 2 ? small : large);
    return cuda_failed(e, "page-locked memory", d);
}

gr_status gr_calibrate_cuda_overhead(gr_hardware *h, gr_bench *b, gr_diag *d)
{
    gr_cuda_info info;
    gr_cu_gemm *g = NULL;
    gr_status st = gr_cuda_probe(&info, d);
    if (st) return st;
    snprintf(h->name, sizeof(h->name), "%.*s", (int)sizeof(h->name) - 1, info.name);
    for (int i = 0; i < GR_N_LIBRARIES; i++)
        if (i != GR_LIBRARY_COMM) h->part[i] = 0; /* it takes several devices to measure */
    st = measure_pinned(h, d);
    if (st) return st;
    const uint64_t context = used(b) - pool_tables(h, b);
    st = load_blas(b, &g, d);
    const uint64_t blas = used(b) - pool_tables(h, b);
    gr_cu_gemm_close(g);
    if (!st) st = load_layer(b, d);
    const uint64_t layer = used(b) - pool_tables(h, b);
    h->part[GR_LIBRARY_CONTEXT] = context;
    h->part[GR_LIBRARY_BLAS] = blas > context ? blas - context : 0;
    h->part[GR_LIBRARY_DNN] = layer > blas ? layer - blas : 0;
    return st ? st : measure_graphs(h, b, d);
}

/* And what the driver rounds the arena up by, which plans do not. */
void gr_calibrate_cuda_rest(gr_hardware *h, const gr_bench *b)
{
    const uint64_t counted = h->part[GR_LIBRARY_CONTEXT] + h->part[GR_LIBRARY_BLAS] + h->part[GR_LIBRARY_DNN];
    const uint64_t now = used(b) - pool_tables(h, b);
    h->part[GR_LIBRARY_PROCESS] = 2 * MIB + (now > counted ? now - counted : 0);
}

/* ---- attention -------------------------------------------------------------------------------------------
 */

typedef struct attend {
    gr_cu_attention *attention;
    gr_cu_attention_shape shape;
    gr_scores scores;
    gr_cu_sequences seqs;
    gr_bf16 *qkv, *o, *d_o, *dqkv;
    float *stats;
    void *ws;
    uint64_t ws_bytes;
} attend;

static void attend_forward(gr_bench *b)
{
    const attend *a = b->own;
    gr_status st = gr_cu_attention_forward(a->attention, b->q.stream, &a->shape, &a->scores, &a->seqs, a->qkv,
                                           a->o, a->stats, a->ws, a->ws_bytes, b->d);
    if (!b->st) b->st = st;
}

static void attend_backward(gr_bench *b)
{
    const attend *a = b->own;
    gr_status st =
        gr_cu_attention_backward(a->attention, b->q.stream, &a->shape, &a->scores, &a->seqs, a->qkv, a->o,
                                 a->stats, a->d_o, a->dqkv, NULL, a->ws, a->ws_bytes, b->d);
    if (!b->st) b->st = st;
}

/* With room for either order of sums. */
static void place_attention(gr_bench *b, attend *a)
{
    const uint32_t t = b->tokens;
    const gr_attention_desc *d = &gr_layer(&b->shape, 0)->attention;
    const uint64_t width = gr_qkv_width(d), wide = (uint64_t)d->heads * d->head_dim;
    a->shape = gr_cu_attention_shape_of(d, true);
    a->scores = gr_scores_plain(d->head_dim);
    const gr_cu_attention_shape unordered = gr_cu_attention_shape_of(d, false);
    a->ws_bytes = GR_MAX(gr_cu_attention_ws_bytes(&a->shape, t, b->seqs, b->length, true),
                         gr_cu_attention_ws_bytes(&unordered, t, b->seqs, b->length, true));
    a->qkv = gr_bench_random(b, t * width);
    a->dqkv = gr_bench_place(b, NULL, t * width * sizeof(gr_bf16));
    a->o = gr_bench_place(b, NULL, t * wide * sizeof(gr_bf16));
    a->d_o = gr_bench_random(b, t * wide);
    a->stats = gr_bench_place(b, NULL, gr_cu_attention_stats_bytes(&a->shape, t));
    a->ws = gr_bench_place(b, NULL, a->ws_bytes);
    a->seqs = (gr_cu_sequences){.n_seqs = b->seqs, .offset = b->offset, .device_offset = b->packed.offset};
}

gr_status gr_calibrate_cuda_attention(gr_hardware *h, gr_bench *b, gr_diag *d)
{
    const gr_bench_sizes *z = b->sizes;
    attend a = {0};
    gr_status st = gr_cu_attention_open(&a.attention, GR_CU_ATTENTION_AUTO, d);
    for (uint32_t i = 0; i < z->n_lengths && !st; i++) {
        gr_task w = {0};
        gr_bench_open(b, z->attention_width, z->attention_tokens, z->lengths[i], false);
        place_attention(b, &a);
        b->own = &a;
        gr_layer_cost(&w, b->k, &b->shape, 0, b->tokens, b->length, 1);
        const double forward = gr_bench_seconds(b, attend_forward),
                     backward = gr_bench_seconds(b, attend_backward);
        a.shape.deterministic = false;
        h->attention[i] = (gr_attention_rate){
            .length = z->lengths[i],
            .forward = w.cost.attention / forward,
            .backward = 2 * w.cost.attention / backward,
            .unordered = 2 * w.cost.attention / gr_bench_seconds(b, attend_backward),
        };
        gr_bench_close(b);
        st = b->st;
    }
    h->n_attention = z->n_lengths;
    gr_cu_attention_close(a.attention);
    return st;
}

/* ---- memory and copies -----------------------------------------------------------------------------------
 */

gr_status gr_calibrate_cuda_memory(gr_hardware *h, gr_bench *b, gr_diag *d)
{
    enum { TIMES = 8 };
    const uint64_t bytes = b->sizes->copy_bytes;
    b->used = 0;
    char *to = gr_bench_place(b, NULL, bytes), *from = gr_bench_place(b, NULL, bytes);
    for (int i = 0; i < COPIES && !b->st; i++) {
        const uint64_t begin = gr_now_ns();
        for (int k = 0; k < TIMES; k++) b->k->copy(&b->q, to, from, bytes);
        b->st = gr_queue_finish(&b->q, d);
        const double seconds = (double)(gr_now_ns() - begin) / (1e9 * TIMES);
        h->memory_bytes = fmax(h->memory_bytes, 2 * (double)bytes / seconds);
    }
    return b->st;
}

enum { WAYS = 2 }; /* to the device, from it */

typedef struct copier { /* a device as a rank of a run has it */
    int device;
    cudaStream_t stream[WAYS];
    void *there[WAYS], *here[WAYS];
} copier;

static gr_status open_copier(copier *c, int device, gr_diag *d)
{
    c->device = device;
    cudaError_t e = cudaSetDevice(device);
    for (int way = 0; way < WAYS && e == cudaSuccess; way++) {
        e = cudaStreamCreateWithFlags(&c->stream[way], cudaStreamNonBlocking);
        if (e == cudaSuccess) e = cudaMalloc(&c->there[way], COPY_BYTES);
        if (e == cudaSuccess) e = cudaHostAlloc(&c->here[way], COPY_BYTES, 0);
    }
    return cuda_failed(e, "what copies are measured with", d);
}

static void close_copier(copier *c)
{
    cudaSetDevice(c->device);
    for (int way = 0; way < WAYS; way++) {
        if (c->stream[way]) cudaStreamDestroy(c->stream[way]);
        if (c->there[way]) cudaFree(c->there[way]);
        if (c->here[way]) cudaFreeHost(c->here[way]);
    }
}

static cudaError_t copy_at_once(copier *c, uint32_t n, const bool *goes)
{
    cudaError_t e = cudaSuccess;
    for (uint32_t i = 0; i < n && e == cudaSuccess; i++) {
        e = cudaSetDevice(c[i].device);
        if (e == cudaSuccess && goes[0])
            e = cudaMemcpyAsync(c[i].there[0], c[i].here[0], COPY_BYTES, cudaMemcpyHostToDevice,
                                c[i].stream[0]);
        if (e == cudaSuccess && goes[1])
            e = cudaMemcpyAsync(c[i].here[1], c[i].there[1], COPY_BYTES, cudaMemcpyDeviceToHost,
                                c[i].stream[1]);
    }
    for (uint32_t i = 0; i < n; i++)
        for (int way = 0; way < WAYS; way++) {
            cudaError_t done = cudaStreamSynchronize(c[i].stream[way]);
            if (e == cudaSuccess) e = done;
        }
    return e;
}

/* Bytes a second of a device and way: of the best of several tries, until the last of all has ended. */
static gr_status measure_at_once(double *rate, copier *c, uint32_t n, bool to, bool from, gr_diag *d)
{
    for (int i = 0; i < COPIES; i++) {
        const uint64_t begin = gr_now_ns();
        gr_status st = cuda_failed(copy_at_once(c, n, (bool[]){to, from}), "copies of several devices", d);
        if (st) return st;
        *rate = fmax(*rate, 1e9 * COPY_BYTES / (double)(gr_now_ns() - begin));
    }
    return GR_OK;
}

/* Devices that can be used, from the first on, which has to be one. */
static gr_status open_copiers(copier *c, uint32_t most, uint32_t *n, gr_diag *d)
{
    gr_diag quiet;
    gr_status st = GR_OK;
    gr_diag_init(&quiet);
    for (*n = 0; *n < most && !st; *n += !st) {
        st = open_copier(&c[*n], (int)*n, *n ? &quiet : d);
        if (!st) continue;
        cudaGetLastError(); /* else a later call would find it */
        close_copier(&c[*n]);
        c[*n] = (copier){0};
    }
    if (st && *n)
        fprintf(stderr, "device %u cannot be used (%s): copies are measured on %u\n", *n,
                quiet.n ? quiet.messages[0].text : gr_status_str(st), *n);
    gr_diag_release(&quiet);
    return *n ? GR_OK : st;
}

gr_status gr_calibrate_cuda_copies(gr_hardware *h, gr_diag *d)
{
    enum { MOST = 1 << (GR_COPIES_MAX - 1) };
    int visible = 0;
    uint32_t n = 0;
    gr_status st = cuda_failed(cudaGetDeviceCount(&visible), "the number of devices", d);
    if (st) return st;
    copier *c = gr_calloc((size_t)visible + 1, sizeof(*c));
    st = open_copiers(c, (uint32_t)GR_MIN(visible, MOST), &n, d);
    h->n_copies = 0;
    for (uint32_t ranks = 1; ranks <= n && !st; ranks = ranks < n ? GR_MIN(2 * ranks, n) : n + 1) {
        gr_copy_rate *r = &h->copies[h->n_copies++];
        *r = (gr_copy_rate){.ranks = ranks};
        st = measure_at_once(&r->h2d, c, ranks, true, false, d);
        if (!st) st = measure_at_once(&r->d2h, c, ranks, false, true, d);
        if (!st) st = measure_at_once(&r->both, c, ranks, true, true, d);
        r->both = fmin(r->both, fmin(r->h2d, r->d2h));
    }
    for (uint32_t i = 0; i < n; i++) close_copier(&c[i]);
    free(c);
    cudaSetDevice(0);
    return st;
}

#else

static gr_status refused(gr_diag *d)
{
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "this build of graphrun has no device 'cuda'");
}

void gr_bench_decode(gr_bench *b)
{
    (void)b; /* the pool is all that the CPU's attention reads */
}

gr_status gr_calibrate_cuda_overhead(gr_hardware *h, gr_bench *b, gr_diag *d)
{
    (void)h, (void)b;
    return refused(d);
}

gr_status gr_calibrate_cuda_memory(gr_hardware *h, gr_bench *b, gr_diag *d)
{
    (void)h, (void)b;
    return refused(d);
}

gr_status gr_calibrate_cuda_copies(gr_hardware *h, gr_diag *d)
{
    (void)h;
    return refused(d);
}

gr_status gr_calibrate_cuda_attention(gr_hardware *h, gr_bench *b, gr_diag *d)
{
    (void)h, (void)b;
    return refused(d);
}

void gr_calibrate_cuda_rest(gr_hardware *h, const gr_bench *b)
{
    (void)h, (void)b;
}

double gr_calibrate_cuda_decode(gr_bench *b)
{
    (void)b; /* of a CUDA device alone */
    return 0;
}

#endif
