/* tests/gpu/gpu_model.c: whole passes of a model on CUDA beside the CPU reference, from the same bf16
 * weights.
 *
 * Forward, head statistics, gradients of every tensor, new tokens through the paged pool, and greedy
 * sampling; where kernels have batch invariance, what the pool gives has the bits of the packed pass. Layers
 * that predict a further token, and value heads, over hidden states of their own. --small: one model where
 * graphs ask for other than the usual kernels. --own: value heads alone, for whole passes have products of
 * cuBLASLt.
 */
#include "ops/kernels/ahead.h"
#include "ops/kernels/carried.h"
#include "ops/kernels/head.h"
#include "ops/kernels/layer.h"
#include "ops/model/ahead.h"
#include "runtime/device/device_cuda.h"
#include "runtime/base/half.h"
#include "tests/gpu/attach.h"
#include "tests/gpu/models.h"

enum { CHUNK = 64, BLOCKS = 256, ARENA = 1 << 30, PARTS = 2 /* of the vocabulary */ };

typedef struct side { /* the model on one device */
    const gr_kernels *k;
    gr_queue q;
    char *arena; /* handed out from the front, never given back before the case ends */
    uint64_t used;
    void **w, **g;
    bool in_parts; /* embedding and head a part of the vocabulary after the other, as ranks have them */
} side;

typedef struct batch {
    uint32_t n, seqs;
    uint32_t *offset, *row;
    int32_t *ids, *target;
    float *d_logprob, *d_entropy;
} batch;

typedef struct result { /* host memory, fp32 */
    float *logprob, *entropy, *sum_p2, *hidden;
    float **grad;
} result;

static void *take(side *s, uint64_t bytes)
{
    void *p;
    bytes = gr_align(bytes, 256);
    if (s->k == &gr_kernels_cpu) {
        p = memset(aligned_alloc(256, bytes), 0xff, bytes);
    } else {
        p = s->arena + s->used;
        s->used += bytes;
        if (s->used > ARENA) {
            printf("the test's arena is too small\n");
            exit(1);
        }
        CUDA(cudaMemsetAsync(p, 0xff, bytes, s->q.stream)); /* in the order of what will use it */
    }
    return p;
}

static void *upload(side *s, const void *host, uint64_t bytes)
{
    void *p = take(s, bytes);
    gr_device_write(&s->q, p, host, bytes);
    return p;
}

/* fp32 values in the side's type. */
static void *upload_values(side *s, const float *x, uint64_t n)
{
    if (s->k->dtype == GR_F32) return upload(s, x, n * sizeof(*x));
    uint16_t *h = gr_malloc(n * sizeof(*h));
    for (uint64_t i = 0; i < n; i++) h[i] = gr_f32_to_bf16(x[i]);
    void *p = upload(s, h, n * sizeof(*h));
    free(h);
    return p;
}

static float *download_values(side *s, const void *p, uint64_t n)
{
    float *x = gr_malloc(n * sizeof(*x) + 4);
    if (s->k->dtype == GR_F32) {
        gr_device_read(&s->q, x, p, n * sizeof(*x));
        return x;
    }
    uint16_t *h = gr_malloc(n * sizeof(*h) + 4);
    gr_device_read(&s->q, h, p, n * sizeof(*h));
    for (uint64_t i = 0; i < n; i++) x[i] = gr_bf16_to_f32(h[i]);
    free(h);
    return x;
}

static float *download(side *s, const void *p, uint64_t n)
{
    float *x = gr_malloc(n * sizeof(*x) + 4);
    gr_device_read(&s->q, x, p, n * sizeof(*x));
    return x;
}

static void load(side *s, const gr_model_shape *shape)
{
    uint32_t n = gr_model_buckets(shape);
    s->w = gr_calloc(n, sizeof(*s->w));
    s->g = gr_calloc(n, sizeof(*s->g));
    for (uint32_t b = 0; b < n; b++) {
        float *w = random_bucket(shape, b, 11);
        uint64_t elems = gr_bucket_elems(shape, b);
        s->w[b] = upload_values(s, w, elems);
        s->g[b] = take(s, elems * sizeof(float));
        s->k->zero(&s->q, s->g[b], elems * sizeof(float));
        free(w);
    }
}

static batch random_batch(const gr_model_shape *s, const uint32_t *length, uint32_t seqs)
{
    batch b = {.seqs = seqs, .offset = gr_calloc(seqs + 1, sizeof(uint32_t))};
    uint64_t state = 5;
    for (uint32_t i = 0; i < seqs; i++) b.n = b.offset[i + 1] = b.offset[i] + length[i];
    b.ids = gr_calloc(b.n, sizeof(*b.ids));
    b.row = gr_calloc(b.n, sizeof(*b.row));
    b.target = gr_calloc(b.n, sizeof(*b.target));
    b.d_logprob = gr_calloc(b.n, sizeof(float));
    b.d_entropy = gr_calloc(b.n, sizeof(float));
    for (uint32_t i = 0; i < b.n; i++) {
        b.ids[i] = (int32_t)(fabsf(random_float(&state)) * 1e6f) % (int32_t)s->vocab;
        b.target[i] = (int32_t)(fabsf(random_float(&state)) * 1e6f) % (int32_t)s->vocab;
        b.row[i] = i;
        b.d_logprob[i] = random_float(&state);
        b.d_entropy[i] = 0.3f * random_float(&state);
    }
    return b;
}

static void batch_free(batch *b)
{
    free(b->offset), free(b->row), free(b->ids), free(b->target), free(b->d_logprob), free(b->d_entropy);
}

static uint64_t value_size(const side *s)
{
    return gr_dtype_size(s->k->dtype);
}

