/* tests/gpu/gpu_gemm.c: ops/kernels/cuda/gemm.h against sums in double of the same bf16 values.
 *
 *     gpu_gemm           compare; a line a case
 *     gpu_gemm --small   without the large ones
 *     gpu_gemm --bench   times beside the ceilings of one H200: 773 TFLOP/s, 4,260 GB/s
 */
#include "ops/kernels/cuda/gemm.h"
#include "tests/gpu/check.h"

#define SAMPLES \
    1024 /* elements of a result that are computed again in double; all are looked at for poison */

struct shape {
    gr_cu_gemm_form form;
    uint32_t m, n, k;
};

static const char *const form_name[] = {"NT", "NN", "TN"};

/* ---- comparison -----------------------------------------------------------------------------------------
 */

typedef struct product {
    struct shape s;
    gr_cu_dtype type;
    bool add, in_place, bias, strict;
    uint32_t pad;     /* elements that leading dimensions are longer than rows */
    uint32_t shifted; /* elements that pointers stand behind a multiple of 256 bytes */
} product;

/* Host and device sides of one case. */
typedef struct sides {
    uint64_t lda, ldb, ldd, a_rows, b_rows;
    gr_bf16 *a, *b, *bias, *a_dev, *b_dev, *bias_dev;
    void *c, *c_dev, *d_dev;
    size_t elem, d_bytes;
} sides;

static void *random_of(gr_cu_dtype type, size_t n, uint64_t seed)
{
    if (type == GR_CU_BF16) return random_bf16(n, 1, seed);
    float *x = gr_malloc(n * sizeof(*x));
    for (size_t i = 0; i < n; i++) x[i] = random_float(&seed);
    return x;
}

static double value_at(const void *x, gr_cu_dtype type, size_t i)
{
    return type == GR_CU_BF16 ? of_bf16(((const gr_bf16 *)x)[i]) : ((const float *)x)[i];
}

static void *shifted_copy(const void *host, size_t bytes, size_t shift)
{
    char *p = device_poisoned(bytes + shift);
    CUDA(cudaMemcpy(p + shift, host, bytes, cudaMemcpyHostToDevice));
    return p;
}

static sides sides_of(const product *p)
{
    const struct shape *s = &p->s;
    const bool tn = s->form == GR_CU_GEMM_TN, nt = s->form == GR_CU_GEMM_NT;
    sides x = {.lda = (tn ? s->m : s->k) + p->pad, .ldb = (nt ? s->k : s->n) + p->pad, .ldd = s->n + p->pad};
    x.a_rows = tn ? s->k : s->m;
    x.b_rows = nt ? s->n : s->k;
    x.elem = p->type == GR_CU_BF16 ? 2 : 4;
    x.d_bytes = x.ldd * s->m * x.elem;
    x.a = random_bf16(x.lda * x.a_rows, 1, 1);
    x.b = random_bf16(x.ldb * x.b_rows, 1, 2);
    x.bias = random_bf16(s->n, 4, 3);
    x.c = random_of(p->type, x.ldd * s->m, 4);
    x.a_dev = shifted_copy(x.a, x.lda * x.a_rows * 2, p->shifted * 2);
    x.b_dev = shifted_copy(x.b, x.ldb * x.b_rows * 2, p->shifted * 2);
    x.bias_dev = device_copy(x.bias, s->n * 2);
    x.c_dev = device_copy(x.c, x.d_bytes);
    x.d_dev = p->in_place ? x.c_dev : device_poisoned(x.d_bytes);
    return x;
}

static void release(const product *p, sides *x)
{
    void *const host[] = {x->a, x->b, x->bias, x->c};
    for (size_t i = 0; i < GR_LEN(host); i++) free(host[i]);
    void *const device[] = {x->a_dev, x->b_dev, x->bias_dev, x->c_dev, p->in_place ? NULL : x->d_dev};
    for (size_t i = 0; i < GR_LEN(device); i++) CUDA(cudaFree(device[i]));
}

