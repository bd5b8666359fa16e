/* ops/env.h: hand the columns that expressions read to the evaluator.
 *
 * A set of reads is collected from expressions; a work declares them as uses, in a fixed order; when it runs,
 * the same order turns its pointers into a gr_expr_env.
 */
#ifndef GR_OPS_ENV_H
#define GR_OPS_ENV_H

#include "ops/base/rows.h"
#include "ops/base/session.h"

/* Columns read, each once, and the row sets they belong to. */
typedef struct gr_env_reads {
    uint32_t *columns; /* ids, ascending */
    size_t n, cap;
    const gr_node **rows; /* row makers whose blocks are needed */
    size_t n_rows, cap_rows;
} gr_env_reads;

void gr_env_reads_init(gr_env_reads *r);
void gr_env_reads_release(gr_env_reads *r);
void gr_env_reads_add(gr_env_reads *r, const gr_graph *g, const gr_expr *e);
void gr_env_reads_add_loss(gr_env_reads *r, const gr_graph *g, const gr_loss *l); /* fresh columns left out */
void gr_env_reads_add_column(gr_env_reads *r, const gr_graph *g, const gr_column *c); /* NULL is fine */
void gr_env_reads_add_rows(gr_env_reads *r, const gr_node *rows);

/* Uses it takes, and the uses themselves: returns how many. */
size_t gr_env_uses(const gr_env_reads *r);
size_t gr_env_declare(const gr_env_reads *r, const gr_graph *g, gr_tasks *p, gr_use *out);

/* Bounds over all its row sets. */
gr_expr_bounds gr_env_bounds(const gr_env_reads *r);

/* What expressions of a node see, each time that one of its works runs. */
typedef struct gr_env {
    gr_expr_env env;
    const gr_env_reads *reads;
    const gr_session *session;
    gr_expr_rows *rows;      /* [graph nodes] */
    gr_expr_column *columns; /* [graph columns] */
    gr_rows *blocks;         /* [graph nodes]: views of the row makers' blocks */
} gr_env;
/* Once, when the node opens; r is kept, and must be complete. */
void gr_env_open(gr_env *e, const gr_env_reads *r, const gr_session *s, const gr_node *n);
void gr_env_close(gr_env *e);
/* The whole batch, as it is now; ptr: the pointers of gr_env_declare's uses. */
void gr_env_begin(gr_env *e, void *const *ptr);

/* Where the set holds rows of several prompts nodes: count the groups of those that x is about. */
void gr_env_turn_to(gr_env *e, const gr_expr *x);

/* Narrow it to groups [first, end): a mini-batch. memory: gr_env_narrow_bytes, read until it begins anew. */
uint64_t gr_env_narrow_bytes(const gr_env_reads *r);
void gr_env_narrow(gr_env *e, uint32_t first, uint32_t end, void *memory);

#endif
