/* Derivatives against central differences; classes, cuts, ties. */
#include "tests/unit/expr_batch.h"

/* Sequences in groups of two, one of them masked in the middle, one of one token, one group alone. */
static batch *make_batch(void)
{
    static const int lengths[] = {5, 3, 1, 7, 4, -1};
    batch *b = batch_new(2, lengths);
    b->mask[2] = 0;
    b->mask[3] = 0;
    b->mask[12] = 0;
    batch_loss_columns(b);
    batch_param(b, "$lo", 0.2);
    batch_param(b, "$hi", 0.28);
    return b;
}

/* Every loss is evaluated in double, but its columns are f32: a step that f32 holds exactly. */
static void expect_gradient(batch *b, const char *text)
{
    gr_loss *l = batch_loss(b, text);
    size_t n_current;
    const int *current = gr_loss_current(l, &n_current);
    float adjoint[3][MAX_TOKENS], *out[3] = {adjoint[0], adjoint[1], adjoint[2]};
    memset(adjoint, 0x7f, sizeof(adjoint));
    assert_in_range(n_current, 1, 3);
    batch_adjoint(b, l, (const uint32_t[]){0, b->n_tokens}, 1, out);
    for (size_t i = 0; i < n_current; i++) {
        float *x = b->columns[current[i]].data;
        for (uint32_t t = 0; t < b->n_tokens; t++) {
            float h = 0x1p-14f, keep = x[t];
            x[t] = keep + h;
            double hi = batch_loss_value(b, l), at_hi = (double)x[t];
            x[t] = keep - h;
            double lo = batch_loss_value(b, l), width = at_hi - (double)x[t];
            x[t] = keep;
            double want = (hi - lo) / width, got = (double)adjoint[i][t];
            if (!(fabs(got - want) <= 2e-6 + 1e-5 * fabs(want))) {
                fail_msg("%s: d/d %s [%u]: got %.9g, want %.9g", text, b->columns[current[i]].name, t, got,
                         want);
            }
        }
    }
    gr_loss_free(l);
}

