/* tests/gpu/gpu_lora.c: adapters on CUDA against those of the CPU device over the same bf16 values: merged
 * into weights, apart and in place, and their gradients, of each slot of a layer, of parts of a slot alone,
 * of several ranks; new ones, which change no bit; the same bits again. Frozen weights in NF4: the bits that
 * the CPU device opens, rounded, of matrices of any size and of a layer; adapters merged into these.
 *
 *     gpu_lora           compare; a line for each tensor
 *     gpu_lora --small   the same with fewer tokens
 *     gpu_lora --bench   times of opening a matrix
 */
#include "ops/kernels/kernels.h"
#include "ops/kernels/layer_ops.h"
#include "ops/model/nf4.h"
#include "tests/gpu/device.h"
#include "tests/gpu/models.h"

typedef struct lora_case {
    const char *name;
    uint32_t hidden, heads, kv_heads, head_dim, tokens, rank;
    unsigned targets;
    gr_dtype grads;
} lora_case;

/* Values in both forms. */
typedef struct values {
    size_t n;
    gr_bf16 *host, *device;
    float *wide;
} values;

static values values_from(size_t n, gr_bf16 *host)
{
    values v = {n, host, NULL, gr_malloc(n * 4 + 1)};
    for (size_t i = 0; i < n; i++) v.wide[i] = of_bf16(v.host[i]);
    v.device = device_copy(v.host, n * 2);
    return v;
}

static values values_of(size_t n, float scale, uint64_t seed)
{
    return values_from(n, random_bf16(n, scale, seed));
}

static void values_release(values *v)
{
    CUDA(cudaFree(v->device));
    free(v->host);
    free(v->wide);
}

typedef struct sides {
    const gr_kernels *k;
    gr_queue cpu, cuda;
    gr_model_shape base, adapters;
    values w, x; /* the layer's bucket, and that of its adapters */
} sides;

static sides sides_of(const lora_case *c, const gr_kernels *k)
{
    sides s = {.k = k, .base = shape_of("llama", c->hidden, c->heads, c->kv_heads, c->head_dim)};
    gr_diag told;
    gr_diag_init(&told);
    s.adapters = s.base;
    s.adapters.adapter = (gr_adapter_desc){c->rank, c->targets, 1.5f};
    s.w = values_of(gr_bucket_elems(&s.base, 1), 0.05f, 1);
    s.x = values_of(gr_bucket_elems(&s.adapters, 1), 0.1f, 2);
    if (gr_team_new(&s.cpu.team, (unsigned)GR_MIN(sysconf(_SC_NPROCESSORS_ONLN), 16), NULL) != GR_OK) exit(1);
    if (k->attach(&s.cuda, &told) != GR_OK) exit(1);
    gr_diag_release(&told);
    return s;
}

static void sides_release(sides *s)
{
    values_release(&s->w);
    values_release(&s->x);
    s->k->detach(&s->cuda);
    gr_team_free(s->cpu.team);
}

/* ---- merged -------------------------------------------------------------------------------------------- */

static gr_bf16 *merged(sides *s, const gr_adapter *a, const gr_bf16 *bucket, bool in_place)
{
    const gr_adapter_desc *d = &s->adapters.adapter;
    const size_t n = (size_t)a->rows * a->in;
    gr_bf16 *out = in_place ? device_copy(s->w.host + a->w, n * 2) : device_poisoned(n * 2);
    void *ws = device_poisoned(s->k->layer->merge_ws_bytes(a->rows, a->in, d->rank, 1));
    const gr_merge m = {.rows = a->rows,
                        .in = a->in,
                        .rank = d->rank,
                        .scale = d->scale,
                        .w = in_place ? out : s->w.device + a->w,
                        .a = bucket + a->a,
                        .b = bucket + a->b,
                        .out = out};
    s->k->layer->merge(&s->cuda, &m, ws);
    gr_bf16 *host = take("merge", out, n * 2);
    CUDA(cudaFree(ws));
    return host;
}

static void compare_merged(sides *s, const char *name, const gr_adapter *a, const float *want, bool in_place)
{
    const size_t n = (size_t)a->rows * a->in;
    const char *what = in_place ? "place" : "merge";
    gr_bf16 *got = merged(s, a, s->x.device, in_place), *again = merged(s, a, s->x.device, in_place);
    errors e = {0};
    for (size_t i = 0; i < n; i++) errors_add(&e, (double)of_bf16(got[i]), (double)want[i]);
    report_errors(&e, name, what, 0.004); /* rounded once */
    report_equal(name, what, got, again, n * 2);
    free(got), free(again);
}

