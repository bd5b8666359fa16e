/* tests/gpu/gpu_decode.c: attention of decode steps and copies of blocks against loops in double.
 *
 * Without arguments: one line a case (largest absolute error, relative norm of the error), exit 1 where one
 * fails, 77 where there is no device. The products of a step of few sequences (gr_cu_decode_product) are
 * measured by the error that rounding to bf16 brings. --small: shorter and fewer slots of fewer heads.
 * --few: of these what steps of few sequences use. --bench: times, as bytes of keys and values that must be
 * read once over seconds.
 */
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/kernels/cuda/decode_sizes.h"
#include "ops/kernels/cuda/fp8.h"
#include "ops/model/fp8.h"
#include "runtime/base/half.h"

enum { BLOCK = 16 };
#define COPY_GBPS 4260.0 /* device copy, read and written, of the machine this was tuned on */

static int failures;
static bool small; /* as --small asks */
static bool fp8;   /* the pool of the batches that are made is in FP8 */
static bool tiny;  /* a key's and a value's first number is 448, and the others are subnormal in FP8 */

static void check_cuda(cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}
#define CUDA(call) check_cuda((call), #call)

static uint64_t random_state = 88172645463325252ull;

static uint32_t random_u32(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

static uint32_t random_below(uint32_t n)
{
    return (uint32_t)(((uint64_t)random_u32() * n) >> 32);
}

static void shuffle(uint32_t *x, uint32_t n)
{
    for (uint32_t i = n; i-- > 1;) {
        const uint32_t j = random_below(i + 1), t = x[i];
        x[i] = x[j];
        x[j] = t;
    }
}

/* Nearly normal, standard deviation 1. */
static float random_value(void)
{
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)random_u32() * 0x1p-32f - 0.5f;
    return sum * 1.732f;
}

static gr_bf16 to_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return (gr_bf16)((u + 0x7FFF + ((u >> 16) & 1)) >> 16);
}

static float of_bf16(gr_bf16 x)
{
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static void *host(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p) abort();
    return p;
}

/* Device memory of poison: every float and bf16 in it is a NaN. */
static void *device(size_t bytes)
{
    void *p = NULL;
    CUDA(cudaMalloc(&p, bytes ? bytes : 1));
    CUDA(cudaMemset(p, 0xFF, bytes ? bytes : 1));
    return p;
}

static void *device_of(const void *from, size_t bytes)
{
    void *p = device(bytes);
    CUDA(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice));
    return p;
}

/* ---- a batch --------------------------------------------------------------------------------------------
 */

typedef struct batch {
    gr_cu_heads h;
    uint32_t n, n_groups, max_length, stride, n_blocks;
    uint32_t *length, *member, *group_first, *shared, *table; /* host */
    char *kv;                                                 /* host */
    gr_bf16 *qkv;                                             /* host */
    gr_scores scores;                                         /* sinks: host */
    void *d_kv;                                               /* kept between launches of one case */
} batch;

static uint32_t width(const batch *b)
{
    return (b->h.heads + 2 * b->h.kv_heads) * b->h.head_dim;
}

static size_t pool_bytes(const batch *b)
{
    return b->n_blocks * gr_cu_kv_block(&b->h);
}

/* A kv head's key, or value, of a position: where it lies in the pool, and its scale if that is in FP8. */
typedef struct kept {
    gr_bf16 *wide;
    uint8_t *eight; /* the same place */
    float *scale;
} kept;

static kept kept_at(const batch *b, uint32_t slot, uint32_t key, uint32_t kv_head, bool value)
{
    char *block = b->kv + b->table[(size_t)slot * b->stride + key / BLOCK] * (size_t)gr_cu_kv_block(&b->h);
    const size_t half = gr_cu_kv_half_bytes(&b->h),
                 at = ((size_t)kv_head * BLOCK + key % BLOCK) * b->h.head_dim;
    float *scales = (float *)(void *)(block + 2 * half);
    char *from = block + (value ? half : 0);
    return (kept){(gr_bf16 *)(void *)from + at, (uint8_t *)from + at,
                  scales + (kv_head * 2 + value) * BLOCK + key % BLOCK};
}

static double kept_get(const batch *b, kept k, uint32_t i)
{
    if (b->h.kv_fp8) return (double)gr_e4m3_to_f32(k.eight[i]) * (double)*k.scale;
    return (double)of_bf16(k.wide[i]);
}

static void kept_set_random(const batch *b, kept k)
{
    const uint32_t d = b->h.head_dim;
    float x[256], most = 0;
    for (uint32_t i = 0; i < d; i++) x[i] = !tiny ? random_value() : i ? random_value() * 0x1p-8f : 448;
    for (uint32_t i = 0; i < d; i++) most = fmaxf(most, fabsf(x[i]));
    const gr_fp8_scale s = gr_fp8_scale_of(most);
    if (b->h.kv_fp8) *k.scale = s.scale;
    for (uint32_t i = 0; i < d; i++)
        if (b->h.kv_fp8)
            k.eight[i] = gr_f32_to_e4m3(x[i] * s.inverse);
        else
            k.wide[i] = to_bf16(x[i]);
}

/* Tables over shuffled blocks; shared keys in the same blocks. What lies behind a slot's length stays NaN. */
static void fill_tables(batch *b)
{
    uint32_t *order = host(b->n_blocks * sizeof(*order)), used = 0;
    for (uint32_t i = 0; i < b->n_blocks; i++) order[i] = i;
    shuffle(order, b->n_blocks);
    memset(b->table, 0xFF, (size_t)b->n * b->stride * sizeof(*b->table));
    for (uint32_t g = 0; g < b->n_groups; g++) {
        const uint32_t common = b->shared[g] / BLOCK, from = used;
        used += common;
        for (uint32_t s = b->group_first[g]; s < b->group_first[g + 1]; s++)
            for (uint32_t i = 0; i * BLOCK < b->length[s]; i++)
                b->table[(size_t)s * b->stride + i] = order[i < common ? from + i : used++];
    }
    if (used > b->n_blocks) abort();
    free(order);
}

static void fill_keys(batch *b)
{
    memset(b->kv, 0xFF, pool_bytes(b));
    for (uint32_t g = 0; g < b->n_groups; g++)
        for (uint32_t s = b->group_first[g], first = 1; s < b->group_first[g + 1]; s++) {
            if (!b->length[s]) continue;
            for (uint32_t key = first ? 0 : b->shared[g]; key < b->length[s]; key++)
                for (uint32_t h = 0; h < 2 * b->h.kv_heads; h++)
                    kept_set_random(b, kept_at(b, s, key, h / 2, h % 2));
            first = 0;
        }
}

static batch batch_new(uint32_t heads, uint32_t kv_heads, uint32_t head_dim, uint32_t n_groups,
                       uint32_t group)
{
    batch b = {.h = {.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .kv_fp8 = fp8},
               .n_groups = n_groups};
    b.n = n_groups * group;
    b.scores = gr_scores_plain(head_dim);
    b.length = host(b.n * sizeof(*b.length));
    b.group_first = host((n_groups + 1) * sizeof(*b.group_first));
    b.shared = host(n_groups * sizeof(*b.shared));
    for (uint32_t g = 0; g <= n_groups; g++) b.group_first[g] = g * group;
    b.member = host(b.n * sizeof(*b.member));
    for (uint32_t i = 0; i < b.n; i++) b.member[i] = i;
    return b;
}

