/* runtime/device/device_cuda.c: the CUDA device: arena, streams, events, copies. */
#include "runtime/device/device_cuda.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/device/move.h"

enum { HALF_BYTES = 8 << 20, TIMES_MAX = 1 << 15 };

/* Driver calls that the runtime library has no name for; found at run time, so that the program starts where
 * there is no driver. */
typedef struct driver {
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*unreserve)(CUdeviceptr, size_t);
    CUresult (*granularity)(size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                       unsigned long long);
    CUresult (*release)(CUmemGenericAllocationHandle);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    CUresult (*error_name)(CUresult, const char **);
} driver;

typedef struct cuda_device {
    gr_device base;
    driver driver;
    int ordinal;
    CUmemGenericAllocationHandle arena_handle;
    bool have_handle, mapped;
    bool locked;         /* the host pool */
    cudaEvent_t *events; /* [n_events] of mark and follow */
    uint32_t n_events;
    /* times */
    cudaStream_t clock;
    cudaEvent_t base_event;
    uint64_t base_ns;
    cudaEvent_t *times;     /* [2 TIMES_MAX] begin and end; made as they are needed, then kept */
    uint32_t n_made;        /* pairs */
    _Atomic uint32_t taken; /* pairs */
    pthread_mutex_t making;
    /* the first call that failed; what comes after it may only repeat it */
    _Atomic int error; /* cudaError_t */
    _Atomic(const char *) call;
} cuda_device;

/* A page-locked buffer in two halves: while the device reads one, the host fills the other. */
typedef struct ring {
    char *base;
    size_t at; /* within the current half */
    int half;
    cudaEvent_t free[2]; /* when the device has read what a half held */
} ring;

static cuda_device *device_of(const gr_queue *q)
{
    return (cuda_device *)q->device;
}

static gr_status failed(cudaError_t e, const char *what, gr_diag *d)
{
    if (e == cudaSuccess) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, e == cudaErrorMemoryAllocation ? GR_E_NOMEM : GR_E_FAILED,
                         "%s: %s (%s)", what, cudaGetErrorString(e), cudaGetErrorName(e));
}

/* Note the first failure; whether e is none. */
static bool did(cuda_device *dev, cudaError_t e, const char *call)
{
    int none = cudaSuccess;
    if (e == cudaSuccess) return true;
    if (atomic_compare_exchange_strong(&dev->error, &none, (int)e)) atomic_store(&dev->call, call);
    (void)cudaGetLastError(); /* this thread's own record of it */
    return false;
}
#define DID(dev, name, ...) did((dev), name(__VA_ARGS__), #name)

/* Errors of running work: the context is lost, and they are told by whichever call comes next. */
static bool is_late(cudaError_t e)
{
    switch (e) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
        return true;
    default:
        return false;
    }
}

static gr_status tell(gr_queue *q, const char *seen, gr_diag *d)
{
    cuda_device *dev = device_of(q);
    const cudaError_t e = (cudaError_t)atomic_load(&dev->error);
    const char *call = atomic_load(&dev->call), *step = q->at.step, *op = q->at.op;
    if (e == cudaSuccess) return GR_OK;
    q->at.told = true;
    return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "%s%s%s%s%s%s%s: %s (%s)%s", step ? "step '" : "",
                         step ? step : "", step ? "'" : "", op ? ", op " : "", op ? op : "", step ? ": " : "",
                         seen   ? seen
                         : call ? call
                                : "CUDA",
                         cudaGetErrorString(e), cudaGetErrorName(e),
                         is_late(e) ? "; the device is lost: this step or one shortly before it did it, and "
                                      "CUDA_LAUNCH_BLOCKING=1 finds which"
                                    : "");
}

/* ---- the arena ------------------------------------------------------------------------------------------
 */

static gr_status driver_failed(const driver *v, CUresult e, const char *what, gr_diag *d)
{
    if (e == CUDA_SUCCESS) return GR_OK;
    const char *name = NULL;
    v->error_name(e, &name);
    return gr_diag_error(d, (gr_loc){0}, e == CUDA_ERROR_OUT_OF_MEMORY ? GR_E_NOMEM : GR_E_FAILED, "%s: %s",
                         what, name ? name : "unknown error");
}

