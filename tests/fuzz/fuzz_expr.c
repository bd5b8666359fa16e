/* Any text through the parser, the checker and, where it compiles, the evaluator: no crash, no stray access.
 */
#include <stdlib.h>
#include <string.h>

#include "graphs/expr/loss.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const gr_expr_symbol symbols[] = {
    {.level = GR_LEVEL_TOKEN, .current = true, .id = 0},
    {.level = GR_LEVEL_TOKEN, .id = 1},
    {.level = GR_LEVEL_SEQ, .id = 2},
    {.level = GR_LEVEL_GROUP, .id = 3},
    {.level = GR_LEVEL_SCALAR, .id = 4},
    {.level = GR_LEVEL_SEQ, .rows = 1, .id = 2},
    {.level = GR_LEVEL_SCALAR, .constant = true, .value = 0.2},
};
static const char *const names[] = {"logprob", "x", "s", "g", "step", "r", "$c"};

static bool resolve(void *user, const char *name, gr_expr_symbol *out)
{
    (void)user;
    for (size_t i = 0; i < GR_LEN(names); i++) {
        if (strcmp(names[i], name)) continue;
        if (out) *out = symbols[i];
        return true;
    }
    return false;
}

static const uint32_t group[] = {0, 0, 2}, offset[] = {0, 3, 3, 5};
static const uint8_t mask[] = {1, 0, 1, 1, 1};
static const float data_[] = {0.5f, -1, 2, 0, 1};
static const gr_expr_rows rows[] = {{3, group, offset, mask, 0}, {3, group, offset, NULL, 0}};
static const gr_expr_column columns[] = {{data_, GR_EXPR_F32},
                                         {data_, GR_EXPR_F32},
                                         {data_, GR_EXPR_F32},
                                         {data_, GR_EXPR_F32},
                                         {data_, GR_EXPR_F32}};
static const gr_expr_env env = {.rows = rows, .columns = columns, .n_groups = 3};
static const gr_expr_bounds bounds = {3, 3, 5};

static void evaluate(const gr_expr *e)
{
    float out[5];
    int r = gr_expr_rows_id(e);
    void *work = malloc(gr_expr_bytes(e, bounds) + 1);
    gr_level level = gr_expr_level(e) == GR_LEVEL_POSITION ? GR_LEVEL_TOKEN : gr_expr_level(e);
    gr_expr_eval(e, &env, level, r, out, work);
    free(work);
}

static void differentiate(const gr_expr *e, const gr_expr_scope *scope)
{
    gr_loss *l = NULL;
    if (gr_loss_new(&l, e, NULL, 0, scope, NULL) != GR_OK) return;
    float adjoint[5], *out = adjoint;
    double value;
    void *store = malloc(gr_loss_store_bytes(l, bounds) + 1);
    void *work[3];
    for (int s = 0; s < 3; s++) work[s] = malloc(gr_loss_work_bytes(l, (gr_loss_stage)s, bounds, bounds) + 1);
    gr_loss_prepare(l, &env, store, work[0]);
    gr_loss_adjoint(l, &env, store, 0, 5, &out, work[1]);
    gr_loss_value(l, &env, &value, work[2]);
    for (int s = 0; s < 3; s++) free(work[s]);
    free(store);
    gr_loss_free(l);
}

/* Functions of a file: one that adds, one that calls itself. */
static const gr_expr_custom *functions(void)
{
    static const char *const args[] = {"a", "b"}, *const texts[] = {"c = a + b\nseq_sum(c) * c",
                                                                    "knot(knot(a))"};
    static gr_expr_custom f[] = {{"add", args, 2, NULL}, {"knot", args, 1, NULL}};
    for (size_t i = 0; i < GR_LEN(f) && !f[i].body; i++) {
        gr_expr *body = NULL;
        gr_expr_source src = {texts[i], {"f", 1, 1}, 0};
        if (gr_expr_parse(&body, &src, NULL) != GR_OK) abort();
        f[i].body = body;
    }
    return f;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const gr_expr_scope scope = {.resolve = resolve,
                                 .names = names,
                                 .n_names = GR_LEN(names),
                                 .rows = 0,
                                 .functions = functions(),
                                 .n_functions = 2};
    char *text = gr_strndup((const char *)data, size);
    gr_expr_source src = {text, {"f", 1, 1}, 0};
    gr_expr *e = NULL;
    gr_diag d;
    gr_diag_init(&d);
    if (gr_expr_parse(&e, &src, &d) == GR_OK) {
        differentiate(e, &scope);
        if (gr_expr_compile(e, &scope, &d) == GR_OK) evaluate(e);
    }
    gr_expr_free(e);
    gr_diag_release(&d);
    free(text);
    return 0;
}
