/* Attention of the CPU device with windows, sinks, softcap and a scale of its own: against loops in double,
 * gradients against differences of those loops, and the same bits however a sequence is cut. */
#include "ops/kernels/cpu/cpu.h"
#include "tests/unit/model_fixture.h"

enum { SEQS_MAX = 8 };

typedef struct problem {
    gr_attention_desc s;
    gr_scores a;
    uint32_t n_seqs, offset[SEQS_MAX + 1];
    const uint32_t *prefix;    /* NULL: no sequence goes on from another */
    float *qkv, *dout, *sinks; /* [16] */
    gr_queue q;
} problem;

static uint32_t tokens_of(const problem *p)
{
    return p->offset[p->n_seqs];
}

static problem problem_new(gr_attention_desc s, gr_scores a, bool sinks, uint32_t n_seqs,
                           const uint32_t *length, unsigned threads)
{
    problem p = {.s = s, .a = a, .n_seqs = n_seqs};
    uint32_t seed = 7;
    for (uint32_t i = 0; i < n_seqs; i++) p.offset[i + 1] = p.offset[i] + length[i];
    const size_t n = (size_t)tokens_of(&p) * gr_qkv_width(&s),
                 n_out = (size_t)tokens_of(&p) * s.heads * s.head_dim;
    p.qkv = gr_calloc(n, sizeof(float));
    p.dout = gr_calloc(n_out, sizeof(float));
    p.sinks = gr_calloc(16, sizeof(float));
    for (size_t i = 0; i < n; i++) p.qkv[i] = 2 * fx_random(&seed);
    for (size_t i = 0; i < n_out; i++) p.dout[i] = fx_random(&seed);
    for (uint32_t i = 0; i < 16; i++) p.sinks[i] = 3 * fx_random(&seed);
    if (sinks) p.a.sinks = p.sinks;
    assert_int_equal(gr_team_new(&p.q.team, threads, NULL), GR_OK);
    return p;
}

static void problem_free(problem *p)
{
    gr_team_free(p->q.team);
    free(p->qkv), free(p->dout), free(p->sinks);
}

/* What the kernels make of a problem. */
typedef struct result {
    float *out, *lse, *dqkv, dsinks[16];
} result;

/* The description that says what p->a does. */
static gr_attention_desc desc_of(const problem *p)
{
    gr_attention_desc d = p->s;
    d.window = p->a.window;
    d.scale = p->a.scale;
    d.softcap = p->a.softcap;
    d.sinks = p->a.sinks;
    return d;
}

static void attend(problem *p, const gr_tokens *b, gr_layer_use use, const float *qkv, float *out, float *lse)
{
    const gr_attention_desc d = desc_of(p);
    const gr_pass_bounds bounds = {.tokens = b->n,
                                   .seqs = b->n_seqs,
                                   .length = tokens_of(p),
                                   .threads = gr_team_size(p->q.team),
                                   .shared = b->prefix != NULL};
    gr_attend c = {&d, b, qkv, p->a.sinks, NULL, gr_cpu_attend_ws_bytes(&d, &bounds, use)};
    c.ws = fx_dirty(c.ws_bytes);
    gr_cpu_attend(&p->q, &c, out, lse);
    free(c.ws);
}

static void run_forward(problem *p, result *r)
{
    const gr_tokens b = {.n = tokens_of(p), .n_seqs = p->n_seqs, .offset = p->offset, .prefix = p->prefix};
    r->out = fx_dirty((uint64_t)b.n * p->s.heads * p->s.head_dim * 4);
    r->lse = fx_dirty((uint64_t)b.n * p->s.heads * 4);
    attend(p, &b, GR_LAYER_KEEP, p->qkv, r->out, r->lse);
}