static const struct loss_case {
    const char *name, *text;
    gr_loss_class class;
} losses[] = {
    {"ppo clip with k3",
     "ratio = exp(logprob - old_logprob)\n"
     "pg_ = max(-advantage * ratio, -advantage * clip(ratio, 1 - $lo, 1 + $hi))\n"
     "kl = exp(ref_logprob - logprob) - (ref_logprob - logprob) - 1\n"
     "token_mean(pg_ + 0.01 * kl)",
     GR_LOSS_TOKEN},
    {"dual clip",
     "r = exp(clip(logprob - old_logprob, -20, 20))\n"
     "l = max(-adv * r, -adv * clip(r, 1 - $lo, 1 + $hi))\n"
     "batch_mean(seq_sum(where(adv < 0, min(l, -adv * 3), l)))",
     GR_LOSS_TOKEN},
    {"gspo",
     "u = seq_mean(logprob - old_logprob)\n"
     "q = exp(min(u, 10))\n"
     "batch_mean(seq_mean(max(-advantage * q, -advantage * clip(q, 1 - $lo, 1 + $hi))))",
     GR_LOSS_SEQ},
    {"cispo",
     "r = exp(old_logprob - ref_logprob)\n"
     "token_mean(-stop_gradient(clip(r, 1 - $lo, 1 + $hi)) * adv * logprob)",
     GR_LOSS_TOKEN},
    {"sapo",
     "r = exp(logprob - old_logprob)\n"
     "tau = where(adv > 0, 1, 1.05)\n"
     "batch_mean(seq_mean(-4 / tau * sigmoid(tau * (r - 1)) * adv))",
     GR_LOSS_TOKEN},
    {"geo_mean",
     "d = logprob - old_logprob\n"
     "s = where(advantage > 0, 1, where(advantage < 0, -1, 0))\n"
     "dm = s * min(s * d, s * clip(d, -0.2, 0.2))\n"
     "n = seq_count() + 1e-8\n"
     "batch_mean(-seq_sum(advantage) / n * exp(seq_sum(dm) / n))",
     GR_LOSS_SEQ},
    {"dppo_tv",
     "p = exp(old_logprob)\n"
     "keep = where(adv > 0, p <= 0.3, p >= 0.1)\n"
     "token_mean(where(keep, -adv * min(p, 20) * logprob, 0))",
     GR_LOSS_TOKEN},
    {"dppo_kl",
     "po = exp(old_logprob)\n"
     "p = exp(ref_logprob)\n"
     "k = po * (old_logprob - ref_logprob) + (1 - po) * log((1 - po + 1e-8) / (1 - p + 1e-8))\n"
     "keep = where(adv > 0, k <= 0.2 or p <= po, k <= 0.2 or p >= po)\n"
     "token_mean(where(keep, -adv * logprob, 0))",
     GR_LOSS_TOKEN},
    {"dro", "token_mean(-(adv * logprob - 0.5 * 0.3 * (logprob - old_logprob)^2))", GR_LOSS_TOKEN},
    {"gpg", "token_sum(-adv * logprob)", GR_LOSS_TOKEN},
    {"reinforce", "batch_mean(seq_sum(-advantage * logprob))", GR_LOSS_TOKEN},
    {"kl_cov",
     "cov = (adv - token_mean(adv)) * (old_logprob - token_mean(old_logprob))\n"
     "d = logprob - old_logprob\n"
     "token_mean(-adv * exp(d) + where(top(cov, 3, cov > -9), 0.1 * abs(d), 0))",
     GR_LOSS_TOKEN},
    {"clip_cov with fixed selection",
     "cov = (adv - token_mean(adv)) * (old_logprob - token_mean(old_logprob))\n"
     "drop = choose(cov > 0, 4)\n"
     "token_mean(where(drop, 0, -adv * exp(logprob - old_logprob)))",
     GR_LOSS_TOKEN},
    {"covariance", "token_mean((adv - token_mean(adv)) * (logprob - token_mean(logprob))^2)", GR_LOSS_BATCH},
    {"clip_cov",
     "ratio = exp(logprob - old_logprob)\n"
     "l1 = -advantage * ratio\n"
     "l2 = -advantage * clip(ratio, 1 - $lo, 1 + $hi)\n"
     "cov = (advantage - token_mean(advantage)) * (logprob - token_mean(logprob))\n"
     "drop = choose(l2 <= l1 and cov > 0.1 and cov < 5, max(floor(0.1 * token_count()), 1))\n"
     "token_mean(where(drop, 0, max(l1, l2)))",
     GR_LOSS_BATCH},
    {"value clip",
     "0.5 * token_mean(max((value - returns)^2, (clip(value, values - 0.5, values + 0.5) - returns)^2))",
     GR_LOSS_TOKEN},
    {"entropy bonus", "token_mean(-adv * logprob) - 0.01 * token_mean(entropy)", GR_LOSS_TOKEN},
    {"sft", "-token_sum(logprob) / token_count()", GR_LOSS_TOKEN},
    {"pairwise",
     "s = seq_sum(logprob - ref_logprob)\n"
     "first = group_rank(advantage) == 0\n"
     "margin = group_sum(where(first, s, -s))\n"
     "-batch_mean(log(sigmoid(0.5 * margin)))",
     GR_LOSS_BATCH},
    {"whitened ratio", "token_mean(token_whiten(exp(logprob)) * adv)", GR_LOSS_BATCH},
    {"prompt values", "token_mean(pg * logprob)", GR_LOSS_TOKEN},
};

static void test_gradient_of_each_loss_is_its_finite_difference(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_LEN(losses); i++) {
        batch *b = make_batch();
        expect_gradient(b, losses[i].text);
        batch_free(b);
    }
}

static void test_losses_are_classed_by_what_their_derivative_reads(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_LEN(losses); i++) {
        batch *b = make_batch();
        gr_loss *l = batch_loss(b, losses[i].text);
        if (gr_loss_class_of(l) != losses[i].class) {
            fail_msg("%s: class %d, want %d", losses[i].name, gr_loss_class_of(l), losses[i].class);
        }
        gr_loc at;
        assert_true((gr_loss_why(l, &at)[0] != 0) == (losses[i].class != GR_LOSS_TOKEN));
        gr_loss_free(l);
        batch_free(b);
    }
}

