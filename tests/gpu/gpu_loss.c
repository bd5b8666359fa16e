/* tests/gpu/gpu_loss.c: losses on the device (ops/loss_device.h) beside the CPU evaluator
 * (graphs/expr/loss.h): every stage, losses of all classes and the instructions that need other sequences,
 * one token to half a million (--small: fifteen thousand).
 *
 * --bench: microseconds of each stage of a PPO loss.
 */
#include "tests/gpu/device.h"

#include "graphs/expr/code_new.h"
#include "ops/loss_device.h"

/* ---- batches ------------------------------------------------------------------------------------------- */

static const struct name {
    const char *name;
    gr_level level;
    bool current;
    double lo, hi;
} names[] = {
    {"logprob", GR_LEVEL_TOKEN, true, -2.5, -0.05},
    {"entropy", GR_LEVEL_TOKEN, true, 0.1, 2},
    {"old_logprob", GR_LEVEL_TOKEN, false, -2.5, -0.05},
    {"ref_logprob", GR_LEVEL_TOKEN, false, -2.5, -0.05},
    {"adv", GR_LEVEL_TOKEN, false, -2, 2},
    {"advantage", GR_LEVEL_SEQ, false, -2, 2},
    {"prompt", GR_LEVEL_GROUP, false, -1, 1},
    {"beta", GR_LEVEL_SCALAR, false, 0.01, 0.02},
};
enum { N_NAMES = GR_LEN(names), ADJOINTS = 2 };

static bool resolve(void *user, const char *name, gr_expr_symbol *out)
{
    (void)user;
    for (int i = 0; i < N_NAMES; i++) {
        if (strcmp(names[i].name, name)) continue;
        *out = (gr_expr_symbol){.level = names[i].level, .current = names[i].current, .id = i};
        return true;
    }
    return false;
}

/* Page-locked, so that copies are as in a run. */
static void *pinned(size_t bytes)
{
    void *p;
    CUDA(cudaHostAlloc(&p, bytes + 1, 0));
    return p;
}

typedef struct batch {
    uint32_t n_groups, n_seqs, n_tokens;
    uint32_t *group, *offset;
    uint8_t *mask; /* NULL: all tokens count */
    gr_expr_rows rows;
    gr_expr_column host[N_NAMES], device[N_NAMES]; /* device: fresh ones alone are there */
    gr_loss_column columns[N_NAMES];
    size_t n_columns;
} batch;

static double uniform(uint64_t *state, double lo, double hi)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return lo + (hi - lo) * ((double)(*state >> 11) * 0x1p-53);
}

static void draw_rows(batch *b, uint32_t n_seqs, uint32_t per_group, uint32_t length, uint64_t *seed)
{
    b->group = gr_malloc((n_seqs + 1ull) * sizeof(*b->group));
    b->offset = gr_malloc((n_seqs + 1ull) * sizeof(*b->offset));
    b->offset[0] = 0;
    for (uint32_t i = 0; i < n_seqs; i++) {
        uint32_t n = length > 1 ? (uint32_t)uniform(seed, 0, 2.0 * length) : 1;
        b->group[i] = i / per_group;
        b->offset[i + 1] = b->offset[i] + (i ? n : GR_MAX(n, 1u)); /* some are empty, but not all */
    }
    b->n_seqs = n_seqs;
    b->n_groups = (n_seqs + per_group - 1) / per_group;
    b->n_tokens = b->offset[n_seqs];
    b->rows = (gr_expr_rows){.n_seqs = n_seqs, .group = b->group, .offset = b->offset, .first_seq = 3};
}

/* Leave out about three tokens of ten. */
static void draw_mask(batch *b, uint64_t *seed)
{
    b->mask = gr_malloc(b->n_tokens);
    for (uint32_t t = 0; t < b->n_tokens; t++) b->mask[t] = uniform(seed, 0, 1) < 0.7;
    b->rows.mask = b->mask;
}

static void draw_column(batch *b, int i, uint64_t *seed)
{
    const uint32_t count[] = {1, b->n_groups, b->n_seqs, 0, b->n_tokens};
    const uint32_t n = count[names[i].level];
    float *x = pinned(n * sizeof(*x));
    for (uint32_t k = 0; k < n; k++)
        x[k] = k % 7 == 3 && i == 4 ? 0.5f : (float)uniform(seed, names[i].lo, names[i].hi);
    b->host[i] = b->device[i] = (gr_expr_column){x, GR_EXPR_F32};
    if (names[i].current)
        b->device[i].data = device_copy(x, n * sizeof(*x));
    else
        b->columns[b->n_columns++] = (gr_loss_column){i, 0, names[i].level, GR_EXPR_F32};
}

