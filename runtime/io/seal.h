/* runtime/io/seal.h: hashes that identify bytes: of files, and of the tensors of a safetensors file.
 *
 * The hash is xxh3 of 128 bits, in xxhash's canonical (big-endian) form, without a seed. It finds damage, not
 * forgery: it is no cryptographic hash.
 *
 * A tensor is hashed by blocks of GR_SEAL_BLOCK bytes, counted from its own first byte. The hash of a tensor
 * of up to one block is that of its bytes; of a larger one that of its blocks' hashes, one after another. So
 * a hash does not depend on how many ranks or threads wrote the tensor, and who reads a part of it can tell
 * that part alone. The hash of a safetensors file is that of the hash of its header (all that stands before
 * the tensors' bytes) followed by its tensors' hashes, in the order of the file; of any other file, of its
 * bytes.
 *
 * Threads: of a seal different blocks may be hashed by different threads; all else is one thread's.
 */
#ifndef GR_RUNTIME_IO_SEAL_H
#define GR_RUNTIME_IO_SEAL_H

#include <stdatomic.h>

#include "runtime/base/base.h"
#include "runtime/base/threads.h"

#define GR_SEAL_BLOCK (UINT64_C(1) << 20) /* bytes; the last block of a tensor may be shorter */

enum { GR_HASH_HEX = 33 }; /* characters of a hash as text, and the NUL */

typedef struct gr_hash {
    uint8_t byte[16];
} gr_hash;

gr_hash gr_hash_bytes(const void *bytes, uint64_t n);
/* The plain hash of a file, read once, and its size. */
GR_NODISCARD gr_status gr_hash_file(const char *path, gr_hash *hash, uint64_t *bytes, gr_diag *d);
/* The same of a safetensors file's header, with the length before it. */
GR_NODISCARD gr_status gr_hash_header(const char *path, gr_hash *hash, uint64_t *bytes, gr_diag *d);
bool gr_hash_same(gr_hash a, gr_hash b);
const char *gr_hash_hex(gr_hash h, char text[GR_HASH_HEX]); /* lower case; returns text */
bool gr_hash_parse(const char *text, gr_hash *h);           /* exactly 32 lower-case digits, then any text */

/* ---- the tensors of one file --------------------------------------------------------------------------- */

typedef struct gr_seal_tensor {
    char *name;
    uint64_t bytes, first_block, n_blocks;
} gr_seal_tensor;

/* A block's hash is all zero until it is known. */
typedef struct gr_seal {
    gr_hash header; /* set by gr_seal_complete */
    gr_seal_tensor *tensors;
    size_t n, cap;
    gr_hash *blocks;
    size_t n_blocks;
} gr_seal;

gr_seal *gr_seal_new(void);
void gr_seal_free(gr_seal *s); /* NULL is fine */
/* The next tensor of the file; all are added before the first is hashed. */
void gr_seal_add(gr_seal *s, const char *name, uint64_t bytes);
/* NULL: it has none of that name. */
const gr_seal_tensor *gr_seal_find(const gr_seal *s, const char *name);
/* Bytes of a tensor's block: first and how many. */
uint64_t gr_seal_block(const gr_seal_tensor *t, uint64_t block, uint64_t *first);
gr_hash gr_seal_tensor_hash(const gr_seal *s, const gr_seal_tensor *t);
gr_hash gr_seal_file_hash(const gr_seal *s);

/* Bytes [first, first + n) of a tensor are at data: the blocks that lie in them wholly are hashed, those cut
 * by an end stay unknown. Begin, then any number of threads take blocks until none is left. */
typedef struct gr_sealing {
    gr_seal *seal;
    size_t tensor;
    const char *data;
    uint64_t first, end; /* blocks */
    uint64_t from;       /* the byte of the tensor that data begins with */
    _Atomic uint64_t next;
} gr_sealing;

void gr_sealing_begin(gr_sealing *s, gr_seal *seal, size_t tensor, uint64_t first, uint64_t n,
                      const void *data);
/* Hash the next block; false: none was left. */
bool gr_sealing_one(gr_sealing *s);

/* Read what is not known yet, the header and blocks, from the file. Its tensors are those of the seal, or it
 * is GR_E_INVALID. */
GR_NODISCARD gr_status gr_seal_complete(gr_seal *s, const char *path, gr_team *team, gr_diag *d);
/* A seal of all that the file has. */
GR_NODISCARD gr_status gr_seal_read(gr_seal **out, const char *path, gr_team *team, gr_diag *d);

/* Say that what was read is not what was hashed when it was written; GR_E_INVALID. */
gr_status gr_seal_differs(const char *path, const char *tensor, gr_diag *d);
gr_status gr_seal_header_differs(const char *path, gr_diag *d);

#endif
