/* ops/rollout_heard.h: what an environment answers, heard by all ranks of a model in slices (`tensor`).
 *
 * Such ranks run one rollout together: each has the same rows and takes the same decisions, as each has a
 * slice of every layer. So the first of them alone asks the environment. In every trip it hands what has been
 * answered to the others, by host memory, and all take that in the same order: in a conversation all have the
 * same tokens.
 *
 * Threads: one, that of the rollout.
 */
#ifndef GR_OPS_ROLLOUT_HEARD_H
#define GR_OPS_ROLLOUT_HEARD_H

#include "ops/reward/environment.h"
#include "runtime/comm/comm.h"

/* Answers in the order in which they are taken. */
typedef struct gr_heard_answers {
    gr_answer **answer;
    size_t n, cap;
    size_t taken; /* of these; from there on they are owned */
} gr_heard_answers;

void gr_heard_add(gr_heard_answers *h, gr_answer *a); /* takes a */
gr_answer *gr_heard_next(gr_heard_answers *h);        /* the caller's; NULL: all are taken */
void gr_heard_release(gr_heard_answers *h);

/* By all ranks of c: those that the first one has not taken, to all. n_metrics: numbers of an answer. failed:
 * of the first, which hands over nothing, that it goes no further: the others end with GR_E_FAILED. */
GR_NODISCARD gr_status gr_heard_share(gr_heard_answers *h, size_t n_metrics, bool failed, gr_comm *c,
                                      gr_diag *d);

/* An answer as a JSON object, and back, with the bits of its numbers; caller frees. NULL: it is none. */
json_t *gr_heard_write(const gr_answer *a, size_t n_metrics);
gr_answer *gr_heard_read(const json_t *from, size_t n_metrics);

#endif
