/* ops/kernels/cpu/attention_cpu.c: causal attention with grouped key-value heads, over blocks of keys and
 * values.
 *
 * A tile of query rows (tokens times heads of one group) is taken against all of its keys: scores, exact
 * maximum, exponentials, their sum and the weighted sum of values, each in the order of keys. A score row is
 * kept whole, in panels of GR_KC keys, so that nothing is rescaled and a row's bits do not depend on its
 * tile. Backward computes the scores again from q, k and lse (Dao et al., arXiv:2205.14135), and sums over
 * query rows in the order of tokens.
 *
 * A sequence that goes on from another (gr_packed.prefix) takes its keys first: forward from the other's
 * blocks, and what fills its last block only in part is copied to its own first one; so the order of sums,
 * and the bits, are those of a sequence that has its beginning itself. Backward a sequence and those that go
 * on from it are one job, and the gradients of its keys are summed over its own rows first, then theirs.
 *
 * With a window, a tile begins at the first key that any of its rows sees; a row's weights of keys before its
 * own first are 0, and a product with 0 leaves a sum's bits as they are.
 *
 * Rows of queries lie in panels of GR_KC columns, as scores do; a head wider than that has several.
 */
#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "ops/kernels/cpu/cpu.h"
#include "ops/model/fp8.h"
#include "runtime/base/half.h"

enum {
    FWD_ROWS = GR_MR,
    BACK_ROWS = 2 * GR_MR,
};

static uint32_t padded(const gr_attention_desc *s)
{
    return (s->head_dim + 15) / 16 * 16;
}

/* Of one kv head in a block. */
static uint64_t head_bytes(const gr_attention_desc *s)
{
    const uint64_t values = 2 * GR_KV_BLOCK * padded(s), scales = 2 * GR_KV_BLOCK * sizeof(float);
    return s->kv_fp8 ? values + scales : values * sizeof(float);
}

uint64_t gr_kv_block_bytes(const gr_attention_desc *s)
{
    return gr_align(s->kv_heads * head_bytes(s), 256);
}

/* Keys that a sequence has before its first token here. */
static uint32_t cached(const gr_tokens *b, uint32_t seq)
{
    return b->cached ? b->cached[seq] : gr_seq_before(b->offset, b->prefix, seq);
}

/* The blocks of packed sequences lie one behind the other. One that goes on from another has its full ones in
 * common with it. */
static uint32_t packed_block(const gr_tokens *b, uint32_t seq, uint32_t index)
{
    const uint32_t common = cached(b, seq) / GR_KV_BLOCK, each = b->prefix ? 2 : 1,
                   of = index < common ? b->prefix[seq] : seq;
    return b->offset[of] / GR_KV_BLOCK + each * of + index - (index < common ? 0 : common);
}

static void *block_at(const gr_attention_desc *s, const gr_tokens *b, uint32_t seq, uint32_t index,
                      uint32_t kv_head)
{
    const uint32_t block =
        b->block_table ? b->block_table[(size_t)seq * b->table_stride + index] : packed_block(b, seq, index);
    return (char *)b->state + block * gr_kv_block_bytes(s) + kv_head * head_bytes(s);
}

/* A block's kv head in FP8. */
typedef struct packed_head {
    uint8_t *k, *v;           /* [Dp] [16], [16] [Dp] */
    float *k_scale, *v_scale; /* [16] */
} packed_head;

static packed_head packed_at(const gr_attention_desc *s, void *head)
{
    uint8_t *k = head;
    const size_t n = (size_t)GR_KV_BLOCK * padded(s);
    float *scales = (float *)(void *)(k + 2 * n);
    return (packed_head){k, k + n, scales, scales + GR_KV_BLOCK};
}

static uint32_t batch_length(const gr_tokens *b)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const uint32_t keys = cached(b, i) + b->offset[i + 1] - b->offset[i];
        most = GR_MAX(most, keys);
    }
    return most;
}

/* Score panels of a tile. */
static uint64_t panels_floats(uint32_t length, uint32_t rows)
{
    return (uint64_t)(length + GR_KC - 1) / GR_KC * rows * GR_LDA;
}

/* Where the scores of a row and key lie in panels of so many rows. */
static size_t panel_at(uint32_t rows, uint32_t row, uint32_t key)
{
    return ((size_t)(key / GR_KC) * rows + row) * GR_LDA + key % GR_KC;
}

/* Keys from `key` on that are in its panel and before `end`. */
static uint32_t panel_left(uint32_t key, uint32_t end)
{
    return GR_MIN(end - key, GR_KC - key % GR_KC);
}

