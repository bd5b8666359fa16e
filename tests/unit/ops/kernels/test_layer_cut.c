/* Layers whose tokens are cut over ranks, which are threads here: hidden states have the bits of one rank,
 * and gradients are its own, whether there are as many heads of keys as ranks, or each is on several. */
#include "tests/unit/model_fixture.h"
#include "tests/unit/thread_ranks.h"

enum { TOKENS = 36, SEQS = 3, HIDDEN = 24, GUARD = 256 };

static const uint32_t offsets[SEQS + 1] = {0, 5, 34, TOKENS}; /* over the ends of all ranks' tokens */

/* All that one of n ranks has; n 1: all tokens. */
struct rank {
    struct thread_comm at;
    gr_tp_group sharers;
    const gr_model_shape *s;
    const float *w, *x, *dy; /* the layer's bucket; [TOKENS, HIDDEN] of all ranks */
    uint32_t n_tokens;
    float *kept, *y, *dx, *grad; /* of its tokens; its part of the gradients */
    pthread_t thread;
};

/* As many bytes as the planner counts, and a guard behind them. */
static void *guarded(uint64_t bytes)
{
    char *p = gr_malloc(bytes + GUARD);
    memset(p, 0xff, bytes);
    memset(p + bytes, 0x5a, GUARD);
    return p;
}

static void free_guarded(void *p, uint64_t bytes)
{
    for (int i = 0; i < GUARD; i++)
        if (((unsigned char *)p)[bytes + (uint64_t)i] != 0x5a) abort();
    free(p);
}

static const gr_kernels *device = &gr_kernels_cpu;

/* Backward twice, so that there are gradients that it adds to. */
static void run(struct rank *r)
{
    gr_queue q = {.sharers = r->at.comm.ranks > 1 ? &r->sharers : NULL};
    const gr_packed p = {.n_tokens = r->n_tokens,
                         .n_seqs = SEQS,
                         .offset = offsets,
                         .host_offset = offsets,
                         .cut = r->at.comm.ranks};
    const gr_pass_bounds b = {
        .tokens = r->n_tokens, .seqs = SEQS, .length = TOKENS, .threads = 1, .cut = r->at.comm.ranks};
    const size_t at = (size_t)r->at.comm.rank * r->n_tokens * HIDDEN,
                 bytes = (size_t)r->n_tokens * HIDDEN * sizeof(float);
    const uint64_t of_acts = gr_layer_acts_bytes(device, r->s, 0, &b),
                   forward = gr_layer_ws_bytes(device, r->s, 0, &b, GR_LAYER_FORWARD),
                   keep = gr_layer_ws_bytes(device, r->s, 0, &b, GR_LAYER_KEEP),
                   back = gr_layer_ws_bytes(device, r->s, 0, &b, GR_LAYER_BACKWARD);
    void *acts = guarded(of_acts), *ws[] = {guarded(forward), guarded(keep), guarded(back)};
    float *in = gr_malloc(bytes);
    memcpy(r->y, r->x + at, bytes);
    memcpy(r->kept, r->x + at, bytes);
    gr_layer_forward(device, &q, r->s, 0, r->w, &p, r->y, NULL, NULL, ws[0]);
    gr_layer_forward(device, &q, r->s, 0, r->w, &p, r->kept, in, acts, ws[1]);
    for (int i = 0; i < 2; i++) {
        memcpy(r->dx, r->dy + at, bytes);
        gr_layer_backward(device, &q, r->s, 0, r->w, NULL, &p, in, acts, r->dx, r->grad, GR_F32, ws[2]);
    }
    free(in);
    free_guarded(acts, of_acts), free_guarded(ws[0], forward), free_guarded(ws[1], keep);
    free_guarded(ws[2], back);
}

static void *run_rank(void *arg)
{
    run(arg);
    return NULL;
}

static struct rank rank_new(const struct rank *of, struct thread_group *group, uint32_t r, uint32_t n)
{
    struct rank rank = *of;
    const size_t elems = gr_bucket_elems(of->s, 1), bytes = (size_t)TOKENS / n * HIDDEN * sizeof(float);
    rank.at = thread_comm_of(group, r, n);
    rank.n_tokens = TOKENS / n;
    rank.y = gr_malloc(bytes), rank.kept = gr_malloc(bytes), rank.dx = gr_malloc(bytes);
    rank.grad = gr_calloc(elems, sizeof(float));
    return rank;
}

