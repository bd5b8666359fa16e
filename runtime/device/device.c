/* runtime/device/device.c: devices by name, the CPU device, and memory of the host. */
#include "runtime/device/device.h"

#include "runtime/base/files.h"

#ifdef GR_CUDA
#include "runtime/device/device_cuda.h"
#endif

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

gr_status gr_memory_take(gr_memory *m, uint64_t bytes, const char *what, gr_diag *d)
{
    *m = (gr_memory){0};
    if (!bytes) return GR_OK;
    void *base = bytes > SIZE_MAX / 2 ? MAP_FAILED
                                      : mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        char text[32];
        return gr_diag_error(d, (gr_loc){0}, GR_E_NOMEM, "cannot take %s for %s: %s",
                             gr_bytes_format(bytes, text), what,
                             bytes > SIZE_MAX / 2 ? "more than the address space" : strerror(errno));
    }
    *m = (gr_memory){base, bytes};
    return GR_OK;
}

void gr_memory_release(gr_memory *m)
{
    if (m->base) munmap(m->base, (size_t)m->bytes);
    *m = (gr_memory){0};
}

int gr_pci_numa_node(const char *root, const char *bus)
{
    char *path = gr_printf("%s/sys/bus/pci/devices/%s/numa_node", root, bus), *text = NULL;
    size_t n;
    for (char *c = path + strlen(path) - strlen("/numa_node") - strlen(bus); *c; c++)
        *c = (char)tolower((unsigned char)*c); /* as the system names it */
    int node = -1;
    if (!gr_file_read(path, 1 << 16, &text, &n, NULL) && sscanf(text, "%d", &node) != 1) node = -1;
    free(text);
    free(path);
    return node;
}

void gr_memory_prefer_node(const gr_memory *m, int node)
{
    const int width = 8 * (int)sizeof(unsigned long);
    if (node < 0 || node >= width) return;
    const unsigned long nodes = 1UL << node;
    syscall(SYS_mbind, m->base, m->bytes, MPOL_PREFERRED, &nodes, width + 1L,
            0); /* the last bit is left out */
}

uint64_t gr_memory_resident(const gr_memory *m)
{
    unsigned char seen[4096]; /* a bounded piece at a time, so that measuring takes no memory of its own */
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), resident = 0;
    for (uint64_t at = 0; at < m->bytes; at += page * sizeof(seen)) {
        uint64_t part = GR_MIN(m->bytes - at, page * sizeof(seen));
        if (mincore(m->base + at, (size_t)part, seen)) return resident;
        for (uint64_t i = 0; i * page < part; i++) resident += (seen[i] & 1) * page;
    }
    return resident;
}

uint64_t gr_process_resident(void)
{
    char text[128];
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n <= 0) return 0;
    text[n] = '\0';
    char *second = strchr(text, ' ');
    return second ? strtoull(second, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

/* ---- the CPU device -------------------------------------------------------------------------------------
 */

typedef struct cpu_device {
    gr_device base;
    uint64_t resident_before;
} cpu_device;

static void cpu_close(gr_device *dev)
{
    if (!dev) return;
    gr_memory_release(&dev->arena);
    gr_memory_release(&dev->pool);
    free(dev);
}

static gr_status cpu_open(gr_device **out, const gr_device_needs *needs, gr_diag *d)
{
    cpu_device *dev = gr_calloc(1, sizeof(*dev));
    dev->base.type = &gr_device_cpu;
    dev->resident_before = gr_process_resident();
    gr_status st = gr_memory_take(&dev->base.arena, needs->arena_bytes, "the arena", d);
    if (!st) st = gr_memory_take(&dev->base.pool, needs->pool_bytes, "the host pool", d);
    if (st)
        cpu_close(&dev->base);
    else
        *out = &dev->base;
    return st;
}

static uint64_t cpu_used(gr_device *dev)
{
    uint64_t rest = ((cpu_device *)dev)->resident_before + gr_memory_resident(&dev->pool),
             all = gr_process_resident();
    return all > rest ? all - rest : 0;
}

const gr_device_type gr_device_cpu = {.name = "cpu", .open = cpu_open, .close = cpu_close, .used = cpu_used};

gr_status gr_device_find(const gr_device_type **out, const char *name, gr_diag *d)
{
    *out = &gr_device_cpu;
    if (!strcmp(name, "cpu")) return GR_OK;
#ifdef GR_CUDA
    *out = &gr_device_cuda;
    if (!strcmp(name, "cuda")) return GR_OK;
#endif
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "this build of graphrun has no device '%s'", name);
}