/* Panels of rows as wide as a head. */
static uint64_t head_floats(const gr_attention_desc *s, uint32_t rows)
{
    return panels_floats(s->head_dim, rows);
}

/* row of panels = scale x, all of a head; what fills up the last 16 columns is 0. */
static void load_head(const gr_simd *v, const gr_attention_desc *s, float *panels, uint32_t rows,
                      uint32_t row, const float *x, float scale)
{
    const uint32_t d = s->head_dim;
    for (uint32_t i = 0, n; i < d; i += n) {
        n = panel_left(i, d);
        float *to = panels + panel_at(rows, row, i);
        v->scale(to, x + i, scale, n);
        if (i + n == d) memset(to + n, 0, (padded(s) - d) * sizeof(*to));
    }
}

/* to = scale times that row. */
static void store_head(const gr_simd *v, const gr_attention_desc *s, const float *panels, uint32_t rows,
                       uint32_t row, float scale, float *to)
{
    for (uint32_t i = 0, n; i < s->head_dim; i += n) {
        n = panel_left(i, s->head_dim);
        v->scale(to + i, panels + panel_at(rows, row, i), scale, n);
    }
}

/* c [.., 16 or 32] of a call = rows of heads in panels times b0 and b1 [D, ldb]. */
static void head_mm(const gr_simd *v, const gr_attention_desc *s, const float *panels, uint32_t rows,
                    gr_mm mm)
{
    const gr_mm whole = mm;
    for (uint32_t i = 0, n; i < s->head_dim; i += n) {
        n = panel_left(i, s->head_dim);
        mm.k = n;
        mm.a = panels + panel_at(rows, 0, i);
        mm.b0 = whole.b0 + (size_t)i * mm.ldb;
        mm.b1 = whole.b1 ? whole.b1 + (size_t)i * mm.ldb : NULL;
        mm.add = i > 0;
        v->mm_rows(&mm);
    }
}

static void clear_row(float *panels, uint32_t rows, uint32_t row, uint32_t from, uint32_t end)
{
    for (uint32_t k = from, n; k < end; k += n) {
        n = panel_left(k, end);
        memset(panels + panel_at(rows, row, k), 0, n * sizeof(*panels));
    }
}

/* ---- keys and values to blocks ------------------------------------------------------------------------- */

struct write_job {
    const gr_attention_desc *s;
    const gr_tokens *b;
    const float *qkv;
};

/* x [d] to E4M3, `step` apart; returns the scale. */
static float write_packed(const float *x, uint32_t d, uint8_t *to, size_t step)
{
    float most = 0;
    for (uint32_t i = 0; i < d; i++) most = fabsf(x[i]) > most || isnan(x[i]) ? fabsf(x[i]) : most;
    const gr_fp8_scale s = gr_fp8_scale_of(most);
    for (uint32_t i = 0; i < d; i++) to[i * step] = gr_f32_to_e4m3(x[i] * s.inverse);
    return s.scale;
}

static void write_head(const gr_attention_desc *s, void *head, const float *key, const float *value,
                       uint32_t slot)
{
    const uint32_t d = s->head_dim, dp = padded(s);
    if (s->kv_fp8) {
        const packed_head p = packed_at(s, head);
        p.k_scale[slot] = write_packed(key, d, p.k + slot, GR_KV_BLOCK);
        p.v_scale[slot] = write_packed(value, d, p.v + (size_t)slot * dp, 1);
        memset(p.v + (size_t)slot * dp + d, 0, dp - d);
        return;
    }
    float *k = head, *v = k + (size_t)GR_KV_BLOCK * dp;
    for (uint32_t i = 0; i < d; i++) k[i * GR_KV_BLOCK + slot] = key[i];
    memcpy(v + (size_t)slot * dp, value, d * sizeof(*v));
    memset(v + (size_t)slot * dp + d, 0, (dp - d) * sizeof(*v));
}

/* Into the block that sequence `seq` has for this position. */
static void write_at(const struct write_job *j, uint32_t seq, uint32_t position, uint32_t token)
{
    const gr_attention_desc *s = j->s;
    const uint32_t d = s->head_dim, slot = position % GR_KV_BLOCK;
    const float *row = j->qkv + (size_t)token * gr_qkv_width(s) + (size_t)s->heads * d;
    for (uint32_t h = 0; h < s->kv_heads; h++)
        write_head(s, block_at(s, j->b, seq, position / GR_KV_BLOCK, h), row + h * d,
                   row + (s->kv_heads + h) * d, slot);
}

