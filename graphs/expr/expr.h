/* graphs/expr/expr.h: the expression language of graph files: parse, check, compile, evaluate.
 *
 * A source text is lines of `name = expression` and a final expression; parentheses and brackets may span
 * lines, `#` starts a comment. Operators, loosest first: `or`, `and`, `not`, comparisons (not chained), sums,
 * products and `%`, unary `-`, `^` (right associative). gr_expr_functions lists the functions, for checking,
 * printing and documents alike.
 *
 * Every value has a level, a kind and, at sequence, position and token level, a row set (an integer chosen by
 * the caller: the node that made the rows). Coarse broadcasts to fine along scalar < group < sequence < token
 * and group < position < token. Values of two row sets never meet below the group level. Tokens whose mask
 * is 0 do not exist for reductions and scans, and are 0 in every output.
 *
 * Names come from the caller through gr_expr_scope, so nothing here knows about graphs. Order of use:
 * gr_expr_parse; gr_expr_names, to order nodes by what they read; gr_expr_compile; gr_expr_bytes;
 * gr_expr_eval, any number of times. A loss is parsed here and compiled by graphs/expr/loss.h.
 *
 * Numbers: everything is computed in double. A reduction across sequences is one partial a sequence, summed
 * in the order of the sequences. Threads: a compiled expression never changes; any threads may evaluate it,
 * each with its own memory.
 */
#ifndef GR_GRAPHS_EXPR_EXPR_H
#define GR_GRAPHS_EXPR_EXPR_H

#include "graphs/expr/expr_ops.h"
#include "runtime/base/base.h"

typedef enum gr_kind { GR_KIND_NUMBER, GR_KIND_BOOL } gr_kind;

const char *gr_level_str(gr_level level); /* "scalar", "prompt", "sequence", "position", "token" */

/* ---- names -------------------------------------------------------------------------------------------- */

/* What a name stands for. A text value can be named but not computed with. */
typedef struct gr_expr_symbol {
    gr_level level;
    gr_kind kind;
    int rows; /* row set, >= 0, at sequence, position and token level; ignored at scalar and group level */
    bool current;  /* a value of this pass, differentiable: logprob, entropy, value in an update (token level)
                    */
    bool stopped;  /* with current: read as stop_gradient(it), e.g. an old_logprob that is this pass's own */
    bool constant; /* a number known now ($clip): folded; value below */
    double value;
    int id; /* the caller's number of the column, >= 0: index into gr_expr_env.columns; not read for constants
             */
} gr_expr_symbol;

/* A function that the file itself defines: `NAME(ARG, ...): body`. A call stands for its body with the
 * arguments' values; the body sees its arguments, its own lines and functions, and nothing else. */
typedef struct gr_expr_custom {
    const char *name;
    const char *const *args;
    unsigned n_args;
    const struct gr_expr *body; /* parsed, never compiled; outlives the expressions that call it */
} gr_expr_custom;

typedef struct gr_expr_scope {
    void *user;
    /* name: "reward", "rollout.length", "$clip", "step". False: unknown, and gr_expr_compile reports it, with
     * the nearest of names. May be called several times for one name; must answer the same. out NULL: whether
     * there is such a name is all that is asked, also of values that are not known yet. */
    bool (*resolve)(void *user, const char *name, gr_expr_symbol *out);
    /* token("<think>"): a scalar number, constant where the tokenizer is at hand; false: not one token. NULL:
     * none. */
    bool (*token)(void *user, const char *text, gr_expr_symbol *out);
    const char *(*rows_name)(void *user, int rows); /* for messages, e.g. "rollout" */
    const char *const *names;                       /* candidates for suggestions; may be NULL */
    size_t n_names;
    /* The row set of calls without argument (token_count(), random()) and of reductions of coarser values.
     * -1: the only row set among the names of the expression; none or two are then an error at such a call.
     */
    int rows;
    const gr_expr_custom *functions; /* those of the file; a name of gr_expr_functions is never among them */
    size_t n_functions;
} gr_expr_scope;

/* ---- parsing ------------------------------------------------------------------------------------------ */

/* A text and where it stands. The first character is at `at`; column c (from 1) of a later line is printed as
 * c + indent. For a YAML block scalar: at = its first content line, column indent + 1. text is copied;
 * at.file must outlive the expression. */
typedef struct gr_expr_source {
    const char *text;
    gr_loc at;
    unsigned indent;
} gr_expr_source;

typedef struct gr_expr gr_expr;

/* GR_OK and *out (gr_expr_free); GR_E_INVALID with every syntax error of the text in d, *out untouched. */
GR_NODISCARD gr_status gr_expr_parse(gr_expr **out, const gr_expr_source *src, gr_diag *d);
void gr_expr_free(gr_expr *e); /* NULL is fine */

