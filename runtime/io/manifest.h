/* runtime/io/manifest.h: manifest.json of a checkpoint: which files belong together, and their hashes.
 *
 * It is written last into the folder that a checkpoint is made in, and read back before that folder takes its
 * name. It has the run's id, the iteration, the manifest before it in the run, for each file of the folder
 * its bytes and hash, for each tensor of each safetensors file its hash and those of its blocks (the hash:
 * runtime/io/seal.h), and `inputs`, the content hashes of all that the run has read. Its last key, `sealed`,
 * is the hash of the text before that key: the hash of the manifest, by which the next one names it.
 *
 *     {"version": 1, "run": "HEX", "step": 6, "machine": "cpu, cpu-fma",
 *      "previous": {"step": 4, "xxh3": "HEX"}, "block_bytes": 1048576,
 *      "files": [{"name": "actor/config.json", "bytes": 700, "xxh3": "HEX"},
 *                {"name": "actor/model.safetensors", "bytes": 9000, "xxh3": "HEX", "header": "HEX",
 *                 "tensors": [{"name": "lm_head.weight", "bytes": 64, "xxh3": "HEX", "blocks": "HEXHEX"}]}],
 *      "inputs": {}, "sealed": "HEX"}
 *
 * `previous` is null in the first one of a run, `machine` and `inputs` where nothing was given, and `blocks`
 * is there for tensors of several blocks.
 *
 * Threads: a manifest that was read does not change; any thread may look at it.
 */
#ifndef GR_RUNTIME_IO_MANIFEST_H
#define GR_RUNTIME_IO_MANIFEST_H

#include <jansson.h>

#include "runtime/io/seal.h"

#define GR_MANIFEST "manifest.json"

/* What a manifest says beside the files. Texts and inputs are borrowed. */
typedef struct gr_manifest_head {
    gr_hash run; /* the id of the run: of all its checkpoints the same */
    uint64_t step;
    bool has_previous; /* another one of the run is before it */
    uint64_t previous_step;
    gr_hash previous;
    const char *machine; /* what the bits may depend on: the device and its arithmetic; NULL: not known */
    json_t *inputs;      /* the hashes of all that was read; NULL: not known */
} gr_manifest_head;

/* A safetensors file whose tensors were hashed while they were written; name: in the folder. */
typedef struct gr_sealed_file {
    char *name;
    gr_seal *seal;
} gr_sealed_file;

/* A new run's id: random. GR_E_FAILED where the system has no random bytes. */
GR_NODISCARD gr_status gr_run_id_new(gr_hash *id, gr_diag *d);

/* Write the manifest of all files below dir, then read it back and compare it, and the sizes it names. Of the
 * n sealed files blocks that are not known yet are read; every other file is read. All other files are on the
 * disk already. *own: the manifest's hash; NULL: it is not asked for. */
GR_NODISCARD gr_status gr_manifest_write(const gr_manifest_head *head, const char *dir,
                                         gr_sealed_file *sealed, size_t n, gr_hash *own, gr_team *team,
                                         gr_diag *d);

typedef struct gr_manifest gr_manifest;

/* Read DIR/manifest.json. *out NULL with GR_OK: there is none. GR_E_INVALID: it is not whole, or none of
 * ours. */
GR_NODISCARD gr_status gr_manifest_read(gr_manifest **out, const char *dir, gr_diag *d);
void gr_manifest_free(gr_manifest *m); /* NULL is fine */

gr_manifest_head gr_manifest_says(const gr_manifest *m); /* texts and inputs live as long as m */
json_t *gr_manifest_inputs(const gr_manifest *m);        /* borrowed; NULL: it has none */
gr_hash gr_manifest_own(const gr_manifest *m);           /* its own hash */

/* Whether each file is there, as long as it was, and those that are no safetensors file with their bytes.
 * GR_E_INVALID with a message for each that is not. */
GR_NODISCARD gr_status gr_manifest_check(const gr_manifest *m, gr_diag *d);
/* The same, with all bytes of all files. */
GR_NODISCARD gr_status gr_manifest_verify(const gr_manifest *m, gr_team *team, gr_diag *d);

/* The seal of a safetensors file by its name in the folder; NULL: it is not named. */
const gr_seal *gr_manifest_seal(const gr_manifest *m, const char *name);

/* How many safetensors files it names, and tensors in them. */
void gr_manifest_count(const gr_manifest *m, uint64_t *files, uint64_t *tensors);
/* Two manifests' tensors and safetensors files are the same; else *what: "FILE, tensor NAME", caller frees.
 */
bool gr_manifest_same_tensors(const gr_manifest *a, const gr_manifest *b, char **what);

#endif
