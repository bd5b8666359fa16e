/* runtime/io/checkpoint_dir.h: checkpoints of a run directory: complete or absent, never half.
 *
 * A checkpoint is written to RUN/checkpoints/.step-N.tmp and appears as RUN/checkpoints/step-N by one rename,
 * after all its files have reached the disk. A process killed at any moment leaves at most a .tmp, which the
 * next lock removes; what has another name than those that runs give is left alone.
 */
#ifndef GR_RUNTIME_IO_CHECKPOINT_DIR_H
#define GR_RUNTIME_IO_CHECKPOINT_DIR_H

#include "runtime/base/base.h"

/* Take a run directory for this process (it is made where missing) and remove what a killed run left half
 * done. GR_E_INVALID where another process holds it; a warning where the file system has no locks. *lock: to
 * gr_run_unlock. */
GR_NODISCARD gr_status gr_run_lock(int *lock, const char *run, gr_diag *d);
void gr_run_unlock(int lock);

/* Make the empty folder to write a checkpoint of a step to; *aside: its path, caller frees. */
GR_NODISCARD gr_status gr_checkpoint_begin(char **aside, const char *run, uint64_t step, gr_diag *d);
/* The same path, for the processes that write to it beside the one that has made it; caller frees. */
char *gr_checkpoint_aside(const char *run, uint64_t step);
/* All files are written and closed: let it appear. One of the same step is replaced. */
GR_NODISCARD gr_status gr_checkpoint_commit(const char *run, uint64_t step, gr_diag *d);

/* Whether a name is that of a checkpoint's folder, step-N as they are written here: N from 1 to UINT32_MAX,
 * without leading zeros. */
bool gr_checkpoint_number(const char *name, uint64_t *step);
/* Steps of complete checkpoints, ascending; *steps: caller frees. A run without any has n 0. Names that begin
 * with step- and are no checkpoint's are warned about; where there are no others it is GR_E_INVALID. */
GR_NODISCARD gr_status gr_checkpoint_list(uint64_t **steps, size_t *n, const char *run, gr_diag *d);
/* RUN/checkpoints/step-N; caller frees. */
char *gr_checkpoint_path(const char *run, uint64_t step);
/* Checkpoints that stay. */
typedef struct gr_checkpoint_kept {
    size_t newest;   /* so many of the last ones; 0: all */
    uint64_t best;   /* the step of the best one; 0: there is none */
    uint64_t finite; /* of the newest whose values are all finite, to go back to; 0: there is none */
} gr_checkpoint_kept;

/* Remove all others. */
GR_NODISCARD gr_status gr_checkpoint_prune(const char *run, gr_checkpoint_kept kept, gr_diag *d);
/* Before a run goes on from a step that is not its last one: the checkpoints after it become those of a run
 * directory of their own, RUN/aside-STEP (or aside-STEP-2 and so on), which has the graph, the plan, metrics
 * and samples as they are now. *aside: its path, caller frees; NULL: there are none. */
GR_NODISCARD gr_status gr_checkpoint_set_aside(char **aside, const char *run, uint64_t step, gr_diag *d);
/* Let RUN/checkpoints/best point at that of a step. */
GR_NODISCARD gr_status gr_checkpoint_mark_best(const char *run, uint64_t step, gr_diag *d);

#endif
