/* graphs/expr/expr.c: an expression that is computed as it stands: compute, select, state, when, log. */
#include <stdlib.h>

#include "graphs/expr/expr_ast.h"

gr_status gr_expr_compile(gr_expr *e, const gr_expr_scope *scope, gr_diag *d)
{
    gr_diag own;
    gr_diag_init(&own);
    if (!d) d = &own;
    size_t before = d->n_errors;
    gr_expr_values b = {0};
    e->ir = gr_ir_new();
    e->values = gr_calloc(e->n_lines, sizeof(*e->values));
    gr_expr_lower(e, scope, e->ir, &b, e->values, d);
    gr_status st = d->n_errors == before ? GR_OK : GR_E_INVALID;
    if (st == GR_OK) {
        gr_expr_values_warn_unused(&b, d);
        e->program = gr_ir_program_new(e->ir, &e->values[e->n_lines - 1].node, 1, NULL);
        e->reads = gr_ir_program_reads(e->program, &e->n_reads);
        e->row_sets = gr_ir_program_rows(e->program, &e->n_row_sets);
    }
    free(b.items);
    gr_diag_release(&own);
    return st;
}

static const gr_typed *result(const gr_expr *e)
{
    return &e->values[e->n_lines - 1];
}

gr_level gr_expr_level(const gr_expr *e)
{
    return result(e)->level;
}

gr_kind gr_expr_kind(const gr_expr *e)
{
    return result(e)->kind;
}

int gr_expr_rows_id(const gr_expr *e)
{
    return result(e)->rows;
}

bool gr_expr_constant(const gr_expr *e, double *value)
{
    const gr_ir_node *n = &e->ir->nodes[result(e)->node];
    if (n->op != GR_IR_CONST) return false;
    *value = n->value;
    return true;
}

const int *gr_expr_reads(const gr_expr *e, size_t *n)
{
    *n = e->n_reads;
    return e->reads;
}

const int *gr_expr_row_sets(const gr_expr *e, size_t *n)
{
    *n = e->n_row_sets;
    return e->row_sets;
}

bool gr_expr_compares_groups(const gr_expr *e)
{
    return e->ir->compares_groups;
}

void gr_expr_explain_line(const char *name, gr_typed v, gr_str *out)
{
    gr_str_printf(out, "%s: one %s", name ? name : "result", v.kind == GR_KIND_BOOL ? "condition" : "number");
    if (v.level != GR_LEVEL_SCALAR) gr_str_printf(out, " a %s", gr_level_str(v.level));
}

void gr_expr_explain(const gr_expr *e, gr_str *out)
{
    for (size_t i = 0; i < e->n_lines; i++) {
        gr_expr_explain_line(e->lines[i].name, e->values[i], out);
        gr_str_putc(out, '\n');
    }
}

void gr_expr_print(const gr_expr *e, gr_str *out)
{
    gr_ir_program_print(e->program, out);
    gr_str_printf(out, "result %%%d\n", result(e)->node);
}

uint64_t gr_expr_bytes(const gr_expr *e, gr_expr_bounds bounds)
{
    return gr_ir_program_bytes(e->program, bounds, bounds.groups);
}

void gr_expr_eval(const gr_expr *e, const gr_expr_env *env, gr_level level, int rows, float *out, void *work)
{
    gr_ir_run r;
    gr_ir_run_whole(&r, e->program, env, (gr_ir_frame){0}, work);
    gr_ir_output(&r, result(e)->node, level, rows, out);
}

double gr_expr_scalar(const gr_expr *e, const gr_expr_env *env, void *work)
{
    gr_ir_run r;
    gr_ir_run_whole(&r, e->program, env, (gr_ir_frame){0}, work);
    return gr_ir_output_scalar(&r, result(e)->node);
}
