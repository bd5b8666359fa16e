#include "ops/reward/rules.h"

#include <jansson.h>
#include <pthread.h>

#include "ops/text/jsonl.h"
#include "ops/reward/math_compare.h"
#include "ops/reward/math_number.h"
#include "tests/unit/test.h"

static bool numbers(const char *a, const char *b)
{
    return gr_number_equal(a, strlen(a), b, strlen(b));
}

static bool maths(const char *truth, const char *got)
{
    return gr_math_equal(truth, strlen(truth), got, strlen(got));
}

static gr_rule *rule(gr_rule_config c)
{
    gr_rule *r;
    assert_int_equal(gr_rule_new(&r, &c, NULL), GR_OK);
    return r;
}

static gr_rule *short_rule(const char *name)
{
    gr_rule_config c;
    assert_int_equal(gr_rule_config_find(name, (gr_loc){0}, &c, NULL), GR_OK);
    return rule(c);
}

static double score(const gr_rule *r, const char *text, const char *answer)
{
    gr_rule_input in = {.text = text, .n = strlen(text), .answer = answer, .n_answer = strlen(answer)};
    gr_rule_output out = {0};
    assert_int_equal(gr_rule_score(r, &in, &out, NULL), GR_OK);
    return out.score;
}

/* ---- numbers and mathematics -------------------------------------------------------------------------- */

static void test_numbers_are_compared_as_numbers(void **state)
{
    (void)state;
    static const char *const same[][2] = {
        {"72", "72."},
        {"72", "72.0"},
        {"72", "+72"},
        {"1,000", "1000"},
        {"$5", "5"},
        {"50%", "50"},
        {".5", "0.50"},
        {"1/2", "2/4"},
        {"0.5", "1/2"},
        {"1e3", "1000"},
        {" 7 ", "7"},
        {"-0", "0"},
        {"007", "7"},
        {"1 000", "1000"},
        {"\xE2\x88\x92"
         "3",
         "-3"},
        {"12345678901234567890", "12345678901234567890.000"},
    };
    static const char *const differ[][2] = {
        {"72", "27"},        {"", ""},         {"x", "x"},
        {"1-2", "-1"},       {"1/0", "1/0"},   {"1.2.3", "1.2.3"},
        {"3", "-3"},         {"$", "$"},       {"1e", "1"},
        {"0.333333", "1/3"}, {"1/2/3", "1/6"}, {"12345678901234567890", "12345678901234567891"},
    };
    for (size_t i = 0; i < GR_LEN(same); i++)
        if (!numbers(same[i][0], same[i][1])) fail_msg("%s is not %s", same[i][0], same[i][1]);
    for (size_t i = 0; i < GR_LEN(differ); i++)
        if (numbers(differ[i][0], differ[i][1])) fail_msg("%s is %s", differ[i][0], differ[i][1]);
}

static void test_mathematics_is_compared_by_meaning(void **state)
{
    (void)state;
    static const char *const same[][2] = {
        {"\\frac{1}{2}", "0.5"},
        {"\\dfrac12", "1/2"},
        {"x^2+2x+1", "(x+1)^2"},
        {"\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt2}"},
        {"90^\\circ", "90"},
        {"10\\%", "10"},
        {"5\\text{ cm}^2", "5"},
        {"1,234,567", "1234567"},
        {"\\left(1, 2\\right)", "(1,2)"},
        {"\\{1, 2\\}", "\\{2,1\\}"},
        {"x = 3", "3"},
        {"3\\frac{1}{2}", "\\frac72"},
        {"[2,\\infty)", "x \\ge 2"},
        {"(-\\infty, 2) \\cup (3, 4)", "(3,4)\\cup(-\\infty,2)"},
        {"\\text{east}", "East"},
        {"\\sqrt[3]{8}", "2"},
        {"5!", "120"},
        {"\\binom{5}{2}", "10"},
        {"2\\pi r", "2 r \\pi"},
        {"x+y=1", "2x + 2y - 2 = 0"},
        {"\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{bmatrix}1.0\\\\2\\end{bmatrix}"},
        {"1 \\pm \\sqrt{2}", "\\pm\\sqrt2 + 1"},
        {"\\$32", "32"},
        {"1,22", "1.22"}, /* a decimal comma */
    };
    static const char *const differ[][2] = {
        {"\\frac{1}{2}", "\\frac{2}{1}"},
        {"(1,2)", "(2,1)"},
        {"[1,2)", "(1,2)"},
        {"x", "y"},
        {"2x", "x^2"},
        {"1,2", "1,2,3"},
        {"x \\ge 2", "x > 2"},
        {"\\sqrt{2}", "2"},
        {"", ""},
        {"x=1", "x+1"},
        {"12", "1, 2"},
        {"1000000", "1000001"},
        {"\\text{cat}", "\\text{act}"},
        {"x+y=1", "x+y=2"},
        {"\\pm 1", "1"},
        {"1,2", "1.2"}, /* a list */
        {"1,200", "1.200"},
        {"1,22", "1.23"},
    };
    for (size_t i = 0; i < GR_LEN(same); i++) {
        if (!maths(same[i][0], same[i][1])) fail_msg("%s is not %s", same[i][0], same[i][1]);
        if (!maths(same[i][1], same[i][0])) fail_msg("%s is not %s", same[i][1], same[i][0]);
    }
    for (size_t i = 0; i < GR_LEN(differ); i++)
        if (maths(differ[i][0], differ[i][1])) fail_msg("%s is %s", differ[i][0], differ[i][1]);
}

