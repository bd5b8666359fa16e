/* runtime/io/inputs_parts.h: the parts of a list of inputs; private to runtime/inputs*.c.
 *
 *     inputs.c        the list, its hashes, its JSON, and what has changed since it was written
 *     inputs_ranks.c  who of the ranks hashes what, and whether they read the same
 */
#ifndef GR_RUNTIME_IO_INPUTS_PARTS_H
#define GR_RUNTIME_IO_INPUTS_PARTS_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/base/index.h"
#include "runtime/io/inputs.h"

/* Threads that hash the files that are asked for. */
typedef struct gr_hashing {
    gr_inputs *in;
    size_t *wanted; /* inputs */
    size_t n_wanted;
    atomic_size_t next; /* of wanted */
    atomic_bool stop;
    struct gr_hasher {
        struct gr_hashing *of;
        pthread_t thread;
        gr_diag d;
        gr_status st;
    } * hashers; /* [n_hashers] */
    unsigned n_hashers;
} gr_hashing;

/* What a rank has told of itself. */
typedef struct gr_inputs_told {
    gr_inputs *in;
    char *host;
} gr_inputs_told;

struct gr_inputs {
    gr_arena *arena; /* texts */
    gr_input *at;
    size_t n, cap;
    gr_hashing hashing;
    gr_inputs_told *told; /* [n_told] rank 0's, from begin to end */
    uint32_t n_told;
};

/* ---- inputs.c ---- */

/* Hash these inputs of the list; wanted is taken over. */
gr_status gr_hashing_begin(gr_inputs *in, size_t *wanted, size_t n_wanted, unsigned threads, gr_diag *d);
/* Wait until it is done. Fine where it has not begun. */
gr_status gr_hashing_end(gr_inputs *in, gr_diag *d);

/* As gr_inputs_json; same: with what tells one file from another on its host. */
json_t *gr_inputs_list(const gr_inputs *in, bool same);
/* Add what a list in JSON has; false: it is none. */
bool gr_inputs_read(gr_inputs *to, const json_t *list);

/* A hash in JSON; false: it is none. */
bool gr_input_hash_of(const json_t *text, gr_hash *out);

/* "12 bytes, xxh3 HASH ('PATH')"; the caller frees it. */
char *gr_input_describe(const gr_input *x);

/* A list by owner and name. Asking takes of its pool: one thread at a time. */
typedef struct gr_inputs_index {
    gr_arena *arena;
    gr_index inputs, owners;
} gr_inputs_index;
gr_inputs_index gr_inputs_index_of(const gr_inputs *in);
void gr_inputs_index_release(gr_inputs_index *x);
/* UINT32_MAX: it is not there. */
uint32_t gr_inputs_find(const gr_inputs_index *x, const gr_input *like);
uint32_t gr_inputs_find_owner(const gr_inputs_index *x, const gr_input *like); /* its first input */
bool gr_input_same(const gr_input *a, const gr_input *b);

#endif
