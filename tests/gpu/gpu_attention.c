/* tests/gpu/gpu_attention.c: ops/kernels/cuda/attention.h and gr_cu_extend_attention against loops in double
 * over the same bf16 values.
 *
 *     gpu_attention           compare cuDNN and the simple kernels; a line a tensor
 *     gpu_attention --small   the same with fewer heads and shorter sequences
 *     gpu_attention --own     the simple kernels alone
 *     gpu_attention --wide    heads wider than 256 alone; --narrow: all others
 *     gpu_attention --bench   times beside what one H200 was measured to reach
 */
#include "ops/kernels/cuda/attention.h"
#include "ops/kernels/cuda/attention_simple.h"
#include "ops/model/fp8.h"
#include "runtime/base/half.h"
#include "tests/gpu/check.h"

#define KV_BLOCK    16
#define LENGTHS_MAX 64
#define WIDE        256 /* cuDNN takes no wider heads */

static bool only_wide, only_narrow;

typedef struct batch {
    const char *name;
    uint32_t heads, kv_heads, d;
    uint32_t n_seqs, length[LENGTHS_MAX];
    uint32_t offset[LENGTHS_MAX + 1], tokens, longest; /* derived */
    gr_scores scores;                                  /* scale 0: 1 / sqrt(D); sinks: host */
    uint32_t prefix[LENGTHS_MAX];                      /* the sequence that one goes on from */
    bool shared;                                       /* there are such */
} batch;

static uint32_t width_of(const batch *b)
{
    return (b->heads + 2 * b->kv_heads) * b->d;
}

static void derive(batch *b)
{
    b->longest = 0;
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const uint32_t before = b->shared && b->prefix[i] != i ? b->length[b->prefix[i]] : 0;
        b->offset[i + 1] = b->offset[i] + b->length[i];
        b->longest = GR_MAX(b->longest, before + b->length[i]); /* keys */
    }
    b->tokens = b->offset[b->n_seqs];
    if (!b->scores.scale) b->scores.scale = gr_scores_plain(b->d).scale;
}

/* ---- the reference --------------------------------------------------------------------------------------
 */

typedef struct reference {
    const batch *b;
    const gr_bf16 *qkv, *dout;
    double *o, *lse, *dqkv, *dk, *dv; /* dk, dv [T, heads, D]: before the sum over a group's heads */
    double *dsinks;                   /* [n_seqs, heads] */
} reference;

/* Its key j, of which the first `before` are another one's. */
static size_t key_token(const batch *b, uint32_t seq, uint32_t before, uint32_t j)
{
    return j < before ? b->offset[b->prefix[seq]] + j : b->offset[seq] + j - before;
}

/* One head of one sequence's rows, and what they give to the gradients of all keys that they see. */
static void reference_rows(const reference *r, uint32_t seq, uint32_t head)
{
    const batch *b = r->b;
    const uint32_t d = b->d, first = b->offset[seq], width = width_of(b),
                   before = b->shared && b->prefix[seq] != seq ? b->length[b->prefix[seq]] : 0,
                   n = before + b->length[seq];
    const double scale = b->scores.scale, cap = b->scores.softcap;
    const gr_bf16 *sinks = b->scores.sinks;
    if (!n) return;
    double *k = gr_malloc((size_t)n * d * 8), *v = gr_malloc((size_t)n * d * 8),
           *kt = gr_malloc((size_t)n * d * 8), *vt = gr_malloc((size_t)n * d * 8), *p = gr_malloc(n * 8),
           *dp = gr_malloc(n * 8), *slope = gr_malloc(n * 8);
    const uint32_t kv_head = head / (b->heads / b->kv_heads);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < d; c++) {
            const gr_bf16 *row = r->qkv + key_token(b, seq, before, i) * width;
            kt[(size_t)c * n + i] = k[(size_t)i * d + c] = of_bf16(row[(b->heads + kv_head) * d + c]);
            vt[(size_t)c * n + i] = v[(size_t)i * d + c] =
                of_bf16(row[(b->heads + b->kv_heads + kv_head) * d + c]);
        }
    for (uint32_t i = before; i < n; i++) {
        const size_t token = first + i - before, at = (token * b->heads + head) * d;
        const gr_bf16 *q = r->qkv + token * width + head * d, *dout = r->dout + at;
        double *o = r->o + at, *dq = r->dqkv + token * width + head * d, delta = 0;
        double most = sinks ? of_bf16(sinks[head]) : -INFINITY, sum = 0;
        const uint32_t from = gr_scores_first(b->scores.window, i);
        memset(p, 0, (i + 1) * 8);
        memset(dp, 0, (i + 1) * 8);
        for (uint32_t c = 0; c < d; c++) {
            const double qc = of_bf16(q[c]) * scale, dc = of_bf16(dout[c]);
            const double *kc = kt + (size_t)c * n, *vc = vt + (size_t)c * n;
            for (uint32_t j = from; j <= i; j++) {
                p[j] += qc * kc[j];
                dp[j] += dc * vc[j];
            }
        }
        for (uint32_t j = from; j <= i; j++) {
            const double t = cap ? tanh(p[j] / cap) : 0;
            slope[j] = 1 - t * t;
            if (cap) p[j] = cap * t;
            most = GR_MAX(most, p[j]);
        }
        if (sinks) sum = exp(of_bf16(sinks[head]) - most);
        for (uint32_t j = from; j <= i; j++) sum += p[j] = exp(p[j] - most);
        r->lse[token * b->heads + head] = most + log(sum);
        for (uint32_t j = from; j <= i; j++) {
            p[j] /= sum;
            for (uint32_t c = 0; c < d; c++) o[c] += p[j] * v[(size_t)j * d + c];
        }
        for (uint32_t c = 0; c < d; c++) delta += o[c] * of_bf16(dout[c]);
        if (sinks)
            r->dsinks[seq * b->heads + head] -=
                exp(of_bf16(sinks[head]) - r->lse[token * b->heads + head]) * delta;
        for (uint32_t j = from; j <= i; j++) {
            const double ds = p[j] * (dp[j] - delta) * slope[j] * scale;
            const size_t to = (key_token(b, seq, before, j) * b->heads + head) * d;
            double *dk = r->dk + to, *dv = r->dv + to;
            for (uint32_t c = 0; c < d; c++) {
                dq[c] += ds * k[(size_t)j * d + c];
                dk[c] += ds * of_bf16(q[c]);
                dv[c] += p[j] * of_bf16(dout[c]);
            }
        }
    }
    double *const all[] = {k, v, kt, vt, p, dp, slope};
    for (size_t i = 0; i < GR_LEN(all); i++) free(all[i]);
}