/* After length and shared are set. */
static void batch_fill(batch *b)
{
    uint32_t blocks = 0, most = 1;
    for (uint32_t s = 0; s < b->n; s++) {
        blocks += (b->length[s] + BLOCK - 1) / BLOCK;
        most = b->length[s] > most ? b->length[s] : most;
    }
    for (uint32_t g = 0; g < b->n_groups; g++) blocks += b->shared[g] / BLOCK;
    b->n_blocks = blocks + 3;
    b->max_length = most + random_below(100);
    b->stride = (b->max_length + BLOCK - 1) / BLOCK + random_below(3);
    b->table = host((size_t)b->n * b->stride * sizeof(*b->table));
    b->kv = host(pool_bytes(b));
    b->qkv = host((size_t)b->n * width(b) * sizeof(*b->qkv));
    fill_tables(b);
    fill_keys(b);
    for (size_t i = 0; i < (size_t)b->n * width(b); i++) b->qkv[i] = to_bf16(2 * random_value());
    b->d_kv = device_of(b->kv, pool_bytes(b));
}

static void batch_free(batch *b)
{
    free(b->length);
    free(b->group_first);
    free(b->member);
    free(b->shared);
    free(b->table);
    free(b->kv);
    free(b->qkv);
    CUDA(cudaFree(b->d_kv));
}

/* What is launched: slots of a batch, in any order and grouping. */
typedef struct launch {
    uint32_t n, n_groups, max_length;
    const uint32_t *length, *member, *group_first, *shared, *table;
    const gr_bf16 *qkv;
    uint32_t each; /* slots that are rows of one */
} launch;

static launch launch_of(const batch *b)
{
    return (launch){b->n,           b->n_groups, b->max_length, b->length, b->member,
                    b->group_first, b->shared,   b->table,      b->qkv,    0};
}

/* The same rounded to FP8 as it is made, beside what is rounded afterwards; the last rows stay as they are.
 */