static void rank_free(struct rank *r)
{
    free(r->y), free(r->kept), free(r->dx), free(r->grad);
}

static void assert_near(const char *what, const float *want, const double *got, size_t n)
{
    double most = 0, scale = 1e-6;
    for (size_t i = 0; i < n; i++) {
        const double apart = fabs(got[i] - (double)want[i]);
        most = fmax(most, isnan(apart) ? INFINITY : apart);
        scale = fmax(scale, fabs((double)want[i]));
    }
    assert_true(scale > 1e-3); /* what is compared is something */
    if (!(most <= 1e-5 * scale)) fail_msg("%s: %.3g apart, of %.3g", what, most, scale);
}

/* Of all ranks' gradients the sum, tensor by tensor. */
static void check_gradients(const struct rank *one, const struct rank *rank, uint32_t n)
{
    gr_tensor t[GR_BUCKET_TENSORS_MAX];
    double *sum = gr_calloc(gr_bucket_elems(one->s, 1), sizeof(*sum));
    for (uint32_t r = 0; r < n; r++)
        for (uint64_t i = 0; i < gr_bucket_elems(one->s, 1); i++) sum[i] += (double)rank[r].grad[i];
    for (size_t k = gr_bucket_tensors(one->s, 1, t); k--;) {
        const size_t elems = (size_t)t[k].rows * GR_MAX(t[k].cols, 1u);
        assert_near(t[k].name, one->grad + t[k].offset, sum + t[k].offset, elems);
    }
    free(sum);
}

static void check_ranks(const struct rank *one, uint32_t n)
{
    struct thread_group group = {.n = n};
    struct rank rank[THREAD_RANKS_MAX];
    pthread_barrier_init(&group.barrier, NULL, n);
    for (uint32_t r = 0; r < n; r++) {
        rank[r] = rank_new(one, &group, r, n);
        rank[r].sharers.comm = &rank[r].at.comm;
        pthread_create(&rank[r].thread, NULL, run_rank, &rank[r]);
    }
    /* a rank's own address is what its thread has: they stay where they are until all are done */
    for (uint32_t r = 0; r < n; r++) pthread_join(rank[r].thread, NULL);
    for (uint32_t r = 0; r < n; r++) {
        const size_t at = (size_t)r * rank[r].n_tokens * HIDDEN, values = (size_t)rank[r].n_tokens * HIDDEN;
        double dx[TOKENS * HIDDEN];
        for (size_t i = 0; i < values; i++) dx[i] = (double)rank[r].dx[i];
        assert_memory_equal(rank[r].y, one->y + at, values * sizeof(float));
        assert_memory_equal(rank[r].kept, one->y + at, values * sizeof(float));
        assert_near("dx", one->dx + at, dx, values);
    }
    check_gradients(one, rank, n);
    for (uint32_t r = 0; r < n; r++) rank_free(&rank[r]);
    pthread_barrier_destroy(&group.barrier);
}

/* A layer over each of these numbers of ranks (0 ends them), against one. */
static void check(const gr_layer_desc *d, const uint32_t *ranks)
{
    gr_model_shape s = {.vocab = 8, .hidden = HIDDEN, .layers = 1, .max_positions = TOKENS, .init_std = 0.3};
    gr_model_of(&s, d);
    fixture f = fx_new(&s, 1);
    float *x = gr_malloc(TOKENS * HIDDEN * sizeof(float)), *dy = gr_malloc(TOKENS * HIDDEN * sizeof(float));
    uint32_t seed = 5;
    fx_fill(&f, 7);
    for (size_t i = 0; i < TOKENS * HIDDEN; i++) x[i] = fx_random(&seed), dy[i] = fx_random(&seed);
    struct rank one = {.s = &s, .w = f.w[1], .x = x, .dy = dy};
    one = rank_new(&one, NULL, 0, 1);
    run(&one);
    for (; *ranks; ranks++) {
        char buf[48];
        assert_null(gr_layer_cut_uneven(d, *ranks, buf));
        check_ranks(&one, *ranks);
    }
    rank_free(&one);
    free(x), free(dy);
    fx_free(&f);
}

