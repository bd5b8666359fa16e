/* ops/model/nf4.c: matrices in NF4, with scales of 8 bits: made, and opened again. */
#include "ops/model/nf4.h"

#include "runtime/base/half.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NF4_ALIGN 64 /* bytes */
#define SMALLEST  1e-38f

/* Quantiles of a normal distribution, of which 0 is one, between -1 and 1. */
static const float values[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

/* ---- the values of 8 bits ------------------------------------------------------------------------------ */

enum { SMALLS = 256, ZERO = 127, DECADES = 7 };

/* Point i of 0.1 to 1 in n equal steps, counted from the end that is nearer. */
static float even(uint32_t i, uint32_t n)
{
    const float step = (1.0f - 0.1f) / (float)n;
    return i < (n + 1) / 2 ? 0.1f + step * (float)i : 1.0f - step * (float)(n - i);
}

/* Each decade has twice as many values as the one below: means of neighbouring even points. */
static void small_values(float out[SMALLS])
{
    static const float powers[DECADES] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1};
    uint32_t at = ZERO;
    out[at++] = 0;
    for (uint32_t e = 0; e < DECADES; e++)
        for (uint32_t i = 0, n = 1u << e; i < n; i++) {
            const float v = powers[e] * ((even(i, n) + even(i + 1, n)) / 2);
            out[2 * ZERO - at] = -v;
            out[at++] = v;
        }
    out[at] = 1;
}

void gr_nf4_values_of(gr_nf4_values *out)
{
    memcpy(out->weight, values, sizeof(values));
    small_values(out->scale);
}

/* The nearest of the rising values; of two as near the lower. */
static uint32_t nearest(const float v[SMALLS], float x)
{
    uint32_t low = 0, high = SMALLS - 1;
    while (low < high) {
        const uint32_t i = (low + high) / 2;
        if ((v[i] + v[i + 1]) / 2 < x)
            low = i + 1;
        else
            high = i;
    }
    return low;
}

/* The largest |x|, or NaN where there is one: their bits are in the same order, NaN's above all. */
static float largest(const float *x, uint64_t n)
{
    int32_t most = 0;
    for (uint64_t i = 0; i < n; i++) {
        const int32_t bits = (int32_t)(gr_bits_of_f32(x[i]) & INT32_MAX);
        most = GR_MAX(most, bits);
    }
    return gr_f32_of_bits((uint32_t)most);
}

/* x of a block over its largest value; blocks that are not full are divided, as bitsandbytes does. */
static void relate(const float *x, uint64_t n, float most, bool full, float *out)
{
    const float m = most < SMALLEST ? SMALLEST : most, inverse = 1.0f / m;
    for (uint64_t i = 0; i < n; i++) {
        const float r = full ? x[i] * inverse : x[i] / m;
        out[i] = r > 1 ? 1 : r < -1 ? -1 : r;
    }
}

/* ---- one matrix ---------------------------------------------------------------------------------------- */

static uint64_t blocks_of(uint64_t n)
{
    return (n + GR_NF4_BLOCK - 1) / GR_NF4_BLOCK;
}

static uint64_t groups_of(uint64_t n)
{
    return (blocks_of(n) + GR_NF4_BLOCKS - 1) / GR_NF4_BLOCKS;
}

gr_nf4 gr_nf4_at(void *at, uint64_t n, uint64_t *bytes)
{
    const uint64_t small = gr_align((n + 1) / 2, NF4_ALIGN),
                   scales = small + gr_align(blocks_of(n), NF4_ALIGN);
    *bytes = gr_align(scales + (groups_of(n) + 1) * sizeof(float), NF4_ALIGN);
    if (!at) return (gr_nf4){.n = n};
    float *s = (float *)(void *)((char *)at + scales);
    return (gr_nf4){n, at, (uint8_t *)at + small, s, s + groups_of(n)};
}

typedef struct nf4_job {
    const gr_nf4 *m;
    const float *w; /* to be made codes */
    float *most;    /* [blocks] */
    float *out;     /* weights that were codes */
} nf4_job;

static uint64_t block_size(const gr_nf4 *m, uint64_t block)
{
    return GR_MIN((uint64_t)GR_NF4_BLOCK, m->n - block * GR_NF4_BLOCK);
}

/* Codes of a block: how many midpoints between values each number is above. Nothing branches, for what a
 * branch would depend on is random. */
static void codes_of(const float x[GR_NF4_BLOCK], uint32_t code[GR_NF4_BLOCK])
{
    for (uint32_t i = 0; i < GR_NF4_BLOCK; i++) code[i] = 0;
    for (uint32_t v = 0; v + 1 < GR_LEN(values); v++) {
        const float middle = (values[v] + values[v + 1]) / 2;
        for (uint32_t i = 0; i < GR_NF4_BLOCK; i++) code[i] += x[i] > middle;
    }
}

static void close_block(const nf4_job *j, uint64_t block)
{
    const uint64_t n = block_size(j->m, block);
    const float *w = j->w + block * GR_NF4_BLOCK, most = largest(w, n);
    uint8_t *to = j->m->codes + block * GR_NF4_BLOCK / 2;
    const bool full = n == GR_NF4_BLOCK;
    float x[GR_NF4_BLOCK] = {0};
    uint32_t code[GR_NF4_BLOCK];
    j->most[block] = full || most > SMALLEST || isnan(most) ? most : SMALLEST;
    relate(w, n, most, full, x);
    codes_of(x, code);
    for (uint64_t i = 0; i < n; i += 2) to[i / 2] = (uint8_t)(code[i] << 4 | code[i + 1]);
}

