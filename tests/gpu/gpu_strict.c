/* tests/gpu/gpu_strict.c: what `strict: true` rests on: the bits of a token's row do not depend on what
 * stands beside it, nor on which pass computes it. Products of Qwen3's shapes, and attention packed, in
 * prefill by parts, and in decoding.
 *
 *     gpu_strict           compare bits; a line for each shape
 *     gpu_strict --small   shorter sequences of fewer heads, and the smaller half of the products
 *     gpu_strict --bench   times beside the same work without strict, and the algorithms of the products
 */
#include "ops/kernels/cuda/attention.h"
#include "ops/kernels/cuda/attention_simple.h"
#include "ops/kernels/cuda/decode_sizes.h"
#include "ops/kernels/cuda/gemm.h"
#include "ops/kernels/cuda/strict.h"
#include "tests/gpu/device.h"

/* ---- products -------------------------------------------------------------------------------------------
 */

typedef struct product {
    const char *name;
    uint32_t n, k;
    bool bias;
    gr_cu_dtype type;
    uint32_t rows; /* of the widest */
} product;

static const product products[] = {
    {"0.6B qkv", 4096, 1024, false, GR_CU_BF16, 4096},
    {"0.6B o", 1024, 2048, false, GR_CU_BF16, 4096},
    {"0.6B gate and up", 6144, 1024, false, GR_CU_BF16, 4096},
    {"0.6B down", 1024, 3072, false, GR_CU_BF16, 4096},
    {"0.6B head", 151936, 1024, false, GR_CU_F32, 1024},
    {"1.7B down", 2048, 6144, false, GR_CU_BF16, 4096},
    {"8B qkv", 6144, 4096, false, GR_CU_BF16, 4096},
    {"8B o", 4096, 4096, false, GR_CU_BF16, 4096},
    {"8B gate and up", 24576, 4096, false, GR_CU_BF16, 4096},
    {"8B down", 4096, 12288, false, GR_CU_BF16, 4096},
    {"8B head", 151936, 4096, false, GR_CU_F32, 1024},
    {"Qwen2.5-0.5B qkv", 1152, 896, true, GR_CU_BF16, 4096},
    {"E2B per layer", 8960, 1536, false, GR_CU_BF16, 4096},
    {"E2B gate of a layer", 256, 1536, false, GR_CU_BF16, 4096},
    {"E2B out of a layer", 1536, 256, false, GR_CU_BF16, 4096},
    {"8 of a layer", 8, 64, false, GR_CU_BF16, 4096},
    {"out of 8", 64, 8, false, GR_CU_BF16, 4096},
    {"quickstart gate and up", 256, 64, false, GR_CU_BF16, 4096},
    {"quickstart down", 64, 128, false, GR_CU_BF16, 4096},
};

typedef struct operands {
    const product *p;
    gr_bf16 *a, *b, *bias;
    void *d, *of; /* the widest result; one of few rows */
} operands;

static size_t row_bytes(const product *p)
{
    return p->n * gr_size(p->type);
}

static operands operands_of(const product *p, uint32_t rows)
{
    return (operands){.p = p,
                      .a = device_random_bf16((size_t)rows * p->k, 1),
                      .b = device_random_bf16((size_t)p->n * p->k, 2),
                      .bias = p->bias ? device_random_bf16(p->n, 3) : NULL,
                      .d = device_poisoned(rows * row_bytes(p)),
                      .of = device_poisoned(rows * row_bytes(p))};
}

static void operands_release(operands *x)
{
    void *const all[] = {x->a, x->b, x->bias, x->d, x->of};
    for (size_t i = 0; i < GR_LEN(all); i++) CUDA(cudaFree(all[i]));
}