static const void *head_matrix(const side *s, const gr_model_shape *shape)
{
    uint64_t at;
    uint32_t bucket = gr_model_head_bucket(shape, &at);
    return (const char *)s->w[bucket] + at * value_size(s);
}

static const void *norm_weight(const side *s, const gr_model_shape *shape)
{
    uint32_t last = shape->layers + 1;
    return (const char *)s->w[last] + gr_tensor_offset(shape, last, GR_T_NORM) * value_size(s);
}

/* ---- what layers hand on ----------------------------------------------------------------------------------
 */

/* NULL: nothing. */
static void *take_carried(side *s, const gr_model_shape *shape, uint32_t tokens, bool packed)
{
    const uint64_t bytes = gr_carried_bytes(s->k, shape, tokens, packed);
    return bytes ? take(s, bytes) : NULL;
}

/* Embeddings of each layer, of what was embedded. */
static void per_layer(side *s, const gr_model_shape *shape, const gr_packed *p, const void *x, void *ws)
{
    if (shape->per_layer.vocab)
        gr_per_layer_forward(s->k, &s->q, shape, s->w[gr_model_per_layer_bucket(shape)], p, x, ws);
}

static void per_layer_back(side *s, const gr_model_shape *shape, const gr_packed *p, const void *x, void *dx,
                           void *ws)
{
    const uint32_t bucket = gr_model_per_layer_bucket(shape);
    if (shape->per_layer.vocab)
        gr_per_layer_backward(s->k, &s->q, shape, s->w[bucket], p, x, dx, s->g[bucket], GR_F32, ws);
}

/* ---- parts of the vocabulary ------------------------------------------------------------------------------
 */

/* ids [n], host memory, relative to a part's first one, -1 outside. */
static int32_t *part_ids(side *s, const int32_t *ids, uint32_t n, uint32_t vocab, uint32_t part)
{
    int32_t *own = gr_calloc(n, sizeof(*own));
    for (uint32_t i = 0; i < n; i++)
        own[i] = (uint32_t)ids[i] / vocab == part ? ids[i] - (int32_t)(part * vocab) : -1;
    int32_t *to = upload(s, own, n * sizeof(*own));
    free(own);
    return to;
}

static gr_model_shape part_of(const gr_model_shape *s)
{
    gr_model_shape part = *s;
    part.vocab /= PARTS;
    return part;
}

static char *rows_from(const void *matrix, const gr_model_shape *part, uint32_t i, uint64_t size)
{
    return (char *)(uintptr_t)matrix + (uint64_t)i * part->vocab * part->hidden * size;
}

/* What head_forward and head_backward do, of rows whose targets are ids [n], host memory. */
static void head_in_parts(side *s, const gr_model_shape *shape, const gr_head_rows *rows, const int32_t *ids,
                          const float *const d[2], const void *x, const gr_head_stats *out, void *dx,
                          void *g_norm, void *g_lm)
{
    const gr_kernels *k = s->k;
    const gr_model_shape part = part_of(shape);
    const uint64_t states = (uint64_t)rows->n * shape->hidden, bytes = states * value_size(s);
    void *hidden = take(s, bytes), *d_hidden = take(s, bytes), *sum = take(s, bytes), *ws[PARTS];
    float *sums = take(s, PARTS * rows->n * GR_HEAD_PART * sizeof(float)), *lse = take(s, rows->n * 4);
    gr_head_rows own[PARTS];
    k->head->hidden(&s->q, shape, norm_weight(s, shape), x, rows->row, rows->n, hidden);
    for (uint32_t i = 0; i < PARTS; i++) {
        own[i] = *rows;
        own[i].target = part_ids(s, ids, rows->n, part.vocab, i);
        ws[i] = take(s, k->head->part_ws_bytes(&part, rows->n, rows->n, GR_HEAD_GRADIENT, 1));
        k->head->part(&s->q, &part, rows_from(head_matrix(s, shape), &part, i, value_size(s)), hidden,
                      &own[i], sums + (uint64_t)i * rows->n * GR_HEAD_PART, ws[i]);
    }
    k->head->join(&s->q, sums, PARTS, rows->n, rows->inv_temperature, out, lse);
    k->zero(&s->q, sum, bytes);
    for (uint32_t i = 0; i < PARTS; i++) {
        k->head->part_backward(&s->q, &part, rows_from(head_matrix(s, shape), &part, i, value_size(s)),
                               hidden, &own[i], lse, out->entropy, d[0], d[1], d_hidden,
                               rows_from(g_lm, &part, i, sizeof(float)), GR_F32, ws[i]);
        k->add(&s->q, sum, d_hidden, k->dtype, states);
    }
    k->head->hidden_backward(&s->q, shape, norm_weight(s, shape), x, rows->row, rows->n, sum, dx, g_norm,
                             GR_F32, ws[0]);
}

static void embed_in_parts(side *s, const gr_model_shape *shape, const batch *b, void *x)
{
    const gr_model_shape part = part_of(shape);
    const uint64_t states = (uint64_t)b->n * shape->hidden;
    void *own = take(s, states * value_size(s));
    s->k->zero(&s->q, x, states * value_size(s));
    for (uint32_t i = 0; i < PARTS; i++) {
        const gr_packed p = {.n_tokens = b->n, .ids = part_ids(s, b->ids, b->n, part.vocab, i)};
        s->k->embed_forward(&s->q, &part, rows_from(s->w[0], &part, i, value_size(s)), &p, own);
        s->k->add(&s->q, x, own, s->k->dtype, states);
    }
}

