/* tests/bench/gpu/bench_experts.c: mixtures of experts: products of groups of rows, each between two dense
 * products of cuBLASLt with the same multiply-adds; what stands around them; and decode steps, bound by
 * reading experts. By default 8,192 tokens of which each goes to 8 of 128 experts of 2,048 x 768. Lines of
 * JSON. bench_experts [TOKENS CHOICES EXPERTS HIDDEN INNER]
 */
#include "tests/bench/gpu/timing.h"

#include "ops/kernels/cuda/experts.h"
#include "ops/kernels/cuda/gemm.h"
#include "ops/kernels/experts.h"

typedef struct sizes {
    uint32_t T, k, E, H, I;
} sizes;

typedef struct state {
    bench *b;
    sizes z;
    gr_cu_gemm *gemm;
    void *gemm_ws;
    gr_bf16 *x, *rows, *gate_up, *h, *w_gate_up, *w_down;
    void *grad; /* fp32, of gate and up */
    float *logits, *weight, *d_weight;
    uint16_t *expert;
    gr_dispatch d;
    void *sort;
    gr_cu_experts_product p; /* of grouped, and of dense: the same sizes */
} state;

static void grouped(gr_queue *q, int which, void *arg)
{
    const state *s = arg;
    (void)which;
    if (!gr_cu_experts_product_run(q->stream, &s->p)) exit(1);
}

static gr_cu_gemm_call dense_call(const gr_cu_experts_product *p)
{
    const gr_cu_gemm_call y = {.form = GR_CU_GEMM_NT,
                               .m = p->rows,
                               .n = p->out,
                               .k = p->in,
                               .lda = p->in,
                               .ldb = p->in,
                               .ldd = p->out,
                               .type = GR_CU_BF16};
    const gr_cu_gemm_call dx = {.form = GR_CU_GEMM_NN,
                                .m = p->rows,
                                .n = p->in,
                                .k = p->out,
                                .lda = p->out,
                                .ldb = p->in,
                                .ldd = p->in,
                                .type = GR_CU_BF16};
    const gr_cu_gemm_call dw = {.form = GR_CU_GEMM_TN,
                                .m = p->out,
                                .n = p->in,
                                .k = p->rows,
                                .lda = p->out,
                                .ldb = p->in,
                                .ldd = p->in,
                                .type = p->type,
                                .c = p->d,
                                .ldc = p->in};
    gr_cu_gemm_call c = p->form == GR_CU_EXPERTS_Y ? y : p->form == GR_CU_EXPERTS_DX ? dx : dw;
    c.a = p->a;
    c.b = p->b;
    c.d = p->d;
    return c;
}

static void dense(gr_queue *q, int which, void *arg)
{
    state *s = arg;
    const gr_cu_gemm_call call = dense_call(&s->p);
    (void)which;
    need(s->b, gr_cu_gemm_run(s->gemm, q->stream, &call, s->gemm_ws, &s->b->d));
}

/* Seconds of products, and of dense ones. */
typedef struct seconds {
    double ours, dense;
} seconds;

static seconds add(seconds a, seconds b)
{
    return (seconds){a.ours + b.ours, a.dense + b.dense};
}

/* Seconds of both, and the median of the ratios of neighbours. */
static seconds measure(state *s, gr_queue *q, const char *name)
{
    const double flops = 2.0 * s->p.rows * (double)s->p.in * (double)s->p.out * 1e-12;
    double ours[TIMES], theirs[TIMES], share[TIMES];
    char row[96];
    once(s->b, q, grouped, s);
    double before = once(s->b, q, dense, s);
    for (int i = 0; i < TIMES; i++) {
        ours[i] = once(s->b, q, grouped, s);
        const double after = once(s->b, q, dense, s);
        theirs[i] = (before + after) / 2;
        share[i] = theirs[i] / ours[i];
        before = after;
    }
    snprintf(row, sizeof(row), "experts %s: share of a dense product", name);
    print_result(row, median(share), "");
    snprintf(row, sizeof(row), "experts %s", name);
    print_result(row, flops / median(ours), "TFLOP/s");
    snprintf(row, sizeof(row), "experts %s: dense product beside it", name);
    print_result(row, flops / median(theirs), "TFLOP/s");
    return (seconds){median(ours), median(theirs)};
}

static gr_cu_experts_product product(const state *s, gr_cu_experts_form form, bool down, const void *a,
                                     const void *b, void *d)
{
    return (gr_cu_experts_product){.form = form,
                                   .experts = s->z.E,
                                   .rows = s->z.T * s->z.k,
                                   .in = down ? s->z.I : s->z.H,
                                   .out = down ? s->z.H : 2 * s->z.I,
                                   .first = s->d.first,
                                   .a = a,
                                   .b = b,
                                   .d = d,
                                   .type = form == GR_CU_EXPERTS_DW ? GR_CU_F32 : GR_CU_BF16};
}