struct maths_pair {
    const char *truth, *got;
};

static void all_same(const struct maths_pair *pairs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!maths(pairs[i].truth, pairs[i].got)) fail_msg("%s is not %s", pairs[i].truth, pairs[i].got);
}

/* Neither is the other. */
static void all_differ(const struct maths_pair *pairs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (maths(pairs[i].truth, pairs[i].got)) fail_msg("%s is %s", pairs[i].truth, pairs[i].got);
        if (maths(pairs[i].got, pairs[i].truth)) fail_msg("%s is %s", pairs[i].got, pairs[i].truth);
    }
}

static void test_rational_numbers_are_exact(void **state)
{
    (void)state;
    static const struct maths_pair differ[] = {
        {"1234567890", "1234567891"},
        {"12345678901234567890", "12345678901234567891"},
        {"\\frac{1}{2^{98}}", "0"},
        {"10^{40}+1", "10^{40}"},
        {"100000000000000000001/3", "100000000000000000002/3"},
        {"0.1234567890123", "0.1234567890124"},
        {"0.\\overline{12}", "0.\\overline{99}"},
        {"0.\\overline{12}", "0.12"},
        {"0.333", "\\frac13"},
        {"0.333333", "\\frac13"},
        {"0.125000000001", "\\frac18"},
        {"\\frac{1234567890123}{10^{13}}", "0.123456789012"},
    };
    static const struct maths_pair same[] = {
        {"12345678901234567890", "12345678901234567890.0"},
        {"0.\\overline{12}", "\\frac{4}{33}"},
        {"0.1\\overline{6}", "\\frac16"},
        {"0.\\overline{9}", "1"},
        {"2^{98}", "316912650057057350374175801344"},
        {"\\frac{2^{98}}{2^{99}}", "0.5"},
        {"100!/99!", "100"},
        {"\\sqrt{\\frac{49}{4}}", "3.5"},
        {"8^{2/3}", "4"},
        {"\\frac{1}{12}", "0.0833333333333333"}, /* as machines print it */
    };
    all_differ(differ, GR_LEN(differ));
    all_same(same, GR_LEN(same));
}

static void test_irrational_numbers_are_compared_in_many_digits(void **state)
{
    (void)state;
    static const struct maths_pair differ[] = {
        {"\\sqrt{2}", "1.414"},
        {"\\sqrt{2}", "1.414214562"},
        {"\\pi", "3.14"},
        {"\\pi", "\\frac{22}{7}"},
        {"\\pi", "\\frac{355}{113}"},
        {"\\sqrt{10^{40}+1}", "10^{20}"},
        {"\\sqrt2+10^{-50}", "\\sqrt2"},
        {"e^{\\pi\\sqrt{163}}", "262537412640768744"},
        {"\\lfloor\\pi\\rfloor", "\\pi"},
        {"\\lfloor -\\frac{7}{2}\\rfloor", "-3"},
        {"\\ln 2", "\\log 2"},
        {"e^{-500}", "0"},
        {"\\tanh 1000", "1"},
        {"\\sin 30", "\\sin 30^\\circ"},
        {"2i", "2j"},
    };
    static const struct maths_pair same[] = {
        {"\\sqrt{2}", "1.41421356"},
        {"\\sqrt{2}", "1.4142135623730951"},
        {"\\sqrt{5+2\\sqrt6}", "\\sqrt2+\\sqrt3"},
        {"\\lfloor\\pi\\rfloor", "3"},
        {"\\lceil\\pi\\rceil", "4"},
        {"\\sin 30^\\circ", "\\frac12"},
        {"e^{i\\pi}", "-1"},
        {"(1+i)^2", "2i"},
        {"\\sqrt[3]{-8}", "-2"},
        {"\\log_2 8", "3"},
        {"\\sin\\pi", "0"},
        {"\\cos\\frac\\pi2+1", "1"},
        {"\\arctan 1", "\\frac\\pi4"},
        {"\\cosh^2 1-\\sinh^2 1", "1"},
    };
    all_differ(differ, GR_LEN(differ));
    all_same(same, GR_LEN(same));
}

