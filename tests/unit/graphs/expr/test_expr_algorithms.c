/* Advantage estimators, KL forms and aggregations of the field, as expressions, against numbers worked out by
 * hand or by a plain loop written here. */
#include "tests/unit/expr_batch.h"

#define GRPO                                                                                               \
    "where(group_count(reward) > 1, (reward - group_mean(reward)) / (group_std(reward) + 1e-6), reward / " \
    "(1 + 1e-6))"
#define RLOO                    \
    "n = group_count(reward)\n" \
    "where(n > 1, n / (n - 1) * (reward - group_mean(reward)), reward)"
#define OPO                                      \
    "n = seq_count()\n"                          \
    "b = group_sum(n * reward) / group_sum(n)\n" \
    "reward - where(group_count(reward) > 1, b, 0)"
#define PASSK                                           \
    "rank = group_rank(reward)\n"                       \
    "second = group_sum(where(rank == 1, reward, 0))\n" \
    "where(rank == 0, reward - second, 0) / (group_std(reward) + 1e-6)"
#define GPG                                                            \
    "alpha = batch_count(reward) / max(batch_count(reward != 0), 1)\n" \
    "alpha * (reward - where(group_count(reward) > 1, group_mean(reward), 0))"

static batch *with_rewards(uint32_t per_group, const int *lengths, const double *reward)
{
    batch *b = batch_new(per_group, lengths);
    batch_set(b, "reward", GR_LEVEL_SEQ, reward);
    return b;
}

static void expect_advantages(uint32_t per_group, const int *lengths, const double *reward, const char *text,
                              const double *want)
{
    batch *b = with_rewards(per_group, lengths, reward);
    batch_expect(b, text, GR_LEVEL_SEQ, want);
    batch_free(b);
}

static const int four[] = {1, 2, 3, 4, -1}, one[] = {2, -1};

static void test_one_right_of_four(void **state)
{
    static const double reward[] = {1, 0, 0, 0}, third = -1.0 / 3;
    (void)state;
    expect_advantages(4, four, reward, GRPO, (const double[]){1.499997, -0.499999, -0.499999, -0.499999});
    expect_advantages(4, four, reward, RLOO, (const double[]){1, third, third, third});
    expect_advantages(4, four, reward, PASSK, (const double[]){1 / 0.500001, 0, 0, 0});
    expect_advantages(4, four, reward, GPG, (const double[]){3, -1, -1, -1});
    expect_advantages(4, four, reward, "reward - group_mean(reward)",
                      (const double[]){0.75, -0.25, -0.25, -0.25});
}

static void test_a_group_of_one(void **state)
{
    static const double reward[] = {1};
    (void)state;
    expect_advantages(1, one, reward, GRPO, (const double[]){0.999999});
    expect_advantages(1, one, reward, RLOO, (const double[]){1});
    expect_advantages(1, one, reward, OPO, (const double[]){1});
    expect_advantages(1, one, reward, GPG, (const double[]){1});
    expect_advantages(1, one, reward,
                      "n = group_count(reward)\n"
                      "where(n > 1, (n * reward - group_sum(reward)) / max(n - 1, 1), 0)",
                      (const double[]){0});
}

static void test_equal_rewards_have_exactly_no_advantage(void **state)
{
    static const double reward[] = {0.1, 0.1, 0.1, 0.1};
    static const char *const texts[] = {GRPO, RLOO, PASSK, GPG};
    (void)state;
    for (size_t i = 0; i < GR_LEN(texts); i++) {
        float got[4];
        batch *b = with_rewards(4, four, reward);
        batch_eval(b, texts[i], GR_LEVEL_SEQ, got);
        for (int k = 0; k < 4; k++) assert_true(got[k] == 0);
        batch_free(b);
    }
}

static void test_opo_weighs_by_length(void **state)
{
    static const int lengths[] = {10, 30, -1};
    (void)state;
    expect_advantages(2, lengths, (const double[]){1, 0}, OPO, (const double[]){0.75, -0.25});
}