static void test_gradient_of_each_function_is_its_finite_difference(void **state)
{
    static const char *const terms[] = {
        "token_sum(abs(logprob + 1))",
        "token_sum(log(entropy))",
        "token_sum(sqrt(entropy))",
        "token_sum(tanh(value))",
        "token_sum(sigmoid(value))",
        "token_sum(value / entropy)",
        "token_sum(entropy / (2 + value))",
        "token_sum(entropy ^ value)",
        "token_sum(value ^ 3)",
        "token_sum(2 ^ value)",
        "token_sum(min(value, logprob + 1, entropy))",
        "token_sum(max(value, logprob + 1) * value)",
        "token_sum(clip(value, entropy - 1, 0.5))",
        "token_sum(clip(0.2, value, entropy))",
        "token_sum(where(adv > 0, value, entropy) * value)",
        "token_sum(next(value, 2) * entropy)",
        "token_sum(prev(value, 2) * entropy)",
        "token_sum(prefix_sum(value) * entropy)",
        "token_sum(suffix_sum(value) * entropy)",
        "token_sum(discounted_sum(value, 0.9) ^ 2)",
        "token_sum(discounted_sum(value, adv) * entropy)",
        "token_sum(at_last(seq_sum(value)) * entropy)",
        "token_sum(suffix_sum(value - repeat(seq_mean(entropy))) * entropy)",
        "token_sum((10 * value) % 3 + entropy % (1 + value / 2))",
        "s = seq_sum(value)\nbatch_sum((s - group_median(s)) ^ 2 + group_quantile(s, 0.8) ^ 2)",
        "batch_quantile(seq_sum(value), 0.3) + token_median(value, adv > -1) * token_quantile(entropy, 0.4)",
        "batch_sum(seq_mean(value) ^ 2)",
        "batch_sum(seq_std(value) * advantage)",
        "batch_sum(seq_max(value) ^ 2)",
        "batch_sum(seq_max(value, adv > 0) ^ 2)",
        "batch_sum(seq_mean(value, adv > 0) ^ 2)",
        "batch_sum(group_mean(value) ^ 2)",
        "batch_sum(group_std(seq_mean(value)) + group_max(seq_mean(value)))",
        "batch_std(seq_mean(value))",
        "batch_max(seq_sum(value))",
        "token_std(value) + token_max(value, adv < 0)",
        "log(token_mean(exp(value)))",
        "batch_mean(seq_sum(value * position_sum(entropy)))",
        "token_sum(position_sum(value) / position_count() * entropy)",
        "token_sum(nth_sum(value) ^ 2 / nth_count() * entropy)",
        "token_sum(nth_sum(value, adv > 0) * entropy)",
        "token_sum(token_whiten(value, adv > -1) * entropy)",
        "batch_mean(seq_sum(value), advantage > 0)",
        "token_sum(random() * value)",
        "batch_sum(where(group_rank(advantage) == 0, seq_sum(value), 0))",
        "token_sum(where(top(adv, 4, adv < 9), value, 0))",
        "s = seq_sum(value)\nbatch_sum((s - group_mean(s)) / (group_std(s) + 1e-6))",
    };
    (void)state;
    for (size_t i = 0; i < GR_LEN(terms); i++) {
        batch *b = make_batch();
        expect_gradient(b, terms[i]);
        batch_free(b);
    }
}

static void expect_same_bits(batch *b, const struct loss_case *c, size_t n_cuts, const uint32_t *cut)
{
    gr_loss *l = batch_loss(b, c->text);
    float whole[3][MAX_TOKENS] = {{0}}, parts[3][MAX_TOKENS] = {{0}};
    float *to_whole[3] = {whole[0], whole[1], whole[2]}, *to_parts[3] = {parts[0], parts[1], parts[2]};
    batch_adjoint(b, l, (const uint32_t[]){0, b->n_tokens}, 1, to_whole);
    batch_adjoint(b, l, cut, n_cuts, to_parts);
    assert_memory_equal(whole, parts, sizeof(whole));
    gr_loss_free(l);
}

