/* graphs/expr/code_new.h: make the passes of graphs/expr/code.h from instructions of an expression.
 */
#ifndef GR_GRAPHS_EXPR_CODE_NEW_H
#define GR_GRAPHS_EXPR_CODE_NEW_H

#include "graphs/expr/code.h"
#include "graphs/expr/expr_ir.h"

typedef struct gr_code {
    gr_code_pass *passes;
    size_t n;
    unsigned n_slots[GR_CODE_LEVELS];
} gr_code;

/* What is asked for: instruction `node`, put at `to`: KEPT, at its own level, or OUT, at token or scalar
 * level. */
typedef struct gr_code_goal {
    int node, rows; /* rows: row set of OUT at token level */
    gr_code_arg to;
} gr_code_goal;

/* kept[i] > 0: instruction i is not computed but read from slot kept[i] - 1 of the store; NULL: none is.
 * Every instruction that expressions have can be run. From ir's pool. */
gr_code *gr_code_new(const gr_ir *ir, const gr_code_goal *goals, size_t n_goals, const unsigned *kept);

void gr_code_print(const gr_code *c, gr_str *out);

#endif
