/* Values of the language: every function by hand. */
#include "tests/unit/expr_batch.h"

/* Two groups: sequences of 3 and 2 tokens, and one of 4 whose second token is masked. */
static batch *make_batch(void)
{
    static const int lengths[] = {3, 2, 4, -1};
    batch *b = batch_new(2, lengths);
    b->mask[6] = 0;
    batch_set(b, "x", GR_LEVEL_TOKEN, (const double[]){1, 2, 3, 10, 20, 5, NAN, 6, 7});
    batch_set(b, "s", GR_LEVEL_SEQ, (const double[]){1, 3, 5});
    batch_set(b, "g", GR_LEVEL_GROUP, (const double[]){100, 200});
    batch_param(b, "$two", 2);
    return b;
}

static void test_arithmetic_has_the_usual_precedence(void **state)
{
    static const struct {
        const char *text;
        double want;
    } cases[] = {
        {"1 + 2 * 3", 7},
        {"-2 ^ 2", -4},
        {"2 ^ 3 ^ 2", 512},
        {"2 ^ -1", 0.5},
        {"8 / 4 / 2", 1},
        {"1 - 2 - 3", -4},
        {"where(not 1 < 2 or 3 >= 3 and 2 != 3, 1, 0)", 1},
        {"where(true == false, 1, 2)", 2},
        {"(1 +\n 2)\n", 3},
        {"1 +\n 2", 3},
        {"# a comment\na = 2 # and another\n\nb = a * a\nb + a", 6},
        {"1e-6 * 1E6 + .5 + 1.", 2.5},
        {"$two * 3", 6},
        {"min(3, 1, 2) + max(1, 5, 2)", 6},
        {"clip(5, 0, 2) + clip(-1, 0, 2)", 2},
        {"floor(-1.5) + abs(-2)", 0},
        {"sigmoid(0) + tanh(0) + exp(0) + log(1) + sqrt(4)", 3.5},
        {"token(\"<think>\")", 7},
        {"stop_gradient(4)", 4},
        {"7 % 3 + -7 % 3 * 10 + 7 % -3 * 100 + 6 % 3", 1 + 20 - 200},
        {"6 / 4 % 1 * 2", 1},
        /* 1 - C(n - c, k) / C(n, k) */
        {"pass_at(10, 3, 1)", 0.3},
        {"pass_at(10, 3, 5)", 1 - 21.0 / 252},
        {"pass_at(10, 0, 10)", 0},
        {"pass_at(10, 6, 5)", 1},
        {"pass_at(4, 1, 8)", 1}, /* of all there are */
        {"pass_at(0, 0, 1)", 0},
    };
    (void)state;
    batch *b = make_batch();
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        double got = batch_scalar(b, cases[i].text);
        if (!(fabs(got - cases[i].want) <= 1e-12)) fail_msg("%s: %g", cases[i].text, got);
    }
    batch_free(b);
}

static void test_coarse_values_broadcast(void **state)
{
    (void)state;
    batch *b = make_batch();
    batch_expect(b, "x + s + g", GR_LEVEL_TOKEN, (const double[]){102, 103, 104, 113, 123, 210, 0, 211, 212});
    batch_expect(b, "s * g", GR_LEVEL_SEQ, (const double[]){100, 300, 1000});
    batch_expect(b, "2", GR_LEVEL_TOKEN, (const double[]){2, 2, 2, 2, 2, 2, 0, 2, 2});
    batch_expect(b, "g", GR_LEVEL_SEQ, (const double[]){100, 100, 200});
    batch_free(b);
}