/* Sequences that go on from another are its job: it alone adds to the gradients of its keys. */
static void reference_head(void *arg, size_t index)
{
    const reference *r = arg;
    const batch *b = r->b;
    const uint32_t seq = (uint32_t)(index / b->heads), head = index % b->heads;
    if (b->shared && b->prefix[seq] != seq) return;
    reference_rows(r, seq, head);
    for (uint32_t i = seq + 1; b->shared && i < b->n_seqs && b->prefix[i] == seq; i++)
        reference_rows(r, i, head);
}

static reference reference_of(const batch *b, const gr_bf16 *qkv, const gr_bf16 *dout)
{
    const uint32_t width = width_of(b), group = b->heads / b->kv_heads;
    const size_t each = (size_t)b->tokens * b->heads * b->d;
    reference r = {b,
                   qkv,
                   dout,
                   gr_calloc(each, 8),
                   gr_calloc((size_t)b->tokens * b->heads, 8),
                   gr_calloc((size_t)b->tokens * width, 8),
                   gr_calloc(each, 8),
                   gr_calloc(each, 8),
                   gr_calloc((size_t)b->n_seqs * b->heads, 8)};
    parallel_for((size_t)b->n_seqs * b->heads, reference_head, &r);
    for (size_t t = 0; t < b->tokens; t++)
        for (uint32_t h = 0; h < b->heads; h++)
            for (uint32_t c = 0; c < b->d; c++) {
                double *row = r.dqkv + t * width + (b->heads + h / group) * b->d + c;
                row[0] += r.dk[(t * b->heads + h) * b->d + c];
                row[b->kv_heads * b->d] += r.dv[(t * b->heads + h) * b->d + c];
            }
    return r;
}

static void reference_release(reference *r)
{
    double *const all[] = {r->o, r->lse, r->dqkv, r->dk, r->dv, r->dsinks};
    for (size_t i = 0; i < GR_LEN(all); i++) free(all[i]);
}

/* ---- comparison -----------------------------------------------------------------------------------------
 */

#define EXTRA_ROWS 3 /* of others, behind the batch: must stay poison */

typedef struct sides {
    gr_bf16 *qkv, *dout, *o, *dqkv; /* device */
    float *stats, *dsinks;
    uint32_t *offset, *prefix;
    gr_scores scores; /* sinks: device */
    void *ws;
    uint64_t ws_bytes;
} sides;

static sides sides_of(const batch *b, const gr_bf16 *qkv, const gr_bf16 *dout)
{
    const size_t rows = b->tokens + EXTRA_ROWS, width = width_of(b), o_width = (size_t)b->heads * b->d;
    const gr_cu_attention_shape nondeterministic = {b->heads, b->kv_heads, b->d, false},
                                strict = {b->heads, b->kv_heads, b->d, true};
    const uint64_t bytes =
                       gr_cu_attention_ws_bytes(&nondeterministic, b->tokens, b->n_seqs, b->longest, true),
                   more = gr_cu_attention_ws_bytes(&strict, b->tokens, b->n_seqs, b->longest, true),
                   shared = b->shared ? gr_cu_attention_prefix_bytes(&strict, b->longest, true) : 0;
    sides s = {.qkv = device_copy(qkv, b->tokens * width * 2),
               .dout = device_copy(dout, b->tokens * o_width * 2),
               .o = device_poisoned(rows * o_width * 2),
               .dqkv = device_poisoned(rows * width * 2),
               .stats = device_poisoned(rows * b->heads * 4),
               .offset = device_copy(b->offset, (b->n_seqs + 1) * 4),
               .prefix = device_copy(b->prefix, b->n_seqs * 4),
               .ws_bytes = GR_MAX(bytes, more) + shared};
    s.ws = device_poisoned(s.ws_bytes);
    s.scores = b->scores;
    if (b->scores.sinks) s.scores.sinks = device_copy(b->scores.sinks, b->heads * 2);
    s.dsinks = device_poisoned(b->heads * 4);
    return s;
}

static void sides_release(sides *s)
{
    void *const all[] = {
        s->qkv,   s->dout, s->o, s->dqkv, s->stats, s->offset, s->prefix, s->ws, (void *)s->scores.sinks,
        s->dsinks};
    for (size_t i = 0; i < GR_LEN(all); i++) CUDA(cudaFree(all[i]));
}

static gr_cu_sequences sequences_of(const batch *b, const sides *s)
{
    return (gr_cu_sequences){b->n_seqs, b->offset, s->offset, b->shared ? b->prefix : NULL,
                             b->shared ? s->prefix : NULL};
}

static void expect_memory_check(const char *name, const char *what, const void *rows, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (((const unsigned char *)rows)[i] != 0xff) {
            printf("%-52s %-6s rows behind the batch were written FAIL\n", name, what);
            check_failures++;
            return;
        }
}

/* n columns of every row, from `from` on. */
static void compare(const char *name, const char *what, const batch *b, const gr_bf16 *got,
                    const double *want, size_t width, size_t from, size_t n)
{
    errors e = {0};
    for (size_t t = 0; t < b->tokens; t++)
        for (size_t c = from; c < from + n; c++)
            errors_add(&e, of_bf16(got[t * width + c]), want[t * width + c]);
    report_errors(&e, name, what, 1e-2);
}

/* How many times a batch whose every result must come out the same is run. */
#define RUNS 3

