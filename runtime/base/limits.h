/* runtime/base/limits.h: how much of the machine this process may use. Containers, Slurm and systemd set
 * limits by control groups (versions 1 and 2; those above the process's own hold, too), taskset and cpusets
 * by affinity: a process that plans for the whole machine is killed for the memory that it takes, or waits
 * for cores that it does not have.
 *
 * root: before the paths of /proc and /sys; "" but for tests.
 */
#ifndef GR_RUNTIME_BASE_LIMITS_H
#define GR_RUNTIME_BASE_LIMITS_H

#include "runtime/base/base.h"

/* Bytes of memory; UINT64_MAX: no group has a limit. */
uint64_t gr_group_memory(const char *root);
/* Cores' worth of time, rounded up; UINT_MAX: no group has a quota. */
unsigned gr_group_cores(const char *root);

uint64_t gr_usable_memory(void); /* bytes: the machine's, or less */
unsigned gr_usable_cores(void);  /* at least 1 */

/* The cores that a process may run on, by their bits: launchers bind some ranks of a host to cores of their
 * own (srun --cpus-per-task, mpirun --bind-to core), and leave all cores to all of others. No bit: not known.
 */
typedef struct gr_core_set {
    uint64_t host;     /* a number of its host's: cores of several hosts are others */
    uint64_t word[16]; /* 1024 cores */
} gr_core_set;

gr_core_set gr_core_set_own(uint64_t host);
/* How many threads each rank of the host of sets[rank] may have, of n ranks: a core that several may run on
 * is divided among them. As many for each, by the one that has the fewest; at least 1, and 0 where a set is
 * not known. */
unsigned gr_core_sets_share(const gr_core_set *sets, uint32_t n, uint32_t rank);

#endif