/* B is 0, and so is the change. */
static void compare_new(sides *s, const char *name, const gr_adapter *a, bool in_place)
{
    gr_bf16 *zero = gr_calloc(s->x.n, sizeof(*zero));
    memcpy(zero + a->a, s->x.host + a->a, (size_t)s->adapters.adapter.rank * a->in * 2);
    gr_bf16 *fresh = device_copy(zero, s->x.n * 2), *same = merged(s, a, fresh, in_place);
    report_equal(name, "new", same, s->w.host + a->w, (size_t)a->rows * a->in * 2);
    CUDA(cudaFree(fresh));
    free(same), free(zero);
}

static void test_merge(sides *s, const char *name, const gr_adapter *a)
{
    const gr_adapter_desc *d = &s->adapters.adapter;
    const size_t n = (size_t)a->rows * a->in;
    float *want = gr_malloc(n * 4);
    void *ws =
        gr_malloc(gr_kernels_cpu.layer->merge_ws_bytes(a->rows, a->in, d->rank, gr_team_size(s->cpu.team)));
    const gr_merge m = {a->rows,          a->in, d->rank, d->scale, s->w.wide + a->w, s->x.wide + a->a,
                        s->x.wide + a->b, want};
    gr_kernels_cpu.layer->merge(&s->cpu, &m, ws);
    for (int in_place = 0; in_place < 2; in_place++) {
        compare_merged(s, name, a, want, in_place);
        compare_new(s, name, a, in_place);
    }
    free(want), free(ws);
}

/* ---- frozen weights in NF4 ----------------------------------------------------------------------------- */

/* A layer opened: the bits of the CPU device's weights, rounded, and zeros between. s->w becomes these. */
static void test_open(sides *s, const char *name)
{
    const size_t n = s->w.n, bytes = gr_nf4_bucket_bytes(&s->base, 1);
    void *closed = gr_malloc(bytes);
    float *wide = gr_malloc(n * sizeof(*wide));
    gr_bf16 *want = gr_malloc(n * sizeof(*want)), *out = device_poisoned(n * 2);
    gr_nf4_close_bucket(s->cpu.team, &s->base, 1, s->w.wide, closed);
    gr_kernels_cpu.layer->open(&s->cpu, &s->base, 1, closed, wide);
    for (size_t i = 0; i < n; i++) want[i] = bf16_of(wide[i]);
    void *from = device_copy(closed, bytes);
    s->k->layer->open(&s->cuda, &s->base, 1, from, out);
    gr_bf16 *got = take(name, out, n * 2);
    report_equal(name, "open", got, want, n * 2);
    CUDA(cudaFree(from));
    values_release(&s->w);
    s->w = values_from(n, got);
    free(want), free(wide), free(closed);
}

/* A matrix of n weights whose blocks differ in size, and zeros behind it. */
static void test_matrix(gr_queue *q, const gr_nf4_values *v, uint64_t n, uint64_t zeros)
{
    char name[64];
    uint64_t bytes, seed = n;
    gr_nf4_at(NULL, n, &bytes);
    char *closed = aligned_alloc(64, bytes);
    float *w = gr_malloc(n * sizeof(*w));
    gr_bf16 *want = gr_calloc(n + zeros, sizeof(*want)), *out = device_poisoned((n + zeros) * 2);
    snprintf(name, sizeof(name), "NF4, %llu and %llu zeros", (unsigned long long)n,
             (unsigned long long)zeros);
    for (uint64_t i = 0; i < n; i++) w[i] = ldexpf(random_float(&seed), (int)(i / 640 % 5) - 6);
    memset(closed, 0, bytes);
    const gr_nf4 host = gr_nf4_at(closed, n, &bytes);
    gr_nf4_close(NULL, &host, w);
    gr_nf4_open(NULL, &host, w);
    for (uint64_t i = 0; i < n; i++) want[i] = bf16_of(w[i]);
    void *from = device_copy(closed, bytes);
    const gr_nf4 m = gr_nf4_at(from, n, &bytes);
    gr_cu_nf4_open(q->stream, &(gr_cu_nf4){m.codes, m.small, m.scales, m.mean, v->weight, v->scale, n}, zeros,
                   out);
    gr_bf16 *got = take(name, out, (n + zeros) * 2);
    report_equal(name, "open", got, want, (n + zeros) * 2);
    CUDA(cudaFree(from));
    free(got), free(want), free(w), free(closed);
}

