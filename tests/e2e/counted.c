/* tests/e2e/counted.c: linked into a graphrun of its own, counts what steps allocate and look up by name.
 *
 * From the third iteration on (GR_COUNT_FROM: another one), between the begin and the end of the paths steady
 * and validate, on all threads, it counts
 *   - allocations: malloc and its kin, which it defines in place of the C library's. So those that libraries
 *     make for the program count, too; told apart by who called, the program's code or a library's.
 *   - look-ups by name: comparisons of strings, and of names in a hash table (gr_index_find).
 * Each is counted for the step that its thread runs; what threads do between steps is the executor's.
 *
 * The world outside is counted apart, because what it takes follows from what a file says, and no plan knows
 * that: a record of data that is read and parsed (gr_jsonl_row) and made into tokens (gr_encoder_run), and
 * the texts of a response that is kept for samples.jsonl (gr_record_sample). So is a comparison of
 * mathematics, whose trees and numbers are as large as what the model wrote, up to its limits
 * (ops/reward/math_compare.h). So would be the requests to workers, which are processes; no graph of
 * steady.sh has any. What comes between paths, metrics, records, checkpoints, is of no step and not counted;
 * nor is what the thread does that gives this process's sign of life to the other ranks.
 *
 * At its end the process writes a line for each step that did any to the file GR_COUNTS, or, of several
 * ranks, GR_COUNTS.RANK: "STEP: N allocations, N of libraries, N look-ups"; and behind them always "outside:
 * N times, N allocations" and "counted N steps". GR_COUNTED_SHOW: where each comes from, on standard error.
 */
#include <execinfo.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ops/encode.h"
#include "ops/text/jsonl.h"
#include "runtime/base/index.h"
#include "runtime/comm/watchdog.h"
#include "runtime/run/executor.h"
#include "runtime/run/record.h"

enum { OWN, LIBRARY, LOOKUP, N_COUNTS };

static _Atomic unsigned n_outside, outside[N_COUNTS];
static _Thread_local unsigned depth_outside;

static _Atomic bool counting;
static _Atomic unsigned n_steps;
static _Thread_local unsigned paused; /* depth */
static _Thread_local struct of_step *current;
static _Thread_local bool gives_signs;

/* Of each step, which is known by where its name lies; the first is what is between steps. */
static struct of_step {
    _Atomic(const char *) key;
    char name[96];
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
    if (!atomic_load_explicit(&counting, memory_order_relaxed) || paused || gives_signs) return;
    if (depth_outside) {
        outside[what]++;
        return;
    }
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

/* ---- the world outside --------------------------------------------------------------------------------- */

gr_status __real_gr_jsonl_row(const gr_jsonl *s, size_t row, json_t **out, gr_diag *d);
gr_status __wrap_gr_jsonl_row(const gr_jsonl *s, size_t row, json_t **out, gr_diag *d);
gr_status __real_gr_encoder_run(const gr_encoder *e, const json_t *record, gr_loc at, gr_ids *out,
                                gr_diag *d);
gr_status __wrap_gr_encoder_run(const gr_encoder *e, const json_t *record, gr_loc at, gr_ids *out,
                                gr_diag *d);
void __real_gr_record_sample(gr_session *s, const gr_node *n, const gr_rows *r, uint32_t seq, double score);
void __wrap_gr_record_sample(gr_session *s, const gr_node *n, const gr_rows *r, uint32_t seq, double score);

bool __real_gr_math_equal(const char *truth, size_t n_truth, const char *answer, size_t n);
bool __wrap_gr_math_equal(const char *truth, size_t n_truth, const char *answer, size_t n);
bool __real_gr_math_equal_in_text(const char *truth, size_t n_truth, const char *text, size_t n);
bool __wrap_gr_math_equal_in_text(const char *truth, size_t n_truth, const char *text, size_t n);

gr_status __wrap_gr_jsonl_row(const gr_jsonl *s, size_t row, json_t **out, gr_diag *d)
{
    depth_outside++;
    n_outside += counting;
    gr_status st = __real_gr_jsonl_row(s, row, out, d);
    depth_outside--;
    return st;
}

gr_status __wrap_gr_encoder_run(const gr_encoder *e, const json_t *record, gr_loc at, gr_ids *out, gr_diag *d)
{
    depth_outside++;
    n_outside += counting;
    gr_status st = __real_gr_encoder_run(e, record, at, out, d);
    depth_outside--;
    return st;
}

bool __wrap_gr_math_equal(const char *truth, size_t n_truth, const char *answer, size_t n)
{
    depth_outside++;
    n_outside += counting;
    bool equal = __real_gr_math_equal(truth, n_truth, answer, n);
    depth_outside--;
    return equal;
}

bool __wrap_gr_math_equal_in_text(const char *truth, size_t n_truth, const char *text, size_t n)
{
    depth_outside++;
    n_outside += counting;
    bool equal = __real_gr_math_equal_in_text(truth, n_truth, text, n);
    depth_outside--;
    return equal;
}

void __wrap_gr_record_sample(gr_session *s, const gr_node *n, const gr_rows *r, uint32_t seq, double score)
{
    depth_outside++;
    n_outside += counting;
    __real_gr_record_sample(s, n, r, seq, score);
    depth_outside--;
}

/* ---- where a thread is --------------------------------------------------------------------------------- */

void __real_gr_watchdog_step(unsigned lane, uint32_t iteration, const char *what, uint32_t limit);
void __real_gr_watchdog_done(unsigned lane);
void __real_gr_watchdog_sign(gr_sign *out);
void __wrap_gr_watchdog_sign(gr_sign *out);
gr_status __real_gr_executor_path(gr_executor *e, gr_path_id path, gr_diag *d);
void __wrap_gr_watchdog_step(unsigned lane, uint32_t iteration, const char *what, uint32_t limit);
void __wrap_gr_watchdog_done(unsigned lane);
gr_status __wrap_gr_executor_path(gr_executor *e, gr_path_id path, gr_diag *d);

static struct of_step *of(const char *name)
{
    size_t i = 1;
    for (; i < sizeof(steps) / sizeof(*steps) - 1 && steps[i].key != name; i++) {
        const char *nobody = NULL;
        if (!atomic_compare_exchange_strong(&steps[i].key, &nobody, name)) continue;
        strncpy(steps[i].name, name, sizeof(steps[i].name) - 1);
        break;
    }
    return &steps[i];
}

void __wrap_gr_watchdog_step(unsigned lane, uint32_t iteration, const char *what, uint32_t limit)
{
    current = of(what);
    if (counting) n_steps++;
    __real_gr_watchdog_step(lane, iteration, what, limit);
}

void __wrap_gr_watchdog_done(unsigned lane)
{
    current = NULL;
    __real_gr_watchdog_done(lane);
}

void __wrap_gr_watchdog_sign(gr_sign *out)
{
    gives_signs = true;
    __real_gr_watchdog_sign(out);
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
    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps) && *steps[i].name; i++)
        if (steps[i].n[OWN] || steps[i].n[LIBRARY] || steps[i].n[LOOKUP])
            fprintf(f, "%s: %u allocations, %u of libraries, %u look-ups\n", steps[i].name, steps[i].n[OWN],
                    steps[i].n[LIBRARY], steps[i].n[LOOKUP]);
    fprintf(f, "outside: %u times, %u allocations\n", n_outside, outside[OWN] + outside[LIBRARY]);
    fprintf(f, "counted %u steps\n", n_steps);
    fclose(f);
}