/* Also to the first blocks of those that go on from its sequence, where its own last one is not full. */
static void write_token(const struct write_job *j, uint32_t seq, uint32_t token)
{
    const gr_tokens *b = j->b;
    const uint32_t position = cached(b, seq) + token - b->offset[seq],
                   length = b->offset[seq + 1] - b->offset[seq];
    write_at(j, seq, position, token);
    if (!b->prefix || b->prefix[seq] != seq || position < length - length % GR_KV_BLOCK) return;
    for (uint32_t i = seq + 1; i < b->n_seqs && b->prefix[i] == seq; i++) write_at(j, i, position, token);
}

static void write_rank(void *arg, unsigned rank, unsigned size)
{
    const struct write_job *j = arg;
    uint64_t first, last;
    gr_team_range(j->b->n, 16, rank, size, &first, &last);
    for (uint32_t t = (uint32_t)first, seq = 0; t < last; t++) {
        while (t >= j->b->offset[seq + 1]) seq++;
        write_token(j, seq, t);
    }
}

void gr_kv_write(gr_queue *q, const gr_attention_desc *s, const gr_tokens *b, const float *qkv)
{
    struct write_job j = {s, b, qkv};
    gr_team_run(q->team, write_rank, &j);
}

/* ---- forward ------------------------------------------------------------------------------------------- */

struct attend_job {
    const gr_attention_desc *s;
    const gr_scores *a;
    const gr_tokens *b;
    const gr_simd *v;
    const float *qkv;
    float *out, *lse, *ws;
    uint64_t ws_floats; /* of one thread */
    uint32_t heads;     /* of a group in one tile */
    uint32_t tokens;    /* of a tile */
    atomic_uint next;   /* tile to take: which thread takes it changes nothing */
};

struct tile {
    uint32_t seq, kv_head, head; /* head: the first query head */
    uint32_t token, tokens;      /* in the batch */
    uint32_t heads, rows;        /* rows = tokens heads, tokens outermost */
    uint32_t keys, from;         /* of the first token: how many, and the first that it sees, or before it */
    float *q, *o, *scores;       /* panels: of heads, of heads, of scores */
    float *unpacked;             /* [2] [16] [Dp] of blocks in FP8 */
};

static uint32_t row_token(const struct tile *t, uint32_t row)
{
    return t->token + row / t->heads;
}

static uint32_t row_head(const struct tile *t, uint32_t row)
{
    return t->head + row % t->heads;
}

static uint32_t row_keys(const struct tile *t, uint32_t row)
{
    return t->keys + row / t->heads;
}

static uint32_t row_first(const gr_scores *a, const struct tile *t, uint32_t row)
{
    return gr_scores_first(a->window, row_keys(t, row) - 1);
}

/* Where a tile begins: products take two blocks at a time. */
static uint32_t tile_from(const gr_scores *a, const struct tile *t)
{
    const uint32_t first = gr_scores_first(a->window, t->keys - 1);
    return first - first % (2 * GR_KV_BLOCK);
}

static void load_queries(const struct attend_job *j, const struct tile *t)
{
    const uint32_t d = j->s->head_dim;
    for (uint32_t r = 0; r < t->rows; r++)
        load_head(j->v, j->s, t->q, FWD_ROWS, r,
                  j->qkv + (size_t)row_token(t, r) * gr_qkv_width(j->s) + (size_t)row_head(t, r) * d,
                  j->a->scale);
}

/* Keys of a block as products read them, [Dp] [16]; `which` of two that are needed at once. */
static const float *keys_of(const struct attend_job *j, const struct tile *t, uint32_t index, uint32_t which)
{
    void *head = block_at(j->s, j->b, t->seq, index, t->kv_head);
    if (!j->s->kv_fp8) return head;
    const packed_head p = packed_at(j->s, head);
    float *to = t->unpacked + (size_t)which * GR_KV_BLOCK * padded(j->s);
    for (uint32_t i = 0; i < j->s->head_dim * GR_KV_BLOCK; i++)
        to[i] = gr_e4m3_to_f32(p.k[i]) * p.k_scale[i % GR_KV_BLOCK];
    return to;
}

/* The same of values [n] [Dp] from position `first` of the block on. */
static const float *values_of(const struct attend_job *j, const struct tile *t, uint32_t index,
                              uint32_t first, uint32_t n)
{
    const uint32_t dp = padded(j->s);
    void *head = block_at(j->s, j->b, t->seq, index, t->kv_head);
    if (!j->s->kv_fp8) return (float *)head + (size_t)(GR_KV_BLOCK + first) * dp;
    const packed_head p = packed_at(j->s, head);
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t i = 0; i < dp; i++)
            t->unpacked[k * dp + i] = gr_e4m3_to_f32(p.v[(first + k) * dp + i]) * p.v_scale[first + k];
    return t->unpacked;
}

