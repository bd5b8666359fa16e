/* tests/gpu/gpu_lora.c: adapters on CUDA against those of the CPU device over the same bf16 values: merged
 * into weights, and their gradients, of each slot of a layer, of parts of a slot alone, of several ranks; new
 * ones, which change no bit; the same bits again.
 *
 *     gpu_lora           compare; a line for each tensor
 *     gpu_lora --small   the same with fewer tokens
 */
#include "ops/kernels/kernels.h"
#include "ops/kernels/layer_ops.h"
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

static values values_of(size_t n, float scale, uint64_t seed)
{
    values v = {n, random_bf16(n, scale, seed), NULL, gr_malloc(n * 4 + 1)};
    for (size_t i = 0; i < n; i++) v.wide[i] = of_bf16(v.host[i]);
    v.device = device_copy(v.host, n * 2);
    return v;
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

static gr_bf16 *merged(sides *s, const gr_adapter *a, const gr_bf16 *bucket)
{
    const gr_adapter_desc *d = &s->adapters.adapter;
    const size_t n = (size_t)a->rows * a->in;
    gr_bf16 *out = device_poisoned(n * 2);
    void *ws = device_poisoned(s->k->layer->merge_ws_bytes(a->rows, a->in, d->rank, 1));
    const gr_merge m = {a->rows,       a->in,         d->rank, d->scale, s->w.device + a->w,
                        bucket + a->a, bucket + a->b, out};
    s->k->layer->merge(&s->cuda, &m, ws);
    gr_bf16 *host = host_copy(out, n * 2);
    CUDA(cudaFree(out));
    CUDA(cudaFree(ws));
    return host;
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
    gr_bf16 *got = merged(s, a, s->x.device), *again = merged(s, a, s->x.device);
    errors e = {0};
    for (size_t i = 0; i < n; i++) errors_add(&e, (double)of_bf16(got[i]), (double)want[i]);
    report_errors(&e, name, "merge", 0.004); /* rounded once */
    report_equal(name, "merge", got, again, n * 2);
    gr_bf16 *zero = gr_calloc(s->x.n, sizeof(*zero)); /* B is 0, and so is the change */
    memcpy(zero + a->a, s->x.host + a->a, (size_t)d->rank * a->in * 2);
    gr_bf16 *fresh = device_copy(zero, s->x.n * 2), *same = merged(s, a, fresh);
    report_equal(name, "new", same, s->w.host + a->w, n * 2);
    CUDA(cudaFree(fresh));
    free(same), free(zero), free(got), free(again), free(want), free(ws);
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
    expect_ok(k->check(&s.cuda, &d), &d, c->name);
    CUDA(cudaGetLastError());
    gr_diag_release(&d);
    sides_release(&s);
}

int main(int argc, char **argv)
{
    static const lora_case cases[] = {
        {"all, rank 32", 256, 4, 2, 64, 1000, 32, 127, GR_F32},
        {"q, v and up, rank 8, bf16 gradients", 128, 4, 2, 32, 77, 8,
         1 << GR_TARGET_Q | 1 << GR_TARGET_V | 1 << GR_TARGET_UP, GR_BF16},
        {"k, o and down, rank 128, a token", 512, 8, 8, 64, 1, 128,
         1 << GR_TARGET_K | 1 << GR_TARGET_O | 1 << GR_TARGET_DOWN, GR_F32},
        {"all, rank 16, of 8B", 4096, 32, 8, 128, 4096, 16, 127, GR_F32},
    };
    read_options(argc, argv);
    need_device();
    for (size_t i = 0; i < GR_LEN(cases) - check_small; i++) {
        lora_case c = cases[i];
        if (check_small) c.tokens = GR_MIN(c.tokens, 100u);
        one_case(&c, &gr_kernels_cuda);
        if (i == 0) one_case(&c, gr_kernels_cuda.strict);
    }
    printf("%d failures\n", check_failures);
    return check_failures ? 1 : 0;
}
