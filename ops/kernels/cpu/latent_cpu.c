/* ops/kernels/cpu/latent_cpu.c: latent attention on the CPU device (ops/kernels/latent.h).
 *
 * Absorbed attention takes a tile of rows (tokens times heads) against all rows of latents that they see, as
 * ops/kernels/cpu/attention_cpu.c does with keys and values: scores kept whole in panels of GR_KC keys, exact
 * maximum, exponentials, their sum and the weighted sum of latents, each in the order of keys. A block holds
 * GR_KV_BLOCK rows of latents, each filled up with zeros to a multiple of 16; they are turned once a tile.
 */
#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "ops/kernels/cpu/cpu.h"
#include "ops/kernels/latent.h"

enum { ROWS = GR_MR };

static uint32_t padded(uint32_t n)
{
    return (n + 15) / 16 * 16;
}

static uint64_t block_floats(const gr_latent_desc *d)
{
    return (uint64_t)GR_KV_BLOCK * padded(gr_latent_row(d));
}

static uint64_t block_bytes(const gr_latent_desc *d)
{
    return gr_align(block_floats(d) * sizeof(float), 256);
}

static uint32_t cached(const gr_tokens *b, uint32_t seq)
{
    return b->cached ? b->cached[seq] : 0;
}

/* Sequences without a table lie in blocks offset / 16 + sequence, then upwards. */
static float *block_at(const gr_latent_desc *d, const gr_tokens *b, uint32_t seq, uint32_t index)
{
    const uint64_t block = b->block_table ? b->block_table[(size_t)seq * b->table_stride + index]
                                          : b->offset[seq] / GR_KV_BLOCK + seq + index;
    return (float *)b->state + block * (block_bytes(d) / sizeof(float));
}

static uint32_t batch_length(const gr_tokens *b)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < b->n_seqs; i++)
        most = GR_MAX(most, cached(b, i) + b->offset[i + 1] - b->offset[i]);
    return most;
}

/* ---- rotation ------------------------------------------------------------------------------------------ */

struct rotate_job {
    const gr_latent_call *c;
    const gr_latent_part *p;
    gr_rope rope;
    float sign;
};

static void rotate_head(const struct rotate_job *j, float *x, const float *cosine, const float *sine)
{
    const bool turns = j->c->d->interleaved;
    const uint32_t step = turns ? 2 : 1, other = turns ? 1 : j->rope.n;
    for (uint32_t i = 0; i < j->rope.n; i++) {
        float *a = x + step * i, *b = a + other;
        const float u = *a, v = *b, s = j->sign * sine[i];
        *a = u * cosine[i] - v * s;
        *b = v * cosine[i] + u * s;
    }
}

static void rotate_rank(void *arg, unsigned rank, unsigned size)
{
    const struct rotate_job *j = arg;
    const gr_tokens *b = j->c->b;
    float cosine[GR_HEAD_DIM_MAX / 2], sine[GR_HEAD_DIM_MAX / 2];
    uint64_t first, last;
    gr_team_range(b->n, 1, rank, size, &first, &last);
    for (uint32_t t = (uint32_t)first, seq = 0; t < last; t++) {
        const uint32_t at = j->c->first + t;
        while (at >= b->offset[seq + 1]) seq++;
        gr_rope_angles(&j->rope, cached(b, seq) + at - b->offset[seq], cosine, sine);
        for (uint32_t h = 0; h < j->p->n; h++)
            rotate_head(j, (float *)j->p->x + (size_t)t * j->p->ld + (size_t)h * j->p->stride, cosine, sine);
    }
}

static void rotate(gr_queue *q, const gr_latent_call *c, const gr_latent_part *p, bool back)
{
    struct rotate_job j = {.c = c, .p = p, .sign = back ? -1 : 1};
    gr_rope_init(&j.rope, &c->d->rope);
    gr_team_run(q->team, rotate_rank, &j);
}

/* ---- absorbed: products of a head ---------------------------------------------------------------------- */

static gr_gemm_job absorb_job(const gr_latent_desc *d, uint32_t tokens)
{
    return (gr_gemm_job){.m = tokens,
                         .n = d->kv_rank,
                         .k = d->nope_dim,
                         .a = {NULL, (size_t)d->heads * gr_latent_head(d), false},
                         .b = {NULL, d->kv_rank, false},
                         .ldc = (size_t)d->heads * gr_latent_row(d)};
}

