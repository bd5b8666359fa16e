/* runtime/io/safetensors.h: read and write safetensors files, one or a sharded set.
 *
 * A file is: header length (u64, little-endian), a JSON header, bytes. Nothing in a header is trusted: every
 * length, offset and product is checked against the size of the file before it is used, and tensors must
 * cover the bytes without overlap or hole, as the format demands. Tensor data is read with pread, exactly
 * where it is asked for; the files are not mapped.
 *
 * Threads: an open set does not change; any thread may read from it. A writer belongs to one thread.
 * Source: the format description of the safetensors library, version 0.6.
 */
#ifndef GR_RUNTIME_IO_SAFETENSORS_H
#define GR_RUNTIME_IO_SAFETENSORS_H

#include "runtime/base/base.h"
#include "runtime/base/threads.h"

#define GR_ST_DTYPE_MAP(X) /* name, bits */ \
    X(F32, 32)                              \
    X(BF16, 16)                             \
    X(F16, 16)                              \
    X(F64, 64)                              \
    X(I64, 64)                              \
    X(I32, 32)                              \
    X(I16, 16)                              \
    X(I8, 8)                                \
    X(U64, 64)                              \
    X(U32, 32)                              \
    X(U16, 16)                              \
    X(U8, 8)                                \
    X(BOOL, 8)                              \
    X(C64, 64)                              \
    X(F8_E4M3, 8)                           \
    X(F8_E5M2, 8)                           \
    X(F8_E8M0, 8)                           \
    X(F6_E2M3, 6)                           \
    X(F6_E3M2, 6)                           \
    X(F4, 4)

typedef enum gr_st_dtype {
#define X(name, bits) GR_ST_##name,
    GR_ST_DTYPE_MAP(X)
#undef X
} gr_st_dtype;

const char *gr_st_dtype_str(gr_st_dtype t);

#define GR_ST_HEADER_MAX 100000000u /* bytes of a header's JSON; the limit of the format's own library */

/* ---- reading ------------------------------------------------------------------------------------------ */

typedef struct gr_st_tensor {
    const char *name, *file; /* file: path, for messages */
    gr_st_dtype dtype;
    uint32_t n_dims, fd_index;
    const uint64_t *dims;   /* [n_dims]; none for a scalar */
    uint64_t offset, bytes; /* in the file */
} gr_st_tensor;

typedef struct gr_safetensors gr_safetensors;

/* Open a .safetensors file, a .index.json of a sharded set, or a folder that holds model.safetensors or
 * model.safetensors.index.json. Only headers are read. Tensors of a shard that the index does not name are
 * left out, with a warning; refused are a tensor that is in two shards, and a file of the set's name that its
 * index does not name. GR_E_IO, or GR_E_INVALID with a message that names file and tensor. */
GR_NODISCARD gr_status gr_safetensors_open(gr_safetensors **out, const char *path, gr_diag *d);
void gr_safetensors_free(gr_safetensors *s); /* NULL is fine */

size_t gr_safetensors_count(const gr_safetensors *s);
const gr_st_tensor *gr_safetensors_at(const gr_safetensors *s, size_t i);           /* sorted by name */
const gr_st_tensor *gr_safetensors_find(const gr_safetensors *s, const char *name); /* NULL: not there */

/* From here on all that is read is held to a seal, which lives as long: a block of a tensor with another hash
 * is GR_E_INVALID, and so is, at once, another header. Of a block that is read in part the rest is read, too.
 * Of one file; an index is GR_E_INVALID. */
struct gr_seal;
GR_NODISCARD gr_status gr_safetensors_hold(gr_safetensors *s, const struct gr_seal *seal, gr_diag *d);

/* Check that a tensor is there as [rows, cols] (cols 0: [rows]; [rows, 1, cols] is the same) in F32, BF16 or
 * F16; returns it, or NULL with a message. */
const gr_st_tensor *gr_safetensors_want(const gr_safetensors *s, const char *name, uint64_t rows,
                                        uint64_t cols, gr_diag *d);

/* The same of a shape of n dimensions. */
const gr_st_tensor *gr_safetensors_want_shape(const gr_safetensors *s, const char *name, const uint64_t *dims,
                                              size_t n, gr_diag *d);
/* The same in U8. */
const gr_st_tensor *gr_safetensors_want_bytes(const gr_safetensors *s, const char *name, const uint64_t *dims,
                                              size_t n, gr_diag *d);

