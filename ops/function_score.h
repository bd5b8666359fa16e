/* ops/function_score.h: rewards from a function of the program that runs the graph (ops/base/functions.h). It
 * is called once an iteration, with all responses that this rank scores.
 */
#ifndef GR_OPS_FUNCTION_SCORE_H
#define GR_OPS_FUNCTION_SCORE_H

#include "ops/base/functions.h"

typedef struct gr_function_score gr_function_score;

/* Of a reward node with `function`. GR_E_INVALID: the program has none of that name. */
GR_NODISCARD gr_status gr_function_score_new(gr_function_score **out, const gr_session *s, const gr_node *n,
                                             gr_diag *d);
void gr_function_score_free(gr_function_score *f); /* NULL is fine */

/* Call it with the sequences of own. *values: for each sequence its number, or one for each of the node's
 * names, or for each of its response tokens; valid until the next call. GR_E_FAILED: it failed, or gave what
 * is no number of a 32-bit float. */
GR_NODISCARD gr_status gr_function_score_run(gr_function_score *f, const gr_rows *rows, gr_rows_part own,
                                             const double **values, gr_diag *d);

#endif
