/* The graph files of graphs/ against verl's own functions in float64, and against numbers worked out by hand.
 *
 * tests/oracle/verl_goldens.py made tests/golden/verl.txt, and paper_goldens.py tests/golden/papers.txt, for
 * what verl does not have, and replay_goldens.py replay.txt; the class Batch of batches.py is drawn here
 * again, number for number. What runs is what the files say: they are loaded, their compute nodes evaluated
 * and their losses differentiated on these batches. Only reading data and asking models is left out.
 */
#include "graphs/graph/graph.h"
#include "ops/base/configs.h"
#include "tests/unit/test.h"
#include "graphs/loader/load.h"

enum { MAX_ROWS = 16, MAX_TOKENS = 96, MAX_SETTINGS = 8, MAX_COLUMNS = 64, MAX_NODES = 32 };

/* ---- batches ----------------------------------------------------------------------------------------------
 */

typedef struct random_numbers {
    uint64_t state;
} random_numbers;

static uint64_t next_bits(random_numbers *r) /* splitmix64 */
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint32_t below(random_numbers *r, uint32_t n)
{
    return (uint32_t)(next_bits(r) % n);
}

static double within(random_numbers *r, double lo, double hi)
{
    return lo + (hi - lo) * ((double)(next_bits(r) >> 11) * 0x1p-53);
}

/* Columns of a token; of a sequence; of the greedy rollout, which has a sequence and a token a group. */
typedef struct batch {
    uint32_t n_groups, n_rows, n_tokens;
    bool turns; /* tokens of tools stand between those of the model */
    uint32_t group[MAX_ROWS], offset[MAX_ROWS + 1], each[MAX_ROWS + 1];
    uint8_t mask[MAX_TOKENS];
    double right[MAX_ROWS], wrong[MAX_ROWS]; /* of a group: counts that its record keeps */
    double score[MAX_ROWS], written[MAX_ROWS], greedy[MAX_ROWS], advantage[MAX_ROWS], length[MAX_ROWS],
        second[MAX_ROWS];
    double old[MAX_TOKENS], logprob[MAX_TOKENS], sampled[MAX_TOKENS], ref[MAX_TOKENS], sum_p2[MAX_TOKENS],
        value[MAX_TOKENS], values[MAX_TOKENS], returns[MAX_TOKENS], entropy[MAX_TOKENS], id[MAX_TOKENS],
        of_token[MAX_TOKENS]; /* advantage, of the row */
} batch;

static void draw_rows(batch *b, random_numbers *r, uint32_t number)
{
    b->n_groups = 2 + below(r, 2);
    for (uint32_t g = 0; g < b->n_groups; g++) {
        uint32_t rows = number % 7 == 0 ? 1 : 1 + below(r, 3);
        for (uint32_t i = 0; i < rows; i++) b->group[b->n_rows++] = g;
    }
    for (uint32_t i = 0; i < b->n_rows; i++) {
        uint32_t n = 1 + below(r, 4);
        if (i < 2) n = GR_MAX(n, 2u);
        bool empty = below(r, 8) == 0;
        uint8_t *mask = b->mask + b->n_tokens;
        for (uint32_t t = 0; t < n; t++) mask[t] = !empty && (!b->turns || below(r, 4) > 0);
        if (i < 2) mask[0] = mask[1] = 1;
        b->offset[i + 1] = b->n_tokens += n;
    }
}

static double below_zero(double x)
{
    return x < -0.01 ? x : -0.01 - 0.001 * (x + 0.01);
}

static void draw_tokens(batch *b, random_numbers *r)
{
    for (uint32_t t = 0; t < b->n_tokens; t++) {
        b->old[t] = within(r, -3, -0.05);
        double wide = below(r, 8) == 0 ? 4.0 : 0.6;
        b->logprob[t] = below_zero(b->old[t] + within(r, -wide, wide));
        b->sampled[t] = below_zero(b->old[t] + within(r, -wide / 4, wide / 4));
        b->ref[t] = within(r, -3, -0.05);
        b->sum_p2[t] = within(r, 0, 1);
        b->values[t] = within(r, -1, 1);
        b->value[t] = within(r, -1, 1);
        b->returns[t] = within(r, -1, 1);
        b->entropy[t] = -b->old[t];
    }
}

static void draw_batch(batch *b, uint32_t number)
{
    random_numbers r = {1000 + number};
    double shared[3];
    *b = (batch){.turns = number % 2};
    draw_rows(b, &r, number);
    for (int i = 0; i < 3; i++) shared[i] = within(&r, -1, 1);
    for (uint32_t i = 0; i < b->n_rows; i++) {
        double *s = &b->score[i];
        switch (number % 4) {
        case 0:
            *s = within(&r, -1, 1);
            break;
        case 1:
            *s = below(&r, 2);
            break;
        case 2:
            *s = shared[b->group[i]];
            break;
        default:
            *s = below(&r, 3) / 2.0;
            break;
        }
    }
    for (uint32_t i = 0; i < b->n_rows; i++) b->written[i] = below(&r, 2);
    for (uint32_t g = 0; g < b->n_groups; g++) b->greedy[g] = within(&r, -1, 1);
    for (uint32_t g = 0; g < b->n_groups; g++) b->right[g] = 2 + b->greedy[g], b->wrong[g] = 3 - b->greedy[g];
    for (uint32_t i = 0; i < b->n_rows; i++) b->advantage[i] = below(&r, 8) == 0 ? 0 : within(&r, -2, 2);
    draw_tokens(b, &r);
}

/* Sequences of the given lengths, -1 at the end, in groups of per_group, with scores: for what is worked out
 * by hand. */