static seconds gradients(state *s, gr_queue *q, gr_cu_dtype type)
{
    const bool half = type == GR_CU_BF16;
    s->p = product(s, GR_CU_EXPERTS_DW, true, s->rows, s->h, s->grad);
    s->p.type = type;
    const seconds down = measure(s, q, half ? "down dw, bf16 gradients" : "down dw");
    s->p = product(s, GR_CU_EXPERTS_DW, false, s->gate_up, s->rows, s->grad);
    s->p.type = type;
    return add(down, measure(s, q, half ? "gate_up dw, bf16 gradients" : "gate_up dw"));
}

static void print_share(const char *row, seconds sum)
{
    print_result(row, sum.dense / sum.ours, "");
}

static void measure_products(state *s, gr_queue *q)
{
    const struct {
        const char *name;
        gr_cu_experts_product p;
    } rows[] = {{"gate_up", product(s, GR_CU_EXPERTS_Y, false, s->rows, s->w_gate_up, s->gate_up)},
                {"down", product(s, GR_CU_EXPERTS_Y, true, s->h, s->w_down, s->rows)},
                {"down dx", product(s, GR_CU_EXPERTS_DX, true, s->rows, s->w_down, s->h)},
                {"gate_up dx", product(s, GR_CU_EXPERTS_DX, false, s->gate_up, s->w_gate_up, s->rows)}};
    seconds sum = {0, 0};
    for (size_t i = 0; i < GR_LEN(rows); i++) {
        s->p = rows[i].p;
        sum = add(sum, measure(s, q, rows[i].name));
        if (i == 1) print_share("experts forward products, share of dense ones", sum);
    }
    print_share("experts update products, fp32 gradients, share of dense ones",
                add(sum, gradients(s, q, GR_CU_F32)));
    print_share("experts update products, bf16 gradients, share of dense ones",
                add(sum, gradients(s, q, GR_CU_BF16)));
}

/* ---- around the products ---- */

static gr_experts_desc desc_of(const sizes *z)
{
    return (gr_experts_desc){.count = z->E, .top_k = z->k, .inner = z->I, .scale = 1, .normalize = true};
}

static void route(gr_queue *q, int which, void *arg)
{
    state *s = arg;
    const gr_experts_desc e = desc_of(&s->z);
    (void)which;
    gr_experts_cuda.route(q, &e, s->logits, NULL, NULL, s->z.T, s->expert, s->weight);
}

static void sort(gr_queue *q, int which, void *arg)
{
    state *s = arg;
    (void)which;
    gr_experts_cuda.dispatch(q, s->z.E, s->z.k, s->z.T, s->expert, &s->d, s->sort);
}

static void gather(gr_queue *q, int which, void *arg)
{
    state *s = arg;
    (void)which;
    gr_experts_cuda.gather(q, &s->d, s->z.k, s->z.T, s->z.H, s->x, s->rows);
}

static void combine(gr_queue *q, int which, void *arg)
{
    state *s = arg;
    (void)which;
    gr_experts_cuda.combine(q, &s->d, s->z.k, s->z.T, s->z.H, s->rows, s->weight, s->x, 1, s->x);
}

static void activate(gr_queue *q, int which, void *arg)
{
    state *s = arg;
    const gr_expert_act a = {.rows = s->z.T * s->z.k, .inner = s->z.I};
    (void)which;
    gr_experts_cuda.activate(q, &a, s->gate_up, s->h);
}

static void activate_backward(gr_queue *q, int which, void *arg)
{
    state *s = arg;
    const gr_expert_act a = {.rows = s->z.T * s->z.k, .inner = s->z.I};
    (void)which;
    gr_experts_cuda.activate_backward(q, &a, &s->d, s->weight, NULL, s->gate_up, s->h, s->rows, s->h,
                                      s->d_weight);
}

static void measure_rest(state *s, gr_queue *q)
{
    const double rows = s->z.T * (double)s->z.k, wide = rows * s->z.H * 2, inner = rows * s->z.I * 2;
    const struct {
        const char *name;
        void (*body)(gr_queue *, int, void *);
        double bytes;
    } all[] = {{"experts route", route, s->z.T * (s->z.E * 4.0 + s->z.k * 6)},
               {"experts sort", sort, rows * 10},
               {"experts gather", gather, 2 * wide},
               {"experts combine", combine, wide + 4.0 * s->z.T * s->z.H},
               {"experts activation", activate, 3 * inner},
               {"experts activation backward", activate_backward, 6 * inner}};
    for (size_t i = 0; i < GR_LEN(all); i++) {
        const double t = seconds_of(s->b, q, 1, all[i].body, s);
        char row[96];
        print_result(all[i].name, t * 1e6, "us");
        snprintf(row, sizeof(row), "%s: memory", all[i].name);
        print_result(row, all[i].bytes / t * 1e-9, "GB/s");
    }
}

/* ---- decode steps ---- */

static void decode(gr_queue *q, int which, void *arg)
{
    state *s = arg;
    (void)which;
    s->p = product(s, GR_CU_EXPERTS_Y, false, s->rows, s->w_gate_up, s->gate_up);
    grouped(q, 0, s);
    s->p = product(s, GR_CU_EXPERTS_Y, true, s->h, s->w_down, s->rows);
    grouped(q, 0, s);
}

