/* What is refused, in which words, and where. */
#include "tests/unit/expr_batch.h"

static batch *make_batch(void)
{
    static const int lengths[] = {2, 1, -1};
    batch *b = batch_new(2, lengths);
    batch_random(b, "logprob", GR_LEVEL_TOKEN, true, -1, 0);
    batch_random(b, "kl", GR_LEVEL_TOKEN, false, -1, 1);
    batch_random(b, "reward", GR_LEVEL_SEQ, false, -1, 1);
    batch_random(b, "greedy_r", GR_LEVEL_SEQ, false, -1, 1);
    b->columns[3].symbol.rows = 1;
    batch_random(b, "step", GR_LEVEL_SCALAR, false, 0, 9);
    batch_random(b, "prompts.answer", GR_LEVEL_GROUP, false, 0, 1);
    b->scope.rows = -1;
    return b;
}

/* Every message of text, one a line. */
static char *messages(batch *b, const char *text, bool loss)
{
    gr_expr *e = NULL;
    gr_expr_source src = {text, {"t.yaml", 3, 9}, 6};
    if (gr_expr_parse(&e, &src, &b->d) == GR_OK && loss) {
        gr_loss *l = NULL;
        if (gr_loss_new(&l, e, NULL, 0, &b->scope, &b->d) == GR_OK) gr_loss_free(l);
    } else if (e && gr_expr_compile(e, &b->scope, &b->d) != GR_OK) {
        assert_true(b->d.n_errors > 0);
    }
    gr_expr_free(e);
    gr_str s = {0};
    gr_str_puts(&s, "");
    for (size_t i = 0; i < b->d.n; i++) {
        char *m = gr_message_format(&b->d.messages[i]);
        gr_str_printf(&s, "%s%s", i ? "\n" : "", m + strlen("t.yaml:"));
        free(m);
    }
    return s.text ? s.text : gr_strdup("");
}