static void test_kl_forms(void **state)
{
    static const int three[] = {3, -1};
    (void)state;
    batch *b = batch_new(1, three);
    batch_set(b, "x", GR_LEVEL_TOKEN, (const double[]){1, -1, 5}); /* ref - logprob */
    double e = exp(1);
    batch_expect(b, "d = clip(x, -20, 20)\nclip(exp(d) - d - 1, -10, 10)", GR_LEVEL_TOKEN,
                 (const double[]){e - 2, 1 / e, 10});
    batch_expect(b, "0.5 * x ^ 2", GR_LEVEL_TOKEN, (const double[]){0.5, 0.5, 12.5});
    /* As NeMo-RL's tests have them: clamped to 20 before and to 10 behind. */
    batch_set(b, "logprob", GR_LEVEL_TOKEN, (const double[]){-1, -1, -1});
    batch_set(b, "ref", GR_LEVEL_TOKEN, (const double[]){0, -15, -30});
    batch_expect(b, "clip(clip(logprob - ref, -20, 20), -10, 10)", GR_LEVEL_TOKEN,
                 (const double[]){-1, 10, 10});
    batch_expect(b, "clip(0.5 * clip(logprob - ref, -20, 20) ^ 2, -10, 10)", GR_LEVEL_TOKEN,
                 (const double[]){0.5, 10, 10});
    batch_expect(b, "d = clip(ref - logprob, -20, 20)\nclip(exp(d) - d - 1, -10, 10)", GR_LEVEL_TOKEN,
                 (const double[]){e - 2, 10, 10});
    batch_free(b);
}

static void test_aggregations(void **state)
{
    static const int lengths[] = {1, 3, -1};
    (void)state;
    batch *b = batch_new(2, lengths);
    batch_set(b, "l", GR_LEVEL_TOKEN, (const double[]){1, 0, 0, 0});
    assert_close(batch_scalar(b, "token_mean(l)"), 0.25, 0, 1e-15);
    assert_close(batch_scalar(b, "batch_mean(seq_mean(l))"), 0.5, 0, 1e-15);
    assert_close(batch_scalar(b, "batch_mean(seq_sum(l))"), 0.5, 0, 1e-15);
    assert_close(batch_scalar(b, "batch_mean(seq_sum(l)) / 4"), 0.125, 0, 1e-15);
    batch_free(b);
}

static const char gae_text[] =
    "discounted_sum(at_last(reward) - 0.1 * kl + $gamma * next(values, 0) - values, $gamma * $lam)";

static void gae_batch(batch *b, const double *kl, const double *values)
{
    batch_param(b, "$gamma", 0.9);
    batch_param(b, "$lam", 0.8);
    batch_set(b, "kl", GR_LEVEL_TOKEN, kl);
    batch_set(b, "values", GR_LEVEL_TOKEN, values);
}

static void test_gae_with_masked_tokens_equals_gae_on_the_rest(void **state)
{
    static const int long_[] = {6, -1}, short_[] = {3, -1};
    static const double kl[] = {1, 99, 2, NAN, 3, 98}, values[] = {0.5, 99, -0.25, NAN, 1, 98},
                        reward[] = {2};
    (void)state;
    batch *b = with_rewards(1, long_, reward);
    gae_batch(b, kl, values);
    b->mask[1] = b->mask[3] = b->mask[5] = 0;
    double r[3] = {-0.1, -0.2, 2 - 0.3}, v[4] = {0.5, -0.25, 1, 0}, a[4] = {0};
    for (int t = 2; t >= 0; t--) a[t] = r[t] + 0.9 * v[t + 1] - v[t] + 0.9 * 0.8 * a[t + 1];
    batch_expect(b, gae_text, GR_LEVEL_TOKEN, (const double[]){a[0], 0, a[1], 0, a[2], 0});
    batch_free(b);
    b = with_rewards(1, short_, reward);
    gae_batch(b, (const double[]){1, 2, 3}, v);
    batch_expect(b, gae_text, GR_LEVEL_TOKEN, a);
    batch_free(b);
}

static void test_optimal_token_baseline(void **state)
{
    static const int lengths[] = {2, 3, 2, -1}; /* the second group is of one */
    static const double reward[] = {1, -1, 0.5};
    static const double lp[] = {-0.5, -1, -0.25, -2, -1.5, -0.75, -0.1},
                        p2[] = {0.6, 0.5, 0.7, 0.3, 0.2, 0.4, 0.9};
    (void)state;
    batch *b = with_rewards(2, lengths, reward);
    batch_set(b, "old_logprob", GR_LEVEL_TOKEN, lp);
    batch_set(b, "old_logprob.sum_p2", GR_LEVEL_TOKEN, p2);
    double w[7], want[7], sum = 0;
    for (int t = 0; t < 7; t++) {
        if (t == 0 || t == 2 || t == 5) sum = 0;
        w[t] = sum += 1 - 2 * exp(lp[t]) + p2[t];
    }
    for (int t = 0; t < 2; t++) {
        double base = (w[t] - w[2 + t]) / (w[t] + w[2 + t] + 1e-8);
        want[t] = 1 - base;
        want[2 + t] = -1 - base;
    }
    want[4] = -1; /* one sequence alone is this long: the zero tail */
    want[5] = want[6] = 0.5;
    batch_expect(b,
                 "G = suffix_sum(at_last(reward))\n"
                 "W = prefix_sum(1 - 2*exp(old_logprob) + old_logprob.sum_p2)\n"
                 "b = position_sum(G*W) / (position_sum(W) + 1e-8)\n"
                 "G - where(position_count() > 1, b, 0)",
                 GR_LEVEL_TOKEN, want);
    batch_free(b);
}

