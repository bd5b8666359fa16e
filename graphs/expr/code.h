/* graphs/expr/code.h: expressions compiled for a device that runs many threads: a few passes, each one
 * launch.
 *
 * A pass runs a short list of instructions for every element of one level, a thread each; between two passes
 * everything is written and visible. Instructions are put in the same pass wherever none reads what another
 * thread of it computes, so a loss over tokens whose reductions are known is one pass, and a mean over tokens
 * adds two: a partial for each sequence, and their sum in the order of the sequences. Results do not depend
 * on how tokens are cut into ranges. Everything is computed in double, as by graphs/expr/expr_eval.c, from
 * which results differ by rounding alone: sums within a sequence are taken in 32 strands, and a device has
 * its own exp and log.
 *
 * Instructions are interpreted, and no source is generated: so there is no compiler at run time and
 * nothing to cache. The list of a pass goes with its launch, in memory that every thread reads at the same
 * place at once. It is some dozens of operations a token, beside the billions of the model.
 *
 * The structures are plain and hold no pointers to the host, so that they can be arguments of a kernel.
 * graphs/expr/code_run.h runs them, on the host too; ops/loss_device.h drives a loss.
 */
#ifndef GR_GRAPHS_EXPR_CODE_H
#define GR_GRAPHS_EXPR_CODE_H

#include <stdbool.h>
#include <stdint.h>

#include "graphs/expr/expr_ops.h"

enum {
    GR_CODE_INSTRS = 64,
    GR_CODE_CONSTS = 32,
    GR_CODE_COLUMNS = 16,
    GR_CODE_REGS = 24,
    GR_CODE_OUTPUTS = 16,
    GR_CODE_LEVELS = GR_LEVEL_TOKEN + 1,
    GR_CODE_LANES = 32, /* strands of a sum within a sequence */
};

/* Where a value is. */
typedef enum gr_code_kind {
    GR_CODE_NONE,
    GR_CODE_REG,    /* of the thread, for the pass */
    GR_CODE_SLOT,   /* of the stage's frame: an element each of its level */
    GR_CODE_KEPT,   /* of the store that prepare leaves to adjoint */
    GR_CODE_CONST,  /* of the pass */
    GR_CODE_COLUMN, /* of the pass */
    GR_CODE_OUT,    /* a result: at token level f32, at scalar level f64 */
} gr_code_kind;

typedef struct gr_code_arg {
    uint8_t kind, level; /* level: of the value; it broadcasts to finer ones */
    uint16_t at;
} gr_code_arg;

typedef struct gr_code_instr {
    uint8_t op, from; /* gr_ir_op; from: level that SUM and AMAX walk */
    uint16_t id;      /* number of a draw */
    gr_code_arg to, arg[3];
} gr_code_instr;

/* What a thread of a pass stands for. */
typedef enum gr_code_form {
    GR_CODE_EACH,   /* one element of the level */
    GR_CODE_FOLD,   /* 32 threads a sequence (prompt), which reduce its tokens (positions) */
    GR_CODE_SCAN,   /* a sequence, whose tokens are walked in order */
    GR_CODE_SELECT, /* a single block, for all elements of the level */
} gr_code_form;

typedef struct gr_code_pass {
    uint8_t form, level;
    int16_t rows; /* row set; -1: none is needed */
    uint16_t n_instrs, n_consts, n_columns;
    gr_code_instr instr[GR_CODE_INSTRS];
    double consts[GR_CODE_CONSTS];
    int32_t column[GR_CODE_COLUMNS]; /* ids */
} gr_code_pass;

/* ---- a launch ------------------------------------------------------------------------------------------ */

/* As gr_expr_rows, in device memory. */
typedef struct gr_code_rows {
    const uint32_t *offset, *group; /* [n_seqs + 1], [n_seqs] */
    const uint32_t *first;          /* [n_groups + 1] first sequence of each group */
    const uint32_t *position;       /* [n_groups + 1] first position of each group */
    const uint8_t *mask;            /* NULL: every token counts */
    uint32_t n_seqs, first_seq;
} gr_code_rows;

typedef struct gr_code_column {
    const void *data;
    uint32_t dtype; /* gr_expr_dtype */
} gr_code_column;

/* Slots of each level: slot i is at base[level] + i * stride[level]. */
typedef struct gr_code_frame {
    double *base[GR_CODE_LEVELS];
    uint64_t stride[GR_CODE_LEVELS];
} gr_code_frame;

typedef struct gr_code_keys {
    uint64_t seed, node;
    uint32_t step, epoch, round;
} gr_code_keys;

/* One pass over its data. */
typedef struct gr_code_call {
    gr_code_pass pass;
    uint32_t first, n;              /* elements (of FOLD and SCAN: sequences or prompts) from first on */
    uint32_t begin[GR_CODE_LEVELS]; /* element of the level that a slot's first place holds */
    uint32_t n_groups;
    gr_code_rows rows;
    gr_code_column column[GR_CODE_COLUMNS]; /* as pass.column */
    gr_code_frame frame, kept;
    gr_code_keys keys;
    float *out[GR_CODE_OUTPUTS]; /* at token level */
    double *value;               /* at scalar level */
} gr_code_call;

#endif