static void test_any_cut_gives_the_same_bits(void **state)
{
    static const uint32_t tokens[][9] = {
        {0, 20}, {0, 11, 20}, {0, 1, 2, 20}, {0, 2, 4, 7, 9, 13, 14, 19, 20}};
    static const uint32_t seqs[][9] = {{0, 20}, {0, 8, 20}, {0, 5, 9, 20}, {0, 5, 8, 9, 16, 20, 20, 20, 20}};
    static const size_t n[] = {1, 2, 3, 8};
    (void)state;
    for (size_t i = 0; i < GR_LEN(losses); i++) {
        for (size_t k = 0; k < GR_LEN(n); k++) {
            batch *b = make_batch();
            if (losses[i].class != GR_LOSS_BATCH) {
                expect_same_bits(b, &losses[i], n[k], losses[i].class == GR_LOSS_TOKEN ? tokens[k] : seqs[k]);
            }
            batch_free(b);
        }
    }
}

/* d loss / d value of a batch of one token, at the given value. */
static double slope(const char *text, double at)
{
    static const int one[] = {1, -1};
    batch *b = batch_new(1, one);
    float *x = batch_add(b, "value", GR_LEVEL_TOKEN, true), g, *out = &g;
    x[0] = (float)at;
    gr_loss *l = batch_loss(b, text);
    batch_adjoint(b, l, (const uint32_t[]){0, 1}, 1, &out);
    gr_loss_free(l);
    batch_free(b);
    return (double)g;
}

static void test_derivatives_at_ties_follow_pytorch(void **state)
{
    (void)state;
    assert_close(slope("token_sum(clip(value, 1, 2))", 1), 1, 0, 0);
    assert_close(slope("token_sum(clip(value, 1, 2))", 2), 1, 0, 0);
    assert_close(slope("token_sum(clip(value, 1, 2))", 2.5), 0, 0, 0);
    assert_close(slope("token_sum(clip(1, value, 2))", 1), 0, 0, 0);
    assert_close(slope("token_sum(clip(1, value, 2))", 1.5), 1, 0, 0);
    assert_close(slope("token_sum(clip(3, 2, value))", 3), 0, 0, 0);
    assert_close(slope("token_sum(clip(3, 2, value))", 2.5), 1, 0, 0);
    assert_close(slope("token_sum(clip(3, 2, value))", 1.5), 1, 0, 0);
    assert_close(slope("token_sum(max(value, 1))", 1), 0.5, 0, 0);
    assert_close(slope("token_sum(min(value, 1))", 1), 0.5, 0, 0);
    assert_close(slope("token_sum(abs(value))", 0), 0, 0, 0);
    assert_close(slope("token_sum(value ^ 2)", 0), 0, 0, 0);
    assert_close(slope("token_sum(value ^ 1)", 0), 1, 0, 0);
    assert_close(slope("token_std(value) + token_sum(value)", 3), 1, 0, 0);
    assert_close(slope("token_sum(floor(value) + value)", 3.5), 1, 0, 0);
}

static void test_the_branch_not_taken_gives_no_nan(void **state)
{
    (void)state;
    assert_close(slope("token_sum(where(value > 0, log(value), value))", 0), 1, 0, 0);
    assert_close(slope("token_sum(where(value > 0, sqrt(value), 3 * value))", 0), 3, 0, 0);
    assert_close(slope("token_sum(where(value > 0, 1 / value, 2 * value))", 0), 2, 0, 0);
    assert_close(slope("token_sum(where(value < 1, value, exp(1000 * value)))", 0.5), 1, 0, 0);
    assert_true(isnan(slope("token_sum(log(value) * 0 + value)", -1)) == 0);
}