/* Rows [first, first + m), to the same rows of `to`. */
static gr_cu_gemm_call call_of(const operands *x, uint32_t first, uint32_t m, bool strict, void *to)
{
    const product *p = x->p;
    return (gr_cu_gemm_call){.form = GR_CU_GEMM_NT,
                             .m = m,
                             .n = p->n,
                             .k = p->k,
                             .a = x->a + (size_t)first * p->k,
                             .b = x->b,
                             .lda = p->k,
                             .ldb = p->k,
                             .ldd = p->n,
                             .d = (char *)to + first * row_bytes(p),
                             .type = p->type,
                             .bias = x->bias,
                             .strict = strict};
}

static bool same_rows(const operands *x, const char *all, uint32_t first, uint32_t m)
{
    const size_t bytes = row_bytes(x->p);
    char *got = host_copy((char *)x->of + first * bytes, m * bytes);
    const bool same = memcmp(all + first * bytes, got, m * bytes) == 0;
    free(got);
    return same;
}

/* m rows from `first` on, by themselves. */
static bool rows_alone(gr_cu_gemm *g, const operands *x, const char *all, uint32_t first, uint32_t m,
                       void *ws, gr_diag *d)
{
    const size_t bytes = row_bytes(x->p);
    const gr_cu_gemm_call call = call_of(x, first, m, true, x->of);
    CUDA(cudaMemset(call.d, 0xff, m * bytes));
    expect_ok(gr_cu_gemm_run(g, NULL, &call, ws, d), d, x->p->name);
    return same_rows(x, all, first, m);
}

static void check_product(gr_cu_gemm *g, const product *p, void *ws, gr_diag *d)
{
    const uint32_t rows[] = {1,   2,   3,   8,   16,  31,  32,  48,  64,   96,   128,
                             160, 192, 256, 320, 384, 512, 640, 777, 1024, 2000, 3072};
    operands x = operands_of(p, p->rows);
    const gr_cu_gemm_call call = call_of(&x, 0, p->rows, true, x.d);
    char wrong[128] = "";
    size_t n = 0;
    expect_ok(gr_cu_gemm_run(g, NULL, &call, ws, d), d, p->name);
    char *all = host_copy(x.d, p->rows * row_bytes(p));
    for (size_t i = 0; i < GR_LEN(rows); i++) {
        const uint32_t m = rows[i], firsts[] = {0, 5, p->rows - m};
        for (size_t j = 0; j < (m > 64 && p->type == GR_CU_F32 ? 1 : 3); j++) {
            if (m > p->rows || firsts[j] + m > p->rows) continue;
            n++;
            if (!rows_alone(g, &x, all, firsts[j], m, ws, d) && strlen(wrong) < 100)
                sprintf(wrong + strlen(wrong), " %u at %u", m, firsts[j]);
        }
    }
    printf("rows of %-24s %6u x %5u  %zu of 1 to 3072 rows in three places have the bits of %u: %s%s\n",
           p->name, p->n, p->k, n, p->rows, *wrong ? "FAIL, not those of" : "OK", wrong);
    check_failures += *wrong != 0;
    free(all);
    operands_release(&x);
}

static void check_products(gr_diag *d)
{
    gr_cu_gemm *g = NULL;
    void *ws = device_poisoned(GR_CU_GEMM_WS_BYTES);
    expect_ok(gr_cu_gemm_open(&g, d), d, "open");
    for (size_t i = 0; g && i < GR_LEN(products); i++)
        if (!check_small || (uint64_t)products[i].n * products[i].k < 7000000)
            check_product(g, &products[i], ws, d);
    gr_cu_gemm_close(g);
    CUDA(cudaFree(ws));
}

/* ---- attention ------------------------------------------------------------------------------------------
 */

enum { BLOCK = 16, SEQS_MAX = 256 };

typedef struct batch {
    gr_cu_heads h;
    gr_scores scores;
    uint32_t n, length[SEQS_MAX], offset[SEQS_MAX + 1], tokens, longest, width, stride, n_blocks;
    uint32_t *table;   /* [n, stride] */
    gr_bf16 *qkv, *kv; /* [T, W]; the pool; on the host */
    gr_bf16 *o;        /* [T, heads D], of packed sequences */
    gr_bf16 *d_qkv, *d_kv;
    uint32_t *d_table;
} batch;