static batch hand_batch(uint32_t per_group, const int *lengths, const double *score)
{
    batch b = {0};
    for (uint32_t i = 0; lengths[i] >= 0; i++) {
        b.group[i] = i / per_group;
        b.score[i] = score[i];
        b.offset[i + 1] = b.n_tokens += (uint32_t)lengths[i];
        b.n_rows = i + 1;
    }
    b.n_groups = (b.n_rows + per_group - 1) / per_group;
    memset(b.mask, 1, sizeof(b.mask));
    return b;
}

/* ---- a graph on a batch -----------------------------------------------------------------------------------
 */

/* Whose advantages a loss sees: the graph's; the batch's, one a row or one a token. */
enum advantages { COMPUTED, OF_ROWS, OF_TOKENS };

typedef struct bench {
    gr_graph *g;
    batch b;
    float results[MAX_NODES][MAX_TOKENS]; /* of compute nodes */
    double scalars[MAX_COLUMNS];
    gr_expr_column columns[MAX_COLUMNS];
    gr_expr_rows rows[MAX_NODES];
    gr_expr_env env;
    enum advantages advantages;
} bench;

static const double *column_data(bench *x, const gr_column *c)
{
    batch *b = &x->b;
    const char *name = c->from ? c->from->name : c->name; /* a selection keeps all */
    const struct {
        const char *name;
        const double *data;
    } known[] = {{"reward", b->score},
                 {"written", b->written},
                 {"greedy_reward", b->greedy},
                 {"old_logprob", b->old},
                 {"ref_logprob", b->ref},
                 {"rollout.logprob", b->sampled},
                 {"values", b->values},
                 {"old_logprob.sum_p2", b->sum_p2},
                 {"returns", b->returns},
                 {"rollout", b->id},
                 {"old_logprob.entropy", b->entropy},
                 {"rollout.length", b->length},
                 {"pairs.second", b->second},
                 {"both.source", b->second},
                 {"replayed.age", b->second},
                 {"replayed.logprob", b->sampled},
                 {"prm_logprob", b->sampled},
                 {"teacher_logprob", b->ref},
                 {"other_logprob", b->old},
                 {"other_ref_logprob", b->sampled},
                 {"examples.label", b->greedy},
                 {"kept.reward", b->greedy},
                 {"kept.logprobs", b->sampled},
                 {"prompts.difficulty", b->greedy},
                 {"prompts.right", b->right},
                 {"prompts.wrong", b->wrong}};
    if (c->current)
        return !strcmp(c->field, "value") ? b->value : !strcmp(c->field, "entropy") ? b->entropy : b->logprob;
    if (x->advantages && !strcmp(name, "advantage"))
        return x->advantages == OF_TOKENS   ? b->returns
               : c->level == GR_LEVEL_TOKEN ? b->of_token
                                            : b->advantage;
    for (size_t i = 0; i < GR_LEN(known); i++)
        if (!strcmp(known[i].name, name)) return known[i].data;
    return NULL;
}

static gr_expr_bounds bounds_of(const bench *x)
{
    return (gr_expr_bounds){x->b.n_groups, x->b.n_rows, x->b.n_tokens};
}

static void eval(bench *x, const gr_expr *e, gr_level level, int rows, float *out)
{
    void *work = malloc(gr_expr_bytes(e, bounds_of(x)) + 1);
    gr_expr_eval(e, &x->env, level, rows, out, work);
    free(work);
}

static double eval_scalar(bench *x, const gr_expr *e)
{
    void *work = malloc(gr_expr_bytes(e, bounds_of(x)) + 1);
    double v = gr_expr_scalar(e, &x->env, work);
    free(work);
    return v;
}

static const gr_expr *expr_of(const gr_node *n)
{
    return ((const gr_compute_cfg *)n->cfg)->expr.expr;
}

static void run_computes(bench *x)
{
    for (size_t i = 0; i < x->g->n_nodes; i++) {
        const gr_node *n = x->g->nodes[i];
        if (strcmp(n->op->name, "compute") || !n->results.n_columns) continue;
        eval(x, expr_of(n), n->results.columns[0]->level, n->rows ? (int)n->rows->index : -1, x->results[i]);
    }
}

static void bind(bench *x)
{
    batch *b = &x->b;
    assert_true(x->g->n_columns <= MAX_COLUMNS && x->g->n_nodes <= MAX_NODES);
    for (uint32_t i = 0; i <= b->n_groups; i++) b->each[i] = i;
    for (uint32_t i = 0; i < b->n_rows; i++)
        for (uint32_t t = b->offset[i]; t < b->offset[i + 1]; t++) b->of_token[t] = b->advantage[i];
    for (uint32_t i = 1; i < b->n_rows; i++) b->second[i] = b->group[i] == b->group[i - 1];
    for (uint32_t i = 0; i < b->n_rows; i++) b->length[i] = b->offset[i + 1] - b->offset[i];
    for (size_t i = 0; i < x->g->n_nodes; i++) {
        bool greedy = !strcmp(x->g->nodes[i]->name, "greedy");
        x->rows[i] = greedy ? (gr_expr_rows){b->n_groups, b->each, b->each, NULL, 0}
                            : (gr_expr_rows){b->n_rows, b->group, b->offset, b->mask, 0};
    }
    for (size_t i = 0; i < x->g->n_columns; i++) {
        const gr_column *c = x->g->columns[i];
        const double *data = c->node ? column_data(x, c) : &x->scalars[i];
        x->columns[i] = (gr_expr_column){data, GR_EXPR_F64};
        const gr_node *from = c->from ? c->from->node : c->node;
        if (!data && !strcmp(from->op->name, "compute"))
            x->columns[i] = (gr_expr_column){x->results[from->index], GR_EXPR_F32};
    }
    x->env =
        (gr_expr_env){.rows = x->rows, .columns = x->columns, .n_groups = b->n_groups, .seed = 1, .node = 2};
}

