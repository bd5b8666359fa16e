/* graphrun calibrate: measure this machine and write what `--hardware FILE` reads.
 *
 * The device's own kernels are measured, at the shapes that plans ask about. On the CPU the usual of several
 * runs counts, in rounds over all shapes for a machine may be slower for a while; how far rounds differ says
 * how sure the file is. There are as many rounds as a minute has room for. Work is given to a CUDA device in
 * bursts, so that it never waits for the host, as in a run, and the mean counts, once its clocks are what
 * they are in a run: an H200 that was idle runs large products at its highest clock, is held back by its
 * power limit within 0.2 s (a pass of a layer of 1.7B takes 2.49, then 2.85 ms), and by a few parts of a
 * hundred more as it gets hot, within seconds. So it is heated first, and before each measurement it works
 * for as long as its clocks take to come down.
 */
#include "tools/calibrate.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ops/kernels/layer.h"
#include "ops/pass.h"
#include "runtime/device/disk.h"
#include "runtime/run/executor.h"
#include "runtime/base/half.h"
#include "tools/cmd.h"
#include "runtime/base/files.h"
#include "scheduler/cost/cost.h"

enum {
    CACHES = 32 << 20,           /* bytes: weights of this many are not held by those nearest to a core */
    LEAST_NS = 20 * 1000 * 1000, /* of one measurement, all its runs */
    LONG_NS = 100 * 1000 * 1000, /* of a run that is not repeated within a round */
    LEAST_ROUNDS = 2,
    BURST_NS = 5 * 1000 * 1000,
    BURSTS_NS = 30 * 1000 * 1000,
    SETTLE_NS = 400 * 1000 * 1000, /* of what holds the clocks down, until they have come down */
    SETTLED_NS = 200 * 1000 * 1000,
    MANY_TOKENS = 1024, /* of which products are such */
    BURST_MAX = 64,
    LAYERS_MAX = 8, /* on the CPU */
    RUNS_MAX = 1000,
    MILLION = 1 << 20,
    DISK_BYTES = 64 << 20,
    EMPTY_STEPS = 20000,
    STATE_PIECE = 64 << 20,  /* bytes that a disk of state is measured with, */
    STATE_BYTES = 1 << 30,   /* of so many at most */
    STEP_ROWS = 1024,        /* most sequences of a rollout's step that is measured */
    STEP_LENGTH = 16,        /* their length */
    STEP_WEIGHTS = 512 << 20 /* bytes that steps take in turn */
};
#define HEAT_NS   (UINT64_C(8) * 1000 * 1000 * 1000)
#define ROUNDS_NS (UINT64_C(45) * 1000 * 1000 * 1000) /* no round begins after that */

static const gr_bench_sizes sizes_cpu = {
    .rows = {1, 4, 16, 64, 256, 1024, 4096},
    .n_rows = 7,
    .widths = {64, 128, 256, 512, 1024},
    .n_widths = 5,
    .rounds = 5,
    .short_length = 16,
    .lengths = {1024},
    .n_lengths = 1,
    .attention_width = 128,
    .attention_tokens = 1024,
    .pool_length = 1024,
    .slots = 64,
    .head_rows = 64,
    .head_hidden = 64,
    .vocab = 8192,
    .copy_bytes = 64 << 20,
    .arena_bytes = UINT64_C(4) << 30,
};
static const gr_bench_sizes sizes_cuda = {
    .rows = {1, 16, 64, 256, 1024, 4096, 16384},
    .n_rows = 7,
    .widths = {512, 1024, 2048, 4096},
    .n_widths = 4,
    .rounds = 1,
    .short_length = 512,
    .lengths = {256, 512, 1024, 2048, 4096, 16384},
    .n_lengths = 6,
    .attention_width = 2048,
    .attention_tokens = 16384,
    .pool_length = 768,
    .pool_shared = 256,
    .group = 8,
    .slots = 256,
    .head_rows = 1024,
    .head_hidden = 1024,
    .vocab = 131072,
    .copy_bytes = 512 << 20,
    .arena_bytes = UINT64_C(12) << 30,
    .pool_bytes = UINT64_C(1) << 30,
};

/* ---- memory and one layer ------------------------------------------------------------------------------ */

void *gr_bench_place(gr_bench *b, const void *host, uint64_t bytes)
{
    char *p = b->dev->arena.base + b->used;
    b->used += gr_align(bytes, GR_ALIGN);
    assert(b->used <= b->dev->arena.bytes); /* sizes are ours */
    if (host)
        gr_device_write(&b->q, p, host, bytes);
    else
        b->k->zero(&b->q, p, bytes);
    return p;
}

/* A million, over and over. */
void *gr_bench_random(gr_bench *b, uint64_t n)
{
    const uint64_t size = gr_dtype_size(b->k->dtype), block = GR_MIN(n, (uint64_t)MILLION);
    char *host = gr_malloc(block * size), *p = b->dev->arena.base + b->used;
    uint32_t state = 12345;
    for (uint64_t i = 0; i < block; i++) {
        state = state * 1664525 + 1013904223;
        const float x = ((float)(state >> 8) / (1 << 24) - 0.5f) / 8;
        if (size == sizeof(float))
            ((float *)(void *)host)[i] = x;
        else
            ((uint16_t *)(void *)host)[i] = gr_f32_to_bf16(x);
    }
    for (uint64_t at = 0; at < n; at += block) {
        const uint64_t bytes = GR_MIN(block, n - at) * size;
        assert(b->used + at * size + bytes <= b->dev->arena.bytes);
        gr_device_write(&b->q, p + at * size, host, bytes);
    }
    b->used += gr_align(n * size, GR_ALIGN);
    free(host);
    return p;
}