static batch *batch_new(uint32_t n_seqs, uint32_t per_group, uint32_t length, bool masked)
{
    uint64_t seed = 17 * n_seqs + length;
    batch *b = gr_calloc(1, sizeof(*b));
    draw_rows(b, n_seqs, per_group, length, &seed);
    if (masked) draw_mask(b, &seed);
    for (int i = 0; i < N_NAMES; i++) draw_column(b, i, &seed);
    return b;
}

static void batch_free(batch *b)
{
    for (int i = 0; i < N_NAMES; i++) {
        if (names[i].current) CUDA(cudaFree((void *)b->device[i].data));
        CUDA(cudaFreeHost((void *)b->host[i].data));
    }
    free(b->group);
    free(b->offset);
    free(b->mask);
    free(b);
}

static gr_expr_env env_of(const batch *b, bool device)
{
    return (gr_expr_env){.rows = &b->rows,
                         .columns = device ? b->device : b->host,
                         .n_groups = b->n_groups,
                         .seed = 5,
                         .node = 6,
                         .step = 7};
}

/* ---- a loss on the device ------------------------------------------------------------------------------ */

static void copy(gr_queue *q, void *to, const void *from, uint64_t bytes)
{
    CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, q->stream));
}

static void run_pass(gr_queue *q, const gr_code_call *c)
{
    gr_cu_code_run(q->stream, c);
}

static const int row_sets[] = {0};

typedef struct job {
    const batch *b;
    const gr_loss *loss;
    gr_kernels kernels;
    gr_queue q;
    gr_loss_inputs in;
    gr_expr_bounds range;
    uint64_t data_bytes, store_bytes, work_bytes;
    gr_loss_memory m;
    gr_loss_device *device;
    float *adjoint[ADJOINTS];
    double *values;
} job;

static gr_loss *loss_new(const char *text)
{
    gr_expr *e = NULL;
    gr_loss *l = NULL;
    gr_diag d;
    gr_diag_init(&d);
    const gr_expr_scope scope = {.resolve = resolve};
    const gr_expr_source src = {text, {"loss", 1, 1}, 0};
    gr_status st = gr_expr_parse(&e, &src, &d);
    if (!st) st = gr_loss_new(&l, e, NULL, 0, &scope, &d);
    expect_ok(st, &d, text);
    gr_expr_free(e);
    gr_diag_release(&d);
    return l;
}

/* chunk: most tokens of an adjoint call of a loss over tokens. */
static job *job_new(const batch *b, const gr_loss *l, uint32_t chunk)
{
    job *j = gr_calloc(1, sizeof(*j));
    const gr_expr_bounds all = {b->n_groups, b->n_seqs, b->n_tokens};
    *j = (job){.b = b, .loss = l, .kernels = {.copy = copy, .code_run = run_pass}, .range = all};
    if (gr_loss_class_of(l) == GR_LOSS_TOKEN) j->range.tokens = GR_MIN(chunk, b->n_tokens);
    j->in = (gr_loss_inputs){b->columns, row_sets, b->n_columns, 1, all, b->mask != NULL};
    j->data_bytes = gr_loss_data_bytes(&j->in);
    j->store_bytes = gr_loss_store_bytes(l, all);
    j->work_bytes = gr_loss_frame_bytes(l, all, j->range);
    j->m = (gr_loss_memory){.data = device_poisoned(j->data_bytes),
                            .store = device_poisoned(j->store_bytes),
                            .work = device_poisoned(j->work_bytes),
                            .host = pinned(gr_loss_host_bytes(&j->in))};
    for (int i = 0; i < ADJOINTS; i++) j->adjoint[i] = device_poisoned(b->n_tokens * sizeof(float));
    j->values = device_poisoned(gr_loss_results(l) * sizeof(double));
    j->device = gr_loss_device_new(&j->kernels, l, &j->in, j->range);
    return j;
}

