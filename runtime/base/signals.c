/* runtime/base/signals.c: the signals that ask a run to stop. What a handler prints may go nowhere: a
 * terminal that has gone away answers with an error, which is no reason to end before the checkpoint. */
#include "runtime/base/signals.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t asked, says;

void gr_signals_answer(void)
{
    static const char text[] =
        "stopping after this iteration, with a checkpoint; a second signal ends at once\n";
    (void)!write(STDERR_FILENO, text, strlen(text));
}

static void on_signal(int number)
{
    const int error = errno;
    const bool again = asked && number == SIGHUP;
    if (!again && isatty(STDERR_FILENO)) (void)!write(STDERR_FILENO, "\n", 1); /* leave the progress line */
    if (asked && !again) _exit(1);
    asked = 1;
    if (says && !again) gr_signals_answer();
    errno = error;
}

bool gr_signals_ignored(int number)
{
    struct sigaction s;
    return !sigaction(number, NULL, &s) && s.sa_handler == SIG_IGN;
}

void gr_signals_catch(void)
{
    struct sigaction s = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    asked = says = 0;
    sigemptyset(&s.sa_mask);
    sigaction(SIGINT, &s, NULL);
    sigaction(SIGTERM, &s, NULL);
    sigaction(SIGUSR1, &s, NULL);
    if (!gr_signals_ignored(SIGHUP)) sigaction(SIGHUP, &s, NULL);
}

void gr_signals_say(void)
{
    says = 1;
}

bool gr_signals_stop(void)
{
    return asked;
}
