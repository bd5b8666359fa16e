/* runtime/device.h: a device as the executor sees it: one arena, one host pool, and queues of work.
 *
 * The arena is one range of device memory, taken once; plans give offsets into it. The host pool is one range
 * of host memory (pinned where that means something), taken once. On the CPU device both are anonymous
 * mappings, whose pages the system gives on first touch: so the process grows by what is really touched.
 *
 * A queue is the device side of one lane: work given to it runs in order. On the CPU device work runs at
 * once, on the calling thread and the queue's team of threads.
 *
 * Threads: a queue belongs to one thread at a time; arenas may be used by all lanes at once (the plan orders
 * them).
 */
#ifndef GR_RUNTIME_DEVICE_H
#define GR_RUNTIME_DEVICE_H

#include "runtime/base.h"
#include "runtime/threads.h"

#include <string.h>

typedef struct gr_queue {
    gr_team *team; /* CPU device: the threads that kernels run on; NULL runs them on the caller alone */
    void *stream;  /* CUDA device: its cudaStream_t */
} gr_queue;

/* Copy between host memory of an op and the arena, in the queue's order; read returns when the bytes are
 * there. */
static inline void gr_device_write(gr_queue *q, void *device, const void *host, uint64_t bytes)
{
    (void)q;
    memcpy(device, host, bytes);
}

static inline void gr_device_read(gr_queue *q, void *host, const void *device, uint64_t bytes)
{
    (void)q;
    memcpy(host, device, bytes);
}

typedef struct gr_memory { /* one mapping */
    char *base;
    uint64_t bytes;
} gr_memory;

/* Take bytes of address space (0 is fine). GR_E_NOMEM with a message where the system refuses. */
GR_NODISCARD gr_status gr_memory_take(gr_memory *m, uint64_t bytes, const char *what, gr_diag *d);
void gr_memory_release(gr_memory *m);

/* Bytes of the mapping that are resident now (mincore), and of the whole process (/proc/self/statm). */
uint64_t gr_memory_resident(const gr_memory *m);
uint64_t gr_process_resident(void);

#endif
