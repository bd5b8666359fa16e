/* tests/gpu/gpu_routing.c: what routers chose, counted on CUDA beside the CPU device: comparisons with
 * recorded choices, loads, probabilities, and the gradient of a balance loss. Counts are equal; everything
 * twice.
 */
#include "ops/kernels/experts.h"
#include "ops/kernels/kernels.h"
#include "tests/gpu/device.h"

enum { ROUTERS = 3 };

static gr_queue queue, here;
static gr_diag diag;

typedef struct shape {
    const char *name;
    uint32_t E, k, T;
} shape;

/* k different experts for each token; of every 5th another choice than in `like`, of every 7th none. */
static uint16_t *choices_new(const shape *s, const uint16_t *like, uint64_t seed)
{
    uint16_t *c = gr_malloc((size_t)s->T * s->k * sizeof(*c) + 2);
    for (size_t t = 0; t < s->T; t++) {
        uint16_t *own = c + t * s->k;
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        const uint32_t first = (uint32_t)((seed >> 33) % s->E);
        for (uint32_t j = 0; j < s->k; j++) own[j] = (uint16_t)((first + j) % s->E);
        if (like && t % 5) /* in another order */
            for (uint32_t j = 0; j < s->k; j++) own[j] = like[t * s->k + s->k - 1 - j];
        if (like && t % 7 == 3) own[0] = GR_NO_EXPERT;
    }
    return c;
}

static gr_routers routers_of(const shape *s)
{
    return (gr_routers){ROUTERS, ROUTERS * s->k, ROUTERS * s->E};
}

/* What one side is given; pointers of that side. */
typedef struct side {
    const gr_experts_ops *ops;
    gr_queue *q;
    uint16_t *expert, *recorded;
    uint32_t *differs;
    float *logits, *pull;
    void *d_logits;
    double *tally;
} side;

/* Every router has the same choices; tokens count once for all of them. */
static void run(const side *x, const shape *s)
{
    const gr_routers all = routers_of(s);
    const gr_balance_loss balance = {ROUTERS, s->E, s->k, 0.5};
    for (uint32_t r = 0; r < ROUTERS; r++) {
        const gr_tally at = gr_tally_at(x->tally, all, (gr_routers){r, r * s->k, r * s->E});
        x->ops->compare(x->q, s->k, s->T, x->expert, x->recorded, &at, x->differs);
        x->ops->count(x->q, s->E, s->k, s->T, x->expert, at.load);
        x->ops->shares(x->q, s->E, s->T, x->logits, at.share);
    }
    x->ops->pull(x->q, &balance, gr_tally_at(x->tally, all, (gr_routers){0}).load, x->pull);
    x->ops->balance_backward(x->q, s->E, s->T, x->logits, x->pull, x->d_logits);
}

static void check(const shape *s)
{
    const size_t values = gr_tally_values(routers_of(s)), counts = values - ROUTERS * s->E,
                 n = (size_t)s->T * s->E, pairs = (size_t)s->T * s->k;
    uint64_t seed = 5;
    uint16_t *expert = choices_new(s, NULL, 1), *recorded = choices_new(s, expert, 2);
    uint32_t *differs = gr_calloc(s->T + 1, sizeof(*differs));
    float *logits = gr_malloc(n * 4 + 4), *want = gr_malloc(n * 4 + 4), *pull = gr_malloc(s->E * 4);
    gr_bf16 *given = random_bf16(n, 1e-3f, 3);
    double *tally = gr_calloc(values, sizeof(*tally));
    for (size_t i = 0; i < n; i++) logits[i] = 3 * random_float(&seed);
    for (size_t i = 0; i < n; i++) want[i] = of_bf16(given[i]);
    side device = {&gr_experts_cuda,
                   &queue,
                   device_copy(expert, pairs * 2),
                   device_copy(recorded, pairs * 2),
                   device_copy(differs, s->T * 4),
                   device_copy(logits, n * 4),
                   device_poisoned(s->E * 4),
                   device_copy(given, n * 2),
                   device_copy(tally, values * 8)};
    run(&device, s);
    gr_bf16 *got = take(s->name, device.d_logits, n * 2);
    uint32_t *got_differs = take(s->name, device.differs, s->T * 4);
    double *got_tally = take(s->name, device.tally, values * 8);
    device.d_logits = device_copy(given, n * 2);
    device.differs = device_copy(differs, s->T * 4);
    device.tally = device_copy(tally, values * 8);
    run(&device, s);
    gr_bf16 *again = take(s->name, device.d_logits, n * 2);
    double *again_tally = take(s->name, device.tally, values * 8);
    float *got_pull = take(s->name, device.pull, s->E * 4);
    expect_ok(gr_kernels_cuda.check(&queue, &diag), &diag, s->name);

    const side host = {&gr_experts_cpu, &here, expert, recorded, differs, logits, pull, want, tally};
    run(&host, s);
    report_equal(s->name, "counts", got_tally, tally, counts * 8);
    report_equal(s->name, "tokens that differ", got_differs, differs, s->T * 4);
    report_equal(s->name, "d_logits twice", got, again, n * 2);
    report_equal(s->name, "tally twice", got_tally, again_tally, values * 8);
    errors shares = {0}, pulls = {0}, slopes = {0};
    for (size_t i = counts; i < values; i++) errors_add(&shares, got_tally[i], tally[i]);
    for (size_t i = 0; i < s->E; i++) errors_add(&pulls, got_pull[i], pull[i]);
    for (size_t i = 0; i < n; i++) errors_add(&slopes, of_bf16(got[i]), want[i]);
    report_errors(&shares, s->name, "shares", 1e-6);
    report_errors(&pulls, s->name, "pull", 1e-6);
    report_errors(&slopes, s->name, "d_logits", 1e-2);
    void *const mine[] = {expert, recorded, differs, logits,      want,      pull,        given,
                          tally,  got,      again,   got_differs, got_tally, again_tally, got_pull};
    for (size_t i = 0; i < GR_LEN(mine); i++) free(mine[i]);
    void *const theirs[] = {device.expert, device.recorded, device.differs, device.logits};
    for (size_t i = 0; i < GR_LEN(theirs); i++) CUDA(cudaFree(theirs[i]));
}

int main(int argc, char **argv)
{
    static const shape shapes[] = {{"128 experts, 8 of them", 128, 8, 3001},
                                   {"512 experts, 10 of them", 512, 10, 700},
                                   {"60 experts, 4 of them", 60, 4, 37},
                                   {"one token", 8, 2, 1}};
    read_options(argc, argv);
    need_device();
    gr_diag_init(&diag);
    expect_ok(gr_kernels_cuda.attach(&queue, &diag), &diag, "attach");
    for (size_t i = 0; i < GR_LEN(shapes); i++) {
        shape s = shapes[i];
        if (check_small) s.T = GR_MIN(s.T, 40u);
        check(&s);
    }
    gr_kernels_cuda.detach(&queue);
    gr_diag_release(&diag);
    printf("%s\n", check_failures ? "FAILED" : "all OK");
    return check_failures != 0;
}