static uint32_t touched(state *s, gr_queue *q)
{
    uint32_t *first = gr_malloc((s->z.E + 1) * sizeof(*first)), n = 0;
    gr_device_read(q, first, s->d.first, (s->z.E + 1) * sizeof(*first));
    for (uint32_t e = 0; e < s->z.E; e++) n += first[e + 1] > first[e];
    free(first);
    return n;
}

static void measure_decode(state *s, gr_queue *q, uint32_t slots)
{
    s->z.T = slots;
    sort(q, 0, s);
    const uint32_t experts = touched(s, q);
    const double t = seconds_of(s->b, q, 1, decode, s), bytes = 6.0 * experts * s->z.H * s->z.I;
    char row[96];
    snprintf(row, sizeof(row), "experts decode, %u slots, %u experts touched", slots, experts);
    print_result(row, t * 1e6, "us");
    snprintf(row, sizeof(row), "experts decode, %u slots: weights read", slots);
    print_result(row, bytes / t * 1e-12, "TB/s");
}

/* ---- */

static void open_state(state *s, gr_queue *q)
{
    const uint64_t T = s->z.T, k = s->z.k, E = s->z.E, H = s->z.H, I = s->z.I, R = T * k;
    bench *b = s->b;
    gr_workspace places = {0};
    float *logits = gr_malloc(T * E * sizeof(*logits));
    uint64_t seed = 5;
    s->x = random_values(b, q, T * H, 1);
    s->rows = random_values(b, q, R * H, 2);
    s->gate_up = random_values(b, q, R * 2 * I, 3);
    s->h = random_values(b, q, R * I, 4);
    s->w_gate_up = random_values(b, q, E * 2 * I * H, 5);
    s->w_down = random_values(b, q, E * H * I, 6);
    s->grad = bench_take(b, E * 2 * I * H * sizeof(float));
    s->logits = bench_take(b, T * E * sizeof(float));
    s->weight = bench_take(b, R * sizeof(float));
    s->d_weight = bench_take(b, R * sizeof(float));
    s->expert = bench_take(b, R * sizeof(*s->expert));
    gr_dispatch_layout(&places, s->z.E, s->z.k, s->z.T, &s->d);
    places = (gr_workspace){.base = bench_take(b, places.used)};
    gr_dispatch_layout(&places, s->z.E, s->z.k, s->z.T, &s->d);
    s->sort = bench_take(b, gr_experts_cuda.dispatch_ws_bytes(s->z.E, s->z.k, s->z.T));
    s->gemm_ws = bench_take(b, GR_CU_GEMM_WS_BYTES);
    for (uint64_t i = 0; i < T * E; i++) {
        const uint32_t bits = (uint32_t)random_value(&seed) << 16;
        memcpy(&logits[i], &bits, sizeof(bits));
    }
    gr_device_write(q, s->logits, logits, T * E * sizeof(*logits));
    gr_kernels_cuda.zero(q, s->grad, E * 2 * I * H * sizeof(float));
    need(b, gr_queue_finish(q, &b->d));
    free(logits);
    route(q, 0, s);
    sort(q, 0, s);
}

int main(int argc, char **argv)
{
    sizes z = {8192, 8, 128, 2048, 768};
    uint32_t *const all[] = {&z.T, &z.k, &z.E, &z.H, &z.I}, slots[] = {256, 64, 32, 8, 1};
    for (int i = 0; i < 5 && argc == 6; i++) *all[i] = (uint32_t)atoi(argv[i + 1]);
    const uint64_t R = (uint64_t)z.T * z.k, weights = (uint64_t)z.E * z.H * z.I;
    bench b = {0};
    state s = {.b = &b, .z = z};
    bench_open(&b,
               R * (2 * z.H + 6 * (uint64_t)z.I) + 6 * weights + 8 * weights +
                   (uint64_t)z.T * (z.E + z.H) * 4 + GIB / 2,
               0);
    gr_queue q = bench_queue(&b);
    need(&b, gr_kernels_cuda.attach(&q, &b.d));
    need(&b, gr_cu_gemm_open(&s.gemm, &b.d));
    open_state(&s, &q);
    s.p = product(&s, GR_CU_EXPERTS_Y, false, s.rows, s.w_gate_up, s.gate_up);
    for (int i = 0; i < 200; i++) once(&b, &q, dense, &s); /* a device at work has other clocks */
    measure_products(&s, &q);
    measure_rest(&s, &q);
    for (size_t i = 0; i < GR_LEN(slots); i++) measure_decode(&s, &q, GR_MIN(slots[i], z.T));
    need(&b, gr_kernels_cuda.check(&q, &b.d));
    gr_cu_gemm_close(s.gemm);
    gr_kernels_cuda.detach(&q);
    b.dev->type->queue_close(&q);
    b.dev->type->close(b.dev);
}