/* The same in F8_E4M3, whose values alone are not weights (ops/model/scales.h). */
const gr_st_tensor *gr_safetensors_want_e4m3(const gr_safetensors *s, const char *name, const uint64_t *dims,
                                             size_t n, gr_diag *d);

/* Elements [first, first + n) of a tensor that was wanted, as fp32; and bytes. */
GR_NODISCARD gr_status gr_safetensors_read_elems(const gr_safetensors *s, const gr_st_tensor *t,
                                                 uint64_t first, uint64_t n, float *dst, gr_diag *d);
GR_NODISCARD gr_status gr_safetensors_read_bytes(const gr_safetensors *s, const gr_st_tensor *t,
                                                 uint64_t first, uint64_t n, uint8_t *dst, gr_diag *d);

/* Read it as fp32 into dst [rows * max(cols, 1)]; BF16 and F16 convert exactly, F32 keeps its bits. */
GR_NODISCARD gr_status gr_safetensors_read_f32(const gr_safetensors *s, const char *name, uint64_t rows,
                                               uint64_t cols, float *dst, gr_diag *d);

/* Elements [first, first + n) of it alone; no other bytes are read. */
GR_NODISCARD gr_status gr_safetensors_read_part_f32(const gr_safetensors *s, const char *name, uint64_t rows,
                                                    uint64_t cols, uint64_t first, uint64_t n, float *dst,
                                                    gr_diag *d);

/* ---- writing ------------------------------------------------------------------------------------------ */

typedef struct gr_st_spec {
    const char *name;
    uint64_t rows, cols; /* cols 0: [rows] */
    bool thin;           /* [rows, 1, cols] */
    uint64_t depth;      /* not 0: [depth, rows / depth, cols] */
    bool turned;         /* [depth, cols, rows / depth] */
    bool exact;          /* fp32 whatever the others are */
} gr_st_spec;

typedef struct gr_st_writer gr_st_writer;

/* Begin DIR/STEM.safetensors with n tensors of one dtype (GR_ST_F32 or GR_ST_BF16), but for exact ones. Where
 * their bytes exceed shard_bytes (0: never), DIR/STEM-0000i-of-0000n.safetensors and
 * DIR/STEM.safetensors.index.json instead; a tensor is never split. Files are written aside, as NAME.tmp in a
 * folder that is the writer's alone (one that is there is refused), and appear, whole, in
 * gr_st_writer_finish. specs and their names are copied. */
GR_NODISCARD gr_status gr_st_writer_new(gr_st_writer **out, const char *dir, const char *stem,
                                        gr_st_dtype dtype, const gr_st_spec *specs, size_t n,
                                        uint64_t shard_bytes, gr_diag *d);

/* Several processes may write one file (shard_bytes 0, GR_ST_F32): one begins it with gr_st_writer_new, then
 * the others join it, with the same specs; each puts what it has where it belongs. The one that began it
 * finishes it when the others have finished. */
GR_NODISCARD gr_status gr_st_writer_join(gr_st_writer **out, const char *dir, const char *stem,
                                         const gr_st_spec *specs, size_t n, gr_diag *d);
/* From here on parts are hashed while they are written, into a seal with the tensors of specs, which lives as
 * long as the writer. */
void gr_st_writer_seal(gr_st_writer *w, struct gr_seal *seal);
/* Elements [first, first + n) of tensor i. A writer is given all tensors one after another, or parts. The
 * team (NULL: none) hashes while one of it writes. */
GR_NODISCARD gr_status gr_st_writer_put_part(gr_st_writer *w, gr_team *team, size_t i, uint64_t first,
                                             uint64_t n, const float *src, gr_diag *d);

/* Give the next tensor, in the order of specs: all its elements. BF16 rounds to nearest even. */
GR_NODISCARD gr_status gr_st_writer_put(gr_st_writer *w, const float *src, gr_diag *d);

/* Give the next n elements of it, where it is given in pieces: the last one ends where it does. */
GR_NODISCARD gr_status gr_st_writer_put_piece(gr_st_writer *w, const float *src, uint64_t n, gr_diag *d);

/* All tensors were given: sync, rename, write the index. The writer is to be freed in any case. */
GR_NODISCARD gr_status gr_st_writer_finish(gr_st_writer *w, gr_diag *d);
void gr_st_writer_free(gr_st_writer *w); /* NULL is fine; removes what was not finished */

#endif
