/* graphs/expr/expr_ops.h: levels, types of columns and instructions of expressions: what device code knows of
 * them too.
 */
#ifndef GR_GRAPHS_EXPR_EXPR_OPS_H
#define GR_GRAPHS_EXPR_EXPR_OPS_H

typedef enum gr_level {
    GR_LEVEL_SCALAR,
    GR_LEVEL_GROUP, /* one drawn prompt: "prompt" in messages */
    GR_LEVEL_SEQ,
    GR_LEVEL_POSITION, /* (group, index of the token in its sequence) */
    GR_LEVEL_TOKEN,
} gr_level;

typedef enum gr_expr_dtype { GR_EXPR_F32, GR_EXPR_F64, GR_EXPR_I32, GR_EXPR_U8 } gr_expr_dtype;

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
    X(MOD, 2) /* what is left of a division whose quotient is rounded down: of the divisor's sign */       \
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
    X(REPEAT, 1) /* to token: x on each token */                                                           \
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

#endif