static void check_forward(gr_cu_attention *a, const batch *b, const reference *r, sides *s, const char *name,
                          gr_diag *d)
{
    const gr_cu_attention_shape shape = {b->heads, b->kv_heads, b->d, true};
    const gr_cu_sequences seqs = sequences_of(b, s);
    const size_t rows = b->tokens + EXTRA_ROWS, o_width = (size_t)b->heads * b->d;
    gr_bf16 *first = NULL;
    for (int run = 0; run < RUNS; run++) {
        CUDA(cudaMemset(s->o, 0xff, rows * o_width * 2));
        CUDA(cudaMemset(s->stats, 0xff, rows * b->heads * 4));
        const gr_status st = gr_cu_attention_forward(a, NULL, &shape, &s->scores, &seqs, s->qkv, s->o,
                                                     s->stats, s->ws, s->ws_bytes, d);
        if (st != GR_OK) {
            expect_ok(st, d, name);
            break;
        }
        gr_bf16 *o = host_copy(s->o, rows * o_width * 2);
        if (first) {
            if (memcmp(first, o, rows * o_width * 2) != 0)
                report_equal(name, "o", first, o, rows * o_width * 2);
            free(o);
            continue;
        }
        first = o;
        float *stats = host_copy(s->stats, rows * b->heads * 4);
        errors e = {0};
        for (size_t i = 0; i < (size_t)b->tokens * b->heads; i++) errors_add(&e, stats[i], r->lse[i]);
        compare(name, "o", b, o, r->o, o_width, 0, o_width);
        report_errors(&e, name, "stats", 2e-3);
        expect_memory_check(name, "o", o + b->tokens * o_width, EXTRA_ROWS * o_width * 2);
        expect_memory_check(name, "stats", stats + b->tokens * b->heads, EXTRA_ROWS * b->heads * 4);
        free(stats);
    }
    free(first);
}

static void compare_sinks(const char *name, const batch *b, const float *device, const double *want)
{
    errors e = {0};
    float *got = host_copy(device, b->heads * 4);
    for (uint32_t h = 0; h < b->heads; h++) {
        double sum = 0;
        for (uint32_t i = 0; i < b->n_seqs; i++) sum += want[i * b->heads + h];
        errors_add(&e, got[h], sum);
    }
    report_errors(&e, name, "dsinks", 2e-2);
    free(got);
}

static void check_backward(gr_cu_attention *a, const batch *b, const reference *r, sides *s,
                           bool deterministic, const char *name, gr_diag *d)
{
    const gr_cu_attention_shape shape = {b->heads, b->kv_heads, b->d, deterministic};
    const gr_cu_sequences seqs = sequences_of(b, s);
    const gr_cu_sink_grads sinks = {s->dsinks, GR_CU_F32};
    const size_t width = width_of(b), bytes = (b->tokens + EXTRA_ROWS) * width * 2,
                 q = (size_t)b->heads * b->d, k = (size_t)b->kv_heads * b->d;
    gr_bf16 *first = NULL;
    for (int run = 0; run < (deterministic ? RUNS : 1); run++) {
        CUDA(cudaMemset(s->dqkv, 0xff, bytes));
        CUDA(cudaMemset(s->ws, 0xff, s->ws_bytes));
        CUDA(cudaMemset(s->dsinks, 0, b->heads * 4));
        const gr_status st =
            gr_cu_attention_backward(a, NULL, &shape, &s->scores, &seqs, s->qkv, s->o, s->stats, s->dout,
                                     s->dqkv, b->scores.sinks ? &sinks : NULL, s->ws, s->ws_bytes, d);
        if (st != GR_OK) {
            expect_ok(st, d, name);
            break;
        }
        gr_bf16 *got = host_copy(s->dqkv, bytes);
        if (first) {
            if (memcmp(first, got, bytes) != 0) report_equal(name, "dqkv", first, got, bytes);
            free(got);
            continue;
        }
        first = got;
        compare(name, "dq", b, got, r->dqkv, width, 0, q);
        compare(name, "dk", b, got, r->dqkv, width, q, k);
        compare(name, "dv", b, got, r->dqkv, width, q + k, k);
        if (b->scores.sinks) compare_sinks(name, b, s->dsinks, r->dsinks);
        expect_memory_check(name, "dqkv", got + b->tokens * width, EXTRA_ROWS * width * 2);
    }
    free(first);
}

/* Keys and values that FP8 has exactly, with a power of 2 for their scale. */
static gr_bf16 *exact_fp8(const batch *b, const gr_bf16 *qkv)
{
    const size_t width = width_of(b), bytes = b->tokens * width * sizeof(*qkv);
    gr_bf16 *to = gr_malloc(bytes + 1);
    memcpy(to, qkv, bytes);
    for (uint32_t t = 0; t < b->tokens; t++)
        for (uint32_t h = 0; h < 2 * b->kv_heads; h++) {
            gr_bf16 *x = to + t * width + (b->heads + h) * b->d;
            const float scale = ldexpf(1, (int)((t + h) % 5) - 10);
            for (uint32_t i = 0; i < b->d; i++)
                x[i] = bf16_of(gr_e4m3_to_f32(gr_f32_to_e4m3(of_bf16(x[i]) * 150)) * scale);
            x[(t + h) % b->d] = bf16_of(GR_E4M3_MAX * scale);
        }
    return to;
}

/* x [D], head h of keys or then of values, to its place in a pool. */
static void to_pool(const gr_cu_heads *heads, char *block, uint32_t h, uint32_t place, const gr_bf16 *x)
{
    const uint32_t d = heads->head_dim, value = h / heads->kv_heads, head = h % heads->kv_heads;
    const size_t half = gr_cu_kv_half_bytes(heads), at = ((size_t)head * KV_BLOCK + place) * d;
    char *to = block + value * half;
    if (!heads->kv_fp8) {
        memcpy(to + at * sizeof(*x), x, d * sizeof(*x));
        return;
    }
    float most = 0;
    for (uint32_t i = 0; i < d; i++) most = fmaxf(most, fabsf(of_bf16(x[i])));
    const gr_fp8_scale s = gr_fp8_scale_of(most);
    for (uint32_t i = 0; i < d; i++) to[at + i] = (char)gr_f32_to_e4m3(of_bf16(x[i]) * s.inverse);
    ((float *)(void *)(block + 2 * half))[(head * 2 + value) * KV_BLOCK + place] = s.scale;
}

/* New tokens of each sequence, the rest being in the pool already: the rows must be those of the whole, to
 * the bit. fp8: of the pool. */