static gr_cu_gemm_call call_of(const product *p, const sides *x)
{
    return (gr_cu_gemm_call){.form = p->s.form,
                             .m = p->s.m,
                             .n = p->s.n,
                             .k = p->s.k,
                             .a = x->a_dev + p->shifted,
                             .b = x->b_dev + p->shifted,
                             .lda = x->lda,
                             .ldb = x->ldb,
                             .ldd = x->ldd,
                             .d = x->d_dev,
                             .type = p->type,
                             .c = p->add ? x->c_dev : NULL,
                             .ldc = x->ldd,
                             .bias = p->bias ? x->bias_dev : NULL,
                             .strict = p->strict};
}

static double want_at(const product *p, const sides *x, size_t row, size_t col)
{
    double sum = p->bias ? of_bf16(x->bias[col]) : 0;
    for (size_t k = 0; k < p->s.k; k++) {
        const size_t a = p->s.form == GR_CU_GEMM_TN ? k * x->lda + row : row * x->lda + k;
        const size_t b = p->s.form == GR_CU_GEMM_NT ? col * x->ldb + k : k * x->ldb + col;
        sum += (double)of_bf16(x->a[a]) * of_bf16(x->b[b]);
    }
    return sum + (p->add ? value_at(x->c, p->type, row * x->ldd + col) : 0);
}

/* What lies between rows belongs to others: poison stays poison, or c what it was. */
static bool gaps_untouched(const product *p, const sides *x, const char *got)
{
    for (size_t row = 0; row < p->s.m; row++) {
        const size_t at = (row * x->ldd + p->s.n) * x->elem;
        for (size_t i = 0; i < p->pad * x->elem; i++)
            if (got[at + i] != (p->in_place ? ((const char *)x->c)[at + i] : (char)0xff)) return false;
    }
    return true;
}

/* Whether a value is what one rounding to bf16 leaves of a sum: within half a unit of its last bit, and a
 * little for the order of the sum in fp32. A sum that is rounded on the way is off by more, now and then. */
static bool rounded_once(double got, double want, double terms)
{
    int exponent;
    frexp(want, &exponent);
    return fabs(got - want) <= ldexp(1, exponent - 9) + 1e-5 * terms;
}

static void compare(const product *p, const sides *x, const void *got, const char *name)
{
    errors e = {0};
    uint64_t seed = 77;
    const size_t n = (size_t)p->s.m * p->s.n;
    size_t poisoned = 0, off = 0;
    for (size_t i = 0; i < n; i++)
        poisoned += isnan(value_at(got, p->type, i / p->s.n * x->ldd + i % p->s.n));
    for (size_t i = 0; i < GR_MIN(n, (size_t)SAMPLES); i++) {
        size_t at = i;
        if (n > SAMPLES) {
            random_float(&seed);
            at = (size_t)((seed >> 11) % n);
        }
        const double is = value_at(got, p->type, at / p->s.n * x->ldd + at % p->s.n),
                     want = want_at(p, x, at / p->s.n, at % p->s.n);
        errors_add(&e, is, want);
        off += p->type == GR_CU_BF16 && !rounded_once(is, want, sqrt((double)p->s.k) + fabs(want));
    }
    report_equal(name, "rounded more than once", &off, &(size_t){0}, sizeof(off));
    if (poisoned || !gaps_untouched(p, x, got)) {
        printf("%s: %zu elements not written, gaps %s\n", name, poisoned,
               gaps_untouched(p, x, got) ? "untouched" : "written to");
        check_failures++;
    }
    report_errors(&e, name, "d", p->type == GR_CU_BF16 ? 5e-3 : 1e-4);
}