static void set_scalar(bench *x, const char *name, double value)
{
    for (size_t i = 0; i < x->g->n_columns; i++)
        if (!strcmp(x->g->columns[i]->name, name)) x->scalars[i] = value;
}

static void show(const gr_diag *d)
{
    for (size_t i = 0; i < d->n; i++) {
        char *text = gr_message_format(&d->messages[i]);
        print_message("%s\n", text);
        free(text);
    }
}

/* settings: "a=1 b=2", or NULL. */
static gr_graph *load(const char *file, const char *text, const char *settings)
{
    const char *set[MAX_SETTINGS];
    char *copy = gr_strdup(settings ? settings : ""), *save = NULL;
    gr_load_options o = {.set = set};
    for (char *s = strtok_r(copy, " ", &save); s; s = strtok_r(NULL, " ", &save)) set[o.n_set++] = s;
    char *path = gr_printf("graphs/%s.yaml", file);
    gr_diag d;
    gr_diag_init(&d);
    gr_graph *g = NULL;
    gr_status st =
        text ? gr_graph_parse(&g, text, strlen(text), path, &o, &d) : gr_graph_load(&g, path, &o, &d);
    if (st) show(&d);
    assert_int_equal(st, GR_OK);
    gr_diag_release(&d);
    free(path);
    free(copy);
    return g;
}

static bench *bench_new(const char *file, const char *text, const char *settings)
{
    bench *x = calloc(1, sizeof(*x));
    x->g = load(file, text, settings);
    return x;
}

static void bench_free(bench *x)
{
    gr_graph_free(x->g);
    free(x);
}

static void use_batch(bench *x, const batch *b)
{
    x->b = *b;
    bind(x);
    run_computes(x);
}

/* A compute node's values, one a token. */
static void values_of(bench *x, const char *node, float *out)
{
    const gr_node *n = gr_graph_node(x->g, node);
    eval(x, expr_of(n), GR_LEVEL_TOKEN, (int)n->rows->index, out);
}

/* ---- verl's numbers ---------------------------------------------------------------------------------------
 */

/* A line: a name, and numbers. */
typedef struct line {
    char name[64];
    double v[MAX_TOKENS + 1];
    size_t n;
} line;

static bool read_line(FILE *f, line *l)
{
    char text[8192], *p = text;
    int used;
    if (!fgets(text, sizeof(text), f)) return false;
    assert_int_equal(sscanf(p, "%63s%n", l->name, &used), 1);
    p += used;
    for (l->n = 0; sscanf(p, "%lf%n", &l->v[l->n], &used) == 1; l->n++) {
        p += used;
        assert_true(l->n < MAX_TOKENS);
    }
    return true;
}

static bool near(double got, double want)
{
    return fabs(got - want) <= 1e-6 + 1e-6 * fabs(want);
}

static void expect_near(const char *what, uint32_t number, size_t i, double got, double want)
{
    if (!near(got, want)) fail_msg("%s, batch %u [%zu]: got %.9g, verl has %.9g", what, number, i, got, want);
}

/* One number a row that has a token, from its first. */
static void expect_rows(const char *what, uint32_t number, const batch *b, const float *got, const line *want)
{
    size_t n = 0;
    for (uint32_t i = 0; i < b->n_rows; i++) {
        uint32_t t = b->offset[i];
        while (t < b->offset[i + 1] && !b->mask[t]) t++;
        if (t == b->offset[i + 1]) continue;
        expect_near(what, number, n, (double)got[t], want->v[n]);
        for (uint32_t k = t; k < b->offset[i + 1]; k++) assert_true(!b->mask[k] || got[k] == got[t]);
        n++;
    }
    assert_int_equal(n, want->n);
}

static void expect_tokens(const char *what, uint32_t number, const batch *b, const float *got,
                          const double *want, size_t n_want)
{
    size_t n = 0;
    for (uint32_t t = 0; t < b->n_tokens; t++) {
        if (b->mask[t])
            expect_near(what, number, n, (double)got[t], want[n]), n++;
        else
            assert_true(got[t] == 0);
    }
    assert_int_equal(n, n_want);
}

typedef struct estimator {
    const char *name, *file, *settings;
    bool tokens;      /* one number a token; else a row */
    const char *node; /* NULL: advantage */
} estimator;

static const estimator estimators[] = {
    {"grpo", "grpo", NULL, false, NULL},
    {"grpo", "gspo", NULL, false, NULL},
    {"dr_grpo", "dr_grpo", NULL, false, NULL},
    {"grpo_vectorized", "grpo", NULL, false, NULL},
    {"grpo_passk", "grpo_passk", NULL, false, NULL},
    {"rloo", "rloo", NULL, false, NULL},
    {"rloo_vectorized", "rloo", "alone=0", false, NULL},
    {"gpg", "gpg", NULL, false, NULL},
    {"opo", "opo", NULL, false, NULL},
    {"reinforce_plus_plus_baseline", "reinforce_plus_plus_baseline", NULL, false, NULL},
    {"gdpo", "gdpo", NULL, false, NULL},
    {"reinforce_plus_plus", "reinforce_plus_plus", "gamma=0.9", true, NULL},
    {"remax", "remax", NULL, true, NULL},
    {"optimal_token_baseline", "optimal_token_baseline", NULL, true, NULL},
    {"tir_optimal_token_baseline", "tir_optimal_token_baseline", NULL, true, NULL},
    {"gae", "ppo", "gamma=0.9 lam=0.8", true, NULL},
    {"gae_returns", "ppo", "gamma=0.9 lam=0.8", true, "returns"},
    {"vapo", "vapo", "alpha=0.5", true, NULL},
    {"grpo", "rlep", NULL, false, NULL},
    {"repo", "repo", NULL, true, NULL},
    {"vapo_returns", "vapo", "alpha=0.5", true, "returns"},
    {"prime", "prime", NULL, true, NULL},
    {"qae", "qae", NULL, false, NULL},
    {"gfpo", "gfpo", "keep=2", false, NULL},
    {"length_control", "length_control", "max_tokens=7", false, NULL},
    {"spo", "spo", "group=2", false, NULL},
    {"curriculum", "curriculum", "width=0.5", false, NULL},
};

