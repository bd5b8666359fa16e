/* runtime/base/signals.h: SIGINT, SIGTERM, SIGHUP and SIGUSR1 (which mpirun passes on to ranks): the first
 * asks the run to stop after its iteration, the second exits with status 1 at once. A SIGHUP only asks: for a
 * terminal that goes away the shell and the kernel send one each. It stays ignored where it was (nohup). One
 * user a process. */
#ifndef GR_RUNTIME_BASE_SIGNALS_H
#define GR_RUNTIME_BASE_SIGNALS_H

#include "runtime/base/base.h"

void gr_signals_catch(void);         /* from here on */
bool gr_signals_ignored(int number); /* by this process */
bool gr_signals_stop(void);          /* whether a signal asked to stop; any thread */

/* From here on the first signal is answered. Not on ranks: mpirun sends them signals of its own, and who
 * starts it answers the user (tools/launch.c). */
void gr_signals_say(void);
void gr_signals_answer(void); /* to stderr, that the run stops; a handler may call it */

#endif
