/* runtime/io/progress.h: a line that says how a run goes: rewritten in place on a terminal, a line an
 * iteration elsewhere. Writes only to the stream it is handed.
 *
 * A long iteration is reported while it runs, by a thread of its own: each second on a terminal,
 * where the line of the iteration before stands, each ten minutes elsewhere.
 *
 * Threads: gr_progress_at may be called from any, the rest from one. Others may write to the stream between
 * gr_progress_init and the first gr_progress_begin, and after gr_progress_end.
 */
#ifndef GR_RUNTIME_IO_PROGRESS_H
#define GR_RUNTIME_IO_PROGRESS_H

#include <pthread.h>
#include <stdio.h>

#include "runtime/base/base.h"

/* What an iteration is at. */
typedef struct gr_progress_place {
    const char *node, *unit; /* node NULL: none yet; unit NULL: how far it is, is not known */
    uint64_t done, total;
} gr_progress_place;

typedef struct gr_progress {
    FILE *to;
    bool terminal;
    double mean_seconds; /* of a step, the latest weighing most */
    uint64_t every_ns;   /* how often a running iteration is told of */
    pthread_t thread;    /* which does so */
    bool started;
    pthread_mutex_t at_lock;
    gr_progress_place at; /* guarded by at_lock: a thread that computes never waits for a terminal */
    pthread_mutex_t lock; /* guards the stream, and all below */
    pthread_cond_t changed;
    bool over;    /* the thread is to end */
    gr_str line;  /* of the last iteration that has ended; empty: what stands in its place stays */
    size_t width; /* of what stands in the line now */
    bool runs;    /* an iteration: */
    uint64_t step, steps, began_ns, told_ns;
} gr_progress;

/* to NULL: nothing is written. plain: also where it is a terminal. */
void gr_progress_init(gr_progress *p, FILE *to, bool plain);

/* An iteration begins; 0: a validation before the first. */
void gr_progress_begin(gr_progress *p, uint64_t step, uint64_t steps);
/* What it is at: a node, of whose `unit`s so many are done. unit NULL: what was said of this node last stays.
 * Both texts outlive p. p NULL: nobody asks. */
void gr_progress_at(gr_progress *p, const char *node, uint64_t done, uint64_t total, const char *unit);
/* After an iteration. reward, loss and tokens NaN: left out. */
void gr_progress_step(gr_progress *p, uint64_t step, uint64_t steps, double reward, double loss,
                      double tokens, double seconds);
/* A line that stays. */
void gr_progress_say(gr_progress *p, const char *text);
void gr_progress_end(gr_progress *p); /* leave the line; p is to be initialized anew */

/* "45s", "3m05s", "2h07m", "3d04h"; buf of at least 32 chars, returned. */
char *gr_duration_format(double seconds, char *buf);

#endif