static gr_status find_driver(driver *v, gr_diag *d)
{
    const struct {
        const char *name;
        void *at;
    } calls[] = {
        {"cuMemAddressReserve", &v->reserve},
        {"cuMemAddressFree", &v->unreserve},
        {"cuMemGetAllocationGranularity", &v->granularity},
        {"cuMemCreate", &v->create},
        {"cuMemRelease", &v->release},
        {"cuMemMap", &v->map},
        {"cuMemUnmap", &v->unmap},
        {"cuMemSetAccess", &v->set_access},
        {"cuGetErrorName", &v->error_name},
    };
    for (size_t i = 0; i < GR_LEN(calls); i++) {
        void *call = NULL;
        enum cudaDriverEntryPointQueryResult found;
        cudaError_t e =
            cudaGetDriverEntryPointByVersion(calls[i].name, &call, 12000, cudaEnableDefault, &found);
        if (e != cudaSuccess) return failed(e, calls[i].name, d);
        if (!call) return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "the driver lacks %s", calls[i].name);
        memcpy(calls[i].at, &call, sizeof(call)); /* a function's address, found as data */
    }
    return GR_OK;
}

static CUmemAllocationProp arena_prop(const cuda_device *dev)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = dev->ordinal}};
}

static gr_status take_arena(cuda_device *dev, uint64_t bytes, gr_diag *d)
{
    const driver *v = &dev->driver;
    CUmemAllocationProp prop = arena_prop(dev);
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t step;
    CUdeviceptr at = 0;
    if (!bytes) return GR_OK;
    CUresult e = v->granularity(&step, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (e) return driver_failed(v, e, "cuMemGetAllocationGranularity", d);
    bytes = gr_align(bytes, step);
    e = v->reserve(&at, bytes, step, 0, 0);
    if (e) return driver_failed(v, e, "cuMemAddressReserve of the arena", d);
    dev->base.arena = (gr_memory){(char *)(uintptr_t)at, bytes};
    e = v->create(&dev->arena_handle, bytes, &prop, 0);
    if (e) {
        char text[32];
        gr_diag_note(d, (gr_loc){0}, "the arena is %s", gr_bytes_format(bytes, text));
        return driver_failed(v, e, "cuMemCreate of the arena", d);
    }
    dev->have_handle = true;
    e = v->map(at, bytes, 0, dev->arena_handle, 0);
    if (e) return driver_failed(v, e, "cuMemMap of the arena", d);
    dev->mapped = true;
    return driver_failed(v, v->set_access(at, bytes, &access, 1), "cuMemSetAccess of the arena", d);
}

static void drop_arena(cuda_device *dev)
{
    gr_memory *m = &dev->base.arena;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)m->base;
    if (dev->mapped) dev->driver.unmap(at, m->bytes);
    if (dev->have_handle) dev->driver.release(dev->arena_handle);
    if (m->base) dev->driver.unreserve(at, m->bytes);
    *m = (gr_memory){0};
}

static void drop_pool(cuda_device *dev)
{
    if (dev->locked) cudaHostUnregister(dev->base.pool.base);
    gr_memory_release(&dev->base.pool);
}

/* ---- open and close -------------------------------------------------------------------------------------
 */

/* Before CUDA's first call: libraries load each kernel when it is first used, whatever the environment says.
 * All of theirs at once would be gigabytes, and what a process takes beside its arena would depend on it. */
static void load_lazily(void)
{
    gr_setenv("CUDA_MODULE_LOADING", "LAZY", true);
}

gr_status gr_cuda_probe(gr_cuda_info *out, gr_diag *d)
{
    load_lazily();
    struct cudaDeviceProp p;
    size_t free_bytes, bytes;
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaSuccess && !n) e = cudaErrorNoDevice;
    if (e != cudaSuccess) return failed(e, "no CUDA device can be used", d);
    e = cudaGetDeviceProperties(&p, 0);
    if (e == cudaSuccess) e = cudaMemGetInfo(&free_bytes, &bytes);
    if (e != cudaSuccess) return failed(e, "the CUDA device does not answer", d);
    *out = (gr_cuda_info){.bytes = bytes,
                          .free_bytes = free_bytes,
                          .major = p.major,
                          .minor = p.minor,
                          .multiprocessors = p.multiProcessorCount};
    memcpy(out->name, p.name, GR_MIN(sizeof(out->name), sizeof(p.name)));
    out->name[sizeof(out->name) - 1] = '\0';
    return GR_OK;
}