static void tile_scores(const struct attend_job *j, const struct tile *t)
{
    const uint32_t blocks = (t->keys + t->tokens - 1 + GR_KV_BLOCK - 1) / GR_KV_BLOCK;
    gr_mm mm = {.m = t->rows, .ldb = GR_KV_BLOCK, .ldc = GR_LDA};
    for (uint32_t i = t->from / GR_KV_BLOCK; i < blocks; i += 2) {
        const uint32_t key = i * GR_KV_BLOCK;
        mm.b0 = keys_of(j, t, i, 0);
        mm.b1 = i + 1 < blocks ? keys_of(j, t, i + 1, 1) : NULL;
        mm.c = t->scores + panel_at(FWD_ROWS, 0, key);
        head_mm(j->v, j->s, t->q, FWD_ROWS, mm);
    }
}

/* Scores as the softmax takes them; returns their maximum, the sink's included. */
static float row_max(const struct attend_job *j, const struct tile *t, uint32_t row, uint32_t first)
{
    const float cap = j->a->softcap, *sinks = j->a->sinks;
    const uint32_t keys = row_keys(t, row);
    float most = sinks ? sinks[row_head(t, row)] : -INFINITY;
    for (uint32_t k = first, n; k < keys; k += n) {
        float *scores = t->scores + panel_at(FWD_ROWS, row, k);
        n = panel_left(k, keys);
        if (cap) j->v->softcap(scores, NULL, cap, n);
        const float m = j->v->max(scores, n);
        most = m > most ? m : most;
    }
    return most;
}

/* Turns scores into exp(score - max), 0 before the first that the row sees; returns their sum. */
static float row_softmax(const struct attend_job *j, const struct tile *t, uint32_t row, float *max)
{
    const uint32_t keys = row_keys(t, row), first = row_first(j->a, t, row);
    const float *sinks = j->a->sinks, most = row_max(j, t, row, first);
    float lanes[16] = {0};
    if (sinks) j->v->exp_sum(&(float){sinks[row_head(t, row)]}, most, lanes, 1);
    clear_row(t->scores, FWD_ROWS, row, t->from, first);
    for (uint32_t k = first, n; k < keys; k += n) {
        n = panel_left(k, keys);
        j->v->exp_sum(t->scores + panel_at(FWD_ROWS, row, k), most, lanes, n);
    }
    *max = most;
    return gr_lanes_sum(lanes);
}

/* o += p[row.., key..] V over n keys of one block, from row `from` on. */
static void add_values(const struct attend_job *j, const struct tile *t, uint32_t from, uint32_t key,
                       uint32_t n, bool add)
{
    const uint32_t dp = padded(j->s);
    const float *v = values_of(j, t, key / GR_KV_BLOCK, key % GR_KV_BLOCK, n);
    const float *p = t->scores + panel_at(FWD_ROWS, from, key);
    gr_mm mm = {.m = t->rows - from, .k = n, .a = p, .ldb = dp, .ldc = GR_LDA, .add = add};
    for (uint32_t d = 0; d < dp; d += 32) {
        mm.b0 = v + d;
        mm.b1 = d + 16 < dp ? v + d + 16 : NULL;
        mm.c = t->o + panel_at(FWD_ROWS, from, d);
        j->v->mm_rows(&mm);
    }
}

static void attend_tile(const struct attend_job *j, const struct tile *t)
{
    float sum[FWD_ROWS], max[FWD_ROWS];
    load_queries(j, t);
    tile_scores(j, t);
    for (uint32_t r = 0; r < t->rows; r++) sum[r] = row_softmax(j, t, r, &max[r]);
    for (uint32_t k = t->from; k < t->keys; k += GR_KV_BLOCK) /* keys of the first token, then the triangle */
        add_values(j, t, 0, k, GR_MIN(t->keys - k, GR_KV_BLOCK), k > t->from);
    for (uint32_t u = 1; u < t->tokens; u++) add_values(j, t, u * t->heads, t->keys + u - 1, 1, true);
    for (uint32_t r = 0; r < t->rows; r++) {
        const size_t at = (size_t)row_token(t, r) * j->s->heads + row_head(t, r);
        store_head(j->v, j->s, t->o, FWD_ROWS, r, 1 / sum[r], j->out + at * j->s->head_dim);
        if (j->lse) j->lse[at] = max[r] + logf(sum[r]);
    }
}

