/* Embedding and head whose vocabulary is cut over ranks, which are threads here: statistics and gradients are
 * those of one rank with the whole head, whichever rows each rank has. */
#include "tests/unit/test.h"

#include <pthread.h>

#include "ops/kernels/head.h"
#include "runtime/comm/comm.h"

enum { RANKS_MAX = 4, VOCAB = 24, HIDDEN = 20, TOKENS = 9 /* of a rank */ };

static const gr_kernels *const k = &gr_kernels_cpu;

static float value(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) * 0x1p-23f - 1;
}

static void fill(float *x, size_t n, float scale, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) x[i] = scale * value(&seed);
}

/* What the ranks of a group see of each other between two barriers. */
struct group {
    uint32_t n;
    pthread_barrier_t barrier;
    const gr_comm_parts *parts[RANKS_MAX];
    const char *ws[RANKS_MAX]; /* where their memory begins */
};

typedef struct pass {
    float logprob[TOKENS], entropy[TOKENS], sum_p2[TOKENS];
    float x[TOKENS * HIDDEN], dx[TOKENS * HIDDEN];
    float grad_norm[HIDDEN], grad_lm[VOCAB * HIDDEN], grad_embed[VOCAB * HIDDEN];
} pass;

/* All that one of n ranks has; n 1: it has all rows and the whole vocabulary. */
struct rank {
    gr_comm comm;
    gr_tp_group peers;
    struct group *group;
    const gr_model_shape *s; /* whole */
    const float *norm, *matrix;
    uint32_t chunk, most_rows, n_rows[RANKS_MAX];
    bool entropy;
    int32_t ids[RANKS_MAX * TOKENS], target[RANKS_MAX * TOKENS];
    float d_logprob[RANKS_MAX * TOKENS], d_entropy[RANKS_MAX * TOKENS];
    pass got;
    pthread_t thread;
};

static struct rank *rank_of(gr_comm *c)
{
    return (struct rank *)(void *)c;
}

static const float *part_of(const gr_comm_parts *p, uint32_t r)
{
    return (const float *)p->at + r * p->part;
}

/* Every rank's memory is at one place. */
static struct group *meet(gr_comm *c, const gr_comm_parts *p)
{
    struct group *g = rank_of(c)->group;
    g->parts[c->rank] = p;
    pthread_barrier_wait(&g->barrier);
    for (uint32_t r = 0; r < g->n; r++)
        if ((const char *)g->parts[r]->at - g->ws[r] != (const char *)p->at - g->ws[c->rank] ||
            g->parts[r]->part != p->part)
            abort();
    return g;
}

static gr_status all_gather(gr_comm *c, gr_queue *q, const gr_comm_parts *p, gr_diag *d)
{
    struct group *g = meet(c, p);
    (void)q, (void)d;
    for (uint32_t r = 0; r < g->n; r++)
        if (r != c->rank)
            memcpy((float *)p->at + r * p->part, part_of(g->parts[r], r), p->part * sizeof(float));
    pthread_barrier_wait(&g->barrier);
    return GR_OK;
}

static gr_status reduce_scatter(gr_comm *c, gr_queue *q, const gr_comm_parts *p, void *staging, gr_diag *d)
{
    struct group *g = meet(c, p);
    float *sum = staging;
    (void)q, (void)d;
    memset(sum, 0, p->part * sizeof(float));
    for (uint32_t r = 0; r < g->n; r++)
        for (uint64_t i = 0; i < p->part; i++) sum[i] += part_of(g->parts[r], c->rank)[i];
    pthread_barrier_wait(&g->barrier);
    memcpy((float *)p->at + c->rank * p->part, sum, p->part * sizeof(float));
    for (uint32_t r = 0; r < g->n; r++) /* the others' are undefined */
        if (r != c->rank) memset((float *)p->at + r * p->part, 0xff, p->part * sizeof(float));
    return GR_OK;
}

static const gr_comm_type threads = {
    .name = "threads", .all_gather = all_gather, .reduce_scatter = reduce_scatter};

static void *dirty(uint64_t bytes)
{
    return memset(aligned_alloc(256, gr_align(bytes, 256)), 0xff, bytes);
}

/* Every other of a rank's tokens is asked about, from the last ones on. */
static uint32_t row_of(uint32_t n, uint32_t i)
{
    return TOKENS - n + i;
}

static int32_t local(const struct rank *r, int32_t id)
{
    const int32_t vocab = (int32_t)(r->s->vocab / r->comm.ranks), at = id - (int32_t)r->comm.rank * vocab;
    return at >= 0 && at < vocab ? at : -1;
}

