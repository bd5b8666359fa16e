/* tests/faults/faults.h: what the preloaded library (inject.c) tells those who run programs under it.
 *
 * Both sides are built from this header; nothing of it is kept on a disk beyond a test.
 */
#ifndef GR_TESTS_FAULTS_H
#define GR_TESTS_FAULTS_H

#include <stdint.h>

/* Kinds of calls, by what fails with them. */
/* clang-format off */
#define FAULT_KINDS(X) \
    X(open) \
    X(read) \
    X(write) \
    X(flush) \
    X(close) \
    X(sync) \
    X(size) \
    X(rename) \
    X(link) \
    X(unlink) \
    X(mkdir) \
    X(dir) \
    X(stat) \
    X(lock) \
    X(memory) \
    X(map) \
    X(process) \
    X(poll) \
    X(thread)
/* clang-format on */

enum fault_kind {
#define X(name) FAULT_##name,
    FAULT_KINDS(X)
#undef X
        FAULT_N_KINDS
};

/* In a file that processes share. */
typedef struct fault_counts {
    uint64_t n[FAULT_N_KINDS]; /* calls so far */
    uint64_t injected;         /* of them those that were made to fail */
    char what[1024];           /* the last of those: function, file, caller */
} fault_counts;

enum trace_op {
    TRACE_OPEN,     /* path; fd, flags */
    TRACE_WRITE,    /* fd, offset; n bytes */
    TRACE_SYNC,     /* fd: of a file or a folder */
    TRACE_TRUNCATE, /* fd; offset: the new size */
    TRACE_RENAME,   /* path; n bytes: the new path */
    TRACE_LINK,     /* path; n bytes: the new path */
    TRACE_SYMLINK,  /* path; n bytes: what it points at */
    TRACE_UNLINK,   /* path, of a file or a folder */
    TRACE_MKDIR     /* path */
};

/* What succeeded, in order; behind each the whole path (path_bytes) and n bytes. */
typedef struct trace_record {
    uint32_t op;
    int32_t fd, flags;
    uint32_t path_bytes;
    uint64_t offset, n;
} trace_record;

#endif