static result run_kernels(problem *p)
{
    result r = {0};
    const gr_attention_desc d = desc_of(p);
    const gr_tokens b = {.n = tokens_of(p), .n_seqs = p->n_seqs, .offset = p->offset, .prefix = p->prefix};
    const gr_pass_bounds bounds = {.tokens = b.n,
                                   .seqs = b.n_seqs,
                                   .length = b.n,
                                   .threads = gr_team_size(p->q.team),
                                   .shared = b.prefix != NULL};
    gr_attend c = {&d, &b, p->qkv, p->a.sinks, NULL, gr_cpu_attend_ws_bytes(&d, &bounds, GR_LAYER_BACKWARD)};
    run_forward(p, &r);
    c.ws = fx_dirty(c.ws_bytes);
    r.dqkv = fx_dirty((uint64_t)b.n * gr_qkv_width(&p->s) * 4);
    gr_cpu_attend_backward(&p->q, &c, r.out, r.lse, p->dout, r.dqkv, p->a.sinks ? r.dsinks : NULL, GR_F32);
    free(c.ws);
    return r;
}

static void result_free(result *r)
{
    free(r->out), free(r->lse), free(r->dqkv);
}

/* ---- the definition, in double --------------------------------------------------------------------------
 */

/* One row's output [D] and log of its denominator. Keys j <= i of the sequence that begins at token `first`.
 */
static void define_row(const problem *p, uint32_t first, uint32_t i, uint32_t head, double *out, double *lse)
{
    const uint32_t d = p->s.head_dim, width = gr_qkv_width(&p->s), kv = head / (p->s.heads / p->s.kv_heads);
    const float *q = p->qkv + (size_t)(first + i) * width + head * d;
    const float *k = p->qkv + (size_t)first * width + (p->s.heads + kv) * d, *v = k + p->s.kv_heads * d;
    double sum = p->a.sinks ? exp((double)p->sinks[head]) : 0;
    memset(out, 0, d * sizeof(*out));
    for (uint32_t j = 0; j <= i; j++) {
        if (p->a.window && j + p->a.window <= i) continue;
        double s = 0;
        for (uint32_t c = 0; c < d; c++) s += (double)q[c] * (double)k[(size_t)j * width + c];
        s *= (double)p->a.scale;
        if (p->a.softcap) s = (double)p->a.softcap * tanh(s / (double)p->a.softcap);
        sum += exp(s);
        for (uint32_t c = 0; c < d; c++) out[c] += exp(s) * (double)v[(size_t)j * width + c];
    }
    for (uint32_t c = 0; c < d; c++) out[c] /= sum;
    *lse = log(sum);
}

/* Sum over the sequence of a token's outputs times dout. */
static double define_loss(const problem *p, uint32_t seq)
{
    double loss = 0, out[GR_HEAD_DIM_MAX], lse;
    const uint32_t first = p->offset[seq], n = p->offset[seq + 1] - first, d = p->s.head_dim;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t h = 0; h < p->s.heads; h++) {
            const float *dout = p->dout + ((size_t)(first + i) * p->s.heads + h) * d;
            define_row(p, first, i, h, out, &lse);
            for (uint32_t c = 0; c < d; c++) loss += out[c] * (double)dout[c];
        }
    return loss;
}

static double slope_at(problem *p, uint32_t seq, float *x)
{
    const float was = *x, up = was + 0x1p-9f, down = was - 0x1p-9f;
    *x = up;
    const double high = define_loss(p, seq);
    *x = down;
    const double low = define_loss(p, seq);
    *x = was;
    return (high - low) / ((double)up - (double)down);
}

static void check_forward(const problem *p, const result *r)
{
    double out[GR_HEAD_DIM_MAX], lse;
    const uint32_t d = p->s.head_dim;
    for (uint32_t seq = 0; seq < p->n_seqs; seq++)
        for (uint32_t t = p->offset[seq]; t < p->offset[seq + 1]; t++)
            for (uint32_t h = 0; h < p->s.heads; h++) {
                const size_t at = (size_t)t * p->s.heads + h;
                define_row(p, p->offset[seq], t - p->offset[seq], h, out, &lse);
                assert_close(r->lse[at], lse, 2e-6, 2e-6);
                for (uint32_t c = 0; c < d; c++) assert_close(r->out[at * d + c], out[c], 4e-6, 4e-6);
            }
}