static void embed_back_in_parts(side *s, const gr_model_shape *shape, const batch *b, const void *dx,
                                void *ws)
{
    const gr_model_shape part = part_of(shape);
    for (uint32_t i = 0; i < PARTS; i++) {
        const gr_packed p = {.n_tokens = b->n, .ids = part_ids(s, b->ids, b->n, part.vocab, i)};
        s->k->embed_backward(&s->q, &part, &p, dx, rows_from(s->g[0], &part, i, sizeof(float)), GR_F32, ws);
    }
}

/* Forward, head, backward of sum(d_logprob logprob + d_entropy entropy). */
static result run(side *s, const gr_model_shape *shape, const batch *b, uint32_t longest)
{
    const gr_kernels *k = s->k;
    gr_queue *q = &s->q;
    const gr_pass_bounds bounds = {.tokens = b->n, .seqs = b->seqs, .length = longest, .threads = 1};
    uint64_t ws_bytes = GR_MAX(gr_layers_ws_bytes(k, shape, &bounds, GR_LAYER_FORWARD),
                               gr_layers_ws_bytes(k, shape, &bounds, GR_LAYER_BACKWARD));
    ws_bytes = GR_MAX(ws_bytes, gr_per_layer_ws_bytes(k, shape, b->n, 1, true));
    void *ws = take(s, GR_MAX(ws_bytes, k->embed_ws_bytes(b->n)));
    void *head_ws = take(s, k->head_ws_bytes(shape, CHUNK, GR_HEAD_GRADIENT, 1));
    int32_t *position = gr_calloc(b->n, sizeof(*position));
    for (uint32_t i = 0; i < b->seqs; i++)
        for (uint32_t t = b->offset[i]; t < b->offset[i + 1]; t++) position[t] = (int32_t)(t - b->offset[i]);
    const gr_packed p = {.n_tokens = b->n,
                         .n_seqs = b->seqs,
                         .ids = upload(s, b->ids, b->n * 4),
                         .offset = upload(s, b->offset, (b->seqs + 1) * 4),
                         .host_offset = b->offset,
                         .position = upload(s, position, b->n * 4),
                         .carried = take_carried(s, shape, b->n, true),
                         .d_carried = take_carried(s, shape, b->n, true)};
    free(position);
    const uint32_t *row = upload(s, b->row, b->n * 4);
    const int32_t *target = upload(s, b->target, b->n * 4);
    const float *dl = upload(s, b->d_logprob, b->n * 4), *de = upload(s, b->d_entropy, b->n * 4);
    const uint64_t hidden = (uint64_t)b->n * shape->hidden;
    void *x = take(s, hidden * value_size(s)), *dx = take(s, hidden * value_size(s));
    float *logprob = take(s, b->n * 4), *entropy = take(s, b->n * 4), *sum_p2 = take(s, b->n * 4);
    void **in = gr_calloc(shape->layers, sizeof(*in)), **acts = gr_calloc(shape->layers, sizeof(*acts));
    if (s->in_parts)
        embed_in_parts(s, shape, b, x);
    else
        k->embed_forward(q, shape, s->w[0], &p, x);
    per_layer(s, shape, &p, x, ws);
    for (uint32_t l = 0; l < shape->layers; l++) {
        in[l] = take(s, hidden * value_size(s));
        acts[l] = take(s, gr_layer_acts_bytes(k, shape, l, &bounds));
        gr_layer_forward(k, q, shape, l, s->w[l + 1], &p, x, in[l], acts[l], ws);
    }
    uint64_t lm_at;
    uint32_t lm_bucket = gr_model_head_bucket(shape, &lm_at), last = shape->layers + 1;
    k->zero(q, dx, hidden * value_size(s));
    for (uint32_t at = 0; at < b->n; at += CHUNK) {
        const gr_head_rows rows = {.n = GR_MIN(CHUNK, b->n - at),
                                   .row = row + at,
                                   .target = target + at,
                                   .inv_temperature = 0.8f,
                                   .keep = true};
        const gr_head_stats out = {logprob + at, entropy + at, sum_p2 + at};
        float *g_norm = (float *)s->g[last] + gr_tensor_offset(shape, last, GR_T_NORM),
              *g_lm = (float *)s->g[lm_bucket] + lm_at;
        if (s->in_parts) {
            head_in_parts(s, shape, &rows, b->target + at, (const float *const[]){dl + at, de + at}, x, &out,
                          dx, g_norm, g_lm);
            continue;
        }
        k->head_forward(q, shape, norm_weight(s, shape), head_matrix(s, shape), x, &rows, &out, head_ws);
        k->head_backward(q, shape, norm_weight(s, shape), head_matrix(s, shape), x, &rows, dl + at, de + at,
                         dx, g_norm, g_lm, GR_F32, head_ws);
    }
    for (uint32_t l = shape->layers; l--;)
        gr_layer_backward(k, q, shape, l, s->w[l + 1], NULL, &p, in[l], acts[l], dx, s->g[l + 1], GR_F32, ws);
    per_layer_back(s, shape, &p, in[0], dx, ws);
    if (s->in_parts)
        embed_back_in_parts(s, shape, b, dx, ws);
    else
        k->embed_backward(q, shape, &p, dx, s->g[0], GR_F32, ws);
    result r = {download(s, logprob, b->n), download(s, entropy, b->n), download(s, sum_p2, b->n),
                download_values(s, x, hidden), gr_calloc(gr_model_buckets(shape), sizeof(float *))};
    for (uint32_t i = 0; i < gr_model_buckets(shape); i++)
        r.grad[i] = download(s, s->g[i], gr_bucket_elems(shape, i));
    free(in), free(acts);
    return r;
}

