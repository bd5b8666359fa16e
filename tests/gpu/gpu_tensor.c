/* tests/gpu/gpu_tensor.c: a model in slices (ops/model/tp.h), one on each device, beside the whole model
 * on one.
 *
 * Teacher-forced logits of a packed pass, and greedy decoding by captured steps: near the whole model's, with
 * the same bits on all ranks, and with its tokens wherever the best two are far enough apart; and slices made
 * of flat shards. Started by mpirun, one process a device; skips (77) where there is only one.
 *
 *     mpirun -n 2 gpu_tensor [--bench]
 */
#include "ops/kernels/cuda/layout.h"
#include "ops/kernels/layer.h"
#include "ops/pass.h"
#include "ops/parallel/reshard.h"
#include "ops/kernels/steps.h"
#include "runtime/comm/comm.h"
#include "runtime/device/device_cuda.h"
#include "tests/gpu/models.h"

enum { CHUNK = 8, TOKENS = 24, ROWS = 256 };

/* How far logits may be apart, in standard deviations of the logits. */
#define TOLERANCE 0.1

typedef struct model { /* whole, or a slice */
    const char *name;
    gr_model_shape shape;
    void **w;
    gr_tp_group *peers; /* NULL: whole */
} model;

typedef struct prompts {
    uint32_t n, tokens;
    uint32_t offset[64];
    int32_t *ids;
} prompts;

static gr_comm *all;
static gr_diag diag;
static gr_queue queue;
static char *arena; /* handed out from the front */
static uint64_t arena_bytes, used;
static const gr_kernels *const k = &gr_kernels_cuda;

static _Noreturn void lost(const char *message)
{
    fprintf(stderr, "%s\n", message);
    exit(1);
}

static void *take(uint64_t bytes)
{
    void *p = arena + used;
    used += gr_align(bytes, 256);
    if (used > arena_bytes) {
        printf("the test's arena is too small\n");
        gr_comm_abort(all, 1);
    }
    return p;
}

static void *take_poisoned(uint64_t bytes)
{
    void *p = take(bytes);
    CUDA(cudaMemsetAsync(p, 0xff, bytes, queue.stream)); /* in the order of what will use it */
    return p;
}

static void *upload(const void *host, uint64_t bytes)
{
    void *p = take(bytes);
    gr_device_write(&queue, p, host, bytes);
    return p;
}

static void *download(const void *p, uint64_t bytes)
{
    void *x = gr_malloc(bytes + 1);
    gr_device_read(&queue, x, p, bytes);
    return x;
}

static void task_is_done(const char *name)
{
    expect_ok(k->check(&queue, &diag), &diag, name);
    CUDA(cudaStreamSynchronize(queue.stream));
    CUDA(cudaGetLastError());
}

/* What every rank has is what rank 0 has. */
static void report_same_everywhere(const char *name, const char *what, const void *x, uint64_t bytes)
{
    char *first = gr_malloc(bytes);
    memcpy(first, x, bytes);
    expect_ok(all->type->broadcast(all, first, bytes, &diag), &diag, name);
    report_equal(name, what, x, first, bytes);
    free(first);
}

/* ---- a model, whole and in slices ------------------------------------------------------------------------
 */

static gr_bf16 *sliced(const gr_model_shape *s, uint32_t bucket, const gr_bf16 *whole, uint64_t *elems)
{
    gr_tp_block b[GR_TP_BLOCKS_MAX];
    const gr_model_shape slice = gr_tp_shape(s, (gr_slicing){all->ranks, 1, 1});
    gr_bf16 *x = gr_calloc(*elems = gr_bucket_elems(&slice, bucket), sizeof(*x));
    for (size_t i = gr_tp_blocks(s, (gr_slicing){all->ranks, 1, 1}, all->rank, bucket, b); i--;)
        for (uint64_t run = 0; run < b[i].count; run++)
            memcpy(x + b[i].to + run * b[i].to_stride, whole + b[i].from + run * b[i].from_stride,
                   b[i].n * sizeof(*x));
    return x;
}

static void load(model *whole, model *slice)
{
    const gr_model_shape *s = &whole->shape;
    const uint32_t n = gr_model_buckets(s);
    whole->w = gr_calloc(n, sizeof(*whole->w));
    slice->w = gr_calloc(n, sizeof(*slice->w));
    for (uint32_t b = 0; b < n; b++) {
        uint64_t elems = gr_bucket_elems(s, b), part;
        float *x = random_bucket(s, b, 11);
        gr_bf16 *h = gr_malloc(elems * sizeof(*h));
        for (uint64_t i = 0; i < elems; i++) h[i] = bf16_of(x[i]);
        gr_bf16 *cut = sliced(s, b, h, &part);
        whole->w[b] = upload(h, elems * sizeof(*h));
        slice->w[b] = upload(cut, part * sizeof(*cut));
        free(cut);
        free(h);
        free(x);
    }
}

static void unload(model *m)
{
    free(m->w);
}

