/* runtime/progress.h: a line that says how a run goes: rewritten in place on a terminal, a line an iteration
 * elsewhere. Writes only to the stream it is handed. */
#ifndef GR_RUNTIME_PROGRESS_H
#define GR_RUNTIME_PROGRESS_H

#include <stdio.h>

#include "runtime/base.h"

typedef struct gr_progress {
    FILE *to;
    bool terminal;
    size_t width;        /* of what stands in the line now */
    double mean_seconds; /* of a step, the latest weighing most */
} gr_progress;

/* to NULL: nothing is written. plain: also where it is a terminal. */
void gr_progress_init(gr_progress *p, FILE *to, bool plain);

/* After an iteration. reward and loss NaN: left out. */
void gr_progress_step(gr_progress *p, uint64_t step, uint64_t steps, double reward, double loss,
                      double tokens, double seconds);
/* A line that stays. */
void gr_progress_say(gr_progress *p, const char *text);
void gr_progress_end(gr_progress *p); /* leave the line */

/* "45s", "3m05s", "2h07m", "3d04h"; buf of at least 32 chars, returned. */
char *gr_duration_format(double seconds, char *buf);

#endif
