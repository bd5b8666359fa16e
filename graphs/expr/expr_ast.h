/* graphs/expr/expr_ast.h: the parsed form of an expression; private to graphs/expr*.c and graphs/expr/loss.c.
 */
#ifndef GR_GRAPHS_EXPR_EXPR_AST_H
#define GR_GRAPHS_EXPR_EXPR_AST_H

#include "graphs/expr/expr.h"
#include "graphs/expr/expr_ir.h"

#define GR_AST_ARGS 8

typedef enum gr_ast_kind {
    GR_AST_NUMBER,
    GR_AST_BOOL,
    GR_AST_TEXT,
    GR_AST_NAME,
    GR_AST_OP,
    GR_AST_CALL
} gr_ast_kind;

typedef struct gr_ast {
    gr_ast_kind kind;
    gr_ir_op op;      /* GR_AST_OP */
    bool swap;        /* `a > b` is stored as `b < a`; args keep the written order */
    double number;    /* GR_AST_NUMBER, GR_AST_BOOL */
    const char *name; /* GR_AST_NAME, GR_AST_CALL, GR_AST_TEXT */
    struct gr_ast *arg[GR_AST_ARGS];
    unsigned n_args, depth;
    gr_loc at;
    const char *begin, *end; /* in gr_expr.text */
} gr_ast;

typedef struct gr_ast_line { /* `name = value`; name NULL: the result */
    const char *name;
    gr_loc at;
    gr_ast *value;
} gr_ast_line;

/* A checked value: an instruction and its type, which may be coarser than the type (a constant is a scalar).
 */
typedef struct gr_typed {
    int node; /* -1: an error was reported */
    gr_level level;
    gr_kind kind;
    int rows;
} gr_typed;

struct gr_expr {
    gr_arena *arena;
    char *text;
    gr_ast_line *lines; /* the last one is the result */
    size_t n_lines, cap_lines;
    gr_expr_name *names;
    size_t n_names, cap_names;
    /* after gr_expr_compile: */
    gr_ir *ir;
    gr_typed *values; /* of lines */
    gr_ir_program *program;
    int *reads;
    size_t n_reads;
    int *row_sets; /* likewise */
    size_t n_row_sets;
};

/* Named values visible while checking: those of the loss, for its metrics. */
typedef struct gr_expr_value {
    const char *name;
    gr_typed value;
    gr_loc at;
    bool used;
} gr_expr_value;

typedef struct gr_expr_values {
    gr_expr_value *items;
    size_t n, cap;
} gr_expr_values;

/* Check e and add its instructions to ir. values[n_lines] receives each line's type. Names defined by e are
 * added to b. Counts errors into d; the result's node is -1 where there were any in what it needs. */
void gr_expr_lower(const gr_expr *e, const gr_expr_scope *scope, gr_ir *ir, gr_expr_values *b,
                   gr_typed *values, gr_diag *d);
void gr_expr_values_warn_unused(const gr_expr_values *b, gr_diag *d);
void gr_expr_explain_line(const char *name, gr_typed v, gr_str *out); /* without newline */

#endif
