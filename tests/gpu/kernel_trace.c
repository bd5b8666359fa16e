/* tests/gpu/kernel_trace.c: a library that says where a process's time on the device goes, kernel by kernel.
 *
 * CUDA loads it where CUDA_INJECTION64_PATH names it, and calls InitializeInjection; it asks CUPTI (found at
 * run time, LD_LIBRARY_PATH) for every kernel, those of graphs one by one. At exit the file that
 * GR_KERNEL_TRACE names gets a line for each (name, grid, block), most time first: how often it ran, its
 * median and total time, and the median time that the device had nothing to run before it. What CUPTI takes
 * for itself lengthens the gaps; times of whole steps are to be taken without it.
 */
#include <cupti.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFER = 8 << 20, NAME = 120 };

typedef struct run {
    uint64_t start, end, gap;
    const char *name;
    int32_t grid[3], block, shared, registers;
} run;

static struct {
    run *run;
    size_t n, cap;
    pthread_mutex_t lock;
    FILE *file;
    CUptiResult (*next)(uint8_t *, size_t, CUpti_Activity **);
    CUptiResult (*flush)(uint32_t);
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void keep(const CUpti_ActivityKernel10 *k)
{
    if (all.n == all.cap) {
        all.cap = all.cap ? 2 * all.cap : 1 << 16;
        all.run = realloc(all.run, all.cap * sizeof(*all.run));
        if (!all.run) abort();
    }
    all.run[all.n++] = (run){.start = k->start,
                             .end = k->end,
                             .name = strdup(k->name ? k->name : "?"),
                             .grid = {k->gridX, k->gridY, k->gridZ},
                             .block = k->blockX * k->blockY * k->blockZ,
                             .shared = k->staticSharedMemory + k->dynamicSharedMemory,
                             .registers = k->registersPerThread};
}

static void CUPTIAPI on_full(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    CUpti_Activity *a = NULL;
    (void)context, (void)stream, (void)size;
    pthread_mutex_lock(&all.lock);
    while (valid && all.next(buffer, valid, &a) == CUPTI_SUCCESS)
        if (a->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) keep((const void *)a);
    pthread_mutex_unlock(&all.lock);
    free(buffer);
}

static void CUPTIAPI on_empty(uint8_t **buffer, size_t *size, size_t *max_records)
{
    *size = BUFFER;
    *buffer = aligned_alloc(64, BUFFER);
    if (!*buffer) abort();
    *max_records = 0; /* as many as fit */
}

static int by_start(const void *a, const void *b)
{
    const run *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

static int by_kind(const void *a, const void *b)
{
    const run *x = a, *y = b;
    const int name = strcmp(x->name, y->name), grid = memcmp(x->grid, y->grid, sizeof(x->grid));
    return name ? name : grid ? grid : x->block - y->block;
}

static int by_number(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

typedef struct kind {
    const run *first;
    size_t n;
    uint64_t total, median, gap;
} kind;

static int by_total(const void *a, const void *b)
{
    const kind *x = a, *y = b;
    return (x->total < y->total) - (x->total > y->total);
}

static kind kind_of(const run *first, size_t n, uint64_t *room)
{
    kind k = {.first = first, .n = n};
    for (size_t i = 0; i < n; i++) {
        room[i] = first[i].end - first[i].start;
        k.total += room[i];
    }
    qsort(room, n, sizeof(*room), by_number);
    k.median = room[n / 2];
    for (size_t i = 0; i < n; i++) room[i] = first[i].gap;
    qsort(room, n, sizeof(*room), by_number);
    k.gap = room[n / 2];
    return k;
}

static void print_kinds(void)
{
    kind *kinds = malloc((all.n + 1) * sizeof(*kinds));
    uint64_t *room = malloc((all.n + 1) * sizeof(*room));
    size_t n = 0;
    if (!kinds || !room) abort();
    for (size_t i = 0, end; i < all.n; i = end) {
        for (end = i + 1; end < all.n && by_kind(&all.run[i], &all.run[end]) == 0;) end++;
        kinds[n++] = kind_of(all.run + i, end - i, room);
    }
    qsort(kinds, n, sizeof(*kinds), by_total);
    fprintf(all.file, "%9s %11s %9s %7s  kernel\n", "times", "total us", "median us", "gap us");
    for (size_t i = 0; i < n; i++) {
        const run *r = kinds[i].first;
        fprintf(all.file, "%9zu %11.0f %9.2f %7.2f  %dx%dx%d x %d, %d B, %d registers, %.*s\n", kinds[i].n,
                (double)kinds[i].total * 1e-3, (double)kinds[i].median * 1e-3, (double)kinds[i].gap * 1e-3,
                r->grid[0], r->grid[1], r->grid[2], r->block, r->shared, r->registers, NAME, r->name);
    }
    free(kinds);
    free(room);
}

static void finish(void)
{
    all.flush(1); /* also what is not complete */
    pthread_mutex_lock(&all.lock);
    uint64_t end = 0;
    qsort(all.run, all.n, sizeof(*all.run), by_start);
    for (size_t i = 0; i < all.n; i++) {
        run *r = &all.run[i];
        r->gap = end && r->start > end ? r->start - end : 0;
        if (r->end > end) end = r->end;
    }
    qsort(all.run, all.n, sizeof(*all.run), by_kind);
    print_kinds();
    fclose(all.file);
    pthread_mutex_unlock(&all.lock);
}

/* Functions are found as data. */
static bool find(void *library, const char *name, void *function)
{
    void *at = dlsym(library, name);
    memcpy(function, &at, sizeof(at));
    return at != NULL;
}

static const char *start(void)
{
    void *cupti = dlopen("libcupti.so.13", RTLD_NOW);
    if (!cupti) return dlerror();
    CUptiResult (*callbacks)(CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc);
    CUptiResult (*enable)(CUpti_ActivityKind);
    if (!find(cupti, "cuptiActivityRegisterCallbacks", &callbacks) ||
        !find(cupti, "cuptiActivityEnable", &enable) ||
        !find(cupti, "cuptiActivityGetNextRecord", &all.next) ||
        !find(cupti, "cuptiActivityFlushAll", &all.flush))
        return "it lacks a function";
    if (callbacks(on_empty, on_full) != CUPTI_SUCCESS) return "cuptiActivityRegisterCallbacks failed";
    if (enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) return "cuptiActivityEnable failed";
    return atexit(finish) ? "atexit failed" : NULL;
}

__attribute__((visibility("default"))) int InitializeInjection(void);
int InitializeInjection(void)
{
    const char *path = getenv("GR_KERNEL_TRACE");
    all.file = path ? fopen(path, "we") : NULL;
    if (!all.file) return 1; /* CUDA wants 1: go on */
    const char *why = start();
    if (!why) return 1;
    fprintf(all.file, "no CUPTI: %s\n", why);
    fclose(all.file);
    return 1;
}
