/* tests/unit/expr_batch.h: a small batch with named columns, for tests of expressions and losses. */
#ifndef GR_TESTS_EXPR_BATCH_H
#define GR_TESTS_EXPR_BATCH_H

#include "graphs/expr/loss.h"
#include "tests/unit/test.h"

enum { MAX_COLUMNS = 32, MAX_TOKENS = 256 };

typedef struct batch_column {
    const char *name;
    gr_expr_symbol symbol;
    float data[MAX_TOKENS];
} batch_column;

typedef struct batch {
    uint32_t n_groups, n_seqs, n_tokens;
    uint32_t group[64], offset[65];
    uint8_t mask[MAX_TOKENS];
    batch_column columns[MAX_COLUMNS];
    size_t n_columns;
    const char *names[MAX_COLUMNS];
    gr_expr_column views[MAX_COLUMNS];
    gr_expr_rows rows[2]; /* 1: of another node, with the same sequences */
    gr_expr_scope scope;
    gr_expr_env env;
    gr_diag d;
} batch;

static inline bool batch_resolve(void *user, const char *name, gr_expr_symbol *out)
{
    const batch *b = user;
    for (size_t i = 0; i < b->n_columns; i++) {
        if (strcmp(b->columns[i].name, name)) continue;
        if (out) *out = b->columns[i].symbol;
        return true;
    }
    return false;
}

static inline bool batch_token(void *user, const char *text, gr_expr_symbol *out)
{
    (void)user;
    if (strcmp(text, "<think>")) return false;
    *out = (gr_expr_symbol){.constant = true, .value = 7, .rows = -1};
    return true;
}

static inline const char *batch_rows_name(void *user, int rows)
{
    (void)user;
    return rows ? "greedy" : "rollout";
}

/* lengths: of each sequence, ending with -1; per_group sequences a group. */
static inline batch *batch_new(uint32_t per_group, const int *lengths)
{
    batch *b = calloc(1, sizeof(*b));
    for (; lengths[b->n_seqs] >= 0; b->n_seqs++) {
        b->group[b->n_seqs] = b->n_seqs / per_group;
        b->offset[b->n_seqs + 1] = b->offset[b->n_seqs] + (uint32_t)lengths[b->n_seqs];
    }
    b->n_groups = (b->n_seqs + per_group - 1) / per_group;
    b->n_tokens = b->offset[b->n_seqs];
    memset(b->mask, 1, sizeof(b->mask));
    for (int i = 0; i < 2; i++) b->rows[i] = (gr_expr_rows){b->n_seqs, b->group, b->offset, b->mask, 0};
    b->scope = (gr_expr_scope){.user = b,
                               .resolve = batch_resolve,
                               .token = batch_token,
                               .rows_name = batch_rows_name,
                               .names = b->names};
    b->env =
        (gr_expr_env){.rows = b->rows, .columns = b->views, .n_groups = b->n_groups, .seed = 1, .node = 2};
    gr_diag_init(&b->d);
    return b;
}

static inline void batch_free(batch *b)
{
    gr_diag_release(&b->d);
    free(b);
}

static inline size_t batch_count(const batch *b, gr_level level)
{
    const size_t n[] = {1, b->n_groups, b->n_seqs, 0, b->n_tokens};
    return n[level];
}

static inline float *batch_add(batch *b, const char *name, gr_level level, bool current)
{
    batch_column *c = &b->columns[b->n_columns];
    int id = (int)b->n_columns++;
    c->name = b->names[id] = name;
    b->scope.n_names = b->n_columns;
    c->symbol = (gr_expr_symbol){.level = level, .rows = 0, .current = current, .id = id};
    b->views[id] = (gr_expr_column){c->data, GR_EXPR_F32};
    return c->data;
}

static inline float *batch_set(batch *b, const char *name, gr_level level, const double *values)
{
    float *x = batch_add(b, name, level, false);
    for (size_t i = 0; i < batch_count(b, level); i++) x[i] = (float)values[i];
    return x;
}

static inline void batch_param(batch *b, const char *name, double value)
{
    batch_add(b, name, GR_LEVEL_SCALAR, false);
    b->columns[b->n_columns - 1].symbol.constant = true;
    b->columns[b->n_columns - 1].symbol.value = value;
}

/* Deterministic numbers in (lo, hi). */
static inline double batch_noise(uint32_t stream, uint32_t i, double lo, double hi)
{
    uint32_t out[4];
    gr_philox(42, stream, (const uint32_t[4]){i, 0, 0, 0}, out);
    return lo + (hi - lo) * (double)gr_uniform(out[0]);
}

static inline float *batch_random(batch *b, const char *name, gr_level level, bool current, double lo,
                                  double hi)
{
    float *x = batch_add(b, name, level, current);
    for (size_t i = 0; i < batch_count(b, level); i++) {
        x[i] = (float)batch_noise((uint32_t)b->n_columns, (uint32_t)i, lo, hi);
    }
    return x;
}