static void in_windows(struct rank *r, gr_queue *q, const gr_model_shape *s, const uint32_t *row, char *ws)
{
    const uint32_t n = r->comm.ranks, own = r->n_rows[r->comm.rank], first_own = r->comm.rank * TOKENS;
    pass *p = &r->got;
    int32_t target[RANKS_MAX * TOKENS];
    for (uint32_t i = 0; i < n * TOKENS; i++) target[i] = local(r, r->target[i]);
    for (uint32_t i = 0; i < n; i++) /* what a rank does not have nobody has */
        for (uint32_t j = r->n_rows[i]; j < TOKENS; j++) target[i * TOKENS + j] = -1;
    const gr_head_call c = {.k = k,
                            .q = q,
                            .s = s,
                            .slices = n,
                            .most = r->chunk,
                            .threads = 1,
                            .use = GR_HEAD_GRADIENT,
                            .norm = r->norm,
                            .lm = r->matrix + (uint64_t)r->comm.rank * s->vocab * HIDDEN,
                            .x = p->x,
                            .ws = ws};
    for (uint32_t at = 0; at < r->most_rows; at += r->chunk) {
        const uint32_t each = GR_MIN(r->chunk, r->most_rows - at);
        const gr_head_window w = {.n = own > at ? GR_MIN(own - at, each) : 0,
                                  .each = each,
                                  .row = row + at,
                                  .target = target + at,
                                  .stride = TOKENS,
                                  .inv_temperature = 0.8f};
        const gr_head_own o = gr_head_slices_forward(&c, &w);
        memset(o.d_logprob, 0, each * sizeof(float));
        memset(o.d_entropy, 0, each * sizeof(float));
        for (uint32_t i = 0; i < w.n; i++) {
            p->logprob[at + i] = o.stats.logprob[i];
            p->entropy[at + i] = o.stats.entropy[i];
            p->sum_p2[at + i] = o.stats.sum_p2[i];
            o.d_logprob[i] = r->d_logprob[first_own + at + i];
            o.d_entropy[i] = r->d_entropy[first_own + at + i];
        }
        gr_head_slices_backward(&c, &w, r->entropy, p->dx, p->grad_norm, p->grad_lm, GR_F32);
    }
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    const uint32_t n = r->comm.ranks;
    gr_queue q = {.peers = &r->peers};
    gr_model_shape s = *r->s;
    int32_t ids[RANKS_MAX * TOKENS];
    uint32_t row[TOKENS];
    s.vocab /= n;
    char *ws = dirty(GR_MAX(gr_head_slices_ws_bytes(k, &s, n, r->chunk, GR_HEAD_GRADIENT, 1),
                            gr_embed_slices_ws_bytes(k, &s, n, TOKENS + 3, false)));
    r->group->ws[r->comm.rank] = ws;
    for (uint32_t i = 0; i < n * TOKENS; i++) ids[i] = local(r, r->ids[i]);
    for (uint32_t i = 0; i < TOKENS; i++) row[i] = row_of(r->n_rows[r->comm.rank], i);
    const gr_embed_call e = {k, &q, &s, n, TOKENS, TOKENS + 3, ids, ws};
    gr_embed_slices_forward(&e, r->matrix + (uint64_t)r->comm.rank * s.vocab * HIDDEN, r->got.x);
    in_windows(r, &q, &s, row, ws);
    gr_embed_slices_backward(&e, r->got.dx, r->got.grad_embed, GR_F32);
    free(ws);
    return NULL;
}

/* Rank i's rows by the head that is whole, and their parts of the gradients. */
static void run_whole(const struct rank *r, uint32_t i, pass *p)
{
    gr_queue q = {.team = NULL};
    const uint32_t n = r->n_rows[i], at = i * TOKENS;
    const gr_packed b = {.n_tokens = TOKENS, .ids = r->ids + at};
    uint32_t row[TOKENS];
    for (uint32_t j = 0; j < TOKENS; j++) row[j] = row_of(n, j);
    const gr_head_rows rows = {
        .n = n, .row = row, .target = r->target + at, .inv_temperature = 0.8f, .keep = true};
    const gr_head_stats out = {p->logprob, p->entropy, p->sum_p2};
    void *ws = dirty(k->head_ws_bytes(r->s, TOKENS, GR_HEAD_GRADIENT, 1));
    k->embed_forward(&q, r->s, r->matrix, &b, p->x);
    k->head_forward(&q, r->s, r->norm, r->matrix, p->x, &rows, &out, ws);
    k->head_backward(&q, r->s, r->norm, r->matrix, p->x, &rows, r->d_logprob + at,
                     r->entropy ? r->d_entropy + at : NULL, p->dx, p->grad_norm, p->grad_lm, GR_F32, ws);
    k->embed_backward(&q, r->s, &b, p->dx, p->grad_embed, GR_F32, NULL);
    free(ws);
}

static void assert_near(const char *what, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= 1e-5f * (1 + fabsf(want[i]))))
            fail_msg("%s[%zu]: got %.9g, want %.9g", what, i, (double)got[i], (double)want[i]);
}

static void add(float *to, const float *from, size_t n)
{
    for (size_t i = 0; i < n; i++) to[i] += from[i];
}