static void check_product(gr_cu_gemm *g, gr_cu_gemm *other, const product *p, void *ws, gr_diag *d)
{
    char name[96];
    sides x = sides_of(p);
    const gr_cu_gemm_call call = call_of(p, &x);
    snprintf(name, sizeof(name), "%s %ux%ux%u %s%s%s%s%s%s", form_name[p->s.form], p->s.m, p->s.n, p->s.k,
             p->type == GR_CU_BF16 ? "bf16" : "f32", p->add ? " +c" : "", p->in_place ? " in place" : "",
             p->bias ? " +bias" : "", p->pad ? " strided" : "", p->shifted ? " shifted" : "");
    if (p->strict) strcat(name, " strict");
    const gr_status st = gr_cu_gemm_run(g, NULL, &call, ws, d);
    if (st == GR_OK) {
        CUDA(cudaDeviceSynchronize());
        void *got = host_copy(x.d_dev, x.d_bytes);
        compare(p, &x, got, name);
        if (!p->in_place) { /* another context, another time: the same algorithm, the same bits */
            CUDA(cudaMemset(x.d_dev, 0xff, x.d_bytes));
            expect_ok(gr_cu_gemm_run(other, NULL, &call, ws, d), d, name);
            void *again = host_copy(x.d_dev, x.d_bytes);
            if (memcmp(got, again, x.d_bytes) != 0) report_equal(name, "d", got, again, x.d_bytes);
            free(again);
        }
        free(got);
    } else
        expect_ok(st, d, name);
    release(p, &x);
}

/* Under strict a row has the same bits whatever stands beside it. */
static void check_strict(gr_cu_gemm *g, uint32_t n, uint32_t k, void *ws, gr_diag *d)
{
    const uint32_t rows[] = {1, 2, 7, 16, 33, 64, 128, 255, 512, 1024};
    const product p = {.s = {GR_CU_GEMM_NT, 1024, n, k}, .type = GR_CU_BF16, .strict = true};
    sides x = sides_of(&p);
    gr_cu_gemm_call call = call_of(&p, &x);
    gr_bf16 *all = NULL;
    for (size_t i = GR_LEN(rows); i-- > 0;) {
        char name[64];
        snprintf(name, sizeof(name), "strict %u rows of 1024, %u x %u", rows[i], n, k);
        call.m = rows[i];
        CUDA(cudaMemset(x.d_dev, 0xff, x.d_bytes));
        expect_ok(gr_cu_gemm_run(g, NULL, &call, ws, d), d, name);
        gr_bf16 *got = host_copy(x.d_dev, x.d_bytes);
        if (all) {
            report_equal(name, "d", all, got, (size_t)rows[i] * n * 2);
            free(got);
        } else
            all = got;
    }
    free(all);
    release(&p, &x);
}

static void expect_refused(gr_cu_gemm *g, const gr_cu_gemm_call *bad, void *ws, const char *name,
                           const char *why)
{
    gr_diag d;
    gr_diag_init(&d);
    const bool ok = gr_cu_gemm_run(g, NULL, bad, ws, &d) == GR_E_FAILED && d.n == 1 &&
                    strstr(d.messages[0].text, why) != NULL;
    printf("%-52s %s\n", name, ok ? "OK" : "FAIL");
    check_failures += !ok;
    gr_diag_release(&d);
}

static void check_refused(gr_cu_gemm *g, void *ws)
{
    gr_cu_gemm_call bad = {.m = 8,
                           .n = 8,
                           .k = 0,
                           .a = (void *)16,
                           .b = (void *)16,
                           .lda = 8,
                           .ldb = 8,
                           .ldd = 8,
                           .d = (void *)16,
                           .type = GR_CU_F32};
    expect_refused(g, &bad, ws, "k of 0 is refused with the shape", "8 x 8 x 0");
    bad.k = 8;
    bad.form = GR_CU_GEMM_TN;
    bad.strict = true;
    expect_refused(g, &bad, ws, "a strict product of a gradient is refused", "rows of a batch");
}

