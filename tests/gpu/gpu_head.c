/* tests/gpu/gpu_head.c: statistics and gradients of rows of logits, and sampling, on a CUDA device against
 * loops in double and the CPU's sampling (ops/kernels/cuda/launch.h).
 *
 * --small: fewer rows of large vocabularies.
 * --bench: times instead, as bytes that must be read and written once, against the copy bandwidth of an H200.
 */
#include "tests/gpu/device.h"

#include "ops/kernels/cpu/head_cpu.h"

typedef enum kind { NORMAL, FLAT, TIES, HOLES, PEAK } kind;
static const char *const kinds[] = {"normal", "flat", "ties", "holes", "peak"};

static float *logits_of(uint32_t n, uint32_t V, kind k, uint64_t seed)
{
    float *z = gr_malloc((size_t)n * V * sizeof(*z));
    for (size_t i = 0; i < (size_t)n * V; i++) {
        const float x = random_float(&seed);
        z[i] = k == FLAT ? 0.01f * x : k == TIES ? rintf(4 * x) / 2 : 3 * x + 5;
        if (k == HOLES && i % V % 10 != 3) z[i] = -INFINITY;
        if (k == PEAK && i % V == V / 2) z[i] = 90;
    }
    return z;
}

static int32_t *targets_of(uint32_t n, uint32_t V)
{
    int32_t *target = gr_malloc(n * sizeof(*target));
    for (uint32_t i = 0; i < n; i++)
        target[i] = (int32_t)(i == 0 ? 0 : i == 1 ? V - 1 : (V / 2 + 977ull * i) % V);
    return target;
}

/* ---- statistics and gradient ----------------------------------------------------------------------------
 */

typedef struct row_stats {
    double lse, entropy, sum_p2;
} row_stats;

static row_stats stats_of(const float *z, uint32_t V, double inv_t)
{
    double max = -INFINITY, sum = 0, first = 0, second = 0;
    for (uint32_t i = 0; i < V; i++) max = fmax(max, (double)z[i] * inv_t);
    for (uint32_t i = 0; i < V; i++) {
        const double d = (double)z[i] * inv_t - max, e = exp(d);
        sum += e;
        if (e > 0) first += e * d;
        second += e * e;
    }
    return (row_stats){max + log(sum), log(sum) - first / sum, second / (sum * sum)};
}

static void check_gradient(const char *name, uint32_t n, uint32_t V, const float *z, const int32_t *target,
                           float inv_t, const float *lse, const float *entropy, bool with_entropy)
{
    uint64_t seed = 3;
    float *d_logprob = gr_malloc(n * 4), *d_entropy = gr_malloc(n * 4);
    for (uint32_t i = 0; i < n; i++)
        d_logprob[i] = random_float(&seed), d_entropy[i] = 0.1f * random_float(&seed);
    float *dz = device_copy(z, (size_t)n * V * 4), *d_lse = device_copy(lse, n * 4),
          *d_e = device_copy(entropy, n * 4);
    float *d_dl = device_copy(d_logprob, n * 4), *d_de = device_copy(d_entropy, n * 4);
    int32_t *d_target = device_copy(target, n * 4);
    const gr_cu_head_adjoint a = {.target = d_target,
                                  .lse = d_lse,
                                  .entropy = with_entropy ? d_e : NULL,
                                  .d_logprob = d_dl,
                                  .d_entropy = with_entropy ? d_de : NULL,
                                  .inv_temperature = inv_t,
                                  .n = n,
                                  .V = V};
    gr_cu_head_dlogits(NULL, dz, &a);
    gr_bf16 *got = take(name, dz, (size_t)n * V * 4);
    errors e = {0};
    for (uint32_t i = 0; i < n; i++) {
        const row_stats s = stats_of(z + (size_t)i * V, V, inv_t);
        for (uint32_t j = 0; j < V; j++) {
            const double logp = (double)z[(size_t)i * V + j] * inv_t - s.lse, p = exp(logp);
            double want = -p * d_logprob[i];
            if (with_entropy && p > 0) want -= (double)d_entropy[i] * p * (logp + s.entropy);
            if ((int32_t)j == target[i]) want += d_logprob[i];
            errors_add(&e, of_bf16(got[(size_t)i * 2 * V + j]), want * inv_t);
        }
    }
    report_errors(&e, name, with_entropy ? "d z e" : "d z", 4e-3);
    free(got), free(d_logprob), free(d_entropy);
    CUDA(cudaFree(d_lse));
    CUDA(cudaFree(d_e));
    CUDA(cudaFree(d_dl));
    CUDA(cudaFree(d_de));
    CUDA(cudaFree(d_target));
}

/* Rows of a case: of large vocabularies a few are enough where it is to be small. */
static uint32_t rows_of(uint32_t n, uint32_t V)
{
    return check_small && n > 2 && (uint64_t)n * V > 300000 ? 2 : n;
}

