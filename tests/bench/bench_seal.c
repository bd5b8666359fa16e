/* tests/bench/bench_seal.c: what hashes cost a checkpoint. Files of fp32 tensors are written by parts, synced
 * and given a manifest, with hashes and without, in turn, so that a change of the disk's speed falls on both;
 * then read, held to the manifest and not. Prints medians of seconds, and the median of the ratios of
 * neighbours.
 *
 * bench_seal FOLDER [MEBIBYTES [THREADS [ROUNDS]]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "runtime/io/manifest.h"
#include "runtime/io/safetensors.h"
#include "runtime/base/files.h"

enum { TENSOR = 4 << 20, ROUNDS_MAX = 99 }; /* elements: 16 MiB, as of a layer of 1.7B parameters */

typedef struct bench {
    char *dir;
    gr_team *team;
    gr_st_spec *specs;
    size_t n;
    float *data;
} bench;

static void must(gr_status st, gr_diag *d)
{
    if (!st) return;
    fprintf(stderr, "%s\n", d->n ? d->messages[0].text : gr_status_str(st));
    exit(1);
}

typedef struct seconds {
    double clock, cpu;
} seconds;

static seconds now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (seconds){(double)gr_now_ns() * 1e-9, (double)t.tv_sec + (double)t.tv_nsec * 1e-9};
}

static seconds since(seconds start)
{
    const seconds end = now();
    return (seconds){end.clock - start.clock, end.cpu - start.cpu};
}

/* A checkpoint; *manifest: of it what comes behind the last file. */
static seconds save(const bench *b, bool sealed, double *manifest)
{
    gr_diag d;
    gr_diag_init(&d);
    gr_st_writer *w = NULL;
    gr_seal *seal = gr_seal_new();
    for (size_t i = 0; i < b->n; i++) gr_seal_add(seal, b->specs[i].name, TENSOR * sizeof(float));
    must(gr_path_remove(b->dir, &d), &d);
    must(gr_dir_make(b->dir, &d), &d);
    const seconds start = now();
    must(gr_st_writer_new(&w, b->dir, "model", GR_ST_F32, b->specs, b->n, 0, &d), &d);
    if (sealed) gr_st_writer_seal(w, seal);
    for (size_t i = 0; i < b->n; i++) must(gr_st_writer_put_part(w, b->team, i, 0, TENSOR, b->data, &d), &d);
    must(gr_st_writer_finish(w, &d), &d);
    const seconds written = now();
    gr_sealed_file file = {(char *)"model.safetensors", seal};
    if (sealed)
        must(gr_manifest_write(&(gr_manifest_head){.step = 1}, b->dir, &file, 1, NULL, b->team, &d), &d);
    *manifest = since(written).clock;
    const seconds taken = since(start);
    gr_st_writer_free(w);
    gr_seal_free(seal);
    gr_diag_release(&d);
    return taken;
}

/* All of it is read. */
static seconds load(const bench *b, bool held)
{
    gr_diag d;
    gr_diag_init(&d);
    gr_safetensors *s = NULL;
    gr_manifest *m = NULL;
    const seconds start = now();
    must(gr_safetensors_open(&s, b->dir, &d), &d);
    must(gr_manifest_read(&m, b->dir, &d), &d);
    if (held) must(gr_safetensors_hold(s, gr_manifest_seal(m, "model.safetensors"), &d), &d);
    for (size_t i = 0; i < b->n; i++)
        must(gr_safetensors_read_f32(s, b->specs[i].name, TENSOR, 0, b->data, &d), &d);
    const seconds taken = since(start);
    gr_safetensors_free(s);
    gr_manifest_free(m);
    gr_diag_release(&d);
    return taken;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, size_t n)
{
    qsort(x, n, sizeof(*x), by_value);
    return x[n / 2];
}

static void show_row(const char *what, const char *of, const seconds *with, const seconds *without, size_t n,
                     bool cpu)
{
    double a[ROUNDS_MAX], b[ROUNDS_MAX], ratio[ROUNDS_MAX];
    for (size_t i = 0; i < n; i++) {
        a[i] = cpu ? with[i].cpu : with[i].clock;
        b[i] = cpu ? without[i].cpu : without[i].clock;
        ratio[i] = a[i] / b[i];
    }
    const double r = median(ratio, n);
    printf("| %s, %s | %.3f | %.3f | %.3f |\n", what, of, median(b, n), median(a, n), r);
}

static void show(const char *what, const seconds *with, const seconds *without, size_t n)
{
    show_row(what, "clock", with, without, n, false);
    show_row(what, "processors", with, without, n, true);
}

static void run(const bench *b, size_t rounds)
{
    seconds with[ROUNDS_MAX] = {0}, without[ROUNDS_MAX] = {0};
    double manifest[ROUNDS_MAX], none;
    for (size_t i = 0; i < rounds; i++) {
        if (i % 2) without[i] = save(b, false, &none);
        with[i] = save(b, true, &manifest[i]);
        if (i % 2 == 0) without[i] = save(b, false, &none);
    }
    printf("| | seconds without | with | median ratio |\n|---|---|---|---|\n");
    show("written", with, without, rounds);
    with[0] = save(b, true, &none);
    for (size_t i = 0; i < rounds; i++) {
        without[i] = load(b, false);
        with[i] = load(b, true);
    }
    show("read, from memory", with, without, rounds);
    printf("the manifest alone: %.4f s\n", median(manifest, rounds));
}

int main(int argc, char **argv)
{
    const size_t mebibytes = argc > 2 ? (size_t)atoi(argv[2]) : 1024,
                 rounds = argc > 4 ? (size_t)atoi(argv[4]) : 9;
    bench b = {.n = GR_MAX(mebibytes / 16, (size_t)1)};
    if (argc < 2 || !rounds || rounds > ROUNDS_MAX ||
        gr_team_new(&b.team, argc > 3 ? (unsigned)atoi(argv[3]) : 1, NULL)) {
        fprintf(stderr, "usage: bench_seal FOLDER [MEBIBYTES [THREADS [ROUNDS]]]\n");
        return 2;
    }
    b.dir = gr_printf("%s/bench_seal", argv[1]);
    b.specs = gr_calloc(b.n, sizeof(*b.specs));
    b.data = gr_malloc(TENSOR * sizeof(*b.data));
    for (size_t i = 0; i < TENSOR; i++) b.data[i] = (float)i;
    for (size_t i = 0; i < b.n; i++)
        b.specs[i] = (gr_st_spec){gr_printf("layer.%zu", i), TENSOR, 0, false, 0, false, false};
    run(&b, rounds);
    gr_status st = gr_path_remove(b.dir, NULL);
    for (size_t i = 0; i < b.n; i++) free((char *)b.specs[i].name);
    free(b.specs);
    free(b.data);
    free(b.dir);
    gr_team_free(b.team);
    return st != GR_OK;
}