static void check_all(gr_cu_gemm *g, void *ws, gr_diag *d)
{
    const uint32_t m[] = {1, 2, 17, 64, 127, 1000};
    const uint32_t nk[][2] = {{8, 8}, {24, 40}, {256, 1024}, {3072, 1024}, {1000, 3000}};
    gr_cu_gemm *other = NULL;
    expect_ok(gr_cu_gemm_open(&other, d), d, "open");
    for (size_t i = 0; i < GR_LEN(m); i++)
        for (size_t j = 0; j < GR_LEN(nk); j++)
            for (int form = 0; form < 3; form++) {
                /* The leading dimension of A in TN is m: rows must be 16-byte ones, as the device's are. */
                const uint32_t rows = form == GR_CU_GEMM_TN ? (m[i] + 7) / 8 * 8 : m[i];
                const struct shape s = {(gr_cu_gemm_form)form, rows, nk[j][0], nk[j][1]};
                const product p[] = {
                    {.s = s, .type = GR_CU_BF16},
                    {.s = s, .type = GR_CU_F32, .pad = 8},
                    {.s = s, .type = GR_CU_BF16, .add = true, .pad = 64},
                    {.s = s, .type = GR_CU_F32, .add = true, .in_place = true},
                    {.s = s, .type = GR_CU_BF16, .bias = true, .shifted = 8},
                    {.s = s, .type = GR_CU_BF16, .strict = true},
                };
                for (size_t k = 0; k < GR_LEN(p); k++)
                    if (!p[k].strict || form != GR_CU_GEMM_TN) check_product(g, other, &p[k], ws, d);
            }
    const product big[] = {
        {.s = {GR_CU_GEMM_NT, 777, 151936, 1024}, .type = GR_CU_F32},
        {.s = {GR_CU_GEMM_TN, 4096, 1024, 16384}, .type = GR_CU_F32, .add = true, .in_place = true},
        {.s = {GR_CU_GEMM_NN, 16384, 1024, 6144}, .type = GR_CU_BF16}};
    for (size_t i = 0; i < GR_LEN(big) && !check_small; i++) check_product(g, other, &big[i], ws, d);
    check_strict(g, 4096, 1024, ws, d);
    check_strict(g, 1024, 3072, ws, d);
    check_refused(g, ws);
    gr_cu_gemm_close(other);
}

/* ---- times ----------------------------------------------------------------------------------------------
 */

#define PEAK_TFLOPS 773.0
#define PEAK_GBPS   4260.0
#define POOL_BYTES  (UINT64_C(3) << 30) /* operands come from different places of it: far more than L2 */

typedef struct bench {
    gr_cu_gemm *g;
    gr_cu_gemm_call call;
    const char *pool;
    uint64_t b_bytes, places;
    void *ws;
    gr_diag *d;
} bench;

static void bench_body(void *arg, int i)
{
    bench *b = arg;
    gr_cu_gemm_call call = b->call;
    call.b = (const gr_bf16 *)(b->pool + (uint64_t)i % b->places * b->b_bytes);
    expect_ok(gr_cu_gemm_run(b->g, NULL, &call, b->ws, b->d), b->d, "bench");
}

static void bench_one(bench *b, const char *name, struct shape s, gr_cu_dtype type, bool add, bool strict,
                      const gr_bf16 *a, void *out)
{
    char algo[128] = "";
    const double flop = 2.0 * s.m * s.n * s.k, weight = 2.0 * s.n * s.k;
    const bool tn = s.form == GR_CU_GEMM_TN, nt = s.form == GR_CU_GEMM_NT;
    b->call = (gr_cu_gemm_call){.form = s.form,
                                .m = s.m,
                                .n = s.n,
                                .k = s.k,
                                .a = a,
                                .b = (const gr_bf16 *)b->pool,
                                .lda = tn ? s.m : s.k,
                                .ldb = nt ? s.k : s.n,
                                .ldd = s.n,
                                .d = out,
                                .type = type,
                                .c = add ? out : NULL,
                                .ldc = s.n,
                                .strict = strict};
    b->b_bytes = gr_align((uint64_t)s.n * s.k * 2, 256);
    b->places = GR_MAX(1, POOL_BYTES / b->b_bytes);
    expect_ok(gr_cu_gemm_describe(b->g, &b->call, algo, b->d), b->d, name);
    const double seconds = time_of(bench_body, b, flop > 1e12 ? 4 : 40);
    printf("%-22s %s %6u x %6u x %5u %s%s%s %9.1f us %6.1f TFLOP/s (%3.0f %%) weights %6.0f GB/s (%3.0f %%)  "
           "%s\n",
           name, form_name[s.form], s.m, s.n, s.k, type == GR_CU_F32 ? "f32" : "bf16", add ? "+" : " ",
           strict ? "s" : " ", seconds * 1e6, flop / seconds * 1e-12, flop / seconds * 1e-10 / PEAK_TFLOPS,
           weight / seconds * 1e-9, weight / seconds * 1e-7 / PEAK_GBPS, algo);
    fflush(stdout);
}

