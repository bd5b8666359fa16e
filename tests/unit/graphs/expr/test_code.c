/* Losses as a device evaluates them, its threads run on the host, against the CPU evaluator: every function,
 * random batches with masks, empty sequences and prompts of one; every cut that the loss's class allows. */
#include "tests/unit/code_host.h"
#include "tests/unit/expr_batch.h"

#include <ctype.h>
#include <glob.h>

#include "graphs/expr/code_new.h"
#include "graphs/graph/graph.h"
#include "ops/base/configs.h"
#include "ops/loss_device.h"
#include "graphs/loader/load.h"

static gr_kernels host_kernels(void)
{
    gr_kernels k = gr_kernels_cpu;
    k.losses = true;
    k.code_run = code_host_run;
    return k;
}

/* ---- batches ------------------------------------------------------------------------------------------- */

static batch *make_batch(uint32_t seed, bool masked)
{
    int lengths[64];
    uint32_t n = 3 + (uint32_t)batch_noise(100 + seed, 0, 0, 9), per_group = 1 + seed % 4;
    for (uint32_t i = 0; i < n; i++) lengths[i] = (int)batch_noise(200 + seed, i, -2, i % 5 ? 9 : 60);
    for (uint32_t i = 0; i < n; i++) lengths[i] = GR_MAX(lengths[i], 0);
    lengths[n] = -1;
    batch *b = batch_new(per_group, lengths);
    if (b->n_tokens > MAX_TOKENS) fail_msg("the batch is too large");
    for (uint32_t t = 0; t < b->n_tokens && masked; t++) b->mask[t] = batch_noise(300 + seed, t, 0, 1) > 0.3;
    for (int i = 0; i < 2 && !masked; i++) b->rows[i].mask = NULL;
    b->rows[0].first_seq = 5;
    batch_loss_columns(b);
    batch_random(b, "step", GR_LEVEL_SCALAR, false, 1, 9);
    for (uint32_t t = 0; t < b->n_tokens; t += 3) b->columns[6].data[t] = 0.5f; /* ties */
    batch_param(b, "$lo", 0.2);
    batch_param(b, "$hi", 0.28);
    b->env.step = 3;
    b->env.epoch = 1;
    return b;
}

/* ---- both evaluations ---------------------------------------------------------------------------------- */

/* A loss and the mini-batch it is asked about: of one row set, or several of the same shape. */
typedef struct problem {
    const char *name;
    const gr_loss *loss;
    const gr_expr_env *env;
    gr_loss_inputs in;
    uint32_t n_tokens;
} problem;

enum { MAX_VALUES = 64, MAX_ADJOINTS = 3 };

typedef struct evaluation {
    double values[MAX_VALUES];
    float adjoint[MAX_ADJOINTS][MAX_TOKENS];
} evaluation;

static const gr_expr_rows *rows_of(const problem *p)
{
    return &p->env->rows[gr_loss_rows(p->loss)];
}

/* Ends of ranges of the tokens, as the loss's class allows: of about `step` tokens each. */
static size_t cuts_of(const problem *p, uint32_t step, uint32_t *cut)
{
    size_t n = 0;
    const gr_expr_rows *rows = rows_of(p);
    gr_loss_class class = gr_loss_class_of(p->loss);
    cut[0] = 0;
    for (uint32_t seq = 0; seq < rows->n_seqs && class == GR_LOSS_SEQ; seq++)
        if (rows->offset[seq + 1] - cut[n] >= step) cut[++n] = rows->offset[seq + 1];
    for (uint32_t t = step; t < p->n_tokens && class == GR_LOSS_TOKEN; t += step) cut[++n] = t;
    if (cut[n] < p->n_tokens || !n) cut[++n] = p->n_tokens;
    return n;
}

static void *take(uint64_t bytes) /* as large as it says, so that ASan sees any excess; not zero */
{
    void *at = NULL;
    if (posix_memalign(&at, 256, bytes + 1)) abort();
    memset(at, 0xff, bytes);
    return at;
}

static void adjoints_of(evaluation *e, float **out)
{
    for (int i = 0; i < MAX_ADJOINTS; i++) out[i] = e->adjoint[i];
}

