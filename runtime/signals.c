#include "runtime/signals.h"

#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t asked;

static void on_signal(int number)
{
    (void)number;
    if (asked) {
        if (isatty(STDERR_FILENO)) (void)!write(STDERR_FILENO, "\n", 1); /* leave the progress line */
        _exit(1);
    }
    asked = 1;
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

bool gr_signals_stop(void)
{
    return asked;
}