static void attend_group(const struct attend_job *j, struct tile *t)
{
    const uint32_t group = j->s->heads / j->s->kv_heads;
    for (uint32_t h = 0; h < group; h += j->heads) {
        t->head = t->kv_head * group + h;
        t->heads = GR_MIN(group - h, j->heads);
        t->rows = t->tokens * t->heads;
        attend_tile(j, t);
    }
}

/* Room for blocks in FP8 made fp32. */
static uint64_t unpacked_floats(const gr_attention_desc *s)
{
    return s->kv_fp8 ? 2ull * GR_KV_BLOCK * padded(s) : 0;
}

/* Take tiles in order of sequence, place and kv head until none are left. */
static void attend_rank(void *arg, unsigned rank, unsigned size)
{
    (void)size;
    struct attend_job *j = arg;
    const gr_tokens *b = j->b;
    float *scores = j->ws + rank * j->ws_floats; /* mm_rows may read GR_MR rows further: of q */
    const uint64_t tile = head_floats(j->s, FWD_ROWS);
    float *q = scores + j->ws_floats - 2 * tile;
    struct tile t = {.q = q, .o = q + tile, .scores = scores, .unpacked = q - unpacked_floats(j->s)};
    uint32_t before = 0; /* tiles of the sequences before t.seq */
    for (;;) {
        const uint32_t unit = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        const uint32_t index = unit / j->s->kv_heads;
        for (; t.seq < b->n_seqs; t.seq++) {
            const uint32_t n = b->offset[t.seq + 1] - b->offset[t.seq],
                           n_tiles = (n + j->tokens - 1) / j->tokens;
            if (index < before + n_tiles) break;
            before += n_tiles;
        }
        if (t.seq == b->n_seqs) return;
        const uint32_t at = (index - before) * j->tokens;
        t.kv_head = unit % j->s->kv_heads;
        t.token = b->offset[t.seq] + at;
        t.tokens = GR_MIN(b->offset[t.seq + 1] - t.token, j->tokens);
        t.keys = cached(b, t.seq) + at + 1;
        t.from = tile_from(j->a, &t);
        attend_group(j, &t);
    }
}

static uint64_t attend_thread_floats(const gr_attention_desc *s, uint32_t length)
{
    return 2 * head_floats(s, FWD_ROWS) + unpacked_floats(s) + panels_floats(length, FWD_ROWS);
}

static uint64_t attend_floats(const gr_attention_desc *s, uint32_t length, unsigned threads)
{
    return threads * attend_thread_floats(s, length);
}

/* Packed sequences get blocks in the workspace: one more than their tokens fill, and where they go on from
 * others two. */
static void *packed_blocks(gr_workspace *c, const gr_attention_desc *s, uint32_t tokens, uint32_t seqs,
                           bool shared)
{
    const uint64_t more = (shared ? 2ull : 1ull) * seqs;
    return gr_workspace_bytes(c, (tokens / GR_KV_BLOCK + more) * gr_kv_block_bytes(s));
}

static void attend(gr_queue *q, const gr_attend *c, const gr_tokens *b, float *out, float *lse, float *ws)
{
    const gr_attention_desc *s = c->d;
    const gr_scores a = gr_attend_scores(c);
    struct attend_job j = {
        .s = s, .a = &a, .b = b, .v = gr_simd_best(), .qkv = c->qkv, .out = out, .lse = lse, .ws = ws};
    j.ws_floats = attend_thread_floats(s, batch_length(b));
    j.heads = GR_MIN(s->heads / s->kv_heads, FWD_ROWS);
    j.tokens = FWD_ROWS / j.heads;
    gr_team_run(q->team, attend_rank, &j);
}

void gr_cpu_attend(gr_queue *q, const gr_attend *c, void *out, float *stats)
{
    gr_workspace at = {.base = c->ws};
    gr_tokens b = *c->b;
    float *ws = gr_workspace_floats(&at, attend_floats(c->d, batch_length(&b), gr_team_size(q->team)));
    assert(c->d->head_dim <= GR_HEAD_DIM_MAX);
    if (!b.state) {
        b.state = packed_blocks(&at, c->d, b.n, b.n_seqs, b.prefix != NULL);
        gr_kv_write(q, c->d, &b, c->qkv);
    }
    attend(q, c, &b, out, stats, ws);
}

/* ---- backward ------------------------------------------------------------------------------------------ */

struct back_job {
    const gr_attention_desc *s;
    const gr_scores *a;
    const gr_tokens *b;
    const gr_simd *v;
    const float *qkv, *out, *lse, *dout;
    float *dqkv, *ws;
    uint64_t ws_floats;
    uint32_t length;
    atomic_uint next;
};