static void check_extend(gr_cu_attention *simple, const batch *b, const gr_bf16 *qkv, sides *s, bool fp8,
                         const char *name, gr_diag *d)
{
    const gr_cu_heads heads = {.heads = b->heads, .kv_heads = b->kv_heads, .head_dim = b->d, .kv_fp8 = fp8};
    const gr_cu_attention_shape shape = {b->heads, b->kv_heads, b->d, true};
    const gr_cu_sequences seqs = sequences_of(b, s);
    const size_t width = width_of(b), o_width = (size_t)b->heads * b->d;
    const uint32_t stride = (b->longest + KV_BLOCK - 1) / KV_BLOCK + 1, n_blocks = b->n_seqs * stride;
    const size_t block = gr_cu_kv_block(&heads);
    uint32_t *table = gr_malloc(n_blocks * 4), *offset = gr_calloc(b->n_seqs + 1, 4),
             *cached = gr_calloc(b->n_seqs, 4);
    char *pool = gr_malloc(n_blocks * block);
    gr_bf16 *current = gr_malloc(b->tokens * width * 2 + 1);
    memset(pool, 0xff, n_blocks * block);
    for (uint32_t i = 0; i < n_blocks; i++)
        table[i] = (uint32_t)((uint64_t)i * 7919 % n_blocks); /* a permutation */
    uint32_t longest = 0;
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        cached[i] = i % 3 == 0 ? 0 : b->length[i] * (i % 3) / 3; /* none, a third, two thirds */
        const uint32_t n = b->length[i] - cached[i];
        longest = GR_MAX(longest, n);
        offset[i + 1] = offset[i] + n;
        memcpy(current + offset[i] * width, qkv + (b->offset[i] + cached[i]) * width, n * width * 2);
        for (uint32_t t = 0; t < b->length[i]; t++)
            for (uint32_t h = 0; h < 2 * b->kv_heads; h++)
                to_pool(&heads, pool + table[i * stride + t / KV_BLOCK] * block, h, t % KV_BLOCK,
                        qkv + (b->offset[i] + t) * width + (b->heads + h) * b->d);
    }
    const uint32_t tokens = offset[b->n_seqs];
    gr_bf16 *out = device_poisoned((tokens + EXTRA_ROWS) * o_width * 2),
            *current_dev = device_copy(current, tokens * width * 2),
            *qkv_dev = device_copy(qkv, b->tokens * width * 2);
    void *pool_dev = device_copy(pool, n_blocks * block);
    uint32_t *table_dev = device_copy(table, n_blocks * 4),
             *offset_dev = device_copy(offset, (b->n_seqs + 1) * 4),
             *cached_dev = device_copy(cached, b->n_seqs * 4);
    const gr_cu_paged paged = {
        .heads = heads, .kv = pool_dev, .table = table_dev, .table_stride = stride, .scores = s->scores};
    expect_ok(gr_cu_attention_forward(simple, NULL, &shape, &s->scores, &seqs, qkv_dev, s->o, NULL, s->ws,
                                      s->ws_bytes, d),
              d, name);
    gr_cu_extend_attention(NULL, &paged, current_dev, offset_dev, cached_dev, b->n_seqs, tokens, longest,
                           out);
    CUDA(cudaGetLastError());
    gr_bf16 *whole = host_copy(s->o, b->tokens * o_width * 2),
            *got = host_copy(out, (tokens + EXTRA_ROWS) * o_width * 2);
    gr_bf16 *want = gr_malloc(tokens * o_width * 2 + 1);
    for (uint32_t i = 0; i < b->n_seqs; i++)
        memcpy(want + offset[i] * o_width, whole + (b->offset[i] + cached[i]) * o_width,
               (offset[i + 1] - offset[i]) * o_width * 2);
    report_equal(name, "o", want, got, tokens * o_width * 2);
    expect_memory_check(name, "o", got + tokens * o_width, EXTRA_ROWS * o_width * 2);
    void *const host[] = {table, offset, cached, pool, current, whole, got, want};
    for (size_t i = 0; i < GR_LEN(host); i++) free(host[i]);
    void *const device[] = {out, pool_dev, current_dev, qkv_dev, table_dev, offset_dev, cached_dev};
    for (size_t i = 0; i < GR_LEN(device); i++) CUDA(cudaFree(device[i]));
}

/* Sequences with a beginning each: the rows of those that share theirs must have the same bits. */
static void check_shared(gr_cu_attention *simple, const batch *b, const gr_bf16 *qkv, const sides *s,
                         const char *name, gr_diag *d)
{
    const size_t width = width_of(b), o_width = (size_t)b->heads * b->d;
    batch each = *b;
    each.shared = false;
    for (uint32_t i = 0; i < b->n_seqs; i++)
        each.length[i] = b->length[i] + (b->prefix[i] == i ? 0 : b->length[b->prefix[i]]);
    derive(&each);
    gr_bf16 *whole = gr_malloc(each.tokens * width * 2), *dout = gr_calloc(each.tokens * o_width, 2);
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const uint32_t before = each.length[i] - b->length[i];
        gr_bf16 *to = whole + each.offset[i] * width;
        if (before) memcpy(to, qkv + b->offset[b->prefix[i]] * width, before * width * 2);
        memcpy(to + before * width, qkv + b->offset[i] * width, b->length[i] * width * 2);
    }
    sides w = sides_of(&each, whole, dout);
    const gr_cu_attention_shape shape = {b->heads, b->kv_heads, b->d, true};
    const gr_cu_sequences seqs = sequences_of(&each, &w), shared = sequences_of(b, s);
    expect_ok(gr_cu_attention_forward(simple, NULL, &shape, &w.scores, &seqs, w.qkv, w.o, w.stats, w.ws,
                                      w.ws_bytes, d),
              d, name);
    expect_ok(gr_cu_attention_forward(simple, NULL, &shape, &s->scores, &shared, s->qkv, s->o, s->stats,
                                      s->ws, s->ws_bytes, d),
              d, name);
    gr_bf16 *want = host_copy(w.o, each.tokens * o_width * 2),
            *got = host_copy(s->o, b->tokens * o_width * 2);
    for (uint32_t i = 0; i < b->n_seqs; i++)
        memmove(want + b->offset[i] * o_width, want + (each.offset[i + 1] - b->length[i]) * o_width,
                b->length[i] * o_width * 2);
    report_equal(name, "o", want, got, b->tokens * o_width * 2);
    sides_release(&w);
    void *const host[] = {whole, dout, want, got};
    for (size_t i = 0; i < GR_LEN(host); i++) free(host[i]);
}

