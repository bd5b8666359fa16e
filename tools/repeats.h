/* tools/repeats.h: how far measurements of the same thing differ, and whether this machine had time for them.
 *
 * A calibration measures the same things in rounds. Each is kept with the round's seconds; how far apart they
 * are says how sure the file is. Waits are the system's own count of the time that threads of this process
 * were ready to run, and others ran.
 *
 * Threads: one.
 */
#ifndef GR_TOOLS_REPEATS_H
#define GR_TOOLS_REPEATS_H

#include "runtime/base/base.h"

/* One thing, and the seconds that it took in the rounds so far. */
typedef struct gr_repeat {
    char name[64]; /* "backward of 64 rows, width 128" */
    double least, most, sum;
    uint32_t n;
} gr_repeat;

typedef struct gr_repeats {
    gr_repeat *list;
    uint32_t n, cap;
    uint32_t at; /* the thing that is measured next in this round */
} gr_repeats;

void gr_repeats_release(gr_repeats *r);

/* A round measures the same things in the same order. */
void gr_repeats_round(gr_repeats *r);
/* The next thing took so long; of the first round the name is kept. */
GR_PRINTF(3, 4) void gr_repeats_add(gr_repeats *r, double seconds, const char *name, ...);

/* (most - least) / mean of one thing; 0 of one that was measured once. */
double gr_repeat_spread(const gr_repeat *r);
/* Of half of the things the spread is at most this; NAN where nothing was measured twice. */
double gr_repeats_usual(const gr_repeats *r);
/* The thing with the largest spread, NULL where nothing was measured twice. */
const gr_repeat *gr_repeats_worst(const gr_repeats *r);

/* How long threads of this process ran, and waited for a processor while others did, nanoseconds; of threads
 * that are alive. All 0 where the system does not say. */
typedef struct gr_turns {
    unsigned long long ran, waited;
} gr_turns;
gr_turns gr_turns_read(void);
/* The share of the time since then that they waited, 0 to 1. */
double gr_turns_waited(const gr_turns *since, const gr_turns *now);

/* How many tasks of others this machine runs for each of its processors, by the mean of the last minute; 0
 * where the system does not say. loadavg: the text of /proc/loadavg. */
double gr_load_of(const char *loadavg, unsigned processors);

#endif
