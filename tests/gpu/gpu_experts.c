/* tests/gpu/gpu_experts.c: mixtures of experts on CUDA: routing and sorting beside the CPU device, products
 * of ragged groups beside loops, bits of rows alone and in batches, whole MLPs beside the CPU device in fp32;
 * everything twice.
 *
 *     gpu_experts --own   without what cuBLASLt computes, and so without whole MLPs
 */
#include "ops/kernels/cuda/experts.h"
#include "ops/kernels/experts.h"
#include "ops/kernels/kernels.h"
#include "tests/gpu/device.h"

static gr_queue queue;
static gr_diag diag;

static void need_ok(const char *name)
{
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaGetLastError());
    expect_ok(gr_kernels_cuda.check(&queue, &diag), &diag, name);
}

static uint64_t random_state = 1;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

/* ---- products of groups ----------------------------------------------------------------------------------
 */

typedef struct groups {
    const char *name;
    uint32_t experts, in, out;
    uint32_t *first; /* [experts + 1] */
} groups;

/* kind 0: about `rows` in all, at random; 1: all to one expert; 2: every other one has none, sizes around
 * tiles' */
static groups groups_of(const char *name, uint32_t experts, uint32_t in, uint32_t out, uint32_t rows,
                        int kind)
{
    static const uint32_t edges[] = {1,   63,  64,  65,  127, 128, 129, 191,
                                     255, 256, 257, 300, 383, 384, 385, 513};
    groups g = {name, experts, in, out, gr_calloc(experts + 1, sizeof(uint32_t))};
    uint32_t *size = gr_calloc(experts, sizeof(*size));
    for (uint32_t i = 0; i < rows && kind == 0; i++) size[random_below(experts)]++;
    if (kind == 1) size[experts / 2] = rows;
    for (uint32_t e = 0; e < experts && kind == 2; e += 2) size[e] = edges[e / 2 % GR_LEN(edges)];
    for (uint32_t e = 0; e < experts; e++) g.first[e + 1] = g.first[e] + size[e];
    free(size);
    return g;
}

static uint32_t rows_of(const groups *g)
{
    return g->first[g->experts];
}

typedef struct operands { /* on the host, and on the device */
    const groups *g;
    gr_bf16 *x, *dy, *w, *bias, *d_x, *d_dy, *d_w, *d_bias;
    uint32_t *d_first;
} operands;

static operands operands_new(const groups *g)
{
    const size_t rows = rows_of(g), weights = (size_t)g->experts * g->in * g->out;
    operands o = {.g = g,
                  .x = random_bf16(rows * g->in, 1, 1),
                  .dy = random_bf16(rows * g->out, 1, 2),
                  .w = random_bf16(weights, 1, 3),
                  .bias = random_bf16((size_t)g->experts * g->out, 1, 4)};
    o.d_x = device_copy(o.x, rows * g->in * 2);
    o.d_dy = device_copy(o.dy, rows * g->out * 2);
    o.d_w = device_copy(o.w, weights * 2);
    o.d_bias = device_copy(o.bias, (size_t)g->experts * g->out * 2);
    o.d_first = device_copy(g->first, (g->experts + 1) * sizeof(uint32_t));
    return o;
}

static void operands_free(operands *o)
{
    void *const host[] = {o->x, o->dy, o->w, o->bias}, *const device[] = {o->d_x, o->d_dy, o->d_w, o->d_bias,
                                                                          o->d_first};
    for (size_t i = 0; i < GR_LEN(host); i++) free(host[i]);
    for (size_t i = 0; i < GR_LEN(device); i++) CUDA(cudaFree(device[i]));
}

static gr_cu_experts_product call_of(const operands *o, gr_cu_experts_form form, bool bias, void *d,
                                     gr_cu_dtype type)
{
    const bool y = form == GR_CU_EXPERTS_Y, dw = form == GR_CU_EXPERTS_DW;
    return (gr_cu_experts_product){.form = form,
                                   .experts = o->g->experts,
                                   .rows = rows_of(o->g),
                                   .in = o->g->in,
                                   .out = o->g->out,
                                   .first = o->d_first,
                                   .a = y ? o->d_x : o->d_dy,
                                   .b = dw ? o->d_x : o->d_w,
                                   .bias = bias ? o->d_bias : NULL,
                                   .d = d,
                                   .type = type};
}

static void launch(const gr_cu_experts_product *c, const char *name)
{
    if (gr_cu_experts_product_run(queue.stream, c)) return;
    printf("%s: not launched: %s\n", name, cudaGetErrorString(cudaGetLastError()));
    check_failures++;
}

/* What is compared of a result: all of small ones, else some thousands of elements. */
typedef struct checked {
    const operands *o;
    gr_cu_experts_form form;
    bool bias;
    const gr_bf16 *got;
    errors e;
} checked;

static uint32_t expert_of(const groups *g, uint32_t row)
{
    uint32_t e = 0;
    while (g->first[e + 1] <= row) e++;
    return e;
}

static double row_element(const checked *c, uint32_t row, uint32_t col)
{
    const operands *o = c->o;
    const uint32_t in = o->g->in, out = o->g->out, e = expert_of(o->g, row);
    const gr_bf16 *w = o->w + (size_t)e * in * out;
    double sum = c->bias ? of_bf16(o->bias[(size_t)e * out + col]) : 0;
    if (c->form == GR_CU_EXPERTS_Y)
        for (uint32_t i = 0; i < in; i++)
            sum += (double)of_bf16(o->x[(size_t)row * in + i]) * of_bf16(w[(size_t)col * in + i]);
    else
        for (uint32_t i = 0; i < out; i++)
            sum += (double)of_bf16(o->dy[(size_t)row * out + i]) * of_bf16(w[(size_t)i * in + col]);
    return sum;
}

