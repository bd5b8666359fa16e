/* ops/compute.c: the op `compute`: an expression over the whole batch becomes a column. */
#include "ops/base/configs.h"
#include "ops/env.h"
#include "ops/base/rows.h"
#include "ops/base/session.h"

#include <stdlib.h>

#define CFG(f) offsetof(gr_compute_cfg, f)

static const gr_key keys[] = {{"of", GR_KEY_NODE, CFG(of), false, NULL, 0, 0, NULL,
                               "rows of the result; default: those of the values it reads"},
                              {"expr", GR_KEY_EXPR, CFG(expr), true, NULL, 0, 0, NULL,
                               "the expression; reductions cover the whole batch"},
                              {0}};

static const gr_field fields[] = {
    {"value", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_F32, "the expression's value"}, {0}};

static gr_level level_compute(const gr_node *n)
{
    return gr_expr_level(((const gr_compute_cfg *)n->cfg)->expr.expr);
}

static gr_kind kind_compute(const gr_node *n)
{
    return gr_expr_kind(((const gr_compute_cfg *)n->cfg)->expr.expr);
}

enum { EVAL_OUT, EVAL_WS, N_EVAL }; /* operands; behind them what the expression reads */

static void declare_compute(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                            gr_tasks *p)
{
    (void)how;
    (void)k;
    if (!n->results.n_columns) return; /* kept for its metrics or its order alone */
    const gr_expr *e = ((const gr_compute_cfg *)n->cfg)->expr.expr;
    gr_env_reads r;
    gr_env_reads_init(&r);
    gr_env_reads_add(&r, g, e);
    gr_use *uses = gr_arena_alloc(p->arena, (N_EVAL + gr_env_uses(&r)) * sizeof(*uses));
    uses[EVAL_OUT] = (gr_use){gr_column_object(p, n->results.columns[0]), GR_WRITE};
    uses[EVAL_WS] =
        (gr_use){gr_tasks_value(p, GR_CAT_WORKSPACE, gr_expr_bytes(e, gr_env_bounds(&r)), "ws"), GR_WRITE};
    size_t n_uses = N_EVAL + gr_env_declare(&r, g, p, uses + N_EVAL);
    gr_tasks_waits(gr_tasks_run(p, 0, 0, uses, n_uses, "eval"));
    gr_env_reads_release(&r);
}

typedef struct compute_state {
    gr_env_reads reads;
    gr_env env;
} compute_state;

static gr_status open_compute(gr_session *s, const gr_node *n, void **state, gr_diag *d)
{
    (void)d;
    compute_state *t = gr_calloc(1, sizeof(*t));
    gr_env_reads_add(&t->reads, s->graph, ((const gr_compute_cfg *)n->cfg)->expr.expr);
    gr_env_open(&t->env, &t->reads, s, n);
    *state = t;
    return GR_OK;
}

static void close_compute(void *state)
{
    compute_state *t = state;
    gr_env_close(&t->env);
    gr_env_reads_release(&t->reads);
    free(t);
}

static gr_status run_compute(const gr_call *call, gr_diag *d)
{
    gr_status st = gr_queue_finish(call->queue, d); /* the columns it reads */
    if (st) return st;
    compute_state *t = call->state;
    const gr_node *n = call->node;
    gr_env_begin(&t->env, call->ptr + N_EVAL);
    gr_expr_eval(((const gr_compute_cfg *)n->cfg)->expr.expr, &t->env.env, n->results.columns[0]->level,
                 n->rows ? (int)n->rows->index : -1, call->ptr[EVAL_OUT], call->ptr[EVAL_WS]);
    return GR_OK;
}

const gr_op gr_op_compute = {
    .name = "compute",
    .summary = "an expression over the batch",
    .lane = GR_LANE_COMPUTE,
    .cfg_bytes = sizeof(gr_compute_cfg),
    .keys = keys,
    .fields = fields,
    .level = level_compute,
    .kind = kind_compute,
    .declare = declare_compute,
    .open = open_compute,
    .close = close_compute,
    .run = run_compute,
};