/* Some elements of the gradient, every `step`th. */
static void check_backward(problem *p, const result *r, uint32_t step)
{
    const uint32_t width = gr_qkv_width(&p->s);
    for (uint32_t seq = 0; seq < p->n_seqs; seq++)
        for (size_t i = (size_t)p->offset[seq] * width; i < (size_t)p->offset[seq + 1] * width; i += step)
            assert_close(r->dqkv[i], slope_at(p, seq, &p->qkv[i]), 1e-4, 1e-4);
    for (uint32_t h = 0; p->a.sinks && h < p->s.heads; h++) {
        double slope = 0;
        for (uint32_t seq = 0; seq < p->n_seqs; seq++) slope += slope_at(p, seq, &p->sinks[h]);
        assert_close(r->dsinks[h], slope, 2e-4, 1e-4);
    }
}

/* ---- tests ----------------------------------------------------------------------------------------------
 */

static const gr_attention_desc shapes[] = {{.heads = 4, .kv_heads = 2, .head_dim = 8},
                                           {.heads = 3, .kv_heads = 3, .head_dim = 20},
                                           {.heads = 16, .kv_heads = 1, .head_dim = 16}};
static const gr_scores kinds[] = {{0, 0.3f, 0, NULL},  {1, 0.3f, 0, NULL},      {2, 0.25f, 3, NULL},
                                  {7, 0.4f, 0, NULL},  {16, 0.3f, 0, NULL},     {17, 0.3f, 2, NULL},
                                  {33, 0.2f, 0, NULL}, {1000, 0.3f, 1.5f, NULL}};

static void test_windows_sinks_and_softcap_agree_with_their_definition(void **state)
{
    (void)state;
    const uint32_t length[] = {1, 37, 0, 16, 2};
    for (size_t s = 0; s < GR_LEN(shapes); s++)
        for (size_t k = 0; k < 2 * GR_LEN(kinds); k++) {
            problem p = problem_new(shapes[s], kinds[k / 2], k % 2, GR_LEN(length), length, 2);
            result r = run_kernels(&p);
            check_forward(&p, &r);
            check_backward(&p, &r, s == 0 ? 5 : 97);
            result_free(&r);
            problem_free(&p);
        }
}

/* Score panels hold 256 keys; windows begin and end in the middle of them, and lie beyond the first. */
static void test_windows_agree_with_their_definition_over_panels(void **state)
{
    (void)state;
    const uint32_t length[] = {530, 3}, window[] = {1, 31, 255, 256, 257, 300, 529, 530};
    for (size_t k = 0; k < GR_LEN(window); k++) {
        problem p = problem_new(shapes[0], (gr_scores){window[k], 0.3f, 0, NULL}, k % 2, 2, length, 2);
        result r = run_kernels(&p);
        check_forward(&p, &r);
        check_backward(&p, &r, 3001);
        result_free(&r);
        problem_free(&p);
    }
}

/* Rows of queries lie in panels of 256 columns, of which such heads have two. */
static void test_heads_wider_than_a_panel_agree_with_their_definition(void **state)
{
    (void)state;
    const uint32_t length[] = {19, 1, 37};
    const gr_attention_desc wide[] = {{.heads = 4, .kv_heads = 2, .head_dim = 512},
                                      {.heads = 2, .kv_heads = 2, .head_dim = 264},
                                      {.heads = 13, .kv_heads = 1, .head_dim = 300}};
    for (size_t s = 0; s < GR_LEN(wide); s++) {
        problem p = problem_new(wide[s], (gr_scores){s == 1 ? 7 : 0, 0.05f, 0, NULL}, s == 2, 3, length, 2);
        result r = run_kernels(&p);
        check_forward(&p, &r);
        check_backward(&p, &r, 997);
        result_free(&r);
        problem_free(&p);
    }
}

static void test_a_window_of_one_gives_each_token_its_own_value(void **state)
{
    (void)state;
    const uint32_t length[] = {40};
    problem p = problem_new(shapes[0], (gr_scores){1, 0.3f, 0, NULL}, false, 1, length, 1);
    result r = run_kernels(&p);
    for (uint32_t t = 0; t < 40; t++)
        for (uint32_t h = 0; h < 4; h++)
            assert_memory_equal(r.out + (t * 4 + h) * 8, p.qkv + t * gr_qkv_width(&p.s) + (6 + h / 2) * 8,
                                32);
    result_free(&r);
    problem_free(&p);
}