static void check_rows(const operands *o, gr_cu_experts_form form, bool bias, const char *what)
{
    const uint32_t cols = form == GR_CU_EXPERTS_Y ? o->g->out : o->g->in, rows = rows_of(o->g);
    const size_t n = (size_t)rows * cols, bytes = n * 2;
    gr_bf16 *d = device_poisoned(bytes), *again = device_poisoned(bytes);
    const gr_cu_experts_product call = call_of(o, form, bias, d, GR_CU_BF16),
                                twice = call_of(o, form, bias, again, GR_CU_BF16);
    launch(&call, o->g->name);
    launch(&twice, o->g->name);
    gr_bf16 *got = take(o->g->name, d, bytes), *second = take(o->g->name, again, bytes);
    checked c = {.o = o, .form = form, .bias = bias, .got = got};
    for (size_t i = 0; i<n; i += n> 40000 ? 1 + random_below((uint32_t)(n / 20000)) : 1)
        errors_add(&c.e, of_bf16(got[i]), row_element(&c, (uint32_t)(i / cols), (uint32_t)(i % cols)));
    report_errors(&c.e, o->g->name, what, 4e-3);
    report_equal(o->g->name, "twice", got, second, bytes);
    free(got), free(second);
}

static void check_dw(const operands *o, gr_cu_dtype type)
{
    const groups *g = o->g;
    const size_t each = (size_t)g->in * g->out, n = each * g->experts;
    gradient grad = gradient_new(n, type, 7);
    const gr_cu_experts_product call = call_of(o, GR_CU_EXPERTS_DW, false, grad.device, type);
    launch(&call, g->name);
    void *got = gradient_take(g->name, &grad);
    gradient_reset(&grad);
    launch(&call, g->name);
    void *second = gradient_take(g->name, &grad);
    errors e = {0};
    for (size_t i = 0; i<n; i += n> 40000 ? 1 + random_below((uint32_t)(n / 20000)) : 1) {
        const uint32_t expert = (uint32_t)(i / each), row = (uint32_t)(i % each / g->in),
                       col = (uint32_t)(i % g->in);
        double sum = gradient_before(&grad, i);
        for (uint32_t r = g->first[expert]; r < g->first[expert + 1]; r++)
            sum += (double)of_bf16(o->dy[(size_t)r * g->out + row]) * of_bf16(o->x[(size_t)r * g->in + col]);
        errors_add(&e, gradient_at(&grad, got, i), sum);
    }
    report_errors(&e, g->name, type == GR_CU_F32 ? "dw" : "dw16", type == GR_CU_F32 ? 5e-5 : 4e-3);
    report_equal(g->name, "twice", got, second, grad.bytes);
    free(got), free(second);
    gradient_free(&grad);
}

static void check_groups(groups g)
{
    operands o = operands_new(&g);
    check_rows(&o, GR_CU_EXPERTS_Y, false, "y");
    check_rows(&o, GR_CU_EXPERTS_Y, true, "y+bias");
    check_rows(&o, GR_CU_EXPERTS_DX, false, "dx");
    check_dw(&o, GR_CU_F32);
    check_dw(&o, GR_CU_BF16);
    operands_free(&o);
    free(g.first);
}

static void products(void)
{
    check_groups(groups_of("one expert, one row", 1, 8, 8, 1, 1));
    check_groups(groups_of("4 experts, 72 x 200, edges", 4, 72, 200, 0, 2));
    check_groups(groups_of("32 experts, 64 x 136, edges", 32, 64, 136, 0, 2));
    if (check_small) return;
    check_groups(groups_of("8 experts, 256 x 512, 2000 rows", 8, 256, 512, 2000, 0));
    check_groups(groups_of("16 experts, 2048 x 1536, all to one", 16, 2048, 1536, 3000, 1));
    check_groups(groups_of("128 experts, 768 x 2048, 300 rows", 128, 768, 2048, 300, 0));
    check_groups(groups_of("512 experts, 264 x 520, 5000 rows", 512, 264, 520, 5000, 0));
    check_groups(groups_of("3 experts, 2880 x 5760, 700 rows", 3, 2880, 5760, 700, 0));
    check_groups(
        groups_of("96 experts, 768 x 1024, edges", 96, 768, 1024, 0, 2)); /* several of a CTA's tiles */
}

/* Rows of a group have the same bits whatever else is in it, and in the others. */
static void check_rows_alone(gr_cu_experts_form form)
{
    enum { ROWS = 700, IN = 384, OUT = 648 };
    uint32_t many[] = {0, 0, ROWS, ROWS}, few[] = {0, 0, 0, 0};
    const groups g = {"rows alone", 3, IN, OUT, many};
    operands o = operands_new(&g);
    const size_t cols = form == GR_CU_EXPERTS_Y ? OUT : IN, wide = form == GR_CU_EXPERTS_Y ? IN : OUT;
    gr_bf16 *d = device_poisoned(ROWS * cols * 2);
    gr_cu_experts_product call = call_of(&o, form, false, d, GR_CU_BF16);
    launch(&call, g.name);
    gr_bf16 *all = take(g.name, d, ROWS * cols * 2);
    static const uint32_t sizes[] = {1, 5, 64, 100, 128, 129, 200, 256, 300, 512};
    for (size_t i = 0; i < GR_LEN(sizes); i++) {
        const uint32_t n = sizes[i], at = random_below(ROWS - n);
        few[2] = few[3] = n;
        uint32_t *first = device_copy(few, sizeof(few));
        gr_bf16 *part = device_poisoned(n * cols * 2);
        call.first = first;
        call.rows = n;
        call.a = (form == GR_CU_EXPERTS_Y ? o.d_x : o.d_dy) + at * wide;
        call.d = part;
        launch(&call, g.name);
        gr_bf16 *got = take(g.name, part, n * cols * 2);
        report_equal(g.name, form == GR_CU_EXPERTS_Y ? "y" : "dx", got, all + at * cols, n * cols * 2);
        free(got);
        CUDA(cudaFree(first));
    }
    free(all);
    operands_free(&o);
}