static void cuda_close(gr_device *base)
{
    cuda_device *dev = (cuda_device *)base;
    if (!dev) return;
    for (uint32_t i = 0; i < dev->n_events; i++)
        if (dev->events[i]) cudaEventDestroy(dev->events[i]);
    for (uint32_t i = 0; i < 2 * dev->n_made; i++) cudaEventDestroy(dev->times[i]);
    if (dev->base_event) cudaEventDestroy(dev->base_event);
    if (dev->clock) cudaStreamDestroy(dev->clock);
    drop_arena(dev);
    drop_pool(dev);
    pthread_mutex_destroy(&dev->making);
    free(dev->events);
    free(dev->times);
    free(dev);
}

static void touch_part(void *arg, unsigned rank, unsigned n)
{
    const gr_memory *m = arg;
    uint64_t first, last;
    gr_team_range(m->bytes, 2 << 20, rank, n, &first, &last);
    memset(m->base + first, 0, last - first);
}

/* cudaHostAlloc touches its pages one by one, at 3 GB/s: tens of seconds of a large model's state. So the
 * pool's are touched by several threads, and page-locked after that. */
static gr_status take_pool(cuda_device *dev, uint64_t bytes, gr_diag *d)
{
    gr_memory *m = &dev->base.pool;
    gr_team *team = NULL;
    if (!bytes) return GR_OK;
    gr_status st = gr_memory_take(m, bytes, "the host pool", d);
    if (st) return st;
    char bus[32];
    if (cudaDeviceGetPCIBusId(bus, sizeof(bus), dev->ordinal) == cudaSuccess)
        gr_memory_prefer_node(m, gr_pci_numa_node("", bus));
    madvise(m->base, m->bytes, MADV_HUGEPAGE); /* where the system has them */
    st = gr_team_new(&team, (unsigned)GR_MIN(GR_MAX(sysconf(_SC_NPROCESSORS_ONLN), 1), 16), d);
    if (!st) gr_team_run(team, touch_part, m);
    gr_team_free(team);
    if (!st)
        st = failed(cudaHostRegister(m->base, m->bytes, cudaHostRegisterPortable | cudaHostRegisterMapped),
                    "cudaHostRegister of the host pool", d);
    dev->locked = !st;
    void *there = NULL; /* kernels read and write it by the host's addresses: see gr_cuda_copy */
    if (!st) st = failed(cudaHostGetDevicePointer(&there, m->base, 0), "cudaHostGetDevicePointer", d);
    if (!st && there != m->base)
        st = gr_diag_error(d, (gr_loc){0}, GR_E_FAILED,
                           "the device does not reach page-locked memory by the host's addresses");
    return st;
}

static gr_status make_events(cuda_device *dev, uint32_t n, gr_diag *d)
{
    gr_status st = GR_OK;
    dev->events = gr_calloc(n, sizeof(cudaEvent_t));
    for (dev->n_events = 0; dev->n_events < n && !st; dev->n_events++)
        st = failed(cudaEventCreateWithFlags(&dev->events[dev->n_events], cudaEventDisableTiming),
                    "cudaEventCreate", d);
    return st;
}

static void set_clock(cuda_device *dev)
{
    cudaEventRecord(dev->base_event, dev->clock);
    cudaEventSynchronize(dev->base_event);
    dev->base_ns = gr_now_ns();
}

static gr_status cuda_open(gr_device **out, const gr_device_needs *needs, gr_diag *d)
{
    load_lazily();
    cuda_device *dev = gr_calloc(1, sizeof(*dev));
    dev->base.type = &gr_device_cuda;
    pthread_mutex_init(&dev->making, NULL);
    dev->times = gr_calloc(2 * (size_t)TIMES_MAX, sizeof(cudaEvent_t));
    gr_status st = failed(cudaSetDevice(dev->ordinal), "cudaSetDevice", d);
    if (!st) st = failed(cudaFree(NULL), "the CUDA context", d);
    if (!st) st = find_driver(&dev->driver, d);
    if (!st) st = make_events(dev, needs->events, d);
    if (!st) st = failed(cudaEventCreate(&dev->base_event), "cudaEventCreate", d);
    if (!st)
        st = failed(cudaStreamCreateWithFlags(&dev->clock, cudaStreamNonBlocking), "cudaStreamCreate", d);
    if (!st) st = take_arena(dev, needs->arena_bytes, d);
    if (!st) st = take_pool(dev, needs->pool_bytes, d);
    if (st) {
        cuda_close(&dev->base);
        return st;
    }
    set_clock(dev);
    *out = &dev->base;
    return GR_OK;
}