static void run_device(const problem *p, uint32_t step, evaluation *out)
{
    uint32_t cut[MAX_TOKENS + 2];
    const gr_kernels k = host_kernels();
    size_t n = cuts_of(p, step, cut);
    gr_expr_bounds all = p->in.bounds, range = {all.groups, all.seqs, 0};
    for (size_t i = 0; i < n; i++) range.tokens = GR_MAX(range.tokens, cut[i + 1] - cut[i]);
    gr_loss_memory m = {.data = take(gr_loss_data_bytes(&p->in)),
                        .store = take(gr_loss_store_bytes(p->loss, all)),
                        .work = take(gr_loss_frame_bytes(p->loss, all, range)),
                        .host = take(gr_loss_host_bytes(&p->in))};
    gr_loss_device *device = gr_loss_device_new(&k, p->loss, &p->in, range);
    float *adjoint[MAX_ADJOINTS];
    gr_queue q = {0};
    adjoints_of(out, adjoint);
    gr_loss_device_prepare(device, &q, p->env, &m);
    for (size_t i = 0; i < n; i++) gr_loss_device_adjoint(device, &q, &m, cut[i], cut[i + 1], adjoint);
    gr_loss_device_value(device, &q, &m, out->values);
    gr_loss_device_free(device);
    free(m.data);
    free(m.store);
    free(m.work);
    free(m.host);
}

static void run_host(const problem *p, evaluation *out)
{
    float *adjoint[MAX_ADJOINTS];
    gr_expr_bounds all = p->in.bounds;
    uint64_t bytes = 0;
    for (gr_loss_stage s = GR_LOSS_PREPARE; s <= GR_LOSS_VALUE; s++)
        bytes = GR_MAX(bytes, gr_loss_work_bytes(p->loss, s, all, all));
    void *work = take(bytes), *store = take(gr_loss_store_bytes(p->loss, all));
    adjoints_of(out, adjoint);
    gr_loss_prepare(p->loss, p->env, store, work);
    gr_loss_adjoint(p->loss, p->env, store, 0, p->n_tokens, adjoint, work);
    gr_loss_value(p->loss, p->env, out->values, work);
    free(work);
    free(store);
}

static bool near(double got, double want, double tolerance)
{
    if (isnan(want) || isinf(want)) return isnan(want) ? isnan(got) : got == want;
    return fabs(got - want) <= tolerance * (1 + fabs(want));
}

static void show_code(const gr_loss *l)
{
    static const char *const stages[] = {"prepare", "adjoint", "value"};
    for (gr_loss_stage s = GR_LOSS_PREPARE; s <= GR_LOSS_VALUE; s++) {
        gr_str text = {0};
        gr_code_print(gr_loss_code(l, s), &text);
        print_message("%s:\n%s", stages[s], text.text ? text.text : "");
        gr_str_release(&text);
    }
}

static void expect_same(const problem *p, const evaluation *got, const evaluation *want)
{
    size_t n_current;
    gr_loss_current(p->loss, &n_current);
    for (size_t i = 0; i < gr_loss_results(p->loss); i++) {
        if (near(got->values[i], want->values[i], 1e-11)) continue;
        show_code(p->loss);
        fail_msg("%s: value %zu is %.17g, not %.17g", p->name, i, got->values[i], want->values[i]);
    }
    for (size_t i = 0; i < n_current; i++)
        for (uint32_t t = 0; t < p->n_tokens; t++) {
            double x = (double)got->adjoint[i][t], y = (double)want->adjoint[i][t];
            if (near(x, y, 1e-6)) continue;
            show_code(p->loss);
            fail_msg("%s: adjoint %zu of token %u is %.9g, not %.9g", p->name, i, t, x, y);
        }
}

static void compare(const problem *p)
{
    evaluation *got = gr_calloc(2, sizeof(*got)), *want = got + 1;
    assert_true(gr_loss_results(p->loss) <= MAX_VALUES);
    run_host(p, want);
    for (uint32_t step = 1; step <= 64; step *= 4) {
        memset(got, 0x7f, sizeof(*got));
        run_device(p, step, got);
        expect_same(p, got, want);
    }
    free(got);
}

/* ---- one expression ------------------------------------------------------------------------------------ */