static void close_rank(void *arg, unsigned rank, unsigned size)
{
    const nf4_job *j = arg;
    uint64_t first, last;
    gr_team_range(blocks_of(j->m->n), 1, rank, size, &first, &last);
    for (uint64_t i = first; i < last; i++) close_block(j, i);
}

static void close_scales(const gr_nf4 *to, float *most)
{
    float v[SMALLS];
    double sum = 0;
    const uint64_t blocks = blocks_of(to->n);
    small_values(v);
    for (uint64_t i = 0; i < blocks; i++) sum += (double)most[i];
    *to->mean = (float)(sum / (double)blocks);
    for (uint64_t i = 0; i < blocks; i++) most[i] -= *to->mean;
    for (uint64_t first = 0; first < blocks; first += GR_NF4_BLOCKS) {
        const uint64_t n = GR_MIN((uint64_t)GR_NF4_BLOCKS, blocks - first);
        const float m = largest(most + first, n);
        to->scales[first / GR_NF4_BLOCKS] = m;
        relate(most + first, n, m, n == GR_NF4_BLOCKS, most + first);
        for (uint64_t i = first; i < first + n; i++) to->small[i] = (uint8_t)nearest(v, most[i]);
    }
}

void gr_nf4_close(gr_team *team, const gr_nf4 *to, const float *w)
{
    nf4_job job = {.m = to, .w = w, .most = gr_malloc(blocks_of(to->n) * sizeof(float))};
    gr_team_run(team, close_rank, &job);
    close_scales(to, job.most);
    free(job.most);
}

static void open_rank(void *arg, unsigned rank, unsigned size)
{
    const nf4_job *j = arg;
    const gr_nf4 *m = j->m;
    float v[SMALLS];
    uint64_t first, last;
    small_values(v);
    gr_team_range(blocks_of(m->n), 1, rank, size, &first, &last);
    for (uint64_t b = first; b < last; b++) {
        const float scaled = v[m->small[b]] * m->scales[b / GR_NF4_BLOCKS], most = scaled + *m->mean;
        float *w = j->out + b * GR_NF4_BLOCK;
        const uint8_t *codes = m->codes + b * GR_NF4_BLOCK / 2;
        for (uint64_t i = 0, n = block_size(m, b); i < n; i++)
            w[i] = values[i % 2 ? codes[i / 2] & 15 : codes[i / 2] >> 4] * most;
    }
}

void gr_nf4_open(gr_team *team, const gr_nf4 *from, float *w)
{
    nf4_job job = {.m = from, .out = w};
    gr_team_run(team, open_rank, &job);
}

/* ---- a bucket ------------------------------------------------------------------------------------------ */

static uint64_t part_bytes(const gr_tensor *t, uint64_t n)
{
    uint64_t bytes = gr_align(n * sizeof(float), NF4_ALIGN);
    if (t->cols) gr_nf4_at(NULL, n, &bytes);
    return bytes;
}

size_t gr_nf4_parts(const gr_model_shape *s, uint32_t bucket, gr_nf4_part out[GR_NF4_PARTS_MAX])
{
    gr_tensor *t = gr_malloc(GR_BUCKET_TENSORS_MAX * sizeof(*t));
    const size_t n = gr_bucket_ranges(s, bucket, t);
    uint64_t at = 0;
    assert(n <= GR_NF4_PARTS_MAX); /* such layers have no experts */
    for (size_t i = 0; i < n; i++) {
        const uint64_t elems = (uint64_t)t[i].rows * GR_MAX(t[i].cols, 1u),
                       end = i + 1 < n ? t[i + 1].offset : gr_bucket_elems(s, bucket);
        out[i] = (gr_nf4_part){.at = at,
                               .bytes = part_bytes(&t[i], elems),
                               .first = t[i].offset,
                               .n = elems,
                               .zeros = end - t[i].offset - elems,
                               .matrix = t[i].cols > 0};
        at += out[i].bytes;
    }
    free(t);
    return n;
}

uint64_t gr_nf4_bucket_bytes(const gr_model_shape *s, uint32_t bucket)
{
    gr_nf4_part part[GR_NF4_PARTS_MAX];
    const size_t n = gr_nf4_parts(s, bucket, part);
    return part[n - 1].at + part[n - 1].bytes;
}

/* Between tensors nothing is kept. */
void gr_nf4_close_bucket(gr_team *team, const gr_model_shape *s, uint32_t bucket, const float *w, void *to)
{
    gr_nf4_part part[GR_NF4_PARTS_MAX];
    const size_t n = gr_nf4_parts(s, bucket, part);
    uint64_t bytes;
    memset(to, 0, part[n - 1].at + part[n - 1].bytes);
    for (const gr_nf4_part *p = part; p < part + n; p++) {
        char *at = (char *)to + p->at;
        const gr_nf4 m = gr_nf4_at(at, p->n, &bytes);
        if (p->matrix)
            gr_nf4_close(team, &m, w + p->first);
        else
            memcpy(at, w + p->first, p->n * sizeof(*w));
    }
}

void gr_nf4_open_bucket(gr_team *team, const gr_model_shape *s, uint32_t bucket, const void *from, float *w)
{
    gr_nf4_part part[GR_NF4_PARTS_MAX];
    const size_t n = gr_nf4_parts(s, bucket, part);
    uint64_t bytes;
    for (const gr_nf4_part *p = part; p < part + n; p++) {
        char *at = (char *)(uintptr_t)from + p->at;
        const gr_nf4 m = gr_nf4_at(at, p->n, &bytes);
        if (p->matrix)
            gr_nf4_open(team, &m, w + p->first);
        else
            memcpy(w + p->first, at, p->n * sizeof(*w));
        memset(w + p->first + p->n, 0, p->zeros * sizeof(*w));
    }
}