static void test_scans_skip_masked_tokens(void **state)
{
    static const struct {
        const char *text;
        double want[9];
    } cases[] = {
        {"next(x, -1)", {2, 3, -1, 20, -1, 6, 0, 7, -1}},
        {"prev(x, -1)", {-1, 1, 2, -1, 10, -1, 0, 5, 6}},
        {"prefix_sum(x)", {1, 3, 6, 10, 30, 5, 0, 11, 18}},
        {"suffix_sum(x)", {6, 5, 3, 30, 20, 18, 0, 13, 7}},
        {"discounted_sum(x, 0.5)", {2.75, 3.5, 3, 20, 20, 9.75, 0, 9.5, 7}},
        {"at_last(s)", {0, 0, 1, 0, 3, 0, 0, 0, 5}},
        {"prefix_sum(1)", {1, 2, 3, 1, 2, 1, 0, 2, 3}},
        {"nth_sum(x)", {11, 22, 3, 11, 22, 5, 0, 6, 7}},
        {"nth_sum(x, x > 1)", {10, 22, 3, 10, 22, 5, 0, 6, 7}},
        {"nth_count()", {2, 2, 1, 2, 2, 1, 0, 1, 1}},
        {"nth_count(x > 2)", {1, 1, 1, 1, 1, 1, 0, 1, 1}},
    };
    (void)state;
    batch *b = make_batch();
    for (size_t i = 0; i < GR_LEN(cases); i++) batch_expect(b, cases[i].text, GR_LEVEL_TOKEN, cases[i].want);
    batch_free(b);
}

static void test_reductions_skip_masked_tokens(void **state)
{
    static const struct {
        const char *text;
        gr_level level;
        double want[3];
    } cases[] = {
        {"seq_sum(x)", GR_LEVEL_SEQ, {6, 30, 18}},
        {"seq_mean(x)", GR_LEVEL_SEQ, {2, 15, 6}},
        {"seq_max(x)", GR_LEVEL_SEQ, {3, 20, 7}},
        {"seq_std(x)", GR_LEVEL_SEQ, {1, 7.0710678118, 1}},
        {"seq_count()", GR_LEVEL_SEQ, {3, 2, 3}},
        {"seq_count(x > 2)", GR_LEVEL_SEQ, {1, 2, 3}},
        {"seq_count(x > 2, x < 7)", GR_LEVEL_SEQ, {1, 0, 2}},
        {"seq_mean(x, x > 2)", GR_LEVEL_SEQ, {3, 15, 6}},
        {"seq_mean(x, x > 9)", GR_LEVEL_SEQ, {0, 15, 0}},
        {"seq_max(-x, x > 9)", GR_LEVEL_SEQ, {0, -10, 0}},
        {"group_sum(s)", GR_LEVEL_GROUP, {4, 5}},
        {"group_mean(s)", GR_LEVEL_GROUP, {2, 5}},
        {"group_std(s)", GR_LEVEL_GROUP, {1.4142135624, 0}},
        {"group_max(s)", GR_LEVEL_GROUP, {3, 5}},
        {"group_count()", GR_LEVEL_GROUP, {2, 1}},
        {"group_count(x)", GR_LEVEL_GROUP, {5, 3}},
        {"group_mean(x)", GR_LEVEL_GROUP, {7.2, 6}},
        {"group_rank(s)", GR_LEVEL_SEQ, {1, 0, 0}},
        {"pass_at(group_count(s), group_count(s > 2), 1)", GR_LEVEL_GROUP, {0.5, 1}},
        {"group_rank(0 * s)", GR_LEVEL_SEQ, {0, 1, 0}},
        {"group_median(s)", GR_LEVEL_GROUP, {2, 5}},
        {"group_median(s, s > 1)", GR_LEVEL_GROUP, {3, 5}},
        {"group_median(s, s > 9)", GR_LEVEL_GROUP, {0, 0}},
        {"m = group_median(log(4 - s))\nwhere(m == m, 1, 0)", GR_LEVEL_GROUP, {1, 0}},
        {"group_quantile(-s, 0.25)", GR_LEVEL_GROUP, {-2.5, -5}},
        {"group_quantile(s, 2)", GR_LEVEL_GROUP, {3, 5}},
        {"group_quantile(s, where(g > 150, 0, 0.25))", GR_LEVEL_GROUP, {1.5, 5}},
        {"batch_median(s)", GR_LEVEL_SCALAR, {3}},
        {"batch_median(s, s < 4)", GR_LEVEL_SCALAR, {2}},
        {"batch_quantile(0 * s + 1, 0.3)", GR_LEVEL_SCALAR, {1}},
        {"batch_quantile(g, 0.25)", GR_LEVEL_SCALAR, {125}},
        {"token_median(x)", GR_LEVEL_SCALAR, {5.5}},
        {"token_quantile(x, 0.9)", GR_LEVEL_SCALAR, {13}},
        {"token_median(s)", GR_LEVEL_SCALAR, {3}},
        {"batch_sum(s)", GR_LEVEL_SCALAR, {9}},
        {"batch_mean(s)", GR_LEVEL_SCALAR, {3}},
        {"batch_std(s)", GR_LEVEL_SCALAR, {2}},
        {"batch_max(s)", GR_LEVEL_SCALAR, {5}},
        {"batch_count(s)", GR_LEVEL_SCALAR, {3}},
        {"batch_count(s > 1)", GR_LEVEL_SCALAR, {2}},
        {"batch_count(g)", GR_LEVEL_SCALAR, {2}},
        {"batch_mean(g)", GR_LEVEL_SCALAR, {150}},
        {"batch_mean(s, s > 9)", GR_LEVEL_SCALAR, {0}},
        {"token_sum(x)", GR_LEVEL_SCALAR, {54}},
        {"token_mean(x)", GR_LEVEL_SCALAR, {6.75}},
        {"token_count()", GR_LEVEL_SCALAR, {8}},
        {"token_max(x)", GR_LEVEL_SCALAR, {20}},
        {"token_mean(s)", GR_LEVEL_SCALAR, {3}},
        {"token_std(x, x < 4)", GR_LEVEL_SCALAR, {1}},
        {"token_mean(x > 5)", GR_LEVEL_SCALAR, {0.5}},
        {"token_sum(position_sum(x))", GR_LEVEL_SCALAR, {11 + 22 + 3 + 11 + 22 + 5 + 6 + 7}},
        {"token_sum(position_count())", GR_LEVEL_SCALAR, {2 + 2 + 1 + 2 + 2 + 1 + 1 + 1}},
    };
    (void)state;
    batch *b = make_batch();
    for (size_t i = 0; i < GR_LEN(cases); i++) batch_expect(b, cases[i].text, cases[i].level, cases[i].want);
    batch_free(b);
}

