/* runtime/run/bytes.h: the save and restore steps of a plan: buckets between the executor's memory and
 * checkpoints.
 *
 * Each step names one bucket of one model's weights or moments; files are opened at the first that needs
 * them, those read until gr_bytes_from or gr_bytes_free, those written until gr_bytes_finish. Restoring reads
 * just the bytes of the bucket: straight to where the plan says it lies, where host memory can be read into
 * and types are the same, else by way of a buffer of one bucket. Files hold fp32. Weights that have a master
 * are saved from it, or from themselves and the low bits beside.
 *
 * Of many ranks each restores what is its own, a shard of a bucket or all of it, and reads no other bytes;
 * and each saves its shard into files that they write together. Of several roles the ranks of one do; of
 * replicas all read, and the first one saves.
 */
#ifndef GR_RUNTIME_RUN_BYTES_H
#define GR_RUNTIME_RUN_BYTES_H

#include "graphs/graph/graph.h"
#include "memplan/plan/tasks.h"
#include "ops/kernels/kernels.h"
#include "runtime/comm/comm.h"
#include "runtime/io/sealed_run.h"

typedef struct gr_bytes gr_bytes;

/* What of trained models is saved here, by their bits: of several roles of ranks each holds some. */
typedef struct gr_bytes_saved {
    uint64_t state;  /* weights and moments */
    uint64_t lagged; /* the weights of the iteration before */
} gr_bytes_saved;

/* Types are those of the device's kernels. comm: of the ranks of the role, NULL: there is one. */
gr_bytes *gr_bytes_new(const gr_graph *g, const gr_tasks *p, const gr_kernels *k, gr_comm *comm,
                       gr_bytes_saved saved);
void gr_bytes_free(gr_bytes *b); /* NULL is fine; files not finished are removed */

/* Restore from here on: the models' own checkpoints, moments zero (step NULL), or a step directory of a run.
 */
void gr_bytes_from(gr_bytes *b, const char *step_dir);
/* What is read from step_dir is held to its manifest, which lives as long; NULL: to nothing. So are models'
 * own checkpoints that are a part of a run's checkpoint, to the manifest of that; accepts: what differs there
 * is warned about. */
void gr_bytes_hold(gr_bytes *b, const gr_manifest *m, bool accepts);
/* Fill the object called what (gr_step.what) at address, in the order of q. */
GR_NODISCARD gr_status gr_bytes_restore(gr_bytes *b, const char *what, void *address, gr_queue *q,
                                        gr_diag *d);

/* Save from here on: into this directory, one folder a trained model. All ranks call it, and finish. */
GR_NODISCARD gr_status gr_bytes_to(gr_bytes *b, const char *step_dir, gr_diag *d);
/* with: of an object that is saved with another (gr_object.saved_with) the address of that one, else NULL. */
GR_NODISCARD gr_status gr_bytes_save(gr_bytes *b, const char *what, const void *address, const void *with,
                                     gr_queue *q, gr_diag *d);
/* All was saved: files become complete. */
GR_NODISCARD gr_status gr_bytes_finish(gr_bytes *b, gr_diag *d);
/* Whether all that this rank has saved since gr_bytes_to is finite. */
bool gr_bytes_finite(const gr_bytes *b);

/* From the next gr_bytes_to on what is saved is hashed, too. all: what all roles of ranks save. */
void gr_bytes_seal(gr_bytes *b, gr_bytes_saved all);
/* After gr_bytes_finish, until the next gr_bytes_to: the files of the whole checkpoint, with the blocks that
 * this rank has written wholly. The same files on all ranks of the run. Caller frees the list and names. */
gr_sealed_file *gr_bytes_sealed(gr_bytes *b, size_t *n);

#endif
