#include "ops/drafts.h"

#include "tests/unit/test.h"

#include <math.h>

static uint32_t draft(const char *own, const char *other, uint32_t least, uint32_t most, char *out)
{
    int32_t ids[2][64], found[GR_DRAFT_MOST];
    const char *text[2] = {own, other};
    gr_draft_source sources[2];
    for (int k = 0; k < 2; k++) {
        const uint32_t n = text[k] ? (uint32_t)strlen(text[k]) : 0;
        for (uint32_t i = 0; i < n; i++) ids[k][i] = text[k][i];
        sources[k] = (gr_draft_source){ids[k], 1, n};
    }
    const uint32_t n = gr_draft(sources, other ? 2 : 1, least, most, found);
    for (uint32_t i = 0; i < n; i++) out[i] = (char)found[i];
    out[n] = '\0';
    return n;
}

static void expect(const char *own, const char *other, uint32_t least, uint32_t most, const char *want)
{
    char out[GR_DRAFT_MOST + 1];
    assert_int_equal(draft(own, other, least, most, out), strlen(want));
    assert_string_equal(out, want);
}

static void test_what_followed_the_longest_match_is_drafted(void **state)
{
    (void)state;
    expect("abcXYabc", NULL, 2, 4, "XYab");
    expect("abcXYabc", NULL, 2, 1, "X");
    expect("abcXYabc", NULL, 4, 4, "");      /* three are the same, not four */
    expect("1bcX2bcY3bc", NULL, 2, 2, "Y3"); /* of equal ones the latest */
    expect("0bcX2bcY0bc", NULL, 2, 2, "X2"); /* a longer one before it */
    expect("aaaa", NULL, 2, 4, "a");
    expect("abab", NULL, 2, 4, "ab");
    expect("ab", NULL, 1, 4, "");
    expect("a", NULL, 1, 4, "");
}

static void test_other_samples_are_looked_at_behind_the_own(void **state)
{
    (void)state;
    expect("q1abc", "q2abcdef", 2, 4, "def");
    expect("abXab", "cabY", 2, 4, "Xab"); /* as long a match: the own one */
    expect("zabXzab", "abY", 2, 4, "Xzab");
    expect("abX9ab", "9abY", 2, 4, "Y"); /* a longer one */
    expect("ab", "", 1, 4, "");
}

static void test_only_what_may_be_proposed_is(void **state)
{
    (void)state;
    static const int32_t own[] = {7, 8}, other[] = {7, 8, 9, 7, 8, 5};
    const gr_draft_source sources[] = {{own, 1, 2}, {other, 4, 6}}; /* its prompt has four */
    int32_t out[4];
    assert_int_equal(gr_draft(sources, 2, 2, 4, out), 1);
    assert_int_equal(out[0], 5);
}

static void test_yield_counts_valid_tokens(void **state)
{
    (void)state;
    assert_float_equal(gr_drafts_yield(0, 0.9), 1, 1e-12);
    assert_float_equal(gr_drafts_yield(4, 0), 1, 1e-12);
    assert_float_equal(gr_drafts_yield(2, 0.5), 1 + 0.5 + 0.25, 1e-12);
}

static void test_rejected_drafts_make_rests_longer(void **state)
{
    (void)state;
    gr_draft_record r = {0};
    static const uint32_t rests[] = {1, 3, 7, 15, 31, 31};
    for (size_t i = 0; i < GR_LEN(rests); i++) {
        assert_true(gr_draft_now(&r));
        gr_draft_went(&r, 4, 0);
        for (uint32_t k = 0; k < rests[i]; k++) {
            assert_false(gr_draft_now(&r));
            gr_draft_went(&r, 0, 0);
        }
    }
    assert_true(gr_draft_now(&r));
    gr_draft_went(&r, 4, 1);
    assert_true(gr_draft_now(&r));
}

/* ---- the rule of acceptance ---------------------------------------------------------------------------- */

enum { VOCAB = 5, LENGTH = 3, RUNS = 200000, TEXTS = VOCAB * VOCAB * VOCAB };

/* P(token | the one before): rows of a fixed chain. */
static const double chain[VOCAB][VOCAB] = {{0.7, 0.1, 0.1, 0.05, 0.05},
                                           {0.2, 0.2, 0.2, 0.2, 0.2},
                                           {0.02, 0.9, 0.03, 0.03, 0.02},
                                           {0.1, 0.3, 0.1, 0.4, 0.1},
                                           {0.25, 0.25, 0.25, 0, 0.25}};

static int32_t sample(int32_t before, double u)
{
    int32_t id = 0;
    for (; id < VOCAB - 1 && u >= chain[before][id]; id++) u -= chain[before][id];
    return id;
}

/* The random number of a run's token. */
static double number(uint32_t run, uint32_t at, uint64_t stream)
{
    const uint32_t counter[4] = {run, at, 0, 0};
    uint32_t out[4];
    gr_philox(7, stream, counter, out);
    return (double)gr_uniform(out[0]);
}

/* A text in steps: behind each fed token one is sampled, of which those count up to the first that differs
 * from the draft. The draft is anything: here what a wrong model thinks, other at each place. */
static uint32_t text_of(uint32_t run, bool drafts, uint64_t stream)
{
    int32_t ids[LENGTH + 1] = {0};
    for (uint32_t n = 0; n < LENGTH;) {
        const uint32_t most = drafts ? LENGTH - n - 1 : 0;
        int32_t fed[LENGTH + 1] = {ids[n]};
        for (uint32_t k = 1; k <= most; k++) fed[k] = (int32_t)((run + n * 3 + k) % VOCAB);
        for (uint32_t k = 0; k <= most; k++) {
            n++;
            ids[n] = sample(fed[k], number(run, n, stream));
            if (k == most || ids[n] != fed[k + 1]) break;
        }
    }
    return (uint32_t)(ids[1] + VOCAB * (ids[2] + VOCAB * ids[3]));
}

static void test_accepted_texts_have_the_distribution_of_the_model(void **state)
{
    (void)state;
    static uint32_t count[TEXTS];
    double statistic = 0;
    uint32_t freedom = 0;
    for (uint32_t run = 0; run < RUNS; run++) {
        /* with the numbers of their places, the same ids as without drafts */
        if (run < 1000) assert_int_equal(text_of(run, true, 1), text_of(run, false, 1));
        count[text_of(run, true, 2)]++;
    }
    for (uint32_t t = 0; t < TEXTS; t++) {
        const int a = t % VOCAB, b = t / VOCAB % VOCAB, c = t / VOCAB / VOCAB;
        const double want = RUNS * chain[0][a] * chain[a][b] * chain[b][c];
        if (want > 0)
            statistic += (count[t] - want) * (count[t] - want) / want, freedom++;
        else
            assert_int_equal(count[t], 0);
    }
    freedom--;
    assert_true(statistic < freedom + 4 * sqrt(2.0 * freedom)); /* four deviations of chi-square */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_followed_the_longest_match_is_drafted),
        cmocka_unit_test(test_other_samples_are_looked_at_behind_the_own),
        cmocka_unit_test(test_only_what_may_be_proposed_is),
        cmocka_unit_test(test_yield_counts_valid_tokens),
        cmocka_unit_test(test_rejected_drafts_make_rests_longer),
        cmocka_unit_test(test_accepted_texts_have_the_distribution_of_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
