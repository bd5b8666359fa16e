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

static void set(void (*handler)(int))
{
    struct sigaction s = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigemptyset(&s.sa_mask);
    sigaction(SIGINT, &s, NULL);
    sigaction(SIGTERM, &s, NULL);
    sigaction(SIGUSR1, &s, NULL);
}

void gr_signals_catch(void)
{
    asked = 0;
    set(on_signal);
}

bool gr_signals_stop(void)
{
    return asked;
}

void gr_signals_restore(void)
{
    set(SIG_DFL);
}
