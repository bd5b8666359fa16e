/* tests/gpu/gpu_latent.c: latent attention on CUDA (ops/kernels/latent.h) against that of the CPU device over
 * the same bf16 values: rotation, both forms; rows in blocks, by parts of prompts and one token a slot, with
 * the bits of packed ones; the same bits again.
 *
 *     gpu_latent           compare; a line for each tensor
 *     gpu_latent --small   the same with shorter sequences
 *     gpu_latent --race    each kernel once, over short sequences (check.h)
 *     gpu_latent --own     without products, which cuBLASLt computes
 *     gpu_latent --bench   times of decoding and of prompts
 */
#include "ops/kernels/cuda/latent.h"
#include "ops/kernels/latent.h"
#include "tests/gpu/attach.h"
#include "tests/gpu/device.h"

#define SEQS_MAX 8

typedef struct batch {
    const char *name;
    gr_latent_desc d;
    uint32_t n_seqs, length[SEQS_MAX];
    uint32_t offset[SEQS_MAX + 1], tokens, longest, stride; /* derived; blocks of a table */
} batch;

static gr_latent_desc sizes(uint32_t heads, uint32_t rank, uint32_t nope, uint32_t rope, uint32_t v)
{
    return (gr_latent_desc){.heads = heads,
                            .kv_rank = rank,
                            .nope_dim = nope,
                            .rope_dim = rope,
                            .v_dim = v,
                            .scale = 1 / sqrtf((float)(nope + rope)),
                            .interleaved = rank % 16 == 0,
                            .rope = {.type = GR_ROPE_DEFAULT, .dims = rope, .theta = 1e4}};
}

static void derive(batch *b)
{
    b->longest = 0;
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        b->offset[i + 1] = b->offset[i] + b->length[i];
        b->longest = GR_MAX(b->longest, b->length[i]);
    }
    b->tokens = b->offset[b->n_seqs];
    b->stride = (b->longest + GR_KV_BLOCK - 1) / GR_KV_BLOCK;
}

/* What both devices read: bf16, and the same in fp32. */
typedef struct tensor {
    size_t n;
    gr_bf16 *device;
    float *wide;
} tensor;

static tensor tensor_of(size_t n, float scale, uint64_t seed)
{
    gr_bf16 *host = random_bf16(n, scale, seed);
    tensor t = {n, device_copy(host, n * 2), gr_malloc(n * 4 + 1)};
    for (size_t i = 0; i < n; i++) t.wide[i] = of_bf16(host[i]);
    free(host);
    return t;
}

static void tensor_release(tensor *t)
{
    CUDA(cudaFree(t->device));
    free(t->wide);
}

typedef struct sides {
    tensor q, kv, rows, wide, mixed, weights, dqkv;
    gr_queue cpu, gpu;
    uint32_t *offset, *position; /* device */
    gr_tokens on_cpu, on_gpu;
} sides;

static sides sides_of(const batch *b)
{
    const gr_latent_desc *l = &b->d;
    const size_t t = b->tokens, n = l->heads, head = gr_latent_head(l), kv = gr_latent_kv(l);
    sides s = {.q = tensor_of(t * n * head, 1, 1),
               .kv = tensor_of(t * n * kv, 1, 2),
               .rows = tensor_of(t * gr_latent_row(l), 1, 3),
               .wide = tensor_of(t * n * gr_latent_row(l), 1, 4),
               .mixed = tensor_of(t * n * l->kv_rank, 1, 5),
               .weights = tensor_of(n * kv * l->kv_rank, 1 / sqrtf((float)l->nope_dim), 6),
               .dqkv = tensor_of(t * 3 * n * head, 1, 7),
               .offset = device_copy(b->offset, (b->n_seqs + 1) * 4)};
    uint32_t *position = gr_malloc(t * 4 + 1);
    for (uint32_t i = 0; i < b->n_seqs; i++)
        for (uint32_t j = 0; j < b->length[i]; j++) position[b->offset[i] + j] = j;
    s.position = device_copy(position, t * 4);
    free(position);
    if (gr_team_new(&s.cpu.team, (unsigned)GR_MIN(sysconf(_SC_NPROCESSORS_ONLN), 16), NULL) != GR_OK) exit(1);
    attach_queue(&gr_kernels_cuda, &s.gpu);
    s.on_cpu =
        (gr_tokens){.n = b->tokens, .n_seqs = b->n_seqs, .offset = b->offset, .host_offset = b->offset};
    s.on_gpu = s.on_cpu;
    s.on_gpu.offset = s.offset;
    s.on_gpu.position = (const int32_t *)s.position;
    return s;
}

