/* runtime/base/limits.c: how many cores and how much memory this process may use. */
#include "runtime/base/limits.h"
#include "runtime/base/files.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A small file of the kernel, or NULL; the caller frees it. */
static char *text_of(const char *folder, const char *name)
{
    char *path = gr_printf("%s/%s", folder, name), *text = NULL;
    size_t n;
    if (gr_file_read(path, 1 << 20, &text, &n, NULL)) text = NULL;
    free(path);
    return text;
}

static bool has_word(const char *list, size_t n, const char *word)
{
    for (const char *at = list; at < list + n; at += strcspn(at, ",:") + 1)
        if (strcspn(at, ",:") == strlen(word) && !strncmp(at, word, strlen(word))) return true;
    return false;
}

/* The process's group in a hierarchy: of version 1 that of a controller, of version 2 (NULL) the one without.
 * Lines are "NUMBER:CONTROLLERS:PATH". The caller frees it. */
static char *group_of(const char *root, const char *controller)
{
    char *proc = gr_printf("%s/proc/self", root), *text = text_of(proc, "cgroup"), *found = NULL;
    for (char *line = text, *next; line && *line && !found; line = next) {
        size_t n = strcspn(line, "\n");
        next = line + n + (line[n] == '\n');
        line[n] = '\0';
        const char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path) continue;
        const size_t len = (size_t)(path - ++list);
        if (controller ? has_word(list, len, controller) : !len) found = gr_strdup(path + 1);
    }
    free(text);
    free(proc);
    if (!found || strstr(found, "..")) { /* of another namespace: only its root is seen here */
        free(found);
        found = gr_strdup("");
    }
    return found;
}

/* Call see for the group's folder and all above it. */
static void walk(const char *root, const char *controller, void (*see)(const char *folder, void *), void *out)
{
    char *group = group_of(root, controller),
         *top = gr_printf("%s/sys/fs/cgroup%s%s", root, controller ? "/" : "", controller ? controller : ""),
         *at = gr_printf("%s%s", top, group);
    for (; strlen(at) >= strlen(top); *strrchr(at, '/') = '\0') see(at, out);
    free(at);
    free(top);
    free(group);
}

static void see_memory(const char *folder, void *out)
{
    static const char *const names[] = {"memory.max", "memory.limit_in_bytes"};
    uint64_t *least = out;
    for (size_t i = 0; i < GR_LEN(names); i++) {
        char *text = text_of(folder, names[i]), *end;
        unsigned long long bytes = text ? strtoull(text, &end, 10) : 0;
        if (text && end != text) *least = GR_MIN(*least, (uint64_t)bytes); /* "max" is none */
        free(text);
    }
}

/* So much time in each period, both in microseconds: "QUOTA PERIOD", or a file each. */
static void see_cores(const char *folder, void *out)
{
    double *least = out;
    long long quota = -1, period = 0;
    char *both = text_of(folder, "cpu.max"), *one = text_of(folder, "cpu.cfs_quota_us"),
         *two = text_of(folder, "cpu.cfs_period_us");
    if (both && sscanf(both, "%lld %lld", &quota, &period) != 2) quota = -1;
    if (one && two && (sscanf(one, "%lld", &quota) != 1 || sscanf(two, "%lld", &period) != 1)) quota = -1;
    if (quota > 0 && period > 0) *least = GR_MIN(*least, (double)quota / (double)period);
    free(both);
    free(one);
    free(two);
}

uint64_t gr_group_memory(const char *root)
{
    uint64_t least = UINT64_MAX;
    walk(root, NULL, see_memory, &least);
    walk(root, "memory", see_memory, &least);
    return least;
}

unsigned gr_group_cores(const char *root)
{
    double least = UINT_MAX;
    walk(root, NULL, see_cores, &least);
    walk(root, "cpu", see_cores, &least);
    const unsigned whole = (unsigned)least;
    return whole + (whole < least);
}

uint64_t gr_usable_memory(void)
{
    uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    return GR_MIN(bytes, gr_group_memory(""));
}

/* false: the machine has more cores than a set. */
static bool get_affinity(cpu_set_t *set)
{
    return !sched_getaffinity(0, sizeof(*set), set);
}

unsigned gr_usable_cores(void)
{
    cpu_set_t set;
    const unsigned n =
        get_affinity(&set) ? (unsigned)CPU_COUNT(&set) : (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
    return GR_MAX(GR_MIN(n, gr_group_cores("")), 1u);
}

gr_core_set gr_core_set_own(uint64_t host)
{
    gr_core_set own = {.host = host};
    cpu_set_t set;
    if (!get_affinity(&set)) return own;
    for (unsigned i = 0; i < 64 * GR_LEN(own.word); i++)
        if (CPU_ISSET(i, &set)) own.word[i / 64] |= UINT64_C(1) << i % 64;
    return own;
}

static bool has_core(const gr_core_set *s, unsigned core)
{
    return s->word[core / 64] >> core % 64 & 1;
}

/* What is one rank's of its cores, each counted by the part of it that it has. */
static double share_of(const gr_core_set *sets, uint32_t n, uint32_t rank)
{
    double share = 0;
    for (unsigned core = 0; core < 64 * GR_LEN(sets->word); core++) {
        uint32_t users = 0;
        if (!has_core(&sets[rank], core)) continue;
        for (uint32_t r = 0; r < n; r++) users += sets[r].host == sets[rank].host && has_core(&sets[r], core);
        share += 1.0 / users;
    }
    return share;
}

unsigned gr_core_sets_share(const gr_core_set *sets, uint32_t n, uint32_t rank)
{
    double least = UINT_MAX;
    for (uint32_t r = 0; r < n; r++)
        if (sets[r].host == sets[rank].host) least = GR_MIN(least, share_of(sets, n, r));
    const double rounding = 1e-6; /* thirds of three cores are one */
    return least > 0 ? GR_MAX((unsigned)(least + rounding), 1u) : 0;
}