static void test_whitening_divides_by_the_unbiased_deviation(void **state)
{
    (void)state;
    batch *b = make_batch();
    double v = ((1.0 - 2) * (1 - 2) + 0 + (3 - 2) * (3 - 2)) / 2, sd = sqrt(v + 1e-8);
    batch_expect(b, "token_whiten(x, x < 4)", GR_LEVEL_TOKEN,
                 (const double[]){-1 / sd, 0, 1 / sd, 0, 0, 0, 0, 0, 0});
    batch_expect(b, "token_whiten(x, x > 19)", GR_LEVEL_TOKEN, (const double[]){0, 0, 0, 0, 0, 0, 0, 0, 0});
    batch_free(b);
}

static void test_top_takes_the_largest_and_of_equals_the_first(void **state)
{
    (void)state;
    batch *b = make_batch();
    batch_expect(b, "where(top(x, 3, x < 20), 1, 0)", GR_LEVEL_TOKEN,
                 (const double[]){0, 0, 0, 1, 0, 0, 0, 1, 1});
    batch_expect(b, "where(top(0 * x, 2, x > 2), 1, 0)", GR_LEVEL_TOKEN,
                 (const double[]){0, 0, 1, 1, 0, 0, 0, 0, 0});
    batch_expect(b, "where(top(s, 1, s < 5), 1, 0)", GR_LEVEL_SEQ, (const double[]){0, 1, 0});
    batch_expect(b, "where(top(g, 9, true), 1, 0)", GR_LEVEL_GROUP, (const double[]){1, 1});
    assert_close(batch_scalar(b, "token_count(top(x, 0, x > 0))"), 0, 0, 0);
    batch_free(b);
}

static void test_choose_draws_k_of_the_candidates(void **state)
{
    (void)state;
    batch *b = make_batch();
    assert_close(batch_scalar(b, "token_count(choose(x > 1, 4))"), 4, 0, 0);
    assert_close(batch_scalar(b, "token_count(choose(x > 1, 4) and not x > 1)"), 0, 0, 0);
    assert_close(batch_scalar(b, "token_count(choose(x > 6, 40))"), 3, 0, 0);
    batch_free(b);
}