static void bench_usual(bench *b, const gr_bf16 *a, void *out)
{
    const uint32_t few[] = {1, 8, 16, 32, 64, 128, 256, 512};
    const uint32_t small[][2] = {{4096, 1024}, {1024, 2048}, {6144, 1024}, {1024, 3072}};
    const uint32_t large[][2] = {{6144, 4096}, {4096, 4096}, {24576, 4096}, {4096, 12288}};
    const uint32_t T = 16384;
    printf("peak: %.0f TFLOP/s, %.0f GB/s\n", PEAK_TFLOPS, PEAK_GBPS);
    bench_one(b, "square", (struct shape){GR_CU_GEMM_NT, 8192, 8192, 8192}, GR_CU_BF16, false, false, a, out);
    bench_one(b, "head 0.6B", (struct shape){GR_CU_GEMM_NT, 8192, 151936, 1024}, GR_CU_F32, false, false, a,
              out);
    bench_one(b, "head 0.6B", (struct shape){GR_CU_GEMM_NT, 512, 151936, 1024}, GR_CU_F32, false, false, a,
              out);
    bench_one(b, "head 0.6B", (struct shape){GR_CU_GEMM_NT, 256, 151936, 1024}, GR_CU_F32, false, false, a,
              out);
    for (int i = 0; i < 3; i++)
        bench_one(b, "up 0.6B", (struct shape){GR_CU_GEMM_NT, (uint32_t[]){8192, 512, 64}[i], 3072, 1024},
                  GR_CU_BF16, false, false, a, out);
    for (size_t w = 0; w < 8; w++) {
        const uint32_t *nk = w < 4 ? small[w] : large[w - 4];
        const char *name = w < 4 ? "train 0.6B" : "train 8B";
        bench_one(b, name, (struct shape){GR_CU_GEMM_NT, T, nk[0], nk[1]}, GR_CU_BF16, false, false, a, out);
        bench_one(b, name, (struct shape){GR_CU_GEMM_NT, T, nk[0], nk[1]}, GR_CU_BF16, false, true, a, out);
        bench_one(b, name, (struct shape){GR_CU_GEMM_NN, T, nk[1], nk[0]}, GR_CU_BF16, false, false, a, out);
        bench_one(b, name, (struct shape){GR_CU_GEMM_TN, nk[0], nk[1], T}, GR_CU_F32, true, false, a, out);
        bench_one(b, name, (struct shape){GR_CU_GEMM_TN, nk[0], nk[1], T}, GR_CU_BF16, true, false, a, out);
        for (size_t m = 0; m < GR_LEN(few); m++)
            bench_one(b, w < 4 ? "decode 0.6B" : "decode 8B",
                      (struct shape){GR_CU_GEMM_NT, few[m], nk[0], nk[1]}, GR_CU_BF16, false, false, a, out);
    }
}

/* What is taken usually, and what cuBLASLt's heuristics rank behind their first algorithm: those within 3 %
 * of it or faster. */
static void bench_ranks(bench *b, struct shape s, gr_cu_dtype type, bool add, const gr_bf16 *a, void *out)
{
    b->call = (gr_cu_gemm_call){.form = s.form,
                                .m = s.m,
                                .n = s.n,
                                .k = s.k,
                                .a = a,
                                .b = (const gr_bf16 *)b->pool,
                                .lda = s.k,
                                .ldb = s.k,
                                .ldd = s.n,
                                .d = out,
                                .type = type,
                                .c = add ? out : NULL,
                                .ldc = s.n};
    b->b_bytes = gr_align((uint64_t)s.n * s.k * 2, 256);
    b->places = GR_MAX(1, POOL_BYTES / b->b_bytes);
    char algo[128] = "";
    expect_ok(gr_cu_gemm_describe(b->g, &b->call, algo, b->d), b->d, "ranks");
    double first = 0;
    const double usual = time_of(bench_body, b, 20);
    for (uint32_t rank = 0; gr_cu_gemm_take(b->g, &b->call, rank, b->d); rank++) {
        const double seconds = time_of(bench_body, b, 20);
        if (rank == 0) {
            first = seconds;
            printf("%4u x %6u x %5u %s%s usual   %8.2f us, %6.2f of the first  %s\n", s.m, s.n, s.k,
                   type == GR_CU_F32 ? "f32" : "bf16", add ? "+" : " ", usual * 1e6, usual / first, algo);
        }
        expect_ok(gr_cu_gemm_describe(b->g, &b->call, algo, b->d), b->d, "ranks");
        if (seconds > 1.03 * first) continue;
        printf("%4u x %6u x %5u %s%s rank %2u %8.2f us, %6.2f of the first  %s\n", s.m, s.n, s.k,
               type == GR_CU_F32 ? "f32" : "bf16", add ? "+" : " ", rank, seconds * 1e6, seconds / first,
               algo);
        fflush(stdout);
    }
}

