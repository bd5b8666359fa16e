/* runtime/limits.h: how much of the machine this process may use. Containers, Slurm and systemd set limits by
 * control groups (versions 1 and 2; those above the process's own hold, too), taskset and cpusets by
 * affinity: who plans for the whole machine is killed for the memory that it takes, or waits for cores that
 * it has not.
 *
 * root: before the paths of /proc and /sys; "" but for tests.
 */
#ifndef GR_RUNTIME_LIMITS_H
#define GR_RUNTIME_LIMITS_H

#include "runtime/base.h"

/* Bytes of memory; UINT64_MAX: no group has a limit. */
uint64_t gr_group_memory(const char *root);
/* Cores' worth of time, rounded up; UINT_MAX: no group has a quota. */
unsigned gr_group_cores(const char *root);

uint64_t gr_usable_memory(void); /* bytes: the machine's, or less */
unsigned gr_usable_cores(void);  /* at least 1 */

#endif