typedef struct gr_expr_name {
    const char *name; /* as written: dotted, or with its $ */
    gr_loc at;        /* first use */
} gr_expr_name;

/* The free names (not those the text defines itself), each once, in order of first use. Owned by e. */
const gr_expr_name *gr_expr_names(const gr_expr *e, size_t *n);

/* ---- compiling ---------------------------------------------------------------------------------------- */

/* Check and compile, once. scope is used during the call only. GR_E_INVALID: every error of the text is in d.
 */
GR_NODISCARD gr_status gr_expr_compile(gr_expr *e, const gr_expr_scope *scope, gr_diag *d);

/* Of the result; after gr_expr_compile. */
gr_level gr_expr_level(const gr_expr *e);
gr_kind gr_expr_kind(const gr_expr *e);
int gr_expr_rows_id(const gr_expr *e);                  /* -1 at scalar and group level */
bool gr_expr_constant(const gr_expr *e, double *value); /* a number known at compile time? */

/* Ids of the columns that evaluation reads, ascending, each once. Owned by e. */
const int *gr_expr_reads(const gr_expr *e, size_t *n);
/* Row sets that evaluation walks, likewise: also those of which only sequences are counted. */
const int *gr_expr_row_sets(const gr_expr *e, size_t *n);

/* Whether it compares sequences with others of their group: a mean, deviation or rank over groups of rows. */
bool gr_expr_compares_groups(const gr_expr *e);

/* A line for each named value and the result: name, kind, level. */
void gr_expr_explain(const gr_expr *e, gr_str *out);

/* The compiled form as text, one instruction a line. Equal text means equal instructions, so its hash
 * identifies the expression. */
void gr_expr_print(const gr_expr *e, gr_str *out);

/* ---- evaluating --------------------------------------------------------------------------------------- */

/* One row set. All row sets of one evaluation share the index space of groups. */
typedef struct gr_expr_rows {
    uint32_t n_seqs;
    const uint32_t *group; /* [n_seqs], non-decreasing, < gr_expr_env.n_groups */
    const uint32_t
        *offset;         /* [n_seqs + 1], offset[0] = 0: tokens [offset[s], offset[s + 1]) are sequence s's */
    const uint8_t *mask; /* [offset[n_seqs]], 0: the token is no response token; NULL: all are */
    uint32_t first_seq;  /* number of sequence 0 in the iteration's batch: random draws are keyed by it */
} gr_expr_rows;

/* Data of a symbol: 1, n_groups, n_seqs or n_tokens elements by its level (position level cannot be a
 * column). */
typedef struct gr_expr_column {
    const void *data;
    gr_expr_dtype dtype;
} gr_expr_column;

typedef struct gr_expr_env {
    const gr_expr_rows *rows;      /* by row set; unused ones may be all zero */
    const gr_expr_column *columns; /* by symbol id; unused ones may be all zero */
    uint32_t n_groups;
    uint64_t seed, node; /* node: gr_stream(its name) */
    uint32_t step, epoch, round;
} gr_expr_env;

/* Upper bounds, over all row sets of an evaluation. */
typedef struct gr_expr_bounds {
    uint32_t groups, seqs, tokens;
} gr_expr_bounds;

/* Workspace of one evaluation, in bytes; it must be 16-byte aligned. Nothing is allocated while evaluating.
 */
uint64_t gr_expr_bytes(const gr_expr *e, gr_expr_bounds bounds);

/* Evaluate at the result's level, or at a finer one (`level`, of row set `rows`, -1 below sequence level),
 * into out: f32 (f64 for gr_expr_scalar), 1 and 0 for booleans, masked tokens 0. out may not overlap the
 * columns. */
void gr_expr_eval(const gr_expr *e, const gr_expr_env *env, gr_level level, int rows, float *out, void *work);
double gr_expr_scalar(const gr_expr *e, const gr_expr_env *env, void *work);

/* ---- the functions ------------------------------------------------------------------------------------ */

/* One row a function: the source of checking, of `graphrun ops` and of the documents' table. */
typedef struct gr_expr_function {
    const char *name;
    const char *args;   /* as written in documents: "x, lo, hi"; optional ones in brackets: "x[, mask]" */
    const char *source; /* level of the first argument: "any", "token", "sequence", ... */
    const char *result; /* level of the result: "same", "scalar", ... */
    const char *doc;    /* one line */
    unsigned char min_args, max_args;
    unsigned char form, detail; /* how the checker lowers it: private to graphs/ */
} gr_expr_function;

const gr_expr_function *gr_expr_functions(size_t *n); /* sorted by name */

#endif