static gr_model_shape shape_of(const gr_bench *b, uint32_t width)
{
    const bool cuda = b->sizes == &sizes_cuda;
    const uint32_t head = cuda ? 128 : width < 256 ? 32 : 64;
    gr_model_shape s = {
        .vocab = b->sizes->vocab, .hidden = width, .layers = 1, .max_positions = 4096, .init_std = 0.02};
    const gr_layer_desc d = gr_layer_plain(width / head, width / head / (cuda ? 2 : 1), head, 3 * width);
    gr_model_of(&s, &d);
    return s;
}

static uint32_t blocks_of(uint32_t tokens)
{
    return (tokens + GR_KV_BLOCK - 1) / GR_KV_BLOCK;
}

/* One new token of each sequence, which are in the pool otherwise. */
static void open_pool(gr_bench *b)
{
    const uint32_t n = b->seqs, stride = blocks_of(b->length);
    uint32_t *cached = gr_calloc(n, 4), *slot = gr_calloc(n, 4), *table = gr_calloc((size_t)n * stride, 4);
    int32_t *position = gr_calloc(n, 4);
    for (uint32_t i = 0; i < n * stride; i++) table[i] = i;
    for (uint32_t i = 0; i < n; i++) {
        cached[i] = b->length - 1;
        position[i] = (int32_t)(b->length - 1);
        slot[i] = table[(i + 1) * stride - 1] * GR_KV_BLOCK + (b->length - 1) % GR_KV_BLOCK;
    }
    b->extend = (gr_extend){.n_tokens = n,
                            .n_seqs = n,
                            .ids = b->packed.ids,
                            .offset = b->packed.offset,
                            .cached = gr_bench_place(b, cached, n * 4ull),
                            .block_table = gr_bench_place(b, table, (uint64_t)n * stride * 4),
                            .table_stride = stride,
                            .position = gr_bench_place(b, position, n * 4ull),
                            .slot = gr_bench_place(b, slot, n * 4ull),
                            .longest = 1};
    b->kv = gr_bench_place(b, NULL, (uint64_t)n * stride * gr_layer_block_bytes(b->k, &b->shape, 0));
    free(cached), free(slot), free(table), free(position);
    gr_bench_decode(b);
}

/* A model has one layer after another, whose weights come from memory where all of them do not fit the
 * caches: one layer over and over would be too fast, most of all with few rows. */
static void place_layers(gr_bench *b, uint64_t bucket, bool paged)
{
    const uint64_t bytes = bucket * gr_dtype_size(b->k->dtype);
    const bool device = b->q.device;
    b->turn = 0;
    b->layers = device ? (paged ? (uint32_t)(STEP_WEIGHTS / bytes + 1) : 1)
                       : (uint32_t)GR_MIN(CACHES / bytes + 1, (uint64_t)LAYERS_MAX);
    b->layer_bytes = gr_align(bytes, GR_ALIGN);
    b->grad_bytes = gr_align(bucket * sizeof(float), GR_ALIGN);
    b->w = gr_bench_random(b, bucket);
    for (uint32_t i = 1; i < b->layers; i++) b->k->copy(&b->q, gr_bench_place(b, NULL, bytes), b->w, bytes);
    if (!paged) b->grad = gr_bench_place(b, NULL, b->layers * b->grad_bytes);
}

static uint32_t next_layer(gr_bench *b)
{
    return b->turn++ % b->layers;
}

static void *weights_of(const gr_bench *b, uint32_t layer)
{
    return (char *)b->w + layer * b->layer_bytes;
}

static const int32_t *place_positions(gr_bench *b)
{
    int32_t *position = gr_calloc(b->tokens, sizeof(*position));
    for (uint32_t i = 0; i < b->seqs; i++)
        for (uint32_t t = b->offset[i]; t < b->offset[i + 1]; t++) position[t] = (int32_t)(t - b->offset[i]);
    const int32_t *placed = gr_bench_place(b, position, b->tokens * sizeof(*position));
    free(position);
    return placed;
}

void gr_bench_open(gr_bench *b, uint32_t width, uint32_t tokens, uint32_t length, bool paged)
{
    const gr_model_shape s = b->shape = shape_of(b, width);
    b->used = 0;
    b->tokens = tokens;
    b->length = GR_MIN(length, paged ? length : tokens);
    b->heavy = paged || tokens >= MANY_TOKENS;
    b->shared = paged && length > b->sizes->pool_shared ? b->sizes->pool_shared : 0;
    b->seqs = paged ? tokens : (tokens + b->length - 1) / b->length;
    const gr_pass_bounds bounds = {
        .tokens = tokens, .seqs = b->seqs, .length = b->length, .threads = b->threads};
    const uint64_t ws = GR_MAX(gr_layer_ws_bytes(b->k, &s, 0, &bounds, GR_LAYER_FORWARD),
                               gr_layer_ws_bytes(b->k, &s, 0, &bounds, GR_LAYER_BACKWARD));
    const uint64_t bucket = gr_bucket_elems(&s, 1), hidden = (uint64_t)tokens * width;
    b->offset = gr_calloc(b->seqs + 1, sizeof(*b->offset));
    for (uint32_t i = 0; i <= b->seqs; i++) b->offset[i] = GR_MIN(i * (paged ? 1 : b->length), tokens);
    place_layers(b, bucket, paged);
    b->x = gr_bench_random(b, hidden), b->dx = gr_bench_random(b, hidden), b->in = gr_bench_random(b, hidden);
    b->acts = gr_bench_place(b, NULL, gr_layer_acts_bytes(b->k, &s, 0, &bounds));
    b->ws = gr_bench_place(b, NULL, GR_MAX(ws, gr_layer_ws_bytes(b->k, &s, 0, &bounds, GR_LAYER_EXTEND)));
    b->packed = (gr_packed){.n_tokens = tokens,
                            .n_seqs = b->seqs,
                            .ids = gr_bench_place(b, NULL, tokens * sizeof(int32_t)),
                            .offset = gr_bench_place(b, b->offset, (b->seqs + 1ull) * sizeof(*b->offset)),
                            .host_offset = b->offset,
                            .position = place_positions(b)};
    if (paged) open_pool(b);
}

