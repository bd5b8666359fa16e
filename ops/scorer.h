/* ops/scorer.h: scores for the rows of a batch: what a reward node's config asks for, put to work.
 *
 * A command's workers get each response as soon as it is finished, while others are still being generated.
 *
 * The text that is scored is the response without its stop id, cut at the first stop text.
 * Threads: one scorer runs on one thread at a time.
 */
#ifndef GR_OPS_SCORER_H
#define GR_OPS_SCORER_H

#include "ops/base/rows.h"
#include "runtime/io/inputs.h"
#include "ops/base/session.h"

typedef struct gr_scorer gr_scorer;

/* Refuse a config that gr_scorer_new would refuse: rules with unknown keys or bad patterns. */
void gr_scorer_check(const gr_node *n, gr_diag *d);

GR_NODISCARD gr_status gr_scorer_new(gr_scorer **out, gr_session *s, const gr_node *n, gr_diag *d);
void gr_scorer_free(gr_scorer *s); /* NULL is fine */

/* Add the files that the command names, under this owner. */
GR_NODISCARD gr_status gr_scorer_inputs(const gr_scorer *s, const char *owner, gr_inputs *in, gr_diag *d);

/* Columns to fill, at the sequences that are this rank's own: the main field, and fields by name. data[i]:
 * f32 of columns[i]'s level. */
typedef struct gr_scores {
    size_t n_columns;
    const gr_column *const *columns;
    void *const *data;
} gr_scores;

GR_NODISCARD gr_status gr_scorer_run(gr_scorer *s, const gr_rows *rows, const gr_scores *out, gr_diag *d);

/* The text of a response as rewards see it, of a conversation all that was said behind the prompt; ends
 * (NULL, or [response_len]): the byte each token ends at. */
void gr_response_text(const gr_session *s, const gr_node *rows_node, const gr_rows *rows, uint32_t seq,
                      gr_str *text, uint32_t *ends);

#endif