static void check_stats(uint32_t n, uint32_t V, kind k, float inv_t)
{
    char name[96];
    n = rows_of(n, V);
    snprintf(name, sizeof(name), "head n %u V %u %s 1/T %g", n, V, kinds[k], (double)inv_t);
    float *z = logits_of(n, V, k, 1), *dz = device_copy(z, (size_t)n * V * 4), *out[2][4];
    int32_t *target = targets_of(n, V), *d_target = device_copy(target, n * 4);
    if (k == HOLES)
        for (uint32_t i = 0; i < n; i++)
            target[i] = target[i] / 10 * 10 + 3 < (int32_t)V ? target[i] / 10 * 10 + 3 : 3;
    CUDA(cudaMemcpy(d_target, target, n * 4, cudaMemcpyHostToDevice));
    for (int r = 0; r < 2; r++) {
        float *d[4];
        for (int i = 0; i < 4; i++) d[i] = device_poisoned(n * 4);
        gr_cu_head_stats(NULL, dz, d_target, inv_t, n, V, d[0], d[1], d[2], d[3]);
        for (int i = 0; i < 4; i++) out[r][i] = take(name, d[i], n * 4);
    }
    static const char *const what[] = {"logp", "entr", "p2", "lse"};
    errors e[4] = {{0}};
    for (uint32_t i = 0; i < n; i++) {
        const row_stats s = stats_of(z + (size_t)i * V, V, inv_t);
        const double want[] = {(double)z[(size_t)i * V + (uint32_t)target[i]] * inv_t - s.lse, s.entropy,
                               s.sum_p2, s.lse};
        for (int m = 0; m < 4; m++) errors_add(&e[m], out[0][m][i], want[m]);
    }
    for (int m = 0; m < 4; m++) {
        if (k == PEAK && m == 1) /* of entropies near 0 only the absolute error means anything */
            report(sqrt(e[m].error2) < 1e-6, name, what[m], e[m].max_abs, sqrt(e[m].error2));
        else
            report_errors(&e[m], name, what[m], 3e-6);
        report_equal(name, "twice", out[0][m], out[1][m], n * 4);
    }
    check_gradient(name, n, V, z, target, inv_t, out[0][3], out[0][1], true);
    check_gradient(name, n, V, z, target, inv_t, out[0][3], out[0][1], false);
    for (int m = 0; m < 4; m++) free(out[0][m]), free(out[1][m]);
    free(z), free(target);
    CUDA(cudaFree(dz));
    CUDA(cudaFree(d_target));
}

/* Only what is asked is written. */
static void check_only_lse(void)
{
    enum { N = 5, V = 1003 };
    float *z = logits_of(N, V, NORMAL, 2), *dz = device_copy(z, N * V * 4), *d_lse = device_poisoned(N * 4);
    gr_cu_head_stats(NULL, dz, NULL, 1, N, V, NULL, NULL, NULL, d_lse);
    float *lse = take("head", d_lse, N * 4);
    errors e = {0};
    for (uint32_t i = 0; i < N; i++) errors_add(&e, lse[i], stats_of(z + i * V, V, 1).lse);
    report_errors(&e, "head, lse alone", "lse", 1e-6);
    free(z), free(lse);
    CUDA(cudaFree(dz));
}

/* ---- a teacher ------------------------------------------------------------------------------------------
 */

static const char *const divergences[] = {
    [GR_REVERSE_KL] = "reverse", [GR_FORWARD_KL] = "forward", [GR_JSD] = "jsd"};

typedef struct lesson {
    uint32_t n, V;
    float inv_t, beta;
    gr_divergence kind;
    const float *z, *taught;
} lesson;

/* Of one id: what it adds to the divergence and to KL(p || m), given log p and log t. */
static double lesson_part(const lesson *l, double p, double t, double *own)
{
    const double b = (double)l->beta, m = log(b * exp(t) + (1 - b) * exp(p));
    *own += exp(p) * (p - m);
    if (l->kind == GR_FORWARD_KL) return exp(t) * (t - p);
    if (l->kind == GR_REVERSE_KL) return exp(p) * (p - t);
    return b * exp(t) * (t - m) + (1 - b) * exp(p) * (p - m);
}

static double lesson_slope(const lesson *l, double p, double t, double divergence, double own)
{
    const double b = (double)l->beta;
    if (l->kind == GR_FORWARD_KL) return exp(p) - exp(t);
    if (l->kind == GR_REVERSE_KL) return exp(p) * (p - t - divergence);
    return (1 - b) * exp(p) * (p - log(b * exp(t) + (1 - b) * exp(p)) - own);
}

/* The formulas in double. slope [n, V]. */
static void lesson_want(const lesson *l, double *divergence, double *slope)
{
    for (uint32_t i = 0; i < l->n; i++) {
        const float *z = l->z + (size_t)i * l->V, *taught = l->taught + (size_t)i * l->V;
        const double lse = stats_of(z, l->V, l->inv_t).lse, taught_lse = stats_of(taught, l->V, l->inv_t).lse;
        double own = 0;
        divergence[i] = 0;
        for (uint32_t j = 0; j < l->V; j++)
            divergence[i] += lesson_part(l, (double)z[j] * (double)l->inv_t - lse,
                                         (double)taught[j] * (double)l->inv_t - taught_lse, &own);
        for (uint32_t j = 0; j < l->V; j++)
            slope[(size_t)i * l->V + j] =
                lesson_slope(l, (double)z[j] * (double)l->inv_t - lse,
                             (double)taught[j] * (double)l->inv_t - taught_lse, divergence[i], own);
    }
}