static void test_a_maximum_shares_its_derivative_among_equals(void **state)
{
    static const int lengths[] = {4, -1};
    batch *b = batch_new(1, lengths);
    float *x = batch_add(b, "value", GR_LEVEL_TOKEN, true), g[4], *out = g;
    x[0] = 2, x[1] = 5, x[2] = 5, x[3] = 5;
    b->mask[3] = 0;
    (void)state;
    batch_set(b, "pick", GR_LEVEL_TOKEN, (const double[]){1, 1, 0, 1});
    static const char *const texts[] = {"batch_sum(seq_max(value))", "batch_sum(seq_max(value, pick > 0))"};
    const float want[2][4] = {{0, 0.5f, 0.5f, 0}, {0, 1, 0, 0}};
    for (size_t i = 0; i < GR_LEN(texts); i++) {
        gr_loss *l = batch_loss(b, texts[i]);
        batch_adjoint(b, l, (const uint32_t[]){0, 4}, 1, &out);
        assert_memory_equal(g, want[i], sizeof(want[i]));
        gr_loss_free(l);
    }
    batch_free(b);
}

/* Of a conversation: what an environment said has no gradient, not even a negative zero, and whatever the
 * model thinks of it, be it no number, changes nothing of the others. */
static void test_what_an_environment_said_has_no_gradient(void **state)
{
    (void)state;
    static const int lengths[] = {6, 4, -1};
    static const uint8_t model[10] = {1, 1, 0, 0, 1, 1, 1, 0, 1, 1};
    static const char *const texts[] = {
        "ratio = exp(logprob - old)\ntoken_mean(max(-gain * ratio, -gain * clip(ratio, 0.8, 1.2)))",
        "token_mean(-discounted_sum(logprob, 0.9) * gain)", "batch_mean(seq_mean(-logprob * gain))"};
    for (size_t i = 0; i < GR_LEN(texts); i++) {
        float with[2][10], *out = with[0];
        for (int nan_too = 0; nan_too < 2; nan_too++, out = with[1]) {
            batch *b = batch_new(2, lengths);
            float *x = batch_add(b, "logprob", GR_LEVEL_TOKEN, true);
            double old[10], gain[10];
            for (uint32_t t = 0; t < 10; t++) {
                x[t] = model[t] ? -0.1f * (float)t : nan_too ? NAN : -3;
                old[t] = -0.1 * t;
                gain[t] = t % 3 - 0.5;
                b->mask[t] = model[t];
            }
            batch_set(b, "old", GR_LEVEL_TOKEN, old);
            batch_set(b, "gain", GR_LEVEL_TOKEN, gain);
            gr_loss *l = batch_loss(b, texts[i]);
            batch_adjoint(b, l, (const uint32_t[]){0, 10}, 1, &out);
            gr_loss_free(l);
            batch_free(b);
            static const float zero = 0;
            for (uint32_t t = 0; t < 10; t++) {
                if (!model[t])
                    assert_memory_equal(&out[t], &zero, sizeof(zero));
                else
                    assert_true(out[t] != 0);
            }
        }
        assert_memory_equal(with[0], with[1], sizeof(with[0]));
    }
}

static void test_vanilla_policy_loss_has_the_hand_computed_values(void **state)
{
    static const struct {
        double a, r, loss, gradient;
    } cases[] = {{-1, 5, 3, 0}, {1, 5, -1.2, 0}, {-1, 0.5, 0.8, 0}, {1, 0.5, -0.5, -0.5}};
    static const int one[] = {1, -1};
    (void)state;
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        batch *b = batch_new(1, one);
        float *x = batch_add(b, "logprob", GR_LEVEL_TOKEN, true), g, *out = &g;
        x[0] = (float)log(cases[i].r);
        batch_set(b, "adv", GR_LEVEL_TOKEN, &cases[i].a);
        gr_loss *l = batch_loss(b, "r = exp(logprob)\n"
                                   "l = max(-adv * r, -adv * clip(r, 0.8, 1.2))\n"
                                   "token_mean(where(adv < 0, min(l, -adv * 3), l))");
        batch_adjoint(b, l, (const uint32_t[]){0, 1}, 1, &out);
        assert_close(batch_loss_value(b, l), cases[i].loss, 1e-6, 1e-6);
        assert_close((double)g, cases[i].gradient, 1e-6, 1e-6);
        gr_loss_free(l);
        batch_free(b);
    }
}

