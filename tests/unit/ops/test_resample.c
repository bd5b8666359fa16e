/* Rows drawn by weight: the weights of graphs/pf_ppo.yaml against those that verl's own function has for the
 * same scores (tests/oracle/pf_ppo_goldens.py), draws against the weights and against verl's, and what draws
 * follow from. */
#include "ops/resample.h"

#include "graphs/graph/graph.h"
#include "ops/base/configs.h"
#include "tests/unit/test.h"
#include "graphs/loader/load.h"

enum { MAX_ROWS = 64 };

/* ---- verl's numbers --------------------------------------------------------------------------------------
 */

typedef struct line {
    char name[32];
    double v[MAX_ROWS];
    uint32_t n;
} line;

static bool read_line(FILE *f, line *l)
{
    char text[4096], *p = text;
    int used;
    if (!fgets(text, sizeof(text), f)) return false;
    assert_int_equal(sscanf(p, "%31s%n", l->name, &used), 1);
    for (l->n = 0, p += used; sscanf(p, "%lf%n", &l->v[l->n], &used) == 1; p += used)
        assert_true(++l->n < MAX_ROWS);
    return true;
}

static const struct form {
    const char *name, *weight, *power;
} forms[] = {
    {"pow2", NULL, "power=2"},
    {"pow1.5", NULL, "power=1.5"},
    {"max_min", "nodes.drawn.resample=weight_max_min(reward)", "power=2"},
    {"max_random", "nodes.drawn.resample=weight_max_random(reward)", "power=2"},
};

static gr_graph *load(const struct form *form)
{
    gr_graph *g = NULL;
    gr_diag d;
    gr_diag_init(&d);
    const char *set[] = {form->power, form->weight};
    gr_load_options o = {.set = set, .n_set = form->weight ? 2 : 1};
    if (gr_graph_load(&g, "graphs/pf_ppo.yaml", &o, &d)) fail_msg("%s", d.messages[0].text);
    gr_diag_release(&d);
    return g;
}

/* What the file says of rows with these scores: one token each, groups of one. */
static void weights_of(const gr_graph *g, const line *scores, float *out)
{
    const gr_node *drawn = gr_graph_node(g, "drawn"), *rollout = gr_graph_node(g, "rollout");
    const gr_expr *e = ((const gr_select_cfg *)drawn->cfg)->resample.expr;
    uint32_t count[MAX_ROWS + 1];
    for (uint32_t i = 0; i <= MAX_ROWS; i++) count[i] = i;
    gr_expr_rows *rows = gr_calloc(g->n_nodes, sizeof(*rows));
    gr_expr_column *columns = gr_calloc(g->n_columns, sizeof(*columns));
    rows[rollout->index] = (gr_expr_rows){.n_seqs = scores->n, .group = count, .offset = count};
    size_t n;
    const int *reads = gr_expr_reads(e, &n);
    assert_int_equal(n, 1);
    assert_string_equal(g->columns[reads[0]]->name, "reward");
    columns[reads[0]] = (gr_expr_column){scores->v, GR_EXPR_F64};
    gr_expr_env env = {.rows = rows, .columns = columns, .n_groups = scores->n};
    void *work = malloc(gr_expr_bytes(e, (gr_expr_bounds){scores->n, scores->n, scores->n}));
    gr_expr_eval(e, &env, GR_LEVEL_SEQ, (int)rollout->index, out, work);
    free(work);
    free(rows);
    free(columns);
}

/* How often each of n rows is among the draws of so many iterations. */
static void count_draws(const float *weight, uint32_t n, uint32_t steps, double *count)
{
    uint32_t drawn[MAX_ROWS];
    double sums[MAX_ROWS];
    memset(count, 0, n * sizeof(*count));
    for (uint32_t step = 1; step <= steps; step++) {
        const gr_resample_key key = {.seed = 11, .stream = gr_stream("drawn/resample"), .step = step};
        assert_true(gr_resample(drawn, weight, n, &key, sums));
        for (uint32_t i = 0; i < n; i++) count[drawn[i]]++;
    }
}

/* Pearson's statistic of counts against what is expected, which it is about as large as there are cells: six
 * of its deviations above that are no chance. */
static void expect_like(const char *what, const double *count, const double *want, uint32_t n)
{
    double sum = 0, cells = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (want[i] < 1e-3) {
            if (count[i] > 0)
                fail_msg("%s: row %u is drawn %g times, not about %g", what, i, count[i], want[i]);
            continue;
        }
        sum += (count[i] - want[i]) * (count[i] - want[i]) / want[i];
        cells++;
    }
    if (!(sum <= cells + 6 * sqrt(2 * cells))) fail_msg("%s: chi square %g of %g cells", what, sum, cells);
}

/* Of two samples of one size the differences have twice the variance. */
static void expect_like_sample(const char *what, const double *count, const double *other, uint32_t n)
{
    double sum = 0, cells = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (count[i] + other[i] == 0) continue;
        sum += (count[i] - other[i]) * (count[i] - other[i]) / (count[i] + other[i]);
        cells++;
    }
    if (!(sum <= cells + 6 * sqrt(2 * cells))) fail_msg("%s: chi square %g of %g cells", what, sum, cells);
}

static void expect_verls(const char *name, const float *weight, const line *want, const line *drawn,
                         uint32_t calls)
{
    double sum = 0, count[MAX_ROWS], expected[MAX_ROWS];
    for (uint32_t i = 0; i < want->n; i++) { /* its float32 is rounded twice, ours once */
        assert_close((double)weight[i], want->v[i], 0, 1.2e-7);
        sum += want->v[i];
    }
    for (uint32_t i = 0; i < want->n; i++) expected[i] = want->v[i] / sum * calls * want->n;
    count_draws(weight, want->n, calls, count);
    expect_like(name, count, expected, want->n);
    expect_like("verl's own draws", drawn->v, expected, want->n);
    expect_like_sample(name, count, drawn->v, want->n);
}