/* The slope alone becomes a gradient, and is added to the others. */
static void check_taught_gradient(const char *name, const lesson *l, const float *lse, const float *slope,
                                  const double *want)
{
    const uint64_t all = (uint64_t)l->n * l->V;
    float *weight = gr_malloc(l->n * 4), *zero = gr_calloc(l->n, 4);
    for (uint32_t i = 0; i < l->n; i++) weight[i] = 0.5f + 0.1f * (float)i;
    int32_t *target = targets_of(l->n, l->V), *d_target = device_copy(target, l->n * 4);
    float *dz = device_copy(l->z, all * 4), *d_weight = device_copy(weight, l->n * 4),
          *d_zero = device_copy(zero, l->n * 4);
    gr_cu_head_dlogits(NULL, dz,
                       &(gr_cu_head_adjoint){.target = d_target,
                                             .lse = lse,
                                             .d_logprob = d_zero,
                                             .slope = slope,
                                             .d_divergence = d_weight,
                                             .inv_temperature = l->inv_t,
                                             .n = l->n,
                                             .V = l->V});
    gr_bf16 *got = take(name, dz, all * 4);
    errors e = {0};
    for (uint32_t i = 0; i < l->n; i++)
        for (uint32_t j = 0; j < l->V; j++)
            errors_add(&e, of_bf16(got[(size_t)i * 2 * l->V + j]),
                       want[(size_t)i * l->V + j] * (double)weight[i] * (double)l->inv_t);
    report_errors(&e, name, "d z", 4e-3);
    free(got), free(weight), free(zero), free(target);
    CUDA(cudaFree(d_target)), CUDA(cudaFree(d_weight)), CUDA(cudaFree(d_zero));
}

static void check_teach(uint32_t n, uint32_t V, gr_divergence how, float beta, float inv_t)
{
    char name[96];
    n = rows_of(n, V);
    snprintf(name, sizeof(name), "teach n %u V %u %s 1/T %g", n, V, divergences[how], (double)inv_t);
    float *z = logits_of(n, V, NORMAL, 5), *taught = logits_of(n, V, NORMAL, 6);
    const lesson l = {n, V, inv_t, beta, how, z, taught};
    const uint64_t all = (uint64_t)n * V;
    double *divergence = gr_malloc(n * sizeof(double)), *slope = gr_malloc(all * sizeof(double));
    float *dz = device_copy(z, all * 4), *d_taught = device_copy(taught, all * 4),
          *lse = device_poisoned(n * 4), *d_divergence = device_poisoned(n * 4);
    lesson_want(&l, divergence, slope);
    gr_cu_head_stats(NULL, dz, NULL, inv_t, n, V, NULL, NULL, NULL, lse);
    gr_cu_teach(NULL, &(gr_cu_teach_call){dz, lse, d_taught, d_divergence, how, beta, inv_t, n, V});
    float *got = take(name, d_divergence, n * 4), *got_slope = gr_malloc(all * 4);
    CUDA(cudaMemcpy(got_slope, d_taught, all * 4, cudaMemcpyDefault));
    errors far = {0}, by = {0};
    for (uint32_t i = 0; i < n; i++) errors_add(&far, got[i], divergence[i]);
    for (uint64_t i = 0; i < all; i++) errors_add(&by, got_slope[i], slope[i]);
    report_errors(&far, name, "divergence", 1e-5);
    report_errors(&by, name, "slope", 2e-5);
    check_taught_gradient(name, &l, lse, d_taught, slope);
    free(got), free(got_slope), free(z), free(taught), free(divergence), free(slope);
    CUDA(cudaFree(dz)), CUDA(cudaFree(d_taught)), CUDA(cudaFree(lse));
}

static void test_teach(void)
{
    check_teach(3, 2, GR_REVERSE_KL, 0.5f, 1);
    check_teach(5, 17, GR_JSD, 0.3f, 1.25f);
    check_teach(7, 1003, GR_FORWARD_KL, 0.5f, 0.7f);
    check_teach(9, 32000, GR_REVERSE_KL, 0.5f, 1);
    check_teach(4, 50257, GR_JSD, 0.9f, 1);
    check_teach(12, 151936, GR_JSD, 0.5f, 1);
    check_teach(3, 151936, GR_FORWARD_KL, 0.5f, 2);
}

static void test_head(void)
{
    check_stats(3, 1, NORMAL, 1);
    check_stats(4, 17, NORMAL, 1);
    check_stats(7, 1000, PEAK, 1.25f);
    check_stats(9, 1001, NORMAL, 0.7f);
    check_stats(6, 1003, HOLES, 1);
    check_stats(5, 4100, TIES, 1); /* a multiple of 4, not of 8 */
    check_stats(40, 32000, FLAT, 1);
    check_stats(6, 50257, NORMAL, 1);
    check_stats(12, 151936, NORMAL, 1);
    check_stats(3, 151936, HOLES, 2);
    check_stats(3, 262144, PEAK, 0.5f);
    check_only_lse();
}

/* ---- the product with its statistics ----------------------------------------------------------------------
 */

