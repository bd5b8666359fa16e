/* runtime/run/run_parts.h: the parts of a run; private to runtime/.
 *
 *     run.c             from the first iteration to the last, with their validations; opening, closing
 *     run_bind.c        what each step takes, found once
 *     run_steps.c       what the executor asks for: works of steps, and how long they may take
 *     run_control.c     what the roles of ranks tell each other behind an iteration
 *     run_health.c      whether it still trains: steps that were skipped, states that are not finite
 *     run_inputs.c      what is read, by content: the same on all ranks, and as it was
 *     run_check.c       whether ranks still hold alike what they should
 *     run_checkpoint.c  saved, resumed, and which iteration was the best
 *     run_watch.c       what who runs it from within sees of nodes
 *     run_hooks.c       commands of `on:`
 *     run_sinks.c       trackers of `log:`
 *     run_seal.c        manifests of checkpoints, written and believed
 *
 * Threads: the executor's hooks run on all lanes, and change nothing here but the record's times; the rest is
 * the compute lane's, between paths. Ranks of a role make the same calls in the same order.
 */
#ifndef GR_RUNTIME_RUN_RUN_PARTS_H
#define GR_RUNTIME_RUN_RUN_PARTS_H

#include "runtime/run/bytes.h"
#include "runtime/run/comms.h"
#include "runtime/run/executor.h"
#include "runtime/io/inputs.h"
#include "runtime/run/control.h"
#include "runtime/run/outputs.h"
#include "runtime/run/run.h"
#include "runtime/io/sealed_run.h"
#include "ops/base/session.h"
#include "runtime/io/state.h"

/* A value of the metric that says which checkpoint is the best. */
typedef struct gr_scored {
    double value;
    uint32_t step; /* of its iteration; 0: there is none yet */
} gr_scored;

/* Whether the run still trains. The same on all ranks, but for `finite`, which is rank 0's. */
typedef struct gr_health {
    uint64_t
        bad_states;  /* iterations in a row, up to the last one heard of, with a state that is not finite */
    char *diverged;  /* why the run ends here; NULL: it goes on */
    uint64_t finite; /* iteration of the newest checkpoint whose values are all finite; 0: none is */
} gr_health;

/* What a run's checkpoints are sealed with. */
typedef struct gr_seals {
    gr_sealed_run run; /* known: run.json has it */
    bool has_id;
    gr_manifest *from;       /* of the checkpoint that the run went on from; NULL: there is none */
    gr_manifest_head before; /* of it the manifest before the next one */
} gr_seals;

/* What ranks of the role hold alike, and what each has of it: compared every run.check iterations, and where
 * a checkpoint is due by its number. */
typedef struct gr_checks {
    struct gr_checked *of;  /* [n] */
    uint32_t n, *by_object; /* [objects of the program] its index in `of`; GR_NONE: nobody else has it */
    uint64_t *parts;        /* [n][GR_CHECKSUM_PARTS], which the device has written when a path has ended */
    uint64_t *own;          /* the same, where they are not in the host pool */
    bool due;               /* in the iteration that runs */
} gr_checks;

/* A step of the iteration, or of a validation, with all that it takes: while steps run, nothing is looked up
 * by name, and no memory is taken. */
typedef struct gr_bound {
    const gr_node *node;   /* whose it is, or on whose behalf; NULL: nobody's */
    const gr_task *task;   /* NULL: a copy, which the executor does */
    const gr_model *model; /* of a send or recv: whose weights; NULL: a column */
    gr_comm *comm;         /* of a collective: on memory of the device; NULL: one rank */
    gr_tp_group *peers;    /* who have the other slices of the node's model; NULL: nobody */
    gr_tp_group *sharers;  /* who have other tokens of its sequences, beside these; NULL: nobody */
    gr_tp_group *holders;  /* who have the other experts of its model; NULL: nobody */
    gr_call call;          /* of the work: complete but for the queue */
    bool watched;          /* the listener looks at its node behind it */
} gr_bound;

