/* runtime/device/device.h: a device as the executor sees it: one arena, one host pool, and queues of work.
 *
 * The arena is one range of device memory, taken once; plans give offsets into it. The host pool is one range
 * of host memory (pinned on CUDA), taken once. On the CPU device both are anonymous
 * mappings, whose pages the system gives on first touch: so the process grows by what is really touched.
 *
 * A queue is the device side of one lane: work given to it runs in order. On the CPU device work runs at
 * once, on the calling thread and the queue's team of threads, and the functions that order queues do
 * nothing. On CUDA a queue is a stream: work is only enqueued, and queues wait for each other by events,
 * never the host; but the queue of the host lane has no stream, and what follows an event there waits for it.
 *
 * Threads: a queue belongs to one thread at a time; arenas may be used by all lanes at once (the plan orders
 * them). Everything else of a device may be called from any thread.
 */
#ifndef GR_RUNTIME_DEVICE_DEVICE_H
#define GR_RUNTIME_DEVICE_DEVICE_H

#include "runtime/base/base.h"
#include "runtime/base/threads.h"

#include <string.h>

typedef struct gr_memory { /* one mapping */
    char *base;
    uint64_t bytes;
} gr_memory;

typedef struct gr_device gr_device;

/* What a queue is given work for; texts that outlive it. NULL: not known. */
typedef struct gr_queue_place {
    const char *step, *op;
    bool told; /* the device has told of its failure there */
} gr_queue_place;

typedef struct gr_tp_group gr_tp_group; /* runtime/comm/comm.h */

typedef struct gr_queue {
    gr_team *team;      /* CPU device: the threads that kernels run on; NULL runs them on the caller alone */
    gr_device *device;  /* NULL: the CPU device */
    void *stream;       /* CUDA: cudaStream_t; NULL on the host lane */
    void *own;          /* what the device keeps with a queue */
    void *context;      /* what the device's kernels keep with a queue (ops/kernels/kernels.h) */
    gr_tp_group *peers; /* the ranks of its tensor-parallel group; NULL: layers are whole */
    gr_tp_group *sharers; /* the ranks of its context group; NULL: sequences are not shared but by peers */
    gr_tp_group *holders; /* the ranks that have the other experts; NULL: all are here */
    gr_queue_place at;    /* for messages */
    uint64_t waits;       /* calls of gr_queue_finish so far */
} gr_queue;

typedef struct gr_device_needs {
    uint64_t arena_bytes, pool_bytes;
    uint32_t events; /* numbers that mark and follow will be given are below it */
} gr_device_needs;

typedef struct gr_device_type {
    const char *name; /* "cpu", "cuda" */
    gr_status (*open)(gr_device **out, const gr_device_needs *needs, gr_diag *d);
    void (*close)(gr_device *dev);
    /* Bytes of device memory in use, as the system counts them: on the CPU device, growth of the process
     * since open, less what of the host pool is resident. */
    uint64_t (*used)(gr_device *dev);

    /* All below: NULL where work runs at once. */
    gr_status (*queue_open)(gr_device *dev, gr_queue *q, bool host_lane, gr_diag *d);
    void (*queue_close)(gr_queue *q);
    void (*copy)(gr_queue *q, void *to, const void *from, uint64_t bytes);
    void (*write)(gr_queue *q, void *device, const void *host, uint64_t bytes);
    void (*read)(gr_queue *q, void *host, const void *device, uint64_t bytes);
    void (*mark)(gr_queue *q, uint32_t event);   /* the event comes when all work so far is done */
    void (*follow)(gr_queue *q, uint32_t event); /* what comes next waits for it, as last marked */
    gr_status (*finish)(gr_queue *q, gr_diag *d);
    /* Whether a call has failed so far: what reads then gave is zeros, and nothing after it counts. */
    gr_status (*check)(gr_queue *q, gr_diag *d);
    /* After a failure: whether the device itself is lost, so that every later call fails too. Then one
     * message, with the step, the op and the call; seen: where it was noticed, NULL: in a call of the
     * device's own. */
    gr_status (*lost)(gr_queue *q, const char *seen, gr_diag *d);
    /* What the calling thread does from now on, for profilers; NULL ends the innermost. */
    void (*range)(const char *name);
    /* Times of steps: begin returns a number for end (UINT32_MAX: not measured); all are in nanoseconds from
     * the clock of gr_now_ns, to be read after finish of all queues; reading empties the list. */
    uint32_t (*time_begin)(gr_queue *q);
    void (*time_end)(gr_queue *q, uint32_t number);
    void (*time_read)(gr_device *dev, uint32_t number, uint64_t *begin_ns, uint64_t *end_ns);
    void (*time_reset)(gr_device *dev);
} gr_device_type;

struct gr_device {
    const gr_device_type *type;
    gr_memory arena, pool;
};

extern const gr_device_type gr_device_cpu;

/* By name; GR_E_INVALID where this build has none of that name. */
GR_NODISCARD gr_status gr_device_find(const gr_device_type **out, const char *name, gr_diag *d);

/* Copy between host memory of an op and the arena or the host pool, in the queue's order. write: the host
 * memory may be used again at once; read returns when the bytes are there. */
static inline void gr_device_write(gr_queue *q, void *device, const void *host, uint64_t bytes)
{
    if (q->device)
        q->device->type->write(q, device, host, bytes);
    else
        memcpy(device, host, bytes);
}

static inline void gr_device_read(gr_queue *q, void *host, const void *device, uint64_t bytes)
{
    if (q->device)
        q->device->type->read(q, host, device, bytes);
    else
        memcpy(host, device, bytes);
}

/* Wait until all work of the queue is done: before the host reads what kernels wrote into the host pool, or
 * writes what they read. */
GR_NODISCARD static inline gr_status gr_queue_finish(gr_queue *q, gr_diag *d)
{
    q->waits++;
    return q->device ? q->device->type->finish(q, d) : GR_OK;
}

/* Take bytes of address space (0 is fine). GR_E_NOMEM with a message where the system refuses. */
GR_NODISCARD gr_status gr_memory_take(gr_memory *m, uint64_t bytes, const char *what, gr_diag *d);
void gr_memory_release(gr_memory *m);

/* The NUMA node that a PCI device ("0000:4B:00.0", in either case) is attached to, -1 where the system does
 * not say. root: before the path of /sys; "" but for tests. */
int gr_pci_numa_node(const char *root, const char *bus);
/* Pages that are not there yet come from this node while it has any: copies between it and its devices do not
 * cross the link between sockets, which all of them share. A wish: where the system refuses it, or node is
 * -1, nothing is said. */
void gr_memory_prefer_node(const gr_memory *m, int node);

/* Bytes of the mapping that are resident now (mincore), and of the whole process (/proc/self/statm). */
uint64_t gr_memory_resident(const gr_memory *m);
uint64_t gr_process_resident(void);

#endif