typedef struct fused {
    uint32_t n, V, H;
    float inv_t;
    gr_bf16 *x, *lm;
    int32_t *target;
} fused;

enum { FUSED_STATS = 4 };

/* Rows [first, first + n) through product and merge: statistics into out, [n] each, and the logits where
 * asked. */
static void run_fused(const fused *f, const char *name, uint32_t first, uint32_t n, float *out[FUSED_STATS],
                      float **logits)
{
    float *d[FUSED_STATS];
    for (int i = 0; i < FUSED_STATS; i++) d[i] = device_poisoned(n * 4);
    const gr_cu_head_rows r = {.x = f->x + (size_t)first * f->H,
                               .lm = f->lm,
                               .target = f->target + first,
                               .inv_temperature = f->inv_t,
                               .n = n,
                               .V = f->V,
                               .H = f->H,
                               .part = device_poisoned(gr_cu_head_part_bytes(n, f->V)),
                               .logit = device_poisoned(n * 4),
                               .logits = logits ? device_poisoned((size_t)n * f->V * 4) : NULL};
    if (!gr_cu_head_product(NULL, &r)) report(false, name, "launch", 0, 0);
    gr_cu_head_merge(NULL, &r, d[0], d[1], d[2], d[3]);
    for (int i = 0; i < FUSED_STATS; i++) out[i] = take(name, d[i], n * 4);
    free(take(name, r.logit, n * 4));
    free(take(name, r.part, gr_cu_head_part_bytes(n, f->V)));
    if (logits) *logits = take(name, r.logits, (size_t)n * f->V * 4);
}

/* Some logits against sums in double of the same bf16 values; all of them are looked at for poison by the
 * statistics. */
static void check_fused_logits(const char *name, const fused *f, const gr_bf16 *x, const gr_bf16 *lm,
                               const float *z)
{
    errors e = {0};
    uint64_t at = 12345;
    for (int i = 0; i < 4096; i++) {
        at = at * UINT64_C(6364136223846793005) + 1;
        uint32_t row = (uint32_t)(at >> 33) % f->n, id = (uint32_t)(at >> 13) % f->V;
        if (i < 256) row = i % 2 ? f->n - 1 : 0, id = f->V - 1 - GR_MIN(f->V - 1, (uint32_t)i / 2);
        double want = 0;
        for (uint32_t k = 0; k < f->H; k++)
            want += (double)of_bf16(x[(size_t)row * f->H + k]) * of_bf16(lm[(size_t)id * f->H + k]);
        errors_add(&e, z[(size_t)row * f->V + id], want);
    }
    report_errors(&e, name, "logits", 1e-5);
}

static void check_fused(uint32_t n, uint32_t V, uint32_t H, float inv_t)
{
    static const char *const what[] = {"logp", "entr", "p2", "lse"};
    char name[96];
    snprintf(name, sizeof(name), "fused n %u V %u H %u 1/T %g", n, V, H, (double)inv_t);
    gr_bf16 *x = random_bf16((size_t)n * H, 1, 1), *lm = random_bf16((size_t)V * H, 3 / sqrtf((float)H), 2);
    int32_t *target = targets_of(n, V);
    const fused f = {n,
                     V,
                     H,
                     inv_t,
                     device_copy(x, (size_t)n * H * 2),
                     device_copy(lm, (size_t)V * H * 2),
                     device_copy(target, n * 4)};
    float *out[FUSED_STATS], *bare[FUSED_STATS], *some[FUSED_STATS], *z;
    const uint32_t from = n / 3, count = GR_MIN(n - from, 70u);
    run_fused(&f, name, 0, n, out, &z);
    run_fused(&f, name, 0, n, bare, NULL);
    run_fused(&f, name, from, count, some, NULL);
    check_fused_logits(name, &f, x, lm, z);
    errors e[FUSED_STATS] = {{0}};
    for (uint32_t i = 0; i < n; i++) {
        const row_stats s = stats_of(z + (size_t)i * V, V, inv_t);
        const double want[] = {(double)z[(size_t)i * V + (uint32_t)target[i]] * inv_t - s.lse, s.entropy,
                               s.sum_p2, s.lse};
        for (int m = 0; m < FUSED_STATS; m++) errors_add(&e[m], out[m][i], want[m]);
    }
    for (int m = 0; m < FUSED_STATS; m++) {
        report_errors(&e[m], name, what[m], 1e-5);
        if (memcmp(out[m], bare[m], n * 4)) report_equal(name, "bare", out[m], bare[m], n * 4);
        if (memcmp(out[m] + from, some[m], count * 4))
            report_equal(name, "batch", out[m] + from, some[m], count * 4);
        free(out[m]), free(bare[m]), free(some[m]);
    }
    free(z), free(x), free(lm), free(target);
    CUDA(cudaFree((void *)f.x));
    CUDA(cudaFree((void *)f.lm));
    CUDA(cudaFree((void *)f.target));
}

