/* Losses and their gradients against float64 PyTorch: tests/oracle/expr_losses.py wrote the numbers. */
#include "tests/unit/expr_batch.h"

static const struct {
    const char *name, *text;
} losses[] = {
    {"ppo", "r = exp(logprob - old_logprob)\n"
            "x = clip(ref_logprob - logprob, -20, 20)\n"
            "pg = max(-advantage * r, -advantage * clip(r, 1 - $lo, 1 + $hi))\n"
            "token_mean(pg + 0.1 * clip(exp(x) - x - 1, -10, 10))"},
    {"dual_clip", "r = exp(logprob - old_logprob)\n"
                  "l = max(-adv * r, -adv * clip(r, 1 - $lo, 1 + $hi))\n"
                  "batch_mean(seq_sum(where(adv < 0, min(l, -adv * 3), l)))"},
    {"gspo", "u = seq_mean(logprob - old_logprob)\n"
             "q = exp(min(logprob - stop_gradient(logprob) + stop_gradient(u), 10))\n"
             "batch_mean(seq_mean(max(-advantage * q, -advantage * clip(q, 1 - $lo, 1 + $hi))))"},
    {"cispo", "r = exp(logprob - old_logprob)\n"
              "token_mean(-stop_gradient(clip(r, 1 - $lo, 1 + $hi)) * adv * logprob)"},
    {"sapo", "r = exp(logprob - old_logprob)\n"
             "tau = where(adv > 0, 1, 1.05)\n"
             "batch_mean(seq_mean(-4 / tau * sigmoid(tau * (r - 1)) * adv))"},
    {"geo_mean", "d = logprob - old_logprob\n"
                 "s = where(advantage > 0, 1, where(advantage < 0, -1, 0))\n"
                 "dm = s * min(s * d, s * clip(d, -0.2, 0.2))\n"
                 "n = seq_count() + 1e-8\n"
                 "batch_mean(-seq_sum(advantage) / n * exp(seq_sum(dm) / n))"},
    {"dppo_tv", "gap = exp(logprob) - exp(old_logprob)\n"
                "keep = where(adv > 0, gap <= $hi, gap >= -$lo)\n"
                "w = stop_gradient(min(exp(logprob - old_logprob), 20))\n"
                "token_mean(where(keep, -adv * w * logprob, 0))"},
    {"dppo_kl", "q = exp(old_logprob)\n"
                "p = exp(logprob)\n"
                "k = q * (old_logprob - logprob) + (1 - q) * log((1 - q + 1e-8) / (1 - p + 1e-8))\n"
                "keep = where(adv > 0, k <= $hi or p <= q, k <= $lo or p >= q)\n"
                "w = stop_gradient(min(exp(logprob - old_logprob), 20))\n"
                "token_mean(where(keep, -adv * w * logprob, 0))"},
    {"dro", "token_mean(-(adv * logprob - 0.5 * 0.3 * (logprob - old_logprob)^2))"},
    {"kl_cov", "d = logprob - old_logprob\n"
               "cov = (adv - token_mean(adv)) * (logprob - token_mean(logprob))\n"
               "token_mean(-adv * exp(d) + where(top(cov, 3, true), 0.5 * abs(d), 0))"},
    {"value_clip",
     "0.5 * token_mean(max((value - returns)^2, (clip(value, values - 0.5, values + 0.5) - returns)^2))"},
    {"straight_through",
     "x = ref_logprob - logprob\n"
     "k3 = exp(x) - x - 1\n"
     "k2 = 0.5 * x^2\n"
     "token_mean(k2 - stop_gradient(k2) + stop_gradient(k3)) - 0.01 * token_mean(entropy)"},
    {"whitened", "token_mean(token_whiten(exp(logprob)) * adv)"},
    {"group_normalised", "s = seq_sum(logprob)\n"
                         "a = (s - group_mean(s)) / (group_std(s) + 1e-6)\n"
                         "batch_mean(where(group_count() > 1, a * advantage, 0))"},
};

static const char *const current_names[] = {"logprob", "entropy", "value"};

static void expect_word(FILE *f, const char *word)
{
    char got[64];
    assert_int_equal(fscanf(f, "%63s", got), 1);
    assert_string_equal(got, word);
}

static double number(FILE *f)
{
    double v;
    assert_int_equal(fscanf(f, "%lf", &v), 1);
    return v;
}

static batch *read_batch(FILE *f)
{
    static const char *const columns[] = {"logprob",     "entropy", "value",  "old_logprob",
                                          "ref_logprob", "adv",     "values", "returns"};
    int lengths[64], n = (int)number(f);
    for (int i = 0; i < n; i++) lengths[i] = (int)number(f);
    lengths[n] = -1;
    batch *b = batch_new(1, lengths);
    expect_word(f, "group");
    for (int i = 0; i < n; i++) b->group[i] = (uint32_t)number(f);
    b->env.n_groups = b->n_groups = b->group[n - 1] + 1;
    expect_word(f, "mask");
    for (uint32_t t = 0; t < b->n_tokens; t++) b->mask[t] = number(f) != 0;
    for (size_t c = 0; c < GR_LEN(columns); c++) {
        expect_word(f, columns[c]);
        float *x = batch_add(b, columns[c], GR_LEVEL_TOKEN, c < 3);
        for (uint32_t t = 0; t < b->n_tokens; t++) x[t] = (float)number(f);
    }
    expect_word(f, "advantage");
    float *x = batch_add(b, "advantage", GR_LEVEL_SEQ, false);
    for (int i = 0; i < n; i++) x[i] = (float)number(f);
    batch_param(b, "$lo", 0.2);
    batch_param(b, "$hi", 0.28);
    return b;
}

static void expect_loss(batch *b, const char *name, const char *text, FILE *f)
{
    float adjoint[3][MAX_TOKENS] = {{0}}, *out[3];
    size_t n_current;
    gr_loss *l = batch_loss(b, text);
    const int *current = gr_loss_current(l, &n_current);
    for (size_t i = 0; i < n_current; i++) out[i] = adjoint[current[i]];
    batch_adjoint(b, l, (const uint32_t[]){0, b->n_tokens}, 1, out);
    double want = number(f), got = batch_loss_value(b, l);
    if (!(fabs(got - want) <= 1e-13 + 1e-12 * fabs(want)))
        fail_msg("%s: got %.17g, want %.17g", name, got, want);
    for (int k = 0; k < 3; k++) {
        expect_word(f, current_names[k]);
        for (uint32_t t = 0; t < b->n_tokens; t++) {
            want = number(f);
            got = (double)adjoint[k][t];
            if (!(fabs(got - want) <= 1e-9 + 1e-7 * fabs(want))) {
                fail_msg("%s: d/d %s [%u]: got %.9g, want %.9g", name, current_names[k], t, got, want);
            }
        }
    }
    gr_loss_free(l);
}

static void test_losses_and_gradients_equal_pytorch(void **state)
{
    (void)state;
    FILE *f = fopen("tests/golden/expr_losses.txt", "r");
    assert_non_null(f);
    for (int i = 0; i < 2; i++) {
        expect_word(f, "batch");
        batch *b = read_batch(f);
        expect_word(f, "losses");
        assert_int_equal((int)number(f), GR_LEN(losses));
        for (size_t k = 0; k < GR_LEN(losses); k++) {
            expect_word(f, losses[k].name);
            expect_loss(b, losses[k].name, losses[k].text, f);
        }
        batch_free(b);
    }
    fclose(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses_and_gradients_equal_pytorch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