static void sides_release(sides *s)
{
    tensor *const all[] = {&s->q, &s->kv, &s->rows, &s->wide, &s->mixed, &s->weights, &s->dqkv};
    for (size_t i = 0; i < GR_LEN(all); i++) tensor_release(all[i]);
    CUDA(cudaFree(s->offset));
    CUDA(cudaFree(s->position));
    gr_kernels_cuda.detach(&s->gpu);
    gr_team_free(s->cpu.team);
}

static void compare(const batch *b, const char *what, gr_bf16 *device, const float *want, size_t n,
                    double bound)
{
    char name[96];
    errors e = {0};
    snprintf(name, sizeof(name), "%s, %s", b->name, what);
    check_tail(name, device, n * 2);
    gr_bf16 *got = host_copy(device, n * 2);
    for (size_t i = 0; i < n; i++) errors_add(&e, (double)of_bf16(got[i]), (double)want[i]);
    report_errors(&e, name, "", bound);
    free(got);
}

static void same(const batch *b, const char *what, const gr_bf16 *x, const gr_bf16 *y, size_t n)
{
    char name[96];
    gr_bf16 *a = host_copy(x, n * 2), *c = host_copy(y, n * 2);
    snprintf(name, sizeof(name), "%s, %s", b->name, what);
    report_equal(name, "", a, c, n * 2);
    free(a), free(c);
}

/* ---- rotation, products, copies -------------------------------------------------------------------------
 */

static void check_rotation(const batch *b, sides *s)
{
    const gr_latent_desc *d = &b->d;
    const uint32_t head = gr_latent_head(d), ld = d->heads * head;
    const gr_latent_call on_cpu = {.d = d, .b = &s->on_cpu}, on_gpu = {.d = d, .b = &s->on_gpu};
    float *want = gr_malloc(s->q.n * 4);
    gr_bf16 *got = device_poisoned(s->q.n * 2);
    for (int back = 0; back < 2; back++) {
        memcpy(want, s->q.wide, s->q.n * 4);
        CUDA(cudaMemcpy(got, s->q.device, s->q.n * 2, cudaMemcpyDeviceToDevice));
        gr_latent_cpu.rotate(&s->cpu, &on_cpu, &(gr_latent_part){want + d->nope_dim, ld, d->heads, head},
                             back);
        gr_latent_cuda.rotate(&s->gpu, &on_gpu, &(gr_latent_part){got + d->nope_dim, ld, d->heads, head},
                              back);
        compare(b, back ? "rotated back" : "rotated", got, want, s->q.n, 4e-3);
    }
    free(want);
    CUDA(cudaFree(got));
}

/* Of tokens that are cut over ranks each rotates its own. */
static void check_rotation_in_parts(const batch *b, sides *s)
{
    const gr_latent_desc *d = &b->d;
    const uint32_t head = gr_latent_head(d), ld = d->heads * head, half = b->tokens / 2;
    const gr_latent_call all = {.d = d, .b = &s->on_gpu};
    gr_bf16 *want = device_poisoned(s->q.n * 2), *got = device_poisoned(s->q.n * 2);
    CUDA(cudaMemcpy(want, s->q.device, s->q.n * 2, cudaMemcpyDeviceToDevice));
    CUDA(cudaMemcpy(got, s->q.device, s->q.n * 2, cudaMemcpyDeviceToDevice));
    gr_latent_cuda.rotate(&s->gpu, &all, &(gr_latent_part){want + d->nope_dim, ld, d->heads, head}, false);
    for (uint32_t i = 0; i < 2; i++) {
        gr_tokens part = s->on_gpu;
        part.n = i ? b->tokens - half : half;
        const gr_latent_call c = {.d = d, .b = &part, .first = i * half};
        gr_bf16 *x = got + (size_t)c.first * ld + d->nope_dim;
        gr_latent_cuda.rotate(&s->gpu, &c, &(gr_latent_part){x, ld, d->heads, head}, false);
    }
    same(b, "rotated in parts", want, got, s->q.n);
    CUDA(cudaFree(want));
    CUDA(cudaFree(got));
}