static void test_vector(gr_queue *q, uint64_t n, uint64_t zeros)
{
    uint64_t seed = 5;
    float *x = gr_malloc(n * sizeof(*x));
    gr_bf16 *want = gr_calloc(n + zeros, sizeof(*want)), *out = device_poisoned((n + zeros) * 2);
    for (uint64_t i = 0; i < n; i++) want[i] = bf16_of(x[i] = random_float(&seed));
    float *from = device_copy(x, n * sizeof(*x));
    gr_cu_nf4_vector(q->stream, from, n, zeros, out);
    gr_bf16 *got = take("vector", out, (n + zeros) * 2);
    report_equal("beside NF4, a vector", "open", got, want, (n + zeros) * 2);
    CUDA(cudaFree(from));
    free(got), free(want), free(x);
}

/* Sizes around a thread's 8, a block's 64, 256 of these, and a CUDA block's 2048. */
static void test_matrices(gr_queue *q)
{
    static const uint64_t n[] = {1, 7, 8, 9, 63, 64, 65, 130, 2047, 2048, 2049, 16384, 16385, 16384 * 3 + 77};
    gr_nf4_values v;
    gr_nf4_values_of(&v);
    for (size_t i = 0; i < GR_LEN(n); i++) test_matrix(q, &v, n[i], i * 5 % 64);
    test_vector(q, 300, 20);
    test_vector(q, 1, 0);
}

typedef struct opening {
    gr_queue *q;
    gr_cu_nf4 m;
    gr_bf16 *w;
} opening;

static void do_open(void *arg, int i)
{
    const opening *o = arg;
    (void)i;
    gr_cu_nf4_open(o->q->stream, &o->m, 0, o->w);
}

static void bench_open(gr_queue *q, uint32_t rows, uint32_t cols)
{
    const uint64_t n = (uint64_t)rows * cols;
    uint64_t bytes;
    gr_nf4_values v;
    gr_nf4_values_of(&v);
    gr_nf4_at(NULL, n, &bytes);
    void *from = device_random_bf16(bytes / 2, 1);
    const gr_nf4 m = gr_nf4_at(from, n, &bytes);
    opening o = {q, {m.codes, m.small, m.scales, m.mean, v.weight, v.scale, n}, device_poisoned(n * 2)};
    bench_line("NF4 opened", do_open, &o, 2.0 * (double)n + (double)bytes, "%u x %u", rows, cols);
    CUDA(cudaFree(o.w));
    CUDA(cudaFree(from));
}

/* ---- gradients ----------------------------------------------------------------------------------------- */

static void *gradients(sides *s, const gr_adapters_back *c, const gr_kernels *k, gr_queue *q, gr_dtype type)
{
    const size_t bytes = s->x.n * gr_dtype_size(type);
    const bool host = k == &gr_kernels_cpu;
    const uint64_t ws_bytes = k->layer->adapters_back_ws_bytes(c, host ? gr_team_size(q->team) : 1);
    void *ws = host ? memset(gr_malloc(ws_bytes), 0xff, ws_bytes) : device_poisoned(ws_bytes);
    void *grad = host ? gr_calloc(1, bytes) : device_poisoned(bytes);
    gr_adapters_back call = *c;
    if (!host) CUDA(cudaMemset(grad, 0, bytes));
    if (!host) CUDA(cudaDeviceSynchronize());
    call.grad = grad;
    call.grads = type;
    k->layer->adapters_back(q, &call, ws); /* twice: they are added */
    k->layer->adapters_back(q, &call, ws);
    void *out = host ? grad : host_copy(grad, bytes);
    if (!host) CUDA(cudaFree(grad));
    if (!host) CUDA(cudaFree(ws));
    if (host) free(ws);
    return out;
}

