/* How the sequences of a pass are dealt to ranks by their lengths: held against brute force where that is
 * quick, and against its bounds and its own promise elsewhere. */
#include "ops/parallel/balance.h"

#include "ops/base/session.h"
#include "tests/unit/test.h"

typedef struct batch {
    gr_rows_bounds bounds;
    void *block;
    gr_rows rows;
} batch;

/* Groups of these sizes; lengths [sequences] are of prompt and response together. */
static batch make_batch(const uint32_t *sizes, uint32_t groups, const uint32_t *lengths, uint32_t longest)
{
    uint32_t n = 0;
    for (uint32_t g = 0; g < groups; g++) n += sizes[g];
    batch b = {.bounds = {.groups = groups, .seqs = n, .prompt_tokens = 1, .response_tokens = longest - 1}};
    b.block = gr_calloc(1, gr_rows_bytes(&b.bounds));
    b.rows = gr_rows_at(b.block, &b.bounds);
    *b.rows.n_groups = groups;
    *b.rows.n_seqs = n;
    for (uint32_t g = 0, s = 0; g < groups; g++)
        for (uint32_t i = 0; i < sizes[g]; i++, s++) {
            b.rows.group[s] = g;
            b.rows.prompt_len[s] = 1;
            b.rows.response_len[s] = lengths[s] - 1;
            b.rows.token_offset[s + 1] = b.rows.token_offset[s] + lengths[s] - 1;
        }
    return b;
}

static uint32_t draw(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(*seed >> 33) % n;
}

/* A token costs one unit, and nothing else does: work is tokens, and one for each sequence. */
static const gr_seq_cost tokens_only = {.token = 1024};

static uint64_t task_of(const batch *b, uint32_t s)
{
    return b->rows.prompt_len[s] + b->rows.response_len[s] + 1;
}

typedef struct balance {
    uint32_t *rank, n, ranks;
    gr_balance_bounds most;
    gr_dealt dealt;
    uint64_t work[64];
} balance;

static gr_balance_bounds bounds_of(const batch *b, uint32_t from, uint32_t to, uint32_t ranks)
{
    uint32_t all = 0, own = 0;
    for (uint32_t k = 0; k < ranks; k++) {
        gr_rows_part p = gr_rows_balance(&b->rows, from, to, k, ranks);
        own = GR_MAX(own, p.seq_end - p.seq);
        all += p.seq_end - p.seq;
    }
    return gr_balance_bounds_of(own, all, b->bounds.prompt_tokens + b->bounds.response_tokens, ranks);
}

/* Deal groups [from, to), and check what holds of every deal: each sequence has a rank, no rank more than its
 * bounds, and the numbers are those of the deal. */
static balance balance_all(const batch *b, uint32_t from, uint32_t to, uint32_t ranks)
{
    gr_rows_part all = gr_rows_balance(&b->rows, from, to, 0, 1);
    balance d = {.n = all.seq_end - all.seq, .ranks = ranks, .most = bounds_of(b, from, to, ranks)};
    uint32_t seqs[64] = {0};
    uint64_t tokens[64] = {0}, sum = 0, most = 0, before = 0;
    d.rank = gr_malloc((d.n + 1) * sizeof(*d.rank));
    memset(d.rank, 0xff, (d.n + 1) * sizeof(*d.rank));
    gr_balancer *balancer = gr_balancer_new(d.n, ranks, &d.most);
    d.dealt = gr_balance(balancer, d.rank, &b->rows, from, to, &tokens_only);
    gr_balancer_free(balancer);
    assert_int_equal(d.rank[d.n], UINT32_MAX);
    for (uint32_t i = 0; i < d.n; i++) {
        assert_in_range(d.rank[i], 0, ranks - 1);
        seqs[d.rank[i]]++;
        tokens[d.rank[i]] += task_of(b, all.seq + i) - 1;
        d.work[d.rank[i]] += task_of(b, all.seq + i);
        sum += task_of(b, all.seq + i);
    }
    for (uint32_t k = 0; k < ranks; k++) {
        gr_rows_part own = gr_rows_balance(&b->rows, from, to, k, ranks);
        uint64_t in_order = 0;
        for (uint32_t s = own.seq; s < own.seq_end; s++) in_order += task_of(b, s);
        assert_true(seqs[k] <= d.most.seqs);
        assert_true(tokens[k] <= d.most.tokens);
        most = GR_MAX(most, d.work[k]);
        before = GR_MAX(before, in_order);
    }
    assert_int_equal(d.dealt.all, sum);
    assert_int_equal(d.dealt.most, most);
    assert_int_equal(d.dealt.most_before, before);
    assert_true(most <= before);
    return d;
}