static void test_draws_are_keyed_by_step_and_place_and_not_by_the_cut(void **state)
{
    float all[MAX_TOKENS], again[MAX_TOKENS], part[MAX_TOKENS];
    (void)state;
    batch *b = make_batch();
    batch_eval(b, "random() + 0 * s", GR_LEVEL_TOKEN, all);
    batch_eval(b, "random() + 0 * s", GR_LEVEL_TOKEN, again);
    assert_memory_equal(all, again, 9 * sizeof(float));
    b->env.step = 1;
    batch_eval(b, "random() + 0 * s", GR_LEVEL_TOKEN, again);
    assert_memory_not_equal(all, again, 9 * sizeof(float));
    b->env.step = 0;
    const uint32_t offset[] = {0, 2, 6}; /* sequences 1 and 2 alone */
    const uint8_t mask[] = {1, 1, 1, 0, 1, 1};
    b->rows[0] = (gr_expr_rows){2, b->group + 1, offset, mask, 1};
    batch_eval(b, "random() + 0 * s", GR_LEVEL_TOKEN, part);
    assert_memory_equal(all + 3, part, 6 * sizeof(float));
    batch_free(b);
}

static void test_two_draws_differ(void **state)
{
    (void)state;
    batch *b = make_batch();
    assert_true(batch_scalar(b, "token_sum(random() == random())") < 1);
    assert_close(batch_scalar(b, "u = random()\ntoken_mean(u == u)"), 1, 0, 0);
    batch_free(b);
}

static void test_columns_may_be_of_any_type(void **state)
{
    (void)state;
    batch *b = make_batch();
    static const int32_t i32[] = {1, -2, 3};
    static const uint8_t u8[] = {0, 1, 1};
    static const double f64[] = {0.1, 0.2, 0.3};
    b->views[1] = (gr_expr_column){i32, GR_EXPR_I32};
    assert_close(batch_scalar(b, "batch_sum(s)"), 2, 0, 0);
    b->views[1] = (gr_expr_column){u8, GR_EXPR_U8};
    assert_close(batch_scalar(b, "batch_sum(s)"), 2, 0, 0);
    b->views[1] = (gr_expr_column){f64, GR_EXPR_F64};
    assert_close(batch_scalar(b, "batch_sum(s)"), 0.1 + 0.2 + 0.3, 0, 0);
    batch_free(b);
}

/* A body's own names are its own, and its arguments are values, not texts. */
static void test_a_call_stands_for_the_body_of_its_function(void **state)
{
    static const char *const args[] = {"x", "y"};
    (void)state;
    batch *b = make_batch();
    gr_expr *scale = batch_parse(b, "t = x * 2\nt + y"), *both = batch_parse(b, "scale(y, x) - scale(x, y)");
    const gr_expr_custom functions[] = {{"scale", args, 2, scale}, {"both", args, 2, both}};
    b->scope.functions = functions;
    b->scope.n_functions = 2;
    batch_expect(b, "t = 100\nscale(s + 1, t) + t", GR_LEVEL_SEQ, (const double[]){204, 208, 212});
    batch_expect(b, "scale(seq_sum(x), s)", GR_LEVEL_SEQ, (const double[]){13, 63, 41});
    batch_expect(b, "both(s, 3 * s)", GR_LEVEL_SEQ, (const double[]){2, 6, 10});
    gr_expr_free(scale);
    gr_expr_free(both);
    batch_free(b);
}

static void test_empty_sequences_give_zeros(void **state)
{
    static const int lengths[] = {0, 2, 0, -1};
    (void)state;
    batch *b = batch_new(3, lengths);
    batch_set(b, "x", GR_LEVEL_TOKEN, (const double[]){4, 6});
    batch_expect(b, "seq_mean(x)", GR_LEVEL_SEQ, (const double[]){0, 5, 0});
    batch_expect(b, "seq_max(x)", GR_LEVEL_SEQ, (const double[]){0, 6, 0});
    assert_close(batch_scalar(b, "batch_mean(seq_sum(x))"), 10.0 / 3, 0, 1e-15);
    b->mask[0] = b->mask[1] = 0;
    assert_close(batch_scalar(b, "token_mean(x) + token_max(x) + token_std(x)"), 0, 0, 0);
    batch_free(b);
}

static void test_a_value_of_a_prompt_crosses_row_sets(void **state)
{
    (void)state;
    batch *b = make_batch();
    batch_set(b, "greedy_r", GR_LEVEL_SEQ, (const double[]){4, 6, 8});
    b->columns[b->n_columns - 1].symbol.rows = 1;
    batch_expect(b, "s - group_mean(greedy_r)", GR_LEVEL_SEQ, (const double[]){-4, -2, -3});
    batch_free(b);
}