static void *cpu_ws(const batch *b, const sides *s)
{
    const gr_pass_bounds bounds = {
        .tokens = b->tokens, .seqs = b->n_seqs, .length = b->longest, .threads = gr_team_size(s->cpu.team)};
    return aligned_alloc(256, gr_align(gr_latent_cpu.ws_bytes(&b->d, &bounds, GR_LAYER_FORWARD), 256));
}

static void check_products(const batch *b, sides *s, void *ws)
{
    const size_t out = (size_t)b->tokens * b->d.heads * b->d.v_dim;
    const gr_latent_call on_cpu = {&b->d, &s->on_cpu, s->weights.wide, ws, 0},
                         on_gpu = {&b->d, &s->on_gpu, s->weights.device, NULL, 0};
    float *want = gr_malloc(GR_MAX(s->wide.n, out) * 4);
    gr_bf16 *wide = device_poisoned(s->wide.n * 2), *end = device_poisoned(out * 2);
    gr_latent_cpu.absorb(&s->cpu, &on_cpu, s->q.wide, want);
    gr_latent_cuda.absorb(&s->gpu, &on_gpu, s->q.device, wide);
    compare(b, "absorbed", wide, want, s->wide.n, 5e-3);
    gr_latent_cpu.emit(&s->cpu, &on_cpu, s->mixed.wide, want);
    gr_latent_cuda.emit(&s->gpu, &on_gpu, s->mixed.device, end);
    compare(b, "emitted", end, want, out, 5e-3);
    free(want);
    CUDA(cudaFree(wide));
    CUDA(cudaFree(end));
}

static void check_expansion(const batch *b, sides *s)
{
    const gr_latent_desc *d = &b->d;
    const uint32_t row = gr_latent_row(d);
    const gr_latent_call on_cpu = {.d = d, .b = &s->on_cpu}, on_gpu = {.d = d, .b = &s->on_gpu};
    const gr_latent_part key = {s->rows.wide + d->kv_rank, row, 1, 0},
                         key_on_gpu = {s->rows.device + d->kv_rank, row, 1, 0};
    float *want = gr_malloc(s->dqkv.n * 4), *dq = gr_malloc(s->q.n * 4), *dkv = gr_malloc(s->kv.n * 4),
          *dk = gr_malloc((size_t)b->tokens * d->rope_dim * 4);
    gr_bf16 *got = device_poisoned(s->dqkv.n * 2), *q = device_poisoned(s->q.n * 2),
            *kv = device_poisoned(s->kv.n * 2), *k = device_poisoned((size_t)b->tokens * d->rope_dim * 2);
    gr_latent_cpu.expand(&s->cpu, &on_cpu, s->q.wide, s->kv.wide, &key, want);
    gr_latent_cuda.expand(&s->gpu, &on_gpu, s->q.device, s->kv.device, &key_on_gpu, got);
    compare(b, "expanded", got, want, s->dqkv.n, 1e-9);
    gr_latent_cpu.expand_backward(&s->cpu, &on_cpu, s->dqkv.wide, dq, dkv,
                                  &(gr_latent_part){dk, d->rope_dim, 1, 0});
    gr_latent_cuda.expand_backward(&s->gpu, &on_gpu, s->dqkv.device, q, kv,
                                   &(gr_latent_part){k, d->rope_dim, 1, 0});
    compare(b, "d queries", q, dq, s->q.n, 1e-9);
    compare(b, "d keys and values", kv, dkv, s->kv.n, 1e-9);
    compare(b, "d key's part", k, dk, (size_t)b->tokens * d->rope_dim, 4e-3);
    free(want), free(dq), free(dkv), free(dk);
    void *const all[] = {got, q, kv, k};
    for (size_t i = 0; i < GR_LEN(all); i++) CUDA(cudaFree(all[i]));
}