static gr_layer_desc attention(uint32_t heads, uint32_t kv_heads)
{
    return gr_layer_plain(heads, kv_heads, 8, 20);
}

/* 12 heads on 6 of keys over 4 ranks: a rank's three are of two, one of which two of them share. */
static void test_heads_are_divided_and_keys_copied(void **state)
{
    (void)state;
    const struct {
        uint32_t heads, kv_heads, ranks[6];
    } cases[] = {{4, 4, {2, 4}},
                 {4, 1, {2, 4}},
                 {12, 2, {2, 3, 4, 6, 12}},
                 {12, 6, {2, 3, 4, 12}},
                 {12, 3, {3, 4, 6, 2}}};
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        const gr_layer_desc d = attention(cases[i].heads, cases[i].kv_heads);
        check(&d, cases[i].ranks);
    }
}

static void test_so_are_gates_norms_sinks_and_windows(void **state)
{
    (void)state;
    gr_layer_desc d = attention(4, 1);
    d.attention.gate = true;
    d.attention.qk_norm = GR_QK_NORM_HEAD;
    check(&d, (const uint32_t[]){2, 4, 0});
    d = attention(4, 2);
    d.attention.sinks = true;
    d.attention.window = 7;
    d.attention.qkv_bias = d.attention.o_bias = true;
    check(&d, (const uint32_t[]){2, 4, 0});
}

static gr_layer_desc rule(uint32_t key_heads, uint32_t value_heads)
{
    gr_layer_desc d = attention(4, 4);
    d.attention = (gr_attention_desc){0};
    d.mixer = GR_MIXER_DELTA;
    d.delta = (gr_delta_desc){
        .key_heads = key_heads, .value_heads = value_heads, .key_dim = 6, .value_dim = 10, .conv = 4};
    return d;
}

static void test_heads_of_the_delta_rule_are_divided_and_keys_copied(void **state)
{
    (void)state;
    const struct {
        uint32_t key_heads, value_heads, ranks[5];
    } cases[] = {{4, 4, {2, 4}}, {4, 8, {2, 4}}, {2, 4, {4}}, {1, 6, {2, 3, 6}}, {3, 12, {3, 6, 12}}};
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        const gr_layer_desc d = rule(cases[i].key_heads, cases[i].value_heads);
        check(&d, cases[i].ranks);
    }
}

/* Heads of 8 + 4 values, of which 4 are rotated; q_rank 0: queries come without a latent. */
static gr_layer_desc latent(uint32_t heads, uint32_t q_rank)
{
    gr_layer_desc d = attention(4, 4);
    d.attention = (gr_attention_desc){0};
    d.mixer = GR_MIXER_LATENT;
    d.latent = (gr_latent_desc){.heads = heads,
                                .q_rank = q_rank,
                                .kv_rank = 10,
                                .nope_dim = 8,
                                .rope_dim = 4,
                                .v_dim = 6,
                                .norm_eps = 1e-6f,
                                .scale = 0.3f,
                                .rope = {.theta = 10000, .dims = 4}};
    return d;
}

/* Absorbed on a device whose kernels have batch invariance, and expanded on one like it that has not. */
static void test_heads_of_latent_attention_are_divided(void **state)
{
    (void)state;
    gr_kernels other = gr_kernels_cpu;
    other.invariant = false;
    for (uint32_t i = 0; i < 4; i++) {
        gr_layer_desc d = latent(12, i % 2 ? 14 : 0);
        device = i < 2 ? &gr_kernels_cpu : &other;
        check(&d, (const uint32_t[]){2, 3, 4, 12, 0});
        d.latent.v_dim = 12; /* nothing is filled up */
        check(&d, (const uint32_t[]){4, 0});
    }
    device = &gr_kernels_cpu;
}