static void test_back(sides *s, const lora_case *c, const gr_adapter *list, uint32_t count)
{
    values x = values_of((size_t)c->tokens * list->in, 1, 3),
           dy = values_of((size_t)c->tokens * list->slot_rows, 1, 4);
    const uint32_t rank = c->rank;
    gr_adapters_back call = {.t = c->tokens,
                             .rank = rank,
                             .count = count,
                             .scale = 1.5f,
                             .list = list,
                             .x = x.wide,
                             .dy = dy.wide};
    call.bucket = s->x.wide;
    float *want = gradients(s, &call, &gr_kernels_cpu, &s->cpu, GR_F32);
    call.x = x.device;
    call.dy = dy.device;
    call.bucket = s->x.device;
    void *got = gradients(s, &call, s->k, &s->cuda, c->grads),
         *again = gradients(s, &call, s->k, &s->cuda, c->grads);
    for (uint32_t i = 0; i < count; i++)
        for (int b = 0; b < 2; b++) {
            const size_t at = b ? list[i].b : list[i].a, n = (size_t)rank * (b ? list[i].rows : list[i].in);
            char what[16];
            errors e = {0};
            for (size_t k = at; k < at + n; k++)
                errors_add(&e,
                           (double)(c->grads == GR_F32 ? ((float *)got)[k] : of_bf16(((gr_bf16 *)got)[k])),
                           (double)want[k]);
            snprintf(what, sizeof(what), "%s %c", gr_target_str(list[i].target), b ? 'B' : 'A');
            report_errors(&e, c->name, what, 0.01);
        }
    report_equal(c->name, "back", got, again, s->x.n * gr_dtype_size(c->grads));
    free(want), free(got), free(again);
    values_release(&x);
    values_release(&dy);
}

static void one_case(const lora_case *c, const gr_kernels *k)
{
    sides s = sides_of(c, k);
    gr_adapter list[GR_N_TARGETS];
    const size_t n = gr_adapters_of(&s.base, &s.adapters, 1, list);
    gr_diag d;
    gr_diag_init(&d);
    for (size_t i = 0; i < n; i++) test_merge(&s, c->name, &list[i]);
    for (size_t i = 0; i < n; i += list[i].count) test_back(&s, c, &list[i], list[i].count);
    test_open(&s, c->name);
    for (size_t i = 0; i < n; i++) test_merge(&s, c->name, &list[i]);
    expect_ok(k->check(&s.cuda, &d), &d, c->name);
    CUDA(cudaGetLastError());
    gr_diag_release(&d);
    sides_release(&s);
}

static void matrices(bool bench)
{
    gr_queue q = {0};
    gr_diag d;
    gr_diag_init(&d);
    expect_ok(gr_kernels_cuda.attach(&q, &d), &d, "attach");
    test_matrices(&q);
    if (bench) bench_open(&q, 4096, 4096);
    if (bench) bench_open(&q, 28672, 4096);
    expect_ok(gr_kernels_cuda.check(&q, &d), &d, "matrices in NF4");
    gr_kernels_cuda.detach(&q);
    gr_diag_release(&d);
}

int main(int argc, char **argv)
{
    static const lora_case cases[] = {
        {"all, rank 32", 256, 4, 2, 64, 1000, 32, 127, GR_F32},
        {"q, v and up, rank 8, bf16 gradients", 128, 4, 2, 32, 77, 8,
         1 << GR_TARGET_Q | 1 << GR_TARGET_V | 1 << GR_TARGET_UP, GR_BF16},
        {"k, o and down, rank 128, a token", 512, 8, 8, 64, 1, 128,
         1 << GR_TARGET_K | 1 << GR_TARGET_O | 1 << GR_TARGET_DOWN, GR_F32},
        {"all, rank 8, odd sizes", 72, 3, 1, 24, 33, 8, 127, GR_F32},
        {"all, rank 16, of 8B", 4096, 32, 8, 128, 4096, 16, 127, GR_F32},
    };
    const bool bench = read_options(argc, argv);
    need_device();
    matrices(bench);
    for (size_t i = 0; i < GR_LEN(cases) - check_small; i++) {
        lora_case c = cases[i];
        if (check_small) c.tokens = GR_MIN(c.tokens, 100u);
        one_case(&c, &gr_kernels_cuda);
        if (i == 0) one_case(&c, gr_kernels_cuda.strict);
    }
    printf("%d failures\n", check_failures);
    return check_failures ? 1 : 0;
}