static void test_fused(void)
{
    gr_bf16 *probe = device_poisoned(256);
    const bool fuses = gr_cu_head_fuses(probe, 64);
    CUDA(cudaFree(probe));
    if (!fuses) {
        printf("the head's product with its statistics: not on this device\n");
        return;
    }
    check_fused(1, 1, 8, 1);
    check_fused(3, 17, 8, 0.7f);
    check_fused(5, 255, 72, 1);
    check_fused(129, 256, 64, 1);
    check_fused(257, 511, 136, 1.4f);
    check_fused(300, 5001, 1000, 1);
    check_fused(2100, 1030, 192, 1); /* more than one band of rows */
    check_fused(4400, 3000, 320, 1); /* and more tiles than clusters, in several rounds */
    check_fused(7, check_small ? 20000 : 151936, 1024, 1);
    check_fused(70, check_small ? 20000 : 151936, check_small ? 256 : 4096, 0.5f);
}

/* ---- sampling: the definition in double ------------------------------------------------------------------
 */

typedef struct sample_case {
    uint32_t n, V;
    kind kind;
    float temperature, top_p;
    uint32_t top_k;
} sample_case;

static const float *order_by; /* of compare_ids */

static int compare_ids(const void *a, const void *b)
{
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    if (order_by[i] != order_by[j]) return order_by[i] > order_by[j] ? -1 : 1;
    return (i > j) - (i < j);
}

/* How many of the order are kept, and their weight. */
static uint32_t keep(const gr_sampling *how, const float *z, const uint32_t *order, const double *weight,
                     uint32_t V, double *total)
{
    uint32_t kept = V;
    double sum = 0, all = 0;
    if (how->top_k && how->top_k < V) {
        kept = how->top_k;
        while (kept < V && z[order[kept]] == z[order[kept - 1]]) kept++;
    }
    for (uint32_t i = 0; i < kept; i++) all += weight[order[i]];
    *total = all;
    if (!(how->top_p < 1)) return kept;
    uint32_t p = 0;
    while (p < kept && (!p || sum < (double)how->top_p * all)) sum += weight[order[p++]];
    *total = sum;
    return p;
}

typedef struct judged {
    uint32_t same;  /* as the definition has it */
    uint32_t wrong; /* and not for rounding at an edge */
} judged;

/* Rounding may move an edge of the cumulative distribution by some 2^-20 of the whole. */
static void judge(judged *j, const gr_sampling *how, const uint32_t draw[2], const float *logits, uint32_t V,
                  int32_t id)
{
    const float inv = how->temperature > 0 ? 1 / how->temperature : 1;
    float *z = gr_malloc(V * sizeof(*z)), max = -INFINITY;
    double *weight = gr_malloc(V * sizeof(*weight)), total = 0, before = 0;
    uint32_t *order = gr_malloc(V * sizeof(*order)), first = 0, out[4];
    for (uint32_t i = 0; i < V; i++) {
        z[i] = logits[i] * inv;
        if (z[i] > max) max = z[i], first = i;
        order[i] = i;
    }
    for (uint32_t i = 0; i < V; i++) weight[i] = exp((double)z[i] - (double)max);
    uint32_t kept = V;
    if (how->top_p < 1 || (how->top_k && how->top_k < V)) {
        order_by = z;
        qsort(order, V, sizeof(*order), compare_ids);
        kept = keep(how, z, order, weight, V, &total);
    } else {
        for (uint32_t i = 0; i < V; i++) total += weight[i];
    }
    gr_philox(how->seed, how->stream, (uint32_t[4]){draw[0], draw[1], 0, 0}, out);
    const double u = ((double)(out[0] >> 5) * 0x1p26 + (double)(out[1] >> 6) + 0.5) * 0x1p-53;
    const double at = u * total, slack = 4e-6 * total;
    bool same = false, near = false;
    for (uint32_t i = 0; i < V && before <= total + slack; i++) {
        const double w = weight[order[i]];
        if ((int32_t)order[i] == id && w > 0) {
            same = i < kept && before <= at && at < before + w;
            near = before - slack <= at && at <= before + w + slack;
        }
        before += w;
    }
    if (!(how->temperature > 0)) same = near = id == (int32_t)first;
    j->same += same;
    j->wrong += !near;
    free(z), free(weight), free(order);
}

/* ---- sampling on the device ------------------------------------------------------------------------------
 */

typedef struct sampled {
    int32_t *id;
    float *logprob;
} sampled;

static sampled sample(const char *name, const float *d_logits, const gr_sampling *how,
                      const uint32_t (*draw)[2], uint32_t n, uint32_t V)
{
    const gr_cu_sampling h = {how->temperature, how->top_p, how->top_k, how->seed, how->stream};
    gr_cu_sampling *d_how = device_copy(&h, sizeof(h));
    uint32_t(*d_draw)[2] = device_copy(draw, n * sizeof(*draw));
    int32_t *id = device_poisoned(n * 4);
    float *logprob = device_poisoned(n * 4);
    void *ws = device_poisoned(gr_cu_sample_ws(n, V));
    gr_cu_sample(NULL, d_logits, d_how, (const uint32_t(*)[2])d_draw, id, logprob, n, V, ws);
    sampled s = {take(name, id, n * 4), take(name, logprob, n * 4)};
    check_tail(name, ws, gr_cu_sample_ws(n, V));
    CUDA(cudaFree(ws));
    CUDA(cudaFree(d_how));
    CUDA(cudaFree(d_draw));
    return s;
}