static void check_rounded(const batch *b, const gr_cu_paged *p, const gr_cu_decode *d, const gr_bf16 *qkv,
                          const gr_bf16 *out, const void *work, void *ws)
{
    const uint32_t cols = b->h.heads * b->h.head_dim, n = d->n / 4 * 4;
    const size_t values = (size_t)n * cols, scales = values / GR_FP8_BLOCK * sizeof(float),
                 rest = (size_t)(d->n - n) * cols * sizeof(*out);
    if (b->h.head_dim % GR_FP8_BLOCK || !n) return;
    char *want = device(values + scales), *got = device(values + scales);
    gr_bf16 *last = device((size_t)d->n * cols * sizeof(*out));
    CUDA(cudaMemset(got, 0xff, values + scales));
    gr_cu_fp8_rows(0, out, (uint8_t *)want, (float *)(want + values), n, n, cols);
    gr_cu_fp8_decode_attention(0, p, d, qkv, &(gr_cu_fp8_to){(uint8_t *)got, (float *)(got + values), n},
                               last, work, ws);
    CUDA(cudaGetLastError());
    char *a = host(values + scales + rest), *c = host(values + scales + rest);
    CUDA(cudaMemcpy(a, want, values + scales, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(c, got, values + scales, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(a + values + scales, out + values, rest, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(c + values + scales, last + values, rest, cudaMemcpyDeviceToHost));
    const bool ok = !memcmp(a, c, values + scales + rest);
    printf("%-10s %u rows of %u, %u not %s\n", "rounded", n, cols, d->n - n, ok ? "OK" : "FAIL");
    failures += !ok;
    free(a), free(c);
    void *const all[] = {want, got, last};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) CUDA(cudaFree(all[i]));
}

static gr_bf16 *run(const batch *b, const launch *l)
{
    const size_t outs = (size_t)l->n * b->h.heads * b->h.head_dim;
    gr_cu_decode d = {.length = device_of(l->length, l->n * 4),
                      .member = device_of(l->member, l->group_first[l->n_groups] * 4),
                      .group_first = device_of(l->group_first, (l->n_groups + 1) * 4),
                      .shared = device_of(l->shared, l->n_groups * 4),
                      .n = l->n,
                      .n_groups = l->n_groups,
                      .max_length = l->max_length,
                      .each = l->each};
    void *work = device(gr_cu_decode_work_bytes(&b->h, d.n, d.max_length));
    void *ws = device(gr_cu_decode_attention_ws(&b->h, d.n, d.max_length));
    uint32_t *table = device_of(l->table, (size_t)l->n * b->stride * 4);
    gr_bf16 *qkv = device_of(l->qkv, (size_t)l->n * width(b) * sizeof(*qkv)),
            *out = device(outs * sizeof(*out));
    gr_cu_paged p = {
        .heads = b->h, .kv = b->d_kv, .table = table, .table_stride = b->stride, .scores = b->scores};
    void *sinks = b->scores.sinks ? device_of(b->scores.sinks, b->h.heads * sizeof(gr_bf16)) : NULL;
    p.scores.sinks = sinks;
    gr_cu_decode_plan(0, &b->h, &d, b->scores.window, table, b->stride, work);
    gr_cu_decode_attention(0, &p, &d, qkv, out, work, ws);
    CUDA(cudaGetLastError());
    CUDA(cudaDeviceSynchronize());
    gr_bf16 *result = host(outs * sizeof(*result));
    CUDA(cudaMemcpy(result, out, outs * sizeof(*out), cudaMemcpyDeviceToHost));
    check_rounded(b, &p, &d, qkv, out, work, ws);
    void *const all[] = {(void *)d.length,
                         (void *)d.member,
                         (void *)d.group_first,
                         (void *)d.shared,
                         work,
                         ws,
                         table,
                         qkv,
                         sinks,
                         out};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) CUDA(cudaFree(all[i]));
    return result;
}

/* One query head of one slot, in double. */
static void attend(const batch *b, uint32_t slot, uint32_t head, double *out)
{
    const uint32_t n = b->length[slot], d = b->h.head_dim, kv_head = head / (b->h.heads / b->h.kv_heads);
    const gr_bf16 *q = b->qkv + (size_t)slot * width(b) + (size_t)head * d;
    const gr_bf16 *sinks = b->scores.sinks;
    const uint32_t from = n ? gr_scores_first(b->scores.window, n - 1) : 0;
    double *p = host(n * sizeof(*p)), most = sinks ? (double)of_bf16(sinks[head]) : -INFINITY, sum = 0;
    for (uint32_t k = from; k < n; k++) {
        const kept key = kept_at(b, slot, k, kv_head, false);
        p[k] = 0;
        for (uint32_t i = 0; i < d; i++) p[k] += (double)of_bf16(q[i]) * kept_get(b, key, i);
        p[k] *= (double)b->scores.scale;
        if (b->scores.softcap) p[k] = (double)b->scores.softcap * tanh(p[k] / (double)b->scores.softcap);
        most = p[k] > most ? p[k] : most;
    }
    if (sinks) sum = exp((double)of_bf16(sinks[head]) - most);
    for (uint32_t i = 0; i < d; i++) out[i] = 0;
    for (uint32_t k = from; k < n; k++) {
        const kept value = kept_at(b, slot, k, kv_head, true);
        const double w = exp(p[k] - most);
        sum += w;
        for (uint32_t i = 0; i < d; i++) out[i] += w * kept_get(b, value, i);
    }
    for (uint32_t i = 0; i < d && n; i++) out[i] /= sum;
    free(p);
}

/* Columns from `first` on. */
static void compare_from(const char *name, const batch *b, const gr_bf16 *got, uint32_t first)
{
    double most = 0, error = 0, norm = 0;
    uint64_t wrong = 0; /* not a number, or not zero where it must be */
    double *want = host(b->h.head_dim * sizeof(*want));
    for (uint32_t s = 0; s < b->n; s++)
        for (uint32_t h = 0; h < b->h.heads; h++) {
            attend(b, s, h, want);
            for (uint32_t i = first; i < b->h.head_dim; i++) {
                const double x = (double)of_bf16(got[((size_t)s * b->h.heads + h) * b->h.head_dim + i]);
                const double e = fabs(x - want[i]);
                wrong += !(e <= 0.02 + 0.02 * fabs(want[i])) || (!b->length[s] && x != 0);
                most = e > most ? e : most;
                error += e * e;
                norm += want[i] * want[i];
            }
        }
    free(want);
    const double relative = norm > 0 ? sqrt(error / norm) : sqrt(error);
    const bool ok = !wrong && relative < 6e-3;
    printf("%-10s heads %u/%u D %u%s, %u slots in %u groups, lengths to %u: max abs %.2e, norm %.2e, wrong "
           "%llu %s\n",
           name, b->h.heads, b->h.kv_heads, b->h.head_dim, b->h.kv_fp8 ? " FP8" : "", b->n, b->n_groups,
           b->max_length, most, relative, (unsigned long long)wrong, ok ? "OK" : "FAIL");
    failures += !ok;
}

static void compare(const char *name, const batch *b, const gr_bf16 *got)
{
    compare_from(name, b, got, 0);
}

static void same(const char *name, const gr_bf16 *a, const gr_bf16 *b, size_t n)
{
    size_t different = 0;
    for (size_t i = 0; i < n; i++) different += a[i] != b[i];
    printf("%-10s %zu of %zu values differ %s\n", name, different, n, different ? "FAIL" : "OK");
    failures += different > 0;
}

/* ---- the same slot in other batches ---------------------------------------------------------------------
 */

/* Each slot alone, under another bound; of a group the first one, where it is to be small. */
static void check_alone(const batch *b, const gr_bf16 *all)
{
    const size_t row = (size_t)b->h.heads * b->h.head_dim;
    gr_bf16 *got = host(b->n * row * sizeof(*got));
    memcpy(got, all, b->n * row * sizeof(*got));
    for (uint32_t g = 0; g < b->n_groups; g++)
        for (uint32_t s = b->group_first[g]; s < b->group_first[g + 1] && !(small && s > b->group_first[g]);
             s++) {
            const uint32_t first[2] = {0, 1}, member[1] = {0};
            launch l = {.n = 1,
                        .n_groups = 1,
                        .max_length = b->max_length + 1000,
                        .length = b->length + s,
                        .member = member,
                        .group_first = first,
                        .shared = b->shared + g,
                        .table = b->table + (size_t)s * b->stride,
                        .qkv = b->qkv + (size_t)s * width(b)};
            gr_bf16 *one = run(b, &l);
            memcpy(got + s * row, one, row * sizeof(*one));
            free(one);
        }
    same("alone", all, got, b->n * row);
    free(got);
}

/* Slots anywhere, groups the other way round, a third of the slots gone: some still in their group with
 * length 0, some in none; more slots that are in none. */
static void check_moved(const batch *b, const gr_bf16 *all)
{
    const uint32_t n = b->n + 5;
    const size_t row = (size_t)b->h.heads * b->h.head_dim;
    uint32_t *length = host(n * 4), *shared = host(b->n_groups * 4), *first = host((b->n_groups + 1) * 4);
    uint32_t *table = host((size_t)n * b->stride * 4), *member = host(n * 4), *place = host(n * 4), used = 0;
    gr_bf16 *qkv = host((size_t)n * width(b) * sizeof(*qkv)), *want = host(n * row * sizeof(*want));
    memset(length, 0, n * 4);
    memset(table, 0xFF, (size_t)n * b->stride * 4);
    memset(qkv, 0xFF, (size_t)n * width(b) * sizeof(*qkv));
    memset(want, 0, n * row * sizeof(*want));
    for (uint32_t i = 0; i < n; i++) place[i] = i;
    shuffle(place, n);
    for (uint32_t g = 0; g < b->n_groups; g++) {
        const uint32_t from = b->n_groups - 1 - g;
        shared[g] = b->shared[from];
        first[g] = used;
        for (uint32_t s = b->group_first[from + 1]; s-- > b->group_first[from];) {
            const uint32_t to = place[s], chance = random_below(6);
            if (chance) member[used++] = to;
            if (chance < 2) continue;
            length[to] = b->length[s];
            memcpy(table + (size_t)to * b->stride, b->table + (size_t)s * b->stride, b->stride * 4);
            memcpy(qkv + (size_t)to * width(b), b->qkv + (size_t)s * width(b), width(b) * sizeof(*qkv));
            memcpy(want + to * row, all + s * row, row * sizeof(*want));
        }
    }
    first[b->n_groups] = used;
    launch l = {n, b->n_groups, b->max_length + 300, length, member, first, shared, table, qkv, 0};
    gr_bf16 *got = run(b, &l);
    same("moved", want, got, n * row);
    void *const mine[] = {length, shared, first, table, member, place, qkv, want, got};
    for (size_t i = 0; i < sizeof(mine) / sizeof(*mine); i++) free(mine[i]);
}

/* scores: NULL, or what they are, scale 0 for 1 / sqrt(D). */
static void set_scores(batch *b, const gr_scores *scores)
{
    const float scale = b->scores.scale;
    if (!scores) return;
    b->scores = *scores;
    if (!scores->scale) b->scores.scale = scale;
}

static void check_attention(uint32_t heads, uint32_t kv_heads, uint32_t head_dim, uint32_t n_groups,
                            uint32_t group, uint32_t longest, bool invariance, const gr_scores *scores)
{
    static const uint32_t shares[] = {0, 16, GR_CU_DECODE_PIECE, 112, GR_CU_DECODE_PIECE + 16};
    if (small && kv_heads > 2) heads = heads / kv_heads * 2, kv_heads = 2;
    batch b = batch_new(heads, kv_heads, head_dim, n_groups, group);
    set_scores(&b, scores);
    for (uint32_t g = 0; g < n_groups; g++) {
        b.shared[g] = shares[random_below(5)];
        if (b.shared[g] >= longest) b.shared[g] = 0;
        for (uint32_t s = g * group; s < (g + 1) * group; s++)
            b.length[s] = random_below(7) ? b.shared[g] + 1 + random_below(longest - b.shared[g]) : 0;
    }
    if (n_groups == 1) b.length[0] = longest;
    batch_fill(&b);
    launch l = launch_of(&b);
    gr_bf16 *out = run(&b, &l);
    compare("attention", &b, out);
    if (invariance) {
        gr_bf16 *again = run(&b, &l);
        same("again", out, again, (size_t)b.n * heads * head_dim);
        free(again);
        check_alone(&b, out);
        check_moved(&b, out);
    }
    free(out);
    batch_free(&b);
}

/* Slots of `each` rows over the same keys, each of which sees one more than the one before it; the last ones
 * of some are empty. Read at once they have the bits that they have one by one. */
static void check_rows(uint32_t heads, uint32_t kv_heads, uint32_t head_dim, uint32_t each, uint32_t longest,
                       const gr_scores *scores)
{
    enum { GROUPS = 3, GROUP = 4 };
    static const uint32_t shares[GROUPS] = {0, 16, GR_CU_DECODE_PIECE};
    batch b = batch_new(heads, kv_heads, head_dim, GROUPS, GROUP * each);
    set_scores(&b, scores);
    uint32_t fed[GROUPS * GROUP];
    for (uint32_t i = 0; i < GROUPS * GROUP; i++) {
        const uint32_t shared = shares[i / GROUP], first = i * each;
        fed[i] = random_below(5) ? 1 + random_below(each) : 0;
        for (uint32_t r = 0; r < each; r++) b.length[first + r] = 0;
        if (fed[i]) b.length[first] = shared + each + 1 + random_below(longest - shared - each);
        b.shared[i / GROUP] = shared;
    }
    b.length[0] = GR_CU_DECODE_PIECE + each / 2; /* rows on both sides of a piece's end */
    fed[0] = each;
    batch_fill(&b);
    for (uint32_t i = 0; i < GROUPS * GROUP; i++)
        for (uint32_t first = i * each, last = b.length[first], r = 0; r < each; r++) {
            b.length[first + r] = r < fed[i] ? last - (fed[i] - 1 - r) : 0;
            if (r)
                memcpy(b.table + (size_t)(first + r) * b.stride, b.table + (size_t)first * b.stride,
                       b.stride * sizeof(*b.table));
        }
    launch l = launch_of(&b);
    gr_bf16 *apart = run(&b, &l);
    l.each = each;
    gr_bf16 *at_once = run(&b, &l);
    compare("rows", &b, at_once);
    same("rows", apart, at_once, (size_t)b.n * heads * head_dim);
    free(apart);
    free(at_once);
    batch_free(&b);
}

/* Any number of rows that read a piece together: of few heads and many slots, or of many heads and few. */
static void check_counts(void)
{
    static const uint32_t per_kv[] = {8, 7, 4, 2, 1};
    for (uint32_t rows = 1; rows <= 40; rows += small ? 3 : 1) {
        uint32_t i = 0;
        while (rows % per_kv[i]) i++;
        check_attention(per_kv[i], 1, rows % 3 ? 64 : 128, 1, rows / per_kv[i], 300, !small, NULL);
    }
}

/* The smallest numbers of FP8 count, in keys and in values. */
static void check_tiny(void)
{
    batch b = batch_new(8, 2, 128, 1, 3);
    tiny = true;
    b.shared[0] = 32;
    for (uint32_t s = 0; s < b.n; s++) b.length[s] = 50 + 60 * s;
    batch_fill(&b);
    tiny = false;
    for (uint32_t i = 0; i < b.n * b.h.heads; i++) {
        gr_bf16 *q = b.qkv + (size_t)(i / b.h.heads) * width(&b) + i % b.h.heads * b.h.head_dim;
        q[0] = 0;
        for (uint32_t c = 1; c < b.h.head_dim; c++) q[c] = to_bf16(256 * of_bf16(q[c]));
    }
    launch l = launch_of(&b);
    gr_bf16 *out = run(&b, &l);
    compare_from("subnormal", &b, out, 1);
    free(out);
    batch_free(&b);
}

/* ---- in one kernel --------------------------------------------------------------------------------------
 */

typedef struct fused {
    batch b;
    gr_bf16 *q_norm, *k_norm, *raw; /* device */
    float *frequency;
    int32_t *position;
    uint32_t *slot, *length, *table;
} fused;

/* Lengths to `longest`, some at the edges of blocks; all `exact` where that is not 0. */
static fused fused_new(uint32_t heads, uint32_t kv_heads, uint32_t n, uint32_t longest, uint32_t exact,
                       bool norms)
{
    static const uint32_t edges[] = {1, 15, 16, 17, 129, 0, 512, 513};
    fused f = {.b = batch_new(heads, kv_heads, 128, n, 1)};
    batch *b = &f.b;
    int32_t position[32];
    uint32_t slot[32];
    float frequency[64];
    for (uint32_t s = 0; s < n; s++) {
        b->shared[s] = 0;
        b->length[s] = exact ? exact : n > 2 && s < 8 ? edges[s] : 1 + random_below(longest);
    }
    batch_fill(b);
    for (uint32_t s = 0; s < n; s++) {
        const uint32_t last = b->length[s] ? b->length[s] - 1 : 0;
        position[s] = (int32_t)last;
        slot[s] =
            b->length[s] ? b->table[(size_t)s * b->stride + last / BLOCK] * BLOCK + last % BLOCK : UINT32_MAX;
    }
    for (int i = 0; i < 64; i++) frequency[i] = powf(1e4f, -(float)i / 64);
    f.frequency = device_of(frequency, sizeof(frequency));
    b->h.frequency = f.frequency;
    b->h.eps = 1e-6f;
    f.position = device_of(position, n * 4);
    f.slot = device_of(slot, n * 4);
    f.length = device_of(b->length, n * 4);
    f.table = device_of(b->table, (size_t)n * b->stride * 4);
    f.raw = device_of(b->qkv, (size_t)n * width(b) * 2);
    for (int i = 0; i < 2 && norms; i++) {
        gr_bf16 w[128];
        for (int k = 0; k < 128; k++) w[k] = to_bf16(1 + 0.3f * random_value());
        *(i ? &f.k_norm : &f.q_norm) = device_of(w, sizeof(w));
    }
    return f;
}

static void fused_free(fused *f)
{
    void *const all[] = {f->q_norm,   f->k_norm, f->raw,    f->frequency,
                         f->position, f->slot,   f->length, f->table};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) CUDA(cudaFree(all[i]));
    batch_free(&f->b);
}

