/* runtime/io/sealed_run.h: RUN/run.json, and whether a checkpoint is one of this run, whole, and as it was.
 *
 * A run has an id, random bytes that stay over resumes; every manifest of its checkpoints has it. run.json
 * has it, too, and after which iteration checkpoints have manifests: 0, or the iteration at which a run went
 * on that had none:
 *
 *     {"run": "HEX", "sealed_after": 0}
 *
 * Threads: functions of files alone; one thread writes.
 */
#ifndef GR_RUNTIME_IO_SEALED_RUN_H
#define GR_RUNTIME_IO_SEALED_RUN_H

#include "runtime/io/manifest.h"

typedef struct gr_sealed_run {
    bool known; /* there is a run.json */
    gr_hash id;
    uint64_t after; /* checkpoints of later iterations have manifests */
} gr_sealed_run;

/* A run without run.json is not known, and GR_OK. */
GR_NODISCARD gr_status gr_sealed_run_read(gr_sealed_run *s, const char *run, gr_diag *d);
GR_NODISCARD gr_status gr_sealed_run_write(const gr_sealed_run *s, const char *run, gr_diag *d);

/* Whether the folder dir is the checkpoint of iteration step of a run, with all its files as they were saved:
 * those that are no safetensors files are read, the others are as long as they were, and are held to the
 * manifest when they are read (gr_manifest_seal). *out: the manifest, caller frees; NULL with GR_OK: it has
 * none, which is warned about, and is an error where the run seals its checkpoints. */
GR_NODISCARD gr_status gr_checkpoint_check(gr_manifest **out, const char *run, const char *dir, uint64_t step,
                                           gr_diag *d);
/* The same for changes that are meant: all bytes are read, what would be refused is warned about, and there
 * is no manifest to hold anything to. */
GR_NODISCARD gr_status gr_checkpoint_accept(const char *run, const char *dir, uint64_t step, gr_team *team,
                                            gr_diag *d);

/* For the folder of a model, or any other: where it is a part of a run's checkpoint that is looked at as
 * above, and *seal is that of the folder's model.safetensors. Both NULL: there is nothing to hold it to.
 * accept: always, as gr_checkpoint_accept does. */
GR_NODISCARD gr_status gr_checkpoint_beside(gr_manifest **out, const gr_seal **seal, const char *folder,
                                            bool accept, gr_diag *d);

#endif