static void compare_text(const char *text, uint32_t seed, bool masked)
{
    batch *b = make_batch(seed, masked);
    gr_expr *e = batch_parse(b, text), *metric = batch_parse(b, "token_mean(logprob * step)");
    gr_loss *l = NULL;
    gr_loss_column columns[MAX_COLUMNS];
    static const int rows[] = {0};
    const gr_loss_metric metrics[] = {{"first", metric}};
    if (gr_loss_new(&l, e, metrics, 1, &b->scope, &b->d) != GR_OK) batch_show(b);
    gr_expr_free(e);
    gr_expr_free(metric);
    if (!l) fail_msg("'%s' does not compile", text);
    problem p = {.name = text, .loss = l, .env = &b->env, .n_tokens = b->n_tokens};
    p.in = (gr_loss_inputs){
        .columns = columns, .rows = rows, .n_rows = 1, .bounds = batch_bounds(b), .masked = masked};
    for (size_t i = 0; i < b->n_columns; i++) {
        const gr_expr_symbol *s = &b->columns[i].symbol;
        if (!s->constant && !s->current)
            columns[p.in.n_columns++] = (gr_loss_column){s->id, s->rows, s->level, GR_EXPR_F32};
    }
    compare(&p);
    gr_loss_free(l);
    batch_free(b);
}

static const char *const texts[] = {
    "ratio = exp(logprob - old_logprob)\n"
    "pg_ = max(-advantage * ratio, -advantage * clip(ratio, 1 - $lo, 1 + $hi))\n"
    "kl = exp(ref_logprob - logprob) - (ref_logprob - logprob) - 1\n"
    "token_mean(pg_ + 0.01 * kl)",
    "u = seq_mean(logprob - old_logprob)\n"
    "q = exp(min(u, 10))\n"
    "batch_mean(seq_mean(max(-advantage * q, -advantage * clip(q, 1 - $lo, 1 + $hi))))",
    "d = logprob - old_logprob\n"
    "n = seq_count() + 1e-8\n"
    "batch_mean(-seq_sum(advantage) / n * exp(seq_sum(d) / n))",
    "cov = (adv - token_mean(adv)) * (old_logprob - token_mean(old_logprob))\n"
    "token_mean(-adv * exp(logprob) + where(top(cov, 3, cov > -9), 0.1 * abs(logprob), 0))",
    "token_mean(where(top(adv, 7, adv > -1), logprob, 0))", /* ties by index */
    "token_mean(where(top(adv, 1000, adv > 0), logprob, entropy))",
    "token_mean(where(top(adv, 0, adv > 0), logprob, entropy))",
    "batch_mean(where(top(log(advantage), 2, advantage < 9), seq_sum(logprob), 1))", /* NaN comes last */
    "batch_mean(group_mean(seq_sum(logprob)) * where(choose(pg > -2, 1), 2, 1))",
    "cov = (advantage - token_mean(advantage)) * (logprob - token_mean(logprob))\n"
    "drop = choose(cov > 0.1 and cov < 5, max(floor(0.1 * token_count()), 1))\n"
    "token_mean(where(drop, 0, exp(logprob)))",
    "0.5 * token_mean(max((value - returns)^2, (clip(value, values - 0.5, values + 0.5) - returns)^2))",
    "first = group_rank(advantage) == 0\n"
    "margin = group_sum(where(first, seq_sum(logprob - ref_logprob), -seq_sum(logprob - ref_logprob)))\n"
    "-batch_mean(log(sigmoid(0.5 * margin)))",
    "batch_mean(group_rank(floor(advantage)) * seq_sum(logprob))", /* ties */
    "token_mean(token_whiten(exp(logprob)) * adv)",
    "token_mean(pg * logprob * step)",
    "token_sum(abs(logprob + 1) + log(entropy) + sqrt(entropy) + tanh(value) + sigmoid(value))",
    "token_sum(value / entropy + entropy ^ value + value ^ 3 + 2 ^ value)",
    "token_sum(min(value, logprob + 1, entropy) + max(value, logprob + 1) * value)",
    "token_sum(clip(value, entropy - 1, 0.5) * pass_at(5, floor(3 * entropy), 2))",
    "token_sum(where(not adv > 0, value, entropy) * value)",
    "token_sum(stop_gradient(value) * entropy)",
    "token_sum(next(value, 2) * entropy + prev(value, 2) * entropy)",
    "token_sum(prefix_sum(value) * entropy + suffix_sum(value) * entropy)",
    "token_sum(discounted_sum(value, 0.9) ^ 2 + discounted_sum(value, adv) * entropy)",
    "token_sum(at_last(seq_sum(value)) * entropy)",
    "batch_sum(seq_mean(value) ^ 2 + seq_std(value) * advantage + seq_max(value, adv > 0) ^ 2)",
    "batch_sum(group_mean(value) ^ 2 + group_count(adv > 0) + group_std(value) + group_max(value))",
    "batch_sum(group_std(seq_mean(value)) + group_max(seq_mean(value))) * batch_count()",
    "batch_std(seq_mean(value)) + batch_max(seq_sum(value))",
    "token_std(value) + token_max(value, adv < 0)",
    "log(token_mean(exp(value)))",
    "batch_mean(seq_sum(value * position_sum(entropy)))",
    "token_sum(position_sum(value) / position_count() * entropy)",
    "token_sum(position_sum(exp(old_logprob)) * value)",
    "token_sum(nth_sum(value) ^ 2 / nth_count() * entropy + nth_sum(value, adv > 0) * entropy)",
    "batch_mean(seq_sum(value), advantage > 0)",
    "token_sum(suffix_sum(value - repeat(seq_mean(entropy))) * entropy + (5 * value) % 2 * 7 % entropy)",
    "token_sum((value - group_median(advantage) * group_quantile(advantage, 0.8, advantage > -1)) ^ 2)",
    "s = seq_sum(value)\nbatch_mean((s - group_quantile(s, 0.35)) ^ 2 + group_median(s, advantage < 0) * s)",
    "m = batch_median(seq_sum(value)) * batch_quantile(pg, 0.3)\ntoken_sum(entropy * m)",
    "token_sum(where(entropy >= token_quantile(stop_gradient(entropy), 0.8), value, 0))",
    "token_sum(value * token_median(adv, adv < 9) * token_quantile(adv, 0.9))",
    "token_sum(random() * value) + batch_sum(random(advantage) * seq_sum(value)) + batch_sum(random(pg) * "
    "pg)",
    "s = seq_sum(value)\nbatch_sum((s - group_mean(s)) / (group_std(s) + 1e-6))",
    "token_mean(where(value > 0, log(value), value)) + token_mean(exp(1000 * value) * 0)",
    "token_mean(log(value))", /* NaN */
};