/* ---- losses -----------------------------------------------------------------------------------------------
 */

#define FORM(loss)                                                                                           \
    "graph: form\nuse: [parts/gsm8k.yaml, parts/losses.yaml]\nmodels: {ref: {checkpoint: $model}}\nnodes:\n" \
    "  ref_logprob: {op: logprob, model: ref, of: rollout}\n  advantage: {op: compute, expr: 2 * reward}\n"  \
    "  update:\n    op: update\n    model: actor\n    of: rollout\n    mini_batch: $mini_batch\n    loss: "  \
    "|\n"                                                                                                    \
    "      dual = dual_clip(ratio_of(logprob, old_logprob), advantage, 0.2, 0.28, 3)\n      " loss "\n"
#define KL(form) FORM("token_mean(" form ") + 0 * token_mean(dual)")

typedef struct loss_case {
    const char *name, *file, *settings, *text; /* text: instead of the file */
    const char *node;                          /* NULL: update */
} loss_case;

static const loss_case losses[] = {
    {"vanilla", "rloo", "high=0.28", NULL, NULL},
    {"vanilla", "opo", "high=0.28", NULL, NULL},
    {"vanilla", "grpo_passk", "high=0.28", NULL, NULL},
    {"vanilla", "gdpo", "high=0.28", NULL, NULL},
    {"vanilla", "remax", "high=0.28", NULL, NULL},
    {"vanilla", "dapo", NULL, NULL, NULL},
    {"vanilla", "egpo", "high=0.28", NULL, NULL},
    {"vanilla", "reinforce_plus_plus", "high=0.28", NULL, NULL},
    {"vanilla", "reinforce_plus_plus_baseline", "high=0.28", NULL, NULL},
    {"vanilla", "optimal_token_baseline", "high=0.28", NULL, NULL},
    {"vanilla", "tir_optimal_token_baseline", "high=0.28", NULL, NULL},
    {"vanilla_kl", "grpo", "kl=0.1", NULL, NULL},
    {"vanilla_kl", "prorl", "low=0.2 high=0.2 kl=0.1", NULL, NULL},
    {"dual_clip", "form", NULL, FORM("token_mean(dual)"), NULL},
    {"token-sum", "form", NULL, FORM("token_sum(dual)"), NULL},
    {"seq-mean-token-sum", "form", NULL, FORM("batch_mean(seq_sum(dual))"), NULL},
    {"seq-mean-token-sum-norm", "form", NULL, FORM("batch_mean(seq_sum(dual)) / 7"), NULL},
    {"seq-mean-token-mean", "form", NULL, FORM("batch_mean(seq_mean(dual))"), NULL},
    {"dppo_tv", "dppo_tv", "high=0.28", NULL, NULL},
    {"dppo_kl", "dppo_kl", "high=0.28", NULL, NULL},
    {"gspo", "gspo", "low=0.2 high=0.28", NULL, NULL},
    {"sapo", "sapo", NULL, NULL, NULL},
    {"gpg", "gpg", NULL, NULL, NULL},
    {"cispo", "cispo", NULL, NULL, NULL},
    {"geo_mean", "gmpo", "low=0.2 high=0.28", NULL, NULL},
    {"clip_cov", "clip_cov", "high=0.28 part=1 least=0.05", NULL, NULL},
    {"kl_cov", "kl_cov", "part=0.3", NULL, NULL},
    {"dro", "dro", NULL, NULL, NULL},
    {"k1", "form", NULL, KL("kl_k1(logprob, ref_logprob)"), NULL},
    {"abs", "form", NULL, KL("kl_abs(logprob, ref_logprob)"), NULL},
    {"k2", "form", NULL, KL("kl_k2(logprob, ref_logprob)"), NULL},
    {"k3", "form", NULL, KL("kl_k3(logprob, ref_logprob)"), NULL},
    {"k1+", "form", NULL, KL("straight_through(kl_k1(logprob, ref_logprob), kl_k2(logprob, ref_logprob))"),
     NULL},
    {"k3+", "form", NULL, KL("straight_through(kl_k3(logprob, ref_logprob), kl_k2(logprob, ref_logprob))"),
     NULL},
    {"abs+", "form", NULL, KL("straight_through(kl_abs(logprob, ref_logprob), kl_k2(logprob, ref_logprob))"),
     NULL},
    {"rollout_correction", "rollout_correction", "high=0.28 most=1.2 mean_gap=0.03 token_gap=0.2", NULL,
     NULL},
    {"bypass", "bypass", "high=0.28 mean_gap=0.3", NULL, NULL},
    {"bypass_reinforce", "bypass_reinforce", "most=1.2", NULL, NULL},
    {"vanilla-even", "ppo", "low=0.2 high=0.2", NULL, NULL},
    {"value", "ppo", NULL, NULL, "update_critic"},
    {"vanilla-even", "pf_ppo", "low=0.2 high=0.2", NULL, NULL},
    {"value", "pf_ppo", NULL, NULL, "update_critic"},
    {"value", "vapo", NULL, NULL, "update_critic"},
    {"vapo", "vapo", NULL, NULL, NULL},
    {"vanilla-even", "prime", NULL, NULL, NULL},
    {"prime", "prime", NULL, NULL, "update_prm"},
    {"gspo_token", "gspo_token", "low=0.2 high=0.28", NULL, NULL},
    {"vanilla", "qae", NULL, NULL, NULL},
    {"vanilla-even", "gfpo", NULL, NULL, NULL},
    {"vanilla", "length_control", NULL, NULL, NULL},
    {"vanilla", "spo", NULL, NULL, NULL},
    {"simpo", "simpo", NULL, NULL, NULL},
    {"ipo", "ipo", NULL, NULL, NULL},
    {"orpo", "orpo", NULL, NULL, NULL},
    {"kto", "kto", "bad=1.3", NULL, NULL},
    {"opmd", "opmd", NULL, NULL, NULL},
    {"forking", "forking", NULL, NULL, NULL},
    {"distill", "distill", NULL, NULL, NULL},
    {"distill", "opsd", NULL, NULL, NULL},
    {"luffy", "luffy", NULL, NULL, NULL},
    {"repo", "repo", NULL, NULL, NULL},
    {"vanilla", "rlep", NULL, NULL, NULL},
    {"raft", "raft", NULL, NULL, NULL},
    {"rest_em", "rest_em", NULL, NULL, NULL},
    {"topr", "topr", NULL, NULL, NULL},
};