static void test_functions_are_read_as_latex_has_them(void **state)
{
    (void)state;
    static const struct maths_pair differ[] = {
        {"\\cot 2x", "2\\cot x"},
        {"\\sin 2x", "2\\sin x"},
        {"|x|", "x"},
        {"\\sqrt{x^2}", "x"},
        {"\\ln x^2", "2\\ln x"},
        {"\\lfloor x\\rfloor", "x"},
        {"\\lfloor x\\rfloor", "\\lceil x\\rceil"},
        {"\\sin^2 x", "\\sin x^2"},
        {"\\sin^{-1} x", "\\frac{1}{\\sin x}"},
        {"f(2x)", "2f(x)"},
        {"f(x)", "f(y)"},
        {"x_1", "x_2"},
        {"x'", "x"},
        {"\\overline{AB}", "AB"},
        {"\\frobnicate 2x", "2\\frobnicate x"}, /* not known: equal as text alone */
        {"\\vec{a}\\times\\vec{b}", "\\vec{b}\\times\\vec{a}"},
        {"\\int_0^1 x dx", "\\int_1^0 x dx"},
        {"5\\text{ if }x", "5x\\text{ if }"},
        {"\\text{cat}", "tac"},
        {"\\lfloor x+1\\rfloor", "\\lceil x\\rceil"}, /* but for whole numbers they are the same */
        {"\\begin{vmatrix}1&2\\\\3&4\\end{vmatrix}", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"},
        {"\\frac{dy}{dx}", "\\frac{y}{x}"},
        {"\\frac{d}{dx}", "\\frac1x"},
        {"x\\%", "x"},
        {"\\emptyset", "\\{\\emptyset\\}"},
    };
    static const struct maths_pair same[] = {
        {"\\sin 2x", "2\\sin x\\cos x"},
        {"\\cot 2x", "\\frac{1}{\\tan(2x)}"},
        {"\\sin^{-1} x", "\\arcsin x"},
        {"\\tan x\\cos x", "\\sin x"},
        {"|x-1|", "|1-x|"},
        {"2|x|", "|2x|"},
        {"x_1", "x_{1}"},
        {"\\frobnicate{2x}", "\\frobnicate{ 2 x }"},
        {"P(1+r)^n", "P\\cdot(r+1)^{n}"},
        {"2^10", "1024"},
    };
    all_differ(differ, GR_LEN(differ));
    all_same(same, GR_LEN(same));
}

static void test_names_and_order_count(void **state)
{
    (void)state;
    static const struct maths_pair differ[] = {
        {"x=1, y=2", "x=2, y=1"},
        {"x=1, y=2", "2, 1"},
        {"x=1, y=2", "u=1, v=2"},
        {"x=1", "y=1"},
        {"x>2", "y>2"},
        {"x>2", "x<2"},
        {"(1;2)", "(2;1)"},
        {"6", "5 or 6"},
        {"6", "5, 6"},
        {"1\\pm\\sqrt2", "1+\\sqrt2"},
        {"1\\pm\\sqrt2", "2\\pm\\sqrt2"},
        {"[1,2]", "(1,2)"},
        {"\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"},
        {"1:2", "2:1"},
        {"(x,y)=(5,3)", "x=3, y=5"},
        {"\\mathbb{R}\\setminus\\{2\\}", "\\mathbb{R}\\setminus\\{3\\}"},
        {"\\mathbb{R}", "\\mathbb{Q}"},
    };
    static const struct maths_pair same[] = {
        {"x=1, y=2", "y=2,\\ x=1"},
        {"x=1, y=2", "1, 2"},
        {"x=1, y=2", "(1,2)"},
        {"2, 3", "x=3\\text{ or }x=2"},
        {"2, 3", "x_1=3, x_2=2"},
        {"(1,2)", "(1;2)"},
        {"-1;2;3", "\\{3,2,-1\\}"},
        {"1\\pm\\sqrt2", "1-\\sqrt2, 1+\\sqrt2"},
        {"x=\\pm3", "3, -3"},
        {"51", "3+48=51"},
        {"3.14", "x\\approx3.14"},
        {"\\frac13", "x=\\frac13\\approx0.33"},
        {"5", "5\\textnormal{ cm}"},
        {"2x>6", "x>3"},
        {"-x>-3", "x<3"},
        {"f(2)=7", "7"},
        {"(x,y)=(5,3)", "x=5, y=3"},
        {"y=3, x=5", "(x,y)=(5,3)"},
        {"\\mathbb{R}", "(-\\infty,\\infty)"},
        {"(-\\infty,2)\\cup(2,\\infty)", "\\mathbb{R}\\setminus\\{2\\}"},
        {"12\\pi\\text{ square units}", "12\\pi"},
        {"\\left(\\begin{array}{cc}1&2\\\\3&4\\end{array}\\right)",
         "\\begin{bmatrix}1&2\\\\3&4\\end{bmatrix}"},
    };
    all_differ(differ, GR_LEN(differ));
    all_same(same, GR_LEN(same));
}

static void test_spaces_and_commas_between_digits(void **state)
{
    (void)state;
    static const struct maths_pair differ[] = {
        {"3 1/2", "15.5"}, {"3 1/2", "31/2"},          {"3\\frac12", "1.5"},  {"32349", "32, 349"},
        {"1 2", "12"},     {"(1,234)", "1234"},        {"1234", "12,34"},     {"1234, 5", "1,234,5"},
        {"0,123", "123"},  {"2112_6", "2112"},         {"32,348", "32, 348"}, {"37.72", "37. 72"},
        {"-3", "-%3"},     {"1,000,000", "1,000.000"}, {"3 7/2", "13/2"},
    };
    static const struct maths_pair same[] = {
        {"3 1/2", "7/2"},       {"-3 1/2", "-3.5"},       {"3\\frac12", "3.5"},  {"32349", "32,349"},
        {"32349", "32,\\!349"}, {"1000000", "1 000 000"}, {"32349", "32{,}349"}, {"32, 349", "349, 32"},
        {"2112_6", "2112_{6}"}, {"0.111", "0,111"},
    };
    all_differ(differ, GR_LEN(differ));
    all_same(same, GR_LEN(same));
    assert_false(numbers("3 1/2", "15.5"));
    assert_false(numbers("32, 349", "32349"));
    assert_false(numbers("1,2,3", "123"));
}

static bool answers(const char *truth, const char *text)
{
    return gr_math_equal_in_text(truth, strlen(truth), text, strlen(text));
}

static void test_what_stands_behind_answer_is_is_the_answer(void **state)
{
    (void)state;
    assert_true(answers("$5$", "The answer is $5$. To check, put $x = 7$ in."));
    assert_true(answers("$5$", "**Answer:** $5$, for $7$ is too large"));
    assert_true(answers("5, 6", "The answer is $5$ and $6$; here $7$ was tried"));
    assert_true(answers("$5$", "The answer is $7$. No: the answer is \\(5\\)."));
    assert_false(answers("$7$", "The answer is $5$. To check, put $x = 7$ in."));
    assert_true(answers("$5$", "The answer is thus, after all this, $5$")); /* else the last formula */
}

static void test_answers_are_found_in_what_models_write(void **state)
{
    (void)state;
    static const char *const fifty_one[] = {
        "**Answer: 51**",
        "**Answer:** 51",
        "**51**",
        "The total is **51**.",
        "$3+48=51$",
        "<answer>51</answer>",
        "<think>maybe 7</think>\n<answer> $51$ </answer>",
        "3 + 48 is what we need.\n#### 51",
        "#### 51.",
        "Final Answer: The largest $n$ is 51.",
        "The answer is 51 apples, as 3 + 48 = 51 and not 52.",
        "The total is $3 + $48 = $51.",
        "They have 51.",
        "$N = 3+48 \\approx 51$",
    };
    static const char *const others[] = {
        "The answer is 50 or 51.",  "50 or 51",        "#### 50\n#### 52",        "**Answer: 15**",
        "<answer>52</answer> (51)", "$51$ $= x+1$",    "The answer is 51x.",      "51/2",
        "The answer is 52. No 51.", "It is 51 and 52", "$\\boxed{52}$ is not 51", "151",
    };
    for (size_t i = 0; i < GR_LEN(fifty_one); i++)
        if (!answers("51", fifty_one[i])) fail_msg("no 51 in: %s", fifty_one[i]);
    for (size_t i = 0; i < GR_LEN(others); i++)
        if (answers("51", others[i])) fail_msg("51 in: %s", others[i]);
    assert_true(answers("\\frac{3}{2}", "so\n#### \\frac32"));
    assert_true(answers("$\\frac{3}{2}$", "#### Step 1\n$x=7$\n#### Step 2\nThus $\\frac32$"));
}

/* The bounds hold: each ends, and takes no memory that counts. */
static void test_enormous_mathematics_is_refused(void **state)
{
    (void)state;
    static const char *const odd[] = {
        "2^{2^{2^{2^{2^{2}}}}}",
        "10^{1000000000}",
        "10^{-1000000000}",
        "9!!!!!!!!",
        "99999999!",
        "1e999999999",
        "\\binom{10^9}{5*10^8}",
        "\\sin(10^{10^{10}})",
        "e^{e^{e^{e^{9}}}}",
        "x^{x^{x^{x^{x}}}}",
        "0.5!!!!!!",
        "\\tan(10^{9}i)",
        "\\sqrt[1000000007]{2}",
        "2^{1/1000000007}",
        "\\lfloor e^{99}\\rfloor",
        "1/(\\sqrt2*\\sqrt2-2)",
        "\\arctan i",
        "\\ln 0",
        "0^0",
        "1/0",
        "x^{10^{9}}",
        "(-1)^{10^{30}}",
        "\\log_1 2",
        "\\tan(x+1000i)",
        "\\tanh(10^5)",
        "\\binom{x}{5000}",
        "200.5!",
    };
    for (size_t i = 0; i < GR_LEN(odd); i++) {
        char shifted[64];
        snprintf(shifted, sizeof(shifted), "%s+1", odd[i]);
        if (maths(odd[i], shifted)) fail_msg("%s is %s", odd[i], shifted);
    }
    gr_str a = {0}, b = {0};
    for (int i = 0; i < 63; i++) {
        gr_str_printf(&a, "\\sqrt{%d+\\sqrt{%d}},", i + 2, i + 3);
        gr_str_printf(&b, "\\sqrt{%d+\\sqrt{%d}},", i + 2, 2 * i + 5);
    }
    assert_false(maths(a.text, b.text));
    gr_str_release(&a);
    gr_str_release(&b);
    for (int i = 0; i < 2000; i++) gr_str_puts(&a, "1+");
    gr_str_puts(&a, "1");
    assert_true(maths("2001", a.text));
    gr_str_release(&a);
}

static void test_odd_mathematics_does_no_harm(void **state)
{
    (void)state;
    static const char *const odd[] = {
        "\\",      "{",       "}",       "\\frac",   "\\frac{", "^",       "_",       "x_",   "x_{", "((((",
        "\\text{", "\\boxed", "\\begin", "\\begin{", "1..2",    "\\sqrt[", ",,,",     "=",    "<",   "\\\\",
        "$",       "\\left",  "|",       "\\1",      "f(",      "f(1",     "3\\frac", "<<<<", "a<",  ">=>="};
    char deep[20001];
    for (size_t i = 0; i < GR_LEN(odd); i++)
        for (size_t j = 0; j < GR_LEN(odd); j++) {
            maths(odd[i], odd[j]);
            gr_math_equal_in_text(odd[i], strlen(odd[i]), odd[j], strlen(odd[j]));
        }
    for (const char *p = "({[-\\|^"; *p; p++) {
        memset(deep, *p, 20000);
        deep[20000] = '\0';
        assert_false(maths("1", deep));
    }
}

/* What the grader says of a file of pairs, beside what is right. */
struct tally {
    size_t n, equal, paid, wrong_paid, wrong_alone; /* wrong_alone: wrong, paid, and refused by math-verify */
};

static void count_pair(const json_t *row, size_t line, struct tally *t)
{
    const char *truth = json_string_value(json_object_get(row, "truth"));
    const char *response = json_string_value(json_object_get(row, "response"));
    bool want = json_is_true(json_object_get(row, "equal"));
    bool got = gr_math_equal_in_text(truth, strlen(truth), response, strlen(response));
    t->n++;
    t->equal += want;
    t->paid += want && got;
    t->wrong_paid += !want && got;
    t->wrong_alone += !want && got && json_is_false(json_object_get(row, "math_verify"));
    if (got != want && getenv("GR_SHOW"))
        print_message("%zu: %s %s: %s <> %.300s%s\n", line, want ? "unpaid" : "PAID",
                      json_string_value(json_object_get(row, "family")), truth, response,
                      json_is_true(json_object_get(row, "math_verify")) ? "  [math-verify pays]" : "");
}

static struct tally count_pairs(const char *path)
{
    struct tally t = {0};
    gr_jsonl *s;
    assert_int_equal(gr_jsonl_open(&s, path, (gr_loc){0}, NULL), GR_OK);
    for (size_t i = 0; i < gr_jsonl_rows(s); i++) {
        json_t *row;
        assert_int_equal(gr_jsonl_row(s, i, &row, NULL), GR_OK);
        count_pair(row, i + 1, &t);
        json_decref(row);
    }
    print_message(
        "%s: %zu of %zu right answers paid, %zu of %zu wrong ones, %zu of those refused by math-verify\n",
        path, t.paid, t.equal, t.wrong_paid, t.n - t.equal, t.wrong_alone);
    gr_jsonl_free(s);
    return t;
}

static void test_grader_vectors_are_mostly_met(void **state)
{
    (void)state;
    need_shared(path, "grader_vectors/math_verify_half.jsonl");
    gr_jsonl *s;
    assert_int_equal(gr_jsonl_open(&s, path, (gr_loc){0}, NULL), GR_OK);
    size_t right = 0, n = gr_jsonl_rows(s);
    for (size_t i = 0; i < n; i++) {
        json_t *row;
        assert_int_equal(gr_jsonl_row(s, i, &row, NULL), GR_OK);
        const json_t *expected = json_object_get(row, "expected"), *result = json_object_get(row, "result");
        bool want = json_integer_value(expected ? expected : result) == 1;
        const char *gold = json_string_value(json_object_get(row, "gold"));
        const char *pred = json_string_value(json_object_get(row, "pred"));
        bool got = gr_math_equal_in_text(gold, strlen(gold), pred, strlen(pred));
        right += got == want;
        if (got != want && getenv("GR_SHOW"))
            print_message("%zu: want %d: %.80s <> %.200s\n", i + 1, want, gold, pred);
        json_decref(row);
    }
    print_message("%zu of %zu grader vectors\n", right, n);
    assert_true(right * 100 >= n * 95); /* docs/GRADERS.md lists the others */
    gr_jsonl_free(s);
}

/* tests/oracle/grader_pairs.py makes such files; GR_PAIRS names one to be tried instead of the golden. */
static void test_no_wrong_pair_of_the_oracle_is_paid(void **state)
{
    (void)state;
    const char *path = getenv("GR_PAIRS");
    struct tally t = count_pairs(path ? path : "tests/golden/grader_pairs.jsonl");
    if (path) return;
    assert_int_equal(t.n, 900);
    assert_int_equal(t.wrong_paid, 0);
    assert_true(t.paid * 100 >= t.equal * 98);
}

/* Pairs of two answers that differ, "one | other" a line, written by hand. */
static void test_no_near_miss_is_paid(void **state)
{
    (void)state;
    FILE *f = fopen("tests/golden/grader_wrong.txt", "r");
    char line[256];
    size_t n = 0;
    assert_non_null(f);
    for (; fgets(line, sizeof(line), f); n++) {
        char *other = strstr(line, " | ");
        assert_non_null(other);
        other[strcspn(other, "\n")] = '\0';
        *other = '\0';
        all_differ(&(struct maths_pair){line, other + 3}, 1);
    }
    fclose(f);
    assert_int_equal(n, 143);
}

/* ---- rules -------------------------------------------------------------------------------------------- */

static void test_extraction_takes_the_first_or_last_match(void **state)
{
    (void)state;
    gr_rule *r = rule((gr_rule_config){.extract = "n=([0-9]+)"});
    assert_close(score(r, "n=1 n=2", "2"), 1, 0, 0);
    assert_close(score(r, "n=1 n=2", "1"), 0, 0, 0);
    assert_close(score(r, "none", "2"), 0, 0, 0);
    gr_rule_free(r);
    r = rule((gr_rule_config){.extract = "[0-9]+", .take_first = true}); /* no group: the whole match */
    assert_close(score(r, "n=1 n=2", "n 1, n 2"), 0, 0, 0);
    assert_close(score(r, "n=1 n=2", "1"), 1, 0, 0);
    gr_rule_free(r);
    r = rule((gr_rule_config){.extract = "a*"}); /* empty matches end */
    assert_close(score(r, "baa", ""), 1, 0, 0);
    gr_rule_free(r);
    r = rule(
        (gr_rule_config){.extract = "A: (.*)", .answer_extract = "A: (.*)", .compare = GR_COMPARE_NUMBER});
    assert_close(score(r, "so\nA: 1,200.", "thus\nA: 1200"), 1, 0, 0);
    assert_close(score(r, "A: x y", "A: x y"), 1, 0, 0); /* no numbers: equal text */
    gr_rule_free(r);
}

static void test_the_tail_is_counted_in_characters(void **state)
{
    (void)state;
    gr_rule *r = rule((gr_rule_config){.extract = "[0-9]", .tail = 3});
    assert_close(score(r, "7\xC3\xA9\xC3\xA9", "7"), 1, 0, 0);
    assert_close(score(r, "7\xC3\xA9\xC3\xA9\xC3\xA9", "7"), 0, 0, 0);
    gr_rule_free(r);
}

static void test_bytes_that_are_no_text_are_one_character_each(void **state)
{
    (void)state;
    gr_rule *r = rule((gr_rule_config){.extract = "^..#(.*)\\x1A$"});
    assert_close(score(r, "\xff\xfe#\xC3\xA9\xC3", "\xC3\xA9"), 1, 0, 0);
    assert_close(score(r, "\xC3", "5"), 0, 0, 0);
    gr_rule_free(r);
    r = rule((gr_rule_config){.extract = "#(.)"});
    assert_close(score(r, "#\xff", "\xff"), 1, 0, 0); /* what was found is the response's own bytes */
    gr_rule_free(r);
}

static void test_a_bad_pattern_is_refused_at_its_place(void **state)
{
    (void)state;
    gr_rule *r;
    gr_diag d;
    gr_diag_init(&d);
    gr_rule_config c = {.extract = "a(b",
                        .answer_extract = "[z-a]",
                        .extract_at = {"g.yaml", 4, 9},
                        .answer_extract_at = {"g.yaml", 5, 9}};
    assert_int_equal(gr_rule_new(&r, &c, &d), GR_E_INVALID);
    assert_int_equal(d.n_errors, 2);
    char *text = gr_message_format(&d.messages[0]);
    assert_string_equal(text,
                        "g.yaml:4:9: error: bad pattern 'a(b': missing closing parenthesis, at its byte 3");
    free(text);
    assert_int_equal(d.messages[1].at.line, 5);
    gr_diag_release(&d);
}

static void test_an_answer_without_a_truth_is_an_error(void **state)
{
    (void)state;
    gr_rule *r = rule((gr_rule_config){.answer_extract = "#### (.+)"});
    gr_diag d;
    gr_diag_init(&d);
    gr_rule_input in = {.text = "5", .n = 1, .answer = "five", .n_answer = 4, .at = {"a.jsonl", 3, 1}};
    gr_rule_output out = {0};
    assert_int_equal(gr_rule_score(r, &in, &out, &d), GR_E_INVALID);
    char *text = gr_message_format(&d.messages[0]);
    assert_string_equal(text, "a.jsonl:3:1: error: 'answer_extract' finds nothing in the answer 'five'");
    free(text);
    gr_diag_release(&d);
    gr_rule_free(r);
}

static void test_catastrophic_patterns_end_with_score_0(void **state)
{
    (void)state;
    gr_rule *r = rule((gr_rule_config){.extract = "^(a+)+$"});
    char text[101];
    memset(text, 'a', 100);
    text[99] = 'b';
    text[100] = '\0';
    gr_rule_input in = {.text = text, .n = 100, .answer = "a", .n_answer = 1};
    gr_rule_output out = {0};
    uint64_t from = gr_now_ns();
    assert_int_equal(gr_rule_score(r, &in, &out, NULL), GR_OK);
    assert_true(gr_now_ns() - from < 2000000000);
    assert_close(out.score, 0, 0, 0);
    assert_true(out.over_limit && !out.found);
    gr_rule_free(r);
}

static void test_short_rules_are_found_or_suggested(void **state)
{
    (void)state;
    gr_rule_config c;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_rule_config_find("gsm8", (gr_loc){"g.yaml", 1, 2}, &c, &d), GR_E_INVALID);
    char *text = gr_message_format(&d.messages[0]);
    assert_string_equal(text, "g.yaml:1:2: error: unknown rule 'gsm8'; did you mean 'gsm8k'?");
    free(text);
    gr_diag_release(&d);
    gr_compare compare;
    assert_true(gr_compare_find("math", &compare) && compare == GR_COMPARE_MATH);
    assert_false(gr_compare_find("maths", &compare));
    gr_rule *r = short_rule("exact");
    assert_close(score(r, " yes\n", "yes"), 1, 0, 0);
    assert_close(score(r, "Yes", "yes"), 0, 0, 0);
    gr_rule_free(r);
}