struct back_ws {
    float *k, *kt, *vt;   /* one kv head's keys [L, Dp]; keys and values in blocks of 16, each [D][16] */
    float *dk, *dv;       /* [L, Dp] */
    float *q, *dout, *dq; /* panels of heads */
    float *p, *ds;        /* panels of scores */
};

static void back_layout(gr_workspace *c, const gr_attention_desc *s, uint32_t length, struct back_ws *w)
{
    const uint64_t n = (uint64_t)(length + 15) / 16 * 16 * padded(s), tile = head_floats(s, BACK_ROWS);
    float **of_length[] = {&w->k, &w->kt, &w->vt, &w->dk, &w->dv}, **of_tile[] = {&w->q, &w->dout, &w->dq};
    for (size_t i = 0; i < GR_LEN(of_length); i++) *of_length[i] = gr_workspace_floats(c, n);
    for (size_t i = 0; i < GR_LEN(of_tile); i++) *of_tile[i] = gr_workspace_floats(c, tile);
    w->p = gr_workspace_floats(c, panels_floats(length, BACK_ROWS));
    w->ds = gr_workspace_floats(c, panels_floats(length, BACK_ROWS));
}

/* n rows [D] become columns of blocks of 16 from position `at` on; what fills up the last block is 0. */
static void turn_rows(const struct back_job *j, const float *rows, uint32_t n, uint32_t at, float *blocks)
{
    const uint32_t d = j->s->head_dim;
    const size_t ld = gr_qkv_width(j->s);
    uint32_t i = 0;
    for (; i < n && (at + i) % 16; i++) /* of a block that others began */
        for (uint32_t c = 0; c < d; c++)
            blocks[((size_t)(at + i) / 16 * d + c) * 16 + (at + i) % 16] = rows[i * ld + c];
    for (; i < n; i += 16)
        j->v->transpose(rows + i * ld, ld, GR_MIN(n - i, 16), d, blocks + (size_t)(at + i) * d, 16);
}

/* A sequence's keys and values from position `from` on, which a kv head has; its gradients begin at 0. */
static void load_keys(const struct back_job *j, const struct back_ws *w, uint32_t seq, uint32_t kv_head)
{
    const gr_attention_desc *s = j->s;
    const uint32_t d = s->head_dim, dp = padded(s), from = cached(j->b, seq), first = j->b->offset[seq],
                   n = j->b->offset[seq + 1] - first;
    const size_t ld = gr_qkv_width(s);
    const float *k = j->qkv + first * ld + (size_t)(s->heads + kv_head) * d, *v = k + (size_t)s->kv_heads * d;
    memset(w->dk + (size_t)from * dp, 0, (size_t)n * dp * sizeof(float));
    memset(w->dv + (size_t)from * dp, 0, (size_t)n * dp * sizeof(float));
    for (uint32_t i = 0; i < n; i++) {
        float *to = w->k + (size_t)(from + i) * dp;
        memcpy(to, k + i * ld, d * sizeof(float));
        memset(to + d, 0, (dp - d) * sizeof(float));
    }
    turn_rows(j, k, n, from, w->kt);
    turn_rows(j, v, n, from, w->vt);
}

/* c panels [rows, keys] = a, panels of [rows, D], times blocks of keys or values, from the tile's first on.
 */
static void back_scores(const struct back_job *j, const struct tile *t, const float *a, const float *bt,
                        float *panels)
{
    const uint32_t d = j->s->head_dim, keys = t->keys + t->tokens - 1;
    gr_mm mm = {.m = t->rows, .ldb = 16, .ldc = GR_LDA};
    for (uint32_t i = t->from; i < keys; i += 32) {
        mm.b0 = bt + (size_t)i * d;
        mm.b1 = i + 16 < keys ? mm.b0 + 16 * d : NULL;
        mm.c = panels + panel_at(BACK_ROWS, 0, i);
        head_mm(j->v, j->s, a, BACK_ROWS, mm);
    }
}

/* c [.., Dp] += or = a b over the Dp columns of b; cols: b, else c, is panels of heads. */
static void wide_mm(const struct back_job *j, gr_mm mm, bool cols)
{
    const uint32_t dp = padded(j->s);
    const float *b = mm.b0;
    float *c = mm.c;
    for (uint32_t d = 0; d < dp; d += 32) {
        const size_t panel = panel_at(BACK_ROWS, 0, d);
        mm.b0 = b + (cols ? panel : d);
        mm.b1 = d + 16 < dp ? mm.b0 + 16 : NULL;
        mm.c = c + (cols ? d : panel);
        (cols ? j->v->mm_cols : j->v->mm_rows)(&mm);
    }
}