static void test_weights_and_draws_agree_with_verl(void **state)
{
    (void)state;
    FILE *f = fopen("tests/golden/pf_ppo.txt", "r");
    assert_non_null(f);
    char version[64];
    uint32_t calls, compared = 0;
    assert_int_equal(fscanf(f, "torch %63s calls %u ", version, &calls), 2);
    gr_graph *g[GR_LEN(forms)];
    for (size_t i = 0; i < GR_LEN(forms); i++) g[i] = load(&forms[i]);
    line scores = {0}, l, drawn;
    while (read_line(f, &l)) {
        if (!strcmp(l.name, "scores")) {
            scores = l;
            continue;
        }
        float weight[MAX_ROWS];
        assert_true(read_line(f, &drawn));
        assert_string_equal(drawn.name, "drawn");
        assert_true(l.n == scores.n && drawn.n == scores.n);
        for (size_t i = 0; i < GR_LEN(forms); i++) {
            if (strcmp(l.name, forms[i].name)) continue;
            weights_of(g[i], &scores, weight);
            expect_verls(l.name, weight, &l, &drawn, calls);
            compared++;
        }
    }
    fclose(f);
    assert_int_equal(compared, 8 * GR_LEN(forms));
    for (size_t i = 0; i < GR_LEN(forms); i++) gr_graph_free(g[i]);
}

/* ---- draws -----------------------------------------------------------------------------------------------
 */

static void draw(const float *weight, uint32_t n, gr_resample_key key, uint32_t *drawn)
{
    double sums[MAX_ROWS];
    assert_true(gr_resample(drawn, weight, n, &key, sums));
    for (uint32_t i = 0; i < n; i++) assert_true(drawn[i] < n && weight[drawn[i]] > 0);
}

static void test_a_weight_of_0_is_never_drawn(void **state)
{
    (void)state;
    static const float some[] = {0, 0, 3, 0, 1e-30f, 0.5f, 0, 0}, last[] = {0, 0, 0, 1e-38f},
                       first[] = {1e38f, 0, 0};
    uint32_t drawn[8];
    double count[8];
    for (uint32_t step = 0; step < 20000; step++) {
        draw(some, 8, (gr_resample_key){.seed = 1, .step = step}, drawn);
        draw(last, 4, (gr_resample_key){.seed = 1, .step = step}, drawn);
        draw(first, 3, (gr_resample_key){.seed = 1, .step = step}, drawn);
    }
    count_draws(some, 8, 5000, count);
    expect_like("two weights", count, (const double[]){0, 0, 40000 * 6 / 7.0, 0, 0, 40000 / 7.0, 0, 0}, 8);
}

/* Each draw of a batch is of the distribution, not only all of them together. */
static void test_every_draw_is_by_weight(void **state)
{
    (void)state;
    static const float weight[] = {1, 2, 3, 4};
    for (uint32_t at = 0; at < 4; at++) {
        double count[4] = {0};
        uint32_t drawn[4];
        for (uint32_t step = 0; step < 10000; step++) {
            draw(weight, 4, (gr_resample_key){.seed = 3, .stream = 4, .step = step}, drawn);
            count[drawn[at]]++;
        }
        expect_like("one draw", count, (const double[]){1000, 2000, 3000, 4000}, 4);
    }
}

static void test_draws_follow_from_their_key(void **state)
{
    (void)state;
    float weight[32], scaled[32];
    uint32_t drawn[32], again[32];
    for (int i = 0; i < 32; i++) scaled[i] = 0x1p40f * (weight[i] = (float)(1 + i % 5));
    const gr_resample_key key = {1, 2, 3, 4};
    const gr_resample_key others[] = {{9, 2, 3, 4}, {1, 9, 3, 4}, {1, 2, 9, 4}, {1, 2, 3, 9}};
    draw(weight, 32, key, drawn);
    draw(weight, 32, key, again);
    assert_memory_equal(drawn, again, sizeof(drawn));
    draw(scaled, 32, key, again);
    assert_memory_equal(drawn, again, sizeof(drawn));
    for (size_t i = 0; i < GR_LEN(others); i++) {
        draw(weight, 32, others[i], again);
        assert_true(memcmp(drawn, again, sizeof(drawn)));
    }
}

static void test_what_is_no_weight_is_found(void **state)
{
    (void)state;
    const float fine[] = {0, -0.0f, 1e-45f, 3e38f}, zeros[] = {0, -0.0f, 0};
    const float bad[][3] = {{1, NAN, 1}, {1, INFINITY, NAN}, {1, -1e-45f, 1}};
    uint32_t drawn[4];
    double sums[4];
    const gr_resample_key key = {0};
    assert_int_equal(gr_resample_wrong(fine, 4), 4);
    for (size_t i = 0; i < GR_LEN(bad); i++) assert_int_equal(gr_resample_wrong(bad[i], 3), 1);
    assert_true(!gr_resample(drawn, zeros, 3, &key, sums));
    assert_true(gr_resample(drawn, zeros, 0, &key, sums));
    assert_true(gr_resample(drawn, fine, 4, &key, sums));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_and_draws_agree_with_verl),
        cmocka_unit_test(test_a_weight_of_0_is_never_drawn),
        cmocka_unit_test(test_every_draw_is_by_weight),
        cmocka_unit_test(test_draws_follow_from_their_key),
        cmocka_unit_test(test_what_is_no_weight_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