static void check_batch(gr_cu_attention *const kind[2], batch *b, gr_diag *d)
{
    char name[96];
    derive(b);
    gr_bf16 *qkv = random_bf16((size_t)b->tokens * width_of(b), 1, 11),
            *dout = random_bf16((size_t)b->tokens * b->heads * b->d, 1, 12);
    reference r = reference_of(b, qkv, dout);
    for (int i = 0; i < 2; i++) {
        sides s = sides_of(b, qkv, dout);
        if (!kind[i]) continue;
        snprintf(name, sizeof(name), "%s %u/%u of %u, %s", gr_cu_attention_name(kind[i]), b->heads,
                 b->kv_heads, b->d, b->name);
        check_forward(kind[i], b, &r, &s, name, d);
        check_backward(kind[i], b, &r, &s, true, name, d);
        if (i == 0) {
            strcat(name, ", loose");
            check_backward(kind[i], b, &r, &s, false, name, d);
        } else if (b->shared) {
            strcat(name, ", bits");
            check_shared(kind[i], b, qkv, &s, name, d);
        } else {
            snprintf(name, sizeof(name), "extend %u/%u of %u, %s", b->heads, b->kv_heads, b->d, b->name);
            check_extend(kind[i], b, qkv, &s, false, name, d);
            if (b->d % 16 == 0 && b->d <= 256) {
                gr_bf16 *exact = exact_fp8(b, qkv);
                strcat(name, ", FP8");
                check_extend(kind[i], b, exact, &s, true, name, d);
                free(exact);
            }
        }
        CUDA(cudaDeviceSynchronize());
        sides_release(&s);
    }
    reference_release(&r);
    free(qkv);
    free(dout);
}

/* A captured forward and backward, replayed, give what they gave outside of a graph. */
static void check_capture(gr_cu_attention *a, gr_diag *d)
{
    batch b = {"captured", 4, 2, 64, 3, {100, 1, 200}, {0}, 0, 0, {0}, {0}, false};
    derive(&b);
    gr_bf16 *qkv = random_bf16((size_t)b.tokens * width_of(&b), 1, 21),
            *dout = random_bf16((size_t)b.tokens * b.heads * b.d, 1, 22);
    sides s = sides_of(&b, qkv, dout);
    const gr_cu_attention_shape shape = {b.heads, b.kv_heads, b.d, true};
    const gr_cu_sequences seqs = sequences_of(&b, &s);
    const size_t bytes = (size_t)b.tokens * width_of(&b) * 2;
    void *direct = NULL;
    for (int captured = 0; captured < 2; captured++) {
        cudaStream_t st;
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        CUDA(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
        CUDA(cudaMemset(s.dqkv, 0xff, bytes));
        CUDA(cudaDeviceSynchronize());
        if (captured) CUDA(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal));
        expect_ok(gr_cu_attention_forward(a, st, &shape, &s.scores, &seqs, s.qkv, s.o, s.stats, s.ws,
                                          s.ws_bytes, d),
                  d, "capture");
        expect_ok(gr_cu_attention_backward(a, st, &shape, &s.scores, &seqs, s.qkv, s.o, s.stats, s.dout,
                                           s.dqkv, NULL, s.ws, s.ws_bytes, d),
                  d, "capture");
        if (captured) {
            CUDA(cudaStreamEndCapture(st, &graph));
            CUDA(cudaGraphInstantiate(&exec, graph, 0));
            CUDA(cudaGraphLaunch(exec, st));
            CUDA(cudaStreamSynchronize(st));
            void *got = host_copy(s.dqkv, bytes);
            char name[64];
            snprintf(name, sizeof(name), "%s in a graph", gr_cu_attention_name(a));
            report_equal(name, "dqkv", direct, got, bytes);
            free(got);
            CUDA(cudaGraphExecDestroy(exec));
            CUDA(cudaGraphDestroy(graph));
        } else {
            CUDA(cudaStreamSynchronize(st));
            direct = host_copy(s.dqkv, bytes);
        }
        CUDA(cudaStreamDestroy(st));
    }
    sides_release(&s);
    free(direct);
    free(qkv);
    free(dout);
}

/* What attention multiplies, in pairs of a query head's token and a key. */
static uint64_t pairs(const batch *b)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < b->n_seqs; i++) sum += (uint64_t)b->length[i] * b->length[i];
    return b->heads * sum;
}

/* As many query heads a kv head as before. */
static void make_small(batch *b)
{
    const uint32_t group = b->heads / b->kv_heads;
    b->kv_heads = GR_MIN(b->kv_heads, 2);
    b->heads = group * b->kv_heads;
    while (pairs(b) > (check_race ? 60000 : 600000)) {
        b->name = "made small";
        for (uint32_t i = 0; i < b->n_seqs; i++) b->length[i] = (b->length[i] + 1) / 2;
    }
}

/* 2.5, -2, 1, 0, 6, -0.5, ... */
static const gr_bf16 some_sinks[] = {0x4020, 0xc000, 0x3f80, 0, 0x40c0, 0xbf00, 0x3f80, 0x4000,
                                     0x4020, 0xc000, 0x3f80, 0, 0x40c0, 0xbf00, 0x3f80, 0x4000};

