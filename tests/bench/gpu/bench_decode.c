/* tests/bench/gpu/bench_decode.c: decode steps of Qwen3's shapes with random weights, on the product's own
 * slots, chunks and graphs: microseconds a step by number of slots, and of the pass over the prompts before
 * them. Groups of 8 slots share a prompt of 256 tokens; responses stand at their middle, the 256th token.
 * Lines of JSON.
 *
 *     bench_decode [--top-p P] [--drafts N | --ahead N] [--many 1] MODEL [SLOTS...]      MODEL: 0.6B, 1.7B,
 * 8B
 *
 * With --drafts a slot has N rows more, looked up in texts of tokens that differ: what a step takes whose
 * drafts are not found, the products' rows being there all the same. With --ahead one more layer, random too,
 * drafts for these rows in N passes behind each step: what a step takes where none of its drafts is right.
 * With --many 1 layers of few slots run
 * through the kernels that those of many do. A line's share is what must be read at
 * least, weights and keys and values once a step, over the seconds, as part of a copy on the device. With
 * tests/gpu/kernel_trace.c it says what each kernel takes.
 */
#include "tests/bench/gpu/timing.h"

#include "ops/kernels/ahead.h"
#include "ops/kernels/cuda/launch.h"
#include "ops/kernels/layer.h"
#include "ops/kernels/layer_ops.h"
#include "ops/kernels/steps.h"
#include "ops/model/ahead.h"

#define K         (*kernels)
#define STEPS     gr_steps_cuda
#define COPY_GBPS 4260.0 /* device copy, bytes read and written, of the machine this was tuned on */

enum {
    SLOTS = 256,
    GROUP = 8,
    PROMPT = 256,
    LENGTH = 768,
    STRIDE = LENGTH / GR_KV_BLOCK,
    CHUNK = 8,
    WARM = 2, /* chunks; the first captures */
    MIDDLE = PROMPT + 256 - (WARM + TIMES / 2) * CHUNK,
    PREFILL = SLOTS / GROUP * (PROMPT - 1)
};

static const struct {
    const char *name;
    uint32_t hidden, inter, layers, heads;
    bool tied;
} models[] = {{"0.6B", 1024, 3072, 28, 16, true},
              {"1.7B", 2048, 6144, 28, 16, true},
              {"8B", 4096, 12288, 36, 32, false}};

typedef struct options {
    float top_p;
    uint32_t drafts;
    bool ahead; /* a layer drafts */
} options;

static const gr_kernels *kernels = &gr_kernels_cuda;

/* ---- layers of few slots, run as those of many ------------------------------------------------------------
 */

static gr_product many(const gr_product *p)
{
    gr_product of = *p;
    of.step = false;
    return of;
}

static void many_product(gr_queue *q, const gr_product *p, void *y, void *ws)
{
    const gr_product of = many(p);
    gr_kernels_cuda.layer->product(q, &of, y, ws);
}

static void many_product_add(gr_queue *q, const gr_product *p, const void *add, float scale, bool sliced,
                             void *y, void *temp, void *ws)
{
    const gr_product of = many(p);
    gr_kernels_cuda.layer->product_add(q, &of, add, scale, sliced, y, temp, ws);
}

static bool many_product_activate(gr_queue *q, const gr_dense_desc *d, const gr_tokens *b,
                                  const gr_product *p, void *h)
{
    const gr_product of = many(p);
    return gr_kernels_cuda.layer->product_activate(q, d, b, &of, h);
}

static void use_many(void)
{
    static gr_layer_ops layer;
    static gr_kernels own;
    layer = *gr_kernels_cuda.layer;
    layer.product_norms = NULL;
    layer.rotate_attend = NULL;
    layer.product = many_product;
    layer.product_add = many_product_add;
    layer.product_activate = many_product_activate;
    own = gr_kernels_cuda;
    own.layer = &layer;
    kernels = &own;
}

enum { N_AHEAD = 3 }; /* buckets of a layer that drafts */

typedef struct world {
    gr_model_shape shape, one; /* one: of the layer that drafts */
    gr_steps_bounds bounds;
    bench b;
    gr_queue q;
    gr_steps *steps;
    gr_sampling sampling;
    void **bucket, *ahead[N_AHEAD];
    char *kv, *x, *hidden, *ws, *head_ws, *slots, *orders;
    uint64_t layer_bytes;
    uint32_t n_blocks;
    struct { /* of the prompts */
        int32_t *ids, *position;
        uint32_t *slot, *offset, *cached, *table;
        uint32_t host_offset[SLOTS / GROUP + 1];
    } prompts;
} world;