static gr_bf16 *run_fused(const fused *f, gr_bf16 *kv)
{
    const size_t outs = (size_t)f->b.n * f->b.h.heads * 128;
    gr_bf16 *out = device(outs * 2), *result = host(outs * 2);
    gr_cu_decode_fused_run(0,
                           &(gr_cu_decode_fused){.heads = f->b.h,
                                                 .qkv = f->raw,
                                                 .q_norm = f->q_norm,
                                                 .k_norm = f->k_norm,
                                                 .position = f->position,
                                                 .slot = f->slot,
                                                 .length = f->length,
                                                 .table = f->table,
                                                 .table_stride = f->b.stride,
                                                 .n = f->b.n,
                                                 .kv = kv,
                                                 .out = out},
                           f->b.scores.scale);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(result, out, outs * 2, cudaMemcpyDeviceToHost));
    CUDA(cudaFree(out));
    return result;
}

/* Values that may differ by a rounding. */
static void near(const char *name, const gr_bf16 *a, const gr_bf16 *b, size_t n)
{
    size_t wrong = 0, other = 0;
    for (size_t i = 0; i < n; i++) {
        const float x = of_bf16(a[i]), y = of_bf16(b[i]);
        other += a[i] != b[i];
        wrong += a[i] != b[i] && !(fabsf(x - y) <= 4e-3f + 0x1p-7f * fabsf(x));
    }
    printf("%-10s %zu of %zu values far away, %zu differ %s\n", name, wrong, n, other, wrong ? "FAIL" : "OK");
    failures += wrong > 0;
}

/* In one kernel against three: rotation, pieces, combining. */
static void check_fused(uint32_t heads, uint32_t kv_heads, uint32_t n, uint32_t longest, bool norms)
{
    fused f = fused_new(heads, kv_heads, n, longest, 0, norms);
    batch *b = &f.b;
    const size_t pool = pool_bytes(b) / sizeof(gr_bf16), outs = (size_t)n * heads * 128;
    gr_bf16 *first = b->d_kv, *kv = device_of(b->kv, pool * 2), *again = device_of(b->kv, pool * 2);
    gr_bf16 *qkv = device((size_t)n * width(b) * 2), *pools[2] = {host(pool * 2), host(pool * 2)};
    gr_cu_qk_rope_store(0, &b->h, f.raw, f.q_norm, f.k_norm, f.position, f.slot, qkv, first, n);
    CUDA(cudaMemcpy(b->qkv, qkv, (size_t)n * width(b) * 2, cudaMemcpyDeviceToHost));
    launch l = launch_of(b);
    gr_bf16 *want = run(b, &l), *got = run_fused(&f, kv), *repeated = run_fused(&f, again);
    printf("fused      heads %u/%u, %u slots, lengths to %u%s\n", heads, kv_heads, n, b->max_length,
           norms ? ", normed" : "");
    near("fused", want, got, outs);
    same("fused", got, repeated, outs);
    CUDA(cudaMemcpy(pools[0], first, pool * 2, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(pools[1], kv, pool * 2, cudaMemcpyDeviceToHost));
    near("fused pool", pools[0], pools[1], pool);
    CUDA(cudaFree(kv));
    CUDA(cudaFree(again));
    CUDA(cudaFree(qkv));
    free(pools[0]), free(pools[1]), free(want), free(got), free(repeated);
    fused_free(&f);
}

/* ---- blocks ---------------------------------------------------------------------------------------------
 */

static void check_copy(uint32_t layers, uint32_t blocks, uint64_t elems, uint32_t n)
{
    const uint64_t layer = blocks * elems, total = layers * layer;
    gr_bf16 *kv = host(total * 2), *got = host(total * 2);
    uint32_t *src = host(n * 4), *dst = host(n * 4);
    for (uint64_t i = 0; i < total; i++) kv[i] = (gr_bf16)random_u32();
    for (uint32_t i = 0; i < n; i++) { /* from the first half to the second */
        src[i] = random_below(blocks / 2);
        dst[i] = blocks / 2 + i;
    }
    gr_bf16 *d_kv = device_of(kv, total * 2);
    uint32_t *d_src = device_of(src, n * 4), *d_dst = device_of(dst, n * 4);
    gr_cu_kv_copy(0, d_kv, layers, layer * 2, elems * 2, d_src, d_dst, n);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(got, d_kv, total * 2, cudaMemcpyDeviceToHost));
    for (uint32_t l = 0; l < layers; l++)
        for (uint32_t i = 0; i < n; i++)
            memcpy(kv + l * layer + dst[i] * elems, kv + l * layer + src[i] * elems, elems * 2);
    printf("kv_copy %u layers, %u of %u blocks: ", layers, n, blocks);
    same("", kv, got, total);
    CUDA(cudaFree(d_kv));
    CUDA(cudaFree(d_src));
    CUDA(cudaFree(d_dst));
    free(kv);
    free(got);
    free(src);
    free(dst);
}