static uint64_t cuda_used(gr_device *dev)
{
    size_t free_bytes, bytes;
    (void)dev;
    return cudaMemGetInfo(&free_bytes, &bytes) == cudaSuccess ? bytes - free_bytes : 0;
}

/* ---- queues ---------------------------------------------------------------------------------------------
 */

static void queue_close(gr_queue *q)
{
    ring *r = q->own;
    if (r) {
        if (r->base) cudaFreeHost(r->base);
        for (int i = 0; i < 2; i++)
            if (r->free[i]) cudaEventDestroy(r->free[i]);
        free(r);
    }
    if (q->stream) cudaStreamDestroy(q->stream);
    q->device = NULL;
    q->own = q->stream = NULL;
}

static gr_status queue_open(gr_device *dev, gr_queue *q, bool host_lane, gr_diag *d)
{
    q->device = dev;
    if (host_lane) return GR_OK;
    ring *r = q->own = gr_calloc(1, sizeof(*r));
    cudaStream_t stream = NULL;
    void *base = NULL;
    gr_status st = failed(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate", d);
    q->stream = stream;
    if (!st) st = failed(cudaHostAlloc(&base, 2 * (size_t)HALF_BYTES, 0), "cudaHostAlloc", d);
    r->base = base;
    for (int i = 0; i < 2 && !st; i++)
        st = failed(cudaEventCreateWithFlags(&r->free[i], cudaEventDisableTiming), "cudaEventCreate", d);
    return st;
}

static void copy(gr_queue *q, void *to, const void *from, uint64_t bytes)
{
    DID(device_of(q), cudaMemcpyAsync, to, from, bytes, cudaMemcpyDefault, q->stream);
}

/* Room for bytes (at most a half) that the device is not reading any more. */
static char *ring_take(gr_queue *q, size_t bytes)
{
    ring *r = q->own;
    if (r->at + bytes > HALF_BYTES) {
        DID(device_of(q), cudaEventRecord, r->free[r->half], q->stream);
        r->half ^= 1;
        r->at = 0;
        DID(device_of(q), cudaEventSynchronize, r->free[r->half]); /* at once where it was never recorded */
    }
    char *at = r->base + (size_t)r->half * HALF_BYTES + r->at;
    r->at += gr_align(bytes, 256);
    return at;
}

/* Between ordinary memory and a ring: by all threads of the queue's team, for one moves less than a link
 * does. */
typedef struct host_copy {
    char *to;
    const char *from;
    size_t bytes;
} host_copy;

static void copy_part(void *arg, unsigned rank, unsigned n)
{
    const host_copy *c = arg;
    uint64_t first, last;
    gr_team_range(c->bytes, 64 << 10, rank, n, &first, &last);
    memcpy(c->to + first, c->from + first, last - first);
}

static void copy_on_host(const gr_queue *q, void *to, const void *from, size_t bytes)
{
    gr_team_run(bytes < 1 << 20 ? NULL : q->team, copy_part, &(host_copy){to, from, bytes});
}

void gr_cuda_copy(gr_queue *q, void *to, const void *from, uint64_t bytes)
{
    if (bytes <= GR_CU_MOVE_MAX)
        gr_cu_move(q->stream, to, from, bytes);
    else
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, q->stream);
}

static void queue_write(gr_queue *q, void *device, const void *host, uint64_t bytes)
{
    for (uint64_t at = 0, n; at < bytes; at += n) {
        n = GR_MIN(bytes - at, (uint64_t)HALF_BYTES);
        char *room = ring_take(q, n);
        copy_on_host(q, room, (const char *)host + at, n);
        gr_cuda_copy(q, (char *)device + at, room, n);
    }
}

static void queue_read(gr_queue *q, void *host, const void *device, uint64_t bytes)
{
    for (uint64_t at = 0, n; at < bytes; at += n) {
        n = GR_MIN(bytes - at, (uint64_t)HALF_BYTES);
        char *room = ring_take(q, n);
        gr_cuda_copy(q, room, (const char *)device + at, n);
        if (DID(device_of(q), cudaStreamSynchronize, q->stream))
            copy_on_host(q, (char *)host + at, room, n);
        else
            memset((char *)host + at, 0,
                   n); /* the step goes on to its end: with numbers that are none of another's */
    }
}

