/* runtime/run/run.h: a run: a proven plan executed iteration by iteration, with its directory of results.
 *
 * OUT/ holds graph.yaml (resolved), plan.json, metrics.jsonl, samples.jsonl, trace.json, TensorBoard events,
 * and checkpoints/step-N/. A run that is killed goes on from its last checkpoint with the bits of one that
 * was not.
 */
#ifndef GR_RUNTIME_RUN_RUN_H
#define GR_RUNTIME_RUN_RUN_H

#include <stdio.h>

#include "ops/base/rows.h"
#include "runtime/comm/comm.h"
#include "scheduler/search/planner.h"

/* A number of an iteration, by its name in metrics.jsonl. */
typedef struct gr_told_number {
    const char *name;
    double value;
} gr_told_number;

/* An iteration that has ended, with its line of metrics.jsonl; step 0: a validation before the first. */
typedef struct gr_run_told {
    uint32_t step, steps;
    const gr_told_number *number;
    size_t n;
    double *next_state; /* by index in gr_graph.state: what the next iteration begins with, and may be set */
    gr_diag *said;      /* the warnings so far, which may be taken */
} gr_run_told;

/* A column that a node has used, where the host can read it; valid during the call. */
typedef struct gr_seen_column {
    const gr_column *column;
    const void *data;
    size_t n; /* values: of its level's groups, sequences or tokens */
} gr_seen_column;

typedef struct gr_seen {
    const gr_node *node;
    uint32_t step;
    const gr_rows *rows; /* of the node; NULL: it has none, or did not use them */
    const gr_seen_column *column;
    size_t n;
} gr_seen;

/* The program that runs a graph from within. It is called between iterations, on the thread that runs, before
 * a checkpoint of the iteration is made. */
typedef struct gr_run_listener {
    void *user;
    void (*iteration)(void *user, const gr_run_told *told);
    bool (*stops)(void *user); /* whether to stop, as a signal would */
    /* Nodes to look at, by name, when their last step has run: on its lane. A node whose last step is in a
     * loop, which runs again, is refused. */
    const char *const *watched;
    size_t n_watched;
    gr_status (*saw)(void *user, const gr_seen *seen, gr_diag *d);
} gr_run_listener;

typedef struct gr_run_options {
    const char *out; /* directory of the run; made where it is not there */
    bool resume;     /* go on from its last complete checkpoint; from the beginning where there is none */
    bool has_from;   /* or from that of iteration `from`: what is behind it is set aside */
    uint64_t from;
    uint32_t until;      /* stop behind this iteration, as a signal would; 0: none */
    bool accept_changes; /* what does not have the recorded hashes is warned about, not refused */
    bool poison;         /* check every step's memory (slow) */
    const char *disk;    /* folder of a disk that the plan may keep state on; NULL: there is none */
    unsigned threads;    /* at most; never more than the plan was made for */
    FILE *progress;      /* lines for people; NULL: none */
    /* Say the messages there are, which are warnings, and drop them: before the first iteration. NULL: they
     * stay. */
    void (*say)(gr_diag *d);
    const struct gr_functions *functions; /* of this program, that the graph may call; NULL: none */
    const gr_run_listener *listener;      /* NULL: nobody. Of one rank */
    gr_comm *comm;                        /* of the ranks that run it together; NULL: there is one */
} gr_run_options;

/* GR_OK also when a signal ended it early, after a checkpoint; of many ranks, on any of them. On failure what
 * was written stays; a rank that fails alone leaves the others waiting: end them (gr_comm_abort). */
GR_NODISCARD gr_status gr_run(const gr_graph *g, const gr_planned *p, const gr_kernels *k,
                              const gr_run_options *o, gr_diag *d);

#endif