static const void *head_matrix(const model *m)
{
    uint64_t at;
    const uint32_t bucket = gr_model_head_bucket(&m->shape, &at);
    return (const gr_bf16 *)m->w[bucket] + at;
}

static const void *norm_weight(const model *m)
{
    const uint32_t last = m->shape.layers + 1;
    return (const gr_bf16 *)m->w[last] + gr_tensor_offset(&m->shape, last, GR_T_NORM);
}

/* ---- teacher-forced --------------------------------------------------------------------------------------
 */

static gr_packed packed_of(const prompts *p, uint32_t *longest)
{
    int32_t *position = gr_malloc(p->tokens * sizeof(*position));
    *longest = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        *longest = GR_MAX(*longest, p->offset[i + 1] - p->offset[i]);
        for (uint32_t t = p->offset[i]; t < p->offset[i + 1]; t++) position[t] = (int32_t)(t - p->offset[i]);
    }
    const gr_packed b = {.n_tokens = p->tokens,
                         .n_seqs = p->n,
                         .ids = upload(p->ids, p->tokens * sizeof(*p->ids)),
                         .offset = upload(p->offset, (p->n + 1) * sizeof(*p->offset)),
                         .host_offset = p->offset,
                         .position = upload(position, p->tokens * sizeof(*position))};
    free(position);
    return b;
}

/* Logits [tokens, V] of every token, malloc'd; and what the last layer gave, [tokens, H]. */
static float *forward(const model *m, const prompts *p, gr_bf16 **hidden)
{
    const gr_model_shape *s = &m->shape;
    const uint64_t mark = used;
    uint32_t longest;
    const gr_packed b = packed_of(p, &longest);
    const gr_pass_bounds bounds = {.tokens = b.n_tokens, .seqs = b.n_seqs, .length = longest, .threads = 1};
    void *ws = take_poisoned(gr_layers_ws_bytes(k, s, &bounds, GR_LAYER_FORWARD)),
         *head_ws = take_poisoned(k->head_ws_bytes(s, ROWS, GR_HEAD_GRADIENT, 1)),
         *x = take_poisoned((uint64_t)b.n_tokens * s->hidden * sizeof(gr_bf16));
    uint32_t *row = gr_malloc(b.n_tokens * sizeof(*row));
    float *logits = gr_malloc((uint64_t)b.n_tokens * s->vocab * sizeof(*logits));
    for (uint32_t i = 0; i < b.n_tokens; i++) row[i] = i;
    const uint32_t *row_at = upload(row, b.n_tokens * sizeof(*row));
    float *logprob = take_poisoned(ROWS * sizeof(*logprob));
    queue.peers = m->peers;
    k->embed_forward(&queue, s, m->w[0], &b, x);
    for (uint32_t l = 1; l <= s->layers; l++)
        gr_layer_forward(k, &queue, s, l - 1, m->w[l], &b, x, NULL, NULL, ws);
    queue.peers = NULL;
    for (uint32_t at = 0; at < b.n_tokens; at += ROWS) {
        const gr_head_rows rows = {GR_MIN((uint32_t)ROWS, b.n_tokens - at), row_at + at, b.ids + at, 1, true};
        gr_workspace c = {.base = head_ws};
        gr_cu_head_ws w;
        k->head_forward(&queue, s, norm_weight(m), head_matrix(m), x, &rows,
                        &(gr_head_stats){.logprob = logprob}, head_ws);
        gr_cu_head_layout(&c, s, rows.n, GR_HEAD_GRADIENT, &w);
        gr_device_read(&queue, logits + (uint64_t)at * s->vocab, w.logits,
                       (uint64_t)rows.n * s->vocab * sizeof(*logits));
    }
    *hidden = download(x, (uint64_t)b.n_tokens * s->hidden * sizeof(**hidden));
    task_is_done(m->name);
    free(row);
    used = mark;
    return logits;
}

/* The best of a row, and how far behind it the second is. */
static int32_t best_of(const float *row, uint32_t vocab, float *gap)
{
    int32_t best = 0;
    float second = -INFINITY;
    for (uint32_t i = 1; i < vocab; i++) {
        if (row[i] > row[best]) {
            second = row[best];
            best = (int32_t)i;
        } else if (row[i] > second) {
            second = row[i];
        }
    }
    *gap = row[best] - second;
    return best;
}

static double deviation(const float *x, uint64_t n)
{
    double sum = 0, sum2 = 0;
    for (uint64_t i = 0; i < n; i++) sum += x[i], sum2 += (double)x[i] * x[i];
    return sqrt(sum2 / (double)n - sum / (double)n * (sum / (double)n));
}