static gr_gemm_job emit_job(const gr_latent_desc *d, uint32_t tokens)
{
    return (gr_gemm_job){.m = tokens,
                         .n = d->v_dim,
                         .k = d->kv_rank,
                         .a = {NULL, (size_t)d->heads * d->kv_rank, false},
                         .b = {NULL, d->kv_rank, true},
                         .ldc = (size_t)d->heads * d->v_dim};
}

static const float *weights_of(const gr_latent_call *c, uint32_t head)
{
    return (const float *)c->kv + (size_t)head * gr_latent_kv(c->d) * c->d->kv_rank;
}

static void absorb(gr_queue *q, const gr_latent_call *c, const void *queries, void *wide)
{
    const gr_latent_desc *d = c->d;
    gr_gemm_job job = absorb_job(d, c->b->n);
    for (uint32_t h = 0; h < d->heads; h++) {
        job.a.p = (const float *)queries + (size_t)h * gr_latent_head(d);
        job.b.p = weights_of(c, h);
        job.c = (float *)wide + (size_t)h * gr_latent_row(d);
        gr_gemm(q, &job, c->ws);
    }
    for (size_t i = 0; i < (size_t)c->b->n * d->heads; i++)
        memcpy((float *)wide + i * gr_latent_row(d) + d->kv_rank,
               (const float *)queries + i * gr_latent_head(d) + d->nope_dim, d->rope_dim * sizeof(float));
}

static void emit(gr_queue *q, const gr_latent_call *c, const void *mixed, void *out)
{
    const gr_latent_desc *d = c->d;
    gr_gemm_job job = emit_job(d, c->b->n);
    for (uint32_t h = 0; h < d->heads; h++) {
        job.a.p = (const float *)mixed + (size_t)h * d->kv_rank;
        job.b.p = weights_of(c, h) + (size_t)d->nope_dim * d->kv_rank;
        job.c = (float *)out + (size_t)h * d->v_dim;
        gr_gemm(q, &job, c->ws);
    }
}

/* ---- absorbed: rows to blocks -------------------------------------------------------------------------- */

struct store_job {
    const gr_latent_desc *d;
    const gr_tokens *b;
    const float *rows;
};

static void store_rank(void *arg, unsigned rank, unsigned size)
{
    const struct store_job *j = arg;
    const uint32_t row = gr_latent_row(j->d), wide = padded(row);
    uint64_t first, last;
    gr_team_range(j->b->n, 16, rank, size, &first, &last);
    for (uint32_t t = (uint32_t)first, seq = 0; t < last; t++) {
        while (t >= j->b->offset[seq + 1]) seq++;
        const uint32_t position = cached(j->b, seq) + t - j->b->offset[seq];
        float *to = block_at(j->d, j->b, seq, position / GR_KV_BLOCK) + position % GR_KV_BLOCK * wide;
        memcpy(to, j->rows + (size_t)t * row, row * sizeof(float));
        memset(to + row, 0, (wide - row) * sizeof(float));
    }
}

static void store_in(gr_queue *q, const gr_latent_desc *d, const gr_tokens *b, const float *rows)
{
    struct store_job j = {d, b, rows};
    gr_team_run(q->team, store_rank, &j);
}

static void store(gr_queue *q, const gr_latent_call *c, const void *rows)
{
    store_in(q, c->d, c->b, rows);
}

/* ---- absorbed: attention ------------------------------------------------------------------------------- */

struct attend_job {
    const gr_latent_desc *d;
    const gr_tokens *b;
    const gr_simd *v;
    const float *wide;
    float *mixed;
    char *ws;
    uint64_t ws_bytes; /* of one thread */
    uint32_t length;
    uint32_t heads, tokens; /* of a tile */
    atomic_uint next;       /* tile to take: which thread takes it changes nothing */
};

struct tile {
    uint32_t seq, head, heads;
    uint32_t token, tokens, rows;   /* rows = tokens heads, tokens outermost */
    uint32_t keys;                  /* of the first token */
    float *q, *turned, *scores, *o; /* panels of the row, [2][row][16], panels of keys, [ROWS, padded rank] */
};