static void test_a_window_over_all_has_the_bits_of_none(void **state)
{
    (void)state;
    const uint32_t length[] = {300, 20};
    const size_t out = 320 * 4 * 8 * 4, dqkv = 320 * 8 * 8 * 4;
    problem p = problem_new(shapes[0], gr_scores_plain(8), true, 2, length, 2);
    result all = run_kernels(&p);
    p.a.window = 300;
    result window = run_kernels(&p);
    assert_memory_equal(all.out, window.out, out);
    assert_memory_equal(all.dqkv, window.dqkv, dqkv);
    assert_memory_equal(all.dsinks, window.dsinks, sizeof(all.dsinks));
    result_free(&all), result_free(&window);
    problem_free(&p);
}

static void test_a_packed_sequence_has_the_bits_of_one_alone(void **state)
{
    (void)state;
    const uint32_t length[] = {5, 290, 18};
    for (size_t k = 0; k < GR_LEN(kinds); k++) {
        problem p = problem_new(shapes[2], kinds[k], true, 3, length, 3);
        result packed = run_kernels(&p);
        for (uint32_t i = 0; i < 3; i++) {
            const size_t t = p.offset[i], n = length[i], width = gr_qkv_width(&p.s), wide = 16 * 16;
            problem one = p;
            one.n_seqs = 1, one.offset[1] = length[i];
            one.qkv = p.qkv + t * width, one.dout = p.dout + t * wide;
            result alone = run_kernels(&one);
            assert_memory_equal(alone.out, packed.out + t * wide, n * wide * 4);
            assert_memory_equal(alone.dqkv, packed.dqkv + t * width, n * width * 4);
            result_free(&alone);
        }
        result_free(&packed);
        problem_free(&p);
    }
}

/* Sequences that go on from others, and the same with a beginning each: its rows are copied there, and the
 * gradient that comes to them is the first one's alone. */
typedef struct shared_pair {
    problem shared, each;
    uint32_t at[SEQS_MAX]; /* the one of `each` that a sequence is at the end of */
} shared_pair;

static shared_pair pair_new(gr_attention_desc s, gr_scores a, bool sinks, const uint32_t *length,
                            const uint32_t *prefix, uint32_t n)
{
    shared_pair r = {.shared = problem_new(s, a, sinks, n, length, 2)};
    uint32_t whole[SEQS_MAX], n_each = 0;
    for (uint32_t i = 0; i < n; i++) {
        const bool begins = i + 1 < n && prefix[i + 1] == i;
        r.at[i] = n_each;
        if (!begins) whole[n_each++] = length[i] + (prefix[i] == i ? 0 : length[prefix[i]]);
    }
    r.each = problem_new(s, a, sinks, n_each, whole, 2);
    r.shared.prefix = prefix;
    memcpy(r.each.sinks, r.shared.sinks, 16 * sizeof(float));
    const size_t width = gr_qkv_width(&s), wide = (size_t)s.heads * s.head_dim;
    memset(r.each.dout, 0, tokens_of(&r.each) * wide * sizeof(float));
    for (uint32_t i = 0; i < n; i++) {
        const bool goes_on = prefix[i] != i;
        const uint32_t from = r.shared.offset[i], before = goes_on ? length[prefix[i]] : 0,
                       to = r.each.offset[r.at[i]] + before;
        memcpy(r.each.qkv + to * width, r.shared.qkv + from * width, length[i] * width * sizeof(float));
        memcpy(r.each.dout + to * wide, r.shared.dout + from * wide, length[i] * wide * sizeof(float));
        if (goes_on)
            memcpy(r.each.qkv + (to - before) * width, r.shared.qkv + r.shared.offset[prefix[i]] * width,
                   before * width * sizeof(float));
    }
    return r;
}

/* Outputs, and gradients of queries and of a sequence's own keys, have the bits of sequences that have their
 * beginning themselves; those of keys of a beginning are the sum over all that go on from it. */