static void compare_logits(const char *name, const float *got, const float *want, uint32_t rows,
                           uint32_t vocab)
{
    const double tolerance = TOLERANCE * deviation(want, (uint64_t)rows * vocab);
    uint32_t clear = 0, other = 0;
    errors e = {0};
    for (uint64_t i = 0; i < (uint64_t)rows * vocab; i++) errors_add(&e, got[i], want[i]);
    report_errors(&e, name, "logits", 0.03);
    for (uint32_t r = 0; r < rows; r++) {
        float gap, unused;
        const int32_t best = best_of(want + (uint64_t)r * vocab, vocab, &gap);
        if (gap <= tolerance) continue;
        clear++;
        other += best_of(got + (uint64_t)r * vocab, vocab, &unused) != best;
    }
    printf("%s: the best id of %u of %u rows is ahead by more than %.3g; %u differ  %s\n", name, clear, rows,
           tolerance, other, other || !clear ? "FAIL" : "OK");
    check_failures += other || !clear;
}

/* ---- decoding --------------------------------------------------------------------------------------------
 */

typedef struct decoder {
    const model *m;
    void *x, *ws, *head_ws;
    char *kv;
    uint64_t layer_bytes;
} decoder;

static void layers(const decoder *d, const gr_extend *e)
{
    const gr_model_shape *s = &d->m->shape;
    const gr_packed b = {.n_tokens = e->n_tokens,
                         .n_seqs = e->n_seqs,
                         .ids = e->ids,
                         .offset = e->offset,
                         .position = e->position};
    k->embed_forward(&queue, s, d->m->w[0], &b, d->x);
    for (uint32_t l = 0; l < s->layers; l++)
        gr_layer_extend(k, &queue, s, l, d->m->w[l + 1], e, d->x, d->kv + l * d->layer_bytes, d->ws);
}

static void model_step(void *user, gr_queue *q, const gr_extend *e, const gr_steps_draw *draw)
{
    const decoder *d = user;
    layers(d, e);
    k->head_sample(q, &d->m->shape, norm_weight(d->m), head_matrix(d->m), d->x, draw->row, e->n_seqs,
                   draw->how, draw->draw, draw->id, draw->logprob, d->head_ws);
}

static uint64_t pool_bytes(const model *m, uint32_t blocks)
{
    return gr_layer_state_at(k, &m->shape, m->shape.layers, (gr_state_room){.blocks = blocks, .slots = 0});
}

/* kv [pool_bytes] */
static decoder decoder_of(const model *m, uint32_t tokens, uint32_t slots, uint32_t max_length, char *kv,
                          uint32_t blocks)
{
    const gr_model_shape *s = &m->shape;
    const gr_pass_bounds bounds = {.tokens = tokens, .seqs = slots, .length = max_length, .threads = 1};
    return (decoder){.m = m,
                     .x = take_poisoned((uint64_t)tokens * s->hidden * sizeof(gr_bf16)),
                     .ws = take_poisoned(gr_layers_ws_bytes(k, s, &bounds, GR_LAYER_EXTEND)),
                     .head_ws = take_poisoned(k->head_ws_bytes(s, slots, GR_HEAD_SAMPLE, 1)),
                     .kv = kv,
                     .layer_bytes = blocks * gr_layer_block_bytes(k, s, 0)};
}

/* Keys of all tokens of the prompts but the last, which is the first step's to feed. */
static void prefill(const decoder *d, const prompts *p, const uint32_t *table, uint32_t stride)
{
    gr_extend e = {.n_seqs = p->n, .table_stride = stride};
    uint32_t *offset = gr_calloc(p->n + 1, sizeof(*offset)), *cached = gr_calloc(p->n, sizeof(*cached)),
             *slot = gr_calloc(p->tokens, sizeof(*slot));
    int32_t *ids = gr_calloc(p->tokens, sizeof(*ids)), *position = gr_calloc(p->tokens, sizeof(*position));
    for (uint32_t i = 0; i < p->n; i++) {
        const uint32_t n = p->offset[i + 1] - p->offset[i] - 1;
        for (uint32_t t = 0; t < n; t++, e.n_tokens++) {
            ids[e.n_tokens] = p->ids[p->offset[i] + t];
            position[e.n_tokens] = (int32_t)t;
            slot[e.n_tokens] = table[i * stride + t / GR_KV_BLOCK] * GR_KV_BLOCK + t % GR_KV_BLOCK;
        }
        offset[i + 1] = e.n_tokens;
        e.longest = GR_MAX(e.longest, n);
    }
    e.ids = upload(ids, p->tokens * sizeof(*ids));
    e.position = upload(position, p->tokens * sizeof(*position));
    e.slot = upload(slot, p->tokens * sizeof(*slot));
    e.offset = upload(offset, (p->n + 1) * sizeof(*offset));
    e.cached = upload(cached, p->n * sizeof(*cached));
    e.block_table = upload(table, p->n * stride * sizeof(*table));
    layers(d, &e);
    free(offset), free(cached), free(slot), free(ids), free(position);
}

typedef struct tokens {
    int32_t id[64][TOKENS];
    float logprob[64][TOKENS];
} tokens;