static void test_names_and_reads_are_listed(void **state)
{
    size_t n;
    (void)state;
    batch *b = make_batch();
    gr_expr *e = batch_parse(b, "a = x * $two\nb = a + later\nlater = 3\nb + x");
    const gr_expr_name *names = gr_expr_names(e, &n);
    assert_int_equal(n, 3);
    assert_string_equal(names[0].name, "x");
    assert_string_equal(names[1].name, "$two");
    assert_string_equal(names[2].name, "later");
    assert_int_equal(names[2].at.line, 2);
    assert_int_equal(names[2].at.col, 9);
    gr_expr_free(e);
    e = batch_compile(b, "y = s\nx + 0 * y + x");
    const int *ids = gr_expr_reads(e, &n);
    assert_int_equal(n, 2);
    assert_int_equal(ids[0], 0);
    assert_int_equal(ids[1], 1);
    assert_int_equal(gr_expr_level(e), GR_LEVEL_TOKEN);
    assert_int_equal(gr_expr_rows_id(e), 0);
    gr_str s = {0};
    gr_expr_explain(e, &s);
    assert_string_equal(s.text, "y: one number a sequence\nresult: one number a token\n");
    gr_str_release(&s);
    gr_expr_free(e);
    batch_free(b);
}

static char *tasks_of(batch *b, const char *text)
{
    gr_expr *e = batch_compile(b, text);
    gr_str s = {0};
    gr_expr_print(e, &s);
    gr_expr_free(e);
    return s.text;
}

static void test_the_printed_program_tells_programs_apart(void **state)
{
    (void)state;
    batch *b = make_batch();
    char *one = tasks_of(b, "x * 2 + token_mean(x)"), *same = tasks_of(b, "x*2 + (token_mean(x))");
    char *other = tasks_of(b, "x * 3 + token_mean(x)");
    assert_string_equal(one, same);
    assert_string_not_equal(one, other);
    free(one);
    free(same);
    free(other);
    batch_free(b);
}

static void test_constants_are_known_at_compile_time(void **state)
{
    double v;
    (void)state;
    batch *b = make_batch();
    gr_expr *e = batch_compile(b, "$two * 3");
    assert_true(gr_expr_constant(e, &v));
    assert_close(v, 6, 0, 0);
    gr_expr_free(e);
    e = batch_compile(b, "$two * s");
    assert_false(gr_expr_constant(e, &v));
    gr_expr_free(e);
    batch_free(b);
}

static void test_the_table_of_functions_is_sorted_and_says_everything(void **state)
{
    size_t n;
    const gr_expr_function *f = gr_expr_functions(&n);
    (void)state;
    for (size_t i = 0; i < n; i++) {
        assert_true(i == 0 || strcmp(f[i - 1].name, f[i].name) < 0);
        assert_true(f[i].doc[0] && f[i].source[0] && f[i].result[0]);
        assert_true(f[i].min_args <= f[i].max_args);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arithmetic_has_the_usual_precedence),
        cmocka_unit_test(test_coarse_values_broadcast),
        cmocka_unit_test(test_scans_skip_masked_tokens),
        cmocka_unit_test(test_reductions_skip_masked_tokens),
        cmocka_unit_test(test_whitening_divides_by_the_unbiased_deviation),
        cmocka_unit_test(test_top_takes_the_largest_and_of_equals_the_first),
        cmocka_unit_test(test_choose_draws_k_of_the_candidates),
        cmocka_unit_test(test_draws_are_keyed_by_step_and_place_and_not_by_the_cut),
        cmocka_unit_test(test_two_draws_differ),
        cmocka_unit_test(test_columns_may_be_of_any_type),
        cmocka_unit_test(test_a_call_stands_for_the_body_of_its_function),
        cmocka_unit_test(test_empty_sequences_give_zeros),
        cmocka_unit_test(test_a_value_of_a_prompt_crosses_row_sets),
        cmocka_unit_test(test_names_and_reads_are_listed),
        cmocka_unit_test(test_the_printed_program_tells_programs_apart),
        cmocka_unit_test(test_constants_are_known_at_compile_time),
        cmocka_unit_test(test_the_table_of_functions_is_sorted_and_says_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