static const gr_loss *loss_of(const gr_graph *g, const char *node)
{
    return ((const gr_update_cfg *)gr_graph_node(g, node ? node : "update")->cfg)->loss.loss;
}

static double loss_value(bench *x, const gr_loss *l)
{
    double values[16];
    gr_expr_bounds all = bounds_of(x);
    void *work = malloc(gr_loss_work_bytes(l, GR_LOSS_VALUE, all, all) + 1);
    gr_loss_value(l, &x->env, values, work);
    free(work);
    return values[0];
}

/* d loss / d logprob (value, of a critic), in cuts [cut[i], cut[i + 1]) of the tokens. */
static void loss_gradient(bench *x, const gr_loss *l, const uint32_t *cut, size_t n_cuts, float *out)
{
    gr_expr_bounds all = bounds_of(x);
    float other[MAX_TOKENS], *outs[3] = {other, other, other};
    size_t n;
    const int *current = gr_loss_current(l, &n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(x->g->columns[current[i]]->field, "entropy")) outs[i] = out;
    void *store = malloc(gr_loss_store_bytes(l, all) + 1);
    void *work = malloc(gr_loss_work_bytes(l, GR_LOSS_PREPARE, all, all) + 1);
    gr_loss_prepare(l, &x->env, store, work);
    free(work);
    for (size_t i = 0; i < n_cuts; i++) {
        gr_expr_bounds range = {all.groups, all.seqs, cut[i + 1] - cut[i]};
        work = malloc(gr_loss_work_bytes(l, GR_LOSS_ADJOINT, all, range) + 1);
        gr_loss_adjoint(l, &x->env, store, cut[i], cut[i + 1], outs, work);
        free(work);
    }
    free(store);
}

/* ---- rollout correction -----------------------------------------------------------------------------------
 */

#define CORRECTION(expr)                                                                                     \
    "graph: form\nuse: [parts/gsm8k.yaml, parts/correction.yaml]\nnodes:\n  advantage:\n    op: compute\n  " \
    "  of: rollout\n"                                                                                        \
    "    expr: |\n      k1 = gap_k1(old_logprob, rollout.logprob)\n      k2 = gap_k2(old_logprob, "          \
    "rollout.logprob)\n"                                                                                     \
    "      k3 = gap_k3(old_logprob, rollout.logprob)\n      low  = log(0.8)\n      high = log(1.1)\n"        \
    "      " expr "\nlog: {mean: token_mean(advantage)}\n"
#define KEPT(condition) CORRECTION("where(" condition ", 1, 0)")

static const struct {
    const char *name, *text;
} corrections[] = {
    {"token_weight", CORRECTION("token_weight(old_logprob, rollout.logprob, 1.2)")},
    {"token_weight_icepop", CORRECTION("icepop(token_weight(old_logprob, rollout.logprob, 1e9), 0.8, 1.2)")},
    {"token_weight_balanced", CORRECTION("balanced(token_weight(old_logprob, rollout.logprob, 1.2))")},
    {"sequence_weight", CORRECTION("sequence_weight(old_logprob, rollout.logprob, 1.2)")},
    {"sequence_weight_icepop",
     CORRECTION("icepop(sequence_weight(old_logprob, rollout.logprob, 1e9), 0.8, 1.2)")},
    {"sequence_weight_balanced",
     CORRECTION("balanced_responses(sequence_weight(old_logprob, rollout.logprob, 1.2))")},
    {"token_k1", KEPT("k1 >= low and k1 <= high")},
    {"token_k2", KEPT("k2 <= 0.01")},
    {"token_k3", KEPT("k3 <= 0.01")},
    {"seq_sum_k1", KEPT("seq_sum(k1) >= low and seq_sum(k1) <= high")},
    {"seq_sum_k2", KEPT("seq_sum(k2) <= 0.02")},
    {"seq_sum_k3", KEPT("seq_sum(k3) <= 0.02")},
    {"seq_mean_k1", KEPT("seq_mean(k1) >= log(0.9) and seq_mean(k1) <= high")},
    {"seq_mean_k2", KEPT("seq_mean(k2) <= 0.01")},
    {"seq_mean_k3", KEPT("seq_mean(k3) <= 0.01")},
    {"seq_max_k2", KEPT("seq_max(k2) <= 0.02")},
    {"seq_max_k3", KEPT("seq_max(k3) <= 0.02")},
};