/* ---- router and sorting, beside the CPU device ------------------------------------------------------------
 */

static const struct {
    const char *name;
    gr_experts_desc e;
} routers[] = {
    {"qwen3_moe", {.count = 128, .top_k = 8, .scale = 1, .normalize = true}},
    {"qwen3_next", {.count = 512, .top_k = 10, .scale = 1, .normalize = true}},
    {"gpt_oss", {.count = 32, .top_k = 4, .scale = 1, .softmax_after = true}},
    {"deepseek_v3",
     {.count = 256,
      .top_k = 8,
      .groups = 8,
      .top_groups = 4,
      .scale = 2.5f,
      .normalize = true,
      .selection_bias = true,
      .router = GR_ROUTER_SIGMOID}},
    {"softmax over all", {.count = 64, .top_k = 6, .scale = 1}},
    {"sigmoid alone", {.count = 40, .top_k = 1, .scale = 3, .router = GR_ROUTER_SIGMOID}},
    {"all of few", {.count = 8, .top_k = 8, .scale = 1}},
};

static float *random_floats(size_t n, float scale, uint64_t seed)
{
    float *x = gr_malloc(n * sizeof(*x) + 4);
    for (size_t i = 0; i < n; i++) x[i] = scale * random_float(&seed);
    return x;
}

/* What chooses experts, in fp32, in parts that bf16 holds. */
static float *random_parts(size_t E, float scale, uint64_t seed)
{
    float *x = random_floats(E, scale, seed), *parts = gr_malloc(E * GR_SELECTION_PARTS * 4);
    for (size_t i = 0; i < E; i++) gr_selection_parts(x[i], parts + i * GR_SELECTION_PARTS);
    free(x);
    return parts;
}

static void report_floats(const char *name, const char *what, const float *got, const float *want, size_t n,
                          double bound)
{
    errors e = {0};
    for (size_t i = 0; i < n; i++) errors_add(&e, got[i], want[i]);
    report_errors(&e, name, what, bound);
}

/* What rows take of their choices, and bring back to them; experts are counted among a part of them. */
static void check_choices(const char *name, const gr_dispatch *here, const gr_dispatch *there, uint32_t E,
                          uint32_t R, const uint16_t *expert, const uint16_t *device_expert)
{
    const uint32_t held = E % 2 ? E : E / 2;
    float *weight = random_floats(R, 1, 17), *row_weight = gr_malloc(R * 4 + 4), *back = gr_malloc(R * 4 + 4),
          *d_weight = device_copy(weight, R * 4), *d_row_weight = device_poisoned(R * 4),
          *d_back = device_poisoned(R * 4);
    uint16_t *row_expert = gr_malloc(R * 2 + 2), *d_row_expert = device_poisoned(R * 2);
    gr_experts_cpu.choice_rows(&(gr_queue){0}, here, R, held, expert, weight, row_expert, row_weight);
    gr_experts_cpu.choice_back(&(gr_queue){0}, here, R, row_weight, back);
    gr_experts_cuda.choice_rows(&queue, there, R, held, device_expert, d_weight, d_row_expert, d_row_weight);
    gr_experts_cuda.choice_back(&queue, there, R, d_row_weight, d_back);
    need_ok(name);
    uint16_t *got_expert = take(name, d_row_expert, R * 2);
    float *got_weight = take(name, d_row_weight, R * 4), *got_back = take(name, d_back, R * 4);
    report_equal(name, "experts of rows", got_expert, row_expert, R * 2);
    report_equal(name, "weights of rows", got_weight, row_weight, R * 4);
    report_equal(name, "weights back", got_back, weight, R * 4);
    report_equal(name, "weights back", back, weight, R * 4);
    void *const host[] = {weight, row_weight, back, row_expert, got_expert, got_weight, got_back};
    for (size_t i = 0; i < GR_LEN(host); i++) free(host[i]);
    CUDA(cudaFree(d_weight));
}

/* The CPU's and the device's dispatch of the same choices. */
static void check_dispatch(const char *name, uint32_t E, uint32_t k, uint32_t T, const uint16_t *expert)
{
    gr_dispatch here, there;
    gr_workspace c = {0};
    gr_dispatch_layout(&c, E, k, T, &here);
    const uint64_t bytes = c.used;
    void *memory = aligned_alloc(256, gr_align(bytes, 256) + 256), *ws = gr_malloc(E * 4);
    void *device = device_poisoned(bytes),
         *device_ws = device_poisoned(gr_experts_cuda.dispatch_ws_bytes(E, k, T));
    uint16_t *device_expert = device_copy(expert, (size_t)T * k * 2);
    memset(memory, 0xff, bytes);
    c = (gr_workspace){.base = memory};
    gr_dispatch_layout(&c, E, k, T, &here);
    c = (gr_workspace){.base = device};
    gr_dispatch_layout(&c, E, k, T, &there);
    gr_experts_cpu.dispatch(&(gr_queue){0}, E, k, T, expert, &here, ws);
    gr_experts_cuda.dispatch(&queue, E, k, T, device_expert, &there, device_ws);
    need_ok(name);
    check_tail(name, device_ws, gr_experts_cuda.dispatch_ws_bytes(E, k, T));
    check_choices(name, &here, &there, E, T * k, expert, device_expert);
    void *got = take(name, device, bytes);
    report_equal(name, "sorted", got, memory, bytes);
    free(got), free(memory), free(ws);
    CUDA(cudaFree(device_ws));
    CUDA(cudaFree(device_expert));
}