/* The least that the fullest of the ranks can have, sequences from i on left to deal. */
static uint64_t best_of_all(const batch *b, const gr_balance_bounds *most, uint32_t ranks, uint32_t i,
                            uint64_t *work, uint32_t *seqs)
{
    uint64_t best = UINT64_MAX, fullest = 0;
    for (uint32_t k = 0; k < ranks; k++) fullest = GR_MAX(fullest, work[k]);
    if (i == *b->rows.n_seqs) return fullest;
    for (uint32_t k = 0; k < ranks; k++) {
        if (seqs[k] == most->seqs || work[k] - seqs[k] + task_of(b, i) - 1 > most->tokens) continue;
        work[k] += task_of(b, i), seqs[k]++;
        uint64_t found = best_of_all(b, most, ranks, i + 1, work, seqs);
        work[k] -= task_of(b, i), seqs[k]--;
        best = GR_MIN(best, found);
        if (!seqs[k]) break; /* empty ranks are alike */
    }
    return best;
}

static void test_small_batches_are_dealt_nearly_as_well_as_any_deal_could(void **state)
{
    (void)state;
    uint64_t seed = 3;
    uint32_t best = 0, rounds = 0;
    for (uint32_t round = 0; round < 300; round++) {
        uint32_t groups = 2 + draw(&seed, 3), sizes[4], lengths[12], n = 0, ranks = 2 + draw(&seed, 2);
        uint32_t size = 1 + draw(&seed, 9 / groups);
        for (uint32_t g = 0; g < groups; g++) n += sizes[g] = size;
        for (uint32_t i = 0; i < n; i++)
            lengths[i] = 2 + draw(&seed, round % 2 ? 60 : 12) * (1 + 8 * !draw(&seed, 6));
        batch b = make_batch(sizes, groups, lengths, 542);
        balance d = balance_all(&b, 0, groups, ranks);
        uint64_t work[3] = {0}, least;
        uint32_t seqs[3] = {0};
        least = best_of_all(&b, &d.most, ranks, 0, work, seqs);
        assert_true(d.dealt.most >= least);
        assert_true(d.dealt.most * 3 <= least * 4); /* never worse than a third, in these */
        best += d.dealt.most * 100 <= least * 103;
        rounds++;
        free(d.rank);
        free(b.block);
    }
    print_message("%u of %u within 3 %% of the best\n", best, rounds);
    assert_true(best * 10 >= rounds * 8);
}

static uint32_t whole_groups(const batch *b, const balance *d)
{
    uint32_t whole = 0;
    for (uint32_t i = 0; i < d->n;) {
        uint32_t first = i;
        bool same = true;
        for (; i < d->n && b->rows.group[i] == b->rows.group[first]; i++)
            same = same && d->rank[i] == d->rank[first];
        whole += same;
    }
    return whole;
}

/* Lengths as responses have them: many of middling length, a tail, and what is cut at the bound. */
static uint32_t response(uint64_t *seed, uint32_t longest)
{
    uint32_t n = 20 + draw(seed, longest / 6) + draw(seed, longest / 6);
    while (!draw(seed, 3)) n *= 2;
    return GR_MIN(n, longest);
}

