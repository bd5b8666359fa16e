/* tests/gpu/check.h: what the programs that compare device code with loops on the CPU share: random data,
 * poisoned device memory, errors of a result, times.
 *
 * A program includes it once. It prints a line for each comparison and goes on after a failure; its exit
 * status is 77 where there is no device, 1 where something failed. With --small it goes through every kernel
 * and every path in sizes that a tool ends with which slows kernels down a thousand times (sanitize.sh). With
 * --race too, programs that go through their kernels many times over do so once, in the least sizes that have
 * every path: racecheck follows each access to shared memory.
 */
#ifndef GR_TESTS_GPU_CHECK_H
#define GR_TESTS_GPU_CHECK_H

#include "ops/kernels/cuda/launch.h"
#include "runtime/base/base.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int check_failures;
static bool check_small, check_own, check_race; /* set by read_options */

#define CUDA(call) check_cuda((call), #call, __LINE__)

static inline void check_cuda(cudaError_t e, const char *call, int line)
{
    if (e == cudaSuccess) return;
    printf("line %d: %s: %s\n", line, call, cudaGetErrorString(e));
    exit(1); /* nothing after it would mean anything */
}

/* ---- numbers --------------------------------------------------------------------------------------------
 */

static inline gr_bf16 bf16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (gr_bf16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float of_bf16(gr_bf16 x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* Nearly normal (the sum of four uniforms), standard deviation 1. */
static inline float random_float(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *state;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    z ^= z >> 31;
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)(z >> 16 * i & 0xffff);
    return (sum - 131070) * (1.7320508f / 65535);
}

static inline gr_bf16 *random_bf16(size_t n, float scale, uint64_t seed)
{
    gr_bf16 *x = gr_malloc(n * sizeof(*x) + 1);
    for (size_t i = 0; i < n; i++) x[i] = bf16_of(scale * random_float(&seed));
    return x;
}

/* ---- device memory --------------------------------------------------------------------------------------
 */

/* Not-a-number in fp32 and in bf16, so that what no kernel wrote shows. Here and below: a copy from pageable
 * memory may return before its last bytes have arrived, a fill does, and streams that do not wait for the
 * null stream would run ahead of them. */
static inline void *device_poisoned(size_t bytes)
{
    void *p;
    CUDA(cudaMalloc(&p, bytes + 256));
    CUDA(cudaMemset(p, 0xff, bytes + 256));
    CUDA(cudaDeviceSynchronize());
    return p;
}

static inline void *device_copy(const void *host, size_t bytes)
{
    void *p = device_poisoned(bytes);
    CUDA(cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice));
    CUDA(cudaDeviceSynchronize());
    return p;
}

static inline void *host_copy(const void *device, size_t bytes)
{
    void *p = gr_malloc(bytes + 1);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(p, device, bytes, cudaMemcpyDeviceToHost));
    return p;
}

/* ---- results --------------------------------------------------------------------------------------------
 */

static inline void report(bool ok, const char *name, const char *what, double max_abs, double relative)
{
    printf("%-52s %-6s max abs %9.3g  rel %9.3g  %s\n", name, what, max_abs, relative, ok ? "OK" : "FAIL");
    if (!ok) check_failures++;
    fflush(stdout);
}

static inline void report_equal(const char *name, const char *what, const void *a, const void *b,
                                size_t bytes)
{
    const bool ok = memcmp(a, b, bytes) == 0;
    printf("%-52s %-6s the same bits                     %s\n", name, what, ok ? "OK" : "FAIL");
    if (!ok) check_failures++;
    fflush(stdout);
}

/* Errors summed element by element; NaN anywhere makes relative NaN, which is never below a bound. */
typedef struct errors {
    double max_abs, error2, want2;
} errors;

static inline void errors_add(errors *e, double got, double want)
{
    const double x = got - want;
    if (!(fabs(x) <= e->max_abs)) e->max_abs = fabs(x);
    e->error2 += x * x;
    e->want2 += want * want;
}

static inline void report_errors(const errors *e, const char *name, const char *what, double bound)
{
    const double relative = e->want2 > 0 ? sqrt(e->error2 / e->want2) : sqrt(e->error2);
    report(relative < bound, name, what, e->max_abs, relative);
}

static inline void expect_ok(gr_status st, gr_diag *d, const char *name)
{
    if (st == GR_OK) return;
    for (size_t i = 0; i < d->n; i++) printf("%s: %s\n", name, d->messages[i].text);
    if (!d->n) printf("%s: %s\n", name, gr_status_str(st));
    check_failures++;
    gr_diag_release(d);
    gr_diag_init(d);
}

/* ---- threads on the CPU ---------------------------------------------------------------------------------
 */

struct parallel {
    void (*body)(void *arg, size_t i);
    void *arg;
    size_t n;
    atomic_size_t next;
};

static inline void *parallel_thread(void *arg)
{
    struct parallel *p = arg;
    for (size_t i; (i = atomic_fetch_add(&p->next, 1)) < p->n;) p->body(p->arg, i);
    return NULL;
}

static inline void parallel_for(size_t n, void (*body)(void *arg, size_t i), void *arg)
{
    pthread_t thread[64];
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const int n_threads = (int)GR_MIN((size_t)GR_MAX(1, GR_MIN(cores, 64)), n);
    struct parallel p = {.body = body, .arg = arg, .n = n};
    for (int i = 0; i < n_threads; i++) pthread_create(&thread[i], NULL, parallel_thread, &p);
    for (int i = 0; i < n_threads; i++) pthread_join(thread[i], NULL);
}

/* ---- times ----------------------------------------------------------------------------------------------
 */

static inline int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Seconds of one call of body(arg, i), i counting up: the median of 9 stretches of `times` calls, after one.
 */
static inline double time_of(void (*body)(void *arg, int i), void *arg, int times)
{
    cudaEvent_t begin, end;
    float ms[9];
    int n = 0;
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    for (int i = 0; i < times; i++) body(arg, n++);
    for (size_t s = 0; s < GR_LEN(ms); s++) {
        CUDA(cudaEventRecord(begin, NULL));
        for (int i = 0; i < times; i++) body(arg, n++);
        CUDA(cudaEventRecord(end, NULL));
        CUDA(cudaEventSynchronize(end));
        CUDA(cudaEventElapsedTime(&ms[s], begin, end));
    }
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
    qsort(ms, GR_LEN(ms), sizeof(ms[0]), compare_floats);
    return ms[GR_LEN(ms) / 2] * 1e-3 / times;
}

/* Whether times are asked for. */
static inline bool read_options(int argc, char **argv)
{
    bool bench = false;
    for (int i = 1; i < argc; i++) {
        bench = bench || !strcmp(argv[i], "--bench");
        check_small = check_small || !strcmp(argv[i], "--small");
        check_own = check_own || !strcmp(argv[i], "--own");
        check_race = check_race || !strcmp(argv[i], "--race");
    }
    return bench;
}

/* Exits with 77 where there is no device; names it otherwise. */
static inline void need_device(void)
{
    struct cudaDeviceProp p;
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        printf("no CUDA device: skipped\n");
        exit(77);
    }
    CUDA(cudaGetDeviceProperties(&p, 0));
    printf("device: %s, compute capability %d.%d\n", p.name, p.major, p.minor);
}

#endif