static void check_all(gr_cu_attention *const kind[2], gr_diag *d)
{
    batch all[] = {
        {"one token", 16, 8, 128, 1, {1}, {0}, 0, 0, {0}, {0}, false},
        {"lengths 1 1 2", 4, 4, 64, 3, {1, 1, 2}, {0}, 0, 0, {0}, {0}, false},
        {"small mix", 16, 8, 128, 9, {17, 0, 127, 128, 129, 130, 1, 2, 64}, {0}, 0, 0, {0}, {0}, false},
        {"small mix", 4, 2, 16, 7, {1, 2, 17, 127, 128, 0, 129}, {0}, 0, 0, {0}, {0}, false},
        {"small mix", 4, 2, 8, 4, {1, 2, 17, 127}, {0}, 0, 0, {0}, {0}, false},
        {"small mix", 14, 2, 64, 6, {130, 1, 2, 17, 65, 63}, {0}, 0, 0, {0}, {0}, false},
        {"small mix", 32, 8, 128, 4, {129, 17, 1, 200}, {0}, 0, 0, {0}, {0}, false},
        {"small mix", 4, 1, 256, 5, {127, 130, 1, 2, 300}, {0}, 0, 0, {0}, {0}, false},
        {"small mix", 4, 4, 256, 3, {129, 1, 257}, {0}, 0, 0, {0}, {0}, false},
        {"small mix", 8, 8, 192, 5, {127, 130, 1, 2, 300}, {0}, 0, 0, {0}, {0}, false},
        {"small mix", 6, 2, 80, 4, {129, 1, 257, 40}, {0}, 0, 0, {0}, {0}, false},
        {"small mix", 3, 1, 96, 3, {200, 1, 77}, {0}, 0, 0, {0}, {0}, false},
        {"small mix", 5, 5, 160, 3, {200, 1, 77}, {0}, 0, 0, {0}, {0}, false},
        {"33 short",
         8,
         2,
         64,
         33,
         {5,  9, 1,  33, 2, 70, 64, 5,  9, 1,  33, 2, 70, 64, 5, 9, 1,
          33, 2, 70, 64, 5, 9,  1,  33, 2, 70, 64, 3, 4,  5,  6, 90},
         {0},
         0,
         0,
         {0},
         {0},
         false},
        {"768 and shorter", 16, 8, 128, 6, {768, 700, 512, 400, 1, 768}, {0}, 0, 0, {0}, {0}, false},
        {"768 and shorter", 14, 2, 64, 4, {768, 513, 1, 640}, {0}, 0, 0, {0}, {0}, false},
        {"a long one between", 4, 2, 128, 5, {3, 1500, 2, 130, 700}, {0}, 0, 0, {0}, {0}, false},
        {"4096", 4, 1, 64, 1, {4096}, {0}, 0, 0, {0}, {0}, false},
        {"4096 and 2000", 4, 4, 128, 2, {4096, 2000}, {0}, 0, 0, {0}, {0}, false},
        {"2048", 2, 1, 256, 1, {2048}, {0}, 0, 0, {0}, {0}, false},
        {"2048", 4, 4, 192, 1, {2048}, {0}, 0, 0, {0}, {0}, false},
        {"window 1", 4, 2, 64, 3, {129, 1, 70}, {0}, 0, 0, {.window = 1}, {0}, false},
        {"window 17", 16, 8, 128, 5, {17, 18, 0, 130, 400}, {0}, 0, 0, {.window = 17}, {0}, false},
        {"window 64", 14, 2, 64, 4, {700, 64, 65, 1}, {0}, 0, 0, {.window = 64}, {0}, false},
        {"window 128, sinks",
         16,
         2,
         64,
         4,
         {900, 128, 129, 5},
         {0},
         0,
         0,
         {.window = 128, .sinks = some_sinks},
         {0},
         false},
        {"window 200", 4, 1, 256, 3, {600, 199, 201}, {0}, 0, 0, {.window = 200}, {0}, false},
        {"window 255", 6, 2, 80, 3, {257, 1000, 256}, {0}, 0, 0, {.window = 255}, {0}, false},
        {"window 256", 8, 4, 128, 2, {1100, 256}, {0}, 0, 0, {.window = 256, .scale = 0.2f}, {0}, false},
        {"window 5000", 4, 2, 128, 3, {300, 1, 130}, {0}, 0, 0, {.window = 5000}, {0}, false},
        {"sinks", 16, 2, 64, 5, {300, 1, 0, 130, 2}, {0}, 0, 0, {.sinks = some_sinks}, {0}, false},
        {"sinks", 8, 8, 128, 2, {1500, 600}, {0}, 0, 0, {.sinks = some_sinks, .scale = 0.3f}, {0}, false},
        {"softcap 3", 8, 4, 256, 3, {300, 1, 130}, {0}, 0, 0, {.softcap = 3}, {0}, false},
        {"softcap 2, window 70",
         8,
         4,
         96,
         3,
         {300, 1, 530},
         {0},
         0,
         0,
         {.softcap = 2, .window = 70, .scale = 0.15f},
         {0},
         false},
        {.name = "a prompt and 3, and one alone",
         .heads = 16,
         .kv_heads = 8,
         .d = 128,
         .n_seqs = 5,
         .length = {200, 130, 1, 64, 70},
         .shared = true,
         .prefix = {0, 0, 0, 0, 4}},
        {.name = "prompts of 1, 127 and 128",
         .heads = 4,
         .kv_heads = 2,
         .d = 64,
         .n_seqs = 8,
         .length = {1, 33, 5, 127, 300, 128, 1, 129},
         .shared = true,
         .prefix = {0, 0, 0, 3, 3, 5, 5, 5}},
        {.name = "long responses of a short prompt",
         .heads = 14,
         .kv_heads = 2,
         .d = 64,
         .n_seqs = 6,
         .length = {5, 40, 17, 50, 900, 300},
         .shared = true,
         .prefix = {0, 0, 2, 3, 3, 3}},
        {.name = "a long prompt",
         .heads = 4,
         .kv_heads = 4,
         .d = 128,
         .n_seqs = 5,
         .length = {2100, 40, 170, 500, 1},
         .shared = true,
         .prefix = {0, 0, 0, 0, 0}},
        {.name = "a prompt, sinks",
         .heads = 16,
         .kv_heads = 2,
         .d = 64,
         .n_seqs = 4,
         .length = {300, 40, 170, 5},
         .shared = true,
         .prefix = {0, 0, 0, 0},
         .scores = {.sinks = some_sinks}},
        {.name = "a prompt, softcap 3",
         .heads = 8,
         .kv_heads = 4,
         .d = 256,
         .n_seqs = 3,
         .length = {100, 40, 170},
         .shared = true,
         .prefix = {0, 0, 0},
         .scores = {.softcap = 3}},
        {"all of it", 6, 2, 128, 3, {300, 50, 600}, {0}, 0, 0, {33, 0.2f, 5, some_sinks}, {0}, false},
        {"one token", 8, 1, 512, 1, {1}, {0}, 0, 0, {0}, {0}, false},
        {"small mix", 8, 1, 512, 6, {127, 130, 1, 0, 2, 300}, {0}, 0, 0, {0}, {0}, false},
        {"700 and shorter", 16, 2, 512, 3, {700, 257, 256}, {0}, 0, 0, {.scale = 0.1f}, {0}, false},
        {"small mix", 4, 4, 320, 3, {129, 1, 257}, {0}, 0, 0, {0}, {0}, false},
        {"small mix", 4, 2, 400, 3, {65, 1, 300}, {0}, 0, 0, {0}, {0}, false},
        {"window 33", 8, 2, 512, 3, {300, 33, 34}, {0}, 0, 0, {.window = 33}, {0}, false},
        {"window 300, softcap 3",
         4,
         1,
         512,
         2,
         {700, 10},
         {0},
         0,
         0,
         {.window = 300, .softcap = 3},
         {0},
         false},
        {"sinks", 16, 2, 512, 3, {300, 1, 130}, {0}, 0, 0, {.sinks = some_sinks}, {0}, false},
        {.name = "a prompt and 3, wide heads",
         .heads = 8,
         .kv_heads = 2,
         .d = 512,
         .n_seqs = 5,
         .length = {200, 130, 1, 64, 70},
         .shared = true,
         .prefix = {0, 0, 0, 0, 4}},
    };
    for (size_t i = 0; i < GR_LEN(all); i++) {
        if (all[i].d > WIDE ? only_narrow : only_wide) continue;
        if (check_small) make_small(&all[i]);
        check_batch(kind, &all[i], d);
    }
    for (int i = 0; i < 2; i++)
        if (kind[i] && !only_wide) check_capture(kind[i], d);
}

