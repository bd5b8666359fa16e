/* tests/gpu/alloc_trace.c: a library that lists every call of a process that takes or gives back memory of
 * the driver.
 *
 * CUDA loads it where CUDA_INJECTION64_PATH names it, and calls InitializeInjection; it asks CUPTI (found at
 * run time, LD_LIBRARY_PATH) for the driver's calls. Each that takes or gives back device or pinned memory is
 * a line of the file that GR_ALLOC_TRACE names, as it begins: "NANOSECONDS NAME", on the clock of gr_now_ns.
 * The first line is "0 trace"; where CUPTI cannot be had it is "0 no CUPTI: WHY". tests/gpu/long_run.py
 * allocations reads it.
 */
#include <cupti.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static FILE *file;

static bool moves_memory(const char *name)
{
    static const char *const parts[] = {"Alloc",  "Free",     "MemCreate",    "MemRelease",
                                        "MemMap", "MemUnmap", "HostRegister", "HostUnregister"};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        if (strstr(name, parts[i])) return true;
    return false;
}

/* Of several threads at once: a line is one call of fprintf. */
static void CUPTIAPI on_call(void *user, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data)
{
    const CUpti_CallbackData *call = data;
    struct timespec t;
    (void)user, (void)domain, (void)id;
    if (call->callbackSite != CUPTI_API_ENTER || !moves_memory(call->functionName)) return;
    clock_gettime(CLOCK_MONOTONIC, &t);
    fprintf(file, "%lld %s\n", (long long)t.tv_sec * 1000000000 + t.tv_nsec, call->functionName);
    fflush(file);
}

static const char *subscribe(void)
{
    void *cupti = dlopen("libcupti.so.13", RTLD_NOW);
    if (!cupti) return dlerror();
    CUptiResult (*subscribe_to)(CUpti_SubscriberHandle *, CUpti_CallbackFunc, void *);
    CUptiResult (*enable)(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain);
    void *calls[] = {dlsym(cupti, "cuptiSubscribe"), dlsym(cupti, "cuptiEnableDomain")};
    if (!calls[0] || !calls[1]) return "it lacks cuptiSubscribe or cuptiEnableDomain";
    memcpy(&subscribe_to, &calls[0], sizeof(calls[0])); /* functions, found as data */
    memcpy(&enable, &calls[1], sizeof(calls[1]));
    CUpti_SubscriberHandle own;
    if (subscribe_to(&own, on_call, NULL) != CUPTI_SUCCESS) return "cuptiSubscribe failed";
    return enable(1, own, CUPTI_CB_DOMAIN_DRIVER_API) == CUPTI_SUCCESS ? NULL : "cuptiEnableDomain failed";
}

__attribute__((visibility("default"))) int InitializeInjection(void);
int InitializeInjection(void)
{
    const char *path = getenv("GR_ALLOC_TRACE");
    file = path ? fopen(path, "we") : NULL;
    if (!file) return 1; /* CUDA wants 1: go on */
    const char *why = subscribe();
    if (why)
        fprintf(file, "0 no CUPTI: %s\n", why);
    else
        fprintf(file, "0 trace\n");
    fflush(file);
    return 1;
}
