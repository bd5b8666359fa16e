/* tests/bench/gpu/bench_copies.c: what training state moves at: copies between the arena and the host pool on
 * the product's own queues, whole and in pieces of the sizes that layers have, one way and both ways at once,
 * and on the device; and how long a step waits that sends or reads few bytes meanwhile. Lines of JSON;
 * tests/bench/gpu/torch_work.py copies is the other side.
 */
#include "tests/bench/gpu/timing.h"

enum { QUEUES = 2 };

typedef struct copies {
    char *to[QUEUES];
    const char *from[QUEUES];
    uint64_t bytes, piece;
} copies;

static void copy_all(gr_queue *q, int which, void *arg)
{
    const copies *c = arg;
    for (uint64_t at = 0; at < c->bytes; at += c->piece)
        q->device->type->copy(q, c->to[which] + at, c->from[which] + at, GR_MIN(c->piece, c->bytes - at));
}

static void rate(bench *b, gr_queue *q, int n, const copies *c, int times_counted, const char *row)
{
    copies own = *c;
    print_result(row, (double)times_counted * (double)c->bytes / seconds_of(b, q, n, copy_all, &own) / 1e9,
                 "GB/s");
}

/* Milliseconds that a queue takes for 64 KiB while another has been given 512 MiB the same way: by the engine
 * that makes both, or as ops' own writes and reads go. */
static void beside(bench *b, gr_queue *q, const copies *c, bool in, bool engine, const char *row)
{
    enum { FEW = 64 << 10 };
    const gr_device_type *t = b->dev->type;
    char few[FEW] = {0};
    double x[TIMES];
    for (int i = 0; i < TIMES; i++) {
        uint64_t begin, end;
        t->time_reset(b->dev);
        copy_all(&q[1], 0, (void *)(uintptr_t)c);
        const uint32_t number = t->time_begin(&q[0]);
        if (engine)
            t->copy(&q[0], c->to[1], c->from[1], FEW);
        else if (in)
            t->write(&q[0], c->to[1], few, FEW);
        else
            t->read(&q[0], few, c->from[1], FEW);
        t->time_end(&q[0], number);
        for (int k = 0; k < QUEUES; k++) need(b, t->finish(&q[k], &b->d));
        t->time_read(b->dev, number, &begin, &end);
        x[i] = (double)(end - begin) * 1e-6;
    }
    print_result(row, median(x), "ms");
}

int main(void)
{
    const uint64_t bytes = 2 * GIB;
    bench b = {0};
    bench_open(&b, 2 * bytes, 2 * bytes);
    gr_queue q[QUEUES] = {bench_queue(&b), bench_queue(&b)};
    char *x = bench_take(&b, bytes), *y = bench_take(&b, bytes), *host = b.dev->pool.base,
         *other = host + bytes;
    for (uint64_t i = 0; i < bytes / 8; i++) ((uint64_t *)(void *)host)[i] = i * UINT64_C(0x9e3779b97f4a7c15);
    static const struct {
        uint64_t bytes;
        const char *load, *offload;
    } pieces[] = {
        {2 * GIB, "host to device", "device to host"},
        {GIB / 4, "host to device, pieces of 256 MiB", "device to host, pieces of 256 MiB"},
        {GIB / 32, "host to device, pieces of 32 MiB", "device to host, pieces of 32 MiB"},
    };
    for (size_t i = 0; i < GR_LEN(pieces); i++) {
        rate(&b, q, 1, &(copies){{x}, {host}, bytes, pieces[i].bytes}, 1, pieces[i].load);
        rate(&b, q, 1, &(copies){{other}, {x}, bytes, pieces[i].bytes}, 1, pieces[i].offload);
    }
    rate(&b, q, 2, &(copies){{x, other}, {host, y}, bytes, bytes}, 2, "both ways at once");
    rate(&b, q, 1, &(copies){{y}, {x}, bytes, bytes}, 2, "copy on the device");
    const copies loads = {{x, y}, {host, other}, GIB / 2, GIB / 32},
                 offloads = {{host, other}, {x, y}, GIB / 2, GIB / 32};
    beside(&b, q, &loads, true, true, "64 KiB in beside loads, by their engine");
    beside(&b, q, &loads, true, false, "64 KiB in beside loads, as ops send");
    beside(&b, q, &offloads, false, true, "64 KiB out beside offloads, by their engine");
    beside(&b, q, &offloads, false, false, "64 KiB out beside offloads, as ops read");
    for (int i = 0; i < QUEUES; i++) b.dev->type->queue_close(&q[i]);
    b.dev->type->close(b.dev);
}