void gr_bench_close(gr_bench *b)
{
    free(b->offset);
    b->offset = NULL;
}

void gr_bench_forward(gr_bench *b)
{
    gr_layer_forward(b->k, &b->q, &b->shape, 0, weights_of(b, next_layer(b)), &b->packed, b->x, b->in,
                     b->acts, b->ws);
}

void gr_bench_backward(gr_bench *b)
{
    const uint32_t i = next_layer(b);
    gr_layer_backward(b->k, &b->q, &b->shape, 0, weights_of(b, i), NULL, &b->packed, b->in, b->acts, b->dx,
                      (char *)b->grad + i * b->grad_bytes, GR_F32, b->ws);
}

void gr_bench_extend(gr_bench *b)
{
    gr_layer_extend(b->k, &b->q, &b->shape, 0, weights_of(b, next_layer(b)), &b->extend, b->x, b->kv, b->ws);
}

/* Wait for the device; the first failure is kept. */
static void finish(gr_bench *b)
{
    if (!b->st) b->st = gr_queue_finish(&b->q, b->d);
    if (!b->st && b->k->check) b->st = b->k->check(&b->q, b->d);
}

static uint64_t burst_ns(gr_bench *b, void (*run)(gr_bench *), uint64_t times)
{
    const uint64_t begin = gr_now_ns();
    for (uint64_t i = 0; i < times; i++) run(b);
    finish(b);
    const uint64_t took = gr_now_ns() - begin;
    return GR_MAX(took, UINT64_C(1));
}

static double seconds_of_bursts(gr_bench *b, void (*run)(gr_bench *))
{
    burst_ns(b, run, 1); /* the first one takes longer */
    const uint64_t some = BURST_NS / burst_ns(b, run, 1), times = GR_MAX(1, GR_MIN(BURST_MAX, some));
    const uint64_t settle = b->heavy ? SETTLE_NS : BURSTS_NS, enough = b->heavy ? SETTLED_NS : BURSTS_NS;
    uint64_t warm = 0, all = 0, n = 0;
    for (; warm < settle && !b->st; warm += burst_ns(b, run, times)) continue;
    b->burst_least = INFINITY, b->burst_most = 0;
    for (; all < enough && !b->st; n++) {
        const uint64_t ns = burst_ns(b, run, times);
        b->burst_least = fmin(b->burst_least, (double)ns / (double)times / 1e9);
        b->burst_most = fmax(b->burst_most, (double)ns / (double)times / 1e9);
        all += ns;
    }
    return (double)GR_MAX(all, UINT64_C(1)) / (double)(GR_MAX(n, UINT64_C(1)) * times) / 1e9;
}

/* What takes most power, for long enough that the device is as hot as in a run. */
static void heat(gr_bench *b)
{
    const gr_bench_sizes *z = b->sizes;
    gr_bench_open(b, z->widths[z->n_widths - 1], z->rows[z->n_rows - 1], z->short_length, false);
    gr_bench_forward(b);
    for (uint64_t ns = 0; ns < HEAT_NS && !b->st; ns += burst_ns(b, gr_bench_backward, BURST_MAX)) continue;
    gr_bench_close(b);
}

