/* runtime/base/files.h: files and folders: read whole, written whole or not at all.
 */
#ifndef GR_RUNTIME_BASE_FILES_H
#define GR_RUNTIME_BASE_FILES_H

#include "runtime/base/base.h"

/* Open a file for reading; the caller closes *fd. GR_E_IO with the reason, or GR_E_INVALID for a pipe, a
 * socket or a device: reading one would wait for others, or never end. Both name the file. */
GR_NODISCARD gr_status gr_file_open(int *fd, const char *path, gr_diag *d);

/* The whole file, with a NUL after its end. *out: caller frees with free(). limit_bytes refuses larger
 * files (0: no limit). Errors as above, but that /dev/stdin, /dev/fd/N and /proc/self/fd/N, which somebody
 * has named on purpose, may be pipes and devices. */
GR_NODISCARD gr_status gr_file_read(const char *path, size_t limit_bytes, char **out, size_t *n, gr_diag *d);

/* Write path so that it appears whole or not at all: a sibling of a name of its own (runtime/base/aside.h),
 * fsync, rename, fsync of the directory. A symbolic link is followed, one to nothing refused; what is no
 * regular file (a pipe, /dev/stdout) is written into. */
GR_NODISCARD gr_status gr_file_write(const char *path, const void *bytes, size_t n, gr_diag *d);

/* Copy a file of one folder into another, under its name. Where it is not there nothing is done, else *found
 * becomes true. */
GR_NODISCARD gr_status gr_file_copy(const char *from_dir, const char *name, const char *to_dir, bool *found,
                                    gr_diag *d);

/* mkdir -p. */
GR_NODISCARD gr_status gr_dir_make(const char *path, gr_diag *d);

/* fsync a directory, so that renames inside it survive a power cut. */
GR_NODISCARD gr_status gr_dir_sync(const char *path, gr_diag *d);

/* Remove a file or a whole directory tree; a missing one is fine. */
GR_NODISCARD gr_status gr_path_remove(const char *path, gr_diag *d);
/* What is there and cannot be looked at counts as being there: who opens it learns why. */
bool gr_path_exists(const char *path);
/* The absolute path without links and dots; NULL, with errno, where there is no such file. Free with free().
 */
char *gr_path_real(const char *path);

/* Call fn for each name in a folder but . and .., until one fails; a missing folder has none. GR_E_IO where
 * not all of it can be read. */
GR_NODISCARD gr_status gr_dir_each(const char *dir,
                                   gr_status (*fn)(void *user, const char *dir, const char *name, gr_diag *d),
                                   void *user, gr_diag *d);

#endif