/* The last token of each sequence by way of the pool: a prefill of all but the last `steps` tokens, then one
 * at a time; greedy ids after it, the log-probs of the drawn ids, and hidden states [seqs, H], of which those
 * of sequences with more tokens than steps count. */
static void extend(side *s, const gr_model_shape *shape, const batch *b, uint32_t steps, int32_t *id,
                   float *logprob, float *hidden)
{
    const gr_kernels *k = s->k;
    gr_queue *q = &s->q;
    const gr_pass_bounds bounds = {.tokens = b->n, .seqs = b->seqs, .length = b->n, .threads = 1};
    const uint32_t stride = BLOCKS / b->seqs;
    void *ws = take(s, GR_MAX(gr_layers_ws_bytes(k, shape, &bounds, GR_LAYER_EXTEND),
                              gr_per_layer_ws_bytes(k, shape, b->n, 1, false))),
         *carried = take_carried(s, shape, b->n, false),
         *head_ws = take(s, k->head_ws_bytes(shape, b->seqs, GR_HEAD_SAMPLE, 1));
    void *x = take(s, (uint64_t)b->n * shape->hidden * value_size(s));
    char *kv = take(
        s, gr_layer_state_at(k, shape, shape->layers, (gr_state_room){.blocks = BLOCKS, .slots = b->seqs}));
    uint32_t *table = gr_calloc(b->seqs * stride, 4), *cached = gr_calloc(b->seqs, 4),
             *held = gr_calloc(b->seqs, 4);
    for (uint32_t i = 0; i < b->seqs; i++) held[i] = (i + 3) % b->seqs;
    for (uint32_t i = 0; i < b->seqs * stride; i++)
        table[i] = i * 7 % (b->seqs * stride); /* 7 and 256 have no divisor */
    const uint32_t *table_at = upload(s, table, b->seqs * stride * 4),
                   *held_at = upload(s, held, b->seqs * 4);
    uint32_t *row = gr_calloc(b->seqs, 4);
    for (uint32_t step = 0; step <= steps; step++) {
        gr_extend e = {.n_seqs = b->seqs,
                       .block_table = table_at,
                       .table_stride = stride,
                       .held = held_at,
                       .carried = carried};
        uint32_t *offset = gr_calloc(b->seqs + 1, 4), *slot = gr_calloc(b->n, 4);
        int32_t *ids = gr_calloc(b->n, 4), *position = gr_calloc(b->n, 4);
        for (uint32_t i = 0; i < b->seqs; i++) {
            uint32_t length = b->offset[i + 1] - b->offset[i], all = length > steps ? length - steps : 1;
            uint32_t n = step == 0 ? all : (cached[i] < length ? 1 : 0);
            for (uint32_t j = 0; j < n; j++) {
                uint32_t at = cached[i] + j;
                ids[e.n_tokens] = b->ids[b->offset[i] + at];
                position[e.n_tokens] = (int32_t)at;
                slot[e.n_tokens++] = table[i * stride + at / GR_KV_BLOCK] * GR_KV_BLOCK + at % GR_KV_BLOCK;
            }
            offset[i + 1] = e.n_tokens;
            e.longest = GR_MAX(e.longest, n);
            if (n) row[i] = e.n_tokens - 1;
        }
        e.ids = upload(s, ids, b->n * 4);
        e.offset = upload(s, offset, (b->seqs + 1) * 4);
        e.cached = upload(s, cached, b->seqs * 4);
        e.position = upload(s, position, b->n * 4);
        e.slot = upload(s, slot, b->n * 4);
        const gr_packed p = {.n_tokens = e.n_tokens,
                             .n_seqs = e.n_seqs,
                             .ids = e.ids,
                             .offset = e.offset,
                             .host_offset = offset,
                             .position = e.position,
                             .carried = carried};
        k->embed_forward(q, shape, s->w[0], &p, x);
        per_layer(s, shape, &p, x, ws);
        for (uint32_t l = 0; l < shape->layers; l++)
            gr_layer_extend(k, q, shape, l, s->w[l + 1], &e, x,
                            kv + gr_layer_state_at(k, shape, gr_model_keys_of(shape, l),
                                                   (gr_state_room){.blocks = BLOCKS, .slots = b->seqs}),
                            ws);
        for (uint32_t i = 0; i < b->seqs; i++) cached[i] += offset[i + 1] - offset[i];
        free(offset), free(slot), free(ids), free(position);
    }
    uint32_t(*draw)[2] = gr_calloc(b->seqs, sizeof(*draw));
    const gr_sampling greedy = {.top_p = 1};
    int32_t *id_at = take(s, b->seqs * 4);
    float *logprob_at = take(s, b->seqs * 4);
    const uint32_t *row_at = upload(s, row, b->seqs * 4);
    const uint32_t(*draw_at)[2] = upload(s, draw, b->seqs * sizeof(*draw));
    k->head_sample(q, shape, norm_weight(s, shape), head_matrix(s, shape), x, row_at, b->seqs, &greedy,
                   draw_at, id_at, logprob_at, head_ws);
    gr_device_read(q, id, id_at, b->seqs * 4);
    gr_device_read(q, logprob, logprob_at, b->seqs * 4);
    float *all = download_values(s, x, (uint64_t)b->n * shape->hidden);
    for (uint32_t i = 0; i < b->seqs; i++)
        memcpy(hidden + (uint64_t)i * shape->hidden, all + (uint64_t)row[i] * shape->hidden,
               shape->hidden * sizeof(*hidden));
    free(all);
    free(table), free(cached), free(held), free(row), free(draw);
}

static void compare(const char *name, const char *what, const float *got, const float *want, uint64_t n,
                    double bound)
{
    errors e = {0};
    for (uint64_t i = 0; i < n; i++) errors_add(&e, (double)got[i], (double)want[i]);
    report_errors(&e, name, what, bound);
}