static int by_ns(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

double gr_bench_seconds(gr_bench *b, void (*run)(gr_bench *))
{
    uint64_t ns[RUNS_MAX], all = 0, n = 0;
    const uint64_t first = burst_ns(b, run, 1); /* kernels are loaded, plans built */
    if (b->q.device) return seconds_of_bursts(b, run);
    if (first > LONG_NS) return (double)first / 1e9;
    while (n < 3 || (all < LEAST_NS && n < RUNS_MAX)) {
        ns[n] = burst_ns(b, run, 1);
        all += ns[n++];
    }
    qsort(ns, n, sizeof(*ns), by_ns); /* the usual run, the one in the middle */
    return (double)ns[n / 2] / 1e9;
}

/* Keeps what the last measurement took, by its name and the bench's sizes; returns it. */
static double keep(gr_bench *b, double seconds, const char *what)
{
    static const char form[] = "%s, %u rows of width %u, length %u";
    if (b->q.device) {
        gr_repeats_add(&b->repeats, b->burst_least, form, what, b->tokens, b->shape.hidden, b->length);
        b->repeats.at--;
    }
    gr_repeats_add(&b->repeats, b->q.device ? b->burst_most : seconds, form, what, b->tokens, b->shape.hidden,
                   b->length);
    return seconds;
}

/* ---- what plans ask about ----------------------------------------------------------------------------- */

/* The cost model's own count of a layer's work, so that rates mean what it takes them for. */
static gr_task layer_work(const gr_bench *b, double length, double times)
{
    gr_task w = {0};
    gr_layer_cost(&w, b->k, &b->shape, 0, b->tokens, length, times);
    return w;
}

/* Bytes of keys and values that a layer of a paged bench reads. */
static double pool_bytes(const gr_bench *b)
{
    const double keys = b->length - b->shared + (b->shared ? (double)b->shared / b->sizes->group : 0);
    return b->seqs * keys * (double)gr_layer_block_bytes(b->k, &b->shape, 0) / GR_KV_BLOCK;
}

/* Seconds of a layer in the step of a rollout. */
static double step_seconds(gr_bench *b)
{
    return b->q.device ? gr_calibrate_cuda_decode(b) : keep(b, gr_bench_seconds(b, gr_bench_extend), "step");
}

/* Of a CUDA device: seconds an operation of a layer's step, but for the keys and values it reads. */
static double measure_step_layer(const gr_hardware *h, gr_bench *b, const gr_rate *rate)
{
    gr_bench_open(b, rate->width, rate->rows, STEP_LENGTH, true);
    const double all = step_seconds(b), rest = all - pool_bytes(b) / h->kv_bytes;
    const double flops = layer_work(b, 0, 1).cost.flops;
    gr_bench_close(b);
    return fmax(rest, all / 4) / flops;
}

/* What attention takes of a pass over a layer, where its rates are known before those of the grid. */
static double attention_seconds(const gr_hardware *h, const gr_bench *b, double times)
{
    gr_task w = layer_work(b, b->length, times);
    gr_hardware known = *h; /* but for the rates that are being measured */
    if (!h->n_attention) return 0;
    known.n_rates = 0;
    known.flops = 1;
    w.cost.flops = w.cost.bytes = 0;
    return (double)(gr_task_ns(&w, &known) - h->step_ns) / 1e9;
}

/* Adds the round's seconds for an operation; see finish_matrix. */
static void measure_matrix(gr_hardware *h, gr_bench *b)
{
    const gr_bench_sizes *z = b->sizes;
    h->n_rates = z->n_rows * z->n_widths;
    for (uint32_t i = 0; i < h->n_rates && !b->st; i++) {
        gr_rate *rate = &h->rates[i];
        rate->rows = z->rows[i / z->n_widths];
        rate->width = z->widths[i % z->n_widths];
        gr_bench_open(b, rate->width, rate->rows, z->short_length, false);
        const double flops = layer_work(b, 0, 1).cost.flops;
        const double forward =
            keep(b, gr_bench_seconds(b, gr_bench_forward), "forward") - attention_seconds(h, b, 1);
        const double backward =
            keep(b, gr_bench_seconds(b, gr_bench_backward), "backward") - attention_seconds(h, b, 2);
        rate->forward += forward / flops;
        rate->backward += backward / (2 * flops);
        gr_bench_close(b);
        const bool apart = b->q.device && rate->rows <= STEP_ROWS;
        rate->decode += apart ? measure_step_layer(h, b, rate) : forward / flops;
    }
}

static void finish_matrix(gr_hardware *h, uint32_t rounds)
{
    h->flops = 0;
    for (uint32_t i = 0; i < h->n_rates; i++) {
        gr_rate *rate = &h->rates[i];
        rate->forward = rounds / rate->forward;
        rate->backward = rounds / rate->backward;
        rate->decode = rounds / rate->decode;
        h->flops = fmax(h->flops, fmax(rate->forward, rate->backward));
    }
}

/* Seconds of a layer over sequences of the short length and of the others. */
typedef struct attention {
    double forward[1 + GR_LENGTHS_MAX], backward[1 + GR_LENGTHS_MAX], flops[1 + GR_LENGTHS_MAX];
} attention;

static void measure_attention(attention *a, gr_bench *b)
{
    const gr_bench_sizes *z = b->sizes;
    for (uint32_t i = 0; i <= z->n_lengths && !b->st; i++) {
        const uint32_t length = i ? z->lengths[i - 1] : z->short_length;
        gr_bench_open(b, z->attention_width, z->attention_tokens, length, false);
        a->forward[i] += keep(b, gr_bench_seconds(b, gr_bench_forward), "forward");
        a->backward[i] += keep(b, gr_bench_seconds(b, gr_bench_backward), "backward");
        a->flops[i] = layer_work(b, length, 1).cost.attention;
        gr_bench_close(b);
    }
}

/* Operations a second, by the time that more of them take. */
static double rate_of_more(const double *operations, const double *seconds, uint32_t i)
{
    return (operations[i] - operations[0]) / fmax(seconds[i] - seconds[0], seconds[i] / 100);
}

static void finish_attention(gr_hardware *h, const attention *a, const gr_bench_sizes *z, uint32_t rounds)
{
    h->n_attention = z->n_lengths;
    for (uint32_t i = 1; i <= z->n_lengths; i++)
        h->attention[i - 1] =
            (gr_attention_rate){.length = z->lengths[i - 1],
                                .forward = rounds * rate_of_more(a->flops, a->forward, i),
                                .backward = 2 * rounds * rate_of_more(a->flops, a->backward, i)};
}

/* Sequences in the pool, short and long ones. */
typedef struct pool {
    double seconds[2], flops[2], bytes[2];
} pool;

static void measure_pool(pool *p, gr_bench *b)
{
    const gr_bench_sizes *z = b->sizes;
    for (int i = 0; i < 2 && !b->st; i++) {
        const uint32_t length = i ? z->pool_length : STEP_LENGTH;
        gr_bench_open(b, z->attention_width, z->slots, length, true);
        p->seconds[i] += step_seconds(b);
        p->flops[i] = layer_work(b, 2.0 * length, 1).cost.attention;
        p->bytes[i] = pool_bytes(b);
        gr_bench_close(b);
    }
}

static void run_head(gr_bench *b)
{
    const gr_head_rows rows = {.n = b->sizes->head_rows,
                               .row = b->head.row,
                               .target = b->head.target,
                               .inv_temperature = 1,
                               .keep = false};
    b->k->head_forward(&b->q, &b->shape, b->in, b->head.lm, b->x, &rows,
                       &(gr_head_stats){.logprob = b->head.logprob}, b->head.ws);
}

/* Seconds of the head at a width, and what the cost model counts for it. */
static double head_seconds(gr_bench *b, uint32_t hidden, gr_task *w)
{
    const uint32_t n = b->sizes->head_rows;
    uint32_t *row = gr_calloc(n, sizeof(*row));
    gr_bench_open(b, hidden, n, b->sizes->short_length, false);
    for (uint32_t i = 0; i < n; i++) row[i] = i;
    b->head.row = gr_bench_place(b, row, n * sizeof(*row));
    b->head.target = gr_bench_place(b, row, n * sizeof(*row));
    b->head.logprob = gr_bench_place(b, NULL, n * sizeof(float));
    b->head.lm = gr_bench_random(b, (uint64_t)b->shape.vocab * b->shape.hidden);
    b->head.ws = gr_bench_place(b, NULL, b->k->head_ws_bytes(&b->shape, n, GR_HEAD_LOGPROB, b->threads));
    *w = (gr_task){0};
    gr_head_cost(w, b->k, &b->shape, n, 1);
    const double seconds = gr_bench_seconds(b, run_head);
    free(row);
    gr_bench_close(b);
    return seconds;
}

/* Logits a second beside their matrix product: at the rate measured for layers, or, on a CUDA device, at one
 * of its own, by the time that a wide model takes more than a narrow one. */
static void measure_head(gr_hardware *h, gr_bench *b)
{
    const gr_bench_sizes *z = b->sizes;
    gr_task w[2];
    double seconds[2] = {head_seconds(b, z->head_hidden, &w[0])};
    h->head = h->logits = 0;
    if (b->q.device) {
        seconds[1] = head_seconds(b, z->widths[z->n_widths - 1], &w[1]);
        h->head = rate_of_more((double[]){w[0].cost.head, w[1].cost.head}, seconds, 1);
    }
    const double logits = w[0].cost.logits;
    w[0].cost.logits = 0;
    h->logits = logits / fmax(seconds[0] - (double)gr_task_ns(&w[0], h) / 1e9, seconds[0] / 10);
}

/* Of the CPU. Adds the round's seconds a byte: read and written as by the optimizer's step, with all threads;
 * and copied, for a copy lane has one. */
static void measure_memory(gr_hardware *h, gr_bench *b)
{
    const uint64_t copy = b->sizes->copy_bytes;
    b->used = 0;
    char *bytes = gr_bench_place(b, NULL, 4 * copy);
    const gr_optim how = {1e-4, 0.9, 0.999, 1e-8, 0.01, 1, 1, GR_OPTIM_ADAMW};
    const gr_optim_range all = {.w = bytes, .g = bytes + copy, .m = bytes + 2 * copy, .v = bytes + 3 * copy};
    double step = 1;
    for (int i = 0; i < 3; i++) {
        uint64_t begin = gr_now_ns();
        b->k->optim_step(&b->q, &how, true, &all, copy / sizeof(float));
        step = fmin(step, (double)(gr_now_ns() - begin) / (7e9 * (double)copy));
    }
    h->memory_bytes += step;
    gr_repeats_add(&b->repeats, step, "memory, read and written");
}

static void copy_one(void *arg, unsigned rank, unsigned n)
{
    const gr_bench *b = arg;
    char *to = b->dev->arena.base + 2 * rank * b->sizes->copy_bytes;
    (void)n;
    memcpy(to, to + b->sizes->copy_bytes, b->sizes->copy_bytes);
}

/* Seconds a byte of so many copies at once, each a thread's own. */
static double copies_seconds(gr_bench *b, unsigned n)
{
    gr_team *team = NULL;
    double least = INFINITY;
    b->used = 0;
    gr_bench_place(b, NULL, 2 * n * b->sizes->copy_bytes);
    if (!b->st) b->st = gr_team_new(&team, n, b->d);
    for (int i = 0; i < 3 && !b->st; i++) {
        const uint64_t begin = gr_now_ns();
        gr_team_run(team, copy_one, b);
        least = fmin(least, (double)(gr_now_ns() - begin) / (1e9 * (double)b->sizes->copy_bytes));
    }
    gr_team_free(team);
    return least;
}

/* Of ranks up to a core for each: of more than that all get no more. Sums of seconds, until finish_copies. */
static void measure_copies(gr_hardware *h, gr_bench *b)
{
    const uint32_t most = GR_MIN(h->devices, b->threads);
    h->n_copies = 0;
    for (uint32_t ranks = 1; ranks <= most && 4 * ranks * b->sizes->copy_bytes <= b->sizes->arena_bytes;
         ranks *= 2) {
        gr_copy_rate *c = &h->copies[h->n_copies++];
        c->ranks = ranks;
        const double one = copies_seconds(b, ranks), both = copies_seconds(b, 2 * ranks);
        gr_repeats_add(&b->repeats, one, "copies of %u ranks", ranks);
        gr_repeats_add(&b->repeats, both, "copies of %u ranks, both ways", ranks);
        c->h2d += one;
        c->both += both;
    }
}

static void finish_copies(gr_hardware *h, uint32_t rounds)
{
    for (uint32_t i = 0; i < h->n_copies; i++) {
        gr_copy_rate *c = &h->copies[i];
        c->h2d = c->d2h = rounds / c->h2d;
        c->both = fmin(c->h2d, rounds / c->both);
    }
}

/* Of a host that has a device: an optimizer step in its memory, with all threads. */
static gr_status measure_host(gr_hardware *h, unsigned threads, gr_diag *d)
{
    enum { ELEMS = 32 << 20 };
    gr_memory m = {0};
    gr_queue q = {0};
    const uint64_t part = ELEMS * sizeof(float);
    gr_status st = gr_memory_take(&m, 4 * part, "the host's memory", d);
    if (!st && threads > 1) st = gr_team_new(&q.team, threads, d);
    if (!st) memset(m.base, 0, m.bytes);
    const gr_optim how = {1e-4, 0.9, 0.999, 1e-8, 0.01, 1, 1, GR_OPTIM_ADAMW};
    const gr_optim_range all = {
        .w = m.base, .g = m.base + part, .m = m.base + 2 * part, .v = m.base + 3 * part};
    for (int i = 0; i < 3 && !st; i++) {
        uint64_t begin = gr_now_ns();
        gr_host_optim_step(&q, GR_F32, &how, true, &all, ELEMS);
        h->host_memory = fmax(i ? h->host_memory : 0, 7e9 * (double)part / (double)(gr_now_ns() - begin));
    }
    gr_team_free(q.team);
    gr_memory_release(&m);
    return st;
}

static gr_status measure_disk(gr_hardware *h, gr_diag *d)
{
    char *bytes = gr_calloc(1, DISK_BYTES), *path = gr_printf(".graphrun-calibrate-%d", (int)getpid());
    uint64_t begin = gr_now_ns();
    gr_status st = gr_file_write(path, bytes, DISK_BYTES, d);
    h->disk = DISK_BYTES * 1e9 / (double)(gr_now_ns() - begin);
    gr_status gone = gr_path_remove(path, d);
    free(path);
    free(bytes);
    return st ? st : gone;
}

/* Pieces of a size that state has, one after another through the whole file; of two rounds the second, which
 * finds the file's blocks on the disk. */
static gr_status measure_pieces(gr_disk *k, uint64_t bytes, char *piece, gr_disk_rate *rate, gr_diag *d)
{
    gr_status st = GR_OK;
    uint64_t begin = 0, written = 0;
    for (int round = 0; round < 2 && !st; round++) {
        begin = gr_now_ns();
        for (uint64_t at = 0; at < bytes && !st; at += STATE_PIECE)
            st = gr_disk_write(k, at, piece, STATE_PIECE, d);
        written = gr_now_ns();
        for (uint64_t at = 0; at < bytes && !st; at += STATE_PIECE)
            st = gr_disk_read(k, at, piece, STATE_PIECE, d);
    }
    rate->write = (double)bytes * 1e9 / (double)(written - begin);
    rate->read = (double)bytes * 1e9 / (double)(gr_now_ns() - written);
    return st;
}

static gr_status measure_latency(gr_disk *k, char *piece, gr_disk_rate *rate, gr_diag *d)
{
    enum { READS = 100 };
    gr_status st = gr_disk_write(k, 0, piece, GR_DISK_BLOCK, d);
    const uint64_t begin = gr_now_ns();
    for (int i = 0; i < READS && !st; i++) st = gr_disk_read(k, 0, piece, GR_DISK_BLOCK, d);
    rate->latency_ns = (gr_now_ns() - begin) / READS;
    return st;
}

/* The disk that --disk names. */
static gr_status measure_state_disk(gr_disk_rate *rate, const gr_request *q, gr_diag *d)
{
    char *folder, *piece = NULL;
    uint64_t bytes;
    gr_disk *k = NULL;
    gr_status st = gr_request_disk(&folder, &bytes, q, d);
    if (!st && !folder) return GR_OK;
    bytes = GR_MIN(bytes, (uint64_t)STATE_BYTES) / STATE_PIECE * STATE_PIECE;
    if (!st && !bytes)
        st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "--disk '%s': 64 MiB are the least to measure with",
                           q->disk);
    if (!st) st = gr_disk_open(&k, folder, bytes, d);
    if (!st) piece = aligned_alloc(GR_DISK_BLOCK, STATE_PIECE);
    if (!st && !piece) st = gr_diag_error(d, (gr_loc){0}, GR_E_NOMEM, "out of memory for 64 MiB");
    if (!st) {
        for (uint64_t i = 0; i < STATE_PIECE; i++) piece[i] = (char)(i * 2654435761u >> 9);
        st = measure_pieces(k, bytes, piece, rate, d);
    }
    if (!st) st = measure_latency(k, piece, rate, d);
    gr_disk_close(k);
    free(piece);
    free(folder);
    return st;
}