static void check_router(const char *name, const gr_experts_desc *e, uint32_t T, bool coarse)
{
    const size_t E = e->count, k = e->top_k, pairs = T * k;
    float *z = random_floats(T * E, 2, 11), *dw = random_floats(pairs, 1, 12),
          *weight = gr_malloc(pairs * 4 + 4);
    float *bias = random_parts(E, 0.1f, 13), *want = gr_malloc(T * E * 4 + 4);
    gr_bf16 *bias16 = gr_malloc(E * GR_SELECTION_PARTS * 2);
    uint16_t *expert = gr_malloc(pairs * 2 + 2);
    for (size_t i = 0; i < T * E && coarse; i++) z[i] = roundf(z[i] * 4) / 4;
    for (size_t i = 0; i < E * GR_SELECTION_PARTS; i++) bias16[i] = bf16_of(bias[i]);
    const float *selection = e->selection_bias ? bias : NULL;
    gr_experts_cpu.route(&(gr_queue){0}, e, z, selection, NULL, T, expert, weight);
    gr_experts_cpu.route_backward(&(gr_queue){0}, e, z, expert, dw, T, want);
    float *d_z = device_copy(z, T * E * 4), *d_dw = device_copy(dw, pairs * 4),
          *d_weight = device_poisoned(pairs * 4);
    gr_bf16 *d_bias = device_copy(bias16, E * GR_SELECTION_PARTS * 2), *d_dz = device_poisoned(T * E * 2);
    uint16_t *d_expert = device_poisoned(pairs * 2);
    gr_experts_cuda.route(&queue, e, d_z, selection ? d_bias : NULL, NULL, T, d_expert, d_weight);
    gr_experts_cuda.route_backward(&queue, e, d_z, d_expert, d_dw, T, d_dz);
    need_ok(name);
    uint16_t *chosen = take(name, d_expert, pairs * 2);
    float *got = take(name, d_weight, pairs * 4);
    gr_bf16 *dz = take(name, d_dz, T * E * 2);
    if (!selection && e->router == GR_ROUTER_SOFTMAX) report_equal(name, "chosen", chosen, expert, pairs * 2);
    size_t differ = 0; /* of sums and sigmoids that round apart */
    for (size_t t = 0; t < T; t++) differ += memcmp(chosen + t * k, expert + t * k, k * 2) != 0;
    report(differ * 1000 <= T, name, "differ", (double)differ, (double)differ / (T ? T : 1));
    for (size_t t = 0; t < T; t++) /* the others have other weights */
        if (memcmp(chosen + t * k, expert + t * k, k * 2))
            memcpy(got + t * k, weight + t * k, k * 4), memset(dz + t * E, 0, E * 2),
                memset(want + t * E, 0, E * 4);
    report_floats(name, "weight", got, weight, pairs, 1e-6);
    errors err = {0};
    for (size_t i = 0; i < T * E; i++) errors_add(&err, of_bf16(dz[i]), want[i]);
    report_errors(&err, name, "dz", 4e-3);
    check_dispatch(name, e->count, e->top_k, T, expert);
    void *const host[] = {z, dw, weight, bias16, bias, want, expert, chosen, got, dz};
    for (size_t i = 0; i < GR_LEN(host); i++) free(host[i]);
    CUDA(cudaFree(d_z));
    CUDA(cudaFree(d_dw));
    CUDA(cudaFree(d_bias));
}

/* Experts' numbers: weights to the bit, their gradient, and the numbers' own. */
static void check_numbers(uint32_t E, uint32_t k, uint32_t T, gr_dtype grads)
{
    char name[96];
    const size_t n = (size_t)T * k;
    snprintf(name, sizeof(name), "numbers of %u experts, %u x %u, %s", E, T, k,
             grads == GR_F32 ? "fp32" : "bf16");
    float *plain = random_floats(n, 1, 21), *d = random_floats(n, 1, 22), *scale = gr_malloc(E * 4),
          *weight = gr_malloc(n * 4 + 4), *grad = gr_calloc(E, 4);
    gr_bf16 *scale16 = random_bf16(E, 1, 23);
    uint16_t *expert = gr_malloc(n * 2 + 2);
    for (size_t i = 0; i < n; i++) expert[i] = (uint16_t)random_below(E);
    for (uint32_t e = 0; e < E; e++) scale[e] = of_bf16(scale16[e]);
    float *d_plain = device_copy(plain, n * 4), *d_weight = device_poisoned(n * 4),
          *d_d = device_copy(d, n * 4);
    uint16_t *d_expert = device_copy(expert, n * 2);
    gr_bf16 *d_scale = device_copy(scale16, E * 2u);
    void *d_grad = device_poisoned(E * gr_dtype_size(grads));
    CUDA(cudaMemset(d_grad, 0, E * gr_dtype_size(grads)));
    gr_experts_cpu.scale_choices(&(gr_queue){0}, k, T, expert, scale, plain, weight);
    gr_experts_cpu.scale_choices_backward(&(gr_queue){0}, E, k, T, expert, scale, plain, d, grad, GR_F32);
    gr_experts_cuda.scale_choices(&queue, k, T, d_expert, d_scale, d_plain, d_weight);
    gr_experts_cuda.scale_choices_backward(&queue, E, k, T, d_expert, d_scale, d_plain, d_d, d_grad, grads);
    need_ok(name);
    float *got = take(name, d_weight, n * 4), *got_d = take(name, d_d, n * 4);
    void *got_grad = take(name, d_grad, E * gr_dtype_size(grads));
    report_equal(name, "weight", got, weight, n * 4);
    report_equal(name, "d", got_d, d, n * 4);
    errors err = {0};
    for (uint32_t e = 0; e < E; e++)
        errors_add(&err, grads == GR_F32 ? ((float *)got_grad)[e] : of_bf16(((gr_bf16 *)got_grad)[e]),
                   grad[e]);
    report_errors(&err, name, "d numbers", grads == GR_F32 ? 1e-5 : 4e-3);
    void *const host[] = {plain, d, scale, weight, grad, scale16, expert, got, got_d, got_grad};
    for (size_t i = 0; i < GR_LEN(host); i++) free(host[i]);
    void *const device[] = {d_plain, d_expert, d_scale};
    for (size_t i = 0; i < GR_LEN(device); i++) CUDA(cudaFree(device[i]));
}