static const struct {
    const char *text, *want;
    bool loss;
} cases[] = {
    {"", "3:9: error: empty expression: it says what is computed, such as reward - group_mean(reward)",
     false},
    {"1 +", "3:12: error: the line ends where a value was expected", false},
    {"(1 + 2",
     "3:15: error: the line ends where ')' was expected\n3:9: note: the '(' that is not closed stands here",
     false},
    {"exp(1, ", "3:16: error: the line ends where a value was expected", false},
    {"1 2", "3:11: error: unexpected '2' where an operator or the end of the line was expected", false},
    {"kl @ 2", "3:12: error: unexpected '@' where an operator or the end of the line was expected", false},
    {"1 < 2 < 3", "3:15: error: comparisons do not chain; join two with 'and'", false},
    {"\"abc", "3:9: error: text without its closing quote", false},
    {"1e999", "3:9: error: number too large", false},
    {"a = 1", "3:9: error: the last line defines 'a'; it must be the result, an expression without '='",
     false},
    {"1\n2", "3:9: error: only the last line is the result; write 'name = ...' before it", false},
    {"a = 1\na = 2\na", "4:7: error: 'a' is defined twice", false},
    {"$a = 1\n2", "3:9: error: '$a' cannot be defined here; use a plain name", false},
    {"rewrd + 1", "3:9: error: unknown name 'rewrd'; did you mean 'reward'?", false},
    {"qqqqqqqqqqq", "3:9: error: unknown name 'qqqqqqqqqqq'", false},
    {"a = b\nb = 1\na + b", "3:13: error: 'b' is used before its definition; move that line up", false},
    {"exp", "3:9: error: 'exp' is a function; write 'exp(...)'", false},
    {"exq(1)", "3:9: error: unknown function 'exq'; did you mean 'exp'?", false},
    {"torch.exp(1)", "3:9: error: unknown function 'torch.exp'; did you mean 'exp'?", false},
    {"kl.detach()", "3:9: error: unknown function 'kl.detach'; did you mean 'stop_gradient'?", false},
    {"mean(kl)",
     "3:9: error: unknown function 'mean'; did you mean 'token_mean', 'seq_mean', 'group_mean' or "
     "'batch_mean'?",
     false},
    {"kl ** 2", "3:13: error: unexpected '*' where a value was expected; a power is written x ^ 2", false},
    {"2 * * 3", "3:13: error: unexpected '*' where a value was expected", false},
    {"kl > 1 && kl < 2",
     "3:16: error: unexpected '&' where an operator or the end of the line was expected; it is written 'and'",
     false},
    {"!kl", "3:9: error: unexpected '!' where a value was expected; it is written 'not'", false},
    {"1 if kl > 0 else 2",
     "3:11: error: unexpected 'if' where an operator or the end of the line was expected; a choice is "
     "written "
     "where(condition, x, y)",
     false},
    {"reward = 1\nreward", "3:9: error: 'reward' is already the name of a value here; choose another", false},
    {"exp = 1\nexp + 1", "3:9: error: 'exp' is a function; choose another name", false},
    {"clip(kl, 1)", "3:9: error: 'clip' is called with 2 arguments; it is clip(x, lo, hi)", false},
    {"reward + greedy_r",
     "3:16: error: 'reward' has the rows of 'rollout' but 'greedy_r' those of 'greedy'; only values a prompt "
     "cross: bring one there, e.g. with group_mean(greedy_r)",
     false},
    {"(kl > 0) + 1", "3:13: error: 'kl > 0' is true or false where a number is wanted; use where(..., 1, 0)",
     false},
    {"where(kl, 1, 2)",
     "3:15: error: 'kl' is a number where a condition is wanted; compare it, e.g. with > 0", false},
    {"where(kl > 0, 1, true)", "3:9: error: the two values of 'where' are a number and a condition", false},
    {"kl == true", "3:12: error: a condition is compared with a number", false},
    {"suffix_sum(reward)",
     "3:9: error: 'suffix_sum' would count 'reward', a sequence value, once a token; put it on the last one "
     "with at_last(reward), or write repeat(reward) where each token should count it",
     false},
    {"suffix_sum(reward - 0.1 * kl)",
     "3:9: error: 'suffix_sum' would count a sequence value once a token, in 'reward - 0.1 * kl'; put it on "
     "the last one with at_last(x), or write repeat(x) where each token should count it",
     false},
    {"r = reward - kl\ndiscounted_sum(2 * r, 0.9)",
     "4:7: error: 'discounted_sum' would count a sequence value once a token, in 'reward - kl'; put it on "
     "the last one with at_last(x), or write repeat(x) where each token should count it",
     false},
    {"repeat(kl)", "3:9: error: 'repeat' takes a sequence value, but 'kl' is a token value already", false},
    {"group_median(kl)",
     "3:9: error: 'group_median' takes a sequence value, but 'kl' is a token value; reduce it first, e.g. "
     "with seq_mean()",
     false},
    {"batch_quantile(reward, reward)", "3:32: error: 'reward' is a sequence value where a scalar is wanted",
     false},
    {"percentile(kl, 0.8)",
     "3:9: error: unknown function 'percentile'; did you mean 'token_quantile', 'group_quantile' or "
     "'batch_quantile'?",
     false},
    {"at_last(kl)",
     "3:9: error: 'at_last' takes a sequence value, but 'kl' is a token value, which is on its tokens "
     "already",
     false},
    {"group_rank(kl)",
     "3:9: error: 'group_rank' takes a sequence value, but 'kl' is a token value; reduce it first, e.g. with "
     "seq_mean()",
     false},
    {"batch_mean(kl)",
     "3:9: error: 'batch_mean' takes a sequence or prompt value, but 'kl' is a token value; reduce it first, "
     "e.g. with "
     "seq_mean()",
     false},
    {"token_count()", "3:9: error: 'token_count()' has no rows: nothing here is a sequence or token value",
     false},
    {"token_count() + group_mean(reward) + group_mean(greedy_r)",
     "3:9: error: 'token_count()' does not say whose rows: 'rollout' or 'greedy'; give it an argument",
     false},
    {"choose(step > 1, 2)", "3:9: error: 'choose' takes prompt, sequence or token values, not scalar values",
     false},
    {"top(kl, kl, kl > 0)", "3:17: error: 'kl' is a token value where a scalar is wanted", false},
    {"discounted_sum(kl, logprob)",
     "3:28: error: 'logprob' depends on this pass; only the first argument may", false},
    {"token(kl)", "3:15: error: 'token' takes a text in quotes, e.g. token(\"<think>\")", false},
    {"token(\"two words\")", "3:15: error: 'two words' is not one token of the tokenizer", false},
    {"\"abc\" + 1", "3:9: error: text stands only inside token(\"...\")", false},
    {"a = kl\nreward", "3:9: warning: 'a' is defined but not used", false},
    {"a = kll\nexq(1) +\n rewrd",
     "3:13: error: unknown name 'kll'; did you mean 'kl'?\n4:7: error: unknown function 'exq'; did you mean "
     "'exp'?\n"
     "5:8: error: unknown name 'rewrd'; did you mean 'reward'?",
     false},
    {"a = 1 +\nb = * 2\nb",

     "4:9: error: unexpected '='; a comparison is '==', a definition is 'name = value' on a line of its own",
     false},
    {"-logprob",
     "3:9: error: loss is a token value; it must be a scalar: reduce it, e.g. with token_mean() or "
     "batch_mean()",
     true},
    {"step > 1", "3:14: error: loss is true or false; it must be a number", true},
    {"token_mean(kl * stop_gradient(logprob))",
     "3:9: error: the loss depends on nothing that trains: it must read logprob, entropy or value, not only "
     "under "
     "stop_gradient, comparisons or floor",
     true},
};