static void test_gsm8k_is_verls_strict_form(void **state)
{
    (void)state;
    gr_rule *r = short_rule("gsm8k");
    assert_close(score(r, "so #### 72", "1+71\n#### 72"), 1, 0, 0);
    assert_close(score(r, "so #### 1,200", "#### 1,200"), 1, 0, 0);
    assert_close(score(r, "#### 71 #### 72", "72"), 1, 0, 0); /* the answer may be the bare number */
    assert_close(score(r, "#### 72.", "72"), 0, 0, 0);
    assert_close(score(r, "#### 72.0", "72"), 0, 0, 0);
    assert_close(score(r, "####72", "72"), 0, 0, 0);
    assert_close(score(r, "#### $72", "72"), 0, 0, 0);
    assert_close(score(r, "72", "72"), 0, 0, 0);
    assert_close(score(r, "#### -5", "#### -5"), 1, 0, 0);
    char text[400];
    memset(text, ' ', sizeof(text));
    memcpy(text, "#### 72", 7);
    text[300] = '\0';
    assert_close(score(r, text, "72"), 1, 0, 0);
    text[300] = ' ';
    text[301] = '\0';
    assert_close(score(r, text, "72"), 0, 0, 0);
    gr_rule_free(r);
}

static void test_boxed_takes_the_last_balanced_box(void **state)
{
    (void)state;
    gr_rule *r = short_rule("boxed");
    assert_close(score(r, "\\boxed{1} or \\boxed{\\frac{1}{2}}.", "0.5"), 1, 0, 0);
    assert_close(score(r, "\\boxed{1} or \\boxed{\\frac{1}{2}}.", "1"), 0, 0, 0);
    assert_close(score(r, "it is 5", "5"), 0, 0, 0);
    assert_close(score(r, "\\boxed{5", "5"), 0, 0, 0);
    assert_close(score(r, "\\boxed {5}", "so \\boxed{5}"), 1, 0, 0);
    gr_rule_free(r);
    r = short_rule("math");
    assert_close(score(r, "The answer is 5 apples", "5"), 1, 0, 0);
    gr_rule_free(r);
}