/* ---- attention ------------------------------------------------------------------------------------------
 */

/* A table of blocks from the last one down. */
static uint32_t *table_of(const batch *b)
{
    const uint32_t n = b->n_seqs * b->stride;
    uint32_t *table = gr_malloc(n * 4 + 1);
    for (uint32_t i = 0; i < n; i++) table[i] = n - 1 - i;
    return table;
}

/* New tokens [cached, cached + n) of each sequence, from the pool, to their rows of mixed. */
static void attend_part(const batch *b, sides *s, const uint32_t *table, const uint32_t *on_device,
                        gr_bf16 *pool, const uint32_t *cached, const uint32_t *n, bool decode, gr_bf16 *mixed)
{
    const gr_latent_desc *d = &b->d;
    const size_t wide = (size_t)d->heads * gr_latent_row(d) * 2, out = (size_t)d->heads * d->kv_rank * 2,
                 row = gr_latent_row(d) * 2;
    uint32_t offset[SEQS_MAX + 1] = {0}, length[SEQS_MAX], *slot = gr_malloc(b->tokens * 4 + 4), longest = 0;
    gr_bf16 *q = device_poisoned((b->tokens + 1) * wide), *rows = device_poisoned((b->tokens + 1) * row),
            *to = device_poisoned((b->tokens + SEQS_MAX) * out);
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const uint32_t at = offset[i], given = decode ? 1 : n[i], from = b->offset[i] + cached[i];
        offset[i + 1] = at + given;
        length[i] = n[i] ? cached[i] + 1 : 0;
        longest = GR_MAX(longest, given);
        for (uint32_t j = 0; j < given; j++) {
            const uint32_t p = cached[i] + j;
            slot[at + j] =
                n[i] ? table[i * b->stride + p / GR_KV_BLOCK] * GR_KV_BLOCK + p % GR_KV_BLOCK : UINT32_MAX;
        }
        if (!n[i]) continue;
        CUDA(cudaMemcpy((char *)q + at * wide, (char *)s->wide.device + from * wide, n[i] * wide,
                        cudaMemcpyDeviceToDevice));
        CUDA(cudaMemcpy((char *)rows + at * row, (char *)s->rows.device + from * row, n[i] * row,
                        cudaMemcpyDeviceToDevice));
    }
    uint32_t *offset_at = device_copy(offset, (b->n_seqs + 1) * 4),
             *cached_at = device_copy(cached, b->n_seqs * 4),
             *slot_at = device_copy(slot, offset[b->n_seqs] * 4),
             *length_at = device_copy(length, b->n_seqs * 4);
    const gr_decode one = {.length = length_at};
    const gr_tokens tokens = {.n = offset[b->n_seqs],
                              .n_seqs = b->n_seqs,
                              .offset = offset_at,
                              .state = pool,
                              .cached = cached_at,
                              .block_table = on_device,
                              .table_stride = b->stride,
                              .slot = slot_at,
                              .longest = longest,
                              .decode = decode ? &one : NULL};
    const gr_latent_call c = {d, &tokens, s->weights.device, NULL, 0};
    gr_latent_cuda.store(&s->gpu, &c, rows);
    gr_latent_cuda.attend(&s->gpu, &c, q, NULL, to);
    check_tail(b->name, to, (b->tokens + SEQS_MAX) * out);
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const uint32_t from = b->offset[i] + cached[i];
        if (n[i])
            CUDA(cudaMemcpy((char *)mixed + from * out, (char *)to + offset[i] * out, n[i] * out,
                            cudaMemcpyDeviceToDevice));
        if (n[i] || !decode) continue;
        gr_bf16 *zero = host_copy((char *)to + offset[i] * out, out);
        for (size_t j = 0; j < out / 2; j++) check_failures += zero[j] != 0;
        free(zero);
    }
    void *const all[] = {q, rows, to, offset_at, cached_at, slot_at, length_at};
    for (size_t i = 0; i < GR_LEN(all); i++) CUDA(cudaFree(all[i]));
    free(slot);
}