static gr_status nothing(void *user, gr_path_id path, uint32_t i, gr_queue *q, gr_diag *d)
{
    (void)user, (void)path, (void)i, (void)q, (void)d;
    return GR_OK;
}

/* A plan of steps that do nothing shows what a step costs. */
static gr_status measure_step(gr_hardware *h, const gr_device_type *device, unsigned threads, gr_diag *d)
{
    gr_arena *memory = gr_arena_new();
    gr_plan *p = gr_arena_alloc(memory, sizeof(*p));
    gr_path *path = &p->paths[GR_PATH_STEADY];
    p->arena = memory;
    path->n = EMPTY_STEPS;
    path->steps = gr_arena_alloc(memory, EMPTY_STEPS * sizeof(*path->steps));
    for (uint32_t i = 0; i < path->n; i++)
        path->steps[i] = (gr_step){.kind = GR_STEP_RUN,
                                   .what = "step",
                                   .node = "node",
                                   .lane = GR_LANE_COMPUTE,
                                   .body_last = GR_NONE};
    const gr_exec_hooks hooks = {.run = nothing};
    gr_executor *e = NULL;
    gr_status st =
        gr_executor_new(&e, p, &hooks, &(gr_exec_options){.device = device, .threads = threads}, d);
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 5 && !st; i++) {
        uint64_t begin = gr_now_ns();
        st = gr_executor_path(e, GR_PATH_STEADY, d);
        const uint64_t took = gr_now_ns() - begin;
        best = GR_MIN(best, took);
    }
    if (!st) h->step_ns = best / EMPTY_STEPS;
    gr_executor_free(e);
    gr_plan_free(p);
    return st;
}