/* One rank of a run. Graph, plans and options are the caller's; it owns the rest. */
typedef struct gr_running {
    const gr_graph *g;         /* as this rank's role sees it */
    const gr_planned *p, *all; /* of the role; of the first role, with those of all others */
    const gr_run_options *o;
    gr_exec_hooks hooks;
    gr_session session;
    uint32_t validation_seconds; /* its metric */
    gr_executor *executor;
    gr_bytes *bytes;
    const char *folder; /* of the checkpoint that is written, or gone on from; NULL: neither */
    gr_outputs *outputs;
    gr_comms comms;
    gr_arena *memory; /* of what lives as long as the run */
    gr_bound *bound;  /* of the steps of the iteration and of validate, as the ledger counts them */
    gr_control *control;
    gr_record *record; /* of the iteration that runs; NULL between them */
    uint32_t entered;  /* the iteration that the run had behind it when it began here */
    bool over_plan;    /* that libraries take more than planned has been said */
    bool stop;         /* of several roles: one was asked to, in an iteration that all have heard of */
    bool stop_holds;   /* run.stop, of the latest iteration that all have heard of */
    gr_health health;
    gr_scored candidate; /* of the latest iteration that all have heard of */
    gr_scored best;      /* of all so far */
    gr_seals seal;
    gr_checks checks;
    gr_inputs *read;                /* all that was read; on rank 0, by any rank */
    struct gr_run_hooks *hooks_due; /* commands that run, or wait; NULL: none came yet. Rank 0 */
    struct gr_run_sinks *sinks;     /* NULL: none */
    json_t *inputs; /* the hashes of all that was read, for manifests; owned; NULL: not known */
} gr_running;

/* ---- run_bind.c ---- */

/* Bind all steps. Behind this neither states of ops, nor communicators, nor entries change their places. */
void gr_run_bind(gr_running *r);
/* Of a step of the iteration or of validate; NULL: of other paths, which copies and files are. */
const gr_bound *gr_run_bound(const gr_running *r, gr_path_id path, uint32_t step);

/* ---- run_steps.c ---- */

/* The executor on the device of these kernels, whose hooks are here. r's session and outputs are open. */
GR_NODISCARD gr_status gr_run_open_executor(gr_running *r, const gr_kernels *k, gr_diag *d);
/* A path of the plan, from its first step to its last. */
GR_NODISCARD gr_status gr_run_path(gr_running *r, gr_path_id path, gr_diag *d);

/* ---- run_control.c ---- */

/* Tell of the iteration that has ended, which took ns, and take what has come from other roles: into
 * outputs, ops' states, stop and candidate. await: until all have told of this iteration, too. */
GR_NODISCARD gr_status gr_run_tell(gr_running *r, uint64_t ns, bool await, gr_diag *d);
/* The same of all that has been told of, when there is nothing more to tell. */
GR_NODISCARD gr_status gr_run_hear(gr_running *r, gr_diag *d);
/* Whether what follows an iteration needs its record from all roles. The same answer on all ranks. */
bool gr_run_is_awaited(const gr_running *r, uint32_t step);
/* The states that ops keep, into f: of all nodes, or of those that this role runs. */
void gr_run_save_ops(const gr_running *r, bool all, gr_state_file *f);

/* ---- run_health.c ---- */

/* Look at an iteration that all have told of: says a state that is no longer finite, and notes where the run
 * has diverged. */
void gr_run_watch_health(gr_running *r, const gr_record *all);
/* Whether all states are finite behind the iteration that has ended. */
bool gr_run_states_finite(const gr_running *r);
/* The error of a run that has diverged, with the checkpoint to go back to; of many ranks in the first one's
 * d. */
GR_NODISCARD gr_status gr_run_say_diverged(const gr_running *r, gr_diag *d);
/* Into and out of a checkpoint's state. finite: of the checkpoint that is being made. */
void gr_run_save_health(const gr_running *r, gr_state_file *f);
void gr_run_load_health(gr_running *r, const gr_state_file *f);

/* ---- run_inputs.c ---- */

/* List what this rank reads, and begin to hash what is large. from: the checkpoint that the run goes on from;
 * NULL: it begins. All ranks. */
