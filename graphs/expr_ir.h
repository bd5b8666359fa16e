/* graphs/expr_ir.h: instructions of compiled expressions: one static assignment each, with a level.
 *
 * A gr_ir is a list of instructions whose arguments come earlier; equal instructions are one. An argument may
 * be of a coarser level than the instruction: it broadcasts. The evaluator (expr_eval.c) walks it, and a code
 * generator for a device can do the same.
 */
#ifndef GR_GRAPHS_EXPR_IR_H
#define GR_GRAPHS_EXPR_IR_H

#include "graphs/expr.h"

/* name, number of arguments. Up to CLIP: pointwise, at the finest level of the arguments. Tokens whose mask
 * is 0 are skipped by everything after CLIP. */
#define GR_IR_OPS(X)                                                                                       \
    X(CONST, 0)                                                                                            \
    X(SYM, 0)  /* a column: id */                                                                          \
    X(STOP, 1) /* the argument; no derivative */                                                           \
    X(NEG, 1)                                                                                              \
    X(NOT, 1)                                                                                              \
    X(EXP, 1)                                                                                              \
    X(LOG, 1)                                                                                              \
    X(ABS, 1)                                                                                              \
    X(SQRT, 1)                                                                                             \
    X(FLOOR, 1)                                                                                            \
    X(SIGMOID, 1)                                                                                          \
    X(TANH, 1)                                                                                             \
    X(ADD, 2)                                                                                              \
    X(SUB, 2)                                                                                              \
    X(MUL, 2)                                                                                              \
    X(MULZ, 2) /* 0 where the first argument is 0, whatever the second: the chain rule's product */        \
    X(DIV, 2)                                                                                              \
    X(POW, 2)                                                                                              \
    X(MIN, 2)                                                                                              \
    X(MAX, 2)                                                                                              \
    X(LT, 2)                                                                                               \
    X(LE, 2)                                                                                               \
    X(EQ, 2)                                                                                               \
    X(NE, 2)                                                                                               \
    X(AND, 2)                                                                                              \
    X(OR, 2)                                                                                               \
    X(WHERE, 3)                                                                                            \
    X(PASS, 3) /* that k (third) of n (first), of which c are right, hold a right one */                   \
    X(CLIP, 3)                                                                                             \
    X(SUM, 2)       /* x, mask or -1: from level `from` to `level` */                                      \
    X(AMAX, 2)      /* the same; -infinity where there is nothing */                                       \
    X(SCAN_FWD, 2)  /* y[t] = x[t] + gamma[t - 1] * y[t - 1], over the tokens of a sequence */             \
    X(SCAN_BACK, 2) /* y[t] = x[t] + gamma[t] * y[t + 1] */                                                \
    X(NEXT, 2)      /* x[t + 1], or fill */                                                                \
    X(PREV, 2)      /* x[t - 1], or fill */                                                                \
    X(AT_LAST, 1)   /* sequence to token: x at the last token, 0 elsewhere */                              \
    X(LAST, 1)      /* token to sequence: x of the last token, 0 where there is none */                    \
    X(NTH, 1)    /* token to token: sum over the group's tokens that are the n-th of their sequence too */ \
    X(RANK, 1)   /* sequences of the group with a larger value, or an equal one earlier */                 \
    X(TOP, 3)    /* x, k, cond: 1 for the k largest where cond */                                          \
    X(CHOOSE, 2) /* cond, k: 1 for k random ones; id: number of the draw */                                \
    X(RANDOM, 0) /* uniform in (0, 1); id: number of the draw */

typedef enum gr_ir_op {
#define X(name, n) GR_IR_##name,
    GR_IR_OPS(X)
#undef X
        GR_IR_N_OPS
} gr_ir_op;

typedef struct gr_ir_node {
    gr_ir_op op;
    gr_level level, from; /* from: SUM and AMAX, else = level */
    int rows;             /* row set of `from`, or of level; -1 at scalar and group level */
    int arg[3];           /* instructions, -1: absent */
    int id;               /* SYM: the column; CHOOSE, RANDOM: which draw */
    double value;         /* CONST */
    bool fresh;           /* depends on a value of this pass, differentiably or not */
    gr_loc at;            /* not part of its identity */
    const char *src;      /* the user's words it came from */
} gr_ir_node;

typedef struct gr_ir {
    gr_pool *pool;
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

/* Add an instruction, fold it, or find its equal; returns its index. Absent arguments are -1. */
int gr_ir_const(gr_ir *ir, double value);
int gr_ir_sym(gr_ir *ir, gr_level level, int rows, int id, bool fresh);
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
