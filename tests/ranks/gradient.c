/* tests/ranks/gradient.c: whether the gradients of two runs are the same: first moments that one optimizer
 * step has left, which are a share of it. usage: gradient A.safetensors B.safetensors MOST: of each tensor
 * the largest difference, over its largest value, is at most so much. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/io/safetensors.h"

static gr_safetensors *opened(const char *path, gr_diag *d)
{
    gr_safetensors *s = NULL;
    if (gr_safetensors_open(&s, path, d)) {
        fprintf(stderr, "%s\n", d->messages[0].text);
        exit(2);
    }
    return s;
}

static float *values(const gr_safetensors *s, const gr_st_tensor *t, gr_diag *d)
{
    const uint64_t rows = t->dims[0], cols = t->n_dims > 1 ? t->dims[t->n_dims - 1] : 0;
    float *x = gr_calloc(t->bytes / sizeof(float), sizeof(*x));
    if (gr_safetensors_read_f32(s, t->name, rows, cols, x, d)) {
        fprintf(stderr, "%s\n", d->messages[0].text);
        exit(2);
    }
    return x;
}

static double largest_of(const float *x, uint64_t n)
{
    double most = 0;
    for (uint64_t i = 0; i < n; i++) most = fmax(most, fabs((double)x[i]));
    return most;
}

/* Of all tensors. Those with less than a thousandth of it, such as an expert's that only tokens went to whose
 * gradient is what rounding left, are measured by that. */
static double scale_of(const gr_safetensors *s, gr_diag *d)
{
    double most = 0;
    for (size_t i = 0; i < gr_safetensors_count(s); i++) {
        const gr_st_tensor *t = gr_safetensors_at(s, i);
        if (strncmp(t->name, "m.", 2)) continue;
        float *x = values(s, t, d);
        most = fmax(most, largest_of(x, t->bytes / sizeof(float)));
        free(x);
    }
    return most;
}

/* The largest difference over the largest value, or over `least`; infinite where it is not a number. */
static double apart(const float *a, const float *b, uint64_t n, double least)
{
    double most = 0;
    for (uint64_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - b[i]);
        if (!(d <= most)) most = isnan(d) ? INFINITY : d;
    }
    return most / fmax(largest_of(a, n), least);
}

int main(int argc, char **argv)
{
    if (argc != 4) return 2;
    gr_diag d;
    gr_diag_init(&d);
    gr_safetensors *a = opened(argv[1], &d), *b = opened(argv[2], &d);
    uint32_t compared = 0, wrong = 0;
    double worst = 0;
    const double least = scale_of(a, &d) / 1000;
    for (size_t i = 0; i < gr_safetensors_count(a); i++) {
        const gr_st_tensor *t = gr_safetensors_at(a, i), *u = gr_safetensors_find(b, t->name);
        if (strncmp(t->name, "m.", 2)) continue;
        if (!u || u->bytes != t->bytes) {
            printf("%s is in one alone\n", t->name);
            wrong++;
            continue;
        }
        float *x = values(a, t, &d), *y = values(b, u, &d);
        const double off = apart(x, y, t->bytes / sizeof(float), least);
        if (!(off <= atof(argv[3]))) {
            printf("%s: %g\n", t->name, off);
            wrong++;
        }
        worst = fmax(worst, off);
        compared++;
        free(x);
        free(y);
    }
    printf("%u tensors, at most %g apart\n", compared, worst);
    gr_safetensors_free(a);
    gr_safetensors_free(b);
    gr_diag_release(&d);
    return wrong || !compared || !(least > 0);
}