/* ---- the comparison ---------------------------------------------------------------------------------------
 */

typedef struct catalogue {
    bench *estimator[GR_LEN(estimators)], *loss[GR_LEN(losses)], *correction[GR_LEN(corrections)];
    uint32_t compared[GR_LEN(estimators) + GR_LEN(losses) + GR_LEN(corrections)];
} catalogue;

static enum advantages advantages_of(const loss_case *l)
{
    if (!strcmp(l->name, "distill")) return COMPUTED;
    return !strcmp(l->name, "vapo") || !strcmp(l->name, "gspo_token") ? OF_TOKENS : OF_ROWS;
}

static void open_catalogue(catalogue *c)
{
    *c = (catalogue){0};
    for (size_t i = 0; i < GR_LEN(estimators); i++)
        c->estimator[i] = bench_new(estimators[i].file, NULL, estimators[i].settings);
    for (size_t i = 0; i < GR_LEN(losses); i++) {
        c->loss[i] = bench_new(losses[i].file, losses[i].text, losses[i].settings);
        c->loss[i]->advantages = advantages_of(&losses[i]);
    }
    for (size_t i = 0; i < GR_LEN(corrections); i++)
        c->correction[i] = bench_new("form", corrections[i].text, NULL);
}

static void close_catalogue(catalogue *c)
{
    for (size_t i = 0; i < GR_LEN(estimators); i++) bench_free(c->estimator[i]);
    for (size_t i = 0; i < GR_LEN(losses); i++) bench_free(c->loss[i]);
    for (size_t i = 0; i < GR_LEN(corrections); i++) bench_free(c->correction[i]);
}

static void compare_estimators(catalogue *c, uint32_t number, const batch *b, const line *want)
{
    float got[MAX_TOKENS];
    for (size_t i = 0; i < GR_LEN(estimators); i++) {
        if (strcmp(estimators[i].name, want->name)) continue;
        set_scalar(c->estimator[i], "state.price", 0.05);
        set_scalar(c->estimator[i], "state.beta", 0.05);
        set_scalar(c->estimator[i], "state.level", 0.3);
        use_batch(c->estimator[i], b);
        values_of(c->estimator[i], estimators[i].node ? estimators[i].node : "advantage", got);
        if (estimators[i].tokens)
            expect_tokens(want->name, number, b, got, want->v, want->n);
        else
            expect_rows(want->name, number, b, got, want);
        c->compared[i]++;
    }
}

static void compare_losses(catalogue *c, uint32_t number, const batch *b, const line *want)
{
    float got[MAX_TOKENS];
    for (size_t i = 0; i < GR_LEN(losses); i++) {
        if (strncmp(want->name, "loss.", 5) || strcmp(losses[i].name, want->name + 5)) continue;
        use_batch(c->loss[i], b);
        const gr_loss *l = loss_of(c->loss[i]->g, losses[i].node);
        expect_near(losses[i].file, number, 0, loss_value(c->loss[i], l), want->v[0]);
        memset(got, 0, sizeof(got));
        loss_gradient(c->loss[i], l, (const uint32_t[]){0, b->n_tokens}, 1, got);
        expect_tokens(losses[i].file, number, b, got, want->v + 1, want->n - 1);
        c->compared[GR_LEN(estimators) + i]++;
    }
}

static void compare_corrections(catalogue *c, uint32_t number, const batch *b, const line *want)
{
    float got[MAX_TOKENS];
    for (size_t i = 0; i < GR_LEN(corrections); i++) {
        if (strcmp(corrections[i].name, want->name)) continue;
        use_batch(c->correction[i], b);
        values_of(c->correction[i], "advantage", got);
        expect_tokens(want->name, number, b, got, want->v, want->n);
        c->compared[GR_LEN(estimators) + GR_LEN(losses) + i]++;
    }
}

static void compare_controller(catalogue *c, uint32_t number, const batch *b, const line *want)
{
    bench *x = bench_new("reinforce_plus_plus", NULL, "horizon=100");
    (void)c;
    set_scalar(x, "state.price", 0.05);
    use_batch(x, b);
    expect_near("kl_now", number, 0, eval_scalar(x, expr_of(gr_graph_node(x->g, "kl_now"))), want->v[0]);
    expect_near("price", number, 1, eval_scalar(x, x->g->state[0].next), want->v[1]);
    bench_free(x);
}

/* The file says how many rows and tokens it drew, and the sum of the last column: the same batch on both
 * sides. */
static void expect_batch(const batch *b, const line *l)
{
    double sum = 0;
    for (uint32_t t = 0; t < b->n_tokens; t++) sum += b->returns[t];
    assert_int_equal(b->n_rows, (int)l->v[1]);
    assert_int_equal(b->n_tokens, (int)l->v[2]);
    assert_true(near(sum, l->v[3]));
}

static uint32_t compare_file(catalogue *c, const char *path)
{
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    batch b = {0};
    line l;
    uint32_t number = 0, batches = 0;
    assert_true(read_line(f, &l)); /* versions */
    while (read_line(f, &l)) {
        if (!strcmp(l.name, "batch")) {
            number = (uint32_t)l.v[0];
            draw_batch(&b, number);
            expect_batch(&b, &l);
            batches++;
        } else if (!strcmp(l.name, "adaptive_kl")) {
            compare_controller(c, number, &b, &l);
        } else {
            compare_estimators(c, number, &b, &l);
            compare_losses(c, number, &b, &l);
            compare_corrections(c, number, &b, &l);
        }
    }
    fclose(f);
    return batches;
}