static uint32_t (*draws_of(uint32_t n))[2]
{
    uint32_t(*draw)[2] = gr_malloc(n * sizeof(*draw));
    for (uint32_t i = 0; i < n; i++) draw[i][0] = 1000 + i / 7, draw[i][1] = i % 7 * 13;
    return draw;
}

static gr_sampling sampling(float temperature, float top_p, uint32_t top_k)
{
    return (gr_sampling){
        .temperature = temperature, .top_p = top_p, .top_k = top_k, .seed = 77, .stream = gr_stream("test")};
}

/* Alone, a row gives the same bits as among others; twice, the same; and the log-prob is the head's. */
static void check_bits(const char *name, const float *dz, const gr_sampling *how, uint32_t (*draw)[2],
                       uint32_t n, uint32_t V, const sampled *s)
{
    const uint32_t last = n - 1;
    if (V % 4 == 0) { /* else a row does not begin on 16 bytes */
        const sampled alone =
            sample(name, dz + (size_t)last * V, how, (const uint32_t(*)[2])(draw + last), 1, V);
        report_equal(name, "alone", alone.id, s->id + last, 4);
        report_equal(name, "alone", alone.logprob, s->logprob + last, 4);
        free(alone.id), free(alone.logprob);
    }
    const sampled again = sample(name, dz, how, (const uint32_t(*)[2])draw, n, V);
    report_equal(name, "twice", again.id, s->id, n * 4);
    free(again.id), free(again.logprob);
    int32_t *d_id = device_copy(s->id, n * 4);
    float *d_logprob = device_poisoned(n * 4), *d_lse = device_poisoned(n * 4);
    const float inv = how->temperature > 0 ? 1 / how->temperature : 1;
    gr_cu_head_stats(NULL, dz, d_id, inv, n, V, d_logprob, NULL, NULL, d_lse);
    float *logprob = take(name, d_logprob, n * 4);
    report_equal(name, "head's", logprob, s->logprob, n * 4);
    free(logprob);
    CUDA(cudaFree(d_id));
    CUDA(cudaFree(d_lse));
}

static void check_sample(const sample_case *c)
{
    char name[96];
    snprintf(name, sizeof(name), "sample n %u V %u %s T %g k %u p %g", c->n, c->V, kinds[c->kind],
             (double)c->temperature, c->top_k, (double)c->top_p);
    const gr_sampling how = sampling(c->temperature, c->top_p, c->top_k);
    float *z = logits_of(c->n, c->V, c->kind, 5), *dz = device_copy(z, (size_t)c->n * c->V * 4);
    uint32_t(*draw)[2] = draws_of(c->n);
    const sampled s = sample(name, dz, &how, (const uint32_t(*)[2])draw, c->n, c->V);
    judged j = {0};
    errors e = {0};
    const double inv_t = c->temperature > 0 ? 1 / (double)c->temperature : 1;
    for (uint32_t i = 0; i < c->n; i++) {
        const float *row = z + (size_t)i * c->V;
        if (s.id[i] < 0 || s.id[i] >= (int32_t)c->V) {
            j.wrong++;
            continue;
        }
        judge(&j, &how, draw[i], row, c->V, s.id[i]);
        errors_add(&e, s.logprob[i], (double)row[s.id[i]] * inv_t - stats_of(row, c->V, inv_t).lse);
    }
    printf("%-52s %-6s %u of %u as defined, %u wrong         %s\n", name, "ids", j.same, c->n, j.wrong,
           j.wrong ? "FAIL" : "OK");
    check_failures += j.wrong > 0;
    report_errors(&e, name, "logp", 3e-6);
    check_bits(name, dz, &how, draw, c->n, c->V, &s);
    free(z), free(draw), free(s.id), free(s.logprob);
    CUDA(cudaFree(dz));
}

static void test_sample(void)
{
    static const sample_case cases[] = {
        {3, 1, NORMAL, 1, 1, 0},           {500, 17, NORMAL, 1, 1, 0},
        {500, 17, NORMAL, 0.7f, 0.8f, 0},  {500, 17, TIES, 1, 1, 3},
        {300, 1000, NORMAL, 0, 1, 0},      {300, 1000, TIES, 0, 0.5f, 5},
        {300, 1000, NORMAL, 1, 1, 0},      {300, 1000, TIES, 1.3f, 1, 0},
        {300, 1001, NORMAL, 0.6f, 1, 0},   {300, 1001, NORMAL, 1, 0.9f, 0},
        {300, 1000, NORMAL, 1, 0.9f, 50},  {300, 1000, TIES, 1, 0.7f, 0},
        {300, 1000, TIES, 1, 1, 20},       {300, 1000, FLAT, 1, 0.9f, 900},
        {300, 1000, HOLES, 1, 0.99f, 0},   {300, 1000, HOLES, 1, 1, 400},
        {300, 1000, PEAK, 1, 0.9f, 40},    {100, 1000, NORMAL, 1, 0, 0},
        {100, 1000, NORMAL, 1, 1, 1},      {100, 1000, NORMAL, 1, 1, 999},
        {100, 1000, NORMAL, 1, 1, 5000},   {40, 50257, NORMAL, 1, 0.95f, 0},
        {24, 151936, NORMAL, 0, 1, 0},     {24, 151936, NORMAL, 1, 1, 0},
        {24, 151936, FLAT, 1, 1, 0},       {24, 151936, HOLES, 1, 1, 0},
        {24, 151936, NORMAL, 1, 0.95f, 0}, {24, 151936, FLAT, 1, 0.95f, 0},
        {24, 151936, NORMAL, 1, 1, 50},    {24, 151936, TIES, 1, 0.9f, 200},
        {24, 151936, PEAK, 0.5f, 0.9f, 0}, {12, 262144, FLAT, 1, 0.5f, 100000},
    };
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        sample_case c = cases[i];
        c.n = rows_of(c.n, c.V);
        check_sample(&c);
    }
}

