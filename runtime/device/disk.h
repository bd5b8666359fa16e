/* runtime/device/disk.h: a file on a disk that holds what a plan keeps there, for as long as a run lasts.
 *
 * The file has no name: when the process ends, however it does, its bytes are free again. All of them are
 * reserved when it is opened, so that a run never finds the disk full later. It is read and written past the
 * page cache (O_DIRECT), many parts at a time (io_uring). Where a file system or the system itself has not
 * one of the two, the other way round it is taken, and said. What was written is hashed, and held to that
 * when it is read again.
 *
 * Units: bytes. Addresses in memory and offsets are multiples of GR_DISK_BLOCK; lengths are not.
 * Threads: one at a time.
 */
#ifndef GR_RUNTIME_DEVICE_DISK_H
#define GR_RUNTIME_DEVICE_DISK_H

#include "runtime/base/base.h"

#define GR_DISK_BLOCK 4096

typedef struct gr_disk gr_disk;

/* A file of so many bytes in a folder. GR_E_INVALID: it is no folder, or one in memory; GR_E_IO: it cannot be
 * written, or has no room. Warns of a way round. */
GR_NODISCARD gr_status gr_disk_open(gr_disk **out, const char *folder, uint64_t bytes, gr_diag *d);
void gr_disk_close(gr_disk *k); /* NULL is fine */

/* All of the bytes are there, or it is an error. What is read was written by one call, of as many bytes at
 * that offset, and is GR_E_IO where it is not as it was then. */
GR_NODISCARD gr_status gr_disk_write(gr_disk *k, uint64_t offset, const void *from, uint64_t bytes,
                                     gr_diag *d);
GR_NODISCARD gr_status gr_disk_read(gr_disk *k, uint64_t offset, void *to, uint64_t bytes, gr_diag *d);

/* Measured so far. */
typedef struct gr_disk_use {
    uint64_t taken;         /* of the disk, as the file system counts them */
    uint64_t touched;       /* up to where the file has been written */
    uint64_t read, written; /* by all calls */
    uint64_t read_ns, write_ns;
} gr_disk_use;
gr_disk_use gr_disk_used(const gr_disk *k);

#endif