GR_NODISCARD gr_status gr_run_list_inputs(gr_running *r, const char *from, gr_diag *d);
/* All ranks read the same, and the same as the run did before, or it is GR_E_INVALID on all of them. What
 * manifests have of it is known from here on. */
GR_NODISCARD gr_status gr_run_hold_inputs(gr_running *r, const char *from, gr_diag *d);
/* The files that a checkpoint copies are still what was read; GR_E_FAILED. */
GR_NODISCARD gr_status gr_run_check_copied(const gr_running *r, gr_diag *d);

/* ---- run_check.c ---- */

/* Find what ranks hold alike; of one rank nothing. r's executor is open. Warns where a plan has no room. */
void gr_run_open_checks(gr_running *r, const gr_kernels *k, gr_diag *d);
void gr_run_close_checks(gr_running *r);
/* The next iteration begins; step 0: a validation before it. */
void gr_run_begin_check(gr_running *r, uint32_t step);
/* A work is about to run: sum what it uses. On its lane. */
void gr_run_check_task(gr_running *r, const gr_task *w, const gr_call *c);
/* The iteration has ended: GR_E_FAILED on all ranks of the role where they differ. All make this call. */
GR_NODISCARD gr_status gr_run_end_check(gr_running *r, gr_diag *d);

/* ---- run_checkpoint.c ---- */

/* Whether a checkpoint stands behind an iteration by its number. */
bool gr_run_is_due(const gr_running *r, uint32_t step);
/* Whether the iteration that has ended is the best so far, which is then noted and said. The same answer on
 * all ranks. */
bool gr_run_is_best(gr_running *r);
/* Save what the run goes on from; path: GR_PATH_CHECKPOINT, or GR_PATH_FINAL. */
GR_NODISCARD gr_status gr_run_save(gr_running *r, gr_path_id path, gr_diag *d);
/* The iteration, states and best so far from a checkpoint's folder; models come with the path resume. */
GR_NODISCARD gr_status gr_run_load(gr_running *r, const char *dir, gr_diag *d);
/* The run could not go on from a checkpoint: where its files are not whole, which one before it is. */
void gr_run_explain_damage(const gr_running *r, const char *dir, gr_diag *d);

/* ---- run_watch.c ---- */

/* Mark the steps that the listener looks at. Behind gr_run_bind. */
GR_NODISCARD gr_status gr_run_open_watch(gr_running *r, gr_diag *d);
/* A step that is looked at has run: on its lane. */
GR_NODISCARD gr_status gr_run_show(const gr_running *r, const gr_bound *b, gr_queue *q, gr_diag *d);

/* ---- run_hooks.c ---- */

/* Have the commands of an event run. path: of a checkpoint, or of the run; message: of a failure; NULL. */
void gr_run_event(gr_running *r, gr_event e, uint32_t step, const char *path, const char *message);
/* Look at the command that runs, and start the next one; warns of one that failed. Whether one runs. */
bool gr_run_hooks_go_on(gr_running *r, gr_diag *d);
/* Wait for all of them. */
void gr_run_hooks_end(gr_running *r, gr_diag *d);

/* ---- run_sinks.c ---- */

/* Start the trackers' workers. A worker that fails is warned of, here and below. */
void gr_run_sinks_open(gr_running *r, gr_diag *d);
/* The last line of metrics.jsonl. */
void gr_run_sinks_tell(gr_running *r, gr_diag *d);
/* Wait until they have sent what they have. */
void gr_run_sinks_close(gr_running *r, gr_diag *d);

/* ---- run_seal.c ---- */

/* The threads of this rank, between paths; NULL: one. */
gr_team *gr_run_team(const gr_running *r);

/* Everything of a checkpoint is in its folder: rank 0 writes the manifest. All ranks call it. */
GR_NODISCARD gr_status gr_run_seal(gr_running *r, const char *aside, gr_diag *d);
/* Before anything is taken from a checkpoint's folder: it is this run's, and whole. What is read from it from
 * here on is held to its manifest. Where changes are accepted they are warned about. */
GR_NODISCARD gr_status gr_run_believe(gr_running *r, const char *dir, gr_diag *d);

#endif