static void tile_gradients(const struct back_job *j, const struct back_ws *w, const struct tile *t)
{
    const uint32_t dp = padded(j->s), keys = t->keys + t->tokens - 1;
    for (uint32_t k = t->from, n; k < keys; k += n) {
        const size_t panel = panel_at(BACK_ROWS, 0, k);
        const bool add = k > t->from;
        float *dk = w->dk + (size_t)k * dp, *dv = w->dv + (size_t)k * dp;
        n = panel_left(k, keys);
        wide_mm(j, (gr_mm){n, t->rows, w->p + panel, w->dout, NULL, GR_LDA, dv, dp, true}, true);
        wide_mm(j, (gr_mm){n, t->rows, w->ds + panel, w->q, NULL, GR_LDA, dk, dp, true}, true);
        wide_mm(j, (gr_mm){t->rows, n, w->ds + panel, w->k + (size_t)k * dp, NULL, dp, w->dq, GR_LDA, add},
                false);
    }
}

/* Scores and products of one row, as back_scores left them, become weights and gradients of scores: 0 where
 * the row does not see a key. */
static void back_row(const struct back_job *j, const struct back_ws *w, const struct tile *t, uint32_t row,
                     float delta)
{
    const uint32_t live = row_keys(t, row), keys = t->keys + t->tokens - 1, first = row_first(j->a, t, row);
    const float lse = j->lse[(size_t)row_token(t, row) * j->s->heads + row_head(t, row)], cap = j->a->softcap;
    float slope[GR_KC];
    clear_row(w->p, BACK_ROWS, row, t->from, first);
    clear_row(w->ds, BACK_ROWS, row, t->from, first);
    for (uint32_t k = first, n; k < keys; k += n) {
        float *p = w->p + panel_at(BACK_ROWS, row, k), *ds = w->ds + panel_at(BACK_ROWS, row, k);
        n = panel_left(k, keys);
        if (cap) j->v->softcap(p, slope, cap, n);
        j->v->attend_back(p, ds, lse, delta, GR_MIN(live > k ? live - k : 0, n), n);
        if (cap) j->v->mul(ds, slope, n);
    }
}

/* Rows are tokens times the heads of the group, tokens outermost. */
static void back_tile(const struct back_job *j, const struct back_ws *w, const struct tile *t)
{
    const gr_attention_desc *s = j->s;
    const uint32_t d = s->head_dim;
    const float a = j->a->scale;
    float delta[BACK_ROWS];
    for (uint32_t r = 0; r < t->rows; r++) {
        const size_t token = row_token(t, r), head = row_head(t, r), at = (token * s->heads + head) * d;
        load_head(j->v, s, w->q, BACK_ROWS, r, j->qkv + token * gr_qkv_width(s) + head * d, a);
        load_head(j->v, s, w->dout, BACK_ROWS, r, j->dout + at, 1);
        delta[r] = j->v->dot(j->dout + at, j->out + at, d);
    }
    back_scores(j, t, w->q, w->kt, w->p);
    back_scores(j, t, w->dout, w->vt, w->ds);
    for (uint32_t r = 0; r < t->rows; r++) back_row(j, w, t, r, delta[r]);
    tile_gradients(j, w, t);
    for (uint32_t r = 0; r < t->rows; r++)
        store_head(j->v, s, w->dq, BACK_ROWS, r, a,
                   j->dqkv + (size_t)row_token(t, r) * gr_qkv_width(s) + (size_t)row_head(t, r) * d);
}

/* The rows of a sequence against all of its keys. */
static void back_rows(const struct back_job *j, const struct back_ws *w, uint32_t seq, uint32_t kv_head)
{
    const uint32_t group = j->s->heads / j->s->kv_heads, first = j->b->offset[seq],
                   n = j->b->offset[seq + 1] - first, step = GR_MIN(group, BACK_ROWS),
                   tokens = BACK_ROWS / step;
    struct tile t = {.seq = seq, .kv_head = kv_head};
    for (uint32_t i = 0; i < n; i += tokens)
        for (uint32_t h = 0; h < group; h += step) {
            t.token = first + i;
            t.tokens = GR_MIN(n - i, tokens);
            t.head = kv_head * group + h;
            t.heads = GR_MIN(group - h, step);
            t.rows = t.tokens * t.heads;
            t.keys = cached(j->b, seq) + i + 1;
            t.from = tile_from(j->a, &t);
            back_tile(j, w, &t);
        }
}

