/* tests/e2e/counted.c: linked into a graphrun of its own, counts what steps allocate and look up by name.
 *
 * From the third iteration on (GR_COUNT_FROM: another one), between the begin and the end of the paths steady
 * and validate, on all threads, it counts
 *   - allocations: malloc and its kin, which it defines in place of the C library's. So those that libraries
 *     make for the program count, too; told apart by who called, the program's code or a library's.
 *   - look-ups by name: comparisons of strings, and of names in a hash table (gr_index_find).
 * Each is counted for the step that its thread runs; what threads do between steps is the executor's.
 *
 * Not counted is what GR_UNCOUNTED names, with its reason. What comes between paths, metrics, records,
 * checkpoints, is of no step.
 *
 * At its end the process writes a line for each step that did any to the file GR_COUNTS, or, of several
 * ranks, GR_COUNTS.RANK: "STEP: N allocations, N of libraries, N look-ups"; and "counted N steps" always.
 */
#include <execinfo.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/index.h"
#include "runtime/run/executor.h"

enum { OWN, LIBRARY, LOOKUP, N_COUNTS };

static _Atomic bool counting;
static _Atomic unsigned n_steps;
static _Thread_local unsigned paused; /* depth */
static _Thread_local struct of_step *current;

/* By name of the step; the first is the executor's own. */
static struct of_step {
    _Atomic(const char *) name;
    _Atomic unsigned n[N_COUNTS];
} steps[4096] = {{.name = "between steps"}};

static void show(int what)
{
    void *at[16];
    paused++;
    dprintf(2, "counted: %d in %s\n", what, current ? current->name : "between steps");
    backtrace_symbols_fd(at, backtrace(at, 16), 2);
    paused--;
}

static void count(int what)
{
    if (!atomic_load_explicit(&counting, memory_order_relaxed) || paused) return;
    atomic_fetch_add(&(current ? current : &steps[0])->n[what], 1);
    if (getenv("GR_COUNTED_SHOW")) show(what);
}

/* ---- allocations --------------------------------------------------------------------------------------- */

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t),
    *__libc_memalign(size_t, size_t);
extern const char __executable_start, etext;

static void count_from(const void *caller)
{
    const char *at = caller;
    count(at >= &__executable_start && at < &etext ? OWN : LIBRARY);
}

void *malloc(size_t n)
{
    count_from(__builtin_return_address(0));
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t each)
{
    count_from(__builtin_return_address(0));
    return __libc_calloc(n, each);
}

void *realloc(void *x, size_t n)
{
    count_from(__builtin_return_address(0));
    return __libc_realloc(x, n);
}

void *memalign(size_t align, size_t n)
{
    count_from(__builtin_return_address(0));
    return __libc_memalign(align, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    count_from(__builtin_return_address(0));
    return __libc_memalign(align, n);
}

int posix_memalign(void **out, size_t align, size_t n)
{
    count_from(__builtin_return_address(0));
    *out = __libc_memalign(align, n);
    return *out ? 0 : 12;
}

/* ---- look-ups ------------------------------------------------------------------------------------------ */

int __real_strcmp(const char *a, const char *b);
int __real_strncmp(const char *a, const char *b, size_t n);
uint32_t __real_gr_index_find(const gr_index *x, const char *name, size_t len);
int __wrap_strcmp(const char *a, const char *b);
int __wrap_strncmp(const char *a, const char *b, size_t n);
uint32_t __wrap_gr_index_find(const gr_index *x, const char *name, size_t len);

int __wrap_strcmp(const char *a, const char *b)
{
    count(LOOKUP);
    return __real_strcmp(a, b);
}

int __wrap_strncmp(const char *a, const char *b, size_t n)
{
    count(LOOKUP);
    return __real_strncmp(a, b, n);
}

uint32_t __wrap_gr_index_find(const gr_index *x, const char *name, size_t len)
{
    count(LOOKUP);
    return __real_gr_index_find(x, name, len);
}

/* ---- where a thread is --------------------------------------------------------------------------------- */

void __real_gr_watch_step(unsigned lane, uint32_t iteration, const char *what, uint32_t limit);
void __real_gr_watch_done(unsigned lane);
gr_status __real_gr_executor_path(gr_executor *e, gr_path_id path, gr_diag *d);
void __wrap_gr_watch_step(unsigned lane, uint32_t iteration, const char *what, uint32_t limit);
void __wrap_gr_watch_done(unsigned lane);
gr_status __wrap_gr_executor_path(gr_executor *e, gr_path_id path, gr_diag *d);

static struct of_step *of(const char *name)
{
    size_t i = 1;
    for (; i < sizeof(steps) / sizeof(*steps) - 1; i++) {
        const char *nobody = NULL;
        if (steps[i].name == name || atomic_compare_exchange_strong(&steps[i].name, &nobody, name)) break;
        if (steps[i].name == name) break;
    }
    return &steps[i];
}

void __wrap_gr_watch_step(unsigned lane, uint32_t iteration, const char *what, uint32_t limit)
{
    current = of(what);
    if (counting) n_steps++;
    __real_gr_watch_step(lane, iteration, what, limit);
}

void __wrap_gr_watch_done(unsigned lane)
{
    current = NULL;
    __real_gr_watch_done(lane);
}

gr_status __wrap_gr_executor_path(gr_executor *e, gr_path_id path, gr_diag *d)
{
    static unsigned iterations;
    const char *from = getenv("GR_COUNT_FROM");
    const bool counts = path == GR_PATH_STEADY || path == GR_PATH_VALIDATE;
    iterations += path == GR_PATH_STEADY;
    counting = counts && iterations >= (from ? (unsigned)atoi(from) : 3);
    gr_status st = __real_gr_executor_path(e, path, d);
    counting = false;
    return st;
}

__attribute__((destructor)) static void report(void)
{
    const char *base = getenv("GR_COUNTS"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    char path[4096];
    if (!base || !n_steps) return;
    snprintf(path, sizeof(path), "%s%s%s", base, rank ? "." : "", rank ? rank : "");
    FILE *f = fopen(path, "w");
    if (!f) abort();
    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps) && steps[i].name; i++)
        if (steps[i].n[OWN] || steps[i].n[LIBRARY] || steps[i].n[LOOKUP])
            fprintf(f, "%s: %u allocations, %u of libraries, %u look-ups\n", steps[i].name, steps[i].n[OWN],
                    steps[i].n[LIBRARY], steps[i].n[LOOKUP]);
    fprintf(f, "counted %u steps\n", n_steps);
    fclose(f);
}