/* Of decays: sums over all tokens whose terms mostly cancel. Of a model like `hybrid` transformers' own
 * gradients in bf16 are 2 to 9 % off those in fp32. */
static double gradient_bound(const char *tensor)
{
    return strstr(tensor, ".A_log") || strstr(tensor, ".dt_bias") ? 0.15 : 0.04;
}

static void compare_gradients(const char *name, const gr_model_shape *s, const result *got,
                              const result *want)
{
    gr_tensor t[GR_BUCKET_TENSORS_MAX];
    for (uint32_t b = 0; b < gr_model_buckets(s); b++)
        for (size_t i = 0, n = gr_bucket_tensors(s, b, t); i < n; i++) {
            char what[160];
            snprintf(what, sizeof(what), "%.40s d %.96s", name, t[i].name);
            compare(what, "grad", got->grad[b] + t[i].offset, want->grad[b] + t[i].offset,
                    (uint64_t)t[i].rows * GR_MAX(t[i].cols, 1u), gradient_bound(t[i].name));
        }
}

static void compare_results(const char *name, const gr_model_shape *shape, const batch *b, const result *got,
                            const result *want)
{
    compare(name, "hidden", got->hidden, want->hidden, (uint64_t)b->n * shape->hidden, 0.03);
    compare(name, "logp", got->logprob, want->logprob, b->n, 0.01);
    compare(name, "entr", got->entropy, want->entropy, b->n, 0.01);
    compare(name, "sump2", got->sum_p2, want->sum_p2, b->n, 0.05);
    compare_gradients(name, shape, got, want);
}

/* hidden [seqs, H]: by way of the pool, that many steps. */
static void same_as_packed(const char *name, const gr_model_shape *shape, const batch *b, uint32_t steps,
                           const float *hidden, const float *packed)
{
    const uint64_t h = shape->hidden;
    bool same = true;
    for (uint32_t i = 0; i < b->seqs; i++)
        if (b->offset[i + 1] - b->offset[i] > steps)
            same = same && !memcmp(hidden + i * h, packed + (b->offset[i + 1] - 1) * h, h * sizeof(*hidden));
    report_equal(name, steps ? "step" : "fill", &same, &(bool){true}, sizeof(same));
}

static void one_case(const gr_kernels *k, const char *model, const gr_model_shape *shape, gr_device *dev,
                     gr_queue *q)
{
    char name[64];
    snprintf(name, sizeof(name), "%s, %s", model, k->numerics());
    const uint32_t length[] = {33, 1, 64, 2, 17, 200, 5, 48};
    batch b = random_batch(shape, length, GR_LEN(length));
    side cpu = {.k = &gr_kernels_cpu}, gpu = {.k = k, .q = *q, .arena = dev->arena.base};
    gr_diag d;
    gr_diag_init(&d);
    load(&cpu, shape);
    load(&gpu, shape);
    result want = run(&cpu, shape, &b, 200), got = run(&gpu, shape, &b, 200);
    expect_ok(k->check(&gpu.q, &d), &d, name);
    CUDA(cudaGetLastError());
    compare_results(name, shape, &b, &got, &want);
    float *hidden = gr_malloc(GR_LEN(length) * shape->hidden * sizeof(*hidden));
    for (uint32_t steps = 0; steps <= 3; steps += 3) {
        int32_t id[2][GR_LEN(length)];
        float logprob[2][GR_LEN(length)];
        extend(&cpu, shape, &b, steps, id[0], logprob[0], hidden);
        extend(&gpu, shape, &b, steps, id[1], logprob[1], hidden);
        expect_ok(k->check(&gpu.q, &d), &d, name);
        if (k->invariant) same_as_packed(name, shape, &b, steps, hidden, got.hidden);
        compare(name, steps ? "step" : "fill", logprob[1], logprob[0], GR_LEN(length), 0.02);
        uint32_t same = 0;
        for (size_t i = 0; i < GR_LEN(length); i++) same += id[0][i] == id[1][i];
        printf("%s: %u of %zu greedy ids are the same\n", name, same, GR_LEN(length));
    }
    free(hidden);
    result again = {0};
    gpu.used = 0;
    load(&gpu, shape);
    again = run(&gpu, shape, &b, 200);
    for (uint32_t i = 0; i < (k->nondeterministic ? gr_model_buckets(shape) : 0); i++) {
        char what[128];
        snprintf(what, sizeof(what), "%s bucket %u, a second time", name, i);
        report_equal(what, "grad", again.grad[i], got.grad[i], gr_bucket_elems(shape, i) * sizeof(float));
    }
    report_equal(name, "logp", again.logprob, got.logprob, b.n * sizeof(float));
    if (shape->vocab % PARTS == 0) {
        gpu.used = 0, gpu.in_parts = true;
        load(&gpu, shape);
        const result parts = run(&gpu, shape, &b, 200);
        snprintf(name, sizeof(name), "%s, %s, in parts", model, k->numerics());
        expect_ok(k->check(&gpu.q, &d), &d, name);
        compare_results(name, shape, &b, &parts, &want);
    }
    batch_free(&b);
    gr_diag_release(&d);
}

/* ---- layers that predict a further token ------------------------------------------------------------------
 */

enum { AHEAD_SEQS = 3, AHEAD_TOKENS = 104, AHEAD_STRIDE = 8 };
static const uint32_t ahead_length[AHEAD_SEQS] = {33, 1, 70};