static uint64_t seed = 1;

static uint32_t below(uint32_t n)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((seed >> 33) % n);
}

/* Blocks of the pool in an order of chance, and in each sequence's blocks its keys and values; the rest of
 * the pool is not-a-number. */
static void fill_pool(batch *b)
{
    const uint32_t D = b->h.head_dim, kv_heads = b->h.kv_heads;
    const size_t half = (size_t)BLOCK * kv_heads * D;
    uint32_t *free_blocks = gr_malloc(b->n_blocks * sizeof(uint32_t)), left = b->n_blocks;
    for (uint32_t i = 0; i < left; i++) free_blocks[i] = i;
    b->kv = gr_malloc(b->n_blocks * 2 * half * sizeof(gr_bf16));
    memset(b->kv, 0xff, b->n_blocks * 2 * half * sizeof(gr_bf16));
    for (uint32_t s = 0; s < b->n; s++)
        for (uint32_t t = 0; t < b->length[s]; t++) {
            uint32_t *block = &b->table[s * b->stride + t / BLOCK];
            if (t % BLOCK == 0) {
                const uint32_t pick = below(left);
                *block = free_blocks[pick];
                free_blocks[pick] = free_blocks[--left];
            }
            for (uint32_t h = 0; h < 2 * kv_heads; h++) {
                gr_bf16 *to = b->kv + *block * 2 * half + h / kv_heads * half +
                              ((size_t)(h % kv_heads) * BLOCK + t % BLOCK) * D;
                memcpy(to, b->qkv + (size_t)(b->offset[s] + t) * b->width + (b->h.heads + h) * D, D * 2);
            }
        }
    free(free_blocks);
}

static batch batch_new(uint32_t heads, uint32_t kv_heads, uint32_t D, uint32_t n, const uint32_t *length)
{
    batch b = {.h = {.heads = heads, .kv_heads = kv_heads, .head_dim = D},
               .scores = gr_scores_plain(D),
               .n = n,
               .width = (heads + 2 * kv_heads) * D};
    for (uint32_t i = 0; i < n; i++) {
        b.length[i] = length[i];
        b.offset[i + 1] = b.offset[i] + length[i];
        b.longest = GR_MAX(b.longest, length[i]);
        b.n_blocks += (length[i] + BLOCK - 1) / BLOCK;
    }
    b.tokens = b.offset[n];
    b.stride = (b.longest + BLOCK - 1) / BLOCK;
    b.n_blocks += 3;
    b.table = gr_calloc((size_t)n * b.stride, sizeof(uint32_t));
    b.qkv = random_bf16((size_t)b.tokens * b.width, 1, seed++);
    fill_pool(&b);
    b.d_qkv = device_copy(b.qkv, (size_t)b.tokens * b.width * 2);
    b.d_kv = device_copy(b.kv, (size_t)b.n_blocks * 2 * BLOCK * kv_heads * D * 2);
    b.d_table = device_copy(b.table, (size_t)n * b.stride * 4);
    return b;
}

static void batch_free(batch *b)
{
    void *const host[] = {b->table, b->qkv, b->kv, b->o}, *const device[] = {b->d_qkv, b->d_kv, b->d_table};
    for (size_t i = 0; i < GR_LEN(host); i++) free(host[i]);
    for (size_t i = 0; i < GR_LEN(device); i++) CUDA(cudaFree(device[i]));
}

static size_t o_bytes(const batch *b)
{
    return (size_t)b->h.heads * b->h.head_dim * sizeof(gr_bf16);
}