static void job_free(const char *name, job *j)
{
    check_tail(name, j->m.data, j->data_bytes);
    check_tail(name, j->m.store, j->store_bytes);
    check_tail(name, j->m.work, j->work_bytes);
    gr_loss_device_free(j->device);
    CUDA(cudaFree(j->m.data));
    CUDA(cudaFree(j->m.store));
    CUDA(cudaFree(j->m.work));
    CUDA(cudaFreeHost(j->m.host));
    for (int i = 0; i < ADJOINTS; i++) CUDA(cudaFree(j->adjoint[i]));
    CUDA(cudaFree(j->values));
    free(j);
}

static void prepare(void *arg, int i)
{
    job *j = arg;
    const gr_expr_env env = env_of(j->b, true);
    (void)i;
    gr_loss_device_prepare(j->device, &j->q, &env, &j->m);
}

static void adjoint_all(void *arg, int i)
{
    job *j = arg;
    (void)i;
    const uint32_t n = j->b->n_tokens, step = GR_MAX(j->range.tokens, 1u);
    for (uint32_t t = 0; t < n; t += step)
        gr_loss_device_adjoint(j->device, &j->q, &j->m, t, GR_MIN(t + step, n), j->adjoint);
}

static void adjoint_chunk(void *arg, int i)
{
    job *j = arg;
    const uint32_t n = j->b->n_tokens, step = j->range.tokens,
                   first = (uint32_t)i % GR_MAX(n / step, 1u) * step;
    gr_loss_device_adjoint(j->device, &j->q, &j->m, first, GR_MIN(first + step, n), j->adjoint);
}

static void value(void *arg, int i)
{
    job *j = arg;
    (void)i;
    gr_loss_device_value(j->device, &j->q, &j->m, j->values);
}

/* ---- comparing ----------------------------------------------------------------------------------------- */

static const struct loss_case {
    const char *name, *text;
} losses[] = {
    {"ppo", "ratio = exp(logprob - old_logprob)\n"
            "pg = max(-advantage * ratio, -advantage * clip(ratio, 0.8, 1.2))\n"
            "kl = exp(ref_logprob - logprob) - (ref_logprob - logprob) - 1\n"
            "token_mean(pg + beta * kl) - 0.01 * token_mean(entropy)"},
    {"gspo", "q = exp(min(seq_mean(logprob - old_logprob), 10))\n"
             "batch_mean(seq_mean(max(-advantage * q, -advantage * clip(q, 0.8, 1.2))))"},
    {"clip_cov", "ratio = exp(logprob - old_logprob)\n"
                 "cov = (advantage - token_mean(advantage)) * (logprob - token_mean(logprob))\n"
                 "drop = choose(cov > 0.1 and cov < 5, max(floor(0.1 * token_count()), 1))\n"
                 "token_mean(where(drop, 0, -advantage * ratio))"},
    {"kl_cov, ties",
     "token_mean(-adv * exp(logprob) + where(top(adv, floor(0.3 * token_count()), adv > -1), logprob, 0))"},
    {"groups", "s = seq_sum(logprob)\n"
               "batch_sum((s - group_mean(s)) / (group_std(s) + 1e-6) * prompt + group_rank(advantage) * s)"},
    {"positions", "token_mean(position_sum(logprob) / position_count() * entropy + nth_sum(logprob) * adv)"},
    {"scans", "token_mean(discounted_sum(logprob, 0.9) * entropy + prefix_sum(adv) * next(logprob, 0) * "
              "prev(entropy, 1))"},
    {"draws, maxima",
     "token_mean(where(random() < 0.5, logprob, 0)) + batch_mean(seq_max(entropy)) + token_std(logprob)"},
    {"quantiles", "m = group_median(advantage) - group_quantile(advantage, 0.3, advantage > -1)\n"
                  "t = token_quantile(adv, 0.8) + batch_median(advantage)\n"
                  "token_mean(where(adv >= t, logprob * m, entropy % 0.7)) + "
                  "token_mean(suffix_sum(logprob - repeat(seq_mean(entropy))) * adv)"},
    {"last", "token_mean(at_last(seq_mean(logprob)) * sigmoid(adv) * tanh(entropy) + entropy ^ 1.5)"},
};