/* Frequencies of many draws from one row against its probabilities: chi squared of 16 degrees of freedom. */
static void test_frequencies(float top_p)
{
    enum { V = 17 };
    const uint32_t N = check_small ? 2000 : 20000;
    float *one = logits_of(1, V, NORMAL, 8), *z = gr_malloc(N * V * sizeof(*z));
    for (uint32_t i = 0; i < N * V; i++) z[i] = one[i % V] / 3;
    const gr_sampling how = sampling(1, top_p, 0);
    float *dz = device_copy(z, N * V * 4);
    uint32_t(*draw)[2] = draws_of(N);
    const sampled s = sample("frequencies", dz, &how, (const uint32_t(*)[2])draw, N, V);
    double weight[V], total, chi2 = 0;
    uint32_t count[V] = {0}, order[V];
    for (uint32_t i = 0; i < V; i++) weight[i] = exp((double)z[i]), order[i] = i;
    order_by = z;
    qsort(order, V, sizeof(*order), compare_ids);
    const uint32_t kept = keep(&how, z, order, weight, V, &total);
    for (uint32_t i = 0; i < N; i++) count[s.id[i]]++;
    for (uint32_t i = 0; i < kept; i++) {
        const double want = N * weight[order[i]] / total, x = count[order[i]] - want;
        chi2 += x * x / want;
    }
    for (uint32_t i = kept; i < V; i++) chi2 += 1000 * count[order[i]];
    printf("%-52s %-6s chi2 %.1f of %u kept  %s\n", "sample frequencies", "", chi2, kept,
           chi2 < 45 ? "OK" : "FAIL");
    check_failures += !(chi2 < 45);
    free(one), free(z), free(draw), free(s.id), free(s.logprob);
    CUDA(cudaFree(dz));
}

/* The CPU's kernel and the device's on the CPU's logits. */
static void check_beside_cpu(const gr_sampling *how)
{
    enum { N = 256, V = 1500, H = 64 };
    const gr_model_shape shape = {.vocab = V, .hidden = H, .norm_eps = 1e-6f, .logit_scale = 1};
    gr_queue q = {0};
    uint64_t seed = 9;
    float *lm = gr_malloc(V * H * 4), *x = gr_malloc(N * H * 4), norm[H];
    for (uint32_t i = 0; i < V * H; i++) lm[i] = 0.3f * random_float(&seed);
    for (uint32_t i = 0; i < N * H; i++) x[i] = random_float(&seed);
    for (uint32_t i = 0; i < H; i++) norm[i] = 1;
    uint32_t row[N], (*draw)[2] = draws_of(N);
    for (uint32_t i = 0; i < N; i++) row[i] = i;
    int32_t id[N];
    float logprob[N];
    void *ws = gr_malloc(gr_cpu_head_ws_bytes(&shape, N, GR_HEAD_TRUNCATE, 1) + 256);
    gr_workspace c = {.base = (char *)(((uintptr_t)ws + 255) / 256 * 256)};
    void *const base = c.base;
    gr_head_ws w;
    gr_head_ws_layout(&c, &shape, N, GR_HEAD_TRUNCATE, 1, &w);
    gr_head_logits(&q, &shape, norm, lm, x, row, N, 1, &w);
    float *dz = device_copy(w.logits, N * V * 4);
    gr_cpu_head_sample(&q, &shape, norm, lm, x, row, N, how, (const uint32_t(*)[2])draw, id, logprob, base);
    const sampled s = sample("cpu", dz, how, (const uint32_t(*)[2])draw, N, V);
    uint32_t same = 0;
    errors e = {0};
    for (uint32_t i = 0; i < N; i++) {
        same += s.id[i] == id[i];
        if (s.id[i] == id[i]) errors_add(&e, s.logprob[i], logprob[i]);
    }
    char name[96];
    snprintf(name, sizeof(name), "sample beside the CPU T %g k %u p %g", (double)how->temperature, how->top_k,
             (double)how->top_p);
    printf("%-52s %-6s %u of %u the same                 %s\n", name, "ids", same, (unsigned)N,
           same == N ? "OK" : "FAIL");
    check_failures += same != N;
    report_errors(&e, name, "logp", 3e-6);
    free(lm), free(x), free(draw), free(ws), free(s.id), free(s.logprob);
    CUDA(cudaFree(dz));
}

