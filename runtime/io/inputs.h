/* runtime/io/inputs.h: everything that a run reads, by content: ranks compare it before the first
 * iteration, checkpoints record it, and --resume compares it with what is there then.
 *
 * An input is a file, or the output of a command: its kind, whose it is in the graph ("models.actor",
 * "nodes.train"), its name there, its bytes, and the plain hash of all of them (runtime/io/seal.h), as
 * `xxh128sum` prints it. Two lists have an input in common where owner and name are the same; of data where
 * the owner is. An owner that only one of two lists names is not compared: a rank lists what it reads, a run
 * what it reads now. Weights are an owner apart from the rest of their model, for a resumed run has its own.
 *
 * Weights are large: they are hashed by threads of their own, from gr_inputs_begin to gr_inputs_end, beside
 * what may load them meanwhile. Ranks of one host that see one file (device, inode, size and times are the
 * same) share the work: one of them hashes it. Everything else is hashed when it is added.
 *
 * No hash is kept from one start to the next: times of a file do not show every change (one through a mapping
 * that is open already, one by a damaged disk), and only reading it again shows it.
 *
 * Threads: one at a time, but for gr_inputs_unchanged, which any may call once the list is complete.
 */
#ifndef GR_RUNTIME_IO_INPUTS_H
#define GR_RUNTIME_IO_INPUTS_H

#include <jansson.h>

#include "runtime/comm/comm.h"
#include "runtime/io/seal.h"

#define GR_INPUT_MAP(X)       \
    X(PROGRAM, "program")     \
    X(GRAPH, "graph")         \
    X(CONFIG, "config")       \
    X(WEIGHTS, "weights")     \
    X(TOKENIZER, "tokenizer") \
    X(TEMPLATE, "template")   \
    X(DATA, "data")           \
    X(WORKER, "worker")
typedef enum gr_input_kind {
#define X(name, text) GR_INPUT_##name,
    GR_INPUT_MAP(X)
#undef X
        GR_N_INPUT_KINDS
} gr_input_kind;

/* Texts belong to the list. */
typedef struct gr_input {
    gr_input_kind kind;
    const char *owner, *name;
    const char *path; /* NULL: no file */
    const char *same; /* a text that is another one for another file of its host, or as of another time; NULL:
                         no file, or another host's */
    uint64_t bytes;
    gr_hash hash;
    bool hashed;
} gr_input;

typedef struct gr_inputs gr_inputs;

/* Owners, "nodes.NAME" and "models.NAME"; caller frees. */
char *gr_inputs_node(const char *name);
char *gr_inputs_model(const char *name);

gr_inputs *gr_inputs_new(void);
void gr_inputs_free(gr_inputs *in); /* NULL is fine; ends the threads */

size_t gr_inputs_count(const gr_inputs *in);
const gr_input *gr_inputs_at(const gr_inputs *in, size_t i); /* in the order they were added */

/* A regular file. GR_E_IO where it cannot be read. */
GR_NODISCARD gr_status gr_inputs_add_file(gr_inputs *in, gr_input_kind kind, const char *owner,
                                          const char *name, const char *path, gr_diag *d);
/* What was read already. Texts are copied. */
void gr_inputs_add(gr_inputs *in, gr_input what);

/* Begin to hash weights, on so many threads. All ranks of c (NULL: there is one) call it together. */
GR_NODISCARD gr_status gr_inputs_begin(gr_inputs *in, gr_comm *c, unsigned threads, gr_diag *d);
/* Wait for it; all ranks together. GR_E_INVALID on all of them where their lists differ: the messages, which
 * name the file, the ranks, their hosts and both contents, are rank 0's. From then on the list of rank 0 has
 * what any rank reads. */
GR_NODISCARD gr_status gr_inputs_end(gr_inputs *in, gr_comm *c, gr_diag *d);
/* Weights have been loaded: from the files that were added, or it is GR_E_INVALID. */
GR_NODISCARD gr_status gr_inputs_loaded(const gr_inputs *in, gr_diag *d);

/* A list as JSON: [{"kind", "owner", "name", "path", "bytes", "xxh3"}, ...]; json_decref it. */
json_t *gr_inputs_json(const gr_inputs *in);

/* Hold the list against the one that a checkpoint has pinned. Each input that is another one, is gone or is
 * new is named with what it was and what it is: as errors, GR_E_INVALID; or, where changes are accepted, as
 * warnings. Another program is a warning in any case, another graph is not looked at: its changes are asked
 * for. Weights that are not read any more are taken over from the old list, so that the next checkpoint pins
 * them too. from: the file that pins them, for messages. */
GR_NODISCARD gr_status gr_inputs_hold(gr_inputs *in, const json_t *pinned, const char *from, bool accept,
                                      gr_diag *d);

/* Read the files of an owner again, its weights left out: GR_E_FAILED, naming them, where they are not what
 * they were. NULL in: nothing is known of them. */
GR_NODISCARD gr_status gr_inputs_unchanged(const gr_inputs *in, const char *owner, gr_diag *d);

#endif