static void test_large_batches_come_out_even_and_most_groups_stay_whole(void **state)
{
    (void)state;
    uint64_t seed = 11;
    for (uint32_t ranks = 2; ranks <= 64; ranks *= 2) {
        uint32_t sizes[512], *lengths = gr_malloc(4096 * sizeof(*lengths));
        for (uint32_t g = 0; g < 512; g++) sizes[g] = 8;
        for (uint32_t i = 0; i < 4096; i++) lengths[i] = response(&seed, 4096);
        batch b = make_batch(sizes, 512, lengths, 4096);
        balance d = balance_all(&b, 0, 512, ranks);
        uint64_t mean = d.dealt.all / ranks;
        uint32_t whole = whole_groups(&b, &d);
        print_message("%u ranks: %.1f %% above the mean, %.2f %% now, %u of 512 groups whole\n", ranks,
                      100.0 * (double)d.dealt.most_before / (double)mean - 100,
                      100.0 * (double)d.dealt.most / (double)mean - 100, whole);
        assert_true(d.dealt.most <= mean + mean / 256 + 1);
        assert_true(whole >= 256);
        free(d.rank);
        free(b.block);
        free(lengths);
    }
}

/* By hand, on 2 ranks. */
static void test_unlike_lengths_by_hand(void **state)
{
    (void)state;
    static const struct {
        uint32_t n, lengths[8], most; /* groups of two; work, with one for each sequence */
    } cases[] = {
        {8, {99, 99, 99, 99, 9, 9, 9, 9}, 220}, /* long ones first: two and two of them */
        {4, {99, 9, 9, 9}, 100},                /* one alone, although it parts its group */
        {4, {9, 9, 9, 9}, 20},                  /* equal ones stay as they are */
        {2, {99, 49}, 100},                     /* one group for two ranks */
        {8, {99, 2, 2, 2, 2, 2, 2, 2}, 100},    /* one long one beside seven short ones */
        {6, {59, 49, 39, 29, 19, 9}, 110},      /* 60 + 40 + 10, 50 + 30 + 20: a difference of 10 at least */
    };
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        static const uint32_t sizes[] = {2, 2, 2, 2};
        batch b = make_batch(sizes, cases[i].n / 2, cases[i].lengths, 100);
        balance d = balance_all(&b, 0, cases[i].n / 2, 2);
        if (d.dealt.most != cases[i].most) fail_msg("case %zu: %lu", i, d.dealt.most);
        free(d.rank);
        free(b.block);
    }
}

/* A rank never has more than what was planned for it, whatever the lengths; deals of parts of a batch, of
 * groups that a selection has left uneven, and of none at all, are deals, too. */
static void test_bounds_hold_for_lengths_made_to_break_them(void **state)
{
    (void)state;
    uint64_t seed = 5;
    for (uint32_t round = 0; round < 2000; round++) {
        uint32_t groups = draw(&seed, 9), sizes[8], lengths[64], n = 0, ranks = 1 + draw(&seed, 9);
        uint32_t kind = draw(&seed, 4);
        for (uint32_t g = 0; g < groups; g++) n += sizes[g] = 1 + draw(&seed, 8);
        for (uint32_t i = 0; i < n; i++)
            lengths[i] = kind == 0   ? 64
                         : kind == 1 ? (i ? 2 : 64)
                         : kind == 2 ? (i % 2 ? 64 : 2)
                                     : 2 + draw(&seed, 63);
        batch b = make_batch(sizes, groups, lengths, 64);
        uint32_t from = groups ? draw(&seed, groups) : 0, to = from + draw(&seed, groups - from + 1);
        balance d = balance_all(&b, from, to, ranks), again = balance_all(&b, from, to, ranks);
        assert_memory_equal(d.rank, again.rank, d.n * sizeof(*d.rank));
        free(d.rank);
        free(again.rank);
        free(b.block);
    }
}

