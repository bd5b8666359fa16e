/* runtime/run/outputs.h: everything a run writes: its directory and the lines for people. Of many ranks the
 * first one writes, and the calls of the others do nothing.
 *
 * Threads: trace may be called from any lane; the rest from the compute lane.
 */
#ifndef GR_RUNTIME_RUN_OUTPUTS_H
#define GR_RUNTIME_RUN_OUTPUTS_H

#include "ops/base/rows.h"
#include "runtime/io/checkpoint_dir.h"
#include "runtime/run/executor.h"
#include "runtime/run/control.h"
#include "runtime/run/run.h"
#include "ops/base/session.h"

typedef struct gr_outputs gr_outputs;

/* Of a run whose memory was checked: touched.csv, a line for each piece of device memory that is live at the
 * plan's peak: bytes planned, bytes up to the last one written, and bytes written, in units of GR_ALIGN. Its
 * first line is their sum, and names the step. */
GR_NODISCARD gr_status gr_outputs_touched(const gr_outputs *o, const gr_executor *e, gr_diag *d);

/* Take the directory, one run at a time. One that holds a run already is refused unless o->resume. */
GR_NODISCARD gr_status gr_outputs_open(gr_outputs **out, const gr_run_options *o, const gr_graph *g,
                                       const gr_plan *p, gr_diag *d);
/* To be told of iterations and of what they are at, see runtime/io/progress.h; NULL: nothing is said. */
struct gr_progress *gr_outputs_progress(gr_outputs *o);
/* From here on steps are traced, and numbers go to TensorBoard, too. */
void gr_outputs_look(gr_outputs *o);
/* Begin to write behind iteration `step` (0: from the start): later lines of a killed run are removed. Where
 * the run goes back (options.has_from) they are kept with the checkpoints that are set aside, which is said.
 */
GR_NODISCARD gr_status gr_outputs_resume(gr_outputs *o, uint32_t step, gr_diag *d);
/* Say what is about to run; of a resumed run, that took its checkpoint, the graph and the plan are now these.
 */
GR_NODISCARD gr_status gr_outputs_begin(gr_outputs *o, const gr_session *s, gr_diag *d);
/* Say the warnings of an iteration that has ended, and drop them. */
void gr_outputs_warn(gr_outputs *o, gr_diag *d);
/* The graph and the plan that run, into a folder: of the run, and of each checkpoint that they make. */
GR_NODISCARD gr_status gr_outputs_what_runs(const gr_outputs *o, const char *dir, gr_diag *d);
/* Say how a run that was asked to stop goes on; by_rule: because run.stop holds. */
void gr_outputs_stopped(gr_outputs *o, const gr_session *s, bool by_rule);
/* NULL is fine. Peaks, planned and measured, are printed side by side, those of other roles as they were
 * heard of last. */
void gr_outputs_close(gr_outputs *o, const gr_executor *e, uint64_t measured_peak);

/* The line of a validation before the first iteration. */
GR_NODISCARD gr_status gr_outputs_before(gr_outputs *o, const gr_record *r, gr_diag *d);
/* The lines of an iteration of so many, and of the validation behind it. */
GR_NODISCARD gr_status gr_outputs_iteration(gr_outputs *o, const gr_heard *h, uint32_t steps, gr_diag *d);

/* The last of these lines, as it was written. Of the first rank. */
const char *gr_outputs_line(const gr_outputs *o, size_t *n);
/* The numbers of the last of these lines; valid until the next one. None without options.listener. */
const gr_told_number *gr_outputs_numbers(const gr_outputs *o, size_t *n);

/* gr_exec_options.trace; user: the gr_outputs. */
void gr_outputs_trace(void *user, gr_path_id path, uint32_t i, uint32_t trip, uint64_t begin_ns,
                      uint64_t end_ns);

/* A metric of this iteration by its name in metrics.jsonl; NaN: it has none. */
double gr_outputs_metric(const gr_outputs *o, const gr_record *r, const char *name);
/* Say that none was better so far. */
void gr_outputs_best(gr_outputs *o, const char *metric, double value, uint32_t step);

/* Say that a state is no longer finite. */
void gr_outputs_say_state(gr_outputs *o, uint32_t step, const char *state);

/* Checkpoints of the run. from: the one to go on from; *dir NULL where there is none; caller frees. What an
 * iteration wrote before its checkpoint is on the disk when that is. */
GR_NODISCARD gr_status gr_outputs_checkpoint_from(gr_outputs *o, char **dir, gr_diag *d);
GR_NODISCARD gr_status gr_outputs_checkpoint_begin(gr_outputs *o, uint32_t step, char **aside, gr_diag *d);
GR_NODISCARD gr_status gr_outputs_checkpoint_commit(gr_outputs *o, uint32_t step, gr_checkpoint_kept kept,
                                                    gr_diag *d);
GR_NODISCARD gr_status gr_outputs_mark_best(gr_outputs *o, uint32_t step, gr_diag *d);

#endif