/* What a process takes that runs kernels beside the arena; never less than what is assumed without measuring.
 */
static void measure_overhead(gr_hardware *h, gr_bench *b, uint64_t before)
{
    gr_bench_open(b, b->sizes->widths[0], b->sizes->short_length, b->sizes->short_length, false);
    gr_bench_forward(b);
    gr_bench_backward(b);
    gr_bench_close(b);
    uint64_t arena = gr_memory_resident(&b->dev->arena), after = gr_process_resident();
    h->part[GR_LIBRARY_PROCESS] =
        GR_MAX(h->overhead_bytes, after > before + arena ? after - before - arena : 0);
}

/* The device with its arena, and a queue. */
static gr_status open_device(gr_bench *b, const gr_device_type *type, gr_diag *d)
{
    const gr_device_needs needs = {
        .arena_bytes = b->sizes->arena_bytes, .pool_bytes = b->sizes->pool_bytes, .events = 1};
    gr_status st = type->open(&b->dev, &needs, d);
    if (!st && type->queue_open) st = type->queue_open(b->dev, &b->q, false, d);
    if (!st && !type->queue_open) st = gr_team_new(&b->q.team, b->threads, d);
    return st;
}

static void close_device(gr_bench *b)
{
    if (b->k->detach) b->k->detach(&b->q);
    gr_team_free(b->q.team);
    if (b->q.device) b->dev->type->queue_close(&b->q);
    if (b->dev) b->dev->type->close(b->dev);
}