static gr_model_shape shape_of(size_t model)
{
    gr_model_shape s = {.model_type = "qwen3",
                        .vocab = 151936,
                        .hidden = models[model].hidden,
                        .layers = models[model].layers,
                        .max_positions = 4096,
                        .tied = models[model].tied};
    gr_layer_desc d = gr_layer_plain(models[model].heads, 8, 128, models[model].inter);
    d.attention.rope.theta = 1e6;
    d.attention.qk_norm = GR_QK_NORM_HEAD;
    gr_model_of(&s, &d);
    return s;
}

/* One more layer as the model's are; of a family that has such layers, which says how it is applied again. */
static gr_model_shape one_of(const gr_model_shape *s)
{
    gr_model_shape with = *s;
    snprintf(with.model_type, sizeof(with.model_type), "glm4_moe");
    with.ahead = s->kinds[0];
    return gr_ahead_shape(&with);
}

/* ---- memory ---------------------------------------------------------------------------------------------
 */

enum { N_PATTERN = 1 << 22 };

/* bytes of uniform bf16 in [-1, 1) / 32: a pattern of 4 million values again and again. */
static char *pattern_values(world *w, uint64_t bytes, const gr_bf16 *pattern)
{
    char *p = bench_take(&w->b, bytes);
    const uint64_t first = GR_MIN(bytes, (uint64_t)N_PATTERN * sizeof(*pattern));
    gr_device_write(&w->q, p, pattern, first);
    for (uint64_t at = first; at < bytes; at += first)
        w->b.dev->type->copy(&w->q, p + at, p, GR_MIN(first, bytes - at));
    return p;
}

static gr_bf16 *make_pattern(void)
{
    gr_bf16 *host = gr_malloc(N_PATTERN * sizeof(*host));
    uint64_t state = 1;
    for (uint32_t i = 0; i < N_PATTERN; i++) {
        state = state * UINT64_C(6364136223846793005) + 1;
        const float x = (float)(int32_t)(state >> 32) * 0x1p-36f;
        uint32_t bits;
        memcpy(&bits, &x, sizeof(bits));
        host[i] = (gr_bf16)(bits >> 16);
    }
    return host;
}

static void *device_words(world *w, const uint32_t *from, uint64_t n)
{
    void *p = bench_take(&w->b, n * sizeof(*from));
    gr_device_write(&w->q, p, from, n * sizeof(*from));
    return p;
}

/* Block of a slot's table: a group's slots have the prompt's full blocks in common. */
static uint32_t block_of(uint32_t slot, uint32_t i)
{
    const uint32_t common = PROMPT / GR_KV_BLOCK - 1; /* of the last one, 15 places are the prompt's */
    const uint32_t own = SLOTS / GROUP * common;
    return i < common ? slot / GROUP * common + i : own + slot * (STRIDE - common) + i - common;
}

static void write_prompts(world *w)
{
    enum { N = SLOTS / GROUP };
    uint32_t *ids = gr_malloc(5 * (uint64_t)PREFILL * sizeof(*ids)), *position = ids + PREFILL;
    uint32_t *slot = ids + 2 * PREFILL, *table = ids + 3 * PREFILL, cached[N] = {0};
    for (uint32_t i = 0; i < PREFILL; i++) {
        const uint32_t first = i / (PROMPT - 1) * GROUP;
        ids[i] = i * 2654435761u % w->shape.vocab;
        position[i] = i % (PROMPT - 1);
        slot[i] = block_of(first, position[i] / GR_KV_BLOCK) * GR_KV_BLOCK + position[i] % GR_KV_BLOCK;
    }
    for (uint32_t g = 0; g <= N; g++) w->prompts.host_offset[g] = g * (PROMPT - 1);
    for (uint32_t i = 0; i < N * STRIDE; i++) table[i] = block_of(i / STRIDE * GROUP, i % STRIDE);
    w->prompts.ids = device_words(w, ids, PREFILL);
    w->prompts.position = device_words(w, position, PREFILL);
    w->prompts.slot = device_words(w, slot, PREFILL);
    w->prompts.offset = device_words(w, w->prompts.host_offset, N + 1);
    w->prompts.cached = device_words(w, cached, N);
    w->prompts.table = device_words(w, table, N * STRIDE);
    free(ids);
}