/* ---- products -------------------------------------------------------------------------------------------
 */

typedef struct product {
    uint32_t t, in, out;
    bool norm, bias, add, logits, activate;
    gr_bf16 *x, *w, *g, *b,
        *c; /* x [t, in], w [out, in], factors of the norm [in], bias [out], added [t, ld] */
} product;

/* Behind a prime number of them they repeat: rows of a matrix differ, and millions take no time. */
static gr_bf16 *random_bf16(size_t n, float scale)
{
    enum { PRIME = 65537 };
    gr_bf16 *x = host(n * sizeof(*x));
    for (size_t i = 0; i < n; i++) x[i] = i < PRIME ? to_bf16(scale * random_value()) : x[i - PRIME];
    return x;
}

/* x normed: what is multiplied is x times the factors, rounded. */
static void norm_row(const product *p, uint32_t row, double *to)
{
    const gr_bf16 *x = p->x + (size_t)row * p->in;
    double sum = 0;
    for (uint32_t i = 0; i < p->in; i++) sum += (double)of_bf16(x[i]) * (double)of_bf16(x[i]);
    const double inverse = 1 / sqrt(sum / p->in + 1e-6);
    for (uint32_t i = 0; i < p->in; i++) {
        const double v = (double)of_bf16(x[i]);
        to[i] = p->norm ? inverse * (double)of_bf16(to_bf16((float)(v * (double)of_bf16(p->g[i])))) : v;
    }
}

static double dot(const product *p, const double *x, uint32_t row)
{
    const gr_bf16 *w = p->w + (size_t)row * p->in;
    double sum[4] = {0}; /* in is a multiple of 512; sums that need not wait for each other */
    for (uint32_t i = 0; i < p->in; i += 4)
        for (uint32_t j = 0; j < 4; j++) sum[j] += x[i + j] * (double)of_bf16(w[i + j]);
    return sum[0] + sum[1] + sum[2] + sum[3];
}

static void *run_product(const product *p, uint32_t ld)
{
    const size_t size = p->logits ? 4 : 2, bytes = (size_t)p->t * ld * size;
    void *x = device_of(p->x, (size_t)p->t * p->in * 2), *w = device_of(p->w, (size_t)p->out * p->in * 2),
         *g = device_of(p->g, p->in * 2u), *b = device_of(p->b, p->out * 2u), *y = device(bytes);
    if (p->add) CUDA(cudaMemcpy(y, p->c, bytes, cudaMemcpyHostToDevice)); /* in place */
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < 1 + !p->add;
         i++) /* twice where that is the same: the second is chained to the first */
        gr_cu_decode_product_run(0, &(gr_cu_decode_product){.x = x,
                                                            .w = w,
                                                            .y = p->logits ? NULL : y,
                                                            .logits = p->logits ? y : NULL,
                                                            .bias = p->bias ? b : NULL,
                                                            .add = p->add ? y : NULL,
                                                            .norm = p->norm ? g : NULL,
                                                            .scale = 0.5f,
                                                            .eps = 1e-6f,
                                                            .t = p->t,
                                                            .in = p->in,
                                                            .out = p->out,
                                                            .ld = ld,
                                                            .activate = p->activate});
    CUDA(cudaGetLastError());
    void *result = host(bytes), *const all[] = {x, w, g, b, y};
    CUDA(cudaMemcpy(result, y, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) CUDA(cudaFree(all[i]));
    return result;
}

static double wanted(const product *p, const double *x, uint32_t row, uint32_t column, uint32_t ld)
{
    const double z = dot(p, x, column);
    if (p->activate) return z / (1 + exp(-z)) * dot(p, x, column + ld);
    return 0.5 * z + (p->bias ? (double)of_bf16(p->b[column]) : 0) +
           (p->add ? (double)of_bf16(p->c[(size_t)row * ld + column]) : 0);
}

/* The last row, with none beside it, has the bits that it has among all: up to 8 rows meet nowhere. */
static bool alone(const product *p, uint32_t ld, const void *all)
{
    const size_t size = p->logits ? 4 : 2, row = p->t - 1;
    product one = *p;
    one.t = 1;
    one.x += row * p->in;
    one.c += row * ld;
    void *got = run_product(&one, ld);
    const bool same_bits = !memcmp(got, (const char *)all + row * ld * size, ld * size);
    free(got);
    return same_bits;
}

static void check_product(product p)
{
    printf("product    %u x %u x %u%s%s%s%s%s: ", p.t, p.out, p.in, p.norm ? ", normed" : "",
           p.bias ? ", bias" : "", p.add ? ", added" : "", p.logits ? ", logits" : "",
           p.activate ? ", activated" : "");
    fflush(stdout); /* what does not end has a name */
    const uint32_t ld = p.activate ? p.out / 2 : p.out;
    p.x = random_bf16((size_t)p.t * p.in, 1);
    p.w = random_bf16((size_t)p.out * p.in, 1 / sqrtf((float)p.in));
    p.g = random_bf16(p.in, 1);
    p.b = random_bf16(p.out, 1);
    p.c = random_bf16((size_t)p.t * ld, 1);
    void *got = run_product(&p, ld), *again = run_product(&p, ld);
    double *x = host(p.in * sizeof(*x)), most = 0;
    const double least = p.logits ? 1e-4 : 1e-3, share = p.logits ? 0 : 0x1p-8;
    uint64_t wrong = 0;
    for (uint32_t row = 0; row < p.t; row++) {
        norm_row(&p, row, x);
        for (uint32_t i = 0; i < ld; i++) {
            const size_t at = (size_t)row * ld + i;
            const double want = wanted(&p, x, row, i, ld),
                         y = p.logits ? (double)((float *)got)[at] : (double)of_bf16(((gr_bf16 *)got)[at]);
            most = fabs(y - want) > most ? fabs(y - want) : most;
            wrong += !(fabs(y - want) <= least + share * fabs(want));
        }
    }
    const bool repeats = !memcmp(got, again, (size_t)p.t * ld * (p.logits ? 4 : 2)),
               by_itself = p.t > 8 || alone(&p, ld, got), ok = !wrong && repeats && by_itself;
    printf("max abs %.2e, %llu wrong, %s, %s %s\n", most, (unsigned long long)wrong,
           repeats ? "repeats" : "does not repeat", by_itself ? "alone alike" : "other bits alone",
           ok ? "OK" : "FAIL");
    failures += !ok;
    void *const mine[] = {p.x, p.w, p.g, p.b, p.c, got, again, x};
    for (size_t i = 0; i < sizeof(mine) / sizeof(*mine); i++) free(mine[i]);
}

