/* graphrun calibrate: measure this machine and write what `--hardware FILE` reads.
 *
 * The device's own kernels are measured, at the shapes that plans ask about; of several runs the fastest
 * counts.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ops/kernels.h"
#include "ops/pass.h"
#include "ops/weights.h"
#include "runtime/executor.h"
#include "tools/cmd.h"

enum {
    SHORT = 16,  /* tokens of a sequence where attention is to be little */
    LONG = 1024, /* and where it is to be much */
    ATTENTION_WIDTH = 128,
    ROUNDS = 5,
    VOCAB = 8192,
    HEAD_ROWS = 64,
    HEAD_HIDDEN = 64,
    LEAST_NS = 20 * 1000 * 1000, /* of one measurement, all its runs */
    COPY_BYTES = 128 << 20,
    DISK_BYTES = 64 << 20,
    EMPTY_STEPS = 20000
};

static const uint32_t rows_measured[] = {1, 4, 16, 64, 256, 1024, 4096};
static const uint32_t widths_measured[] = {64, 128, 256, 512, 1024};

/* ---- one layer and its batch -------------------------------------------------------------------------- */

typedef struct bench {
    const gr_kernels *k;
    gr_queue q;
    unsigned threads;
    gr_model_shape shape;
    uint32_t tokens, seqs, length;
    int32_t *ids, *position;
    uint32_t *offset, *cached, *table, *slot;
    void *w, *grad, *x, *dx, *in, *acts, *ws, *kv;
    gr_packed packed;
    gr_extend extend;
} bench;

static void *buffer(uint64_t bytes)
{
    void *p = aligned_alloc(GR_ALIGN, gr_align(GR_MAX(bytes, (uint64_t)GR_ALIGN), GR_ALIGN));
    if (!p) gr_malloc(SIZE_MAX); /* says so and ends */
    return memset(p, 0, gr_align(GR_MAX(bytes, (uint64_t)GR_ALIGN), GR_ALIGN));
}

static gr_model_shape shape_of(uint32_t width)
{
    uint32_t head = width < 256 ? 32 : 64;
    return (gr_model_shape){.vocab = VOCAB,
                            .hidden = width,
                            .inter = 3 * width,
                            .layers = 1,
                            .heads = width / head,
                            .kv_heads = width / head,
                            .head_dim = head,
                            .max_positions = 2 * LONG,
                            .norm_eps = 1e-6f,
                            .rope_theta = 10000,
                            .init_std = 0.02};
}

static uint32_t blocks_of(uint32_t tokens)
{
    return (tokens + GR_KV_BLOCK - 1) / GR_KV_BLOCK;
}

/* Sequences of `length` tokens; in the pool, of which the last token is new. */
static void bench_open(bench *b, uint32_t width, uint32_t tokens, uint32_t length, bool paged)
{
    gr_model_shape s = b->shape = shape_of(width);
    b->tokens = tokens;
    b->length = GR_MIN(length, paged ? length : tokens);
    b->seqs = paged ? tokens : (tokens + b->length - 1) / b->length;
    const gr_pass_bounds bounds = {tokens, b->seqs, b->length, b->threads};
    uint64_t ws = GR_MAX(b->k->layer_ws_bytes(&s, &bounds, false), b->k->layer_ws_bytes(&s, &bounds, true));
    uint64_t bucket = gr_bucket_elems(&s, 1), hidden = (uint64_t)tokens * width * sizeof(float);
    b->w = buffer(bucket * sizeof(float)), b->grad = buffer(bucket * sizeof(float));
    gr_weights_random_bucket(NULL, &s, 1, 1, b->w);
    b->x = buffer(hidden), b->dx = buffer(hidden), b->in = buffer(hidden);
    b->acts = buffer(b->k->acts_bytes(&s, &bounds));
    b->ws = buffer(GR_MAX(ws, b->k->extend_ws_bytes(&s, &bounds)));
    b->ids = buffer(tokens * sizeof(*b->ids));
    b->offset = buffer((b->seqs + 1ull) * sizeof(*b->offset));
    for (uint32_t i = 0; i <= b->seqs; i++) b->offset[i] = GR_MIN(i * (paged ? 1 : b->length), tokens);
    for (uint32_t i = 0; i < tokens * width; i++) ((float *)b->x)[i] = (float)(i % 7) / 7 - 0.4f;
    b->packed = (gr_packed){b->tokens, b->seqs, b->ids, b->offset, b->offset};
    uint32_t stride = blocks_of(b->length);
    b->cached = buffer(b->seqs * sizeof(*b->cached)), b->slot = buffer(tokens * sizeof(*b->slot));
    b->position = buffer(tokens * sizeof(*b->position));
    b->table = buffer((uint64_t)b->seqs * stride * sizeof(*b->table));
    for (uint32_t i = 0; i < b->seqs; i++) b->cached[i] = b->length - 1;
    for (uint32_t i = 0; i < b->seqs * stride; i++) b->table[i] = i;
    b->kv = buffer(paged ? (uint64_t)b->seqs * stride * b->k->kv_block_bytes(&s) : 0);
    for (uint32_t i = 0; paged && i < b->seqs; i++) {
        b->position[i] = (int32_t)(b->length - 1);
        b->slot[i] = b->table[(i + 1) * stride - 1] * GR_KV_BLOCK + (b->length - 1) % GR_KV_BLOCK;
    }
    b->extend = (gr_extend){b->tokens, b->seqs,     b->ids,  b->offset, b->cached, b->table,
                            stride,    b->position, b->slot, 1,         NULL};
}