static void open_world(world *w, size_t model, const options *o)
{
    w->shape = shape_of(model);
    w->one = one_of(&w->shape);
    w->sampling = (gr_sampling){.temperature = 1, .top_p = o->top_p, .seed = 1};
    w->bounds = (gr_steps_bounds){.slots = SLOTS,
                                  .stride = STRIDE,
                                  .max_length = LENGTH,
                                  .chunk = CHUNK,
                                  .stop_ids = 1,
                                  .drafts = {o->drafts, 2, SLOTS, GROUP, o->ahead}};
    const uint32_t buckets = gr_model_buckets(&w->shape);
    const gr_pass_bounds pass = {.tokens = PREFILL, .seqs = SLOTS, .length = LENGTH, .threads = 1};
    w->n_blocks = block_of(SLOTS - 1, STRIDE - 1) + 1;
    w->layer_bytes = w->n_blocks * gr_layer_block_bytes(&K, &w->shape, 0);
    const uint64_t x = (uint64_t)PREFILL * w->shape.hidden * 2,
                   ws = GR_MAX(gr_layers_ws_bytes(&K, &w->shape, &pass, GR_LAYER_EXTEND),
                               gr_ahead_ws_bytes(&K, &w->one, gr_steps_rows(&w->bounds), 1)),
                   head = K.head_ws_bytes(&w->shape, gr_steps_rows(&w->bounds), GR_HEAD_SAMPLE, 1),
                   slots = STEPS.device_bytes(&w->shape, &w->bounds),
                   orders = STEPS.host_bytes(&w->shape, &w->bounds);
    const uint64_t kv = w->layer_bytes * (w->shape.layers + 1);
    uint64_t all = kv + 2 * x + ws + head + slots + GIB / 16;
    for (uint32_t i = 0; i < buckets; i++) all += gr_align(gr_bucket_elems(&w->shape, i) * 2, 256);
    for (uint32_t i = 0; i < N_AHEAD; i++) all += gr_align(gr_bucket_elems(&w->one, i) * 2, 256);
    bench_open(&w->b, all, orders + GIB / 16);
    w->q = bench_queue(&w->b);
    need(&w->b, K.attach(&w->q, &w->b.d));
    gr_bf16 *pattern = make_pattern();
    w->bucket = gr_malloc(buckets * sizeof(*w->bucket));
    for (uint32_t i = 0; i < buckets; i++)
        w->bucket[i] = pattern_values(w, gr_bucket_elems(&w->shape, i) * 2, pattern);
    for (uint32_t i = 0; i < N_AHEAD; i++)
        w->ahead[i] = pattern_values(w, gr_bucket_elems(&w->one, i) * 2, pattern);
    w->kv = pattern_values(w, kv, pattern);
    need(&w->b, gr_queue_finish(&w->q, &w->b.d));
    free(pattern);
    w->x = bench_take(&w->b, x);
    w->hidden = bench_take(&w->b, x);
    w->ws = bench_take(&w->b, ws);
    w->head_ws = bench_take(&w->b, head);
    w->slots = bench_take(&w->b, slots);
    w->orders = w->b.dev->pool.base;
    write_prompts(w);
    need(&w->b, STEPS.open(&w->steps, &w->shape, &w->bounds, &w->b.d));
}

static void close_world(world *w)
{
    need(&w->b, K.check(&w->q, &w->b.d));
    STEPS.close(w->steps);
    K.detach(&w->q);
    w->b.dev->type->queue_close(&w->q);
    w->b.dev->type->close(w->b.dev);
    free(w->bucket);
}

/* ---- the model ------------------------------------------------------------------------------------------
 */

static void run_layers(const world *w, gr_queue *q, const gr_extend *e, const uint32_t *host_offset)
{
    const gr_packed b = {.n_tokens = e->n_tokens,
                         .n_seqs = e->n_seqs,
                         .ids = e->ids,
                         .offset = e->offset,
                         .host_offset = host_offset};
    K.embed_forward(q, &w->shape, w->bucket[0], &b, w->x);
    for (uint32_t l = 0; l < w->shape.layers; l++)
        gr_layer_extend(&K, q, &w->shape, l, w->bucket[1 + l], e, w->x, w->kv + l * w->layer_bytes, w->ws);
}

static const void *tensor(const world *w, uint32_t bucket, gr_tensor_slot slot)
{
    return (const char *)w->bucket[bucket] + 2 * gr_tensor_offset(&w->shape, bucket, slot);
}

static void sample(const world *w, gr_queue *q, const void *norm, const gr_steps_draw *d)
{
    const uint32_t last = 1 + w->shape.layers;
    K.head_sample(q, &w->shape, norm,
                  w->shape.tied ? tensor(w, 0, GR_T_EMBED) : tensor(w, last, GR_T_LM_HEAD), w->x, d->row,
                  d->n, d->how, d->draw, d->id, d->logprob, w->head_ws);
}

