/* runtime/run/executor.h: run a plan: one thread a lane, exactly the plan's steps, waits by events.
 *
 * Where the device runs work later than it is given (CUDA), a step is done, for the lanes, when it is
 * enqueued, and the queues wait for each other on the device as the lanes do here: by the events of the steps
 * in `after`, and where lanes meet in loops. A path ends when the device has done everything. Profilers see
 * each step as a range (NVTX) of its name on its lane's thread.
 *
 * The executor does load, offload, fetch, store, release, resume and loops itself; what the other steps mean
 * it asks through hooks. The calling thread is the compute lane.
 *
 * Any hook's failure stops all lanes after their current step; the first failure's status and messages are
 * returned.
 */
#ifndef GR_RUNTIME_RUN_EXECUTOR_H
#define GR_RUNTIME_RUN_EXECUTOR_H

#include "memplan/plan/plan.h"
#include "runtime/device/device.h"
#include "runtime/device/disk.h"
#include "runtime/run/memory_check.h"

typedef struct gr_exec_hooks {
    void *user;
    /* Run step i of a path: run, save, restore, and what ranks do together. Called on the step's lane,
     * concurrently with other lanes. */
    gr_status (*run)(void *user, gr_path_id path, uint32_t i, gr_queue *q, gr_diag *d);
    /* An agreed loop: whether trip number trip (from 0) is to run. Called on the compute lane, at most
     * trips_max times. */
    bool (*more)(void *user, gr_path_id path, uint32_t i, uint32_t trip);
    /* Whether step i, which is a node's or a transition on its behalf, is skipped this time: constant during
     * a path. Asked of all such steps before it begins. May be NULL. */
    bool (*skip)(void *user, gr_path_id path, uint32_t i);
} gr_exec_hooks;

/* Seconds by step and lane, for traces; called from the lane's thread after each step when set. */
typedef void (*gr_exec_trace)(void *user, gr_path_id path, uint32_t i, uint32_t trip, uint64_t begin_ns,
                              uint64_t end_ns);

typedef struct gr_executor gr_executor;

typedef struct gr_exec_options {
    const gr_device_type *device; /* NULL: the CPU device */
    unsigned threads;             /* of the compute lane's queue */
    unsigned host_threads;        /* of the host lane's, for kernels that run there; 0 and 1: its own alone */
    const char *disk;    /* folder for what a plan keeps on a disk; NULL: it may keep nothing there */
    bool poison;         /* check each step: see below */
    gr_exec_trace trace; /* may be NULL */
    void *trace_user;
} gr_exec_options;

/* Takes the arena and the host pool that the plan asks for. plan and hooks must outlive it. */
GR_NODISCARD gr_status gr_executor_new(gr_executor **out, const gr_plan *plan, const gr_exec_hooks *hooks,
                                       const gr_exec_options *o, gr_diag *d);
void gr_executor_free(gr_executor *e); /* NULL is fine */

/* Run one path to its end. */
GR_NODISCARD gr_status gr_executor_path(gr_executor *e, gr_path_id path, gr_diag *d);

/* The arena. */
const gr_memory *gr_executor_arena(const gr_executor *e);

/* So many bytes at the end of the host pool; NULL: entries lie there. */
void *gr_executor_spare(const gr_executor *e, uint64_t bytes);

/* The queue of a lane. */
gr_queue *gr_executor_queue(gr_executor *e, gr_lane lane);

/* Where a ledger entry lies: address in the arena or the host pool. */
void *gr_executor_address(const gr_executor *e, uint32_t entry);

/* Measured so far: the most device bytes in use, as the system counts them. */
uint64_t gr_executor_measured_peak(gr_executor *e);

/* Device bytes in use now beside the arena, as the driver counts them: of context, libraries and loaded
 * kernels, and of other processes. 0 on the CPU device, whose memory is taken as it is touched. */
uint64_t gr_executor_overhead(gr_executor *e);

/* What it has done on the disk so far; all 0 where it has none. Between paths. */
gr_disk_use gr_executor_disk(const gr_executor *e);

/* With poison: all bytes of arena and pool that no live entry of the step covers are filled with a pattern
 * before it and must hold it after it, and entries that a step only reads must be unchanged: a step that
 * touches what it did not declare fails. Steps on other lanes are then run one at a time. What was touched is
 * measured; all 0 without poison. */
gr_touched gr_executor_touched(const gr_executor *e);

#endif