/* ---- dense -------------------------------------------------------------------------------------------- */

/* Score with one token a character, and an end token where ended. */
static double dense(const char *text, const char *answer, bool ended, float *per_token)
{
    uint32_t ends[32];
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) ends[i] = (uint32_t)i + 1;
    ends[n] = (uint32_t)n;
    gr_rule *r = short_rule("prefix");
    gr_rule_input in = {.text = text,
                        .n = n,
                        .ends = ends,
                        .n_tokens = n + ended,
                        .ended = ended,
                        .answer = answer,
                        .n_answer = strlen(answer)};
    gr_rule_output out = {.per_token = per_token};
    assert_true(gr_rule_is_dense(r));
    assert_int_equal(gr_rule_score(r, &in, &out, NULL), GR_OK);
    gr_rule_free(r);
    return out.score;
}

static void assert_tokens(const float *got, const double *wants, size_t n)
{
    for (size_t i = 0; i < n; i++) assert_close(got[i], wants[i], 1e-7, 0);
}

static void test_prefix_pays_each_leading_character(void **state)
{
    (void)state;
    float got[32];
    /* truth of 3: 1/4 each, the end token gets what the last character got */
    assert_close(dense("1,2", "1,2", true, got), 1, 1e-12, 0);
    assert_tokens(got, (const double[]){0.25, 0.25, 0.25, 0.25}, 4);
    assert_close(dense("1,3,", "1,2", true, got), 0.5, 1e-12, 0);
    assert_tokens(got, (const double[]){0.25, 0.25, 0, 0, 0}, 5);
    assert_close(dense("1,", "1,2", true, got), 0.75, 1e-12, 0);
    assert_close(dense("1,2,", "1,2", true, got), 0.75, 1e-12, 0); /* went on after the truth's end */
    assert_tokens(got, (const double[]){0.25, 0.25, 0.25, 0, 0}, 5);
    assert_close(dense("1,2", "1,2", false, got), 0.75, 1e-12, 0);
    assert_close(dense("2,2", "1,2", true, got), 0, 0, 0);
    assert_close(dense("", "", true, got), 1, 0, 0);
    assert_close(dense("", "1", true, got), 0, 0, 0);
    assert_close(dense("7", "", true, got), 0, 0, 0);
    assert_close(dense("", "", false, got), 0, 0, 0);
    /* bytes that are no UTF-8: a run without a first byte is one character */
    assert_close(dense("\xb6\xb6\xb6", "\xb6\xb6\xb6\xb6\xb6", true, got), 0, 0, 0);
}