static void test_reinforce_plus_plus(void **state)
{
    static const int lengths[] = {2, 1, -1};
    (void)state;
    batch *b = with_rewards(2, lengths, (const double[]){1, 0});
    /* returns 0.5, 1, 0: mean 0.5, variance 0.25 */
    double sd = sqrt(0.25 + 1e-8);
    batch_expect(b, "token_whiten(discounted_sum(at_last(reward), 0.5))", GR_LEVEL_TOKEN,
                 (const double[]){0, 0.5 / sd, -0.5 / sd});
    batch_free(b);
}

static void test_remax_joins_two_rollouts_by_prompt(void **state)
{
    static const int lengths[] = {2, 1, -1};
    (void)state;
    batch *b = with_rewards(1, lengths, (const double[]){1, 0});
    batch_set(b, "greedy_r", GR_LEVEL_SEQ, (const double[]){0.5, 1});
    b->columns[1].symbol.rows = 1;
    batch_expect(b, "suffix_sum(at_last(reward)) - group_mean(greedy_r)", GR_LEVEL_TOKEN,
                 (const double[]){0.5, 0.5, -1});
    batch_free(b);
}

static void test_thinking_entropy_bonus(void **state)
{
    static const int lengths[] = {5, 3, -1};
    (void)state;
    batch *b = with_rewards(2, lengths, (const double[]){1, 0});
    batch_set(b, "rollout.token", GR_LEVEL_TOKEN, (const double[]){1, 7, 2, 8, 3, 7, 1, 2});
    batch_set(b, "old_logprob.entropy", GR_LEVEL_TOKEN, (const double[]){9, 0.1, 0.2, 0.3, 9, 9, 9, 9});
    batch_param(b, "$close", 8);
    double a = 0.5 / (sqrt(0.5) + 1e-6);
    batch_expect(b,
                 "opens = rollout.token == token(\"<think>\")\n"
                 "closes = rollout.token == $close\n"
                 "opened = prefix_sum(where(opens, 1, 0)) > 0\n"
                 "closed = prev(prefix_sum(where(closes and opened, 1, 0)), 0) > 0\n"
                 "paired = seq_count(closes and opened) > 0\n"
                 "H = where(paired, seq_mean(old_logprob.entropy, opened and not closed), 0)\n"
                 "A = (reward - group_mean(reward)) / (group_std(reward) + 1e-6)\n"
                 "A + 0.4 * clip(H, -abs(A) / 2, abs(A) / 2)",
                 GR_LEVEL_SEQ, (const double[]){a + 0.4 * 0.2, -a});
    batch_free(b);
}

static void test_adaptive_beta_is_a_scalar_expression(void **state)
{
    (void)state;
    batch *b = with_rewards(4, four, (const double[]){1, 0, 0, 0});
    float *beta = batch_add(b, "beta", GR_LEVEL_SCALAR, false),
          *kl = batch_add(b, "kl_now", GR_LEVEL_SCALAR, false);
    *beta = 0.5f;
    *kl = 1;
    assert_close(
        batch_scalar(b, "beta * (1 + clip(kl_now / 0.1 - 1, -0.2, 0.2) * batch_count(reward) / 10000)"),
        0.5 * (1 + 0.2 * 4 / 10000), 0, 1e-12);
    batch_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_right_of_four),
        cmocka_unit_test(test_a_group_of_one),
        cmocka_unit_test(test_equal_rewards_have_exactly_no_advantage),
        cmocka_unit_test(test_opo_weighs_by_length),
        cmocka_unit_test(test_kl_forms),
        cmocka_unit_test(test_aggregations),
        cmocka_unit_test(test_gae_with_masked_tokens_equals_gae_on_the_rest),
        cmocka_unit_test(test_optimal_token_baseline),
        cmocka_unit_test(test_reinforce_plus_plus),
        cmocka_unit_test(test_remax_joins_two_rollouts_by_prompt),
        cmocka_unit_test(test_thinking_entropy_bonus),
        cmocka_unit_test(test_adaptive_beta_is_a_scalar_expression),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
