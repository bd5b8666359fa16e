/* tests/bench/gpu/bench_copies.c: what training state moves at: copies between the arena and the host pool on
 * the product's own queues, whole and in pieces of the sizes that layers have, one way and both ways at once,
 * and on the device. Lines of JSON; tests/bench/gpu/torch_work.py copies is the other side.
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
    for (int i = 0; i < QUEUES; i++) b.dev->type->queue_close(&q[i]);
    b.dev->type->close(b.dev);
}