static void bench_close(bench *b)
{
    void *all[] = {b->w,   b->grad,   b->x,      b->dx,    b->in, b->acts,     b->ws,
                   b->ids, b->offset, b->cached, b->table, b->kv, b->position, b->slot};
    for (size_t i = 0; i < GR_LEN(all); i++) free(all[i]);
}

static void run_forward(bench *b)
{
    b->k->layer_forward(&b->q, &b->shape, b->w, &b->packed, b->x, b->in, b->acts, b->ws);
}

static void run_backward(bench *b)
{
    b->k->layer_backward(&b->q, &b->shape, b->w, &b->packed, b->in, b->acts, b->dx, b->grad, GR_F32, b->ws);
}

static void run_extend(bench *b)
{
    b->k->layer_extend(&b->q, &b->shape, b->w, &b->extend, b->x, b->kv, b->ws);
}

/* Seconds of the fastest run. */
static double fastest(bench *b, void (*run)(bench *))
{
    uint64_t best = UINT64_MAX, all = 0;
    run(b);
    for (int i = 0; i < 3 || (all < LEAST_NS && i < 1000); i++) {
        uint64_t begin = gr_now_ns();
        run(b);
        uint64_t ns = gr_now_ns() - begin;
        best = GR_MIN(best, ns);
        all += ns;
    }
    return (double)GR_MAX(best, (uint64_t)1) / 1e9;
}

/* ---- what plans ask about ----------------------------------------------------------------------------- */

/* The cost model's own count of a layer's work, so that rates mean what it takes them for. */
static gr_work layer_work(const bench *b, double length, double times)
{
    gr_work w = {0};
    gr_layer_cost(&w, b->k, &b->shape, b->tokens, length, times);
    return w;
}

/* Adds the round's seconds for an operation; see finish_matrix. */
static void measure_matrix(gr_hardware *h, bench *b)
{
    h->n_rates = GR_LEN(rows_measured) * GR_LEN(widths_measured);
    for (uint32_t i = 0; i < h->n_rates; i++) {
        gr_rate *rate = &h->rates[i];
        rate->rows = rows_measured[i / GR_LEN(widths_measured)];
        rate->width = widths_measured[i % GR_LEN(widths_measured)];
        bench_open(b, rate->width, rate->rows, SHORT, false);
        double flops = layer_work(b, 0, 1).flops;
        rate->forward += fastest(b, run_forward) / flops;
        rate->backward += fastest(b, run_backward) / (2 * flops);
        bench_close(b);
    }
}

static void finish_matrix(gr_hardware *h)
{
    h->flops = 0;
    for (uint32_t i = 0; i < h->n_rates; i++) {
        gr_rate *rate = &h->rates[i];
        rate->forward = ROUNDS / rate->forward;
        rate->backward = ROUNDS / rate->backward;
        h->flops = fmax(h->flops, fmax(rate->forward, rate->backward));
    }
}

/* A layer over sequences that are short and long, read as a batch or from the pool. */
typedef struct attention {
    bool paged;
    double flops[2], seconds[2];
} attention;

static void measure_attention(attention *a, bench *b)
{
    for (int i = 0; i < 2; i++) {
        uint32_t length = i ? LONG : SHORT;
        bench_open(b, ATTENTION_WIDTH, a->paged ? 64 : LONG, length, a->paged);
        a->seconds[i] += fastest(b, a->paged ? run_extend : run_forward) / ROUNDS;
        a->flops[i] = layer_work(b, (a->paged ? 2.0 : 1.0) * length, 1).attention;
        bench_close(b);
    }
}