/* Ranks' own lists are in order, and together they are all of it. */
static void test_each_sequence_is_one_ranks_own(void **state)
{
    (void)state;
    uint64_t seed = 9;
    uint32_t sizes[6], lengths[18];
    for (uint32_t g = 0; g < 6; g++) sizes[g] = 3;
    for (uint32_t i = 0; i < 18; i++) lengths[i] = 2 + draw(&seed, 30);
    batch b = make_batch(sizes, 6, lengths, 32);
    for (uint32_t ranks = 1; ranks <= 4; ranks++) {
        gr_balance_bounds most = bounds_of(&b, 2, 6, ranks);
        uint32_t times[18] = {0}, n = 0;
        gr_balancer *balancer = gr_balancer_new(12, ranks, &most);
        for (uint32_t k = 0; k < ranks; k++) {
            gr_seqs own = gr_seqs_new(12);
            gr_balance_own(balancer, &own, k, &b.rows, 2, 6, &tokens_only);
            for (uint32_t i = 0; i < own.n; i++, n++) {
                assert_in_range(own.seq[i], i ? own.seq[i - 1] + 1 : 6, 17);
                assert_int_equal(times[own.seq[i]]++, 0);
            }
            free(own.seq);
        }
        gr_balancer_free(balancer);
        assert_int_equal(n, 12);
    }
    free(b.block);
}

/* 30 and 10 tokens would be 20 each if a sequence moved. */
static void test_groups_stay_whole_where_asked(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {3, 1}, lengths[] = {10, 10, 10, 10};
    batch b = make_batch(sizes, 2, lengths, 16);
    const gr_balance_bounds most = bounds_of(&b, 0, 2, 2);
    gr_seq_cost cost = tokens_only;
    uint32_t rank[4];
    gr_balancer *balancer = gr_balancer_new(4, 2, &most);
    assert_int_equal(gr_balance(balancer, rank, &b.rows, 0, 2, &cost).most, 2 * (10 + 1));
    cost.whole = true;
    assert_int_equal(gr_balance(balancer, rank, &b.rows, 0, 2, &cost).most, 3 * (10 + 1));
    assert_true(rank[0] == rank[1] && rank[1] == rank[2] && rank[2] != rank[3]);
    gr_balancer_free(balancer);
    free(b.block);
}

/* By hand: of 1024 each, a token costs 3, a pair of tokens 5, and a row of the head 7. */
static void test_attention_and_the_head_count(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 1}, lengths[] = {11, 2};
    batch b = make_batch(sizes, 2, lengths, 16);
    gr_balance_bounds most = bounds_of(&b, 0, 2, 2);
    gr_seq_cost cost = {3 * 1024, 5 * 1024, 7 * 1024, false, false};
    uint32_t rank[2];
    gr_balancer *balancer = gr_balancer_new(2, 2, &most);
    gr_dealt d = gr_balance(balancer, rank, &b.rows, 0, 2, &cost);
    assert_int_equal(d.most, 11 * 3 + 121 * 5 + 10 * 7 + 1);
    assert_int_equal(d.all - d.most, 2 * 3 + 4 * 5 + 7 + 1);
    cost.last = true;
    d = gr_balance(balancer, rank, &b.rows, 0, 2, &cost);
    assert_int_equal(d.most, 11 * 3 + 121 * 5 + 7 + 1);
    gr_balancer_free(balancer);
    free(b.block);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_batches_are_dealt_nearly_as_well_as_any_deal_could),
        cmocka_unit_test(test_large_batches_come_out_even_and_most_groups_stay_whole),
        cmocka_unit_test(test_unlike_lengths_by_hand),
        cmocka_unit_test(test_bounds_hold_for_lengths_made_to_break_them),
        cmocka_unit_test(test_each_sequence_is_one_ranks_own),
        cmocka_unit_test(test_groups_stay_whole_where_asked),
        cmocka_unit_test(test_attention_and_the_head_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