/* Slot i is sequence i; each is a group of its own. */
static uint32_t set_slots(const gr_steps_input *in, const prompts *p, const uint32_t *table, uint32_t stride,
                          bool begin)
{
    for (uint32_t i = 0; i < p->n; i++) {
        const uint32_t last = p->offset[i + 1] - p->offset[i] - 1;
        in->member[i] = in->group_first[i] = i;
        in->shared[i] = 0;
        if (!begin) continue;
        in->change[i] = (gr_slot_change){.slot = i,
                                         .from = GR_SLOT_SET,
                                         .id = p->ids[p->offset[i] + last],
                                         .position = last,
                                         .sequence = i};
        memcpy(in->table + i * stride, table + i * stride, stride * sizeof(*table));
    }
    in->group_first[p->n] = p->n;
    return begin ? p->n : 0;
}

static void read_report(gr_steps *steps, uint32_t trip, const prompts *p, tokens *out)
{
    gr_steps_report r = {0};
    expect_ok(k->steps->report(steps, trip, &r, &diag), &diag, "report");
    for (uint32_t c = 0; c < CHUNK; c++)
        for (uint32_t i = 0; i < p->n; i++) {
            out->id[i][trip * CHUNK + c] = r.id[c * p->n + i];
            out->logprob[i][trip * CHUNK + c] = r.logprob[c * p->n + i];
        }
}

static void decode(const model *m, const prompts *p, tokens *out)
{
    const uint64_t mark = used;
    const uint32_t max_length = 256 + TOKENS, stride = (max_length + GR_KV_BLOCK - 1) / GR_KV_BLOCK,
                   trips = TOKENS / CHUNK;
    const gr_steps_bounds bounds = {
        .slots = p->n, .stride = stride, .max_length = max_length, .chunk = CHUNK};
    const gr_steps_rules rules = {.sampling = {.top_p = 1}, .max_tokens = TOKENS};
    uint32_t *table = gr_malloc(p->n * stride * sizeof(*table));
    for (uint32_t i = 0; i < p->n * stride; i++)
        table[i] = (i * 7 + 3) % (p->n * stride + 1); /* 7 and 145 have no divisor */
    const uint32_t blocks = p->n * stride + 1;
    decoder d = decoder_of(m, p->tokens, p->n, max_length, take_poisoned(pool_bytes(m, blocks)), blocks);
    void *host, *device = take_poisoned(k->steps->device_bytes(&m->shape, &bounds));
    gr_steps *steps = NULL;
    CUDA(cudaHostAlloc(&host, k->steps->host_bytes(&m->shape, &bounds), cudaHostAllocDefault));
    queue.peers = m->peers;
    prefill(&d, p, table, stride);
    expect_ok(k->steps->open(&steps, &m->shape, &bounds, &diag), &diag, "open");
    expect_ok(k->steps->begin(steps, &queue, device, host, &rules, &diag), &diag, "begin");
    for (uint32_t trip = 0; trip < trips; trip++) {
        if (trip >= 2) read_report(steps, trip - 2, p, out);
        const gr_steps_input in = k->steps->input(steps, trip);
        k->steps->change(steps, &queue, trip, set_slots(&in, p, table, stride, !trip), p->n);
        k->steps->run(steps, &queue, trip, &(gr_steps_chunk){.n = p->n, .step = model_step, .user = &d});
    }
    for (uint32_t trip = trips - 2; trip < trips; trip++) read_report(steps, trip, p, out);
    queue.peers = NULL;
    task_is_done(m->name);
    k->steps->close(steps);
    CUDA(cudaFreeHost(host));
    free(table);
    used = mark;
}

/* The prompts, each with what followed it. */
static prompts continued(const prompts *p, const tokens *t)
{
    prompts c = {.n = p->n, .ids = gr_malloc((p->tokens + p->n * TOKENS) * sizeof(*p->ids))};
    for (uint32_t i = 0; i < p->n; i++) {
        const uint32_t n = p->offset[i + 1] - p->offset[i];
        memcpy(c.ids + c.tokens, p->ids + p->offset[i], n * sizeof(*p->ids));
        memcpy(c.ids + c.tokens + n, t->id[i], TOKENS * sizeof(*p->ids));
        c.offset[i + 1] = c.tokens += n + TOKENS;
    }
    return c;
}

/* Up to the first token that differs; there the whole model's best two must be close. */
static void compare_tokens(const char *name, const model *whole, const prompts *p, const tokens *got,
                           const tokens *want)
{
    prompts c = continued(p, want);
    const uint32_t vocab = whole->shape.vocab;
    gr_bf16 *hidden;
    float *logits = forward(whole, &c, &hidden);
    const double tolerance = TOLERANCE * deviation(logits, (uint64_t)c.tokens * vocab);
    uint32_t same = 0, close = 0, other = 0;
    errors e = {0};
    for (uint32_t i = 0; i < p->n; i++) {
        const uint32_t first = c.offset[i] + (p->offset[i + 1] - p->offset[i]) - 1;
        uint32_t t = 0;
        float gap = 0;
        for (; t < TOKENS && got->id[i][t] == want->id[i][t]; t++)
            errors_add(&e, got->logprob[i][t], want->logprob[i][t]);
        same += t;
        if (t == TOKENS) continue;
        best_of(logits + (uint64_t)(first + t) * vocab, vocab, &gap);
        close += gap <= tolerance;
        other += !(gap <= tolerance);
    }
    report_errors(&e, name, "logp", 0.03);
    printf("%s: %u tokens of %u sequences are the same; %u differ where two were close, %u elsewhere  %s\n",
           name, same, p->n, close, other, other || same < p->n ? "FAIL" : "OK");
    check_failures += other || same < p->n;
    free(hidden);
    free(logits);
    free(c.ids);
}