static void bench_all_ranks(bench *b, const gr_bf16 *a, void *out)
{
    static const struct {
        uint32_t n, k;
        bool add;
    } shapes[] = {{4096, 1024, false}, {1024, 2048, true}, {6144, 1024, false},  {1024, 3072, true},
                  {4096, 2048, false}, {2048, 2048, true}, {12288, 2048, false}, {2048, 6144, true},
                  {6144, 4096, false}, {4096, 4096, true}, {24576, 4096, false}, {4096, 12288, true}};
    static const uint32_t rows[] = {256, 192, 128, 1};
    for (size_t m = 0; m < GR_LEN(rows); m++) {
        for (size_t i = 0; i < GR_LEN(shapes); i++)
            bench_ranks(b, (struct shape){GR_CU_GEMM_NT, rows[m], shapes[i].n, shapes[i].k}, GR_CU_BF16,
                        shapes[i].add, a, out);
        for (uint32_t k = 1024; k <= 4096; k *= 2)
            bench_ranks(b, (struct shape){GR_CU_GEMM_NT, rows[m], 151936, k}, GR_CU_F32, false, a, out);
    }
}

static void bench_all(gr_cu_gemm *g, void *ws, bool ranks, gr_diag *d)
{
    const size_t chunk = (size_t)1 << 25, a_bytes = (size_t)512 << 20, out_bytes = (size_t)6 << 30;
    gr_bf16 *host = random_bf16(chunk, 1, 9), *a;
    char *pool;
    void *out;
    CUDA(cudaMalloc((void **)&pool, POOL_BYTES));
    CUDA(cudaMalloc((void **)&a, a_bytes));
    CUDA(cudaMalloc(&out, out_bytes));
    CUDA(cudaMemset(out, 0, out_bytes));
    for (size_t at = 0; at < POOL_BYTES; at += chunk * 2)
        CUDA(cudaMemcpy(pool + at, host, chunk * 2, cudaMemcpyHostToDevice));
    for (size_t at = 0; at < a_bytes; at += chunk * 2)
        CUDA(cudaMemcpy((char *)a + at, host, chunk * 2, cudaMemcpyHostToDevice));
    bench b = {.g = g, .pool = pool, .ws = ws, .d = d};
    if (ranks)
        bench_all_ranks(&b, a, out);
    else
        bench_usual(&b, a, out);
    free(host);
    CUDA(cudaFree(pool));
    CUDA(cudaFree(a));
    CUDA(cudaFree(out));
}
int main(int argc, char **argv)
{
    gr_diag d;
    gr_cu_gemm *g = NULL;
    gr_diag_init(&d);
    need_device();
    void *ws = device_poisoned(GR_CU_GEMM_WS_BYTES);
    expect_ok(gr_cu_gemm_open(&g, &d), &d, "open");
    if (!g) return 1;
    if (read_options(argc, argv))
        bench_all(g, ws, argc > 2 && strcmp(argv[2], "ranks") == 0, &d);
    else
        check_all(g, ws, &d);
    CUDA(cudaDeviceSynchronize());
    gr_cu_gemm_close(g);
    CUDA(cudaFree(ws));
    gr_diag_release(&d);
    printf("%s: %d failed\n", argv[0], check_failures);
    return check_failures != 0;
}