/* Sequences [first, first + n) of the batch as packed ones of their own. */
static gr_bf16 *packed_of(const batch *b, uint32_t first, uint32_t n)
{
    uint32_t offset[SEQS_MAX + 1];
    gr_cu_simple s = {.heads = b->h.heads,
                      .kv_heads = b->h.kv_heads,
                      .head_dim = b->h.head_dim,
                      .scores = b->scores,
                      .n_seqs = n};
    for (uint32_t i = 0; i <= n; i++) offset[i] = b->offset[first + i] - b->offset[first];
    for (uint32_t i = 0; i < n; i++) s.longest = GR_MAX(s.longest, b->length[first + i]);
    s.n_tokens = offset[n];
    uint32_t *d_offset = device_copy(offset, (n + 1) * 4);
    s.offset = d_offset;
    gr_bf16 *out = device_poisoned(s.n_tokens * o_bytes(b));
    gr_cu_simple_forward(NULL, &s, b->d_qkv + (size_t)b->offset[first] * b->width, out, NULL);
    CUDA(cudaFree(d_offset));
    return take("packed", out, s.n_tokens * o_bytes(b));
}

static gr_cu_paged paged_of(const batch *b)
{
    return (gr_cu_paged){b->h, b->d_kv, b->d_table, b->stride, b->scores};
}

/* The last tokens of each sequence as new ones, the first cached[i] being in the pool. */
static bool prefill_is_same(const batch *b, const uint32_t *cached)
{
    uint32_t offset[SEQS_MAX + 1] = {0}, longest = 0;
    for (uint32_t i = 0; i < b->n; i++) {
        offset[i + 1] = offset[i] + b->length[i] - cached[i];
        longest = GR_MAX(longest, b->length[i] - cached[i]);
    }
    const uint32_t n = offset[b->n];
    gr_bf16 *qkv = device_poisoned((size_t)n * b->width * 2), *out = device_poisoned(n * o_bytes(b));
    for (uint32_t i = 0; i < b->n; i++)
        CUDA(cudaMemcpy(qkv + (size_t)offset[i] * b->width,
                        b->d_qkv + (size_t)(b->offset[i] + cached[i]) * b->width,
                        (size_t)(offset[i + 1] - offset[i]) * b->width * 2, cudaMemcpyDeviceToDevice));
    uint32_t *d_offset = device_copy(offset, (b->n + 1) * 4), *d_cached = device_copy(cached, b->n * 4);
    const gr_cu_paged p = paged_of(b);
    gr_cu_extend_attention(NULL, &p, qkv, d_offset, d_cached, b->n, n, longest, out);
    char *got = take("prefill", out, n * o_bytes(b));
    bool same = true;
    for (uint32_t i = 0; i < b->n; i++)
        same &= !memcmp(got + offset[i] * o_bytes(b),
                        (const char *)b->o + (b->offset[i] + cached[i]) * o_bytes(b),
                        (offset[i + 1] - offset[i]) * o_bytes(b));
    free(got);
    void *const all[] = {qkv, d_offset, d_cached};
    for (size_t i = 0; i < GR_LEN(all); i++) CUDA(cudaFree(all[i]));
    return same;
}