static void check_odd_logits(void)
{
    enum { E = 128, K = 8, T = 64 };
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 0, 1};
    const gr_experts_desc e = {.count = E, .top_k = K, .scale = 1, .normalize = true};
    float *z = gr_malloc(T * E * 4), *d_weight = device_poisoned(T * K * 4);
    for (size_t i = 0; i < T * E; i++) z[i] = odd[random_below(GR_LEN(odd))];
    float *d_z = device_copy(z, T * E * 4);
    uint16_t *d_expert = device_poisoned(T * K * 2);
    gr_experts_cuda.route(&queue, &e, d_z, NULL, NULL, T, d_expert, d_weight);
    need_ok("odd logits");
    uint16_t *got = take("odd logits", d_expert, T * K * 2);
    bool fine = true;
    for (size_t t = 0; t < T; t++)
        for (size_t j = 0; j < K; j++) {
            fine = fine && got[t * K + j] < E;
            for (size_t i = 0; i < j; i++) fine = fine && got[t * K + i] != got[t * K + j];
        }
    report(fine, "odd logits", "ids", 0, 0);
    free(got), free(z);
    CUDA(cudaFree(d_z));
    CUDA(cudaFree(d_weight));
}

/* ---- routers of few experts ------------------------------------------------------------------------------
 */

typedef struct few {
    uint32_t T, H, E;
    gr_bf16 *x, *w, *dz, *d_x, *d_w, *d_dz;
} few;

static few few_new(uint32_t T, uint32_t H, uint32_t E)
{
    few f = {.T = T,
             .H = H,
             .E = E,
             .x = random_bf16((size_t)T * H, 1, 51),
             .w = random_bf16((size_t)E * H, 1, 52),
             .dz = random_bf16((size_t)T * E, 1, 53)};
    f.d_x = device_copy(f.x, (size_t)T * H * 2);
    f.d_w = device_copy(f.w, (size_t)E * H * 2);
    f.d_dz = device_copy(f.dz, (size_t)T * E * 2);
    return f;
}

static void few_free(few *f)
{
    gr_bf16 *const host[] = {f->x, f->w, f->dz}, *const device[] = {f->d_x, f->d_w, f->d_dz};
    for (size_t i = 0; i < GR_LEN(host); i++) free(host[i]);
    for (size_t i = 0; i < GR_LEN(device); i++) CUDA(cudaFree(device[i]));
}

/* Logits of all tokens; a row alone has the same bits. */
static void check_few_logits(const few *f, const char *name)
{
    const size_t n = (size_t)f->T * f->E;
    const uint32_t last = f->T - 1;
    float *d = device_poisoned(n * 4), *d_one = device_poisoned(f->E * 4);
    const gr_cu_few all = {f->T, f->H, f->E, f->d_x, f->d_w},
                    one = {1, f->H, f->E, f->d_x + (size_t)last * f->H, f->d_w};
    gr_cu_few_logits(queue.stream, &all, d);
    gr_cu_few_logits(queue.stream, &one, d_one);
    float *got = take(name, d, n * 4), *alone = take(name, d_one, f->E * 4);
    errors e = {0};
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (uint32_t h = 0; h < f->H; h++)
            sum += (double)of_bf16(f->x[i / f->E * f->H + h]) * of_bf16(f->w[i % f->E * f->H + h]);
        errors_add(&e, got[i], sum);
    }
    report_errors(&e, name, "logits", 1e-5);
    report_equal(name, "a row alone", alone, got + (size_t)last * f->E, f->E * 4);
    free(got), free(alone);
}

static void check_few_dx(const few *f, const char *name, bool add)
{
    const size_t n = (size_t)f->T * f->H;
    gr_bf16 *before = random_bf16(n, 1, 54), *d = add ? device_copy(before, n * 2) : device_poisoned(n * 2);
    const gr_cu_few p = {f->T, f->H, f->E, f->d_x, f->d_w};
    gr_cu_few_dx(queue.stream, &p, f->d_dz, add, d);
    gr_bf16 *got = take(name, d, n * 2);
    errors e = {0};
    for (size_t i = 0; i < n; i++) {
        double sum = add ? of_bf16(before[i]) : 0;
        for (uint32_t j = 0; j < f->E; j++)
            sum += (double)of_bf16(f->dz[i / f->H * f->E + j]) * of_bf16(f->w[j * f->H + i % f->H]);
        errors_add(&e, of_bf16(got[i]), sum);
    }
    report_errors(&e, name, add ? "dx added" : "dx", 4e-3);
    free(before), free(got);
}

static void check_few_gradients(const few *f, const char *name, gr_cu_dtype type)
{
    const uint64_t bytes = gr_cu_few_ws(f->T, f->H, f->E);
    gradient w = gradient_new((size_t)f->E * f->H, type, 55), sums = gradient_new(f->E, type, 56);
    const gr_cu_few p = {f->T, f->H, f->E, f->d_x, f->d_w};
    void *ws = device_poisoned(bytes);
    gr_cu_few_dw(queue.stream, &p, f->d_dz, w.device, type, ws);
    gr_cu_few_sums(queue.stream, &p, f->d_dz, sums.device, type);
    need_ok(name);
    check_tail(name, ws, bytes);
    void *got = gradient_take(name, &w), *got_sums = gradient_take(name, &sums);
    errors e = {0};
    for (size_t i = 0; i < (size_t)f->E * f->H; i++) {
        double sum = gradient_before(&w, i);
        for (uint32_t t = 0; t < f->T; t++)
            sum += (double)of_bf16(f->dz[t * f->E + i / f->H]) * of_bf16(f->x[(size_t)t * f->H + i % f->H]);
        errors_add(&e, gradient_at(&w, got, i), sum);
    }
    for (uint32_t i = 0; i < f->E; i++) {
        double sum = gradient_before(&sums, i);
        for (uint32_t t = 0; t < f->T; t++) sum += of_bf16(f->dz[t * f->E + i]);
        errors_add(&e, gradient_at(&sums, got_sums, i), sum);
    }
    report_errors(&e, name, type == GR_CU_F32 ? "dw" : "dw16", type == GR_CU_F32 ? 5e-5 : 4e-3);
    free(got), free(got_sums);
    gradient_free(&w);
    gradient_free(&sums);
    CUDA(cudaFree(ws));
}