static gr_status measure_on_cuda(gr_hardware *h, gr_bench *b, gr_diag *d)
{
    gr_status st = gr_calibrate_cuda_memory(h, b, d);
    if (st) return st;
    heat(b);
    return b->st ? b->st : gr_calibrate_cuda_attention(h, b, d);
}

static gr_status measure_all(gr_hardware *h, gr_bench *b, gr_diag *d)
{
    const bool cuda = b->sizes == &sizes_cuda;
    gr_status st = cuda ? gr_calibrate_cuda_overhead(h, b, d) : GR_OK;
    h->flops = h->memory_bytes = h->kv_bytes = h->decode_attention = 0;
    h->n_attention = 0;
    attention packed = {0};
    pool paged = {0};
    for (uint32_t i = 0; i < GR_RATES_MAX; i++) h->rates[i] = (gr_rate){0};
    for (uint32_t i = 0; i < GR_COPIES_MAX; i++) h->copies[i] = (gr_copy_rate){0};
    const uint64_t begin = gr_now_ns();
    uint32_t rounds = 0;
    for (; rounds < b->sizes->rounds && !st && (rounds < LEAST_ROUNDS || gr_now_ns() - begin < ROUNDS_NS);
         rounds++) {
        gr_repeats_round(&b->repeats);
        if (cuda)
            st = measure_on_cuda(h, b, d);
        else
            measure_memory(h, b), measure_copies(h, b);
        measure_pool(&paged, b);
        if (cuda) h->kv_bytes = rate_of_more(paged.bytes, paged.seconds, 1); /* one round: it is all there */
        measure_matrix(h, b);
        if (!cuda) measure_attention(&packed, b);
        if (!st) st = b->st;
    }
    if (st) return st;
    finish_matrix(h, rounds);
    if (!cuda) finish_attention(h, &packed, b->sizes, rounds);
    if (!cuda) {
        h->memory_bytes = rounds / h->memory_bytes;
        finish_copies(h, rounds);
        h->decode_attention = rounds * rate_of_more(paged.flops, paged.seconds, 1);
        h->host_memory = h->memory_bytes; /* the host pool is the same memory, and the kernel the same */
    }
    measure_head(h, b);
    if (cuda) gr_calibrate_cuda_rest(h, b);
    h->overhead_bytes = 0;
    for (int i = 0; i < GR_N_LIBRARIES; i++)
        if (i != GR_LIBRARY_COMM) h->overhead_bytes += h->part[i];
    return b->st;
}

/* How much a file can be relied on. */
typedef struct trust {
    gr_repeats repeats;
    double waited; /* share of the time that threads were ready and others ran */
    double load;   /* of each processor, when measuring began */
} trust;

static gr_status calibrate(gr_hardware *h, const gr_plan_options *o, trust *t, gr_diag *d)
{
    uint64_t before = gr_process_resident();
    const bool cuda = !strcmp(o->kernels->device, "cuda");
    const gr_device_type *type;
    const gr_turns begin = gr_turns_read();
    gr_bench b = {.k = o->kernels, .threads = o->threads, .sizes = cuda ? &sizes_cuda : &sizes_cpu, .d = d};
    *h = o->hardware;
    gr_status st = gr_device_find(&type, b.k->device, d);
    if (!st) st = open_device(&b, type, d); /* first: what it takes is counted */
    if (!st && !cuda) {
        snprintf(h->name, sizeof(h->name), "cpu, %u thread%s", b.threads, b.threads == 1 ? "" : "s");
        measure_overhead(h, &b, before);
    }
    if (!st) st = measure_all(h, &b, d);
    const gr_turns end = gr_turns_read(); /* while the threads are there */
    t->waited = gr_turns_waited(&begin, &end);
    t->repeats = b.repeats;
    close_device(&b);
    if (!st && cuda) st = measure_host(h, b.threads, d);
    if (!st && cuda) st = gr_calibrate_cuda_copies(h, d);
    if (!st) st = measure_step(h, type, b.threads, d);
    return st ? st : measure_disk(h, d);
}

