/* runtime/signals.h: SIGINT, SIGTERM and SIGUSR1 (which mpirun passes on to ranks): the first asks the run to
 * stop after its iteration, the second exits with status 1 at once. One user a process. */
#ifndef GR_RUNTIME_SIGNALS_H
#define GR_RUNTIME_SIGNALS_H

#include "runtime/base.h"

void gr_signals_catch(void);           /* from here on */
void gr_signals_say(const char *text); /* written to stderr by the first signal; kept, not copied */
bool gr_signals_stop(void);            /* whether a signal asked to stop; any thread */

#endif