static void test_losses_have_the_values_of_the_evaluator(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_LEN(texts); i++)
        for (uint32_t seed = 0; seed < 12; seed++) compare_text(texts[i], seed, seed % 3 == 0);
}

/* A call of the function, in any of the texts. */
static bool occurs(const char *name)
{
    for (size_t i = 0; i < GR_LEN(texts); i++) {
        size_t n = strlen(name);
        for (const char *at = texts[i]; (at = strstr(at, name)); at++) {
            bool begins = at == texts[i] || !(isalnum((unsigned char)at[-1]) || at[-1] == '_');
            if (begins && at[n] == '(') return true;
        }
    }
    return false;
}

static void test_every_function_is_among_them(void **state)
{
    size_t n;
    const gr_expr_function *f = gr_expr_functions(&n);
    (void)state;
    for (size_t i = 0; i < n; i++)
        if (strcmp(f[i].name, "token") && !occurs(f[i].name)) fail_msg("%s is not tested", f[i].name);
}

/* More values than a pass has registers, and more instructions, numbers and columns than it takes. */
static void test_what_does_not_fit_a_pass_goes_on_in_the_next(void **state)
{
    gr_str text = {0};
    (void)state;
    for (int i = 0; i < 60; i++) gr_str_printf(&text, "x%d = sigmoid(value * %d.5 + entropy)\n", i, i);
    gr_str_puts(&text, "token_sum(0");
    for (int i = 0; i < 60; i++) gr_str_printf(&text, " + x%d * x%d", i, 59 - i);
    gr_str_puts(&text, ")");
    for (uint32_t seed = 0; seed < 3; seed++) compare_text(text.text, seed, seed == 1);
    gr_str_release(&text);
}

static void test_a_loss_over_tokens_is_one_pass_between_head_and_backward(void **state)
{
    (void)state;
    batch *b = make_batch(1, false);
    gr_loss *l = batch_loss(b, texts[0]);
    assert_int_equal(gr_loss_code(l, GR_LOSS_ADJOINT)->n, 1);
    gr_loss_free(l);
    batch_free(b);
}