/* By the time that long sequences take more than short ones. */
static double attention_rate(const attention *a)
{
    return (a->flops[1] - a->flops[0]) / fmax(a->seconds[1] - a->seconds[0], a->seconds[1] / 100);
}

typedef struct head_bench {
    bench b;
    void *lm;
    uint32_t row[HEAD_ROWS];
    int32_t target[HEAD_ROWS];
    float logprob[HEAD_ROWS];
} head_bench;

static void run_head(bench *b)
{
    head_bench *t = (head_bench *)(void *)b;
    const gr_head_rows rows = {HEAD_ROWS, t->row, t->target, 1};
    b->k->head_forward(&b->q, &b->shape, b->in, t->lm, b->x, &rows, &(gr_head_stats){.logprob = t->logprob},
                       b->ws);
}

/* Logits a second, beside their matrix product at the rate measured. */
static double logits_rate(const gr_hardware *h, const bench *of)
{
    head_bench *t = gr_calloc(1, sizeof(*t));
    t->b = (bench){.k = of->k, .q = of->q, .threads = of->threads};
    bench_open(&t->b, HEAD_HIDDEN, HEAD_ROWS, SHORT, false);
    t->lm = buffer((uint64_t)VOCAB * HEAD_HIDDEN * sizeof(float));
    free(t->b.ws);
    t->b.ws = buffer(of->k->head_ws_bytes(&t->b.shape, HEAD_ROWS, of->threads));
    for (uint32_t i = 0; i < HEAD_ROWS; i++) t->row[i] = i, t->target[i] = (int32_t)i;
    gr_work w = {0};
    gr_head_cost(&w, of->k, &t->b.shape, HEAD_ROWS, 1);
    double logits = w.logits, seconds = fastest(&t->b, run_head);
    w.logits = 0;
    double rest = seconds - (double)gr_work_ns(&w, h) / 1e9;
    free(t->lm);
    bench_close(&t->b);
    free(t);
    return logits / fmax(rest, seconds / 10);
}

/* Adds the round's seconds a byte: read and written as by the optimizer's step, with all threads; and copied,
 * for a copy lane has one. */
static void measure_memory(gr_hardware *h, bench *b)
{
    char *bytes = buffer(4ull * COPY_BYTES);
    const gr_adamw how = {1e-4, 0.9, 0.999, 1e-8, 0.01, 1, 1};
    const gr_adamw_range all = {
        .w = bytes, .g = bytes + COPY_BYTES, .m = bytes + 2 * COPY_BYTES, .v = bytes + 3 * COPY_BYTES};
    double step = 1, copy = 1;
    for (int i = 0; i < 3; i++) {
        uint64_t begin = gr_now_ns();
        b->k->adamw(&b->q, &how, true, &all, COPY_BYTES / sizeof(float));
        uint64_t middle = gr_now_ns();
        memcpy(bytes, bytes + COPY_BYTES, COPY_BYTES);
        step = fmin(step, (double)(middle - begin) / (7e9 * COPY_BYTES));
        copy = fmin(copy, (double)(gr_now_ns() - middle) / (1e9 * COPY_BYTES));
    }
    h->memory_bytes += step / ROUNDS;
    h->h2d += copy / ROUNDS;
    free(bytes);
}

static gr_status measure_disk(gr_hardware *h, gr_diag *d)
{
    char *bytes = buffer(DISK_BYTES), *path = gr_printf(".graphrun-calibrate-%d", (int)getpid());
    uint64_t begin = gr_now_ns();
    gr_status st = gr_file_write(path, bytes, DISK_BYTES, d);
    h->disk = DISK_BYTES * 1e9 / (double)(gr_now_ns() - begin);
    gr_status gone = gr_path_remove(path, d);
    free(path);
    free(bytes);
    return st ? st : gone;
}

static gr_status nothing(void *user, gr_path_id path, uint32_t i, gr_queue *q, gr_diag *d)
{
    (void)user, (void)path, (void)i, (void)q, (void)d;
    return GR_OK;
}