/* ---- slices out of shards --------------------------------------------------------------------------------
 */

static gr_reshard reshard_of(const gr_model_shape *s)
{
    return (gr_reshard){s, {all->ranks, 1, 1}, 1, all->rank, all->ranks, k, &queue};
}

static void test_reshard(const char *type, const gr_model_shape *s)
{
    const uint64_t elems = gr_bucket_elems(s, 1), part = gr_shard_elems(elems, all->ranks);
    const gr_reshard r = reshard_of(s);
    uint64_t n;
    used = 0;
    gr_bf16 *h = random_bf16(part * all->ranks, 1, 9), *want = sliced(s, 1, h, &n);
    const void *whole = upload(h, elems * sizeof(*h)),
               *shard = upload(h + all->rank * part, part * sizeof(*h));
    gr_bf16 *buffer =
                take_poisoned(gr_reshard_room(s, (gr_slicing){all->ranks, 1, 1}, 1, all->ranks) * sizeof(*h)),
            *slice = take_poisoned(n * sizeof(*h));
    void *room = gr_malloc(gr_reshard_room_bytes(r.ranks, gr_slicing_parts(r.cut)));
    expect_ok(gr_reshard_run(&r, all, shard, slice, buffer, room, &diag), &diag, type);
    free(room);
    gr_bf16 *got = download(slice, n * sizeof(*h));
    task_is_done(type);
    report_equal(type, "shards", got, want, n * sizeof(*h));
    free(got);
    CUDA(cudaMemsetAsync(slice, 0xff, n * sizeof(*h), queue.stream));
    gr_reshard_local(&r, whole, slice);
    got = download(slice, n * sizeof(*h));
    task_is_done(type);
    report_equal(type, "whole", got, want, n * sizeof(*h));
    free(got);
    free(want);
    free(h);
}

/* ---- one model -------------------------------------------------------------------------------------------
 */

static prompts random_prompts(uint32_t vocab)
{
    static const uint32_t length[] = {33, 2, 64, 3, 17, 200, 5, 48};
    uint64_t state = 5;
    prompts p = {.n = GR_LEN(length)};
    for (uint32_t i = 0; i < p.n; i++) p.offset[i + 1] = p.tokens += length[i];
    p.ids = gr_malloc(p.tokens * sizeof(*p.ids));
    for (uint32_t i = 0; i < p.tokens; i++)
        p.ids[i] = (int32_t)(fabsf(random_float(&state)) * 1e6f) % (int32_t)vocab;
    return p;
}

static void one_model(const char *type, const gr_model_shape *shape, gr_tp_group *peers)
{
    char name[64];
    model whole = {"whole", *shape, NULL, NULL},
          slice = {"in slices", gr_tp_shape(shape, (gr_slicing){all->ranks, 1, 1}), NULL, peers};
    gr_bf16 *hidden[3];
    tokens *t = gr_calloc(3, sizeof(*t));
    prompts p = random_prompts(shape->vocab);
    snprintf(name, sizeof(name), "%s in %u", type, all->ranks);
    test_reshard(name, shape);
    used = 0;
    load(&whole, &slice);
    float *want = forward(&whole, &p, &hidden[0]), *got = forward(&slice, &p, &hidden[1]),
          *again = forward(&slice, &p, &hidden[2]);
    const uint64_t bytes = (uint64_t)p.tokens * shape->hidden * sizeof(gr_bf16);
    compare_logits(name, got, want, p.tokens, shape->vocab);
    report_same_everywhere(name, "hidden", hidden[1], bytes);
    report_equal(name, "again", hidden[2], hidden[1], bytes);
    decode(&whole, &p, &t[0]);
    for (int i = 1; i < 3; i++) decode(&slice, &p, &t[i]);
    compare_tokens(name, &whole, &p, &t[1], &t[0]);
    report_same_everywhere(name, "tokens", &t[1], sizeof(t[1]));
    report_equal(name, "again", &t[2], &t[1], sizeof(t[1]));
    expect_ok(peers->failed, &diag, name);
    for (int i = 0; i < 3; i++) free(hidden[i]);
    free(want), free(got), free(again);
    free(p.ids);
    free(t);
    unload(&whole);
    unload(&slice);
}

/* ---- --bench ---------------------------------------------------------------------------------------------
 */