static void compare(const batch *b, const struct loss_case *c)
{
    char name[64];
    gr_loss *l = loss_new(c->text);
    if (!l) return;
    snprintf(name, sizeof(name), "%s, %u x %u%s", c->name, b->n_seqs, b->n_tokens, b->mask ? ", masked" : "");
    const gr_expr_bounds all = {b->n_groups, b->n_seqs, b->n_tokens};
    uint64_t bytes = 0;
    for (gr_loss_stage s = GR_LOSS_PREPARE; s <= GR_LOSS_VALUE; s++)
        bytes = GR_MAX(bytes, gr_loss_work_bytes(l, s, all, all));
    void *work = gr_malloc(bytes + 1), *store = gr_malloc(gr_loss_store_bytes(l, all) + 1);
    float *want[ADJOINTS];
    double want_value;
    for (int i = 0; i < ADJOINTS; i++) want[i] = gr_malloc(b->n_tokens * sizeof(float));
    const gr_expr_env env = env_of(b, false);
    gr_loss_prepare(l, &env, store, work);
    gr_loss_adjoint(l, &env, store, 0, b->n_tokens, want, work);
    gr_loss_value(l, &env, &want_value, work);

    job *j = job_new(b, l, 1000);
    prepare(j, 0);
    adjoint_all(j, 0);
    value(j, 0);
    CUDA(cudaGetLastError());
    size_t n_current;
    gr_loss_current(l, &n_current);
    for (size_t i = 0; i < n_current; i++) {
        errors e = {0};
        float *got = host_copy(j->adjoint[i], b->n_tokens * sizeof(float));
        for (uint32_t t = 0; t < b->n_tokens; t++) errors_add(&e, (double)got[t], (double)want[i][t]);
        report_errors(&e, name, i ? "d_1" : "d_0", 1e-6);
        check_tail(name, j->adjoint[i], b->n_tokens * sizeof(float));
        free(got);
    }
    errors e = {0};
    double *got = host_copy(j->values, sizeof(double));
    errors_add(&e, *got, want_value);
    report_errors(&e, name, "value", 1e-9);
    free(got);
    job_free(name, j);
    for (int i = 0; i < ADJOINTS; i++) free(want[i]);
    free(work);
    free(store);
    gr_loss_free(l);
}

/* Twice, and cut in other places: the same bits. */
static void compare_cuts(const batch *b)
{
    gr_loss *l = loss_new(losses[0].text);
    job *a = job_new(b, l, 4096), *c = job_new(b, l, 37);
    job *both[] = {a, c};
    for (int i = 0; i < 2; i++) {
        prepare(both[i], 0);
        adjoint_all(both[i], 0);
    }
    const size_t bytes = b->n_tokens * sizeof(float);
    void *x = host_copy(a->adjoint[0], bytes), *y = host_copy(c->adjoint[0], bytes);
    report_equal("ppo in chunks of 4096 and of 37", "d_0", x, y, bytes);
    free(x);
    free(y);
    job_free("chunks of 4096", a);
    job_free("chunks of 37", c);
    gr_loss_free(l);
}

static void bench(uint32_t n_seqs, uint32_t length)
{
    batch *b = batch_new(n_seqs, 8, length, false);
    for (size_t i = 0; i < 3; i++) {
        gr_loss *l = loss_new(losses[i].text);
        job *j = job_new(b, l, 4096);
        prepare(j, 0);
        const double p = time_of(prepare, j, 10), v = time_of(value, j, 10);
        const bool chunks = gr_loss_class_of(l) == GR_LOSS_TOKEN;
        const double a = time_of(chunks ? adjoint_chunk : adjoint_all, j, 10);
        CUDA(cudaGetLastError());
        printf("%-10s %4u sequences, %7u tokens: prepare %8.1f us, adjoint %s %8.1f us, value %8.1f us\n",
               losses[i].name, n_seqs, b->n_tokens, p * 1e6, chunks ? "of 4096 tokens" : "of all tokens ",
               a * 1e6, v * 1e6);
        job_free(losses[i].name, j);
        gr_loss_free(l);
    }
    batch_free(b);
}

int main(int argc, char **argv)
{
    need_device();
    if (read_options(argc, argv)) {
        bench(256, 512);
        bench(1024, 1024);
        return check_failures != 0;
    }
    const uint32_t most = check_small ? 50 : 500,
                   sizes[][3] = {{1, 1, 1}, {7, 3, 5}, {37, 4, 61}, {2 * most, 8, most}};
    for (size_t s = 0; s < 2 * GR_LEN(sizes); s++) {
        const uint32_t *size = sizes[s / 2];
        batch *b = batch_new(size[0], size[1], size[2], s % 2);
        for (size_t i = 0; i < GR_LEN(losses); i++) compare(b, &losses[i]);
        compare_cuts(b);
        batch_free(b);
    }
    printf("%d failures\n", check_failures);
    return check_failures != 0;
}