/* Slot i has the first keys[i] tokens of sequence i, and the last of them is the new one. */
static bool decode_is_same(const batch *b, const uint32_t *keys, uint32_t max_length)
{
    const uint64_t ws_bytes = gr_cu_strict_ws(&b->h, b->n, max_length);
    gr_bf16 *qkv = device_poisoned((size_t)b->n * b->width * 2), *out = device_poisoned(b->n * o_bytes(b));
    char *ws = device_poisoned(ws_bytes), *zeros = gr_calloc(1, o_bytes(b));
    for (uint32_t i = 0; i < b->n; i++)
        if (keys[i])
            CUDA(cudaMemcpy(qkv + (size_t)i * b->width,
                            b->d_qkv + (size_t)(b->offset[i] + keys[i] - 1) * b->width, b->width * 2,
                            cudaMemcpyDeviceToDevice));
    uint32_t *length = device_copy(keys, b->n * 4);
    const gr_cu_decode call = {.length = length, .n = b->n, .max_length = max_length};
    const gr_cu_paged p = paged_of(b);
    gr_cu_strict_attention(NULL, &p, &call, qkv, out, ws);
    char *got = take("decode", out, b->n * o_bytes(b));
    check_tail("decode", ws, ws_bytes);
    bool same = true;
    for (uint32_t i = 0; i < b->n; i++)
        same &= !memcmp(got + i * o_bytes(b),
                        keys[i] ? (const char *)b->o + (b->offset[i] + keys[i] - 1) * o_bytes(b) : zeros,
                        o_bytes(b));
    free(got);
    free(zeros);
    void *const all[] = {qkv, length, ws};
    for (size_t i = 0; i < GR_LEN(all); i++) CUDA(cudaFree(all[i]));
    return same;
}

static bool each_alone_is_same(const batch *b)
{
    bool same = true;
    for (uint32_t i = 0; i < b->n; i++) {
        if (!b->length[i]) continue;
        gr_bf16 *alone = packed_of(b, i, 1);
        same &= !memcmp(alone, (const char *)b->o + b->offset[i] * o_bytes(b), b->length[i] * o_bytes(b));
        free(alone);
    }
    return same;
}

static void told(const char *name, const char *what, bool same)
{
    printf("attention %-32s %-35s the bits of packed sequences: %s\n", name, what, same ? "OK" : "FAIL");
    check_failures += !same;
    fflush(stdout);
}

/* softcap 0, sinks NULL (device), window 0: none. */
static void check_attention(uint32_t heads, uint32_t kv_heads, uint32_t D, uint32_t window, float softcap,
                            const gr_bf16 *sinks)
{
    static const uint32_t lengths[2][14] = {{1, 15, 64, 0, 65, 255, 256, 257, 300, 511, 513, 1000, 2049, 37},
                                            {1, 15, 64, 0, 65, 37, 16, 257, 3, 17, 129, 2, 513, 3}};
    enum { N = GR_LEN(lengths[0]) };
    const uint32_t *length = lengths[check_small], rounds = check_small ? 2 : 4;
    uint32_t cached[N], keys[N];
    char name[64];
    if (check_small && kv_heads > 2) heads = heads / kv_heads * 2, kv_heads = 2;
    snprintf(name, sizeof(name), "%u/%u of %u, w %u, cap %g%s", heads, kv_heads, D, window, (double)softcap,
             sinks ? ", sinks" : "");
    batch b = batch_new(heads, kv_heads, D, N, length);
    b.scores.window = window;
    b.scores.softcap = softcap;
    b.scores.sinks = sinks;
    b.o = packed_of(&b, 0, N);
    told(name, "each by itself", each_alone_is_same(&b));
    for (uint32_t i = 0; i < N; i++) cached[i] = 0;
    told(name, "prefill, whole", prefill_is_same(&b, cached));
    for (uint32_t round = 0; round < rounds; round++) {
        for (uint32_t i = 0; i < N; i++) {
            cached[i] = length[i] > 1 ? below(length[i] - 1) : 0;
            keys[i] = length[i] ? (round ? 1 + below(length[i]) : length[i]) : 0;
        }
        told(name, "prefill, the end of what is cached", prefill_is_same(&b, cached));
        told(name, round ? "decode, a token within" : "decode, the last token",
             decode_is_same(&b, keys, round % 2 ? b.longest : 5000));
    }
    batch_free(&b);
}

/* ---- times ----------------------------------------------------------------------------------------------
 */

typedef struct product_bench {
    gr_cu_gemm *g;
    gr_cu_gemm_call call;
    uint64_t b_elems, places; /* weights come from different places: more than L2 holds */
    void *ws;
    gr_diag *d;
} product_bench;