static void *take_random(uint64_t bytes)
{
    enum { BLOCK = 2 << 20 };
    char *p = take(bytes);
    gr_bf16 *x = random_bf16(BLOCK / sizeof(*x), 0.02f, 1);
    for (uint64_t at = 0; at < bytes; at += BLOCK)
        CUDA(cudaMemcpyAsync(p + at, at ? (const void *)p : x, GR_MIN(bytes - at, (uint64_t)BLOCK),
                             cudaMemcpyDefault, queue.stream));
    CUDA(cudaStreamSynchronize(queue.stream));
    free(x);
    return p;
}

static model random_model(const char *name, const gr_model_shape *shape, gr_tp_group *peers)
{
    model m = {name, *shape, gr_calloc(gr_model_buckets(shape), sizeof(void *)), peers};
    for (uint32_t b = 0; b < gr_model_buckets(shape); b++)
        m.w[b] = take_random(gr_bucket_elems(shape, b) * sizeof(gr_bf16));
    return m;
}

/* Milliseconds of a step of so many slots, each of about `length` keys; of the slowest rank. */
static double decode_ms(const model *m, uint32_t slots, uint32_t length)
{
    enum { TRIPS = 6, BEFORE = 2 };
    const uint64_t mark = used;
    const uint32_t max_length = length + TRIPS * CHUNK + 1,
                   stride = (max_length + GR_KV_BLOCK - 1) / GR_KV_BLOCK;
    const gr_steps_bounds bounds = {
        .slots = slots, .stride = stride, .max_length = max_length, .chunk = CHUNK};
    const gr_steps_rules rules = {.sampling = {.temperature = 1, .top_p = 1, .seed = 1},
                                  .max_tokens = TRIPS * CHUNK + 1};
    decoder d =
        decoder_of(m, slots, slots, max_length, take_random(pool_bytes(m, slots * stride)), slots * stride);
    void *host, *device = take_poisoned(k->steps->device_bytes(&m->shape, &bounds));
    gr_steps *steps = NULL;
    gr_steps_report unused;
    cudaEvent_t begin, end;
    float ms;
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    CUDA(cudaHostAlloc(&host, k->steps->host_bytes(&m->shape, &bounds), cudaHostAllocDefault));
    queue.peers = m->peers;
    expect_ok(k->steps->open(&steps, &m->shape, &bounds, &diag), &diag, "open");
    expect_ok(k->steps->begin(steps, &queue, device, host, &rules, &diag), &diag, "begin");
    for (uint32_t trip = 0; trip < TRIPS; trip++) {
        if (trip >= 2) expect_ok(k->steps->report(steps, trip - 2, &unused, &diag), &diag, "report");
        const gr_steps_input in = k->steps->input(steps, trip);
        for (uint32_t i = 0; i < slots; i++) {
            in.member[i] = in.group_first[i] = i;
            in.shared[i] = 0;
            in.change[i] = (gr_slot_change){.slot = i,
                                            .from = GR_SLOT_SET,
                                            .id = (int32_t)(i % m->shape.vocab),
                                            .position = length,
                                            .sequence = i};
            for (uint32_t b = 0; b < stride; b++) in.table[i * stride + b] = i * stride + b;
        }
        in.group_first[slots] = slots;
        if (trip == BEFORE) CUDA(cudaEventRecord(begin, queue.stream));
        k->steps->change(steps, &queue, trip, trip ? 0 : slots, slots);
        k->steps->run(steps, &queue, trip, &(gr_steps_chunk){.n = slots, .step = model_step, .user = &d});
    }
    CUDA(cudaEventRecord(end, queue.stream));
    queue.peers = NULL;
    task_is_done(m->name);
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    k->steps->close(steps);
    CUDA(cudaFreeHost(host));
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
    used = mark;
    uint64_t us = (uint64_t)(ms * 1e3f);
    expect_ok(gr_comm_agree(all, &us, &diag), &diag, "time");
    return (double)us * 1e-3 / ((TRIPS - BEFORE) * CHUNK);
}

typedef struct pass {
    const model *m;
    gr_packed b;
    void *x, *ws;
} pass;

static void one_pass(void *arg, int i)
{
    const pass *p = arg;
    (void)i;
    queue.peers = p->m->peers;
    for (uint32_t l = 1; l <= p->m->shape.layers; l++)
        gr_layer_forward(k, &queue, &p->m->shape, l - 1, p->m->w[l], &p->b, p->x, NULL, NULL, p->ws);
    queue.peers = NULL;
}

/* Milliseconds of all layers over 16 sequences of 1,024 tokens. */
static double pass_ms(const model *m)
{
    enum { SEQS = 16, LENGTH = 1024 };
    const uint64_t mark = used;
    prompts p = {.n = SEQS, .tokens = SEQS * LENGTH, .ids = gr_calloc(SEQS * LENGTH, sizeof(*p.ids))};
    for (uint32_t i = 0; i < SEQS; i++) p.offset[i + 1] = (i + 1) * LENGTH;
    uint32_t longest;
    cudaEvent_t begin, end;
    float ms;
    pass one = {.m = m, .b = packed_of(&p, &longest)};
    one.x = take_random((uint64_t)p.tokens * m->shape.hidden * sizeof(gr_bf16));
    one.ws = take_poisoned(gr_layers_ws_bytes(
        k, &m->shape, &(gr_pass_bounds){.tokens = p.tokens, .seqs = p.n, .length = longest, .threads = 1},
        GR_LAYER_FORWARD));
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    one_pass(&one, 0);
    CUDA(cudaEventRecord(begin, queue.stream));
    for (int i = 0; i < 2; i++) one_pass(&one, i);
    CUDA(cudaEventRecord(end, queue.stream));
    task_is_done(m->name);
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
    free(p.ids);
    used = mark;
    return ms / 2;
}