/* Values that NeMo-RL's tests of its ClippedPG loss work out by hand
 * (tests/unit/algorithms/test_loss_functions.py, commit 002cdc2): ratios of 0.5, 1 and 1.5, advantages of 1,
 * -1 and 2. */
static void test_policy_losses_have_the_values_that_others_work_out_by_hand(void **state)
{
    static const int three[] = {3, -1};
    static const double adv[] = {1, -1, 2}, old[] = {-1, -1, -1}, sampled[] = {-0.5, -1.5, -0.8};
    static const float logprob[] = {-1.69315f, -1, -0.59453f};
    static const struct {
        const char *text;
        double want;
    } cases[] = {
        {"r = exp(logprob - old)\ntoken_mean(max(-adv * r, -adv * clip(r, 0.8, 1.2)))", -1.9 / 3},
        {"r = exp(logprob - stop_gradient(logprob))\ntoken_mean(max(-adv * r, -adv * clip(r, 0.8, 1.2)))",
         -2.0 / 3},
        {"token_mean(-adv * logprob)", (1.69315 - 1 + 1.18906) / 3},
        {"token_mean(-adv * stop_gradient(clip(exp(logprob - old), 0.8, 1.2)) * logprob)",
         (0.8 * 1.69315 - 1 + 2.4 * 0.59453) / 3},
        {"token_mean(-adv * exp(old - sampled) * stop_gradient(clip(exp(logprob - old), 0.8, 1.2)) * "
         "logprob)",
         (0.606531 * 0.8 * 1.69315 - 1.648721 + 0.818731 * 2.4 * 0.59453) / 3}};
    (void)state;
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        batch *b = batch_new(1, three);
        float *x = batch_add(b, "logprob", GR_LEVEL_TOKEN, true), g[3], *out = g;
        memcpy(x, logprob, sizeof(logprob));
        batch_set(b, "adv", GR_LEVEL_TOKEN, adv);
        batch_set(b, "old", GR_LEVEL_TOKEN, old);
        batch_set(b, "sampled", GR_LEVEL_TOKEN, sampled);
        gr_loss *l = batch_loss(b, cases[i].text);
        batch_adjoint(b, l, (const uint32_t[]){0, 3}, 1, &out);
        assert_close(batch_loss_value(b, l), cases[i].want, 1e-5, 1e-5);
        gr_loss_free(l);
        batch_free(b);
    }
}

/* Of the same tests: a KL penalty as a sampled expectation has a gradient of its weight, too. */
static void test_the_gradient_of_a_kl_has_the_term_of_its_sampling(void **state)
{
    static const int two[] = {2, -1};
    static const double ref[] = {-0.9, -1.1}, logprob[] = {-1.2, -0.7}, sampled[] = {-1.5, -0.4}, beta = 0.3;
    (void)state;
    for (int weighted = 0; weighted < 2; weighted++) {
        batch *b = batch_new(1, two);
        float *x = batch_add(b, "logprob", GR_LEVEL_TOKEN, true), g[2], *out = g;
        for (int t = 0; t < 2; t++) x[t] = (float)logprob[t];
        batch_set(b, "ref", GR_LEVEL_TOKEN, ref);
        batch_set(b, "sampled", GR_LEVEL_TOKEN, sampled);
        gr_loss *l = batch_loss(
            b, weighted ? "x = ref - logprob\n0.3 * token_mean(exp(logprob - sampled) * (exp(x) - x - 1))"
                        : "x = ref - logprob\n"
                          "0.3 * token_mean(exp(logprob - stop_gradient(logprob)) * (exp(x) - x - 1))");
        batch_adjoint(b, l, (const uint32_t[]){0, 2}, 1, &out);
        for (int t = 0; t < 2; t++) {
            double r = ref[t] - logprob[t], weight = weighted ? exp(logprob[t] - sampled[t]) : 1;
            assert_close((double)g[t], beta * weight * (exp(r) - 1 - r + 1 - exp(r)) / 2, 1e-6, 1e-6);
        }
        gr_loss_free(l);
        batch_free(b);
    }
}