static void test_graph_files_agree_with_verl_and_the_papers(void **state)
{
    (void)state;
    catalogue *c = calloc(1, sizeof(*c));
    open_catalogue(c);
    uint32_t batches = compare_file(c, "tests/golden/verl.txt");
    assert_int_equal(compare_file(c, "tests/golden/papers.txt"), batches);
    assert_int_equal(compare_file(c, "tests/golden/replay.txt"), batches);
    assert_true(batches >= 50);
    for (size_t i = 0; i < GR_LEN(c->compared); i++) /* the optimal token baseline where there are no tools */
        assert_true(c->compared[i] == batches || (i == 13 && c->compared[i] == batches / 2));
    close_catalogue(c);
    free(c);
}

/* ---- splits -----------------------------------------------------------------------------------------------
 */

/* Cut n tokens into `parts` ranges; at the ends of sequences where the loss couples them. */
static void cut_tokens(const batch *b, bool whole_sequences, uint32_t parts, uint32_t *cut)
{
    for (uint32_t i = 0; i <= parts; i++) {
        cut[i] = b->n_tokens * i / parts;
        uint32_t seq = 0;
        while (b->offset[seq] < cut[i]) seq++;
        if (whole_sequences) cut[i] = b->offset[seq];
    }
}

static void test_any_number_of_micro_batches_gives_the_same_bits(void **state)
{
    static const uint32_t parts[] = {2, 3, 8};
    static const char *const more[] = {"online_dpo", "dpo", "tr_dpo", "grpo", "sft", "crossroads"};
    (void)state;
    uint32_t cut[9];
    float whole[MAX_TOKENS], split[MAX_TOKENS];
    batch b;
    for (size_t i = 0; i < GR_LEN(losses) + GR_LEN(more); i++) {
        const loss_case *l = i < GR_LEN(losses) ? &losses[i] : NULL;
        bench *x =
            bench_new(l ? l->file : more[i - GR_LEN(losses)], l ? l->text : NULL, l ? l->settings : NULL);
        const gr_loss *loss = loss_of(x->g, l ? l->node : NULL);
        for (uint32_t number = 0; number < 52; number++) {
            draw_batch(&b, number);
            use_batch(x, &b);
            memset(whole, 0, sizeof(whole));
            loss_gradient(x, loss, (const uint32_t[]){0, b.n_tokens}, 1, whole);
            double value = loss_value(x, loss);
            for (size_t k = 0; k < GR_LEN(parts) && gr_loss_class_of(loss) != GR_LOSS_BATCH; k++) {
                memset(split, 0, sizeof(split));
                cut_tokens(&b, gr_loss_class_of(loss) == GR_LOSS_SEQ, parts[k], cut);
                loss_gradient(x, loss, cut, parts[k], split);
                assert_memory_equal(whole, split, sizeof(whole));
                assert_true(loss_value(x, loss) == value);
            }
        }
        bench_free(x);
    }
}

/* ---- by hand ----------------------------------------------------------------------------------------------
 */

static void expect_hand(const char *file, const char *settings, uint32_t per_group, const int *lengths,
                        const double *score, const double *want)
{
    float got[MAX_TOKENS];
    bench *x = bench_new(file, NULL, settings);
    batch b = hand_batch(per_group, lengths, score);
    use_batch(x, &b);
    values_of(x, "advantage", got);
    for (uint32_t i = 0; i < b.n_rows; i++)
        if (!near((double)got[b.offset[i]], want[i]))
            fail_msg("%s [%u]: got %.9g, want %.9g", file, i, (double)got[b.offset[i]], want[i]);
    bench_free(x);
}

static const int four[] = {1, 2, 3, 4, -1}, one[] = {2, -1};

static void test_one_right_of_four(void **state)
{
    static const double reward[] = {1, 0, 0, 0};
    (void)state;
    expect_hand("grpo", NULL, 4, four, reward, (const double[]){1.499997, -0.499999, -0.499999, -0.499999});
    expect_hand("rloo", NULL, 4, four, reward, (const double[]){1, -1.0 / 3, -1.0 / 3, -1.0 / 3});
    expect_hand("dr_grpo", NULL, 4, four, reward, (const double[]){0.75, -0.25, -0.25, -0.25});
    expect_hand("grpo_passk", NULL, 4, four, reward, (const double[]){1 / 0.500001, 0, 0, 0});
    expect_hand("gpg", NULL, 4, four, reward, (const double[]){3, -1, -1, -1});
}

static void test_a_group_of_one(void **state)
{
    static const double reward[] = {1};
    (void)state;
    expect_hand("grpo", NULL, 1, one, reward, (const double[]){0.999999});
    expect_hand("rloo", NULL, 1, one, reward, (const double[]){1});
    expect_hand("rloo", "alone=0", 1, one, reward, (const double[]){0});
    expect_hand("opo", NULL, 1, one, reward, (const double[]){1});
    expect_hand("gpg", NULL, 1, one, reward, (const double[]){1});
    expect_hand("grpo_passk", NULL, 1, one, reward, (const double[]){0}); /* verl raises */
}

static void test_equal_rewards_have_exactly_no_advantage(void **state)
{
    static const char *const files[] = {"grpo", "rloo", "opo", "gpg", "grpo_passk", "dr_grpo"};
    (void)state;
    batch b = hand_batch(4, four, (const double[]){0.1, 0.1, 0.1, 0.1});
    for (size_t i = 0; i < GR_LEN(files); i++) {
        float got[MAX_TOKENS];
        bench *x = bench_new(files[i], NULL, NULL);
        use_batch(x, &b);
        values_of(x, "advantage", got);
        for (uint32_t t = 0; t < b.n_tokens; t++) assert_true(got[t] == 0);
        bench_free(x);
    }
}