/* n [AHEAD_SEQS] tokens of each sequence behind those that are in the pool. */
static gr_extend new_tokens(side *s, const int32_t *ids, const uint32_t *n, const uint32_t *cached)
{
    uint32_t table[AHEAD_SEQS * AHEAD_STRIDE], offset[AHEAD_SEQS + 1] = {0}, slot[AHEAD_TOKENS];
    int32_t position[AHEAD_TOKENS];
    gr_extend e = {.n_seqs = AHEAD_SEQS, .table_stride = AHEAD_STRIDE};
    for (uint32_t i = 0; i < GR_LEN(table); i++) table[i] = i * 7 % BLOCKS;
    for (uint32_t i = 0; i < AHEAD_SEQS; i++) {
        for (uint32_t at = cached[i]; at < cached[i] + n[i]; at++) {
            position[e.n_tokens] = (int32_t)at;
            slot[e.n_tokens++] = table[i * AHEAD_STRIDE + at / GR_KV_BLOCK] * GR_KV_BLOCK + at % GR_KV_BLOCK;
        }
        offset[i + 1] = e.n_tokens;
        e.longest = GR_MAX(e.longest, n[i]);
    }
    e.ids = upload(s, ids, e.n_tokens * sizeof(*ids));
    e.offset = upload(s, offset, sizeof(offset));
    e.cached = upload(s, cached, AHEAD_SEQS * sizeof(*cached));
    e.block_table = upload(s, table, sizeof(table));
    e.position = upload(s, position, e.n_tokens * sizeof(*position));
    e.slot = upload(s, slot, e.n_tokens * sizeof(*slot));
    return e;
}

/* What two passes give: of all tokens, and of one more a sequence, from the last of each on. */
static void draft(side *s, const gr_model_shape *one, const float *embed, const float *states, float *out[2])
{
    const gr_kernels *k = s->k;
    const uint64_t width = one->hidden, size = value_size(s);
    const gr_pass_bounds bounds = {
        .tokens = AHEAD_TOKENS, .seqs = AHEAD_SEQS, .length = AHEAD_TOKENS, .threads = 1};
    void *state = take(s, gr_layer_state_at(k, one, 1, (gr_state_room){.blocks = BLOCKS})),
         *ws = take(s, GR_MAX(gr_ahead_ws_bytes(k, one, AHEAD_TOKENS, 1),
                              gr_layers_ws_bytes(k, one, &bounds, GR_LAYER_EXTEND))),
         *x = take(s, AHEAD_TOKENS * width * size), *hidden = upload_values(s, states, AHEAD_TOKENS * width);
    const void *matrix = upload_values(s, embed, one->vocab * width),
               *norm = (char *)s->w[2] + gr_tensor_offset(one, 2, GR_T_NORM) * size;
    uint32_t n[AHEAD_SEQS], cached[AHEAD_SEQS] = {0}, last[AHEAD_SEQS] = {0};
    int32_t ids[AHEAD_TOKENS];
    for (uint32_t i = 0; i < AHEAD_TOKENS; i++) ids[i] = (int32_t)(i * 37 % one->vocab);
    memcpy(n, ahead_length, sizeof(n));
    for (uint32_t pass = 0; pass < 2; pass++) {
        const gr_extend e = new_tokens(s, ids + pass, n, cached);
        const gr_packed b = {.n_tokens = e.n_tokens, .n_seqs = e.n_seqs, .ids = e.ids, .offset = e.offset};
        gr_ahead_enter(&(gr_ahead_call){k, &s->q, one, matrix, s->w[0], &b, hidden, ws}, x);
        gr_layer_extend(k, &s->q, one, 0, s->w[1], &e, x, state, ws);
        out[pass] = download_values(s, x, e.n_tokens * width);
        for (uint32_t i = 0, end = 0; i < AHEAD_SEQS; i++) {
            last[i] = (end += n[i]) - 1;
            cached[i] += n[i];
            n[i] = 1;
        }
        gr_ahead_again(k, &s->q, one, norm, x, upload(s, last, sizeof(last)), AHEAD_SEQS, hidden);
    }
}

/* A layer of a model becomes one that stands behind it. */
static gr_model_shape ahead_of(const char *type, gr_model_shape s, uint32_t layer)
{
    snprintf(s.model_type, sizeof(s.model_type), "%s", type);
    s.ahead = *gr_layer(&s, layer);
    s.n_ahead = 1;
    return gr_ahead_shape(&s);
}

static void check_ahead(const gr_kernels *k, const gr_model_shape *one, gr_device *dev, gr_queue *q)
{
    char name[64];
    float *out[2][2], *embed = gr_malloc((uint64_t)one->vocab * one->hidden * sizeof(float)),
                      *states = gr_malloc((uint64_t)AHEAD_TOKENS * one->hidden * sizeof(float));
    uint64_t state = 3;
    gr_diag d;
    gr_diag_init(&d);
    snprintf(name, sizeof(name), "ahead of %.20s, %.24s", one->model_type, k->numerics());
    for (uint64_t i = 0; i < (uint64_t)one->vocab * one->hidden; i++)
        embed[i] = of_bf16(bf16_of(random_float(&state)));
    for (uint64_t i = 0; i < (uint64_t)AHEAD_TOKENS * one->hidden; i++)
        states[i] = of_bf16(bf16_of(random_float(&state)));
    side sides[] = {{.k = &gr_kernels_cpu}, {.k = k, .q = *q, .arena = dev->arena.base}};
    for (uint32_t i = 0; i < 2; i++) {
        load(&sides[i], one);
        draft(&sides[i], one, embed, states, out[i]);
    }
    expect_ok(k->check(&sides[1].q, &d), &d, name);
    compare(name, "first", out[1][0], out[0][0], (uint64_t)AHEAD_TOKENS * one->hidden, 0.03);
    compare(name, "again", out[1][1], out[0][1], (uint64_t)AHEAD_SEQS * one->hidden, 0.03);
    for (uint32_t i = 0; i < 4; i++) free(out[i / 2][i % 2]);
    free(embed), free(states);
    gr_diag_release(&d);
}