/* All of the batch from the pool, in calls of at most `each` tokens of a sequence. */
static void attend_in_calls(const batch *b, sides *s, uint32_t each, const gr_bf16 *want)
{
    char what[64];
    uint32_t cached[SEQS_MAX] = {0}, n[SEQS_MAX], *table = table_of(b);
    uint32_t *on_device = device_copy(table, b->n_seqs * b->stride * 4);
    gr_bf16 *pool = device_poisoned((size_t)b->n_seqs * b->stride * gr_latent_cuda.block_bytes(&b->d)),
            *mixed = device_poisoned(s->mixed.n * 2);
    for (bool more = true; more;) {
        more = false;
        for (uint32_t i = 0; i < b->n_seqs; i++) {
            n[i] = GR_MIN(b->length[i] - cached[i], each);
            more = more || n[i];
        }
        if (more) attend_part(b, s, table, on_device, pool, cached, n, each == 1, mixed);
        for (uint32_t i = 0; i < b->n_seqs; i++) cached[i] += n[i];
    }
    snprintf(what, sizeof(what), "%u at a time", each);
    same(b, what, mixed, want, s->mixed.n);
    CUDA(cudaFree(on_device));
    CUDA(cudaFree(pool));
    CUDA(cudaFree(mixed));
    free(table);
}

static void check_attention(const batch *b, sides *s, void *ws)
{
    const gr_latent_call on_cpu = {&b->d, &s->on_cpu, s->weights.wide, ws, 0},
                         on_gpu = {&b->d, &s->on_gpu, s->weights.device, NULL, 0};
    float *want = gr_malloc(s->mixed.n * 4);
    gr_bf16 *got = device_poisoned(s->mixed.n * 2), *again = device_poisoned(s->mixed.n * 2);
    gr_latent_cpu.attend(&s->cpu, &on_cpu, s->wide.wide, s->rows.wide, want);
    gr_latent_cuda.attend(&s->gpu, &on_gpu, s->wide.device, s->rows.device, got);
    compare(b, "attended", got, want, s->mixed.n, 1e-2);
    if (!check_race) {
        gr_latent_cuda.attend(&s->gpu, &on_gpu, s->wide.device, s->rows.device, again);
        same(b, "twice", again, got, s->mixed.n);
    }
    attend_in_calls(b, s, b->longest, got);
    if (b->longest > 19) attend_in_calls(b, s, 19, got);
    if (b->longest <= (check_race ? 19 : 200)) attend_in_calls(b, s, 1, got);
    free(want);
    CUDA(cudaFree(got));
    CUDA(cudaFree(again));
}

static void check_batch(batch *b)
{
    derive(b);
    sides s = sides_of(b);
    void *ws = cpu_ws(b, &s);
    if (gr_latent_cuda.unfit(&b->d)) {
        printf("%s: %s\n", b->name, gr_latent_cuda.unfit(&b->d));
        check_failures++;
    } else {
        check_rotation(b, &s);
        check_rotation_in_parts(b, &s);
        if (!check_own) check_products(b, &s, ws);
        check_expansion(b, &s);
        check_attention(b, &s, ws);
    }
    gr_diag d;
    gr_diag_init(&d);
    expect_ok(gr_kernels_cuda.check(&s.gpu, &d), &d, b->name);
    gr_diag_release(&d);
    CUDA(cudaGetLastError());
    free(ws);
    sides_release(&s);
}

/* ---- times ----------------------------------------------------------------------------------------------
 */

typedef struct timed {
    gr_cu_latent l;
    gr_bf16 *wide, *rows, *mixed;
} timed;

static void attend_once(void *arg, int i)
{
    const timed *t = arg;
    (void)i;
    gr_cu_latent_attention(NULL, &t->l, t->wide, t->rows, t->mixed);
}