static void check_few(uint32_t T, uint32_t H, uint32_t E)
{
    char name[64];
    few f = few_new(T, H, E);
    snprintf(name, sizeof(name), "%u tokens of %u, %u experts", T, H, E);
    check_few_logits(&f, name);
    check_few_dx(&f, name, false);
    check_few_dx(&f, name, true);
    check_few_gradients(&f, name, GR_CU_F32);
    check_few_gradients(&f, name, GR_CU_BF16);
    few_free(&f);
}

/* A dense MLP's rows: as experts' whose weights are 1. */
static void check_dense_act(gr_cu_activation act)
{
    enum { ROWS = 45, INNER = 264 };
    const size_t n = ROWS * INNER;
    const gr_cu_expert_act a = {act, 0.5f, ROWS, INNER};
    float ones[ROWS];
    uint32_t choice[ROWS];
    for (uint32_t i = 0; i < ROWS; i++) ones[i] = 1, choice[i] = i;
    gr_bf16 *host = random_bf16(3 * n, 1, 57), *in = device_copy(host, 6 * n);
    gr_bf16 *d[2] = {device_poisoned(4 * n), device_poisoned(4 * n)},
            *h[2] = {device_poisoned(2 * n), device_poisoned(2 * n)};
    float *weight = device_copy(ones, sizeof(ones)), *d_weight = device_poisoned(sizeof(ones));
    uint32_t *places = device_copy(choice, sizeof(choice));
    gr_cu_experts_act_backward(queue.stream, &a, places, weight, NULL, in, in + 2 * n, d[0], h[0], d_weight);
    gr_cu_experts_act_backward(queue.stream, &a, NULL, NULL, NULL, in, in + 2 * n, d[1], h[1], NULL);
    gr_bf16 *want = take("dense rows", d[0], 4 * n), *got = take("dense rows", d[1], 4 * n),
            *want_h = take("dense rows", h[0], 2 * n), *got_h = take("dense rows", h[1], 2 * n);
    report_equal("dense rows", "d_gate_up", got, want, 4 * n);
    report_equal("dense rows", "h", got_h, want_h, 2 * n);
    free(host), free(want), free(got), free(want_h), free(got_h);
    void *const device[] = {in, weight, d_weight, places};
    for (size_t i = 0; i < GR_LEN(device); i++) CUDA(cudaFree(device[i]));
}

/* ---- whole MLPs
 * -------------------------------------------------------------------------------------------- */

typedef struct mlp { /* values of bf16, as floats */
    gr_experts_desc e;
    uint32_t T, H;
    float *x, *base, *dy, *router, *router_bias, *selection, *gate_up, *gate_up_bias, *down, *down_bias;
    uint16_t *given;
} mlp;

static float *rounded(size_t n, float scale, uint64_t seed)
{
    float *x = random_floats(n, scale, seed);
    for (size_t i = 0; i < n; i++) x[i] = of_bf16(bf16_of(x[i]));
    return x;
}

static mlp mlp_new(gr_experts_desc e, uint32_t T, uint32_t H)
{
    const size_t E = e.count, n = e.inner;
    const float in = 1 / sqrtf((float)H), out = 1 / sqrtf((float)n);
    mlp m = {.e = e, .T = T, .H = H};
    m.x = rounded((size_t)T * H, 1, 21);
    m.base = rounded((size_t)T * H, 1, 22);
    m.dy = rounded((size_t)T * H, 1, 23);
    m.router = rounded(E * H, 2 * in, 24);
    m.router_bias = rounded(E, 0.5f, 25);
    m.selection = random_parts(E, 0.05f, 26);
    m.gate_up = rounded(E * 2 * n * H, in, 27);
    m.gate_up_bias = rounded(E * 2 * n, 0.3f, 28);
    m.down = rounded(E * H * n, out, 29);
    m.down_bias = rounded(E * H, 0.3f, 30);
    return m;
}

typedef struct side {
    const gr_experts_ops *ops;
    gr_queue *q;
    gr_dtype type;
} side;

/* Values in the side's type and memory, with room behind; NULL where there are none. */
static void *put(const side *s, const float *x, size_t n)
{
    if (s->type == GR_F32) return memcpy(gr_malloc(n * 4 + 4), x, n * 4);
    gr_bf16 *h = gr_malloc(n * 2 + 2);
    for (size_t i = 0; i < n; i++) h[i] = bf16_of(x[i]);
    void *d = device_copy(h, n * 2);
    free(h);
    return d;
}

static void *room(const side *s, uint64_t bytes)
{
    return s->type == GR_F32 ? memset(aligned_alloc(256, gr_align(bytes + 1, 256)), 0xff, bytes)
                             : device_poisoned(bytes);
}

static float *fetch(const side *s, const char *name, void *p, size_t n)
{
    if (s->type == GR_F32) return p;
    gr_bf16 *h = take(name, p, n * 2);
    float *x = gr_malloc(n * 4 + 4);
    for (size_t i = 0; i < n; i++) x[i] = of_bf16(h[i]);
    free(h);
    return x;
}