static void test_character_rewards_go_to_the_token_of_their_last_byte(void **state)
{
    (void)state;
    /* "a", e acute, "bc": the accent is cut in two by token 0 | 1 */
    const uint32_t ends[] = {2, 3, 3, 5, 5};
    const char text[] = "a\xC3\xA9"
                        "bc";
    gr_rule *r = short_rule("prefix");
    float got[5];
    gr_rule_input in = {
        .text = text, .n = 5, .ends = ends, .n_tokens = 5, .ended = true, .answer = text, .n_answer = 5};
    gr_rule_output out = {.per_token = got};
    assert_int_equal(gr_rule_score(r, &in, &out, NULL), GR_OK);
    assert_tokens(got, (const double[]){0.2, 0.2, 0, 0.4, 0.2}, 5);
    assert_close(out.score, 1, 1e-12, 0);
    gr_rule_free(r);
    r = short_rule("exact"); /* a score of a sequence asked for per token */
    assert_int_equal(gr_rule_score(r, &in, &out, NULL), GR_OK);
    assert_tokens(got, (const double[]){0, 0, 0, 0, 1}, 5);
    gr_rule_free(r);
}

static void test_a_set_chooses_by_value(void **state)
{
    (void)state;
    gr_rule_set *s = gr_rule_set_new();
    gr_diag d;
    const gr_rule *r;
    const gr_loc at = {"g.yaml", 1, 1};
    gr_diag_init(&d);
    assert_int_equal(gr_rule_set_add(s, "math", short_rule("boxed"), at, &d), GR_OK);
    assert_int_equal(gr_rule_set_add(s, "gsm8k", short_rule("gsm8k"), at, &d), GR_OK);
    assert_int_equal(gr_rule_set_add(s, "math", short_rule("exact"), at, &d), GR_E_INVALID);
    assert_false(gr_rule_set_is_dense(s));
    assert_int_equal(gr_rule_set_find(s, "gsm8k", at, &r, &d), GR_OK);
    assert_close(score(r, "#### 1", "1"), 1, 0, 0);
    assert_int_equal(gr_rule_set_find(s, "gsm8", (gr_loc){"a.jsonl", 2, 1}, &r, &d), GR_E_INVALID);
    char *text = gr_message_format(&d.messages[1]);
    assert_string_equal(text, "a.jsonl:2:1: error: no rule for 'gsm8'; did you mean 'gsm8k'?");
    free(text);
    assert_int_equal(gr_rule_set_add(s, "digits", short_rule("prefix"), at, &d), GR_OK);
    assert_true(gr_rule_set_is_dense(s));
    gr_diag_release(&d);
    gr_rule_set_free(s);
}

