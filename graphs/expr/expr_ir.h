/* graphs/expr/expr_ir.h: instructions of compiled expressions: one static assignment each, with a level.
 *
 * A gr_ir is a list of instructions whose arguments come earlier; equal instructions are one. An argument may
 * be of a coarser level than the instruction: it broadcasts. The evaluator (expr_eval.c) walks it; code.c
 * makes passes for a device of it.
 */
#ifndef GR_GRAPHS_EXPR_EXPR_IR_H
#define GR_GRAPHS_EXPR_EXPR_IR_H

#include "graphs/expr/expr.h"

typedef struct gr_ir_node {
    gr_ir_op op;
    gr_level level, from; /* from: SUM and AMAX, else = level */
    int rows;             /* row set of `from`, or of level; -1 at scalar and group level */
    int arg[3];           /* instructions, -1: absent */
    int id;               /* SYM: the column; CHOOSE, RANDOM: which draw */
    double value;         /* CONST */
    bool current;         /* depends on a value of this pass, differentiably or not */
    gr_loc at;            /* not part of its identity */
    const char *src;      /* the user's words it came from */
} gr_ir_node;

typedef struct gr_ir {
    gr_arena *arena;
    gr_ir_node *nodes;
    size_t n, cap;
    int *table; /* hash of instructions: index + 1 */
    size_t table_size;
    int n_draws, n_calls; /* calls of the file's own functions */
    bool compares_groups; /* has a mean, deviation or rank over a group's sequences */
    gr_loc at;            /* given to instructions added from here on, with src */
    const char *src;
} gr_ir;

gr_ir *gr_ir_new(void);
void gr_ir_free(gr_ir *ir);

const char *gr_ir_op_str(gr_ir_op op);
static inline bool gr_ir_pointwise(gr_ir_op op)
{
    return op > GR_IR_SYM && op <= GR_IR_CLIP;
}

/* The finest of two levels that both broadcast to it: sequence and position meet at token. */
gr_level gr_level_join(gr_level a, gr_level b);

/* Add an instruction, compute it if it is constant, or find its equal; returns its index. Absent arguments
 * are -1. */
int gr_ir_const(gr_ir *ir, double value);
int gr_ir_sym(gr_ir *ir, gr_level level, int rows, int id, bool current);
int gr_ir_op1(gr_ir *ir, gr_ir_op op, int a);
int gr_ir_op2(gr_ir *ir, gr_ir_op op, int a, int b);
int gr_ir_op3(gr_ir *ir, gr_ir_op op, int a, int b, int c);
int gr_ir_reduce(gr_ir *ir, gr_ir_op op, int x, int mask, gr_level from, int rows, gr_level to);
/* Those after AMAX: of a given level and row set. */
int gr_ir_rowwise(gr_ir *ir, gr_ir_op op, int a, int b, int c, gr_level level, int rows, int id);

double gr_ir_apply(gr_ir_op op, double a, double b, double c); /* one pointwise instruction */

/* Add the derivative of instruction y (a scalar) by each differentiable column it depends on. id[] and
 * adjoint[] (room for max) receive columns, ascending, and instructions. Returns their number. */
size_t gr_ir_differentiate(gr_ir *ir, int y, int *id, int *adjoint, size_t max);

/* ---- programs ----------------------------------------------------------------------------------------- */

typedef enum gr_ir_place { GR_IR_UNUSED, GR_IR_INLINE, GR_IR_SLOT, GR_IR_KEPT } gr_ir_place;

/* Instructions needed for some roots, in order, each with a slot of its level; slots are reused. */
typedef struct gr_ir_program {
    const gr_ir *ir;
    int *order;
    size_t n;
    unsigned char *place; /* [ir->n] */
    unsigned *slot;       /* [ir->n]: slot in the frame (SLOT), or in the store (KEPT) */
    unsigned n_slots[GR_LEVEL_TOKEN + 1];
    int *position_rows; /* row sets with position-level instructions */
    unsigned n_position_rows;
    bool sorts; /* has CHOOSE or TOP: needs room for a sort */
} gr_ir_program;

/* Memory of doubles, by level: n_slots[l] slots of count[l] elements. */
typedef struct gr_ir_frame {
    double *base;
    const unsigned *n_slots;
    uint64_t count[GR_LEVEL_TOKEN + 1];
} gr_ir_frame;
uint64_t gr_ir_frame_doubles(const unsigned *n_slots, const uint64_t *count);

/* kept[i] > 0: instruction i is not computed but read from slot kept[i] - 1 of the store. keep_roots: the
 * roots' slots are never reused. Allocates from ir's pool. */
gr_ir_program *gr_ir_program_new(gr_ir *ir, const int *roots, size_t n_roots, const unsigned *kept);
void gr_ir_program_print(const gr_ir_program *p, gr_str *out);
/* Column ids read, ascending, each once; from the pool. */
int *gr_ir_program_reads(const gr_ir_program *p, size_t *n);
int *gr_ir_program_rows(const gr_ir_program *p, size_t *n); /* row sets walked, likewise */

uint64_t gr_ir_program_bytes(const gr_ir_program *p, gr_expr_bounds range, uint32_t groups);

/* A run of a program: its memory, and the tokens [first, end) of the row sets (whole: all). */
typedef struct gr_ir_run {
    const gr_ir_program *p;
    const gr_expr_env *env;
    gr_ir_frame frame, store;
    bool whole;
    uint32_t first, end, first_seq, end_seq;
    uint32_t *position; /* [n_position_rows][n_groups + 1]: first position of each group */
    struct gr_ir_key {
        double key;
        uint32_t index;
    } * keys;
} gr_ir_run;

/* Lay out work, and evaluate. store: KEPT slots, or a zero frame. */
void gr_ir_run_whole(gr_ir_run *r, const gr_ir_program *p, const gr_expr_env *env, gr_ir_frame store,
                     void *work);
void gr_ir_run_range(gr_ir_run *r, const gr_ir_program *p, const gr_expr_env *env, gr_ir_frame store,
                     int rows, uint32_t first, uint32_t end, void *work);
/* Counts of elements by level of a whole evaluation: the largest row set. */
void gr_ir_counts(const gr_ir_program *p, const gr_expr_env *env, uint64_t *count);

/* Read a computed instruction as f32 at a level of a row set (masked tokens: 0); out is indexed absolutely.
 */
void gr_ir_output(const gr_ir_run *r, int node, gr_level level, int rows, float *out);
double gr_ir_output_scalar(const gr_ir_run *r, int node);
const double *gr_ir_slot(const gr_ir_frame *f, gr_level level, unsigned slot);

#endif