static void bench_model(const char *name, const gr_model_shape *shape, gr_tp_group *peers)
{
    static const uint32_t slots[] = {1, 64, 256};
    const gr_model_shape cut = gr_tp_shape(shape, (gr_slicing){all->ranks, 1, 1});
    used = 0;
    model whole = random_model("whole", shape, NULL), slice = random_model("in slices", &cut, peers);
    for (size_t i = 0; i < GR_LEN(slots); i++) {
        const double one = decode_ms(&whole, slots[i], 640), parts = decode_ms(&slice, slots[i], 640);
        if (!all->rank)
            printf("decode step of %s, %3u slots of 640 keys: whole %7.3f ms, in %u slices %7.3f ms, "
                   "%.2f times "
                   "as fast\n",
                   name, slots[i], one, all->ranks, parts, one / parts);
    }
    const double one = pass_ms(&whole), parts = pass_ms(&slice);
    if (!all->rank)
        printf("layers of %s, 16 x 1024 tokens: whole %.1f ms, in %u slices %.1f ms, %.2f times as fast\n",
               name, one, all->ranks, parts, one / parts);
    unload(&whole);
    unload(&slice);
    fflush(stdout);
}

/* A layer from shards into slices. */
static void bench_reshard(const char *name, const gr_model_shape *s)
{
    enum { TIMES = 20 };
    const gr_model_shape cut = gr_tp_shape(s, (gr_slicing){all->ranks, 1, 1});
    const gr_reshard r = reshard_of(s);
    used = 0;
    void *shard = take_random(gr_shard_elems(gr_bucket_elems(s, 1), all->ranks) * sizeof(gr_bf16)),
         *slice = take_random(gr_bucket_elems(&cut, 1) * sizeof(gr_bf16)),
         *buffer =
             take_random(gr_reshard_room(s, (gr_slicing){all->ranks, 1, 1}, 1, all->ranks) * sizeof(gr_bf16));
    gr_reshard_part *in = gr_calloc(all->ranks, sizeof(*in));
    uint64_t come = 0;
    cudaEvent_t begin, end;
    float ms;
    gr_reshard_expect(&r, in);
    for (uint32_t i = 0; i < all->ranks; i++) come += i == all->rank ? 0 : in[i].n * sizeof(gr_bf16);
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    for (int i = 0; i < TIMES + 2; i++) {
        if (i == 2) CUDA(cudaEventRecord(begin, queue.stream));
        void *room = gr_malloc(gr_reshard_room_bytes(r.ranks, gr_slicing_parts(r.cut)));
        expect_ok(gr_reshard_run(&r, all, shard, slice, buffer, room, &diag), &diag, name);
        free(room);
    }
    CUDA(cudaEventRecord(end, queue.stream));
    task_is_done(name);
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (!all->rank)
        printf("a layer of %s from %u shards into %u slices: %.1f us; %.1f MB come from others\n", name,
               all->ranks, all->ranks, (double)ms * 1e3 / TIMES, (double)come * 1e-6);
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
    free(in);
}

static gr_model_shape qwen3(uint32_t hidden, uint32_t inter, uint32_t layers, uint32_t heads, bool tied)
{
    gr_model_shape s = shape_of("qwen3", hidden, heads, 8, 128);
    s.vocab = 151936;
    s.kinds[0].dense.inner = inter;
    s.layers = layers;
    s.tied = tied;
    s.max_positions = 40960;
    return s;
}

static void bench(gr_tp_group *peers)
{
    const gr_model_shape small = qwen3(1024, 3072, 28, 16, true), large = qwen3(4096, 12288, 36, 32, false);
    bench_reshard("0.6B", &small);
    bench_reshard("8B", &large);
    bench_model("0.6B", &small, peers);
    bench_model("8B", &large, peers);
}