static void product_body(void *arg, int i)
{
    product_bench *b = arg;
    gr_cu_gemm_call call = b->call;
    call.b = (const gr_bf16 *)call.b + (uint64_t)i % b->places * b->b_elems;
    expect_ok(gr_cu_gemm_run(b->g, NULL, &call, b->ws, b->d), b->d, "bench");
}

/* One line: time with strict and without, and whether the algorithm without has the same bits. */
static void bench_product(gr_cu_gemm *g, const product *p, uint32_t m, void *ws, gr_diag *d)
{
    const size_t elems = (size_t)p->n * p->k;
    char algo[2][128] = {"", ""};
    double seconds[2] = {0, 0};
    operands x = operands_of(p, m);
    product_bench b = {
        .g = g, .b_elems = elems, .places = GR_MAX(1, (200 << 20) / (elems * 2)), .ws = ws, .d = d};
    CUDA(cudaFree(x.b));
    x.b = device_random_bf16(b.places * elems, 2);
    for (int strict = 0; strict < 2; strict++) {
        b.call = call_of(&x, 0, m, strict, strict ? x.d : x.of);
        expect_ok(gr_cu_gemm_describe(g, &b.call, algo[strict], d), d, p->name);
        seconds[strict] = time_of(product_body, &b, m > 1024 ? 3 : 10);
        b.call = call_of(&x, 0, m, strict, strict ? x.d : x.of);
        product_body(&b, 0);
    }
    const uint32_t rows = GR_MIN(m, 256);
    char *all = host_copy(x.d, rows * row_bytes(p));
    const double flop = 2.0 * m * elems;
    printf("%-18s %5u rows: strict %8.1f us %4.0f TFLOP/s [%s]; else %8.1f us %4.0f TFLOP/s [%s]; %s bits\n",
           p->name, m, seconds[1] * 1e6, flop / seconds[1] * 1e-12, algo[1], seconds[0] * 1e6,
           flop / seconds[0] * 1e-12, algo[0], same_rows(&x, all, 0, rows) ? "the same" : "other");
    fflush(stdout);
    free(all);
    operands_release(&x);
}

static void bench_products(gr_diag *d)
{
    const uint32_t rows[] = {1, 32, 256, 8192};
    gr_cu_gemm *g = NULL;
    void *ws = device_poisoned(GR_CU_GEMM_WS_BYTES);
    expect_ok(gr_cu_gemm_open(&g, d), d, "open");
    for (size_t i = 0; g && i < 11; i++)
        for (size_t j = 0; j < GR_LEN(rows); j++)
            bench_product(g, &products[i], GR_MIN(rows[j], products[i].type == GR_CU_F32 ? 883 : rows[j]), ws,
                          d);
    gr_cu_gemm_close(g);
    CUDA(cudaFree(ws));
}

typedef struct attention_bench {
    gr_cu_paged p;
    gr_cu_decode d;
    const gr_bf16 *qkv;
    gr_bf16 *out;
    void *work, *ws;
} attention_bench;

static void strict_body(void *arg, int i)
{
    const attention_bench *b = arg;
    (void)i;
    gr_cu_strict_attention(NULL, &b->p, &b->d, b->qkv, b->out, b->ws);
}

static void decode_body(void *arg, int i)
{
    const attention_bench *b = arg;
    (void)i;
    gr_cu_decode_attention(NULL, &b->p, &b->d, b->qkv, b->out, b->work, b->ws);
}

