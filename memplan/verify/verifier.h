/* memplan/verify/verifier.h: what the parts of the verifier share. Not for others: they include
 * memplan/verify/verify.h.
 *
 *   verify.c         what is proven in which order; files that paths read and write; bindings
 *   verify_steps.c   indices, names, loops and waits make sense; steps are the tasks, in order; collectives
 *   verify_ledger.c  entries: bytes and places, offsets, lifetimes, sums, the budget; paths' ends
 *   verify_roles.c   ranks of several roles, transfers between them
 *   verify_replay.c  the paths replayed: contents are what each step needs, lanes wait for each other
 */
#ifndef GR_MEMPLAN_VERIFY_VERIFIER_H
#define GR_MEMPLAN_VERIFY_VERIFIER_H

#include "memplan/verify/verify.h"

#define GR_VERIFY_MAX_ERRORS 20

typedef struct gr_verifier {
    const gr_plan *p;
    const gr_tasks *g;
    gr_diag *d;
    size_t n_errors;
    gr_arena *arena;
    gr_path_id path;      /* the one looked at */
    gr_step *steps;       /* of the iteration, and after them those of validate, as the ledger counts */
    uint32_t n, n_steady; /* of all of them; of the iteration's */
    uint32_t *object;     /* of entries */
    uint32_t *task;       /* of those steps, GR_NONE for transitions */
    uint32_t *parent;     /* of those steps: the loop around */
    uint32_t **shares,
        *n_share; /* of entries: others with some of the same bytes, where more than one lane uses the two */
    uint32_t *ends, *ends_begin; /* of those steps: entries whose life ends there */
    bool *boundary;              /* of entries: holds contents between paths */
} gr_verifier;

/* Note a broken rule; after GR_VERIFY_MAX_ERRORS only counted. Always false. */
GR_PRINTF(3, 4) bool gr_verify_wrong(gr_verifier *v, const char *rule, const char *fmt, ...);

/* The iteration and validate run tasks; the other paths move bytes between files and what lives on. */
bool gr_verify_runs_tasks(gr_path_id path);

/* Fills steps, object, parent and task. false: indices cannot be trusted, and nothing else may be looked at.
 */
bool gr_verify_steps(gr_verifier *v);

/* Fills shares, ends and boundary. */
void gr_verify_ledger(gr_verifier *v);
bool gr_verify_lives_at(const gr_entry *e, uint32_t step);

void gr_verify_replay(gr_verifier *v);

#endif