static void test_metrics_read_the_names_of_the_loss(void **state)
{
    (void)state;
    batch *b = make_batch();
    gr_expr *loss = batch_parse(b, "ratio = exp(logprob - old_logprob)\ntoken_mean(-adv * ratio)");
    gr_expr *clipped = batch_parse(b, "token_mean(ratio > 1)"), *n = batch_parse(b, "token_count()");
    const gr_loss_metric metrics[] = {{"clipped", clipped}, {"n", n}};
    gr_loss *l = NULL;
    assert_int_equal(gr_loss_new(&l, loss, metrics, 2, &b->scope, &b->d), GR_OK);
    gr_expr_free(loss);
    gr_expr_free(clipped);
    gr_expr_free(n);
    double v[3];
    gr_expr_bounds all = batch_bounds(b);
    void *work = malloc(gr_loss_work_bytes(l, GR_LOSS_VALUE, all, all));
    gr_loss_value(l, &b->env, v, work);
    free(work);
    assert_true(v[1] > 0 && v[1] < 1);
    assert_close(v[2], 17, 0, 0);
    gr_str s = {0};
    gr_loss_explain(l, &s);
    assert_non_null(strstr(s.text, "ratio: one number a token, of this pass\n"));
    assert_non_null(strstr(s.text, "class: token-coupled\n"));
    gr_str_release(&s);
    gr_loss_print(l, &s);
    assert_non_null(strstr(s.text, "adjoint #0 = "));
    gr_str_release(&s);
    gr_loss_free(l);
    batch_free(b);
}

static void test_a_stopped_symbol_is_its_current_one_without_derivative(void **state)
{
    (void)state;
    batch *b = make_batch();
    b->columns[3].symbol.current = b->columns[3].symbol.stopped = true; /* old_logprob is logprob */
    b->columns[3].symbol.id = 0;
    float of_name[MAX_TOKENS], of_stop[MAX_TOKENS], *out = of_name;
    const uint32_t all[] = {0, b->n_tokens};
    gr_loss *l = batch_loss(b, "token_mean(-adv * exp(logprob - old_logprob))");
    batch_adjoint(b, l, all, 1, &out);
    assert_close(batch_loss_value(b, l), -batch_scalar(b, "token_mean(adv)"), 0, 1e-12);
    gr_loss_free(l);
    l = batch_loss(b, "token_mean(-adv * exp(logprob - stop_gradient(logprob)))");
    out = of_stop;
    batch_adjoint(b, l, all, 1, &out);
    assert_memory_equal(of_name, of_stop, b->n_tokens * sizeof(float));
    gr_loss_free(l);
    batch_free(b);
}

static void test_prepare_reads_no_current_column(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_LEN(losses); i++) {
        batch *b = make_batch();
        gr_loss *l = batch_loss(b, losses[i].text);
        size_t n;
        const int *ids = gr_loss_reads(l, GR_LOSS_PREPARE, &n);
        for (size_t k = 0; k < n; k++) assert_true(ids[k] > 2);
        gr_loss_free(l);
        batch_free(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradient_of_each_loss_is_its_finite_difference),
        cmocka_unit_test(test_losses_are_classed_by_what_their_derivative_reads),
        cmocka_unit_test(test_gradient_of_each_function_is_its_finite_difference),
        cmocka_unit_test(test_any_cut_gives_the_same_bits),
        cmocka_unit_test(test_derivatives_at_ties_follow_pytorch),
        cmocka_unit_test(test_the_branch_not_taken_gives_no_nan),
        cmocka_unit_test(test_a_maximum_shares_its_derivative_among_equals),
        cmocka_unit_test(test_what_an_environment_said_has_no_gradient),
        cmocka_unit_test(test_vanilla_policy_loss_has_the_hand_computed_values),
        cmocka_unit_test(test_policy_losses_have_the_values_that_others_work_out_by_hand),
        cmocka_unit_test(test_the_gradient_of_a_kl_has_the_term_of_its_sampling),
        cmocka_unit_test(test_metrics_read_the_names_of_the_loss),
        cmocka_unit_test(test_a_stopped_symbol_is_its_current_one_without_derivative),
        cmocka_unit_test(test_prepare_reads_no_current_column),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