/* groups of `each` slots over prompts of `shared` keys in the same blocks, and up to `own` keys each. */
static void bench_decode(uint32_t heads, uint32_t kv_heads, uint32_t D, uint32_t groups, uint32_t each,
                         uint32_t shared, uint32_t own)
{
    const gr_cu_heads h = {.heads = heads, .kv_heads = kv_heads, .head_dim = D};
    const uint32_t n = groups * each, most = shared + own, stride = (most + BLOCK - 1) / BLOCK;
    const size_t block = (size_t)2 * BLOCK * kv_heads * D;
    uint32_t length[SEQS_MAX], member[SEQS_MAX], first[SEQS_MAX + 1], held[SEQS_MAX], next = 0;
    uint32_t *table = gr_calloc((size_t)n * stride, 4);
    double keys = 0;
    for (uint32_t s = 0; s < n; s++) {
        length[s] = shared + 1 + below(own);
        member[s] = s;
        keys += length[s] - (s % each ? shared : 0);
        for (uint32_t i = 0; i < stride; i++)
            table[s * stride + i] =
                i < shared / BLOCK && s % each ? table[(s - s % each) * stride + i] : next++;
    }
    for (uint32_t g = 0; g <= groups; g++) first[g] = g * each;
    for (uint32_t g = 0; g < groups; g++) held[g] = shared;
    attention_bench b = {
        .p = {h, device_random_bf16(next * block, 7), device_copy(table, (size_t)n * stride * 4), stride,
              gr_scores_plain(D)},
        .d = {.length = device_copy(length, n * 4),
              .member = device_copy(member, n * 4),
              .group_first = device_copy(first, (groups + 1) * 4),
              .shared = device_copy(held, groups * 4),
              .n = n,
              .n_groups = groups,
              .max_length = most},
        .qkv = device_random_bf16((size_t)n * (heads + 2 * kv_heads) * D, 8),
        .out = device_poisoned((size_t)n * heads * D * 2),
        .work = device_poisoned(gr_cu_decode_work_bytes(&h, n, most)),
        .ws = device_poisoned(GR_MAX(gr_cu_decode_attention_ws(&h, n, most), gr_cu_strict_ws(&h, n, most)))};
    gr_cu_decode_plan(NULL, &h, &b.d, 0, b.p.table, stride, b.work);
    const double strict = time_of(strict_body, &b, 20), nondeterministic = time_of(decode_body, &b, 20);
    CUDA(cudaGetLastError());
    const double bytes = keys * kv_heads * D * 4;
    printf("decode %u/%u heads of %u, %u x %u slots, shared %u, own 1..%u: strict %.1f us, %.0f GB/s; else "
           "%.1f us, %.0f "
           "GB/s\n",
           heads, kv_heads, D, groups, each, shared, own, strict * 1e6, bytes / strict * 1e-9,
           nondeterministic * 1e6, bytes / nondeterministic * 1e-9);
    fflush(stdout);
    void *const all[] = {(void *)b.p.kv,
                         (void *)b.p.table,
                         (void *)b.d.length,
                         (void *)b.d.member,
                         (void *)b.d.group_first,
                         (void *)b.d.shared,
                         (void *)b.qkv,
                         b.out,
                         b.work,
                         b.ws};
    for (size_t i = 0; i < GR_LEN(all); i++) CUDA(cudaFree(all[i]));
    free(table);
}

typedef struct packed_bench {
    gr_cu_attention *a;
    gr_cu_attention_shape shape;
    gr_scores scores;
    gr_cu_sequences seqs;
    const gr_bf16 *qkv;
    gr_bf16 *o;
    float *stats;
    void *ws;
    uint64_t ws_bytes;
    gr_diag *d;
} packed_bench;

static void packed_body(void *arg, int i)
{
    packed_bench *b = arg;
    (void)i;
    expect_ok(gr_cu_attention_forward(b->a, NULL, &b->shape, &b->scores, &b->seqs, b->qkv, b->o, b->stats,
                                      b->ws, b->ws_bytes, b->d),
              b->d, "packed");
}