/* What losses of the tests read: fresh values, and columns of each level. */
static inline void batch_loss_columns(batch *b)
{
    batch_random(b, "logprob", GR_LEVEL_TOKEN, true, -2.5, -0.05);
    batch_random(b, "entropy", GR_LEVEL_TOKEN, true, 0.1, 2);
    batch_random(b, "value", GR_LEVEL_TOKEN, true, -1, 1);
    batch_random(b, "old_logprob", GR_LEVEL_TOKEN, false, -2.5, -0.05);
    batch_random(b, "ref_logprob", GR_LEVEL_TOKEN, false, -2.5, -0.05);
    batch_random(b, "advantage", GR_LEVEL_SEQ, false, -2, 2);
    batch_random(b, "adv", GR_LEVEL_TOKEN, false, -2, 2);
    batch_random(b, "values", GR_LEVEL_TOKEN, false, -1, 1);
    batch_random(b, "returns", GR_LEVEL_TOKEN, false, -1, 1);
    batch_random(b, "pg", GR_LEVEL_GROUP, false, -1, 1);
}

static inline gr_expr_bounds batch_bounds(const batch *b)
{
    return (gr_expr_bounds){b->n_groups, b->n_seqs, b->n_tokens};
}

static inline void batch_show(batch *b)
{
    for (size_t i = 0; i < b->d.n; i++) {
        char *text = gr_message_format(&b->d.messages[i]);
        print_message("%s\n", text);
        free(text);
    }
}

static inline gr_expr *batch_parse(batch *b, const char *text)
{
    gr_expr *e = NULL;
    gr_expr_source src = {text, {"t.yaml", 1, 1}, 0};
    if (gr_expr_parse(&e, &src, &b->d) != GR_OK) batch_show(b);
    assert_non_null(e);
    return e;
}

static inline gr_expr *batch_compile(batch *b, const char *text)
{
    gr_expr *e = batch_parse(b, text);
    if (gr_expr_compile(e, &b->scope, &b->d) != GR_OK) {
        batch_show(b);
        fail_msg("'%s' does not compile", text);
    }
    return e;
}

/* Evaluate text at a level; the workspace is exactly as large as it says, so that ASan sees any excess. */
static inline void batch_eval(batch *b, const char *text, gr_level level, float *out)
{
    gr_expr *e = batch_compile(b, text);
    void *work = malloc(gr_expr_bytes(e, batch_bounds(b)) + 1);
    gr_expr_eval(e, &b->env, level, level >= GR_LEVEL_SEQ ? 0 : -1, out, work);
    free(work);
    gr_expr_free(e);
}

static inline double batch_scalar(batch *b, const char *text)
{
    gr_expr *e = batch_compile(b, text);
    void *work = malloc(gr_expr_bytes(e, batch_bounds(b)) + 1);
    double v = gr_expr_scalar(e, &b->env, work);
    free(work);
    gr_expr_free(e);
    return v;
}

static inline void batch_expect(batch *b, const char *text, gr_level level, const double *want)
{
    float got[MAX_TOKENS];
    batch_eval(b, text, level, got);
    for (size_t i = 0; i < batch_count(b, level); i++) {
        if (!(fabs((double)got[i] - want[i]) <= 1e-6 + 1e-6 * fabs(want[i]))) {
            fail_msg("%s [%zu]: got %.9g, want %.9g", text, i, (double)got[i], want[i]);
        }
    }
}

/* ---- losses -------------------------------------------------------------------------------------------- */

static inline gr_loss *batch_loss(batch *b, const char *text)
{
    gr_expr *e = batch_parse(b, text);
    gr_loss *l = NULL;
    if (gr_loss_new(&l, e, NULL, 0, &b->scope, &b->d) != GR_OK) batch_show(b);
    gr_expr_free(e);
    if (!l) fail_msg("'%s' does not compile", text);
    return l;
}

static inline double batch_loss_value(batch *b, const gr_loss *l)
{
    double v;
    gr_expr_bounds all = batch_bounds(b);
    void *work = malloc(gr_loss_work_bytes(l, GR_LOSS_VALUE, all, all) + 1);
    gr_loss_value(l, &b->env, &v, work);
    free(work);
    return v;
}

/* Adjoints by each fresh column, in cuts [cut[i], cut[i + 1]) of the tokens; out[i] has room for all tokens.
 */
static inline void batch_adjoint(batch *b, const gr_loss *l, const uint32_t *cut, size_t n_cuts,
                                 float *const *out)
{
    gr_expr_bounds all = batch_bounds(b);
    void *store = malloc(gr_loss_store_bytes(l, all) + 1);
    void *work = malloc(gr_loss_work_bytes(l, GR_LOSS_PREPARE, all, all) + 1);
    gr_loss_prepare(l, &b->env, store, work);
    free(work);
    for (size_t i = 0; i < n_cuts; i++) {
        gr_expr_bounds range = {0, b->n_seqs, cut[i + 1] - cut[i]};
        work = malloc(gr_loss_work_bytes(l, GR_LOSS_ADJOINT, all, range) + 1);
        gr_loss_adjoint(l, &b->env, store, cut[i], cut[i + 1], out, work);
        free(work);
    }
    free(store);
}

#endif
