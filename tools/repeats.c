/* tools/repeats.c: see its header. */
#include "tools/repeats.h"

#include <dirent.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void gr_repeats_release(gr_repeats *r)
{
    free(r->list);
    *r = (gr_repeats){0};
}

void gr_repeats_round(gr_repeats *r)
{
    r->at = 0;
}

void gr_repeats_add(gr_repeats *r, double seconds, const char *name, ...)
{
    if (r->at == r->n) {
        gr_repeat one = {.least = INFINITY};
        va_list ap;
        va_start(ap, name);
        vsnprintf(one.name, sizeof(one.name), name, ap);
        va_end(ap);
        GR_PUSH(r->list, r->n, r->cap, one);
    }
    gr_repeat *one = &r->list[r->at++];
    one->least = fmin(one->least, seconds);
    one->most = fmax(one->most, seconds);
    one->sum += seconds;
    one->n++;
}

double gr_repeat_spread(const gr_repeat *r)
{
    return r->n > 1 && r->sum > 0 ? (r->most - r->least) * r->n / r->sum : 0;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double gr_repeats_usual(const gr_repeats *r)
{
    double *spread = gr_calloc(r->n + 1, sizeof(*spread)), usual = NAN;
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n; i++)
        if (r->list[i].n > 1) spread[n++] = gr_repeat_spread(&r->list[i]);
    qsort(spread, n, sizeof(*spread), ascending);
    if (n) usual = spread[n / 2];
    free(spread);
    return usual;
}

const gr_repeat *gr_repeats_worst(const gr_repeats *r)
{
    const gr_repeat *worst = NULL;
    for (uint32_t i = 0; i < r->n; i++)
        if (r->list[i].n > 1 && (!worst || gr_repeat_spread(&r->list[i]) > gr_repeat_spread(worst)))
            worst = &r->list[i];
    return worst;
}

static void add_turns(gr_turns *t, const char *thread)
{
    char path[64 + NAME_MAX];
    unsigned long long ran, waited;
    snprintf(path, sizeof(path), "/proc/self/task/%s/schedstat", thread);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%llu %llu", &ran, &waited) == 2) t->ran += ran, t->waited += waited;
    if (f) fclose(f);
}

gr_turns gr_turns_read(void)
{
    gr_turns t = {0};
    DIR *threads = opendir("/proc/self/task");
    for (struct dirent *e; threads && (e = readdir(threads));)
        if (e->d_name[0] != '.') add_turns(&t, e->d_name);
    if (threads) closedir(threads);
    return t;
}

double gr_turns_waited(const gr_turns *since, const gr_turns *now)
{
    const double ran = (double)now->ran - (double)since->ran,
                 waited = (double)now->waited - (double)since->waited;
    return ran > 0 && waited > 0 ? waited / (ran + waited) : 0;
}

double gr_load_of(const char *loadavg, unsigned processors)
{
    double minute = 0;
    if (sscanf(loadavg, "%lf", &minute) != 1 || !(minute > 0) || !processors) return 0;
    return minute / processors;
}