static size_t panel_at(uint32_t row, uint32_t col)
{
    return ((size_t)(col / GR_KC) * ROWS + row) * GR_LDA + col % GR_KC;
}

static uint64_t panels(uint32_t cols)
{
    return (uint64_t)(cols + GR_KC - 1) / GR_KC * ROWS * GR_LDA;
}

static void tile_layout(gr_workspace *c, const gr_latent_desc *d, uint32_t length, struct tile *t)
{
    t->scores = gr_workspace_floats(c, panels(length));
    t->q = gr_workspace_floats(c, panels(gr_latent_row(d)));
    t->turned = gr_workspace_floats(c, (uint64_t)2 * GR_KV_BLOCK * gr_latent_row(d));
    t->o = gr_workspace_floats(c, (uint64_t)ROWS * padded(d->kv_rank));
}

static size_t query_of(const struct attend_job *j, const struct tile *t, uint32_t row)
{
    return (size_t)(t->token + row / t->heads) * j->d->heads + t->head + row % t->heads;
}

static void load_queries(const struct attend_job *j, const struct tile *t)
{
    const uint32_t n = gr_latent_row(j->d);
    for (uint32_t r = 0; r < t->rows; r++)
        for (uint32_t i = 0; i < n; i += GR_KC)
            j->v->scale(t->q + panel_at(r, i), j->wide + query_of(j, t, r) * n + i, j->d->scale,
                        GR_MIN(n - i, (uint32_t)GR_KC));
}

/* Scores of two blocks of keys, from `key` on. */
static void block_scores(const struct attend_job *j, const struct tile *t, uint32_t key, bool two)
{
    const uint32_t n = gr_latent_row(j->d), side = n * GR_KV_BLOCK;
    for (uint32_t i = 0; i <= two; i++)
        j->v->transpose(block_at(j->d, j->b, t->seq, key / GR_KV_BLOCK + i), padded(n), GR_KV_BLOCK, n,
                        t->turned + i * side, GR_KV_BLOCK);
    for (uint32_t i = 0; i < n; i += GR_KC) {
        const float *b = t->turned + i * GR_KV_BLOCK;
        const gr_mm mm = {t->rows,
                          GR_MIN(n - i, (uint32_t)GR_KC),
                          t->q + panel_at(0, i),
                          b,
                          two ? b + side : NULL,
                          GR_KV_BLOCK,
                          t->scores + panel_at(0, key),
                          GR_LDA,
                          i > 0};
        j->v->mm_rows(&mm);
    }
}

/* Turns the scores of a row into exp(score - max); returns their sum. */
static float row_softmax(const struct attend_job *j, const struct tile *t, uint32_t row)
{
    const uint32_t keys = t->keys + row / t->heads;
    float most = -INFINITY, lanes[16] = {0};
    for (uint32_t k = 0; k < keys; k += GR_KC) {
        const float m = j->v->max(t->scores + panel_at(row, k), GR_MIN(keys - k, (uint32_t)GR_KC));
        most = m > most ? m : most;
    }
    for (uint32_t k = 0; k < keys; k += GR_KC)
        j->v->exp_sum(t->scores + panel_at(row, k), most, lanes, GR_MIN(keys - k, (uint32_t)GR_KC));
    return gr_lanes_sum(lanes);
}

/* o += weights of n keys of one block times their latents, from row `from` on. */
static void add_latents(const struct attend_job *j, const struct tile *t, uint32_t from, uint32_t key,
                        uint32_t n)
{
    const uint32_t ld = padded(gr_latent_row(j->d)), cols = padded(j->d->kv_rank);
    const float *rows = block_at(j->d, j->b, t->seq, key / GR_KV_BLOCK) + key % GR_KV_BLOCK * ld;
    for (uint32_t i = 0; i < cols; i += 32) {
        const gr_mm mm = {t->rows - from,
                          n,
                          t->scores + panel_at(from, key),
                          rows + i,
                          i + 16 < cols ? rows + i + 16 : NULL,
                          ld,
                          t->o + (size_t)from * cols + i,
                          cols,
                          key > 0};
        j->v->mm_rows(&mm);
    }
}