enum { CHAIN = 1024, LINKS = 40 };

/* x through LINKS products one behind the other, the first of them behind a copy. */
static void run_chain(cudaStream_t st, const gr_bf16 *from, gr_bf16 *x, gr_bf16 *y, const gr_bf16 *w,
                      const gr_bf16 *norm)
{
    CUDA(cudaMemcpyAsync(x, from, (size_t)CHAIN * 2, cudaMemcpyDeviceToDevice, st));
    for (int i = 0; i < LINKS; i++)
        gr_cu_decode_product_run(st, &(gr_cu_decode_product){.x = i % 2 ? y : x,
                                                             .w = w + (size_t)(i % 4) * CHAIN * CHAIN,
                                                             .y = i % 2 ? x : y,
                                                             .norm = norm,
                                                             .scale = 1,
                                                             .eps = 1e-6f,
                                                             .t = 1,
                                                             .in = CHAIN,
                                                             .out = CHAIN,
                                                             .ld = CHAIN});
    CUDA(cudaGetLastError());
}

/* As a captured graph, again and again, and with the end of each waited for: the same bits. */
static void check_captured(void)
{
    cudaStream_t st;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    gr_bf16 *all = random_bf16((size_t)CHAIN * (4 * CHAIN + 2), 0.1f),
            *d = device_of(all, (size_t)CHAIN * (4 * CHAIN + 2) * 2);
    gr_bf16 *from = d, *norm = d + CHAIN, *w = d + 2 * (size_t)CHAIN, *x = device(CHAIN * 2u),
            *y = device(CHAIN * 2u);
    gr_bf16 want[CHAIN], got[CHAIN];
    bool ok = true;
    CUDA(cudaStreamCreate(&st));
    run_chain(st, from, x, y, w, norm);
    CUDA(cudaStreamSynchronize(st));
    CUDA(cudaMemcpy(want, x, sizeof(want), cudaMemcpyDeviceToHost));
    CUDA(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal));
    run_chain(st, from, x, y, w, norm);
    CUDA(cudaStreamEndCapture(st, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < (small ? 3 : 50); i++) {
        for (int n = 0; n < 1 + i % 3; n++) CUDA(cudaGraphLaunch(exec, st));
        CUDA(cudaStreamSynchronize(st));
        CUDA(cudaMemcpy(got, x, sizeof(got), cudaMemcpyDeviceToHost));
        ok = ok && !memcmp(want, got, sizeof(got));
    }
    printf("product    %d one behind the other, captured: %s\n", LINKS, ok ? "OK" : "FAIL");
    failures += !ok;
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(st));
    void *const mine[] = {d, x, y};
    for (size_t i = 0; i < sizeof(mine) / sizeof(*mine); i++) CUDA(cudaFree(mine[i]));
    free(all);
}

/* Those whose weights the CTAs hold at once (up to 12 tiles of 8 rows of 64 numbers a warp) on 132
 * multiprocessors: one to four tiles each, one to three pairs, of one to six chunks; the last CTA has less
 * than the others; beside them the first that are held no more. Cards with other numbers have other borders.
 */
static void check_held(void)
{
    static const uint32_t shapes[][3] = {{1, 1040, 3072}, {3, 2096, 3072}, {8, 3152, 2048}, {1, 4208, 1536},
                                         {5, 1040, 2048}, {2, 2096, 1024}, {1, 4096, 1024}, {7, 1024, 3072},
                                         {8, 4224, 512},  {4, 16, 512},    {2, 4240, 1536}, {3, 2128, 3072},
                                         {6, 1040, 3584}, {4, 3168, 2560}};
    static const uint32_t closed[][3] = {{1, 6144, 1024}, {8, 6320, 1024}, {3, 2128, 1536}, {2, 2096, 2048},
                                         {5, 4208, 1536}, {4, 16, 512},    {7, 6352, 1024}, {6, 2128, 3072}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        const product p = {.t = shapes[i][0], .out = shapes[i][1], .in = shapes[i][2], .add = true};
        check_product(p);
        check_product((product){.t = p.t, .out = p.out, .in = p.in, .norm = true, .bias = true});
    }
    for (size_t i = 0; i < sizeof(closed) / sizeof(*closed); i++)
        check_product((product){.t = closed[i][0],
                                .out = closed[i][1],
                                .in = closed[i][2],
                                .norm = i % 3 != 1,
                                .activate = true});
}

static void check_products(void)
{
    static const uint32_t rows[] = {1, 2, 3, 4, 5, 8, 9, 11, 16}, ins[] = {512, 1024, 1536, 2560, 4096},
                          outs[] = {16, 48, 1040, 2112, 3168, 4224, 6400, 6336};
    if (!gr_cu_decode_product_takes(NULL, 1, 512, 16)) return;
    for (uint32_t i = 0; i < (small ? 9u : 45u); i++) {
        const uint32_t t = rows[i % 9], in = ins[i % 5], out = outs[small ? i % 3 : (i * 3 + i / 8) % 8];
        check_product((product){.t = t, .in = in, .out = out});
        check_product((product){.t = t, .in = in, .out = out, .norm = true, .bias = i % 2});
        check_product((product){.t = t, .in = in, .out = out, .add = true, .bias = i % 3 == 0});
        check_product((product){.t = t, .in = in, .out = out, .logits = true});
        check_product((product){.t = t, .in = in, .out = out, .norm = i % 2, .activate = true});
    }
    check_held();
    check_captured();
    check_product((product){.t = 4, .in = 12288, .out = small ? 64 : 2048, .add = true});
}

/* ---- bench ----------------------------------------------------------------------------------------------
 */

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

enum { RUNS = 15, LAUNCHES = 28 };

typedef struct bench {
    gr_cu_heads h;
    gr_cu_decode d;
    gr_cu_paged p;
    gr_bf16 *qkv, *out;
    void *work, *ws;
} bench;

static void bench_plan(const bench *b)
{
    gr_cu_decode_plan(0, &b->h, &b->d, 0, b->p.table, b->p.table_stride, b->work);
}

static void bench_attention(const bench *b)
{
    gr_cu_decode_attention(0, &b->p, &b->d, b->qkv, b->out, b->work, b->ws);
}

/* Microseconds of one launch: median of RUNS times LAUNCHES one after another, as the layers of a step are.
 */
static double time_of(void (*what)(const bench *), const bench *b)
{
    cudaEvent_t begin, end;
    float ms[RUNS];
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    for (int r = -2; r < RUNS; r++) {
        CUDA(cudaEventRecord(begin, 0));
        for (int i = 0; i < LAUNCHES; i++) what(b);
        CUDA(cudaEventRecord(end, 0));
        CUDA(cudaEventSynchronize(end));
        if (r >= 0) CUDA(cudaEventElapsedTime(&ms[r], begin, end));
    }
    CUDA(cudaGetLastError());
    qsort(ms, RUNS, sizeof(*ms), by_value);
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
    return (double)ms[RUNS / 2] * 1e3 / LAUNCHES;
}

/* Groups of `group` slots over a prompt of which `shared` keys stand once; own keys 1..own each, or exactly
 * own. */
