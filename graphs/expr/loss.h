/* graphs/expr/loss.h: a scalar expression over values of the current policy, differentiated and cut into
 * stages.
 *
 * In an update, symbols marked current (logprob, entropy, value) are values of the running pass; everything
 * else is a constant. The derivative of the loss by each current symbol is built symbolically
 * (graphs/expr/expr_ir.h) and split into stages:
 *   - prepare: terms over columns alone, for the whole mini-batch, before its first micro-batch;
 *   - adjoint: d loss / d current, per token, for a range of tokens of the mini-batch;
 *   - value: the loss and the metrics, once every current value of the mini-batch is stored.
 *
 * The loss's class says how many of the current values `adjoint` must see at once. Outermost linear
 * reductions over sequences (token_mean, batch_mean) leave nothing but constants in the derivative, so most
 * losses are GR_LOSS_TOKEN.
 *
 * All arrays are those of the whole mini-batch (all ranks and micro-batches), in the order of its sequences:
 * current columns and adjoints too, as f32 a token, filled as the micro-batches go. Each stage gives the same
 * bits for any cut into ranges that the class allows.
 *
 * Derivatives at ties follow PyTorch: clip passes at its bounds, max and min split equally, abs'(0) = 0,
 * reductions to a maximum split over all arg maxima. An adjoint that is 0 stays 0 whatever it is multiplied
 * with, so the branch of `where` that is not taken gives no NaN or infinity. Threads: as graphs/expr/expr.h.
 */
#ifndef GR_GRAPHS_EXPR_LOSS_H
#define GR_GRAPHS_EXPR_LOSS_H

#include "graphs/expr/expr.h"

typedef enum gr_loss_class {
    GR_LOSS_TOKEN, /* adjoint of a token reads that token's current values: any range */
    GR_LOSS_SEQ,   /* ... of its sequence: ranges of whole sequences */
    GR_LOSS_BATCH, /* ... of the mini-batch: one range, the mini-batch */
} gr_loss_class;

typedef struct gr_loss gr_loss;

typedef struct gr_loss_metric {
    const char *name;
    const gr_expr *expr; /* parsed; scalar; may also read the names that the loss's own lines define */
} gr_loss_metric;

/* Check, differentiate and compile a parsed loss and its metrics; none is changed, all may be freed
 * afterwards. Needs at least one current symbol with a derivative. GR_E_INVALID: every error is in d. */
GR_NODISCARD gr_status gr_loss_new(gr_loss **out, const gr_expr *loss, const gr_loss_metric *metrics,
                                   size_t n_metrics, const gr_expr_scope *scope, gr_diag *d);
void gr_loss_free(gr_loss *l); /* NULL is fine */

gr_loss_class gr_loss_class_of(const gr_loss *l);
/* Why it is not GR_LOSS_TOKEN: names the sub-expression, with its place in *at. "" for GR_LOSS_TOKEN. */
const char *gr_loss_why(const gr_loss *l, gr_loc *at);

/* The current symbols (ids) the loss has a derivative by, ascending: the order of the adjoints below. */
const int *gr_loss_current(const gr_loss *l, size_t *n);

/* Column ids read by a stage, ascending. Prepare reads no current one; value reads all that any stage reads.
 */
typedef enum gr_loss_stage { GR_LOSS_PREPARE, GR_LOSS_ADJOINT, GR_LOSS_VALUE } gr_loss_stage;
const int *gr_loss_reads(const gr_loss *l, gr_loss_stage stage, size_t *n);

/* Bytes that prepare fills and adjoint reads, for a mini-batch. */
uint64_t gr_loss_store_bytes(const gr_loss *l, gr_expr_bounds mini_batch);
/* Workspace of one call of a stage. range: for GR_LOSS_ADJOINT, bounds of one range (groups: those of the
 * mini-batch); for the others not read. Memory is 16-byte aligned, and nothing is allocated while evaluating.
 */
uint64_t gr_loss_work_bytes(const gr_loss *l, gr_loss_stage stage, gr_expr_bounds mini_batch,
                            gr_expr_bounds range);

void gr_loss_prepare(const gr_loss *l, const gr_expr_env *env, void *store, void *work);

/* adjoint[i][t] = d loss / d current[i] of token t, for t in [first, end) of the mini-batch's tokens; masked
 * tokens get 0; other elements are left alone. Current columns of env are read in the range only. The range
 * is what the class allows. */
void gr_loss_adjoint(const gr_loss *l, const gr_expr_env *env, const void *store, uint32_t first,
                     uint32_t end, float *const *adjoint, void *work);

/* values[0] = the loss, values[1 + i] = metric i. */
void gr_loss_value(const gr_loss *l, const gr_expr_env *env, double *values, void *work);

/* ---- for a device (ops/loss_device.h) --------------------------------------------------------------------
 */

struct gr_code; /* graphs/expr/code_new.h */

/* The passes of a stage. Prepare: to the store; adjoint: to out[i], in the order of gr_loss_current, at token
 * level; value: to value[i], the loss, then the metrics. */
const struct gr_code *gr_loss_code(const gr_loss *l, gr_loss_stage stage);
/* Slots of the store by level; gr_loss_store_bytes is the size of all. */
const unsigned *gr_loss_kept(const gr_loss *l);
int gr_loss_rows(const gr_loss *l);       /* row set of the current values */
size_t gr_loss_results(const gr_loss *l); /* the loss and its metrics */

/* For `check --explain`: each named value with kind, level and stage, the class, and why. */
void gr_loss_explain(const gr_loss *l, gr_str *out);
/* The compiled form as text; equal text, equal instructions. */
void gr_loss_print(const gr_loss *l, gr_str *out);

#endif