static void store_keys(const struct back_job *j, const struct back_ws *w, uint32_t seq, uint32_t kv_head)
{
    const gr_attention_desc *s = j->s;
    const uint32_t d = s->head_dim, dp = padded(s), from = cached(j->b, seq), first = j->b->offset[seq],
                   n = j->b->offset[seq + 1] - first;
    const size_t ld = gr_qkv_width(s), k_at = (size_t)(s->heads + kv_head) * d, v_at = k_at + s->kv_heads * d;
    for (uint32_t i = 0; i < n; i++) {
        float *out = j->dqkv + (first + i) * ld;
        memcpy(out + k_at, w->dk + (size_t)(from + i) * dp, d * sizeof(float));
        memcpy(out + v_at, w->dv + (size_t)(from + i) * dp, d * sizeof(float));
    }
}

/* A sequence, and those that go on from it; one of these by itself is no job. */
static void back_sequence(const struct back_job *j, const struct back_ws *w, uint32_t seq, uint32_t kv_head)
{
    const uint32_t *prefix = j->b->prefix;
    if (prefix && prefix[seq] != seq) return;
    load_keys(j, w, seq, kv_head);
    back_rows(j, w, seq, kv_head);
    for (uint32_t i = seq + 1; prefix && i < j->b->n_seqs && prefix[i] == seq; i++) {
        load_keys(j, w, i, kv_head);
        back_rows(j, w, i, kv_head);
        store_keys(j, w, i, kv_head);
    }
    store_keys(j, w, seq, kv_head);
}

static void back_rank(void *arg, unsigned rank, unsigned size)
{
    (void)size;
    struct back_job *j = arg;
    gr_workspace c = {.base = (char *)(j->ws + rank * j->ws_floats)};
    struct back_ws w;
    back_layout(&c, j->s, j->length, &w);
    for (;;) {
        const uint32_t unit = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        if (unit >= j->b->n_seqs * j->s->kv_heads) return;
        back_sequence(j, &w, unit / j->s->kv_heads, unit % j->s->kv_heads);
    }
}

static uint64_t attend_back_floats(const gr_attention_desc *s, uint32_t length, unsigned threads)
{
    gr_workspace c = {0};
    struct back_ws w;
    back_layout(&c, s, length, &w);
    return threads * c.used / sizeof(float);
}

uint64_t gr_cpu_attend_ws_bytes(const gr_attention_desc *d, const gr_pass_bounds *b, gr_layer_use use)
{
    gr_workspace c = {0};
    if (use == GR_LAYER_BACKWARD) {
        gr_workspace_floats(&c, attend_back_floats(d, b->length, b->threads));
        return c.used;
    }
    gr_workspace_floats(&c, attend_floats(d, b->length, b->threads));
    if (use != GR_LAYER_EXTEND) packed_blocks(&c, d, b->tokens, b->seqs, b->shared);
    return c.used;
}

/* ---- sinks --------------------------------------------------------------------------------------------- */

struct sinks_job {
    const gr_attention_desc *s;
    const float *sinks, *out, *lse, *dout;
    float *grad;
    uint32_t tokens;
};

/* A head at a time, its tokens in their order, so that a gradient goes on from where an earlier pass left it.
 */
static void sinks_rank(void *arg, unsigned rank, unsigned size)
{
    const struct sinks_job *j = arg;
    const gr_simd *v = gr_simd_best();
    const uint32_t d = j->s->head_dim, heads = j->s->heads;
    uint64_t first, last;
    gr_team_range(heads, 1, rank, size, &first, &last);
    for (uint32_t h = (uint32_t)first; h < last; h++)
        for (uint32_t t = 0; t < j->tokens; t++) {
            const size_t at = (size_t)t * heads + h;
            float lanes[16] = {0};
            v->exp_sum(&(float){j->sinks[h]}, j->lse[at], lanes, 1);
            j->grad[h] = fmaf(-lanes[0], v->dot(j->dout + at * d, j->out + at * d, d), j->grad[h]);
        }
}

void gr_cpu_attend_backward(gr_queue *q, const gr_attend *c, const void *out, const float *stats,
                            const void *dout, void *dqkv, void *grad_sinks, gr_dtype grads)
{
    const gr_scores a = gr_attend_scores(c);
    const uint32_t length = batch_length(c->b);
    struct back_job j = {c->d, &a, c->b, gr_simd_best(), c->qkv, out, stats, dout, dqkv, c->ws, 0, length, 0};
    struct sinks_job sinks = {c->d, a.sinks, out, stats, dout, grad_sinks, c->b->n};
    assert(grads == GR_F32);
    (void)grads;
    j.ws_floats = attend_back_floats(c->d, length, 1);
    gr_team_run(q->team, back_rank, &j);
    if (grad_sinks) gr_team_run(q->team, sinks_rank, &sinks);
}