static void model_step(void *user, gr_queue *q, const gr_extend *e, const gr_steps_draw *d)
{
    const world *w = user;
    run_layers(w, q, e, NULL);
    sample(w, q, tensor(w, 1 + w->shape.layers, GR_T_NORM), d);
}

static void ahead_step(void *user, gr_queue *q, const gr_extend *e, const uint32_t *from,
                       const gr_steps_draw *d)
{
    const world *w = user;
    const gr_packed b = {.n_tokens = e->n_tokens, .n_seqs = e->n_seqs, .ids = e->ids, .offset = e->offset};
    const void *norm = (const char *)w->ahead[2] + 2 * gr_tensor_offset(&w->one, 2, GR_T_NORM);
    if (from)
        gr_ahead_again(&K, q, &w->one, norm, w->x, from, e->n_tokens, w->hidden);
    else
        gr_ahead_norm(&K, q, &w->one, tensor(w, 1 + w->shape.layers, GR_T_NORM), w->x, e->n_tokens,
                      w->hidden);
    gr_ahead_enter(&(gr_ahead_call){&K, q, &w->one, w->bucket[0], w->ahead[0], &b, w->hidden, w->ws}, w->x);
    gr_layer_extend(&K, q, &w->one, 0, w->ahead[1], e, w->x, w->kv + w->shape.layers * w->layer_bytes, w->ws);
    sample(w, q, norm, d);
}

/* ---- times ----------------------------------------------------------------------------------------------
 */

static void fill_slots(world *w, uint32_t n)
{
    const gr_steps_input in = STEPS.input(w->steps, 0);
    const uint32_t each = 1 + w->bounds.drafts.tokens;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < STRIDE; k++) in.table[i * STRIDE + k] = block_of(i, k);
        in.change[i] = (gr_slot_change){i, GR_SLOT_SET, (int32_t)i, MIDDLE, i, MIDDLE - PROMPT, i, PROMPT};
        for (uint32_t k = 0; in.text && k <= MIDDLE; k++)
            in.text[i * LENGTH + k] = (int32_t)((i * LENGTH + k) % w->shape.vocab);
    }
    for (uint32_t i = 0; i < n * each; i++) in.member[i] = i;
    const uint32_t n_groups = (n + GROUP - 1) / GROUP;
    for (uint32_t g = 0; g <= n_groups; g++) in.group_first[g] = GR_MIN(g * GROUP, n) * each;
    for (uint32_t g = 0; g < n_groups; g++) in.shared[g] = PROMPT - GR_KV_BLOCK;
    STEPS.change(w->steps, &w->q, 0, n, n_groups);
}

/* Seconds of a chunk of n slots, its report's copy included. */
static double chunk_seconds(world *w, uint32_t n, uint64_t key)
{
    const gr_device_type *t = w->b.dev->type;
    const int32_t stop = -2;
    const gr_steps_rules rules = {
        .sampling = w->sampling, .max_tokens = UINT32_MAX, .stop = &stop, .n_stop = 1};
    const gr_steps_chunk c = {.n = n, .step = model_step, .ahead = ahead_step, .user = w, .key = key};
    double x[TIMES];
    need(&w->b, STEPS.begin(w->steps, &w->q, w->slots, w->orders, &rules, &w->b.d));
    for (uint32_t trip = 0; trip < WARM + TIMES; trip++) {
        if (!trip) {
            fill_slots(w, n);
        } else { /* the same slots and groups: only the count of steps begins again */
            const gr_steps_input from = STEPS.input(w->steps, 0), to = STEPS.input(w->steps, trip);
            const uint32_t n_groups = (n + GROUP - 1) / GROUP;
            if (trip % 2) {
                memcpy(to.member, from.member, n * (1 + w->bounds.drafts.tokens) * sizeof(*to.member));
                memcpy(to.group_first, from.group_first, (n_groups + 1) * sizeof(*to.group_first));
                memcpy(to.shared, from.shared, n_groups * sizeof(*to.shared));
            }
            STEPS.change(w->steps, &w->q, trip, 0, n_groups);
        }
        t->time_reset(w->b.dev);
        const uint32_t number = t->time_begin(&w->q);
        STEPS.run(w->steps, &w->q, trip, &c);
        t->time_end(&w->q, number);
        gr_steps_report report;
        uint64_t begin, end;
        need(&w->b, STEPS.report(w->steps, trip, &report, &w->b.d));
        need(&w->b, t->finish(&w->q, &w->b.d));
        t->time_read(w->b.dev, number, &begin, &end);
        if (trip >= WARM) x[trip - WARM] = (double)(end - begin) * 1e-9;
    }
    return median(x);
}

