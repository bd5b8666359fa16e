/* tests/bench/gpu/timing.h: what the GPU benchmarks in C share: the product's own CUDA device, times by its
 * events.
 *
 * Results are lines of JSON for tests/bench/gpu/bench.py. Exit status 77 where there is no device.
 */
#ifndef GR_BENCH_GPU_TIMING_H
#define GR_BENCH_GPU_TIMING_H

#include <stdio.h>
#include <stdlib.h>

#include "runtime/device/device.h"

#define GIB (UINT64_C(1) << 30)

typedef struct bench {
    gr_device *dev;
    gr_diag d;
    uint64_t used; /* bytes of the arena that are given out */
} bench;

static inline void need(bench *b, gr_status st)
{
    if (!st) return;
    for (size_t i = 0; i < b->d.n; i++) fprintf(stderr, "%s\n", b->d.messages[i].text);
    exit(1);
}

static inline void bench_open(bench *b, uint64_t arena_bytes, uint64_t pool_bytes)
{
    const gr_device_type *cuda;
    gr_diag_init(&b->d);
    if (gr_device_find(&cuda, "cuda", &b->d) ||
        cuda->open(&b->dev, &(gr_device_needs){arena_bytes, pool_bytes, 0}, &b->d)) {
        for (size_t i = 0; i < b->d.n; i++) fprintf(stderr, "%s\n", b->d.messages[i].text);
        exit(77);
    }
}

static inline gr_queue bench_queue(bench *b)
{
    gr_queue q = {0};
    need(b, b->dev->type->queue_open(b->dev, &q, false, &b->d));
    return q;
}

static inline void *bench_take(bench *b, uint64_t bytes)
{
    char *p = b->dev->arena.base + b->used;
    b->used += gr_align(bytes, 256);
    if (b->used > b->dev->arena.bytes) abort();
    return p;
}

static inline int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum { TIMES = 9 };

static inline double median(double *x)
{
    qsort(x, TIMES, sizeof(*x), by_size);
    return x[TIMES / 2];
}

/* Seconds from the first begin to the last end of work that body gives to n queues; the median of TIMES,
 * after two. */
static inline double seconds_of(bench *b, gr_queue *q, int n, void (*body)(gr_queue *q, int which, void *arg),
                                void *arg)
{
    const gr_device_type *t = b->dev->type;
    double x[TIMES];
    for (int i = -2; i < TIMES; i++) {
        uint32_t number[4];
        uint64_t first = UINT64_MAX, last = 0;
        t->time_reset(b->dev);
        for (int k = 0; k < n; k++) number[k] = t->time_begin(&q[k]);
        for (int k = 0; k < n; k++) body(&q[k], k, arg);
        for (int k = 0; k < n; k++) t->time_end(&q[k], number[k]);
        for (int k = 0; k < n; k++) {
            uint64_t begin, end;
            need(b, t->finish(&q[k], &b->d));
            t->time_read(b->dev, number[k], &begin, &end);
            first = GR_MIN(first, begin);
            last = GR_MAX(last, end);
        }
        if (i >= 0) x[i] = (double)(last - first) * 1e-9;
    }
    return median(x);
}

/* One of `body`'s runs, in seconds. */
static inline double once(bench *b, gr_queue *q, void (*body)(gr_queue *q, int which, void *arg), void *arg)
{
    const gr_device_type *t = b->dev->type;
    uint64_t begin, end;
    t->time_reset(b->dev);
    const uint32_t number = t->time_begin(q);
    body(q, 0, arg);
    t->time_end(q, number);
    need(b, t->finish(q, &b->d));
    t->time_read(b->dev, number, &begin, &end);
    return (double)(end - begin) * 1e-9;
}

/* Uniform in [-1, 1]: the speed of products depends on what is multiplied, so zeros would not do. */
static inline uint16_t random_value(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + 1;
    const float x = (float)(int32_t)(*state >> 32) * 0x1p-31f;
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return (uint16_t)(bits >> 16);
}

enum { PATTERN = 1 << 24 };

/* n random bf16 values, a pattern of 16 million again and again: drawing them all takes longer than the
 * benchmark.
 */
static inline void *random_values(bench *b, gr_queue *q, uint64_t n, uint64_t seed)
{
    uint16_t *p = bench_take(b, n * sizeof(*p)), *host = gr_malloc(PATTERN * sizeof(*host));
    const uint64_t first = GR_MIN(n, (uint64_t)PATTERN);
    for (uint64_t i = 0; i < first; i++) host[i] = random_value(&seed);
    gr_device_write(q, p, host, first * sizeof(*p));
    for (uint64_t at = first; at < n; at += first)
        b->dev->type->copy(q, p + at, p, GR_MIN(first, n - at) * sizeof(*p));
    need(b, gr_queue_finish(q, &b->d));
    free(host);
    return p;
}

static inline void print_result(const char *row, double value, const char *unit)
{
    printf("{\"row\": \"%s\", \"side\": \"ours\", \"value\": %.6g, \"unit\": \"%s\"}\n", row, value, unit);
    fflush(stdout);
}

#endif
