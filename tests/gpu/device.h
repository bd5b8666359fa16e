/* tests/gpu/device.h: beside check.h, what the tests of the elementwise kernels and of the head share:
 * results whose surroundings are checked, gradients that hold something already, large random arrays, times
 * as bandwidth.
 */
#ifndef GR_TESTS_GPU_DEVICE_H
#define GR_TESTS_GPU_DEVICE_H

#include "tests/gpu/check.h"

#include <stdarg.h>

#define COPY_GBPS 4260.0 /* device copy on an H200, bytes read and written */

static inline size_t gr_size(gr_cu_dtype t)
{
    return t == GR_CU_F32 ? 4 : 2;
}

/* Whether the 256 bytes that device memory has behind its contents still hold poison. */
static inline void check_tail(const char *name, const void *device, size_t bytes)
{
    unsigned char tail[256], poison[256];
    memset(poison, 0xff, sizeof(poison));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(tail, (const char *)device + bytes, sizeof(tail), cudaMemcpyDeviceToHost));
    if (memcmp(tail, poison, sizeof(tail))) report_equal(name, "beyond", tail, poison, sizeof(tail));
}

/* Contents of device memory, which is freed; malloc'd. */
static inline void *take(const char *name, void *device, size_t bytes)
{
    check_tail(name, device, bytes);
    void *host = host_copy(device, bytes);
    CUDA(cudaFree(device));
    return host;
}

/* ---- a gradient of n values that holds random ones already ---- */

typedef struct gradient {
    gr_cu_dtype type;
    size_t n, bytes;
    void *before, *device;
} gradient;

static inline gradient gradient_new(size_t n, gr_cu_dtype type, uint64_t seed)
{
    gradient g = {.type = type, .n = n, .bytes = n * gr_size(type)};
    g.before = gr_malloc(g.bytes);
    for (size_t i = 0; i < n; i++) {
        const float x = random_float(&seed);
        if (type == GR_CU_F32)
            ((float *)g.before)[i] = x;
        else
            ((gr_bf16 *)g.before)[i] = bf16_of(x);
    }
    g.device = device_copy(g.before, g.bytes);
    return g;
}

static inline void gradient_free(gradient *g)
{
    free(g->before);
    CUDA(cudaFree(g->device));
}

static inline void *gradient_reset(const gradient *g) /* to what it held; returns it */
{
    CUDA(cudaMemcpy(g->device, g->before, g->bytes, cudaMemcpyHostToDevice));
    CUDA(cudaDeviceSynchronize());
    return g->device;
}

static inline void *gradient_take(const char *name, const gradient *g)
{
    check_tail(name, g->device, g->bytes);
    return host_copy(g->device, g->bytes);
}

static inline double gradient_at(const gradient *g, const void *x, size_t i)
{
    return g->type == GR_CU_F32 ? ((const float *)x)[i] : of_bf16(((const gr_bf16 *)x)[i]);
}

static inline double gradient_before(const gradient *g, size_t i)
{
    return gradient_at(g, g->before, i);
}

/* ---- large arrays: a random million, over and over ---- */

static inline void *device_repeat(const void *host, size_t block, size_t bytes)
{
    char *p = device_poisoned(bytes);
    for (size_t at = 0; at < bytes; at += block)
        CUDA(cudaMemcpy(p + at, at ? (const void *)p : host, GR_MIN(block, bytes - at),
                        at ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice));
    CUDA(cudaDeviceSynchronize());
    return p;
}

enum { MILLION = 1 << 20 };

static inline gr_bf16 *device_random_bf16(size_t n, uint64_t seed)
{
    gr_bf16 *x = random_bf16(MILLION, 1, seed), *d = device_repeat(x, MILLION * sizeof(*x), n * sizeof(*x));
    free(x);
    return d;
}

static inline float *device_random_f32(size_t n, uint64_t seed)
{
    float *x = gr_malloc(MILLION * sizeof(*x)), *d;
    for (size_t i = 0; i < MILLION; i++) x[i] = fabsf(random_float(&seed)); /* second moments too */
    d = device_repeat(x, MILLION * sizeof(*x), n * sizeof(*x));
    free(x);
    return d;
}

/* ---- times ---- */

GR_PRINTF(5, 6)
static inline void bench_line(const char *name, void (*body)(void *arg, int i), void *arg, double bytes,
                              const char *fmt, ...)
{
    char sizes[64];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(sizes, sizeof(sizes), fmt, ap);
    va_end(ap);
    const double s = time_of(body, arg, 10);
    CUDA(cudaGetLastError());
    printf("%-34s %-28s %9.1f us %7.0f GB/s %5.1f %% of a copy\n", name, sizes, s * 1e6, bytes / s * 1e-9,
           bytes / s * 1e-9 / COPY_GBPS * 100);
    fflush(stdout);
}

#endif
