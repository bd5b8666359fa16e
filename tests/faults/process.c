/* Commands and what they print: see tests/faults/process.h. */
#include "tests/faults/process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE = 60 }; /* seconds */

char *text_of(const char *fmt, ...)
{
    va_list ap;
    char *out;
    va_start(ap, fmt);
    if (vasprintf(&out, fmt, ap) < 0) abort();
    va_end(ap);
    return out;
}

/* The status that waitpid gives; -1: it did not end. It leads a process group, of which nothing is left
 * behind. */
static int await(pid_t pid)
{
    const struct timespec moment = {0, 500000};
    int status = -1;
    const time_t end = time(NULL) + PATIENCE;
    pid_t got;
    while ((got = waitpid(pid, &status, WNOHANG)) == 0 && time(NULL) < end) nanosleep(&moment, NULL);
    kill(-pid, SIGKILL);
    if (got == pid) return status;
    waitpid(pid, &status, 0);
    return -1;
}

static void send_to(const char *path, int fd)
{
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (file < 0 || dup2(file, fd) < 0) _exit(126);
    close(file);
}

int run_command(char *const command[], void (*prepare)(void *), void *user)
{
    const pid_t pid = fork();
    if (pid < 0) abort();
    if (!pid) {
        setpgid(0, 0);
        send_to("out", STDOUT_FILENO);
        send_to("err", STDERR_FILENO);
        if (prepare) prepare(user);
        if (chdir("scratch")) _exit(126);
        execvp(command[0], command);
        _exit(126);
    }
    setpgid(pid, pid);
    return await(pid);
}

int run_shell(const char *command)
{
    char *const words[] = {(char *)"/bin/sh", (char *)"-c", (char *)command, NULL};
    return run_command(words, NULL, NULL);
}

bool has_message(void)
{
    struct stat s;
    return !stat("err", &s) && s.st_size > 0;
}

void show_begin(const char *path)
{
    char text[400] = "";
    const int fd = open(path, O_RDONLY);
    const ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0) close(fd);
    printf("%.*s", (int)n, text);
}