/* By hand, of 36 tokens: 12 query heads of 8 on 2 of keys over 4 ranks are 3 and 1 each, so that each of
 * keys has two copies: rows of 96 + 2 * 32 values go, and 96 come back. Of the rule 2 key heads of 6 and 4
 * value heads of 10 over 4: rows of 2 * 24 + 2 * 40 + 2 * 4, and 40 back. */
static void test_what_a_rank_has_and_sends(void **state)
{
    (void)state;
    const gr_layer_desc d = attention(12, 2), e = rule(2, 4);
    const gr_attention_desc own = gr_attention_cut(&d.attention, 4);
    const gr_delta_desc some = gr_delta_cut(&e.delta, 4);
    assert_int_equal(own.heads, 3);
    assert_int_equal(own.kv_heads, 1);
    assert_int_equal(gr_cut_copies(own.kv_heads, 4, 2), 2);
    assert_int_equal(gr_layer_cut_values(&d, 4), 96 + 2 * 32 + 96);
    assert_int_equal(some.value_heads, 1);
    assert_int_equal(some.key_heads, 1);
    assert_int_equal(gr_layer_cut_values(&e, 4), 2 * 24 + 2 * 40 + 2 * 4 + 40);
    const gr_layer_desc f = latent(4, 6); /* 4 heads: q, k and v of 12, and 6 back */
    assert_int_equal(gr_layer_cut_values(&f, 4), 4 * (3 * 12 + 6));
    assert_int_equal(gr_attention_cut(&d.attention, 1).kv_heads, 2);
    assert_int_equal(gr_attention_cut(&e.attention, 4).heads, 0); /* it has none */
}

/* 1.7B's layer: twice the ranks are for twice the tokens, so exchanges may not take what that leaves. */
static void test_a_token_takes_no_more_where_they_are_cut(void **state)
{
    (void)state;
    const gr_kernels *cuda = gr_kernels_as(&gr_kernels_cuda, false, false);
    const gr_layer_desc d = gr_layer_plain(16, 8, 128, 6144);
    gr_model_shape s = {.vocab = 8, .hidden = 2048, .layers = 1, .max_positions = 1 << 20};
    gr_model_of(&s, &d);
    for (gr_layer_use use = GR_LAYER_KEEP; use <= GR_LAYER_BACKWARD; use++) {
        const gr_pass_bounds one = {.tokens = 1 << 16, .seqs = 1, .length = 1 << 16, .threads = 1, .cut = 1},
                             two = {.tokens = 1 << 16, .seqs = 1, .length = 1 << 17, .threads = 1, .cut = 2};
        assert_true(gr_layer_ws_bytes(cuda, &s, 0, &two, use) <= gr_layer_ws_bytes(cuda, &s, 0, &one, use));
    }
}

static void test_what_does_not_come_out_even_is_named(void **state)
{
    (void)state;
    char buf[48];
    gr_layer_desc d = attention(12, 3);
    assert_string_equal(gr_layer_cut_uneven(&d, 8, buf), "12 heads");
    d.attention.qk_norm = GR_QK_NORM_WHOLE;
    assert_string_equal(gr_layer_cut_uneven(&d, 2, buf), "norms over all heads of q and k");
    d = rule(6, 12);
    assert_null(gr_layer_cut_uneven(&d, 12, buf));
    assert_string_equal(gr_layer_cut_uneven(&d, 4, buf), "6 key heads of the gated delta rule");
    assert_string_equal(gr_layer_cut_uneven(&d, 24, buf), "12 value heads of the gated delta rule");
    d = latent(4, 6);
    assert_null(gr_layer_cut_uneven(&d, 4, buf));
    assert_string_equal(gr_layer_cut_uneven(&d, 8, buf), "4 heads");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads_are_divided_and_keys_copied),
        cmocka_unit_test(test_so_are_gates_norms_sinks_and_windows),
        cmocka_unit_test(test_heads_of_the_delta_rule_are_divided_and_keys_copied),
        cmocka_unit_test(test_heads_of_latent_attention_are_divided),
        cmocka_unit_test(test_what_a_rank_has_and_sends),
        cmocka_unit_test(test_a_token_takes_no_more_where_they_are_cut),
        cmocka_unit_test(test_what_does_not_come_out_even_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