static void test_opo_weighs_by_length(void **state)
{
    static const int lengths[] = {10, 30, -1}, empty[] = {0, 0, 1, -1};
    (void)state;
    expect_hand("opo", NULL, 2, lengths, (const double[]){1, 0}, (const double[]){0.75, -0.25});
    expect_hand("opo", NULL, 3, empty, (const double[]){1, 1, 2},
                (const double[]){0, 0, 0}); /* b = 2, on row 2 */
}

/* Which rows the selection of a graph keeps. */
static void expect_selected(const char *file, const char *node, const char *settings, uint32_t per_group,
                            const double *score, const float *want)
{
    static const int lengths[] = {1, 2, 3, 1, 2, 1, -1};
    float got[MAX_ROWS];
    bench *x = bench_new(file, NULL, settings);
    batch b = hand_batch(per_group, lengths, score);
    use_batch(x, &b);
    const gr_node *n = gr_graph_node(x->g, node);
    eval(x, ((const gr_select_cfg *)n->cfg)->sequences.expr, GR_LEVEL_SEQ, (int)n->of->rows->index, got);
    assert_memory_equal(got, want, b.n_rows * sizeof(*got));
    bench_free(x);
}

static void test_raft_and_rest_keep_the_best(void **state)
{
    (void)state;
    expect_selected("raft", "best", NULL, 3, (const double[]){0.5, 1, 1, 0, 0, 0},
                    (const float[]){0, 1, 0, 0, 0, 0});
    expect_selected("rest_em", "right", "most=2", 6, (const double[]){1, 0, 1, 0.4, 1, 1},
                    (const float[]){1, 0, 1, 0, 0, 0});
    expect_selected("rest_em", "right", NULL, 3, (const double[]){1, 1, 1, 0, 0, 1},
                    (const float[]){1, 1, 1, 0, 0, 1});
}

static void test_controllers_lead_to_their_targets(void **state)
{
    (void)state;
    bench *x = bench_new("length_control", NULL, "target=2 pace=0.1");
    batch b = hand_batch(2, four, (const double[]){1, 0, 1, 1});
    set_scalar(x, "state.price", 0.2);
    use_batch(x, &b); /* 2.5 tokens on average */
    assert_true(near(eval_scalar(x, x->g->state[0].next), 0.2 * exp(0.1 * 0.25)));
    bench_free(x);
    x = bench_new("curriculum", NULL, "pace=5 gain=2 goal=0.5");
    set_scalar(x, "state.level", 30);
    use_batch(x, &b); /* three of four are right */
    assert_true(near(eval_scalar(x, x->g->state[0].next), 30 + 5 * tanh(2 * 0.25)));
    set_scalar(x, "state.level", 99);
    assert_true(near(eval_scalar(x, x->g->state[0].next), 100));
    bench_free(x);
}

/* verl raises where a whitening has one token; here it has no deviation, and the result is 0. */
static void test_one_token_is_whitened_to_nothing(void **state)
{
    static const int single[] = {1, -1};
    (void)state;
    expect_hand("reinforce_plus_plus", NULL, 1, single, (const double[]){3}, (const double[]){0});
    expect_hand("reinforce_plus_plus_baseline", NULL, 1, single, (const double[]){3}, (const double[]){0});
}

/* The first closed span counts, both of its ids included; an open one, or none, gives no bonus. */
static void test_entropy_of_the_first_closed_span_is_a_bonus(void **state)
{
    static const int lengths[] = {6, 3, 2, 4, -1};
    static const double reward[] = {1, 0, 1, 0}, id[] = {9, 7, 1, 8, 7, 8, 7, 1, 1, 8, 1, 8, 7, 8, 1},
                        entropy[] = {9, 0.1, 0.2, 0.3, 9, 9, 9, 9, 9, 9, 9, 9, 5, 5, 9};
    (void)state;
    float got[MAX_TOKENS];
    bench *x = bench_new("egpo", NULL, NULL);
    batch b = hand_batch(2, lengths, reward);
    memcpy(b.id, id, sizeof(id));
    memcpy(b.entropy, entropy, sizeof(entropy));
    set_scalar(x, "token(\"<think>\")", 7);
    set_scalar(x, "token(\"</think>\")", 8);
    use_batch(x, &b);
    values_of(x, "advantage", got);
    double a = 0.5 / (sqrt(0.5) + 1e-6);
    const double want[] = {a + 0.4 * 0.2, -a, a, -a + 0.4 * a / 2}; /* the last one's 5 is cut at a / 2 */
    for (uint32_t i = 0; i < 4; i++) assert_true(near((double)got[b.offset[i]], want[i]));
    bench_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graph_files_agree_with_verl_and_the_papers),
        cmocka_unit_test(test_any_number_of_micro_batches_gives_the_same_bits),
        cmocka_unit_test(test_one_right_of_four),
        cmocka_unit_test(test_a_group_of_one),
        cmocka_unit_test(test_equal_rewards_have_exactly_no_advantage),
        cmocka_unit_test(test_opo_weighs_by_length),
        cmocka_unit_test(test_raft_and_rest_keep_the_best),
        cmocka_unit_test(test_controllers_lead_to_their_targets),
        cmocka_unit_test(test_one_token_is_whitened_to_nothing),
        cmocka_unit_test(test_entropy_of_the_first_closed_span_is_a_bonus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
