#include "runtime/signals.h"

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
    (void)number;
    if (isatty(STDERR_FILENO)) (void)!write(STDERR_FILENO, "\n", 1); /* leave the progress line */
    if (asked) _exit(1);
    asked = 1;
    if (says) gr_signals_answer();
    errno = error;
}

void gr_signals_catch(void)
{
    struct sigaction s = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    asked = says = 0;
    sigemptyset(&s.sa_mask);
    sigaction(SIGINT, &s, NULL);
    sigaction(SIGTERM, &s, NULL);
    sigaction(SIGUSR1, &s, NULL);
}

void gr_signals_say(void)
{
    says = 1;
}

bool gr_signals_stop(void)
{
    return asked;
}
