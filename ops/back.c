/* ops/back.c: the op `back`: what is known of prompts that were made of rows (`prompts` with `of`), as a
 * value of each of these rows.
 *
 * Such prompts are one for each sequence, in their order; so a number for each of them is a number for each
 * sequence as it stands.
 */
#include "ops/base/configs.h"
#include "ops/base/rows.h"
#include "ops/base/session.h"
#include "ops/env.h"

#include <stdlib.h>
#include <string.h>

#define CFG(f) offsetof(gr_compute_cfg, f)

static const gr_key keys[] = {
    {"of", GR_KEY_NODE, CFG(of), true, NULL, 0, 0, NULL, "the rows that prompts were made of"},
    {"expr", GR_KEY_EXPR, CFG(expr), true, NULL, 0, 0, NULL, "a number for each of these prompts"},
    {0}};

static const gr_field fields[] = {{"value", GR_LEVEL_SEQ, GR_KIND_NUMBER, GR_EXPR_F32,
                                   "the expression's value of the prompt made of each sequence"},
                                  {0}};

static const gr_expr *expr_of(const gr_node *n)
{
    return ((const gr_compute_cfg *)n->cfg)->expr.expr;
}

static gr_kind kind_back(const gr_node *n)
{
    return gr_expr_kind(expr_of(n));
}

/* Whose prompts the expression is about; NULL: nobody's. */
static const gr_node *prompts_of(const gr_graph *g, const gr_node *n)
{
    size_t count;
    const int *ids = gr_expr_reads(expr_of(n), &count);
    for (size_t i = 0; i < count; i++)
        if (g->columns[ids[i]]->node && g->columns[ids[i]]->rows) return g->columns[ids[i]]->node->groups;
    return NULL;
}

static void check_back(gr_graph *g, gr_node *n, gr_diag *d)
{
    const gr_expression *e = &((const gr_compute_cfg *)n->cfg)->expr;
    const gr_level level = gr_expr_level(e->expr);
    const gr_node *from = prompts_of(g, n);
    if (level != GR_LEVEL_GROUP)
        gr_diag_error(
            d, e->at, GR_E_INVALID,
            "'expr' of op back must be one number a prompt, not one %s: reduce it, e.g. with group_mean()",
            level == GR_LEVEL_SCALAR ? "an iteration"
            : level == GR_LEVEL_SEQ  ? "a sequence"
                                     : "a token");
    else if (!from || strcmp(from->op->name, "prompts") || !from->of || from->of->rows != n->rows)
        gr_diag_error(
            d, e->at, GR_E_INVALID,
            "'expr' must be about prompts that were made of the rows of '%s' (op prompts with of: %s), and "
            "of all of them",
            n->of->name, n->of->name);
}

enum { BACK_OUT, BACK_WS, N_BACK }; /* operands; behind them what the expression reads */

static void declare_back(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                         gr_tasks *p)
{
    (void)how;
    (void)k;
    if (!n->results.n_columns) return; /* kept for its metrics or its order alone */
    gr_env_reads r;
    gr_env_reads_init(&r);
    gr_env_reads_add(&r, g, expr_of(n));
    gr_use *uses = gr_arena_alloc(p->arena, (N_BACK + gr_env_uses(&r)) * sizeof(*uses));
    const uint64_t ws = gr_expr_bytes(expr_of(n), gr_env_bounds(&r));
    uses[BACK_OUT] = (gr_use){gr_column_object(p, n->results.columns[0]), GR_WRITE};
    uses[BACK_WS] = (gr_use){gr_tasks_value(p, GR_CAT_WORKSPACE, ws, "ws"), GR_WRITE};
    const size_t n_uses = N_BACK + gr_env_declare(&r, g, p, uses + N_BACK);
    gr_tasks_waits(gr_tasks_run(p, 0, 0, uses, n_uses, "eval"));
    gr_env_reads_release(&r);
}

typedef struct back_state {
    gr_env_reads reads;
    gr_env env;
    int prompts; /* index of the node */
} back_state;

static gr_status open_back(gr_session *s, const gr_node *n, void **state, gr_diag *d)
{
    (void)d;
    back_state *t = gr_calloc(1, sizeof(*t));
    gr_env_reads_add(&t->reads, s->graph, expr_of(n));
    gr_env_open(&t->env, &t->reads, s, n);
    t->prompts = (int)prompts_of(s->graph, n)->index;
    *state = t;
    return GR_OK;
}

static void close_back(void *state)
{
    back_state *t = state;
    gr_env_close(&t->env);
    gr_env_reads_release(&t->reads);
    free(t);
}

static gr_status run_back(const gr_call *call, gr_diag *d)
{
    const gr_status st = gr_queue_finish(call->queue, d); /* the columns it reads */
    if (st) return st;
    back_state *t = call->state;
    gr_env_begin(&t->env, call->ptr + N_BACK);
    gr_expr_eval(expr_of(call->node), &t->env.env, GR_LEVEL_GROUP, t->prompts, call->ptr[BACK_OUT],
                 call->ptr[BACK_WS]);
    return GR_OK;
}

const gr_op gr_op_back = {
    .name = "back",
    .summary = "values of prompts that were made of rows, for these rows",
    .doc = "What a judge says of a response, for the response: `expr` is a number for each prompt that "
           "`prompts` "
           "with `of` made, and becomes one for each sequence.",
    .lane = GR_LANE_COMPUTE,
    .returns = true,
    .cfg_bytes = sizeof(gr_compute_cfg),
    .keys = keys,
    .fields = fields,
    .check = check_back,
    .kind = kind_back,
    .declare = declare_back,
    .open = open_back,
    .close = close_back,
    .run = run_back,
};