static void check_pair(const shared_pair *p, const result *shared, const result *each)
{
    const gr_attention_desc *s = &p->shared.s;
    const uint32_t *prefix = p->shared.prefix, width = gr_qkv_width(s), wide = s->heads * s->head_dim;
    for (uint32_t i = 0; i < p->shared.n_seqs; i++) {
        const bool begins = i + 1 < p->shared.n_seqs && prefix[i + 1] == i;
        const uint32_t n = p->shared.offset[i + 1] - p->shared.offset[i],
                       before =
                           prefix[i] == i ? 0 : p->shared.offset[prefix[i] + 1] - p->shared.offset[prefix[i]];
        for (uint32_t t = 0; t < n; t++) {
            const size_t of = p->shared.offset[i] + t, at = p->each.offset[p->at[i]] + before + t;
            assert_memory_equal(shared->out + of * wide, each->out + at * wide, wide * 4);
            assert_memory_equal(shared->lse + of * s->heads, each->lse + at * s->heads, s->heads * 4);
            assert_memory_equal(shared->dqkv + of * width, each->dqkv + at * width,
                                (begins ? wide : width) * 4);
            for (uint32_t c = wide; begins && c < width; c++) {
                double sum = 0;
                for (uint32_t k = i + 1; k < p->shared.n_seqs && prefix[k] == i; k++)
                    sum += (double)each->dqkv[(p->each.offset[p->at[k]] + t) * (size_t)width + c];
                assert_close(shared->dqkv[of * width + c], sum, 1e-4, 1e-4);
            }
        }
    }
    for (uint32_t h = 0; h < s->heads; h++)
        assert_close(shared->dsinks[h], (double)each->dsinks[h], 1e-4, 1e-4);
}

static void test_sequences_that_share_their_beginning_have_its_bits(void **state)
{
    (void)state;
    static const uint32_t lengths[][SEQS_MAX] = {{37, 5, 16, 1, 40, 8, 3, 2},
                                                 {32, 1, 290, 1, 300, 16, 16, 15}},
                          prefix[] = {0, 0, 0, 3, 4, 4, 4, 7};
    for (size_t s = 0; s < GR_LEN(shapes); s++)
        for (size_t k = 0; k < 2 * GR_LEN(kinds); k++) {
            shared_pair p = pair_new(shapes[s], kinds[k / 2], k % 2, lengths[(s + k) % 2], prefix, SEQS_MAX);
            result shared = run_kernels(&p.shared), each = run_kernels(&p.each);
            check_pair(&p, &shared, &each);
            result_free(&shared), result_free(&each);
            problem_free(&p.shared), problem_free(&p.each);
        }
}

/* Keys in a pool, blocks in any order, a sequence in calls of these many tokens. */
static void extend_in_calls(problem *p, const uint32_t *calls, size_t n_calls, float *out)
{
    const uint32_t blocks = tokens_of(p) / GR_KV_BLOCK + 1;
    uint32_t *table = gr_calloc(blocks, sizeof(*table)), cached = 0;
    for (uint32_t i = 0; i < blocks; i++) table[i] = blocks - 1 - i;
    void *pool = fx_dirty(blocks * gr_kv_block_bytes(&p->s));
    for (size_t i = 0; i < n_calls; cached += calls[i++]) {
        const uint32_t offset[] = {0, calls[i]};
        const gr_tokens b = {.n = calls[i],
                             .n_seqs = 1,
                             .offset = offset,
                             .state = pool,
                             .cached = &cached,
                             .block_table = table,
                             .table_stride = blocks};
        const float *qkv = p->qkv + (size_t)cached * gr_qkv_width(&p->s);
        gr_kv_write(&p->q, &p->s, &b, qkv);
        attend(p, &b, GR_LAYER_EXTEND, qkv, out + (size_t)cached * p->s.heads * p->s.head_dim, NULL);
    }
    free(table), free(pool);
}

static void test_tokens_over_the_pool_have_the_bits_of_the_whole(void **state)
{
    (void)state;
    const uint32_t length[] = {301}, calls[] = {1, 15, 200, 1, 1, 60, 23};
    for (size_t k = 0; k < 4 * GR_LEN(kinds); k++) {
        problem p = problem_new(shapes[1], kinds[k / 4], k % 2, 1, length, 2);
        const size_t bytes = 301 * 3 * 20 * 4;
        float *out = fx_dirty(bytes);
        p.s.kv_fp8 = k / 2 % 2;
        result whole = {0};
        run_forward(&p, &whole);
        extend_in_calls(&p, calls, GR_LEN(calls), out);
        assert_memory_equal(out, whole.out, bytes);
        free(out);
        result_free(&whole);
        problem_free(&p);
    }
}