static void mark(gr_queue *q, uint32_t event)
{
    if (q->stream) DID(device_of(q), cudaEventRecord, device_of(q)->events[event], q->stream);
}

static void follow(gr_queue *q, uint32_t event)
{
    cuda_device *dev = device_of(q);
    if (q->stream)
        DID(dev, cudaStreamWaitEvent, q->stream, dev->events[event], 0);
    else
        DID(dev, cudaEventSynchronize, dev->events[event]);
}

static gr_status check(gr_queue *q, gr_diag *d)
{
    did(device_of(q), cudaGetLastError(), "a kernel's launch");
    return tell(q, NULL, d);
}

static gr_status finish(gr_queue *q, gr_diag *d)
{
    if (q->stream) DID(device_of(q), cudaStreamSynchronize, q->stream);
    return tell(q, NULL, d);
}

static gr_status lost(gr_queue *q, const char *seen, gr_diag *d)
{
    cuda_device *dev = device_of(q);
    const cudaError_t e = cudaStreamSynchronize(dev->clock); /* idle: what it tells is the context's error */
    if (is_late(e)) did(dev, e, "cudaStreamSynchronize");
    return is_late((cudaError_t)atomic_load(&dev->error)) ? tell(q, seen, d) : GR_OK;
}

/* Calls of nothing where no profiler is attached. */
static void range(const char *name)
{
    if (name)
        nvtxRangePushA(name);
    else
        nvtxRangePop();
}

/* ---- times ----------------------------------------------------------------------------------------------
 */

static bool make_times(cuda_device *dev, uint32_t number)
{
    bool ok = true;
    pthread_mutex_lock(&dev->making);
    while (ok && dev->n_made <= number) {
        cudaEvent_t *pair = dev->times + 2 * (size_t)dev->n_made;
        ok = cudaEventCreate(&pair[0]) == cudaSuccess && cudaEventCreate(&pair[1]) == cudaSuccess;
        dev->n_made += ok;
    }
    pthread_mutex_unlock(&dev->making);
    return ok;
}

static uint32_t time_begin(gr_queue *q)
{
    cuda_device *dev = device_of(q);
    if (!q->stream || atomic_load(&dev->taken) >= TIMES_MAX) return UINT32_MAX;
    uint32_t number = atomic_fetch_add(&dev->taken, 1);
    if (number >= TIMES_MAX || !make_times(dev, number)) return UINT32_MAX;
    cudaEventRecord(dev->times[2 * (size_t)number], q->stream);
    return number;
}

static void time_end(gr_queue *q, uint32_t number)
{
    cudaEventRecord(device_of(q)->times[2 * (size_t)number + 1], q->stream);
}

static uint64_t since_base(const cuda_device *dev, cudaEvent_t e)
{
    float ms = 0;
    cudaEventElapsedTime(&ms, dev->base_event, e);
    return dev->base_ns + (uint64_t)((double)ms * 1e6);
}

static void time_read(gr_device *base, uint32_t number, uint64_t *begin_ns, uint64_t *end_ns)
{
    const cuda_device *dev = (const cuda_device *)base;
    *begin_ns = since_base(dev, dev->times[2 * (size_t)number]);
    *end_ns = since_base(dev, dev->times[2 * (size_t)number + 1]);
}

static void time_reset(gr_device *base)
{
    cuda_device *dev = (cuda_device *)base;
    atomic_store(&dev->taken, 0);
    set_clock(dev); /* near what it will be compared with: times are counted in fp32 milliseconds */
}

const gr_device_type gr_device_cuda = {.name = "cuda",
                                       .open = cuda_open,
                                       .close = cuda_close,
                                       .used = cuda_used,
                                       .queue_open = queue_open,
                                       .queue_close = queue_close,
                                       .copy = copy,
                                       .write = queue_write,
                                       .read = queue_read,
                                       .mark = mark,
                                       .follow = follow,
                                       .finish = finish,
                                       .check = check,
                                       .lost = lost,
                                       .range = range,
                                       .time_begin = time_begin,
                                       .time_end = time_end,
                                       .time_read = time_read,
                                       .time_reset = time_reset};
