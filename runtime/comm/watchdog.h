/* runtime/comm/watchdog.h: whether the ranks of a run go on.
 *
 * Each process notes what its threads are at: a step of the plan, for which a limit is known; something
 * between steps; or a call that waits for other ranks. The process sends that as a sign of life
 * (runtime/comm/comm_mpi.c), and rank 0 judges by the signs of all:
 *   - a rank that gives none for GR_COMM_SILENCE seconds is lost;
 *   - one that has been at one step for longer than its limit hangs, if another has waited for others for
 *     GR_WATCHDOG_PATIENCE seconds, or for as long as that limit. Where nobody waits, it only takes long,
 *     which is fine;
 *   - where all wait, for longer than their limits, the run hangs.
 *
 * Only one message is printed, about the rank that the others wait for.
 *
 * Threads: any thread may call what notes; a lane is one thread's at a time. The texts of
 * steps outlive the run. Seconds are of CLOCK_MONOTONIC.
 */
#ifndef GR_RUNTIME_COMM_WATCHDOG_H
#define GR_RUNTIME_COMM_WATCHDOG_H

#include "runtime/base/base.h"

#define GR_WATCHDOG_LANES    8  /* numbered from 0 */
#define GR_WATCHDOG_PATIENCE 10 /* seconds */
#define GR_WATCHDOG_TIMEOUT \
    600 /* seconds that what is between steps may take, until gr_watchdog_between says otherwise */

#define GR_WATCHDOG_SILENCE                                                       \
    "GRAPHRUN_SILENCE" /* in the environment: seconds in place of GR_COMM_SILENCE \
                        */

/* Steps outside of the plan, as gr_watchdog_at is told them. */
#define GR_WATCHDOG_BEFORE "start of the process"
#define GR_WATCHDOG_JOINS  "MPI_Init"
#define GR_WATCHDOG_LEAVES "MPI_Finalize"
#define GR_WATCHDOG_LEFT   "end of the process"

typedef struct gr_sign {
    uint32_t iteration;
    uint32_t seconds; /* how long it has been at this step, or waits */
    uint32_t limit;   /* seconds; 0: none */
    bool waits;       /* for other ranks, or for its device to finish */
    bool watched;     /* by the other ranks: it has joined them, and has not left them */
    char step[96];
} gr_sign;

/* ---- what this process is at ---- */

/* The calling thread begins a step, on its lane; and is done with it. */
void gr_watchdog_step(unsigned lane, uint32_t iteration, const char *step, uint32_t limit);
void gr_watchdog_done(unsigned lane);
/* What the calling thread is at goes on, and may take so long from now, if that is longer than its limit. */
void gr_watchdog_goes_on(uint32_t limit);
/* How long what is done between the paths of the plan may take. */
void gr_watchdog_between(uint32_t limit);
/* Lanes have the word, until false. Where none is at a step the process waits for its device, so long at
 * most, if that does steps later; else it is between two steps. */
void gr_watchdog_path(bool runs, bool later, uint32_t limit);
/* The calling thread waits for other ranks, until false. */
void gr_watchdog_wait(bool waits);

/* The process is at a step outside of the plan, of a text that outlives it. */
void gr_watchdog_at(const char *step, bool watched);

/* The last step that began, "start" before there was one: for messages. */
void gr_watchdog_where(uint32_t *iteration, const char **step);
/* Told again whenever that changes to `board`: n signs, one a rank, that another process of this host reads.
 * NULL: to nobody. tell_of: what was heard of a rank of another host, which cannot tell by itself. */
void gr_watchdog_tell(gr_sign *board, uint32_t rank, uint32_t n);
void gr_watchdog_tell_of(uint32_t rank, const gr_sign *heard);

/* A sign of this process: the step that has taken longest of those that lanes are at; where all wait, the
 * wait. */
void gr_watchdog_sign(gr_sign *out);

/* ---- what rank 0 makes of it ---- */

/* Seconds without a sign of life after which a rank is lost; GR_E_INVALID, gr_watchdog_set_silence, for a
 * text that is no such number. */
GR_NODISCARD gr_status gr_watchdog_set_silence(const char *text, gr_diag *d);
uint32_t gr_watchdog_silence(void);
/* The same of what other ranks, or mpirun, are to notice before: joining them, leaving them. */
uint32_t gr_watchdog_silence_alone(void);

typedef struct gr_watched {
    gr_sign sign;
    uint64_t heard_ns; /* when it came */
    const char *host;
} gr_watched;

/* Why the run must end, naming a rank; the caller frees it. NULL: it goes on. lost: of silence alone. */
char *gr_watchdog_lost(const gr_watched *ranks, uint32_t n, uint64_t now_ns);
char *gr_watchdog_judge(const gr_watched *ranks, uint32_t n, uint64_t now_ns);

#endif