/* A plan of steps that do nothing shows what a step costs. */
static gr_status measure_step(gr_hardware *h, unsigned threads, gr_diag *d)
{
    gr_pool *pool = gr_pool_new();
    gr_plan *p = gr_pool_alloc(pool, sizeof(*p));
    gr_path *path = &p->paths[GR_PATH_STEADY];
    p->pool = pool;
    path->n = EMPTY_STEPS;
    path->steps = gr_pool_alloc(pool, EMPTY_STEPS * sizeof(*path->steps));
    for (uint32_t i = 0; i < path->n; i++)
        path->steps[i] = (gr_step){.kind = GR_STEP_RUN,
                                   .what = "step",
                                   .node = "node",
                                   .lane = GR_LANE_COMPUTE,
                                   .body_last = GR_NONE};
    const gr_exec_hooks hooks = {.run = nothing};
    gr_executor *e = NULL;
    gr_status st = gr_executor_new(&e, p, &hooks, &(gr_exec_options){.threads = threads}, d);
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 5 && !st; i++) {
        uint64_t begin = gr_now_ns();
        st = gr_executor_path(e, GR_PATH_STEADY, d);
        best = GR_MIN(best, gr_now_ns() - begin);
    }
    if (!st) h->step_ns = best / EMPTY_STEPS;
    gr_executor_free(e);
    gr_plan_free(p);
    return st;
}

/* What a process takes that runs kernels beside the arena; never less than what is assumed without measuring.
 */
static void measure_overhead(gr_hardware *h, bench *b, uint64_t before)
{
    bench_open(b, widths_measured[0], SHORT, SHORT, false);
    run_forward(b);
    run_backward(b);
    bench_close(b);
    uint64_t after = gr_process_resident();
    h->library[GR_LIBRARY_PROCESS] = GR_MAX(h->overhead_bytes, after > before ? after - before : 0);
    h->overhead_bytes = h->library[GR_LIBRARY_PROCESS];
}

static gr_status calibrate(gr_hardware *h, const gr_kernels *k, unsigned threads, gr_diag *d)
{
    uint64_t before = gr_process_resident();
    bench b = {.k = k, .threads = threads};
    gr_status st = gr_hardware_find(h, "cpu", d);
    if (!st) st = gr_team_new(&b.q.team, threads, d);
    if (!st) st = measure_step(h, threads, d);
    if (st) return st;
    snprintf(h->name, sizeof(h->name), "cpu, %u thread%s", threads, threads == 1 ? "" : "s");
    measure_overhead(h, &b, before);
    h->memory_bytes = h->h2d = 0;
    attention packed = {.paged = false}, paged = {.paged = true};
    for (int round = 0; round < ROUNDS; round++) {
        measure_memory(h, &b);
        measure_matrix(h, &b);
        measure_attention(&packed, &b);
        measure_attention(&paged, &b);
    }
    finish_matrix(h);
    h->memory_bytes = 1 / h->memory_bytes;
    h->h2d = h->d2h = 1 / h->h2d;
    h->attention = attention_rate(&packed);
    h->decode_attention = attention_rate(&paged);
    h->logits = logits_rate(h, &b);
    gr_team_free(b.q.team);
    return measure_disk(h, d);
}

static void print_summary(const gr_hardware *h, const char *path)
{
    printf("%s: %s\n", path, h->name);
    printf("  memory      %.1f GB/s, copies %.1f GB/s, disk %.2f GB/s\n", h->memory_bytes / 1e9, h->h2d / 1e9,
           h->disk / 1e9);
    printf("  matrices    GFLOP/s of a layer, forward and backward, by rows of the batch and width\n");
    printf("    %6s", "");
    for (size_t c = 0; c < GR_LEN(widths_measured); c++) printf(" %13u", widths_measured[c]);
    for (uint32_t i = 0; i < h->n_rates; i++) {
        if (i % GR_LEN(widths_measured) == 0) printf("\n    %6u", h->rates[i].rows);
        printf("  %5.1f %6.1f", h->rates[i].forward / 1e9, h->rates[i].backward / 1e9);
    }
    printf("\n  attention   %.1f GFLOP/s, decoding %.1f; %.0f million logits/s; a step %llu ns\n",
           h->attention / 1e9, h->decode_attention / 1e9, h->logits / 1e6, (unsigned long long)h->step_ns);
}

int gr_cmd_calibrate(const gr_args *a, gr_diag *d)
{
    gr_plan_options o;
    gr_hardware h;
    gr_str text = {0};
    gr_status st = gr_cmd_plan_options(&o, a, d);
    if (!st) st = calibrate(&h, o.kernels, o.threads, d);
    if (st) return gr_exit_status(st);
    gr_hardware_write(&h, &text);
    int status = gr_cmd_finish(&text, a->out, d);
    if (!status && a->out) print_summary(&h, a->out);
    return status;
}