/* Bytes that a step reads: all weights but the embedding's other rows, those of a layer that drafts for each
 * pass; keys and values of the model. */
static double step_bytes(const world *w, uint32_t n)
{
    const gr_model_shape *s = &w->shape;
    uint64_t elems = gr_bucket_elems(s, 0);
    for (uint32_t l = 0; l < s->layers; l++) elems += gr_bucket_elems(s, 1 + l);
    const double shared = PROMPT - GR_KV_BLOCK, own = PROMPT + 256 - shared;
    const double keys = n * own + (n + GROUP - 1) / GROUP * shared;
    const uint64_t pass =
        gr_bucket_elems(&w->one, 0) + gr_bucket_elems(&w->one, 1) + (uint64_t)s->vocab * s->hidden;
    if (w->bounds.drafts.ahead) elems += w->bounds.drafts.tokens * pass;
    return 2.0 * (double)elems + keys * s->layers * (double)gr_layer_block_bytes(&K, s, 0) / GR_KV_BLOCK;
}

static void prefill(gr_queue *q, int which, void *arg)
{
    const world *w = arg;
    (void)which;
    const gr_extend e = {.n_tokens = PREFILL,
                         .n_seqs = SLOTS / GROUP,
                         .ids = w->prompts.ids,
                         .offset = w->prompts.offset,
                         .cached = w->prompts.cached,
                         .block_table = w->prompts.table,
                         .table_stride = STRIDE,
                         .position = w->prompts.position,
                         .slot = w->prompts.slot,
                         .longest = PROMPT - 1};
    run_layers(w, q, &e, w->prompts.host_offset);
}

static void print_steps(world *w, const char *model, uint32_t n)
{
    char row[96];
    const double step = chunk_seconds(w, n, n) / CHUNK;
    snprintf(row, sizeof(row), "decode %s, %u slots", model, n);
    print_result(row, step * 1e6, "us a step");
    snprintf(row, sizeof(row), "decode %s, %u slots: share of a copy", model, n);
    print_result(row, step_bytes(w, n) / step * 1e-9 / COPY_GBPS, "");
}

/* Takes it out of the arguments. */
static bool option(int *argc, char ***argv, const char *name)
{
    if (*argc < 3 || strcmp((*argv)[1], name)) return false;
    *argc -= 2;
    *argv += 2;
    return true;
}

int main(int argc, char **argv)
{
    static const uint32_t usual[] = {256, 192, 128, 64, 32, 16, 8, 4, 2, 1};
    options o = {.top_p = 1};
    if (option(&argc, &argv, "--top-p")) o.top_p = strtof(argv[0], NULL);
    if (option(&argc, &argv, "--drafts")) o.drafts = (uint32_t)GR_MIN(strtoul(argv[0], NULL, 10), 32ul);
    if (option(&argc, &argv, "--ahead")) {
        o.drafts = (uint32_t)GR_MIN(strtoul(argv[0], NULL, 10), 32ul);
        o.ahead = o.drafts;
    }
    if (option(&argc, &argv, "--many") && atoi(argv[0])) use_many();
    size_t model = 0;
    while (model < GR_LEN(models) && (argc < 2 || strcmp(argv[1], models[model].name))) model++;
    if (model == GR_LEN(models)) {
        fprintf(
            stderr,
            "usage: bench_decode [--top-p P] [--drafts N | --ahead N] [--many 1] 0.6B|1.7B|8B [SLOTS...]\n");
        return 2;
    }
    world *w = gr_calloc(1, sizeof(*w));
    open_world(w, model, &o);
    const uint32_t n = argc > 2 ? (uint32_t)argc - 2 : (uint32_t)GR_LEN(usual);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t slots = argc > 2 ? (uint32_t)atoi(argv[2 + i]) : usual[i];
        if (!slots || slots > SLOTS) {
            fprintf(stderr, "1 to %d slots\n", SLOTS);
            return 2;
        }
        print_steps(w, models[model].name, slots);
    }
    if (argc <= 2) {
        char row[96];
        snprintf(row, sizeof(row), "prefill %s, %d tokens", models[model].name, PREFILL);
        print_result(row, seconds_of(&w->b, &w->q, 1, prefill, w) * 1e3, "ms");
    }
    close_world(w);
    free(w);
}