/* The nearest of the numbers that E4M3 has: (8 + m) 2^(e - 10) or, of e 0, m 2^-9; ties to even m. */
static double nearest_e4m3(double x)
{
    double best = 0;
    int bits = 0;
    for (int i = 0; i < 127; i++) {
        const double v = i / 8 ? ldexp(8 + i % 8, i / 8 - 10) : ldexp(i, -9), near = fabs(fabs(x) - v),
                     least = fabs(fabs(x) - best);
        if (near < least || (near == least && bits % 2)) best = v, bits = i;
    }
    return x < 0 ? -best : best;
}

/* Keys and values of each token's head as FP8 keeps them. */
static void round_keys(problem *p)
{
    const uint32_t d = p->s.head_dim, width = gr_qkv_width(&p->s), heads = 2 * p->s.kv_heads;
    for (uint32_t t = 0; t < tokens_of(p); t++)
        for (uint32_t h = 0; h < heads; h++) {
            float *x = p->qkv + (size_t)t * width + (p->s.heads + h) * d, most = 0;
            for (uint32_t c = 0; c < d; c++) most = fabsf(x[c]) > most ? fabsf(x[c]) : most;
            for (uint32_t c = 0; c < d; c++)
                x[c] = (float)(nearest_e4m3((double)(x[c] * (448 / most))) * (double)(most / 448));
        }
}

static void test_keys_and_values_in_fp8_are_rounded_with_a_scale_each(void **state)
{
    (void)state;
    const uint32_t length[] = {33, 1, 70};
    for (size_t k = 0; k < GR_LEN(kinds); k++) {
        problem p = problem_new(shapes[k % GR_LEN(shapes)], kinds[k], k % 2, 3, length, 2);
        result packed = {0}, plain = {0}, rounded = {0};
        const size_t n = (size_t)tokens_of(&p) * p.s.heads * p.s.head_dim;
        float far = 0;
        run_forward(&p, &plain);
        p.s.kv_fp8 = true;
        run_forward(&p, &packed);
        p.s.kv_fp8 = false;
        round_keys(&p);
        run_forward(&p, &rounded);
        for (size_t i = 0; i < n; i++) {
            assert_true(fabsf(packed.out[i] - rounded.out[i]) < 1e-5f);
            far = fmaxf(far, fabsf(packed.out[i] - plain.out[i]));
        }
        assert_true(far > 1e-3f && far < 0.5f);
        result_free(&packed);
        result_free(&plain);
        result_free(&rounded);
        problem_free(&p);
    }
}

static void test_a_sink_far_above_all_scores_leaves_zeros(void **state)
{
    (void)state;
    const uint32_t length[] = {20};
    problem p = problem_new(shapes[0], gr_scores_plain(8), true, 1, length, 1);
    p.sinks[0] = 500, p.sinks[1] = -500;
    result r = run_kernels(&p);
    for (uint32_t t = 0; t < 20; t++) {
        assert_true(r.lse[t * 4] == 500);
        for (uint32_t c = 0; c < 8; c++) assert_true(r.out[t * 32 + c] == 0);
    }
    assert_true(r.dsinks[0] == 0 && r.dsinks[1] == 0 && r.dsinks[2] != 0);
    result_free(&r);
    problem_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows_sinks_and_softcap_agree_with_their_definition),
        cmocka_unit_test(test_windows_agree_with_their_definition_over_panels),
        cmocka_unit_test(test_heads_wider_than_a_panel_agree_with_their_definition),
        cmocka_unit_test(test_a_window_of_one_gives_each_token_its_own_value),
        cmocka_unit_test(test_a_window_over_all_has_the_bits_of_none),
        cmocka_unit_test(test_a_packed_sequence_has_the_bits_of_one_alone),
        cmocka_unit_test(test_sequences_that_share_their_beginning_have_its_bits),
        cmocka_unit_test(test_tokens_over_the_pool_have_the_bits_of_the_whole),
        cmocka_unit_test(test_keys_and_values_in_fp8_are_rounded_with_a_scale_each),
        cmocka_unit_test(test_a_sink_far_above_all_scores_leaves_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
