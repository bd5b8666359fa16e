/* tests/bench/bench_gemm.c: our matrix product against OpenBLAS's sgemm, call by call in turn, so that a busy
 * machine slows both. Prints GFLOP/s of the best call of each and the median of the ratios of neighbours.
 *
 * bench_gemm [threads [rounds]]
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ops/kernels/cpu/gemm.h"

void openblas_set_num_threads(int n);

struct shape {
    const char *form;
    size_t m, n, k;
};

/* What a training step of a small model (hidden 512, intermediate 1408, vocabulary 4096) and a layer of 1024
 * ask for: NT forward, NN and TN backward; and decoding with few rows. */
static const struct shape shapes[] = {
    {"NT", 2048, 1536, 512},  {"NT", 2048, 2816, 512},  {"NT", 2048, 512, 1408},  {"NT", 512, 4096, 512},
    {"NN", 2048, 512, 1536},  {"NN", 2048, 512, 2816},  {"NN", 2048, 1408, 512},  {"TN", 1536, 512, 2048},
    {"TN", 2816, 512, 2048},  {"TN", 512, 1408, 2048},  {"TN", 4096, 512, 512},   {"NT", 1024, 4096, 1024},
    {"NT", 1024, 6144, 1024}, {"NT", 1024, 1024, 3072}, {"NN", 1024, 1024, 6144}, {"TN", 6144, 1024, 1024},
    {"NT", 1, 3072, 1024},    {"NT", 8, 3072, 1024},    {"NT", 32, 3072, 1024},   {"NT", 64, 3072, 1024},
    {"NT", 96, 3072, 1024},
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static float *random_matrix(size_t n)
{
    float *x = gr_malloc(n * sizeof(*x));
    uint32_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) * 0x1p-23f - 1;
    }
    return x;
}

static void bench(const struct shape *s, gr_queue *q, int rounds, double *worst)
{
    const bool at = s->form[0] == 'T', bt = s->form[1] == 'T';
    const size_t lda = at ? s->m : s->k, ldb = bt ? s->k : s->n;
    float *a = random_matrix(s->m * s->k), *b = random_matrix(s->k * s->n);
    float *c = random_matrix(s->m * s->n), *c2 = random_matrix(s->m * s->n);
    gr_gemm_job job = {s->m, s->n, s->k, {a, lda, at}, {b, ldb, bt}, c, s->n, at, NULL};
    void *ws = gr_malloc(gr_gemm_ws_bytes(&job, gr_team_size(q->team)));
    double *ratio = gr_malloc((size_t)rounds * sizeof(*ratio)), best[2] = {1e30, 1e30};
    const double flop = 2.0 * (double)s->m * (double)s->n * (double)s->k;
    const int reps = (int)GR_MAX(1, 4e8 / flop);
    for (int r = -1; r < rounds; r++) {
        usleep(100000); /* OpenBLAS's threads spin on for a while after a call, on the cores we need */
        uint64_t t0 = gr_now_ns();
        for (int i = 0; i < reps; i++) gr_gemm(q, &job, ws);
        uint64_t t1 = gr_now_ns();
        for (int i = 0; i < reps; i++)
            cblas_sgemm(CblasRowMajor, at ? CblasTrans : CblasNoTrans, bt ? CblasTrans : CblasNoTrans,
                        (int)s->m, (int)s->n, (int)s->k, 1, a, (int)lda, b, (int)ldb, at ? 1 : 0, c2,
                        (int)s->n);
        double ours = (double)(t1 - t0), theirs = (double)(gr_now_ns() - t1);
        if (r < 0) continue;
        ratio[r] = theirs / ours;
        best[0] = GR_MIN(best[0], ours);
        best[1] = GR_MIN(best[1], theirs);
    }
    qsort(ratio, (size_t)rounds, sizeof(*ratio), by_value);
    printf("%s %5zu %5zu %5zu   %7.1f %7.1f GFLOP/s   best %5.2f   median %5.2f\n", s->form, s->m, s->n, s->k,
           reps * flop / best[0], reps * flop / best[1], best[1] / best[0], ratio[rounds / 2]);
    if (s->m > 64) *worst = GR_MIN(*worst, ratio[rounds / 2]);
    free(ratio), free(ws), free(a), free(b), free(c), free(c2);
}

int main(int argc, char **argv)
{
    unsigned threads = argc > 1 ? (unsigned)atoi(argv[1]) : 2;
    int rounds = argc > 2 ? atoi(argv[2]) : 15;
    gr_queue q = {.team = NULL};
    gr_diag d;
    gr_diag_init(&d);
    if (gr_team_new(&q.team, threads, &d)) return 1;
    openblas_set_num_threads((int)threads);
    double worst = 1e30;
    printf("%s, %u threads; ours, OpenBLAS\n", gr_simd_best()->name, threads);
    for (size_t i = 0; i < GR_LEN(shapes); i++) bench(&shapes[i], &q, rounds, &worst);
    printf("lowest median of more than 64 rows: %.2f\n", worst);
    gr_team_free(q.team);
    gr_diag_release(&d);
}