/* n sequences of `keys` keys, of which `tokens` are new, of so many heads; DeepSeek's row of 576. */
static void bench_one(const char *name, uint32_t heads, uint32_t n, uint32_t keys, uint32_t tokens)
{
    const uint32_t stride = keys / GR_KV_BLOCK;
    uint32_t *offset = gr_malloc((n + 1) * 4), *cached = gr_malloc(n * 4), *table = gr_malloc(n * stride * 4);
    for (uint32_t i = 0; i <= n; i++) offset[i] = i * tokens;
    for (uint32_t i = 0; i < n; i++) cached[i] = keys - tokens;
    for (uint32_t i = 0; i < n * stride; i++) table[i] = i;
    timed t = {{.heads = heads,
                .nope = 128,
                .rope = 64,
                .v = 128,
                .rank = 512,
                .n_tokens = n * tokens,
                .n_seqs = n,
                .longest = tokens,
                .scale = 0.07f,
                .offset = device_copy(offset, (n + 1) * 4),
                .cached = device_copy(cached, n * 4),
                .table = device_copy(table, n * stride * 4),
                .table_stride = stride},
               device_random_bf16((size_t)n * tokens * heads * 576, 1),
               device_random_bf16((size_t)n * keys * 576, 2),
               device_poisoned((size_t)n * tokens * heads * 512 * 2)};
    const double s = time_of(attend_once, &t, 5), seen = keys - (tokens - 1) / 2.0;
    printf("%-8s %3u heads, %3u sequences, %4u keys, %4u new: %9.1f us, %6.0f GB/s of rows, %5.0f TFLOP/s\n",
           name, heads, n, keys, tokens, s * 1e6, (double)n * keys * 1152 / s * 1e-9,
           2.0 * n * tokens * seen * heads * (576 + 512) / s * 1e-12);
    void *const all[] = {(void *)t.l.offset, (void *)t.l.cached, (void *)t.l.table, t.wide, t.rows, t.mixed};
    for (size_t i = 0; i < GR_LEN(all); i++) CUDA(cudaFree(all[i]));
    free(offset), free(cached), free(table);
}

static void bench(void)
{
    const uint32_t heads[] = {16, 20, 128};
    for (size_t i = 0; i < GR_LEN(heads); i++) {
        bench_one("decode", heads[i], 256, 768, 1);
        bench_one("decode", heads[i], 32, 4096, 1);
        bench_one("prompt", heads[i], 4, 1024, 1024);
    }
}

int main(int argc, char **argv)
{
    need_device();
    if (read_options(argc, argv)) {
        bench();
        return 0;
    }
    batch batches[] = {
        {"DeepSeek V2 Lite", sizes(16, 512, 128, 64, 128), 4, {130, 1, 33, 70}, {0}, 0, 0, 0},
        {"GLM 4.7 Flash", sizes(20, 512, 192, 64, 256), 5, {64, 0, 31, 32, 97}, {0}, 0, 0, 0},
        {"DeepSeek V3", sizes(128, 512, 128, 64, 128), 2, {41, 5}, {0}, 0, 0, 0},
        {"odd", sizes(5, 72, 24, 8, 32), 6, {1, 2, 100, 0, 65, 33}, {0}, 0, 0, 0},
        {"one head", sizes(1, 8, 8, 8, 8), 3, {200, 3, 129}, {0}, 0, 0, 0},
        {"half", sizes(3, 264, 40, 40, 56), 2, {check_small ? 90 : 700, 50}, {0}, 0, 0, 0},
    };
    for (size_t i = 0; i < GR_LEN(batches); i++) {
        batch *b = &batches[i];
        if (check_race) b->n_seqs = GR_MIN(b->n_seqs, 2), b->length[0] = 41, b->length[1] = 5;
        check_batch(b);
        if (check_race) b->length[0] = 3, b->length[1] = 1, check_batch(b); /* steps of one token */
    }
    printf("%s: %d failed\n", argv[0], check_failures);
    return check_failures > 0;
}