static void attend_tile(const struct attend_job *j, const struct tile *t)
{
    const uint32_t keys = t->keys + t->tokens - 1, rank = j->d->kv_rank;
    float sum[ROWS];
    load_queries(j, t);
    for (uint32_t k = 0; k < keys; k += 2 * GR_KV_BLOCK) block_scores(j, t, k, k + GR_KV_BLOCK < keys);
    for (uint32_t r = 0; r < t->rows; r++) sum[r] = row_softmax(j, t, r);
    for (uint32_t k = 0; k < t->keys; k += GR_KV_BLOCK) /* keys of the first token, then the triangle */
        add_latents(j, t, 0, k, GR_MIN(t->keys - k, (uint32_t)GR_KV_BLOCK));
    for (uint32_t u = 1; u < t->tokens; u++) add_latents(j, t, u * t->heads, t->keys + u - 1, 1);
    for (uint32_t r = 0; r < t->rows; r++)
        j->v->scale(j->mixed + query_of(j, t, r) * rank, t->o + (size_t)r * padded(rank), 1 / sum[r], rank);
}

/* Take tiles in order of sequence, place and heads until none are left. */
static void attend_rank(void *arg, unsigned rank, unsigned size)
{
    struct attend_job *j = arg;
    const gr_tokens *b = j->b;
    const uint32_t parts = (j->d->heads + j->heads - 1) / j->heads;
    gr_workspace c = {.base = j->ws + rank * j->ws_bytes};
    struct tile t = {0};
    uint32_t before = 0; /* tiles of the sequences before t.seq */
    (void)size;
    tile_layout(&c, j->d, j->length, &t);
    for (;;) {
        const uint32_t unit = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed),
                       index = unit / parts;
        for (; t.seq < b->n_seqs; t.seq++) {
            const uint32_t n = b->offset[t.seq + 1] - b->offset[t.seq],
                           n_tiles = (n + j->tokens - 1) / j->tokens;
            if (index < before + n_tiles) break;
            before += n_tiles;
        }
        if (t.seq == b->n_seqs) return;
        const uint32_t at = (index - before) * j->tokens;
        t.head = unit % parts * j->heads;
        t.heads = GR_MIN(j->d->heads - t.head, j->heads);
        t.token = b->offset[t.seq] + at;
        t.tokens = GR_MIN(b->offset[t.seq + 1] - t.token, j->tokens);
        t.rows = t.tokens * t.heads;
        t.keys = cached(b, t.seq) + at + 1;
        attend_tile(j, &t);
    }
}

static uint64_t thread_bytes(const gr_latent_desc *d, uint32_t length)
{
    gr_workspace c = {0};
    struct tile t;
    tile_layout(&c, d, length, &t);
    return c.used;
}

/* Packed sequences get blocks in the workspace. */
static void *packed_blocks(gr_workspace *c, const gr_latent_desc *d, uint32_t tokens, uint32_t seqs)
{
    return gr_workspace_bytes(c, ((uint64_t)tokens / GR_KV_BLOCK + seqs) * block_bytes(d));
}

static void attend(gr_queue *q, const gr_latent_call *c, const void *wide, const void *rows, void *mixed)
{
    const gr_latent_desc *d = c->d;
    gr_tokens b = *c->b;
    gr_workspace at = {.base = c->ws};
    struct attend_job j = {.d = d,
                           .b = &b,
                           .v = gr_simd_best(),
                           .wide = wide,
                           .mixed = mixed,
                           .length = batch_length(&b),
                           .heads = GR_MIN(d->heads, (uint32_t)ROWS)};
    j.tokens = ROWS / j.heads;
    j.ws_bytes = thread_bytes(d, j.length);
    j.ws = gr_workspace_bytes(&at, gr_team_size(q->team) * j.ws_bytes);
    if (!b.state) {
        b.state = packed_blocks(&at, d, b.n, b.n_seqs);
        store_in(q, d, &b, rows);
    }
    gr_team_run(q->team, attend_rank, &j);
}

/* Products and attention take turns. */
static uint64_t ws_bytes(const gr_latent_desc *d, const gr_pass_bounds *b, gr_layer_use use)
{
    const gr_gemm_job in = absorb_job(d, b->tokens), out = emit_job(d, b->tokens);
    gr_workspace c = {0};
    gr_workspace_bytes(&c, b->threads * thread_bytes(d, b->length));
    if (use != GR_LAYER_EXTEND) packed_blocks(&c, d, b->tokens, b->seqs);
    return GR_MAX(c.used, GR_MAX(gr_gemm_ws_bytes(&in, b->threads), gr_gemm_ws_bytes(&out, b->threads)));
}