/* ---- value heads ----------------------------------------------------------------------------------------
 */

typedef struct value_case {
    uint32_t tokens, n, hidden; /* n of the tokens are asked */
    bool bias;
    gr_dtype grads; /* on CUDA; the reference has fp32 ones */
} value_case;

typedef struct value_result {
    float *value, *dx, *norm, *weight, *bias;
} value_result;

/* Gradients that hold something already, in the type asked for. */
static void *held_gradient(side *s, gr_dtype type, uint64_t n, uint64_t seed)
{
    float *x = gr_malloc(n * sizeof(*x));
    for (uint64_t i = 0; i < n; i++) x[i] = gr_bf16_to_f32(gr_f32_to_bf16(random_float(&seed)));
    void *p;
    if (type == GR_F32) {
        p = upload(s, x, n * sizeof(*x));
    } else {
        uint16_t *h = gr_malloc(n * sizeof(*h));
        for (uint64_t i = 0; i < n; i++) h[i] = gr_f32_to_bf16(x[i]);
        p = upload(s, h, n * sizeof(*h));
        free(h);
    }
    free(x);
    return p;
}

static float *taken_gradient(side *s, gr_dtype type, const void *p, uint64_t n)
{
    if (type == GR_F32) return download(s, p, n);
    uint16_t *h = gr_malloc(n * sizeof(*h));
    float *x = gr_malloc(n * sizeof(*x));
    gr_device_read(&s->q, h, p, n * sizeof(*h));
    for (uint64_t i = 0; i < n; i++) x[i] = gr_bf16_to_f32(h[i]);
    free(h);
    return x;
}

static void *random_values(side *s, uint64_t n, float around, uint64_t seed)
{
    float *x = gr_malloc(n * sizeof(*x));
    for (uint64_t i = 0; i < n; i++)
        x[i] = gr_bf16_to_f32(gr_f32_to_bf16(around + (around > 0 ? 0.2f : 1) * random_float(&seed)));
    void *p = upload_values(s, x, n);
    free(x);
    return p;
}

/* Rows of every chunk size up to all of them; the places are spread over the tokens. */
static value_result run_value(side *s, const value_case *c, const uint32_t *row, const float *d_value,
                              uint32_t chunk)
{
    const gr_kernels *k = s->k;
    const gr_dtype type = k->dtype == GR_F32 ? GR_F32 : c->grads;
    const gr_model_shape shape = {.hidden = c->hidden, .norm_eps = 1e-6f, .head = GR_HEAD_VALUE};
    const uint64_t hidden = (uint64_t)c->tokens * c->hidden;
    const gr_value_head head = {random_values(s, c->hidden, 1, 1), random_values(s, c->hidden, 0, 2),
                                c->bias ? random_values(s, 1, 0, 3) : NULL};
    const gr_value_grads grad = {type, held_gradient(s, type, c->hidden, 4),
                                 held_gradient(s, type, c->hidden, 5),
                                 c->bias ? held_gradient(s, type, 1, 6) : NULL};
    const void *x = random_values(s, hidden, 0, 7);
    const uint32_t *row_at = upload(s, row, c->n * sizeof(*row));
    const float *d_at = upload(s, d_value, c->n * sizeof(*d_value));
    void *dx = take(s, hidden * value_size(s)), *ws = take(s, k->value_ws_bytes(&shape, chunk, 1));
    float *value = take(s, c->n * sizeof(*value));
    for (uint32_t at = 0; at < c->n; at += chunk) {
        uint32_t n = GR_MIN(chunk, c->n - at);
        k->value_forward(&s->q, &shape, &head, x, row_at + at, n, value + at, ws);
        k->value_backward(&s->q, &shape, &head, x, row_at + at, n, d_at + at, dx, &grad, ws);
    }
    return (value_result){download(s, value, c->n), download_values(s, dx, hidden),
                          taken_gradient(s, type, grad.norm, c->hidden),
                          taken_gradient(s, type, grad.weight, c->hidden),
                          c->bias ? taken_gradient(s, type, grad.bias, 1) : NULL};
}

static void value_result_free(value_result *r)
{
    free(r->value), free(r->dx), free(r->norm), free(r->weight), free(r->bias);
}

/* Rows that were asked hold a gradient; all others are as they were: poison. */
static void compare_dx(const char *name, const value_case *c, const uint32_t *row, const float *got,
                       const float *want)
{
    errors e = {0};
    uint64_t touched = 0;
    for (uint32_t t = 0, i = 0; t < c->tokens; t++) {
        bool asked = i < c->n && row[i] == t;
        i += asked;
        for (uint32_t h = 0; h < c->hidden; h++) {
            uint64_t at = (uint64_t)t * c->hidden + h;
            if (asked)
                errors_add(&e, (double)got[at], (double)want[at]);
            else
                touched += !isnan(got[at]);
        }
    }
    report_errors(&e, name, "dx", 5e-3);
    if (touched) {
        printf("%s: %llu elements of other rows were written  FAIL\n", name, (unsigned long long)touched);
        check_failures++;
    }
}