static float *fetch_floats(const side *s, const char *name, void *p, size_t n)
{
    return s->type == GR_F32 ? p : take(name, p, n * 4);
}

enum { RESULTS = 8 };
static const char *const result_names[RESULTS] = {"y",       "dx",     "router", "router_b",
                                                  "gate_up", "gate_b", "down",   "down_b"};

typedef struct passed {
    float *value[RESULTS]; /* NULL: the MLP has none */
    size_t n[RESULTS];
    uint16_t *expert; /* [T, k] */
} passed;

static void drop(const side *s, void *p)
{
    if (s->type == GR_F32)
        free(p);
    else
        CUDA(cudaFree(p));
}

static void *zeros(const side *s, size_t floats)
{
    void *p = room(s, floats * 4);
    if (s->type == GR_F32)
        memset(p, 0, floats * 4);
    else
        CUDA(cudaMemset(p, 0, floats * 4));
    return p;
}

static bool without_router;

static passed pass(const side *s, const char *name, const mlp *m, uint32_t run, const uint16_t *given)
{
    const size_t E = m->e.count, n = m->e.inner, H = m->H, all = m->T * H, pairs = (size_t)m->T * m->e.top_k;
    const bool b = m->e.bias;
    void *x = put(s, m->x, all), *base = put(s, m->base, all), *dy = put(s, m->dy, all);
    const gr_experts_weights w = {
        .router = without_router ? NULL : put(s, m->router, E * H),
        .router_bias = m->e.router_bias ? put(s, m->router_bias, E) : NULL,
        .selection = m->e.selection_bias ? put(s, m->selection, E * GR_SELECTION_PARTS) : NULL,
        .gate_up = put(s, m->gate_up, E * 2 * n * H),
        .gate_up_bias = b ? put(s, m->gate_up_bias, E * 2 * n) : NULL,
        .down = put(s, m->down, E * H * n),
        .down_bias = b ? put(s, m->down_bias, E * H) : NULL};
    uint16_t *own = !given              ? NULL
                    : s->type == GR_F32 ? memcpy(gr_malloc(pairs * 2 + 2), given, pairs * 2)
                                        : device_copy(given, pairs * 2);
    gr_experts_call c = {.ops = s->ops,
                         .e = &m->e,
                         .type = s->type,
                         .T = m->T,
                         .H = m->H,
                         .run = run,
                         .scale = 1,
                         .x = x,
                         .given = own,
                         .w = w};
    void *y = room(s, all * gr_dtype_size(s->type)), *dx = room(s, all * gr_dtype_size(s->type));
    const gr_experts_grads g = {GR_F32,
                                zeros(s, E * H),
                                m->e.router_bias ? zeros(s, E) : NULL,
                                zeros(s, E * 2 * n * H),
                                b ? zeros(s, E * 2 * n) : NULL,
                                zeros(s, E * H * n),
                                b ? zeros(s, E * H) : NULL,
                                NULL};
    gr_experts_acts acts;
    gr_workspace k = {0};
    gr_experts_acts_layout(&k, &c, m->T, &acts);
    void *kept = room(s, k.used), *ws;
    k = (gr_workspace){.base = kept};
    gr_experts_acts_layout(&k, &c, m->T, &acts);
    const uint64_t forward = gr_experts_ws_bytes(&c, GR_LAYER_KEEP),
                   backward = gr_experts_ws_bytes(&c, GR_LAYER_BACKWARD);
    c.products = room(s, gr_experts_products_bytes(&c, 1, false));
    ws = room(s, forward);
    gr_experts_forward(s->q, &c, base, y, &acts, ws);
    if (s->type != GR_F32) check_tail(name, ws, forward), check_tail(name, kept, k.used);
    drop(s, ws);
    drop(s, c.products);
    c.products = room(s, gr_experts_products_bytes(&c, 1, true));
    ws = room(s, backward);
    gr_experts_backward(s->q, &c, &acts, dy, false, dx, &g, ws);
    if (s->type != GR_F32) need_ok(name), check_tail(name, ws, backward);
    drop(s, ws);
    drop(s, c.products);
    passed p = {.value = {fetch(s, name, y, all), fetch(s, name, dx, all),
                          fetch_floats(s, name, g.router, E * H),
                          g.router_bias ? fetch_floats(s, name, g.router_bias, E) : NULL,
                          fetch_floats(s, name, g.gate_up, E * 2 * n * H),
                          b ? fetch_floats(s, name, g.gate_up_bias, E * 2 * n) : NULL,
                          fetch_floats(s, name, g.down, E * H * n),
                          b ? fetch_floats(s, name, g.down_bias, E * H) : NULL},
                .n = {all, all, E * H, E, E * 2 * n * H, E * 2 * n, E * H * n, E * H}};
    p.expert = s->type == GR_F32 ? memcpy(gr_malloc(pairs * 2 + 2), acts.expert, pairs * 2)
                                 : host_copy(acts.expert, pairs * 2);
    drop(s, kept);
    void *const rest[] = {x,
                          base,
                          dy,
                          (void *)(uintptr_t)w.router,
                          (void *)(uintptr_t)w.router_bias,
                          (void *)(uintptr_t)w.selection,
                          (void *)(uintptr_t)w.gate_up,
                          (void *)(uintptr_t)w.gate_up_bias,
                          (void *)(uintptr_t)w.down,
                          (void *)(uintptr_t)w.down_bias,
                          own};
    for (size_t i = 0; i < GR_LEN(rest); i++)
        if (rest[i]) drop(s, rest[i]);
    return p;
}

static void passed_free(passed *p)
{
    for (int i = 0; i < RESULTS; i++) free(p->value[i]);
    free(p->expert);
}