static void *score_much(void *r)
{
    double sum = 0;
    for (int i = 0; i < 200; i++) sum += score(r, "so \\boxed{\\frac{3}{6}}", "0.5");
    assert_close(sum, 200, 0, 0);
    return NULL;
}

static void test_threads_share_a_rule(void **state)
{
    (void)state;
    gr_rule *r = short_rule("boxed");
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, score_much, r), 0);
    score_much(r);
    pthread_join(other, NULL);
    gr_rule_free(r);
}

/* ---- real outputs ------------------------------------------------------------------------------------- */

static void test_every_label_of_the_published_gsm8k_outputs_is_met(void **state)
{
    (void)state;
    need_shared(path, "datasets/gsm8k/example_model_solutions.jsonl");
    static const char *const models[] = {"6b_finetuning", "6b_verification", "175b_finetuning",
                                         "175b_verification"};
    gr_rule *r = rule((gr_rule_config){.extract = "A: (.*)", .answer_extract = "A: (.*)", .strip = ","});
    gr_jsonl *s;
    size_t labels = 0, correct = 0, wrong = 0;
    assert_int_equal(gr_jsonl_open(&s, path, (gr_loc){0}, NULL), GR_OK);
    for (size_t i = 0; i < gr_jsonl_rows(s); i++) {
        json_t *row;
        assert_int_equal(gr_jsonl_row(s, i, &row, NULL), GR_OK);
        for (size_t m = 0; m < GR_LEN(models); m++) {
            const json_t *of = json_object_get(row, models[m]);
            bool label = json_is_true(json_object_get(of, "is_correct"));
            double got = score(r, json_string_value(json_object_get(of, "solution")),
                               json_string_value(json_object_get(row, "ground_truth")));
            labels++;
            correct += label;
            wrong += (got == 1) != label;
        }
        json_decref(row);
    }
    assert_int_equal(labels, 5276);
    assert_int_equal(correct, 2001);
    assert_int_equal(wrong, 0);
    gr_jsonl_free(s);
    gr_rule_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_are_compared_as_numbers),
        cmocka_unit_test(test_mathematics_is_compared_by_meaning),
        cmocka_unit_test(test_what_stands_behind_answer_is_is_the_answer),
        cmocka_unit_test(test_rational_numbers_are_exact),
        cmocka_unit_test(test_irrational_numbers_are_compared_in_many_digits),
        cmocka_unit_test(test_functions_are_read_as_latex_has_them),
        cmocka_unit_test(test_names_and_order_count),
        cmocka_unit_test(test_spaces_and_commas_between_digits),
        cmocka_unit_test(test_answers_are_found_in_what_models_write),
        cmocka_unit_test(test_enormous_mathematics_is_refused),
        cmocka_unit_test(test_odd_mathematics_does_no_harm),
        cmocka_unit_test(test_grader_vectors_are_mostly_met),
        cmocka_unit_test(test_no_wrong_pair_of_the_oracle_is_paid),
        cmocka_unit_test(test_no_near_miss_is_paid),
        cmocka_unit_test(test_extraction_takes_the_first_or_last_match),
        cmocka_unit_test(test_the_tail_is_counted_in_characters),
        cmocka_unit_test(test_bytes_that_are_no_text_are_one_character_each),
        cmocka_unit_test(test_a_bad_pattern_is_refused_at_its_place),
        cmocka_unit_test(test_an_answer_without_a_truth_is_an_error),
        cmocka_unit_test(test_catastrophic_patterns_end_with_score_0),
        cmocka_unit_test(test_short_rules_are_found_or_suggested),
        cmocka_unit_test(test_gsm8k_is_verls_strict_form),
        cmocka_unit_test(test_boxed_takes_the_last_balanced_box),
        cmocka_unit_test(test_prefix_pays_each_leading_character),
        cmocka_unit_test(test_character_rewards_go_to_the_token_of_their_last_byte),
        cmocka_unit_test(test_a_set_chooses_by_value),
        cmocka_unit_test(test_threads_share_a_rule),
        cmocka_unit_test(test_every_label_of_the_published_gsm8k_outputs_is_met),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