static void print_summary(const gr_hardware *h, const char *path)
{
    const bool cuda = !strcmp(h->device, "cuda");
    const double unit = cuda ? 1e12 : 1e9;
    const char *name = cuda ? "TFLOP/s" : "GFLOP/s";
    uint32_t widths = 1;
    char text[32];
    while (widths < h->n_rates && h->rates[widths].rows == h->rates[0].rows) widths++;
    printf("%s: %s\n", path, h->name);
    printf("  memory      %.1f GB/s, host %.1f, disk %.2f GB/s\n", h->memory_bytes / 1e9,
           h->host_memory / 1e9, h->disk / 1e9);
    if (h->state_disk.read > 0)
        printf("  state disk  read %.2f GB/s, written %.2f GB/s, %.0f us beside\n", h->state_disk.read / 1e9,
               h->state_disk.write / 1e9, (double)h->state_disk.latency_ns / 1e3);
    printf("  copies      GB/s of each of so many ranks to the device, from it, and each of both at once:");
    for (uint32_t i = 0; i < h->n_copies; i++) {
        const gr_copy_rate *c = &h->copies[i];
        printf("%s %u: %.1f %.1f %.1f", i ? "," : "", c->ranks, c->h2d / 1e9, c->d2h / 1e9, c->both / 1e9);
    }
    printf("\n");
    printf("  matrices    %s of a layer: forward, backward and in a rollout's step, by rows and width\n",
           name);
    printf("    %6s", "");
    for (uint32_t c = 0; c < widths; c++) printf(" %20u", h->rates[c].width);
    for (uint32_t i = 0; i < h->n_rates; i++) {
        const gr_rate *r = &h->rates[i];
        if (i % widths == 0) printf("\n    %6u", r->rows);
        printf("  %5.1f %6.1f %6.1f", r->forward / unit, r->backward / unit, r->decode / unit);
    }
    printf("\n  attention   %s, forward and backward, by length:", name);
    for (uint32_t i = 0; i < h->n_attention; i++)
        printf("%s %u: %.1f %.1f", i ? "," : "", h->attention[i].length, h->attention[i].forward / unit,
               h->attention[i].backward / unit);
    if (cuda)
        printf("\n  rollout     keys and values %.1f GB/s; head %.1f %s", h->kv_bytes / 1e9, h->head / unit,
               name);
    else
        printf("\n  rollout     attention %.1f %s", h->decode_attention / unit, name);
    printf("; %.0f million logits/s; a step %llu ns\n", h->logits / 1e6, (unsigned long long)h->step_ns);
    printf("  overhead    %s, and %.1f KiB a captured layer\n", gr_bytes_format(h->overhead_bytes, text),
           (double)h->layer_graph_bytes / 1024);
}

/* What others do now, for those who would rather wait than measure. */
static double say_load(void)
{
    char text[128] = "";
    FILE *f = fopen("/proc/loadavg", "r");
    if (f && !fgets(text, sizeof(text), f)) *text = '\0';
    if (f) fclose(f);
    const unsigned processors = (unsigned)GR_MAX(sysconf(_SC_NPROCESSORS_ONLN), 1L);
    const double load = gr_load_of(text, processors);
    if (load > 0.5)
        fprintf(stderr,
                "note: this machine is busy: in the last minute %.1f tasks shared its %u processors; what is "
                "measured "
                "may be too slow\n",
                load * processors, processors);
    return load;
}

/* What makes a file doubtful. */
static void warn_of_doubts(const trust *t, gr_diag *d)
{
    const double much = 0.05, far = 0.2, usual = gr_repeats_usual(&t->repeats);
    if (t->waited > much)
        gr_diag_warn(
            d, (gr_loc){0},
            "this machine is busy: measuring waited for a processor for %.0f %% of its time, and rates "
            "may come out too low; calibrate again when it is quiet",
            100 * t->waited);
    if (usual > far)
        gr_diag_warn(
            d, (gr_loc){0},
            "repeats of the same measurement differ by %.0f %%: predictions by this file are as unsure; "
            "calibrate again when nothing else runs",
            100 * usual);
}

static void print_trust(const trust *t)
{
    const gr_repeat *worst = gr_repeats_worst(&t->repeats);
    if (worst)
        printf("  repeats     of half of all measurements within %.1f %%; the worst %.0f %%: %s\n",
               100 * gr_repeats_usual(&t->repeats), 100 * gr_repeat_spread(worst), worst->name);
    printf(
        "  host        %.1f %% of the time that measuring took it waited for a processor; load %.1f for each "
        "processor before\n",
        100 * t->waited, t->load);
}

/* Measuring takes minutes: a place that cannot be written is told before. */
static gr_status check_out(const char *path, gr_diag *d)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    char *folder = slash ? gr_strndup(path, (size_t)(slash + 1 - path)) : gr_strdup(".");
    gr_status st =
        path && access(path, W_OK) && access(folder, W_OK)
            ? gr_diag_error(d, (gr_loc){0}, GR_E_IO, "cannot write '%s': %s", path, strerror(errno))
            : GR_OK;
    free(folder);
    return st;
}

int gr_cmd_calibrate(const gr_args *a, gr_diag *d)
{
    gr_plan_options o;
    gr_hardware h;
    gr_str text = {0};
    gr_str said = {0};
    gr_status st = gr_request_options(&o, &a->ask, d);
    if (!st && a->ask.hardware && !a->n_from)
        st =
            gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "--hardware is for --from: this machine is measured");
    if (!st && a->ask.disk && a->n_from)
        st =
            gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "--disk does not go with --from: a disk is measured");
    if (!st) st = check_out(a->ask.out, d);
    if (!st) st = measure_state_disk(&o.hardware.state_disk, &a->ask, d);
    trust sure = {0};
    if (!st && !a->n_from) sure.load = say_load();
    if (!st) st = a->n_from ? gr_calibrate_from(&h, a, &o, &said, d) : calibrate(&h, &o, &sure, d);
    if (!st && !a->n_from) warn_of_doubts(&sure, d);
    int status = a->n_from || st == GR_E_INVALID ? gr_exit_status_input(st) : gr_exit_status(st);
    if (!st) gr_hardware_write(&h, &text);
    if (!st) status = gr_cmd_finish(&text, a->ask.out, d);
    if (!status && a->ask.out) print_summary(&h, a->ask.out);
    if (!status && a->ask.out && !a->n_from) print_trust(&sure);
    if (!status && a->ask.out && said.len)
        printf("  runs        %s took, of what was predicted:\n%s", a->n_from > 1 ? "they" : "it", said.text);
    gr_str_release(&said);
    gr_repeats_release(&sure.repeats);
    return status;
}
