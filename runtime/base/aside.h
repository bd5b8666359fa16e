/* runtime/base/aside.h: temporary names: a file is written beside its place, and takes that place when it is
 * whole.
 *
 * The name is PATH.graphrun-XXXXXXXX, eight random hexadecimal digits: no other program gives it, and no two
 * writers share it. While it is written it is locked (flock); a process that dies leaves it unlocked. So it
 * is recognised, and removed when the same place is written again. Where a file system has no
 * locks, or none for folders, nothing is removed. Nothing that was there before is opened or followed.
 *
 * Threads: any number at once.
 */
#ifndef GR_RUNTIME_BASE_ASIDE_H
#define GR_RUNTIME_BASE_ASIDE_H

#include "runtime/base/base.h"

/* Make an empty file, or folder, beside path, for this process alone. Returns its descriptor (a file's is
 * open for writing, a folder's for fsync), whose close ends the lock; -1 with errno. *aside: its path, caller
 * frees. */
int gr_aside_new(char **aside, const char *path, bool folder);

/* Remove what processes that are gone left beside path; NULL: beside any file of the folder dir, and in it
 * files alone. What cannot be removed stays. */
void gr_aside_sweep(const char *dir, const char *path);

#endif