static void test_every_error_says_what_and_where(void **state)
{
    (void)state;
    int failed = 0;
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        batch *b = make_batch();
        char *got = messages(b, cases[i].text, cases[i].loss);
        if (strcmp(got, cases[i].want)) {
            print_error("%s\n  got:  %s\n  want: %s\n", cases[i].text, got, cases[i].want);
            failed++;
        }
        free(got);
        batch_free(b);
    }
    assert_int_equal(failed, 0);
}

static void test_nesting_is_bounded(void **state)
{
    gr_str s = {0};
    (void)state;
    for (int i = 0; i < 20000; i++) gr_str_putc(&s, '(');
    batch *b = make_batch();
    char *got = messages(b, s.text, false);
    assert_non_null(strstr(got, "nested more than"));
    free(got);
    batch_free(b);
    s.len = 0;
    for (int i = 0; i < 5000; i++) gr_str_puts(&s, "1+");
    gr_str_puts(&s, "1");
    b = make_batch();
    got = messages(b, s.text, false);
    assert_non_null(strstr(got, "nested more than"));
    free(got);
    batch_free(b);
    gr_str_release(&s);
}

static void test_why_names_the_sub_expression(void **state)
{
    (void)state;
    batch *b = make_batch();
    gr_expr *e = batch_parse(b, "u = seq_mean(logprob - kl)\n"
                                "batch_mean(exp(u))");
    gr_loss *l = NULL;
    assert_int_equal(gr_loss_new(&l, e, NULL, 0, &b->scope, &b->d), GR_OK);
    gr_loc at;
    assert_string_equal(
        gr_loss_why(l, &at),
        "the derivative of 'seq_mean(logprob - kl)' needs the fresh values of the whole sequence");
    assert_int_equal(at.line, 1);
    assert_int_equal(at.col, 5);
    gr_loss_free(l);
    gr_expr_free(e);
    batch_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_error_says_what_and_where),
        cmocka_unit_test(test_nesting_is_bounded),
        cmocka_unit_test(test_why_names_the_sub_expression),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