static void check(const gr_model_shape *s, uint32_t n, uint32_t chunk, const uint32_t rows[RANKS_MAX],
                  bool entropy)
{
    static float norm[HIDDEN], matrix[VOCAB * HIDDEN], grad_norm[HIDDEN];
    static struct rank rank[RANKS_MAX];
    static pass want[RANKS_MAX];
    struct group group = {.n = n};
    uint32_t seed = 3;
    fill(norm, HIDDEN, 1, 1);
    fill(matrix, VOCAB * HIDDEN, 1, 2);
    memset(want, 0, sizeof(want));
    pthread_barrier_init(&group.barrier, NULL, n);
    rank[0] = (struct rank){.group = &group, .s = s, .norm = norm, .matrix = matrix, .chunk = chunk};
    rank[0].entropy = entropy;
    for (uint32_t i = 0; i < n * TOKENS; i++) {
        rank[0].ids[i] = (int32_t)((value(&seed) + 1) * VOCAB / 2);
        rank[0].target[i] = (int32_t)((value(&seed) + 1) * VOCAB / 2);
        rank[0].d_logprob[i] = value(&seed);
        rank[0].d_entropy[i] = 0.3f * value(&seed);
    }
    for (uint32_t r = 0; r < n; r++) {
        rank[0].n_rows[r] = rows[r];
        rank[0].most_rows = GR_MAX(rank[0].most_rows, rows[r]);
    }
    for (uint32_t r = 0; r < n; r++) {
        if (r) rank[r] = rank[0];
        rank[r].comm = (gr_comm){.type = &threads, .rank = r, .ranks = n};
        rank[r].peers.comm = &rank[r].comm;
    }
    for (uint32_t r = 0; r < n; r++) pthread_create(&rank[r].thread, NULL, run_rank, &rank[r]);
    for (uint32_t r = 0; r < n; r++) pthread_join(rank[r].thread, NULL);
    memset(grad_norm, 0, sizeof(grad_norm));
    for (uint32_t r = 0; r < n; r++) {
        run_whole(&rank[0], r, &want[r]);
        assert_memory_equal(rank[r].got.x, want[r].x, sizeof(want[r].x));
        assert_near("logprob", rank[r].got.logprob, want[r].logprob, rows[r]);
        assert_near("entropy", rank[r].got.entropy, want[r].entropy, rows[r]);
        assert_near("sum_p2", rank[r].got.sum_p2, want[r].sum_p2, rows[r]);
        assert_near("dx", rank[r].got.dx, want[r].dx, TOKENS * HIDDEN);
        add(grad_norm, rank[r].got.grad_norm, HIDDEN);
        if (!r) continue;
        add(want[0].grad_norm, want[r].grad_norm, HIDDEN);
        add(want[0].grad_lm, want[r].grad_lm, VOCAB * HIDDEN);
        add(want[0].grad_embed, want[r].grad_embed, VOCAB * HIDDEN);
    }
    assert_near("grad_norm", grad_norm, want[0].grad_norm, HIDDEN);
    for (uint32_t r = 0, part = VOCAB / n * HIDDEN; r < n; r++) {
        assert_near("grad_lm", rank[r].got.grad_lm, want[0].grad_lm + r * part, part);
        assert_near("grad_embed", rank[r].got.grad_embed, want[0].grad_embed + r * part, part);
    }
    pthread_barrier_destroy(&group.barrier);
}

static gr_model_shape shape(float cap, float scale)
{
    return (gr_model_shape){.vocab = VOCAB,
                            .hidden = HIDDEN,
                            .norm_eps = 1e-5f,
                            .norm_plus_one = cap > 0,
                            .embed_scale = scale,
                            .logit_scale = scale,
                            .logit_softcap = cap};
}

/* Chunks that hold all rows, and that do not; ranks with as many rows, with fewer than others, with none. */
static void test_parts_of_a_vocabulary_make_a_whole_one(void **state)
{
    static const uint32_t rows[][RANKS_MAX] = {{9, 9, 9, 9}, {9, 1, 4, 7}, {0, 6, 0, 3}};
    (void)state;
    for (uint32_t n = 1; n <= RANKS_MAX; n++)
        for (uint32_t chunk = 2; chunk <= 12; chunk += 5)
            for (size_t i = 0; i < GR_LEN(rows); i++) {
                const gr_model_shape plain = shape(0, 1), scaled = shape(0, 1.5f), capped = shape(3, 2);
                check(&plain, n, chunk, rows[i], true);
                check(&scaled, n, chunk, rows[i], false);
                check(&capped, n, chunk, rows[i], true);
            }
}

/* A logit that is far above all others, in the last part: the others' sums vanish, and are no NaN. */
static void test_a_part_far_below_the_others_counts_for_nothing(void **state)
{
    float part[2][GR_HEAD_PART] = {{-300, 5, -2, 3, 0}, {200, 1, 0, 1, 200}}, logprob, entropy, sum_p2, lse;
    (void)state;
    k->head->join(&(gr_queue){.team = NULL}, part[0], 2, 1, 1, &(gr_head_stats){&logprob, &entropy, &sum_p2},
                  &lse);
    assert_true(logprob == 0 && entropy == 0 && sum_p2 == 1 && lse == 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_of_a_vocabulary_make_a_whole_one),
        cmocka_unit_test(test_a_part_far_below_the_others_counts_for_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