/* Rows of an odd number of elements out of a matrix, between rows of another that stay as they are. */
static void test_copy_rows(void)
{
    enum { ROWS_N = 37, FROM = 96, TO = 40, N = 33 };
    gr_bf16 *x = random_bf16(ROWS_N * FROM, 1, 3), *want = gr_malloc(ROWS_N * TO * sizeof(*want));
    memset(want, 0xff, ROWS_N * TO * sizeof(*want));
    for (size_t r = 0; r < ROWS_N; r++) memcpy(want + r * TO, x + r * FROM + 5, N * sizeof(*x));
    const gr_bf16 *from = upload(x, ROWS_N * FROM * sizeof(*x));
    gr_bf16 *to = take_poisoned(ROWS_N * TO * sizeof(*to));
    k->copy_rows(&queue, to, TO * sizeof(*to), from + 5, FROM * sizeof(*x), N * sizeof(*x), ROWS_N);
    k->copy_rows(&queue, to, 0, from, 0, 0, 0);
    k->copy_rows(&queue, to + N, 0, from, 0, sizeof(*to), 1);
    k->copy_rows(&queue, to + N + 1, sizeof(*to), from + 7, sizeof(*to), sizeof(*to), 3);
    want[N] = x[0];
    memcpy(want + N + 1, x + 7, 3 * sizeof(*x));
    gr_bf16 *got = download(to, ROWS_N * TO * sizeof(*to));
    task_is_done("rows");
    report_equal("rows copied", "", got, want, ROWS_N * TO * sizeof(*want));
    free(x), free(want), free(got);
}

/* Sinks, and biases that the first slice adds, also those of experts. */
static gr_model_shape biased(void)
{
    gr_model_shape s = shape_of("qwen3_moe", 256, 8, 4, 32);
    gr_layer_desc d = *gr_layer(&s, 0);
    d.attention.qk_norm = GR_QK_NORM_NONE;
    d.attention.qkv_bias = d.attention.o_bias = d.attention.sinks = true;
    d.experts.act = GR_ACT_SWIGLU_OAI;
    d.experts.limit = 7;
    d.experts.router_bias = d.experts.bias = d.experts.softmax_after = true;
    gr_model_of(&s, &d);
    return s;
}

static void test(gr_tp_group *peers)
{
    const gr_model_shape llama = shape_of("llama", 256, 8, 4, 32), qwen2 = shape_of("qwen2", 256, 8, 4, 32),
                         qwen3 = shape_of("qwen3", 512, 8, 4, 128), with_biases = biased();
    test_copy_rows();
    one_model("llama", &llama, peers);
    one_model("qwen2", &qwen2, peers);
    one_model("qwen3", &qwen3, peers);
    one_model("biases", &with_biases, peers);
}

static double mib_used(gr_device *device)
{
    return (double)gr_device_cuda.used(device) / (1 << 20);
}

/* And what it takes, of sums alone. */
static gr_comm *open_group(gr_device *device)
{
    const double before = mib_used(device);
    gr_comm *group = NULL;
    expect_ok(gr_comm_split(&group, all, 0, &diag), &diag, "split");
    if (check_failures) gr_comm_abort(all, 1);
    const double opened = mib_used(device);
    for (uint64_t bytes = 64; bytes <= 64 << 20; bytes *= 1024)
        expect_ok(group->type->all_reduce(group, &queue, arena, bytes, GR_COMM_SUM_BF16, &diag), &diag,
                  "sum");
    task_is_done("group");
    printf("rank %u: a group of %u takes %.1f MiB, with sums %.1f\n", all->rank, group->ranks,
           opened - before, mib_used(device) - before);
    return group;
}

int main(int argc, char **argv)
{
    const bool benching = argc > 1 && !strcmp(argv[1], "--bench");
    const char *local = getenv("OMPI_COMM_WORLD_LOCAL_RANK"), *locals = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    gr_comm *host = NULL;
    gr_device *device = NULL;
    int n = 0;
    gr_diag_init(&diag);
    if (local && locals) gr_comm_take_device((uint32_t)atoi(local), (uint32_t)atoi(locals));
    if (!local || cudaGetDeviceCount(&n) != cudaSuccess || n < 1) {
        printf("not one of several processes that mpirun started, or no CUDA device: skipped\n");
        return 77;
    }
    arena_bytes = benching ? UINT64_C(72) << 30 : UINT64_C(1) << 30;
    const gr_device_needs needs = {.arena_bytes = arena_bytes, .events = 1};
    expect_ok(gr_comm_open_mpi(&host, lost, &diag), &diag, "MPI");
    if (check_failures) return 1;
    expect_ok(gr_device_cuda.open(&device, &needs, &diag), &diag, "device");
    if (check_failures) gr_comm_abort(host, 1);
    arena = device->arena.base;
    expect_ok(gr_device_cuda.queue_open(device, &queue, false, &diag), &diag, "queue");
    expect_ok(k->attach(&queue, &diag), &diag, "attach");
    expect_ok(gr_comm_open_nccl(&all, host, &device->arena, &diag), &diag, "NCCL");
    if (check_failures) gr_comm_abort(host, 1);
    gr_tp_group peers = {.comm = open_group(device), .d = &diag, .arena = device->arena};
    if (benching)
        bench(&peers);
    else
        test(&peers);
    k->detach(&queue);
    gr_comm_close(peers.comm);
    gr_comm_close(all);
    gr_comm_close(host);
    gr_device_cuda.queue_close(&queue);
    gr_device_cuda.close(device);
    gr_diag_release(&diag);
    printf("%s\n", check_failures ? "FAILED" : "0 failures");
    return check_failures != 0;
}