static void check_value(const value_case *c, gr_device *dev, gr_queue *q)
{
    char name[96];
    snprintf(name, sizeof(name), "value head, %u of %u tokens, H %u%s, %s gradients", c->n, c->tokens,
             c->hidden, c->bias ? ", bias" : "", c->grads == GR_F32 ? "f32" : "bf16");
    side cpu = {.k = &gr_kernels_cpu}, gpu = {.k = &gr_kernels_cuda, .q = *q, .arena = dev->arena.base};
    uint32_t *row = gr_calloc(c->n, sizeof(*row)), chunk = (c->n + 2) / 3;
    float *d_value = gr_calloc(c->n, sizeof(*d_value));
    uint64_t state = 9;
    for (uint32_t i = 0; i < c->n; i++) {
        row[i] = (uint32_t)((uint64_t)i * c->tokens / c->n);
        d_value[i] = random_float(&state);
    }
    const double bound = c->grads == GR_F32 ? 1e-5 : 1e-2;
    value_result want = run_value(&cpu, c, row, d_value, c->n), got = run_value(&gpu, c, row, d_value, c->n);
    value_result again = run_value(&gpu, c, row, d_value, c->n),
                 parts = run_value(&gpu, c, row, d_value, chunk);
    compare(name, "value", got.value, want.value, c->n, 1e-5);
    compare_dx(name, c, row, got.dx, want.dx);
    compare(name, "d norm", got.norm, want.norm, c->hidden, bound);
    compare(name, "d w", got.weight, want.weight, c->hidden, bound);
    if (c->bias)
        compare(name, "d bias", got.bias, want.bias, 1, GR_MAX(bound, 1e-3)); /* one sum, near 0 perhaps */
    report_equal(name, "twice", again.norm, got.norm, c->hidden * sizeof(float));
    report_equal(name, "twice", again.weight, got.weight, c->hidden * sizeof(float));
    report_equal(name, "chunks", parts.value, got.value, c->n * sizeof(float)); /* no row knows of others */
    compare(name, "chunks", parts.weight, want.weight, c->hidden, bound);
    value_result *all[] = {&want, &got, &again, &parts};
    for (size_t i = 0; i < GR_LEN(all); i++) value_result_free(all[i]);
    free(row), free(d_value);
}

static void value_heads(gr_device *dev, gr_queue *q)
{
    const value_case cases[] = {{1, 1, 8, false, GR_F32},          {7, 3, 8, true, GR_F32},
                                {65, 64, 264, true, GR_BF16},      {300, 129, 1024, false, GR_F32},
                                {1000, 1000, 1024, true, GR_F32},  {1500, 1031, 4096, true, GR_F32},
                                {1500, 1500, 5120, false, GR_BF16}};
    for (size_t i = 0; i < GR_LEN(cases); i++) check_value(&cases[i], dev, q);
}

int main(int argc, char **argv)
{
    read_options(argc, argv);
    gr_device *dev = NULL;
    gr_queue q = {.team = NULL};
    gr_diag d;
    gr_diag_init(&d);
    need_device();
    gr_device_needs needs = {.arena_bytes = ARENA, .pool_bytes = 1 << 20, .events = 1};
    expect_ok(gr_device_cuda.open(&dev, &needs, &d), &d, "open");
    if (!dev) return 1;
    expect_ok(gr_device_cuda.queue_open(dev, &q, false, &d), &d, "queue");
    const struct {
        const char *name;
        gr_model_shape shape;
    } models[] = {{"qwen3", shape_of("qwen3", 256, 4, 2, 128)},
                  {"llama tiny", shape_of("llama", 64, 4, 2, 16)},
                  {"qwen2", shape_of("qwen2", 128, 4, 2, 32)},
                  {"llama wide", shape_of("llama", 512, 8, 1, 64)},
                  {"windowed", windowed()},
                  {"sandwich", sandwich()},
                  {"behind", behind()},
                  {"gated", gated()},
                  {"gemma4", gemma4(false)},
                  {"gemma4 with experts", gemma4(true)},
                  {"gemma4 small", gemma4_small(false)},
                  {"gemma4 shared", gemma4_small(true)},
                  {"gemma4 taken", gemma4_taken()},
                  {"multiplied", multiplied()},
                  {"latent", latent(4, 64, 128, 64, 32, 64)},
                  {"latent narrow", latent(5, 0, 72, 24, 8, 32)},
                  {"latent V3", latent(8, 96, 512, 128, 64, 128)},
                  {"latent Flash", latent(4, 96, 512, 192, 64, 256)},
                  {"hybrid", hybrid(256, 128, 128)},
                  {"hybrid small", hybrid(64, 40, 24)},
                  {"qwen3_moe", shape_of("qwen3_moe", 128, 4, 2, 32)},
                  {"assorted experts", assorted()}};
    const gr_model_shape layers[] = {ahead_of("qwen3_5_text", hybrid(256, 128, 128), 1),
                                     ahead_of("glm4_moe", assorted(), 2),
                                     ahead_of("deepseek_v3", latent(4, 64, 128, 64, 32, 64), 0)};
    for (int as = 0; as < 4; as++) { /* as graphs ask for them */
        const gr_kernels *k = gr_kernels_as(&gr_kernels_cuda, as & 1, !(as & 2));
        if (as && check_own) break;
        attach_queue(k, &q);
        for (size_t m = 0; m < (check_own ? 0 : as && check_small ? 1 : GR_LEN(models)); m++)
            one_case(k, models[m].name, &models[m].shape, dev, &q);
        for (size_t m = 0; m < (check_own ? 0 : GR_LEN(layers)); m++) check_ahead(k, &layers[m], dev, &q);
        if (!as) value_heads(dev, &q);
        k->detach(&q);
    }
    gr_device_cuda.queue_close(&q);
    gr_device_cuda.close(dev);
    gr_diag_release(&d);
    printf("%s: %d failed\n", argv[0], check_failures);
    return check_failures != 0;
}
