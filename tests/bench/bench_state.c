/* tests/bench/bench_state.c: elements a second of AdamW on the host, on one thread, with training state in
 * its several types: bench_state [SECONDS]. Time of the processor counts, so others on the machine matter
 * little. */
#include "graphs/graph/graph.h"
#include "ops/kernels/kernels.h"
#include "ops/simd/simd.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

enum { N = 1 << 22 };

static double processor_s(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)r.ru_utime.tv_sec + (double)r.ru_utime.tv_usec * 1e-6;
}

typedef struct state {
    uint16_t *w, *low;
    float *g, *master, *m_scale, *v_scale;
    void *m, *v;
} state;

static state state_new(void)
{
    state s = {gr_calloc(N, 2),      gr_calloc(N, 2),      gr_calloc(N, 4), gr_calloc(N, 4),
               gr_calloc(N / 64, 4), gr_calloc(N / 64, 4), gr_calloc(N, 4), gr_calloc(N, 4)};
    for (uint32_t i = 0; i < N; i++) s.g[i] = (float)(i * 7919u % 1000u) * 1e-3f - 0.5f;
    return s;
}

static void state_free(state *s)
{
    free(s->w), free(s->low), free(s->g), free(s->master), free(s->m_scale), free(s->v_scale), free(s->m);
    free(s->v);
}

static double rate(gr_master master, gr_dtype moments, double seconds)
{
    state s = state_new();
    const gr_optim_range r = {.w = s.w,
                              .g = s.g,
                              .master = master == GR_MASTER_F32 ? s.master : NULL,
                              .low = master == GR_MASTER_SPLIT ? s.low : NULL,
                              .m = s.m,
                              .v = s.v,
                              .m_scale = s.m_scale,
                              .v_scale = s.v_scale,
                              .moments = moments};
    const double begin = processor_s();
    uint32_t n = 0;
    do {
        const gr_optim how = {1e-3, 0.9, 0.99, 1e-8, 0, ++n, 1, GR_OPTIM_ADAMW};
        gr_host_optim_step(&(gr_queue){0}, GR_BF16, &how, true, &r, N);
    } while (processor_s() - begin < seconds);
    state_free(&s);
    return n * (double)N / (processor_s() - begin);
}

int main(int argc, char **argv)
{
    static const char *const masters[] = {"none", "fp32", "split"}, *const moments[] = {"fp32", "bf16",
                                                                                        "int8"};
    const double seconds = argc > 1 ? strtod(argv[1], NULL) : 1;
    printf("%s, millions of elements a second\n", gr_simd_best()->name);
    for (int a = 0; a < 3; a++)
        for (int b = 0; b < 3; b++)
            printf("master %-5s  moments %s  %6.0f\n", masters[a], moments[b],
                   rate((gr_master)a, (gr_dtype)b, seconds) / 1e6);
    return 0;
}