/* ---- times ----------------------------------------------------------------------------------------------
 */

typedef struct bench {
    gr_cu_attention *a;
    gr_cu_attention_shape shape;
    gr_scores scores;
    gr_cu_sequences seqs;
    const gr_bf16 *qkv, *dout;
    gr_bf16 *o, *dqkv;
    float *stats;
    void *ws;
    uint64_t ws_bytes;
    gr_diag *d;
} bench;

static void bench_forward(void *arg, int i)
{
    (void)i;
    bench *b = arg;
    expect_ok(gr_cu_attention_forward(b->a, NULL, &b->shape, &b->scores, &b->seqs, b->qkv, b->o, b->stats,
                                      b->ws, b->ws_bytes, b->d),
              b->d, "bench forward");
}

static void bench_backward(void *arg, int i)
{
    (void)i;
    bench *b = arg;
    expect_ok(gr_cu_attention_backward(b->a, NULL, &b->shape, &b->scores, &b->seqs, b->qkv, b->o, b->stats,
                                       b->dout, b->dqkv, NULL, b->ws, b->ws_bytes, b->d),
              b->d, "bench backward");
}

static double since(uint64_t ns)
{
    return (double)(gr_now_ns() - ns) * 1e-9;
}

static void bench_case(gr_cu_attention *a, uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t n_seqs,
                       uint32_t length, uint32_t window, const char *ceiling, gr_diag *d)
{
    const size_t tokens = (size_t)n_seqs * length, width = (heads + 2 * kv_heads) * dim,
                 o_width = heads * dim;
    const size_t chunk = GR_MIN(tokens * width, (size_t)1 << 24);
    uint32_t *offset = gr_malloc((n_seqs + 1) * 4);
    gr_bf16 *random = random_bf16(chunk, 1, 5), *qkv = device_poisoned(tokens * width * 2),
            *dout = device_poisoned(tokens * o_width * 2);
    for (uint32_t i = 0; i <= n_seqs; i++) offset[i] = i * length;
    for (size_t at = 0; at < tokens * width; at += chunk)
        CUDA(cudaMemcpy(qkv + at, random, GR_MIN(chunk, tokens * width - at) * 2, cudaMemcpyHostToDevice));
    for (size_t at = 0; at < tokens * o_width; at += chunk)
        CUDA(cudaMemcpy(dout + at, random, GR_MIN(chunk, tokens * o_width - at) * 2, cudaMemcpyHostToDevice));
    uint32_t *offset_dev = device_copy(offset, (n_seqs + 1) * 4);
    bench b = {.a = a,
               .scores = gr_scores_plain(dim),
               .seqs = {n_seqs, offset, offset_dev, NULL, NULL},
               .qkv = qkv,
               .dout = dout,
               .o = device_poisoned(tokens * o_width * 2),
               .dqkv = device_poisoned(tokens * width * 2),
               .stats = device_poisoned(tokens * heads * 4),
               .d = d};
    const double forward_flop =
        window ? 4.0 * tokens * window * heads * dim : 2.0 * tokens * length * heads * dim;
    b.scores.window = window;
    for (int nondeterministic = 0; nondeterministic < 2; nondeterministic++) {
        b.shape = (gr_cu_attention_shape){heads, kv_heads, dim, !nondeterministic};
        b.ws_bytes = gr_cu_attention_ws_bytes(&b.shape, (uint32_t)tokens, n_seqs, length, true);
        b.ws = device_poisoned(b.ws_bytes);
        const gr_cu_attention_run r = gr_cu_attention_cut(&b.shape, offset, 0, n_seqs, true);
        uint64_t begin = gr_now_ns();
        expect_ok(gr_cu_attention_prepare(a, &b.shape, &b.scores, &b.seqs, false, d), d, "prepare");
        expect_ok(gr_cu_attention_prepare(a, &b.shape, &b.scores, &b.seqs, true, d), d, "prepare");
        const double prepared = since(begin);
        CUDA(cudaDeviceSynchronize());
        begin = gr_now_ns();
        bench_forward(&b, 0);
        const double enqueued = since(begin);
        const double f = time_of(bench_forward, &b, 8), w = time_of(bench_backward, &b, 8);
        CUDA(cudaGetLastError());
        printf("%-12s %3u x %5u tokens, %2u/%2u of %3u %s: forward %8.3f ms %5.0f TFLOP/s, backward %8.3f ms "
               "%5.0f "
               "TFLOP/s  (%s)  runs of %u x %u, %u kv heads; ws %.0f MiB; plans %.2f s; enqueue %.0f us\n",
               gr_cu_attention_name(a), n_seqs, length, heads, kv_heads, dim,
               nondeterministic ? "loose        " : "deterministic", f * 1e3, forward_flop / f * 1e-12,
               w * 1e3, 2.5 * forward_flop / w * 1e-12, ceiling, r.batch, r.longest, r.kv_heads,
               (double)b.ws_bytes / (1 << 20), prepared, enqueued * 1e6);
        fflush(stdout);
        CUDA(cudaFree(b.ws));
        if (strcmp(gr_cu_attention_name(a), "simple") == 0) break;
    }
    void *const all[] = {qkv, dout, b.o, b.dqkv, b.stats, offset_dev};
    for (size_t i = 0; i < GR_LEN(all); i++) CUDA(cudaFree(all[i]));
    free(offset);
    free(random);
}