/* ---- the graph files ----------------------------------------------------------------------------------- */

typedef struct file_data {
    gr_expr_rows rows[64];
    gr_expr_column views[256];
    gr_loss_column columns[256];
    int row_sets[64];
} file_data;

/* All columns, random: numbers about 0 for those that are real, small ones for the others. */
static void draw_columns(const gr_graph *g, const batch *b, file_data *x)
{
    for (size_t i = 0; i < g->n_columns; i++) {
        const gr_column *c = g->columns[i];
        void *data = gr_calloc(MAX_TOKENS, sizeof(double));
        size_t n = c->level == GR_LEVEL_POSITION ? 0 : batch_count(b, c->level);
        for (uint32_t k = 0; k < n; k++) {
            double v = batch_noise(1000 + (uint32_t)i, k, -2.5, 0);
            gr_expr_dtype type = c->node ? c->dtype : GR_EXPR_F64;
            if (type == GR_EXPR_F32) ((float *)data)[k] = (float)v;
            if (type == GR_EXPR_F64) ((double *)data)[k] = v;
            if (type == GR_EXPR_I32) ((int32_t *)data)[k] = (int32_t)(-3 * v);
            if (type == GR_EXPR_U8) ((uint8_t *)data)[k] = v > -1;
        }
        x->views[i] = (gr_expr_column){data, c->node ? c->dtype : GR_EXPR_F64};
    }
}

static void compare_node(const gr_graph *g, const gr_node *n, batch *b)
{
    file_data *x = gr_calloc(1, sizeof(*x));
    gr_expr_env env = b->env;
    assert_true(g->n_nodes <= 64 && g->n_columns <= 256);
    env.rows = x->rows;
    env.columns = x->views;
    draw_columns(g, b, x);
    problem p = {.name = g->name, .loss = ((const gr_update_cfg *)n->cfg)->loss.loss, .env = &env};
    p.in = (gr_loss_inputs){.columns = x->columns, .rows = x->row_sets, .bounds = batch_bounds(b)};
    p.n_tokens = b->n_tokens;
    for (size_t i = 0; i < g->n_nodes; i++) {
        x->rows[i] = b->rows[0];
        x->row_sets[p.in.n_rows++] = (int)i;
    }
    size_t n_reads;
    const int *ids = gr_loss_reads(p.loss, GR_LOSS_VALUE, &n_reads);
    for (size_t i = 0; i < n_reads; i++) {
        const gr_column *c = g->columns[ids[i]];
        int rows = c->rows ? (int)c->rows->index : -1;
        if (!c->current)
            x->columns[p.in.n_columns++] = (gr_loss_column){ids[i], rows, c->level, x->views[ids[i]].dtype};
    }
    compare(&p);
    for (size_t i = 0; i < g->n_columns; i++) free((void *)x->views[i].data);
    free(x);
}

static size_t compare_file(const char *path)
{
    gr_diag d;
    gr_graph *g = NULL;
    size_t n = 0;
    gr_diag_init(&d);
    if (gr_graph_load(&g, path, NULL, &d) != GR_OK) fail_msg("%s: %s", path, d.n ? d.messages[0].text : "");
    for (size_t i = 0; i < g->n_nodes; i++) {
        if (strcmp(g->nodes[i]->op->name, "update")) continue;
        for (uint32_t seed = 0; seed < 3; seed++) {
            batch *b = make_batch(seed, false);
            compare_node(g, g->nodes[i], b);
            batch_free(b);
        }
        n++;
    }
    gr_graph_free(g);
    gr_diag_release(&d);
    return n;
}

static void test_losses_of_the_graph_files_have_the_values_of_the_evaluator(void **state)
{
    glob_t files;
    size_t n = 0;
    (void)state;
    assert_int_equal(glob("graphs/*.yaml", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) n += compare_file(files.gl_pathv[i]);
    globfree(&files);
    assert_true(n > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses_have_the_values_of_the_evaluator),
        cmocka_unit_test(test_every_function_is_among_them),
        cmocka_unit_test(test_what_does_not_fit_a_pass_goes_on_in_the_next),
        cmocka_unit_test(test_a_loss_over_tokens_is_one_pass_between_head_and_backward),
        cmocka_unit_test(test_losses_of_the_graph_files_have_the_values_of_the_evaluator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
