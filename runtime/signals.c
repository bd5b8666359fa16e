#include "runtime/signals.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t asked;
static const char *_Atomic answer; /* lock-free, as a handler needs it */

static void on_signal(int number)
{
    const int error = errno;
    const char *text = answer;
    (void)number;
    if (isatty(STDERR_FILENO)) (void)!write(STDERR_FILENO, "\n", 1); /* leave the progress line */
    if (asked) _exit(1);
    asked = 1;
    if (text) (void)!write(STDERR_FILENO, text, strlen(text));
    errno = error;
}

void gr_signals_catch(void)
{
    struct sigaction s = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    asked = 0;
    sigemptyset(&s.sa_mask);
    sigaction(SIGINT, &s, NULL);
    sigaction(SIGTERM, &s, NULL);
    sigaction(SIGUSR1, &s, NULL);
}

void gr_signals_say(const char *text)
{
    answer = text;
}

bool gr_signals_stop(void)
{
    return asked;
}