static void bench_packed(uint32_t heads, uint32_t kv_heads, uint32_t D, uint32_t n, uint32_t each, gr_diag *d)
{
    uint32_t offset[SEQS_MAX + 1];
    double seconds[2] = {0, 0};
    for (uint32_t i = 0; i <= n; i++) offset[i] = i * each;
    uint32_t *d_offset = device_copy(offset, (n + 1) * 4);
    const size_t tokens = (size_t)n * each;
    packed_bench b = {.shape = {heads, kv_heads, D, true},
                      .scores = gr_scores_plain(D),
                      .seqs = {n, offset, d_offset},
                      .qkv = device_random_bf16(tokens * (heads + 2 * kv_heads) * D, 5),
                      .o = device_poisoned(tokens * heads * D * 2),
                      .stats = device_poisoned(tokens * heads * 4),
                      .d = d};
    b.ws_bytes = gr_cu_attention_ws_bytes(&b.shape, (uint32_t)tokens, n, each, false);
    b.ws = device_poisoned(b.ws_bytes);
    for (int strict = 0; strict < 2; strict++) {
        expect_ok(gr_cu_attention_open(&b.a, strict ? GR_CU_ATTENTION_SIMPLE : GR_CU_ATTENTION_AUTO, d), d,
                  "open");
        seconds[strict] = time_of(packed_body, &b, 5);
        gr_cu_attention_close(b.a);
    }
    const double flop = 2.0 * n * each * each * heads * D; /* the half that a row sees, two products */
    printf("packed %u/%u heads of %u, %u x %u tokens: strict %.0f us, %.0f TFLOP/s; else %.0f us, %.0f "
           "TFLOP/s\n",
           heads, kv_heads, D, n, each, seconds[1] * 1e6, flop / seconds[1] * 1e-12, seconds[0] * 1e6,
           flop / seconds[0] * 1e-12);
    void *const all[] = {d_offset, (void *)b.qkv, b.o, b.stats, b.ws};
    for (size_t i = 0; i < GR_LEN(all); i++) CUDA(cudaFree(all[i]));
}

static void bench(gr_diag *d)
{
    bench_decode(16, 8, 128, 32, 8, 240, 512);
    bench_decode(32, 8, 128, 32, 8, 240, 512);
    bench_decode(16, 8, 128, 4, 8, 240, 512);
    bench_decode(32, 8, 128, 1, 1, 0, 8192);
    bench_packed(16, 8, 128, 20, 768, d);
    bench_packed(32, 8, 128, 20, 768, d);
    bench_products(d);
}

int main(int argc, char **argv)
{
    gr_diag d;
    gr_diag_init(&d);
    need_device();
    if (read_options(argc, argv)) {
        bench(&d);
    } else {
        const gr_bf16 some[16] = {0x4020, 0xc000, 0x3f80, 0, 0x40c0, 0xbf00, 0x3f80, 0x4000,
                                  0x4020, 0xc000, 0x3f80, 0, 0x40c0, 0xbf00, 0x3f80, 0x4000};
        gr_bf16 *sinks = device_copy(some, sizeof(some));
        check_attention(16, 8, 128, 0, 0, NULL);
        check_attention(32, 8, 128, 0, 0, NULL);
        check_attention(14, 2, 64, 0, 0, NULL);
        check_attention(4, 1, 256, 0, 0, NULL);
        check_attention(34, 1, 40, 0, 0, NULL);
        check_attention(16, 2, 64, 0, 0, sinks);
        check_attention(16, 2, 64, 128, 0, sinks);
        check_attention(8, 4, 128, 1, 0, NULL);
        check_attention(8, 4, 128, 300, 0, NULL);
        check_attention(4, 1, 256, 33, 5, NULL);
        check_attention(4, 2, 80, 0, 2, sinks);
        check_attention(8, 1, 512, 0, 0, NULL);
        check_attention(36, 2, 512, 0, 0, NULL);
        check_attention(4, 2, 320, 300, 5, sinks);
        CUDA(cudaFree(sinks));
        check_products(&d);
        printf("%s\n", check_failures ? "FAILED" : "all OK");
    }
    gr_diag_release(&d);
    return check_failures > 0;
}