static void bench_case(uint32_t heads, uint32_t kv_heads, uint32_t head_dim, uint32_t n_groups,
                       uint32_t group, uint32_t shared, uint32_t own, bool exact)
{
    batch b = batch_new(heads, kv_heads, head_dim, n_groups, group);
    double keys = 0;
    for (uint32_t g = 0; g < n_groups; g++) {
        b.shared[g] = shared;
        keys += shared;
        for (uint32_t s = g * group; s < (g + 1) * group; s++) {
            const uint32_t mine = exact ? own : 1 + random_below(own);
            b.length[s] = shared + mine;
            keys += mine;
        }
    }
    b.max_length = shared + own;
    b.stride = (b.max_length + BLOCK - 1) / BLOCK;
    b.n_blocks = n_groups * (shared / BLOCK) + b.n * (own / BLOCK + 2);
    b.table = host((size_t)b.n * b.stride * 4);
    fill_tables(&b);
    b.kv = host(pool_bytes(&b)); /* numbers in either type */
    for (size_t i = 0; i < pool_bytes(&b); i++) b.kv[i] = (char)(random_u32() & 0x3f);
    b.qkv = host((size_t)b.n * width(&b) * 2);
    for (size_t i = 0; i < (size_t)b.n * width(&b); i++) b.qkv[i] = to_bf16(random_value());
    b.d_kv = device_of(b.kv, pool_bytes(&b));
    bench m = {.h = b.h,
               .d = {.length = device_of(b.length, b.n * 4),
                     .member = device_of(b.member, b.n * 4),
                     .group_first = device_of(b.group_first, (n_groups + 1) * 4),
                     .shared = device_of(b.shared, n_groups * 4),
                     .n = b.n,
                     .n_groups = n_groups,
                     .max_length = b.max_length},
               .p = {.scores = b.scores,
                     .heads = b.h,
                     .kv = b.d_kv,
                     .table = device_of(b.table, (size_t)b.n * b.stride * 4),
                     .table_stride = b.stride},
               .qkv = device_of(b.qkv, (size_t)b.n * width(&b) * 2),
               .out = device((size_t)b.n * heads * head_dim * 2)};
    m.work = device(gr_cu_decode_work_bytes(&m.h, b.n, b.max_length));
    m.ws = device(gr_cu_decode_attention_ws(&m.h, b.n, b.max_length));
    bench_plan(&m);
    const double us = time_of(bench_attention, &m), plan_us = time_of(bench_plan, &m);
    const double bytes = keys / BLOCK * (double)gr_cu_kv_block(&b.h), gbps = bytes / us * 1e-3;
    printf("decode attention%s heads %u/%u D %u, %u x %u slots, shared %u, own %s%u: %.1f us, %.1f MB, %.0f "
           "GB/s, "
           "%.1f %% of %.0f; plan %.1f us a step\n",
           fp8 ? " FP8" : "", heads, kv_heads, head_dim, n_groups, group, shared, exact ? "" : "1..", own, us,
           bytes * 1e-6, gbps, 100 * gbps / COPY_GBPS, COPY_GBPS, plan_us);
    void *const mine[] = {(void *)m.d.length,
                          (void *)m.d.member,
                          (void *)m.d.group_first,
                          (void *)m.d.shared,
                          (void *)m.p.table,
                          m.qkv,
                          m.out,
                          m.work,
                          m.ws};
    for (size_t i = 0; i < sizeof(mine) / sizeof(*mine); i++) CUDA(cudaFree(mine[i]));
    batch_free(&b);
}

/* Microseconds of each of LAUNCHES launches in a captured graph: median of RUNS. */
static double graph_time(void (*what)(const void *, cudaStream_t), const void *arg)
{
    cudaStream_t st;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    float ms[RUNS];
    CUDA(cudaStreamCreate(&st));
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    what(arg, st);
    CUDA(cudaStreamSynchronize(st));
    CUDA(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal));
    what(arg, st);
    CUDA(cudaStreamEndCapture(st, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int r = -2; r < RUNS; r++) {
        CUDA(cudaEventRecord(begin, st));
        CUDA(cudaGraphLaunch(exec, st));
        CUDA(cudaEventRecord(end, st));
        CUDA(cudaEventSynchronize(end));
        if (r >= 0) CUDA(cudaEventElapsedTime(&ms[r], begin, end));
    }
    qsort(ms, RUNS, sizeof(*ms), by_value);
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(st));
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
    return (double)ms[RUNS / 2] * 1e3 / LAUNCHES;
}

/* Few slots: rotation, pieces and combining one after the other, or in one, as a captured graph of LAUNCHES.
 */
typedef struct few {
    fused f;
    gr_cu_decode d;
    gr_cu_paged p;
    gr_bf16 *qkv, *out;
    void *work, *ws;
} few;

static void few_run(const few *b, bool in_one, cudaStream_t st)
{
    const fused *f = &b->f;
    if (in_one) {
        gr_cu_decode_fused_run(st,
                               &(gr_cu_decode_fused){.heads = f->b.h,
                                                     .qkv = f->raw,
                                                     .q_norm = f->q_norm,
                                                     .k_norm = f->k_norm,
                                                     .position = f->position,
                                                     .slot = f->slot,
                                                     .length = f->length,
                                                     .table = f->table,
                                                     .table_stride = f->b.stride,
                                                     .n = f->b.n,
                                                     .kv = f->b.d_kv,
                                                     .out = b->out},
                               f->b.scores.scale);
        return;
    }
    gr_cu_qk_rope_store(st, &f->b.h, f->raw, f->q_norm, f->k_norm, f->position, f->slot, b->qkv, f->b.d_kv,
                        f->b.n);
    gr_cu_decode_attention(st, &b->p, &b->d, b->qkv, b->out, b->work, b->ws);
}

static void few_three(const void *b, cudaStream_t st)
{
    for (int i = 0; i < LAUNCHES; i++) few_run(b, false, st);
}

static void few_one(const void *b, cudaStream_t st)
{
    for (int i = 0; i < LAUNCHES; i++) few_run(b, true, st);
}

static void bench_few(uint32_t heads, uint32_t n, uint32_t length)
{
    few m = {.f = fused_new(heads, 8, n, length, length, true)};
    const batch *b = &m.f.b;
    m.d = (gr_cu_decode){.length = m.f.length,
                         .member = device_of(b->member, n * 4),
                         .group_first = device_of(b->group_first, (b->n_groups + 1) * 4),
                         .shared = device_of(b->shared, b->n_groups * 4),
                         .n = n,
                         .n_groups = b->n_groups,
                         .max_length = length};
    m.p = (gr_cu_paged){
        .scores = b->scores, .heads = b->h, .kv = b->d_kv, .table = m.f.table, .table_stride = b->stride};
    m.qkv = device((size_t)n * width(b) * 2);
    m.out = device((size_t)n * heads * 128 * 2);
    m.work = device(gr_cu_decode_work_bytes(&b->h, n, length));
    m.ws = device(gr_cu_decode_attention_ws(&b->h, n, length));
    gr_cu_decode_plan(0, &b->h, &m.d, 0, m.f.table, b->stride, m.work);
    CUDA(cudaDeviceSynchronize());
    const double three = graph_time(few_three, &m), one = graph_time(few_one, &m),
                 bytes = (double)n * length * 8 * 128 * 4;
    printf("few slots, heads %u/8, %u of %u keys: three kernels %.1f us, one %.1f us, a copy's %.1f\n", heads,
           n, length, three, one, bytes / COPY_GBPS * 1e-3);
    void *const mine[] = {
        (void *)m.d.member, (void *)m.d.group_first, (void *)m.d.shared, m.qkv, m.out, m.work, m.ws};
    for (size_t i = 0; i < sizeof(mine) / sizeof(*mine); i++) CUDA(cudaFree(mine[i]));
    fused_free(&m.f);
}

/* ---- products of few rows: LAUNCHES of them one behind the other, each of weights of its own. ---- */

static gr_bf16 *many_weights(size_t n)
{
    enum { PATTERN = 1 << 20 };
    gr_bf16 *host = random_bf16(PATTERN, 1), *d = device(n * sizeof(*d));
    for (size_t at = 0; at < n; at += PATTERN) {
        const size_t some = n - at < PATTERN ? n - at : PATTERN;
        CUDA(cudaMemcpy(d + at, at ? d : host, some * sizeof(*d), cudaMemcpyDefault));
    }
    free(host);
    return d;
}