static void test_beside_cpu(void)
{
    const gr_sampling hows[] = {sampling(0, 1, 0),    sampling(1, 1, 0),         sampling(0.7f, 1, 0),
                                sampling(1, 0.9f, 0), sampling(1.5f, 0.95f, 40), sampling(1, 1, 10)};
    for (size_t i = 0; i < GR_LEN(hows); i++) check_beside_cpu(&hows[i]);
}

/* ---- times ----------------------------------------------------------------------------------------------
 */

typedef struct bench {
    uint32_t n, V;
    float *logits, *taught, *out[4];
    int32_t *target;
    gr_cu_sampling *how;
    uint32_t (*draw)[2];
    void *ws;
} bench;

static void run_stats(void *arg, int i)
{
    (void)i;
    const bench *b = arg;
    gr_cu_head_stats(NULL, b->logits, b->target, 1, b->n, b->V, b->out[0], b->out[1], b->out[2], b->out[3]);
}

static void run_gradient(void *arg, int i)
{
    (void)i;
    const bench *b = arg;
    gr_cu_head_dlogits(NULL, b->logits,
                       &(gr_cu_head_adjoint){.target = b->target,
                                             .lse = b->out[3],
                                             .entropy = b->out[1],
                                             .d_logprob = b->out[0],
                                             .d_entropy = b->out[2],
                                             .inv_temperature = 1,
                                             .n = b->n,
                                             .V = b->V});
}

static void run_teach(void *arg, int i)
{
    (void)i;
    const bench *b = arg;
    gr_cu_teach(NULL,
                &(gr_cu_teach_call){b->logits, b->out[3], b->taught, b->out[1], GR_JSD, 0.5f, 1, b->n, b->V});
}

static void run_sample(void *arg, int i)
{
    (void)i;
    const bench *b = arg;
    gr_cu_sample(NULL, b->logits, b->how, (const uint32_t(*)[2])b->draw, b->target, b->out[0], b->n, b->V,
                 b->ws);
}

static void bench_sample(bench *b, uint32_t n, const char *what, float scale, gr_cu_sampling how)
{
    const size_t total = (size_t)n * b->V;
    float *z = gr_malloc(MILLION * sizeof(*z));
    uint64_t seed = 12;
    for (size_t i = 0; i < MILLION; i++) z[i] = scale * random_float(&seed);
    CUDA(cudaFree(b->logits));
    b->logits = device_repeat(z, MILLION * sizeof(*z), total * 4);
    free(z);
    b->n = n;
    CUDA(cudaMemcpy(b->how, &how, sizeof(how), cudaMemcpyHostToDevice));
    bench_line("sample", run_sample, b, (double)total * 4, "n %u V %u %s", n, b->V, what);
}

static void run_bench(void)
{
    enum { N = 2048, V = 151936 };
    bench b = {.n = N, .V = V};
    uint32_t(*draw)[2] = draws_of(N);
    int32_t *target = targets_of(N, V);
    float *z = logits_of(7, V, NORMAL, 11);
    b.logits = device_repeat(z, 7ull * V * 4, (size_t)N * V * 4);
    b.taught = device_repeat(z, 7ull * V * 4, (size_t)N * V * 4);
    b.target = device_copy(target, N * 4);
    b.draw = device_copy(draw, N * sizeof(*draw));
    b.how = device_poisoned(sizeof(*b.how));
    b.ws = device_poisoned(gr_cu_sample_ws(N, V));
    for (int i = 0; i < 4; i++) b.out[i] = device_random_f32(N, 50 + (uint64_t)i);
    free(draw), free(target), free(z);
    bench_line("head_stats", run_stats, &b, 4.0 * N * V, "n %u V %u", b.n, b.V);
    bench_line("head_teach", run_teach, &b, 24.0 * N * V, "n %u V %u", b.n, b.V);
    bench_line("head_dlogits", run_gradient, &b, 6.0 * N * V, "n %u V %u", b.n, b.V);
    static const uint32_t rows[] = {1, 16, 256, 1024};
    for (size_t i = 0; i < GR_LEN(rows); i++) {
        bench_sample(&b, rows[i], "greedy", 3, (gr_cu_sampling){0, 1, 0, 1, 2});
        bench_sample(&b, rows[i], "full", 3, (gr_cu_sampling){1, 1, 0, 1, 2});
        bench_sample(&b, rows[i], "p .95", 3, (gr_cu_sampling){1, 0.95f, 0, 1, 2});
        bench_sample(&b, rows[i], "k 50", 3, (gr_cu_sampling){1, 1, 50, 1, 2});
        bench_sample(&b, rows[i], "p .95, flat", 0.3f, (gr_cu_sampling){1, 0.95f, 0, 1, 2});
    }
}

int main(int argc, char **argv)
{
    need_device();
    if (read_options(argc, argv)) {
        run_bench();
        return 0;
    }
    test_head();
    test_teach();
    test_fused();
    test_sample();
    test_frequencies(1);
    test_frequencies(0.8f);
    test_beside_cpu();
    CUDA(cudaGetLastError());
    printf("%d failed\n", check_failures);
    return check_failures ? 1 : 0;
}
