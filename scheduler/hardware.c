#include "scheduler/hardware.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GIB  (1ULL << 30)
#define MIB  (1ULL << 20)
#define GB   1e9
#define TERA 1e12

/* Rates: of H200 measured (bf16 matrices at large shapes, device copies, pinned copies over PCIe 5 x16);
 * of the others three quarters of the published bf16 peak, nine tenths of the published memory bandwidth, and
 * what a pinned copy reaches on their PCIe generation. Usable memory: as the driver reports it. Overhead:
 * context, library workspaces and loaded kernels. host_bytes: what a host of such machines has for one
 * device. */
typedef struct profile {
    const char *name;
    double flops, memory_bytes, h2d, d2h, disk;
    uint64_t device_bytes, host_bytes, overhead_bytes, step_ns;
} profile;

static const profile profiles[] = {
    {"h200", 773 * TERA, 4260 * GB, 55.6 * GB, 55.4 * GB, 3 * GB, 143771 * MIB, 224 * GIB, 1536 * MIB, 5000},
    {"h100-80g", 742 * TERA, 3015 * GB, 55 * GB, 55 * GB, 3 * GB, 81559 * MIB, 224 * GIB, 1536 * MIB, 5000},
    {"a100-80g", 234 * TERA, 1835 * GB, 25 * GB, 25 * GB, 2 * GB, 81920 * MIB, 224 * GIB, 1280 * MIB, 6000},
    {"a100-40g", 234 * TERA, 1400 * GB, 25 * GB, 25 * GB, 2 * GB, 40960 * MIB, 112 * GIB, 1280 * MIB, 6000},
    {"rtx4090", 124 * TERA, 907 * GB, 25 * GB, 25 * GB, 2 * GB, 24564 * MIB, 56 * GIB, 1024 * MIB, 5000},
};

/* A limit in a file of one number ("max" and unreadable files are none). */
static uint64_t limit_in(const char *path)
{
    FILE *f = fopen(path, "re");
    unsigned long long v = 0;
    bool ok = f && fscanf(f, "%llu", &v) == 1;
    if (f) fclose(f);
    return ok ? v : UINT64_MAX;
}

/* Bytes that this process may use: physical memory, less where a control group sets a limit. */
static uint64_t usable_memory(void)
{
    uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    bytes = GR_MIN(bytes, limit_in("/sys/fs/cgroup/memory.max"));
    return GR_MIN(bytes, limit_in("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
}

/* Rates are those of one ordinary core with 256-bit vectors, times the cores. Device and host pool share the
 * machine's memory: half each by default, less an eighth for everything else. Overhead: what a
 * run touches beside its arena once it has started: small objects, buffers of files, the threads' stacks. */
static void describe_cpu(gr_hardware *out)
{
    long cores = GR_MAX(sysconf(_SC_NPROCESSORS_ONLN), 1);
    uint64_t memory = usable_memory() / 16 * 7;
    *out = (gr_hardware){.name = "cpu",
                         .device = "cpu",
                         .flops = 20e9 * (double)cores,
                         .memory_bytes = GR_MIN(6e9 * (double)cores, 100e9),
                         .h2d = 5e9,
                         .d2h = 5e9,
                         .disk = 0.5e9,
                         .device_bytes = memory,
                         .host_bytes = memory,
                         .overhead_bytes = 3 * MIB + (uint64_t)cores * 256 * 1024,
                         .step_ns = 2000};
}

gr_status gr_hardware_find(gr_hardware *out, const char *name, gr_diag *d)
{
    const char *names[GR_LEN(profiles) + 1] = {"cpu"};
    if (!strcmp(name, "cpu")) {
        describe_cpu(out);
        return GR_OK;
    }
    for (size_t i = 0; i < GR_LEN(profiles); i++) {
        names[i + 1] = profiles[i].name;
        if (strcmp(name, profiles[i].name)) continue;
        const profile *p = &profiles[i];
        *out = (gr_hardware){.device = "cuda",
                             .flops = p->flops,
                             .memory_bytes = p->memory_bytes,
                             .h2d = p->h2d,
                             .d2h = p->d2h,
                             .disk = p->disk,
                             .device_bytes = p->device_bytes,
                             .host_bytes = p->host_bytes,
                             .overhead_bytes = p->overhead_bytes,
                             .step_ns = p->step_ns};
        snprintf(out->name, sizeof(out->name), "%s", p->name);
        return GR_OK;
    }
    if (strpbrk(name, "/.") || gr_path_exists(name)) return gr_hardware_read(out, name, d);
    gr_str known = {0};
    for (size_t i = 0; i < GR_LEN(names); i++) gr_str_printf(&known, "%s%s", i ? ", " : "", names[i]);
    const char *near = gr_near(name, names, GR_LEN(names));
    gr_status st =
        gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                      "unknown hardware '%s'%s%s%s; known are: %s, or a file of "
                      "`graphrun calibrate`",
                      name, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "", known.text);
    gr_str_release(&known);
    return st;
}