/* ---- expanded ------------------------------------------------------------------------------------------ */

struct expand_job {
    const gr_latent_call *c;
    const gr_latent_part *key;
    float *q, *kv, *qkv;
};

/* Of one token: its queries, keys and values in a row of qkv. */
static void expand_token(const struct expand_job *j, uint32_t t)
{
    const gr_latent_desc *d = j->c->d;
    const size_t n = d->heads, wide = gr_latent_head(d), nope = d->nope_dim, v_dim = d->v_dim;
    const float *q = j->q + t * n * wide, *kv = j->kv + t * n * (nope + v_dim),
                *key = (const float *)j->key->x + (size_t)t * j->key->ld;
    float *to = j->qkv + t * 3 * n * wide;
    memcpy(to, q, n * wide * sizeof(float));
    for (size_t h = 0; h < n; h++, kv += nope + v_dim) {
        float *k = to + (n + h) * wide, *v = k + n * wide;
        memcpy(k, kv, nope * sizeof(float));
        memcpy(k + nope, key, d->rope_dim * sizeof(float));
        memcpy(v, kv + nope, v_dim * sizeof(float));
        memset(v + v_dim, 0, (wide - v_dim) * sizeof(float));
    }
}

static void expand_back_token(const struct expand_job *j, uint32_t t)
{
    const gr_latent_desc *d = j->c->d;
    const size_t n = d->heads, wide = gr_latent_head(d), nope = d->nope_dim, v_dim = d->v_dim;
    const float *from = j->qkv + t * 3 * n * wide;
    float *kv = j->kv + t * n * (nope + v_dim), *key = (float *)j->key->x + (size_t)t * j->key->ld;
    memcpy(j->q + t * n * wide, from, n * wide * sizeof(float));
    memset(key, 0, d->rope_dim * sizeof(float));
    for (size_t h = 0; h < n; h++, kv += nope + v_dim) {
        const float *k = from + (n + h) * wide, *v = k + n * wide;
        memcpy(kv, k, nope * sizeof(float));
        memcpy(kv + nope, v, v_dim * sizeof(float));
        for (uint32_t i = 0; i < d->rope_dim; i++) key[i] += k[nope + i];
    }
}

static void expand_rank(void *arg, unsigned rank, unsigned size)
{
    const struct expand_job *j = arg;
    uint64_t first, last;
    gr_team_range(j->c->b->n, 1, rank, size, &first, &last);
    for (uint32_t t = (uint32_t)first; t < last; t++) expand_token(j, t);
}

static void expand_back_rank(void *arg, unsigned rank, unsigned size)
{
    const struct expand_job *j = arg;
    uint64_t first, last;
    gr_team_range(j->c->b->n, 1, rank, size, &first, &last);
    for (uint32_t t = (uint32_t)first; t < last; t++) expand_back_token(j, t);
}

static void expand(gr_queue *q, const gr_latent_call *c, const void *queries, const void *kv,
                   const gr_latent_part *key, void *qkv)
{
    struct expand_job j = {c, key, (float *)(uintptr_t)queries, (float *)(uintptr_t)kv, qkv};
    gr_team_run(q->team, expand_rank, &j);
}

static void expand_backward(gr_queue *q, const gr_latent_call *c, const void *dqkv, void *d_q, void *d_kv,
                            const gr_latent_part *d_key)
{
    struct expand_job j = {c, d_key, d_q, d_kv, (float *)(uintptr_t)dqkv};
    gr_team_run(q->team, expand_back_rank, &j);
}

static const char *unfit(const gr_latent_desc *d)
{
    (void)d;
    return NULL;
}

const gr_latent_ops gr_latent_cpu = {.ws_bytes = ws_bytes,
                                     .block_bytes = block_bytes,
                                     .rotate = rotate,
                                     .absorb = absorb,
                                     .store = store,
                                     .attend = attend,
                                     .emit = emit,
                                     .expand = expand,
                                     .expand_backward = expand_backward,
                                     .unfit = unfit};