static void report_same(const char *name, const passed *a, const passed *b, int results)
{
    for (int i = 0; i < results; i++)
        if (a->value[i]) report_equal(name, result_names[i], a->value[i], b->value[i], a->n[i] * 4);
}

/* Beside the CPU, which follows the device's choices (where bf16 falls on the other side of a limit, a
 * gradient ends or does not); twice; in shorter runs, where y keeps its bits. */
static void check_mlp(const char *name, gr_experts_desc e, uint32_t T, uint32_t H, bool one_sided)
{
    const side device = {&gr_experts_cuda, &queue, GR_BF16}, host = {&gr_experts_cpu, &(gr_queue){0}, GR_F32};
    mlp m = mlp_new(e, T, H);
    for (uint32_t i = 0; i < e.count && one_sided; i++)
        m.router_bias[i] = i < e.top_k ? (float)(64 - 4 * i) : 0;
    passed got = pass(&device, name, &m, T, NULL), again = pass(&device, name, &m, T, NULL),
           runs = pass(&device, name, &m, T / 3 + 1, NULL), given = pass(&device, name, &m, T, got.expert),
           want = pass(&host, name, &m, T, got.expert);
    for (int i = 0; i < RESULTS; i++)
        if (got.value[i])
            report_floats(name, result_names[i], got.value[i], want.value[i], got.n[i], i ? 5e-2 : 2e-2);
    report_same(name, &got, &again, RESULTS);
    report_same(name, &got, &given, RESULTS);
    report_same(name, &got, &runs, 1);
    passed_free(&got), passed_free(&again), passed_free(&runs), passed_free(&given), passed_free(&want);
    float *const all[] = {m.x,         m.base,    m.dy,           m.router, m.router_bias,
                          m.selection, m.gate_up, m.gate_up_bias, m.down,   m.down_bias};
    for (size_t i = 0; i < GR_LEN(all); i++) free(all[i]);
}

static void mlps(void)
{
    check_mlp("8 experts, SiLU",
              (gr_experts_desc){.count = 8, .top_k = 2, .inner = 72, .scale = 1, .normalize = true}, 70, 136,
              false);
    check_mlp("8 experts, gpt_oss",
              (gr_experts_desc){.count = 8,
                                .top_k = 2,
                                .inner = 64,
                                .scale = 1,
                                .softmax_after = true,
                                .router_bias = true,
                                .bias = true,
                                .act = GR_ACT_SWIGLU_OAI,
                                .limit = 2},
              50, 96, false);
    check_mlp("16 experts, sigmoid, groups",
              (gr_experts_desc){.count = 16,
                                .top_k = 4,
                                .inner = 40,
                                .scale = 2.5f,
                                .normalize = true,
                                .groups = 4,
                                .top_groups = 2,
                                .selection_bias = true,
                                .router = GR_ROUTER_SIGMOID},
              90, 64, false);
    check_mlp("8 experts, GELU",
              (gr_experts_desc){.count = 8, .top_k = 1, .inner = 48, .scale = 1, .act = GR_ACT_GELU_TANH}, 33,
              40, false);
    check_mlp("one of one, its gate a sigmoid",
              (gr_experts_desc){.count = 1, .top_k = 1, .inner = 72, .scale = 1, .router = GR_ROUTER_SIGMOID},
              70, 136, false);
    check_mlp("13 experts",
              (gr_experts_desc){.count = 13,
                                .top_k = 3,
                                .inner = 40,
                                .scale = 2.5f,
                                .normalize = true,
                                .router_bias = true,
                                .selection_bias = true,
                                .router = GR_ROUTER_SIGMOID},
              150, 72, false);
    without_router = true;
    check_mlp("one of one, without a router",
              (gr_experts_desc){.count = 1, .top_k = 1, .inner = 72, .scale = 1}, 70, 136, false);
    without_router = false;
    check_mlp("all to two of 32",
              (gr_experts_desc){
                  .count = 32, .top_k = 2, .inner = 64, .scale = 1, .normalize = true, .router_bias = true},
              300, 128, true);
    if (check_small) return;
    check_mlp("60 experts, 900 tokens",
              (gr_experts_desc){.count = 60, .top_k = 4, .inner = 88, .scale = 1, .router_bias = true}, 900,
              520, false);
    check_mlp("128 experts, 1000 tokens",
              (gr_experts_desc){.count = 128, .top_k = 8, .inner = 96, .scale = 1, .normalize = true}, 1000,
              256, false);
}

/* --own: without what calls cuBLASLt. */
int main(int argc, char **argv)
{
    read_options(argc, argv);
    need_device();
    gr_diag_init(&diag);
    if (!check_own) expect_ok(gr_kernels_cuda.attach(&queue, &diag), &diag, "attach");
    products();
    check_rows_alone(GR_CU_EXPERTS_Y);
    check_rows_alone(GR_CU_EXPERTS_DX);
    for (size_t i = 0; i < GR_LEN(routers); i++) {
        check_router(routers[i].name, &routers[i].e, check_small ? 9 : 3001, false);
        check_router(routers[i].name, &routers[i].e, 1, false);
    }
    check_router("equal logits", &routers[0].e, check_small ? 9 : 500, true);
    check_odd_logits();
    check_numbers(128, 8, 2000, GR_F32);
    check_numbers(128, 8, 70, GR_BF16);
    check_numbers(5, 3, 1, GR_F32);
    check_few(1, 8, 1);
    check_few(70, 136, 1);
    check_few(131, 264, 13);
    if (!check_small) check_few(3000, 2048, 1);
    if (!check_small) check_few(700, 1032, 60);
    check_dense_act(GR_CU_SWIGLU_OAI);
    check_dense_act(GR_CU_SILU);
    if (!check_own) mlps();
    if (!check_own) gr_kernels_cuda.detach(&queue);
    gr_diag_release(&diag);
    printf("%s\n", check_failures ? "FAILED" : "all OK");
    return check_failures != 0;
}