static void products_run(const void *arg, cudaStream_t st)
{
    const gr_cu_decode_product *p = arg;
    for (int i = 0; i < LAUNCHES; i++) {
        gr_cu_decode_product one = *p;
        one.w += (size_t)i * p->in * p->out;
        gr_cu_decode_product_run(st, &one);
    }
}

static void bench_product(uint32_t t, uint32_t in, uint32_t out, bool norm, bool activate)
{
    gr_bf16 *x = many_weights((size_t)t * in), *y = device((size_t)t * out * 2), *g = many_weights(in),
            *w = many_weights((size_t)LAUNCHES * in * out);
    const gr_cu_decode_product p = {.x = x,
                                    .w = w,
                                    .y = y,
                                    .norm = norm ? g : NULL,
                                    .add = norm ? NULL : y,
                                    .scale = 1,
                                    .eps = 1e-6f,
                                    .t = t,
                                    .in = in,
                                    .out = out,
                                    .ld = activate ? out / 2 : out,
                                    .activate = activate};
    printf("product of %u rows, %u x %u%s%s: %.2f us, a copy's %.2f\n", t, out, in, norm ? ", normed" : "",
           activate ? ", activated" : "", graph_time(products_run, &p), 2e-3 * in * out / COPY_GBPS);
    void *const mine[] = {x, y, w, g};
    for (size_t i = 0; i < sizeof(mine) / sizeof(*mine); i++) CUDA(cudaFree(mine[i]));
}

static void bench_products(void)
{
    static const uint32_t shapes[][4] = {{1024, 4096, 1, 0},  {2048, 1024, 0, 0},  {1024, 6144, 1, 1},
                                         {3072, 1024, 0, 0},  {4096, 6144, 1, 0},  {4096, 4096, 0, 0},
                                         {4096, 24576, 1, 1}, {12288, 4096, 0, 0}, {4096, 151936, 0, 0}};
    static const uint32_t rows[] = {1, 8, 16};
    for (size_t r = 0; r < 3; r++)
        for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
            bench_product(rows[r], shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3]);
}

/* Of what has no form in FP8. */
static void bench_fewer(void)
{
    if (gr_cu_decode_product_takes(NULL, 1, 512, 16)) bench_products();
    static const uint32_t cases[][2] = {{1, 512},  {4, 512},   {8, 512},   {16, 512}, {1, 4096},
                                        {8, 4096}, {16, 4096}, {1, 16384}, {4, 16384}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        bench_few(i % 2 ? 32 : 16, cases[i][0], cases[i][1]);
}

static void run_bench(void)
{
    bench_case(16, 8, 128, 32, 8, 240, 512, false);   /* 0.6B, 1.7B */
    bench_case(32, 8, 128, 32, 8, 240, 512, false);   /* 8B */
    bench_case(16, 8, 128, 256, 1, 0, 752, false);    /* nothing shared */
    bench_case(16, 8, 128, 4, 8, 240, 512, false);    /* a tail of few */
    bench_case(32, 8, 128, 1, 1, 0, 4096, true);      /* one sequence */
    bench_case(32, 8, 128, 16, 16, 2032, 256, false); /* long prompts */
    bench_case(14, 2, 64, 32, 8, 240, 512, false);
}

static void check_fuses(void)
{
    const gr_cu_heads plain = {.heads = 2, .kv_heads = 1, .head_dim = 128};
    const gr_scores scores = gr_scores_plain(128);
    for (size_t i = 0; i < 6 && gr_cu_decode_fuses(&plain, &scores, 1); i++) {
        static const uint32_t some[][3] = {{16, 8, 1}, {32, 8, 3}, {16, 8, 16},
                                           {28, 4, 9}, {16, 1, 2}, {32, 8, 7}};
        check_fused(some[i][0], some[i][1], some[i][2], small ? 300 : 3000, i != 3);
    }
}

/* Of all sizes and scores, with the pool in one type. */
static void test_attention(void)
{
    static const uint32_t heads[][2] = {{16, 8}, {32, 8}, {14, 2}, {4, 1}, {34, 1}};
    static const uint32_t dims[] = {128, 64, 16, 256, 8, 96, 40};
    static const uint32_t groups[] = {1, 3, 8, 16};
    check_attention(16, 8, 128, 1, 1, 1, true, NULL);
    const uint32_t slots = small ? 5 : 16, long_one = small ? 300 : 700;
    check_attention(16, 8, 128, 1, 1, 700, true, NULL);
    for (size_t h = 0; h < 5; h++)
        for (size_t d = 0; d < 7; d++) {
            const uint32_t group = groups[(h + d) % 4];
            if (fp8 && dims[d] % 16) continue;
            check_attention(heads[h][0], heads[h][1], dims[d], slots / group + 1, group, long_one,
                            d < 2 || h == 2, NULL);
        }
    check_attention(16, 8, 128, small ? 2 : 9, 8, 300, true, NULL);
    gr_bf16 sinks[64];
    for (uint32_t i = 0; i < 64; i++) sinks[i] = to_bf16(3 * random_value());
    const gr_scores kinds[] = {{1, 0, 0, NULL},    {16, 0, 0, NULL},     {17, 0.2f, 0, NULL},
                               {128, 0, 0, sinks}, {250, 0, 0, NULL},    {0, 0, 0, sinks},
                               {0, 0, 2, NULL},    {40, 0.1f, 3, sinks}, {10000, 0, 0, NULL}};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
        for (uint32_t d = 0; d < (small ? 2 : 4); d++)
            check_attention(d % 2 ? 16 : 8, 2, (const uint32_t[]){64, 128, 80, 256}[d], 2, 3,
                            small ? 300 : 900, i < 4, &kinds[i]);
    for (uint32_t each = 2; each < 34; each += each < 8 ? 3 : 14)
        for (size_t h = 0; h < 4; h++)
            for (uint32_t d = 0; d < (small ? 1 : 4); d++)
                check_rows(heads[h][0], heads[h][1], (const uint32_t[]){128, 64, 96, 256}[d], each, 400,
                           NULL);
    check_rows(16, 8, 128, 5, 400, &kinds[1]); /* a window, and capped scores */
    check_rows(16, 8, 128, 5, 400, &kinds[7]);
    check_attention(8, 1, 256, 2, 3, small ? 600 : 900, true, &(gr_scores){512, 0, 0, NULL}); /* as E2B */
    check_attention(8, 2, 128, small ? 1 : 3, 16, small ? 1500 : 5000, false, NULL);
    check_attention(8, 2, 64, 1, 2, 3000, !small, &kinds[5]); /* a sink behind many pieces */
    check_counts();
    check_tiny();
}

int main(int argc, char **argv)
{
    int count = 0;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    if (cudaGetDeviceCount(&count) != cudaSuccess || !count) {
        puts("no CUDA device: skipped");
        return 77;
    }
    const bool only = argc > 1 && !strcmp(argv[1], "--few");
    small = only || (argc > 1 && !strcmp(argv[1], "--small"));
    if (only) {
        check_fuses();
        check_products();
        printf("%s\n", failures ? "FAILED" : "all OK");
        return failures > 0;
    }
    if (argc > 1 && !strcmp(argv[1], "--bench")) {
        for (int i = 0; i < 2; i++) {
            fp8 = i;
            run_bench();
        }
        fp8 = false;
        bench_fewer();
        return 0;
    }
    for (int i = 0; i < 2; i++) {
        fp8 = i;
        test_attention();
    }
    fp8 = false;
    check_fuses();
    check_products();
    check_copy(1, 2, 256, 1);
    check_copy(3, 40, 2 * BLOCK * 8 * 128, 17);
    check_copy(2, 12, 2 * BLOCK * 3 * (16 + 4) / 2, 5); /* as blocks in FP8 */
    printf("%s\n", failures ? "FAILED" : "all OK");
    return failures > 0;
}