typedef struct extend_bench {
    gr_cu_paged paged;
    gr_bf16 *qkv, *out;
    uint32_t *offset, *cached, n_seqs, n_tokens, longest;
} extend_bench;

static void bench_extend_body(void *arg, int i)
{
    (void)i;
    extend_bench *b = arg;
    gr_cu_extend_attention(NULL, &b->paged, b->qkv, b->offset, b->cached, b->n_seqs, b->n_tokens, b->longest,
                           b->out);
}

static void bench_extend(uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t n_seqs, uint32_t length)
{
    const size_t tokens = (size_t)n_seqs * length, width = (heads + 2 * kv_heads) * dim;
    const uint32_t stride = (length + KV_BLOCK - 1) / KV_BLOCK, n_blocks = n_seqs * stride;
    const size_t pool_elems = (size_t)n_blocks * 2 * KV_BLOCK * kv_heads * dim;
    uint32_t *table = gr_malloc(n_blocks * 4), *offset = gr_malloc((n_seqs + 1) * 4),
             *cached = gr_calloc(n_seqs, 4);
    for (uint32_t i = 0; i < n_blocks; i++) table[i] = (uint32_t)((uint64_t)i * 7919 % n_blocks);
    for (uint32_t i = 0; i <= n_seqs; i++) offset[i] = i * length;
    gr_bf16 *pool = random_bf16(pool_elems, 1, 1), *qkv = random_bf16(tokens * width, 1, 2);
    gr_bf16 *pool_dev = device_copy(pool, pool_elems * 2);
    uint32_t *table_dev = device_copy(table, n_blocks * 4);
    extend_bench b = {.paged = {{.heads = heads, .kv_heads = kv_heads, .head_dim = dim},
                                pool_dev,
                                table_dev,
                                stride,
                                gr_scores_plain(dim)},
                      .qkv = device_copy(qkv, tokens * width * 2),
                      .out = device_poisoned(tokens * heads * dim * 2),
                      .offset = device_copy(offset, (n_seqs + 1) * 4),
                      .cached = device_copy(cached, n_seqs * 4),
                      .n_seqs = n_seqs,
                      .n_tokens = (uint32_t)tokens,
                      .longest = length};
    const double t = time_of(bench_extend_body, &b, 8);
    CUDA(cudaGetLastError());
    printf("extend       %3u x %5u tokens, %2u/%2u of %3u: %8.3f ms %5.0f TFLOP/s\n", n_seqs, length, heads,
           kv_heads, dim, t * 1e3, 2.0 * tokens * length * heads * dim / t * 1e-12);
    void *const device[] = {pool_dev, table_dev, b.qkv, b.out, b.offset, b.cached};
    for (size_t i = 0; i < GR_LEN(device); i++) CUDA(cudaFree(device[i]));
    void *const host[] = {table, offset, cached, pool, qkv};
    for (size_t i = 0; i < GR_LEN(host); i++) free(host[i]);
}

static void bench_all(gr_cu_attention *const kind[2], gr_diag *d)
{
    for (int i = 0; i < 2; i++) {
        if (!kind[i]) continue;
        bench_case(kind[i], 16, 16, 128, 32, 1024, 0, "measured in PyTorch: 448 / 229", d);
        bench_case(kind[i], 16, 16, 128, 4, 8192, 0, "measured in PyTorch: 639 / 493", d);
        bench_case(kind[i], 16, 8, 128, 21, 768, 0, "", d);
        bench_case(kind[i], 16, 8, 128, 256, 768, 0, "", d);
        bench_case(kind[i], 32, 8, 128, 21, 768, 0, "", d);
        bench_case(kind[i], 16, 8, 128, 1, 16384, 0, "", d);
        bench_case(kind[i], 14, 2, 64, 21, 768, 0, "", d);
        bench_case(kind[i], 16, 8, 128, 128, 128, 0, "", d);
        bench_case(kind[i], 64, 8, 64, 4, 8192, 128, "window 128", d);
        bench_case(kind[i], 32, 8, 128, 4, 8192, 1024, "window 1024", d);
        if (i == 0) bench_case(kind[i], 8, 2, 256, 8, 2048, 0, "", d);
        if (i == 1) bench_case(kind[i], 32, 4, 512, 8, 2048, 0, "", d);
    }
    bench_extend(16, 8, 128, 32, 256);
    bench_extend(16, 8, 128, 32, 1024);
    bench_extend(32, 8, 128, 4, 8192);
    bench_extend(14, 2, 64, 32, 1024);
    bench_extend(32, 4, 512, 8, 2048);
}

int main(int argc, char **argv)
{
    gr_diag d;
    gr_cu_attention *kind[2] = {NULL, NULL};
    gr_diag_init(&d);
    need_device();
    const bool times = read_options(argc, argv);
    for (int i = 1; i < argc; i++) {
        only_wide = only_wide || !strcmp(argv[i], "--wide");
        only_narrow = only_narrow || !strcmp(argv[i], "--narrow");
    }
    if (!check_own) expect_ok(gr_cu_attention_open(&kind[0], GR_CU_ATTENTION_CUDNN, &d), &d, "open cuDNN");
    expect_ok(gr_cu_attention_open(&kind[1], GR_CU_ATTENTION_SIMPLE, &d), &d, "open simple");
    printf("attention: %s\n", kind[0] ? gr_cu_attention_name(kind[0]) : "no cuDNN");
    if (times)
        bench_all(kind, &d);
    else
        check_all(kind, &d);
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < 2; i++) gr_cu_attention_close(kind[i]);
    gr_diag_release(&d);
    printf("%s: %d failed\n", argv[0], check_failures);
    return check_failures != 0;
}
